//! Squares of elements transposed in registers: whole rows are loaded, interleaved, and whole columns are kept.

use super::{
    CodegenError,
    emit::Emitter,
    ir::{Ir, V},
};
use crate::loops::{BufferId, Scalar, affine::Affine};

/// Bytes within which machines interleave elements by one instruction; wider vectors are several such parts.
const PART: usize = 16;

impl<'ctx> Emitter<'_, 'ctx> {
    /// A [`Stmt::Transpose`](crate::loops::Stmt::Transpose).
    pub(super) fn transpose(
        &mut self,
        from: BufferId,
        [at, stride]: [&Scalar; 2],
        to: BufferId,
        extent: i64,
    ) -> Result<(), CodegenError> {
        self.fresh();
        let dtype = self.kernel.buffers[from.0 as usize].dtype;
        let (element, at) = (self.ir.memory_type(dtype), self.index(at));
        let wide = self.ir.wide(element, Some(extent as u32));
        let known = self.index(stride).as_constant();
        let first = self.address(from, &at)?;
        let stride = self.value(stride)?;
        let mut rows = Vec::new();
        for row in 0..extent {
            let p = match known {
                Some(stride) => {
                    let mut at = at.clone();
                    at.constant += stride * row;
                    self.address(from, &at)?
                }
                None => {
                    let by = self.ir.mul(stride, self.ir.i64(row).into());
                    self.ir.offset(element, first, by.into_int_value())
                }
            };
            rows.push(self.ir.load(wide, p, dtype.bytes()));
        }
        let part = (PART / dtype.bytes()).min(extent as usize);
        let columns = match extent & (extent - 1) {
            0 => self.ir.transposed(rows, part),
            _ => self.ir.transposed_by_element(&rows),
        };
        for (column, v) in columns.into_iter().enumerate() {
            let p = self.address(to, &Affine::constant(column as i64 * extent))?;
            self.ir.store(p, v, dtype.bytes());
        }
        Ok(())
    }
}

impl<'ctx> Ir<'_, 'ctx> {
    /// The columns of a square of these rows. Elements are interleaved within parts of so many first, then whole parts are dealt
    /// out: machines do either by one instruction for each two vectors.
    fn transposed(&self, rows: Vec<V<'ctx>>, part: usize) -> Vec<V<'ctx>> {
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

    /// The columns of a square of any side, element by element.
    fn transposed_by_element(&self, rows: &[V<'ctx>]) -> Vec<V<'ctx>> {
        let n = rows.len() as u32;
        let column = |c: u32| {
            let elements = rows.iter().zip(0..).map(|(row, r)| (self.extract(*row, c), r));
            elements.fold(self.splat(self.extract(rows[0], c), n), |v, (x, r)| self.insert(v, x, r))
        };
        (0..n).map(column).collect()
    }
}
