//! Tiles that were measured: whichever candidate a reduction takes, it computes the same; what was measured is known to later builds.

use std::{fs, path::Path, process::Command, sync::Arc, time::Duration};

use resat::{
    driver::{Built, Options, Record, Tuning, build, tuned_in},
    interp::random_value,
    ir::Type,
    pass::Settings,
    relay::text::parse_module,
    target::Target,
    tensor::{DType, Tensor},
};

use super::folder::looked_at;

const PROGRAM: &str = r#"#[version = "0.0.5"]
def @main(%x: Tensor[(480, 96), float32], %w: Tensor[(256, 96), float32],
          %d: Tensor[(1, 8, 31, 29), float32], %k: Tensor[(24, 8, 3, 3), float32]) {
  %0 = nn.dense(%x, %w, units=256);
  %1 = nn.conv2d(%d, %k, padding=[1, 1, 1, 1], channels=24, kernel_size=[3, 3]);
  (nn.relu(%0), nn.relu(%1))
}
"#;

fn settings() -> Settings {
    Settings::new(Target::parse("llvm -mcpu=native -num-cores=2").expect("a target"))
}

fn built(folder: Option<&Path>, seconds: Option<f64>) -> Built {
    let module = parse_module("tuned.relay", PROGRAM).unwrap_or_else(|e| panic!("{e}"));
    let mut options = Options::new(settings());
    options.tuned = folder.map(|f| Arc::new(tuned_in(&options.settings.target, Some(f.to_owned()))));
    options.tune = seconds.map(Duration::from_secs_f64);
    build(module, &[], options).unwrap_or_else(|e| panic!("{e}"))
}

fn outputs(built: &Built) -> Vec<Vec<f32>> {
    let shapes: [&[i64]; 4] = [&[480, 96], &[256, 96], &[1, 8, 31, 29], &[24, 8, 3, 3]];
    let value = |(i, shape): (usize, &&[i64])| random_value(&Type::tensor(shape, DType::F32), 11, i);
    let inputs: Vec<Tensor> = shapes.iter().enumerate().filter_map(value).flat_map(|v| v.flatten()).collect();
    let out = built.executable.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
    out.iter().map(|t| t.as_slice::<f32>().to_vec()).collect()
}

fn record(built: &Built) -> &Record {
    built.record().expect("it is built here")
}

fn assert_alike(a: &[Vec<f32>], b: &[Vec<f32>], what: &str) {
    for (x, y) in a.iter().flatten().zip(b.iter().flatten()) {
        assert!((x - y).abs() <= 1e-4 * x.abs().max(1.0), "{what}: {x} and {y}");
    }
}

#[test]
fn what_was_measured_is_known_to_later_builds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plain = built(None, None);
    assert_eq!(record(&plain).tuned, None);
    let tuned = built(Some(folder.path()), Some(600.0));
    let first = record(&tuned).tuned.clone().expect("it was asked for");
    // How many there are is the schedule's affair: a product may be made in pieces.
    assert!(first.measured >= 2 && (first.known, first.left) == (0, 0), "{first}");
    assert_alike(&outputs(&plain), &outputs(&tuned), "tuned");
    let again = built(Some(folder.path()), Some(600.0));
    let known = Tuning { known: first.measured, ..Tuning::default() };
    assert_eq!(record(&again).tuned, Some(known));
    assert_eq!(record(&again).kernels, record(&tuned).kernels);
    let later = built(Some(folder.path()), None);
    assert_eq!((&record(&later).tuned, &record(&later).kernels), (&None, &record(&tuned).kernels));
}

#[test]
fn every_candidate_computes_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let table = tuned_in(&settings().target, Some(folder.path().to_owned()));
    let plain = built(None, None);
    built(Some(folder.path()), Some(600.0));
    let file = table.file().expect("there is a folder");
    let measured = fs::read_to_string(&file).expect("it was written");
    let mut different = 0;
    for choice in 0..12 {
        let changed: Vec<String> = measured
            .lines()
            .map(|line| match line.splitn(3, '\t').collect::<Vec<_>>()[..] {
                [key, _, about] => format!("{key}\t{choice}\t{about}"),
                _ => line.to_owned(),
            })
            .collect();
        fs::write(&file, changed.join("\n") + "\nnot a line of ours\n").expect("it can be written");
        let forced = built(Some(folder.path()), None);
        different += usize::from(record(&forced).kernels != record(&plain).kernels);
        assert_alike(&outputs(&plain), &outputs(&forced), &format!("candidate {choice}"));
    }
    assert_eq!(different, 11, "each candidate but the first is another kernel");
}

#[test]
fn without_time_the_model_decides() {
    let plain = built(None, None);
    let hurried = built(None, Some(0.0));
    let tuning = record(&hurried).tuned.clone().expect("it was asked for");
    assert!(tuning.left >= 2);
    assert_eq!(tuning, Tuning { left: tuning.left, ..Tuning::default() });
    assert!(tuning.to_string().contains(&format!("for {} there was no time", tuning.left)), "{tuning}");
    assert_eq!(record(&hurried).kernels, record(&plain).kernels);
}

#[test]
fn other_machines_are_not_tuned_for() {
    let other = match cfg!(target_arch = "aarch64") {
        true => "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v3",
        false => "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=generic",
    };
    let module = parse_module("tuned.relay", PROGRAM).unwrap_or_else(|e| panic!("{e}"));
    let mut options = Options::new(Settings::new(Target::parse(other).expect("a target")));
    options.tune = Some(Duration::from_secs(1));
    let refused = build(module, &[], options).err().expect("it can't be run here").to_string();
    assert!(refused.contains("tuning runs the target's code, but this machine has no"), "{refused}");
}

/// What the command line does with caches in a folder of its own: standard error.
fn resat(home: &Path, args: &[&str]) -> String {
    let command = Command::new(env!("CARGO_BIN_EXE_resat")).args(args).env("XDG_CACHE_HOME", home).output();
    let output = command.expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

#[test]
fn builds_without_tuning_use_nothing_that_was_measured() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("tuned.relay");
    fs::write(&model, PROGRAM).expect("it can be written");
    let [plain, measured] = ["plain", "measured"].map(|name| folder.path().join(name));
    looked_at(&plain);
    let said = resat(&measured, &["machine", "--measure"]);
    let kept = said.trim().rsplit("kept in ").next().expect("it says where");
    let library = |home: &Path, options: &[&str]| {
        let file = folder.path().join("program.so");
        let [model, to] = [&model, &file].map(|path| path.to_str().expect("a plain path"));
        resat(home, &[&["build", model, "-o", to, "--no-cache"], options].concat());
        fs::read(&file).expect("it was written")
    };
    let same = library(&plain, &["--no-tune"]);
    assert!(same == library(&plain, &[]), "nothing was measured there");
    // Machines unlike any: schedules for them are others.
    let strange = ["FMA throughput\t8\nloads\t0.0625\nFMA latency\t1\n", "FMA throughput\t0.01\nstores\t0.001\n"];
    let other = strange.map(|facts| {
        fs::write(kept, facts).expect("it can be written");
        assert!(same == library(&measured, &["--no-tune"]), "{facts}");
        same != library(&measured, &[])
    });
    assert!(other.contains(&true), "what was measured counts otherwise");
}
