//! Reductions by segment.

use super::{super::node::Node, Results};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// The least or greatest value of a type.
fn end(dtype: DType, greatest: bool) -> f64 {
    let (low, high) = match dtype {
        DType::F64 => (f64::MIN, f64::MAX),
        d if d.is_float() => (f32::MIN as f64, f32::MAX as f64),
        d => d.int_range().map_or((0.0, 1.0), |(l, h)| (l as f64, h as f64)),
    };
    if greatest { high } else { low }
}

/// Rows of `x` reduced into the row that their number of `ids` names; rows of negative numbers are left out.
fn reduced(n: &mut Node, mode: &str, start: f64, rows: i64) -> Convert {
    let (x, ids) = (n.x(0)?, n.x(1)?);
    let (shape, ids_shape) = (n.known(x)?, n.known(ids)?);
    let ids = n.cast(ids, DType::I64)?;
    // What is left out goes to one more row, which is dropped.
    let negative = n.with("less", ids, 0.0)?;
    let spare = n.num(ids, rows as f64)?;
    let ids = n.op("where", &[negative, spare, ids], &[])?;
    let ids = n.expand(ids, 0)?;
    let out: Vec<i64> = std::iter::once(rows + 1).chain(shape[ids_shape.len()..].iter().copied()).collect();
    let dtype = n.dtype(x)?;
    let start = n.b.scalar(dtype, start);
    let data = n.op("full", &[start], &[("shape", out.into()), ("dtype", dtype.into())])?;
    let e = n.op("scatter_nd", &[data, ids, x], &[("mode", mode.into())])?;
    n.slice(e, 0, 0, rows)
}

/// The number of segments that the third argument says.
fn segments(n: &mut Node) -> Convert<i64> {
    let count = n.constant(2)?.get_i64(0);
    match (0..1 << 31).contains(&count) {
        true => Ok(count),
        false => n.refuse(format!("{count} segments are not possible")),
    }
}

/// UNSORTED_SEGMENT_SUM.
pub(in crate::frontend::tflite) fn unsorted_sum(n: &mut Node) -> Results {
    let rows = segments(n)?;
    Ok(vec![reduced(n, "add", 0.0, rows)?])
}

/// UNSORTED_SEGMENT_PROD.
pub(in crate::frontend::tflite) fn unsorted_prod(n: &mut Node) -> Results {
    let rows = segments(n)?;
    Ok(vec![reduced(n, "mul", 1.0, rows)?])
}

/// UNSORTED_SEGMENT_MAX.
pub(in crate::frontend::tflite) fn unsorted_max(n: &mut Node) -> Results {
    let rows = segments(n)?;
    let start = end(n.out_dtype(0)?, false);
    Ok(vec![reduced(n, "max", start, rows)?])
}

/// UNSORTED_SEGMENT_MIN.
pub(in crate::frontend::tflite) fn unsorted_min(n: &mut Node) -> Results {
    let rows = segments(n)?;
    let start = end(n.out_dtype(0)?, true);
    Ok(vec![reduced(n, "min", start, rows)?])
}

/// SEGMENT_SUM: as many rows as the last number says.
pub(in crate::frontend::tflite) fn sum(n: &mut Node) -> Results {
    let (x, ids) = (n.x(0)?, n.x(1)?);
    if let Some(known) = n.b.value(ids) {
        let rows = known.to_i64_vec().last().map_or(0, |l| l + 1);
        return Ok(vec![reduced(n, "add", 0.0, rows.max(0))?]);
    }
    let shape = n.known(x)?;
    let ids = n.cast(ids, DType::I64)?;
    let last: ExprId = n.op("max", &[ids], &[("axis", [0].into()), ("keepdims", true.into())])?;
    let rows = n.with("add", last, 1.0)?;
    let rest = n.b.ints(&shape[1..]);
    let out = if shape.len() > 1 { n.concat(&[rows, rest], 0)? } else { rows };
    let dtype = n.dtype(x)?;
    let zeros = n.op("dyn.zeros", &[out], &[("dtype", dtype.into())])?;
    let ids = n.expand(ids, 0)?;
    Ok(vec![n.op("scatter_nd", &[zeros, ids, x], &[("mode", "add".into())])?])
}
