//! Types at made-up sizes, where a program's extents are unknown: extents that are equal at all of these are equal at every size.
//!
//! Each unknown extent of an input gets a number of its own in each of a few trials, extents of one name the same one; the operators' type
//! relations say what follows. Two formulas of extents that agree at numbers picked without regard to either are the same formula. Where
//! the relations refuse extents that differ, these are the same in all trials but a few further ones, in which one of them is 1, where that
//! is taken: it may broadcast. Where an extent does not follow (it depends on values, say), it gets numbers of its own: then
//! nothing is known of it but that it is itself.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use egg::{Id, Language};
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxHasher;

use super::{
    Case, Fact, Node, Tables, What,
    likely::{fitting, inferred, is_known},
    meet,
};
use crate::{
    infer::TypedModule,
    ir::{Dim, Expr, ExprId, Module, TensorType, Type, VarId, children, dim_names},
};

/// How many made-up sizes there are at least: one of numbers that no small one divides, one of multiples of 6, one where what is not outermost
/// is large, beyond what slices and tables are cut to, and one where what is outermost is.
const TRIALS: usize = 4;

/// A type at each made-up size: all extents are numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trials(Arc<[Type]>);

impl Trials {
    /// The type at one of the sizes.
    pub fn at(&self, trial: usize) -> &Type {
        &self.0[trial]
    }

    /// A type for each size.
    pub fn of(types: impl IntoIterator<Item = Type>) -> Trials {
        Trials(types.into_iter().collect())
    }

    /// Numbers for a type of which nothing is known but that it is that of a certain value.
    fn own(ty: &Type, value: &impl Hash, trials: usize) -> Trials {
        Trials::of((0..trials).map(|trial| own(ty, value, trial)))
    }

    /// What is known of a value that is one of several, all of this type: extents that are the same of all keep their numbers.
    pub fn one_of(ty: &Type, values: &[&Trials]) -> Option<Trials> {
        let first = values.first()?;
        if values.iter().all(|v| v == first) {
            return Some((*first).clone());
        }
        let (trials, flat) = (first.0.len(), ty.flatten()?);
        let extents = |trial: usize| -> Vec<Vec<Dim>> {
            let tensors = values.iter().filter_map(|v| v.at(trial).flatten());
            let unknown = |t: &TensorType, of: &TensorType| -> Vec<Dim> {
                let both = t.shape.iter().zip(of.shape.iter());
                both.filter(|(_, of)| !matches!(of, Dim::Known(_))).map(|(&d, _)| d).collect()
            };
            tensors.map(|t| t.iter().zip(&flat).flat_map(|(t, of)| unknown(t, of)).collect()).collect()
        };
        // By extent of the type, in order: the numbers of all values in all trials.
        let all: Vec<Vec<Vec<Dim>>> = (0..trials).map(extents).collect();
        Some(Trials::of((0..trials).map(|trial| {
            let mut next = 0;
            filled(ty, &mut 0, &mut |_, _| {
                let numbers: Vec<Vec<Option<&Dim>>> =
                    all.iter().map(|values| values.iter().map(|v| v.get(next)).collect()).collect();
                next += 1;
                let same = numbers.iter().all(|values| values.iter().all(|n| *n == values[0]));
                match numbers[trial].first() {
                    Some(Some(Dim::Known(n))) if same => *n,
                    _ => hashed(hash(&numbers), trial),
                }
            })
        })))
    }

    /// The same with the numbers that a type has come to have; none where it has them all.
    pub fn fitted(self, ty: &Type) -> Option<Trials> {
        if is_known(ty) {
            return None;
        }
        let fits = |of: &Type| meet(ty, of).as_ref() == Some(of);
        match self.0.iter().all(fits) {
            true => Some(self),
            false => Some(Trials::of(self.0.iter().map(|at| with_known(ty, at)))),
        }
    }
}

/// Numbers in one trial for a type of which nothing is known but that it is that of a certain value.
fn own(ty: &Type, value: &impl Hash, trial: usize) -> Type {
    filled(ty, &mut 0, &mut |tensor, axis| hashed(hash(&(value, tensor, axis)), trial))
}

/// A type with a number for each unknown extent, by the tensor's place among those of the type and the axis. Whoever flattens the
/// type meets them in this order, those that are known aside.
fn filled(ty: &Type, tensor: &mut usize, number: &mut impl FnMut(usize, usize) -> i64) -> Type {
    match ty {
        Type::Tensor(t) => {
            let known = |(axis, d): (usize, &Dim)| match d {
                Dim::Known(n) => *n,
                _ => number(*tensor, axis),
            };
            let shape: Vec<i64> = t.shape.iter().enumerate().map(known).collect();
            *tensor += 1;
            Type::tensor(&shape, t.dtype)
        }
        // Types bound how deep tuples are nested.
        Type::Tuple(fields) => Type::tuple(fields.iter().map(|f| filled(f, tensor, number)).collect::<Vec<_>>()),
        _ => ty.clone(),
    }
}

/// The second type with the extents that the first one knows.
fn with_known(ty: &Type, numbers: &Type) -> Type {
    match (ty, numbers) {
        (Type::Tensor(t), Type::Tensor(n)) if t.rank() == n.rank() => {
            let known = |(&d, &n): (&Dim, &Dim)| if matches!(d, Dim::Known(_)) { d } else { n };
            TensorType::of(t.shape.iter().zip(n.shape.iter()).map(known), t.dtype).into()
        }
        (Type::Tuple(t), Type::Tuple(n)) if t.len() == n.len() => {
            Type::tuple(t.iter().zip(n.iter()).map(|(t, n)| with_known(t, n)).collect::<Vec<_>>())
        }
        _ => numbers.clone(),
    }
}

/// The number of an extent of which nothing is known, by its seed.
fn hashed(seed: u64, trial: usize) -> i64 {
    let below = |n: u64| (hash(&(seed, trial)) % n) as i64;
    match trial {
        0 => (1009 + below(1 << 14)..).find(is_prime_to_small).unwrap_or(1009),
        1 => 6 * (200 + below(1 << 12)),
        2 => (1 << 16) + below(1 << 16),
        _ => 67 + below(1 << 14),
    }
}

fn is_prime_to_small(n: &i64) -> bool {
    [2, 3, 5, 7, 11, 13].iter().all(|p| n % p != 0)
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    of.hash(&mut hasher);
    // The hasher mixes its high bits best.
    hasher.finish().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24
}

/// What numbers a program takes.
#[derive(Clone, Debug)]
struct Sizes {
    /// What all are multiples of.
    step: i64,
    /// About the greatest number of the first two trials, in steps.
    usual: i64,
    /// The greatest number of what is not outermost, and of what is, in the trials where these are large, in steps.
    most: [i64; 2],
    /// By extent: the first one that it is the same as, but where one of the two is 1.
    same: Vec<usize>,
    /// The extents that are 1 in each further trial.
    ones: Vec<Vec<usize>>,
}

/// The steps that are tried, where a program does not take any number: images that are halved and doubled again.
const STEPS: [i64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The sizes that are tried.
const USUAL: [i64; 4] = [1000, 250, 100, 60];
/// The greatest size that is tried.
const MOST: i64 = 1 << 20;

impl Sizes {
    fn trials(&self) -> usize {
        TRIALS + self.ones.len()
    }

    /// The number of one of the different extents of inputs.
    fn number(&self, extent: usize, trial: usize, outermost: bool) -> i64 {
        if self.ones.get(trial.wrapping_sub(TRIALS)).is_some_and(|ones| ones.contains(&extent)) {
            return 1;
        }
        let extent = self.same[extent];
        let fits = |n: &i64| match trial {
            1 => n % 6 == 0,
            2 | 3 => true,
            _ => is_prime_to_small(n),
        };
        let most = match (trial, outermost) {
            (2, false) => self.most[0],
            (3, true) => self.most[1],
            // What is a batch, mostly, beside large images, and the other way round.
            (2, true) => 80,
            (3, false) => 120.min(self.usual),
            _ => self.usual,
        };
        let found = (2..=most).rev().filter(fits).nth(extent);
        self.step * found.unwrap_or_else(|| hashed(extent as u64, trial))
    }
}

/// What the unknown extents of a program are at the made-up sizes.
#[derive(Debug)]
pub struct ModuleTrials {
    /// By parameter of `@main` of which some extent is unknown.
    params: HashMap<VarId, Trials>,
    /// By expression of `@main` of which some extent is unknown, as far as it is plain dataflow.
    exprs: HashMap<ExprId, Trials>,
    /// How many made-up sizes there are.
    count: usize,
}

impl ModuleTrials {
    /// Finds sizes that the program takes, and what its types are at these.
    pub fn of(typed: &TypedModule) -> ModuleTrials {
        let nothing = || ModuleTrials { params: HashMap::new(), exprs: HashMap::new(), count: TRIALS };
        let Some(main) = typed.function("main") else { return nothing() };
        let walk = Walk::new(typed, &main.params, main.body);
        if walk.extents.is_empty() {
            return nothing();
        }
        let sizes = walk.sizes();
        let count = sizes.trials();
        let trials: Vec<_> = (0..count).map(|trial| walk.run(&sizes, trial).types).collect();
        let unknown = walk.order.iter().filter(|&&e| !is_known(typed.ty(e)));
        let exprs = unknown.map(|&e| (e, Trials::of(trials.iter().map(|t| t[&e].clone())))).collect();
        let unknown = main.params.iter().filter(|&&p| !is_known(typed.var_ty(p)));
        let at = |p: VarId| Trials::of((0..count).map(|trial| walk.param(p, &sizes, trial)));
        ModuleTrials { params: unknown.map(|&p| (p, at(p))).collect(), exprs, count }
    }

    /// How many made-up sizes there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The parameters of `@main`, those of which some extent is unknown.
    pub fn params(&self) -> impl Iterator<Item = (VarId, Trials)> {
        self.params.iter().map(|(&p, trials)| (p, trials.clone()))
    }

    /// The types of an expression of `@main` as it was; none where all of them are known, or nothing follows.
    pub fn expr(&self, e: ExprId) -> Option<&Trials> {
        self.exprs.get(&e)
    }
}

/// The dataflow of `@main`, to be gone through at several sizes.
struct Walk<'a> {
    typed: &'a TypedModule,
    /// What `let`s bind.
    bound: HashMap<VarId, ExprId>,
    /// Expressions, what they read first.
    order: Vec<ExprId>,
    /// The different unknown extents of parameters, by (parameter, tensor, axis), and whether each is outermost.
    extents: HashMap<(VarId, usize, usize), (usize, bool)>,
}

/// What types are at one size.
struct Run {
    types: HashMap<ExprId, Type>,
    /// How many do not follow.
    failed: usize,
    /// The first call of an operator that the type relation refuses, and its place in the order.
    refused: Option<(usize, ExprId)>,
}

impl<'a> Walk<'a> {
    fn new(typed: &'a TypedModule, params: &[VarId], body: ExprId) -> Walk<'a> {
        let mut walk = Walk { typed, bound: HashMap::new(), order: Vec::new(), extents: HashMap::new() };
        walk.number_extents(params);
        if walk.extents.is_empty() {
            return walk;
        }
        let (mut stack, mut seen) = (vec![(body, false)], HashSet::new());
        while let Some((e, ready)) = stack.pop() {
            if ready {
                walk.order.push(e);
                continue;
            }
            if !seen.insert(e) {
                continue;
            }
            stack.push((e, true));
            match &typed[e] {
                Expr::Let { var, value, body } => {
                    walk.bound.insert(*var, *value);
                    stack.push((*body, false));
                }
                Expr::Var(v) => stack.extend(walk.bound.get(v).map(|&value| (value, false))),
                // What is inside of functions and branches is not looked at.
                other => children(other, |c| {
                    if !matches!(other, Expr::Func(_)) {
                        stack.push((c, false));
                    }
                }),
            }
        }
        walk
    }

    /// Extents of one name are one.
    fn number_extents(&mut self, params: &[VarId]) {
        let names = dim_names(self.typed.module());
        let mut named: HashMap<&str, (usize, bool)> = HashMap::new();
        let mut next = 0;
        for (i, &p) in params.iter().enumerate() {
            let Some(tensors) = self.typed.var_ty(p).flatten() else { continue };
            let single = tensors.len() == 1;
            for (tensor, t) in tensors.iter().enumerate() {
                for (axis, _) in t.shape.iter().enumerate().filter(|(_, d)| !matches!(d, Dim::Known(_))) {
                    let dims = names.get(i).filter(|d| single && d.len() == t.rank());
                    let name = dims.and_then(|d| d.get(axis)).filter(|name| !name.is_empty());
                    let mut new = || {
                        next += 1;
                        (next - 1, axis == 0 && t.rank() > 1)
                    };
                    let extent = match name {
                        Some(name) => *named.entry(name).or_insert_with(new),
                        None => new(),
                    };
                    self.extents.insert((p, tensor, axis), extent);
                }
            }
        }
    }

    fn param(&self, p: VarId, sizes: &Sizes, trial: usize) -> Type {
        filled(self.typed.var_ty(p), &mut 0, &mut |tensor, axis| match self.extents.get(&(p, tensor, axis)) {
            Some(&(extent, outermost)) => sizes.number(extent, trial, outermost),
            None => hashed(hash(&(p, tensor, axis)), trial),
        })
    }

    fn run(&self, sizes: &Sizes, trial: usize) -> Run {
        let m: &Module = self.typed.module();
        let mut run = Run { types: HashMap::with_capacity(self.order.len()), failed: 0, refused: None };
        for (place, &e) in self.order.iter().enumerate() {
            let ty = self.typed.ty(e);
            let of = |c: &ExprId| run.types.get(c).cloned();
            let found = match &m[e] {
                _ if is_known(ty) => Some(ty.clone()),
                Expr::Var(v) => match self.bound.get(v) {
                    Some(value) => of(value),
                    None => Some(self.param(*v, sizes, trial)),
                },
                Expr::Let { body, .. } => of(body),
                Expr::Tuple(fields) => fields.iter().map(of).collect::<Option<Vec<_>>>().map(Type::tuple),
                Expr::Proj(tuple, field) => match of(tuple) {
                    Some(Type::Tuple(fields)) => fields.get(*field).cloned(),
                    _ => None,
                },
                _ => m.op_call(e).and_then(|(op, args, attrs)| {
                    let args: Option<Vec<Type>> = args.iter().map(of).collect();
                    let found = op.op().infer(attrs, &args?).ok();
                    if found.is_none() && run.refused.is_none() {
                        run.refused = Some((place, e));
                    }
                    found
                }),
            };
            let found = found.and_then(|found| fitting(ty, found));
            run.failed += usize::from(found.is_none());
            run.types.insert(e, found.unwrap_or_else(|| own(ty, &e, trial)));
        }
        run
    }

    /// The sizes at which most of the types follow, large ones where that can be.
    fn sizes(&self) -> Sizes {
        let failed = |sizes: &Sizes, trial: usize| self.run(sizes, trial).failed;
        let extents = self.extents.values().map(|e| e.0 + 1).max().unwrap_or(0);
        let mut best: Option<(usize, Sizes)> = None;
        for (step, usual) in STEPS.iter().flat_map(|&step| USUAL.iter().map(move |&usual| (step, usual))) {
            let sizes = Sizes { step, usual, most: [usual; 2], same: (0..extents).collect(), ones: Vec::new() };
            let (sizes, run) = self.united(sizes);
            if best.as_ref().is_none_or(|(least, _)| run.failed < *least) {
                best = Some((run.failed, sizes));
            }
            // What depends on values follows at no size.
            if run.refused.is_none() {
                break;
            }
        }
        let (least, mut sizes) = best.expect("there are steps");
        for (k, trial) in [(0, 2), (1, 3)] {
            // Doubled as long as they are taken, and then halfway between what is and what is not.
            let takes = |most: i64| {
                let mut sizes = sizes.clone();
                sizes.most[k] = most;
                failed(&sizes, trial) <= least
            };
            if takes(MOST) {
                sizes.most[k] = MOST;
                continue;
            }
            let (mut low, mut high) = (sizes.usual, MOST);
            while high - low > 1 + low / 64 {
                let middle = low + ((high - low) / 2).min(low);
                if takes(middle) { low = middle } else { high = middle }
            }
            sizes.most[k] = low;
        }
        // An extent that has to be the same as another one, unless it is 1.
        let united = |&e: &usize| (0..extents).any(|other| other != e && sizes.same[other] == sizes.same[e]);
        let one = |ones: Vec<usize>| {
            let sizes = Sizes { ones: vec![ones.clone()], ..sizes.clone() };
            (failed(&sizes, TRIALS) <= least).then_some(ones)
        };
        let mut ones: Vec<Vec<usize>> = (0..extents).filter(united).filter_map(|e| one(vec![e])).collect();
        if ones.len() > 1 {
            ones.extend(one(ones.concat()));
        }
        Sizes { ones, ..sizes }
    }

    /// The same where extents that must not differ are the same, and the types then.
    fn united(&self, mut sizes: Sizes) -> (Sizes, Run) {
        let mut run = self.run(&sizes, 0);
        while let Some(refused) = run.refused {
            let mut pairs = self.at_odds(&sizes, &run, refused.1);
            let with = |pairs: &[(usize, usize)]| {
                let mut united = sizes.clone();
                for &(a, b) in pairs {
                    let (from, to) = (united.same[a].max(united.same[b]), united.same[a].min(united.same[b]));
                    united.same.iter_mut().filter(|s| **s == from).for_each(|s| *s = to);
                }
                let run = self.run(&united, 0);
                (united, run)
            };
            let passes = |run: &Run| run.refused.is_none_or(|next| next.0 > refused.0);
            if !passes(&with(&pairs).1) {
                break;
            }
            // Those alone without which the call is refused.
            let mut k = 0;
            while k < pairs.len() {
                let others: Vec<(usize, usize)> = [&pairs[..k], &pairs[k + 1..]].concat();
                if passes(&with(&others).1) { pairs = others } else { k += 1 }
            }
            (sizes, run) = with(&pairs);
        }
        (sizes, run)
    }

    /// Pairs of inputs' extents by which axes of a call's arguments differ; those of axes that lie alike, from the front or from the back, last.
    fn at_odds(&self, sizes: &Sizes, run: &Run, call: ExprId) -> Vec<(usize, usize)> {
        let Some((_, args, _)) = self.typed.module().op_call(call) else { return Vec::new() };
        let types: Vec<TensorType> = args.iter().filter_map(|a| run.types.get(a)?.flatten()).flatten().collect();
        let mut extents: Vec<(usize, bool)> = self.extents.values().copied().collect();
        extents.sort_unstable();
        extents.dedup();
        let mut found: Vec<(bool, usize, usize)> = Vec::new();
        for (i, x) in types.iter().enumerate() {
            for y in &types[i + 1..] {
                for (k, l) in (0..x.rank()).flat_map(|k| (0..y.rank()).map(move |l| (k, l))) {
                    let (Some(m), Some(n)) = (x.shape[k].known(), y.shape[l].known()) else { continue };
                    if m == n || m == 1 || n == 1 {
                        continue;
                    }
                    let number = |e: (usize, bool)| sizes.number(e.0, 0, e.1);
                    // They differ as two extents do, be it with the same factor.
                    let pairs = extents.iter().flat_map(|&a| extents.iter().map(move |&b| (a, b)));
                    let pair = pairs.filter(|&(a, b)| number(a) != number(b) && m * number(b) == n * number(a));
                    let alike = k == l || x.rank() - k == y.rank() - l;
                    found.extend(pair.map(|(a, b)| (alike, a.0, b.0)).next());
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found.into_iter().map(|(_, a, b)| (a, b)).collect()
    }
}

/// The type of a node's result at the made-up sizes, by those of its children; none where all of it is known.
pub(super) fn of_node<'f>(
    tables: &Tables,
    node: &Node,
    ty: Option<&Type>,
    fact: &impl Fn(Id) -> &'f Fact,
) -> Option<Trials> {
    let ty = ty.filter(|ty| !is_known(ty))?;
    let own = || Trials::own(ty, &(node.case(), node.children()), tables.trials());
    match node.case() {
        Case::Input(input) => return Some(tables.trials_of_input(input).cloned().unwrap_or_else(own)),
        Case::Opaque(_) => return Some(own()),
        _ => {}
    }
    let record = |id: Id| match fact(id).what {
        What::Attrs(attrs) => Some(attrs),
        _ => None,
    };
    let at = |trial: usize| inferred(tables, node, ty, &|id| fact(id).trial_type(trial), &record);
    let found: Option<Vec<Type>> = (0..tables.trials()).map(at).collect();
    Some(found.map_or_else(own, Trials::of))
}
