//! Extractors in Python, over arrays.

use pyo3::prelude::*;
use resat::extract::{Choice, DagGreedy, Extractor, Problem as Rust};

use crate::{
    call::{Shared, refuse},
    tensor::{column, copied},
};

/// What there is to choose from: classes, and of each the candidates, one of which is to be chosen where the class is needed. Candidates are
/// numbered through all classes; arrays are in compressed rows (CSR).
#[pyclass(frozen, module = "resat", name = "Problem")]
pub struct Problem(Rust);

#[pymethods]
impl Problem {
    /// Number of classes.
    #[getter]
    fn classes(&self) -> usize {
        self.0.classes()
    }

    /// Number of candidates, of all classes together.
    #[getter]
    fn candidates(&self) -> usize {
        self.0.candidates()
    }

    /// The class that is wanted.
    #[getter]
    fn root(&self) -> u32 {
        self.0.root()
    }

    /// int64, `classes + 1`: the candidates of class `c` are `class_ptr[c]` to `class_ptr[c + 1]`.
    #[getter]
    fn class_ptr(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let ends = (0..self.0.classes() as u32).map(|c| i64::from(self.0.of_class(c).end));
        column(py, &[0].into_iter().chain(ends).collect::<Vec<i64>>())
    }

    /// int64, `candidates + 1`: the classes that candidate `n` needs are `needs[need_ptr[n]]` to `needs[need_ptr[n + 1]]`.
    #[getter]
    fn need_ptr(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut at = 0;
        let ends = (0..self.0.candidates() as u32).map(|c| {
            at += self.0.needs(c).len() as i64;
            at
        });
        let ends: Vec<i64> = ends.collect();
        column(py, &[0].into_iter().chain(ends).collect::<Vec<i64>>())
    }

    /// int64: see `need_ptr`.
    #[getter]
    fn needs(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let all = (0..self.0.candidates() as u32).flat_map(|c| self.0.needs(c).iter().map(|&n| i64::from(n)));
        column(py, &all.collect::<Vec<i64>>())
    }

    /// float64: the price of each candidate, in the cost model's unit; infinite where it can't be had.
    #[getter]
    fn cost(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        column(py, &(0..self.0.candidates() as u32).map(|c| self.0.candidate(c).cost).collect::<Vec<f64>>())
    }

    /// float64: the error that each candidate is predicted to bring in, as a share of the result's largest magnitude.
    #[getter]
    fn error(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        column(py, &(0..self.0.candidates() as u32).map(|c| self.0.candidate(c).error).collect::<Vec<f64>>())
    }

    /// int64: the class of each candidate.
    #[getter]
    fn class_of(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let classes = (0..self.0.classes() as u32).flat_map(|c| self.0.of_class(c).map(move |_| i64::from(c)));
        column(py, &classes.collect::<Vec<i64>>())
    }

    /// What the shipped greedy extractor chooses: int64, a candidate for each class, -1 for classes that are not needed.
    fn greedy(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let choice = DagGreedy::default().extract(&self.0);
        column(py, &(0..self.0.classes() as u32).map(|c| choice.get(c).map_or(-1, i64::from)).collect::<Vec<i64>>())
    }

    /// The price of a choice, every class that is needed once; a choice that is no program is refused.
    fn total(&self, choice: &Bound<'_, PyAny>) -> PyResult<f64> {
        of_array(choice)?.cost(&self.0).map_err(refuse)
    }
}

fn of_array(choice: &Bound<'_, PyAny>) -> PyResult<Choice> {
    let numbers = copied(choice, None)?.to_i64_vec();
    Ok(Choice::new(numbers.into_iter().map(|n| u32::try_from(n).ok()).collect()))
}

/// An extractor of the user's.
pub struct PyExtractor {
    name: String,
    fingerprint: Option<String>,
    function: Py<PyAny>,
    shared: Shared,
}

impl PyExtractor {
    /// One that is a function of a problem, or an object with a method `extract`.
    pub fn new(extractor: &Bound<'_, PyAny>, shared: &Shared) -> PyResult<PyExtractor> {
        let function = extractor.getattr_opt("extract")?.unwrap_or_else(|| extractor.clone()).unbind();
        let name = match (extractor.getattr_opt("name")?, extractor.getattr_opt("__name__")?) {
            (Some(name), _) | (None, Some(name)) => name.extract().unwrap_or_else(|_| "python".to_owned()),
            _ => extractor.get_type().name()?.to_string(),
        };
        let fingerprint = match extractor.getattr_opt("fingerprint")?.filter(|f| f.is_callable()) {
            Some(f) => f.call0()?.extract()?,
            None => None,
        };
        Ok(PyExtractor { name, fingerprint, function, shared: shared.clone() })
    }
}

impl Extractor for PyExtractor {
    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> Option<String> {
        self.fingerprint.as_ref().map(|f| format!("python {} {f}", self.name))
    }

    fn extract(&self, problem: &Rust) -> Choice {
        if self.shared.cancel.is_cancelled() {
            return DagGreedy::default().extract(problem);
        }
        let asked = Python::attach(|py| {
            let choice = of_array(&self.function.bind(py).call1((Problem(problem.clone()),))?)?;
            choice
                .check(problem)
                .map_err(|flaw| refuse(format!("extractor `{}` gives no program: {flaw}", self.name)))?;
            Ok(choice)
        });
        asked.unwrap_or_else(|e: PyErr| {
            self.shared.keep(e);
            DagGreedy::default().extract(problem)
        })
    }
}
