//! Finds a rule's matches.
//!
//! Rules look at what changed. What a rule finds at a class depends on what stands within its patterns' depth below. After each round the
//! classes are compared with what they were (nodes, facts, and for rules that ask who uses a value, uses), changes are carried upwards step
//! by step, and a rule is searched where a change is as near as its depth. Later roots are looked at as well, and lead back to the first by
//! the class that they share.

use egg::{Id, Language};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::{
    ast::{AttrDef, FieldPattern, IndexPattern, Ops, Pattern, RuleDef, Slot},
    eval::{Env, Match},
    reach::Reach,
    signature::ClassView,
};
use crate::{
    egraph::{Case, Graph, Node, What, worth_rewriting},
    ir::{AttrValue, Attrs, Name},
    saturate::SearchContext,
};

/// Tuples of as many fields or more match no sequence pattern.
const LONGEST_SEQUENCE: usize = 1 << 12;

/// Where a rule has two roots, so many second ones are taken for each first: the nearest in age of those that fit. All pairs of many
/// siblings would be too many.
const PARTNERS_OF_TWO: usize = 8;
/// Where it has more, so many for each of those before: a rule for three siblings finds each with the next two.
const PARTNERS_OF_MORE: usize = 1;

/// All matches of a rule, those of one class after those of another.
pub(super) fn search(rule: &RuleDef, reach: &Reach, cx: &SearchContext<'_>, limit: usize) -> Vec<(Id, Match)> {
    let (mut out, mut left) = (Vec::new(), limit);
    for class in reach.dirty(rule, cx) {
        if left == 0 || !cx.may_go_on() {
            break;
        }
        if !rule.constants && !worth_rewriting(cx.graph, class) {
            continue;
        }
        let found = search_class(rule, cx, class, left);
        left -= found.len();
        out.extend(found.into_iter().map(|m| (class, m)));
    }
    out
}

/// All matches of a rule whose first root is this class, up to a limit.
pub(super) fn search_class(rule: &RuleDef, cx: &SearchContext<'_>, class: Id, limit: usize) -> Vec<Match> {
    let mut solver = Solver { rule, cx, graph: cx.graph, limit, found: Matches::default(), element: None };
    solver.roots(0, &[class], Match::empty(rule));
    solver.found.list
}

/// The classes that can match a root, in ascending order.
pub(super) fn candidates(p: &Pattern, graph: &Graph) -> Vec<Id> {
    let by_case = |case: Case| graph.classes_for_op(&case).into_iter().flatten();
    let mut ids: Vec<Id> = match p {
        Pattern::As(_, inner) => return candidates(inner, graph),
        Pattern::Op { ops, .. } => ops.list().iter().flat_map(|&op| by_case(Case::Op(op))).collect(),
        Pattern::Tuple(_) | Pattern::TupleOf(_) => by_case(Case::Tuple).collect(),
        Pattern::Proj(IndexPattern::Value(i), _) => by_case(Case::Proj(*i)).collect(),
        Pattern::Class(_) | Pattern::Splat(_) | Pattern::Each(_) | Pattern::Proj(..) => {
            graph.classes().map(|c| c.id).collect()
        }
    };
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// How a later root is found from what earlier roots have bound: the slot of a class that it contains, and how many steps
/// up from there the root is.
pub(super) fn anchor(p: &Pattern, bound: &dyn Fn(Slot) -> bool) -> Option<(Slot, usize)> {
    let below = |ps: &[Pattern]| {
        ps.iter().filter_map(|p| anchor(p, bound)).map(|(s, d)| (s, d + 1)).min_by_key(|&(_, depth)| depth)
    };
    match p {
        Pattern::Class(slot) => bound(*slot).then_some((*slot, 0)),
        Pattern::As(slot, inner) => {
            if bound(*slot) {
                return Some((*slot, 0));
            }
            anchor(inner, bound)
        }
        Pattern::Op { args, .. } => below(args),
        Pattern::Tuple(fields) => below(fields),
        Pattern::TupleOf(inner) | Pattern::Proj(_, inner) => below(std::slice::from_ref(inner)),
        Pattern::Splat(_) | Pattern::Each(_) => None,
    }
}

/// The classes so many steps up from a class.
pub(super) fn above(graph: &Graph, class: Id, steps: usize) -> Vec<Id> {
    let mut ids = vec![graph.find(class)];
    for _ in 0..steps {
        ids = ids.iter().flat_map(|&id| graph[id].parents()).map(|id| graph.find(id)).collect();
        ids.sort_unstable();
        ids.dedup();
    }
    ids
}

/// A class offers a pattern at most so many steps of search. Where values equal many terms of one another, a deep pattern has more
/// ways through the class than memory holds; those beyond are left out, and the run's report says so.
const STEPS_OF_A_CLASS: usize = 100_000;

/// Matches, each once, in the order in which they were found.
#[derive(Default)]
struct Matches {
    list: Vec<Match>,
    seen: FxHashSet<Match>,
    /// Steps of the search so far.
    steps: usize,
}

impl Matches {
    fn push(&mut self, m: Match) {
        if self.seen.insert(m.clone()) {
            self.list.push(m);
        }
    }
}

/// The classes that a search has come through from the root.
///
/// No match goes through a class twice on its way down. Where x is x + 0, what a rule says of (x + 0) + d it says of x + d by way of a
/// circle, and again by way of two; and whoever chooses a program takes none that holds itself.
struct Above<'s> {
    class: Id,
    above: Option<&'s Above<'s>>,
}

impl Above<'_> {
    fn holds(&self, class: Id) -> bool {
        self.class == class || self.above.is_some_and(|a| a.holds(class))
    }
}

/// Where a pattern is to be matched, and below what.
type Goal<'p, 's> = (&'p Pattern, Id, Option<&'s Above<'s>>);
type Goals<'p, 's> = SmallVec<[Goal<'p, 's>; 8]>;

struct Solver<'a> {
    rule: &'a RuleDef,
    cx: &'a SearchContext<'a>,
    graph: &'a Graph,
    limit: usize,
    found: Matches,
    /// Which field of a tuple is being matched by the pattern of a `...`.
    element: Option<usize>,
}

impl<'a> Solver<'a> {
    fn env<'m>(&'m self, found: &'m Match) -> Env<'m> {
        Env { rule: self.rule, graph: self.graph, found, built: &[], asked: &self.cx.asked, trial: None }
    }

    fn full(&self) -> bool {
        self.found.list.len() >= self.limit
    }

    /// Matches the roots from number `k` on, where root `k` is one of the classes.
    fn roots(&mut self, k: usize, classes: &[Id], m: Match) {
        let most = match (k, self.rule.roots.len()) {
            (0, _) => usize::MAX,
            (_, 2) => PARTNERS_OF_TWO,
            _ => PARTNERS_OF_MORE,
        };
        let mut partners = 0;
        for &class in classes {
            if self.full() || partners == most || !self.cx.may_go_on() {
                return;
            }
            let before = self.found.list.len();
            for found in self.all(&self.rule.roots[k], class, None, m.clone()) {
                match self.rule.roots.get(k + 1) {
                    None => self.complete(found),
                    // Of n siblings there are n^k tuples of roots: what a guard refuses already is not continued.
                    Some(_) if self.refused(&found) => {}
                    Some(next) => {
                        let Some((slot, steps)) = anchor(next, &|s| found.get(s).is_some()) else { return };
                        let classes = above(self.graph, found.class(slot), steps);
                        self.roots(k + 1, &classes, found);
                    }
                }
            }
            partners += usize::from(self.found.list.len() > before);
        }
    }

    /// Whether some guard does not hold, whatever is bound later. Sequences and what is computed by `:for` come last, so
    /// that guards on those are not known yet.
    fn refused(&self, m: &Match) -> bool {
        let env = self.env(m);
        self.rule.seqs == 0 && self.rule.guards.iter().any(|g| env.holds(g) == Some(false))
    }

    /// Keeps a match of all patterns where the roots differ and the guards hold, once per value of the `:for`s.
    fn complete(&mut self, m: Match) {
        let roots: Vec<u32> = match self.rule.roots.len() {
            1 => Vec::new(),
            _ => self.rule.roots.iter().filter_map(|r| m.get(root_slot(r)?)).collect(),
        };
        if (1..roots.len()).any(|i| roots[..i].contains(&roots[i])) {
            return;
        }
        let asked = &self.cx.asked;
        asked.take_unknown();
        let mut all = vec![m];
        for &var in &self.rule.fors {
            let AttrDef::For(slot, list) = &self.rule.attr_vars[var] else { continue };
            all = all
                .into_iter()
                .flat_map(|m| {
                    let n = match self.env(&m).always(list) {
                        Some(AttrValue::List(l)) => l.len(),
                        _ => {
                            if asked.take_unknown() {
                                asked.count_undecided();
                            }
                            0
                        }
                    };
                    (0..n).map(move |i| {
                        let mut m = m.clone();
                        m.bind(*slot, i as u32);
                        m
                    })
                })
                .collect();
        }
        for m in all {
            let env = self.env(&m);
            let mut undecided = false;
            // What some other guard refuses is not for want of an extent.
            let fits = self.rule.guards.iter().all(|g| {
                asked.take_unknown();
                let holds = env.holds(g);
                let unknown = holds.is_none() && asked.take_unknown();
                undecided |= unknown;
                unknown || holds == Some(true)
            });
            match fits {
                true if undecided => asked.count_undecided(),
                true if !self.full() => self.found.push(m),
                _ => {}
            }
        }
    }

    /// All matches of a pattern at a class that continue a match.
    fn all(&self, p: &'a Pattern, class: Id, above: Option<&Above<'_>>, m: Match) -> Vec<Match> {
        let mut out = Matches::default();
        self.solve(SmallVec::from_slice(&[(p, class, above)]), m, &mut out);
        if out.steps > STEPS_OF_A_CLASS {
            self.cx.cut();
        }
        out.list
    }

    /// Works off the goals; where a class offers several nodes, continues with each. Goals are taken from the end.
    fn solve(&self, mut goals: Goals<'a, '_>, mut m: Match, out: &mut Matches) {
        while let Some((pattern, class, above)) = goals.pop() {
            out.steps += 1;
            if out.steps > STEPS_OF_A_CLASS || above.is_some_and(|a| a.holds(class)) {
                return;
            }
            match pattern {
                Pattern::Class(slot) => {
                    if !m.bind_class(*slot, class) {
                        return;
                    }
                }
                Pattern::As(slot, inner) => {
                    if !m.bind_class(*slot, class) {
                        return;
                    }
                    goals.push((inner, class, above));
                }
                Pattern::Splat(x) => {
                    let same = |y: f64| y == *x && y.is_sign_negative() == x.is_sign_negative();
                    if !ClassView::of(self.graph, class).splat().is_some_and(same) {
                        return;
                    }
                }
                Pattern::Each(seq) => {
                    let (seq, at) = (&mut m.seqs[*seq], self.element.expect("sequences occur inside `...` only"));
                    match seq.get(at) {
                        Some(&known) if known != class => return,
                        Some(_) => {}
                        None => seq.push(class),
                    }
                }
                Pattern::Op { .. } | Pattern::Tuple(_) | Pattern::TupleOf(_) | Pattern::Proj(..) => {
                    let here = Above { class, above };
                    for node in self.graph[class].iter() {
                        self.node(pattern, node, &here, &goals, &m, out);
                    }
                    return;
                }
            }
        }
        out.push(m);
    }

    /// Continues with one node of a class for a pattern that wants a node.
    fn node(
        &self,
        pattern: &'a Pattern,
        node: &Node,
        here: &Above<'_>,
        goals: &Goals<'a, '_>,
        m: &Match,
        out: &mut Matches,
    ) {
        // The goal that is pushed last is taken first: children in reverse.
        let with = |children: &mut dyn Iterator<Item = (&'a Pattern, Id)>| -> Goals<'a, '_> {
            goals.iter().map(|&(p, c, above)| (p, c, above)).chain(children.map(|(p, c)| (p, c, Some(here)))).collect()
        };
        match (pattern, node.case()) {
            (Pattern::Op { ops, record, fields, args, either_order }, Case::Op(op)) => {
                let Some((_, attrs, ids)) = node.as_op() else { return };
                if !ops.list().contains(&op) || ids.len() != args.len() {
                    return;
                }
                let mut m = m.clone();
                if let Ops::Any(_, slot) = ops
                    && !m.bind(*slot, op.0)
                {
                    return;
                }
                if !m.bind_class(*record, attrs) || !self.fields(fields, attrs, &m) {
                    return;
                }
                if *either_order && ids.len() == 2 && ids[0] != ids[1] {
                    self.solve(with(&mut args.iter().rev().zip(ids.iter().copied())), m.clone(), out);
                }
                self.solve(with(&mut args.iter().zip(ids.iter().copied()).rev()), m, out);
            }
            (Pattern::Tuple(fields), Case::Tuple) if node.children().len() == fields.len() => {
                self.solve(with(&mut fields.iter().zip(node.children().iter().copied()).rev()), m.clone(), out);
            }
            (Pattern::TupleOf(inner), Case::Tuple) if (1..LONGEST_SEQUENCE).contains(&node.children().len()) => {
                let fields = node.children();
                let at = |i: usize| Solver { element: Some(i), found: Matches::default(), ..*self };
                // All ways in which the first field matches are tried, but of each later field the first that goes with
                // them: all ways of all fields would be too many.
                'ways: for mut m in at(0).all(inner, fields[0], Some(here), m.clone()) {
                    for (i, &id) in fields.iter().enumerate().skip(1) {
                        match at(i).all(inner, id, Some(here), m).into_iter().next() {
                            Some(next) => m = next,
                            None => continue 'ways,
                        }
                    }
                    self.solve(with(&mut std::iter::empty()), m, out);
                }
            }
            (Pattern::Proj(index, inner), Case::Proj(i)) => {
                let mut m = m.clone();
                let fits = match index {
                    IndexPattern::Value(v) => *v == i,
                    IndexPattern::Any(slot) => m.bind(*slot, i),
                };
                if fits {
                    self.solve(with(&mut std::iter::once((&**inner, node.children()[0]))), m, out);
                }
            }
            _ => {}
        }
    }

    /// Whether a record is as the pattern wants it. A field that an operator of a class lacks is no condition on it.
    fn fields(&self, fields: &[(Name, FieldPattern)], attrs: Id, m: &Match) -> bool {
        let What::Attrs(id) = self.graph[attrs].data.what else { return false };
        let record: &Attrs = self.graph.analysis.tables.attrs(id);
        let env = self.env(m);
        fields.iter().all(|(name, p)| record.get(name).is_none_or(|v| field_fits(&env, p, v)))
    }
}

fn field_fits(env: &Env<'_>, p: &FieldPattern, v: &AttrValue) -> bool {
    match (p, v) {
        (FieldPattern::Value(w), v) => w == v,
        (FieldPattern::Var(var), v) => env.attr(*var).as_ref() == Some(v),
        (FieldPattern::List(ps), AttrValue::List(vs)) => {
            ps.len() == vs.len() && ps.iter().zip(vs.iter()).all(|(p, v)| field_fits(env, p, v))
        }
        (FieldPattern::List(_), _) => false,
    }
}

/// The slot that names a root among several.
pub(super) fn root_slot(p: &Pattern) -> Option<Slot> {
    match p {
        Pattern::As(slot, _) => Some(*slot),
        _ => None,
    }
}
