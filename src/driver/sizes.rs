//! Code for extents that change from run to run: compiled once, with the extents as parameters.
//!
//! Each size that is met has a program of its own, with the calls, the memory plan and the numbers that follow from its extents; making
//! one compiles nothing, since its calls are of kernels that serve all sizes ([`Sites`]). Calls that have no such kernel are compiled
//! for the extents at hand.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hashbrown::HashSet;
use rayon::prelude::*;

use super::{
    build::BuildError,
    specialize::{Code, Machine, compile_kernels},
};
use crate::{
    infer::TypedModule,
    ir::{Dim, TensorType, Type},
    lower::{CodeSet, Group, Made, Sites, assemble, groups},
    runtime::CompiledCode,
    tensor::Shape,
};

/// Kernels are looked at in so many sizes before they are compiled for all.
pub(super) const LOOKED_AT: usize = 6;

/// The code of a function, for all sizes that were met.
pub(super) struct Sizes {
    set: CodeSet,
    /// The calls of kernels, from the first size on.
    sites: Option<Sites>,
    /// What was looked at for calls that no family served: which of the unknown extents were 1, where what there is to do may take
    /// another form.
    classes: HashSet<Vec<bool>>,
    /// So many of the kernels are compiled.
    compiled: usize,
    code: Vec<Arc<dyn CompiledCode>>,
    /// How long it took to make code, in all.
    pub(super) took: Duration,
    /// Calls that were compiled for the extents at hand.
    pub(super) specialized: usize,
    /// Whether the back end failed on a kernel: then no size is served any more.
    pub(super) broken: bool,
}

impl Sizes {
    /// For a function that was not met at any size. It keeps `state`: pairs of numbers of an input and an output.
    pub(super) fn new(machine: &Machine, state: Vec<(usize, usize)>) -> Sizes {
        let mut set = machine.code(Vec::new());
        set.state = state;
        Sizes {
            set,
            sites: None,
            classes: HashSet::new(),
            compiled: 0,
            code: Vec::new(),
            took: Duration::ZERO,
            specialized: 0,
            broken: false,
        }
    }

    /// The code for one size, which `typed` says; `instance` gives the function at others.
    pub(super) fn code(
        &mut self,
        machine: &Machine,
        entry: &str,
        types: &[Type],
        typed: &TypedModule,
        shapes: &[Shape],
        instance: impl Fn(&[Shape]) -> Option<TypedModule> + Sync,
    ) -> Result<Arc<Code>, BuildError> {
        let start = Instant::now();
        let here = groups(typed, entry, &self.set.state)?;
        let state = &self.set.state;
        let looked_at = |ones_stay: bool| -> Vec<Vec<Group>> {
            let others = others(types, shapes, ones_stay);
            let alike = |other: &Vec<Shape>| {
                groups(&instance(other)?, entry, state).ok().filter(|g: &Vec<Group>| g.len() == here.len())
            };
            let found =
                others.chunks(LOOKED_AT - 1).flat_map(|some| some.par_iter().filter_map(alike).collect::<Vec<_>>());
            [here.clone()].into_iter().chain(found.take(LOOKED_AT - 1)).collect()
        };
        let sites = self.sites.get_or_insert_with(|| Sites::new(machine.backend.core, &looked_at(false)));
        let (mut met, mut unserved) = sites.meet(here.clone());
        if !unserved.is_empty() {
            let class = unknown_extents(types, shapes).into_iter().map(|n| n == 1).collect();
            if self.classes.insert(class) {
                sites.widen(&unserved, &looked_at(true));
                unserved = sites.meet_again(&mut met, &unserved);
            }
        }
        self.specialized += unserved.len();
        // What has a kernel is asked for its tensors only. Expressions are many small pieces: all threads give them back.
        for m in met.iter_mut().filter(|m| matches!(m.made, Made::Sized(..))) {
            m.group.stages = Arc::new(m.group.stages.declared());
        }
        here.into_par_iter().for_each(drop);
        self.set.met = Some(met.into_iter());
        let assembled = assemble(typed, entry, entry, &mut self.set);
        self.set.met = None;
        let assembled = assembled?;
        if self.compiled < self.set.kernels.len() {
            let code = compile_kernels(&self.set.kernels[self.compiled..], machine);
            self.broken |= code.is_err();
            self.code.push(code?);
            self.compiled = self.set.kernels.len();
            self.took += start.elapsed();
        }
        Code::link(assembled, self.code.clone(), machine)
    }

    /// How many calls have one kernel for all sizes, and how many one for each.
    pub(super) fn counts(&self) -> (usize, usize) {
        self.sites.as_ref().map_or((0, 0), Sites::counts)
    }
}

/// The extents at hand of those that are unknown.
fn unknown_extents(types: &[Type], shapes: &[Shape]) -> Vec<usize> {
    let tensors = types.iter().filter_map(Type::flatten).flatten();
    let of = |(t, s): (TensorType, &Shape)| -> Vec<usize> {
        t.shape.iter().zip(s.iter()).filter(|(d, _)| d.known().is_none()).map(|(_, n)| *n).collect()
    };
    tensors.zip(shapes).flat_map(of).collect()
}

/// Other sizes that a function may be met at, for parameters of these types: those first where all unknown extents differ from each other.
/// `ones_stay` where extents of 1 do, unless all are.
pub(super) fn others(types: &[Type], shapes: &[Shape], ones_stay: bool) -> Vec<Vec<Shape>> {
    let tensors: Vec<_> = types.iter().filter_map(Type::flatten).flatten().collect();
    if tensors.len() != shapes.len() {
        return Vec::new();
    }
    let unknown = |d: &Dim| d.known().is_none();
    let grows = !ones_stay || unknown_extents(types, shapes).into_iter().all(|n| n == 1);
    let grown = |by: &dyn Fn(usize, usize) -> usize| -> Vec<Shape> {
        let mut place = 0;
        let mut extents = |(t, s): (&TensorType, &Shape)| -> Shape {
            let extent = |(d, &n): (&Dim, &usize)| match unknown(d) && (n != 1 || grows) {
                true => {
                    place += 1;
                    by(n, place)
                }
                false => n,
            };
            t.shape.iter().zip(s.iter()).map(extent).collect()
        };
        tensors.iter().zip(shapes).map(&mut extents).collect()
    };
    // Odd and even, so that what two extents, or their halves, have in common by chance shows at one of them.
    let mixed = |n: usize, place: usize, k: usize| n + (7 * n + 37 * place + 53 * k) % 97 + 2;
    let apart = [
        grown(&|n, place| 2 * n + 2 * place + 1),
        grown(&|n, place| 3 * n + 7 * place + 2),
        grown(&|n, place| if place == 1 { 1 } else { 2 * n + 4 * place }),
    ];
    let equal = [grown(&|n, _| 2 * n + 1), grown(&|n, _| 3 * n + 2), grown(&|n, _| 2 * n), grown(&|n, _| 3 * n)];
    // Where halves of halves must come out even, as where they are put beside what was halved before.
    let even = |n: usize, place: usize, k: usize| {
        let factor = 1 << n.trailing_zeros().min(6);
        n + factor * (1 + (7 * place + 3 * k) % 11)
    };
    let apart = apart.into_iter().chain((0..2).map(|k| grown(&|n, place| mixed(n, place, k))));
    let apart = apart.chain((0..8).map(|k| grown(&|n, place| even(n, place, k))));
    let apart = apart.chain((2..8).map(|k| grown(&|n, place| mixed(n, place, k))));
    let equal = equal.into_iter().chain((0..8).map(|k| grown(&|n, _| even(n, 0, k))));
    apart.chain(equal).chain((0..8).map(|k| grown(&|n, _| mixed(n, 0, k)))).collect()
}
