//! Builds that are ended in the middle: what was there before stays whole, and nothing is left behind.
//!
//! The moments differ from run to run; what must hold does not.
#![cfg(unix)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use resat::{
    relay::npz,
    tensor::{DType, Tensor},
};

const PROGRAM: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(4, 64), float32], %w: Tensor[(64, 64), float32]) {
  %0 = nn.dense(%x, %w, units=None);
  nn.relu(%0)
}";

/// Kills in each way.
const KILLS: u32 = 10;

fn resat(folder: &Path, temporary: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_resat"));
    command.current_dir(folder).env("TMPDIR", temporary).args(["build", "model.relay", "--no-cache", "-o"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).expect("the folder is there").map(|e| e.expect("an entry").path()).collect();
    found.sort();
    found
}

/// Starts a command and sends it a signal some time later.
fn signalled(command: &mut Command, signal: &str, after: Duration) {
    let mut child = command.spawn().expect("it starts");
    thread::sleep(after);
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
    kill.expect("`kill` starts");
    child.wait().expect("it ends");
}

/// Kills builds at moments spread over the time that one takes. `check` looks at the folder after each.
fn killed(signal: &str, output: &str, mut check: impl FnMut(&Path, &Path)) {
    let (folder, temporary) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (folder, temporary) = (folder.path(), temporary.path());
    fs::write(folder.join("model.relay"), PROGRAM).expect("it can be written");
    let start = Instant::now();
    assert!(resat(folder, temporary).arg(output).status().expect("it starts").success());
    let whole = start.elapsed();
    for i in 0..KILLS {
        signalled(resat(folder, temporary).arg(output), signal, whole * i / KILLS + Duration::from_millis(1));
        check(folder, temporary);
    }
}

fn is_whole(library: &Path) {
    let bytes = fs::read(library).expect("the library is there");
    assert!(bytes.len() > 16_384 && bytes.starts_with(b"\x7fELF"), "{} bytes", bytes.len());
    // The section headers come last in the file.
    let (at, size, count) = (40..48, 58..60, 60..62);
    let number = |r: std::ops::Range<usize>| bytes[r].iter().rev().fold(0usize, |n, &b| n << 8 | b as usize);
    assert!(number(at) + number(size) * number(count) <= bytes.len(), "the library is cut off");
}

#[test]
fn signals_leave_the_old_output_and_nothing_else() {
    for signal in ["-INT", "-TERM"] {
        killed(signal, "model.so", |folder, temporary| {
            is_whole(&folder.join("model.so"));
            let names: Vec<PathBuf> = ["model.h", "model.relay", "model.so"].iter().map(|n| folder.join(n)).collect();
            assert_eq!(entries(folder), names, "{signal}");
            assert_eq!(entries(temporary), [] as [PathBuf; 0], "{signal}");
        });
    }
}

#[test]
fn what_a_kill_leaves_goes_with_the_next_build() {
    killed("-KILL", "model.so", |folder, temporary| {
        is_whole(&folder.join("model.so"));
        assert!(resat(folder, temporary).arg("model.so").status().expect("it starts").success());
        assert_eq!(entries(folder).len(), 3, "{:?}", entries(folder));
        assert_eq!(entries(temporary), [] as [PathBuf; 0]);
    });
}

/// What a program reads from its cache is what was written whole: neither weights, which are as many as programs map from there, nor code are cut off.
#[test]
fn what_a_kill_leaves_in_the_cache_changes_no_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let program = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(?, 2048), float32], %w: Tensor[(4096, 2048), float32]) {
  nn.relu(nn.dense(%x, %w, units=None))
}";
    fs::write(folder.join("model.relay"), program).expect("it can be written");
    let tensor =
        |shape: &[usize], step: usize| Tensor::from_f64_fn(DType::F32, shape, |i| (i % step) as f64 / 64.0 - 0.5);
    for (name, t) in [("w", tensor(&[4096, 2048], 61)), ("x", tensor(&[3, 2048], 67))] {
        let archive = npz::write([(name, &t)]).expect("an archive can be made");
        fs::write(folder.join(format!("{name}.npz")), archive).expect("it can be written");
    }
    let run = |cache: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_resat"));
        let files = ["--params", "w.npz", "--inputs", "x.npz", "--outputs", "out.npz"];
        command.current_dir(folder).env("XDG_CACHE_HOME", cache).args(["run", "model.relay"]).args(files);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let result = |cache: &Path| {
        assert!(run(cache).status().expect("it starts").success());
        let bytes = fs::read(folder.join("out.npz")).expect("it was written");
        npz::read("out", &bytes).expect("an archive")
    };
    let start = Instant::now();
    let want = result(&folder.join("whole"));
    let whole = start.elapsed();
    for i in 0..KILLS {
        let cache = folder.join(format!("cache{i}"));
        signalled(&mut run(&cache), "-KILL", whole * i / KILLS + Duration::from_millis(1));
        for turn in ["what the kill left", "what that run kept"] {
            assert!(result(&cache) == want, "{turn}, kill {i}");
        }
        fs::remove_dir_all(&cache).expect("it can be removed");
    }
}

#[test]
fn a_place_that_holds_no_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("model.relay"), PROGRAM).expect("it can be written");
    let mut command = resat(folder.path(), folder.path());
    let output = command.arg("nowhere/model.so").stderr(Stdio::piped()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("can't write nowhere/model.so"), "{said}");
}
