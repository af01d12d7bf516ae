//! Programs at one size, call by call: primitive functions for arguments of known extents, each of which is typed, lowered and given a
//! kernel by itself, so that what two sizes, or two calls, have in common is done once.

use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;

use super::{
    append,
    append::Group,
    function::{argument_types, stages_with},
    sites::{Made, Met},
    typing::types_within,
};
use crate::{
    diag::Refused,
    infer::TypedModule,
    ir::{Expr, ExprId, Function, Module, TensorType, Type, reachable},
    loops::{Builder, SharedBody},
    runtime::{Estimate, Expected},
    tensor::Tensor,
};

/// A primitive function for arguments of known extents.
#[derive(Debug)]
pub struct FunctionAt {
    typed: Arc<TypedModule>,
    func: ExprId,
    /// Of its parameters.
    params: Vec<Type>,
    /// Of what it gives.
    result: Type,
    /// The number of the argument that is what the program keeps, where it gives that for the next run.
    kept: Option<usize>,
    /// By what kernel it is called, once that is known.
    met: OnceLock<Met>,
    pub(super) linked: Linked,
    /// The expressions within, in an [order](super::typing_order) in which they can be typed, where their types are not those of the module.
    within: Option<Arc<[ExprId]>>,
}

impl FunctionAt {
    /// The function `func` of a module, for parameters of these types, with what it gives for them, and the expressions within in an
    /// [order](super::typing_order) in which they can be typed, where their types are not the module's. Where it gives what a program keeps, `kept`
    /// is the number of the argument which that is.
    pub fn new(
        typed: Arc<TypedModule>,
        func: ExprId,
        params: Vec<Type>,
        result: Type,
        kept: Option<usize>,
        within: Option<Arc<[ExprId]>>,
    ) -> FunctionAt {
        let (met, linked) = (OnceLock::new(), Linked::default());
        FunctionAt { typed, func, params, result, kept, met, linked, within }
    }

    /// The type of what it gives.
    pub fn result(&self) -> &Type {
        &self.result
    }

    pub(super) fn function(&self) -> (&Module, &Function) {
        (self.typed.module(), self.typed.module().func(self.func))
    }

    /// What the call computes, by a kernel for all sizes.
    pub fn group(&self) -> Result<Group, Refused> {
        self.group_by(Vec::new())
    }

    /// The same, where statements of its routines are known from other sizes.
    pub fn group_by(&self, shared: Vec<Arc<SharedBody>>) -> Result<Group, Refused> {
        let (m, f) = self.function();
        let types = argument_types(f, &self.params);
        Ok(append::group(stages_with(Builder::for_further_sizes(shared), m, f, &types)?.stages, self.kept))
    }

    /// By what kernel it is called, where that is known.
    pub fn met(&self) -> Option<&Met> {
        self.met.get()
    }

    /// Says by what kernel it is called, and works out what programs are told of that; the first who says so is right.
    pub fn meet(&self, met: Met) {
        if let Made::Sized(_, member) = &self.met.get_or_init(|| met).made {
            self.linked.parameters.get_or_init(|| member.tensor());
        }
    }
}

impl Expected for FunctionAt {
    fn estimate(&self) -> Estimate {
        let (m, f) = self.function();
        let types = self.within.as_ref().and_then(|order| types_within(&self.typed, f, order, &self.params));
        let own = |e: ExprId| types.as_ref().and_then(|known| known.get(&e));
        estimate(m, f, &|e| own(e).unwrap_or_else(|| self.typed.ty(e)).clone())
    }
}

/// What programs that make a call have in common, once one of them is assembled.
#[derive(Debug, Default)]
pub(super) struct Linked {
    /// The number of the kernel in the set of code that they are assembled with.
    pub(super) number: OnceLock<usize>,
    /// The parameters of a kernel for all sizes, once it is known.
    pub(super) parameters: OnceLock<Tensor>,
}

/// A call of a program at one size.
#[derive(Clone, Debug)]
pub struct CallAt {
    /// What is called.
    pub function: Arc<FunctionAt>,
    /// The numbers of the arguments that it takes: the values of others are known, and a part of it. None where it takes all.
    pub taken: Option<Vec<usize>>,
}

/// A plain sequence of calls for inputs of known extents, beside the module that says in which order they are made.
#[derive(Debug)]
pub struct ProgramAt {
    /// Of the parameters.
    pub params: Vec<Type>,
    /// Of the result.
    pub result: Type,
    /// What is known already.
    pub values: HashMap<ExprId, Tensor>,
    /// The expressions that the result needs, in order.
    pub order: Vec<ExprId>,
    /// The calls among them.
    pub calls: HashMap<ExprId, CallAt>,
}

impl ProgramAt {
    /// The calls in order.
    pub fn in_order(&self) -> impl Iterator<Item = (ExprId, &CallAt)> {
        self.order.iter().filter_map(|e| Some((*e, self.calls.get(e)?)))
    }
}

/// What a call of a function is expected to take, by the types of the expressions within.
pub(super) fn estimate(m: &Module, f: &Function, ty: &dyn Fn(ExprId) -> Type) -> Estimate {
    let mut estimate = Estimate::default();
    let mut most = 0.0;
    let bytes = |ty: &Type| ty.flatten().map_or(0, |ts| ts.iter().filter_map(TensorType::bytes).sum::<i64>()) as f64;
    // What several operators read of an argument is read once.
    let mut read: HashMap<ExprId, f64> = HashMap::new();
    for e in reachable(m, [f.body]) {
        let Some((op, args, attrs)) = m.op_call(e) else { continue };
        let types: Vec<Type> = args.iter().map(|&a| ty(a)).collect();
        let work = op.op().work(attrs, &types, &ty(e));
        let parts = args.iter().flat_map(|a| match &m[*a] {
            Expr::Tuple(fields) => &fields[..],
            _ => std::slice::from_ref(a),
        });
        for &part in parts.filter(|p| matches!(m[**p], Expr::Var(_) | Expr::Constant(_))) {
            let bytes = work.bytes_read.min(bytes(&ty(part)));
            read.entry(part).and_modify(|known| *known = known.max(bytes)).or_insert(bytes);
        }
        estimate.operations += work.flops;
        if work.flops > most {
            most = work.flops;
            estimate.factors = types.first().and_then(|t| t.flatten()?.first().map(|t| t.dtype));
        }
    }
    estimate.bytes = read.values().sum::<f64>() + bytes(&ty(f.body));
    estimate
}
