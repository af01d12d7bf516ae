//! Relay's expressions.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Attrs, Name, Type, TypeVarId};
use crate::tensor::Tensor;

/// An expression of a [`Module`](super::Module)'s arena.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExprId(pub u32);

/// A local variable of a module, bound once by a function, a `let` or a pattern.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct VarId(pub u32);

/// An operator of the table in `ops`, which says all there is to say of it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u32);

impl ExprId {
    /// Position in the arena.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for ExprId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// One expression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Expr {
    /// A use of a local variable.
    Var(VarId),
    /// A use of a function of the module, by name.
    Global(Name),
    /// A constant; cloning shares the data.
    Constant(#[serde(with = "super::record::without_elements")] Tensor),
    /// An operator as a value; mostly the callee of a call.
    Op(OpId),
    /// A constructor of an algebraic data type as a value, by name; mostly the callee of a call.
    Constructor(Name),
    /// A call of an operator, constructor, function or closure.
    Call {
        /// What is called.
        callee: ExprId,
        /// The arguments.
        args: Vec<ExprId>,
        /// An operator's complete record, or the free-form record of another call.
        attrs: Attrs,
        /// Explicit type arguments, mostly none.
        type_args: Vec<Type>,
    },
    /// A tuple.
    Tuple(Vec<ExprId>),
    /// A field of a tuple, from 0.
    Proj(ExprId, usize),
    /// `let var = value; body`.
    Let {
        /// The variable that is bound in `body` (and in `value`, where that is a function: recursion).
        var: VarId,
        /// What it is bound to.
        value: ExprId,
        /// Where it is bound.
        body: ExprId,
    },
    /// A conditional on a scalar `bool`.
    If {
        /// The condition.
        cond: ExprId,
        /// The result where it holds.
        then: ExprId,
        /// The result where it does not.
        otherwise: ExprId,
    },
    /// A function or closure.
    Func(Box<Function>),
    /// A choice by pattern.
    Match {
        /// What is looked at.
        data: ExprId,
        /// Tried in order.
        clauses: Vec<Clause>,
        /// `match` must cover all values; `match?` need not.
        complete: bool,
    },
    /// `ref(e)`: a new cell.
    RefNew(ExprId),
    /// `ref_read(e)`.
    RefRead(ExprId),
    /// `ref_write(cell, value)`: gives the empty tuple.
    RefWrite(ExprId, ExprId),
}

/// A function: of the module, or a closure within an expression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// What it is polymorphic in.
    pub type_params: Vec<TypeVarId>,
    /// Its parameters; the module keeps their names and annotated types.
    pub params: Vec<VarId>,
    /// The annotated result type.
    pub ret: Option<Type>,
    /// Its body.
    pub body: ExprId,
    /// Its attributes, such as `Primitive` and `Compiler`.
    pub attrs: Attrs,
}

/// One case of a `match`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clause {
    /// What must match.
    pub pattern: Pattern,
    /// The result then.
    pub body: ExprId,
}

/// A pattern of a `match`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Pattern {
    /// `_`.
    Wildcard,
    /// Binds what it meets.
    Var(VarId),
    /// A constructor of the given name, and patterns for its fields.
    Constructor(Name, Vec<Pattern>),
    /// A tuple's fields.
    Tuple(Vec<Pattern>),
}

impl Pattern {
    /// The variables that it binds, in written order.
    pub fn vars(&self) -> Vec<VarId> {
        match self {
            Pattern::Wildcard => Vec::new(),
            Pattern::Var(v) => vec![*v],
            Pattern::Constructor(_, ps) | Pattern::Tuple(ps) => ps.iter().flat_map(Pattern::vars).collect(),
        }
    }
}
