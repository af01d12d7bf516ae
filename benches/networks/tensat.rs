//! The seven networks of the TENSAT paper (Yang and others, Equality Saturation for Tensor Graph Superoptimization, MLSys
//! 2021), operator by operator as its benchmarks build them: one image or sequence, no biases, no normalization. Where theirs
//! is a convolution with an activation, Relay has two operators; where theirs joins outputs by a node of its own, Relay has a
//! tuple.

use resat::ir::ExprId;

use super::{
    Net, Network,
    Padding::{Same, Valid},
};

/// A network and what the paper reports of it, on its GPU.
pub(crate) struct Published {
    /// The name in the paper.
    pub(crate) name: &'static str,
    /// Makes the network.
    pub(crate) make: fn() -> Network,
    /// How often each operator is called, in alphabetical order.
    pub(crate) counts: &'static [(&'static str, usize)],
    /// Seconds that TENSAT searched.
    pub(crate) seconds: f64,
    /// By how many per cent its result was faster than the network as it came.
    pub(crate) speedup: f64,
}

/// All seven.
pub(crate) const TENSAT: [Published; 7] = [
    Published {
        name: "NasRNN",
        make: || nasrnn(5),
        counts: &[("add", 55), ("multiply", 20), ("nn.matmul", 80), ("nn.relu", 10), ("sigmoid", 25), ("tanh", 40)],
        seconds: 0.5,
        speedup: 68.9,
    },
    Published {
        name: "BERT",
        make: || bert_attention(8),
        counts: &[("nn.batch_matmul", 16), ("nn.matmul", 32), ("nn.relu", 1), ("reshape", 32), ("transpose", 32)],
        seconds: 1.4,
        speedup: 9.2,
    },
    Published {
        name: "ResNeXt-50",
        make: resnext50,
        counts: &[("add", 16), ("nn.conv2d", 53), ("nn.max_pool2d", 1), ("nn.relu", 53)],
        seconds: 0.7,
        speedup: 8.8,
    },
    Published {
        name: "NasNet-A",
        make: || nasnet_a(5),
        counts: &[
            ("add", 90),
            ("concatenate", 18),
            ("nn.avg_pool2d", 51),
            ("nn.conv2d", 217),
            ("nn.max_pool2d", 7),
            ("nn.relu", 37),
        ],
        seconds: 10.6,
        speedup: 7.3,
    },
    Published {
        name: "SqueezeNet",
        make: squeezenet,
        counts: &[
            ("concatenate", 8),
            ("nn.avg_pool2d", 1),
            ("nn.conv2d", 26),
            ("nn.dropout", 1),
            ("nn.max_pool2d", 3),
            ("nn.relu", 26),
            ("reshape", 1),
        ],
        seconds: 0.3,
        speedup: 24.5,
    },
    Published {
        name: "VGG-19",
        make: vgg19,
        counts: &[
            ("nn.conv2d", 16),
            ("nn.dropout", 2),
            ("nn.matmul", 3),
            ("nn.max_pool2d", 5),
            ("nn.relu", 18),
            ("reshape", 3),
            ("transpose", 3),
        ],
        seconds: 0.4,
        speedup: 8.9,
    },
    Published {
        name: "Inception-v3",
        make: inception_v3,
        counts: &[("concatenate", 30), ("nn.avg_pool2d", 9), ("nn.conv2d", 94), ("nn.max_pool2d", 5), ("nn.relu", 94)],
        seconds: 5.1,
        speedup: 10.0,
    },
];

fn conv_relu(net: &mut Net, x: ExprId, channels: i64, kernel: [i64; 2], stride: i64, groups: i64) -> ExprId {
    let y = net.conv(x, channels, kernel, stride, groups, Same);
    net.apply("nn.relu", &[y])
}

/// So many cells of a recurrent network that was found by search, each with weights of its own. The first state is a weight.
pub(crate) fn nasrnn(cells: usize) -> Network {
    const HIDDEN: i64 = 512;
    let mut net = Net::default();
    let inputs: Vec<ExprId> = (0..cells).map(|i| net.input(&format!("x{i}"), &[1, HIDDEN])).collect();
    let mut state = net.weight(&[1, HIDDEN], 1);
    for x in inputs {
        let parts: Vec<ExprId> = (0..8)
            .map(|_| {
                let (of_state, of_input) = (net.matmul(state, HIDDEN), net.matmul(x, HIDDEN));
                net.apply("add", &[of_input, of_state])
            })
            .collect();
        let mut join = |op: &str, f: &str, a: ExprId, g: &str, b: ExprId| {
            let (a, b) = (net.apply(f, &[a]), net.apply(g, &[b]));
            net.apply(op, &[a, b])
        };
        let m0 = join("add", "nn.relu", parts[0], "sigmoid", parts[3]);
        let m1 = join("add", "sigmoid", parts[1], "tanh", parts[2]);
        let m2 = join("multiply", "sigmoid", parts[4], "tanh", parts[5]);
        let m3 = join("multiply", "sigmoid", parts[6], "nn.relu", parts[7]);
        let m4 = join("add", "sigmoid", m1, "tanh", m2);
        let m5 = join("multiply", "tanh", m0, "tanh", m3);
        let m6 = join("multiply", "tanh", m4, "tanh", m5);
        state = net.apply("tanh", &[m6]);
    }
    net.finish(state)
}

/// So many blocks of attention over 64 tokens: 16 heads without scale or softmax. What attention gives is an output; the next
/// block reads a linear layer of the same input.
pub(crate) fn bert_attention(blocks: usize) -> Network {
    const TOKENS: i64 = 64;
    const WIDTH: i64 = 1024;
    let mut net = Net::default();
    let input = net.input("x", &[TOKENS, WIDTH]);
    let mut x = net.apply("nn.relu", &[input]);
    let mut outputs = Vec::new();
    for _ in 0..blocks {
        let heads = [(); 3].map(|()| {
            let projected = net.matmul(x, WIDTH);
            let split = net.reshape(projected, &[TOKENS, 16, 64]);
            net.transpose(split, &[1, 0, 2])
        });
        let mut product = |a, b| net.call("nn.batch_matmul", &[("transpose_b", false.into())], &[a, b]);
        let logits = product(heads[0], heads[1]);
        let mixed = product(logits, heads[2]);
        let back = net.transpose(mixed, &[1, 0, 2]);
        outputs.push(net.reshape(back, &[TOKENS, WIDTH]));
        x = net.matmul(x, WIDTH);
    }
    outputs.push(x);
    let result = net.tuple(&outputs);
    net.finish(result)
}

fn resnext50() -> Network {
    const GROUPS: i64 = 32;
    let mut net = Net::default();
    let image = net.input("image", &[1, 3, 224, 224]);
    let mut x = conv_relu(&mut net, image, 64, [7, 7], 2, 1);
    x = net.pool("nn.max_pool2d", x, 3, 2, Same);
    for (stage, (blocks, channels)) in [(3, 128), (4, 256), (6, 512), (3, 1024)].into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let mut y = conv_relu(&mut net, x, channels, [1, 1], 1, 1);
            y = conv_relu(&mut net, y, channels, [3, 3], stride, GROUPS);
            y = net.conv(y, 2 * channels, [1, 1], 1, 1, Same);
            if block == 0 {
                x = conv_relu(&mut net, x, 2 * channels, [1, 1], stride, 1);
            }
            let sum = net.apply("add", &[x, y]);
            x = net.apply("nn.relu", &[sum]);
        }
    }
    net.finish(x)
}

/// A network of cells that were found by search: three times so many normal cells and one that halves the image.
pub(crate) fn nasnet_a(cells: usize) -> Network {
    let mut net = Net::default();
    let image = net.input("image", &[1, 3, 224, 224]);
    let stem = conv_relu(&mut net, image, 64, [7, 7], 2, 1);
    let mut x = net.pool("nn.max_pool2d", stem, 3, 2, Same);
    let mut channels = 128;
    for _ in 0..3 {
        let (mut before, mut now) = (x, x);
        for _ in 0..cells {
            (before, now) = (now, normal_cell(&mut net, before, now, channels));
        }
        channels *= 2;
        x = reduction_cell(&mut net, before, now, channels);
    }
    net.finish(x)
}

/// The two inputs of a cell at its width, and at one size.
fn fitted(net: &mut Net, before: ExprId, now: ExprId, channels: i64) -> (ExprId, ExprId) {
    let now = conv_relu(net, now, channels, [1, 1], 1, 1);
    let before = match net.shape(before)[2] == net.shape(now)[2] {
        true => conv_relu(net, before, channels, [1, 1], 1, 1),
        false => conv_relu(net, before, channels, [3, 3], 2, 1),
    };
    (before, now)
}

fn separable(net: &mut Net, x: ExprId, channels: i64, kernel: i64, stride: i64) -> ExprId {
    let groups = net.shape(x)[1];
    let depthwise = net.conv(x, channels, [kernel, kernel], stride, groups, Same);
    net.conv(depthwise, channels, [1, 1], 1, 1, Same)
}

fn normal_cell(net: &mut Net, before: ExprId, now: ExprId, channels: i64) -> ExprId {
    let (before, now) = fitted(net, before, now, channels);
    let separable = |net: &mut Net, x| separable(net, x, channels, 3, 1);
    let mean = |net: &mut Net, x| net.pool("nn.avg_pool2d", x, 3, 1, Same);
    let pairs = [
        (separable(net, now), now),
        (separable(net, before), separable(net, now)),
        (mean(net, now), before),
        (mean(net, before), mean(net, before)),
        (separable(net, before), separable(net, before)),
    ];
    let sums = pairs.map(|(a, b)| net.apply("add", &[a, b]));
    net.concat(1, &sums)
}

fn reduction_cell(net: &mut Net, before: ExprId, now: ExprId, channels: i64) -> ExprId {
    let (before, now) = fitted(net, before, now, channels);
    let separable = |net: &mut Net, x, kernel, stride| separable(net, x, channels, kernel, stride);
    let max = |net: &mut Net| net.pool("nn.max_pool2d", now, 3, 2, Same);
    let add = |net: &mut Net, a, b| net.apply("add", &[a, b]);
    let (a, b) = (separable(net, before, 7, 2), separable(net, now, 5, 2));
    let first = add(net, a, b);
    let (a, b) = (max(net), separable(net, before, 7, 2));
    let second = add(net, a, b);
    let (a, b) = (net.pool("nn.avg_pool2d", now, 3, 2, Same), separable(net, before, 5, 2));
    let third = add(net, a, b);
    let (a, b) = (max(net), separable(net, first, 3, 1));
    let fourth = add(net, a, b);
    let a = net.pool("nn.avg_pool2d", first, 3, 1, Same);
    let fifth = add(net, a, second);
    net.concat(1, &[first, second, third, fourth, fifth])
}

fn squeezenet() -> Network {
    let mut net = Net::default();
    let image = net.input("image", &[1, 3, 224, 224]);
    let stem = net.conv(image, 64, [3, 3], 2, 1, Valid);
    let mut x = net.apply("nn.relu", &[stem]);
    for (step, (narrow, wide)) in
        [(16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256)].into_iter().enumerate()
    {
        if matches!(step, 0 | 2 | 4) {
            x = net.pool("nn.max_pool2d", x, 3, 2, Valid);
        }
        let squeezed = conv_relu(&mut net, x, narrow, [1, 1], 1, 1);
        let parts = [[1, 1], [3, 3]].map(|kernel| conv_relu(&mut net, squeezed, wide, kernel, 1, 1));
        x = net.concat(1, &parts);
    }
    x = net.apply("nn.dropout", &[x]);
    // Relay's dropout also gives its mask.
    x = net.project(x, 0);
    x = conv_relu(&mut net, x, 1000, [1, 1], 1, 1);
    x = net.pool("nn.avg_pool2d", x, 13, 13, Valid);
    x = net.reshape(x, &[1, 1000]);
    net.finish(x)
}

fn vgg19() -> Network {
    let mut net = Net::default();
    let mut x = net.input("image", &[1, 3, 224, 224]);
    for (layers, channels) in [(2, 64), (2, 128), (4, 256), (4, 512), (4, 512)] {
        for _ in 0..layers {
            x = conv_relu(&mut net, x, channels, [3, 3], 1, 1);
        }
        x = net.pool("nn.max_pool2d", x, 2, 2, Valid);
    }
    for (layer, (inputs, outputs)) in [(25088, 4096), (4096, 4096), (4096, 1000)].into_iter().enumerate() {
        x = net.reshape(x, &[1, inputs]);
        let weight = net.weight(&[outputs, inputs], inputs);
        let weight = net.transpose(weight, &[1, 0]);
        x = net.apply("nn.matmul", &[x, weight]);
        if layer < 2 {
            x = net.apply("nn.relu", &[x]);
            x = net.apply("nn.dropout", &[x]);
            x = net.project(x, 0);
        }
    }
    net.finish(x)
}

fn inception_v3() -> Network {
    let mut net = Net::default();
    let image = net.input("image", &[1, 3, 299, 299]);
    let x = &mut net;
    let mut y = valid(x, image, 32, [3, 3], 2);
    y = valid(x, y, 32, [3, 3], 1);
    y = same(x, y, 64, [3, 3]);
    y = x.pool("nn.max_pool2d", y, 3, 2, Valid);
    y = valid(x, y, 80, [1, 1], 1);
    y = valid(x, y, 192, [3, 3], 1);
    y = x.pool("nn.max_pool2d", y, 3, 2, Valid);
    for pooled in [32, 64, 64] {
        y = inception_a(x, y, pooled);
    }
    y = inception_b(x, y);
    for narrow in [128, 160, 160, 192] {
        y = inception_c(x, y, narrow);
    }
    y = inception_d(x, y);
    y = inception_e(x, y);
    y = inception_e(x, y);
    y = x.pool("nn.avg_pool2d", y, 8, 1, Valid);
    net.finish(y)
}

fn same(net: &mut Net, x: ExprId, channels: i64, kernel: [i64; 2]) -> ExprId {
    conv_relu(net, x, channels, kernel, 1, 1)
}

fn valid(net: &mut Net, x: ExprId, channels: i64, kernel: [i64; 2], stride: i64) -> ExprId {
    let y = net.conv(x, channels, kernel, stride, 1, Valid);
    net.apply("nn.relu", &[y])
}

/// Convolutions one after another, each with its relu.
fn chain(net: &mut Net, x: ExprId, layers: &[(i64, [i64; 2])]) -> ExprId {
    layers.iter().fold(x, |x, &(channels, kernel)| same(net, x, channels, kernel))
}

/// Four values side by side, two by two.
fn concat_by_pairs(net: &mut Net, parts: [ExprId; 4]) -> ExprId {
    let (a, b) = (net.concat(1, &parts[..2]), net.concat(1, &parts[2..]));
    net.concat(1, &[a, b])
}

fn inception_a(net: &mut Net, x: ExprId, pooled: i64) -> ExprId {
    let a = chain(net, x, &[(64, [1, 1])]);
    let b = chain(net, x, &[(48, [1, 1]), (64, [5, 5])]);
    let c = chain(net, x, &[(64, [1, 1]), (96, [3, 3]), (96, [3, 3])]);
    let mean = net.pool("nn.avg_pool2d", x, 3, 1, Same);
    let d = chain(net, mean, &[(pooled, [1, 1])]);
    concat_by_pairs(net, [a, b, c, d])
}

fn inception_b(net: &mut Net, x: ExprId) -> ExprId {
    let a = valid(net, x, 384, [3, 3], 2);
    let b = chain(net, x, &[(64, [1, 1]), (96, [3, 3])]);
    let b = valid(net, b, 96, [3, 3], 2);
    let mean = net.pool("nn.avg_pool2d", x, 3, 2, Valid);
    let convolved = net.concat(1, &[a, b]);
    net.concat(1, &[mean, convolved])
}

fn inception_c(net: &mut Net, x: ExprId, narrow: i64) -> ExprId {
    let a = chain(net, x, &[(192, [1, 1])]);
    let b = chain(net, x, &[(narrow, [1, 1]), (narrow, [1, 7]), (192, [7, 1])]);
    let layers = [(narrow, [1, 1]), (narrow, [7, 1]), (narrow, [1, 7]), (narrow, [7, 1]), (192, [1, 7])];
    let c = chain(net, x, &layers);
    let mean = net.pool("nn.avg_pool2d", x, 3, 1, Same);
    let d = chain(net, mean, &[(192, [1, 1])]);
    concat_by_pairs(net, [a, b, c, d])
}

fn inception_d(net: &mut Net, x: ExprId) -> ExprId {
    let a = chain(net, x, &[(192, [1, 1])]);
    let a = valid(net, a, 320, [3, 3], 2);
    let b = chain(net, x, &[(192, [1, 1]), (192, [1, 7]), (192, [7, 1])]);
    let b = valid(net, b, 192, [3, 3], 2);
    let max = net.pool("nn.max_pool2d", x, 3, 2, Valid);
    net.concat(1, &[a, b, max])
}

fn inception_e(net: &mut Net, x: ExprId) -> ExprId {
    let both_ways = |net: &mut Net, x| {
        let parts = [[1, 3], [3, 1]].map(|kernel| same(net, x, 384, kernel));
        net.concat(1, &parts)
    };
    let a = chain(net, x, &[(320, [1, 1])]);
    let b = chain(net, x, &[(384, [1, 1])]);
    let b = both_ways(net, b);
    let c = chain(net, x, &[(448, [1, 1]), (384, [3, 3])]);
    let c = both_ways(net, c);
    let max = net.pool("nn.max_pool2d", x, 3, 1, Same);
    let d = chain(net, max, &[(192, [1, 1])]);
    net.concat(1, &[a, b, c, d])
}
