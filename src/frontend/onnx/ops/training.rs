//! Steps of optimizers.

use super::{Row, row_of};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::DType,
};

const DOMAIN: &str = "ai.onnx.preview.training";

pub(super) const OPS: &[Row] = &[
    row_of(DOMAIN, "Adagrad", |n| each(n, 3, adagrad)),
    row_of(DOMAIN, "Adam", |n| each(n, 4, adam)),
    row_of(DOMAIN, "Momentum", |n| each(n, 3, momentum)),
];

/// A step for each of the tensors that are learned: `kinds` lists of inputs follow the rate and the step's number. Gives what
/// was changed of each kind, list by list.
fn each(
    n: &mut Node,
    kinds: usize,
    f: fn(&mut Node, ExprId, ExprId, &[ExprId]) -> Convert<Vec<ExprId>>,
) -> Convert<Vec<Val>> {
    let all = n.all()?;
    n.ensure(all.len() >= 2 && (all.len() - 2).is_multiple_of(kinds), || format!("it has {} inputs", all.len()))?;
    let count = (all.len() - 2) / kinds;
    let mut lists: Vec<Vec<Val>> = vec![Vec::new(); kinds - 1];
    for i in 0..count {
        let own: Vec<ExprId> = (0..kinds).map(|k| all[2 + k * count + i]).collect();
        let changed = f(n, all[0], all[1], &own)?;
        for (list, (e, was)) in lists.iter_mut().zip(changed.into_iter().zip([own[0]].iter().chain(&own[2..]))) {
            let e = n.cast(e, n.dtype(*was)?)?;
            list.push(n.out(e)?);
        }
    }
    Ok(lists.concat())
}

/// The gradient with what regularization adds.
fn regularized(n: &mut Node, x: ExprId, g: ExprId) -> Convert {
    let share = n.float("norm_coefficient", 0.0)?;
    if share == 0.0 {
        return Ok(g);
    }
    let part = n.with("multiply", x, share)?;
    n.add(part, g)
}

fn adagrad(n: &mut Node, rate: ExprId, step: ExprId, own: &[ExprId]) -> Convert<Vec<ExprId>> {
    let (x, g, h) = (own[0], own[1], own[2]);
    let dtype = n.dtype(x)?;
    let (rate, step) = (n.cast(rate, dtype)?, n.cast(step, dtype)?);
    let decayed = n.with("multiply", step, n.float("decay_factor", 0.0)?)?;
    let below = n.with("add", decayed, 1.0)?;
    let rate = n.div(rate, below)?;
    let g = regularized(n, x, g)?;
    let squares = n.mul(g, g)?;
    let h = n.add(h, squares)?;
    let root = n.un("sqrt", h)?;
    let root = n.with("add", root, n.float("epsilon", 0.0)?)?;
    let scaled = n.mul(rate, g)?;
    let change = n.div(scaled, root)?;
    Ok(vec![n.sub(x, change)?, h])
}

fn adam(n: &mut Node, rate: ExprId, step: ExprId, own: &[ExprId]) -> Convert<Vec<ExprId>> {
    let (x, g, v, h) = (own[0], own[1], own[2], own[3]);
    let dtype = n.dtype(x)?;
    let (alpha, beta) = (n.float("alpha", 0.9f32.into())?, n.float("beta", 0.999f32.into())?);
    let g = regularized(n, x, g)?;
    let mixed = |n: &mut Node, old: ExprId, new: ExprId, share: f64| -> Convert {
        let (a, b) = (n.with("multiply", old, share)?, n.with("multiply", new, 1.0 - share)?);
        n.add(a, b)
    };
    let v = mixed(n, v, g, alpha)?;
    let squares = n.mul(g, g)?;
    let h = mixed(n, h, squares, beta)?;
    let root = n.un("sqrt", h)?;
    let root = n.with("add", root, n.float("epsilon", 0.0)?)?;
    // Rates are corrected from the first step on; in float64, for powers of what is close to 1.
    let (rate, t) = (n.cast(rate, DType::F64)?, n.cast(step, DType::F64)?);
    let power = |n: &mut Node, base: f64| -> Convert {
        let p = n.from("power", base, t)?;
        n.from("subtract", 1.0, p)
    };
    let (pb, pa) = (power(n, beta)?, power(n, alpha)?);
    let above = n.un("sqrt", pb)?;
    let above = n.mul(rate, above)?;
    let later = n.with("greater", t, 0.0)?;
    let one = n.c(pa, 1.0)?;
    let below = n.select(later, pa, one)?;
    let corrected = n.div(above, below)?;
    let rate = n.select(later, corrected, rate)?;
    let rate = n.cast(rate, dtype)?;
    let direction = n.div(v, root)?;
    let change = n.mul(rate, direction)?;
    let x = n.sub(x, change)?;
    let x = n.with("multiply", x, 1.0 - n.float("norm_coefficient_post", 0.0)?)?;
    Ok(vec![x, v, h])
}

fn momentum(n: &mut Node, rate: ExprId, step: ExprId, own: &[ExprId]) -> Convert<Vec<ExprId>> {
    let (x, g, v) = (own[0], own[1], own[2]);
    let dtype = n.dtype(x)?;
    let (alpha, beta) = (n.float("alpha", 0.0)?, n.float("beta", 0.0)?);
    let rate = n.cast(rate, dtype)?;
    let g = regularized(n, x, g)?;
    // The first step takes the gradient whole.
    let later = n.with("greater", step, 0.0)?;
    let (of_later, of_first) = (n.c(x, beta)?, n.c(x, 1.0)?);
    let share = n.select(later, of_later, of_first)?;
    let (kept, new) = (n.with("multiply", v, alpha)?, n.mul(share, g)?);
    let v = n.add(kept, new)?;
    let direction = match n.text("mode", "standard")?.as_str() {
        "standard" => v,
        "nesterov" => {
            let ahead = n.with("multiply", v, alpha)?;
            n.add(g, ahead)?
        }
        other => return Err(n.refuse(format!("there is no mode `{other}`"))),
    };
    let change = n.mul(rate, direction)?;
    Ok(vec![n.sub(x, change)?, v])
}
