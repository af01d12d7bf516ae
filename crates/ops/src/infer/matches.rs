//! Whether a `match` covers all values.

use crate::{
    diag::Diagnostic,
    ir::{Clause, Module, Pattern},
};

/// More steps than any match that a person wrote takes.
const MAX_STEPS: usize = 100_000;

/// Rows of patterns that must together cover all values of their columns, and the constructors chosen on the way here.
struct Matrix<'a> {
    rows: Vec<Vec<&'a Pattern>>,
    chosen: Vec<&'a str>,
}

/// A complaint where some value meets none of the clauses.
pub(super) fn check_covers(m: &Module, clauses: &[Clause]) -> Option<Diagnostic> {
    let mut todo = vec![Matrix { rows: clauses.iter().map(|c| vec![&c.pattern]).collect(), chosen: Vec::new() }];
    let mut steps = 0;
    while let Some(Matrix { rows, chosen }) = todo.pop() {
        steps += 1;
        if steps > MAX_STEPS {
            return Some(Diagnostic::new("the patterns of this `match` are too many to be checked"));
        }
        let Some(first) = rows.first() else {
            let d = Diagnostic::new("`match` does not cover all values");
            return Some(match chosen.is_empty() {
                true => d,
                false => d.help(format!("no clause for a value made of `{}`", chosen.join("`, `"))),
            });
        };
        let Some(column) = first.iter().position(|p| matches!(p, Pattern::Constructor(..) | Pattern::Tuple(_))) else {
            continue;
        };
        match first[column] {
            Pattern::Tuple(fields) => {
                let rows = rows.iter().filter_map(|r| expand(r, column, None, fields.len())).collect();
                todo.push(Matrix { rows, chosen });
            }
            Pattern::Constructor(name, _) => {
                let (adt, _) = m.constructor(name)?;
                // The first constructor is looked at last, hence pushed first.
                for c in adt.constructors.iter().rev() {
                    let rows = rows.iter().filter_map(|r| expand(r, column, Some(&c.name), c.fields.len())).collect();
                    let chosen = chosen.iter().copied().chain([c.name.as_str()]).collect();
                    todo.push(Matrix { rows, chosen });
                }
            }
            Pattern::Wildcard | Pattern::Var(_) => {}
        }
    }
    None
}

/// The row with the pattern of one column replaced by those of its fields, where it can meet that constructor (or, for
/// `None`, a tuple).
fn expand<'a>(
    row: &[&'a Pattern],
    column: usize,
    constructor: Option<&str>,
    fields: usize,
) -> Option<Vec<&'a Pattern>> {
    const ANY: &Pattern = &Pattern::Wildcard;
    let (before, after) = (&row[..column], &row[column + 1..]);
    let inner: Vec<&Pattern> = match row[column] {
        Pattern::Wildcard | Pattern::Var(_) => vec![ANY; fields],
        Pattern::Tuple(ps) if constructor.is_none() && ps.len() == fields => ps.iter().collect(),
        Pattern::Constructor(name, ps) if constructor == Some(name.as_str()) => ps.iter().collect(),
        _ => return None,
    };
    Some([before, &inner, after].concat())
}
