//! Bindings, branches, functions, recursions, data types and cells of random programs.

use resat::{
    ir::{AdtDef, Attrs, Clause, Constructor, Expr, ExprId, Function, Name, Pattern, Type, VarId},
    ops,
    tensor::{DType, Tensor, Value},
};

use super::{Callable, Callee, Item, Maker, Scope, known, type_of};

impl Maker {
    /// `let` of something that is there.
    pub(super) fn binding(&mut self, scope: &mut Scope) {
        let Some(item) = self.some(scope, |_| true) else { return };
        let ty = self.annotation(&item.ty);
        self.bound(scope, item.e, ty, item.value, Some(item.ty));
    }

    fn bound(&mut self, scope: &mut Scope, value: ExprId, note: Option<Type>, v: Value, ty: Option<Type>) {
        let var = self.var("v", note);
        scope.lets.push((var, value));
        let e = self.m.add(Expr::Var(var));
        let i = self.push(scope, e, v);
        if let Some(ty) = ty {
            scope.items[i].ty = ty;
        }
    }

    /// A scalar `bool`.
    fn condition(&mut self, scope: &mut Scope) -> Item {
        let scalar = Type::tensor(&[], DType::Bool);
        if let Some(found) = self.some(scope, |i| i.ty == scalar) {
            return found;
        }
        let number = self.some(scope, |i| {
            i.ty.as_tensor().is_some_and(|t| t.dtype == DType::I32 || t.dtype == DType::F32) && known(&i.ty)
        });
        let made = number.and_then(|x| {
            let sum = self.apply(scope, "sum", &[], &[x])?;
            let bound = self.fresh(scope, &sum.ty.clone());
            self.apply(scope, "greater", &[], &[sum, bound])
        });
        made.unwrap_or_else(|| self.fresh(scope, &scalar))
    }

    /// The block of a branch or function: some steps, then a value of the type.
    fn block(&mut self, outer: &Scope, more: &[Item], ty: Option<&Type>) -> Option<(ExprId, Value)> {
        let mut scope = self.inner(outer);
        scope.items.extend_from_slice(more);
        let n = 1 + self.below(3);
        self.steps(&mut scope, n);
        let last = match ty {
            Some(ty) => self.of_type(&mut scope, ty),
            None => self.some(&mut scope, |i| known(&i.ty))?,
        };
        (type_of(&last.value) == last.ty).then_some(())?;
        let e = self.close(scope, last.e);
        Some((e, last.value))
    }

    pub(super) fn branch(&mut self, scope: &mut Scope) {
        let cond = self.condition(scope);
        let Some(like) = self.some(scope, |i| known(&i.ty)) else { return };
        let ty = like.ty.clone();
        let (Some(then), Some(otherwise)) = (self.block(scope, &[], Some(&ty)), self.block(scope, &[], Some(&ty)))
        else {
            return;
        };
        let e = self.m.add(Expr::If { cond: cond.e, then: then.0, otherwise: otherwise.0 });
        let taken = if cond.value.tensor().get_i64(0) != 0 { then.1 } else { otherwise.1 };
        self.push(scope, e, taken);
    }

    /// Parameters like some items.
    fn parameters(&mut self, scope: &mut Scope) -> (Vec<VarId>, Vec<Item>) {
        let n = 1 + self.below(3);
        let like: Vec<Item> = (0..n).filter_map(|_| self.some(scope, |i| known(&i.ty))).collect();
        like.into_iter()
            .map(|i| {
                let v = self.var("a", Some(i.ty.clone()));
                (v, Item { e: self.m.add(Expr::Var(v)), used: false, ..i })
            })
            .unzip()
    }

    pub(super) fn closure(&mut self, scope: &mut Scope) {
        let (vars, items) = self.parameters(scope);
        let params: Vec<Type> = items.iter().map(|i| i.ty.clone()).collect();
        let Some((body, sample)) = self.block(scope, &items, None) else { return };
        let ret = type_of(&sample);
        let annotated = self.annotation(&ret);
        let f = self.m.add(Expr::Func(Box::new(Function::new(vars, body, annotated))));
        let var = self.var("f", None);
        scope.lets.push((var, f));
        scope.callables.push(Callable { callee: Callee::Var(var), params, ret, sample });
        self.call(scope);
    }

    /// What a function of the module is made in: nothing of outside is there.
    fn outside<T>(&mut self, f: impl FnOnce(&mut Maker, &Scope) -> T) -> T {
        let before = std::mem::replace(&mut self.global, true);
        let out = f(self, &Scope { depth: 1, ..Scope::default() });
        self.global = before;
        out
    }

    pub(super) fn function(&mut self, scope: &mut Scope) {
        let (vars, items) = self.parameters(scope);
        let params: Vec<Type> = items.iter().map(|i| i.ty.clone()).collect();
        let Some((body, sample)) = self.outside(|maker, scope| maker.block(scope, &items, None)) else { return };
        let ret = type_of(&sample);
        let annotated = self.annotation(&ret);
        let f = self.m.add(Expr::Func(Box::new(Function::new(vars, body, annotated))));
        self.names += 1;
        let name = Name::from(format!("f{}", self.names));
        self.m.define(name.clone(), f);
        scope.callables.push(Callable { callee: Callee::Global(name), params, ret, sample });
        self.call(scope);
    }

    fn callee(&mut self, callee: &Callee) -> ExprId {
        self.m.add(match callee {
            Callee::Var(v) => Expr::Var(*v),
            Callee::Global(name) => Expr::Global(name.clone()),
        })
    }

    fn invoke(&mut self, callee: ExprId, args: Vec<ExprId>) -> ExprId {
        self.m.add(Expr::Call { callee, args, attrs: Attrs::empty(), type_args: Vec::new() })
    }

    pub(super) fn call(&mut self, scope: &mut Scope) {
        if scope.callables.is_empty() {
            return self.operator(scope);
        }
        let f = scope.callables[self.below(scope.callables.len())].clone();
        let args: Vec<ExprId> = f.params.iter().map(|ty| self.argument(scope, ty).e).collect();
        let callee = self.callee(&f.callee);
        let e = self.invoke(callee, args);
        debug_assert_eq!(type_of(&f.sample), f.ret);
        self.push(scope, e, f.sample);
    }

    /// `@f(i, x) = if (i < 1) x else f(i - 1, step(x))`, called with a small number.
    pub(super) fn recursion(&mut self, scope: &mut Scope) {
        let Some(start) = self.some(scope, |i| known(&i.ty)) else { return };
        let counter = Type::tensor(&[], DType::I32);
        let (i, x) = (self.var("i", Some(counter.clone())), self.var("x", Some(start.ty.clone())));
        let (ei, ex) = (self.m.add(Expr::Var(i)), self.m.add(Expr::Var(x)));
        let item = Item { e: ex, used: false, ..start.clone() };
        let ty = start.ty.clone();
        let Some((next, value)) = self.outside(|maker, scope| maker.block(scope, &[item], Some(&ty))) else { return };
        self.names += 1;
        let name = Name::from(format!("loop{}", self.names));
        let one = self.m.constant(Tensor::scalar(1i32));
        let none = ops::make_attrs(ops::op("less"), &[]).expect("it has none");
        let cond = self.m.call_op(ops::op("less"), vec![ei, one], none.clone());
        let less = self.m.call_op(ops::op("subtract"), vec![ei, one], none);
        let this = self.m.add(Expr::Global(name.clone()));
        let again = self.invoke(this, vec![less, next]);
        let body = self.m.add(Expr::If { cond, then: ex, otherwise: again });
        let f = self.m.add(Expr::Func(Box::new(Function::new(vec![i, x], body, Some(start.ty.clone())))));
        self.m.define(name.clone(), f);
        let n = self.below(4) as i32;
        let count = if self.global || self.chance(50) {
            self.m.constant(Tensor::scalar(n))
        } else {
            let p = self.var("n", Some(counter));
            self.params.push((p, Tensor::scalar(n).into()));
            self.m.add(Expr::Var(p))
        };
        let this = self.m.add(Expr::Global(name));
        let e = self.invoke(this, vec![count, start.e]);
        self.push(scope, e, if n == 0 { start.value } else { value });
    }

    /// `List[A]` and `Maybe[A]`, where they are not there yet.
    fn data_types(&mut self) {
        if self.m.adt("List").is_some() {
            return;
        }
        let a = self.m.new_type_var("A");
        let list = Type::Adt("List".into(), [Type::Var(a)].into());
        let cons = Constructor { name: "Cons".into(), fields: vec![Type::Var(a), list] };
        let nil = Constructor { name: "Nil".into(), fields: vec![] };
        self.m.add_adt(AdtDef {
            name: "List".into(),
            params: vec![a],
            constructors: vec![cons, nil],
            is_extern: false,
        });
        let b = self.m.new_type_var("B");
        let some = Constructor { name: "Some".into(), fields: vec![Type::Var(b)] };
        let none = Constructor { name: "None".into(), fields: vec![] };
        self.m.add_adt(AdtDef {
            name: "Maybe".into(),
            params: vec![b],
            constructors: vec![some, none],
            is_extern: false,
        });
    }

    fn construct(&mut self, name: &str, fields: Vec<ExprId>) -> ExprId {
        let c = self.m.add(Expr::Constructor(name.into()));
        self.invoke(c, fields)
    }

    /// A list of some values, folded.
    pub(super) fn list(&mut self, scope: &mut Scope) {
        self.data_types();
        let Some(first) = self.some(scope, |i| known(&i.ty)) else { return };
        let ty = first.ty.clone();
        let list_ty = Type::Adt("List".into(), [ty.clone()].into());
        let l = self.var("l", Some(list_ty));
        let (acc, head, tail) = (self.var("acc", Some(ty.clone())), self.var("h", None), self.var("t", None));
        let item = |maker: &mut Maker, v: VarId| Item { e: maker.m.add(Expr::Var(v)), used: false, ..first.clone() };
        let items = [item(self, acc), item(self, head)];
        let Some((next, value)) = self.outside(|maker, scope| maker.block(scope, &items, Some(&ty))) else { return };
        self.names += 1;
        let name = Name::from(format!("fold{}", self.names));
        let (el, eacc, etail) = (self.m.add(Expr::Var(l)), items[0].e, self.m.add(Expr::Var(tail)));
        let this = self.m.add(Expr::Global(name.clone()));
        let again = self.invoke(this, vec![etail, next]);
        let cons = Pattern::Constructor("Cons".into(), vec![Pattern::Var(head), Pattern::Var(tail)]);
        let clauses = vec![
            Clause { pattern: cons, body: again },
            Clause { pattern: Pattern::Constructor("Nil".into(), vec![]), body: eacc },
        ];
        let body = self.m.add(Expr::Match { data: el, clauses, complete: true });
        let f = self.m.add(Expr::Func(Box::new(Function::new(vec![l, acc], body, Some(ty.clone())))));
        self.m.define(name.clone(), f);
        let mut whole = self.construct("Nil", vec![]);
        let n = self.below(3);
        for _ in 0..n {
            let x = self.argument(scope, &ty).e;
            whole = self.construct("Cons", vec![x, whole]);
        }
        let this = self.m.add(Expr::Global(name));
        let e = self.invoke(this, vec![whole, first.e]);
        self.push(scope, e, if n == 0 { first.value } else { value });
    }

    /// A value that may be missing, and a `match` of it.
    pub(super) fn option(&mut self, scope: &mut Scope) {
        self.data_types();
        let Some(inside) = self.some(scope, |i| known(&i.ty)) else { return };
        let Some(like) = self.some(scope, |i| known(&i.ty)) else { return };
        let v = self.var("m", None);
        let item = Item { e: self.m.add(Expr::Var(v)), used: false, ..inside.clone() };
        let (Some(some), Some(none)) =
            (self.block(scope, &[item], Some(&like.ty)), self.block(scope, &[], Some(&like.ty)))
        else {
            return;
        };
        let full = self.construct("Some", vec![inside.e]);
        let cond = self.condition(scope);
        let empty = self.construct("None", vec![]);
        let data = self.m.add(Expr::If { cond: cond.e, then: full, otherwise: empty });
        let last = if self.chance(50) { Pattern::Wildcard } else { Pattern::Constructor("None".into(), vec![]) };
        let clauses = vec![
            Clause { pattern: Pattern::Constructor("Some".into(), vec![Pattern::Var(v)]), body: some.0 },
            Clause { pattern: last, body: none.0 },
        ];
        let e = self.m.add(Expr::Match { data, clauses, complete: true });
        self.push(scope, e, if cond.value.tensor().get_i64(0) != 0 { some.1 } else { none.1 });
    }

    /// A cell that is written and read.
    pub(super) fn cell(&mut self, scope: &mut Scope) {
        let Some(first) = self.some(scope, |i| known(&i.ty)) else { return };
        let second = self.argument(scope, &first.ty.clone());
        let new = self.m.add(Expr::RefNew(first.e));
        let cell = self.var("r", None);
        scope.lets.push((cell, new));
        let ecell = self.m.add(Expr::Var(cell));
        let read = self.m.add(Expr::RefRead(ecell));
        self.bound(scope, read, None, first.value, None);
        let write = self.m.add(Expr::RefWrite(ecell, second.e));
        let unit = self.var("u", None);
        scope.lets.push((unit, write));
        let read = self.m.add(Expr::RefRead(ecell));
        self.bound(scope, read, None, second.value, None);
    }
}
