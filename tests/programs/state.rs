//! State: inputs that come back as outputs, kept from one run to the next and updated where they lie.
#![cfg(feature = "llvm")]

use std::{path::Path, process::Command};

use crate::{
    common::{Data, Rng, random_tensor},
    export::{cc, source},
};
use resat::{
    driver::{self, BuildError, Built, Options, Runnable, emit_c},
    ir::{Module, TensorType},
    pass::{Settings, sequence},
    relay::{npz, text::parse_module},
    runtime::LoadedSizedModel,
    target::Target,
    tensor::{DType, Tensor},
};

fn parsed(text: &str) -> Module {
    parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).unwrap_or_else(|e| panic!("{e}"))
}

fn options(state: &[(&str, &str)]) -> Options {
    let mut options = Options::new(Settings::new(Target::host()));
    options.state = state.iter().map(|&(a, b)| (a.into(), b.into())).collect();
    options
}

fn build(text: &str, state: &[(&str, &str)]) -> Result<Built, BuildError> {
    driver::build(parsed(text), &[], options(state))
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
        assert_close(&cache, &both[1]);
        want = both[1].clone();
    }
    // A copied cache would lie elsewhere each time.
    assert!(moves < 10, "{moves} of 40");
    if let Runnable::Machine(m) = &kept.executable {
        let (general, alone, special) = m.sized_calls();
        assert!(general > 0 && alone == 0 && special <= 4, "{general} {alone} {special}");
    }
}

/// However many parts follow it.
#[test]
fn a_cache_grows_by_many_parts_where_it_lies() {
    let text = "def @main(%x: Tensor[(?, 8), float32], %cache: Tensor[(?, 8), float32]) {
        let %a = nn.relu(%x);
        let %all = concatenate((%cache, %a, %x, %a + %x, %a * %x, %a - %x), axis=0);
        (sum(%all, axis=[0]), %all) }";
    let (kept, plain) = (built(text, &[("cache", "1")]), built(text, &[]));
    let mut want = Tensor::zeros(DType::F32, &[0, 8]);
    let mut runs = kept.stateful();
    let mut moves = 0;
    for step in 0..20 {
        let x = floats(&[1, 8], 2 + step);
        let both = plain.executable.run(&[x.clone(), want]).unwrap_or_else(|e| panic!("{e}"));
        let before = runs.get("cache").map(|t| t.bytes().as_ptr());
        let out = runs.run(&[x]).unwrap_or_else(|e| panic!("{e}"));
        assert_close(&out[0], &both[0]);
        let cache = runs.get("cache").expect("it is kept");
        moves += usize::from(before != Some(cache.bytes().as_ptr()));
        assert_close(&cache, &both[1]);
        want = both[1].clone();
    }
    assert!(moves < 10, "{moves} of 20");
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
        assert_close(&runs.get("h").expect("it is kept"), &h);
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

/// Attention of a few heads over a cache in which heads come before places, and what is known of its extents.
const HEADS: &str =
    "def @main(%q: Tensor[(?, 2, ?, 8), float32], %k: Tensor[(?, 2, ?, 8), float32], %cache: Tensor[(?, 2, ?, 8), float32],
        dim_names=[[\"batch\", \"\", \"length\", \"\"], [\"batch\", \"\", \"length\", \"\"], [\"batch\", \"\", \"past\", \"\"]]) {
    %0 = (%cache, %k);
    %1 = concatenate(%0, axis=2);
    %2 = reshape(%q, newshape=[-3, 0, 0]);
    %3 = reshape(%1, newshape=[-3, 0, 0]);
    %4 = nn.batch_matmul(%2, %3, transpose_b=True);
    %5 = nn.softmax(%4, axis=-1);
    %6 = nn.batch_matmul(%5, %3);
    %7 = arange_like(%1, axis=2, dtype=\"float32\");
    %8 = shape_of(%cache, dtype=\"int64\");
    (%6, %1, %7, %8) }";

#[test]
fn a_cache_with_heads_first_grows_where_it_lies() {
    let mut asked = options(&[("cache", "1")]);
    asked.reorder_state = true;
    let kept = driver::build(parsed(HEADS), &[], asked).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(kept.state[0].order, Some(vec![2, 0, 1, 3]));
    let plain = built(HEADS, &[]);
    for batch in [1, 2] {
        let mut runs = kept.stateful();
        let mut want = floats(&[batch, 2, 3, 8], 1);
        runs.set("cache", want.clone()).unwrap_or_else(|e| panic!("{e}"));
        for (step, length) in [1, 1, 2, 31, 1, 990, 1, 1].into_iter().enumerate() {
            let new = |seed| floats(&[batch, 2, length, 8], 2 * step as u64 + seed);
            let (q, k) = (new(10), new(11));
            let all = plain.executable.run(&[q.clone(), k.clone(), want]).unwrap_or_else(|e| panic!("{e}"));
            let out = runs.run(&[q, k]).unwrap_or_else(|e| panic!("{e}"));
            for (got, want) in out[..2].iter().zip([&all[0], &all[2]]) {
                assert_close(got, want);
            }
            assert_eq!(out[2], all[3]);
            assert_eq!(*runs.get("cache").expect("it is kept"), all[1]);
            want = all[1].clone();
        }
    }
    let Runnable::Machine(m) = &kept.executable else { panic!("extents are unknown") };
    let new = floats(&[2, 2, 1, 8], 1);
    let shares = m.at(&[new.clone(), new, floats(&[40, 2, 2, 8], 1)], |exe| exe.program().may_share(2, 1));
    assert_eq!(shares.unwrap_or_else(|e| panic!("{e}")), Some(true), "only what is new is stored");
    let (general, alone, _) = m.sized_calls();
    assert!(general > 0 && alone == 0, "{general} {alone}");
}

/// State begins as nothing, for as many in a batch as the other inputs are, and for others once it begins again.
#[test]
fn state_begins_with_the_extents_that_inputs_name() {
    let plain = built(HEADS, &[]);
    for reorder in [false, true] {
        let mut asked = options(&[("cache", "1")]);
        asked.reorder_state = reorder;
        let kept = driver::build(parsed(HEADS), &[], asked).unwrap_or_else(|e| panic!("{e}"));
        for batch in [2, 1] {
            let (mut runs, mut want) = (kept.stateful(), Tensor::zeros(DType::F32, &[batch, 2, 0, 8]));
            assert!(runs.run(&[]).is_err(), "nothing is given");
            for step in 0..4u64 {
                let new = |seed| floats(&[batch as i64, 2, 1, 8], 2 * step + seed);
                let (q, k) = (new(10), new(11));
                let all = plain.executable.run(&[q.clone(), k.clone(), want]).unwrap_or_else(|e| panic!("{e}"));
                let out = runs.run(&[q, k]).unwrap_or_else(|e| panic!("{e}"));
                assert_close(&out[0], &all[0]);
                assert_eq!(*runs.get("cache").expect("it is kept"), all[1], "{reorder}, step {step}");
                want = all[1].clone();
            }
            // State that was made is not changed for inputs that it does not fit.
            let other = floats(&[batch as i64 + 1, 2, 1, 8], 1);
            let refused = runs.run(&[other.clone(), other]).expect_err("another batch").to_string();
            assert!(refused.contains("disagree about the dimension `batch`"), "{refused}");
        }
        let (mut runs, given) = (kept.stateful(), Tensor::zeros(DType::F32, &[0, 2, 0, 8]));
        runs.set("cache", given).unwrap_or_else(|e| panic!("{e}"));
        let new = floats(&[1, 2, 1, 8], 1);
        assert!(runs.run(&[new.clone(), new]).is_err(), "what was given is no beginning");
    }
}

/// One token after another: what is planned ahead, in what time there is, and by the plan of the length before, is what a program says that is planned
/// for each length.
#[test]
fn lengths_follow_each_other() {
    let plain = built(HEADS, &[]);
    for threads in [1, 2] {
        let mut asked = options(&[("cache", "1")]);
        (asked.reorder_state, asked.threads) = (true, threads);
        let kept = driver::build(parsed(HEADS), &[], asked).unwrap_or_else(|e| panic!("{e}"));
        let Runnable::Machine(m) = &kept.executable else { panic!("extents are unknown") };
        let mut compiled = None;
        let mut runs = kept.stateful();
        for (begin, steps) in [(3, 70), (40, 5), (1, 12), (250, 40)] {
            let mut want = floats(&[1, 2, begin, 8], begin as u64);
            runs.set("cache", want.clone()).unwrap_or_else(|e| panic!("{e}"));
            for step in 0..steps {
                // Now several at once.
                let length = if step % 13 == 12 { 3 } else { 1 };
                let (q, k) = (floats(&[1, 2, length, 8], 7 + step), floats(&[1, 2, length, 8], 1000 + step));
                let all = plain.executable.run(&[q.clone(), k.clone(), want]).unwrap_or_else(|e| panic!("{e}"));
                let out = runs.run(&[q, k]).unwrap_or_else(|e| panic!("{e}"));
                for (got, want) in out[..2].iter().zip([&all[0], &all[2]]) {
                    assert_close(got, want);
                }
                assert_eq!((&out[2], &*runs.get("cache").expect("it is kept")), (&all[3], &all[1]));
                want = all[1].clone();
                if step % 5 == 4 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            }
            compiled.get_or_insert(m.compiled_kernels());
        }
        assert_eq!(compiled, Some(m.compiled_kernels()), "{threads} threads");
    }
}

#[test]
fn state_that_lies_in_another_order_is_not_exported() {
    let mut asked = options(&[("cache", "1")]);
    asked.reorder_state = true;
    asked.bounds = vec![("batch".into(), vec![Some(1.into())]), ("length".into(), vec![Some(2.into())])];
    asked.bounds.push(("cache".into(), vec![None, Some(2.into()), Some(9.into()), Some(8.into())]));
    let kept = driver::build(parsed(HEADS), &[], asked).unwrap_or_else(|e| panic!("{e}"));
    let target = Settings::new(Target::host()).target.codegen();
    let refused = kept.export("heads", &target, Path::new("heads.so")).expect_err("it is refused").to_string();
    assert!(refused.contains("state `cache` lies in another order"), "{refused}");
    // Bounds are by the axes of the model.
    let mut runs = kept.stateful();
    let new = floats(&[1, 2, 1, 8], 1);
    for places in [9, 10] {
        runs.set("cache", floats(&[1, 2, places, 8], 1)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(runs.run(&[new.clone(), new.clone()]).is_ok(), places == 9);
    }
}

/// Passes that give results other types than the model has do so with state, too: refused when it is built, in process and as C.
#[test]
fn state_whose_type_passes_change_is_refused() {
    let mixed = |passes: &str| {
        let mut asked = options(&[("cache", "1")]);
        asked.passes =
            Some(sequence(passes, &asked.settings).map(|p| Box::new(p) as _).expect("it is a list of passes"));
        asked
    };
    let known = "def @main(%cache: Tensor[(2, 4), float32], %x: Tensor[(2, 4), float32], %w: Tensor[(4, 4), float32]) {
        %0 = nn.dense(add(%cache, %x), %w, units=4);
        (nn.softmax(%0), %0) }";
    for text in [GROWS, known] {
        let message = match driver::build(parsed(text), &[], mixed("ToMixedPrecision, default")) {
            Err(e) => e.to_string(),
            Ok(_) => panic!("{text}: it is taken"),
        };
        let parts = ["state `cache`: after the passes the input is", "float32], but the output is", "float16]"];
        assert!(parts.iter().all(|p| message.contains(p)), "{message}");
        let kept = "ToMixedPrecision(keep_orig_output_dtype=true), default";
        driver::build(parsed(text), &[], mixed(kept)).unwrap_or_else(|e| panic!("{text}: {e}"));
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let written = driver::emit_c(parsed(known), &[], mixed("ToMixedPrecision, default"), &dir.path().join("net.c"));
    let message = written.map(|_| ()).expect_err("it is refused").to_string();
    assert!(message.contains("state `cache`: after the passes"), "{message}");
    assert_eq!(dir.path().read_dir().expect("it is there").count(), 0);
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
    let done = resat(&[&bench[..], &three[..4], &["--profile"]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let kernels: Vec<&str> =
        found["kernels"].as_array().into_iter().flatten().filter_map(|k| k["kernel"].as_str()).collect();
    assert!(
        kernels.iter().any(|k| k.contains("sum")) && kernels.iter().any(|k| k.contains("concatenate")),
        "{kernels:?}"
    );
}

#[test]
fn runs_that_are_timed_keep_state() {
    let (kept, timed) = (built(GROWS, &[("cache", "1")]), built(GROWS, &[("cache", "1")]));
    let (mut runs, mut others) = (kept.stateful(), timed.stateful());
    let inputs = [floats(&[1, 8], 3), floats(&[8, 8], 1)];
    for _ in 0..5 {
        runs.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
    }
    let found = others.profile(&inputs, 5, Target::host(), false).unwrap_or_else(|e| panic!("{e}"));
    assert!(!found.calls.is_empty() && found.calls.iter().all(|c| c.least > 0.0 && c.least <= c.seconds));
    let [a, b] = [&runs, &others].map(|r| r.get("cache").expect("it is kept").into_owned());
    assert!(a.shape() == [5, 8] && a.same_bits(&b));
    // What can't run leaves the state as it was.
    assert!(others.profile(&inputs[..1], 1, Target::host(), false).is_err());
    assert!(others.get("cache").is_some_and(|c| c.same_bits(&a)));
}

/// Products with a cache read all of it, wherever it stands among their operands, and from main memory where the last cache has no room for it.
#[test]
fn profiles_count_what_is_read_of_caches() {
    let program = "def @main(%cache: Tensor[(?, 64), float32], %x: Tensor[(1, 64), float32]) {
        %0 = concatenate((%cache, %x), axis=0);
        %1 = einsum((%x, %0), equation=\"ik,jk->ij\");
        (%1, %0)
    }";
    let built = built(program, &[("cache", "1")]);
    let (rows, bytes) = (5, 4.0 * 64.0);
    let profile = |last_cache: i64| {
        let mut target = Target::host();
        target.timing.l3.bytes = last_cache;
        built.stateful().profile(&[floats(&[1, 64], 3)], rows, target, false).unwrap_or_else(|e| panic!("{e}"))
    };
    let found = profile(1);
    let product = found.calls.iter().find(|c| c.kernel.contains("einsum")).expect("a product");
    let read = (rows + 1) as f64 * bytes;
    assert!((read..read + bytes).contains(&product.estimate.bytes), "{product:?}");
    assert!((read..read + bytes).contains(&product.from_memory), "{product:?}");
    assert!(profile(1 << 40).calls.iter().all(|c| c.from_memory == 0.0));
}

/// What is to be exported: bounds are said by input.
fn bounded(state: &[(&str, &str)], bounds: &[(&str, &str)]) -> Options {
    let mut options = options(state);
    options.name = "net".into();
    let range = |n: &str| if n == "?" { None } else { Some(n.parse().unwrap_or_else(|e| panic!("{e}"))) };
    options.bounds = bounds.iter().map(|(name, all)| ((*name).into(), all.split('x').map(range).collect())).collect();
    options
}

/// A library and what it is made of as C, both loaded.
fn libraries(text: &str, options: impl Fn() -> Options, dir: &Path) -> [LoadedSizedModel; 2] {
    let load = |path: &Path| {
        let model = LoadedSizedModel::load(path).unwrap_or_else(|e| panic!("{text}: {e}"));
        model.expect("it keeps state")
    };
    let library = dir.join("libnet.so");
    let built = driver::build(parsed(text), &[], options()).unwrap_or_else(|e| panic!("{text}: {e}"));
    built.export("net", &Target::host().codegen(), &library).unwrap_or_else(|e| panic!("{text}: {e}"));
    let files = emit_c(parsed(text), &[], options(), &dir.join("emitted.c")).unwrap_or_else(|e| panic!("{text}: {e}"));
    let (entry, emitted) = (dir.join("entry.c"), dir.join("emitted.so"));
    let model = "#include \"emitted.h\"\nconst resat_stateful_model *resat_stateful_model_v1(void);\n\
                 const resat_stateful_model *resat_stateful_model_v1(void) { return net_model(); }\n";
    std::fs::write(&entry, model).expect("it can be written");
    let flags = ["-std=c99", "-pedantic", "-Wall", "-Werror", "-O1", "-fPIC", "-shared", "-o"];
    cc(&flags, &[&emitted, &files.source, &entry, Path::new("-lm")]);
    [load(&library), load(&emitted)]
}

/// A library's runs give what those in process do: from one to the next, inputs of these shapes.
fn runs_alike(
    text: &str,
    state: &[(&str, &str)],
    bounds: &[(&str, &str)],
    first: &[(&str, &[i64])],
    runs: &[&[&[i64]]],
) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let in_process = built(text, state);
    for model in libraries(text, || bounded(state, bounds), dir.path()) {
        let (mut want, mut got) = (in_process.stateful(), model.stateful());
        for (k, (name, shape)) in first.iter().enumerate() {
            let value = floats(shape, 100 + k as u64);
            got.set(name, &value).unwrap_or_else(|e| panic!("{text}: {e}"));
            want.set(name, value).unwrap_or_else(|e| panic!("{text}: {e}"));
        }
        for (seed, shapes) in runs.iter().enumerate() {
            let inputs = shapes.iter().enumerate().map(|(i, s)| floats(s, (5 * seed + i) as u64));
            let inputs: Vec<Tensor> = inputs.collect();
            let want_outputs = want.run(&inputs).unwrap_or_else(|e| panic!("{text}: {e}"));
            let outputs = got.run(&inputs).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(outputs.len(), want_outputs.len());
            outputs.iter().zip(&want_outputs).for_each(|(g, w)| assert_close(g, w));
            for (name, _) in state {
                assert_close(&got.get(name).expect("it is kept"), &want.get(name).expect("it is kept"));
            }
        }
    }
}

#[test]
fn libraries_keep_state() {
    // Appended to in place.
    let [one, three]: [&[&[i64]]; 2] = [&[&[1, 8], &[8, 8]], &[&[3, 8], &[8, 8]]];
    let [head, row, rows3]: [&[&[i64]]; 3] = [&[&[2, 1, 4]], &[&[4, 6]], &[&[3, 6]]];
    runs_alike(GROWS, &[("cache", "1")], &[("x", "3x8"), ("cache", "9x8")], &[], &[three, one, one, three, one]);
    runs_alike(GROWS, &[("cache", "1")], &[("x", "1..1x8"), ("cache", "4..9x8")], &[("cache", &[4, 8])], &[one, one]);
    // Heads that grow each by itself, through a second memory.
    let heads = "def @main(%x: Tensor[(2, 1, 4), float32], %cache: Tensor[(2, ?, 4), float32]) {
        let %all = concatenate((%cache, %x), axis=1);
        (%all, sum(%all, axis=[1])) }";
    runs_alike(heads, &[("cache", "0")], &[("cache", "?x6x?")], &[], &[head; 6]);
    // Of known extents: computed after its last use, element by element, and neither.
    let known = "def @main(%x: Tensor[(4, 6), float32], %h: Tensor[(4, 6), float32], %s: Tensor[(4, 6), float32], %t: Tensor[(4, 6), float32]) {
        let %w = reshape(multiply(arange(0f, 36f, 1f, dtype=\"float32\"), 0.01f), newshape=[6, 6]);
        let %now = tanh(add(nn.dense(%h, %w, units=6), %x));
        (sum(%now), add(%s, %x), %now, add(nn.dense(%t, %w, units=6), %t)) }";
    runs_alike(known, &[("t", "3"), ("h", "2"), ("s", "1")], &[], &[("s", &[4, 6])], &[row; 4]);
    // Before which there is a batch: it begins with as many as the inputs have.
    let heads = |batch: i64, length: i64| [[batch, 2, length, 8]; 2];
    let [two, other, more] = [heads(2, 1), heads(1, 1), heads(2, 3)];
    let [two, other, more] = [&two, &other, &more].map(|s| [&s[0][..], &s[1][..]]);
    let bounds = [("batch", "2"), ("length", "3"), ("past", "9")];
    let floats_only = HEADS.replace("%7, %8)", "%7)");
    runs_alike(&floats_only, &[("cache", "1")], &bounds, &[], &[&more, &two, &two]);
    runs_alike(&floats_only, &[("cache", "1")], &bounds, &[], &[&other, &other]);
    runs_alike(&floats_only, &[("cache", "1")], &bounds, &[("cache", &[1, 2, 4, 8])], &[&other, &other]);
    // Of an unknown number of rows, which do not grow.
    let rows = "def @main(%x: Tensor[(?, 6), float32], %h: Tensor[(?, 6), float32]) { tanh(add(%h, %x)) }";
    runs_alike(rows, &[("h", "0")], &[("x", "5x6"), ("h", "5x6")], &[("h", &[3, 6])], &[rows3; 3]);
}

/// Results and state are called as the model calls them, in libraries for known and for unknown extents.
#[test]
fn libraries_call_results_by_their_names() {
    for (rows, bounds) in [("?", &[("x", "3x8"), ("cache", "9x8")][..]), ("3", &[])] {
        let named = GROWS.replace("(8, 8), float32])", "(8, 8), float32], output_names=[\"attention\", \"present\"])");
        let text = match rows {
            "?" => named,
            _ => named.replace('?', rows).replace(
                "%new), axis=0)",
                "%new), axis=0); let %all = strided_slice(%all, begin=[3], end=[6], strides=[1], axes=[0])",
            ),
        };
        let dir = tempfile::tempdir().expect("a temporary folder");
        for model in libraries(&text, || bounded(&[("cache", "present")], bounds), dir.path()) {
            assert_eq!((model.outputs(), &model.states()[0].output[..]), (&["attention".to_owned()][..], "present"));
        }
    }
}

/// Keys and values of all tokens, in caches that grow by one place a token.
const DECODER: &str =
    "def @main(%x: Tensor[(?, 8), float32], %keys: Tensor[(?, 8), float32], %values: Tensor[(?, 8), float32]) {
    let %w = sin(reshape(arange(0f, 64f, 1f, dtype=\"float32\"), newshape=[8, 8]));
    let %k = concatenate((%keys, nn.dense(%x, %w, units=8)), axis=0);
    let %v = concatenate((%values, nn.relu(nn.dense(%x, transpose(%w), units=8))), axis=0);
    let %a = nn.softmax(nn.dense(%x, %k, units=None), axis=-1);
    (nn.matmul(%a, %v, units=None), %k, %v) }";

#[test]
fn a_c_program_decodes() {
    let state = [("keys", "1"), ("values", "2")];
    let dir = tempfile::tempdir().expect("a temporary folder");
    let bounds = bounded(&state, &[("x", "4x8"), ("keys", "16x8"), ("values", "16x8")]);
    let built = driver::build(parsed(DECODER), &[], bounds).unwrap_or_else(|e| panic!("{e}"));
    let library = dir.path().join("libnet.so");
    built.export("net", &Target::host().codegen(), &library).unwrap_or_else(|e| panic!("{e}"));
    std::fs::rename(library.with_extension("h"), dir.path().join("net.h")).expect("the header was written");
    let binary = dir.path().join("main").display().to_string();
    let [include, folder] = ["-I", "-L"].map(|f| format!("{f}{}", dir.path().display()));
    let rpath = format!("-Wl,-rpath,{}", dir.path().display());
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", &include, "-o", &binary];
    let main = source("state.c").display().to_string();
    cc(&[&flags[..], &[&main, &folder, &rpath, "-lnet"]].concat(), &[]);
    let output = Command::new(&binary).output().expect("it was linked");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let mut lines = said.lines();
    let mut runs = built.stateful();
    let mut past = 0;
    while past < 10 {
        let tokens = if past == 0 { 3 } else { 1 };
        let x = Tensor::from_f64_fn(DType::F32, &[tokens, 8], |i| ((7 * past + i) % 11) as f64 / 11.0 - 0.5);
        let want = runs.run(&[x]).unwrap_or_else(|e| panic!("{e}"));
        let line = lines.next().expect("a line for each run");
        let got: Vec<f32> = line.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        assert_eq!(got.len(), want[0].len());
        for (g, w) in got.iter().zip(want[0].as_slice::<f32>()) {
            assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "{g} and {w}");
        }
        past += tokens;
    }
    let wanted = [
        "6: net: state `keys` has room for 12 elements along axis 0, but needs 13",
        "6: net: state `keys` has room for 12 elements along axis 0, but is said to have 13",
        "5: net: axis 0 of input `keys` has -1 elements",
        "5: net: axis 0 of input `values` has 10 elements, but others that should be equal have 9",
        "6: net: state `keys` has room for 12 elements along axis 0, but needs 13",
        "net: the data of state `values` is null or not aligned",
    ];
    assert_eq!(lines.collect::<Vec<_>>(), wanted);
}

#[test]
fn state_that_libraries_can_not_keep_is_refused_by_name() {
    let refused = |text: &str, state: &[(&str, &str)], bounds: &[(&str, &str)]| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let built = driver::build(parsed(text), &[], bounded(state, bounds)).unwrap_or_else(|e| panic!("{text}: {e}"));
        let done = built.export("net", &Target::host().codegen(), &dir.path().join("libnet.so"));
        done.expect_err("it is refused").to_string()
    };
    let text = "def @main(%x: Tensor[(4), float32], %c: bool, %h: Tensor[(4), float32]) {
        if (%c) { (%x, add(%h, %x)) } else { (%h, %h) } }";
    let message = refused(text, &[("h", "1")], &[]);
    assert!(message.contains("state `h` can't be exported") && message.contains("plain sequences"), "{message}");
    let message = refused(GROWS, &[("cache", "1")], &[]);
    assert!(message.contains("no bound: axis 0 of `x`, axis 0 of `cache`"), "{message}");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let [model, _] = libraries(GROWS, || bounded(&[("cache", "1")], &[("x", "3x8"), ("cache", "9x8")]), dir.path());
    let message = model.run(&[floats(&[1, 8], 1), floats(&[8, 8], 2)]).expect_err("no state").to_string();
    assert!(message.contains("keeps state"), "{message}");
    let mut runs = model.stateful();
    let message = runs.set("cashe", &floats(&[1, 8], 1)).expect_err("no such state").to_string();
    assert!(message.contains("`cashe`"), "{message}");
    let message = runs.set("cache", &floats(&[13, 8], 1)).expect_err("it is too long").to_string();
    assert!(message.contains("[12, 8] at most"), "{message}");
}

#[test]
fn the_command_line_exports_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("program.relay"), format!("#[version = \"0.0.5\"] {DECODER}")).expect("it can be written");
    for i in 0..3 {
        archive(&at(&format!("{i}.npz")), &[("x", &floats(&[1 + i % 2, 8], i as u64))]);
    }
    archive(
        &at("again.npz"),
        &[("x", &floats(&[1, 8], 7)), ("keys", &floats(&[2, 8], 8)), ("values", &floats(&[2, 8], 9))],
    );
    let resat = |args: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_resat")).current_dir(folder.path()).args(args).output();
        let done = done.expect("it runs");
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let state = ["--state", "keys=1", "--state", "values=2"];
    let bounds = ["--max", "x=2x8,keys=6x8,values=6x8", "-o", "net.so"];
    let (code, said) = resat(&[&["build", "program.relay", "--no-cache"], &state[..], &bounds].concat());
    assert_eq!(code, Some(0), "{said}");
    let runs = ["--inputs", "0.npz", "--inputs", "1.npz", "--inputs", "2.npz"];
    for runs in [&runs[..], &[&runs[..], &["--inputs", "again.npz"]].concat()] {
        let (code, said) = resat(&[&["run", "net.so", "--outputs", "got.npz"], runs].concat());
        assert_eq!(code, Some(0), "{said}");
        let run = [&["run", "program.relay", "--no-cache", "--outputs", "want.npz"], &state[..], runs].concat();
        let (code, said) = resat(&run);
        assert_eq!(code, Some(0), "{said}");
        let [got, want] = ["got.npz", "want.npz"]
            .map(|file| npz::read(file, &std::fs::read(at(file)).expect("results")).expect("an archive"));
        assert_eq!(got.len(), 3);
        for (name, w) in &want {
            assert_close(&got.iter().find(|(n, _)| n == name).expect("the same names").1, w);
        }
    }
    let (code, said) = resat(&["run", "net.so", "--state", "keys=1", "--inputs", "0.npz"]);
    assert!(code == Some(2) && said.contains("--state"), "{said}");
    let (code, said) = resat(&["bench", "net.so", "--inputs", "0.npz"]);
    assert!(code == Some(2) && said.contains("keeps state"), "{said}");
}
