//! Reads rule files: rulesets, rules and their clauses. All errors of a file are reported at once.

use std::sync::Arc;

use super::{
    ast::{AttrDef, Pattern, RuleDef, SlotKind, Term},
    functions::Param,
    literals::{literal, variable},
    patterns::pattern,
    reader::{Bracket, Form, FormKind, Top, read},
    scope::{Means, Scope},
    search::anchor,
    terms::{condition, expr, hint, term},
};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{AttrValue, Name, Source, Span},
    saturate::Grade,
};

/// A ruleset as it was read.
pub(super) struct SetDef {
    pub(super) name: Name,
    pub(super) doc: Arc<str>,
    /// `:by-request`: it runs where it is named only.
    pub(super) by_request: bool,
    /// `:given ?v VALUE`: variables that whoever runs the rules may set, and their values where nobody does.
    pub(super) givens: Vec<(Name, AttrValue)>,
    /// The form as it was written.
    pub(super) head: Arc<str>,
    pub(super) rules: Vec<RuleDef>,
}

/// All rulesets of a text.
pub(super) fn load(name: &str, text: &str) -> Result<Vec<SetDef>, Refused> {
    let source = Arc::new(Source { name: name.to_owned(), text: text.to_owned() });
    let mut file = File {
        sets: Vec::new(),
        defaults: Defaults::default(),
        errors: Vec::new(),
        seen: Vec::new(),
        names: Vec::new(),
    };
    for top in read(&source)? {
        file.top(&top);
    }
    for (set, span) in file.sets.iter().filter_map(|(s, span)| s.rules.is_empty().then_some((s, span))) {
        // Where rules were refused, the set is empty for that reason.
        if file.errors.is_empty() {
            let d = Diagnostic::new(format!("ruleset `{}` has no rules", set.name)).at(Some(span.clone()));
            file.errors.push(d);
        }
    }
    match file.errors.is_empty() {
        true => Ok(file.sets.into_iter().map(|(s, _)| s).collect()),
        false => {
            file.errors.sort_by_key(|d| d.span.as_ref().map_or(0, |s| s.start));
            Err(Refused(file.errors))
        }
    }
}

/// What the rules of a ruleset are, unless they say otherwise.
#[derive(Clone, Default)]
struct Defaults {
    grade: Grade,
    /// The bound of those of its rules that are approximate.
    error: Option<Form>,
}

struct File {
    sets: Vec<(SetDef, Span)>,
    /// Those of the current ruleset.
    defaults: Defaults,
    errors: Vec<Diagnostic>,
    /// Rules so far up to the names of variables, with their names.
    seen: Vec<(String, String)>,
    /// The full names of all rules so far, refused ones included.
    names: Vec<String>,
}

impl File {
    fn top(&mut self, top: &Top) {
        match top.form.list(Bracket::Round) {
            Some([head, rest @ ..]) if head.word() == Some("ruleset") => self.ruleset(top, rest),
            Some([head, rest @ ..]) if head.word() == Some("rule") => self.rule(top, rest),
            _ => {
                let d = top.form.complain("this is neither a ruleset nor a rule");
                self.errors.push(d.help("forms at the top of a file are (ruleset name …) and (rule name …)"));
            }
        }
    }

    fn ruleset(&mut self, top: &Top, rest: &[Form]) {
        let Some(name) = rest.first().and_then(|f| plain_name(f)) else {
            self.errors.push(top.form.complain("a ruleset is (ruleset name :numerics exact|real|approx)"));
            return;
        };
        self.defaults = Defaults::default();
        let (mut options, mut by_request, mut givens) = (&rest[1..], false, Vec::new());
        loop {
            options = match options {
                [key, grade, rest @ ..] if key.word() == Some(":numerics") => {
                    match grade.to_string().parse() {
                        Ok(g) => self.defaults.grade = g,
                        Err(why) => self.errors.push(grade.complain(why)),
                    }
                    rest
                }
                [key, error, rest @ ..] if key.word() == Some(":error") => {
                    self.defaults.error = Some(error.clone());
                    rest
                }
                [key, rest @ ..] if key.word() == Some(":by-request") => {
                    by_request = true;
                    rest
                }
                [key, var, value, rest @ ..] if key.word() == Some(":given") => {
                    match (variable(var), literal(value)) {
                        (Some(var), Some(value)) => givens.push((var.into(), value)),
                        _ => self.errors.push(key.complain("`:given` is used as :given ?variable VALUE")),
                    }
                    rest
                }
                [odd, ..] => {
                    let d = odd.complain(format!("`{odd}` is no option of a ruleset"));
                    self.errors.push(
                        d.help("options are :numerics GRADE, :error BOUND, :by-request and :given ?variable VALUE"),
                    );
                    break;
                }
                [] => break,
            };
        }
        if self.sets.iter().any(|(s, _)| s.name.as_str() == name) {
            self.errors.push(rest[0].complain(format!("ruleset `{name}` is defined twice")));
            return;
        }
        let set = SetDef {
            name: name.into(),
            doc: top.comment.as_str().into(),
            by_request,
            givens,
            head: top.form.to_string().into(),
            rules: Vec::new(),
        };
        self.sets.push((set, rest[0].span.clone()));
    }

    fn rule(&mut self, top: &Top, rest: &[Form]) {
        let Some(name) = rest.first().and_then(plain_name) else {
            self.errors.push(top.form.complain("a rule is (rule name left => right …)"));
            return;
        };
        let Some((set, _)) = self.sets.last() else {
            self.errors
                .push(top.form.complain("this rule is in no ruleset").help("begin the file with (ruleset name)"));
            return;
        };
        let full = format!("{}/{name}", set.name);
        match self.names.contains(&full) {
            true => {
                let d = rest[0].complain(format!("rule `{name}` is defined twice in ruleset `{}`", set.name));
                self.errors.push(d);
            }
            false => self.names.push(full.clone()),
        }
        let Some(parts) = Parts::of(&top.form, &rest[1..], &self.defaults, &mut self.errors) else { return };
        let canonical = up_to_names(&top.form, 2);
        match self.seen.iter().find(|(c, _)| *c == canonical) {
            Some((_, other)) => {
                let d = rest[0].complain(format!("rule `{name}` is rule `{other}` with other names"));
                self.errors.push(d);
            }
            None => self.seen.push((canonical, full)),
        }
        let right = parts.right.expect("a rule that was read has a right side");
        let mut directions = vec![(name.to_owned(), parts.left, right)];
        if parts.both_ways {
            directions.push((format!("{name}.back"), right, parts.left));
        }
        // Without the guards that special values need, what is left holds where all is finite.
        let general = match parts.special.is_empty() {
            true => None,
            false => Some(Parts { grade: Grade::Finite, special: Vec::new(), ..parts.clone() }),
        };
        let directions = directions.into_iter().flat_map(|(name, left, right)| {
            let finite = general.as_ref().map(|g| (format!("{name}.finite"), g, left, right));
            [(name, &parts, left, right)].into_iter().chain(finite)
        });
        for (i, (name, parts, left, right)) in directions.enumerate() {
            let set = &self.sets.last().expect("found above").0;
            match build(top, set, &name, parts, left, Some(right)) {
                Ok(rule) => self.sets.last_mut().expect("found above").0.rules.push(rule),
                // The way back has errors of its own only where it says what it lacks.
                Err(errors) if i == 0 => {
                    self.errors.extend(errors);
                    return;
                }
                Err(errors) => self.errors.extend(errors),
            }
        }
    }
}

/// A name of a rule or ruleset.
fn plain_name(form: &Form) -> Option<&str> {
    form.word().filter(|w| w.chars().all(|c| c.is_alphanumeric() || "-_.+".contains(c)))
}

/// The parts of a rule's form.
#[derive(Clone)]
struct Parts<'a> {
    grade: Grade,
    error: Option<Form>,
    grows: bool,
    promised: bool,
    constants: bool,
    limit: Option<u64>,
    both_ways: bool,
    left: &'a Form,
    /// None of a composite, which is a left side and its guards.
    right: Option<&'a Form>,
    lets: Vec<(&'a Form, &'a Form)>,
    /// `:for` and `:let`, in order.
    locals: Vec<(bool, &'a Form, &'a Form)>,
    guards: Vec<&'a Form>,
    /// Guards that infinities, NaN and overflow need, and nothing else.
    special: Vec<&'a Form>,
    samples: Vec<&'a [Form]>,
}

impl<'a> Parts<'a> {
    fn of(whole: &Form, items: &'a [Form], set: &Defaults, errors: &mut Vec<Diagnostic>) -> Option<Parts<'a>> {
        let before = errors.len();
        let Some(arrow) = items.iter().position(|f| matches!(f.word(), Some("=>" | "<=>"))) else {
            errors.push(whole.complain("this rule has no `=>`"));
            return None;
        };
        let both_ways = items[arrow].word() == Some("<=>");
        let (mut grade, mut error, mut limit, mut head) = (set.grade, None, None, &items[..arrow]);
        let (mut grows, mut promised, mut constants) = (false, false, false);
        loop {
            head = match head {
                [key, value, rest @ ..] if key.word() == Some(":numerics") => {
                    match value.to_string().parse() {
                        Ok(g) => grade = g,
                        Err(why) => errors.push(value.complain(why)),
                    }
                    rest
                }
                [key, value, rest @ ..] if key.word() == Some(":error") => {
                    error = Some(value);
                    rest
                }
                [key, rest @ ..] if key.word() == Some(":grows") => {
                    grows = true;
                    rest
                }
                [key, rest @ ..] if key.word() == Some(":promised") => {
                    promised = true;
                    rest
                }
                [key, rest @ ..] if key.word() == Some(":constants") => {
                    constants = true;
                    rest
                }
                [key, value, rest @ ..] if key.word() == Some(":limit") => {
                    limit = value.word().and_then(|w| w.parse().ok()).filter(|&n: &u64| n > 0);
                    if limit.is_none() {
                        errors.push(
                            value.complain(format!("`:limit` is {value} here, but should be a positive integer")),
                        );
                    }
                    rest
                }
                _ => break,
            };
        }
        let error = match (grade, error) {
            (Grade::Approx, own) => {
                let bound = own.or(set.error.as_ref()).cloned();
                if bound.is_none() {
                    let d = whole.complain("an approximate rule says how far its sides may differ");
                    errors.push(d.help("write `:error 0.01` after `:numerics approx`, or any attribute expression"));
                }
                bound
            }
            (_, None) => None,
            (_, Some(odd)) => {
                errors.push(odd.complain(format!("a rule of grade {grade} has no error")).help(":numerics approx"));
                None
            }
        };
        let left = match head {
            [left] => left,
            [] => {
                errors.push(items[arrow].complain("there is no left side before this"));
                return None;
            }
            [_, odd, ..] => {
                errors.push(
                    odd.complain("a rule has one left side").help("several roots stand in brackets: ((?l …) (?r …))"),
                );
                return None;
            }
        };
        let is_key = |f: &Form| f.word().is_some_and(|w| w.starts_with(':'));
        let tail = &items[arrow + 1..];
        let (results, mut tail) = tail.split_at(tail.iter().position(is_key).unwrap_or(tail.len()));
        let Some((right, lets)) = results.split_last() else {
            errors.push(items[arrow].complain("there is no right side after this"));
            return None;
        };
        let lets: Vec<(&Form, &Form)> = lets
            .iter()
            .filter_map(|f| match f.list(Bracket::Round) {
                Some([head, var, value]) if head.word() == Some("let") => Some((var, value)),
                _ => {
                    errors.push(f.complain("before the right side only (let ?x value) may stand"));
                    None
                }
            })
            .collect();
        if both_ways && !lets.is_empty() {
            errors.push(items[arrow].complain("a rule that goes both ways can't have `let`"));
        }
        let right = Some(right);
        let mut parts =
            Parts { grade, error, grows, promised, constants, limit, both_ways, right, lets, ..Parts::of_left(left) };
        while let [key, rest @ ..] = tail {
            let (values, rest) = rest.split_at(rest.iter().position(is_key).unwrap_or(rest.len()));
            tail = rest;
            match (key.word().unwrap_or(""), values) {
                (":when", values) => parts.guards.extend(values),
                (":special", values) => {
                    if grade != Grade::Real || values.is_empty() {
                        let d = key
                            .complain("`:special` says what must hold for a rule of grade real to keep special values");
                        errors.push(d.help("write guards behind it, and `:numerics real`"));
                    }
                    parts.special.extend(values);
                }
                (word @ (":for" | ":let"), [var, value]) => parts.locals.push((word == ":for", var, value)),
                (":for" | ":let", _) => errors.push(key.complain(format!("`{key}` is used as {key} ?variable value"))),
                (":sample", values) => {
                    for v in values {
                        match v.list(Bracket::Round) {
                            Some(hints) => parts.samples.push(hints),
                            None => errors.push(v.complain("a sample is ((?x [1 2]) …)")),
                        }
                    }
                }
                (_, _) => {
                    let d = key.complain(format!("`{key}` is no clause of a rule"));
                    errors.push(d.help(
                        "clauses are :when, :special, :for, :let, :sample; :numerics, :error, :grows, :promised, :constants and :limit stand \
                         before the left side",
                    ));
                }
            }
        }
        (errors.len() == before).then_some(parts)
    }

    /// A left side and nothing else.
    fn of_left(left: &'a Form) -> Parts<'a> {
        Parts {
            grade: Grade::default(),
            error: None,
            grows: false,
            promised: false,
            constants: false,
            limit: None,
            both_ways: false,
            left,
            right: None,
            lets: vec![],
            locals: vec![],
            guards: vec![],
            special: vec![],
            samples: vec![],
        }
    }

    /// The parts of a composite: a pattern, then `:when` and `:let`.
    fn of_composite(items: &'a [Form], errors: &mut Vec<Diagnostic>) -> Option<Parts<'a>> {
        let before = errors.len();
        let (left, mut tail) = items.split_first()?;
        let mut parts = Parts::of_left(left);
        let is_key = |f: &Form| f.word().is_some_and(|w| w.starts_with(':'));
        while let [key, rest @ ..] = tail {
            let (values, rest) = rest.split_at(rest.iter().position(is_key).unwrap_or(rest.len()));
            tail = rest;
            match (key.word().unwrap_or(""), values) {
                (":when", values) => parts.guards.extend(values),
                (":let", [var, value]) => parts.locals.push((false, var, value)),
                (":let", _) => errors.push(key.complain("`:let` is used as :let ?variable value")),
                _ => {
                    let d = key.complain(format!("`{key}` is no clause of a composite"));
                    errors.push(d.help("a composite is (composite name pattern :let ?v value :when guard …)"));
                }
            }
        }
        (errors.len() == before).then_some(parts)
    }
}

/// The composites of a text: `(composite NAME PATTERN :when GUARD …)`, in order.
pub(super) fn composites(name: &str, text: &str) -> Result<Vec<RuleDef>, Refused> {
    let source = Arc::new(Source { name: name.to_owned(), text: text.to_owned() });
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for top in read(&source)? {
        let Some([head, name, items @ ..]) = top.form.list(Bracket::Round) else {
            errors.push(top.form.complain("this is no composite").help("a composite is (composite name pattern)"));
            continue;
        };
        match (head.word(), plain_name(name)) {
            (Some("composite"), Some(name)) if !items.is_empty() => {
                found.extend(composite(&top, name, items, &mut errors));
            }
            _ => errors.push(top.form.complain("this is no composite").help("a composite is (composite name pattern)")),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(Refused(errors)) }
}

/// The composite of a name whose text is a pattern and its clauses.
pub(super) fn composite_of(name: &str, text: &str) -> Result<RuleDef, Refused> {
    // The brackets are added to the front of the first line; messages show what was written behind them.
    let text = format!("(composite {name} {text})");
    let mut all = composites(name, &text)?;
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        _ => Err(Diagnostic::new(format!("`{name}`: one pattern was expected")).into()),
    }
}

fn composite(top: &Top, name: &str, items: &[Form], errors: &mut Vec<Diagnostic>) -> Option<RuleDef> {
    let parts = Parts::of_composite(items, errors)?;
    let set = SetDef {
        name: "composite".into(),
        doc: "".into(),
        by_request: true,
        givens: Vec::new(),
        head: "".into(),
        rules: Vec::new(),
    };
    let several =
        parts.left.list(Bracket::Round).and_then(|l| l.first()).is_some_and(|f| f.list(Bracket::Round).is_some());
    if several {
        errors.push(parts.left.complain("a composite has one result"));
        return None;
    }
    match build(top, &set, name, &parts, parts.left, None) {
        Ok(def) => Some(def),
        Err(e) => {
            errors.extend(e);
            None
        }
    }
}

/// The rule of one direction.
fn build(
    top: &Top,
    set: &SetDef,
    name: &str,
    parts: &Parts<'_>,
    left: &Form,
    right: Option<&Form>,
) -> Result<RuleDef, Vec<Diagnostic>> {
    let mut s = Scope::default();
    for (var, value) in &set.givens {
        s.define_attr(left, var, AttrDef::Given(var.clone(), value.clone()));
    }
    let roots = roots(&mut s, left);
    let mut fors = Vec::new();
    for &(is_for, var, value) in &parts.locals {
        let value = expr(&mut s, value, if is_for { Param::List } else { Param::Any });
        match variable(var) {
            Some(name) if s.find(name).is_none() => {
                let Some(value) = value else {
                    s.define_attr(var, name, AttrDef::Let(super::ast::Expr::List(vec![])));
                    continue;
                };
                let def = match is_for {
                    true => AttrDef::For(s.slot(SlotKind::Number), value),
                    false => AttrDef::Let(value),
                };
                let var = s.define_attr(var, name, def);
                if is_for {
                    fors.push(var);
                }
            }
            _ => {
                let d = var.complain(format!("`{var}` is not a new variable"));
                s.error(d);
            }
        }
    }
    let mut lets = Vec::new();
    for (var, value) in &parts.lets {
        let value = term(&mut s, value);
        match variable(var) {
            Some(name) if s.find(name).is_none() => {
                s.define(var, name, Means::Built(lets.len()));
            }
            _ => {
                let d = var.complain(format!("`{var}` is not a new variable"));
                s.error(d);
            }
        }
        lets.push(value);
    }
    let results = right.map_or(Some(Vec::new()), |right| results(&mut s, right, &roots));
    let error = parts.error.as_ref().map(|f| error_bound(&mut s, f));
    let guards: Vec<_> = parts.guards.iter().chain(&parts.special).map(|f| condition(&mut s, f)).collect();
    let samples: Vec<Vec<_>> =
        parts.samples.iter().map(|hints| hints.iter().filter_map(|h| hint(&mut s, h)).collect()).collect();
    if parts.promised && parts.samples.is_empty() {
        let d = left.complain("a rule that relies on what a program promises is shown by samples alone, but has none");
        s.error(d.help("write `:sample ((?x [2 3]) …)` at its end"));
    }
    if !parts.grows {
        if roots.iter().flatten().any(|p| matches!(p.1, Pattern::Class(_))) {
            let d = left.complain("a left side that is a variable alone matches everything");
            s.error(d.help("mark the rule `:grows` if it must be"));
        } else if right.is_some_and(|right| reorders(left, right)) && !parts.guards.iter().any(|g| directs(g)) {
            let d = left.complain("commutativity and associativity grow the graph without end");
            s.error(d.help("match either order with `~`, or mark the rule `:grows`"));
        }
    }
    for k in 1..roots.len() {
        let mut slots = Vec::new();
        roots[..k].iter().flatten().for_each(|(_, p)| class_slots(p, &mut slots));
        if let Some((_, p)) = &roots[k]
            && anchor(p, &|slot| slots.contains(&slot)).is_none()
        {
            let d = left.complain("each root after the first must share a value with an earlier one");
            s.error(d);
        }
    }
    if !s.errors.is_empty() {
        return Err(s.errors);
    }
    let complete = || {
        Some((
            roots.into_iter().map(|r| r.map(|(_, p)| p)).collect::<Option<Vec<_>>>()?,
            lets.into_iter().collect::<Option<Vec<_>>>()?,
            results?,
            guards.into_iter().collect::<Option<Vec<_>>>()?,
            match error {
                Some(bound) => Some(bound?),
                None => None,
            },
        ))
    };
    let Some((roots, lets, results, guards, error)) = complete() else {
        // Whoever gives `None` has complained; were that forgotten, the rule must still not pass.
        return Err(vec![top.form.complain("this rule can't be read")]);
    };
    if parts.constants {
        let made: usize = lets.iter().chain(&results).map(Term::nodes).sum();
        if made >= roots.iter().map(Pattern::nodes).sum() {
            let d = left.complain("a rule that rewrites constants must make fewer operators than it matches");
            return Err(vec![d.help("what constants are made of is computed once: other forms of it gain nothing")]);
        }
    }
    Ok(RuleDef {
        ruleset: set.name.clone(),
        name: name.into(),
        grade: parts.grade,
        error,
        grows: parts.grows,
        promised: parts.promised,
        constants: parts.constants,
        limit: parts.limit,
        slots: s.slots,
        seqs: s.seqs,
        attr_vars: s.attr_vars,
        roots,
        lets,
        results,
        fors,
        guards,
        samples,
        doc: top.comment.as_str().into(),
        text: spelled(&top.form, name, parts, right).into(),
        span: top.form.span.clone(),
    })
}

/// A rule as it would be written by itself: one direction, under its own name and grade.
fn spelled(form: &Form, name: &str, parts: &Parts<'_>, right: Option<&Form>) -> String {
    let FormKind::List(_, items) = &form.kind else { return form.to_string() };
    let is = |a: &Form, b: Option<&Form>| b.is_some_and(|b| std::ptr::eq(a, b));
    let is_back = is(parts.left, right);
    let is_general = name.ends_with(".finite") && items.iter().any(|f| f.word() == Some(":special"));
    if !is_back && !is_general && !parts.both_ways {
        return form.to_string();
    }
    let mut words = vec!["rule".to_owned(), name.to_owned()];
    if is_general {
        words.push(format!(":numerics {}", parts.grade));
    }
    let mut rest = items[2..].iter().peekable();
    while let Some(item) = rest.next() {
        match item.word() {
            Some("<=>") => words.push("=>".into()),
            Some(":numerics") if is_general => drop(rest.next()),
            Some(":special") if is_general => {
                while rest.next_if(|f| !f.word().is_some_and(|w| w.starts_with(':'))).is_some() {}
            }
            _ if is_back && is(item, Some(parts.left)) => words.extend(parts.right.map(Form::to_string)),
            _ if is_back && is(item, parts.right) => words.push(parts.left.to_string()),
            _ => words.push(item.to_string()),
        }
    }
    format!("({})", words.join(" "))
}

/// The bound of an approximate rule: a number that is not negative, or what computes one.
fn error_bound(s: &mut Scope, form: &Form) -> Option<super::ast::Expr> {
    let bound = expr(s, form, Param::Number)?;
    if let super::ast::Expr::Value(v) = &bound
        && !v.as_float().is_some_and(|x| x >= 0.0 && x.is_finite())
    {
        let d = form.complain(format!("`{form}` is no bound of an error"));
        s.error(d.help("a bound is a share of the result's largest magnitude, such as 0.01"));
        return None;
    }
    Some(bound)
}

/// The slots of all classes that a pattern binds.
fn class_slots(p: &Pattern, out: &mut Vec<usize>) {
    match p {
        Pattern::Class(slot) => out.push(*slot),
        Pattern::As(slot, inner) => {
            out.push(*slot);
            class_slots(inner, out);
        }
        Pattern::Op { args: ps, .. } | Pattern::Tuple(ps) => ps.iter().for_each(|p| class_slots(p, out)),
        Pattern::TupleOf(inner) | Pattern::Proj(_, inner) => class_slots(inner, out),
        Pattern::Splat(_) | Pattern::Each(_) => {}
    }
}

/// The roots with their names; one without a name where the left side is one pattern.
fn roots(s: &mut Scope, left: &Form) -> Vec<Option<(Option<String>, Pattern)>> {
    let several =
        left.list(Bracket::Round).filter(|items| items.first().is_some_and(|f| f.list(Bracket::Round).is_some()));
    let Some(items) = several else { return vec![pattern(s, left).map(|p| (None, p))] };
    items
        .iter()
        .map(|item| match item.list(Bracket::Round) {
            Some([var, p]) if variable(var).is_some() => {
                let name = variable(var).expect("just seen");
                let p = pattern(s, p);
                match s.class_in_pattern(var, name)? {
                    Means::Class(slot) => Some((Some(name.to_owned()), Pattern::As(slot, Box::new(p?)))),
                    _ => None,
                }
            }
            _ => {
                let d = item.complain("a root among several is (?name pattern)");
                s.error(d);
                None
            }
        })
        .collect()
}

/// One term per root, in the roots' order.
fn results(s: &mut Scope, right: &Form, roots: &[Option<(Option<String>, Pattern)>]) -> Option<Vec<super::ast::Term>> {
    if let [only] = roots
        && only.as_ref().is_none_or(|(name, _)| name.is_none())
    {
        return term(s, right).map(|t| vec![t]);
    }
    let items = right.list(Bracket::Round).unwrap_or(&[]);
    let mut found: Vec<Option<super::ast::Term>> = vec![None; roots.len()];
    for item in items {
        let Some([var, t]) = item.list(Bracket::Round) else {
            let d = item.complain("the right side of several roots is ((?name value) …)");
            s.error(d);
            return None;
        };
        let t = term(s, t);
        let place = roots.iter().position(|r| match r {
            Some((Some(name), _)) => variable(var) == Some(name),
            _ => false,
        });
        match place {
            Some(i) => found[i] = t,
            None => {
                let d = var.complain(format!("`{var}` names no root of the left side"));
                s.error(d);
            }
        }
    }
    for (i, root) in roots.iter().enumerate() {
        if let (Some((Some(name), _)), None) = (root, &found[i])
            && s.errors.is_empty()
        {
            let d = right.complain(format!("the right side does not say what `{name}` becomes"));
            s.error(d);
        }
    }
    found.into_iter().collect()
}

/// Whether a guard gives a reordering a direction: constants meet, and where all constants are together it ends.
fn directs(guard: &Form) -> bool {
    guard.list(Bracket::Round).and_then(|items| items.first()).and_then(Form::word) == Some("const")
}

/// Whether both sides are made of one binary operator and the same variables: commutativity or associativity.
fn reorders(left: &Form, right: &Form) -> bool {
    fn collect<'a>(f: &'a Form, heads: &mut Vec<&'a str>, vars: &mut Vec<&'a str>) -> bool {
        match &f.kind {
            FormKind::Word(w) if w.starts_with('?') => {
                vars.push(w);
                true
            }
            FormKind::List(Bracket::Round, items) if items.len() == 3 => {
                let Some(head) = items[0].word() else { return false };
                heads.push(head.strip_prefix('~').unwrap_or(head));
                items[1..].iter().all(|f| collect(f, heads, vars))
            }
            _ => false,
        }
    }
    let (mut lh, mut lv, mut rh, mut rv) = (vec![], vec![], vec![], vec![]);
    if !collect(left, &mut lh, &mut lv) || !collect(right, &mut rh, &mut rv) {
        return false;
    }
    lv.sort_unstable();
    rv.sort_unstable();
    !lh.is_empty() && lh == rh && lv == rv && lh.iter().all(|h| *h == lh[0])
}

/// The text of a rule's form without its name and samples, variables numbered in the order of their appearance.
fn up_to_names(form: &Form, skip: usize) -> String {
    fn walk(f: &Form, names: &mut Vec<String>, out: &mut String) {
        match &f.kind {
            FormKind::Word(w) => {
                let Some(start) = w.find('?') else {
                    out.push_str(w);
                    out.push(' ');
                    return;
                };
                let end = w[start..].find([':', '.']).map_or(w.len(), |n| start + n);
                let name = &w[start..end];
                let number = names.iter().position(|n| n == name).unwrap_or_else(|| {
                    names.push(name.to_owned());
                    names.len() - 1
                });
                out.push_str(&format!("{}?{number}{} ", &w[..start], &w[end..]));
            }
            FormKind::Text(t) => out.push_str(&format!("\"{t}\" ")),
            FormKind::List(b, items) => {
                out.push_str(&format!("{b:?}("));
                items.iter().for_each(|f| walk(f, names, out));
                out.push(')');
            }
        }
    }
    let (mut names, mut out) = (Vec::new(), String::new());
    for f in form.list(Bracket::Round).unwrap_or(&[]).iter().skip(skip).take_while(|f| f.word() != Some(":sample")) {
        walk(f, &mut names, &mut out);
    }
    out
}
