//! The program between passes: hooks of a build, files, differences, and text without weights.

use std::{
    fs,
    process::Command,
    sync::{Arc, Mutex},
};

use resat::{
    driver::{Options, build},
    pass::{Pass, Settings},
    relay::text,
    target::Target,
};

const PROGRAM: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(1, 6, 6, 8), float32]) {
  %0 = transpose(%x, axes=[0, 3, 1, 2]);
  %1 = nn.relu(%0);
  transpose(%1, axes=[0, 2, 3, 1])
}
";

fn resat(folder: &std::path::Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_resat"))
        .args(args)
        .current_dir(folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .output()
        .expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    fs::write(folder.path().join("p.relay"), PROGRAM).expect("the file can be written");
    folder
}

#[test]
fn programs_after_passes_are_files() {
    let folder = folder();
    for command in ["opt", "build", "run"] {
        let output: &[&str] = match command {
            "opt" => &["-o", "o.relay"],
            "build" => &["-o", "o.so"],
            _ => &["--outputs", "o.npz"],
        };
        let args = [&[command, "p.relay", "--passes", "SimplifyExpr,FuseOps", "--dump-after", "all", command], output];
        let (code, _, stderr) = resat(folder.path(), &args.concat());
        assert_eq!(code, Some(0), "{command}: {stderr}");
        let first = fs::read_to_string(folder.path().join(command).join("00-SimplifyExpr.relay")).expect("it is there");
        assert!(first.starts_with("/* after SimplifyExpr */") && !first.contains("transpose"), "{command}: {first}");
        let second = fs::read_to_string(folder.path().join(command).join("01-FuseOps.relay")).expect("it is there");
        assert!(second.contains("Primitive=1"), "{command}: {second}");
    }
    let (code, ..) = resat(folder.path(), &["opt", "p.relay", "--dump-after", "FuseOps", "one", "-o", "o.relay"]);
    let files = fs::read_dir(folder.path().join("one")).expect("it is there").count();
    assert_eq!((code, files), (Some(0), 1));
    let (code, _, stderr) = resat(folder.path(), &["opt", "p.relay", "--dump-after", "FuseOp", "two", "-o", "o.relay"]);
    assert!(code == Some(2) && stderr.contains("did you mean `FuseOps`?"), "{stderr}");
}

#[test]
fn differences_say_what_each_pass_changed() {
    let folder = folder();
    let args = ["opt", "p.relay", "--diff", "--passes", "SimplifyInference,SimplifyExpr", "-o", "o.relay"];
    let (code, _, stderr) = resat(folder.path(), &args);
    assert_eq!(code, Some(0), "{stderr}");
    for part in ["--- before SimplifyExpr", "+++ after SimplifyExpr", "-  %0 = transpose(%x, axes=[0, 3, 1, 2]);"] {
        assert!(stderr.contains(part), "`{part}` is not in\n{stderr}");
    }
    assert!(!stderr.contains("SimplifyInference"), "it changed nothing:\n{stderr}");
}

#[test]
fn a_build_calls_hooks_around_each_pass() {
    let module = text::parse_module("p.relay", PROGRAM).expect("well formed");
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (before, after) = (seen.clone(), seen.clone());
    let mut options = Options::new(Settings::new(Target::host()));
    options.before_pass = Some(Box::new(move |pass: &dyn Pass, _: &_| {
        before.lock().expect("no thread panicked").push(format!("< {}", pass.name()));
        Ok(())
    }));
    options.after_pass = Some(Box::new(move |pass: &dyn Pass, old: &_, new: &_| {
        let changed = text::print_brief(old) != text::print_brief(new);
        after.lock().expect("no thread panicked").push(format!("> {} {changed}", pass.name()));
        Ok(())
    }));
    build(module, &[], options).unwrap_or_else(|e| panic!("{e}"));
    let seen = seen.lock().expect("no thread panicked");
    let at = seen.iter().position(|s| s == "< FuseOps").expect("it ran");
    assert_eq!(seen[at + 1], "> FuseOps true", "{seen:?}");
}

#[test]
fn a_hook_that_fails_ends_the_build() {
    let module = text::parse_module("p.relay", PROGRAM).expect("well formed");
    let mut options = Options::new(Settings::new(Target::host()));
    options.before_pass =
        Some(Box::new(|_: &dyn Pass, _: &_| Err(resat::diag::Diagnostic::new("enough of that").into())));
    let error = build(module, &[], options).err().expect("the hook refuses").to_string();
    assert!(error.contains("enough of that"), "{error}");
}

#[test]
fn weights_are_digests_in_text_for_people() {
    let stacked = |last: i32| {
        let program = format!("#[version = \"0.0.5\"] def @main() {{ stack((1, 2, {last}), axis=0) }}");
        let module = text::parse_module("p.relay", &program).expect("well formed");
        text::print_brief(&resat::pass::fold_constant(&module).expect("it folds"))
    };
    assert!(stacked(3).contains("constant((3), int32, …") && !stacked(3).contains("metadata"), "{}", stacked(3));
    assert_eq!(stacked(3), stacked(3));
    assert_ne!(stacked(3), stacked(4));
}
