//! Matches, and how expressions are computed in one.

use egg::Id;
use smallvec::SmallVec;

use super::{
    ast::{Arg, AttrDef, Condition, Expr, RuleDef, Slot},
    signature::{ClassView, Input},
};
use crate::{
    egraph::{Graph, Trials, What},
    ir::{AttrValue, Attrs, OpId, Type},
    saturate::Asked,
};

/// One match, complete or growing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Match {
    slots: SmallVec<[u32; 16]>,
    pub(super) seqs: SmallVec<[Vec<Id>; 1]>,
}

/// A slot that is not bound yet.
const UNBOUND: u32 = u32::MAX;

impl Match {
    pub(super) fn empty(rule: &RuleDef) -> Match {
        Match {
            slots: SmallVec::from_elem(UNBOUND, rule.slots.len()),
            seqs: SmallVec::from_elem(Vec::new(), rule.seqs),
        }
    }

    pub(super) fn get(&self, slot: Slot) -> Option<u32> {
        Some(self.slots[slot]).filter(|&v| v != UNBOUND)
    }

    /// Sets a slot, or compares where it is set.
    pub(super) fn bind(&mut self, slot: Slot, value: u32) -> bool {
        let old = std::mem::replace(&mut self.slots[slot], value);
        match old == UNBOUND || old == value {
            true => true,
            false => {
                self.slots[slot] = old;
                false
            }
        }
    }

    pub(super) fn bind_class(&mut self, slot: Slot, id: Id) -> bool {
        self.bind(slot, usize::from(id) as u32)
    }

    /// The class in a bound slot.
    pub(super) fn class(&self, slot: Slot) -> Id {
        Id::from(self.slots[slot] as usize)
    }

    pub(super) fn op(&self, slot: Slot) -> OpId {
        OpId(self.slots[slot])
    }
}

/// A match in its e-graph: what expressions are computed in.
#[derive(Copy, Clone)]
pub(super) struct Env<'a> {
    pub(super) rule: &'a RuleDef,
    pub(super) graph: &'a Graph,
    pub(super) found: &'a Match,
    /// The types of what the right side's `let`s have built so far.
    pub(super) built: &'a [BuiltType],
    /// Who wants to know whether uses are asked for.
    pub(super) asked: &'a Asked,
    /// The made-up size at which extents are looked at; none where these are as they are known.
    pub(super) trial: Option<usize>,
}

/// The type of a value that is not in the e-graph yet.
#[derive(Clone, Debug)]
pub(super) struct BuiltType {
    pub(super) ty: Type,
    /// What it is at made-up sizes; none where all extents are known.
    pub(super) trials: Option<Trials>,
}

impl BuiltType {
    /// The type at a made-up size, where one is given.
    pub(super) fn at(&self, trial: Option<usize>) -> &Type {
        match (trial, &self.trials) {
            (Some(trial), Some(trials)) => trials.at(trial),
            _ => &self.ty,
        }
    }
}

/// What an expression is at every size.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Values {
    /// The same, whatever the size.
    One(AttrValue),
    /// This at each of the made-up ones.
    BySize(Vec<AttrValue>),
}

impl<'a> Env<'a> {
    /// The record in a slot; `None` where it is not bound.
    pub(super) fn record(&self, slot: Slot) -> Option<&'a Attrs> {
        self.found.get(slot)?;
        match self.graph[self.found.class(slot)].data.what {
            What::Attrs(id) => Some(self.graph.analysis.tables.attrs(id)),
            _ => None,
        }
    }

    fn class(&self, id: Id) -> ClassView<'a> {
        ClassView::at(self.graph, id, self.trial).noting(self.asked)
    }

    pub(super) fn view(&self, slot: Slot) -> ClassView<'a> {
        self.class(self.found.class(slot))
    }

    /// The value of an attribute variable; `None` where what defines it is not bound yet or does not apply.
    pub(super) fn attr(&self, var: usize) -> Option<AttrValue> {
        match &self.rule.attr_vars[var] {
            AttrDef::Field { record, field, element } => {
                let value = self.record(*record)?.get(field)?;
                match (element, value) {
                    (None, v) => Some(v.clone()),
                    (Some(k), AttrValue::List(l)) => l.get(*k).cloned(),
                    (Some(_), _) => None,
                }
            }
            AttrDef::Index(slot) => Some(AttrValue::Int(self.found.get(*slot)? as i64)),
            AttrDef::For(slot, list) => match self.eval(list)? {
                AttrValue::List(l) => l.get(self.found.get(*slot)? as usize).cloned(),
                _ => None,
            },
            AttrDef::Let(expr) => self.eval(expr),
            AttrDef::Given(_, value) => Some(value.clone()),
        }
    }

    /// The value of an expression; `None` where a function does not apply.
    pub(super) fn eval(&self, expr: &Expr) -> Option<AttrValue> {
        match expr {
            Expr::Value(v) => Some(v.clone()),
            Expr::Var(var) => self.attr(*var),
            Expr::List(items) => items.iter().map(|e| self.eval(e)).collect::<Option<_>>().map(AttrValue::List),
            Expr::OpName(slot) => {
                self.found.get(*slot)?;
                Some(self.found.op(*slot).op().name().into())
            }
            Expr::Call(f, args) => (f.eval)(&self.as_far_as(f.of_extents).inputs(args)?),
        }
    }

    fn inputs(&self, args: &[Arg]) -> Option<Vec<Input<'a>>> {
        args.iter()
            .map(|arg| {
                Some(match arg {
                    Arg::Expr(e) => Input::Attr(self.eval(e)?),
                    Arg::Class(slot) => {
                        self.found.get(*slot)?;
                        Input::Class(self.view(*slot))
                    }
                    Arg::Classes(seq) => Input::Classes(self.found.seqs[*seq].iter().map(|&c| self.class(c)).collect()),
                    Arg::Built(i) => {
                        Input::Class(ClassView::of_type(self.built.get(*i)?.at(self.trial)).noting(self.asked))
                    }
                })
            })
            .collect()
    }

    /// This match where what follows from extents may be found out at made-up sizes, or else as they are known.
    fn as_far_as(self, of_extents: bool) -> Env<'a> {
        if of_extents { self } else { Env { trial: None, ..self } }
    }

    /// What the same is at all made-up sizes: a value each, where all have one.
    fn at_all_sizes<T>(&self, of: impl Fn(Env<'a>) -> Option<T>) -> Option<Vec<T>> {
        let trials = self.graph.analysis.tables.trials();
        let found: Option<Vec<T>> = (0..trials).map(|trial| of(Env { trial: Some(trial), ..*self })).collect();
        // Of no size at all nothing is known.
        found.filter(|_| trials > 0)
    }

    /// The value of an expression at every size: where it is not known for want of an extent, what it is at all made-up ones.
    pub(super) fn always(&self, expr: &Expr) -> Option<AttrValue> {
        let first = match self.values(expr)? {
            Values::One(value) => return Some(value),
            Values::BySize(values) => values,
        };
        let same = first.iter().all(|v| *v == first[0]);
        if !same {
            self.asked.note_unknown();
        }
        same.then(|| first[0].clone())
    }

    /// The value of an expression, or where that depends on extents that are unknown, its values at the made-up sizes.
    pub(super) fn values(&self, expr: &Expr) -> Option<Values> {
        let before = self.asked.take_unknown();
        let known = self.eval(expr);
        if known.is_some() || !self.asked.take_unknown() {
            if before {
                self.asked.note_unknown();
            }
            return known.map(Values::One);
        }
        let found = self.at_all_sizes(|env| env.eval(expr));
        if found.is_none() || before {
            self.asked.note_unknown();
        }
        found.map(Values::BySize)
    }

    /// Whether a condition holds at every size; `None` where that is not known. Equal extents are known by made-up sizes.
    pub(super) fn holds(&self, condition: &Condition) -> Option<bool> {
        match condition {
            Condition::Test(guard, args) => {
                let before = self.asked.take_unknown();
                let known = self.inputs(args).and_then(|inputs| (guard.eval)(&inputs));
                let unknown = known.is_none() && self.asked.take_unknown();
                let test = |env: Env<'a>| (guard.eval)(&env.inputs(args)?);
                let tests = if unknown && guard.of_extents { self.at_all_sizes(test) } else { None };
                let always = tests.as_ref().is_some_and(|tests| tests.iter().all(|&holds| holds));
                // Where it is seen not to hold at some size, nothing is left undecided.
                if before || unknown && tests.is_none() {
                    self.asked.note_unknown();
                }
                if always { Some(true) } else { known }
            }
            Condition::Not(c) => self.holds(c).map(|b| !b),
            Condition::All(cs) => {
                let all: Vec<Option<bool>> = cs.iter().map(|c| self.holds(c)).collect();
                if all.contains(&Some(false)) { Some(false) } else { all.iter().all(Option::is_some).then_some(true) }
            }
            Condition::Any(cs) => {
                let all: Vec<Option<bool>> = cs.iter().map(|c| self.holds(c)).collect();
                if all.contains(&Some(true)) { Some(true) } else { all.iter().all(Option::is_some).then_some(false) }
            }
        }
    }
}
