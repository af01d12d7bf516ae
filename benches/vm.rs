//! What the machine itself costs, with kernels that do nothing: nanoseconds a turn of a loop.
//! Run on a quiet machine; the best of several repetitions counts.

use std::time::{Duration, Instant};

use resat::{
    diag::Refused,
    infer::infer_types,
    pass,
    relay::text::parse_module,
    tensor::Tensor,
    vm::{self, Value},
};

/// Kernels that count down from a number: the first of a program is the loop's condition.
struct Countdown {
    left: std::sync::atomic::AtomicI64,
    condition: usize,
    yes: Tensor,
    no: Tensor,
    number: Tensor,
}

impl vm::Kernels for Countdown {
    fn call(&self, kernel: vm::KernelId, _: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        let out = match kernel.index() == self.condition {
            true if self.left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0 => &self.yes,
            true => &self.no,
            false => &self.number,
        };
        Ok(vec![out.clone()])
    }
}

fn measure(name: &str, times: i64, text: &str) {
    let module = parse_module("bench", &format!("#[version = \"0.0.5\"] {text}")).and_then(infer_types);
    let module = module.and_then(|m| infer_types(pass::fuse(&m, 1))).unwrap_or_else(|e| panic!("{e}"));
    let program = vm::compile(&module, "main").unwrap_or_else(|e| panic!("{e}"));
    let condition = program.kernels().iter().position(|k| &*k.name == "less").expect("loops compare");
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let kernels = Countdown {
            left: times.into(),
            condition,
            yes: Tensor::from_bools(&[], &[true]),
            no: Tensor::from_bools(&[], &[false]),
            number: Tensor::scalar(1i32),
        };
        let start = Instant::now();
        program.run(&kernels, vec![Value::from(Tensor::scalar(1i32))]).unwrap_or_else(|e| panic!("{e}"));
        best = best.min(start.elapsed());
    }
    println!("{name:28} {:8.1} ns a turn", best.as_nanos() as f64 / times as f64);
}

fn main() {
    measure(
        "tail call, 2 kernels",
        1_000_000,
        "def @main(%n: int32) {
            let %loop = fn (%i: int32) -> int32 { if (less(%i, %n)) { %loop(add(%i, 1)) } else { %i } };
            %loop(0)
        }",
    );
    measure(
        "recursion, 2 kernels",
        1_000_000,
        "def @main(%n: int32) { @f(%n) }
        def @f(%i: int32) -> int32 { if (less(%i, 0)) { add(@f(%i), 1) } else { %i } }",
    );
    measure(
        "tuples, cells, data types",
        1_000_000,
        "type Option[A] { Some(A), None, }
        def @main(%n: int32) {
            let %loop = fn (%p: (int32, int32), %o: Option[int32], %r: ref(int32)) -> int32 {
                let %u = ref_write(%r, match (%o) { Some(%x) => { %x }, None => { %p.0 }, });
                if (less(%p.0, %n)) { %loop((%p.1, %p.0), Some(ref_read(%r)), %r) } else { %p.1 }
            };
            %loop((%n, %n), None, ref(%n))
        }",
    );
}
