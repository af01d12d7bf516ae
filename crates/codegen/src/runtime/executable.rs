//! A compiled program in memory, ready to run.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    abi::{ALIGN, KernelFn, ResatCtx},
    callable::{Arguments, Callable, CompiledCode},
    memory::{Arenas, Block},
    plan::Plan,
    pool::Pool,
    program::{Call, Place, Port, Program, Step},
    results::ResultBlock,
};
use crate::tensor::{OutOfMemory, Tensor, within_memory};

/// What functions that are no kernels can't do.
const NOT_IN_PLACE: &str = "is no kernel, and is to write where it reads";

/// A function that the program calls was not compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no compiled code has the function `{0}`")]
pub struct LinkError(pub String);

/// The tensors given do not fit the program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Too few or too many.
    #[error("the program takes {wanted} {what}s, but {given} were given")]
    Count {
        /// `input` or `output`.
        what: &'static str,
        /// What the program takes.
        wanted: usize,
        /// How many were given.
        given: usize,
    },
    /// Of another type.
    #[error("{what} {number} (`{name}`) should be {wanted}, but is {given}")]
    Type {
        /// `input` or `output`.
        what: &'static str,
        /// Its number, from 0.
        number: usize,
        /// Its name.
        name: String,
        /// The type that the program takes.
        wanted: String,
        /// The type that was given.
        given: String,
    },
    /// A function that is no kernel failed.
    #[error("function `{function}`: {reason}")]
    Function {
        /// Its symbol.
        function: String,
        /// What it says.
        reason: String,
    },
    /// Its results and what it works in take more memory than there is.
    #[error("{0}")]
    Memory(#[from] OutOfMemory),
    /// An exported library returned this code instead of 0.
    #[error("the library failed with code {0}")]
    Library(i32),
}

/// A program with its code, its memory plan and its threads. Any number of threads may run it at once.
pub struct Executable {
    program: Program,
    plan: Arc<Plan>,
    /// By buffer: the bytes that it has at most where the plan is for several sizes; none where it is for this one.
    planned: Option<Arc<[usize]>>,
    functions: Arc<[Function]>,
    pool: Arc<Pool>,
    /// Whose memory each pointer argument of each step is, at the sizes that it was planned for.
    places: Arc<[Place]>,
    /// By number of an argument: those of parts of outputs, which begin elsewhere at other sizes.
    parts: Vec<(usize, Place)>,
    arenas: Arc<Arenas>,
    /// Lists of pointers of runs that have ended, for those to come.
    idle: Mutex<Vec<Pointers>>,
    _code: Vec<Arc<dyn CompiledCode>>,
}

/// A function that steps call.
enum Function {
    /// By address.
    Kernel(KernelFn),
    /// Of this process.
    Callable(Arc<dyn Callable>),
}

/// All pointer arguments of all steps.
#[derive(Default)]
struct Pointers(Vec<*mut u8>);

// SAFETY: between runs they are stale; they are written again before each.
unsafe impl Send for Pointers {}

impl Executable {
    /// Puts a program together with the code of its functions. Where several objects have a symbol, the first counts.
    pub fn link(program: Program, code: Vec<Arc<dyn CompiledCode>>, pool: Arc<Pool>) -> Result<Executable, LinkError> {
        Executable::sharing(program, code, pool, Arc::default())
    }

    /// The same, where programs that do not run at once have the memory that they work in in common.
    pub fn sharing(
        program: Program,
        code: Vec<Arc<dyn CompiledCode>>,
        pool: Arc<Pool>,
        arenas: Arc<Arenas>,
    ) -> Result<Executable, LinkError> {
        let find = |symbol: &str| {
            let kernel = |c: &Arc<dyn CompiledCode>| c.address(symbol).map(Function::Kernel);
            let found = code.iter().find_map(|c| kernel(c).or_else(|| c.callable(symbol).map(Function::Callable)));
            found.ok_or_else(|| LinkError(symbol.into()))
        };
        let functions = program.functions().map(find).collect::<Result<_, _>>()?;
        let plan = Arc::new(program.plan());
        let (places, parts) = places(&program, &plan);
        let (planned, idle) = (None, Mutex::new(Vec::new()));
        Ok(Executable { program, plan, planned, functions, pool, places, parts, arenas, idle, _code: code })
    }

    /// The same for a program with the same steps, whose buffers have other sizes. Memory is planned with room for greater ones, so that a plan serves
    /// many sizes one after another.
    pub fn resized(&self, program: Program) -> Executable {
        let known = self.planned.clone().filter(|sizes| program.fits_plan_for(sizes));
        let (plan, sizes, (places, parts)) = match known {
            Some(sizes) => (self.plan.clone(), sizes, (self.places.clone(), parts(&program, &self.plan))),
            None => {
                let before = |i: usize| self.program.buffers.get(i).map(|b| b.1);
                let size = |i: usize, bytes: usize| if before(i) == Some(bytes) { bytes } else { with_room(bytes) };
                let sizes: Vec<usize> = program.buffers.iter().enumerate().map(|(i, b)| size(i, b.1)).collect();
                let fits = program.fits_plan_for(&sizes);
                let sizes: Arc<[usize]> =
                    if fits { sizes.into() } else { program.buffers.iter().map(|b| b.1).collect() };
                let plan = Arc::new(program.plan_for(|i, _| sizes[i]));
                let places = places(&program, &plan);
                (plan, sizes, places)
            }
        };
        Executable {
            program,
            plan,
            planned: Some(sizes),
            functions: self.functions.clone(),
            pool: self.pool.clone(),
            places,
            parts,
            arenas: self.arenas.clone(),
            idle: Mutex::new(Vec::new()),
            _code: self._code.clone(),
        }
    }

    /// Has its buffers live where those of another program do which is the same but for sizes, and larger; says whether it is.
    pub fn live_as(&mut self, larger: &Executable) -> bool {
        let fits = self.program.fits_plan_of(&larger.program);
        if fits {
            let sizes = larger.program.buffers.iter().map(|b| b.1).collect();
            (self.plan, self.planned) = (larger.plan.clone(), Some(sizes));
            (self.places, self.parts) = places(&self.program, &self.plan);
        }
        fits
    }

    /// What it does.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Puts other constants of the same types, and with the same elements, in the place of its own, each given by its number.
    pub fn replace_constants(&mut self, mut other: impl FnMut(usize, Tensor) -> Tensor) {
        let own = std::mem::take(&mut self.program.constants);
        self.program.constants = own.into_iter().enumerate().map(|(n, t)| other(n, t)).collect();
    }

    /// Where its buffers live.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The threads that it uses.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Uses other threads from now on.
    pub fn set_pool(&mut self, pool: Arc<Pool>) {
        self.pool = pool;
    }

    /// Runs once. Inputs are in the order of [`Program::inputs`], and so are outputs.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        within_memory(|| {
            // What is put after an input is copied there first.
            let is_made = |i: usize, buffer| {
                self.program.appended.is_empty() && self.program.place(&self.plan, buffer) == Place::Output(i)
            };
            let sizes = self.program.outputs.iter().enumerate();
            let sizes = sizes.map(|(i, (port, buffer))| if is_made(i, *buffer) { port.bytes() } else { 0 });
            let blocks = self.arenas.results.blocks(sizes);
            let output = |(port, block): (&Port, &Option<ResultBlock>)| match block {
                Some(_) => Tensor::zeros(port.dtype, &[0]),
                None => Tensor::zeros(port.dtype, &port.shape),
            };
            let mut outputs: Vec<Tensor> = self.program.outputs().zip(&blocks).map(output).collect();
            self.execute(inputs, &mut outputs, blocks, &[], |_| {})?;
            Ok(outputs)
        })?
    }

    /// Runs once, into tensors that the caller has made: without taking memory, from the second time on, where nobody else
    /// shares their data.
    pub fn run_into(&self, inputs: &[Tensor], outputs: &mut [Tensor]) -> Result<(), RunError> {
        self.execute(inputs, outputs, Vec::new(), &[], |_| {})
    }

    /// Runs once, where some outputs are inputs of the next run: pairs of their numbers. Where an output [may](Program::may_share) take the
    /// input's place, it does, and the input is gone; else it takes that of `spare`, one for each pair, where the input is put afterwards.
    pub fn run_keeping(
        &self,
        inputs: &mut [Tensor],
        state: &[(usize, usize)],
        spare: &mut [Option<Tensor>],
    ) -> Result<Vec<Tensor>, RunError> {
        self.keeping(inputs, state, spare, |_| {})
    }

    fn keeping(
        &self,
        inputs: &mut [Tensor],
        state: &[(usize, usize)],
        spare: &mut [Option<Tensor>],
        after: impl FnMut(usize),
    ) -> Result<Vec<Tensor>, RunError> {
        fits("input", self.program.inputs.iter(), inputs, |_| false)?;
        let shared: Vec<(usize, usize)> =
            state.iter().copied().filter(|&(i, o)| self.program.may_share(i, o)).collect();
        let output = |(o, port): (usize, &Port)| {
            if let Some(&(i, _)) = shared.iter().find(|s| s.1 == o) {
                let nothing = Tensor::zeros(port.dtype, &[0]);
                return std::mem::replace(&mut inputs[i], nothing).lengthened(&port.shape);
            }
            let spare = state.iter().position(|s| s.1 == o).and_then(|k| spare[k].take());
            let spare = spare.filter(|t| t.dtype() == port.dtype && t.shape() == &port.shape[..]);
            spare.unwrap_or_else(|| Tensor::zeros(port.dtype, &port.shape))
        };
        let mut outputs: Vec<Tensor> = self.program.outputs().enumerate().map(output).collect();
        self.execute(inputs, &mut outputs, Vec::new(), &shared, after)?;
        for (k, pair) in state.iter().enumerate().filter(|(_, pair)| !shared.contains(pair)) {
            let nothing = Tensor::zeros(inputs[pair.0].dtype(), &[0]);
            spare[k] = Some(std::mem::replace(&mut inputs[pair.0], nothing));
        }
        Ok(outputs)
    }

    /// Runs once and says how long each step took.
    pub fn profile(&self, inputs: &[Tensor]) -> Result<Vec<Duration>, RunError> {
        let ends = self.profile_by(inputs, Instant::now)?;
        Ok(ends.windows(2).map(|w| w[1] - w[0]).collect())
    }

    /// Runs once; gives what `read` says before the first step, and after each.
    pub fn profile_by<T>(&self, inputs: &[Tensor], mut read: impl FnMut() -> T) -> Result<Vec<T>, RunError> {
        let mut outputs: Vec<Tensor> = self.program.outputs().map(|p| Tensor::zeros(p.dtype, &p.shape)).collect();
        let mut all = vec![read()];
        self.execute(inputs, &mut outputs, Vec::new(), &[], |_| all.push(read()))?;
        Ok(all)
    }

    /// The same as [`Executable::run_keeping`] does, and what `read` says before and after each step; before the first one, ahead of what goes before
    /// it, such as more memory for what has outgrown its own.
    pub fn profile_keeping<T>(
        &self,
        inputs: &mut [Tensor],
        state: &[(usize, usize)],
        spare: &mut [Option<Tensor>],
        mut read: impl FnMut() -> T,
    ) -> Result<(Vec<Tensor>, Vec<T>), RunError> {
        let mut all = vec![read()];
        let outputs = self.keeping(inputs, state, spare, |_| all.push(read()))?;
        Ok((outputs, all))
    }

    /// Runs once. Outputs for which there are blocks are made of these.
    fn execute(
        &self,
        inputs: &[Tensor],
        outputs: &mut [Tensor],
        mut blocks: Vec<Option<ResultBlock>>,
        shared: &[(usize, usize)],
        after: impl FnMut(usize),
    ) -> Result<(), RunError> {
        let in_output = |n: usize| shared.iter().find(|s| s.0 == n).map(|s| s.1);
        fits("input", self.program.inputs.iter(), inputs, |n| in_output(n).is_some())?;
        fits("output", self.program.outputs(), outputs, |n| blocks.get(n).is_some_and(Option::is_some))?;
        for &(from, to) in self.program.appended.iter().filter(|&&(from, _)| in_output(from).is_none()) {
            let bytes = inputs[from].bytes();
            outputs[to].bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut pointers = idle.unwrap_or_default();
        let arena = self.arenas.take(self.plan.arena);
        let start = |(n, t): (usize, &mut Tensor)| match blocks.get(n) {
            Some(Some(block)) => block.start(),
            _ => t.bytes_mut().as_mut_ptr(),
        };
        let written: Vec<*mut u8> = outputs.iter_mut().enumerate().map(start).collect();
        pointers.0.clear();
        let address = |place: Place| match place {
            Place::Input(n) => in_output(n).map_or_else(|| inputs[n].bytes().as_ptr().cast_mut(), |o| written[o]),
            Place::Output(n) => written[n],
            // SAFETY: parts lie within their buffers, and outputs are as large as theirs.
            Place::OutputPart(n, at) => unsafe { written[n].add(at) },
            Place::Constant(n) => self.program.constants[n].bytes().as_ptr().cast_mut(),
            Place::Arena(offset) => arena.at(offset),
        };
        pointers.0.extend(self.places.iter().map(|&place| match place {
            // Where it was for another size; it follows.
            Place::OutputPart(..) => std::ptr::null_mut(),
            place => address(place),
        }));
        self.parts.iter().for_each(|&(i, part)| pointers.0[i] = address(part));
        let mut done = Ok(());
        self.pool.enter(|ctx| done = self.steps(ctx, &arena, &pointers.0, after));
        self.arenas.give(arena);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(pointers);
        done?;
        for (n, block) in blocks.iter_mut().enumerate().filter_map(|(n, b)| Some((n, b.take()?))) {
            let port = &self.program.outputs[n].0;
            outputs[n] = block.into_tensor(port.dtype, &port.shape);
        }
        self.pass_through(inputs, outputs);
        Ok(())
    }

    fn steps(
        &self,
        ctx: &ResatCtx,
        arena: &Block,
        mut args: &[*mut u8],
        mut after: impl FnMut(usize),
    ) -> Result<(), RunError> {
        for (i, Step::Call(call)) in self.program.steps.iter().enumerate() {
            let (now, later) = args.split_at(call.args.len());
            let workspace = arena.at(self.plan.workspaces[i]);
            match &self.functions[call.function.0 as usize] {
                // SAFETY: the function is the one that the program names, kept alive by `_code`; there is a pointer for each of
                // its arguments, to memory of that buffer's size which lives until the call ends: a checked tensor, or a part
                // of the arena that the plan gives to no other buffer in use, but to one whose place the function may take. What is written is not shared: `bytes_mut` saw to
                // that for outputs, and `Program::step` keeps writes from inputs and constants.
                Function::Kernel(f) => unsafe { f(ctx, now.as_ptr(), workspace) },
                Function::Callable(f) => self.call(&**f, call, ctx, now, workspace)?,
            }
            args = later;
            after(i);
        }
        Ok(())
    }

    /// Calls a function of this process on the memory of a step's buffers.
    fn call(
        &self,
        f: &dyn Callable,
        call: &Call,
        ctx: &ResatCtx,
        pointers: &[*mut u8],
        workspace: *mut u8,
    ) -> Result<(), RunError> {
        let function = || self.program.functions[call.function.0 as usize].to_string();
        f.ready().map_err(|e| RunError::Function { function: function(), reason: e.to_string() })?;
        if !call.in_place.is_empty() {
            // What it is given could overlap.
            return Err(RunError::Function { function: function(), reason: NOT_IN_PLACE.into() });
        }
        let (mut inputs, mut outputs): (Vec<&[u8]>, Vec<&mut [u8]>) = (Vec::new(), Vec::new());
        for (&(buffer, written), &p) in call.args.iter().zip(pointers) {
            let bytes = self.program.buffers[buffer.0 as usize].1;
            // SAFETY: as for kernels: memory of that size, which lives until the call ends; what is written overlaps nothing.
            // A tensor without elements may have no address, which slices want.
            match (written, bytes) {
                (true, 0) => outputs.push(&mut []),
                (false, 0) => inputs.push(&[]),
                (true, _) => outputs.push(unsafe { std::slice::from_raw_parts_mut(p, bytes) }),
                (false, _) => inputs.push(unsafe { std::slice::from_raw_parts(p, bytes) }),
            }
        }
        // SAFETY: the plan gives each step that much memory of its own.
        let workspace = match call.workspace {
            0 => &mut [],
            n => unsafe { std::slice::from_raw_parts_mut(workspace, n) },
        };
        let mut arguments = Arguments { inputs: &inputs, outputs: &mut outputs, workspace, context: ctx };
        f.call(&mut arguments).map_err(|e| RunError::Function { function: function(), reason: e.to_string() })
    }

    /// Fills outputs that are inputs, constants or other outputs.
    fn pass_through(&self, inputs: &[Tensor], outputs: &mut [Tensor]) {
        for (i, (port, buffer)) in self.program.outputs.iter().enumerate() {
            let whole = match self.program.place(&self.plan, *buffer) {
                Place::Input(n) => inputs[n].clone(),
                Place::Constant(n) => self.program.constants[n].clone(),
                Place::Output(n) if n != i => outputs[n].clone(),
                Place::Output(_) | Place::OutputPart(..) | Place::Arena(_) => continue,
            };
            // An output may be the same bytes under other extents.
            let fits = whole.dtype() == port.dtype;
            outputs[i] = match fits {
                true => whole.reshaped(&port.shape),
                false => {
                    Tensor::from_bytes(port.dtype, &port.shape, whole.bytes()).expect("outputs are as large as buffers")
                }
            };
        }
    }
}

/// Whose memory each pointer argument of each step is, and again of [parts] of outputs.
fn places(program: &Program, plan: &Plan) -> (Arc<[Place]>, Vec<(usize, Place)>) {
    let args = program.steps.iter().flat_map(|Step::Call(c)| &c.args);
    (args.map(|&(b, _)| program.place(plan, b)).collect(), parts(program, plan))
}

/// Whose memory arguments are that are parts of outputs, by their number among all arguments of all steps.
fn parts(program: &Program, plan: &Plan) -> Vec<(usize, Place)> {
    let args = program.steps.iter().flat_map(|Step::Call(c)| &c.args).enumerate();
    args.filter(|(_, a)| program.whole(a.0) != a.0).map(|(i, a)| (i, program.place(plan, a.0))).collect()
}

/// Bytes for a buffer that may grow: up to an eighth more.
fn with_room(bytes: usize) -> usize {
    let step = (bytes.checked_ilog2().map_or(0, |log| 1 << log) / 8).max(ALIGN);
    bytes.next_multiple_of(step)
}

/// Whether tensors are what a program takes or gives, but for those of some numbers.
pub(super) fn fits<'a>(
    what: &'static str,
    ports: impl ExactSizeIterator<Item = &'a Port>,
    tensors: &[Tensor],
    but: impl Fn(usize) -> bool,
) -> Result<(), RunError> {
    if ports.len() != tensors.len() {
        return Err(RunError::Count { what, wanted: ports.len(), given: tensors.len() });
    }
    for (number, (port, t)) in ports.zip(tensors).enumerate() {
        if !but(number) && (t.dtype() != port.dtype || t.shape() != &port.shape[..]) {
            return Err(RunError::Type {
                what,
                number,
                name: port.name.to_string(),
                wanted: format!("{} of shape {:?}", port.dtype, &port.shape[..]),
                given: format!("{} of shape {:?}", t.dtype(), t.shape()),
            });
        }
    }
    Ok(())
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executable").field("program", &self.program).field("plan", &self.plan).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        runtime::{BufferId, Call, Estimate},
        tensor::DType,
    };

    const N: usize = 1000;

    /// `args[1][i] = args[0][i] + 1`, in parallel.
    unsafe extern "C" fn increment(ctx: *const ResatCtx, args: *const *mut u8, workspace: *mut u8) {
        unsafe extern "C" fn body(env: *mut u8, begin: i64, end: i64) {
            // SAFETY: `env` is the kernel's `args`: two arrays of N floats.
            unsafe {
                let args = env.cast::<*mut f32>();
                for i in begin..end {
                    *(*args.add(1)).add(i as usize) = *(*args).add(i as usize) + 1.0;
                }
            }
        }
        assert!(workspace.is_aligned_to_kernels());
        // SAFETY: called by the runtime, with its context.
        unsafe { ((*ctx).parallel_for)(ctx, body, args.cast_mut().cast(), N as i64) }
    }

    trait Aligned {
        fn is_aligned_to_kernels(&self) -> bool;
    }

    impl Aligned for *mut u8 {
        fn is_aligned_to_kernels(&self) -> bool {
            (*self as usize).is_multiple_of(crate::runtime::abi::ALIGN)
        }
    }

    struct Code;

    // SAFETY: `increment` is a kernel over buffers of N floats, as the tests say.
    unsafe impl CompiledCode for Code {
        fn address(&self, symbol: &str) -> Option<KernelFn> {
            (symbol == "increment").then_some(increment as KernelFn)
        }
    }

    fn port(name: &str) -> Port {
        Port::new(name, DType::F32, &[N])
    }

    fn increments(p: &mut Program, from: BufferId, to: BufferId) {
        let function = p.function("increment");
        p.step(Step::Call(Call {
            function,
            args: vec![(from, false), (to, true)],
            workspace: 100,
            in_place: vec![],
            estimate: Estimate::default(),
        }));
    }

    fn chain(length: usize) -> Program {
        let mut p = Program::new("chain");
        let mut last = p.input(port("x"));
        for _ in 0..length {
            let next = p.buffer(N * 4);
            increments(&mut p, last, next);
            last = next;
        }
        p.output(port("0"), last);
        p
    }

    fn link(p: Program, threads: usize) -> Executable {
        Executable::link(p, vec![Arc::new(Code)], Arc::new(Pool::new(threads))).expect("the code is there")
    }

    #[test]
    fn a_chain_runs_in_little_memory() {
        for threads in [1, 3] {
            let exe = link(chain(10), threads);
            assert!(exe.plan().arena <= 2 * (N * 4 + 96) + 128);
            let x = Tensor::from_f64_fn(DType::F32, &[N], |i| i as f64);
            for _ in 0..3 {
                let out = exe.run(std::slice::from_ref(&x)).expect("x fits");
                assert_eq!(out, [Tensor::from_f64_fn(DType::F32, &[N], |i| i as f64 + 10.0)]);
            }
            assert_eq!(exe.profile(&[x]).expect("x fits").len(), 10);
        }
    }

    #[test]
    fn runs_at_once_do_not_disturb_each_other() {
        let exe = link(chain(20), 2);
        std::thread::scope(|s| {
            for t in 0..4 {
                let exe = &exe;
                s.spawn(move || {
                    for r in 0..50 {
                        let x = Tensor::from_f64_fn(DType::F32, &[N], |_| (t * 1000 + r) as f64);
                        let out = exe.run(&[x]).expect("x fits");
                        assert!(out[0].as_slice::<f32>().iter().all(|&v| v == (t * 1000 + r + 20) as f32));
                    }
                });
            }
        });
    }

    #[test]
    fn large_results_take_the_memory_of_those_before() {
        const LARGE: usize = 1 << 16;
        let mut p = Program::new("large");
        let x = p.input(Port::new("x", DType::F32, &[LARGE]));
        let y = p.buffer(LARGE * 4);
        increments(&mut p, x, y);
        p.output(Port::new("0", DType::F32, &[LARGE]), y);
        let exe = link(p, 1);
        let run = |by: f64| {
            let x = Tensor::from_f64_fn(DType::F32, &[LARGE], |i| i as f64 + by);
            exe.run(&[x]).expect("x fits").remove(0)
        };
        let first = run(0.0);
        let kept = first.clone();
        let at = |t: &Tensor| t.bytes().as_ptr();
        // Somebody has the first one.
        let second = run(1.0);
        assert_ne!(at(&first), at(&second));
        assert_eq!((first.get_f64(3), second.get_f64(3)), (4.0, 5.0));
        let place = at(&second);
        drop((first, second));
        let third = run(2.0);
        assert_eq!((at(&third), third.get_f64(3), kept.get_f64(3)), (place, 6.0, 4.0));
    }

    #[test]
    fn outputs_may_be_anything() {
        let mut p = Program::new("odd");
        let x = p.input(port("x"));
        let c = p.constant(Tensor::from_f64_fn(DType::F32, &[N], |_| 7.0));
        let y = p.buffer(N * 4);
        increments(&mut p, c, y);
        p.output(port("0"), x);
        p.output(port("1"), y);
        p.output(port("2"), c);
        p.output(Port::new("3", DType::F32, &[10, N / 10]), y);
        let x = Tensor::from_f64_fn(DType::F32, &[N], |i| i as f64);
        let out = link(p, 1).run(std::slice::from_ref(&x)).expect("x fits");
        assert_eq!(out[0], x);
        assert_eq!((out[1].get_f64(3), out[2].get_f64(3)), (8.0, 7.0));
        assert_eq!(out[3], out[1].reshaped(&[10, N / 10]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let exe = link(chain(1), 1);
        assert_eq!(exe.run(&[]).expect_err("none").to_string(), "the program takes 1 inputs, but 0 were given");
        let message = exe.run(&[Tensor::zeros(DType::F32, &[3])]).expect_err("short").to_string();
        assert_eq!(message, "input 0 (`x`) should be float32 of shape [1000], but is float32 of shape [3]");
        let mut p = chain(1);
        p.function("nonesuch");
        let none = Executable::link(p, vec![Arc::new(Code)], Arc::new(Pool::new(1))).expect_err("no such code");
        assert_eq!(none, LinkError("nonesuch".into()));
    }
}
