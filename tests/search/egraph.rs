//! Whole programs through the e-graph: without rules they come back equal; with rules they compute the same.

use crate::common::{Data, Rng, random_tensor};
use resat::{
    cost::{NodeCount, Roofline},
    egraph::encode,
    extract::{DagGreedy, TreeGreedy},
    infer::{TypedModule, infer_types},
    interp,
    ir::{Expr, Module},
    relay::text::parse_module,
    saturate::{Limits, Optimized, Ruleset, Stop, optimize},
    target::Target,
    tensor::{Tensor, Value},
};

/// One program per construct of the language.
const PROGRAMS: &[(&str, &str)] = &[
    ("straight", "def @main(%x: Tensor[(2, 3), float32]) { nn.relu(add(%x, %x)) }"),
    ("sharing", "def @main(%x: Tensor[(2), float32]) { %0 = exp(%x); %1 = add(%0, %0); (%1, add(%1, %0)) }"),
    ("parameter as result", "def @main(%x: Tensor[(2), float32]) { %x }"),
    ("constant as result", "def @main() { 1.5f }"),
    ("empty tuple", "def @main() { () }"),
    (
        "tuples and projections",
        "def @main(%x: Tensor[(2), float32]) { %0 = (%x, (exp(%x), %x)); %1 = %0.1; (%1.0, %0.0) }",
    ),
    ("let", "def @main(%x: Tensor[(2), float32]) { let %a = exp(%x); let %b = add(%a, %a); let %c = %b; add(%c, %a) }"),
    ("let under a tuple", "def @main(%x: Tensor[(2), float32]) { ((let %a = exp(%x); add(%a, %a)), %x) }"),
    ("if", "def @main(%c: bool, %x: Tensor[(2), float32]) { if (%c) { exp(%x) } else { add(%x, %x) } }"),
    (
        "if with captures",
        "def @main(%c: bool, %x: Tensor[(2), float32]) {
           %0 = exp(%x);
           let %a = add(%0, %x);
           %1 = if (%c) { add(%0, %a) } else { %a };
           add(%1, %0)
         }",
    ),
    (
        "nested ifs share",
        "def @main(%c: bool, %d: bool, %x: Tensor[(2), float32]) {
           let %a = exp(%x);
           if (%c) { if (%d) { add(%a, %x) } else { nn.relu(%a) } } else { if (%d) { %a } else { exp(%a) } }
         }",
    ),
    (
        "both branches the same",
        "def @main(%c: bool, %x: Tensor[(2), float32]) { %0 = exp(%x); if (%c) { %0 } else { %0 } }",
    ),
    (
        "closure",
        "def @main(%x: Tensor[(2), float32]) {
           let %k = exp(%x);
           let %f = fn (%y: Tensor[(2), float32]) { add(%y, %k) };
           add(%f(%x), %f(%k))
         }",
    ),
    (
        "closure called where it stands",
        "def @main(%x: Tensor[(2), float32]) { %0 = fn (%y: Tensor[(2), float32]) { add(%y, %x) }; %0(exp(%x)) }",
    ),
    (
        "functions as values",
        "def @main(%c: bool, %x: Tensor[(2), float32]) {
           let %g = fn (%h: fn (Tensor[(2), float32]) -> Tensor[(2), float32]) { %h(%h(%x)) };
           let %f = if (%c) { fn (%y: Tensor[(2), float32]) { add(%y, %x) } } else { @twice };
           %g(%f)
         }
         def @twice(%x: Tensor[(2), float32]) -> Tensor[(2), float32] { add(%x, %x) }",
    ),
    (
        "several functions",
        "def @f(%x: Tensor[(2), float32]) -> Tensor[(2), float32] { exp(%x) }
         def @g(%x: Tensor[(2), float32]) -> Tensor[(2), float32] { @f(@f(%x)) }
         def @main(%x: Tensor[(2), float32]) { (@f(%x), @g(%x)) }",
    ),
    (
        "recursion of a global",
        "type List[A] { Cons(A, List[A]), Nil }
         def @down(%n: List[bool], %x: Tensor[(2), float32]) -> Tensor[(2), float32] {
           match (%n) { Cons(%h, %t) => add(@down(%t, %x), %x), Nil => %x }
         }
         def @main(%c: bool, %x: Tensor[(2), float32]) { @down(Cons(%c, Cons(%c, Nil)), %x) }",
    ),
    (
        "recursion of a closure",
        "type List[A] { Cons(A, List[A]), Nil }
         def @main(%c: bool, %x: Tensor[(2), float32]) {
           let %k = exp(%x);
           let %f: fn (List[bool]) -> Tensor[(2), float32] = fn (%n: List[bool]) -> Tensor[(2), float32] {
             match (%n) { Cons(%h, %t) => { let %r = %f(%t); if (%h) { add(%r, %k) } else { %r } }, Nil => %x }
           };
           let %l = Cons(%c, Cons(%c, Nil));
           add(%f(%l), %k)
         }",
    ),
    (
        "a call that both branches share stays lazy",
        "type List[A] { Cons(A, List[A]), Nil }
         def @f(%n: List[bool], %c: bool, %x: Tensor[(2), float32]) -> Tensor[(2), float32] {
           match (%n) {
             Cons(%h, %t) => {
               %0 = @f(%t, %c, %x);
               if (%h) { add(%0, %x) } else { if (%c) { %0 } else { exp(%0) } }
             },
             Nil => %x
           }
         }
         def @main(%c: bool, %x: Tensor[(2), float32]) { @f(Cons(%c, Nil), %c, %x) }",
    ),
    (
        "match",
        "type Either[A, B] { Left(A), Right(B), Both(A, B) }
         def @main(%c: bool, %x: Tensor[(2), float32]) {
           let %e = if (%c) { Left(exp(%x)) } else { Both(%x, (%x, %x)) };
           %0 = exp(%x);
           match (%e) {
             Left(%a) => add(%a, %0),
             Right((%p, _)) => %p,
             Both(%a, (%b, _)) => add(%a, add(%b, %0)),
           }
         }",
    ),
    (
        "references",
        "def @main(%x: Tensor[(2), float32]) {
           let %r = ref(%x);
           let %a = ref_read(%r);
           let %k = exp(%a);
           let %u = ref_write(%r, add(%k, %x));
           let %b = ref_read(%r);
           let %v = ref_write(%r, exp(%b));
           (%a, %b, ref_read(%r), %k)
         }",
    ),
    (
        "references in branches and closures",
        "def @main(%c: bool, %x: Tensor[(2), float32]) {
           let %r = ref(%x);
           let %f = fn (%y: Tensor[(2), float32]) { let %u = ref_write(%r, add(%y, ref_read(%r))); ref_read(%r) };
           let %a = %f(%x);
           let %w = if (%c) { ref_write(%r, exp(%a)) } else { () };
           let %b = %f(%a);
           (%a, %b, ref_read(%r))
         }",
    ),
    (
        "an effect with two users",
        "def @main(%x: Tensor[(2), float32]) {
           let %r = ref(%x);
           %0 = ref_read(%r);
           let %u = ref_write(%r, exp(%0));
           (%0, ref_read(%r), add(%0, %0))
         }",
    ),
    (
        "a fused kernel stays",
        "def @main(%x: Tensor[(2), float32]) {
           %0 = fn (%y: Tensor[(2), float32], Primitive=1) { nn.relu(nn.relu(%y)) };
           %0(exp(%x))
         }",
    ),
    (
        "polymorphic function",
        "def @id[A](%x: A) -> A { %x }
         def @main(%x: Tensor[(2), float32]) { (@id(%x), @id((%x, %x))) }",
    ),
    ("unknown extents", "def @main(%x: Tensor[(?, 2), float32]) { add(exp(%x), %x) }"),
];

fn typed(name: &str, text: &str) -> TypedModule {
    let text = format!("#[version = \"0.0.5\"]\n{text}");
    let module = parse_module(name, &text).unwrap_or_else(|e| panic!("{name}: {}", e.render()));
    infer_types(module).unwrap_or_else(|e| panic!("{name}: {}", e.render()))
}

fn arguments(m: &TypedModule, seed: u64) -> Vec<Value> {
    let mut rng = Rng(seed);
    m.param_types("main")
        .into_iter()
        .map(|ty| Value::from(random_tensor(ty.as_tensor().expect("programs here take tensors"), Data::Tame, &mut rng)))
        .collect()
}

/// Results for several arguments (both values of every condition among them).
fn results(m: &Module, typed: &TypedModule) -> Vec<Vec<Tensor>> {
    (0..6)
        .map(|seed| interp::run_flat(m, "main", arguments(typed, seed)).unwrap_or_else(|e| panic!("{}", e.render())))
        .collect()
}

fn identity(m: &TypedModule) -> Module {
    let mut encoded = encode(m);
    for id in encoded.regions().to_vec() {
        let region = encoded.open(id, false);
        let term = region.original();
        encoded.close(region, term, 0.0);
    }
    encoded.finish()
}

fn run(m: &TypedModule, rules: &[Ruleset]) -> Optimized {
    let target = Target::parse("llvm -mcpu=x86-64-v4 -num-cores=2").expect("a target");
    optimize(m, rules, &Limits::default(), &NodeCount, &DagGreedy::default(), &target)
}

/// The module's reachable operator calls, by name.
fn calls(m: &Module) -> Vec<&'static str> {
    let ids = resat::ir::reachable(m, m.functions().map(|(_, f)| f));
    ids.into_iter().filter_map(|id| m.op_call(id)).map(|(op, ..)| op.op().name()).collect()
}

#[test]
fn every_construct_comes_back() {
    for (name, text) in PROGRAMS {
        let m = typed(name, text);
        let back = identity(&m);
        let again = infer_types(back.clone()).unwrap_or_else(|e| panic!("{name}: {}", e.render()));
        assert_eq!(m.result_type("main"), again.result_type("main"), "{name}");
        assert_eq!(results(&m, &m), results(&back, &m), "{name}");
        // A second time through changes nothing: no code grows.
        let twice = identity(&again);
        assert_eq!(calls(&back).len(), calls(&twice).len(), "{name}");
    }
}

#[test]
fn every_construct_is_optimized_and_computes_the_same() {
    let rules = resat::rules::load(
        "test",
        "(ruleset t (rule relu (nn.relu (nn.relu ?x)) => (nn.relu ?x)) \
        (rule commute :grows true (add ?x ?y) => (add ?y ?x)))",
    );
    let rules = match rules {
        Ok(rules) => rules,
        Err(_) => resat::rules::shipped(),
    };
    for (name, text) in PROGRAMS {
        let m = typed(name, text);
        let new = run(&m, &rules);
        assert_eq!(results(&m, &m), results(&new.module, &m), "{name}");
        assert!(new.report.cost_after <= new.report.cost_before, "{name}: {}", new.report);
        assert_eq!(new.report.faults, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn the_result_does_not_depend_on_the_run() {
    let rules = resat::rules::shipped();
    for (name, text) in PROGRAMS {
        let m = typed(name, text);
        let (a, b) = (run(&m, &rules), run(&m, &rules));
        let exprs = |m: &Module| m.ids().map(|id| format!("{:?}", m[id])).collect::<Vec<_>>();
        assert_eq!(exprs(&a.module), exprs(&b.module), "{name}");
        assert_eq!((a.report.nodes, a.report.unions()), (b.report.nodes, b.report.unions()), "{name}");
    }
}

#[test]
fn rules_reach_into_every_region() {
    let rules = resat::rules::shipped();
    let m = typed(
        "regions",
        "def @f(%x: Tensor[(2), float32]) -> Tensor[(2), float32] { nn.relu(nn.relu(%x)) }
         def @main(%c: bool, %x: Tensor[(2), float32]) {
           let %f = fn (%y: Tensor[(2), float32]) { nn.relu(nn.relu(%y)) };
           if (%c) { nn.relu(nn.relu(@f(%x))) } else { %f(%x) }
         }",
    );
    let new = run(&m, &rules);
    assert_eq!(calls(&m).len(), 6);
    assert_eq!(calls(&new.module).len(), 3, "{}", new.report);
    assert_eq!(new.report.regions_changed, 3);
    assert_eq!(new.report.stop, Stop::Saturated);
}

#[test]
fn a_fused_kernel_is_not_looked_into() {
    let (name, text) = PROGRAMS.iter().find(|p| p.0 == "a fused kernel stays").expect("it is there");
    let new = run(&typed(name, text), &resat::rules::shipped());
    assert_eq!(calls(&new.module).iter().filter(|n| **n == "nn.relu").count(), 2);
}

#[test]
fn common_subexpressions_are_one() {
    let m = typed("cse", "def @main(%x: Tensor[(2), float32]) { add(exp(%x), exp(%x)) }");
    assert_eq!(calls(&identity(&m)), ["exp", "add"]);
}

#[test]
fn limits_hold_and_are_named() {
    let m = typed("small", "def @main(%x: Tensor[(2), float32]) { nn.relu(nn.relu(nn.relu(nn.relu(%x)))) }");
    let rules = resat::rules::shipped();
    let target = Target::host();
    let run = |limits: Limits| optimize(&m, &rules, &limits, &Roofline, &TreeGreedy, &target).report.stop;
    assert_eq!(run(Limits::default()), Stop::Saturated);
    assert_eq!(run(Limits { unions: 1, ..Limits::default() }), Stop::Unions);
    assert_eq!(run(Limits { iterations: 1, ..Limits::default() }), Stop::Iterations);
    assert_eq!(run(Limits { nodes: 3, ..Limits::default() }), Stop::Nodes);
    assert_eq!(run(Limits { bytes: 900, ..Limits::default() }), Stop::Memory);
    assert_eq!(run(Limits { time: std::time::Duration::ZERO, ..Limits::default() }), Stop::Time);
    let cancel = resat::cancel::Cancel::new();
    assert_eq!(run(Limits { cancel: cancel.clone(), ..Limits::default() }), Stop::Saturated);
    cancel.cancel();
    assert_eq!(run(Limits { cancel, ..Limits::default() }), Stop::Cancelled);
}

#[test]
fn long_programs_need_no_stack() {
    let n = 10_000;
    let lets: String = (0..n).map(|i| format!("let %v{} = exp(%v{i});\n", i + 1)).collect();
    let m = typed("lets", &format!("def @main(%v0: Tensor[(2), float32]) {{ {lets} %v{n} }}"));
    assert_eq!(calls(&identity(&m)).len(), n);
    let refs: String = (0..2000).map(|i| format!("let %u{i} = ref_write(%r, exp(ref_read(%r)));\n")).collect();
    let m =
        typed("effects", &format!("def @main(%x: Tensor[(2), float32]) {{ let %r = ref(%x); {refs} ref_read(%r) }}"));
    assert_eq!(calls(&identity(&m)).len(), 2000);
    let ifs = "if (%c) { exp(".repeat(1000) + "%x" + &") } else { %x }".repeat(1000);
    let m = typed("branches", &format!("def @main(%c: bool, %x: Tensor[(2), float32]) {{ {ifs} }}"));
    assert_eq!(calls(&identity(&m)).len(), 1000);
}

#[test]
fn variables_stay_bound_once() {
    for (name, text) in PROGRAMS {
        let back = identity(&typed(name, text));
        let mut bound = Vec::new();
        for id in resat::ir::reachable(&back, back.functions().map(|(_, f)| f)) {
            match &back[id] {
                Expr::Func(f) => bound.extend(&f.params),
                Expr::Let { var, .. } => bound.push(*var),
                Expr::Match { clauses, .. } => clauses.iter().for_each(|c| bound.extend(c.pattern.vars())),
                _ => {}
            }
        }
        let all = bound.len();
        bound.sort_unstable();
        bound.dedup();
        assert_eq!(all, bound.len(), "{name}");
    }
}

/// Where extents are unknown, prices see numbers that follow from those of the inputs: a side that is halved is half as long.
#[test]
fn unknown_extents_are_priced_as_they_follow() {
    let text = "def @main(%x: Tensor[(?, 8, ?, ?), float32]) {
        %0 = nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2]);
        nn.relu(nn.max_pool2d(%0, pool_size=[2, 2], strides=[2, 2])) }";
    let m = typed("halved", text);
    let mut encoded = encode(&m);
    let outermost = encoded.regions()[0];
    let region = encoded.open(outermost, false);
    let sides = |class: &resat::egraph::Fact| -> Option<Vec<i64>> {
        assert_eq!(class.tensor()?.known_shape(), None, "its extents are unknown");
        class.priced_type()?.as_tensor()?.known_shape().map(|shape| shape[2..].to_vec())
    };
    let mut found: Vec<Vec<i64>> = region.graph.classes().filter_map(|c| sides(&c.data)).collect();
    found.sort_unstable();
    let [least, relu, half, whole] = &found[..] else { panic!("{found:?}") };
    assert_eq!((least, half[0]), (relu, 2 * least[0]));
    assert_eq!(whole[0], 4 * least[0]);
}
