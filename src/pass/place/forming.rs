//! What external compilers could make, as e-nodes: the ruleset `placement`, a rule for each compiler.
//!
//! A value `x` of the program and the same value within a compiler's regions are two classes: being in one of them costs something
//! to whoever wants it in the other. So there is, for a compiler `k`,
//!
//! - in the class of `x` *within k*: `(enter.k x)`, and `(k[f] a b)` for every operator `f` of the class of `x`, and every composite,
//!   that the compiler takes, over its arguments *within k*;
//! - in the class of `x` itself: `(leave.k …)` of that class, where the compiler computes it at all.
//!
//! That is one class for each value and compiler and one node for each call and compiler: as many as the program is long, not
//! as many as there are regions. Whatever chain or branch of calls extraction then chooses within a compiler is a region, and
//! what it pays are the values that cross its border, each once.

use std::sync::{Mutex, PoisonError};

use egg::{Id, Language};
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::{
    diag::Refused,
    egraph::{Case, Graph, KernelBody, Node, Step, What, may_apply, union_checked},
    infer::infer_types,
    ir::{Attrs, Expr, ExprId, Function, Module, Name, OpId, Type},
    ops::kernel::INLINE_CONSTANT,
    partition::{Composite, ExternalCompiler, Found},
    rules::LeftSide,
    saturate::{Asked, Grade, Rewrite, Rewriter, Rule, Ruleset, SearchContext},
};

/// The name of the ruleset.
pub(in crate::pass) const NAME: &str = "placement";

/// So many of a class's operators are offered to each compiler.
const ALTERNATIVES: usize = 16;

/// The ruleset for these compilers. Refused are patterns of theirs that can't be read.
pub(super) fn ruleset(compilers: &[&'static dyn ExternalCompiler]) -> Result<Ruleset, Refused> {
    let rule = |compiler: &&'static dyn ExternalCompiler| -> Result<Rule, Refused> {
        let full: Name = format!("{NAME}/{}", compiler.name()).into();
        let composites = compiler
            .patterns()
            .into_iter()
            .map(|c| Ok((LeftSide::parse(&format!("composite {}", c.name), &c.pattern)?, c)))
            .collect::<Result<Vec<_>, Refused>>()?;
        let rewrite = Rewriter::new(Former {
            compiler: *compiler,
            place: compiler.name().into(),
            composites,
            name: full,
            taken: Mutex::default(),
        });
        Ok(Rule {
            name: compiler.name().into(),
            ruleset: NAME.into(),
            grade: Grade::Exact,
            grows: false,
            limit: None,
            forms_kernels: true,
            rewrite,
        })
    };
    Ok(Ruleset { name: NAME.into(), rules: compilers.iter().map(rule).collect::<Result<_, _>>()? })
}

/// An operator's call by operator, attributes and types.
type Call = (OpId, Attrs, Vec<Type>);

/// Forms what one compiler could make of a class.
struct Former {
    compiler: &'static dyn ExternalCompiler,
    place: Name,
    composites: Vec<(LeftSide, Composite)>,
    name: Name,
    /// Whether the compiler takes a call: to ask may take it a while.
    taken: Mutex<HashMap<Call, bool>>,
}

/// A body that the compiler takes.
struct Offer {
    body: KernelBody,
    /// The classes of its arguments.
    args: Vec<Id>,
    composite: Option<Name>,
    /// The error that it brings in.
    error: f64,
}

impl Rewrite for Former {
    /// The class is all that there is to know.
    type Match = ();

    /// Classes with an operator's call.
    fn search(&self, cx: &SearchContext<'_>, limit: usize) -> Vec<(Id, ())> {
        let is_call = |n: &Node| matches!(n.case(), Case::Op(_) | Case::Proj(_));
        let has_type = |class: Id| cx.graph[class].data.ty().is_some_and(|t| t.flatten().is_some());
        cx.upwards(limit, |class| (has_type(class) && cx.graph[class].iter().any(is_call)).then_some(()))
    }

    fn apply(&self, graph: &mut Graph, class: Id, _: &(), _: &Asked) {
        let class = graph.find(class);
        let offers = self.offers(graph, class);
        let fields: Vec<(u32, Id)> = graph[class]
            .iter()
            .filter_map(|n| match n.case() {
                Case::Proj(i) => Some((i, n.children()[0])),
                _ => None,
            })
            .collect();
        if offers.is_empty() && fields.is_empty() {
            return;
        }
        let place = graph.analysis.tables.intern_place(&self.place);
        let mut within: Option<Id> = None;
        for Offer { body, args, composite, error } in offers {
            if !may_apply(graph) {
                return;
            }
            let id = graph.analysis.tables.intern_kernel(body.placed(place, composite));
            let args: Vec<Id> = args.into_iter().map(|a| graph.add(Node::enter(place, a))).collect();
            let node = Node::kernel(id, args);
            if error > 0.0 {
                let node = node.clone().map_children(|c| graph.find(c));
                graph.analysis.errors.mark(node, error);
            }
            let kernel = graph.add(node);
            let value = *within.get_or_insert_with(|| graph.add(Node::enter(place, class)));
            union_checked(graph, value, kernel, &self.name);
        }
        // A field of what the compiler gives.
        for (field, tuple) in fields {
            let Some(tuple) = graph.lookup(Node::enter(place, tuple)) else { continue };
            let computes = |n: &Node| matches!(n.case(), Case::Kernel(_));
            if !graph[tuple].iter().any(computes) {
                continue;
            }
            let value = *within.get_or_insert_with(|| graph.add(Node::enter(place, class)));
            let field = graph.add(Node::proj(tuple, field));
            union_checked(graph, value, field, &self.name);
        }
        if let Some(value) = within {
            let left = graph.add(Node::leave(place, value));
            union_checked(graph, class, left, &self.name);
        }
    }
}

impl Former {
    fn offers(&self, graph: &Graph, class: Id) -> Vec<Offer> {
        let mut offers: Vec<Offer> = Vec::new();
        let errors = &graph.analysis.errors;
        let calls = graph[class].iter().filter(|n| n.as_op().is_some());
        for node in calls.take(ALTERNATIVES) {
            if let Some((body, args)) = single(graph, class, node)
                && self.takes(graph, &body)
            {
                offers.push(Offer { body, args, composite: None, error: errors.of_node(node) });
            }
        }
        for (left, composite) in &self.composites {
            for (body, args) in left.bodies(graph, class) {
                // What approximate rules made stays visible by itself, so that its error counts.
                let exact = errors.is_empty();
                let is_new = !offers.iter().any(|o| o.composite.is_some() && o.body == body && o.args == args);
                if exact && is_new && is_static(&body) && self.checks(graph, composite, &body) {
                    offers.push(Offer { body, args, composite: Some(composite.name.clone()), error: 0.0 });
                }
            }
        }
        offers
    }

    /// Whether the compiler takes a body of one call.
    fn takes(&self, graph: &Graph, body: &KernelBody) -> bool {
        let Some(Step::Op(op, attrs, args, result)) = body.steps().last() else { return false };
        if !is_static(body) || op.op().name().starts_with("annotation.") {
            return false;
        }
        let attrs = graph.analysis.tables.attrs(*attrs);
        let types = step_types(graph, body);
        let args: Vec<Type> = args.iter().map(|&a| types[a as usize].clone()).collect();
        let key = (*op, attrs.clone(), args);
        if let Some(&known) = self.taken.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known;
        }
        let takes = self.compiler.supports(*op, attrs, &key.2, result);
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(key, takes);
        takes
    }

    /// Whether a composite's condition holds of a body.
    fn checks(&self, graph: &Graph, composite: &Composite, body: &KernelBody) -> bool {
        let Some(check) = &composite.check else { return true };
        let tables = &graph.analysis.tables;
        let mut m = Module::new();
        let (mut params, mut calls) = (Vec::new(), Vec::new());
        let mut done: Vec<ExprId> = Vec::with_capacity(body.steps().len());
        for step in body.steps() {
            let all = |of: &[u32]| of.iter().map(|&s| done[s as usize]).collect::<Vec<_>>();
            let expr = match step {
                Step::Arg(i) => {
                    let var = m.new_var(format!("p{i}"), Some(body.args()[*i as usize].clone()));
                    params.push(var);
                    m.add(Expr::Var(var))
                }
                Step::Const(id) => m.constant(tables.constant(*id).clone()),
                Step::Tuple(fields) => m.add(Expr::Tuple(all(fields))),
                Step::Op(op, attrs, args, _) => {
                    let call = m.call_op(*op, all(args), tables.attrs(*attrs).clone());
                    calls.push(call);
                    call
                }
            };
            done.push(expr);
        }
        let root = *done.last().expect("a body has steps");
        let f = m.add(Expr::Func(Box::new(Function::new(params, root, None))));
        m.define("main", f);
        infer_types(m).is_ok_and(|typed| check(&Found { typed: &typed, root, calls: &calls }))
    }
}

/// The body of one call of a class; tuples that are made for it are part of it. `None` where a type is not known.
fn single(graph: &Graph, class: Id, node: &Node) -> Option<(KernelBody, Vec<Id>)> {
    let (op, attrs, operands) = node.as_op()?;
    let What::Attrs(attrs) = graph[attrs].data.what else { return None };
    let (mut steps, mut args, mut types): (Vec<Step>, Vec<Id>, Vec<Type>) = (Vec::new(), Vec::new(), Vec::new());
    let mut leaf = |steps: &mut Vec<Step>, class: Id| -> Option<u32> {
        let class = graph.find(class);
        let data = &graph[class].data;
        let step = match data.value.filter(|&id| graph.analysis.tables.constant(id).len() <= INLINE_CONSTANT) {
            Some(id) => Step::Const(id),
            None => {
                let at = match args.iter().position(|&a| a == class) {
                    Some(at) => at,
                    None => {
                        types.push(data.ty()?.clone());
                        args.push(class);
                        args.len() - 1
                    }
                };
                Step::Arg(at as u32)
            }
        };
        let at = steps.iter().position(|s| *s == step).unwrap_or_else(|| {
            steps.push(step);
            steps.len() - 1
        });
        Some(at as u32)
    };
    let mut reads: SmallVec<[u32; 4]> = SmallVec::new();
    for &operand in operands {
        let tuple = graph[operand].iter().find(|n| n.case() == Case::Tuple);
        reads.push(match tuple {
            Some(tuple) => {
                let fields = tuple.children().iter().map(|&f| leaf(&mut steps, f)).collect::<Option<_>>()?;
                steps.push(Step::Tuple(fields));
                steps.len() as u32 - 1
            }
            None => leaf(&mut steps, operand)?,
        });
    }
    let ty = graph[class].data.ty()?.clone();
    steps.push(Step::Op(op, attrs, reads, ty));
    let (body, kept) = KernelBody::new(&types, &steps)?;
    // A call that reads its own value is one only in the e-graph.
    let args: Vec<Id> = kept.into_iter().map(|i| args[i]).collect();
    (!args.contains(&class)).then_some((body, args))
}

/// Whether all extents are known.
fn is_static(body: &KernelBody) -> bool {
    let known = |t: &Type| t.flatten().is_some_and(|all| all.iter().all(|t| t.known_shape().is_some()));
    body.args().iter().all(known) && known(body.ty())
}

/// The type of each step.
fn step_types(graph: &Graph, body: &KernelBody) -> Vec<Type> {
    let mut types: Vec<Type> = Vec::with_capacity(body.steps().len());
    for step in body.steps() {
        types.push(match step {
            Step::Arg(i) => body.args()[*i as usize].clone(),
            Step::Const(id) => {
                let t = graph.analysis.tables.constant(*id);
                let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
                Type::tensor(&shape, t.dtype())
            }
            Step::Tuple(fields) => Type::tuple(fields.iter().map(|&f| types[f as usize].clone())),
            Step::Op(_, _, _, ty) => ty.clone(),
        });
    }
    types
}
