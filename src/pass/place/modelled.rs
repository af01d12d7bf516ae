//! What a finished program costs, by models.

use std::sync::Arc;

use super::prices::CALL;
use crate::{
    cost::{CostModel, KernelCall, KernelView, Source},
    infer::{TypedModule, infer_types},
    ir::{Expr, ExprId, Module, Type, reachable},
    partition::{ExternalCompiler, Region},
    target::Target,
};

/// Prices programs whose operators are all in kernels and regions: kernels as the cost model does, regions whole, as their compilers
/// say, so that what a compiler makes one of is one, and each as often as it is called.
pub(super) struct Modelled {
    pub(super) model: Arc<dyn CostModel>,
    pub(super) compilers: Vec<&'static dyn ExternalCompiler>,
    pub(super) target: Target,
}

impl Modelled {
    /// Seconds of a run of `main`. `Err` says why there is no price.
    pub(super) fn seconds(&self, program: &Module) -> Result<f64, String> {
        let typed = infer_types(program.clone()).map_err(|e| e.to_string())?;
        let m = typed.module();
        let main = m.function_id("main").ok_or("there is no main")?;
        let mut sum = 0.0;
        let all = reachable(m, [m.func(main).body]);
        let constant = constants(m, &all);
        for &e in &all {
            let Expr::Call { callee, args, .. } = &m[e] else { continue };
            let callee = match &m[*callee] {
                Expr::Global(name) => m.function_id(name.as_str()).ok_or("a function is not there")?,
                Expr::Func(_) => *callee,
                // Operators within kernels: those were priced with them.
                Expr::Op(_) => continue,
                _ => return Err("it calls what is decided while it runs".into()),
            };
            let f = m.func(callee);
            let held: Vec<bool> = args.iter().map(|&a| constant[a.index()]).collect();
            sum += match f.compiler() {
                Some(name) => self.region(&typed, callee, name, &held)?,
                None if f.is_primitive() => self.kernel(&typed, callee, &held)?,
                None if f.attrs.get("Composite").is_some() => 0.0,
                None => return Err("it calls functions".into()),
            };
        }
        Ok(sum)
    }

    fn region(&self, typed: &TypedModule, f: ExprId, compiler: &str, constant: &[bool]) -> Result<f64, String> {
        let by = self.compilers.iter().find(|c| c.name() == compiler).ok_or("its compiler is not there")?;
        let codegen = self.target.codegen();
        let region = Region::new(typed, f, compiler, "region", &codegen).on(&self.target);
        let inside = match by.cost(&region) {
            Some(seconds) => seconds,
            None => self.alone(&region)?,
        };
        let bytes = |ty: &Type| ty.flatten().map_or(0, |all| all.iter().filter_map(|t| t.bytes()).sum::<i64>()).max(0);
        let function = typed.module().func(f);
        let given = function.params.iter().zip(constant).filter(|(_, constant)| !**constant);
        let crossing: f64 = given
            .map(|(&p, _)| typed.var_ty(p).clone())
            .chain([typed.ty(function.body).clone()])
            .map(|ty| by.transfer_cost(bytes(&ty) as u64))
            .sum();
        Ok(CALL + by.call_cost() + crossing + inside)
    }

    /// A region of a compiler that says nothing of its cost: as if its operators were kernels without a call.
    fn alone(&self, region: &Region<'_>) -> Result<f64, String> {
        let plain = infer_types(region.plain().map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        let kernels = infer_types(crate::pass::fuse(&plain, 1)).map_err(|e| e.to_string())?;
        let m = kernels.module();
        let main = m.function_id("main").ok_or("there is no main")?;
        let all = reachable(m, [m.func(main).body]);
        let constant = constants(m, &all);
        let mut sum = 0.0;
        for &e in &all {
            if let Expr::Call { callee, args, .. } = &m[e]
                && matches!(&m[*callee], Expr::Func(f) if f.is_primitive())
            {
                let held: Vec<bool> = args.iter().map(|&a| constant[a.index()]).collect();
                sum += (self.kernel(&kernels, *callee, &held)? - CALL).max(0.0);
            }
        }
        Ok(sum)
    }

    /// A primitive function that gets these arguments.
    fn kernel(&self, typed: &TypedModule, f: ExprId, constant: &[bool]) -> Result<f64, String> {
        let (m, f) = (typed.module(), typed.module().func(f));
        if constant.iter().all(|&c| c) {
            return Ok(0.0);
        }
        let args: Vec<Type> = f.params.iter().map(|&p| typed.var_ty(p).clone()).collect();
        let body = reachable(m, [f.body]);
        let outs: Vec<Type> = body.iter().map(|&e| typed.ty(e).clone()).collect();
        let mut calls: Vec<KernelCall> = Vec::new();
        let mut sources: Vec<Option<(Source, bool)>> = vec![None; m.len()];
        for (&e, out) in body.iter().zip(&outs) {
            let of = |e: &ExprId| sources[e.index()].clone().ok_or("a kernel's part is no operator's call");
            let source = match &m[e] {
                Expr::Op(_) => continue,
                Expr::Var(v) => {
                    let at = f.params.iter().position(|p| p == v).ok_or("a kernel reads what it is not given")?;
                    (Source::Arg(at), constant[at])
                }
                Expr::Constant(t) => (Source::Const(t), true),
                Expr::Tuple(fields) => {
                    let fields = fields.iter().map(of).collect::<Result<Vec<_>, _>>()?;
                    let (fields, fixed): (Vec<Source>, Vec<bool>) = fields.into_iter().unzip();
                    (Source::Tuple(fields), fixed.iter().all(|&f| f))
                }
                _ => {
                    let (op, operands, attrs) = m.op_call(e).ok_or("a kernel's part is no operator's call")?;
                    let given = operands.iter().map(of).collect::<Result<Vec<_>, _>>()?;
                    let (sources, constant) = given.into_iter().unzip();
                    let args = operands.iter().map(|&a| typed.ty(a).clone()).collect();
                    calls.push(KernelCall { op, attrs, sources, args, constant, out });
                    (Source::Call(calls.len() - 1), false)
                }
            };
            sources[e.index()] = Some(source);
        }
        match calls.is_empty() {
            true => Ok(0.0),
            false => Ok(self.model.kernel(&KernelView { calls: &calls, args: &args, constant, target: &self.target })),
        }
    }
}

/// By expression: whether it depends on constants alone.
fn constants(m: &Module, all: &[ExprId]) -> Vec<bool> {
    let mut constant = vec![false; m.len()];
    // Children come first.
    for &e in all {
        constant[e.index()] = match &m[e] {
            Expr::Constant(_) | Expr::Op(_) => true,
            Expr::Tuple(fields) => fields.iter().all(|f| constant[f.index()]),
            Expr::Call { args, .. } => args.iter().all(|a| constant[a.index()]),
            Expr::Proj(tuple, _) => constant[tuple.index()],
            _ => false,
        };
    }
    constant
}
