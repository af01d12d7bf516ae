//! Winograd's convolution of data in blocks of channels, as loops: transform all tiles, then, for some tiles and some blocks of
//! results at a time, multiply point by point and transform back while the products are at hand. Where the transformed tiles of an image are
//! more than a second cache holds, and weights are few, that is done band by band.
//!
//! The algorithm adds and subtracts what lies in a tile, so that one infinity makes the whole tile infinite or NaN. Whatever is not finite in
//! a window of the data leaves no result of that window finite, though, and neither does what overflows before the transform back. So
//! results that are not finite can be computed again, directly. To see whether there are any costs four additions by tile: each point
//! counts in the first or the last row of results, and in the first or the last column.
//!
//! The direct weight is had back from the transformed one, all but its signs: what infinity times 0, or times a number that rounding made of
//! 0, is would be another. A copy of the weight would take as much memory as a quarter of the transformed one; signs take a sixteenth.

use super::winograd_conv::Plan;
use crate::{
    loops::{BinOp, Builder, Nest, Scalar, TensorId, UnOp, cut_evenly},
    tensor::DType,
};

/// Accumulators of a register tile: rows (tiles of the image) and blocks of results, for blocks of at least 16 results (of which a
/// register of 512 bits holds one) and for smaller ones.
const REGISTER_TILES: [(i64, i64, i64); 2] = [(16, 14, 2), (1, 6, 2)];

/// Bytes of products on a thread's stack, at most.
const PRODUCTS: i64 = 256 << 10;

/// Bytes of weights that each thread may go through for its own part of the image: they stay in its second cache. Then a thread reads the
/// tiles that it has transformed, and the next layer finds in each thread's cache what that wrote.
pub(super) const WEIGHTS_NEAR: i64 = 640 << 10;

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
            if rows.iter().all(|row| row[j] == 0.0) {
                return Scalar::float(0.0, dtype);
            }
            let sum = linear(row, dtype, |k| value(n, k, j));
            n.let_(sum)
        };
        let half: Vec<Scalar> = (0..inner).map(|j| column(n, j)).collect();
        for (j, other) in rows.iter().enumerate() {
            put(n, i, j, linear(other, dtype, |k| half[k].clone()));
        }
    }
}

/// The matrices of the data's transform, and of that of results back: these are sums over points.
pub(super) fn matrices(plan: &Plan) -> [Vec<Vec<f64>>; 2] {
    let [data, result] = plan.matrices();
    [data, (0..plan.tile as usize).map(|i| result.iter().map(|row| row[i]).collect()).collect()]
}

/// Rows of a register tile, how many blocks of results it has, and so many tiles at a time: a multiple of what a register tile takes.
pub(super) fn register_tile(plan: &Plan, shape: &[i64], dtype: DType) -> [i64; 3] {
    let (outs, lanes) = (shape[1], shape[4]);
    let &(_, rows, wide) = REGISTER_TILES.iter().find(|r| lanes >= r.0).expect("the last one is for all blocks");
    let wide = wide.min(outs);
    let fits = PRODUCTS / (plan.points * plan.points * wide * lanes * dtype.bytes() as i64);
    [rows, wide, (fits / rows).clamp(1, 4) * rows]
}

/// The convolution: `x` is `[images, blocks, rows, columns, block]`, padded to whole tiles, `w` `[points, points, blocks of results,
/// channels, block of results]`, the result `shape`: `[images, blocks of results, rows, columns, block of results]`. `signs` are those of the
/// weight that `w` was made of, `[blocks of results, blocks, taps, taps, block, block of results]`, where results are to be finite where
/// those of a direct convolution are.
pub(super) fn lower(
    plan: &Plan,
    x: TensorId,
    w: TensorId,
    signs: Option<TensorId>,
    shape: &[i64],
    b: &mut Builder,
) -> TensorId {
    let dtype = b.dtype(x);
    let [data, back] = matrices(plan);
    let (points, tile) = (plan.points, plan.tile);
    let [images, outs, height, width, lanes] = shape[..] else { unreachable!("five axes") };
    let (blocks, block) = (b.shape(x)[1], b.shape(x)[4]);
    let channels = blocks * block;
    let (down, across) = (plan.tiles(height), plan.tiles(width));
    // Tiles of all images are one row of tiles, so that each weight is read once for all of them.
    let tiles = images * down * across;
    let [rows, wide, batch] = register_tile(plan, shape, dtype);
    let groups: Vec<(i64, i64, i64)> = cut_evenly(outs, wide);
    let bytes = dtype.bytes() as i64;
    let (of_tile, of_weights) = (points * points * channels * bytes, points * points * channels * outs * lanes * bytes);
    let bands = bands(tiles, batch, of_tile, of_weights, (outs + wide - 1) / wide);
    // Threads begin with parts of the image, or else with groups of blocks.
    let by_place = of_weights <= WEIGHTS_NEAR;
    let computed = bands.iter().map(|band| band.2).max().unwrap_or(tiles);
    b.routine(|n| {
        let out = n.output(shape, dtype);
        let values = n.scratch(&[points, points, computed, channels], dtype);
        let mut checks = Vec::new();
        for &(first_of_bands, bands, band) in &bands {
            let pieces = cut_evenly(band, batch);
            let by_piece: Vec<Vec<Option<TensorId>>> = groups
                .iter()
                .map(|&(_, turns, _)| {
                    let mut check = |&(_, many, _): &(i64, i64, i64)| n.scratch(&[bands * turns * many, lanes], dtype);
                    pieces.iter().map(|piece| signs.map(|_| check(piece))).collect()
                })
                .collect();
            checks.extend(by_piece.iter().flatten().flatten().copied());
            let all = |n: &mut Nest<'_>, number_of_band: Scalar| {
                let base = number_of_band.clone() * band + first_of_bands;
                n.parallel_each(&[band], |n, i| {
                    let number = match bands > 1 || first_of_bands > 0 {
                        true => n.let_index(base.clone() + i[0].clone(), tiles),
                        false => i[0].clone(),
                    };
                    let [image, y, z] = tile_at(n, &number, [images, down, across]);
                    transform(n, &data, x, [image, y * tile, z * tile], |n, p, q, channel, value| {
                        n.store(values, [p, q, i[0].clone(), channel], value);
                    });
                });
                for (&(first, turns, wide), checks) in groups.iter().zip(&by_piece) {
                    for (&(start, many, batch), check) in pieces.iter().zip(checks) {
                        let order = if by_place { [many, turns] } else { [turns, many] };
                        n.parallel_each(&order, |n, i| {
                            let [piece, turn] = if by_place { [0, 1] } else { [1, 0] }.map(|at: usize| i[at].clone());
                            let group = Group { out: turn.clone() * wide + first, wide };
                            let tile_of_group = piece.clone() * batch + start;
                            let sums = n.local(&[points, points, batch, wide, lanes], dtype);
                            n.for_each(&[points, points], |n, point| {
                                for (first, turns, size) in cut_evenly(batch, rows) {
                                    n.for_(turns, |n, turn| {
                                        let at = turn * size + first;
                                        let value = |n: &Nest<'_>, row: Scalar, channel: Scalar| {
                                            let [p, q] = [point[0].clone(), point[1].clone()];
                                            let tile = tile_of_group.clone() + at.clone() + row;
                                            n.read(values, [p, q, tile, channel])
                                        };
                                        products(n, &group, point, w, sums, size, &at, value);
                                    });
                                }
                            });
                            let total = check.map(|_| total(n, lanes, dtype));
                            n.for_(batch, |n, t| {
                                let number = n.let_index(base.clone() + tile_of_group.clone() + t.clone(), tiles);
                                let place = tile_at(n, &number, [images, down, across]);
                                let sums = Sums { sums, turn: t, back: &back, total };
                                let whole = height % tile == 0 && width % tile == 0;
                                sums.store(n, out, &group, &place, whole);
                            });
                            if let (Some(check), Some(total)) = (check, total) {
                                let number = number_of_band.clone() * (turns * many) + turn * many + piece;
                                keep(n, *check, &number, total);
                            }
                        });
                    }
                }
            };
            match bands {
                1 => all(n, Scalar::index(0)),
                _ => n.for_(bands, all),
            }
        }
        if let Some(signs) = signs {
            let bad = not_finite(n, &checks);
            n.if_(bad, |n| mend(n, plan, [x, w, signs], out));
        }
        out
    })
}

/// Bytes of transformed tiles at a time where there are more than twice as many: what second caches hold.
pub(super) const BAND: i64 = 1 << 20;

/// Tiles in bands, as [`cut_evenly`] says it: all at once, unless to read the weights again for each band is less than to read all transformed
/// tiles from memory for each of `turns` groups of results. A band has `least` tiles at least.
pub(super) fn bands(
    tiles: i64,
    least: i64,
    bytes_of_tile: i64,
    bytes_of_weights: i64,
    turns: i64,
) -> Vec<(i64, i64, i64)> {
    let count = (tiles * bytes_of_tile / BAND + 1).min(tiles / least);
    match count > 2 && bytes_of_weights * count < tiles * bytes_of_tile * turns {
        true => cut_evenly(tiles, (tiles + count - 1) / count),
        false => vec![(0, 1, tiles)],
    }
}

/// Whether an element of some tensors of two axes, or their sum, is infinite or NaN.
pub(super) fn not_finite(n: &mut Nest<'_>, all: &[TensorId]) -> Scalar {
    let [(dtype, lanes), ..] = all.iter().map(|&t| (n.dtype(t), n.shape(t)[1])).collect::<Vec<_>>()[..] else {
        return Scalar::bool(false);
    };
    let sums = n.registers(&[lanes], dtype);
    n.vector(lanes, |n, lane| n.store(sums, [lane], Scalar::float(0.0, dtype)));
    for &t in all {
        n.for_(n.shape(t)[0], |n, i| {
            n.vector(lanes, |n, lane| {
                let sum = n.read(sums, [lane.clone()]) + n.read(t, [i, lane.clone()]);
                n.store(sums, [lane], sum);
            });
        });
    }
    let total = n.var(Scalar::float(0.0, dtype));
    n.unrolled(lanes, |n, lane| n.set(total, n.get(total) + n.read(sums, [lane])));
    !Scalar::unary(UnOp::IsFinite, n.get(total))
}

/// Computes results directly that are not finite: of the data, the transformed weight and the signs of the direct one.
pub(super) fn mend(n: &mut Nest<'_>, plan: &Plan, [x, w, signs]: [TensorId; 3], out: TensorId) {
    let dtype = n.dtype(out);
    let [images, outs, height, width, lanes] = n.shape(out)[..] else { unreachable!("five axes") };
    let [_, blocks, _, _, block] = n.shape(x)[..] else { unreachable!("five axes") };
    let (back, taps) = (plan.weight_back(), plan.taps as usize);
    let least = Scalar::float(f64::from(f32::MIN_POSITIVE), dtype);
    n.parallel_each(&[images, outs], |n, i| {
        n.for_(height, |n, r| {
            n.for_(width, |n, c| {
                let place = |lane: &Scalar| [i[0].clone(), i[1].clone(), r.clone(), c.clone(), lane.clone()];
                let total = n.var(Scalar::float(0.0, dtype));
                n.for_(lanes, |n, lane| n.set(total, n.get(total) + n.read(out, place(&lane))));
                n.if_(!Scalar::unary(UnOp::IsFinite, n.get(total)), |n| {
                    let sums = n.registers(&[lanes], dtype);
                    n.vector(lanes, |n, lane| n.store(sums, [lane], Scalar::float(0.0, dtype)));
                    n.for_each(&[blocks, block], |n, at| {
                        n.vector(lanes, |n, lane| {
                            let transformed = |n: &Nest<'_>, p: usize, q: usize| {
                                let channel = at[0].clone() * block + at[1].clone();
                                n.read(w, [(p as i64).into(), (q as i64).into(), i[1].clone(), channel, lane.clone()])
                            };
                            let mut weights = vec![Scalar::float(0.0, dtype); taps * taps];
                            both_sides(
                                n,
                                &back,
                                dtype,
                                |n, q, p| transformed(n, p, q),
                                |_, across, down, weight| {
                                    weights[down * taps + across] = weight;
                                },
                            );
                            let sum = n.read(sums, [lane.clone()]);
                            let sum = weights.into_iter().enumerate().fold(sum, |sum, (tap, weight)| {
                                let (down, across) = (tap / taps, tap % taps);
                                let [down, across] = [down as i64, across as i64];
                                let (k, channel) = (at[0].clone(), at[1].clone());
                                let sign = [
                                    i[1].clone(),
                                    k.clone(),
                                    down.into(),
                                    across.into(),
                                    channel.clone(),
                                    lane.clone(),
                                ];
                                let size = Scalar::binary(BinOp::Max, Scalar::unary(UnOp::Abs, weight), least.clone());
                                let weight = n.read(signs, sign).cast(dtype) * size;
                                let value = n.read(x, [i[0].clone(), k, r.clone() + down, c.clone() + across, channel]);
                                sum + value * weight
                            });
                            n.store(sums, [lane], sum);
                        });
                    });
                    n.vector(lanes, |n, lane| {
                        let given = n.read(out, place(&lane));
                        let is_right = Scalar::unary(UnOp::IsFinite, given.clone());
                        let value = Scalar::select(is_right, given, n.read(sums, [lane.clone()]));
                        n.store(out, place(&lane), value);
                    });
                });
            });
        });
    });
}

/// Image, row and column of the tile of that number, of all images.
pub(super) fn tile_at(n: &mut Nest<'_>, number: &Scalar, [images, down, across]: [i64; 3]) -> [Scalar; 3] {
    let image = n.let_index(number.clone().floor_div(down * across), images);
    let y = n.let_index(number.clone().floor_div(across).floor_mod(down), down);
    [image, y, n.let_index(number.clone().floor_mod(across), across)]
}

/// Transforms the tile that begins at that image, row and column, all its channels: `put` takes the two numbers of a point and a channel.
pub(super) fn transform(
    n: &mut Nest<'_>,
    data: &[Vec<f64>],
    x: TensorId,
    [image, row, column]: [Scalar; 3],
    put: impl Fn(&mut Nest<'_>, Scalar, Scalar, Scalar, Scalar),
) {
    let dtype = n.dtype(x);
    let (blocks, block) = (n.shape(x)[1], n.shape(x)[4]);
    n.for_(blocks, |n, k| {
        n.vector(block, |n, lane| {
            let at = |n: &Nest<'_>, r: usize, c: usize| {
                let (r, c) = (row.clone() + r as i64, column.clone() + c as i64);
                n.read(x, [image.clone(), k.clone(), r, c, lane.clone()])
            };
            both_sides(n, data, dtype, at, |n, p, q, value| {
                put(n, (p as i64).into(), (q as i64).into(), k.clone() * block + lane.clone(), value);
            });
        });
    });
}

/// Where results are added to, lane by lane, so that one is not finite where any of them is not.
pub(super) fn total(n: &mut Nest<'_>, lanes: i64, dtype: DType) -> TensorId {
    let total = n.registers(&[lanes], dtype);
    n.vector(lanes, |n, lane| n.store(total, [lane], Scalar::float(0.0, dtype)));
    total
}

/// Keeps that for [`not_finite`], as the row of that number.
pub(super) fn keep(n: &mut Nest<'_>, check: TensorId, number: &Scalar, total: TensorId) {
    n.vector(n.shape(total)[0], |n, lane| {
        let total = n.read(total, [lane.clone()]);
        n.store(check, [number.clone(), lane], total);
    });
}

/// The products of a tile, by points.
pub(super) struct Sums<'a> {
    pub(super) sums: TensorId,
    /// Which tile of its group it is.
    pub(super) turn: Scalar,
    /// The matrix that transforms back.
    pub(super) back: &'a [Vec<f64>],
    /// To what the results are added, lane by lane, of which one is not finite where any product of the tile is not.
    pub(super) total: Option<TensorId>,
}

impl Sums<'_> {
    /// A tile's results in one lane: `put` takes row and column.
    fn results(
        &self,
        n: &mut Nest<'_>,
        lane: &Scalar,
        dtype: DType,
        sum: &impl Fn(&Nest<'_>, usize, usize, &Scalar) -> Scalar,
        mut put: impl FnMut(&mut Nest<'_>, i64, i64, Scalar),
    ) {
        let mut corners: Option<Scalar> = None;
        let is_edge = |at: usize| at == 0 || at + 1 == self.back.len();
        both_sides(
            n,
            self.back,
            dtype,
            |n, p, q| sum(n, p, q, lane),
            |n, r, c, value| {
                if self.total.is_none() || !is_edge(r) || !is_edge(c) {
                    return put(n, r as i64, c as i64, value);
                }
                let value = n.let_(value);
                put(n, r as i64, c as i64, value.clone());
                corners = Some(match corners.take() {
                    None => value,
                    Some(others) => n.let_(others + value),
                });
            },
        );
        if let Some((total, corners)) = self.total.zip(corners) {
            n.store(total, [lane.clone()], n.read(total, [lane.clone()]) + corners);
        }
    }

    /// Transforms back and stores what lies within the image: the tile is that of an image, a row and a column of tiles. `whole` says that
    /// tiles come out even in images of these extents.
    pub(super) fn store(&self, n: &mut Nest<'_>, out: TensorId, group: &Group, at: &[Scalar; 3], whole: bool) {
        let dtype = n.dtype(out);
        let [_, _, height, width, lanes] = n.shape(out)[..] else { unreachable!("five axes") };
        let [image, y, z] = at;
        let tile = self.back.len() as i64;
        n.for_(group.wide, |n, o| {
            let sum = |n: &Nest<'_>, p: usize, q: usize, lane: &Scalar| {
                let at = [(p as i64).into(), (q as i64).into(), self.turn.clone(), o.clone(), lane.clone()];
                n.read(self.sums, at)
            };
            let place = |r: Scalar, c: Scalar, lane: &Scalar| {
                let (r, c) = (y.clone() * tile + r, z.clone() * tile + c);
                [image.clone(), group.out.clone() + o.clone(), r, c, lane.clone()]
            };
            if whole {
                n.vector(lanes, |n, lane| {
                    self.results(n, &lane, dtype, &sum, |n, r, c, value| {
                        n.store(out, place(r.into(), c.into(), &lane), value);
                    });
                });
                return;
            }
            let whole = n.local(&[tile, tile, lanes], dtype);
            n.vector(lanes, |n, lane| {
                self.results(n, &lane, dtype, &sum, |n, r, c, value| {
                    n.store(whole, [r.into(), c.into(), lane.clone()], value);
                });
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
        });
    }
}

/// Some blocks of results of some tiles, which are computed together.
pub(super) struct Group {
    /// The first block of results.
    pub(super) out: Scalar,
    /// Blocks of results.
    pub(super) wide: i64,
}

/// Bytes between the weights that are multiplied and those that are prefetched: a page of virtual memory, the least that operating systems
/// map. Hardware prefetchers work on physical addresses and stop at its end (Intel's optimization manual, "Data Prefetching"), whatever the processor.
const PAGE: i64 = 4096;

/// Prefetches the weights that come a page after those of a step, a channel or a pair of them: of the same point, or at its end of the next one.
pub(super) fn ahead(n: &mut Nest<'_>, point: &[Scalar], g: &Group, w: TensorId, step: &Scalar) {
    let shape = n.shape(w).to_vec();
    let (points, outs, steps) = (shape[0], shape[2], shape[3]);
    let lanes: i64 = shape[4..].iter().product();
    let distance = PAGE / (lanes * n.dtype(w).bytes() as i64);
    if distance == 0 || steps < distance {
        return;
    }
    let later = step.clone() + distance;
    let jump =
        Scalar::select(later.clone().lt(Scalar::index(steps)), Scalar::index(0), Scalar::index((outs - 1) * steps));
    let block = (point[0].clone() * points + point[1].clone()) * outs + g.out.clone();
    let first = n.let_((block * steps + later + jump) * lanes);
    for o in 0..g.wide {
        n.prefetch(w, first.clone() + o * steps * lanes);
    }
}

/// A register tile of so many rows, which are tiles of images, at a point: `sums[p, q, at + row, o] = sum over channels of
/// value(row, channel) * w[p, q, out + o, channel]`.
#[expect(clippy::too_many_arguments, reason = "operands, and where in them")]
pub(super) fn products(
    n: &mut Nest<'_>,
    g: &Group,
    point: &[Scalar],
    w: TensorId,
    sums: TensorId,
    rows: i64,
    at: &Scalar,
    value: impl Fn(&Nest<'_>, Scalar, Scalar) -> Scalar,
) {
    let dtype = n.dtype(sums);
    let [_, _, _, channels, lanes] = n.shape(w)[..] else { unreachable!("five axes") };
    let [p, q] = [point[0].clone(), point[1].clone()];
    let sum = n.registers(&[rows, g.wide, lanes], dtype);
    let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, [Scalar; 3])| {
        n.unrolled(rows, |n, row| {
            n.unrolled(g.wide, |n, o| n.vector(lanes, |n, lane| body(n, [row, o, lane])));
        });
    };
    each(n, &|n, place| n.store(sum, place, Scalar::float(0.0, dtype)));
    n.for_(channels, |n, channel| {
        ahead(n, point, g, w, &channel);
        each(n, &|n, place| {
            let [row, o, lane] = place.clone();
            let value = value(n, row, channel.clone());
            let weight = n.read(w, [p.clone(), q.clone(), g.out.clone() + o, channel.clone(), lane]);
            let next = n.read(sum, place.clone()) + value * weight;
            n.store(sum, place, next);
        });
    });
    each(n, &|n, place| {
        let [row, o, lane] = place.clone();
        let to = [p.clone(), q.clone(), at.clone() + row, o, lane];
        let value = n.read(sum, place);
        n.store(sums, to, value);
    });
}
