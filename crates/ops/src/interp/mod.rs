//! The reference interpreter: the whole language, through [`Op::eval`](crate::ops::Op::eval). Slow and plain; the oracle of
//! everything below it.
//!
//! Each expression is evaluated at most once per activation of the function that it belongs to (the innermost one around
//! all of its uses), and only when it is needed; arguments from left to right. Values go as soon as nothing can ask for
//! them. Nothing recurses natively: lists, loops and nestings may be as long as memory is large.

mod frame;
mod inputs;
mod machine;
pub mod program;
mod value;

pub use inputs::{random_inputs, random_value};
pub use machine::Observer;
pub use value::{Closure, Fields, MutableCell, Value, type_of};

use crate::{
    diag::{Diagnostic, Refused},
    infer,
    ir::{Attrs, Module, OpId, Type},
    ops::OpError,
    tensor::{self, within_memory},
};

/// Runs a function of a module on arguments, one per parameter.
///
/// Refuses modules that [`infer::verify`] refuses, wrong arguments, and what only running shows: calls that an operator's
/// type relation does not allow for the extents at hand, and values that no clause of a `match` meets. Programs that do
/// not end run until memory does.
pub fn run(m: &Module, entry: &str, args: Vec<tensor::Value>) -> Result<Value, Refused> {
    Interpreter::new(m)?.call(entry, args.into_iter().map(Value::from).collect())
}

/// As [`run`], giving the result's tensors depth first: tuples' and data types' fields one after another.
pub fn run_flat(m: &Module, entry: &str, args: Vec<tensor::Value>) -> Result<Vec<tensor::Tensor>, Refused> {
    let result = run(m, entry, args)?;
    result.flatten().ok_or_else(|| Diagnostic::new(format!("the result of `@{entry}` holds a function")).into())
}

/// Applies an operator, once its type relation has allowed the arguments.
pub fn eval_op(op: OpId, attrs: &Attrs, args: &[tensor::Value]) -> Result<tensor::Value, OpError> {
    let types: Vec<Type> = args.iter().map(type_of).collect();
    op.op().infer(attrs, &types)?;
    op.op().eval(attrs, args)
}

/// A module that is ready to be run, any number of times.
pub struct Interpreter<'a, 'o> {
    program: program::Program<'a>,
    observer: Option<Box<Observer<'o>>>,
}

impl<'a, 'o> Interpreter<'a, 'o> {
    /// Makes a module ready. Refuses what [`infer::verify`] refuses.
    pub fn new(m: &'a Module) -> Result<Interpreter<'a, 'o>, Refused> {
        infer::verify(m)?;
        Ok(Interpreter { program: program::Program::new(m), observer: None })
    }

    /// From now on, `observer` sees every call of an operator: for calibration and comparison.
    pub fn observe(&mut self, observer: impl FnMut(crate::ir::ExprId, OpId, &[tensor::Value], &tensor::Value) + 'o) {
        self.observer = Some(Box::new(observer));
    }

    /// Calls a function of the module.
    pub fn call(&mut self, entry: &str, args: Vec<Value>) -> Result<Value, Refused> {
        let m = self.program.m;
        let f = infer::entry(m, entry)?;
        if f.params.len() != args.len() {
            let (n, found) = (f.params.len(), args.len());
            let names: Vec<String> = f.params.iter().map(|&p| format!("`%{}`", m.var(p).name)).collect();
            let message = format!("`@{entry}` has {n} parameters, but is given {found} arguments");
            return Err(Diagnostic::new(message).help(format!("it has {}", names.join(", "))).into());
        }
        for (&p, arg) in f.params.iter().zip(&args) {
            let var = m.var(p);
            if let (Some(wanted), Some(found)) = (&var.ty, arg.to_tensors())
                && !takes(wanted, &type_of(&found))
            {
                let found = type_of(&found);
                let message = format!("argument `%{}` of `@{entry}` is {found}, but should be {wanted}", var.name);
                return Err(Diagnostic::new(message).into());
            }
        }
        let func = m.function_id(entry).expect("the function exists");
        let run = || machine::Machine::new(&self.program, self.observer.as_deref_mut()).run(func, args);
        within_memory(run).map_err(|e| Refused::from(Diagnostic::new(e.to_string())))?
    }
}

/// Whether a parameter of type `wanted` takes a value of type `found`, whose extents are known.
fn takes(wanted: &Type, found: &Type) -> bool {
    match (wanted, found) {
        (Type::Tensor(w), Type::Tensor(f)) => {
            w.dtype == f.dtype
                && w.rank() == f.rank()
                && w.shape.iter().zip(f.shape.iter()).all(|(w, f)| w.known().is_none_or(|w| Some(w) == f.known()))
        }
        (Type::Tuple(w), Type::Tuple(f)) => w.len() == f.len() && w.iter().zip(f.iter()).all(|(w, f)| takes(w, f)),
        (Type::Var(_) | Type::Hole(_), _) => true,
        _ => false,
    }
}
