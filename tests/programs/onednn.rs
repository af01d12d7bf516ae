//! Regions as primitives of oneDNN give what the interpreter gives: every construct, in every type that it has. Where the library is
//! not installed, the tests say so and pass.

use crate::common::onednn::{Random, bytes, compare, floats, installed};
use resat::{
    driver::{Options, build},
    infer::infer_types,
    interp,
    ir::{Attrs, Copier, Expr, Function, Module},
    partition,
    pass::{Settings, bind_params, sequence},
    relay::text::parse_module,
    runtime::onednn::Library,
    target::Target,
    tensor::{DType, Tensor, Value},
};

/// A module whose `@main` hands all that it computes to the library.
fn handed_over(m: &Module) -> Module {
    let typed = infer_types(m.clone()).unwrap_or_else(|e| panic!("{e}"));
    let m = typed.module();
    let mut out = m.derive();
    let main = m.function_id("main").expect("there is a main");
    let copied = Copier::new().copy(m, main, &mut out);
    let attrs = Attrs::new(vec![
        ("Primitive".into(), resat::ir::AttrValue::Int(1)),
        ("Compiler".into(), "onednn".into()),
        ("global_symbol".into(), "region0".into()),
    ]);
    let region = Function { attrs, ..out.func(copied).clone() };
    let types: Vec<_> = m.func(main).params.iter().map(|&p| typed.var_ty(p).clone()).collect();
    let region = out.add(Expr::Func(Box::new(region)));
    let params: Vec<_> = types.into_iter().enumerate().map(|(i, t)| out.new_var(format!("x{i}"), Some(t))).collect();
    let args = params.iter().map(|&p| out.add(Expr::Var(p))).collect();
    let body = out.add(Expr::Call { callee: region, args, attrs: Attrs::empty(), type_args: vec![] });
    let main = out.add(Expr::Func(Box::new(Function::new(params, body, None))));
    out.define("main", main);
    out
}

/// Runs a program whose parameters that begin with `c` are constants in both ways, with these threads.
fn check(program: &str, seed: u64, threads: usize) {
    let mut random = Random(seed);
    let text = format!("#[version = \"0.0.5\"]\n{program}");
    let module = parse_module("program", &text).unwrap_or_else(|e| panic!("{program}\n{e}"));
    let typed = infer_types(module.clone()).unwrap_or_else(|e| panic!("{program}\n{e}"));
    let (mut constants, mut inputs) = (Vec::new(), Vec::new());
    for &p in &typed.entry("main").expect("there is a main").params {
        let t = typed.var_ty(p).as_tensor().expect("tensors").clone();
        let shape: Vec<usize> = t.known_shape().expect("known").iter().map(|&n| n as usize).collect();
        let name = typed.module().var(p).name.clone();
        let positive = name.starts_with("cp") || name.starts_with("xp");
        let mut data = random.tensor(t.dtype, &shape);
        if positive {
            data = Tensor::from_f64_fn(t.dtype, &shape, |i| data.get_f64(i).abs() + 0.1);
        }
        if name.starts_with("cscale") {
            data = Tensor::from_f64_fn(t.dtype, &shape, |i| 0.001 + 0.0007 * i as f64);
        }
        match name.starts_with('c') {
            true => constants.push((name, data)),
            false => inputs.push(data),
        }
    }
    let bound = bind_params(&module, &constants).unwrap_or_else(|e| panic!("{program}\n{e}"));
    let plain = infer_types(bound.clone()).unwrap_or_else(|e| panic!("{program}\n{e}"));
    let values: Vec<Value> = inputs.iter().cloned().map(Value::from).collect();
    let wanted = interp::run(plain.module(), "main", values).unwrap_or_else(|e| panic!("{program}\n{e}"));
    let wanted = wanted.flatten().expect("tensors");
    let settings = Settings::new(Target::parse("llvm -mcpu=native -num-cores=2").expect("a target"));
    let passes = sequence("", &settings).expect("no passes");
    let options = Options { passes: Some(Box::new(passes)), threads, ..Options::new(settings) };
    let built = build(handed_over(&bound), &[], options).unwrap_or_else(|e| panic!("{program}\n{e}"));
    assert_eq!(
        built.record().expect("it is built here").external.iter().map(|e| e.0.as_str()).collect::<Vec<_>>(),
        ["region0"]
    );
    for _ in 0..2 {
        let got = built.executable.run(&inputs).unwrap_or_else(|e| panic!("{program}\n{e}"));
        assert_eq!(got.len(), wanted.len());
        for (i, (g, w)) in got.iter().zip(&wanted).enumerate() {
            compare(g, w, &format!("{program}\nresult {i}"));
        }
    }
}

#[test]
fn convolutions() {
    if !installed() {
        return;
    }
    let mut r = Random(7);
    for t in floats() {
        for round in 0..24 {
            let groups = r.pick(&[1, 1, 2, 8]);
            let (ci, co) = (r.pick(&[8, 16, 24]), r.pick(&[8, 16, 32]));
            let (h, w) = (5 + r.below(8), 5 + r.below(8));
            let (kh, kw) = (1 + r.below(3), 1 + r.below(3));
            let (sh, sw, dh, dw) = (1 + r.below(2), 1 + r.below(2), 1 + r.below(2), 1 + r.below(2));
            let pads = [r.below(2), r.below(3), r.below(2), r.below(2)];
            let nhwc = round % 3 == 1;
            let per = ci / groups;
            let (data, weight, layouts) = match nhwc {
                false => (format!("2, {ci}, {h}, {w}"), format!("{co}, {per}, {kh}, {kw}"), "".to_owned()),
                true => (
                    format!("2, {h}, {w}, {ci}"),
                    format!("{kh}, {kw}, {per}, {co}"),
                    ", data_layout=\"NHWC\", kernel_layout=\"HWIO\"".to_owned(),
                ),
            };
            let axis = if nhwc { 3 } else { 1 };
            let conv = format!(
                "nn.conv2d(%x, %c, strides=[{sh}, {sw}], padding={pads:?}, dilation=[{dh}, {dw}], groups={groups}, \
                 channels={co}, kernel_size=[{kh}, {kw}]{layouts})"
            );
            let body = match round % 6 {
                0 => conv,
                1 => format!("nn.relu(nn.bias_add({conv}, %cb, axis={axis}))"),
                2 => format!("let %y = nn.bias_add({conv}, %cb, axis={axis}); sigmoid(add(%y, tanh(%y)))")
                    .replace("let %y = ", "%0 = ")
                    .replace("%y", "%0"),
                3 => format!("%0 = {conv}; add(%0, nn.relu(%0))"),
                4 => format!("clip({conv}, a_min=0f, a_max=0.5f)"),
                _ => format!("%0 = nn.relu({conv}); (%0, abs(%0))"),
            };
            check(
                &format!(
                    "def @main(%x: Tensor[({data}), {t}], %c: Tensor[({weight}), {t}], %cb: Tensor[({co}), {t}]) {{ {body} }}"
                ),
                round as u64,
                1 + round % 2,
            );
        }
    }
}

#[test]
fn blocks_with_residual_sums() {
    if !installed() {
        return;
    }
    for (t, n) in floats().into_iter().flat_map(|t| [8, 16, 20].map(|n| (t, n))) {
        for (i, sum) in ["add(%2, %0)", "add(%0, %2)", "maximum(%2, %0)", "multiply(%0, %2)"].iter().enumerate() {
            check(
                &format!(
                    "def @main(%x: Tensor[(1, {n}, 9, 9), {t}], %c1: Tensor[({n}, {n}, 3, 3), {t}], \
                     %c2: Tensor[({n}, {n}, 3, 3), {t}], %c3: Tensor[({n}), {t}], %c4: Tensor[({n}, {n}, 1, 1), {t}]) {{
                     %0 = nn.relu(nn.bias_add(nn.conv2d(%x, %c1, padding=[1, 1]), %c3));
                     %1 = nn.relu(nn.conv2d(%0, %c2, padding=[1, 1]));
                     %2 = nn.bias_add(nn.conv2d(%1, %c4), %c3);
                     %3 = nn.relu({sum});
                     %4 = nn.max_pool2d(%3, pool_size=[3, 3], strides=[2, 2], padding=[1, 1]);
                     %5 = nn.conv2d(%4, %c4);
                     concatenate((%5, nn.avg_pool2d(%4, pool_size=[3, 3], padding=[1, 1, 1, 1])), axis=1) }}"
                ),
                i as u64,
                2,
            );
        }
    }
}

#[test]
fn other_convolutions() {
    if !installed() {
        return;
    }
    let cases = [
        "def @main(%x: Tensor[(1, 6, 20), T], %c: Tensor[(4, 6, 3), T]) { nn.conv1d(%x, %c, padding=[1, 2]) }",
        "def @main(%x: Tensor[(1, 4, 5, 6, 7), T], %c: Tensor[(8, 4, 2, 3, 3), T]) { nn.conv3d(%x, %c, padding=[1, 1, 1]) }",
        // Two results a channel.
        "def @main(%x: Tensor[(1, 8, 7, 7), T], %c: Tensor[(8, 2, 3, 3), T]) { nn.conv2d(%x, %c, groups=8, channels=16, kernel_size=[3, 3]) }",
        "def @main(%x: Tensor[(1, 7, 7, 8), T], %c: Tensor[(3, 3, 8, 1), T]) { nn.conv2d(%x, %c, groups=8, channels=8, kernel_size=[3, 3], data_layout=\"NHWC\", kernel_layout=\"HWOI\") }",
        // The weight is no constant.
        "def @main(%x: Tensor[(1, 8, 7, 7), T], %xw: Tensor[(16, 8, 3, 3), T], %xb: Tensor[(16), T]) { nn.bias_add(nn.conv2d(%x, %xw), %xb) }",
        "def @main(%x: Tensor[(1, 6, 5, 4), T], %c: Tensor[(6, 5, 3, 3), T]) { nn.conv2d_transpose(%x, %c, channels=5, kernel_size=[3, 3], strides=[2, 2], padding=[1, 1], output_padding=[1, 0]) }",
        "def @main(%x: Tensor[(1, 6, 5, 4), T], %c: Tensor[(6, 2, 2, 2), T]) { nn.relu(nn.conv2d_transpose(%x, %c, groups=2, channels=4, kernel_size=[2, 2])) }",
        "def @main(%x: Tensor[(1, 512, 4, 4), T], %c: Tensor[(512, 16, 4, 4), T], %cb: Tensor[(16), T]) { nn.relu(nn.bias_add(nn.conv2d_transpose(%x, %c, channels=16, kernel_size=[4, 4], strides=[2, 2], padding=[1, 1, 1, 1]), %cb)) }",
        "def @main(%x: Tensor[(1, 8, 6, 6), T], %c: Tensor[(8, 8, 3, 3), T]) { transpose(nn.conv2d(%x, %c, out_layout=\"NHWC\"), axes=[0, 3, 1, 2]) }",
    ];
    for t in floats() {
        for (i, case) in cases.iter().enumerate() {
            check(&case.replace(", T]", &format!(", {t}]")), i as u64, 1);
        }
    }
}

#[test]
fn products() {
    if !installed() {
        return;
    }
    let cases = [
        "def @main(%x: Tensor[(3, 20), T], %c: Tensor[(7, 20), T]) { nn.dense(%x, %c) }",
        "def @main(%x: Tensor[(3, 20), T], %c: Tensor[(16, 20), T], %cb: Tensor[(16), T]) { nn.relu(nn.bias_add(nn.dense(%x, %c), %cb, axis=-1)) }",
        "def @main(%x: Tensor[(3, 20), T], %c: Tensor[(16, 20), T], %cb: Tensor[(16), T], %x2: Tensor[(3, 16), T]) { tanh(add(add(nn.dense(%x, %c), %cb), %x2)) }",
        "def @main(%x: Tensor[(2, 3, 20), T], %c: Tensor[(16, 20), T]) { sigmoid(nn.dense(%x, %c)) }",
        "def @main(%x: Tensor[(3, 20), T], %xw: Tensor[(7, 20), T]) { nn.dense(%x, %xw) }",
        "def @main(%x: Tensor[(20, 3), T], %xw: Tensor[(20, 9), T]) { nn.matmul(%x, %xw, transpose_a=True) }",
        "def @main(%x: Tensor[(3, 20), T], %c: Tensor[(9, 20), T]) { nn.matmul(%x, %c, transpose_b=True) }",
        "def @main(%x: Tensor[(4, 5, 16), T], %y: Tensor[(4, 7, 16), T]) { nn.softmax(nn.batch_matmul(%x, %y, transpose_b=True)) }",
        "def @main(%x: Tensor[(4, 5, 16), T], %y: Tensor[(1, 7, 16), T]) { nn.batch_matmul(%x, %y, transpose_b=True) }",
        "def @main(%x: Tensor[(4, 5, 16), T], %c: Tensor[(4, 16, 6), T]) { multiply(nn.batch_matmul(%x, %c, transpose_b=False), 0.125f) }",
        "def @main(%x: Tensor[(1, 5, 32), T], %y: Tensor[(1, 5, 32), T]) {
            %0 = transpose(reshape(%x, newshape=[5, 4, 8]), axes=[1, 0, 2]); %1 = transpose(reshape(%y, newshape=[5, 4, 8]), axes=[1, 0, 2]);
            %2 = nn.softmax(nn.batch_matmul(%0, %1, transpose_b=True)); %3 = nn.batch_matmul(%2, transpose(%1, axes=[0, 2, 1]), transpose_b=True);
            reshape(transpose(%3, axes=[1, 0, 2]), newshape=[1, 5, 32]) }",
    ];
    for t in floats() {
        for (i, case) in cases.iter().enumerate() {
            // Numbers in the text are of float32.
            if t != "float32" && case.contains("0.125f") {
                continue;
            }
            check(&case.replace(", T]", &format!(", {t}]")), i as u64, 2);
        }
    }
}

#[test]
fn pools() {
    if !installed() {
        return;
    }
    let data = "def @main(%x: Tensor[(1, 8, 9, 10), T])";
    let last = "def @main(%x: Tensor[(1, 9, 10, 8), T])";
    let cases = [
        format!("{data} {{ nn.max_pool2d(%x, pool_size=[3, 2], strides=[2, 2], padding=[1, 0, 2, 1]) }}"),
        format!("{data} {{ nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 2], dilation=[2, 1]) }}"),
        format!("{data} {{ nn.max_pool2d(%x, pool_size=[2, 2], strides=[2, 3], ceil_mode=True) }}"),
        format!("{data} {{ nn.avg_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]) }}"),
        format!("{data} {{ nn.avg_pool2d(%x, pool_size=[3, 3], padding=[1, 1, 1, 1], count_include_pad=True) }}"),
        format!("{data} {{ nn.avg_pool2d(%x, pool_size=[2, 2], strides=[2, 2], ceil_mode=True) }}"),
        format!("{last} {{ nn.max_pool2d(%x, pool_size=[2, 2], layout=\"NHWC\") }}"),
        format!(
            "{data} {{ (nn.global_avg_pool2d(%x), nn.global_max_pool2d(%x), nn.adaptive_avg_pool2d(%x, output_size=[1, 1])) }}"
        ),
        "def @main(%x: Tensor[(1, 4, 9), T]) { nn.avg_pool1d(nn.max_pool1d(%x, pool_size=[2]), pool_size=[3]) }".into(),
        "def @main(%x: Tensor[(1, 4, 6, 5, 4), T]) { nn.max_pool3d(%x, pool_size=[2, 2, 2], strides=[2, 1, 1]) }"
            .into(),
    ];
    for t in floats() {
        for (i, case) in cases.iter().enumerate() {
            check(&case.replace(", T]", &format!(", {t}]")), i as u64, 1);
        }
    }
    for t in ["uint8", "int8"] {
        check(&cases[0].replace(", T]", &format!(", {t}]")), 1, 1);
    }
}

#[test]
fn elementwise() {
    if !installed() {
        return;
    }
    let mut cases = Vec::new();
    for f in ["nn.relu", "tanh", "sigmoid", "exp", "abs", "negative", "sqrt", "log", "rsqrt"] {
        cases.push(format!("def @main(%xp: Tensor[(3, 5, 7), T]) {{ {f}(%xp) }}"));
    }
    for f in ["nn.relu", "nn.leaky_relu", "abs", "tanh"] {
        let more = if f == "nn.leaky_relu" { ", alpha=0.3f" } else { "" };
        cases.push(format!("def @main(%x: Tensor[(3, 5, 7), T]) {{ {f}(%x{more}) }}"));
    }
    for f in ["add", "subtract", "multiply", "divide", "maximum", "minimum"] {
        for (x, y) in
            [("2, 3, 4", "2, 3, 4"), ("2, 3, 4", "4"), ("2, 3, 4", "3, 1"), ("1, 4", "2, 3, 4"), ("3, 4", "1, 1")]
        {
            cases.push(format!("def @main(%x: Tensor[({x}), T], %xp: Tensor[({y}), T]) {{ {f}(%x, %xp) }}"));
            cases.push(format!("def @main(%x: Tensor[({x}), T], %cp: Tensor[({y}), T]) {{ nn.relu({f}(%x, %cp)) }}"));
        }
    }
    for axis in [0, 1, -1] {
        cases.push(format!("def @main(%x: Tensor[(3, 5, 7), T]) {{ nn.softmax(%x, axis={axis}) }}"));
        cases.push(format!("def @main(%x: Tensor[(3, 5, 7), T]) {{ nn.log_softmax(%x, axis={axis}) }}"));
    }
    cases.push("def @main(%x: Tensor[(3, 5), T], %y: Tensor[(3, 2), T]) { concatenate((%x, %y, %x), axis=-1) }".into());
    cases.push("def @main(%x: Tensor[(3, 5), T]) { (%x, transpose(%x), squeeze(expand_dims(%x, axis=1)), nn.batch_flatten(%x), %x) }".into());
    cases.push("def @main(%x: Tensor[(3, 5), T]) { %0 = tanh(%x); (%0, %0, exp(%0)) }".into());
    for t in floats() {
        for (i, case) in cases.iter().enumerate() {
            check(&case.replace(", T]", &format!(", {t}]")), i as u64, 1);
        }
    }
    if floats().len() > 1 {
        check(
            "def @main(%x: Tensor[(3, 5), float32]) { cast(tanh(cast(%x, dtype=\"bfloat16\")), dtype=\"float32\") }",
            1,
            1,
        );
    }
}

#[test]
fn normalizations() {
    if !installed() {
        return;
    }
    for (layout, shape) in [("1, 16, 8, 8", "axis=1"), ("1, 8, 8, 16", "axis=3")] {
        let conv = if shape == "axis=1" { "nn.conv2d(%x, %c, padding=[1, 1])" } else { "tanh(%x)" };
        check(
            &format!(
                "def @main(%x: Tensor[({layout}), float32], %c: Tensor[(16, 16, 3, 3), float32], %c1: Tensor[(16), float32], \
                 %c2: Tensor[(16), float32], %c3: Tensor[(16), float32], %cp: Tensor[(16), float32]) {{
                 nn.relu(nn.batch_norm({conv}, %c1, %c2, %c3, %cp, {shape}).0) }}"
            ),
            3,
            1,
        );
        check(
            &format!(
                "def @main(%x: Tensor[({layout}), float32], %x1: Tensor[(16), float32], %x2: Tensor[(16), float32], \
                 %x3: Tensor[(16), float32], %xp: Tensor[(16), float32]) {{
                 nn.batch_norm(%x, %x1, %x2, %x3, %xp, {shape}).0 }}"
            ),
            3,
            1,
        );
    }
}

#[test]
fn quantized_convolutions_are_exact() {
    if !bytes() {
        return;
    }
    let mut r = Random(11);
    for round in 0..24 {
        let data = r.pick(&["uint8", "int8"]);
        let groups = r.pick(&[1, 1, 1, 16]);
        let (ci, co) = if groups == 16 { (16, 16) } else { (r.pick(&[3, 16, 64]), r.pick(&[8, 16, 33])) };
        let (h, w, k) = (4 + r.below(6), 4 + r.below(6), 1 + r.below(3));
        let pads = [r.below(2), r.below(2), r.below(2), r.below(2)];
        let zero = r.pick(&[0, 0, 5, 120]);
        let rounding = r.pick(&["UPWARD", "TONEAREST", "None"]);
        let out = r.pick(&["uint8", "int8", "int32"]);
        let nhwc = round % 4 == 3;
        let per = ci / groups;
        let (x, wt, layouts, axis) = match nhwc {
            false => (format!("2, {ci}, {h}, {w}"), format!("{co}, {per}, {k}, {k}"), "", 1),
            true if groups > 1 => (
                format!("2, {h}, {w}, {ci}"),
                format!("{k}, {k}, {co}, {per}"),
                ", data_layout=\"NHWC\", kernel_layout=\"HWOI\"",
                3,
            ),
            true => (
                format!("2, {h}, {w}, {ci}"),
                format!("{k}, {k}, {per}, {co}"),
                ", data_layout=\"NHWC\", kernel_layout=\"HWIO\"",
                3,
            ),
        };
        let conv = format!(
            "qnn.conv2d(%x, %c, {zero}, 0, 0.02f, 0.01f, padding={pads:?}, groups={groups}, channels={co}, kernel_size=[{k}, {k}]{layouts}, out_dtype=\"int32\")"
        );
        let requantize = |y: &str| {
            format!(
                "qnn.requantize({y}, %cscale, 0, 0.9f, 3, axis={axis}, rounding=\"{rounding}\", out_dtype=\"{out}\")"
            )
        };
        let body = match round % 4 {
            0 => conv,
            1 => requantize(&format!("nn.bias_add({conv}, %cb, axis={axis})")),
            2 => format!("clip({}, a_min=0f, a_max=100f)", requantize(&conv)),
            _ => requantize(&format!("nn.bias_add({conv}, %xb, axis={axis})")),
        };
        check(
            &format!(
                "def @main(%x: Tensor[({x}), {data}], %c: Tensor[({wt}), int8], %cb: Tensor[({co}), int32], %xb: Tensor[({co}), int32], \
                 %cscale: Tensor[({co}), float32]) {{ {body} }}"
            ),
            round as u64,
            1 + round % 2,
        );
    }
}

/// Sums that f32 would round.
#[test]
fn great_sums_are_exact() {
    if !bytes() {
        return;
    }
    for data in ["uint8", "int8"] {
        for (zero, pad) in [(0, 1), (7, 1), (7, 0)] {
            check(
                &format!(
                    "def @main(%x: Tensor[(1, 512, 4, 4), {data}], %c: Tensor[(16, 512, 3, 3), int8], %cb: Tensor[(16), int32]) {{
                     nn.bias_add(qnn.conv2d(nn.relu(maximum_(%x)), %c, {zero}, 0, 1f, 1f, padding=[{pad}, {pad}], channels=16, kernel_size=[3, 3], out_dtype=\"int32\"), %cb) }}"
                )
                .replace("nn.relu(maximum_(%x))", "%x"),
                5,
                1,
            );
        }
        check(
            &format!(
                "def @main(%x: Tensor[(3, 2000), {data}], %c: Tensor[(24, 2000), int8]) {{
                 qnn.dense(clip(%x, a_min=100f, a_max=127f), %c, 3, 0, 1f, 1f, units=24, out_dtype=\"int32\") }}"
            ),
            5,
            1,
        );
    }
    check(
        "def @main(%x: Tensor[(3, 64), uint8], %c: Tensor[(24, 64), int8]) { nn.dense(%x, %c, out_dtype=\"int32\") }",
        5,
        1,
    );
}

#[test]
fn quantized_blocks_are_exact() {
    if !bytes() {
        return;
    }
    for threads in [1, 2] {
        check(
            "def @main(%x: Tensor[(1, 16, 9, 9), uint8], %c1: Tensor[(16, 16, 3, 3), int8], %c2: Tensor[(16, 16, 3, 3), int8], \
             %cb: Tensor[(16), int32], %cscale: Tensor[(16), float32]) {
             %0 = qnn.conv2d(%x, %c1, 0, 0, 1f, 1f, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3], out_dtype=\"int32\");
             %1 = qnn.requantize(nn.bias_add(%0, %cb), %cscale, 0, 0.7f, 0, axis=1, out_dtype=\"uint8\");
             %2 = qnn.conv2d(%1, %c2, 0, 0, 1f, 1f, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3], out_dtype=\"int32\");
             %3 = qnn.requantize(nn.bias_add(%2, %cb), %cscale, 0, 0.7f, 119, axis=1, out_dtype=\"uint8\");
             %4 = qnn.add(%3, %x, 0.04f, 119, 0.02f, 0, 0.033f, 0, lhs_axis=1, rhs_axis=1);
             (%4, nn.max_pool2d(%4, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])) }",
            9,
            threads,
        );
    }
}

#[test]
fn what_it_takes_is_asked_of_the_compiler() {
    let onednn = partition::compiler("dnnl").expect("it is shipped");
    assert_eq!(onednn.name(), "onednn");
    assert_eq!(partition::heed(onednn).is_ok(), Library::get().is_ok());
}

/// A network whose parameters but the first are constants.
const NETWORK: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(1, 3, 12, 12), float32], %w: Tensor[(8, 3, 3, 3), float32], %g: Tensor[(8), float32], %b: Tensor[(8), float32],
          %m: Tensor[(8), float32], %s: Tensor[(8), float32], %v: Tensor[(8, 8, 3, 3), float32], %d: Tensor[(5, 8), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], kernel_size=[3, 3], channels=8);
  %1 = nn.batch_norm(%0, %g, %b, %m, %s);
  %2 = nn.relu(%1.0);
  %3 = nn.conv2d(%2, %v, padding=[1, 1, 1, 1], kernel_size=[3, 3], channels=8);
  %4 = nn.relu(add(nn.batch_norm(%3, %g, %b, %m, %s).0, %2));
  %5 = nn.max_pool2d(%4, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
  %6 = nn.batch_flatten(nn.global_avg_pool2d(%5));
  nn.softmax(nn.dense(%6, %d))
}";

/// The network's result in these passes, and the regions that there were.
fn network(passes: &str) -> (Tensor, Vec<String>) {
    let module = parse_module("network", NETWORK).unwrap_or_else(|e| panic!("{e}"));
    let mut r = Random(5);
    let mut given: Vec<(resat::ir::Name, Tensor)> = Vec::new();
    for (name, shape) in [
        ("x", &[1, 3, 12, 12][..]),
        ("w", &[8, 3, 3, 3]),
        ("g", &[8]),
        ("b", &[8]),
        ("m", &[8]),
        ("s", &[8]),
        ("v", &[8, 8, 3, 3]),
        ("d", &[5, 8]),
    ] {
        let data = r.tensor(DType::F32, shape);
        let positive = Tensor::from_f64_fn(DType::F32, shape, |i| data.get_f64(i).abs() + 0.5);
        given.push((name.into(), if name == "s" { positive } else { data }));
    }
    let x = given.remove(0).1;
    let settings = Settings::new(Target::host());
    let passes = sequence(passes, &settings).unwrap_or_else(|e| panic!("{e}"));
    let options = Options { passes: Some(Box::new(passes)), threads: 1, ..Options::new(settings) };
    let built = build(module, &given, options).unwrap_or_else(|e| panic!("{e}"));
    let y = built.executable.run(&[x]).unwrap_or_else(|e| panic!("{e}")).swap_remove(0);
    (y, built.into_record().expect("it is built here").external.into_iter().map(|(symbol, _)| symbol).collect())
}

#[test]
fn networks_in_short_floats_are_partitioned() {
    if !installed() {
        return;
    }
    for (dtype, within) in [("bfloat16", 0.03), ("float16", 0.005)] {
        let convert = format!("ToMixedPrecision({dtype})");
        let (wanted, none) = network(&format!("{convert}, default"));
        assert!(none.is_empty());
        for compiler in ["onednn", "c"] {
            let (got, regions) = network(&format!("{convert}, partition_for({compiler})"));
            assert_eq!(got.dtype(), wanted.dtype());
            for i in 0..got.len() {
                let (g, w) = (got.get_f64(i), wanted.get_f64(i));
                assert!((g - w).abs() <= within, "{compiler} {dtype}: element {i} is {g}, should be {w}");
            }
            // The library has no float16, and is given what is left in float32 only.
            match (compiler, dtype) {
                ("onednn", "float16") => assert!(regions.len() < 4, "{regions:?}"),
                ("onednn", _) if !floats().contains(&dtype) => eprintln!("skipped: this machine has no bfloat16"),
                _ => assert_eq!(regions.len(), 1, "{compiler} {dtype}: {regions:?}"),
            }
        }
    }
}

#[test]
fn its_absence_is_told_to_those_who_ask_for_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let model = dir.path().join("model.relay");
    let run = |program: &str, more: &[&str]| {
        std::fs::write(&model, format!("#[version = \"0.0.5\"]\n{program}")).expect("it is written");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_resat"));
        command.arg("run").arg(&model).args(more).env("RESAT_ONEDNN", "/nowhere/libdnnl.so");
        let out = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&out.stderr).replace(['│', '|', '\n'], " ");
        (out.status.success(), said.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let missing = "oneDNN is not installed (/nowhere/libdnnl.so can't be loaded): install Debian's package libdnnl2";
    let plain = "def @main(%x: Tensor[(4), float32]) { nn.relu(%x) }";
    for asked in [["--compiler", "onednn"], ["--passes", "partition_for(onednn)"]] {
        let (done, said) = run(plain, &asked);
        assert!(!done && said.contains(missing), "{said}");
    }
    assert!(run(plain, &[]).0);
    let region =
        "def @r(%x: Tensor[(4), float32], Compiler=\"onednn\", Primitive=1, global_symbol=\"there\") { nn.relu(%x) }
def @main(%x: Tensor[(4), float32]) { @r(%x) }";
    let (done, said) = run(region, &["--passes", "none"]);
    assert!(!done && said.contains("compiler `onednn` failed on region `there`") && said.contains(missing), "{said}");
    let (done, said) = run(region, &["--passes", "none", "--fallback"]);
    assert!(done && said.contains("region `there` is resat's own code now") && said.contains(missing), "{said}");
}
