//! Seconds as a stopwatch says.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use hashbrown::HashMap;

use super::{
    CostModel, Head, KernelView, NodeView, Roofline, Timer, TimerError,
    roofline::{CALL, FUSED_CALL, renames_axes},
};
use crate::{
    ir::{Attrs, Expr, ExprId, Function, Module, OpId, Type},
    ops::{self, Class},
    tensor::DType,
};

/// Kernels are compiled and timed.
///
/// An operator that runs as a kernel of its own costs what that kernel takes. An elementwise one mostly runs inside of another
/// kernel, so it costs what it adds there: the time of a kernel that applies it and then adds up the result with itself, less
/// that of the addition alone. What only renames axes is not timed, as it becomes no code. Where
/// programs are priced by kernels, each is timed as it is, and there is nothing to add or take off.
///
/// What can't be timed (no kernel can be made of it, or its extents are unknown) is priced by [`Roofline`] instead, and
/// [`CostModel::notes`] says so. The timer remembers what it has timed, by the kernels' contents; the model, by operator,
/// attributes and types. What it can't time well, as it is busy, it says, and times again in the next process.
pub struct Measured {
    timer: Arc<dyn Timer>,
    known: Mutex<HashMap<(OpId, Attrs, Vec<Type>), Option<f64>>>,
    /// By the kernel, as its view shows it.
    kernels: Mutex<HashMap<String, Option<f64>>>,
    /// By operator, or a kernel's operators: why it was not timed.
    untimed: Mutex<BTreeMap<String, String>>,
}

impl Measured {
    /// Prices by what this timer says.
    pub fn new(timer: Arc<dyn Timer>) -> Measured {
        Measured { timer, known: Mutex::default(), kernels: Mutex::default(), untimed: Mutex::default() }
    }

    fn op(&self, op: OpId, attrs: &Attrs, node: &NodeView) -> Option<f64> {
        let key = (op, attrs.clone(), node.args.to_vec());
        if let Some(&known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known;
        }
        let price = self.time(op, attrs, node);
        if let Err(why) = &price {
            let mut untimed = self.untimed.lock().unwrap_or_else(PoisonError::into_inner);
            untimed.entry(op.op().name().to_owned()).or_insert_with(|| why.to_string());
        }
        let price = price.ok();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, price);
        price
    }

    fn time(&self, op: OpId, attrs: &Attrs, node: &NodeView) -> Result<f64, TimerError> {
        let call = |m: &mut Module, args: &[ExprId]| m.call_op(op, args.to_vec(), attrs.clone());
        match (op.op().class(), node.out) {
            (Class::Elementwise | Class::Broadcast, Type::Tensor(out)) => {
                let host = ops::op(if out.dtype == DType::Bool { "logical_or" } else { "add" });
                let plain = ops::make_attrs(host, &[]).map_err(|e| e.to_string())?;
                let twice = |m: &mut Module, e: ExprId| m.call_op(host, vec![e, e], plain.clone());
                let with = program(node.args, |m, args| {
                    let e = call(m, args);
                    twice(m, e)
                });
                let without = program(std::slice::from_ref(node.out), |m, args| twice(m, args[0]));
                Ok((self.timer.seconds(&with)? - self.timer.seconds(&without)?).max(FUSED_CALL))
            }
            _ => self.timer.seconds(&program(node.args, call)),
        }
    }
}

/// A program whose `main` has parameters of these types.
fn program(params: &[Type], body: impl FnOnce(&mut Module, &[ExprId]) -> ExprId) -> Module {
    let mut m = Module::new();
    let vars: Vec<_> = params.iter().enumerate().map(|(i, t)| m.new_var(format!("p{i}"), Some(t.clone()))).collect();
    let args: Vec<ExprId> = vars.iter().map(|&v| m.add(Expr::Var(v))).collect();
    let body = body(&mut m, &args);
    let f = m.add(Expr::Func(Box::new(Function::new(vars, body, None))));
    m.define("main", f);
    m
}

impl CostModel for Measured {
    fn name(&self) -> &str {
        "measured"
    }

    fn cost(&self, node: &NodeView) -> f64 {
        match node.head {
            Head::Tuple | Head::Proj(_) => 0.0,
            Head::Carried { bodies } => CALL + bodies,
            Head::Op(op, _) if renames_axes(op.op().name()) => Roofline.cost(node),
            Head::Op(op, attrs) => self.op(op, attrs, node).unwrap_or_else(|| Roofline.cost(node)),
        }
    }

    fn kernel(&self, kernel: &KernelView) -> f64 {
        if kernel.calls.iter().all(|c| renames_axes(c.op.op().name())) {
            return Roofline.kernel(kernel);
        }
        let key = format!("{:?} {:?}", kernel.calls, kernel.args);
        let known = self.kernels.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        let price = known.unwrap_or_else(|| {
            let timed = self.timer.seconds(&kernel.program());
            if let Err(why) = &timed {
                let mut untimed = self.untimed.lock().unwrap_or_else(PoisonError::into_inner);
                untimed.entry(kernel.name()).or_insert_with(|| why.to_string());
            }
            self.kernels.lock().unwrap_or_else(PoisonError::into_inner).insert(key, timed.clone().ok());
            timed.ok()
        });
        price.unwrap_or_else(|| Roofline.kernel(kernel))
    }

    fn notes(&self) -> Vec<String> {
        let untimed = self.untimed.lock().unwrap_or_else(PoisonError::into_inner);
        untimed
            .iter()
            .map(|(op, why)| format!("`{op}` is priced by the roofline, as it can't be timed: {why}"))
            .chain(self.timer.notes())
            .collect()
    }
}
