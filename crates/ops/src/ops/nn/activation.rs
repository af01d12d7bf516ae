//! Elementwise operators with attributes or a vector argument, and operators that only rename: bias_add, prelu, leaky_relu,
//! dropout, batch_flatten.

use super::norm::{axis_of, complete_vectors};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{may_equal, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&BIAS_ADD, &PRELU, &LeakyRelu, &Dropout, &BatchFlatten];

/// A function of an element and of the vector's element at its place along an axis.
#[derive(Debug)]
struct AlongAxis {
    name: &'static str,
    doc: &'static str,
    inputs: &'static [&'static str],
    takes_ints: bool,
    /// The function on floats, computed in f64 and rounded to the data's type.
    float: fn(f64, f64) -> f64,
    /// The function on integers, wrapped to the data's type.
    int: fn(i64, i64) -> i64,
    /// The function as a loop expression.
    lower: fn(Scalar, Scalar) -> Scalar,
}

const BIAS_ADD: AlongAxis = AlongAxis {
    name: "nn.bias_add",
    doc: "out = data + bias, the bias along one axis.
        C1: axis is one of data's. C2: bias is a vector of that axis or of one element, of data's type.",
    inputs: &["data", "bias"],
    takes_ints: true,
    float: |x, b| x + b,
    int: i64::wrapping_add,
    lower: |x, b| x + b,
};

const PRELU: AlongAxis = AlongAxis {
    name: "nn.prelu",
    doc: "out = data where data > 0, else alpha * data, the alpha along one axis.
        C1: axis is one of data's; the elements are floats. C2: alpha is a vector of that axis or of one
        element, of data's type.",
    inputs: &["data", "alpha"],
    takes_ints: false,
    float: |x, a| if x > 0.0 { x } else { a * x },
    int: |_, _| unreachable!("type inference refuses integers here"),
    lower: |x, a| {
        let zero = Scalar::int(0, x.dtype());
        Scalar::select(Scalar::binary(BinOp::Gt, x.clone(), zero), x.clone(), a * x)
    },
};

impl Op for AlongAxis {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        self.inputs
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[AttrField::new("axis", AttrKind::Int, AttrDefault::Int(1))];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Broadcast
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, v) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, self.inputs[1])?);
        let axis = axis_of(attrs.int("axis"), x.rank())?;
        op_ensure!(x.dtype.is_float() || self.takes_ints, "C1: `data` is {x}, but should be of floats");
        op_ensure!(
            v.rank() == 1
                && (may_equal(v.shape[0], x.shape[axis]) || v.shape[0] == Dim::Known(1))
                && v.dtype == x.dtype,
            "C2: `{}` is {v}, but `data` is {x}: a vector of its axis {axis} is wanted",
            self.inputs[1]
        );
        Ok(x.clone().into())
    }
    fn complete(&self, attrs: &Attrs, args: &[Type]) -> Vec<(usize, Type)> {
        complete_vectors(attrs, args)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, v) = (args[0].tensor(), args[1].tensor());
        let axis = axis_of(attrs.int("axis"), x.shape().len())?;
        let (inner, extent) = (x.shape()[axis + 1..].iter().product::<usize>(), x.shape()[axis]);
        let at = |i: usize| if v.len() == 1 { 0 } else { i / inner % extent };
        let out = match x.dtype().is_float() {
            true => {
                let along = v.to_f64_vec();
                Tensor::from_f64_fn(x.dtype(), x.shape(), |i| (self.float)(x.get_f64(i), along[at(i)]))
            }
            false => {
                let along = v.to_i64_vec();
                Tensor::from_i64_fn(x.dtype(), x.shape(), |i| (self.int)(x.get_i64(i), along[at(i)]))
            }
        };
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        match axis_of(attrs.int("axis"), rank) {
            Ok(axis) => {
                let single = args[1].as_tensor().is_none_or(|t| t.shape[0] == Dim::Known(1));
                let vector = if single { AxisRole::Broadcasts(axis) } else { AxisRole::Maps(axis) };
                AxisMap(vec![(0..rank).map(AxisRole::Maps).collect(), vec![vector]])
            }
            Err(_) => AxisMap::opaque([rank, 1]),
        }
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, v) = (args[0].tensor(), args[1].tensor());
        let shape = b.shape(x).to_vec();
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let single = b.shape(v)[0] == 1;
        let out = b.map(&shape, |b, i| {
            let at = if single { Scalar::index(0) } else { i[axis].clone() };
            (self.lower)(b.read(x, i.iter().cloned()), b.read(v, [at]))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |x: &[i64], axis: i64, d: DType| Sample {
            attrs: vec![("axis", axis.into())],
            args: vec![
                Type::tensor(x, d),
                Type::tensor(&[x[if axis < 0 { axis + x.len() as i64 } else { axis } as usize]], d),
            ],
        };
        let mut samples =
            vec![call(&[2, 3, 4], 1, DType::F32), call(&[2, 3], 1, DType::F32), call(&[2, 2, 3, 4], 3, DType::F32)];
        if self.takes_ints {
            samples.push(call(&[2, 3, 4], -1, DType::I32));
        }
        samples
    }
}

/// Facets of an operator whose every element comes from the element at its place.
macro_rules! elementwise_facets {
    ($flops:expr) => {
        fn inputs(&self) -> &'static [&'static str] {
            &["data"]
        }
        fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
            AxisMap(vec![(0..args[0].as_tensor().map_or(0, TensorType::rank)).map(AxisRole::Maps).collect()])
        }
        fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
            work_per_element($flops, args, out)
        }
    };
}

/// `nn.leaky_relu`.
#[derive(Debug)]
struct LeakyRelu;

impl Op for LeakyRelu {
    fn name(&self) -> &'static str {
        "nn.leaky_relu"
    }
    fn doc(&self) -> &'static str {
        "out = data where data > 0, else alpha * data; alpha is cut to an integer where data are integers.
        C1: the elements are numbers."
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[AttrField::new("alpha", AttrKind::Float, AttrDefault::Float(0.25))];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    elementwise_facets!(2.0);
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.dtype != DType::Bool, "C1: `data` is {x}, but should be of numbers");
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, alpha) = (args[0].tensor(), attrs.float("alpha"));
        if !x.dtype().is_float() {
            let leak = |v: i64| if v > 0 { v } else { v.wrapping_mul(alpha as i64) };
            return Ok(Tensor::from_i64_fn(x.dtype(), x.shape(), |i| leak(x.get_i64(i))).into());
        }
        let leak = |v: f64| if v > 0.0 { v } else { alpha * v };
        Ok(Tensor::from_f64_fn(x.dtype(), x.shape(), |i| leak(x.get_f64(i))).into())
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let alpha = Scalar::float(attrs.float("alpha"), dtype);
        let out = b.map(&shape, |b, i| {
            let v = b.read(x, i.iter().cloned());
            let positive = Scalar::binary(BinOp::Gt, v.clone(), Scalar::int(0, dtype));
            Scalar::select(positive, v.clone(), alpha * v)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |alpha: f64, d: DType| Sample {
            attrs: vec![("alpha", alpha.into())],
            args: vec![Type::tensor(&[2, 3], d)],
        };
        vec![call(0.25, DType::F32), call(0.5, DType::F32), call(0.5, DType::U8), call(2.5, DType::I32)]
    }
}

/// `nn.dropout`, as in inference.
#[derive(Debug)]
struct Dropout;

impl Op for Dropout {
    fn name(&self) -> &'static str {
        "nn.dropout"
    }
    fn doc(&self) -> &'static str {
        "Nothing is dropped in inference: the result is (data, a mask of ones)."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[AttrField::new("rate", AttrKind::Float, AttrDefault::Float(0.5))];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        Ok(Type::tuple([x.clone().into(), x.clone().into()]))
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        Ok(Value::Tuple(vec![x.clone().into(), Tensor::from_f64_fn(x.dtype(), x.shape(), |_| 1.0).into()]))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        // Its outputs are several.
        AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank)))
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let mask = b.map(&shape, |_, _| Scalar::int(1, dtype));
        Ok(Operand::Tuple(vec![x.into(), mask.into()]))
    }
    fn samples(&self) -> Vec<Sample> {
        vec![Sample { attrs: vec![], args: vec![Type::tensor(&[2, 3], DType::F32)] }]
    }
}

/// `nn.batch_flatten`.
#[derive(Debug)]
struct BatchFlatten;

impl Op for BatchFlatten {
    fn name(&self) -> &'static str {
        "nn.batch_flatten"
    }
    fn doc(&self) -> &'static str {
        "All axes but the first as one: out[n, k] is element k (row-major) of data[n].
        C1: data has at least one axis."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        &[]
    }
    fn class(&self) -> Class {
        Class::Injective
    }
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.rank() > 0, "C1: `data` is {x}, but should have at least one axis");
        let rest = x.shape[1..].iter().map(|d| d.known()).product::<Option<i64>>();
        Ok(TensorType::of([x.shape[0], rest.map_or(Dim::Any, Dim::Known)], x.dtype).into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        Ok(x.reshaped(&[x.shape()[0], x.shape()[1..].iter().product()]).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(1, TensorType::rank);
        AxisMap(vec![(0..rank).map(|k| if k == 0 { AxisRole::Maps(0) } else { AxisRole::Opaque }).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let shape = b.shape(x).to_vec();
        let rest = shape[1..].iter().product();
        let out = b.map(&[shape[0], rest], |b, i| {
            let mut inner = rest;
            let mut index = vec![i[0].clone()];
            for (k, &n) in shape.iter().enumerate().skip(1) {
                inner /= n.max(1);
                let quotient = i[1].clone().floor_div(inner.max(1));
                index.push(if k == 1 { quotient } else { quotient.floor_mod(n) });
            }
            b.read(x, index)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let shapes: [&[i64]; 4] = [&[2, 3, 4, 5], &[2, 3], &[3], &[2, 7, 1, 1]];
        shapes.map(|s| Sample { attrs: vec![], args: vec![Type::tensor(s, DType::F32)] }).into()
    }
}
