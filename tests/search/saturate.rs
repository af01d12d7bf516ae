//! Saturation: rounds that look at what has changed find all that rounds that look at everything find; limits hold, and whatever limit
//! is met the program is valid and costs no more; neither the order of rulesets nor the number of threads matters.

use std::time::Duration;

use crate::{
    common::Rng,
    networks::{Network, TENSAT, bert, layered, resnet50, siblings},
};
use resat::{
    cost::Roofline,
    egraph::encode,
    extract::DagGreedy,
    infer::infer_types,
    pass::{Pass, PassContext, Settings, bind_params, default_pipeline, sequence},
    relay::text::{parse_module, print_module},
    rules,
    saturate::{Limits, Report, Ruleset, Stop, optimize, saturate},
    target::Target,
    tensor::{DType, Tensor},
};

fn target() -> Target {
    Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal")
}

/// Limits of counts, not of time.
fn limits() -> Limits {
    Limits { time: Duration::from_secs(3600), ..Limits::default() }
}

/// What a saturation with these rules does. Inference's simplifications are among them.
fn run(network: &Network, rulesets: &[Ruleset], limits: &Limits) -> Report {
    let typed = infer_types(network.bound(&network.cheap_weights())).expect("well typed");
    let mut encoded = encode(&typed);
    let outermost = *encoded.regions().last().expect("a module has a region");
    let mut region = encoded.open(outermost, false);
    saturate(&mut region.graph, rulesets, limits)
}

/// What does not depend on how matches were found.
fn outcome(r: &Report) -> (String, usize, usize, usize, Vec<usize>) {
    (r.stop.to_string(), r.iterations, r.nodes, r.classes, r.rules.iter().map(|r| r.unions).collect())
}

#[test]
fn looking_at_news_finds_all_that_looking_at_everything_finds() {
    let small = ["BERT", "SqueezeNet", "ResNeXt-50"];
    let mut networks: Vec<(&str, Network)> =
        TENSAT.iter().filter(|p| small.contains(&p.name)).map(|p| (p.name, (p.make)())).collect();
    networks.push(("ResNet", resnet50([1, 1, 1, 1])));
    networks.push(("encoder", bert(1)));
    networks.push(("layered", layered(60)));
    for (name, network) in networks {
        for iterations in [3, 24] {
            let limits = Limits { iterations, ..limits() };
            let [news, all] = [false, true]
                .map(|everything| run(&network, &rules::general(), &Limits { everything, ..limits.clone() }));
            assert_eq!(outcome(&news), outcome(&all), "{name}, {iterations} rounds");
            let looked = |r: &Report| r.rules.iter().map(|r| r.matches).sum::<usize>();
            assert!(looked(&news) <= looked(&all), "{name}");
        }
    }
}

/// The smallest of the networks that most rulesets find something in.
fn samples() -> Vec<(&'static str, Network)> {
    let mut networks: Vec<(&str, Network)> =
        TENSAT.iter().filter(|p| p.name == "SqueezeNet").map(|p| (p.name, (p.make)())).collect();
    networks.push(("ResNet", resnet50([1, 1, 1, 0])));
    networks.push(("encoder", bert(1)));
    networks.push(("layered", layered(40)));
    networks
}

#[test]
fn whatever_limit_is_met_the_program_is_valid_and_no_more_expensive() {
    let mut rng = Rng(17);
    let mut stops = std::collections::BTreeSet::new();
    for (name, network) in samples() {
        let typed = infer_types(network.bound(&network.cheap_weights())).expect("well typed");
        for _ in 0..8 {
            let mut below = |n: u64| (rng.next() % n) as usize;
            let mut limits = limits();
            match below(6) {
                0 => limits.nodes = below(3000),
                1 => limits.iterations = below(6),
                2 => limits.unions = below(400) as u64,
                3 => limits.bytes = below(1 << 20),
                4 => limits.time = Duration::from_micros(below(200_000) as u64),
                _ => limits.matches = 1 + below(20),
            }
            let extractor = DagGreedy::default();
            let done = optimize(&typed, &rules::general(), &limits, &Roofline, &extractor, &target());
            let report = &done.report;
            stops.insert(report.stop);
            assert!(report.faults.is_empty(), "{name}, {limits:?}: {:?}", report.faults);
            assert!(report.cost_after <= report.cost_before, "{name}, {limits:?}");
            let after = infer_types(done.module).unwrap_or_else(|e| panic!("{name}, {limits:?}: {e}"));
            assert_eq!(after.result_type("main"), typed.result_type("main"), "{name}, {limits:?}");
        }
    }
    assert!(stops.len() >= 4, "{stops:?}");
}

#[test]
fn the_order_of_rulesets_does_not_matter() {
    let mut rng = Rng(23);
    for (name, network) in samples() {
        let typed = infer_types(network.bound(&network.cheap_weights())).expect("well typed");
        let mut costs = Vec::new();
        for round in 0..4 {
            let mut rulesets = rules::general();
            if round > 0 {
                for set in &mut rulesets {
                    rng.shuffle(&mut set.rules);
                }
                rng.shuffle(&mut rulesets);
            }
            let done = optimize(&typed, &rulesets, &limits(), &Roofline, &DagGreedy::default(), &target());
            assert_eq!(done.report.stop, Stop::Saturated, "{name}");
            costs.push(done.report.cost_after);
        }
        let (least, most) = costs.iter().fold((f64::MAX, 0.0f64), |(a, b), &c| (a.min(c), b.max(c)));
        assert!(most <= least * (1.0 + 1e-9), "{name}: {costs:?}");
    }
}

#[test]
fn results_are_the_same_on_every_run_and_for_any_number_of_threads() {
    for (name, network) in samples() {
        let module = network.bound(&network.cheap_weights());
        let optimized = || {
            let settings = Settings { limits: limits(), ..Settings::new(target()) };
            let pipeline = default_pipeline(&settings).expect("the default pipeline is well formed");
            print_module(&pipeline.run(module.clone(), &mut PassContext::default()).expect("passes run"))
        };
        let once = optimized();
        for threads in [1, 4] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            assert!(once == pool.install(optimized), "{name}, {threads} threads");
        }
    }
}

#[test]
fn thousands_of_operators_stay_bounded() {
    let (small, large) = (layered(500), layered(5000));
    let [few, many] = [&small, &large].map(|n| run(n, &rules::general(), &limits()));
    for r in [&few, &many] {
        assert_eq!(r.stop, Stop::Saturated, "{r}");
    }
    // Ten times the operators are ten times the e-nodes, in as many rounds: nothing grows faster than the program.
    assert_eq!(few.iterations, many.iterations);
    assert!(many.nodes <= 11 * few.nodes && many.nodes <= 20 * 5000, "{} and {}", few.nodes, many.nodes);
    let matches = |r: &Report| r.rules.iter().map(|r| r.matches).sum::<usize>();
    assert!(matches(&many) <= 11 * matches(&few), "{} and {}", matches(&few), matches(&many));
    assert!(many.peak_bytes < 128 << 20);
}

/// Where x equals x op c, the class of x holds itself: what rules say of (x op c) op d has no end.
#[test]
fn programs_that_equal_their_own_parts_stay_small() {
    for op in ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum"] {
        for (neutral, depth, passes) in ["zeros_like", "ones_like"]
            .iter()
            .flat_map(|n| [1, 3].map(|d| (n, d)))
            .flat_map(|(n, d)| ["SimplifyExpr", "default", "Saturate(all, taso)"].map(|passes| (*n, d, passes)))
        {
            let mut text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 3, 4), float32]) {\n".to_owned();
            let mut value = "%x".to_owned();
            for i in 0..depth {
                let (c, y) = (2 * i, 2 * i + 1);
                text += &format!("  %{c} = {neutral}({value});\n  %{y} = {op}({value}, %{c});\n");
                value = format!("%{y}");
            }
            let module = parse_module("nested", &format!("{text}  {value}\n}}\n")).unwrap_or_else(|e| panic!("{e}"));
            let mut cx = PassContext::default();
            let settings = Settings { limits: limits(), ..Settings::new(target()) };
            let passes_of = sequence(passes, &settings).unwrap_or_else(|e| panic!("{e}"));
            passes_of.run(module, &mut cx).unwrap_or_else(|e| panic!("{e}"));
            for report in &cx.reports {
                let what = format!("{passes} of {op}, {neutral}, {depth} deep: {report}");
                assert!(report.nodes <= 300 && report.stop <= Stop::GrowthBounded, "{what}");
            }
        }
    }
}

/// Rules that make each of many operators of the next one: with so many terms in a class, four operators in a row can be had in
/// more ways than a search takes.
#[test]
fn matches_that_are_left_out_are_said() {
    let ops = "sin cos tan exp log tanh sigmoid sqrt rsqrt negative abs floor ceil round trunc sign erf atan cosh sinh";
    let ops: Vec<&str> = ops.split(' ').collect();
    let mut text = "(ruleset wide :numerics real)\n".to_owned();
    for (i, op) in ops.iter().enumerate() {
        let next = ops[(i + 1) % ops.len()];
        text += &format!(";; Not that it were true.\n(rule from-{op} ({op} ?x) => ({next} ?x))\n");
    }
    let any = ops.join("|");
    text += &format!(
        ";; Nothing new.\n(rule deep (?f:{any} (?g:{any} (?h:{any} (?k:{any} ?x)))) => (?f (?g (?h (?k ?x)))))\n"
    );
    let rules = rules::load("wide.rules", &text).unwrap_or_else(|e| panic!("{e}"));
    let report = |depth: usize| {
        let calls = "sin(".repeat(depth) + "%x" + &")".repeat(depth);
        let text = format!("#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 3), float32]) {{ {calls} }}\n");
        let typed = infer_types(parse_module("row", &text).unwrap_or_else(|e| panic!("{e}"))).expect("well typed");
        let limits = Limits { matches: 1 << 20, ..limits() };
        optimize(&typed, &rules, &limits, &Roofline, &DagGreedy::default(), &target()).report
    };
    let few = report(3);
    assert_eq!((few.stop, few.rules.iter().any(|r| r.cut)), (Stop::Saturated, false));
    let many = report(4);
    let cut: Vec<&str> = many.rules.iter().filter(|r| r.cut).map(|r| r.rule.as_str()).collect();
    assert_eq!((many.stop, &cut[..]), (Stop::GrowthBounded, &["deep"][..]), "{many}");
    assert!(many.to_string().contains("wide/deep left out matches"), "{many}");
}

#[test]
fn combinations_of_many_siblings_stay_bounded() {
    let [few, many] = [24, 96].map(|n| run(&siblings(n), &rules::general(), &limits()));
    for r in [&few, &many] {
        assert_eq!(r.stop, Stop::Saturated, "{r}");
    }
    // Pairs would be sixteen times as many, triples sixty-four times.
    assert!(many.nodes <= 5 * few.nodes, "{} and {}", few.nodes, many.nodes);
    let matches = |r: &Report| r.rules.iter().map(|r| r.matches).sum::<usize>();
    assert!(matches(&many) <= 5 * matches(&few), "{} and {}", matches(&few), matches(&many));
}

#[test]
fn winograd_takes_blocks_that_are_vectors() {
    for (results, found) in [(16, true), (819, false)] {
        let module = parse_module(
            "blocks.relay",
            &format!(
                r#"#[version = "0.0.5"]
                def @main(%x: Tensor[(1, 1, 8, 8, 8), float32], %w: Tensor[({results}, 8, 3, 3), float32]) {{
                  %0 = layout_transform(%w, src_layout="OIHW", dst_layout="OIHW8i{results}o");
                  nn.contrib_conv2d_NCHWc(%x, %0, padding=[1, 1, 1, 1], channels={results}, kernel_size=[3, 3],
                                          data_layout="NCHW8c", kernel_layout="OIHW8i{results}o", out_layout="NCHW{results}c")
                }}"#
            ),
        )
        .expect("legal");
        let weight = ("w".into(), Tensor::zeros(DType::F32, &[results, 8, 3, 3]));
        let module = bind_params(&module, &[weight]).expect("a parameter");
        let passes = sequence("Saturate(winograd-blocks)", &Settings::new(target())).expect("a ruleset");
        let mut cx = PassContext::default();
        passes.run(module, &mut cx).expect("well typed");
        let unions: usize = cx.reports.iter().flat_map(|r| &r.rules).map(|r| r.unions).sum();
        assert_eq!(unions > 0, found, "{results}");
    }
}

/// Blocks of a mobile network whose activations are products of two values of the same tensor: what a tensor is in blocks is one class,
/// however many ways there are to it.
#[test]
fn tensors_in_blocks_are_one_class() {
    let (c, e) = (24, 40);
    let mut params = vec![format!("%x: Tensor[(1, {c}, 14, 14), float32]")];
    let mut lines: Vec<String> = Vec::new();
    let mut weights: Vec<(resat::ir::Name, Tensor)> = Vec::new();
    let mut value = "%x".to_owned();
    for block in 0..3 {
        let mut weight = |name: &str, shape: &[usize]| {
            let name = format!("{name}{block}");
            params.push(format!(
                "%{name}: Tensor[({}), float32]",
                shape.iter().map(|n| format!("{n},")).collect::<String>()
            ));
            let values = Tensor::from_f64_fn(DType::F32, shape, |i| 0.1 + (i * 7919 % 97) as f64 / 97.0);
            weights.push((name.as_str().into(), values));
            format!("%{name}")
        };
        let mut call = |text: String| {
            lines.push(format!("  %{} = {text};", lines.len()));
            format!("%{}", lines.len() - 1)
        };
        let convs = [("a", [e, c, 1, 1], 1), ("b", [e, 1, 3, 3], e), ("c", [c, e, 1, 1], 1)];
        let input = value.clone();
        for (name, shape, groups) in convs {
            let w = weight(name, &shape);
            let (out, k) = (shape[0], shape[2]);
            let conv = call(format!(
                "nn.conv2d({value}, {w}, padding=[{p}, {p}], groups={groups}, channels={out}, kernel_size=[{k}, {k}])",
                p = k / 2
            ));
            let [g, b, m, v] = ["g", "h", "m", "v"].map(|n| weight(&format!("{n}{name}"), &[out]));
            value = format!("{}.0", call(format!("nn.batch_norm({conv}, {g}, {b}, {m}, {v})")));
            if name != "c" {
                let six = call(format!("clip(add({value}, 3f), a_min=0f, a_max=6f)"));
                value = call(format!("divide(multiply({value}, {six}), 6f)"));
            }
        }
        value = call(format!("add({value}, {input})"));
    }
    let text =
        format!("#[version = \"0.0.5\"]\ndef @main({}) {{\n{}\n  {value}\n}}", params.join(", "), lines.join("\n"));
    let module = parse_module("mobile", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let typed = infer_types(bind_params(&module, &weights).expect("they fit")).expect("well typed");
    let classes = |rulesets: &[Ruleset]| {
        let report = optimize(&typed, rulesets, &limits(), &Roofline, &DagGreedy::default(), &target()).report;
        assert_eq!(report.stop, Stop::Saturated, "{report}");
        report.classes
    };
    let mut without = rules::general();
    without.iter_mut().for_each(|r| r.rules.retain(|r| r.name.as_str() != "there-and-back"));
    let (with, without) = (classes(&rules::general()), classes(&without));
    assert!(4 * with < 3 * without, "{with} beside {without}");
}

/// A rule that asks for an extent that is unknown does not apply, and the report counts that.
#[test]
fn guards_that_want_a_number_are_counted() {
    for (rows, wants) in [("?", true), ("4", false)] {
        let text = format!("#[version = \"0.0.5\"] def @main(%x: Tensor[({rows}, 3), int32]) {{ subtract(%x, %x) }}");
        let module = parse_module("rows.relay", &text).expect("legal");
        let passes = sequence("Saturate(algebra)", &Settings::new(target())).expect("a ruleset");
        let mut cx = PassContext::default();
        passes.run(module, &mut cx).expect("well typed");
        let report = &cx.reports[0];
        let undecided: usize = report.rules.iter().map(|r| r.undecided).sum();
        let unions: usize = report.rules.iter().map(|r| r.unions).sum();
        assert_eq!((undecided > 0, unions > 0), (wants, !wants), "{report}");
        assert_eq!(report.to_string().contains("undecided: algebra/"), wants, "{report}");
    }
}
