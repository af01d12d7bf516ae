//! The pass that holds all orders at once: rulesets over an e-graph, and the cheapest program of what they find.

use std::sync::Arc;

use super::{Pass, PassContext};
use crate::{
    cost::CostModel,
    diag::Refused,
    extract::Extractor,
    infer::infer_types,
    ir::Module,
    saturate::{Grade, Limits, Ruleset, optimize},
    target::Target,
};

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
        }
    }
}

/// Saturates with rulesets and extracts.
pub struct Saturate {
    name: String,
    rulesets: Vec<Ruleset>,
    settings: Settings,
}

impl Saturate {
    /// A saturation with these rulesets; rules of a looser grade than the settings allow are left out.
    pub fn new(name: impl Into<String>, mut rulesets: Vec<Ruleset>, settings: &Settings) -> Saturate {
        for r in &mut rulesets {
            r.rules.retain(|rule| rule.grade <= settings.grade);
        }
        Saturate { name: name.into(), rulesets, settings: settings.clone() }
    }
}

impl Pass for Saturate {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let typed = infer_types(module)?;
        let s = &self.settings;
        let done = optimize(&typed, &self.rulesets, &s.limits, s.cost.as_ref(), s.extractor.as_ref(), &s.target);
        cx.reports.push(done.report);
        Ok(done.module)
    }
}
