//! The corpus' networks as ONNX beside Relay, with the same weights: they become as good a program, and compute the same.
//! `recorded/frontends/skeletons.zip` holds them without weights (tools/record-skeletons.py).
#![cfg(feature = "llvm")]

use std::fs;

use resat::{
    driver::{Built, Options, build},
    frontend::{LoadOptions, Model, load},
    ir::{Module, Name, Type},
    pass::Settings,
    relay::text,
    target::Target,
    tensor::{DType, Tensor},
};
use tempfile::TempDir;

use crate::archive::Files;

/// Numbers between -1 and 1 that are the same on every machine: splitmix64 of the index.
fn noise(seed: u64, i: usize) -> f64 {
    let mut z = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Weights under which values keep their size from layer to layer, with their places in a file.
fn weights(files: &Files) -> Vec<(Name, Tensor, usize)> {
    let listed: Vec<(String, Vec<usize>, usize)> =
        serde_json::from_slice(&files["weights.json"]).expect("a list of weights");
    let weight = |(seed, (name, shape, offset)): (usize, (String, Vec<usize>, usize))| {
        let inputs: usize = shape.iter().skip(1).product();
        let scale = if shape.len() > 1 { (4.8 / inputs as f64).sqrt() } else { 0.1 };
        // Variances and scales are about 1, whatever else is a vector about 0.
        let about = if shape.len() == 1 && ["var", "weight"].iter().any(|w| name.contains(w)) { 1.0 } else { 0.0 };
        let t = Tensor::from_f64_fn(DType::F32, &shape, |i| about + scale * noise(seed as u64, i));
        (Name::from(name), t, offset)
    };
    listed.into_iter().enumerate().map(weight).collect()
}

fn inputs(m: &Module, taken: &[(Name, Tensor)]) -> Vec<Tensor> {
    let main = m.function("main").expect("there is a main");
    let params = main.params.iter().map(|&p| m.var(p)).filter(|v| taken.iter().all(|t| t.0 != v.name));
    params
        .enumerate()
        .map(|(seed, v)| match v.ty.as_ref() {
            Some(Type::Tensor(t)) => {
                let shape: Vec<usize> = t.shape.iter().map(|d| d.known().expect("a known extent") as usize).collect();
                let of = |i: usize| match t.dtype.is_float() {
                    true => noise(1000 + seed as u64, i),
                    false => (i % 2) as f64,
                };
                Tensor::from_f64_fn(t.dtype, &shape, of)
            }
            ty => panic!("`{}` is {ty:?}", v.name),
        })
        .collect()
}

fn built(model: &Model) -> Built {
    let target = Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal");
    build(model.module.clone(), &model.params, Options::new(Settings::new(target))).unwrap_or_else(|e| panic!("{e}"))
}

/// The cost that the program was chosen by; steps, and sums of bytes and of cycles by the models of operators and of schedules.
fn costs(b: &Built) -> [f64; 4] {
    let record = b.record().expect("no cache was asked for");
    let cost = record.reports.iter().map(|r| r.cost_after).sum();
    let program = b.executable.as_plain().expect("a sequence of calls").program();
    let steps = program.step_estimates();
    steps.fold([cost, 0.0, 0.0, 0.0], |[cost, n, bytes, cycles], e| [cost, n + 1.0, bytes + e.bytes, cycles + e.cycles])
}

#[test]
fn networks_from_onnx_are_as_good_as_in_relay() {
    for (name, files) in crate::archive::cases("skeletons.zip") {
        let folder = TempDir::new().expect("a folder can be made");
        let weights = weights(&files);
        let mut bytes = Vec::new();
        for (_, t, offset) in &weights {
            bytes.resize(*offset, 0);
            bytes.extend_from_slice(t.bytes());
        }
        fs::write(folder.path().join("weights.bin"), bytes).expect("the file can be written");
        let file = folder.path().join("model.onnx");
        fs::write(&file, &files["model.onnx"]).expect("the file can be written");
        let onnx = load(&file, &LoadOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let source = std::str::from_utf8(&files["model.relay"]).expect("text");
        let module = text::parse_module("model.relay", source).unwrap_or_else(|e| panic!("{name}: {e}"));
        let relay = Model { module, params: weights.into_iter().map(|(n, t, _)| (n, t)).collect() };

        let given = inputs(&onnx.module, &onnx.params);
        assert_eq!(given, inputs(&relay.module, &relay.params), "{name}");
        let (a, b) = (built(&onnx), built(&relay));
        let (of_onnx, of_relay) = (costs(&a), costs(&b));
        for (x, y) in of_onnx.into_iter().zip(of_relay) {
            assert!(x <= 1.03 * y, "{name}: {of_onnx:?} beside {of_relay:?}");
        }
        let run = |b: &Built| b.executable.run(&given).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (x, y) = (run(&a), run(&b));
        assert_eq!(x.len(), y.len(), "{name}");
        for (x, y) in x.iter().zip(&y) {
            assert_eq!(x.shape(), y.shape(), "{name}");
            let scale = (0..y.len()).map(|i| y.get_f64(i).abs()).fold(0.0, f64::max);
            assert!(scale.is_finite() && scale > 1e-6, "{name}: results are {scale}");
            let off = (0..y.len()).map(|i| (x.get_f64(i) - y.get_f64(i)).abs()).fold(0.0, f64::max);
            assert!(off <= 1e-4 * scale, "{name}: {off} of {scale}");
        }
    }
}
