//! TVM's JSON (`tvm.ir.save_json`): whole modules, and the metadata section of Relay text.

mod graph;
mod metadata;
mod read;
mod schema;
mod value;
mod write;

pub use metadata::{Metadata, parse_metadata, print_metadata};
pub use read::parse_module;
pub use schema::untyped_attrs;
pub use write::print_module;
