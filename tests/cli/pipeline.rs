//! Levels, switches and edits of the default pipeline, from the command line.

use std::{
    fs,
    process::{Command, Stdio},
};

/// A program in which constants fold, an inference form is taken and operators fuse.
const PROGRAM: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(2, 3), float32]) {
  %0 = add(1f, 2f);
  %1 = nn.dropout(%x);
  %2 = multiply(%1.0, %0);
  nn.relu(%2)
}
";

/// `resat opt` over the program with these arguments: exit code, standard output, standard error.
fn opt(args: &[&str]) -> (Option<i32>, String, String) {
    let folder = tempfile::TempDir::new().expect("a folder can be made");
    fs::write(folder.path().join("p.relay"), PROGRAM).expect("the file can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_resat"));
    command.args(["opt", "p.relay", "--report"]).args(args).current_dir(folder.path()).stdin(Stdio::null());
    let output = command.output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program writes UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The passes that ran, in order, with what the program became.
fn ran(args: &[&str]) -> (Vec<String>, String) {
    let (code, stdout, stderr) = opt(args);
    assert_eq!(code, Some(0), "{args:?}\n{stderr}");
    let name = |line: &str| Some(line.split_once(" s  ")?.1.split_once(':')?.0.to_owned());
    // The pipeline itself is the last line.
    let mut names: Vec<String> = stderr.lines().filter_map(name).collect();
    names.pop();
    (names, stdout)
}

fn refused(args: &[&str], parts: &[&str]) {
    let (code, _, stderr) = opt(args);
    assert_eq!(code, Some(2), "{args:?}\n{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{args:?}\n`{part}` is not in\n{stderr}");
    }
}

#[test]
fn stages_are_edited_by_name_in_the_order_given() {
    let (plain, _) = ran(&[]);
    assert!(plain.contains(&"FuseOps".to_owned()) && plain.contains(&"Saturate(all)".to_owned()), "{plain:?}");
    let (edited, text) = ran(&[
        "--run-before",
        "fuse=early:DeadCodeElimination",
        "--run-after",
        "early=InferType",
        "--replace",
        "optimize=Saturate(simplify-inference)",
        "--remove",
        "fuse",
    ]);
    let mut wanted: Vec<String> = plain.iter().filter(|p| *p != "FuseOps").cloned().collect();
    let at = wanted.iter().position(|p| p == "Saturate(all)").expect("a saturation");
    wanted[at] = "Saturate(simplify-inference)".into();
    let fuse = plain.iter().position(|p| p == "FuseOps").expect("a fusion");
    wanted.insert(fuse, "DeadCodeElimination".into());
    wanted.insert(fuse + 1, "InferType".into());
    assert_eq!(edited, wanted);
    assert!(!text.contains("Primitive=1"), "{text}");
    // The other way round there is no stage to come after.
    refused(&["--run-after", "early=InferType", "--run-before", "fuse=early:Inline"], &["no stage `early`", "inline"]);
}

#[test]
fn levels_and_switches_choose_what_runs() {
    let (_, text) = ran(&["-O0"]);
    assert!(text.contains("add(1f") && !text.contains("Primitive=1") && !text.contains("dropout"), "{text}");
    let (_, text) = ran(&["--opt-level", "1"]);
    assert!(text.contains("Primitive=1"), "{text}");
    let (_, text) = ran(&["-O1", "--required-pass", "FoldConstant", "--disabled-pass", "FuseOps,SimplifyInference"]);
    assert!(!text.contains("add(1f") && !text.contains("Primitive=1") && text.contains("dropout"), "{text}");
    let (_, text) = ran(&["--pass-config", "relay.FuseOps.max_depth=1", "--disabled-pass", "FoldConstant"]);
    assert!(text.matches("Primitive=1").count() > 2, "{text}");
    let (_, text) = ran(&["--passes", "Inline,default", "--disabled-pass", "fuse"]);
    assert!(!text.contains("Primitive=1"), "{text}");
}

#[test]
fn wrong_names_are_refused_with_suggestions() {
    refused(&["--remove", "fold-constnt"], &["no stage `fold-constnt`", "did you mean `fold-constant`?", "dead-code"]);
    refused(&["--run-before", "fuse=FoldConstnt"], &["`FoldConstnt`", "did you mean `FoldConstant`?"]);
    refused(&["--run-before", "fuse"], &["STAGE=PASS"]);
    refused(&["--run-before", "fuse=FuseOps", "--run-after", "fuse=FuseOps"], &["already has a stage `FuseOps`"]);
    refused(&["--pass-config", "relay.FuseOps.depth=1"], &["`relay.FuseOps.depth`", "relay.FuseOps.max_depth"]);
    refused(&["-O5"], &["5", "0..=4"]);
    refused(&["--disabled-pass", "FuseOp"], &["`FuseOp`", "did you mean `FuseOps`?"]);
    refused(&["--required-pass", "Partition"], &["no part of the default pipeline", "--run-before"]);
    refused(&["--passes", "Inline", "-O2"], &["`Inline`", "`default` is a name"]);
}

#[test]
fn passes_stages_levels_and_rulesets_are_listed() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_resat")).arg("passes").args(args).output();
        String::from_utf8(output.expect("the program starts").stdout).expect("the program writes UTF-8")
    };
    let text = run(&[]);
    for part in ["FoldConstant ", "fold-constant ", "simplify-inference ", "--run-before", "for -O"] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    let text = run(&["-O1", "--remove", "fuse"]);
    assert!(!text.contains("fuse                     FuseOps") && text.contains("rules, off)"), "{text}");
}

#[test]
fn kernels_are_priced_on_request() {
    let (code, text, stderr) = opt(&["--required-pass", "fusion"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains(": multiply+nn.relu\n") && stderr.contains("fusion/chain"), "{stderr}");
    assert_eq!(text.matches("Primitive=1").count(), 1, "{text}");
}
