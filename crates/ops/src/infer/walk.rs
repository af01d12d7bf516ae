//! The walk over a module's functions that gives every expression a term and relates the terms.

use hashbrown::{HashMap, HashSet};

use super::{
    relate::Pending,
    solve::{FuncTerm, Solver, Term, Ty},
};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{Attrs, Expr, ExprId, Module, Name, Pattern, Type, VarId, children, reachable},
    tensor::DType,
};

/// The most complaints that one refusal holds.
const MAX_COMPLAINTS: usize = 20;

pub(super) struct Infer<'a> {
    m: &'a Module,
    pub(super) solver: Solver,
    types: Vec<Option<Ty>>,
    vars: Vec<Option<Ty>>,
    /// The terms of functions whose bodies may not have been looked at yet, with the term of the function as a value.
    funcs: HashMap<ExprId, (FuncTerm, Ty)>,
    pub(super) pending: Vec<Pending>,
    /// The number of solved holes when all that waits was last tried.
    pub(super) solved_at: Option<usize>,
    /// The expression looked at, for complaints about what it caused elsewhere.
    pub(super) current: Option<ExprId>,
    complaints: Vec<Diagnostic>,
}

/// A step of the walk.
enum Step {
    Enter(ExprId),
    /// The value of a `let` is done: bind the variable.
    Bind(ExprId),
    /// The data of a `match` is done: bind the variables of a clause.
    Clause(ExprId, usize),
    Exit(ExprId),
}

impl<'a> Infer<'a> {
    pub(super) fn new(m: &'a Module) -> Infer<'a> {
        Infer {
            m,
            solver: Solver::default(),
            types: vec![None; m.len()],
            vars: vec![None; m.var_count()],
            funcs: HashMap::new(),
            pending: Vec::new(),
            solved_at: None,
            current: None,
            complaints: Vec::new(),
        }
    }

    pub(super) fn complain(&mut self, at: ExprId, d: Diagnostic) {
        if self.complaints.len() < MAX_COMPLAINTS {
            self.complaints.push(d.at(self.m.span(at).cloned()));
        }
    }

    /// All functions of the module, callees before callers.
    pub(super) fn functions(&mut self) {
        let m = self.m;
        let named: HashMap<&Name, ExprId> = m.functions().collect();
        for (_, f) in m.functions() {
            self.func(f);
        }
        let calls = |f: ExprId| -> Vec<ExprId> {
            let globals = reachable(m, [f]).into_iter().filter_map(|e| match &m[e] {
                Expr::Global(name) => named.get(name).copied(),
                _ => None,
            });
            globals.collect()
        };
        let mut seen = HashSet::new();
        let mut stack: Vec<(ExprId, bool)> = m.functions().map(|(_, f)| (f, false)).collect();
        stack.reverse();
        while let Some((f, called_ones_done)) = stack.pop() {
            if called_ones_done {
                self.walk(f);
                self.solve_all();
            } else if seen.insert(f) {
                stack.push((f, true));
                stack.extend(calls(f).into_iter().map(|c| (c, false)));
            }
        }
    }

    /// The types of all expressions and variables, or what is wrong.
    pub(super) fn finish(mut self) -> Result<(Vec<Type>, Vec<Type>), Refused> {
        let m = self.m;
        let mut types = vec![Type::Hole(0); m.len()];
        let mut vars = vec![Type::Hole(0); m.var_count()];
        if self.complaints.is_empty() {
            self.fill_parameters();
            let mut unknown_vars = HashSet::new();
            for (i, var) in self.vars.clone().into_iter().enumerate() {
                let Some(var) = var else { continue };
                match self.solver.complete(var) {
                    Ok(Some(ty)) => vars[i] = ty,
                    Ok(None) => drop(unknown_vars.insert(VarId(i as u32))),
                    // The expressions of that type are complained about below.
                    Err(_) => {}
                }
            }
            self.complain_of_unknown(&unknown_vars);
            for id in m.ids() {
                let Some(ty) = self.types[id.index()] else { continue };
                match self.solver.complete(ty) {
                    Ok(Some(ty)) => types[id.index()] = ty,
                    // A constructor that is called: the call has a type, of its own instance.
                    Ok(None) if matches!(m[id], Expr::Constructor(_)) => {}
                    Ok(None) if self.complaints.is_empty() => {
                        let found = self.solver.partial(ty);
                        let message =
                            format!("the type of this expression can't be inferred: {found} is all that is known");
                        self.complain(id, Diagnostic::new(message));
                    }
                    Ok(None) => {}
                    Err(misfit) if self.complaints.is_empty() => drop(self.complain_misfit::<()>(id, misfit)),
                    Err(_) => {}
                }
            }
        }
        match self.complaints.is_empty() {
            true => Ok((types, vars)),
            false => Err(Refused(self.complaints)),
        }
    }

    /// Gives values of data types a type where nothing says what they would hold. Parameters of functions should be annotated
    /// where nothing tells their type: these stay open.
    fn fill_parameters(&mut self) {
        let (m, mut open) = (self.m, HashSet::new());
        for id in m.ids() {
            let Expr::Func(f) = &m[id] else { continue };
            for ty in f.params.iter().filter_map(|p| self.vars[p.0 as usize]).collect::<Vec<_>>() {
                open.insert(self.solver.root(ty));
            }
        }
        for id in m.ids() {
            if let (Some(ty), Expr::Call { callee, .. }) = (self.types[id.index()], &m[id])
                && matches!(m[*callee], Expr::Constructor(_))
            {
                self.solver.fill_parameters(ty, &open);
            }
        }
    }

    fn complain_of_unknown(&mut self, vars: &HashSet<VarId>) {
        if vars.is_empty() {
            return;
        }
        let m = self.m;
        for id in m.ids() {
            let Expr::Func(f) = &m[id] else { continue };
            for p in f.params.iter().filter(|p| vars.contains(*p)) {
                let name = &m.var(*p).name;
                let d = Diagnostic::new(format!("the type of parameter `%{name}` can't be inferred"));
                self.complain(id, d.help("annotate it"));
            }
        }
    }

    /// The term of a function, made from its annotations where it has not been met.
    fn func(&mut self, e: ExprId) -> (FuncTerm, Ty) {
        if let Some(f) = self.funcs.get(&e) {
            return f.clone();
        }
        let f = self.m.func(e);
        let params = f.params.iter().map(|&p| self.var(p)).collect();
        let ret = match &f.ret {
            Some(ty) => self.solver.import(ty),
            None => self.solver.hole(),
        };
        let term = FuncTerm { type_params: f.type_params.clone(), params, ret };
        let ty = self.solver.add(Term::Func(term.clone()));
        self.funcs.insert(e, (term.clone(), ty));
        (term, ty)
    }

    /// The term of a variable, made from its annotation where it has not been met.
    fn var(&mut self, v: VarId) -> Ty {
        if let Some(ty) = self.vars[v.0 as usize] {
            return ty;
        }
        let ty = match &self.m.var(v).ty {
            Some(ty) => self.solver.import(ty),
            None => self.solver.hole(),
        };
        self.vars[v.0 as usize] = Some(ty);
        ty
    }

    fn ty(&self, e: ExprId) -> Ty {
        self.types[e.index()].expect("children are done before their parents")
    }

    fn walk(&mut self, root: ExprId) {
        let m = self.m;
        let mut steps = vec![Step::Enter(root)];
        while let Some(step) = steps.pop() {
            match step {
                Step::Enter(e) if self.types[e.index()].is_none() => {
                    let from = steps.len();
                    match &m[e] {
                        Expr::Func(f) => {
                            self.func(e);
                            steps.push(Step::Enter(f.body));
                        }
                        Expr::Let { var, value, body } => {
                            if matches!(m[*value], Expr::Func(_)) && m.var(*var).ty.is_none() {
                                // It may call itself by that name.
                                let (_, ty) = self.func(*value);
                                self.vars[var.0 as usize].get_or_insert(ty);
                            }
                            steps.extend([Step::Enter(*value), Step::Bind(e), Step::Enter(*body)]);
                        }
                        Expr::Match { data, clauses, .. } => {
                            steps.push(Step::Enter(*data));
                            for (i, c) in clauses.iter().enumerate() {
                                steps.extend([Step::Clause(e, i), Step::Enter(c.body)]);
                            }
                        }
                        expr => children(expr, |c| steps.push(Step::Enter(c))),
                    }
                    steps.push(Step::Exit(e));
                    steps[from..].reverse();
                    // The order of work is the written one, with the exit last: it is at the bottom.
                }
                Step::Enter(_) => {}
                Step::Bind(e) => {
                    self.current = Some(e);
                    self.bind_let(e);
                }
                Step::Clause(e, i) => {
                    self.current = Some(e);
                    if let Expr::Match { data, clauses, .. } = &m[e] {
                        let data = self.ty(*data);
                        self.pattern(&clauses[i].pattern, data, e);
                    }
                }
                Step::Exit(e) => {
                    self.current = Some(e);
                    let ty = self.exit(e);
                    self.types[e.index()] = Some(ty);
                }
            }
        }
    }

    fn bind_let(&mut self, e: ExprId) {
        let Expr::Let { var, value, .. } = &self.m[e] else { return };
        let found = self.ty(*value);
        if self.m.var(*var).ty.is_none() && self.vars[var.0 as usize].is_none() {
            self.vars[var.0 as usize] = Some(found);
            return;
        }
        let place = self.var(*var);
        self.put(found, place, *value, |m| format!("the value of `%{}`", m.var(*var).name));
    }

    /// Lets a type flow into a place, or complains that `what` does not fit.
    fn put(&mut self, found: Ty, place: Ty, at: ExprId, what: impl Fn(&Module) -> String) {
        if let Err(misfit) = self.solver.assign(found, place) {
            let (found, wanted) = (self.solver.partial(found), self.solver.partial(place));
            let what = what(self.m);
            self.complain_flow(at, misfit, &what, &found, &wanted);
        }
    }

    fn pattern(&mut self, pattern: &Pattern, data: Ty, at: ExprId) {
        let mut todo = vec![(pattern, data)];
        while let Some((pattern, ty)) = todo.pop() {
            match pattern {
                Pattern::Wildcard => {}
                Pattern::Var(v) => match self.m.var(*v).ty.is_some() {
                    true => {
                        let place = self.var(*v);
                        self.put(ty, place, at, |m| format!("what `%{}` is bound to", m.var(*v).name));
                    }
                    false => self.vars[v.0 as usize] = Some(ty),
                },
                Pattern::Constructor(name, fields) => {
                    let (f, _) = self.solver.constructor(self.m, name);
                    self.put(ty, f.ret, at, |_| format!("what pattern `{name}` looks at"));
                    todo.extend(fields.iter().zip(f.params));
                }
                Pattern::Tuple(fields) => {
                    let holes: Vec<Ty> = fields.iter().map(|_| self.solver.hole()).collect();
                    let tuple = self.solver.add(Term::Tuple(holes.clone()));
                    self.put(ty, tuple, at, |_| "what a tuple pattern looks at".into());
                    todo.extend(fields.iter().zip(holes));
                }
            }
        }
    }

    fn exit(&mut self, e: ExprId) -> Ty {
        let m = self.m;
        match &m[e] {
            Expr::Var(v) => self.var(*v),
            Expr::Global(name) => self.func(m.function_id(name).expect("verified: globals exist")).1,
            Expr::Constant(t) => {
                let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
                self.solver.import(&Type::tensor(&shape, t.dtype()))
            }
            Expr::Op(op) => self.solver.add(Term::Op(*op)),
            Expr::Constructor(name) => {
                let (f, _) = self.solver.constructor(m, name);
                match f.params.is_empty() {
                    true => f.ret,
                    false => self.solver.add(Term::Func(f)),
                }
            }
            Expr::Call { callee, args, attrs, type_args } => self.call(e, *callee, args, attrs, type_args),
            Expr::Tuple(fields) => {
                let fields = fields.iter().map(|&f| self.ty(f)).collect();
                self.solver.add(Term::Tuple(fields))
            }
            Expr::Proj(tuple, index) => {
                let (tuple, out) = (self.ty(*tuple), self.solver.hole());
                self.relate(Pending::Field { tuple, index: *index, out, at: e });
                out
            }
            Expr::Let { body, .. } => self.ty(*body),
            Expr::If { cond, then, otherwise } => {
                let scalar = self.solver.import(&Type::tensor(&[], DType::Bool));
                self.put(self.ty(*cond), scalar, *cond, |_| "the condition of `if`".into());
                // A fresh place, not the first branch's type: the other branch may make extents unknown.
                let out = self.solver.hole();
                for found in self.alternatives(&[*then, *otherwise]) {
                    if let Err(misfit) = self.solver.flow(found, out) {
                        let (found, wanted) = (self.solver.partial(found), self.solver.partial(out));
                        self.complain_flow(e, misfit, "the `else` branch", &found, &wanted);
                    }
                }
                out
            }
            Expr::Func(f) => {
                let (term, ty) = self.func(e);
                let body = self.ty(f.body);
                self.put(body, term.ret, f.body, |_| "the function's result".into());
                ty
            }
            Expr::Match { clauses, .. } => {
                let out = self.solver.hole();
                let bodies: Vec<ExprId> = clauses.iter().map(|c| c.body).collect();
                for (c, found) in clauses.iter().zip(self.alternatives(&bodies)) {
                    if let Err(misfit) = self.solver.flow(found, out) {
                        let (found, wanted) = (self.solver.partial(found), self.solver.partial(out));
                        self.complain_flow(c.body, misfit, "the result of a clause", &found, &wanted);
                    }
                }
                out
            }
            Expr::RefNew(value) => {
                let (value, content) = (self.ty(*value), self.solver.hole());
                // Later writes may make extents unknown.
                if let Err(misfit) = self.solver.flow(value, content) {
                    self.complain_misfit::<()>(e, misfit);
                }
                self.solver.add(Term::Ref(content))
            }
            Expr::RefRead(cell) => self.content(*cell),
            Expr::RefWrite(cell, value) => {
                let (content, found) = (self.content(*cell), self.ty(*value));
                self.put(found, content, *value, |_| "the value written".into());
                self.solver.add(Term::Tuple(Vec::new()))
            }
        }
    }

    fn content(&mut self, cell: ExprId) -> Ty {
        let found = self.ty(cell);
        if let Term::Ref(content) = self.solver.term(found) {
            return *content;
        }
        let content = self.solver.hole();
        let wanted = self.solver.add(Term::Ref(content));
        self.put(found, wanted, cell, |_| "what is read or written".into());
        content
    }

    /// The types of what may be one expression's result. Where some are functions of one type and others are polymorphic, these
    /// are taken for that type.
    fn alternatives(&mut self, es: &[ExprId]) -> Vec<Ty> {
        let mut types: Vec<Ty> = es.iter().map(|&e| self.ty(e)).collect();
        let mut functions = Vec::new();
        for (i, &ty) in types.iter().enumerate() {
            if let Term::Func(f) = self.solver.term(ty) {
                functions.push((i, f.clone()));
            }
        }
        if functions.iter().any(|(_, f)| f.type_params.is_empty()) {
            for (i, f) in functions.into_iter().filter(|(_, f)| !f.type_params.is_empty()) {
                let instance = self.solver.instance(&f.type_params);
                match self.solver.instantiate(&f, &instance) {
                    Ok(inner) => types[i] = self.solver.add(Term::Func(inner)),
                    Err(misfit) => {
                        self.complain_misfit::<()>(es[i], misfit);
                    }
                }
            }
        }
        types
    }

    fn call(&mut self, e: ExprId, callee: ExprId, args: &[ExprId], attrs: &Attrs, type_args: &[Type]) -> Ty {
        let m = self.m;
        let arg_types: Vec<Ty> = args.iter().map(|&a| self.ty(a)).collect();
        let found = self.ty(callee);
        let (f, type_params) = match (&m[callee], self.solver.term(found).clone()) {
            (_, Term::Op(op)) => {
                let out = self.solver.hole();
                let complete = match m[callee] {
                    Expr::Op(_) => Some(attrs.clone()),
                    _ => self.op_attrs(op, attrs, e),
                };
                if let Some(attrs) = complete
                    && self.op_takes(op, args.len(), e)
                {
                    self.relate(Pending::Relation { op, attrs, args: arg_types, out, at: e });
                }
                return out;
            }
            (Expr::Constructor(name), _) => {
                let (f, instance) = self.solver.constructor(m, name);
                let params = &m.constructor(name).expect("verified: constructors exist").0.params;
                (f, params.iter().map(|p| instance[p].0).collect::<Vec<_>>())
            }
            (_, Term::Func(f)) => {
                let instance = self.solver.instance(&f.type_params);
                match self.solver.instantiate(&f, &instance) {
                    Ok(inner) => (inner, f.type_params.iter().map(|p| instance[p].0).collect()),
                    Err(misfit) => {
                        self.complain_misfit::<()>(e, misfit);
                        return self.solver.hole();
                    }
                }
            }
            (_, Term::Hole) => {
                let f = FuncTerm {
                    type_params: Vec::new(),
                    params: args.iter().map(|_| self.solver.hole()).collect(),
                    ret: self.solver.hole(),
                };
                let wanted = self.solver.add(Term::Func(f.clone()));
                self.put(found, wanted, callee, |_| "what is called".into());
                (f, Vec::new())
            }
            _ => {
                let found = self.solver.partial(found);
                self.complain(e, Diagnostic::new(format!("{} is {found}, which can't be called", self.name(callee))));
                return self.solver.hole();
            }
        };
        if !type_args.is_empty() {
            if type_args.len() != type_params.len() {
                let (n, found, name) = (type_params.len(), type_args.len(), self.name(callee));
                self.complain(e, Diagnostic::new(format!("{name} has {n} type parameters, but is given {found}")));
            }
            for (given, &param) in type_args.iter().zip(&type_params) {
                let given = self.solver.import(given);
                self.put(given, param, e, |_| "a type argument".into());
            }
        }
        if f.params.len() != args.len() {
            let (n, found, name) = (f.params.len(), args.len(), self.name(callee));
            let s = if n == 1 { "" } else { "s" };
            self.complain(e, Diagnostic::new(format!("{name} takes {n} argument{s}, but is given {found}")));
            return f.ret;
        }
        for (i, (&found, &place)) in arg_types.iter().zip(&f.params).enumerate() {
            if let Err(misfit) = self.solver.flow(found, place) {
                let (found, wanted) = (self.solver.partial(found), self.solver.partial(place));
                let what = format!("argument {} of {}", i + 1, self.name(callee));
                self.complain_flow(args[i], misfit, &what, &found, &wanted);
            }
        }
        f.ret
    }

    /// An expression that is called, for messages.
    fn name(&self, e: ExprId) -> String {
        match &self.m[e] {
            Expr::Var(v) => format!("`%{}`", self.m.var(*v).name),
            Expr::Global(n) => format!("`@{n}`"),
            Expr::Constructor(n) => format!("constructor `{n}`"),
            _ => "the function".into(),
        }
    }
}
