//! Schedules at further sizes: what is found out about a kernel without making it is what the kernel says.
#![cfg(feature = "llvm")]

use std::collections::HashMap;

use crate::{
    common::Rng,
    dynamic::{AT_ALL_SIZES, network},
};
use resat::{
    infer::infer_types,
    ir::{Copier, Dim, Expr, Function, Module, TensorType, Type, reachable},
    loops::{Definition, Space},
    lower::{Group, Made, Met, Sites, groups},
    machine::Core,
    pass::{PassContext, Settings, default_pass},
    relay::text::parse_module,
    target::Target,
};

/// Each program is looked at in so many sizes.
const SIZES: usize = 200;

/// The program after all passes.
fn optimized(text: &str, target: &Target) -> Module {
    let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).unwrap_or_else(|e| panic!("{e}"));
    let pass = default_pass(&Settings::new(target.clone()), &Default::default()).unwrap_or_else(|e| panic!("{e}"));
    pass.run(m, &mut PassContext::default()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// What its calls compute, where unknown extents are these, in turn.
fn at(m: &Module, extents: &[i64]) -> Option<Vec<Group>> {
    let mut out = m.derive();
    let main = m.func(m.function_id("main")?);
    let mut given = extents.iter();
    let mut known = |t: &Type| match t {
        Type::Tensor(t) => {
            let extent = |d: &Dim| d.known().or_else(|| given.next().copied());
            let shape: Option<Vec<i64>> = t.shape.iter().map(extent).collect();
            Some(TensorType::new(&shape?, t.dtype).into())
        }
        _ => None,
    };
    let types: Vec<Type> = main.params.iter().map(|&p| known(m.var(p).ty.as_ref()?)).collect::<Option<_>>()?;
    let params: Vec<_> =
        main.params.iter().zip(types).map(|(&p, t)| out.new_var(m.var(p).name.clone(), Some(t))).collect();
    let bound: HashMap<_, _> = main.params.iter().zip(&params).map(|(&p, &v)| (p, out.add(Expr::Var(v)))).collect();
    for e in reachable(m, [main.body]) {
        if let Expr::Func(inner) = &m[e] {
            inner.params.iter().for_each(|&p| out.var_mut(p).ty = None);
        }
    }
    let body = Copier::new().copy_with(m, main.body, &mut out, |out, _, e| match e {
        Expr::Var(v) => bound.get(v).copied(),
        Expr::Func(inner) => Some(out.add(Expr::Func(Box::new(Function { ret: None, ..(**inner).clone() })))),
        _ => None,
    });
    let main = out.add(Expr::Func(Box::new(Function::new(params, body, None))));
    out.define("main", main);
    groups(&infer_types(out).ok()?, "main", &[]).ok()
}

/// A weight of so many numbers.
fn weight(shape: &str, n: usize) -> String {
    format!("multiply(sin(reshape(arange(0f, {n}f, 1f, dtype=\"float32\"), newshape={shape})), 0.1f)")
}

/// A convolution of so many channels by Winograd's algorithm, with a sum and an activation after it.
fn winograd(n: usize) -> String {
    let blocks = n / 16;
    format!(
        "def @main(%x: Tensor[(?, {blocks}, ?, ?, 16), float32], %w: Tensor[({blocks}, 6, 6, {n}, 16), float32],
                   %s: Tensor[({blocks}, {blocks}, 3, 3, 16, 16), int8]) {{
            nn.relu(add(nn.winograd_conv2d(%x, %w, %s, tile_size=4, padding=[1, 1, 1, 1], data_layout=\"NCHW16c\",
                kernel_layout=\"OHWI16o\", out_layout=\"NCHW16c\"), %x)) }}"
    )
}

/// Programs, of each unknown extent which it is equal to, and the most that they are.
fn programs() -> Vec<(String, Vec<usize>, i64)> {
    let unknown = |text: &str| -> Vec<usize> {
        match (text.matches("batch_matmul").count(), text.split('{').next().unwrap_or("").matches('?').count()) {
            (1, _) => vec![0, 1, 0, 2],
            (2, _) => vec![0, 1, 1],
            (_, n) => (0..n).collect(),
        }
    };
    let mut texts: Vec<String> = AT_ALL_SIZES.iter().map(|(text, _)| text.to_string()).collect();
    texts.push(network("(?, 16, ?, ?)"));
    // By strips, and with weights that are too many for that.
    texts.extend([64, 192].map(winograd));
    texts.push(format!(
        "def @main(%x: Tensor[(?, ?, 256), float32]) {{
            let %w = {};
            let %q = nn.dense(reshape(%x, newshape=[-1, 256]), %w, units=256);
            nn.layer_norm(add(reshape(nn.relu(%q), newshape=[2, -1, 256]), full(1f, shape=[256], dtype=\"float32\")),
                ones(shape=[256], dtype=\"float32\"), zeros(shape=[256], dtype=\"float32\"), axis=-1) }}",
        weight("[256, 256]", 65536)
    ));
    let others = [
        "def @main(%x: Tensor[(?, 2, ?, ?, 16), float32], %e: Tensor[(6, 2, 1, 1, 16, 16), float32],
                   %eb: Tensor[(1, 6, 1, 1, 16), float32], %d: Tensor[(6, 1, 3, 3, 1, 16), float32],
                   %db: Tensor[(1, 6, 1, 1, 16), float32], %p: Tensor[(2, 6, 1, 1, 16, 16), float32]) {
            add(%x, nn.inverted_bottleneck(%x, %e, %eb, %d, %db, %p, strides=[1, 1], padding=[1, 1], a_min=0f, a_max=6f)) }",
        "def @main(%q: Tensor[(4, ?, 32), float32], %k: Tensor[(4, ?, 32), float32], %v: Tensor[(4, 32, ?), float32]) {
            nn.batch_matmul(nn.softmax(nn.batch_matmul(%q, %k, transpose_b=True), axis=-1), %v, transpose_b=True) }",
        "def @main(%x: Tensor[(?, 8), float32], %cache: Tensor[(?, 8), float32], %w: Tensor[(8, 8), float32]) {
            let %all = concatenate((%cache, nn.relu(nn.dense(%x, %w, units=8))), axis=0);
            (nn.softmax(nn.dense(%x, %all, units=None), axis=-1), %all) }",
        "def @main(%x: Tensor[(?, 64), uint8], %w: Tensor[(32, 64), int8]) {
            nn.dense(%x, %w, units=32, out_dtype=\"int32\") }",
        "def @main(%x: Tensor[(?, ?), float32]) {
            (sum(%x, axis=[0]), max(%x, axis=[1]), mean(%x), transpose(%x), exp(reverse(%x, axis=1))) }",
        "def @main(%x: Tensor[(?, 3, ?, ?), uint8]) {
            layout_transform(cast(%x, dtype=\"float32\"), src_layout=\"NCHW\", dst_layout=\"NHWC\") }",
        "def @main(%x: Tensor[(?, 32, ?, ?), float32]) {
            layout_transform(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 2], [3, 4]]), src_layout=\"NCHW\", dst_layout=\"NCHW16c\") }",
    ];
    texts.extend(others.map(str::to_owned));
    texts
        .into_iter()
        .map(|t| (t.clone(), unknown(&t), if t.contains("conv2d") || t.contains("bottleneck") { 70 } else { 150 }))
        .collect()
}

#[test]
fn what_follows_a_convolution_is_a_part_of_its_stores_at_all_sizes() {
    let target = Target::parse("llvm -mcpu=x86-64-v4").unwrap_or_else(|e| panic!("{e}"));
    // Beside the result, the transformed data of 192 channels lies in memory; that of 64 is on each thread's stack.
    for (channels, in_memory) in [(64, 1), (192, 2)] {
        let m = optimized(&winograd(channels), &target);
        let sizes: Vec<Vec<Group>> =
            [[1, 40, 40], [2, 33, 47], [3, 56, 30]].iter().filter_map(|extents| at(&m, extents)).collect();
        let mut sites = Sites::new(target.core(), &sizes);
        let (met, _) = sites.meet(sizes[1].clone());
        let winograd = |m: &&Met| m.group.stages.definitions.iter().any(|d| matches!(d, Definition::Routine(_)));
        let Some(Made::Sized(kernel, _)) = met.iter().find(winograd).map(|m| &m.made) else {
            panic!("{channels} channels: no kernel for all sizes");
        };
        let written = kernel.kernel.buffers.iter().filter(|b| matches!(b.space, Space::Output(_))).count();
        assert_eq!(written, in_memory, "{channels} channels");
    }
}

#[test]
fn numbers_are_those_of_kernels() {
    let mut target = Target::parse("llvm -mcpu=x86-64-v4").unwrap_or_else(|e| panic!("{e}"));
    target.cores = 2;
    let core: Core = target.core();
    let (mut alone, mut whole) = (0, 0);
    for (text, unknown, most) in programs() {
        let m = optimized(&text, &target);
        let mut rng = Rng(7);
        let mut extent = || match rng.next() % 4 {
            0 => [1, 2, 8, 15, 16, 17, 32, 64, 65][(rng.next() % 9) as usize],
            _ => 1 + (rng.next() % most as u64) as i64,
        };
        let mut one = || {
            let extents = [(); 4].map(|()| extent());
            at(&m, &unknown.iter().map(|&n| extents[n]).collect::<Vec<i64>>())
        };
        let mut some = |count: usize| -> Vec<Vec<Group>> { (0..count).filter_map(|_| one()).collect() };
        let first = some(6);
        assert!(first.len() > 1, "{text}");
        let mut sites = Sites::new(core, &first);
        let (mut by_numbers, mut by_kernels) = (0, 0);
        for groups in some(SIZES).into_iter().filter(|g| g.len() == first[0].len()) {
            let (a, b) =
                sites.replays(&groups).unwrap_or_else(|| panic!("numbers are not those of the kernel: {text}"));
            (by_numbers, by_kernels) = (by_numbers + a, by_kernels + b);
            sites.meet(groups);
        }
        println!("{by_numbers} by numbers, {by_kernels} by kernels: {text}");
        (alone, whole) = (alone + by_numbers, whole + by_kernels);
    }
    assert!(alone > whole, "{alone} by numbers, {whole} by kernels");
}
