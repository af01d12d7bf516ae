//! Quantization after training: a trained network keeps its accuracy in integers, and errors stay within what was asked for.

use std::path::{Path, PathBuf};

use resat::{
    driver::{load_module, load_params},
    infer::infer_types,
    interp,
    ir::{Module, Type, reachable},
    pass::{Pass, PassContext, Quantize, QuantizeOptions, Settings, bind_params, parse_specs, sequence},
    relay::{npz, text},
    target::Target,
    tensor::{DType, Tensor, Value},
};

/// Images that the network takes at once.
const BATCH: usize = 200;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits")
}

/// The trained network with its weights.
fn network() -> Module {
    let module = load_module(&folder().join("model.relay")).expect("the model is there");
    let params = load_params(&folder().join("model.params")).expect("its weights are there");
    bind_params(&module, &params).expect("they fit")
}

/// All images, from 0 to 1, and their labels; the first [`BATCH`] were held out from training.
fn digits() -> (Vec<f32>, Vec<i64>) {
    let arrays = load_params(&folder().join("all.npz")).expect("the images are there");
    let of = |name: &str| &arrays.iter().find(|a| a.0.as_str() == name).expect("the array is there").1;
    (of("images").to_i64_vec().into_iter().map(|v| v as f32 / 16.0).collect(), of("labels").to_i64_vec())
}

/// Batches of images, the last one filled up with blank ones.
fn batches(pixels: &[f32]) -> Vec<Tensor> {
    let batch = |part: &[f32]| {
        let mut part = part.to_vec();
        part.resize(BATCH * 64, 0.0);
        Tensor::from_slice(&[BATCH, 1, 8, 8], &part)
    };
    pixels.chunks(BATCH * 64).map(batch).collect()
}

/// An archive of samples: 400 images of the training set.
fn samples(pixels: &[f32]) -> tempfile::NamedTempFile {
    let part = &pixels[BATCH * 64..3 * BATCH * 64];
    let bytes = npz::write([("x", &Tensor::from_slice(&[2 * BATCH, 1, 8, 8], part))]).expect("it can be written");
    let file = tempfile::Builder::new().suffix(".npz").tempfile().expect("there is room");
    std::fs::write(file.path(), bytes).expect("there is room");
    file
}

fn settings() -> Settings {
    Settings::new(Target::parse("llvm -mcpu=native -num-cores=2").expect("a target"))
}

fn native(settings: Settings) -> Settings {
    Settings { backend: std::sync::Arc::new(resat::driver::Native { target: settings.target.clone() }), ..settings }
}

fn correct(scores: &[Tensor], labels: &[i64]) -> usize {
    let rows: Vec<Vec<f64>> =
        scores.iter().flat_map(|s| s.to_f64_vec().chunks(10).map(<[f64]>::to_vec).collect::<Vec<_>>()).collect();
    let best = |row: &Vec<f64>| (0..10).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0) as i64;
    rows.iter().zip(labels).filter(|(row, label)| best(row) == **label).count()
}

fn quantized(passes: &str, settings: &Settings) -> (Module, PassContext) {
    let mut cx = PassContext::default();
    let passes = sequence(passes, settings).unwrap_or_else(|e| panic!("{e}"));
    let module = passes.run(network(), &mut cx).unwrap_or_else(|e| panic!("{e}"));
    (module, cx)
}

/// The calls of layers, and how many of them compute with floats.
fn layers(m: &Module) -> (usize, usize) {
    let typed = infer_types(m.clone()).expect("the passes keep types");
    let calls = reachable(&typed, typed.functions().map(|(_, f)| f)).into_iter().filter_map(|id| typed.op_call(id));
    let of_floats = calls
        .filter(|(op, ..)| {
            let name = op.op().name();
            name.contains("conv2d") || name.contains("dense")
        })
        .map(|(_, args, _)| matches!(typed.ty(args[0]), Type::Tensor(t) if t.dtype == DType::F32))
        .collect::<Vec<bool>>();
    (of_floats.len(), of_floats.iter().filter(|f| **f).count())
}

#[test]
fn integers_keep_the_accuracy_of_floats() {
    let (pixels, labels) = digits();
    let (batches, file) = (batches(&pixels), samples(&pixels));
    let settings = native(settings());
    let run = |m: &Module| -> Vec<Tensor> {
        let program = settings.backend.prepare(m).unwrap_or_else(|e| panic!("{e}"));
        batches
            .iter()
            .map(|b| program.run(std::slice::from_ref(b)).unwrap_or_else(|e| panic!("{e}")).remove(0))
            .collect()
    };
    let exact = run(&network());
    let floats = correct(&exact, &labels);
    assert!(floats * 1000 >= labels.len() * 985, "the network itself is right for {floats} of {}", labels.len());
    let calibration = format!("calibration=\"{}\"", file.path().display());
    for (k, arguments) in [
        "method=minmax,per_channel=true",
        "method=minmax,per_channel=false",
        "method=percentile,percentile=99.9,per_channel=true",
        "method=percentile,percentile=99.9,per_channel=false",
        "method=kl,per_channel=true",
        "method=kl,per_channel=false",
        "method=minmax,dtype_input=uint8",
        "method=minmax,dtype_input=int8,symmetric=false",
        "method=global_scale,scale=8.0",
    ]
    .into_iter()
    .enumerate()
    {
        let (module, _) = quantized(&format!("Quantize({calibration},{arguments})"), &settings);
        let (all, of_floats) = layers(&module);
        assert_eq!((all, of_floats), (4, 0), "{arguments}: layers, and those of floats");
        let scores = run(&module);
        let integers = correct(&scores, &labels);
        println!("{arguments}: {integers} of {} right, {floats} in floats", labels.len());
        // Half a point of a hundred.
        assert!(
            (floats as i64 - integers as i64).unsigned_abs() as usize * 200 <= labels.len(),
            "{arguments}: {integers} for {floats}"
        );
        let (a, b) = (correct(&scores[..1], &labels[..BATCH]), correct(&exact[..1], &labels[..BATCH]));
        assert!(b.saturating_sub(a) * 200 <= BATCH, "{arguments}: {a} for {b} of those held out");
        // The interpreter agrees, on the images that were held out.
        if k < 2 {
            let held_out = vec![Value::Tensor(batches[0].clone())];
            let oracle = interp::run_flat(&module, "main", held_out).unwrap_or_else(|e| panic!("{e}"));
            let (a, b) = (correct(&oracle, &labels[..BATCH]), correct(&scores[..1], &labels[..BATCH]));
            assert!(a.abs_diff(b) <= 1, "{arguments}: {a} interpreted, {b} compiled");
        }
    }
}

#[test]
fn layers_are_a_choice_within_an_error() {
    let (pixels, _) = digits();
    let file = samples(&pixels);
    let settings = native(settings());
    let calibration = format!("calibration=\"{}\"", file.path().display());
    let mut before = f64::INFINITY;
    for limit in [0.0f64, 0.02, 0.2] {
        let (_, cx) = quantized(&format!("Quantize({calibration},max_error={limit})"), &settings);
        let last = cx.reports.last().expect("a saturation");
        let note = last.notes.iter().find(|n| n.contains("quantized")).expect("the pass says what it chose");
        let measured: f64 = note
            .split("error ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .and_then(|n| n.parse().ok())
            .unwrap_or_else(|| panic!("{note}"));
        assert!(measured <= limit.max(1e-5), "{note}");
        assert!(last.cost_after <= before * (1.0 + 1e-9), "a wider limit gives no costlier program: {note}");
        before = last.cost_after;
    }
    let spec = parse_specs(&format!("Quantize({calibration})")).expect("well formed").remove(0);
    let quantize = Quantize::new(QuantizeOptions::parse(&spec).expect("legal"), &settings).expect("samples");
    let study = quantize.study(network()).unwrap_or_else(|e| panic!("{e}"));
    let names: Vec<&str> = study.layers.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["conv0_weight", "conv1_weight", "conv2_weight", "fc_weight"]);
    assert!(study.layers.iter().all(|l| l.error.is_some_and(|e| e > 0.0 && e < 0.5) && l.gain.is_some()), "{study}");
    let first = study.points.first().expect("the float program");
    assert!(first.quantized.is_empty() && first.measured == 0.0 && first.predicted == 0.0, "{study}");
    for pair in study.points.windows(2) {
        assert!(pair[0].cost > pair[1].cost && pair[0].predicted < pair[1].predicted, "{study}");
    }
    let again = quantize.study(network()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(study.to_json(), again.to_json(), "the same every time");
}

#[test]
fn layers_are_chosen_by_number_and_by_name() {
    let settings = settings();
    for (arguments, floats) in [
        ("", 0),
        ("from_layer=1", 1),
        ("from_layer=1,to_layer=2", 2),
        ("skip=\"conv1_weight,3\"", 2),
        ("skip=\"nn.conv2d\"", 3),
        ("from_layer=4", 4),
    ] {
        let (module, _) = quantized(&format!("Quantize({arguments})"), &settings);
        assert_eq!(layers(&module), (4, floats), "{arguments}");
    }
    let (module, cx) = quantized("Quantize(integer=false)", &settings);
    assert_eq!(layers(&module), (4, 4));
    assert_eq!(cx.warnings, [""; 0]);
}

#[test]
fn where_nothing_is_quantized_a_warning_says_why() {
    let settings = settings();
    for (passes, why) in [
        ("FuseOps, Quantize", "its layers (4) are inside functions or branches"),
        ("default, Calibrate", "its layers (1) are inside functions or branches"),
        ("Quantize(from_layer=4)", "none of the 4 layers is chosen"),
        ("Quantize, Quantize", "`@main` has no layer of float32"),
    ] {
        let (_, cx) = quantized(passes, &settings);
        // Other passes may have something to say as well.
        let said = cx.warnings.iter().filter(|w| w.contains("quantizes nothing")).collect::<Vec<_>>();
        let [warning] = said[..] else { panic!("{passes}: {:?}", cx.warnings) };
        assert!(warning.contains(why), "{passes}: {warning}");
    }
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_resat"));
    command.arg("opt").arg(folder().join("model.relay")).args(["--passes", "FuseOps, Quantize"]);
    let stderr = String::from_utf8(command.output().expect("it starts").stderr).expect("it is text");
    assert!(stderr.contains("warning: Quantize quantizes nothing"), "{stderr}");
}

/// Marks are program text; rulesets that a user names choose among them.
#[test]
fn marks_are_a_choice_for_any_saturation() {
    let file = samples(&digits().0);
    let mut settings = native(settings());
    settings.grade = resat::saturate::Grade::Approx;
    settings.limits.error = 0.04;
    let mark = format!("Calibrate(calibration=\"{}\",skip=0)", file.path().display());
    let (module, _) = quantized(&mark, &settings);
    let text = resat::relay::text::print_module(&module);
    assert_eq!(text.matches("quantize.site(").count(), 6, "{text}");
    assert!(text.contains("name=\"conv1_weight\""), "{text}");
    let again = resat::relay::text::parse_module("printed", &text).unwrap_or_else(|e| panic!("{e}"));
    let sets = "quantization, fake-quantization, quantize, qnn, algebra, shapes, layout, dot-products";
    let mut cx = PassContext::default();
    let passes = sequence(&format!("Saturate({sets}), FoldConstant"), &settings).unwrap_or_else(|e| panic!("{e}"));
    let done = passes.run(again, &mut cx).unwrap_or_else(|e| panic!("{e}"));
    assert!(cx.reports[0].error <= 0.04 && cx.reports[0].cost_after < cx.reports[0].cost_before);
    assert!(!resat::relay::text::print_module(&done).contains("quantize.site"));
    // Without them, marks are nothing.
    let (plain, _) = quantized(&format!("{mark}, default"), &native(self::settings()));
    assert_eq!(layers(&plain), (4, 4));
}

#[test]
fn what_does_not_fit_is_refused() {
    let settings = settings();
    let file = samples(&digits().0);
    let samples = file.path().display();
    for (pass, said) in [
        ("Quantize(method=kl)".to_owned(), "needs samples"),
        ("Quantize(metod=kl)".to_owned(), "did you mean `method`"),
        ("Quantize(dtype_weight=int4)".to_owned(), "should be int8"),
        ("Quantize(max_error=0.1)".to_owned(), "measured on samples"),
        ("Calibrate(integer=false)".to_owned(), "takes no `integer`"),
        ("Quantize(percentile=99)".to_owned(), "`percentile` for `method=percentile`"),
        (format!("Quantize(calibration=\"{samples}\",method=percentile,percentile=0)"), "share in percent"),
        ("Quantize(calibration=\"no-such.npz\")".to_owned(), "no-such.npz"),
    ] {
        let refused = sequence(&pass, &settings).err().unwrap_or_else(|| panic!("{pass} is taken")).to_string();
        assert!(refused.contains(said), "{pass}: {refused}");
    }
    let run =
        |pass: &str, m: Module| sequence(pass, &settings).expect("well formed").run(m, &mut PassContext::default());
    let refused = run("Quantize(skip=conv9_weight)", network()).expect_err("no such layer").to_string();
    assert!(refused.contains("no layer `conv9_weight`"), "{refused}");
    let unbound = load_module(&folder().join("model.relay")).expect("the model is there");
    let refused = run(&format!("Quantize(calibration=\"{samples}\")"), unbound).expect_err("no weights").to_string();
    assert!(refused.contains("lack the parameter `conv0_weight`"), "{refused}");
}

#[test]
fn the_command_line_shows_what_there_is_to_choose_between() {
    let file = samples(&digits().0);
    let page = tempfile::Builder::new().suffix(".html").tempfile().expect("there is room");
    let run = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_resat"));
        command.arg("sensitivity").arg(folder().join("model.relay")).arg("--params").arg(folder().join("model.params"));
        command.arg("--samples").arg(file.path()).args(more).output().expect("it starts")
    };
    let out =
        run(&["--quantize", "method=percentile,skip=fc_weight", "--json", "-o", &page.path().display().to_string()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
    let layers = found["layers"].as_array().expect("a list");
    assert_eq!(layers.len(), 4);
    assert_eq!(layers[1]["name"], "conv1_weight");
    assert!(layers[1]["error"].as_f64().is_some_and(|e| e > 0.0) && layers[3]["error"].is_null(), "{found}");
    assert!(found["curve"].as_array().is_some_and(|c| !c.is_empty() && c[0]["measured_error"] == 0.0), "{found}");
    let html = std::fs::read_to_string(page.path()).expect("the page is written");
    assert!(html.contains("<svg") && html.contains("conv2_weight"));
    let out = run(&["--quantize", "metod=kl"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("did you mean `method`?"), "{said}");
}

/// A network of branches, pools and concatenations, as SqueezeNet's, with weights.
fn branches() -> Module {
    let text = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(1, 3, 32, 32), float32], %w0: Tensor[(32, 3, 3, 3), float32], %b0: Tensor[(32), float32],
  %w1: Tensor[(16, 32, 1, 1), float32], %b1: Tensor[(16), float32], %w2: Tensor[(32, 16, 1, 1), float32], %b2: Tensor[(32), float32],
  %w3: Tensor[(32, 16, 3, 3), float32], %b3: Tensor[(32), float32], %w4: Tensor[(64, 64, 1, 1), float32], %b4: Tensor[(64), float32]) {
  %0 = nn.relu(nn.bias_add(nn.conv2d(%x, %w0, strides=[2, 2], padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3]), %b0));
  %1 = nn.max_pool2d(%0, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]);
  %2 = nn.relu(nn.bias_add(nn.conv2d(%1, %w1, padding=[0, 0, 0, 0], channels=16, kernel_size=[1, 1]), %b1));
  %3 = nn.relu(nn.bias_add(nn.conv2d(%2, %w2, padding=[0, 0, 0, 0], channels=32, kernel_size=[1, 1]), %b2));
  %4 = nn.relu(nn.bias_add(nn.conv2d(%2, %w3, padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3]), %b3));
  %5 = concatenate((%3, %4), axis=1);
  %6 = nn.relu(nn.bias_add(nn.conv2d(%5, %w4, padding=[0, 0, 0, 0], channels=64, kernel_size=[1, 1]), %b4));
  nn.global_avg_pool2d(%6)
}";
    let module = text::parse_module("branches", text).unwrap_or_else(|e| panic!("{e}"));
    let typed = infer_types(module.clone()).expect("well typed");
    let weights: Vec<_> = typed
        .entry("main")
        .expect("an entry")
        .params
        .iter()
        .skip(1)
        .map(|&p| {
            let shape = typed.var_ty(p).as_tensor().and_then(|t| t.known_shape()).expect("known extents");
            let shape: Vec<usize> = shape.into_iter().map(|n| n as usize).collect();
            let t = Tensor::from_f64_fn(DType::F32, &shape, |i| ((i * 7919 % 31) as f64 - 14.0) / 64.0);
            (module.var(p).name.clone(), t)
        })
        .collect();
    bind_params(&module, &weights).expect("they fit")
}

/// Behind `Quantize` values stay in blocks of channels from one convolution to the next, through the scales between them; a layout that is
/// asked for costs what brings the image into it, and no other transform or slower convolution.
#[test]
fn layouts_of_quantized_networks_cost_what_they_must() {
    for cpu in ["cooperlake", "skylake-avx512"] {
        let target = format!("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu} -num-cores=1");
        let settings = Settings::new(Target::parse(&target).expect("a target"));
        for (asked, most) in [("", 1), ("ConvertLayout(from=\"NCHW\", to=\"NHWC\"),", 3)] {
            let passes = format!("Quantize,{asked}default");
            let run = sequence(&passes, &settings).and_then(|p| p.run(branches(), &mut PassContext::default()));
            let m = run.unwrap_or_else(|e| panic!("{passes}: {e}"));
            let calls = reachable(&m, m.functions().map(|(_, f)| f))
                .into_iter()
                .filter_map(|e| Some(m.op_call(e)?.0.op().name()));
            let names: Vec<&str> = calls.collect();
            let moves = names.iter().filter(|n| ["layout_transform", "transpose"].contains(*n)).count();
            assert!(moves <= most, "{cpu}, {passes}: {moves} transforms in\n{}", text::print_brief(&m));
            let slow = names.iter().filter(|n| **n == "nn.conv2d").count();
            let in_blocks = ["nn.contrib_conv2d_NCHWc", "nn.winograd_conv2d_int8"];
            let blocked = names.iter().filter(|n| in_blocks.contains(*n)).count();
            assert!(
                slow == 0 && blocked == 5,
                "{cpu}, {passes}: {slow} plain convolutions in\n{}",
                text::print_brief(&m)
            );
        }
    }
}
