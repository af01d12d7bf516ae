//! LSTM layers of integers.

use super::{super::node::Node, Results};

/// UNIDIRECTIONAL_SEQUENCE_LSTM of 8-bit integers with a cell state of 16 bits.
pub(super) fn sequence_lstm(n: &mut Node) -> Results {
    n.refuse("quantized results are not supported")
}
