//! Whole kernels, as cost models see them.

use super::{Head, NodeView};
use crate::{
    ir::{AttrValue, Attrs, Expr, ExprId, Function, Module, OpId, Type},
    target::Target,
    tensor::Tensor,
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
        let params = |m: &mut Module, name: &str| {
            let typed = self.args.iter().enumerate();
            let vars: Vec<_> = typed.map(|(i, t)| m.new_var(format!("{name}{i}"), Some(t.clone()))).collect();
            let args: Vec<ExprId> = vars.iter().map(|&v| m.add(Expr::Var(v))).collect();
            (vars, args)
        };
        let (vars, args) = params(&mut m, "p");
        let mut done: Vec<ExprId> = Vec::with_capacity(self.calls.len());
        for call in self.calls {
            let operands = call.sources.iter().map(|s| operand(&mut m, s, &args, &done)).collect();
            done.push(m.call_op(call.op, operands, call.attrs.clone()));
        }
        let body = *done.last().expect("a kernel calls something");
        let mut kernel = Function::new(vars, body, Some(self.out().clone()));
        kernel.attrs = Attrs::new(vec![("Primitive".into(), AttrValue::Int(1))]);
        let callee = m.add(Expr::Func(Box::new(kernel)));
        let (vars, args) = params(&mut m, "x");
        let call = m.add(Expr::Call { callee, args, attrs: Attrs::empty(), type_args: Vec::new() });
        let f = m.add(Expr::Func(Box::new(Function::new(vars, call, None))));
        m.define("main", f);
        m
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
