//! Normalizations: by given statistics, or by the statistics of the data itself.

use super::place::{Pad, pad};
use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_bail,
        op_ensure,
        util::{bytes, elements, may_equal, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&BatchNorm, &LAYER_NORM, &INSTANCE_NORM, &GROUP_NORM, &L2Normalize, &Lrn];

const EPSILON: AttrField = AttrField::new("epsilon", AttrKind::Float, AttrDefault::Float(1e-5));
const CENTER: AttrField = AttrField::new("center", AttrKind::Bool, AttrDefault::Bool(true));
const SCALE: AttrField = AttrField::new("scale", AttrKind::Bool, AttrDefault::Bool(true));

/// An axis, counted from the end where negative.
/// A number computed with more digits as one of a float type has it: rounded where that is float32, infinite where the type has
/// none so large.
pub(in crate::ops) fn rounded(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => x,
        DType::F16 if x.abs() >= 65520.0 => x.signum() * f64::INFINITY,
        DType::F16 => x,
        _ if x.abs() > f32::MAX as f64 => x as f32 as f64,
        DType::F32 => x as f32 as f64,
        _ => x,
    }
}

pub(in crate::ops) fn axis_of(axis: i64, rank: usize) -> Result<usize, OpError> {
    let k = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(k) {
        Ok(k) if k < rank => Ok(k),
        _ => op_bail!("`axis` is {axis}, but `data` has {rank} axes"),
    }
}

/// Elements from one index along an axis to the next, and the axis' extent.
fn along(shape: &[usize], axis: usize) -> (usize, usize) {
    (shape[axis + 1..].iter().product(), shape[axis])
}

/// That an argument is a vector along an axis of data, of data's type.
fn check_vector(args: &[Type], i: usize, name: &str, x: &TensorType, axis: usize) -> Result<(), OpError> {
    let t = tensor_arg(args, i, name)?;
    op_ensure!(
        t.rank() == 1 && may_equal(t.shape[0], x.shape[axis]) && t.dtype == x.dtype,
        "C2: `{name}` is {t}, but `data` is {x}: a vector of its axis {axis} is wanted"
    );
    Ok(())
}

/// The types of arguments from the second on, where they are vectors along an axis of the first, of its type.
pub(in crate::ops) fn complete_vectors(attrs: &Attrs, args: &[Type]) -> Vec<(usize, Type)> {
    let vector = args[0].as_tensor().and_then(|x| {
        let axis = axis_of(attrs.int("axis"), x.rank()).ok()?;
        Some(Type::Tensor(TensorType::of([x.shape[axis]], x.dtype)))
    });
    (1..args.len()).filter_map(|i| Some((i, vector.clone()?))).collect()
}

/// `nn.batch_norm`, as in inference.
#[derive(Debug)]
struct BatchNorm;

impl Op for BatchNorm {
    fn name(&self) -> &'static str {
        "nn.batch_norm"
    }
    fn doc(&self) -> &'static str {
        "out = (data - moving_mean) / sqrt(moving_var + epsilon) * gamma + beta along one axis, without gamma where scale is
        not set and without beta where center is not set; the result is (out, moving_mean, moving_var).
        C1: axis is one of data's; the elements are floats. C2: the four others are vectors of that axis, of data's type."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "gamma", "beta", "moving_mean", "moving_var"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] =
            &[AttrField::new("axis", AttrKind::Int, AttrDefault::Int(1)), EPSILON, CENTER, SCALE];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let axis = axis_of(attrs.int("axis"), x.rank())?;
        op_ensure!(x.dtype.is_float(), "C1: `data` is {x}, but should be of floats");
        for (i, name) in self.inputs().iter().enumerate().skip(1) {
            check_vector(args, i, name, x, axis)?;
        }
        let vector = TensorType::of([x.shape[axis]], x.dtype);
        Ok(Type::tuple([x.clone().into(), vector.clone().into(), vector.into()]))
    }
    fn complete(&self, attrs: &Attrs, args: &[Type]) -> Vec<(usize, Type)> {
        complete_vectors(attrs, args)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, gamma, beta, mean, var] = [0, 1, 2, 3, 4].map(|i| args[i].tensor());
        let (inner, extent) = along(x.shape(), axis_of(attrs.int("axis"), x.shape().len())?);
        let (center, scale, epsilon) = (attrs.bool("center"), attrs.bool("scale"), attrs.float("epsilon"));
        let factors: Vec<(f64, f64)> = (0..extent)
            .map(|c| {
                let scale = if scale { gamma.get_f64(c) } else { 1.0 } / (var.get_f64(c) + epsilon).sqrt();
                (scale, if center { beta.get_f64(c) } else { 0.0 })
            })
            .collect();
        let out = Tensor::from_f64_fn(x.dtype(), x.shape(), |i| {
            let c = i / inner % extent;
            (x.get_f64(i) - mean.get_f64(c)) * factors[c].0 + factors[c].1
        });
        Ok(Value::Tuple(vec![out.into(), mean.clone().into(), var.clone().into()]))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        // Its outputs are several.
        AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank)))
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: 4.0 * elements(&args[0]), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, gamma, beta, mean, var] = [0, 1, 2, 3, 4].map(|i| args[i].tensor());
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let epsilon = Scalar::float(attrs.float("epsilon"), dtype);
        let scale = b.map(&shape[axis..=axis], |b, c| {
            let root = Scalar::unary(UnOp::Sqrt, b.read(var, c.iter().cloned()) + epsilon);
            let one = if attrs.bool("scale") { b.read(gamma, c.iter().cloned()) } else { Scalar::float(1.0, dtype) };
            one / root
        });
        let out = b.map(&shape, |b, i| {
            let at = |t| b.read(t, [i[axis].clone()]);
            let scaled = (b.read(x, i.iter().cloned()) - at(mean)) * at(scale);
            if attrs.bool("center") { scaled + at(beta) } else { scaled }
        });
        Ok(Operand::Tuple(vec![out.into(), mean.into(), var.into()]))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |x: &[i64], c: i64, axis: i64| Sample {
            attrs: vec![("axis", axis.into()), ("epsilon", 5.0.into())],
            args: [x, &[c], &[c], &[c], &[c]].map(|s| Type::tensor(s, DType::F32)).into(),
        };
        let mut samples = vec![call(&[2, 3, 2, 2], 3, 1), call(&[2, 2, 3], 3, -1), call(&[2, 3], 3, 1)];
        samples[1].attrs.push(("scale", false.into()));
        samples[2].attrs.push(("center", false.into()));
        samples
    }
}

/// A normalization by the mean and variance of the data's own elements.
#[derive(Debug)]
struct Standardize {
    name: &'static str,
    doc: &'static str,
    attrs: &'static [AttrField],
    /// Which axes the statistics are taken over.
    over: Over,
}

/// Which axes statistics are taken over.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Over {
    /// The axis alone.
    Axis,
    /// All axes after the first but this one.
    Positions,
    /// All axes after the first but this one, and this one in groups.
    Groups,
}

const LAYER_NORM: Standardize = Standardize {
    name: "nn.layer_norm",
    doc: "out = (data - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance (not corrected for bias) over
        one axis, without gamma where scale is not set and without beta where center is not set.
        C1: axis is one of data's; the elements are floats. C2: gamma and beta are vectors of that axis, of data's type.",
    attrs: &[AttrField::new("axis", AttrKind::Int, AttrDefault::Int(-1)), EPSILON, CENTER, SCALE],
    over: Over::Axis,
};

const INSTANCE_NORM: Standardize = Standardize {
    name: "nn.instance_norm",
    doc: "out = (data - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance (not corrected for bias) over
        all axes but the first (the batch) and axis, without gamma where scale is not set and without beta where center is
        not set.
        C1: axis is one of data's, which has at least three; the elements are floats. C2: gamma and beta are vectors of that
        axis, of data's type.",
    attrs: &[AttrField::new("axis", AttrKind::Int, AttrDefault::Int(1)), EPSILON, CENTER, SCALE],
    over: Over::Positions,
};

const GROUP_NORM: Standardize = Standardize {
    name: "nn.group_norm",
    doc: "out = (data - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance (not corrected for bias) over
        all axes but the first (the batch), the axis in num_groups groups, without gamma where scale is not set and without
        beta where center is not set.
        C1: axis is one of data's; the elements are floats. C2: gamma and beta are vectors of that axis, of data's type.
        C3: num_groups divides the axis.",
    attrs: &[
        AttrField::new("num_groups", AttrKind::Int, AttrDefault::Int(0)),
        AttrField::new("axis", AttrKind::Int, AttrDefault::Int(1)),
        EPSILON,
        CENTER,
        SCALE,
    ],
    over: Over::Groups,
};

impl Standardize {
    /// The axis, the number of groups along it, and for every axis whether statistics are taken over all of it.
    fn plan(&self, attrs: &Attrs, rank: usize) -> Result<(usize, i64, Vec<bool>), OpError> {
        let axis = axis_of(attrs.int("axis"), rank)?;
        Ok(match self.over {
            Over::Axis => (axis, 1, (0..rank).map(|k| k == axis).collect()),
            // In groups the axis itself is handled apart.
            Over::Groups => (axis, attrs.int("num_groups"), (0..rank).map(|k| k != axis && k != 0).collect()),
            Over::Positions => (axis, 1, (0..rank).map(|k| k != axis && k != 0).collect()),
        })
    }
}

impl Op for Standardize {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "gamma", "beta"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let (axis, groups, _) = self.plan(attrs, x.rank())?;
        op_ensure!(x.dtype.is_float(), "C1: `data` is {x}, but should be of floats");
        op_ensure!(
            self.over != Over::Positions || x.rank() > 2,
            "C1: `data` is {x}, but should have at least three axes"
        );
        if self.over == Over::Groups {
            op_ensure!(
                groups > 0 && x.shape[axis].known().is_none_or(|n| n % groups == 0),
                "C3: `num_groups` is {groups}, but should divide axis {axis} of `data`, {x}"
            );
        }
        check_vector(args, 1, "gamma", x, axis)?;
        check_vector(args, 2, "beta", x, axis)?;
        Ok(x.clone().into())
    }
    fn complete(&self, attrs: &Attrs, args: &[Type]) -> Vec<(usize, Type)> {
        complete_vectors(attrs, args)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, gamma, beta] = [0, 1, 2].map(|i| args[i].tensor());
        let shape = x.shape();
        let (axis, groups, over) = self.plan(attrs, shape.len())?;
        let (inner, extent) = along(shape, axis);
        // The set of elements that an element's statistics are taken over, as a number.
        let set = |i: usize| -> usize {
            let (mut rest, mut set, mut scale) = (i, 0, 1);
            for k in (0..shape.len()).rev() {
                let at = rest % shape[k];
                rest /= shape[k];
                let (part, parts) = match () {
                    _ if k == axis && self.over == Over::Groups => (at / (extent / groups as usize), groups as usize),
                    _ if over[k] => (0, 1),
                    _ => (at, shape[k]),
                };
                set += part * scale;
                scale *= parts;
            }
            set
        };
        let xs = x.to_f64_vec();
        let sets: Vec<usize> = (0..xs.len()).map(set).collect();
        let count = sets.iter().max().map_or(0, |m| m + 1);
        let size = xs.len().checked_div(count).unwrap_or(1) as f64;
        let mut means = vec![0.0; count];
        xs.iter().zip(&sets).for_each(|(v, &s)| means[s] += v / size);
        let mut variances = vec![0.0; count];
        // Means and differences are of the element type, and so a square that it has no number for is infinite.
        means.iter_mut().for_each(|m| *m = rounded(*m, x.dtype()));
        let square = |v: f64| rounded(rounded(v, x.dtype()).powi(2), x.dtype());
        xs.iter().zip(&sets).for_each(|(v, &s)| variances[s] += square(v - means[s]) / size);
        let (epsilon, center, scale) = (attrs.float("epsilon"), attrs.bool("center"), attrs.bool("scale"));
        let out = Tensor::from_f64_fn(x.dtype(), shape, |i| {
            let (s, c) = (sets[i], i / inner % extent);
            let normal = (xs[i] - means[s]) / (variances[s] + epsilon).sqrt();
            let scaled = if scale { normal * gamma.get_f64(c) } else { normal };
            if center { scaled + beta.get_f64(c) } else { scaled }
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok((axis, _, over)) = self.plan(attrs, rank) else { return AxisMap::opaque([rank, 1, 1]) };
        let whole = |k: usize| over[k] || (self.over == Over::Groups && k == axis);
        let data = (0..rank).map(|k| if whole(k) { AxisRole::Opaque } else { AxisRole::Maps(k) }).collect();
        let vector = if whole(axis) { AxisRole::Opaque } else { AxisRole::Maps(axis) };
        AxisMap(vec![data, vec![vector], vec![vector]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: 8.0 * elements(out), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, gamma, beta] = [0, 1, 2].map(|i| args[i].tensor());
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let (axis, groups, over) = self.plan(attrs, shape.len())?;
        let grouped = self.over == Over::Groups;
        let group = if grouped { shape[axis] / groups } else { 1 };
        // Statistics keep the axes that they are not taken over; a grouped axis keeps its groups.
        let kept: Vec<usize> = (0..shape.len()).filter(|&k| !over[k]).collect();
        let stats: Vec<i64> = kept.iter().map(|&k| if grouped && k == axis { groups } else { shape[k] }).collect();
        let mut extents: Vec<i64> = (0..shape.len()).filter(|&k| over[k]).map(|k| shape[k]).collect();
        if grouped {
            extents.insert(0, group);
        }
        let count = extents.iter().product::<i64>().max(1) as f64;
        let element = |i: &[Scalar], r: &[Scalar]| -> Vec<Scalar> {
            let (mut kept, mut reduced) = (i.iter(), r.iter());
            let within = if grouped { reduced.next().cloned() } else { None };
            (0..shape.len())
                .map(|k| {
                    let next = if over[k] { reduced.next() } else { kept.next() };
                    let next = next.cloned().expect("one index per axis");
                    match &within {
                        Some(w) if k == axis => next * group + w.clone(),
                        _ => next,
                    }
                })
                .collect()
        };
        let stat = |b: &Builder, t: TensorId, i: &[Scalar]| {
            let at =
                kept.iter().map(|&k| if grouped && k == axis { i[k].clone().floor_div(group) } else { i[k].clone() });
            b.read(t, at)
        };
        let divided =
            |b: &mut Builder, t| b.map(&stats, |b, i| b.read(t, i.iter().cloned()) * Scalar::float(1.0 / count, dtype));
        let sum = b.reduce(&stats, &extents, Combine::Sum, |b, i, r| b.read(x, element(i, r)));
        let mean = divided(b, sum);
        let squares = b.reduce(&stats, &extents, Combine::Sum, |b, i, r| {
            let off = b.read(x, element(i, r)) - b.read(mean, i.iter().cloned());
            off.clone() * off
        });
        let epsilon = Scalar::float(attrs.float("epsilon"), dtype);
        let variance = divided(b, squares);
        let inverse = b.map(&stats, |b, i| Scalar::unary(UnOp::Rsqrt, b.read(variance, i.iter().cloned()) + epsilon));
        let out = b.map(&shape, |b, i| {
            let mut v = (b.read(x, i.iter().cloned()) - stat(b, mean, i)) * stat(b, inverse, i);
            if attrs.bool("scale") {
                v = v * b.read(gamma, [i[axis].clone()]);
            }
            if attrs.bool("center") {
                v = v + b.read(beta, [i[axis].clone()]);
            }
            v
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |x: &[i64], axis: i64| {
            let c = x[if axis < 0 { axis + x.len() as i64 } else { axis } as usize];
            let mut attrs = vec![("axis", axis.into()), ("epsilon", 0.1.into())];
            if self.over == Over::Groups {
                attrs.push(("num_groups", (c / 2).into()));
            }
            Sample { attrs, args: [x, &[c], &[c]].map(|s| Type::tensor(s, DType::F32)).into() }
        };
        let mut samples = vec![call(&[2, 4, 3], 1), call(&[2, 3, 4], -1), call(&[2, 4, 3, 2], 1), call(&[2, 4, 5], 1)];
        samples[1].attrs.push(("scale", false.into()));
        samples[3].attrs.push(("center", false.into()));
        samples
    }
}

/// `nn.l2_normalize`.
#[derive(Debug)]
struct L2Normalize;

/// The axes of the `axis` list, all where it is empty.
fn axes_of(attrs: &Attrs, rank: usize) -> Result<Vec<usize>, OpError> {
    let given = attrs.ints("axis");
    match given.is_empty() {
        true => Ok((0..rank).collect()),
        false => given.iter().map(|&a| axis_of(a, rank)).collect(),
    }
}

impl Op for L2Normalize {
    fn name(&self) -> &'static str {
        "nn.l2_normalize"
    }
    fn doc(&self) -> &'static str {
        "out = data / sqrt(max(sum of data^2 over the axes, eps)); no axes mean all of them.
        C1: every axis is one of data's; the elements are floats."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("eps", AttrKind::Float, AttrDefault::Required),
            AttrField::new("axis", AttrKind::Ints, AttrDefault::None),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        axes_of(attrs, x.rank())?;
        op_ensure!(x.dtype.is_float(), "C1: `data` is {x}, but should be of floats");
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let over = axes_of(attrs, x.shape().len())?;
        let set = |i: usize| {
            let (mut rest, mut set, mut scale) = (i, 0, 1);
            for k in (0..x.shape().len()).rev() {
                if !over.contains(&k) {
                    set += rest % x.shape()[k] * scale;
                    scale *= x.shape()[k];
                }
                rest /= x.shape()[k];
            }
            set
        };
        let sets: Vec<usize> = (0..x.len()).map(set).collect();
        let mut sums = vec![0.0; sets.iter().max().map_or(0, |m| m + 1)];
        // As where sums are formed in the element type.
        sets.iter().enumerate().for_each(|(i, &s)| sums[s] += rounded(x.get_f64(i).powi(2), x.dtype()));
        let eps = attrs.float("eps");
        Ok(Tensor::from_f64_fn(x.dtype(), x.shape(), |i| x.get_f64(i) / sums[sets[i]].max(eps).sqrt()).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(over) = axes_of(attrs, rank) else { return AxisMap::opaque([rank]) };
        let role = |k| if over.contains(&k) { AxisRole::Opaque } else { AxisRole::Maps(k) };
        AxisMap(vec![(0..rank).map(role).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: 4.0 * elements(out), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let over = axes_of(attrs, shape.len())?;
        let (extents, kept): (Vec<usize>, Vec<usize>) = (0..shape.len()).partition(|k| over.contains(k));
        let pick = |axes: &[usize]| axes.iter().map(|&k| shape[k]).collect::<Vec<i64>>();
        let sums = b.reduce(&pick(&kept), &pick(&extents), Combine::Sum, |b, i, r| {
            let (mut i, mut r) = (i.iter(), r.iter());
            let next = |k| if over.contains(&k) { r.next() } else { i.next() }.cloned().expect("one index per axis");
            let v = b.read(x, (0..shape.len()).map(next).collect::<Vec<_>>());
            v.clone() * v
        });
        let eps = Scalar::float(attrs.float("eps"), dtype);
        let out = b.map(&shape, |b, i| {
            let sum = b.read(sums, kept.iter().map(|&k| i[k].clone()));
            b.read(x, i.iter().cloned()) / Scalar::unary(UnOp::Sqrt, sum.max(eps))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |axis: &[i64]| Sample {
            attrs: vec![("eps", 0.01.into()), ("axis", axis.into())],
            args: vec![Type::tensor(&[2, 3, 4], DType::F32)],
        };
        vec![call(&[1]), call(&[0, 2]), call(&[])]
    }
}

/// `nn.lrn`.
#[derive(Debug)]
struct Lrn;

impl Op for Lrn {
    fn name(&self) -> &'static str {
        "nn.lrn"
    }
    fn doc(&self) -> &'static str {
        "out = data / (bias + alpha / size * (sum of data^2 over the size neighbours along axis))^beta: local response
        normalization.
        C1: axis is one of data's; the elements are floats. C2: size is odd and positive."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("size", AttrKind::Int, AttrDefault::Int(5)),
            AttrField::new("axis", AttrKind::Int, AttrDefault::Int(1)),
            AttrField::new("bias", AttrKind::Float, AttrDefault::Float(2.0)),
            AttrField::new("alpha", AttrKind::Float, AttrDefault::Float(0.0001)),
            AttrField::new("beta", AttrKind::Float, AttrDefault::Float(0.75)),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        axis_of(attrs.int("axis"), x.rank())?;
        op_ensure!(x.dtype.is_float(), "C1: `data` is {x}, but should be of floats");
        let size = attrs.int("size");
        op_ensure!(size > 0 && size % 2 == 1, "C2: `size` is {size}, but should be odd and positive");
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let (inner, extent) = along(x.shape(), axis_of(attrs.int("axis"), x.shape().len())?);
        let (size, bias) = (attrs.int("size"), attrs.float("bias"));
        let (alpha, beta) = (attrs.float("alpha"), attrs.float("beta"));
        let out = Tensor::from_f64_fn(x.dtype(), x.shape(), |i| {
            let at = (i / inner % extent) as i64;
            let neighbours = (at - size / 2..=at + size / 2).filter(|n| (0..extent as i64).contains(n));
            let sum: f64 = neighbours.map(|n| x.get_f64((i as i64 + (n - at) * inner as i64) as usize).powi(2)).sum();
            x.get_f64(i) / (bias + alpha / size as f64 * sum).powf(beta)
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(axis) = axis_of(attrs.int("axis"), rank) else { return AxisMap::opaque([rank]) };
        let role = |k| if k == axis { AxisRole::Windows(k) } else { AxisRole::Maps(k) };
        AxisMap(vec![(0..rank).map(role).collect()])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let flops = (2.0 * attrs.int("size") as f64 + 30.0) * elements(out);
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let (axis, size) = (axis_of(attrs.int("axis"), shape.len())?, attrs.int("size"));
        let to = shape[axis] + size - 1;
        let pads = [Pad { axis, before: size / 2, to, may_end_beyond: size > 1 }];
        let padded = pad(x, &pads, Scalar::int(0, dtype), b);
        let sums = b.reduce(&shape, &[size], Combine::Sum, |b, i, r| {
            let mut index = i.to_vec();
            index[axis] = i[axis].clone() + r[0].clone();
            let v = b.read(padded, index);
            v.clone() * v
        });
        let number = |v: f64| Scalar::float(v, dtype);
        let out = b.map(&shape, |b, i| {
            let sum = b.read(sums, i.iter().cloned());
            let base = number(attrs.float("bias")) + number(attrs.float("alpha") / size as f64) * sum;
            b.read(x, i.iter().cloned()) / Scalar::binary(BinOp::Pow, base, number(attrs.float("beta")))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |axis: i64, size: i64| Sample {
            attrs: vec![("axis", axis.into()), ("size", size.into()), ("alpha", 0.5.into())],
            args: vec![Type::tensor(&[2, 7, 3, 2], DType::F32)],
        };
        vec![call(1, 5), call(-1, 3), call(2, 1)]
    }
}
