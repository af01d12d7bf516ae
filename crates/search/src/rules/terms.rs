//! Reads right sides, expressions and guards.

use super::{
    ast::{Arg, Condition, ConstType, Expr, Hint, Term, TermItem, TermOp},
    functions::{self, Param},
    guards,
    literals::{literal, number, sequence, variable},
    reader::{Bracket, Form, FormKind},
    scope::{Means, Scope},
};
use crate::{
    diag::nearest,
    ir::{AttrValue, Name, OpId},
    ops::AttrField,
    tensor::DType,
};

/// The term that a form is; `None` where it is none, with complaints in the scope.
pub(super) fn term(s: &mut Scope, form: &Form) -> Option<Term> {
    if let Some(name) = variable(form) {
        return match s.find(name).map(|v| v.means.clone()) {
            Some(Means::Class(slot)) => Some(Term::Class(slot)),
            Some(Means::Built(i)) => Some(Term::Built(i)),
            Some(Means::Seq(seq)) if s.in_seq => Some(Term::Element(seq)),
            _ => {
                s.wrong_kind(form, name, "a value");
                None
            }
        };
    }
    let Some([head, rest @ ..]) = form.list(Bracket::Round) else {
        let d = form.complain(format!("`{form}` is no value"));
        s.error(match form.word().and_then(number) {
            Some(_) => d.help("a constant is (const 0.5 like ?x)"),
            None => d.help("values are ?x, (operator …), (tuple …), (proj i …), (const …)"),
        });
        return None;
    };
    match head.word() {
        Some("tuple") => tuple(s, rest),
        Some("proj") => match rest {
            [index, inner] => {
                let index = expr(s, index, Param::Int);
                let inner = term(s, inner);
                Some(Term::Proj(index?, Box::new(inner?)))
            }
            _ => {
                let d = form.complain("a projection is (proj index tuple)");
                s.error(d);
                None
            }
        },
        Some("nth") => match rest {
            [index, xs] => {
                let index = expr(s, index, Param::Int);
                match variable(xs).and_then(|name| s.find(name)).map(|v| v.means.clone()) {
                    Some(Means::Seq(seq)) => Some(Term::Nth(index?, seq)),
                    _ => {
                        s.wrong_kind(xs, &xs.to_string(), "a sequence of values");
                        None
                    }
                }
            }
            _ => {
                let d = form.complain("an element of a sequence is (nth index ?xs)");
                s.error(d);
                None
            }
        },
        Some("const") => constant(s, form, rest),
        Some(name) => operator(s, form, head, name, rest),
        None => {
            let d = head.complain(format!("`{head}` is no operator"));
            s.error(d);
            None
        }
    }
}

fn tuple(s: &mut Scope, rest: &[Form]) -> Option<Term> {
    let (mut items, mut complete, mut at) = (Vec::new(), true, 0);
    while at < rest.len() {
        let form = &rest[at];
        let dots = rest.get(at + 1).and_then(Form::word) == Some("...");
        at += if dots { 2 } else { 1 };
        let item = if let Some(name) = sequence(form) {
            match s.find(name).map(|v| v.means.clone()) {
                Some(Means::Seq(seq)) => Some(TermItem::Each(Term::Element(seq), seq)),
                _ => {
                    s.wrong_kind(form, name, "a sequence of values");
                    None
                }
            }
        } else if dots {
            let outer = std::mem::replace(&mut s.in_seq, true);
            let inner = term(s, form);
            s.in_seq = outer;
            inner.and_then(|t| match first_seq(&t) {
                Some(seq) => Some(TermItem::Each(t, seq)),
                None => {
                    let d = form.complain("there is no sequence in what is repeated");
                    s.error(d);
                    None
                }
            })
        } else {
            term(s, form).map(TermItem::One)
        };
        match item {
            Some(item) => items.push(item),
            None => complete = false,
        }
    }
    complete.then_some(Term::Tuple(items))
}

/// The first sequence that a term takes elements of.
fn first_seq(t: &Term) -> Option<usize> {
    match t {
        Term::Element(seq) => Some(*seq),
        Term::Op { args, .. } => args.iter().find_map(first_seq),
        Term::Tuple(items) => items.iter().find_map(|i| match i {
            TermItem::One(t) => first_seq(t),
            TermItem::Each(..) => None,
        }),
        Term::Proj(_, t) => first_seq(t),
        Term::Class(_) | Term::Built(_) | Term::Nth(..) | Term::Const(..) => None,
    }
}

/// `(const VALUE)`, `(const NUMBER DTYPE)`, `(const NUMBER like ?x)`.
fn constant(s: &mut Scope, form: &Form, rest: &[Form]) -> Option<Term> {
    let (value, ty) = match rest {
        [value] => (expr(s, value, Param::Tensor)?, None),
        [value, like, var] if like.word() == Some("like") => {
            let value = expr(s, value, Param::Number);
            let ty = match variable(var).map(|n| (n, s.find(n).map(|v| v.means.clone()))) {
                Some((_, Some(Means::Class(slot)))) => ConstType::Like(slot),
                Some((name, _)) => {
                    s.wrong_kind(var, name, "a value");
                    return None;
                }
                None => {
                    let d = var.complain(format!("`{var}` is no variable"));
                    s.error(d);
                    return None;
                }
            };
            (value?, Some(ty))
        }
        [value, ty] => {
            let value = expr(s, value, Param::Number);
            let ty = match ty.word().and_then(|w| w.parse::<DType>().ok()) {
                Some(d) => ConstType::Given(d),
                None => ConstType::Computed(expr(s, ty, Param::Any)?),
            };
            (value?, Some(ty))
        }
        _ => {
            let d = form.complain("a constant is (const number like ?x), (const number dtype) or (const tensor)");
            s.error(d);
            return None;
        }
    };
    Some(Term::Const(value, ty))
}

fn operator(s: &mut Scope, form: &Form, head: &Form, name: &str, rest: &[Form]) -> Option<Term> {
    let (record, args) = match rest {
        [r, args @ ..] if r.list(Bracket::Curly).is_some() => (Some(r), args),
        args => (None, args),
    };
    let name = name.strip_prefix('~').unwrap_or(name);
    // In a rule that goes both ways, the operator variable's class stands on one side.
    let name = name.split_once(':').filter(|_| name.starts_with('?')).map_or(name, |(var, _)| var);
    let op = if name.starts_with('?') {
        match s.find(name).map(|v| v.means.clone()) {
            Some(Means::Op(slot, ops)) => Some((TermOp::Matched(slot), ops.to_vec())),
            _ => {
                s.wrong_kind(head, name, "an operator");
                None
            }
        }
    } else {
        s.operator(head, name).map(|op| (TermOp::One(op), vec![op]))
    };
    if let Some((_, ops)) = &op
        && let Some(bad) = ops.iter().find(|o| o.op().inputs().len() != args.len())
    {
        s.arity(form, bad.op().name(), bad.op().inputs(), args.len());
    }
    let fields = match (&op, record) {
        (Some((_, ops)), record) => self::record(s, form, record, ops),
        (None, _) => None,
    };
    let args: Vec<Option<Term>> = args.iter().map(|a| term(s, a)).collect();
    let args = args.into_iter().collect::<Option<Vec<_>>>()?;
    let (base, fields) = fields?;
    Some(Term::Op { op: op?.0, base, fields, args })
}

/// The fields of `{..?base field expr …}`.
#[expect(clippy::type_complexity, reason = "a base and fields, told apart by the caller at once")]
fn record(
    s: &mut Scope,
    whole: &Form,
    form: Option<&Form>,
    ops: &[OpId],
) -> Option<(Option<usize>, Vec<(Name, Expr)>)> {
    let items = form.and_then(|f| f.list(Bracket::Curly)).unwrap_or(&[]);
    let (mut fields, mut base, mut complete, mut at) = (Vec::<(Name, Expr)>::new(), None, true, 0);
    while at < items.len() {
        let item = &items[at];
        at += 1;
        if let Some(var) = item.word().and_then(|w| w.strip_prefix("..")) {
            match s.find(var).map(|v| v.means.clone()) {
                Some(Means::Record(slot, info)) => base = Some((slot, info, item)),
                _ => {
                    s.wrong_kind(item, var, "an attribute record");
                    complete = false;
                }
            }
            continue;
        }
        let Some(field) = field_of_all(s, item, ops) else {
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
        if fields.iter().any(|(n, _)| n.as_str() == field.name) {
            let d = item.complain(format!("attribute `{}` is given twice", field.name));
            s.error(d);
        }
        if let Some(v) = literal(value)
            && field.accept(v).is_err()
        {
            let d =
                value.complain(format!("attribute `{}` is {value} here, but should be {}", field.name, field.wanted()));
            s.error(d);
        }
        match expr(s, value, Param::Any) {
            Some(e) => fields.push((field.name.into(), e)),
            None => complete = false,
        }
    }
    let given = |name: &str| fields.iter().any(|(n, _)| n.as_str() == name);
    // A record of the very operators that are built has whatever each of them needs.
    let of_base = |name: &str| match &base {
        Some((_, info, _)) if *info.ops == *ops => true,
        Some((_, info, _)) => info.ops.iter().all(|o| o.op().attrs().iter().any(|f| f.name == name)),
        None => false,
    };
    for field in ops.iter().flat_map(|o| o.op().attrs()) {
        if complete && field.default_value().is_none() && !given(field.name) && !of_base(field.name) {
            let d = form.unwrap_or(whole).complain(format!("the attribute `{}` must be given", field.name));
            s.error(d);
            complete = false;
        }
    }
    // A field that the target lacks would be dropped in silence: the pattern must have said what it is.
    if let Some((_, info, item)) = &base {
        for field in info.ops.iter().flat_map(|o| o.op().attrs()) {
            let kept = ops.iter().any(|o| o.op().attrs().iter().any(|f| f.name == field.name));
            if !kept && !info.named.iter().any(|n| n.as_str() == field.name) {
                let d = item
                    .complain(format!(
                        "`{}` has no attribute `{}` to keep that of `{item}`",
                        ops[0].op().name(),
                        field.name
                    ))
                    .help("name the attribute in the pattern, so that the rule says what becomes of it");
                s.errors.push(d);
                complete = false;
            }
        }
    }
    complete.then_some((base.map(|(slot, ..)| slot), fields))
}

fn field_of_all(s: &mut Scope, form: &Form, ops: &[OpId]) -> Option<AttrField> {
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

/// The expression that a form is, of the wanted kind as far as that can be seen.
pub(super) fn expr(s: &mut Scope, form: &Form, wanted: Param) -> Option<Expr> {
    if let Some(name) = variable(form) {
        return match s.find(name).map(|v| v.means.clone()) {
            Some(Means::Attr(var)) => Some(Expr::Var(var)),
            Some(Means::Op(slot, _)) if matches!(wanted, Param::Str | Param::Any) => Some(Expr::OpName(slot)),
            _ => {
                s.wrong_kind(form, name, "an attribute");
                None
            }
        };
    }
    if let Some(v) = literal(form) {
        let fits = match wanted {
            Param::Int => v.as_int().is_some(),
            Param::Number | Param::Rest => v.as_float().is_some(),
            Param::List => matches!(v, AttrValue::List(_)),
            Param::Str => matches!(v, AttrValue::Str(_)),
            Param::Tensor => false,
            _ => true,
        };
        if !fits {
            let d = form.complain(format!("`{form}` should be {} here", describe(wanted)));
            s.error(d);
            return None;
        }
        return Some(Expr::Value(v));
    }
    if let Some(items) = form.list(Bracket::Square) {
        let items: Vec<Option<Expr>> = items.iter().map(|f| expr(s, f, Param::Any)).collect();
        return items.into_iter().collect::<Option<_>>().map(Expr::List);
    }
    let Some([head, args @ ..]) = form.list(Bracket::Round) else {
        let d = form.complain(format!("`{form}` is no attribute value"));
        s.error(d);
        return None;
    };
    let name = head.word().unwrap_or("");
    let Some(f) = functions::lookup(name) else {
        let mut d = head.complain(format!("there is no attribute function `{head}`"));
        if let Some(near) = nearest(name, functions::all().iter().map(|f| f.name)) {
            d = d.help(format!("did you mean `{near}`?"));
        }
        s.error(d);
        args.iter().for_each(|a| mark_used(s, a));
        return None;
    };
    let agrees = match (wanted, f.gives) {
        (Param::Number | Param::Rest, Param::Int | Param::Number) | (Param::Int, Param::Number) => true,
        (w, g) => w == g || matches!(w, Param::Any | Param::Rest) || g == Param::Any,
    };
    if !agrees {
        let d = form.complain(format!("`{name}` gives {}, but {} is wanted", describe(f.gives), describe(wanted)));
        s.error(d);
    }
    self::args(s, form, name, f.params, args).map(|args| Expr::Call(f, args))
}

fn describe(p: Param) -> &'static str {
    match p {
        Param::Int => "an integer",
        Param::Number | Param::Rest => "a number",
        Param::List => "a list",
        Param::Str => "a string",
        Param::Tensor => "a tensor",
        Param::Any => "an attribute value",
        Param::Class => "a value",
        Param::Classes => "a sequence of values",
    }
}

/// The arguments of a function or guard.
fn args(s: &mut Scope, form: &Form, name: &str, params: &[Param], args: &[Form]) -> Option<Vec<Arg>> {
    let fits = match params {
        [Param::Rest] => !args.is_empty(),
        _ => params.len() == args.len(),
    };
    if !fits {
        let wanted = if params == [Param::Rest] { "at least 1".to_owned() } else { params.len().to_string() };
        let d = form.complain(format!("`{name}` takes {wanted} arguments, but has {} here", args.len()));
        s.error(d);
        args.iter().for_each(|a| mark_used(s, a));
        return None;
    }
    let found: Vec<Option<Arg>> = args
        .iter()
        .enumerate()
        .map(|(i, form)| match params.get(i).copied().unwrap_or(Param::Rest) {
            wanted @ (Param::Class | Param::Classes) => {
                let var = variable(form).or_else(|| sequence(form));
                let means = var.and_then(|n| s.find(n)).map(|v| v.means.clone());
                match (wanted, means) {
                    (Param::Class, Some(Means::Class(slot))) => Some(Arg::Class(slot)),
                    (Param::Class, Some(Means::Built(i))) => Some(Arg::Built(i)),
                    (Param::Classes, Some(Means::Seq(seq))) => Some(Arg::Classes(seq)),
                    _ => {
                        match var {
                            Some(var) => s.wrong_kind(form, var, describe(wanted)),
                            None => {
                                let d = form.complain(format!("`{form}` should be {} here", describe(wanted)));
                                s.error(d);
                            }
                        }
                        None
                    }
                }
            }
            wanted => expr(s, form, wanted).map(Arg::Expr),
        })
        .collect();
    found.into_iter().collect()
}

/// Counts the variables in a form that can't be read as used: one error should not cause more.
fn mark_used(s: &mut Scope, form: &Form) {
    if let Some(name) = variable(form).or_else(|| sequence(form)) {
        s.find(name);
    }
    if let FormKind::List(_, items) = &form.kind {
        items.iter().for_each(|f| mark_used(s, f));
    }
}

/// The condition that a form is.
pub(super) fn condition(s: &mut Scope, form: &Form) -> Option<Condition> {
    let Some([head, rest @ ..]) = form.list(Bracket::Round) else {
        let d = form.complain(format!("`{form}` is no guard")).help("guards are (name argument…)");
        s.error(d);
        return None;
    };
    let all = |s: &mut Scope| {
        let all: Vec<Option<Condition>> = rest.iter().map(|f| condition(s, f)).collect();
        all.into_iter().collect::<Option<Vec<_>>>()
    };
    match (head.word().unwrap_or(""), rest) {
        ("not", [one]) => condition(s, one).map(|c| Condition::Not(Box::new(c))),
        ("and", _) => all(s).map(Condition::All),
        ("or", _) => all(s).map(Condition::Any),
        (name, _) => {
            let Some(guard) = guards::lookup(name) else {
                let mut d = head.complain(format!("there is no guard `{head}`"));
                if let Some(near) = nearest(name, guards::all().iter().map(|g| g.name)) {
                    d = d.help(format!("did you mean `{near}`?"));
                }
                s.error(d);
                rest.iter().for_each(|a| mark_used(s, a));
                return None;
            };
            args(s, form, name, guard.params, rest).map(|args| Condition::Test(guard, args))
        }
    }
}

/// One line of a sample: `(?x [1 3 8 8])`, `(?x [1 3] int8)`, `(?x [] float32 0.5)`, `(?xs [[1 2] [1 3]])`, `(?p [0 2 1])`,
/// `(?f nn.relu)`.
pub(super) fn hint(s: &mut Scope, form: &Form) -> Option<Hint> {
    let bad = |s: &mut Scope, form: &Form, wanted: &str| {
        let d = form.complain(format!("`{form}` should be {wanted}"));
        s.error(d);
        None
    };
    let Some([var, rest @ ..]) = form.list(Bracket::Round) else { return bad(s, form, "(?variable …)") };
    let Some(name) = variable(var) else { return bad(s, var, "a variable") };
    let dtype = match rest.get(1).map(|f| f.word().and_then(|w| w.parse::<DType>().ok())) {
        Some(None) => return bad(s, &rest[1], "an element type"),
        d => d.flatten(),
    };
    let value = match rest.get(2).map(|f| f.word().and_then(number)) {
        Some(None) => return bad(s, &rest[2], "a number"),
        v => v.flatten(),
    };
    let given = rest.first().and_then(literal);
    match (s.find(name).map(|v| v.means.clone()), given) {
        (Some(Means::Class(slot)), Some(v)) => match v.as_ints() {
            Some(shape) => Some(Hint::Class { slot, shape, dtype, value }),
            None => bad(s, &rest[0], "a shape"),
        },
        (Some(Means::Seq(seq)), Some(AttrValue::List(l))) => match l.iter().map(AttrValue::as_ints).collect() {
            Some(shapes) => Some(Hint::Classes { seq, shapes, dtype }),
            None => bad(s, &rest[0], "a list of shapes"),
        },
        (Some(Means::Attr(var)), Some(value)) => Some(Hint::Attr { var, value }),
        (Some(Means::Op(slot, _)), _) => {
            let word = rest.first()?;
            let op = s.operator(word, word.word().unwrap_or(""))?;
            Some(Hint::Op { slot, op })
        }
        (None, _) => {
            s.unbound(var, name);
            None
        }
        _ => bad(s, form, "(?x shape), (?a attribute) or (?f operator)"),
    }
}
