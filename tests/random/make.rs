//! Random well-typed programs: operators of the whole table applied to whatever values are there, in straight lines, branches,
//! functions, recursions, data types and cells.
//!
//! Each value is computed while the program grows, so that what an operator would refuse (an index out of range, a division
//! by zero) and what would drown all differences (overflow, NaN) is not put into it.

#[path = "control.rs"]
mod control;

use resat::{
    interp,
    ir::{AttrValue, Attrs, Expr, ExprId, Function, Module, Name, OpId, TensorType, Type, VarId},
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
/// No operator takes more operations.
const MOST_WORK: f64 = 1e6;
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
    // What stands for others within the compiler is no part of programs, nor is what takes files: no random bytes are one.
    let ops = ops::all().into_iter().filter(|id| !id.op().name().starts_with("static.") && !id.op().runs_as_is());
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
        let work = op.op().work(&attrs, &types, &Type::tuple(out.iter().cloned().map(Type::from)));
        if work.flops > MOST_WORK {
            return None;
        }
        if !out.iter().all(most) || !defined(op, &attrs, &values) {
            return None;
        }
        // What values decide the extents of is made in code of its own kind.
        if self.kind == Kind::Straight && out.iter().any(|t| t.known_shape().is_none()) {
            return None;
        }
        let decisive = op.op().decided_by(&attrs);
        if !decisive.is_empty() {
            let given: Vec<&Tensor> = decisive.iter().map(|&i| values[i].tensor()).collect();
            let call = op.op().to_static(&attrs, &given).ok()?;
            let own: Vec<Type> = call.args.iter().map(|&i| interp::type_of(&values[i])).collect();
            if !call.op.op().infer(&call.attrs, &own).ok()?.flatten()?.iter().all(most) {
                return None;
            }
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
            // Several wide axes at once may be more than memory holds.
            let elements = |t: TensorType| t.shape.iter().map(|d| d.known().unwrap_or(2) as f64).product::<f64>();
            if sample.args.iter().filter_map(Type::flatten).flatten().any(|t| elements(t) > MOST_ELEMENTS as f64) {
                continue;
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
}

fn known(ty: &Type) -> bool {
    ty.flatten().is_some_and(|t| t.iter().all(|t| t.known_shape().is_some()))
}

/// The program for other inputs: some of their floats are infinite, not a number, zeros, or overflow where they are multiplied.
pub(crate) fn special(case: &Case, seed: u64) -> Case {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bec);
    fn of(v: &Value, rng: &mut Rng) -> Value {
        match v {
            Value::Tensor(t) if t.dtype().is_float() => {
                let large = if t.dtype() == DType::F16 { 500.0 } else { 2f64.powi(70) };
                let all = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0, large, -large];
                let few = [0.0, 0.1, 0.5][(rng.next() >> 16) as usize % 3];
                let one = all[(rng.next() >> 16) as usize % all.len()];
                let same = rng.unit() < 0.5;
                Tensor::from_f64_fn(t.dtype(), t.shape(), |i| match rng.unit() < few {
                    true if same => one,
                    true => all[(rng.next() >> 16) as usize % all.len()],
                    false => t.get_f64(i),
                })
                .into()
            }
            Value::Tensor(t) => t.clone().into(),
            Value::Tuple(fields) => Value::Tuple(fields.iter().map(|v| of(v, rng)).collect()),
        }
    }
    Case { m: case.m.clone(), inputs: case.inputs.iter().map(|v| of(v, &mut rng)).collect() }
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
    if name == "vision.proposal" {
        // What a box overlaps that is none, or whose extents overflow, and in which place it comes, is not said.
        return each(&|_, t| !t.dtype().is_float() || t.to_f64_vec().into_iter().all(|x| x.abs() < 80.0));
    }
    if name.starts_with("dyn.") {
        // They may all be extents of one tensor.
        let few = |v: &[i64]| {
            v.iter().try_fold(1i64, |p, n| p.checked_mul(n.unsigned_abs().max(1) as i64)).is_some_and(|p| p < 4096)
        };
        let extents = |t: &Tensor| !t.dtype().is_float() && t.shape().len() < 2 && t.len() < 8;
        return each(&|_, t| !extents(t) || few(&t.to_i64_vec()));
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
