//! Strings: an innermost axis of code points, filled up with zeros.

use super::{Row, logic::same_length, row};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{Tens, Val},
            node::Node,
            tensors,
        },
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[row("StringConcat", concat), row("StringNormalizer", normalizer)];

/// Input `i` as text.
pub(super) fn text(n: &Node, i: usize) -> Convert<Tens> {
    let t = n.tens(i)?;
    n.ensure(t.elem == Elem::Text, || format!("input {i} is of {}, but should be strings", t.elem.name()))?;
    Ok(t)
}

/// Text as the only output.
pub(super) fn texts(e: ExprId) -> Vec<Val> {
    vec![Val::Tensor(Tens { e, elem: Elem::Text })]
}

/// Where a text has characters.
pub(super) fn filled(n: &mut Node, x: ExprId) -> Convert {
    n.with("not_equal", x, 0.0)
}

fn concat(n: &mut Node) -> Convert<Vec<Val>> {
    let (a, b) = (text(n, 0)?.e, text(n, 1)?.e);
    let last = n.rank(a)?.max(n.rank(b)?) - 1;
    // Both with the axes of both: adding nothing broadcasts.
    let nothing = |n: &mut Node, x: ExprId| -> Convert {
        let axis = n.rank(x)? - 1;
        let first = n.slice(x, axis, 0, 1)?;
        n.with("multiply", first, 0.0)
    };
    let (of_a, of_b) = (nothing(n, a)?, nothing(n, b)?);
    let (a, b) = (n.add(a, of_b)?, n.add(b, of_a)?);
    let both = n.concat(&[a, b], last)?;
    // Each place takes from the first text while that lasts, then from the second one.
    let has = filled(n, a)?;
    let has = n.cast(has, DType::I64)?;
    let length = n.reduce("sum", has, &[last], true)?;
    let (room, all) = (n.size(a, last, DType::I64)?, n.size(both, last, DType::I64)?);
    let places = n.places(both, last, DType::I64)?;
    let within = n.bin("less", places, length)?;
    let skipped = n.sub(room, length)?;
    let later = n.add(places, skipped)?;
    let end = n.bin("greater_equal", later, all)?;
    let most = n.with("subtract", all, 1.0)?;
    let later = n.bin("minimum", later, most)?;
    let from = n.select(within, places, later)?;
    let y = n.op("gather", &[both, from], &[("axis", (last as i64).into())])?;
    let zero = n.c(y, 0.0)?;
    let past = n.un("logical_not", within)?;
    let past = n.bin("logical_and", past, end)?;
    let y = n.select(past, zero, y)?;
    Ok(texts(y))
}

/// Code points up to which there are letters of two cases.
const CASED: u32 = 0x1_e944;

/// Characters in upper or lower case. Those that would become several stay.
fn in_case(n: &mut Node, x: ExprId, upper: bool) -> Convert {
    let one = |mut it: &mut dyn Iterator<Item = char>, own: u32| -> u32 {
        match ((&mut it).next(), it.next()) {
            (Some(c), None) => c.into(),
            _ => own,
        }
    };
    let of = |p: u32| match char::from_u32(p) {
        Some(c) if upper => one(&mut c.to_uppercase(), p),
        Some(c) => one(&mut c.to_lowercase(), p),
        None => p,
    };
    let table: Vec<u32> = (0..CASED).map(of).collect();
    let table = n.im.b.weight("letters", Tensor::from_slice(&[table.len()], &table));
    let places = n.cast(x, DType::I64)?;
    let last = n.c(places, f64::from(CASED - 1))?;
    let held = n.bin("minimum", places, last)?;
    let y = n.take(table, held, 0)?;
    let known = n.with("less", places, f64::from(CASED))?;
    n.select(known, y, x)
}

fn normalizer(n: &mut Node) -> Convert<Vec<Val>> {
    let x = text(n, 0)?;
    let change = n.text("case_change_action", "NONE")?;
    let sensitive = n.flag("is_case_sensitive", false)?;
    let stop = n.texts("stopwords")?.unwrap_or_default();
    let changed = |n: &mut Node, x: ExprId| match change.as_str() {
        "NONE" => Ok(x),
        "LOWER" => in_case(n, x, false),
        "UPPER" => in_case(n, x, true),
        other => Err(n.refuse(format!("there is no case change `{other}`"))),
    };
    if stop.is_empty() {
        let y = changed(n, x.e)?;
        return Ok(texts(y));
    }
    let rank = n.rank(x.e)?;
    n.ensure(rank == 2 || rank == 3 && n.dims(x.e)?[0] == Some(1), || "its input should be one row of strings".into())?;
    let row = if rank == 3 { n.squeeze(x.e, &[0])? } else { x.e };
    let words: Vec<Vec<u32>> = stop
        .iter()
        .map(|s| {
            if sensitive {
                s.chars().map(u32::from).collect()
            } else {
                s.to_lowercase().chars().map(u32::from).collect()
            }
        })
        .collect();
    let words = Tens { e: n.constant(tensors::of_points(&[words.len()], &words)), elem: Elem::Text };
    let compared = if sensitive { row } else { in_case(n, row, false)? };
    let compared = Tens { e: n.expand(compared, 1, 1)?, elem: Elem::Text };
    let (a, b) = same_length(n, compared, words)?;
    let same = n.bin("equal", a.e, b.e)?;
    let same = n.reduce("all", same, &[2], false)?;
    let stopped = n.reduce("any", same, &[1], false)?;
    let kept = n.un("logical_not", stopped)?;
    // Where nothing is left, one empty string is.
    let some = n.reduce("any", kept, &[0], false)?;
    let none = n.un("logical_not", some)?;
    let places = n.places(row, 0, DType::I64)?;
    let first = n.with("equal", places, 0.0)?;
    let instead = n.bin("logical_and", first, none)?;
    let shown = n.bin("logical_or", kept, instead)?;
    let y = changed(n, row)?;
    let held = n.trailing(kept, 1)?;
    let zero = n.c(y, 0.0)?;
    let y = n.select(held, y, zero)?;
    let at = n.un("argwhere", shown)?;
    let at = n.reshape(at, &[-1])?;
    let y = n.take(y, at, 0)?;
    let y = if rank == 3 { n.expand(y, 0, 1)? } else { y };
    Ok(texts(y))
}
