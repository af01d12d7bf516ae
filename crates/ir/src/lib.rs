//! The data that all of resat is about: tensors and layouts, Relay programs, loop nests, machines; and what is said to users.

pub mod cancel;
pub mod diag;
pub mod ir;
pub mod loops;
pub mod machine;
pub mod op;
pub mod report;
pub mod target;
pub mod tensor;
