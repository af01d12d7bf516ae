//! Reductions.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::DType,
};

pub(super) const OPS: &[Row] = &[
    row("ArgMax", |n| arg(n, "argmax")),
    row("ArgMin", |n| arg(n, "argmin")),
    row("ReduceL1", |n| {
        reduction(n, 18, |n, x, axes, keep| {
            let magnitude = n.un("abs", x)?;
            n.reduce("sum", magnitude, axes, keep)
        })
    }),
    row("ReduceL2", |n| {
        reduction(n, 18, |n, x, axes, keep| {
            let squares = sum_of_squares(n, x, axes, keep)?;
            let dtype = n.dtype(squares)?;
            let wide = if dtype.is_float() { squares } else { n.cast(squares, DType::F64)? };
            let root = n.un("sqrt", wide)?;
            n.cast(root, dtype)
        })
    }),
    row("ReduceLogSum", |n| {
        reduction(n, 18, |n, x, axes, keep| {
            let sum = n.reduce("sum", x, axes, keep)?;
            n.un("log", sum)
        })
    }),
    row("ReduceLogSumExp", |n| reduction(n, 18, log_sum_exp)),
    row("ReduceMax", |n| reduction(n, 18, |n, x, axes, keep| extreme(n, "max", x, axes, keep))),
    row("ReduceMean", |n| reduction(n, 18, |n, x, axes, keep| n.reduce("mean", x, axes, keep))),
    row("ReduceMin", |n| reduction(n, 18, |n, x, axes, keep| extreme(n, "min", x, axes, keep))),
    row("ReduceProd", |n| reduction(n, 18, |n, x, axes, keep| n.reduce("prod", x, axes, keep))),
    row("ReduceSum", |n| reduction(n, 13, |n, x, axes, keep| n.reduce("sum", x, axes, keep))),
    row("ReduceSumSquare", |n| reduction(n, 18, sum_of_squares)),
];

/// A reduction whose axes are an attribute before a version, and an input from it on.
fn reduction(n: &mut Node, since: i64, f: fn(&mut Node, ExprId, &[usize], bool) -> Convert) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    if n.version >= since
        && let Some(axes) = n.opt(1)?
        && n.value(axes).is_none()
        && n.ty(axes)?.elements() != Some(0)
    {
        let y = over_unknown(n, x, axes, f)?;
        return n.one(y);
    }
    let axes = if n.version >= since && n.has(1) && n.ty(n.x(1)?)?.elements() == Some(0) {
        None
    } else if n.version >= since {
        n.known_ints(1)?
    } else {
        n.ints("axes")?
    };
    let keep = n.flag("keepdims", true)?;
    let nothing = n.version >= since && n.flag("noop_with_empty_axes", false)?;
    let axes = match axes {
        Some(axes) if !axes.is_empty() => {
            let mut axes = axes.iter().map(|&a| n.axis_of(a, rank)).collect::<Convert<Vec<_>>>()?;
            axes.sort_unstable();
            axes.dedup();
            axes
        }
        // What is not reduced is transformed all the same.
        _ if nothing => Vec::new(),
        _ => (0..rank).collect(),
    };
    let y = f(n, x, &axes, keep)?;
    n.one(y)
}

/// A reduction over axes that are known only while running: of how many axes there are, each is reduced or not. The reduction is
/// of what is flattened: axes that stay come first.
fn over_unknown(n: &mut Node, x: ExprId, axes: ExprId, f: fn(&mut Node, ExprId, &[usize], bool) -> Convert) -> Convert {
    let rank = n.rank(x)?;
    let keep = n.flag("keepdims", true)?;
    let count = n.extent(axes, 0)? as usize;
    n.ensure(count <= rank, || format!("reduces {count} axes of {rank}"))?;
    let axes = n.counted(axes, rank)?;
    // Each choice of axes is a branch.
    let subsets: Vec<Vec<usize>> = (0u32..1 << rank.min(16))
        .filter(|s| s.count_ones() as usize == count)
        .map(|s| (0..rank).filter(|k| s >> k & 1 == 1).collect())
        .collect();
    n.ensure(rank <= 8, || "its axes are known only while running, and there are more than 8".into())?;
    let mut result = None;
    for subset in subsets {
        let y = f(n, x, &subset, keep)?;
        result = Some(match result {
            None => y,
            Some(other) => {
                let mut all = None;
                for &axis in &subset {
                    let hit = n.among(axes, axis)?;
                    all = Some(match all {
                        None => hit,
                        Some(a) => n.bin("logical_and", a, hit)?,
                    });
                }
                match all {
                    Some(cond) => n.either(cond, y, other)?,
                    None => y,
                }
            }
        });
    }
    result.ok_or_else(|| n.refuse("there is nothing to reduce"))
}

fn sum_of_squares(n: &mut Node, x: ExprId, axes: &[usize], keep: bool) -> Convert {
    let squares = n.mul(x, x)?;
    n.reduce("sum", squares, axes, keep)
}

fn log_sum_exp(n: &mut Node, x: ExprId, axes: &[usize], keep: bool) -> Convert {
    if axes.is_empty() {
        return Ok(x);
    }
    if n.ty(x)?.elements() == Some(0) {
        let e = n.un("exp", x)?;
        let sum = n.reduce("sum", e, axes, keep)?;
        return n.un("log", sum);
    }
    let most = n.reduce("max", x, axes, true)?;
    // Of infinities alone, what is subtracted must be a number.
    let finite = n.un("isfinite", most)?;
    let zero = n.c(most, 0.0)?;
    let most = n.select(finite, most, zero)?;
    let less = n.sub(x, most)?;
    let e = n.un("exp", less)?;
    let sum = n.reduce("sum", e, axes, true)?;
    let log = n.un("log", sum)?;
    let y = n.add(log, most)?;
    if keep { Ok(y) } else { n.squeeze(y, axes) }
}

/// The greatest or least; of truth values, whether any or all hold.
fn extreme(n: &mut Node, name: &str, x: ExprId, axes: &[usize], keep: bool) -> Convert {
    match n.dtype(x)? {
        DType::Bool => n.reduce(if name == "max" { "any" } else { "all" }, x, axes, keep),
        _ => n.reduce(name, x, axes, keep),
    }
}

fn arg(n: &mut Node, name: &str) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let axis = n.int("axis", 0)?;
    let axis = n.axis_of(axis, rank)?;
    let (keep, last) = (n.flag("keepdims", true)?, n.flag("select_last_index", false)?);
    let attrs = [("axis", [axis as i64].into()), ("keepdims", keep.into()), ("select_last_index", last.into())];
    let y = n.op(name, &[x], &attrs)?;
    let y = n.cast(y, DType::I64)?;
    n.one(y)
}
