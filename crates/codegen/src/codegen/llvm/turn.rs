//! Squares of elements that are read across the direction in which they lie: whole rows are loaded, and turned in registers.
//!
//! Schedules write a square as an unrolled loop around a vector loop of the same extent, where something is read whose elements lie side
//! by side along the unrolled one (`lower/schedule/map.rs`). Lane by lane, each element would be a load of its own.

use super::{
    CodegenError,
    emit::{Binding, Emitter},
    ir::{Ir, V},
};
use crate::loops::{
    AxisId, BufferId, LoopKind, Scalar, ScalarKind, Stmt,
    affine::{self, Affine, Facts},
};

/// Bytes within which machines interleave elements by one instruction; wider vectors are several such parts.
const PART: usize = 16;

/// What the lanes of one turn of the unrolled loop read.
pub(super) struct Turned<'ctx> {
    buffer: BufferId,
    /// Where the first lane reads.
    at: Affine,
    v: V<'ctx>,
}

/// What a square reads across: by turn, where the first lane does.
struct Square {
    firsts: Vec<Affine>,
    /// Elements from lane to lane.
    step: i64,
}

impl<'ctx> Emitter<'_, 'ctx> {
    /// Loads and turns what `body`, a vector loop within the unrolled loop over `turn`, reads across.
    pub(super) fn turn_squares(
        &mut self,
        turn: AxisId,
        extent: i64,
        body: &Stmt,
    ) -> Result<Vec<Turned<'ctx>>, CodegenError> {
        let Stmt::For { var: lane, extent: lanes, kind: LoopKind::Vector, body } = body else { return Ok(vec![]) };
        let Stmt::Store { buffer: to, value, .. } = &**body else { return Ok(vec![]) };
        if extent < 2 || extent & (extent - 1) != 0 || self.constant(lanes)? != extent {
            return Ok(vec![]);
        }
        let mut reads: Vec<(BufferId, Scalar)> = Vec::new();
        affine::any(value, &mut |s| {
            if let ScalarKind::Read(buffer, index) = s.kind()
                && buffer != to
            {
                reads.extend(index.first().map(|i| (*buffer, i.clone())));
            }
            false
        });
        self.fresh();
        let mut all: Vec<Turned<'ctx>> = Vec::new();
        for (buffer, index) in reads {
            let Some(square) = self.square(buffer, &index, turn, *lane, extent) else { continue };
            if all.iter().any(|t| t.is(buffer, &square.firsts[0])) {
                continue;
            }
            let dtype = self.kernel.buffers[buffer.0 as usize].dtype;
            let ty = self.ir.wide(self.ir.memory_type(dtype), Some(extent as u32));
            let mut rows = Vec::new();
            for row in 0..extent {
                let mut at = square.firsts[0].clone();
                at.constant += square.step * row;
                let p = self.address(buffer, &at)?;
                rows.push(self.ir.load(ty, p, dtype.bytes()));
            }
            let columns = self.ir.turned(rows, (PART / dtype.bytes()).min(extent as usize));
            all.extend(square.firsts.into_iter().zip(columns).map(|(at, v)| Turned { buffer, at, v }));
        }
        Ok(all)
    }

    /// The square that a read is, where it is one, each row of it fits a register, and all of it may be read.
    fn square(&mut self, buffer: BufferId, index: &Scalar, turn: AxisId, lane: AxisId, n: i64) -> Option<Square> {
        let decl = &self.kernel.buffers[buffer.0 as usize];
        let (len, bytes) = (decl.len, decl.dtype.bytes() as i64);
        if n * bytes > self.unit.target.vector_bytes() as i64 || self.may_be_another(buffer) {
            return None;
        }
        let facts = Facts { range: Some((0, n - 1)), level: u32::MAX, varying: true };
        let mut firsts = Vec::new();
        let mut step = 0;
        for i in 0..n {
            let at = self.with(turn, Binding::Sum(Affine::constant(i)), |e| {
                e.with(lane, Binding::Lane { facts }, |e| affine::affine(index, &e.env, &mut e.affine_memo))
            });
            let (lowest, highest) = at.range()?;
            let first = at.without(lane);
            step = at.coefficient(lane);
            if lowest < 0 || highest >= len || first.varying() || matches!(step, 0 | 1) {
                return None;
            }
            let follows = firsts.first().is_none_or(|f| first.plus(f, -1).as_constant() == Some(i));
            if !follows {
                return None;
            }
            firsts.push(first);
        }
        Some(Square { firsts, step })
    }

    /// What was turned of a buffer, for lanes the first of which reads there.
    pub(super) fn turned(&self, buffer: BufferId, first: &Affine) -> Option<V<'ctx>> {
        self.turned.iter().find(|t| t.is(buffer, first)).map(|t| t.v)
    }
}

impl Turned<'_> {
    fn is(&self, buffer: BufferId, first: &Affine) -> bool {
        self.buffer == buffer && first.plus(&self.at, -1).as_constant() == Some(0)
    }
}

impl<'ctx> Ir<'_, 'ctx> {
    /// The columns of a square of these rows. Elements are interleaved within parts of so many first, then whole parts are dealt
    /// out: machines do either by one instruction for each two vectors.
    fn turned(&self, rows: Vec<V<'ctx>>, part: usize) -> Vec<V<'ctx>> {
        let n = rows.len();
        let groups: Vec<Vec<V<'ctx>>> = rows.chunks(part).map(|group| self.interleaved(group.to_vec(), n)).collect();
        let mut columns = vec![None; n];
        for i in 0..part {
            let dealt = self.dealt(groups.iter().map(|g| g[i]).collect(), part, n);
            for (block, v) in dealt.into_iter().enumerate() {
                columns[block * part + i] = Some(v);
            }
        }
        columns.into_iter().flatten().collect()
    }

    /// As many vectors as a part has elements: vector i gets, in each part, the i-th elements of all of them there.
    fn interleaved(&self, mut rows: Vec<V<'ctx>>, lanes: usize) -> Vec<V<'ctx>> {
        let part = rows.len();
        let half = part / 2;
        let mut done = 1;
        while done < part {
            let pair = |i: usize, from: usize| {
                let places = (0..lanes / part).flat_map(|p| (0..half).map(move |e| p * part + from + e));
                self.shuffle(rows[i], rows[i + half], places.flat_map(|l| [l as u32, (lanes + l) as u32]))
            };
            rows = (0..half).flat_map(|i| [pair(i, 0), pair(i, half)]).collect();
            done *= 2;
        }
        rows
    }

    /// As many vectors as they have parts: vector i gets the i-th parts of all of them.
    fn dealt(&self, vectors: Vec<V<'ctx>>, part: usize, lanes: usize) -> Vec<V<'ctx>> {
        if vectors.len() < 2 {
            return vectors;
        }
        let every_other = |first: usize| -> Vec<V<'ctx>> {
            let places: Vec<u32> = (first..2 * lanes / part)
                .step_by(2)
                .flat_map(|p| (0..part).map(move |e| (p * part + e) as u32))
                .collect();
            vectors.chunks(2).map(|two| self.shuffle(two[0], two[1], places.iter().copied())).collect()
        };
        let (even, odd) = (every_other(0), every_other(1));
        let (even, odd) = (self.dealt(even, part, lanes), self.dealt(odd, part, lanes));
        even.into_iter().zip(odd).flat_map(|(a, b)| [a, b]).collect()
    }
}
