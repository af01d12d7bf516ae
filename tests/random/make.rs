//! Random well-typed programs: operators of the whole table applied to whatever values are there, in straight lines, branches,
//! functions, recursions, data types and cells.
//!
//! Each value is computed while the program grows, so that what an operator would refuse (an index out of range, a division
//! by zero) and what would drown all differences (overflow, NaN) is not put into it.

use resat::{
    ir::{
        AdtDef, AttrValue, Attrs, Clause, Constructor, Expr, ExprId, Function, Module, Name, OpId, Pattern, TensorType,
        Type, VarId,
    },
    ops::{self, AttrKind, Sample},
    tensor::{DType, Tensor, Value},
};

use crate::common::{Data, Rng, random_tensor};

/// A program and arguments for it.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) m: Module,
    /// One per parameter of `@main`.
    pub(crate) inputs: Vec<Value>,
}

/// What kinds of expressions a program may have.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Operators and tuples alone.
    Straight,
    /// Everything.
    Control,
}

/// No tensor of a program has more elements.
const MOST_ELEMENTS: usize = 20_000;
/// No float is larger: differences are to be seen, and conversions to integers to be defined.
const LARGEST: f64 = 1e4;

/// A value in scope.
#[derive(Clone)]
struct Item {
    e: ExprId,
    ty: Type,
    /// What it is in the first run through.
    value: Value,
    used: bool,
}

/// A function in scope.
#[derive(Clone)]
struct Callable {
    callee: Callee,
    params: Vec<Type>,
    ret: Type,
    /// What it gave in the first run through.
    sample: Value,
}

#[derive(Clone)]
enum Callee {
    Var(VarId),
    Global(Name),
}

#[derive(Clone, Default)]
struct Scope {
    items: Vec<Item>,
    callables: Vec<Callable>,
    /// What the scope's result is wrapped in, outermost first.
    lets: Vec<(VarId, ExprId)>,
    depth: usize,
}

struct Maker {
    m: Module,
    rng: Rng,
    kind: Kind,
    params: Vec<(VarId, Value)>,
    ops: Vec<(OpId, Vec<Sample>)>,
    /// Whether new parameters of `@main` can be used: not within functions of the module.
    global: bool,
    names: usize,
}

/// The program of a seed.
pub(crate) fn program(seed: u64, kind: Kind) -> Case {
    // What stands for others within the compiler is no part of programs.
    let ops = ops::all().into_iter().filter(|id| !id.op().name().starts_with("static."));
    let ops = ops.map(|id| (id, id.op().samples())).filter(|(_, s)| !s.is_empty()).collect();
    let rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let mut maker = Maker { m: Module::new(), rng, kind, params: Vec::new(), ops, global: false, names: 0 };
    let n = 3 + maker.below(12);
    let body = maker.main(n);
    let vars = maker.params.iter().map(|p| p.0).collect();
    let main = maker.m.add(Expr::Func(Box::new(Function::new(vars, body, None))));
    maker.m.define("main", main);
    Case { m: maker.m, inputs: maker.params.into_iter().map(|p| p.1).collect() }
}

/// The value's type.
pub(crate) fn type_of(v: &Value) -> Type {
    match v {
        Value::Tensor(t) => Type::tensor(&t.shape().iter().map(|&n| n as i64).collect::<Vec<_>>(), t.dtype()),
        Value::Tuple(f) => Type::tuple(f.iter().map(type_of)),
    }
}

fn is_tensor(ty: &Type) -> bool {
    ty.as_tensor().is_some()
}

/// Whether floats are finite and of moderate size.
fn tame(v: &Value) -> bool {
    v.flatten().iter().all(|t| {
        t.len() <= MOST_ELEMENTS && (!t.dtype().is_float() || t.to_f64_vec().iter().all(|x| x.abs() <= LARGEST))
    })
}

impl Maker {
    fn below(&mut self, n: usize) -> usize {
        (self.rng.next() >> 16) as usize % n.max(1)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn var(&mut self, name: &str, ty: Option<Type>) -> VarId {
        self.names += 1;
        self.m.new_var(format!("{name}{}", self.names), ty)
    }

    fn annotation(&mut self, ty: &Type) -> Option<Type> {
        self.chance(70).then(|| ty.clone())
    }

    // Programs and scopes.

    fn main(&mut self, n: usize) -> ExprId {
        let mut scope = Scope::default();
        // Shapes that operators' samples do not have: larger than a vector, not a multiple of one.
        for _ in 0..self.below(3) {
            let shapes: [&[i64]; 7] = [&[17], &[3, 33], &[2, 16, 5], &[1, 8, 6, 6], &[64], &[5, 1, 9], &[2, 3]];
            let dtypes =
                [DType::F32, DType::F32, DType::F32, DType::I32, DType::I8, DType::F16, DType::I64, DType::F64];
            let ty = Type::tensor(shapes[self.below(shapes.len())], dtypes[self.below(dtypes.len())]);
            let item = self.fresh(&mut scope, &ty);
            drop(item);
        }
        self.steps(&mut scope, n);
        let mut open: Vec<Item> = scope.items.iter().filter(|i| !i.used).cloned().collect();
        if open.is_empty() {
            open = scope.items.clone();
        }
        open.truncate(6);
        let result = match &open[..] {
            [one] => one.e,
            _ => self.m.add(Expr::Tuple(open.iter().map(|i| i.e).collect())),
        };
        self.close(scope, result)
    }

    fn close(&mut self, scope: Scope, result: ExprId) -> ExprId {
        scope.lets.into_iter().rev().fold(result, |body, (var, value)| self.m.add(Expr::Let { var, value, body }))
    }

    /// A scope within another.
    fn inner(&mut self, outer: &Scope) -> Scope {
        Scope { lets: Vec::new(), depth: outer.depth + 1, ..outer.clone() }
    }

    fn steps(&mut self, scope: &mut Scope, n: usize) {
        for _ in 0..n {
            let control = self.kind == Kind::Control && scope.depth < 3 && self.chance(45);
            if !control {
                match self.below(12) {
                    0 => self.tuple(scope),
                    1 => self.field(scope),
                    _ => self.operator(scope),
                }
                continue;
            }
            match self.below(12) {
                0 | 1 => self.binding(scope),
                2 | 3 => self.branch(scope),
                4 => self.closure(scope),
                5 | 6 => self.call(scope),
                7 => self.function(scope),
                8 => self.recursion(scope),
                9 => self.list(scope),
                10 => self.option(scope),
                _ => self.cell(scope),
            }
        }
        if scope.items.is_empty() {
            let ty = Type::tensor(&[2, 3], DType::F32);
            self.fresh(scope, &ty);
        }
    }

    fn push(&mut self, scope: &mut Scope, e: ExprId, value: Value) -> usize {
        scope.items.push(Item { e, ty: type_of(&value), value, used: false });
        scope.items.len() - 1
    }

    fn take(&mut self, scope: &mut Scope, i: usize) -> Item {
        scope.items[i].used = true;
        scope.items[i].clone()
    }

    /// Some item, later ones more often.
    fn some(&mut self, scope: &mut Scope, fits: impl Fn(&Item) -> bool) -> Option<Item> {
        let all: Vec<usize> = (0..scope.items.len()).filter(|&i| fits(&scope.items[i])).collect();
        let n = all.len();
        if n == 0 {
            return None;
        }
        let at = if self.chance(50) { self.below(n) } else { n - 1 - self.below(n.min(3)) };
        Some(self.take(scope, all[at]))
    }

    /// The newest item of a type, or one that is made from what there is.
    fn of_type(&mut self, scope: &mut Scope, ty: &Type) -> Item {
        match scope.items.iter().rposition(|i| i.ty == *ty) {
            Some(i) => self.take(scope, i),
            None => self.fresh(scope, ty),
        }
    }

    // Leaves.

    fn random(&mut self, t: &TensorType) -> Tensor {
        let wide = matches!(t.dtype, DType::I8 | DType::U8) && self.chance(50);
        random_tensor(t, if wide { Data::Wild } else { Data::Tame }, &mut self.rng)
    }

    /// A new parameter of `@main`, or a constant.
    fn fresh(&mut self, scope: &mut Scope, ty: &Type) -> Item {
        match ty {
            Type::Tuple(fields) => {
                let items: Vec<Item> = fields.iter().map(|t| self.argument(scope, t)).collect();
                let e = self.m.add(Expr::Tuple(items.iter().map(|i| i.e).collect()));
                let value = Value::Tuple(items.into_iter().map(|i| i.value).collect());
                let i = self.push(scope, e, value);
                self.take(scope, i)
            }
            Type::Tensor(t) => {
                let scalar = t.shape.is_empty();
                let value = match self.below(4) {
                    // One number everywhere, of those that rules know.
                    0 => {
                        let x = [0.0, 1.0, 2.0, 0.5, -1.0, 3.0, 6.0][self.below(7)];
                        let shape: Vec<usize> = t.shape.iter().map(|d| d.known().unwrap_or(2) as usize).collect();
                        Tensor::from_f64_fn(t.dtype, &shape, |_| x)
                    }
                    _ => self.random(t),
                };
                let e = if self.global || self.chance(if scalar { 70 } else { 40 }) {
                    self.m.constant(value.clone())
                } else {
                    let ty = type_of(&value.clone().into());
                    let p = self.var("p", Some(ty));
                    self.params.push((p, value.clone().into()));
                    self.m.add(Expr::Var(p))
                };
                let i = self.push(scope, e, value.into());
                self.take(scope, i)
            }
            other => panic!("values are tensors and tuples, not {other}"),
        }
    }

    /// An item of a type: one that is there, another one made to fit, or a new one.
    fn argument(&mut self, scope: &mut Scope, ty: &Type) -> Item {
        let exact = scope.items.iter().any(|i| i.ty == *ty);
        match self.below(10) {
            0..=5 if exact => self.some(scope, |i| i.ty == *ty).expect("there is one"),
            0..=7 if is_tensor(ty) => self.adapted(scope, ty).unwrap_or_else(|| self.fresh(scope, ty)),
            _ => self.fresh(scope, ty),
        }
    }

    /// Some tensor, cast and cut or repeated to a type.
    fn adapted(&mut self, scope: &mut Scope, ty: &Type) -> Option<Item> {
        let t = ty.as_tensor()?.clone();
        let shape = t.known_shape()?;
        let from = self.some(scope, |i| is_tensor(&i.ty) && !i.value.tensor().is_empty())?;
        let mut at = from;
        if at.value.tensor().dtype() != t.dtype {
            at = self.apply(scope, "cast", &[("dtype", t.dtype.into())], &[at])?;
        }
        let (n, wanted) = (at.value.tensor().len() as i64, shape.iter().product::<i64>());
        if n != wanted {
            at = self.apply(scope, "reshape", &[("newshape", [-1].into())], &[at])?;
            if n < wanted {
                at = self.apply(scope, "tile", &[("reps", [(wanted + n - 1) / n].into())], &[at])?;
            }
            let cut = [("begin", [0].into()), ("end", [wanted].into()), ("strides", [1].into())];
            at = self.apply(scope, "strided_slice", &cut, &[at])?;
        }
        if at.ty != *ty {
            at = self.apply(scope, "reshape", &[("newshape", shape.into())], &[at])?;
        }
        Some(at)
    }

    // Operators.

    /// A call of a named operator, where it is legal.
    fn apply(&mut self, scope: &mut Scope, op: &str, attrs: &[(&str, AttrValue)], args: &[Item]) -> Option<Item> {
        let given: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| ((*n).into(), v.clone())).collect();
        let op = ops::op(op);
        let i = self.call_op(scope, op, ops::make_attrs(op, &given).ok()?, args)?;
        Some(self.take(scope, i))
    }

    /// The call, where it is legal and its value tame.
    fn call_op(&mut self, scope: &mut Scope, op: OpId, attrs: Attrs, args: &[Item]) -> Option<usize> {
        let types: Vec<Type> = args.iter().map(|a| a.ty.clone()).collect();
        let out = op.op().infer(&attrs, &types).ok()?.flatten()?;
        let most = |t: &TensorType| t.elements().is_none_or(|n| n <= MOST_ELEMENTS as i64);
        let values: Vec<Value> = args.iter().map(|a| a.value.clone()).collect();
        if !out.iter().all(most) || !defined(op, &attrs, &values) {
            return None;
        }
        // What values decide the extents of is made in code of its own kind.
        if self.kind == Kind::Straight && out.iter().any(|t| t.known_shape().is_none()) {
            return None;
        }
        let value = op.op().eval(&attrs, &values).ok().filter(tame)?;
        // `?` says less than what the value's type says; unknown extents go no further.
        if out.iter().any(|t| t.known_shape().is_none()) && self.chance(70) {
            return None;
        }
        let ty = op.op().infer(&attrs, &types).ok()?;
        let e = self.m.call_op(op, args.iter().map(|a| a.e).collect(), attrs);
        let i = self.push(scope, e, value);
        scope.items[i].ty = ty;
        Some(i)
    }

    fn operator(&mut self, scope: &mut Scope) {
        for _ in 0..20 {
            let at = self.below(self.ops.len());
            let (op, n) = (self.ops[at].0, self.ops[at].1.len());
            let k = self.below(n);
            let mut sample = self.ops[at].1[k].clone();
            if sample.args.iter().any(|t| t.flatten().is_none_or(|t| t.iter().any(|t| t.known_shape().is_none()))) {
                continue;
            }
            let mark = scope.items.len();
            let mut given: Vec<(Name, AttrValue)> = sample.attrs.iter().map(|(n, v)| (n.into(), v.clone())).collect();
            // Other types than the sample's, where the operator takes them.
            let loose = self.chance(60);
            if !loose && self.chance(50) {
                self.resize(&mut sample.args);
            }
            let broadcasts = matches!(op.op().class(), ops::Class::Elementwise | ops::Class::Broadcast);
            let mut args: Vec<Item> = Vec::new();
            for ty in &sample.args {
                let found = match (loose, ty.as_tensor(), args.first().and_then(|a| a.ty.as_tensor())) {
                    (true, Some(t), Some(first)) if broadcasts && self.chance(70) => {
                        let shape = first.known_shape().unwrap_or_default();
                        let ty = self.below_shape(shape, t.dtype);
                        Some(self.argument(scope, &ty))
                    }
                    (true, Some(t), _) => {
                        self.some(scope, |i| i.ty.as_tensor().is_some_and(|found| found.dtype == t.dtype))
                    }
                    _ => None,
                };
                args.push(found.unwrap_or_else(|| self.argument(scope, ty)));
            }
            if self.chance(30) {
                self.vary(op, &mut given, &args);
            }
            if let Ok(attrs) = ops::make_attrs(op, &given)
                && self.call_op(scope, op, attrs, &args).is_some()
            {
                return;
            }
            // What was made for it stays: it is used by nobody yet.
            for item in &mut scope.items[mark..] {
                item.used = true;
            }
        }
    }

    /// Gives extents other values, the same ones the same values.
    fn resize(&mut self, types: &mut [Type]) {
        fn each(ty: &Type, f: &mut impl FnMut(i64) -> i64) -> Type {
            match ty {
                Type::Tensor(t) => {
                    let shape: Vec<i64> = t.shape.iter().map(|d| f(d.known().unwrap_or(2))).collect();
                    Type::tensor(&shape, t.dtype)
                }
                Type::Tuple(fields) => Type::tuple(fields.iter().map(|t| each(t, f))),
                other => other.clone(),
            }
        }
        let mut new: Vec<(i64, i64)> = Vec::new();
        for ty in types {
            *ty = each(ty, &mut |n| match new.iter().find(|(old, _)| *old == n) {
                Some((_, new)) => *new,
                None => {
                    let choices = [n, n, n, n + 1, 2 * n, 4 * n, 8, 16, 17, 33];
                    // An extent of 1 mostly means that there is but one.
                    let v = if n == 1 && self.chance(80) { 1 } else { choices[self.below(choices.len())] };
                    new.push((n, v));
                    v
                }
            });
        }
    }

    /// A type that broadcasts to a shape: the shape itself, or some of its axes gone or 1.
    fn below_shape(&mut self, mut shape: Vec<i64>, dtype: DType) -> Type {
        if self.chance(30) {
            let k = self.below(shape.len() + 1);
            shape.drain(..k);
        }
        for n in &mut shape {
            if self.chance(20) {
                *n = 1;
            }
        }
        Type::tensor(&shape, dtype)
    }

    /// Changes an attribute or two.
    fn vary(&mut self, op: OpId, given: &mut Vec<(Name, AttrValue)>, args: &[Item]) {
        let schema = op.op().attrs();
        let rank = args.first().and_then(|a| a.ty.as_tensor()).map_or(2, TensorType::rank);
        for _ in 0..1 + self.below(2) {
            if schema.is_empty() {
                return;
            }
            let field = schema[self.below(schema.len())];
            let small = self.below(4) as i64;
            let value: AttrValue = match (field.name, field.kind) {
                ("axis", AttrKind::Int) => (self.below(2 * rank + 1) as i64 - rank as i64).into(),
                ("axis" | "axes", AttrKind::Ints) => {
                    let mut all: Vec<i64> = (0..rank as i64).collect();
                    for i in (1..all.len()).rev() {
                        all.swap(i, self.below(i + 1));
                    }
                    if field.name == "axis" {
                        all.truncate(1 + self.below(rank));
                    }
                    all.into()
                }
                (_, AttrKind::Bool) => self.chance(50).into(),
                (_, AttrKind::Int) => small.into(),
                (_, AttrKind::Float) => [0.0, 0.5, 1.0, 2.0, -1.0][self.below(5)].into(),
                (_, AttrKind::OneOf(names)) => names[self.below(names.len())].into(),
                (_, AttrKind::DType) => {
                    [DType::F32, DType::F64, DType::F16, DType::I32, DType::I64, DType::I8, DType::U8][self.below(7)]
                        .into()
                }
                (_, AttrKind::Ints) => {
                    let n = given.iter().find(|g| g.0.as_str() == field.name).and_then(|g| Some(g.1.as_ints()?.len()));
                    (0..n.unwrap_or(rank)).map(|_| self.below(4) as i64).collect::<Vec<_>>().into()
                }
                (_, AttrKind::Str | AttrKind::List | AttrKind::Any) => continue,
            };
            given.retain(|g| g.0.as_str() != field.name);
            given.push((field.name.into(), value));
        }
    }

    fn tuple(&mut self, scope: &mut Scope) {
        let n = 1 + self.below(3);
        let fields: Vec<Item> = (0..n).filter_map(|_| self.some(scope, |i| known(&i.ty))).collect();
        let e = self.m.add(Expr::Tuple(fields.iter().map(|i| i.e).collect()));
        self.push(scope, e, Value::Tuple(fields.into_iter().map(|i| i.value).collect()));
    }

    fn field(&mut self, scope: &mut Scope) {
        let Some(tuple) = self.some(scope, |i| i.ty.as_tuple().is_some_and(|f| !f.is_empty())) else {
            return self.operator(scope);
        };
        let k = self.below(tuple.value.fields().len());
        let e = self.m.add(Expr::Proj(tuple.e, k));
        let i = self.push(scope, e, tuple.value.fields()[k].clone());
        scope.items[i].ty = tuple.ty.as_tuple().expect("it is one")[k].clone();
    }

    // Control.

    /// `let` of something that is there.
    fn binding(&mut self, scope: &mut Scope) {
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

    fn branch(&mut self, scope: &mut Scope) {
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

    fn closure(&mut self, scope: &mut Scope) {
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

    fn function(&mut self, scope: &mut Scope) {
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

    fn call(&mut self, scope: &mut Scope) {
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
    fn recursion(&mut self, scope: &mut Scope) {
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
    fn list(&mut self, scope: &mut Scope) {
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
    fn option(&mut self, scope: &mut Scope) {
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
    fn cell(&mut self, scope: &mut Scope) {
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

fn known(ty: &Type) -> bool {
    ty.flatten().is_some_and(|t| t.iter().all(|t| t.known_shape().is_some()))
}

/// Whether the call's result is defined and of sensible size: conversions of floats to integers that can't hold them are not,
/// nor is what is quantized by odd scales.
pub(crate) fn defined(op: OpId, attrs: &Attrs, args: &[Value]) -> bool {
    let name = op.op().name();
    if name == "cast" || name == "cast_like" {
        let to = match (args.get(1), attrs.get("dtype")) {
            (Some(like), _) => like.tensor().dtype(),
            (None, Some(AttrValue::DType(d))) => *d,
            (None, _) => return true,
        };
        return convertible(args[0].tensor(), to);
    }
    let each = |fits: &dyn Fn(&str, &Tensor) -> bool| {
        op.op().inputs().iter().zip(args).all(|(input, v)| v.flatten().iter().all(|t| fits(input, t)))
    };
    if name.starts_with("qnn.") {
        let scale = |x: f64| (1e-3..=1e3).contains(&x);
        return each(&|input, t| !input.contains("scale") || t.to_f64_vec().into_iter().all(scale));
    }
    if name.starts_with("dyn.") {
        let extents = |t: &Tensor| !t.dtype().is_float() && t.shape().len() < 2 && t.len() < 8;
        return each(&|_, t| !extents(t) || t.to_i64_vec().iter().all(|n| n.abs() < 64));
    }
    true
}

/// Whether every element has a value in the type.
fn convertible(from: &Tensor, to: DType) -> bool {
    match to.int_range() {
        Some((min, max)) if from.dtype().is_float() && to != DType::Bool => {
            from.to_f64_vec().iter().all(|x| x.trunc() >= min as f64 && x.trunc() <= max as f64)
        }
        _ => true,
    }
}
