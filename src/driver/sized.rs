//! Functions for all sizes, to be exported: what a function does is looked at in every size within bounds, and put down as formulas.
//!
//! In this process a size that was not met is lowered and scheduled again. An exported library can't do that, so users bound the unknown
//! extents, and each size is lowered and scheduled when the library is made. Sizes at which the calls are the same but for numbers are a
//! form of the function, whose numbers are formulas or tables that give exactly what was found. Sizes that the types refuse, or that no form is
//! for, are refused by the library.

use hashbrown::{HashMap, HashSet};
use rayon::prelude::*;

use super::{
    entry::entry_name,
    extents::{ExtentRange, Extents, called},
    sizes::{LOOKED_AT, others},
    specialize::{Machine, Primitive, Primitives},
};
use crate::{
    diag::{Diagnostic, Refused},
    infer::TypedModule,
    ir::{TensorType, Type, output_names},
    loops::{Body, Definition, Kernel, Stages},
    lower::{Assembled, CodeSet, Group, LookedUp, Made, Met, Sites, assemble, groups},
    runtime::{
        Sample, SizedProgram, alike,
        export::{ExtentOf, Form, InForm, PortType, SizedFunction, Span},
    },
    tensor::Shape,
};

/// Small extents that are looked at one after another.
const SMALL: usize = 33;
/// So many sizes are taken at random to find formulas.
const RANDOM: usize = 64;
/// A form of a function is for so many sizes at most, each of which is lowered: a few seconds where that takes a millisecond, some minutes
/// of a network whose every size takes thirty.
const MOST_SIZES: i64 = 4096;
/// The same of a function that a program with control flow calls, which is a call of a kernel or a few.
const MOST_SIZES_OF_KERNEL: i64 = 65_536;
/// Sizes are met in steps of this prime, which has no factor with their number: what is unlike shows early.
const STRIDE: i64 = 1_000_003;
/// So many sizes are looked at at once.
const AT_ONCE: usize = 16;
/// Kernels for sizes that none serves are looked for so often.
const WIDENED: usize = 8;
/// Extents that types are asked about are multiples of these.
const MULTIPLES: [i64; 10] = [1, 2, 3, 4, 5, 7, 8, 12, 64, 840];
/// Extents that have to be equal are looked for among so many.
const MOST_EXTENTS: usize = 10;
/// A function has so many forms at most.
const MOST_FORMS: usize = 16;
/// So many sizes at most bring kernels of their own for calls that none serves; others may call the same ones.
const ALONE: usize = 8;
/// Of so many extents at most it is looked at which may be 0 together.
const MOST_NONE: usize = 4;
/// So many calls in all are looked at, at as many sizes as that makes, for extents that broadcast where others of that size are equal.
const BROADCAST_CALLS: i64 = 16384;

/// A function at many sizes.
struct Sampler<'a> {
    machine: &'a Machine,
    types: &'a [Type],
    tensors: Vec<TensorType>,
    /// Arguments and axes of each unknown extent: of several ones, where they have the same name.
    unknown: Vec<Vec<(usize, usize)>>,
    /// What each may be.
    ranges: Vec<ExtentRange>,
    /// What each is likely to be.
    likely: Vec<i64>,
    instance: &'a (dyn Fn(&[Shape]) -> Option<TypedModule> + Sync),
    state: Vec<(usize, usize)>,
    /// Whether extents may be 0: arguments of functions that a program calls on what it computes.
    takes_none: bool,
    /// How many sizes may be looked at.
    limit: i64,
    name: &'a str,
}

/// One size.
struct Looked {
    typed: TypedModule,
    groups: Vec<Group>,
}

/// What came of a size.
enum Tried {
    /// What it is made of, after so many changes of kernels.
    Sample(usize, Box<Sample>),
    /// The program's types refuse it.
    Untyped,
    /// No kernel serves it, and why.
    Unserved(String),
}

/// The forms for some sizes.
struct Pattern {
    /// What each unknown extent is to them.
    extents: Vec<ExtentOf>,
    forms: Vec<Form>,
    /// Why sizes are refused that the program takes, where some are.
    refused: Option<String>,
    /// How many sizes were looked at.
    sizes: usize,
    /// Arguments and axes of state that grows.
    grows: Vec<(usize, usize)>,
}

/// A function for all sizes that it has forms for.
pub(super) struct AllSizes {
    pub function: SizedFunction,
    /// Why sizes are refused that the program takes.
    pub refused: Option<String>,
}

impl Primitives {
    /// The function for all sizes within bounds of each argument's axes, and the kernels that it calls, which join `kernels`. `names` are its
    /// own and the arguments'; `dims` those of their extents, where they have any.
    ///
    /// Refuses extents without a bound, and more sizes than can be looked at.
    pub(super) fn sized(
        &self,
        f: &Primitive,
        names: &[String],
        dims: &[Vec<String>],
        extents: &Extents,
        kernels: &mut HashMap<String, Kernel>,
    ) -> Result<AllSizes, Refused> {
        let m = &self.module;
        let func = m.func(f.func);
        let types: Vec<Type> = func.params.iter().filter_map(|&p| m.var(p).ty.clone()).collect();
        let tensors: Vec<TensorType> = types.iter().filter_map(Type::flatten).flatten().collect();
        let instance = |shapes: &[Shape]| self.at_extents(f, &types, shapes).ok();
        let all = unknown_extents(&tensors);
        let state = if self.is_whole(f) { self.machine.state.clone() } else { Vec::new() };
        let name = names.first().map_or("main", String::as_str);
        let refuse = |d: Diagnostic| Refused::from(d.at(m.span(f.func).cloned()));
        let dimension = |tensor: usize, axis: usize| -> Option<&str> {
            let dim = dims.get(tensor).and_then(|d| d.get(axis)).filter(|d| !d.is_empty());
            dim.map(String::as_str)
        };
        let unbounded: Vec<String> = all
            .iter()
            .filter(|&&(tensor, axis)| extents.range(tensor, axis).is_none())
            .map(|&(tensor, axis)| called(names.get(tensor + 1).map_or("", |n| n), axis, dimension(tensor, axis)))
            .collect();
        if !unbounded.is_empty() {
            let message =
                format!("`{name}` can't be exported: unknown extents have no bound: {}", unbounded.join(", "));
            let help = "a library takes the sizes that were looked at when it was built: say how great each may be, by `--max NAME=N` or \
                        `Options::bounds`";
            return Err(refuse(Diagnostic::new(message).help(help)));
        }
        let mut unknown: Vec<Vec<(usize, usize)>> = Vec::new();
        for &(tensor, axis) in &all {
            let dim = dimension(tensor, axis);
            let same = unknown.iter_mut().find(|u| dim.is_some() && dimension(u[0].0, u[0].1) == dim);
            match same {
                Some(same) => same.push((tensor, axis)),
                None => unknown.push(vec![(tensor, axis)]),
            }
        }
        let shapes = extents.likely().unwrap_or_default();
        let at = |&(tensor, axis): &(usize, usize)| Some(*shapes.get(tensor)?.get(axis)? as i64);
        let likely = unknown.iter().map(|u| u.iter().filter_map(at).min().unwrap_or(1)).collect();
        let of_place = |&(tensor, axis): &(usize, usize)| extents.range(tensor, axis);
        let in_all = |u: &Vec<(usize, usize)>| u.iter().filter_map(of_place).reduce(ExtentRange::and);
        let ranges = unknown.iter().map(|u| in_all(u).unwrap_or(ExtentRange::up_to(1))).collect();
        let (machine, types, instance) = (&self.machine, &types[..], &instance);
        let takes_none = !self.is_whole(f);
        let limit = if takes_none { MOST_SIZES_OF_KERNEL } else { MOST_SIZES };
        let sampler =
            Sampler { machine, types, tensors, unknown, ranges, likely, instance, state, takes_none, limit, name };
        let (mut forms, refused) = sampler.forms(kernels).map_err(refuse)?;
        // Of an extent with a name, each place has it.
        for form in &mut forms {
            let of = |u: &(usize, usize)| sampler.unknown.iter().position(|same| same.contains(u));
            form.extents = all.iter().filter_map(of).map(|u| form.extents[u]).collect();
        }
        let port = |(i, t): (usize, &TensorType)| PortType {
            name: names.get(i + 1).cloned().unwrap_or_else(|| i.to_string()),
            dtype: t.dtype,
            shape: t.shape.iter().map(|d| d.known().map(|n| n as usize)).collect(),
        };
        let inputs = sampler.tensors.iter().enumerate().map(port).collect();
        let state = sampler.state;
        let mut function = SizedFunction { name: name.to_owned(), inputs, output_names: Vec::new(), forms, state };
        let own = output_names(m).filter(|own| self.is_whole(f) && own.len() == function.results());
        function.output_names = own.unwrap_or_default();
        Ok(AllSizes { function, refused })
    }
}

fn unknown_extents(tensors: &[TensorType]) -> Vec<(usize, usize)> {
    let axes = |(i, t): (usize, &TensorType)| -> Vec<(usize, usize)> {
        t.shape.iter().enumerate().filter(|(_, d)| d.known().is_none()).map(|(axis, _)| (i, axis)).collect()
    };
    tensors.iter().enumerate().flat_map(axes).collect()
}

impl Sampler<'_> {
    /// The forms, and why sizes are refused that the program takes, where some are.
    fn forms(&self, kernels: &mut HashMap<String, Kernel>) -> Result<(Vec<Form>, Option<String>), Diagnostic> {
        let free = vec![None; self.unknown.len()];
        let Pattern { extents, mut forms, mut refused, grows, .. } = self.pattern(&free, self.limit, kernels)?;
        // State that grows begins as nothing. These come first, so that of such state they say what else does not fit.
        if let Some(fixed) = self.beginning(&extents, &grows) {
            match self.pattern(&fixed, MOST_SIZES, kernels) {
                Ok(Pattern { forms: first, refused: why, .. }) => {
                    forms.splice(0..0, first);
                    refused = refused.or(why);
                }
                Err(why) => refused = refused.or_else(|| Some(format!("state without elements is not served: {why}"))),
            }
        }
        let number = |e: &ExtentOf| if let ExtentOf::Number(c) = e { Some(c + 1) } else { None };
        let classes = extents.iter().filter_map(number).max().unwrap_or(0);
        // What grows while a program runs may begin as nothing.
        let sets = if self.takes_none { 1..1u32 << classes.min(MOST_NONE) } else { 1..1 };
        let mut sets: Vec<u32> = sets.collect();
        sets.sort_by_key(|set| set.count_ones());
        for set in sets {
            self.go_on()?;
            let is_in = |e: &ExtentOf| matches!(e, ExtentOf::Number(c) if set >> c & 1 == 1);
            let fixed: Vec<Option<i64>> = extents.iter().map(|e| is_in(e).then_some(0)).collect();
            let allowed = |(u, n): (usize, &Option<i64>)| n.is_none() || self.ranges[u].contains(0);
            if forms.len() < MOST_FORMS && fixed.iter().enumerate().all(allowed) {
                // Not all that can be called with something can be called with nothing.
                if let Ok(Pattern { forms: more, .. }) = self.pattern(&fixed, self.limit, kernels) {
                    forms.extend(more.into_iter().take(MOST_FORMS - forms.len()));
                }
            }
        }
        // Sizes at which extents that are equal elsewhere are not, as where one of them is 1 and broadcasts.
        let mut patterns: Vec<Vec<Option<i64>>> = vec![free];
        for class in 0..classes {
            let members: Vec<usize> =
                (0..self.unknown.len()).filter(|&u| extents[u] == ExtentOf::Number(class)).collect();
            for at in 0..patterns.len() {
                for &u in members.iter().filter(|&&u| members.len() > 1 && self.ranges[u].contains(1)) {
                    let mut fixed = patterns[at].clone();
                    fixed[u] = Some(1);
                    patterns.push(fixed);
                }
            }
        }
        let calls = forms.first().map_or(0, |f| f.program.calls());
        let mut left = MOST_SIZES.min(BROADCAST_CALLS / calls.max(1) as i64);
        for fixed in patterns.into_iter().skip(1) {
            self.go_on()?;
            if forms.len() >= MOST_FORMS {
                break;
            }
            // Most of these do not exist.
            if let Ok(Pattern { forms: more, sizes, .. }) = self.pattern(&fixed, left, kernels) {
                forms.extend(more.into_iter().take(MOST_FORMS - forms.len()));
                left -= sizes as i64;
            }
        }
        // Rows are counted alike by all.
        let counted = forms.first().map(|f| f.program.counted().to_vec());
        forms.retain(|f| Some(f.program.counted()) == counted.as_deref());
        if !self.state.is_empty() && counted.is_some_and(|c| !c.is_empty()) {
            let message = format!(
                "`{}` can't be exported with state: of some results only as many rows are meant as it counts",
                self.name
            );
            return Err(Diagnostic::new(message));
        }
        Ok((forms, refused))
    }

    /// What is fixed where state has nothing yet along the axes that grow, and so have all extents that are the same; none where there are
    /// none, or users say that it has something.
    fn beginning(&self, extents: &[ExtentOf], grows: &[(usize, usize)]) -> Option<Vec<Option<i64>>> {
        let is_grown = |u: usize| self.unknown[u].iter().any(|place| grows.contains(place));
        let grown: Vec<ExtentOf> = (0..extents.len()).filter(|&u| is_grown(u)).map(|u| extents[u]).collect();
        let fixed = |u: usize| grown.contains(&extents[u]).then_some(0);
        let all = (0..extents.len()).all(|u| fixed(u).is_none() || self.ranges[u].contains(0));
        (all && !grown.is_empty()).then(|| (0..extents.len()).map(fixed).collect())
    }

    /// Refuses to go on once the build is cancelled.
    fn go_on(&self) -> Result<(), Diagnostic> {
        self.machine.cancel.go_on().map_err(|e| Diagnostic::new(e.to_string()))
    }

    fn shapes(&self, value: impl Fn(usize) -> i64) -> Vec<Shape> {
        let mut shapes: Vec<Shape> =
            self.tensors.iter().map(|t| t.shape.iter().map(|d| d.known().unwrap_or(1) as usize).collect()).collect();
        for (u, same) in self.unknown.iter().enumerate() {
            same.iter().for_each(|&(tensor, axis)| shapes[tensor][axis] = value(u) as usize);
        }
        shapes
    }

    /// Which unknown extents must be equal, where some are fixed: by extent, its class.
    fn classes(&self, fixed: &[Option<i64>]) -> Option<Vec<ExtentOf>> {
        let all = self.unknown.len();
        // Some extents must be multiples of something.
        let fits = |value: &dyn Fn(usize) -> i64| {
            let at = |by: &i64| self.shapes(|u| fixed[u].unwrap_or_else(|| by * value(u)));
            MULTIPLES.iter().any(|by| (self.instance)(&at(by)).is_some())
        };
        let mut classes: Vec<Option<usize>> = vec![None; all];
        let mut next = 0;
        let apart = fits(&|u| self.likely[u] + 40 + 3 * u as i64);
        for u in 0..all {
            if fixed[u].is_some() || classes[u].is_some() {
                continue;
            }
            let others: Vec<usize> = (u + 1..all).filter(|&o| fixed[o].is_none() && classes[o].is_none()).collect();
            let members = match apart || others.is_empty() {
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

    /// The forms for sizes at which some extents are fixed.
    ///
    /// Refuses more sizes than `limit`.
    fn pattern(
        &self,
        fixed: &[Option<i64>],
        limit: i64,
        kernels: &mut HashMap<String, Kernel>,
    ) -> Result<Pattern, Diagnostic> {
        let refuse = |why: &str| Diagnostic::new(format!("`{}` can't be exported for all sizes: {why}", self.name));
        let extents = self.classes(fixed).ok_or_else(|| refuse("which extents must be equal is not clear"))?;
        let count = extents.iter().filter_map(|e| if let ExtentOf::Number(c) = e { Some(c + 1) } else { None }).max();
        let classes = 0..count.unwrap_or(0);
        let of = &extents[..];
        let members = |c: usize| (0..of.len()).filter(move |&u| of[u] == ExtentOf::Number(c));
        let range = |c: usize| members(c).map(|u| self.ranges[u]).reduce(ExtentRange::and);
        let ranges: Vec<ExtentRange> = classes.clone().map(|c| range(c).unwrap_or(ExtentRange::up_to(1))).collect();
        let guess = |c: usize| members(c).map(|u| self.likely[u]).min().unwrap_or(1);
        let likely: Vec<i64> = classes.map(|c| ranges[c].near(guess(c) as usize) as i64).collect();
        let sizes = all_sizes(&ranges, limit).map_err(|why| refuse(&why))?;
        let mut search =
            Search { sampler: self, extents: &extents, sites: None, tried: HashMap::new(), own: Vec::new() };
        search.decide(&likely, &sizes).map_err(|why| refuse(&why))?;
        let mut code = self.machine.code(Vec::new());
        code.state = self.state.clone();
        search.meet_all(&sizes, &mut code)?;
        let Search { mut tried, .. } = search;
        // Those that formulas are found by come first.
        let mut order = likely_sizes(&likely, &ranges);
        let looked_at: HashSet<Vec<i64>> = order.iter().cloned().collect();
        order.extend(sizes.iter().filter(|s| !looked_at.contains(*s)).cloned());
        let mut alikes: Vec<Vec<Sample>> = Vec::new();
        let mut refused: Vec<(Vec<i64>, String)> = Vec::new();
        for size in order {
            match tried.remove(&size) {
                Some(Tried::Sample(_, sample)) => match alikes.iter_mut().find(|all| alike(&all[0], &sample)) {
                    Some(all) => all.push(*sample),
                    None => alikes.push(vec![*sample]),
                },
                Some(Tried::Unserved(why)) => refused.push((size, why)),
                Some(Tried::Untyped) | None => {}
            }
        }
        alikes.sort_by_key(|all| std::cmp::Reverse(all.len()));
        for lost in alikes.drain(MOST_FORMS.min(alikes.len())..).flatten() {
            refused
                .push((lost.extents, format!("calls are others than at most sizes, in more than {MOST_FORMS} ways")));
        }
        let bound = |c: usize, of: fn(i64, i64) -> i64| alikes.iter().flatten().map(|s| s.extents[c]).reduce(of);
        let bounds = |of| (0..ranges.len()).filter_map(|c| bound(c, of)).collect::<Vec<i64>>();
        let (least, most) = (bounds(i64::min), bounds(i64::max));
        let step: Vec<i64> = ranges.iter().map(|r| r.step as i64).collect();
        let mut forms = Vec::new();
        for all in &alikes {
            let looked = all.iter().filter(|s| looked_at.contains(&s.extents)).count().max(RANDOM);
            let program = SizedProgram::of(all, looked).map_err(|e| refuse(&e.to_string()))?;
            let classes: Vec<Span> =
                (0..step.len()).map(|c| Span { least: least[c], most: most[c], step: step[c] }).collect();
            let serves = served(all, &classes);
            let state = self.state.iter().map(|&pair| in_form(all, pair)).collect();
            forms.push(Form { extents: extents.clone(), classes, serves, program, state });
            self.go_on()?;
        }
        let total: usize = refused.len() + alikes.iter().map(Vec::len).sum::<usize>();
        let one = refused.first();
        let refused =
            one.map(|(size, why)| format!("{} of {total} sizes are not served: at {size:?}, {why}", refused.len()));
        if let (true, Some(why)) = (forms.is_empty(), &refused) {
            return Err(refuse(why));
        }
        let grown = |&(input, output): &(usize, usize)| -> Vec<(usize, usize)> {
            let differs =
                |s: &Sample, axis: usize| s.program.inputs()[input].shape[axis] != output_extents(s, output)[axis];
            let rank = self.tensors[input].rank();
            (0..rank)
                .filter(|&axis| alikes.iter().flatten().any(|s| differs(s, axis)))
                .map(|axis| (input, axis))
                .collect()
        };
        let grows = self.state.iter().flat_map(grown).collect();
        let called: HashSet<String> = forms.iter().flat_map(|f| f.program.functions()).map(str::to_owned).collect();
        for k in code.kernels.into_iter().filter(|k| called.contains(&k.name)) {
            kernels.entry(k.name.clone()).or_insert(k);
        }
        Ok(Pattern { extents, forms, refused, sizes: sizes.len(), grows })
    }
}

fn output_extents(s: &Sample, output: usize) -> &[usize] {
    s.program.outputs().nth(output).map_or(&[], |p| &p.shape)
}

/// What is done with a state, an input and an output, at these sizes.
pub(super) fn in_form(samples: &[Sample], (input, output): (usize, usize)) -> InForm {
    let shapes = |s: &Sample| [s.program.inputs()[input].shape.to_vec(), output_extents(s, output).to_vec()];
    let greater = |a: Vec<usize>, b: Vec<usize>| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect();
    InForm {
        in_place: samples.iter().all(|s| s.program.may_share(input, output)),
        most: samples.iter().flat_map(shapes).reduce(greater).unwrap_or_default(),
    }
}

/// The sizes of one pattern, and what is made of them.
struct Search<'a> {
    sampler: &'a Sampler<'a>,
    extents: &'a [ExtentOf],
    sites: Option<Sites>,
    tried: HashMap<Vec<i64>, Tried>,
    /// Calls that have kernels of their own: of one token after any number of others, what does not read those is always the same.
    own: Vec<Group>,
}

impl Search<'_> {
    fn shapes(&self, size: &[i64]) -> Vec<Shape> {
        self.sampler.shapes(|u| match self.extents[u] {
            ExtentOf::Fixed(n) => n,
            ExtentOf::Number(c) => size[c],
        })
    }

    /// These extents but for those that are fixed.
    fn with_fixed(&self, mut shapes: Vec<Shape>) -> Vec<Shape> {
        for (same, extent) in self.sampler.unknown.iter().zip(self.extents) {
            if let ExtentOf::Fixed(n) = extent {
                same.iter().for_each(|&(tensor, axis)| shapes[tensor][axis] = *n as usize);
            }
        }
        shapes
    }

    fn look_at(&self, shapes: &[Shape]) -> Option<Looked> {
        let typed = (self.sampler.instance)(shapes)?;
        let groups = groups(&typed, &entry_name(0), &self.sampler.state).ok()?;
        Some(Looked { typed, groups })
    }

    /// What calls compute at a size, then at others that are greater in several ways: by these it shows what changes.
    fn beside(&self, size: &[i64], ones_stay: bool) -> Option<Vec<Vec<Group>>> {
        let shapes = self.shapes(size);
        let first = self.look_at(&shapes)?.groups;
        let found = others(self.sampler.types, &shapes, ones_stay, &HashSet::new())
            .into_iter()
            .map(|other| self.with_fixed(other));
        let found = found.filter_map(|other| Some(self.look_at(&other)?.groups)).filter(|g| g.len() == first.len());
        let found: Vec<Vec<Group>> = found.take(LOOKED_AT - 1).collect();
        Some([first].into_iter().chain(found).collect())
    }

    /// Makes kernels as this process does, by the size that is likely, or the first that can be had.
    fn decide(&mut self, likely: &[i64], sizes: &[Vec<i64>]) -> Result<(), String> {
        let ones_stay = self.extents.iter().any(|e| matches!(e, ExtentOf::Fixed(_)));
        let mut candidates = std::iter::once(likely).chain(sizes.iter().map(|s| &s[..]));
        let at = candidates.find_map(|size| self.beside(size, ones_stay));
        let at = at.ok_or("no size is one that its types take")?;
        self.sites = Some(Sites::new(self.sampler.machine.backend.core, &at));
        Ok(())
    }

    /// Tries all sizes, by further kernels where those that there are do not serve.
    fn meet_all(&mut self, sizes: &[Vec<i64>], code: &mut CodeSet) -> Result<(), Diagnostic> {
        for round in 0..=WIDENED {
            let mut unserved: Vec<(Vec<usize>, Vec<&Vec<i64>>)> = Vec::new();
            for some in sizes.chunks(AT_ONCE) {
                self.sampler.go_on()?;
                let changes = self.sites.as_ref().map_or(0, Sites::changes);
                let is_due = |size: &&Vec<i64>| match self.tried.get(*size) {
                    Some(Tried::Untyped) => false,
                    Some(Tried::Sample(at, _)) => *at != changes,
                    _ => true,
                };
                let due: Vec<&Vec<i64>> = some.iter().filter(is_due).collect();
                let seen: Vec<Option<(TypedModule, LookedUp)>> =
                    due.par_iter().with_max_len(1).map(|size| self.see(size)).collect();
                for (size, seen) in due.into_iter().zip(seen) {
                    let (tried, calls) = self.meet(size, seen, false, code);
                    // Of what was seen before others joined it is not known that it is still so.
                    let tried = match tried {
                        Tried::Sample(_, sample) => Tried::Sample(changes, sample),
                        other => other,
                    };
                    self.tried.insert(size.clone(), tried);
                    if calls.is_empty() {
                        continue;
                    }
                    match unserved.iter_mut().find(|u| u.0 == calls) {
                        Some((_, all)) => all.push(size),
                        None => unserved.push((calls, vec![size])),
                    }
                }
            }
            if round == WIDENED {
                break;
            }
            // By sizes that are alike in that; by greater ones, where there is only one.
            let before = self.sites.as_ref().map_or(0, Sites::changes);
            for (calls, all) in &unserved {
                let few = all.iter().take(LOOKED_AT).filter_map(|size| Some(self.look_at(&self.shapes(size))?.groups));
                let few: Vec<Vec<Group>> = few.collect();
                let greater = all.first().and_then(|size| self.beside(size, true)).unwrap_or_default();
                if let Some(sites) = &mut self.sites {
                    let changes = sites.changes();
                    sites.widen(calls, &few);
                    if sites.changes() == changes {
                        sites.widen(calls, &greater);
                    }
                }
            }
            let stale = |t: &Tried| matches!(t, Tried::Sample(at, _) if *at != before);
            let changed = self.sites.as_ref().map_or(0, Sites::changes) != before;
            if !changed && !self.tried.values().any(stale) {
                break;
            }
        }
        let is_unserved = |size: &&Vec<i64>| matches!(self.tried.get(*size), Some(Tried::Unserved(_)));
        let unserved: Vec<Vec<i64>> = sizes.iter().filter(is_unserved).cloned().collect();
        let mut alone = 0;
        for size in unserved {
            self.sampler.go_on()?;
            let (seen, before) = (self.see(&size), self.own.len());
            let (tried, _) = self.meet(&size, seen, alone < ALONE, code);
            alone += usize::from(self.own.len() > before);
            self.tried.insert(size, tried);
        }
        Ok(())
    }

    /// What a size is, and what its calls are made of by the kernels that there are.
    fn see(&self, size: &[i64]) -> Option<(TypedModule, LookedUp)> {
        let Looked { typed, groups } = self.look_at(&self.shapes(size))?;
        Some((typed, self.sites.as_ref()?.look_up(groups)))
    }

    /// What is made of a size, and the calls that no kernel serves: which have kernels of their own, where `alone` or where they are known.
    fn meet(
        &mut self,
        size: &[i64],
        seen: Option<(TypedModule, LookedUp)>,
        alone: bool,
        code: &mut CodeSet,
    ) -> (Tried, Vec<usize>) {
        let (Some((typed, seen)), Some(sites)) = (seen, &mut self.sites) else {
            return (Tried::Untyped, Vec::new());
        };
        let (met, unserved) = sites.assign(seen);
        let changes = sites.changes();
        let new = |&call: &usize| !self.own.contains(&met[call].group);
        let new: Vec<usize> = unserved.iter().copied().filter(new).collect();
        if let Some(&call) = new.first().filter(|_| !alone) {
            let groups: Vec<Group> = met.into_iter().map(|m| m.group).collect();
            return (Tried::Unserved(described(&groups, call)), unserved);
        }
        self.own.extend(new.into_iter().map(|call| met[call].group.clone()));
        match sample(size, &typed, met, code) {
            Ok(sample) => (Tried::Sample(changes, Box::new(sample)), Vec::new()),
            Err(why) => (Tried::Unserved(why), Vec::new()),
        }
    }
}

/// A call in words.
fn described(groups: &[Group], call: usize) -> String {
    let Some(Group { stages, .. }) = groups.get(call) else { return "there are more calls than elsewhere".into() };
    let shapes: Vec<&[i64]> = stages.args.iter().map(|&a| &stages.decl(a).shape[..]).collect();
    format!("call {call} of arguments {shapes:?} has no kernel that serves several sizes")
}

/// What is done at one size.
fn sample(size: &[i64], typed: &TypedModule, met: Vec<Met>, code: &mut CodeSet) -> Result<Sample, String> {
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
    let assembled = assemble(typed, &entry, &entry, code);
    code.met = None;
    let Assembled { program, counted, .. } = assembled.map_err(|e| e.to_string())?;
    Ok(Sample { extents: size.to_vec(), program, counted, about })
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

/// Which sizes within spans these are; none where all are.
fn served(samples: &[Sample], spans: &[Span]) -> Option<Vec<bool>> {
    let count: i64 = spans.iter().map(Span::count).product();
    let mut serves = vec![false; count as usize];
    for s in samples {
        let (mut at, mut by) = (0, 1);
        for (n, span) in s.extents.iter().zip(spans) {
            at += (n - span.least) / span.step * by;
            by *= span.count();
        }
        serves[at as usize] = true;
    }
    if serves.iter().all(|s| *s) { None } else { Some(serves) }
}

/// All sizes within ranges.
///
/// Refuses more sizes than a limit.
fn all_sizes(ranges: &[ExtentRange], limit: i64) -> Result<Vec<Vec<i64>>, String> {
    let counts: Vec<i64> = ranges.iter().map(|r| r.count() as i64).collect();
    if counts.contains(&0) {
        return Err("bounds of extents that have to be equal have no extent in common".into());
    }
    let count = counts.iter().try_fold(1i64, |n, s| n.checked_mul(*s)).filter(|n| *n <= limit);
    let count = count.ok_or_else(|| {
        let counts: Vec<String> = counts.iter().map(i64::to_string).collect();
        format!(
            "bounds leave {} sizes, each of which would have to be looked at, and {limit} is the limit; give lesser bounds by `--max`, or \
             steps as in `--max height=512/32`",
            counts.join(" x ")
        )
    })?;
    let size = |k: i64| -> Vec<i64> {
        let mut rest = k * STRIDE % count;
        let extent = |range: &ExtentRange| {
            let of = range.count() as i64;
            let n = range.nth((rest % of) as usize);
            rest /= of;
            n as i64
        };
        ranges.iter().map(extent).collect()
    };
    Ok((0..count).map(size).collect())
}

/// Sizes to look at, each once: the likely one first.
fn likely_sizes(likely: &[i64], ranges: &[ExtentRange]) -> Vec<Vec<i64>> {
    let further = |(c, (n, range)): (usize, (&i64, &ExtentRange))| n + (2 + 3 * c as i64) * range.step as i64;
    let usual: Vec<i64> = likely.iter().zip(ranges).enumerate().map(further).collect();
    let mut all = vec![likely.to_vec()];
    for (c, range) in ranges.iter().enumerate() {
        let small = (0..SMALL).map(|k| range.nth(k) as i64);
        let powers = (5..12).map(|p| 1 << p);
        for n in small.chain(powers).chain([range.most as i64]) {
            all.push(usual.iter().enumerate().map(|(k, &u)| if k == c { n } else { u }).collect());
        }
    }
    let mut random = Random(0);
    all.extend((0..RANDOM).map(|_| likely.iter().map(|&n| random.extent(n)).collect()));
    let within = |size: Vec<i64>| size.iter().zip(ranges).map(|(n, range)| range.near(*n as usize) as i64).collect();
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
