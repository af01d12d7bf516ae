//! State that grows along an axis before which others stand, such as a cache of several heads: it lies with that axis first.
//!
//! What is appended then follows what is there, whatever the other extents are, and the steps along all other axes stay the same from run to
//! run. Whoever reads the state reads it through a transpose, which rules take into what reads it.

use hashbrown::HashMap;

use super::{extents::Extents, state::StatePair};
use crate::{
    diag::{Diagnostic, Refused},
    infer::{TypedModule, infer_types},
    ir::{
        AttrValue, Attrs, Copier, DIM_NAMES, Expr, ExprId, Function, Module, Name, TensorType, VarId, dim_names,
        dim_names_attr,
    },
    ops::{lookup, make_attrs},
    tensor::{Tensor, row_major_strides},
};

/// A pair of state whose output is its input and something after it along an axis.
struct Grown {
    /// Its number among the pairs.
    pair: usize,
    /// The input's variable and the number of that parameter.
    var: VarId,
    parameter: usize,
    /// The concatenation.
    call: ExprId,
    /// The axes of the model in the order in which they lie.
    order: Vec<usize>,
}

impl Grown {
    /// By axis of the model, where it lies.
    fn places(&self) -> Vec<i64> {
        let at = |axis| self.order.iter().position(|o| *o == axis).map_or(0, |at| at as i64);
        (0..self.order.len()).map(at).collect()
    }

    fn axes(&self) -> Vec<i64> {
        self.order.iter().map(|&o| o as i64).collect()
    }
}

/// Things by axis of the model, as these lie.
pub(super) fn in_order<T: Clone>(things: &[T], order: &[usize]) -> Vec<T> {
    order.iter().map(|&o| things[o].clone()).collect()
}

/// A tensor with its axes in that order.
pub(super) fn ordered(t: &Tensor, order: &[usize]) -> Tensor {
    let strides: Vec<i64> = row_major_strides(t.shape()).iter().map(|&s| s as i64).collect();
    t.strided(&in_order(t.shape(), order), 0, &in_order(&strides, order))
}

/// The order that takes one back.
pub(super) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(at, &o)| back[o] = at);
    back
}

/// The program with state that grows lying with the axis first along which it does, where others stand before it.
pub(super) fn places_first(
    typed: TypedModule,
    state: &mut [StatePair],
    extents: &mut Extents,
) -> Result<TypedModule, Refused> {
    let grown = grown(&typed, state);
    if grown.is_empty() {
        return Ok(typed);
    }
    let m = typed.module();
    let mut out = m.derive();
    for g in &grown {
        let ty = in_memory(&state[g.pair].ty, &g.order);
        out.var_mut(g.var).ty = Some(ty.into());
    }
    let mut copier = Copier::new();
    for (name, id) in m.functions() {
        let new = match name.as_str() {
            "main" => main_of(m, id, &grown, state, &mut copier, &mut out)?,
            _ => copier.copy(m, id, &mut out),
        };
        out.define(name.clone(), new);
    }
    for g in grown {
        extents.reorder(state[g.pair].input, &g.order);
        state[g.pair].order = Some(g.order);
    }
    infer_types(out)
}

/// The type of what lies in that order.
pub(super) fn in_memory(ty: &TensorType, order: &[usize]) -> TensorType {
    TensorType::of(in_order(&ty.shape, order), ty.dtype)
}

fn grown(typed: &TypedModule, state: &[StatePair]) -> Vec<Grown> {
    let m = typed.module();
    let Some(main) = m.function("main") else { return Vec::new() };
    let mut inputs = Vec::new();
    for (parameter, &p) in main.params.iter().enumerate() {
        let tensors = typed.var_ty(p).flatten().map_or(1, |t| t.len());
        let is_tensor = typed.var_ty(p).as_tensor().is_some();
        inputs.extend((0..tensors).map(|_| is_tensor.then_some((p, parameter))));
    }
    let outputs = outputs(m, main.body);
    let of = |(pair, p): (usize, &StatePair)| {
        let (var, parameter) = (*inputs.get(p.input)?)?;
        let call = *outputs.get(p.output)?;
        let (_, args, attrs) = m.op_call(call).filter(|(op, ..)| op.op().name() == "concatenate")?;
        let Expr::Tuple(fields) = &m[*args.first()?] else { return None };
        if !matches!(m[*fields.first()?], Expr::Var(v) if v == var) {
            return None;
        }
        let rank = p.ty.rank();
        let axis = usize::try_from(attrs.int("axis").rem_euclid(rank.max(1) as i64)).ok()?;
        let grows = p.ty.shape[axis].known().is_none() && fields.len() > 1;
        let stands_behind = p.ty.shape[..axis].iter().any(|d| d.known() != Some(1));
        let order = [axis].into_iter().chain((0..rank).filter(|a| *a != axis)).collect();
        (grows && stands_behind).then_some(Grown { pair, var, parameter, call, order })
    };
    state.iter().enumerate().filter_map(of).collect()
}

/// The expressions that outputs are.
fn outputs(m: &Module, body: ExprId) -> Vec<ExprId> {
    match &m[body] {
        Expr::Tuple(fields) => fields.iter().flat_map(|&f| outputs(m, f)).collect(),
        _ => vec![body],
    }
}

fn main_of(
    m: &Module,
    id: ExprId,
    grown: &[Grown],
    state: &[StatePair],
    copier: &mut Copier,
    out: &mut Module,
) -> Result<ExprId, Refused> {
    let main = m.func(id);
    let mut failed = None;
    // What states became, by what they were.
    let mut whole: HashMap<ExprId, ExprId> = HashMap::new();
    let mut edit = |out: &mut Module, from: ExprId, new: &Expr| -> Result<Option<ExprId>, Refused> {
        if let Expr::Var(v) = new {
            let Some(g) = grown.iter().find(|g| g.var == *v) else { return Ok(None) };
            let var = out.add(Expr::Var(*v));
            whole.insert(from, var);
            return op(out, "transpose", vec![var], &[("axes", AttrValue::ints(&g.places()))]).map(Some);
        }
        let Expr::Call { args, .. } = new else { return Ok(None) };
        if let Some(g) = grown.iter().find(|g| g.call == from) {
            let Expr::Tuple(fields) = out[args[0]].clone() else { return Ok(None) };
            let mut parts = vec![out.add(Expr::Var(g.var))];
            for &f in &fields[1..] {
                parts.push(op(out, "transpose", vec![f], &[("axes", AttrValue::ints(&g.axes()))])?);
            }
            let parts = out.add(Expr::Tuple(parts));
            let all = op(out, "concatenate", vec![parts], &[("axis", 0.into())])?;
            whole.insert(from, all);
            return op(out, "transpose", vec![all], &[("axes", AttrValue::ints(&g.places()))]).map(Some);
        }
        // What reads no elements has no use for the order that the model has.
        let Some((reads, old, attrs)) = m.op_call(from) else { return Ok(None) };
        let Some(&x) = old.first() else { return Ok(None) };
        let is_of = |g: &&Grown| g.call == x || matches!(m[x], Expr::Var(v) if v == g.var);
        let (Some(g), Some(&lies)) = (grown.iter().find(is_of), whole.get(&x)) else { return Ok(None) };
        match reads.op().name() {
            "shape_of" => {
                let shape = out.call_op(reads, vec![lies], attrs.clone());
                let places = g.places();
                let places = out.constant(Tensor::from_slice(&[places.len()], &places));
                op(out, "take", vec![shape, places], &[("axis", 0.into())]).map(Some)
            }
            "arange_like" => {
                let axis = attrs.int("axis").rem_euclid(g.order.len() as i64);
                let attrs = attrs.with("axis", g.places()[axis as usize]);
                Ok(Some(out.call_op(reads, vec![lies], attrs)))
            }
            _ => Ok(None),
        }
    };
    let body = copier.copy_with(m, main.body, out, |out, from, new| match edit(out, from, new) {
        Ok(new) => new,
        Err(e) => {
            failed.get_or_insert(e);
            None
        }
    });
    if let Some(e) = failed {
        return Err(e);
    }
    let mut at = 0;
    let outputs: HashMap<usize, ExprId> = grown.iter().map(|g| (state[g.pair].output, whole[&g.call])).collect();
    let body = with_outputs(m, main.body, body, &outputs, &mut at, out);
    let mut names = dim_names(m);
    for g in grown {
        if let Some(names) = names.get_mut(g.parameter).filter(|n| n.len() == g.order.len()) {
            *names = in_order(names, &g.order);
        }
    }
    let attrs = match dim_names_attr(&names) {
        Some((_, names)) => main.attrs.with(DIM_NAMES, names),
        None => main.attrs.clone(),
    };
    let main = Function { body, ret: None, attrs, ..main.clone() };
    Ok(out.add_at(Expr::Func(Box::new(main)), m.span(id).cloned()))
}

/// A copied result with other expressions as the outputs of these numbers.
fn with_outputs(
    m: &Module,
    from: ExprId,
    copied: ExprId,
    outputs: &HashMap<usize, ExprId>,
    at: &mut usize,
    out: &mut Module,
) -> ExprId {
    match (&m[from], out[copied].clone()) {
        (Expr::Tuple(old), Expr::Tuple(new)) => {
            let fields = old.iter().zip(new).map(|(&o, n)| with_outputs(m, o, n, outputs, at, out)).collect();
            out.add(Expr::Tuple(fields))
        }
        _ => {
            *at += 1;
            outputs.get(&(*at - 1)).copied().unwrap_or(copied)
        }
    }
}

/// A call of an operator of resat's own.
fn op(out: &mut Module, name: &str, args: Vec<ExprId>, given: &[(&str, AttrValue)]) -> Result<ExprId, Refused> {
    let refused = |e: String| Refused::from(Diagnostic::new(format!("`{name}`: {e}")));
    let op = lookup(name).ok_or_else(|| refused("there is no such operator".into()))?;
    let given: Vec<(Name, AttrValue)> = given.iter().map(|(n, v)| (Name::from(*n), v.clone())).collect();
    let attrs: Attrs = make_attrs(op, &given).map_err(|e| refused(e.to_string()))?;
    Ok(out.call_op(op, args, attrs))
}
