//! Programs as text: their types and their values.

use resat::{
    diag::Refused,
    infer::{TypedModule, infer_types},
    interp,
    ir::{Expr, Module, reachable},
    pass,
    relay::text::parse_module,
    tensor::{Tensor, Value},
};

fn typed(text: &str) -> Result<TypedModule, Refused> {
    infer_types(parse_module("test.relay", &format!("#[version = \"0.0.5\"] {text}"))?)
}

/// The result of `@main`, flattened, as integers; the same after passes that must not change it.
fn ints(text: &str, args: &[i32]) -> Vec<i64> {
    let m = typed(text).unwrap_or_else(|e| panic!("{e}"));
    let run = |m: &Module| {
        let args = args.iter().map(|&a| Value::from(Tensor::scalar(a))).collect();
        let out = interp::run_flat(m, "main", args).unwrap_or_else(|e| panic!("{e}"));
        out.iter().flat_map(|t| t.to_i64_vec()).collect::<Vec<i64>>()
    };
    let out = run(&m);
    let passes: [(&str, &dyn Fn(&Module) -> Result<Module, Refused>); 3] = [
        ("inline", &pass::inline),
        ("fold_constant", &pass::fold_constant),
        ("dead_code", &|m| Ok(pass::dead_code(m))),
    ];
    let mut now = m.module().clone();
    for (name, pass) in passes {
        now = pass(&now).unwrap_or_else(|e| panic!("{name}: {e}"));
        let typed = infer_types(now.clone()).unwrap_or_else(|e| panic!("after {name}: {e}"));
        assert_eq!(typed.result_type("main"), m.result_type("main"), "after {name}");
        assert_eq!(run(&now), out, "after {name}");
    }
    let args: Vec<Value> = args.iter().map(|&a| Tensor::scalar(a).into()).collect();
    crate::common::plain::agree(m.module(), &args).unwrap_or_else(|e| panic!("{e}"));
    out
}

/// Function calls and bindings that are left after inlining.
fn left_after_inlining(text: &str) -> usize {
    let m = typed(text).unwrap_or_else(|e| panic!("{e}"));
    let m = pass::inline(&m).unwrap_or_else(|e| panic!("{e}"));
    let main = m.function("main").expect("it stays").body;
    let ids = reachable(&m, [main]);
    let counts = |e: &Expr| match e {
        Expr::Let { .. } | Expr::Func(_) | Expr::Proj(..) => true,
        Expr::Call { callee, .. } => !matches!(m[*callee], Expr::Op(_) | Expr::Constructor(_)),
        _ => false,
    };
    ids.into_iter().filter(|&e| counts(&m[e])).count()
}

fn refusal(text: &str) -> String {
    match typed(text) {
        Ok(_) => panic!("accepted: {text}"),
        Err(e) => e.to_string(),
    }
}

fn main_type(text: &str) -> String {
    let m = typed(text).unwrap_or_else(|e| panic!("{e}"));
    m.result_type("main").to_string()
}

#[test]
fn closures_see_what_is_around_them() {
    let text = "def @main(%x: int32) {
        let %curried = fn (%a: int32) { fn (%b: int32) { add(add(%a, %b), %x) } };
        let %f = %curried(10);
        (%f(1), %f(2), %curried(20)(3))
    }";
    assert_eq!(ints(text, &[100]), [111, 112, 123]);
}

#[test]
fn deep_recursion_takes_no_native_stack() {
    let text = "def @sum(%n: int32) -> int32 {
        if (equal(%n, 0)) { 0 } else { add(%n, @sum(subtract(%n, 1))) }
    }
    def @main(%n: int32) -> int32 { @sum(%n) }";
    assert_eq!(ints(text, &[30_000]), [450_015_000]);
    let text = "def @main(%n: int32, %x: int32) {
        let %loop = fn (%i: int32, %s: int32) {
            if (less(%i, %n)) { %loop(add(%i, 1), add(%s, %x)) } else { (%i, %s) }
        };
        %loop(0, 0).1
    }";
    assert_eq!(ints(text, &[50_000, 3]), [150_000]);
}

#[test]
fn lists_longer_than_the_stack_is_deep() {
    let text = "type List[A] { Cons(A, List[A]), Nil, }
    def @fill(%n: int32, %l: List[int32]) -> List[int32] {
        if (equal(%n, 0)) { %l } else { @fill(subtract(%n, 1), Cons(%n, %l)) }
    }
    def @sum(%l: List[int32], %s: int32) -> int32 {
        match (%l) { Cons(%x, %rest) => { @sum(%rest, add(%s, %x)) }, Nil => { %s }, }
    }
    def @main(%n: int32) { let %l = @fill(%n, Nil); (@sum(%l, 0), %l) }";
    let out = ints(text, &[20_000]);
    assert_eq!(out[0], 200_010_000);
    assert_eq!(out[1..], (1..=20_000).collect::<Vec<i64>>());
}

#[test]
fn polymorphic_functions_serve_several_types() {
    let text = "type List[A] { Cons(A, List[A]), Nil, }
    def @id[A](%x: A) -> A { %x }
    def @map[A, B](%f: fn (A) -> B, %xs: List[A]) -> List[B] {
        match (%xs) { Cons(%y, %ys) => { Cons(%f(%y), @map(%f, %ys)) }, Nil => { Nil }, }
    }
    def @main(%x: int32) {
        let %same = fn [A](%y: A) { %y };
        let %l = @map(fn (%a: int32) { (%a, 2f) }, Cons(%x, Cons(7, Nil)));
        (@id(%x), @id((%x, 1f)), %same(3), %same((4,)), %l)
    }";
    assert_eq!(ints(text, &[5]), [5, 5, 1, 3, 4, 5, 2, 7, 2]);
    assert_eq!(main_type(text), "(int32, (int32, float32), int32, (int32,), List[(int32, float32)])");
}

#[test]
fn references_keep_their_order() {
    let text = "def @main(%x: int32) {
        let %r = ref(%x);
        let %old = ref_read(%r);
        let %u = ref_write(%r, add(%old, 1));
        let %v = ref_read(%r);
        let %w = ref_write(%r, 0);
        (%old, %v, ref_read(%r))
    }";
    assert_eq!(ints(text, &[5]), [5, 6, 0]);
}

#[test]
fn what_is_shared_is_evaluated_once_per_activation() {
    let text = "def @main(%x: int32) {
        %0 = ref(%x);
        let %bump = fn () { ref_write(%0, add(ref_read(%0), 1)) };
        let %a = %bump();
        let %b = %bump();
        ref_read(%0)
    }";
    assert_eq!(ints(text, &[5]), [7]);
    let text = "def @f(%n: int32) -> int32 {
        %0 = equal(%n, 0);
        %1 = multiply(%n, 2);
        if (%0) { %1 } else { add(%1, @f(subtract(%n, 1))) }
    }
    def @main(%n: int32) { @f(%n) }";
    assert_eq!(ints(text, &[4]), [20]);
}

#[test]
fn operators_and_constructors_are_values() {
    let text = "type Box[A] { Box1(A), }
    def @twice[A](%f: fn (A, A) -> A, %x: A) -> A { %f(%x, %f(%x, %x)) }
    def @main(%x: int32) {
        let %op = add;
        let %box = fn (%v: int32) { Box1(%v) };
        (@twice(add, %x), %op(%x, 1), %box(%x))
    }";
    assert_eq!(ints(text, &[5]), [15, 6, 5]);
}

#[test]
fn unknown_extents_fit_known_ones() {
    let text = "def @f(%x: Tensor[(?), float32]) { add(%x, %x) }
    def @main(%x: Tensor[(3), float32]) { (@f(%x), %x) }";
    assert_eq!(main_type(text), "(Tensor[(?), float32], Tensor[(3), float32])");
}

#[test]
fn refusals_say_what_and_where() {
    let cases = [
        ("def @main(%x) { %x }", "`%x` can't be inferred"),
        ("def @main(%x: int32) { @f(%x) }\ndef @f(%x: float32) { %x }", "test.relay:1:"),
        ("def @main(%x: int32) { add(%x, 1f) }", "`add`"),
        ("def @main(%x: int32) { add(%x) }", "`add` takes 2 arguments (`lhs`, `rhs`), but is given 1"),
        ("def @main(%x: int32) { %x.0 }", "field 0 is taken of int32"),
        ("def @main(%x: int32) { if (%x) { 1 } else { 2 } }", "condition of `if` is int32, but should be bool"),
        ("def @main(%x: bool) { if (%x) { 1 } else { 2f } }", "`else` branch is float32, but should be int32"),
        ("def @main(%x: int32) { let %f = fn (%g) { %g(%g) }; 1 }", "would contain itself"),
        ("def @main(%x: int32) { %x(1) }", "`%x` is int32, which can't be called"),
        (
            "type T { A, B(int32), }\ndef @main(%x: T) { match (%x) { A => { 1 }, } }",
            "does not cover all values (no clause for a value made of `B`)",
        ),
        (
            "type T { A, B((T, T)), }\ndef @main(%x: T) { match (%x) { A => { 1 }, B((A, _)) => { 2 }, } }",
            "made of `B`, `B`",
        ),
    ];
    for (text, wanted) in cases {
        let found = refusal(text);
        assert!(found.contains(wanted), "{text}: {found}");
    }
}

#[test]
fn incomplete_matches_are_refused_when_they_miss() {
    let text = "type T { A, B(int32), }
    def @main(%x: int32) { match? (B(%x)) { A => { 1 }, } }";
    let m = typed(text).unwrap_or_else(|e| panic!("{e}"));
    let e = interp::run(&m, "main", vec![Tensor::scalar(1i32).into()]).expect_err("no clause");
    assert!(e.to_string().contains("no clause"), "{e}");
}

#[test]
fn arguments_are_checked() {
    let m = typed("def @main(%x: Tensor[(2), float32]) { %x }").unwrap_or_else(|e| panic!("{e}"));
    let e = interp::run(&m, "main", vec![]).expect_err("too few").to_string();
    assert!(e.contains("1 parameters") && e.contains("`%x`"), "{e}");
    let e = interp::run(&m, "main", vec![Tensor::scalar(1i32).into()]).expect_err("wrong type").to_string();
    assert!(e.contains("`%x` of `@main` is int32, but should be Tensor[(2), float32]"), "{e}");
}

#[test]
fn known_calls_are_inlined_away() {
    let text = "def @twice[A](%f: fn (A) -> A, %x: A) -> A { %f(%f(%x)) }
    def @main(%x: int32) {
        let %cell = fn (%a: int32, %s: (int32, int32)) {
            let %n = add(%a, %s.0);
            (%n, (%n, add(%s.1, 1)))
        };
        let %one = %cell(%x, (1, 2));
        let %two = %cell(%one.0, %one.1);
        (%two.0, %two.1.1, @twice(fn (%y: int32) { add(%y, %x) }, 5))
    }";
    assert_eq!(ints(text, &[10]), [22, 4, 25]);
    assert_eq!(left_after_inlining(text), 0);
}

#[test]
fn what_only_a_loop_uses_stays_outside_of_it() {
    let text = "def @main(%n: int32) {
        let %w = add(%n, 5);
        let %f = fn (%k: int32) {
            let %loop = fn (%i: int32, %s: int32) {
                if (less(%i, 3)) { %loop(add(%i, 1), add(%s, add(%w, %k))) } else { %s }
            };
            %loop(0, 0)
        };
        (%f(1), %f(add(%n, 2)))
    }";
    assert_eq!(ints(text, &[10]), [48, 81]);
    // The loop twice, each with its own name, its closure and its first and inner call; `w` and the second `k` bound outside.
    assert_eq!(left_after_inlining(text), 2 * 4 + 2);
}

#[test]
fn inlining_keeps_the_order_of_effects() {
    let text = "def @bump(%r: ref(int32), %by: int32) { let %u = ref_write(%r, add(ref_read(%r), %by)); ref_read(%r) }
    def @main(%x: int32) {
        let %r = ref(%x);
        let %pair = fn (%a: int32, %b: int32) { (%b, %a, ref_read(%r)) };
        let %p = %pair(@bump(%r, 1), @bump(%r, 10));
        let %dropped = (@bump(%r, 100), 7).1;
        (%p, %dropped, ref_read(%r))
    }";
    assert_eq!(ints(text, &[0]), [11, 1, 11, 7, 111]);
}

#[test]
fn weights_get_the_types_that_follow_from_attributes() {
    let parameters = |text: &str, wanted: &[&str]| {
        let m = typed(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let found: Vec<String> = m.param_types("main").iter().map(|t| t.to_string()).collect();
        assert_eq!(found[1..], *wanted, "{text}");
    };
    let data = "%x: Tensor[(2, 6, 8, 8), float32]";
    let of = |args: &str, body: &str| format!("def @main({data}, {args}) {{ {body} }}");
    parameters(&of("%w", "nn.conv2d(%x, %w, channels=4, kernel_size=[3, 5])"), &["Tensor[(4, 6, 3, 5), float32]"]);
    parameters(
        &of("%w", "nn.conv2d(%x, %w, channels=8, kernel_size=[3, 3], kernel_layout=\"OIHW2i4o\")"),
        &["Tensor[(2, 3, 3, 3, 2, 4), float32]"],
    );
    parameters(
        &of("%w", "nn.conv2d_transpose(%x, %w, channels=4, kernel_size=[2, 2], groups=2)"),
        &["Tensor[(6, 2, 2, 2), float32]"],
    );
    parameters(
        "def @main(%x: Tensor[(?, 7), float16], %w, %b) {
            nn.bias_add(nn.dense(%x, %w, units=3), %b) }",
        &["Tensor[(3, 7), float16]", "Tensor[(3), float16]"],
    );
    let vector = "Tensor[(6), float32]";
    parameters(&of("%g, %b, %m, %v", "nn.batch_norm(%x, %g, %b, %m, %v)"), &[vector; 4]);
    parameters(&of("%g, %b", "nn.group_norm(%x, %g, %b, num_groups=2)"), &[vector; 2]);
    parameters(&of("%a", "nn.prelu(%x, %a)"), &[vector]);
    // What the program says goes first, and is checked.
    parameters(
        &of("%w: Tensor[(4, 6, 1, 1), int8]", "nn.conv2d(%x, %w, channels=4, kernel_size=[1, 1])"),
        &["Tensor[(4, 6, 1, 1), int8]"],
    );
    let e = refusal(&of("%w", "nn.conv2d(%x, %w, kernel_size=[3, 5])"));
    assert!(e.contains("can't be inferred"), "{e}");
}

#[test]
fn values_that_hold_nothing_have_a_type() {
    let text = "type Maybe[A] { Some(A), None, }
    def @main(%x: int32) {
        match (if (False) { Some(%x) } else { None }) { Some(%y) => { add(%x, 1) }, None => { %x }, }
    }";
    assert_eq!(ints(text, &[5]), [5]);
    let text =
        "type Maybe[A] { Some(A), None, } def @main(%x: int32) { match (None) { Some(_) => { 1 }, None => { %x }, } }";
    assert_eq!(ints(text, &[5]), [5]);
    let text = "type Maybe[A] { Some(A), None, } def @main() { let %f = fn (%y) { Some(%y) }; 1 }";
    assert!(refusal(text).contains("the type of parameter `%y` can't be inferred"), "{}", refusal(text));
}
