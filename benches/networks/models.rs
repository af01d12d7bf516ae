//! Whole models as frontends write them, with biases, normalizations, scales and softmax.

use resat::ir::{AttrValue, ExprId};

use super::{
    Net, Network,
    Padding::{self, Same},
};

/// ResNet-50 with batch normalizations, of so many blocks in each of its four stages: 3, 4, 6 and 3 in the real one.
pub(crate) fn resnet50(blocks: [usize; 4]) -> Network {
    let mut net = Net::default();
    let image = net.input("image", &[1, 3, 224, 224]);
    let mut x = conv_norm(&mut net, image, 64, 7, 2);
    x = net.apply("nn.relu", &[x]);
    x = net.pool("nn.max_pool2d", x, 3, 2, Same);
    for (stage, blocks) in blocks.into_iter().enumerate() {
        let channels = 64 << stage;
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let mut y = x;
            for (channels, kernel, stride) in [(channels, 1, 1), (channels, 3, stride)] {
                y = conv_norm(&mut net, y, channels, kernel, stride);
                y = net.apply("nn.relu", &[y]);
            }
            y = conv_norm(&mut net, y, 4 * channels, 1, 1);
            if block == 0 {
                x = conv_norm(&mut net, x, 4 * channels, 1, stride);
            }
            let sum = net.apply("add", &[x, y]);
            x = net.apply("nn.relu", &[sum]);
        }
    }
    x = net.apply("nn.global_avg_pool2d", &[x]);
    x = net.apply("nn.batch_flatten", &[x]);
    x = linear(&mut net, x, 1000);
    net.finish(x)
}

fn conv_norm(net: &mut Net, x: ExprId, channels: i64, kernel: i64, stride: i64) -> ExprId {
    let y = net.conv(x, channels, [kernel, kernel], stride, 1, Padding::Same);
    let [scale, shift, mean, variance] = [(); 4].map(|()| net.weight(&[channels], 1));
    // A variance is not negative, whatever the random weight is.
    let variance = net.apply("abs", &[variance]);
    let norm = net.apply("nn.batch_norm", &[y, scale, shift, mean, variance]);
    net.project(norm, 0)
}

/// A dense layer with its bias, over two axes.
fn linear(net: &mut Net, x: ExprId, outputs: i64) -> ExprId {
    let inputs = *net.shape(x).last().expect("a matrix");
    let (weight, bias) = (net.weight(&[outputs, inputs], inputs), net.weight(&[outputs], outputs));
    let y = net.apply("nn.dense", &[x, weight]);
    net.apply("add", &[y, bias])
}

/// The encoder of BERT, base size, of so many layers over 128 tokens: 12 in the real one. Embeddings come as an input.
pub(crate) fn bert(layers: usize) -> Network {
    const TOKENS: i64 = 128;
    const WIDTH: i64 = 768;
    const HEADS: i64 = 12;
    let mut net = Net::default();
    let mut x = net.input("embeddings", &[1, TOKENS, WIDTH]);
    for _ in 0..layers {
        let rows = net.reshape(x, &[TOKENS, WIDTH]);
        let heads = [(); 3].map(|()| {
            let projected = linear(&mut net, rows, WIDTH);
            let split = net.reshape(projected, &[1, TOKENS, HEADS, WIDTH / HEADS]);
            let by_head = net.transpose(split, &[0, 2, 1, 3]);
            net.reshape(by_head, &[HEADS, TOKENS, WIDTH / HEADS])
        });
        let transposed = [("transpose_b", true.into())];
        let scores = net.call("nn.batch_matmul", &transposed, &[heads[0], heads[1]]);
        let scale = net.number(1.0 / ((WIDTH / HEADS) as f64).sqrt());
        let scaled = net.apply("multiply", &[scores, scale]);
        let weights = net.call("nn.softmax", &[("axis", (-1).into())], &[scaled]);
        let values = net.transpose(heads[2], &[0, 2, 1]);
        let mixed = net.call("nn.batch_matmul", &transposed, &[weights, values]);
        let mixed = net.reshape(mixed, &[1, HEADS, TOKENS, WIDTH / HEADS]);
        let back = net.transpose(mixed, &[0, 2, 1, 3]);
        let rows_back = net.reshape(back, &[TOKENS, WIDTH]);
        let attended = linear(&mut net, rows_back, WIDTH);
        let attended = net.reshape(attended, &[1, TOKENS, WIDTH]);
        let sum = net.apply("add", &[x, attended]);
        let normed = layer_norm(&mut net, sum);
        let rows = net.reshape(normed, &[TOKENS, WIDTH]);
        let hidden = linear(&mut net, rows, 4 * WIDTH);
        let hidden = gelu(&mut net, hidden);
        let out = linear(&mut net, hidden, WIDTH);
        let out = net.reshape(out, &[1, TOKENS, WIDTH]);
        let sum = net.apply("add", &[normed, out]);
        x = layer_norm(&mut net, sum);
    }
    net.finish(x)
}

/// A decoder of so many layers that makes one token after a past of 128: normalized by the root of the mean square, positions turned in, keys and
/// values appended to the past, and a gated product as the feed forward part. The table of turns and the past are inputs, the new keys and values
/// results.
pub(crate) fn decoder(layers: usize) -> Network {
    const PAST: i64 = 128;
    const WIDTH: i64 = 256;
    const HEADS: i64 = 4;
    const HEAD: i64 = WIDTH / HEADS;
    let mut net = Net::default();
    let mut x = net.input("embedding", &[1, WIDTH]);
    let turns = ["cos", "sin"].map(|name| net.input(name, &[1, HEAD]));
    let mut results = Vec::new();
    for layer in 0..layers {
        let normed = root_norm(&mut net, x);
        let [query, key, value] = [(); 3].map(|()| {
            let projected = product(&mut net, normed, WIDTH);
            net.reshape(projected, &[HEADS, 1, HEAD])
        });
        let [query, key] = [query, key].map(|y| turned(&mut net, y, turns));
        let past = ["keys", "values"].map(|name| net.input(&format!("{name}{layer}"), &[HEADS, PAST, HEAD]));
        let keys = net.concat(1, &[past[0], key]);
        let values = net.concat(1, &[past[1], value]);
        let scores = net.call("nn.batch_matmul", &[("transpose_b", true.into())], &[query, keys]);
        let scale = net.number(1.0 / (HEAD as f64).sqrt());
        let scaled = net.apply("multiply", &[scores, scale]);
        let shares = net.call("nn.softmax", &[("axis", (-1).into())], &[scaled]);
        let mixed = net.call("nn.batch_matmul", &[("transpose_b", false.into())], &[shares, values]);
        let mixed = net.reshape(mixed, &[1, WIDTH]);
        let attended = product(&mut net, mixed, WIDTH);
        x = net.apply("add", &[x, attended]);
        let normed = root_norm(&mut net, x);
        let [gate, up] = [(); 2].map(|()| product(&mut net, normed, 3 * WIDTH));
        let share = net.apply("sigmoid", &[gate]);
        let gate = net.apply("multiply", &[gate, share]);
        let hidden = net.apply("multiply", &[gate, up]);
        let out = product(&mut net, hidden, WIDTH);
        x = net.apply("add", &[x, out]);
        results.extend([keys, values]);
    }
    x = root_norm(&mut net, x);
    let words = product(&mut net, x, 1024);
    results.insert(0, words);
    let result = net.tuple(&results);
    net.finish(result)
}

/// A dense layer without a bias.
fn product(net: &mut Net, x: ExprId, outputs: i64) -> ExprId {
    let inputs = *net.shape(x).last().expect("a matrix");
    let weight = net.weight(&[outputs, inputs], inputs);
    net.apply("nn.dense", &[x, weight])
}

/// The last axis over the root of the mean of its squares.
fn root_norm(net: &mut Net, x: ExprId) -> ExprId {
    let width = *net.shape(x).last().expect("an axis");
    let squares = net.apply("multiply", &[x, x]);
    let mean = net.call("mean", &[("axis", AttrValue::ints(&[-1])), ("keepdims", true.into())], &[squares]);
    let epsilon = net.number(1e-6);
    let mean = net.apply("add", &[mean, epsilon]);
    let root = net.apply("rsqrt", &[mean]);
    let normed = net.apply("multiply", &[x, root]);
    let scale = net.weight(&[width], 1);
    net.apply("multiply", &[normed, scale])
}

/// The two halves of each head turned by its position.
fn turned(net: &mut Net, x: ExprId, [cos, sin]: [ExprId; 2]) -> ExprId {
    let halves = [("indices_or_sections", 2.into()), ("axis", (-1).into())];
    let halves = net.call("split", &halves, &[x]);
    let [first, second] = [0, 1].map(|field| net.project(halves, field));
    let negative = net.apply("negative", &[second]);
    let other = net.concat(-1, &[negative, first]);
    let kept = net.apply("multiply", &[x, cos]);
    let other = net.apply("multiply", &[other, sin]);
    net.apply("add", &[kept, other])
}

/// The normalization of the last axis, as it is traced: mean, difference, variance, root.
fn layer_norm(net: &mut Net, x: ExprId) -> ExprId {
    let width = *net.shape(x).last().expect("an axis");
    let last = [("axis", AttrValue::ints(&[-1])), ("keepdims", true.into())];
    let mean = net.call("mean", &last, &[x]);
    let centred = net.apply("subtract", &[x, mean]);
    let two = net.number(2.0);
    let squares = net.apply("power", &[centred, two]);
    let variance = net.call("mean", &last, &[squares]);
    let epsilon = net.number(1e-12);
    let variance = net.apply("add", &[variance, epsilon]);
    let deviation = net.apply("sqrt", &[variance]);
    let normed = net.apply("divide", &[centred, deviation]);
    let (scale, shift) = (net.weight(&[width], 1), net.weight(&[width], 1));
    let scaled = net.apply("multiply", &[normed, scale]);
    net.apply("add", &[scaled, shift])
}

/// x / 2 * (1 + erf(x / sqrt 2)).
fn gelu(net: &mut Net, x: ExprId) -> ExprId {
    let root = net.number(std::f64::consts::SQRT_2);
    let scaled = net.apply("divide", &[x, root]);
    let erf = net.apply("erf", &[scaled]);
    let one = net.number(1.0);
    let share = net.apply("add", &[erf, one]);
    let product = net.apply("multiply", &[x, share]);
    let half = net.number(0.5);
    net.apply("multiply", &[product, half])
}
