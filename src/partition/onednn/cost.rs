//! What regions take, as a model of the library says.

use crate::partition::Region;

/// Seconds that a call of a region takes beyond what its primitives do: memory is handed over, threads are told.
pub(super) const CALL: f64 = 2e-6;

/// Seconds of a region.
pub(super) fn seconds(region: &Region<'_>) -> Option<f64> {
    let _ = region;
    None
}
