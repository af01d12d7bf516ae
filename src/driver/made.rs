//! The code that a function has got, by the extents that it met.

use std::{sync::Arc, time::Duration};

use hashbrown::HashMap;

use super::{calls::Sequence, key::Key, sizes::Sizes, specialize::Code};

/// So many pieces of code of one function are kept. A program that goes through more extents than that starts over.
const KEPT: usize = 1024;

/// The code of a function for extents that were met.
#[derive(Default)]
pub(super) struct Made {
    pub(super) code: HashMap<Key, Arc<Code>>,
    /// How long runs took at sizes by the code for all sizes; none where a size has got code of its own, or can't have any.
    pub(super) ran: HashMap<Key, Option<Duration>>,
    /// Sizes that have got code of their own.
    pub(super) special: usize,
    /// The calls that it makes, and what serves all extents, from the first call on.
    pub(super) sequence: Option<Sequence>,
    pub(super) sizes: Option<Sizes>,
}

impl Made {
    /// Keeps the code for a size, and forgets others where these are too many.
    pub(super) fn keep(&mut self, key: Key, code: Arc<Code>) {
        if self.code.len() >= KEPT {
            self.code.clear();
            self.ran.clear();
        }
        self.code.insert(key, code);
    }
}
