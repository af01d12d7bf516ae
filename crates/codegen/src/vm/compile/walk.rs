//! A function's expressions in the order of their evaluation, as instructions.

use hashbrown::HashMap;

use super::{
    super::program::{Instr, Label, Operand, Reg},
    Compiler,
    finish::{Draft, finish},
    is_kernel, kernel,
    plan::{Need, Plan, RegionId},
};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{Expr, ExprId, Module, Name, VarId},
};

/// What becomes of a result.
#[derive(Copy, Clone)]
pub(super) enum Want {
    /// It is put on the stack of operands.
    Operand,
    /// It is written to a register that other ways write as well.
    In(Reg),
    /// The function returns it.
    Return,
}

/// Something to do, mostly with operands that are on the stack by then.
pub(super) enum Task {
    /// Evaluate an expression that a region uses, if it is not known.
    Eval(ExprId, RegionId, Want),
    /// Evaluate an expression, its parts in a region.
    Compute(ExprId, RegionId, Want),
    /// Remember the operand on top as the value of an expression.
    Keep(ExprId, RegionId, Want),
    /// All parts are there.
    Finish(ExprId, Want),
    /// The value of a `let` is there.
    Bind(ExprId, RegionId, Want),
    /// The condition is there, and all that the branches need.
    Branch(ExprId, Want),
    /// The first branch is made.
    Else {
        e: ExprId,
        otherwise: Label,
        end: Label,
        want: Want,
    },
    /// Both branches are made.
    End {
        end: Label,
        result: Option<Operand>,
    },
    /// What is matched is there, and all that the clauses need.
    Match(ExprId, Want),
    Clause {
        e: ExprId,
        index: usize,
        start: Label,
        otherwise: Label,
        end: Label,
        data: Operand,
        switched: bool,
        want: Want,
    },
    Matched {
        e: ExprId,
        fatal: Label,
        end: Label,
        data: Operand,
        result: Option<Operand>,
    },
    Goto(Label),
    /// Make what a region needs, before it is entered.
    Needs(RegionId),
    Need(Need),
    /// Make a function of its own of an expression: a function's body, or what is delayed.
    Function {
        e: ExprId,
        body: ExprId,
        region: RegionId,
    },
    /// Its code is made.
    EndFunction,
    /// The function is compiled: make the closure.
    Closure(ExprId, Want),
    Delay(ExprId, RegionId),
    /// Nobody takes the operand on top: it is remembered.
    Forget,
}

/// What a closure captures.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
enum Key {
    Var(VarId),
    /// An expression, in its home.
    Value(ExprId, RegionId),
}

/// Where a value is known.
#[derive(Copy, Clone)]
struct Known {
    /// The serial number of the function.
    function: u32,
    operand: Operand,
    delayed: bool,
}

/// A function that is being made.
struct Builder {
    draft: Draft,
    /// Its place in the program.
    function: u32,
    serial: u32,
    /// The expression that it is of.
    of: ExprId,
    /// The variables that stand for it.
    own: Vec<VarId>,
    captures: Vec<Key>,
    capture_of: HashMap<Key, u32>,
    jumped_to: Vec<bool>,
}

/// A function that is made, and what its closures capture.
struct Made {
    function: u32,
    captures: Vec<Key>,
}

pub(super) struct Walk<'w, 'a> {
    pub(super) c: &'w mut Compiler<'a>,
    pub(super) m: &'a Module,
    pub(super) plan: Plan<'a>,
    func: ExprId,
    /// The function that is being made, and those around it.
    builders: Vec<Builder>,
    serials: u32,
    made: HashMap<ExprId, Made>,
    known: HashMap<Key, Known>,
    pub(super) tasks: Vec<Task>,
    pub(super) operands: Vec<Operand>,
}

impl<'w, 'a> Walk<'w, 'a> {
    pub(super) fn new(c: &'w mut Compiler<'a>, func: ExprId) -> Result<Walk<'w, 'a>, Refused> {
        let m = c.typed.module();
        let plan = Plan::new(m, c.facts, func)?;
        Ok(Walk {
            c,
            m,
            plan,
            func,
            builders: Vec::new(),
            serials: 0,
            made: HashMap::new(),
            known: HashMap::new(),
            tasks: Vec::new(),
            operands: Vec::new(),
        })
    }

    /// Compiles the function of the module.
    pub(super) fn run(mut self, function: u32, name: Name) -> Result<(), Refused> {
        let body = self.m.func(self.func).body;
        let region = self.plan.owned(self.func)[0];
        self.begin(self.func, function, name);
        self.tasks.extend([Task::EndFunction, Task::Eval(body, region, Want::Return)]);
        while let Some(task) = self.tasks.pop() {
            self.step(task)?;
        }
        Ok(())
    }

    fn begin(&mut self, of: ExprId, function: u32, name: Name) {
        let params: &[VarId] = match &self.m[of] {
            Expr::Func(f) => &f.params,
            _ => &[],
        };
        self.serials += 1;
        let n = params.len() as u32;
        let draft = Draft { name, params: n, registers: n, code: vec![], spans: vec![], labels: vec![] };
        self.builders.push(Builder {
            draft,
            function,
            serial: self.serials,
            of,
            own: self.plan.names(of).to_vec(),
            captures: Vec::new(),
            capture_of: HashMap::new(),
            jumped_to: Vec::new(),
        });
        for (i, &p) in params.iter().enumerate() {
            self.bind(p, Operand::Copy(Reg(i as u32)));
        }
    }

    fn now(&mut self) -> &mut Builder {
        self.builders.last_mut().expect("code is made for a function")
    }

    pub(super) fn register(&mut self) -> Reg {
        let draft = &mut self.now().draft;
        draft.registers += 1;
        Reg(draft.registers - 1)
    }

    pub(super) fn label(&mut self) -> Label {
        let b = self.now();
        b.draft.labels.push(0);
        b.jumped_to.push(false);
        b.draft.labels.len() as Label - 1
    }

    pub(super) fn place_label(&mut self, label: Label) {
        let b = self.now();
        b.draft.labels[label as usize] = b.draft.code.len() as Label;
    }

    pub(super) fn is_jumped_to(&mut self, label: Label) -> bool {
        self.now().jumped_to[label as usize]
    }

    pub(super) fn emit(&mut self, mut instr: Instr) {
        let b = self.now();
        instr.labels(|l| b.jumped_to[*l as usize] = true);
        b.draft.code.push(instr);
    }

    /// Adds an instruction that may fail.
    pub(super) fn emit_at(&mut self, e: ExprId, instr: Instr) {
        if let Some(span) = self.m.span(e).cloned() {
            let draft = &mut self.now().draft;
            let at = draft.code.len() as Label;
            draft.spans.push((at, span));
        }
        self.emit(instr);
    }

    pub(super) fn pop(&mut self) -> Operand {
        self.operands.pop().expect("a task comes after the operands that it takes")
    }

    fn pop_many(&mut self, n: usize) -> Box<[Operand]> {
        self.operands.split_off(self.operands.len() - n).into()
    }

    /// The register of a result, and the instructions after the one that writes it.
    fn result(&mut self, e: ExprId, want: Want, make: impl FnOnce(Reg) -> Instr) {
        let dst = match want {
            Want::In(r) => r,
            _ => self.register(),
        };
        self.emit_at(e, make(dst));
        match want {
            Want::Operand => self.operands.push(Operand::Copy(dst)),
            Want::In(_) => {}
            Want::Return => self.emit(Instr::Return(Operand::Copy(dst))),
        }
    }

    fn deliver(&mut self, operand: Operand, want: Want) {
        match want {
            Want::Operand => self.operands.push(operand),
            Want::In(dst) => self.emit(Instr::Move { dst, src: operand }),
            Want::Return => self.emit(Instr::Return(operand)),
        }
    }

    /// What several ways want where one was wanted, and the operand that they give together.
    pub(super) fn joined(&mut self, want: Want) -> (Want, Option<Operand>) {
        match want {
            Want::Operand => {
                let dst = self.register();
                (Want::In(dst), Some(Operand::Copy(dst)))
            }
            want => (want, None),
        }
    }

    pub(super) fn bind(&mut self, v: VarId, operand: Operand) {
        let function = self.now().serial;
        self.known.insert(Key::Var(v), Known { function, operand, delayed: false });
    }

    /// The operand by which the function that is being made knows a value.
    fn resolve(&mut self, key: Key, at: ExprId) -> Result<Operand, Refused> {
        if matches!(key, Key::Var(v) if self.now().own.contains(&v)) {
            return Ok(Operand::Own);
        }
        let serial = self.now().serial;
        match self.known.get(&key) {
            Some(k) if k.function == serial => return Ok(k.operand),
            Some(Known { operand: Operand::Const(n), .. }) => return Ok(Operand::Const(*n)),
            Some(_) => {}
            None => {
                let named = matches!(key, Key::Var(v) if self.builders.iter().any(|b| b.own.contains(&v)));
                if !named {
                    let what = match key {
                        Key::Var(v) => format!("variable `%{}`", self.m.var(v).name),
                        Key::Value(..) => "a shared value".into(),
                    };
                    let message = format!("{what} is used before it is bound");
                    return Err(Diagnostic::new(message).at(self.m.span(at).cloned()).into());
                }
            }
        }
        let b = self.now();
        let n = *b.capture_of.entry(key).or_insert_with(|| {
            b.captures.push(key);
            b.captures.len() as u32 - 1
        });
        Ok(Operand::Captured(n))
    }

    fn step(&mut self, task: Task) -> Result<(), Refused> {
        match task {
            Task::Eval(e, region, want) => self.eval(e, region, want)?,
            Task::Compute(e, region, want) => self.compute(e, region, want)?,
            Task::Keep(e, home, want) => {
                let operand = self.pop();
                let function = self.now().serial;
                self.known.insert(Key::Value(e, home), Known { function, operand, delayed: false });
                self.deliver(operand, want);
            }
            Task::Finish(e, want) => self.finish(e, want),
            Task::Bind(e, region, want) => {
                let Expr::Let { var, body, .. } = &self.m[e] else { return Ok(()) };
                let operand = self.pop();
                self.bind(*var, operand);
                self.tasks.push(Task::Eval(*body, region, want));
            }
            Task::Branch(e, want) => {
                let Expr::If { then, .. } = &self.m[e] else { return Ok(()) };
                let cond = self.pop();
                let (otherwise, end) = (self.label(), self.label());
                self.emit_at(e, Instr::If { cond, otherwise });
                let (want, result) = self.joined(want);
                let region = self.plan.owned(e)[0];
                self.tasks.push(Task::End { end, result });
                self.tasks.push(Task::Else { e, otherwise, end, want });
                self.tasks.push(Task::Eval(*then, region, want));
            }
            Task::Else { e, otherwise, end, want } => {
                let Expr::If { otherwise: branch, .. } = &self.m[e] else { return Ok(()) };
                if !matches!(want, Want::Return) {
                    self.emit(Instr::Goto(end));
                }
                self.place_label(otherwise);
                let region = self.plan.owned(e)[1];
                self.tasks.push(Task::Eval(*branch, region, want));
            }
            Task::End { end, result } => {
                if self.is_jumped_to(end) {
                    self.place_label(end);
                }
                self.operands.extend(result);
            }
            Task::Match(e, want) => self.matched(e, want),
            Task::Clause { e, index, start, otherwise, end, data, switched, want } => {
                self.clause(e, index, start, otherwise, end, data, switched, want);
            }
            Task::Matched { e, fatal, end, data, result } => self.end_of_match(e, fatal, end, data, result),
            Task::Goto(label) => self.emit(Instr::Goto(label)),
            Task::Needs(region) => {
                self.tasks.extend(self.plan.needs(region).iter().rev().map(|&n| Task::Need(n)));
            }
            Task::Need(Need::Function(e)) => self.tasks.push(Task::Needs(self.plan.owned(e)[0])),
            Task::Need(Need::Value(e, region)) => self.need(e, region),
            Task::Function { e, body, region } => self.function(e, body, region),
            Task::EndFunction => {
                let b = self.builders.pop().expect("it was begun");
                self.c.functions[b.function as usize] = Some(finish(b.draft));
                self.made.insert(b.of, Made { function: b.function, captures: b.captures });
            }
            Task::Closure(e, want) => {
                let (function, captures) = self.captures(e)?;
                if captures.is_empty() {
                    let operand = self.c.function_value(function);
                    self.deliver(operand, want);
                } else {
                    self.result(e, want, |dst| Instr::Closure { dst, function, captures });
                }
            }
            Task::Forget => drop(self.pop()),
            Task::Delay(e, home) => {
                let (function, captures) = self.captures(e)?;
                let dst = self.register();
                self.emit(Instr::Delay { dst, function, captures });
                let (function, operand) = (self.now().serial, Operand::Copy(dst));
                self.known.insert(Key::Value(e, home), Known { function, operand, delayed: true });
            }
        }
        Ok(())
    }

    /// The function that was made of an expression, and what it captures here.
    fn captures(&mut self, e: ExprId) -> Result<(u32, Box<[Operand]>), Refused> {
        let made = &self.made[&e];
        let function = made.function;
        let keys = made.captures.clone();
        let captures = keys.into_iter().map(|k| self.resolve(k, e)).collect::<Result<_, _>>()?;
        Ok((function, captures))
    }

    /// Makes a value known, or delayed, before regions that may need it are entered.
    fn need(&mut self, e: ExprId, region: RegionId) {
        if self.known.contains_key(&Key::Value(e, region)) {
            return;
        }
        let home = self.plan.home(e, region);
        match home.delayed {
            Some(inner) if !home.early => {
                self.tasks.push(Task::Delay(e, region));
                self.tasks.push(Task::Function { e, body: e, region: inner });
                self.tasks.push(Task::Needs(inner));
            }
            _ => {
                self.tasks.push(Task::Forget);
                self.tasks.push(Task::Eval(e, region, Want::Operand));
            }
        }
    }

    /// Makes a function of its own, unless it is made.
    fn function(&mut self, e: ExprId, body: ExprId, region: RegionId) {
        if self.made.contains_key(&e) {
            return;
        }
        let function = self.c.reserve();
        let name = match (self.plan.names(e).first(), &self.m[e]) {
            (Some(v), _) => self.m.var(*v).name.clone(),
            (None, Expr::Func(_)) => "closure".into(),
            (None, _) => "delayed".into(),
        };
        self.begin(e, function, name);
        self.tasks.push(Task::EndFunction);
        self.tasks.push(match e == body {
            // The expression itself, which is not asked for but computed.
            true => Task::Compute(e, region, Want::Return),
            false => Task::Eval(body, region, Want::Return),
        });
    }

    fn eval(&mut self, e: ExprId, region: RegionId, want: Want) -> Result<(), Refused> {
        let m = self.m;
        let leaf = match &m[e] {
            Expr::Var(v) => Some(self.resolve(Key::Var(*v), e)?),
            Expr::Constant(t) => Some(self.c.tensor(e, t)),
            Expr::Global(name) => {
                let function = self.c.global(name);
                Some(self.c.function_value(function))
            }
            Expr::Constructor(name) => Some(self.c.constructor_value(e, name)),
            Expr::Op(op) => {
                let message = format!("the operator `{}` is used as a value", op.op().name());
                let help = "the pass `EtaExpand` makes functions of such operators";
                return Err(Diagnostic::new(message).at(m.span(e).cloned()).help(help).into());
            }
            Expr::Func(f) if is_kernel(f) => {
                let function = self.c.kernel_function(e);
                Some(self.c.function_value(function))
            }
            Expr::Func(f) => {
                let inner = self.plan.owned(e)[0];
                self.tasks.push(Task::Closure(e, want));
                self.tasks.push(Task::Function { e, body: f.body, region: inner });
                self.tasks.push(Task::Needs(inner));
                return Ok(());
            }
            _ => None,
        };
        if let Some(operand) = leaf {
            self.deliver(operand, want);
            return Ok(());
        }
        let home = self.plan.home(e, region);
        let key = Key::Value(e, home.region);
        if let Some(Known { delayed, .. }) = self.known.get(&key).copied() {
            let src = self.resolve(key, e)?;
            match delayed {
                true => self.result(e, want, |dst| Instr::Force { dst, src }),
                false => self.deliver(src, want),
            }
            return Ok(());
        }
        let inner = home.delayed.unwrap_or(home.region);
        // Nothing of the function asks for a result again that it returns.
        if home.shared && !matches!(want, Want::Return) {
            self.tasks.push(Task::Keep(e, home.region, want));
            self.tasks.push(Task::Compute(e, inner, Want::Operand));
        } else {
            self.tasks.push(Task::Compute(e, inner, want));
        }
        if home.delayed.is_some() {
            self.tasks.push(Task::Needs(inner));
        }
        Ok(())
    }

    fn eval_all(&mut self, es: &[ExprId], region: RegionId) {
        self.tasks.extend(es.iter().rev().map(|&e| Task::Eval(e, region, Want::Operand)));
    }

    /// Evaluates an expression that is not a leaf, wherever it is shared.
    fn compute(&mut self, e: ExprId, region: RegionId, want: Want) -> Result<(), Refused> {
        let m = self.m;
        match &m[e] {
            Expr::Call { callee, args, .. } => {
                if let Expr::Op(op) = m[*callee] {
                    let message =
                        format!("the operator `{}` is called outside of a primitive function", op.op().name());
                    let help = "the pass `FuseOps` makes primitive functions";
                    return Err(Diagnostic::new(message).at(m.span(e).cloned()).help(help).into());
                }
                self.tasks.push(Task::Finish(e, want));
                self.eval_all(args, region);
                if !self.is_static(*callee) {
                    self.tasks.push(Task::Eval(*callee, region, Want::Operand));
                }
            }
            Expr::Tuple(fields) => {
                self.tasks.push(Task::Finish(e, want));
                self.eval_all(fields, region);
            }
            Expr::Proj(part, _) | Expr::RefNew(part) | Expr::RefRead(part) => {
                self.tasks.push(Task::Finish(e, want));
                self.eval_all(&[*part], region);
            }
            Expr::RefWrite(cell, value) => {
                self.tasks.push(Task::Finish(e, want));
                self.eval_all(&[*cell, *value], region);
            }
            Expr::Let { value, .. } => {
                self.tasks.push(Task::Bind(e, region, want));
                self.eval_all(&[*value], region);
            }
            Expr::If { cond, .. } => {
                self.tasks.push(Task::Branch(e, want));
                self.enter_arms(e);
                self.eval_all(&[*cond], region);
            }
            Expr::Match { data, .. } => {
                self.tasks.push(Task::Match(e, want));
                self.enter_arms(e);
                self.eval_all(&[*data], region);
            }
            _ => unreachable!("leaves and functions are not computed"),
        }
        Ok(())
    }

    fn enter_arms(&mut self, e: ExprId) {
        self.tasks.extend(self.plan.owned(e).iter().rev().map(|&r| Task::Needs(r)));
    }

    /// Whether what is called is known.
    fn is_static(&self, callee: ExprId) -> bool {
        matches!(self.m[callee], Expr::Global(_) | Expr::Constructor(_)) || kernel(self.m, callee).is_some()
    }

    fn finish(&mut self, e: ExprId, want: Want) {
        let m = self.m;
        match &m[e] {
            Expr::Call { callee, args, .. } => {
                let args = self.pop_many(args.len());
                self.call(e, *callee, args, want);
            }
            Expr::Tuple(fields) if fields.is_empty() => {
                let unit = self.c.unit();
                self.deliver(unit, want);
            }
            Expr::Tuple(fields) => {
                let fields = self.pop_many(fields.len());
                self.result(e, want, |dst| Instr::Tuple { dst, fields });
            }
            Expr::Proj(_, index) => {
                let src = self.pop();
                self.result(e, want, |dst| Instr::Field { dst, src, index: *index as u32 });
            }
            Expr::RefNew(_) => {
                let value = self.pop();
                self.result(e, want, |dst| Instr::RefNew { dst, value });
            }
            Expr::RefRead(_) => {
                let cell = self.pop();
                self.result(e, want, |dst| Instr::RefRead { dst, cell });
            }
            Expr::RefWrite(..) => {
                let value = self.pop();
                let cell = self.pop();
                self.emit(Instr::RefWrite { cell, value });
                let unit = self.c.unit();
                self.deliver(unit, want);
            }
            _ => unreachable!("only what has parts is finished"),
        }
    }

    fn call(&mut self, e: ExprId, callee: ExprId, args: Box<[Operand]>, want: Want) {
        let m = self.m;
        if let Some(func) = kernel(m, callee) {
            let kernel = self.c.kernel(func);
            return self.result(e, want, |dst| Instr::Invoke { dst, kernel, args });
        }
        let tail = matches!(want, Want::Return);
        match &m[callee] {
            Expr::Constructor(name) => {
                let (_, tag) = m.constructor(name).expect("verified: constructors exist");
                match args.is_empty() {
                    true => {
                        let value = self.c.nullary(tag as u32);
                        self.deliver(value, want);
                    }
                    false => self.result(e, want, |dst| Instr::Adt { dst, tag: tag as u32, fields: args }),
                }
            }
            Expr::Global(name) => {
                let function = self.c.global(name);
                match tail {
                    true => self.emit_at(e, Instr::TailCall { function, args }),
                    false => self.result(e, want, |dst| Instr::Call { dst, function, args }),
                }
            }
            _ => {
                let callee = self.pop();
                match tail {
                    true => self.emit_at(e, Instr::TailCallClosure { callee, args }),
                    false => self.result(e, want, |dst| Instr::CallClosure { dst, callee, args }),
                }
            }
        }
    }
}
