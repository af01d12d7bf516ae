//! Types within primitive functions, for arguments of known extents.

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::{
    infer::TypedModule,
    ir::{Expr, ExprId, Function, Module, Type, VarId, reachable},
};

/// What bound variables of a function stand for.
fn bound_within(m: &Module, order: &[ExprId]) -> HashMap<VarId, ExprId> {
    let bound = order.iter().filter_map(|&e| match &m[e] {
        Expr::Let { var, value, .. } => Some((*var, *value)),
        _ => None,
    });
    bound.collect()
}

/// The expressions within a function of operators that have types, each after those that its type follows from.
pub fn typing_order(m: &Module, f: &Function) -> Option<Vec<ExprId>> {
    // Of a variable that is bound, the value may have a greater number than the variable's uses.
    let mut left = reachable(m, [f.body]);
    left.retain(|&e| !matches!(m[e], Expr::Op(_)));
    let bound = bound_within(m, &left);
    let mut known: HashSet<ExprId> = HashSet::new();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let before = left.len();
        let is_ready = |e: &ExprId, known: &HashSet<ExprId>| match &m[*e] {
            Expr::Var(v) => bound.get(v).is_none_or(|value| known.contains(value)),
            Expr::Tuple(fields) => fields.iter().all(|f| known.contains(f)),
            Expr::Proj(tuple, _) => known.contains(tuple),
            Expr::Let { body, .. } => known.contains(body),
            Expr::Call { args, .. } => args.iter().all(|a| known.contains(a)),
            _ => true,
        };
        let mut later = Vec::new();
        for e in left {
            match is_ready(&e, &known) {
                true => {
                    known.insert(e);
                    order.push(e);
                }
                false => later.push(e),
            }
        }
        if later.len() == before {
            return None;
        }
        left = later;
    }
    Some(order)
}

/// The types of the expressions within a function of operators, which are given in [order](typing_order), for parameters of these types.
pub fn types_within(
    typed: &TypedModule,
    f: &Function,
    order: &[ExprId],
    params: &[Type],
) -> Option<HashMap<ExprId, Type>> {
    let m = typed.module();
    let mut types: HashMap<ExprId, Type> = HashMap::with_capacity(order.len());
    let mut bound = None;
    for &e in order {
        let of = |e: &ExprId| types.get(e).cloned();
        let ty = match &m[e] {
            Expr::Var(v) => match f.params.iter().position(|p| p == v) {
                Some(at) => params.get(at)?.clone(),
                None => of(bound.get_or_insert_with(|| bound_within(m, order)).get(v)?)?,
            },
            Expr::Constant(_) => typed.ty(e).clone(),
            Expr::Tuple(fields) => Type::tuple(fields.iter().map(of).collect::<Option<Vec<Type>>>()?),
            Expr::Proj(tuple, i) => match types.get(tuple)? {
                Type::Tuple(fields) => fields.get(*i)?.clone(),
                _ => return None,
            },
            Expr::Let { body, .. } => of(body)?,
            Expr::Call { .. } => {
                let (op, args, attrs) = m.op_call(e)?;
                let args: SmallVec<[Type; 4]> = args.iter().map(of).collect::<Option<_>>()?;
                op.op().infer(attrs, &args).ok().filter(is_sensible)?
            }
            _ => return None,
        };
        types.insert(e, ty);
    }
    Some(types)
}

fn is_sensible(ty: &Type) -> bool {
    ty.flatten().is_some_and(|all| all.iter().all(|t| t.is_sensible()))
}
