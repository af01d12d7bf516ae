//! The operators: each is one `impl Op`, and everything else in resat reads that.
//!
//! To add an operator: a row in a table of [`elementwise`], or a file (or a place in its family's file) with its
//! `impl Op` and a row in that family's `OPS`. [`adding`] shows both.

mod annotation;
#[doc = include_str!("../../docs/adding-operators.md")]
pub mod adding {}
mod axes;
mod contract;
mod create;
mod dialect;
mod einsum;
pub mod elementwise;
mod fourier;
mod image;
pub mod kernel;
mod nn;
mod order;
mod qnn;
mod random;
mod real;
mod reduce;
mod registry;
mod schema;
mod sparse;
mod transform;
mod unsupported;
mod util;
mod vision;

use std::fmt;

pub use axes::{AxisMap, AxisRole};
pub use dialect::{Dialect, DialectError, RuleText};
pub(crate) use qnn::{fixed_point, tflite_scaled};
pub(crate) use registry::withdraw_dialect;
pub use registry::{
    RegisterError, all, dialects, lookup, nearest, register, register_dialect, shipped_dialects, suggest,
};
pub use schema::{AttrDefault, AttrError, AttrField, AttrKind, make_attrs};
pub use unsupported::unsupported;

use crate::{
    ir::{AttrValue, Attrs, OpId, Type},
    loops::{Builder, Operand},
    tensor::{Tensor, Value},
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

/// `Err(OpError(format!(…)).into())`, returned.
macro_rules! op_bail {
    ($($arg:tt)*) => { return Err($crate::ops::OpError(format!($($arg)*)).into()) };
}
pub(crate) use op_bail;

/// `op_bail!` unless a condition holds.
macro_rules! op_ensure {
    ($cond:expr, $($arg:tt)*) => { if $cond {} else { $crate::ops::op_bail!($($arg)*) } };
}
pub(crate) use op_ensure;

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
    fn settle(&self, _attrs: &Attrs, _values: &[&Tensor]) -> Result<Settled, OpError> {
        op_bail!("no extent of the result follows from an argument's value")
    }

    /// Whether the result follows from the arguments' types, whatever their values are: `shape_of`.
    fn reads_types_only(&self) -> bool {
        false
    }

    /// Small legal calls that cover its attributes.
    fn samples(&self) -> Vec<Sample>;
}

/// What [`Op::settle`] makes of a call.
#[derive(Clone, PartialEq, Debug)]
pub struct Settled {
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
        registry::by_id(self)
    }

    /// The name of the dialect that it is of, where it is of one.
    pub fn dialect(self) -> Option<&'static str> {
        registry::dialect_of(self)
    }

    /// Whether it can be made code as it is: whether [`Op::lower`] takes any of its samples. Of a dialect's operators not all
    /// need to: rules say what they are.
    pub fn has_lowering(self) -> bool {
        let op = self.op();
        let known = |t: &Type| t.flatten().is_some_and(|ts| ts.iter().all(|t| t.known_shape().is_some()));
        let lowers = |sample: &Sample| {
            let given: Vec<_> = sample.attrs.iter().map(|(n, v)| ((*n).into(), v.clone())).collect();
            let Ok(attrs) = make_attrs(self, &given) else { return false };
            let mut b = Builder::new();
            let args: Vec<Operand> = sample.args.iter().map(|t| util::argument(&mut b, t)).collect();
            op.lower(&attrs, &args, &mut b).is_ok()
        };
        op.samples().iter().filter(|s| s.args.iter().all(known)).any(lowers)
    }
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op().name())
    }
}

/// The operator of that name that the program itself names. Panics where the table lacks it, which a test would show.
pub fn op(name: &str) -> OpId {
    lookup(name).unwrap_or_else(|| panic!("`{name}` is in the operator table"))
}

/// A family's operators. Families are listed in [`registry`].
pub(crate) type Family = &'static [&'static dyn Op];
