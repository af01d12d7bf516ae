//! State: inputs that come back as outputs, kept from one run to the next and updated where they lie.
#![cfg(feature = "llvm")]

use std::path::Path;

use crate::common::{Data, Rng, random_tensor};
use resat::{
    driver::{self, BuildError, Built, Options, Runnable},
    ir::TensorType,
    pass::Settings,
    relay::{npz, text::parse_module},
    target::Target,
    tensor::{DType, Tensor},
};

fn build(text: &str, state: &[(&str, &str)]) -> Result<Built, BuildError> {
    let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).unwrap_or_else(|e| panic!("{e}"));
    let mut options = Options::new(Settings::new(Target::host()));
    options.state = state.iter().map(|&(a, b)| (a.into(), b.into())).collect();
    driver::build(m, &[], options)
}

fn built(text: &str, state: &[(&str, &str)]) -> Built {
    build(text, state).unwrap_or_else(|e| panic!("{e}"))
}

fn floats(shape: &[i64], seed: u64) -> Tensor {
    random_tensor(&TensorType::new(shape, DType::F32), Data::Tame, &mut Rng(seed))
}

fn assert_close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    for (x, y) in a.as_slice::<f32>().iter().zip(b.as_slice::<f32>()) {
        assert!((x - y).abs() <= 1e-4 * y.abs().max(1.0), "{x} and {y}");
    }
}

/// A cache that grows by what is computed of the input, and something that is computed of all of it.
const GROWS: &str =
    "def @main(%x: Tensor[(?, 8), float32], %cache: Tensor[(?, 8), float32], %w: Tensor[(8, 8), float32]) {
    let %new = nn.relu(nn.dense(%x, %w, units=8));
    let %all = concatenate((%cache, %new), axis=0);
    (nn.softmax(nn.dense(%x, %all, units=None), axis=-1), %all) }";

#[test]
fn a_cache_grows_where_it_lies() {
    let kept = built(GROWS, &[("cache", "1")]);
    let plain = built(GROWS, &[]);
    let (w, mut want) = (floats(&[8, 8], 1), Tensor::zeros(DType::F32, &[0, 8]));
    let mut runs = kept.stateful();
    let mut moves = 0;
    for step in 0..40 {
        let x = floats(&[1, 8], 2 + step);
        let both = plain.executable.run(&[x.clone(), want, w.clone()]).unwrap_or_else(|e| panic!("{e}"));
        let before = runs.get("cache").map(|t| t.bytes().as_ptr());
        let out = runs.run(&[x, w.clone()]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(out.len(), 1);
        assert_close(&out[0], &both[0]);
        let cache = runs.get("cache").expect("it is kept");
        moves += usize::from(before != Some(cache.bytes().as_ptr()));
        assert_close(cache, &both[1]);
        want = both[1].clone();
    }
    // A copied cache would lie elsewhere each time.
    assert!(moves < 10, "{moves} of 40");
    if let Runnable::Machine(m) = &kept.executable {
        let (general, alone, special) = m.sized_calls();
        assert!(general > 0 && alone == 0 && special <= 4, "{general} {alone} {special}");
    }
}

#[test]
fn a_program_that_keeps_state_runs_without_it_too() {
    let (kept, plain) = (built(GROWS, &[("cache", "1")]), built(GROWS, &[]));
    for rows in [3, 5] {
        let inputs = [floats(&[2, 8], 1), floats(&[rows, 8], 2), floats(&[8, 8], 3)];
        let want = plain.executable.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
        let got = kept.executable.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
        want.iter().zip(&got).for_each(|(w, g)| assert_close(g, w));
        // The input is the caller's.
        assert_eq!(inputs[1].bytes(), floats(&[rows, 8], 2).bytes());
    }
}

#[test]
fn state_of_known_extents_is_replaced() {
    let text = "def @main(%x: Tensor[(4, 6), float32], %h: Tensor[(4, 6), float32], %w: Tensor[(6, 6), float32]) {
        let %now = tanh(add(nn.dense(%h, %w, units=6), %x));
        (sum(%now), %now) }";
    let (kept, plain) = (built(text, &[("h", "1")]), built(text, &[]));
    let (w, mut h) = (floats(&[6, 6], 1), Tensor::zeros(DType::F32, &[4, 6]));
    let mut runs = kept.stateful();
    for step in 0..5 {
        let x = floats(&[4, 6], 2 + step);
        let both = plain.executable.run(&[x.clone(), h, w.clone()]).unwrap_or_else(|e| panic!("{e}"));
        let out = runs.run(&[x, w.clone()]).unwrap_or_else(|e| panic!("{e}"));
        assert_close(&out[0], &both[0]);
        h = both[1].clone();
        assert_close(runs.get("h").expect("it is kept"), &h);
    }
    runs.set("h", floats(&[4, 6], 9)).unwrap_or_else(|e| panic!("{e}"));
    let message = runs.set("h", floats(&[4, 7], 9)).expect_err("another shape").to_string();
    assert!(message.contains("state `h`") && message.contains("[4, 7]"), "{message}");
    let message = runs.run(&[]).expect_err("no inputs").to_string();
    assert!(message.contains("2 inputs beside its state"), "{message}");
}

#[test]
fn what_is_written_where_it_is_read_stays_where_it_is() {
    let text =
        "def @main(%x: Tensor[(64), float32], %sum: Tensor[(64), float32]) { (multiply(%x, 2f), add(%sum, %x)) }";
    let kept = built(text, &[("sum", "1")]);
    let mut runs = kept.stateful();
    runs.run(&[floats(&[64], 1)]).unwrap_or_else(|e| panic!("{e}"));
    let at = runs.get("sum").map(|t| t.bytes().as_ptr());
    runs.run(&[floats(&[64], 2)]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(runs.get("sum").map(|t| t.bytes().as_ptr()), at);
    let (a, b) = (floats(&[64], 1), floats(&[64], 2));
    let sums = a.as_slice::<f32>().iter().zip(b.as_slice::<f32>()).map(|(a, b)| a + b);
    assert!(sums.zip(runs.get("sum").expect("it is kept").as_slice::<f32>()).all(|(a, b)| a == *b));
}

#[test]
fn a_cache_that_does_not_lie_in_one_piece_is_copied_right() {
    // Two heads: each grows by itself.
    let text = "def @main(%x: Tensor[(2, 1, 4), float32], %cache: Tensor[(2, ?, 4), float32]) {
        let %all = concatenate((%cache, %x), axis=1);
        (sum(%all, axis=[1]), %all) }";
    let kept = built(text, &[("cache", "1")]);
    let mut runs = kept.stateful();
    let mut all: Vec<Tensor> = Vec::new();
    for step in 0..6 {
        let x = floats(&[2, 1, 4], step);
        runs.run(std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{e}"));
        all.push(x);
        let cache = runs.get("cache").expect("it is kept");
        assert_eq!(cache.shape(), [2, all.len(), 4]);
        for head in 0..2 {
            for (t, x) in all.iter().enumerate() {
                let at = (head * all.len() + t) * 4;
                assert_eq!(cache.as_slice::<f32>()[at..at + 4], x.as_slice::<f32>()[head * 4..head * 4 + 4]);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refused = |state: &[(&str, &str)]| match build(GROWS, state) {
        Err(e) => e.to_string(),
        Ok(_) => panic!("{state:?} is taken"),
    };
    let message = refused(&[("cashe", "1")]);
    assert!(message.contains("no input `cashe`") && message.contains("did you mean `cache`?"), "{message}");
    let message = refused(&[("cache", "7")]);
    assert!(message.contains("no output `7`; it has 0, 1"), "{message}");
    let message = refused(&[("w", "1"), ("cache", "1")]);
    assert!(message.contains("output `1` is named twice"), "{message}");
    let text = "def @main(%x: Tensor[(4), float32]) { cast(%x, dtype=\"float16\") }";
    let message = match build(text, &[("x", "0")]) {
        Err(e) => e.to_string(),
        Ok(_) => panic!("another type is taken"),
    };
    assert!(message.contains("float32") && message.contains("but the output is Tensor[(4), float16]"), "{message}");
}

#[test]
fn what_is_lengthened_stays_where_there_is_room() {
    let shared = floats(&[2, 3], 1);
    let mut t = shared.clone().lengthened(&[3, 3]);
    let mut moves = 0;
    for rows in 4..200 {
        let at = t.bytes().as_ptr();
        t = t.lengthened(&[rows, 3]);
        moves += usize::from(t.bytes().as_ptr() != at);
    }
    assert!(moves < 10, "{moves} moves");
    assert_eq!((t.shape(), &t.as_slice::<f32>()[..6]), (&[199, 3][..], shared.as_slice::<f32>()));
    assert_eq!(shared.shape(), [2, 3]);
}

fn archive(to: &Path, tensors: &[(&str, &Tensor)]) {
    let bytes = npz::write(tensors.iter().copied()).expect("an archive");
    std::fs::write(to, bytes).expect("it can be written");
}

#[test]
fn the_command_line_keeps_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let text = "#[version = \"0.0.5\"] def @main(%x: Tensor[(?, 3), float32], %cache: Tensor[(?, 3), float32]) {
        let %all = concatenate((%cache, %x), axis=0);
        (sum(%all), %all) }";
    std::fs::write(at("program.relay"), text).expect("it can be written");
    let parts: Vec<Tensor> = (0..3).map(|i| floats(&[i + 1, 3], i as u64)).collect();
    for (i, part) in parts.iter().enumerate() {
        archive(&at(&format!("{i}.npz")), &[("x", part)]);
    }
    let resat = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_resat"));
        command.current_dir(folder.path()).args(more);
        command.output().expect("it runs")
    };
    let three = ["--inputs", "0.npz", "--inputs", "1.npz", "--inputs", "2.npz"];
    let run = ["run", "program.relay", "--no-cache", "--outputs", "out.npz"];
    let done = resat(&[&run[..], &["--state", "cache=1"], &three].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let out = npz::read("out.npz", &std::fs::read(at("out.npz")).expect("results")).expect("an archive");
    let all = &out.iter().find(|(n, _)| n.as_str() == "1").expect("the cache").1;
    let want: Vec<f32> = parts.iter().flat_map(|p| p.as_slice::<f32>().to_vec()).collect();
    assert_eq!((all.shape(), all.as_slice::<f32>()), (&[6, 3][..], &want[..]));
    let error = |args: &[&str]| {
        let done = resat(args);
        assert_eq!(done.status.code(), Some(2));
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    assert!(error(&[&run[..], &three].concat()).contains("--state"));
    assert!(error(&[&run[..], &["--state", "x=5"]].concat()).contains("no output `5`"));
    assert!(error(&[&run[..], &["--state", "x"]].concat()).contains("the name of an input"));
    let bench = ["bench", "program.relay", "--no-cache", "--json", "--repeat", "2", "--state", "cache=1"];
    let done = resat(&[&bench[..], &three[..4]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(found["runs"].as_array().map(Vec::len), Some(2));
}
