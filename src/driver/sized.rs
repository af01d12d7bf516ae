//! Functions for all sizes, to be exported: what a function does is looked at in many sizes, of which one is made whose numbers are formulas.
//!
//! In this process a size that was not met is lowered and scheduled again. An exported library can't do that, so each number must follow
//! from the extents by a formula, and each call have one kernel at all sizes. The sizes that are looked at are small ones, at which loops
//! take another form, one extent after another; powers of two; and sizes of every magnitude at random. Formulas that were found by
//! looking are no proof: users bound the unknown extents, and the library takes no size but those that were lowered here and compared, number
//! by number, with what the formulas say. Where a size is served by other calls, the library refuses sizes on that side of a bound.

use hashbrown::{HashMap, HashSet};

use super::{
    extents::Extents,
    specialize::{Machine, Primitive, Primitives, entry_name},
};
use crate::{
    diag::{Diagnostic, Refused},
    infer::TypedModule,
    ir::{TensorType, Type},
    loops::{Body, Definition, Kernel, Stages},
    lower::{Assembled, CodeSet, Group, Made, Met, Sites, assemble, groups},
    runtime::{
        NotSized, Sample, SizedProgram, alike,
        export::{ExtentOf, Form, PortType, SizedFunction},
    },
    tensor::Shape,
};

/// Kernels are looked at in so many sizes before their form is decided.
const DECIDED_AT: usize = 16;
/// Small extents that are looked at one after another.
const SMALL: i64 = 33;
/// So many sizes are taken at random to find formulas.
const RANDOM: usize = 64;
/// A form of a function is for so many sizes at most, as each is lowered twice: a few seconds where that takes a millisecond, some minutes
/// of a network whose every size takes thirty.
const MOST_SIZES: i64 = 4096;
/// Sizes are checked in steps of this prime, which has no factor with their number: what is wrong shows early, and in several places.
const STRIDE: i64 = 1_000_003;
/// So many sizes at which formulas do not hold are looked at before these are found anew.
const WRONG: usize = 64;
/// Formulas that do not hold everywhere are found anew so often.
const ROUNDS: usize = 8;
/// Extents that have to be equal are looked for among so many.
const MOST_EXTENTS: usize = 10;

/// A function has so many forms at most beside the general one.
const MOST_FORMS: usize = 15;

/// A function at many sizes.
struct Sampler<'a> {
    machine: &'a Machine,
    tensors: Vec<TensorType>,
    /// Argument and axis of each unknown extent.
    unknown: Vec<(usize, usize)>,
    /// The most that each may be.
    most: Vec<i64>,
    instance: &'a dyn Fn(&[Shape]) -> Option<TypedModule>,
    state: Vec<(usize, usize)>,
    name: &'a str,
}

/// One size.
struct Looked {
    size: Vec<i64>,
    typed: TypedModule,
    groups: Vec<Group>,
}

impl Primitives {
    /// The function for all sizes within bounds of each argument's axes, and the kernels that it calls, which join `kernels`. `called` has words
    /// for an argument's axis.
    ///
    /// Refuses extents without a bound, more sizes than can be checked, and what no formula is found for.
    pub(super) fn sized(
        &self,
        f: &Primitive,
        names: &[String],
        extents: &Extents,
        called: &dyn Fn(usize, usize) -> String,
        kernels: &mut HashMap<String, Kernel>,
    ) -> Result<SizedFunction, Refused> {
        let m = &self.module;
        let func = m.func(f.func);
        let types: Vec<Type> = func.params.iter().filter_map(|&p| m.var(p).ty.clone()).collect();
        let tensors: Vec<TensorType> = types.iter().filter_map(Type::flatten).flatten().collect();
        let instance = |shapes: &[Shape]| self.at_extents(f, &types, shapes).ok();
        let unknown = unknown_extents(&tensors);
        let state = if self.is_whole(f) { self.machine.state.clone() } else { Vec::new() };
        let name = names.first().map_or("main", String::as_str);
        let refuse = |d: Diagnostic| Refused::from(d.at(m.span(f.func).cloned()));
        let bound = |&(tensor, axis): &(usize, usize)| extents.most(tensor, axis);
        let unbounded: Vec<String> =
            unknown.iter().filter(|u| bound(u).is_none()).map(|&(tensor, axis)| called(tensor, axis)).collect();
        if !unbounded.is_empty() {
            let message =
                format!("`{name}` can't be exported: unknown extents have no bound: {}", unbounded.join(", "));
            let help = "a library takes the sizes that were checked when it was built: say how great each may be, by `--max NAME=N` or \
                        `Options::bounds`";
            return Err(refuse(Diagnostic::new(message).help(help)));
        }
        let most = unknown.iter().filter_map(bound).collect();
        let sampler = Sampler { machine: &self.machine, tensors, unknown, most, instance: &instance, state, name };
        let forms = sampler.forms(kernels).map_err(refuse)?;
        let port = |(i, t): (usize, &TensorType)| PortType {
            name: names.get(i + 1).cloned().unwrap_or_else(|| i.to_string()),
            dtype: t.dtype,
            shape: t.shape.iter().map(|d| d.known().map(|n| n as usize)).collect(),
        };
        let inputs = sampler.tensors.iter().enumerate().map(port).collect();
        Ok(SizedFunction { name: name.to_owned(), inputs, forms })
    }
}

fn unknown_extents(tensors: &[TensorType]) -> Vec<(usize, usize)> {
    let axes = |(i, t): (usize, &TensorType)| -> Vec<(usize, usize)> {
        t.shape.iter().enumerate().filter(|(_, d)| d.known().is_none()).map(|(axis, _)| (i, axis)).collect()
    };
    tensors.iter().enumerate().flat_map(axes).collect()
}

impl Sampler<'_> {
    fn forms(&self, kernels: &mut HashMap<String, Kernel>) -> Result<Vec<Form>, Diagnostic> {
        let free = vec![None; self.unknown.len()];
        let mut forms = vec![self.form(&free, kernels)?];
        // Sizes that the general form is not for, as where something broadcasts: those that have one of their own. By class of extents that
        // are equal, any one of them may be 1, or all where the general form is for more.
        let first = &forms[0];
        let mut patterns: Vec<Vec<Option<i64>>> = vec![free];
        for class in 0..first.least.len() {
            let members: Vec<usize> =
                (0..self.unknown.len()).filter(|&u| first.extents[u] == ExtentOf::Number(class)).collect();
            let mut choices: Vec<Vec<usize>> = Vec::new();
            if members.len() > 1 {
                choices.extend(members.iter().map(|&u| vec![u]));
            }
            if first.least[class] > 1 {
                choices.push(members);
            }
            for at in 0..patterns.len() {
                for ones in &choices {
                    let mut fixed = patterns[at].clone();
                    ones.iter().for_each(|&u| fixed[u] = Some(1));
                    patterns.push(fixed);
                }
            }
        }
        let patterns = patterns.into_iter().skip(1).take(MOST_FORMS);
        for fixed in patterns {
            // Most of these do not exist.
            if let Ok(form) = self.form(&fixed, kernels) {
                forms.push(form);
            }
            self.go_on()?;
        }
        Ok(forms)
    }

    /// Refuses to go on once the build is cancelled.
    fn go_on(&self) -> Result<(), Diagnostic> {
        self.machine.cancel.go_on().map_err(|e| Diagnostic::new(e.to_string()))
    }

    /// A likely value of an unknown extent, as costs take it, but for extents of 1: these hide what others need.
    fn likely(&self, unknown: usize) -> i64 {
        let (tensor, axis) = self.unknown[unknown];
        match (self.tensors[tensor].rank(), axis) {
            (rank, 0) if rank > 2 => 2,
            (rank, _) if rank > 3 => 224,
            _ => 32,
        }
    }

    fn shapes(&self, value: impl Fn(usize) -> i64) -> Vec<Shape> {
        let mut shapes: Vec<Shape> =
            self.tensors.iter().map(|t| t.shape.iter().map(|d| d.known().unwrap_or(1) as usize).collect()).collect();
        for (u, &(tensor, axis)) in self.unknown.iter().enumerate() {
            shapes[tensor][axis] = value(u) as usize;
        }
        shapes
    }

    /// Which unknown extents must be equal, where some are fixed: by extent, its class.
    fn classes(&self, fixed: &[Option<i64>]) -> Option<Vec<ExtentOf>> {
        let all = self.unknown.len();
        let fits = |value: &dyn Fn(usize) -> i64| {
            (self.instance)(&self.shapes(|u| fixed[u].unwrap_or_else(|| value(u)))).is_some()
        };
        let mut classes: Vec<Option<usize>> = vec![None; all];
        let mut next = 0;
        let apart = fits(&|u| self.likely(u) + 40 + 3 * u as i64);
        for u in 0..all {
            if fixed[u].is_some() || classes[u].is_some() {
                continue;
            }
            let others: Vec<usize> = (u + 1..all).filter(|&o| fixed[o].is_none() && classes[o].is_none()).collect();
            let members = match apart {
                true => Some(0),
                false if others.len() > MOST_EXTENTS => None,
                false => {
                    let mut sets: Vec<u32> = (0..1u32 << others.len()).collect();
                    sets.sort_by_key(|s| s.count_ones());
                    let is_in = |set: u32, o: usize| {
                        o == u || others.iter().position(|&x| x == o).is_some_and(|i| set >> i & 1 == 1)
                    };
                    // Classes that are known stay apart from each other and from the rest.
                    let value = |set: u32, o: usize| match classes[o] {
                        Some(c) => 90 + 7 * c as i64,
                        None if is_in(set, o) => 61,
                        None => 83,
                    };
                    sets.into_iter().find(|&set| fits(&|o| value(set, o)))
                }
            }?;
            for (i, &o) in others.iter().enumerate() {
                if members >> i & 1 == 1 {
                    classes[o] = Some(next);
                }
            }
            classes[u] = Some(next);
            next += 1;
        }
        let of = |(c, f): (&Option<usize>, &Option<i64>)| match (c, f) {
            (_, Some(n)) => Some(ExtentOf::Fixed(*n)),
            (Some(c), _) => Some(ExtentOf::Number(*c)),
            _ => None,
        };
        classes.iter().zip(fixed).map(of).collect()
    }

    fn form(&self, fixed: &[Option<i64>], kernels: &mut HashMap<String, Kernel>) -> Result<Form, Diagnostic> {
        let refuse = |why: &str| Diagnostic::new(format!("`{}` can't be exported for all sizes: {why}", self.name));
        let extents = self.classes(fixed).ok_or_else(|| refuse("which extents must be equal is not clear"))?;
        let count = extents.iter().filter_map(|e| if let ExtentOf::Number(c) = e { Some(c + 1) } else { None }).max();
        let count = count.unwrap_or(0);
        let members = |c: usize| (0..extents.len()).filter(|&u| extents[u] == ExtentOf::Number(c)).collect::<Vec<_>>();
        let most: Vec<i64> =
            (0..count).map(|c| members(c).into_iter().map(|u| self.most[u]).min().unwrap_or(1)).collect();
        let likely: Vec<i64> =
            (0..count).map(|c| members(c).first().map_or(1, |&u| self.likely(u)).min(most[c])).collect();
        let look = |size: &[i64]| -> Option<Looked> {
            let shapes = self.shapes(|u| match extents[u] {
                ExtentOf::Fixed(n) => n,
                ExtentOf::Number(c) => size[c],
            });
            let typed = (self.instance)(&shapes)?;
            let groups = groups(&typed, &entry_name(0), &self.state).ok()?;
            Some(Looked { size: size.to_vec(), typed, groups })
        };
        let mut asked = sizes(&likely, &most);
        let mut looked: Vec<Looked> = Vec::new();
        // Sizes that are refused, or that other code would have to serve, and why.
        let mut failed: Vec<(Vec<i64>, String)> = Vec::new();
        let mut sites: Option<Sites> = None;
        let mut bounds;
        loop {
            for size in std::mem::take(&mut asked) {
                match look(&size) {
                    Some(l) => looked.push(l),
                    None => failed.push((size, "the program's types refuse it".into())),
                }
            }
            if looked.is_empty() {
                return Err(refuse("no size is one that its types take"));
            }
            let sites = sites.get_or_insert_with(|| {
                let at: Vec<Vec<Group>> = deciders(&looked).map(|l| l.groups.clone()).collect();
                Sites::new(self.machine.backend.core, &at)
            });
            let mut served = Vec::new();
            for l in looked.drain(..) {
                match sites.meet(l.groups.clone()).1.first() {
                    None => served.push(l),
                    Some(&call) => failed.push((l.size, self.call(&l.groups, call))),
                }
            }
            looked = served;
            bounds = Bounds::of(&looked, &failed, &likely, &most).map_err(|why| refuse(&why))?;
            // A bound lies between what fails and what does not.
            let usual: Vec<i64> = (0..count).map(|c| likely[c].clamp(bounds.least[c], bounds.most[c])).collect();
            for c in 0..count {
                let good = || looked.iter().filter(|l| bounds.hold(&l.size)).map(|l| l.size[c]);
                let (low, high) = (good().min(), good().max());
                let mut ask = |n: i64| asked.push((0..count).map(|k| if k == c { n } else { usual[k] }).collect());
                if let Some(low) = low.filter(|n| *n > bounds.least[c] && bounds.least[c] > 1) {
                    ask((bounds.least[c] - 1 + low) / 2);
                }
                if let Some(high) = high.filter(|n| *n < bounds.most[c] && bounds.most[c] < i64::MAX) {
                    ask((bounds.most[c] + 2 + high) / 2);
                }
            }
            if asked.is_empty() {
                break;
            }
        }
        let mut sites = sites.ok_or_else(|| refuse("no size is one that its types take"))?;
        // All sizes are met before any is sampled: a kernel has as parameters what differs between any of them.
        let mut met: HashSet<Vec<i64>> = HashSet::new();
        loop {
            let before = failed.len();
            for size in bounds.all().map_err(|why| refuse(&why))? {
                self.go_on()?;
                if !met.insert(size.clone()) {
                    continue;
                }
                match look(&size) {
                    None => failed.push((size, "the program's types refuse it".into())),
                    Some(l) => {
                        if let Some(&call) = sites.meet(l.groups.clone()).1.first() {
                            failed.push((size, self.call(&l.groups, call)));
                        }
                    }
                }
            }
            if failed.len() == before {
                break;
            }
            bounds = Bounds::of(&looked, &failed, &likely, &most).map_err(|why| refuse(&why))?;
        }
        let mut code = self.machine.code(Vec::new());
        code.state = self.state.clone();
        looked.retain(|l| bounds.hold(&l.size));
        let mut samples: Vec<Sample> = Vec::new();
        for l in looked {
            samples.push(self.sample(l, &mut sites, &mut code).map_err(|why| refuse(&why))?);
        }
        if let Some(other) = samples[1..].iter().find(|s| !alike(s, &samples[0])) {
            return Err(refuse(&format!("at {:?} its calls are others than elsewhere", other.extents)));
        }
        // What does not hold at all sizes is found anew, by some of those, too.
        let mut program = SizedProgram::of(&samples).map_err(|e| refuse(&e.to_string()))?;
        for round in 0.. {
            let mut wrong: Vec<(Sample, NotSized)> = Vec::new();
            for size in bounds.all().map_err(|why| refuse(&why))? {
                self.go_on()?;
                let l = look(&size).ok_or_else(|| refuse(&format!("at {size:?}, the program's types refuse it")))?;
                let found = self.sample(l, &mut sites, &mut code).map_err(|why| refuse(&why))?;
                if !alike(&found, &samples[0]) {
                    return Err(refuse(&format!("at {size:?} its calls are others than elsewhere")));
                }
                if let Some(why) = program.differs(&found) {
                    wrong.push((found, why));
                }
                if wrong.len() == WRONG {
                    break;
                }
            }
            let Some((first, why)) = wrong.first() else { break };
            if round == ROUNDS {
                return Err(refuse(&format!("at {:?}, {why}", first.extents)));
            }
            samples.extend(wrong.into_iter().map(|w| w.0));
            program = SizedProgram::of(&samples).map_err(|e| refuse(&e.to_string()))?;
        }
        let called: Vec<&str> = samples[0].program.functions().collect();
        for k in code.kernels.into_iter().filter(|k| called.contains(&k.name.as_str())) {
            kernels.entry(k.name.clone()).or_insert(k);
        }
        let Bounds { least, most } = bounds;
        Ok(Form { extents, least, most, program })
    }

    fn call(&self, groups: &[Group], call: usize) -> String {
        let shapes: Vec<&[i64]> =
            groups[call].stages.args.iter().map(|&a| &groups[call].stages.decl(a).shape[..]).collect();
        format!("call {call} of arguments {shapes:?} has no kernel that serves all sizes")
    }

    /// What is done at one size.
    fn sample(&self, l: Looked, sites: &mut Sites, code: &mut CodeSet) -> Result<Sample, String> {
        let (met, unserved) = sites.meet(l.groups);
        if let Some(&call) = unserved.first() {
            let groups: Vec<Group> = met.into_iter().map(|m| m.group).collect();
            return Err(self.call(&groups, call));
        }
        let mut about: Vec<Vec<i64>> = Vec::new();
        let mut next: Vec<i64> = Vec::new();
        for Met { group, made } in &met {
            next.extend(extents_of(&group.stages));
            if !matches!(made, Made::View(_)) {
                about.push(std::mem::take(&mut next));
            }
        }
        about.push(next);
        code.met = Some(met.into_iter());
        let entry = entry_name(0);
        let assembled = assemble(&l.typed, &entry, &entry, code);
        code.met = None;
        let Assembled { program, counted, .. } = assembled.map_err(|e| e.to_string())?;
        Ok(Sample { extents: l.size, program, counted, about })
    }
}

/// The extents of what a call takes and computes, each once at this size.
fn extents_of(stages: &Stages) -> Vec<i64> {
    let mut all: Vec<i64> = stages.tensors.iter().flat_map(|t| t.shape.iter().copied()).collect();
    for d in &stages.definitions {
        match d {
            Definition::Stage(s) => {
                all.extend(s.axes.iter().map(|a| a.extent));
                if let Body::Reduce { axes, .. } = &s.body {
                    all.extend(axes.iter().map(|a| a.extent));
                }
            }
            Definition::Routine(r) => all.extend(r.indices.iter().map(|a| a.extent)),
        }
    }
    all
}

/// The sizes that kernels are decided at: the likely one first.
fn deciders(looked: &[Looked]) -> impl Iterator<Item = &Looked> {
    let step = (looked.len() / DECIDED_AT).max(1);
    let rest = looked.iter().rev().step_by(step).take(DECIDED_AT - 1);
    looked.first().into_iter().chain(rest)
}

/// Between which each extent lies.
struct Bounds {
    least: Vec<i64>,
    most: Vec<i64>,
}

impl Bounds {
    fn hold(&self, size: &[i64]) -> bool {
        (0..size.len()).all(|c| (self.least[c]..=self.most[c]).contains(&size[c]))
    }

    /// All sizes between them.
    ///
    /// Refuses more than can be looked at.
    fn all(&self) -> Result<impl Iterator<Item = Vec<i64>>, String> {
        let spans: Vec<i64> = self.least.iter().zip(&self.most).map(|(least, most)| most - least + 1).collect();
        let count = spans.iter().try_fold(1i64, |n, s| n.checked_mul(*s)).filter(|n| *n <= MOST_SIZES);
        let count = count.ok_or_else(|| {
            let spans: Vec<String> = spans.iter().map(i64::to_string).collect();
            format!(
                "bounds leave {} sizes, each of which would have to be checked, and {MOST_SIZES} is the limit; give lesser bounds by `--max`",
                spans.join(" x ")
            )
        })?;
        let least = self.least.clone();
        Ok((0..count).map(move |k| {
            let mut rest = k * STRIDE % count;
            let mut size = least.clone();
            for (n, span) in size.iter_mut().zip(&spans) {
                *n += rest % span;
                rest /= span;
            }
            size
        }))
    }

    /// Such that nothing between them fails, and what is likely lies there if it can.
    fn of(looked: &[Looked], failed: &[(Vec<i64>, String)], likely: &[i64], most: &[i64]) -> Result<Bounds, String> {
        let mut bounds = Bounds { least: vec![1; likely.len()], most: most.to_vec() };
        while let Some((size, why)) = failed.iter().find(|(size, _)| bounds.hold(size)) {
            let lost = |c: usize| {
                let beyond = |n: i64| if size[c] < likely[c].max(2) { n <= size[c] } else { n >= size[c] };
                looked.iter().filter(|l| bounds.hold(&l.size) && beyond(l.size[c])).count()
            };
            let best = (0..size.len()).filter(|&c| size[c] != likely[c] || size[c] == 1).min_by_key(|&c| lost(c));
            match best {
                Some(c) if size[c] < likely[c].max(2) => bounds.least[c] = size[c] + 1,
                Some(c) => bounds.most[c] = size[c] - 1,
                None => return Err(format!("at {size:?}, {why}")),
            }
        }
        match looked.iter().filter(|l| bounds.hold(&l.size)).count() {
            // What holds at few sizes only is no rule.
            n if n >= RANDOM.min(looked.len()) / 2 && n > 0 => Ok(bounds),
            _ => Err(failed
                .last()
                .map_or_else(|| "no size is served".into(), |(size, why)| format!("at {size:?}, {why}"))),
        }
    }
}

/// Sizes to look at, each once: the likely one first.
fn sizes(likely: &[i64], most: &[i64]) -> Vec<Vec<i64>> {
    let usual: Vec<i64> = likely.iter().enumerate().map(|(c, n)| n + 2 + 3 * c as i64).collect();
    let mut all = vec![likely.to_vec()];
    for (c, &most) in most.iter().enumerate() {
        let powers = (5..12).map(|p| 1 << p);
        for n in (1..=SMALL).chain(powers).chain([most]) {
            all.push(usual.iter().enumerate().map(|(k, &u)| if k == c { n } else { u }).collect());
        }
    }
    let mut random = Random(0);
    all.extend((0..RANDOM).map(|_| likely.iter().map(|&n| random.extent(n)).collect()));
    let within = |size: Vec<i64>| size.iter().zip(most).map(|(n, most)| *n.min(most)).collect();
    let mut seen: HashSet<Vec<i64>> = HashSet::new();
    all.into_iter().map(within).filter(|size: &Vec<i64>| seen.insert(size.clone())).collect()
}

/// Numbers that are the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Of every magnitude up to some times what is likely.
    fn extent(&mut self, likely: i64) -> i64 {
        let most = 8 * likely.max(4);
        let bits = 64 - (most as u64).leading_zeros() as u64;
        let below = 1u64 << (self.next() % bits + 1);
        (self.next() % below) as i64 + 1
    }
}
