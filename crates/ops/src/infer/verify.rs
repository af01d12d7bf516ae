//! Whether a module hangs together: what every later phase may rely on.

use hashbrown::{HashMap, HashSet};

use crate::{
    diag::{Diagnostic, Refused},
    ir::{Expr, ExprId, Module, Pattern, Type, VarId, children, free_vars},
};

/// Patterns and annotated types nested deeper than this are refused: what walks them recurses.
pub const MAX_NESTING: usize = 1100;

/// A type is made of at most so many types, each counted wherever it stands: a tuple of two of itself, again and again, would soon have more
/// tensors than anything could hold.
pub const MAX_PARTS: usize = 1 << 16;

/// The most complaints that one refusal holds.
const MAX_COMPLAINTS: usize = 20;

/// Checks what types say nothing of: every variable is bound once and used in its scope; globals, constructors and data
/// types exist; constructor patterns have as many fields as the constructor; types and patterns are of bounded depth.
///
/// The complaints of a refusal are in the order of the module's functions.
pub fn verify(m: &Module) -> Result<(), Refused> {
    let mut v = Verifier {
        m,
        bound: HashSet::new(),
        open: HashSet::new(),
        first_seen: HashMap::new(),
        free: HashMap::new(),
        scopes: Vec::new(),
        open_scopes: HashSet::from([0]),
        next_scope: 1,
        complaints: Vec::new(),
    };
    for adt in m.adts() {
        for field in adt.constructors.iter().flat_map(|c| &c.fields) {
            v.check_type(field, None);
        }
    }
    for (_, root) in m.functions() {
        v.walk(root);
    }
    match v.complaints.is_empty() {
        true => Ok(()),
        false => Err(Refused(v.complaints)),
    }
}

/// A step of the walk.
enum Step {
    Enter(ExprId),
    /// Binds variables for what follows, until the scope is left.
    Bind(Vec<VarId>, ExprId),
    Unbind(Vec<VarId>),
}

struct Verifier<'a> {
    m: &'a Module,
    /// Variables that some binder has bound, open or not.
    bound: HashSet<VarId>,
    /// Variables in scope.
    open: HashSet<VarId>,
    /// The innermost scope in which a shared expression was met first. While it is open, so are all its variables.
    first_seen: HashMap<ExprId, u32>,
    free: HashMap<ExprId, Vec<VarId>>,
    scopes: Vec<u32>,
    open_scopes: HashSet<u32>,
    next_scope: u32,
    complaints: Vec<Diagnostic>,
}

impl Verifier<'_> {
    fn complain(&mut self, at: Option<ExprId>, message: String) {
        if self.complaints.len() < MAX_COMPLAINTS {
            self.complaints.push(Diagnostic::new(message).at(at.and_then(|e| self.m.span(e)).cloned()));
        }
    }

    fn walk(&mut self, root: ExprId) {
        let mut steps = vec![Step::Enter(root)];
        while let Some(step) = steps.pop() {
            match step {
                Step::Enter(e) => self.enter(e, &mut steps),
                Step::Bind(vars, at) => self.bind(&vars, at),
                Step::Unbind(vars) => {
                    for v in vars {
                        self.open.remove(&v);
                    }
                    let scope = self.scopes.pop().expect("as many scopes closed as opened");
                    self.open_scopes.remove(&scope);
                }
            }
        }
    }

    fn bind(&mut self, vars: &[VarId], at: ExprId) {
        self.scopes.push(self.next_scope);
        self.open_scopes.insert(self.next_scope);
        self.next_scope += 1;
        for &v in vars {
            if !self.bound.insert(v) {
                self.complain(Some(at), format!("variable `%{}` is bound twice", self.m.var(v).name));
            }
            self.open.insert(v);
            if let Some(ty) = self.m.var(v).ty.clone() {
                self.check_type(&ty, Some(at));
            }
        }
    }

    fn enter(&mut self, e: ExprId, steps: &mut Vec<Step>) {
        let m = self.m;
        let scope = self.scopes.last().copied().unwrap_or(0);
        if let Expr::Var(v) = m[e] {
            if !self.open.contains(&v) {
                self.complain(Some(e), format!("variable `%{}` is used outside of its scope", m.var(v).name));
            }
            return;
        }
        match self.first_seen.get(&e) {
            None => drop(self.first_seen.insert(e, scope)),
            Some(s) if self.open_scopes.contains(s) => return,
            Some(_) => {
                let free = self.free.entry(e).or_insert_with(|| free_vars(m, e)).clone();
                for v in free.into_iter().filter(|v| !self.open.contains(v)).collect::<Vec<_>>() {
                    let name = &m.var(v).name;
                    self.complain(Some(e), format!("variable `%{name}` is used outside of its scope"));
                }
                return;
            }
        }
        match &m[e] {
            Expr::Global(name) if m.function_id(name).is_none() => {
                let near = crate::diag::nearest(name, m.functions().map(|(n, _)| n.as_str()));
                self.complain(Some(e), format!("there is no function `@{name}`{}", did_you_mean(near)));
            }
            Expr::Constructor(name) if m.constructor(name).is_none() => {
                self.complain(Some(e), format!("there is no constructor `{name}`"));
            }
            Expr::Call { type_args, .. } => {
                for t in type_args {
                    self.check_type(t, Some(e));
                }
                push_children(m, e, steps);
            }
            Expr::Let { var, value, body } => {
                steps.push(Step::Unbind(vec![*var]));
                if matches!(m[*value], Expr::Func(_)) {
                    // A function may call itself by the name that it is bound to.
                    steps.extend([Step::Enter(*body), Step::Enter(*value), Step::Bind(vec![*var], e)]);
                } else {
                    steps.extend([Step::Enter(*body), Step::Bind(vec![*var], e), Step::Enter(*value)]);
                }
            }
            Expr::Func(f) => {
                if let Some(ret) = &f.ret {
                    self.check_type(ret, Some(e));
                }
                steps.extend([Step::Unbind(f.params.clone()), Step::Enter(f.body), Step::Bind(f.params.clone(), e)]);
            }
            Expr::Match { data, clauses, .. } => {
                for c in clauses.iter().rev() {
                    if self.check_pattern(&c.pattern, e) {
                        let vars = c.pattern.vars();
                        steps.extend([Step::Unbind(vars.clone()), Step::Enter(c.body), Step::Bind(vars, e)]);
                    }
                }
                steps.push(Step::Enter(*data));
            }
            _ => push_children(m, e, steps),
        }
    }

    fn check_pattern(&mut self, pattern: &Pattern, at: ExprId) -> bool {
        let before = self.complaints.len();
        let mut todo = vec![(pattern, 1)];
        while let Some((p, depth)) = todo.pop() {
            if depth > MAX_NESTING {
                self.complain(Some(at), format!("a pattern is nested more than {MAX_NESTING} deep"));
                return false;
            }
            match p {
                Pattern::Wildcard | Pattern::Var(_) => {}
                Pattern::Tuple(ps) => todo.extend(ps.iter().map(|p| (p, depth + 1))),
                Pattern::Constructor(name, ps) => {
                    match self.m.constructor(name) {
                        None => self.complain(Some(at), format!("there is no constructor `{name}`")),
                        Some((adt, tag)) if adt.constructors[tag].fields.len() != ps.len() => {
                            let n = adt.constructors[tag].fields.len();
                            let found = ps.len();
                            self.complain(
                                Some(at),
                                format!("constructor `{name}` has {n} fields, but the pattern has {found}"),
                            );
                        }
                        Some(_) => {}
                    }
                    todo.extend(ps.iter().map(|p| (p, depth + 1)));
                }
            }
        }
        self.complaints.len() == before
    }

    fn check_type(&mut self, ty: &Type, at: Option<ExprId>) {
        let mut todo = vec![(ty, 1)];
        while let Some((t, depth)) = todo.pop() {
            if depth > MAX_NESTING {
                return self.complain(at, format!("a type is nested more than {MAX_NESTING} deep"));
            }
            match t {
                Type::Tensor(t) if !t.is_sensible() => {
                    return self
                        .complain(at, format!("{t} has a negative extent, or more elements than memory can hold"));
                }
                Type::Tensor(_) | Type::Var(_) | Type::Hole(_) => {}
                Type::Tuple(fields) => todo.extend(fields.iter().map(|t| (t, depth + 1))),
                Type::Func(f) => todo.extend(f.params.iter().chain([&f.ret]).map(|t| (t, depth + 1))),
                Type::Ref(t) => todo.push((t, depth + 1)),
                Type::Adt(name, args) => {
                    match self.m.adt(name) {
                        None => {
                            let near = crate::diag::nearest(name, self.m.adts().iter().map(|a| a.name.as_str()));
                            self.complain(at, format!("there is no type `{name}`{}", did_you_mean(near)));
                        }
                        Some(adt) if adt.params.len() != args.len() => {
                            let (n, found) = (adt.params.len(), args.len());
                            self.complain(at, format!("type `{name}` has {n} parameters, but is given {found}"));
                        }
                        Some(_) => {}
                    }
                    todo.extend(args.iter().map(|t| (t, depth + 1)));
                }
            }
        }
    }
}

fn push_children(m: &Module, e: ExprId, steps: &mut Vec<Step>) {
    let from = steps.len();
    children(&m[e], |c| steps.push(Step::Enter(c)));
    steps[from..].reverse();
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
}
