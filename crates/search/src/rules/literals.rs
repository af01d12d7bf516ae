//! Words that are values.

use super::reader::{Bracket, Form, FormKind};
use crate::{ir::AttrValue, tensor::DType};

/// The number that a word is.
pub(super) fn number(word: &str) -> Option<f64> {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    (digits.starts_with(|c: char| c.is_ascii_digit()) || digits == "inf" || word == "nan").then_some(())?;
    word.parse().ok()
}

/// The value that a form is, where it is one without computation: `1`, `0.5`, `true`, `none`, `"NCHW"`, `float32`, `[1 1]`.
pub(super) fn literal(form: &Form) -> Option<AttrValue> {
    match &form.kind {
        FormKind::Text(t) => Some(t.as_str().into()),
        FormKind::Word(w) => match w.as_str() {
            "true" => Some(true.into()),
            "false" => Some(false.into()),
            "none" => Some(AttrValue::None),
            w => match (w.parse::<i64>(), number(w), w.parse::<DType>()) {
                (Ok(i), ..) => Some(i.into()),
                (_, Some(x), _) => Some(x.into()),
                (.., Ok(d)) => Some(d.into()),
                _ => None,
            },
        },
        FormKind::List(Bracket::Square, items) => items.iter().map(literal).collect::<Option<_>>().map(AttrValue::List),
        FormKind::List(..) => None,
    }
}

/// The name of a variable, question mark included.
pub(super) fn variable(form: &Form) -> Option<&str> {
    form.word().filter(|w| w.len() > 1 && w.starts_with('?') && !w.ends_with("...") && !w.contains(':'))
}

/// The variable of `?xs...`.
pub(super) fn sequence(form: &Form) -> Option<&str> {
    form.word().and_then(|w| w.strip_suffix("...")).filter(|w| w.len() > 1 && w.starts_with('?'))
}
