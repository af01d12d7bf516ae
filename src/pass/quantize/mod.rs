//! Quantization after training: which layers, by what scales, and at what loss.
//!
//! [`Quantize`] looks at a program's layers (convolutions, dense layers and matrix multiplications of floats), runs it on samples to see what
//! ranges their operands have, marks the operands by `quantize.site` with the scales that follow, and lets rulesets do the rest:
//! `quantization` makes a quantized tensor and back of each mark, `fake-quantization` integer arithmetic of what is between.
//! Where an error is given that the result may have, each layer is a choice: what quantizing it alone does to the result is
//! measured first, and is the price in errors that its mark carries through the e-graph; extraction then finds the cheapest
//! program within the error, the layers that it has quantized are, and what the result's error is on the samples is measured again.
//!
//! Everything is deterministic, but for the time limits of searches.
//!
//! What is made of constants alone is no rule's root. Weights are therefore quantized by a rule on their layer, which sees the marks of
//! both operands.

mod backend;
mod calibrate;
mod choose;
mod layers;
mod options;
mod ranges;
mod report;
mod samples;
mod sites;

use std::sync::Arc;

pub use backend::{Backend, Interpreted, Prepared};
pub use layers::Selection as LayerSelection;
pub use options::Options as QuantizeOptions;
pub use ranges::Method as CalibrationMethod;
pub use report::{LayerStudy, Point, Study};

use self::{
    layers::{LAYERS, Layer, layers},
    sites::{Site, marked},
};
use super::{Pass, PassContext, PassSpec, Saturate, Settings, dead_code, fold_constant, inline, sequence};
use crate::{
    cost::{CostModel, Head, NodeView},
    diag::{Diagnostic, Refused, nearest},
    infer::{TypedModule, infer_types},
    ir::{Module, Name},
    rules,
    saturate::{Grade, Ruleset},
    tensor::Tensor,
};

/// The pass.
pub struct Quantize {
    name: String,
    options: QuantizeOptions,
    samples: Vec<(Name, Tensor)>,
    settings: Settings,
}

impl Quantize {
    /// The pass with these options. Refuses options that do not fit each other, and samples that can't be read.
    pub fn new(options: QuantizeOptions, settings: &Settings) -> Result<Quantize, Refused> {
        let complaints = options.complaints();
        if !complaints.is_empty() {
            let tell = |e: String| Diagnostic::new(format!("pass `Quantize`: {e}"));
            return Err(Refused(complaints.into_iter().map(tell).collect()));
        }
        let mut samples = match &options.calibration {
            Some(path) => samples::read(path)?,
            None => Vec::new(),
        };
        samples.extend(options.samples.iter().cloned());
        // Whoever quantizes asks for no infinities.
        let settings = Settings { grade: settings.grade.max(Grade::Finite), ..settings.clone() };
        Ok(Quantize { name: "Quantize".into(), options, samples, settings })
    }

    /// The pass that a user has written.
    pub(super) fn from_spec(spec: &PassSpec, settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
        Ok(Box::new(Quantize::new(QuantizeOptions::parse(spec)?, settings)?))
    }

    /// What quantizing each layer costs in errors and gains in time, and the programs between all floats and all integers that are
    /// worth a thought. The options' `max_error` is not looked at.
    pub fn study(&self, module: Module) -> Result<Study, Refused> {
        let plan = self.plan(module, &mut PassContext::default())?;
        choose::study(&plan, &self.settings)
    }

    /// The program in the form in which its layers are looked at, with what calibration says of them.
    fn plan(&self, module: Module, cx: &mut PassContext) -> Result<Plan, Refused> {
        let module = infer_types(inline(&module)?)?;
        let written = layers(&module);
        let module = self.simplified(module.into_module(), cx)?;
        let module = infer_types(module)?;
        let mut found = layers(&module);
        // Simplifying keeps layers in order but not what their weights were called.
        if found.len() == written.len() && found.iter().zip(&written).all(|(a, b)| a.op == b.op) {
            found.iter_mut().zip(written).for_each(|(f, w)| (f.names, f.span) = (w.names, w.span));
        }
        let strangers = self.options.selection.strangers(&found);
        if !strangers.is_empty() {
            let names: Vec<&str> = found.iter().flat_map(|l| &l.names).map(Name::as_str).collect();
            let tell = |s: &&str| {
                let d = Diagnostic::new(format!("there is no layer `{s}` to skip; there are {} layers", found.len()));
                match nearest(s, names.iter().copied()) {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d,
                }
            };
            return Err(Refused(strangers.iter().map(tell).collect()));
        }
        let runs = match self.options.has_samples() {
            true => samples::runs(&module, &self.samples)?,
            false => Vec::new(),
        };
        let chosen: Vec<usize> = (0..found.len()).filter(|&n| self.options.selection.holds(n, &found[n])).collect();
        let backend = self.settings.backend.as_ref();
        let sites = calibrate::sites(&module, &found, &chosen, &self.options, &runs, backend)?;
        Ok(Plan { module, layers: found, sites, runs })
    }

    /// Says so where there is nothing to quantize, and why.
    fn warn_of_nothing(&self, plan: &Plan, cx: &mut PassContext) {
        if !plan.sites.is_empty() {
            return;
        }
        let why = match (plan.layers.len(), layers::inside(&plan.module)) {
            (0, 0) => format!("`@main` has no layer of float32 ({})", LAYERS.join(", ")),
            (0, n) => format!(
                "its layers ({n}) are inside functions or branches alone; it goes before passes that group operators or convert \
                 layouts, such as `FuseOps` and `default`"
            ),
            (n, _) => format!("none of the {n} layers is chosen (they are numbered from 0)"),
        };
        cx.warnings.push(format!("{} quantizes nothing: {why}", self.name));
    }

    /// Without what stands between layers and their operands: normalization is arithmetic, scales are in the weights, and what
    /// constants give is known.
    fn simplified(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let wanted = ["simplify-inference", "fold-scale-bias"];
        let rulesets = rules::general().into_iter().filter(|r| wanted.contains(&r.name.as_str())).collect();
        let module = Saturate::new("Quantize(simplify)", rulesets, &self.settings).run(module, cx)?;
        Ok(dead_code(&fold_constant(&module)?))
    }

    /// The program with these places quantized.
    fn quantized(&self, plan: &Plan, sites: &[Site], cx: &mut PassContext) -> Result<Module, Refused> {
        let module = marked(plan.module.module(), sites);
        let cost = Arc::new(Marked(self.settings.cost.clone()));
        let settings = Settings { cost, grade: Grade::Approx, ..self.settings.clone() };
        let module =
            Saturate::new("Quantize(quantization)", vec![ruleset("quantization")], &settings).run(module, cx)?;
        match self.options.integer {
            true => fold_constant(&sequence("FakeQuantizationToInteger", &self.settings)?.run(module, cx)?),
            false => Ok(module),
        }
    }
}

impl Pass for Quantize {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let plan = self.plan(module, cx)?;
        self.warn_of_nothing(&plan, cx);
        match self.options.max_error {
            _ if plan.sites.is_empty() => Ok(plan.module.into_module()),
            None => self.quantized(&plan, &plan.sites, cx),
            Some(limit) => {
                choose::within(&plan, limit, &self.settings, cx, &|sites, cx| self.quantized(&plan, sites, cx))
            }
        }
    }
}

/// The pass that marks what `Quantize` would quantize, for rulesets to make of it what they will: with the error of each layer, where
/// there are samples to measure it.
pub struct Calibrate(Quantize);

impl Calibrate {
    /// The pass that a user has written. It takes the arguments of `Quantize`, but for those that say what becomes of the marks.
    pub(super) fn from_spec(spec: &PassSpec, settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
        Ok(Box::new(Calibrate::with_samples(spec, None, settings)?))
    }

    /// The pass with these arguments, and samples that are at hand.
    pub fn with_samples(
        spec: &PassSpec,
        samples: Option<Vec<(Name, Tensor)>>,
        settings: &Settings,
    ) -> Result<Calibrate, Refused> {
        let odd = spec.args.iter().filter_map(|a| a.name.as_deref()).find(|n| ["max_error", "integer"].contains(n));
        if let Some(odd) = odd {
            let d = Diagnostic::new(format!("pass `{}` marks alone: it takes no `{odd}`", spec.name));
            return Err(d.at(Some(spec.span.clone())).help("`Quantize` does").into());
        }
        let quantize = Quantize::new(QuantizeOptions::parse_with(spec, samples)?, settings)?;
        Ok(Calibrate(Quantize { name: "Calibrate".into(), ..quantize }))
    }
}

impl Pass for Calibrate {
    fn name(&self) -> String {
        self.0.name()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let plan = self.0.plan(module, cx)?;
        self.0.warn_of_nothing(&plan, cx);
        match plan.sites.is_empty() {
            true => Ok(plan.module.into_module()),
            false => choose::marked_with_errors(&plan, &self.0.settings),
        }
    }
}

/// A program whose layers are known, and what calibration saw of them.
struct Plan {
    module: TypedModule,
    layers: Vec<Layer>,
    sites: Vec<Site>,
    /// The samples: a tensor per parameter.
    runs: Vec<Vec<Tensor>>,
}

/// A shipped ruleset that runs by request.
fn ruleset(name: &str) -> Ruleset {
    let found = rules::by_request().into_iter().find(|r| r.name.as_str() == name);
    found.expect("the ruleset is shipped")
}

/// Prices under which marks give way to what they ask for.
struct Marked(Arc<dyn CostModel>);

/// More than any program costs, by seconds, operations or nodes.
const GIVES_WAY: f64 = 1e9;

impl CostModel for Marked {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn wrapped(&self) -> Vec<&dyn CostModel> {
        vec![self.0.as_ref()]
    }

    fn reported(&self, _price: f64) -> Option<f64> {
        None
    }

    fn cost(&self, node: &NodeView) -> f64 {
        let price = self.0.cost(node);
        match node.head {
            Head::Op(op, _) if op.dialect() == Some("quantize") => price + GIVES_WAY,
            _ => price,
        }
    }
}
