//! What many type relations and kernels need.

use std::ops::Range;

use super::{AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Op, OpError, Sample, Work, op_bail, op_ensure};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar, TensorId},
    tensor::{DType, Value},
};

/// The tensor type of argument `i`, or an error that says what it is instead.
pub(super) fn tensor_arg<'a>(args: &'a [Type], i: usize, name: &str) -> Result<&'a TensorType, OpError> {
    match args.get(i) {
        Some(Type::Tensor(t)) => Ok(t),
        Some(other) => op_bail!("`{name}` is {other}, but should be a tensor"),
        None => op_bail!("`{name}` is missing"),
    }
}

/// Whether two extents may be equal.
pub(super) fn may_equal(a: Dim, b: Dim) -> bool {
    match (a, b) {
        (Dim::Known(x), Dim::Known(y)) => x == y,
        _ => true,
    }
}

/// The shape that two shapes broadcast to, by numpy's rule: aligned at the last axis, extents equal or 1. An unknown extent
/// against 1 or another unknown one stays unknown; against a known one it must be equal to it or 1.
pub(super) fn broadcast_shapes(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, OpError> {
    let rank = a.len().max(b.len());
    let at = |s: &[Dim], axis: usize| if axis + s.len() < rank { Dim::Known(1) } else { s[axis + s.len() - rank] };
    (0..rank)
        .map(|axis| match (at(a, axis), at(b, axis)) {
            (x, y) if x == y => Ok(x),
            (Dim::Known(1), y) => Ok(y),
            (x, Dim::Known(1)) => Ok(x),
            (Dim::Known(x), Dim::Known(y)) => {
                op_bail!(
                    "shapes {} and {} do not broadcast: at axis {axis} of the result, {x} meets {y}",
                    show(a),
                    show(b)
                )
            }
            (Dim::Known(x), _) | (_, Dim::Known(x)) => Ok(Dim::Known(x)),
            _ => Ok(Dim::Any),
        })
        .collect()
}

/// A shape as messages show it.
pub(super) fn show(shape: &[Dim]) -> String {
    format!("({})", shape.iter().map(Dim::to_string).collect::<Vec<_>>().join(", "))
}

/// Elements of all tensors in a type; unknown extents count as 1.
pub(super) fn elements(ty: &Type) -> f64 {
    tensors(ty).iter().map(count).sum()
}

/// Bytes of all tensors in a type; unknown extents count as 1.
pub(super) fn bytes(ty: &Type) -> f64 {
    tensors(ty).iter().map(|t| count(t) * t.dtype.bytes() as f64).sum()
}

fn tensors(ty: &Type) -> Vec<TensorType> {
    ty.flatten().unwrap_or_default()
}

fn count(t: &TensorType) -> f64 {
    t.shape.iter().map(|d| d.known().unwrap_or(1) as f64).product()
}

/// Work of an operator that reads every input once, writes its output once, and takes so many operations per output element.
pub(super) fn work_per_element(flops: f64, args: &[Type], out: &Type) -> Work {
    Work { flops: flops * elements(out), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
}

/// The extents that shapes of values broadcast to.
pub(super) fn broadcast_extents(shapes: &[&[usize]]) -> Result<Vec<usize>, OpError> {
    let dims = |s: &[usize]| s.iter().map(|&n| Dim::Known(n as i64)).collect::<Vec<_>>();
    let all = shapes.iter().try_fold(vec![], |all, s| broadcast_shapes(&all, &dims(s)))?;
    Ok(all.iter().map(|d| d.known().expect("values have known extents") as usize).collect())
}

/// For each element of a broadcast result, the element of a source.
pub(super) enum Sources {
    /// The one of the same number.
    Same,
    /// The only one.
    First,
    /// Of a run of so many elements, the one in this list, and as many steps on as it is within the run.
    Listed {
        /// Of each run.
        starts: Vec<usize>,
        /// Elements of a run.
        run: usize,
        /// From one element of a run to the next.
        step: usize,
    },
}

impl Sources {
    /// The number of the source's element for element `i` of the result (both row-major).
    pub(super) fn at(&self, i: usize) -> usize {
        match self {
            Sources::Same => i,
            Sources::First => 0,
            Sources::Listed { starts, run, step } => starts[i / run] + i % run * step,
        }
    }

    /// The same for all elements of a part of the result, by stretches of which the sources lie a step apart: the stretch as places within the part,
    /// the source of its first element, and the step.
    pub(super) fn stretches(&self, part: Range<usize>, mut f: impl FnMut(Range<usize>, usize, usize)) {
        match self {
            Sources::Same => f(0..part.len(), part.start, 1),
            Sources::First => f(0..part.len(), 0, 0),
            Sources::Listed { starts, run, step } => {
                let mut i = part.start;
                while i < part.end {
                    let within = i % run;
                    let n = (run - within).min(part.end - i);
                    f(i - part.start..i - part.start + n, starts[i / run] + within * step, *step);
                    i += n;
                }
            }
        }
    }
}

/// Which element of a source of shape `from` goes where in a result of shape `to` that it broadcasts to.
pub(super) fn broadcast_sources(from: &[usize], to: &[usize]) -> Sources {
    if from == to {
        return Sources::Same;
    }
    if from.iter().all(|&n| n == 1) {
        return Sources::First;
    }
    let (skip, strides) = (to.len() - from.len(), crate::tensor::row_major_strides(from));
    let is_one = |axis: usize| axis < skip || from[axis - skip] == 1;
    // The innermost axes that are alike, in that the source has all of them or none, make a run: no list as long as a weight.
    let last = to.iter().rposition(|&n| n != 1).expect("extents that differ are not all 1");
    let outer = (0..last).rev().find(|&axis| to[axis] != 1 && is_one(axis) != is_one(last)).map_or(0, |axis| axis + 1);
    let mut starts = vec![0];
    for (axis, &n) in to[..outer].iter().enumerate() {
        let step = if is_one(axis) { 0 } else { strides[axis - skip] };
        starts = starts.iter().flat_map(|&base| (0..n).map(move |i| base + i * step)).collect();
    }
    Sources::Listed { starts, run: to[outer..].iter().product(), step: usize::from(!is_one(last)) }
}

/// The axis roles of arguments that broadcast to the result, aligned at the last axis.
pub(super) fn broadcast_axes(args: &[Type]) -> AxisMap {
    let ranks: Vec<usize> = args.iter().map(|t| t.as_tensor().map_or(0, TensorType::rank)).collect();
    let out = ranks.iter().copied().max().unwrap_or(0);
    let role = |arg: &Type, rank: usize, axis: usize| {
        let to = axis + out - rank;
        match arg.as_tensor().map(|t| t.shape[axis]) {
            Some(Dim::Known(1)) => AxisRole::Broadcasts(to),
            Some(Dim::Known(_)) => AxisRole::Maps(to),
            _ => AxisRole::Opaque,
        }
    };
    AxisMap(args.iter().zip(&ranks).map(|(a, &r)| (0..r).map(|axis| role(a, r, axis)).collect()).collect())
}

/// All axes of all arguments opaque, for operators that take tensors only.
pub(super) fn opaque_axes(args: &[Type]) -> AxisMap {
    AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank)))
}

/// The element of a tensor that broadcasts to the index `i`, aligned at the last axis.
pub(super) fn broadcast_read(b: &Builder, t: TensorId, i: &[Scalar]) -> Scalar {
    let shape = b.shape(t);
    let skip = i.len() - shape.len();
    let index =
        shape.iter().zip(&i[skip..]).map(|(&n, i)| if b.stands_still(n, i) { Scalar::index(0) } else { i.clone() });
    b.read(t, index.collect::<Vec<_>>())
}

/// An axis number as TVM counts: from the end where it is negative. `limit` is the number of places.
pub(super) fn axis_of(axis: i64, limit: usize) -> Result<usize, OpError> {
    let n = limit as i64;
    let at = if axis < 0 { axis + n } else { axis };
    op_ensure!(0 <= at && at < n, "axis {axis} is not one of {limit} axes");
    Ok(at as usize)
}

/// Distinct axis numbers, as [`axis_of`] counts.
pub(super) fn axes_of(axes: &[i64], limit: usize) -> Result<Vec<usize>, OpError> {
    let mut found: Vec<usize> = Vec::with_capacity(axes.len());
    for &axis in axes {
        let at = axis_of(axis, limit)?;
        op_ensure!(!found.contains(&at), "axis {axis} is named twice");
        found.push(at);
    }
    Ok(found)
}

/// The fields of a tuple argument, which should all be tensors.
pub(super) fn tuple_arg<'a>(args: &'a [Type], i: usize, name: &str) -> Result<Vec<&'a TensorType>, OpError> {
    match args.get(i) {
        Some(Type::Tuple(fields)) => fields
            .iter()
            .map(|f| match f {
                Type::Tensor(t) => Ok(t),
                other => op_bail!("`{name}` holds {other}, but should hold tensors"),
            })
            .collect(),
        Some(other) => op_bail!("`{name}` is {other}, but should be a tuple of tensors"),
        None => op_bail!("`{name}` is missing"),
    }
}

/// A shape's extents as values have them.
pub(super) fn extents(shape: &[i64]) -> Vec<usize> {
    shape.iter().map(|&n| n as usize).collect()
}

/// The head of an `impl Op`: name, doc, inputs, attributes, class.
macro_rules! op_head {
    ($name:literal, $doc:literal, [$($input:literal),*], [$($attr:expr),* $(,)?], $class:ident) => {
        fn name(&self) -> &'static str {
            $name
        }
        fn doc(&self) -> &'static str {
            $doc
        }
        fn inputs(&self) -> &'static [&'static str] {
            &[$($input),*]
        }
        fn attrs(&self) -> &'static [$crate::ops::AttrField] {
            const ATTRS: &[$crate::ops::AttrField] = &[$($attr),*];
            ATTRS
        }
        fn class(&self) -> $crate::ops::Class {
            $crate::ops::Class::$class
        }
    };
}
pub(crate) use op_head;

/// A field of a schema, for `const` tables.
pub(super) const fn field(name: &'static str, kind: AttrKind, default: AttrDefault) -> AttrField {
    AttrField::new(name, kind, default)
}

/// A sample call.
pub(super) fn sample<const A: usize>(attrs: [(&'static str, AttrValue); A], args: Vec<Type>) -> Sample {
    Sample { attrs: attrs.into(), args }
}

/// A tensor type for samples.
pub(super) fn t(shape: &[i64], dtype: DType) -> Type {
    Type::tensor(shape, dtype)
}

/// A list of integers of an operator's record; an unset one is empty. Unlike [`Attrs::ints`] it refuses `?` with an error.
pub(super) fn ints_attr(attrs: &Attrs, name: &str) -> Result<Vec<i64>, OpError> {
    match attrs.get(name) {
        Some(AttrValue::None) | None => Ok(vec![]),
        Some(v) => v.as_ints().ok_or_else(|| OpError(format!("`{name}` is {v:?}, but should be a list of integers"))),
    }
}

/// A list of numbers of an operator's record; an unset one is empty.
pub(super) fn floats_attr(attrs: &Attrs, name: &str) -> Result<Vec<f64>, OpError> {
    match attrs.get(name) {
        Some(AttrValue::List(l)) => l.iter().map(AttrValue::as_float).collect::<Option<_>>(),
        Some(AttrValue::None) | None => Some(vec![]),
        Some(_) => None,
    }
    .ok_or_else(|| OpError(format!("`{name}` should be a list of numbers")))
}

/// The type of a value.
pub(super) fn value_type(v: &Value) -> Type {
    match v {
        Value::Tensor(t) => Type::Tensor(TensorType::of(t.shape().iter().map(|&n| Dim::Known(n as i64)), t.dtype())),
        Value::Tuple(f) => Type::tuple(f.iter().map(value_type)),
    }
}

fn operand_type(o: &Operand, b: &Builder) -> Type {
    match o {
        Operand::Tensor(t) => Type::tensor(b.shape(*t), b.dtype(*t)),
        Operand::Tuple(f) => Type::tuple(f.iter().map(|o| operand_type(o, b))),
        Operand::Counted { tensor, .. } => {
            let rest = b.shape(*tensor).iter().skip(1).map(|&n| Dim::Known(n));
            TensorType::of([Dim::Any].into_iter().chain(rest), b.dtype(*tensor)).into()
        }
    }
}

fn static_shapes(ty: &Type) -> Result<Vec<Vec<i64>>, OpError> {
    let known = |t: TensorType| {
        t.known_shape()
            .ok_or_else(|| OpError(format!("the result is {t}: its extents follow from values, not from types")))
    };
    tensors(ty).into_iter().map(known).collect()
}

/// The extents of every tensor in the result of a call on values, where the type relation gives them.
pub(super) fn value_shapes(op: &dyn Op, attrs: &Attrs, args: &[Value]) -> Result<Vec<Vec<usize>>, OpError> {
    let types: Vec<Type> = args.iter().map(value_type).collect();
    Ok(static_shapes(&op.infer(attrs, &types)?)?.iter().map(|s| extents(s)).collect())
}

/// The extents of every tensor in the result of a call on operands, where the type relation gives them.
pub(super) fn lowered_shapes(
    op: &dyn Op,
    attrs: &Attrs,
    args: &[Operand],
    b: &Builder,
) -> Result<Vec<Vec<i64>>, OpError> {
    let types: Vec<Type> = args.iter().map(|o| operand_type(o, b)).collect();
    static_shapes(&op.infer(attrs, &types)?)
}

/// Row-major strides as signed numbers.
pub(super) fn signed_strides(shape: &[usize]) -> Vec<i64> {
    crate::tensor::row_major_strides(shape).iter().map(|&s| s as i64).collect()
}

/// An argument of that type, all of whose extents are known, declared for a lowering.
pub(super) fn argument(b: &mut Builder, ty: &Type) -> Operand {
    match ty {
        Type::Tuple(fields) => Operand::Tuple(fields.iter().map(|f| argument(b, f)).collect()),
        _ => {
            let t = ty.as_tensor().expect("operators take tensors and tuples of them");
            Operand::Tensor(b.arg(&t.known_shape().expect("whoever asks has looked"), t.dtype))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_of_broadcasts() {
        let shapes: [(&[usize], &[usize]); 8] = [
            (&[2, 3, 4], &[2, 3, 4]),
            (&[1, 1], &[2, 3]),
            (&[4], &[2, 3, 4]),
            (&[2, 1, 1], &[2, 3, 4]),
            (&[3, 1], &[2, 3, 4]),
            (&[2, 1, 4], &[2, 3, 4]),
            (&[2, 1, 4, 1], &[2, 1, 4, 5]),
            (&[1, 3], &[0, 3]),
        ];
        for (from, to) in shapes {
            let (sources, strides) = (broadcast_sources(from, to), crate::tensor::row_major_strides(to));
            for i in 0..to.iter().product() {
                let index: Vec<usize> = to.iter().zip(&strides).map(|(n, s)| i / s % n).collect();
                let own = from.iter().zip(&index[to.len() - from.len()..]);
                let wanted = own.fold(0, |at, (&n, &k)| at * n + if n == 1 { 0 } else { k });
                assert_eq!(sources.at(i), wanted, "element {i} of {from:?} to {to:?}");
            }
            let all: usize = to.iter().product();
            for part in [0..all, 0..all / 2, all / 3..all, all / 2..all / 2] {
                let mut found = vec![None; part.len()];
                sources.stretches(part.clone(), |places, first, step| {
                    places.enumerate().for_each(|(n, place)| found[place] = Some(first + n * step));
                });
                assert_eq!(
                    found,
                    part.clone().map(|i| Some(sources.at(i))).collect::<Vec<_>>(),
                    "{part:?} of {from:?} to {to:?}"
                );
            }
        }
    }
}
