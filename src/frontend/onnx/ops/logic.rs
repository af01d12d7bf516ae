//! Comparisons, truth values and choice.

use super::{
    Row,
    math::{operands, unary},
    row,
};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{Tens, Val},
            node::Node,
        },
    },
    ir::{AttrValue, ExprId},
    tensor::DType,
};

pub(super) const OPS: &[Row] = &[
    row("And", |n| compare(n, "logical_and")),
    row("Equal", equal),
    row("Greater", |n| compare(n, "greater")),
    row("GreaterOrEqual", |n| compare(n, "greater_equal")),
    row("IsInf", is_inf),
    row("IsNaN", |n| unary(n, "isnan")),
    row("Less", |n| compare(n, "less")),
    row("LessOrEqual", |n| compare(n, "less_equal")),
    row("Not", |n| unary(n, "logical_not")),
    row("Or", |n| compare(n, "logical_or")),
    row("Where", choose),
    row("Xor", |n| compare(n, "logical_xor")),
];

fn compare(n: &mut Node, name: &str) -> Convert<Vec<Val>> {
    let (x, y) = operands(n)?;
    let z = n.bin(name, x, y)?;
    n.one(z)
}

/// Two text tensors with innermost axes of one length: the shorter one's is filled up with zeros.
pub(super) fn same_length(n: &mut Node, a: Tens, b: Tens) -> Convert<(Tens, Tens)> {
    let last = |n: &mut Node, t: Tens| -> Convert { n.size(t.e, n.rank(t.e)? - 1, DType::I64) };
    let (la, lb) = (last(n, a)?, last(n, b)?);
    let longest = n.bin("maximum", la, lb)?;
    let pad = |n: &mut Node, t: Tens, own: ExprId| -> Convert<Tens> {
        let (rank, missing, zero) = (n.rank(t.e)?, n.sub(longest, own)?, n.c(t.e, 0.0)?);
        if let Some(v) = n.value(missing) {
            let (before, mut after) = (vec![0; rank], vec![0; rank]);
            after[rank - 1] = v.get_i64(0);
            return Ok(Tens { e: n.pad(t.e, &before, &after, zero)?, ..t });
        }
        let none = n.im.b.ints(&vec![0; 2 * rank - 1]);
        let missing = n.reshape(missing, &[1])?;
        let widths = n.concat(&[none, missing], 0)?;
        let widths = n.reshape(widths, &[rank as i64, 2])?;
        Ok(Tens { e: n.op("dyn.nn.pad", &[t.e, widths, zero], &[("pad_width", AttrValue::ints(&[]))])?, ..t })
    };
    Ok((pad(n, a, la)?, pad(n, b, lb)?))
}

fn equal(n: &mut Node) -> Convert<Vec<Val>> {
    let (a, b) = (n.tens(0)?, n.tens(1)?);
    if a.elem == Elem::Text && b.elem == Elem::Text {
        let (a, b) = same_length(n, a, b)?;
        let same = n.bin("equal", a.e, b.e)?;
        let rank = n.rank(same)?;
        let y = n.reduce("all", same, &[rank - 1], false)?;
        return n.one(y);
    }
    compare(n, "equal")
}

fn is_inf(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let (negative, positive) = (n.flag("detect_negative", true)?, n.flag("detect_positive", true)?);
    let mut y = n.un("isinf", x)?;
    if negative != positive {
        let side = n.with(if positive { "greater" } else { "less" }, x, 0.0)?;
        y = n.bin("logical_and", y, side)?;
    } else if !negative {
        let no = n.im.b.scalar(DType::Bool, 0.0);
        y = n.bin("logical_and", y, no)?;
    }
    n.one(y)
}

fn choose(n: &mut Node) -> Convert<Vec<Val>> {
    let (c, x, y) = (n.x(0)?, n.tens(1)?, n.tens(2)?);
    n.ensure(x.elem == y.elem, || "what it chooses from has two element types".into())?;
    if x.elem == Elem::Text {
        let (x, y) = same_length(n, x, y)?;
        let c = n.trailing(c, 1)?;
        let e = n.select(c, x.e, y.e)?;
        return Ok(vec![Val::Tensor(Tens { e, elem: Elem::Text })]);
    }
    let e = n.select(c, x.e, y.e)?;
    Ok(vec![Val::Tensor(Tens { e, elem: x.elem })])
}
