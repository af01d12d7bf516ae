//! Which rule is at fault, where a program computes something else after its passes than before.
//!
//! Equalities are counted as rules find them, and a saturation can be stopped after any number of them. The rule of the first one after
//! which the program is wrong is left out, until the program is right; so a wrong rule is found by its effect, by bisection.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Pass, PassContext};
use crate::{
    diag::{Diagnostic, Refused},
    interp,
    ir::{Module, Name},
    tensor::{Tensor, Value},
};

/// Whether two lists of results are equal, as far as whoever compares them wants.
pub type Same = Arc<dyn Fn(&[Tensor], &[Tensor]) -> bool + Send + Sync>;

/// What is at fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Blame {
    /// The first pass after which the program computes something else.
    pub pass: String,
    /// Rules without which that pass does no harm, as `ruleset/rule`: all of them have to go. None where the pass has no rules,
    /// or does harm without any.
    pub rules: Vec<Name>,
    /// Other rules that it takes to come to the difference: without one of them it does not show either.
    pub helpers: Vec<Name>,
    /// How often the pass was run to find out.
    pub runs: usize,
}

impl std::fmt::Display for Blame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |names: &[Name]| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
        match self.rules.as_slice() {
            [] => write!(f, "pass {} is at fault", self.pass)?,
            [rule] => write!(f, "rule `{rule}` is at fault, in pass {}", self.pass)?,
            rules => write!(f, "rules {} are at fault, in pass {}", list(rules), self.pass)?,
        }
        if !self.helpers.is_empty() {
            write!(f, ", or one of those that it needs to show: {}", list(&self.helpers))?;
        }
        match self.runs {
            0 => Ok(()),
            n => write!(f, " (found in {n} runs)"),
        }
    }
}

/// Runs passes over a module, compares by the interpreter what it computes of some inputs after each, and finds out what is at
/// fault for the first difference: the pass and, by bisection over the equalities that its rules teach, the rules. `None` where
/// there is no difference. Refused is what passes or the interpreter refuse of the module as it came.
///
/// Time limits make saturations differ from run to run: passes under such a limit should not meet it here.
pub fn blame(passes: &dyn Pass, module: &Module, inputs: &[Value], same: &Same) -> Result<Option<Blame>, Refused> {
    let want = interp::run_flat(module, "main", inputs.to_vec())?;
    let found: Arc<Mutex<Option<Blame>>> = Arc::default();
    let (result, inputs, same) = (found.clone(), inputs.to_vec(), same.clone());
    let after = move |pass: &dyn Pass, before: &Module, after: &Module| {
        let trial = Trial { before, inputs: &inputs, want: &want, same: &same };
        if !trial.differs(after) {
            return Ok(());
        }
        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(trial.blame(pass));
        Err(Diagnostic::new("what follows the pass at fault is of no interest").into())
    };
    let mut cx = PassContext { after_pass: Some(Box::new(after)), ..PassContext::default() };
    // The sequence itself is a pass, too: one that is no sequence is looked at all the same.
    let outcome = super::run_logged(passes, module.clone(), &mut cx);
    let blame = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (blame, outcome) {
        (Some(blame), _) => Ok(Some(blame)),
        (None, outcome) => outcome.map(|_| None),
    }
}

struct Trial<'a> {
    before: &'a Module,
    inputs: &'a [Value],
    want: &'a [Tensor],
    same: &'a Same,
}

/// What a run of the pass with fewer rules showed.
struct Outcome {
    differs: bool,
    unions: u64,
    last: Option<Name>,
    /// Rules that taught something.
    taught: Vec<Name>,
}

/// More rules than this are not blamed together.
const MOST_RULES: usize = 16;

impl Trial<'_> {
    /// Whether a module computes something else, or nothing.
    fn differs(&self, module: &Module) -> bool {
        match interp::run_flat(module, "main", self.inputs.to_vec()) {
            Ok(got) => !(self.same)(self.want, &got),
            Err(_) => true,
        }
    }

    /// `None` where the pass can't be run with fewer rules.
    fn run(&self, pass: &dyn Pass, without: &[Name], unions: u64, runs: &mut usize) -> Option<Outcome> {
        let fewer = pass.restricted(without, unions)?;
        *runs += 1;
        let mut cx = PassContext::default();
        // What is refused for want of rules does not compute anything wrong.
        let differs = fewer.run(self.before.clone(), &mut cx).is_ok_and(|m| self.differs(&m));
        let taught = cx.reports.iter().flat_map(|r| &r.rules).filter(|r| r.unions > 0);
        Some(Outcome {
            differs,
            unions: cx.reports.iter().map(|r| r.unions() as u64).max().unwrap_or(0),
            last: cx.reports.iter().rev().find_map(|r| r.last_rule.clone()),
            taught: taught.map(|r| format!("{}/{}", r.ruleset, r.rule).into()).collect(),
        })
    }

    fn blame(&self, pass: &dyn Pass) -> Blame {
        let mut runs = 0;
        let (rules, helpers) = self.rules(pass, &mut runs).unwrap_or_default();
        Blame { pass: pass.name(), rules, helpers, runs }
    }

    fn rules(&self, pass: &dyn Pass, runs: &mut usize) -> Option<(Vec<Name>, Vec<Name>)> {
        if self.run(pass, &[], 0, runs)?.differs {
            return None;
        }
        let mut without: Vec<Name> = Vec::new();
        let mut helpers: Vec<Name> = Vec::new();
        let mut all = self.run(pass, &[], u64::MAX, runs)?;
        while all.differs && without.len() < MOST_RULES {
            let first = self.first_wrong(pass, &without, all.unions, runs)?;
            let rule = first.last?;
            if without.is_empty() {
                helpers = first.taught.into_iter().filter(|r| *r != rule).collect();
            }
            without.push(rule);
            all = self.run(pass, &without, u64::MAX, runs)?;
        }
        if all.differs {
            return None;
        }
        // The first ones may have been but ways to what the later ones do.
        let mut at = 0;
        while without.len() > 1 && at < without.len() {
            let mut fewer = without.clone();
            fewer.remove(at);
            match self.run(pass, &fewer, u64::MAX, runs)?.differs {
                true => at += 1,
                false => without = fewer,
            }
        }
        helpers.retain(|r| !without.contains(r));
        let mut needed = Vec::new();
        for rule in helpers.into_iter().take(MOST_RULES) {
            if !self.run(pass, std::slice::from_ref(&rule), u64::MAX, runs)?.differs {
                needed.push(rule);
            }
        }
        Some((without, needed))
    }

    /// The run with as few unions as make a difference.
    fn first_wrong(&self, pass: &dyn Pass, without: &[Name], unions: u64, runs: &mut usize) -> Option<Outcome> {
        let (mut right, mut wrong) = (0, unions.max(1));
        let mut outcome = self.run(pass, without, wrong, runs)?;
        if !outcome.differs {
            return None;
        }
        while wrong - right > 1 {
            let middle = right + (wrong - right) / 2;
            let at = self.run(pass, without, middle, runs)?;
            if at.differs {
                (wrong, outcome) = (middle, at);
            } else {
                right = middle;
            }
        }
        Some(outcome)
    }
}
