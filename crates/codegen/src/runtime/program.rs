//! What an executable does, as data: buffers, and steps that call functions on them.

use std::sync::Arc;

use super::{
    abi::ALIGN,
    plan::{Plan, Workload, plan},
};
use crate::{
    ir::Name,
    tensor::{DType, Shape, Tensor},
};

/// A buffer of a [`Program`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BufferId(pub u32);

/// A compiled function that a [`Program`] calls.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FunctionId(pub u32);

/// An input or output: its name, and what it must be.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// The model's name, or the parameter's; an output's number.
    pub name: Name,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Shape,
    /// What it may be called, too: the parameter's name, where the model has one of its own for it.
    pub alias: Option<Name>,
}

/// Where a buffer's contents come from.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// The caller: input of that number.
    Input(usize),
    /// The program: constant of that number. Never copied.
    Constant(usize),
    /// A step.
    Step,
    /// A buffer, from that byte on.
    Part(BufferId, usize),
}

/// A call of a compiled function, in the convention of [`abi`](super::abi).
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What is called.
    pub function: FunctionId,
    /// The buffers in the order of the function's pointers, and whether the call writes them (else it reads them).
    pub args: Vec<(BufferId, bool)>,
    /// Bytes of workspace.
    pub workspace: usize,
    /// Pairs of a buffer read and a buffer written that may be the same memory.
    pub in_place: Vec<(BufferId, BufferId)>,
    /// What it is expected to take, where that is known; of the rest, see [`Program::expect_of`].
    pub estimate: Estimate,
}

/// What is known of a call's work: asked for reports only, since it takes as long to tell as finding a kernel's numbers may.
pub trait Expected: std::fmt::Debug + Send + Sync {
    /// What the call is expected to take.
    fn estimate(&self) -> Estimate;
}

/// What a call is expected to take, for reports: nothing that runs depends on it.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Estimate {
    /// Arithmetic operations of its operators ([`Op::work`](crate::ir::Op::work)), whatever the algorithm: a convolution counts the same by
    /// Winograd's algorithm and direct. 0 where nothing is known.
    pub operations: f64,
    /// Bytes of its results, and what its operators read of its arguments, each once.
    pub bytes: f64,
    /// The type of the factors of the operator with most of them: it decides which peak they are compared with.
    pub factors: Option<DType>,
    /// Cycles of one core that its reductions take by the model that schedules them; 0 where it has none, or nothing is known.
    pub cycles: f64,
}

/// One step. Steps run in order; kinds that choose or repeat can join this one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// Calls a function.
    Call(Call),
}

/// A compiled program, but for its code.
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) name: Name,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<(Port, BufferId)>,
    pub(super) constants: Vec<Tensor>,
    pub(super) buffers: Vec<(Source, usize)>,
    pub(super) functions: Arc<Vec<Name>>,
    /// The same for programs that differ in sizes only: there may be one for every size.
    pub(super) steps: Arc<Vec<Step>>,
    /// By number of a step, as far as they go: what tells what it is expected to take, but for cycles, once it is asked for.
    expected: Vec<Option<Arc<dyn Expected>>>,
    /// Pairs of an input and an output which is that input and what steps put after it.
    pub(super) appended: Vec<(usize, usize)>,
}

/// Where a buffer lives while the program runs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The caller's input of that number.
    Input(usize),
    /// The constant of that number.
    Constant(usize),
    /// The caller's output of that number.
    Output(usize),
    /// The same, from that byte on.
    OutputPart(usize, usize),
    /// The arena, at that byte.
    Arena(usize),
}

impl Port {
    /// An input or output.
    pub fn new(name: impl Into<Name>, dtype: DType, shape: &[usize]) -> Port {
        Port { name: name.into(), dtype, shape: shape.into(), alias: None }
    }

    /// The same under another name, its present one being an alias.
    pub fn called(self, name: impl Into<Name>) -> Port {
        let name = name.into();
        match name == self.name {
            true => self,
            false => Port { alias: Some(self.name), name, ..self },
        }
    }

    /// Size in memory.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }
}

impl Program {
    /// A program without steps. The name becomes part of the symbols of exported libraries.
    pub fn new(name: impl Into<Name>) -> Program {
        Program {
            name: name.into(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            constants: Vec::new(),
            buffers: Vec::new(),
            functions: Arc::default(),
            steps: Arc::default(),
            expected: Vec::new(),
            appended: Vec::new(),
        }
    }

    /// Makes room for so many further values, and calls.
    pub fn reserve(&mut self, values: usize, calls: usize) {
        self.buffers.reserve(values + 2 * calls);
        self.constants.reserve(values + calls);
        Arc::make_mut(&mut self.steps).reserve(calls);
    }

    fn add(&mut self, source: Source, bytes: usize) -> BufferId {
        self.buffers.push((source, bytes));
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// Declares the next input.
    pub fn input(&mut self, port: Port) -> BufferId {
        let bytes = port.bytes();
        self.inputs.push(port);
        self.add(Source::Input(self.inputs.len() - 1), bytes)
    }

    /// Adds a constant; its data is shared, not copied.
    pub fn constant(&mut self, t: Tensor) -> BufferId {
        let bytes = t.bytes().len();
        self.constants.push(t);
        self.add(Source::Constant(self.constants.len() - 1), bytes)
    }

    /// Adds a buffer that a step will write.
    pub fn buffer(&mut self, bytes: usize) -> BufferId {
        self.add(Source::Step, bytes)
    }

    /// Bytes of a buffer.
    pub fn bytes(&self, buffer: BufferId) -> usize {
        self.buffers[buffer.0 as usize].1
    }

    /// A part of a buffer that a step will write: so many bytes from `at` on. The buffer must become an output.
    pub fn part(&mut self, buffer: BufferId, at: usize, bytes: usize) -> BufferId {
        assert!(at + bytes <= self.bytes(buffer), "a part lies within its buffer");
        self.add(Source::Part(buffer, at), bytes)
    }

    /// Says that an output is an input and, after it, what steps write: whoever runs the program has the input there already, or copies it
    /// there. See [`Program::part`].
    pub fn append(&mut self, input: usize, output: usize) {
        self.appended.push((input, output));
    }

    /// Whether an input and an output may be the same memory from their beginning on: what the output gets is put after the input, or
    /// nothing is read of the input any more when it gets something, but by a step that may write where it reads.
    pub fn may_share(&self, input: usize, output: usize) -> bool {
        let is_input = |b: BufferId| self.buffers[b.0 as usize].0 == Source::Input(input);
        // What is given back as it was, too, would not be that any more.
        if self.outputs.iter().any(|(_, b)| is_input(*b)) {
            return false;
        }
        let appended = self.appended.contains(&(input, output));
        if appended {
            return true;
        }
        let Some(&(_, to)) = self.outputs.get(output) else { return false };
        let first = self.outputs.iter().position(|(_, b)| *b == to) == Some(output);
        if !first || self.bytes(to) != self.inputs[input].bytes() || self.buffers[to.0 as usize].0 != Source::Step {
            return false;
        }
        let Some(at) = self.steps.iter().position(|Step::Call(c)| c.args.contains(&(to, true))) else { return false };
        let reads = |c: &Call| c.args.iter().any(|&(b, written)| !written && is_input(b));
        let Step::Call(here) = &self.steps[at];
        let in_place = !reads(here) || here.in_place.iter().any(|&(from, b)| b == to && is_input(from));
        in_place && self.steps[at + 1..].iter().all(|Step::Call(c)| !reads(c))
    }

    /// Gives an input another shape; none where it has other axes.
    pub fn resize_input(&mut self, number: usize, shape: &[usize]) -> Option<()> {
        let port = self.inputs.get_mut(number).filter(|p| p.shape.len() == shape.len())?;
        if port.shape[..] != *shape {
            port.shape = shape.into();
            let bytes = port.bytes();
            let at = self.buffers.iter().position(|b| b.0 == Source::Input(number))?;
            self.buffers[at].1 = bytes;
        }
        Some(())
    }

    /// Gives an output another shape; none where its buffer is not as large.
    pub fn resize_output(&mut self, number: usize, shape: &[usize]) -> Option<()> {
        let (port, buffer) = self.outputs.get_mut(number).filter(|(p, _)| p.shape.len() == shape.len())?;
        if port.shape[..] != *shape {
            port.shape = shape.into();
        }
        (port.bytes() == self.buffers[buffer.0 as usize].1).then_some(())
    }

    /// Gives a buffer that a step writes another size.
    pub fn resize(&mut self, buffer: BufferId, bytes: usize) {
        self.buffers[buffer.0 as usize].1 = bytes;
    }

    /// Has a [part](Program::part) begin elsewhere, and be as long as that.
    pub fn resize_part(&mut self, part: BufferId, at: usize, bytes: usize) {
        if let (Source::Part(_, from), size) = &mut self.buffers[part.0 as usize] {
            (*from, *size) = (at, bytes);
        }
    }

    /// Puts another constant in the place of one.
    pub fn replace_constant(&mut self, buffer: BufferId, value: Tensor) {
        let (source, bytes) = &mut self.buffers[buffer.0 as usize];
        if let Source::Constant(n) = *source {
            *bytes = value.bytes().len();
            self.constants[n] = value;
        }
    }

    /// Says what tells of a step what it is expected to take.
    pub fn expect_of(&mut self, step: usize, expected: Arc<dyn Expected>) {
        if self.expected.len() <= step {
            self.expected.resize(step + 1, None);
        }
        self.expected[step] = Some(expected);
    }

    /// The buffer that one is a part of; itself where it is none.
    pub(crate) fn whole(&self, buffer: BufferId) -> BufferId {
        match self.buffers[buffer.0 as usize].0 {
            Source::Part(of, _) => of,
            _ => buffer,
        }
    }

    /// The function of that symbol.
    pub fn function(&mut self, symbol: &str) -> FunctionId {
        let known = self.functions.iter().position(|f| f.as_str() == symbol);
        let id = known.unwrap_or_else(|| {
            Arc::make_mut(&mut self.functions).push(symbol.into());
            self.functions.len() - 1
        });
        FunctionId(id as u32)
    }

    /// Adds a step. Panics where it reads a buffer that nothing has written, or writes an input or a constant.
    pub fn step(&mut self, step: Step) {
        let Step::Call(call) = &step;
        for &(buffer, written) in &call.args {
            let source = self.buffers[buffer.0 as usize].0;
            match written {
                true => assert!(matches!(source, Source::Step | Source::Part(..)), "steps write buffers of their own"),
                false => assert!(
                    source != Source::Step || self.is_written(buffer) || call.args.contains(&(buffer, true)),
                    "what a step reads has been written"
                ),
            }
        }
        Arc::make_mut(&mut self.steps).push(step);
    }

    fn is_written(&self, buffer: BufferId) -> bool {
        let writes = |&(b, written): &(BufferId, bool)| written && self.whole(b) == buffer;
        self.steps.iter().rev().any(|Step::Call(c)| c.args.iter().any(writes))
    }

    /// Declares the next output: a buffer's contents after the last step. Inputs and constants may be outputs, and a buffer
    /// may be several. Panics where the sizes differ.
    pub fn output(&mut self, port: Port, buffer: BufferId) {
        assert_eq!(port.bytes(), self.buffers[buffer.0 as usize].1, "an output is as large as its buffer");
        self.outputs.push((port, buffer));
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = &Port> {
        self.outputs.iter().map(|(p, _)| p)
    }

    /// The function that a step calls.
    pub fn step_name(&self, step: &Step) -> &str {
        let Step::Call(call) = step;
        &self.functions[call.function.0 as usize]
    }

    /// What each step is expected to take.
    pub fn step_estimates(&self) -> impl Iterator<Item = Estimate> {
        self.steps.iter().enumerate().map(|(i, Step::Call(call))| match self.expected.get(i) {
            Some(Some(expected)) => Estimate { cycles: call.estimate.cycles, ..expected.estimate() },
            _ => call.estimate,
        })
    }

    /// Bytes of the constants and inputs that each step reads, each once; of inputs with what was put after them.
    pub fn step_sources(&self) -> impl Iterator<Item = usize> {
        let lengthened: Vec<BufferId> = self.appended.iter().map(|&(_, output)| self.outputs[output].1).collect();
        self.steps.iter().map(move |Step::Call(call)| {
            let is_source = |b: &BufferId| match self.buffers[b.0 as usize].0 {
                Source::Input(_) | Source::Constant(_) => true,
                _ => lengthened.contains(b),
            };
            let mut read: Vec<BufferId> = call.args.iter().filter(|a| !a.1).map(|a| a.0).filter(is_source).collect();
            read.sort_unstable();
            read.dedup();
            read.into_iter().map(|b| self.bytes(b)).sum()
        })
    }

    /// The constants.
    pub fn constants(&self) -> &[Tensor] {
        &self.constants
    }

    /// The constants among the buffers that a step passes on, by their position.
    pub fn constant_args(&self, step: &Step) -> impl Iterator<Item = usize> {
        let Step::Call(call) = step;
        let is_constant = |b: BufferId| matches!(self.buffers[b.0 as usize].0, Source::Constant(_));
        call.args.iter().enumerate().filter(move |(_, a)| is_constant(a.0)).map(|(i, _)| i)
    }

    /// The symbols of the functions that it calls, each once.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = &str> {
        self.functions.iter().map(Name::as_str)
    }

    /// The steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The memory plan: of the buffers that steps write, but for the program's outputs, which the caller provides.
    pub fn plan(&self) -> Plan {
        self.plan_for(|_, bytes| bytes)
    }

    /// The same for buffers of other sizes, by number and bytes.
    pub(super) fn plan_for(&self, size: impl Fn(usize, usize) -> usize) -> Plan {
        let planned = |(i, &(source, bytes)): (usize, &(Source, usize))| {
            let is_output = self.outputs.iter().any(|(_, b)| b.0 as usize == i);
            (source == Source::Step && !is_output).then(|| size(i, bytes))
        };
        let sizes: Vec<Option<usize>> = self.buffers.iter().enumerate().map(planned).collect();
        let workload = |Step::Call(c): &Step| {
            let of = |w: bool| c.args.iter().filter(|a| a.1 == w).map(|a| self.whole(a.0).0 as usize).collect();
            let in_place = c.in_place.iter().map(|(r, w)| (r.0 as usize, w.0 as usize)).collect();
            Workload { reads: of(false), writes: of(true), workspace: c.workspace, in_place }
        };
        plan(&sizes, &self.steps.iter().map(workload).collect::<Vec<_>>(), ALIGN)
    }

    /// Whether another program's memory plan is one for this program: it has the same steps, on the same buffers, which are as large at least.
    pub(super) fn fits_plan_of(&self, larger: &Program) -> bool {
        let buffers = self.buffers.len() == larger.buffers.len()
            && self.buffers.iter().zip(&larger.buffers).all(|(a, b)| a.0 == b.0 && a.1 <= b.1);
        let call = |(Step::Call(a), Step::Call(b)): (&Step, &Step)| {
            // Of two buffers of one size, one may have taken the other's place.
            let in_place = |&(from, to): &(BufferId, BufferId)| {
                larger.bytes(from) != larger.bytes(to) || self.bytes(from) == self.bytes(to)
            };
            a.args == b.args
                && a.in_place == b.in_place
                && a.workspace <= b.workspace
                && a.in_place.iter().all(in_place)
        };
        let outputs = self.outputs.iter().map(|o| o.1).eq(larger.outputs.iter().map(|o| o.1));
        buffers && outputs && self.steps.len() == larger.steps.len() && self.steps.iter().zip(&*larger.steps).all(call)
    }

    /// Whether a memory plan for buffers of these sizes is one for this program, which has the same steps as what it was made for.
    pub(super) fn fits_plan_for(&self, sizes: &[usize]) -> bool {
        let within = |((source, bytes), most): (&(Source, usize), &usize)| *source != Source::Step || bytes <= most;
        // Of two buffers of one size, one may have taken the other's place.
        let in_place = |&(from, to): &(BufferId, BufferId)| {
            sizes[from.0 as usize] != sizes[to.0 as usize] || self.bytes(from) == self.bytes(to)
        };
        self.buffers.len() == sizes.len()
            && self.buffers.iter().zip(sizes).all(within)
            && self.steps.iter().all(|Step::Call(c)| c.in_place.iter().all(in_place))
    }

    /// Where a buffer lives. Buffers that no step uses live nowhere in particular.
    pub(super) fn place(&self, plan: &Plan, buffer: BufferId) -> Place {
        let i = buffer.0 as usize;
        match self.buffers[i].0 {
            Source::Input(n) => Place::Input(n),
            Source::Constant(n) => Place::Constant(n),
            Source::Part(of, at) => match self.place(plan, of) {
                Place::Output(n) => Place::OutputPart(n, at),
                _ => unreachable!("parts are of outputs"),
            },
            Source::Step => match self.outputs.iter().position(|(_, b)| *b == buffer) {
                Some(n) => Place::Output(n),
                None => Place::Arena(plan.offsets[i].unwrap_or(0)),
            },
        }
    }
}
