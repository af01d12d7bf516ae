//! Attribute records: named, typed values of operators, calls and functions.

use std::{
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

use ordered_float::OrderedFloat;
use serde::{Deserialize, Serialize};

use super::Type;
use crate::tensor::{DType, Tensor};

/// A shared name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name(Arc<str>);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<S: AsRef<str>> From<S> for Name {
    fn from(s: S) -> Name {
        Name(s.as_ref().into())
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One attribute's value.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum AttrValue {
    /// TVM's null: the attribute is not set.
    None,
    /// True or false.
    Bool(bool),
    /// An integer (of any width in TVM).
    Int(i64),
    /// A floating point number.
    Float(#[serde(with = "super::record::by_bits")] OrderedFloat<f64>),
    /// A string.
    Str(Name),
    /// An element type.
    DType(DType),
    /// A dimension that is not known, `?`.
    AnyDim,
    /// A sequence, possibly nested.
    List(Arc<[AttrValue]>),
    /// A map with string keys, in written order.
    Dict(Arc<[(Name, AttrValue)]>),
    /// A constant array.
    Tensor(ConstAttr),
    /// A type.
    Type(Type),
    /// An object that resat carries through without a meaning of its own: TVM's type key, and its text.
    Opaque(Name, Name),
}

/// A constant tensor inside an attribute, ordered by content hash.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConstAttr(pub Tensor);

impl PartialOrd for ConstAttr {
    fn partial_cmp(&self, other: &ConstAttr) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ConstAttr {
    fn cmp(&self, other: &ConstAttr) -> std::cmp::Ordering {
        (self.0.dtype(), self.0.shape(), self.0.bytes()).cmp(&(other.0.dtype(), other.0.shape(), other.0.bytes()))
    }
}

impl AttrValue {
    /// A list of integers.
    pub fn ints(values: &[i64]) -> AttrValue {
        AttrValue::List(values.iter().map(|&v| AttrValue::Int(v)).collect())
    }

    /// The integer, where it is one (a `bool` counts as 0 or 1, as in TVM).
    pub fn as_int(&self) -> Option<i64> {
        match self {
            AttrValue::Int(i) => Some(*i),
            AttrValue::Bool(b) => Some(*b as i64),
            _ => None,
        }
    }

    /// The number as a float, where it is a number.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            AttrValue::Float(f) => Some(f.0),
            _ => self.as_int().map(|i| i as f64),
        }
    }

    /// The integers, where it is a list of nothing but integers.
    pub fn as_ints(&self) -> Option<Vec<i64>> {
        match self {
            AttrValue::List(l) => l.iter().map(AttrValue::as_int).collect(),
            _ => None,
        }
    }
}

impl From<bool> for AttrValue {
    fn from(v: bool) -> AttrValue {
        AttrValue::Bool(v)
    }
}
impl From<i64> for AttrValue {
    fn from(v: i64) -> AttrValue {
        AttrValue::Int(v)
    }
}
impl From<f64> for AttrValue {
    fn from(v: f64) -> AttrValue {
        AttrValue::Float(OrderedFloat(v))
    }
}
impl From<&str> for AttrValue {
    fn from(v: &str) -> AttrValue {
        AttrValue::Str(v.into())
    }
}
impl From<DType> for AttrValue {
    fn from(v: DType) -> AttrValue {
        AttrValue::DType(v)
    }
}
impl From<&[i64]> for AttrValue {
    fn from(v: &[i64]) -> AttrValue {
        AttrValue::ints(v)
    }
}
impl<const N: usize> From<[i64; N]> for AttrValue {
    fn from(v: [i64; N]) -> AttrValue {
        AttrValue::ints(&v)
    }
}
impl From<Tensor> for AttrValue {
    fn from(v: Tensor) -> AttrValue {
        AttrValue::Tensor(ConstAttr(v))
    }
}
impl From<Vec<i64>> for AttrValue {
    fn from(v: Vec<i64>) -> AttrValue {
        AttrValue::ints(&v)
    }
}

struct Record {
    fields: Vec<(Name, AttrValue)>,
    hash: u64,
}

/// An attribute record, shared and hashed once.
///
/// An operator's record is *complete*: it holds every field of the operator's schema, in schema order (the constructor
/// `ops::make_attrs` fills in defaults), so that equal attributes are equal records. Functions and calls of functions
/// carry free-form records, in written order.
#[derive(Clone)]
pub struct Attrs(Arc<Record>);

impl Attrs {
    /// A record of the given fields, in the given order.
    pub fn new(fields: Vec<(Name, AttrValue)>) -> Attrs {
        let mut h = rustc_hash::FxHasher::default();
        fields.hash(&mut h);
        Attrs(Arc::new(Record { fields, hash: h.finish() }))
    }

    /// The record without fields.
    pub fn empty() -> Attrs {
        Attrs::new(Vec::new())
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.0.fields.is_empty()
    }

    /// All fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &AttrValue)> {
        self.0.fields.iter().map(|(n, v)| (n, v))
    }

    /// The field, where the record has it.
    pub fn get(&self, name: &str) -> Option<&AttrValue> {
        self.0.fields.iter().find(|(n, _)| n.as_str() == name).map(|(_, v)| v)
    }

    /// The same record with one field changed, or appended where it is new.
    pub fn with(&self, name: &str, value: impl Into<AttrValue>) -> Attrs {
        let mut fields = self.0.fields.clone();
        match fields.iter_mut().find(|(n, _)| n.as_str() == name) {
            Some(f) => f.1 = value.into(),
            None => fields.push((name.into(), value.into())),
        }
        Attrs::new(fields)
    }

    /// The same record without a field.
    pub fn without(&self, name: &str) -> Attrs {
        Attrs::new(self.0.fields.iter().filter(|(n, _)| n.as_str() != name).cloned().collect())
    }

    fn field(&self, name: &str) -> &AttrValue {
        self.get(name).unwrap_or_else(|| panic!("attribute `{name}` is in the operator's schema, hence in its records"))
    }

    /// An integer field of an operator's record. Panics where the schema does not say integer.
    pub fn int(&self, name: &str) -> i64 {
        self.field(name).as_int().unwrap_or_else(|| panic!("schema says that `{name}` is an integer"))
    }

    /// A boolean field of an operator's record. Panics where the schema does not say boolean.
    pub fn bool(&self, name: &str) -> bool {
        self.field(name).as_int().unwrap_or_else(|| panic!("schema says that `{name}` is a bool")) != 0
    }

    /// A number of an operator's record. Panics where the schema does not say float.
    pub fn float(&self, name: &str) -> f64 {
        self.field(name).as_float().unwrap_or_else(|| panic!("schema says that `{name}` is a number"))
    }

    /// A string of an operator's record. Panics where the schema does not say string.
    pub fn str(&self, name: &str) -> &str {
        match self.field(name) {
            AttrValue::Str(s) => s,
            _ => panic!("schema says that `{name}` is a string"),
        }
    }

    /// A list of integers of an operator's record; an unset one is empty. Panics where the schema does not say so.
    pub fn ints(&self, name: &str) -> Vec<i64> {
        match self.field(name) {
            AttrValue::None => Vec::new(),
            v => v.as_ints().unwrap_or_else(|| panic!("schema says that `{name}` is a list of integers")),
        }
    }

    /// A list of integers that may be unset.
    pub fn opt_ints(&self, name: &str) -> Option<Vec<i64>> {
        self.field(name).as_ints()
    }

    /// An integer that may be unset.
    pub fn opt_int(&self, name: &str) -> Option<i64> {
        self.field(name).as_int()
    }

    /// An element type that may be unset.
    pub fn opt_dtype(&self, name: &str) -> Option<DType> {
        match self.field(name) {
            AttrValue::DType(d) => Some(*d),
            _ => None,
        }
    }
}

impl PartialEq for Attrs {
    fn eq(&self, other: &Attrs) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.hash == other.0.hash && self.0.fields == other.0.fields)
    }
}

impl Eq for Attrs {}

impl PartialOrd for Attrs {
    fn partial_cmp(&self, other: &Attrs) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Attrs {
    fn cmp(&self, other: &Attrs) -> std::cmp::Ordering {
        self.0.fields.cmp(&other.0.fields)
    }
}

impl Hash for Attrs {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Debug for Attrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
