//! What a rule does, as the scheduler sees it: a search that gives matches of a type of the rule's own, and a way to apply one.

use std::{cell::Cell, sync::Arc, time::Instant};

use egg::Id;

use crate::egraph::{DirtySet, Graph, worth_rewriting};

/// The two halves of a rule.
pub trait Rewrite: Send + Sync {
    /// What its search finds. Rules are searched on several threads at once.
    type Match: Send;

    /// Matches in the order in which they are to be applied, at most `limit`, each with the class that the rule is searched at (of several
    /// roots the first). The graph is rebuilt.
    fn search(&self, cx: &SearchContext<'_>, limit: usize) -> Vec<(Id, Self::Match)>;

    /// Applies one match, of a search of this round: other matches have been applied since, but the graph has not been rebuilt. Equalities are
    /// said by [`union_checked`](crate::egraph::union_checked). Where one match may say several, each is said only if
    /// [`may_apply`](crate::egraph::may_apply) holds.
    fn apply(&self, graph: &mut Graph, class: Id, found: &Self::Match, asked: &Asked);
}

/// What a rule has asked for: whether who uses a value, since then new uses of a class make it dirty; and how often it could not be told
/// whether it applies, as an extent that it asked for is unknown.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    uses: Cell<bool>,
    unknown: Cell<bool>,
    undecided: Cell<usize>,
}

impl Asked {
    /// Notes that somebody asks who uses a value.
    pub fn note(&self) {
        self.uses.set(true);
    }

    /// Whether somebody has asked who uses a value.
    pub fn get(&self) -> bool {
        self.uses.get()
    }

    /// Notes that somebody asks for an extent that is unknown.
    pub fn note_unknown(&self) {
        self.unknown.set(true);
    }

    /// Whether somebody has asked for an extent that is unknown since this was last called.
    pub(crate) fn take_unknown(&self) -> bool {
        self.unknown.take()
    }

    /// Counts a place where a rule does not apply for want of an extent.
    pub(crate) fn count_undecided(&self) {
        self.undecided.set(self.undecided.get() + 1);
    }

    /// How many such places there were.
    pub fn undecided(&self) -> usize {
        self.undecided.get()
    }
}

/// What a search looks at, and what it notes on the way.
#[derive(Debug)]
pub struct SearchContext<'g> {
    /// The graph, rebuilt.
    pub graph: &'g Graph,
    /// What it asked for.
    pub asked: Asked,
    deadline: Option<Instant>,
    /// Where only what is new is looked at: what that is, and whether new uses are.
    dirty: Option<(&'g DirtySet, bool)>,
    cut: Cell<bool>,
}

impl<'g> SearchContext<'g> {
    /// A search of everything, however long it takes.
    pub fn everywhere(graph: &'g Graph) -> SearchContext<'g> {
        SearchContext { graph, asked: Asked::default(), deadline: None, dirty: None, cut: Cell::new(false) }
    }

    /// The same search until a deadline.
    pub(super) fn until(self, deadline: Option<Instant>) -> SearchContext<'g> {
        SearchContext { deadline, ..self }
    }

    /// The same search of what is new alone; `of_uses` says whether new uses of a class are.
    pub(super) fn of_dirty(self, dirty: &'g DirtySet, of_uses: bool) -> SearchContext<'g> {
        SearchContext { dirty: Some((dirty, of_uses)), ..self }
    }

    /// Whether a search may go on: searches ask before each class that they look at.
    pub fn may_go_on(&self) -> bool {
        self.deadline.is_none_or(|d| Instant::now() < d)
    }

    /// Whether all classes are to be looked at, new or not.
    pub fn is_everywhere(&self) -> bool {
        self.dirty.is_none()
    }

    /// Whether a class is to be looked at where what stands at most so many steps below it counts.
    pub fn is_new(&self, class: Id, steps: usize) -> bool {
        self.dirty.is_none_or(|(dirty, of_uses)| dirty.near(class, steps, of_uses))
    }

    /// Notes that matches were left out, since there were too many ways to look for them.
    pub fn cut(&self) {
        self.cut.set(true);
    }

    /// What a search finds at the classes that are worth rewriting, those that were encoded first before those that read them: a rule that
    /// builds on what it made below needs one round. It ends where so many were found, or at the deadline.
    pub fn upwards<T>(&self, limit: usize, mut at: impl FnMut(Id) -> Option<T>) -> Vec<(Id, T)> {
        let mut classes: Vec<Id> = self.graph.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        let mut found = Vec::new();
        for class in classes {
            if found.len() == limit || !self.may_go_on() {
                break;
            }
            if worth_rewriting(self.graph, class) {
                found.extend(at(class).map(|m| (class, m)));
            }
        }
        found
    }
}

/// A [`Rewrite`] of some type of matches.
#[derive(Clone)]
pub struct Rewriter(Arc<dyn Erased>);

/// The matches of one search, with the rule that applies them.
pub struct Matches<'r> {
    list: Box<dyn List + 'r>,
    /// Whether the search asked who uses a value.
    pub asked: bool,
    /// Places where the rule was not found to apply for want of an extent that is unknown.
    pub undecided: usize,
    /// Whether matches were left out, since there were too many ways to look for them.
    pub cut: bool,
}

impl Rewriter {
    /// A rule's two halves.
    pub fn new(rewrite: impl Rewrite + 'static) -> Rewriter {
        Rewriter(Arc::new(rewrite))
    }

    /// Searches for at most `limit` matches.
    pub fn search(&self, cx: SearchContext<'_>, limit: usize) -> Matches<'_> {
        let list = self.0.search(&cx, limit);
        Matches { list, asked: cx.asked.get(), undecided: cx.asked.undecided(), cut: cx.cut.get() }
    }
}

impl Matches<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Applies match number `at`.
    pub fn apply(&self, at: usize, graph: &mut Graph, asked: &Asked) {
        self.list.apply(at, graph, asked);
    }
}

trait Erased: Send + Sync {
    fn search<'r>(&'r self, cx: &SearchContext<'_>, limit: usize) -> Box<dyn List + 'r>;
}

trait List: Send {
    fn len(&self) -> usize;
    fn apply(&self, at: usize, graph: &mut Graph, asked: &Asked);
}

struct Typed<'r, R: Rewrite>(&'r R, Vec<(Id, R::Match)>);

impl<R: Rewrite> Erased for R {
    fn search<'r>(&'r self, cx: &SearchContext<'_>, limit: usize) -> Box<dyn List + 'r> {
        Box::new(Typed(self, Rewrite::search(self, cx, limit)))
    }
}

impl<R: Rewrite> List for Typed<'_, R> {
    fn len(&self) -> usize {
        self.1.len()
    }

    fn apply(&self, at: usize, graph: &mut Graph, asked: &Asked) {
        let (class, found) = &self.1[at];
        self.0.apply(graph, *class, found, asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        egraph::{Case, Node, union_checked},
        ir::{OpId, Type},
        ops::{make_attrs, op},
        saturate::{Grade, Limits, Rule, Ruleset, Stop, saturate},
        tensor::DType,
    };

    /// `f(f(x))` is `f(x)`, of some operators: a match is the operator and what it reads, twice down.
    struct Twice(Vec<OpId>);

    impl Rewrite for Twice {
        type Match = (OpId, Id);

        fn search(&self, cx: &SearchContext<'_>, limit: usize) -> Vec<(Id, (OpId, Id))> {
            let call = |class: Id| {
                let calls = cx.graph[class].iter().filter_map(|n| match n.case() {
                    Case::Op(op) if self.0.contains(&op) => Some((op, n.as_op()?.2[0])),
                    _ => None,
                });
                calls.last()
            };
            cx.upwards(limit, |class| {
                let (outer, below) = call(class)?;
                let (inner, _) = call(below)?;
                (outer == inner && cx.is_new(class, 2)).then_some((outer, below))
            })
        }

        fn apply(&self, graph: &mut Graph, class: Id, (op, below): &(OpId, Id), _: &Asked) {
            union_checked(graph, class, *below, &op.op().name().into());
        }
    }

    #[test]
    fn matches_are_of_the_rules_own_types() {
        let mut graph = Graph::default();
        let input = graph.analysis.tables.add_input(Some(Type::tensor(&[2], DType::F32)));
        let mut at = graph.add(Node::input(input));
        let mut classes = Vec::new();
        for name in ["abs", "abs", "nn.relu", "nn.relu", "exp", "exp"] {
            let attrs = make_attrs(op(name), &[]).expect("legal");
            let attrs = graph.analysis.tables.intern_attrs(&attrs);
            let attrs = graph.add(Node::attrs(attrs));
            at = graph.add(Node::op(op(name), attrs, [at]));
            classes.push(at);
        }
        let rule = Rule {
            name: "twice".into(),
            ruleset: "t".into(),
            grade: Grade::Exact,
            grows: false,
            limit: None,
            forms_kernels: false,
            rewrite: Rewriter::new(Twice(vec![op("abs"), op("nn.relu")])),
        };
        let report = saturate(&mut graph, &[Ruleset { name: "t".into(), rules: vec![rule] }], &Limits::default());
        assert_eq!((report.unions(), report.stop), (2, Stop::Saturated));
        let same: Vec<bool> = classes.chunks(2).map(|c| graph.find(c[0]) == graph.find(c[1])).collect();
        assert_eq!(same, [true, true, false]);
        assert_eq!(report.last_rule.as_ref().map(|n| n.as_str()), Some("nn.relu"));
    }
}
