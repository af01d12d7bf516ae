//! Relay as data: expressions, types, attributes, modules.
//!
//! Expressions live in one arena per [`Module`] and name their children by [`ExprId`]. A child is always older than its
//! parent (its id is smaller), so that walking ids upwards visits children first and no walk needs recursion. Sharing is
//! the same id used twice; Relay's text shows it as `%0 = …`. Passes never edit: they build a new module.

mod attrs;
mod expr;
mod module;
mod names;
mod record;
mod span;
mod types;
mod visit;

pub use attrs::{AttrValue, Attrs, ConstAttr, Name};
pub use expr::{Clause, Expr, ExprId, Function, OpId, Pattern, VarId};
pub use module::{AdtDef, Constructor, Module, VarInfo};
pub use names::{
    DIM_NAMES, INPUT_NAMES, OUTPUT_NAMES, TEXT_NAMES, dim_names, dim_names_attr, disagreeing, input_names,
    likely_extents, likely_extents_attr, name_attrs, output_names, text_names, text_names_attr,
};
pub use span::{Source, Span};
pub use types::{Dim, FuncType, MOST_ELEMENTS, TensorType, Type, TypeVarId};
pub use visit::{Copier, children, free_vars, map_children, reachable, reachable_outside};
