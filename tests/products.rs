//! Products of arguments, whose operands are packed while the program runs where that pays: of all sizes, transposed or not, in
//! batches, and of all types of numbers; and transposes by themselves.
#![cfg(feature = "llvm")]

use resat::{
    driver::{self, Runnable},
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
