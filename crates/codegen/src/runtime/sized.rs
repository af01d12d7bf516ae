//! Programs for all sizes: one sequence of calls, whose numbers are formulas of the extents of inputs.
//!
//! A program for given extents has its numbers (extents of results, bytes of buffers, parameters of kernels) worked out. Here they are
//! formulas, so that a program without a compiler at hand runs at sizes that nobody has met. The formulas are found by looking at
//! programs for many sizes that are the same but for numbers ([`Formulas`]), and hold where they were compared ([`SizedProgram::differs`]).

use super::{
    formulas::Formulas,
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
    /// A number of a call was found no formula for.
    #[error("`{0}`: no formula gives how often its loops run at all sizes")]
    Call(String),
    /// What a call gives, or an output's extents.
    #[error("no formula gives the extents of {0}")]
    Extents(String),
    /// A formula's value.
    #[error("a number does not fit 64 bits")]
    TooLarge,
}

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
        && p.steps.iter().zip(&q.steps).all(call)
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
    /// Of what it does at some sizes, all [alike]; the first is the one that memory is laid out for.
    pub fn of(samples: &[Sample]) -> Result<SizedProgram, NotSized> {
        let first = &samples[0];
        let program = first.program.clone();
        let extents: Vec<Vec<i64>> =
            (0..first.extents.len()).map(|k| samples.iter().map(|s| s.extents[k]).collect()).collect();
        let mut formulas = Formulas::new(&extents);
        let of_inputs: Vec<usize> = (0..formulas.all().len()).collect();
        let row = |of: &dyn Fn(&Sample) -> i64| -> Vec<i64> { samples.iter().map(of).collect() };
        let mut parameters: Vec<Option<Vec<usize>>> = vec![None; program.constants.len()];
        let mut buffers: Vec<Option<usize>> = vec![None; program.buffers.len()];
        let mut calls = program.steps.iter();
        let steps = program.steps.len();
        for i in 0..steps.max(first.about.len()) {
            let about = first.about.get(i).map_or(&[][..], |a| a);
            // The extents that a call is about come first: everything else follows from them.
            let mut near: Vec<usize> = Vec::new();
            for j in 0..about.len() {
                let bases: Vec<usize> = near.iter().chain(&of_inputs).copied().collect();
                let found = formulas.find(&row(&|s| s.about[i][j]), &bases);
                near.extend(found.filter(|n| !near.contains(n) && !formulas.is_known(*n)));
            }
            near.extend(of_inputs.iter().filter(|n| !near.contains(n)).copied().collect::<Vec<_>>());
            let Some(Step::Call(call)) = calls.next() else { break };
            let mut wanted: Vec<(Wanted, Vec<i64>)> = Vec::new();
            for &(buffer, written) in &call.args {
                let b = buffer.0 as usize;
                match program.buffers[b].0 {
                    Source::Step if written => wanted.push((Wanted::Bytes(b), row(&|s| s.program.buffers[b].1 as i64))),
                    Source::Part(whole, _) => {
                        let at = |s: &Sample| match s.program.buffers[b].0 {
                            Source::Part(_, at) => at as i64,
                            _ => 0,
                        };
                        wanted.push((Wanted::Bytes(b), row(&at)));
                        let w = whole.0 as usize;
                        wanted.push((Wanted::Bytes(w), row(&|s| s.program.buffers[w].1 as i64)));
                    }
                    Source::Constant(c) if parameters[c].is_none() && changes(samples, c) => {
                        let len = program.constants[c].len();
                        parameters[c] = Some(vec![0; len]);
                        let element = |e| (Wanted::Parameter(c, e), row(&|s| s.program.constants[c].get_i64(e)));
                        wanted.extend((0..len).map(element));
                    }
                    _ => {}
                }
            }
            // What was found may be what others are made of.
            while !wanted.is_empty() {
                let before = wanted.len();
                wanted.retain(|(what, row)| {
                    let Some(n) = formulas.find(row, &near) else { return true };
                    if !near.contains(&n) && !formulas.is_known(n) {
                        near.push(n);
                    }
                    match *what {
                        Wanted::Bytes(b) => buffers[b] = Some(n),
                        Wanted::Parameter(c, e) => parameters[c].iter_mut().for_each(|p| p[e] = n),
                    }
                    false
                });
                if wanted.len() == before {
                    let function = &program.functions[call.function.0 as usize];
                    return Err(NotSized::Call(function.to_string()));
                }
            }
        }
        let all: Vec<usize> = first
            .about
            .iter()
            .enumerate()
            .flat_map(|(i, a)| (0..a.len()).map(move |j| (i, j)))
            .filter_map(|(i, j)| formulas.find(&row(&|s| s.about[i][j]), &of_inputs))
            .collect();
        let mut bases = of_inputs.clone();
        bases.extend(all.iter().rev().take(16).copied());
        let mut outputs = Vec::new();
        for (o, (port, buffer)) in program.outputs.iter().enumerate() {
            let mut found = Vec::new();
            for axis in 0..port.shape.len() {
                let n = formulas.find(&row(&|s| s.program.outputs[o].0.shape[axis] as i64), &bases);
                found.push(n.ok_or_else(|| NotSized::Extents(format!("output {o} (`{}`)", port.name)))?);
            }
            outputs.push(found);
            let b = buffer.0 as usize;
            if matches!(program.buffers[b].0, Source::Part(..)) {
                return Err(NotSized::Extents(format!("output {o} (`{}`), a part of another", port.name)));
            }
            if buffers[b].is_none() {
                let bytes = formulas.find(&row(&|s| s.program.buffers[b].1 as i64), &bases);
                buffers[b] = Some(bytes.ok_or_else(|| NotSized::Extents(format!("output {o} (`{}`)", port.name)))?);
            }
        }
        let mut appended = Vec::new();
        for &(from, _) in &program.appended {
            let bytes = formulas.find(&row(&|s| s.program.inputs[from].bytes() as i64), &bases);
            appended.push(bytes.ok_or_else(|| NotSized::Extents(format!("input {from}")))?);
        }
        let mut sized = SizedProgram {
            program,
            counted: first.counted.clone(),
            formulas,
            outputs,
            buffers,
            parameters,
            appended,
            slots: Vec::new(),
            slot_of: Vec::new(),
            workspaces: Vec::new(),
        };
        sized.place();
        let SizedProgram { formulas, outputs, buffers, parameters, appended, slots, .. } = &mut sized;
        let mut used: Vec<&mut usize> = outputs.iter_mut().flatten().collect();
        used.extend(buffers.iter_mut().flatten());
        used.extend(parameters.iter_mut().flatten().flatten());
        used.extend(appended);
        used.extend(slots.iter_mut().flat_map(|s| &mut s.bytes));
        formulas.only(&mut used);
        Ok(sized)
    }

    /// What is not as its formulas say at one size, of a sample that is [alike]; none where all is.
    pub fn differs(&self, sample: &Sample) -> Option<NotSized> {
        let Some(values) = self.formulas.values(&sample.extents) else { return Some(NotSized::TooLarge) };
        let p = &sample.program;
        let buffer_differs = |b: usize| {
            self.buffers[b].is_some_and(|n| match p.buffers[b] {
                (Source::Part(_, at), _) => values[n] != at as i64,
                (_, bytes) => values[n] != bytes as i64,
            })
        };
        let differs = |b: usize| {
            buffer_differs(b)
                || match p.buffers[b].0 {
                    Source::Part(whole, _) => buffer_differs(whole.0 as usize),
                    Source::Constant(c) => match &self.parameters[c] {
                        Some(numbers) => {
                            numbers.iter().enumerate().any(|(e, &n)| values[n] != p.constants[c].get_i64(e))
                        }
                        None => !same(&p.constants[c], &self.program.constants[c]),
                    },
                    _ => false,
                }
        };
        let mut calls = p.steps.iter().map(|Step::Call(call)| call);
        if let Some(call) = calls.find(|call| call.args.iter().any(|a| differs(a.0.0 as usize))) {
            return Some(NotSized::Call(p.functions[call.function.0 as usize].to_string()));
        }
        let outputs = self.outputs.iter().zip(&p.outputs).enumerate();
        for (o, (numbers, (port, buffer))) in outputs {
            let extents = numbers.iter().zip(&port.shape).any(|(&n, &extent)| values[n] != extent as i64);
            if extents || differs(buffer.0 as usize) {
                return Some(NotSized::Extents(format!("output {o} (`{}`)", port.name)));
            }
        }
        let appended = self.appended.iter().zip(&p.appended);
        let input = appended.into_iter().find(|&(&n, &(from, _))| values[n] != p.inputs[from].bytes() as i64);
        input.map(|(_, (from, _))| NotSized::Extents(format!("input {from}")))
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
enum Wanted {
    /// Bytes of a buffer, or where a part begins.
    Bytes(usize),
    /// An element of a constant.
    Parameter(usize, usize),
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

    #[test]
    fn what_formulas_do_not_say_is_told() {
        let samples: Vec<Sample> = (1..20).map(|n| sample(n, 3 * n, n as usize)).collect();
        let sized = SizedProgram::of(&samples).expect("there are formulas");
        assert_eq!(sized.differs(&sample(100, 300, 100)), None);
        let call = Some(NotSized::Call("scale".into()));
        assert_eq!(sized.differs(&sample(100, 301, 100)), call);
        assert_eq!(sized.differs(&sample(100, 300, 101)), call);
    }
}
