//! Recurrent layers written out step by step: what no state decides is computed for all steps at once.

use resat::{
    cost::Roofline,
    extract::DagGreedy,
    infer::infer_types,
    interp::{random_inputs, run_flat},
    pass::{bind_params, fold_constant},
    relay::text,
    rules,
    saturate::{Limits, optimize},
    target::Target,
    tensor::Value,
};

const STEPS: usize = 6;

/// A step's calls, the last one its product with the weights, of the names of its input and the state before; `%-1` is the call before.
type Cell = dyn Fn(&str, &str) -> Vec<String>;

/// A recurrent layer over the pieces of its input along an axis: each state is the tangent of the cell's product.
fn network(input: &str, axis: usize, cell: &Cell) -> String {
    let mut calls = vec![
        format!("split(%x, indices_or_sections={STEPS}, axis={axis})"),
        "zeros(shape=[1, 256], dtype=\"float32\")".to_owned(),
    ];
    let mut state = "%1".to_owned();
    for step in 0..STEPS {
        calls.push(format!("%0.{step}"));
        calls.push(format!("squeeze(%{}, axis=[{axis}])", calls.len() - 1));
        for call in cell(&format!("%{}", calls.len() - 1), &state) {
            let before = |n: usize| format!("%{}", calls.len() - n);
            calls.push(call.replace("%-1", &before(1)).replace("%-2", &before(2)));
        }
        calls.push(format!("tanh(%{})", calls.len() - 1));
        state = format!("%{}", calls.len() - 1);
    }
    let bound: String = calls.iter().enumerate().map(|(i, c)| format!("  %{i} = {c};\n")).collect();
    format!(
        "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[({input}), float32], %w: Tensor[(256, 384), float32], %u: Tensor[(256, 128), \
         float32], %v: Tensor[(256, 256), float32]) {{\n{bound}  {state}\n}}\n"
    )
}

/// What the rules make of the network, its weights bound, as text; its results are those of the network as written.
fn optimized(source: &str) -> String {
    let module = text::parse_module("network", source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    let typed = infer_types(module.clone()).unwrap_or_else(|e| panic!("{e}\n{source}"));
    let inputs = random_inputs(&typed, 7).expect("known extents");
    let params = typed.entry("main").expect("a main").params.clone();
    let weights = params.iter().zip(&inputs).skip(1).map(|(p, v)| match v {
        Value::Tensor(t) => (typed.var(*p).name.clone(), t.clone()),
        Value::Tuple(_) => panic!("weights are tensors"),
    });
    let bound = bind_params(&module, &weights.collect::<Vec<_>>()).expect("its own parameters");
    let bound = fold_constant(&infer_types(bound).expect("well typed")).expect("constants can be computed");
    let target = Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal");
    let typed = infer_types(bound.clone()).expect("well typed");
    let done = optimize(&typed, &rules::general(), &Limits::default(), &Roofline, &DagGreedy::default(), &target);
    let better = fold_constant(&done.module).expect("constants can be computed");
    let results = [&bound, &better].map(|m| run_flat(m, "main", inputs[..1].to_vec()).expect("it runs"));
    let values = |i: usize| results[i][0].to_f64_vec().into_iter();
    assert!(values(0).zip(values(1)).all(|(a, b)| (a - b).abs() < 1e-4), "{source}");
    text::print_module(&better)
}

/// How many products there are.
fn products(text: &str) -> usize {
    text.lines().filter(|l| l.contains("nn.dense(") || l.contains("nn.contrib_dense_pack(")).count()
}

#[test]
fn inputs_of_all_steps_are_multiplied_at_once() {
    let apart = |a: &str, h: &str| {
        vec![
            format!("nn.dense({a}, %u, units=256)"),
            format!("nn.dense({h}, %v, units=256)"),
            "add(%-2, %-1)".to_owned(),
        ]
    };
    let together = |a: &str, h: &str| {
        vec![format!("({a}, {h})"), "concatenate(%-1, axis=1)".to_owned(), "nn.dense(%-1, %w, units=256)".to_owned()]
    };
    let state_first = |a: &str, h: &str| {
        vec![format!("({h}, {a})"), "concatenate(%-1, axis=1)".to_owned(), "nn.dense(%-1, %w, units=256)".to_owned()]
    };
    for (input, axis) in [(format!("{STEPS}, 1, 128"), 0), (format!("1, {STEPS}, 128"), 1)] {
        for cell in [&apart as &Cell, &together, &state_first] {
            let text = optimized(&network(&input, axis, cell));
            // One of all inputs, and one of each state but the first, which is zero.
            assert_eq!(products(&text), STEPS, "{text}");
        }
    }
}
