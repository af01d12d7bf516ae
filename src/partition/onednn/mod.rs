//! The compiler `onednn`: regions as primitives of oneDNN, which is loaded where the machine has it.
//!
//! Regions keep their constants, which are brought into the library's layouts once. Between the primitives of a region, tensors stay in
//! the layouts that the library likes; only what enters and leaves lies row by row.

mod cost;
mod patterns;
mod quantized;
mod supports;
mod translate;
mod words;

use super::{Compiled, CompilerError, Composite, ExternalCompiler, Region};
use crate::{
    ir::{Attrs, OpId, Type},
    runtime::onednn::{self, Library},
};

/// The compiler `onednn`.
#[derive(Debug)]
pub struct OneDnn;

impl ExternalCompiler for OneDnn {
    fn name(&self) -> &str {
        "onednn"
    }

    fn supports(&self, op: OpId, attrs: &Attrs, args: &[Type], result: &Type) -> bool {
        Library::get().is_ok_and(|library| supports::supports(library, op.op().name(), attrs, args, result))
    }

    fn patterns(&self) -> Vec<Composite> {
        patterns::all()
    }

    fn keeps_constants(&self) -> bool {
        true
    }

    fn cost(&self, region: &Region<'_>) -> Option<f64> {
        cost::seconds(region)
    }

    fn call_cost(&self) -> f64 {
        cost::CALL
    }

    fn transfer_cost(&self, bytes: u64) -> f64 {
        cost::transfer(bytes)
    }

    fn trouble(&self) -> Option<String> {
        Library::get().err().map(|e| e.to_string())
    }

    fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError> {
        let library = Library::get().map_err(|e| region.refuse(e.to_string()))?;
        let graph = translate::graph(region).map_err(|e| region.refuse(e))?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let planned = onednn::Region::new(library, graph, threads).map_err(|e| region.refuse(e.to_string()))?;
        let workspace = planned.workspace();
        Ok(Compiled::callable(planned).with_workspace(workspace))
    }
}
