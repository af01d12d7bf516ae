//! Operators whose attributes are arguments: each is its static namesake with attributes read from values when it runs.

use crate::{
    ir::{AttrValue, Attrs, Dim, Name, TensorType, Type},
    loops::{Builder, Operand},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Class, Family, Op, OpError, Sample, StaticCall, Work, make_attrs,
        nn::{PAD_ATTRS, RESIZE2D, UPSAMPLING, UPSAMPLING3D, resized_somehow},
        op, op_bail, op_ensure,
        util::{axis_of, field, may_equal, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// An operator that takes attributes of a static operator as arguments.
#[derive(Debug)]
struct Dynamic {
    name: &'static str,
    doc: &'static str,
    inputs: &'static [&'static str],
    attrs: &'static [AttrField],
    /// The static operator.
    fixed: &'static str,
    /// The arguments that are attributes of it. The others, in order, are its own.
    decisive: &'static [usize],
    /// Which attribute each of those is, and how it is read.
    values: &'static [(&'static str, Reads)],
    infer: fn(&Attrs, &[Type]) -> Result<Type, OpError>,
    samples: fn() -> Vec<Sample>,
}

/// What an argument's elements become as an attribute.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Reads {
    /// An integer: the first of them.
    Int,
    /// A number: the first of them.
    Float,
    /// A list of integers.
    Ints,
    /// A list of numbers.
    Floats,
    /// A list of pairs of integers, a row each.
    Pairs,
    /// A list of integers for `reshape`, none of which changes the number of axes.
    Extents,
}

impl Reads {
    fn value(self, name: &str, t: &Tensor) -> Result<AttrValue, OpError> {
        let ints = t.to_i64_vec();
        Ok(match self {
            Reads::Int | Reads::Float if t.is_empty() => op_bail!("`{name}` holds no number"),
            Reads::Int => ints[0].into(),
            Reads::Float => t.get_f64(0).into(),
            Reads::Ints => AttrValue::ints(&ints),
            Reads::Floats => AttrValue::List(t.to_f64_vec().into_iter().map(AttrValue::from).collect()),
            Reads::Pairs => AttrValue::List(ints.chunks(2).map(AttrValue::ints).collect()),
            Reads::Extents => {
                let fixed = |n: &i64| *n >= -1 || *n == -3;
                op_ensure!(
                    ints.iter().all(fixed),
                    "`{name}` is {ints:?}, but -2 and -4 need a number of axes that types give"
                );
                AttrValue::ints(&ints)
            }
        })
    }
}

const fn unset(name: &'static str) -> AttrField {
    field(name, AttrKind::Ints, AttrDefault::None)
}

const DTYPE: AttrField = field("dtype", AttrKind::DType, AttrDefault::None);

/// The number of integers in a list argument.
fn length(args: &[Type], i: usize, name: &str) -> Result<usize, OpError> {
    let list = tensor_arg(args, i, name)?;
    // TVM takes whatever numbers and truncates them.
    op_ensure!(list.rank() <= 1 && list.dtype != DType::Bool, "`{name}` is {list}, but should be a list of numbers");
    match list.shape.first() {
        None => Ok(1),
        Some(Dim::Known(n)) if (0..=1024).contains(n) => Ok(*n as usize),
        Some(_) => op_bail!("`{name}` is {list}: its length, which is the result's number of axes, should be known"),
    }
}

/// Whether argument `i` is a factor.
fn scale(args: &[Type], i: usize) -> Result<(), OpError> {
    let v = tensor_arg(args, i, "scale")?;
    op_ensure!(v.rank() == 0 && v.dtype != DType::Bool, "a scale is {v}, but should be one number");
    Ok(())
}

fn unknown(rank: usize, dtype: DType) -> Type {
    TensorType::of(vec![Dim::Any; rank], dtype).into()
}

fn dtype(attrs: &Attrs) -> Result<DType, OpError> {
    attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))
}

/// A call of float data and of int64 lists of these lengths.
fn call(data: &[&[i64]], lists: &[i64], attrs: Vec<(&'static str, AttrValue)>) -> Sample {
    let data = data.iter().map(|s| t(s, DType::F32));
    Sample { attrs, args: data.chain(lists.iter().map(|&n| t(&[n], DType::I64))).collect() }
}

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Dynamic {
        name: "dyn.reshape",
        doc: "As reshape, with newshape as an argument.",
        inputs: &["data", "newshape"],
        attrs: &[unset("newshape"), field("allowzero", AttrKind::Bool, AttrDefault::Bool(false))],
        fixed: "reshape",
        decisive: &[1],
        values: &[("newshape", Reads::Extents)],
        infer: |_, args| Ok(unknown(length(args, 1, "newshape")?, tensor_arg(args, 0, "data")?.dtype)),
        samples: || vec![call(&[&[1, 1]], &[0], vec![])],
    },
    &Dynamic {
        name: "dyn.tile",
        doc: "As tile, with reps as an argument.",
        inputs: &["data", "reps"],
        attrs: &[unset("reps")],
        fixed: "tile",
        decisive: &[1],
        values: &[("reps", Reads::Ints)],
        infer: |_, args| {
            let x = tensor_arg(args, 0, "data")?;
            Ok(unknown(x.rank().max(length(args, 1, "reps")?), x.dtype))
        },
        samples: || vec![call(&[&[2, 3]], &[2], vec![]), call(&[&[2]], &[3], vec![])],
    },
    &Dynamic {
        name: "dyn.broadcast_to",
        doc: "As broadcast_to, with shape as an argument.",
        inputs: &["data", "shape"],
        attrs: &[unset("shape"), DTYPE],
        fixed: "broadcast_to",
        decisive: &[1],
        values: &[("shape", Reads::Ints)],
        infer: |_, args| Ok(unknown(length(args, 1, "shape")?, tensor_arg(args, 0, "data")?.dtype)),
        samples: || vec![call(&[&[1, 1]], &[3], vec![]), call(&[&[]], &[2], vec![])],
    },
    &Dynamic {
        name: "dyn.zeros",
        doc: "As zeros, with shape as an argument.",
        inputs: &["shape"],
        attrs: &[unset("shape"), DTYPE],
        fixed: "zeros",
        decisive: &[0],
        values: &[("shape", Reads::Ints)],
        infer: |attrs, args| Ok(unknown(length(args, 0, "shape")?, dtype(attrs)?)),
        samples: || vec![call(&[], &[2], vec![("dtype", DType::F32.into())])],
    },
    &Dynamic {
        name: "dyn.ones",
        doc: "As ones, with shape as an argument.",
        inputs: &["shape"],
        attrs: &[unset("shape"), DTYPE],
        fixed: "ones",
        decisive: &[0],
        values: &[("shape", Reads::Ints)],
        infer: |attrs, args| Ok(unknown(length(args, 0, "shape")?, dtype(attrs)?)),
        samples: || vec![call(&[], &[3], vec![("dtype", DType::I8.into())])],
    },
    &Dynamic {
        name: "dyn.full",
        doc: "As full, with shape as an argument.",
        inputs: &["fill_value", "shape"],
        attrs: &[unset("shape"), DTYPE],
        fixed: "full",
        decisive: &[1],
        values: &[("shape", Reads::Ints)],
        infer: |attrs, args| {
            let v = tensor_arg(args, 0, "fill_value")?;
            op_ensure!(v.rank() == 0, "`fill_value` is {v}, but should have no axes");
            Ok(unknown(length(args, 1, "shape")?, attrs.opt_dtype("dtype").unwrap_or(v.dtype)))
        },
        samples: || vec![call(&[&[]], &[2], vec![])],
    },
    &Dynamic {
        name: "dyn.expand_dims",
        doc: "As expand_dims, with axis as an argument.",
        inputs: &["data", "axis"],
        attrs: &[field("num_newaxis", AttrKind::Int, AttrDefault::Int(1))],
        fixed: "expand_dims",
        decisive: &[1],
        values: &[("axis", Reads::Int)],
        infer: |attrs, args| {
            let (x, new) = (tensor_arg(args, 0, "data")?, attrs.int("num_newaxis"));
            op_ensure!((0..=1024).contains(&new), "`num_newaxis` is {new}, but should be 0 or more (1024 at most)");
            length(args, 1, "axis")?;
            Ok(unknown(x.rank() + new as usize, x.dtype))
        },
        samples: || vec![Sample { attrs: vec![], args: vec![t(&[2, 3, 4], DType::F32), t(&[], DType::I32)] }],
    },
    &Dynamic {
        name: "dyn.squeeze",
        doc: "As squeeze, with axis as an argument.",
        inputs: &["data", "axis"],
        attrs: &[unset("axis")],
        fixed: "squeeze",
        decisive: &[1],
        values: &[("axis", Reads::Ints)],
        infer: |_, args| {
            let (x, gone) = (tensor_arg(args, 0, "data")?, length(args, 1, "axis")?);
            op_ensure!(gone <= x.rank(), "`data` is {x}, which has fewer axes than the {gone} that should go");
            Ok(unknown(x.rank() - gone, x.dtype))
        },
        samples: || vec![call(&[&[1, 1, 1, 1]], &[1], vec![])],
    },
    &Dynamic {
        name: "dyn.strided_slice",
        doc: "As strided_slice, with begin, end and strides as arguments.",
        inputs: &["data", "begin", "end", "strides"],
        attrs: &[
            unset("begin"),
            unset("end"),
            unset("strides"),
            field("slice_mode", AttrKind::OneOf(&["end", "size"]), AttrDefault::Str("end")),
            unset("axes"),
        ],
        fixed: "strided_slice",
        decisive: &[1, 2, 3],
        values: &[("begin", Reads::Ints), ("end", Reads::Ints), ("strides", Reads::Ints)],
        infer: |_, args| {
            let (x, n) = (tensor_arg(args, 0, "data")?, length(args, 1, "begin")?);
            let (end, strides) = (length(args, 2, "end")?, length(args, 3, "strides")?);
            op_ensure!(n <= x.rank() && end <= x.rank() && strides <= x.rank(), "`data` is {x}, which has fewer axes");
            let cut = n.max(end).max(strides);
            let shape = x.shape.iter().enumerate().map(|(k, &d)| if k < cut { Dim::Any } else { d });
            Ok(TensorType::of(shape.collect::<Vec<_>>(), x.dtype).into())
        },
        samples: || vec![call(&[&[5, 2]], &[0, 0, 0], vec![("slice_mode", "size".into())])],
    },
    &Dynamic {
        name: "dyn.one_hot",
        doc: "As one_hot, with depth as an argument.",
        inputs: &["indices", "on_value", "off_value", "depth"],
        attrs: &[
            field("depth", AttrKind::Int, AttrDefault::Int(1)),
            field("axis", AttrKind::Int, AttrDefault::Int(-1)),
            DTYPE,
        ],
        fixed: "one_hot",
        decisive: &[3],
        values: &[("depth", Reads::Int)],
        infer: |attrs, args| {
            let (i, on) = (tensor_arg(args, 0, "indices")?, tensor_arg(args, 1, "on_value")?);
            length(args, 3, "depth")?;
            let mut shape = i.shape.to_vec();
            shape.insert(axis_of(attrs.int("axis"), i.rank() + 1)?, Dim::Any);
            Ok(TensorType::of(shape, attrs.opt_dtype("dtype").unwrap_or(on.dtype)).into())
        },
        samples: || {
            let scalar = |d| t(&[], d);
            let args = vec![t(&[2], DType::I32), scalar(DType::F32), scalar(DType::F32), scalar(DType::I32)];
            vec![Sample { attrs: vec![], args }]
        },
    },
    &Dynamic {
        name: "dyn.topk",
        doc: "As topk, with k as an argument.",
        inputs: &["data", "k"],
        attrs: &[
            field("k", AttrKind::Int, AttrDefault::None),
            field("axis", AttrKind::Int, AttrDefault::Int(-1)),
            field("ret_type", AttrKind::OneOf(&["both", "values", "indices"]), AttrDefault::Str("both")),
            field("is_ascend", AttrKind::Bool, AttrDefault::Bool(false)),
            DTYPE,
        ],
        fixed: "topk",
        decisive: &[1],
        values: &[("k", Reads::Int)],
        infer: |attrs, args| {
            let x = tensor_arg(args, 0, "data")?;
            let k = length(args, 1, "k")?;
            op_ensure!(k == 1, "`k` should be one number");
            let mut shape = x.shape.to_vec();
            shape[axis_of(attrs.int("axis"), x.rank())?] = Dim::Any;
            let values = Type::from(TensorType::of(shape.iter().copied(), x.dtype));
            let places = Type::from(TensorType::of(shape, attrs.opt_dtype("dtype").unwrap_or(DType::I32)));
            Ok(match attrs.str("ret_type") {
                "values" => values,
                "indices" => places,
                _ => Type::tuple([values, places]),
            })
        },
        samples: || {
            let args = || vec![t(&[2, 4], DType::F32), t(&[], DType::I64)];
            vec![
                Sample { attrs: vec![], args: args() },
                Sample { attrs: vec![("ret_type", "indices".into()), ("dtype", DType::I64.into())], args: args() },
            ]
        },
    },
    &Dynamic {
        name: "dyn.nn.pad",
        doc: "As nn.pad, with pad_width as an argument: a row of two per axis.",
        inputs: &["data", "pad_width", "pad_val"],
        attrs: PAD_ATTRS,
        fixed: "nn.pad",
        decisive: &[1],
        values: &[("pad_width", Reads::Pairs)],
        infer: |_, args| {
            let (x, widths) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "pad_width")?);
            tensor_arg(args, 2, "pad_val")?;
            let want = [Dim::Known(x.rank() as i64), Dim::Known(2)];
            op_ensure!(
                widths.dtype.is_int() && widths.rank() == 2 && (0..2).all(|k| may_equal(widths.shape[k], want[k])),
                "`data` is {x} and `pad_width` {widths}, which should be a pair of integers per axis"
            );
            Ok(unknown(x.rank(), x.dtype))
        },
        samples: || {
            let args = vec![t(&[2, 3], DType::F32), t(&[2, 2], DType::I64), t(&[], DType::F32)];
            vec![Sample { attrs: vec![("pad_width", AttrValue::ints(&[]))], args }]
        },
    },
    &Dynamic {
        name: "dyn.nn.upsampling",
        doc: "As nn.upsampling, with the scales as arguments.",
        inputs: &["data", "scale_h", "scale_w"],
        attrs: UPSAMPLING,
        fixed: "nn.upsampling",
        decisive: &[1, 2],
        values: &[("scale_h", Reads::Float), ("scale_w", Reads::Float)],
        infer: |attrs, args| {
            (1..3).try_for_each(|i| scale(args, i))?;
            resized_somehow(attrs, "HW", tensor_arg(args, 0, "data")?)
        },
        samples: || {
            let attrs = vec![("scale_h", 0.0.into()), ("scale_w", 0.0.into()), ("layout", "NHWC".into())];
            vec![Sample { attrs, args: vec![t(&[1, 2, 3, 2], DType::F32), t(&[], DType::I32), t(&[], DType::I32)] }]
        },
    },
    &Dynamic {
        name: "dyn.nn.upsampling3d",
        doc: "As nn.upsampling3d, with the scales as arguments.",
        inputs: &["data", "scale_d", "scale_h", "scale_w"],
        attrs: UPSAMPLING3D,
        fixed: "nn.upsampling3d",
        decisive: &[1, 2, 3],
        values: &[("scale_d", Reads::Float), ("scale_h", Reads::Float), ("scale_w", Reads::Float)],
        infer: |attrs, args| {
            (1..4).try_for_each(|i| scale(args, i))?;
            resized_somehow(attrs, "DHW", tensor_arg(args, 0, "data")?)
        },
        samples: || {
            let attrs = ["scale_d", "scale_h", "scale_w"].map(|name| (name, 0.0.into()));
            let args = [t(&[1, 1, 2, 3, 2], DType::F32)].into_iter().chain(vec![t(&[], DType::I32); 3]);
            vec![Sample { attrs: attrs.into(), args: args.collect() }]
        },
    },
    &Dynamic {
        name: "dyn.image.resize2d",
        doc: "As image.resize2d, with size and roi as arguments.",
        inputs: &["data", "size", "roi"],
        attrs: RESIZE2D,
        fixed: "image.resize2d",
        decisive: &[1, 2],
        values: &[("size", Reads::Ints), ("roi", Reads::Floats)],
        infer: |attrs, args| {
            tensor_arg(args, 1, "size")?;
            tensor_arg(args, 2, "roi")?;
            resized_somehow(attrs, "HW", tensor_arg(args, 0, "data")?)
        },
        samples: || {
            let args = vec![t(&[1, 2, 2, 3], DType::F32), t(&[2], DType::I64), t(&[4], DType::F32)];
            vec![
                Sample { attrs: vec![], args: args.clone() },
                Sample { attrs: vec![("out_dtype", DType::F64.into())], args },
            ]
        },
    },
    &Dynamic {
        name: "dyn.sparse_to_dense",
        doc: "As sparse_to_dense, with output_shape as an argument.",
        inputs: &["sparse_indices", "sparse_values", "default_value", "output_shape"],
        attrs: &[],
        fixed: "sparse_to_dense",
        decisive: &[3],
        values: &[("output_shape", Reads::Ints)],
        infer: |_, args| Ok(unknown(length(args, 3, "output_shape")?, tensor_arg(args, 1, "sparse_values")?.dtype)),
        samples: || {
            let args = vec![t(&[2, 2], DType::I64), t(&[2], DType::F32), t(&[], DType::F32), t(&[2], DType::I64)];
            vec![Sample { attrs: vec![], args }]
        },
    },
];

impl Dynamic {
    /// Which of `n` arguments the static operator takes itself.
    fn own(&self, n: usize) -> Vec<usize> {
        (0..n).filter(|i| !self.decisive.contains(i)).collect()
    }
}

impl Op for Dynamic {
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
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        (self.infer)(attrs, args)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let values: Vec<&Tensor> = self.decisive.iter().map(|&i| args[i].tensor()).collect();
        let call = self.to_static(attrs, &values)?;
        let args: Vec<Value> = call.args.iter().map(|&i| args[i].clone()).collect();
        // The values may not be legal attributes for the other arguments.
        let fixed = call.op.op();
        let ty = fixed.infer(&call.attrs, &args.iter().map(crate::ops::util::value_type).collect::<Vec<_>>())?;
        let fits = ty.flatten().is_none_or(|t| t.iter().all(TensorType::is_sensible));
        op_ensure!(fits, "the result would be {ty}: more than memory can hold");
        fixed.eval(&call.attrs, &args)
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank)))
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, _: &Attrs, _: &[Operand], _: &mut Builder) -> Result<Operand, OpError> {
        op_bail!("the result's extents follow from values, not from types")
    }
    fn decided_by(&self, _: &Attrs) -> &'static [usize] {
        self.decisive
    }
    fn to_static(&self, attrs: &Attrs, values: &[&Tensor]) -> Result<StaticCall, OpError> {
        let fixed = op(self.fixed);
        let mut given: Vec<(Name, AttrValue)> = Vec::new();
        for (name, value) in attrs.iter() {
            let is_value = self.values.iter().any(|v| v.0 == name.as_str());
            if !is_value && fixed.op().attrs().iter().any(|f| f.name == name.as_str()) {
                given.push((name.clone(), value.clone()));
            }
        }
        for (&(name, reads), value) in self.values.iter().zip(values) {
            given.push((name.into(), reads.value(name, value)?));
        }
        let attrs = make_attrs(fixed, &given).map_err(|e| OpError(e.to_string()))?;
        Ok(StaticCall { op: fixed, attrs, args: self.own(self.inputs.len()) })
    }
    fn samples(&self) -> Vec<Sample> {
        (self.samples)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_as_values() {
        let reshape = op("dyn.reshape");
        let attrs = make_attrs(reshape, &[]).expect("no attribute is required");
        let x = Tensor::from_slice(&[2, 3], &[1i8, 2, 3, 4, 5, 6]);
        let shape = Tensor::from_slice(&[2], &[3i64, -1]);
        let y = reshape.op().eval(&attrs, &[x.clone().into(), shape.into()]).expect("six elements");
        assert_eq!(y.tensor().shape(), [3, 2]);
        for wrong in [4i64, -2] {
            let wrong = Tensor::from_slice(&[1], &[wrong]);
            assert!(reshape.op().eval(&attrs, &[x.clone().into(), wrong.into()]).is_err());
        }
    }
}
