//! Statements of routines that are the same at all sizes, so that they are made once: at another size only numbers are others, which the
//! statements have names for.

use std::sync::Arc;

use super::{
    AxisId, LoopKind, Nest, Place, Scalar, ScalarKind, Seen, Stmt, TensorDecl, TensorId, affine::any_new,
    routine::close,
};
use crate::tensor::DType;

/// The statements of a routine that are the same at all sizes; see [`Nest::at_all_sizes`].
#[derive(Clone, Debug, PartialEq)]
pub struct SharedBody {
    /// Where in its stages it stands, and what else its form depends on.
    origin: Origin,
    /// The statements.
    pub body: Arc<Stmt>,
    /// The tensors that they read.
    pub reads: Vec<TensorId>,
    /// Names of strides of tensors whose extents change: by tensor, for each axis, where its stride is not the same at all sizes.
    pub strides: Vec<(TensorId, Vec<Option<AxisId>>)>,
    /// As [`Routine::places`](super::Routine::places).
    pub places: Vec<Place>,
    /// The tensors that are stored in vectors alone, at such places.
    pub stored_in_vectors: Vec<TensorId>,
    /// What was declared on the way.
    tensors: Vec<TensorDecl>,
    locals: Vec<(TensorId, u32)>,
    registers: Vec<TensorId>,
    regions: u32,
    axes: u32,
}

/// What tells the statements of one routine from those of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    definitions: usize,
    tensors: usize,
    axes: u32,
    key: Vec<i64>,
}

impl SharedBody {
    /// Whether another one stands in the same place and is the same: either may take the other's place.
    pub fn is_like(&self, other: &SharedBody) -> bool {
        self.origin == other.origin && (Arc::ptr_eq(&self.body, &other.body) || self == other)
    }

    /// Whether another one stands in the same place, and is not the same although it should be.
    pub fn contradicts(&self, other: &SharedBody) -> bool {
        self.origin == other.origin && !self.is_like(other)
    }

    /// The stride of an axis of a tensor of that shape.
    pub fn stride(&self, t: TensorId, axis: usize, shape: &[i64]) -> Scalar {
        let names = self.strides.iter().find(|s| s.0 == t).map(|s| &s.1);
        let name = names.and_then(|names| *names.get(axis)?);
        name.map_or_else(|| Scalar::index(stride(shape, axis)), Scalar::axis)
    }
}

/// While such statements are made: names of strides.
#[derive(Debug)]
pub(super) struct Sharing {
    strides: Vec<(TensorId, Vec<Option<AxisId>>)>,
}

impl Sharing {
    /// The name of an axis' stride, where that is not the same at all sizes.
    pub(super) fn stride(&self, t: TensorId, axis: usize) -> Option<Scalar> {
        let names = self.strides.iter().find(|s| s.0 == t).map(|s| &s.1)?;
        names[axis].map(Scalar::axis)
    }
}

/// How far elements lie apart along an axis, in elements.
pub(super) fn stride(shape: &[i64], axis: usize) -> i64 {
    shape[axis + 1..].iter().product()
}

/// The tensors that an expression reads, where they are not among those that were found.
pub(super) fn reads_of(e: &Scalar, seen: &mut Seen, found: &mut Vec<TensorId>) {
    any_new(e, seen, &mut |e| {
        if let ScalarKind::Read(t, _) = e.kind()
            && !found.contains(t)
        {
            found.push(*t);
        }
        false
    });
}

/// The same of statements.
pub(super) fn reads(body: &Stmt, seen: &mut Seen, found: &mut Vec<TensorId>) {
    body.for_each(&mut |s| s.scalars().into_iter().for_each(|e| reads_of(e, seen, found)));
}

/// The tensors of these that are stored in vectors alone, all at places of which the index is known.
fn stored_in_vectors(body: &Stmt, tensors: &[TensorId], places: &[Place]) -> Vec<TensorId> {
    fn others(s: &Stmt, is_vector: bool, places: &[Place], found: &mut Vec<TensorId>) {
        match s {
            Stmt::Block(all) => all.iter().for_each(|s| others(s, is_vector, places, found)),
            Stmt::For { kind, body, .. } => others(body, is_vector || *kind == LoopKind::Vector, places, found),
            Stmt::Let { body, .. } | Stmt::While { body, .. } => others(body, is_vector, places, found),
            Stmt::If { then, otherwise, .. } => {
                others(then, is_vector, places, found);
                otherwise.iter().for_each(|s| others(s, is_vector, places, found));
            }
            Stmt::Store { buffer, index, .. } if !is_vector || places.iter().all(|p| p.flat != *index) => {
                found.push(*buffer);
            }
            Stmt::Transpose { to, .. } => found.push(*to),
            Stmt::Tiles { block, .. } => found.push(block.sums),
            Stmt::Store { .. } | Stmt::Prefetch { .. } => {}
        }
    }
    let mut found = Vec::new();
    others(body, false, places, &mut found);
    tensors.iter().copied().filter(|t| !found.contains(t)).collect()
}

impl Nest<'_> {
    /// All statements of a routine for all sizes, which are the same at each but for `numbers`: `body` gets names for these. Of the tensors that are
    /// there so far those whose extents change are `sized`, along these axes. On nothing else may statements depend that changes from size to size,
    /// but for what is in `key`: they are not made again where they are known. Tensors of a thread's own are made within.
    ///
    /// Panics where the stages are not for all sizes, or there are statements already.
    pub fn at_all_sizes(
        &mut self,
        key: &[i64],
        sized: &[(TensorId, &[usize])],
        numbers: &[i64],
        body: impl FnOnce(&mut Self, &[Scalar]),
    ) {
        assert!(self.builder.is_for_all_sizes() && self.items.is_empty(), "these are all statements, at all sizes");
        let stages = &mut self.builder.stages;
        let origin = Origin {
            definitions: stages.definitions.len(),
            tensors: stages.tensors.len(),
            axes: stages.axis_count(),
            key: key.to_vec(),
        };
        let shapes: Vec<Vec<i64>> = sized.iter().map(|s| stages.decl(s.0).shape.clone()).collect();
        let mut bound: Vec<(AxisId, i64)> = Vec::new();
        let mut name = |n: i64| {
            let id = stages.new_axis(1).id;
            bound.push((id, n));
            id
        };
        let names: Vec<Scalar> = numbers.iter().map(|&n| Scalar::bound(name(n), DType::I64)).collect();
        let mut strides = Vec::new();
        for (&(t, changing), shape) in sized.iter().zip(&shapes) {
            let of_axis = |axis: usize| {
                let changes = changing.iter().any(|&later| later > axis);
                changes.then(|| name(stride(shape, axis)))
            };
            strides.push((t, (0..shape.len()).map(of_axis).collect()));
        }
        self.bound = bound;
        let first = origin.tensors;
        let known = self.builder.kept.iter().find(|k| k.origin == origin).cloned();
        // Where it is checked, they are made again.
        if let Some(known) = known.clone().filter(|_| !cfg!(debug_assertions)) {
            self.builder.stages.tensors.extend(known.tensors.iter().cloned());
            self.builder.stages.skip_axes(known.axes);
            self.locals.extend(known.locals.iter().copied());
            self.local_order.extend(known.locals.iter().map(|l| l.0).filter(|t| !known.registers.contains(t)));
            self.registers.extend(&known.registers);
            self.regions = known.regions;
            self.shared = Some(known);
            return;
        }
        self.sharing = Some(Sharing { strides });
        body(self, &names);
        let strides = self.sharing.take().map_or_else(Vec::new, |s| s.strides);
        let body = close(self.items.drain(..));
        let mut found = Vec::new();
        reads(&body, &mut Seen::default(), &mut found);
        let of_own = |t: &&TensorId| t.0 as usize >= first;
        let of_region = |t: &TensorId| (*t, self.locals[t]);
        let places = std::mem::take(&mut self.places);
        let made = SharedBody {
            origin,
            reads: found,
            strides,
            stored_in_vectors: stored_in_vectors(&body, &self.defines, &places),
            places,
            body: Arc::new(body),
            tensors: self.builder.stages.tensors[first..].to_vec(),
            locals: self.local_order.iter().chain(&self.registers).filter(of_own).map(of_region).collect(),
            registers: self.registers.iter().filter(of_own).copied().collect(),
            regions: self.regions,
            axes: self.builder.stages.axis_count(),
        };
        assert!(known.as_ref().is_none_or(|k| **k == made), "statements are the same at all sizes");
        self.shared = Some(known.unwrap_or_else(|| Arc::new(made)));
    }
}
