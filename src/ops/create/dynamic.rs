//! Operators whose attributes are arguments: each is its static namesake with attributes read from values when it runs.

use crate::{
    ir::{AttrValue, Attrs, Dim, Name, TensorType, Type},
    loops::{Builder, Operand},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Class, Family, Op, OpError, Sample, Settled, Work, make_attrs, op,
        op_bail, op_ensure,
        util::{axis_of, field, t, tensor_arg, work_per_element},
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
    /// Which attribute each of those is, and whether that is a list.
    values: &'static [(&'static str, bool)],
    infer: fn(&Attrs, &[Type]) -> Result<Type, OpError>,
    samples: fn() -> Vec<Sample>,
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
        values: &[("newshape", true)],
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
        values: &[("reps", true)],
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
        values: &[("shape", true)],
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
        values: &[("shape", true)],
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
        values: &[("shape", true)],
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
        values: &[("shape", true)],
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
        values: &[("axis", false)],
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
        values: &[("axis", true)],
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
        values: &[("begin", true), ("end", true), ("strides", true)],
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
        values: &[("depth", false)],
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
        values: &[("k", false)],
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
        let settled = self.settle(attrs, &values)?;
        let args: Vec<Value> = settled.args.iter().map(|&i| args[i].clone()).collect();
        // The values may not be legal attributes for the other arguments.
        let fixed = settled.op.op();
        fixed.infer(&settled.attrs, &args.iter().map(crate::ops::util::value_type).collect::<Vec<_>>())?;
        fixed.eval(&settled.attrs, &args)
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
    fn settle(&self, attrs: &Attrs, values: &[&Tensor]) -> Result<Settled, OpError> {
        let fixed = op(self.fixed);
        let mut given: Vec<(Name, AttrValue)> = Vec::new();
        for (name, value) in attrs.iter() {
            let is_value = self.values.iter().any(|v| v.0 == name.as_str());
            if !is_value && fixed.op().attrs().iter().any(|f| f.name == name.as_str()) {
                given.push((name.clone(), value.clone()));
            }
        }
        for (&(name, list), value) in self.values.iter().zip(values) {
            let numbers = value.to_i64_vec();
            let value = match (list, numbers.first()) {
                (true, _) => AttrValue::ints(&numbers),
                (false, Some(&n)) => n.into(),
                (false, None) => op_bail!("`{name}` holds no number"),
            };
            given.push((name.into(), value));
        }
        let attrs = make_attrs(fixed, &given).map_err(|e| OpError(e.to_string()))?;
        Ok(Settled { op: fixed, attrs, args: self.own(self.inputs.len()) })
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
        let wrong = Tensor::from_slice(&[1], &[4i64]);
        assert!(reshape.op().eval(&attrs, &[x.into(), wrong.into()]).is_err());
    }
}
