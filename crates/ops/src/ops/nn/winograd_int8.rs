//! Winograd's convolution of bytes in integers, exactly: tiles of 4 by 4 results of windows of 3 by 3, by 36 products of 16 bits in the place of
//! 144 of bytes, or of 2 by 2 results, by 16 in the place of 36. The smaller tiles take fewer weights, and suit images that larger ones hang far over.
//!
//! The points are 0, 1, -1, for tiles of 4 by 4 also 2 and -2, and infinity. What interpolation divides by is left for the end: data and weights take
//! whole numbers, so that sums of products, transformed back, are 24 * 24 times the results, or 2 * 2 times. Transformed data is at most 68 * 255 and
//! transformed weights at most 144 * 128, which 16 bits hold. Sums wrap around at 32 bits: of these, division by the odd 9 loses none, and a shift by
//! 6 leaves 26, with which results of less than 2^25 are right.

use super::{geometry::paddings, winograd_conv::Plan, winograd_int8_loops::convolution};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, field, lowered_shapes, may_equal, op_head, opaque_axes, sample, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Layout, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&WinogradInt8Weight, &WinogradInt8];

/// Taps of a window along an axis.
pub(super) const TAPS: usize = 3;

/// The algorithm for tiles of one size.
#[derive(Debug)]
pub(super) struct Matrices {
    /// By how much a row of results is too large.
    pub(super) times: i64,
    /// `times` times the values of a row of weights at the points, divided by what the other matrices leave.
    weight: &'static [[i64; TAPS]],
    /// What a row of data is multiplied by.
    data: &'static [&'static [i64]],
    /// What products are, of a row of results.
    back: &'static [&'static [i64]],
}

/// Tiles of 4 by 4 results. Its weights are `24 / -24 * 6`, `24 / 24 * 6`, and so on.
const FOUR: Matrices = Matrices {
    times: 24,
    weight: &[[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 12]],
    data: &[
        &[4, 0, -5, 0, 1, 0],
        &[0, -4, -4, 1, 1, 0],
        &[0, 4, -4, -1, 1, 0],
        &[0, -2, -1, 2, 1, 0],
        &[0, 2, -1, -2, 1, 0],
        &[0, 4, 0, -5, 0, 1],
    ],
    back: &[&[1, 1, 1, 1, 1, 0], &[0, 1, -1, 2, -2, 0], &[0, 1, 1, 4, 4, 0], &[0, 1, -1, 8, -8, 2]],
};

/// Tiles of 2 by 2 results.
const TWO: Matrices = Matrices {
    times: 2,
    weight: &[[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]],
    data: &[&[1, 0, -1, 0], &[0, 1, 1, 0], &[0, -1, 1, 0], &[0, -1, 0, 1]],
    back: &[&[1, 1, 1, 0], &[0, 1, -1, 1]],
};

impl Matrices {
    /// Those that an attribute asks for.
    fn of(attrs: &Attrs) -> Result<&'static Matrices, OpError> {
        match attrs.int("tile_size") {
            4 => Ok(&FOUR),
            2 => Ok(&TWO),
            other => Err(OpError(format!("C0: `tile_size` is {other}, but should be 2 or 4"))),
        }
    }

    /// Results of a tile along an axis.
    pub(super) fn tile(&self) -> usize {
        self.back.len()
    }

    /// Products along an axis.
    fn points(&self) -> usize {
        self.data.len()
    }

    /// The inverse, modulo 2^32, of the odd factor of what sums are too large by.
    pub(super) fn odd_inverse(&self) -> i32 {
        let odd = (self.times * self.times) >> self.even();
        // Newton's iteration doubles the bits that are right, of which an odd number has three.
        (0..4).fold(odd as i32, |x, _| x.wrapping_mul(2_i32.wrapping_sub((odd as i32).wrapping_mul(x))))
    }

    /// The power of two that is the rest of it.
    pub(super) fn even(&self) -> i64 {
        (self.times * self.times).trailing_zeros().into()
    }

    /// A number of 32 bits that is a result too large by `times` along both axes, as that.
    fn result(&self, sum: i64) -> i64 {
        i64::from((sum as i32).wrapping_mul(self.odd_inverse()) >> self.even())
    }
}

/// Both sides of a square by the same matrix.
fn both_sides<R: AsRef<[i64]>>(matrix: &[R], at: impl Fn(usize, usize) -> i64) -> Vec<Vec<i64>> {
    let row = |i: usize| matrix[i].as_ref();
    let inner = row(0).len();
    let sum = |i: usize, j: usize| {
        let terms = (0..inner).flat_map(|k| (0..inner).map(move |l| (k, l)));
        terms.fold(0i64, |sum, (k, l)| sum.wrapping_add((row(i)[k] * row(j)[l]).wrapping_mul(at(k, l))))
    };
    (0..matrix.len()).map(|i| (0..matrix.len()).map(|j| sum(i, j)).collect()).collect()
}

/// `nn.winograd_int8_weight_transform`.
#[derive(Debug)]
struct WinogradInt8Weight;

impl Op for WinogradInt8Weight {
    op_head!(
        "nn.winograd_int8_weight_transform",
        "out[p, q, o, i] = sum over k, l of weight[o, i, k, l] * G[p, k] * G[q, l], as int16, where the rows of G are [6 0 0], [-4 -4 -4],
        [-4 4 -4], [1 2 4], [1 -2 4] and [0 0 12] for tiles of 4 by 4 results, [2 0 0], [1 1 1], [1 -1 1] and [0 0 2] for those of 2 by 2: what
        nn.winograd_conv2d_int8 takes. C0: tile_size is 2 or 4. C1: weight is int8 with the axes O, I and two of 3. (Of resat's own making.)",
        ["weight"],
        [field("tile_size", AttrKind::Int, AttrDefault::Int(4))],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let w = tensor_arg(args, 0, "weight")?;
        let taps = Dim::Known(TAPS as i64);
        let fits = w.rank() == 4 && w.dtype == DType::I8 && w.shape[2] == taps && w.shape[3] == taps;
        op_ensure!(fits, "C1: `weight` is {w}, but should be of int8 with the axes O, I and two of 3");
        let points = Dim::Known(Matrices::of(attrs)?.points() as i64);
        Ok(TensorType::of([points, points, w.shape[0], w.shape[1]], DType::I16).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let (given, filters, m) = (args[0].tensor().to_i64_vec(), shape[2] * shape[3], Matrices::of(attrs)?);
        let all: Vec<_> =
            given.chunks_exact(TAPS * TAPS).map(|w| both_sides(m.weight, |k, l| w[k * TAPS + l])).collect();
        let out = |i: usize| all[i % filters][i / filters / m.points()][i / filters % m.points()];
        Ok(Tensor::from_i64_fn(DType::I16, &shape, out).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let (bytes_read, bytes_written) = (bytes(&args[0]), bytes(out));
        Work { flops: 2.0 * (TAPS * TAPS) as f64 * bytes_written, bytes_read, bytes_written }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (w, m) = (args[0].tensor(), Matrices::of(attrs)?);
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let out = b.map(&shape, |b, i| {
            let factor = |at: &Scalar, k: usize| {
                let number = |p: usize| Scalar::int(m.weight[p][k], DType::I32);
                let last = m.points() - 1;
                (0..last)
                    .rev()
                    .fold(number(last), |rest, p| Scalar::select(at.clone().equals(p as i64), number(p), rest))
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
        let call = |tile: i64, w: &[i64]| sample([("tile_size", tile.into())], vec![t(w, DType::I8)]);
        vec![call(4, &[2, 3, 3, 3]), call(4, &[1, 2, 3, 3]), call(2, &[2, 3, 3, 3])]
    }
}

/// `nn.winograd_conv2d_int8`.
#[derive(Debug)]
struct WinogradInt8;

/// Multiplications of 16 bits in whose time a transform, data's or results', goes through a point in a lane.
const TRANSFORM: f64 = 14.0;

/// The blocks of channels and of results.
fn blocks(attrs: &Attrs) -> Result<[i64; 2], OpError> {
    let text = ["data_layout", "kernel_layout", "out_layout"].map(|name| attrs.str(name));
    let block = |s: &str| s.parse::<Layout>().ok()?.block('C').filter(|_| s.starts_with("NCHW")).map(|b| b.1);
    match (block(text[0]), block(text[2])) {
        (Some(i), Some(o)) if i % 2 == 0 && text[1] == format!("OHWI{o}o2i") => Ok([i, o]),
        _ => Err(OpError(format!(
            "C3: `data_layout`, `kernel_layout` and `out_layout` are {}, {} and {}, but should be as NCHW8c, of an even block, OHWI16o2i and NCHW16c",
            text[0], text[1], text[2]
        ))),
    }
}

/// A call's tiles.
fn plan(attrs: &Attrs) -> Result<Plan, OpError> {
    let p = paddings(attrs, 2)?;
    let padding = [p[0].0, p[1].0, p[0].1, p[1].1];
    op_ensure!(padding.iter().all(|&p| p >= 0), "C4: `padding` is {padding:?}, but should not be negative");
    let m = Matrices::of(attrs)?;
    Ok(Plan { tile: m.tile() as i64, points: m.points() as i64, taps: TAPS as i64, padding })
}

impl Op for WinogradInt8 {
    op_head!(
        "nn.winograd_conv2d_int8",
        "A convolution of bytes with a weight of windows of 3 that nn.winograd_int8_weight_transform made, by Winograd's algorithm for tiles of as
        many results, in integers: what nn.conv2d gives as int32, where results are from -2^25 to 2^25 - 1. (Others leave 26 bits of a sum that
        wraps, or 30 with tiles of 2 by 2.) C0: tile_size is 2 or 4. C1: data is int8 or uint8, weight int16, both in blocks. C2: extents are known and fit each other. C3: layouts are blocks as of
        NCHW8c for the data, OHWI16o2i for the weight (whose H and W are points) and NCHW16c for the result. C4: no padding is negative, and
        the window fits. (Of resat's own making.)",
        ["data", "weight"],
        [
            field("tile_size", AttrKind::Int, AttrDefault::Int(4)),
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
        let p = plan(attrs)?;
        let points = p.points;
        let wanted = w.known_shape().filter(|w| w[1..3] == [points, points] && w[4..] == [o, 2]);
        let fits = wanted.is_some_and(|w| {
            w[3] * 2 % i == 0 && may_equal(x.shape[1], Dim::Known(w[3] * 2 / i)) && may_equal(x.shape[4], Dim::Known(i))
        });
        op_ensure!(fits, "C2: `data` is {x}, but `weight` is {w}, for blocks of {i} and {o}");
        let [top, left, bottom, right] = p.padding;
        let Some(extents) = x.known_shape() else {
            return Err(OpError(format!("C2: `data` is {x}, but should have known extents")));
        };
        let results = [extents[2] + top + bottom, extents[3] + left + right].map(|n| n - p.taps + 1);
        op_ensure!(results.iter().all(|&n| n > 0), "C4: `data` is {x}: a window of 3 does not fit");
        let [height, width] = results.map(Dim::Known);
        Ok(TensorType::of([x.shape[0], w.shape[0], height, width, Dim::Known(o)], DType::I32).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let (x, w, p, m) = (args[0].tensor(), args[1].tensor(), plan(attrs)?, Matrices::of(attrs)?);
        let ([top, left, ..], size, points) = (p.padding, m.tile(), m.points());
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
        let [down, across] = [height, width].map(|n| n.div_ceil(size));
        for tile in 0..images * down * across {
            let (image, y, z) = (tile / across / down, tile / across % down * size, tile % across * size);
            let values: Vec<_> = (0..channels)
                .map(|c| both_sides(m.data, |i, j| at(image, c, (y + i) as i64 - top, (z + j) as i64 - left)))
                .collect();
            for (o, lane) in (0..outs).flat_map(|o| (0..lanes).map(move |lane| (o, lane))) {
                let sums = |p: usize, q: usize| {
                    let place = |c: usize| {
                        let pair = ((o * points + p) * points + q) * (channels / 2) + c / 2;
                        (pair * lanes + lane) * 2 + c % 2
                    };
                    // Weights that no transform made may have data leave 16 bits, as kernels do.
                    (0..channels).map(|c| i64::from(values[c][p][q] as i16) * ws[place(c)]).fold(0, i64::wrapping_add)
                };
                let sums: Vec<i64> = (0..points * points).map(|at| sums(at / points, at % points)).collect();
                let back = both_sides(m.back, |p, q| sums[p * points + q]);
                for (i, j) in (0..size).flat_map(|i| (0..size).map(move |j| (i, j))) {
                    if y + i < height && z + j < width {
                        let row = (image * outs + o) * height + y + i;
                        out[(row * width + z + j) * lanes + lane] = m.result(back[i][j]);
                    }
                }
            }
        }
        Ok(Tensor::from_i64_fn(DType::I32, &shape, |i| out[i]).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let m = Matrices::of(attrs).unwrap_or(&FOUR);
        let known = |t: &Type, axis: usize| {
            t.as_tensor().and_then(|t| t.shape.get(axis)?.known()).map_or(1.0, |n| n.max(1) as f64)
        };
        let tiles = |axis: usize| (known(out, axis) / m.tile() as f64).ceil();
        let tiles = known(out, 0) * tiles(2) * tiles(3);
        let (ins, outs) = (known(&args[0], 1) * known(&args[0], 4), known(out, 1) * known(out, 4));
        let points = (m.points() * m.points()) as f64;
        // The products; and both transforms with their loads and stores, each instruction as what products could have done in its time.
        let flops = tiles * points * (2.0 * ins * outs + TRANSFORM * ins + TRANSFORM * outs);
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let p = plan(attrs)?;
        Ok(convolution(Matrices::of(attrs)?, &p, x, w, &shape, b).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |tile: i64, padding: &[i64], [i, o]: [i64; 2], x: &[i64], dtype: DType, [outs, pairs]: [i64; 2]| {
            let w = t(&[outs, tile + 2, tile + 2, pairs, o, 2], DType::I16);
            let attrs = [
                ("tile_size", tile.into()),
                ("padding", padding.to_vec().into()),
                ("data_layout", format!("NCHW{i}c").as_str().into()),
                ("kernel_layout", format!("OHWI{o}o2i").as_str().into()),
                ("out_layout", format!("NCHW{o}c").as_str().into()),
            ];
            sample(attrs, vec![t(x, dtype), w])
        };
        vec![
            call(4, &[1, 1], [8, 8], &[1, 2, 8, 8, 8], DType::U8, [3, 8]),
            call(4, &[0, 1, 2, 0], [4, 16], &[2, 1, 7, 9, 4], DType::I8, [2, 2]),
            call(4, &[1], [16, 16], &[1, 1, 9, 12, 16], DType::U8, [1, 8]),
            call(2, &[1, 1], [8, 8], &[1, 2, 7, 7, 8], DType::U8, [3, 8]),
            call(2, &[0, 1, 2, 0], [4, 16], &[2, 1, 7, 6, 4], DType::I8, [2, 2]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of outputs at its extremes is that of the convolution, in numbers of 16 bits.
    #[test]
    fn rows_are_correlated_in_16_bits() {
        for (seed, m) in (0..500u64).map(|seed| (seed, if seed % 2 == 0 { &FOUR } else { &TWO })) {
            let draw = |k: u64| (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(k + 1) >> 33;
            let data = |i: usize, j: usize| if draw((i * 6 + j) as u64) % 3 == 0 { 0 } else { 255 };
            let weight = |k: usize, l: usize| if draw((90 + k * 3 + l) as u64) % 2 == 0 { -128 } else { 127 };
            let (d, w) = (both_sides(m.data, data), both_sides(m.weight, weight));
            assert!(d.iter().chain(&w).flatten().all(|v| i16::try_from(*v).is_ok()));
            let sums = both_sides(m.back, |p, q| i64::from((d[p][q] * w[p][q]) as i32));
            let size = m.tile();
            for (i, j) in (0..size).flat_map(|i| (0..size).map(move |j| (i, j))) {
                let terms = (0..TAPS * TAPS).map(|k| data(i + k / TAPS, j + k % TAPS) * weight(k / TAPS, k % TAPS));
                assert_eq!(m.result(sums[i][j]), terms.sum::<i64>());
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
        for m in [&FOUR, &TWO] {
            let data: Vec<_> = m.data.iter().map(|r| r.to_vec()).collect();
            let weight: Vec<_> = m.weight.iter().map(|r| r.to_vec()).collect();
            // Bytes of data have one sign or are smaller by half, those of weights have both.
            assert!(reach(&data, |[positive, negative]| positive.max(negative)) * 255 <= i64::from(i16::MAX));
            assert!(reach(&data, |[positive, negative]| positive + negative) * 128 <= i64::from(i16::MAX));
            assert!(reach(&weight, |[positive, negative]| positive + negative) * 128 <= i64::from(i16::MAX));
            let odd = (m.times * m.times) >> m.even();
            assert_eq!(m.odd_inverse().wrapping_mul(odd as i32), 1);
        }
    }
}
