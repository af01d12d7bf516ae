//! Rules, checked and resolved: names are slots, operators are table entries.
//!
//! A match is an assignment to *slots*. Attribute variables have no slots: they are read from the records that the match
//! bound, or computed.

use std::sync::Arc;

use super::signature::{Function, Guard};
use crate::{
    ir::{AttrValue, Name, OpId, Span},
    saturate::Grade,
    tensor::DType,
};

/// Index into a match.
pub(super) type Slot = usize;

/// What a slot of a match holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum SlotKind {
    /// A class of the e-graph.
    Class,
    /// A number: the index of a projection, or the position in the list of a `:for`.
    Number,
    /// The class of an attribute record.
    Record,
    /// An operator's id.
    Op,
}

/// Which operators an operator pattern matches.
#[derive(Clone, Debug)]
pub(super) enum Ops {
    /// One.
    One(OpId),
    /// Several, of one number of arguments; the match remembers which in the slot.
    Any(Arc<[OpId]>, Slot),
}

impl Ops {
    pub(super) fn list(&self) -> &[OpId] {
        match self {
            Ops::One(op) => std::slice::from_ref(op),
            Ops::Any(ops, _) => ops,
        }
    }
}

/// A left side.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// `?x`: any class, the same at each occurrence.
    Class(Slot),
    /// `(as ?y P)`: what matches P, with a name for its class.
    As(Slot, Box<Pattern>),
    /// A number where a value is wanted: a constant that is this number everywhere.
    Splat(f64),
    /// `(op {fields} args…)`.
    Op {
        ops: Ops,
        /// Where the record's class is kept.
        record: Slot,
        /// What fields must be.
        fields: Vec<(Name, FieldPattern)>,
        args: Vec<Pattern>,
        /// `(~op a b)`: either order of the arguments.
        either_order: bool,
    },
    /// `(tuple a b)`.
    Tuple(Vec<Pattern>),
    /// `(tuple P...)`: any number of fields, each matching P, whose class variables are sequences.
    TupleOf(Box<Pattern>),
    /// A class variable inside [`Pattern::TupleOf`]: one class per field, kept in the match's sequence of that index.
    Each(usize),
    /// `(proj i P)`.
    Proj(IndexPattern, Box<Pattern>),
}

/// What a field of a record must be.
#[derive(Clone, Debug)]
pub(super) enum FieldPattern {
    /// This value.
    Value(AttrValue),
    /// The value of an attribute variable. Where the variable is defined here, that is no condition.
    Var(usize),
    /// A list of so many elements, each matching.
    List(Vec<FieldPattern>),
}

/// What a projection's index must be.
#[derive(Clone, Debug)]
pub(super) enum IndexPattern {
    /// This number.
    Value(u32),
    /// Any, kept in the slot.
    Any(Slot),
}

/// Where an attribute variable's value comes from.
#[derive(Clone, Debug)]
pub(super) enum AttrDef {
    /// The field of the record in a slot; `element` of it where the field was matched by a list.
    Field { record: Slot, field: Name, element: Option<usize> },
    /// The index in a slot.
    Index(Slot),
    /// `:for ?v LIST`: each element in turn; the slot keeps the position.
    For(Slot, Expr),
    /// `:let ?v EXPR`.
    Let(Expr),
    /// `:given ?v VALUE` of the ruleset: what whoever runs the rules says, or the value that the file gives.
    Given(Name, AttrValue),
}

/// A computation over attributes and facts of classes.
#[derive(Clone, Debug)]
pub(super) enum Expr {
    Value(AttrValue),
    Var(usize),
    List(Vec<Expr>),
    /// The name of the operator in a slot.
    OpName(Slot),
    Call(&'static Function, Vec<Arg>),
}

/// An argument of a function or guard.
#[derive(Clone, Debug)]
pub(super) enum Arg {
    Expr(Expr),
    Class(Slot),
    /// A sequence of the match.
    Classes(usize),
    /// A class that the rule's right side has named by `let`: only its type is known.
    Built(usize),
}

/// A condition. Unknown counts as no.
#[derive(Clone, Debug)]
pub(super) enum Condition {
    Test(&'static Guard, Vec<Arg>),
    Not(Box<Condition>),
    All(Vec<Condition>),
    Any(Vec<Condition>),
}

/// A right side.
#[derive(Clone, Debug)]
pub(super) enum Term {
    Class(Slot),
    /// What a `let` of the right side built.
    Built(usize),
    /// An element of a sequence, within a `...`.
    Element(usize),
    /// `(nth i ?xs)`: the element of a sequence at a computed place, from 0.
    Nth(Expr, usize),
    Op {
        op: TermOp,
        /// The record whose fields are taken over, `..?a`.
        base: Option<Slot>,
        fields: Vec<(Name, Expr)>,
        args: Vec<Term>,
    },
    Tuple(Vec<TermItem>),
    Proj(Expr, Box<Term>),
    /// A constant: a tensor, or a number of the dtype.
    Const(Expr, Option<ConstType>),
}

/// The operator of a right side.
#[derive(Copy, Clone, Debug)]
pub(super) enum TermOp {
    One(OpId),
    /// The one that the match found.
    Matched(Slot),
}

/// The element type of a scalar constant.
#[derive(Clone, Debug)]
pub(super) enum ConstType {
    Given(DType),
    /// That of a class.
    Like(Slot),
    /// What an expression says.
    Computed(Expr),
}

/// One or many fields of a tuple.
#[derive(Clone, Debug)]
pub(super) enum TermItem {
    One(Term),
    /// `T...`: once per element of the sequences in it; the first is named here, for their number.
    Each(Term, usize),
}

/// What a sample says of one variable.
#[derive(Clone, Debug)]
pub(super) enum Hint {
    /// A class is of this shape, of this dtype, everywhere this number.
    Class { slot: Slot, shape: Vec<i64>, dtype: Option<DType>, value: Option<f64> },
    /// A sequence has one class per shape.
    Classes { seq: usize, shapes: Vec<Vec<i64>>, dtype: Option<DType> },
    /// An attribute is this.
    Attr { var: usize, value: AttrValue },
    /// The operator is this.
    Op { slot: Slot, op: OpId },
}

/// A rule of one direction.
#[derive(Clone, Debug)]
pub(super) struct RuleDef {
    pub(super) ruleset: Name,
    pub(super) name: Name,
    pub(super) grade: Grade,
    /// How far the sides of an approximate rule may differ: see the manual. Others have none.
    pub(super) error: Option<Expr>,
    pub(super) grows: bool,
    /// Whether it relies on what the program promises of its values: only its samples show it.
    pub(super) promised: bool,
    /// Whether it also rewrites what is made of constants alone, which it makes smaller.
    pub(super) constants: bool,
    /// `:limit N`: equalities that the rule may teach in one round.
    pub(super) limit: Option<u64>,
    /// What a match holds.
    pub(super) slots: Vec<SlotKind>,
    /// Number of sequences in a match.
    pub(super) seqs: usize,
    pub(super) attr_vars: Vec<AttrDef>,
    pub(super) roots: Vec<Pattern>,
    pub(super) lets: Vec<Term>,
    /// One per root.
    pub(super) results: Vec<Term>,
    /// The `:for` variables, in order.
    pub(super) fors: Vec<usize>,
    pub(super) guards: Vec<Condition>,
    pub(super) samples: Vec<Vec<Hint>>,
    /// The comment above the rule.
    pub(super) doc: Arc<str>,
    /// The rule as it was written.
    pub(super) text: Arc<str>,
    pub(super) span: Span,
}

impl RuleDef {
    /// `ruleset/rule`.
    pub(super) fn full_name(&self) -> Name {
        format!("{}/{}", self.ruleset, self.name).into()
    }
}

impl Pattern {
    /// The e-nodes that it matches, attribute records and what variables stand for aside.
    pub(super) fn nodes(&self) -> usize {
        match self {
            Pattern::Class(_) | Pattern::Splat(_) | Pattern::Each(_) => 0,
            Pattern::As(_, p) => p.nodes(),
            Pattern::Op { args, .. } | Pattern::Tuple(args) => 1 + args.iter().map(Pattern::nodes).sum::<usize>(),
            Pattern::TupleOf(p) | Pattern::Proj(_, p) => 1 + p.nodes(),
        }
    }
}

impl Term {
    /// The e-nodes that it makes at most, attribute records aside.
    pub(super) fn nodes(&self) -> usize {
        match self {
            Term::Class(_) | Term::Built(_) | Term::Element(_) | Term::Nth(..) => 0,
            Term::Const(..) => 1,
            Term::Op { args, .. } => 1 + args.iter().map(Term::nodes).sum::<usize>(),
            Term::Proj(_, t) => 1 + t.nodes(),
            Term::Tuple(items) => {
                let of = |item: &TermItem| match item {
                    TermItem::One(t) | TermItem::Each(t, _) => t.nodes(),
                };
                1 + items.iter().map(of).sum::<usize>()
            }
        }
    }
}
