//! Operators of other domains: those of registered dialects, by their domain and name.

use super::{
    importer::Val,
    node::Node,
    proto::{AttributeProto, kinds},
};
use crate::{
    diag::Diagnostic,
    frontend::Convert,
    ir::{AttrValue, OpId, Type},
    ops::{AttrKind, lookup},
};

/// What an operator of a domain is called in Relay: `my.domain.Foo`.
fn name(domain: &str, op: &str) -> String {
    format!("{domain}.{op}")
}

/// The operator of a registered dialect that nodes of that domain and type are.
pub(super) fn find(domain: &str, op: &str) -> Option<OpId> {
    if domain.is_empty() { None } else { lookup(&name(domain, op)) }
}

/// What a user can do about an operator that nobody registered.
pub(super) fn help(d: Diagnostic, domain: &str, op: &str) -> Diagnostic {
    d.help(format!(
        "register a dialect with an operator `{}`, and rules or code for it; or define it as a function of the model",
        name(domain, op)
    ))
}

/// A call of the operator, with the node's attributes that it has, too.
pub(super) fn convert(n: &mut Node, op: OpId) -> Convert<Vec<Val>> {
    let fields = op.op().attrs();
    let mut attrs = Vec::new();
    for a in &n.proto.attribute {
        let Some(a) = n.attr(&a.name) else { continue };
        let Some(field) = fields.iter().find(|f| f.name == a.name) else {
            return Err(n.refuse(format!("the operator `{}` has no attribute `{}`", op.op().name(), a.name)));
        };
        let value = value(a, field.kind);
        attrs.push((
            field.name,
            value.ok_or_else(|| n.refuse(format!("its attribute `{}` is of another kind", a.name)))?,
        ));
    }
    let args = (0..n.inputs.len()).map(|i| n.x(i)).collect::<Convert<Vec<_>>>()?;
    let e = n.op(op.op().name(), &args, &attrs)?;
    match n.im.b.ty(e).clone() {
        Type::Tuple(fields) => {
            (0..fields.len()).map(|i| n.im.b.field(e, i)).collect::<Vec<_>>().into_iter().map(|e| n.out(e)).collect()
        }
        _ => n.one(e),
    }
}

/// An attribute as one of Relay's.
fn value(a: &AttributeProto, kind: AttrKind) -> Option<AttrValue> {
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).ok();
    Some(match (a.r#type, kind) {
        (kinds::INT, AttrKind::Bool) => (a.i? != 0).into(),
        (kinds::INT, AttrKind::Float) => (a.i? as f64).into(),
        (kinds::INT, _) => a.i?.into(),
        (kinds::FLOAT, _) => f64::from(a.f?).into(),
        (kinds::STRING, _) => text(a.s.as_deref()?)?.as_str().into(),
        (kinds::INTS, _) => AttrValue::ints(&a.ints),
        (kinds::FLOATS, _) => AttrValue::List(a.floats.iter().map(|&f| f64::from(f).into()).collect()),
        (kinds::STRINGS, _) => {
            let all = a.strings.iter().map(|s| Some(text(s)?.as_str().into())).collect::<Option<Vec<AttrValue>>>()?;
            AttrValue::List(all.into())
        }
        _ => return None,
    })
}
