//! Operators that make tensors.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{Tens, Val},
            node::Node,
            tensors,
        },
    },
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("Constant", constant),
    row("ConstantOfShape", constant_of_shape),
    row("EyeLike", eye_like),
    row("Range", range),
];

fn constant(n: &mut Node) -> Convert<Vec<Val>> {
    if let Some((elem, t)) = n.tensor_attr("value")? {
        let e = if t.len() > 64 { n.im.b.weight(&n.proto.output[0], t) } else { n.constant(t) };
        return Ok(vec![Val::Tensor(Tens { e, elem })]);
    }
    let points = |s: &str| s.chars().map(u32::from).collect::<Vec<u32>>();
    let value = if let Some(f) = n.opt_float("value_float")? {
        Tensor::scalar(f as f32)
    } else if let Some(f) = n.floats("value_floats")? {
        Tensor::from_f64_fn(DType::F32, &[f.len()], |i| f[i])
    } else if let Some(i) = n.opt_int("value_int")? {
        Tensor::scalar(i)
    } else if let Some(i) = n.ints("value_ints")? {
        Tensor::from_slice(&[i.len()], &i)
    } else if n.attr("value_string").is_some() {
        let text = n.text("value_string", "")?;
        let e = n.constant(tensors::of_points(&[], &[points(&text)]));
        return Ok(vec![Val::Tensor(Tens { e, elem: Elem::Text })]);
    } else if let Some(all) = n.texts("value_strings")? {
        let all: Vec<Vec<u32>> = all.iter().map(|s| points(s)).collect();
        let e = n.constant(tensors::of_points(&[all.len()], &all));
        return Ok(vec![Val::Tensor(Tens { e, elem: Elem::Text })]);
    } else {
        return Err(n.refuse("it has no value, or one that is not supported"));
    };
    let e = n.constant(value);
    n.one(e)
}

fn constant_of_shape(n: &mut Node) -> Convert<Vec<Val>> {
    let shape = n.x(0)?;
    let (elem, value) = n.tensor_attr("value")?.unwrap_or((Elem::Plain(DType::F32), Tensor::scalar(0f32)));
    n.ensure(value.len() == 1 && elem != Elem::Text, || "its value should be one number".into())?;
    let value = n.constant(value.reshaped(&[]));
    let e = n.filled(value, shape)?;
    Ok(vec![Val::Tensor(Tens { e, elem })])
}

fn eye_like(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let own = n.dtype(x)?;
    let (dtype, k) = (n.dtype_attr("dtype", own)?, n.int("k", 0)?);
    n.ensure(n.rank(x)? == 2, || "its input should be a matrix".into())?;
    let (rows, columns) = (n.places(x, 0, DType::I64)?, n.places(x, 1, DType::I64)?);
    let rows = n.with("add", rows, k as f64)?;
    let rows = n.trailing(rows, 1)?;
    let hit = n.bin("equal", rows, columns)?;
    let y = n.cast(hit, dtype)?;
    n.one(y)
}

fn range(n: &mut Node) -> Convert<Vec<Val>> {
    let mut bounds = Vec::new();
    for i in 0..3 {
        let e = n.x(i)?;
        bounds.push(n.reshape(e, &[])?);
    }
    let dtype = n.dtype(bounds[0])?;
    let known = bounds.iter().map(|&b| n.value(b)).collect::<Option<Vec<_>>>();
    if let (Some(v), false) = (&known, dtype.is_float()) {
        let (start, end, step) = (v[0].get_i64(0), v[1].get_i64(0), v[2].get_i64(0));
        n.ensure(step != 0, || "its step is 0".into())?;
        let count = ((i128::from(end) - i128::from(start)) as f64 / step as f64).ceil().max(0.0);
        n.ensure(count <= f64::from(u32::MAX), || "it is too long".into())?;
        let all = Tensor::from_i64_fn(dtype, &[count as usize], |i| start + i as i64 * step);
        let e = n.constant(all);
        return n.one(e);
    }
    let y = n.op("arange", &bounds, &[("dtype", dtype.into())])?;
    n.one(y)
}
