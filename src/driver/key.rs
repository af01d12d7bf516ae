//! What a function's code is kept under: where no kernel serves all extents, there is one for each that is met.

use hashbrown::Equivalent;

use crate::tensor::{Shape, Tensor};

/// What code was made for: extents of all arguments, values of decisive ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Key {
    /// The extents.
    pub(super) shapes: Vec<Shape>,
    /// The values, in the order of the arguments.
    pub(super) values: Vec<Tensor>,
}

/// The same of a call, without copies.
pub(super) struct Call<'a> {
    /// The arguments.
    pub(super) args: &'a [Tensor],
    /// Which of them are decisive.
    pub(super) decisive: &'a [usize],
}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.shapes.iter().for_each(|s| s[..].hash(state));
        self.values.iter().for_each(|v| v.bytes().hash(state));
    }
}

impl std::hash::Hash for Call<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.args.iter().for_each(|a| a.shape().hash(state));
        self.decisive.iter().for_each(|&i| self.args[i].bytes().hash(state));
    }
}

impl Equivalent<Key> for Call<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.args.iter().map(Tensor::shape).eq(key.shapes.iter().map(|s| &s[..]))
            && self.decisive.iter().map(|&i| self.args[i].bytes()).eq(key.values.iter().map(Tensor::bytes))
    }
}

impl Call<'_> {
    /// The same as it is kept.
    pub(super) fn key(&self) -> Key {
        Key {
            shapes: self.args.iter().map(|a| a.shape().into()).collect(),
            values: self.decisive.iter().map(|&i| self.args[i].clone()).collect(),
        }
    }
}
