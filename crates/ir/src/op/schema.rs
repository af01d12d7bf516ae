//! Attribute schemas: which fields an operator has, of what kind, with which defaults.

use crate::{
    ir::{AttrValue, Attrs, Name, OpId},
    tensor::DType,
};

/// What values a field takes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AttrKind {
    /// True or false (also written 0 and 1).
    Bool,
    /// An integer.
    Int,
    /// A number.
    Float,
    /// A string.
    Str,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// An element type.
    DType,
    /// A list of integers; a single integer counts as a list of one.
    Ints,
    /// A list of anything, possibly nested.
    List,
    /// Anything: TVM's untyped objects.
    Any,
}

/// What a field is where a call leaves it out.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum AttrDefault {
    /// It must be given.
    Required,
    /// TVM's null: not set (and a given null is legal).
    None,
    /// This boolean.
    Bool(bool),
    /// This integer.
    Int(i64),
    /// This number.
    Float(f64),
    /// This string.
    Str(&'static str),
    /// This element type.
    DType(DType),
    /// These integers.
    Ints(&'static [i64]),
    /// These numbers.
    Floats(&'static [f64]),
}

/// One field of an operator's attribute record.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct AttrField {
    /// TVM's name.
    pub name: &'static str,
    /// What values it takes.
    pub kind: AttrKind,
    /// What it is where a call leaves it out.
    pub default: AttrDefault,
}

/// Why a call's attributes do not fit the operator's schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttrError {
    /// The operator has no such attribute.
    #[error("operator `{op}` has no attribute `{name}`{}", suggestion.as_ref().map(|s| format!("; did you mean `{s}`?")).unwrap_or_default())]
    Unknown {
        /// The operator.
        op: &'static str,
        /// What was given.
        name: String,
        /// The nearest name that it has.
        suggestion: Option<&'static str>,
    },
    /// An attribute is given twice.
    #[error("attribute `{name}` of operator `{op}` is given twice")]
    Duplicate {
        /// The operator.
        op: &'static str,
        /// The attribute.
        name: String,
    },
    /// An attribute has no default and was not given.
    #[error("operator `{op}` needs the attribute `{name}`")]
    Missing {
        /// The operator.
        op: &'static str,
        /// The attribute.
        name: &'static str,
    },
    /// The value is of another kind.
    #[error("attribute `{name}` of operator `{op}` is {found}, but should be {wanted}")]
    Kind {
        /// The operator.
        op: &'static str,
        /// The attribute.
        name: &'static str,
        /// What was given.
        found: String,
        /// What is wanted.
        wanted: String,
    },
}

impl AttrField {
    /// A field of the schema; for use in `const` tables.
    pub const fn new(name: &'static str, kind: AttrKind, default: AttrDefault) -> AttrField {
        AttrField { name, kind, default }
    }

    /// The default as a value; `None` where the field must be given.
    pub fn default_value(&self) -> Option<AttrValue> {
        Some(match self.default {
            AttrDefault::Required => return None,
            AttrDefault::None => AttrValue::None,
            AttrDefault::Bool(b) => b.into(),
            AttrDefault::Int(i) => i.into(),
            AttrDefault::Float(f) => f.into(),
            AttrDefault::Str(s) => s.into(),
            AttrDefault::DType(d) => d.into(),
            AttrDefault::Ints(l) => l.into(),
            AttrDefault::Floats(l) => AttrValue::List(l.iter().map(|&f| f.into()).collect()),
        })
    }

    /// The value in the field's own kind, where it is one that the field takes.
    pub fn accept(&self, value: AttrValue) -> Result<AttrValue, AttrValue> {
        use AttrValue as V;
        match (self.kind, value) {
            (_, V::None) if self.default == AttrDefault::None => Ok(V::None),
            (AttrKind::Bool, V::Bool(b)) => Ok(V::Bool(b)),
            (AttrKind::Bool, V::Int(i @ (0 | 1))) => Ok(V::Bool(i == 1)),
            (AttrKind::Int, V::Int(i)) => Ok(V::Int(i)),
            (AttrKind::Int, V::Bool(b)) => Ok(V::Int(b as i64)),
            (AttrKind::Float, v @ (V::Int(_) | V::Float(_) | V::Bool(_))) => Ok(v.as_float().expect("a number").into()),
            (AttrKind::Str, V::Str(s)) => Ok(V::Str(s)),
            (AttrKind::OneOf(names), V::Str(s)) if names.contains(&s.as_str()) => Ok(V::Str(s)),
            (AttrKind::DType, V::DType(d)) => Ok(V::DType(d)),
            (AttrKind::DType, V::Str(s)) if &*s == "void" || s.is_empty() => Ok(V::None),
            (AttrKind::DType, V::Str(s)) => s.parse().map(V::DType).map_err(|_| V::Str(s)),
            // TVM writes its null arrays so.
            (AttrKind::Ints, V::None) if self.default == AttrDefault::Ints(&[]) => Ok(V::ints(&[])),
            (AttrKind::Ints, V::Int(i)) => Ok(V::ints(&[i])),
            (AttrKind::Ints, V::List(l)) if l.iter().all(|v| matches!(v, V::Int(_) | V::Bool(_) | V::AnyDim)) => {
                Ok(V::List(l))
            }
            (AttrKind::List, V::List(l)) => Ok(V::List(l)),
            (AttrKind::Any, v) => Ok(v),
            (_, v) => Err(v),
        }
    }

    /// What values it takes, in words.
    pub fn wanted(&self) -> String {
        match self.kind {
            AttrKind::Bool => "a bool".into(),
            AttrKind::Int => "an integer".into(),
            AttrKind::Float => "a number".into(),
            AttrKind::Str => "a string".into(),
            AttrKind::OneOf(names) => {
                format!("one of {}", names.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", "))
            }
            AttrKind::DType => "an element type".into(),
            AttrKind::Ints => "a list of integers".into(),
            AttrKind::List => "a list".into(),
            AttrKind::Any => "any value".into(),
        }
    }
}

/// The complete record of an operator's attributes: the given ones checked and converted to the schema's kinds, the others
/// at their defaults, all in schema order.
pub fn make_attrs(op: OpId, given: &[(Name, AttrValue)]) -> Result<Attrs, AttrError> {
    let (name, schema) = (op.op().name(), op.op().attrs());
    for (i, (n, _)) in given.iter().enumerate() {
        if !schema.iter().any(|f| f.name == n.as_str()) {
            let suggestion = crate::diag::nearest(n, schema.iter().map(|f| f.name));
            return Err(AttrError::Unknown { op: name, name: n.to_string(), suggestion });
        }
        if given[..i].iter().any(|(m, _)| m == n) {
            return Err(AttrError::Duplicate { op: name, name: n.to_string() });
        }
    }
    let fields = schema
        .iter()
        .map(|field| {
            let value = match given.iter().find(|(n, _)| n.as_str() == field.name) {
                Some((_, v)) => field.accept(v.clone()).map_err(|v| AttrError::Kind {
                    op: name,
                    name: field.name,
                    found: shown(&v),
                    wanted: field.wanted(),
                })?,
                None => field.default_value().ok_or(AttrError::Missing { op: name, name: field.name })?,
            };
            Ok((Name::from(field.name), value))
        })
        .collect::<Result<Vec<_>, AttrError>>()?;
    Ok(Attrs::new(fields))
}

/// A value in words, for messages.
fn shown(v: &AttrValue) -> String {
    match v {
        AttrValue::None => "None".into(),
        AttrValue::Bool(b) => if *b { "True" } else { "False" }.into(),
        AttrValue::Int(i) => i.to_string(),
        AttrValue::Float(f) => f.to_string(),
        AttrValue::Str(s) => format!("\"{s}\""),
        AttrValue::DType(d) => format!("\"{d}\""),
        AttrValue::AnyDim => "?".into(),
        AttrValue::List(l) => format!("[{}]", l.iter().map(shown).collect::<Vec<_>>().join(", ")),
        AttrValue::Dict(_) => "a map".into(),
        AttrValue::Tensor(t) => format!("the constant {:?}", t.0),
        AttrValue::Type(t) => format!("the type {t}"),
        AttrValue::Opaque(key, _) => format!("an object of type {key}"),
    }
}
