//! What most programs that use resat need, in one line: `use resat::prelude::*;`. Everything else is in the module that it comes from.
//!
//! - To bring a model: [`load`], [`Options`], [`build()`], [`Runnable`].
//! - To compose passes: [`sequence`], [`default_pipeline`], [`Pipeline`], [`Pass`], [`FnPass`], [`PassContext`].
//! - To plug in costs and extractors: [`CostModel`], [`Extractor`], and those that resat has of both.
//!
//! ```
//! use resat::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "#[version = \"0.0.5\"] def @main(%x: Tensor[(2, 3), float32]) { nn.relu(add(%x, 0f)) }";
//! let module = parse_module("relu.relay", text)?;
//! let settings = Settings::new(Target::host());
//! let mut pipeline = default_pipeline(&settings)?;
//! pipeline.run_before("fuse", "mine", Box::new(sequence("SimplifyExpr", &settings)?))?;
//! # #[cfg(feature = "llvm")]
//! # {
//! let mut options = Options::new(settings);
//! options.passes = Some(Box::new(pipeline));
//! let built = build(module, &[], options)?;
//! let x = Tensor::from_slice(&[2, 3], &[-1f32, 2., -3., 4., -5., 6.]);
//! assert_eq!(built.executable.run(&[x])?[0].as_slice::<f32>(), [0., 2., 0., 4., 0., 6.]);
//! # }
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "llvm")]
pub use crate::driver::{BuildError, Built, Options, Runnable, build};
pub use crate::{
    cost::{CostModel, Flops, NodeCount, Roofline},
    diag::Refused,
    extract::{DagGreedy, Extractor, Ilp, Problem, TreeGreedy},
    frontend::{LoadOptions, Model, load},
    infer::{TypedModule, infer_types},
    ir::{Module, Name},
    pass::{
        AfterPass, BeforePass, BuildConfig, ConvertLayout, FnPass, Pass, PassContext, Pipeline, Sequential, Settings,
        bind_params, default_pipeline, sequence,
    },
    relay::text::{parse_module, print_module},
    rules::load as load_rules,
    saturate::Ruleset,
    target::Target,
    tensor::{DType, Tensor},
};
