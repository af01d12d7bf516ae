//! Extents that are unknown, for prices: programs that differ in what they do to each element should not cost the same.

use super::{KernelCall, KernelView, NodeView};
use crate::ir::{Dim, TensorType, Type};

/// What an unknown outermost extent of several counts as, such as a batch.
const FIRST: i64 = 1;
/// What any other one counts as, such as a height, a width or a length.
const OTHER: i64 = 32;

fn tensor(t: &TensorType) -> TensorType {
    let guess = |(i, d): (usize, &Dim)| match d {
        Dim::Known(n) => Dim::Known(*n),
        _ if i == 0 && t.rank() > 2 => Dim::Known(FIRST),
        _ => Dim::Known(OTHER),
    };
    TensorType::of(t.shape.iter().enumerate().map(guess), t.dtype)
}

fn is_known(ty: &Type) -> bool {
    match ty {
        Type::Tensor(t) => t.shape.iter().all(|d| matches!(d, Dim::Known(_))),
        // Types bound how deep tuples are nested.
        Type::Tuple(fields) => fields.iter().all(is_known),
        _ => true,
    }
}

/// The type with a guess for each extent that is unknown.
pub(super) fn guessed(ty: &Type) -> Type {
    match ty {
        Type::Tensor(t) => tensor(t).into(),
        Type::Tuple(fields) => Type::tuple(fields.iter().map(guessed).collect::<Vec<_>>()),
        _ => ty.clone(),
    }
}

/// The price of a node with a guess for each extent that is unknown; none where all are known.
pub(super) fn node(node: &NodeView, price: impl FnOnce(&NodeView) -> f64) -> Option<f64> {
    if node.args.iter().chain([node.out]).all(is_known) {
        return None;
    }
    let args: Vec<Type> = node.args.iter().map(guessed).collect();
    Some(price(&NodeView { args: &args, out: &guessed(node.out), ..node.clone() }))
}

/// The same of a kernel.
pub(super) fn kernel(kernel: &KernelView, price: impl FnOnce(&KernelView) -> f64) -> Option<f64> {
    let types = kernel.calls.iter().flat_map(|c| c.args.iter().chain([c.out]));
    if kernel.args.iter().chain(types).all(is_known) {
        return None;
    }
    let args: Vec<Type> = kernel.args.iter().map(guessed).collect();
    let outs: Vec<Type> = kernel.calls.iter().map(|c| guessed(c.out)).collect();
    let call = |(c, out)| {
        let c: &KernelCall = c;
        KernelCall { args: c.args.iter().map(guessed).collect(), out, ..c.clone() }
    };
    let calls: Vec<KernelCall> = kernel.calls.iter().zip(&outs).map(call).collect();
    Some(price(&KernelView { calls: &calls, args: &args, ..kernel.clone() }))
}
