//! What programs of the machine hold on to: nothing that is not needed later.
#![allow(unsafe_code, reason = "an allocator that counts")]

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use common::plain::typed;
use resat::{
    diag::Refused,
    infer::infer_types,
    ir::{Expr, ExprId, Module},
    pass,
    tensor::{DType, Tensor},
    vm::{self, Value},
};

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// Counts the bytes that each thread holds.
struct Counting;

fn count(bytes: isize) {
    // The thread may be going.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(now.get())));
    });
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Kernels of one operator on numbers: `add`, `subtract`, `less` and `negative`, which is of tensors.
struct Numbers(Vec<Number>);

struct Number {
    op: &'static str,
    /// Arguments: constants, and parameters by number.
    args: Vec<Result<i64, usize>>,
}

impl Numbers {
    fn new(m: &Module, program: &vm::Program) -> Numbers {
        let number = |k: &vm::Kernel| {
            let f = m.func(k.func);
            let (op, args, _) = m.op_call(f.body).expect("one operator");
            let arg = |e: &ExprId| match &m[*e] {
                Expr::Constant(t) => Ok(t.get_i64(0)),
                Expr::Var(v) => Err(f.params.iter().position(|p| p == v).expect("a parameter")),
                _ => panic!("one operator"),
            };
            Number { op: op.op().name(), args: args.iter().map(arg).collect() }
        };
        Numbers(program.kernels().iter().map(number).collect())
    }
}

impl vm::Kernels for Numbers {
    fn call(&self, kernel: vm::KernelId, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        let k = &self.0[kernel.index()];
        let arg = |i: usize| k.args[i].unwrap_or_else(|p| args[p].get_i64(0));
        Ok(vec![match k.op {
            "add" => Tensor::scalar((arg(0) + arg(1)) as i32),
            "subtract" => Tensor::scalar((arg(0) - arg(1)) as i32),
            "less" => Tensor::from_bools(&[], &[arg(0) < arg(1)]),
            "negative" => Tensor::zeros(DType::I32, args[0].shape()),
            op => panic!("`{op}` is not one of the numbers' operators"),
        }])
    }
}

fn compiled(text: &str) -> (vm::Program, Numbers) {
    let m = typed(text).unwrap_or_else(|e| panic!("{e}"));
    let m = infer_types(pass::fuse(&m, 1)).unwrap_or_else(|e| panic!("{e}"));
    let program = vm::compile(&m, "main").unwrap_or_else(|e| panic!("{e}"));
    let numbers = Numbers::new(&m, &program);
    (program, numbers)
}

/// What a run gives, the most bytes that it held, and the bytes that are left of it when the result is gone.
fn measured(text: &str, args: &[Tensor]) -> (Vec<i64>, isize, isize) {
    let (program, numbers) = compiled(text);
    let before = NOW.get();
    MOST.set(before);
    let inputs: Vec<Value> = args.iter().cloned().map(Value::from).collect();
    let out = program.run(&numbers, inputs).unwrap_or_else(|e| panic!("{e}\n{program}"));
    let most = MOST.get() - before;
    let ints: Vec<i64> = out.flatten().expect("tensors").iter().take(3).flat_map(|t| t.to_i64_vec()).collect();
    let kept = ints.capacity() * 8;
    drop(out);
    (ints, most, NOW.get() - before - kept as isize)
}

const SMALL: isize = 1 << 16;

#[test]
fn a_million_iterations_run_in_constant_memory() {
    let text = "def @main(%n: int32, %x: int32) {
        let %loop = fn (%i: int32, %s: int32) {
            if (less(%i, %n)) { %loop(add(%i, 1), add(%s, %x)) } else { (%i, %s) }
        };
        %loop(0, 0).1
    }";
    let (out, most, left) = measured(text, &[Tensor::scalar(1_000_000i32), Tensor::scalar(2i32)]);
    assert_eq!(out, [2_000_000]);
    assert!(most < SMALL && left < SMALL, "{most} bytes at most, {left} left");
    let text = "def @main(%n: int32, %x: int32) { @even(%n) }
    def @even(%n: int32) -> bool { if (less(%n, 1)) { True } else { @odd(subtract(%n, 1)) } }
    def @odd(%n: int32) -> bool { if (less(%n, 1)) { False } else { @even(subtract(%n, 1)) } }";
    let (out, most, left) = measured(text, &[Tensor::scalar(300_001i32), Tensor::scalar(2i32)]);
    assert_eq!(out, [0]);
    assert!(most < SMALL && left < SMALL, "{most} bytes at most, {left} left");
}

#[test]
fn cells_and_closures_of_a_loop_go() {
    let text = "def @main(%n: int32) {
        let %loop = fn (%i: int32, %r: ref(int32)) -> int32 {
            let %f = fn () { let %u = ref_write(%r, add(ref_read(%r), %i)); ref_read(%r) };
            if (less(%i, %n)) { %loop(add(%i, 1), ref(subtract(%f(), %i))) } else { ref_read(%r) }
        };
        %loop(0, ref(7))
    }";
    let (out, most, left) = measured(text, &[Tensor::scalar(100_000i32)]);
    assert_eq!(out, [7]);
    assert!(most < 4 * SMALL && left < SMALL, "{most} bytes at most, {left} left");
}

#[test]
fn cells_that_hold_themselves_go_with_the_run() {
    let text = "type Node { Link(Tensor[(100), int32], ref(Node)), End, }
    def @main(%x: Tensor[(100), int32], %n: int32) {
        let %loop = fn (%i: int32) -> int32 {
            let %r = ref(End);
            let %u = ref_write(%r, Link(negative(%x), %r));
            if (less(%i, %n)) { %loop(add(%i, 1)) } else { %i }
        };
        %loop(0)
    }";
    let (out, _, left) = measured(text, &[Tensor::zeros(DType::I32, &[100]), Tensor::scalar(1000i32)]);
    assert_eq!(out, [1000]);
    assert!(left < SMALL, "{left} bytes are left");
}

#[test]
fn what_the_result_holds_stays() {
    let text = "type Node { Link(int32, ref(Node)), End, }
    def @main(%x: int32) {
        let %r = ref(End);
        let %n = Link(%x, %r);
        let %u = ref_write(%r, Link(add(%x, 1), ref(End)));
        %n
    }";
    let (out, _, _) = measured(text, &[Tensor::scalar(5i32)]);
    assert_eq!(out, [5, 6]);
}

#[test]
fn tensors_go_when_nothing_needs_them() {
    let lets: String = (0..50).map(|i| format!("let %x{} = negative(%x{i});\n", i + 1)).collect();
    let text =
        format!("def @main(%x0: Tensor[(100000), int32], %c: bool) {{ {lets} if (%c) {{ %x50 }} else {{ %x1 }} }}");
    let tensor = 400_000;
    let args = [Tensor::zeros(DType::I32, &[100_000]), Tensor::from_bools(&[], &[true])];
    let (_, most, _) = measured(&text, &args);
    // The first, which the other branch would need, the last one and the one that is made.
    assert!(most < 3 * tensor + SMALL, "{most} bytes at most");
    let text = format!(
        "def @main(%x0: Tensor[(100000), int32]) {{ @f(%x0) }} def @f(%x0: Tensor[(100000), int32]) {{ {lets} %x50 }}"
    );
    let (_, most, _) = measured(&text, &args[..1]);
    assert!(most < 2 * tensor + SMALL, "{most} bytes at most");
}

#[test]
fn a_hundred_thousand_calls_wait_for_each_other() {
    let text = "type List[A] { Cons(A, List[A]), Nil, }
    def @fill(%n: int32) -> List[int32] { if (less(%n, 1)) { Nil } else { Cons(%n, @fill(subtract(%n, 1))) } }
    def @sum(%l: List[int32]) -> int32 { match (%l) { Cons(%x, %rest) => { add(%x, @sum(%rest)) }, Nil => { 0 }, } }
    def @main(%n: int32) { let %l = @fill(%n); (@sum(%l), %l) }";
    let run = || {
        let (out, _, left) = measured(text, &[Tensor::scalar(100_000i32)]);
        assert_eq!(out, [705_082_704, 100_000, 99_999]);
        assert!(left < SMALL, "{left} bytes are left");
    };
    // The native stack is small.
    std::thread::Builder::new().stack_size(1 << 18).spawn(run).expect("a thread").join().expect("it ends well");
}
