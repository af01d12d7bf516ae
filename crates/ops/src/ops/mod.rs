//! The operators: each is one `impl Op`, and everything else in resat reads that.
//!
//! To add an operator: a row in a table of [`elementwise`], or a file (or a place in its family's file) with its
//! `impl Op` and a row in that family's `OPS`. `docs/adding-operators.md` shows both.

mod annotation;
mod bilinear;
mod contract;
mod create;
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
mod sparse;
mod transform;
mod unsupported;
mod util;
mod vision;

pub use nn::{Part, inverted_bottleneck_bands, inverted_bottleneck_parts};
pub use qnn::{fixed_point, tflite_scaled};
pub use registry::{
    all, dialects, is_shipped, lookup, register, register_dialect, shipped_dialects, suggest, withdraw_dialect,
};
pub use resat_ir::op::{
    AttrDefault, AttrError, AttrField, AttrKind, AxisMap, AxisRole, Class, Dialect, DialectError, Family, Op, OpError,
    RegisterError, RuleText, Sample, StaticCall, Work, make_attrs,
};
pub use unsupported::unsupported;

use crate::{
    ir::{OpId, Type},
    loops::{Builder, Operand},
};

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

/// The operator of that name that the program itself names. Panics where the table lacks it, which a test would show.
pub fn op(name: &str) -> OpId {
    lookup(name).unwrap_or_else(|| panic!("`{name}` is in the operator table"))
}

/// Whether it can be made code as it is: whether [`Op::lower`] takes any of its samples. Of a dialect's operators not all
/// need to: rules say what they are.
pub fn has_lowering(op: OpId) -> bool {
    let id = op;
    let op = op.op();
    let known = |t: &Type| t.flatten().is_some_and(|ts| ts.iter().all(|t| t.known_shape().is_some()));
    let lowers = |sample: &Sample| {
        let given: Vec<_> = sample.attrs.iter().map(|(n, v)| ((*n).into(), v.clone())).collect();
        let Ok(attrs) = make_attrs(id, &given) else { return false };
        let mut b = Builder::new();
        let args: Vec<Operand> = sample.args.iter().map(|t| util::argument(&mut b, t)).collect();
        op.lower(&attrs, &args, &mut b).is_ok()
    };
    op.samples().iter().filter(|s| s.args.iter().all(known)).any(lowers)
}
