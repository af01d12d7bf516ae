//! What was decided while planning, without layouts: enough to plan again where the library chooses other ones.

use super::graph::{Step, Value, ValueId};

/// The layout in which a primitive is offered a tensor.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// Row by row.
    Plain,
    /// Whatever it likes best.
    Any,
    /// That of this tensor, where it was made.
    As(ValueId),
}

/// How a primitive was made.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// What it was offered for what it reads.
    pub(super) offer: Vec<Layout>,
    /// What it was offered for its result.
    pub(super) wanted: Layout,
    /// Whether the result's layout was found with the primitive alone, and then kept for it with what follows.
    pub(super) keep_layout: bool,
    /// Which of what follows is added in place.
    pub(super) in_place: Option<usize>,
}

/// A plan's steps in order.
#[derive(Clone, Default, Debug)]
pub(super) struct Recipe {
    /// The tensors.
    pub(super) values: Vec<Value>,
    /// The steps, primitives with how they were made.
    pub(super) steps: Vec<(Step, Option<Choice>)>,
}
