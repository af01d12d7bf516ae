//! State that grows: where a call gives what a program keeps from run to run, and something after it, only that is computed, and stored
//! behind what is there.

use std::sync::Arc;

use hashbrown::HashMap;

use super::affine::replace_axes;
use crate::{
    infer::TypedModule,
    ir::{Expr, ExprId, Module, VarId},
    loops::{BinOp, Body, Definition, Scalar, ScalarKind, Stages},
};

/// What a call of a kernel computes.
#[derive(Clone, Debug)]
pub struct Group {
    /// All of the result, or what comes after an argument in it.
    pub stages: Arc<Stages>,
    /// The number of that argument: the result is its elements, and after these what the stages compute.
    pub after: Option<usize>,
}

impl PartialEq for Group {
    fn eq(&self, other: &Group) -> bool {
        self.after == other.after && (Arc::ptr_eq(&self.stages, &other.stages) || self.stages == other.stages)
    }
}

/// What a call computes: where it gives what is kept, and puts something after the argument of that number, only that.
pub(super) fn group(stages: Stages, kept: Option<usize>) -> Group {
    match kept.and_then(|arg| Some((after(&stages, arg)?, arg))) {
        Some((stages, arg)) => Group { stages: Arc::new(stages), after: Some(arg) },
        None => Group { stages: Arc::new(stages), after: None },
    }
}

/// Calls that give an output which the program keeps as an input for its next run: which output, which input, and the input's variable.
pub(super) type Kept = HashMap<ExprId, (usize, usize, VarId)>;

/// The calls that give what is kept. `state` has pairs of numbers of an input and an output.
pub(super) fn kept(typed: &TypedModule, entry: &str, state: &[(usize, usize)]) -> Kept {
    let m = typed.module();
    let Some(main) = m.function(entry).filter(|_| !state.is_empty()) else { return Kept::new() };
    let mut inputs = Vec::new();
    for &p in &main.params {
        let tensors = typed.var_ty(p).flatten().map_or(1, |t| t.len());
        // What is part of a tuple has no variable of its own.
        let is_tensor = typed.var_ty(p).as_tensor().is_some();
        inputs.extend((0..tensors).map(|_| is_tensor.then_some(p)));
    }
    let outputs = outputs(m, main.body);
    let pair = |&(input, output): &(usize, usize)| {
        let (var, call) = ((*inputs.get(input)?)?, *outputs.get(output)?);
        // Of several outputs that are the same, the first has the memory.
        let first = outputs.iter().position(|o| *o == call) == Some(output);
        (first && matches!(m[call], Expr::Call { .. })).then_some((call, (output, input, var)))
    };
    state.iter().filter_map(pair).collect()
}

/// The calls that give what is kept, each with the variable of the input that it is the next time.
pub fn kept_calls(typed: &TypedModule, entry: &str, state: &[(usize, usize)]) -> HashMap<ExprId, VarId> {
    kept(typed, entry, state).into_iter().map(|(call, (_, _, var))| (call, var)).collect()
}

/// The expressions that outputs are.
fn outputs(m: &Module, body: ExprId) -> Vec<ExprId> {
    match &m[body] {
        Expr::Tuple(fields) => fields.iter().flat_map(|&f| outputs(m, f)).collect(),
        _ => vec![body],
    }
}

/// The number of the tensor among a call's arguments that is this variable.
pub fn argument(typed: &TypedModule, args: &[ExprId], var: VarId) -> Option<usize> {
    let mut before = 0;
    for &a in args {
        if matches!(typed.module()[a], Expr::Var(v) if v == var) {
            return Some(before);
        }
        before += typed.ty(a).flatten().map_or(1, |t| t.len());
    }
    None
}

/// What comes after an argument's elements, where the single result has these first: a concatenation along the outermost axis that is
/// not 1.
pub(super) fn after(group: &Stages, arg: usize) -> Option<Stages> {
    let [result] = group.results[..] else { return None };
    let state = *group.args.get(arg)?;
    let mut tail = group.clone();
    let Some(Definition::Stage(stage)) = tail.definitions.last_mut().filter(|d| d.defines() == [result]) else {
        return None;
    };
    let Body::Map(value) = &stage.body else { return None };
    let ScalarKind::Select(cond, first, rest) = value.kind() else { return None };
    let ScalarKind::Binary(BinOp::Lt, at, end) = cond.kind() else { return None };
    let (ScalarKind::Axis(axis), Some(end)) = (at.kind(), end.as_int()) else { return None };
    let along = stage.axes.iter().position(|a| a.id == *axis)?;
    let (whole, part) = (&group.decl(result).shape, &group.decl(state).shape);
    let same = whole.len() == part.len() && (0..whole.len()).all(|k| k == along || whole[k] == part[k]);
    let is_place = |(i, a): (&Scalar, &crate::loops::Axis)| match i.kind() {
        ScalarKind::Axis(x) => *x == a.id,
        ScalarKind::Int(0) => a.extent == 1,
        _ => false,
    };
    let in_place = matches!(first.kind(), ScalarKind::Read(t, index)
        if *t == state && index.len() == stage.axes.len() && index.iter().zip(&stage.axes).all(is_place));
    let follows = whole[..along].iter().all(|n| *n == 1);
    if !(same && in_place && follows) || part[along] != end || whole[along] < end {
        return None;
    }
    let moved = replace_axes(rest, &HashMap::from_iter([(*axis, Scalar::axis(*axis) + end)]));
    let extent = whole[along] - end;
    (stage.axes[along].extent, stage.body) = (extent, Body::Map(moved));
    tail.tensors[result.0 as usize].shape[along] = extent;
    Some(tail)
}
