//! Winograd's convolution of bytes as loops: transforms of tiles and results by sums and shifts, products of 16 bits between them.

use super::{
    winograd_blocked::{Group, Pass, ahead, bands, register_tile, tile_at},
    winograd_conv::Plan,
    winograd_int8::Matrices,
};
use crate::{
    loops::{BinOp, Builder, Nest, Scalar, TensorId, cut_evenly},
    tensor::DType,
};

fn times(x: Scalar, power: i64) -> Scalar {
    let by = Scalar::int(power, x.dtype());
    Scalar::binary(BinOp::Shl, x, by)
}

/// A row of data at the points: what the matrix for it gives, for tiles of 4 results.
fn six_points(n: &mut Nest<'_>, d: [Scalar; 6]) -> [Scalar; 6] {
    let [d0, d1, d2, d3, d4, d5] = d;
    let even = n.let_(d4.clone() - d2.clone());
    let odd = n.let_(times(d3.clone() - d1.clone(), 1));
    let far_even = n.let_(d4 - times(d2.clone(), 2));
    let far_odd = n.let_(d3.clone() - times(d1, 2));
    [
        times(d0 - d2, 2) + even.clone(),
        far_even.clone() + far_odd.clone(),
        far_even - far_odd,
        even.clone() + odd.clone(),
        even - odd.clone(),
        d5 - d3 - times(odd, 1),
    ]
}

/// The same for tiles of 2 results.
fn four_points(_: &mut Nest<'_>, [d0, d1, d2, d3]: [Scalar; 4]) -> [Scalar; 4] {
    [d0 - d2.clone(), d1.clone() + d2.clone(), d2 - d1.clone(), d3 - d1]
}

/// A row of results of products, for tiles of 4.
fn from_six(n: &mut Nest<'_>, m: [Scalar; 6]) -> [Scalar; 4] {
    let [m0, m1, m2, m3, m4, m5] = m;
    let near = n.let_(m1.clone() + m2.clone());
    let near_odd = n.let_(m1 - m2);
    let far = n.let_(m3.clone() + m4.clone());
    let far_odd = n.let_(m3 - m4);
    [
        m0 + near.clone() + far.clone(),
        near_odd.clone() + times(far_odd.clone(), 1),
        near + times(far, 2),
        near_odd + times(far_odd, 3) + times(m5, 1),
    ]
}

/// The same for tiles of 2.
fn from_four(n: &mut Nest<'_>, [m0, m1, m2, m3]: [Scalar; 4]) -> [Scalar; 2] {
    let (near, far) = (n.let_(m1.clone() + m2.clone()), n.let_(m1 - m2));
    [m0 + near, far + m3]
}

/// Bytes of weights that each thread may go through for its own part of the image. To read them from a cache of its own takes less than to have half
/// of the transformed tiles from another core.
const WEIGHTS_READ: i64 = 5 << 18;

/// Both sides of a square by a function of rows; the columns first.
fn squared<const N: usize, const M: usize>(
    n: &mut Nest<'_>,
    value: &dyn Fn(&Nest<'_>, usize, usize) -> Scalar,
    row: fn(&mut Nest<'_>, [Scalar; N]) -> [Scalar; M],
    put: &mut dyn FnMut(&mut Nest<'_>, usize, usize, Scalar),
) {
    let columns: [[Scalar; M]; N] = std::array::from_fn(|j| {
        let column = std::array::from_fn(|i| {
            let value = value(n, i, j);
            n.let_(value)
        });
        row(n, column).map(|v| n.let_(v))
    });
    let of_row = |i: usize| -> [Scalar; N] { std::array::from_fn(|j| columns[j][i].clone()) };
    let rows: [[Scalar; N]; M] = std::array::from_fn(of_row);
    for (i, across) in rows.into_iter().enumerate() {
        row(n, across).into_iter().enumerate().for_each(|(j, v)| put(n, i, j, v));
    }
}

/// Data padded to whole tiles. Threads begin with the rows whose tiles they transform, and which they wrote as results of the layer before: where
/// cores share no cache, what another one wrote is far.
fn padded(n: &mut Nest<'_>, plan: &Plan, x: TensorId, [height, width]: [i64; 2]) -> TensorId {
    let [images, blocks, rows, columns, block] = n.shape(x)[..] else { unreachable!("five axes") };
    let [top, left, ..] = plan.padding;
    let whole = |n: i64| plan.tiles(n) * plan.tile + plan.taps - 1;
    let [all_rows, all_columns] = [whole(height).max(top + rows), whole(width).max(left + columns)];
    if [all_rows, all_columns] == [rows, columns] {
        return x;
    }
    let out = n.scratch(&[images, blocks, all_rows, all_columns, block], n.dtype(x));
    n.parallel_each(&[images, all_rows], |n, i| {
        let (image, row) = (i[0].clone(), i[1].clone());
        n.for_(blocks, |n, k| {
            let zeros = |n: &mut Nest<'_>, from: i64, to: i64| {
                n.for_(to - from, |n, c| {
                    let at = [image.clone(), k.clone(), row.clone(), c + from];
                    n.vector(block, |n, lane| n.store(out, at.into_iter().chain([lane]), 0));
                });
            };
            let inside = row.clone().ge(Scalar::index(top)).and(row.clone().lt(Scalar::index(top + rows)));
            n.if_else(
                inside,
                |n| {
                    zeros(n, 0, left);
                    n.for_(columns, |n, c| {
                        n.vector(block, |n, lane| {
                            let from = [image.clone(), k.clone(), row.clone() - top, c.clone(), lane.clone()];
                            let value = n.read(x, from);
                            n.store(out, [image.clone(), k.clone(), row.clone(), c + left, lane], value);
                        });
                    });
                    zeros(n, left + columns, all_columns);
                },
                |n| zeros(n, 0, all_columns),
            );
        });
    });
    out
}

/// The convolution as loops, as `winograd_blocked` has them: `x` is `[images, blocks, rows, columns, block]`, `w` `[blocks of
/// results, points, points, pairs of channels, block of results, 2]`, the result `shape`: `[images, blocks of results, rows, columns, block of results]`.
pub(super) fn convolution(
    m: &Matrices,
    plan: &Plan,
    x: TensorId,
    w: TensorId,
    shape: &[i64],
    b: &mut Builder,
) -> TensorId {
    let (points, tile) = (plan.points, plan.tile);
    let [images, outs, height, width, lanes] = shape[..] else { unreachable!("five axes") };
    let (blocks, block) = (b.shape(x)[1], b.shape(x)[4]);
    let channels = blocks * block;
    let (down, across) = (plan.tiles(height), plan.tiles(width));
    let tiles = images * down * across;
    let [rows, wide, batch] = register_tile(plan, shape, DType::I32);
    let bytes = DType::I16.bytes() as i64;
    let (of_tile, of_weights) = (points * points * channels * bytes, points * points * channels * outs * lanes * bytes);
    let groups = cut_evenly(outs, wide);
    let bands = bands(tiles, batch, of_tile, of_weights, (outs + wide - 1) / wide);
    // Threads begin with parts of the image, or else with groups of blocks.
    let by_place = of_weights <= WEIGHTS_READ;
    let batch = if by_place { batch.min((tiles + 1) / 2) } else { batch };
    let computed = bands.iter().map(|band| band.2).max().unwrap_or(tiles);
    b.routine(|n| {
        let out = n.output(shape, DType::I32);
        let x = padded(n, plan, x, [height, width]);
        let values = n.scratch(&[points, points, computed, channels], DType::I16);
        for &(first_of_bands, bands, band) in &bands {
            n.for_(bands, |n, number_of_band| {
                let base = number_of_band * band + first_of_bands;
                n.parallel_each(&[band], |n, i| {
                    let number = n.let_index(base.clone() + i[0].clone(), tiles);
                    let [image, y, z] = tile_at(n, &number, [images, down, across]);
                    n.for_(blocks, |n, k| {
                        n.vector(block, |n, lane| {
                            let value = |n: &Nest<'_>, r: usize, c: usize| {
                                let (r, c) = (y.clone() * tile + r as i64, z.clone() * tile + c as i64);
                                n.read(x, [image.clone(), k.clone(), r, c, lane.clone()]).cast(DType::I16)
                            };
                            let put = &mut |n: &mut Nest<'_>, p: usize, q: usize, value| {
                                let channel = k.clone() * block + lane.clone();
                                n.store(values, [(p as i64).into(), (q as i64).into(), i[0].clone(), channel], value);
                            };
                            match plan.tile {
                                2 => squared(n, &value, four_points, put),
                                _ => squared(n, &value, six_points, put),
                            }
                        });
                    });
                });
                for &(first, turns, wide) in &groups {
                    for (start, many, batch) in cut_evenly(band, batch) {
                        let order = if by_place { [many, turns] } else { [turns, many] };
                        n.parallel_each(&order, |n, i| {
                            let [piece, turn] = if by_place { [0, 1] } else { [1, 0] }.map(|at: usize| i[at].clone());
                            let group = Group { out: turn * wide + first, wide };
                            let first_tile = piece * batch + start;
                            let sums = n.local(&[points, points, batch, wide, lanes], DType::I32);
                            n.for_each(&[points, points], |n, point| {
                                let register_tiles = cut_evenly(batch, rows);
                                let of = register_tiles.iter().map(|t| t.1).sum();
                                let mut before = 0;
                                for (first, turns, size) in register_tiles {
                                    n.for_(turns, |n, turn| {
                                        let pass =
                                            Pass { number: turn.clone() + before, of, steps: (channels / 2).into() };
                                        let at = n.let_(turn * size + first);
                                        products(n, &group, point, &pass, [values, w, sums], size, [&first_tile, &at]);
                                    });
                                    before += turns;
                                }
                            });
                            n.for_(batch, |n, turn| {
                                let number = n.let_index(base.clone() + first_tile.clone() + turn.clone(), tiles);
                                let place = tile_at(n, &number, [images, down, across]);
                                results(n, m, out, sums, &group, &turn, &place);
                            });
                        });
                    }
                }
            });
        }
        out
    })
}

/// A register tile of so many rows at a point: `sums[p, q, at + row, o] = sum over channels of values[p, q, first + at + row, channel] * w[out + o, p, q, channel]`.
fn products(
    n: &mut Nest<'_>,
    g: &Group,
    point: &[Scalar],
    pass: &Pass,
    [values, w, sums]: [TensorId; 3],
    rows: i64,
    [first, at]: [&Scalar; 2],
) {
    let [_, _, _, pairs, lanes, _] = n.shape(w)[..] else { unreachable!("six axes") };
    let [p, q] = [point[0].clone(), point[1].clone()];
    let sum = n.registers(&[rows, g.wide, lanes], DType::I32);
    let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, [Scalar; 3])| {
        n.unrolled(rows, |n, row| {
            n.unrolled(g.wide, |n, o| n.vector(lanes, |n, lane| body(n, [row, o, lane])));
        });
    };
    each(n, &|n, place| n.store(sum, place, 0));
    n.for_(pairs, |n, pair| {
        ahead(n, point, g, pass, w, &pair);
        each(n, &|n, place| {
            let [row, o, lane] = place.clone();
            let factors = [0, 1].map(|i: i64| {
                let tile = first.clone() + at.clone() + row.clone();
                let value = n.read(values, [p.clone(), q.clone(), tile, pair.clone() * 2 + i]);
                let out = g.out.clone() + o.clone();
                [value, n.read(w, [out, p.clone(), q.clone(), pair.clone(), lane.clone(), i.into()])]
            });
            let next = Scalar::dot(n.read(sum, place.clone()), factors);
            n.store(sum, place, next);
        });
    });
    each(n, &|n, place| {
        let [row, o, lane] = place.clone();
        let value = n.read(sum, place);
        n.store(sums, [p.clone(), q.clone(), at.clone() + row, o, lane], value);
    });
}

/// Transforms the products of a tile back, and stores what lies within the image.
fn results(n: &mut Nest<'_>, m: &Matrices, out: TensorId, sums: TensorId, g: &Group, turn: &Scalar, at: &[Scalar; 3]) {
    let [_, _, height, width, lanes] = n.shape(out)[..] else { unreachable!("five axes") };
    let [image, y, z] = at;
    let tile = m.tile() as i64;
    n.for_(g.wide, |n, o| {
        let value = |n: &Nest<'_>, p: usize, q: usize, lane: &Scalar| {
            n.read(sums, [(p as i64).into(), (q as i64).into(), turn.clone(), o.clone(), lane.clone()])
        };
        let place = |r: Scalar, c: Scalar, lane: &Scalar| {
            let (r, c) = (y.clone() * tile + r, z.clone() * tile + c);
            [image.clone(), g.out.clone() + o.clone(), r, c, lane.clone()]
        };
        let divided = |v: Scalar| {
            let odd = match m.odd_inverse() {
                1 => v,
                inverse => v * Scalar::int(inverse.into(), DType::I32),
            };
            Scalar::binary(BinOp::Shr, odd, Scalar::int(m.even(), DType::I32))
        };
        // Tiles at the edge hang over.
        let hangs = height % tile != 0 || width % tile != 0;
        let kept = hangs.then(|| n.local(&[tile, tile, lanes], DType::I32));
        n.vector(lanes, |n, lane| {
            let put = &mut |n: &mut Nest<'_>, r: usize, c: usize, value| {
                let (r, c) = (Scalar::index(r as i64), Scalar::index(c as i64));
                match kept {
                    Some(kept) => n.store(kept, [r, c, lane.clone()], value),
                    None => n.store(out, place(r, c, &lane), divided(value)),
                }
            };
            match tile {
                2 => squared(n, &|n, p, q| value(n, p, q, &lane), from_four, put),
                _ => squared(n, &|n, p, q| value(n, p, q, &lane), from_six, put),
            }
        });
        let Some(kept) = kept else { return };
        n.for_each(&[tile, tile], |n, at| {
            let inside = (y.clone() * tile + at[0].clone())
                .lt(Scalar::index(height))
                .and((z.clone() * tile + at[1].clone()).lt(Scalar::index(width)));
            n.if_(inside, |n| {
                n.vector(lanes, |n, lane| {
                    let value = divided(n.read(kept, [at[0].clone(), at[1].clone(), lane.clone()]));
                    n.store(out, place(at[0].clone(), at[1].clone(), &lane), value);
                });
            });
        });
    });
}
