//! Kernels of int8 and of 16-bit floats, on this machine and on smaller ones, against the interpreter: integers exactly.
#![cfg(feature = "llvm")]

use crate::common::{Data, Rng, difference, random_tensor};
use resat::{
    codegen::llvm,
    driver, interp,
    ir::Module,
    loops::Builder,
    lower::kernel,
    ops,
    pass::{Pass, Sequential, Settings},
    relay::text::parse_module,
    target::Target,
    tensor::{DType, Tensor, Value},
};

/// This machine, and what is left of it without some extensions: each has code of its own for int8 dot products.
fn machines() -> Vec<Target> {
    let host = Target::host();
    let without = |lacking: &[&str]| {
        let mut t = host.clone();
        t.cpu = "generic".into();
        t.features.retain(|f| !lacking.iter().any(|l| f.starts_with(l)));
        t
    };
    let mut all = vec![host.clone()];
    if std::env::consts::ARCH == "x86_64" {
        all.push(without(&["avx512vbmi", "avx512bf16"]));
        all.push(without(&["avx512vnni", "avx512bf16", "avxvnni"]));
        all.push(without(&["avx512", "avxvnni"]));
        all.push(without(&["avx", "fma", "f16c"]));
        all.push(without(&["avx", "fma", "f16c", "sse3", "sse4", "ssse3"]));
    }
    all
}

fn module(text: &str) -> Module {
    parse_module("narrow", &format!("#[version = \"0.0.5\"]\n{text}")).unwrap_or_else(|e| panic!("{}", e.render()))
}

/// Runs `@main` as it is written on random arguments of their types' whole range, or on the given ones, on each machine.
fn check(text: &str, given: &[(usize, Tensor)]) {
    let m = module(text);
    let mut rng = Rng(9);
    let (_, main) = m.functions().next().expect("one function");
    let mut args: Vec<Tensor> = (m.func(main).params.iter())
        .map(|&p| {
            let ty = m.var(p).ty.as_ref().expect("annotated");
            random_tensor(ty.as_tensor().expect("a tensor"), Data::Wild, &mut rng)
        })
        .collect();
    given.iter().for_each(|(i, t)| args[*i] = t.clone());
    let values: Vec<Value> = args.iter().cloned().map(Value::from).collect();
    let want = interp::run_flat(&m, "main", values).unwrap_or_else(|e| panic!("{}", e.render()));
    for target in machines() {
        let passes: Box<dyn Pass> = Box::new(Sequential::default());
        let settings = Settings::new(target.clone());
        let options = driver::Options { passes: Some(passes), ..driver::Options::new(settings) };
        let built = driver::build(m.clone(), &[], options).unwrap_or_else(|e| panic!("{e}"));
        let got = built.executable.run(&args).expect("runs");
        for (w, g) in want.iter().zip(&got) {
            if let Some(d) = difference(w, g) {
                panic!("{text}\non {:?}: {d}", target.features);
            }
        }
    }
}

/// Significands of 31 bits, and shifts to the right such as scales have.
fn factors(shape: &[usize]) -> [Tensor; 3] {
    let mut rng = Rng(17);
    [
        Tensor::from_i64_fn(DType::I32, shape, |_| (1 << 30) + (rng.next() >> 34) as i64),
        Tensor::from_i64_fn(DType::I32, shape, |_| 0),
        Tensor::from_i64_fn(DType::I32, shape, |i| [0, 1, 5, 9, 31, 32, 40][i % 7]),
    ]
}

/// A blocked convolution with all that follows it in a quantized network, for the types of data and weight.
fn convolution(data: &str, weight: &str, shape: (i64, i64, i64), attrs: &str) -> String {
    windowed(3, data, weight, shape, attrs)
}

/// The same with windows of so many rows and columns.
fn windowed(k: i64, data: &str, weight: &str, shape: (i64, i64, i64), attrs: &str) -> String {
    let (inputs, outputs, size) = shape;
    let (c, o) = (inputs / 16, outputs / 16);
    format!(
        "def @main(%x: Tensor[(1, {c}, {size}, {size}, 16), {data}], %w: Tensor[({o}, {}, {k}, {k}, 16, 4), {weight}],
           %b: Tensor[(1, {o}, 1, 1, 16), int32], %m: Tensor[({o}, 16), int32], %l: Tensor[({o}, 16), int32], %r: Tensor[({o}, 16), int32]) {{
           %0 = fn (%x1: Tensor[(1, {c}, {size}, {size}, 16), {data}], %w1: Tensor[({o}, {}, {k}, {k}, 16, 4), {weight}],
                    %b1: Tensor[(1, {o}, 1, 1, 16), int32], %m1: Tensor[({o}, 16), int32], %l1: Tensor[({o}, 16), int32], %r1: Tensor[({o}, 16), int32], Primitive=1) {{
             %1 = nn.contrib_conv2d_NCHWc(%x1, %w1, channels={outputs}, kernel_size=[{k}, {k}], data_layout=\"NCHW16c\",
                    kernel_layout=\"OIHW16o4i\", out_layout=\"NCHW16c\", out_dtype=\"int32\", {attrs});
             %2 = add(%1, %b1);
             %3 = fixed_point_multiply_per_axis(%2, %m1, %l1, %r1, is_lshift_required=False, is_rshift_required=True, axes=[1, 4]);
             %4 = add(%3, 7);
             %5 = clip(%4, a_min=0f, a_max=255f);
             cast(%5, dtype=\"uint8\")
           }};
           %0(%x, %w, %b, %m, %l, %r)
         }}",
        c * 4, c * 4
    )
}

#[test]
fn convolutions_of_bytes_agree() {
    let [m, l, r] = factors(&[2, 16]);
    let given = [(3, m), (4, l), (5, r)];
    for (data, weight) in [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8")] {
        check(&convolution(data, weight, (32, 32, 7), "padding=[1, 1, 1, 1]"), &given);
    }
    check(&convolution("uint8", "int8", (16, 32, 9), "strides=[2, 2], padding=[1, 0, 0, 1]"), &given);
}

/// Pixels side by side are packed as they are stored: in fours, in pairs, alone, clipped to all of the bytes' range or to less.
#[test]
fn convolutions_of_one_pixel_agree() {
    let [m, l, r] = factors(&[2, 16]);
    let given = [(3, m), (4, l), (5, r)];
    for size in [5, 7] {
        check(&windowed(1, "uint8", "int8", (32, 32, size), ""), &given);
    }
    let clipped = |low: i64, high: i64| {
        let clip = format!("a_min={low}f, a_max={high}f");
        windowed(1, "uint8", "int8", (32, 32, 6), "").replace("a_min=0f, a_max=255f", &clip)
    };
    check(&clipped(3, 200), &given);
    check(&clipped(-128, 127).replace("dtype=\"uint8\"", "dtype=\"int8\""), &given);
    check(&clipped(-1000, 1000), &given);
}

/// Channels of bytes by fours: what lies apart is stored as words.
#[test]
fn blocks_of_four_bytes_agree() {
    for (data, channels, rows) in [("uint8", 8, 7), ("int8", 4, 1), ("uint8", 12, 2)] {
        check(
            &format!(
                "def @main(%x: Tensor[(2, {channels}, {rows}, 21), {data}]) {{
                   layout_transform(%x, src_layout=\"NCHW\", dst_layout=\"NCHW4c\") }}"
            ),
            &[],
        );
    }
}

/// Numbers of 32 bits that are stored two to four apart are interleaved: pixels of few channels, what is repeated, channels that become pixels, a value
/// that is computed. Five apart, and of 64 bits, they are not.
#[test]
fn interleaved_numbers_agree() {
    for (dtype, channels, width) in [
        ("float32", 2, 37),
        ("float32", 3, 16),
        ("int32", 3, 33),
        ("float32", 4, 21),
        ("uint32", 4, 48),
        ("int32", 5, 32),
    ] {
        check(
            &format!(
                "def @main(%x: Tensor[(2, {channels}, 3, {width}), {dtype}]) {{
                   layout_transform(%x, src_layout=\"NCHW\", dst_layout=\"NHWC\") }}"
            ),
            &[],
        );
    }
    for (dtype, times, width) in
        [("float32", 2, 35), ("int32", 3, 16), ("float32", 4, 50), ("float32", 5, 40), ("int64", 2, 40)]
    {
        check(&format!("def @main(%x: Tensor[(3, {width}), {dtype}]) {{ repeat(%x, repeats={times}, axis=1) }}"), &[]);
    }
    check("def @main(%x: Tensor[(2, 8, 5, 19), float32]) { nn.depth_to_space(%x, block_size=2, mode=\"CRD\") }", &[]);
    let shuffled = "def @main(%x: Tensor[(1, 8, 5, 32), float32], %y: Tensor[(1, 2, 10, 64), float32]) {
        %0 = fn (%a: Tensor[(1, 8, 5, 32), float32], %b: Tensor[(1, 2, 10, 64), float32], Primitive=1) {
          nn.relu(add(nn.depth_to_space(nn.leaky_relu(%a, alpha=0.5f), block_size=2), %b)) };
        %0(%x, %y) }";
    check(shuffled, &[]);
}

/// They are not stored one by one.
#[test]
fn interleaved_numbers_are_stored_as_vectors() {
    let op = ops::lookup("repeat").expect("an operator");
    let attrs = ops::make_attrs(op, &[("repeats".into(), 2.into()), ("axis".into(), 1.into())]);
    let mut b = Builder::new();
    let args = [b.arg(&[8, 64], DType::F32).into()];
    let out = op.op().lower(&attrs.expect("legal"), &args, &mut b).expect("lowers");
    let target = Target::parse("llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu=skylake").expect("a target").codegen();
    let kernel = kernel("twice", &b.finish_with(&out), resat::machine::Core::here(&target));
    let text = llvm::listing(&[&kernel], &target).expect("compiles").assembly;
    assert!(!text.contains("vmovlps") && !text.contains("vmovss"), "{text}");
}

/// They are not stored byte by byte.
#[test]
fn blocks_of_four_bytes_are_stored_as_words() {
    let op = ops::lookup("layout_transform").expect("an operator");
    let attrs = ops::make_attrs(op, &[("src_layout".into(), "NCHW".into()), ("dst_layout".into(), "NCHW4c".into())]);
    let mut b = Builder::new();
    let args = [b.arg(&[1, 4, 32, 32], DType::U8).into()];
    let out = op.op().lower(&attrs.expect("legal"), &args, &mut b).expect("lowers");
    let target = Target::parse("llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu=cooperlake").expect("a target").codegen();
    let kernel = kernel("blocks", &b.finish_with(&out), resat::machine::Core::here(&target));
    let text = llvm::listing(&[&kernel], &target).expect("compiles").assembly;
    assert!(!text.contains("pextrb"), "{text}");
}

/// Each channel by itself, where neighbours in a window are brought together.
#[test]
fn convolutions_by_channel_agree() {
    let by_channel = |data: &str, weight: &str, (rows, columns): (i64, i64), size: i64, attrs: &str| {
        format!(
            "def @main(%x: Tensor[(1, 2, {size}, {size}, 16), {data}], %w: Tensor[(2, 1, {rows}, {columns}, 1, 16), {weight}],
               %b: Tensor[(1, 2, 1, 1, 16), int32]) {{
               %0 = fn (%x1: Tensor[(1, 2, {size}, {size}, 16), {data}], %w1: Tensor[(2, 1, {rows}, {columns}, 1, 16), {weight}],
                        %b1: Tensor[(1, 2, 1, 1, 16), int32], Primitive=1) {{
                 %1 = nn.contrib_depthwise_conv2d_NCHWc(%x1, %w1, groups=32, channels=32, kernel_size=[{rows}, {columns}],
                        data_layout=\"NCHW16c\", kernel_layout=\"OIHW1i16o\", out_layout=\"NCHW16c\", out_dtype=\"int32\", {attrs});
                 %2 = add(%1, %b1);
                 %3 = right_shift(%2, 4);
                 %4 = clip(%3, a_min=-128f, a_max=127f);
                 cast(%4, dtype=\"int8\")
               }};
               %0(%x, %w, %b)
             }}"
        )
    };
    for (data, weight) in [("uint8", "int8"), ("int8", "int8"), ("int8", "uint8")] {
        check(&by_channel(data, weight, (3, 3), 9, "padding=[1, 1, 1, 1]"), &[]);
    }
    for (window, size, attrs) in [
        ((3, 3), 14, "strides=[2, 2], padding=[0, 1, 1, 0]"),
        ((3, 3), 7, "strides=[2, 2], padding=[2, 2, 2, 2]"),
        ((2, 4), 8, "padding=[1, 2, 1, 1]"),
        ((5, 5), 8, "padding=[2, 2, 2, 2]"),
        ((3, 3), 11, "padding=[2, 2, 2, 2], dilation=[2, 2]"),
    ] {
        check(&by_channel("uint8", "int8", window, size, attrs), &[]);
    }
}

#[test]
fn fixed_point_products_agree() {
    // One factor for all, of either sign of the exponent; rows that fill vectors and rows that don't.
    for (multiplier, shift) in
        [(1_504_575_205_i64, 1), (1_658_711_331, 0), (1_789_569_636, -7), (1 << 30, 30), (1_073_741_825, -40)]
    {
        for n in [64, 37] {
            check(
                &format!(
                    "def @main(%x: Tensor[(3, {n}), int32]) {{
                       fixed_point_multiply(%x, multiplier={multiplier}, shift={shift}) }}"
                ),
                &[],
            );
        }
    }
    // Factors along an axis, the last one or another, with and without shifts to the left.
    for (axis, n, left) in [(0, 5, "False"), (1, 48, "False"), (1, 48, "True")] {
        let [m, _, r] = factors(&[n]);
        let l = Tensor::from_i64_fn(DType::I32, &[n], |i| if r.get_i64(i) == 0 { (i % 4) as i64 } else { 0 });
        check(
            &format!(
                "def @main(%x: Tensor[(5, 48), int32], %m: Tensor[({n}), int32], %l: Tensor[({n}), int32], %r: Tensor[({n}), int32]) {{
                   fixed_point_multiply_per_axis(%x, %m, %l, %r, is_lshift_required={left}, is_rshift_required=True, axes=[{axis}]) }}"
            ),
            &[(1, m), (2, l), (3, r)],
        );
    }
}

/// Changes of scale as TFLite makes them, over halves of either sign: with one factor, with factors along an axis, after a convolution.
#[test]
fn rescaled_sums_agree() {
    let x = Tensor::from_i64_fn(DType::I32, &[3, 48], |i| (i as i64 - 70) * if i % 2 == 0 { 4 } else { 40_503 });
    let results = [("uint8", 0), ("uint8", 37), ("int8", -128), ("int8", -5), ("int16", 300), ("int32", 0)];
    for (dtype, zero) in results {
        for (multiplier, right) in
            [(1_i64 << 30, 0), (1 << 30, 1), (1 << 30, 4), (1_504_575_205, 9), (2_147_483_647, 31)]
        {
            let call = format!(
                "fixed_point_rescale(%x, multiplier={multiplier}, right_shift={right}, zero_point={zero}, out_dtype=\"{dtype}\")"
            );
            check(&format!("def @main(%x: Tensor[(3, 48), int32]) {{ {call} }}"), &[(0, x.clone())]);
        }
        for (axis, n) in [(0, 3), (1, 48)] {
            let [m, _, _] = factors(&[n]);
            let r = Tensor::from_i64_fn(DType::I32, &[n], |i| [1, 2, 5, 9, 31][i % 5]);
            let text = format!(
                "def @main(%x: Tensor[(3, 48), int32], %m: Tensor[({n}), int32], %r: Tensor[({n}), int32]) {{
                   fixed_point_rescale_per_axis(%x, %m, %r, axes=[{axis}], zero_point={zero}, out_dtype=\"{dtype}\") }}"
            );
            check(&text, &[(0, x.clone()), (1, m), (2, r)]);
        }
    }
    let [m, l, _] = factors(&[2, 16]);
    let r = Tensor::from_i64_fn(DType::I32, &[2, 16], |i| (7 + i % 4) as i64);
    for (dtype, zero) in [("uint8", 0), ("uint8", 130), ("int8", 3)] {
        let text = windowed(1, "uint8", "int8", (32, 32, 7), "");
        let start = text.find("%3 = fixed").expect("the change of scale");
        let end = text.find("};").expect("the kernel's end");
        let call = format!(
            "fixed_point_rescale_per_axis(%2, %m1, %r1, axes=[1, 4], zero_point={zero}, out_dtype=\"{dtype}\")\n"
        );
        check(&format!("{}{call}{}", &text[..start], &text[end..]), &[(3, m.clone()), (4, l.clone()), (5, r.clone())]);
    }
}

/// Colours of pixels, two or three side by side, become words of four bytes; every third or fourth number of a row is read.
#[test]
fn interleaved_bytes_agree() {
    for (colours, width) in [(3, 37), (3, 16), (2, 35), (1, 33)] {
        let (row, filled) = (width + 2, 4 - colours);
        check(
            &format!(
                "def @main(%x: Tensor[(1, 5, {width}, {colours}), int8]) {{
                   %0 = fn (%p: Tensor[(1, 5, {width}, {colours}), int8], Primitive=1) -> Tensor[(1, 1, 6, {row}, 4), uint8] {{
                     %1 = bitwise_xor(cast(%p, dtype=\"uint8\"), cast(128, dtype=\"uint8\"));
                     %2 = nn.pad(%1, cast(7, dtype=\"uint8\"), pad_width=[[0, 0], [0, 1], [1, 1], [0, {filled}]]);
                     layout_transform(transpose(%2, axes=[0, 3, 1, 2]), src_layout=\"NCHW\", dst_layout=\"NCHW4c\")
                   }};
                   %0(%x) }}"
            ),
            &[],
        );
    }
    for (dtype, step) in [("uint8", 2), ("int8", 3), ("float32", 3), ("uint8", 4), ("float32", 4), ("int32", 5)] {
        check(
            &format!(
                "def @main(%x: Tensor[(7, 300), {dtype}]) {{
                   strided_slice(%x, begin=[0, 1], end=[7, 300], strides=[1, {step}], axes=[0, 1]) }}"
            ),
            &[],
        );
    }
}

/// A sum of two quantized tensors after a convolution: what only the epilogue reads has a factor of its own.
#[test]
fn residual_sums_agree() {
    let text = "def @main(%x: Tensor[(1, 2, 8, 8, 16), uint8], %w: Tensor[(2, 8, 3, 3, 16, 4), int8], %r: Tensor[(1, 2, 8, 8, 16), uint8]) {
      %0 = fn (%p0: Tensor[(1, 2, 8, 8, 16), uint8], %p1: Tensor[(2, 8, 3, 3, 16, 4), int8], %p2: Tensor[(1, 2, 8, 8, 16), uint8], Primitive=1) {
        %1 = nn.contrib_conv2d_NCHWc(%p0, %p1, padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3], data_layout=\"NCHW16c\",
               kernel_layout=\"OIHW16o4i\", out_layout=\"NCHW16c\", out_dtype=\"int32\");
        %2 = fixed_point_multiply(%1, multiplier=1504575205, shift=-9);
        %3 = cast(%p2, dtype=\"int32\");
        %4 = fixed_point_multiply(%3, multiplier=1445938529, shift=1);
        %5 = clip(add(%2, %4), a_min=0f, a_max=255f);
        cast(%5, dtype=\"uint8\")
      };
      %0(%x, %w, %r)
    }";
    check(text, &[]);
}

/// Pairs of bfloat16, of small integers, whose sums are exact in any order.
#[test]
fn products_of_short_floats_agree() {
    let conv = "def @main(%x: Tensor[(1, 2, 7, 7, 16), bfloat16], %w: Tensor[(2, 16, 3, 3, 16, 2), bfloat16]) {
      nn.contrib_conv2d_NCHWc(%x, %w, padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3], data_layout=\"NCHW16c\",
        kernel_layout=\"OIHW16o2i\", out_layout=\"NCHW16c\", out_dtype=\"float32\") }";
    let dense = "def @main(%x: Tensor[(5, 48), bfloat16], %w: Tensor[(3, 24, 16, 2), bfloat16]) {
      nn.contrib_dense_pack(%x, %w, weight_layout=\"NC16n2c\", out_dtype=\"float32\") }";
    let numbers =
        |shape: &[usize], n: usize| Tensor::from_f64_fn(DType::BF16, shape, |i| (i * 31 % n) as f64 - (n / 2) as f64);
    check(conv, &[(0, numbers(&[1, 2, 7, 7, 16], 17)), (1, numbers(&[2, 16, 3, 3, 16, 2], 13))]);
    check(dense, &[(0, numbers(&[5, 48], 17)), (1, numbers(&[3, 24, 16, 2], 13))]);
}

/// What follows a sum of bfloat16 in its kernel is rounded after each operator, and only once where the program allows it: 257 is none of
/// bfloat16's numbers, 256 and 258 are.
#[test]
fn sums_of_short_floats_are_rounded_once() {
    let text = |then: &str| {
        module(&format!(
            "def @main(%x: Tensor[(3, 258), bfloat16], %w: Tensor[(32, 258), bfloat16], %b: Tensor[(32), bfloat16]) {{
               %0 = fn (%p: Tensor[(3, 258), bfloat16], %q: Tensor[(32, 258), bfloat16], %r: Tensor[(32), bfloat16], Primitive=1) {{
                 %1 = add(nn.dense(%p, %q, out_dtype=\"bfloat16\"), %r);
                 {then}
               }};
               %0(%x, %w, %b)
             }}"
        ))
    };
    let of = |shape: &[usize], f: fn(usize) -> f64| Tensor::from_f64_fn(DType::BF16, shape, f);
    let args = [of(&[3, 258], |_| 1.0), of(&[32, 258], |i| (i % 258 != 0) as i64 as f64), of(&[32], |_| 1.0)];
    let square = "%2 = cast(%1, dtype=\"float32\"); multiply(%2, %2)";
    for (target, (then, each, once)) in
        machines().iter().flat_map(|t| [(t, ("nn.relu(%1)", 256.0, 258.0)), (t, (square, 65536.0, 66564.0))])
    {
        for (m, want) in [(text(then), each), (text(then).with_excess_precision(), once)] {
            let passes: Box<dyn Pass> = Box::new(Sequential::default());
            let options =
                driver::Options { passes: Some(passes), ..driver::Options::new(Settings::new(target.clone())) };
            let built = driver::build(m, &[], options).unwrap_or_else(|e| panic!("{e}"));
            let got = built.executable.run(&args).expect("runs");
            assert!((0..96).all(|i| got[0].get_f64(i) == want), "{then} on {:?}: {:?}", target.features, got[0]);
        }
    }
}

/// The same of a convolution whose sums a routine stores: eight channels of ones by a window of one one each are 8, and 8 + 249 + 1 are 258.
#[test]
fn sums_of_routines_are_rounded_once() {
    let text = "def @main(%x: Tensor[(1, 1, 6, 6, 8), bfloat16], %w: Tensor[(8, 8, 3, 3), float32], %a: Tensor[(8), bfloat16], %b: Tensor[(8), bfloat16]) {
      %0 = nn.contrib_conv2d_winograd_weight_transform(%w, tile_size=4);
      %1 = layout_transform(%0, src_layout=\"HWOI\", dst_layout=\"OHWI8o\");
      %2 = cast(sign(layout_transform(%w, src_layout=\"OIHW\", dst_layout=\"OIHW8i8o\")), dtype=\"int8\");
      %3 = fn (%p: Tensor[(1, 1, 6, 6, 8), bfloat16], %q: Tensor[(1, 6, 6, 8, 8), float32], %s: Tensor[(1, 1, 3, 3, 8, 8), int8],
               %c: Tensor[(8), bfloat16], %d: Tensor[(8), bfloat16], Primitive=1) {
        %4 = nn.winograd_conv2d(%p, %q, %s, tile_size=4, padding=[1, 1, 1, 1], data_layout=\"NCHW8c\", kernel_layout=\"OHWI8o\", out_layout=\"NCHW8c\");
        nn.relu(add(add(%4, %c), %d))
      };
      %3(%x, %1, %2, %a, %b)
    }";
    let of = |dtype, shape: &[usize], f: fn(usize) -> f64| Tensor::from_f64_fn(dtype, shape, f);
    let args = [
        of(DType::BF16, &[1, 1, 6, 6, 8], |_| 1.0),
        of(DType::F32, &[8, 8, 3, 3], |i| (i % 9 == 4) as i64 as f64),
        of(DType::BF16, &[8], |_| 249.0),
        of(DType::BF16, &[8], |_| 1.0),
    ];
    for target in machines() {
        let passes: Box<dyn Pass> = Box::new(Sequential::default());
        let options = driver::Options { passes: Some(passes), ..driver::Options::new(Settings::new(target.clone())) };
        let built = driver::build(module(text).with_excess_precision(), &[], options).unwrap_or_else(|e| panic!("{e}"));
        let got = built.executable.run(&args).expect("runs");
        assert!((0..288).all(|i| got[0].get_f64(i) == 258.0), "on {:?}: {:?}", target.features, got[0]);
    }
}

/// The assembly of a dense layer with its weight in blocks of 16, of these types, for a target.
fn assembly(target: &str, data: DType, weight: DType, sums: DType) -> String {
    let together = 4 / data.bytes() as i64;
    let op = ops::lookup("nn.contrib_dense_pack").expect("an operator");
    let layout = format!("NC16n{together}c");
    let given = [("weight_layout".into(), layout.as_str().into()), ("out_dtype".into(), sums.into())];
    let attrs = ops::make_attrs(op, &given).expect("legal");
    let mut b = Builder::new();
    let args = [b.arg(&[32, 64], data).into(), b.arg(&[4, 64 / together, 16, together], weight).into()];
    let out = op.op().lower(&attrs, &args, &mut b).expect("lowers");
    let target = Target::parse(target).expect("a target").codegen();
    let core = resat::machine::Core { excess_precision: true, ..resat::machine::Core::here(&target) };
    let kernel = kernel("dense", &b.finish_with(&out), core);
    llvm::listing(&[&kernel], &target).expect("compiles").assembly
}

/// Machines' own instructions are what sums of narrow products become, on machines that are not this one, too.
#[test]
fn instructions_are_the_machines() {
    use DType::{BF16, F32, I8, I32, U8};
    let arm = |cpu: &str| format!("llvm,-mtriple=aarch64-linux-gnu,-mcpu={cpu}");
    let x86 = |cpu: &str| format!("llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu={cpu}");
    for (target, data, weight, sums, wanted) in [
        (x86("cooperlake"), U8, I8, I32, "vpdpbusd"),
        (x86("cooperlake"), BF16, BF16, F32, "vdpbf16ps"),
        (x86("cooperlake"), BF16, BF16, BF16, "vcvtneps2bf16"),
        (x86("sapphirerapids"), U8, I8, I32, "tdpbusd"),
        (x86("sapphirerapids"), I8, U8, I32, "tdpbsud"),
        (x86("sapphirerapids"), I8, I8, I32, "tdpbssd"),
        (x86("sapphirerapids"), BF16, BF16, F32, "tdpbf16ps"),
        (x86("skylake-avx512"), U8, I8, I32, "vpmaddwd"),
        (x86("skylake-avx512"), BF16, BF16, F32, "vfmadd"),
        (x86("haswell"), U8, I8, I32, "vpmaddwd"),
        (x86("x86-64"), I8, I8, I32, "pmaddwd"),
        (arm("cortex-a76"), I8, I8, I32, "sdot"),
        (arm("cortex-a76"), U8, U8, I32, "udot"),
        (arm("cortex-a76"), U8, I8, I32, "sdot"),
        (arm("neoverse-n2"), U8, I8, I32, "usdot"),
        (arm("cortex-a72"), U8, I8, I32, "mla"),
        (arm("cortex-a72"), BF16, BF16, F32, "fmla"),
    ] {
        let text = assembly(&target, data, weight, sums);
        assert!(text.contains(wanted), "{target}: no {wanted} for {data} x {weight} in\n{text}");
    }
}

/// Products of float16 are added up in float32, whole vectors converted at once; on machines that convert none, too.
#[test]
fn products_of_float16_agree() {
    let conv = "def @main(%x: Tensor[(1, 2, 7, 7, 16), float16], %w: Tensor[(2, 2, 3, 3, 16, 16), float16]) {
      nn.contrib_conv2d_NCHWc(%x, %w, padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3], data_layout=\"NCHW16c\",
        kernel_layout=\"OIHW16i16o\", out_layout=\"NCHW16c\", out_dtype=\"float16\") }";
    let dense = "def @main(%x: Tensor[(5, 48), float16], %w: Tensor[(32, 48), float16]) { nn.dense(%x, %w, out_dtype=\"float16\") }";
    // Sums of such are exact in any order, and in either type.
    let numbers =
        |shape: &[usize], n: usize| Tensor::from_f64_fn(DType::F16, shape, |i| (i * 31 % n) as f64 - (n / 2) as f64);
    check(conv, &[(0, numbers(&[1, 2, 7, 7, 16], 5)), (1, numbers(&[2, 2, 3, 3, 16, 16], 3))]);
    check(dense, &[(0, numbers(&[5, 48], 5)), (1, numbers(&[32, 48], 3))]);
    for cpu in ["haswell", "skylake-avx512", "sapphirerapids"] {
        let target = format!("llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu={cpu}");
        let text = assembly(&target, DType::F16, DType::F16, DType::F16);
        let wide = if cpu == "haswell" { "%ymm" } else { "%zmm" };
        let converted = text.lines().any(|l| l.contains("vcvtph2ps") && l.contains(wide));
        assert!(converted && text.contains("vfmadd") && !text.contains("vpinsrw"), "{target}\n{text}");
    }
}
