//! Functions over axes.

use super::super::super::{
    call::{Arg, Call},
    layer::ints,
};
use super::{Function, integer, parameter, tensor};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// The functions.
pub(super) const OPERATIONS: &[(&str, Function)] = &[
    ("Sum", |c| reduce(c, "sum")),
    ("Prod", |c| reduce(c, "prod")),
    ("Max", |c| reduce(c, "max")),
    ("Min", |c| reduce(c, "min")),
    ("Amax", |c| reduce(c, "max")),
    ("Amin", |c| reduce(c, "min")),
    ("Mean", |c| reduce(c, "mean")),
    ("Any", |c| reduce(c, "any")),
    ("All", |c| reduce(c, "all")),
    ("CountNonzero", |c| {
        let x = tensor(c, 0, "x")?;
        let rank = c.rank(x)? as i64;
        let axes = parameter(c, 1, "axis").as_ref().and_then(ints).unwrap_or_else(|| (0..rank).collect());
        let there = if c.dtype(x)? == DType::Bool { x } else { c.with("not_equal", x, 0.0)? };
        let there = c.cast(there, DType::I32)?;
        c.reduce("sum", there, &axes, false).map(Arg::of)
    }),
    ("Var", |c| variance(c, false)),
    ("Std", |c| variance(c, true)),
    ("Logsumexp", |c| {
        let (x, axes, keep) = reduced(c)?;
        let most = c.reduce("max", x, &axes, true)?;
        let e = c.bin("subtract", x, most)?;
        let e = c.un("exp", e)?;
        let sum = c.reduce("sum", e, &axes, keep)?;
        let log = c.un("log", sum)?;
        let most = c.reduce("max", x, &axes, keep)?;
        c.bin("add", log, most).map(Arg::of)
    }),
    ("Norm", |c| {
        if parameter(c, 1, "ord").is_some_and(|v| v.as_f64() != Some(2.0) && v.as_str() != Some("fro")) {
            return Err(c.refuse("only norms of order 2 are supported"));
        }
        let (x, axes, keep) = reduced(c)?;
        let squares = c.bin("multiply", x, x)?;
        let sum = c.reduce("sum", squares, &axes, keep)?;
        c.un("sqrt", sum).map(Arg::of)
    }),
    ("Argmax", |c| place(c, "argmax")),
    ("Argmin", |c| place(c, "argmin")),
    ("Cumsum", |c| running(c, "cumsum")),
    ("CumSum", |c| running(c, "cumsum")),
    ("Cumprod", |c| running(c, "cumprod")),
    ("CumProd", |c| running(c, "cumprod")),
    ("Sort", |c| {
        let x = tensor(c, 0, "x")?;
        let axis = integer(c, 1, "axis", -1)?;
        c.op("sort", &[x], &[("axis", axis.into())]).map(Arg::of)
    }),
    ("Argsort", |c| {
        let x = tensor(c, 0, "x")?;
        let axis = integer(c, 1, "axis", -1)?;
        c.op("argsort", &[x], &[("axis", axis.into()), ("dtype", DType::I32.into())]).map(Arg::of)
    }),
    ("TopK", |c| {
        let x = tensor(c, 0, "x")?;
        let k = integer(c, 1, "k", 1)?;
        let attrs = [("k", k.into()), ("axis", (-1).into()), ("ret_type", "both".into()), ("dtype", DType::I32.into())];
        let both = c.op("topk", &[x], &attrs)?;
        Ok(Arg::List(vec![Arg::of(c.s.b.field(both, 0)), Arg::of(c.s.b.field(both, 1))]))
    }),
];

/// What is reduced, over which axes, and whether they stay.
fn reduced(c: &mut Call) -> Convert<(ExprId, Vec<i64>, bool)> {
    let x = tensor(c, 0, "x")?;
    let rank = c.rank(x)? as i64;
    let axes = parameter(c, 1, "axis").as_ref().and_then(ints).unwrap_or_else(|| (0..rank).collect());
    let keep = parameter(c, 2, "keepdims").and_then(|v| v.as_bool()).unwrap_or(false);
    Ok((x, axes, keep))
}

fn reduce(c: &mut Call, name: &str) -> Convert<Arg> {
    let (x, axes, keep) = reduced(c)?;
    let dtype = c.dtype(x)?;
    let x = match name {
        "any" | "all" => c.cast(x, DType::Bool)?,
        "mean" if !dtype.is_float() => c.cast(x, DType::F32)?,
        "sum" | "prod" if dtype == DType::Bool => c.cast(x, DType::I32)?,
        _ => x,
    };
    c.reduce(name, x, &axes, keep).map(Arg::of)
}

fn variance(c: &mut Call, root: bool) -> Convert<Arg> {
    let (x, axes, keep) = reduced(c)?;
    let mean = c.reduce("mean", x, &axes, true)?;
    let y = c.op("variance", &[x, mean], &[("axis", axes.into()), ("keepdims", keep.into())])?;
    if root { c.un("sqrt", y).map(Arg::of) } else { Ok(Arg::of(y)) }
}

fn place(c: &mut Call, name: &str) -> Convert<Arg> {
    let (x, axes, keep) = reduced(c)?;
    c.reduce(name, x, &axes, keep).map(Arg::of)
}

fn running(c: &mut Call, name: &str) -> Convert<Arg> {
    let x = tensor(c, 0, "x")?;
    match parameter(c, 1, "axis").as_ref().and_then(ints).as_deref() {
        Some([axis]) => c.op(name, &[x], &[("axis", (*axis).into())]).map(Arg::of),
        _ => c.un(name, x).map(Arg::of),
    }
}
