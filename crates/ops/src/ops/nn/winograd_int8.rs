//! Winograd's convolution of bytes in integers, exactly: tiles of 4 by 4 results of windows of 3 by 3, by 36 products of 16 bits in the place of
//! 144 of bytes.
//!
//! The points are 0, 1, -1, 2, -2 and infinity. What interpolation divides by is left for the end: data and weights take whole numbers, so that
//! sums of products, transformed back, are 24 * 24 times the results. Transformed data is at most 68 * 255 and transformed weights at most
//! 144 * 128, which 16 bits hold. Sums wrap around at 32 bits: of these, division by the odd 9 loses none, and a shift by 6 leaves 26, with which
//! results of less than 2^25 are right.

use super::{
    geometry::paddings,
    winograd_blocked::{Group, Pass, ahead, bands, register_tile, tile_at},
    winograd_conv::Plan,
};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Nest, Operand, Scalar, TensorId, cut_evenly},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, field, lowered_shapes, may_equal, op_head, opaque_axes, sample, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Layout, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&WinogradInt8Weight, &WinogradInt8];

const TILE: usize = 4;
const POINTS: usize = 6;
const TAPS: usize = 3;

/// 24 times the values of a row of weights at the points, divided by what the other matrices leave: `-24 / 6`, `24 / 24`, and so on.
const WEIGHT: [[i64; TAPS]; POINTS] = [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 12]];

/// What a row of data is multiplied by.
const DATA: [[i64; POINTS]; POINTS] = [
    [4, 0, -5, 0, 1, 0],
    [0, -4, -4, 1, 1, 0],
    [0, 4, -4, -1, 1, 0],
    [0, -2, -1, 2, 1, 0],
    [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
];

/// What products are, of a row of results.
const BACK: [[i64; POINTS]; TILE] =
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 2]];

/// The inverse of 9 modulo 2^32.
const NINTH: i32 = 0x38e3_8e39;

/// What is left of 24 * 24 without its odd factor, as a power of two.
const EVEN: i64 = 6;

/// Both sides of a square by the same matrix.
fn both_sides<const N: usize, const M: usize>(
    matrix: &[[i64; N]; M],
    at: impl Fn(usize, usize) -> i64,
) -> [[i64; M]; M] {
    let mut out = [[0i64; M]; M];
    for (i, j) in (0..M).flat_map(|i| (0..M).map(move |j| (i, j))) {
        for (k, l) in (0..N).flat_map(|k| (0..N).map(move |l| (k, l))) {
            out[i][j] = out[i][j].wrapping_add((matrix[i][k] * matrix[j][l]).wrapping_mul(at(k, l)));
        }
    }
    out
}

/// A number of 32 bits that is 24 * 24 times a result, as that.
fn result(sum: i64) -> i64 {
    i64::from((sum as i32).wrapping_mul(NINTH) >> EVEN)
}

/// `nn.winograd_int8_weight_transform`.
#[derive(Debug)]
struct WinogradInt8Weight;

impl Op for WinogradInt8Weight {
    op_head!(
        "nn.winograd_int8_weight_transform",
        "out[p, q, o, i] = sum over k, l of weight[o, i, k, l] * G[p, k] * G[q, l], as int16, where the rows of G are [6 0 0], [-4 -4 -4],
        [-4 4 -4], [1 2 4], [1 -2 4] and [0 0 12]: what nn.winograd_conv2d_int8 takes. C1: weight is int8 with the axes O, I and two of 3. (Of
        resat's own making.)",
        ["weight"],
        [],
        Contract
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let w = tensor_arg(args, 0, "weight")?;
        let taps = Dim::Known(TAPS as i64);
        let fits = w.rank() == 4 && w.dtype == DType::I8 && w.shape[2] == taps && w.shape[3] == taps;
        op_ensure!(fits, "C1: `weight` is {w}, but should be of int8 with the axes O, I and two of 3");
        let points = Dim::Known(POINTS as i64);
        Ok(TensorType::of([points, points, w.shape[0], w.shape[1]], DType::I16).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let (given, filters) = (args[0].tensor().to_i64_vec(), shape[2] * shape[3]);
        let all: Vec<_> =
            given.chunks_exact(TAPS * TAPS).map(|w| both_sides(&WEIGHT, |k, l| w[k * TAPS + l])).collect();
        let out = |i: usize| all[i % filters][i / filters / POINTS][i / filters % POINTS];
        Ok(Tensor::from_i64_fn(DType::I16, &shape, out).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let (bytes_read, bytes_written) = (bytes(&args[0]), bytes(out));
        Work { flops: 2.0 * (POINTS * POINTS) as f64 * bytes_read, bytes_read, bytes_written }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let w = args[0].tensor();
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let out = b.map(&shape, |b, i| {
            let factor = |at: &Scalar, k: usize| {
                let number = |p: usize| Scalar::int(WEIGHT[p][k], DType::I32);
                (0..POINTS - 1)
                    .rev()
                    .fold(number(POINTS - 1), |rest, p| Scalar::select(at.clone().equals(p as i64), number(p), rest))
            };
            let mut sum = Scalar::int(0, DType::I32);
            for (k, l) in (0..TAPS).flat_map(|k| (0..TAPS).map(move |l| (k, l))) {
                let place = [i[2].clone(), i[3].clone(), (k as i64).into(), (l as i64).into()];
                sum = sum + b.read(w, place).cast(DType::I32) * factor(&i[0], k) * factor(&i[1], l);
            }
            sum.cast(DType::I16)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |w: &[i64]| sample([], vec![t(w, DType::I8)]);
        vec![call(&[2, 3, 3, 3]), call(&[1, 2, 3, 3])]
    }
}

/// `nn.winograd_conv2d_int8`.
#[derive(Debug)]
struct WinogradInt8;

/// The blocks of channels and of results.
fn blocks(attrs: &Attrs) -> Result<[i64; 2], OpError> {
    let text = ["data_layout", "kernel_layout", "out_layout"].map(|name| attrs.str(name));
    let block = |s: &str| s.parse::<Layout>().ok()?.block('C').filter(|_| s.starts_with("NCHW")).map(|b| b.1);
    match (block(text[0]), block(text[2])) {
        (Some(i), Some(o)) if i % 2 == 0 && text[1] == format!("HWOI{o}o2i") => Ok([i, o]),
        _ => Err(OpError(format!(
            "C3: `data_layout`, `kernel_layout` and `out_layout` are {}, {} and {}, but should be as NCHW8c, of an even block, HWOI16o2i and NCHW16c",
            text[0], text[1], text[2]
        ))),
    }
}

/// A call's tiles.
fn plan(attrs: &Attrs) -> Result<Plan, OpError> {
    let p = paddings(attrs, 2)?;
    let padding = [p[0].0, p[1].0, p[0].1, p[1].1];
    op_ensure!(padding.iter().all(|&p| p >= 0), "C4: `padding` is {padding:?}, but should not be negative");
    Ok(Plan { tile: TILE as i64, points: POINTS as i64, taps: TAPS as i64, padding })
}

impl Op for WinogradInt8 {
    op_head!(
        "nn.winograd_conv2d_int8",
        "A convolution of bytes with a weight of windows of 3 that nn.winograd_int8_weight_transform made, by Winograd's algorithm for tiles of 4 by
        4 results, in integers: what nn.conv2d gives as int32, where results are from -2^25 to 2^25 - 1. (Others leave 26 bits of a sum that wraps.)
        C1: data is int8 or uint8, weight int16, both in blocks. C2: extents are known and fit each other. C3: layouts are blocks as of
        NCHW8c for the data, HWOI16o2i for the weight (whose H and W are points) and NCHW16c for the result. C4: no padding is negative, and
        the window fits. (Of resat's own making.)",
        ["data", "weight"],
        [
            field("padding", AttrKind::Ints, AttrDefault::Ints(&[0, 0])),
            field("data_layout", AttrKind::Str, AttrDefault::Required),
            field("kernel_layout", AttrKind::Str, AttrDefault::Required),
            field("out_layout", AttrKind::Str, AttrDefault::Required)
        ],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, w) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "weight")?);
        let [i, o] = blocks(attrs)?;
        let narrow = matches!(x.dtype, DType::I8 | DType::U8) && x.rank() == 5;
        op_ensure!(narrow, "C1: `data` is {x}, but should be of bytes in blocks");
        op_ensure!(w.dtype == DType::I16 && w.rank() == 6, "C1: `weight` is {w}, but should be of int16 in blocks");
        let points = POINTS as i64;
        let wanted = w.known_shape().filter(|w| w[..2] == [points, points] && w[4..] == [o, 2]);
        let fits = wanted.is_some_and(|w| {
            w[3] * 2 % i == 0 && may_equal(x.shape[1], Dim::Known(w[3] * 2 / i)) && may_equal(x.shape[4], Dim::Known(i))
        });
        op_ensure!(fits, "C2: `data` is {x}, but `weight` is {w}, for blocks of {i} and {o}");
        let p = plan(attrs)?;
        let [top, left, bottom, right] = p.padding;
        let Some(extents) = x.known_shape() else {
            return Err(OpError(format!("C2: `data` is {x}, but should have known extents")));
        };
        let results = [extents[2] + top + bottom, extents[3] + left + right].map(|n| n - p.taps + 1);
        op_ensure!(results.iter().all(|&n| n > 0), "C4: `data` is {x}: a window of 3 does not fit");
        let [height, width] = results.map(Dim::Known);
        Ok(TensorType::of([x.shape[0], w.shape[2], height, width, Dim::Known(o)], DType::I32).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let (x, w, p) = (args[0].tensor(), args[1].tensor(), plan(attrs)?);
        let [top, left, ..] = p.padding;
        let (xs, ws) = (x.to_i64_vec(), w.to_i64_vec());
        let [_, k, rows, columns, block] = x.shape()[..] else { unreachable!("five axes") };
        let [images, outs, height, width, lanes] = shape[..] else { unreachable!("five axes") };
        let channels = k * block;
        let at = |image: usize, channel: usize, y: i64, z: i64| match (0..rows as i64).contains(&y)
            && (0..columns as i64).contains(&z)
        {
            true => {
                let row = (image * k + channel / block) * rows + y as usize;
                xs[(row * columns + z as usize) * block + channel % block]
            }
            false => 0,
        };
        let mut out = vec![0; shape.iter().product()];
        let [down, across] = [height, width].map(|n| n.div_ceil(TILE));
        for tile in 0..images * down * across {
            let (image, y, z) = (tile / across / down, tile / across % down * TILE, tile % across * TILE);
            let values: Vec<_> = (0..channels)
                .map(|c| both_sides(&DATA, |i, j| at(image, c, (y + i) as i64 - top, (z + j) as i64 - left)))
                .collect();
            for (o, lane) in (0..outs).flat_map(|o| (0..lanes).map(move |lane| (o, lane))) {
                let sums = |p: usize, q: usize| {
                    let place = |c: usize| {
                        let pair = ((p * POINTS + q) * outs + o) * (channels / 2) + c / 2;
                        (pair * lanes + lane) * 2 + c % 2
                    };
                    // Weights that no transform made may have data leave 16 bits, as kernels do.
                    (0..channels).map(|c| i64::from(values[c][p][q] as i16) * ws[place(c)]).fold(0, i64::wrapping_add)
                };
                let sums: Vec<i64> = (0..POINTS * POINTS).map(|at| sums(at / POINTS, at % POINTS)).collect();
                let back = both_sides(&BACK, |p, q| sums[p * POINTS + q]);
                for (i, j) in (0..TILE).flat_map(|i| (0..TILE).map(move |j| (i, j))) {
                    if y + i < height && z + j < width {
                        let row = (image * outs + o) * height + y + i;
                        out[(row * width + z + j) * lanes + lane] = result(back[i][j]);
                    }
                }
            }
        }
        Ok(Tensor::from_i64_fn(DType::I32, &shape, |i| out[i]).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let known = |t: &Type, axis: usize| {
            t.as_tensor().and_then(|t| t.shape.get(axis)?.known()).map_or(1.0, |n| n.max(1) as f64)
        };
        let tiles = |axis: usize| (known(out, axis) / TILE as f64).ceil();
        let tiles = known(out, 0) * tiles(2) * tiles(3);
        let (ins, outs) = (known(&args[0], 1) * known(&args[0], 4), known(out, 1) * known(out, 4));
        let points = (POINTS * POINTS) as f64;
        // The products; and both transforms with their loads and stores, each instruction as what products could have done in its time.
        let flops = tiles * points * (2.0 * ins * outs + TRANSFORM * ins + TRANSFORM * outs);
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let p = plan(attrs)?;
        Ok(convolution(&p, x, w, &shape, b).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |padding: &[i64], [i, o]: [i64; 2], x: &[i64], dtype: DType, [outs, pairs]: [i64; 2]| {
            let w = t(&[6, 6, outs, pairs, o, 2], DType::I16);
            let attrs = [
                ("padding", padding.to_vec().into()),
                ("data_layout", format!("NCHW{i}c").as_str().into()),
                ("kernel_layout", format!("HWOI{o}o2i").as_str().into()),
                ("out_layout", format!("NCHW{o}c").as_str().into()),
            ];
            sample(attrs, vec![t(x, dtype), w])
        };
        vec![
            call(&[1, 1], [8, 8], &[1, 2, 8, 8, 8], DType::U8, [3, 8]),
            call(&[0, 1, 2, 0], [4, 16], &[2, 1, 7, 9, 4], DType::I8, [2, 2]),
            call(&[1], [16, 16], &[1, 1, 9, 12, 16], DType::U8, [1, 8]),
        ]
    }
}

/// Multiplications of 16 bits in whose time a transform, data's or results', goes through a point in a lane.
const TRANSFORM: f64 = 14.0;

/// A row of data at the points: the values of [`DATA`].
fn at_points(n: &mut Nest<'_>, d: [Scalar; POINTS]) -> [Scalar; POINTS] {
    let times = |x: Scalar, power: i64| {
        let by = Scalar::int(power, x.dtype());
        Scalar::binary(BinOp::Shl, x, by)
    };
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

/// A row of results of products: the values of [`BACK`].
fn from_points(n: &mut Nest<'_>, m: [Scalar; POINTS]) -> [Scalar; TILE] {
    let times = |x: Scalar, power: i64| {
        let by = Scalar::int(power, x.dtype());
        Scalar::binary(BinOp::Shl, x, by)
    };
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

/// Bytes of weights that each thread may go through for its own part of the image. To read them from a cache of its own takes less than to have half
/// of the transformed tiles from another core.
const WEIGHTS_READ: i64 = 5 << 18;

/// Both sides of a square by a function of rows; the columns first.
fn squared<const M: usize>(
    n: &mut Nest<'_>,
    value: impl Fn(&Nest<'_>, usize, usize) -> Scalar,
    row: impl Fn(&mut Nest<'_>, [Scalar; POINTS]) -> [Scalar; M],
    mut put: impl FnMut(&mut Nest<'_>, usize, usize, Scalar),
) {
    let columns: [[Scalar; M]; POINTS] = std::array::from_fn(|j| {
        let column = std::array::from_fn(|i| {
            let value = value(n, i, j);
            n.let_(value)
        });
        row(n, column).map(|v| n.let_(v))
    });
    let of_row = |i: usize| -> [Scalar; POINTS] { std::array::from_fn(|j| columns[j][i].clone()) };
    let rows: [[Scalar; POINTS]; M] = std::array::from_fn(of_row);
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

/// The convolution as loops, as `winograd_blocked` has them: `x` is `[images, blocks, rows, columns, block]`, `w` `[points, points,
/// blocks of results, pairs of channels, block of results, 2]`, the result `shape`: `[images, blocks of results, rows, columns, block of results]`.
fn convolution(plan: &Plan, x: TensorId, w: TensorId, shape: &[i64], b: &mut Builder) -> TensorId {
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
                            squared(n, value, at_points, |n, p, q, value| {
                                let channel = k.clone() * block + lane.clone();
                                n.store(values, [(p as i64).into(), (q as i64).into(), i[0].clone(), channel], value);
                            });
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
                                        let pass = Pass { number: turn.clone() + before, of };
                                        let at = n.let_(turn * size + first);
                                        products(n, &group, point, &pass, [values, w, sums], size, [&first_tile, &at]);
                                    });
                                    before += turns;
                                }
                            });
                            n.for_(batch, |n, turn| {
                                let number = n.let_index(base.clone() + first_tile.clone() + turn.clone(), tiles);
                                let place = tile_at(n, &number, [images, down, across]);
                                results(n, out, sums, &group, &turn, &place);
                            });
                        });
                    }
                }
            });
        }
        out
    })
}

/// A register tile of so many rows at a point: `sums[p, q, at + row, o] = sum over channels of values[p, q, first + at + row, channel] * w[p, q, out + o, channel]`.
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
                [value, n.read(w, [p.clone(), q.clone(), out, pair.clone(), lane.clone(), i.into()])]
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
fn results(n: &mut Nest<'_>, out: TensorId, sums: TensorId, g: &Group, turn: &Scalar, at: &[Scalar; 3]) {
    let [_, _, height, width, lanes] = n.shape(out)[..] else { unreachable!("five axes") };
    let [image, y, z] = at;
    let tile = TILE as i64;
    n.for_(g.wide, |n, o| {
        let value = |n: &Nest<'_>, p: usize, q: usize, lane: &Scalar| {
            n.read(sums, [(p as i64).into(), (q as i64).into(), turn.clone(), o.clone(), lane.clone()])
        };
        let place = |r: Scalar, c: Scalar, lane: &Scalar| {
            let (r, c) = (y.clone() * tile + r, z.clone() * tile + c);
            [image.clone(), g.out.clone() + o.clone(), r, c, lane.clone()]
        };
        let divided = |v: Scalar| {
            let odd = v * Scalar::int(i64::from(NINTH), DType::I32);
            Scalar::binary(BinOp::Shr, odd, Scalar::int(EVEN, DType::I32))
        };
        // Tiles at the edge hang over.
        let hangs = height % tile != 0 || width % tile != 0;
        let kept = hangs.then(|| n.local(&[tile, tile, lanes], DType::I32));
        n.vector(lanes, |n, lane| {
            squared(
                n,
                |n, p, q| value(n, p, q, &lane),
                from_points,
                |n, r, c, value| {
                    let (r, c) = (Scalar::index(r as i64), Scalar::index(c as i64));
                    match kept {
                        Some(kept) => n.store(kept, [r, c, lane.clone()], value),
                        None => n.store(out, place(r, c, &lane), divided(value)),
                    }
                },
            );
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of outputs at its extremes is that of the convolution, in numbers of 16 bits.
    #[test]
    fn rows_are_correlated_in_16_bits() {
        for seed in 0..500u64 {
            let draw = |k: u64| (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(k + 1) >> 33;
            let data = |i: usize, j: usize| if draw((i * 6 + j) as u64) % 3 == 0 { 0 } else { 255 };
            let weight = |k: usize, l: usize| if draw((90 + k * 3 + l) as u64) % 2 == 0 { -128 } else { 127 };
            let (d, w) = (both_sides(&DATA, data), both_sides(&WEIGHT, weight));
            assert!(d.iter().chain(&w).flatten().all(|v| i16::try_from(*v).is_ok()));
            let sums = both_sides(&BACK, |p, q| i64::from((d[p][q] * w[p][q]) as i32));
            for (i, j) in (0..TILE).flat_map(|i| (0..TILE).map(move |j| (i, j))) {
                let terms = (0..TAPS * TAPS).map(|k| data(i + k / TAPS, j + k % TAPS) * weight(k / TAPS, k % TAPS));
                assert_eq!(result(sums[i][j]), terms.sum::<i64>());
            }
        }
    }

    /// 16 bits hold what transforms make of bytes.
    #[test]
    fn transforms_fit() {
        // The sums of what is positive and of what is negative among the products of two rows.
        let sums = |a: &[i64], b: &[i64]| -> [i64; 2] {
            let products = || a.iter().flat_map(|a| b.iter().map(move |b| a * b));
            [products().filter(|v| *v > 0).sum(), products().filter(|v| *v < 0).map(|v| -v).sum()]
        };
        let reach = |rows: &[Vec<i64>], of: fn([i64; 2]) -> i64| {
            rows.iter().flat_map(|a| rows.iter().map(move |b| of(sums(a, b)))).max().unwrap_or(0)
        };
        let (data, weight) = (DATA.map(|r| r.to_vec()), WEIGHT.map(|r| r.to_vec()));
        // Bytes of data have one sign or are smaller by half, those of weights have both.
        assert!(reach(&data, |[positive, negative]| positive.max(negative)) * 255 <= i64::from(i16::MAX));
        assert!(reach(&data, |[positive, negative]| positive + negative) * 128 <= i64::from(i16::MAX));
        assert!(reach(&weight, |[positive, negative]| positive + negative) * 128 <= i64::from(i16::MAX));
        assert_eq!(NINTH.wrapping_mul(9), 1);
    }
}
