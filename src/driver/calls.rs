//! A plain sequence of calls at given extents: types, and values that decide extents, are found call by call, and what is found out
//! about a call is kept for others that are the same, be it at other sizes.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::{
    infer::{TypedModule, infer_types},
    ir::{Copier, Expr, ExprId, Function, Module, Type, VarId, reachable},
    lower::{CallAt, Form, FunctionAt, ProgramAt, argument, kept_calls, scope, types_within, typing_order},
    pass::{deciding, decisive, evaluated, primitive, static_calls},
    tensor::{DType, Shape, Tensor},
};

/// So many calls are remembered. A program that makes more different ones starts over.
const REMEMBERED: usize = 1 << 14;

/// A function that makes calls of primitive functions, one after another.
#[derive(Debug)]
pub(super) struct Sequence {
    typed: Arc<TypedModule>,
    body: ExprId,
    params: Vec<VarId>,
    /// The expressions outside of primitive functions that have values, in order.
    order: Vec<ExprId>,
    /// By number of expression: its place in that order.
    places: Vec<usize>,
    calls: HashMap<ExprId, Callee>,
    /// What decides extents, and all that it is made of.
    deciding: HashSet<ExprId>,
}

/// What one of the calls calls.
#[derive(Debug)]
struct Callee {
    func: ExprId,
    /// The expressions within, in an order in which they can be typed; none where they can't be.
    within: Option<Arc<[ExprId]>>,
    /// Equal for functions that are the same.
    form: usize,
    /// The arguments whose types the form does not tell.
    open: Vec<usize>,
    /// The arguments whose values decide extents within.
    decisive: Vec<usize>,
    /// Whether extents within may follow from values, constants among them.
    decides: bool,
    /// The variable of the input that the call's result is in the next run.
    kept: Option<VarId>,
}

/// What a call is known by: calls that have this in common are the same.
#[derive(PartialEq, Eq, Hash, Debug)]
struct Key {
    form: usize,
    /// Of the arguments that may differ where the form is the same.
    types: SmallVec<[Type; 2]>,
    /// By number of an argument whose value is known.
    values: Vec<(usize, Given)>,
    kept: Option<usize>,
    /// Whether its own value is asked for.
    decides: bool,
}

/// The value of an argument.
#[derive(PartialEq, Eq, Hash, Debug)]
enum Given {
    /// A constant of the program, which may be large: known by where it lies, as the program keeps it there.
    Constant(usize, DType, Shape),
    /// What was found out.
    Found(DType, Shape, Vec<u8>),
}

/// What is known of a call.
#[derive(Clone, Debug)]
enum Known {
    /// Its result.
    Value(Tensor),
    /// What it calls, as a function of the arguments whose values are not known.
    Call(CallAt),
}

/// The calls that were met.
#[derive(Default, Debug)]
pub(super) struct Memo {
    known: HashMap<Key, Known>,
    last: AtSize,
}

/// What is known of a program at one size.
#[derive(Default, Debug)]
struct AtSize {
    params: Vec<Type>,
    /// By place in the order. Constants have their types at all sizes.
    types: Vec<Option<Type>>,
    /// The same of calls.
    known: Vec<Option<Known>>,
}

impl Sequence {
    /// The function of that name. `computes` where extents within it may be computed.
    pub(super) fn new(typed: TypedModule, entry: &str, state: &[(usize, usize)], computes: bool) -> Option<Sequence> {
        let m = typed.module();
        let main = m.function(entry)?;
        let (body, params) = (main.body, main.params.clone());
        let kept = kept_calls(&typed, entry, state);
        let mut order = scope(&typed, body);
        order.retain(|&e| !matches!(m[e], Expr::Func(_) | Expr::Op(_) | Expr::Global(_)));
        let mut places = vec![usize::MAX; m.len()];
        order.iter().enumerate().for_each(|(place, e)| places[e.index()] = place);
        let deciding = if computes { deciding(m, body) } else { HashSet::new() };
        let mut forms: HashMap<Form, usize> = HashMap::new();
        let mut calls = HashMap::new();
        for (number, &e) in order.iter().enumerate() {
            let Expr::Call { callee, args, .. } = &m[e] else { continue };
            let f = primitive(m, *callee)?;
            let form = Form::of(m, f, |p| Some(typed.var_ty(p).clone()));
            let form = form.map_or(number, |form| *forms.entry(form).or_insert(number));
            let by_values = |e: ExprId| {
                m.op_call(e).is_some_and(|(op, _, attrs)| {
                    !op.op().decided_by(attrs).is_empty() || op.op().reads_types_only() || op.op().runs_as_is()
                })
            };
            let decides = reachable(m, [f.body]).into_iter().any(by_values);
            let is_open = |(p, arg): (&VarId, &ExprId)| !is_known(typed.var_ty(*p)) || !is_known(typed.ty(*arg));
            let open = f.params.iter().zip(args).enumerate().filter(|&(_, both)| is_open(both)).map(|(i, _)| i);
            let (open, within) = (open.collect(), typing_order(m, f).map(Arc::from));
            let (decisive, kept) = (decisive(m, f), kept.get(&e).copied());
            calls.insert(e, Callee { func: *callee, within, form, open, decisive, decides, kept });
        }
        Some(Sequence { typed: Arc::new(typed), body, params, order, places, calls, deciding })
    }

    /// The module of the function.
    pub(super) fn typed(&self) -> &TypedModule {
        &self.typed
    }

    /// The program for arguments of these types, whose extents are known, where some parameters, by number, have these values. None where
    /// a type does not fit, or extents depend on other values.
    pub(super) fn at(&self, params: Vec<Type>, values: &[(usize, Tensor)], memo: &mut Memo) -> Option<ProgramAt> {
        self.at_with(params, values, memo, &mut |_, _| {})
    }

    /// The same; `on_new` gets functions that were not met before as soon as they are known, with the first call of each.
    pub(super) fn at_with(
        &self,
        params: Vec<Type>,
        values: &[(usize, Tensor)],
        memo: &mut Memo,
        on_new: &mut dyn FnMut(ExprId, &Arc<FunctionAt>),
    ) -> Option<ProgramAt> {
        let m = self.typed.module();
        let fits = |(p, ty): (&VarId, &Type)| is_instance(ty, self.typed.var_ty(*p));
        if params.len() != self.params.len() || !self.params.iter().zip(&params).all(fits) {
            return None;
        }
        let count = self.order.len();
        // What is not as it was at the last size takes the place of what was.
        let mut here = std::mem::take(&mut memo.last);
        let is_first = here.types.len() != count;
        if is_first {
            here = AtSize { params: Vec::new(), types: vec![None; count], known: vec![None; count] };
        }
        here.params = params;
        // By place: whether calls of it are what they were at the last size.
        let mut same: Vec<bool> = Vec::with_capacity(count);
        for (place, &e) in self.order.iter().enumerate() {
            let operands = match &m[e] {
                Expr::Tuple(fields) => &fields[..],
                Expr::Proj(tuple, _) => std::slice::from_ref(tuple),
                Expr::Call { args, .. } => &args[..],
                _ => &[],
            };
            let is_same = |e: &ExprId| same.get(self.places[e.index()]).copied().unwrap_or(false);
            if !is_first && !operands.is_empty() && operands.iter().all(is_same) {
                same.push(true);
                continue;
            }
            let mut known = None;
            let ty = match &m[e] {
                Expr::Var(v) => {
                    let number = self.params.iter().position(|p| p == v)?;
                    known = values.iter().find(|(n, _)| *n == number).map(|(_, value)| Known::Value(value.clone()));
                    here.params[number].clone()
                }
                Expr::Constant(_) => {
                    same.push(true);
                    continue;
                }
                Expr::Tuple(fields) => {
                    let ty = |f: &ExprId| self.ty(*f, &here.types).cloned();
                    Type::tuple(fields.iter().map(ty).collect::<Option<Vec<Type>>>()?)
                }
                Expr::Proj(tuple, i) => match self.ty(*tuple, &here.types)? {
                    Type::Tuple(fields) => fields.get(*i)?.clone(),
                    _ => return None,
                },
                Expr::Call { args, .. } => match known.insert(self.call(e, args, &here, &mut memo.known, on_new)?) {
                    Known::Value(value) => Type::tensor(&extents(value), value.dtype()),
                    Known::Call(call) => call.function.result().clone(),
                },
                _ => return None,
            };
            if !is_instance(&ty, self.typed.ty(e)) {
                return None;
            }
            // Calls of it are told apart by its type, and by its value where that is known.
            let is_value = |known: &Option<Known>| matches!(known, Some(Known::Value(_)));
            let as_before = here.types[place].as_ref() == Some(&ty) && !is_value(&here.known[place]);
            same.push(as_before && !is_value(&known));
            here.types[place] = Some(ty);
            here.known[place] = known;
        }
        let (params, result) = (here.params.clone(), self.ty(self.body, &here.types)?.clone());
        let needed = self.needed(&here.known);
        let (mut values, mut calls) = (HashMap::new(), HashMap::with_capacity(self.calls.len()));
        let mut order = Vec::with_capacity(count);
        for ((&e, known), _) in self.order.iter().zip(&here.known).zip(&needed).filter(|(_, needed)| **needed) {
            order.push(e);
            match known {
                Some(Known::Value(value)) => _ = values.insert(e, value.clone()),
                Some(Known::Call(call)) => _ = calls.insert(e, call.clone()),
                None => {}
            }
        }
        memo.last = here;
        Some(ProgramAt { params, result, values, order, calls })
    }

    /// The type of an expression, where these are those that come first in the order.
    fn ty<'t>(&'t self, e: ExprId, types: &'t [Option<Type>]) -> Option<&'t Type> {
        let at_hand = types.get(self.places[e.index()])?.as_ref();
        Some(at_hand.unwrap_or_else(|| self.typed.ty(e)))
    }

    /// What the result is made of, by place in the order.
    fn needed(&self, known: &[Option<Known>]) -> Vec<bool> {
        let m = self.typed.module();
        let mut needed = vec![false; self.order.len()];
        let place = |e: &ExprId| self.places[e.index()];
        needed[place(&self.body)] = true;
        for (at, &e) in self.order.iter().enumerate().rev() {
            if !needed[at] {
                continue;
            }
            match &m[e] {
                _ if matches!(known[at], Some(Known::Value(_))) => {}
                Expr::Tuple(fields) => fields.iter().for_each(|f| needed[place(f)] = true),
                Expr::Proj(tuple, _) => needed[place(tuple)] = true,
                Expr::Call { args, .. } => match &known[at] {
                    Some(Known::Call(CallAt { taken: Some(taken), .. })) => {
                        taken.iter().for_each(|&i| needed[place(&args[i])] = true)
                    }
                    _ => args.iter().for_each(|a| needed[place(a)] = true),
                },
                _ => {}
            }
        }
        needed
    }

    fn call(
        &self,
        e: ExprId,
        args: &[ExprId],
        here: &AtSize,
        memo: &mut HashMap<Key, Known>,
        on_new: &mut dyn FnMut(ExprId, &Arc<FunctionAt>),
    ) -> Option<Known> {
        let m = self.typed.module();
        let callee = self.calls.get(&e)?;
        let ty = |i: usize| self.ty(args[i], &here.types).cloned();
        let open: SmallVec<[Type; 2]> = callee.open.iter().map(|&i| ty(i)).collect::<Option<_>>()?;
        let decides = !self.deciding.is_empty() && self.deciding.contains(&e);
        let value = |(i, a): (usize, &ExprId)| match &m[*a] {
            _ if !decides && !callee.decisive.contains(&i) => None,
            Expr::Constant(t) => Some(t.clone()),
            _ => match here.known.get(self.places[a.index()]) {
                Some(Some(Known::Value(value))) => Some(value.clone()),
                _ => None,
            },
        };
        // By number of an argument, where any may be known.
        let given: Vec<Option<Tensor>> = match decides || !callee.decisive.is_empty() {
            true => args.iter().enumerate().map(value).collect(),
            false => Vec::new(),
        };
        let values = given.iter().enumerate().filter_map(|(i, t)| {
            let t = t.as_ref()?;
            let given = match &m[args[i]] {
                Expr::Constant(c) => Given::Constant(c.bytes().as_ptr() as usize, c.dtype(), c.shape().into()),
                _ => Given::Found(t.dtype(), t.shape().into(), t.bytes().to_vec()),
            };
            Some((i, given))
        });
        let kept = self.kept(callee, args);
        let key = Key { form: callee.form, types: open, values: values.collect(), kept, decides };
        if let Some(known) = memo.get(&key) {
            return Some(known.clone());
        }
        let types: Vec<Type> = (0..args.len()).map(ty).collect::<Option<_>>()?;
        let known = self.made(callee, args, types, &given, decides)?;
        if let Known::Call(call) = &known {
            on_new(e, &call.function);
        }
        if memo.len() >= REMEMBERED {
            memo.clear();
        }
        memo.insert(key, known.clone());
        Some(known)
    }

    /// The number of the argument that is what the program keeps, where the call gives that for the next run.
    fn kept(&self, callee: &Callee, args: &[ExprId]) -> Option<usize> {
        callee.kept.and_then(|var| argument(&self.typed, args, var))
    }

    fn made(
        &self,
        callee: &Callee,
        args: &[ExprId],
        params: Vec<Type>,
        given: &[Option<Tensor>],
        decides: bool,
    ) -> Option<Known> {
        let m = self.typed.module();
        let f = m.func(callee.func);
        let within = types_within(&self.typed, f, callee.within.as_ref()?, &params)?;
        let hole = Type::Hole(0);
        let ty = |e: ExprId| within.get(&e).unwrap_or(&hole);
        if let Expr::Constant(t) = &m[f.body] {
            return Some(Known::Value(t.clone()));
        }
        if let Some(value) = decides.then(|| evaluated(m, f, &ty, given)).flatten() {
            return Some(Known::Value(value));
        }
        if !callee.decides {
            let result = Some(ty(f.body).clone()).filter(is_known)?;
            let (typed, kept) = (self.typed.clone(), self.kept(callee, args));
            let function = FunctionAt::new(typed, callee.func, params, result, kept, callee.within.clone());
            return Some(Known::Call(CallAt { function: Arc::new(function), taken: None }));
        }
        let known: Vec<usize> = callee.decisive.iter().copied().filter(|&i| given[i].is_some()).collect();
        let left: Vec<usize> = (0..f.params.len()).filter(|i| !known.contains(i)).collect();
        let params: Vec<Type> = left.iter().map(|&i| params[i].clone()).collect();
        let typed = with_values(m, f, &left, &params, given)?;
        let func = typed.module().function_id(ALONE)?;
        let result = Some(typed.result_type(ALONE).clone()).filter(is_known)?;
        let args: Vec<ExprId> = left.iter().map(|&i| args[i]).collect();
        let (typed, kept) = (Arc::new(typed), self.kept(callee, &args));
        let function = FunctionAt::new(typed, func, params, result, kept, None);
        Some(Known::Call(CallAt { function: Arc::new(function), taken: Some(left) }))
    }
}

/// What a function of which some arguments are known is called in a module of its own.
const ALONE: &str = "alone";

/// The function with the values that are given in the place of parameters that are not `left`.
fn with_values(
    m: &Module,
    f: &Function,
    left: &[usize],
    types: &[Type],
    given: &[Option<Tensor>],
) -> Option<TypedModule> {
    // Variables keep their numbers where some are bound within.
    let binds = reachable(m, [f.body]).into_iter().any(|e| matches!(m[e], Expr::Let { .. }));
    let mut out = if binds { m.derive() } else { Module::new() };
    let mut bound: HashMap<VarId, ExprId> = HashMap::new();
    let mut params = Vec::new();
    for (&i, ty) in left.iter().zip(types) {
        let var = out.new_var(m.var(f.params[i]).name.clone(), Some(ty.clone()));
        bound.insert(f.params[i], out.add(Expr::Var(var)));
        params.push(var);
    }
    for (i, &p) in f.params.iter().enumerate().filter(|(i, _)| !left.contains(i)) {
        bound.insert(p, out.constant(given[i].clone()?));
    }
    let body = Copier::new().copy_with(m, f.body, &mut out, |_, _, e| match e {
        Expr::Var(v) => bound.get(v).copied(),
        _ => None,
    });
    let func = Function { type_params: vec![], params, ret: None, body, attrs: f.attrs.clone() };
    let func = out.add(Expr::Func(Box::new(func)));
    out.define(ALONE, func);
    static_calls(infer_types(out).ok()?).ok()
}

fn is_known(ty: &Type) -> bool {
    ty.flatten().is_some_and(|all| all.iter().all(|t| t.known_shape().is_some()))
}

/// Whether a type is another one whose unknown extents may be any.
fn is_instance(ty: &Type, of: &Type) -> bool {
    match (ty, of) {
        (Type::Tensor(t), Type::Tensor(of)) => {
            let fits = |(n, of): (&crate::ir::Dim, &crate::ir::Dim)| of.known().is_none() || n == of;
            t.dtype == of.dtype && t.shape.len() == of.shape.len() && t.shape.iter().zip(of.shape.iter()).all(fits)
        }
        (Type::Tuple(fields), Type::Tuple(of)) => {
            fields.len() == of.len() && fields.iter().zip(of.iter()).all(|(t, of)| is_instance(t, of))
        }
        _ => ty == of,
    }
}

fn extents(t: &Tensor) -> Vec<i64> {
    t.shape().iter().map(|&n| n as i64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::text::parse_module;

    /// Two calls that are the same but for extents, and one whose extents are computed.
    const PROGRAM: &str = "#[version = \"0.0.5\"]
        def @main(%x: Tensor[(?, 8, ?, 6), float32]) {
            %0 = fn (%a: Tensor[(?, 8, ?, ?), float32], Primitive=1) {
                nn.relu(nn.max_pool2d(%a, pool_size=[2, 2], strides=[2, 2])) };
            %1 = %0(%x);
            %2 = fn (%b: Tensor[(?, 8, ?, ?), float32], Primitive=1) {
                nn.relu(nn.max_pool2d(%b, pool_size=[2, 2], strides=[2, 2])) };
            %3 = %2(%1);
            %4 = fn (%c: Tensor[(?, 8, ?, ?), float32], Primitive=1) {
                concatenate((strided_slice(shape_of(%c, dtype=\"int64\"), begin=[0], end=[1], strides=[1]), stack((-1i64, 16i64), axis=0)), axis=0) };
            %5 = %4(%3);
            %6 = fn (%d: Tensor[(?, 8, ?, ?), float32], %s: Tensor[(3), int64], Primitive=1) {
                negative(dyn.reshape(%d, %s)) };
            (%6(%x, %5), %3) }";

    fn sequence() -> Sequence {
        let m = parse_module("test", PROGRAM).unwrap_or_else(|e| panic!("{e}"));
        Sequence::new(infer_types(m).expect("well typed"), "main", &[], true).expect("a plain sequence")
    }

    fn of(shape: &[i64]) -> Vec<Type> {
        vec![Type::tensor(shape, DType::F32)]
    }

    #[test]
    fn types_and_values_are_found_call_by_call() {
        let (sequence, mut memo) = (sequence(), Memo::default());
        for n in [1, 2, 5] {
            let at = sequence.at(of(&[n, 8, 12, 6]), &[], &mut memo).expect("extents follow");
            let result = Type::tuple([Type::tensor(&[n, 36, 16], DType::F32), Type::tensor(&[n, 8, 3, 1], DType::F32)]);
            assert_eq!(at.result, result, "{n}");
            // What computes extents is no call any more.
            assert_eq!((at.calls.len(), at.values.len()), (3, 0));
            let reshaped = at.calls.values().find(|c| c.taken.is_some()).expect("its extents were computed");
            assert_eq!(reshaped.taken.as_deref(), Some(&[0][..]));
        }
        // What was met is not looked at again: the same call is the same function.
        let first = sequence.at(of(&[2, 8, 12, 6]), &[], &mut memo).expect("extents follow");
        let known = memo.known.len();
        let again = sequence.at(of(&[2, 8, 12, 6]), &[], &mut memo).expect("extents follow");
        assert_eq!(memo.known.len(), known);
        for (e, call) in first.in_order() {
            assert!(Arc::ptr_eq(&call.function, &again.calls[&e].function));
        }
    }

    /// Of two calls that are the same, one is a result, and the value of the other decides extents.
    #[test]
    fn a_value_that_decides_is_found_beside_the_same_call() {
        let text = "#[version = \"0.0.5\"]
            def @main(%x: Tensor[(?, 4), float32]) {
                %0 = fn (%a: Tensor[(?, 4), float32], Primitive=1) { multiply(shape_of(%a, dtype=\"int64\"), 1i64) };
                %1 = %0(%x);
                %2 = fn (%b: Tensor[(?, 4), float32], Primitive=1) { multiply(shape_of(%b, dtype=\"int64\"), 1i64) };
                %3 = %2(%x);
                %4 = fn (%c: Tensor[(?, 4), float32], %s: Tensor[(2), int64], Primitive=1) { negative(dyn.reshape(%c, %s)) };
                (%1, %4(%x, %3)) }";
        let m = parse_module("test", text).unwrap_or_else(|e| panic!("{e}"));
        let sequence = Sequence::new(infer_types(m).expect("well typed"), "main", &[], true).expect("a plain sequence");
        for n in [3, 5] {
            assert!(sequence.at(of(&[n, 4]), &[], &mut Memo::default()).is_some(), "{n}");
        }
    }

    /// What is taken from the size before is what would be found out.
    #[test]
    fn sizes_follow_each_other() {
        let (sequence, mut memo) = (sequence(), Memo::default());
        for shape in
            [[2, 8, 12, 6], [2, 8, 12, 6], [3, 8, 12, 6], [3, 8, 4, 6], [6, 8, 4, 6], [6, 8, 8, 6], [2, 8, 12, 6]]
        {
            let here = sequence.at(of(&shape), &[], &mut memo).expect("extents follow");
            let alone = sequence.at(of(&shape), &[], &mut Memo::default()).expect("extents follow");
            assert_eq!((&here.result, &here.order), (&alone.result, &alone.order), "{shape:?}");
            for (e, call) in alone.in_order() {
                let same = &here.calls[&e];
                assert_eq!((same.function.result(), &same.taken), (call.function.result(), &call.taken), "{shape:?}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_none() {
        let (sequence, mut memo) = (sequence(), Memo::default());
        for wrong in [&[2, 9, 12, 6][..], &[2, 8, 12, 7], &[2, 8, 12], &[2, 8, 1, 6]] {
            assert!(sequence.at(of(wrong), &[], &mut memo).is_none(), "{wrong:?}");
        }
    }
}
