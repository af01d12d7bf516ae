//! A module as C99, for targets that have nothing but a C compiler.

use std::{path::Path, sync::Arc};

use super::{
    BuildError, Options, Runnable, Specialize,
    backend::Backend,
    extents::Extents,
    external::{Handling, refuse_regions, without_regions_of},
    library::with_state,
    phases::{Linked, bind, machine_program},
    specialize::Machine,
    state::still_fit,
};
use crate::{
    dialect,
    infer::infer_types,
    ir::{Module, Name},
    loops::Kernel,
    lower::{Assembled, CodeSet, assemble, is_plain},
    partition::c_source,
    pass::{Pass, PassContext, eta_expand, fuse, sequence},
    runtime::{
        Pool,
        export::{ExportError, ExportedC, SizedParts, export_c, export_sized_c},
    },
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
/// Refuses what [`Built::export`](super::Built::export) does, and regions for compilers other than `c`, whose code is not C.
pub fn emit_c(
    module: Module,
    params: &[(Name, Tensor)],
    options: Options,
    path: &Path,
) -> Result<ExportedC, EmitError> {
    let name = options.name.clone();
    match emitted(module, params, options)? {
        Emitted::Plain(plain) => {
            let (assembled, code) = *plain;
            let program = &assembled.program;
            let constant = |i: usize| c_source::constant(i, &program.constants()[i]);
            Ok(export_c(program, &c_source::kernels(program, &code), &constant, path)?)
        }
        Emitted::Sized(parts, kernels, unserved) => {
            Ok(ExportedC { unserved, ..export_sized_c(&name, &parts, &c_source::all(&kernels), path)? })
        }
    }
}

/// A program, and the kernels that are written as C.
enum Emitted {
    /// Of known extents.
    Plain(Box<(Assembled, CodeSet)>),
    /// Any other, and why sizes within bounds are not served.
    Sized(Box<SizedParts>, Vec<Kernel>, Option<String>),
}

fn emitted(module: Module, params: &[(Name, Tensor)], options: Options) -> Result<Emitted, BuildError> {
    let Options { settings, passes, name, on_phase, state, hints, bounds, .. } = options;
    let mut cx = PassContext { on_start: on_phase, ..PassContext::default() };
    let (typed, interface) = bind(module, params, &state)?;
    let extents = Extents::of(&typed, &hints, &bounds)?;
    let module = extents.noted_in(typed.into_module());
    let passes: Box<dyn Pass> = match passes {
        Some(p) => p,
        None => Box::new(sequence("default", &settings)?),
    };
    let module = passes.run(module, &mut cx)?;
    dialect::refuse_unlegalized(&module)?;
    let typed = without_regions_of(infer_types(eta_expand(&module)?)?, "c")?;
    let typed = infer_types(fuse(&typed, 1))?;
    refuse_regions(&typed)?;
    still_fit(&typed, &interface.state)?;
    let mut code = c_source::no_kernels();
    code.cancel = settings.limits.cancel.clone();
    let pairs: Vec<(usize, usize)> = interface.state.iter().map(|p| (p.input, p.output)).collect();
    if is_plain(&typed, "main")? {
        extents.refuse_general()?;
        code.state = pairs;
        let assembled = assemble(&typed, "main", &name, &mut code)?;
        if interface.state.is_empty() {
            return Ok(Emitted::Plain(Box::new((assembled, code))));
        }
        let whole = SizedParts::Whole(with_state(&name, &assembled.program, &interface.state)?);
        return Ok(Emitted::Sized(Box::new(whole), code.kernels, None));
    }
    // Kernels of the form that C has, whoever makes code of them here.
    let backend = Backend::of(&settings.target)?.for_core(code.unit());
    let machine = Machine {
        backend,
        pool: Arc::new(Pool::new(1)),
        arenas: Arc::default(),
        regions: Handling { fallback: false, check: false },
        cache: None,
        tuned: None,
        times: false,
        state: pairs,
        said: extents.said(),
        cancel: settings.limits.cancel.clone(),
    };
    let Linked { executable, code, .. } =
        machine_program(&typed, &interface, extents, Specialize::Off, Vec::new(), machine, None, &mut cx)?;
    let Runnable::Machine(program) = executable else {
        unreachable!("programs that are not plain run on the machine");
    };
    let (parts, more, unserved) = program.sized_parts(&name)?;
    let mut kernels = code.kernels;
    let mut more: Vec<Kernel> = more.into_values().filter(|k| kernels.iter().all(|o| o.name != k.name)).collect();
    more.sort_by(|a, b| a.name.cmp(&b.name));
    kernels.extend(more);
    if matches!(parts, SizedParts::Whole(_)) {
        // Functions of known extents are part of the whole.
        kernels.retain(|k| parts.calls(&k.name));
    }
    Ok(Emitted::Sized(Box::new(parts), kernels, unserved))
}
