//! Winograd's convolution of data in blocks of channels, as loops: transform all tiles, then, for some tiles and some blocks of
//! results at a time, multiply point by point and transform back while the products are at hand.

use super::winograd_conv::Plan;
use crate::{
    loops::{BinOp, Builder, Nest, Scalar, TensorId, cut_evenly},
    tensor::DType,
};

/// Accumulators of a register tile: rows (tiles of the image) and blocks of results, for blocks of at least 16 results (of which a
/// register of 512 bits holds one) and for smaller ones.
const REGISTER_TILES: [(i64, i64, i64); 2] = [(16, 14, 2), (1, 6, 2)];

/// Bytes of products on a thread's stack, at most.
const PRODUCTS: i64 = 256 << 10;

/// The sum of terms times coefficients, without those that are zero.
fn linear(coefficients: &[f64], dtype: DType, term: impl Fn(usize) -> Scalar) -> Scalar {
    let mut sum: Option<Scalar> = None;
    for (i, &c) in coefficients.iter().enumerate().filter(|(_, c)| **c != 0.0) {
        let scaled = match c.abs() {
            1.0 => term(i),
            size => term(i) * Scalar::float(size, dtype),
        };
        sum = Some(match sum {
            None if c < 0.0 => scaled * Scalar::float(-1.0, dtype),
            None => scaled,
            Some(s) if c < 0.0 => s - scaled,
            Some(s) => s + scaled,
        });
    }
    sum.unwrap_or_else(|| Scalar::float(0.0, dtype))
}

/// Both sides of a square of values by the same matrix, whose rows are `rows`: the values' columns first, named once. `value` and
/// `put` take row and column.
fn both_sides(
    n: &mut Nest<'_>,
    rows: &[Vec<f64>],
    dtype: DType,
    value: impl Fn(&Nest<'_>, usize, usize) -> Scalar,
    mut put: impl FnMut(&mut Nest<'_>, usize, usize, Scalar),
) {
    let inner = rows[0].len();
    for (i, row) in rows.iter().enumerate() {
        let column = |n: &mut Nest<'_>, j: usize| {
            let sum = linear(row, dtype, |k| value(n, k, j));
            n.let_(sum)
        };
        let half: Vec<Scalar> = (0..inner).map(|j| column(n, j)).collect();
        for (j, other) in rows.iter().enumerate() {
            put(n, i, j, linear(other, dtype, |k| half[k].clone()));
        }
    }
}

/// The convolution: `x` is `[images, blocks, rows, columns, block]`, padded to whole tiles, `w` `[points, points, blocks of results,
/// channels, block of results]`, the result `shape`: `[images, blocks of results, rows, columns, block of results]`.
pub(super) fn lower(plan: &Plan, x: TensorId, w: TensorId, shape: &[i64], b: &mut Builder) -> TensorId {
    let dtype = b.dtype(x);
    let [data, result] = plan.matrices();
    // Rows of the transposed matrix: results are sums over points.
    let back: Vec<Vec<f64>> = (0..plan.tile as usize).map(|i| result.iter().map(|row| row[i]).collect()).collect();
    let (points, tile) = (plan.points, plan.tile);
    let [images, outs, height, width, lanes] = shape[..] else { unreachable!("five axes") };
    let (blocks, block) = (b.shape(x)[1], b.shape(x)[4]);
    let channels = blocks * block;
    let (down, across) = (plan.tiles(height), plan.tiles(width));
    let tiles = down * across;
    let &(_, rows, wide) = REGISTER_TILES.iter().find(|r| lanes >= r.0).expect("the last one is for all blocks");
    let bytes = |rows: i64, wide: i64| points * points * rows * wide * lanes * dtype.bytes() as i64;
    // Blocks of very many results leave room for fewer accumulators.
    let wide = if bytes(rows, wide) <= PRODUCTS { wide.min(outs) } else { 1 };
    let rows = (1..=rows).rev().find(|&r| bytes(r, wide) <= PRODUCTS).unwrap_or(1);
    // So many tiles at a time, as a multiple of what a register tile takes.
    let fits = PRODUCTS / bytes(1, wide);
    let together = (fits / rows).clamp(1, 4) * rows;
    let groups: Vec<(i64, i64, i64)> = cut_evenly(outs, wide);
    // Of images of every size, the last tiles of a group may be none.
    let changing = b.is_for_all_sizes();
    let pieces = if changing { pieces_of_any(tiles, together, rows) } else { cut_evenly(tiles, together) };
    let computed = pieces.last().map_or(tiles, |(start, many, size)| tiles.max(start + many * size));
    b.routine(|n| {
        let out = n.output(shape, dtype);
        let values = n.scratch(&[images, points, points, computed, channels], dtype);
        n.parallel_each(&[images, tiles], |n, i| {
            let y = n.let_index(i[1].clone().floor_div(across), down);
            let z = n.let_index(i[1].clone().floor_mod(across), across);
            n.for_(blocks, |n, k| {
                n.vector(block, |n, lane| {
                    let at = |n: &Nest<'_>, r: usize, c: usize| {
                        let (r, c) = (y.clone() * tile + r as i64, z.clone() * tile + c as i64);
                        n.read(x, [i[0].clone(), k.clone(), r, c, lane.clone()])
                    };
                    both_sides(n, &data, dtype, at, |n, p, q, value| {
                        let channel = k.clone() * block + lane.clone();
                        let place = [i[0].clone(), Scalar::index(p as i64), (q as i64).into(), i[1].clone(), channel];
                        n.store(values, place, value);
                    });
                });
            });
        });
        for &(first, turns, wide) in &groups {
            for &(start, many, together) in &pieces {
                each_piece(n, changing, [images, turns, many], start, |n, i, start| {
                    let group = Group {
                        image: i[0].clone(),
                        out: i[1].clone() * wide + first,
                        tile: i[2].clone() * together + start,
                        wide,
                        together,
                    };
                    let sums = n.local(&[points, points, together, wide, lanes], dtype);
                    products(n, &group, values, w, sums, rows);
                    n.for_(together, |n, t| {
                        let number = n.let_index(group.tile.clone() + t.clone(), computed);
                        let sums = Sums { sums, number, turn: t, wide, back: &back };
                        let store = |n: &mut Nest<'_>| sums.store(n, out, &group, tile, changing);
                        match changing {
                            true => n.if_(sums.number.clone().lt(Scalar::index(tiles)), store),
                            false => store(n),
                        }
                    });
                });
            }
        }
        out
    })
}

/// All tiles of images of any size: so many together, then fewer, where the last ones of all may hang over.
fn pieces_of_any(tiles: i64, together: i64, rows: i64) -> Vec<(i64, i64, i64)> {
    let mut pieces = Vec::new();
    let mut done = 0;
    for size in if together > rows { vec![together, rows] } else { vec![rows] } {
        let many = (tiles - done) / size;
        pieces.push((done, many, size));
        done += many * size;
    }
    pieces.push((done, (tiles - done + LAST - 1) / LAST, LAST));
    pieces
}

/// Tiles together that are left at last, of images of any size.
const LAST: i64 = 4;

/// One parallel loop over all images, groups of blocks and groups of tiles, the first of which begins with tile `start`. Of images of any
/// size, the loops are the same whatever the extents are.
fn each_piece(
    n: &mut Nest<'_>,
    changing: bool,
    [images, turns, many]: [i64; 3],
    start: i64,
    body: impl FnOnce(&mut Nest<'_>, &[Scalar], Scalar),
) {
    if !changing {
        return n.parallel_each(&[images, turns, many], |n, i| body(n, i, Scalar::index(start)));
    }
    let start = n.let_(Scalar::index(start));
    let each = n.let_(Scalar::index(many));
    n.parallel(images * turns * many, |n, flat| {
        let group = Scalar::binary(BinOp::FloorDiv, flat.clone(), each.clone());
        let group = n.let_index(group, images * turns);
        let piece = n.let_index(Scalar::binary(BinOp::FloorMod, flat, each), many);
        let image = n.let_index(group.clone().floor_div(turns), images);
        let turn = n.let_index(group.floor_mod(turns), turns);
        body(n, &[image, turn, piece], start);
    });
}

/// The products of a tile, by points.
struct Sums<'a> {
    sums: TensorId,
    /// Which tile of its image it is.
    number: Scalar,
    /// Which of the group.
    turn: Scalar,
    wide: i64,
    /// The matrix that transforms back.
    back: &'a [Vec<f64>],
}

impl Sums<'_> {
    /// Transforms back and stores what lies within the image.
    fn store(&self, n: &mut Nest<'_>, out: TensorId, group: &Group, tile: i64, changing: bool) {
        let dtype = n.dtype(out);
        let [_, _, height, width, lanes] = n.shape(out)[..] else { unreachable!("five axes") };
        let [down, across] = [height, width].map(|extent| (extent + tile - 1) / tile);
        let y = n.let_index(self.number.clone().floor_div(across), down);
        let z = n.let_index(self.number.clone().floor_mod(across), across);
        for o in 0..self.wide {
            let sum = |n: &Nest<'_>, p: usize, q: usize, lane: &Scalar| {
                let at = [(p as i64).into(), (q as i64).into(), self.turn.clone(), o.into(), lane.clone()];
                n.read(self.sums, at)
            };
            let place = |r: Scalar, c: Scalar, lane: &Scalar| {
                let (r, c) = (y.clone() * tile + r, z.clone() * tile + c);
                [group.image.clone(), group.out.clone() + o, r, c, lane.clone()]
            };
            if !changing && height % tile == 0 && width % tile == 0 {
                n.vector(lanes, |n, lane| {
                    both_sides(
                        n,
                        self.back,
                        dtype,
                        |n, p, q| sum(n, p, q, &lane),
                        |n, r, c, value| {
                            n.store(out, place((r as i64).into(), (c as i64).into(), &lane), value);
                        },
                    );
                });
                continue;
            }
            let whole = n.local(&[tile, tile, lanes], dtype);
            n.vector(lanes, |n, lane| {
                both_sides(
                    n,
                    self.back,
                    dtype,
                    |n, p, q| sum(n, p, q, &lane),
                    |n, r, c, value| {
                        n.store(whole, [(r as i64).into(), (c as i64).into(), lane.clone()], value);
                    },
                );
            });
            // Tiles at the edge hang over.
            n.for_each(&[tile, tile], |n, at| {
                let inside = (y.clone() * tile + at[0].clone())
                    .lt(Scalar::index(height))
                    .and((z.clone() * tile + at[1].clone()).lt(Scalar::index(width)));
                n.if_(inside, |n| {
                    n.vector(lanes, |n, lane| {
                        let value = n.read(whole, [at[0].clone(), at[1].clone(), lane.clone()]);
                        n.store(out, place(at[0].clone(), at[1].clone(), &lane), value);
                    });
                });
            });
        }
    }
}

/// Some tiles of an image and some blocks of results.
struct Group {
    image: Scalar,
    /// The first block of results.
    out: Scalar,
    /// The first tile.
    tile: Scalar,
    wide: i64,
    together: i64,
}

/// `sums[p, q, t, o] = sum over channels of values[image, p, q, tile + t, channel] * w[p, q, out + o, channel]`, in register tiles of so many
/// rows.
fn products(n: &mut Nest<'_>, g: &Group, values: TensorId, w: TensorId, sums: TensorId, rows: i64) {
    let dtype = n.dtype(values);
    let [points, _, _, channels, lanes] = n.shape(w)[..] else { unreachable!("five axes") };
    n.for_each(&[points, points], |n, point| {
        for (first, turns, size) in cut_evenly(g.together, rows) {
            n.for_(turns, |n, turn| {
                let at = |row: &Scalar| turn.clone() * size + first + row.clone();
                let sum = n.registers(&[size, g.wide, lanes], dtype);
                let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, [Scalar; 3])| {
                    n.unrolled(size, |n, row| {
                        n.unrolled(g.wide, |n, o| n.vector(lanes, |n, lane| body(n, [row, o, lane])));
                    });
                };
                each(n, &|n, place| n.store(sum, place, Scalar::float(0.0, dtype)));
                n.for_(channels, |n, channel| {
                    each(n, &|n, place| {
                        let [row, o, lane] = place.clone();
                        let [p, q] = [point[0].clone(), point[1].clone()];
                        let tile = g.tile.clone() + at(&row);
                        let value = n.read(values, [g.image.clone(), p.clone(), q.clone(), tile, channel.clone()]);
                        let weight = n.read(w, [p, q, g.out.clone() + o, channel.clone(), lane]);
                        let next = n.read(sum, place.clone()) + value * weight;
                        n.store(sum, place, next);
                    });
                });
                each(n, &|n, place| {
                    let [row, o, lane] = place.clone();
                    let to = [point[0].clone(), point[1].clone(), at(&row), o, lane];
                    let value = n.read(sum, place);
                    n.store(sums, to, value);
                });
            });
        }
    });
}
