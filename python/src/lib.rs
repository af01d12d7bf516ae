//! stub
use pyo3::prelude::*;
#[pymodule]
fn _resat(_m: &Bound<'_, PyModule>) -> PyResult<()> { let _ = resat::target::Target::host(); Ok(()) }
