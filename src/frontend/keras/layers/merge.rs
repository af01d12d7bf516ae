//! Layers that put several inputs together.

use super::{
    super::{
        call::{Arg, Call, Held},
        layer::ints,
    },
    Class, Masks, class,
    norm::unit_length,
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("Add", Masks::Own, |c| fold(c, "add")),
    class("Subtract", Masks::Own, |c| fold(c, "subtract")),
    class("Multiply", Masks::Own, |c| fold(c, "multiply")),
    class("Maximum", Masks::Own, |c| fold(c, "maximum")),
    class("Minimum", Masks::Own, |c| fold(c, "minimum")),
    class("Average", Masks::Own, |c| {
        let inputs = inputs(c)?;
        let sum = folded(c, &inputs, "add")?;
        let id = c.with("divide", sum, inputs.len() as f64)?;
        let mask = any_mask(c, &inputs)?;
        Ok(Arg::Tensor(Held { id, mask }))
    }),
    // Of the Inception-ResNet networks that Keras ships.
    class("CustomScaleLayer", Masks::Own, |c| {
        let [x, y] = inputs(c)?[..] else { return Err(c.refuse("it takes two inputs")) };
        let scale = c.layer.float("scale", 1.0)?;
        let scaled = c.with("multiply", y.id, scale)?;
        c.bin("add", x.id, scaled).map(Arg::of)
    }),
    class("Concatenate", Masks::Own, concatenate),
    class("Dot", Masks::Own, dot),
];

fn inputs(c: &Call) -> Convert<Vec<Held>> {
    // A list, or (as Keras 2 wrote some calls) several arguments.
    let found: Vec<Held> = c.args.iter().flat_map(Arg::tensors).collect();
    match found.is_empty() {
        true => Err(c.refuse("it has no inputs")),
        false => Ok(found),
    }
}

/// Of inputs of several ranks, those of fewer axes have their other ones after the batch.
fn folded(c: &mut Call, inputs: &[Held], name: &str) -> Convert {
    let mut most = 0;
    for t in inputs {
        most = most.max(c.rank(t.id)?);
    }
    let mut all = Vec::new();
    for t in inputs {
        let rank = c.rank(t.id)?;
        all.push(c.expand(t.id, 1.min(rank as i64), (most - rank) as i64)?);
    }
    let mut out = all[0];
    for &x in &all[1..] {
        out = c.bin(name, out, x)?;
    }
    Ok(out)
}

fn fold(c: &mut Call, name: &str) -> Convert<Arg> {
    let inputs = inputs(c)?;
    if name == "subtract" && inputs.len() != 2 {
        return Err(c.refuse(format!("it takes two inputs, but is given {}", inputs.len())));
    }
    let id = folded(c, &inputs, name)?;
    let mask = any_mask(c, &inputs)?;
    Ok(Arg::Tensor(Held { id, mask }))
}

/// Where any input counts; none where one of them has no mask.
fn any_mask(c: &mut Call, inputs: &[Held]) -> Convert<Option<ExprId>> {
    let Some(masks) = inputs.iter().map(|t| t.mask).collect::<Option<Vec<ExprId>>>() else { return Ok(None) };
    let mut out = masks[0];
    for &m in &masks[1..] {
        out = c.bin("logical_or", out, m)?;
    }
    Ok(Some(out))
}

fn concatenate(c: &mut Call) -> Convert<Arg> {
    let inputs = inputs(c)?;
    let axis = c.layer.get("axis").map_or(Ok(-1), |_| c.layer.int("axis"))?;
    let ids: Vec<ExprId> = inputs.iter().map(|t| t.id).collect();
    let id = c.concat(&ids, axis)?;
    if inputs.iter().all(|t| t.mask.is_none()) {
        return Ok(Arg::of(id));
    }
    let mut masks = Vec::new();
    for t in &inputs {
        let like = c.un("zeros_like", t.id)?;
        let like = c.cast(like, DType::Bool)?;
        let full = match t.mask {
            None => c.un("logical_not", like)?,
            Some(m) if c.rank(m)? < c.rank(t.id)? => {
                let missing = c.rank(t.id)? - c.rank(m)?;
                let m = c.expand(m, -1, missing as i64)?;
                c.bin("logical_or", m, like)?
            }
            Some(m) => m,
        };
        masks.push(full);
    }
    let all = c.concat(&masks, axis)?;
    let mask = c.reduce("any", all, &[-1], false)?;
    Ok(Arg::Tensor(Held { id, mask: Some(mask) }))
}

/// Sums of products along one axis of each input; the batch runs along with both.
fn dot(c: &mut Call) -> Convert<Arg> {
    let inputs = inputs(c)?;
    let &[a, b] = &inputs[..] else {
        return Err(c.refuse(format!("it takes two inputs, but is given {}", inputs.len())));
    };
    let (mut x, mut y) = (a.id, b.id);
    let (rx, ry) = (c.rank(x)?, c.rank(y)?);
    let axes = c.layer.get("axes").and_then(ints).unwrap_or_default();
    let axes = match axes[..] {
        [one] => [one, one],
        [first, second] => [first, second],
        _ => return Err(c.refuse("its `axes` are not one or two integers")),
    };
    let (ax, ay) = (c.axis(axes[0], rx)?, c.axis(axes[1], ry)?);
    if ax == 0 || ay == 0 || rx < 2 || ry < 2 {
        return Err(c.refuse("products along the batch are not supported"));
    }
    if c.layer.bool("normalize", false) {
        x = unit_length(c, x, &[ax as i64], 1e-12)?;
        y = unit_length(c, y, &[ay as i64], 1e-12)?;
    }
    // (batch, what x keeps, summed) times (batch, summed, what y keeps).
    let kept = |rank: usize, axis: usize| -> Vec<usize> { (1..rank).filter(|&a| a != axis).collect() };
    let (kept_x, kept_y) = (kept(rx, ax), kept(ry, ay));
    let shape_x: Vec<i64> = kept_x.iter().map(|&a| c.extent(x, a)).collect::<Convert<_>>()?;
    let shape_y: Vec<i64> = kept_y.iter().map(|&a| c.extent(y, a)).collect::<Convert<_>>()?;
    let summed = c.extent(x, ax)?;
    let axes_x: Vec<i64> = [0].into_iter().chain(kept_x.iter().map(|&a| a as i64)).chain([ax as i64]).collect();
    let axes_y: Vec<i64> = [0].into_iter().chain(kept_y.iter().map(|&a| a as i64)).chain([ay as i64]).collect();
    let (x, y) = (c.transpose(x, &axes_x)?, c.transpose(y, &axes_y)?);
    let x = c.reshape(x, &[0, shape_x.iter().product(), summed])?;
    let y = c.reshape(y, &[0, shape_y.iter().product(), summed])?;
    let out = c.op("nn.batch_matmul", &[x, y], &[("transpose_b", true.into())])?;
    let mut shape = vec![0];
    shape.extend(&shape_x);
    shape.extend(&shape_y);
    if shape_x.is_empty() && shape_y.is_empty() {
        shape.push(1);
    }
    c.reshape(out, &shape).map(Arg::of)
}
