//! Sums of products with a matrix that is read once and whose rows are wide: a vector times a matrix, and attention's products with values, of
//! known and unknown numbers of rows. Compiled programs against the interpreter; sums of small integers are exact in any order.
#![cfg(feature = "llvm")]

use crate::common::Rng;
use resat::{
    driver::{self, Options, Runnable},
    interp,
    loops::{Builder, Stages},
    lower::kernel,
    machine::Core,
    ops,
    pass::{Sequential, Settings},
    relay::text::parse_module,
    target::Target,
    tensor::{DType, Tensor, Value},
};

/// Runs a program of two parameters at each pair of shapes, by one thread and two; no size after the first takes further kernels.
pub(crate) fn agree(text: &str, shapes: &[[Vec<usize>; 2]]) {
    let m = parse_module("slices", &format!("#[version = \"0.0.5\"]\n{text}")).unwrap_or_else(|e| panic!("{e}"));
    for threads in [1, 2] {
        let passes = Some(Box::<Sequential>::default() as Box<_>);
        let options = Options { passes, threads, ..Options::new(Settings::new(Target::host())) };
        let exe = driver::build(m.clone(), &[], options).unwrap_or_else(|e| panic!("{text}: {e}")).executable;
        let mut compiled = None;
        for shapes in shapes {
            let mut rng = Rng(5);
            let mut small =
                |shape: &Vec<usize>| Tensor::from_f64_fn(DType::F32, shape, |_| (rng.next() % 7) as f64 - 3.0);
            let args = shapes.each_ref().map(&mut small);
            let values = args.iter().cloned().map(Value::from).collect();
            let want = interp::run_flat(&m, "main", values).unwrap_or_else(|e| panic!("{text}: {e}"));
            let got = exe.run(&args).unwrap_or_else(|e| panic!("{text}, {shapes:?}: {e}"));
            assert!(want[0].same_bits(&got[0]), "{text}, {shapes:?}, {threads} threads");
            if let Runnable::Machine(machine) = &exe {
                let all = machine.compiled_kernels();
                assert_eq!(*compiled.get_or_insert(all), all, "{text}, {shapes:?}: nothing is compiled again");
            }
        }
    }
}

#[test]
fn a_vector_times_a_matrix() {
    for (rows, columns) in [(1024, 4096), (700, 2048), (1003, 3000), (37, 40_000)] {
        let text = format!(
            "def @main(%a: Tensor[(1, {rows}), float32], %b: Tensor[({rows}, {columns}), float32]) {{
               nn.relu(nn.matmul(%a, %b)) }}"
        );
        agree(&text, &[[vec![1, rows], vec![rows, columns]]]);
    }
}

/// Rows that several rows of results read, and such as are little wider than a register tile.
#[test]
fn few_rows_times_a_matrix() {
    for (results, rows, columns) in [(9, 1200, 1030), (6, 700, 2048), (1, 9000, 300), (3, 2001, 520)] {
        let text = format!(
            "def @main(%a: Tensor[({results}, {rows}), float32], %b: Tensor[({rows}, {columns}), float32]) {{
               nn.relu(nn.matmul(%a, %b)) }}"
        );
        agree(&text, &[[vec![results, rows], vec![rows, columns]]]);
    }
}

/// Of a matrix whose rows are pages apart nothing is copied for few rows of results.
#[test]
fn far_rows_are_not_copied() {
    for (results, is_copied) in [(6, false), (12, false), (100, false), (512, true)] {
        let product = product([results, 2048, 2048]);
        let (_, bytes) = kernel("product", &product, skylake()).workspace();
        assert_eq!(bytes >= 2048 * 2048 * 4, is_copied, "{results} rows: {bytes} bytes");
    }
}

/// A product of these extents: of results and of what is summed over.
fn product([rows, summed, columns]: [i64; 3]) -> Stages {
    let mut b = Builder::new();
    let args = [b.arg(&[rows, summed], DType::F32).into(), b.arg(&[summed, columns], DType::F32).into()];
    let op = ops::lookup("nn.matmul").expect("an operator");
    let attrs = ops::make_attrs(op, &[]).expect("all have defaults");
    let out = op.op().lower(&attrs, &args, &mut b).expect("lowers");
    b.finish_with(&out)
}

fn skylake() -> Core {
    let target = "llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu=skylake-avx512";
    Core::here(&Target::parse(target).expect("a target").codegen())
}

/// Wide rows are summed a few at a time into partial sums in memory; those that a register tile covers are not.
#[test]
fn wide_rows_have_partial_sums() {
    for (columns, has_partial_sums) in [(4096, true), (64, false)] {
        let (_, bytes) = kernel("product", &product([1, (1 << 22) / columns, columns]), skylake()).workspace();
        assert_eq!(bytes >= columns * 4, has_partial_sums, "{columns} columns: {bytes} bytes");
    }
}

#[test]
fn unknown_numbers_of_rows() {
    let vector = "def @main(%a: Tensor[(1, ?), float32], %b: Tensor[(?, 1024), float32]) { nn.matmul(%a, %b) }";
    agree(vector, &[300, 1, 7, 16, 33, 1000].map(|n| [vec![1, n], vec![n, 1024]]));
    let heads = "def @main(%a: Tensor[(12, 1, ?), float32], %b: Tensor[(?, 12, 64), float32]) {
        einsum((%a, %b), equation=\"nik,knj->nij\") }";
    agree(heads, &[300, 2, 17, 127, 1025].map(|n| [vec![12, 1, n], vec![n, 12, 64]]));
}
