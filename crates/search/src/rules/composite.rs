//! Patterns that are looked for in a program as it is: the operators that a compiler takes as one.
//!
//! A pattern is the left side of a rule with its guards, and it is searched as rules are, in an e-graph that holds the program
//! and nothing else.

use std::sync::Arc;

use egg::Id;
use hashbrown::HashMap;

use super::{
    ast::{IndexPattern, Pattern, RuleDef},
    eval::Match,
    load,
    search::search_class,
};
use crate::{
    diag::Refused,
    egraph::{Graph, Node, What},
    infer::TypedModule,
    ir::{Expr, ExprId, Module, VarId},
    saturate::SearchContext,
};

/// A pattern with a name.
#[derive(Clone, Debug)]
pub struct CallPattern(Arc<RuleDef>);

/// Where a pattern was met in an e-graph.
#[derive(Clone, Debug)]
pub struct CallsFound(Match);

/// A program as an e-graph: each expression the class of what it is.
#[derive(Debug)]
pub struct Mirror<'a> {
    m: &'a Module,
    graph: Graph,
    classes: HashMap<ExprId, Id>,
}

impl CallPattern {
    /// Reads a pattern, with `:when` and guards behind it where something else must hold: `(nn.relu (add ?x ?b)) :when (const ?b)`.
    pub fn new(name: &str, text: &str) -> Result<CallPattern, Refused> {
        load::composite_of(name, text).map(|d| CallPattern(Arc::new(d)))
    }

    /// The patterns of a file: `(composite NAME PATTERN :when GUARD …)`, the preferred ones first. `name` is what messages call it.
    pub fn read_all(name: &str, text: &str) -> Result<Vec<CallPattern>, Refused> {
        Ok(load::composites(name, text)?.into_iter().map(|d| CallPattern(Arc::new(d))).collect())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// All ways in which a class of an e-graph matches.
    pub fn find(&self, graph: &Graph, class: Id) -> Vec<CallsFound> {
        search_class(&self.0, &SearchContext::everywhere(graph), class, usize::MAX)
            .into_iter()
            .map(CallsFound)
            .collect()
    }

    /// All ways in which an expression matches: the calls, tuples, projections and numbers that the pattern names, children first.
    pub fn find_in(&self, mirror: &Mirror<'_>, root: ExprId) -> Vec<Vec<ExprId>> {
        let Some(&class) = mirror.classes.get(&root) else { return Vec::new() };
        let mut all = Vec::new();
        for found in self.find(&mirror.graph, class) {
            let mut follow = Follow { mirror, found: &found.0, element: 0, parts: Vec::new() };
            if follow.pattern(&self.0.roots[0], root) {
                let mut parts = follow.parts;
                parts.sort_unstable();
                parts.dedup();
                if !all.contains(&parts) {
                    all.push(parts);
                }
            }
        }
        all
    }
}

impl<'a> Mirror<'a> {
    /// The e-graph of these expressions, children before parents. What is no constant, operator's call, tuple or projection is a value
    /// of which only the type is known.
    pub fn new(typed: &'a TypedModule, order: &[ExprId]) -> Mirror<'a> {
        let m = typed.module();
        let mut graph = Graph::default();
        let mut classes: HashMap<ExprId, Id> = HashMap::new();
        let mut variables: HashMap<VarId, Id> = HashMap::new();
        for &e in order {
            let of = |c: &ExprId| classes.get(c).copied();
            let node = match &m[e] {
                Expr::Constant(t) => Some(Node::constant(graph.analysis.tables.intern_const(t))),
                Expr::Tuple(fields) => fields.iter().map(of).collect::<Option<Vec<_>>>().map(Node::tuple),
                Expr::Proj(t, i) => of(t).map(|t| Node::proj(t, *i as u32)),
                Expr::Op(_) | Expr::Global(_) | Expr::Constructor(_) | Expr::Func(_) => continue,
                _ => match m.op_call(e) {
                    Some((op, args, attrs)) => args.iter().map(of).collect::<Option<Vec<_>>>().map(|args| {
                        let attrs = graph.analysis.tables.intern_attrs(attrs);
                        let attrs = graph.add(Node::attrs(attrs));
                        Node::op(op, attrs, args)
                    }),
                    None => None,
                },
            };
            let class = node.map(|n| graph.add(n)).filter(|&c| !matches!(graph[c].data.what, What::Ill(_)));
            let known = match m[e] {
                Expr::Var(v) => variables.get(&v).copied(),
                _ => class,
            };
            let class = known.unwrap_or_else(|| {
                let input = graph.analysis.tables.add_input(Some(typed.ty(e).clone()));
                graph.add(Node::input(input))
            });
            if let Expr::Var(v) = m[e] {
                variables.insert(v, class);
            }
            classes.insert(e, class);
        }
        graph.rebuild();
        let classes = classes.into_iter().map(|(e, c)| (e, graph.find(c))).collect();
        Mirror { m, graph, classes }
    }
}

/// Follows a match from classes to the expressions that are meant.
struct Follow<'a> {
    mirror: &'a Mirror<'a>,
    found: &'a Match,
    /// Which field of a tuple the pattern of a `...` is about.
    element: usize,
    parts: Vec<ExprId>,
}

impl Follow<'_> {
    fn pattern(&mut self, p: &Pattern, e: ExprId) -> bool {
        let (m, class) = (self.mirror.m, self.mirror.classes.get(&e).copied());
        match p {
            Pattern::Class(slot) => class == Some(self.found.class(*slot)),
            Pattern::As(slot, inner) => class == Some(self.found.class(*slot)) && self.pattern(inner, e),
            Pattern::Each(seq) => class == self.found.seqs[*seq].get(self.element).copied(),
            Pattern::Splat(_) => {
                // A number that is computed is an argument like others.
                if matches!(m[e], Expr::Constant(_)) {
                    self.parts.push(e);
                }
                true
            }
            Pattern::Op { ops, args, either_order, .. } => {
                let Some((op, given, _)) = m.op_call(e) else { return false };
                if !ops.list().contains(&op) || args.len() != given.len() {
                    return false;
                }
                let before = self.parts.len();
                self.parts.push(e);
                if self.all(args, given.iter().copied()) {
                    return true;
                }
                self.parts.truncate(before + 1);
                if *either_order && self.all(args, given.iter().rev().copied()) {
                    return true;
                }
                self.parts.truncate(before);
                false
            }
            Pattern::Tuple(fields) => match &m[e] {
                Expr::Tuple(given) if given.len() == fields.len() => {
                    self.parts.push(e);
                    self.all(fields, given.iter().copied())
                }
                _ => false,
            },
            Pattern::TupleOf(inner) => match &m[e] {
                Expr::Tuple(given) => {
                    self.parts.push(e);
                    given.iter().enumerate().all(|(i, &f)| {
                        self.element = i;
                        self.pattern(inner, f)
                    })
                }
                _ => false,
            },
            Pattern::Proj(index, inner) => match &m[e] {
                Expr::Proj(t, i) => {
                    let fits = match index {
                        IndexPattern::Value(v) => *v as usize == *i,
                        IndexPattern::Any(slot) => self.found.get(*slot) == Some(*i as u32),
                    };
                    self.parts.push(e);
                    fits && self.pattern(inner, *t)
                }
                _ => false,
            },
        }
    }

    fn all(&mut self, patterns: &[Pattern], given: impl Iterator<Item = ExprId>) -> bool {
        patterns.iter().zip(given).all(|(p, e)| self.pattern(p, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{infer::infer_types, relay::text};

    #[test]
    fn what_is_met_are_expressions() {
        let source = r#"#[version = "0.0.5"]
            def @main(%x: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32]) {
              %0 = exp(%y); %1 = add(%x, %0); %2 = add(%x, %0); %3 = nn.relu(%1); %4 = nn.relu(%2);
              (multiply(%3, 2f), %4)
            }"#;
        let typed = infer_types(text::parse_module("t", source).unwrap_or_else(|e| panic!("{e}")))
            .unwrap_or_else(|e| panic!("{e}"));
        let m = typed.module();
        let order: Vec<ExprId> = m.ids().collect();
        let mirror = Mirror::new(&typed, &order);
        let met = |text: &str| {
            let p = CallPattern::new("p", text).unwrap_or_else(|e| panic!("{e}"));
            order.iter().flat_map(|&e| p.find_in(&mirror, e)).collect::<Vec<_>>()
        };
        // Equal calls are one class, but different expressions.
        let relus = met("(nn.relu (~add (exp ?y) ?x))");
        assert_eq!(relus.len(), 2);
        assert_ne!(relus[0], relus[1]);
        assert!(relus.iter().all(|r| r.len() == 3));
        assert_eq!(met("(multiply ?x 2)")[0].len(), 2);
        assert_eq!(met("(add ?x ?y) :when (const ?y)").len(), 0);
        assert!(CallPattern::new("p", "(nn.relu ?x) :grows").is_err());
        assert!(CallPattern::new("p", "(nn.rlu ?x)").unwrap_err().to_string().contains("nn.relu"));
    }
}
