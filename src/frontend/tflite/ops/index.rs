//! Elements by index: gathering and scattering, choosing, searching, ordering.

use super::{super::node::Node, Results};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// GATHER.
pub(in crate::frontend::tflite) fn gather(n: &mut Node) -> Results {
    let (x, indices) = (n.x(0)?, n.x(1)?);
    let attrs = [("axis", n.int(0, 0).into()), ("batch_dims", n.int(1, 0).into())];
    Ok(vec![n.op("take", &[x, indices], &attrs)?])
}

/// Indices whose last axis is brought to the front.
fn index_first(n: &mut Node, indices: ExprId) -> Convert {
    let rank = n.rank(indices)? as i64;
    if rank == 0 {
        return n.refuse("indices should have an axis");
    }
    let axes: Vec<i64> = std::iter::once(rank - 1).chain(0..rank - 1).collect();
    n.transpose(indices, &axes)
}

/// GATHER_ND.
pub(in crate::frontend::tflite) fn gather_nd(n: &mut Node) -> Results {
    let (x, indices) = (n.x(0)?, n.x(1)?);
    let rank = n.rank(indices)?;
    let depth = n.extent(indices, rank.saturating_sub(1))?;
    let indices = index_first(n, indices)?;
    Ok(vec![n.op("gather_nd", &[x, indices], &[("index_rank", depth.into())])?])
}

/// SCATTER_ND: updates of the same element add up.
pub(in crate::frontend::tflite) fn scatter_nd(n: &mut Node) -> Results {
    let (indices, updates, shape) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let dtype = n.dtype(updates)?;
    let zeros = match n.b.value(shape) {
        Some(t) => n.op("zeros", &[], &[("shape", t.to_i64_vec().into()), ("dtype", dtype.into())])?,
        None => n.op("dyn.zeros", &[shape], &[("dtype", dtype.into())])?,
    };
    let indices = index_first(n, indices)?;
    Ok(vec![n.op("scatter_nd", &[zeros, indices, updates], &[("mode", "add".into())])?])
}

/// ONE_HOT.
pub(in crate::frontend::tflite) fn one_hot(n: &mut Node) -> Results {
    let (indices, depth, on, off) = (n.x(0)?, n.x(1)?, n.x(2)?, n.x(3)?);
    let (on, off) = (n.reshape(on, &[])?, n.reshape(off, &[])?);
    let dtype = n.dtype(on)?;
    let axis = n.int(0, 0);
    let e = match n.b.value(depth) {
        Some(d) => {
            let attrs = [("depth", d.get_i64(0).into()), ("axis", axis.into()), ("dtype", dtype.into())];
            n.op("one_hot", &[indices, on, off], &attrs)?
        }
        None => n.op("dyn.one_hot", &[indices, on, off, depth], &[("axis", axis.into()), ("dtype", dtype.into())])?,
    };
    Ok(vec![e])
}

/// EMBEDDING_LOOKUP.
pub(in crate::frontend::tflite) fn embedding_lookup(n: &mut Node) -> Results {
    let ids = n.x(0)?;
    let out = n.out_dtype(0)?;
    let table = n.x(1)?;
    let table = match n.dtype(table)? == out {
        true => table,
        false => super::unary::widened(n, 1)?,
    };
    Ok(vec![n.op("take", &[table, ids], &[("axis", 0.into())])?])
}

/// SPARSE_TO_DENSE.
pub(in crate::frontend::tflite) fn sparse_to_dense(n: &mut Node) -> Results {
    let (indices, values, default) = (n.x(0)?, n.x(2)?, n.x(3)?);
    let shape = n.ints(1)?;
    let default = n.reshape(default, &[])?;
    let dtype = n.dtype(values)?;
    let attrs = [("shape", shape.clone().into()), ("dtype", dtype.into())];
    let data = n.op("full", &[default], &attrs)?;
    // One index, a list of indices, or a list of tuples of them.
    let depth = shape.len() as i64;
    let rows = match n.rank(indices)? {
        0 => 1,
        _ => n.extent(indices, 0)?,
    };
    let indices = n.reshape(indices, &[rows, depth])?;
    let values = n.op("broadcast_to", &[values], &[("shape", [rows].into())])?;
    let indices = index_first(n, indices)?;
    Ok(vec![n.op("scatter_nd", &[data, indices, values], &[("mode", "update".into())])?])
}

/// TOPK_V2.
pub(in crate::frontend::tflite) fn topk(n: &mut Node) -> Results {
    let (x, k) = (n.x(0)?, n.x(1)?);
    let dtype = n.out_dtype(1)?;
    let attrs = |k: Option<i64>| {
        let mut attrs = vec![("axis", (-1).into()), ("ret_type", "both".into()), ("dtype", dtype.into())];
        attrs.extend(k.map(|k| ("k", k.into())));
        attrs
    };
    let both = match n.b.value(k) {
        Some(k) => n.op("topk", &[x], &attrs(Some(k.get_i64(0))))?,
        None => n.op("dyn.topk", &[x, k], &attrs(None))?,
    };
    Ok(vec![n.b.field(both, 0), n.b.field(both, 1)])
}

/// ARG_MAX and ARG_MIN: the first of equal elements.
fn arg(n: &mut Node, relay: &str) -> Results {
    let x = n.x(0)?;
    let axis = n.ints(1)?;
    let e = n.op(relay, &[x], &[("axis", axis.into())])?;
    let dtype = n.out_dtype(0)?;
    Ok(vec![n.cast(e, dtype)?])
}

/// ARG_MAX.
pub(in crate::frontend::tflite) fn arg_max(n: &mut Node) -> Results {
    arg(n, "argmax")
}

/// ARG_MIN.
pub(in crate::frontend::tflite) fn arg_min(n: &mut Node) -> Results {
    arg(n, "argmin")
}

/// WHERE: the indices of what is true.
pub(in crate::frontend::tflite) fn where_true(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let x = if n.dtype(x)? == DType::Bool { x } else { n.with("not_equal", x, 0.0)? };
    let e = n.op("argwhere", &[x], &[])?;
    let dtype = n.out_dtype(0)?;
    Ok(vec![n.cast(e, dtype)?])
}

/// SELECT: a condition of fewer axes chooses whole rows.
pub(in crate::frontend::tflite) fn select(n: &mut Node) -> Results {
    let (mut condition, x, y) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let (have, want) = (n.rank(condition)?, n.rank(x)?);
    if have > 0 && have < want {
        condition = n.op(
            "expand_dims",
            &[condition],
            &[("axis", (-1).into()), ("num_newaxis", ((want - have) as i64).into())],
        )?;
    }
    Ok(vec![n.op("where", &[condition, x, y], &[])?])
}

/// SELECT_V2.
pub(in crate::frontend::tflite) fn select_v2(n: &mut Node) -> Results {
    let args = [n.x(0)?, n.x(1)?, n.x(2)?];
    Ok(vec![n.op("where", &args, &[])?])
}

/// UNIQUE: in the order of first occurrence.
pub(in crate::frontend::tflite) fn unique(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let found = n.op("unique", &[x], &[("sorted", false.into())])?;
    // Values, places of first occurrence, the number of each element's value, number of values.
    let (values, inverse, count) = (n.b.field(found, 0), n.b.field(found, 2), n.b.field(found, 3));
    let (begin, step) = (n.b.ints(&[0]), n.b.ints(&[1]));
    let end = n.cast(count, DType::I64)?;
    let end = n.reshape(end, &[1])?;
    let values = n.op("dyn.strided_slice", &[values, begin, end, step], &[])?;
    let dtype = n.out_dtype(1)?;
    Ok(vec![values, n.cast(inverse, dtype)?])
}

/// CUMSUM.
pub(in crate::frontend::tflite) fn cumsum(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let axis = n.ints(1)?.first().copied().unwrap_or(0);
    let (exclusive, reverse) = (n.flag(0), n.flag(1));
    let turn = |n: &mut Node, e: ExprId| match reverse {
        true => n.op("reverse", &[e], &[("axis", axis.into())]),
        false => Ok(e),
    };
    let e = turn(n, x)?;
    let e = n.op("cumsum", &[e], &[("axis", axis.into()), ("exclusive", exclusive.into())])?;
    Ok(vec![turn(n, e)?])
}

/// BUCKETIZE.
pub(in crate::frontend::tflite) fn bucketize(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let bounds = n.op.options.and_then(|o| o.floats(0)).unwrap_or_default();
    let wide = if n.dtype(x)? == DType::F32 { DType::F32 } else { DType::F64 };
    let x = n.cast(x, wide)?;
    let bounds = n.b.constant(Tensor::from_f64_fn(wide, &[bounds.len()], |i| bounds[i] as f64));
    let dtype = n.out_dtype(0)?;
    Ok(vec![n.op("searchsorted", &[bounds, x], &[("right", true.into()), ("dtype", dtype.into())])?])
}

/// MATRIX_DIAG.
pub(in crate::frontend::tflite) fn matrix_diag(n: &mut Node) -> Results {
    let x = n.x(0)?;
    // Further axes may be of unknown extents.
    let Some(last) = n.rank(x)?.checked_sub(1) else { return n.refuse("data should have an axis at least") };
    let extent = n.extent(x, last)?;
    let rows = n.expand(x, -2)?;
    let mut reps = vec![1; last];
    reps.extend([extent, 1]);
    let rows = n.op("tile", &[rows], &[("reps", reps.into())])?;
    let zeros = n.un("zeros_like", rows)?;
    Ok(vec![n.bin("matrix_set_diag", zeros, x)?])
}

/// MATRIX_SET_DIAG.
pub(in crate::frontend::tflite) fn matrix_set_diag(n: &mut Node) -> Results {
    let (x, diagonal) = (n.x(0)?, n.x(1)?);
    Ok(vec![n.bin("matrix_set_diag", x, diagonal)?])
}
