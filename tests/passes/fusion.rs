//! Kernels as e-nodes: which the ruleset `fusion` forms, what they cost, and what extraction makes of them.

use std::sync::{Arc, Mutex};

use crate::{
    common::{Data, Rng, difference, random_tensor},
    programs::{assert_same, program, run, typed},
};
use resat::{
    cost::{CostModel, Flops, KernelCall, KernelView, NodeCount, Roofline, Source, parse},
    extract::{DagGreedy, Extractor, Imported, to_json},
    interp,
    ir::{Expr, ExprId, Module, Type},
    ops::{kernel::LARGEST_KERNEL, make_attrs, op},
    pass::{Pass, PassContext, Settings, bind_params, fuse, sequence},
    relay::text,
    saturate::{Became, Extracted, explain},
    target::Target,
    tensor::{DType, Tensor, Value},
};

fn target() -> Target {
    Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal")
}

fn settings() -> Settings {
    Settings::new(target())
}

/// The operators of each primitive function that `main` calls, in order.
fn kernels(m: &Module) -> Vec<String> {
    let ops = |f: ExprId| {
        let calls = resat::ir::reachable(m, [m.func(f).body]).into_iter().filter_map(|e| m.op_call(e));
        calls.map(|(op, _, _)| op.op().name()).collect::<Vec<_>>().join("+")
    };
    let all = resat::ir::reachable(m, [m.function("main").expect("there is a main").body]);
    all.into_iter().filter(|&e| matches!(&m[e], Expr::Func(f) if f.is_primitive())).map(ops).collect()
}

/// What a program costs whose operators are all in primitive functions.
fn price(m: &Module, model: &dyn CostModel) -> f64 {
    let typed = typed(m);
    let (m, target) = (typed.module(), target());
    let mut sum = 0.0;
    for call in resat::ir::reachable(m, [m.function("main").expect("there is a main").body]) {
        let Expr::Call { callee, args, .. } = &m[call] else { continue };
        let Expr::Func(f) = &m[*callee] else { continue };
        let types: Vec<Type> = f.params.iter().map(|&p| typed.var_ty(p).clone()).collect();
        let fixed: Vec<bool> = args.iter().map(|&a| is_constant(m, a)).collect();
        let body = resat::ir::reachable(m, [f.body]);
        let outs: Vec<Type> = body.iter().map(|&e| typed.ty(e).clone()).collect();
        let mut calls: Vec<KernelCall> = Vec::new();
        let mut sources: Vec<Option<(Source, bool)>> = vec![None; m.len()];
        for (&e, out) in body.iter().zip(&outs) {
            sources[e.index()] = Some(match &m[e] {
                Expr::Op(_) => continue,
                Expr::Var(v) => {
                    let at = f.params.iter().position(|p| p == v).expect("a parameter");
                    (Source::Arg(at), fixed[at])
                }
                Expr::Constant(t) => (Source::Const(t), true),
                Expr::Tuple(fields) => {
                    let of = fields.iter().map(|f| sources[f.index()].clone().expect("older"));
                    let (fields, fixed): (Vec<Source>, Vec<bool>) = of.unzip();
                    (Source::Tuple(fields), fixed.iter().all(|&f| f))
                }
                _ => {
                    let (op, args, attrs) = m.op_call(e).expect("kernels call operators");
                    let of = args.iter().map(|a| sources[a.index()].clone().expect("older"));
                    let (sources, constant) = of.unzip();
                    let args = args.iter().map(|&a| typed.ty(a).clone()).collect();
                    calls.push(KernelCall { op, attrs, sources, args, constant, out });
                    (Source::Call(calls.len() - 1), false)
                }
            });
        }
        if !fixed.iter().all(|&c| c) {
            sum += model.kernel(&KernelView { calls: &calls, args: &types, constant: &fixed, target: &target });
        }
    }
    sum
}

/// Whether an expression depends on constants alone.
fn is_constant(m: &Module, e: ExprId) -> bool {
    let all = resat::ir::reachable(m, [e]);
    all.into_iter().all(|e| !matches!(m[e], Expr::Var(_)) || matches!(m[e], Expr::Func(_)))
}

const X: &str = "%x: Tensor[(1, 16, 56, 56), float32]";

fn conv(x: &str, w: &str) -> String {
    format!("nn.conv2d({x}, {w}, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3])")
}

#[test]
fn epilogues_join_their_contraction_and_fusion_leaves_them_alone() {
    let params = "%x: Tensor[(1, 4, 9, 9), float32], %w: Tensor[(16, 4, 3, 3), float32], %b: Tensor[(16), float32]";
    let m = program(params, &format!("cumsum(exp(nn.relu(nn.bias_add({}, %b))), axis=1)", conv("%x", "%w")));
    let (fused, report) = run(&m, "Saturate(fusion)", &settings());
    assert_eq!(kernels(&fused), ["nn.conv2d+nn.bias_add+nn.relu+exp"]);
    assert_same(&m, &fused);
    let shown = report.to_string();
    for part in ["2 kernels", ": nn.conv2d+nn.bias_add+nn.relu+exp\n", ": cumsum\n", "fusion/epilogue", "fusion/chain"]
    {
        assert!(shown.contains(part), "`{part}` is not in\n{shown}");
    }
    let (again, _) = run(&fused, "FuseOps", &settings());
    assert_eq!(kernels(&again), ["nn.conv2d+nn.bias_add+nn.relu+exp", "cumsum"]);
    let (apart, _) = run(&fused, "DefuseOps", &settings());
    assert_eq!(text::print_module(&apart), text::print_module(typed(&m).module()));
}

/// Parameters `w0`, `b0` and so on of a program become constants of these shapes.
fn with_weights(m: &Module, shapes: &[(&str, &[usize])]) -> Module {
    let mut rng = Rng(5);
    let tensor = |&(name, shape): &(&str, &[usize])| {
        let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let Type::Tensor(t) = Type::tensor(&shape, DType::F32) else { unreachable!("it is one") };
        (name.into(), random_tensor(&t, Data::Tame, &mut rng))
    };
    bind_params(m, &shapes.iter().map(tensor).collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn contractions_keep_their_epilogues_in_other_layouts() {
    // Of the blocked values, the e-graph holds the way back to the plain layout as well: that is no other use.
    let conv = "padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3])";
    let body = format!(
        "let %a = clip(add(nn.conv2d(%x, %w0, {conv}, %b0), a_min=0f, a_max=6f);
        clip(add(nn.conv2d(%a, %w1, {conv}, %b1), a_min=0f, a_max=6f)"
    );
    let m = program(
        "%x: Tensor[(1, 32, 28, 28), float32], %w0: Tensor[(32, 32, 3, 3), float32], %b0: Tensor[(32, 1, 1), float32],
        %w1: Tensor[(32, 32, 3, 3), float32], %b1: Tensor[(32, 1, 1), float32]",
        &body,
    );
    let shapes: [(&str, &[usize]); 4] =
        [("w0", &[32, 32, 3, 3]), ("b0", &[32, 1, 1]), ("w1", &[32, 32, 3, 3]), ("b1", &[32, 1, 1])];
    let m = with_weights(&m, &shapes);
    // Sums of Winograd's algorithm would not be the same bits.
    let mut settings = settings();
    settings.without.push("winograd-blocks/winograd-blocked".into());
    let (fused, report) = run(&m, "Inline,Saturate(all, fusion),FoldConstant,FuseOps", &settings);
    let all = kernels(&fused);
    // The last transform moves what it can take in.
    assert!(all.iter().any(|k| k == "nn.contrib_conv2d_NCHWc+add+clip"), "{all:?}\n{report}");
    assert_same(&m, &fused);
}

#[test]
fn a_product_s_forms_are_weighed_with_their_epilogues() {
    let m = program(
        "%x: Tensor[(64, 256), float32], %w0: Tensor[(256, 256), float32], %b0: Tensor[(256), float32]",
        "exp(negative(nn.relu(add(nn.dense(%x, %w0), %b0))))",
    );
    let m = with_weights(&m, &[("w0", &[256, 256]), ("b0", &[256])]);
    let (fused, report) = run(&m, "Saturate(all, fusion),FoldConstant,FuseOps", &settings());
    assert_eq!(kernels(&fused), ["nn.contrib_dense_pack+add+nn.relu+negative+exp"], "{report}");
    assert_same(&m, &fused);
}

#[test]
fn reductions_take_what_makes_their_elements() {
    let m = program("%x: Tensor[(64, 512), float32]", "sqrt(sum(exp(multiply(%x, %x)), axis=[1]))");
    let (fused, _) = run(&m, "Saturate(fusion)", &settings());
    // A reduction with something before it takes nothing behind it.
    assert_eq!(kernels(&fused), ["multiply+exp+sum"]);
    assert_same(&m, &fused);
}

#[test]
fn whole_kernels_decide_where_operators_by_themselves_would_not() {
    // What is computed after a running sum is a kernel more; before it, it runs where the elements are moved.
    let rules = "(ruleset before :numerics real)
        ;; cumsum(x) * 2 = cumsum(-(-x * 2)).
        (rule scale-first (multiply (cumsum {..?a} ?x) (as ?c 2)) => (cumsum {..?a} (negative (multiply (negative ?x) ?c))))";
    let mut settings = settings();
    settings.rulesets = resat::rules::load("test.rules", rules).unwrap_or_else(|e| panic!("{e}"));
    let m = program("%x: Tensor[(256, 512), float32]", "multiply(cumsum(transpose(%x), axis=0), 2f)");
    let (by_operator, _) = run(&m, "Saturate(before),FuseOps", &settings);
    assert_eq!(kernels(&by_operator), ["transpose", "cumsum", "multiply"]);
    let (by_kernel, report) = run(&m, "Saturate(before, fusion),FuseOps", &settings);
    assert_eq!(kernels(&by_kernel), ["transpose+negative+multiply+negative", "cumsum"]);
    assert!(report.cost_after < price(&by_operator, &Roofline), "{report}");
    assert_same(&m, &by_kernel);
}

#[test]
fn what_is_shared_is_computed_again_only_where_that_is_cheaper() {
    let params = "%x: Tensor[(512, 512), float32], %y: Tensor[(512, 512), float32]";
    let m = program(params, "%0 = add(%x, %y);\n(nn.relu(%0), negative(%0))");
    let (fused, _) = run(&m, "Saturate(fusion)", &settings());
    // One large array written and read twice costs more than two read once more.
    assert_eq!(kernels(&fused), ["add+nn.relu", "add+negative"]);
    assert_same(&m, &fused);
    let m = program(
        &format!("{X}, %w: Tensor[(16, 16, 3, 3), float32]"),
        &format!("%0 = {};\n(nn.relu(%0), tanh(%0))", conv("%x", "%w")),
    );
    let (fused, _) = run(&m, "Saturate(fusion),FuseOps", &settings());
    assert_eq!(kernels(&fused), ["nn.conv2d", "nn.relu", "tanh"]);
}

#[test]
fn what_meets_again_in_one_kernel_is_computed_once() {
    let m = program("%x: Tensor[(8, 512), float32]", "%0 = exp(%x);\nadd(nn.relu(%0), multiply(tanh(%0), %0))");
    let (fused, _) = run(&m, "Saturate(fusion)", &settings());
    let found = kernels(&fused);
    assert_eq!((found.len(), found[0].matches("exp").count()), (1, 1), "{found:?}");
    assert_same(&m, &fused);
}

#[test]
fn chains_make_few_kernels_of_bounded_size() {
    for n in [100usize, 400] {
        let body: String = (0..n).map(|i| format!("%{} = {}(%{});\n", i + 1, ["exp", "tanh"][i % 2], i)).collect();
        let m = program("%x: Tensor[(4), float32]", &format!("%0 = nn.relu(%x);\n{body}sigmoid(%{n})"));
        let (fused, report) = run(&m, "Saturate(fusion)", &settings());
        assert!(report.nodes <= 5 * n, "{report}");
        let found = kernels(&fused);
        assert!(found.iter().all(|k| k.matches('+').count() < LARGEST_KERNEL), "{found:?}");
        assert!(found.len() <= 1 + n / 100, "{found:?}");
    }
}

#[test]
fn runs_are_the_same() {
    for published in &crate::networks::TENSAT[..2] {
        let m = (published.make)().module;
        let once = || text::print_module(&run(&m, "Saturate(fusion)", &settings()).0);
        assert_eq!(once(), once(), "{}", published.name);
    }
}

#[test]
fn programs_are_no_more_expensive_than_their_groups() {
    for published in crate::networks::TENSAT {
        let m = (published.make)().module;
        let grouped = price(&fuse(&typed(&m), LARGEST_KERNEL), &Roofline);
        let (fused, report) = run(&m, "Saturate(fusion)", &settings());
        let by_hand = price(&fuse(&typed(&fused), 1), &Roofline);
        println!("{}: grouped {grouped:.4e}, fused {:.4e}, again {by_hand:.4e}", published.name, report.cost_after);
        assert!(
            (report.cost_after - by_hand).abs() <= 1e-6 * by_hand,
            "{}: {} and {by_hand}",
            published.name,
            report.cost_after
        );
        assert!(report.cost_after <= 1.001 * grouped, "{}: {} and {grouped}", published.name, report.cost_after);
    }
}

#[test]
fn e_graphs_with_kernels_are_exported() {
    let m = program(&format!("{X}, %w: Tensor[(16, 16, 3, 3), float32]"), &format!("nn.relu({})", conv("%x", "%w")));
    let found: Arc<Mutex<Vec<(String, f64)>>> = Arc::default();
    let to = found.clone();
    let on_region = move |x: Extracted| {
        let cost = x.choice.cost(x.problem).expect("a program");
        to.lock().expect("nothing panics").push((to_json(x.problem, &x.region.graph).to_string(), cost));
    };
    let mut cx = PassContext { on_region: Some(Box::new(on_region)), ..PassContext::default() };
    sequence("Saturate(fusion)", &settings()).expect("legal").run(m, &mut cx).expect("runs");
    let found = found.lock().expect("nothing panics");
    let (json, cost) = &found[0];
    assert!(json.contains("kernel[nn.conv2d+nn.relu]"), "{json}");
    let imported = Imported::parse("test", json).unwrap_or_else(|e| panic!("{e}"));
    let choice = DagGreedy::default().extract(&imported.problem);
    assert!((choice.cost(&imported.problem).expect("a program") - cost).abs() < 1e-12);
}

#[test]
fn explanations_tell_what_runs_inside_of_which_kernel() {
    let m = program(&format!("{X}, %w: Tensor[(16, 16, 3, 3), float32]"), &format!("nn.relu({})", conv("%x", "%w")));
    let mut settings = settings();
    settings.limits.explanations = true;
    let seen: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let to = seen.clone();
    let on_region = move |mut x: Extracted| {
        for piece in explain(&mut x, &|_| true) {
            let became = match piece.became {
                Became::Inside { kernel } => format!("inside of {kernel}"),
                Became::Other { now, steps } => format!("{now} by {}", steps[0].rule),
                other => format!("{other:?}"),
            };
            to.lock().expect("nothing panics").push((piece.was, became));
        }
    };
    let mut cx = PassContext { on_region: Some(Box::new(on_region)), ..PassContext::default() };
    sequence("Saturate(fusion)", &settings).expect("legal").run(m, &mut cx).expect("runs");
    let seen = seen.lock().expect("nothing panics");
    assert_eq!(seen[0].1, "inside of kernel[nn.conv2d+nn.relu](%x, %w)");
    assert_eq!(seen[1].1, "kernel[nn.conv2d+nn.relu](%x, %w) by fusion/epilogue");
}

#[cfg(feature = "llvm")]
#[test]
fn kernels_become_machine_code() {
    use resat::driver::{Options, build};
    let programs = [
        (
            "%x: Tensor[(1, 4, 9, 9), float32], %w: Tensor[(16, 4, 3, 3), float32], %b: Tensor[(16), float32]",
            format!("exp(transpose(nn.relu(nn.bias_add({}, %b)), axes=[0, 2, 3, 1]))", conv("%x", "%w")),
        ),
        ("%x: Tensor[(64, 33), float32]", "sqrt(sum(exp(multiply(%x, %x)), axis=[1]))".to_owned()),
        ("%x: Tensor[(8, 51), float32]", "%0 = exp(%x);\nadd(nn.relu(%0), multiply(tanh(%0), %0))".to_owned()),
        (
            "%x: Tensor[(4, 6), float32], %y: Tensor[(4, 3), float32]",
            "%0 = (exp(%x), nn.relu(%y));\nmultiply(strided_slice(concatenate(%0, axis=1), begin=[1, 2], end=[3, 8], strides=[1, 1]), 2f)".to_owned(),
        ),
        ("%x: Tensor[(?, 5), float32]", "add(exp(reshape(%x, newshape=[-1])), 1f)".to_owned()),
    ];
    for (params, body) in programs {
        let m = typed(&program(params, &body));
        let mut rng = Rng(5);
        let types = m.entry("main").expect("there is a main").params.iter().map(|&p| m.var_ty(p).clone());
        let tensor = |ty: Type| random_tensor(ty.as_tensor().expect("tensors"), Data::Tame, &mut rng);
        let inputs: Vec<Tensor> = types.map(tensor).collect();
        let settings = Settings::new(Target::host());
        let passes = sequence("Saturate(fusion)", &settings).unwrap_or_else(|e| panic!("{e}"));
        let options = Options { passes: Some(Box::new(passes)), ..Options::new(settings) };
        let built = build(m.module().clone(), &[], options).unwrap_or_else(|e| panic!("{body}: {e}"));
        assert!(
            built.record().expect("it is built here").reports[0].kernels.iter().any(|k| k.name.contains('+')),
            "{body}: {}",
            built.record().expect("it is built here").reports[0]
        );
        let compiled = built.executable.run(&inputs).unwrap_or_else(|e| panic!("{body}: {e}"));
        let values = inputs.into_iter().map(Value::from).collect();
        let expected = interp::run_flat(&m, "main", values).unwrap_or_else(|e| panic!("{body}: {e}"));
        assert_eq!(compiled.len(), expected.len());
        for (x, y) in compiled.iter().zip(&expected) {
            assert_eq!(difference(x, y), None, "{body}");
        }
    }
}

#[test]
fn every_model_prices_kernels() {
    let x = Type::tensor(&[256, 256], DType::F32);
    let (exp, add) = (op("exp"), op("add"));
    let none = |op| make_attrs(op, &[]).expect("no attributes");
    let (a, b) = (none(exp), none(add));
    let target = target();
    let call = |op, attrs, sources: Vec<Source<'static>>| {
        let (args, constant) = (vec![x.clone(); sources.len()], vec![false; sources.len()]);
        KernelCall { op, attrs, sources, args, constant, out: &x }
    };
    let calls = [call(exp, &a, vec![Source::Arg(0)]), call(add, &b, vec![Source::Call(0), Source::Arg(0)])];
    let args = [x.clone()];
    let kernel = KernelView { calls: &calls, args: &args, constant: &[false], target: &target };
    let apart: Vec<KernelView> = calls
        .iter()
        .map(|c| KernelView { calls: std::slice::from_ref(c), args: &c.args, constant: &c.constant, target: &target })
        .collect();
    let separate = |m: &dyn CostModel| -> f64 { kernel.nodes().map(|n| m.cost(&n)).sum() };
    assert_eq!(NodeCount.kernel(&kernel), 2.0);
    assert_eq!(Flops.kernel(&kernel), separate(&Flops));
    let second = [call(add, &b, vec![Source::Arg(0), Source::Arg(1)])];
    let two = [x.clone(), x.clone()];
    let second = KernelView { calls: &second, args: &two, constant: &[false; 2], target: &target };
    let (together, alone) = (Roofline.kernel(&kernel), Roofline.kernel(&apart[0]) + Roofline.kernel(&second));
    assert!(together < 0.7 * alone, "{together} and {alone}");
    let weighted = parse("0.5*nodes + 2*flops", None).expect("legal");
    assert_eq!(weighted.kernel(&kernel), 0.5 * 2.0 + 2.0 * Flops.kernel(&kernel));
    let rows =
        r#"{"default": {"cost": 1}, "rows": [{"kernel": ["exp", "add"], "cost": 0.5}, {"op": "exp", "cost": 7}]}"#;
    let table = resat::cost::Table::parse("t.json", rows).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((table.kernel(&kernel), table.kernel(&second)), (0.5, 1.0));
    let program = kernel.program();
    assert_eq!(kernels(&program), ["exp+add"]);
    typed(&program);
}

/// What computes the values that decide a call's extents is no part of its kernel, also where these extents are known.
#[cfg(feature = "llvm")]
#[test]
fn deciding_values_are_computed_apart() {
    use resat::driver::{Options, build};
    let body = "%0 = reshape(cast(%x, dtype=\"int64\"), newshape=[-1]);
        collapse_sum_to(cast(%x, dtype=\"float32\"), strided_slice(%0, begin=[0], end=[0], strides=[1]))";
    let m = typed(&program("%x: Tensor[(2, 3), int8]", body));
    let x = Tensor::from_i64_fn(DType::I8, &[2, 3], |i| i as i64 - 7);
    for passes in ["FuseOps", "default"] {
        let settings = Settings::new(Target::host());
        let passes = sequence(passes, &settings).unwrap_or_else(|e| panic!("{e}"));
        let options = Options { passes: Some(Box::new(passes)), ..Options::new(settings) };
        let built = build(m.module().clone(), &[], options).unwrap_or_else(|e| panic!("{e}"));
        let y = built.executable.run(std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(y[0].as_slice::<f32>(), [-27.0]);
    }
}
