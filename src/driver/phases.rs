//! The phases of a build, in order.

use super::{
    build::BuildError,
    extents::Extents,
    runnable::{MachineProgram, Parameter, Runnable, Specialize},
    specialize::{Compiled, Machine, Primitives, compile_code},
    state::{StatePair, pairs},
    tune::{Tuner, Untuned},
};
use crate::{
    codegen::ObjectCode,
    diag::Refused,
    dialect,
    infer::{TypedModule, infer_types},
    ir::{ExprId, Module, Name, dim_names},
    lower::{Assembled, CodeSet, assemble},
    pass::{
        BuildConfig, FnPass, Pass, PassContext, Settings, annotated_compilers, bind_params, default_pass,
        dissolve_composites, drop_default_annotations, eta_expand, forgotten_annotations, fuse, run_logged,
    },
    runtime::{Compiled as Region, Executable},
    tensor::Tensor,
    vm,
};

/// What callers see of `@main`, as the program was written.
pub(super) struct Interface {
    /// Of which parameters the program itself gives the type.
    annotated: Vec<bool>,
    /// How many inputs each parameter is.
    pub parameters: Vec<usize>,
    /// What it keeps from one run to the next.
    pub state: Vec<StatePair>,
}

/// Parameters become constants. Type errors are reported against the program as it was written, before passes move things about.
pub(super) fn bind(
    module: Module,
    params: &[(Name, Tensor)],
    state: &[(String, String)],
) -> Result<(TypedModule, Interface), Refused> {
    let bound = bind_params(&module, params)?;
    // What passes do away with should go: nobody else may hold on to the weights.
    drop(module);
    let typed = infer_types(bound)?;
    let state = pairs(&typed, state)?;
    let main = &typed.entry("main")?.params;
    let annotated = main.iter().map(|&p| typed.var(p).ty.is_some()).collect();
    let parameters = main.iter().map(|&p| typed.var_ty(p).flatten().map_or(1, |t| t.len())).collect();
    Ok((typed, Interface { annotated, parameters, state }))
}

/// The passes: the default pipeline where none are given.
pub(super) fn optimize(
    module: Module,
    passes: Option<Box<dyn Pass>>,
    settings: &Settings,
    cx: &mut PassContext,
) -> Result<Module, Refused> {
    let module = drop_default_annotations(module);
    let passes = match passes {
        Some(p) => p,
        None => default_pass(settings, &BuildConfig::default())?,
    };
    let annotated_for = annotated_compilers(&module);
    let module = passes.run(module, cx)?;
    cx.warnings.extend(forgotten_annotations(&annotated_for, &module, true));
    Ok(module)
}

/// Operators that are values become functions that call them, and whatever the passes left unfused a kernel an operator.
pub(super) fn to_kernels(module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
    dialect::refuse_unlegalized(&module)?;
    let module = dissolve_composites(module);
    let module = run_logged(&FnPass("EtaExpand", |m| eta_expand(&m)), module, cx)?;
    let singly = FnPass("Kernels", |m| Ok(fuse(&infer_types(m)?, 1)));
    run_logged(&singly, module, cx)
}

/// A program with its code.
pub(super) struct Linked {
    pub executable: Runnable,
    pub code: CodeSet,
    pub objects: Vec<ObjectCode>,
    pub calls: usize,
}

/// A plain sequence of calls.
pub(super) fn plain_program(
    typed: &TypedModule,
    name: &str,
    external: Vec<(String, Region)>,
    machine: Machine,
    tuner: Option<&mut Tuner>,
    cx: &mut PassContext,
) -> Result<Linked, BuildError> {
    let mut code = machine.code(external);
    code.state = machine.state.clone();
    let mut assembled = assemble(typed, "main", name, &mut code)?;
    if let Some(tuner) = tuner
        && tuner.tune(&code, &[&assembled.program], &mut |p| cx.phase(p))?
    {
        let before = Untuned::take(&mut code, assembled.program);
        code = code.emptied();
        assembled = assemble(typed, "main", name, &mut code)?;
        // What external compilers make is linked once.
        if code.external.is_empty() {
            cx.phase("comparing with what is not tuned");
            if tuner.check(&before, &assembled.program, &code.kernels, &machine.pool)? {
                code = code.emptied();
                assembled = assemble(typed, "main", name, &mut code)?;
            }
        }
    }
    cx.phase(&compiling(&code));
    let Assembled { program, calls, .. } = assembled;
    let (objects, library) = compile_code(&mut code, &machine.backend, machine.cache.as_deref())?;
    let executable = Executable::link(program, library, machine.pool)?;
    Ok(Linked { executable: Runnable::Plain(Box::new(executable)), code, objects, calls })
}

/// Any other program.
#[expect(clippy::too_many_arguments, reason = "all that decides")]
pub(super) fn machine_program(
    typed: &TypedModule,
    interface: &Interface,
    extents: Extents,
    specialize: Specialize,
    external: Vec<(String, Region)>,
    machine: Machine,
    tuner: Option<&mut Tuner>,
    cx: &mut PassContext,
) -> Result<Linked, BuildError> {
    let program = vm::compile(typed, "main")?;
    let functions: Vec<ExprId> = program.kernels().iter().map(|k| k.func).collect();
    let Compiled { primitives, code, objects, calls } =
        Primitives::compile(typed, &functions, external, machine, tuner, &mut |p| cx.phase(p))?;
    let m = typed.module();
    let main = &typed.entry("main")?.params;
    let parameter =
        |(&p, &annotated)| Parameter { name: m.var(p).name.clone(), ty: typed.var_ty(p).clone(), annotated };
    let params = main.iter().zip(&interface.annotated).map(parameter).collect();
    if extents.likely().is_some() {
        cx.phase("code for all sizes");
    }
    let greatest = primitives.prepare(&extents)?;
    let machine = MachineProgram::new(program, primitives, params, dim_names(m), specialize).within(extents, greatest);
    Ok(Linked { executable: Runnable::Machine(Box::new(machine)), code, objects, calls })
}

/// What a phase is called in which code is made.
pub(super) fn compiling(code: &CodeSet) -> String {
    format!("compiling {} kernels", code.kernels.len())
}
