//! Programs of the machine, with kernels that evaluate their operators one by one.

use hashbrown::HashMap;
use resat::{
    diag::Refused,
    infer::{TypedModule, infer_types},
    interp,
    ir::{Expr, ExprId, Module, reachable},
    pass::{self, Pass, PassContext, Settings},
    relay::text::parse_module,
    target::Target,
    tensor::{Tensor, Value},
    vm,
};

/// Kernels that evaluate their operators.
pub(crate) struct Plain {
    module: Module,
    functions: Vec<(ExprId, Vec<ExprId>)>,
}

impl Plain {
    pub(crate) fn new(module: Module, program: &vm::Program) -> Plain {
        let body = |k: &vm::Kernel| (k.func, reachable(&module, [module.func(k.func).body]));
        let functions = program.kernels().iter().map(body).collect();
        Plain { module, functions }
    }
}

/// The value of a type whose tensors come one after another.
fn gather(ty: &resat::ir::Type, tensors: &mut impl Iterator<Item = Tensor>) -> Value {
    match ty {
        resat::ir::Type::Tuple(fields) => Value::Tuple(fields.iter().map(|f| gather(f, tensors)).collect()),
        _ => Value::Tensor(tensors.next().expect("as many tensors as the types hold")),
    }
}

impl vm::Kernels for Plain {
    fn call(&self, kernel: vm::KernelId, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        let m = &self.module;
        let (func, ids) = &self.functions[kernel.index()];
        let f = m.func(*func);
        let mut tensors = args.iter().cloned();
        let params: HashMap<_, Value> = f
            .params
            .iter()
            .map(|&p| (p, gather(m.var(p).ty.as_ref().expect("fusion writes types"), &mut tensors)))
            .collect();
        assert!(tensors.next().is_none(), "kernel {kernel:?} is given too many tensors");
        let mut values: HashMap<ExprId, Value> = HashMap::new();
        for &e in ids {
            let v = match &m[e] {
                Expr::Op(_) => continue,
                Expr::Var(v) => params[v].clone(),
                Expr::Constant(t) => t.clone().into(),
                Expr::Tuple(fields) => Value::Tuple(fields.iter().map(|f| values[f].clone()).collect()),
                Expr::Proj(t, i) => values[t].fields()[*i].clone(),
                _ => {
                    let (op, args, attrs) = m.op_call(e).expect("primitive functions are made of operators");
                    let args: Vec<Value> = args.iter().map(|a| values[a].clone()).collect();
                    interp::eval_op(op, attrs, &args)
                        .map_err(|err| resat::diag::Diagnostic::new(format!("`{}`: {err}", op.op().name())))?
                }
            };
            values.insert(e, v);
        }
        Ok(values[&f.body].flatten())
    }
}

/// The typed module of a program's text, without the line that says its version.
pub(crate) fn typed(text: &str) -> Result<TypedModule, Refused> {
    infer_types(parse_module("test.relay", &format!("#[version = \"0.0.5\"] {text}"))?)
}

/// A compiled program and its kernels.
pub(crate) fn compiled(m: Module) -> Result<(vm::Program, Plain), Refused> {
    let module = pass::fuse(&infer_types(pass::eta_expand(&m)?)?, 1);
    let module = infer_types(module)?;
    let program = vm::compile(&module, "main")?;
    let kernels = Plain::new(module.into_module(), &program);
    Ok((program, kernels))
}

/// The module after everything that a build does to one.
pub(crate) fn after_passes(m: Module) -> Result<Module, Refused> {
    let settings = Settings::new(Target::host());
    pass::default_pipeline(&settings)?.run(m, &mut PassContext::default())
}

/// Runs `@main` on the machine, and gives all tensors of its result.
pub(crate) fn run(program: &(vm::Program, Plain), args: &[Value]) -> Result<Vec<Tensor>, Refused> {
    let args = args.iter().cloned().map(vm::Value::from).collect();
    let out = program.0.run(&program.1, args)?;
    Ok(out.flatten().expect("the result holds no function"))
}

/// Checks that the machine gives what the interpreter gives, and only that fails which fails there, as the module is and
/// after the passes of a build. Gives the interpreter's result.
pub(crate) fn agree(m: &Module, args: &[Value]) -> Result<Vec<Tensor>, Refused> {
    let wanted = interp::run_flat(m, "main", args.to_vec());
    let check = |m: Module, what: &str| {
        let program = compiled(m).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = run(&program, args);
        match (&wanted, found) {
            (Ok(wanted), Ok(found)) => {
                assert_eq!(wanted.len(), found.len(), "{what}: tensors of the result\n{}", program.0);
                for (w, f) in wanted.iter().zip(&found) {
                    if let Some(d) = super::difference(f, w) {
                        panic!("{what}: {d}\n{}", program.0);
                    }
                }
            }
            (Err(_), Err(_)) => {}
            (Ok(_), Err(e)) => panic!("{what}: {e}\n{}", program.0),
            (Err(e), Ok(_)) => panic!("{what}: it runs, where the interpreter says: {e}"),
        }
    };
    check(m.clone(), "as it is");
    check(after_passes(m.clone()).unwrap_or_else(|e| panic!("{e}")), "after the passes");
    wanted
}
