//! What a build gives: a program that runs.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use super::{
    ahead::Ahead,
    extents::Extents,
    external::fallback_warning,
    profile::{NOT_PLAIN, Reader, TimedRun, estimates_of},
    specialize::Primitives,
};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{Name, Type, disagreeing},
    runtime::{Estimate, Executable, RunError},
    tensor::{Shape, Tensor, within_memory},
    vm,
};

/// A built program. Any number of threads may run it at once.
pub enum Runnable {
    /// A sequence of calls on tensors of known extents, with one memory plan.
    Plain(Box<Executable>),
    /// Anything else: control flow, data types, functions as values, and extents found while running.
    Machine(Box<MachineProgram>),
}

/// Which sizes get code of their own, beside that which serves all.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Specialize {
    /// None.
    #[default]
    Off,
    /// Those at which the program has run for as long as it took to make the code for all sizes.
    Hot,
    /// All that are met.
    All,
}

/// A program for the machine, and its kernels.
pub struct MachineProgram {
    program: vm::Program,
    pub(super) kernels: Arc<Primitives>,
    pub(super) params: Vec<Parameter>,
    /// Names of the inputs' extents, as the model has them.
    pub(super) dims: Vec<Vec<String>>,
    specialize: Specialize,
    /// What was said of extents that are unknown, and the bytes that are worked in at all sizes where they are bounded.
    pub(super) extents: Extents,
    workspace: Option<usize>,
    /// What makes code for a size in the background.
    making: Mutex<Option<JoinHandle<()>>>,
    /// What plans the next size where state is kept.
    ahead: Ahead,
}

impl Drop for MachineProgram {
    fn drop(&mut self) {
        // The compiler must not outlive what it belongs to, which may be the process.
        self.finish_special();
    }
}

/// What is given to a program.
pub(super) struct Parameter {
    pub name: Name,
    pub ty: Type,
    /// Whether the program says the type. Where it was inferred, it is what the program's functions say of theirs, and extents
    /// are taken as they come, as the interpreter does.
    pub annotated: bool,
}

impl vm::Kernels for Primitives {
    fn call(&self, kernel: vm::KernelId, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        self.call_function(kernel.index(), args)
    }
}

impl Runnable {
    /// Runs once. Inputs are the tensors of the parameters, tuples flattened depth first, and so are the outputs (fields of data
    /// types included).
    ///
    /// Refuses inputs that do not fit the parameters; of programs that are not plain, also results that hold functions, and what
    /// only running shows: extents that do not fit each other, values that no clause of a `match` meets.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        match self {
            Runnable::Plain(exe) => exe.run(inputs).map_err(|e| Diagnostic::new(e.to_string()).into()),
            Runnable::Machine(m) => {
                within_memory(|| m.run(inputs)).map_err(|e| Refused::from(Diagnostic::new(e.to_string())))?
            }
        }
    }

    /// The same, where some outputs are inputs of the next run: pairs of their numbers. The inputs are taken; where the run is refused,
    /// they are left as they were.
    pub(super) fn run_keeping(
        &self,
        inputs: &mut [Tensor],
        state: &[(usize, usize)],
        spare: &mut [Option<Tensor>],
    ) -> Result<Vec<Tensor>, Refused> {
        let refused = |e: String| Refused::from(Diagnostic::new(e));
        match self {
            Runnable::Plain(exe) => exe.run_keeping(inputs, state, spare).map_err(|e| refused(e.to_string())),
            Runnable::Machine(m) => {
                within_memory(|| m.run_keeping(inputs, state, spare)).map_err(|e| refused(e.to_string()))?
            }
        }
    }

    /// The same, and how long each call took; where asked for, also what each is expected to take. Refuses programs that are no plain sequence of
    /// calls for these inputs.
    pub(super) fn profile_keeping(
        &self,
        inputs: &mut [Tensor],
        state: &[(usize, usize)],
        spare: &mut [Option<Tensor>],
        estimates: bool,
        reader: &mut Reader,
    ) -> Result<(Vec<Tensor>, (TimedRun, Option<Vec<(Estimate, f64)>>)), Refused> {
        let refused = |e: String| Refused::from(Diagnostic::new(e));
        let mut profile = |exe: &Executable, inputs: &mut [Tensor]| {
            let (outputs, readings) = exe.profile_keeping(inputs, state, spare, || reader.read())?;
            Ok((outputs, (TimedRun::new(exe, &readings), estimates.then(|| estimates_of(exe)))))
        };
        match self {
            Runnable::Plain(exe) => profile(exe, inputs).map_err(|e: RunError| refused(e.to_string())),
            Runnable::Machine(m) => {
                let none = || refused(NOT_PLAIN.to_owned());
                let done = m.run_as_one(inputs, state, profile)?.ok_or_else(none)?;
                done.map_err(|e| refused(e.to_string()))
            }
        }
    }

    /// What a user should know of the runs so far, each once: regions of unknown extents that their compilers failed on for the extents that
    /// were met, and that run as resat's own code since there is a fallback. Regions of known extents are in the build's warnings.
    pub fn warnings(&self) -> Vec<String> {
        match self {
            Runnable::Plain(_) => Vec::new(),
            Runnable::Machine(m) => m.kernels.fallen().iter().map(fallback_warning).collect(),
        }
    }

    /// Names of the inputs' extents, by input, as the model has them. None where all extents are known, or where parameters are tuples: names are
    /// by parameter.
    pub(super) fn extent_names(&self) -> &[Vec<String>] {
        match self {
            Runnable::Machine(m) if m.params.iter().all(|p| p.ty.as_tensor().is_some()) => &m.dims,
            _ => &[],
        }
    }

    /// The plain program, where it is one.
    pub fn as_plain(&self) -> Option<&Executable> {
        match self {
            Runnable::Plain(exe) => Some(exe.as_ref()),
            Runnable::Machine(_) => None,
        }
    }
}

impl MachineProgram {
    pub(super) fn new(
        program: vm::Program,
        kernels: Primitives,
        params: Vec<Parameter>,
        dims: Vec<Vec<String>>,
        specialize: Specialize,
    ) -> MachineProgram {
        let (ahead, making) = (Ahead::new(kernels.machine.pool.threads()), Mutex::new(None));
        let (kernels, extents) = (Arc::new(kernels), Extents::default());
        MachineProgram { program, kernels, params, dims, specialize, extents, workspace: None, making, ahead }
    }

    /// The same within bounds of its extents: so many bytes are worked in.
    pub(super) fn within(mut self, extents: Extents, workspace: Option<usize>) -> MachineProgram {
        (self.extents, self.workspace) = (extents, workspace);
        self
    }

    /// Bytes that it works in beside inputs, results and constants, at all sizes: where its extents have bounds.
    pub fn workspace(&self) -> Option<usize> {
        self.workspace
    }

    /// How many sizes have code of their own because they were met often enough: see [`Specialize`].
    pub fn special_sizes(&self) -> usize {
        self.kernels.special_sizes()
    }

    /// Lets `f` look at what runs the program on inputs of these extents; none where it is no plain sequence of calls for them.
    ///
    /// Refuses inputs that do not fit the parameters.
    pub fn at<T>(&self, inputs: &[Tensor], f: impl FnOnce(&Executable) -> T) -> Result<Option<T>, Refused> {
        self.values(inputs)?;
        Ok(self.kernels.whole(inputs).map(|code| f(code.executable())))
    }

    /// Waits until code that is being made for a size in the background is there.
    pub fn finish_special(&self) {
        let making = self.making.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = making {
            // A failure there leaves the code for all sizes.
            thread.join().ok();
        }
    }

    /// Has code made for the size of a run that has just ended, where that is due and no other is being made.
    fn consider(&self, shapes: Vec<Shape>) {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if making.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        if !self.kernels.is_due(&shapes, self.specialize == Specialize::All) {
            return;
        }
        let kernels = self.kernels.clone();
        // Where no thread can be had, the code for all sizes goes on.
        *making = std::thread::Builder::new().spawn(move || kernels.make_special(&shapes)).ok();
    }

    fn shapes(&self, inputs: &[Tensor]) -> Option<Vec<Shape>> {
        (self.specialize != Specialize::Off).then(|| inputs.iter().map(|t| t.shape().into()).collect())
    }

    /// Of the calls of kernels at unknown extents that were met so far: how many have one kernel for all extents, how many have one for
    /// each, and how many kernels were compiled for extents at hand.
    pub fn sized_calls(&self) -> (usize, usize, usize) {
        self.kernels.sized_calls()
    }

    /// How many kernels were compiled since the program was built: those for all sizes, at the first, and others where a size had to have them.
    pub fn compiled_kernels(&self) -> usize {
        self.kernels.compiled_kernels()
    }

    /// The machine's code.
    pub fn program(&self) -> &vm::Program {
        &self.program
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        let values = self.values(inputs)?;
        let results = match self.kernels.run_within_bounds(inputs)? {
            None => self.kernels.run_whole(inputs),
            done => done,
        };
        if let Some(results) = results {
            self.shapes(inputs).into_iter().for_each(|s| self.consider(s));
            return Ok(results);
        }
        let result = self.program.run(&*self.kernels, values)?;
        self.kernels.run_in_parts();
        result.flatten().ok_or_else(|| Diagnostic::new("the result of the program holds a function").into())
    }

    fn run_keeping(
        &self,
        inputs: &mut [Tensor],
        state: &[(usize, usize)],
        spare: &mut [Option<Tensor>],
    ) -> Result<Vec<Tensor>, Refused> {
        match self.run_as_one(inputs, state, |exe, inputs| exe.run_keeping(inputs, state, spare))? {
            Some(done) => done.map_err(|e| Diagnostic::new(e.to_string()).into()),
            None => self.run(inputs),
        }
    }

    /// Has `run` run what is the whole program for these inputs, which are its own then; none where they are still to be used. The next size is planned
    /// ahead.
    fn run_as_one<T>(
        &self,
        inputs: &mut [Tensor],
        state: &[(usize, usize)],
        run: impl FnOnce(&Executable, &mut [Tensor]) -> Result<T, RunError>,
    ) -> Result<Option<Result<T, RunError>>, Refused> {
        // Values share the inputs' elements, which are then not to be written.
        drop(self.values(inputs)?);
        let shapes = self.shapes(inputs);
        let who = self.ahead.begin();
        let mut ahead = |when, next: &[Shape]| {
            if self.extents.beyond(next.iter().map(|s| &s[..])).is_none() {
                self.ahead.plan(&self.kernels, when, who, next);
            }
        };
        let done = self.kernels.run_whole_keeping(inputs, state, &mut ahead, run);
        if done.is_some() {
            shapes.into_iter().for_each(|s| self.consider(s));
        }
        Ok(done)
    }

    /// The values of the parameters, where these inputs fit them.
    fn values(&self, inputs: &[Tensor]) -> Result<Vec<vm::Value>, Refused> {
        let wanted: usize = self.params.iter().map(|p| p.ty.flatten().map_or(1, |t| t.len())).sum();
        if wanted != inputs.len() {
            let message = format!("the program takes {wanted} inputs, but {} were given", inputs.len());
            return Err(Diagnostic::new(message).into());
        }
        // Models that name extents have tensors as inputs.
        let named = self.params.iter().zip(inputs).map(|(p, t)| (p.name.as_str(), t.shape()));
        if let Some(message) = disagreeing(&self.dims, named) {
            return Err(Diagnostic::new(message).into());
        }
        if let Some(message) = self.extents.beyond(inputs.iter().map(Tensor::shape)) {
            return Err(Diagnostic::new(message).into());
        }
        let mut given = inputs.iter();
        self.params.iter().map(|p| value(&p.name, &p.ty, p.annotated, &mut given)).collect()
    }
}

/// The value of a parameter from the tensors that make it up.
fn value<'a>(
    name: &str,
    ty: &Type,
    annotated: bool,
    given: &mut impl Iterator<Item = &'a Tensor>,
) -> Result<vm::Value, Refused> {
    let refuse =
        |found: String| -> Refused { Diagnostic::new(format!("input `{name}` should be {ty}, but is {found}")).into() };
    match ty {
        Type::Tensor(t) => {
            let tensor = given.next().expect("the number of inputs was checked");
            let extents_fit = t.rank() == tensor.shape().len()
                && t.shape.iter().zip(tensor.shape()).all(|(d, &n)| d.known().is_none_or(|d| d == n as i64));
            if t.dtype == tensor.dtype() && (extents_fit || !annotated) {
                return Ok(tensor.clone().into());
            }
            Err(refuse(format!("{} of shape {:?}", tensor.dtype(), tensor.shape())))
        }
        // Types bound how deep tuples are nested.
        Type::Tuple(fields) => {
            let fields = fields.iter().enumerate().map(|(i, f)| value(&format!("{name}.{i}"), f, annotated, given));
            Ok(vm::Value::tuple(fields.collect::<Result<Vec<_>, _>>()?))
        }
        _ => Err(refuse("a tensor: only tensors and tuples of tensors can be given".into())),
    }
}
