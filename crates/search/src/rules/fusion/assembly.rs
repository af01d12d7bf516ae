//! Putting the body of a kernel together from calls and other kernels' bodies.

use egg::{Id, Language};
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::offers::{Take, tuple_in};
use crate::{
    egraph::{Case, Graph, KernelBody, Node, Step, What, class_of_step},
    ir::Type,
    ops::kernel::INLINE_CONSTANT,
};

/// A body under way. Equal steps are one, so that what two parts of it both compute is computed once.
pub(super) struct Assembly<'g> {
    graph: &'g Graph,
    steps: Vec<Step>,
    /// By step: the class that it computes, where that is known.
    classes: Vec<Option<Id>>,
    known: HashMap<Step, u32>,
    args: Vec<Id>,
    types: Vec<Type>,
}

impl<'g> Assembly<'g> {
    /// The kernel whose result is a class's operator call that comes by the values that it reads in that way, and its arguments.
    /// `None` where there is none: a type is not known, or it would take as an argument what it computes itself.
    pub(super) fn form(graph: &'g Graph, class: Id, call: &Node, way: &[Take]) -> Option<(KernelBody, Vec<Id>)> {
        let mut a = Assembly::new(graph);
        let mut takes = way.iter();
        a.call(class, call, &mut |a, value| match takes.next()? {
            Take::Argument => a.leaf(value),
            Take::Within(node) => a.within(value, node),
        })?;
        let within: Vec<Id> = a.calls().collect();
        if a.args.iter().any(|arg| within.contains(arg)) {
            return None;
        }
        let (body, kept) = KernelBody::new(&a.types, &a.steps)?;
        Some((body, kept.into_iter().map(|i| a.args[i]).collect()))
    }

    fn new(graph: &'g Graph) -> Assembly<'g> {
        let (steps, classes, known) = (Vec::new(), Vec::new(), HashMap::new());
        Assembly { graph, steps, classes, known, args: Vec::new(), types: Vec::new() }
    }

    /// The classes of operators' calls.
    fn calls(&self) -> impl Iterator<Item = Id> + '_ {
        let is_call = |(step, class): (&Step, &Option<Id>)| match step {
            Step::Op(..) => *class,
            _ => None,
        };
        self.steps.iter().zip(&self.classes).filter_map(is_call)
    }

    fn push(&mut self, step: Step, class: Option<Id>) -> u32 {
        if let Some(&at) = self.known.get(&step) {
            return at;
        }
        let at = self.steps.len() as u32;
        self.known.insert(step.clone(), at);
        self.steps.push(step);
        self.classes.push(class);
        at
    }

    /// A value that comes from outside.
    fn leaf(&mut self, class: Id) -> Option<u32> {
        let class = self.graph.find(class);
        let data = &self.graph[class].data;
        if let Some(id) = data.value
            && self.graph.analysis.tables.constant(id).len() <= INLINE_CONSTANT
        {
            return Some(self.push(Step::Const(id), Some(class)));
        }
        let at = match self.args.iter().position(|&a| a == class) {
            Some(at) => at,
            None => {
                self.types.push(data.ty()?.clone());
                self.args.push(class);
                self.args.len() - 1
            }
        };
        Some(self.push(Step::Arg(at as u32), Some(class)))
    }

    /// A call of which each value that it reads (fields of tuples each by themselves) comes from `value`.
    fn call(&mut self, class: Id, node: &Node, value: &mut dyn FnMut(&mut Self, Id) -> Option<u32>) -> Option<u32> {
        let (op, attrs, args) = node.as_op()?;
        let What::Attrs(attrs) = self.graph[attrs].data.what else { return None };
        let mut steps: SmallVec<[u32; 4]> = SmallVec::new();
        for &arg in args {
            steps.push(match tuple_in(self.graph, arg) {
                Some(tuple) => {
                    let fields = tuple.children().iter().map(|&f| value(self, f)).collect::<Option<_>>()?;
                    self.push(Step::Tuple(fields), Some(self.graph.find(arg)))
                }
                None => value(self, arg)?,
            });
        }
        let ty = self.graph[class].data.ty()?.clone();
        Some(self.push(Step::Op(op, attrs, steps, ty), Some(self.graph.find(class))))
    }

    /// A value that is computed within, by an operator's call or a kernel of its class.
    fn within(&mut self, class: Id, node: &Node) -> Option<u32> {
        match node.case() {
            Case::Kernel(id) => {
                let body = self.graph.analysis.tables.kernel(id).clone();
                self.splice(class, &body, node.children())
            }
            _ => self.call(class, node, &mut |a, value| a.leaf(value)),
        }
    }

    /// A kernel's body over these arguments.
    fn splice(&mut self, class: Id, body: &KernelBody, args: &[Id]) -> Option<u32> {
        let last = body.steps().len() - 1;
        let mut places: Vec<u32> = Vec::with_capacity(body.steps().len());
        for (i, step) in body.steps().iter().enumerate() {
            let moved = |of: &[u32]| of.iter().map(|&s| places[s as usize]).collect::<SmallVec<[u32; 4]>>();
            let step = match step {
                Step::Arg(at) => {
                    places.push(self.leaf(args[*at as usize])?);
                    continue;
                }
                Step::Const(id) => Step::Const(*id),
                Step::Tuple(fields) => Step::Tuple(moved(fields)),
                Step::Op(op, attrs, args, ty) => Step::Op(*op, *attrs, moved(args), ty.clone()),
            };
            let of = if i == last { Some(class) } else { class_of_step(self.graph, &step, &self.classes) };
            places.push(self.push(step, of));
        }
        places.last().copied()
    }
}
