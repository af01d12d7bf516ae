//! Pointer induction variables: in an innermost loop, and in those of a perfect nest around it, one pointer serves all addresses that lie a constant
//! distance apart and have the same step per iteration. LLVM's loop strength reduction (LSR) finds the same, but takes up to three quarters of the time that
//! LLVM's code generator needs for a kernel.

use inkwell::{
    basic_block::BasicBlock,
    values::{IntValue, PhiValue, PointerValue},
};

use super::{CodegenError, emit::Emitter, ir::V};
use crate::loops::{
    AxisId, BinOp, BufferId, LoopKind, Scalar, ScalarKind, Space, Stmt,
    affine::{self, Affine, Atom},
};

/// A loop has so many of them at most: each is live in a general-purpose register.
const MOST: usize = 12;
/// A pointer also serves addresses that are up to so many times a loop-invariant variable further: x86's scaled index covers once and twice, and three times
/// it is one register more.
const FURTHER: i64 = 3;

/// The pointer induction variables of a loop.
pub(super) struct Moving<'ctx> {
    var: AxisId,
    /// What is bound outside of the loop has a lower one.
    level: u32,
    /// Where the loop begins, unless that is 0.
    from: Option<V<'ctx>>,
    /// The preheader.
    before: BasicBlock<'ctx>,
    head: BasicBlock<'ctx>,
    /// Whether no loop is within it.
    is_innermost: bool,
    pointers: Vec<Pointer<'ctx>>,
}

struct Pointer<'ctx> {
    buffer: BufferId,
    /// The loop-invariant part of the index.
    common: Affine,
    step: Affine,
    phi: PhiValue<'ctx>,
    elements: IntValue<'ctx>,
}

impl<'ctx> Moving<'ctx> {
    /// Of a loop over this variable at this level between these blocks. None where it stores anything beside the loops within it, as loops over tiles do:
    /// little is gained there, and registers would hold its pointers all along.
    pub(super) fn new(
        (var, level): (AxisId, u32),
        from: V<'ctx>,
        [before, head]: [BasicBlock<'ctx>; 2],
        body: &Stmt,
    ) -> Option<Moving<'ctx>> {
        let (mut loops, mut stores) = (false, false);
        find(body, &mut loops, &mut stores);
        let is_zero = from.into_int_value().get_zero_extended_constant() == Some(0);
        let from = (!is_zero).then_some(from);
        let new = || Moving { var, level, from, before, head, is_innermost: !loops, pointers: Vec::new() };
        (!loops || !stores).then(new)
    }

    /// Increments the pointers in the latch, where the builder stands.
    pub(super) fn advance(self, e: &Emitter<'_, 'ctx>) {
        for p in self.pointers {
            let element = e.ir.memory_type(e.kernel.buffers[p.buffer.0 as usize].dtype);
            let next = e.ir.offset(element, p.phi.as_basic_value().into_pointer_value(), p.elements);
            p.phi.add_incoming(&[(&next, e.ir.here())]);
        }
    }
}

/// Whether there are loops, and stores beside them.
fn find(s: &Stmt, loops: &mut bool, stores: &mut bool) {
    match s {
        Stmt::Block(all) => all.iter().for_each(|s| find(s, loops, stores)),
        Stmt::For { kind: LoopKind::Unrolled | LoopKind::Vector, body, .. } | Stmt::Let { body, .. } => {
            find(body, loops, stores);
        }
        Stmt::For { extent, body, .. } if extent.as_int().is_some_and(|n| n <= 1) => find(body, loops, stores),
        Stmt::For { .. } | Stmt::While { .. } => *loops = true,
        Stmt::If { then, otherwise, .. } => {
            find(then, loops, stores);
            otherwise.iter().for_each(|s| find(s, loops, stores));
        }
        Stmt::Store { .. } | Stmt::Transpose { .. } => *stores = true,
        Stmt::Prefetch { .. } | Stmt::Tiles { .. } => {}
    }
}

fn of_terms(terms: Vec<affine::Term>) -> Affine {
    Affine { constant: 0, terms }
}

fn is_axis(e: &Scalar, axis: AxisId) -> bool {
    matches!(e.kind(), ScalarKind::Axis(a) if *a == axis)
}

/// Whether an expression can be worked out anywhere: it neither reads nor divides.
fn is_plain(e: &Scalar) -> bool {
    !affine::any(e, &mut |e| match e.kind() {
        ScalarKind::Int(_) | ScalarKind::Axis(_) => false,
        ScalarKind::Binary(op, ..) => !matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Min | BinOp::Max),
        _ => true,
    })
}

impl<'ctx> Emitter<'_, 'ctx> {
    /// An index as its loop-invariant part and its step per iteration; none where the step is not loop-invariant or 0, or the invariant part can't be
    /// computed in the preheader.
    fn common_and_step(&mut self, at: &Affine, (var, level): (AxisId, u32)) -> Option<(Affine, Affine)> {
        let (mut common, mut step) = (Affine::default(), Affine::default());
        let mut open = at.terms.clone();
        while let Some(t) = open.pop() {
            let outside = t.facts.level < level;
            match &t.atom {
                _ if t.facts.varying => return None,
                Atom::Axis(a) if *a == var => step.constant += t.coefficient,
                Atom::Axis(_) if outside => common = common.plus(&of_terms(vec![t]), 1),
                Atom::Axis(a) => {
                    let (_, sum) = self.sums.iter().rev().find(|(bound, _)| bound == a)?;
                    let sum = Affine::default().plus(sum, t.coefficient);
                    common.constant += sum.constant;
                    open.extend(sum.terms);
                }
                Atom::Expr(e) if outside && is_plain(e) => common = common.plus(&of_terms(vec![t]), 1),
                Atom::Expr(e) => {
                    let by = match e.kind() {
                        ScalarKind::Binary(BinOp::Mul, a, b) if is_axis(a, var) => b,
                        ScalarKind::Binary(BinOp::Mul, a, b) if is_axis(b, var) => a,
                        _ => return None,
                    };
                    let by = self.index(by);
                    let outside = by.terms.iter().all(|t| t.facts.level < level && !t.facts.varying);
                    if !outside || by.terms.iter().any(|t| matches!(&t.atom, Atom::Expr(e) if !is_plain(e))) {
                        return None;
                    }
                    step = step.plus(&by, t.coefficient);
                }
            }
        }
        (step != Affine::default()).then_some((common, step))
    }

    /// The innermost loop's pointer for an index, and what the address adds to it; none where there is no such.
    pub(super) fn moved(
        &mut self,
        buffer: BufferId,
        at: &Affine,
    ) -> Result<Option<(PointerValue<'ctx>, Affine)>, CodegenError> {
        let innermost = self.moving.last().is_some_and(|l| l.as_ref().is_some_and(|l| l.is_innermost));
        match innermost && self.kernel.buffers[buffer.0 as usize].space != Space::Register {
            true => self.moved_in(self.moving.len(), buffer, at),
            false => Ok(None),
        }
    }

    /// The same of the last of the first so many loops.
    fn moved_in(
        &mut self,
        loops: usize,
        buffer: BufferId,
        at: &Affine,
    ) -> Result<Option<(PointerValue<'ctx>, Affine)>, CodegenError> {
        let Some(Some(around)) = loops.checked_sub(1).map(|last| &self.moving[last]) else { return Ok(None) };
        let of = (around.var, around.level);
        let Some((mut common, step)) = self.common_and_step(at, of) else { return Ok(None) };
        let constant = at.constant + std::mem::take(&mut common.constant);
        let Some(around) = &self.moving[loops - 1] else { return Ok(None) };
        let of_buffer = around.pointers.iter().filter(|p| p.buffer == buffer && p.step == step);
        let from = of_buffer.map(|p| (p.phi, common.plus(&p.common, -1)));
        let near = |rest: &Affine| match &rest.terms[..] {
            [] => Some(0),
            [t] if matches!(t.atom, Atom::Axis(_)) && (1..=FURTHER).contains(&t.coefficient) => Some(t.coefficient),
            _ => None,
        };
        let nearest = from.filter_map(|(phi, rest)| Some((near(&rest)?, phi, rest))).min_by_key(|found| found.0);
        let (phi, rest) = match nearest {
            Some((_, phi, rest)) => (phi, rest),
            None if around.pointers.len() == MOST => return Ok(None),
            None => (self.moving_pointer(loops, buffer, common, step)?, Affine::default()),
        };
        Ok(Some((phi.as_basic_value().into_pointer_value(), rest.plus(&Affine::constant(constant), 1))))
    }

    /// A further pointer of the last of the first so many loops. Where it begins may move with the loop around that.
    fn moving_pointer(
        &mut self,
        loops: usize,
        buffer: BufferId,
        common: Affine,
        step: Affine,
    ) -> Result<PhiValue<'ctx>, CodegenError> {
        let (base, further) = match self.moved_in(loops - 1, buffer, &common)? {
            Some(found) => found,
            None => (self.buffer(buffer), common.clone()),
        };
        let mut around = self.moving[loops - 1].take().expect("a loop is at hand");
        let here = self.ir.here();
        // What was computed within the loop does not exist before it.
        let known = (std::mem::take(&mut self.values), std::mem::take(&mut self.value_log));
        self.ir.builder.position_before(&around.before.get_terminator().expect("the loop is entered"));
        let element = self.ir.memory_type(self.kernel.buffers[buffer.0 as usize].dtype);
        let mut first = self.offset_by(element, base, &further)?;
        let elements = self.sum(&step)?.into_int_value();
        if let Some(from) = around.from {
            first = self.ir.offset(element, first, self.ir.mul(from, elements.into()).into_int_value());
        }
        (self.values, self.value_log) = known;
        match around.head.get_first_instruction() {
            Some(first) => self.ir.builder.position_before(&first),
            None => self.ir.go_to(around.head),
        }
        let phi = self.ir.builder.build_phi(first.get_type(), "").expect("the builder stands in a block");
        phi.add_incoming(&[(&first, around.before)]);
        self.ir.go_to(here);
        around.pointers.push(Pointer { buffer, common, step, phi, elements });
        self.moving[loops - 1] = Some(around);
        Ok(phi)
    }
}
