//! Networks whose layouts are converted: one like ResNet-50, a long chain, and random ones.

use std::fmt::Write;

use resat::{
    ir::{ExprId, Module, Name, children, reachable},
    pass::bind_params,
    relay::text,
    tensor::{DType, Tensor},
};

/// Numbers that look random, the same on every machine.
struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A network being written: statements and parameters.
#[derive(Default)]
struct Writer {
    params: Vec<(String, Vec<i64>)>,
    body: String,
    next: usize,
}

impl Writer {
    fn param(&mut self, name: &str, shape: &[i64]) -> String {
        let name = format!("{name}{}", self.params.len());
        self.params.push((name.clone(), shape.to_vec()));
        format!("%{name}")
    }

    fn let_(&mut self, value: &str) -> String {
        let name = format!("%{}", self.next);
        self.next += 1;
        writeln!(self.body, "  {name} = {value};").expect("a string takes all");
        name
    }

    fn finish(&self, result: &str) -> String {
        let extents = |s: &[i64]| s.iter().map(|n| format!("{n},")).collect::<String>();
        let params: Vec<String> =
            self.params.iter().map(|(n, s)| format!("%{n}: Tensor[({}), float32]", extents(s))).collect();
        let params = params.join(", ").replace(",)", ")");
        format!("#[version = \"0.0.5\"]\ndef @main({params}) {{\n{}  {result}\n}}", self.body)
    }
}

/// Convolution, batch normalization and, where wanted, relu.
fn layer(w: &mut Writer, x: &str, (ins, outs): (i64, i64), (taps, stride): (i64, i64), relu: bool) -> String {
    let weight = w.param("w", &[outs, ins, taps, taps]);
    let (k, p) = (taps, taps / 2);
    let conv = w.let_(&format!(
        "nn.conv2d({x}, {weight}, strides=[{stride}, {stride}], padding=[{p}, {p}, {p}, {p}], channels={outs}, kernel_size=[{k}, {k}])"
    ));
    let [g, h, m, v] = ["gamma", "beta", "mean", "var"].map(|n| w.param(n, &[outs]));
    let norm = w.let_(&format!("nn.batch_norm({conv}, {g}, {h}, {m}, {v})"));
    let out = w.let_(&format!("{norm}.0"));
    if relu { w.let_(&format!("nn.relu({out})")) } else { out }
}

/// ResNet-50 with a quarter of its channels on a small image; its weights are constants.
pub(crate) fn residual(blocks: &[i64]) -> Module {
    let mut w = Writer::default();
    let image = w.param("x", &[1, 3, 32, 32]);
    let stem = layer(&mut w, &image, (3, 16), (7, 2), true);
    let mut x = w.let_(&format!("nn.max_pool2d({stem}, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])"));
    let mut channels = 16;
    for (stage, &count) in blocks.iter().enumerate() {
        let narrow = 16 << stage;
        for block in 0..count {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let a = layer(&mut w, &x, (channels, narrow), (1, 1), true);
            let b = layer(&mut w, &a, (narrow, narrow), (3, stride), true);
            let c = layer(&mut w, &b, (narrow, 4 * narrow), (1, 1), false);
            let side = if block == 0 { layer(&mut w, &x, (channels, 4 * narrow), (1, stride), false) } else { x };
            let sum = w.let_(&format!("add({c}, {side})"));
            x = w.let_(&format!("nn.relu({sum})"));
            channels = 4 * narrow;
        }
    }
    let pooled = w.let_(&format!("nn.global_avg_pool2d({x})"));
    let flat = w.let_(&format!("nn.batch_flatten({pooled})"));
    let dense = w.param("w", &[10, channels]);
    let result = format!("nn.softmax(nn.dense({flat}, {dense}))");
    let module = text::parse_module("residual", &w.finish(&result)).expect("a network");
    let mut random = Random::new(50);
    let constants: Vec<(Name, Tensor)> = w.params[1..]
        .iter()
        .map(|(name, shape)| {
            let fan: i64 = shape[1..].iter().product();
            let sizes: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
            let variance = name.starts_with("var");
            let value = |_| match variance {
                true => 0.5 + random.below(1000) as f64 / 1000.0,
                false => (random.below(2000) as f64 / 1000.0 - 1.0) * (2.0 / fan as f64).sqrt(),
            };
            (name.as_str().into(), Tensor::from_f64_fn(DType::F32, &sizes, value))
        })
        .collect();
    bind_params(&module, &constants).expect("parameters of the network")
}

/// Transforms on a way from one convolution to another.
pub(crate) fn transforms_between_convolutions(m: &Module) -> usize {
    let name = |e: ExprId| m.op_call(e).map_or("", |(op, ..)| op.op().name());
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    let marks = |start: &dyn Fn(ExprId) -> bool, up: bool| {
        let mut marked = vec![false; m.len()];
        let order: Vec<ExprId> = if up { ids.clone() } else { ids.iter().rev().copied().collect() };
        for e in order {
            let mut parts = Vec::new();
            children(&m[e], |c| parts.push(c));
            if up {
                marked[e.index()] = parts.iter().any(|&c| marked[c.index()] || start(c));
            } else if marked[e.index()] || start(e) {
                parts.into_iter().for_each(|c| marked[c.index()] = true);
            }
        }
        marked
    };
    let convolution = |e: ExprId| name(e).contains("conv2d");
    let (after, before) = (marks(&convolution, true), marks(&convolution, false));
    let moves = |e: &&ExprId| ["layout_transform", "transpose"].contains(&name(**e));
    ids.iter().filter(moves).filter(|e| after[e.index()] && before[e.index()]).count()
}

/// Two convolutions with so many elementwise operators between them.
pub(crate) fn chain(operators: usize) -> String {
    let mut w = Writer::default();
    let mut x = w.param("x", &[1, 4, 6, 6]);
    let weight = w.param("w", &[4, 4, 3, 3]);
    let conv = format!(", {weight}, padding=[1, 1, 1, 1], channels=4, kernel_size=[3, 3])");
    x = w.let_(&format!("nn.conv2d({x}{conv}"));
    for i in 0..operators {
        x = w.let_(&format!("{}({x})", ["nn.relu", "tanh", "sigmoid", "negative"][i % 4]));
    }
    w.finish(&format!("nn.conv2d({x}{conv}"))
}

/// A random network, and a layout for its convolutions.
pub(crate) struct RandomNetwork {
    pub(crate) text: String,
    pub(crate) to: &'static str,
    /// Convolutions whose channels do not fill the layout's blocks.
    pub(crate) refused: usize,
}

#[derive(Clone)]
struct Value {
    name: String,
    channels: i64,
    extent: i64,
}

/// A random network of few small layers.
pub(crate) fn random(seed: u64) -> RandomNetwork {
    let mut r = Random::new(seed);
    let last = r.below(2) == 0;
    let (to, block) = r.pick(if last {
        &[("NCHW", 1), ("NHWC4c", 4), ("HWNC", 1), ("NCHW2c", 2), ("NCHW4c", 4)][..]
    } else {
        &[("NHWC", 1), ("NCHW4c", 4), ("HWNC", 1), ("NCHW2c", 2), ("NHWC2c", 2), ("NCHW8c", 8)][..]
    });
    let (layout, axis) = if last { ("NHWC", 3) } else { ("NCHW", 1) };
    let shape = |n: i64, c: i64, h: i64| if last { [n, h, h, c] } else { [n, c, h, h] };
    let mut w = Writer::default();
    let (batch, channels) = (1 + r.below(2) as i64, r.pick(&[3, 4, 8]));
    let x = w.param("x", &shape(batch, channels, 8));
    let mut values = vec![Value { name: x, channels, extent: 8 }];
    for step in 0..3 + r.below(7) {
        let from = if r.below(3) > 0 { values.len() - 1 } else { r.below(values.len()) };
        let Value { name: x, channels: c, extent: h } = values[from].clone();
        let like = |v: &&Value| v.name != x && v.extent == h;
        let other = values.iter().rev().find(like).cloned();
        let alike = other.clone().filter(|o| o.channels == c);
        let (text, channels, extent) = match if step == 0 { 0 } else { r.below(16) } {
            0..=4 => {
                let outs = r.pick(&[4, 6, 8]);
                let (kernel, names) = if last { (vec![3, 3, c, outs], "HWIO") } else { (vec![outs, c, 3, 3], "OIHW") };
                let weight = w.param("w", &kernel);
                let attrs =
                    format!("padding=[1, 1, 1, 1], channels={outs}, kernel_size=[3, 3], data_layout=\"{layout}\"");
                (format!("nn.conv2d({x}, {weight}, {attrs}, kernel_layout=\"{names}\")"), outs, h)
            }
            5 => (format!("{}({x})", r.pick(&["nn.relu", "tanh", "sigmoid", "abs"])), c, h),
            6 if alike.is_some() => {
                let other = alike.map(|o| o.name).unwrap_or_default();
                (format!("{}({other}, {x})", r.pick(&["add", "subtract", "maximum", "multiply"])), c, h)
            }
            7 if other.is_some() => {
                let Some(other) = other else { continue };
                let pair = w.let_(&format!("({x}, {})", other.name));
                (format!("concatenate({pair}, axis={axis})"), c + other.channels, h)
            }
            8 if h >= 4 => {
                let op = r.pick(&["nn.max_pool2d", "nn.avg_pool2d"]);
                (format!("{op}({x}, pool_size=[2, 2], strides=[2, 2], layout=\"{layout}\")"), c, h / 2)
            }
            9 => {
                let bias = w.param("b", &[c]);
                (format!("nn.bias_add({x}, {bias}, axis={axis})"), c, h)
            }
            10 => (format!("nn.softmax({x}, axis={axis})"), c, h),
            11 => {
                let pads = if last { "[0, 0], [1, 0], [1, 0], [0, 0]" } else { "[0, 0], [0, 0], [1, 0], [1, 0]" };
                (format!("nn.pad({x}, 0f, pad_width=[{pads}])"), c, h + 1)
            }
            12 => {
                let gate = w.let_(&format!("mean({x}, axis=[{}], keepdims=True)", if last { "1, 2" } else { "2, 3" }));
                (format!("multiply({x}, {gate})"), c, h)
            }
            13 if c % 2 == 0 => {
                let parts = w.let_(&format!("split({x}, indices_or_sections=2, axis={axis})"));
                (format!("{parts}.{}", r.below(2)), c / 2, h)
            }
            14 if h >= 3 => {
                let axes = if last { "1, 2" } else { "2, 3" };
                (
                    format!("strided_slice({x}, begin=[1, 0], end=[{h}, {}], strides=[1, 1], axes=[{axes}])", h - 1),
                    c,
                    h - 1,
                )
            }
            15 => {
                let [g, b, m, v] = ["g", "b", "m", "v"].map(|n| w.param(n, &[c]));
                let norm = w.let_(&format!("nn.batch_norm({x}, {g}, {b}, {m}, exp({v}), axis={axis})"));
                (format!("{norm}.0"), c, h)
            }
            _ => (format!("add({x}, 0.5f)"), c, h),
        };
        let name = w.let_(&text);
        values.push(Value { name, channels, extent });
    }
    let result = match values.as_slice() {
        [.., a, b] if r.below(2) == 0 => format!("({}, {})", a.name, b.name),
        [.., last] => last.name.clone(),
        [] => unreachable!("there is the input"),
    };
    // What does not reach the result is not there to be refused.
    let text = w.finish(&result);
    let module = text::parse_module("random", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let reached = reachable(&module, module.functions().map(|(_, f)| f));
    let refused = reached.iter().filter(|&&e| is_refused(&module, e, block, last)).count();
    RandomNetwork { text, to, refused }
}

/// Whether a call is a convolution whose channels do not fill blocks of this extent.
fn is_refused(m: &Module, e: ExprId, block: i64, last: bool) -> bool {
    let Some((op, args, attrs)) = m.op_call(e) else { return false };
    let weight = args.get(1).map(|&w| &m[w]);
    let (Some(resat::ir::Expr::Var(v)), "nn.conv2d") = (weight, op.op().name()) else { return false };
    let shape = m.var(*v).ty.as_ref().and_then(|t| t.as_tensor()).and_then(|t| t.known_shape()).expect("annotated");
    let (ins, outs) = if last { (shape[2], shape[3]) } else { (shape[1], shape[0]) };
    assert_eq!(attrs.get("channels").and_then(|c| c.as_int()), Some(outs));
    !((ins % block == 0 || ins < block) && outs % block == 0)
}
