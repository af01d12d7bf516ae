//! What expressions evaluate to.

use std::{cell::RefCell, fmt, rc::Rc};

use super::frame::{Frame, bury};
use crate::{
    ir::{ExprId, Name, OpId, TensorType, Type},
    tensor::{self, Tensor},
};

/// What an expression evaluates to. Cloning shares.
#[derive(Clone)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A tuple.
    Tuple(Fields),
    /// A value of an algebraic data type: the constructor, and what it was given.
    Adt(Name, Fields),
    /// A function, with the variables that it sees.
    Closure(Closure),
    /// An operator by itself.
    Op(OpId),
    /// A constructor by itself.
    Constructor(Name),
    /// A mutable cell.
    Ref(MutableCell),
}

/// Shared fields of a tuple or data type.
#[derive(Clone)]
pub struct Fields(Rc<Buried>);

/// Values that are dropped without recursion: a list may be longer than the stack is deep.
struct Buried(Vec<Value>);

impl Drop for Buried {
    fn drop(&mut self) {
        bury(std::mem::take(&mut self.0));
    }
}

impl Fields {
    /// The fields, in order.
    pub fn as_slice(&self) -> &[Value] {
        &self.0.0
    }
}

impl From<Vec<Value>> for Fields {
    fn from(fields: Vec<Value>) -> Fields {
        Fields(Rc::new(Buried(fields)))
    }
}

/// A function and the activation that it was made in.
#[derive(Clone)]
pub struct Closure {
    pub(super) func: ExprId,
    pub(super) frame: Rc<Frame>,
}

/// A mutable cell.
#[derive(Clone)]
pub struct MutableCell(Rc<CellBox>);

/// One value, in a vector so that it can be taken out when the cell goes.
struct CellBox(RefCell<Vec<Value>>);

impl Drop for CellBox {
    fn drop(&mut self) {
        bury(self.0.take());
    }
}

impl MutableCell {
    pub(super) fn new(v: Value) -> MutableCell {
        MutableCell(Rc::new(CellBox(RefCell::new(vec![v]))))
    }

    /// What the cell holds now.
    pub fn get(&self) -> Value {
        self.0.0.borrow()[0].clone()
    }

    pub(super) fn set(&self, v: Value) {
        bury(self.0.0.replace(vec![v]));
    }
}

impl Value {
    /// All tensors in it, depth first, fields of data types included: the order in which outputs are numbered. `None` where
    /// a function is inside.
    pub fn flatten(&self) -> Option<Vec<Tensor>> {
        let mut out = Vec::new();
        let mut todo = vec![self.clone()];
        while let Some(v) = todo.pop() {
            match v {
                Value::Tensor(t) => out.push(t),
                Value::Tuple(f) | Value::Adt(_, f) => todo.extend(f.as_slice().iter().rev().cloned()),
                Value::Ref(cell) => todo.push(cell.get()),
                Value::Closure(_) | Value::Op(_) | Value::Constructor(_) => return None,
            }
        }
        Some(out)
    }

    /// The tensor or (nested) tuple of tensors, where it is one.
    pub fn to_tensors(&self) -> Option<tensor::Value> {
        match self {
            Value::Tensor(t) => Some(t.clone().into()),
            // Types bound how deep tuples are nested.
            Value::Tuple(f) => {
                f.as_slice().iter().map(Value::to_tensors).collect::<Option<Vec<_>>>().map(tensor::Value::Tuple)
            }
            _ => None,
        }
    }

    /// What kind of value it is, for messages.
    pub(super) fn kind(&self) -> String {
        match self {
            Value::Tensor(t) => type_of_tensor(t).to_string(),
            Value::Tuple(f) => format!("a tuple of {}", f.as_slice().len()),
            Value::Adt(name, _) => format!("a value made by `{name}`"),
            Value::Closure(_) => "a function".into(),
            Value::Op(op) => format!("the operator `{}`", op.op().name()),
            Value::Constructor(name) => format!("the constructor `{name}`"),
            Value::Ref(_) => "a reference".into(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Value {
        Value::Tensor(t)
    }
}

impl From<tensor::Value> for Value {
    fn from(v: tensor::Value) -> Value {
        match v {
            tensor::Value::Tensor(t) => Value::Tensor(t),
            tensor::Value::Tuple(f) => Value::Tuple(f.into_iter().map(Value::from).collect::<Vec<_>>().into()),
        }
    }
}

impl fmt::Debug for Value {
    /// Shallow: a list may be longer than the stack is deep.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Tensor(t) => t.fmt(f),
            v => f.write_str(&v.kind()),
        }
    }
}

/// The type of a tensor.
pub(super) fn type_of_tensor(t: &Tensor) -> TensorType {
    let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
    TensorType::new(&shape, t.dtype())
}

/// The type of a tensor or tuple of tensors.
pub fn type_of(v: &tensor::Value) -> Type {
    match v {
        tensor::Value::Tensor(t) => type_of_tensor(t).into(),
        tensor::Value::Tuple(f) => Type::tuple(f.iter().map(type_of)),
    }
}
