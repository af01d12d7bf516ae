//! The rule language: rules are data, read from `.rules` files, checked against the operator table, and compiled to
//! rewrites of the e-graph. `rules/README.md` is the language's manual and the law for rule writers.

mod apply;
mod ast;
mod check;
mod composite;
mod eval;
pub mod functions;
mod fusion;
pub mod guards;
mod left;
mod literals;
mod load;
mod newshape;
mod patterns;
mod reach;
mod reader;
pub mod reference;
mod registry;
mod scope;
mod search;
mod signature;
mod terms;

use std::sync::Arc;

pub use check::{CheckReport, check};
pub use composite::{CallPattern, CallsFound, Mirror};
pub use fusion::{CodeRules, fusion, in_code};
pub use left::LeftSide;
pub use registry::{SHIPPED, by_request, general, general_definitions, shipped, shipped_definitions};

use crate::{
    diag::Refused,
    ir::{AttrValue, Name, OpId, Span},
    saturate::{Grade, Rewriter, Rule, Ruleset},
};

/// A ruleset as a file defines it.
#[derive(Clone, Debug)]
pub struct Definitions {
    /// Its name.
    pub name: Name,
    /// The comment above it.
    pub doc: Arc<str>,
    /// Whether it runs only where a pass or a user names it.
    pub by_request: bool,
    /// `(ruleset …)` as it was written, on one line.
    pub head: Arc<str>,
    /// Its rules, in the order of the file. A rule that goes both ways is two.
    pub rules: Vec<Definition>,
}

/// A rule as a file defines it, checked.
#[derive(Clone, Debug)]
pub struct Definition(Arc<ast::RuleDef>);

impl Definition {
    /// `ruleset/rule`: what reports call it.
    pub fn name(&self) -> Name {
        self.0.full_name()
    }

    /// How equal its sides are.
    pub fn grade(&self) -> Grade {
        self.0.grade
    }

    /// Whether it bounds how far its sides may differ: every approximate rule does, and no other.
    pub fn has_bound(&self) -> bool {
        self.0.error.is_some()
    }

    /// Whether it is marked as one that can grow the graph without end.
    pub fn grows(&self) -> bool {
        self.0.grows
    }

    /// Whether it also rewrites what is made of constants alone.
    pub fn rewrites_constants(&self) -> bool {
        self.0.constants
    }

    /// How many equalities it may teach in one round, where it says so.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit
    }

    /// The comment above it: its algebra.
    pub fn doc(&self) -> &str {
        &self.0.doc
    }

    /// The rule in its own notation, on one line.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The operators that its right side names. One that the match found is not among them: it was there before.
    pub fn makes(&self) -> Vec<OpId> {
        let mut ops = Vec::new();
        let mut todo: Vec<&ast::Term> = self.0.lets.iter().chain(&self.0.results).collect();
        while let Some(term) = todo.pop() {
            match term {
                ast::Term::Op { op, args, .. } => {
                    if let ast::TermOp::One(op) = op {
                        ops.push(*op);
                    }
                    todo.extend(args);
                }
                ast::Term::Tuple(items) => todo.extend(items.iter().map(|item| match item {
                    ast::TermItem::One(t) | ast::TermItem::Each(t, _) => t,
                })),
                ast::Term::Proj(_, t) => todo.push(t),
                ast::Term::Class(_)
                | ast::Term::Built(_)
                | ast::Term::Element(_)
                | ast::Term::Nth(..)
                | ast::Term::Const(..) => {}
            }
        }
        ops
    }

    /// The operators that its left side names.
    pub fn matches(&self) -> Vec<OpId> {
        let mut ops = Vec::new();
        let mut todo: Vec<&ast::Pattern> = self.0.roots.iter().collect();
        while let Some(pattern) = todo.pop() {
            match pattern {
                ast::Pattern::Op { ops: named, args, .. } => {
                    ops.extend_from_slice(named.list());
                    todo.extend(args);
                }
                ast::Pattern::As(_, p) | ast::Pattern::TupleOf(p) | ast::Pattern::Proj(_, p) => todo.push(p),
                ast::Pattern::Tuple(ps) => todo.extend(ps),
                ast::Pattern::Class(_) | ast::Pattern::Splat(_) | ast::Pattern::Each(_) => {}
            }
        }
        ops
    }

    /// Where it stands.
    pub fn span(&self) -> &Span {
        &self.0.span
    }

    /// The rule, ready to run.
    pub fn compile(&self) -> Rule {
        Rule {
            name: self.0.name.clone(),
            ruleset: self.0.ruleset.clone(),
            grade: self.0.grade,
            grows: self.0.grows,
            limit: self.0.limit,
            forms_kernels: false,
            rewrite: Rewriter::new(apply::Compiled::new(self.0.clone())),
        }
    }
}

impl Definitions {
    /// The ruleset with another value for a variable of its `:given` (`?wanted`); one that it lacks changes nothing.
    pub fn given(mut self, variable: &str, value: &AttrValue) -> Definitions {
        for rule in &mut self.rules {
            for def in &mut Arc::make_mut(&mut rule.0).attr_vars {
                if let ast::AttrDef::Given(name, given) = def
                    && name.as_str() == variable
                {
                    *given = value.clone();
                }
            }
        }
        self
    }

    /// The ruleset, ready to run.
    pub fn compile(&self) -> Ruleset {
        Ruleset { name: self.name.clone(), rules: self.rules.iter().map(Definition::compile).collect() }
    }
}

/// Reads and checks the text of a rule file; `name` is what messages call it. All errors are reported at once.
pub fn define(name: &str, text: &str) -> Result<Vec<Definitions>, Refused> {
    let sets = load::load(name, text)?;
    Ok(sets
        .into_iter()
        .map(|s| Definitions {
            name: s.name,
            doc: s.doc,
            by_request: s.by_request,
            head: s.head,
            rules: s.rules.into_iter().map(|r| Definition(Arc::new(r))).collect(),
        })
        .collect())
}

/// Reads, checks and compiles the text of a rule file.
pub fn load(name: &str, text: &str) -> Result<Vec<Ruleset>, Refused> {
    Ok(define(name, text)?.iter().map(Definitions::compile).collect())
}

#[cfg(test)]
mod tests {
    use egg::Id;

    use super::*;
    use crate::{
        egraph::{Graph, Node},
        ir::Type,
        ops::{make_attrs, op},
        saturate::{Asked, Limits, SearchContext, saturate},
        tensor::{DType, Tensor},
    };

    fn input(g: &mut Graph, shape: &[i64]) -> Id {
        let id = g.analysis.tables.add_input(Some(Type::tensor(shape, DType::F32)));
        g.add(Node::input(id))
    }

    fn constant(g: &mut Graph, t: Tensor) -> Id {
        let id = g.analysis.tables.intern_const(&t);
        g.add(Node::constant(id))
    }

    fn call(g: &mut Graph, name: &str, attrs: &[(&str, AttrValue)], args: &[Id]) -> Id {
        let given: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| ((*n).into(), v.clone())).collect();
        let attrs = make_attrs(op(name), &given).expect("legal attributes");
        let attrs = g.analysis.tables.intern_attrs(&attrs);
        let attrs = g.add(Node::attrs(attrs));
        g.add(Node::op(op(name), attrs, args.iter().copied()))
    }

    fn run(g: &mut Graph, text: &str) {
        let sets = load("t.rules", text).unwrap_or_else(|e| panic!("{e}"));
        for _ in 0..3 {
            for rule in sets.iter().flat_map(|s| &s.rules) {
                let found = rule.rewrite.search(SearchContext::everywhere(g), usize::MAX);
                (0..found.len()).for_each(|at| found.apply(at, g, &Asked::default()));
                g.rebuild();
            }
        }
    }

    #[test]
    fn a_rule_fires_where_guards_hold() {
        let mut g = Graph::default();
        let x = input(&mut g, &[2, 3]);
        let zero = constant(&mut g, Tensor::scalar(0f32));
        let wide = constant(&mut g, Tensor::zeros(DType::F32, &[4, 2, 3]));
        let (y, z) = (call(&mut g, "add", &[], &[zero, x]), call(&mut g, "add", &[], &[x, wide]));
        run(&mut g, "(ruleset t :numerics real) (rule zero (as ?y (~add ?x 0)) => ?x :when (same-type ?x ?y))");
        assert_eq!(g.find(y), g.find(x));
        assert_ne!(g.find(z), g.find(x), "broadcasting is not nothing");
        assert!(g.analysis.refusals.is_empty());
    }

    #[test]
    fn a_side_of_another_type_is_refused_by_name() {
        let mut g = Graph::default();
        let (x, y) = (input(&mut g, &[2, 3]), input(&mut g, &[3]));
        let sum = call(&mut g, "add", &[], &[y, x]);
        run(&mut g, "(ruleset t) (rule wrong (add ?x ?y) => (nn.relu ?x))");
        assert_ne!(g.find(sum), g.find(y));
        let refusal = g.analysis.refusals.first().expect("refused");
        assert_eq!(refusal.rule.as_ref().map(Name::as_str), Some("t/wrong"));
    }

    #[test]
    fn roots_join_at_what_they_share() {
        let mut g = Graph::default();
        let (x, other) = (input(&mut g, &[2, 3]), input(&mut g, &[2, 3]));
        let w: Vec<Id> = (0..3).map(|_| input(&mut g, &[4, 3])).collect();
        for (x, w) in [(x, w[0]), (x, w[1]), (other, w[2])] {
            call(&mut g, "nn.dense", &[], &[x, w]);
        }
        let rule = "(ruleset t) (rule pair ((?l (nn.dense {..?a} ?x ?v)) (?r (nn.dense {..?a} ?x ?w)))
                      => ((?l (nn.dense {..?a} ?x ?v)) (?r (nn.dense {..?a} ?x ?w))) :when (older ?l ?r))";
        let sets = load("t.rules", rule).unwrap_or_else(|e| panic!("{e}"));
        g.rebuild();
        let found = sets[0].rules[0].rewrite.search(SearchContext::everywhere(&g), usize::MAX);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn pairs_of_roots_come_from_an_index() {
        // Each layer has an input of its own: all pairs would be 400 million.
        let mut g = Graph::default();
        for _ in 0..20_000 {
            let (x, w) = (input(&mut g, &[1, 2]), input(&mut g, &[2, 2]));
            call(&mut g, "nn.dense", &[], &[x, w]);
        }
        let rule = "(ruleset t) (rule pair ((?l (nn.dense {..?a} ?x ?v)) (?r (nn.dense {..?a} ?x ?w)))
                      => ((?l (nn.dense {..?a} ?x ?v)) (?r (nn.dense {..?a} ?x ?w))))";
        let sets = load("t.rules", rule).unwrap_or_else(|e| panic!("{e}"));
        g.rebuild();
        assert!(sets[0].rules[0].rewrite.search(SearchContext::everywhere(&g), usize::MAX).is_empty());
    }

    #[test]
    fn a_rule_teaches_no_more_than_its_limit_in_a_round() {
        let rule = "(ruleset t) (rule twice :limit 3 (abs ?x) => (abs (abs ?x)) :when (has-rank ?x 2) (not (has-op ?x \"abs\")))";
        let sets = load("t.rules", rule).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(sets[0].rules[0].limit, Some(3));
        for (rounds, wanted) in [(1, 3), (2, 6), (9, 10)] {
            let mut g = Graph::default();
            for _ in 0..10 {
                let x = input(&mut g, &[2, 3]);
                call(&mut g, "abs", &[], &[x]);
            }
            let limits = Limits { iterations: rounds, ..Limits::default() };
            assert_eq!(saturate(&mut g, &sets, &limits).unions(), wanted, "{rounds} rounds");
        }
    }

    #[test]
    fn constants_are_rewritten_by_rules_that_say_so_and_make_less() {
        let twice = "(transpose {axes ?p} (transpose {axes ?p} ?x)) => ?x :when (= ?p [1 0])";
        for (mark, same) in [("", false), (":constants", true)] {
            let mut g = Graph::default();
            let c = constant(&mut g, Tensor::zeros(DType::F32, &[20, 30]));
            let inner = call(&mut g, "transpose", &[("axes", [1, 0].into())], &[c]);
            let outer = call(&mut g, "transpose", &[("axes", [1, 0].into())], &[inner]);
            run(&mut g, &format!("(ruleset t) (rule back {mark} {twice})"));
            assert_eq!(g.find(outer) == g.find(c), same, "{mark}");
        }
        let refused =
            define("t.rules", "(ruleset t) (rule a :constants (abs ?x) => (negative ?x))").expect_err("grows");
        assert!(refused.to_string().contains("must make fewer operators than it matches"), "{refused}");
    }

    #[test]
    fn uses_are_those_of_the_program_as_written() {
        let mut g = Graph::default();
        let x = input(&mut g, &[2, 3]);
        let (a, b) = (call(&mut g, "exp", &[], &[x]), call(&mut g, "tanh", &[], &[x]));
        let once = call(&mut g, "nn.relu", &[], &[a]);
        let root = g.add(Node::tuple([once, b, b]));
        crate::egraph::note_uses(&mut g, &[root]);
        // A rule's alternative is no use of the program as written.
        run(&mut g, "(ruleset t) (rule more (nn.relu ?x) => (nn.relu (nn.relu ?x)))");
        let uses = |id: Id| functions::ClassView::of(&g, g.find(id)).uses();
        assert_eq!((uses(x), uses(a), uses(b), uses(root)), (Some(2), Some(1), Some(1), Some(1)));
        let made = call(&mut g, "sqrt", &[], &[x]);
        assert_eq!(functions::ClassView::of(&g, made).uses(), None);
    }

    #[test]
    fn operator_classes_match_and_rebuild_each_operator() {
        let mut g = Graph::default();
        let x = input(&mut g, &[2, 3]);
        let inner = call(&mut g, "exp", &[], &[x]);
        call(&mut g, "nn.relu", &[], &[inner]);
        run(
            &mut g,
            "(ruleset t :numerics approx :error 1.0) (rule swap (?f:unary {..?a} (?g:unary {..?b} ?x)) => (?g {..?b} (?f {..?a} ?x)))",
        );
        let swapped = call(&mut g, "nn.relu", &[], &[x]);
        let swapped = call(&mut g, "exp", &[], &[swapped]);
        let original = call(&mut g, "nn.relu", &[], &[inner]);
        assert_eq!(g.find(swapped), g.find(original));
    }

    #[test]
    fn each_rule_is_spelled_by_itself() {
        let text = "(ruleset t :numerics real)
(rule a (add (add ?x ?c) ?d) => (add ?x (add ?c ?d)) :when (const ?c) (const ?d) :special (bounded ?c) (bounded ?d) :sample ((?x [2])))
(rule b :numerics exact (abs (negative ?x)) <=> (negative (negative (abs ?x))) :when (has-rank ?x 2))";
        let sets = define("t.rules", text).unwrap_or_else(|e| panic!("{e}"));
        let spelled: Vec<&str> = sets[0].rules.iter().map(Definition::text).collect();
        let wanted = [
            "(rule a (add (add ?x ?c) ?d) => (add ?x (add ?c ?d)) :when (const ?c) (const ?d) :special (bounded ?c) (bounded ?d) :sample ((?x [2])))",
            "(rule a.finite :numerics finite (add (add ?x ?c) ?d) => (add ?x (add ?c ?d)) :when (const ?c) (const ?d) :sample ((?x [2])))",
            "(rule b :numerics exact (abs (negative ?x)) => (negative (negative (abs ?x))) :when (has-rank ?x 2))",
            "(rule b.back :numerics exact (negative (negative (abs ?x))) => (abs (negative ?x)) :when (has-rank ?x 2))",
        ];
        assert_eq!(spelled, wanted);
        // As it is spelled, a rule is the same rule.
        for (rule, text) in sets[0].rules.iter().zip(wanted) {
            let again =
                define("t.rules", &format!("(ruleset t :numerics real) {text}")).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((again[0].rules[0].name(), again[0].rules[0].grade()), (rule.name(), rule.grade()));
        }
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let text = "(ruleset t)
(rule a (nn.rellu ?x) => ?x)
(rule b (add ?x) => ?y)
(rule a (add ?x ?y) => (add ?y ?x))";
        let refused = define("t.rules", text).expect_err("four errors");
        assert_eq!(
            refused.to_string(),
            "t.rules:2:10: there is no operator `nn.rellu` (did you mean `nn.relu`?)
t.rules:3:9: `add` takes 2 arguments (lhs, rhs), but has 1 here
t.rules:3:21: `?y` is not bound by the left side (did you mean `?x`?)
t.rules:4:7: rule `a` is defined twice in ruleset `t`
t.rules:4:9: commutativity and associativity grow the graph without end (match either order with `~`, or mark the rule `:grows`)"
        );
    }
}
