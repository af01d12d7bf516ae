//! A module: functions, data types, and the arena that their expressions live in.

use std::ops::Index;

use serde::{Deserialize, Serialize};

use super::{AttrValue, Attrs, Expr, ExprId, Function, Name, OpId, Span, Type, TypeVarId, VarId};
use crate::tensor::Tensor;

/// What a module knows of a local variable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VarInfo {
    /// The name as written, without `%`; not necessarily unique.
    pub name: Name,
    /// The annotated type.
    pub ty: Option<Type>,
}

/// A constructor of an algebraic data type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constructor {
    /// Its name, unique in the module.
    pub name: Name,
    /// The types of its fields, over the data type's parameters.
    pub fields: Vec<Type>,
}

/// An algebraic data type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdtDef {
    /// Its name.
    pub name: Name,
    /// Its parameters.
    pub params: Vec<TypeVarId>,
    /// Its constructors; none for an `extern type`.
    pub constructors: Vec<Constructor>,
    /// Whether it was declared `extern`.
    pub is_extern: bool,
}

/// A Relay program.
#[derive(Clone, Debug, Default)]
pub struct Module {
    pub(super) exprs: Vec<Expr>,
    pub(super) spans: Vec<Option<Span>>,
    pub(super) vars: Vec<VarInfo>,
    pub(super) type_vars: Vec<Name>,
    pub(super) functions: Vec<(Name, ExprId)>,
    pub(super) adts: Vec<AdtDef>,
    /// The module's own attributes.
    pub attrs: Option<Attrs>,
}

impl Module {
    /// A module without functions.
    pub fn new() -> Module {
        Module::default()
    }

    /// Adds an expression. Panics where a child is not older: children come first, always.
    pub fn add(&mut self, expr: Expr) -> ExprId {
        let id = ExprId(u32::try_from(self.exprs.len()).expect("fewer than 2^32 expressions"));
        super::children(&expr, |child| assert!(child < id, "children are added before their parents"));
        self.exprs.push(expr);
        self.spans.push(None);
        id
    }

    /// Adds an expression and says where it came from.
    pub fn add_at(&mut self, expr: Expr, span: Option<Span>) -> ExprId {
        let id = self.add(expr);
        self.spans[id.index()] = span;
        id
    }

    /// Adds the call of an operator with a complete attribute record (see `ops::make_attrs`).
    pub fn call_op(&mut self, op: OpId, args: Vec<ExprId>, attrs: Attrs) -> ExprId {
        let callee = self.add(Expr::Op(op));
        self.add(Expr::Call { callee, args, attrs, type_args: Vec::new() })
    }

    /// Adds a constant.
    pub fn constant(&mut self, t: Tensor) -> ExprId {
        self.add(Expr::Constant(t))
    }

    /// Declares a local variable.
    pub fn new_var(&mut self, name: impl Into<Name>, ty: Option<Type>) -> VarId {
        self.vars.push(VarInfo { name: name.into(), ty });
        VarId(self.vars.len() as u32 - 1)
    }

    /// Declares a type parameter.
    pub fn new_type_var(&mut self, name: impl Into<Name>) -> TypeVarId {
        self.type_vars.push(name.into());
        TypeVarId(self.type_vars.len() as u32 - 1)
    }

    /// What is known of a variable.
    pub fn var(&self, id: VarId) -> &VarInfo {
        &self.vars[id.0 as usize]
    }

    /// For changing a variable's name or annotation.
    pub fn var_mut(&mut self, id: VarId) -> &mut VarInfo {
        &mut self.vars[id.0 as usize]
    }

    /// Number of local variables.
    pub fn var_count(&self) -> usize {
        self.vars.len()
    }

    /// The name of a type parameter.
    pub fn type_var(&self, id: TypeVarId) -> &Name {
        &self.type_vars[id.0 as usize]
    }

    /// Number of type parameters.
    pub fn type_var_count(&self) -> usize {
        self.type_vars.len()
    }

    /// Number of expressions in the arena, reachable or not.
    pub fn len(&self) -> usize {
        self.exprs.len()
    }

    /// Whether the arena is empty.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty()
    }

    /// Takes the constant out that an expression is, where it is one; another one without data stays in its place. For who needs the data
    /// no longer there, or nowhere: it goes with its last owner.
    pub fn take_constant(&mut self, id: ExprId) -> Option<Tensor> {
        match &mut self.exprs[id.index()] {
            Expr::Constant(t) => Some(std::mem::replace(t, Tensor::zeros(t.dtype(), &[0]))),
            _ => None,
        }
    }

    /// Has an expression that is a constant be another one of the same type.
    pub fn replace_constant(&mut self, id: ExprId, t: Tensor) {
        if let Expr::Constant(before) = &mut self.exprs[id.index()] {
            *before = t;
        }
    }

    /// All expressions' ids, children before parents.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = ExprId> + use<> {
        (0..self.exprs.len() as u32).map(ExprId)
    }

    /// Where the expression stands in its source, where known.
    pub fn span(&self, id: ExprId) -> Option<&Span> {
        self.spans[id.index()].as_ref()
    }

    /// Says where an expression came from.
    pub fn set_span(&mut self, id: ExprId, span: Option<Span>) {
        self.spans[id.index()] = span;
    }

    /// Defines a function, or replaces the one of that name. The expression must be a [`Expr::Func`].
    pub fn define(&mut self, name: impl Into<Name>, func: ExprId) {
        assert!(matches!(self[func], Expr::Func(_)), "a definition is a function");
        let name = name.into();
        match self.functions.iter_mut().find(|(n, _)| *n == name) {
            Some(f) => f.1 = func,
            None => self.functions.push((name, func)),
        }
    }

    /// The functions by name, in order of definition.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = (&Name, ExprId)> {
        self.functions.iter().map(|(n, f)| (n, *f))
    }

    /// The function of that name: its expression.
    pub fn function_id(&self, name: &str) -> Option<ExprId> {
        self.functions.iter().find(|(n, _)| n.as_str() == name).map(|(_, f)| *f)
    }

    /// The function of that name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.function_id(name).map(|id| self.func(id))
    }

    /// The function that the expression is. Panics on another expression.
    pub fn func(&self, id: ExprId) -> &Function {
        match &self[id] {
            Expr::Func(f) => f,
            e => panic!("a function was expected, not {e:?}"),
        }
    }

    /// Adds a data type.
    pub fn add_adt(&mut self, adt: AdtDef) {
        self.adts.push(adt);
    }

    /// The data types, in order of definition.
    pub fn adts(&self) -> &[AdtDef] {
        &self.adts
    }

    /// The data type of that name.
    pub fn adt(&self, name: &str) -> Option<&AdtDef> {
        self.adts.iter().find(|a| a.name.as_str() == name)
    }

    /// The constructor of that name, the data type that it belongs to, and its number there (its tag).
    pub fn constructor(&self, name: &str) -> Option<(&AdtDef, usize)> {
        self.adts.iter().find_map(|a| a.constructors.iter().position(|c| c.name.as_str() == name).map(|tag| (a, tag)))
    }

    /// The operator, arguments and attributes, where the expression is the call of an operator.
    pub fn op_call(&self, id: ExprId) -> Option<(OpId, &[ExprId], &Attrs)> {
        match &self[id] {
            Expr::Call { callee, args, attrs, .. } => match self[*callee] {
                Expr::Op(op) => Some((op, args, attrs)),
                _ => None,
            },
            _ => None,
        }
    }

    /// A module with the same variables, type parameters, data types and attributes, but no expressions or functions:
    /// what a pass builds its result in. Variables keep their ids.
    pub fn derive(&self) -> Module {
        Module {
            vars: self.vars.clone(),
            type_vars: self.type_vars.clone(),
            adts: self.adts.clone(),
            attrs: self.attrs.clone(),
            ..Module::default()
        }
    }

    /// Whether what a kernel computes of a sum of products of `bfloat16` may be rounded once, where it is stored, instead of after each operator. Programs
    /// that were brought to `bfloat16` for speed have it, by `ToMixedPrecision`: a module attribute, which JSON keeps and text does not. Programs
    /// that say `bfloat16` themselves mean each rounding.
    pub fn has_excess_precision(&self) -> bool {
        let given = self.attrs.as_ref().and_then(|a| a.get(EXCESS_PRECISION)).and_then(AttrValue::as_int);
        given.is_some_and(|v| v != 0)
    }

    /// The module, in which kernels may round once: see [`Module::has_excess_precision`].
    pub fn with_excess_precision(self) -> Module {
        let attrs = self.attrs.clone().unwrap_or_else(Attrs::empty).with(EXCESS_PRECISION, 1i64);
        Module { attrs: Some(attrs), ..self }
    }
}

/// The module attribute by which kernels may round once.
const EXCESS_PRECISION: &str = "excess_precision";

impl Index<ExprId> for Module {
    type Output = Expr;
    fn index(&self, id: ExprId) -> &Expr {
        &self.exprs[id.index()]
    }
}

impl Function {
    /// A function without type parameters or attributes.
    pub fn new(params: Vec<VarId>, body: ExprId, ret: Option<Type>) -> Function {
        Function { type_params: Vec::new(), params, ret, body, attrs: Attrs::empty() }
    }

    /// The same function with one more attribute, or another value of one: `Compiler`, `Composite`, `Primitive` and what else passes
    /// look at.
    ///
    /// ```
    /// use resat_ir::ir::{Expr, Function, Module};
    /// let mut m = Module::new();
    /// let x = m.new_var("x", None);
    /// let body = m.add(Expr::Var(x));
    /// let f = Function::new(vec![x], body, None).with_attr("Compiler", "mine").with_attr("Primitive", 1i64);
    /// assert_eq!((f.compiler(), f.is_primitive()), (Some("mine"), true));
    /// ```
    #[must_use]
    pub fn with_attr(self, name: &str, value: impl Into<AttrValue>) -> Function {
        Function { attrs: self.attrs.with(name, value), ..self }
    }

    /// Whether it is marked as one fused kernel (`Primitive=1`).
    pub fn is_primitive(&self) -> bool {
        self.attrs.get("Primitive").and_then(AttrValue::as_int).is_some_and(|v| v != 0)
    }

    /// The external compiler that it is for (`Compiler="…"`).
    pub fn compiler(&self) -> Option<&str> {
        match self.attrs.get("Compiler") {
            Some(AttrValue::Str(s)) => Some(s),
            _ => None,
        }
    }
}
