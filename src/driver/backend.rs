//! Who makes code of kernels, for which machine.

use std::sync::Arc;

use super::cache::Cache;
use crate::{
    cancel::Cancel,
    codegen::{self, CodeGenerator, CodegenError, CodegenTarget, ObjectCode, llvm::JitLibrary},
    diag::{Diagnostic, Refused, nearest},
    loops::Kernel,
    machine::Core,
    runtime::{Arguments, CallError, Callable, Callables, CompiledCode},
    target::Target,
};

/// A code generator and the machine that it makes code for.
#[derive(Clone, Debug)]
pub(super) struct Backend {
    generator: &'static dyn CodeGenerator,
    pub target: CodegenTarget,
    /// The core that schedules shape kernels for.
    pub core: Core,
}

impl Backend {
    /// What a target names.
    ///
    /// # Errors
    /// Where there is no code generator of its name.
    pub(super) fn of(target: &Target) -> Result<Backend, Refused> {
        let generator = generator_of(target)?;
        Ok(Backend { generator, target: target.codegen(), core: generator.core(target.core()) })
    }

    /// The same, where kernels are shaped for another core.
    pub(super) fn for_core(self, core: Core) -> Backend {
        Backend { core, ..self }
    }

    /// Objects of kernels, one each; what a cache holds is taken from there.
    pub(super) fn compile(
        &self,
        kernels: &[&Kernel],
        cache: Option<&Cache>,
        cancel: &Cancel,
    ) -> Result<Vec<ObjectCode>, CodegenError> {
        match cache {
            Some(cache) => cache.objects().compile(self.generator, kernels, &self.target, cancel),
            None => codegen::compile_unless(self.generator, kernels, &self.target, cancel),
        }
    }

    /// Kernels as functions of this process.
    pub(super) fn load(
        &self,
        kernels: &[&Kernel],
        cache: Option<&Cache>,
        cancel: &Cancel,
    ) -> Result<Arc<dyn CompiledCode>, CodegenError> {
        in_process(&self.compile(kernels, cache, cancel)?, &self.target)
    }
}

/// The code generator that a target names.
///
/// # Errors
/// Where there is none of that name.
pub fn generator_of(target: &Target) -> Result<&'static dyn CodeGenerator, Refused> {
    codegen::generator(&target.generator).ok_or_else(|| {
        let known: Vec<&str> = codegen::generators().into_iter().map(CodeGenerator::name).collect();
        let refused = Diagnostic::new(format!("target `{target}`: there is no code generator `{}`", target.generator));
        let help = match nearest(&target.generator, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", known.join(", ")),
        };
        refused.help(help).into()
    })
}

/// Object code as functions of this process. What was made for another machine is there to be exported, and fails where it is run.
pub(super) fn in_process(
    objects: &[ObjectCode],
    target: &CodegenTarget,
) -> Result<Arc<dyn CompiledCode>, CodegenError> {
    let Some(lacking) = target.lacking_on(&codegen::llvm::host_target()) else {
        return Ok(Arc::new(JitLibrary::load(objects)?));
    };
    let mut code = Callables::default();
    for symbol in objects.iter().flat_map(|o| &o.symbols) {
        code.insert(symbol, Arc::new(Foreign(lacking.clone())));
    }
    Ok(Arc::new(code))
}

/// Stands for code that this machine can't run, and says why.
struct Foreign(String);

impl Callable for Foreign {
    fn call(&self, _: &mut Arguments<'_>) -> Result<(), CallError> {
        self.ready()
    }

    fn ready(&self) -> Result<(), CallError> {
        Err(format!("is made for another machine: this one is not, or has not, {}", self.0).into())
    }
}
