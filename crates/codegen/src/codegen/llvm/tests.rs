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

#[test]
fn spilled_vectors_are_aligned() {
    let mut target = CodegenTarget { triple: "x86_64-unknown-linux-gnu".into(), ..CodegenTarget::baseline() };
    (target.cpu, target.features) = ("x86-64-v3".into(), "+avx,+avx2,+fma".into());
    let text = listing(&[&tiled_product(2, 2, 8)], &target).expect("compiles").assembly;
    assert!(text.contains("andq\t$-32, %rsp"), "{text}");
}
