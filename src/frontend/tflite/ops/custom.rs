//! Custom operators.

use super::{
    super::{flex::Map, node::Node},
    Results,
};
use crate::{
    diag::Diagnostic,
    ir::{AttrValue, Type},
    ops::{AttrKind, lookup},
};

/// A custom operator: one that is built in, or one of a registered dialect, by its name.
pub(in crate::frontend::tflite) fn convert(n: &mut Node) -> Results {
    let name = n.op.name.clone();
    if name == "TFLite_Detection_PostProcess" {
        return super::detection::post_process(n);
    }
    let known = [name.clone(), format!("tflite.{name}")];
    let Some(op) = known.iter().find_map(|n| lookup(n)) else {
        let refused = n.b.refuse(format!("there is no operator `{name}`"));
        let with_help = |d: Diagnostic| {
            d.help(format!("register a dialect with an operator `tflite.{name}`, and rules or code for it"))
        };
        return Err(crate::diag::Refused(refused.0.into_iter().map(with_help).collect()));
    };
    let args = (0..n.count()).map(|i| n.x(i)).collect::<Result<Vec<_>, _>>()?;
    // Options of the same names as attributes are theirs.
    let map = Map::of(n.op.custom);
    let mut attrs: Vec<(&str, AttrValue)> = Vec::new();
    for field in op.op().attrs() {
        let Some(v) = map.as_ref().and_then(|m| m.number(field.name)) else { continue };
        attrs.push((
            field.name,
            match field.kind {
                AttrKind::Bool => (v != 0.0).into(),
                AttrKind::Int => (v as i64).into(),
                _ => v.into(),
            },
        ));
    }
    let e = n.op(op.op().name(), &args, &attrs)?;
    Ok(match n.b.ty(e).clone() {
        Type::Tuple(fields) => (0..fields.len()).map(|i| n.b.field(e, i)).collect(),
        _ => vec![e],
    })
}
