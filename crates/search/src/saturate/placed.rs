//! Who makes which part of a program, and what the next best maker would take for it.

use egg::{Id, Language};
use hashbrown::HashMap;

use crate::{
    egraph::{Case, Graph, Node, PlaceId, RegionGraph, Step, class_of_step},
    extract::{Choice, Problem},
};

/// Parts of a program that are alike: who makes them, and at what price.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedReport {
    /// The external compiler; none for resat's own code, and for no one where values cross borders.
    pub compiler: Option<String>,
    /// The operators' names in order, with `+` between them; `enter` and `leave` where values cross the border of a compiler's
    /// regions.
    pub name: String,
    /// How often such a part stands in the program.
    pub calls: usize,
    /// What one costs, by the cost model.
    pub cost: f64,
    /// The next best maker (none for resat) and its price for the same operators, by the same model, borders and changes of layout aside; none where
    /// nobody else makes them.
    pub next: Option<(Option<String>, f64)>,
}

/// So many layouts of a value are looked at.
const LAYOUTS: usize = 16;

/// What resat's reports call its own code.
pub(super) const OWN: &str = "resat";

/// The parts of a chosen program, those that cost most together first; none where there are no external compilers.
pub(super) fn placed(region: &RegionGraph, p: &Problem, choice: &Choice) -> Vec<PlacedReport> {
    let Ok(order) = choice.order(p) else { return Vec::new() };
    let graph = &region.graph;
    let mut view = View { graph, p, classes: HashMap::new(), places: Vec::new() };
    for class in 0..p.classes() as u32 {
        view.classes.insert(p.class_id(class), class);
        for node in &graph[p.class_id(class)].nodes {
            if let Case::Enter(place) = node.case()
                && !view.places.contains(&place)
            {
                view.places.push(place);
            }
        }
    }
    if view.places.is_empty() {
        return Vec::new();
    }
    let mut parts: Vec<PlacedReport> = Vec::new();
    for class in order {
        let Some(candidate) = choice.get(class) else { continue };
        let cost = p.candidate(candidate).cost;
        let (id, at) = p.origin(class, candidate);
        let node = &graph[id].nodes[at];
        if cost <= 0.0 {
            continue;
        }
        let tables = &graph.analysis.tables;
        let name = |place: PlaceId| tables.place(place).as_str().to_owned();
        let (compiler, what, next) = match node.case() {
            Case::Op(op) => (None, op.op().name().to_owned(), view.next_best(id, node)),
            Case::Kernel(body) => {
                let body = tables.kernel(body);
                (body.place().map(name), body.name(), view.next_best(id, node))
            }
            Case::Enter(place) => (Some(name(place)), "enter".to_owned(), None),
            Case::Leave(place) => (Some(name(place)), "leave".to_owned(), None),
            _ => continue,
        };
        let part = PlacedReport { compiler, name: what, calls: 1, cost, next };
        let same = |q: &&mut PlacedReport| {
            q.compiler == part.compiler && q.name == part.name && q.cost == part.cost && q.next == part.next
        };
        match parts.iter_mut().find(same) {
            Some(known) => known.calls += 1,
            None => parts.push(part),
        }
    }
    parts.sort_by(|a, b| (b.calls as f64 * b.cost).total_cmp(&(a.calls as f64 * a.cost)));
    parts
}

struct View<'a> {
    graph: &'a Graph,
    p: &'a Problem,
    /// The problem's classes by their ids.
    classes: HashMap<Id, u32>,
    places: Vec<PlaceId>,
}

impl View<'_> {
    /// The value of the program that a class is, which may be one within regions.
    fn value(&self, class: Id) -> Id {
        let class = self.graph.find(class);
        let enter = self.graph[class].iter().find(|n| matches!(n.case(), Case::Enter(_)));
        enter.map_or(class, |n| self.graph.find(n.children()[0]))
    }

    /// Who else could compute what a node does, most cheaply, and for how much.
    fn next_best(&self, class: Id, node: &Node) -> Option<(Option<String>, f64)> {
        // The values that it computes, each after those that it reads.
        let (own, values) = match node.case() {
            Case::Kernel(body) => {
                let body = self.graph.analysis.tables.kernel(body);
                let mut known: Vec<Option<Id>> = Vec::with_capacity(body.steps().len());
                let mut values = Vec::new();
                for step in body.steps() {
                    let value = match step {
                        Step::Arg(i) => Some(self.value(node.children()[*i as usize])),
                        _ => class_of_step(self.graph, step, &known).map(|c| self.graph.find(c)),
                    };
                    if matches!(step, Step::Op(..)) {
                        values.push(value?);
                    }
                    known.push(value);
                }
                // Its result is of this class whatever the last step's arguments have become equal to.
                *values.last_mut()? = self.value(class);
                (body.place(), values)
            }
            _ => (None, vec![self.value(class)]),
        };
        let mut given: Vec<Id> = Vec::new();
        for &child in node.children() {
            let value = self.value(child);
            let fields = self.graph[value].iter().find(|n| n.case() == Case::Tuple).map_or(&[][..], |n| n.children());
            given
                .extend(std::iter::once(value).chain(fields.iter().map(|&f| self.value(f))).map(|v| self.layouts(v).0));
        }
        let makers = std::iter::once(None).chain(self.places.iter().copied().map(Some)).filter(|m| *m != own);
        let prices = makers.filter_map(|maker| Some((maker, self.price(maker, &given, &values)?)));
        let (maker, price) = prices.min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((maker.map(|m| self.graph.analysis.tables.place(m).as_str().to_owned()), price))
    }

    /// A value in all layouts that it stands in, by the class that was there first.
    fn layouts(&self, value: Id) -> (Id, Vec<Id>) {
        let is_move = |n: &Node| matches!(n.case(), Case::Op(op) if op.op().name() == "layout_transform");
        let mut all = vec![value];
        let mut at = 0;
        while let Some(&class) = all.get(at) {
            at += 1;
            let from = self.graph[class].iter().filter(|n| is_move(n)).filter_map(|n| n.children().last().copied());
            let to = self.graph[class].parents().filter(|&n| is_move(&self.graph.nodes()[usize::from(n)]));
            for next in from.chain(to).map(|c| self.graph.find(c)).collect::<Vec<_>>() {
                if all.len() < LAYOUTS && !all.contains(&next) {
                    all.push(next);
                }
            }
        }
        (all.iter().copied().min().unwrap_or(value), all)
    }

    /// What an operand costs: nothing where it is given, else what it was priced at; `None` where it is to be had from elsewhere only.
    fn below(&self, operand: Id, given: &[Id], prices: &HashMap<Id, Option<f64>>) -> Option<f64> {
        let value = self.value(operand);
        let class = &self.graph[value];
        let (same, _) = self.layouts(value);
        if class.data.constant || class.data.ty().is_none() || given.contains(&same) {
            return Some(0.0);
        }
        if let Some(price) = prices.get(&same) {
            return *price;
        }
        let tuple = class.iter().find(|n| n.case() == Case::Tuple)?;
        tuple.children().iter().map(|&c| self.below(c, given, prices)).sum()
    }

    /// What it costs to have a maker compute the last of these values, in whatever layout it has them, from what is given.
    fn price(&self, maker: Option<PlaceId>, given: &[Id], values: &[Id]) -> Option<f64> {
        // None for what only a larger part makes, which is priced by that part.
        let mut prices: HashMap<Id, Option<f64>> = HashMap::new();
        let mut last = None;
        for &value in values {
            let (value, layouts) = self.layouts(value);
            last = Some(value);
            prices.insert(value, None);
            let of = |class: Id| {
                let class = match maker {
                    None => Some(class),
                    Some(place) => self.graph.lookup(Node::enter(place, class)).map(|c| self.graph.find(c)),
                };
                class.and_then(|c| self.classes.get(&c)).copied()
            };
            let price = |number: u32, candidate: u32| {
                let (id, at) = self.p.origin(number, candidate);
                let node = &self.graph[id].nodes[at];
                let makes = match node.case() {
                    Case::Op(op) => maker.is_none() && op.op().name() != "layout_transform",
                    Case::Kernel(body) => self.graph.analysis.tables.kernel(body).place() == maker,
                    _ => false,
                };
                if !makes {
                    return None;
                }
                let below: Option<f64> = node.children().iter().map(|&c| self.below(c, given, &prices)).sum();
                Some(self.p.candidate(candidate).cost + below?)
            };
            let all = layouts.into_iter().filter_map(of);
            let all = all.flat_map(|number| self.p.of_class(number).map(move |c| (number, c)));
            let best = all.filter_map(|(n, c)| price(n, c)).filter(|c| c.is_finite()).min_by(f64::total_cmp);
            prices.insert(value, best);
        }
        prices.get(&last?).copied().flatten()
    }
}
