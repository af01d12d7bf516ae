//! Winograd's convolution of data with a weight that was transformed before; TVM's, and one that keeps special values.

use super::{
    geometry::{paddings, per_axis},
    numbers::sum_products,
    place::{Pad, pad},
    winograd::{points, transform},
    winograd_any, winograd_blocked,
    winograd_strips::{self, Strips},
};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, field, lowered_shapes, opaque_axes, sample, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&WinogradConv { keeps: false }, &KEEPS];

/// `nn.winograd_conv2d`.
pub(super) const KEEPS: WinogradConv = WinogradConv { keeps: true };

/// `nn.contrib_conv2d_winograd_without_weight_transform`, or `nn.winograd_conv2d`.
#[derive(Debug)]
pub(super) struct WinogradConv {
    /// Whether infinities and NaNs come out where a direct convolution has them: it takes the direct weight's signs, too.
    keeps: bool,
}

/// Coefficients of the product of (x - p) over the points but the one of number `without`, ascending.
fn product(points: &[f64], without: Option<usize>) -> Vec<f64> {
    let others = points.iter().enumerate().filter(|(i, _)| Some(*i) != without);
    others.fold(vec![1.0], |poly, (_, p)| {
        let mut next = vec![0.0; poly.len() + 1];
        for (k, c) in poly.iter().enumerate() {
            next[k + 1] += c;
            next[k] -= c * p;
        }
        next
    })
}

/// The matrix that takes a row of data to its values at all points, the transpose of interpolation: the last point is infinity.
/// The weight's transform has divided by the products of differences, that of the first point by its magnitude alone.
fn data_matrix(tile: usize, taps: usize) -> Vec<Vec<f64>> {
    let finite = points(tile + taps - 2);
    let mut rows: Vec<Vec<f64>> = (0..finite.len())
        .map(|i| {
            let mut row = product(&finite, Some(i));
            let factor: f64 = finite[1..].iter().map(|q| finite[0] - q).product();
            if i == 0 && factor < 0.0 {
                row.iter_mut().for_each(|c| *c = -*c);
            }
            row.push(0.0);
            row
        })
        .collect();
    rows.push(product(&finite, None));
    rows
}

/// The matrix that takes products at all points to a row of results: powers of the points.
fn result_matrix(tile: usize, taps: usize) -> Vec<Vec<f64>> {
    let finite = points(tile + taps - 2);
    let mut rows: Vec<Vec<f64>> = finite.iter().map(|p| (0..tile as i32).map(|j| p.powi(j)).collect()).collect();
    rows.push((0..tile).map(|j| (j + 1 == tile) as usize as f64).collect());
    rows
}

/// A call's extents.
pub(super) struct Plan {
    /// Results of a tile along an axis.
    pub(super) tile: i64,
    /// Products along an axis.
    pub(super) points: i64,
    pub(super) taps: i64,
    /// Top, left, bottom, right.
    pub(super) padding: [i64; 4],
}

/// The blocks of channels and of results, where the data comes in such.
fn blocks(attrs: &Attrs) -> Result<Option<(i64, i64)>, OpError> {
    let (data, kernel, out) = (attrs.str("data_layout"), attrs.str("kernel_layout"), attrs.str("out_layout"));
    if data == "NCHW" && ["", "NCHW"].contains(&out) {
        return Ok(None);
    }
    let block = |s: &str| s.strip_prefix("NCHW")?.strip_suffix('c')?.parse().ok().filter(|b| *b > 0);
    match (block(data), block(out)) {
        (Some(i), Some(o)) if kernel == format!("OHWI{o}o") => Ok(Some((i, o))),
        _ => Err(OpError(format!(
            "C5: `data_layout`, `kernel_layout` and `out_layout` are {data}, {kernel} and {out}, but only NCHW, and NCHW8c, OHWI16o and \
             NCHW16c with any blocks are supported"
        ))),
    }
}

/// A shape without blocks: the axis `at` has as many times `block`, if there is a fifth axis of as many.
fn whole(shape: &[Dim], at: usize, block: Option<i64>) -> Option<Vec<Dim>> {
    let Some(block) = block else { return (shape.len() == 4).then(|| shape.to_vec()) };
    let mut plain = shape.to_vec();
    let last = plain.pop().filter(|_| shape.len() == 5)?;
    plain[at] = match plain[at] {
        Dim::Known(n) if last == Dim::Known(block) => Dim::Known(n * block),
        _ => return None,
    };
    Some(plain)
}

/// The shape of a transformed weight without blocks, which begins with the points. In blocks it begins with those of results: all points of a block lie
/// together, so that memory is read in order.
fn whole_weight(shape: &[Dim], block: Option<i64>) -> Option<Vec<Dim>> {
    let plain = whole(shape, 0, block)?;
    Some(if block.is_some() { vec![plain[1], plain[2], plain[0], plain[3]] } else { plain })
}

/// A tensor without blocks, or in blocks: `shape` is what it gets.
fn rearranged(t: &Tensor, shape: &[usize], at: usize, from: usize, to: usize) -> Tensor {
    let plain = |s: &[usize], block: usize| -> Vec<usize> {
        (0..4).map(|k| if k == at { s[k] * block } else { s[k] }).collect()
    };
    let (extents, given) = (plain(shape, to), t.shape().to_vec());
    t.pick(shape, |flat| {
        let (inner, mut outer) = (flat % to, flat / to);
        let mut index = [0; 4];
        for k in (0..4).rev() {
            index[k] = outer % shape[k];
            outer /= shape[k];
        }
        index[at] = index[at] * to + inner;
        debug_assert!(index.iter().zip(&extents).all(|(i, n)| i < n));
        let inner = index[at] % from;
        index[at] /= from;
        Some((0..4).fold(0, |sum, k| sum * given[k] + index[k]) * from + inner)
    })
}

impl Plan {
    /// Of a weight that begins with the points.
    pub(super) fn new(attrs: &Attrs, w: &[Dim]) -> Result<Plan, OpError> {
        let tile = attrs.int("tile_size");
        op_ensure!((2..=8).contains(&tile), "C3: `tile_size` is {tile}, but should be from 2 to 8");
        let points = w.first().and_then(|p| p.known()).filter(|_| w[0] == w[1]);
        let taps = points.map(|p| p - tile + 1).filter(|taps| (3..=7).contains(taps));
        let (Some(points), Some(taps)) = (points, taps) else {
            return Err(OpError(format!(
                "C2: the weight has {} by {} points, but should have as many along both axes as tiles of {tile} and windows of 3 to \
                 7 take",
                w.first().copied().unwrap_or(Dim::Any),
                w.get(1).copied().unwrap_or(Dim::Any)
            )));
        };
        let ones = |name| per_axis(attrs, name, 2).map(|v| v == [1, 1]);
        op_ensure!(
            ones("strides")? && ones("dilation")? && attrs.int("groups") == 1,
            "C4: the algorithm takes strides and dilation of 1 and one group"
        );
        if let Some(given) = attrs.opt_ints("kernel_size") {
            op_ensure!(given == [taps, taps], "C6: `kernel_size` is {given:?}, but the weight is of windows of {taps}");
        }
        let p = paddings(attrs, 2)?;
        let padding = [p[0].0, p[1].0, p[0].1, p[1].1];
        op_ensure!(padding.iter().all(|&p| p >= 0), "C7: `padding` is {padding:?}, but should not be negative");
        Ok(Plan { tile, points, taps, padding })
    }

    /// Data, whose rows and columns are these axes, padded to whole tiles of so many results.
    pub(super) fn padded(&self, x: TensorId, axes: [usize; 2], results: [i64; 2], b: &mut Builder) -> TensorId {
        let pads = [0, 1].map(|k| {
            let (axis, before) = (axes[k], self.padding[k]);
            let whole = self.tiles(results[k]) * self.tile + self.taps - 1;
            Pad { axis, before, to: whole.max(before + b.shape(x)[axis]), may_end_beyond: true }
        });
        pad(x, &pads, Scalar::int(0, b.dtype(x)), b)
    }

    /// Tiles along an axis of so many results.
    pub(super) fn tiles(&self, n: i64) -> i64 {
        (n + self.tile - 1) / self.tile
    }

    /// What the transformed weight is multiplied by to have it back, a row for each tap.
    pub(super) fn weight_back(&self) -> Vec<Vec<f64>> {
        weight_back(self.tile as usize)
    }

    /// What both transforms of a tile take by channel, of the data and of results: multiply-adds in blocks of channels, first along columns and then
    /// along rows, and each load and store as what one could have done in its time. Results are read again, for what follows, and written.
    pub(super) fn transforms(&self) -> [f64; 2] {
        let [data, results] = self.matrices().map(|m| m.iter().flatten().filter(|v| **v != 0.0).count() as f64);
        let (points, tile) = (self.points as f64, self.tile as f64);
        [
            2.0 * (data * 2.0 * points + 2.0 * points * points),
            2.0 * (results * (points + tile) + 2.0 * points * points + 4.0 * tile * tile),
        ]
    }

    /// What data is multiplied by, a row for each point, and what products are, likewise.
    pub(super) fn matrices(&self) -> [Vec<Vec<f64>>; 2] {
        let (tile, taps) = (self.tile as usize, self.taps as usize);
        [data_matrix(tile, taps), result_matrix(tile, taps)]
    }
}

/// The matrix that takes a row of transformed weights back: the second tap from the points -1 and 1. Windows are of 3.
fn weight_back(tile: usize) -> Vec<Vec<f64>> {
    let (points, there) = (points(tile + 1), transform(tile, 3));
    let mut back = vec![vec![0.0; tile + 2]; 3];
    back[0][0] = 1.0 / there[0][0];
    for (i, p) in points.iter().enumerate().filter(|(_, p)| p.abs() == 1.0) {
        back[1][i] = 0.5 * p / there[i][0];
    }
    back[2][tile + 1] = 1.0 / there[tile + 1][2];
    back
}

/// Results in blocks, those that are not finite computed directly: of the data, the transformed weight and the signs of the direct one.
fn mended(out: &Tensor, [x, w, signs]: [&Tensor; 3], attrs: &Attrs) -> Result<Tensor, OpError> {
    let p = paddings(attrs, 2)?;
    let [_, outs, height, width, lanes] = out.shape()[..] else { unreachable!("five axes") };
    let [_, blocks, rows, columns, block] = x.shape()[..] else { unreachable!("five axes") };
    let (taps, points) = (signs.shape()[2], w.shape()[1]);
    let back = weight_back(points - 2);
    let (xs, ws, signs) = (x.to_f64_vec(), w.to_f64_vec(), signs.to_f64_vec());
    let weight = |o: usize, channel: usize, lane: usize, down: usize, across: usize| -> f64 {
        let at = |p: usize, q: usize| ws[(((o * points + p) * points + q) * blocks * block + channel) * lanes + lane];
        let row = |p: usize| (0..points).map(|q| back[across][q] * at(p, q)).sum::<f64>();
        (0..points).map(|p| back[down][p] * row(p)).sum()
    };
    let direct = |flat: usize| {
        let (lane, z, y) = (flat % lanes, flat / lanes % width, flat / lanes / width % height);
        let (o, image) = (flat / lanes / width / height % outs, flat / lanes / width / height / outs);
        let mut sum = 0.0;
        for at in 0..blocks * taps * taps * block {
            let (channel, across, down) = (at % block, at / block % taps, at / block / taps % taps);
            let k = at / block / taps / taps;
            let sign = signs[(o * blocks * taps * taps * block + at) * lanes + lane];
            let size = weight(o, k * block + channel, lane, down, across).abs().max(f64::from(f32::MIN_POSITIVE));
            let (r, c) = ((y + down) as i64 - p[0].0, (z + across) as i64 - p[1].0);
            if (0..rows as i64).contains(&r) && (0..columns as i64).contains(&c) {
                let row = (image * blocks + k) * rows + r as usize;
                sum += xs[(row * columns + c as usize) * block + channel] * sign * size;
            }
        }
        sum
    };
    Ok(Tensor::from_f64_fn(out.dtype(), out.shape(), |i| {
        let given = out.get_f64(i);
        if given.is_finite() { given } else { direct(i) }
    }))
}

/// A matrix as a tensor of stages.
fn table(matrix: &[Vec<f64>], dtype: DType, b: &mut Builder) -> TensorId {
    b.routine(|r| {
        let m = r.output(&[matrix.len() as i64, matrix[0].len() as i64], dtype);
        for (i, row) in matrix.iter().enumerate() {
            for (k, v) in row.iter().enumerate() {
                r.store(m, [i as i64, k as i64], Scalar::float(*v, dtype));
            }
        }
        m
    })
}

impl WinogradConv {
    /// Whether data may come with a weight of that type: of the same floats, or short ones that are widened.
    fn takes(&self, data: DType, weight: DType) -> bool {
        let widens = self.keeps && matches!(data, DType::BF16 | DType::F16) && weight == DType::F32;
        data.is_float() && data == weight || widens
    }
}

impl Op for WinogradConv {
    fn name(&self) -> &'static str {
        if self.keeps { "nn.winograd_conv2d" } else { "nn.contrib_conv2d_winograd_without_weight_transform" }
    }
    fn doc(&self) -> &'static str {
        if self.keeps {
            return "As nn.contrib_conv2d_winograd_without_weight_transform, but results that this leaves infinite or NaN are computed again as
                nn.conv2d does, so that both have them in the same places. Data of bfloat16 or float16 may come with a weight of float32: it is
                widened, sums are of float32, and results are rounded to the data's type unless out_dtype says otherwise. C8: data comes in blocks,
                windows are of 3; `signs` are the signs, as int8, of what `weight` was made of, which is finite, with axes O, I, H, W, i, o of the
                blocks of data and result. (Of resat's own making.)";
        }
        "A convolution by Winograd's algorithm, for tiles of tile_size by tile_size results: out = A' ((weight * (B' d B)) summed
            over channels) A for each tile d of the padded data, where weight is what nn.contrib_conv2d_winograd_weight_transform
            makes.
            C1: data has four axes, weight too, both of the same floats, with the same channels. C2: the weight's points are those of
            a window of 3 to 7. C3: tile_size is from 2 to 8. C4: strides, dilation and groups are 1. C5: layouts are
            NCHW; or blocks as of NCHW8c for the data, OHWI16o for the weight (whose H and W are points) and NCHW16c for the result. C6:
            kernel_size and channels, where given, are the weight's. C7: no padding is negative, and the window fits."
    }
    fn inputs(&self) -> &'static [&'static str] {
        if self.keeps { &["data", "weight", "signs"] } else { &["data", "weight"] }
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            field("tile_size", AttrKind::Int, AttrDefault::Required),
            field("strides", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
            field("padding", AttrKind::Ints, AttrDefault::Ints(&[0, 0])),
            field("dilation", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
            field("groups", AttrKind::Int, AttrDefault::Int(1)),
            field("channels", AttrKind::Int, AttrDefault::None),
            field("kernel_size", AttrKind::Ints, AttrDefault::None),
            field("data_layout", AttrKind::Str, AttrDefault::Str("NCHW")),
            field("kernel_layout", AttrKind::Str, AttrDefault::Str("OIHW")),
            field("out_layout", AttrKind::Str, AttrDefault::Str("")),
            field("out_dtype", AttrKind::DType, AttrDefault::None),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, w) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "weight")?);
        let of = blocks(attrs)?;
        let plain = whole(&x.shape, 1, of.map(|b| b.0)).zip(whole_weight(&w.shape, of.map(|b| b.1)));
        let plain = plain.filter(|(x, w)| crate::ops::util::may_equal(x[1], w[3]));
        let (Some((xs, ws)), true) = (plain, self.takes(x.dtype, w.dtype)) else {
            return Err(OpError(format!(
                "C1: `data` is {x} and `weight` {w}, but both should be of the same floats, with four axes (five in blocks) and the same \
                 channels"
            )));
        };
        let p = Plan::new(attrs, &ws)?;
        if let Some(given) = attrs.opt_int("channels") {
            op_ensure!(
                crate::ops::util::may_equal(Dim::Known(given), ws[2]),
                "C6: `channels` is {given}, but `weight` is {w}"
            );
        }
        let results = |axis: usize, before: i64, after: i64| -> Result<Dim, OpError> {
            match xs[axis].known() {
                Some(n) => {
                    let n = n + before + after - p.taps + 1;
                    op_ensure!(n > 0, "C7: `data` is {x}: a window of {} does not fit", p.taps);
                    Ok(Dim::Known(n))
                }
                None => Ok(Dim::Any),
            }
        };
        if self.keeps {
            let signs = tensor_arg(args, 2, "signs")?;
            let wanted = of.map(|(i, o)| [w.shape[0], x.shape[1], 3.into(), 3.into(), i.into(), o.into()]);
            let fits = wanted.is_some_and(|wanted| {
                signs.rank() == 6 && signs.shape.iter().zip(&wanted).all(|(&a, &b)| crate::ops::util::may_equal(a, b))
            });
            op_ensure!(
                fits && p.taps == 3 && signs.dtype == DType::I8,
                "C8: `data` is {x}, `weight` {w} and `signs` {signs}, but `signs` should be those of the weight as it was, as int8, all in \
                 blocks, and windows of 3"
            );
        }
        let [top, left, bottom, right] = p.padding;
        let mut shape = vec![xs[0], ws[2], results(2, top, bottom)?, results(3, left, right)?];
        if let Some((_, o)) = of {
            shape[1] = w.shape[0];
            shape.push(Dim::Known(o));
        }
        Ok(TensorType::of(shape, attrs.opt_dtype("out_dtype").unwrap_or(x.dtype)).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let (x, w) = (args[0].tensor(), args[1].tensor());
        if let Some((i, o)) = blocks(attrs)? {
            let plain = |t: &Tensor, at: usize, block: i64| {
                let shape: Vec<usize> =
                    (0..4).map(|k| t.shape()[k] * if k == at { block as usize } else { 1 }).collect();
                Value::from(rearranged(t, &shape, at, block as usize, 1))
            };
            let given = [("data_layout", "NCHW"), ("kernel_layout", "OIHW"), ("out_layout", "NCHW")];
            let attrs = given.iter().fold(attrs.clone(), |a, (name, layout)| a.with(name, *layout));
            let attrs = attrs.with("out_dtype", attrs.opt_dtype("out_dtype").unwrap_or(x.dtype()));
            let by_tiles = WinogradConv { keeps: false };
            let widened = match x.dtype() == w.dtype() {
                true => x.clone(),
                false => Tensor::from_f64_fn(w.dtype(), x.shape(), |i| x.get_f64(i)),
            };
            let weight = plain(w, 0, o);
            let [outs, points, _, ins] = weight.tensor().shape()[..] else { unreachable!("four axes") };
            let by_points = weight.tensor().pick(&[points, points, outs, ins], |flat| {
                let (at, o, point) = (flat % ins, flat / ins % outs, flat / ins / outs);
                Some((o * points * points + point) * ins + at)
            });
            let out = by_tiles.eval(&attrs, &[plain(&widened, 1, i), by_points.into()])?;
            let out = rearranged(out.tensor(), &shape, 1, 1, o as usize);
            return Ok(if self.keeps { mended(&out, [x, w, args[2].tensor()], &attrs)? } else { out }.into());
        }
        let extents: Vec<Dim> = w.shape().iter().map(|&n| Dim::Known(n as i64)).collect();
        let p = Plan::new(attrs, &extents)?;
        let [data, result] = p.matrices();
        let (tile, n, [top, left, ..]) = (p.tile as usize, p.points as usize, p.padding);
        let (channels, outs) = (x.shape()[1], shape[1]);
        let (xs, ws, of) = (x.to_f64_vec(), w.to_f64_vec(), [x.shape()[2], x.shape()[3]]);
        let at = |image: usize, c: usize, y: i64, z: i64| {
            let inside = (0..of[0] as i64).contains(&y) && (0..of[1] as i64).contains(&z);
            if inside { xs[((image * channels + c) * of[0] + y as usize) * of[1] + z as usize] } else { 0.0 }
        };
        // rows * m * columns, both sides by the same matrix.
        let both =
            |matrix: &[Vec<f64>], m: &[f64], inner: usize, from: fn(&[Vec<f64>], usize, usize) -> f64, to: usize| {
                let mut out = vec![0.0; to * to];
                for (flat, slot) in out.iter_mut().enumerate() {
                    let (a, b) = (flat / to, flat % to);
                    for i in 0..inner {
                        for j in 0..inner {
                            *slot += from(matrix, a, i) * from(matrix, b, j) * m[i * inner + j];
                        }
                    }
                }
                out
            };
        let mut out = vec![0.0; shape.iter().product()];
        for image in 0..shape[0] {
            for ty in 0..p.tiles(shape[2] as i64) {
                for tx in 0..p.tiles(shape[3] as i64) {
                    let mut sums = vec![0.0; outs * n * n];
                    for c in 0..channels {
                        let window: Vec<f64> = (0..n * n)
                            .map(|k| {
                                let (i, j) = ((k / n) as i64, (k % n) as i64);
                                at(image, c, ty * p.tile + i - top, tx * p.tile + j - left)
                            })
                            .collect();
                        let v = both(&data, &window, n, |m, a, i| m[a][i], n);
                        for o in 0..outs {
                            for (k, v) in v.iter().enumerate() {
                                sums[o * n * n + k] += v * ws[(k * outs + o) * channels + c];
                            }
                        }
                    }
                    for o in 0..outs {
                        let y = both(&result, &sums[o * n * n..][..n * n], n, |m, a, i| m[i][a], tile);
                        for (k, v) in y.iter().enumerate() {
                            let (row, column) = (ty as usize * tile + k / tile, tx as usize * tile + k % tile);
                            if row < shape[2] && column < shape[3] {
                                out[((image * outs + o) * shape[2] + row) * shape[3] + column] = *v;
                            }
                        }
                    }
                }
            }
        }
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype());
        Ok(Tensor::from_f64_fn(dtype, &shape, |i| out[i]).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let shape = |i: usize| args[i].as_tensor().map(|t| &t.shape[..]).unwrap_or_default();
        let weight = whole_weight(shape(1), blocks(attrs).ok().flatten().map(|b| b.1)).unwrap_or_default();
        let flops = Plan::new(attrs, &weight).map_or(0.0, |p| {
            let known = |d: Option<&Dim>| d.and_then(|d| d.known()).unwrap_or(1) as f64;
            let (ins, outs) = (known(weight.get(3)), known(weight.get(2)));
            let points = (p.points * p.points) as f64;
            let of_products = 2.0 * points * ins * outs;
            if blocks(attrs).ok().flatten().is_none() {
                // Both transforms as written.
                let tile = (p.tile * p.tile) as f64;
                let tiles = elements(out) / outs.max(1.0) / tile;
                return tiles * (of_products + 4.0 * points * (points * ins + tile * outs));
            }
            // Tiles at the edge are whole ones.
            let along = |axis: usize| {
                let n = out.as_tensor().and_then(|t| t.shape.get(axis)?.known());
                n.map_or(1.0 / p.tile as f64, |n| p.tiles(n) as f64)
            };
            let tiles = known(out.as_tensor().and_then(|t| t.shape.first())) * along(2) * along(3);
            let [data, results] = p.transforms();
            tiles * (of_products + data * ins + results * outs)
        });
        // Signs are read where results are not finite, which they are.
        Work { flops, bytes_read: args[..2].iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let extents: Vec<Dim> = b.shape(w).iter().map(|&n| Dim::Known(n)).collect();
        let (of, dtype, given) = (blocks(attrs)?, b.dtype(w), b.dtype(x));
        let weight =
            whole_weight(&extents, of.map(|b| b.1)).ok_or_else(|| OpError("C1: `weight` is not in blocks".into()))?;
        let p = Plan::new(attrs, &weight)?;
        let wanted = attrs.opt_dtype("out_dtype").unwrap_or(given);
        let cast = |out: TensorId, b: &mut Builder| match wanted == dtype {
            true => out,
            false => b.map(&shape, |b, i| b.read(out, i.iter().cloned()).cast(wanted)),
        };
        let [rows, columns] = [p.tiles(shape[2]), p.tiles(shape[3])];
        let channels = weight[3].known().zip(weight[2].known()).map(|(i, o)| [i, o]);
        if let (Some(_), Some(channels)) = (of, channels) {
            let signs = self.keeps.then(|| args[2].tensor());
            let out = match b.is_for_all_sizes() {
                true => {
                    let by_strips = winograd_strips::lower_any(&p, [x, w], signs, &shape, b);
                    Some(by_strips.unwrap_or_else(|| winograd_any::lower(&p, [x, w], signs, &shape, b)))
                }
                false => Strips::new(&p, channels, &shape, dtype)
                    .map(|strips| winograd_strips::lower(&p, [x, w], signs, &shape, &strips, b)),
            };
            if let Some(out) = out {
                return Ok(cast(out, b).into());
            }
        }
        // Each element is in several tiles: it is widened on the way to whole ones.
        let x = match given == dtype {
            true => x,
            false => {
                let extents = b.shape(x).to_vec();
                b.map(&extents, |b, i| b.read(x, i.iter().cloned()).cast(dtype))
            }
        };
        let x = p.padded(x, [2, 3], [shape[2], shape[3]], b);
        if of.is_some() {
            let signs = self.keeps.then(|| args[2].tensor());
            let out = winograd_blocked::lower(&p, None, [x, w], signs, &shape, b);
            return Ok(cast(out, b).into());
        }
        let [data, result] = p.matrices().map(|m| table(&m, dtype, b));
        let (images, channels, outs, points) = (shape[0], b.shape(x)[1], shape[1], p.points);
        let values =
            b.reduce(&[points, points, images, rows, columns, channels], &[points, points], Combine::Sum, |b, i, r| {
                let at = |tile: &Scalar, k: &Scalar| tile.clone() * p.tile + k.clone();
                let factor = |point: &Scalar, k: &Scalar| b.read(data, [point.clone(), k.clone()]);
                let x = b.read(x, [i[2].clone(), i[5].clone(), at(&i[3], &r[0]), at(&i[4], &r[1])]);
                factor(&i[0], &r[0]) * factor(&i[1], &r[1]) * x
            });
        let sums = sum_products(b, &[points, points, images, rows, columns, outs], &[channels], dtype, |b, i, r| {
            let place = i[..5].iter().cloned().chain([r[0].clone()]);
            (b.read(values, place), b.read(w, [i[0].clone(), i[1].clone(), i[5].clone(), r[0].clone()]))
        });
        let out = b.reduce(&shape, &[points, points], Combine::Sum, |b, i, r| {
            let tile = |at: &Scalar| at.clone().floor_div(p.tile);
            let factor = |at: &Scalar, point: &Scalar| b.read(result, [point.clone(), at.clone().floor_mod(p.tile)]);
            let sum = [r[0].clone(), r[1].clone(), i[0].clone(), tile(&i[2]), tile(&i[3]), i[1].clone()];
            factor(&i[2], &r[0]) * factor(&i[3], &r[1]) * b.read(sums, sum)
        });
        Ok(cast(out, b).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |tile: i64, padding: &[i64], x: &[i64], w: &[i64]| {
            let (x, w) = (t(x, DType::F32), t(w, DType::F32));
            sample([("tile_size", tile.into()), ("padding", padding.to_vec().into())], vec![x, w])
        };
        let in_blocks = |tile: i64, padding: &[i64], [i, o]: [i64; 2], x: &[i64], w: &[i64]| {
            let (x, w) = (t(x, DType::F32), t(w, DType::F32));
            let layout = |s: String| AttrValue::from(s.as_str());
            let attrs = [
                ("tile_size", tile.into()),
                ("padding", padding.to_vec().into()),
                ("data_layout", layout(format!("NCHW{i}c"))),
                ("kernel_layout", layout(format!("OHWI{o}o"))),
                ("out_layout", layout(format!("NCHW{o}c"))),
            ];
            let mut args = vec![x, w];
            if self.keeps {
                let [x, w] = [0, 1].map(|k| args[k].as_tensor().expect("just made"));
                let signs = [w.shape[0], x.shape[1], 3.into(), 3.into(), i.into(), o.into()];
                args.push(TensorType::of(signs, DType::I8).into());
            }
            sample(attrs, args)
        };
        let blocked = vec![
            in_blocks(4, &[1, 1], [8, 8], &[1, 2, 8, 8, 8], &[3, 6, 6, 16, 8]),
            in_blocks(4, &[0, 1, 2, 0], [3, 16], &[2, 1, 7, 9, 3], &[2, 6, 6, 3, 16]),
            in_blocks(2, &[1], [16, 8], &[1, 1, 9, 12, 16], &[1, 4, 4, 16, 8]),
        ];
        if self.keeps {
            let mut narrow = blocked.clone();
            narrow.iter_mut().zip([DType::BF16, DType::F16, DType::BF16]).for_each(|(s, dtype)| {
                let x = s.args[0].as_tensor().expect("just made");
                s.args[0] = TensorType::of(x.shape.iter().copied(), dtype).into();
            });
            return [blocked, narrow].concat();
        }
        let plain = vec![
            call(2, &[1, 1], &[1, 3, 5, 6], &[4, 4, 2, 3]),
            call(4, &[0, 1, 2, 0], &[2, 2, 7, 9], &[6, 6, 3, 2]),
            call(4, &[1], &[1, 4, 8, 8], &[6, 6, 4, 4]),
            call(2, &[2, 2], &[1, 2, 6, 5], &[6, 6, 2, 2]),
        ];
        [plain, blocked].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_come_back() {
        for tile in 2..=8 {
            let (there, back) = (transform(tile, 3), weight_back(tile));
            for (i, row) in back.iter().enumerate() {
                for k in 0..3 {
                    let got: f64 = row.iter().zip(&there).map(|(b, t)| b * t[k]).sum();
                    assert!((got - f64::from(u8::from(i == k))).abs() < 1e-12, "{tile}: {i}, {k}: {got}");
                }
            }
        }
    }

    /// Results of one row: A' ((G g) * (B' d)) is the correlation of d with g.
    #[test]
    fn rows_are_correlated() {
        for (tile, taps) in [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5), (2, 7)] {
            let n = tile + taps - 1;
            let (data, result, weight) = (data_matrix(tile, taps), result_matrix(tile, taps), transform(tile, taps));
            let d: Vec<f64> = (0..n).map(|i| (i * i) as f64 - 3.0).collect();
            let g: Vec<f64> = (0..taps).map(|i| 2.0 - i as f64).collect();
            let dot = |row: &[f64], v: &[f64]| row.iter().zip(v).map(|(a, b)| a * b).sum::<f64>();
            let products: Vec<f64> = (0..n).map(|i| dot(&weight[i], &g) * dot(&data[i], &d)).collect();
            for j in 0..tile {
                let got: f64 = (0..n).map(|i| result[i][j] * products[i]).sum();
                assert!((got - dot(&d[j..], &g)).abs() < 1e-9, "{tile}, {taps}: {got}");
            }
        }
    }
}
