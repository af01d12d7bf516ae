//! A module whose types are known.

use std::ops::Deref;

use crate::{
    diag::{Diagnostic, Refused},
    ir::{Dim, Expr, ExprId, Function, Module, Type, VarId},
};

/// A module with the type of every expression and variable that its functions reach. Made by
/// [`infer_types`](super::infer_types) only.
#[derive(Clone, Debug)]
pub struct TypedModule {
    module: Module,
    types: Vec<Type>,
    vars: Vec<Type>,
}

impl TypedModule {
    pub(super) fn new(module: Module, types: Vec<Type>, vars: Vec<Type>) -> TypedModule {
        TypedModule { module, types, vars }
    }

    /// The module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The module alone. Parameters of its functions and variables of patterns that were not annotated are now: what their
    /// types were inferred from may go when the module is rewritten.
    pub fn into_module(mut self) -> Module {
        let m = &self.module;
        let params = m.functions().flat_map(|(_, f)| m.func(f).params.iter().copied());
        let fields = m.ids().flat_map(|e| match &m[e] {
            Expr::Match { clauses, .. } => clauses.iter().flat_map(|c| c.pattern.vars()).collect(),
            _ => Vec::new(),
        });
        for v in params.chain(fields).collect::<Vec<VarId>>() {
            let found = self.vars[v.0 as usize].clone();
            let annotation = &mut self.module.var_mut(v).ty;
            if annotation.is_none() && is_whole(&found) {
                *annotation = Some(found);
            }
        }
        self.module
    }

    /// The type of an expression. A hole where no function reaches the expression, and for an operator or constructor by
    /// itself (which has a type only together with the arguments of a call).
    pub fn ty(&self, id: ExprId) -> &Type {
        &self.types[id.index()]
    }

    /// The type of a variable; a hole where no function binds it.
    pub fn var_ty(&self, id: VarId) -> &Type {
        &self.vars[id.0 as usize]
    }

    /// The function of that name, or a refusal that names those there are.
    pub fn entry(&self, name: &str) -> Result<&Function, Refused> {
        entry(&self.module, name)
    }

    /// The types of a function's parameters, in order. Panics where there is no function of that name.
    pub fn param_types(&self, name: &str) -> Vec<&Type> {
        let f = self.module.function(name).expect("the function exists");
        f.params.iter().map(|&p| self.var_ty(p)).collect()
    }

    /// The type of a function's result. Panics where there is no function of that name.
    pub fn result_type(&self, name: &str) -> &Type {
        let f = self.module.function(name).expect("the function exists");
        self.ty(f.body)
    }
}

impl Deref for TypedModule {
    type Target = Module;
    fn deref(&self) -> &Module {
        &self.module
    }
}

/// Whether a type leaves nothing open, extents that are found while running included: more may be known of them later. Inference bounds how deep types are nested.
fn is_whole(ty: &Type) -> bool {
    match ty {
        Type::Hole(_) => false,
        Type::Tensor(t) => t.shape.iter().all(|d| !matches!(d, Dim::Hole(_))),
        Type::Var(_) => true,
        Type::Tuple(fields) | Type::Adt(_, fields) => fields.iter().all(is_whole),
        Type::Func(f) => f.params.iter().all(is_whole) && is_whole(&f.ret),
        Type::Ref(t) => is_whole(t),
    }
}

/// The function of that name, or a refusal that names those there are.
pub fn entry<'a>(m: &'a Module, name: &str) -> Result<&'a Function, Refused> {
    m.function(name).ok_or_else(|| {
        let there: Vec<String> = m.functions().map(|(n, _)| format!("`@{n}`")).collect();
        let there =
            if there.is_empty() { "it has no functions".into() } else { format!("it has {}", there.join(", ")) };
        Diagnostic::new(format!("the module has no function `@{name}`")).help(there).into()
    })
}
