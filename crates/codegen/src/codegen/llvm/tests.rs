//! Compiled kernels against what they should compute.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::*;
use crate::{
    codegen::CodegenTarget,
    loops::{AxisId, Buffer, Kernel, LoopKind, Scalar, Space, Stmt, TensorId},
    tensor::{DType, Tensor},
};

type Body = unsafe extern "C" fn(*mut c_void, i64, i64);

/// The runtime's table, with a `parallel_for` that runs two uneven chunks one after the other.
#[repr(C)]
struct Ctx {
    parallel_for: unsafe extern "C" fn(*const Ctx, Body, *mut c_void, i64),
    pool: *mut c_void,
    threads: i64,
}

unsafe extern "C" fn two_chunks(_: *const Ctx, body: Body, env: *mut c_void, n: i64) {
    // SAFETY: the compiled kernel passes its own body and environment.
    unsafe {
        body(env, n / 3, n);
        body(env, 0, n / 3);
    }
}

/// Compiles a kernel for the host and runs it on the given arguments.
pub(super) fn run(kernel: &Kernel, args: &mut [Tensor]) {
    let objects = crate::codegen::compile(&Llvm, &[kernel], &crate::codegen::llvm::host_target()).unwrap();
    let library = JitLibrary::load(&objects).unwrap();
    let f = library.get(&kernel.name).unwrap();
    let pointers: Vec<*mut u8> = args.iter_mut().map(|t| t.bytes_mut().as_mut_ptr()).collect();
    let mut workspace = Tensor::zeros(DType::U8, &[kernel.workspace().1 as usize]);
    let ctx = Ctx { parallel_for: two_chunks, pool: std::ptr::null_mut(), threads: 2 };
    // SAFETY: as many pointers as the kernel takes, to tensors of the sizes that it declares.
    unsafe { f((&raw const ctx).cast(), pointers.as_ptr(), workspace.bytes_mut().as_mut_ptr()) };
}

fn axis(i: u32) -> Scalar {
    Scalar::axis(AxisId(i))
}

fn for_(var: u32, extent: i64, kind: LoopKind, body: Stmt) -> Stmt {
    Stmt::For { var: AxisId(var), extent: Scalar::index(extent), kind, body: Box::new(body) }
}

fn store(buffer: u32, index: Scalar, value: Scalar) -> Stmt {
    Stmt::Store { buffer: TensorId(buffer), index, value }
}

fn read(buffer: u32, index: Scalar, dtype: DType) -> Scalar {
    Scalar::read(TensorId(buffer), vec![index], dtype)
}

fn buffer(dtype: DType, len: i64, space: Space) -> Buffer {
    Buffer { dtype, len, space }
}

/// C[6m, 16n] of a product, in register tiles of 6 x 16, by threads over the rows of tiles.
pub(in crate::codegen) fn tiled_product(m: i64, n: i64, k: i64) -> Kernel {
    use LoopKind::*;
    let f = DType::F32;
    let [i, j, kk, ii, jj, v] = [0, 1, 2, 3, 4, 5].map(axis);
    let acc = || ii.clone() * 16 + jj.clone() * 8 + v.clone();
    let tile = |body| for_(3, 6, Unrolled, for_(4, 2, Unrolled, for_(5, 8, Vector, body)));
    let a = read(0, (i.clone() * 6 + ii.clone()) * k + kk.clone(), f);
    let b = read(1, (j.clone() * k + kk.clone()) * 16 + jj.clone() * 8 + v.clone(), f);
    let c = (i.clone() * 6 + ii.clone()) * (16 * n) + j.clone() * 16 + jj.clone() * 8 + v.clone();
    let body = Stmt::Block(vec![
        tile(store(3, acc(), Scalar::float(0.0, f))),
        for_(2, k, Serial, tile(store(3, acc(), read(3, acc(), f) + a * b))),
        tile(store(2, c, read(3, acc(), f).max(Scalar::float(0.0, f)))),
    ]);
    Kernel {
        name: "product".into(),
        buffers: vec![
            buffer(f, 6 * m * k, Space::Input(0)),
            buffer(f, n * k * 16, Space::Input(1)),
            buffer(f, 6 * m * 16 * n, Space::Output(2)),
            buffer(f, 96, Space::Register),
        ],
        body: for_(0, m, Parallel, for_(1, n, Serial, body)),
    }
}

#[test]
fn tiled_product_is_right() {
    let (m, n, k) = (5, 3, 37);
    let kernel = tiled_product(m, n, k);
    let (m, n, k) = (m as usize, n as usize, k as usize);
    let mut args = [
        Tensor::from_f64_fn(DType::F32, &[6 * m, k], |i| (i * 7 % 11) as f64 - 5.0),
        Tensor::from_f64_fn(DType::F32, &[n, k, 16], |i| (i * 5 % 13) as f64 - 6.0),
        Tensor::zeros(DType::F32, &[6 * m, 16 * n]),
    ];
    run(&kernel, &mut args);
    for i in 0..6 * m {
        for j in 0..16 * n {
            let want: f64 =
                (0..k).map(|q| args[0].get_f64(i * k + q) * args[1].get_f64((j / 16 * k + q) * 16 + j % 16)).sum();
            assert_eq!(args[2].get_f64(i * 16 * n + j), want.max(0.0), "at {i}, {j}");
        }
    }
}

/// Four rows, as far apart as is known only when the kernel runs, are summed up over two loops, with names for parts of the places: one pointer moves along all of
/// them in the inner loop, and begins where another one does in the outer loop.
#[test]
fn pointers_move_with_loops() {
    use LoopKind::*;
    let (f, [place, row, outer, inner, apart, within]) = (DType::F32, [0, 1, 2, 3, 4, 5].map(axis));
    let let_ = |var: u32, value: Scalar, body: Stmt| Stmt::Let { var: AxisId(var), value, body: Box::new(body) };
    let rows = |body: Stmt| for_(1, 4, Unrolled, body);
    let read_at = place.clone() * 3 + within + row.clone() * apart;
    let summed = rows(store(3, row.clone(), read(3, row.clone(), f) + read(0, read_at, f)));
    let summed = for_(3, 5, Serial, let_(5, outer * 7 + inner * 2, summed));
    let body = Stmt::Block(vec![
        rows(store(3, row.clone(), Scalar::float(0.0, f))),
        for_(2, 3, Serial, summed),
        rows(store(2, place * 4 + row.clone(), read(3, row.clone(), f))),
    ]);
    let kernel = Kernel {
        name: "sums".into(),
        buffers: vec![
            buffer(f, 256, Space::Input(0)),
            buffer(DType::I64, 1, Space::Input(1)),
            buffer(f, 32, Space::Output(2)),
            buffer(f, 4, Space::Register),
        ],
        body: let_(4, read(1, Scalar::index(0), DType::I64), for_(0, 8, Parallel, body)),
    };
    let mut args = [
        Tensor::from_f64_fn(f, &[256], |i| i as f64),
        Tensor::from_i64_fn(DType::I64, &[1], |_| 50),
        Tensor::zeros(f, &[32]),
    ];
    run(&kernel, &mut args);
    for (place, row) in (0..8).flat_map(|p| (0..4).map(move |r| (p, r))) {
        let places = (0..3).flat_map(|o| (0..5).map(move |i| place * 3 + o * 7 + i * 2 + row * 50));
        assert_eq!(args[2].get_f64(place * 4 + row), places.sum::<usize>() as f64, "{place}, {row}");
    }
    let listed = |kernel: &Kernel| listing(&[kernel], &CodegenTarget::baseline()).expect("compiles").ir;
    assert_eq!(listed(&kernel).matches("phi ptr").count(), 2, "{}", listed(&kernel));
    // One for each operand.
    let product = listed(&tiled_product(2, 2, 64));
    assert_eq!(product.matches("phi ptr").count(), 2, "{product}");
}

/// Of a kernel's variables and buffers, the function of a parallel loop takes those that the loop names.
#[test]
fn parallel_loops_take_what_they_use() {
    use LoopKind::*;
    let f = DType::F32;
    let numbers = |body: Stmt| {
        (0..20).rev().fold(body, |body, n| Stmt::Let {
            var: AxisId(10 + n),
            value: read(1, Scalar::index(n as i64), DType::I64),
            body: Box::new(body),
        })
    };
    // Halves of the result, each by a number of its own.
    let half = |n: u32| {
        let at = axis(n) + axis(10 + n) * 4;
        for_(n, 4, Parallel, store(2, at.clone(), read(0, at, f) + Scalar::float(1.0, f)))
    };
    let kernel = Kernel {
        name: "halves".into(),
        buffers: vec![
            buffer(f, 8, Space::Input(0)),
            buffer(DType::I64, 20, Space::Input(1)),
            buffer(f, 8, Space::Output(2)),
        ],
        body: numbers(Stmt::Block(vec![half(0), half(1)])),
    };
    let mut args = [
        Tensor::from_f64_fn(f, &[8], |i| i as f64),
        Tensor::from_i64_fn(DType::I64, &[20], |i| i as i64),
        Tensor::zeros(f, &[8]),
    ];
    run(&kernel, &mut args);
    assert_eq!(args[2].to_f64_vec(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let ir = listing(&[&kernel], &CodegenTarget::baseline()).expect("compiles").ir;
    // Two buffers and a number.
    assert_eq!(ir.matches("alloca [3 x i64]").count(), 2, "{ir}");
}

#[test]
fn spilled_vectors_are_aligned() {
    let mut target = CodegenTarget { triple: "x86_64-unknown-linux-gnu".into(), ..CodegenTarget::baseline() };
    (target.cpu, target.features) = ("x86-64-v3".into(), "+avx,+avx2,+fma".into());
    let text = listing(&[&tiled_product(2, 2, 8)], &target).expect("compiles").assembly;
    assert!(text.contains("andq\t$-32, %rsp"), "{text}");
}

/// Subnormal numbers are zeros where floats are summed, which the kernel's caller does not see; elsewhere they are what they are.
#[cfg(target_arch = "x86_64")]
#[test]
fn sums_take_subnormals_for_zeros() {
    let control = || {
        let mut bits = 0u32;
        // SAFETY: stores the control register into four bytes of this frame.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut bits) };
        bits
    };
    let before = control();
    let tiny = f32::MIN_POSITIVE as f64 / 8.0;
    let mut args = [
        Tensor::from_f64_fn(DType::F32, &[6, 8], |_| tiny),
        Tensor::from_f64_fn(DType::F32, &[1, 8, 16], |_| 1.0),
        Tensor::from_f64_fn(DType::F32, &[6, 16], |_| -1.0),
    ];
    run(&tiled_product(1, 1, 8), &mut args);
    assert!(args[2].to_f64_vec().iter().all(|&x| x == 0.0));
    assert_eq!(control() & 0xffc0, before & 0xffc0);
    let doubled = read(0, axis(0) * 8 + axis(1), DType::F32) + read(0, axis(0) * 8 + axis(1), DType::F32);
    let body = for_(1, 8, LoopKind::Vector, store(1, axis(0) * 8 + axis(1), doubled));
    let kernel = Kernel {
        name: "doubled".into(),
        buffers: vec![buffer(DType::F32, 48, Space::Input(0)), buffer(DType::F32, 48, Space::Output(1))],
        body: for_(0, 6, LoopKind::Parallel, body),
    };
    let mut args = [args[0].clone(), Tensor::zeros(DType::F32, &[6, 8])];
    run(&kernel, &mut args);
    assert!(args[1].to_f64_vec().iter().all(|&x| x == 2.0 * tiny));
}

/// Elements anywhere are gathered by instructions of processors on which LLVM finds them fast.
#[test]
fn places_in_vectors_are_gathered() {
    let place = read(1, axis(0) * 8 + axis(1), DType::I64);
    let body = for_(1, 8, LoopKind::Vector, store(2, axis(0) * 8 + axis(1), read(0, place, DType::F32)));
    let kernel = Kernel {
        name: "taken".into(),
        buffers: vec![
            buffer(DType::F32, 100, Space::Input(0)),
            buffer(DType::I64, 48, Space::Input(1)),
            buffer(DType::F32, 48, Space::Output(2)),
        ],
        body: for_(0, 6, LoopKind::Serial, body),
    };
    let mut args = [
        Tensor::from_f64_fn(DType::F32, &[100], |i| i as f64),
        Tensor::from_f64_fn(DType::I64, &[48], |i| (i * 37 % 100) as f64),
        Tensor::zeros(DType::F32, &[48]),
    ];
    run(&kernel, &mut args);
    assert!((0..48).all(|i| args[2].get_f64(i) == (i * 37 % 100) as f64));
    let listing = |cpu: &str, features: &str| {
        let mut target = CodegenTarget { triple: "x86_64-unknown-linux-gnu".into(), ..CodegenTarget::baseline() };
        (target.cpu, target.features) = (cpu.into(), features.into());
        listing(&[&kernel], &target).expect("compiles").assembly
    };
    assert!(listing("sapphirerapids", "+avx,+avx2,+fma,+avx512f").contains("gather"));
    assert!(!listing("znver3", "+avx,+avx2,+fma").contains("gather"));
}
