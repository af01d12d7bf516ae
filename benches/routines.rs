//! Operators that are routines, a million elements each, beside what the standard library takes for the like.
//!
//!     cargo bench --bench routines

use std::{hint::black_box, sync::Arc};

use criterion::{Criterion, criterion_group, criterion_main};
use resat::{
    codegen::{self, llvm},
    ir::{AttrValue, Name},
    loops::{Builder, Operand},
    lower::kernel,
    ops,
    runtime::{Call, Estimate, Executable, Pool, Port, Program, Step},
    tensor::{DType, Tensor},
};

const SIDE: usize = 1000;

/// Numbers in no order, from 0 to before `below`.
fn scrambled(dtype: DType, shape: &[usize], below: u64) -> Tensor {
    let value = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    match dtype.is_float() {
        true => Tensor::from_f64_fn(dtype, shape, |i| (value(i) % below) as f64),
        false => Tensor::from_i64_fn(dtype, shape, |i| (value(i) % below) as i64),
    }
}

/// The program of one call of an operator.
fn call(name: &str, attrs: &[(&str, AttrValue)], args: &[Tensor]) -> Executable {
    let id = ops::op(name);
    let given: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| (Name::from(*n), v.clone())).collect();
    let attrs = ops::make_attrs(id, &given).expect("legal attributes");
    let mut b = Builder::new();
    let shape = |t: &Tensor| t.shape().iter().map(|&n| n as i64).collect::<Vec<_>>();
    let operands: Vec<Operand> = args.iter().map(|t| b.arg(&shape(t), t.dtype()).into()).collect();
    let out = id.op().lower(&attrs, &operands, &mut b).expect("is lowered");
    let group = b.finish_with(&out);
    let target = resat::codegen::llvm::host_target();
    let unit = resat::machine::Core::here(&target);
    let kernel = kernel("k", &group, unit);
    let code =
        llvm::JitLibrary::load(&codegen::compile(&llvm::Llvm, &[&kernel], &target).expect("compiles")).expect("links");
    let mut program = Program::new("bench");
    let mut buffers = Vec::new();
    for (i, t) in args.iter().enumerate() {
        buffers.push((program.input(Port::new(i.to_string(), t.dtype(), t.shape())), false));
    }
    let mut results = Vec::new();
    for (i, &t) in group.results.iter().enumerate() {
        let decl = group.decl(t);
        let shape: Vec<usize> = decl.shape.iter().map(|&n| n as usize).collect();
        let port = Port::new(i.to_string(), decl.dtype, &shape);
        let buffer = program.buffer(port.bytes());
        buffers.push((buffer, true));
        results.push((port, buffer));
    }
    let function = program.function(&kernel.name);
    let workspace = kernel.workspace().1 as usize;
    program.step(Step::Call(Call {
        function,
        args: buffers,
        workspace,
        in_place: vec![],
        estimate: Estimate::default(),
    }));
    results.into_iter().for_each(|(port, buffer)| program.output(port, buffer));
    Executable::link(program, vec![Arc::new(code)], Arc::new(Pool::new(1))).expect("links")
}

fn routines(c: &mut Criterion) {
    let line = scrambled(DType::F32, &[SIDE * SIDE], 1 << 40);
    let square = scrambled(DType::F32, &[SIDE, SIDE], 1 << 40);
    let places = scrambled(DType::I64, &[SIDE, SIDE], SIDE as u64);
    let rows = scrambled(DType::I64, &[1, SIDE], SIDE as u64);
    let cases: Vec<(&str, &str, Vec<(&str, AttrValue)>, Vec<&Tensor>)> = vec![
        ("sort_line", "sort", vec![], vec![&line]),
        ("sort_rows", "sort", vec![], vec![&square]),
        ("argsort_line", "argsort", vec![], vec![&line]),
        ("topk_rows", "topk", vec![("k", 5.into())], vec![&square]),
        ("cumsum_rows", "cumsum", vec![("axis", 1.into())], vec![&square]),
        ("cumsum_columns", "cumsum", vec![("axis", 0.into())], vec![&square]),
        ("scatter_add", "scatter_elements", vec![("reduction", "add".into())], vec![&square, &places, &square]),
        ("scatter_nd_add", "scatter_nd", vec![("mode", "add".into())], vec![&square, &rows, &square]),
        ("argwhere", "argwhere", vec![], vec![&square]),
    ];
    for (label, op, attrs, args) in cases {
        let args: Vec<Tensor> = args.into_iter().cloned().collect();
        let exe = call(op, &attrs, &args);
        c.bench_function(label, |b| b.iter(|| exe.run(black_box(&args)).expect("runs")));
    }
    let numbers: Vec<f32> = line.to_f64_vec().into_iter().map(|x| x as f32).collect();
    c.bench_function("std_stable_sort", |b| {
        b.iter(|| {
            let mut copy = black_box(&numbers).clone();
            copy.sort_by(|a, b| a.partial_cmp(b).expect("no NaN"));
            copy
        })
    });
    c.bench_function("std_copy", |b| b.iter(|| black_box(&numbers).clone()));
}

criterion_group! { name = benches; config = Criterion::default().sample_size(10); targets = routines }
criterion_main!(benches);
