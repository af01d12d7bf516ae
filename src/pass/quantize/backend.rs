//! Where calibration runs programs.

use crate::{
    diag::Refused,
    interp,
    ir::Module,
    tensor::{Tensor, Value},
};

/// Runs programs for calibration. The driver has one that compiles them.
pub trait Backend: Send + Sync {
    /// Makes a program ready to be run several times.
    fn prepare(&self, module: &Module) -> Result<Box<dyn Prepared>, Refused>;
}

/// A program that is ready.
pub trait Prepared {
    /// Its outputs for a tensor per parameter of `@main`, flattened.
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refused>;
}

/// The reference interpreter: slow, and there without a code generator.
#[derive(Copy, Clone, Debug, Default)]
pub struct Interpreted;

struct Program(Module);

impl Backend for Interpreted {
    fn prepare(&self, module: &Module) -> Result<Box<dyn Prepared>, Refused> {
        Ok(Box::new(Program(module.clone())))
    }
}

impl Prepared for Program {
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        interp::run_flat(&self.0, "main", inputs.iter().cloned().map(Value::from).collect())
    }
}
