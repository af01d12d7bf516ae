//! What an [`Emitter`](super::emit::Emitter) knows at a place: variables in scope, masks, values and stores that wait.

use inkwell::values::PointerValue;

use super::ir::V;
use crate::{
    loops::{
        AxisId, BufferId,
        affine::{self, Affine, Facts, Meaning},
    },
    tensor::DType,
};

/// What a variable stands for.
#[derive(Clone)]
pub(super) enum Binding<'ctx> {
    /// A sum of other variables; of unrolled ones, a constant.
    Sum(Affine),
    /// A value, the same in all lanes or not.
    Value { v: V<'ctx>, facts: Facts },
    /// The lane number.
    Lane { facts: Facts },
}

/// The vector loop that is being emitted.
#[derive(Copy, Clone)]
pub(super) struct Lanes {
    pub(super) axis: AxisId,
    pub(super) count: u32,
}

/// The variables in scope, as the analysis of indices sees them.
#[derive(Clone, Default)]
pub(super) struct Env<'ctx>(pub(super) Vec<(AxisId, Binding<'ctx>)>);

impl<'ctx> Env<'ctx> {
    pub(super) fn get(&self, axis: AxisId) -> &Binding<'ctx> {
        let found = self.0.iter().rev().find(|(a, _)| *a == axis);
        &found.expect("the checker found every variable bound").1
    }
}

impl affine::Scope for Env<'_> {
    fn meaning(&self, axis: AxisId) -> Meaning<'_> {
        match self.get(axis) {
            Binding::Sum(a) => Meaning::Sum(a),
            Binding::Value { facts, .. } | Binding::Lane { facts } => Meaning::Atom(*facts),
        }
    }
}

/// Which lanes count; those that don't may not touch memory.
#[derive(Copy, Clone)]
pub(super) struct Mask<'ctx> {
    /// A `bool`, for all lanes or for each.
    pub(super) v: V<'ctx>,
}

/// The masks around the expression at hand, by number; 0 is none.
#[derive(Default)]
pub(super) struct Masks<'ctx> {
    all: Vec<Mask<'ctx>>,
    stack: Vec<usize>,
}

impl<'ctx> Masks<'ctx> {
    pub(super) fn current(&self) -> Option<Mask<'ctx>> {
        self.stack.last().map(|&i| self.all[i - 1])
    }

    pub(super) fn push(&mut self, mask: Mask<'ctx>) {
        self.all.push(mask);
        self.stack.push(self.all.len());
    }

    pub(super) fn pop(&mut self) {
        self.stack.pop();
    }

    /// Numbers of the masks in force, innermost first, then 0. What was read under an outer one is good within.
    pub(super) fn in_force(&self) -> impl Iterator<Item = usize> + '_ {
        self.stack.iter().rev().copied().chain([0])
    }
}

/// What evaluating an expression takes, roughly.
#[derive(Copy, Clone)]
pub(super) struct Cost {
    /// In simple operations.
    pub(super) work: u32,
    /// Whether it reads memory.
    pub(super) reads: bool,
}

/// A vector of numbers that is to be stored as bytes.
pub(super) struct Waiting<'ctx> {
    pub(super) buffer: BufferId,
    /// Where its first lane goes.
    pub(super) at: Affine,
    pub(super) to: PointerValue<'ctx>,
    /// The numbers, which are clipped to the bytes' range when they are stored; where lanes are a word apart, as they are stored.
    pub(super) v: V<'ctx>,
    pub(super) lanes: u32,
    /// From lane to lane.
    pub(super) step: i64,
    /// As what they are stored.
    pub(super) dtype: DType,
    /// The bytes to whose range they are clipped.
    pub(super) clipped: Option<DType>,
}
