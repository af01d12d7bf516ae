//! GEMMs of two arguments, whose operands are packed while the program runs where that pays: of all sizes, transposed or not, in
//! batches, and of all types of numbers; products with weights of few bits; and transposes by themselves.
#![cfg(feature = "llvm")]

use resat::{
    codegen::llvm,
    driver::{self, Runnable},
    loops::{Builder, Kernel, Operand},
    lower::kernel,
    machine::Core,
    ops,
    pass::{Pass, Sequential, Settings},
    target::Target,
    tensor::{DType, Tensor},
};

/// A product: batches of either side, extents, and which sides are transposed.
#[derive(Copy, Clone, Debug)]
struct Product {
    op: &'static str,
    batches: (usize, usize),
    m: usize,
    n: usize,
    k: usize,
    transposed: (bool, bool),
}

impl Product {
    fn shapes(&self) -> [Vec<usize>; 2] {
        let side = |batch: usize, rows: usize, columns: usize, swap: bool| {
            let mut shape = if self.op == "nn.batch_matmul" { vec![batch] } else { vec![] };
            shape.extend(if swap { [columns, rows] } else { [rows, columns] });
            shape
        };
        [
            side(self.batches.0, self.m, self.k, self.transposed.0),
            side(self.batches.1, self.k, self.n, self.transposed.1),
        ]
    }

    fn call(&self, a: &str, b: &str, out: DType) -> String {
        let (ta, tb) =
            (if self.transposed.0 { "True" } else { "False" }, if self.transposed.1 { "True" } else { "False" });
        let sides = if self.op == "nn.dense" { String::new() } else { format!(", transpose_a={ta}, transpose_b={tb}") };
        format!("{}({a}, {b}, out_dtype=\"{}\"{sides})", self.op, out.name())
    }

    /// One element of the result, exactly.
    fn element(&self, a: &[f64], b: &[f64], at: usize) -> f64 {
        let (batch, row, column) = (at / (self.m * self.n), at / self.n % self.m, at % self.n);
        let of = |batches: usize| if batches == 1 { 0 } else { batch };
        let (a, b) = (&a[of(self.batches.0) * self.m * self.k..], &b[of(self.batches.1) * self.n * self.k..]);
        let left = |k: usize| if self.transposed.0 { a[k * self.m + row] } else { a[row * self.k + k] };
        let right = |k: usize| if self.transposed.1 { b[column * self.k + k] } else { b[k * self.n + column] };
        (0..self.k).map(|k| left(k) * right(k)).sum()
    }
}

fn build(text: &str) -> Runnable {
    let module = resat::relay::text::parse_module("products", text).expect("well formed");
    let passes: Box<dyn Pass> = Box::new(Sequential::default());
    let settings = Settings::new(Target::host());
    let options = driver::Options { passes: Some(passes), ..driver::Options::new(settings) };
    driver::build(module, &[], options).expect("builds").executable
}

fn tensor(shape: &[usize], dtype: DType) -> String {
    let extents: Vec<String> = shape.iter().map(|e| e.to_string()).collect();
    format!("Tensor[({}), {}]", extents.join(", "), dtype.name())
}

/// Builds the products as one program and compares a share of each one's elements. Sums of small integers are exact in any order.
fn check(products: &[Product], dtype: DType, out: DType) {
    let (mut params, mut calls, mut args) = (vec![], vec![], vec![]);
    for (i, p) in products.iter().enumerate() {
        let [a, b] = p.shapes();
        params.push(format!("%a{i}: {}, %b{i}: {}", tensor(&a, dtype), tensor(&b, dtype)));
        calls.push(p.call(&format!("%a{i}"), &format!("%b{i}"), out));
        let low = if dtype == DType::U8 { 0.0 } else { -3.0 };
        args.push(Tensor::from_f64_fn(dtype, &a, |i| ((i * 7919 + i / 13) % 7) as f64 + low));
        args.push(Tensor::from_f64_fn(dtype, &b, |i| ((i * 104_729 + i / 11) % 5) as f64 + low.max(-2.0)));
    }
    let text = format!("#[version = \"0.0.5\"]\ndef @main({}) {{\n  ({},)\n}}", params.join(", "), calls.join(", "));
    let got = build(&text).run(&args).expect("runs");
    for ((p, got), args) in products.iter().zip(&got).zip(args.chunks(2)) {
        let (a, b, got) = (args[0].to_f64_vec(), args[1].to_f64_vec(), got.to_f64_vec());
        let step = (got.len() * p.k / 200_000).max(1) | 1;
        for (at, &got) in got.iter().enumerate().step_by(step) {
            assert_eq!(got, p.element(&a, &b, at), "{dtype:?}, {p:?}, at {at}");
        }
    }
}

fn matrices(op: &'static str, sizes: &[(usize, usize, usize)], transposed: &[(bool, bool)]) -> Vec<Product> {
    let of = |&transposed| sizes.iter().map(move |&(m, n, k)| Product { op, batches: (1, 1), m, n, k, transposed });
    transposed.iter().flat_map(of).collect()
}

const SIDES: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

#[test]
fn products_of_all_sizes() {
    let sizes = [
        (1, 1, 1),
        (3, 17, 100),
        (17, 3, 1),
        (100, 1, 17),
        (17, 100, 3),
        (100, 100, 100),
        (1, 100, 1000),
        (33, 96, 65),
    ];
    check(&matrices("nn.matmul", &sizes, &SIDES), DType::F32, DType::F32);
    check(&matrices("nn.dense", &sizes, &[(false, true)]), DType::F32, DType::F32);
}

/// Rows that lie powers of two apart: operands are packed into blocks, with rests of tiles on all sides.
#[test]
fn products_of_packed_operands() {
    let sizes = [(130, 256, 512), (64, 1024, 300), (96, 192, 1024), (256, 130, 512), (31, 512, 1000)];
    check(&matrices("nn.matmul", &sizes, &SIDES), DType::F32, DType::F32);
    // Sums so long that they are cut into parts.
    check(&matrices("nn.matmul", &[(256, 1024, 256), (65, 80, 9000), (64, 96, 5120)], &SIDES), DType::F32, DType::F32);
    check(&matrices("nn.dense", &[(65, 80, 9000), (100, 64, 3000)], &[(false, true)]), DType::F64, DType::F64);
    check(&matrices("nn.dense", &sizes, &[(false, true)]), DType::F32, DType::F32);
}

#[test]
fn products_of_all_types() {
    let sizes = [(17, 100, 33), (65, 256, 512), (64, 96, 200)];
    for (dtype, out) in [
        (DType::F64, DType::F64),
        (DType::BF16, DType::F32),
        (DType::F16, DType::F32),
        (DType::I8, DType::I32),
        (DType::U8, DType::I32),
        (DType::I16, DType::I32),
        (DType::I32, DType::I32),
        (DType::I64, DType::I64),
    ] {
        check(&matrices("nn.matmul", &sizes, &SIDES), dtype, out);
        check(&matrices("nn.dense", &sizes, &[(false, true)]), dtype, out);
    }
}

#[test]
fn products_of_batches() {
    let mut products = vec![];
    for transposed in SIDES {
        for batches in [(1, 1), (3, 3), (1, 5), (20, 20), (18, 1)] {
            for (m, n, k) in [(17, 33, 9), (48, 64, 128), (1, 100, 64), (100, 3, 17)] {
                products.push(Product { op: "nn.batch_matmul", batches, m, n, k, transposed });
            }
        }
    }
    check(&products, DType::F32, DType::F32);
    check(&products[..products.len() / 4], DType::F64, DType::F64);
}

/// Squares within the matrices are turned in registers, of rests the largest that there are.
#[test]
fn transposes_of_all_sizes() {
    let shapes =
        [[1, 16, 16], [1, 17, 33], [2, 100, 3], [3, 4, 100], [1, 5, 8], [1, 64, 1000], [2, 31, 77], [1, 130, 520]];
    for dtype in
        [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I32, DType::I64, DType::Bool]
    {
        let params: Vec<String> =
            shapes.iter().enumerate().map(|(i, s)| format!("%a{i}: {}", tensor(s, dtype))).collect();
        let calls: Vec<String> = (0..shapes.len()).map(|i| format!("transpose(%a{i}, axes=[0, 2, 1])")).collect();
        let text =
            format!("#[version = \"0.0.5\"]\ndef @main({}) {{\n  ({},)\n}}", params.join(", "), calls.join(", "));
        let args: Vec<Tensor> =
            shapes.iter().map(|s| Tensor::from_f64_fn(dtype, s, |i| ((i * 7919 + i / 64) % 101) as f64)).collect();
        let got = build(&text).run(&args).expect("runs");
        for ((&[batch, rows, columns], from), to) in shapes.iter().zip(&args).zip(&got) {
            let (from, to) = (from.to_f64_vec(), to.to_f64_vec());
            for (at, &got) in to.iter().enumerate() {
                let (b, c, r) = (at / (rows * columns), at / rows % columns, at % rows);
                let want = from[(b * rows + r) * columns + c];
                assert_eq!(got, want, "{dtype:?} {batch} x {rows} x {columns} at {at}");
            }
        }
    }
}

/// A product with weights of few bits: rows, the weight's extents, blocks of the summed axis, and whether blocks have zero points.
#[derive(Copy, Clone, Debug)]
struct FewBits {
    bits: i64,
    rows: usize,
    weight: [usize; 3],
    blocks: usize,
    zeros: bool,
}

impl FewBits {
    fn k(&self) -> usize {
        self.weight[1] * 8 / self.bits as usize
    }

    fn shapes(&self) -> [Vec<usize>; 4] {
        let [outer, _, c] = self.weight;
        let scales = vec![outer, self.blocks, c];
        let zeros = if self.zeros { scales.clone() } else { vec![1, 1, 1] };
        [vec![self.rows, self.k()], self.weight.to_vec(), scales, zeros]
    }

    /// Numbers whose sums of products are exact in any order.
    fn args(&self) -> Vec<Tensor> {
        let [x, w, s, z] = self.shapes();
        vec![
            Tensor::from_f64_fn(DType::F32, &x, |i| ((i * 7919 + i / 13) % 7) as f64 - 3.0),
            Tensor::from_i64_fn(DType::U8, &w, |i| ((i * 104_729 + i / 11) % 256) as i64),
            Tensor::from_f64_fn(DType::F32, &s, |i| [0.5, 1.0, -2.0][i % 3]),
            Tensor::from_i64_fn(DType::U8, &z, |i| ((i * 31 + 9) % (1 << self.bits)) as i64),
        ]
    }

    fn element(&self, args: &[Tensor], at: usize) -> f64 {
        let [outer, bytes, c] = self.weight;
        let (row, n) = (at / (outer * c), at % (outer * c));
        let (k, per) = (self.k(), 8 / self.bits as usize);
        let term = |i: usize| {
            let byte = args[1].get_i64((n / c * bytes + i / per) * c + n % c);
            let number = (byte >> (self.bits as usize * (i % per))) & ((1 << self.bits) - 1);
            let block = (n / c * self.blocks + i / (k / self.blocks)) * c + n % c;
            let zero = args[3].get_i64(if self.zeros { block } else { 0 });
            args[0].get_f64(row * k + i) * (number - zero) as f64 * args[2].get_f64(block)
        };
        (0..k).map(term).sum()
    }
}

#[test]
fn weights_of_few_bits() {
    let mut all = vec![];
    for rows in [1, 2, 5, 16, 40] {
        for zeros in [false, true] {
            all.push(FewBits { bits: 4, rows, weight: [3, 64, 64], blocks: 4, zeros });
            all.push(FewBits { bits: 4, rows, weight: [2, 24, 16], blocks: 3, zeros });
            all.push(FewBits { bits: 8, rows, weight: [2, 96, 32], blocks: 3, zeros });
            all.push(FewBits { bits: 2, rows, weight: [5, 10, 6], blocks: 5, zeros });
            all.push(FewBits { bits: 1, rows, weight: [1, 7, 1], blocks: 1, zeros });
        }
    }
    let (mut params, mut calls, mut args) = (vec![], vec![], vec![]);
    for (i, p) in all.iter().enumerate() {
        let types = [DType::F32, DType::U8, DType::F32, DType::U8];
        let of = |(j, (s, d)): (usize, (&Vec<usize>, DType))| format!("%a{i}_{j}: {}", tensor(s, d));
        params.extend(p.shapes().iter().zip(types).enumerate().map(of));
        calls.push(format!("nn.dense_nbits(%a{i}_0, %a{i}_1, %a{i}_2, %a{i}_3, bits={})", p.bits));
        args.extend(p.args());
    }
    let text = format!("#[version = \"0.0.5\"]\ndef @main({}) {{\n  ({},)\n}}", params.join(", "), calls.join(", "));
    let got = build(&text).run(&args).expect("runs");
    for ((p, got), args) in all.iter().zip(&got).zip(args.chunks(4)) {
        for (at, got) in got.to_f64_vec().into_iter().enumerate() {
            assert_eq!(got, p.element(args, at), "{p:?}, at {at}");
        }
    }
}

fn few_bits_kernel(p: &FewBits, core: Core) -> Kernel {
    let mut b = Builder::new();
    let types = [DType::F32, DType::U8, DType::F32, DType::U8];
    let extents = |s: &[usize]| -> Vec<i64> { s.iter().map(|&n| n as i64).collect() };
    let args: Vec<Operand> =
        p.shapes().iter().zip(types).map(|(s, d)| Operand::Tensor(b.arg(&extents(s), d))).collect();
    let id = ops::lookup("nn.dense_nbits").expect("it is an operator");
    let attrs = ops::make_attrs(id, &[("bits".into(), p.bits.into())]).expect("legal");
    let out = id.op().lower(&attrs, &args, &mut b).expect("lowers");
    kernel("product", &b.finish_with(&out), core)
}

/// AVX-512 dequantizes weights of up to four bits by a table lookup where all lanes have one zero point; others convert them.
#[test]
fn weights_of_few_bits_are_looked_up() {
    for (cpu, bits, zeros, is_looked_up) in [
        ("skylake-avx512", 4, false, true),
        ("znver4", 4, false, true),
        ("znver4", 2, false, true),
        ("znver4", 8, false, false),
        ("znver4", 4, true, false),
        ("haswell", 4, false, false),
    ] {
        let target = format!("llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu={cpu}");
        let target = Target::parse(&target).expect("a target").codegen();
        let p = FewBits { bits, rows: 1, weight: [12, 384, 64], blocks: 24, zeros };
        let kernel = few_bits_kernel(&p, Core::here(&target));
        let assembly = llvm::listing(&[&kernel], &target).expect("compiles").assembly;
        let has = |names: &[&str]| names.iter().any(|name| assembly.contains(name));
        assert_eq!(has(&["vcvtdq2ps"]), !is_looked_up, "{cpu}, {bits} bits, zeros {zeros}");
        assert!(has(&["vpermps", "vpermd"]) || !is_looked_up, "{cpu}, {bits} bits, zeros {zeros}");
    }
}

/// Few rows unpack weights in registers; many share what was unpacked into memory once.
#[test]
fn weights_of_few_bits_are_unpacked_where_they_are_used() {
    let unpacked = 12 * 64 * 768 * 4;
    for (rows, in_memory) in [(1, false), (4, false), (16, false), (64, true)] {
        let p = FewBits { bits: 4, rows, weight: [12, 384, 64], blocks: 24, zeros: true };
        let kernel = few_bits_kernel(&p, Target::host().core());
        let workspace = kernel.workspace().1;
        assert_eq!(workspace >= unpacked, in_memory, "{rows} rows: {workspace} bytes");
        assert!(in_memory || workspace < unpacked / 8, "{rows} rows: {workspace} bytes");
    }
}

/// Weights of two bytes beside data of four.
#[test]
fn weights_of_another_type_than_data() {
    for dtype in [DType::BF16, DType::F16] {
        for (m, n, k) in [(1, 100, 130), (1, 64, 256), (5, 33, 64), (40, 48, 96)] {
            let a = Tensor::from_f64_fn(DType::F32, &[m, k], |i| ((i * 7919 + i / 13) % 7) as f64 - 3.0);
            let b = Tensor::from_f64_fn(dtype, &[n, k], |i| ((i * 104_729 + i / 11) % 5) as f64 - 2.0);
            let p = Product { op: "nn.dense", batches: (1, 1), m, n, k, transposed: (false, true) };
            let call = p.call("%a", "%b", DType::F32);
            let (ta, tb) = (tensor(&[m, k], DType::F32), tensor(&[n, k], dtype));
            let text = format!("#[version = \"0.0.5\"]\ndef @main(%a: {ta}, %b: {tb}) {{\n  {call}\n}}");
            let got = build(&text).run(&[a.clone(), b.clone()]).expect("runs");
            let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
            for (at, got) in got[0].to_f64_vec().into_iter().enumerate() {
                assert_eq!(got, p.element(&a, &b, at), "{dtype:?}, {p:?}, at {at}");
            }
        }
    }
}
