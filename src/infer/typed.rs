//! A module whose types are known.

use std::ops::Deref;

use crate::{
    diag::{Diagnostic, Refused},
    ir::{ExprId, Function, Module, Type, VarId},
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

    /// The module alone.
    pub fn into_module(self) -> Module {
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

/// The function of that name, or a refusal that names those there are.
pub(crate) fn entry<'a>(m: &'a Module, name: &str) -> Result<&'a Function, Refused> {
    m.function(name).ok_or_else(|| {
        let there: Vec<String> = m.functions().map(|(n, _)| format!("`@{n}`")).collect();
        let there =
            if there.is_empty() { "it has no functions".into() } else { format!("it has {}", there.join(", ")) };
        Diagnostic::new(format!("the module has no function `@{name}`")).help(there).into()
    })
}
