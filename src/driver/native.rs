//! Compiled code for what passes want to run.

use super::{Options, Runnable, build};
use crate::{
    diag::{Diagnostic, Refused},
    ir::Module,
    pass::{Backend, Prepared, Settings},
    target::Target,
    tensor::Tensor,
};

/// Runs programs as the default pipeline compiles them for a machine: much faster than the interpreter.
#[derive(Clone, Debug)]
pub struct Native {
    /// The machine.
    pub target: Target,
}

impl Backend for Native {
    fn prepare(&self, module: &Module) -> Result<Box<dyn Prepared>, Refused> {
        let options = Options::new(Settings::new(self.target.clone()));
        match build(module.clone(), &[], options) {
            Ok(built) => Ok(Box::new(built.executable)),
            Err(super::BuildError::Refused(refused)) => Err(refused),
            Err(other) => Err(Diagnostic::new(other.to_string()).into()),
        }
    }
}

impl Prepared for Runnable {
    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        Runnable::run(self, inputs)
    }
}
