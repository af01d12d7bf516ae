//! Code for extents that change from run to run: compiled once, with the extents as parameters.
//!
//! Each size that is met has a program of its own, with the calls, the memory plan and the numbers that follow from its extents; making
//! one compiles nothing, since its calls are of kernels that serve all sizes ([`Sites`]). Calls that have no such kernel are compiled
//! for the extents at hand.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use hashbrown::{HashMap, HashSet};
use rayon::prelude::*;

use super::{
    build::BuildError,
    calls::{Memo, Sequence},
    entry::of_extents,
    specialize::{Code, Machine, compile_kernels},
};
use crate::{
    diag::Refused,
    ir::{ExprId, TensorType, Type},
    lower::{CodeSet, FunctionAt, Group, Made, Met, ProgramAt, Sites, Template, as_view, assemble_at},
    runtime::{CompiledCode, Pool},
    tensor::{Shape, Tensor},
};

/// Kernels are looked at in so many sizes before they are compiled for all.
pub(super) const LOOKED_AT: usize = 6;

/// A size that a function is met at.
#[derive(Clone, Debug)]
pub(super) struct Size {
    /// Of all tensors that it takes.
    pub(super) shapes: Vec<Shape>,
    /// By number of a parameter whose value decides extents: the value.
    pub(super) values: Vec<(usize, Tensor)>,
}

/// Threads that find kernels at new sizes are at most so many: it is some hundred calls of some 50 us each.
const PREPARING: usize = 8;

/// The threads that find kernels for programs of one thread. The caller is one of them, other than of rayon's: where it only waits, the system may wake two
/// workers on one core and leave the caller's idle.
fn preparing() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| Pool::new(std::thread::available_parallelism().map_or(1, |n| n.get().min(PREPARING))))
}

/// The code of a function, for all sizes that were met.
pub(super) struct Sizes {
    set: CodeSet,
    /// The calls that were met, at any size.
    memo: Memo,
    /// What the program is made of, and its calls of kernels, from the first size on.
    found: Option<Found>,
    /// What was looked at for calls that no family served: which of the unknown extents were 1, where what there is to do may take
    /// another form.
    classes: HashSet<Vec<bool>>,
    /// Where values decide extents: sizes at which no family served a call. Other sizes can't be made up, so that families are made by these.
    met: Vec<Size>,
    /// So many of the kernels are compiled.
    pub(super) compiled: usize,
    code: Vec<Arc<dyn CompiledCode>>,
    /// How long it took to make code, in all.
    pub(super) took: Duration,
    /// Calls that were compiled for the extents at hand.
    pub(super) specialized: usize,
    /// Whether the back end failed on a kernel: then no size is served any more.
    pub(super) broken: bool,
    /// See [`Machine::said`].
    said: Vec<Vec<bool>>,
    /// What the program is made of at further sizes, where it keeps state.
    template: Option<Template>,
    /// The code for the last size, which was made by the template or has become it: see [`Sizes::keep`].
    last: Option<Arc<Code>>,
}

/// The calls of a program as they were found at its first size.
struct Found {
    /// All that the result needs, in order.
    order: Vec<ExprId>,
    /// The numbers of calls.
    numbers: HashMap<ExprId, usize>,
    sites: Sites,
}

impl Found {
    /// Finds the kernel of a call's function, where it has one already.
    fn meet(&self, call: ExprId, function: &FunctionAt) {
        let Some(&number) = self.numbers.get(&call) else { return };
        // What is refused is told where it is looked at again.
        let Ok(group) = function.group_by(self.sites.shared(number)) else { return };
        if let Some(made) = self.sites.made(number, &group) {
            function.meet(met_by(group, made));
        }
    }
}

impl Sizes {
    /// For a function that was not met at any size. It keeps `state`: pairs of numbers of an input and an output. Of some extents of its inputs
    /// is `said` for which ones schedules are decided.
    pub(super) fn new(machine: &Machine, state: Vec<(usize, usize)>, said: Vec<Vec<bool>>) -> Sizes {
        let mut set = machine.code(Vec::new());
        set.state = state;
        Sizes {
            set,
            memo: Memo::default(),
            found: None,
            classes: HashSet::new(),
            met: Vec::new(),
            compiled: 0,
            code: Vec::new(),
            took: Duration::ZERO,
            specialized: 0,
            broken: false,
            said,
            template: None,
            last: None,
        }
    }

    /// The code for one size of a function whose parameters have these types; none where its calls do not follow from extents.
    pub(super) fn code(
        &mut self,
        machine: &Machine,
        sequence: &Sequence,
        entry: &str,
        types: &[Type],
        size: &Size,
    ) -> Result<Option<Arc<Code>>, BuildError> {
        let start = Instant::now();
        let Some(here) = self.at(machine, sequence, types, size, false) else { return Ok(None) };
        self.assign(machine, sequence, types, size, &here)?;
        if let Some(code) = self.resized(&here) {
            return Ok(Some(code));
        }
        let mut assembled = assemble_at(sequence.typed(), Some(&here), entry, entry, &mut self.set)?;
        (self.template, self.last) = (assembled.template.take(), None);
        if self.compiled < self.set.kernels.len() {
            let code = compile_kernels(&self.set.kernels[self.compiled..], machine);
            self.broken |= code.is_err();
            self.code.push(code?);
            self.compiled = self.set.kernels.len();
            self.took += start.elapsed();
        }
        Code::link(assembled, self.code.clone(), machine).map(Some)
    }

    /// The same for a size that is to come, on one thread where `alone`; none where it takes more than other numbers in the code for the last size:
    /// nothing is compiled for it.
    pub(super) fn ahead(
        &mut self,
        machine: &Machine,
        sequence: &Sequence,
        types: &[Type],
        size: &Size,
        alone: bool,
    ) -> Option<Arc<Code>> {
        if self.found.is_none() || self.last.is_none() {
            return None;
        }
        let here = self.at(machine, sequence, types, size, alone)?;
        let is_met = here.in_order().all(|(_, call)| call.function.met().is_some());
        if is_met { self.resized(&here) } else { None }
    }

    /// The code for the last size with other numbers, where that is what a size takes.
    fn resized(&mut self, here: &ProgramAt) -> Option<Arc<Code>> {
        let last = self.last.as_ref()?;
        let set = &self.set;
        let program = self.template.as_mut()?.resized(here, |met| set.sized_kernel(met))?;
        Some(last.resized(program))
    }

    /// Says that code which was made here is going to run: further sizes are made of it.
    pub(super) fn keep(&mut self, code: &Arc<Code>) {
        self.last = self.template.is_some().then(|| code.clone());
    }

    /// Has the next size made from nothing.
    pub(super) fn start_over(&mut self) {
        (self.template, self.last) = (None, None);
    }

    /// The program at a size. While the types of some calls are found, kernels of those before are, where there are any: on the threads that run
    /// the program, which are awake; on this one where `alone`.
    fn at(
        &mut self,
        machine: &Machine,
        sequence: &Sequence,
        types: &[Type],
        size: &Size,
        alone: bool,
    ) -> Option<ProgramAt> {
        let (memo, found) = (&mut self.memo, self.found.as_ref());
        let params = of_shapes(types, &size.shapes);
        let Some(found) = found else { return sequence.at(params, &size.values, memo) };
        let typed = |give: &mut dyn FnMut((ExprId, Arc<FunctionAt>))| {
            sequence.at_with(params, &size.values, memo, &mut |call, function| give((call, function.clone())))
        };
        let meet = |(call, function): (ExprId, Arc<FunctionAt>)| found.meet(call, &function);
        if alone {
            return typed(&mut |item| meet(item));
        }
        // Where the program has one thread, what prepares it has more.
        let pool = if machine.pool.threads() > 1 { &machine.pool } else { preparing() };
        pool.as_made(typed, meet)
    }

    /// Finds kernels for those calls at a size that have none.
    fn assign(
        &mut self,
        machine: &Machine,
        sequence: &Sequence,
        types: &[Type],
        size: &Size,
        here: &ProgramAt,
    ) -> Result<(), Refused> {
        let shapes = &size.shapes[..];
        let calls: Vec<&FunctionAt> = here.in_order().map(|(_, call)| &*call.function).collect();
        let new: Vec<usize> = (0..calls.len()).filter(|&i| calls[i].met().is_none()).collect();
        if new.is_empty() {
            return Ok(());
        }
        let groups = groups(&calls)?;
        let at = |other: &[Shape], values: &[(usize, Tensor)]| {
            sequence.at(of_shapes(types, other), values, &mut Memo::default())
        };
        let alike = |other: ProgramAt| -> Option<Vec<Group>> {
            let calls: Vec<&FunctionAt> = other.in_order().map(|(_, call)| &*call.function).collect();
            if other.order == here.order { self::groups(&calls).ok() } else { None }
        };
        let looked_at = |ones_stay: bool| -> Vec<Vec<Group>> {
            if !size.values.is_empty() {
                let before = self.met.par_iter().filter_map(|met| at(&met.shapes, &met.values).and_then(alike));
                return [groups.clone()].into_iter().chain(before.collect::<Vec<_>>()).collect();
            }
            let look_at = |others: Vec<Vec<Shape>>| {
                let later = later(types, shapes, &here.result, &self.set.state, &self.said);
                let later = later.and_then(|later| alike(at(&later, &[])?));
                let mut found: Vec<Vec<Group>> = later.into_iter().chain([groups.clone()]).collect();
                let mut left = &others[..];
                while found.len() < LOOKED_AT && !left.is_empty() {
                    let (some, rest) = left.split_at((LOOKED_AT - found.len()).min(left.len()));
                    found
                        .extend(some.par_iter().filter_map(|other| at(other, &[]).and_then(alike)).collect::<Vec<_>>());
                    left = rest;
                }
                found
            };
            let found = look_at(others(types, shapes, ones_stay, &HashSet::new()));
            if found.len() > 1 {
                return found;
            }
            // What is unknown by its type may be what weights say: only some extents are others at other sizes.
            let fixed = fixed_extents(types, shapes, |other| at(other, &[]).is_some());
            if fixed.is_empty() { found } else { look_at(others(types, shapes, ones_stay, &fixed)) }
        };
        let Found { order, sites, .. } = self.found.get_or_insert_with(|| Found {
            order: here.order.clone(),
            numbers: here.in_order().enumerate().map(|(i, (e, _))| (e, i)).collect(),
            sites: Sites::new(machine.backend.core, &looked_at(false)),
        });
        let met = |(group, call): (&Group, &&FunctionAt)| match call.met() {
            Some(met) => met.clone(),
            None => Met { group: group.clone(), made: Made::Alone },
        };
        let mut met: Vec<Met> = groups.iter().zip(&calls).map(met).collect();
        let mut unserved = new.clone();
        // Where a call's result is known at one size only, calls have no places in common.
        if *order == here.order {
            unserved = sites.meet_again(&mut met, &new);
            let class = unknown_extents(types, shapes).into_iter().map(|n| n == 1).collect();
            let is_new = match size.values.is_empty() {
                true => !unserved.is_empty() && self.classes.insert(class),
                false => !unserved.is_empty() && self.met.len() < LOOKED_AT,
            };
            if is_new {
                sites.widen(&unserved, &looked_at(true));
                unserved = sites.meet_again(&mut met, &unserved);
            }
            if is_new && !size.values.is_empty() {
                self.met.push(size.clone());
            }
        }
        self.specialized += unserved.len();
        let mut groups = groups;
        for &i in &new {
            let Met { group, made } = met[i].clone();
            met[i] = met_by(group, made);
        }
        // Expressions are many small pieces: all threads give them back.
        groups.par_drain(..).for_each(drop);
        for i in new {
            calls[i].meet(met[i].clone());
        }
        Ok(())
    }

    /// How many calls have one kernel for all sizes, and how many one for each.
    pub(super) fn counts(&self) -> (usize, usize) {
        self.found.as_ref().map_or((0, 0), |found| found.sites.counts())
    }
}

/// A call with what it is made of. What has a kernel is asked for its tensors only.
fn met_by(mut group: Group, made: Made) -> Met {
    let made = match made {
        Made::Alone => as_view(&group).map_or(Made::Alone, Made::View),
        made => made,
    };
    if !matches!(made, Made::Alone) {
        group.stages = Arc::new(group.stages.declared());
    }
    Met { group, made }
}

/// What each call computes; those that are the same share it.
fn groups(calls: &[&FunctionAt]) -> Result<Vec<Group>, Refused> {
    let mut first: HashMap<*const FunctionAt, usize> = HashMap::new();
    let same: Vec<usize> =
        calls.iter().enumerate().map(|(i, c)| *first.entry(std::ptr::from_ref(*c)).or_insert(i)).collect();
    let group = |i: usize| match calls[i].met() {
        _ if same[i] != i => Ok(None),
        Some(met) => Ok(Some(met.group.clone())),
        None => calls[i].group().map(Some),
    };
    let groups: Vec<Option<Group>> = (0..calls.len()).into_par_iter().map(group).collect::<Result<_, Refused>>()?;
    Ok(same.iter().filter_map(|&i| groups[i].clone()).collect())
}

/// The types with these extents for their tensors, which are taken in order.
fn of_shapes(types: &[Type], shapes: &[Shape]) -> Vec<Type> {
    let mut given = shapes.iter();
    types.iter().map(|t| of_extents(t, &mut given)).collect()
}

/// The extents at hand of those that are unknown.
fn unknown_extents(types: &[Type], shapes: &[Shape]) -> Vec<usize> {
    let tensors = types.iter().filter_map(Type::flatten).flatten();
    let of = |(t, s): (TensorType, &Shape)| -> Vec<usize> {
        t.shape.iter().zip(s.iter()).filter(|(d, _)| d.known().is_none()).map(|(_, n)| *n).collect()
    };
    tensors.zip(shapes).flat_map(of).collect()
}

/// Of the extents that are unknown by types, those that fit no call when they alone, wherever they stand, are others.
fn fixed_extents(types: &[Type], shapes: &[Shape], fits: impl Fn(&Vec<Shape>) -> bool) -> HashSet<usize> {
    let all: HashSet<usize> = unknown_extents(types, shapes).into_iter().collect();
    let changes = |n: usize| {
        [2 * n, 2 * n + 1, 3 * n + 2].iter().any(|&to| fits(&grown(types, shapes, |m| if m == n { to } else { m })))
    };
    all.into_iter().filter(|&n| !changes(n)).collect()
}

/// Shapes with other extents where these are unknown, by what they are.
fn grown(types: &[Type], shapes: &[Shape], mut by: impl FnMut(usize) -> usize) -> Vec<Shape> {
    let mut extents = |(t, s): (TensorType, &Shape)| -> Shape {
        t.shape.iter().zip(s.iter()).map(|(d, &n)| if d.known().is_none() { by(n) } else { n }).collect()
    };
    types.iter().filter_map(Type::flatten).flatten().zip(shapes).map(&mut extents).collect()
}

/// Schedules of programs whose caches grow are decided for so many rows and more: at the first call there are few, for which another schedule may
/// be the fastest.
const LATER: usize = 256;

/// A size at which a function may be called later that gives inputs back with further rows, as a decoder does its cache: [`LATER`] rows more along the
/// axes that grow, and in all extents equal to theirs. `state` is pairs of numbers of an input and an output that are such; where there are none,
/// an input grows whose extents are those of some result but for one that is less, and of these the ones that grow by the fewest rows: others are
/// as like a result by chance, as a mask is. None where nothing grows, or has that many rows already, or it is `said` how many it is likely to have.
fn later(
    types: &[Type],
    shapes: &[Shape],
    result: &Type,
    state: &[(usize, usize)],
    said: &[Vec<bool>],
) -> Option<Vec<Shape>> {
    let params: Vec<TensorType> = types.iter().filter_map(Type::flatten).flatten().collect();
    let results = result.flatten()?;
    // The tensor, the axis, and how many rows there are before and after.
    let grows = |(at, (param, shape)): (usize, (&TensorType, &Shape))| {
        let grown = |(_, r): (usize, &TensorType)| {
            let after: Vec<usize> = r.shape.iter().map(|d| d.known().map(|n| n as usize)).collect::<Option<_>>()?;
            let differ = |i: &usize| after.get(*i) != Some(&shape[*i]);
            let mut others = (0..shape.len()).filter(differ);
            let axis = others.next().filter(|_| after.len() == shape.len() && others.next().is_none())?;
            let is_more = param.shape[axis].known().is_none() && after[axis] > shape[axis];
            is_more.then_some((at, axis, shape[axis], after[axis]))
        };
        let may_be =
            |(i, r): &(usize, &TensorType)| r.dtype == param.dtype && (state.is_empty() || state.contains(&(at, *i)));
        results.iter().enumerate().filter(may_be).filter_map(grown).min_by_key(|g| g.3 - g.2)
    };
    let mut growing: Vec<(usize, usize, usize, usize)> =
        params.iter().zip(shapes).enumerate().filter_map(grows).collect();
    let least = growing.iter().map(|g| g.3 - g.2).min()?;
    growing.retain(|g| g.3 - g.2 == least);
    let (_, _, before, after) = *growing.first()?;
    let are_alike = growing.iter().all(|g| (g.2, g.3) == (before, after));
    let is_said =
        |g: &(usize, usize, usize, usize)| said.get(g.0).and_then(|axes| axes.get(g.1)).copied().unwrap_or(false);
    if !are_alike || before >= LATER || growing.iter().any(is_said) {
        return None;
    }
    let extent = |tensor: usize, axis: usize, n: usize| match n {
        _ if params[tensor].shape[axis].known().is_some() => n,
        n if growing.iter().any(|g| (g.0, g.1) == (tensor, axis)) || (n == before && n > 1) => LATER + before,
        n if n == after && n > 1 => LATER + after,
        n => n,
    };
    let shape =
        |(tensor, shape): (usize, &Shape)| shape.iter().enumerate().map(|(i, &n)| extent(tensor, i, n)).collect();
    Some(shapes.iter().enumerate().map(shape).collect())
}

/// Other sizes that a function may be met at, for parameters of these types: those first where all unknown extents differ from each other.
/// `ones_stay` where extents of 1 do, unless all are; `fixed` ones do.
pub(super) fn others(types: &[Type], shapes: &[Shape], ones_stay: bool, fixed: &HashSet<usize>) -> Vec<Vec<Shape>> {
    if types.iter().filter_map(Type::flatten).flatten().count() != shapes.len() {
        return Vec::new();
    }
    let grows = !ones_stay || unknown_extents(types, shapes).into_iter().all(|n| n == 1 || fixed.contains(&n));
    let grown = |by: &dyn Fn(usize, usize) -> usize| -> Vec<Shape> {
        let mut place = 0;
        self::grown(types, shapes, |n| match (n != 1 || grows) && !fixed.contains(&n) {
            true => {
                place += 1;
                by(n, place)
            }
            false => n,
        })
    };
    // Odd and even, so that what two extents, or their halves, have in common by chance shows at one of them.
    let mixed = |n: usize, place: usize, k: usize| n + (7 * n + 37 * place + 53 * k) % 97 + 2;
    let apart = [
        grown(&|n, place| 2 * n + 2 * place + 1),
        grown(&|n, place| 3 * n + 7 * place + 2),
        // Smaller ones, too: what is cut into pieces of a size at most has one of another form then.
        grown(&|n, place| if place == 1 { 1 } else { n / 4 + place }),
        grown(&|n, place| if place == 1 { 1 } else { n / 2 + 3 * place + 1 }),
    ];
    let equal = [grown(&|n, _| 2 * n + 1), grown(&|n, _| 3 * n + 2), grown(&|n, _| 2 * n), grown(&|n, _| 3 * n)];
    // Where halves of halves must come out even, as where they are put beside what was halved before.
    let even = |n: usize, place: usize, k: usize| {
        let factor = 1 << n.trailing_zeros().min(6);
        match k % 2 {
            0 => n + factor * (1 + (7 * place + 3 * k) % 11),
            // Smaller ones here, too, but none of 1, at which much is of another form that broadcasts.
            _ => factor * ((8 / factor).max(1) + (place + k / 2) % 2),
        }
    };
    let apart = apart.into_iter().chain((0..2).map(|k| grown(&|n, place| mixed(n, place, k))));
    let apart = apart.chain((0..8).map(|k| grown(&|n, place| even(n, place, k))));
    let apart = apart.chain((2..8).map(|k| grown(&|n, place| mixed(n, place, k))));
    let equal = equal.into_iter().chain((0..8).map(|k| grown(&|n, _| even(n, 0, k))));
    apart.chain(equal).chain((0..8).map(|k| grown(&|n, _| mixed(n, 0, k)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ir::Dim, tensor::DType};

    fn tensor(dims: &[i64]) -> Type {
        let shape = dims.iter().map(|&n| if n < 0 { Dim::Any } else { Dim::Known(n) }).collect();
        Type::Tensor(TensorType { shape, dtype: DType::F32 })
    }

    fn shapes(all: &[&[usize]]) -> Vec<Shape> {
        all.iter().map(|s| s.iter().copied().collect()).collect()
    }

    /// Inputs that must be equal are met at several sizes before such as broadcast.
    #[test]
    fn few_other_sizes_have_extents_of_one() {
        let types = [tensor(&[-1, 12, -1, 64]), tensor(&[-1, 12, -1, 64])];
        let given = shapes(&[&[1, 12, 205, 64], &[1, 12, 205, 64]]);
        let all = others(&types, &given, false, &HashSet::new());
        let alike: Vec<_> = all.iter().filter(|s| s[0] == s[1]).take(LOOKED_AT).collect();
        assert_eq!(alike.len(), LOOKED_AT);
        assert!(alike.iter().all(|s| s[0][2] > 1), "{alike:?}");
    }

    /// For a cache, a query and a mask with a column for each row there is and the new one; the last result is as wide as the query.
    #[test]
    fn schedules_of_caches_are_decided_at_later_sizes() {
        let types = [tensor(&[-1, 64]), tensor(&[1, 64]), tensor(&[1, -1])];
        let at = |rows: usize, after: i64, state: &[(usize, usize)], said: &[Vec<bool>]| {
            let shapes: Vec<Shape> =
                [[rows, 64], [1, 64], [1, rows + 1]].iter().map(|s| s.iter().copied().collect()).collect();
            let found = later(&types, &shapes, &Type::tuple([tensor(&[after, 64]), tensor(&[1, 64])]), state, said);
            found.map(|shapes| shapes.iter().map(|s| s.to_vec()).collect::<Vec<_>>())
        };
        let many = Some(vec![vec![258, 64], vec![1, 64], vec![1, 259]]);
        let hint = |rows, columns| [vec![rows, false], vec![false, false], vec![false, columns]];
        assert_eq!(at(2, 3, &[], &[]), many);
        assert_eq!(at(2, 3, &[(0, 0)], &[]), many);
        assert_eq!(at(2, 3, &[], &hint(false, true)), many, "a hint of something else");
        assert_eq!(at(2, 3, &[], &hint(true, false)), None, "a hint of the cache's rows");
        assert_eq!(at(2, 2, &[(0, 0)], &[]), None, "state that does not grow");
        assert_eq!(at(256, 257, &[], &[]), None, "there are rows enough");
    }
}
