//! Compiled code against the plain interpreter of loop nests: every operation on every type, and random nests.
#![cfg(feature = "llvm")]
#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::common::Rng;
use resat::{
    codegen::{
        CodegenTarget, compile,
        llvm::{JitLibrary, Llvm},
    },
    loops::{AxisId, BinOp, Buffer, Kernel, LoopKind, Scalar, Space, Stmt, TensorId, UnOp, run_kernel},
    runtime::abi::{ParallelBody, ResatCtx},
    tensor::{DType, Tensor},
};

/// A `parallel_for` that runs two uneven chunks, the last one first.
unsafe extern "C" fn two_chunks(_: *const ResatCtx, body: ParallelBody, env: *mut u8, n: i64) {
    // SAFETY: the compiled kernel passes its own body and environment.
    unsafe {
        body(env, n / 3, n);
        body(env, 0, n / 3);
    }
}

/// Memory between two pages that can't be touched: what reads or writes beyond it dies.
struct Fenced {
    all: *mut libc::c_void,
    size: usize,
    data: *mut u8,
}

impl Fenced {
    /// A copy of some bytes, right after the first fence or right before the second one (as near as alignment allows).
    fn new(bytes: &[u8], at_end: bool) -> Fenced {
        const PAGE: usize = 4096;
        let inner = bytes.len().max(1).next_multiple_of(PAGE);
        let size = inner + 2 * PAGE;
        // SAFETY: a fresh mapping, of which the inner pages are made accessible before they are written.
        unsafe {
            let all =
                libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert_ne!(all, libc::MAP_FAILED, "memory to test with");
            let start = all.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(start.cast(), inner, libc::PROT_READ | libc::PROT_WRITE), 0);
            let data = if at_end { start.add(inner - bytes.len().next_multiple_of(64)) } else { start };
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len());
            Fenced { all, size, data }
        }
    }

    /// The bytes as they are now.
    fn read(&self, bytes: &mut [u8]) {
        // SAFETY: as many bytes as were put there.
        unsafe { std::ptr::copy_nonoverlapping(self.data, bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`.
        unsafe { libc::munmap(self.all, self.size) };
    }
}

/// A kernel with its arguments, in pointer order.
struct Case {
    kernel: Kernel,
    args: Vec<Tensor>,
    /// Largest difference between floats, in units of the last place.
    ulps: f64,
}

/// Runs all cases by both means and says where they differ.
fn compare(cases: &[Case], target: &CodegenTarget) {
    let kernels: Vec<&Kernel> = cases.iter().map(|c| &c.kernel).collect();
    let library = JitLibrary::load(&compile(&Llvm, &kernels, target).expect("compiles")).expect("links");
    let mut wrong = vec![];
    for (number, case) in cases.iter().enumerate() {
        let mut want = case.args.clone();
        run_kernel(&case.kernel, &mut want).expect("runs");
        let mut got = case.args.clone();
        let fenced: Vec<Fenced> =
            got.iter().enumerate().map(|(i, t)| Fenced::new(t.bytes(), (number + i) % 2 == 0)).collect();
        let pointers: Vec<*mut u8> = fenced.iter().map(|f| f.data).collect();
        let mut workspace = Tensor::zeros(DType::U8, &[case.kernel.workspace().1 as usize]);
        let ctx = ResatCtx { parallel_for: two_chunks, pool: std::ptr::null::<c_void>(), threads: 2 };
        let f = library.get(&case.kernel.name).expect("a compiled kernel");
        // SAFETY: as many pointers as the kernel takes, to tensors of the sizes that it declares.
        unsafe { f(&ctx, pointers.as_ptr(), workspace.bytes_mut().as_mut_ptr()) };
        got.iter_mut().zip(&fenced).for_each(|(t, f)| f.read(t.bytes_mut()));
        for (number, (w, g)) in want.iter().zip(&got).enumerate() {
            let differs = |i: usize| match w.dtype().is_float() {
                false => w.get_i64(i) != g.get_i64(i),
                true => !close(w.get_f64(i), g.get_f64(i), w.dtype(), case.ulps),
            };
            if let Some(i) = (0..w.len()).find(|&i| differs(i)) {
                let inputs: Vec<f64> = case.args.iter().filter(|a| a.len() == w.len()).map(|a| a.get_f64(i)).collect();
                let (w, g) = (w.get_f64(i), g.get_f64(i));
                wrong.push(format!(
                    "{}: argument {number}[{i}] is {g:e} instead of {w:e}, of {inputs:?}",
                    case.kernel.name
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn close(a: f64, b: f64, dtype: DType, ulps: f64) -> bool {
    let (epsilon, least): (f64, f64) = match dtype {
        DType::F16 => (2f64.powi(-10), 2f64.powi(-24)),
        DType::BF16 => (2f64.powi(-7), 2f64.powi(-133)),
        DType::F32 => (2f64.powi(-23), 2f64.powi(-149)),
        _ => (2f64.powi(-52), 2f64.powi(-1074)),
    };
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= ulps * (a.abs() * epsilon).max(least)
}

fn axis(i: u32) -> Scalar {
    Scalar::axis(AxisId(i))
}

fn for_(var: u32, extent: i64, kind: LoopKind, body: Stmt) -> Stmt {
    Stmt::For { var: AxisId(var), extent: Scalar::index(extent), kind, body: Box::new(body) }
}

fn read(buffer: u32, index: Scalar, dtype: DType) -> Scalar {
    Scalar::read(TensorId(buffer), vec![index], dtype)
}

/// Numbers that operations find hard, then random ones.
fn values(dtype: DType, n: usize, rng: &mut Rng) -> Tensor {
    if dtype.is_float() {
        let hard = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            -0.5,
            1.5,
            2.5,
            -2.5,
            0.49999997,
            3.0,
            1e-3,
            -1e-3,
            1e-40,
            1e-300,
            -1e-7,
            88.5,
            -88.5,
            103.9,
            -103.5,
            127.5,
            0.624,
            0.626,
            0.999,
            1.001,
            4.1,
            9.5,
            1e5,
            -1e5,
            8388609.0,
            f64::MAX,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            65504.0,
            65519.0,
            65520.0,
            6e-8,
            3e-8,
            1e-5,
            1.0009765625,
            1.00048828125,
        ];
        let random: Vec<f64> = (0..n)
            .map(|i| {
                let x = rng.unit() * 2.0 - 1.0;
                x * [1.0, 3.0, 20.0, 100.0][i % 4]
            })
            .collect();
        return Tensor::from_f64_fn(dtype, &[n], |i| hard.get(i).copied().unwrap_or(random[i]));
    }
    let (lo, hi) = dtype.int_range().expect("an integer type");
    let hard = [lo, hi, 0, 1, -1, 2, 3, -3, 7, lo + 1, hi - 1, hi / 2];
    let random: Vec<i64> = (0..n).map(|_| rng.next() as i64 >> (rng.next() % 60)).collect();
    Tensor::from_i64_fn(dtype, &[n], |i| hard.get(i).map_or(random[i], |&v| v as i64))
}

const N: i64 = 91;

/// Applies `value` to each element of the inputs: 7 lanes at a time, or one by one.
fn elementwise(name: String, inputs: Vec<Tensor>, value: impl Fn(&[Scalar]) -> Scalar, lanes: i64) -> Kernel {
    let i = axis(0) * lanes + axis(1);
    let reads: Vec<Scalar> = inputs.iter().enumerate().map(|(b, t)| read(b as u32, i.clone(), t.dtype())).collect();
    let value = value(&reads);
    let out = inputs.len() as u32;
    let buffer = |dtype, space| Buffer { dtype, len: N, space };
    let mut buffers: Vec<Buffer> =
        inputs.iter().enumerate().map(|(b, t)| buffer(t.dtype(), Space::Input(b as u32))).collect();
    buffers.push(buffer(value.dtype(), Space::Output(out)));
    let kind = if lanes > 1 { LoopKind::Vector } else { LoopKind::Serial };
    let store = Stmt::Store { buffer: TensorId(out), index: i, value };
    let name = format!("{name}_{lanes}");
    Kernel { name, buffers, body: for_(0, N / lanes, LoopKind::Serial, for_(1, lanes, kind, store)) }
}

fn cases(name: String, inputs: Vec<Tensor>, ulps: f64, value: impl Fn(&[Scalar]) -> Scalar) -> Vec<Case> {
    [1, 7]
        .map(|lanes| {
            let kernel = elementwise(name.clone(), inputs.clone(), &value, lanes);
            let out = Tensor::zeros(kernel.buffers[inputs.len()].dtype, &[N as usize]);
            let args = inputs.iter().cloned().chain([out]).collect();
            Case { kernel, args, ulps }
        })
        .into()
}

#[test]
fn binary_operations() {
    use BinOp::*;
    let mut all = vec![];
    let mut rng = Rng(1);
    for dtype in DType::ALL {
        for op in [
            Add, Sub, Mul, Div, Rem, FloorDiv, FloorMod, Min, Max, Pow, Atan2, And, Or, Xor, Shl, Shr, Eq, Ne, Lt, Le,
            Gt, Ge,
        ] {
            let bits = matches!(op, And | Or | Xor | Shl | Shr);
            let divides = matches!(op, Div | Rem | FloorDiv | FloorMod);
            let odd = match dtype {
                d if d.is_float() => bits,
                DType::Bool => divides || matches!(op, Shl | Shr | Pow | Atan2),
                _ => matches!(op, Pow | Atan2),
            };
            if odd {
                continue;
            }
            let a = values(dtype, N as usize, &mut rng);
            // The second operand runs through the hard ones in another order; divisors are not 0, shifts within reason.
            let mut b = Tensor::zeros(dtype, &[N as usize]);
            let source = values(dtype, N as usize, &mut rng);
            for i in 0..b.len() {
                let j = (i * 5 + 3) % b.len();
                match dtype.is_float() {
                    true => b.set_f64(i, source.get_f64(j)),
                    false if divides && source.get_i64(j) == 0 => b.set_i64(i, 5),
                    false if matches!(op, Shl | Shr) => b.set_i64(i, (i as i64) % (dtype.bits() as i64 + 3)),
                    false => b.set_i64(i, source.get_i64(j)),
                }
            }
            let ulps = if matches!(op, Pow | Atan2) { 2.0 } else { 0.5 };
            let name = format!("{op:?}_{dtype}");
            all.extend(cases(name, vec![a, b], ulps, |x| Scalar::binary(op, x[0].clone(), x[1].clone())));
        }
    }
    compare(&all, &resat::codegen::llvm::host_target());
}

#[test]
fn constant_operands() {
    let mut all = vec![];
    let mut rng = Rng(2);
    for dtype in DType::ALL.into_iter().filter(|d| d.is_int()) {
        for op in [BinOp::Div, BinOp::Rem, BinOp::FloorDiv, BinOp::FloorMod, BinOp::Shl, BinOp::Shr] {
            for c in [1i64, 2, 3, 7, 8, -1, -4, -5] {
                if c < 0 && (dtype.is_unsigned_int() || matches!(op, BinOp::Shl | BinOp::Shr)) {
                    continue;
                }
                let a = values(dtype, N as usize, &mut rng);
                let name = format!("{op:?}_{dtype}_{}{}", if c < 0 { "m" } else { "" }, c.abs());
                all.extend(cases(name, vec![a], 0.0, |x| Scalar::binary(op, x[0].clone(), Scalar::int(c, dtype))));
            }
        }
    }
    for dtype in [DType::F32, DType::F64] {
        for (i, c) in [0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 0.25, 0.75, -0.75, 1.7].into_iter().enumerate() {
            let a = values(dtype, N as usize, &mut rng);
            let name = format!("pow_{dtype}_{i}");
            all.extend(cases(name, vec![a], 4.0, |x| {
                Scalar::binary(BinOp::Pow, x[0].clone(), Scalar::float(c, dtype))
            }));
        }
    }
    compare(&all, &resat::codegen::llvm::host_target());
}

#[test]
fn unary_operations() {
    use UnOp::*;
    let mut all = vec![];
    let mut rng = Rng(3);
    for dtype in DType::ALL {
        for op in [
            Neg,
            Abs,
            Not,
            Exp,
            Exp2,
            Log,
            Log2,
            Log10,
            Sqrt,
            Rsqrt,
            Erf,
            Sigmoid,
            Tanh,
            Sin,
            Cos,
            Tan,
            Asin,
            Acos,
            Atan,
            Sinh,
            Cosh,
            Asinh,
            Acosh,
            Atanh,
            Floor,
            Ceil,
            Trunc,
            Round,
            RoundEven,
            Popcount,
            IsNan,
            IsInf,
            IsFinite,
            FlushSubnormal,
        ] {
            let any = matches!(op, Neg | Abs | Floor | Ceil | Trunc | Round | RoundEven | IsNan | IsInf | IsFinite);
            if !any && matches!(op, Not | Popcount) == dtype.is_float() || op == FlushSubnormal && dtype != DType::F32 {
                continue;
            }
            let ulps = match op {
                Neg | Abs | Floor | Ceil | Trunc | Round | RoundEven | FlushSubnormal => 0.0,
                Sqrt => 0.5,
                // Of f64, the interpreter's own functions are no better than that.
                _ if dtype == DType::F64 => 32.0,
                _ => 4.0,
            };
            let a = values(dtype, N as usize, &mut rng);
            all.extend(cases(format!("{op:?}_{dtype}"), vec![a], ulps, |x| Scalar::unary(op, x[0].clone())));
        }
    }
    compare(&all, &resat::codegen::llvm::host_target());
}

#[test]
fn conversions() {
    let mut all = vec![];
    let mut rng = Rng(4);
    for from in DType::ALL {
        for to in DType::ALL {
            let mut a = values(from, N as usize, &mut rng);
            if from.is_float() && !to.is_float() && to != DType::Bool {
                // Defined are only values that the machine's narrowest conversion holds.
                let (lo, hi) = match to {
                    DType::U64 => (0.0, 1e15),
                    DType::U32 => (0.0, 4e9),
                    DType::I64 => (-1e15, 1e15),
                    _ => (-2e9, 2e9),
                };
                a = Tensor::from_f64_fn(from, &[N as usize], |i| {
                    let x = a.get_f64(i);
                    if x.is_nan() { 0.0 } else { x.clamp(lo, hi) }
                });
                if from == DType::F16 {
                    a = Tensor::from_f64_fn(from, &[N as usize], |i| a.get_f64(i).clamp(-65504.0, 65504.0));
                }
            }
            all.extend(cases(format!("{from}_to_{to}"), vec![a], 0.0, |x| x[0].clone().cast(to)));
        }
    }
    compare(&all, &resat::codegen::llvm::host_target());
    // Without instructions for short floats, the same conversions are made of integer operations.
    if cfg!(target_arch = "x86_64") {
        let short = all.into_iter().filter(|c| c.kernel.name.contains("float16")).collect::<Vec<_>>();
        compare(&short, &CodegenTarget::baseline());
    }
}

/// Makes random nests over a few loops, one of which may be a vector.
struct Nests {
    rng: Rng,
    /// Variables in scope with their extents.
    vars: Vec<(u32, i64)>,
    /// Bound scalars in scope.
    lets: Vec<(u32, DType)>,
}

/// Elements of the inputs: they end where the fence stands.
const IN: i64 = 96;

impl Nests {
    fn below(&mut self, n: u64) -> usize {
        (self.rng.next() >> 20) as usize % n as usize
    }

    /// A sum of variables, and where it lies.
    fn sum(&mut self) -> Scalar {
        let mut s = Scalar::index(self.below(9) as i64 - 3);
        for (v, _) in self.vars.clone() {
            let c = [0, 0, 1, 1, 1, -1, 2, -2, 3, 10][self.below(10)];
            s = s + axis(v) * c;
        }
        if self.below(5) == 0 {
            let by = [2, 3, 4, 7][self.below(4)];
            s = if self.below(2) == 0 { s.floor_div(by) } else { s.floor_mod(by) };
        }
        s
    }

    fn condition(&mut self) -> Scalar {
        let (a, b) = (self.sum(), self.sum());
        let op = [BinOp::Lt, BinOp::Ge, BinOp::Eq, BinOp::Le][self.below(4)];
        let c = Scalar::binary(op, a, b);
        if self.below(3) == 0 { c.and(self.sum().ge(Scalar::index(0))) } else { c }
    }

    fn read(&mut self, dtype: DType) -> Scalar {
        let buffer = if dtype == DType::F32 { 0 } else { 1 };
        let index = self.sum();
        match self.below(4) {
            0 => read(buffer, index.floor_mod(IN), dtype),
            1 => read(buffer, index.max(Scalar::index(0)).min(Scalar::index(IN - 1)), dtype),
            2 => {
                // Guarded by a condition that may also hold back reads that would be good.
                let inside = index.clone().ge(Scalar::index(0)).and(index.clone().lt(Scalar::index(IN)));
                let more = self.condition();
                let other = self.value(dtype, 0);
                Scalar::select(inside.and(more), read(buffer, index, dtype), other)
            }
            _ => {
                let index = self.sum();
                let inside = index.clone().ge(Scalar::index(0)).and(index.clone().lt(Scalar::index(IN)));
                let other = self.value(dtype, 0);
                Scalar::select(inside, read(buffer, index, dtype), other)
            }
        }
    }

    fn value(&mut self, dtype: DType, depth: usize) -> Scalar {
        if depth == 0 {
            let bound: Vec<_> = self.lets.iter().filter(|(_, d)| *d == dtype).cloned().collect();
            return match self.below(3) {
                0 if !bound.is_empty() => Scalar::bound(AxisId(bound[0].0), dtype),
                1 => self.sum().cast(dtype),
                _ => Scalar::int(self.below(7) as i64 - 3, dtype),
            };
        }
        match self.below(6) {
            0 | 1 => self.read(dtype),
            2 => {
                let c = self.condition();
                Scalar::select(c, self.value(dtype, depth - 1), self.value(dtype, depth - 1))
            }
            3 => {
                let from = if dtype == DType::F32 { DType::I32 } else { DType::F32 };
                self.value(from, depth - 1).cast(dtype)
            }
            4 => {
                let op = [BinOp::Min, BinOp::Max, BinOp::Sub][self.below(3)];
                Scalar::binary(op, self.value(dtype, depth - 1), self.value(dtype, depth - 1))
            }
            _ => self.value(dtype, depth - 1) + self.value(dtype, depth - 1),
        }
    }

    fn nest(&mut self, name: String) -> Case {
        use LoopKind::*;
        let dtype = if self.below(2) == 0 { DType::F32 } else { DType::I32 };
        let lanes = [1, 2, 4, 5, 8, 16][self.below(6)];
        let (outer, inner, unrolled) = (1 + self.below(4) as i64, 1 + self.below(4) as i64, 1 + self.below(3) as i64);
        self.vars = vec![(0, outer)];
        self.lets.clear();
        let named = self.value(dtype, 2);
        self.lets.push((10, dtype));
        self.vars.push((1, inner));
        let guard = self.condition();
        self.vars.extend([(2, unrolled), (3, lanes)]);
        // Vectors may run over the last axis of the result, or over an outer one.
        let total = outer * inner * unrolled * lanes;
        let out = match self.below(2) {
            0 => ((axis(0) * inner + axis(1)) * unrolled + axis(2)) * lanes + axis(3),
            _ => ((axis(3) * unrolled + axis(2)) * outer + axis(0)) * inner + axis(1),
        };
        let register = axis(2) * lanes + axis(3);
        let first = self.value(dtype, 3);
        self.lets.push((11, dtype));
        let mut second = self.value(dtype, 2) + Scalar::bound(AxisId(11), dtype);
        second = second + read(3, register.clone(), dtype) + read(4, out.clone(), dtype);
        let store =
            |buffer, index: &Scalar, value| Stmt::Store { buffer: TensorId(buffer), index: index.clone(), value };
        let tile = |body| for_(2, unrolled, Unrolled, for_(3, lanes, Vector, body));
        let bound = Stmt::Let { var: AxisId(11), value: first.clone(), body: Box::new(store(2, &out, second)) };
        let body = Stmt::Block(vec![
            tile(store(3, &register, first)),
            tile(store(4, &out, axis(3).cast(dtype) + axis(1).cast(dtype))),
            tile(store(2, &out, Scalar::int(-1, dtype))),
            Stmt::If { cond: guard, then: Box::new(tile(bound)), otherwise: None },
        ]);
        let body = for_(1, inner, Serial, body);
        let body = Stmt::Let { var: AxisId(10), value: named, body: Box::new(body) };
        let kind = if self.below(2) == 0 { Parallel } else { Serial };
        let buffer = |dtype, len, space| Buffer { dtype, len, space };
        let buffers = vec![
            buffer(DType::F32, IN, Space::Input(0)),
            buffer(DType::I32, IN, Space::Input(1)),
            buffer(dtype, total, Space::Output(2)),
            buffer(dtype, unrolled * lanes, Space::Register),
            buffer(dtype, total, if self.below(2) == 0 { Space::Shared } else { Space::Local }),
        ];
        let args = vec![
            Tensor::from_f64_fn(DType::F32, &[IN as usize], |i| (i * 37 % 101) as f64 - 50.0),
            Tensor::from_f64_fn(DType::I32, &[IN as usize], |i| (i * 53 % 89) as f64 - 40.0),
            Tensor::zeros(dtype, &[total as usize]),
        ];
        Case { kernel: Kernel { name, buffers, body: for_(0, outer, kind, body) }, args, ulps: 0.0 }
    }
}

/// Squares that are read across are turned in registers: nothing beyond them may be touched, whatever lies between their rows.
#[test]
fn squares_read_across() {
    let mut rng = Rng(77);
    let mut all = vec![];
    for dtype in DType::ALL {
        for (n, apart) in [(2, 2), (4, 5), (8, 8), (8, 19), (16, 16), (16, 21)] {
            let (row, lane, turn) = (axis(0), axis(1), axis(2));
            let at = lane.clone() * apart + turn.clone() * n + row.clone();
            let turns = apart / n;
            let to = (turn.clone() * n + row) * n + lane;
            let value = read(0, at, dtype);
            let store = Stmt::Store { buffer: TensorId(1), index: to, value };
            let square = for_(0, n, LoopKind::Unrolled, for_(1, n, LoopKind::Vector, store));
            let inputs = [values(dtype, ((n - 1) * apart + turns * n) as usize, &mut rng)];
            let out = Tensor::zeros(dtype, &[(turns * n * n) as usize]);
            let buffer = |t: &Tensor, space| Buffer { dtype, len: t.len() as i64, space };
            let kernel = Kernel {
                name: format!("square_{n}_{apart}_{}", dtype.name()),
                buffers: vec![buffer(&inputs[0], Space::Input(0)), buffer(&out, Space::Output(1))],
                body: for_(2, turns, LoopKind::Serial, square),
            };
            let [input] = inputs;
            all.push(Case { kernel, args: vec![input, out], ulps: 0.0 });
        }
    }
    compare(&all, &resat::codegen::llvm::host_target());
    compare(&all, &CodegenTarget::baseline());
}

#[test]
fn random_nests() {
    let mut nests = Nests { rng: Rng(7), vars: vec![], lets: vec![] };
    let all: Vec<Case> = (0..300).map(|i| nests.nest(format!("nest_{i}"))).collect();
    compare(&all, &resat::codegen::llvm::host_target());
}

/// A kernel over buffers of these types and lengths, the last of which is written; `registers` comes after them.
fn flat(name: String, buffers: &[(DType, i64)], registers: Option<(DType, i64)>, body: Stmt) -> Kernel {
    let last = buffers.len() - 1;
    let space = |i| if i == last { Space::Output(i as u32) } else { Space::Input(i as u32) };
    let mut all: Vec<Buffer> =
        buffers.iter().enumerate().map(|(i, &(dtype, len))| Buffer { dtype, len, space: space(i) }).collect();
    all.extend(registers.map(|(dtype, len)| Buffer { dtype, len, space: Space::Register }));
    Kernel { name, buffers: all, body }
}

fn random(dtype: DType, n: usize, rng: &mut Rng) -> Tensor {
    match dtype {
        DType::BF16 => Tensor::from_f64_fn(dtype, &[n], |_| (rng.next() % 64) as f64 / 8.0 - 4.0),
        _ => Tensor::from_i64_fn(dtype, &[n], |_| rng.next() as i64),
    }
}

/// Dot products whose factors lie side by side, as many bytes apart as there are lanes, and anyhow; of all lane counts.
#[test]
fn dot_products() {
    let mut rng = Rng(11);
    let mut all = vec![];
    for lanes in [1i64, 4, 5, 8, 16] {
        for (a, b) in [
            (DType::I8, DType::U8),
            (DType::U8, DType::I8),
            (DType::I8, DType::I8),
            (DType::U8, DType::U8),
            (DType::BF16, DType::BF16),
        ] {
            let (sum, most) = if a == DType::BF16 { (DType::F32, 2) } else { (DType::I32, 4) };
            for count in 1..=most {
                for form in ["words", "lanes", "anyhow"] {
                    let lane = axis(0);
                    let place = |i: i64| match form {
                        "words" => [Scalar::index(i), lane.clone() * most + i],
                        "lanes" => [lane.clone() + i * lanes, lane.clone() + i * lanes],
                        _ => [lane.clone() * 3 + (5 - i), Scalar::index(2 * i)],
                    };
                    let factors = (0..count).map(|i| {
                        let [x, y] = place(i);
                        [read(1, x, a), read(2, y, b)]
                    });
                    let value = Scalar::dot(read(0, lane.clone(), sum), factors);
                    let store = Stmt::Store { buffer: TensorId(3), index: lane.clone(), value };
                    let buffers = [(sum, 16), (a, 80), (b, 80), (sum, 16)];
                    let name = format!("dot_{a}_{b}_{count}_{form}_{lanes}");
                    let kernel = flat(name, &buffers, None, for_(0, lanes, LoopKind::Vector, store));
                    let start = match sum {
                        DType::F32 => Tensor::from_f64_fn(sum, &[16], |i| i as f64),
                        _ => random(sum, 16, &mut rng),
                    };
                    let args = vec![start, random(a, 80, &mut rng), random(b, 80, &mut rng), Tensor::zeros(sum, &[16])];
                    // Once rounded or several times.
                    all.push(Case { kernel, args, ulps: 2.0 });
                }
            }
        }
    }
    let host = resat::codegen::llvm::host_target();
    compare(&all, &host);
    compare(&all, &CodegenTarget::baseline());
}

/// Fixed-point multiplications and saturating conversions, in vectors, side by side and alone.
#[test]
fn fixed_point_and_saturation() {
    let mut rng = Rng(12);
    let mut all = vec![];
    for lanes in [1i64, 4, 7, 8, 16] {
        for shift in [1i64, 15, 31, 40, 62] {
            let wide = |buffer| read(buffer, axis(0), DType::I32).cast(DType::I64);
            let long = |n| Scalar::int(n, DType::I64);
            let value = Scalar::mul_shift(wide(0), wide(1), long(1 << (shift - 1)), long(shift));
            let store = Stmt::Store { buffer: TensorId(2), index: axis(0), value };
            let buffers = [(DType::I32, 16), (DType::I32, 16), (DType::I32, 16)];
            let body = for_(0, lanes, LoopKind::Vector, store);
            let kernel = flat(format!("mul_shift_{shift}_{lanes}"), &buffers, None, body);
            let (x, m) = (random(DType::I32, 16, &mut rng), random(DType::I32, 16, &mut rng));
            all.push(Case { kernel, args: vec![x, m, Tensor::zeros(DType::I32, &[16])], ulps: 0.0 });
        }
        for to in [DType::I8, DType::U8] {
            for vectors in 1..=5 {
                let at = axis(1) * lanes + axis(0);
                let value = read(0, at.clone(), DType::I32).saturate(to);
                let store = Stmt::Store { buffer: TensorId(1), index: at, value };
                let body = for_(1, vectors, LoopKind::Unrolled, for_(0, lanes, LoopKind::Vector, store));
                let n = (lanes * vectors) as usize;
                let name = format!("saturate_{to}_{vectors}_{lanes}");
                let kernel = flat(name, &[(DType::I32, n as i64), (to, n as i64)], None, body);
                let x = Tensor::from_i64_fn(DType::I32, &[n], |_| rng.next() as i64 % 700 - 350);
                all.push(Case { kernel, args: vec![x, Tensor::zeros(to, &[n])], ulps: 0.0 });
            }
        }
    }
    compare(&all, &resat::codegen::llvm::host_target());
    compare(&all, &CodegenTarget::baseline());
}

/// What is clipped and converted, or multiplied with wide products, is the typed operation.
#[test]
fn typed_operations_are_found_once() {
    let x = read(0, axis(0), DType::I32);
    let bound = |b| Scalar::int(b, DType::I32);
    let clipped = x.clone().min(bound(127)).max(bound(-128)).cast(DType::I8);
    assert_eq!(clipped, x.clone().saturate(DType::I8));
    let less = x.clone().max(bound(0)).min(bound(6));
    assert_eq!(less.clone().cast(DType::U8), less.saturate(DType::U8));
    let more = x.clone().max(bound(-129)).min(bound(127)).cast(DType::I8);
    assert!(matches!(more.kind(), resat::loops::ScalarKind::Cast(_)));
}

#[test]
fn transposes() {
    let mut rng = Rng(13);
    let mut all = vec![];
    for dtype in [DType::I8, DType::F16, DType::F32, DType::F64] {
        for n in [1i64, 2, 3, 4, 8, 16] {
            for stride in [n, n + 3] {
                let len = 5 + stride * n;
                let registers = TensorId(2);
                let square = Stmt::Transpose {
                    from: TensorId(0),
                    at: Scalar::index(5),
                    stride: Scalar::index(stride),
                    to: registers,
                    extent: n,
                };
                let at = axis(0) * n + axis(1);
                let store = Stmt::Store { buffer: TensorId(1), index: at.clone(), value: read(2, at, dtype) };
                let copy = for_(0, n, LoopKind::Unrolled, for_(1, n, LoopKind::Vector, store));
                let kernel = flat(
                    format!("transpose_{dtype}_{n}_{stride}"),
                    &[(dtype, len), (dtype, n * n)],
                    Some((dtype, n * n)),
                    Stmt::Block(vec![square, copy]),
                );
                let x = match dtype.is_float() {
                    true => Tensor::from_f64_fn(dtype, &[len as usize], |_| (rng.next() % 999) as f64),
                    false => random(dtype, len as usize, &mut rng),
                };
                all.push(Case { kernel, args: vec![x, Tensor::zeros(dtype, &[(n * n) as usize])], ulps: 0.0 });
            }
        }
    }
    compare(&all, &resat::codegen::llvm::host_target());
    compare(&all, &CodegenTarget::baseline());
}

/// Sine, cosine and tangent of what is close to quarters of a turn, of a few and of a billion; of what is beyond that for some lanes, and of none of them.
#[test]
fn quarters_of_a_turn() {
    let mut rng = Rng(5);
    let mut all = vec![];
    for (number, most) in [8, 1 << 12, 1 << 29, 1 << 40].into_iter().enumerate() {
        let a = Tensor::from_f64_fn(DType::F32, &[N as usize], |i| {
            let near = (rng.next() % most) as f64 * std::f64::consts::FRAC_PI_2;
            if i % 2 == 0 { near } else { -near }
        });
        for op in [UnOp::Sin, UnOp::Cos, UnOp::Tan] {
            let value = |x: &[Scalar]| Scalar::unary(op, x[0].clone());
            all.extend(cases(format!("{op:?}_{number}"), vec![a.clone()], 4.0, value));
        }
    }
    compare(&all, &resat::codegen::llvm::host_target());
    // Where products are rounded before they are added.
    compare(&all, &CodegenTarget::baseline());
}
