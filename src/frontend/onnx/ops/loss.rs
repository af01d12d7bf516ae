//! Losses.

use super::{Row, row};
use crate::{
    frontend::{Convert, onnx::node::Node},
    ir::ExprId,
    tensor::DType,
};

pub(super) const OPS: &[Row] = &[
    row("NegativeLogLikelihoodLoss", |n| {
        let x = n.x(0)?;
        let y = likelihood(n, x)?;
        n.one(y)
    }),
    row("SoftmaxCrossEntropyLoss", |n| {
        let x = n.x(0)?;
        let log = n.op("nn.log_softmax", &[x], &[("axis", 1.into())])?;
        let y = likelihood(n, log)?;
        Ok(vec![n.out(y)?, n.out(log)?])
    }),
];

/// The loss of log-probabilities along axis 1, given the classes that hold.
fn likelihood(n: &mut Node, x: ExprId) -> Convert {
    let (target, weight) = (n.x(1)?, n.opt(2)?);
    let ignored = n.opt_int("ignore_index")?;
    let how = n.text("reduction", "mean")?;
    let target = n.cast(target, DType::I64)?;
    let counts = match ignored {
        Some(i) => Some(n.with("not_equal", target, i as f64)?),
        None => None,
    };
    let safe = match counts {
        Some(c) => {
            let zero = n.c(target, 0.0)?;
            n.select(c, target, zero)?
        }
        None => target,
    };
    let index = n.expand(safe, 1, 1)?;
    let picked = n.op("gather", &[x, index], &[("axis", 1.into())])?;
    let picked = n.squeeze(picked, &[1])?;
    let mut loss = n.un("negative", picked)?;
    let dtype = n.dtype(x)?;
    let mut weights = match weight {
        Some(w) => Some(n.take(w, safe, 0)?),
        None => None,
    };
    if let Some(c) = counts {
        let c = n.cast(c, dtype)?;
        weights = Some(match weights {
            Some(w) => n.mul(w, c)?,
            None => c,
        });
    }
    if let Some(w) = weights {
        loss = n.mul(loss, w)?;
    }
    let axes: Vec<usize> = (0..n.rank(loss)?).collect();
    match (how.as_str(), weights) {
        ("none", _) => Ok(loss),
        ("sum", _) => n.reduce("sum", loss, &axes, false),
        ("mean", None) => n.reduce("mean", loss, &axes, false),
        ("mean", Some(w)) => {
            let sum = n.reduce("sum", loss, &axes, false)?;
            let total = n.reduce("sum", w, &axes, false)?;
            n.div(sum, total)
        }
        (other, _) => Err(n.refuse(format!("there is no reduction `{other}`"))),
    }
}
