//! Extents that are unknown when a program is built: compiled code against the interpreter, at several extents.
#![cfg(feature = "llvm")]

use crate::common::{Data, Rng, difference, random_tensor};
use resat::{
    driver::{self, Built, ExtentBound, ExtentRange, Options, Runnable, Said},
    interp,
    ir::{Expr, Module, TensorType, name_attrs},
    pass::Settings,
    relay::{npz, text::parse_module},
    target::Target,
    tensor::{DType, Tensor},
};

fn parsed(text: &str) -> Module {
    parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).unwrap_or_else(|e| panic!("{e}"))
}

fn built(text: &str) -> Built {
    driver::build(parsed(text), &[], Options::new(Settings::new(Target::host()))).unwrap_or_else(|e| panic!("{e}"))
}

/// The program's results by compiled code, after they were compared with the interpreter's.
fn checked(text: &str, exe: &Runnable, inputs: &[Tensor]) -> Vec<Tensor> {
    let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).unwrap_or_else(|e| panic!("{e}"));
    let values = inputs.iter().cloned().map(Into::into).collect();
    let want = interp::run_flat(&m, "main", values).unwrap_or_else(|e| panic!("{e}"));
    let got = exe.run(inputs).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(want.len(), got.len(), "{text}");
    for (w, g) in want.iter().zip(&got) {
        assert_eq!((w.dtype(), w.shape()), (g.dtype(), g.shape()), "{text}");
        assert_eq!(difference(w, g), None, "{text}");
    }
    got
}

pub(crate) fn floats(shape: &[i64], seed: u64) -> Tensor {
    random_tensor(&TensorType::new(shape, DType::F32), Data::Tame, &mut Rng(seed))
}

#[test]
fn each_extent_has_its_code() {
    let text = "def @main(%x: Tensor[(?, 7), float32], %w: Tensor[(5, 7), float32]) {
        nn.softmax(nn.relu(nn.dense(%x, %w, units=5))) }";
    let exe = built(text).executable;
    for (seed, n) in [3, 1, 40, 0, 3].into_iter().enumerate() {
        let out = checked(text, &exe, &[floats(&[n, 7], seed as u64), floats(&[5, 7], 9)]);
        assert_eq!(out[0].shape(), [n as usize, 5]);
    }
}

#[test]
fn extents_follow_from_values() {
    let text = "def @main(%x: Tensor[(?, ?), float32], %s: Tensor[(3), int64]) {
        let %y = dyn.reshape(%x, %s);
        (%y, dyn.zeros(shape_of(%y, dtype=\"int64\"), dtype=\"int8\"), multiply(%y, 2f)) }";
    let exe = built(text).executable;
    for s in [[1i64, 2, 6], [3, 4, 1], [-1, 2, 2]] {
        checked(text, &exe, &[floats(&[4, 3], 1), Tensor::from_slice(&[3], &s)]);
    }
}

#[test]
fn values_that_decide_nothing_are_taken_all_the_same() {
    let text = "def @main(%x: Tensor[(5, 2), float32], %e: Tensor[(0), int64], %s: Tensor[(0), int64]) {
        dyn.strided_slice(%x, %e, %e, %s) }";
    let none = || Tensor::zeros(DType::I64, &[0]);
    checked(text, &built(text).executable, &[floats(&[5, 2], 1), none(), none()]);
}

#[test]
fn extents_are_found_while_running() {
    let text = "def @main(%x: Tensor[(?, ?), float32]) { argwhere(greater(%x, 0f)) }";
    let exe = built(text).executable;
    for (seed, shape) in [[3, 4], [1, 9], [5, 5]].iter().enumerate() {
        checked(text, &exe, &[floats(shape, seed as u64)]);
    }
    let none = exe.run(&[Tensor::zeros(DType::F32, &[2, 2])]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(none[0].shape(), [0, 2]);
}

#[test]
fn extents_that_do_not_fit_are_refused() {
    let exe = built("def @main(%x: Tensor[(?), float32], %y: Tensor[(?), float32]) { add(%x, %y) }").executable;
    assert_eq!(exe.run(&[floats(&[3], 1), floats(&[1], 2)]).map(|t| t[0].shape().to_vec()).ok(), Some(vec![3]));
    let message = exe.run(&[floats(&[3], 1), floats(&[4], 2)]).expect_err("3 and 4").to_string();
    assert!(message.contains("`add`") && message.contains('3') && message.contains('4'), "{message}");
    let message = exe.run(&[floats(&[3, 1], 1), floats(&[4], 2)]).expect_err("two axes").to_string();
    assert!(message.contains("input `x`"), "{message}");
}

#[test]
fn constants_make_extents_known_and_programs_plain() {
    let b = built(
        "def @main(%x: Tensor[(2, 6), float32], %y: Tensor[(3, 4), float32]) {
            add(dyn.reshape(%x, shape_of(%y, dtype=\"int64\")), %y) }",
    );
    assert!(b.executable.as_plain().is_some());
}

/// Calls of kernels that serve all extents, calls that have a kernel for each, and kernels that were compiled for extents that were met.
fn sized_calls(exe: &Runnable) -> (usize, usize, usize) {
    match exe {
        Runnable::Machine(m) => m.sized_calls(),
        Runnable::Plain(_) => panic!("the program's extents are unknown"),
    }
}

/// Programs of image-shaped and of row-shaped inputs with unknown extents, and sizes at which each runs.
pub(crate) const AT_ALL_SIZES: [(&str, &[&[&[i64]]]); 8] = [
    (
        "def @main(%x: Tensor[(?, 40), float32], %w: Tensor[(24, 40), float32]) { nn.relu(nn.dense(%x, %w, units=24)) }",
        &[&[&[7, 40], &[24, 40]], &[&[64, 40], &[24, 40]], &[&[3, 40], &[24, 40]], &[&[131, 40], &[24, 40]]],
    ),
    (
        "def @main(%x: Tensor[(?, ?), float32], %b: Tensor[(1, 1), float32]) { nn.softmax(add(%x, %b), axis=-1) }",
        &[&[&[7, 40], &[1, 1]], &[&[64, 131], &[1, 1]], &[&[3, 5], &[1, 1]], &[&[20, 16], &[1, 1]]],
    ),
    (
        "def @main(%x: Tensor[(?, ?, 48), float32], %g: Tensor[(48), float32], %b: Tensor[(48), float32]) {
            nn.layer_norm(%x, %g, %b, axis=-1, epsilon=1e-5f) }",
        &[&[&[2, 9, 48], &[48], &[48]], &[&[3, 70, 48], &[48], &[48]], &[&[5, 4, 48], &[48], &[48]]],
    ),
    (
        "def @main(%x: Tensor[(?, ?, 32), float32], %y: Tensor[(?, ?, 32), float32]) {
            nn.batch_matmul(%x, %y, transpose_b=True) }",
        &[&[&[2, 9, 32], &[2, 9, 32]], &[&[3, 70, 32], &[3, 70, 32]], &[&[6, 33, 32], &[6, 33, 32]]],
    ),
    (
        "def @main(%x: Tensor[(?, ?, 48), float32]) {
            transpose(reshape(%x, newshape=[0, 0, 4, 12]), axes=[0, 2, 1, 3]) }",
        &[&[&[2, 9, 48]], &[&[3, 70, 48]], &[&[6, 33, 48]], &[&[4, 2, 48]]],
    ),
    (
        "def @main(%x: Tensor[(?, 16, ?, ?), float32], %w: Tensor[(32, 16, 3, 3), float32]) {
            nn.relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3])) }",
        &[
            &[&[2, 16, 20, 24], &[32, 16, 3, 3]],
            &[&[3, 16, 33, 17], &[32, 16, 3, 3]],
            &[&[2, 16, 8, 50], &[32, 16, 3, 3]],
        ],
    ),
    (
        "def @main(%x: Tensor[(?, 16, ?, ?), float32], %w: Tensor[(16, 1, 3, 3), float32]) {
            nn.conv2d(%x, %w, strides=[2, 2], padding=[1, 1, 1, 1], groups=16, channels=16, kernel_size=[3, 3]) }",
        &[
            &[&[2, 16, 20, 24], &[16, 1, 3, 3]],
            &[&[3, 16, 33, 17], &[16, 1, 3, 3]],
            &[&[2, 16, 12, 50], &[16, 1, 3, 3]],
        ],
    ),
    (
        "def @main(%x: Tensor[(?, 16, ?, ?), float32]) {
            (nn.max_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]),
             nn.avg_pool2d(%x, pool_size=[2, 2], strides=[2, 2]), nn.global_avg_pool2d(%x)) }",
        &[&[&[2, 16, 20, 24]], &[&[3, 16, 33, 17]], &[&[2, 16, 12, 50]]],
    ),
];

#[test]
fn one_code_serves_all_sizes() {
    for (text, sizes) in AT_ALL_SIZES {
        let exe = built(text).executable;
        for (seed, shapes) in sizes.iter().enumerate() {
            let inputs: Vec<Tensor> =
                shapes.iter().enumerate().map(|(i, s)| floats(s, (7 * seed + i) as u64)).collect();
            checked(text, &exe, &inputs);
        }
        let (general, special, kernels) = sized_calls(&exe);
        assert!(general > 0 && special == 0 && kernels == 0, "{text}: {general}, {special}, {kernels}");
    }
}

/// Extents that are computed from those of the inputs are known where these are: the program is as plain as any. What is halved and
/// doubled again is as large as before at even extents only.
#[test]
fn extents_that_follow_from_extents_are_known() {
    let text = "def @main(%x: Tensor[(?, 16, ?), float32], %w: Tensor[(24, 16), float32]) {
        let %half = nn.max_pool1d(%x, pool_size=[2], strides=[2]);
        let %n = multiply(strided_slice(shape_of(%half, dtype=\"int64\"), begin=[2], end=[3], strides=[1]), 2i64);
        let %ends = arange(0f, cast(reshape(%n, newshape=[]), dtype=\"float32\"), 1f, dtype=\"float32\");
        let %at = cast(floor(multiply(%ends, 0.5f)), dtype=\"int64\");
        let %same = add(take(%half, %at, axis=2, mode=\"clip\"), %x);
        let %rows = dyn.reshape(%same, concatenate((stack((-1i64, 16i64), axis=0), %n), axis=0));
        nn.dense(transpose(reshape(%rows, newshape=[16, -1]), axes=[1, 0]), %w, units=24) }";
    let exe = built(text).executable;
    for (seed, shape) in [[1, 16, 32], [3, 16, 8], [2, 16, 50], [1, 16, 6]].into_iter().enumerate() {
        checked(text, &exe, &[floats(&shape, seed as u64), floats(&[24, 16], 9)]);
    }
    let (general, special, kernels) = sized_calls(&exe);
    assert!(general > 0 && special == 0 && kernels == 0, "{general}, {special}, {kernels}");
}

#[test]
fn functions_that_are_the_same_share_their_code() {
    let text = "def @main(%x: Tensor[(?, ?), float32], %y: Tensor[(?, ?), float32], %s: Tensor[(2), int64]) {
        (negative(dyn.reshape(%x, %s)), negative(dyn.reshape(%y, %s))) }";
    let exe = built(text).executable;
    let Runnable::Machine(machine) = &exe else { panic!("the program's extents are unknown") };
    for s in [[3i64, 4], [2, 6], [3, 4]] {
        checked(text, &exe, &[floats(&[4, 3], 1), floats(&[4, 3], 2), Tensor::from_slice(&[2], &s)]);
        assert_eq!(machine.compiled_kernels(), 1);
    }
}

/// Where values decide extents, other sizes can't be made up: kernels for all sizes are made at the second.
#[test]
fn extents_that_values_decide_compile_nothing_after_the_second() {
    let text = "def @main(%x: Tensor[(?, ?), float32], %s: Tensor[(2), int64], %t: Tensor[(3), int64]) {
        (negative(dyn.reshape(%x, %s)), dyn.full(2f, %s), negative(dyn.broadcast_to(%x, %t))) }";
    let exe = built(text).executable;
    let Runnable::Machine(machine) = &exe else { panic!("the program's extents are unknown") };
    let mut compiled = Vec::new();
    for (seed, [a, b, c]) in
        [[2, 3, 6], [4, 5, 8], [7, 2, 3], [3, 9, 4], [5, 33, 17], [40, 4, 21]].into_iter().enumerate()
    {
        let values = |shape: &[i64]| Tensor::from_slice(&[shape.len()], shape);
        checked(text, &exe, &[floats(&[b, c], seed as u64), values(&[c, b]), values(&[a, b, c])]);
        compiled.push(machine.compiled_kernels());
    }
    assert!(compiled[1..].iter().all(|n| *n == compiled[1]), "{compiled:?}");
}

/// A network's layers with weights that are known: two convolutions, one that takes every second place, one of each channel by itself, a
/// sum of branches and pools; of images of unknown number and sizes, or of these.
pub(crate) fn network(shape: &str) -> String {
    let weight = |shape: &str, by: &str| {
        format!("multiply(sin(reshape(arange(0f, {by}f, 1f, dtype=\"float32\"), newshape={shape})), 0.1f)")
    };
    let [first, second, third, each] = [
        weight("[32, 16, 3, 3]", "4608"),
        weight("[32, 32, 3, 3]", "9216"),
        weight("[48, 32, 1, 1]", "1536"),
        weight("[48, 1, 3, 3]", "432"),
    ];
    format!(
        "def @main(%x: Tensor[{shape}, float32]) {{
            let %a = nn.relu(nn.bias_add(nn.conv2d(%x, {first}, strides=[2, 2], padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3]), ones(shape=[32], dtype=\"float32\")));
            let %p = nn.max_pool2d(%a, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]);
            let %b = nn.conv2d(%p, {second}, padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3]);
            let %c = nn.relu(add(%b, %p));
            let %d = clip(nn.conv2d(%c, {third}, channels=48, kernel_size=[1, 1]), a_min=0f, a_max=6f);
            let %e = nn.conv2d(%d, {each}, padding=[1, 1, 1, 1], groups=48, channels=48, kernel_size=[3, 3]);
            nn.global_avg_pool2d(subtract(%e, full(0.5f, shape=[48, 1, 1], dtype=\"float32\"))) }}"
    )
}

/// Blocked layouts, fused sums and pools in blocks need no numbers: there are as many kernels as where all extents are known.
#[test]
fn unknown_extents_cost_no_kernels() {
    let text = network("(?, 16, ?, ?)");
    let exe = built(&text).executable;
    for (seed, [n, h, w]) in
        [[1, 32, 32], [2, 32, 32], [1, 48, 24], [3, 21, 35], [1, 60, 9], [2, 5, 6]].into_iter().enumerate()
    {
        checked(&text, &exe, &[floats(&[n, 16, h, w], seed as u64)]);
    }
    let known = built(&network("(1, 16, 32, 32)")).executable;
    let known = known.as_plain().expect("its extents are known").program().steps().len();
    let (general, special, kernels) = sized_calls(&exe);
    assert_eq!((general, special, kernels), (known, 0, 0));
}

/// Extents of 1, of those that are unknown, are served by the code that serves all others: first met or met later.
#[test]
fn extents_of_one_are_sizes_like_others() {
    let texts = [
        "def @main(%x: Tensor[(?, 16, ?, ?), float32], %w: Tensor[(32, 16, 3, 3), float32], %b: Tensor[(1, 32, 1, 1), float32]) {
            let %y = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3]);
            add(nn.relu(add(%y, %b)), %y) }",
        "def @main(%x: Tensor[(?, 16, ?, ?), float32], %y: Tensor[(?, 16, ?, ?), float32], %b: Tensor[(16, 1, 1), float32]) {
            nn.relu(add(add(%x, %y), %b)) }",
    ];
    for text in texts {
        for sizes in [[1, 4, 2, 1], [3, 1, 1, 5]] {
            let exe = built(text).executable;
            for (seed, n) in sizes.into_iter().enumerate() {
                let x = floats(&[n, 16, 9 + seed as i64, 14], seed as u64);
                let more = match text.contains("%w") {
                    true => vec![floats(&[32, 16, 3, 3], 7), floats(&[1, 32, 1, 1], 8)],
                    false => vec![floats(&[n, 16, 9 + seed as i64, 14], 6), floats(&[16, 1, 1], 9)],
                };
                checked(text, &exe, &[vec![x], more].concat());
            }
            let (general, special, kernels) = sized_calls(&exe);
            assert!(general > 0 && special == 0 && kernels == 0, "{text}: {general}, {special}, {kernels}");
        }
    }
}

/// Heads of attention, which lie beside the batch: a batch of one is one of many, and another length is, too.
#[test]
fn a_batch_of_one_compiles_nothing() {
    let text = "def @main(%x: Tensor[(?, ?, 48), float32], %b: Tensor[(48), float32]) {
        let %heads = reshape(add(%x, %b), newshape=[0, 0, 4, 12]);
        let %turned = transpose(%heads, axes=[0, 2, 1, 3]);
        let %q = reshape(%turned, newshape=[-3, -2]);
        let %scores = nn.softmax(nn.batch_matmul(%q, nn.relu(%q), transpose_b=True));
        nn.batch_matmul(%scores, %q, transpose_b=False) }";
    for sizes in [[[2, 9], [1, 9], [3, 20]], [[1, 9], [2, 9], [1, 20]]] {
        let exe = built(text).executable;
        let Runnable::Machine(machine) = &exe else { panic!("the program's extents are unknown") };
        let mut compiled = None;
        for [batch, length] in sizes {
            checked(text, &exe, &[floats(&[batch, length, 48], 1), floats(&[48], 2)]);
            assert_eq!(*compiled.get_or_insert(machine.compiled_kernels()), machine.compiled_kernels());
        }
        assert!(compiled > Some(0));
    }
}

/// An axis that is left out by name, beside a batch that is 1 by chance.
#[test]
fn axes_that_are_left_out_compile_nothing() {
    let text = "def @main(%x: Tensor[(?, ?, 3, 8, 15), float32]) {
        let %turned = transpose(%x, axes=[2, 0, 3, 1, 4]);
        squeeze(strided_slice(%turned, begin=[1], end=[2], strides=[1], axes=[0], slice_mode=\"end\"), axis=[0]) }";
    let sizes = [[1, 20], [2, 32], [1, 7], [3, 1]];
    compiles_once(text, &sizes.map(|[n, m]| vec![floats(&[n, m, 3, 8, 15], 1)]));
}

/// Runs a program at each of these inputs: what was compiled at the first serves all.
pub(crate) fn compiles_once(text: &str, sizes: &[Vec<Tensor>]) {
    let compiled = compiled_at(text, sizes);
    for (inputs, n) in sizes.iter().zip(&compiled) {
        assert_eq!(*n, compiled[0], "{text}: {:?}", inputs[0].shape());
    }
    assert!(compiled[0] > 0, "{text}");
}

/// Runs a program at each of these inputs: how many kernels there are after each.
pub(crate) fn compiled_at(text: &str, sizes: &[Vec<Tensor>]) -> Vec<usize> {
    let exe = built(text).executable;
    let Runnable::Machine(machine) = &exe else { panic!("the program's extents are unknown") };
    let run = |inputs: &Vec<Tensor>| {
        checked(text, &exe, inputs);
        machine.compiled_kernels()
    };
    let compiled = sizes.iter().map(run).collect();
    assert_eq!(machine.sized_calls().2, 0, "{text}");
    compiled
}

/// Extents that are unknown by type, but that weights decide.
#[test]
fn extents_that_weights_decide_compile_nothing() {
    let text = "def @main(%x: Tensor[(?, ?), float32], %w: Tensor[(5, 7), float32]) {
        nn.softmax(nn.relu(nn.dense(%x, %w, units=5))) }";
    let sizes = [3, 11, 40, 7, 5].map(|n| vec![floats(&[n, 7], n as u64), floats(&[5, 7], 9)]);
    compiles_once(text, &sizes);
}

/// Sizes get code of their own in the background, and results stay right.
#[test]
fn sizes_that_are_met_get_their_own_code() {
    let text = "def @main(%x: Tensor[(?, 40), float32], %w: Tensor[(24, 40), float32]) {
        nn.softmax(nn.relu(nn.dense(%x, %w, units=24))) }";
    let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).unwrap_or_else(|e| panic!("{e}"));
    let mut options = Options::new(Settings::new(Target::host()));
    options.specialize = driver::Specialize::All;
    let exe = driver::build(m, &[], options).unwrap_or_else(|e| panic!("{e}")).executable;
    let Runnable::Machine(machine) = &exe else { panic!("the program's extents are unknown") };
    for n in [9, 17, 9, 17] {
        checked(text, &exe, &[floats(&[n, 40], n as u64), floats(&[24, 40], 1)]);
        machine.finish_special();
    }
    assert_eq!(machine.special_sizes(), 2);
    // Where it is not asked for, there is none.
    let exe = built(text).executable;
    checked(text, &exe, &[floats(&[9, 40], 1), floats(&[24, 40], 1)]);
    assert!(matches!(&exe, Runnable::Machine(m) if m.special_sizes() == 0));
}

#[test]
fn the_least_sizes_are_right_too() {
    for (text, sizes) in AT_ALL_SIZES {
        let exe = built(text).executable;
        // Whatever was met first, extents of 1 and 2 follow where the program does not say them.
        for least in [0, 1, 2, 3] {
            let known =
                |n: i64, i: usize| if sizes.iter().all(|s| s[0][i] == sizes[0][0][i]) { n } else { n.min(least) };
            let shape = |s: &&[i64]| -> Vec<i64> { s.iter().enumerate().map(|(i, &n)| known(n, i)).collect() };
            let shapes: Vec<Vec<i64>> = match least {
                0 => sizes[0].iter().map(|s| s.to_vec()).collect(),
                _ => {
                    let first = shape(&sizes[0][0]);
                    let others =
                        sizes[0][1..].iter().map(|s| if **s == *sizes[0][0] { first.clone() } else { s.to_vec() });
                    [first.clone()].into_iter().chain(others).collect()
                }
            };
            let inputs: Vec<Tensor> = shapes.iter().enumerate().map(|(i, s)| floats(s, i as u64)).collect();
            let fits = parse_module("test", &format!("#[version = \"0.0.5\"] {text}"))
                .map_err(|e| e.to_string())
                .and_then(|m| {
                    let values = inputs.iter().cloned().map(Into::into).collect();
                    interp::run_flat(&m, "main", values).map_err(|e| e.to_string())
                });
            if fits.is_ok() {
                checked(text, &exe, &inputs);
            }
        }
    }
}

/// Several inputs of one program: each is reported with its first run.
#[test]
fn bench_tells_first_runs_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program.relay");
    std::fs::write(&program, "#[version = \"0.0.5\"] def @main(%x: Tensor[(?, 8), float32]) { nn.softmax(%x) }")
        .expect("it can be written");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_resat"));
    command.arg("bench").arg(&program).args(["--no-cache", "--json", "--repeat", "2", "--profile"]);
    for n in [5, 9] {
        let file = folder.path().join(format!("{n}.npz"));
        let archive = npz::write([("x", &floats(&[n, 8], 1))]).expect("an archive");
        std::fs::write(&file, archive).expect("it can be written");
        command.arg("--inputs").arg(file);
        // One is reported like several.
        if n == 5 {
            let output = command.output().expect("it runs");
            let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(found["runs"][0]["first_s"], found["first_s"]);
            assert!(
                found["runs"].as_array().is_some_and(|runs| runs.len() == 1) && found["first_s"].is_number(),
                "{found}"
            );
        }
    }
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let runs = found["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert!(run["first_s"].is_number() && run["latencies_s"].as_array().is_some_and(|l| l.len() == 2), "{run}");
        assert_eq!(run["compiled_kernels"], runs[0]["compiled_kernels"]);
    }
    assert_eq!((&found["special_calls"], &found["special_kernels"]), (&0.into(), &0.into()));
    assert_eq!(found["special_sizes"], 0);
    // The profile says where the time goes.
    assert!(found["kernels"].as_array().is_some_and(|all| !all.is_empty()), "{found}");
    let output = command.args(["--specialize", "all"]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["special_sizes"], 2);
}

fn said(name: &str, extents: &[Option<usize>]) -> Said {
    (name.into(), extents.into())
}

/// The program with these numbers to reckon with and these bounds, or why it was refused.
fn built_for(m: Module, hints: &[Said], bounds: &[Said]) -> Result<Built, String> {
    let up_to = |(name, most): &Said| (name.clone(), most.iter().map(|n| n.map(ExtentRange::up_to)).collect());
    built_within(m, hints, bounds.iter().map(up_to).collect())
}

fn built_within(m: Module, hints: &[Said], bounds: Vec<ExtentBound>) -> Result<Built, String> {
    let mut options = Options::new(Settings::new(Target::host()));
    (options.hints, options.bounds) = (hints.into(), bounds);
    driver::build(m, &[], options).map_err(|e| e.to_string())
}

/// The module with names of its inputs' extents.
fn with_dims(mut m: Module, dims: &[&[&str]]) -> Module {
    let dims: Vec<Vec<String>> = dims.iter().map(|names| names.iter().map(ToString::to_string).collect()).collect();
    let mut func = m.function("main").expect("a program").clone();
    func.attrs = name_attrs([].into_iter(), [].into_iter(), &dims);
    let main = m.add(Expr::Func(Box::new(func)));
    m.define("main", main);
    m
}

/// Prices take the extents that are said, and the code for all sizes is made with the program.
#[test]
fn hints_are_what_is_reckoned_with() {
    let text = network("(?, 16, ?, ?)");
    let cost = |b: &Built| b.record().map_or(0.0, |r| r.reports.iter().map(|r| r.cost_after).fold(0.0, f64::max));
    let [small, large] = [1, 8].map(|n| {
        built_for(parsed(&text), &[said("x", &[Some(n), None, Some(32), Some(24)])], &[])
            .unwrap_or_else(|e| panic!("{e}"))
    });
    assert!(cost(&large) > 4.0 * cost(&small), "{} and {}", cost(&small), cost(&large));
    let (general, special, kernels) = sized_calls(&large.executable);
    assert!(general > 0 && (special, kernels) == (0, 0), "made beforehand: {general}, {special}, {kernels}");
    for (seed, [n, h, w]) in [[1, 32, 32], [8, 32, 24], [3, 21, 35]].into_iter().enumerate() {
        checked(&text, &large.executable, &[floats(&[n, 16, h, w], seed as u64)]);
    }
    assert_eq!(sized_calls(&large.executable), (general, 0, 0));
}

/// Hints of some extents leave the others to be met: no size that is made up is refused, or decides.
#[test]
fn hints_of_some_extents() {
    let text = "def @main(%x: Tensor[(?, ?), float32], %y: Tensor[(?, 4, ?, 8), float32]) {
        concatenate((%x, sum(%y, axis=[1, 2])), axis=1) }";
    let dims: &[&[&str]] = &[&["batch", "length"], &["batch", "", "past", ""]];
    for (m, hints, is_made) in [
        (with_dims(parsed(text), dims), vec![said("past", &[Some(4)])], false),
        (with_dims(parsed(text), dims), ["past", "batch", "length"].map(|dim| said(dim, &[Some(4)])).to_vec(), true),
        (parsed(text), vec![said("y", &[None, None, Some(4), None])], false),
    ] {
        let exe = built_for(m, &hints, &[]).unwrap_or_else(|e| panic!("{e}")).executable;
        assert_eq!(sized_calls(&exe).0 > 0, is_made, "made beforehand");
        for (seed, [n, length, past]) in [[1, 3, 4], [2, 32, 5]].into_iter().enumerate() {
            checked(text, &exe, &[floats(&[n, length], seed as u64), floats(&[n, 4, past, 8], 7)]);
        }
    }
}

/// Within bounds all sizes work in memory that was planned for the greatest; sizes beyond are refused by name.
#[test]
fn bounds_make_the_workspace_static() {
    let text = network("(?, 16, ?, ?)");
    let m = with_dims(parsed(&text), &[&["batch", "", "height", "width"]]);
    let bounds = [said("batch", &[Some(4)]), said("height", &[Some(40)]), said("width", &[Some(36)])];
    let exe = built_for(m, &[], &bounds).unwrap_or_else(|e| panic!("{e}")).executable;
    let Runnable::Machine(machine) = &exe else { panic!("the program's extents are unknown") };
    let bytes = machine.workspace().expect("its extents are bounded");
    assert!(bytes > 0);
    for (seed, [n, h, w]) in [[1, 32, 32], [4, 40, 36], [3, 21, 35], [4, 39, 36], [1, 5, 6]].into_iter().enumerate() {
        let inputs = [floats(&[n, 16, h, w], seed as u64)];
        checked(&text, &exe, &inputs);
        let taken = machine.at(&inputs, |exe| exe.plan().arena).unwrap_or_else(|e| panic!("{e}"));
        assert!(taken.is_some_and(|taken| taken <= bytes), "{taken:?} of {bytes} at {n}x{h}x{w}");
    }
    let message = exe.run(&[floats(&[5, 16, 8, 8], 1)]).expect_err("too many").to_string();
    assert!(message.contains("`batch`") && message.contains("is 5") && message.contains("4 at most"), "{message}");
    let message = exe.run(&[floats(&[1, 16, 8, 37], 1)]).expect_err("too wide").to_string();
    assert!(message.contains("`width`") && message.contains("axis 3 of `x`"), "{message}");
}

/// Where no size is hinted at, the one in the middle of bounds need be none that the program takes: windows do not fit there, or extents
/// have to be even. Others are served.
#[test]
fn bounds_in_whose_middle_there_is_no_size() {
    let window = "def @main(%x: Tensor[(?, 2, ?), float32], %w: Tensor[(3, 2, 7), float32]) {
        nn.conv1d(%x, %w, padding=[0, 0], channels=3, kernel_size=[7]) }";
    let even = "def @main(%x: Tensor[(?, 2, ?), float32], %w: Tensor[(3, 2, 7), float32]) {
        %0 = nn.max_pool1d(%x, pool_size=[2], strides=[2], padding=[0, 0]);
        add(%x, repeat(%0, repeats=2, axis=2)) }";
    for (text, most, sizes) in [(window, "2x?x9", [[2, 9], [1, 7]]), (even, "2x?x10", [[2, 10], [1, 6]])] {
        let range = |n: &str| (n != "?").then(|| n.parse().unwrap_or_else(|e| panic!("{e}")));
        let bounds = vec![("x".to_owned(), most.split('x').map(range).collect())];
        let exe = built_within(parsed(text), &[], bounds).unwrap_or_else(|e| panic!("{text}: {e}")).executable;
        for (seed, [n, length]) in sizes.into_iter().enumerate() {
            checked(text, &exe, &[floats(&[n, 2, length], seed as u64), floats(&[3, 2, 7], 9)]);
        }
    }
    // What somebody said is refused.
    let bounds = vec![("x".to_owned(), ["2", "2", "9"].map(|n| n.parse().ok()).to_vec())];
    let hints = [said("x", &[Some(1), None, Some(5)])];
    let message = built_within(parsed(window), &hints, bounds).map(|_| ()).expect_err("it does not fit").to_string();
    assert!(message.contains("no code for `x` of 1x2x5"), "{message}");
}

/// Inputs of programs with control flow are held to their bounds, too; extents that no bound names, to that of all others.
#[test]
fn bounds_of_programs_with_control_flow() {
    let text = "def @main(%x: Tensor[(?), float32], %y: Tensor[(?), float32], %c: bool) {
        if (%c) { nn.relu(%x) } else { tanh(%y) } }";
    let bounds = [said("x", &[Some(3)]), said("?", &[Some(5)])];
    let exe = built_for(parsed(text), &[], &bounds).unwrap_or_else(|e| panic!("{e}")).executable;
    let run =
        |x: i64, y: i64| exe.run(&[floats(&[x], 1), floats(&[y], 2), Tensor::from_f64_fn(DType::Bool, &[], |_| 1.0)]);
    assert_eq!(run(3, 5).expect("within bounds")[0].shape(), [3]);
    for (x, y, part) in [(4, 5, "axis 0 of `x` is 4"), (3, 6, "axis 0 of `y` is 6")] {
        let message = run(x, y).expect_err("beyond bounds").to_string();
        assert!(message.contains(part), "{message}");
    }
}

/// Bounds that say the least and a step: what is none of these is refused, and nothing else.
#[test]
fn bounds_have_a_least_and_steps() {
    let text = network("(?, 16, ?, ?)");
    let dims: &[&[&str]] = &[&["batch", "", "height", "width"]];
    let bounds = |height: &str| -> Vec<ExtentBound> {
        let said = [("batch", "2"), ("height", height), ("width", "36")];
        let range = |text: &str| text.parse().unwrap_or_else(|e| panic!("{e}"));
        said.into_iter().map(|(name, text)| (name.to_owned(), vec![Some(range(text))])).collect()
    };
    let m = with_dims(parsed(&text), dims);
    let exe = built_within(m.clone(), &[], bounds("12..40/8")).unwrap_or_else(|e| panic!("{e}")).executable;
    for (seed, h) in [16, 40, 24].into_iter().enumerate() {
        checked(&text, &exe, &[floats(&[2, 16, h, 36 - h / 2], seed as u64)]);
    }
    for h in [8, 20, 48] {
        let message = exe.run(&[floats(&[1, 16, h, 8], 1)]).expect_err("no such height").to_string();
        let parts = [&format!("`height`) is {h}"), "built for 12 to 40, a multiple of 8"];
        assert!(parts.iter().all(|p| message.contains(*p)), "{message}");
    }
    for (hints, height, parts) in [
        (vec![said("height", &[Some(20)])], "40/8", ["hint", "20, but 40 at most, a multiple of 8"]),
        (vec![], "9..15/8", ["bound", "9 to 15, a multiple of 8: there is no such extent"]),
        (vec![], "8/0", ["bound", "there is no such extent"]),
        (vec![], "9..8", ["bound", "9 to 8: there is no such extent"]),
    ] {
        let message = built_within(m.clone(), &hints, bounds(height)).map(|_| ()).expect_err("it is refused");
        assert!(parts.iter().all(|p| message.contains(p)), "{message}: {parts:?}");
    }
    for text in ["", "x", "1..", "..8", "8/", "1..8/x", "1..8..9"] {
        let message = text.parse::<ExtentRange>().expect_err("no range").to_string();
        assert!(message.contains("128..512/32"), "{message}");
    }
}

#[test]
fn what_contradicts_itself_is_no_hint_and_no_bound() {
    let text = "def @main(%x: Tensor[(?, 7), float32], %y: Tensor[(?, 7), float32]) { nn.relu(add(%x, %y)) }";
    let dims: &[&[&str]] = &[&["rows", ""], &["rows", ""]];
    let cases: &[(&[Said], &[Said], &[&str])] = &[
        (&[said("row", &[Some(3)])], &[], &["hint `row`", "x", "did you mean `rows`?"]),
        (&[said("rows", &[Some(0)])], &[], &["hint `rows`", "0"]),
        (&[said("x", &[Some(3)])], &[], &["2 axes", "1 extents"]),
        (&[said("x", &[Some(3), Some(8)])], &[], &["axis 1 is 7, not 8"]),
        (&[said("x", &[None, Some(7)])], &[], &["nothing of it is unknown"]),
        (&[said("x", &[Some(3), None]), said("y", &[Some(4), None])], &[], &["hint `y`", "3 is said of it, too"]),
        (&[said("rows", &[Some(9)])], &[said("rows", &[Some(8)])], &["hint", "`rows`", "9", "8 at most"]),
    ];
    for (hints, bounds, parts) in cases {
        let message = built_for(with_dims(parsed(text), dims), hints, bounds).map(|_| ()).expect_err("a contradiction");
        assert!(parts.iter().all(|p| message.contains(p)), "{message}: {parts:?}");
    }
    // Extents without names are not known to be the same: what fits each other is for who says them.
    let x = said("x", &[Some(3), None]);
    let message =
        built_for(parsed(text), &[], std::slice::from_ref(&x)).map(|_| ()).expect_err("no bound of the other");
    assert!(message.contains("there is none for axis 0 of `y`"), "{message}");
    let message = built_for(parsed(text), &[x, said("y", &[Some(5), None])], &[]).map(|_| ()).expect_err("3 and 5");
    assert!(message.contains("`x` of 3x7, `y` of 5x7"), "{message}");
    // What bounds all others says something of a program that has some, and says it once.
    let text = "def @main(%x: Tensor[(3), float32]) { nn.relu(%x) }";
    let message = built_for(parsed(text), &[], &[said("?", &[Some(3)])]).map(|_| ()).expect_err("nothing to bound");
    assert!(message.contains("no extent of the program is unknown"), "{message}");
    let text = "def @main(%x: Tensor[(?), float32]) { nn.relu(%x) }";
    let twice = [said("?", &[Some(3)]), said("?", &[Some(4)])];
    let message = built_for(parsed(text), &[], &twice).map(|_| ()).expect_err("3 and 4");
    assert!(message.contains("bound `?`: 3 at most is said of it, too"), "{message}");
    let message =
        built_for(parsed("def @main(%x: Tensor[(3), float32]) { nn.relu(%x) }"), &[said("x", &[Some(3)])], &[]);
    let message = message.map(|_| ()).expect_err("nothing to say");
    assert!(message.contains("nothing of it is unknown"), "{message}");
}

#[test]
fn the_command_line_takes_hints_and_bounds() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program.relay");
    let text = "#[version = \"0.0.5\"] def @main(%x: Tensor[(?, 8), float32]) { nn.softmax(nn.relu(%x)) }";
    std::fs::write(&program, text).expect("it can be written");
    let input = |n: i64| {
        let file = folder.path().join(format!("{n}.npz"));
        std::fs::write(&file, npz::write([("x", &floats(&[n, 8], 1))]).expect("an archive"))
            .expect("it can be written");
        file
    };
    let run = |what: &str, more: &[&str], n: i64| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_resat"));
        let output =
            command.arg(what).arg(&program).args(more).arg("--inputs").arg(input(n)).output().expect("it runs");
        let [out, err] = [output.stdout, output.stderr].map(|t| String::from_utf8_lossy(&t).into_owned());
        (output.status.success(), out, err)
    };
    let (done, out, err) =
        run("bench", &["--no-cache", "--repeat", "2", "--json", "--hint", "x=2x?", "--max", "x=5x8"], 5);
    assert!(done, "{err}");
    let found: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(found["arena_bytes"].is_number(), "{found}");
    let (done, _, err) = run("run", &["--no-cache", "--max", "x=5x8"], 6);
    assert!(!done && err.contains("axis 0 of `x` is 6") && err.contains("5 at most"), "{err}");
    for (arguments, part) in [
        (["--hint", "x"], "of the form"),
        (["--max", "x=axb"], "of the form"),
        (["--max", "x=4/x8"], "of the form"),
        (["--max", "x=4/4x8"], "axis 0 of `x` is 2, but the program was built for 4 at most, a multiple of 4"),
        (["--hint", "y=3"], "no dimension and no input is called so; there are x"),
        (["--backend=interp", "--hint=x=2x?"], "go with native code"),
    ] {
        let (done, _, err) = run("run", &arguments, 2);
        assert!(!done && err.contains(part), "{arguments:?}: {err}");
    }
}
