//! Extents that are unknown when a program is built: compiled code against the interpreter, at several extents.
#![cfg(feature = "llvm")]

mod common;

use common::{Data, Rng, difference, random_tensor};
use resat::{
    driver::{self, Built, Options, Runnable},
    interp,
    ir::TensorType,
    pass::Settings,
    relay::text::parse_module,
    target::Target,
    tensor::{DType, Tensor},
};

fn built(text: &str) -> Built {
    let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).unwrap_or_else(|e| panic!("{e}"));
    driver::build(m, &[], Options::new(Settings::new(Target::host()))).unwrap_or_else(|e| panic!("{e}"))
}

/// The program's results by compiled code, after they were compared with the interpreter's.
fn checked(text: &str, exe: &Runnable, inputs: &[Tensor]) -> Vec<Tensor> {
    let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).unwrap_or_else(|e| panic!("{e}"));
    let values = inputs.iter().cloned().map(Into::into).collect();
    let want = interp::run_flat(&m, "main", values).unwrap_or_else(|e| panic!("{e}"));
    let got = exe.run(inputs).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(want.len(), got.len(), "{text}");
    for (w, g) in want.iter().zip(&got) {
        assert_eq!((w.dtype(), w.shape()), (g.dtype(), g.shape()), "{text}");
        assert_eq!(difference(w, g), None, "{text}");
    }
    got
}

fn floats(shape: &[i64], seed: u64) -> Tensor {
    random_tensor(&TensorType::new(shape, DType::F32), Data::Tame, &mut Rng(seed))
}

#[test]
fn each_extent_has_its_code() {
    let text = "def @main(%x: Tensor[(?, 7), float32], %w: Tensor[(5, 7), float32]) {
        nn.softmax(nn.relu(nn.dense(%x, %w, units=5))) }";
    let exe = built(text).executable;
    for (seed, n) in [3, 1, 40, 0, 3].into_iter().enumerate() {
        let out = checked(text, &exe, &[floats(&[n, 7], seed as u64), floats(&[5, 7], 9)]);
        assert_eq!(out[0].shape(), [n as usize, 5]);
    }
}

#[test]
fn extents_follow_from_values() {
    let text = "def @main(%x: Tensor[(?, ?), float32], %s: Tensor[(3), int64]) {
        let %y = dyn.reshape(%x, %s);
        (%y, dyn.zeros(shape_of(%y, dtype=\"int64\"), dtype=\"int8\"), multiply(%y, 2f)) }";
    let exe = built(text).executable;
    for s in [[1i64, 2, 6], [3, 4, 1], [-1, 2, 2]] {
        checked(text, &exe, &[floats(&[4, 3], 1), Tensor::from_slice(&[3], &s)]);
    }
}

#[test]
fn values_that_decide_nothing_are_taken_all_the_same() {
    let text = "def @main(%x: Tensor[(5, 2), float32], %e: Tensor[(0), int64], %s: Tensor[(0), int64]) {
        dyn.strided_slice(%x, %e, %e, %s) }";
    let none = || Tensor::zeros(DType::I64, &[0]);
    checked(text, &built(text).executable, &[floats(&[5, 2], 1), none(), none()]);
}

#[test]
fn extents_are_found_while_running() {
    let text = "def @main(%x: Tensor[(?, ?), float32]) { argwhere(greater(%x, 0f)) }";
    let exe = built(text).executable;
    for (seed, shape) in [[3, 4], [1, 9], [5, 5]].iter().enumerate() {
        checked(text, &exe, &[floats(shape, seed as u64)]);
    }
    let none = exe.run(&[Tensor::zeros(DType::F32, &[2, 2])]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(none[0].shape(), [0, 2]);
}

#[test]
fn extents_that_do_not_fit_are_refused() {
    let exe = built("def @main(%x: Tensor[(?), float32], %y: Tensor[(?), float32]) { add(%x, %y) }").executable;
    assert_eq!(exe.run(&[floats(&[3], 1), floats(&[1], 2)]).map(|t| t[0].shape().to_vec()).ok(), Some(vec![3]));
    let message = exe.run(&[floats(&[3], 1), floats(&[4], 2)]).expect_err("3 and 4").to_string();
    assert!(message.contains("`add`") && message.contains('3') && message.contains('4'), "{message}");
    let message = exe.run(&[floats(&[3, 1], 1), floats(&[4], 2)]).expect_err("two axes").to_string();
    assert!(message.contains("input `x`"), "{message}");
}

#[test]
fn constants_make_extents_known_and_programs_plain() {
    let b = built(
        "def @main(%x: Tensor[(2, 6), float32], %y: Tensor[(3, 4), float32]) {
            add(dyn.reshape(%x, shape_of(%y, dtype=\"int64\")), %y) }",
    );
    assert!(b.executable.as_plain().is_some());
}
