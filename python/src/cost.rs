//! Cost models in Python: a price for a node, or for many at once.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::{HashMap, HashSet};
use pyo3::{exceptions::PyTypeError, prelude::*};
use resat::cost::{CostModel, Head, NodeView};

use crate::{
    call::{Shared, refuse},
    node::{Key, KeyView, Node, Nodes},
    tensor::copied,
};

/// Prices by what nodes are known by. A model keeps it as long as it lives.
#[pyclass(frozen, module = "resat._resat", name = "Memo")]
#[derive(Default)]
pub struct Memo(Arc<Mutex<HashMap<Key, f64>>>);

#[pymethods]
impl Memo {
    #[new]
    fn new() -> Memo {
        Memo::default()
    }

    /// How many different nodes were priced.
    fn __len__(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Forgets all prices.
    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A model of the user's.
pub struct PyModel {
    name: String,
    fingerprint: Option<String>,
    asks: Asks,
    memo: Arc<Mutex<HashMap<Key, f64>>>,
    shared: Shared,
}

/// How it is asked.
enum Asks {
    /// A function of a node.
    One(Py<PyAny>),
    /// A function of many.
    Many(Py<PyAny>),
}

impl PyModel {
    /// A model that is a function of a node, or an object with a method `cost` or `costs`.
    pub fn new(py: Python<'_>, model: &Bound<'_, PyAny>, shared: &Shared) -> PyResult<PyModel> {
        let method = |name: &str| -> PyResult<Option<Py<PyAny>>> {
            Ok(model.getattr_opt(name)?.filter(|m| m.is_callable()).map(Bound::unbind))
        };
        let asks = match (method("costs")?, method("cost")?) {
            (Some(many), _) => Asks::Many(many),
            (None, Some(one)) => Asks::One(one),
            (None, None) if model.is_callable() => Asks::One(model.clone().unbind()),
            _ => {
                return Err(PyTypeError::new_err(
                    "a cost model is a name, a function of a node, or an object with a method `cost` (of a node) or `costs` (of many)",
                ));
            }
        };
        let name = match (model.getattr_opt("name")?, model.getattr_opt("__name__")?) {
            (Some(name), _) | (None, Some(name)) => name.extract().unwrap_or_else(|_| "python".to_owned()),
            _ => model.get_type().name()?.to_string(),
        };
        let fingerprint = match method("fingerprint")? {
            Some(f) => f.bind(py).call0()?.extract()?,
            None => None,
        };
        // Objects that take no attributes have their prices for one call only.
        let memo =
            match model.getattr_opt("_resat_memo")?.and_then(|m| m.cast::<Memo>().ok().map(|m| m.get().0.clone())) {
                Some(known) => known,
                None => {
                    let memo = Memo::default();
                    let prices = memo.0.clone();
                    let _ = model.setattr("_resat_memo", Bound::new(py, memo)?);
                    prices
                }
            };
        Ok(PyModel { name, fingerprint, asks, memo, shared: shared.clone() })
    }

    fn known(&self, key: &KeyView<'_>) -> Option<f64> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    /// Asks for the prices of nodes that are not known; gives none after an exception.
    fn ask(&self, keys: Vec<Key>) -> Option<Vec<f64>> {
        if self.shared.cancel.is_cancelled() {
            return None;
        }
        let asked = Python::attach(|py| -> PyResult<Vec<f64>> {
            match &self.asks {
                Asks::One(f) => keys.iter().map(|k| f.bind(py).call1((Node::new(k.clone()),))?.extract()).collect(),
                Asks::Many(f) => {
                    let prices = f.bind(py).call1((Nodes::new(keys.clone()),))?;
                    let found = copied(&prices, None)?.to_f64_vec();
                    match found.len() == keys.len() {
                        true => Ok(found),
                        false => Err(PyTypeError::new_err(format!(
                            "`costs` was asked about {} nodes, but gave {} prices",
                            keys.len(),
                            found.len()
                        ))),
                    }
                }
            }
        });
        let asked = asked.and_then(|prices| match prices.iter().zip(&keys).find(|(price, _)| **price < 0.0) {
            Some((price, key)) => {
                let (name, op) = (&self.name, key.op.op().name());
                Err(refuse(format!("cost model `{name}` gives {price} for `{op}`, but prices are not negative")))
            }
            None => Ok(prices),
        });
        match asked {
            Ok(prices) => {
                let mut memo = self.memo.lock().unwrap_or_else(PoisonError::into_inner);
                memo.extend(keys.into_iter().zip(prices.iter().copied()));
                Some(prices)
            }
            Err(e) => {
                self.shared.keep(e);
                None
            }
        }
    }
}

impl CostModel for PyModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> Option<String> {
        self.fingerprint.as_ref().map(|f| format!("python {} {f}", self.name))
    }

    fn cost(&self, node: &NodeView) -> f64 {
        let Some(key) = KeyView::of(node) else {
            return match node.head {
                Head::Carried { bodies } => bodies,
                _ => 0.0,
            };
        };
        if let Some(price) = self.known(&key) {
            return price;
        }
        self.ask(vec![key.key()]).and_then(|p| p.first().copied()).unwrap_or(0.0)
    }

    fn prepares(&self) -> bool {
        matches!(self.asks, Asks::Many(_))
    }

    fn prepare(&self, nodes: &[NodeView]) {
        let mut new: HashSet<Key> = HashSet::new();
        let mut order: Vec<Key> = Vec::new();
        {
            let memo = self.memo.lock().unwrap_or_else(PoisonError::into_inner);
            for key in
                nodes.iter().filter(|n| !n.constant.iter().all(|&c| c) || n.constant.is_empty()).filter_map(KeyView::of)
            {
                if memo.get(&key).is_none() && new.get(&key).is_none() {
                    let key = key.key();
                    new.insert(key.clone());
                    order.push(key);
                }
            }
        }
        if !order.is_empty() {
            self.ask(order);
        }
    }
}
