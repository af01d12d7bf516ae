//! Shapes: views, joining and splitting, repetition, padding.

use super::{
    super::{node::Node, schema::TensorInfo},
    Results,
};
use crate::{
    frontend::Convert,
    ir::{AttrValue, ExprId},
    tensor::{DType, Tensor},
};

/// RESHAPE.
pub(in crate::frontend::tflite) fn reshape(n: &mut Node) -> Results {
    let x = n.x(0)?;
    if let Some(shape) = n.opt(1) {
        return match n.b.value(shape) {
            Some(t) => Ok(vec![n.reshape_exact(x, &t.to_i64_vec())?]),
            None => Ok(vec![n.op("dyn.reshape", &[x, shape], &[("allowzero", true.into())])?]),
        };
    }
    let given = n.op.options.and_then(|o| o.ints(0)).map(|v| v.into_iter().map(i64::from).collect::<Vec<_>>());
    let shape = match given {
        // A single 0 is what old converters wrote for a scalar.
        Some(s) if s == [0] => Vec::new(),
        Some(s) => s,
        None => n.output(0)?.shape.iter().map(|d| d.unwrap_or(-1)).collect(),
    };
    Ok(vec![n.reshape_exact(x, &shape)?])
}

/// SQUEEZE.
pub(in crate::frontend::tflite) fn squeeze(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let given = n.op.options.and_then(|o| o.ints(0)).unwrap_or_default();
    let axes: Vec<i64> = match given.is_empty() {
        true => {
            let shape = n.shape(x)?;
            (0..rank).filter(|&i| shape[i] == Some(1)).map(|i| i as i64).collect()
        }
        false => given.into_iter().map(|a| n.axis(a as i64, rank).map(|a| a as i64)).collect::<Convert<_>>()?,
    };
    if axes.is_empty() {
        return Ok(vec![x]);
    }
    Ok(vec![n.op("squeeze", &[x], &[("axis", axes.into())])?])
}

/// EXPAND_DIMS.
pub(in crate::frontend::tflite) fn expand_dims(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let axis = n.ints(1)?;
    match axis[..] {
        [axis] => Ok(vec![n.expand(x, axis)?]),
        _ => n.refuse("one axis is expected"),
    }
}

/// TRANSPOSE.
pub(in crate::frontend::tflite) fn transpose(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let axes = n.ints(1)?;
    Ok(vec![n.transpose(x, &axes)?])
}

/// PACK.
pub(in crate::frontend::tflite) fn pack(n: &mut Node) -> Results {
    let parts = (0..n.count()).map(|i| n.x(i)).collect::<Convert<Vec<_>>>()?;
    let tuple = n.b.tuple(&parts);
    let axis = n.int(1, 0);
    Ok(vec![n.op("stack", &[tuple], &[("axis", axis.into())])?])
}

/// UNPACK.
pub(in crate::frontend::tflite) fn unpack(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let axis = n.axis(n.int(1, 0), n.rank(x)?)?;
    let extent = n.extent(x, axis)?;
    if extent != n.op.outputs.len() as i64 {
        return n.refuse(format!("{extent} parts are not the {} that are named", n.op.outputs.len()));
    }
    let parts = (0..extent).map(|i| {
        let part = n.slice(x, axis as i64, i, i + 1)?;
        n.op("squeeze", &[part], &[("axis", [axis as i64].into())])
    });
    parts.collect()
}

/// Parts of these extents along an axis.
fn parts(n: &mut Node, x: ExprId, axis: usize, sizes: &[i64]) -> Results {
    let mut begin = 0;
    let parts = sizes.iter().map(|&size| {
        begin += size;
        n.slice(x, axis as i64, begin - size, begin)
    });
    parts.collect()
}

/// SPLIT.
pub(in crate::frontend::tflite) fn split(n: &mut Node) -> Results {
    let x = n.x(1)?;
    let axis = n.ints(0)?.first().copied().unwrap_or(0);
    let axis = n.axis(axis, n.rank(x)?)?;
    let count = n.op.outputs.len() as i64;
    let extent = n.extent(x, axis)?;
    if count == 0 || extent % count != 0 {
        return n.refuse(format!("{extent} does not divide into {count} parts"));
    }
    parts(n, x, axis, &vec![extent / count; count as usize])
}

/// SPLIT_V.
pub(in crate::frontend::tflite) fn split_v(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let mut sizes = n.ints(1)?;
    let axis = n.ints(2)?.first().copied().unwrap_or(0);
    let axis = n.axis(axis, n.rank(x)?)?;
    let extent = n.extent(x, axis)?;
    let total = |sizes: &[i64]| sizes.iter().filter(|&&s| s >= 0).fold(0i64, |n, &s| n.saturating_add(s));
    let rest = extent.saturating_sub(total(&sizes));
    for s in &mut sizes {
        if *s < 0 {
            *s = rest;
        }
    }
    if rest < 0 || total(&sizes) != extent {
        return n.refuse(format!("parts of {sizes:?} do not make up {extent}"));
    }
    parts(n, x, axis, &sizes)
}

/// CONCATENATION.
pub(in crate::frontend::tflite) fn concatenation(n: &mut Node) -> Results {
    let mut parts = (0..n.count()).map(|i| n.x(i)).collect::<Convert<Vec<_>>>()?;
    if n.quantized()? {
        let (so, zo) = n.quant_out(0)?;
        let dtype = n.out_dtype(0)?;
        for (i, part) in parts.iter_mut().enumerate() {
            let (s, z) = n.quant_in(i)?;
            if (s, z) == (so, zo) {
                continue;
            }
            // This is in floats, as the kernel has it.
            let scale = s * (1.0 / so);
            let bias = -(z as f32) * scale;
            *part = n.table(*part, dtype, |q| (q as f32 * scale + bias).round() as i64 + zo)?;
        }
    }
    let (axis, code) = (n.int(0, 0), n.byte(1));
    let e = n.concat(&parts, axis)?;
    Ok(vec![match n.quantized()? {
        true => n.activate_quantized(e, code)?,
        false => n.activate(e, code)?,
    }])
}

/// TILE.
pub(in crate::frontend::tflite) fn tile(n: &mut Node) -> Results {
    let (x, reps) = (n.x(0)?, n.x(1)?);
    Ok(vec![match n.b.value(reps) {
        Some(t) => n.op("tile", &[x], &[("reps", t.to_i64_vec().into())])?,
        None => n.op("dyn.tile", &[x, reps], &[])?,
    }])
}

/// BROADCAST_TO.
pub(in crate::frontend::tflite) fn broadcast_to(n: &mut Node) -> Results {
    let (x, shape) = (n.x(0)?, n.x(1)?);
    Ok(vec![match n.b.value(shape) {
        Some(t) => n.op("broadcast_to", &[x], &[("shape", t.to_i64_vec().into())])?,
        None => n.op("dyn.broadcast_to", &[x, shape], &[])?,
    }])
}

/// BROADCAST_ARGS: the shape that two shapes broadcast to.
pub(in crate::frontend::tflite) fn broadcast_args(n: &mut Node) -> Results {
    let (x, y) = (n.x(0)?, n.x(1)?);
    let (a, b) = (n.extent(x, 0)?, n.extent(y, 0)?);
    let dtype = n.dtype(x)?;
    let mut padded = |e: ExprId, by: i64| -> Convert {
        if by == 0 {
            return Ok(e);
        }
        let ones = n.b.constant(Tensor::from_i64_fn(dtype, &[by as usize], |_| 1));
        n.concat(&[ones, e], 0)
    };
    let (x, y) = (padded(x, (b - a).max(0))?, padded(y, (a - b).max(0))?);
    let one = n.with("equal", x, 1.0)?;
    Ok(vec![n.op("where", &[one, y, x], &[])?])
}

/// SHAPE.
pub(in crate::frontend::tflite) fn shape(n: &mut Node) -> Results {
    let (x, dtype) = (n.x(0)?, n.out_dtype(0)?);
    Ok(vec![n.op("shape_of", &[x], &[("dtype", dtype.into())])?])
}

/// RANK.
pub(in crate::frontend::tflite) fn rank(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let rank = n.rank(x)? as f64;
    let dtype = n.out_dtype(0)?;
    Ok(vec![n.b.scalar(dtype, rank)])
}

/// FILL.
pub(in crate::frontend::tflite) fn fill(n: &mut Node) -> Results {
    let (shape, value) = (n.x(0)?, n.x(1)?);
    let dtype = n.dtype(value)?;
    let value = n.reshape(value, &[])?;
    Ok(vec![match n.b.value(shape) {
        Some(t) => n.op("full", &[value], &[("shape", t.to_i64_vec().into()), ("dtype", dtype.into())])?,
        None => n.op("dyn.full", &[value, shape], &[("dtype", dtype.into())])?,
    }])
}

/// RANGE.
pub(in crate::frontend::tflite) fn range(n: &mut Node) -> Results {
    let ends = (0..3).map(|i| n.x(i)).collect::<Convert<Vec<_>>>()?;
    let ends = ends.into_iter().map(|e| n.reshape(e, &[])).collect::<Convert<Vec<_>>>()?;
    let dtype = n.out_dtype(0)?;
    Ok(vec![n.op("arange", &ends, &[("dtype", dtype.into())])?])
}

/// Pairs of numbers as an attribute.
pub(super) fn pairs(values: &[i64]) -> AttrValue {
    AttrValue::List(values.chunks(2).map(AttrValue::from).collect())
}

/// What stands for zero in a tensor: its zero point where it is quantized.
pub(super) fn zero_of(info: &TensorInfo) -> i64 {
    info.quant.as_ref().and_then(|q| q.zeros.first().copied()).unwrap_or(0)
}

/// PAD and PADV2.
pub(in crate::frontend::tflite) fn pad(n: &mut Node) -> Results {
    let (x, widths) = (n.x(0)?, n.x(1)?);
    let dtype = n.dtype(x)?;
    let value = match n.opt(2) {
        Some(v) => n.reshape(v, &[])?,
        None => {
            let zero = if Node::is_quantized(n.output(0)?) { zero_of(n.output(0)?) } else { 0 };
            n.b.scalar(dtype, zero as f64)
        }
    };
    Ok(vec![match n.b.value(widths) {
        Some(t) => n.op("nn.pad", &[x, value], &[("pad_width", pairs(&t.to_i64_vec()))])?,
        None => n.op("dyn.nn.pad", &[x, widths, value], &[])?,
    }])
}

/// MIRROR_PAD.
pub(in crate::frontend::tflite) fn mirror_pad(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let widths = n.ints(1)?;
    let mode = if n.byte(0) == 0 { "REFLECT" } else { "SYMMETRIC" };
    Ok(vec![n.op("nn.mirror_pad", &[x], &[("mode", mode.into()), ("pad_width", pairs(&widths))])?])
}

/// REVERSE_V2.
pub(in crate::frontend::tflite) fn reverse(n: &mut Node) -> Results {
    let mut e = n.x(0)?;
    for axis in n.ints(1)? {
        e = n.op("reverse", &[e], &[("axis", axis.into())])?;
    }
    Ok(vec![e])
}

/// REVERSE_SEQUENCE.
pub(in crate::frontend::tflite) fn reverse_sequence(n: &mut Node) -> Results {
    let (x, lengths) = (n.x(0)?, n.x(1)?);
    let lengths = n.cast(lengths, DType::I32)?;
    let attrs = [("seq_axis", n.int(0, 0).into()), ("batch_axis", n.int(1, 0).into())];
    Ok(vec![n.op("reverse_sequence", &[x, lengths], &attrs)?])
}

/// DILATE: zeros, or another value, between elements.
pub(in crate::frontend::tflite) fn dilate(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let (strides, value) = (n.ints(1)?, n.constant(2)?.get_f64(0));
    Ok(vec![n.op("nn.dilate", &[x], &[("strides", strides.into()), ("dilation_value", value.into())])?])
}
