//! What became of the pieces of a program, by which rules; and why something did not become of it.

use std::{fmt, rc::Rc};

use egg::{Id, Language, TreeTerm};
use hashbrown::{HashMap, HashSet};

use super::Extracted;
use crate::{
    cost::CostModel,
    egraph::{Case, Graph, Node, RegionGraph, Tables, Term, kernel_classes},
    extract::{Extractor, Problem, alternatives, term_cost},
    ir::Span,
    target::Target,
};

/// A piece of a program, an operator's call, and what became of it.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where it stands in the source, where known.
    pub span: Option<Span>,
    /// What it was.
    pub was: String,
    /// What became of it.
    pub became: Became,
}

/// What became of a piece.
#[derive(Clone, Debug)]
pub enum Became {
    /// It stayed.
    Itself,
    /// It is computed within a kernel.
    Inside {
        /// That kernel.
        kernel: String,
    },
    /// Its value is computed in another layout, as another permutation or shape of the same elements.
    Moved {
        /// How the value is had from what is computed.
        way: String,
        /// What is computed.
        now: String,
        /// How the rules came to it, in order.
        steps: Vec<ProofStep>,
    },
    /// Its value is part of what became of another piece, which needed it.
    Absorbed {
        /// That piece's place in the source, where known.
        by: Option<Span>,
        /// What that piece was.
        was: String,
    },
    /// Nothing that was chosen needs its value.
    Unneeded,
    /// Its value is computed in another way.
    Other {
        /// That way.
        now: String,
        /// How the rules came to it, in order.
        steps: Vec<ProofStep>,
    },
}

/// One step of a chain of rules.
#[derive(Clone, Debug, PartialEq)]
pub struct ProofStep {
    /// The rule; `constants` where small constants were computed.
    pub rule: String,
    /// Whether it was used from left to right.
    pub forward: bool,
    /// Where in the term: numbers of children, from the top; empty for the term itself.
    pub path: Vec<usize>,
    /// What stood there.
    pub before: String,
    /// What stands there then.
    pub after: String,
}

impl fmt::Display for ProofStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.forward { "" } else { ", backwards" };
        write!(f, "{}{way}", self.rule)?;
        if !self.path.is_empty() {
            let path: Vec<String> = self.path.iter().map(usize::to_string).collect();
            write!(f, ", within argument {}", path.join("."))?;
        }
        write!(f, ": {} => {}", self.before, self.after)
    }
}

/// How deep terms are shown.
const SHOWN: usize = 2;

/// The pieces of a region that are wanted, in the program's order, with the rules by which they became what was chosen. The
/// limits of the saturation must have asked for explanations. Pieces are operators' calls.
pub fn explain(x: &mut Extracted, wanted: &dyn Fn(Option<&Span>) -> bool) -> Vec<Piece> {
    let Extracted { region, problem, choice, .. } = x;
    let needed: HashMap<Id, u32> = match choice.order(problem) {
        Ok(order) => order.into_iter().map(|c| (problem.class_id(c), c)).collect(),
        Err(_) => return Vec::new(),
    };
    // Of every node as it is now, one that it once was: explanations are of those.
    let mut first: HashMap<Node, Id> = HashMap::new();
    for (at, node) in region.graph.nodes().iter().enumerate() {
        first.entry(now(&region.graph, node)).or_insert(Id::from(at));
    }
    let shown = |class: Id, depth| {
        show(&region.graph, class, depth, &|id| {
            let class = *needed.get(&id)?;
            let (id, place) = problem.origin(class, choice.get(class)?);
            Some(&region.graph[id].nodes[place])
        })
    };
    // What chosen kernels compute within: the first kernel of each.
    let mut inside: HashMap<Id, Id> = HashMap::new();
    for class in choice.order(problem).unwrap_or_default() {
        if let Some(candidate) = choice.get(class) {
            let (id, place) = problem.origin(class, candidate);
            let node = &region.graph[id].nodes[place];
            for within in kernel_classes(&region.graph, node).into_iter().filter(|&c| c != id) {
                inside.entry(within).or_insert(id);
            }
        }
    }
    let mut found: Vec<(Id, Option<Id>, Piece)> = Vec::new();
    for id in region.original_nodes() {
        let node = &region.graph.nodes()[usize::from(id)];
        let span = region.span(id).cloned();
        if !matches!(node.case(), Case::Op(_)) || !wanted(span.as_ref()) {
            continue;
        }
        let was = show_node(&region.graph, node, SHOWN, &|c, depth| show_original(region, c, depth));
        let (target, became) = match needed.get(&region.graph.find(id)).map(|&c| (c, choice.get(c))) {
            Some((class, Some(candidate))) => {
                let (of, place) = problem.origin(class, candidate);
                let chosen = now(&region.graph, &region.graph[of].nodes[place]);
                match now(&region.graph, node) == chosen {
                    true => (None, Became::Itself),
                    false => (first.get(&chosen).copied(), Became::Other { now: shown(of, SHOWN), steps: Vec::new() }),
                }
            }
            _ => match (inside.get(&region.graph.find(id)), moved(&region.graph, id, &needed)) {
                (Some(&kernel), _) => (None, Became::Inside { kernel: shown(kernel, SHOWN) }),
                (None, Some((node, of))) => {
                    let way = region.graph.analysis.tables.name_of(&node);
                    (first.get(&node).copied(), Became::Moved { way, now: shown(of, SHOWN), steps: Vec::new() })
                }
                (None, None) => (None, Became::Unneeded),
            },
        };
        found.push((id, target, Piece { span, was, became }));
    }
    absorb(region, &mut found);
    let mut pieces = Vec::with_capacity(found.len());
    for (id, target, mut piece) in found {
        if let (Some(target), Became::Other { steps, .. } | Became::Moved { steps, .. }) = (target, &mut piece.became)
            && region.graph.are_explanations_enabled()
        {
            let proof = region.graph.explain_id_equivalence(id, target).explanation_trees;
            *steps = chain(&region.graph.analysis.tables, &proof);
        }
        pieces.push(piece);
    }
    pieces
}

/// Operators that only move elements.
const MOVES: [&str; 6] = ["layout_transform", "transpose", "reshape", "squeeze", "expand_dims", "nn.batch_flatten"];

/// A value that is not computed, in another layout in which it is: the last move that makes it of that, or that of it, and what is
/// computed.
fn moved(graph: &Graph, id: Id, needed: &HashMap<Id, u32>) -> Option<(Node, Id)> {
    let class = graph.find(id);
    let moves = |node: &&Node| matches!(node.case(), Case::Op(op) if MOVES.contains(&op.op().name()));
    let data = |node: &Node| node.as_op().and_then(|(_, _, args)| args.first().map(|&a| graph.find(a)));
    // Some moves away, the nearest first: what is moved twice is one move where rules say so.
    let mut at = vec![(class, None::<Node>)];
    let mut seen: HashSet<Id> = HashSet::from_iter([class]);
    for _ in 0..3 {
        let mut next = Vec::new();
        for (from, way) in &at {
            for node in graph[*from].iter().filter(moves) {
                if let Some(below) = data(node).filter(|&b| seen.insert(b)) {
                    next.push((below, Some(way.clone().unwrap_or_else(|| now(graph, node)))));
                }
            }
        }
        if let Some((below, Some(way))) = next.iter().find(|(below, _)| needed.contains_key(below)) {
            return Some((way.clone(), *below));
        }
        at = next;
    }
    // Or it is what is computed that is a move of this value: another way back was not found.
    let above = graph[class].parents().map(|p| graph.find(p)).filter(|p| needed.contains_key(p));
    let mut above: Vec<Id> = above.filter(|&p| graph[p].iter().filter(moves).any(|n| data(n) == Some(class))).collect();
    above.sort_unstable();
    let (above, node) =
        above.first().and_then(|&p| Some((p, graph[p].iter().filter(moves).find(|n| data(n) == Some(class))?)))?;
    Some((now(graph, node), above))
}

/// Says of pieces that nothing needs by which of their users they were taken up: the nearest that is computed in some form.
fn absorb(region: &RegionGraph, found: &mut [(Id, Option<Id>, Piece)]) {
    let place: HashMap<Id, usize> = found.iter().enumerate().map(|(i, (id, ..))| (*id, i)).collect();
    // Users come later in the program: from its end, each piece hands on who took it up.
    let mut taken: HashMap<Id, Id> = HashMap::new();
    let nodes = region.original_nodes();
    for &user in nodes.iter().rev() {
        let by = match place.get(&user).map(|&i| &found[i].2.became) {
            Some(Became::Unneeded) | None => taken.get(&user).copied(),
            Some(_) => Some(user),
        };
        if let Some(by) = by {
            for &arg in region.graph.nodes()[usize::from(user)].children() {
                taken.entry(arg).or_insert(by);
            }
        }
    }
    for i in 0..found.len() {
        if let (Became::Unneeded, Some(by)) = (&found[i].2.became, taken.get(&found[i].0).and_then(|by| place.get(by)))
        {
            let (span, was) = (found[*by].2.span.clone(), found[*by].2.was.clone());
            found[i].2.became = Became::Absorbed { by: span, was };
        }
    }
}

/// A dear part of a chosen program, and what the program would cost without it.
#[derive(Clone, Debug)]
pub struct Counterfactual {
    /// Where it stands in the source, where known.
    pub span: Option<Span>,
    /// What was chosen.
    pub chosen: String,
    /// Its price.
    pub cost: f64,
    /// The cheapest program without it: what takes its place (none where nothing needs to), and what the program costs more.
    /// None where there is no other program.
    pub next: Option<(Option<String>, f64)>,
    /// The price of the whole program.
    pub total: f64,
}

/// What the program of a region would cost without each of its dearest parts: so many that differ in what they are and cost. Each
/// takes another extraction.
pub fn counterfactuals(x: &Extracted, extractor: &dyn Extractor, most: usize) -> Vec<Counterfactual> {
    let Extracted { region, problem: p, choice, .. } = x;
    let (Ok(order), Ok(total)) = (choice.order(p), choice.cost(p)) else { return Vec::new() };
    let name = |class: u32, candidate: u32| {
        let (id, place) = p.origin(class, candidate);
        region.graph.analysis.tables.name_of(&region.graph[id].nodes[place])
    };
    let mut parts: Vec<(u32, u32)> = order.iter().filter_map(|&c| Some((c, choice.get(c)?))).collect();
    let cost = |candidate: u32| p.candidate(candidate).cost;
    parts.retain(|&(_, candidate)| cost(candidate) > 0.0);
    parts.sort_by(|a, b| cost(b.1).total_cmp(&cost(a.1)).then(a.cmp(b)));
    let mut seen: Vec<(String, f64)> = Vec::new();
    parts.retain(|&(class, candidate)| {
        let part = (name(class, candidate), cost(candidate));
        let is_new = seen.len() < most && !seen.contains(&part);
        if is_new {
            seen.push(part);
        }
        is_new
    });
    let spans = region.spans();
    alternatives(p, choice, extractor, parts)
        .into_iter()
        .map(|a| Counterfactual {
            span: spans.get(&p.class_id(a.class)).cloned(),
            chosen: name(a.class, a.candidate),
            cost: a.cost,
            next: a.next.map(|n| (n.candidate.map(|c| name(a.class, c)), n.extra)),
            total,
        })
        .collect()
}

/// A node with its children's classes as they are now.
fn now(graph: &Graph, node: &Node) -> Node {
    node.clone().map_children(|c| graph.find(c))
}

/// The rules of a proof, in order, each place once.
fn chain(tables: &Tables, proof: &[Rc<TreeTerm<Node>>]) -> Vec<ProofStep> {
    let mut steps = Vec::new();
    let mut seen: HashSet<*const TreeTerm<Node>> = HashSet::new();
    // What is to do next is on top: a proof of a term, from a place on.
    let mut stack: Vec<(&[Rc<TreeTerm<Node>>], usize, Vec<usize>)> = vec![(proof, 0, Vec::new())];
    while let Some((proof, at, path)) = stack.pop() {
        let Some(term) = proof.get(at) else { continue };
        let rule = [(&term.forward_rule, true), (&term.backward_rule, false)];
        if let Some((Some(rule), forward)) = rule.into_iter().find(|(r, _)| r.is_some())
            && at > 0
        {
            let name = rule.to_string();
            steps.push(ProofStep {
                // Computed constants are united by code, whose place egg takes for a name.
                rule: if name.contains(".rs") { "constants".to_owned() } else { name },
                forward,
                path: path.clone(),
                before: head(tables, &proof[at - 1], true),
                after: head(tables, term, false),
            });
        }
        stack.push((proof, at + 1, path.clone()));
        if seen.insert(Rc::as_ptr(term)) {
            for (child, proof) in term.child_proofs.iter().enumerate().rev() {
                let path = path.iter().copied().chain([child]).collect();
                stack.push((proof, 0, path));
            }
        }
    }
    steps
}

/// A term of a proof, with its arguments' operators: as they are at the end of the proofs of its children, or at their start.
fn head(tables: &Tables, term: &TreeTerm<Node>, end: bool) -> String {
    let child = |proof: &Vec<Rc<TreeTerm<Node>>>| {
        let term = if end { proof.last() } else { proof.first() };
        term.map_or("…".to_owned(), |t| tables.name_of(&t.node))
    };
    let skip = matches!(term.node.case(), Case::Op(_)) as usize;
    let children: Vec<String> = term.child_proofs.iter().skip(skip).map(child).collect();
    let name = tables.name_of(&term.node);
    if children.is_empty() { name } else { format!("{name}({})", children.join(", ")) }
}

fn show_node(graph: &Graph, node: &Node, depth: usize, child: &dyn Fn(Id, usize) -> String) -> String {
    let name = graph.analysis.tables.name_of(node);
    let children = match node.as_op() {
        Some((_, _, args)) => args,
        None => node.children(),
    };
    match (children.is_empty(), depth) {
        (true, _) => name,
        (false, 0) => format!("{name}(…)"),
        (false, _) => {
            let children: Vec<String> = children.iter().map(|&c| child(c, depth - 1)).collect();
            format!("{name}({})", children.join(", "))
        }
    }
}

/// A class as a term, by the nodes that are chosen.
fn show<'g>(graph: &'g Graph, class: Id, depth: usize, chosen: &dyn Fn(Id) -> Option<&'g Node>) -> String {
    match chosen(graph.find(class)) {
        Some(node) => show_node(graph, node, depth, &|c, depth| show(graph, c, depth, chosen)),
        None => "…".to_owned(),
    }
}

/// A node of the program as it was.
fn show_original(region: &RegionGraph, id: Id, depth: usize) -> String {
    show_node(&region.graph, &region.graph.nodes()[usize::from(id)], depth, &|c, depth| show_original(region, c, depth))
}

/// Why a program did not become another, as far as the e-graph knows.
#[derive(Clone, Debug)]
pub enum WhyNot {
    /// The rules found it: this is what it costs, and what was chosen instead.
    CostsMore {
        /// By the cost model, as it stands.
        wanted: f64,
        /// By the cost model.
        chosen: f64,
    },
    /// No chain of rules leads to it. These parts of it are the innermost that the program's e-graph does not hold, though it
    /// holds all of their arguments.
    Missing(Vec<(Option<Span>, String)>),
    /// The rules found every part of it, but not that it equals the program.
    NotEqual,
}

/// Why the first field of a region's result did not become the second. The region's result must be a tuple of two: a program,
/// and the form that is wanted of it. `None` where it is not.
///
/// Rules ran over both, so that a step that a rule takes from the wanted form counts as one that leads to it.
pub fn why_not(x: &mut Extracted, model: &dyn CostModel, extractor: &dyn Extractor, target: &Target) -> Option<WhyNot> {
    let region = &x.region;
    let nodes = region.original_nodes();
    let top = &region.graph.nodes()[usize::from(*nodes.last()?)];
    let (&[program, wanted], Case::Tuple) = (top.children(), top.case()) else { return None };
    let graph = &region.graph;
    let problem = Problem::new(graph, program, model, target);
    if graph.find(program) == graph.find(wanted) {
        let chosen = extractor.extract(&problem).cost(&problem).ok()?;
        let (wanted, _) = term_cost(&term_of(region, &nodes, wanted), &graph.analysis.tables, model, target).ok()?;
        return Some(WhyNot::CostsMore { wanted, chosen });
    }
    let held: HashSet<Id> = (0..problem.classes() as u32).map(|c| problem.class_id(c)).collect();
    let mut missing = Vec::new();
    for id in below(region, &nodes, wanted) {
        let node = &graph.nodes()[usize::from(id)];
        // A record is part of the call that it is of.
        let mut args =
            node.children().iter().filter(|&&c| !matches!(graph.nodes()[usize::from(c)].case(), Case::Attrs(_)));
        let is_leaf = matches!(node.case(), Case::Attrs(_));
        if !is_leaf && !held.contains(&graph.find(id)) && args.all(|&c| held.contains(&graph.find(c))) {
            missing.push((region.span(id).cloned(), show_original(region, id, SHOWN)));
        }
    }
    Some(if missing.is_empty() { WhyNot::NotEqual } else { WhyNot::Missing(missing) })
}

/// The original nodes that one needs, itself last.
fn below(region: &RegionGraph, nodes: &[Id], of: Id) -> Vec<Id> {
    let mut needed: HashSet<Id> = HashSet::from_iter([of]);
    for &id in nodes.iter().rev() {
        if needed.contains(&id) {
            needed.extend(region.graph.nodes()[usize::from(id)].children());
        }
    }
    nodes.iter().copied().filter(|id| needed.contains(id)).collect()
}

/// An original node as a term.
fn term_of(region: &RegionGraph, nodes: &[Id], of: Id) -> Term {
    let mut term = Term::default();
    let mut places: HashMap<Id, Id> = HashMap::new();
    for id in below(region, nodes, of) {
        let node = region.graph.nodes()[usize::from(id)].clone().map_children(|c| places[&c]);
        places.insert(id, term.add(node, region.span(id).cloned()));
    }
    term
}
