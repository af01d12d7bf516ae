//! Operators of object detection: candidate boxes, their suppression, and pools over regions.

mod all_class;
mod boxes;
mod multibox;
mod nms;
mod proposal;
mod regular;
mod reorg;
mod roi;

pub(super) use all_class::OPS as ALL_CLASS;
pub(super) use multibox::OPS as MULTIBOX;
pub(super) use nms::OPS as NMS;
pub(super) use proposal::OPS as PROPOSAL;
pub(super) use regular::OPS as REGULAR;
pub(super) use reorg::OPS as REORG;
pub(super) use roi::OPS as ROI;
