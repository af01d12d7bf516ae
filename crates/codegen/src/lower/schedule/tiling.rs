//! What a reduction does with what it reads, and how it is cut: register tiles, the pieces of axes that loops go through, and the places of tiles.

use super::{
    Access,
    combine::{multiplied, narrow_multiplied},
    factored::factored,
};
use crate::{
    loops::{AxisId, Combine, Scalar, ScalarKind, affine::reads},
    lower::{affine::for_each_node, normalize::Reduction},
    machine::{Core, Timing},
    tensor::DType,
};

/// How a reduction runs.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tiling {
    /// The axis whose elements are the lanes of a vector.
    pub(super) vector: AxisId,
    /// Whether that axis is reduced over, so that lanes are combined at the end.
    pub(super) across: bool,
    /// Lanes of a vector (less than the machine's where the axis is short).
    pub(super) lanes: i64,
    /// Register tile: axes and their sizes; of the vector axis, in vectors. Outermost first.
    pub(super) tiles: Vec<(AxisId, i64)>,
    /// The reduced axis of which several elements at once are multiplied and added, and how many, where [`Form::dot`] allows.
    pub(super) dot: Option<(AxisId, i64)>,
    /// Where matrix registers multiply: how they go through the reduction.
    pub(super) matrix: Option<Matrix>,
}

impl Tiling {
    /// One element at a time; `vector` is an axis of nothing.
    pub(super) fn single(vector: AxisId) -> Tiling {
        Tiling { vector, across: false, lanes: 1, tiles: vec![], dot: None, matrix: None }
    }
}

/// What a reduction does with what it reads.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Form {
    /// Operations of a value beyond one multiplication, and beyond widening what is read.
    pub(super) extra_ops: f64,
    /// Operations to widen a number of each operand when it is read: floats of 16 bits, and bytes.
    pub(super) widened: f64,
    /// Whether it adds up integers of 32 bits.
    pub(super) integers: bool,
    /// What becomes of a sum.
    pub(super) stored: Stored,
    /// Where the value is a product of narrow numbers and the reduction its sum in 32 bits.
    pub(super) dot: Option<Dot>,
    /// Where it is such a sum, and the machine brings bytes together that lie a vector's lanes apart.
    pub(super) taps: bool,
}

/// How sums are stored.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Stored {
    /// Bytes of a result.
    pub(super) bytes: i64,
    /// Whether it is multiplied by a fixed-point number first.
    pub(super) is_scaled: bool,
}

impl Stored {
    /// As they are.
    pub(super) const PLAIN: Stored = Stored { bytes: 4, is_scaled: false };

    /// Operations to bring vectors of results to bytes or numbers of 16 bits and to store them, by vector, where so many of a tile lie side by
    /// side: four are packed into one of bytes, and two into one of 16 bits. A single one is taken apart first.
    pub(super) fn packing(self, adjacent: i64) -> f64 {
        let of = |n: i64| match (self.bytes, n) {
            (1, 1) => 8.0,
            (1, _) => 4.0,
            (2, _) => 5.0,
            _ => 1.0,
        };
        let (mut rest, mut ops) = (adjacent, 0.0);
        for n in [4, 2, 1].into_iter().filter(|n| n * self.bytes <= 4) {
            ops += (rest / n) as f64 * of(n);
            rest %= n;
        }
        ops / adjacent as f64
    }
}

/// Narrow numbers that are multiplied and added to one lane of 32 bits at once.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Dot {
    /// How many: as many as fill the lane.
    pub(super) count: i64,
    /// Instructions for it, or as many multiply-adds as take the same time.
    pub(super) ops: f64,
    /// Cycles from a sum to the next one, where these are not those of a multiply-add.
    pub(super) latency: Option<f64>,
}

impl Dot {
    /// So many numbers by so many instructions.
    pub(super) fn of(count: i64, ops: i64) -> Dot {
        Dot { count, ops: ops as f64, latency: None }
    }

    /// Pairs of numbers of 16 bits, where there are instructions for them.
    pub(super) fn of_shorts(unit: Core) -> Option<Dot> {
        // Where an instruction of its own adds, a sum waits for that alone.
        let latency = (unit.int16_dot > 1).then_some(1.0);
        let ops = |cycles: f64| cycles * unit.timing.fma.per_cycle;
        unit.int16_dot_cycles().map(|cycles| Dot { count: 2, ops: ops(cycles), latency })
    }
}

/// What a reduction does with what it reads, on that machine.
pub(super) fn form(r: &Reduction, unit: Core) -> Form {
    let (mut ops, mut widened) = (0, 0);
    let factored = factored(r, &r.value, &r.axes).map(|f| f.inner);
    for_each_node(factored.as_ref().unwrap_or(&r.value), &mut |n| {
        ops += match n.kind() {
            ScalarKind::Cast(x) if is_short(x.dtype()) && n.dtype() == DType::F32 => {
                widened += WIDEN_SHORT;
                0
            }
            // The bytes themselves are read.
            ScalarKind::Cast(x) if x.dtype().bytes() == 1 && n.dtype() == DType::I32 && reads(x) => {
                widened += 1;
                0
            }
            // Where edges are treated apart, nothing is left of them.
            ScalarKind::Select(cond, ..) if !reads(cond) => 0,
            ScalarKind::Binary(..) if n.dtype() == DType::Bool && !reads(n) => 0,
            ScalarKind::Binary(..) | ScalarKind::Cast(_) if n.dtype() != DType::I64 => 1,
            ScalarKind::Unary(..) => 8,
            ScalarKind::Select(..) => 2,
            _ => 0,
        }
    });
    let taps =
        matches!(multiplied(r), Some((DType::I8, DType::U8) | (DType::U8, DType::I8))) && unit.int8_dot_strided > 0;
    let dot = match narrow_multiplied(r) {
        Some((DType::BF16, DType::BF16)) if unit.bf16_dot > 0 => Some(Dot::of(2, unit.bf16_dot)),
        Some((DType::I16, DType::I16)) => Dot::of_shorts(unit),
        Some((a @ (DType::I8 | DType::U8), b @ (DType::I8 | DType::U8))) if unit.int8_dot > 0 => {
            Some(Dot::of(4, if a == b { unit.int8_dot.max(SAME_SIGNS) } else { unit.int8_dot }))
        }
        _ => None,
    };
    let integers = r.value.dtype() == DType::I32 && r.combine == Combine::Sum;
    Form { extra_ops: (ops - 1).max(0) as f64, widened: widened as f64, integers, stored: Stored::PLAIN, dot, taps }
}

/// What becomes of a sum by its epilogue.
pub(super) fn stored(value: &Scalar) -> Stored {
    let mut is_scaled = false;
    for_each_node(value, &mut |n| is_scaled |= matches!(n.kind(), ScalarKind::MulShift(_)));
    let bytes = if value.dtype().is_int() { value.dtype().bytes() as i64 } else { Stored::PLAIN.bytes };
    Stored { bytes: bytes.min(Stored::PLAIN.bytes), is_scaled }
}

/// Operations to widen a vector of floats of 16 bits.
const WIDEN_SHORT: i64 = 2;

fn is_short(t: DType) -> bool {
    matches!(t, DType::F16 | DType::BF16)
}

/// Instructions for a dot product of four int8 pairs where both are signed or both are not: as products of 16 bits.
const SAME_SIGNS: i64 = 4;

/// How matrix registers go through a reduction.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Matrix {
    /// The reduced axis of the numbers of a word.
    pub(super) part: AxisId,
    /// The reduced axis of words.
    pub(super) words: AxisId,
    /// The reduced axis along which words go on after these, in both operands.
    pub(super) beyond: Option<AxisId>,
    /// How many words there are along both.
    pub(super) depth: i64,
}

impl Matrix {
    /// Whether a step goes along that axis.
    pub(super) fn is_within(&self, axis: AxisId) -> bool {
        axis == self.part || axis == self.words || Some(axis) == self.beyond
    }
}

/// A part of an output axis that is handled by one loop.
#[derive(Copy, Clone, Debug)]
pub(super) struct Piece {
    /// First element.
    pub(super) start: i64,
    /// Iterations.
    pub(super) count: i64,
    /// Accumulators along the axis per iteration.
    pub(super) size: i64,
    /// Elements of each: the lanes along the vector axis, else 1.
    pub(super) lanes: i64,
    /// Which of the axis' pieces it is.
    pub(super) number: usize,
    /// Iterations of the axis' pieces before this one.
    pub(super) before: i64,
    /// Whether how many iterations there are changes from size to size.
    pub(super) changes: bool,
    /// Whether where it begins does.
    pub(super) moves: bool,
    /// Whether it is one iteration at most.
    pub(super) once: bool,
    /// Whether no window reaches over an edge there, at any size.
    pub(super) inside: bool,
    /// Where it is at both ends of the axis, or goes from the one to the other in whole tiles.
    pub(super) ends: Option<Ends>,
}

/// Iterations at both ends of an axis, if not all along it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Ends {
    /// How many there are at the first one, at all sizes. None where they go all along, of which the last may overlap the one before it.
    pub(super) first: Option<i64>,
    /// Elements between those at both ends; less than none where they overlap.
    pub(super) between: i64,
    /// At how many places from either end windows reach over the edge.
    pub(super) places: i64,
}

impl Piece {
    /// A piece of so many tiles of that size, the first of its axis.
    #[cfg(test)]
    pub(super) fn of(count: i64, size: i64) -> Piece {
        Piece::plain(0, count, size, 1)
    }

    /// A piece of known extents.
    pub(super) fn plain(start: i64, count: i64, size: i64, lanes: i64) -> Piece {
        Piece {
            start,
            count,
            size,
            lanes,
            number: 0,
            before: 0,
            changes: false,
            moves: false,
            once: false,
            inside: false,
            ends: None,
        }
    }

    /// Elements of an iteration.
    pub(super) fn step(&self) -> i64 {
        self.size * self.lanes
    }

    /// Whether it is of what is left of an extent after tiles.
    pub(super) fn is_rest(&self) -> bool {
        self.changes && !self.inside && (self.ends.is_none() || self.size == 1)
    }

    pub(super) fn elements(&self) -> i64 {
        self.count * self.step()
    }
}

/// Where along an axis a tile is.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) axis: AxisId,
    /// Where it begins.
    pub(super) at: Scalar,
    /// Where its piece begins.
    pub(super) start: Scalar,
    /// How many tiles of its piece come before it along the axis.
    pub(super) turn: Scalar,
    /// How many come before that piece.
    pub(super) before: Scalar,
    /// The piece that it is of.
    pub(super) piece: Piece,
    /// The name of where it begins, where that is no sum of a multiple of the turn, and what it stands for.
    pub(super) named: Option<(AxisId, Scalar)>,
}

/// The numbers of a piece.
#[derive(Clone)]
pub(super) struct Cut {
    /// Where it begins.
    pub(super) start: Scalar,
    /// How many tiles it has.
    pub(super) turns: Scalar,
    /// How many tiles come before it along the axis.
    pub(super) before: Scalar,
    /// How many elements lie between those at both ends of the axis.
    pub(super) between: Option<Scalar>,
}

/// How a loop goes whose turns are written out, so many at once, where how many turns it has changes from size to size.
#[derive(Clone)]
pub(super) struct WrittenOut {
    /// Turns at once.
    pub(super) factor: i64,
    /// How many times so many turns there are.
    pub(super) whole: Scalar,
    /// How many turns these are, and how many are left, where several are written out.
    pub(super) rest: Option<(Scalar, Scalar)>,
}

/// Cycles to store a vector of results, with what an epilogue does to it.
pub(super) fn store_cycles(t: &Timing) -> f64 {
    1.0 / t.stores + 1.0
}

/// The step of an access along an axis, in elements; none where it is no multiple of the axis.
pub(super) fn coeff(a: &Access, axis: AxisId) -> Option<i64> {
    match &a.offset {
        Some(o) => Some(o.coeff(axis)),
        None if a.axes.contains(&axis) => None,
        None => Some(0),
    }
}
