//! Programs for all sizes: one sequence of calls, whose numbers are formulas of the extents of inputs.
//!
//! A program for given extents has its numbers (extents of results, bytes of buffers, parameters of kernels) worked out. Here they are
//! formulas, so that a program without a compiler at hand runs at many sizes. The formulas are found by looking at programs for some of
//! these, which are the same but for numbers ([`Formulas`]), and compared with the programs for all others; a number that has no formula
//! is looked up in a table.

use hashbrown::HashSet;
use rayon::prelude::*;

use super::{
    formulas::{Formula, Formulas},
    program::{Program, Source, Step},
};
use crate::tensor::{DType, Tensor};

/// What a program does at one size.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The extents that numbers follow from.
    pub extents: Vec<i64>,
    /// Its calls, for these extents.
    pub program: Program,
    /// Outputs of which another output says how many rows are meant: pairs of their numbers.
    pub counted: Vec<(usize, usize)>,
    /// By call, in order: extents of what it takes, computes and gives. There may be one list more, of what comes after all calls.
    pub about: Vec<Vec<i64>>,
}

/// Why there is no program for all sizes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSized {
    /// An output is part of another one's memory.
    #[error("output {0} (`{1}`) is a part of another")]
    Part(usize, String),
}

/// So many sizes at which formulas do not hold are looked at before these are found again.
const WRONG: usize = 64;
/// Formulas are found again so often; then what does not hold is looked up in tables.
const ROUNDS: usize = 6;

/// A program for all sizes of one form.
#[derive(Clone, Debug)]
pub struct SizedProgram {
    /// For the size that was looked at first.
    pub(super) program: Program,
    pub(super) counted: Vec<(usize, usize)>,
    pub(super) formulas: Formulas,
    /// Numbers of the extents of each output.
    pub(super) outputs: Vec<Vec<usize>>,
    /// By buffer: the number of its bytes, where a step writes it; where in another one it begins, where it is a part.
    pub(super) buffers: Vec<Option<usize>>,
    /// By constant: its elements, where these are parameters of a kernel.
    pub(super) parameters: Vec<Option<Vec<usize>>>,
    /// Bytes of the inputs that outputs begin with.
    pub(super) appended: Vec<usize>,
    /// Memory that buffers take one after another.
    pub(super) slots: Vec<Slot>,
    /// By buffer: its slot.
    pub(super) slot_of: Vec<Option<usize>>,
    /// By step: the slot of its workspace.
    pub(super) workspaces: Vec<usize>,
}

/// Memory for what is not in use at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    /// It has as many bytes as the greatest of these numbers.
    pub(super) bytes: Vec<usize>,
}

/// Something that takes memory from one step to another, both counted.
struct Tenant {
    bytes: usize,
    first: usize,
    last: usize,
}

/// Whether two programs are the same but for numbers that may follow from extents.
pub fn alike(a: &Sample, b: &Sample) -> bool {
    let (p, q) = (&a.program, &b.program);
    let call = |(Step::Call(x), Step::Call(y)): (&Step, &Step)| {
        x.function == y.function && x.args == y.args && x.workspace == y.workspace && x.in_place == y.in_place
    };
    let source = |(x, y): (&(Source, usize), &(Source, usize))| match (x.0, y.0) {
        (Source::Part(x, _), Source::Part(y, _)) => x == y,
        (x, y) => x == y,
    };
    let ports = p.inputs.iter().zip(&q.inputs).all(|(x, y)| x.dtype == y.dtype && x.shape.len() == y.shape.len());
    let outputs = |((x, a), (y, b)): (&(super::Port, _), &(super::Port, _))| {
        a == b && x.dtype == y.dtype && x.shape.len() == y.shape.len()
    };
    p.functions == q.functions
        && p.steps.len() == q.steps.len()
        && p.buffers.len() == q.buffers.len()
        && p.constants.len() == q.constants.len()
        && p.inputs.len() == q.inputs.len()
        && p.outputs.len() == q.outputs.len()
        && p.appended == q.appended
        && a.counted == b.counted
        && a.about.len() == b.about.len()
        && a.about.iter().zip(&b.about).all(|(x, y)| x.len() == y.len())
        && ports
        && p.steps.iter().zip(&*q.steps).all(call)
        && p.buffers.iter().zip(&q.buffers).all(source)
        && p.outputs.iter().zip(&q.outputs).all(outputs)
        && p.constants.iter().zip(&q.constants).all(|(x, y)| same(x, y) || are_parameters(x, y))
}

fn same(a: &Tensor, b: &Tensor) -> bool {
    a.dtype() == b.dtype() && a.shape() == b.shape() && (std::ptr::eq(a.bytes(), b.bytes()) || a.bytes() == b.bytes())
}

fn are_parameters(a: &Tensor, b: &Tensor) -> bool {
    a.dtype() == DType::I64 && b.dtype() == DType::I64 && a.shape() == b.shape()
}

impl SizedProgram {
    /// Of what it does at all sizes that it is for, all [alike]; so many of them, from the first on, are looked at for formulas. The first is
    /// the one that memory is laid out for.
    ///
    /// Refuses outputs that are parts of others.
    pub fn of(samples: &[Sample], looked_at: usize) -> Result<SizedProgram, NotSized> {
        let mut fitted: Vec<&Sample> = samples.iter().take(looked_at.max(1)).collect();
        let mut tabled: HashSet<Wanted> = HashSet::new();
        let sizes: Vec<&[i64]> = samples.iter().map(|s| &s.extents[..]).collect();
        let mut round = 0;
        loop {
            let mut sized = SizedProgram::fitting(&fitted, samples, &tabled)?;
            let numbers = sized.numbers();
            for &(what, n) in &numbers {
                if matches!(sized.formulas.all()[n], Formula::Table(_)) {
                    let values: Vec<i64> = samples.iter().map(|s| what.of(s)).collect();
                    sized.formulas.fill(n, &sizes, &values);
                }
            }
            let differs = |s: &Sample| {
                let values = sized.formulas.values(&s.extents);
                numbers.iter().filter(|&&(what, n)| values[n] != Some(what.of(s))).map(|w| w.0).collect::<Vec<_>>()
            };
            let mut wrong: Vec<(&Sample, Vec<Wanted>)> = samples.par_iter().map(|s| (s, differs(s))).collect();
            wrong.retain(|(_, what)| !what.is_empty());
            if wrong.is_empty() {
                sized.only_what_is_used();
                return Ok(sized);
            }
            if round >= ROUNDS {
                tabled.extend(wrong.iter().flat_map(|(_, what)| what));
            }
            let known: HashSet<&[i64]> = fitted.iter().map(|s| &s.extents[..]).collect();
            wrong.retain(|(s, _)| !known.contains(&s.extents[..]));
            fitted.extend(wrong.into_iter().take(WRONG).map(|w| w.0));
            round += 1;
        }
    }

    /// All numbers that follow from extents, and what each is.
    fn numbers(&self) -> Vec<(Wanted, usize)> {
        let mut all: Vec<(Wanted, usize)> = Vec::new();
        all.extend(self.buffers.iter().enumerate().filter_map(|(b, n)| Some((Wanted::Bytes(b), (*n)?))));
        let parameters = self.parameters.iter().enumerate().filter_map(|(c, numbers)| Some((c, numbers.as_ref()?)));
        all.extend(
            parameters.flat_map(|(c, all)| all.iter().enumerate().map(move |(e, &n)| (Wanted::Parameter(c, e), n))),
        );
        let outputs = self.outputs.iter().enumerate();
        all.extend(
            outputs.flat_map(|(o, all)| all.iter().enumerate().map(move |(axis, &n)| (Wanted::Extent(o, axis), n))),
        );
        all.extend(self.appended.iter().enumerate().map(|(i, &n)| (Wanted::Appended(i), n)));
        all
    }

    /// By formulas that hold at some sizes, and tables, which are to be filled, of numbers that have none or are among `tabled`.
    fn fitting(fitted: &[&Sample], samples: &[Sample], tabled: &HashSet<Wanted>) -> Result<SizedProgram, NotSized> {
        let first = fitted[0];
        let program = first.program.clone();
        let extents: Vec<Vec<i64>> =
            (0..first.extents.len()).map(|k| fitted.iter().map(|s| s.extents[k]).collect()).collect();
        let mut formulas = Formulas::new(&extents);
        let of_inputs: Vec<usize> = (0..formulas.all().len()).collect();
        let row = |what: Wanted| -> Vec<i64> { fitted.iter().map(|s| what.of(s)).collect() };
        let about_row = |i: usize, j: usize| -> Vec<i64> { fitted.iter().map(|s| s.about[i][j]).collect() };
        let mut parameters: Vec<Option<Vec<usize>>> = vec![None; program.constants.len()];
        let mut buffers: Vec<Option<usize>> = vec![None; program.buffers.len()];
        let numbers_of =
            |formulas: &mut Formulas, mut wanted: Vec<Wanted>, near: &mut Vec<usize>| -> Vec<(Wanted, usize)> {
                let mut found: Vec<(Wanted, usize)> = Vec::new();
                // What was found may be what others are made of.
                for _ in 0..2 {
                    wanted.retain(|&what| {
                        let n = if tabled.contains(&what) { None } else { formulas.find(&row(what), near) };
                        if let Some(n) = n.filter(|n| !near.contains(n) && !formulas.is_known(*n)) {
                            near.push(n);
                        }
                        found.extend(n.map(|n| (what, n)));
                        n.is_none()
                    });
                }
                let mut tables: Vec<usize> = Vec::new();
                for what in wanted {
                    let few = &tables[tables.len().saturating_sub(4)..];
                    let like = if tabled.contains(&what) { None } else { formulas.find(&row(what), few) };
                    let n = like.unwrap_or_else(|| formulas.tabled(&row(what)));
                    if like.is_none() {
                        tables.push(n);
                    }
                    found.push((what, n));
                }
                near.extend(tables);
                found
            };
        let elements = |c: usize| (0..program.constants[c].len()).map(move |e| Wanted::Parameter(c, e));
        let mut keep = |buffers: &mut Vec<Option<usize>>, found: Vec<(Wanted, usize)>| {
            for (what, n) in found {
                match what {
                    Wanted::Bytes(b) => buffers[b] = Some(n),
                    Wanted::Parameter(c, e) => {
                        parameters[c].get_or_insert_with(|| vec![0; program.constants[c].len()])[e] = n
                    }
                    Wanted::Extent(..) | Wanted::Appended(_) => {}
                }
            }
        };
        let changing: Vec<bool> = (0..program.constants.len()).map(|c| changes(samples, c)).collect();
        let mut met: HashSet<usize> = HashSet::new();
        let mut calls = program.steps.iter();
        let steps = program.steps.len();
        for i in 0..steps.max(first.about.len()) {
            let about = first.about.get(i).map_or(0, Vec::len);
            // The extents that a call is about come first: everything else follows from them.
            let mut near: Vec<usize> = Vec::new();
            for j in 0..about {
                let bases: Vec<usize> = near.iter().chain(&of_inputs).copied().collect();
                let found = formulas.find(&about_row(i, j), &bases);
                near.extend(found.filter(|n| !near.contains(n) && !formulas.is_known(*n)));
            }
            near.extend(of_inputs.iter().filter(|n| !near.contains(n)).copied().collect::<Vec<_>>());
            let Some(Step::Call(call)) = calls.next() else { break };
            let mut wanted: Vec<Wanted> = Vec::new();
            for &(buffer, written) in &call.args {
                let b = buffer.0 as usize;
                match program.buffers[b].0 {
                    Source::Step if written => wanted.push(Wanted::Bytes(b)),
                    Source::Part(whole, _) => wanted.extend([Wanted::Bytes(b), Wanted::Bytes(whole.0 as usize)]),
                    Source::Constant(c) if changing[c] && met.insert(c) => wanted.extend(elements(c)),
                    _ => {}
                }
            }
            let found = numbers_of(&mut formulas, wanted, &mut near);
            keep(&mut buffers, found);
        }
        let about = first.about.iter().enumerate().flat_map(|(i, a)| (0..a.len()).map(move |j| (i, j)));
        let about: Vec<(usize, usize)> = about.collect();
        let all: Vec<usize> =
            about.into_iter().filter_map(|(i, j)| formulas.find(&about_row(i, j), &of_inputs)).collect();
        let mut bases = of_inputs.clone();
        bases.extend(all.iter().rev().take(16).copied());
        let mut outputs = Vec::new();
        for (o, (port, buffer)) in program.outputs.iter().enumerate() {
            let extents = (0..port.shape.len()).map(|axis| Wanted::Extent(o, axis)).collect();
            let mut found = numbers_of(&mut formulas, extents, &mut bases);
            found.sort_by_key(|(what, _)| *what);
            outputs.push(found.into_iter().map(|f| f.1).collect());
            let b = buffer.0 as usize;
            if matches!(program.buffers[b].0, Source::Part(..)) {
                return Err(NotSized::Part(o, port.name.to_string()));
            }
            let mut wanted = if buffers[b].is_none() { vec![Wanted::Bytes(b)] } else { Vec::new() };
            match program.buffers[b].0 {
                Source::Constant(c) if changing[c] && met.insert(c) => wanted.extend(elements(c)),
                _ => {}
            }
            let found = numbers_of(&mut formulas, wanted, &mut bases);
            keep(&mut buffers, found);
        }
        let wanted = (0..program.appended.len()).map(Wanted::Appended).collect();
        let mut appended = numbers_of(&mut formulas, wanted, &mut bases);
        appended.sort_by_key(|(what, _)| *what);
        Ok(SizedProgram {
            program,
            counted: first.counted.clone(),
            formulas,
            outputs,
            buffers,
            parameters,
            appended: appended.into_iter().map(|a| a.1).collect(),
            slots: Vec::new(),
            slot_of: Vec::new(),
            workspaces: Vec::new(),
        })
    }

    /// Lays out memory, and leaves out formulas that nothing needs.
    fn only_what_is_used(&mut self) {
        self.place();
        let SizedProgram { formulas, outputs, buffers, parameters, appended, slots, .. } = self;
        let mut used: Vec<&mut usize> = outputs.iter_mut().flatten().collect();
        used.extend(buffers.iter_mut().flatten());
        used.extend(parameters.iter_mut().flatten().flatten());
        used.extend(appended);
        used.extend(slots.iter_mut().flat_map(|s| &mut s.bytes));
        formulas.only(&mut used);
    }

    /// How many calls of kernels it makes.
    pub fn calls(&self) -> usize {
        self.program.steps.len()
    }

    /// The kernels that it calls.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &str> {
        self.program.functions()
    }

    /// Outputs of which another output says how many rows are meant: pairs of their numbers.
    pub fn counted(&self) -> &[(usize, usize)] {
        &self.counted
    }

    /// A number that is the same at all sizes.
    pub(super) fn known(&self, number: usize) -> Option<i64> {
        self.formulas.is_known(number).then(|| self.formulas.first(number))
    }

    /// The number of the bytes of an input that an output begins with.
    pub(super) fn appended_bytes(&self, input: usize) -> usize {
        let of = |(a, b): (&(usize, usize), &usize)| (a.0 == input).then_some(*b);
        self.program.appended.iter().zip(&self.appended).find_map(of).unwrap_or(0)
    }

    /// Gives buffers memory, the largest first: what is not in use at once may have the same.
    fn place(&mut self) {
        let p = &self.program;
        let is_output = |b: usize| p.outputs.iter().any(|(_, o)| o.0 as usize == b);
        let planned = |b: usize| p.buffers[b].0 == Source::Step && !is_output(b);
        let mut last_use = vec![0; p.buffers.len()];
        for (i, Step::Call(c)) in p.steps.iter().enumerate() {
            c.args.iter().for_each(|a| last_use[a.0.0 as usize] = i);
        }
        let mut tenants: Vec<Tenant> = Vec::new();
        let mut tenant_of: Vec<Option<usize>> = vec![None; p.buffers.len()];
        for (i, Step::Call(c)) in p.steps.iter().enumerate() {
            for b in c.args.iter().map(|a| a.0.0 as usize) {
                let (true, None, Some(bytes)) = (planned(b), tenant_of[b], self.buffers[b]) else { continue };
                let heir = c.in_place.iter().find_map(|&(from, to)| {
                    let from = from.0 as usize;
                    let dies = to.0 as usize == b && self.buffers[from] == Some(bytes) && last_use[from] == i;
                    // Two outputs can't take the place of one input.
                    tenant_of[from].filter(|&t| dies && tenants[t].last == i)
                });
                let t = heir.unwrap_or_else(|| {
                    tenants.push(Tenant { bytes, first: i, last: i });
                    tenants.len() - 1
                });
                // What nobody reads must still not be inherited twice.
                let own_last = if heir.is_some() && last_use[b] == i { i + 1 } else { last_use[b] };
                tenants[t].last = tenants[t].last.max(own_last);
                tenant_of[b] = Some(t);
            }
        }
        let first_workspace = tenants.len();
        let workspaces: Vec<i64> = p.steps.iter().map(|Step::Call(c)| c.workspace as i64).collect();
        for (i, bytes) in workspaces.into_iter().enumerate() {
            tenants.push(Tenant { bytes: self.formulas.constant(bytes), first: i, last: i });
        }
        let mut order: Vec<usize> = (0..tenants.len()).collect();
        order.sort_by_key(|&t| (std::cmp::Reverse(self.formulas.first(tenants[t].bytes)), tenants[t].first));
        let mut slots: Vec<(Slot, Vec<usize>)> = Vec::new();
        let mut slot_of = vec![0; tenants.len()];
        for t in order {
            let meets = |o: &usize| tenants[*o].first <= tenants[t].last && tenants[t].first <= tenants[*o].last;
            let at = slots.iter().position(|(_, own)| !own.iter().any(meets)).unwrap_or_else(|| {
                slots.push(Default::default());
                slots.len() - 1
            });
            slots[at].1.push(t);
            if !slots[at].0.bytes.contains(&tenants[t].bytes) {
                slots[at].0.bytes.push(tenants[t].bytes);
            }
            slot_of[t] = at;
        }
        self.slots = slots.into_iter().map(|s| s.0).collect();
        self.slot_of = tenant_of.iter().map(|t| t.map(|t| slot_of[t])).collect();
        self.workspaces = slot_of[first_workspace..].to_vec();
    }
}

/// What a formula is wanted for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Wanted {
    /// Bytes of a buffer, or where a part begins.
    Bytes(usize),
    /// An element of a constant.
    Parameter(usize, usize),
    /// An output's extent along an axis.
    Extent(usize, usize),
    /// Bytes of the input that an output begins with, by number of the pair.
    Appended(usize),
}

impl Wanted {
    /// What it is at one size.
    fn of(self, sample: &Sample) -> i64 {
        let p = &sample.program;
        match self {
            Wanted::Bytes(b) => match p.buffers[b] {
                (Source::Part(_, at), _) => at as i64,
                (_, bytes) => bytes as i64,
            },
            Wanted::Parameter(c, e) => p.constants[c].get_i64(e),
            Wanted::Extent(o, axis) => p.outputs[o].0.shape[axis] as i64,
            Wanted::Appended(i) => p.inputs[p.appended[i].0].bytes() as i64,
        }
    }
}

/// Whether a constant's elements differ between sizes.
fn changes(samples: &[Sample], constant: usize) -> bool {
    let first = &samples[0].program.constants[constant];
    samples[1..].iter().any(|s| !same(&s.program.constants[constant], first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Call, Estimate, Port};

    /// One call of a kernel with a parameter, on as many elements as the extent says.
    fn sample(extent: i64, parameter: i64, elements: usize) -> Sample {
        let mut program = Program::new("net");
        let x = program.input(Port::new("x", DType::F32, &[extent as usize]));
        let numbers = program.constant(Tensor::from_f64_fn(DType::I64, &[1], |_| parameter as f64));
        let y = program.buffer(4 * elements);
        let args = vec![(x, false), (numbers, false), (y, true)];
        let function = program.function("scale");
        program.step(Step::Call(Call {
            function,
            args,
            workspace: 0,
            in_place: vec![],
            estimate: Estimate::default(),
        }));
        program.output(Port::new("y", DType::F32, &[elements]), y);
        Sample { extents: vec![extent], program, counted: vec![], about: vec![] }
    }

    /// What it says of each size, found by looking at some.
    fn checked(samples: &[Sample], looked_at: usize) -> SizedProgram {
        let sized = SizedProgram::of(samples, looked_at).expect("it can be had");
        let numbers = sized.numbers();
        for s in samples {
            let values = sized.formulas.values(&s.extents);
            numbers.iter().for_each(|&(what, n)| assert_eq!(values[n], Some(what.of(s)), "{what:?}"));
        }
        sized
    }

    #[test]
    fn what_does_not_hold_everywhere_is_found_again() {
        let samples: Vec<Sample> = (1..200).map(|n| sample(n, 3 * n.min(64), n as usize)).collect();
        assert!(checked(&samples, 20).formulas.tables().is_empty());
        // A constant that is the same wherever it was looked.
        let samples: Vec<Sample> = (1..200).map(|n| sample(n, i64::from(n == 150), n as usize)).collect();
        checked(&samples, 20);
    }

    #[test]
    fn what_has_no_formula_has_a_table() {
        let odd = |n: i64| n * 7919 % 1009;
        for looked_at in [1, 30, 300] {
            let samples: Vec<Sample> = (1..300).map(|n| sample(n, odd(n), odd(n + 7) as usize)).collect();
            assert!(!checked(&samples, looked_at).formulas.tables().is_empty());
        }
    }
}
