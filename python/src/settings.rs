//! What passes share, as `resat.BuildConfig` says it.

use std::{sync::Arc, time::Duration};

use pyo3::{exceptions::PyTypeError, prelude::*, types::PyDict};
use resat::{
    codegen::CodegenTarget,
    cost,
    diag::{Diagnostic, nearest},
    driver::{Native, Stopwatch, machine},
    extract,
    pass::{BuildConfig, Placement, Settings as Rust},
    rules,
    saturate::{Grade, Limits},
    target::Target,
};

use crate::{
    call::{Shared, refuse, refused},
    cost::PyModel,
    extract::PyExtractor,
};

/// Settings of passes and the shape of the default pipeline. Made for each call.
#[pyclass(frozen, module = "resat._resat", name = "Settings")]
pub struct Settings {
    /// What passes share.
    pub rust: Rust,
    /// What shapes the default pipeline.
    pub config: BuildConfig,
    /// What the user's own functions share with the call.
    pub shared: Shared,
}

/// A span of time that a user gives.
pub fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|e| refuse(format!("{name} is {value}: {e}")))
}

fn limits(given: &Bound<'_, PyDict>) -> PyResult<Limits> {
    let mut limits = Limits::default();
    for (name, value) in given.iter() {
        let name: String = name.extract()?;
        match name.as_str() {
            "nodes" => limits.nodes = value.extract()?,
            "iterations" => limits.iterations = value.extract()?,
            "time" => limits.time = seconds("time", value.extract()?)?,
            "bytes" => limits.bytes = value.extract()?,
            "matches" => limits.matches = value.extract()?,
            "growing_matches" => limits.growing_matches = value.extract()?,
            "growth" => limits.growth = value.extract()?,
            "unions" => limits.unions = value.extract()?,
            "weights_known" => limits.weights_known = value.extract()?,
            "blocks" => limits.blocks = value.extract()?,
            _ => {
                let known = [
                    "nodes",
                    "iterations",
                    "time",
                    "bytes",
                    "matches",
                    "growing_matches",
                    "growth",
                    "unions",
                    "weights_known",
                    "blocks",
                ];
                let d = Diagnostic::new(format!("there is no limit `{name}`; there are {}", known.join(", ")));
                return Err(refused(&match nearest(&name, known) {
                    Some(near) => d.help(format!("did you mean `{near}`?")).into(),
                    None => d.into(),
                }));
            }
        }
    }
    Ok(limits)
}

#[pymethods]
impl Settings {
    #[new]
    #[pyo3(signature = (*, target, cost, extractor, extract_time, grade, max_error, rules, without, compilers, placement, limits,
        opt_level, required_pass, disabled_pass, pass_config, explanations = false))]
    #[allow(clippy::too_many_arguments, reason = "the package's Python part alone calls it, by name")]
    fn new(
        py: Python<'_>,
        target: &str,
        cost: &Bound<'_, PyAny>,
        extractor: &Bound<'_, PyAny>,
        extract_time: f64,
        grade: &str,
        max_error: Option<f64>,
        rules: Vec<(String, String)>,
        without: Vec<String>,
        compilers: Vec<String>,
        placement: &str,
        limits: &Bound<'_, PyDict>,
        opt_level: u8,
        required_pass: Vec<String>,
        disabled_pass: Vec<String>,
        pass_config: Vec<(String, String)>,
        explanations: bool,
    ) -> PyResult<Settings> {
        let shared = Shared::new();
        if Target::parse(target).map_err(|e| refused(&e))?.is_host()
            && let Some(told) = py.detach(machine::measure_first)
        {
            py.import("logging")?.call_method1("getLogger", ("resat",))?.call_method1("warning", (told,))?;
        }
        let mut s = Rust::new(machine::target(target).map_err(|e| refused(&e))?);
        s.limits = self::limits(limits)?;
        s.limits.cancel = shared.cancel.clone();
        s.limits.explanations = explanations;
        let config = BuildConfig { opt_level, required_pass, disabled_pass, pass_config, edits: Vec::new() };
        let watch: Arc<dyn cost::Timer> = Arc::new(Stopwatch::new(s.target.clone(), Stopwatch::folder_of_user()));
        if !compilers.is_empty() {
            s.placement = Placement::of(&compilers).map_err(|e| refused(&e))?;
            s.placement.strategy = placement.parse().map_err(|why: String| refuse(why))?;
        }
        match cost.extract::<String>() {
            Ok(name) if s.placement.is_by_cost() && name == "measured" => s.placement.machine = Some(watch),
            Ok(name) => s.cost = cost::parse(&name, Some(&watch)).map_err(|e| refused(&e))?,
            Err(_) => s.cost = Arc::new(PyModel::new(py, cost, &shared)?),
        }
        if extractor.is_none() {
            s.extractor = Arc::from(
                extract::by_name(config.extractor(), seconds("extract_time", extract_time)?)
                    .map_err(|e| refused(&e))?,
            );
        } else if let Ok(name) = extractor.extract::<String>() {
            s.extractor =
                Arc::from(extract::by_name(&name, seconds("extract_time", extract_time)?).map_err(|e| refused(&e))?);
        } else if extractor.is_callable() || extractor.hasattr("extract")? {
            s.extractor = Arc::new(PyExtractor::new(extractor, &shared)?);
        } else {
            return Err(PyTypeError::new_err(
                "an extractor is a name, a function of a problem, or an object with a method `extract`",
            ));
        }
        s.grade = grade.parse::<Grade>().map_err(refuse)?;
        if let Some(error) = max_error {
            if error.is_nan() || error < 0.0 {
                return Err(refuse(format!("max_error is {error}, but should be a share such as 0.01")));
            }
            (s.limits.error, s.grade) = (error, Grade::Approx);
        }
        s.backend = Arc::new(Native { target: s.target.clone() });
        for (name, text) in &rules {
            s.rulesets.extend(rules::load(name, text).map_err(|e| refused(&e))?);
        }
        let shipped =
            || rules::shipped_definitions().iter().flat_map(|set| set.rules.iter().map(|r| r.name().to_string()));
        for name in &without {
            let mine = s.rulesets.iter().flat_map(|set| &set.rules).any(|r| r.is_named(name));
            if !mine && !shipped().any(|n| n == *name) {
                return Err(refuse(format!("there is no rule `{name}`")));
            }
            s.without.push(name.as_str().into());
        }
        config.settings(&s).map_err(|e| refused(&e))?;
        Ok(Settings { rust: s, config, shared })
    }

    /// The stages of the default pipeline as these settings make it: names and passes as text.
    fn stages(&self) -> PyResult<Vec<(String, String)>> {
        let pipeline = self.config.pipeline(&self.rust).map_err(|e| refused(&e))?;
        Ok(pipeline.stages().map(|(stage, pass)| (stage.to_owned(), pass.name())).collect())
    }

    /// What a user should know of switches that change nothing.
    fn without_effect(&self) -> PyResult<Vec<String>> {
        self.config.without_effect(&self.rust).map_err(|e| refused(&e))
    }

    /// Whether placement is decided by cost, which the default pipeline alone can do.
    #[getter]
    fn is_placed_by_cost(&self) -> bool {
        self.rust.placement.is_by_cost()
    }

    /// The machine that code is for, in words.
    #[getter]
    fn target(&self) -> String {
        self.rust.target.to_string()
    }

    /// All that decides which code is made for the machine: triple, processor, features, cores.
    #[getter]
    fn machine(&self) -> String {
        let CodegenTarget { triple, cpu, features } = self.rust.target.codegen();
        format!("{triple} {cpu} {features} {} cores", self.rust.target.cores)
    }

    /// Threads that run programs where nothing else is said.
    #[getter]
    fn cores(&self) -> usize {
        self.rust.target.cores
    }
}
