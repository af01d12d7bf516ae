//! Rulesets as text.

use pyo3::prelude::*;
use resat::rules::{self, Definition, Definitions, reference};

use crate::call::{Shared, long, refused};

/// A rule as a file defines it.
#[pyclass(frozen, module = "resat", name = "Rule")]
pub struct Rule(Definition);

#[pymethods]
impl Rule {
    /// `ruleset/rule`.
    #[getter]
    fn name(&self) -> String {
        self.0.name().to_string()
    }

    /// How equal its sides are: "exact", "real" or "approx".
    #[getter]
    fn grade(&self) -> String {
        self.0.grade().to_string()
    }

    /// The comment above it: its algebra.
    #[getter]
    fn doc(&self) -> &str {
        self.0.doc()
    }

    /// The rule in its own notation, on one line.
    #[getter]
    fn text(&self) -> &str {
        self.0.text()
    }

    /// Whether it is marked as one that can grow the graph without end.
    #[getter]
    fn grows(&self) -> bool {
        self.0.grows()
    }

    /// The operators that its left side names.
    #[getter]
    fn matches(&self) -> Vec<&'static str> {
        self.0.matches().into_iter().map(|o| o.op().name()).collect()
    }

    /// The operators that its right side names.
    #[getter]
    fn makes(&self) -> Vec<&'static str> {
        self.0.makes().into_iter().map(|o| o.op().name()).collect()
    }

    fn __repr__(&self) -> String {
        format!("<resat.Rule {} ({})>", self.name(), self.grade())
    }
}

type Set = (String, String, bool, Vec<Rule>);

fn sets(definitions: &[Definitions]) -> Vec<Set> {
    let set = |s: &Definitions| {
        (s.name.to_string(), s.doc.to_string(), s.by_request, s.rules.iter().cloned().map(Rule).collect())
    };
    definitions.iter().map(set).collect()
}

/// The rulesets of a text: (name, comment, whether it runs by request only, rules).
#[pyfunction]
fn define(name: &str, text: &str) -> PyResult<Vec<Set>> {
    Ok(sets(&rules::define(name, text).map_err(|e| refused(&e))?))
}

/// The shipped ones.
#[pyfunction]
fn shipped() -> Vec<Set> {
    sets(rules::shipped_definitions())
}

/// Tests a rule on random instances: (whether it is sound, instances compared, instances drawn, what is wrong).
#[pyfunction]
fn check(py: Python<'_>, rule: &Rule) -> PyResult<(bool, usize, usize, Option<String>)> {
    let definition = rule.0.clone();
    let report = long(py, &Shared::new(), move || Ok(rules::check(&definition)))?;
    Ok((report.is_sound(), report.live, report.tried, report.failure))
}

/// What the guards and attribute functions of the rule language are, or those of one name.
#[pyfunction]
#[pyo3(signature = (name = None))]
fn language(name: Option<&str>) -> Option<String> {
    match name {
        None => Some(reference::markdown()),
        Some(name) => reference::entry(name),
    }
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let rules = PyModule::new(m.py(), "rules")?;
    rules.add_function(wrap_pyfunction!(define, &rules)?)?;
    rules.add_function(wrap_pyfunction!(shipped, &rules)?)?;
    rules.add_function(wrap_pyfunction!(check, &rules)?)?;
    rules.add_function(wrap_pyfunction!(language, &rules)?)?;
    m.add_submodule(&rules)
}
