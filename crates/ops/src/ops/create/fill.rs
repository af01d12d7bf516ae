//! Tensors of equal elements.

use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{
            bytes, field, ints_attr, lowered_shapes, op_head, sample, t, tensor_arg, value_shapes, work_per_element,
        },
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Constant { name: "zeros", doc: "Zeros of the given shape and dtype. C1: no extent is negative.", value: 0 },
    &Constant { name: "ones", doc: "Ones of the given shape and dtype. C1: no extent is negative.", value: 1 },
    &ConstantLike { name: "zeros_like", doc: "Zeros of data's type.", value: 0 },
    &ConstantLike { name: "ones_like", doc: "Ones of data's type.", value: 1 },
    &Full,
    &FullLike,
];

const SHAPE: AttrField = field("shape", AttrKind::Ints, AttrDefault::Required);
const DTYPE: AttrField = field("dtype", AttrKind::DType, AttrDefault::None);

/// The extents in the attribute `shape`.
fn shape_attr(attrs: &Attrs) -> Result<Vec<i64>, OpError> {
    let shape = ints_attr(attrs, "shape")?;
    op_ensure!(shape.iter().all(|&n| n >= 0), "C1: `shape` is {shape:?}, but should hold no negative numbers");
    Ok(shape)
}

fn write_work(out: &Type) -> Work {
    Work { flops: 0.0, bytes_read: 0.0, bytes_written: bytes(out) }
}

/// `zeros` or `ones`.
#[derive(Debug)]
struct Constant {
    name: &'static str,
    doc: &'static str,
    value: i64,
}

impl Op for Constant {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &[]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[SHAPE, DTYPE];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, attrs: &Attrs, _: &[Type]) -> Result<Type, OpError> {
        let dtype = attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))?;
        Ok(Type::tensor(&shape_attr(attrs)?, dtype))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let dtype = attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))?;
        Ok(Tensor::from_i64_fn(dtype, &value_shapes(self, attrs, args)?[0], |_| self.value).into())
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap(vec![])
    }
    fn work(&self, _: &Attrs, _: &[Type], out: &Type) -> Work {
        write_work(out)
    }
    fn lower(&self, attrs: &Attrs, _: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let dtype = attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))?;
        Ok(b.map(&shape_attr(attrs)?, |_, _| Scalar::int(self.value, dtype)).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |s: &[i64], d: DType| sample([("shape", s.into()), ("dtype", d.into())], vec![]);
        vec![call(&[2, 3], DType::F32), call(&[], DType::I64), call(&[3], DType::Bool), call(&[2], DType::F16)]
    }
}

/// `zeros_like` or `ones_like`.
#[derive(Debug)]
struct ConstantLike {
    name: &'static str,
    doc: &'static str,
    value: i64,
}

impl Op for ConstantLike {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        &[]
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        Ok(tensor_arg(args, 0, "data")?.clone().into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        Ok(Tensor::from_i64_fn(x.dtype(), x.shape(), |_| self.value).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(vec![(0..args[0].as_tensor().map_or(0, TensorType::rank)).map(AxisRole::Maps).collect()])
    }
    fn work(&self, _: &Attrs, _: &[Type], out: &Type) -> Work {
        write_work(out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (shape, dtype) = (b.shape(args[0].tensor()).to_vec(), b.dtype(args[0].tensor()));
        Ok(b.map(&shape, |_, _| Scalar::int(self.value, dtype)).into())
    }
    fn samples(&self) -> Vec<Sample> {
        [DType::F32, DType::I8, DType::Bool].map(|d| sample([], vec![t(&[2, 3], d)])).into()
    }
}

/// The value of a scalar argument as another type.
fn converted(v: &Tensor, dtype: DType, shape: &[usize]) -> Tensor {
    match v.dtype().is_float() {
        true => Tensor::from_f64_fn(dtype, shape, |_| v.get_f64(0)),
        false => Tensor::from_i64_fn(dtype, shape, |_| v.get_i64(0)),
    }
}

fn scalar_arg<'a>(args: &'a [Type], i: usize, name: &str) -> Result<&'a TensorType, OpError> {
    let v = tensor_arg(args, i, name)?;
    op_ensure!(v.rank() == 0, "C2: `{name}` is {v}, but should have no axes");
    Ok(v)
}

/// `full`.
#[derive(Debug)]
struct Full;

impl Op for Full {
    op_head!(
        "full",
        "fill_value everywhere in a tensor of the given shape and dtype (fill_value's, where none is given).
        C1: no extent is negative. C2: fill_value has no axes.",
        ["fill_value"],
        [SHAPE, DTYPE],
        Elementwise
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let v = scalar_arg(args, 0, "fill_value")?;
        Ok(Type::tensor(&shape_attr(attrs)?, attrs.opt_dtype("dtype").unwrap_or(v.dtype)))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let v = args[0].tensor();
        let dtype = attrs.opt_dtype("dtype").unwrap_or(v.dtype());
        Ok(converted(v, dtype, &value_shapes(self, attrs, args)?[0]).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque([args[0].as_tensor().map_or(0, TensorType::rank)])
    }
    fn work(&self, _: &Attrs, _: &[Type], out: &Type) -> Work {
        write_work(out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let v = args[0].tensor();
        let dtype = attrs.opt_dtype("dtype").unwrap_or(b.dtype(v));
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        Ok(b.map(&shape, |b, _| b.read(v, []).cast(dtype)).into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([("shape", [2, 3].into())], vec![t(&[], DType::F32)]),
            sample([("shape", [2].into()), ("dtype", DType::I64.into())], vec![t(&[], DType::F32)]),
            sample([("shape", [0].into())], vec![t(&[], DType::I8)]),
        ]
    }
}

/// `full_like`.
#[derive(Debug)]
struct FullLike;

impl Op for FullLike {
    op_head!(
        "full_like",
        "fill_value, converted to data's element type, everywhere in a tensor of data's shape. C2: fill_value has no axes.",
        ["data", "fill_value"],
        [],
        Elementwise
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        scalar_arg(args, 1, "fill_value")?;
        Ok(tensor_arg(args, 0, "data")?.clone().into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        Ok(converted(args[1].tensor(), x.dtype(), x.shape()).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let roles = (0..args[0].as_tensor().map_or(0, TensorType::rank)).map(AxisRole::Maps).collect();
        AxisMap(vec![roles, vec![]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, &args[1..], out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, v) = (args[0].tensor(), args[1].tensor());
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        Ok(b.map(&shape, |b, _| b.read(v, []).cast(dtype)).into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[2, 3], DType::F32), t(&[], DType::F32)]),
            sample([], vec![t(&[2], DType::I8), t(&[], DType::I32)]),
        ]
    }
}
