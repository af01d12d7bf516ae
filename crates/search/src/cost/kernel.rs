//! Whole kernels, as cost models see them.

use super::{External, Head, NodeView};
use crate::{
    ir::{AttrValue, Attrs, Expr, ExprId, Function, Module, OpId, Type, VarId},
    target::Target,
    tensor::{DType, Tensor},
};

/// Where a call within a kernel takes an argument from.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// An argument of the kernel, by number.
    Arg(usize),
    /// The result of an earlier call of the kernel, by number.
    Call(usize),
    /// A constant that is written into the code.
    Const(&'a Tensor),
    /// A tuple of these.
    Tuple(Vec<Source<'a>>),
}

/// An operator's call within a kernel.
#[derive(Clone, Debug)]
pub struct KernelCall<'a> {
    /// The operator.
    pub op: OpId,
    /// Its attributes.
    pub attrs: &'a Attrs,
    /// Where its arguments come from.
    pub sources: Vec<Source<'a>>,
    /// The arguments' types.
    pub args: Vec<Type>,
    /// For each argument, whether it can be computed before the program runs.
    pub constant: Vec<bool>,
    /// The result's type.
    pub out: &'a Type,
}

/// The facts of a kernel: one or more operators that run as one piece of code, of which only arguments and the result are in
/// memory.
#[derive(Clone, Debug)]
pub struct KernelView<'a> {
    /// The calls, each after those that it reads; the last one's result is the kernel's.
    pub calls: &'a [KernelCall<'a>],
    /// The arguments' types.
    pub args: &'a [Type],
    /// For each argument, whether it can be computed before the program runs.
    pub constant: &'a [bool],
    /// The machine.
    pub target: &'a Target,
}

impl<'a> KernelView<'a> {
    /// Its calls as if each were an operator by itself.
    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.calls.iter().map(|c| NodeView {
            head: Head::Op(c.op, c.attrs),
            args: &c.args,
            constant: &c.constant,
            out: c.out,
            target: self.target,
        })
    }

    /// The result's type.
    pub fn out(&self) -> &'a Type {
        self.calls.last().expect("a kernel calls something").out
    }

    /// The operators' names in order, as reports call the kernel.
    pub fn name(&self) -> String {
        self.calls.iter().map(|c| c.op.op().name()).collect::<Vec<_>>().join("+")
    }

    /// A program whose `main` calls the kernel and nothing else, for machines that time it.
    pub fn program(&self) -> Module {
        let mut m = Module::new();
        let attrs = Attrs::new(vec![("Primitive".into(), AttrValue::Int(1))]);
        let callee = self.function(&mut m, attrs, |_, _| None);
        self.main(&mut m, callee, &vec![false; self.args.len()]);
        m
    }

    /// A program whose `main` calls a region of an external compiler that holds the kernel and nothing else. What can be computed
    /// before the program runs is a constant of the region where the compiler keeps constants.
    pub fn region(&self, by: &External, keeps_constants: bool) -> Module {
        let mut m = Module::new();
        let held: Vec<bool> = self.constant.iter().map(|&c| c && keeps_constants).collect();
        let attrs = Attrs::new(vec![
            ("Primitive".into(), AttrValue::Int(1)),
            ("Compiler".into(), by.compiler.into()),
            ("global_symbol".into(), format!("{}_main_0", by.compiler).as_str().into()),
        ]);
        let constant = |m: &mut Module, i: usize| {
            let ty: &Type = &self.args[i];
            held[i].then(|| constant_of(m, ty))
        };
        let callee = match by.composite {
            None => self.function(&mut m, attrs, constant),
            Some(name) => {
                let composite = Attrs::new(vec![("Composite".into(), name.into())]);
                let callee = self.function(&mut m, composite, |_, _| None);
                let (vars, args) = self.params(&mut m, "r", constant);
                let call = m.add(Expr::Call { callee, args, attrs: Attrs::empty(), type_args: Vec::new() });
                let mut region = Function::new(vars, call, Some(self.out().clone()));
                region.attrs = attrs;
                m.add(Expr::Func(Box::new(region)))
            }
        };
        self.main(&mut m, callee, &held);
        m
    }

    /// Variables for the arguments that are no constants, and all arguments.
    fn params(
        &self,
        m: &mut Module,
        name: &str,
        constant: impl Fn(&mut Module, usize) -> Option<ExprId>,
    ) -> (Vec<VarId>, Vec<ExprId>) {
        let (mut vars, mut args) = (Vec::new(), Vec::new());
        for (i, ty) in self.args.iter().enumerate() {
            args.push(match constant(m, i) {
                Some(c) => c,
                None => {
                    let var = m.new_var(format!("{name}{i}"), Some(ty.clone()));
                    vars.push(var);
                    m.add(Expr::Var(var))
                }
            });
        }
        (vars, args)
    }

    fn function(
        &self,
        m: &mut Module,
        attrs: Attrs,
        constant: impl Fn(&mut Module, usize) -> Option<ExprId>,
    ) -> ExprId {
        let (vars, args) = self.params(m, "p", constant);
        let mut done: Vec<ExprId> = Vec::with_capacity(self.calls.len());
        for call in self.calls {
            let operands = call.sources.iter().map(|s| operand(m, s, &args, &done)).collect();
            done.push(m.call_op(call.op, operands, call.attrs.clone()));
        }
        let body = *done.last().expect("a kernel calls something");
        let mut kernel = Function::new(vars, body, Some(self.out().clone()));
        kernel.attrs = attrs;
        m.add(Expr::Func(Box::new(kernel)))
    }

    /// Defines a `main` that calls the function with its arguments that are not held by it.
    fn main(&self, m: &mut Module, callee: ExprId, held: &[bool]) {
        let typed = self.args.iter().enumerate().filter(|(i, _)| !held[*i]);
        let vars: Vec<_> = typed.map(|(i, t)| m.new_var(format!("x{i}"), Some(t.clone()))).collect();
        let args: Vec<ExprId> = vars.iter().map(|&v| m.add(Expr::Var(v))).collect();
        let call = m.add(Expr::Call { callee, args, attrs: Attrs::empty(), type_args: Vec::new() });
        let f = m.add(Expr::Func(Box::new(Function::new(vars, call, None))));
        m.define("main", f);
    }
}

/// A constant of a type with known extents, such as a trained weight might be: small numbers around 0 that differ. Where extents
/// are not known, of one element.
fn constant_of(m: &mut Module, ty: &Type) -> ExprId {
    match ty {
        Type::Tuple(fields) => {
            let fields = fields.iter().map(|f| constant_of(m, f)).collect();
            m.add(Expr::Tuple(fields))
        }
        _ => {
            let (shape, dtype) = match ty.as_tensor() {
                Some(t) => (t.shape.iter().map(|d| d.known().unwrap_or(1) as usize).collect::<Vec<_>>(), t.dtype),
                None => (Vec::new(), DType::F32),
            };
            m.constant(match dtype.is_float() {
                true => Tensor::from_f64_fn(dtype, &shape, |i| (i % 13) as f64 / 64.0 - 0.09),
                false => Tensor::from_i64_fn(dtype, &shape, |i| (i % 5) as i64),
            })
        }
    }
}

fn operand(m: &mut Module, source: &Source, args: &[ExprId], done: &[ExprId]) -> ExprId {
    match source {
        Source::Arg(i) => args[*i],
        Source::Call(i) => done[*i],
        Source::Const(t) => m.constant((*t).clone()),
        Source::Tuple(fields) => {
            let fields = fields.iter().map(|f| operand(m, f, args, done)).collect();
            m.add(Expr::Tuple(fields))
        }
    }
}
