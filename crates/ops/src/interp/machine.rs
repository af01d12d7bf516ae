//! The machine: a stack of things to do and a stack of values, so that no program overflows the native stack.

use std::rc::{Rc, Weak};

use super::{
    eval_op,
    frame::Frame,
    program::{Place, Program},
    value::{Closure, MutableCell, Value},
};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{AttrValue, Attrs, Expr, ExprId, Name, OpId, Pattern, VarId},
    ops, tensor,
};

/// Called with each operator call's expression, operator, arguments and result.
pub type Observer<'o> = dyn FnMut(ExprId, OpId, &[tensor::Value], &tensor::Value) + 'o;

/// Something to do, mostly with values that are on top of the value stack by then.
enum Task {
    /// Evaluate an expression.
    Eval(Rc<Frame>, ExprId),
    /// Keep the value on top for further uses.
    Keep(Rc<Frame>, Place),
    /// Call what lies below the arguments (or what the expression calls, where that is an operator or constructor).
    Call(ExprId),
    /// Make a tuple of so many values.
    Tuple(usize),
    /// Take a field of the tuple on top.
    Proj(ExprId, usize),
    /// Bind a `let`'s variable and go on with its body.
    Bind(Rc<Frame>, ExprId),
    /// Go on with a branch of an `if`.
    Branch(Rc<Frame>, ExprId),
    /// Go on with a clause of a `match`.
    Match(Rc<Frame>, ExprId),
    RefNew,
    RefRead(ExprId),
    RefWrite(ExprId),
}

pub(super) struct Machine<'p, 'a, 'o> {
    p: &'p Program<'a>,
    top: Rc<Frame>,
    tasks: Vec<Task>,
    values: Vec<Value>,
    observer: Option<&'p mut Observer<'o>>,
    /// Frames that closures were made in, hence may be kept alive by what they hold.
    captured: Vec<Weak<Frame>>,
    prune_at: usize,
}

impl<'p, 'a, 'o> Machine<'p, 'a, 'o> {
    pub(super) fn new(p: &'p Program<'a>, observer: Option<&'p mut Observer<'o>>) -> Machine<'p, 'a, 'o> {
        let top = Frame::new(0, None, p.scopes[0].slots as usize);
        Machine { p, top, tasks: Vec::new(), values: Vec::new(), observer, captured: Vec::new(), prune_at: 1024 }
    }

    /// Calls a function of the module.
    pub(super) fn run(mut self, func: ExprId, args: Vec<Value>) -> Result<Value, Refused> {
        let frame = self.top.clone();
        self.captured.push(Rc::downgrade(&frame));
        self.enter(&Closure { func, frame }, args);
        let result = self.finish();
        // Closures and the frames that keep them hold each other. Unless the result needs them, they go now.
        if result.as_ref().map_or(true, |v| v.flatten().is_some()) {
            self.captured.iter().filter_map(Weak::upgrade).for_each(|f| f.clear());
        }
        result
    }

    fn finish(&mut self) -> Result<Value, Refused> {
        while let Some(task) = self.tasks.pop() {
            self.step(task)?;
        }
        Ok(self.pop())
    }

    fn error(&self, at: ExprId, message: impl Into<String>) -> Refused {
        Diagnostic::new(message).at(self.p.m.span(at).cloned()).into()
    }

    fn pop(&mut self) -> Value {
        self.values.pop().expect("a task comes after the values that it takes")
    }

    fn pop_many(&mut self, n: usize) -> Vec<Value> {
        self.values.split_off(self.values.len() - n)
    }

    fn outer(&self, frame: &Rc<Frame>, scope: u32) -> Rc<Frame> {
        frame.outer(self.p.hops(frame.scope, scope))
    }

    fn closure(&mut self, func: ExprId, frame: Rc<Frame>) -> Value {
        if self.captured.len() >= self.prune_at {
            self.captured.retain(|w| w.strong_count() > 0);
            self.prune_at = 1024.max(2 * self.captured.len());
        }
        if self.captured.last().is_none_or(|w| !std::ptr::eq(w.as_ptr(), Rc::as_ptr(&frame))) {
            self.captured.push(Rc::downgrade(&frame));
        }
        Value::Closure(Closure { func, frame })
    }

    /// Binds a function's parameters and goes on with its body.
    fn enter(&mut self, closure: &Closure, args: Vec<Value>) {
        let f = self.p.m.func(closure.func);
        let scope = self.p.scope_of(closure.func);
        let slots = self.p.scopes[scope as usize].slots as usize;
        let frame = Frame::new(scope, Some(closure.frame.clone()), slots);
        for (&param, arg) in f.params.iter().zip(args) {
            self.bind(&frame, param, arg);
        }
        self.tasks.push(Task::Eval(frame, f.body));
    }

    fn bind(&self, frame: &Rc<Frame>, var: VarId, value: Value) {
        if let Some(place) = self.p.var(var) {
            frame.put(place.slot, value, place.uses);
        }
    }

    fn step(&mut self, task: Task) -> Result<(), Refused> {
        let m = self.p.m;
        match task {
            Task::Eval(frame, e) => self.eval(frame, e)?,
            Task::Keep(frame, place) => {
                let value = self.values.last().expect("the value to keep is on top").clone();
                // This use is one of them.
                let uses = if place.uses == super::frame::FOREVER { place.uses } else { place.uses - 1 };
                frame.put(place.slot, value, uses);
            }
            Task::Call(e) => self.call(e)?,
            Task::Tuple(n) => {
                let fields = self.pop_many(n);
                self.values.push(Value::Tuple(fields.into()));
            }
            Task::Proj(e, i) => {
                let tuple = self.pop();
                match &tuple {
                    Value::Tuple(f) if i < f.as_slice().len() => self.values.push(f.as_slice()[i].clone()),
                    v => return Err(self.error(e, format!("field {i} is taken of {}", v.kind()))),
                }
            }
            Task::Bind(frame, e) => {
                let Expr::Let { var, body, .. } = &m[e] else { return Ok(()) };
                let value = self.pop();
                self.bind(&frame, *var, value);
                self.tasks.push(Task::Eval(frame, *body));
            }
            Task::Branch(frame, e) => {
                let Expr::If { then, otherwise, .. } = &m[e] else { return Ok(()) };
                let cond = match self.pop() {
                    Value::Tensor(t) if t.len() == 1 => t.get_i64(0) != 0,
                    v => return Err(self.error(e, format!("the condition of `if` is {}, not a scalar", v.kind()))),
                };
                self.tasks.push(Task::Eval(frame, if cond { *then } else { *otherwise }));
            }
            Task::Match(frame, e) => {
                let Expr::Match { clauses, .. } = &m[e] else { return Ok(()) };
                let value = self.pop();
                let mut met = Vec::new();
                let Some(clause) = clauses.iter().find(|c| meets(&c.pattern, &value, &mut met)) else {
                    return Err(self.error(e, format!("no clause of `match` meets {}", value.kind())));
                };
                for (var, value) in met {
                    self.bind(&frame, var, value);
                }
                self.tasks.push(Task::Eval(frame, clause.body));
            }
            Task::RefNew => {
                let value = self.pop();
                self.values.push(Value::Ref(MutableCell::new(value)));
            }
            Task::RefRead(e) => match self.pop() {
                Value::Ref(cell) => self.values.push(cell.get()),
                v => return Err(self.error(e, format!("`ref_read` of {}", v.kind()))),
            },
            Task::RefWrite(e) => {
                let value = self.pop();
                match self.pop() {
                    Value::Ref(cell) => cell.set(value),
                    v => return Err(self.error(e, format!("`ref_write` to {}", v.kind()))),
                }
                self.values.push(Value::Tuple(Vec::new().into()));
            }
        }
        Ok(())
    }

    fn eval(&mut self, frame: Rc<Frame>, e: ExprId) -> Result<(), Refused> {
        let m = self.p.m;
        let frame = self.outer(&frame, self.p.home(e));
        if let Some(place) = self.p.shared(e) {
            if let Some(value) = frame.take(place.slot) {
                self.values.push(value);
                return Ok(());
            }
            self.tasks.push(Task::Keep(frame.clone(), place));
        }
        match &m[e] {
            Expr::Var(_) | Expr::Global(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_) | Expr::Func(_) => {
                let value = self.leaf(&frame, e)?;
                self.values.push(value);
            }
            Expr::Call { callee, args, .. } => {
                self.tasks.push(Task::Call(e));
                self.tasks.extend(args.iter().rev().map(|&a| Task::Eval(frame.clone(), a)));
                if !matches!(m[*callee], Expr::Op(_) | Expr::Constructor(_)) {
                    self.tasks.push(Task::Eval(frame, *callee));
                }
            }
            Expr::Tuple(fields) => {
                self.tasks.push(Task::Tuple(fields.len()));
                self.tasks.extend(fields.iter().rev().map(|&f| Task::Eval(frame.clone(), f)));
            }
            Expr::Proj(tuple, i) => self.tasks.extend([Task::Proj(e, *i), Task::Eval(frame, *tuple)]),
            Expr::Let { value, body, .. } => match m[*value] {
                Expr::Func(_) => self.tasks.push(Task::Eval(frame, *body)),
                _ => self.tasks.extend([Task::Bind(frame.clone(), e), Task::Eval(frame, *value)]),
            },
            Expr::If { cond, .. } => self.tasks.extend([Task::Branch(frame.clone(), e), Task::Eval(frame, *cond)]),
            Expr::Match { data, .. } => {
                self.tasks.extend([Task::Match(frame.clone(), e), Task::Eval(frame, *data)]);
            }
            Expr::RefNew(v) => self.tasks.extend([Task::RefNew, Task::Eval(frame, *v)]),
            Expr::RefRead(cell) => self.tasks.extend([Task::RefRead(e), Task::Eval(frame, *cell)]),
            Expr::RefWrite(cell, v) => {
                self.tasks.extend([Task::RefWrite(e), Task::Eval(frame.clone(), *v), Task::Eval(frame, *cell)]);
            }
        }
        Ok(())
    }

    fn leaf(&mut self, frame: &Rc<Frame>, e: ExprId) -> Result<Value, Refused> {
        let m = self.p.m;
        Ok(match &m[e] {
            Expr::Var(v) => {
                if let Some((func, scope)) = self.p.alias(*v) {
                    let frame = self.outer(frame, scope);
                    return Ok(self.closure(func, frame));
                }
                let place = self.p.var(*v).expect("verified: variables are bound");
                let value = self.outer(frame, place.scope).take(place.slot);
                value.ok_or_else(|| {
                    self.error(e, format!("variable `%{}` is used before it is bound", m.var(*v).name))
                })?
            }
            Expr::Global(name) => {
                let func = m.function_id(name).expect("verified: functions exist");
                Value::Closure(Closure { func, frame: self.outer(frame, 0) })
            }
            Expr::Constant(t) => Value::Tensor(t.clone()),
            Expr::Op(op) => Value::Op(*op),
            Expr::Constructor(name) => self.constructor(name),
            Expr::Func(_) => self.closure(e, frame.clone()),
            _ => unreachable!("only leaves are evaluated at once"),
        })
    }

    /// A constructor by itself: without fields, it is its only value.
    fn constructor(&self, name: &Name) -> Value {
        let (adt, tag) = self.p.m.constructor(name).expect("verified: constructors exist");
        match adt.constructors[tag].fields.is_empty() {
            true => Value::Adt(name.clone(), Vec::new().into()),
            false => Value::Constructor(name.clone()),
        }
    }

    fn call(&mut self, e: ExprId) -> Result<(), Refused> {
        let m = self.p.m;
        let Expr::Call { callee, args, attrs, .. } = &m[e] else { return Ok(()) };
        let args = self.pop_many(args.len());
        match &m[*callee] {
            Expr::Op(op) => self.call_op(e, *op, attrs, args),
            Expr::Constructor(name) => {
                self.values.push(Value::Adt(name.clone(), args.into()));
                Ok(())
            }
            _ => match self.pop() {
                Value::Op(op) => {
                    let given: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
                    let attrs = ops::make_attrs(op, &given).map_err(|err| self.error(e, err.to_string()))?;
                    self.call_op(e, op, &attrs, args)
                }
                Value::Constructor(name) => {
                    self.values.push(Value::Adt(name, args.into()));
                    Ok(())
                }
                Value::Closure(c) => {
                    let wanted = m.func(c.func).params.len();
                    if wanted != args.len() {
                        let found = args.len();
                        return Err(self.error(e, format!("a function of {wanted} arguments is given {found}")));
                    }
                    self.enter(&c, args);
                    Ok(())
                }
                v => Err(self.error(e, format!("{} can't be called", v.kind()))),
            },
        }
    }

    fn call_op(&mut self, e: ExprId, op: OpId, attrs: &Attrs, args: Vec<Value>) -> Result<(), Refused> {
        let name = op.op().name();
        // References and functions come through annotations as they are.
        if let [value] = &args[..]
            && ["annotation.compiler_begin", "annotation.compiler_end"].contains(&name)
        {
            self.values.push(value.clone());
            return Ok(());
        }
        let mut tensors = Vec::with_capacity(args.len());
        for arg in args {
            match arg.to_tensors() {
                Some(t) => tensors.push(t),
                None => return Err(self.error(e, format!("`{name}` is given {}", arg.kind()))),
            }
        }
        let out = eval_op(op, attrs, &tensors).map_err(|err| self.error(e, format!("`{name}`: {err}")))?;
        if let Some(observer) = &mut self.observer {
            observer(e, op, &tensors, &out);
        }
        self.values.push(out.into());
        Ok(())
    }
}

/// Whether a value meets a pattern; if so, `met` holds what variables stand for.
fn meets(pattern: &Pattern, value: &Value, met: &mut Vec<(VarId, Value)>) -> bool {
    met.clear();
    let mut todo = vec![(pattern, value.clone())];
    while let Some((pattern, value)) = todo.pop() {
        match (pattern, &value) {
            (Pattern::Wildcard, _) => {}
            (Pattern::Var(v), _) => met.push((*v, value)),
            (Pattern::Constructor(name, ps), Value::Adt(made_by, fields)) if name == made_by => {
                todo.extend(ps.iter().zip(fields.as_slice().iter().cloned()));
            }
            (Pattern::Tuple(ps), Value::Tuple(fields)) => {
                todo.extend(ps.iter().zip(fields.as_slice().iter().cloned()));
            }
            _ => return false,
        }
    }
    true
}
