//! The machine that evaluates a program over symbols: a stack of tasks and a stack of symbols.

use hashbrown::{HashMap, HashSet};

use super::{
    Known, inlinable,
    symbols::{Binding, Frame, FrameId, Sym, Tuple, TupleId, mentions},
};
use crate::{
    interp::program::Program,
    ir::{Clause, Expr, ExprId, Function, Module, Name, Pattern, Span, Type, TypeVarId, VarId},
};

/// The program may grow so many times before calls stay.
const LARGEST_GROWTH: usize = 30;
/// Programs up to this size may grow to `LARGEST_GROWTH` times this.
const SMALL: usize = 1000;

/// The activation around all functions.
const TOP: FrameId = FrameId(0);

/// Something to do with what is on the symbol stack by then.
enum Task {
    Eval(FrameId, ExprId),
    Push(Sym),
    /// Makes code of the top symbol.
    Code,
    /// Remembers the top symbol as the result of a shared expression.
    Keep(FrameId, ExprId),
    /// The callee is on top: decide whether its body takes the call's place.
    Callee(FrameId, ExprId),
    /// The arguments are on top: go on with the body. The number counts effects before the arguments.
    Enter {
        call: ExprId,
        func: ExprId,
        frame: FrameId,
        effects: usize,
    },
    /// As `Enter`, where arguments had effects and are bound to variables; those that are closures are not.
    EnterBound {
        call: ExprId,
        func: ExprId,
        frame: FrameId,
    },
    /// Code of the callee and its arguments is on top.
    Call(FrameId, ExprId),
    Tuple {
        fields: usize,
        effects: usize,
    },
    TupleCode(TupleId),
    Proj(ExprId, usize),
    /// The value of a `let` is on top. The number counts effects before it.
    Bind(FrameId, ExprId, usize),
    /// Code of the value of a `let` that stays is on top.
    LetBody(FrameId, ExprId, VarId),
    /// Code of the body of a `let` that stays is on top.
    Let(VarId, ExprId, Option<Span>),
    /// The body of a `let` that became sharing is on top: bind the variable if someone asked for it.
    LetIfAsked(FrameId, VarId, Option<Span>),
    /// Code of the body, and then of the value.
    LetAround(VarId, Option<Span>),
    Func {
        func: ExprId,
        at: FrameId,
        params: Vec<VarId>,
        effects: usize,
    },
    /// Code of a closure is on top, with all that is bound around it.
    Closure(ExprId, FrameId),
    If(ExprId),
    Match(ExprId, Vec<Pattern>),
    RefNew(ExprId),
    RefRead(ExprId),
    RefWrite(ExprId),
}

/// A variable that a function asked for after what it was bound in had been made.
struct Asked {
    frame: FrameId,
    new: VarId,
    sym: Sym,
}

pub(super) struct Inliner<'a> {
    m: &'a Module,
    known: &'a Known,
    program: Program<'a>,
    out: Module,
    frames: Vec<Frame>,
    tuples: Vec<Tuple>,
    /// Closures that have become code.
    closures: HashMap<(ExprId, FrameId), ExprId>,
    leaves: HashMap<ExprId, ExprId>,
    /// Variables of the new module that something binds.
    bound: HashSet<VarId>,
    tasks: Vec<Task>,
    syms: Vec<Sym>,
    /// Effects in the code so far.
    effects: usize,
    level: u32,
    /// By function that is becoming code, from the outermost: variables to be bound around it.
    around: Vec<Vec<Asked>>,
    /// Functions of the module that code still names.
    named: Vec<Name>,
}

impl<'a> Inliner<'a> {
    pub(super) fn new(m: &'a Module, known: &'a Known, program: Program<'a>) -> Inliner<'a> {
        let top = Frame {
            scope: 0,
            parent: None,
            level: 0,
            erased: Vec::new(),
            vars: HashMap::new(),
            shared: HashMap::new(),
        };
        Inliner {
            m,
            known,
            program,
            out: m.derive(),
            frames: vec![top],
            tuples: Vec::new(),
            closures: HashMap::new(),
            leaves: HashMap::new(),
            bound: HashSet::new(),
            tasks: Vec::new(),
            syms: Vec::new(),
            effects: 0,
            level: 0,
            around: Vec::new(),
            named: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> Module {
        let roots: Vec<Name> = match self.m.function("main") {
            Some(_) => vec!["main".into()],
            None => self.m.functions().map(|(n, _)| n.clone()).collect(),
        };
        let mut done: HashMap<Name, ExprId> = HashMap::new();
        let mut todo = roots;
        while let Some(name) = todo.pop() {
            if done.contains_key(&name) {
                continue;
            }
            let func = self.m.function_id(&name).expect("verified: functions exist");
            self.tasks.extend([Task::Code, Task::Push(Sym::Closure(func, TOP))]);
            while let Some(task) = self.tasks.pop() {
                self.step(task);
            }
            let code = self.pop_code();
            done.insert(name, code);
            todo.append(&mut self.named);
        }
        for (name, _) in self.m.functions() {
            if let Some(&code) = done.get(name) {
                self.out.define(name.clone(), code);
            }
        }
        self.out
    }

    fn pop(&mut self) -> Sym {
        self.syms.pop().expect("a task comes after the symbols that it takes")
    }

    fn pop_code(&mut self) -> ExprId {
        match self.pop() {
            Sym::Code(e) => e,
            _ => unreachable!("a task that takes code comes after one that makes it"),
        }
    }

    fn pop_codes(&mut self, n: usize) -> Vec<ExprId> {
        let mut codes: Vec<ExprId> = (0..n).map(|_| self.pop_code()).collect();
        codes.reverse();
        codes
    }

    fn push_code(&mut self, expr: Expr, from: ExprId) {
        let code = self.out.add_at(expr, self.m.span(from).cloned());
        self.syms.push(Sym::Code(code));
    }

    fn var_code(&mut self, v: VarId) -> Sym {
        Sym::Code(self.out.add(Expr::Var(v)))
    }

    fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }

    fn frame_mut(&mut self, id: FrameId) -> &mut Frame {
        &mut self.frames[id.0 as usize]
    }

    fn new_frame(&mut self, func: ExprId, parent: FrameId, erased: &[TypeVarId]) -> FrameId {
        let erased = [&self.frame(parent).erased, erased].concat();
        self.frames.push(Frame {
            scope: self.program.scope_of(func),
            parent: Some(parent),
            level: self.level,
            erased,
            vars: HashMap::new(),
            shared: HashMap::new(),
        });
        FrameId(self.frames.len() as u32 - 1)
    }

    /// The activation of an outer scope that an inner one sees.
    fn outer(&self, frame: FrameId, scope: u32) -> FrameId {
        (0..self.program.hops(self.frame(frame).scope, scope))
            .fold(frame, |f, _| self.frame(f).parent.expect("a scope lies within the ones that it sees"))
    }

    fn bind(&mut self, frame: FrameId, var: VarId, sym: Sym) {
        self.frame_mut(frame).vars.insert(var, Binding { sym, let_var: None, closed: false });
    }

    /// A variable of the new module for one of the old: the same, where it is the first.
    fn fresh(&mut self, v: VarId, frame: FrameId) -> VarId {
        let info = self.m.var(v);
        let ty = info.ty.clone().filter(|t| !mentions(t, &self.frame(frame).erased));
        if ty == info.ty && self.bound.insert(v) {
            return v;
        }
        let new = self.out.new_var(info.name.clone(), ty);
        self.bound.insert(new);
        new
    }

    /// Whether a symbol costs nothing to be written twice. A closure that shares results with what is around it does: they
    /// would be computed wherever it is written.
    fn trivial(&self, sym: Sym) -> bool {
        match sym {
            Sym::Code(e) => matches!(
                self.out[e],
                Expr::Var(_) | Expr::Constant(_) | Expr::Global(_) | Expr::Op(_) | Expr::Constructor(_)
            ),
            Sym::Closure(func, _) => !self.known.shared_outside.contains_key(&func),
            Sym::Tuple(_) => false,
        }
    }

    fn look_up(&mut self, v: VarId, from: FrameId) -> Sym {
        let mut at = from;
        let binding = loop {
            match self.frame(at).vars.get(&v) {
                Some(b) => break *b,
                None => at = self.frame(at).parent.expect("verified: variables are bound"),
            }
        };
        if self.frame(at).level == self.level || self.trivial(binding.sym) {
            return binding.sym;
        }
        // The variable is outside of a function that becomes code: what it stands for must be computed out there.
        let var = match binding.let_var {
            Some(var) => var,
            None if binding.closed => self.bind_around(Some(v), at, binding.sym),
            None => {
                let var = self.fresh(v, at);
                self.frame_mut(at).vars.insert(v, Binding { let_var: Some(var), ..binding });
                var
            }
        };
        self.var_code(var)
    }

    /// A variable around the function that becomes code, for a symbol of an activation around it whose own binding, if
    /// there is one, is made already: the function is the result of what follows that binding.
    fn bind_around(&mut self, v: Option<VarId>, at: FrameId, sym: Sym) -> VarId {
        let function = self.frame(at).level as usize;
        if let Some(asked) = self.around[function].iter().find(|a| (a.sym, a.frame) == (sym, at)) {
            return asked.new;
        }
        let new = match v {
            Some(v) => self.fresh(v, at),
            None => self.out.new_var("function", None),
        };
        self.bound.insert(new);
        self.around[function].push(Asked { frame: at, new, sym });
        new
    }

    fn step(&mut self, task: Task) {
        let m = self.m;
        match task {
            Task::Eval(frame, e) => self.eval(frame, e),
            Task::Push(sym) => self.syms.push(sym),
            Task::Code => self.code(),
            Task::Keep(frame, e) => {
                let sym = *self.syms.last().expect("the result is on top");
                self.frame_mut(frame).shared.insert(e, sym);
            }
            Task::Callee(frame, e) => self.callee(frame, e),
            Task::Enter { call, func, frame, effects } => self.enter(call, func, frame, effects),
            Task::EnterBound { call, func, frame } => self.enter_bound(call, func, frame),
            Task::Call(frame, e) => {
                let Expr::Call { args, attrs, type_args, .. } = &m[e] else { return };
                let args = self.pop_codes(args.len());
                let callee = self.pop_code();
                if self.known.has_effects && !matches!(self.out[callee], Expr::Op(_) | Expr::Constructor(_)) {
                    self.effects += 1;
                }
                let erased = &self.frame(frame).erased;
                let type_args: Vec<Type> = match type_args.iter().any(|t| mentions(t, erased)) {
                    true => Vec::new(),
                    false => type_args.clone(),
                };
                self.push_code(Expr::Call { callee, args, attrs: attrs.clone(), type_args }, e);
            }
            Task::Tuple { fields, effects } => {
                let fields = self.syms.split_off(self.syms.len() - fields);
                self.tuples.push(Tuple { fields, code: None });
                self.syms.push(Sym::Tuple(TupleId(self.tuples.len() as u32 - 1)));
                if self.effects != effects {
                    self.tasks.push(Task::Code);
                }
            }
            Task::TupleCode(id) => {
                let fields = self.pop_codes(self.tuples[id.0 as usize].fields.len());
                let code = self.out.add(Expr::Tuple(fields));
                self.tuples[id.0 as usize].code = Some(code);
                self.syms.push(Sym::Code(code));
            }
            Task::Proj(e, i) => match self.pop() {
                Sym::Tuple(id) if i < self.tuples[id.0 as usize].fields.len() => {
                    self.syms.push(self.tuples[id.0 as usize].fields[i]);
                }
                Sym::Code(code) => self.push_code(Expr::Proj(code, i), e),
                // Ill-typed: the code stays as wrong as it was, for inference to refuse.
                sym => self.tasks.extend([Task::Proj(e, i), Task::Code, Task::Push(sym)]),
            },
            Task::Bind(frame, e, effects) => {
                let Expr::Let { var, body, .. } = &m[e] else { return };
                let sym = self.pop();
                if self.effects != effects {
                    let new = self.fresh(*var, frame);
                    let code = self.var_code(new);
                    self.bind(frame, *var, code);
                    self.tasks.extend([Task::LetBody(frame, e, new), Task::Code, Task::Push(sym)]);
                } else {
                    self.bind(frame, *var, sym);
                    if !self.trivial(sym) {
                        self.tasks.push(Task::LetIfAsked(frame, *var, m.span(e).cloned()));
                    }
                    self.tasks.push(Task::Eval(frame, *body));
                }
            }
            Task::LetBody(frame, e, new) => {
                let Expr::Let { value, body, .. } = &m[e] else { return };
                let recursive = matches!(m[*value], Expr::Func(_));
                let mut value = self.pop_code();
                // What had to be bound around a function that calls itself goes around its binding: a function is recursive
                // only as the very value of a `let`.
                while let (true, Expr::Let { var, value: outer, body }) = (recursive, &self.out[value]) {
                    self.tasks.push(Task::Let(*var, *outer, m.span(e).cloned()));
                    value = *body;
                }
                self.tasks.extend([Task::Let(new, value, m.span(e).cloned()), Task::Code, Task::Eval(frame, *body)]);
            }
            Task::Let(var, value, span) => {
                let body = self.pop_code();
                let code = self.out.add_at(Expr::Let { var, value, body }, span);
                self.syms.push(Sym::Code(code));
            }
            Task::LetIfAsked(frame, var, span) => {
                let binding = self.frame(frame).vars[&var];
                if let Some(new) = binding.let_var {
                    self.tasks.extend([Task::LetAround(new, span), Task::Code, Task::Push(binding.sym), Task::Code]);
                } else {
                    self.frame_mut(frame).vars.insert(var, Binding { closed: true, ..binding });
                }
            }
            Task::LetAround(var, span) => {
                let value = self.pop_code();
                self.step(Task::Let(var, value, span));
            }
            Task::Func { func, at, params, effects } => {
                let f = m.func(func);
                let body = self.pop_code();
                self.level -= 1;
                self.effects = effects;
                let ret = f.ret.clone().filter(|t| !mentions(t, &self.frame(at).erased));
                let (type_params, attrs) = (f.type_params.clone(), f.attrs.clone());
                self.push_code(Expr::Func(Box::new(Function { type_params, params, ret, body, attrs })), func);
                self.tasks.push(Task::Closure(func, at));
                let asked = self.around.pop().expect("one for each function that becomes code");
                for a in asked {
                    self.tasks.extend([Task::LetAround(a.new, m.span(func).cloned()), Task::Code, Task::Push(a.sym)]);
                }
            }
            Task::Closure(func, at) => {
                if let Some(Sym::Code(code)) = self.syms.last() {
                    self.closures.insert((func, at), *code);
                }
            }
            Task::If(e) => {
                let codes = self.pop_codes(3);
                self.push_code(Expr::If { cond: codes[0], then: codes[1], otherwise: codes[2] }, e);
            }
            Task::Match(e, patterns) => {
                let Expr::Match { complete, .. } = &m[e] else { return };
                let bodies = self.pop_codes(patterns.len());
                let data = self.pop_code();
                let clauses =
                    patterns.into_iter().zip(bodies).map(|(pattern, body)| Clause { pattern, body }).collect();
                self.push_code(Expr::Match { data, clauses, complete: *complete }, e);
            }
            Task::RefNew(e) => {
                let value = self.pop_code();
                self.effects += 1;
                self.push_code(Expr::RefNew(value), e);
            }
            Task::RefRead(e) => {
                let cell = self.pop_code();
                self.effects += 1;
                self.push_code(Expr::RefRead(cell), e);
            }
            Task::RefWrite(e) => {
                let codes = self.pop_codes(2);
                self.effects += 1;
                self.push_code(Expr::RefWrite(codes[0], codes[1]), e);
            }
        }
    }

    /// Evaluates expressions to code, in order.
    fn eval_codes(&mut self, frame: FrameId, exprs: impl DoubleEndedIterator<Item = ExprId>) {
        for e in exprs.rev() {
            self.tasks.extend([Task::Code, Task::Eval(frame, e)]);
        }
    }

    fn eval(&mut self, frame: FrameId, e: ExprId) {
        let m = self.m;
        let frame = self.outer(frame, self.program.home(e));
        if self.program.shared(e).is_some() {
            if let Some(&sym) = self.frame(frame).shared.get(&e) {
                // Another branch may have asked first: here, it may be the first time.
                self.effects += self.known.effects.has(e) as usize;
                return self.syms.push(sym);
            }
            self.tasks.push(Task::Keep(frame, e));
        }
        match &m[e] {
            Expr::Var(v) => {
                let sym = self.look_up(*v, frame);
                self.syms.push(sym);
            }
            Expr::Global(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_) => {
                let code = match self.leaves.get(&e) {
                    Some(&code) => code,
                    None => self.out.add_at(m[e].clone(), m.span(e).cloned()),
                };
                self.leaves.insert(e, code);
                self.syms.push(Sym::Code(code));
            }
            Expr::Func(_) => {
                let mut sym = Sym::Closure(e, frame);
                if self.frame(frame).level < self.level && !self.trivial(sym) {
                    let var = self.bind_around(None, frame, sym);
                    sym = self.var_code(var);
                }
                self.syms.push(sym);
            }
            Expr::Call { callee, args, .. } => {
                if matches!(m[*callee], Expr::Op(_) | Expr::Constructor(_)) {
                    self.tasks.push(Task::Call(frame, e));
                    self.eval_codes(frame, [*callee].into_iter().chain(args.iter().copied()));
                } else {
                    self.tasks.extend([Task::Callee(frame, e), Task::Eval(frame, *callee)]);
                }
            }
            Expr::Tuple(fields) => {
                self.tasks.push(Task::Tuple { fields: fields.len(), effects: self.effects });
                self.tasks.extend(fields.iter().rev().map(|&f| Task::Eval(frame, f)));
            }
            Expr::Proj(tuple, i) => self.tasks.extend([Task::Proj(e, *i), Task::Eval(frame, *tuple)]),
            Expr::Let { var, value, body } => {
                if !matches!(m[*value], Expr::Func(_)) {
                    self.tasks.extend([Task::Bind(frame, e, self.effects), Task::Eval(frame, *value)]);
                } else {
                    let closure = Sym::Closure(*value, self.outer(frame, self.program.home(*value)));
                    if self.known.recursive_lets.contains(&e) {
                        let new = self.fresh(*var, frame);
                        let code = self.var_code(new);
                        self.bind(frame, *var, code);
                        self.tasks.extend([Task::LetBody(frame, e, new), Task::Code, Task::Push(closure)]);
                    } else {
                        self.bind(frame, *var, closure);
                        if !self.trivial(closure) {
                            self.tasks.push(Task::LetIfAsked(frame, *var, m.span(e).cloned()));
                        }
                        self.tasks.push(Task::Eval(frame, *body));
                    }
                }
            }
            Expr::If { cond, then, otherwise } => {
                self.tasks.push(Task::If(e));
                self.eval_codes(frame, [*cond, *then, *otherwise].into_iter());
            }
            Expr::Match { data, clauses, .. } => {
                let mut patterns = Vec::with_capacity(clauses.len());
                for c in clauses {
                    let mut names = HashMap::new();
                    for v in c.pattern.vars() {
                        let new = self.fresh(v, frame);
                        names.insert(v, new);
                        let code = self.var_code(new);
                        self.bind(frame, v, code);
                    }
                    patterns.push(renamed(&c.pattern, &names));
                }
                self.tasks.push(Task::Match(e, patterns));
                self.eval_codes(frame, [*data].into_iter().chain(clauses.iter().map(|c| c.body)));
            }
            Expr::RefNew(v) => self.tasks.extend([Task::RefNew(e), Task::Code, Task::Eval(frame, *v)]),
            Expr::RefRead(v) => self.tasks.extend([Task::RefRead(e), Task::Code, Task::Eval(frame, *v)]),
            Expr::RefWrite(cell, v) => {
                self.tasks.push(Task::RefWrite(e));
                self.eval_codes(frame, [*cell, *v].into_iter());
            }
        }
    }

    fn callee(&mut self, frame: FrameId, e: ExprId) {
        let m = self.m;
        let Expr::Call { args, .. } = &m[e] else { return };
        let sym = self.pop();
        let known = match sym {
            Sym::Closure(func, at) => Some((func, at)),
            Sym::Code(code) => match &self.out[code] {
                Expr::Global(name) if self.known.globals.contains(name) => m.function_id(name).map(|f| (f, TOP)),
                _ => None,
            },
            Sym::Tuple(_) => None,
        };
        let room = self.out.len() < LARGEST_GROWTH * m.len().max(SMALL);
        let fits = |&(f, at): &(ExprId, FrameId)| {
            room && inlinable(m.func(f)) && m.func(f).params.len() == args.len() && !self.repeats(f, at)
        };
        match known.filter(fits) {
            Some((func, at)) => {
                self.tasks.push(Task::Enter { call: e, func, frame: at, effects: self.effects });
                self.tasks.extend(args.iter().rev().map(|&a| Task::Eval(frame, a)));
            }
            None => {
                self.tasks.push(Task::Call(frame, e));
                self.eval_codes(frame, args.iter().copied());
                self.tasks.extend([Task::Code, Task::Push(sym)]);
            }
        }
    }

    /// Whether a function asks for a result that is shared with what is around it, and would do so within another function
    /// that becomes code: there, the result would be computed at each call.
    fn repeats(&self, func: ExprId, at: FrameId) -> bool {
        let Some(homes) = self.known.shared_outside.get(&func) else { return false };
        homes.iter().any(|&scope| self.frame(self.outer(at, scope)).level < self.level)
    }

    fn enter(&mut self, call: ExprId, func: ExprId, at: FrameId, effects: usize) {
        let f = self.m.func(func);
        let args = self.syms.split_off(self.syms.len() - f.params.len());
        if self.effects != effects {
            self.tasks.push(Task::EnterBound { call, func, frame: at });
            for &arg in args.iter().rev() {
                if !matches!(arg, Sym::Closure(..)) {
                    self.tasks.push(Task::Code);
                }
                self.tasks.push(Task::Push(arg));
            }
            return;
        }
        let frame = self.new_frame(func, at, &f.type_params);
        for (&param, arg) in f.params.iter().zip(args) {
            self.bind(frame, param, arg);
            if !self.trivial(arg) {
                self.tasks.push(Task::LetIfAsked(frame, param, self.m.span(call).cloned()));
            }
        }
        self.tasks.push(Task::Eval(frame, f.body));
    }

    fn enter_bound(&mut self, call: ExprId, func: ExprId, at: FrameId) {
        let f = self.m.func(func);
        let args = self.syms.split_off(self.syms.len() - f.params.len());
        let frame = self.new_frame(func, at, &f.type_params);
        // The first argument's effect comes first: its `let` is the outermost, hence made last.
        for (&param, arg) in f.params.iter().zip(args) {
            match arg {
                Sym::Code(value) if !self.trivial(arg) => {
                    let new = self.fresh(param, frame);
                    let code = self.var_code(new);
                    self.bind(frame, param, code);
                    self.tasks.extend([Task::Let(new, value, self.m.span(call).cloned()), Task::Code]);
                }
                sym => {
                    let binding = Binding { sym, let_var: None, closed: true };
                    self.frame_mut(frame).vars.insert(param, binding);
                }
            }
        }
        self.tasks.push(Task::Eval(frame, f.body));
    }

    /// Makes code of the top symbol.
    fn code(&mut self) {
        match self.pop() {
            Sym::Code(code) => {
                if let Expr::Global(name) = &self.out[code] {
                    self.named.push(name.clone());
                }
                self.syms.push(Sym::Code(code));
            }
            Sym::Tuple(id) => match self.tuples[id.0 as usize].code {
                Some(code) => self.syms.push(Sym::Code(code)),
                None => {
                    self.tasks.push(Task::TupleCode(id));
                    for i in (0..self.tuples[id.0 as usize].fields.len()).rev() {
                        let field = self.tuples[id.0 as usize].fields[i];
                        self.tasks.extend([Task::Code, Task::Push(field)]);
                    }
                }
            },
            Sym::Closure(func, at) => {
                if let Some(&code) = self.closures.get(&(func, at)) {
                    return self.syms.push(Sym::Code(code));
                }
                let f = self.m.func(func);
                let effects = self.effects;
                self.level += 1;
                self.around.push(Vec::new());
                let frame = self.new_frame(func, at, &[]);
                let params: Vec<VarId> = f.params.iter().map(|&p| self.fresh(p, frame)).collect();
                for (&p, &new) in f.params.iter().zip(&params) {
                    let code = self.var_code(new);
                    self.bind(frame, p, code);
                }
                self.tasks.extend([Task::Func { func, at, params, effects }, Task::Code, Task::Eval(frame, f.body)]);
            }
        }
    }
}

/// The pattern with its variables renamed. Verification bounds how deep patterns are nested.
fn renamed(p: &Pattern, names: &HashMap<VarId, VarId>) -> Pattern {
    let all = |ps: &[Pattern]| ps.iter().map(|p| renamed(p, names)).collect();
    match p {
        Pattern::Wildcard => Pattern::Wildcard,
        Pattern::Var(v) => Pattern::Var(names[v]),
        Pattern::Constructor(name, ps) => Pattern::Constructor(name.clone(), all(ps)),
        Pattern::Tuple(ps) => Pattern::Tuple(all(ps)),
    }
}
