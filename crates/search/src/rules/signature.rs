//! What functions and guards are, and what they see of a match.

use egg::Id;

use crate::{
    egraph::{Case, Graph, Node, Range, What},
    ir::{AttrValue, Attrs, OpId, TensorType, Type},
    saturate::Asked,
    tensor::{DType, Tensor},
};

/// What a function or guard takes at one place.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Param {
    /// An integer.
    Int,
    /// A number.
    Number,
    /// A list.
    List,
    /// A string, such as a layout.
    Str,
    /// A tensor.
    Tensor,
    /// Any attribute value.
    Any,
    /// A class: a variable that stands for a value of the program.
    Class,
    /// A sequence of classes, `?xs`.
    Classes,
    /// One or more of any attribute values; last.
    Rest,
}

/// An attribute function.
pub struct Function {
    /// Its name in rule files.
    pub name: &'static str,
    /// What it takes.
    pub params: &'static [Param],
    /// What it gives, where that is always of one kind.
    pub gives: Param,
    /// What it computes, in a sentence.
    pub doc: &'static str,
    /// Whether it is a formula of extents: lists, sums, products and what is equal alike at all sizes, nothing that says at which sizes it is what.
    /// Then it is known of unknown extents as far as they are known to be equal.
    pub of_extents: bool,
    /// The computation; `None` where it does not apply.
    pub eval: fn(&[Input<'_>]) -> Option<AttrValue>,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A guard.
pub struct Guard {
    /// Its name in rule files.
    pub name: &'static str,
    /// What it takes.
    pub params: &'static [Param],
    /// When it holds, in a sentence.
    pub doc: &'static str,
    /// Whether it asks for equal extents alone, so that it holds at all sizes where it does at some made up with no regard to it.
    pub of_extents: bool,
    /// Whether it holds; `None` where that is not known.
    pub eval: fn(&[Input<'_>]) -> Option<bool>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What a rule may know of a class: its facts, never its terms' syntax beyond their operators.
#[derive(Copy, Clone)]
pub struct ClassView<'a> {
    ty: Option<&'a Type>,
    constant: bool,
    value: Option<&'a Tensor>,
    range: Option<Range>,
    place: Option<(&'a Graph, Id)>,
    /// Who wants to know whether uses, or extents that are unknown, are asked for.
    asked: Option<&'a Asked>,
}

impl<'a> ClassView<'a> {
    /// The view of a class in an e-graph.
    pub fn of(graph: &'a Graph, id: Id) -> ClassView<'a> {
        ClassView::at(graph, id, None)
    }

    /// The same at one of the made-up sizes, where one is given.
    pub(super) fn at(graph: &'a Graph, id: Id, trial: Option<usize>) -> ClassView<'a> {
        let fact = &graph[id].data;
        let value = fact.value.map(|c| graph.analysis.tables.constant(c));
        ClassView {
            ty: trial.map_or_else(|| fact.ty(), |trial| fact.trial_type(trial)),
            constant: fact.constant,
            value,
            range: fact.range,
            place: Some((graph, id)),
            asked: None,
        }
    }

    /// The same view, where it is noted when it is asked who uses the class, or for an extent that is unknown.
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
        self.known(self.tensor()?.known_shape())
    }

    /// The extent along an axis, where it is a tensor and that is known.
    pub fn extent(&self, axis: usize) -> Option<i64> {
        self.known(self.tensor()?.shape.get(axis)?.known())
    }

    /// What extents say; that they don't is noted.
    fn known<T>(&self, of_extents: Option<T>) -> Option<T> {
        if of_extents.is_none() {
            self.asked.into_iter().for_each(Asked::note_unknown);
        }
        of_extents
    }

    /// The number of elements, where it is a tensor and all extents are known.
    pub fn elements(&self) -> Option<i64> {
        self.known(self.tensor()?.elements())
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

    /// How many terms the class has; `None` where it is not in the e-graph yet.
    pub fn terms(&self) -> Option<usize> {
        let (graph, id) = self.place?;
        Some(graph[id].len())
    }

    /// How many terms of the class are calls of an operator with such attributes; `None` where the class is not in the e-graph yet.
    pub fn calls_of(&self, op: OpId, is_such: impl Fn(&Attrs) -> bool) -> Option<usize> {
        let (graph, id) = self.place?;
        let fits = |node: &&Node| match node.as_op() {
            Some((o, attrs, _)) if o == op => match graph[attrs].data.what {
                What::Attrs(attrs) => is_such(graph.analysis.tables.attrs(attrs)),
                _ => false,
            },
            _ => false,
        };
        Some(graph[id].iter().filter(fits).count())
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
        Some(graph[id].parents().any(|p| applies(graph.id_to_node(p))))
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
