//! State: inputs that a program gives back as outputs, for its next run. They are updated where they lie where the program allows it.

use std::borrow::Cow;

use hashbrown::HashMap;

use super::{
    build::Built,
    profile::{Profile, Reader},
    runnable::Runnable,
    state_order::{in_memory, inverse, ordered},
};
use crate::{
    diag::{Diagnostic, Refused, nearest},
    infer::TypedModule,
    ir::{Dim, Module, TensorType, Type, input_names, output_names},
    target::Target,
    tensor::{Shape, Tensor, within_memory},
};

/// An input that the next run takes from an output of this one.
#[derive(Clone, Debug, PartialEq)]
pub struct StatePair {
    /// The input's number, tuples flattened depth first.
    pub input: usize,
    /// The output's number, likewise.
    pub output: usize,
    /// What the input is called.
    pub name: String,
    /// The input's type, as the model has it.
    pub ty: TensorType,
    /// The model's axes in the order in which they lie in memory, the outermost first, where that is another one: see
    /// [`Options::reorder_state`](super::Options::reorder_state).
    pub order: Option<Vec<usize>>,
}

impl StatePair {
    /// The type of what lies in memory.
    fn lies(&self) -> TensorType {
        self.order.as_ref().map_or_else(|| self.ty.clone(), |order| in_memory(&self.ty, order))
    }
}

/// The pairs of inputs and outputs of those names. Outputs are called by the model's names, or by their numbers where it has none.
///
/// Refuses names that nothing has, names that are given twice, and pairs whose types differ but for extents that are unknown.
pub(super) fn pairs(typed: &TypedModule, asked: &[(String, String)]) -> Result<Vec<StatePair>, Refused> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let m: &Module = typed.module();
    let inputs = named_inputs(typed, "state")?;
    let outputs = flat(typed.ty(typed.entry("main")?.body), "state", "the result")?;
    let names = output_names(m).filter(|names| names.len() == outputs.len());
    let names: Vec<String> = names.unwrap_or_else(|| (0..outputs.len()).map(|i| i.to_string()).collect());
    let mut found: Vec<StatePair> = Vec::new();
    for (from, to) in asked {
        let input = inputs.iter().position(|(names, ..)| names.contains(from)).ok_or_else(|| {
            no_such("input", from, inputs.iter().flat_map(|(names, ..)| names.last()).map(String::as_str).collect())
        })?;
        let output = names.iter().position(|n| n == to);
        let output = output.ok_or_else(|| no_such("output", to, names.iter().map(String::as_str).collect()))?;
        let twice = |what: &str, name: &str| Diagnostic::new(format!("state: {what} `{name}` is named twice"));
        if found.iter().any(|p| p.input == input) {
            return Err(twice("input", from).into());
        }
        if found.iter().any(|p| p.output == output) {
            return Err(twice("output", to).into());
        }
        let (given, made) = (&inputs[input].2, &outputs[output]);
        if !fits(given, made) {
            let message = format!("state `{from}={to}`: the input is {given}, but the output is {made}");
            return Err(Diagnostic::new(message).into());
        }
        found.push(StatePair { input, output, name: from.clone(), ty: given.clone(), order: None });
    }
    Ok(found)
}

/// Whether an output of that type may be the input at the next run: extents that are unknown may turn out to be equal.
fn fits(given: &TensorType, made: &TensorType) -> bool {
    let may_be = |(a, b): (&Dim, &Dim)| a.known().zip(b.known()).is_none_or(|(a, b)| a == b);
    given.dtype == made.dtype && given.rank() == made.rank() && given.shape.iter().zip(made.shape.iter()).all(may_be)
}

/// Refuses state whose types passes have made others: its memory is read at one run as the last one wrote it.
pub(super) fn still_fit(typed: &TypedModule, pairs: &[StatePair]) -> Result<(), Refused> {
    if pairs.is_empty() {
        return Ok(());
    }
    let inputs = named_inputs(typed, "state")?;
    let outputs = flat(typed.ty(typed.entry("main")?.body), "state", "the result")?;
    for pair in pairs {
        if let (Some((_, _, given)), Some(made)) = (inputs.get(pair.input), outputs.get(pair.output))
            && !fits(given, made)
        {
            let message =
                format!("state `{}`: after the passes the input is {given}, but the output is {made}", pair.name);
            let d = Diagnostic::new(message);
            return Err(d.help("a pass that changes types may keep those of results: `keep_orig_output_dtype=true` of ToMixedPrecision").into());
        }
    }
    Ok(())
}

/// The tensors that a program takes, tuples flattened depth first: names (the model's own last), the number of the parameter, and type.
pub(super) fn named_inputs(typed: &TypedModule, asked: &str) -> Result<Vec<(Vec<String>, usize, TensorType)>, Refused> {
    let m: &Module = typed.module();
    let own = input_names(m).unwrap_or_default();
    let mut inputs = Vec::new();
    for (i, &p) in typed.entry("main")?.params.iter().enumerate() {
        let name = m.var(p).name.to_string();
        let tensors = flat(typed.var_ty(p), asked, "a parameter")?;
        let is_tensor = typed.var_ty(p).as_tensor().is_some();
        for (k, t) in tensors.into_iter().enumerate() {
            let names = match is_tensor {
                true => [Some(name.clone()), own.get(i).cloned()].into_iter().flatten().collect(),
                false => vec![format!("{name}.{k}")],
            };
            inputs.push((names, i, t));
        }
    }
    Ok(inputs)
}

fn flat(ty: &Type, asked: &str, what: &str) -> Result<Vec<TensorType>, Refused> {
    ty.flatten().ok_or_else(|| {
        Diagnostic::new(format!("{asked}: {what} is {ty}, but such programs take and give tensors")).into()
    })
}

fn no_such(what: &str, name: &str, known: Vec<&str>) -> Refused {
    let d = Diagnostic::new(format!("state: the program has no {what} `{name}`; it has {}", known.join(", ")));
    match nearest(name, known) {
        Some(near) => d.help(format!("did you mean `{near}`?")).into(),
        None => d.into(),
    }
}

/// Runs of a program one after another, each of which begins with the state that the last one left.
///
/// State begins as zeros; extents that are unknown begin as 0, but for those whose name an input's extent has as well: of a batch, say. Where an
/// output is the state and something after it in memory (a concatenation along an axis before which all extents are 1, or which may come first), only what is new is computed and stored. Where a kernel may write each
/// element where it reads it, or nothing reads the old state any more when the new one is written, the new one takes its place. Else two
/// buffers take turns. Nothing is copied but where state outgrows its memory, which then doubles.
pub struct Stateful<'a> {
    program: &'a Runnable,
    pairs: &'a [StatePair],
    /// How many inputs the program has, state among them.
    inputs: usize,
    kept: Kept,
}

/// What runs have kept, by itself: for those who can't hold on to the program meanwhile. See [`Stateful::into_kept`].
#[derive(Debug, Default)]
pub struct Kept {
    tensors: Vec<Tensor>,
    /// Which of them nobody has given, and no run has made.
    begin: Vec<bool>,
    /// What was state before, where the new one could not take its place.
    spare: Vec<Option<Tensor>>,
}

impl Built {
    /// Runs that keep what [`Options::state`](super::Options::state) named, from its beginning on.
    pub fn stateful(&self) -> Stateful<'_> {
        let first = |p: &StatePair| {
            let shape: Shape = p.lies().shape.iter().map(|d| d.known().map_or(0, |n| n as usize)).collect();
            Tensor::zeros(p.ty.dtype, &shape)
        };
        let (tensors, count) = (self.state.iter().map(first).collect(), self.state.len());
        self.resumed(Kept { tensors, begin: vec![true; count], spare: vec![None; count] })
    }

    /// Runs that go on with what earlier runs of this program have kept; from its beginning on where that is of another program.
    pub fn resumed(&self, kept: Kept) -> Stateful<'_> {
        if kept.tensors.len() != self.state.len() {
            return self.stateful();
        }
        Stateful { program: &self.executable, pairs: &self.state, inputs: self.parameters.iter().sum(), kept }
    }
}

impl Stateful<'_> {
    /// What is kept, by itself: [`Built::resumed`] goes on with it.
    pub fn into_kept(self) -> Kept {
        self.kept
    }

    /// The state of that input, which shares its elements with the next run as long as nobody writes them: who holds on to a clone has the next
    /// run copy it. State that lies in another order than the model has is copied here. None where no such input is kept.
    pub fn get(&self, input: &str) -> Option<Cow<'_, Tensor>> {
        let at = self.pairs.iter().position(|p| p.name == input)?;
        Some(match &self.pairs[at].order {
            Some(order) => Cow::Owned(ordered(&self.kept.tensors[at], &inverse(order))),
            None => Cow::Borrowed(&self.kept.tensors[at]),
        })
    }

    /// Gives the state of an input. Refuses what does not fit its type.
    pub fn set(&mut self, input: &str, value: Tensor) -> Result<(), Refused> {
        let Some(at) = self.pairs.iter().position(|p| p.name == input) else {
            return Err(no_such("state", input, self.pairs.iter().map(|p| p.name.as_str()).collect()));
        };
        let ty = &self.pairs[at].ty;
        let fits = ty.dtype == value.dtype()
            && ty.rank() == value.shape().len()
            && ty.shape.iter().zip(value.shape()).all(|(d, &n)| d.known().is_none_or(|d| d == n as i64));
        if !fits {
            let found = format!("{} of shape {:?}", value.dtype(), value.shape());
            return Err(Diagnostic::new(format!("state `{input}` should be {ty}, but is {found}")).into());
        }
        self.kept.tensors[at] = match &self.pairs[at].order {
            Some(order) => ordered(&value, order),
            None => value,
        };
        self.kept.begin[at] = false;
        Ok(())
    }

    /// Runs once. Inputs are those that are not state, in order, and so are the outputs.
    ///
    /// Refuses what [`Runnable::run`] does; the state is then as it was, unless a function of an external compiler failed while it was
    /// being written.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        self.once(inputs, |program, all, numbers, spare| Ok((program.run_keeping(all, numbers, spare)?, ())))
            .map(|(outputs, ())| outputs)
    }

    /// Where the time of so many runs goes, at least of one: each begins with the state that the one before left. The system counts in them where
    /// that is asked for.
    ///
    /// Refuses what [`Stateful::run`] does, and programs that are no plain sequence of calls for these inputs.
    pub fn profile(
        &mut self,
        inputs: &[Tensor],
        runs: usize,
        target: Target,
        counts: bool,
    ) -> Result<Profile, Refused> {
        let (mut timed, mut reader) = (Vec::new(), Reader::new(counts));
        loop {
            let is_last = timed.len() + 1 >= runs;
            let (_, (run, estimates)) = self.once(inputs, |program, all, numbers, spare| {
                program.profile_keeping(all, numbers, spare, is_last, &mut reader)
            })?;
            timed.push(run);
            if let Some(estimates) = estimates {
                return Ok(Profile::of_runs(timed, &estimates, target, &reader));
            }
        }
    }

    /// Gives state that begins the extents whose names other inputs' extents have, or those of state that does not begin.
    fn begin(&mut self, inputs: &[Tensor]) -> Result<(), Refused> {
        let names = self.program.extent_names();
        let Kept { tensors, begin, .. } = &mut self.kept;
        if names.is_empty() || !begin.contains(&true) {
            return Ok(());
        }
        let mut given = inputs.iter();
        let mut known: HashMap<&str, usize> = HashMap::new();
        for (n, names) in (0..self.inputs).zip(names) {
            let tensor = match self.pairs.iter().position(|p| p.input == n) {
                Some(k) if begin[k] => continue,
                Some(k) => Some(&tensors[k]),
                None => given.next(),
            };
            let shape = tensor.map_or(&[][..], Tensor::shape);
            known.extend(
                names.iter().map(String::as_str).zip(shape.iter().copied()).filter(|(name, _)| !name.is_empty()),
            );
        }
        for (k, pair) in self.pairs.iter().enumerate().filter(|(k, _)| begin[*k]) {
            let name = |axis: usize| Some(names.get(pair.input)?.get(axis)?.as_str());
            let extent = |(axis, d): (usize, &Dim)| match d.known() {
                Some(n) => n as usize,
                None => name(axis).and_then(|name| known.get(name)).copied().unwrap_or(0),
            };
            let shape: Shape = pair.lies().shape.iter().enumerate().map(extent).collect();
            if tensors[k].shape() != &shape[..] {
                let zeros = within_memory(|| Tensor::zeros(pair.ty.dtype, &shape));
                tensors[k] = zeros.map_err(|e| Diagnostic::new(format!("state `{}`: {e}", pair.name)))?;
            }
        }
        Ok(())
    }

    /// Runs once by a function that takes the program, all inputs, pairs of numbers of inputs and outputs that are state, and spare memory for these.
    fn once<T>(
        &mut self,
        inputs: &[Tensor],
        run: impl FnOnce(
            &Runnable,
            &mut [Tensor],
            &[(usize, usize)],
            &mut [Option<Tensor>],
        ) -> Result<(Vec<Tensor>, T), Refused>,
    ) -> Result<(Vec<Tensor>, T), Refused> {
        let wanted = self.inputs - self.pairs.len();
        if inputs.len() != wanted {
            let message =
                format!("the program takes {wanted} inputs beside its state, but {} were given", inputs.len());
            return Err(Diagnostic::new(message).into());
        }
        self.begin(inputs)?;
        let Kept { tensors, begin, spare } = &mut self.kept;
        let mut given = inputs.iter().cloned();
        let mut all: Vec<Tensor> = Vec::with_capacity(self.inputs);
        for n in 0..self.inputs {
            let state = self.pairs.iter().position(|p| p.input == n);
            // Whoever else held it would have it copied.
            all.extend(
                state.map(|k| std::mem::replace(&mut tensors[k], nothing(&self.pairs[k]))).or_else(|| given.next()),
            );
        }
        let numbers: Vec<(usize, usize)> = self.pairs.iter().map(|p| (p.input, p.output)).collect();
        let done = run(self.program, &mut all, &numbers, spare);
        let (mut outputs, found) = match done {
            Ok(done) => done,
            Err(e) => {
                for (k, pair) in self.pairs.iter().enumerate() {
                    tensors[k] = std::mem::replace(&mut all[pair.input], nothing(pair));
                }
                return Err(e);
            }
        };
        let mut taken: Vec<usize> = numbers.iter().map(|n| n.1).collect();
        for (k, pair) in self.pairs.iter().enumerate() {
            tensors[k] = outputs[pair.output].clone();
        }
        begin.fill(false);
        taken.sort_unstable();
        taken.into_iter().rev().for_each(|o| drop(outputs.remove(o)));
        Ok((outputs, found))
    }
}

fn nothing(pair: &StatePair) -> Tensor {
    Tensor::zeros(pair.ty.dtype, &[0])
}
