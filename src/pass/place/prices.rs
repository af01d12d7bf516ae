//! What a program costs whose parts several compilers make.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use hashbrown::HashMap;

use crate::{
    cost::{CostModel, Crossing, External, KernelView, NodeView, Timer, TimerError},
    infer::infer_types,
    ir::{Expr, ExprId, Module, Type},
    partition::{ExternalCompiler, Region},
    target::Target,
};

/// Seconds that the call of a region takes, as that of a kernel does.
pub(super) const CALL: f64 = 1.0e-6;

/// What a part of a region costs at least: to be there.
const LEAST: f64 = 2.0e-8;

/// The share of what was timed of a part alone that is the part's own at least, whatever models say of calls and transfers: they may
/// say too much, and a compiler whose parts seem to cost nothing gets all of them.
const OWN: f64 = 0.75;

/// How far off a guess may be, as a logarithm, where nothing like it was timed: guesses count as too high by this, less the more is
/// known. Else who was timed once and found fast would have everything, and who was guessed to be slow would never be timed.
const UNSURE: f64 = 0.5;

/// A cost model's prices, and those of external compilers.
///
/// A compiler that says what a region costs is believed; of others, the model prices a region's operators as if they were
/// kernels without a call. To leave a region costs a call and the transfer of its result; to enter it, the transfer of what is
/// given; constants were given before.
///
/// Where there is a machine to time programs on, whatever is about to be chosen is timed first, resat's kernels and others' regions
/// alike. Prices of what was not timed are then guesses, corrected by what was found of others like it, and rather too low than too
/// high, so that it is timed before something else is taken for it. What was timed is remembered by the machine.
pub(super) struct Prices {
    model: Arc<dyn CostModel>,
    compilers: Vec<&'static dyn ExternalCompiler>,
    target: Target,
    machine: Option<Arc<dyn Timer>>,
    /// Models' prices, by what is priced.
    guesses: Mutex<HashMap<String, f64>>,
    timed: Mutex<Timed>,
}

#[derive(Default)]
struct Timed {
    /// By what is priced: what the machine said; none where it can't be timed.
    seconds: HashMap<String, Option<f64>>,
    /// By maker and kind: sum of the logarithms of how far guesses were off, and their number.
    off: HashMap<(String, String), (f64, f64)>,
    /// What was not timed, and why.
    untimed: BTreeMap<String, String>,
}

impl Timed {
    /// A guess in view of how far off others were: those of its kind, and until there are some, all.
    fn corrected(&self, guess: f64, kind: &(String, String)) -> f64 {
        let (of_all, all) = self.off.values().fold((0.0, 0.0), |(s, n), k| (s + k.0, n + k.1));
        let (of_kind, n) = self.off.get(kind).copied().unwrap_or_default();
        let general = if all > 0.0 { of_all / all } else { 0.0 };
        // What is known of all counts as one more of the kind.
        let mean = (of_kind + general) / (n + 1.0);
        guess * (mean - UNSURE / (n + 1.0).sqrt()).exp()
    }
}

impl Prices {
    pub(super) fn new(
        model: Arc<dyn CostModel>,
        compilers: &[&'static dyn ExternalCompiler],
        target: Target,
        machine: Option<Arc<dyn Timer>>,
    ) -> Prices {
        let compilers = compilers.to_vec();
        Prices { model, compilers, target, machine, guesses: Mutex::default(), timed: Mutex::default() }
    }

    fn compiler(&self, name: &str) -> Option<&'static dyn ExternalCompiler> {
        self.compilers.iter().copied().find(|c| c.name() == name)
    }

    /// The price as the models know it.
    fn guess(&self, by: Option<&External>, kernel: &KernelView) -> f64 {
        let Some(by) = by else { return self.model.kernel(kernel) };
        let Some(compiler) = self.compiler(by.compiler) else { return f64::INFINITY };
        let key = key(Some(by), kernel);
        if let Some(&known) = self.guesses.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known;
        }
        let program = kernel.region(by, compiler.keeps_constants());
        let said = infer_types(program).ok().and_then(|typed| {
            let f = region_of(typed.module())?;
            compiler.cost(&Region::new(&typed, f, by.compiler, "region", &self.target.codegen()).on(&self.target))
        });
        let price = said.unwrap_or_else(|| self.model.kernel(kernel) - CALL).max(LEAST);
        self.guesses.lock().unwrap_or_else(PoisonError::into_inner).insert(key, price);
        price
    }

    fn price(&self, by: Option<&External>, kernel: &KernelView) -> f64 {
        let guess = self.guess(by, kernel);
        if self.machine.is_none() {
            return guess;
        }
        let timed = self.timed.lock().unwrap_or_else(PoisonError::into_inner);
        match (timed.seconds.get(&key(by, kernel)), by) {
            (Some(Some(seconds)), _) => return *seconds,
            // What a compiler does not make, or not so that it runs, can't be had from it.
            (Some(None), Some(_)) => return f64::INFINITY,
            _ => {}
        }
        timed.corrected(guess, &kind(by, kernel))
    }

    /// Seconds that a value takes over a region's border, beyond the call.
    fn transfer(&self, compiler: &dyn ExternalCompiler, ty: &Type) -> f64 {
        let bytes: i64 = ty.flatten().map_or(0, |all| all.iter().filter_map(|t| t.bytes()).sum());
        compiler.transfer_cost(bytes.max(0) as u64)
    }

    fn time(&self, by: Option<&External>, kernel: &KernelView, timer: &dyn Timer) -> Result<f64, TimerError> {
        let Some(by) = by else { return timer.seconds(&kernel.program()) };
        let compiler = self.compiler(by.compiler).ok_or("the compiler is not there")?;
        let keeps = compiler.keeps_constants();
        let whole = timer.seconds(&kernel.region(by, keeps))?;
        // Alone it is called and its values cross; within a larger region neither is the case.
        let args = kernel.args.iter().zip(kernel.constant).filter(|(_, constant)| !(**constant && keeps));
        let crossing: f64 = args.map(|(ty, _)| self.transfer(compiler, ty)).sum();
        let border = CALL + compiler.call_cost() + crossing + self.transfer(compiler, kernel.out());
        Ok((whole - border).max(OWN * whole).max(LEAST))
    }
}

/// The function for an external compiler that a program's `main` calls.
fn region_of(m: &Module) -> Option<ExprId> {
    let main = m.function("main")?;
    match &m[main.body] {
        Expr::Call { callee, .. } => Some(*callee),
        _ => None,
    }
}

/// What is priced, in full: who makes it, calls and types.
fn key(by: Option<&External>, kernel: &KernelView) -> String {
    format!("{by:?} {:?} {:?} {:?}", kernel.calls, kernel.args, kernel.constant)
}

/// What guesses are off alike for: the same maker's kernels around the same operator.
fn kind(by: Option<&External>, kernel: &KernelView) -> (String, String) {
    let heavy = kernel.calls.iter().find(|c| c.op.op().class().is_heavy()).or(kernel.calls.first());
    let op = heavy.map_or("", |c| c.op.op().name());
    (by.map_or("", |b| b.compiler).to_owned(), op.to_owned())
}

impl CostModel for Prices {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn wrapped(&self) -> Vec<&dyn CostModel> {
        vec![self.model.as_ref()]
    }

    fn cost(&self, node: &NodeView) -> f64 {
        self.model.cost(node)
    }

    fn kernel(&self, kernel: &KernelView) -> f64 {
        self.price(None, kernel)
    }

    fn placed(&self, by: &External, kernel: &KernelView) -> f64 {
        self.price(Some(by), kernel)
    }

    fn crossing(&self, crossing: &Crossing) -> f64 {
        let Some(compiler) = self.compiler(crossing.compiler) else { return f64::INFINITY };
        match (crossing.inwards, crossing.constant) {
            (true, true) => 0.0,
            (true, false) => self.transfer(compiler, crossing.ty),
            (false, _) => CALL + compiler.call_cost() + self.transfer(compiler, crossing.ty),
        }
    }

    fn refine(&self, by: Option<&External>, kernel: &KernelView) -> bool {
        let Some(machine) = &self.machine else { return false };
        let guess = self.guess(by, kernel);
        // What becomes no code is not worth a measurement.
        if guess <= LEAST {
            return false;
        }
        let key = key(by, kernel);
        if self.timed.lock().unwrap_or_else(PoisonError::into_inner).seconds.contains_key(&key) {
            return false;
        }
        let seconds = self.time(by, kernel, machine.as_ref());
        let mut timed = self.timed.lock().unwrap_or_else(PoisonError::into_inner);
        match &seconds {
            Ok(s) if guess > 0.0 && guess.is_finite() => {
                let (sum, n) = timed.off.entry(kind(by, kernel)).or_default();
                *sum += (s / guess).ln();
                *n += 1.0;
            }
            Ok(_) => {}
            Err(why) => {
                timed.untimed.entry(kernel.name()).or_insert_with(|| why.to_string());
            }
        }
        timed.seconds.insert(key, seconds.ok());
        true
    }

    fn notes(&self) -> Vec<String> {
        let timed = self.timed.lock().unwrap_or_else(PoisonError::into_inner);
        let untimed = timed.untimed.iter();
        untimed
            .map(|(name, why)| format!("`{name}` can't be timed: {why}"))
            .chain(self.model.notes())
            .chain(self.machine.iter().flat_map(|m| m.notes()))
            .collect()
    }
}
