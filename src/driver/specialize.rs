//! Primitive functions as a virtual machine calls them: code for the extents at hand.
//!
//! A function whose types are known is compiled with the program; any other one when it is first called, by kernels that serve all extents, and
//! all values that decide some ([`Sizes`]), or else for those at hand. A program that is a plain sequence of calls but for its extents is called as one.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hashbrown::{HashMap, HashSet};

use super::{
    ahead::{When, next_shapes},
    backend::{Backend, in_process},
    build::BuildError,
    cache::Cache,
    calls::Sequence,
    entry::{concrete, define_entry, entry_name, of_extents},
    extents::{Extents, guessed},
    external::{Handling, Regions, compile_regions},
    key::{Call, Key},
    made::Made,
    phases::compiling,
    sizes::{Size, Sizes},
    tune::Tuner,
};
use crate::{
    cancel::Cancel,
    codegen::ObjectCode,
    diag::{Diagnostic, Refused},
    infer::{TypedModule, infer_types},
    ir::{Attrs, Copier, Expr, ExprId, Function, Module, OpId, Type, VarId, reachable},
    loops::Kernel,
    lower::{Assembled, CodeSet, Form, Tuned, assemble, is_plain, is_plain_once_known, shapes_follow_from_types},
    partition::CompilerError,
    pass::{resolve_extents, static_calls},
    runtime::{
        Arenas, Callables, Code as External, Compiled as Region, CompiledCode, Executable, MemoryRelease, Pool,
        Program, RunError,
    },
    tensor::{Shape, Tensor, Value, within_memory},
};

/// What code is made for and run on.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub backend: Backend,
    pub pool: Arc<Pool>,
    /// What functions work in, one after another.
    pub arenas: Arc<Arenas>,
    pub regions: Handling,
    pub cache: Option<Arc<Cache>>,
    /// What was measured about reductions.
    pub tuned: Option<Arc<Tuned>>,
    /// Whether it is noted how long the program runs at each size.
    pub times: bool,
    /// What the program keeps from one run to the next: pairs of numbers of an input and an output.
    pub state: Vec<(usize, usize)>,
    /// By input and axis, whether a hint or bound says for which extent schedules are decided; of inputs beyond these nothing is said.
    pub said: Vec<Vec<bool>>,
    /// By which somebody ends the build.
    pub cancel: Cancel,
}

impl Machine {
    /// For code that is to be made, beside that of external compilers.
    pub(super) fn code(&self, external: Vec<(String, Region)>) -> CodeSet {
        let mut code = CodeSet::new(self.backend.core).tuned(self.tuned.clone());
        (code.external, code.cancel) = (external, self.cancel.clone());
        code
    }
}

/// The primitive functions of a program.
pub(super) struct Primitives {
    pub module: Module,
    pub functions: Vec<Primitive>,
    /// The whole program, where it is a plain sequence of calls once extents are known, or may be: see `computes_extents`.
    pub whole: Option<Primitive>,
    /// Whether extents within the whole program are computed: it is plain where these follow from those of its inputs.
    pub computes_extents: bool,
    /// Its code for the greatest extents that it may meet, where these are bounded: no other takes more memory.
    bound: OnceLock<Arc<Code>>,
    /// Whether it turned out that it can't be called as one function.
    pub(super) in_parts: AtomicBool,
    pub machine: Machine,
    /// Regions that their compilers failed on for extents that were met, each once.
    fallen: Mutex<Vec<CompilerError>>,
}

/// One of them.
pub(super) struct Primitive {
    pub func: ExprId,
    /// The operator that it is a call of, where that runs as it is.
    pub as_is: Option<(OpId, Attrs)>,
    /// Places among the flattened arguments whose values decide extents.
    pub decisive: Vec<usize>,
    /// The code, where there is one for all calls.
    pub fixed: Option<Arc<Code>>,
    /// The code for extents that were met, which functions that are the same share.
    pub(super) made: Arc<Mutex<Made>>,
}

impl Primitive {
    /// Functions that are the same have the same of these.
    pub(super) fn shared(&self) -> *const () {
        self.fixed.as_ref().map_or_else(|| Arc::as_ptr(&self.made).cast(), |code| Arc::as_ptr(code).cast())
    }
}

/// The code of a function.
pub(super) struct Code {
    exe: Executable,
    /// Outputs of which another output says how many rows are meant; see [`Assembled::counted`].
    counted: Vec<(usize, usize)>,
    /// The places of arguments that it does not take: their values are a part of it.
    left_out: Vec<usize>,
}

impl Code {
    /// Puts an assembled program together with the code that it calls.
    pub(super) fn link(
        assembled: Assembled,
        code: Vec<Arc<dyn CompiledCode>>,
        machine: &Machine,
    ) -> Result<Arc<Code>, BuildError> {
        Code::link_without(assembled, code, machine, Vec::new())
    }

    /// The same, where the values of arguments at some places are a part of the program.
    fn link_without(
        assembled: Assembled,
        code: Vec<Arc<dyn CompiledCode>>,
        machine: &Machine,
        left_out: Vec<usize>,
    ) -> Result<Arc<Code>, BuildError> {
        let Assembled { program, counted, .. } = assembled;
        let exe = Executable::sharing(program, code, machine.pool.clone(), machine.arenas.clone())?;
        Ok(Arc::new(Code { exe, counted, left_out }))
    }

    /// Outputs of which another output says how many rows are meant; see [`Assembled::counted`].
    pub(super) fn counted(&self) -> &[(usize, usize)] {
        &self.counted
    }

    /// The same for a program that is the same but for sizes.
    pub(super) fn resized(&self, program: Program) -> Arc<Code> {
        Arc::new(Code { exe: self.exe.resized(program), counted: Vec::new(), left_out: Vec::new() })
    }

    /// The calls, with their memory plan.
    pub(super) fn executable(&self) -> &Executable {
        &self.exe
    }

    fn run(&self, args: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        let mut out = match self.left_out.is_empty() {
            true => self.exe.run(args)?,
            false => {
                let taken = args.iter().enumerate().filter(|(i, _)| !self.left_out.contains(i));
                self.exe.run(&taken.map(|(_, arg)| arg.clone()).collect::<Vec<Tensor>>())?
            }
        };
        for &(at, count) in &self.counted {
            let rows = out[count].get_i64(0) as usize;
            out[at] = out[at].rows(rows);
        }
        out.truncate(out.len() - self.counted.len());
        Ok(out)
    }
}

/// What was compiled with the program.
pub(super) struct Compiled {
    pub primitives: Primitives,
    /// The kernels, each once.
    pub code: CodeSet,
    /// Their machine code, and that of external compilers.
    pub objects: Vec<ObjectCode>,
    /// Calls of kernels within functions of known extents.
    pub calls: usize,
}

impl Primitives {
    /// The functions of a module (expressions that are primitive functions, or functions for external compilers, by number),
    /// those of known extents compiled, all together.
    pub(super) fn compile(
        typed: &TypedModule,
        functions: &[ExprId],
        regions: Vec<(String, Region)>,
        machine: Machine,
        tuner: Option<&mut Tuner>,
        on_phase: &mut dyn FnMut(&str),
    ) -> Result<Compiled, BuildError> {
        let m = typed.module();
        let decisive: Vec<Vec<usize>> = functions.iter().map(|&f| decisive(typed, f)).collect::<Result<_, _>>()?;
        // One entry for each function of known extents; the whole module is typed once.
        let mut entries = m.derive();
        let mut copier = Copier::new();
        let mut fixed = Vec::new();
        for (number, &f) in functions.iter().enumerate() {
            let func = m.func(f);
            let types: Vec<Type> = func.params.iter().map(|&p| typed.var_ty(p).clone()).collect();
            let known = |t: &Type| t.flatten().is_some_and(|all| all.iter().all(|t| t.known_shape().is_some()));
            if shapes_follow_from_types(m, f) && types.iter().all(known) && known(typed.ty(func.body)) {
                let callee = copier.copy(m, f, &mut entries);
                define_entry(&mut entries, number, callee, &types);
                fixed.push(number);
            }
        }
        let entries = infer_types(entries)?;
        let assembled = |code: &mut CodeSet| -> Result<Vec<Assembled>, Refused> {
            fixed.iter().map(|&number| entry_name(number)).map(|e| assemble(&entries, &e, &e, code)).collect()
        };
        let mut code = machine.code(regions);
        let mut programs = assembled(&mut code)?;
        if let Some(tuner) = tuner
            && tuner.tune(&code, &programs.iter().map(|p| &p.program).collect::<Vec<_>>(), on_phase)?
        {
            code = code.emptied();
            programs = assembled(&mut code)?;
        }
        let calls = programs.iter().map(|p| p.calls).sum();
        on_phase(&compiling(&code));
        let (objects, library) = compile_code(&mut code, &machine.backend, machine.cache.as_deref())?;
        let mut made: HashMap<usize, Arc<Code>> = HashMap::new();
        for (number, assembled) in fixed.into_iter().zip(programs) {
            made.insert(number, Code::link(assembled, library.clone(), &machine)?);
        }
        let mut same: HashMap<Form, Arc<Mutex<Made>>> = HashMap::new();
        let functions: Vec<Primitive> = functions
            .iter()
            .zip(decisive)
            .enumerate()
            .map(|(number, (&func, decisive))| Primitive {
                func,
                as_is: as_is(m, func),
                decisive,
                fixed: made.remove(&number),
                made: Form::of(m, m.func(func), |p| m.var(p).ty.clone())
                    .map_or_else(Arc::default, |form| same.entry(form).or_default().clone()),
            })
            .collect();
        let whole = match is_plain_once_known(typed, "main")? {
            true => m.function_id("main").map(|func| Primitive {
                func,
                as_is: None,
                decisive: Vec::new(),
                fixed: None,
                made: Arc::default(),
            }),
            false => None,
        };
        let computes_extents = functions.iter().any(|f| !shapes_follow_from_types(m, f.func));
        let (in_parts, fallen) = (AtomicBool::new(false), Mutex::default());
        let bound = OnceLock::new();
        let primitives =
            Primitives { module: m.clone(), functions, whole, computes_extents, bound, in_parts, machine, fallen };
        Ok(Compiled { primitives, code, objects, calls })
    }

    /// Makes the code for all sizes beforehand, where something is said of extents; where they are bounded, also takes the memory that is
    /// enough for all, and says how many bytes that is. Of programs that are no plain sequence of calls memory can't be planned beforehand.
    ///
    /// Refuses extents that do not fit each other.
    pub(super) fn prepare(&self, extents: &Extents) -> Result<Option<usize>, Refused> {
        let Some(whole) = &self.whole else { return Ok(None) };
        let (greatest, likely) = (extents.greatest()?, extents.likely());
        let sizes: Vec<&Vec<Shape>> = likely.iter().chain(&greatest).collect();
        if !self.is_plain_at(whole, &sizes) {
            return Ok(None);
        }
        let code_at = |shapes: &[Shape]| -> Result<Arc<Code>, Refused> {
            let message = || format!("no code for {}, as is said of its extents", extents.described(shapes));
            let made = within_memory(|| {
                let types = extents.types().zip(shapes);
                let tensors: Vec<Tensor> = types.map(|(t, s)| Tensor::zeros(t.dtype, s)).collect();
                self.code_for(whole, &Call { args: &tensors, decisive: &[] })
            });
            let made = made.map_err(|e| Diagnostic::new(format!("{}: {e}", message())))?;
            made.map_err(|Refused(mut all)| {
                all.insert(0, Diagnostic::new(message()));
                Refused(all)
            })
        };
        // What is merely usual does not decide schedules: the first size that is met does.
        let decisive = likely.filter(|_| greatest.is_some() || !extents.is_guessed());
        match decisive.map(|likely| code_at(&likely)) {
            // Windows do not fit, or extents have to be even: decisions are then taken at the greatest.
            Some(Err(_)) if extents.is_guessed() => {}
            Some(made) => drop(made?),
            None => {}
        }
        let Some(greatest) = greatest else { return Ok(None) };
        // With a memory plan for it alone.
        if let Some(sizes) = &mut whole.made.lock().unwrap_or_else(PoisonError::into_inner).sizes {
            sizes.start_over();
        }
        let code = code_at(&greatest)?;
        let bytes = code.exe.plan().arena;
        self.machine.arenas.reserve(bytes);
        // It is said once.
        self.bound.set(code).ok();
        Ok(Some(bytes))
    }

    /// Whether the whole program is a plain sequence of calls for inputs of any of these sizes.
    fn is_plain_at(&self, whole: &Primitive, sizes: &[&Vec<Shape>]) -> bool {
        let func = self.module.func(whole.func);
        let types: Vec<Type> = func.params.iter().filter_map(|&p| self.module.var(p).ty.clone()).collect();
        !self.computes_extents || sizes.iter().all(|shapes| self.whole_instance(func, &types, shapes).is_ok())
    }

    /// The whole program, where it is a plain sequence of calls at the sizes that are likely.
    pub(super) fn plain_whole(&self, extents: &Extents) -> Option<&Primitive> {
        let whole = self.whole.as_ref()?;
        let params = self.module.func(whole.func).params.iter();
        let types: Vec<Type> = params.filter_map(|&p| self.module.var(p).ty.clone()).collect();
        let likely: Option<Vec<Shape>> = extents.likely().or_else(|| guessed(&types));
        Some(whole).filter(|w| self.is_plain_at(w, &likely.iter().collect::<Vec<_>>()))
    }

    /// Whether code works within the memory of the greatest extents, where these are bounded: by a plan of its own, or by theirs.
    pub(super) fn is_within(&self, code: &mut Arc<Code>) -> bool {
        let Some(bound) = self.bound.get().filter(|b| code.exe.plan().arena > b.exe.plan().arena) else { return true };
        Arc::get_mut(code).is_some_and(|code| code.exe.live_as(&bound.exe))
    }

    /// Calls the function of that number on its arguments, tuples flattened depth first; the results likewise.
    ///
    /// Refuses what only values show: extents that do not fit each other, and values that make no legal call.
    pub(super) fn call_function(&self, number: usize, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        let f = &self.functions[number];
        if let Some((op, attrs)) = &f.as_is {
            let values: Vec<Value> = args.iter().cloned().map(Value::from).collect();
            let result = op.op().eval(attrs, &values).map_err(|e| {
                let message = format!("`{}`: {e}", op.op().name());
                Refused::from(Diagnostic::new(message).at(self.module.span(f.func).cloned()))
            })?;
            return Ok(result.flatten());
        }
        let code = match &f.fixed {
            Some(code) => code.clone(),
            None => self.code_for(f, &Call { args, decisive: &f.decisive })?,
        };
        code.run(args).map_err(|e| Diagnostic::new(e.to_string()).at(self.module.span(f.func).cloned()).into())
    }

    /// Runs the whole program as one function on inputs that fit its parameters, where it is a plain sequence of calls for them.
    pub(super) fn run_whole(&self, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
        let whole = self.whole.as_ref().filter(|_| !self.in_parts.load(Ordering::Relaxed))?;
        // What does not fit is reported call by call.
        let call = Call { args: inputs, decisive: &[] };
        let code = self.code_for(whole, &call).ok()?;
        let start = Instant::now();
        let results = code.run(inputs).ok()?;
        if self.machine.times {
            note(whole, call.key(), start.elapsed());
        }
        Some(results)
    }

    /// Whether the program has run at this size for as long as it took to make the code for all sizes, or at all where `at_once`, and
    /// code for this size alone was not asked for.
    pub(super) fn is_due(&self, shapes: &[Shape], at_once: bool) -> bool {
        let Some(whole) = &self.whole else { return false };
        let mut made = whole.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(took) = made.sizes.as_ref().map(|s| s.took) else { return false };
        let key = Key { shapes: shapes.to_vec(), values: Vec::new() };
        match made.ran.get_mut(&key) {
            Some(ran) if ran.is_some_and(|ran| at_once || ran >= took) => {
                *ran = None;
                true
            }
            _ => false,
        }
    }

    /// Makes code for the whole program at one size, on one thread, which runs from then on; where that fails, nothing changes.
    pub(super) fn make_special(&self, shapes: &[Shape]) {
        let Some(whole) = &self.whole else { return };
        let func = self.module.func(whole.func);
        let types: Vec<Type> = func.params.iter().filter_map(|&p| self.module.var(p).ty.clone()).collect();
        // The others are for who runs the program meanwhile.
        let Ok(alone) = rayon::ThreadPoolBuilder::new().num_threads(1).build() else { return };
        let made = alone.install(|| within_memory(|| self.whole_at(func, &types, shapes)));
        let Ok(Ok(mut code)) = made else { return };
        if !self.is_within(&mut code) {
            return;
        }
        let mut made = whole.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.code.insert(Key { shapes: shapes.to_vec(), values: Vec::new() }, code);
        made.special += 1;
    }

    /// How many sizes have got code of their own by that.
    pub(super) fn special_sizes(&self) -> usize {
        self.whole.iter().map(|w| w.made.lock().unwrap_or_else(PoisonError::into_inner).special).sum()
    }

    /// The same, where some outputs are inputs of the next run, and may take their places: see [`Executable::run_keeping`], which `run` calls, or
    /// what does the same. None where the inputs are still to be used.
    pub(super) fn run_whole_keeping<T>(
        &self,
        inputs: &mut [Tensor],
        state: &[(usize, usize)],
        ahead: &mut dyn FnMut(When, &[Shape]),
        run: impl FnOnce(&Executable, &mut [Tensor]) -> Result<T, RunError>,
    ) -> Option<Result<T, RunError>> {
        let whole = self.whole.as_ref().filter(|_| !self.in_parts.load(Ordering::Relaxed))?;
        let code = self.code_for(whole, &Call { args: inputs, decisive: &[] }).ok()?;
        let key = self.machine.times.then(|| Call { args: inputs, decisive: &[] }.key());
        if !code.counted.is_empty() {
            return None;
        }
        let next = next_shapes(inputs, state, &code.exe);
        next.iter().for_each(|next| ahead(When::Before, next));
        let start = Instant::now();
        let done = run(&code.exe, inputs);
        if let Some(key) = key {
            note(whole, key, start.elapsed());
        }
        next.iter().for_each(|next| ahead(When::After, next));
        Some(done)
    }

    /// The same within bounds that [`Primitives::prepare`] was given.
    ///
    /// Refuses inputs that no code can be made for within the memory at hand.
    pub(super) fn run_within_bounds(&self, inputs: &[Tensor]) -> Result<Option<Vec<Tensor>>, Refused> {
        let Some(whole) = self.whole.as_ref().filter(|_| self.bound.get().is_some()) else { return Ok(None) };
        let call = Call { args: inputs, decisive: &[] };
        let code = self.code_for(whole, &call)?;
        let start = Instant::now();
        let results = code.run(inputs).map_err(|e| Refused::from(Diagnostic::new(e.to_string())))?;
        if self.machine.times {
            note(whole, call.key(), start.elapsed());
        }
        Ok(Some(results))
    }

    /// What runs the whole program as one function on inputs that fit its parameters, where it is a plain sequence of calls for them.
    pub(super) fn whole(&self, inputs: &[Tensor]) -> Option<Arc<Code>> {
        let whole = self.whole.as_ref().filter(|_| !self.in_parts.load(Ordering::Relaxed))?;
        self.code_for(whole, &Call { args: inputs, decisive: &[] }).ok()
    }

    /// Says that the program runs, but not as one function.
    pub(super) fn run_in_parts(&self) {
        self.in_parts.store(true, Ordering::Relaxed);
    }

    /// Of calls that were met at sizes: how many have one kernel for all, how many one for each, and how many kernels were compiled for extents at hand.
    pub(super) fn sized_calls(&self) -> (usize, usize, usize) {
        let all = self.functions.iter().chain(&self.whole);
        let mut counted: HashSet<*const Mutex<Made>> = HashSet::new();
        all.fold((0, 0, 0), |(general, alone, special), f| {
            // What functions share was compiled once.
            let first = counted.insert(Arc::as_ptr(&f.made)) as usize;
            let made = f.made.lock().unwrap_or_else(PoisonError::into_inner);
            match &made.sizes {
                Some(s) => (general + s.counts().0, alone + s.counts().1, special + first * s.specialized),
                None => (general, alone, special + first * made.code.len()),
            }
        })
    }

    /// How many kernels were compiled for functions that were met at sizes.
    pub(super) fn compiled_kernels(&self) -> usize {
        let all = self.functions.iter().chain(&self.whole).map(|f| (Arc::as_ptr(&f.made), f));
        let once: HashMap<*const Mutex<Made>, &Primitive> = all.collect();
        let of = |f: &&Primitive| {
            let made = f.made.lock().unwrap_or_else(PoisonError::into_inner);
            made.sizes.as_ref().map_or(0, |s| s.compiled)
        };
        once.values().map(of).sum()
    }

    /// Regions that their compilers failed on when they were called, each once: they run as resat's own code.
    pub(super) fn fallen(&self) -> Vec<CompilerError> {
        self.fallen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep_fallen(&self, errors: Vec<CompilerError>) {
        let mut kept = self.fallen.lock().unwrap_or_else(PoisonError::into_inner);
        for e in errors {
            if !kept.iter().any(|k| k.region == e.region) {
                kept.push(e);
            }
        }
    }

    fn code_for(&self, f: &Primitive, call: &Call<'_>) -> Result<Arc<Code>, Refused> {
        // The lock is held while code is made: who waits would only make the same.
        let mut made = f.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = made.code.get(call) {
            return Ok(code.clone());
        }
        let at = || self.module.span(f.func).cloned();
        let mut code = self.made_for(f, call, &mut made).map_err(|e| match e {
            BuildError::Refused(r) => r,
            e => Diagnostic::new(e.to_string()).at(at()).into(),
        })?;
        if self.is_whole(f) && !self.is_within(&mut code) {
            let message =
                "these extents take more memory to work in than the greatest ones that the program was built for";
            return Err(Diagnostic::new(message).into());
        }
        made.keep(call.key(), code.clone());
        if let (Some(sizes), false) = (&mut made.sizes, call.args.iter().any(Tensor::is_empty)) {
            sizes.keep(&code);
        }
        Ok(code)
    }

    /// Whether the function that is to be called is the whole program.
    pub(super) fn is_whole(&self, f: &Primitive) -> bool {
        self.whole.as_ref().is_some_and(|w| std::ptr::eq(w, f))
    }

    fn made_for(&self, f: &Primitive, call: &Call<'_>, made: &mut Made) -> Result<Arc<Code>, BuildError> {
        let func = self.module.func(f.func);
        // An extent of nothing says little of others, and what other compilers make is for known extents.
        let empty = call.args.iter().any(Tensor::is_empty);
        let types: Vec<Type> = func.params.iter().filter_map(|&p| self.module.var(p).ty.clone()).collect();
        let said = types.len() == func.params.len();
        let shapes: Vec<Shape> = call.args.iter().map(|a| a.shape().into()).collect();
        if self.is_whole(f) && said && empty {
            return self.whole_at(func, &types, &shapes);
        }
        // Values that decide extents are those of parameters that are tensors by themselves.
        let follows = f.decisive.is_empty() || types.iter().all(|t| t.as_tensor().is_some());
        if !follows || func.compiler().is_some() || empty || !said {
            return self.specialize(f, call);
        }
        let size = Size { shapes, values: f.decisive.iter().map(|&i| (i, call.args[i].clone())).collect() };
        let entry = entry_name(0);
        let (state, said) = match self.is_whole(f) {
            true => (self.machine.state.clone(), self.machine.said.clone()),
            false => Default::default(),
        };
        if made.sequence.is_none() {
            let computes = self.is_whole(f) && self.computes_extents;
            let typed = self.at_all_extents(f, &types)?;
            made.sequence = Sequence::new(typed, &entry, &state, computes);
        }
        let sizes = made.sizes.get_or_insert_with(|| Sizes::new(&self.machine, state, said));
        if let Some(sequence) = made.sequence.as_ref().filter(|_| !sizes.broken) {
            match sizes.code(&self.machine, sequence, &entry, &types, &size) {
                Ok(Some(code)) => return Ok(code),
                Ok(None) => {}
                Err(BuildError::Codegen(_)) if !self.is_whole(f) => {}
                Err(e) => return Err(e),
            }
        }
        let code = match self.is_whole(f) {
            true => self.whole_at(func, &types, &size.shapes)?,
            false => self.specialize(f, call)?,
        };
        sizes.specialized += 1;
        sizes.start_over();
        Ok(code)
    }

    /// A module of the function, called `f0`, for tensors of these extents.
    pub(super) fn at_extents(
        &self,
        f: &Primitive,
        types: &[Type],
        shapes: &[Shape],
    ) -> Result<TypedModule, BuildError> {
        match self.is_whole(f) {
            true => self.whole_instance(self.module.func(f.func), types, shapes),
            false => self.instance(f, types, shapes),
        }
    }

    /// A module of the function, called `f0`, for tensors of any extents.
    pub(super) fn at_all_extents(&self, f: &Primitive, types: &[Type]) -> Result<TypedModule, BuildError> {
        let m = &self.module;
        let mut out = m.derive();
        let callee = Copier::new().copy(m, f.func, &mut out);
        match self.is_whole(f) {
            true => out.define(entry_name(0), callee),
            false => define_entry(&mut out, 0, callee, types),
        }
        Ok(infer_types(out)?)
    }

    /// A module that calls the function on tensors of these extents.
    fn instance(&self, f: &Primitive, types: &[Type], shapes: &[Shape]) -> Result<TypedModule, BuildError> {
        let m = &self.module;
        let mut out = m.derive();
        let (body, params, types) = self.on_extents(m.func(f.func), types, shapes, &mut out);
        let func = m.func(f.func);
        let func = Function { type_params: vec![], params, ret: None, body, attrs: func.attrs.clone() };
        let callee = out.add_at(Expr::Func(Box::new(func)), m.span(f.func).cloned());
        define_entry(&mut out, 0, callee, &types);
        Ok(static_calls(infer_types(out)?)?)
    }

    /// A module of the whole program for tensors of these extents.
    fn whole_instance(&self, func: &Function, types: &[Type], shapes: &[Shape]) -> Result<TypedModule, BuildError> {
        let mut out = self.module.derive();
        let (body, params, _) = self.on_extents(func, types, shapes, &mut out);
        let func = out.add(Expr::Func(Box::new(Function::new(params, body, None))));
        out.define(entry_name(0), func);
        if !self.computes_extents {
            return Ok(infer_types(out)?);
        }
        let typed = resolve_extents(out, &entry_name(0))?;
        match is_plain(&typed, &entry_name(0))? {
            true => Ok(typed),
            false => Err(Refused::from(Diagnostic::new("extents within the program depend on values")).into()),
        }
    }

    /// Code of the whole program for tensors of these extents alone.
    fn whole_at(&self, func: &Function, types: &[Type], shapes: &[Shape]) -> Result<Arc<Code>, BuildError> {
        let typed = self.whole_instance(func, types, shapes)?;
        let mut code = self.machine.code(Vec::new());
        code.state = self.machine.state.clone();
        let entry = entry_name(0);
        let assembled = assemble(&typed, &entry, &entry, &mut code)?;
        let (_, library) = compile_code(&mut code, &self.machine.backend, self.machine.cache.as_deref())?;
        Code::link(assembled, library, &self.machine)
    }

    /// A copy of a function's body, its parameters and their types, for these extents. What functions within say of extents is left out: it follows.
    fn on_extents(
        &self,
        func: &Function,
        types: &[Type],
        shapes: &[Shape],
        out: &mut Module,
    ) -> (ExprId, Vec<VarId>, Vec<Type>) {
        let m = &self.module;
        let mut given = shapes.iter();
        let types: Vec<Type> = types.iter().map(|t| of_extents(t, &mut given)).collect();
        let params: Vec<VarId> =
            func.params.iter().zip(&types).map(|(&p, t)| out.new_var(m.var(p).name.clone(), Some(t.clone()))).collect();
        let bound: HashMap<VarId, ExprId> =
            func.params.iter().zip(&params).map(|(&p, &new)| (p, out.add(Expr::Var(new)))).collect();
        let known = |t: &Type| t.flatten().is_some_and(|all| all.iter().all(|t| t.known_shape().is_some()));
        for e in reachable(m, [func.body]) {
            let Expr::Func(inner) = &m[e] else { continue };
            for &p in &inner.params {
                let ty = &mut out.var_mut(p).ty;
                *ty = ty.take().filter(known);
            }
        }
        let body = Copier::new().copy_with(m, func.body, out, |out, id, e| match e {
            Expr::Var(v) => bound.get(v).copied(),
            Expr::Func(inner) if inner.ret.as_ref().is_some_and(|t| !known(t)) => {
                let inner = Function { ret: None, ..(**inner).clone() };
                Some(out.add_at(Expr::Func(Box::new(inner)), m.span(id).cloned()))
            }
            _ => None,
        });
        (body, params, types)
    }

    /// Code for the values and extents at hand.
    fn specialize(&self, f: &Primitive, call: &Call<'_>) -> Result<Arc<Code>, BuildError> {
        let m = &self.module;
        let func = m.func(f.func);
        let mut out = m.derive();
        let mut given = call.args.iter().enumerate();
        let mut bound: HashMap<VarId, Option<ExprId>> = HashMap::new();
        let (mut params, mut types) = (Vec::new(), Vec::new());
        for &p in &func.params {
            let annotated = m.var(p).ty.as_ref().expect("parameters of primitive functions are annotated");
            let (first, tensor) = given.clone().next().map_or((usize::MAX, None), |(i, t)| (i, Some(t)));
            let ty = concrete(annotated, &mut given);
            if let (true, Some(value)) = (f.decisive.contains(&first), tensor) {
                bound.insert(p, Some(out.constant(value.clone())));
                continue;
            }
            let var = out.new_var(m.var(p).name.clone(), Some(ty.clone()));
            bound.insert(p, Some(out.add(Expr::Var(var))));
            params.push(var);
            types.push(ty);
        }
        let body = Copier::new().copy_with(m, func.body, &mut out, |_, _, e| match e {
            Expr::Var(v) => bound.get(v).copied().flatten(),
            _ => None,
        });
        let func = Function { type_params: vec![], params, ret: None, body, attrs: func.attrs.clone() };
        let callee = out.add_at(Expr::Func(Box::new(func)), m.span(f.func).cloned());
        define_entry(&mut out, 0, callee, &types);
        let typed = static_calls(infer_types(out)?)?;
        let entry = entry_name(0);
        let Regions { typed, compiled, fallen } =
            compile_regions(typed, &self.machine.backend.target, self.machine.regions, &self.machine.cancel)?;
        self.keep_fallen(fallen);
        let mut code = self.machine.code(compiled);
        let assembled = assemble(&typed, &entry, &entry, &mut code)?;
        let (_, library) = compile_code(&mut code, &self.machine.backend, self.machine.cache.as_deref())?;
        Code::link_without(assembled, library, &self.machine, f.decisive.clone())
    }
}

/// Adds to how long a function ran at a size.
fn note(f: &Primitive, key: Key, time: Duration) {
    let mut made = f.made.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ran) = made.ran.entry(key).or_insert(Some(Duration::ZERO)) {
        *ran += time;
    }
}

/// Machine code of some kernels in this process.
pub(super) fn compile_kernels(kernels: &[Kernel], machine: &Machine) -> Result<Arc<dyn CompiledCode>, BuildError> {
    let kernels: Vec<&Kernel> = kernels.iter().collect();
    Ok(machine.backend.load(&kernels, machine.cache.as_deref(), &machine.cancel)?)
}

/// Machine code of everything, as objects and in this process. What other compilers made moves into the objects.
pub(super) fn compile_code(
    set: &mut CodeSet,
    backend: &Backend,
    cache: Option<&Cache>,
) -> Result<(Vec<ObjectCode>, Vec<Arc<dyn CompiledCode>>), BuildError> {
    // LLVM takes the most memory, and none of the code that led here.
    MemoryRelease::next_phase();
    let kernels: Vec<&Kernel> = set.kernels.iter().collect();
    let mut objects = backend.compile(&kernels, cache, &set.cancel)?;
    let mut callables = Callables::default();
    for (symbol, compiled) in &mut set.external {
        match &mut compiled.code {
            External::Object(bytes) => {
                objects.push(ObjectCode { bytes: std::mem::take(bytes), symbols: vec![symbol.clone()] });
            }
            External::Callable(f) => callables.insert(symbol.clone(), f.clone()),
            External::Source(_) => unreachable!("sources were compiled when regions were"),
        }
    }
    let mut code = vec![in_process(&objects, &backend.target)?];
    if !callables.is_empty() {
        code.push(Arc::new(callables));
    }
    Ok((objects, code))
}

/// The operator that runs as it is, where the function is a call of one with its own parameters.
fn as_is(m: &Module, func: ExprId) -> Option<(OpId, Attrs)> {
    let f = m.func(func);
    let (op, args, attrs) = m.op_call(f.body)?;
    let own = args.iter().zip(&f.params).all(|(&a, &p)| matches!(m[a], Expr::Var(v) if v == p));
    (op.op().runs_as_is() && own && args.len() == f.params.len()).then(|| (op, attrs.clone()))
}

/// The places among a function's flattened arguments whose values decide extents within it.
fn decisive(typed: &TypedModule, f: ExprId) -> Result<Vec<usize>, Refused> {
    let m = typed.module();
    let func = m.func(f);
    let mut places: HashMap<VarId, usize> = HashMap::new();
    let mut next = 0;
    for &p in &func.params {
        places.insert(p, next);
        next += typed.var_ty(p).flatten().map_or(1, |t| t.len());
    }
    let mut found = Vec::new();
    for e in reachable(m, [func.body]) {
        let Some((op, args, attrs)) = m.op_call(e) else { continue };
        for &i in op.op().decided_by(attrs) {
            match &m[args[i]] {
                Expr::Var(v) if places.contains_key(v) => found.push(places[v]),
                Expr::Constant(_) => {}
                _ => {
                    let message = format!(
                        "`{}`: argument {i} decides extents, but is computed by the same kernel",
                        op.op().name()
                    );
                    return Err(Diagnostic::new(message).at(m.span(e).cloned()).into());
                }
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
