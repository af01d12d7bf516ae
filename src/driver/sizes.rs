//! Code for extents that change from run to run: compiled once, with the extents as parameters.
//!
//! Each size that is met has a program of its own, with the calls, the memory plan and the numbers that follow from its extents; making
//! one compiles nothing, since its calls are of kernels that serve all sizes ([`Sites`]). Calls that have no such kernel are compiled
//! for the extents at hand.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{
    build::BuildError,
    specialize::{Code, Machine, compile_kernels},
};
use crate::{
    infer::TypedModule,
    ir::{Dim, TensorType, Type},
    lower::{CodeSet, Sites, assemble, groups},
    runtime::CompiledCode,
    tensor::Shape,
};

/// Kernels are looked at in so many sizes before they are compiled for all.
const LOOKED_AT: usize = 4;

/// The code of a function, for all sizes that were met.
pub(super) struct Sizes {
    set: CodeSet,
    /// By which of the unknown extents are 1, where what there is to do takes another form.
    classes: HashMap<Vec<bool>, Sites>,
    /// So many of the kernels are compiled.
    compiled: usize,
    code: Vec<Arc<dyn CompiledCode>>,
    /// Calls that were compiled for the extents at hand.
    pub(super) specialized: usize,
    /// Whether the back end failed on a kernel: then no size is served any more.
    pub(super) broken: bool,
}

impl Sizes {
    /// For a function that was not met at any size.
    pub(super) fn new(machine: &Machine) -> Sizes {
        let set = machine.code(Vec::new());
        Sizes { set, classes: HashMap::new(), compiled: 0, code: Vec::new(), specialized: 0, broken: false }
    }

    /// The code for one size, which `typed` says; `instance` gives the function at others.
    pub(super) fn code(
        &mut self,
        machine: &Machine,
        entry: &str,
        types: &[Type],
        typed: &TypedModule,
        shapes: &[Shape],
        instance: impl Fn(&[Shape]) -> Option<TypedModule>,
    ) -> Result<Arc<Code>, BuildError> {
        let class = unknown_extents(types, shapes).into_iter().map(|n| n == 1).collect();
        let sites = match self.classes.remove(&class) {
            Some(sites) => sites,
            None => {
                let mut sizes = vec![groups(typed, entry)?];
                for other in others(types, shapes) {
                    if sizes.len() == LOOKED_AT {
                        break;
                    }
                    let found = instance(&other).and_then(|typed| groups(&typed, entry).ok());
                    sizes.extend(found.filter(|g| g.len() == sizes[0].len()));
                }
                Sites::new(machine.backend.core, &sizes)
            }
        };
        self.set.sites = Some(sites);
        let assembled = assemble(typed, entry, entry, &mut self.set);
        let sites = self.set.sites.take();
        self.specialized += sites.as_ref().map_or(0, |s| s.missed);
        self.classes.extend(sites.map(|s| (class, s)));
        let assembled = assembled?;
        if self.compiled < self.set.kernels.len() {
            let code = compile_kernels(&self.set.kernels[self.compiled..], machine);
            self.broken |= code.is_err();
            self.code.push(code?);
            self.compiled = self.set.kernels.len();
        }
        Code::link(assembled, self.code.clone(), machine.pool.clone())
    }

    /// How many calls have one kernel for all sizes, and how many one for each.
    pub(super) fn counts(&self) -> (usize, usize) {
        self.classes.values().map(Sites::counts).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
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
/// Extents of 1 stay so, where not all are.
fn others(types: &[Type], shapes: &[Shape]) -> Vec<Vec<Shape>> {
    let tensors: Vec<_> = types.iter().filter_map(Type::flatten).flatten().collect();
    if tensors.len() != shapes.len() {
        return Vec::new();
    }
    let unknown = |d: &Dim| d.known().is_none();
    let all_one = unknown_extents(types, shapes).into_iter().all(|n| n == 1);
    let grown = |by: &dyn Fn(usize, usize) -> usize| -> Vec<Shape> {
        let mut place = 0;
        let mut extents = |(t, s): (&TensorType, &Shape)| -> Shape {
            let extent = |(d, &n): (&Dim, &usize)| match unknown(d) && (n != 1 || all_one) {
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
    vec![
        grown(&|n, place| 2 * n + 2 * place + 1),
        grown(&|n, place| 3 * n + 7 * place + 2),
        grown(&|n, place| n + 5 * place + 6),
        grown(&|n, _| 2 * n + 1),
        grown(&|n, _| 3 * n + 2),
        grown(&|n, _| 2 * n),
        grown(&|n, _| 3 * n),
    ]
}
