//! What an operator is: `trait Op`, attribute schemas, dialects, and the table that operators are found in.
//!
//! The operators themselves are in a crate of their own, which fills the table before it is first asked.

mod axes;
mod dialect;
mod record;
mod schema;
mod table;

use std::fmt;

pub use axes::{AxisMap, AxisRole};
pub use dialect::{Dialect, DialectError, RuleText};
pub use schema::{AttrDefault, AttrError, AttrField, AttrKind, make_attrs};
pub use table::{RegisterError, Table, table};

use crate::{
    ir::{AttrValue, Attrs, OpId, Type},
    loops::{Builder, Operand},
    tensor::{LayoutError, Tensor, Value},
};

/// How an operator's output elements depend on its inputs; TVM's fusion classes.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Element by element, all shapes equal.
    Elementwise,
    /// Element by element, with broadcasting.
    Broadcast,
    /// Each output element is (at most) one input element, moved.
    Injective,
    /// Combines elements along axes.
    Reduce,
    /// Sums of products or windows; elementwise consumers fuse into its output.
    Contract,
    /// None of these: fuses with nothing.
    Opaque,
}

impl Class {
    /// Whether it combines several elements to one: of such operators a kernel holds at most one.
    pub fn is_heavy(self) -> bool {
        matches!(self, Class::Reduce | Class::Contract)
    }
}

/// What a call costs, in facts: cost models make seconds of them.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Work {
    /// Arithmetic operations; a multiply-add counts two, a transcendental function what its polynomial takes.
    pub flops: f64,
    /// Bytes that must be read, each input once.
    pub bytes_read: f64,
    /// Bytes that must be written.
    pub bytes_written: f64,
}

/// A small legal call, for tests of operators, rules and random programs.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The attributes that are not left at their defaults.
    pub attrs: Vec<(&'static str, AttrValue)>,
    /// The arguments' types.
    pub args: Vec<Type>,
}

/// Why a call of an operator is not legal, or not supported: what was found and what was wanted. Whoever calls adds the
/// operator's name and place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpError(pub String);

impl From<LayoutError> for OpError {
    fn from(e: LayoutError) -> OpError {
        OpError(e.to_string())
    }
}

/// All that resat knows of one Relay operator.
///
/// Facets that carry meaning have no default bodies: a forgotten one must not compile.
pub trait Op: fmt::Debug + Sync {
    /// TVM's name, as `nn.dense`.
    fn name(&self) -> &'static str;

    /// What it computes, as a formula, then numbered constraints (C1, C2, …) that type errors cite.
    fn doc(&self) -> &'static str;

    /// The arguments' names, in TVM's order. A tuple argument (as `concatenate` takes) is one.
    fn inputs(&self) -> &'static [&'static str];

    /// The attributes: TVM's names, order and defaults.
    fn attrs(&self) -> &'static [AttrField];

    /// The fusion class.
    fn class(&self) -> Class;

    /// The type relation: the result's type. Argument types are complete (no holes), but extents may be unknown.
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError>;

    /// What TVM's relation says of the arguments' types before all are known: which types follow for which arguments, from the
    /// attributes and from what is known of the others (a weight's from `kernel_size`, `channels` and the data). Of `args` any
    /// type or extent may be a hole. Most operators say nothing.
    fn complete(&self, _attrs: &Attrs, _args: &[Type]) -> Vec<(usize, Type)> {
        Vec::new()
    }

    /// The reference kernel: slow, plain, exact about integers. It shares no code with `lower`. Arguments are of types that
    /// `infer` accepted.
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError>;

    /// Which output axis each input axis feeds: what layouts, tiling and fusion may do.
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap;

    /// Arithmetic and traffic. Unknown extents count as 1.
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work;

    /// The operator as tensor expressions over its arguments.
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError>;

    /// The arguments whose values, beside the types of all, decide the result's extents: `dyn.reshape` takes as one what
    /// `reshape` has as an attribute. Most operators have none.
    fn decided_by(&self, _attrs: &Attrs) -> &'static [usize] {
        &[]
    }

    /// The call with the values of the arguments that [`decided_by`](Op::decided_by) names (in its order) made part of it:
    /// the extents of what comes out follow from types, or
    /// are outermost ones and counted while running. Refuses values that make no legal call.
    fn to_static(&self, _attrs: &Attrs, _values: &[&Tensor]) -> Result<StaticCall, OpError> {
        Err(OpError("no extent of the result follows from an argument's value".into()))
    }

    /// Whether the result follows from the arguments' types, whatever their values are: `shape_of`.
    fn reads_types_only(&self) -> bool {
        false
    }

    /// Such a result, of tensors of these extents, which may be larger than memory: nothing is made of them.
    fn of_extents(&self, _attrs: &Attrs, _extents: &[Vec<i64>]) -> Option<Tensor> {
        None
    }

    /// Whether the running program calls [`eval`](Op::eval), since no kernel says what it computes: decoders of files. The extents of
    /// such an operator's result are decided by all of its arguments' values, and it is a kernel by itself.
    fn runs_as_is(&self) -> bool {
        false
    }

    /// Small legal calls that cover its attributes.
    fn samples(&self) -> Vec<Sample>;
}

/// What [`Op::to_static`] makes of a call.
#[derive(Clone, PartialEq, Debug)]
pub struct StaticCall {
    /// The operator that is called instead.
    pub op: OpId,
    /// Its attributes.
    pub attrs: Attrs,
    /// Which of the arguments it takes, in order.
    pub args: Vec<usize>,
}

impl OpId {
    /// The operator's definition.
    pub fn op(self) -> &'static dyn Op {
        table::by_id(self)
    }

    /// The name of the dialect that it is of, where it is of one.
    pub fn dialect(self) -> Option<&'static str> {
        table::dialect_of(self)
    }
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op().name())
    }
}

/// A family's operators.
pub type Family = &'static [&'static dyn Op];
