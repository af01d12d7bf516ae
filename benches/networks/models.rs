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
