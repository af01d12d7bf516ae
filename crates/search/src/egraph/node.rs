//! The e-node: one operator call, leaf, tuple, projection, or a part of Relay that is carried through as it is.

use std::fmt;

use egg::{Id, Language};
use smallvec::SmallVec;

use crate::ir::OpId;

/// An attribute record, interned in [`Tables`](super::Tables).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AttrsId(pub u32);

/// A constant tensor, interned by content in [`Tables`](super::Tables).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConstId(pub u32);

/// A value that the region is given: a variable, or a captured value of an outer region. Described in
/// [`Tables`](super::Tables).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InputId(pub u32);

/// An expression that is carried through as it is, described in [`Tables`](super::Tables).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpaqueId(pub u32);

/// The body of a kernel, interned in [`Tables`](super::Tables).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KernelId(pub u32);

/// An external compiler, interned by name in [`Tables`](super::Tables).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PlaceId(pub u32);

/// What an e-node is, its children aside. Also egg's discriminant, so that every operator has its own bucket in the index
/// of classes by operator.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Case {
    /// A call of an operator. The first child is the class of its attribute record, the others are its arguments.
    Op(OpId),
    /// An attribute record: a leaf.
    Attrs(AttrsId),
    /// A constant: a leaf.
    Const(ConstId),
    /// A variable or captured value: a leaf.
    Input(InputId),
    /// A tuple of its children.
    Tuple,
    /// A field, counted from 0, of its only child.
    Proj(u32),
    /// A kernel of several operators over its children: what its body computes, as one piece of code.
    Kernel(KernelId),
    /// Its only child, a value of the program, as an external compiler's regions have it: given to them.
    Enter(PlaceId),
    /// Its only child, a value as an external compiler's regions have it, as the program has it: their result.
    Leave(PlaceId),
    /// Everything else of Relay: an expression with holes, of which the children are the fillings.
    Opaque(OpaqueId),
}

/// One e-node: 32 bytes, plus a heap block where it has more than four children.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    case: Case,
    children: SmallVec<[Id; 4]>,
}

impl Node {
    /// A node of the given case and children.
    pub fn new(case: Case, children: impl IntoIterator<Item = Id>) -> Node {
        Node { case, children: children.into_iter().collect() }
    }

    /// A call of an operator with the class of its attribute record and its arguments.
    pub fn op(op: OpId, attrs: Id, args: impl IntoIterator<Item = Id>) -> Node {
        Node::new(Case::Op(op), std::iter::once(attrs).chain(args))
    }

    /// The leaf that stands for an attribute record.
    pub fn attrs(id: AttrsId) -> Node {
        Node::new(Case::Attrs(id), [])
    }

    /// The leaf that stands for a constant.
    pub fn constant(id: ConstId) -> Node {
        Node::new(Case::Const(id), [])
    }

    /// The leaf that stands for a variable or captured value.
    pub fn input(id: InputId) -> Node {
        Node::new(Case::Input(id), [])
    }

    /// A tuple.
    pub fn tuple(fields: impl IntoIterator<Item = Id>) -> Node {
        Node::new(Case::Tuple, fields)
    }

    /// A field of a tuple.
    pub fn proj(tuple: Id, field: u32) -> Node {
        Node::new(Case::Proj(field), [tuple])
    }

    /// A kernel over its arguments.
    pub fn kernel(id: KernelId, args: impl IntoIterator<Item = Id>) -> Node {
        Node::new(Case::Kernel(id), args)
    }

    /// A value of the program as an external compiler's regions have it.
    pub fn enter(place: PlaceId, value: Id) -> Node {
        Node::new(Case::Enter(place), [value])
    }

    /// A value of an external compiler's regions as the program has it.
    pub fn leave(place: PlaceId, value: Id) -> Node {
        Node::new(Case::Leave(place), [value])
    }

    /// What it is, its children aside.
    pub fn case(&self) -> Case {
        self.case
    }

    /// The operator, the attribute record's class and the arguments, where the node is a call of an operator.
    pub fn as_op(&self) -> Option<(OpId, Id, &[Id])> {
        match (self.case, self.children.split_first()) {
            (Case::Op(op), Some((attrs, args))) => Some((op, *attrs, args)),
            _ => None,
        }
    }
}

impl Language for Node {
    type Discriminant = Case;

    fn discriminant(&self) -> Case {
        self.case
    }

    fn matches(&self, other: &Node) -> bool {
        self.case == other.case && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

impl fmt::Display for Node {
    /// The node's head, as egg shows it: the children are not part of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.case {
            Case::Op(op) => f.write_str(op.op().name()),
            Case::Attrs(id) => write!(f, "attrs#{}", id.0),
            Case::Const(id) => write!(f, "const#{}", id.0),
            Case::Input(id) => write!(f, "input#{}", id.0),
            Case::Tuple => f.write_str("tuple"),
            Case::Proj(i) => write!(f, "field.{i}"),
            Case::Kernel(id) => write!(f, "kernel#{}", id.0),
            Case::Enter(id) => write!(f, "enter#{}", id.0),
            Case::Leave(id) => write!(f, "leave#{}", id.0),
            Case::Opaque(id) => write!(f, "opaque#{}", id.0),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({self}")?;
        self.children.iter().try_for_each(|c| write!(f, " {c}"))?;
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_small() {
        assert!(size_of::<Node>() <= 32);
    }
}
