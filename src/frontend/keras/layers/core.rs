//! Products with matrices, tables, masks, and layers that do nothing at inference.

use serde_json::Value as Json;

use super::{
    super::call::{Arg, Call, Held, turned},
    Class, Masks, activation, bytes, class,
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("Dense", Masks::Pass, dense),
    class("EinsumDense", Masks::Own, einsum_dense),
    class("Embedding", Masks::Own, embedding),
    class("ReversibleEmbedding", Masks::Own, reversible_embedding),
    class("Masking", Masks::Own, masking),
    // Of networks that Keras ships.
    class("LayerScale", Masks::Pass, |c| {
        let (x, scale) = (c.input()?, c.weight(0, "gamma")?);
        c.bin("multiply", x, scale).map(Arg::of)
    }),
    class("Identity", Masks::Pass, same),
    class("ActivityRegularization", Masks::Pass, same),
    class("Dropout", Masks::Pass, same),
    class("SpatialDropout1D", Masks::Pass, same),
    class("SpatialDropout2D", Masks::Pass, same),
    class("SpatialDropout3D", Masks::Pass, same),
    class("GaussianDropout", Masks::Pass, same),
    class("GaussianNoise", Masks::Pass, same),
    class("AlphaDropout", Masks::Pass, same),
];

/// Nothing is done at inference.
pub(super) fn same(c: &mut Call) -> Convert<Arg> {
    match c.args.first() {
        Some(first) => Ok(first.clone()),
        None => Ok(Arg::Tensor(c.held()?)),
    }
}

fn dense(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let kernel = c.weight_as(0, "kernel", "turned", |t| turned(&t))?;
    let biased = c.layer.bool("use_bias", true);
    let mut y = match c.layer.of_bytes() {
        true => {
            let scale = c.weight(if biased { 2 } else { 1 }, "kernel_scale")?;
            bytes::product(c, x, kernel, scale)?
        }
        false => c.dense(x, kernel)?,
    };
    if biased {
        let bias = c.weight(1, "bias")?;
        y = bias_along(c, y, bias, -1)?;
    }
    activation::configured(c, "activation", y).map(Arg::of)
}

/// A vector added along an axis.
pub(super) fn bias_along(c: &mut Call, x: ExprId, bias: ExprId, axis: i64) -> Convert {
    c.op("nn.bias_add", &[x, bias], &[("axis", axis.into())])
}

fn einsum_dense(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let rank = c.rank(x)?;
    let equation: String = c.layer.str("equation").unwrap_or_default().chars().filter(|c| !c.is_whitespace()).collect();
    let parts = equation.split_once("->").and_then(|(i, o)| Some((i.split_once(',')?, o)));
    let ((input, kernel), output) = parts.ok_or_else(|| c.refuse(format!("its equation `{equation}` is malformed")))?;
    let weight = c.weight(0, "kernel")?;
    let kernel_rank = c.rank(weight)?;
    if kernel.chars().count() != kernel_rank || input.replace("...", "").chars().count() > rank {
        return Err(c.refuse(format!("its equation `{equation}` does not fit its input and kernel")));
    }
    let mut y = contract(c, x, weight, (input, kernel, output))?;
    if let Some(axes) = c.layer.str("bias_axes").map(str::to_owned) {
        let bias = c.weight(1, "bias")?;
        // The bias has the axes that it names, in the output's order, and broadcasts from the first of them on.
        let after = |at: char| output.chars().rev().take_while(|&o| o != at).filter(char::is_ascii_alphabetic).count();
        let last = output.chars().rev().find(|o| axes.contains(*o)).map_or(0, after);
        let first = output.chars().find(|o| axes.contains(*o));
        let span: Vec<char> = match first {
            Some(first) => output.chars().skip_while(|&o| o != first).collect(),
            None => Vec::new(),
        };
        // Axes between that have no bias are of extent 1.
        let known = c.shape(bias)?;
        let mut given = known.into_iter();
        let mut shape = Vec::new();
        for o in &span[..span.len().saturating_sub(last)] {
            shape.push(if axes.contains(*o) { given.next().flatten().unwrap_or(1) } else { 1 });
        }
        shape.extend(std::iter::repeat_n(1, last));
        let bias = c.reshape(bias, &shape)?;
        y = c.bin("add", y, bias)?;
    }
    activation::configured(c, "activation", y).map(Arg::of)
}

/// A product by an equation: as a dense layer, where the kernel's summed axes are the input's last ones, in order.
fn contract(c: &mut Call, x: ExprId, weight: ExprId, (input, kernel, output): (&str, &str, &str)) -> Convert {
    let summed: String = kernel.chars().filter(|k| input.contains(*k) && !output.contains(*k)).collect();
    let kept: String = kernel.chars().filter(|k| !summed.contains(*k)).collect();
    let free = input.strip_suffix(summed.as_str());
    let plain = !summed.is_empty()
        && kernel == format!("{summed}{kept}")
        && free.is_some_and(|f| output == format!("{f}{kept}") && !f.contains("..."));
    if plain {
        let sizes = c.shape(weight)?;
        let product = |s: &[Option<i64>]| s.iter().map(|n| n.unwrap_or(1)).product::<i64>();
        let (k, n) = (product(&sizes[..summed.len()]), product(&sizes[summed.len()..]));
        let matrix = c.weight_as(0, "kernel", "turned matrix", |t| turned(&t.reshaped(&[k as usize, n as usize])))?;
        let lead = input.len() - summed.len();
        let mut shape = vec![0; lead];
        shape.push(k);
        let x = if summed.len() == 1 { x } else { c.reshape(x, &shape)? };
        let y = match c.layer.of_bytes() {
            true => {
                let at = if c.layer.str("bias_axes").is_some() { 2 } else { 1 };
                let scale = c.weight(at, "kernel_scale")?;
                let scale = c.reshape(scale, &[-1])?;
                bytes::product(c, x, matrix, scale)?
            }
            false => c.dense(x, matrix)?,
        };
        if kept.len() == 1 {
            return Ok(y);
        }
        let mut shape = vec![0; lead];
        shape.extend(sizes[summed.len()..].iter().map(|n| n.unwrap_or(1)));
        return c.reshape(y, &shape);
    }
    if c.layer.of_bytes() {
        return Err(
            c.refuse(format!("its equation `{input},{kernel}->{output}` is not supported with kernels of bytes"))
        );
    }
    let tuple = c.s.b.tuple(&[x, weight]);
    c.op("einsum", &[tuple], &[("equation", format!("{input},{kernel}->{output}").as_str().into())])
}

/// Rows of a table.
fn looked_up(c: &mut Call, x: ExprId) -> Convert {
    let table = c.weight(0, "embeddings")?;
    let dtype = c.dtype(x)?;
    let places = if dtype.is_int() { x } else { c.cast(x, DType::I32)? };
    let rows = c.op("take", &[table, places], &[("axis", 0.into())])?;
    if !c.layer.of_bytes() {
        return Ok(rows);
    }
    let scale = c.weight(1, "embeddings_scale")?;
    let scale = c.op("take", &[scale, places], &[("axis", 0.into())])?;
    let scale = c.op("expand_dims", &[scale], &[("axis", (-1).into())])?;
    let rows = c.cast(rows, DType::F32)?;
    c.bin("divide", rows, scale)
}

fn embedding(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let id = looked_up(c, x)?;
    let mask = if c.layer.bool("mask_zero", false) { Some(c.with("not_equal", x, 0.0)?) } else { None };
    Ok(Arg::Tensor(Held { id, mask }))
}

fn reversible_embedding(c: &mut Call) -> Convert<Arg> {
    if !matches!(c.arg(1, "reverse"), Some(Arg::Json(Json::Bool(true)))) {
        return embedding(c);
    }
    let x = c.input()?;
    let kernel = match c.layer.bool("tie_weights", true) {
        true => c.weight(0, "embeddings")?,
        false => c.weight_as(1, "reverse_embeddings", "turned", |t| turned(&t))?,
    };
    let mut y = c.dense(x, kernel)?;
    let cap = c.layer.float("logit_soft_cap", 0.0)?;
    if cap != 0.0 {
        y = c.with("divide", y, cap)?;
        y = c.un("tanh", y)?;
        y = c.with("multiply", y, cap)?;
    }
    Ok(Arg::of(y))
}

fn masking(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let value = c.layer.float("mask_value", 0.0)?;
    let counts = c.with("not_equal", x, value)?;
    let kept = c.reduce("any", counts, &[-1], true)?;
    let zero = c.number(x, 0.0)?;
    let id = c.select(kept, x, zero)?;
    let mask = c.reduce("any", counts, &[-1], false)?;
    Ok(Arg::Tensor(Held { id, mask: Some(mask) }))
}
