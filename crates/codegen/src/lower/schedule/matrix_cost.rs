//! What blocks of sums in matrix registers cost: products, and operands from as near as the order of loops leaves them.

use super::{
    Access,
    pieces::pieces,
    sizes::{TilesAlong, changing_tiles},
    tiling::{Tiling, coeff, store_cycles},
};
use crate::{
    loops::{Axis, AxisId, TILE, cut_evenly},
    machine::Timing,
};

/// What of a cache holds operands that are met again.
const KEPT: f64 = 0.75;
/// The rows of a product that takes the least time.
const FEWEST_ROWS: i64 = 10;
/// Rows of a tile that lie further apart than this, in bytes, are in pages of their own: loading one takes longer.
const FAR: f64 = 2048.0;
const FAR_LOAD: f64 = 1.3;
/// Cycles to set up tiles and to release them, which each block does where they are not of one size.
const SET_UP: f64 = 400.0;
/// The share of the time of loads from near caches for which products wait, though they are fewer cycles.
const BESIDE: f64 = 0.1;
/// The share of the time to read what no near cache holds for which products wait, beside what prefetches bring.
const WAITING: f64 = 0.5;

/// What blocks of sums read.
pub(super) struct Blocks<'a> {
    /// The operand whose tiles have the block's rows.
    pub(super) left: &'a Access,
    /// The one whose tiles have its columns.
    pub(super) right: &'a Access,
    /// Bytes of each.
    pub(super) bytes: [f64; 2],
    /// Products of tiles for each tile of sums.
    pub(super) steps: f64,
    /// Bytes from one row to the next along an axis of rows.
    pub(super) row: Box<dyn Fn(AxisId) -> f64 + 'a>,
    /// The axes whose extents change from size to size.
    pub(super) changing: Vec<AxisId>,
}

/// Cycles of all blocks, and the order of loops in which they are fewest, of those that begin with an axis, where one is given.
pub(super) fn cheapest(
    axes: &[Axis],
    tiling: &Tiling,
    blocks: &Blocks,
    first: Option<AxisId>,
    timing: &Timing,
) -> (f64, Vec<Axis>) {
    let cost = Cost::new(axes, tiling, blocks, timing);
    // Loops of one turn stay where they are.
    let (loops, still): (Vec<usize>, Vec<usize>) = (0..axes.len()).partition(|&i| cost.turns[i] > 1.0);
    let given = loops.iter().position(|&i| Some(axes[i].id) == first);
    let begins = |order: &[usize]| given.is_none_or(|at| order.first() == Some(&loops[at]));
    let mut best = (f64::INFINITY, loops.clone());
    for order in orders(&loops).into_iter().filter(|o| begins(o)) {
        let cycles = cost.cycles(&order);
        if cycles < 0.99 * best.0 {
            best = (cycles, order);
        }
    }
    (best.0, best.1.iter().chain(&still).map(|&i| axes[i]).collect())
}

/// All orders of a few loops, first of all as they are; of many only that.
fn orders(loops: &[usize]) -> Vec<Vec<usize>> {
    if loops.len() > 5 {
        return vec![loops.to_vec()];
    }
    let Some((&first, rest)) = loops.split_first() else { return vec![vec![]] };
    let mut all = Vec::new();
    for order in orders(rest) {
        for at in 0..=order.len() {
            let mut order = order.clone();
            order.insert(at, first);
            all.push(order);
        }
    }
    all
}

struct Cost<'a> {
    /// By axis: turns of its loop.
    turns: Vec<f64>,
    /// By axis: whether either operand depends on it.
    depends: Vec<[bool; 2]>,
    /// Cycles of products, of beginning and ending blocks, and of what is done with sums.
    products: f64,
    apart: f64,
    /// Of each operand: bytes that all blocks load, if each is loaded as often as it is multiplied.
    loaded: [f64; 2],
    /// Of each operand: bytes that a block reads, each counted once.
    panel: [f64; 2],
    /// Cycles to load a byte from the first cache, of either operand.
    near: [f64; 2],
    timing: &'a Timing,
}

impl<'a> Cost<'a> {
    fn new(axes: &[Axis], tiling: &Tiling, blocks: &Blocks, timing: &'a Timing) -> Cost<'a> {
        let changes = |a: &Axis| blocks.changing.contains(&a.id);
        // How often there are so many accumulators along an axis.
        let cut = |a: &Axis| -> Vec<(i64, i64)> {
            let size = tiling.tiles.iter().find(|t| t.0 == a.id).map_or(1, |t| t.1);
            match changes(a) {
                true => changing_tiles(a.extent, size, TilesAlong { streamed: true, may_overlap: false, many: false })
                    .into_iter()
                    .map(|(_, count, size)| (count, size))
                    .collect(),
                false => pieces(a, tiling).iter().map(|p| (p.count, p.size)).collect(),
            }
        };
        let turns: Vec<f64> = axes.iter().map(|a| cut(a).iter().map(|p| p.0 as f64).sum()).collect();
        let depends: Vec<[bool; 2]> =
            axes.iter().map(|a| [blocks.left, blocks.right].map(|o| coeff(o, a.id) != Some(0))).collect();
        let (rate, rows_axis) = (&timing.tiles, tiling.tiles[0].0);
        // Of all tiles of sums along the axis of rows: cycles of a product with each, and how many there are.
        let (mut cycles, mut along_rows) = (0.0, 0.0);
        let (mut tiles, mut elements) = (1.0, 1.0);
        for a in axes {
            elements *= a.extent as f64;
            if a.id == rows_axis {
                for (count, size) in cut(a) {
                    for (_, n, size) in cut_evenly(size, TILE) {
                        let rows = size.max(FEWEST_ROWS) as f64 / TILE as f64;
                        cycles += (count * n) as f64 * rows * rate.product;
                        along_rows += (count * n) as f64;
                    }
                }
            } else if a.id == tiling.vector {
                tiles *= (a.extent as f64 / tiling.lanes as f64).ceil();
            } else {
                tiles *= a.extent as f64;
            }
        }
        let count: f64 = turns.iter().product();
        let stored = tiles * along_rows * TILE as f64 + elements / TILE as f64 * (store_cycles(timing) + 1.0);
        let far = (blocks.row)(rows_axis) > FAR;
        let near = rate.load / (TILE * TILE * 4) as f64;
        // How often each operand's tiles are loaded: once for each turn of loops that it does not depend on.
        let of = |operand: usize| -> [f64; 2] {
            let across = |i: &usize| depends[*i][operand];
            let shared: f64 = (0..axes.len()).filter(|i| !across(i)).map(|i| turns[i]).product();
            let own: f64 = (0..axes.len()).filter(across).map(|i| turns[i]).product();
            let extents: f64 = (0..axes.len()).filter(across).map(|i| axes[i].extent as f64).product();
            // A row of a tile is a line, and so are the words of a column's.
            [shared * extents * blocks.steps * (TILE * 4) as f64, blocks.bytes[operand] / own.max(1.0)]
        };
        let [left, right] = [of(0), of(1)];
        Cost {
            products: blocks.steps * cycles * tiles,
            apart: count * (rate.block + if axes.iter().any(changes) { SET_UP } else { 0.0 }) + stored,
            loaded: [left[0], right[0]],
            panel: [left[1], right[1]],
            near: [if far { near * FAR_LOAD } else { near }, near],
            turns,
            depends,
            timing,
        }
    }

    /// Cycles with loops in that order, outermost first.
    fn cycles(&self, order: &[usize]) -> f64 {
        let (l1, l2, l3) = (&self.timing.l1, &self.timing.l2, &self.timing.l3);
        let all: f64 = order.iter().map(|&i| self.turns[i]).product();
        let (mut near, mut beyond) = (0.0, 0.0);
        for operand in 0..2 {
            // What windows share is read once for a block, and is near from then on.
            let distinct = (self.panel[operand] * all).min(self.loaded[operand]);
            near += self.loaded[operand] * self.near[operand];
            // Of a part of all turns, what is read was read before: so many bytes ago. The rest is read for the first time, as it is
            // whatever the order.
            let mut part = 1.0;
            for (k, &at) in order.iter().enumerate().rev() {
                if self.depends[at][operand] {
                    continue;
                }
                let since = |o: usize| -> f64 {
                    let within = order[k + 1..].iter().filter(|&&i| self.depends[i][o]);
                    self.panel[o] * within.map(|&i| self.turns[i]).product::<f64>()
                };
                let again = part * (1.0 - 1.0 / self.turns[at]) * distinct;
                let since = since(0) + since(1);
                if since > l1.bytes as f64 * KEPT && since <= l2.bytes as f64 * KEPT {
                    near += again / l2.bytes_per_cycle;
                } else if since > l2.bytes as f64 * KEPT {
                    beyond += again / l3.bytes_per_cycle;
                }
                part /= self.turns[at];
            }
        }
        self.products.max(near) + BESIDE * self.products.min(near) + WAITING * beyond + self.apart
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lower::affine::Affine,
        machine::{Arch, family},
    };

    /// A weight that the second cache does not hold is gone through once, whichever axis comes first: all rows meet each panel.
    #[test]
    fn large_weights_are_read_once() {
        let [rows, columns, words, part] = [0, 1, 2, 3].map(AxisId);
        let (m, n, k) = (128, 3072, 384);
        let access = |terms: Vec<(AxisId, i64)>| Access {
            tensor: None,
            axes: terms.iter().map(|t| t.0).collect(),
            offset: Some(Affine { base: 0, terms }),
            bytes: 2,
        };
        let left = access(vec![(rows, 2 * k), (words, 2), (part, 1)]);
        let right = access(vec![(columns, 2), (words, 2 * n), (part, 1)]);
        let blocks = Blocks {
            left: &left,
            right: &right,
            bytes: [(m * k * 4) as f64, (n * k * 4) as f64],
            steps: (k / TILE) as f64,
            row: Box::new(|_| 64.0),
            changing: vec![],
        };
        let tiling = Tiling {
            vector: columns,
            across: false,
            lanes: TILE,
            tiles: vec![(rows, 2 * TILE), (columns, 2)],
            dot: None,
            matrix: None,
        };
        let timing = family(Arch::X86, "sapphirerapids").expect("a family").timing;
        for axes in [[(rows, m), (columns, n)], [(columns, n), (rows, m)]] {
            let axes = axes.map(|(id, extent)| Axis { id, extent });
            let (cost, order) = cheapest(&axes, &tiling, &blocks, None, &timing);
            assert_eq!(order[0].id, columns);
            let (other, order) = cheapest(&axes, &tiling, &blocks, Some(rows), &timing);
            assert!(order[0].id == rows && other > cost, "{other} and {cost} cycles");
        }
    }
}
