//! What functions and guards see, and how expressions of a match are computed.

use egg::Id;
use smallvec::SmallVec;

use super::ast::{Arg, AttrDef, Condition, Expr, RuleDef, Slot};
use crate::{
    egraph::{Case, Graph, Node, Range, What},
    ir::{AttrValue, Attrs, OpId, TensorType, Type},
    saturate::Asked,
    tensor::{DType, Tensor},
};

/// What a rule may know of a class: its facts, never its terms' syntax beyond their operators.
#[derive(Copy, Clone)]
pub struct ClassView<'a> {
    ty: Option<&'a Type>,
    constant: bool,
    value: Option<&'a Tensor>,
    range: Option<Range>,
    place: Option<(&'a Graph, Id)>,
    /// Who wants to know whether uses are asked for.
    asked: Option<&'a Asked>,
}

impl<'a> ClassView<'a> {
    /// The view of a class in an e-graph.
    pub fn of(graph: &'a Graph, id: Id) -> ClassView<'a> {
        let fact = &graph[id].data;
        let value = fact.value.map(|c| graph.analysis.tables.constant(c));
        ClassView {
            ty: fact.ty(),
            constant: fact.constant,
            value,
            range: fact.range,
            place: Some((graph, id)),
            asked: None,
        }
    }

    /// The same view, where it is noted when it is asked who uses the class.
    pub(super) fn noting(self, asked: &'a Asked) -> ClassView<'a> {
        ClassView { asked: Some(asked), ..self }
    }

    /// The e-graph and the class, to look at its uses; `None` where the class is not in the e-graph yet.
    fn place_for_uses(&self) -> Option<(&'a Graph, Id)> {
        let place = self.place?;
        self.asked.into_iter().for_each(Asked::note);
        Some(place)
    }

    /// The view of a value that is not in the e-graph yet: nothing but its type is known.
    pub fn of_type(ty: &'a Type) -> ClassView<'a> {
        ClassView { ty: Some(ty), constant: false, value: None, range: None, place: None, asked: None }
    }

    /// The type; none for an attribute record.
    pub fn ty(&self) -> Option<&'a Type> {
        self.ty
    }

    /// The tensor type, where it is one.
    pub fn tensor(&self) -> Option<&'a TensorType> {
        self.ty.and_then(Type::as_tensor)
    }

    /// All extents, where it is a tensor and all are known.
    pub fn shape(&self) -> Option<Vec<i64>> {
        self.tensor()?.known_shape()
    }

    /// Whether it can be computed before the program runs.
    pub fn constant(&self) -> bool {
        self.constant
    }

    /// The value, where it is a constant of the program or a small computation of such.
    pub fn value(&self) -> Option<&'a Tensor> {
        self.value
    }

    /// Between which numbers the elements lie, where it is a constant of which that is known.
    pub fn range(&self) -> Option<Range> {
        self.range
    }

    /// The number that all elements are, where that is known. Elements must be the same bits: 0.0 beside -0.0 is none.
    pub fn splat(&self) -> Option<f64> {
        let t = self.value?;
        let size = t.dtype().bytes();
        let first = t.bytes().get(..size)?;
        t.bytes().chunks_exact(size).all(|e| e == first).then(|| t.get_f64(0))
    }

    /// Whether some term of the class is a call of an operator; `None` where the class is not in the e-graph yet.
    pub fn has_op(&self, op: OpId) -> Option<bool> {
        let (graph, id) = self.place?;
        Some(graph[id].iter().any(|n| n.case() == Case::Op(op)))
    }

    /// Whether some term of the class is a cast of a tensor of this element type; `None` where the class is not in the e-graph yet.
    pub fn cast_from(&self, dtype: DType) -> Option<bool> {
        let (graph, id) = self.place?;
        let cast = crate::ops::op("cast");
        let from = |node: &Node| {
            let (op, _, args) = node.as_op()?;
            (op == cast && graph[*args.first()?].data.ty()?.as_tensor()?.dtype == dtype).then_some(())
        };
        Some(graph[id].iter().any(|n| from(n).is_some()))
    }

    /// Whether the value is a parameter of the region that the e-graph is of; `None` where the class is not in the e-graph yet.
    pub fn is_input(&self) -> Option<bool> {
        let (graph, id) = self.place?;
        Some(graph[id].iter().any(|n| matches!(n.case(), Case::Input(_))))
    }

    /// Whether some term of the e-graph applies an operator to the class; `None` where the class is not in the e-graph yet.
    pub fn feeds(&self, op: OpId) -> Option<bool> {
        let (graph, id) = self.place_for_uses()?;
        let id = graph.find(id);
        let applies =
            |node: &Node| node.as_op().is_some_and(|(o, _, args)| o == op && args.iter().any(|&a| graph.find(a) == id));
        Some(graph[id].parents().any(|p| graph[graph.find(p)].iter().any(applies)))
    }

    /// By how many different values the program as written uses the value; `None` where the program as written has no term of
    /// the class, or the class is not in the e-graph yet.
    pub fn uses(&self) -> Option<usize> {
        let (graph, id) = self.place_for_uses()?;
        graph.analysis.uses.of(graph.find(id))
    }

    /// How many classes have a term that uses the class; `None` where the class is not in the e-graph yet.
    pub fn users(&self) -> Option<usize> {
        let (graph, id) = self.place_for_uses()?;
        let mut users: Vec<Id> = graph[graph.find(id)].parents().map(|p| graph.find(p)).collect();
        users.sort_unstable();
        users.dedup();
        Some(users.len())
    }

    /// The class's number, for an order among matches; `None` where the class is not in the e-graph yet.
    pub fn id(&self) -> Option<usize> {
        self.place.map(|(graph, id)| usize::from(graph.find(id)))
    }
}

/// An argument as functions and guards take it.
pub enum Input<'a> {
    /// An attribute value.
    Attr(AttrValue),
    /// A class.
    Class(ClassView<'a>),
    /// Classes of a sequence.
    Classes(Vec<ClassView<'a>>),
}

impl<'a> Input<'a> {
    /// The attribute value; `None` for a class.
    pub fn attr(&self) -> Option<&AttrValue> {
        match self {
            Input::Attr(v) => Some(v),
            _ => None,
        }
    }

    /// The integer, where it is one.
    pub fn int(&self) -> Option<i64> {
        self.attr()?.as_int()
    }

    /// The number, where it is one.
    pub fn float(&self) -> Option<f64> {
        self.attr()?.as_float()
    }

    /// The list of integers, where it is one.
    pub fn ints(&self) -> Option<Vec<i64>> {
        self.attr()?.as_ints()
    }

    /// The list, where it is one.
    pub fn list(&self) -> Option<&[AttrValue]> {
        match self.attr()? {
            AttrValue::List(l) => Some(l),
            _ => None,
        }
    }

    /// The string, where it is one.
    pub fn str(&self) -> Option<&str> {
        match self.attr()? {
            AttrValue::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The tensor, where it is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self.attr()? {
            AttrValue::Tensor(t) => Some(&t.0),
            _ => None,
        }
    }

    /// The class; `None` for an attribute value.
    pub fn class(&self) -> Option<ClassView<'a>> {
        match self {
            Input::Class(c) => Some(*c),
            _ => None,
        }
    }

    /// The classes of a sequence; `None` for anything else.
    pub fn classes(&self) -> Option<&[ClassView<'a>]> {
        match self {
            Input::Classes(c) => Some(c),
            _ => None,
        }
    }
}

/// One match, complete or growing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Match {
    slots: SmallVec<[u32; 16]>,
    pub(super) seqs: SmallVec<[Vec<Id>; 1]>,
}

/// A slot that is not bound yet.
const UNBOUND: u32 = u32::MAX;

impl Match {
    pub(super) fn empty(rule: &RuleDef) -> Match {
        Match {
            slots: SmallVec::from_elem(UNBOUND, rule.slots.len()),
            seqs: SmallVec::from_elem(Vec::new(), rule.seqs),
        }
    }

    pub(super) fn get(&self, slot: Slot) -> Option<u32> {
        Some(self.slots[slot]).filter(|&v| v != UNBOUND)
    }

    /// Sets a slot, or compares where it is set.
    pub(super) fn bind(&mut self, slot: Slot, value: u32) -> bool {
        let old = std::mem::replace(&mut self.slots[slot], value);
        match old == UNBOUND || old == value {
            true => true,
            false => {
                self.slots[slot] = old;
                false
            }
        }
    }

    pub(super) fn bind_class(&mut self, slot: Slot, id: Id) -> bool {
        self.bind(slot, usize::from(id) as u32)
    }

    /// The class in a bound slot.
    pub(super) fn class(&self, slot: Slot) -> Id {
        Id::from(self.slots[slot] as usize)
    }

    pub(super) fn op(&self, slot: Slot) -> OpId {
        OpId(self.slots[slot])
    }
}

/// A match in its e-graph: what expressions are computed in.
#[derive(Copy, Clone)]
pub(super) struct Env<'a> {
    pub(super) rule: &'a RuleDef,
    pub(super) graph: &'a Graph,
    pub(super) found: &'a Match,
    /// The types of what the right side's `let`s have built so far.
    pub(super) built: &'a [Type],
    /// Who wants to know whether uses are asked for.
    pub(super) asked: &'a Asked,
}

impl<'a> Env<'a> {
    /// The record in a slot; `None` where it is not bound.
    pub(super) fn record(&self, slot: Slot) -> Option<&'a Attrs> {
        self.found.get(slot)?;
        match self.graph[self.found.class(slot)].data.what {
            What::Attrs(id) => Some(self.graph.analysis.tables.attrs(id)),
            _ => None,
        }
    }

    fn class(&self, id: Id) -> ClassView<'a> {
        ClassView::of(self.graph, id).noting(self.asked)
    }

    pub(super) fn view(&self, slot: Slot) -> ClassView<'a> {
        self.class(self.found.class(slot))
    }

    /// The value of an attribute variable; `None` where what defines it is not bound yet or does not apply.
    pub(super) fn attr(&self, var: usize) -> Option<AttrValue> {
        match &self.rule.attr_vars[var] {
            AttrDef::Field { record, field, element } => {
                let value = self.record(*record)?.get(field)?;
                match (element, value) {
                    (None, v) => Some(v.clone()),
                    (Some(k), AttrValue::List(l)) => l.get(*k).cloned(),
                    (Some(_), _) => None,
                }
            }
            AttrDef::Index(slot) => Some(AttrValue::Int(self.found.get(*slot)? as i64)),
            AttrDef::For(slot, list) => match self.eval(list)? {
                AttrValue::List(l) => l.get(self.found.get(*slot)? as usize).cloned(),
                _ => None,
            },
            AttrDef::Let(expr) => self.eval(expr),
            AttrDef::Given(_, value) => Some(value.clone()),
        }
    }

    /// The value of an expression; `None` where a function does not apply.
    pub(super) fn eval(&self, expr: &Expr) -> Option<AttrValue> {
        match expr {
            Expr::Value(v) => Some(v.clone()),
            Expr::Var(var) => self.attr(*var),
            Expr::List(items) => items.iter().map(|e| self.eval(e)).collect::<Option<_>>().map(AttrValue::List),
            Expr::OpName(slot) => {
                self.found.get(*slot)?;
                Some(self.found.op(*slot).op().name().into())
            }
            Expr::Call(f, args) => (f.eval)(&self.inputs(args)?),
        }
    }

    fn inputs(&self, args: &[Arg]) -> Option<Vec<Input<'a>>> {
        args.iter()
            .map(|arg| {
                Some(match arg {
                    Arg::Expr(e) => Input::Attr(self.eval(e)?),
                    Arg::Class(slot) => {
                        self.found.get(*slot)?;
                        Input::Class(self.view(*slot))
                    }
                    Arg::Classes(seq) => Input::Classes(self.found.seqs[*seq].iter().map(|&c| self.class(c)).collect()),
                    Arg::Built(i) => Input::Class(ClassView::of_type(self.built.get(*i)?)),
                })
            })
            .collect()
    }

    /// Whether a condition holds; `None` where that is not known.
    pub(super) fn holds(&self, condition: &Condition) -> Option<bool> {
        match condition {
            Condition::Test(guard, args) => (guard.eval)(&self.inputs(args)?),
            Condition::Not(c) => self.holds(c).map(|b| !b),
            Condition::All(cs) => {
                let all: Vec<Option<bool>> = cs.iter().map(|c| self.holds(c)).collect();
                if all.contains(&Some(false)) { Some(false) } else { all.iter().all(Option::is_some).then_some(true) }
            }
            Condition::Any(cs) => {
                let all: Vec<Option<bool>> = cs.iter().map(|c| self.holds(c)).collect();
                if all.contains(&Some(true)) { Some(true) } else { all.iter().all(Option::is_some).then_some(false) }
            }
        }
    }
}
