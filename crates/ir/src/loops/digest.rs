//! Kernels by content: what is the same is compiled once, and found again in caches on disk.

use std::{collections::HashMap, fmt};

use super::{AxisId, Kernel, Scalar, ScalarKind, Space, Stmt, TileStep};
use crate::tensor::DType;

/// A kernel's content in 128 bits, the same in every run and on every machine.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub u128);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// FNV-1a over 16-byte words, finished with the murmur mixer in each half.
pub(super) struct Fnv(u128);

impl Fnv {
    pub(super) fn new() -> Fnv {
        Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    pub(super) fn add(&mut self, word: u128) -> &mut Fnv {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        self.0 ^= self.0 >> 67;
        self
    }

    pub(super) fn text(&mut self, s: &str) -> &mut Fnv {
        self.add(s.len() as u128);
        s.bytes().for_each(|b| _ = self.add(b as u128));
        self
    }

    pub(super) fn end(&self) -> u128 {
        let mix = |x: u64| {
            let x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
            let x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            x ^ x >> 33
        };
        let (hi, lo) = ((self.0 >> 64) as u64, self.0 as u64);
        (mix(hi ^ lo.rotate_left(32)) as u128) << 64 | mix(lo) as u128
    }
}

/// The digest of some bytes.
pub fn digest_bytes(parts: &[&[u8]]) -> Digest {
    let mut h = Fnv::new();
    for part in parts {
        h.add(part.len() as u128);
        for chunk in part.chunks(16) {
            let mut word = [0; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            h.add(u128::from_le_bytes(word));
        }
    }
    Digest(h.end())
}

#[derive(Default)]
struct Walk {
    /// Variables are numbered in the order in which they are bound, so that their ids don't matter.
    axes: HashMap<AxisId, u128>,
    bound: u128,
    /// Digests of expressions, while the variables mean the same.
    known: HashMap<usize, u128>,
}

impl Walk {
    fn bind(&mut self, axis: AxisId) {
        self.bound += 1;
        self.axes.insert(axis, self.bound);
        self.known.clear();
    }

    fn stmt(&mut self, h: &mut Fnv, s: &Stmt) {
        match s {
            Stmt::Block(all) => {
                h.add(1).add(all.len() as u128);
                all.iter().for_each(|s| self.stmt(h, s));
            }
            Stmt::For { var, extent, kind, body } => {
                h.add(2).add(*kind as u128).add(self.scalar(extent));
                self.bind(*var);
                self.stmt(h, body);
            }
            Stmt::Store { buffer, index, value } => {
                h.add(3).add(buffer.0 as u128).add(self.scalar(index)).add(self.scalar(value));
            }
            Stmt::Prefetch { buffer, index } => {
                h.add(7).add(buffer.0 as u128).add(self.scalar(index));
            }
            Stmt::Transpose { from, at, stride, to, extent } => {
                h.add(8).add(from.0 as u128).add(self.scalar(at)).add(self.scalar(stride));
                h.add(to.0 as u128).add(*extent as u128);
            }
            Stmt::Let { var, value, body } => {
                h.add(4).add(self.scalar(value));
                self.bind(*var);
                self.stmt(h, body);
            }
            Stmt::If { cond, then, otherwise } => {
                h.add(5).add(self.scalar(cond)).add(otherwise.is_some() as u128);
                self.stmt(h, then);
                otherwise.iter().for_each(|s| self.stmt(h, s));
            }
            Stmt::While { cond, body } => {
                h.add(6).add(self.scalar(cond));
                self.stmt(h, body);
            }
            Stmt::Tiles { block, step } => {
                h.add(7).add(block.sums.0 as u128).add(block.depth as u128);
                for sizes in [&block.rows, &block.columns] {
                    h.add(sizes.len() as u128);
                    sizes.iter().for_each(|&n| _ = h.add(n as u128));
                }
                h.add(match **step {
                    TileStep::Clear => 0,
                    TileStep::Load => 1,
                    TileStep::Add { .. } => 2,
                    TileStep::Store => 3,
                    TileStep::Wake => 4,
                });
                for (o, _) in step.operands(block) {
                    h.add(o.buffer.0 as u128).add(o.stride as u64 as u128);
                    for at in &o.at {
                        let d = self.scalar(at);
                        h.add(d);
                    }
                }
            }
        }
    }

    fn scalar(&mut self, s: &Scalar) -> u128 {
        if let Some(d) = self.known.get(&s.key()) {
            return *d;
        }
        let mut h = Fnv::new();
        dtype(&mut h, s.dtype());
        match s.kind() {
            ScalarKind::Int(i) => h.add(1).add(*i as u64 as u128),
            ScalarKind::Float(f) => h.add(2).add(f.to_bits() as u128),
            // An unbound one (which no checked kernel has) keeps its own number.
            ScalarKind::Axis(a) => h.add(3).add(self.axes.get(a).copied().unwrap_or((a.0 as u128) << 64)),
            ScalarKind::Read(b, _) => h.add(4).add(b.0 as u128),
            ScalarKind::Binary(op, ..) => h.add(5).add(*op as u128),
            ScalarKind::Unary(op, _) => h.add(6).add(*op as u128),
            ScalarKind::Select(..) => h.add(7),
            ScalarKind::Cast(_) => h.add(8),
            ScalarKind::Bits(_) => h.add(9),
            ScalarKind::Dot(operands) => h.add(10).add(operands.len() as u128),
            ScalarKind::MulShift(_) => h.add(11),
            ScalarKind::Saturate(_) => h.add(12),
        };
        for o in s.operands() {
            let d = self.scalar(o);
            h.add(d);
        }
        let d = h.end();
        if s.is_shared() {
            self.known.insert(s.key(), d);
        }
        d
    }
}

pub(super) fn dtype(h: &mut Fnv, d: DType) {
    h.add(d as u128);
}

impl Kernel {
    /// The content without the name and regardless of how variables are numbered: kernels with the same digest do the same.
    pub fn digest(&self) -> Digest {
        let mut h = Fnv::new();
        h.text("kernel 1").add(self.buffers.len() as u128);
        for b in &self.buffers {
            dtype(&mut h, b.dtype);
            let (space, number) = match b.space {
                Space::Input(i) => (0, i),
                Space::Output(i) => (1, i),
                Space::Shared => (2, 0),
                Space::Local => (3, 0),
                Space::Register => (4, 0),
            };
            h.add(b.len as u128).add(space).add(number as u128);
        }
        Walk::default().stmt(&mut h, &self.body);
        Digest(h.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::{Buffer, LoopKind, TensorId};

    fn kernel(name: &str, axis: u32, add: f64) -> Kernel {
        let i = Scalar::axis(AxisId(axis));
        let value = Scalar::read(TensorId(0), vec![i.clone()], DType::F32) + Scalar::float(add, DType::F32);
        let store = Stmt::Store { buffer: TensorId(1), index: i, value };
        let extent = Scalar::index(4);
        let buffer = |space| Buffer { dtype: DType::F32, len: 4, space };
        Kernel {
            name: name.into(),
            buffers: vec![buffer(Space::Input(0)), buffer(Space::Output(1))],
            body: Stmt::For { var: AxisId(axis), extent, kind: LoopKind::Serial, body: Box::new(store) },
        }
    }

    #[test]
    fn names_and_numbers_do_not_count() {
        assert_eq!(kernel("a", 0, 1.0).digest(), kernel("b", 7, 1.0).digest());
        assert_ne!(kernel("a", 0, 1.0).digest(), kernel("a", 0, 2.0).digest());
    }
}
