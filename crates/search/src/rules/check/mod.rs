//! Soundness tests of rules: the left side is instantiated with random types, attributes and values, the rule fires in an
//! e-graph through the very code that saturation runs, and the interpreter's values of both sides are compared as the
//! rule's grade demands.

mod compare;
mod draft;
mod random;

use egg::Id;

use self::{
    draft::Draft,
    random::{Flavours, Random},
};
use super::{
    Definition,
    apply::{Built, Stop, build},
    search::search_class,
};
use crate::{
    egraph::{Case, Graph, Node, What},
    ir::Name,
    saturate::{Asked, Grade, SearchContext},
    tensor::{Tensor, Value},
};

/// So many instances are compared.
const WANTED: usize = 48;
/// Of rules whose special values are compared, so many: what is rare among them shall come up.
const WANTED_OF_SPECIAL: usize = 96;
/// Fewer are a failure: see [`CheckReport::is_sound`].
const LEAST: usize = 16;
/// So many instantiations are tried; most are refused by type relations or guards.
const TRIES: u64 = 6000;

/// What testing a rule has shown.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// The rule.
    pub rule: Name,
    /// Left sides that were drawn.
    pub tried: usize,
    /// Matches whose two sides were compared.
    pub live: usize,
    /// What is wrong, where anything is: how the sides differ, or that the right side has no type.
    pub failure: Option<String>,
}

impl CheckReport {
    /// Whether the rule passed: nothing was wrong, and enough instances were compared to say so.
    pub fn is_sound(&self) -> bool {
        self.failure.is_none() && self.live >= LEAST
    }
}

impl std::fmt::Display for CheckReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rule, live, tried) = (&self.rule, self.live, self.tried);
        match &self.failure {
            Some(why) => write!(f, "{rule}: WRONG after {live} instances: {why}"),
            None if live < LEAST => {
                write!(f, "{rule}: only {live} instances of {tried} drawn; {LEAST} are wanted (`:sample` helps)")
            }
            None => write!(f, "{rule}: {live} instances of {tried} drawn"),
        }
    }
}

/// Tests a rule. The same rule gives the same report.
pub fn check(rule: &Definition) -> CheckReport {
    let def = &*rule.0;
    let mut report = CheckReport { rule: rule.name(), tried: 0, live: 0, failure: None };
    let mut random = Random::of(&report.rule);
    let wanted = if def.grade == Grade::Real { WANTED_OF_SPECIAL } else { WANTED };
    for attempt in 0..TRIES {
        if report.live >= wanted || report.failure.is_some() {
            break;
        }
        report.tried += 1;
        let Some(mut draft) = Draft::of(def, attempt, &mut random) else { continue };
        let Some(values) = draft.values(&mut random) else { continue };
        let found = search_class(def, &SearchContext::everywhere(&draft.graph), draft.root, 4);
        for m in found {
            let Built { results, error, .. } = match build(def, &mut draft.graph, draft.root, &m, &Asked::default()) {
                Ok(built) => built,
                Err(Stop::DoesNotApply) => continue,
                Err(Stop::Refused(why)) => {
                    report.failure = Some(format!("{why}\n  at {}", draft.show(draft.root)));
                    break;
                }
            };
            for (left, right) in results {
                let differs = match (eval(&draft.graph, left, &values), eval(&draft.graph, right, &values)) {
                    (Ok(x), Ok(y)) => compare::differ(&x, &y, def.grade, error, draft.flavours == Flavours::Special),
                    (Err(_), Err(_)) => continue,
                    (Err(why), Ok(_)) => Some(format!("the left side alone has no value: {why}")),
                    (Ok(_), Err(why)) => Some(format!("the right side alone has no value: {why}")),
                };
                match differs {
                    None => report.live += 1,
                    Some(why) => {
                        report.failure =
                            Some(format!("{why}\n  left  {}\n  right {}", draft.show(left), draft.show(right)));
                    }
                }
            }
        }
    }
    report
}

/// The node that stands for a class: its constant where it has one, else its first. Classes have been united with constants
/// alone, so that this has no cycle.
fn representative(graph: &Graph, class: Id) -> Option<&Node> {
    let nodes = &graph[class];
    nodes.iter().find(|n| matches!(n.case(), Case::Const(_))).or_else(|| nodes.iter().next())
}

/// The value of a class by its representative.
fn eval(graph: &Graph, class: Id, inputs: &[Option<Value>]) -> Result<Value, String> {
    let node = representative(graph, class).ok_or("an empty class")?;
    let child = |id: &Id| eval(graph, *id, inputs);
    match node.case() {
        Case::Op(op) => {
            let (_, attrs, args) = node.as_op().ok_or("an operator without a record")?;
            let What::Attrs(attrs) = graph[attrs].data.what else { return Err("no attribute record".into()) };
            let args = args.iter().map(child).collect::<Result<Vec<Value>, _>>()?;
            op.op().eval(graph.analysis.tables.attrs(attrs), &args).map_err(|e| e.to_string())
        }
        Case::Const(id) => Ok(graph.analysis.tables.constant(id).clone().into()),
        Case::Input(id) => {
            inputs.get(id.0 as usize).cloned().flatten().ok_or_else(|| "an input without a value".into())
        }
        Case::Tuple => egg::Language::children(node).iter().map(child).collect::<Result<_, _>>().map(Value::Tuple),
        Case::Proj(i) => match child(&egg::Language::children(node)[0])? {
            Value::Tuple(fields) => fields.get(i as usize).cloned().ok_or_else(|| "no such field".into()),
            Value::Tensor(_) => Err("a field of a tensor".into()),
        },
        Case::Enter(_) | Case::Leave(_) => child(&egg::Language::children(node)[0]),
        Case::Attrs(_) | Case::Kernel(_) | Case::Opaque(_) => Err("no value".into()),
    }
}

/// A tensor's few first elements, for messages.
fn show_tensor(t: &Tensor) -> String {
    let n = t.len().min(6);
    let items: Vec<String> = match t.dtype().is_float() {
        true => (0..n).map(|i| format!("{:?}", t.get_f64(i))).collect(),
        false => (0..n).map(|i| t.get_i64(i).to_string()).collect(),
    };
    format!("{}{:?}[{}{}]", t.dtype(), t.shape(), items.join(" "), if t.len() > n { " …" } else { "" })
}
