//! The ruleset `fusion`: operators that may be one kernel equal that kernel, an e-node with a price of its own.
//!
//! It is Rust, as the body of a kernel is a program, of which rule files can't speak. What may be one kernel at all,
//! [`ops::kernel`](crate::ops::kernel) says. Its rules grow kernels from the bottom: an operator takes in what computes its
//! arguments, be it an operator or a kernel; whether to, is chosen for each argument. Values that are used elsewhere may be
//! taken in too, which computes them again: prices decide.
//!
//! Not every kernel that there could be is made. Of each class that an operator reads, it is offered: the largest kernel, the
//! largest without a reduction, the largest that computes nothing again that others use, and the operator by itself.
//! So a chain of n operators makes O(n) kernels, and no class holds more than [`KERNELS_OF_CLASS`] of a kind.
//!
//! A kernel equals what its operators compute, so that one extraction decides about rewriting and grouping, by prices of whole kernels. No
//! rule looks at kernels: they are formed once the other rules are done, from the bottom, a few for each class, so that their number is
//! linear in the program's size. Whether a kernel computes again what others need is asked of the program as written; of a value that rules
//! made, of the value that it is a layout of: else the transform back, which every blocked value has in the e-graph, would keep each
//! convolution apart from its epilogue.
//!
//! This ruleset is Rust, since the body of a kernel is a program, of which patterns can't speak.

mod assembly;
mod offers;

use egg::Id;

use self::{
    assembly::Assembly,
    offers::{Kind, Offers},
};
use crate::{
    egraph::{Case, Graph, KernelBody, Node, may_apply, union_checked},
    ir::Name,
    ops::Class,
    saturate::{Asked, Grade, Rewrite, Rewriter, Rule, Ruleset, SearchContext},
};

/// The name of the ruleset.
const NAME: &str = "fusion";

/// As many operators become one kernel here: what is longer is cut, which costs next to nothing.
const LARGEST: usize = 128;

/// So many kernels of one kind a class may hold.
const KERNELS_OF_CLASS: usize = 12;

/// So many ways to choose arguments are tried for an operator's call.
const WAYS: usize = 40;

/// So many of a class's operators become results of kernels.
const ALTERNATIVES: usize = 8;

/// Name, kind and algebra of each rule.
const RULES: [(&str, Kind, &str); 3] = [
    ("chain", Kind::Chain, "f(g(x)) is one kernel, where f and g move elements or compute them one by one."),
    ("epilogue", Kind::Epilogue, "f(r(x)) is one kernel, where r is a contraction or reduction and f elementwise."),
    (
        "prologue",
        Kind::Prologue,
        "r(g(x)) is one kernel, where r is a reduction and g moves elements or computes them one by one.",
    ),
];

/// The ruleset, ready to run.
pub fn fusion() -> Ruleset {
    let rule = |&(name, kind, _): &(&str, Kind, &str)| {
        let full: Name = format!("{NAME}/{name}").into();
        let rewrite = Rewriter::new(Former { kind, name: full });
        Rule {
            name: name.into(),
            ruleset: NAME.into(),
            grade: Grade::Exact,
            grows: false,
            limit: None,
            forms_kernels: true,
            rewrite,
        }
    };
    Ruleset { name: NAME.into(), rules: RULES.iter().map(rule).collect() }
}

/// A ruleset that is Rust code: what people read of it.
#[derive(Clone, Debug)]
pub struct CodeRules {
    /// Its name.
    pub name: &'static str,
    /// What it does, and when it pays.
    pub doc: &'static str,
    /// Names of its rules, all of them exact, with their algebra.
    pub rules: Vec<(&'static str, &'static str)>,
}

/// The shipped rulesets that are Rust code. They run only where they are named.
pub fn in_code() -> Vec<CodeRules> {
    let doc = "Operators that may be one kernel equal that kernel, whose price is its own: arithmetic of all its operators, traffic \
               of its arguments and result alone. It pays where intermediate results are large, and it lets extraction judge what other \
               rulesets found by the kernels that come of it.";
    vec![CodeRules { name: NAME, doc, rules: RULES.iter().map(|&(name, _, doc)| (name, doc)).collect() }]
}

impl Kind {
    /// Whether an operator of this class may be the result of such a kernel.
    fn ends_in(self, class: Class) -> bool {
        match self {
            Kind::Chain => class <= Class::Injective,
            Kind::Epilogue => class <= Class::Broadcast,
            Kind::Prologue => class == Class::Reduce,
        }
    }

    /// Whether a kernel is of this kind.
    fn is_of(self, body: &KernelBody) -> bool {
        let last = body.ops().last().map(|op| op.op().class());
        body.is_heavy() == (self != Kind::Chain) && last.is_some_and(|class| self.ends_in(class))
    }
}

/// Whether a class could be taken in: a tensor that operators compute while the program runs, or a tuple of such.
fn made_by_operators(graph: &Graph, class: Id) -> bool {
    let class = &graph[class];
    let makes = |n: &Node| match n.case() {
        Case::Op(op) => op.op().class() != Class::Opaque,
        Case::Tuple | Case::Kernel(_) => true,
        _ => false,
    };
    !class.data.constant && class.nodes.iter().any(makes)
}

/// Forms the kernels of a class.
struct Former {
    kind: Kind,
    name: Name,
}

impl Rewrite for Former {
    /// The class is all that there is to know.
    type Match = ();

    fn search(&self, cx: &SearchContext<'_>, limit: usize) -> Vec<(Id, ())> {
        cx.upwards(limit, |class| self.fits(cx.graph, class).then_some(()))
    }

    fn apply(&self, graph: &mut Graph, class: Id, _: &(), _: &Asked) {
        for (body, args) in self.kernels(graph, graph.find(class)) {
            if !may_apply(graph) {
                break;
            }
            let id = graph.analysis.tables.intern_kernel(body);
            let kernel = graph.add(Node::kernel(id, args));
            union_checked(graph, class, kernel, &self.name);
        }
    }
}

impl Former {
    /// Whether the class has an operator that could take in what it reads.
    fn fits(&self, graph: &Graph, class: Id) -> bool {
        let is_tensor = |class: Id| graph[class].data.tensor().is_some();
        is_tensor(class)
            && graph[class].nodes.iter().any(|n| match n.as_op() {
                Some((op, _, args)) => {
                    self.kind.ends_in(op.op().class()) && args.iter().any(|&a| made_by_operators(graph, a))
                }
                None => false,
            })
    }

    /// Kernels that the class does not hold yet.
    fn kernels(&self, graph: &Graph, class: Id) -> Vec<(KernelBody, Vec<Id>)> {
        let tables = &graph.analysis.tables;
        let held: Vec<(&KernelBody, &[Id])> = graph[class]
            .nodes
            .iter()
            .filter_map(|n| match n.case() {
                Case::Kernel(id) => Some((&**tables.kernel(id), egg::Language::children(n))),
                _ => None,
            })
            .filter(|(body, _)| self.kind.is_of(body))
            .collect();
        let mut new: Vec<(KernelBody, Vec<Id>)> = Vec::new();
        let errors = &graph.analysis.errors;
        let is_result = |n: &&Node| {
            matches!(n.case(), Case::Op(op) if self.kind.ends_in(op.op().class())) && errors.of_node(n) == 0.0
        };
        for node in graph[class].nodes.iter().filter(is_result).take(ALTERNATIVES) {
            let offers = Offers::of(graph, node, self.kind);
            for way in offers.ways().take(WAYS) {
                if held.len() + new.len() >= KERNELS_OF_CLASS {
                    return new;
                }
                let Some((body, args)) = Assembly::form(graph, class, node, &way) else { continue };
                let same = |(b, a): (&KernelBody, &[Id])| {
                    *b == body && a.iter().zip(&args).all(|(&x, &y)| graph.find(x) == graph.find(y))
                };
                let known = held.iter().any(|&h| same(h)) || new.iter().any(|(b, a)| same((b, a)));
                if !known && body.ops().count() <= LARGEST && self.kind.is_of(&body) && body.may_be_one() {
                    new.push((body, args));
                }
            }
        }
        new
    }
}
