//! Programs for further sizes, made of one that was assembled: the same calls on the same buffers, with other numbers.

use std::sync::Arc;

use super::{
    call::{CallAt, FunctionAt, ProgramAt},
    sites::{Made, Met},
};
use crate::{
    ir::{ExprId, Type},
    runtime::{BufferId, Program, Step},
    tensor::Shape,
};

/// A program that was assembled, and what of it changes from size to size.
#[derive(Debug)]
pub struct Template {
    pub(super) program: Program,
    /// The expressions that it is made of, in order.
    pub(super) order: Vec<ExprId>,
    /// What was known when it was assembled, and the constants that became of it.
    pub(super) values: Vec<(ExprId, BufferId)>,
    /// The calls in order, views among them.
    pub(super) calls: Vec<Called>,
}

/// A call, and the buffers that it has.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) function: Arc<FunctionAt>,
    /// The arguments that it takes, where it does not take all.
    pub(super) taken: Option<Vec<usize>>,
    /// What it reads: of what it puts something after, the buffer too.
    pub(super) inputs: Vec<BufferId>,
    /// The buffers of results; of what comes after something else, that part.
    pub(super) results: Vec<BufferId>,
    pub(super) part: Option<BufferId>,
    pub(super) scratch: Vec<BufferId>,
    /// The parameters of a kernel for all sizes.
    pub(super) parameters: Option<BufferId>,
    /// The number of its step, where it is no view.
    pub(super) step: Option<usize>,
}

impl Template {
    /// The program at another size, where it makes the same calls of the same kernels; what [`assemble_at`](super::assemble_at) would give, without going
    /// through all of it.
    pub fn resized(&mut self, at: &ProgramAt, kernel: impl Fn(&Met) -> Option<usize>) -> Option<Program> {
        let same = self.order == at.order
            && self.values.len() == at.values.len()
            && self.calls.len() == at.calls.len()
            && self.values.iter().all(|(e, _)| at.values.contains_key(e));
        if !same {
            return None;
        }
        let mut program = self.program.clone();
        let mut number = 0;
        for ty in at.params.iter().map(Type::flatten) {
            for t in ty? {
                program.resize_input(number, &extents(t.known_shape()?))?;
                number += 1;
            }
        }
        for (e, buffer) in &self.values {
            program.replace_constant(*buffer, at.values.get(e)?.clone());
        }
        let mut others: Vec<(usize, Arc<FunctionAt>)> = Vec::new();
        for (i, ((_, call), old)) in at.in_order().zip(&self.calls).enumerate() {
            if Arc::ptr_eq(&call.function, &old.function) && call.taken == old.taken {
                // What it puts its results after may be longer.
                old.lengthen(old.function.met()?, &mut program)?;
                continue;
            }
            let (met, before) = (call.function.met()?, old.function.met()?);
            let alike = match (&met.made, &before.made) {
                (Made::View(arg), Made::View(known)) => arg == known,
                (Made::Sized(..), Made::Sized(..)) => {
                    let kernel = kernel(met)?;
                    kernel == *call.function.linked.number.get_or_init(|| kernel)
                        && Some(&kernel) == old.function.linked.number.get()
                }
                _ => false,
            };
            if !alike || call.taken != old.taken || !old.resize(met, &call.function, &mut program)? {
                return None;
            }
            others.push((i, call.function.clone()));
        }
        let results = at.result.flatten()?;
        if results.len() != program.outputs().len() {
            return None;
        }
        for (number, t) in results.iter().enumerate() {
            program.resize_output(number, &extents(t.known_shape()?))?;
        }
        // What comes next is likely to be like this one.
        for (i, function) in others {
            self.calls[i].function = function;
        }
        self.program = program.clone();
        Some(program)
    }
}

impl Called {
    /// A call that reads these, before it is known what it writes.
    pub(super) fn new(call: &CallAt, inputs: Vec<BufferId>) -> Called {
        let (function, taken) = (call.function.clone(), call.taken.clone());
        Called { function, taken, inputs, results: vec![], part: None, scratch: vec![], parameters: None, step: None }
    }

    /// Notes what the step of that number writes, which the call has become.
    pub(super) fn made_by(&mut self, met: &Met, program: &Program, step: usize) {
        let Some(Step::Call(call)) = program.steps().get(step) else { return };
        let mut written = call.args.iter().filter(|a| a.1).map(|a| a.0);
        let results = met.group.stages.results.len();
        self.results = written.by_ref().take(results).collect();
        if let (Some(_), Some(&part)) = (met.group.after, self.results.first()) {
            (self.part, self.results) = (Some(part), vec![program.whole(part)]);
        }
        self.scratch = written.collect();
        if matches!(met.made, Made::Sized(..)) {
            self.parameters = call.args.last().map(|a| a.0);
        }
        self.step = Some(step);
    }

    /// Gives its buffers the sizes that they have at another size; false where it has others there.
    fn resize(&self, met: &Met, function: &Arc<FunctionAt>, program: &mut Program) -> Option<bool> {
        let (Some(step), Made::Sized(_, member)) = (self.step, &met.made) else {
            // A view has no buffer of its own.
            return Some(self.step.is_none());
        };
        let old = self.function.met()?;
        let group = &met.group;
        let same = group.after == old.group.after
            && group.stages.results.len() == self.results.len()
            && group.stages.counted.is_empty()
            && member.scratch.len() == self.scratch.len();
        if !same {
            return Some(false);
        }
        self.lengthen(met, program)?;
        for (&buffer, &bytes) in self.scratch.iter().zip(&member.scratch) {
            program.resize(buffer, bytes as usize);
        }
        let parameters = function.linked.parameters.get_or_init(|| member.tensor());
        program.replace_constant(self.parameters?, parameters.clone());
        program.expect_of(step, function.clone());
        Some(true)
    }

    /// Gives its results their sizes.
    fn lengthen(&self, met: &Met, program: &mut Program) -> Option<()> {
        if self.step.is_none() {
            return Some(());
        }
        let stages = &met.group.stages;
        for (&t, &buffer) in stages.results.iter().zip(&self.results) {
            let decl = stages.decl(t);
            let bytes = decl.shape.iter().product::<i64>() as usize * decl.dtype.bytes();
            match (met.group.after, self.part) {
                (Some(arg), Some(part)) => {
                    let before = program.bytes(*self.inputs.get(arg)?);
                    program.resize(buffer, before + bytes);
                    program.resize_part(part, before, bytes);
                }
                _ => program.resize(buffer, bytes),
            }
        }
        Some(())
    }
}

fn extents(shape: Vec<i64>) -> Shape {
    shape.into_iter().map(|n| n as usize).collect()
}
