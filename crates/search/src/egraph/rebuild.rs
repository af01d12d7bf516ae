//! From the chosen terms of a module's regions back to a module.

use hashbrown::{HashMap, HashSet};

use super::{
    Case, KernelBody, Node, RegionId, Step,
    insert::{Encoded, InputSource, Opaque, Term},
};
use crate::{
    ir::{AttrValue, Attrs, Copier, Expr, ExprId, Function, Module, Name, OpId, Pattern, Span, VarId},
    ops,
};

impl Encoded<'_> {
    /// The module that the regions' terms make. Every region must have been closed.
    pub fn finish(self) -> Module {
        let mut rebuild = Rebuild {
            e: &self,
            to: self.module.derive(),
            ops: HashMap::new(),
            bound: HashSet::new(),
            renamed: HashMap::new(),
        };
        // Functions that stay as they are come first: their variables keep their names, whatever the others copy.
        for plan in &self.plan.functions {
            if plan.body.is_none() {
                bind_all(self.module, plan.func, &mut rebuild.bound);
            }
        }
        let mut functions = Vec::new();
        for ((name, func), plan) in self.module.functions().zip(&self.plan.functions) {
            let new = match plan.body {
                Some(body) => rebuild.function(func, body),
                None => Copier::new().copy(self.module, func, &mut rebuild.to),
            };
            functions.push((name.clone(), new));
        }
        let mut to = rebuild.to;
        for (name, func) in functions {
            to.define(name, func);
        }
        to
    }
}

/// All variables that an expression's parts bind.
fn bind_all(m: &Module, root: ExprId, bound: &mut HashSet<VarId>) {
    for id in crate::ir::reachable(m, [root]) {
        bound.extend(binders(&m[id]));
    }
}

/// The variables that an expression binds itself.
fn binders(e: &Expr) -> Vec<VarId> {
    match e {
        Expr::Func(f) => f.params.clone(),
        Expr::Let { var, .. } => vec![*var],
        Expr::Match { clauses, .. } => clauses.iter().flat_map(|c| c.pattern.vars()).collect(),
        _ => Vec::new(),
    }
}

struct Rebuild<'a> {
    e: &'a Encoded<'a>,
    to: Module,
    /// Operators as values, each added once.
    ops: HashMap<OpId, ExprId>,
    /// Variables that the new module binds already.
    bound: HashSet<VarId>,
    /// New variables for those whose binder the new module has twice.
    renamed: HashMap<VarId, VarId>,
}

/// One region being rebuilt.
struct Frame<'a> {
    term: &'a Term,
    /// By node: its expression; attribute records have none.
    exprs: Vec<Option<ExprId>>,
    /// What the region captures.
    env: HashMap<ExprId, ExprId>,
    /// The bodies of the carried expression that is next, as far as they are done.
    bodies: Vec<ExprId>,
}

impl<'a> Frame<'a> {
    fn new(e: &'a Encoded, region: RegionId, env: HashMap<ExprId, ExprId>) -> Frame<'a> {
        let term = e.terms[region.index()].as_ref().expect("every region is closed before the module is rebuilt");
        Frame { term, exprs: Vec::with_capacity(term.nodes().len()), env, bodies: Vec::new() }
    }

    fn expr(&self, id: egg::Id) -> ExprId {
        self.exprs[usize::from(id)].expect("attribute records are no operands")
    }
}

impl<'a> Rebuild<'a> {
    fn function(&mut self, func: ExprId, body: RegionId) -> ExprId {
        let f = self.e.module.func(func);
        self.bind(&f.params);
        let root = self.region(body);
        let params = f.params.iter().map(|&v| self.var(v)).collect();
        let new = Function { params, body: root, ..f.clone() };
        self.to.add_at(Expr::Func(Box::new(new)), self.e.module.span(func).cloned())
    }

    /// Makes sure that variables about to be bound are bound once in the new module.
    fn bind(&mut self, vars: &[VarId]) {
        for &v in vars {
            if self.bound.insert(v) {
                self.renamed.remove(&v);
            } else {
                let info = self.to.var(v).clone();
                let new = self.to.new_var(info.name, info.ty);
                self.bound.insert(new);
                self.renamed.insert(v, new);
            }
        }
    }

    fn var(&self, v: VarId) -> VarId {
        self.renamed.get(&v).copied().unwrap_or(v)
    }

    /// Rebuilds a region and those inside it, without recursion.
    fn region(&mut self, region: RegionId) -> ExprId {
        let mut frames: Vec<Frame<'a>> = vec![Frame::new(self.e, region, HashMap::new())];
        loop {
            let frame = frames.last_mut().expect("the outermost frame stays until it gives the result");
            let at = frame.exprs.len();
            let Some(node) = frame.term.nodes().get(at) else {
                let result = frame.exprs.last().copied().flatten().expect("a term's last node is its result");
                frames.pop();
                match frames.last_mut() {
                    Some(outer) => outer.bodies.push(result),
                    None => return result,
                }
                continue;
            };
            let expr = match node.case() {
                Case::Attrs(_) => None,
                Case::Opaque(id) => {
                    let opaque = &self.e.opaques[id.0 as usize];
                    if frame.bodies.is_empty() {
                        self.bind_carried(opaque);
                    }
                    if let Some((_, inner)) = opaque.bodies.get(frame.bodies.len()) {
                        let captures = &egg::Language::children(node)[opaque.operands.len()..];
                        let env = opaque.captures.iter().zip(captures).map(|(&c, &id)| (c, frame.expr(id))).collect();
                        frames.push(Frame::new(self.e, *inner, env));
                        continue;
                    }
                    let expr = self.carried(opaque, node, frame);
                    frame.bodies.clear();
                    Some(expr)
                }
                _ => Some(self.node(node, at, frame)),
            };
            frame.exprs.push(expr);
        }
    }

    fn node(&mut self, node: &Node, at: usize, frame: &Frame) -> ExprId {
        let children = egg::Language::children(node);
        // What is open is where the tables are; everything is closed by now.
        let tables = self.e.tables();
        let expr = match node.case() {
            Case::Op(op) => {
                let (_, attrs, args) = node.as_op().expect("an operator's node has its record");
                let Case::Attrs(attrs) = frame.term.nodes()[usize::from(attrs)].case() else {
                    unreachable!("the first child of an operator's node is its record")
                };
                let callee = *self.ops.entry(op).or_insert_with(|| self.to.add(Expr::Op(op)));
                let args = args.iter().map(|&a| frame.expr(a)).collect();
                Expr::Call { callee, args, attrs: tables.attrs(attrs).clone(), type_args: Vec::new() }
            }
            Case::Const(id) => Expr::Constant(tables.constant(id).clone()),
            Case::Input(id) => match self.e.sources[id.0 as usize] {
                InputSource::Var(v) => Expr::Var(self.var(v)),
                InputSource::Captured(c) => return frame.env[&c],
            },
            Case::Kernel(id) => {
                let args = children.iter().map(|&c| frame.expr(c)).collect();
                let body = tables.kernel(id).clone();
                return match body.place() {
                    Some(place) => self.annotated(&body, tables.place(place), args, frame.term.span(at)),
                    None => self.kernel(&body, args, frame.term.span(at)),
                };
            }
            // Where a region begins and ends, what is annotated says.
            Case::Enter(_) | Case::Leave(_) => return frame.expr(children[0]),
            Case::Tuple => Expr::Tuple(children.iter().map(|&c| frame.expr(c)).collect()),
            Case::Proj(field) => Expr::Proj(frame.expr(children[0]), field as usize),
            Case::Attrs(_) | Case::Opaque(_) => unreachable!("handled by the caller"),
        };
        self.to.add_at(expr, frame.term.span(at).cloned())
    }

    /// What an external compiler is to make, between the marks of where its region begins and ends, as the pass
    /// `AnnotateTarget` sets them: an operator's call, or that of a composite function.
    fn annotated(&mut self, body: &KernelBody, compiler: &Name, args: Vec<ExprId>, span: Option<&Span>) -> ExprId {
        let mut begun = Vec::with_capacity(args.len());
        for arg in args {
            begun.push(match self.to[arg] {
                Expr::Constant(_) => arg,
                _ => self.mark("annotation.compiler_begin", compiler, arg, span),
            });
        }
        let within = match body.composite() {
            Some(name) => {
                let attrs = Attrs::new(vec![("Composite".into(), name.as_str().into())]);
                self.call_of(body, attrs, begun, span)
            }
            None => self.steps(body, |_, _, i| begun[i], span),
        };
        self.mark("annotation.compiler_end", compiler, within, span)
    }

    fn mark(&mut self, op: &str, compiler: &Name, of: ExprId, span: Option<&Span>) -> ExprId {
        let op = ops::op(op);
        let callee = *self.ops.entry(op).or_insert_with(|| self.to.add(Expr::Op(op)));
        let attrs = Attrs::new(vec![("compiler".into(), compiler.as_str().into())]);
        self.to.add_at(Expr::Call { callee, args: vec![of], attrs, type_args: vec![] }, span.cloned())
    }

    /// The call of a primitive function that is a kernel.
    fn kernel(&mut self, body: &KernelBody, args: Vec<ExprId>, span: Option<&Span>) -> ExprId {
        self.call_of(body, Attrs::new(vec![("Primitive".into(), AttrValue::Int(1))]), args, span)
    }

    /// A body's steps as expressions, with its arguments by number; gives the result.
    fn steps(
        &mut self,
        body: &KernelBody,
        mut arg: impl FnMut(&mut Self, &KernelBody, usize) -> ExprId,
        span: Option<&Span>,
    ) -> ExprId {
        let tables = self.e.tables();
        let mut done: Vec<ExprId> = Vec::with_capacity(body.steps().len());
        for step in body.steps() {
            let all = |steps: &[u32]| steps.iter().map(|&s| done[s as usize]).collect::<Vec<_>>();
            let expr = match step {
                Step::Arg(i) => {
                    done.push(arg(self, body, *i as usize));
                    continue;
                }
                Step::Const(id) => Expr::Constant(tables.constant(*id).clone()),
                Step::Tuple(fields) => Expr::Tuple(all(fields)),
                Step::Op(op, attrs, args, _) => {
                    let args = all(args);
                    let callee = *self.ops.entry(*op).or_insert_with(|| self.to.add(Expr::Op(*op)));
                    Expr::Call { callee, args, attrs: tables.attrs(*attrs).clone(), type_args: Vec::new() }
                }
            };
            done.push(self.to.add_at(expr, span.cloned()));
        }
        *done.last().expect("a kernel has steps")
    }

    /// The call of a function of such a body.
    fn call_of(&mut self, body: &KernelBody, attrs: Attrs, args: Vec<ExprId>, span: Option<&Span>) -> ExprId {
        let mut params = Vec::with_capacity(args.len());
        let arg = |r: &mut Self, body: &KernelBody, i: usize| {
            let var = r.to.new_var(format!("p{i}"), Some(body.args()[i].clone()));
            r.bound.insert(var);
            params.push(var);
            r.to.add_at(Expr::Var(var), span.cloned())
        };
        let result = self.steps(body, arg, span);
        let func = Function { type_params: vec![], params, ret: Some(body.ty().clone()), body: result, attrs };
        let callee = self.to.add_at(Expr::Func(Box::new(func)), span.cloned());
        self.to.add_at(Expr::Call { callee, args, attrs: Attrs::empty(), type_args: vec![] }, span.cloned())
    }

    /// Binds the variables of a carried expression.
    fn bind_carried(&mut self, opaque: &Opaque) {
        for id in carried_exprs(self.e.module, opaque) {
            self.bind(&binders(&self.e.module[id]));
        }
    }

    fn carried(&mut self, opaque: &Opaque, node: &Node, frame: &Frame) -> ExprId {
        let mut copier = Copier::new();
        for ((root, _), &new) in opaque.bodies.iter().zip(&frame.bodies) {
            copier.replace(*root, new);
        }
        for (&hole, &child) in opaque.operands.iter().zip(egg::Language::children(node)) {
            copier.replace(hole, frame.expr(child));
        }
        let renamed = &self.renamed;
        let var = |v: &VarId| renamed.get(v).copied().unwrap_or(*v);
        copier.copy_with(self.e.module, opaque.origin, &mut self.to, |to, id, e| {
            let new = match e {
                _ if binders(e).iter().all(|v| var(v) == *v) => return None,
                Expr::Func(f) => {
                    Expr::Func(Box::new(Function { params: f.params.iter().map(var).collect(), ..(**f).clone() }))
                }
                Expr::Let { var: v, value, body } => Expr::Let { var: var(v), value: *value, body: *body },
                Expr::Match { data, clauses, complete } => {
                    let mut clauses = clauses.clone();
                    clauses.iter_mut().for_each(|c| rename_pattern(&mut c.pattern, &var));
                    Expr::Match { data: *data, clauses, complete: *complete }
                }
                _ => return None,
            };
            Some(to.add_at(new, self.e.module.span(id).cloned()))
        })
    }
}

/// The expressions that a carried one consists of, holes excluded.
fn carried_exprs(m: &Module, opaque: &Opaque) -> Vec<ExprId> {
    let mut seen: HashSet<ExprId> = opaque.operands.iter().copied().chain(opaque.bodies.iter().map(|b| b.0)).collect();
    let mut found = Vec::new();
    let mut stack = vec![opaque.origin];
    while let Some(id) = stack.pop() {
        if seen.insert(id) {
            found.push(id);
            crate::ir::children(&m[id], |c| stack.push(c));
        }
    }
    found
}

fn rename_pattern(p: &mut Pattern, var: &impl Fn(&VarId) -> VarId) {
    // Patterns nest as deeply as a person writes them: an explicit stack all the same.
    let mut stack = vec![p];
    while let Some(p) = stack.pop() {
        match p {
            Pattern::Wildcard => {}
            Pattern::Var(v) => *v = var(v),
            Pattern::Constructor(_, ps) | Pattern::Tuple(ps) => stack.extend(ps),
        }
    }
}
