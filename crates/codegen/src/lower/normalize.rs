//! Which tensors of a group exist in memory: cheap definitions are written into their readers, the rest become *steps*, and a
//! step that only post-processes a reduction becomes that reduction's epilogue. Routines stand between runs of steps; a step that only
//! post-processes what a routine stores vector by vector is written into those stores.

use std::{borrow::Cow, sync::Arc};

use hashbrown::{HashMap, HashSet};

use super::{
    affine::{Substitution, for_each_node},
    excess::round_once,
    index::Simplifier,
};
use crate::{
    loops::{
        Axis, AxisId, BinOp, Body, Combine, Definition, LoopKind, Routine, Scalar, ScalarKind, Stage, Stages, Stmt,
        TensorId, UnOp,
    },
    tensor::DType,
};

/// A reduction whose values are combined in registers.
#[derive(Clone, Debug)]
pub(crate) struct Reduction {
    /// The tensor of combined values, which exists only in registers where the step stores another.
    pub tensor: TensorId,
    /// What is reduced over, outermost first.
    pub axes: Vec<Axis>,
    /// How.
    pub combine: Combine,
    /// Each value.
    pub value: Scalar,
    /// Whether it is one part of a sum, and what follows is the next one along the outermost axis.
    pub followed: bool,
}

/// The computation of one tensor that exists in memory.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The tensor that is stored.
    pub tensor: TensorId,
    /// Its axes.
    pub axes: Vec<Axis>,
    /// What is combined first, if anything is.
    pub reduction: Option<Reduction>,
    /// What is stored: reads of the reduction's tensor at the step's axes mean the combined value.
    pub value: Scalar,
}

/// All reads of an expression, each distinct node once.
pub(crate) fn reads(e: &Scalar) -> Vec<(TensorId, Vec<Scalar>)> {
    let mut all = Vec::new();
    for_each_node(e, &mut |n| {
        if let ScalarKind::Read(t, index) = n.kind() {
            all.push((*t, index.clone()));
        }
    });
    all
}

fn value_of(stage: &Stage) -> &Scalar {
    match &stage.body {
        Body::Map(v) => v,
        Body::Reduce { value, .. } => value,
    }
}

/// A part of a group's work, after that of the parts before.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there are few parts")]
pub(crate) enum Part<'a> {
    /// Computations that schedules arrange, in order.
    Steps(Vec<Step>),
    /// Statements that run as they are, but for what is stored.
    Routine(Cow<'a, Routine>, Option<Box<Stored>>),
}

/// What statements that are the same at all sizes store instead of one of their tensors, which is in no memory: what the step makes of each
/// element of it, in its place.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// The tensor.
    pub instead_of: TensorId,
    /// The step, which reads it at its own axes.
    pub step: Step,
}

impl Part<'_> {
    /// The tensors that it reads.
    pub(crate) fn reads(&self) -> Vec<TensorId> {
        match self {
            Part::Steps(steps) => steps
                .iter()
                .flat_map(|s| reads(&s.value).into_iter().chain(s.reduction.iter().flat_map(|r| reads(&r.value))))
                .map(|(t, _)| t)
                .collect(),
            Part::Routine(r, stored) => {
                let of_step = stored.iter().flat_map(|s| reads(&s.step.value)).map(|(t, _)| t);
                r.reads().into_iter().chain(of_step).collect()
            }
        }
    }
}

/// Whether a definition reads a tensor.
fn is_read_by(d: &Definition, t: TensorId) -> bool {
    match d {
        Definition::Stage(s) => reads(value_of(s)).iter().any(|(r, _)| *r == t),
        Definition::Routine(r) => r.reads().contains(&t),
    }
}

/// The work of a group, in order. `whole` says of which types operands of products are read whole rows at a time, so that padding can't
/// be decided where it is read. `decide` gets what tells whether a definition is to be written into its readers, and has the last word. The
/// extents of `changing` axes are others at other sizes. `once` says that what comes of a
/// sum of `bfloat16` is rounded once, and whether the machine does so by an instruction that takes what is too small to be normal for zero.
pub(crate) fn parts<'a>(
    group: &'a Stages,
    once: Option<bool>,
    whole: &dyn Fn(DType) -> bool,
    changing: Option<&HashSet<AxisId>>,
    decide: &mut dyn FnMut(&dyn Fn() -> bool) -> bool,
) -> Vec<Part<'a>> {
    let mut inlined: HashMap<TensorId, (Vec<AxisId>, Scalar)> = HashMap::new();
    let mut kept: Vec<Cow<'a, Definition>> = Vec::new();
    for (at, definition) in group.definitions.iter().enumerate() {
        let expand = |e: &Scalar| expand(e, &inlined);
        let stage = match definition {
            Definition::Stage(s) => s,
            Definition::Routine(r) if stands(r, &inlined) => {
                kept.push(Cow::Borrowed(definition));
                continue;
            }
            Definition::Routine(r) => {
                kept.push(Cow::Owned(Definition::Routine(r.map(&mut |e| expand(e)))));
                continue;
            }
        };
        let body = match &stage.body {
            Body::Map(v) => Body::Map(expand(v)),
            Body::Reduce { axes, combine, value } => {
                Body::Reduce { axes: axes.clone(), combine: *combine, value: expand(value) }
            }
        };
        let stage = Stage { body, ..stage.clone() };
        match &stage.body {
            Body::Map(v)
                if !group.results.contains(&stage.tensor) && decide(&|| may_inline(group, at, v, whole, changing)) =>
            {
                inlined.insert(stage.tensor, (stage.axes.iter().map(|a| a.id).collect(), v.clone()));
            }
            _ => kept.push(Cow::Owned(Definition::Stage(stage))),
        }
    }
    let mut parts = Vec::new();
    let mut run: Vec<Stage> = Vec::new();
    let routines = kept.iter().filter_map(|d| match &**d {
        Definition::Routine(r) => Some(&r.defines),
        Definition::Stage(_) => None,
    });
    let sums: HashSet<TensorId> = routines.flatten().copied().filter(|&t| group.decl(t).dtype == DType::F32).collect();
    let round = |step: &mut Step| {
        if let Some(flush) = once {
            round_once(step, &|t| sums.contains(&t), flush);
        }
    };
    for (at, d) in kept.iter().enumerate() {
        let routine = match d {
            Cow::Borrowed(Definition::Routine(r)) => Cow::Borrowed(r),
            Cow::Owned(Definition::Routine(r)) => Cow::Owned(r.clone()),
            Cow::Borrowed(Definition::Stage(s)) | Cow::Owned(Definition::Stage(s)) => {
                run.push(s.clone());
                continue;
            }
        };
        finish_run(group, std::mem::take(&mut run), &kept[at..], &round, changing, &mut parts);
        parts.push(Part::Routine(routine, None));
    }
    finish_run(group, run, &[], &round, changing, &mut parts);
    into_stores(group, &mut parts, changing.is_some());
    parts
}

/// Whether a routine reads nothing that is written into its readers.
fn stands(r: &Routine, inlined: &HashMap<TensorId, (Vec<AxisId>, Scalar)>) -> bool {
    inlined.is_empty() || r.shared.is_some() && r.reads().iter().all(|t| !inlined.contains_key(t))
}

/// Writes the first step after a routine into the routine's stores, where it alone reads what these store. Where extents change from size to size,
/// so it is with statements that are the same at all of them.
fn into_stores(group: &Stages, parts: &mut Vec<Part<'_>>, is_sized: bool) {
    for at in 1..parts.len() {
        let [Part::Routine(routine, None), Part::Steps(steps)] = &parts[at - 1..=at] else { continue };
        let Some((step, others)) = steps.split_first() else { continue };
        let Some(t) = routine.defines.iter().copied().find(|t| reads(&step.value).iter().any(|(r, _)| r == t)) else {
            continue;
        };
        let rest = Part::Steps(others.to_vec());
        let unread = |p: &Part<'_>| !p.reads().contains(&t);
        let alone = !group.results.contains(&t) && unread(&rest) && parts[at + 1..].iter().all(unread);
        if !alone || !is_made_of(group, routine, t, step) {
            continue;
        }
        let stored = match (&routine.shared, is_sized) {
            (Some(shared), true) => shared.stored_in_vectors.contains(&t).then(|| {
                let stored = Stored { instead_of: t, step: step.clone() };
                Part::Routine(routine.clone(), Some(Box::new(stored)))
            }),
            (None, true) => None,
            (_, false) => stored_as(routine, t, step).map(|r| Part::Routine(Cow::Owned(r), None)),
        };
        if let Some(stored) = stored {
            parts[at - 1] = stored;
            parts[at] = rest;
        }
    }
    parts.retain(|p| !matches!(p, Part::Steps(steps) if steps.is_empty()));
}

/// Whether a step takes each element of a routine's tensor `t` to one of its own, and the routine itself does not read `t`.
fn is_made_of(group: &Stages, routine: &Routine, t: TensorId, step: &Step) -> bool {
    let same_shape = group.decl(t).shape == group.decl(step.tensor).shape;
    let own = |r: TensorId| r == t || !routine.defines.contains(&r);
    let fits = reads(&step.value).iter().all(|(r, index)| own(*r) && (*r != t || is_identity(index, &step.axes)));
    let starts = routine.starts.iter().any(|s| s.tensor == t);
    step.reduction.is_none() && same_shape && fits && !starts && !routine.reads().contains(&t)
}

/// A routine that stores what a step makes of its tensor `t`, in the place of `t`, where it stores vectors of `t`.
fn stored_as(routine: &Routine, t: TensorId, step: &Step) -> Option<Routine> {
    let body = store_as(&routine.body, false, &|buffer, flat, stored| {
        if buffer != t {
            return Some(None);
        }
        let place = routine.places.iter().find(|p| p.flat == *flat)?;
        let with = step.axes.iter().map(|a| a.id).zip(place.index.iter().cloned());
        let value = at_place(&step.value, with, |r| (r == t).then(|| stored.clone()));
        Some(Some(Stmt::Store { buffer: step.tensor, index: flat.clone(), value }))
    })?;
    let defines = routine.defines.iter().map(|&d| if d == t { step.tensor } else { d }).collect();
    Some(Routine { defines, body: Arc::new(body), shared: None, ..routine.clone() })
}

/// A value with other expressions for its axes, and for reads of some tensors.
pub(crate) fn at_place(
    value: &Scalar,
    with: impl Iterator<Item = (AxisId, Scalar)>,
    read: impl Fn(TensorId) -> Option<Scalar>,
) -> Scalar {
    let with: HashMap<AxisId, Scalar> = with.collect();
    Substitution::new(|s: &Scalar| match s.kind() {
        ScalarKind::Read(r, _) => read(*r),
        ScalarKind::Axis(a) => with.get(a).cloned(),
        _ => None,
    })
    .apply(value)
}

/// The statements with other stores: `store` gets buffer, index and value, and gives another statement, or nothing where it stays. `None`
/// where it refuses, or a store that is to be another is not of a vector.
pub(crate) fn store_as(
    s: &Stmt,
    is_vector: bool,
    store: &impl Fn(TensorId, &Scalar, &Scalar) -> Option<Option<Stmt>>,
) -> Option<Stmt> {
    let within = |s: &Stmt| Some(Box::new(store_as(s, is_vector, store)?));
    Some(match s {
        Stmt::Block(all) => Stmt::Block(all.iter().map(|s| store_as(s, is_vector, store)).collect::<Option<_>>()?),
        Stmt::For { var, extent, kind, body } => {
            let body = Box::new(store_as(body, is_vector || *kind == LoopKind::Vector, store)?);
            Stmt::For { var: *var, extent: extent.clone(), kind: *kind, body }
        }
        Stmt::Let { var, value, body } => Stmt::Let { var: *var, value: value.clone(), body: within(body)? },
        Stmt::While { cond, body } => Stmt::While { cond: cond.clone(), body: within(body)? },
        Stmt::If { cond, then, otherwise } => {
            let otherwise = match otherwise {
                Some(o) => Some(within(o)?),
                None => None,
            };
            Stmt::If { cond: cond.clone(), then: within(then)?, otherwise }
        }
        Stmt::Store { buffer, index, value } => match store(*buffer, index, value)? {
            Some(_) if !is_vector => return None,
            Some(other) => other,
            None => s.clone(),
        },
        Stmt::Prefetch { .. } | Stmt::Transpose { .. } | Stmt::Tiles { .. } => s.clone(),
    })
}

/// A map as a step by itself.
pub(crate) fn map_step(stage: &Stage, changing: Option<&HashSet<AxisId>>) -> Step {
    let value = value_of(stage).clone();
    let mut step = Step { tensor: stage.tensor, axes: stage.axes.clone(), reduction: None, value };
    simplify(&mut step, changing);
    step
}

/// Makes steps of a run of stages, of which `later` definitions read some; `round` leaves roundings out of each.
fn finish_run(
    group: &Stages,
    run: Vec<Stage>,
    later: &[Cow<'_, Definition>],
    round: &dyn Fn(&mut Step),
    changing: Option<&HashSet<AxisId>>,
    parts: &mut Vec<Part<'_>>,
) {
    if run.is_empty() {
        return;
    }
    let mut steps = attach_epilogues(group, run, later);
    steps.iter_mut().for_each(|s| {
        simplify(s, changing);
        round(s);
    });
    parts.push(Part::Steps(steps));
}

fn simplify(step: &mut Step, changing: Option<&HashSet<AxisId>>) {
    let reduced = step.reduction.iter().flat_map(|r| &r.axes);
    let extents = step.axes.iter().chain(reduced).map(|a| (a.id, a.extent)).collect();
    let mut simplifier = Simplifier::new(&extents).with_changing(changing, u32::MAX);
    step.value = simplifier.simplify(&step.value);
    if let Some(r) = &mut step.reduction {
        r.value = simplifier.simplify(&r.value);
    }
}

/// The expression with reads of inlined tensors replaced by their definitions.
fn expand(e: &Scalar, inlined: &HashMap<TensorId, (Vec<AxisId>, Scalar)>) -> Scalar {
    if inlined.is_empty() {
        return e.clone();
    }
    // Equal reads share one expansion, so that a diamond stays a diamond.
    let mut expansions: Vec<(TensorId, Vec<Scalar>, Scalar)> = Vec::new();
    Substitution::new(|s: &Scalar| {
        let ScalarKind::Read(t, index) = s.kind() else { return None };
        let (axes, definition) = inlined.get(t)?;
        if let Some((_, _, done)) = expansions.iter().find(|(u, i, _)| u == t && i == index) {
            return Some(done.clone());
        }
        let with: HashMap<AxisId, Scalar> = axes.iter().copied().zip(index.iter().cloned()).collect();
        let new = super::affine::replace_axes(definition, &with);
        expansions.push((*t, index.clone(), new.clone()));
        Some(new)
    })
    .apply(e)
}

/// How much an element costs to compute again, in operations; guarded reads count because they keep loops from vectorizing.
pub(super) fn expense(e: &Scalar) -> u32 {
    let mut cost = 0;
    for_each_node(e, &mut |n| {
        cost += match n.kind() {
            ScalarKind::Select(..) => 4,
            ScalarKind::Unary(UnOp::Neg | UnOp::Abs | UnOp::Not, _) => 1,
            ScalarKind::Unary(..) => 16,
            ScalarKind::Binary(BinOp::Div | BinOp::Rem | BinOp::FloorDiv | BinOp::FloorMod | BinOp::Pow, ..) => 8,
            ScalarKind::Binary(_, a, _) if a.dtype() != crate::tensor::DType::I64 => 1,
            _ => 0,
        }
    });
    cost
}

/// An expense that includes a function.
const FUNCTION: u32 = 16;
/// Definitions of this expense (mere reads) are computed again rather than stored, even where a reduction reads them often.
const CHEAP: u32 = 0;
/// Definitions up to this expense are computed again in several readers.
const CHEAP_FOR_SEVERAL: u32 = 4;

/// Padding is decided again at each of so many visits of an element, on average, rather than stored.
const VISITS_OF_PADDING: i64 = 9;

/// Whether a definition is an element of another tensor, or a constant where that has none.
fn is_padding(value: &Scalar) -> bool {
    let ScalarKind::Select(cond, a, b) = value.kind() else { return false };
    let constant = |s: &Scalar| matches!(s.kind(), ScalarKind::Int(_) | ScalarKind::Float(_));
    let read = |s: &Scalar| matches!(s.kind(), ScalarKind::Read(..));
    (read(a) && constant(b) || constant(a) && read(b)) && reads(cond).is_empty()
}

/// Numbers that are unpacked from bytes are unpacked again at each of so many visits of one, on average, rather than stored.
const VISITS_OF_UNPACKED: i64 = 16;

/// Whether a definition makes floats of bytes that are given, by little arithmetic: what is stored would be several times as large.
fn is_unpacking(group: &Stages, value: &Scalar, expense: u32) -> bool {
    let bytes = |t: TensorId| group.args.contains(&t) && matches!(group.decl(t).dtype, DType::I8 | DType::U8);
    value.dtype().is_float() && expense < FUNCTION && reads(value).iter().any(|(t, _)| bytes(*t))
}

/// Where extents change from size to size, edges are treated apart along axes that are at least so long. Of shorter ones more lies at an edge, and
/// copies with padding stay in the second cache.
const LONG: i64 = 48;

/// Whether a condition is about axes whose extents change from size to size, and of which some are short.
fn is_about_short(value: &Scalar, axes: &[Axis], changing: Option<&HashSet<AxisId>>) -> bool {
    let Some(changing) = changing else { return false };
    let short = |a: &AxisId| changing.contains(a) && axes.iter().any(|x| x.id == *a && x.extent < LONG);
    let mut found = false;
    for_each_node(value, &mut |n| {
        if let ScalarKind::Select(cond, ..) = n.kind() {
            for_each_node(cond, &mut |c| found |= matches!(c.kind(), ScalarKind::Axis(a) if short(a)));
        }
    });
    found
}

/// Whether a definition sums over places of a tensor along axes of which its own index does not move, as convolutions sum over channels: pools, and
/// convolutions of each channel by itself, sum over windows alone.
fn sums_channels_of(definition: &Definition, tensor: TensorId) -> bool {
    let Definition::Stage(Stage { body: Body::Reduce { axes, value, .. }, .. }) = definition else { return false };
    let only_reduced = |index: &Scalar| {
        let (mut found, mut others) = (false, false);
        for_each_node(index, &mut |n| {
            if let ScalarKind::Axis(a) = n.kind() {
                let reduced = axes.iter().any(|x| x.id == *a);
                (found, others) = (found | reduced, others | !reduced);
            }
        });
        found && !others
    };
    reads(value).iter().any(|(t, index)| *t == tensor && index.iter().any(only_reduced))
}

fn may_inline(
    group: &Stages,
    at: usize,
    value: &Scalar,
    whole: &dyn Fn(DType) -> bool,
    changing: Option<&HashSet<AxisId>>,
) -> bool {
    let Definition::Stage(stage) = &group.definitions[at] else { return false };
    let elements: i64 = stage.axes.iter().map(|a| a.extent).product();
    let readers: Vec<&Definition> =
        group.definitions[at + 1..].iter().filter(|d| is_read_by(d, stage.tensor)).collect();
    let expense = expense(value);
    let visits = readers.iter().map(|d| match d {
        Definition::Stage(Stage { body: Body::Map(_), .. }) => 0,
        Definition::Stage(Stage { body: Body::Reduce { axes, .. }, axes: outer, .. }) => {
            outer.iter().chain(axes).map(|a| a.extent).product::<i64>()
        }
        // How often is not known.
        Definition::Routine(_) => i64::MAX,
    });
    let visits = visits.max().unwrap_or(0);
    if visits > elements {
        // Windows that overlap little are met in memory once; their loops treat the edges apart.
        let few = visits / VISITS_OF_PADDING <= elements
            && readers.len() == 1
            && (!is_about_short(value, &stage.axes, changing)
                || !readers.iter().any(|d| sums_channels_of(d, stage.tensor)));
        let unpacked =
            || visits / VISITS_OF_UNPACKED <= elements && readers.len() == 1 && is_unpacking(group, value, expense);
        let in_tiles = || whole(value.dtype()) && readers.iter().any(|d| sums_channels_of(d, stage.tensor));
        return expense == CHEAP || few && is_padding(value) && !in_tiles() || unpacked();
    }
    let stages = || {
        readers.iter().filter_map(|d| match d {
            Definition::Stage(s) => Some(s),
            Definition::Routine(_) => None,
        })
    };
    let grows = stages().any(|s| s.axes.iter().map(|a| a.extent).product::<i64>() > elements);
    let several = readers.len() > 1 && stages().any(|s| matches!(s.body, Body::Reduce { .. }));
    !(several || grows) || expense <= CHEAP_FOR_SEVERAL
}

/// Whether an index is exactly the axes, in order.
fn is_identity(index: &[Scalar], axes: &[Axis]) -> bool {
    index.len() == axes.len()
        && index.iter().zip(axes).all(|(i, a)| match i.kind() {
            ScalarKind::Axis(id) => *id == a.id,
            ScalarKind::Int(0) => a.extent == 1,
            _ => false,
        })
}

fn attach_epilogues(group: &Stages, kept: Vec<Stage>, later: &[Cow<'_, Definition>]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (at, stage) in kept.iter().enumerate() {
        match &stage.body {
            Body::Reduce { axes, combine, value } => {
                let index: Vec<Scalar> = stage.axes.iter().map(|a| Scalar::axis(a.id)).collect();
                let whole = Scalar::read(stage.tensor, index, group.decl(stage.tensor).dtype);
                let reduction = Reduction {
                    tensor: stage.tensor,
                    axes: axes.clone(),
                    combine: *combine,
                    value: value.clone(),
                    followed: false,
                };
                steps.push(Step {
                    tensor: stage.tensor,
                    axes: stage.axes.clone(),
                    reduction: Some(reduction),
                    value: whole,
                });
            }
            Body::Map(value) => {
                let read = reads(value);
                let is_read = |by: &Scalar, t: TensorId| reads(by).iter().any(|(r, _)| *r == t);
                let absorbs = |step: &Step| {
                    let mut uses = read.iter().filter(|(t, _)| *t == step.tensor).peekable();
                    step.stores_bare_reduction()
                        && !group.results.contains(&step.tensor)
                        && group.decl(step.tensor).shape == group.decl(stage.tensor).shape
                        && uses.peek().is_some()
                        && uses.all(|(_, i)| is_identity(i, &stage.axes))
                        && !kept[at + 1..].iter().any(|s| is_read(value_of(s), step.tensor))
                        && !later.iter().any(|d| is_read_by(d, step.tensor))
                        && !steps.iter().any(|s| {
                            s.tensor != step.tensor
                                && (is_read(&s.value, step.tensor)
                                    || s.reduction.iter().any(|r| is_read(&r.value, step.tensor)))
                        })
                };
                // The reduction may move down to here: nothing in between reads it.
                let (tensor, axes) = (stage.tensor, stage.axes.clone());
                match steps.iter().rposition(absorbs) {
                    Some(i) => {
                        let mut step = steps.remove(i);
                        let own = step.axes.iter().map(|a| Scalar::axis(a.id));
                        let with: HashMap<AxisId, Scalar> = axes.iter().map(|a| a.id).zip(own).collect();
                        step.value = super::affine::replace_axes(value, &with);
                        step.tensor = tensor;
                        steps.push(step);
                    }
                    None => steps.push(Step { tensor, axes, reduction: None, value: value.clone() }),
                }
            }
        }
    }
    steps
}

impl Step {
    /// Whether the step stores a reduction's bare result.
    fn stores_bare_reduction(&self) -> bool {
        self.reduction.as_ref().is_some_and(|r| r.tensor == self.tensor)
    }
}
