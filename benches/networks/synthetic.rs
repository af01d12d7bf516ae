//! Networks of any size, for tests of limits.

use resat::ir::ExprId;

use super::{Net, Network, Padding::Same};

/// About so many operators, in blocks of ten: convolutions that share an input, sums, activations, pools, a concatenation, a
/// transpose and its inverse. Most shipped rules find something in it.
pub(crate) fn layered(operators: usize) -> Network {
    const CHANNELS: i64 = 16;
    let mut net = Net::default();
    let mut x = net.input("x", &[1, CHANNELS, 8, 8]);
    for _ in 0..operators.div_ceil(10) {
        x = block(&mut net, x, CHANNELS);
    }
    net.finish(x)
}

/// So many dense layers that read one input.
pub(crate) fn siblings(layers: usize) -> Network {
    let mut net = Net::default();
    let x = net.input("x", &[4, 32]);
    let outputs: Vec<ExprId> = (0..layers)
        .map(|_| {
            let w = net.weight(&[16, 32], 32);
            net.apply("nn.dense", &[x, w])
        })
        .collect();
    let result = net.tuple(&outputs);
    net.finish(result)
}

fn block(net: &mut Net, x: ExprId, channels: i64) -> ExprId {
    let [a, b] = [(); 2].map(|()| net.conv(x, channels / 2, [1, 1], 1, 1, Same));
    let joined = net.concat(1, &[a, b]);
    let active = net.apply("nn.relu", &[joined]);
    let pooled = net.pool("nn.avg_pool2d", active, 3, 1, Same);
    let there = net.transpose(pooled, &[0, 2, 3, 1]);
    let shift = net.weight(&[channels], 1);
    let moved = net.apply("add", &[there, shift]);
    let back = net.transpose(moved, &[0, 3, 1, 2]);
    let gate = net.apply("sigmoid", &[x]);
    net.apply("multiply", &[back, gate])
}
