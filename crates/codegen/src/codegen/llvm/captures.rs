//! What the body of a parallel loop uses of the function around it. Kernels of unknown extents have hundreds of parameters, most of them for one loop each:
//! what a loop does not use, its function does not take.

use std::collections::HashSet;

use crate::loops::{AxisId, BufferId, Scalar, ScalarKind, Seen, Stmt};

/// Variables and buffers.
#[derive(Default)]
pub(super) struct Captures {
    pub(super) variables: HashSet<AxisId>,
    pub(super) buffers: HashSet<BufferId>,
    seen: Seen,
}

impl Captures {
    /// What a statement reads and writes.
    pub(super) fn of(body: &Stmt) -> Captures {
        let mut all = Captures::default();
        body.for_each(&mut |s| {
            s.scalars().into_iter().for_each(|e| all.scalar(e));
            match s {
                Stmt::Store { buffer, .. } | Stmt::Prefetch { buffer, .. } => _ = all.buffers.insert(*buffer),
                Stmt::Transpose { from, to, .. } => all.buffers.extend([*from, *to]),
                Stmt::Tiles { block, step } => {
                    all.buffers.insert(block.sums);
                    all.buffers.extend(step.operands(block).into_iter().map(|(o, _)| o.buffer));
                }
                Stmt::Block(_) | Stmt::For { .. } | Stmt::Let { .. } | Stmt::If { .. } | Stmt::While { .. } => {}
            }
        });
        all
    }

    fn scalar(&mut self, e: &Scalar) {
        if !self.seen.is_new(e) {
            return;
        }
        match e.kind() {
            ScalarKind::Axis(a) => _ = self.variables.insert(*a),
            ScalarKind::Read(b, _) => _ = self.buffers.insert(*b),
            _ => {}
        }
        e.for_each_operand(|o| self.scalar(o));
    }
}
