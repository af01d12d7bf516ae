//! Shapes that a program computes while it runs, though they follow from types: exporters write a reshape of unknown extents as the shape of
//! some tensor, taken apart and put together again, and the scale of attention as the root of an extent. Types and values of such computations are
//! found at several made-up sizes. What is the same function of types at each size that the program takes is replaced: by the argument, by a reshape
//! with codes, by a constant.
//!
//! The sizes are those of [`ModuleTrials`], and small ones: there the larger of an extent and a constant is the constant.

use hashbrown::HashMap;

use crate::{
    egraph::ModuleTrials,
    infer::TypedModule,
    interp,
    ir::{AttrValue, Copier, Dim, Expr, ExprId, Module, Type, VarId},
    ops::{make_attrs, op},
    tensor::{Tensor, Value},
};

/// Values of more elements are no shapes, and are not computed.
const LARGEST: usize = 64;
/// Further sizes, each extent another multiple of one of these: programs may take nothing but multiples, or nothing large.
const STEPS: [i64; 6] = [1, 2, 3, 16, 32, 64];
/// By which these are multiplied: no two extents are in the same proportion twice.
const FACTORS: [i64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];
/// So many sizes, at which different extents are different numbers, must be taken by the program before anything is replaced.
const FEWEST: usize = 3;

/// What is known of an expression at one size.
#[derive(Clone, Default)]
struct Known {
    ty: Option<Type>,
    value: Option<Value>,
    /// Whether the value is computed from shapes.
    of_types: bool,
}

/// The module with the calls of `dyn.reshape` and `dyn.broadcast_to` in `@main` replaced that follow from types, and with constants for what is computed
/// from shapes and the same at all sizes; `None` where there is nothing to replace.
pub(super) fn follows_from_types(typed: &TypedModule) -> Option<Module> {
    let m = typed.module();
    let main = typed.function("main")?;
    let order = dataflow(m, main.body);
    let decides = |e: &ExprId| m.op_call(*e).is_some_and(|(op, _, attrs)| !op.op().decided_by(attrs).is_empty());
    if !order.iter().any(decides) {
        return None;
    }
    let [different, with_ones] = sizes(typed, &main.params).map(|sizes| -> Vec<HashMap<ExprId, Known>> {
        sizes.iter().filter_map(|params| run(typed, &order, params)).collect()
    });
    if different.len() < FEWEST {
        return None;
    }
    let trials = [different, with_ones].concat();
    let (mut out, mut copier, mut changed) = (m.derive(), Copier::new(), false);
    for (name, id) in m.functions() {
        let new = copier.copy_with(m, id, &mut out, |out, from, expr| {
            let (op, args, attrs) = m.op_call(from).filter(|_| trials[0].contains_key(&from))?;
            let Expr::Call { args: new_args, .. } = expr else { return None };
            let decisive = op.op().decided_by(attrs);
            let replacement = replacement(m, &trials, from, args, decisive)?;
            changed = true;
            match replacement {
                Replacement::Argument => Some(new_args[0]),
                Replacement::Value(value) => Some(out.add_at(Expr::Constant(value), m.span(from).cloned())),
                Replacement::Reshape(codes) => {
                    let reshape = crate::ops::op("reshape");
                    let attrs = make_attrs(reshape, &[("newshape".into(), AttrValue::ints(&codes))]).ok()?;
                    let callee = out.add_at(Expr::Op(reshape), m.span(from).cloned());
                    let call = Expr::Call { callee, args: vec![new_args[0]], attrs, type_args: vec![] };
                    Some(out.add_at(call, m.span(from).cloned()))
                }
                Replacement::Constants(values) => {
                    let Expr::Call { callee, attrs, type_args, .. } = expr else { return None };
                    let mut args = new_args.clone();
                    for (at, value) in values {
                        args[at] = out.add_at(Expr::Constant(value), m.span(from).cloned());
                    }
                    let call = Expr::Call { callee: *callee, args, attrs: attrs.clone(), type_args: type_args.clone() };
                    Some(out.add_at(call, m.span(from).cloned()))
                }
            }
        });
        out.define(name.clone(), new);
    }
    changed.then_some(out)
}

/// What a call is replaced by.
enum Replacement {
    /// Its first argument.
    Argument,
    /// A constant.
    Value(Tensor),
    /// A reshape by these codes.
    Reshape(Vec<i64>),
    /// The same call with these constants as arguments.
    Constants(Vec<(usize, Tensor)>),
}

fn replacement(
    m: &Module,
    trials: &[HashMap<ExprId, Known>],
    call: ExprId,
    args: &[ExprId],
    decisive: &[usize],
) -> Option<Replacement> {
    let value = |trial: &HashMap<ExprId, Known>, e: ExprId| match &trial.get(&e)?.value {
        Some(Value::Tensor(t)) => Some(t.clone()),
        _ => None,
    };
    if trials.iter().all(|t| t.get(&call).is_some_and(|k| k.of_types))
        && let Some(first) = value(&trials[0], call)
        && trials.iter().all(|t| value(t, call).as_ref() == Some(&first))
    {
        return Some(Replacement::Value(first));
    }
    if decisive.is_empty() {
        return None;
    }
    let computed = |&&i: &&usize| !matches!(m[args[i]], Expr::Constant(_));
    let same = |&i: &usize| {
        let first = value(&trials[0], args[i])?;
        trials.iter().all(|t| value(t, args[i]).as_ref() == Some(&first)).then_some((i, first))
    };
    let constants: Option<Vec<_>> = decisive.iter().filter(computed).map(same).collect();
    if let Some(constants) = constants.filter(|c| !c.is_empty()) {
        return Some(Replacement::Constants(constants));
    }
    let shapes = |e: ExprId| -> Option<Vec<Vec<i64>>> {
        trials.iter().map(|t| t.get(&e)?.ty.as_ref()?.as_tensor()?.known_shape()).collect()
    };
    let (from, to) = (shapes(*args.first()?)?, shapes(call)?);
    match m.op_call(call)?.0.op().name() {
        "dyn.broadcast_to" if from == to => Some(Replacement::Argument),
        "dyn.reshape" => codes(&from, &to).map(Replacement::Reshape),
        _ => None,
    }
}

/// Codes of `reshape` that make the second shape of the first one at all sizes, where there are such.
fn codes(from: &[Vec<i64>], to: &[Vec<i64>]) -> Option<Vec<i64>> {
    let (rank, out) = (from.first()?.len(), to.first()?.len());
    let mut found = Vec::new();
    let search = Search { from, to, rank, out };
    search.go(0, 0, false, &mut found).then_some(found)
}

struct Search<'a> {
    from: &'a [Vec<i64>],
    to: &'a [Vec<i64>],
    rank: usize,
    out: usize,
}

impl Search<'_> {
    /// Whether codes for the axes of the result from `j` on can be found where those of the argument from `i` on are left: each axis that
    /// changes with the size is made of axes of the argument. One may be what is left over.
    fn go(&self, i: usize, j: usize, inferred: bool, codes: &mut Vec<i64>) -> bool {
        if j == self.out {
            return true;
        }
        let all = |f: &dyn Fn(&[i64], &[i64]) -> bool| self.from.iter().zip(self.to).all(|(x, y)| f(x, y));
        let constant = |j: usize| {
            let n = self.to[0][j];
            self.to.iter().all(|y| y[j] == n).then_some(n)
        };
        let mut ways: Vec<(Vec<i64>, usize, usize, bool)> = Vec::new();
        match constant(j) {
            Some(n) => ways.push((vec![n], 1, 1, inferred)),
            None if i < self.rank && all(&|x, y| x[i] == y[j]) => ways.push((vec![0], 1, 1, inferred)),
            None => {}
        }
        if i + 1 < self.rank && all(&|x, y| x[i] * x[i + 1] == y[j]) {
            ways.push((vec![-3], 2, 1, inferred));
        }
        if i < self.rank && j + 1 < self.out && all(&|x, y| x[i] == y[j] * y[j + 1]) {
            match (constant(j), constant(j + 1)) {
                (Some(a), _) => ways.push((vec![-4, a, -1], 1, 2, inferred)),
                (None, Some(b)) => ways.push((vec![-4, -1, b], 1, 2, inferred)),
                (None, None) => {}
            }
        }
        if !inferred {
            ways.push((vec![-1], 1, 1, true));
        }
        ways.into_iter().any(|(more, di, dj, inferred)| {
            let len = codes.len();
            codes.extend(more);
            if self.go(i + di, j + dj, inferred, codes) && (j > 0 || self.fits(codes)) {
                return true;
            }
            codes.truncate(len);
            false
        })
    }

    /// Whether the type relation of `reshape` agrees.
    fn fits(&self, codes: &[i64]) -> bool {
        let reshape = op("reshape");
        let Ok(attrs) = make_attrs(reshape, &[("newshape".into(), AttrValue::ints(codes))]) else { return false };
        let dtype = crate::tensor::DType::F32;
        self.from.iter().zip(self.to).all(|(x, y)| {
            let made = reshape.op().infer(&attrs, &[Type::tensor(x, dtype)]);
            made.is_ok_and(|t| t == Type::tensor(y, dtype))
        })
    }
}

/// The types of parameters at each size that is tried: at those where different extents are different numbers, and where some are 1.
fn sizes(typed: &TypedModule, params: &[VarId]) -> [Vec<HashMap<VarId, Type>>; 2] {
    let trials = ModuleTrials::of(typed);
    let unknown: HashMap<VarId, _> = trials.params().collect();
    let at = |trial: usize| -> HashMap<VarId, Type> {
        let ty = |p: VarId| unknown.get(&p).map_or_else(|| typed.var_ty(p).clone(), |t| t.at(trial).clone());
        params.iter().map(|&p| (p, ty(p))).collect()
    };
    let mut all: Vec<HashMap<VarId, Type>> = (0..trials.count()).map(at).collect();
    // Extents of one number at all sizes are one.
    let mut extents: Vec<Vec<i64>> = Vec::new();
    let mut which: HashMap<(VarId, usize, usize), usize> = HashMap::new();
    for &p in params {
        let (Some(open), Some(tensors)) = (typed.var_ty(p).flatten(), unknown.get(&p)) else { continue };
        let flat: Vec<_> = (0..trials.count()).filter_map(|t| tensors.at(t).flatten()).collect();
        for (k, t) in open.iter().enumerate() {
            for axis in (0..t.rank()).filter(|&axis| t.shape[axis].known().is_none()) {
                let numbers: Vec<i64> = flat.iter().filter_map(|all| all.get(k)?.shape.get(axis)?.known()).collect();
                let at = extents.iter().position(|n| *n == numbers).unwrap_or_else(|| {
                    extents.push(numbers);
                    extents.len() - 1
                });
                which.insert((p, k, axis), at);
            }
        }
    }
    let with = |number: &dyn Fn(usize) -> Option<i64>| -> HashMap<VarId, Type> {
        let ty = |p: VarId, ty: &Type| match ty {
            Type::Tensor(t) => {
                let dim =
                    |(axis, d): (usize, &Dim)| which.get(&(p, 0, axis)).and_then(|&e| number(e)).map_or(*d, Dim::Known);
                crate::ir::TensorType::of(t.shape.iter().enumerate().map(dim), t.dtype).into()
            }
            other => other.clone(),
        };
        all[0].iter().map(|(&p, t)| (p, ty(p, t))).collect()
    };
    let multiple = |i: usize, e: usize| STEPS[i] * FACTORS[(e + i) % FACTORS.len()];
    let single = |i: usize| (0..extents.len()).map(move |one| (i, one));
    let ones: Vec<_> = [with(&|_| Some(1))]
        .into_iter()
        .chain(
            [0, 3]
                .into_iter()
                .flat_map(single)
                .map(|(i, one)| with(&|e| Some(if e == one { 1 } else { multiple(i, e) }))),
        )
        .collect();
    if extents.len() <= FACTORS.len() {
        let different: Vec<_> = (0..STEPS.len()).map(|i| with(&|e| Some(multiple(i, e)))).collect();
        all.extend(different);
    }
    [all, ones]
}

/// Expressions that run whenever the function does, what they read first.
fn dataflow(m: &Module, body: ExprId) -> Vec<ExprId> {
    let (mut order, mut stack, mut seen) = (Vec::new(), vec![(body, false)], hashbrown::HashSet::new());
    while let Some((e, ready)) = stack.pop() {
        if ready {
            order.push(e);
            continue;
        }
        if !seen.insert(e) {
            continue;
        }
        stack.push((e, true));
        match &m[e] {
            Expr::Call { callee, args, .. } if matches!(m[*callee], Expr::Op(_)) => {
                stack.extend(args.iter().map(|&a| (a, false)));
            }
            Expr::Tuple(fields) => stack.extend(fields.iter().map(|&f| (f, false))),
            Expr::Proj(tuple, _) => stack.push((*tuple, false)),
            _ => {}
        }
    }
    order
}

/// What is known at one size; `None` where the program does not take it.
fn run(typed: &TypedModule, order: &[ExprId], params: &HashMap<VarId, Type>) -> Option<HashMap<ExprId, Known>> {
    let m = typed.module();
    let mut known: HashMap<ExprId, Known> = HashMap::new();
    for &e in order {
        let of = |e: &ExprId| known.get(e).cloned().unwrap_or_default();
        let mut found = match &m[e] {
            Expr::Var(v) => Known { ty: params.get(v).cloned(), ..Known::default() },
            Expr::Constant(t) => {
                let value = (t.len() <= LARGEST).then(|| t.clone().into());
                Known { ty: Some(typed.ty(e).clone()), value, of_types: false }
            }
            Expr::Tuple(fields) => {
                let fields: Vec<Known> = fields.iter().map(of).collect();
                let types: Option<Vec<Type>> = fields.iter().map(|f| f.ty.clone()).collect();
                let values: Option<Vec<Value>> = fields.iter().map(|f| f.value.clone()).collect();
                let of_types = fields.iter().any(|f| f.of_types);
                Known { ty: types.map(Type::tuple), value: values.map(Value::Tuple), of_types }
            }
            Expr::Proj(tuple, i) => {
                let tuple = of(tuple);
                let ty = match &tuple.ty {
                    Some(Type::Tuple(fields)) => fields.get(*i).cloned(),
                    _ => None,
                };
                let value = match tuple.value {
                    Some(Value::Tuple(fields)) => fields.get(*i).cloned(),
                    _ => None,
                };
                Known { ty, value, of_types: tuple.of_types }
            }
            Expr::Call { .. } => match m.op_call(e) {
                Some(_) => call(m, e, &of)?,
                None => Known::default(),
            },
            _ => Known::default(),
        };
        if found
            .ty
            .as_ref()
            .is_some_and(|t| t.flatten().is_none_or(|all| all.iter().any(|t| t.known_shape().is_none())))
        {
            found.ty = None;
        }
        if found.ty.is_none() && matches!(typed.ty(e), Type::Tensor(t) if t.known_shape().is_some()) {
            found.ty = Some(typed.ty(e).clone());
        }
        known.insert(e, found);
    }
    Some(known)
}

/// What a call of an operator gives; `None` where its type relation refuses the types of its arguments.
fn call(m: &Module, e: ExprId, of: &impl Fn(&ExprId) -> Known) -> Option<Known> {
    let Some((op, args, attrs)) = m.op_call(e) else { return Some(Known::default()) };
    let given: Vec<Known> = args.iter().map(of).collect();
    let Some(types) = given.iter().map(|k| k.ty.clone()).collect::<Option<Vec<Type>>>() else {
        return Some(Known::default());
    };
    let decisive = op.op().decided_by(attrs);
    let tensors: Option<Vec<&Tensor>> = decisive
        .iter()
        .map(|&i| match &given[i].value {
            Some(Value::Tensor(t)) => Some(t),
            _ => None,
        })
        .collect();
    let ty = match tensors.filter(|t| !t.is_empty()) {
        Some(values) if !op.op().runs_as_is() => {
            let fixed = op.op().to_static(attrs, &values).ok()?;
            let types: Vec<Type> = fixed.args.iter().map(|&i| types[i].clone()).collect();
            fixed.op.op().infer(&fixed.attrs, &types).ok()?
        }
        _ => op.op().infer(attrs, &types).ok()?,
    };
    let few =
        |t: &Type| t.flatten().is_some_and(|all| all.iter().all(|t| t.elements().is_none_or(|n| n <= LARGEST as i64)));
    let of_types = op.op().reads_types_only() || given.iter().any(|k| k.of_types);
    let value = if op.op().reads_types_only() {
        let extents: Option<Vec<Vec<i64>>> = types.iter().map(|t| t.as_tensor()?.known_shape()).collect();
        extents.and_then(|extents| op.op().of_extents(attrs, &extents)).map(Value::from)
    } else if few(&ty) {
        let values: Option<Vec<Value>> = given.into_iter().map(|k| k.value).collect();
        values.and_then(|values| interp::eval_op(op, attrs, &values).ok())
    } else {
        None
    };
    Some(Known { ty: Some(ty), value, of_types })
}

#[cfg(test)]
mod tests {
    use crate::pass::dynamic_to_static::tests::after;

    /// Heads of attention as exporters write them: extents are fields of shapes.
    #[test]
    fn reshapes_by_fields_of_shapes_become_codes() {
        let text = after(
            "def @main(%x: Tensor[(?, ?, 256), float32]) {
                %0 = shape_of(%x, dtype=\"int64\");
                %1 = strided_slice(%0, begin=[0], end=[1], strides=[1]);
                %2 = strided_slice(%0, begin=[1], end=[2], strides=[1]);
                %3 = dyn.reshape(%x, concatenate((%1, %2, meta[relay.Constant][0])));
                %4 = transpose(%3, axes=[0, 2, 1, 3]);
                %5 = dyn.reshape(%4, concatenate((%1 * meta[relay.Constant][1], %2, meta[relay.Constant][2])));
                dyn.reshape(%5, concatenate((%1, meta[relay.Constant][1], %2, meta[relay.Constant][2])))
            }"
            .replace("meta[relay.Constant][0]", "stack((4i64, 64i64))")
            .replace("meta[relay.Constant][1]", "stack((4i64,))")
            .replace("meta[relay.Constant][2]", "stack((64i64,))")
            .as_str(),
        );
        assert!(!text.contains("dyn."), "{text}");
        for codes in ["newshape=[0, 0, 4, 64]", "newshape=[-3, 0, 64]", "newshape=[-4, -1, 4, 0, 64]"] {
            assert!(text.contains(codes), "{text}");
        }
    }

    /// One of two extents may be 1 and broadcast, and the larger of an extent and a constant may be the constant.
    #[test]
    fn broadcasts_that_may_be_needed_stay() {
        let text = after(
            "def @main(%x: Tensor[(?, 3), float32], %y: Tensor[(?, 3), float32]) {
                %0 = maximum(shape_of(%x, dtype=\"int64\"), shape_of(%y, dtype=\"int64\"));
                dyn.broadcast_to(%x, %0) + %y
            }",
        );
        assert!(text.contains("dyn.broadcast_to"), "{text}");
        let text = after(
            "def @main(%x: Tensor[(?, 3), float32], %y: Tensor[(12, 3), float32]) {
                %0 = maximum(shape_of(%x, dtype=\"int64\"), shape_of(%y, dtype=\"int64\"));
                dyn.broadcast_to(%x, %0) + %y
            }",
        );
        assert!(text.contains("dyn.broadcast_to") || text.contains("broadcast_to(%x, shape=[12, 3])"), "{text}");
        let text = after(
            "def @main(%x: Tensor[(?, 3), float32]) {
                dyn.broadcast_to(%x, maximum(shape_of(%x, dtype=\"int64\"), stack((20i64, 3i64))))
            }",
        );
        assert!(text.contains("dyn.broadcast_to"), "{text}");
        let text = after(
            "def @main(%x: Tensor[(?, 3), float32]) {
                dyn.broadcast_to(%x, maximum(shape_of(%x, dtype=\"int64\"), shape_of(%x * 2f, dtype=\"int64\")))
            }",
        );
        assert!(!text.contains("broadcast_to"), "{text}");
    }

    #[test]
    fn numbers_of_known_extents_are_constants() {
        let text = after(
            "def @main(%x: Tensor[(?, ?, 256), float32]) {
                %0 = divide(take(shape_of(%x, dtype=\"int64\"), 2i64, axis=0), 4i64);
                %1 = dyn.reshape(%x, shape_of(%x, dtype=\"int64\"));
                divide(%1, power(cast(%0, dtype=\"float32\"), 0.5f))
            }",
        );
        assert!(!text.contains("shape_of") && text.contains("divide(") && !text.contains("power"), "{text}");
    }

    /// Extents that differ are not taken for one another, whatever the steps that the program takes.
    #[test]
    fn different_extents_stay_different() {
        let text = after(
            "def @main(%x: Tensor[(?, ?), float32], %s: Tensor[(?, ?), float32]) {
                dyn.reshape(%x, shape_of(%s, dtype=\"int64\"))
            }",
        );
        assert!(text.contains("dyn.reshape"), "{text}");
    }
}
