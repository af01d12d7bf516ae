//! Why a program became what it is, and why not something else.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::{
    prelude::*,
    types::{PyDict, PyList},
};
use resat::{
    infer::infer_types,
    ir::Span,
    pass::{PassContext, Quantize, QuantizeOptions, pair, parse_specs},
    saturate::{Became, Extracted, WhyNot, counterfactuals, explain, why_not},
};

use crate::{
    call::{long, refuse, refused},
    module::Module,
    passes::{Watcher, make, rust_of},
    settings::Settings,
    tensor::named,
};

fn place(span: Option<&Span>) -> Option<String> {
    span.map(Span::to_string)
}

fn keep<T>(all: &Mutex<Vec<T>>, more: impl IntoIterator<Item = T>) {
    all.lock().unwrap_or_else(PoisonError::into_inner).extend(more);
}

fn taken<T>(all: &Mutex<Vec<T>>) -> Vec<T> {
    std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner))
}

type Look = Box<dyn FnMut(Extracted) + Send>;

/// Runs passes over a module while somebody looks at what saturations extract.
fn watched(
    py: Python<'_>,
    module: resat::ir::Module,
    item: &Bound<'_, PyAny>,
    settings: &Settings,
    look: Look,
) -> PyResult<()> {
    let pass = make(item, settings, &rust_of(settings)?)?;
    let (before, _) = Watcher::new(false, &settings.shared).hooks();
    long(py, &settings.shared, move || {
        let mut cx = PassContext { on_region: Some(look), before_pass: Some(before), ..PassContext::default() };
        pass.run(infer_types(module)?.into_module(), &mut cx)?;
        Ok(())
    })
}

/// What became of each call of the program, as dicts: was, place, became ("itself", "inside", "moved",
/// "absorbed", "unneeded", "other"), now, kernel, steps.
#[pyfunction]
fn pieces<'py>(
    py: Python<'py>,
    module: Module,
    item: &Bound<'_, PyAny>,
    settings: &Settings,
    line: Option<usize>,
) -> PyResult<Bound<'py, PyList>> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let to = found.clone();
    let wanted = move |span: Option<&Span>| line.is_none_or(|line| span.is_some_and(|s| s.line_col().0 == line));
    watched(py, module.0, item, settings, Box::new(move |mut x| keep(&to, explain(&mut x, &wanted))))?;
    let list = PyList::empty(py);
    for piece in taken(&found) {
        let one = PyDict::new(py);
        one.set_item("was", &piece.was)?;
        one.set_item("place", place(piece.span.as_ref()))?;
        let (became, now, kernel) = match &piece.became {
            Became::Itself => ("itself", None, None),
            Became::Inside { kernel } => ("inside", None, Some(kernel)),
            Became::Moved { now, .. } => ("moved", Some(now), None),
            Became::Absorbed { was, .. } => ("absorbed", Some(was), None),
            Became::Unneeded => ("unneeded", None, None),
            Became::Other { now, .. } => ("other", Some(now), None),
        };
        one.set_item("became", became)?;
        one.set_item("now", now)?;
        one.set_item("kernel", kernel)?;
        let steps = PyList::empty(py);
        if let Became::Other { steps: all, .. } | Became::Moved { steps: all, .. } = &piece.became {
            for step in all {
                let d = PyDict::new(py);
                d.set_item("rule", &step.rule)?;
                d.set_item("forward", step.forward)?;
                d.set_item("path", step.path.clone())?;
                d.set_item("before", &step.before)?;
                d.set_item("after", &step.after)?;
                steps.append(d)?;
            }
        }
        one.set_item("steps", steps)?;
        list.append(one)?;
    }
    Ok(list)
}

/// For so many of the dearest parts of the program, what it would cost without each: dicts of chosen, place, cost, total, instead, extra.
#[pyfunction]
fn alternatives<'py>(
    py: Python<'py>,
    module: Module,
    item: &Bound<'_, PyAny>,
    settings: &Settings,
    most: usize,
) -> PyResult<Bound<'py, PyList>> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let (to, extractor) = (found.clone(), settings.rust.extractor.clone());
    watched(py, module.0, item, settings, Box::new(move |x| keep(&to, counterfactuals(&x, extractor.as_ref(), most))))?;
    let list = PyList::empty(py);
    for c in taken(&found) {
        let one = PyDict::new(py);
        one.set_item("chosen", &c.chosen)?;
        one.set_item("place", place(c.span.as_ref()))?;
        one.set_item("cost", c.cost)?;
        one.set_item("total", c.total)?;
        one.set_item("instead", c.next.as_ref().and_then(|n| n.0.clone()))?;
        one.set_item("extra", c.next.as_ref().map(|n| n.1))?;
        list.append(one)?;
    }
    Ok(list)
}

/// Why a program did not become another: (answer, wanted cost, chosen cost, missing parts with their places). The answer is "costs more",
/// "not equal", "missing" or "nothing", where no pass saturates.
#[pyfunction]
fn why(
    py: Python<'_>,
    module: Module,
    wanted: Module,
    item: &Bound<'_, PyAny>,
    settings: &Settings,
) -> PyResult<(&'static str, Option<f64>, Option<f64>, Vec<(Option<String>, String)>)> {
    let both = || -> Result<_, resat::diag::Refused> {
        pair(&infer_types(module.0)?.into_module(), &infer_types(wanted.0)?.into_module())
    };
    let both = both().map_err(|e| refused(&e))?;
    let found = Arc::new(Mutex::new(Vec::new()));
    let (to, rust) = (found.clone(), settings.rust.clone());
    let look = move |mut x: Extracted| {
        keep(&to, why_not(&mut x, rust.cost.as_ref(), rust.extractor.as_ref(), &rust.target));
    };
    watched(py, both, item, settings, Box::new(look))?;
    Ok(match taken(&found).into_iter().next() {
        None => ("nothing", None, None, Vec::new()),
        Some(WhyNot::CostsMore { wanted, chosen }) => ("costs more", Some(wanted), Some(chosen), Vec::new()),
        Some(WhyNot::NotEqual) => ("not equal", None, None, Vec::new()),
        Some(WhyNot::Missing(parts)) => {
            ("missing", None, None, parts.into_iter().map(|(span, what)| (place(span.as_ref()), what)).collect())
        }
    })
}

/// What quantizing each layer does: JSON, and the same for people. `text` is the pass `Quantize` with its arguments.
#[pyfunction]
fn study(
    py: Python<'_>,
    module: Module,
    text: &str,
    samples: Option<&Bound<'_, PyDict>>,
    settings: &Settings,
) -> PyResult<(String, String)> {
    let samples = samples.map(named).transpose()?;
    let specs = parse_specs(text).map_err(|e| refused(&e))?;
    let [spec] = specs.as_slice() else { return Err(refuse(format!("`{text}` is not one pass `Quantize`"))) };
    let options = QuantizeOptions::parse_with(spec, samples).map_err(|e| refused(&e))?;
    let rust = settings.rust.clone();
    long(py, &settings.shared, move || {
        let study = Quantize::new(options, &rust)?.study(infer_types(module.0)?.into_module())?;
        Ok((study.to_json().to_string(), study.to_string()))
    })
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(pieces, m)?)?;
    m.add_function(wrap_pyfunction!(alternatives, m)?)?;
    m.add_function(wrap_pyfunction!(why, m)?)?;
    m.add_function(wrap_pyfunction!(study, m)?)
}
