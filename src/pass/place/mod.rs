//! Placement: which parts of a program external compilers make.
//!
//! By cost, extraction decides: what each compiler could make are e-nodes beside resat's own kernels ([`forming`]), with prices that
//! are the compilers' own, modelled or measured ([`prices`]). So one choice is made among all forms that rules have found, in which
//! layout, in which precision, in which kernels, and by whom. What was chosen is annotated; neighbours of one compiler become one
//! region where that is convex (`MergeCompilerRegions`), and regions become functions (`PartitionGraph`).
//!
//! Two simpler ways are there to compare with. *Greedy*, each operator goes to the first compiler that takes it, in regions as large as they
//! can be, before anything is optimized. *All*, the same with one compiler.

mod fastest;
mod forming;
mod modelled;
mod prices;
mod restarts;

pub use fastest::Fastest;
pub(super) use forming::NAME;

use std::{fmt, sync::Arc};

use super::Settings;
use crate::{
    cost::Timer,
    diag::Refused,
    ir::Name,
    partition::{self, ExternalCompiler},
    rules,
    saturate::Ruleset,
};

/// How parts of a program are given to external compilers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Each part to whoever makes the whole program cheapest, in one extraction together with everything else.
    #[default]
    Cost,
    /// Each operator to the first compiler that takes it, in the largest regions.
    Greedy,
    /// The same with this compiler alone.
    All(Name),
}

impl std::str::FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Strategy, String> {
        match text.split_once(':') {
            None if text == "cost" => Ok(Strategy::Cost),
            None if text == "greedy" => Ok(Strategy::Greedy),
            Some(("all", name)) if !name.is_empty() => Ok(Strategy::All(name.into())),
            _ => Err(format!("`{text}` is no placement; placements are cost, greedy and all:COMPILER")),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Strategy::Cost => f.write_str("cost"),
            Strategy::Greedy => f.write_str("greedy"),
            Strategy::All(name) => write!(f, "all:{name}"),
        }
    }
}

/// Which external compilers a program may be given to, and how that is decided. Part of [`Settings`].
#[derive(Clone, Default)]
pub struct Placement {
    /// The compilers, the preferred ones first.
    pub compilers: Vec<&'static dyn ExternalCompiler>,
    /// How.
    pub strategy: Strategy,
    /// Where what is about to be chosen is timed first; prices are modelled where there is none.
    pub machine: Option<Arc<dyn Timer>>,
}

impl Placement {
    /// Placement by cost among compilers of these names; a path of a shared library [loads](partition::load) it. Refused are names
    /// of no compiler.
    pub fn of(names: &[impl AsRef<str>]) -> Result<Placement, Refused> {
        let compilers = names.iter().map(|n| partition::find(n.as_ref())).collect::<Result<_, _>>()?;
        Ok(Placement { compilers, ..Placement::default() })
    }

    /// Whether extraction decides.
    pub fn is_by_cost(&self) -> bool {
        self.strategy == Strategy::Cost && !self.compilers.is_empty()
    }

    /// The compilers that operators are given to before anything is optimized, in order; none where extraction decides.
    pub fn at_first(&self) -> Result<Vec<&'static dyn ExternalCompiler>, Refused> {
        match &self.strategy {
            Strategy::Cost => Ok(Vec::new()),
            Strategy::Greedy => Ok(self.compilers.clone()),
            Strategy::All(name) => Ok(Placement::of(&[name.as_str()])?.compilers),
        }
    }

    /// The rulesets that form what compilers could make: their own rules, resat's kernels, and theirs.
    pub(super) fn rulesets(&self) -> Result<Vec<Ruleset>, Refused> {
        let mut sets = Vec::new();
        for compiler in &self.compilers {
            if let Some(text) = compiler.rules() {
                sets.extend(rules::load(&text.file, &text.text)?);
            }
        }
        sets.push(rules::fusion());
        sets.push(forming::ruleset(&self.compilers)?);
        Ok(sets)
    }

    /// Settings under which programs are priced with what these compilers make.
    pub(super) fn settings(&self, settings: &Settings) -> Settings {
        let prices =
            prices::Prices::new(settings.cost.clone(), &self.compilers, settings.target.clone(), self.machine.clone());
        let extractor = Arc::new(restarts::Restarts(settings.extractor.clone()));
        Settings { cost: Arc::new(prices), extractor, ..settings.clone() }
    }
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.compilers.iter().map(|c| c.name()).collect();
        f.debug_struct("Placement")
            .field("compilers", &names)
            .field("strategy", &self.strategy)
            .field("machine", &self.machine.is_some())
            .finish()
    }
}
