//! Loop nests: kernels as the back end compiles them.

use super::{AxisId, BinOp, Scalar, ScalarKind, TensorId, TileBlock, TileOperand, TileStep};
use crate::tensor::DType;

/// A buffer of a [`Kernel`]; scalar reads name it as a [`TensorId`] of the same number.
pub type BufferId = TensorId;

/// Where a buffer lives.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Space {
    /// Given by the caller as pointer number `.0`, only read.
    Input(u32),
    /// Given by the caller as pointer number `.0`, written (and possibly read back).
    Output(u32),
    /// The kernel's workspace, shared by all threads, for the time of one call; laid out by [`Kernel::workspace`].
    Shared,
    /// Each thread's own stack, for the time of one iteration of the parallel loop; small.
    Local,
    /// Registers: every index must become constant (plus the vector lane) once unrolled loops are unrolled.
    Register,
}

/// A flat run of elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: i64,
    /// Where it lives.
    pub space: Space,
}

/// How the iterations of a loop run.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum LoopKind {
    /// One after another.
    Serial,
    /// In any order by any thread. Not within another parallel loop.
    Parallel,
    /// One after another, each written out; the extent is a constant.
    Unrolled,
    /// All at once, as the lanes of a vector; the extent is a constant, and the body holds only stores, lets and
    /// unrolled loops. A store whose index does not depend on the variable happens once, with the last lane's value.
    Vector,
}

/// One step of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub enum Stmt {
    /// One after another.
    Block(Vec<Stmt>),
    /// A loop over `0..extent`.
    For {
        /// Takes the values.
        var: AxisId,
        /// Number of iterations, of dtype `int64`; may depend on outer variables.
        extent: Scalar,
        /// How they run.
        kind: LoopKind,
        /// What each does.
        body: Box<Stmt>,
    },
    /// Writes one element.
    Store {
        /// Where.
        buffer: BufferId,
        /// At which element.
        index: Scalar,
        /// What; of the buffer's dtype.
        value: Scalar,
    },
    /// Says that the cache line of an element will be read soon. Changes nothing; an element out of range is none at all. Not within a
    /// vector loop.
    Prefetch {
        /// Of which buffer.
        buffer: BufferId,
        /// Which element.
        index: Scalar,
    },
    /// Copies a square of elements with rows and columns exchanged: `to[c * extent + r] = from[at + r * stride + c]` for all `r` and `c`
    /// in `0..extent`. Not within a vector loop.
    Transpose {
        /// What is read.
        from: BufferId,
        /// Its first element.
        at: Scalar,
        /// Elements from one row to the next, of dtype `int64`.
        stride: Scalar,
        /// What is written, from its first element on: local or in registers, of the same dtype.
        to: BufferId,
        /// Rows, and elements of each.
        extent: i64,
    },
    /// Names a scalar.
    Let {
        /// The name.
        var: AxisId,
        /// What it stands for.
        value: Scalar,
        /// Where.
        body: Box<Stmt>,
    },
    /// A condition.
    If {
        /// A `bool`.
        cond: Scalar,
        /// Where it holds.
        then: Box<Stmt>,
        /// Where it does not.
        otherwise: Option<Box<Stmt>>,
    },
    /// Repeats as long as a condition holds, which is asked before each turn. Not within a vector loop. Whoever makes one
    /// answers for its end.
    While {
        /// A `bool`.
        cond: Scalar,
        /// What each turn does.
        body: Box<Stmt>,
    },
    /// Something is done to a block of sums in matrix registers. Not within a vector loop.
    Tiles {
        /// The block. All statements about one have the same, but for the depth, which may change where the block is loaded.
        block: Box<TileBlock>,
        /// What is done.
        step: Box<TileStep>,
    },
}

impl Stmt {
    /// The same statements with every expression replaced, and every buffer that is written.
    pub fn map(&self, expr: &mut impl FnMut(&Scalar) -> Scalar, buffer: &impl Fn(BufferId) -> BufferId) -> Stmt {
        match self {
            Stmt::Block(all) => Stmt::Block(all.iter().map(|s| s.map(expr, buffer)).collect()),
            Stmt::For { var, extent, kind, body } => {
                let extent = expr(extent);
                Stmt::For { var: *var, extent, kind: *kind, body: Box::new(body.map(expr, buffer)) }
            }
            Stmt::Store { buffer: to, index, value } => {
                Stmt::Store { buffer: buffer(*to), index: expr(index), value: expr(value) }
            }
            Stmt::Prefetch { buffer: of, index } => Stmt::Prefetch { buffer: buffer(*of), index: expr(index) },
            Stmt::Transpose { from, at, stride, to, extent } => {
                let at = expr(at);
                Stmt::Transpose { from: buffer(*from), at, stride: expr(stride), to: buffer(*to), extent: *extent }
            }
            Stmt::Let { var, value, body } => {
                let value = expr(value);
                Stmt::Let { var: *var, value, body: Box::new(body.map(expr, buffer)) }
            }
            Stmt::If { cond, then, otherwise } => Stmt::If {
                cond: expr(cond),
                then: Box::new(then.map(expr, buffer)),
                otherwise: otherwise.as_ref().map(|o| Box::new(o.map(expr, buffer))),
            },
            Stmt::While { cond, body } => {
                let cond = expr(cond);
                Stmt::While { cond, body: Box::new(body.map(expr, buffer)) }
            }
            Stmt::Tiles { block, step } => {
                let mut operand = |o: &TileOperand| TileOperand {
                    buffer: buffer(o.buffer),
                    at: o.at.iter().map(&mut *expr).collect(),
                    stride: o.stride,
                };
                let step = match &**step {
                    TileStep::Add { left, right } => TileStep::Add { left: operand(left), right: operand(right) },
                    other => other.clone(),
                };
                Stmt::Tiles {
                    block: Box::new(TileBlock { sums: buffer(block.sums), ..(**block).clone() }),
                    step: Box::new(step),
                }
            }
        }
    }

    /// Calls `f` on this statement and all within, outer ones first.
    pub fn for_each(&self, f: &mut impl FnMut(&Stmt)) {
        f(self);
        match self {
            Stmt::Block(all) => all.iter().for_each(|s| s.for_each(f)),
            Stmt::For { body, .. } | Stmt::Let { body, .. } | Stmt::While { body, .. } => body.for_each(f),
            Stmt::If { then, otherwise, .. } => {
                then.for_each(f);
                otherwise.iter().for_each(|o| o.for_each(f));
            }
            Stmt::Store { .. } | Stmt::Prefetch { .. } | Stmt::Transpose { .. } | Stmt::Tiles { .. } => {}
        }
    }

    /// The expressions of the statement itself, without those of statements within.
    pub fn scalars(&self) -> Vec<&Scalar> {
        match self {
            Stmt::Block(_) => vec![],
            Stmt::For { extent, .. } => vec![extent],
            Stmt::Store { index, value, .. } => vec![index, value],
            Stmt::Prefetch { index, .. } => vec![index],
            Stmt::Transpose { at, stride, .. } => vec![at, stride],
            Stmt::Let { value, .. } => vec![value],
            Stmt::If { cond, .. } | Stmt::While { cond, .. } => vec![cond],
            Stmt::Tiles { block, step } => step.operands(block).into_iter().flat_map(|(o, _)| &o.at).collect(),
        }
    }
}

/// An extent cut into as few tiles of at most that size as there can be, all about as large: (first element, tiles, tile size).
pub fn cut_evenly(extent: i64, tile: i64) -> Vec<(i64, i64, i64)> {
    let tiles = (extent + tile - 1) / tile.max(1);
    let (size, larger) = (extent / tiles.max(1), extent % tiles.max(1));
    let pieces = [(0, larger, size + 1), (larger * (size + 1), tiles - larger, size)];
    pieces.into_iter().filter(|p| p.1 > 0).collect()
}

/// A function over flat buffers.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// A name for symbols and reports; kernels that differ only in it are the same.
    pub name: String,
    /// All buffers; reads and stores name them by position.
    pub buffers: Vec<Buffer>,
    /// What it does.
    pub body: Stmt,
}

/// So far apart elements may lie whose vectors are read as whole ones, of which what is wanted is put in order.
pub const MOST_RUNS: i64 = 4;

/// Alignment of every shared buffer, in bytes.
pub const BUFFER_ALIGN: i64 = 64;

impl Kernel {
    /// The byte offset of each shared buffer within the workspace (`None` for buffers elsewhere), and the workspace's size.
    pub fn workspace(&self) -> (Vec<Option<i64>>, i64) {
        let mut end = 0;
        let offsets = self
            .buffers
            .iter()
            .map(|b| {
                (b.space == Space::Shared).then(|| {
                    let at = end;
                    end += (b.len * b.dtype.bytes() as i64 + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
                    at
                })
            })
            .collect();
        (offsets, end)
    }

    /// Whether it sums floating point numbers in loops, as contractions, softmax and means do.
    pub fn sums_floats(&self) -> bool {
        fn adds_to(value: &Scalar, buffer: BufferId) -> bool {
            match value.kind() {
                ScalarKind::Binary(BinOp::Add, a, b) => [a, b].iter().any(|x| adds_to(x, buffer)),
                ScalarKind::Dot(operands) => operands.first().is_some_and(|sum| adds_to(sum, buffer)),
                ScalarKind::Read(of, _) => *of == buffer,
                _ => false,
            }
        }
        let mut found = false;
        self.body.for_each(&mut |s| {
            found |= matches!(s, Stmt::Store { buffer, value, .. } if value.dtype().is_float() && adds_to(value, *buffer));
        });
        found
    }

    /// Number of pointers that the caller gives.
    pub fn pointer_count(&self) -> usize {
        self.buffers.iter().filter(|b| matches!(b.space, Space::Input(_) | Space::Output(_))).count()
    }
}
