//! Reads left sides.

use std::sync::Arc;

use super::{
    ast::{AttrDef, FieldPattern, IndexPattern, Ops, Pattern, SlotKind},
    literals::{literal, number, sequence, variable},
    reader::{Bracket, Form},
    scope::{Means, RecordInfo, Scope},
};
use crate::{
    diag::nearest,
    ir::{Name, OpId},
    ops::{AttrDefault, AttrField},
};

/// Operators whose arguments `(~op a b)` may swap.
const COMMUTATIVE: &[&str] = &[
    "add",
    "multiply",
    "maximum",
    "minimum",
    "equal",
    "not_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
];

/// The pattern that a form is; `None` where it is none, with complaints in the scope.
pub(super) fn pattern(s: &mut Scope, form: &Form) -> Option<Pattern> {
    if let Some(name) = variable(form) {
        return Some(match s.class_in_pattern(form, name)? {
            Means::Seq(seq) => Pattern::Each(seq),
            Means::Class(slot) => Pattern::Class(slot),
            _ => return None,
        });
    }
    if let Some(x) = form.word().and_then(number) {
        return Some(Pattern::Splat(x));
    }
    let Some([head, rest @ ..]) = form.list(Bracket::Round) else {
        let d = form.complain(format!("`{form}` is no pattern")).help("patterns are ?x, numbers, and (operator …)");
        s.error(d);
        return None;
    };
    match head.word() {
        Some("as") => as_pattern(s, form, rest),
        Some("tuple") => tuple(s, form, rest),
        Some("proj") => proj(s, form, rest),
        Some(name) => operator(s, form, head, name, rest),
        None => {
            let d = head.complain(format!("`{head}` is no operator"));
            s.error(d);
            None
        }
    }
}

fn as_pattern(s: &mut Scope, form: &Form, rest: &[Form]) -> Option<Pattern> {
    let ([var, inner], false) = (rest, s.in_seq) else {
        let d = form.complain("`as` is used as (as ?y pattern), outside of `...`");
        s.error(d);
        return None;
    };
    let inner = pattern(s, inner);
    let Some(name) = variable(var) else {
        let d = var.complain(format!("`{var}` is no variable"));
        s.error(d);
        return None;
    };
    match s.class_in_pattern(var, name)? {
        Means::Class(slot) => Some(Pattern::As(slot, Box::new(inner?))),
        _ => None,
    }
}

fn tuple(s: &mut Scope, form: &Form, rest: &[Form]) -> Option<Pattern> {
    let each = match rest {
        [only] if sequence(only).is_some() => Some(only.clone()),
        [inner, dots] if dots.word() == Some("...") => Some(inner.clone()),
        _ => None,
    };
    let Some(each) = each else {
        let fields: Vec<Option<Pattern>> = rest.iter().map(|f| pattern(s, f)).collect();
        return fields.into_iter().collect::<Option<_>>().map(Pattern::Tuple);
    };
    if std::mem::replace(&mut s.in_seq, true) {
        let d = form.complain("a `...` inside a `...` is not supported");
        s.error(d);
        return None;
    }
    let inner = match sequence(&each) {
        Some(name) => s.class_in_pattern(&each, name).map(|m| match m {
            Means::Seq(seq) => Pattern::Each(seq),
            Means::Class(slot) => Pattern::Class(slot),
            _ => unreachable!("`class_in_pattern` gives classes and sequences"),
        }),
        None => pattern(s, &each),
    };
    s.in_seq = false;
    Some(Pattern::TupleOf(Box::new(inner?)))
}

fn proj(s: &mut Scope, form: &Form, rest: &[Form]) -> Option<Pattern> {
    let [index, inner] = rest else {
        let d = form.complain("a projection is (proj index tuple)");
        s.error(d);
        return None;
    };
    let inner = pattern(s, inner);
    let index = match (index.word().and_then(|w| w.parse().ok()), variable(index)) {
        (Some(i), _) => IndexPattern::Value(i),
        (_, Some(name)) if s.find(name).is_none() => {
            let slot = s.slot(SlotKind::Number);
            s.define_attr(index, name, AttrDef::Index(slot));
            IndexPattern::Any(slot)
        }
        _ => {
            let d = index.complain(format!("`{index}` is neither a number nor a new variable"));
            s.error(d);
            return None;
        }
    };
    Some(Pattern::Proj(index, Box::new(inner?)))
}

fn operator(s: &mut Scope, form: &Form, head: &Form, name: &str, rest: &[Form]) -> Option<Pattern> {
    let (record_form, args) = match rest {
        [r, args @ ..] if r.list(Bracket::Curly).is_some() => (Some(r), args),
        args => (None, args),
    };
    let either_order = name.starts_with('~');
    let name = name.strip_prefix('~').unwrap_or(name);
    let ops = match name.strip_prefix('?').and_then(|n| n.split_once(':')) {
        Some((var, class)) => {
            let found = s.operators(head, class, args.len());
            let var = format!("?{var}");
            match (s.find(&var).map(|v| v.means.clone()), found) {
                (None, Some(found)) => {
                    let slot = s.slot(SlotKind::Op);
                    s.define(head, &var, Means::Op(slot, found.clone()));
                    Some(Ops::Any(found, slot))
                }
                (Some(_), _) => {
                    let d = head.complain(format!("`{var}` is bound already")).help(format!("write `{var}` alone"));
                    s.error(d);
                    None
                }
                (None, None) => None,
            }
        }
        None if name.starts_with('?') => match s.find(name).map(|v| v.means.clone()) {
            Some(Means::Op(slot, found)) => Some(Ops::Any(found, slot)),
            _ => {
                let d =
                    head.complain(format!("`{name}` is no operator")).help("an operator variable is ?f:class at first");
                s.error(d);
                None
            }
        },
        None => s.operator(head, name).map(Ops::One),
    };
    if let Some(Ops::One(op)) = &ops
        && op.op().inputs().len() != args.len()
    {
        s.arity(form, name, op.op().inputs(), args.len());
    }
    if either_order {
        let swaps = |ops: &Ops| ops.list().iter().all(|o| COMMUTATIVE.contains(&o.op().name()));
        if ops.as_ref().is_some_and(|o| !swaps(o)) {
            let d = head.complain(format!("the arguments of `{name}` can't be swapped"));
            s.error(d.help(format!("`~` goes with {}", COMMUTATIVE.join(", "))));
        }
    }
    // Arguments are read even where the operator is unknown, so that their errors are reported too and their variables known.
    let record = s.slot(SlotKind::Record);
    let fields = ops.as_ref().and_then(|ops| self::record(s, form, record_form, ops.list(), record));
    let args: Vec<Option<Pattern>> = args.iter().map(|a| pattern(s, a)).collect();
    let args = args.into_iter().collect::<Option<Vec<_>>>()?;
    Some(Pattern::Op { ops: ops?, record, fields: fields?, args, either_order })
}

/// The conditions of `{field value … ..?rest}`. What is not named must be at its default, unless there is a `..`.
fn record(
    s: &mut Scope,
    whole: &Form,
    form: Option<&Form>,
    ops: &[OpId],
    slot: usize,
) -> Option<Vec<(Name, FieldPattern)>> {
    let items = form.and_then(|f| f.list(Bracket::Curly)).unwrap_or(&[]);
    let (mut fields, mut rest, mut complete, mut at) = (Vec::new(), None, true, 0);
    while at < items.len() {
        let item = &items[at];
        at += 1;
        if let Some(var) = item.word().and_then(|w| w.strip_prefix("..")) {
            rest = Some((item, var));
            if at < items.len() {
                let d = items[at].complain("nothing may follow the rest of the fields");
                s.error(d);
                complete = false;
            }
            break;
        }
        let Some(field) = schema_field(s, item, ops) else {
            complete = false;
            at += 1;
            continue;
        };
        let Some(value) = items.get(at) else {
            let d = item.complain(format!("the attribute `{}` has no value here", field.name));
            s.error(d);
            return None;
        };
        at += 1;
        match field_pattern(s, value, &field, slot, None) {
            Some(p) => fields.push((Name::from(field.name), p)),
            None => complete = false,
        }
    }
    match rest {
        None => {
            let named: Vec<Name> = fields.iter().map(|(n, _)| n.clone()).collect();
            for field in ops.iter().flat_map(|o| o.op().attrs()) {
                if named.iter().any(|n| n.as_str() == field.name)
                    || fields.iter().any(|(n, _)| n.as_str() == field.name)
                {
                    continue;
                }
                match field.default_value() {
                    Some(v) if field.default != AttrDefault::Required => {
                        fields.push((field.name.into(), FieldPattern::Value(v)));
                    }
                    _ if complete => {
                        let d = form
                            .unwrap_or(whole)
                            .complain(format!("the pattern does not say what `{}` is", field.name));
                        s.error(d.help("name it, or write `..` for whatever the other attributes are"));
                        return None;
                    }
                    _ => return None,
                }
            }
        }
        Some((_, "")) => {}
        Some((item, var)) => {
            let named: Arc<[Name]> = fields.iter().map(|(n, _)| n.clone()).collect();
            match s.find(var).map(|v| v.means.clone()) {
                None if var.starts_with('?') && var.len() > 1 => {
                    s.define(item, var, Means::Record(slot, RecordInfo { ops: ops.into(), named }));
                }
                None => {
                    let d = item.complain(format!("`{var}` is no variable"));
                    s.error(d);
                    return None;
                }
                Some(Means::Record(first, info)) => {
                    // A second use asks for equal fields; where the records may have other fields, that means nothing.
                    let schema = |o: &OpId| o.op().attrs();
                    if info.ops.iter().chain(ops).any(|o| schema(o) != schema(&ops[0])) {
                        let d = item.complain(format!("`{var}` is a record of another operator"));
                        s.error(d);
                        return None;
                    }
                    for field in ops[0].op().attrs() {
                        let name = Name::from(field.name);
                        if named.contains(&name) {
                            continue;
                        }
                        s.attr_vars.push(AttrDef::Field { record: first, field: name.clone(), element: None });
                        fields.push((name, FieldPattern::Var(s.attr_vars.len() - 1)));
                    }
                }
                Some(_) => {
                    s.wrong_kind(item, var, "an attribute record");
                    return None;
                }
            }
        }
    }
    complete.then_some(fields)
}

/// The field of that name, the same in all operators' schemas.
fn schema_field(s: &mut Scope, form: &Form, ops: &[OpId]) -> Option<AttrField> {
    let name = form.word().unwrap_or("");
    for op in ops {
        if !op.op().attrs().iter().any(|f| f.name == name) {
            let mut d = form.complain(format!("operator `{}` has no attribute `{form}`", op.op().name()));
            if let Some(near) = nearest(name, op.op().attrs().iter().map(|f| f.name)) {
                d = d.help(format!("did you mean `{near}`?"));
            }
            s.error(d);
            return None;
        }
    }
    ops.first()?.op().attrs().iter().find(|f| f.name == name).copied()
}

fn field_pattern(
    s: &mut Scope,
    form: &Form,
    field: &AttrField,
    record: usize,
    element: Option<usize>,
) -> Option<FieldPattern> {
    if let Some(name) = variable(form) {
        return match s.find(name).map(|v| v.means.clone()) {
            None => {
                let def = AttrDef::Field { record, field: field.name.into(), element };
                Some(FieldPattern::Var(s.define_attr(form, name, def)))
            }
            Some(Means::Attr(var)) => Some(FieldPattern::Var(var)),
            Some(_) => {
                s.wrong_kind(form, name, "an attribute");
                None
            }
        };
    }
    let value = literal(form);
    if let (None, None, Some(items)) = (&value, element, form.list(Bracket::Square)) {
        let items: Vec<Option<FieldPattern>> =
            items.iter().enumerate().map(|(k, f)| field_pattern(s, f, field, record, Some(k))).collect();
        return items.into_iter().collect::<Option<_>>().map(FieldPattern::List);
    }
    let fits = match (value, element) {
        (Some(v), None) => field.accept(v).ok(),
        (v, _) => v,
    };
    if fits.is_none() {
        let d = form.complain(format!("attribute `{}` is {form} here, but should be {}", field.name, field.wanted()));
        s.error(d);
    }
    fits.map(FieldPattern::Value)
}
