//! What an operator's call may take in, argument by argument.

use egg::{Id, Language};
use hashbrown::{HashMap, HashSet};

use crate::{
    egraph::{AttrsId, Case, Graph, KernelBody, Node, Step, kernel_classes},
    ir::OpId,
    ops::Class,
};

/// The rules: which kernels they form.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Without a contraction or reduction.
    Chain,
    /// What runs on the accumulators of a contraction or reduction.
    Epilogue,
    /// What makes a reduction's elements.
    Prologue,
}

/// How a kernel comes by one value that it reads.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Take<'g> {
    /// As an argument.
    Argument,
    /// By this node, an operator's call or a kernel, as part of it.
    Within(&'g Node),
}

/// So many operators of a class that is read are offered, each with its kernels.
const ALTERNATIVES: usize = 3;

/// By value that a call reads (fields of tuples each by themselves): what could be done.
pub(super) struct Offers<'g>(Vec<Vec<Take<'g>>>);

/// The values that a call's argument consists of: the fields where a tuple is made there, else itself.
pub(super) fn values(graph: &Graph, arg: Id) -> Vec<Id> {
    match tuple_in(graph, arg) {
        Some(tuple) => tuple.children().to_vec(),
        None => vec![arg],
    }
}

/// The tuple that a class is, where one is made there.
pub(super) fn tuple_in(graph: &Graph, class: Id) -> Option<&Node> {
    graph[class].nodes.iter().find(|n| n.case() == Case::Tuple)
}

impl<'g> Offers<'g> {
    /// The offers to a call that is to be the result of a kernel of that kind.
    pub(super) fn of(graph: &'g Graph, call: &Node, kind: Kind) -> Offers<'g> {
        let args = call.as_op().map_or(&[][..], |(_, _, args)| args);
        let charged = graph.analysis.errors.of_classes(graph).into_iter().map(|(class, _)| class).collect();
        let mut shared = Shared { graph, charged, known: HashMap::new() };
        let values = args.iter().flat_map(|&a| values(graph, a));
        Offers(values.map(|value| offers(graph, value, kind, &mut shared)).collect())
    }

    /// All ways to choose one offer for each value, those that take in most first; the one that takes in nothing is none.
    pub(super) fn ways(&self) -> impl Iterator<Item = Vec<Take<'g>>> + '_ {
        let all: usize = self.0.iter().fold(1usize, |n, o| n.saturating_mul(o.len()));
        let way = |mut number: usize| -> Vec<Take<'g>> {
            let mut pick = |offers: &Vec<Take<'g>>| {
                let at = number % offers.len();
                number /= offers.len();
                offers[at]
            };
            self.0.iter().map(&mut pick).collect()
        };
        (0..all).map(way).filter(|way| way.iter().any(|t| *t != Take::Argument))
    }
}

/// What there is to take in of a value; to leave it an argument comes last.
fn offers<'g>(graph: &'g Graph, value: Id, kind: Kind, shared: &mut Shared<'g>) -> Vec<Take<'g>> {
    let mut found: Vec<Take> = Vec::new();
    let class = &graph[value];
    // What approximate rules made stays visible, so that its error counts.
    if !class.data.constant && class.data.tensor().is_some() && !shared.charged.contains(&value) {
        let errors = &graph.analysis.errors;
        let fits =
            |n: &&Node| matches!(n.case(), Case::Op(op) if fits(op.op().class(), kind)) && errors.of_node(n) == 0.0;
        for op in class.nodes.iter().filter(fits).take(ALTERNATIVES) {
            // A kernel's result is its last operator: kernels are ways to compute with one of the alternatives.
            let kernels: Vec<(&Node, &KernelBody)> = class
                .nodes
                .iter()
                .filter_map(|n| match n.case() {
                    Case::Kernel(id) => Some((n, &**graph.analysis.tables.kernel(id))),
                    _ => None,
                })
                .filter(|(_, body)| body.ops().last().map(Case::Op) == Some(op.case()))
                .collect();
            // Of each heavy operation by itself: which of a contraction's forms is best may only show in whole kernels.
            let largest = |fits: &mut dyn FnMut(&Node, &KernelBody) -> bool| -> Vec<Take<'g>> {
                let mut best: Vec<(Option<(OpId, AttrsId)>, usize, &'g Node)> = Vec::new();
                for &(node, body) in &kernels {
                    let (around, size) = (heavy(body), body.steps().len());
                    let known = best.iter().position(|b| b.0 == around);
                    let is_larger = match known {
                        Some(at) => size > best[at].1,
                        None => best.len() < ALTERNATIVES,
                    };
                    if is_larger && fits(node, body) {
                        match known {
                            Some(at) => best[at] = (around, size, node),
                            None => best.push((around, size, node)),
                        }
                    }
                }
                best.into_iter().map(|(_, _, node)| Take::Within(node)).collect()
            };
            let may_be_heavy = kind == Kind::Epilogue;
            let mut take = |all: Vec<Take<'g>>| {
                for t in all {
                    if !found.contains(&t) {
                        found.push(t);
                    }
                }
            };
            // Of values that several need, one in a row is computed again, not what it was made of as well: a chain of them
            // would otherwise be recomputed from its start by each of its readers.
            if !shared.is(value) {
                take(largest(&mut |_, body| body.is_heavy() == may_be_heavy));
            }
            take(largest(&mut |node, body| body.is_heavy() == may_be_heavy && shared.computes_once(node)));
            take(vec![Take::Within(op)]);
        }
    }
    // What others need too is an argument first: to compute it again is the exception.
    match shared.is(value) {
        true => found.insert(0, Take::Argument),
        false => found.push(Take::Argument),
    }
    found
}

/// The contraction or reduction of a kernel, by operator and attributes.
fn heavy(body: &KernelBody) -> Option<(OpId, AttrsId)> {
    body.steps().iter().find_map(|step| match step {
        Step::Op(op, attrs, ..) if op.op().class().is_heavy() => Some((*op, *attrs)),
        _ => None,
    })
}

/// Whether an operator of this class may stand before the result of a kernel of that kind.
fn fits(class: Class, kind: Kind) -> bool {
    match kind {
        Kind::Chain | Kind::Prologue => class <= Class::Injective,
        Kind::Epilogue => class <= Class::Broadcast || class.is_heavy(),
    }
}

/// Which values several operators read.
struct Shared<'g> {
    graph: &'g Graph,
    /// Classes of which approximate rules say how far they are off.
    charged: HashSet<Id>,
    known: HashMap<Id, bool>,
}

impl Shared<'_> {
    /// Whether operators of several classes read the class.
    fn is(&mut self, class: Id) -> bool {
        let graph = self.graph;
        *self.known.entry(class).or_insert_with(|| {
            // What the program as written says; of values that rules made, what the e-graph holds.
            if let Some(uses) = graph.analysis.uses.of(class) {
                return uses > 1;
            }
            let mut readers: HashSet<Id> = HashSet::new();
            let mut written: Option<usize> = None;
            for n in graph[class].parents() {
                let value = graph.find(n);
                match graph.nodes()[usize::from(n)].case() {
                    Case::Kernel(_) | Case::Enter(_) | Case::Leave(_) => {}
                    // The same value in another layout: its readers are this one's, and where it is one of the program as
                    // written, they are known. To leave and to change the layout is what others may do, if they are chosen.
                    Case::Op(op) if op.op().name() == "layout_transform" => {
                        written = written.max(graph.analysis.uses.of(value));
                    }
                    _ => _ = readers.insert(value),
                }
            }
            written.map_or(readers.len() > 1, |uses| uses > 1)
        })
    }

    /// Whether a kernel computes nothing within that others read.
    fn computes_once(&mut self, node: &Node) -> bool {
        let mut classes = kernel_classes(self.graph, node);
        classes.pop();
        !classes.into_iter().any(|c| self.is(c))
    }
}
