//! How much of the machine's peak the register tiles reach that schedules build products of, and how long compiling takes.
//! Run on a quiet machine; the best of many short repetitions counts.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use resat::{
    codegen::{
        compile,
        llvm::{JitLibrary, Llvm},
    },
    loops::{AxisId, Buffer, Kernel, LoopKind::*, Scalar, Space, Stmt, TensorId},
    runtime::abi::ResatCtx,
    tensor::{DType, Tensor},
};

fn axis(i: u32) -> Scalar {
    Scalar::axis(AxisId(i))
}

fn for_(var: u32, extent: i64, kind: resat::loops::LoopKind, body: Stmt) -> Stmt {
    Stmt::For { var: AxisId(var), extent: Scalar::index(extent), kind, body: Box::new(body) }
}

fn read(buffer: u32, index: Scalar) -> Scalar {
    Scalar::read(TensorId(buffer), vec![index], DType::F32)
}

fn store(buffer: u32, index: Scalar, value: Scalar) -> Stmt {
    Stmt::Store { buffer: TensorId(buffer), index, value }
}

fn buffer(len: i64, space: Space) -> Buffer {
    Buffer { dtype: DType::F32, len, space }
}

/// `chains` independent vectors of `lanes`, each multiplied and added to `k` times: nothing but arithmetic.
fn peak(chains: i64, lanes: i64, k: i64) -> Kernel {
    let at = || axis(1) * lanes + axis(2);
    let all = |body| for_(1, chains, Unrolled, for_(2, lanes, Vector, body));
    let step = read(2, at()) * read(0, axis(2)) + read(0, axis(2) + lanes);
    Kernel {
        name: "peak".into(),
        buffers: vec![
            buffer(2 * lanes, Space::Input(0)),
            buffer(chains * lanes, Space::Output(1)),
            buffer(chains * lanes, Space::Register),
        ],
        body: Stmt::Block(vec![
            all(store(2, at(), Scalar::float(0.0, DType::F32))),
            for_(0, k, Serial, all(store(2, at(), step))),
            all(store(1, at(), read(2, at()))),
        ]),
    }
}

/// C[m, n] of a product over `k`, in register tiles of `rows` by `cols` vectors of `lanes`; B is packed by column tiles.
fn product(name: &str, (m, n, k): (i64, i64, i64), (rows, cols, lanes): (i64, i64, i64)) -> Kernel {
    let width = cols * lanes;
    let [i, j, kk, ii, jj, v] = [0, 1, 2, 3, 4, 5].map(axis);
    let acc = || ii.clone() * width + jj.clone() * lanes + v.clone();
    let tile = |body| for_(3, rows, Unrolled, for_(4, cols, Unrolled, for_(5, lanes, Vector, body)));
    let a = read(0, (i.clone() * rows + ii.clone()) * k + kk.clone());
    let b = read(1, (j.clone() * k + kk.clone()) * width + jj.clone() * lanes + v.clone());
    let c = (i.clone() * rows + ii.clone()) * n + j.clone() * width + jj.clone() * lanes + v.clone();
    let body = Stmt::Block(vec![
        tile(store(3, acc(), Scalar::float(0.0, DType::F32))),
        for_(2, k, Serial, tile(store(3, acc(), read(3, acc()) + a * b))),
        tile(store(2, c, read(3, acc()))),
    ]);
    Kernel {
        name: name.into(),
        buffers: vec![
            buffer(m * k, Space::Input(0)),
            buffer(n * k, Space::Input(1)),
            buffer(m * n, Space::Output(2)),
            buffer(rows * width, Space::Register),
        ],
        body: for_(1, n / width, Serial, for_(0, m / rows, Serial, body)),
    }
}

fn best(library: &JitLibrary, kernel: &Kernel) -> Duration {
    let mut args: Vec<Tensor> = vec![];
    for b in kernel.buffers.iter().filter(|b| matches!(b.space, Space::Input(_) | Space::Output(_))) {
        args.push(Tensor::from_f64_fn(b.dtype, &[b.len as usize], |i| (i % 7) as f64 * 0.1));
    }
    let pointers: Vec<*mut u8> = args.iter_mut().map(|t| t.bytes_mut().as_mut_ptr()).collect();
    let f = library.get(&kernel.name).expect("a compiled kernel");
    let ctx = ResatCtx::single();
    let run = || {
        let start = Instant::now();
        // SAFETY: as many pointers as the kernel takes, to tensors of the sizes that it declares; it needs no workspace.
        unsafe { f(&ctx, pointers.as_ptr(), std::ptr::null_mut()) };
        start.elapsed()
    };
    let begin = Instant::now();
    let mut best = run();
    while begin.elapsed() < Duration::from_millis(300) {
        best = best.min(run());
    }
    best
}

fn main() {
    let target = resat::codegen::llvm::host_target();
    let lanes = target.vector_bytes() as i64 / 4;
    let (rows, cols) = if target.vector_registers() == 32 { (14, 2) } else { (6, 2) };
    let m = 256 / rows * rows;
    let chains = (target.vector_registers() - 4) as i64;
    let steps = 4096;
    let shapes = [("k64", 64), ("k256", 256), ("k512", 512), ("k1152", 1152)];
    let products: Vec<(Kernel, i64)> =
        shapes.map(|(name, k)| (product(name, (m, 8 * cols * lanes, k), (rows, cols, lanes)), k)).into();
    let peak = peak(chains, lanes, steps);
    let all: Vec<&Kernel> = products.iter().map(|p| &p.0).chain([&peak]).collect();
    let start = Instant::now();
    let objects = compile(&Llvm, &all, &target).expect("compiles");
    let compiled = start.elapsed();
    let library = JitLibrary::load(&objects).expect("links");
    println!("{}, {} bytes per vector; {} kernels compiled in {compiled:.1?}", target.cpu, lanes * 4, all.len());
    let flops = |work: i64, time: Duration| 2.0 * work as f64 / time.as_secs_f64() / 1e9;
    let most = flops(chains * lanes * steps, best(&library, &peak));
    println!("peak       {most:7.1} GFLOP/s");
    for (kernel, k) in &products {
        let reached = flops(m * 8 * cols * lanes * k, best(&library, kernel));
        println!("{:10} {reached:7.1} GFLOP/s, {:3.0} % of peak", kernel.name, 100.0 * reached / most);
    }
}
