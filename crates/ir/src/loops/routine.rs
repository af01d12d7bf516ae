//! Routines: tensors that are defined by statements instead of expressions. What sorts, counts, searches or scatters is one.
//!
//! [`Builder::routine`] takes a closure that gets a [`Nest`]: it declares what the routine defines ([`Nest::output`]) and what
//! it needs meanwhile ([`Nest::scratch`], [`Nest::local`], [`Nest::var`]), and makes the statements in order. The first `k`
//! places at which a condition holds, and how many there are, of a `bool` tensor `x` of `n` elements:
//!
//! ```
//! use resat_ir::{loops::{Builder, eval_stages}, tensor::{DType, Tensor}};
//!
//! let (n, k) = (6, 4);
//! let mut b = Builder::new();
//! let x = b.arg(&[n], DType::Bool);
//! let (places, count) = b.routine(|r| {
//!     let places = r.output(&[k], DType::I32);
//!     let count = r.output(&[1], DType::I64);
//!     r.for_(k, |r, i| r.store(places, [i], -1));
//!     let found = r.var(0);
//!     r.for_(n, |r, i| {
//!         let set = r.read(x, [i.clone()]);
//!         r.if_(set, |r| {
//!             let at = r.let_(r.get(found));
//!             r.store_within(places, [at.clone()], i.cast(DType::I32));
//!             r.set(found, at + 1);
//!         });
//!     });
//!     r.store(count, [0], r.get(found));
//!     (places, count)
//! });
//! let stages = b.finish(vec![places, count]);
//! let x = Tensor::from_i64_fn(DType::Bool, &[6], |i| (i % 3 != 0) as i64);
//! let out = eval_stages(&stages, &[x]).unwrap();
//! assert_eq!(out[0], Tensor::from_slice(&[4], &[1, 2, 4, 5]));
//! assert_eq!(out[1], Tensor::from_slice(&[1], &[4i64]));
//! ```
//!
//! What to know:
//!
//! - **An expression reads when its statement runs**, and again in every statement that it stands in. A value that is wanted
//!   as it is now is given a name by [`Nest::let_`] (as `at` above, which is used after `found` has changed or may have).
//! - Nothing is zeroed: outputs and scratch hold garbage until they are written, and *every* element of an output must be
//!   written, whatever the arguments hold. (Rows of a counted result from its count on may stay as they are.) What starts
//!   with certain values, as a copy of an argument, is best made by [`Nest::output_from`].
//! - **No access may leave its tensor**, whatever values the arguments hold: indices that come from values are clamped, or
//!   tested by [`Nest::if_`], or stored to by [`Nest::store_within`]. A read whose index is only good under a condition
//!   stands in a statement under [`Nest::if_`], or in the chosen side of a `select`.
//! - Iterations of [`Nest::parallel`] run in any order on several threads: none may read or write elements that another one
//!   writes, and each has its own [`Nest::local`] and [`Nest::var`], made inside of it. Results must not depend on the number
//!   of threads.
//! - Results whose outermost extent is found while running are [`Operand::Counted`](super::Operand::Counted).

use std::sync::Arc;

use hashbrown::HashMap;

use super::{
    Axis, AxisId, BinOp, Body, Builder, Definition, LoopKind, Scalar, Seen, SharedBody, Stage, Stmt, TensorId,
    shared::{self, Sharing},
};
use crate::tensor::{DType, row_major_strides};

/// The definition of some tensors by statements. Reads have one index per axis, as in other definitions; stores, and reads of the
/// routine's own tensors that have more than one axis, may have one index instead: in elements from the tensor's start.
#[derive(Clone, Debug, PartialEq)]
pub struct Routine {
    /// The tensors that it writes, for others to read.
    pub defines: Vec<TensorId>,
    /// Tensors for its own use, shared by all threads.
    pub scratch: Vec<TensorId>,
    /// Small tensors for its own use, on each thread's stack: those that are made outside of parallel loops, then those of each parallel
    /// loop, which hold what they do for one iteration.
    pub locals: Vec<Vec<TensorId>>,
    /// Tensors in registers, whose places must be constants once unrolled loops are written out.
    pub registers: Vec<TensorId>,
    /// What some of `defines` and `scratch` hold before the first statement runs; each is a [`Body::Map`] that reads none of
    /// the routine's own tensors.
    pub starts: Vec<Stage>,
    /// Names that are bound to indices from 0 to before an extent.
    pub indices: Vec<Axis>,
    /// Names that are bound to numbers which may differ from size to size, whether or not they do at those that are looked at.
    pub numbers: Vec<AxisId>,
    /// Names that are bound to numbers before the first statement, with these.
    pub bound: Vec<(AxisId, i64)>,
    /// What it does.
    pub body: Arc<Stmt>,
    /// The same with what is known of it, where it is the same at all sizes.
    pub shared: Option<Arc<SharedBody>>,
    /// Of stores to `defines` that were given an index for each axis, those indices, by what they come to in [`Stmt::Store`].
    pub places: Box<[Place]>,
}

/// Where a store goes: see [`Routine::places`].
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// In elements from the tensor's start.
    pub flat: Scalar,
    /// An index for each axis.
    pub index: Vec<Scalar>,
}

impl Routine {
    /// All tensors that it reads, each once.
    pub fn reads(&self) -> Vec<TensorId> {
        let (mut found, mut seen) = (Vec::new(), Seen::default());
        for stage in &self.starts {
            if let Body::Map(value) = &stage.body {
                shared::reads_of(value, &mut seen, &mut found);
            }
        }
        match &self.shared {
            Some(shared) => {
                let new: Vec<TensorId> = shared.reads.iter().filter(|t| !found.contains(t)).copied().collect();
                found.extend(new);
            }
            None => shared::reads(&self.body, &mut seen, &mut found),
        }
        found
    }

    /// The routine with every expression replaced.
    pub fn map(&self, expr: &mut impl FnMut(&Scalar) -> Scalar) -> Routine {
        let start = |s: &Stage| match &s.body {
            Body::Map(value) => Stage { body: Body::Map(expr(value)), ..s.clone() },
            Body::Reduce { .. } => s.clone(),
        };
        let starts = self.starts.iter().map(start).collect();
        let body = Arc::new(self.body.map(expr, &|b| b));
        let place = |p: &Place| Place { flat: expr(&p.flat), index: p.index.iter().map(&mut *expr).collect() };
        let places = self.places.iter().map(place).collect();
        Routine { starts, body, shared: None, places, ..self.clone() }
    }
}

/// A scalar that can be set again, private to the thread; see [`Nest::var`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Var(TensorId);

pub(super) enum Item {
    Stmt(Stmt),
    Let(AxisId, Scalar),
}

/// Makes the statements of a [`Routine`], in order.
pub struct Nest<'a> {
    pub(super) builder: &'a mut Builder,
    pub(super) defines: Vec<TensorId>,
    scratch: Vec<TensorId>,
    /// With the parallel loop in which each was made; 0 stands for none.
    pub(super) locals: HashMap<TensorId, u32>,
    pub(super) local_order: Vec<TensorId>,
    pub(super) registers: Vec<TensorId>,
    starts: Vec<Stage>,
    indices: Vec<Axis>,
    numbers: Vec<AxisId>,
    pub(super) places: Vec<Place>,
    /// The block at hand, after those around it.
    pub(super) items: Vec<Item>,
    /// The parallel loop around the statements at hand; 0 for none.
    region: u32,
    pub(super) regions: u32,
    /// What is bound before the first statement.
    pub(super) bound: Vec<(AxisId, i64)>,
    /// While statements are made that are the same at all sizes.
    pub(super) sharing: Option<Sharing>,
    /// These, once they are made.
    pub(super) shared: Option<Arc<SharedBody>>,
}

impl Builder {
    /// Defines tensors by statements: see [the module](super::routine) for how.
    pub fn routine<T>(&mut self, body: impl FnOnce(&mut Nest<'_>) -> T) -> T {
        let mut nest = Nest {
            builder: self,
            defines: Vec::new(),
            scratch: Vec::new(),
            locals: HashMap::new(),
            local_order: Vec::new(),
            registers: Vec::new(),
            starts: Vec::new(),
            indices: Vec::new(),
            numbers: Vec::new(),
            places: Vec::new(),
            items: Vec::new(),
            region: 0,
            regions: 0,
            bound: Vec::new(),
            sharing: None,
            shared: None,
        };
        let out = body(&mut nest);
        let body = match &nest.shared {
            Some(shared) if nest.items.is_empty() => shared.body.clone(),
            Some(_) => panic!("statements that are the same at all sizes are all that there are"),
            None => Arc::new(close(nest.items.drain(..))),
        };
        let of_region = |r: u32| nest.local_order.iter().copied().filter(|t| nest.locals[t] == r).collect();
        let locals = (0..=nest.regions).map(of_region).collect();
        let Nest { defines, scratch, registers, starts, indices, numbers, bound, places, shared, .. } = nest;
        let places = places.into();
        let routine =
            Routine { defines, scratch, locals, registers, starts, indices, numbers, bound, body, shared, places };
        self.stages.definitions.push(Definition::Routine(routine));
        out
    }
}

/// A block of the items; what follows a name stands in its scope.
pub(super) fn close(items: impl DoubleEndedIterator<Item = Item>) -> Stmt {
    let mut block: Vec<Stmt> = Vec::new();
    for item in items.rev() {
        match item {
            Item::Stmt(s) => block.push(s),
            Item::Let(var, value) => {
                block.reverse();
                block = vec![Stmt::Let { var, value, body: Box::new(Stmt::Block(block)) }];
            }
        }
    }
    block.reverse();
    Stmt::Block(block)
}

impl Nest<'_> {
    // Tensors.

    /// A tensor that the routine defines.
    pub fn output(&mut self, shape: &[i64], dtype: DType) -> TensorId {
        let t = self.builder.declare(shape, dtype);
        self.defines.push(t);
        t
    }

    /// A tensor for the routine's own use, shared by all threads.
    pub fn scratch(&mut self, shape: &[i64], dtype: DType) -> TensorId {
        let t = self.builder.declare(shape, dtype);
        self.scratch.push(t);
        t
    }

    /// A tensor that the routine defines and that holds `value(builder, i)` at each index `i` before the first statement
    /// runs, wherever this stands: computed as [`Builder::map`] would, in vectors and by several threads. The value reads
    /// arguments and tensors defined before.
    pub fn output_from(&mut self, shape: &[i64], value: impl FnOnce(&Builder, &[Scalar]) -> Scalar) -> TensorId {
        let t = self.started(shape, value);
        self.defines.push(t);
        t
    }

    /// As [`Nest::output_from`], of a tensor for the routine's own use.
    pub fn scratch_from(&mut self, shape: &[i64], value: impl FnOnce(&Builder, &[Scalar]) -> Scalar) -> TensorId {
        let t = self.started(shape, value);
        self.scratch.push(t);
        t
    }

    fn started(&mut self, shape: &[i64], value: impl FnOnce(&Builder, &[Scalar]) -> Scalar) -> TensorId {
        let axes: Vec<Axis> = shape.iter().map(|&n| self.builder.stages.new_axis(n)).collect();
        let index: Vec<Scalar> = axes.iter().map(|a| Scalar::axis(a.id)).collect();
        let value = value(self.builder, &index);
        let tensor = self.builder.declare(shape, value.dtype());
        self.starts.push(Stage { tensor, axes, body: Body::Map(value) });
        tensor
    }

    /// A small tensor (kilobytes) on the thread's stack. Made within a parallel loop, each iteration has its own.
    pub fn local(&mut self, shape: &[i64], dtype: DType) -> TensorId {
        let t = self.builder.declare(shape, dtype);
        self.locals.insert(t, self.region);
        self.local_order.push(t);
        t
    }

    /// A tensor in registers: every place in it that is read or written must be a constant once unrolled loops are written out, plus
    /// the variable of a vector loop. Made within a parallel loop, each iteration has its own.
    pub fn registers(&mut self, shape: &[i64], dtype: DType) -> TensorId {
        let t = self.builder.declare(shape, dtype);
        self.locals.insert(t, self.region);
        self.registers.push(t);
        t
    }

    /// A scalar that can be set again; `start` is its first value. It lives in a register where that is possible.
    pub fn var(&mut self, start: impl Into<Scalar>) -> Var {
        let start = start.into();
        let t = self.local(&[1], start.dtype());
        self.store(t, [0], start);
        Var(t)
    }

    /// A variable's value.
    pub fn get(&self, var: Var) -> Scalar {
        self.read(var.0, [0])
    }

    /// Gives a variable another value.
    pub fn set(&mut self, var: Var, value: impl Into<Scalar>) {
        self.store(var.0, [0], value);
    }

    /// A tensor's extents.
    pub fn shape(&self, t: TensorId) -> &[i64] {
        self.builder.shape(t)
    }

    /// A tensor's element type.
    pub fn dtype(&self, t: TensorId) -> DType {
        self.builder.dtype(t)
    }

    // Expressions.

    /// An element of an argument, of a tensor defined before, or of one that this routine has written: one index per axis.
    /// It is read when the statement runs that it stands in.
    pub fn read<I: Into<Scalar>>(&self, t: TensorId, index: impl IntoIterator<Item = I>) -> Scalar {
        self.in_reach(t);
        self.builder.read(t, index.into_iter().map(Into::into))
    }

    /// Element number `flat`, in row-major order, of a tensor of the routine's own.
    pub fn read_flat(&self, t: TensorId, flat: Scalar) -> Scalar {
        self.in_reach(t);
        assert!(self.owns(t), "what others define may never be in memory");
        Scalar::read(t, vec![flat], self.dtype(t))
    }

    fn owns(&self, t: TensorId) -> bool {
        self.defines.contains(&t) || self.scratch.contains(&t) || self.locals.contains_key(&t)
    }

    /// Whether an index lies within a tensor's extents.
    pub fn within(&self, t: TensorId, index: &[Scalar]) -> Scalar {
        index.iter().zip(self.shape(t)).fold(Scalar::bool(true), |all, (i, &n)| {
            all.and(i.clone().ge(Scalar::index(0))).and(i.clone().lt(Scalar::index(n)))
        })
    }

    fn in_reach(&self, t: TensorId) {
        let made = self.locals.get(&t);
        assert!(
            made.is_none_or(|&r| r == self.region),
            "a local tensor is used in another parallel loop than it was made"
        );
    }

    // Statements.

    /// Writes one element: one index per axis.
    pub fn store<I: Into<Scalar>>(
        &mut self,
        t: TensorId,
        index: impl IntoIterator<Item = I>,
        value: impl Into<Scalar>,
    ) {
        let index: Vec<Scalar> = index.into_iter().map(Into::into).collect();
        let shape = self.shape(t);
        assert_eq!(index.len(), shape.len(), "one index per axis");
        let strided = index.iter().enumerate().map(|(axis, i)| {
            match self.sharing.as_ref().and_then(|sharing| sharing.stride(t, axis)) {
                Some(stride) => i.clone() * stride,
                None => i.clone() * shared::stride(shape, axis),
            }
        });
        let flat = strided.reduce(|a, b| a + b).unwrap_or_else(|| Scalar::index(0));
        if self.defines.contains(&t) {
            self.places.push(Place { flat: flat.clone(), index });
        }
        self.store_flat(t, flat, value);
    }

    /// Writes element number `flat`, in row-major order.
    pub fn store_flat(&mut self, t: TensorId, flat: Scalar, value: impl Into<Scalar>) {
        self.in_reach(t);
        assert!(self.owns(t), "a routine writes its own tensors only");
        // Constants take the tensor's type.
        let value: Scalar = value.into();
        let value = match value.as_int() {
            Some(i) if value.dtype() == DType::I64 => Scalar::int(i, self.dtype(t)),
            _ => value,
        };
        assert_eq!(value.dtype(), self.dtype(t), "a value of another type than the tensor's");
        self.items.push(Item::Stmt(Stmt::Store { buffer: t, index: flat, value }));
    }

    /// Asks for the line of a tensor's memory that holds an element, or one beyond its ends, which does no harm. Nothing where the tensor is
    /// not in memory.
    pub fn prefetch(&mut self, t: TensorId, flat: Scalar) {
        self.items.push(Item::Stmt(Stmt::Prefetch { buffer: t, index: flat }));
    }

    /// Writes one element where the index lies within the tensor's extents, else does nothing.
    pub fn store_within<I: Into<Scalar>>(
        &mut self,
        t: TensorId,
        index: impl IntoIterator<Item = I>,
        value: impl Into<Scalar>,
    ) {
        let index: Vec<Scalar> = index.into_iter().map(Into::into).collect();
        let value = value.into();
        self.if_(self.within(t, &index), |n| n.store(t, index, value));
    }

    /// Computes a value now and names it: the rest of the block may use it.
    pub fn let_(&mut self, value: Scalar) -> Scalar {
        let id = self.builder.stages.new_axis(1).id;
        let name = Scalar::bound(id, value.dtype());
        self.items.push(Item::Let(id, value));
        name
    }

    /// As [`Nest::let_`], of a number that may be another one at another size.
    pub fn number(&mut self, value: i64) -> Scalar {
        assert!(self.sharing.is_none(), "numbers are given to statements that are the same at all sizes");
        let id = self.builder.stages.new_axis(1).id;
        self.numbers.push(id);
        self.items.push(Item::Let(id, Scalar::index(value)));
        Scalar::bound(id, DType::I64)
    }

    /// As [`Nest::let_`], of an index that lies in `0..extent` for certain: divisions of it can be simplified, as those of
    /// loop variables are.
    pub fn let_index(&mut self, value: Scalar, extent: i64) -> Scalar {
        if self.sharing.is_some() {
            return self.let_(value);
        }
        let axis = self.builder.stages.new_axis(extent);
        self.indices.push(axis);
        self.items.push(Item::Let(axis.id, value));
        Scalar::axis(axis.id)
    }

    fn block(&mut self, body: impl FnOnce(&mut Self)) -> Stmt {
        let first = self.items.len();
        body(self);
        close(self.items.drain(first..))
    }

    /// A loop over `0..extent`, one iteration after another. The extent is computed once, before; it may depend on anything.
    pub fn for_(&mut self, extent: impl Into<Scalar>, body: impl FnOnce(&mut Self, Scalar)) {
        self.loop_(extent.into(), LoopKind::Serial, body);
    }

    /// A loop over `from..to`, one iteration after another.
    pub fn for_range(&mut self, from: impl Into<Scalar>, to: impl Into<Scalar>, body: impl FnOnce(&mut Self, Scalar)) {
        let from = from.into();
        let from = if from.as_int().is_some() { from } else { self.let_(from) };
        self.for_(to.into() - from.clone(), |n, i| {
            let at = n.let_(from + i);
            body(n, at);
        });
    }

    /// A loop over `0..extent` whose iterations do not depend on each other; in any order, by several threads where it pays.
    /// Within another such loop it is a plain one.
    pub fn parallel(&mut self, extent: impl Into<Scalar>, body: impl FnOnce(&mut Self, Scalar)) {
        if self.region > 0 {
            return self.for_(extent, body);
        }
        self.regions += 1;
        self.region = self.regions;
        self.loop_(extent.into(), LoopKind::Parallel, body);
        self.region = 0;
    }

    /// A loop over `0..extent` that is written out.
    pub fn unrolled(&mut self, extent: i64, body: impl FnOnce(&mut Self, Scalar)) {
        self.loop_(Scalar::index(extent), LoopKind::Unrolled, body);
    }

    /// All of `0..extent` at once, as the lanes of a vector. The body holds stores, names and unrolled loops only.
    pub fn vector(&mut self, extent: i64, body: impl FnOnce(&mut Self, Scalar)) {
        self.loop_(Scalar::index(extent), LoopKind::Vector, body);
    }

    fn loop_(&mut self, extent: Scalar, kind: LoopKind, body: impl FnOnce(&mut Self, Scalar)) {
        // The axis' own extent is asked for by nobody.
        let var = self.builder.stages.new_axis(extent.as_int().unwrap_or(1)).id;
        let body = Box::new(self.block(|n| body(n, Scalar::axis(var))));
        self.items.push(Item::Stmt(Stmt::For { var, extent, kind, body }));
    }

    /// Loops over all indices of a shape, in row-major order.
    pub fn for_each(&mut self, shape: &[i64], body: impl FnOnce(&mut Self, &[Scalar])) {
        // Boxed, since the body's type would grow with every level.
        type Body<'b, 'a> = Box<dyn FnOnce(&mut Nest<'a>, &[Scalar]) + 'b>;
        fn nested<'a>(n: &mut Nest<'a>, shape: &[i64], index: &mut Vec<Scalar>, body: Body<'_, 'a>) {
            match shape.split_first() {
                None => body(n, index),
                Some((&extent, rest)) => n.for_(extent, |n, i| {
                    index.push(i);
                    nested(n, rest, index, body);
                }),
            }
        }
        nested(self, shape, &mut Vec::new(), Box::new(body));
    }

    /// All indices of a shape, independently of each other: one parallel loop over their row-major numbers.
    pub fn parallel_each(&mut self, shape: &[i64], body: impl FnOnce(&mut Self, &[Scalar])) {
        let sizes: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let strides = row_major_strides(&sizes);
        self.parallel(shape.iter().product::<i64>(), |n, flat| {
            // At all sizes there is a division, also where it is by 1 here.
            let whole = |n: &mut Self, by: i64| match n.builder.is_for_all_sizes() {
                true => n.let_(Scalar::index(by)),
                false => Scalar::index(by),
            };
            let mut index: Vec<Scalar> = Vec::new();
            for (k, (&extent, &stride)) in shape.iter().zip(&strides).enumerate() {
                let stride = whole(n, stride.max(1) as i64);
                let quotient = Scalar::binary(BinOp::FloorDiv, flat.clone(), stride);
                index.push(match k {
                    0 => quotient,
                    _ => {
                        let extent = whole(n, extent.max(1));
                        Scalar::binary(BinOp::FloorMod, quotient, extent)
                    }
                });
            }
            let index: Vec<Scalar> = index.into_iter().zip(shape).map(|(i, &extent)| n.let_index(i, extent)).collect();
            body(n, &index);
        });
    }

    /// Tiles of an extent, for all indices of an outer shape: parallel loops over both. The body gets the outer index, the
    /// tile's first element, and its size, which is smaller for the last tile where the extent is no multiple; it is called for
    /// each of both sizes.
    pub fn parallel_tiles(
        &mut self,
        outer: &[i64],
        extent: i64,
        tile: i64,
        body: impl Fn(&mut Self, &[Scalar], Scalar, i64),
    ) {
        let (full, rest) = (extent / tile, extent % tile);
        if full > 0 {
            self.parallel_each(&[outer, &[full]].concat(), |n, i| {
                let (number, outer) = i.split_last().expect("the last index is the tile's");
                body(n, outer, number.clone() * tile, tile);
            });
        }
        if rest > 0 {
            self.parallel_each(outer, |n, i| body(n, i, Scalar::index(full * tile), rest));
        }
    }

    /// Runs the statements where a condition holds.
    pub fn if_(&mut self, cond: Scalar, then: impl FnOnce(&mut Self)) {
        let then = Box::new(self.block(then));
        self.items.push(Item::Stmt(Stmt::If { cond, then, otherwise: None }));
    }

    /// Runs the first statements where a condition holds, else the second ones.
    pub fn if_else(&mut self, cond: Scalar, then: impl FnOnce(&mut Self), otherwise: impl FnOnce(&mut Self)) {
        let (then, otherwise) = (Box::new(self.block(then)), Some(Box::new(self.block(otherwise))));
        self.items.push(Item::Stmt(Stmt::If { cond, then, otherwise }));
    }

    /// Repeats as long as a condition holds, which is evaluated before each iteration. It must come to an end for all arguments.
    pub fn while_(&mut self, cond: Scalar, body: impl FnOnce(&mut Self)) {
        let body = Box::new(self.block(body));
        self.items.push(Item::Stmt(Stmt::While { cond, body }));
    }
}

impl std::fmt::Debug for Nest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nest").field("defines", &self.defines).finish_non_exhaustive()
    }
}

impl From<i64> for Scalar {
    /// An index constant.
    fn from(i: i64) -> Scalar {
        Scalar::index(i)
    }
}

impl Scalar {
    /// Whether both are equal.
    pub fn equals(self, other: impl Into<Scalar>) -> Scalar {
        Scalar::binary(BinOp::Eq, self, other.into())
    }

    /// Whether both differ (true for NaN).
    pub fn differs(self, other: impl Into<Scalar>) -> Scalar {
        Scalar::binary(BinOp::Ne, self, other.into())
    }

    /// Whether any of both holds.
    pub fn or(self, other: Scalar) -> Scalar {
        Scalar::binary(BinOp::Or, self, other)
    }
}

/// `!` of integers inverts bits, of `bool` it is logical.
impl std::ops::Not for Scalar {
    type Output = Scalar;
    fn not(self) -> Scalar {
        Scalar::unary(super::UnOp::Not, self)
    }
}
