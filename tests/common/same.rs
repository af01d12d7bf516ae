//! Whether two programs are the same.

use std::collections::HashMap;

use resat::ir::{AdtDef, Dim, Expr, ExprId, Module, Pattern, Type, TypeVarId, VarId};

/// Whether two programs are the same but for the numbers of their expressions: variables and type
/// parameters: same definitions, same sharing, same names.
pub struct Same<'a> {
    a: &'a Module,
    b: &'a Module,
    exprs: HashMap<ExprId, ExprId>,
    back: HashMap<ExprId, ExprId>,
    vars: HashMap<VarId, VarId>,
    type_vars: HashMap<TypeVarId, TypeVarId>,
    todo: Vec<(ExprId, ExprId)>,
}

impl Same<'_> {
    fn new<'a>(a: &'a Module, b: &'a Module) -> Same<'a> {
        let (exprs, back, vars, type_vars) = Default::default();
        Same { a, b, exprs, back, vars, type_vars, todo: Vec::new() }
    }

    /// Compares all definitions; an error says what became what.
    pub fn modules(a: &Module, b: &Module) -> Result<(), String> {
        let functions = |m: &Module| m.functions().map(|(n, f)| (n.clone(), f)).collect::<Vec<_>>();
        let fa = functions(a);
        if fa.len() != b.functions().len() || a.adts().len() != b.adts().len() {
            return Err("numbers of definitions differ".into());
        }
        if a.attrs.as_ref().is_some_and(|x| !x.is_empty()) && a.attrs != b.attrs {
            return Err(format!("attributes {:?} became {:?}", a.attrs, b.attrs));
        }
        // Those who write a file may order types as they like.
        for x in a.adts() {
            let y = b.adt(&x.name).ok_or_else(|| format!("type {} is gone", x.name))?;
            if !Same::new(a, b).adt(x, y) {
                return Err(format!("{x:?} became {y:?}"));
            }
        }
        for (name, ea) in fa {
            let eb = b.function_id(&name).ok_or_else(|| format!("@{name} is gone"))?;
            Same::exprs(a, ea, b, eb).map_err(|e| format!("@{name}: {e}"))?;
        }
        Ok(())
    }

    /// Compares two expressions.
    pub fn exprs(a: &Module, ea: ExprId, b: &Module, eb: ExprId) -> Result<(), String> {
        let mut s = Same::new(a, b);
        s.todo.push((ea, eb));
        while let Some((ea, eb)) = s.todo.pop() {
            s.expr(ea, eb)?;
        }
        Ok(())
    }

    fn expr(&mut self, ea: ExprId, eb: ExprId) -> Result<(), String> {
        let (a, b) = (&self.a[ea], &self.b[eb]);
        let atom = matches!(a, Expr::Var(_) | Expr::Global(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Constructor(_));
        if !atom {
            match (self.exprs.insert(ea, eb), self.back.insert(eb, ea)) {
                (None, None) => {}
                (Some(old), Some(back)) if old == eb && back == ea => return Ok(()),
                _ => return Err(format!("{ea:?} {a:?} is shared otherwise than {eb:?} {b:?}")),
            }
        }
        let mut pairs = Vec::new();
        let same = match (a, b) {
            (Expr::Var(x), Expr::Var(y)) => self.var(*x, *y)?,
            (
                Expr::Call { callee: c, args: x, attrs: r, type_args: t },
                Expr::Call { callee: d, args: y, attrs: s, type_args: u },
            ) => {
                pairs.push((*c, *d));
                pairs.extend(x.iter().copied().zip(y.iter().copied()));
                x.len() == y.len() && r == s && self.types(t, u)
            }
            (Expr::Tuple(x), Expr::Tuple(y)) => {
                pairs.extend(x.iter().copied().zip(y.iter().copied()));
                x.len() == y.len()
            }
            (Expr::Proj(x, i), Expr::Proj(y, j)) => {
                pairs.push((*x, *y));
                i == j
            }
            (Expr::Let { var: v, value: x, body: p }, Expr::Let { var: w, value: y, body: q }) => {
                pairs.extend([(*x, *y), (*p, *q)]);
                self.var(*v, *w)?
            }
            (Expr::If { cond: x, then: p, otherwise: u }, Expr::If { cond: y, then: q, otherwise: v }) => {
                pairs.extend([(*x, *y), (*p, *q), (*u, *v)]);
                true
            }
            (Expr::Func(f), Expr::Func(g)) => {
                pairs.push((f.body, g.body));
                for (v, w) in f.params.iter().zip(&g.params) {
                    self.var(*v, *w)?;
                }
                f.params.len() == g.params.len()
                    && f.type_params.len() == g.type_params.len()
                    && f.type_params.iter().zip(&g.type_params).all(|(v, w)| self.type_var(*v, *w))
                    && f.attrs == g.attrs
                    && self.optional(f.ret.as_ref(), g.ret.as_ref())
            }
            (Expr::Match { data: x, clauses: c, complete: p }, Expr::Match { data: y, clauses: d, complete: q }) => {
                pairs.push((*x, *y));
                for (c, d) in c.iter().zip(d) {
                    if !self.pattern(&c.pattern, &d.pattern)? {
                        return Err(format!("{:?} became {:?}", c.pattern, d.pattern));
                    }
                    pairs.push((c.body, d.body));
                }
                c.len() == d.len() && p == q
            }
            (Expr::RefNew(x), Expr::RefNew(y)) | (Expr::RefRead(x), Expr::RefRead(y)) => {
                pairs.push((*x, *y));
                true
            }
            (Expr::RefWrite(x, p), Expr::RefWrite(y, q)) => {
                pairs.extend([(*x, *y), (*p, *q)]);
                true
            }
            (a, b) => a == b,
        };
        self.todo.extend(pairs);
        if same { Ok(()) } else { Err(format!("{a:?} became {b:?}")) }
    }

    fn var(&mut self, v: VarId, w: VarId) -> Result<bool, String> {
        let (x, y) = (self.a.var(v), self.b.var(w));
        if !self.optional(x.ty.as_ref(), y.ty.as_ref()) {
            return Err(format!("{x:?} became {y:?}"));
        }
        Ok(*self.vars.entry(v).or_insert(w) == w)
    }

    fn pattern(&mut self, p: &Pattern, q: &Pattern) -> Result<bool, String> {
        Ok(match (p, q) {
            (Pattern::Var(v), Pattern::Var(w)) => self.var(*v, *w)?,
            (Pattern::Constructor(c, x), Pattern::Constructor(d, y)) if c == d => self.patterns(x, y)?,
            (Pattern::Tuple(x), Pattern::Tuple(y)) => self.patterns(x, y)?,
            _ => p == q,
        })
    }

    fn patterns(&mut self, x: &[Pattern], y: &[Pattern]) -> Result<bool, String> {
        for (p, q) in x.iter().zip(y) {
            if !self.pattern(p, q)? {
                return Ok(false);
            }
        }
        Ok(x.len() == y.len())
    }

    fn adt(&mut self, x: &AdtDef, y: &AdtDef) -> bool {
        x.params.len() == y.params.len()
            && x.params.iter().zip(&y.params).all(|(v, w)| self.type_var(*v, *w))
            && x.is_extern == y.is_extern
            && x.constructors.len() == y.constructors.len()
            && x.constructors
                .iter()
                .zip(&y.constructors)
                .all(|(c, d)| c.name == d.name && self.types(&c.fields, &d.fields))
    }

    fn type_var(&mut self, v: TypeVarId, w: TypeVarId) -> bool {
        *self.type_vars.entry(v).or_insert(w) == w
    }

    /// No annotation is the same as an open one.
    fn optional(&mut self, x: Option<&Type>, y: Option<&Type>) -> bool {
        match (x.filter(|t| !matches!(t, Type::Hole(_))), y.filter(|t| !matches!(t, Type::Hole(_)))) {
            (Some(x), Some(y)) => self.ty(x, y),
            (x, y) => x.is_some() == y.is_some(),
        }
    }

    fn types(&mut self, x: &[Type], y: &[Type]) -> bool {
        x.len() == y.len() && x.iter().zip(y).all(|(x, y)| self.ty(x, y))
    }

    fn ty(&mut self, x: &Type, y: &Type) -> bool {
        match (x, y) {
            (Type::Tensor(x), Type::Tensor(y)) => {
                x.dtype == y.dtype
                    && x.rank() == y.rank()
                    && x.shape.iter().zip(y.shape.iter()).all(|(x, y)| match (x, y) {
                        (Dim::Var(v), Dim::Var(w)) => self.type_var(*v, *w),
                        (Dim::Hole(_), Dim::Hole(_)) => true,
                        (x, y) => x == y,
                    })
            }
            (Type::Tuple(x), Type::Tuple(y)) => self.types(x, y),
            (Type::Func(x), Type::Func(y)) => {
                x.type_params.len() == y.type_params.len()
                    && x.type_params.iter().zip(&y.type_params).all(|(v, w)| self.type_var(*v, *w))
                    && self.types(&x.params, &y.params)
                    && self.ty(&x.ret, &y.ret)
            }
            (Type::Ref(x), Type::Ref(y)) => self.ty(x, y),
            (Type::Adt(n, x), Type::Adt(m, y)) => n == m && self.types(x, y),
            (Type::Var(v), Type::Var(w)) => self.type_var(*v, *w),
            (Type::Hole(_), Type::Hole(_)) => true,
            _ => false,
        }
    }
}
