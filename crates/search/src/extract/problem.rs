//! An extraction problem: an e-graph reduced to classes, candidate nodes and prices.

use std::ops::Range;

use egg::{Id, Language};
use hashbrown::HashMap;

use crate::{
    cost::{CostModel, Crossing, External, Head, KernelCall, KernelView, NodeView, Source},
    egraph::{Case, Fact, Graph, KernelBody, Node, Step, Tables, Term, What, fact_of, types_of_steps},
    ir::{Name, Type},
    target::Target,
};

/// A sum of prices, in units that [`Problem`] chose so that sums are exact; ties go to fewer nodes.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Total {
    /// Prices, in units.
    pub units: u128,
    /// Nodes.
    pub nodes: u64,
}

impl Total {
    /// Both together; sums beyond the range stay at its end.
    pub fn plus(self, other: Total) -> Total {
        Total { units: self.units.saturating_add(other.units), nodes: self.nodes.saturating_add(other.nodes) }
    }

    /// Whether nothing is paid.
    pub fn is_free(self) -> bool {
        self.units == 0
    }
}

/// A node that may be chosen for its class.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Classes that it needs.
    pub children: Range<u32>,
    /// Its own price.
    pub total: Total,
    /// Its own price as the model gave it.
    pub cost: f64,
    /// The error that it brings in, of its class and of its own: 0 but for what approximate rules made.
    pub error: f64,
}

/// Classes (numbered from 0), the candidates of each, and the root.
#[derive(Clone, Debug)]
pub struct Problem {
    classes: Vec<Range<u32>>,
    candidates: Vec<Candidate>,
    children: Vec<u32>,
    root: u32,
    /// By class: its id in the e-graph, where the problem comes from one.
    ids: Vec<Id>,
    /// By candidate: its place among its class's nodes.
    places: Vec<u32>,
}

/// What can't be had costs more than any program.
const UNOBTAINABLE: u128 = 1 << 90;

/// The prices of a problem add up to at most so many units, so that rounding them loses nothing that matters.
const ALL_UNITS: f64 = (1u64 << 60) as f64;

impl Problem {
    /// The problem of an e-graph: its classes that the root can reach, priced by a model.
    pub fn new(graph: &Graph, root: Id, model: &dyn CostModel, target: &Target) -> Problem {
        let root = graph.find(root);
        let mut numbers: HashMap<Id, u32> = HashMap::new();
        let mut ids = vec![root];
        numbers.insert(root, 0);
        let mut parts = Vec::new();
        let mut places = Vec::new();
        if model.prepares() {
            announce(graph, root, model, target);
        }
        let mut pricer = Pricer::new(model, target, &graph.analysis.tables);
        let mut at = 0;
        while at < ids.len() {
            let class = &graph[ids[at]];
            let mut nodes = Vec::new();
            for (place, node) in class.nodes.iter().enumerate() {
                // A node that the type relation refuses is in a class of values only by congruence with one that it
                // accepts under other (unknown) extents: the other stays.
                let cost = pricer.price(node, &class.data, |c| &graph[c].data);
                if cost.is_none() && class.nodes.len() > 1 {
                    continue;
                }
                let mut children = Vec::with_capacity(node.len());
                node.for_each(|c| {
                    let c = graph.find(c);
                    let next = ids.len() as u32;
                    children.push(*numbers.entry(c).or_insert_with(|| {
                        ids.push(c);
                        next
                    }));
                });
                nodes.push((cost.unwrap_or(0.0), children));
                places.push(place as u32);
            }
            parts.push(nodes);
            at += 1;
        }
        let mut p = Problem { ids, places, ..Problem::from_parts(&parts, 0) };
        p.set_errors(graph, &numbers);
        p
    }

    /// Notes what approximate rules have brought in; `numbers` are the classes by their ids.
    fn set_errors(&mut self, graph: &Graph, numbers: &HashMap<Id, u32>) {
        let errors = &graph.analysis.errors;
        if errors.is_empty() {
            return;
        }
        for class in 0..self.classes.len() as u32 {
            let nodes = &graph[self.ids[class as usize]].nodes;
            for candidate in self.of_class(class) {
                let node = &nodes[self.places[candidate as usize] as usize];
                self.candidates[candidate as usize].error = errors.of_node(node);
            }
        }
        let charged: HashMap<Id, f64> = errors.of_classes(graph).into_iter().collect();
        let crosses = |node: &Node| matches!(node.case(), Case::Enter(_) | Case::Leave(_));
        for (id, &class) in numbers {
            // A value that an external compiler computes is as far off as the same value elsewhere; where it crosses a region's
            // border, it was charged before.
            let entered = || {
                let enters = graph[*id].nodes.iter().find(|n| matches!(n.case(), Case::Enter(_)))?;
                charged.get(&graph.find(enters.children()[0]))
            };
            let Some(&error) = charged.get(id).or_else(entered) else { continue };
            for candidate in self.of_class(class) {
                if !crosses(&graph[*id].nodes[self.places[candidate as usize] as usize]) {
                    self.candidates[candidate as usize].error += error;
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn set_test_errors(&mut self, errors: &[f64]) {
        self.candidates.iter_mut().zip(errors).for_each(|(c, &e)| c.error = e);
    }

    /// Whether anything to choose brings in an error.
    pub fn has_errors(&self) -> bool {
        self.candidates.iter().any(|c| c.error > 0.0)
    }

    /// The same choices at other prices: `price` gives a candidate's new one, by its class.
    pub fn repriced(&self, mut price: impl FnMut(u32, &Candidate) -> f64) -> Problem {
        let class = |class: u32| {
            let of_candidate = |c: u32| (price(class, self.candidate(c)), self.needs(c).to_vec());
            self.of_class(class).map(of_candidate).collect::<Vec<_>>()
        };
        let parts: Vec<_> = (0..self.classes.len() as u32).map(class).collect();
        let mut p =
            Problem { ids: self.ids.clone(), places: self.places.clone(), ..Problem::from_parts(&parts, self.root) };
        for (new, old) in p.candidates.iter_mut().zip(&self.candidates) {
            new.error = old.error;
        }
        p
    }

    /// A problem from nothing but prices and children, by class. Panics where a child is not a class.
    pub fn from_parts(classes: &[Vec<(f64, Vec<u32>)>], root: u32) -> Problem {
        let finite = |cost: f64| Some(cost).filter(|c| c.is_finite()).map(|c| c.max(0.0));
        let all: f64 = classes.iter().flatten().filter_map(|(cost, _)| finite(*cost)).sum();
        let scale = if all > 0.0 { ALL_UNITS / all } else { 0.0 };
        let mut p = Problem {
            classes: Vec::with_capacity(classes.len()),
            candidates: Vec::new(),
            children: Vec::new(),
            root,
            ids: Vec::new(),
            places: Vec::new(),
        };
        for nodes in classes {
            let first = p.candidates.len() as u32;
            for (cost, children) in nodes {
                let start = p.children.len() as u32;
                assert!(children.iter().all(|&c| (c as usize) < classes.len()), "children are classes");
                p.children.extend(children);
                let units = finite(*cost).map_or(UNOBTAINABLE, |c| {
                    let units = (c * scale).round() as u128;
                    // The smallest price is still a price.
                    if c > 0.0 { units.max(1) } else { units }
                });
                let children = start..p.children.len() as u32;
                p.candidates.push(Candidate { children, total: Total { units, nodes: 1 }, cost: *cost, error: 0.0 });
            }
            p.classes.push(first..p.candidates.len() as u32);
        }
        p
    }

    /// The same problem, where a candidate can't be had.
    pub fn without(&self, candidate: u32) -> Problem {
        let mut p = self.clone();
        let c = &mut p.candidates[candidate as usize];
        (c.total.units, c.cost) = (UNOBTAINABLE, f64::INFINITY);
        p
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Number of candidates.
    pub fn candidates(&self) -> usize {
        self.candidates.len()
    }

    /// The class that is wanted.
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The candidates of a class.
    pub fn of_class(&self, class: u32) -> Range<u32> {
        self.classes[class as usize].clone()
    }

    /// A candidate.
    pub fn candidate(&self, candidate: u32) -> &Candidate {
        &self.candidates[candidate as usize]
    }

    /// The classes that a candidate needs.
    pub fn needs(&self, candidate: u32) -> &[u32] {
        let range = &self.candidates[candidate as usize].children;
        &self.children[range.start as usize..range.end as usize]
    }

    /// For every class, the candidates that need it, each once, and their classes.
    pub(super) fn users(&self) -> Vec<Vec<(u32, u32)>> {
        let mut users = vec![Vec::new(); self.classes.len()];
        for class in 0..self.classes.len() as u32 {
            for candidate in self.of_class(class) {
                for &child in self.needs(candidate) {
                    let users: &mut Vec<(u32, u32)> = &mut users[child as usize];
                    if users.last() != Some(&(candidate, class)) {
                        users.push((candidate, class));
                    }
                }
            }
        }
        users
    }

    /// The e-graph's class.
    pub fn class_id(&self, class: u32) -> Id {
        self.ids[class as usize]
    }

    /// The class of that id in the e-graph (as `find` gives it), where the root can need it.
    pub fn class_of(&self, id: Id) -> Option<u32> {
        self.ids.iter().position(|&c| c == id).map(|at| at as u32)
    }

    /// The e-graph's class and node of a candidate of a class.
    pub fn origin(&self, class: u32, candidate: u32) -> (Id, usize) {
        (self.ids[class as usize], self.places[candidate as usize] as usize)
    }
}

/// Asks a model for the prices of nodes.
struct Pricer<'a> {
    model: &'a dyn CostModel,
    target: &'a Target,
    tables: &'a Tables,
    args: Vec<Type>,
    constant: Vec<bool>,
    /// Where prices are not asked for but refined: whether a model had guessed any of them.
    refined: Option<bool>,
    /// Where nodes are only noted, for [`CostModel::prepare`]: those so far.
    noted: Option<Vec<Noted<'a>>>,
}

/// A node as [`NodeView`] shows it, by itself.
struct Noted<'a> {
    head: Head<'a>,
    args: Vec<Type>,
    constant: Vec<bool>,
    out: Type,
}

impl Noted<'_> {
    fn view<'v>(&'v self, target: &'v Target) -> NodeView<'v> {
        NodeView { head: self.head, args: &self.args, constant: &self.constant, out: &self.out, target }
    }
}

/// Announces to a model all nodes that the root can reach.
fn announce(graph: &Graph, root: Id, model: &dyn CostModel, target: &Target) {
    let mut pricer = Pricer { noted: Some(Vec::new()), ..Pricer::new(model, target, &graph.analysis.tables) };
    let mut seen: hashbrown::HashSet<Id> = hashbrown::HashSet::new();
    seen.insert(root);
    let mut todo = vec![root];
    while let Some(id) = todo.pop() {
        let class = &graph[id];
        for node in &class.nodes {
            pricer.price(node, &class.data, |c| &graph[c].data);
            node.for_each(|c| {
                let c = graph.find(c);
                if seen.insert(c) {
                    todo.push(c);
                }
            });
        }
    }
    pricer.announce();
}

impl<'a> Pricer<'a> {
    fn new(model: &'a dyn CostModel, target: &'a Target, tables: &'a Tables) -> Pricer<'a> {
        Pricer { model, target, tables, args: Vec::new(), constant: Vec::new(), refined: None, noted: None }
    }

    /// Announces what was noted.
    fn announce(&self) {
        let views: Vec<NodeView> = self.noted.iter().flatten().map(|n| n.view(self.target)).collect();
        self.model.prepare(&views);
    }

    /// The price of a node of a class of the given fact; `None` where its arguments have no types.
    fn price<'f>(&mut self, node: &Node, out: &Fact, fact: impl Fn(Id) -> &'f Fact) -> Option<f64> {
        let (head, args) = match node.case() {
            Case::Attrs(_) | Case::Const(_) | Case::Input(_) => return Some(0.0),
            Case::Op(op) => {
                let (_, attrs, args) = node.as_op()?;
                let What::Attrs(attrs) = fact(attrs).what else { return None };
                (Head::Op(op, self.tables.attrs(attrs)), args)
            }
            Case::Kernel(_) | Case::Enter(_) | Case::Leave(_) if self.noted.is_some() => return Some(0.0),
            Case::Kernel(id) => {
                self.kernel_args(node.children(), &fact)?;
                return Some(self.kernel(&self.tables.kernel(id).clone()));
            }
            Case::Enter(place) | Case::Leave(place) => {
                let value = fact(node.children()[0]);
                return Some(sensible(self.model.crossing(&Crossing {
                    compiler: self.tables.place(place).as_str(),
                    inwards: matches!(node.case(), Case::Enter(_)),
                    ty: value.ty()?,
                    constant: value.constant,
                    target: self.target,
                })));
            }
            Case::Tuple => (Head::Tuple, node.children()),
            Case::Proj(field) => (Head::Proj(field), node.children()),
            Case::Opaque(id) => (Head::Carried { bodies: self.tables.opaque_cost(id) }, node.children()),
        };
        self.args.clear();
        self.constant.clear();
        for &a in args {
            let fact = fact(a);
            self.constant.push(fact.constant);
            // What is carried may have no type that inference could tell; its price does not look at types.
            match (fact.priced_type(), head) {
                (Some(ty), _) => self.args.push(ty.clone()),
                (None, Head::Carried { .. }) => {}
                (None, _) => return None,
            }
        }
        let out = match (out.priced_type(), head) {
            (Some(ty), _) => ty.clone(),
            (None, Head::Carried { .. }) => Type::tuple([]),
            (None, _) => return None,
        };
        if !matches!(head, Head::Carried { .. }) && self.constant.iter().all(|&c| c) {
            return Some(0.0);
        }
        if let Some(noted) = &mut self.noted {
            noted.push(Noted { head, args: self.args.clone(), constant: self.constant.clone(), out });
            return Some(0.0);
        }
        let cost = match head {
            Head::Op(op, attrs) if self.tables.by_kernel => {
                let sources = (0..self.args.len()).map(Source::Arg).collect();
                let (args, constant) = (self.args.clone(), self.constant.clone());
                let call = KernelCall { op, attrs, sources, args, constant, out: &out };
                let (args, constant) = (&self.args, &self.constant);
                let view = KernelView { calls: &[call], args, constant, target: self.target };
                match &mut self.refined {
                    Some(refined) => {
                        *refined |= self.model.refine(None, &view);
                        0.0
                    }
                    None => self.model.kernel(&view),
                }
            }
            _ => self.model.cost(&NodeView {
                head,
                args: &self.args,
                constant: &self.constant,
                out: &out,
                target: self.target,
            }),
        };
        Some(sensible(cost))
    }

    /// Notes the types of a kernel's arguments; `None` where one has none.
    fn kernel_args<'f>(&mut self, args: &[Id], fact: &impl Fn(Id) -> &'f Fact) -> Option<()> {
        self.args.clear();
        self.constant.clear();
        for &a in args {
            self.args.push(fact(a).priced_type()?.clone());
            self.constant.push(fact(a).constant);
        }
        Some(())
    }

    /// The price of a kernel over the arguments that were noted.
    fn kernel(&mut self, body: &KernelBody) -> f64 {
        if !self.constant.is_empty() && self.constant.iter().all(|&c| c) {
            return 0.0;
        }
        let types = types_of_steps(self.tables, body, &self.args);
        let mut calls: Vec<KernelCall> = Vec::new();
        let mut steps: Vec<(Source, bool)> = Vec::with_capacity(body.steps().len());
        for (at, step) in body.steps().iter().enumerate() {
            let all = |of: &[u32]| of.iter().map(|&s| steps[s as usize].clone()).collect::<Vec<_>>();
            steps.push(match step {
                Step::Arg(i) => (Source::Arg(*i as usize), self.constant[*i as usize]),
                Step::Const(id) => (Source::Const(self.tables.constant(*id)), true),
                Step::Tuple(fields) => {
                    let fields = all(fields);
                    let constant = fields.iter().all(|f| f.1);
                    (Source::Tuple(fields.into_iter().map(|f| f.0).collect()), constant)
                }
                Step::Op(op, attrs, args, _) => {
                    let (sources, constant) = all(args).into_iter().unzip();
                    calls.push(KernelCall {
                        op: *op,
                        attrs: self.tables.attrs(*attrs),
                        sources,
                        args: args.iter().map(|&s| types[s as usize].clone()).collect(),
                        constant,
                        out: &types[at],
                    });
                    (Source::Call(calls.len() - 1), false)
                }
            });
        }
        let view = KernelView { calls: &calls, args: &self.args, constant: &self.constant, target: self.target };
        let composite = body.composite().map(Name::as_str);
        let by = body.place().map(|p| External { compiler: self.tables.place(p).as_str(), composite });
        match (&mut self.refined, &by) {
            (Some(refined), _) => {
                *refined |= self.model.refine(by.as_ref(), &view);
                0.0
            }
            (None, Some(by)) => sensible(self.model.placed(by, &view)),
            (None, None) => sensible(self.model.kernel(&view)),
        }
    }
}

/// A model that gives nonsense does not get to break extraction: nothing is cheaper than free.
fn sensible(cost: f64) -> f64 {
    if cost.is_nan() { f64::INFINITY } else { cost.max(0.0) }
}

/// Why a term has no price.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// A node is ill-typed: why.
    #[error("{0}")]
    IllTyped(String),
    /// An argument of a node has no type.
    #[error("{node}: an argument has no type")]
    Untyped {
        /// The node.
        node: String,
    },
}

/// What a term costs by a model, every node once: the sum that extraction minimizes. Types come from the nodes'
/// relations, so that a term of an e-graph is priced as it stands, not by what the e-graph learned. Also gives its type,
/// where it is known. `Err` says why a node is ill-typed.
pub fn term_cost(
    term: &Term,
    tables: &Tables,
    model: &dyn CostModel,
    target: &Target,
) -> Result<(f64, Option<Type>), PriceError> {
    let (prices, ty) = term_prices(term, tables, model, target)?;
    Ok((prices.iter().sum(), ty))
}

/// What each node of a term costs, as [`term_cost`] adds it up, and the term's type.
pub fn term_prices(
    term: &Term,
    tables: &Tables,
    model: &dyn CostModel,
    target: &Target,
) -> Result<(Vec<f64>, Option<Type>), PriceError> {
    if model.prepares() {
        let mut noting = Pricer { noted: Some(Vec::new()), ..Pricer::new(model, target, tables) };
        price_all(term, &mut noting)?;
        noting.announce();
    }
    priced(term, Pricer::new(model, target, tables)).map(|(prices, ty, _)| (prices, ty))
}

/// Lets a model refine the prices of a term's nodes that it has guessed so far ([`CostModel::refine`]). Gives whether there were
/// any.
pub fn refine_term(term: &Term, tables: &Tables, model: &dyn CostModel, target: &Target) -> bool {
    let pricer = Pricer { refined: Some(false), ..Pricer::new(model, target, tables) };
    priced(term, pricer).is_ok_and(|(_, _, refined)| refined)
}

type Priced = (Vec<f64>, Option<Type>, bool);

fn priced(term: &Term, mut pricer: Pricer) -> Result<Priced, PriceError> {
    let (prices, ty) = price_all(term, &mut pricer)?;
    Ok((prices, ty, pricer.refined == Some(true)))
}

fn price_all(term: &Term, pricer: &mut Pricer) -> Result<(Vec<f64>, Option<Type>), PriceError> {
    let tables = pricer.tables;
    let mut facts: Vec<Fact> = Vec::with_capacity(term.nodes().len());
    let mut prices = Vec::with_capacity(term.nodes().len());
    for node in term.nodes() {
        let of = |c: Id| &facts[usize::from(c)];
        let fact = fact_of(tables, node, of);
        if let (What::Ill(why), Case::Op(_) | Case::Kernel(_) | Case::Tuple | Case::Proj(_)) = (&fact.what, node.case())
        {
            return Err(PriceError::IllTyped(why.to_string()));
        }
        let price = pricer.price(node, &fact, of).ok_or_else(|| PriceError::Untyped { node: node.to_string() })?;
        prices.push(price);
        facts.push(fact);
    }
    Ok((prices, facts.last().and_then(|f| f.ty().cloned())))
}
