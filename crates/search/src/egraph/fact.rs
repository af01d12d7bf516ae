//! What is known of one class of an e-graph.

use std::sync::Arc;

use super::{
    node::{AttrsId, ConstId},
    range::Range,
    trials::Trials,
};
use crate::ir::{TensorType, Type};

/// What the classes' terms are, their types.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Values of this type.
    Type(Type),
    /// An attribute record.
    Attrs(AttrsId),
    /// No value: the type relation refused the node, for the reason given. Such a class is in no program; a rule made it.
    Ill(Arc<str>),
}

/// What is known of a class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fact {
    /// Type, or record.
    pub what: What,
    /// Whether some term of the class is made of constants alone: it can be computed before the program runs.
    pub constant: bool,
    /// The value, where it is a constant of the program or a small constant computation.
    pub value: Option<ConstId>,
    /// Between which numbers the elements lie, of constants where that is known: then all of them are finite.
    pub range: Option<Range>,
    /// The type with numbers to reckon with for extents that are unknown; none where all are known, or nothing follows.
    pub likely: Option<Type>,
    /// The types at made-up sizes; none where all extents are known.
    pub trials: Option<Trials>,
}

impl Fact {
    /// The type, unless it is a record or ill-typed.
    pub fn ty(&self) -> Option<&Type> {
        match &self.what {
            What::Type(t) => Some(t),
            _ => None,
        }
    }

    /// The tensor type, where it is one.
    pub fn tensor(&self) -> Option<&TensorType> {
        self.ty().and_then(Type::as_tensor)
    }

    /// The type that prices look at.
    pub fn priced_type(&self) -> Option<&Type> {
        self.likely.as_ref().or(self.ty())
    }

    /// The type at one of the made-up sizes.
    pub fn trial_type(&self, trial: usize) -> Option<&Type> {
        self.trials.as_ref().map(|t| t.at(trial)).or(self.ty())
    }

    pub(super) fn given(ty: Option<&Type>) -> Fact {
        match ty {
            Some(ty) => Fact {
                what: What::Type(ty.clone()),
                constant: false,
                value: None,
                range: None,
                likely: None,
                trials: None,
            },
            None => Fact::ill("inference found no type"),
        }
    }

    pub(super) fn ill(reason: impl Into<Arc<str>>) -> Fact {
        Fact { what: What::Ill(reason.into()), constant: false, value: None, range: None, likely: None, trials: None }
    }
}

impl What {
    /// The smaller in an arbitrary fixed order, so that merging facts that disagree still comes to an end.
    pub(super) fn min_of(self, other: &What) -> What {
        let key = |w: &What| format!("{w:?}");
        if key(other) < key(&self) { other.clone() } else { self }
    }
}
