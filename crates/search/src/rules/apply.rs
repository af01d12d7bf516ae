//! Builds a rule's right sides and says that they equal the left ones.

use std::sync::Arc;

use egg::Id;
use smallvec::SmallVec;

use super::{
    ast::{ConstType, IndexPattern, Ops, Pattern, RuleDef, Term, TermItem, TermOp},
    eval::{BuiltType, Env, Match, Values},
    newshape::newshape,
    reach::Reach,
    search::{root_slot, search},
};
use crate::{
    egraph::{Case, Graph, Node, Trials, meet, union_checked},
    ir::{AttrValue, Attrs, Name, OpId, Type},
    ops::{OpError, make_attrs},
    saturate::{Asked, Rewrite, SearchContext},
    tensor::{DType, Tensor},
};

/// A rule of the rule language, ready to run.
pub(super) struct Compiled {
    rule: Arc<RuleDef>,
    reach: Reach,
    name: Name,
}

impl Compiled {
    pub(super) fn new(rule: Arc<RuleDef>) -> Compiled {
        Compiled { reach: Reach::of(&rule), name: rule.full_name(), rule }
    }
}

impl Rewrite for Compiled {
    type Match = Match;

    fn search(&self, cx: &SearchContext<'_>, limit: usize) -> Vec<(Id, Match)> {
        search(&self.rule, &self.reach, cx, limit)
    }

    fn apply(&self, graph: &mut Graph, class: Id, found: &Match, asked: &Asked) {
        asked.take_unknown();
        let built = match build(&self.rule, graph, class, found, asked) {
            Ok(built) => built,
            Err(Stop::DoesNotApply) => {
                if asked.take_unknown() {
                    asked.count_undecided();
                }
                return;
            }
            Err(Stop::Refused(why)) => return graph.analysis.refuse(Some(&self.name), why),
        };
        let Trace { inherited, inexact } = trace(&self.rule, graph, &built, found);
        let mut taught = false;
        for &(root, result) in &built.results {
            // What holds for an approximation alone must not make exact terms equal.
            if inexact && self.rule.error.is_none() && graph.analysis.errors.has_exact(graph.find(result)) {
                continue;
            }
            let top = if built.error + inherited > 0.0 { graph[result].nodes.clone() } else { Vec::new() };
            if graph.find(root) == graph.find(result) || !union_checked(graph, root, result, &self.name) {
                continue;
            }
            taught = true;
            if built.inner.is_none() || inherited > 0.0 {
                let error = inherited + if built.inner.is_none() { built.error } else { 0.0 };
                top.into_iter().for_each(|node| graph.analysis.errors.mark(node, error));
            }
        }
        if let Some(inner) = built.inner.filter(|_| taught && built.error > 0.0) {
            graph.analysis.errors.charge(inner, built.error);
        }
    }
}

/// Why a right side is not built.
#[derive(Debug)]
pub(super) enum Stop {
    /// A function does not apply: the rule does not fire, which is no fault.
    DoesNotApply,
    /// The right side has no type, or another one than the left side: a fault of the rule.
    Refused(String),
}

/// Right sides that were added to the graph.
pub(super) struct Built {
    /// A root's class and its result's, for every root.
    pub(super) results: Vec<(Id, Id)>,
    /// How far they may differ: 0 but for approximate rules.
    pub(super) error: f64,
    /// The innermost class that is new, where it is not a result: whoever uses the result in whatever form needs it. Of several the
    /// one made of constants, such as a weight: it is this place's own.
    inner: Option<Id>,
}

/// What a match came by.
struct Trace {
    /// The least error of the nodes that the left side can have meant, and of the classes within it: what an exact rule makes of an
    /// approximation is one, too.
    inherited: f64,
    /// Whether all that it can have meant has an error somewhere, be it deep below.
    inexact: bool,
}

fn trace(rule: &RuleDef, graph: &Graph, built: &Built, found: &Match) -> Trace {
    let errors = &graph.analysis.errors;
    if errors.is_empty() {
        return Trace { inherited: 0.0, inexact: false };
    }
    let least = |leaf: &dyn Fn(Id) -> f64| -> f64 {
        let roots = rule.roots.iter().zip(&built.results);
        roots.map(|(pattern, (root, _))| least_error(graph, found, pattern, graph.find(*root), true, leaf)).sum()
    };
    let inherited = least(&|_| 0.0);
    let inexact = least(&|class| if errors.has_exact(class) { 0.0 } else { 1.0 }) > 0.0;
    // Where nothing fits any more (a union since the search), nothing is known of an error.
    Trace { inherited: if inherited.is_finite() { inherited } else { 0.0 }, inexact }
}

/// The least sum of errors over the terms of a class that a pattern can have matched: of nodes, of classes within, and of what is bound.
fn least_error(graph: &Graph, found: &Match, p: &Pattern, class: Id, root: bool, leaf: &dyn Fn(Id) -> f64) -> f64 {
    let errors = &graph.analysis.errors;
    let of_class = if root { 0.0 } else { errors.of_class(class) };
    let below = |p: &Pattern, c: Id| least_error(graph, found, p, graph.find(c), false, leaf);
    let least = |of: &dyn Fn(&Node) -> Option<f64>| {
        let of_node = |n: &Node| of(n).map(|below| errors.of_node(n) + below);
        of_class + graph[class].iter().filter_map(of_node).fold(f64::INFINITY, f64::min)
    };
    match p {
        Pattern::Class(slot) if graph.find(found.class(*slot)) != class => f64::INFINITY,
        Pattern::Class(_) | Pattern::Splat(_) | Pattern::Each(_) => leaf(class),
        Pattern::As(_, inner) => least_error(graph, found, inner, class, root, leaf),
        Pattern::Op { ops, record, args, either_order, .. } => {
            let op = match ops {
                Ops::One(op) => *op,
                Ops::Any(_, slot) => found.op(*slot),
            };
            least(&|n| {
                let (o, attrs, found_args) = n.as_op()?;
                let same =
                    o == op && graph.find(attrs) == graph.find(found.class(*record)) && found_args.len() == args.len();
                same.then_some(())?;
                let sum = |args: &mut dyn Iterator<Item = (&Pattern, Id)>| args.map(|(p, c)| below(p, c)).sum::<f64>();
                let straight = sum(&mut args.iter().zip(found_args.iter().copied()));
                let turned = match either_order {
                    true => sum(&mut args.iter().rev().zip(found_args.iter().copied())),
                    false => f64::INFINITY,
                };
                Some(straight.min(turned))
            })
        }
        Pattern::Tuple(fields) => least(&|n| {
            let children = egg::Language::children(n);
            let fits = n.case() == Case::Tuple && children.len() == fields.len();
            fits.then(|| fields.iter().zip(children).map(|(p, &c)| below(p, c)).sum())
        }),
        Pattern::TupleOf(inner) => least(&|n| {
            let children = egg::Language::children(n);
            (n.case() == Case::Tuple).then(|| children.iter().map(|&c| below(inner, c)).sum())
        }),
        Pattern::Proj(index, inner) => least(&|n| {
            let wanted = match index {
                IndexPattern::Value(i) => *i,
                IndexPattern::Any(slot) => found.get(*slot)?,
            };
            (n.case() == Case::Proj(wanted)).then(|| below(inner, egg::Language::children(n)[0]))
        }),
    }
}

/// Adds a match's right sides to the graph. Nothing is added unless all results are of their roots' types.
pub(super) fn build(rule: &RuleDef, graph: &mut Graph, class: Id, found: &Match, asked: &Asked) -> Result<Built, Stop> {
    let mut planner = Planner { rule, graph, found, asked, steps: Vec::new(), lets: Vec::new(), let_types: Vec::new() };
    for term in &rule.lets {
        let step = planner.term(term, None)?;
        planner.lets.push(step);
        planner.let_types.push(planner.steps[step].0.clone());
    }
    let mut results = Vec::new();
    for (pattern, term) in rule.roots.iter().zip(&rule.results) {
        let root = match rule.roots.len() {
            1 => class,
            _ => found.class(root_slot(pattern).expect("a root among several has a name")),
        };
        let step = planner.term(term, None)?;
        let (left, right) = (graph[root].data.ty(), &planner.steps[step].0.ty);
        match left.map(|left| meet(left, right)) {
            Some(Some(_)) => results.push((root, step)),
            Some(None) => {
                let left = left.expect("just seen");
                return Err(Stop::Refused(format!("the left side is of type {left}, the right side of type {right}")));
            }
            None => return Err(Stop::DoesNotApply),
        }
    }
    let error = match &rule.error {
        None => 0.0,
        // A bound that is no number says that the rule does not hold here.
        Some(bound) => match planner.eval(bound)?.as_float() {
            Some(error) if error >= 0.0 && error.is_finite() => error,
            _ => return Err(Stop::DoesNotApply),
        },
    };
    let steps = planner.steps;
    let mut ids: Vec<Id> = Vec::with_capacity(steps.len());
    // By step: whether it or something below it is new.
    let mut new: Vec<bool> = Vec::with_capacity(steps.len());
    let mut inner: Option<(usize, bool)> = None;
    for (at, (_, step)) in steps.iter().enumerate() {
        let below = match step {
            Step::Op(_, _, args) | Step::Tuple(args) => args.iter().any(|&a| new[a]),
            Step::Proj(tuple, _) => new[*tuple],
            Step::Have(_) | Step::Const(_) => false,
        };
        new.push(below);
        let node = match step {
            Step::Have(id) => {
                ids.push(*id);
                continue;
            }
            Step::Op(op, attrs, args) => {
                let attrs = graph.analysis.tables.intern_attrs(attrs);
                let attrs = graph.add(Node::attrs(attrs));
                Node::op(*op, attrs, args.iter().map(|&a| ids[a]))
            }
            Step::Tuple(fields) => Node::tuple(fields.iter().map(|&a| ids[a])),
            Step::Proj(tuple, i) => Node::proj(ids[*tuple], *i),
            Step::Const(t) => Node::constant(graph.analysis.tables.intern_const(t)),
        };
        let computed = matches!(step, Step::Op(..));
        if error > 0.0 && computed && !below && graph.lookup(node.clone()).is_none() {
            new[at] = true;
            let constant = egg::Language::children(&node).iter().all(|&c| graph[c].data.constant);
            if inner.is_none_or(|(_, other)| constant && !other) && !results.iter().any(|r| r.1 == at) {
                inner = Some((at, constant));
            }
        }
        let id = graph.add(node);
        // A small computation of constants is its value: else 0 - 0 would be another constant than 0, and so without end.
        if let Some(value) = graph[id].data.value.filter(|_| computed) {
            let constant = graph.add(Node::constant(value));
            graph.union(id, constant);
        }
        ids.push(id);
    }
    let results = results.into_iter().map(|(root, step)| (root, ids[step])).collect();
    Ok(Built { results, error, inner: inner.map(|(at, _)| ids[at]) })
}

/// One node to come; arguments are earlier steps.
enum Step {
    Have(Id),
    Op(OpId, Attrs, Vec<usize>),
    Tuple(Vec<usize>),
    Proj(usize, u32),
    Const(Tensor),
}

/// Works out types before any node is made.
struct Planner<'a> {
    rule: &'a RuleDef,
    graph: &'a Graph,
    found: &'a Match,
    asked: &'a Asked,
    steps: Vec<(BuiltType, Step)>,
    /// The steps of the right side's `let`s, and their types.
    lets: Vec<usize>,
    let_types: Vec<BuiltType>,
}

impl<'a> Planner<'a> {
    fn env(&self) -> Env<'_> {
        let (rule, graph, found, asked) = (self.rule, self.graph, self.found, self.asked);
        Env { rule, graph, found, built: &self.let_types, asked, trial: None }
    }

    fn push(&mut self, ty: BuiltType, step: Step) -> usize {
        self.steps.push((ty, step));
        self.steps.len() - 1
    }

    fn have(&mut self, id: Id) -> Result<usize, Stop> {
        let fact = &self.graph[id].data;
        let ty = fact.ty().ok_or(Stop::DoesNotApply)?.clone();
        Ok(self.push(BuiltType { ty, trials: fact.trials.clone() }, Step::Have(id)))
    }

    fn eval(&self, e: &super::ast::Expr) -> Result<AttrValue, Stop> {
        self.env().always(e).ok_or(Stop::DoesNotApply)
    }

    /// A type, with what it is at made-up sizes by those of the steps that it is computed from, where that follows.
    fn built(&self, ty: Type, args: &[usize], of: impl Fn(&[Type]) -> Option<Type>) -> BuiltType {
        let unknown = |&a: &usize| self.steps[a].0.trials.is_some();
        if !args.iter().any(unknown) {
            return BuiltType { ty, trials: None };
        }
        let at = |trial: usize| -> Option<Type> {
            let types: Vec<Type> = args.iter().map(|&a| self.steps[a].0.at(Some(trial)).clone()).collect();
            of(&types)
        };
        let found: Option<Vec<Type>> = (0..self.graph.analysis.tables.trials()).map(at).collect();
        let trials = found.map(Trials::of).and_then(|t| t.fitted(&ty));
        BuiltType { ty, trials }
    }

    /// Plans a term; `element` says which field of the sequences is meant.
    fn term(&mut self, term: &Term, element: Option<usize>) -> Result<usize, Stop> {
        match term {
            Term::Class(slot) => self.have(self.found.class(*slot)),
            Term::Built(i) => Ok(self.lets[*i]),
            Term::Element(seq) => {
                let id = element.and_then(|i| self.found.seqs[*seq].get(i).copied()).ok_or(Stop::DoesNotApply)?;
                self.have(id)
            }
            Term::Nth(index, seq) => {
                let index = self.eval(index)?.as_int().and_then(|i| usize::try_from(i).ok());
                let id = index.and_then(|i| self.found.seqs[*seq].get(i).copied()).ok_or(Stop::DoesNotApply)?;
                self.have(id)
            }
            Term::Op { op, base, fields, args } => {
                let op = match op {
                    TermOp::One(op) => *op,
                    TermOp::Matched(slot) => self.found.op(*slot),
                };
                let args: Vec<usize> = args.iter().map(|a| self.term(a, element)).collect::<Result<_, _>>()?;
                let attrs = self.attrs(op, *base, fields, &args)?;
                // What the graph holds already has its type: most of what rules build was built in an earlier round.
                if let Some(id) = self.known_call(op, &attrs, &args)
                    && self.graph[id].data.ty().is_some()
                {
                    return self.have(id);
                }
                let types: Vec<Type> = args.iter().map(|&a| self.steps[a].0.ty.clone()).collect();
                let ty = op.op().infer(&attrs, &types).map_err(|OpError(why)| {
                    Stop::Refused(format!("the right side is ill-typed: `{}`: {why}", op.op().name()))
                })?;
                let ty = self.built(ty, &args, |types| op.op().infer(&attrs, types).ok());
                Ok(self.push(ty, Step::Op(op, attrs, args)))
            }
            Term::Tuple(items) => {
                let mut fields = Vec::new();
                for item in items {
                    match item {
                        TermItem::One(t) => fields.push(self.term(t, element)?),
                        TermItem::Each(t, seq) => {
                            for i in 0..self.found.seqs[*seq].len() {
                                fields.push(self.term(t, Some(i))?);
                            }
                        }
                    }
                }
                let ty = Type::tuple(fields.iter().map(|&f| self.steps[f].0.ty.clone()));
                let ty = self.built(ty, &fields, |types| Some(Type::tuple(types.iter().cloned())));
                let known = self.known(&fields, |ids| Node::tuple(ids.iter().copied()));
                Ok(self.push(ty, known.map_or(Step::Tuple(fields), Step::Have)))
            }
            Term::Proj(index, inner) => {
                let index = self.eval(index)?.as_int().and_then(|i| u32::try_from(i).ok()).ok_or(Stop::DoesNotApply)?;
                let inner = self.term(inner, element)?;
                // A field of a tuple that is being built is that field: which one may be computed.
                if let Step::Tuple(fields) = &self.steps[inner].1
                    && let Some(&field) = fields.get(index as usize)
                {
                    return Ok(field);
                }
                let ty = match self.steps[inner].0.ty.as_tuple().map(|f| f.get(index as usize)) {
                    Some(Some(ty)) => ty.clone(),
                    _ => {
                        let ty = &self.steps[inner].0.ty;
                        return Err(Stop::Refused(format!("there is no field {index} in a value of type {ty}")));
                    }
                };
                let ty = self.built(ty, &[inner], |types| types[0].as_tuple()?.get(index as usize).cloned());
                let known = self.known(&[inner], |ids| Node::proj(ids[0], index));
                Ok(self.push(ty, known.map_or(Step::Proj(inner, index), Step::Have)))
            }
            Term::Const(value, dtype) => {
                let t = self.constant(value, dtype.as_ref())?;
                let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
                let ty = BuiltType { ty: Type::tensor(&shape, t.dtype()), trials: None };
                Ok(self.push(ty, Step::Const(t)))
            }
        }
    }

    /// The class of a node over earlier steps, where the graph holds all of it.
    fn known(&self, args: &[usize], node: impl FnOnce(&[Id]) -> Node) -> Option<Id> {
        let id = |&a: &usize| match self.steps[a].1 {
            Step::Have(id) => Some(id),
            _ => None,
        };
        let ids: SmallVec<[Id; 4]> = args.iter().map(id).collect::<Option<_>>()?;
        self.graph.lookup(node(&ids))
    }

    /// The class of a call over earlier steps, where the graph holds all of it.
    fn known_call(&self, op: OpId, attrs: &Attrs, args: &[usize]) -> Option<Id> {
        let attrs = self.graph.lookup(Node::attrs(self.graph.analysis.tables.attrs_id(attrs)?))?;
        self.known(args, |ids| Node::op(op, attrs, ids.iter().copied()))
    }

    /// The complete record of an operator on the right side.
    fn attrs(
        &self,
        op: OpId,
        base: Option<usize>,
        fields: &[(Name, super::ast::Expr)],
        args: &[usize],
    ) -> Result<Attrs, Stop> {
        let mut given: Vec<(Name, AttrValue)> = Vec::new();
        if let Some(record) = base.and_then(|slot| self.env().record(slot)) {
            let schema = op.op().attrs();
            given.extend(
                record
                    .iter()
                    .filter(|(n, _)| schema.iter().any(|f| f.name == n.as_str()))
                    .map(|(n, v)| (n.clone(), v.clone())),
            );
        }
        for (name, e) in fields {
            let value = self.field(op, name, e, args)?;
            match given.iter_mut().find(|(n, _)| n == name) {
                Some(field) => field.1 = value,
                None => given.push((name.clone(), value)),
            }
        }
        make_attrs(op, &given).map_err(|e| Stop::Refused(e.to_string()))
    }

    /// The value of an operator's attribute. Of unknown extents, a `reshape` can say what they are made of.
    fn field(&self, op: OpId, name: &Name, e: &super::ast::Expr, args: &[usize]) -> Result<AttrValue, Stop> {
        let values = match self.env().values(e).ok_or(Stop::DoesNotApply)? {
            Values::One(value) => return Ok(value),
            Values::BySize(values) => values,
        };
        if values.iter().all(|v| *v == values[0]) {
            return Ok(values[0].clone());
        }
        self.asked.note_unknown();
        let codes = || {
            (op.op().name() == "reshape" && name.as_str() == "newshape").then_some(())?;
            let arg = &self.steps[*args.first()?].0;
            let from = |trial: usize| arg.at(Some(trial)).as_tensor()?.known_shape();
            let from: Vec<Vec<i64>> = (0..self.graph.analysis.tables.trials()).map(from).collect::<Option<_>>()?;
            let to: Vec<Vec<i64>> = values.iter().map(AttrValue::as_ints).collect::<Option<_>>()?;
            newshape(&from, &to)
        };
        let codes = codes().ok_or(Stop::DoesNotApply)?;
        self.asked.take_unknown();
        Ok(AttrValue::ints(&codes))
    }

    fn constant(&self, value: &super::ast::Expr, dtype: Option<&ConstType>) -> Result<Tensor, Stop> {
        let value = self.eval(value)?;
        let dtype: DType = match dtype {
            None => match value {
                AttrValue::Tensor(t) => return Ok(t.0),
                v => return Err(Stop::Refused(format!("{v:?} is no tensor, and has no element type"))),
            },
            Some(ConstType::Given(d)) => *d,
            Some(ConstType::Like(slot)) => self.env().view(*slot).tensor().ok_or(Stop::DoesNotApply)?.dtype,
            Some(ConstType::Computed(e)) => match self.eval(e)? {
                AttrValue::DType(d) => d,
                v => return Err(Stop::Refused(format!("{v:?} is no element type"))),
            },
        };
        match value {
            AttrValue::Int(i) => Ok(Tensor::from_i64_fn(dtype, &[], |_| i)),
            v => {
                let x = v.as_float().ok_or_else(|| Stop::Refused(format!("{v:?} is no number")))?;
                if !dtype.is_float() && x.fract() != 0.0 {
                    return Err(Stop::DoesNotApply);
                }
                Ok(Tensor::from_f64_fn(dtype, &[], |_| x))
            }
        }
    }
}
