//! What expressions are worth while the program is inlined, and where variables find them.

use hashbrown::HashMap;

use crate::ir::{Dim, ExprId, Type, TypeVarId, VarId};

/// What an expression is worth.
#[derive(Copy, Clone, PartialEq)]
pub(super) enum Sym {
    /// An expression of the new module.
    Code(ExprId),
    /// A tuple whose fields are known.
    Tuple(TupleId),
    /// A function of the old module, in an activation.
    Closure(ExprId, FrameId),
}

#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub(super) struct TupleId(pub(super) u32);

#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub(super) struct FrameId(pub(super) u32);

/// A tuple whose fields are known, and its code once there is some.
pub(super) struct Tuple {
    pub(super) fields: Vec<Sym>,
    pub(super) code: Option<ExprId>,
}

/// An activation of a function: one place that its body goes to.
pub(super) struct Frame {
    pub(super) scope: u32,
    pub(super) parent: Option<FrameId>,
    /// How many functions that become code lie around the place.
    pub(super) level: u32,
    /// Type parameters of inlined functions, which mean nothing any more.
    pub(super) erased: Vec<TypeVarId>,
    pub(super) vars: HashMap<VarId, Binding>,
    /// Shared results.
    pub(super) shared: HashMap<ExprId, Sym>,
}

/// What a variable stands for.
#[derive(Copy, Clone)]
pub(super) struct Binding {
    pub(super) sym: Sym,
    /// A variable of the new module, once an inner function that stays has asked for one.
    pub(super) let_var: Option<VarId>,
    /// Whether the code that the binding is for has been made: who asks from now on is bound again.
    pub(super) closed: bool,
}

/// Whether a type mentions one of the type parameters.
pub(super) fn mentions(ty: &Type, params: &[TypeVarId]) -> bool {
    if params.is_empty() {
        return false;
    }
    let mut todo = vec![ty];
    while let Some(t) = todo.pop() {
        match t {
            Type::Var(v) if params.contains(v) => return true,
            Type::Var(_) | Type::Hole(_) => {}
            Type::Tensor(t) => {
                if t.shape.iter().any(|d| matches!(d, Dim::Var(v) if params.contains(v))) {
                    return true;
                }
            }
            Type::Tuple(fields) | Type::Adt(_, fields) => todo.extend(fields.iter()),
            Type::Func(f) => todo.extend(f.params.iter().chain([&f.ret])),
            Type::Ref(t) => todo.push(t),
        }
    }
    false
}
