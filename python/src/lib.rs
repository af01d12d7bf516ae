//! The Python package of resat: Python classes over Rust ones, and nothing else. `python/resat` makes an interface for people of them.
//!
//! Rules of this crate: no Rust lock is held while Python runs; the interpreter's lock is given up in every call that may take long;
//! an exception of a user's function is kept and raised again as it was; no panic reaches the interpreter.
#![allow(clippy::type_complexity, reason = "functions give Python what it takes: tuples")]

mod build;
mod call;
mod compiler;
mod cost;
mod dialect;
mod explain;
mod explore;
mod extract;
mod module;
mod node;
mod passes;
mod rules;
mod settings;
mod stateful;
mod tensor;
mod values;

use pyo3::prelude::*;

#[pymodule]
fn _resat(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<tensor::Tensor>()?;
    m.add_class::<module::Module>()?;
    m.add_class::<values::TensorType>()?;
    m.add_class::<settings::Settings>()?;
    m.add_class::<build::Executable>()?;
    m.add_class::<build::Library>()?;
    m.add_class::<stateful::Stateful>()?;
    m.add_class::<stateful::LibraryRuns>()?;
    m.add_class::<cost::Memo>()?;
    m.add_class::<extract::Problem>()?;
    m.add_class::<rules::Rule>()?;
    m.add_class::<compiler::Region>()?;
    m.add_function(wrap_pyfunction!(call::wait_for_calls, m)?)?;
    m.add_function(wrap_pyfunction!(call::panic, m)?)?;
    node::add(m)?;
    module::add(m)?;
    passes::add(m)?;
    build::add(m)?;
    rules::add(m)?;
    dialect::add(m)?;
    compiler::add(m)?;
    explain::add(m)?;
    explore::add(m)
}
