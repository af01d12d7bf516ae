//! Equal layers are searched once: what comes of it computes the same, costs as much as where each is searched by itself, and takes no longer
//! for more layers. Layers that rules can tell apart are not equal.

use crate::networks::{Network, bert, decoder, resnet50};
use resat::{
    cost::Roofline,
    extract::DagGreedy,
    infer::infer_types,
    interp::{random_inputs, run_flat},
    ir::{Expr, Module},
    relay::text::parse_module,
    rules,
    saturate::{Limits, Optimized, Stop, optimize},
    target::Target,
    tensor::{DType, Tensor},
};

fn optimized(module: &Module, blocks: bool) -> Optimized {
    let target = Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal");
    let typed = infer_types(module.clone()).expect("well typed");
    let limits = Limits { blocks, time: std::time::Duration::from_secs(3600), ..Limits::default() };
    let done = optimize(&typed, &rules::general(), &limits, &Roofline, &DagGreedy::default(), &target);
    assert_eq!(done.report.faults, Vec::<String>::new());
    infer_types(done.module.clone()).expect("well typed");
    done
}

fn cheap(network: &Network) -> Module {
    network.bound(&network.cheap_weights())
}

#[test]
fn equal_layers_cost_what_they_cost_each_by_itself() {
    for (name, network) in [("encoder", bert(6)), ("decoder", decoder(6))] {
        let [once, each] = [true, false].map(|blocks| optimized(&cheap(&network), blocks).report);
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
        assert!(near(once.cost_before, each.cost_before), "{name}: {} and {}", once.cost_before, each.cost_before);
        assert!(near(once.cost_after, each.cost_after), "{name}: {} and {}", once.cost_after, each.cost_after);
        assert!(2 * once.nodes < each.nodes, "{name}: {} and {} e-nodes", once.nodes, each.nodes);
        assert_eq!(once.stop, Stop::Saturated, "{name}");
    }
}

#[test]
fn more_equal_layers_take_no_more_search() {
    let [few, many] = [6, 18].map(|layers| optimized(&cheap(&decoder(layers)), true).report);
    assert!(many.nodes < few.nodes + 12 * 20, "{} and {} e-nodes", few.nodes, many.nodes);
    let matches = |r: &resat::saturate::Report| r.rules.iter().map(|r| r.matches).sum::<usize>();
    assert!(matches(&many) <= matches(&few) + 12 * 20, "{} and {} matches", matches(&few), matches(&many));
}

#[test]
fn layers_keep_their_own_weights_and_results() {
    let network = decoder(5);
    let module = network.bound(&network.weights());
    let typed = infer_types(module.clone()).expect("well typed");
    let done = optimized(&module, true);
    assert!(done.module.functions().all(|(name, _)| name.as_str() == "main"), "no function is left of a block");
    let inputs = random_inputs(&typed, 3).expect("known extents");
    let [was, is] = [&module, &done.module].map(|m| run_flat(m, "main", inputs.clone()).expect("runs"));
    assert_eq!(was.len(), is.len());
    for (a, b) in was.iter().zip(&is) {
        assert_eq!(a.shape(), b.shape());
        let (a, b) = (a.as_slice::<f32>(), b.as_slice::<f32>());
        let far = a.iter().zip(b).any(|(x, y)| (x - y).abs() > 1e-3 * x.abs().max(1.0));
        assert!(!far, "{:?} and {:?}", &a[..8], &b[..8]);
    }
}

/// So many layers of equal operators; a constant of each as the text says.
fn layers(numbers: &[String]) -> Module {
    let mut text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(3, 40), float32]) {\n".to_owned();
    let mut x = "%x".to_owned();
    let mut at = 0;
    const BETWEEN: [&str; 11] =
        ["exp", "tanh", "nn.relu", "sigmoid", "negative", "exp", "tanh", "erf", "sigmoid", "sqrt", "exp"];
    for number in numbers {
        text += &format!("  %{at} = multiply({x}, {number});\n");
        for op in BETWEEN {
            text += &format!("  %{} = {op}(%{at});\n", at + 1);
            at += 1;
        }
        text += &format!("  %{} = add(%{at}, {x});\n", at + 1);
        x = format!("%{}", at + 1);
        at += 2;
    }
    parse_module("layers.relay", &(text + &format!("  {x}\n}}\n"))).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn layers_that_rules_can_tell_apart_are_searched_by_themselves() {
    let equal: Vec<String> = (0..6).map(|_| "2f".to_owned()).collect();
    let different: Vec<String> = (0..6).map(|i| format!("{}f", 2 + i)).collect();
    let nodes = |numbers: &[String], blocks| optimized(&layers(numbers), blocks).report.nodes;
    assert!(nodes(&equal, true) < nodes(&equal, false));
    assert_eq!(nodes(&different, true), nodes(&different, false));
    // Layouts pass from one block of convolutions to the next.
    let network = cheap(&resnet50([6, 1, 1, 1]));
    let [once, each] = [true, false].map(|blocks| optimized(&network, blocks).report);
    assert_eq!((once.nodes, once.cost_after), (each.nodes, each.cost_after));
}

#[test]
fn what_is_true_of_one_layers_constants_alone_is_not_taken_for_all() {
    // Dividing by a constant is a product where its reciprocals are finite: not by the third layer's.
    let mut text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(3, 40), float32]) {\n".to_owned();
    let mut at = 0;
    let mut x = "%x".to_owned();
    for _ in 0..6 {
        text += &format!("  %{at} = divide({x}, meta[relay.Constant][0]);\n");
        for op in
            ["exp", "tanh", "nn.relu", "sigmoid", "negative", "exp", "tanh", "erf", "sigmoid", "sqrt", "exp", "tanh"]
        {
            text += &format!("  %{} = {op}(%{at});\n", at + 1);
            at += 1;
        }
        x = format!("%{at}");
        at += 1;
    }
    text += &format!("  {x}\n}}\n");
    let text = text.replace("meta[relay.Constant][0]", "%w");
    let text =
        text.replace("(%x: Tensor[(3, 40), float32])", "(%x: Tensor[(3, 40), float32], %w: Tensor[(40), float32])");
    let module = parse_module("layers.relay", &text).unwrap_or_else(|e| panic!("{e}"));
    // Each layer's own constant takes the place of the one variable.
    let mut layer = 0;
    let module =
        with_constants(&module, || {
            layer += 1;
            Tensor::from_f64_fn(DType::F32, &[40], |i| {
                if layer == 3 && i == 7 { 0.0 } else { 1.0 + i as f64 + layer as f64 }
            })
        });
    let done = optimized(&module, true);
    let typed = infer_types(module.clone()).expect("well typed");
    let inputs = random_inputs(&typed, 3).expect("known extents");
    let [was, is] = [&module, &done.module].map(|m| run_flat(m, "main", inputs.clone()).expect("runs"));
    let same = |(x, y): (&f32, &f32)| x.is_nan() && y.is_nan() || x == y || (x - y).abs() <= 1e-4 * x.abs().max(1.0);
    assert!(was[0].as_slice::<f32>().iter().zip(is[0].as_slice::<f32>()).all(same), "{:?} and {:?}", was[0], is[0]);
}

/// The module with a constant in place of each use of its second parameter, in order.
fn with_constants(m: &Module, mut next: impl FnMut() -> Tensor) -> Module {
    let mut to = m.derive();
    let main = m.function_id("main").expect("there");
    let (x, w) = (m.func(main).params[0], m.func(main).params[1]);
    let new = resat::ir::Copier::new().copy_with(m, main, &mut to, |to, _, expr| match expr {
        Expr::Var(v) if *v == w => Some(to.constant(next())),
        Expr::Func(f) => Some(to.add(Expr::Func(Box::new(resat::ir::Function { params: vec![x], ..(**f).clone() })))),
        _ => None,
    });
    to.define("main", new);
    to
}
