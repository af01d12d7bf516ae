//! From a module to the e-graphs of its regions.

use egg::Id;
use hashbrown::HashMap;

use super::{
    Facts, Graph, InputId, Node, OpaqueId, Range, RegionId, Tables, Trials, What, likely,
    plan::{Hole, Plan},
};
use crate::{
    infer::TypedModule,
    ir::{Expr, ExprId, Name, Span, Type, VarId},
};

/// Where an input's value comes from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum InputSource {
    /// A variable.
    Var(VarId),
    /// An expression of an outer region.
    Captured(ExprId),
}

/// An expression that is carried through, with holes.
#[derive(Clone, Debug)]
pub(super) struct Opaque {
    /// The expression as it was.
    pub(super) origin: ExprId,
    /// What the first children of the e-node fill in.
    pub(super) operands: Vec<ExprId>,
    /// What the other children are: captured by the regions below.
    pub(super) captures: Vec<ExprId>,
    /// The regions that it owns, and what they fill in.
    pub(super) bodies: Vec<(ExprId, RegionId)>,
}

/// A module on its way through the e-graph: its regions, one after the other (a region after those inside it), are
/// [opened](Encoded::open) as e-graphs and [closed](Encoded::close) with the term that each is to become; then the module
/// is [rebuilt](Encoded::finish).
pub struct Encoded<'a> {
    pub(super) module: &'a TypedModule,
    pub(super) plan: Plan,
    tables: Tables,
    pub(super) sources: Vec<InputSource>,
    var_inputs: HashMap<VarId, InputId>,
    capture_inputs: HashMap<ExprId, InputId>,
    pub(super) opaques: Vec<Opaque>,
    /// By region: what it captures.
    captured: Vec<Vec<ExprId>>,
    pub(super) terms: Vec<Option<Term>>,
    order: Vec<RegionId>,
    /// Variables that count as known before the program runs, with the range of their elements where that is known.
    known: HashMap<VarId, Option<Range>>,
    /// Types with numbers for extents that are unknown, of variables of which something is said.
    likely: HashMap<VarId, Type>,
    trials: HashMap<VarId, Trials>,
}

/// The e-graph of one region, as encoded.
pub struct RegionGraph {
    /// The region.
    pub id: RegionId,
    /// Its e-graph.
    pub graph: Graph,
    /// The class of its result.
    pub root: Id,
    /// The node of the result, before any union.
    origin: Id,
    /// By node as encoded: where it stands in the source.
    spans: Vec<Option<Span>>,
}

/// A term: nodes whose children are earlier nodes; the last one is the result.
#[derive(Clone, Debug, Default)]
pub struct Term {
    nodes: Vec<Node>,
    spans: Vec<Option<Span>>,
}

impl Term {
    /// Adds a node whose children have been added, and gives its place.
    pub fn add(&mut self, node: Node, span: Option<Span>) -> Id {
        self.nodes.push(node);
        self.spans.push(span);
        Id::from(self.nodes.len() - 1)
    }

    /// The nodes, children before parents.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Where a node stands in the source, where known.
    pub fn span(&self, at: usize) -> Option<&Span> {
        self.spans[at].as_ref()
    }
}

impl RegionGraph {
    /// The nodes of the term that was encoded, whatever has been added since: children before parents, the result last.
    pub fn original_nodes(&self) -> Vec<Id> {
        let nodes = self.graph.nodes();
        let mut needed = vec![false; self.spans.len()];
        needed[usize::from(self.origin)] = true;
        for at in (0..needed.len()).rev().filter(|&at| at <= usize::from(self.origin)) {
            if needed[at] {
                egg::Language::for_each(&nodes[at], |c| needed[usize::from(c)] = true);
            }
        }
        (0..needed.len()).filter(|&at| needed[at]).map(Id::from).collect()
    }

    /// The term that was encoded, whatever has been added since.
    pub fn original(&self) -> Term {
        let mut term = Term::default();
        let mut places: HashMap<Id, Id> = HashMap::new();
        for id in self.original_nodes() {
            let node = egg::Language::map_children(self.graph.nodes()[usize::from(id)].clone(), |c| places[&c]);
            places.insert(id, term.add(node, self.spans[usize::from(id)].clone()));
        }
        term
    }

    /// Where an encoded node stands in the source, where known.
    pub fn span(&self, node: Id) -> Option<&Span> {
        self.spans.get(usize::from(node)).and_then(Option::as_ref)
    }

    /// The source places of classes: of the first encoded node of each.
    pub fn spans(&self) -> HashMap<Id, Span> {
        let mut spans = HashMap::new();
        for (at, span) in self.spans.iter().enumerate() {
            if let Some(span) = span {
                spans.entry(self.graph.find(Id::from(at))).or_insert_with(|| span.clone());
            }
        }
        spans
    }
}

/// Plans the regions of a module.
pub fn encode(module: &TypedModule) -> Encoded<'_> {
    let plan = Plan::new(module);
    let regions = plan.regions.len();
    let mut encoded = Encoded {
        module,
        plan,
        tables: Tables::default(),
        sources: Vec::new(),
        var_inputs: HashMap::new(),
        capture_inputs: HashMap::new(),
        opaques: Vec::new(),
        captured: vec![Vec::new(); regions],
        terms: vec![None; regions],
        order: Vec::new(),
        known: HashMap::new(),
        likely: likely::of_parameters(module),
        trials: HashMap::new(),
    };
    encoded.order = encoded.live_regions();
    encoded
}

impl Encoded<'_> {
    /// Lets variables count as known before the program runs, with the range of their elements where that is known. To be said
    /// before the first region is opened.
    pub fn know(&mut self, vars: impl IntoIterator<Item = (VarId, Option<Range>)>) {
        self.known.extend(vars);
    }

    /// Says how many made-up sizes there are, and what variables' types are at these, where that is known. To be said before the first region is
    /// opened.
    pub fn try_at(&mut self, count: usize, vars: impl IntoIterator<Item = (VarId, Trials)>) {
        self.tables.set_trials(count);
        self.trials.extend(vars);
    }

    /// The function of the module whose body the region is.
    pub fn function(&self, region: RegionId) -> Option<&Name> {
        let mut functions = self.module.functions().zip(&self.plan.functions);
        functions.find(|(_, plan)| plan.body == Some(region)).map(|((name, _), _)| name)
    }

    /// The type of an expression; none for an operator by itself, which has one only in calls.
    fn type_of(&self, id: ExprId) -> Option<Type> {
        Some(self.module.ty(id).clone()).filter(|t| !matches!(t, Type::Hole(_)))
    }

    /// The regions in the order in which they must be opened and closed.
    pub fn regions(&self) -> &[RegionId] {
        &self.order
    }

    /// Whether the region is to stay as it is.
    pub fn is_frozen(&self, region: RegionId) -> bool {
        self.plan.regions[region.index()].frozen
    }

    /// Whether the region is the body of a function of the module.
    pub fn is_outermost(&self, region: RegionId) -> bool {
        self.plan.regions[region.index()].parent.is_none()
    }

    /// Regions of functions that are not left as they are, inner ones first.
    fn live_regions(&self) -> Vec<RegionId> {
        let live = |&r: &RegionId| {
            let body = self.plan.ancestors(r).last();
            self.plan.functions.iter().any(|f| f.body == body)
        };
        let mut roots: HashMap<RegionId, bool> = HashMap::new();
        let mut regions = Vec::new();
        for r in (0..self.plan.regions.len() as u32).map(RegionId) {
            // Parents are planned before their children.
            let alive = match self.plan.regions[r.index()].parent {
                Some(p) => roots[&p],
                None => live(&r),
            };
            roots.insert(r, alive);
            if alive {
                regions.push(r);
            }
        }
        regions.reverse();
        regions
    }

    /// The e-graph of a region, with egg's explanations on or off. The regions inside it must have been closed.
    pub fn open(&mut self, region: RegionId, explanations: bool) -> RegionGraph {
        let facts = Facts { tables: std::mem::take(&mut self.tables), ..Facts::default() };
        let graph = Graph::new(facts);
        let graph = if explanations { graph.with_explanations_enabled() } else { graph };
        let mut insert = Insert { graph, done: HashMap::new(), spans: Vec::new(), region };
        let root = insert.run(self);
        let Insert { mut graph, spans, .. } = insert;
        graph.rebuild();
        let origin = root;
        RegionGraph { id: region, root: graph.find(root), graph, origin, spans }
    }

    /// Says what the region becomes, at which cost, and gives up its e-graph.
    pub fn close(&mut self, region: RegionGraph, term: Term, cost: f64) {
        let RegionGraph { id, graph, .. } = region;
        self.tables = graph.analysis.tables;
        self.tables.set_body_cost(id, cost);
        self.terms[id.index()] = Some(term);
    }

    /// Says that regions opened from now on are priced by kernels (see [`Tables::by_kernel`]).
    pub fn price_by_kernel(&mut self) {
        self.tables.by_kernel = true;
    }

    /// The tables of what has been encoded so far, while no region is open.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
}

struct Insert {
    graph: Graph,
    /// By resolved expression.
    done: HashMap<ExprId, Id>,
    spans: Vec<Option<Span>>,
    region: RegionId,
}

/// What an expression becomes in a region.
enum Shape {
    Leaf(Node),
    /// An operator's call, tuple or projection over these.
    Over(Vec<ExprId>),
    /// Carried, with these filled in.
    Carried(Opaque),
}

impl Insert {
    fn run(&mut self, e: &mut Encoded) -> Id {
        let root = e.plan.resolve(e.module, e.plan.regions[self.region.index()].root);
        let mut stack: Vec<(ExprId, Option<Shape>)> = vec![(root, None)];
        while let Some((id, shape)) = stack.pop() {
            if self.done.contains_key(&id) {
                continue;
            }
            match shape {
                None => {
                    let shape = self.shape(e, id);
                    let needed: Vec<ExprId> = match &shape {
                        Shape::Leaf(_) => Vec::new(),
                        Shape::Over(c) => c.clone(),
                        Shape::Carried(o) => o.operands.iter().chain(&o.captures).copied().collect(),
                    };
                    stack.push((id, Some(shape)));
                    stack.extend(needed.into_iter().rev().map(|c| (e.plan.resolve(e.module, c), None)));
                }
                Some(shape) => {
                    let class = self.build(e, id, shape);
                    self.done.insert(id, class);
                }
            }
        }
        self.done[&root]
    }

    fn shape(&mut self, e: &mut Encoded, id: ExprId) -> Shape {
        let tables = &mut self.graph.analysis.tables;
        if !e.plan.is_local(e.module, id, self.region) {
            let input = match e.capture_inputs.get(&id) {
                Some(&input) => input,
                None => {
                    let input = tables.add_input(e.type_of(id));
                    e.sources.push(InputSource::Captured(id));
                    e.capture_inputs.insert(id, input);
                    input
                }
            };
            let captured = &mut e.captured[self.region.index()];
            captured.push(id);
            return Shape::Leaf(Node::input(input));
        }
        match &e.module[id] {
            Expr::Constant(t) => Shape::Leaf(Node::constant(tables.intern_const(t))),
            Expr::Var(v) => {
                let input = match e.var_inputs.get(v) {
                    Some(&input) => input,
                    None => {
                        let input = tables.add_input(Some(e.module.var_ty(*v).clone()));
                        tables.name_input(input, e.module.var(*v).name.clone());
                        if let Some(likely) = e.likely.get(v) {
                            tables.expect_input(input, likely.clone());
                        }
                        if let Some(trials) = e.trials.get(v) {
                            tables.try_input(input, trials.clone());
                        }
                        if let Some(&range) = e.known.get(v) {
                            tables.assume_known(input, range);
                        }
                        e.sources.push(InputSource::Var(*v));
                        e.var_inputs.insert(*v, input);
                        input
                    }
                };
                Shape::Leaf(Node::input(input))
            }
            _ if !e.plan.dissolves(e.module, id) => Shape::Carried(self.carried(e, id)),
            Expr::Tuple(fields) => Shape::Over(fields.clone()),
            Expr::Proj(tuple, _) => Shape::Over(vec![*tuple]),
            Expr::Call { args, .. } => Shape::Over(args.clone()),
            other => unreachable!("{other:?} neither dissolves nor is carried"),
        }
    }

    fn carried(&self, e: &Encoded, id: ExprId) -> Opaque {
        let holes = e.plan.holes(e.module, id, |_| {});
        let operands = holes.iter().filter_map(|h| match h {
            Hole::Operand(c) => Some(*c),
            Hole::Body(..) => None,
        });
        let bodies = e.plan.owned(id, self.region).to_vec();
        let mut captures: Vec<ExprId> = Vec::new();
        let mut seen = hashbrown::HashSet::new();
        for &c in bodies.iter().flat_map(|(_, r)| &e.captured[r.index()]) {
            if seen.insert(c) {
                captures.push(c);
            }
        }
        Opaque { origin: id, operands: operands.collect(), captures, bodies }
    }

    fn build(&mut self, e: &mut Encoded, id: ExprId, shape: Shape) -> Id {
        let class_of = |c: &ExprId| self.done[&e.plan.resolve(e.module, *c)];
        let span = e.module.span(id).cloned();
        let node = match shape {
            Shape::Leaf(node) => node,
            Shape::Carried(opaque) => return self.build_carried(e, opaque, span),
            Shape::Over(children) => {
                let children: Vec<Id> = children.iter().map(class_of).collect();
                match &e.module[id] {
                    Expr::Tuple(_) => Node::tuple(children),
                    Expr::Proj(_, field) => Node::proj(children[0], *field as u32),
                    _ => {
                        let (op, _, attrs) = e.module.op_call(id).expect("only operators' calls are left");
                        let attrs = self.graph.analysis.tables.intern_attrs(attrs);
                        let attrs = self.add(Node::attrs(attrs), None);
                        Node::op(op, attrs, children)
                    }
                }
            }
        };
        let class = self.add(node, span.clone());
        // In a function that is polymorphic in its shapes, a type relation may have too little to go on: such a node
        // keeps the type that inference found, and no rule looks at it.
        if matches!(self.graph[class].data.what, What::Ill(_)) && !matches!(e.module[id], Expr::Var(_)) {
            let mut operands = Vec::new();
            crate::ir::children(&e.module[id], |c| {
                if !matches!(e.module[c], Expr::Op(_)) && !operands.contains(&c) {
                    operands.push(c);
                }
            });
            return self.build_carried(
                e,
                Opaque { origin: id, operands, captures: Vec::new(), bodies: Vec::new() },
                span,
            );
        }
        class
    }

    fn build_carried(&mut self, e: &mut Encoded, opaque: Opaque, span: Option<Span>) -> Id {
        let children: Vec<Id> =
            opaque.operands.iter().chain(&opaque.captures).map(|c| self.done[&e.plan.resolve(e.module, *c)]).collect();
        let regions = opaque.bodies.iter().map(|b| b.1).collect();
        let id = self.graph.analysis.tables.add_opaque(e.type_of(opaque.origin), regions);
        debug_assert_eq!(id, OpaqueId(e.opaques.len() as u32));
        e.opaques.push(opaque);
        self.add(Node::new(super::Case::Opaque(id), children), span)
    }

    fn add(&mut self, node: Node, span: Option<Span>) -> Id {
        let id = self.graph.add(node);
        self.spans.resize(self.graph.nodes().len(), None);
        let place = &mut self.spans[usize::from(id)];
        if place.is_none() {
            *place = span;
        }
        id
    }
}
