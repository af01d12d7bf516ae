//! Convolutions in blocks of channels whose taps lie far apart (dilation), where extents of images are others at other sizes: tap by tap, each over the
//! results for which it sees data. Most taps of such windows may see padding alone, which at other sizes is known only when the program runs; padding
//! would be many times what it surrounds.

use super::{conv_attrs::ConvAttrs, winograd_any::split};
use crate::{
    loops::{BinOp, Builder, Nest, Scalar, TensorId, cut_evenly},
    tensor::{DType, Layout},
};

/// From so many pixels on taps lie far apart.
const FAR: i64 = 6;

/// Pixels of a register tile, for blocks of at least so many results; and how many of these blocks are computed together.
const REGISTER_TILES: [(i64, i64); 2] = [(16, 8), (1, 6)];
const WIDE: i64 = 2;

/// Results of a band: these stay in the first two caches from one tap to the next, and all taps of a row of a window see the same rows of data.
const BAND: i64 = 256;

/// The extents of a convolution and of its operands.
struct Plan {
    /// Of data and results: rows and columns.
    given: [i64; 2],
    made: [i64; 2],
    taps: [i64; 2],
    dilation: [i64; 2],
    before: [i64; 2],
    images: i64,
    /// Blocks of channels and channels of each; the same of results.
    blocks: i64,
    block: i64,
    outs: i64,
    lanes: i64,
}

impl Plan {
    /// None where this is no such convolution.
    fn new(c: &ConvAttrs, x: &[i64], w: &[i64], made: &[i64]) -> Option<Plan> {
        let [outs, blocks, down, across, block, lanes] = w[..] else { return None };
        let [images, _, height, width, _] = x[..] else { return None };
        let is = |layout: &Layout, text: String| text.parse::<Layout>().is_ok_and(|l| l == *layout);
        let in_blocks = is(&c.data, format!("NCHW{block}c"))
            && is(&c.kernel, format!("OIHW{block}i{lanes}o"))
            && is(&c.out, format!("NCHW{lanes}c"));
        let fits = c.groups == 1 && c.strides == [1, 1] && c.dilation.iter().any(|&d| d >= FAR) && down * across > 1;
        (in_blocks && fits).then(|| Plan {
            given: [height, width],
            made: [made[0], made[1]],
            taps: [down, across],
            dilation: [c.dilation[0], c.dilation[1]],
            before: [c.padding[0].0, c.padding[1].0],
            images,
            blocks,
            block,
            outs,
            lanes,
        })
    }
}

/// The convolution, of `made` rows and columns; none where it is no such one, or better computed otherwise.
pub(super) fn convolve(c: &ConvAttrs, [x, w]: [TensorId; 2], made: &[i64], b: &mut Builder) -> Option<TensorId> {
    let floats = [x, w].iter().all(|&t| b.dtype(t) == DType::F32);
    let p = Plan::new(c, b.shape(x), b.shape(w), made).filter(|_| floats && b.is_for_all_sizes())?;
    let &(_, pixels) = REGISTER_TILES.iter().find(|r| p.lanes >= r.0).expect("the last one is for all blocks");
    let groups = cut_evenly(p.outs, WIDE.min(p.outs));
    Some(b.routine(|n| {
        let out = n.output(&[p.images, p.outs, p.made[0], p.made[1], p.lanes], DType::F32);
        let [given, made] = [p.given, p.made].map(|extents| extents.map(|extent| n.number(extent)));
        let height = n.let_(quotient(BAND.into(), &made[1].clone().max(1.into())).max(1.into()));
        let bands = n.let_(quotient(made[0].clone() + height.clone() - 1, &height));
        for (first, turns, wide) in groups {
            let groups = n.number(p.images * turns);
            n.parallel(groups * bands.clone(), |n, flat| {
                let [part, band] = split(n, &flat, &bands);
                let [image, turn] = split(n, &part, &turns.into());
                let group = n.let_index(turn * wide + first, p.outs - wide + 1);
                let top = n.let_index(band * height.clone(), p.made[0]);
                let rows = n.let_(height.clone().min(made[0].clone() - top.clone()));
                n.for_(wide, |n, o| {
                    n.for_(rows.clone(), |n, row| {
                        let row = n.let_index(top.clone() + row, p.made[0]);
                        n.for_(made[1].clone(), |n, column| {
                            let column = n.let_index(column, p.made[1]);
                            n.vector(p.lanes, |n, lane| {
                                let place =
                                    [&image, &(group.clone() + o.clone()), &row, &column, &lane].map(Scalar::clone);
                                n.store(out, place, Scalar::float(0.0, DType::F32));
                            });
                        });
                    });
                });
                let end = n.let_(top.clone() + rows);
                let results = [[top, end], [0.into(), made[1].clone()]];
                n.for_each(&p.taps, |n, tap| {
                    add_tap(n, &p, [x, w, out], [&image, &group], tap, &results, &given, [pixels, wide]);
                });
            });
        }
        out
    }))
}

fn quotient(a: Scalar, by: &Scalar) -> Scalar {
    Scalar::binary(BinOp::FloorDiv, a, by.clone())
}

/// Adds what a tap gives to some blocks of an image's results, `pixels` at a time: to rows and columns from one number to before another, of data with so
/// many rows and columns.
#[expect(clippy::too_many_arguments, reason = "operands, and where in them")]
fn add_tap(
    n: &mut Nest<'_>,
    p: &Plan,
    [x, w, out]: [TensorId; 3],
    [image, group]: [&Scalar; 2],
    tap: &[Scalar],
    results: &[[Scalar; 2]; 2],
    given: &[Scalar; 2],
    [pixels, wide]: [i64; 2],
) {
    // Along each axis, which results see data: the first one, how many, and how far from a result that is.
    let seen = [0, 1].map(|k: usize| {
        let [first, end] = results[k].clone();
        let away = n.let_(tap[k].clone() * p.dilation[k] - p.before[k]);
        let first = (Scalar::index(0) - away.clone()).max(first).min(end.clone());
        let first = n.let_index(first, p.made[k] + 1);
        let end = end.min(given[k].clone() - away.clone());
        let many = n.let_index((end - first.clone()).max(0.into()), p.made[k] + 1);
        (first, many, away)
    });
    let [(top, height, down), (left, width, across)] = seen;
    let all = n.let_(height * width.clone());
    let tiles = n.let_((all.clone() + (pixels - 1)).floor_div(pixels));
    // Where there is none, nothing is divided by it.
    let columns = n.let_(width.max(1.into()));
    n.for_(tiles, |n, tile| {
        // The last tile may come back to the last pixel: all its sums are read before any is written.
        let places: Vec<[Scalar; 4]> = (0..pixels)
            .map(|pixel| {
                let number = (tile.clone() * pixels + pixel).min(all.clone() - 1);
                let number = n.let_index(number, p.made[0] * p.made[1]);
                let [row, column] = split(n, &number, &columns);
                let made = [n.let_index(row + top.clone(), p.made[0]), n.let_index(column + left.clone(), p.made[1])];
                let given = [
                    n.let_index(made[0].clone() + down.clone(), p.given[0]),
                    n.let_index(made[1].clone() + across.clone(), p.given[1]),
                ];
                let [[row, column], [from_row, from_column]] = [made, given];
                [row, column, from_row, from_column]
            })
            .collect();
        let sums = n.registers(&[pixels, wide, p.lanes], DType::F32);
        let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, usize, [Scalar; 3])| {
            for pixel in 0..pixels {
                n.unrolled(wide, |n, o| {
                    n.vector(p.lanes, |n, lane| body(n, pixel as usize, [pixel.into(), o, lane]));
                });
            }
        };
        let result = |pixel: usize, o: Scalar, lane: Scalar| {
            let [row, column, ..] = places[pixel].clone();
            [image.clone(), group.clone() + o, row, column, lane]
        };
        each(n, &|n, pixel, [number, o, lane]| {
            let value = n.read(out, result(pixel, o.clone(), lane.clone()));
            n.store(sums, [number, o, lane], value);
        });
        n.for_(p.blocks, |n, k| {
            n.for_(p.block, |n, channel| {
                each(n, &|n, pixel, [number, o, lane]| {
                    let [.., row, column] = places[pixel].clone();
                    let value = n.read(x, [image.clone(), k.clone(), row, column, channel.clone()]);
                    let weight = [
                        group.clone() + o.clone(),
                        k.clone(),
                        tap[0].clone(),
                        tap[1].clone(),
                        channel.clone(),
                        lane.clone(),
                    ];
                    let place = [number, o, lane];
                    let sum = n.read(sums, place.clone()) + value * n.read(w, weight);
                    n.store(sums, place, sum);
                });
            });
        });
        each(n, &|n, pixel, [number, o, lane]| {
            let value = n.read(sums, [number, o.clone(), lane.clone()]);
            n.store(out, result(pixel, o, lane), value);
        });
    });
}
