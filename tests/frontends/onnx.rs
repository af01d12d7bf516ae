//! Recorded ONNX models of operators beyond ONNX's own, and of forms that exporters give to ONNX's own: what the interpreter and native
//! code make of them is what ONNX Runtime made of them. `recorded/frontends/onnx.zip` and `onnx-exported.zip` hold a folder for each case
//! (tools/record-onnx.py writes it): the model, inputs and outputs, and how far floats may be off, of the largest value, and integers, in
//! steps; `decoder.zip` the same of decoders with caches (tools/decoder.py). ONNX's own operators have ONNX's own tests
//! (tools/onnx-suite.sh).

use std::collections::BTreeMap;

use crate::archive::Files;
use rayon::prelude::*;
#[cfg(feature = "llvm")]
use resat::{
    driver::{Options, build},
    tensor::DType,
};
use resat::{
    frontend::{LoadOptions, Model, SourceFile, load_from},
    interp,
    ir::{Module, dim_names, disagreeing, output_names},
    pass::{Pass, PassContext, Settings, bind_params, sequence},
    relay::{npz, text},
    target::Target,
    tensor::{Tensor, Value},
};

/// All cases, by name.
fn cases() -> BTreeMap<String, Files> {
    ["onnx.zip", "onnx-exported.zip", "decoder.zip"].into_iter().flat_map(crate::archive::cases).collect()
}

/// The case of that name.
fn case(name: &str) -> Files {
    cases().remove(name).unwrap_or_else(|| panic!("there is no case {name}"))
}

/// A case, ready to run: outputs by name.
struct Case {
    module: Module,
    inputs: Vec<Tensor>,
    names: Vec<String>,
    outputs: BTreeMap<String, Tensor>,
    meta: serde_json::Value,
}

fn load(name: &str, files: &Files) -> Result<Case, String> {
    let file = SourceFile { name, bytes: &files["model.onnx"], folder: None };
    let Model { module, params } = load_from(&file, &LoadOptions::default()).map_err(|e| e.to_string())?;
    let module = bind_params(&module, &params).map_err(|e| e.to_string())?;
    let given = npz::read("inputs", &files["inputs.npz"]).map_err(|e| e.to_string())?;
    let main = module.function("main").ok_or("there is no @main")?;
    let input = |name: &str| {
        given.iter().find(|g| g.0.as_str() == name).map(|g| g.1.clone()).ok_or(format!("there is no input {name}"))
    };
    let inputs = main.params.iter().map(|&p| input(&module.var(p).name)).collect::<Result<_, _>>()?;
    let names = output_names(&module).ok_or("outputs have no names")?;
    let outputs = npz::read("outputs", &files["outputs.npz"]).map_err(|e| e.to_string())?;
    let outputs = outputs.into_iter().map(|(n, t)| (n.to_string(), t)).collect();
    let meta = serde_json::from_slice(&files["meta.json"]).map_err(|e| e.to_string())?;
    Ok(Case { module, inputs, names, outputs, meta })
}

/// How a result differs from what was recorded.
fn difference(got: &Tensor, want: &Tensor, meta: &serde_json::Value) -> Option<String> {
    if got.shape() != want.shape() || got.dtype() != want.dtype() {
        return Some(format!("{}{:?} instead of {}{:?}", got.dtype(), got.shape(), want.dtype(), want.shape()));
    }
    if !want.dtype().is_float() {
        let most = (0..want.len()).map(|i| (got.get_i64(i) - want.get_i64(i)).abs()).max().unwrap_or(0);
        return (most > meta["steps"].as_i64().unwrap_or(0)).then(|| format!("{most} steps"));
    }
    let scale = (0..want.len()).map(|i| want.get_f64(i).abs()).filter(|v| v.is_finite()).fold(1.0, f64::max);
    let far = |i: &usize| {
        let (g, w) = (got.get_f64(*i), want.get_f64(*i));
        !(g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= meta["tolerance"].as_f64().unwrap_or(0.0) * scale)
    };
    let at = (0..want.len()).find(far)?;
    Some(format!("{} instead of {} at {at}", got.get_f64(at), want.get_f64(at)))
}

fn all(run: impl Fn(&Case) -> Result<Vec<Tensor>, String> + Sync) {
    let cases = cases();
    assert!(cases.len() > 240, "cases are missing");
    let check = |(name, files): (&String, &Files)| -> Option<String> {
        let why = load(name, files).and_then(|case| {
            let got = run(&case)?;
            for (name, want) in &case.outputs {
                let at = case.names.iter().position(|n| n == name).ok_or(format!("no output {name}"))?;
                if let Some(d) = difference(&got[at], want, &case.meta) {
                    return Err(format!("{name}: {d}"));
                }
            }
            Ok(())
        });
        why.err().map(|why| format!("{name}: {why}"))
    };
    // Models without inputs are for tests of their own.
    let recorded = cases.par_iter().filter(|c| c.1.contains_key("inputs.npz"));
    let failed: Vec<String> = recorded.filter_map(check).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn interpreted() {
    all(|case| {
        let inputs = case.inputs.iter().cloned().map(Value::from).collect();
        interp::run_flat(&case.module, "main", inputs).map_err(|e| e.to_string())
    });
}

/// The program after the default passes, as text: without constants' numbers, and names of inputs and outputs.
fn optimized(module: Module) -> String {
    let passes = sequence("default", &Settings::new(Target::host())).unwrap_or_else(|e| panic!("{e}"));
    let module = passes.run(module, &mut PassContext::default()).unwrap_or_else(|e| panic!("{e}"));
    let text = text::print_brief(&module);
    let plain = |line: &str| match line.find("input_names=") {
        Some(at) => line[..at].to_owned(),
        None => line.to_owned(),
    };
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_exporters_take_apart_is_found_again() {
    let files = case("exported_block");
    let text = optimized(load("exported_block", &files).unwrap_or_else(|e| panic!("{e}")).module);
    assert_eq!(text.matches("nn.layer_norm(").count(), 2, "{text}");
    assert_eq!(text.matches("nn.attention(").count(), 1, "{text}");
    for gone in ["nn.softmax(", "mean(", "sqrt(", "power("] {
        assert!(!text.contains(gone), "{gone}\n{text}");
    }
}

/// What stands between quantizing and dequantizing is of integers where that is asked for, and differs by steps at most.
#[test]
fn quantized_models_become_integers() {
    let files = case("qdq");
    let case = load("qdq", &files).unwrap_or_else(|e| panic!("{e}"));
    let passes =
        sequence("FakeQuantizationToInteger", &Settings::new(Target::host())).unwrap_or_else(|e| panic!("{e}"));
    let module = passes.run(case.module, &mut PassContext::default()).unwrap_or_else(|e| panic!("{e}"));
    let text = text::print_brief(&module);
    assert_eq!(text.matches("qnn.conv2d(").count(), 2, "{text}");
    assert_eq!((text.matches("nn.conv2d(").count(), text.matches("round_even(").count()), (2, 0), "{text}");
    let inputs = case.inputs.iter().cloned().map(Value::from).collect();
    let results = interp::run_flat(&module, "main", inputs).unwrap_or_else(|e| panic!("{e}"));
    let steps = |(a, b): (f64, f64)| ((a - b) / 0.05).abs().round();
    let (got, want) = (results[0].to_f64_vec(), case.outputs["y"].to_f64_vec());
    assert!(got.into_iter().zip(want).map(steps).all(|n| n <= 2.0));
}

#[test]
fn the_same_network_becomes_the_same_program() {
    let files = case("convolutional");
    let by_onnx = load("convolutional", &files).unwrap_or_else(|e| panic!("{e}")).module;
    let file = SourceFile { name: "model.relay", bytes: &files["model.relay"], folder: None };
    let by_relay = load_from(&file, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}")).module;
    let params = npz::read("params", &files["params.npz"]).unwrap_or_else(|e| panic!("{e}"));
    let by_relay = bind_params(&by_relay, &params).unwrap_or_else(|e| panic!("{e}"));
    let (a, b) = (optimized(by_onnx), optimized(by_relay));
    let operators = |text: &str| -> Vec<String> {
        // Which lines there are, but for the names of values and parameters.
        let plain = |line: &str| line.split(['%', '=']).map(str::trim).collect::<Vec<_>>().concat();
        text.lines().filter(|l| l.contains("nn.")).map(|l| plain(l).replace(char::is_numeric, "")).collect()
    };
    assert_eq!(operators(&a), operators(&b), "{a}\n{b}");
}

/// All steps of a layer are one operator where the model leaves open how many there are; those that it can't say are a loop of the program.
#[test]
fn recurrent_layers_are_operators() {
    for (name, operator) in [("lstm_both", "nn.lstm("), ("gru_back", "nn.gru("), ("gru_after", "nn.gru(")] {
        let text = optimized(load(name, &case(name)).unwrap_or_else(|e| panic!("{e}")).module);
        assert_eq!((text.matches(operator).count(), text.contains("@loop_")), (1, false), "{name}\n{text}");
    }
    let others = load("lstm_others", &case("lstm_others")).unwrap_or_else(|e| panic!("{e}")).module;
    assert!(text::print_brief(&others).contains("@loop_"));
}

/// `?` for whatever is unknown is no name: axes that are called so may differ.
#[test]
fn question_marks_name_no_dimension() {
    let mut files = case("named_dimensions");
    let model = files.get_mut("model.onnx").expect("a case has a model");
    while let Some(at) = model.windows(5).position(|w| w == b"batch") {
        model[at..at + 5].copy_from_slice(b"?????");
    }
    let case = load("named_dimensions", &files).unwrap_or_else(|e| panic!("{e}"));
    assert!(dim_names(&case.module).is_empty());
}

#[test]
fn inputs_that_disagree_about_a_dimension_are_refused() {
    let files = case("named_dimensions");
    let case = load("named_dimensions", &files).unwrap_or_else(|e| panic!("{e}"));
    let names = dim_names(&case.module);
    assert_eq!(names, [["batch", ""], ["batch", ""]]);
    let shapes: [&[usize]; 2] = [&[4, 3], &[5, 3]];
    let found = disagreeing(&names, ["a", "b"].into_iter().zip(shapes)).expect("they disagree");
    for part in ["`batch`", "`a` has 4", "`b` has 5"] {
        assert!(found.contains(part), "{found}");
    }
    #[cfg(feature = "llvm")]
    {
        let built =
            build(case.module, &[], Options::new(Settings::new(Target::host()))).unwrap_or_else(|e| panic!("{e}"));
        let other = Tensor::zeros(DType::F32, &[5, 3]);
        let refused = built.executable.run(&[case.inputs[0].clone(), other]).expect_err("they disagree").to_string();
        assert!(refused.contains("`batch`"), "{refused}");
    }
}

#[test]
fn an_operator_of_nobody_is_refused_by_node_and_domain() {
    let files = case("custom_operator");
    let refused = load("custom_operator", &files).err().expect("nobody registered it");
    for part in ["`affine`", "`toy`", "\"mine\"", "toy.affine", "custom_operator:1:1"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
}

#[cfg(feature = "llvm")]
#[test]
fn compiled() {
    all(|case| {
        let options = Options::new(Settings::new(Target::host()));
        let built = build(case.module.clone(), &[], options).map_err(|e| e.to_string())?;
        built.executable.run(&case.inputs).map_err(|e| e.to_string())
    });
}

/// One program serves pasts of every length, and steps of several tokens.
#[cfg(feature = "llvm")]
#[test]
fn decoders_run_at_all_lengths() {
    let cases = crate::archive::cases("decoder.zip");
    for kind in ["float32", "plain", "bfloat16", "int8", "int4"] {
        let prefix = format!("decoder_{kind}_");
        let loaded: Vec<Case> = cases
            .iter()
            .filter(|c| c.0.starts_with(&prefix))
            .map(|(name, files)| load(name, files).unwrap_or_else(|e| panic!("{name}: {e}")))
            .collect();
        assert_eq!(loaded.len(), 5, "{kind}");
        let options = Options::new(Settings::new(Target::host()));
        let built = build(loaded[0].module.clone(), &[], options).unwrap_or_else(|e| panic!("{kind}: {e}"));
        for case in loaded.iter().chain(&loaded) {
            let got = built.executable.run(&case.inputs).unwrap_or_else(|e| panic!("{kind}: {e}"));
            for (name, got) in case.names.iter().zip(&got) {
                assert_eq!(difference(got, &case.outputs[name], &case.meta), None, "{kind}: {name}");
            }
        }
    }
}

/// What kernels read of weights of few bits, or of two bytes, is what the model has: they are not unpacked before.
#[test]
fn narrow_weights_stay_narrow() {
    let cases = crate::archive::cases("decoder.zip");
    // Four products of attention and three of the feed forward a layer, and that of the logits. Those that follow a norm may take its
    // scale into their weights, which are no cast then.
    for (kind, operator, least) in
        [("int4", "nn.dense_nbits(", 15), ("int8", "nn.dense_nbits(", 15), ("bfloat16", "out_dtype=\"float32\"", 4)]
    {
        let name = format!("decoder_{kind}_5_1_1");
        let text = optimized(load(&name, &cases[&name]).unwrap_or_else(|e| panic!("{e}")).module);
        assert!(text.matches(operator).count() >= least, "{text}");
        assert!(!text.contains("bitwise_and"), "{text}");
    }
}

/// Keys and values are appended to the past where the graph computes how many there are from extents: nothing waits for values.
#[test]
fn extents_of_decoders_are_found() {
    let cases = crate::archive::cases("decoder.zip");
    let name = "decoder_float32_5_1_1";
    let text = optimized(load(name, &cases[name]).unwrap_or_else(|e| panic!("{e}")).module);
    for waits in ["dyn.", " arange(", "take(%p0, %p1, axis=2"] {
        assert!(!text.contains(waits), "{waits}\n{text}");
    }
}
