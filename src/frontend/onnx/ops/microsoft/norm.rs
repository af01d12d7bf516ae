//! Normalizations of sums, and of embeddings.

use super::{
    super::{
        Row,
        norm::{moments, normalized},
        row,
    },
    own,
};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::DType,
};

pub(in crate::frontend::onnx::ops) const OPS: &[Row] = &[
    own("EmbedLayerNormalization", embed),
    // ONNX Runtime has it in ONNX's own domain.
    row("SimplifiedLayerNormalization", simplified),
    own("SimplifiedLayerNormalization", simplified),
    own("SkipLayerNormalization", |n| skip(n, false)),
    own("SkipSimplifiedLayerNormalization", |n| skip(n, true)),
];

/// Divided by the root of the mean square over the last axes; the root's reciprocal comes too.
fn by_root_mean_square(n: &mut Node, x: ExprId, axes: &[usize], epsilon: f64) -> Convert<(ExprId, ExprId)> {
    let squares = n.mul(x, x)?;
    let mean = n.reduce("mean", squares, axes, true)?;
    let sum = n.with("add", mean, epsilon)?;
    let root = n.un("sqrt", sum)?;
    let y = n.div(x, root)?;
    let inverse = n.from("divide", 1.0, root)?;
    Ok((y, inverse))
}

fn simplified(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, scale) = (n.x(0)?, n.x(1)?);
    let epsilon = n.float("epsilon", 1e-5f32.into())?;
    let (rank, dtype) = (n.rank(x)?, n.dtype(scale)?);
    let axis = n.int("axis", -1)?;
    let axes: Vec<usize> = (n.axis_of(axis, rank)?..rank).collect();
    let within = n.elem(n.int("stash_type", 1)?)?.storage();
    let wide = n.cast(x, within)?;
    let (y, inverse) = by_root_mean_square(n, wide, &axes, epsilon)?;
    let y = n.cast(y, dtype)?;
    let y = n.mul(y, scale)?;
    Ok(vec![n.out(y)?, n.out(inverse)?])
}

/// The sum of input, skip and bias, normalized over its last axis.
fn skip(n: &mut Node, simplified: bool) -> Convert<Vec<Val>> {
    let (x, skip, gamma) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let (beta, bias) = if simplified { (None, n.opt(3)?) } else { (n.opt(3)?, n.opt(4)?) };
    let epsilon = n.float("epsilon", 1e-12f32.into())?;
    let mut sum = n.add(x, skip)?;
    if let Some(b) = bias {
        sum = n.add(sum, b)?;
    }
    let (dtype, last) = (n.dtype(x)?, n.rank(sum)? - 1);
    let wide = n.cast(sum, if dtype == DType::F64 { dtype } else { DType::F32 })?;
    let (y, mean, inverse) = if simplified {
        let (y, inverse) = by_root_mean_square(n, wide, &[last], epsilon)?;
        (y, None, inverse)
    } else {
        let (m, v) = moments(n, wide, &[last])?;
        let (y, root) = normalized(n, wide, m, v, epsilon)?;
        (y, Some(m), n.from("divide", 1.0, root)?)
    };
    let y = n.cast(y, dtype)?;
    let mut y = n.mul(y, gamma)?;
    if let Some(b) = beta {
        y = n.add(y, b)?;
    }
    let mean = match mean {
        Some(m) => n.out(m)?,
        None => Val::Absent,
    };
    Ok(vec![n.out(y)?, mean, n.out(inverse)?, n.out(sum)?])
}

fn embed(n: &mut Node) -> Convert<Vec<Val>> {
    let (ids, segments) = (n.x(0)?, n.opt(1)?);
    let (words, positions, segment_words) = (n.x(2)?, n.x(3)?, n.opt(4)?);
    let (gamma, beta, mask, places) = (n.x(5)?, n.x(6)?, n.opt(7)?, n.opt(8)?);
    let epsilon = n.float("epsilon", 1e-12f32.into())?;
    let word = n.take(words, ids, 0)?;
    let places = match places {
        Some(p) => p,
        None => {
            let p = n.places(ids, 1, DType::I64)?;
            n.expand(p, 0, 1)?
        }
    };
    let position = n.take(positions, places, 0)?;
    let mut sum = n.add(word, position)?;
    if let (Some(s), Some(w)) = (segments, segment_words) {
        let part = n.take(w, s, 0)?;
        sum = n.add(sum, part)?;
    }
    let (m, v) = moments(n, sum, &[2])?;
    let (y, _) = normalized(n, sum, m, v, epsilon)?;
    let y = n.mul(y, gamma)?;
    let y = n.add(y, beta)?;
    // How many words of each row the mask holds of.
    let counted = match mask {
        Some(m) => {
            let m = n.with("equal", m, 1.0)?;
            n.cast(m, DType::I32)?
        }
        None => {
            let ids = n.cast(ids, DType::I32)?;
            n.with("multiply", ids, 0.0)?
        }
    };
    let counted = n.reduce("sum", counted, &[1], false)?;
    Ok(vec![n.out(y)?, n.out(counted)?, n.out(sum)?])
}
