//! Pools that choose their windows to reach a given output size, global pools among them.

use super::pool::{identity, mean, pool_windows, spatial_axes};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, tensor_arg},
    },
    tensor::{DType, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Adaptive { name: "nn.global_max_pool2d", spatial: "HW", average: false, attrs: GLOBAL },
    &Adaptive { name: "nn.global_avg_pool2d", spatial: "HW", average: true, attrs: GLOBAL },
    &Adaptive { name: "nn.adaptive_max_pool1d", spatial: "W", average: false, attrs: SIZED1D },
    &Adaptive { name: "nn.adaptive_max_pool2d", spatial: "HW", average: false, attrs: SIZED2D },
    &Adaptive { name: "nn.adaptive_max_pool3d", spatial: "DHW", average: false, attrs: SIZED3D },
    &Adaptive { name: "nn.adaptive_avg_pool1d", spatial: "W", average: true, attrs: SIZED1D },
    &Adaptive { name: "nn.adaptive_avg_pool2d", spatial: "HW", average: true, attrs: SIZED2D },
    &Adaptive { name: "nn.adaptive_avg_pool3d", spatial: "DHW", average: true, attrs: SIZED3D },
];

const OUT_LAYOUT: AttrField = AttrField::new("out_layout", AttrKind::Str, AttrDefault::Str(""));
const OUTPUT_SIZE: AttrField = AttrField::new("output_size", AttrKind::Ints, AttrDefault::None);
const GLOBAL: &[AttrField] = &[AttrField::new("layout", AttrKind::Str, AttrDefault::Str("NCHW")), OUT_LAYOUT];
const SIZED1D: &[AttrField] =
    &[OUTPUT_SIZE, AttrField::new("layout", AttrKind::Str, AttrDefault::Str("NCW")), OUT_LAYOUT];
const SIZED2D: &[AttrField] =
    &[OUTPUT_SIZE, AttrField::new("layout", AttrKind::Str, AttrDefault::Str("NCHW")), OUT_LAYOUT];
const SIZED3D: &[AttrField] =
    &[OUTPUT_SIZE, AttrField::new("layout", AttrKind::Str, AttrDefault::Str("NCDHW")), OUT_LAYOUT];

/// A pool to a given output size; global where there is no such attribute.
#[derive(Debug)]
struct Adaptive {
    name: &'static str,
    /// The spatial axes' letters, outermost first.
    spatial: &'static str,
    /// Whether it averages instead of taking the greatest.
    average: bool,
    attrs: &'static [AttrField],
}

/// The input positions of output position `y`: from the first to before the second.
fn range(y: i64, inputs: i64, outputs: i64) -> (i64, i64) {
    (y * inputs / outputs, ((y + 1) * inputs + outputs - 1) / outputs)
}

impl Adaptive {
    fn is_global(&self) -> bool {
        self.attrs.len() == GLOBAL.len()
    }

    /// Each spatial axis and its output extent; `None` keeps the input's.
    fn sizes(&self, attrs: &Attrs, rank: Option<usize>) -> Result<Vec<(usize, Option<i64>)>, OpError> {
        let axes = spatial_axes(attrs, self.spatial, rank)?;
        let sizes = match self.is_global() {
            true => vec![1],
            false => attrs.ints("output_size"),
        };
        op_ensure!(
            sizes.len() <= 1 || sizes.len() == axes.len(),
            "C3: `output_size` has {} numbers, but should have none, 1 or {}",
            sizes.len(),
            axes.len()
        );
        op_ensure!(sizes.iter().all(|&n| n > 0), "C3: `output_size` is {sizes:?}, but should be positive");
        Ok(axes.into_iter().enumerate().map(|(k, axis)| (axis, sizes.get(k).or(sizes.first()).copied())).collect())
    }
}

impl Op for Adaptive {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        match (self.is_global(), self.average) {
            (true, true) => {
                "The mean over the spatial axes, which stay with extent 1.
                C1: layout has the rank of data and the spatial axes, not split. C2: out_layout, where given, is layout."
            }
            (true, false) => {
                "The greatest over the spatial axes, which stay with extent 1.
                C1: layout has the rank of data and the spatial axes, not split. C2: out_layout, where given, is layout."
            }
            (false, true) => {
                "The mean over windows: of m outputs over n inputs, output y covers inputs floor(y n / m) to
                ceil((y + 1) n / m).
                C1: layout has the rank of data and the spatial axes, not split. C2: out_layout, where given, is layout.
                C3: output_size has one positive number per spatial axis, one for all, or none to keep the input's extents."
            }
            (false, false) => {
                "The greatest of windows: of m outputs over n inputs, output y covers inputs floor(y n / m) to
                ceil((y + 1) n / m).
                C1: layout has the rank of data and the spatial axes, not split. C2: out_layout, where given, is layout.
                C3: output_size has one positive number per spatial axis, one for all, or none to keep the input's extents."
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
        let mut shape = x.shape.to_vec();
        for (axis, size) in self.sizes(attrs, Some(x.rank()))? {
            op_ensure!(shape[axis] != Dim::Known(0), "`data` is {x}: there is nothing to pool along axis {axis}");
            shape[axis] = size.map_or(shape[axis], Dim::Known);
        }
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let mut out = x.shape().to_vec();
        let mut axes = Vec::new();
        for (axis, size) in self.sizes(attrs, None)? {
            let inputs = out[axis] as i64;
            let outputs = size.unwrap_or(inputs);
            out[axis] = outputs as usize;
            let covered = |y| {
                let (from, to) = range(y, inputs, outputs);
                ((from as usize..to as usize).collect(), to - from)
            };
            axes.push((axis, (0..outputs).map(covered).collect()));
        }
        Ok(pool_windows(x, &out, &axes, 0, self.average).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(sizes) = self.sizes(attrs, None) else { return AxisMap::opaque([rank]) };
        let role = |k| match sizes.iter().find(|(axis, _)| *axis == k) {
            Some(_) if self.is_global() => AxisRole::Reduced,
            Some((_, None)) | None => AxisRole::Maps(k),
            Some(_) => AxisRole::Opaque,
        };
        AxisMap(vec![(0..rank).map(role).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let flops = elements(&args[0]).max(elements(out));
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (from, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let sizes: Vec<(usize, i64)> =
            self.sizes(attrs, None)?.into_iter().map(|(axis, n)| (axis, n.unwrap_or(from[axis]))).collect();
        let mut shape = from.clone();
        sizes.iter().for_each(|&(axis, n)| shape[axis] = n);
        // Where the windows differ in extent, all are taken as the longest, and what is too much counts as nothing.
        let lengths = |axis: usize, n: i64| {
            let extent = from[axis];
            (0..n).map(move |y| range(y, extent, n)).map(|(first, end)| end - first)
        };
        let lengths: Vec<(i64, i64)> = sizes
            .iter()
            .map(|&(axis, n)| (lengths(axis, n).min().unwrap_or(1), lengths(axis, n).max().unwrap_or(1)))
            .collect();
        let first = |axis: usize, n: i64, y: &Scalar| match from[axis] % n {
            0 => y.clone() * (from[axis] / n),
            _ => (y.clone() * from[axis]).floor_div(n),
        };
        let end = |axis: usize, n: i64, y: &Scalar| ((y.clone() + 1) * from[axis] + (n - 1)).floor_div(n);
        let (fill, combine) = match self.average {
            true => (Scalar::int(0, dtype), Combine::Sum),
            false => (identity(dtype), Combine::Max),
        };
        let over: Vec<i64> = lengths.iter().map(|l| l.1).collect();
        let pooled = b.reduce(&shape, &over, combine, |b, i, r| {
            let (mut index, mut inside) = (i.to_vec(), Scalar::bool(true));
            for (k, &(axis, n)) in sizes.iter().enumerate() {
                index[axis] = first(axis, n, &i[axis]) + r[k].clone();
                if lengths[k].0 != lengths[k].1 {
                    inside = inside.and(index[axis].clone().lt(end(axis, n, &i[axis])));
                }
            }
            Scalar::select(inside, b.read(x, index), fill)
        });
        if !self.average {
            return Ok(pooled.into());
        }
        let out = b.map(&shape, |b, i| {
            let count = sizes.iter().zip(&lengths).map(|(&(axis, n), &(least, most))| match least == most {
                true => Scalar::index(most),
                false => end(axis, n, &i[axis]) - first(axis, n, &i[axis]),
            });
            mean(b.read(pooled, i.iter().cloned()), count.fold(Scalar::index(1), |all, n| all * n))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let (plain, last) = (format!("NC{}", self.spatial), format!("N{}C", self.spatial));
        let big: &[i64] = &[5, 6, 7][3 - self.spatial.len()..];
        let call = |layout: &str, shape: Vec<i64>, dtype: DType, size: &[i64]| {
            let mut attrs = vec![("layout", layout.into())];
            if !self.is_global() {
                attrs.push(("output_size", size.into()));
            }
            Sample { attrs, args: vec![Type::tensor(&shape, dtype)] }
        };
        let nc = [&[2, 3], big].concat();
        vec![
            call(&plain, nc.clone(), DType::F32, &[1]),
            call(&plain, nc.clone(), DType::F32, &[2, 4, 3][3 - self.spatial.len()..]),
            call(&plain, nc.clone(), DType::F32, &[]),
            call(&last, [&[2], big, &[3]].concat(), DType::F32, &[3]),
            call(&format!("{plain}4c"), [&nc[..], &[4]].concat(), DType::F32, &[1]),
            call(&plain, nc.clone(), DType::I32, &[9]),
            call(&plain, nc, DType::U8, &[1]),
        ]
    }
}
