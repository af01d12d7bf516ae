//! A module as C99, for targets that have nothing but a C compiler.

use std::path::Path;

use super::{
    BuildError, Options,
    external::{refuse_regions, without_regions_of},
};
use crate::{
    diag::{Diagnostic, Refused},
    dialect,
    infer::infer_types,
    ir::{Module, Name},
    lower::{Assembled, CodeSet, assemble, is_plain},
    partition::c_source,
    pass::{Pass, PassContext, bind_params, eta_expand, fuse, sequence},
    runtime::export::{ExportError, ExportedC, export_c},
    tensor::Tensor,
};

/// Why no C was written.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// The module can't be C.
    #[error("{0}")]
    Build(#[from] BuildError),
    /// The files can't be written.
    #[error("{0}")]
    Export(#[from] ExportError),
}

/// Writes a module as C99 that needs a C compiler and libm: a source at `path`, a header beside it, and weights, where they are
/// large, as a file of their own. The passes are those of [`build`](super::build).
///
/// Refuses programs that are no sequence of calls on tensors of known extents, and regions for compilers other than `c`, whose code
/// is not C.
pub fn emit_c(
    module: Module,
    params: &[(Name, Tensor)],
    options: Options,
    path: &Path,
) -> Result<ExportedC, EmitError> {
    let (assembled, code) = assembled(module, params, options).map_err(BuildError::from)?;
    let program = &assembled.program;
    let constant = |i: usize| c_source::constant(i, &program.constants()[i]);
    Ok(export_c(program, &c_source::kernels(program, &code), &constant, path)?)
}

fn assembled(module: Module, params: &[(Name, Tensor)], options: Options) -> Result<(Assembled, CodeSet), Refused> {
    let Options { settings, passes, name, on_phase, .. } = options;
    let mut cx = PassContext { on_start: on_phase, ..PassContext::default() };
    let module = infer_types(bind_params(&module, params)?)?.into_module();
    let passes: Box<dyn Pass> = match passes {
        Some(p) => p,
        None => Box::new(sequence("default", &settings)?),
    };
    let module = passes.run(module, &mut cx)?;
    dialect::refuse_unlegalized(&module)?;
    let typed = without_regions_of(infer_types(eta_expand(&module)?)?, "c")?;
    let typed = infer_types(fuse(&typed, 1))?;
    refuse_regions(&typed)?;
    if !is_plain(&typed, "main")? {
        let message = "C takes a sequence of calls on tensors of known extents: this program has control flow, data types, or \
                       extents found while running";
        return Err(Diagnostic::new(message)
            .help("`resat run` and `driver::build` run such programs in process")
            .into());
    }
    let mut code = c_source::no_kernels();
    code.cancel = settings.limits.cancel.clone();
    let assembled = assemble(&typed, "main", &name, &mut code)?;
    Ok((assembled, code))
}
