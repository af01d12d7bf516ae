//! What cost models see: one node, or many as columns.

use std::hash::{Hash, Hasher};

use hashbrown::Equivalent;
use pyo3::{
    exceptions::PyIndexError,
    prelude::*,
    types::{PyDict, PyList, PyTuple},
};
use resat::{
    cost::{Head, NodeView},
    ir::{Attrs, Expr, Function, Module as Ir, OpId, Type},
    ops::Work,
    target::Target,
};

use crate::{
    call::{Failure, long},
    module::Module,
    settings::Settings,
    tensor::column,
    values::{attrs_to_py, type_to_py},
};

/// What a node is known by: its operator, attributes and types, and which arguments are known before the program runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Key {
    pub op: OpId,
    pub attrs: Attrs,
    pub args: Vec<Type>,
    pub constant: Vec<bool>,
    pub out: Type,
}

impl Eq for Key {}

impl Key {
    /// As a cost model of Rust's sees it.
    fn view<'a>(&'a self, target: &'a Target) -> NodeView<'a> {
        let head = Head::Op(self.op, &self.attrs);
        NodeView { head, args: &self.args, constant: &self.constant, out: &self.out, target }
    }
}

/// The same of a view, without copies.
pub struct KeyView<'a> {
    op: OpId,
    attrs: &'a Attrs,
    args: &'a [Type],
    constant: &'a [bool],
    out: &'a Type,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.op, &self.attrs, &self.args[..], &self.constant[..], &self.out).hash(state);
    }
}

impl Hash for KeyView<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.op, self.attrs, self.args, self.constant, self.out).hash(state);
    }
}

impl Equivalent<Key> for KeyView<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.op == key.op
            && *self.attrs == key.attrs
            && self.args == &key.args[..]
            && self.constant == &key.constant[..]
            && *self.out == key.out
    }
}

impl<'a> KeyView<'a> {
    /// The key of a call of an operator; none of other nodes, which are not asked for in Python: tuples and their fields are free, and what is
    /// carried costs what is inside of it.
    pub fn of(view: &NodeView<'a>) -> Option<KeyView<'a>> {
        match view.head {
            Head::Op(op, attrs) => Some(KeyView { op, attrs, args: view.args, constant: view.constant, out: view.out }),
            _ => None,
        }
    }

    /// To be kept.
    pub fn key(&self) -> Key {
        Key {
            op: self.op,
            attrs: self.attrs.clone(),
            args: self.args.to_vec(),
            constant: self.constant.to_vec(),
            out: self.out.clone(),
        }
    }
}

/// One call of an operator, as a cost model sees it.
#[pyclass(frozen, module = "resat", name = "Node")]
pub struct Node {
    key: Key,
    work: Work,
}

impl Node {
    pub fn new(key: Key) -> Node {
        let work = key.op.op().work(&key.attrs, &key.args, &key.out);
        Node { key, work }
    }
}

#[pymethods]
impl Node {
    /// The operator's name, as "nn.dense".
    #[getter]
    fn op(&self) -> &'static str {
        self.key.op.op().name()
    }

    /// Its attributes, by name.
    #[getter]
    fn attrs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        attrs_to_py(py, &self.key.attrs)
    }

    /// The arguments' types: a tuple of `TensorType` and tuples of such.
    #[getter]
    fn args<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let types = self.key.args.iter().map(|t| type_to_py(py, t)).collect::<PyResult<Vec<_>>>()?;
        PyTuple::new(py, types)
    }

    /// For each argument, whether it can be computed before the program runs.
    #[getter]
    fn constant<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.key.constant)
    }

    /// The result's type.
    #[getter]
    fn out(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        type_to_py(py, &self.key.out)
    }

    /// Arithmetic operations; a multiply-add counts two.
    #[getter]
    fn flops(&self) -> f64 {
        self.work.flops
    }

    /// Bytes that must be read.
    #[getter]
    fn bytes_read(&self) -> f64 {
        self.work.bytes_read
    }

    /// Bytes that must be written.
    #[getter]
    fn bytes_written(&self) -> f64 {
        self.work.bytes_written
    }

    /// The call by itself: a module whose `@main` takes the arguments and calls the operator, to be built and timed.
    fn program(&self) -> Module {
        let mut m = Ir::new();
        let vars: Vec<_> =
            (0..self.key.args.len()).map(|i| m.new_var(format!("p{i}"), Some(self.key.args[i].clone()))).collect();
        let args = vars.iter().map(|&v| m.add(Expr::Var(v))).collect();
        let call = m.call_op(self.key.op, args, self.key.attrs.clone());
        let main = m.add(Expr::Func(Box::new(Function::new(vars, call, None))));
        m.define("main", main);
        Module(m)
    }

    fn __repr__(&self) -> String {
        format!("<resat.Node {} -> {}>", self.op(), self.key.out)
    }
}

/// Many nodes, as columns: arrays of one number a node.
#[pyclass(frozen, module = "resat", name = "Nodes")]
pub struct Nodes {
    nodes: Vec<Node>,
}

impl Nodes {
    pub fn new(keys: Vec<Key>) -> Nodes {
        Nodes { nodes: keys.into_iter().map(Node::new).collect() }
    }
}

#[pymethods]
impl Nodes {
    fn __len__(&self) -> usize {
        self.nodes.len()
    }

    fn __getitem__(&self, at: isize) -> PyResult<Node> {
        let place = if at < 0 { at + self.nodes.len() as isize } else { at };
        let node = usize::try_from(place).ok().and_then(|i| self.nodes.get(i));
        let node = node.ok_or_else(|| PyIndexError::new_err("there are not so many nodes"))?;
        Ok(Node { key: node.key.clone(), work: node.work })
    }

    /// The operators' names: a list.
    #[getter]
    fn op<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.nodes.iter().map(Node::op))
    }

    /// Arithmetic operations: float64.
    #[getter]
    fn flops(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.numbers(py, |n| n.work.flops)
    }

    /// Bytes that must be read: float64.
    #[getter]
    fn bytes_read(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.numbers(py, |n| n.work.bytes_read)
    }

    /// Bytes that must be written: float64.
    #[getter]
    fn bytes_written(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.numbers(py, |n| n.work.bytes_written)
    }
}

/// The prices of nodes by a cost model: float64.
#[pyfunction]
fn prices(py: Python<'_>, nodes: Vec<PyRef<'_, Node>>, settings: &Settings) -> PyResult<Py<PyAny>> {
    let keys: Vec<Key> = nodes.iter().map(|n| n.key.clone()).collect();
    let (rust, cancel) = (settings.rust.clone(), settings.shared.cancel.clone());
    let found = long(py, &settings.shared, move || {
        let view = |key| Key::view(key, &rust.target);
        if rust.cost.prepares() {
            rust.cost.prepare(&keys.iter().map(view).collect::<Vec<_>>());
        }
        let price = |key| {
            cancel.go_on()?;
            Ok(rust.cost.cost(&view(key)))
        };
        keys.iter().map(price).collect::<Result<Vec<f64>, Failure>>()
    })?;
    column(py, &found)
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Node>()?;
    m.add_class::<Nodes>()?;
    m.add_function(wrap_pyfunction!(prices, m)?)
}

impl Nodes {
    fn numbers(&self, py: Python<'_>, of: impl Fn(&Node) -> f64) -> PyResult<Py<PyAny>> {
        column(py, &self.nodes.iter().map(of).collect::<Vec<f64>>())
    }
}
