//! What a primitive function is but for its variables' names: functions of one form are lowered, scheduled and compiled once.

use hashbrown::HashMap;

use crate::{
    ir::{Attrs, Expr, ExprId, Function, Module, OpId, Type, VarId, reachable},
    tensor::{DType, Shape},
};

/// Constants of more elements are not compared.
const FEW: usize = 64;

/// The operators of a function: equal for functions that are the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Form {
    attrs: Attrs,
    /// Types of the parameters.
    types: Vec<Option<Type>>,
    nodes: Vec<Node>,
}

/// An expression, whose children are numbers of nodes before it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Node {
    Param(usize),
    Op(OpId),
    Tuple(Vec<usize>),
    Proj(usize, usize),
    Call(usize, Vec<usize>, Attrs),
    Constant(DType, Shape, Vec<u8>),
}

impl Form {
    /// The form of a function of operators whose parameters have these types; none where it holds anything else, or more constants than
    /// are worth comparing.
    pub fn of(m: &Module, f: &Function, ty: impl Fn(VarId) -> Option<Type>) -> Option<Form> {
        if f.compiler().is_some() {
            return None;
        }
        let order = reachable(m, [f.body]);
        let numbers: HashMap<ExprId, usize> = order.iter().enumerate().map(|(i, &e)| (e, i)).collect();
        let of = |all: &[ExprId]| all.iter().map(|e| numbers[e]).collect::<Vec<usize>>();
        let node = |&e: &ExprId| {
            Some(match &m[e] {
                Expr::Op(op) => Node::Op(*op),
                Expr::Var(v) => Node::Param(f.params.iter().position(|p| p == v)?),
                Expr::Tuple(fields) => Node::Tuple(of(fields)),
                Expr::Proj(tuple, field) => Node::Proj(numbers[tuple], *field),
                Expr::Constant(t) if t.len() <= FEW => Node::Constant(t.dtype(), t.shape().into(), t.bytes().to_vec()),
                Expr::Call { callee, args, attrs, .. } => Node::Call(numbers[callee], of(args), attrs.clone()),
                _ => return None,
            })
        };
        let nodes = order.iter().map(node).collect::<Option<_>>()?;
        Some(Form { attrs: f.attrs.clone(), types: f.params.iter().map(|&p| ty(p)).collect(), nodes })
    }
}
