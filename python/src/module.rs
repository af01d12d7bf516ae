//! Programs.

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use resat::{
    diag::Diagnostic,
    frontend::{self, LoadOptions, Model, SourceFile},
    infer::{TypedModule, infer_types},
    interp,
    ir::{
        AttrValue, Attrs, Copier, Expr, ExprId, Function, Module as Ir, Name, Pattern, Type, VarId, input_names,
        map_children, output_names, reachable,
    },
    pass::{bind_params, unbound_weights},
    relay::{json, npz, params, text},
    tensor::Tensor,
};

use crate::{
    call::{Failure, Shared, guarded, long, refuse, refused},
    tensor::{copied, named, read_params, to_numpy, value_from_py},
    values::{attr_from_py, attrs_to_py, type_to_py},
};

/// A Relay program. It never changes: passes give new ones, which share their constants with it.
#[pyclass(frozen, module = "resat", name = "Module", from_py_object)]
#[derive(Clone)]
pub struct Module(pub Ir);

/// Constants of no more elements stay in a pickle's skeleton.
const SMALL: usize = 16;

/// What stands for a constant in a skeleton: this, and its number.
const MARK: [i64; 3] = [0x7265_7361_7400, -0x736b_656c, 0x6574_6f6e];

#[pymethods]
impl Module {
    /// Reads Relay text (version 0.0.5) or Relay JSON. `name` stands for it in messages.
    #[staticmethod]
    #[pyo3(signature = (text, name = "<string>"))]
    fn parse(text: &str, name: &str) -> PyResult<Module> {
        guarded(|| {
            let file = SourceFile { name, bytes: text.as_bytes(), folder: None };
            let front_end =
                frontend::ALL.iter().filter(|f| f.name().starts_with("relay")).find(|f| f.recognizes(file.bytes));
            let Some(front_end) = front_end else {
                return Err(Failure::Refused(Diagnostic::new(format!("{name}: no Relay program")).into()));
            };
            Ok(Module(front_end.read(&file, &LoadOptions::default())?.module))
        })
    }

    /// The program as canonical Relay text, constants that no literal stands for in its metadata section.
    fn text(&self) -> String {
        text::print_module(&self.0)
    }

    /// The program as text for people: of large constants, their types and a digest. It can't be read back.
    fn brief(&self) -> String {
        text::print_brief(&self.0)
    }

    /// The program as Relay JSON.
    fn json(&self) -> PyResult<String> {
        json::print_module(&self.0).map_err(|e| refused(&e))
    }

    fn __str__(&self) -> String {
        self.brief()
    }

    fn __repr__(&self) -> String {
        let names: Vec<String> = self.0.functions().map(|(n, _)| format!("@{n}")).collect();
        format!("<resat.Module {}, {} expressions>", names.join(" "), self.0.len())
    }

    /// The names of its functions, in order.
    fn functions(&self) -> Vec<String> {
        self.0.functions().map(|(n, _)| n.to_string()).collect()
    }

    /// Whether both are the same text, constants included.
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Module>().is_ok_and(|o| resat::explore::digest(&self.0) == resat::explore::digest(&o.get().0))
    }

    fn __hash__(&self) -> u64 {
        resat::explore::digest(&self.0).0 as u64
    }

    /// A digest of the content: the same for programs that differ in the names and numbers of variables and expressions only.
    #[getter]
    fn digest(&self) -> String {
        resat::explore::digest(&self.0).to_string()
    }

    /// How often each operator is called, by name, the most frequent first; `function` names one function to look at.
    #[pyo3(signature = (function = None))]
    fn ops<'py>(&self, py: Python<'py>, function: Option<&str>) -> PyResult<Bound<'py, PyDict>> {
        let roots: Vec<ExprId> = match function {
            Some(name) => vec![self.function(name)?],
            None => self.0.functions().map(|(_, f)| f).collect(),
        };
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for e in reachable(&self.0, roots) {
            let Some((op, ..)) = self.0.op_call(e) else { continue };
            match counts.iter_mut().find(|c| c.0 == op.op().name()) {
                Some(c) => c.1 += 1,
                None => counts.push((op.op().name(), 1)),
            }
        }
        counts.sort_by_key(|c| (std::cmp::Reverse(c.1), c.0));
        let dict = PyDict::new(py);
        for (name, n) in counts {
            dict.set_item(name, n)?;
        }
        Ok(dict)
    }

    /// Number of expressions that its functions reach.
    fn __len__(&self) -> usize {
        reachable(&self.0, self.0.functions().map(|(_, f)| f)).len()
    }

    /// The attributes of a function, as `Compiler` and `Primitive`.
    fn attrs_of<'py>(&self, py: Python<'py>, function: &str) -> PyResult<Bound<'py, PyDict>> {
        attrs_to_py(py, &self.0.func(self.function(function)?).attrs)
    }

    /// The names and types of a function's parameters, and the type of its result.
    fn signature_of(&self, py: Python<'_>, function: &str) -> PyResult<(Vec<(String, Py<PyAny>)>, Py<PyAny>)> {
        let id = self.function(function)?;
        let typed = self.typed()?;
        let params = self.0.func(id).params.iter();
        let params = params.map(|&p| Ok((typed.var(p).name.to_string(), type_to_py(py, typed.var_ty(p))?)));
        Ok((params.collect::<PyResult<_>>()?, type_to_py(py, typed.result_type(function))?))
    }

    /// The text of one function.
    fn text_of(&self, function: &str) -> PyResult<String> {
        let id = self.function(function)?;
        let mut out = self.0.derive();
        let copy = Copier::new().copy(&self.0, id, &mut out);
        out.define(function, copy);
        Ok(text::print_brief(&out))
    }

    /// The same with other functions and attributes of functions: `functions` are (name, module and name that it comes from, attributes,
    /// or None for those that it has there).
    fn replaced(&self, functions: Vec<(String, Module, String, Option<Bound<'_, PyDict>>)>) -> PyResult<Module> {
        let mut out = self.0.derive();
        let mut own = Copier::new();
        let mut todo = functions;
        let mut all: Vec<(Name, ExprId)> = Vec::new();
        for (name, id) in self.0.functions() {
            let at = todo.iter().position(|f| f.0 == name.as_str());
            let copy = match at.map(|at| todo.remove(at)) {
                Some(new) => replacement(&self.0, &mut out, &mut own, new)?,
                None => own.copy(&self.0, id, &mut out),
            };
            all.push((name.clone(), copy));
        }
        for new in todo {
            let name = Name::from(new.0.as_str());
            all.push((name, replacement(&self.0, &mut out, &mut own, new)?));
        }
        for (name, id) in all {
            out.define(name, id);
        }
        Ok(Module(out))
    }

    /// The same with parameters of `@main` replaced by constants: `params` is a dict of arrays by the parameters' names.
    fn bind(&self, params: &Bound<'_, PyDict>) -> PyResult<Module> {
        let given = named(params)?;
        guarded(|| Ok(Module(bind_params(&self.0, &given)?)))
    }

    /// Parameters of `@main` that are used as weights: `bind` makes constants of them.
    fn unbound_weights(&self) -> PyResult<Vec<String>> {
        Ok(unbound_weights(&self.typed()?).iter().map(Name::to_string).collect())
    }

    /// The constants of more than one element, as arrays, in the order in which they stand in the program.
    fn constants(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let all = reachable(&self.0, self.0.functions().map(|(_, f)| f)).into_iter();
        let tensors = all.filter_map(|e| match &self.0[e] {
            Expr::Constant(t) if t.len() > 1 => Some(t.clone()),
            _ => None,
        });
        tensors.map(|t| to_numpy(py, t)).collect()
    }

    /// The model's own names of its inputs and outputs, where it came with some: (inputs, outputs).
    fn own_names(&self) -> (Option<Vec<String>>, Option<Vec<String>>) {
        (input_names(&self.0), output_names(&self.0))
    }

    /// The same with its types inferred, parameters annotated.
    fn infer_type(&self) -> PyResult<Module> {
        guarded(|| Ok(Module(infer_types(self.0.clone())?.into_module())))
    }

    /// Runs a function by the reference interpreter: slow, and what all else is compared with. Arguments are arrays and tuples of arrays, in
    /// order; the result is a list of arrays, tuples flattened depth first.
    #[pyo3(signature = (args, function = "main"))]
    fn interpret(&self, py: Python<'_>, args: Vec<Bound<'_, PyAny>>, function: &str) -> PyResult<Vec<Py<PyAny>>> {
        let types: Vec<Option<Type>> = match self.0.function(function) {
            Some(f) => f.params.iter().map(|&p| self.0.var(p).ty.clone()).collect(),
            None => Vec::new(),
        };
        let args = args.iter().enumerate().map(|(i, v)| value_from_py(v, types.get(i).and_then(Option::as_ref)));
        let args = args.collect::<PyResult<Vec<_>>>()?;
        let (m, function) = (self.0.clone(), function.to_owned());
        let made = long(py, &Shared::new(), move || Ok(interp::run_flat(&m, &function, args)?))?;
        made.into_iter().map(|t| to_numpy(py, t)).collect()
    }

    /// Random values for the parameters of `@main`, as `run` takes them; tuples flattened depth first.
    #[pyo3(signature = (seed = 0))]
    fn random_inputs(&self, py: Python<'_>, seed: u64) -> PyResult<Vec<Py<PyAny>>> {
        let typed = self.typed()?;
        let values = guarded(|| Ok(interp::random_inputs(&typed, seed)?))?;
        values.iter().flat_map(|v| v.flatten()).map(|t| to_numpy(py, t)).collect()
    }

    /// For pickles: the text with marks in the place of large constants, and these.
    fn parts(&self, py: Python<'_>) -> PyResult<(String, Vec<Py<PyAny>>)> {
        let mut constants: Vec<Tensor> = Vec::new();
        let skeleton = rebuilt(&self.0, |t| {
            if t.len() <= SMALL {
                return None;
            }
            let number = constants.iter().position(|c| c.same_bits(t)).unwrap_or_else(|| {
                constants.push(t.clone());
                constants.len() - 1
            });
            Some(Tensor::from_slice(&[1, 4], &[MARK[0], MARK[1], MARK[2], number as i64]))
        });
        let constants = constants.into_iter().map(|t| Ok(Bound::new(py, Constant(t))?.into_any().unbind()));
        Ok((text::print_module(&skeleton), constants.collect::<PyResult<_>>()?))
    }
}

/// A constant on its way through a pickle: its bytes are not copied.
#[pyclass(frozen, module = "resat._resat", name = "Constant")]
pub struct Constant(pub Tensor);

#[pymethods]
impl Constant {
    /// The digest of its content, by which constants are told apart.
    #[getter]
    fn digest(&self) -> u64 {
        self.0.digest()
    }

    /// Its element type, its shape and its bytes.
    fn parts<'py>(&self, py: Python<'py>) -> (&'static str, Vec<usize>, Bound<'py, PyBytes>) {
        (self.0.dtype().name(), self.0.shape().to_vec(), PyBytes::new(py, self.0.bytes()))
    }
}

#[pyfunction]
fn constant(dtype: &str, shape: Vec<usize>, bytes: &Bound<'_, PyAny>) -> PyResult<Constant> {
    let flat = copied(bytes, None)?;
    let tensor = Tensor::from_bytes(crate::values::element(dtype)?, &shape, flat.bytes()).map_err(refuse)?;
    Ok(Constant(tensor))
}

/// A module from what `Module.parts` gives.
#[pyfunction]
fn from_parts(text: &str, constants: Vec<PyRef<'_, Constant>>) -> PyResult<Module> {
    let constants: Vec<Tensor> = constants.iter().map(|c| c.0.clone()).collect();
    guarded(|| {
        let skeleton = text::parse_module("<module>", text)?;
        let marked = |t: &Tensor| {
            if t.shape() != [1, 4] || t.dtype() != resat::tensor::DType::I64 {
                return None;
            }
            let v = t.to_i64_vec();
            (v[..3] == MARK).then(|| constants.get(v[3] as usize).cloned()).flatten()
        };
        Ok(Module(rebuilt(&skeleton, marked)))
    })
}

/// The same module with other constants, where the function gives one.
fn rebuilt(m: &Ir, mut constant: impl FnMut(&Tensor) -> Option<Tensor>) -> Ir {
    let mut out = m.derive();
    let mut new: Vec<ExprId> = Vec::with_capacity(m.len());
    for id in m.ids() {
        let expr = match &m[id] {
            Expr::Constant(t) => Expr::Constant(constant(t).unwrap_or_else(|| t.clone())),
            expr => map_children(expr, |c| new[c.index()]),
        };
        new.push(out.add_at(expr, m.span(id).cloned()));
    }
    for (name, f) in m.functions() {
        out.define(name.clone(), new[f.index()]);
    }
    out
}

/// A function for `Module.replaced`.
fn replacement(
    m: &Ir,
    out: &mut Ir,
    own: &mut Copier,
    (_, from, of, attrs): (String, Module, String, Option<Bound<'_, PyDict>>),
) -> PyResult<ExprId> {
    let id = from.function(&of)?;
    let copy = match is_of(m, &from.0) {
        true => own.copy(m, id, out),
        false => imported(&from.0, id, out)?,
    };
    let Some(attrs) = attrs else { return Ok(copy) };
    let fields = attrs.iter().map(|(k, v)| Ok((Name::from(k.extract::<String>()?), attr_from_py(&v)?)));
    let attrs = Attrs::new(fields.collect::<PyResult<Vec<(Name, AttrValue)>>>()?);
    let function = Function { attrs, ..out.func(copy).clone() };
    Ok(out.add(Expr::Func(Box::new(function))))
}

/// Whether two modules are one: they share their expressions.
fn is_of(a: &Ir, b: &Ir) -> bool {
    a.len() == b.len() && a.var_count() == b.var_count() && a.ids().all(|e| a[e] == b[e])
}

/// A copy of a function of another module, its variables declared again.
///
/// Refused are type parameters, which would be the other module's.
fn imported(from: &Ir, id: ExprId, out: &mut Ir) -> PyResult<ExprId> {
    if from.type_var_count() > 0 {
        return Err(refuse("a function with type parameters can't be taken from another module"));
    }
    let mut vars: Vec<VarId> = Vec::with_capacity(from.var_count());
    for v in 0..from.var_count() as u32 {
        let info = from.var(VarId(v)).clone();
        vars.push(out.new_var(info.name, info.ty));
    }
    fn pattern(p: &mut Pattern, vars: &[VarId]) {
        match p {
            Pattern::Wildcard => {}
            Pattern::Var(v) => *v = vars[v.0 as usize],
            Pattern::Constructor(_, fields) | Pattern::Tuple(fields) => {
                fields.iter_mut().for_each(|f| pattern(f, vars))
            }
        }
    }
    Ok(Copier::new().copy_with(from, id, out, |out, of, expr| {
        let mut expr = expr.clone();
        match &mut expr {
            Expr::Var(v) | Expr::Let { var: v, .. } => *v = vars[v.0 as usize],
            Expr::Func(f) => f.params.iter_mut().for_each(|p| *p = vars[p.0 as usize]),
            Expr::Match { clauses, .. } => clauses.iter_mut().for_each(|c| pattern(&mut c.pattern, &vars)),
            _ => return None,
        }
        Some(out.add_at(expr, from.span(of).cloned()))
    }))
}

impl Module {
    fn function(&self, name: &str) -> PyResult<ExprId> {
        resat::infer::entry(&self.0, name).map_err(|e| refused(&e))?;
        self.0.function_id(name).ok_or_else(|| refuse(format!("the module has no function `@{name}`")))
    }

    /// The module with its types.
    pub fn typed(&self) -> PyResult<TypedModule> {
        guarded(|| Ok(infer_types(self.0.clone())?))
    }
}

/// A model file of any kind: Relay text or JSON, ONNX, TFLite, Keras. Gives the module with the weights that come with it as parameters of
/// `@main`, and these.
#[pyfunction]
#[pyo3(signature = (path, dims, shapes, inputs, params = None))]
fn load(
    py: Python<'_>,
    path: std::path::PathBuf,
    dims: Vec<(String, i64)>,
    shapes: Vec<(String, Vec<Option<i64>>)>,
    inputs: Option<Vec<(String, usize)>>,
    params: Option<&Bound<'_, PyAny>>,
) -> PyResult<Module> {
    let given = match params {
        None => Vec::new(),
        Some(p) => match p.cast::<PyDict>() {
            Ok(dict) => named(dict)?,
            Err(_) => read_params(&p.str()?.to_cow()?)?,
        },
    };
    let options = LoadOptions { dims, shapes, given: inputs };
    long(py, &Shared::new(), move || {
        let Model { module, mut params } = frontend::load(&path, &options)?;
        params.retain(|(name, _)| !given.iter().any(|(g, _)| g == name));
        params.extend(given);
        Ok(Module(bind_params(&module, &params)?))
    })
}

/// A model from memory; see `load`.
#[pyfunction]
#[pyo3(signature = (bytes, name, dims, shapes, inputs))]
fn load_bytes(
    py: Python<'_>,
    bytes: Vec<u8>,
    name: String,
    dims: Vec<(String, i64)>,
    shapes: Vec<(String, Vec<Option<i64>>)>,
    inputs: Option<Vec<(String, usize)>>,
) -> PyResult<Module> {
    let options = LoadOptions { dims, shapes, given: inputs };
    long(py, &Shared::new(), move || {
        let file = SourceFile { name: &name, bytes: &bytes, folder: None };
        let Model { module, params } = frontend::load_from(&file, &options)?;
        Ok(Module(bind_params(&module, &params)?))
    })
}

/// Named arrays of a parameter file: Relay's own format, or npz.
#[pyfunction]
fn load_params<'py>(py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, t) in read_params(path)? {
        dict.set_item(name.as_str(), to_numpy(py, t)?)?;
    }
    Ok(dict)
}

/// Named arrays in Relay's parameter format, or as an npz archive.
#[pyfunction]
fn params_bytes<'py>(py: Python<'py>, arrays: &Bound<'_, PyDict>, archive: bool) -> PyResult<Bound<'py, PyBytes>> {
    let arrays = named(arrays)?;
    let pairs = || arrays.iter().map(|(n, t)| (n.as_str(), t));
    let bytes = match archive {
        true => npz::write(pairs()).map_err(|e| refused(&e))?,
        false => params::write(pairs()),
    };
    Ok(PyBytes::new(py, &bytes))
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Constant>()?;
    m.add_function(wrap_pyfunction!(constant, m)?)?;
    m.add_function(wrap_pyfunction!(from_parts, m)?)?;
    m.add_function(wrap_pyfunction!(load, m)?)?;
    m.add_function(wrap_pyfunction!(load_bytes, m)?)?;
    m.add_function(wrap_pyfunction!(load_params, m)?)?;
    m.add_function(wrap_pyfunction!(params_bytes, m)?)?;
    Ok(())
}
