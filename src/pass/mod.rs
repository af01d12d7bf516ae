//! Passes: `Module -> Module`, composed in a [`Sequential`] or in a [`Pipeline`] whose stages have names.

mod annotate_target;
mod bind_params;
mod blame;
mod computed_extents;
mod config;
mod convert_layout;
mod dead_code;
mod defuse;
mod dynamic_to_static;
mod effects;
mod eta_expand;
mod external;
mod fake_quantization;
mod fast_math;
mod fold_constant;
mod fuse;
mod inline;
mod merge_composite;
mod mixed_precision;
mod named;
mod outline;
mod pair;
mod pipeline;
mod place;
mod quantize;
mod regions;
mod registry;
mod saturate;
mod sharing;
mod spec;

use std::time::{Duration, Instant};

pub use annotate_target::{
    AnnotateTarget, Candidate, MergeCompilerRegions, PartitionFor, PartitionGraph, Taker, annotated_compilers,
    drop_default_annotations, forgotten_annotations, partition_annotated, partition_for,
};
pub use bind_params::{bind_params, unbound_weights};
pub use blame::{Blame, Same, blame};
pub use config::{BuildConfig, Edit, NewStage};
pub use convert_layout::ConvertLayout;
pub use dead_code::dead_code;
pub use defuse::{defuse, dissolve_composites};
pub use dynamic_to_static::dynamic_to_static;
#[cfg(feature = "llvm")]
pub(crate) use dynamic_to_static::{deciding, decisive, evaluated, primitive, resolve_extents, static_calls};
pub use eta_expand::eta_expand;
pub use fake_quantization::quantized_in_floats;
pub use fold_constant::fold_constant;
pub use fuse::fuse;
pub use inline::inline;
pub use merge_composite::MergeComposite;
pub use pair::pair;
pub use pipeline::{Pipeline, PipelineError};
pub use place::{Fastest, Placement, Strategy};
pub use quantize::{
    Backend, Calibrate, CalibrationMethod, Interpreted, LayerSelection, LayerStudy, Point, Prepared, Quantize,
    QuantizeOptions, Study,
};
pub use regions::{Regions, split};
use registry::make;
pub use registry::{default_pass, default_pipeline, passes, sequence, sequence_with};
pub use saturate::{Legalize, Saturate, Settings};
pub use spec::{PassSpec, SpecArg, parse_optional_specs, parse_specs};

use crate::{
    diag::Refused,
    ir::{Module, Name},
    saturate::{Extracted, Report},
};

/// What passes share: settings that they read, and what they report.
#[derive(Default)]
pub struct PassContext {
    /// One entry per pass that ran, in order.
    pub log: Vec<PassEntry>,
    /// One report per saturation, in order.
    pub reports: Vec<Report>,
    /// What users should know though the compilation goes on, as a pass that did nothing of what it is there for.
    pub warnings: Vec<String>,
    /// Called when a pass starts, with its name: for showing progress.
    pub on_start: Option<Box<dyn FnMut(&str) + Send>>,
    /// Called with every region that a saturation has extracted.
    pub on_region: Option<Box<dyn FnMut(Extracted) + Send>>,
    /// Called before a pass, with the module as it is. An error ends the compilation.
    pub before_pass: Option<BeforePass>,
    /// Called after a pass, with the module as it was before and is now. An error ends the compilation.
    pub after_pass: Option<AfterPass>,
}

impl PassContext {
    /// Says that a phase starts.
    pub fn phase(&mut self, name: &str) {
        if let Some(f) = &mut self.on_start {
            f(name);
        }
    }
}

/// Looks at what a pass is about to run over. Passes that are made of others are looked at, too, around these.
pub type BeforePass = Box<dyn FnMut(&dyn Pass, &Module) -> Result<(), Refused> + Send>;

/// Looks at what a pass did.
pub type AfterPass = Box<dyn FnMut(&dyn Pass, &Module, &Module) -> Result<(), Refused> + Send>;

/// What one pass did.
#[derive(Clone, Debug)]
pub struct PassEntry {
    /// The pass.
    pub name: String,
    /// How long it ran.
    pub time: Duration,
    /// Expressions before and after.
    pub expressions: (usize, usize),
    /// Which of [`PassContext::reports`] are of its saturations.
    pub reports: std::ops::Range<usize>,
}

/// A transformation of modules. Passes never edit: they give a new module.
pub trait Pass: Send + Sync {
    /// The name, as the command line and reports use it, arguments included.
    fn name(&self) -> String;

    /// The transformed module.
    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused>;

    /// The rulesets that it runs whatever the module holds, where it is made of rulesets.
    fn rulesets(&self) -> Vec<Name> {
        Vec::new()
    }

    /// The same pass with fewer rules: without those named (as `ruleset/rule`), and stopping after so many unions. `None` for passes
    /// that have no rules: to find out which of them is at fault when a result is wrong.
    fn restricted(&self, _without: &[Name], _unions: u64) -> Option<Box<dyn Pass>> {
        None
    }
}

/// A pass of a name and a function.
pub struct FnPass<F>(pub &'static str, pub F);

impl<F: Fn(Module) -> Result<Module, Refused> + Send + Sync> Pass for FnPass<F> {
    fn name(&self) -> String {
        self.0.to_owned()
    }

    fn run(&self, module: Module, _: &mut PassContext) -> Result<Module, Refused> {
        (self.1)(module)
    }
}

/// Passes one after another.
#[derive(Default)]
pub struct Sequential(pub Vec<Box<dyn Pass>>);

impl Pass for Sequential {
    fn name(&self) -> String {
        self.0.iter().map(|p| p.name()).collect::<Vec<_>>().join(",")
    }

    fn run(&self, mut module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        for pass in &self.0 {
            module = run_logged(pass.as_ref(), module, cx)?;
        }
        Ok(module)
    }
}

/// Runs a pass and notes in the context what it did.
pub fn run_logged(pass: &dyn Pass, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
    let name = pass.name();
    cx.phase(&name);
    if let Some(f) = &mut cx.before_pass {
        f(pass, &module)?;
    }
    let (start, before, reports) = (Instant::now(), module.len(), cx.reports.len());
    let original = cx.after_pass.is_some().then(|| module.clone());
    let module = pass.run(module, cx)?;
    cx.log.push(PassEntry {
        name,
        time: start.elapsed(),
        expressions: (before, module.len()),
        reports: reports..cx.reports.len(),
    });
    if let (Some(f), Some(original)) = (&mut cx.after_pass, original) {
        f(pass, &original, &module)?;
    }
    Ok(module)
}
