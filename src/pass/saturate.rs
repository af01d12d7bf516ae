//! The pass that holds all orders at once: rulesets over an e-graph, and the cheapest program of what they find.

use std::sync::Arc;

use hashbrown::HashSet;

use super::{Backend, Interpreted, Pass, PassContext, Placement};
use crate::{
    cost::{CostModel, Legal},
    diag::Refused,
    dialect,
    extract::Extractor,
    infer::infer_types,
    ir::{Expr, ExprId, Module, Name, reachable},
    partition,
    saturate::{Extracted, Grade, Limits, Rule, Ruleset, optimize_observed},
    target::Target,
};

/// Rounds of a pass whose rules carry something along the program, past one operator in each: more than programs are deep. What bounds
/// such a pass is that its rules come to an end.
pub(super) const MOVING_ROUNDS: usize = 4096;

/// What every saturation of a compilation shares.
#[derive(Clone)]
pub struct Settings {
    /// The machine that costs are of.
    pub target: Target,
    /// Where saturation stops.
    pub limits: Limits,
    /// What is cheap.
    pub cost: Arc<dyn CostModel>,
    /// Who chooses.
    pub extractor: Arc<dyn Extractor>,
    /// The loosest grade of rules that may be used.
    pub grade: Grade,
    /// The user's own rulesets; the default pipeline and passes that name them use them.
    pub rulesets: Vec<Ruleset>,
    /// Where programs run that are looked at: calibration's.
    pub backend: Arc<dyn Backend>,
    /// Rules that are not used, as `ruleset/rule`.
    pub without: Vec<Name>,
    /// Rulesets that a saturation does not use where it takes all that there are, or those that legalize a module's dialects.
    pub rulesets_off: Vec<Name>,
    /// Rulesets that a saturation uses where it takes all that there are, whatever the grade of their rules.
    pub rulesets_on: Vec<Name>,
    /// The external compilers that programs may be given to; by default none.
    pub placement: Placement,
}

impl Settings {
    /// The default cost model, extractor and limits, for a machine.
    pub fn new(target: Target) -> Settings {
        Settings {
            target,
            limits: Limits::default(),
            cost: Arc::new(crate::cost::Roofline),
            extractor: Arc::new(crate::extract::DagGreedy::default()),
            grade: Grade::Real,
            rulesets: Vec::new(),
            backend: Arc::new(Interpreted),
            without: Vec::new(),
            rulesets_off: Vec::new(),
            rulesets_on: Vec::new(),
            placement: Placement::default(),
        }
    }
}

/// What a saturation does about operators of dialects.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Dialects {
    /// Nothing that the rulesets don't say.
    Ignored,
    /// It legalizes those that can't be made code as they are, and others where that pays.
    Weighed,
    /// It legalizes all that rules can.
    Legalized,
}

/// Saturates with rulesets and extracts.
#[derive(Clone)]
pub struct Saturate {
    name: String,
    rulesets: Vec<Ruleset>,
    dialects: Dialects,
    settings: Settings,
}

impl Saturate {
    /// A saturation with these rulesets; rules of a looser grade than the settings allow are left out.
    pub fn new(name: impl Into<String>, mut rulesets: Vec<Ruleset>, settings: &Settings) -> Saturate {
        strict(&mut rulesets, settings);
        Saturate { name: name.into(), rulesets, dialects: Dialects::Ignored, settings: settings.clone() }
    }

    /// Also runs the rules that legalize whatever dialects the module holds. Their operators stay where that is cheaper and
    /// code can be made of them.
    pub fn with_dialects(self) -> Saturate {
        Saturate { dialects: Dialects::Weighed, ..self }
    }

    /// The same without some rules, and with few unions.
    fn with_fewer(&self, without: &[Name], unions: u64) -> Saturate {
        let mut fewer = self.clone();
        fewer.settings.without.extend_from_slice(without);
        fewer.settings.limits.unions = unions;
        strict(&mut fewer.rulesets, &fewer.settings);
        fewer
    }

    fn saturate(&self, module: Module, dialects: &[&str], cx: &mut PassContext) -> Result<Module, Refused> {
        if all_in_kernels(&module) {
            cx.warnings.push(format!(
                "{}: all operators are in primitive functions already, which no rule looks into: it should run before FuseOps, or \
                 after DefuseOps",
                self.name
            ));
        }
        let typed = infer_types(module)?;
        let s = &self.settings;
        let mut legalizing: Vec<Ruleset> = dialects.iter().flat_map(|d| dialect::legalization(d)).collect();
        legalizing.retain(|set| !s.rulesets_off.contains(&set.name));
        strict(&mut legalizing, s);
        let rulesets: Vec<Ruleset> = self.rulesets.iter().cloned().chain(legalizing).collect();
        let legal = Legal { model: s.cost.as_ref(), all: self.dialects == Dialects::Legalized };
        let model: &dyn CostModel = if dialects.is_empty() { s.cost.as_ref() } else { &legal };
        let mut nothing = |_: Extracted| {};
        let is_observed = cx.on_region.is_some();
        let observer: &mut dyn FnMut(Extracted) = match &mut cx.on_region {
            Some(f) => f.as_mut(),
            None => &mut nothing,
        };
        let extractor = s.extractor.as_ref();
        // Who looks at a region wants to see all of the program; the rules of dialects and of external compilers ask for the numbers of
        // constants, and for what lies around.
        let alone = is_observed || !dialects.is_empty() || !s.placement.compilers.is_empty();
        let limits = Limits { blocks: s.limits.blocks && !alone, ..s.limits.clone() };
        let done = optimize_observed(&typed, &rulesets, &limits, model, extractor, &s.target, observer);
        s.placement.compilers.iter().try_for_each(|c| partition::heed(*c))?;
        cx.warnings.extend(done.report.warnings.iter().map(|why| format!("{}: {why}", self.name)));
        cx.reports.push(done.report);
        Ok(done.module)
    }
}

/// Whether a module calls operators, but in primitive functions alone.
fn all_in_kernels(m: &Module) -> bool {
    let all = reachable(m, m.functions().map(|(_, f)| f));
    let bodies = all.iter().filter_map(|&e| match &m[e] {
        Expr::Func(f) if f.is_primitive() => Some(f.body),
        _ => None,
    });
    let inside: HashSet<ExprId> = reachable(m, bodies).into_iter().collect();
    !inside.is_empty() && all.iter().all(|e| inside.contains(e) || m.op_call(*e).is_none())
}

/// Leaves out rules of a looser grade than the settings allow, and those that they exclude.
fn strict(rulesets: &mut [Ruleset], settings: &Settings) {
    let excluded = |rule: &Rule| settings.without.iter().any(|name| rule.is_named(name));
    let fits = |rule: &Rule| rule.grade <= settings.grade || settings.rulesets_on.contains(&rule.ruleset);
    rulesets.iter_mut().for_each(|r| r.rules.retain(|rule| fits(rule) && !excluded(rule)));
}

/// The pass that makes plain operators of those of dialects: it finds out which dialects a module holds and runs their rules
/// until nothing of them is left that a rule can legalize. What then has no lowering either is refused.
pub struct Legalize(Saturate);

impl Legalize {
    /// With the limits and grades of these settings.
    pub fn new(settings: &Settings) -> Legalize {
        let saturate = Saturate::new("Legalize", Vec::new(), settings);
        Legalize(Saturate { dialects: Dialects::Legalized, ..saturate })
    }
}

impl Pass for Legalize {
    fn name(&self) -> String {
        self.0.name()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let module = self.0.run(module, cx)?;
        dialect::refuse_unlegalized(&module)?;
        Ok(module)
    }

    fn restricted(&self, without: &[Name], unions: u64) -> Option<Box<dyn Pass>> {
        Some(Box::new(Legalize(self.0.with_fewer(without, unions))))
    }
}

impl Pass for Saturate {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn rulesets(&self) -> Vec<Name> {
        self.rulesets.iter().map(|r| r.name.clone()).collect()
    }

    fn restricted(&self, without: &[Name], unions: u64) -> Option<Box<dyn Pass>> {
        Some(Box::new(self.with_fewer(without, unions)))
    }

    fn run(&self, mut module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        if self.dialects == Dialects::Ignored {
            return self.saturate(module, &[], cx);
        }
        let mut known = dialect::held_by(&module);
        if self.dialects == Dialects::Weighed || !known.is_empty() {
            module = self.saturate(module, &known, cx)?;
        }
        // Rules that are Rust code do not say beforehand of which dialects their results are.
        loop {
            let held = dialect::held_by(&module);
            let new = held.iter().filter(|d| !known.contains(*d)).count();
            if new == 0 {
                return Ok(module);
            }
            known.extend(held.into_iter().filter(|d| !known.contains(d)).collect::<Vec<_>>());
            module = self.saturate(module, &known, cx)?;
        }
    }
}
