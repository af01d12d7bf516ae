//! Several tensors made one, and one several.

use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_bail, op_ensure,
        util::{
            axis_of, field, lowered_shapes, may_equal, op_head, sample, signed_strides, t, tensor_arg, tuple_arg,
            value_shapes, work_per_element,
        },
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Concatenate, &Stack, &Split];

/// Copies the runs of bytes that tensors hold for each place outside an axis, one tensor's after another's. `inner` is the
/// number of elements of each tensor from the axis on.
fn interleaved(parts: &[&Tensor], inner: &[usize], shape: &[usize]) -> Tensor {
    let mut out = Tensor::zeros(parts[0].dtype(), shape);
    let size = parts[0].dtype().bytes();
    let run: usize = inner.iter().sum::<usize>() * size;
    if run == 0 {
        return out;
    }
    for (k, to) in out.bytes_mut().chunks_exact_mut(run).enumerate() {
        let mut at = 0;
        for (part, n) in parts.iter().zip(inner) {
            let n = n * size;
            to[at..at + n].copy_from_slice(&part.bytes()[k * n..][..n]);
            at += n;
        }
    }
    out
}

/// The last of some values whose start is not beyond an index; starts ascend. The first is asked for by itself, since others may be appended to it
/// where it lies; the rest by halves: each row of hundreds of a recurrent network's steps would ask for all of them.
fn chosen(at: &Scalar, each: &[(i64, Scalar)]) -> Option<Scalar> {
    fn by_halves(at: &Scalar, each: &[(i64, Scalar)], cut: usize) -> Option<Scalar> {
        if let [(_, only)] = each {
            return Some(only.clone());
        }
        let (before, after) = each.split_at(cut);
        let side = |part: &[(i64, Scalar)]| by_halves(at, part, part.len() / 2);
        Some(Scalar::select(at.clone().lt(Scalar::index(after.first()?.0)), side(before)?, side(after)?))
    }
    by_halves(at, each, 1)
}

/// All parts have the first one's element type and rank, and extents that may be equal except along `but`. Gives the
/// common extents: the known one, where one is known.
fn same_but(parts: &[&TensorType], but: Option<usize>) -> Result<Vec<Dim>, OpError> {
    let first = parts[0];
    let mut shape = first.shape.to_vec();
    for part in &parts[1..] {
        op_ensure!(
            part.dtype == first.dtype && part.rank() == first.rank(),
            "C2: `data` holds {first} and {part}, which should have one element type and number of axes"
        );
        for axis in (0..shape.len()).filter(|k| Some(*k) != but) {
            op_ensure!(
                may_equal(shape[axis], part.shape[axis]),
                "C3: `data` holds {first} and {part}, which differ at axis {axis}"
            );
            if shape[axis].known().is_none() {
                shape[axis] = part.shape[axis];
            }
        }
    }
    Ok(shape)
}

fn field_values(v: &Value) -> Vec<&Tensor> {
    v.fields().iter().map(Value::tensor).collect()
}

fn tuple_ranks(ty: &Type) -> Vec<usize> {
    ty.flatten().unwrap_or_default().iter().map(TensorType::rank).collect()
}

/// `concatenate`.
#[derive(Debug)]
struct Concatenate;

impl Op for Concatenate {
    op_head!(
        "concatenate",
        "The tensors of data one after another along axis. C1: there is at least one. C2: they have one element type and
        number of axes. C3: their extents are equal except along axis.",
        ["data"],
        [field("axis", AttrKind::Int, AttrDefault::Int(0))],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let parts = tuple_arg(args, 0, "data")?;
        op_ensure!(!parts.is_empty(), "C1: `data` is an empty tuple");
        let axis = axis_of(attrs.int("axis"), parts[0].rank())?;
        let mut shape = same_but(&parts, Some(axis))?;
        shape[axis] =
            parts.iter().try_fold(0i64, |sum, p| Some(sum + p.shape[axis].known()?)).map_or(Dim::Any, Dim::Known);
        Ok(TensorType::of(shape, parts[0].dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let parts = field_values(&args[0]);
        let axis = axis_of(attrs.int("axis"), parts[0].shape().len())?;
        let inner: Vec<usize> = parts.iter().map(|p| p.shape()[axis..].iter().product()).collect();
        Ok(interleaved(&parts, &inner, &value_shapes(self, attrs, args)?[0]).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = tuple_ranks(&args[0]);
        let Ok(joined) = axis_of(attrs.int("axis"), ranks.first().copied().unwrap_or(0)) else {
            return AxisMap::opaque(ranks);
        };
        let role = |k| if k == joined { AxisRole::Opaque } else { AxisRole::Maps(k) };
        AxisMap(ranks.into_iter().map(|r| (0..r).map(role).collect()).collect())
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let parts: Vec<_> = args[0].fields().iter().map(Operand::tensor).collect();
        let out = b.map(&shape, |b, i| {
            let mut begin = 0;
            let each = parts.iter().map(|&part| {
                let mut index = i.to_vec();
                index[axis] = i[axis].clone() - begin;
                let read = b.read(part, index);
                let start = begin;
                begin += b.shape(part)[axis];
                (start, read)
            });
            let each: Vec<(i64, Scalar)> = each.collect();
            chosen(&i[axis], &each).expect("C1: at least one part")
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |axis: i64, shapes: &[&[i64]], d| {
            sample([("axis", axis.into())], vec![Type::tuple(shapes.iter().map(|s| t(s, d)))])
        };
        vec![
            call(0, &[&[2, 3], &[1, 3]], DType::F32),
            call(1, &[&[2, 3], &[2, 1], &[2, 2]], DType::F32),
            call(-1, &[&[2, 3]], DType::I8),
            call(1, &[&[2, 1, 2], &[2, 4, 2]], DType::I64),
            call(0, &[&[1, 3], &[2, 3], &[1, 3], &[1, 3], &[3, 3], &[1, 3], &[2, 3]], DType::F32),
        ]
    }
}

/// `stack`.
#[derive(Debug)]
struct Stack;

impl Op for Stack {
    op_head!(
        "stack",
        "The tensors of data side by side along a new axis. C1: there is at least one. C2: they have one element type and
        number of axes. C3: their extents are equal.",
        ["data"],
        [field("axis", AttrKind::Int, AttrDefault::Int(0))],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let parts = tuple_arg(args, 0, "data")?;
        op_ensure!(!parts.is_empty(), "C1: `data` is an empty tuple");
        let axis = axis_of(attrs.int("axis"), parts[0].rank() + 1)?;
        let mut shape = same_but(&parts, None)?;
        shape.insert(axis, Dim::Known(parts.len() as i64));
        Ok(TensorType::of(shape, parts[0].dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let parts = field_values(&args[0]);
        let axis = axis_of(attrs.int("axis"), parts[0].shape().len() + 1)?;
        let inner: Vec<usize> = parts.iter().map(|p| p.shape()[axis..].iter().product()).collect();
        Ok(interleaved(&parts, &inner, &value_shapes(self, attrs, args)?[0]).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = tuple_ranks(&args[0]);
        let Ok(new) = axis_of(attrs.int("axis"), ranks.first().copied().unwrap_or(0) + 1) else {
            return AxisMap::opaque(ranks);
        };
        let role = |k| AxisRole::Maps(if k < new { k } else { k + 1 });
        AxisMap(ranks.into_iter().map(|r| (0..r).map(role).collect()).collect())
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let parts: Vec<_> = args[0].fields().iter().map(Operand::tensor).collect();
        let out = b.map(&shape, |b, i| {
            let mut index = i.to_vec();
            let which = index.remove(axis);
            let each: Vec<(i64, Scalar)> = (0..).zip(parts.iter().map(|&p| b.read(p, index.iter().cloned()))).collect();
            chosen(&which, &each).expect("C1: at least one part")
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |axis: i64, shapes: &[&[i64]], d| {
            sample([("axis", axis.into())], vec![Type::tuple(shapes.iter().map(|s| t(s, d)))])
        };
        vec![
            call(0, &[&[2, 3], &[2, 3]], DType::F32),
            call(1, &[&[2, 3], &[2, 3], &[2, 3]], DType::I8),
            call(-1, &[&[2], &[2]], DType::F32),
            call(0, &[&[], &[]], DType::I32),
        ]
    }
}

/// `split`.
#[derive(Debug)]
struct Split;

impl Split {
    /// Where each part begins and how long it is; the length of the last may be unknown, and with equal parts all are.
    fn parts(attrs: &Attrs, extent: Dim) -> Result<Vec<(i64, Dim)>, OpError> {
        if let Some(AttrValue::List(_)) = attrs.get("indices_or_sections") {
            let cuts = crate::ops::util::ints_attr(attrs, "indices_or_sections")?;
            let mut parts = Vec::new();
            let mut begin = 0;
            for cut in cuts {
                op_ensure!(
                    cut > begin && extent.known().is_none_or(|n| cut < n),
                    "C2: the axis has {extent} elements, and `indices_or_sections` holds {cut}, but should ascend within them"
                );
                parts.push((begin, Dim::Known(cut - begin)));
                begin = cut;
            }
            parts.push((begin, extent.known().map_or(Dim::Any, |n| Dim::Known(n - begin))));
            return Ok(parts);
        }
        let Some(n) = attrs.opt_int("indices_or_sections") else {
            op_bail!("`indices_or_sections` should be an integer or a list of integers");
        };
        op_ensure!(
            (1..=1 << 20).contains(&n) && extent.known().is_none_or(|e| e % n == 0),
            "C1: the axis has {extent} elements, which are not split into {n} equal parts"
        );
        Ok(match extent.known() {
            Some(e) => (0..n).map(|k| (k * (e / n), Dim::Known(e / n))).collect(),
            None => vec![(0, Dim::Any); n as usize],
        })
    }
}

impl Op for Split {
    op_head!(
        "split",
        "data cut along axis into a tuple: into that many equal parts where indices_or_sections is an integer, or before each
        index that it lists. C1: the number divides the extent. C2: indices ascend between 0 and the extent.",
        ["data"],
        [
            field("indices_or_sections", AttrKind::Any, AttrDefault::Required),
            field("axis", AttrKind::Int, AttrDefault::Int(0))
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let axis = axis_of(attrs.int("axis"), x.rank())?;
        let part = |len: Dim| {
            let mut shape = x.shape.to_vec();
            shape[axis] = len;
            Type::from(TensorType::of(shape, x.dtype))
        };
        Ok(Type::tuple(Split::parts(attrs, x.shape[axis])?.into_iter().map(|(_, len)| part(len))))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let axis = axis_of(attrs.int("axis"), x.shape().len())?;
        let strides = signed_strides(x.shape());
        let parts = Split::parts(attrs, Dim::Known(x.shape()[axis] as i64))?;
        let part = |(begin, len): (i64, Dim)| {
            let mut shape = x.shape().to_vec();
            shape[axis] = len.known().expect("values have known extents") as usize;
            x.strided(&shape, begin * strides[axis], &strides).into()
        };
        Ok(Value::Tuple(parts.into_iter().map(part).collect()))
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let cut = axis_of(attrs.int("axis"), rank).ok();
        let role = |k| if Some(k) == cut { AxisRole::Opaque } else { AxisRole::Maps(k) };
        AxisMap(vec![(0..rank).map(role).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let from = b.shape(x).to_vec();
        let axis = axis_of(attrs.int("axis"), from.len())?;
        let parts = Split::parts(attrs, Dim::Known(from[axis]))?;
        let mut fields = Vec::new();
        for (begin, len) in parts {
            let mut shape = from.clone();
            shape[axis] = len.known().expect("the extent is known");
            let part = b.map(&shape, |b, i| {
                let mut index = i.to_vec();
                index[axis] = i[axis].clone() + begin;
                b.read(x, index)
            });
            fields.push(Operand::Tensor(part));
        }
        Ok(Operand::Tuple(fields))
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([("indices_or_sections", 2.into())], vec![t(&[4, 3], DType::F32)]),
            sample([("indices_or_sections", 3.into()), ("axis", (-1).into())], vec![t(&[2, 6], DType::I8)]),
            sample([("indices_or_sections", [1, 3].into()), ("axis", 1.into())], vec![t(&[2, 4, 2], DType::F32)]),
            sample([("indices_or_sections", [2].into())], vec![t(&[5], DType::F32)]),
        ]
    }
}
