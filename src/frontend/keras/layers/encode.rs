//! Numbers as categories.

use serde_json::Value as Json;

use super::{
    super::{
        call::{Arg, Call},
        layer::plain,
    },
    Class, Masks, class,
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("Discretization", Masks::Own, discretization),
    class("CategoryEncoding", Masks::Own, category_encoding),
    class("IntegerLookup", Masks::Own, integer_lookup),
];

fn discretization(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let x = if c.dtype(x)?.is_float() { x } else { c.cast(x, DType::F32)? };
    let listed = c.layer.get("bin_boundaries").map(plain).and_then(Json::as_array);
    let bounds: Option<Vec<f64>> = listed.and_then(|a| a.iter().map(Json::as_f64).collect());
    let bounds = bounds.ok_or_else(|| c.refuse("it has no `bin_boundaries`: it was never adapted"))?;
    let n = bounds.len() as i64;
    let dtype = c.dtype(x)?;
    let line = c.constant(Tensor::from_f64_fn(dtype, &[bounds.len()], |i| bounds[i]));
    // A value on a boundary belongs above it.
    let bins = match c.rank(x)? {
        0 => return Err(c.refuse("its input has no axes")),
        _ if n == 0 => {
            let zeros = c.un("zeros_like", x)?;
            c.cast(zeros, DType::I32)?
        }
        _ => c.op("searchsorted", &[line, x], &[("right", true.into())])?,
    };
    encoded(c, bins, n + 1, None).map(Arg::of)
}

fn category_encoding(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let depth = c.layer.int("num_tokens")?;
    let x = if c.dtype(x)?.is_int() { x } else { c.cast(x, DType::I32)? };
    let weights = c.tensor_arg(1, "count_weights")?.map(|t| t.id);
    encoded(c, x, depth, weights).map(Arg::of)
}

/// Categories in the form that the layer's `output_mode` says.
fn encoded(c: &mut Call, x: ExprId, depth: i64, weights: Option<ExprId>) -> Convert {
    if c.layer.bool("sparse", false) {
        return Err(c.refuse("sparse outputs are not supported"));
    }
    if !(1..=1 << 24).contains(&depth) {
        return Err(c.refuse(format!("{depth} categories are not supported")));
    }
    let mode = c.layer.str("output_mode").unwrap_or("multi_hot").to_owned();
    if mode == "int" {
        return c.cast(x, if c.layer.class() == "IntegerLookup" { DType::I64 } else { DType::I32 });
    }
    let integers = c.layer.class() == "IntegerLookup";
    let dtype = if integers { DType::I64 } else { c.layer.policy()?.compute };
    let rank = c.rank(x)?;
    let hot = |c: &mut Call, x: ExprId, dtype: DType| {
        let (on, off) = (c.s.b.scalar(dtype, 1.0), c.s.b.scalar(dtype, 0.0));
        c.op("one_hot", &[x, on, off], &[("depth", depth.into()), ("axis", (-1).into()), ("dtype", dtype.into())])
    };
    let axis = if rank > 1 { 1 } else { 0 };
    match mode.as_str() {
        "one_hot" => {
            let single = rank > 1 && c.shape(x)?[rank - 1] == Some(1);
            let x = if single { c.op("squeeze", &[x], &[("axis", [rank as i64 - 1].into())])? } else { x };
            hot(c, x, dtype)
        }
        "multi_hot" => {
            let all = hot(c, x, dtype)?;
            c.reduce("max", all, &[axis], false)
        }
        "count" => {
            let mut all = hot(c, x, dtype)?;
            if let Some(w) = weights {
                let w = c.cast(w, dtype)?;
                let w = c.expand(w, -1, 1)?;
                all = c.bin("multiply", all, w)?;
            }
            c.reduce("sum", all, &[axis], false)
        }
        _ => Err(c.refuse(format!("its output mode `{mode}` is not supported"))),
    }
}

/// The place of each number in a vocabulary, after what stands for masks and for numbers that it lacks.
fn integer_lookup(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let listed = c.layer.get("vocabulary").map(plain).and_then(Json::as_array);
    let words: Option<Vec<i64>> = listed.and_then(|a| a.iter().map(Json::as_i64).collect());
    let words = words.ok_or_else(|| c.refuse("its vocabulary is not part of the configuration"))?;
    if c.layer.bool("invert", false) || c.layer.get("num_oov_indices").and_then(Json::as_i64).unwrap_or(1) > 1 {
        return Err(c.refuse("inverted tables, and several places for unknown numbers, are not supported"));
    }
    let unknown = c.layer.get("num_oov_indices").and_then(Json::as_i64).unwrap_or(1);
    let masked = c.layer.get("mask_token").and_then(Json::as_i64);
    let int = c.layer.str("output_mode").unwrap_or("int") == "int";
    let first = (masked.is_some() && int) as i64 + unknown;
    let words: Vec<i64> = words.into_iter().filter(|w| Some(*w) != masked).collect();
    let x = c.cast(x, DType::I64)?;
    let table = c.s.b.ints(&words);
    let wide = c.expand(x, -1, 1)?;
    let same = c.bin("equal", wide, table)?;
    let found = c.reduce("any", same, &[-1], false)?;
    let same = c.cast(same, DType::I32)?;
    let place = c.op("argmax", &[same], &[("axis", [-1].into())])?;
    let place = c.with("add", place, first as f64)?;
    let other = c.number(place, (first - unknown) as f64)?;
    let mut out = c.select(found, place, other)?;
    if let Some(mask) = masked.filter(|_| int) {
        let zero = c.number(out, 0.0)?;
        let is_mask = c.with("equal", x, mask as f64)?;
        out = c.select(is_mask, zero, out)?;
    }
    encoded(c, out, first + words.len() as i64, None).map(Arg::of)
}
