//! What elementwise operators make of every element type's odd values: the interpreter and compiled code give the same bits
//! where the operator is exact, and the same to a few units in the last place where it is a function such as `tanh`.
#![cfg(feature = "llvm")]

use resat::{
    driver::{Options, Runnable, build},
    interp,
    ir::{Attrs, Module, Type},
    ops,
    pass::{Pass, PassContext, Settings, sequence},
    relay::text::{parse_module, print_module},
    target::Target,
    tensor::{DType, Tensor, Value},
};

/// Of integers these refuse a zero on the right.
const DIVISIONS: [&str; 6] = ["divide", "floor_divide", "trunc_divide", "mod", "floor_mod", "trunc_mod"];

/// These refuse amounts that are not within 0 and the width.
const SHIFTS: [&str; 2] = ["left_shift", "right_shift"];

/// Functions of floats that are computed by other means in compiled code: not the same to the last bit.
const ROUGH: &[&str] = &[
    "log",
    "log2",
    "log10",
    "exp",
    "fast_exp",
    "erf",
    "fast_erf",
    "rsqrt",
    "sigmoid",
    "tanh",
    "fast_tanh",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "power",
];

fn odd_floats(d: DType) -> Vec<f64> {
    let (greatest, least, epsilon) = match d {
        DType::F16 => (65504.0, 2f64.powi(-24), 2f64.powi(-10)),
        DType::BF16 => (3.3895313892515355e38, 2f64.powi(-126), 2f64.powi(-7)),
        DType::F32 => (f32::MAX as f64, 2f64.powi(-126), 2f64.powi(-23)),
        _ => (f64::MAX, f64::MIN_POSITIVE, f64::EPSILON),
    };
    let some = [0.0, 0.5, 1.0, 1.0 + epsilon, 1.5, 2.5, 3.0, 0.1, 7.25, 127.5, 1000.0, greatest, least, f64::INFINITY];
    some.iter().flat_map(|&v| [v, -v]).chain([f64::NAN]).collect()
}

fn odd_ints(d: DType) -> Vec<i64> {
    if d == DType::Bool {
        return vec![0, 1];
    }
    let (least, greatest) = d.int_range().expect("an integer type");
    let some = [least, least + 1, greatest, greatest - 1, greatest / 2, -100, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 100];
    some.into_iter().filter(|v| (least..=greatest).contains(v)).map(|v| v as i64).collect()
}

fn tensor(d: DType, values: &[Number]) -> Tensor {
    match d.is_float() {
        true => Tensor::from_f64_fn(d, &[values.len()], |i| values[i].0),
        false => Tensor::from_i64_fn(d, &[values.len()], |i| values[i].1),
    }
}

/// A value as a float and as an integer: which one is meant follows from the element type.
#[derive(Copy, Clone)]
struct Number(f64, i64);

fn odd(d: DType) -> Vec<Number> {
    match d.is_float() {
        true => odd_floats(d).into_iter().map(|f| Number(f, 0)).collect(),
        false => odd_ints(d).into_iter().map(|i| Number(0.0, i)).collect(),
    }
}

/// Every pair of a left and a right side.
fn pairs(left: &[Number], right: &[Number]) -> (Vec<Number>, Vec<Number>) {
    left.iter().flat_map(|a| right.iter().map(move |b| (*a, *b))).unzip()
}

/// The results of a program, interpreted and compiled operator by operator.
fn both(m: &Module, inputs: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
    let args: Vec<Value> = inputs.iter().cloned().map(Value::from).collect();
    let want = interp::run_flat(m, "main", args).unwrap_or_else(|e| panic!("{e}"));
    (want, compiled(m, inputs))
}

/// A program compiled as it stands.
fn as_it_stands(m: &Module) -> Runnable {
    let settings = Settings::new(Target::host());
    let mut options = Options::new(settings.clone());
    options.passes = Some(Box::new(sequence("none", &settings).expect("it is a list of passes")));
    options.threads = 1;
    build(m.clone(), &[], options).unwrap_or_else(|e| panic!("{e}")).executable
}

/// The results of a program compiled as it stands.
fn compiled(m: &Module, inputs: &[Tensor]) -> Vec<Tensor> {
    as_it_stands(m).run(inputs).unwrap_or_else(|e| panic!("{e}"))
}

/// Distance in units of the last place that the type has at that size.
fn far(d: DType, want: f64, got: f64) -> f64 {
    if want == got || (want.is_nan() && got.is_nan()) {
        return 0.0;
    }
    let digits = match d {
        DType::F16 => 10,
        DType::BF16 => 7,
        DType::F32 => 23,
        _ => 52,
    };
    let least = match d {
        DType::F16 => 2f64.powi(-24),
        DType::F64 => f64::MIN_POSITIVE,
        _ => 2f64.powi(-126),
    };
    let unit = (want.abs().max(f64::MIN_POSITIVE).log2().floor() - digits as f64).exp2().max(least);
    (want - got).abs() / unit
}

fn compare(what: &str, rough: bool, inputs: &[&Tensor], want: &Tensor, got: &Tensor, wrong: &mut Vec<String>) {
    assert_eq!((want.dtype(), want.shape()), (got.dtype(), got.shape()), "{what}");
    let d = want.dtype();
    for i in 0..want.len() {
        let fine = match d.is_float() {
            false => want.get_i64(i) == got.get_i64(i),
            true => {
                let (w, g) = (want.get_f64(i), got.get_f64(i));
                let same = (w.is_nan() && g.is_nan()) || (w == g && w.is_sign_negative() == g.is_sign_negative());
                same || (rough && far(d, w, g) <= if d.bytes() == 2 { 1.0 } else { 8.0 })
            }
        };
        if !fine && wrong.len() < 40 {
            let args: Vec<String> = inputs
                .iter()
                .map(|t| if t.dtype().is_float() { t.get_f64(i).to_string() } else { t.get_i64(i).to_string() })
                .collect();
            let (w, g) = (want.get_f64(i), got.get_f64(i));
            wrong.push(format!("{what} of {}: interpreted {w:?}, compiled {g:?}", args.join(", ")));
        }
    }
}

/// The operators without attributes that map elements of these types.
fn takers(args: &[Type], inputs: &[&str]) -> Vec<&'static str> {
    let maps = |op: &&'static dyn ops::Op| {
        matches!(op.class(), ops::Class::Elementwise | ops::Class::Broadcast)
            && op.inputs() == inputs
            && op.attrs().is_empty()
            && op
                .infer(&Attrs::empty(), args)
                .is_ok_and(|t| t.as_tensor().map(|t| &t.shape) == args[0].as_tensor().map(|t| &t.shape))
    };
    ops::all().into_iter().map(|id| id.op()).filter(maps).map(|op| op.name()).collect()
}

fn check_unary(d: DType, wrong: &mut Vec<String>) -> usize {
    let x = tensor(d, &odd(d));
    let ty = Type::tensor(&[x.len() as i64], d);
    let names = takers(std::slice::from_ref(&ty), &["data"]);
    let calls: Vec<String> = names.iter().map(|n| format!("{n}(%x)")).collect();
    let text = format!("#[version = \"0.0.5\"] def @main(%x: {ty}) {{ ({},) }}", calls.join(", "));
    let m = parse_module("unary", &text).unwrap_or_else(|e| panic!("{e}"));
    let (want, got) = both(&m, std::slice::from_ref(&x));
    for ((n, w), g) in names.iter().zip(&want).zip(&got) {
        compare(&format!("{n} {d}"), ROUGH.contains(n), &[&x], w, g, wrong);
    }
    names.len()
}

fn check_binary(d: DType, wrong: &mut Vec<String>) -> usize {
    let all = odd(d);
    let divisors: Vec<Number> = all.iter().copied().filter(|n| d.is_float() || n.1 != 0).collect();
    let amounts: Vec<Number> =
        [0, 1, 3, 7, 31, 63].into_iter().filter(|&n| n < d.bits() as i64).map(|n| Number(0.0, n)).collect();
    let mut count = 0;
    let groups: [(&[Number], fn(&str) -> bool); 3] = [
        (&all, |n| !DIVISIONS.contains(&n) && !SHIFTS.contains(&n)),
        (&divisors, |n| DIVISIONS.contains(&n)),
        (&amounts, |n| SHIFTS.contains(&n)),
    ];
    for (right, wanted) in groups {
        let (x, y) = pairs(&all, right);
        let (x, y) = (tensor(d, &x), tensor(d, &y));
        let ty = Type::tensor(&[x.len() as i64], d);
        let names: Vec<&str> =
            takers(&[ty.clone(), ty.clone()], &["lhs", "rhs"]).into_iter().filter(|n| wanted(n)).collect();
        if names.is_empty() {
            continue;
        }
        let calls: Vec<String> = names.iter().map(|n| format!("{n}(%x, %y)")).collect();
        let text = format!("#[version = \"0.0.5\"] def @main(%x: {ty}, %y: {ty}) {{ ({},) }}", calls.join(", "));
        let m = parse_module("binary", &text).unwrap_or_else(|e| panic!("{e}"));
        let (want, got) = both(&m, &[x.clone(), y.clone()]);
        for ((n, w), g) in names.iter().zip(&want).zip(&got) {
            compare(&format!("{n} {d}"), d.is_float() && ROUGH.contains(n), &[&x, &y], w, g, wrong);
        }
        count += names.len();
    }
    count
}

fn fail(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} values differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn unary_operators() {
    let mut wrong = Vec::new();
    let count: usize = DType::ALL.into_iter().map(|d| check_unary(d, &mut wrong)).sum();
    assert!(count > 150, "only {count} operators and types were found");
    fail(&wrong);
}

#[test]
fn binary_operators() {
    let mut wrong = Vec::new();
    let count: usize = DType::ALL.into_iter().map(|d| check_binary(d, &mut wrong)).sum();
    assert!(count > 150, "only {count} operators and types were found");
    fail(&wrong);
}

#[test]
fn casts_and_clips() {
    let mut wrong = Vec::new();
    for from in DType::ALL {
        let mut values = odd(from);
        if from.is_float() {
            let edges =
                [127.9, 128.0, 255.5, 256.0, 32768.0, 65535.0, 2147483520.0, 2147483648.0, 4294967040.0, 4294967296.0];
            let more = [9.223371487098962e18, 9.223372036854776e18, 1.8446742974197924e19, 1.8446744073709552e19, 1e30];
            values.extend(edges.iter().chain(&more).flat_map(|&f| [Number(f, 0), Number(-f, 0)]));
        }
        let x = tensor(from, &values);
        let ty = Type::tensor(&[x.len() as i64], from);
        let mut calls: Vec<String> = DType::ALL.iter().map(|to| format!("cast(%x, dtype=\"{to}\")")).collect();
        if from != DType::Bool {
            calls.extend(
                ["-1f, a_max=6f", "0f, a_max=255f", "-1000000f, a_max=1000000f"]
                    .map(|b| format!("clip(%x, a_min={b})")),
            );
        }
        let text = format!("#[version = \"0.0.5\"] def @main(%x: {ty}) {{ ({},) }}", calls.join(", "));
        let m = parse_module("casts", &text).unwrap_or_else(|e| panic!("{e}"));
        let (want, got) = both(&m, std::slice::from_ref(&x));
        for ((call, w), g) in calls.iter().zip(&want).zip(&got) {
            compare(&format!("{call} {from}"), false, &[&x], w, g, &mut wrong);
        }
    }
    fail(&wrong);
}

#[test]
fn extremes_of_softmax() {
    let rows: [[f32; 4]; 5] = [
        [1e4, -1e4, 0.0, 1e4],
        // In whatever order they are added, nothing is left.
        [f32::MAX, f32::MIN, 0.0, 0.0],
        [-1e30, -1e30, -1e30, -1e30],
        [88.0, 89.0, -103.0, -104.0],
        [0.0, -0.0, 1e-40, -1e-40],
    ];
    let x = Tensor::from_slice(&[5, 4], &rows.concat());
    let text = "#[version = \"0.0.5\"] def @main(%x: Tensor[(5, 4), float32]) {
        (nn.softmax(%x), nn.log_softmax(%x), nn.fast_softmax(%x), sum(%x, axis=[1]), max(%x, axis=[1]), min(%x, axis=[1])) }";
    let m = parse_module("softmax", text).unwrap_or_else(|e| panic!("{e}"));
    let (want, got) = both(&m, std::slice::from_ref(&x));
    let mut wrong = Vec::new();
    for (i, (w, g)) in want.iter().zip(&got).enumerate() {
        compare(&format!("result {i}"), true, &[], w, g, &mut wrong);
    }
    fail(&wrong);
    assert!(
        want[0].to_f64_vec().iter().all(|v| (0.0..=1.0).contains(v)),
        "softmax stays finite: {:?}",
        want[0].to_f64_vec()
    );
}

/// The hyperbolic tangent of a softplus, as mish has it, becomes one power and one quotient, which are right wherever the function is.
#[test]
fn extremes_of_mish() {
    let text = "#[version = \"0.0.5\"] def @main(%x: Tensor[(16, 1000), float32]) {
        tanh(add(nn.relu(%x), log(add(exp(negative(abs(%x))), 1f)))) }";
    let x = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        0.0,
        -0.0,
        1e-40,
        0.5,
        -0.5,
        9.0,
        -9.0,
        40.0,
        -40.0,
        89.0,
        -89.0,
    ];
    let m = parse_module("mish", text).unwrap_or_else(|e| panic!("{e}"));
    let optimized = |target: Target| {
        let passes = sequence("default", &Settings::new(target));
        passes.and_then(|s| s.run(m.clone(), &mut PassContext::default())).unwrap_or_else(|e| panic!("{e}"))
    };
    for processor in ["haswell", "cascadelake", "sapphirerapids", "graniterapids", "znver4", "znver5"] {
        let target = Target::parse(&format!("llvm -mcpu={processor}")).unwrap_or_else(|e| panic!("{e}"));
        let text = print_module(&optimized(target));
        assert!(!text.contains("tanh"), "{processor}: {text}");
    }
    let m = optimized(Target::host());
    let x = Tensor::from_f64_fn(DType::F32, &[16, 1000], |i| x[i / 1000].into());
    let (want, got) = both(&m, std::slice::from_ref(&x));
    for (i, t) in want.iter().chain(&got).flat_map(|t| (0..16_000).map(move |i| (i, t))) {
        let x = x.get_f64(i);
        let right = (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh();
        let here = t.get_f64(i);
        assert!(
            here.is_nan() && x.is_nan() || (here - right).abs() <= 4e-7 * right + 1e-37,
            "of {x}: {here}, not {right}"
        );
    }
}

#[test]
fn short_floats_are_summed_as_tvm_sums_them() {
    // float16 rounds each product and each sum: 2048 + 1 is 2048. bfloat16 sums in float32 and rounds once.
    let text = |d: &str, n: usize| {
        format!(
            "#[version = \"0.0.5\"] def @main(%x: Tensor[(1, {n}), {d}], %w: Tensor[(1, {n}), {d}]) {{
                (nn.dense(%x, %w), nn.dense(%x, %w, out_dtype=\"float32\")) }}"
        )
    };
    let ones = |d, n: usize| {
        (
            Tensor::from_f64_fn(d, &[1, n], |_| 1.0),
            Tensor::from_f64_fn(d, &[1, n], |i| if i == 0 { 2048.0 } else { 1.0 }),
        )
    };
    for (d, wanted) in [(DType::F16, 2048.0), (DType::BF16, 2080.0)] {
        let n = 30;
        let m = parse_module("sums", &text(d.name(), n)).unwrap_or_else(|e| panic!("{e}"));
        let (w, x) = ones(d, n);
        let (want, got) = both(&m, &[x, w]);
        assert_eq!(want[0].get_f64(0), wanted, "{d}");
        // Compiled code sums float16 in lanes, each in the type.
        let compiled = got[0].get_f64(0);
        assert!((2048.0..=2080.0).contains(&compiled) && (d == DType::F16 || compiled == wanted), "{d}: {compiled}");
        assert_eq!((want[1].get_f64(0), got[1].get_f64(0)), (2077.0, 2077.0), "{d}");
    }
}

/// Images with infinities, NaN, and numbers that overflow in a tile's transform or in sums.
fn odd_images(shape: &[usize]) -> Vec<Tensor> {
    let plain = |i: usize| ((i * 7919 + i / 13) % 17) as f64 / 4.0 - 2.0;
    let odd: [&[f64]; 7] = [
        &[],
        &[f64::INFINITY],
        &[f64::NAN],
        &[f64::NEG_INFINITY, f64::INFINITY],
        &[1e38],
        &[-2e38, 3e38],
        &[f64::INFINITY, 2e38, f64::NAN, -3e38, f64::NEG_INFINITY],
    ];
    let all: usize = shape.iter().product();
    odd.iter()
        .map(|odd| {
            let step = all / (odd.len() + 1);
            Tensor::from_f64_fn(DType::F32, shape, |i| match odd.get(i / step) {
                Some(&v) if i % step == step / 2 => v,
                _ => plain(i),
            })
        })
        .collect()
}

/// A weight of ordinary numbers, of which some are 0 and some nearly.
fn ordinary_weight() -> Tensor {
    ordinary(&[32, 16, 3, 3])
}

fn ordinary(shape: &[usize]) -> Tensor {
    Tensor::from_f64_fn(DType::F32, shape, |i| match i % 11 {
        3 => 0.0,
        7 => 1e-12,
        k => (k as f64 - 5.0) / 16.0 + (i % 7) as f64 / 100.0,
    })
}

/// A direct convolution with blocks of channels, and the same by Winograd's algorithm.
fn winograds(extents: &str, pads: &str, (i, o): (usize, usize)) -> String {
    let blocks: usize = extents.split(", ").nth(1).and_then(|n| n.parse().ok()).expect("a number of blocks");
    format!(
            "#[version = \"0.0.5\"] def @main(%x: Tensor[({extents}, {i}), float32], %w: Tensor[(32, {}, 3, 3), float32]) {{
                %0 = layout_transform(%w, src_layout=\"OIHW\", dst_layout=\"OIHW{i}i{o}o\");
                %1 = nn.contrib_conv2d_NCHWc(%x, %0, padding={pads}, channels=32, kernel_size=[3, 3], data_layout=\"NCHW{i}c\",
                    kernel_layout=\"OIHW{i}i{o}o\", out_layout=\"NCHW{o}c\");
                %2 = nn.contrib_conv2d_winograd_weight_transform(%w, tile_size=4);
                %3 = layout_transform(%2, src_layout=\"HWOI\", dst_layout=\"OHWI{o}o\");
                %4 = cast(sign(%0), dtype=\"int8\");
                %5 = nn.winograd_conv2d(%x, %3, %4, tile_size=4, padding={pads}, data_layout=\"NCHW{i}c\", kernel_layout=\"OHWI{o}o\",
                    out_layout=\"NCHW{o}c\");
                (%1, %5) }}",
            blocks * i
        )
}

/// The same of bfloat16 in pairs, and of it widened beside a weight of float32, with results of a type.
fn winograds_of_short(extents: &str, pads: &str, (i, o): (usize, usize), out: &str) -> String {
    format!(
        "#[version = \"0.0.5\"] def @main(%x: Tensor[({extents}, {i}), bfloat16], %w: Tensor[(32, 16, 3, 3), bfloat16]) {{
                %0 = layout_transform(%w, src_layout=\"OIHW\", dst_layout=\"OIHW{o}o2i\");
                %1 = nn.contrib_conv2d_NCHWc(%x, %0, padding={pads}, channels=32, kernel_size=[3, 3], data_layout=\"NCHW{i}c\",
                    kernel_layout=\"OIHW{o}o2i\", out_layout=\"NCHW{o}c\", out_dtype=\"{out}\");
                %2 = cast(%w, dtype=\"float32\");
                %3 = nn.contrib_conv2d_winograd_weight_transform(%2, tile_size=4);
                %4 = layout_transform(%3, src_layout=\"HWOI\", dst_layout=\"OHWI{o}o\");
                %5 = cast(sign(layout_transform(%2, src_layout=\"OIHW\", dst_layout=\"OIHW{i}i{o}o\")), dtype=\"int8\");
                %6 = nn.winograd_conv2d(%x, %4, %5, tile_size=4, padding={pads}, data_layout=\"NCHW{i}c\", kernel_layout=\"OHWI{o}o\",
                    out_layout=\"NCHW{o}c\", out_dtype=\"{out}\");
                (%1, %6) }}"
    )
}

/// The same over planes, rows and columns, with windows of so many planes: `results` names the direct one `%1` and the other one `%6`.
fn winograds_of_planes(extents: &str, taps: usize, pads: &str, (i, o): (usize, usize), results: &str) -> String {
    format!(
            "#[version = \"0.0.5\"] def @main(%x: Tensor[({extents}, {i}), float32], %w: Tensor[(32, 16, {taps}, 3, 3), float32]) {{
                %0 = layout_transform(%w, src_layout=\"OIDHW\", dst_layout=\"OIDHW{i}i{o}o\");
                %1 = nn.conv3d(%x, %0, padding={pads}, channels=32, kernel_size=[{taps}, 3, 3], data_layout=\"NCDHW{i}c\",
                    kernel_layout=\"OIDHW{i}i{o}o\", out_layout=\"NCDHW{o}c\");
                %2 = reshape(transpose(%w, axes=[0, 2, 1, 3, 4]), newshape=[32, {}, 3, 3]);
                %3 = nn.contrib_conv2d_winograd_weight_transform(%2, tile_size=4);
                %4 = layout_transform(%3, src_layout=\"HWOI\", dst_layout=\"OHWI{o}o\");
                %5 = cast(sign(layout_transform(%2, src_layout=\"OIHW\", dst_layout=\"OIHW{i}i{o}o\")), dtype=\"int8\");
                %6 = nn.winograd_conv3d(%x, %4, %5, tile_size=4, padding={pads}, data_layout=\"NCDHW{i}c\", kernel_layout=\"OHWI{o}o\",
                    out_layout=\"NCDHW{o}c\");
                {results} }}",
            16 * taps
        )
}

/// Whether both results of a program are the same on odd images by the interpreter, and those of another one, compiled.
fn agrees_on_odd_images([interpreted, text]: [&str; 2], shape: &[usize], w: &Tensor) {
    let [m, to_compile] = [interpreted, text].map(|text| parse_module("tiles", text).unwrap_or_else(|e| panic!("{e}")));
    let of_type = |x: Tensor| Tensor::from_f64_fn(w.dtype(), x.shape(), |i| x.get_f64(i));
    let (images, exe) = (odd_images(shape).into_iter().map(of_type).collect::<Vec<_>>(), as_it_stands(&to_compile));
    let by_interpreter = |x: &Tensor| {
        let args = [x, w].map(|t| Value::from(t.clone())).to_vec();
        interp::run_flat(&m, "main", args).unwrap_or_else(|e| panic!("{e}"))
    };
    let usual = largest(&by_interpreter(&images[0])[0]);
    for x in &images {
        let got = exe.run(&[x.clone(), w.clone()]).unwrap_or_else(|e| panic!("{e}"));
        let want = by_interpreter(x);
        let far = largest(x) > 1e30;
        for found in want[1..].iter().chain(&got) {
            for i in 0..found.len() {
                let (a, b) = (want[0].get_f64(i), found.get_f64(i));
                // Beside a large number the others of its tile are differences of large ones.
                let most = if far { largest(x) } else { usual };
                // What is next to it.
                let rounded = if found.dtype() == DType::BF16 { a.abs() / 128.0 } else { 0.0 };
                let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-5 * most + rounded;
                assert!(same, "{shape:?}: {a} became {b} at {i} of\n{text}");
            }
        }
    }
}

/// A corner of a box that is NaN is neither inside of the image nor outside: what is cropped there is NaN.
#[test]
fn boxes_with_nan_crop_nan() {
    let text = "#[version = \"0.0.5\"] def @main(%x: Tensor[(1, 4, 5, 3), float32], %b: Tensor[(2, 4), float32], %i: Tensor[(2), int32]) {
        image.crop_and_resize(%x, %b, %i, crop_size=[2, 2], layout=\"NHWC\", extrapolation_value=0.5f) }";
    let m = parse_module("boxes", text).unwrap_or_else(|e| panic!("{e}"));
    let x = Tensor::from_f64_fn(DType::F32, &[1, 4, 5, 3], |i| i as f64);
    let boxes = Tensor::from_f64_fn(DType::F32, &[2, 4], |i| [f64::NAN, 0.1, 0.9, 0.8, 0.2, 0.1, 1.5, 0.8][i]);
    let args = [x, boxes, Tensor::from_i64_fn(DType::I32, &[2], |_| 0)];
    let got = compiled(&m, &args);
    let want =
        interp::run_flat(&m, "main", args.iter().cloned().map(Value::from).collect()).unwrap_or_else(|e| panic!("{e}"));
    assert!((0..12).all(|i| got[0].get_f64(i).is_nan() && want[0].get_f64(i).is_nan()), "{:?}", got[0]);
    assert!((12..24).all(|i| (got[0].get_f64(i) - want[0].get_f64(i)).abs() < 1e-4), "{:?}", got[0]);
}

/// Infinities and NaN of Winograd's convolution are where a direct convolution has them, and nowhere else.
#[test]
fn tiles_of_winograd_keep_infinities_apart() {
    let cases = [
        ("2, 2, 11, 14", "[1, 1, 1, 1]", (8, 8)),
        ("1, 1, 12, 8", "[0, 1, 2, 0]", (16, 16)),
        ("?, 2, ?, ?", "[1, 1, 1, 1]", (8, 16)),
        // Weights are too many for strips.
        ("?, 10, ?, ?", "[1, 1, 1, 1]", (16, 16)),
    ];
    for (extents, pads, blocks) in cases {
        let known = |(n, extent): (usize, &str)| extent.parse().unwrap_or([1, 0, 10, 13][n]);
        let shape: Vec<usize> = extents.split(", ").enumerate().map(known).chain([blocks.0]).collect();
        let text = winograds(extents, pads, blocks);
        agrees_on_odd_images([&text, &text], &shape, &ordinary(&[32, shape[1] * blocks.0, 3, 3]));
    }
}

/// Of bfloat16 whose sums are float32, too, rounded or not; with no padding, so that nothing but widening stands before the tiles.
#[test]
fn tiles_of_short_floats_keep_infinities_apart() {
    let weight = ordinary_weight();
    let short = Tensor::from_f64_fn(DType::BF16, weight.shape(), |i| weight.get_f64(i));
    let cases = [
        ("2, 2, 11, 14", "[1, 1, 1, 1]", (8, 8), "float32"),
        ("1, 1, 14, 10", "[0, 0, 0, 0]", (16, 16), "bfloat16"),
        ("1, 1, 12, 8", "[0, 1, 2, 0]", (16, 16), "bfloat16"),
        ("?, 2, ?, ?", "[1, 1, 1, 1]", (8, 16), "float32"),
    ];
    for (extents, pads, blocks, out) in cases {
        let shape: Vec<usize> = match extents.starts_with('?') {
            true => vec![1, 2, 10, 13, blocks.0],
            false => extents.split(", ").map(|n| n.parse().expect("a number")).chain([blocks.0]).collect(),
        };
        let text = winograds_of_short(extents, pads, blocks, out);
        agrees_on_odd_images([&text, &text], &shape, &short);
    }
}

/// Over three axes: windows of one plane to three, planes of padding on both sides or none, more tiles in a plane than are computed together, and few.
#[test]
fn winograd_over_planes() {
    let cases = [
        ("2, 2, 3, 6, 5", 3, "[1, 1, 1]", (8, 8)),
        ("1, 1, 4, 8, 5", 2, "[0, 0, 1, 1, 2, 0]", (16, 16)),
        ("1, 1, 1, 9, 10", 3, "[2, 1, 1, 2, 1, 1]", (16, 8)),
        ("1, 1, 4, 6, 7", 1, "[0, 1, 1]", (16, 16)),
        ("1, 1, 2, 17, 14", 3, "[1, 1, 1]", (16, 16)),
    ];
    for (extents, taps, pads, blocks) in cases {
        let shape: Vec<usize> = extents.split(", ").map(|n| n.parse().expect("a number")).chain([blocks.0]).collect();
        let texts = ["(%1, %6)", "%6"].map(|results| winograds_of_planes(extents, taps, pads, blocks, results));
        agrees_on_odd_images([&texts[0], &texts[1]], &shape, &ordinary(&[32, 16, taps, 3, 3]));
    }
}

/// So many channels that several register tiles go through a part of them at a time: parts of one size, of two, and with results in blocks of another
/// size.
#[test]
fn parts_of_winograd() {
    for (extents, blocks) in [("1, 5, 9, 20", (16, 16)), ("1, 67, 9, 19", (2, 16)), ("1, 9, 12, 17", (16, 8))] {
        let shape: Vec<usize> = extents.split(", ").map(|n| n.parse().expect("a number")).chain([blocks.0]).collect();
        let weight = ordinary(&[32, shape[1] * blocks.0, 3, 3]);
        let text = winograds(extents, "[1, 1, 1, 1]", blocks);
        agrees_on_odd_images([&text, &text], &shape, &weight);
    }
}

/// Checks what is not a direct convolution's result against one that is: as near as `most`, with infinities and NaN in the same places.
fn is_direct([direct, other]: [&Tensor; 2], most: f64, what: &str) {
    assert_eq!(direct.shape(), other.shape(), "{what}");
    for i in 0..direct.len() {
        let (a, b) = (direct.get_f64(i), other.get_f64(i));
        let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= most;
        assert!(same, "{what}: {a} became {b} at {i}");
    }
}

/// Images of so many tiles that these go band by band where there are planes, and else in many strips, of which one has tiles of both images.
#[test]
fn bands_of_winograd() {
    let of_images = winograds("2, 1, 86, 89", "[1, 1, 1, 1]", (16, 16));
    let of_planes = winograds_of_planes("1, 1, 2, 86, 89", 3, "[1, 1, 1]", (16, 16), "(%1, %6)");
    let cases = [
        (of_images, vec![2, 1, 86, 89, 16], ordinary_weight()),
        (of_planes, vec![1, 1, 2, 86, 89, 16], ordinary(&[32, 16, 3, 3, 3])),
    ];
    for (text, shape, weight) in cases {
        let exe = as_it_stands(&parse_module("bands", &text).unwrap_or_else(|e| panic!("{e}")));
        let run = |x: &Tensor| exe.run(&[x.clone(), weight.clone()]).unwrap_or_else(|e| panic!("{e}"));
        let most = 1e-5 * largest(&run(&odd_images(&shape)[0])[0]);
        for x in odd_images(&shape).iter().filter(|x| largest(x) < 1e30) {
            let got = run(x);
            is_direct([&got[0], &got[1]], most, &format!("{shape:?}"));
        }
    }
}

/// Images of so many tiles that each thread takes strips of them: with transformed tiles on its stack, and in memory where weights are many; of strips
/// with tiles of two images, of two lengths, with windows at edges that are padded on some sides only; with what follows the convolution in its stores, where
/// infinities do not tell any more what a result was.
#[test]
fn strips_of_winograd() {
    let cases = [
        ("2, 1, 46, 49", "[1, 1, 1, 1]", (16, 16)),
        ("1, 2, 30, 43", "[0, 1, 2, 0]", (8, 8)),
        ("1, 3, 66, 34", "[0, 0, 0, 0]", (16, 32)),
        ("1, 9, 34, 50", "[1, 1, 1, 1]", (16, 16)),
        ("19, 1, 5, 9", "[1, 1, 1, 1]", (16, 8)),
    ];
    for (extents, pads, blocks) in cases {
        let shape: Vec<usize> = extents.split(", ").map(|n| n.parse().expect("a number")).chain([blocks.0]).collect();
        let weight = ordinary(&[32, shape[1] * blocks.0, 3, 3]);
        let text = winograds(extents, pads, blocks);
        let (_, call) = text.split_once("%5 = ").expect("the last call");
        let (call, _) = call.split_once(';').expect("it ends");
        // A convolution of its own, which nothing else reads.
        let results = format!("(%1, %5, nn.relu(negative(%1)), nn.relu(negative({call})))");
        let text = text.replace("(%1, %5)", &results);
        let m = parse_module("strips", &text).unwrap_or_else(|e| panic!("{e}"));
        for (passes, threads) in [("none", 1), ("FuseOps", 2)] {
            let settings = Settings::new(Target::host());
            let mut options = Options::new(settings.clone());
            options.passes = Some(Box::new(sequence(passes, &settings).expect("it is a list of passes")));
            options.threads = threads;
            let exe = build(m.clone(), &[], options).unwrap_or_else(|e| panic!("{e}")).executable;
            for x in odd_images(&shape).iter().filter(|x| largest(x) < 1e30) {
                let got = exe.run(&[x.clone(), weight.clone()]).unwrap_or_else(|e| panic!("{e}"));
                let most = 1e-5 * largest(&got[0]);
                is_direct([&got[0], &got[1]], most, &format!("{extents}, {passes}"));
                is_direct([&got[2], &got[3]], most, &format!("{extents}, {passes}, what follows"));
            }
        }
    }
}

/// No images have no strips.
#[test]
fn no_images_go_through_winograd() {
    for extents in ["0, 1, 30, 30", "?, 1, 30, 30"] {
        let m = parse_module("none", &winograds(extents, "[1, 1, 1, 1]", (16, 16))).unwrap_or_else(|e| panic!("{e}"));
        let x = Tensor::zeros(DType::F32, &[0, 1, 30, 30, 16]);
        for t in compiled(&m, &[x, ordinary_weight()]) {
            assert_eq!(t.shape(), [0, 2, 30, 30, 16]);
        }
    }
}

/// One code for images of any number and size: with more bands than one, register tiles that are whole and such that are not, and tiles that
/// hang over. What was met first does not matter.
#[test]
fn winograd_of_images_of_any_size() {
    let sizes = [[1, 122, 125], [1, 3, 4], [5, 5, 5], [3, 30, 33], [2, 64, 61], [1, 1, 9], [4, 12, 12]];
    for (blocks, turn) in [((16, 16), 0), ((16, 8), 1), ((16, 16), 5)] {
        let text = winograds("?, 1, ?, ?", "[1, 1, 1, 1]", blocks);
        let exe = as_it_stands(&parse_module("any", &text).unwrap_or_else(|e| panic!("{e}")));
        for [n, h, w] in sizes.iter().cycle().skip(turn).take(sizes.len()) {
            let images = odd_images(&[*n, 1, *h, *w, blocks.0]);
            for x in [&images[0], &images[1]] {
                let got = exe.run(&[x.clone(), ordinary_weight()]).unwrap_or_else(|e| panic!("{e}"));
                let most = 1e-5 * largest(&got[0]);
                is_direct([&got[0], &got[1]], most, &format!("{n} x {h} x {w}"));
            }
        }
        let Runnable::Machine(m) = &exe else { panic!("the program's extents are unknown") };
        assert_eq!((m.sized_calls().1, m.sized_calls().2), (0, 0));
    }
}

/// The same where weights are many: threads begin with groups of blocks, or, of many tiles, with parts of images.
#[test]
fn winograd_of_many_channels_and_images_of_any_size() {
    let exe = as_it_stands(
        &parse_module("any", &winograds("?, 9, ?, ?", "[1, 1, 1, 1]", (16, 16))).unwrap_or_else(|e| panic!("{e}")),
    );
    let weight = ordinary(&[32, 9 * 16, 3, 3]);
    for [n, h, w] in [[1, 14, 14], [1, 34, 50], [2, 7, 7], [3, 33, 29], [1, 5, 5], [1, 66, 70]] {
        let images = odd_images(&[n, 9, h, w, 16]);
        for x in [&images[0], &images[1]] {
            let got = exe.run(&[x.clone(), weight.clone()]).unwrap_or_else(|e| panic!("{e}"));
            // Sums of nine times as many products as elsewhere.
            let most = 4e-5 * largest(&got[0]);
            is_direct([&got[0], &got[1]], most, &format!("{n} x {h} x {w}"));
        }
    }
    let Runnable::Machine(m) = &exe else { panic!("the program's extents are unknown") };
    assert_eq!((m.sized_calls().1, m.sized_calls().2), (0, 0));
}

/// Winograd's convolution of bytes is the direct one, bit for bit, with the largest bytes that there are: tiles that hang over, images by band, weights of
/// more than a register tile, and what is stored in the place of its results.
#[test]
fn winograd_of_bytes_is_exact() {
    let cases = [
        ("2, 2, 11, 14, 8", "[1, 1, 1, 1]", (8, 16), "uint8", "none"),
        ("1, 1, 12, 8, 16", "[1, 1, 1, 1]", (16, 16), "int8", "FuseOps"),
        ("1, 1, 9, 10, 16", "[0, 1, 2, 0]", (16, 8), "uint8", "FuseOps"),
        ("2, 1, 86, 89, 16", "[1, 1, 1, 1]", (16, 16), "uint8", "FuseOps"),
    ];
    for (extents, pads, (i, o), dtype, passes) in cases {
        let conv = format!("padding={pads}, data_layout=\"NCHW{i}c\", out_layout=\"NCHW{o}c\"");
        // What follows reads a byte of its own at each result, and factors by blocks of channels.
        let rest = |name: &str| {
            format!(
                "clip(add(fixed_point_multiply_high_per_axis({name}, %m, %h, %s, axes=[1, 4]), %z), a_min=0f, a_max=255f)"
            )
        };
        let shape: Vec<usize> = extents.split(", ").map(|n| n.parse().expect("a number")).collect();
        let padding: Vec<usize> =
            pads.trim_matches(['[', ']']).split(", ").map(|n| n.parse().expect("a number")).collect();
        let (height, width) = (shape[2] + padding[0] + padding[2] - 2, shape[3] + padding[1] + padding[3] - 2);
        let outs = 32 / o;
        let text = format!(
            "#[version = \"0.0.5\"] def @main(%x: Tensor[({extents}), {dtype}], %w: Tensor[(32, 16, 3, 3), int8],
                    %m: Tensor[({outs}, {o}), int32], %h: Tensor[({outs}, {o}), int32], %s: Tensor[({outs}, {o}), int32],
                    %z: Tensor[({}, {outs}, {height}, {width}, {o}), int32]) {{
                %0 = layout_transform(%w, src_layout=\"OIHW\", dst_layout=\"OIHW{o}o4i\");
                %1 = nn.contrib_conv2d_NCHWc(%x, %0, channels=32, kernel_size=[3, 3], kernel_layout=\"OIHW{o}o4i\", out_dtype=\"int32\",
                    {conv});
                %2 = layout_transform(nn.winograd_int8_weight_transform(%w), src_layout=\"HWOI\", dst_layout=\"OHWI{o}o2i\");
                %3 = nn.winograd_conv2d_int8(%x, %2, kernel_layout=\"OHWI{o}o2i\", {conv});
                %4 = nn.winograd_conv2d_int8(%x, %2, kernel_layout=\"OHWI{o}o2i\", {conv});
                (%1, %3, cast({}, dtype=\"uint8\"), cast({}, dtype=\"uint8\")) }}",
            shape[0],
            rest("%1"),
            rest("%4"),
        );
        let m = parse_module("bytes", &text).unwrap_or_else(|e| panic!("{e}"));
        let settings = Settings::new(Target::host());
        let mut options = Options::new(settings.clone());
        options.passes = Some(Box::new(sequence(passes, &settings).expect("it is a list of passes")));
        options.threads = 1;
        let exe = build(m.clone(), &[], options).unwrap_or_else(|e| panic!("{e}")).executable;
        let (least, greatest) = if dtype == "int8" { (-128, 127) } else { (0, 255) };
        let draw = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let byte = |i: usize| if draw(i) % 4 == 0 { least } else { greatest - (draw(i + 7) % 2) as i64 };
        let x = Tensor::from_i64_fn(if dtype == "int8" { DType::I8 } else { DType::U8 }, &shape, byte);
        let w =
            Tensor::from_i64_fn(DType::I8, &[32, 16, 3, 3], |i| [127, -128, 127, 3, -128][(draw(i + 3) % 5) as usize]);
        let per_channel = |f: fn(i64) -> i64| Tensor::from_i64_fn(DType::I32, &[outs, o], |i| f(i as i64));
        let z = Tensor::from_i64_fn(DType::I32, &[shape[0], outs, height, width, o], |i| (i % 251) as i64);
        let half = per_channel(|i| 1 << (10 + i % 4));
        let inputs = [x, w, per_channel(|i| (1 << 30) + 77 * i), half, per_channel(|i| 11 + i % 4), z];
        let got = exe.run(&inputs).unwrap_or_else(|e| panic!("{e}"));
        assert!(got[0] == got[1] && got[2] == got[3], "{extents}, {pads}");
        if shape[2] < 80 {
            let args: Vec<Value> = inputs.iter().cloned().map(Value::from).collect();
            let want = interp::run_flat(&m, "main", args).unwrap_or_else(|e| panic!("{e}"));
            assert!(want == got, "{extents}, {pads}");
        }
    }
}

/// The largest magnitude among finite elements.
fn largest(t: &Tensor) -> f64 {
    t.to_f64_vec().into_iter().filter(|v| v.is_finite()).fold(0.0, |m, v| m.max(v.abs()))
}
