//! Left sides by themselves: patterns of what is taken as one, such as composites of external compilers.

use std::sync::Arc;

use egg::Id;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::{
    ast::{Ops, Pattern, RuleDef, SlotKind},
    eval::Match,
    patterns::pattern,
    reader::read,
    scope::Scope,
    search::search_class,
};
use crate::{
    diag::{Diagnostic, Refused},
    egraph::{Graph, KernelBody, Node, Step, What},
    ir::Source,
    ops::kernel::INLINE_CONSTANT,
    saturate::{Grade, SearchContext},
};

/// So many ways to match a left side at one class are looked at.
const WAYS: usize = 16;

/// A left side of the rule language, read and checked.
#[derive(Clone, Debug)]
pub struct LeftSide(Arc<RuleDef>);

impl LeftSide {
    /// Reads a left side, such as `(nn.relu (nn.conv2d ?x ?w))`. The name is what complaints call the text.
    ///
    /// Refused are texts that are no pattern of one operator, and operators and fields that there are not.
    pub fn parse(name: &str, text: &str) -> Result<LeftSide, Refused> {
        let source = Arc::new(Source { name: name.to_owned(), text: text.to_owned() });
        let tops = read(&source)?;
        let [top] = &tops[..] else {
            let d = Diagnostic::new(format!("{name}: `{text}` should be one pattern, such as (nn.relu ?x)"));
            return Err(d.into());
        };
        let mut scope = Scope::default();
        let root = pattern(&mut scope, &top.form);
        let is_call = |p: &Pattern| matches!(p, Pattern::Op { .. });
        match root {
            Some(mut root) if scope.errors.is_empty() && is_call(&root) => {
                name_numbers(&mut root, &mut scope.slots);
                Ok(LeftSide(Arc::new(RuleDef {
                    ruleset: name.into(),
                    name: name.into(),
                    grade: Grade::Exact,
                    error: None,
                    grows: false,
                    promised: false,
                    constants: false,
                    limit: None,
                    slots: scope.slots,
                    seqs: scope.seqs,
                    attr_vars: scope.attr_vars,
                    roots: vec![root],
                    lets: Vec::new(),
                    results: Vec::new(),
                    fors: Vec::new(),
                    guards: Vec::new(),
                    samples: Vec::new(),
                    doc: top.comment.as_str().into(),
                    text: text.into(),
                    span: top.form.span.clone(),
                })))
            }
            Some(_) if scope.errors.is_empty() => {
                Err(top.form.complain("what is taken as one ends in an operator's call").into())
            }
            _ => Err(Refused(scope.errors)),
        }
    }

    /// What it meets at a class, as bodies over the classes of their arguments. Constants of one element are within the bodies.
    pub fn bodies(&self, graph: &Graph, class: Id) -> Vec<(KernelBody, Vec<Id>)> {
        let mut found: Vec<(KernelBody, Vec<Id>)> = Vec::new();
        for m in search_class(&self.0, &SearchContext::everywhere(graph), class, WAYS) {
            let mut builder = Builder { graph, m: &m, steps: Vec::new(), args: Vec::new(), known: HashMap::new() };
            let Some(_) = builder.build(&self.0.roots[0]) else { continue };
            let Builder { steps, args, .. } = builder;
            let types: Option<Vec<_>> = args.iter().map(|&a| graph[a].data.ty().cloned()).collect();
            let Some((body, kept)) = types.and_then(|types| KernelBody::new(&types, &steps)) else { continue };
            let args: Vec<Id> = kept.into_iter().map(|i| args[i]).collect();
            if !found.iter().any(|(b, a)| *b == body && *a == args) {
                found.push((body, args));
            }
        }
        found
    }
}

/// Gives every number of a pattern a name, so that a match says which class it was.
fn name_numbers(p: &mut Pattern, slots: &mut Vec<SlotKind>) {
    match p {
        Pattern::Splat(x) => {
            slots.push(SlotKind::Class);
            *p = Pattern::As(slots.len() - 1, Box::new(Pattern::Splat(*x)));
        }
        Pattern::Op { args: inner, .. } | Pattern::Tuple(inner) => {
            inner.iter_mut().for_each(|p| name_numbers(p, slots));
        }
        Pattern::As(_, inner) | Pattern::TupleOf(inner) | Pattern::Proj(_, inner) => name_numbers(inner, slots),
        Pattern::Class(_) | Pattern::Each(_) => {}
    }
}

/// A match on its way to a body.
struct Builder<'a> {
    graph: &'a Graph,
    m: &'a Match,
    steps: Vec<Step>,
    args: Vec<Id>,
    known: HashMap<Step, u32>,
}

impl Builder<'_> {
    fn push(&mut self, step: Step) -> u32 {
        if let Some(&at) = self.known.get(&step) {
            return at;
        }
        let at = self.steps.len() as u32;
        self.known.insert(step.clone(), at);
        self.steps.push(step);
        at
    }

    fn leaf(&mut self, class: Id) -> u32 {
        let class = self.graph.find(class);
        if let Some(id) = self.graph[class].data.value
            && self.graph.analysis.tables.constant(id).len() <= INLINE_CONSTANT
        {
            return self.push(Step::Const(id));
        }
        let at = self.args.iter().position(|&a| a == class).unwrap_or_else(|| {
            self.args.push(class);
            self.args.len() - 1
        });
        self.push(Step::Arg(at as u32))
    }

    /// The step of what a pattern has met, and its class.
    fn build(&mut self, p: &Pattern) -> Option<(u32, Id)> {
        match p {
            Pattern::Class(slot) => {
                let class = self.m.class(*slot);
                Some((self.leaf(class), class))
            }
            Pattern::As(slot, inner) if matches!(**inner, Pattern::Splat(_)) => {
                let class = self.m.class(*slot);
                Some((self.leaf(class), class))
            }
            Pattern::As(_, inner) => self.build(inner),
            Pattern::Op { ops, record, args, either_order, .. } => {
                let op = match ops {
                    Ops::One(op) => *op,
                    Ops::Any(_, slot) => self.m.op(*slot),
                };
                let record = self.m.class(*record);
                let What::Attrs(attrs) = self.graph[record].data.what else { return None };
                let mut parts = args.iter().map(|a| self.build(a)).collect::<Option<Vec<_>>>()?;
                let node = |parts: &[(u32, Id)]| Node::op(op, record, parts.iter().map(|p| p.1));
                let mut class = self.graph.lookup(node(&parts));
                if class.is_none() && *either_order {
                    parts.reverse();
                    class = self.graph.lookup(node(&parts));
                }
                let class = self.graph.find(class?);
                let ty = self.graph[class].data.ty()?.clone();
                let steps: SmallVec<[u32; 4]> = parts.iter().map(|p| p.0).collect();
                Some((self.push(Step::Op(op, attrs, steps, ty)), class))
            }
            Pattern::Tuple(fields) => {
                let parts = fields.iter().map(|f| self.build(f)).collect::<Option<Vec<_>>>()?;
                let class = self.graph.lookup(Node::tuple(parts.iter().map(|p| p.1)))?;
                Some((self.push(Step::Tuple(parts.iter().map(|p| p.0).collect())), class))
            }
            Pattern::TupleOf(inner) => {
                let Pattern::Each(seq) = **inner else { return None };
                let fields = self.m.seqs[seq].clone();
                let steps = fields.iter().map(|&f| self.leaf(f)).collect();
                let class = self.graph.lookup(Node::tuple(fields.iter().copied()))?;
                Some((self.push(Step::Tuple(steps)), class))
            }
            // Numbers were given names; bodies take no results apart.
            Pattern::Splat(_) | Pattern::Each(_) | Pattern::Proj(..) => None,
        }
    }
}
