//! Pools over windows: a table row each.

use super::{
    geometry::{Window, paddings, per_axis},
    place::{Pad, pad},
};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, tensor_arg},
    },
    tensor::{DType, Layout, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Pool { name: "nn.max_pool1d", spatial: "W", average: false, attrs: MAX1D },
    &MAX_POOL2D,
    &Pool { name: "nn.max_pool3d", spatial: "DHW", average: false, attrs: MAX3D },
    &Pool { name: "nn.avg_pool1d", spatial: "W", average: true, attrs: AVG1D },
    &AVG_POOL2D,
    &Pool { name: "nn.avg_pool3d", spatial: "DHW", average: true, attrs: AVG3D },
];

/// The attributes of a pool whose defaults are these.
macro_rules! pool_attrs {
    ($ones:expr, $zeros:expr, $layout:expr $(, $more:expr)?) => {
        &[
            AttrField::new("pool_size", AttrKind::Ints, AttrDefault::Required),
            AttrField::new("strides", AttrKind::Ints, AttrDefault::Ints($ones)),
            AttrField::new("dilation", AttrKind::Ints, AttrDefault::Ints($ones)),
            AttrField::new("padding", AttrKind::Ints, AttrDefault::Ints($zeros)),
            AttrField::new("layout", AttrKind::Str, AttrDefault::Str($layout)),
            AttrField::new("out_layout", AttrKind::Str, AttrDefault::Str("")),
            AttrField::new("ceil_mode", AttrKind::Bool, AttrDefault::Bool(false)),
            $($more)?
        ]
    };
}
const COUNT: AttrField = AttrField::new("count_include_pad", AttrKind::Bool, AttrDefault::Bool(false));
const MAX1D: &[AttrField] = pool_attrs!(&[1], &[0], "NCW");
const MAX2D: &[AttrField] = pool_attrs!(&[1, 1], &[0, 0], "NCHW");
const MAX3D: &[AttrField] = pool_attrs!(&[1, 1, 1], &[0, 0, 0], "NCDHW");
const AVG1D: &[AttrField] = pool_attrs!(&[1], &[0], "NCW", COUNT);
const AVG2D: &[AttrField] = pool_attrs!(&[1, 1], &[0, 0], "NCHW", COUNT);
const AVG3D: &[AttrField] = pool_attrs!(&[1, 1, 1], &[0, 0, 0], "NCDHW", COUNT);

/// `nn.max_pool2d`.
pub(in crate::ops) const MAX_POOL2D: Pool = Pool { name: "nn.max_pool2d", spatial: "HW", average: false, attrs: MAX2D };

/// `nn.avg_pool2d`.
pub(in crate::ops) const AVG_POOL2D: Pool = Pool { name: "nn.avg_pool2d", spatial: "HW", average: true, attrs: AVG2D };

/// A pool.
#[derive(Debug)]
pub(in crate::ops) struct Pool {
    name: &'static str,
    /// The spatial axes' letters, outermost first.
    spatial: &'static str,
    /// Whether it averages instead of taking the greatest.
    average: bool,
    attrs: &'static [AttrField],
}

/// The axes of a layout that are spatial: unsplit, one per letter.
pub(in crate::ops) fn spatial_axes(attrs: &Attrs, spatial: &str, rank: Option<usize>) -> Result<Vec<usize>, OpError> {
    let (text, out) = (attrs.str("layout"), attrs.str("out_layout"));
    op_ensure!(
        out.is_empty() || out == text,
        "C2: `out_layout` is \"{out}\", but pools keep their `layout` \"{text}\""
    );
    let layout: Layout = text.parse().map_err(|e| OpError(format!("C1: `layout`: {e}")))?;
    op_ensure!(
        rank.is_none_or(|r| r == layout.rank()),
        "C1: `data` has {} axes, but `layout` {layout} has {}",
        rank.unwrap_or(0),
        layout.rank()
    );
    spatial
        .chars()
        .map(|s| match (layout.position(s), layout.block(s)) {
            (Some(k), None) => Ok(k),
            _ => Err(OpError(format!("C1: `layout` is {layout}, but should have the axis {s}, not split"))),
        })
        .collect()
}

/// A pool's attributes, read and checked: each pooled axis and its window.
#[derive(Clone, Debug)]
pub(in crate::ops) struct PoolAttrs {
    pub(in crate::ops) windows: Vec<(usize, Window)>,
    /// Extra padding after each axis, so that the last, incomplete window counts.
    pub(in crate::ops) ceil: bool,
    pub(in crate::ops) count_pad: bool,
}

impl PoolAttrs {
    pub(in crate::ops) fn new(attrs: &Attrs, spatial: &str, rank: Option<usize>) -> Result<PoolAttrs, OpError> {
        let (axes, n) = (spatial_axes(attrs, spatial, rank)?, spatial.len());
        let (sizes, strides) = (per_axis(attrs, "pool_size", n)?, per_axis(attrs, "strides", n)?);
        let (dilation, padding) = (per_axis(attrs, "dilation", n)?, paddings(attrs, n)?);
        op_ensure!(
            padding.iter().all(|p| p.0 >= 0 && p.1 >= 0),
            "C3: `padding` is {padding:?}, but should not be negative"
        );
        let windows = axes.into_iter().enumerate().map(|(k, axis)| {
            let (before, after) = padding[k];
            (axis, Window { kernel: sizes[k], stride: strides[k], dilation: dilation[k], before, after })
        });
        let count_pad = attrs.get("count_include_pad").and_then(AttrValue::as_int) == Some(1);
        Ok(PoolAttrs { windows: windows.collect(), ceil: attrs.bool("ceil_mode"), count_pad })
    }

    /// Number of outputs of a window over an extent.
    pub(in crate::ops) fn outputs(&self, w: &Window, extent: i64) -> i64 {
        let extra = if self.ceil { w.stride - 1 } else { 0 };
        w.outputs(extent + extra)
    }

    /// Whether the last window reaches beyond the end of the data at some extents.
    fn may_end_beyond(&self, w: &Window) -> bool {
        w.after > 0 || self.ceil && w.stride > 1
    }

    /// The type relation: the output's extents.
    pub(in crate::ops) fn infer_shape(&self, x: &TensorType) -> Result<Vec<Dim>, OpError> {
        let mut shape = x.shape.to_vec();
        for (axis, w) in &self.windows {
            if let Dim::Known(n) = shape[*axis] {
                let outputs = self.outputs(w, n);
                op_ensure!(outputs > 0, "C4: `data` is {x}: a window of {} does not fit axis {axis}", w.kernel);
                shape[*axis] = Dim::Known(outputs);
            }
        }
        Ok(shape)
    }

    /// The output's extents of a value.
    fn shape(&self, x: &[usize]) -> Vec<usize> {
        let mut shape = x.to_vec();
        self.windows.iter().for_each(|(a, w)| shape[*a] = self.outputs(w, x[*a] as i64) as usize);
        shape
    }

    /// Which positions of an input axis the window at `y` covers, and how many of its taps an average counts.
    fn covers(&self, w: &Window, extent: i64, y: i64) -> (Vec<usize>, i64) {
        let taps = |from: i64, to: i64| {
            (0..w.kernel).map(|k| y * w.stride - w.before + k * w.dilation).filter(move |p| (from..to).contains(p))
        };
        let inside: Vec<usize> = taps(0, extent).map(|p| p as usize).collect();
        // Padding counts where asked for, but not what only `ceil_mode` adds after it.
        let counted = if self.count_pad { taps(i64::MIN, extent + w.after).count() } else { inside.len() };
        (inside, counted as i64)
    }
}

/// Visits every output element: gives `element` the input offsets that its window covers, and how many taps count.
fn windows_of(
    axes: &[(usize, Vec<(Vec<usize>, i64)>)],
    x: &[usize],
    out: &[usize],
    mut element: impl FnMut(usize, &[usize], i64),
) {
    let strides = &row_major_strides(x);
    let mut index = vec![0; out.len()];
    let mut offsets = Vec::new();
    for flat in 0..out.iter().product() {
        let mut rest: usize = flat;
        for k in (0..out.len()).rev() {
            (index[k], rest) = (rest % out[k], rest / out[k]);
        }
        let pooled = |k: usize| axes.iter().any(|(a, _)| *a == k);
        offsets.clear();
        offsets.push((0..out.len()).filter(|&k| !pooled(k)).map(|k| index[k] * strides[k]).sum());
        let mut count = 1;
        for (axis, covered) in axes {
            let (positions, counted) = &covered[index[*axis]];
            count *= counted;
            offsets = offsets.iter().flat_map(|o| positions.iter().map(move |p| o + p * strides[*axis])).collect();
        }
        element(flat, &offsets, count);
    }
}

/// The reference kernel: the greatest or the mean of what each window of so many taps covers. Padding, which fewer positions
/// than taps tell, counts as the least finite value in a maximum and as 0 in a mean.
pub(in crate::ops) fn pool_windows(
    x: &Tensor,
    out: &[usize],
    axes: &[(usize, Vec<(Vec<usize>, i64)>)],
    taps: usize,
    average: bool,
) -> Tensor {
    let dtype = x.dtype();
    let mut t = Tensor::zeros(dtype, out);
    match (dtype.int_range(), average) {
        (None, false) => windows_of(axes, x.shape(), out, |i, at, _| {
            // NaN are left out, as in the lowered form.
            let greatest = at.iter().map(|&o| x.get_f64(o)).fold(f64::NEG_INFINITY, |m, v| if v > m { v } else { m });
            t.set_f64(i, if at.len() < taps { greatest.max(least_finite(dtype)) } else { greatest });
        }),
        (None, true) => windows_of(axes, x.shape(), out, |i, at, count| {
            t.set_f64(i, at.iter().map(|&o| x.get_f64(o)).sum::<f64>() / count.max(1) as f64);
        }),
        (Some((least, _)), false) => windows_of(axes, x.shape(), out, |i, at, _| {
            t.set_i64(i, at.iter().map(|&o| x.get_i64(o)).fold(least as i64, i64::max));
        }),
        (Some(_), true) => windows_of(axes, x.shape(), out, |i, at, count| {
            // TVM sums in the data's own type, wrapping, and divides rounding towards zero.
            t.set_i64(i, at.iter().fold(0i64, |s, &o| s.wrapping_add(x.get_i64(o))));
            t.set_i64(i, t.get_i64(i) / count.max(1));
        }),
    }
    t
}

/// The least finite value of a float type.
fn least_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::MIN.to_f64(),
        DType::BF16 => half::bf16::MIN.to_f64(),
        DType::F32 => f32::MIN as f64,
        _ => f64::MIN,
    }
}

/// What padding is to a maximum: the least finite value, as in TVM.
fn padding(dtype: DType) -> Scalar {
    match dtype.int_range() {
        None => Scalar::float(least_finite(dtype), dtype),
        Some(_) => identity(dtype),
    }
}

/// What changes no maximum.
pub(in crate::ops) fn identity(dtype: DType) -> Scalar {
    match dtype.int_range() {
        None => Scalar::float(f64::NEG_INFINITY, dtype),
        Some((least, _)) => Scalar::int(least as i64, dtype),
    }
}

/// Divides a sum by a count that is at least 1.
pub(in crate::ops) fn mean(sum: Scalar, count: Scalar) -> Scalar {
    let dtype = sum.dtype();
    match dtype.is_float() {
        true => sum / count.cast(dtype),
        // The count may not fit the data's type.
        false => (sum.cast(DType::I64) / count).cast(dtype),
    }
}

impl Op for Pool {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        match self.average {
            true => {
                "The mean of each window over the spatial axes; padding counts where count_include_pad is set. Integers are
                summed in their own type.
                C1: layout has the rank of data and the spatial axes, not split. C2: out_layout, where given, is layout.
                C3: no padding is negative. C4: the window fits the padded data."
            }
            false => {
                "The greatest of each window over the spatial axes; padding never is.
                C1: layout has the rank of data and the spatial axes, not split. C2: out_layout, where given, is layout.
                C3: no padding is negative. C4: the window fits the padded data."
            }
        }
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let shape = PoolAttrs::new(attrs, self.spatial, Some(x.rank()))?.infer_shape(x)?;
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let p = PoolAttrs::new(attrs, self.spatial, None)?;
        let out = p.shape(x.shape());
        let axes: Vec<_> = p
            .windows
            .iter()
            .map(|(a, w)| (*a, (0..out[*a] as i64).map(|y| p.covers(w, x.shape()[*a] as i64, y)).collect()))
            .collect();
        let taps = p.windows.iter().map(|(_, w)| w.kernel as usize).product();
        Ok(pool_windows(x, &out, &axes, taps, self.average).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(p) = PoolAttrs::new(attrs, self.spatial, None) else { return AxisMap::opaque([rank]) };
        let role = |axis| match p.windows.iter().find(|(a, _)| *a == axis) {
            Some((_, w)) if !w.is_point() => AxisRole::Windows(axis),
            _ => AxisRole::Maps(axis),
        };
        AxisMap(vec![(0..rank).map(role).collect()])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let taps: f64 = attrs.ints("pool_size").iter().map(|&n| n as f64).product();
        Work { flops: elements(out) * taps, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        Ok(lower_pool(&PoolAttrs::new(attrs, self.spatial, None)?, x, self.average, b).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let axes = self.spatial.len();
        let (plain, last) = (format!("NC{}", self.spatial), format!("N{}C", self.spatial));
        let big: &[i64] = &[5, 7, 8][3 - axes..];
        let call = |layout: &str, shape: Vec<i64>, dtype, more: Vec<(&'static str, AttrValue)>| {
            let base = vec![("pool_size", AttrValue::ints(&[2, 3, 3][3 - axes..])), ("layout", layout.into())];
            Sample { attrs: base.into_iter().chain(more).collect(), args: vec![Type::tensor(&shape, dtype)] }
        };
        let nc = |n: i64, c: i64| [&[n, c], big].concat();
        let uneven: Vec<i64> = (0..2 * axes as i64).map(|k| k % 2).collect();
        let f = DType::F32;
        let mut samples = vec![
            call(&plain, nc(2, 3), f, vec![]),
            call(&plain, nc(1, 2), f, vec![("strides", vec![2; axes].into()), ("padding", vec![1; axes].into())]),
            call(
                &plain,
                nc(1, 2),
                f,
                vec![("strides", vec![2; axes].into()), ("padding", uneven.clone().into()), ("ceil_mode", true.into())],
            ),
            call(&plain, nc(1, 2), f, vec![("dilation", vec![2; axes].into()), ("padding", vec![1; axes].into())]),
            call(&last, [&[2], big, &[3]].concat(), f, vec![("padding", vec![1; axes].into())]),
            call(&format!("{plain}4c"), [&nc(1, 2)[..], &[4]].concat(), f, vec![("strides", vec![2; axes].into())]),
            call(&plain, nc(1, 2), DType::I32, vec![("padding", vec![1; axes].into())]),
            call(&plain, nc(1, 2), DType::U8, vec![("padding", vec![1; axes].into())]),
        ];
        if self.average {
            let pads = |more: Vec<(&'static str, AttrValue)>| {
                let base = vec![("count_include_pad", true.into()), ("strides", vec![2; axes].into())];
                call(&plain, nc(1, 2), f, base.into_iter().chain(more).collect())
            };
            samples.push(pads(vec![("padding", vec![1; axes].into())]));
            samples.push(pads(vec![("padding", uneven.into()), ("ceil_mode", true.into())]));
        }
        samples
    }
}

/// A pool as tensor expressions: the padded data, its windows' maxima or sums, and for a mean the division by the count.
pub(in crate::ops) fn lower_pool(
    p: &PoolAttrs,
    x: crate::loops::TensorId,
    average: bool,
    b: &mut Builder,
) -> crate::loops::TensorId {
    let (from, dtype) = (b.shape(x).to_vec(), b.dtype(x));
    let mut shape = from.clone();
    p.windows.iter().for_each(|(a, w)| shape[*a] = p.outputs(w, from[*a]));
    let pad_of = |(a, w): &(usize, Window)| Pad { may_end_beyond: p.may_end_beyond(w), ..Pad::of(*a, w, shape[*a]) };
    let pads: Vec<Pad> = p.windows.iter().map(pad_of).collect();
    let (fill, combine) = match average {
        true => (Scalar::int(0, dtype), Combine::Sum),
        false => (padding(dtype), Combine::Max),
    };
    let padded = pad(x, &pads, fill, b);
    let over: Vec<i64> = p.windows.iter().map(|(_, w)| w.kernel).collect();
    let pooled = b.reduce(&shape, &over, combine, |b, i, r| {
        let mut index = i.to_vec();
        for ((axis, w), tap) in p.windows.iter().zip(r) {
            index[*axis] = i[*axis].clone() * w.stride + tap.clone() * w.dilation;
        }
        b.read(padded, index)
    });
    if !average {
        return pooled;
    }
    b.map(&shape, |b, i| {
        let count = p.windows.iter().map(|(a, w)| count(p, w, from[*a], shape[*a], &i[*a], b));
        let count = count.fold(Scalar::index(1), |all, n| all * n);
        let count = if count.as_int().is_some() { count } else { count.max(Scalar::index(1)) };
        mean(b.read(pooled, i.iter().cloned()), count)
    })
}

/// How many taps of the window at `y` an average counts: a constant where all windows are alike.
fn count(p: &PoolAttrs, w: &Window, extent: i64, outputs: i64, y: &Scalar, b: &Builder) -> Scalar {
    let (low, high) = match p.count_pad {
        true => (i64::MIN, extent + w.after),
        false => (0, extent),
    };
    let starts_inside = w.before <= 0 || low == i64::MIN;
    let may_end_beyond = if p.count_pad { p.ceil && w.stride > 1 } else { p.may_end_beyond(w) };
    let ends_inside = w.needs(outputs) - w.before <= high && !(b.is_for_all_sizes() && may_end_beyond);
    let first_tap = |start: Scalar| match (starts_inside, w.dilation) {
        (true, _) => Scalar::index(0),
        // Steps from a negative start up to the first position inside.
        (_, d) => (Scalar::index(d - 1) - start).floor_div(d).max(Scalar::index(0)),
    };
    let start = y.clone() * w.stride - w.before;
    let taps = match ends_inside {
        true => Scalar::index(w.kernel),
        false => {
            (Scalar::index(high - 1 + w.dilation) - start.clone()).floor_div(w.dilation).min(Scalar::index(w.kernel))
        }
    };
    (taps - first_tap(start)).max(Scalar::index(0))
}
