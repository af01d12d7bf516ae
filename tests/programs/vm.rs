//! The machine for whole programs, against the interpreter.

use crate::common::plain::{agree, compiled, run, typed};
use resat::tensor::{Tensor, Value};

/// The result of `@main` as integers, the same by the interpreter and by the machine.
fn ints(text: &str, args: &[i32]) -> Vec<i64> {
    let m = typed(text).unwrap_or_else(|e| panic!("{e}")).into_module();
    let out = agree(&m, &scalars(args)).unwrap_or_else(|e| panic!("{e}"));
    out.iter().flat_map(|t| t.to_i64_vec()).collect()
}

fn scalars(args: &[i32]) -> Vec<Value> {
    args.iter().map(|&a| Tensor::scalar(a).into()).collect()
}

const LIST: &str = "type List[A] { Cons(A, List[A]), Nil, }
    def @fill(%n: int32, %l: List[int32]) -> List[int32] {
        if (equal(%n, 0)) { %l } else { @fill(subtract(%n, 1), Cons(%n, %l)) }
    }
    def @map[A, B](%f: fn (A) -> B, %xs: List[A]) -> List[B] {
        match (%xs) { Cons(%y, %ys) => { Cons(%f(%y), @map(%f, %ys)) }, Nil => { Nil }, }
    }
    def @foldl[A, B](%f: fn (A, B) -> A, %acc: A, %xs: List[B]) -> A {
        match (%xs) { Cons(%y, %ys) => { @foldl(%f, %f(%acc, %y), %ys) }, Nil => { %acc }, }
    }";

#[test]
fn loops_and_branches() {
    let text = "def @main(%n: int32, %x: int32) {
        let %loop = fn (%i: int32, %s: int32) {
            if (less(%i, %n)) { %loop(add(%i, 1), add(%s, %x)) } else { (%i, %s) }
        };
        %loop(0, 0).1
    }";
    assert_eq!(ints(text, &[50, 3]), [150]);
    let text = "def @even(%n: int32) -> bool { if (equal(%n, 0)) { True } else { @odd(subtract(%n, 1)) } }
    def @odd(%n: int32) -> bool { if (equal(%n, 0)) { False } else { @even(subtract(%n, 1)) } }
    def @main(%n: int32) { (@even(%n), @odd(%n), if (@even(%n)) { 1 } else { 2 }) }";
    assert_eq!(ints(text, &[7]), [0, 1, 2]);
    let text = "def @ackermann(%m: int32, %n: int32) -> int32 {
        if (equal(%m, 0)) { add(%n, 1) } else {
            if (equal(%n, 0)) { @ackermann(subtract(%m, 1), 1) } else {
                @ackermann(subtract(%m, 1), @ackermann(%m, subtract(%n, 1)))
            }
        }
    }
    def @main(%m: int32, %n: int32) { @ackermann(%m, %n) }";
    assert_eq!(ints(text, &[2, 3]), [9]);
}

#[test]
fn nested_patterns() {
    let text = "type T { A, B(int32, (T, int32)), C(T), }
    def @f(%t: T) -> int32 {
        match (%t) {
            B(%x, (A, %y)) => { add(%x, %y) },
            C(C(%u)) => { add(100, @f(%u)) },
            B(%x, (B(_, (C(_), %z)), _)) => { multiply(%x, %z) },
            C(A) => { 3 },
            A => { 4 },
            %other => { match (%other) { B(%x, _) => { subtract(0, %x) }, _ => { 0 }, } },
        }
    }
    def @main(%x: int32) {
        (@f(A), @f(B(%x, (A, 2))), @f(C(C(C(A)))), @f(B(%x, (B(1, (C(A), 7)), 0))), @f(B(%x, (B(1, (A, 7)), 0))), @f(C(B(1, (A, 1)))))
    }";
    assert_eq!(ints(text, &[5]), [4, 7, 103, 35, -5, 0]);
    let text = "type P { P1(int32, int32), }
    def @main(%x: int32) {
        let %p = (P1(%x, 2), ((3, P1(4, %x)), 6));
        match (%p) { (P1(%a, _), ((%b, P1(_, %c)), %d)) => { (%a, %b, %c, %d) }, }
    }";
    assert_eq!(ints(text, &[9]), [9, 3, 9, 6]);
}

#[test]
fn functions_are_values() {
    let text = format!(
        "{LIST}
    def @id[A](%x: A) -> A {{ %x }}
    def @compose[A, B, C](%f: fn (B) -> C, %g: fn (A) -> B) -> fn (A) -> C {{ fn (%x: A) {{ %f(%g(%x)) }} }}
    def @iterate[A](%f: fn (A) -> A, %n: int32) -> fn (A) -> A {{
        if (equal(%n, 0)) {{ @id }} else {{ @compose(%f, @iterate(%f, subtract(%n, 1))) }}
    }}
    def @main(%x: int32) {{
        let %l = @fill(5, Nil);
        let %add_x = fn (%y: int32) {{ add(%x, %y) }};
        let %fs = @map(fn (%y: int32) {{ fn (%z: int32) {{ multiply(%z, add(%y, %x)) }} }}, %l);
        (@foldl(add, 0, @map(%add_x, %l)), @map(fn (%f: fn (int32) -> int32) {{ %f(2) }}, %fs),
         @iterate(%add_x, 7)(1), @foldl(fn (%a: List[int32], %b: int32) {{ Cons(%b, %a) }}, Nil, %l))
    }}"
    );
    assert_eq!(ints(&text, &[10]), [65, 22, 24, 26, 28, 30, 71, 5, 4, 3, 2, 1]);
}

#[test]
fn operators_are_values() {
    let text = format!(
        "{LIST}
    def @main(%x: int32) {{
        let %plus = add;
        let %l = @fill(4, Nil);
        (@foldl(%plus, 0, %l), @foldl(multiply, 1, %l), %plus(1f, 2f), @map(negative, %l))
    }}"
    );
    assert_eq!(ints(&text, &[10]), [10, 24, 3, -1, -2, -3, -4]);
}

#[test]
fn what_is_shared_by_branches_runs_once_or_never() {
    // The counter says how often the shared call ran.
    let program = |shared: &str, rest: &str| {
        format!(
            "def @count(%r: ref(int32), %x: int32) -> int32 {{
                let %u = ref_write(%r, add(ref_read(%r), 1));
                if (less(%x, 0)) {{ @count(%r, add(%x, 1)) }} else {{ %x }}
            }}
            def @main(%a: int32, %b: int32) {{
                let %r = ref(0);
                {shared}
                let %out = {rest};
                (%out, ref_read(%r))
            }}"
        )
    };
    let once = "%0 = @count(%r, 7);";
    let text = program(once, "(if (less(%a, 1)) { %0 } else { 0 }, if (less(%b, 1)) { %0 } else { 0 })");
    assert_eq!(ints(&text, &[0, 0]), [7, 7, 1]);
    assert_eq!(ints(&text, &[1, 0]), [0, 7, 1]);
    assert_eq!(ints(&text, &[1, 1]), [0, 0, 0]);
    let text = program(once, "(if (less(%a, 1)) { %0 } else { 0 }, %0)");
    assert_eq!(ints(&text, &[0, 0]), [7, 7, 1]);
    assert_eq!(ints(&text, &[1, 0]), [0, 7, 1]);
    let text = program(once, "if (less(%a, 1)) { (1, %0) } else { if (less(%b, 1)) { (2, %0) } else { (3, 3) } }");
    assert_eq!(ints(&text, &[0, 0]), [1, 7, 1]);
    assert_eq!(ints(&text, &[1, 0]), [2, 7, 1]);
    assert_eq!(ints(&text, &[1, 1]), [3, 3, 0]);
}

#[test]
fn what_is_shared_by_closures_runs_once_or_never() {
    let text = "def @main(%a: int32, %n: int32) {
        let %r = ref(0);
        %0 = (let %u = ref_write(%r, add(ref_read(%r), 1)); add(%a, 100));
        let %f = fn (%x: int32) { add(%0, %x) };
        let %g = fn (%x: int32) { subtract(%0, %x) };
        let %loop = fn (%i: int32, %s: int32) -> int32 {
            if (less(%i, %n)) { %loop(add(%i, 1), add(%s, add(%f(%i), %g(%i)))) } else { %s }
        };
        let %out = %loop(0, 0);
        (%out, ref_read(%r))
    }";
    assert_eq!(ints(text, &[1, 3]), [606, 1]);
    assert_eq!(ints(text, &[1, 0]), [0, 0]);
}

#[test]
fn what_never_ends_is_not_run_too_early() {
    let text = "def @forever(%x: int32) -> int32 { @forever(add(%x, 1)) }
    def @main(%a: int32) {
        %0 = @forever(%a);
        %1 = add(%0, 1);
        let %f = fn () { add(%1, %0) };
        let %x = if (less(%a, 0)) { %1 } else { 5 };
        if (less(%a, 1)) { add(%0, %f()) } else { %x }
    }";
    assert_eq!(ints(text, &[3]), [5]);
}

/// Cells that hold each other, and one that a function writes.
pub(crate) const CELLS: &str = "type Node { Link(int32, ref(Node)), End, }
def @length(%n: Node, %limit: int32) -> int32 {
    match (%n) {
        Link(_, %next) => { if (equal(%limit, 0)) { 0 } else { add(1, @length(ref_read(%next), subtract(%limit, 1))) } },
        End => { 0 },
    }
}
def @main(%x: int32) {
    let %r = ref(End);
    let %one = Link(%x, %r);
    let %two = Link(2, ref(%one));
    let %before = @length(%two, 100);
    let %u = ref_write(%r, %two);
    let %counter = ref(%x);
    let %bump = fn (%by: int32) { let %w = ref_write(%counter, add(ref_read(%counter), %by)); ref_read(%counter) };
    (%before, @length(%one, 100), %bump(1), %bump(10), %bump(100))
}";

#[test]
fn references() {
    assert_eq!(ints(CELLS, &[5]), [2, 100, 6, 16, 116]);
    // Recursion through a cell.
    let text = "def @main(%n: int32) {
        let %r = ref(fn (%x: int32) { %x });
        let %fact = fn (%x: int32) { if (less(%x, 1)) { 1 } else { multiply(%x, ref_read(%r)(subtract(%x, 1))) } };
        let %u = ref_write(%r, %fact);
        %fact(%n)
    }";
    assert_eq!(ints(text, &[5]), [120]);
}

#[test]
fn tuples_are_arguments_of_kernels_and_their_results() {
    let text = "def @pair(%x: Tensor[(2, 2), int32], %n: int32) -> (Tensor[(2, 1), int32], Tensor[(2, 1), int32]) {
        let %s = split(%x, indices_or_sections=2, axis=1);
        if (equal(%n, 0)) { (%s.0, %s.1) } else { @pair(concatenate((%s.1, %s.0), axis=1), subtract(%n, 1)) }
    }
    def @main(%n: int32) {
        let %x = reshape(arange(0, 4, 1, dtype=\"int32\"), newshape=[2, 2]);
        let %p = @pair(%x, %n);
        (concatenate(%p), %p)
    }";
    assert_eq!(ints(text, &[0]), [0, 2, 1, 3, 0, 2, 1, 3]);
    assert_eq!(ints(text, &[1]), [1, 3, 0, 2, 1, 3, 0, 2]);
}

#[test]
fn what_no_clause_meets_is_refused_with_its_place() {
    let text = "type T { A, B(int32), }
    def @f(%t: T) -> int32 { match? (%t) { B(%x) => { %x }, } }
    def @main(%x: int32) { if (less(%x, 3)) { @f(B(%x)) } else { @f(A) } }";
    assert_eq!(ints(text, &[2]), [2]);
    let m = typed(text).unwrap_or_else(|e| panic!("{e}")).into_module();
    let e = agree(&m, &scalars(&[3])).expect_err("the interpreter refuses it as well");
    assert!(e.to_string().contains("no clause"), "{e}");
    let program = compiled(m).unwrap_or_else(|e| panic!("{e}"));
    let e = run(&program, &scalars(&[3])).expect_err("no clause").to_string();
    assert!(e.starts_with("test.relay:2:") && e.contains("no clause of `match` meets"), "{e}");
}

#[test]
fn ten_thousand_bindings() {
    let lets: String = (0..10_000).map(|i| format!("let %x{} = add(%x{i}, 1);\n", i + 1)).collect();
    assert_eq!(compiled_ints(&format!("def @main(%x0: int32) {{ {lets} %x10000 }}"), &[5]), [10_005]);
    let lets: String = (0..10_000).map(|i| format!("let %x{} = @f(%x{i});\n", i + 1)).collect();
    let text = format!(
        "def @f(%x: int32) -> int32 {{ if (less(%x, 0)) {{ @f(add(%x, 1)) }} else {{ add(%x, 1) }} }} def @main(%x0: int32) {{ {lets} (%x10000, %x0) }}"
    );
    assert_eq!(compiled_ints(&text, &[5]), [10_005, 5]);
}

#[test]
fn branches_within_branches() {
    // What all of them share, and what each shares with the next.
    let body = (0..2000)
        .fold("%0".to_owned(), |inner, i| format!("if (equal(%x, {})) {{ add(%0, {i}) }} else {{ {inner} }}", i + 100));
    let text = format!("def @main(%x: int32) {{ %0 = multiply(%x, 3); {body} }}");
    assert_eq!(compiled_ints(&text, &[5]), [15]);
    assert_eq!(compiled_ints(&text, &[107]), [328]);
    let shared: String = (1..200)
        .map(|i| format!("%{i} = if (less(%x, {i})) {{ add(%{}, 1) }} else {{ subtract(%{}, 1) }};", i - 1, i - 1))
        .collect();
    let text = format!(
        "def @main(%x: int32) {{ %0 = @f(%x); {shared} %199 }} def @f(%x: int32) -> int32 {{ if (less(%x, 0)) {{ @f(1) }} else {{ %x }} }}"
    );
    assert_eq!(compiled_ints(&text, &[100]), [99]);
}

/// The result without the interpreter's, for programs that are large.
fn compiled_ints(text: &str, args: &[i32]) -> Vec<i64> {
    let m = typed(text).unwrap_or_else(|e| panic!("{e}")).into_module();
    let program = compiled(m).unwrap_or_else(|e| panic!("{e}"));
    let out = run(&program, &scalars(args)).unwrap_or_else(|e| panic!("{e}"));
    out.iter().flat_map(|t| t.to_i64_vec()).collect()
}

#[test]
fn deep_recursion_takes_no_native_stack() {
    let text = format!(
        "{LIST}
    def @sum(%l: List[int32]) -> int32 {{ match (%l) {{ Cons(%x, %rest) => {{ add(%x, @sum(%rest)) }}, Nil => {{ 0 }}, }} }}
    def @main(%n: int32) {{ @sum(@map(fn (%x: int32) {{ %x }}, @fill(%n, Nil))) }}"
    );
    assert_eq!(compiled_ints(&text, &[60_000]), [1_800_030_000]);
}
