//! Relay's types.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::Name;
use crate::tensor::DType;

/// One extent of a tensor type.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Dim {
    /// A known extent.
    Known(i64),
    /// `?`: known only when the program runs. Two of them need not be equal.
    Any,
    /// A type parameter that stands for an extent.
    Var(TypeVarId),
    /// Not inferred yet.
    Hole(u32),
}

impl Dim {
    /// The extent, where it is known.
    pub fn known(self) -> Option<i64> {
        match self {
            Dim::Known(n) => Some(n),
            _ => None,
        }
    }
}

impl From<i64> for Dim {
    fn from(n: i64) -> Dim {
        Dim::Known(n)
    }
}

/// A type parameter, unique within its module (which keeps the name).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TypeVarId(pub u32);

/// No machine holds a tensor of more elements.
pub const MOST_ELEMENTS: i64 = 1 << 40;

/// Extents and element type.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorType {
    /// Extents, outermost first.
    pub shape: Arc<[Dim]>,
    /// The elements' type.
    pub dtype: DType,
}

impl TensorType {
    /// A type of known extents.
    pub fn new(shape: &[i64], dtype: DType) -> TensorType {
        TensorType { shape: shape.iter().map(|&n| Dim::Known(n)).collect(), dtype }
    }

    /// A type of extents that may be unknown.
    pub fn of(shape: impl IntoIterator<Item = Dim>, dtype: DType) -> TensorType {
        TensorType { shape: shape.into_iter().collect(), dtype }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// All extents, where all are known.
    pub fn known_shape(&self) -> Option<Vec<i64>> {
        self.shape.iter().map(|d| d.known()).collect()
    }

    /// Number of elements, where all extents are known.
    pub fn elements(&self) -> Option<i64> {
        self.shape.iter().map(|d| d.known()).product()
    }

    /// Whether it could be a tensor: no extent is negative, and the elements are so few that their number, and any product of
    /// extents, is far from what arithmetic can hold.
    pub fn is_sensible(&self) -> bool {
        let known = self.shape.iter().filter_map(|d| d.known());
        let product = known.into_iter().try_fold(1i64, |n, d| if d < 0 { None } else { n.checked_mul(d.max(1)) });
        product.is_some_and(|n| n <= MOST_ELEMENTS)
    }

    /// Size in memory, where all extents are known.
    pub fn bytes(&self) -> Option<i64> {
        self.elements().map(|n| n * self.dtype.bytes() as i64)
    }
}

/// The type of a function.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FuncType {
    /// What the function is polymorphic in.
    pub type_params: Vec<TypeVarId>,
    /// The arguments' types.
    pub params: Vec<Type>,
    /// The result's type.
    pub ret: Type,
}

/// The type of an expression.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Type {
    /// A tensor.
    Tensor(TensorType),
    /// A tuple, possibly empty.
    Tuple(Arc<[Type]>),
    /// A function.
    Func(Arc<FuncType>),
    /// A mutable cell.
    Ref(Arc<Type>),
    /// An algebraic data type applied to its parameters.
    Adt(Name, Arc<[Type]>),
    /// A type parameter.
    Var(TypeVarId),
    /// Not given or not inferred yet; `_` in text. Holes of one number are the same type.
    Hole(u32),
}

impl Type {
    /// A tensor type of known extents.
    pub fn tensor(shape: &[i64], dtype: DType) -> Type {
        Type::Tensor(TensorType::new(shape, dtype))
    }

    /// A tuple type.
    pub fn tuple(fields: impl IntoIterator<Item = Type>) -> Type {
        Type::Tuple(fields.into_iter().collect())
    }

    /// The tensor type, where it is one.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// The fields, where it is a tuple.
    pub fn as_tuple(&self) -> Option<&[Type]> {
        match self {
            Type::Tuple(t) => Some(t),
            _ => None,
        }
    }

    /// All tensor types in a tensor or nested tuple, depth first; `None` where anything else is inside.
    pub fn flatten(&self) -> Option<Vec<TensorType>> {
        match self {
            Type::Tensor(t) => Some(vec![t.clone()]),
            Type::Tuple(f) => f.iter().map(Type::flatten).collect::<Option<Vec<_>>>().map(|v| v.concat()),
            _ => None,
        }
    }
}

impl From<TensorType> for Type {
    fn from(t: TensorType) -> Type {
        Type::Tensor(t)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(n) => write!(f, "{n}"),
            Dim::Any => f.write_str("?"),
            Dim::Var(v) => write!(f, "t{}", v.0),
            Dim::Hole(_) => f.write_str("_"),
        }
    }
}

impl fmt::Display for TensorType {
    /// As in Relay text, except that messages write extents without TVM's comma after a single one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shape.is_empty() {
            return write!(f, "{}", self.dtype);
        }
        let dims: Vec<String> = self.shape.iter().map(Dim::to_string).collect();
        write!(f, "Tensor[({}), {}]", dims.join(", "), self.dtype)
    }
}

impl fmt::Display for Type {
    /// For messages: type parameters are shown by number. The printer of `relay::text` knows their names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ts: &[Type]| ts.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Type::Tensor(t) => write!(f, "{t}"),
            Type::Tuple(t) if t.len() == 1 => write!(f, "({},)", t[0]),
            Type::Tuple(t) => write!(f, "({})", list(t)),
            Type::Func(t) => write!(f, "fn ({}) -> {}", list(&t.params), t.ret),
            Type::Ref(t) => write!(f, "ref({t})"),
            Type::Adt(n, a) if a.is_empty() => write!(f, "{n}"),
            Type::Adt(n, a) => write!(f, "{n}[{}]", list(a)),
            Type::Var(v) => write!(f, "t{}", v.0),
            Type::Hole(_) => f.write_str("_"),
        }
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for FuncType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fn {:?} -> {}", self.params, self.ret)
    }
}
