//! Which inputs of a kernel an output may take the place of.
//!
//! In place is proved, not declared: every read of the input must stand in a store to the output, at the element that is stored, and there
//! are no more stores than elements. It is read off the finished loops, so schedules need not know; such pointers are not `noalias`.

use std::collections::{HashMap, HashSet};

use super::{AxisId, BufferId, Kernel, Scalar, ScalarKind, Space, Stmt};

impl Kernel {
    /// Pairs of an input's and an output's pointer number: the caller may give the same memory for both.
    ///
    /// So it is where every read of the input stands in a store to the output, at the very element that is stored, and each element
    /// is stored once: then nothing is read after it was overwritten, in whatever order iterations run. That each is stored once
    /// follows from counting: a kernel writes all elements of its outputs, and here with no more stores than there are elements.
    pub fn in_place(&self) -> Vec<(u32, u32)> {
        let mut walk = Walk { kernel: self, tainted: HashSet::new(), stores: HashMap::new(), readers: HashMap::new() };
        if !walk.stmt(&self.body, 1) {
            return Vec::new();
        }
        let once = |b: &BufferId| walk.stores.get(b).is_some_and(|&n| n <= self.buffers[b.0 as usize].len as i128);
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for (&input, outputs) in &walk.readers {
            let [output] = outputs[..] else { continue };
            let Some(output) = output.filter(once) else { continue };
            let (from, to) = (&self.buffers[input.0 as usize], &self.buffers[output.0 as usize]);
            let alike = from.len == to.len && from.dtype.bytes() == to.dtype.bytes();
            if let (true, Space::Input(i), Space::Output(o)) = (alike, from.space, to.space) {
                pairs.push((i, o));
            }
        }
        pairs.sort_unstable();
        pairs
    }
}

struct Walk<'a> {
    kernel: &'a Kernel,
    /// Variables whose values come out of memory.
    tainted: HashSet<AxisId>,
    /// How often each output is stored to, at most.
    stores: HashMap<BufferId, i128>,
    /// Where each input is read: in stores to that output at the same element, or elsewhere.
    readers: HashMap<BufferId, Vec<Option<BufferId>>>,
}

impl Walk<'_> {
    /// Notes what a statement that runs so often reads and stores. False where it can't be told.
    fn stmt(&mut self, s: &Stmt, times: i128) -> bool {
        match s {
            Stmt::Block(all) => all.iter().all(|s| self.stmt(s, times)),
            Stmt::For { extent, body, .. } => match extent.kind() {
                ScalarKind::Int(n) => self.stmt(body, times.saturating_mul((*n).max(0) as i128)),
                _ => false,
            },
            Stmt::Let { var, value, body } => {
                if self.reads(value, None) {
                    self.tainted.insert(*var);
                }
                self.stmt(body, times)
            }
            Stmt::If { cond, then, otherwise } => {
                self.reads(cond, None);
                self.stmt(then, times) && otherwise.iter().all(|o| self.stmt(o, times))
            }
            Stmt::Store { buffer, index, value } => {
                let known = !self.reads(index, None);
                self.reads(value, Some((*buffer, index)));
                // A store to an element that memory decides says nothing of how often it is stored to.
                let times = if known { times } else { i128::MAX };
                let stores = self.stores.entry(*buffer).or_default();
                *stores = stores.saturating_add(times);
                true
            }
            Stmt::Prefetch { .. } => true,
            Stmt::Transpose { from, at, stride, .. } => {
                self.reads(at, None);
                self.reads(stride, None);
                self.elsewhere(*from);
                true
            }
            Stmt::While { .. } => false,
            Stmt::Tiles { block, step } => {
                for (o, _) in step.operands(block) {
                    o.at.iter().for_each(|at| _ = self.reads(at, None));
                    self.elsewhere(o.buffer);
                }
                true
            }
        }
    }

    /// Notes that a buffer is read at other elements than are stored to.
    fn elsewhere(&mut self, buffer: BufferId) {
        let readers = self.readers.entry(buffer).or_default();
        if !readers.contains(&None) {
            readers.push(None);
        }
    }

    /// Notes the reads of an expression, which stands in a store where one is given. True where its value comes out of memory.
    fn reads(&mut self, e: &Scalar, store: Option<(BufferId, &Scalar)>) -> bool {
        let (mut stack, mut seen, mut found) = (vec![e], HashSet::new(), false);
        while let Some(e) = stack.pop() {
            match e.kind() {
                ScalarKind::Axis(a) => found |= self.tainted.contains(a),
                ScalarKind::Read(b, at) => {
                    found = true;
                    if matches!(self.kernel.buffers[b.0 as usize].space, Space::Input(_)) {
                        let here = store.filter(|(_, index)| matches!(&at[..], [at] if at == *index)).map(|s| s.0);
                        let readers = self.readers.entry(*b).or_default();
                        if !readers.contains(&here) {
                            readers.push(here);
                        }
                    }
                }
                _ => {}
            }
            stack.extend(e.operands().into_iter().filter(|o| seen.insert(o.key())));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        loops::{Buffer, LoopKind, TensorId},
        tensor::DType,
    };

    const N: i64 = 8;

    fn read(buffer: u32, index: Scalar) -> Scalar {
        Scalar::read(TensorId(buffer), vec![index], DType::F32)
    }

    /// `args[2][i] = value(i)` for all `i`, and that so many times.
    fn kernel(times: i64, value: impl Fn(Scalar) -> Scalar) -> Kernel {
        let i = Scalar::axis(AxisId(0));
        let store = Stmt::Store { buffer: TensorId(2), index: i.clone(), value: value(i) };
        let for_ = |var, extent, body| Stmt::For {
            var: AxisId(var),
            extent: Scalar::index(extent),
            kind: LoopKind::Parallel,
            body: Box::new(body),
        };
        let buffer = |space| Buffer { dtype: DType::F32, len: N, space };
        Kernel {
            name: "k".into(),
            buffers: vec![buffer(Space::Input(0)), buffer(Space::Input(1)), buffer(Space::Output(2))],
            body: for_(0, N, for_(1, times, store)),
        }
    }

    #[test]
    fn what_is_read_where_it_is_written() {
        let both = kernel(1, |i| read(0, i.clone()) + read(1, i));
        assert_eq!(both.in_place(), [(0, 2), (1, 2)]);
        let one = kernel(1, |i| read(0, i.clone()) + read(1, Scalar::index(N - 1) - i));
        assert_eq!(one.in_place(), [(0, 2)]);
    }

    #[test]
    fn what_may_be_read_later() {
        assert_eq!(kernel(2, |i| read(0, i)).in_place(), []);
        let both = kernel(1, |i| read(0, i.clone()) + read(0, Scalar::index(0)) + read(1, read(1, i)));
        assert_eq!(both.in_place(), []);
    }
}
