//! How an operator's axes correspond.

/// What one axis of an input is to the output.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum AxisRole {
    /// Element i along it feeds only element i along this output axis, in the same way for all i.
    Maps(usize),
    /// Its single element feeds all elements along this output axis.
    Broadcasts(usize),
    /// A window of it around i (times stride) feeds element i along this output axis.
    Windows(usize),
    /// It is combined away.
    Reduced,
    /// Anything else.
    Opaque,
}

/// Roles of all input axes, per argument (a tuple argument's tensors one after another), of an operator with one output.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AxisMap(pub Vec<Vec<AxisRole>>);

impl AxisMap {
    /// All axes of inputs of these ranks opaque.
    pub fn opaque(ranks: impl IntoIterator<Item = usize>) -> AxisMap {
        AxisMap(ranks.into_iter().map(|r| vec![AxisRole::Opaque; r]).collect())
    }
}
