//! `ConvertLayout`: in every situation of a table it leaves no more transforms than TVM does and the results are the same; a network
//! like ResNet-50 keeps two; random networks in random layouts compute what they did.

mod networks;
mod situations;

use resat::{
    infer::{TypedModule, infer_types},
    interp,
    ir::{Expr, Module, children, reachable},
    pass::{ConvertLayout, Pass, PassContext, Settings, sequence},
    relay::text,
    target::Target,
    tensor::{DType, Tensor},
};
use situations::{SITUATIONS, Situation};

fn parse(name: &str, text: &str) -> Module {
    text::parse_module(name, text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"))
}

fn settings() -> Settings {
    Settings::new(Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal"))
}

/// What the passes make of a module, and what the last of them notes.
fn convert(name: &str, module: Module, passes: &str) -> (TypedModule, PassContext) {
    let mut cx = PassContext::default();
    let passes = sequence(passes, &settings()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let module = passes.run(module, &mut cx).unwrap_or_else(|e| panic!("{name}: {e}"));
    for report in &cx.reports {
        assert!(report.refusals.is_empty() && report.faults.is_empty(), "{name}: {report}");
    }
    (infer_types(module).unwrap_or_else(|e| panic!("{name}: {e}")), cx)
}

/// Transforms of what is not constant.
fn transforms(m: &Module) -> usize {
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    let mut constant = vec![false; m.len()];
    let mut count = 0;
    for e in ids {
        let mut parts = Vec::new();
        children(&m[e], |c| parts.push(c));
        let known = |c: &resat::ir::ExprId| constant[c.index()] || matches!(m[*c], Expr::Op(_));
        constant[e.index()] = match &m[e] {
            Expr::Constant(_) => true,
            Expr::Call { .. } | Expr::Tuple(_) | Expr::Proj(..) => !parts.is_empty() && parts.iter().all(known),
            _ => false,
        };
        let moves = m.op_call(e).is_some_and(|(op, ..)| ["layout_transform", "transpose"].contains(&op.op().name()));
        count += (moves && !constant[e.index()]) as usize;
    }
    count
}

/// How many calls of an operator have an attribute of this value.
fn calls(m: &Module, op: &str, field: &str, value: &str) -> usize {
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    let is = |&&e: &&resat::ir::ExprId| {
        m.op_call(e).is_some_and(|(o, _, attrs)| {
            o.op().name() == op && attrs.get(field).is_some_and(|v| *v == resat::ir::AttrValue::from(value))
        })
    };
    ids.iter().filter(is).count()
}

fn same(name: &str, before: &TypedModule, after: &TypedModule) {
    for seed in 0..2 {
        let inputs = interp::random_inputs(before, seed).unwrap_or_else(|e| panic!("{name}: {e}"));
        let run =
            |m: &TypedModule| interp::run_flat(m, "main", inputs.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (x, y) = (run(before), run(after));
        assert_eq!(x.len(), y.len(), "{name}");
        for (x, y) in x.iter().zip(&y) {
            assert!(near(x, y), "{name}: results differ:\n{}", text::print_module(after));
        }
    }
}

fn near(x: &Tensor, y: &Tensor) -> bool {
    let largest = (0..x.len()).map(|i| x.get_f64(i).abs()).filter(|v| v.is_finite()).fold(1.0, f64::max);
    let close = |i: usize| {
        let (a, b) = (x.get_f64(i), y.get_f64(i));
        a == b || a.is_nan() && b.is_nan() || x.dtype().is_float() && (a - b).abs() <= 1e-4 * largest
    };
    (x.dtype(), x.shape()) == (y.dtype(), y.shape()) && (0..x.len()).all(close)
}

#[test]
fn no_situation_takes_more_transforms_than_in_tvm() {
    let mut wrong = Vec::new();
    for Situation { name, passes, program, most, holds } in SITUATIONS {
        let program = situations::spelled_out(program);
        let before = infer_types(parse(name, &program)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (after, _) = convert(name, parse(name, &program), passes);
        same(name, &before, &after);
        let found = transforms(&after);
        let missing: Vec<_> = holds.iter().filter(|(op, field, value)| calls(&after, op, field, value) == 0).collect();
        if found > *most || !missing.is_empty() {
            let text = text::print_module(&after);
            wrong.push(format!("{name}: {found} transforms, TVM leaves {most}; missing: {missing:?}\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), SITUATIONS.len(), wrong.join("\n"));
}

#[test]
fn a_residual_network_keeps_two_transforms() {
    for (to, convolutions) in [("NHWC", ("nn.conv2d", 53)), ("NCHW16c", ("nn.contrib_conv2d_NCHWc", 53))] {
        let module = networks::residual(&[3, 4, 6, 3]);
        let before = infer_types(module.clone()).expect("well typed");
        let (after, cx) = convert(to, module, &format!("ConvertLayout(from=NCHW, to={to}), FoldConstant"));
        let left = cx.reports.iter().flat_map(|r| r.notes.iter()).collect::<Vec<_>>();
        assert_eq!(left, Vec::<&String>::new(), "{to}: everything is converted");
        let n = transforms(&after);
        assert!(n <= 2, "{to}: {n} transforms are left:\n{}", text::print_module(&after));
        let (op, count) = convolutions;
        let out = if to == "NHWC" { "data_layout" } else { "out_layout" };
        let found = calls(&after, op, out, to) + if to == "NHWC" { 0 } else { calls(&after, op, "data_layout", to) };
        assert!(found >= count, "{to}: {found} convolutions");
        assert_eq!(networks::transforms_between_convolutions(&after), 0, "{to}");
        same(to, &before, &after);
    }
}

#[test]
fn random_networks_compute_what_they_did_in_any_layout() {
    for seed in 0..32 {
        let random = networks::random(seed);
        let name = format!("network {seed} to {}", random.to);
        let before = infer_types(parse(&name, &random.text)).unwrap_or_else(|e| panic!("{name}: {e}\n{}", random.text));
        let (after, cx) =
            convert(&name, parse(&name, &random.text), &format!("ConvertLayout(nn.conv2d={})", random.to));
        same(&name, &before, &after);
        let left = cx.reports.iter().flat_map(|r| r.notes.iter()).count();
        assert_eq!(left > 0, random.refused > 0, "{name}:\n{}", text::print_module(&after));
    }
}

#[test]
fn long_chains_and_wide_graphs_stay_small() {
    let module = parse("chain", &networks::chain(60));
    let (after, cx) = convert("chain", module, "ConvertLayout(nn.conv2d=NHWC)");
    assert_eq!(transforms(&after), 3, "data, result, and the weight that both convolutions share");
    let report = &cx.reports[0];
    assert!(report.nodes < 12 * report.nodes_before, "{report}");
}

#[test]
fn there_and_back_is_nothing() {
    let module = networks::residual(&[1, 1]);
    let there = "ConvertLayout(from=NCHW, to=NHWC), FoldConstant, ConvertLayout(from=NHWC, to=NCHW), FoldConstant";
    let (after, _) = convert("there and back", module, there);
    assert_eq!(transforms(&after), 0);
    assert!(calls(&after, "nn.conv2d", "data_layout", "NHWC") == 0);
    let (blocked, _) =
        convert("blocks", networks::residual(&[1, 1]), "ConvertLayout(from=NCHW, to=NCHW8c), FoldConstant");
    let plain = "ConvertLayout(from=NCHW8c, to=NCHW), FoldConstant";
    let (after, _) = convert("out of blocks", blocked.into_module(), plain);
    assert_eq!((transforms(&after), calls(&after, "nn.contrib_conv2d_NCHWc", "out_layout", "")), (0, 0));
}

#[test]
fn a_batch_of_any_size_is_converted() {
    let text = "(%x: Tensor[(?, 8, 6, 6), float32], %w: F(8, 8, 3, 3), %b: F(8)) {
      %0 = nn.relu(nn.bias_add(nn.conv2d(%x, %w, |NCHW), %b));
      %1 = nn.max_pool2d(add(%0, nn.conv2d(%x, %w, |NCHW)), pool_size=[2, 2]);
      nn.conv2d(%1, %w, |NCHW)
    }";
    for (to, most) in [("NHWC", 3), ("NCHW4c", 3)] {
        let (after, _) =
            convert(to, parse(to, &situations::spelled_out(text)), &format!("ConvertLayout(from=NCHW, to={to})"));
        assert!(transforms(&after) <= most, "{to}:\n{}", text::print_module(&after));
    }
}

/// The moves that all rulesets share hold for transforms to any layout, not only to plain ones; but for those that say they are about plain
/// ones, since others take their place there.
#[test]
fn moves_hold_for_any_transform() {
    let sets = resat::rules::general_definitions();
    let moves = sets.iter().find(|s| s.name.as_str() == "layout-moves").expect("shipped").clone();
    let moves = moves.given("?moving", &"any".into());
    let of_any = moves.rules.iter().filter(|rule| !rule.text().contains("(!= ?moving \"any\")"));
    assert!(of_any.clone().count() + 5 == moves.rules.len(), "five rules are about plain layouts alone");
    for rule in of_any {
        let report = resat::rules::check(rule);
        assert!(report.is_sound(), "{report}");
    }
}

#[cfg(feature = "llvm")]
#[test]
fn converted_networks_are_compiled() {
    use resat::driver::{Options, build};
    for to in ["NHWC", "NCHW16c", "NHWC4c", "HWNC"] {
        let module = networks::residual(&[1, 1]);
        let before = infer_types(module.clone()).expect("well typed");
        let passes = sequence(&format!("ConvertLayout(from=NCHW, to={to}), default"), &settings()).expect("passes");
        let options = Options { passes: Some(Box::new(passes)), ..Options::new(Settings::new(Target::host())) };
        let built = build(module, &[], options).unwrap_or_else(|e| panic!("{to}: {e}"));
        let inputs = interp::random_inputs(&before, 1).expect("inputs");
        let x: Vec<Tensor> = inputs.iter().map(|v| v.tensor().clone()).collect();
        let found = built.executable.run(&x).unwrap_or_else(|e| panic!("{to}: {e}"));
        let wanted = interp::run_flat(&before, "main", inputs).expect("runs");
        assert!(near(&found[0], &wanted[0]), "{to}");
    }
}

#[test]
fn what_cannot_be_converted_is_left_and_noted() {
    let text = situations::spelled_out("(%x: F(1, 6, 5, 5), %w: F(7, 6, 3, 3)) { nn.conv2d(%x, %w) }");
    let (after, cx) = convert("odd channels", parse("odd channels", &text), "ConvertLayout(from=NCHW, to=NCHW4c)");
    assert_eq!(transforms(&after), 0);
    assert_eq!(
        cx.reports[0].notes,
        ["a call of nn.conv2d is not converted to NCHW4c: no call in that layout can stand for it"]
    );
}

#[test]
fn what_is_fused_is_left_and_noted() {
    let text = situations::spelled_out("(%x: F(1, 8, 5, 5), %w: F(8, 8, 3, 3)) { nn.relu(nn.conv2d(%x, %w, |NCHW)) }");
    let (after, cx) = convert("fused", parse("fused", &text), "FuseOps, ConvertLayout(nn.conv2d=NHWC)");
    assert_eq!(transforms(&after), 0);
    let notes = &cx.reports[0].notes;
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("in primitive functions: DefuseOps"), "{}", notes[0]);
    let (after, _) = convert("fused", parse("fused", &text), "FuseOps, DefuseOps, ConvertLayout(nn.conv2d=NHWC)");
    assert_eq!(transforms(&after), 3);
}

/// Boundaries of another framework's layout vanish: the transposes around a network meet those that its conversion needs.
#[test]
fn transposes_at_the_borders_vanish() {
    let text = situations::spelled_out(
        "(%x: F(1, 8, 6, 6), %w: F(3, 3, 8, 8)) {
          %0 = nn.relu(nn.pad(transpose(%x, axes=[0, 2, 3, 1]), 0f, pad_width=[[0, 0], [1, 1], [1, 1], [0, 0]]));
          %1 = nn.max_pool2d(nn.conv2d(%0, %w, |NHWC), pool_size=[2, 2], layout=\"NHWC\");
          transpose(nn.softmax(%1, axis=-1), axes=[0, 3, 1, 2])
        }",
    );
    let before = infer_types(parse("borders", &text)).expect("well typed");
    let (after, _) = convert("borders", parse("borders", &text), "ConvertLayout(from=NHWC, to=NCHW)");
    same("borders", &before, &after);
    assert_eq!(transforms(&after), 1, "the weight's:\n{}", text::print_module(&after));
}

#[test]
fn the_api_refuses_what_makes_no_sense() {
    let message = |r: Result<ConvertLayout, resat::diag::Refused>| r.expect_err("refused").to_string();
    assert_eq!(
        message(ConvertLayout::to("NCHWc")),
        "`NCHWc` is not a layout: c should follow its block's extent, a positive integer"
    );
    assert_eq!(message(ConvertLayout::to("ABC")), "no operator has a layout of the axes of ABC");
    let all = ConvertLayout::default;
    assert_eq!(
        message(all().op("nn.conv2dd", ["NHWC", ""])),
        "there is no operator `nn.conv2dd` (did you mean `nn.conv2d`?)"
    );
    assert_eq!(
        message(all().op("nn.conv2d", ["NDHWC", ""])),
        "`nn.conv2d` can't be in layout NDHWC: its axes are those of NCHW"
    );
    assert!(message(all().op("nn.dense", ["NC", ""])).starts_with("`nn.dense` has no layout that could be converted"));
    let spec = |text: &str| sequence(text, &settings()).err().expect("refused").to_string();
    assert_eq!(
        spec("ConvertLayout(from=NHWC)"),
        "<passes>:1:1: `ConvertLayout` says what to convert from, but not what to (write to=\"NHWC\")"
    );
}

/// A constant that moves through layouts there and back is the constant: what rules make of it comes to an end.
#[test]
fn constants_beside_a_convolution_do_not_multiply() {
    let text = "#[version = \"0.0.5\"]
        def @main(%x: Tensor[(1, 8, 8, 8), float32], %w: Tensor[(3, 3, 8, 16), float32], %b: Tensor[(16), float32]) {
          %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3], data_layout=\"NHWC\", kernel_layout=\"HWIO\");
          add(%0, %b)
        }";
    let module = text::parse_module("p.relay", text).expect("well formed");
    let values = [("w", vec![3, 3, 8, 16]), ("b", vec![16])]
        .map(|(name, shape): (&str, Vec<usize>)| (name.into(), Tensor::from_f64_fn(DType::F32, &shape, |i| i as f64)));
    let bound = resat::pass::bind_params(&module, &values).expect("they fit");
    for module in [module, bound] {
        let settings = Settings::new(Target::host());
        let mut cx = PassContext::default();
        let pass = resat::pass::sequence("ConvertLayout(from=NHWC, to=NCHW)", &settings).expect("a pass");
        pass.run(module, &mut cx).expect("it runs");
        let report = &cx.reports[0];
        assert!(report.nodes < 60 && cx.warnings.is_empty(), "{report}{:?}", cx.warnings);
    }
}

/// Who sets limits hears of it when they are met, though no report is asked for.
#[test]
fn a_limit_that_stops_a_pass_is_said() {
    let text = "#[version = \"0.0.5\"]
        def @main(%x: Tensor[(1, 8, 8, 8), float32], %w: Tensor[(3, 3, 8, 16), float32]) {
          nn.relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3], data_layout=\"NHWC\", kernel_layout=\"HWIO\"))
        }";
    let module = text::parse_module("p.relay", text).expect("well formed");
    let mut settings = Settings::new(Target::host());
    settings.limits.nodes = 12;
    let mut cx = PassContext::default();
    let pass = resat::pass::sequence("ConvertLayout(to=NCHW)", &settings).expect("a pass");
    pass.run(module, &mut cx).expect("it runs");
    assert!(cx.warnings.iter().any(|w| w.contains("stopped at the node limit")), "{:?}", cx.warnings);
}
