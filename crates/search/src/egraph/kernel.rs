//! What a kernel is made of: a small program of operators' calls, without names or places.

use egg::{Id, Language};
use smallvec::SmallVec;

use super::{
    facts::Graph,
    node::{AttrsId, Case, ConstId, Node, PlaceId},
};
use crate::{
    ir::{Name, OpId, Type},
    ops::kernel::{Part, may_be_one},
};

/// A step of a kernel's body: what it computes from earlier steps, by number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// An argument of the kernel.
    Arg(u32),
    /// A constant that is written into the code.
    Const(ConstId),
    /// A tuple.
    Tuple(SmallVec<[u32; 4]>),
    /// An operator's call, with its result's type.
    Op(OpId, AttrsId, SmallVec<[u32; 4]>, Type),
}

/// The body of a kernel; the last step is its result. Interned in [`Tables`](super::Tables): the same body over other arguments is
/// the same kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KernelBody {
    args: Vec<Type>,
    steps: Vec<Step>,
    /// The external compiler that makes it; none for resat's own code.
    place: Option<PlaceId>,
    /// What the compiler calls such a body, where it has a name for it.
    composite: Option<Name>,
}

impl KernelBody {
    /// A body over arguments of these types, its steps put in order: what the result does not need goes, and arguments are
    /// numbered as the result asks for them. Also gives which of the arguments are left, in their new order. `None` where
    /// the last step is no operator's call.
    pub fn new(args: &[Type], steps: &[Step]) -> Option<(KernelBody, Vec<usize>)> {
        let Some(Step::Op(..)) = steps.last() else { return None };
        let mut places: Vec<Option<u32>> = vec![None; steps.len()];
        let (mut kept, mut ordered): (Vec<usize>, Vec<Step>) = (Vec::new(), Vec::new());
        let mut stack = vec![(steps.len() - 1, false)];
        while let Some((at, ready)) = stack.pop() {
            if places[at].is_some() {
                continue;
            }
            let children: &[u32] = match &steps[at] {
                Step::Tuple(c) | Step::Op(_, _, c, _) => c,
                Step::Arg(_) | Step::Const(_) => &[],
            };
            if !ready && !children.is_empty() {
                stack.push((at, true));
                stack.extend(children.iter().rev().map(|&c| (c as usize, false)));
                continue;
            }
            let moved = |c: &SmallVec<[u32; 4]>| -> Option<SmallVec<[u32; 4]>> {
                c.iter().map(|&c| places.get(c as usize).copied().flatten()).collect()
            };
            ordered.push(match &steps[at] {
                Step::Arg(i) => {
                    kept.push(*i as usize);
                    Step::Arg(kept.len() as u32 - 1)
                }
                Step::Const(c) => Step::Const(*c),
                Step::Tuple(c) => Step::Tuple(moved(c)?),
                Step::Op(op, attrs, c, ty) => Step::Op(*op, *attrs, moved(c)?, ty.clone()),
            });
            places[at] = Some(ordered.len() as u32 - 1);
        }
        let args = kept.iter().map(|&i| args[i].clone()).collect();
        Some((KernelBody { args, steps: ordered, place: None, composite: None }, kept))
    }

    /// The same body as part of an external compiler's regions, under the name that the compiler has for it, if any. Its
    /// arguments and its result are values of those regions.
    pub fn placed(self, place: PlaceId, composite: Option<Name>) -> KernelBody {
        KernelBody { place: Some(place), composite, ..self }
    }

    /// The external compiler that makes it; none for resat's own code.
    pub fn place(&self) -> Option<PlaceId> {
        self.place
    }

    /// What its compiler calls it.
    pub fn composite(&self) -> Option<&Name> {
        self.composite.as_ref()
    }

    /// The arguments' types.
    pub fn args(&self) -> &[Type] {
        &self.args
    }

    /// The steps, each after those that it uses; the last one is an operator's call.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The type of the result.
    pub fn ty(&self) -> &Type {
        match self.steps.last() {
            Some(Step::Op(_, _, _, ty)) => ty,
            _ => unreachable!("a kernel's last step is an operator's call"),
        }
    }

    /// The operators that it calls, in order.
    pub fn ops(&self) -> impl Iterator<Item = OpId> + '_ {
        self.steps.iter().filter_map(|s| match s {
            Step::Op(op, ..) => Some(*op),
            _ => None,
        })
    }

    /// Whether a contraction or reduction is in it.
    pub fn is_heavy(&self) -> bool {
        self.ops().any(|op| op.op().class().is_heavy())
    }

    /// The operators' names in order, as reports call the kernel.
    pub fn name(&self) -> String {
        self.ops().map(|op| op.op().name()).collect::<Vec<_>>().join("+")
    }

    /// Whether it is one kernel by the definition that fusion has of it ([`may_be_one`]).
    pub fn may_be_one(&self) -> bool {
        // By step: the calls that it stands for, tuples looked through.
        let mut calls: Vec<SmallVec<[usize; 2]>> = Vec::with_capacity(self.steps.len());
        let mut parts: Vec<Part> = Vec::new();
        for step in &self.steps {
            let below = |c: &[u32]| {
                let mut reads: Vec<usize> = c.iter().flat_map(|&c| calls[c as usize].iter().copied()).collect();
                reads.sort_unstable();
                reads.dedup();
                reads
            };
            calls.push(match step {
                Step::Arg(_) | Step::Const(_) => SmallVec::new(),
                Step::Tuple(c) => below(c).into(),
                Step::Op(op, _, c, ty) => {
                    parts.push(Part { class: op.op().class(), ty: Some(ty), reads: below(c) });
                    SmallVec::from_slice(&[parts.len() - 1])
                }
            });
        }
        // Steps have no fields: what gives several tensors at once is a kernel by itself.
        let tensors = parts.iter().all(|p| p.ty.is_some_and(|t| t.as_tensor().is_some()));
        (tensors || parts.len() == 1) && may_be_one(&parts)
    }
}

/// The class that a step computes, by those of the steps that it uses, where the e-graph knows it. Arguments are not asked for.
pub fn class_of_step(graph: &Graph, step: &Step, classes: &[Option<Id>]) -> Option<Id> {
    let all = |of: &[u32]| of.iter().map(|&s| classes[s as usize]).collect::<Option<Vec<Id>>>();
    match step {
        Step::Arg(_) => None,
        Step::Const(id) => graph.lookup(Node::constant(*id)),
        Step::Tuple(fields) => graph.lookup(Node::tuple(all(fields)?)),
        Step::Op(op, attrs, args, _) => {
            let attrs = graph.lookup(Node::attrs(*attrs))?;
            graph.lookup(Node::op(*op, attrs, all(args)?))
        }
    }
}

/// The classes of what a kernel computes, its result among them, as far as the e-graph knows them; none for other nodes.
pub fn kernel_classes(graph: &Graph, node: &Node) -> Vec<Id> {
    let Case::Kernel(id) = node.case() else { return Vec::new() };
    let body = graph.analysis.tables.kernel(id);
    let mut classes: Vec<Option<Id>> = Vec::with_capacity(body.steps().len());
    for step in body.steps() {
        classes.push(match step {
            Step::Arg(i) => Some(graph.find(node.children()[*i as usize])),
            _ => class_of_step(graph, step, &classes),
        });
    }
    let calls = body.steps().iter().zip(classes).filter(|(step, _)| matches!(step, Step::Op(..)));
    calls.filter_map(|(_, class)| class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ops::op, tensor::DType};

    #[test]
    fn bodies_are_put_in_order() {
        let ty = Type::tensor(&[2], DType::F32);
        let call = |name: &str, args: &[u32]| Step::Op(op(name), AttrsId(0), SmallVec::from_slice(args), ty.clone());
        let args = [ty.clone(), Type::tensor(&[3], DType::F32), ty.clone()];
        let steps =
            [Step::Arg(0), Step::Arg(1), Step::Arg(2), call("exp", &[0]), call("exp", &[1]), call("add", &[2, 3])];
        let (body, kept) = KernelBody::new(&args, &steps).expect("a body");
        assert_eq!(kept, [2, 0], "the second argument is not needed");
        assert_eq!(body.steps(), [Step::Arg(0), Step::Arg(1), call("exp", &[1]), call("add", &[0, 2])]);
        assert_eq!((body.name().as_str(), body.is_heavy()), ("exp+add", false));
        assert!(body.may_be_one());
    }
}
