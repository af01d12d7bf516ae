//! Steps without a reduction: one pass over the output, vectorized along the axis where memory is met in order.

use hashbrown::HashMap;

use super::{Emitter, Loop, PARALLEL_PIECES, cut, for_};
use crate::{
    loops::{Axis, AxisId, LoopKind, Scalar, ScalarKind, Stmt, TensorId},
    lower::affine::{Affine, replace_axes},
};

/// Vectors handled per iteration of a plain elementwise loop: enough to hide latencies.
const UNROLL: i64 = 4;

/// Cost of one lane of an access along an axis, against a contiguous vector access as 1 a vector.
fn stride_cost(offset: Option<&Affine>, depends: bool, axis: AxisId, lanes: i64) -> f64 {
    match offset.map(|o| o.coeff(axis)) {
        Some(0) => 0.5,
        Some(1) => 1.0,
        None if !depends => 0.5,
        _ => 2.0 * lanes as f64,
    }
}

impl Emitter {
    pub(super) fn map(
        &mut self,
        tensor: TensorId,
        axes: Vec<Axis>,
        mut to: Scalar,
        mut value: Scalar,
        parallel: bool,
    ) -> Stmt {
        let axes = self.split_axes(&axes, &mut to, &mut [&mut value]);
        let axes = self.merge_axes(&axes, &mut to, &mut [&mut value]);
        let buffer = self.buffer_of[&tensor];
        if axes.is_empty() {
            return Stmt::Store { buffer, index: to, value: self.flatten(&value) };
        }
        let accesses = self.accesses(&value);
        let lanes = self.unit.lanes();
        let store = Affine::of(&to);
        let cost = |axis: &Axis| {
            let per_vector: f64 = stride_cost(store.as_ref(), true, axis.id, lanes)
                + accesses
                    .iter()
                    .map(|a| stride_cost(a.offset.as_ref(), a.axes.contains(&axis.id), axis.id, lanes))
                    .sum::<f64>();
            // A short axis fills vectors badly.
            let vectors = (axis.extent as f64 / lanes as f64).ceil();
            per_vector * vectors / axis.extent as f64
        };
        let best =
            (0..axes.len()).rev().min_by(|&a, &b| cost(&axes[a]).total_cmp(&cost(&axes[b]))).expect("there is an axis");
        let vector = axes[best];
        let outer: Vec<Loop> =
            axes.iter().filter(|a| a.id != vector.id).map(|a| Loop { var: a.id, extent: a.extent }).collect();
        let value = self.flatten(&value);
        let store = |with: &HashMap<AxisId, Scalar>| Stmt::Store {
            buffer,
            index: replace_axes(&to, with),
            value: replace_axes(&value, with),
        };
        if !outer.is_empty() || !parallel {
            let inner = self.vectors(vector.id, Scalar::index(0), vector.extent, &store);
            return self.loops(&outer, inner, parallel);
        }
        // A single long axis for several threads: cut into blocks first.
        let step = UNROLL * lanes;
        let block = (vector.extent / PARALLEL_PIECES / step).max(1) * step;
        let mut parts = Vec::new();
        for (at, tiles, size) in cut(vector.extent, block) {
            let var = self.fresh();
            let inner = self.vectors(vector.id, Scalar::axis(var) * size + at, size, &store);
            parts.push(self.loops(&[Loop { var, extent: tiles }], inner, tiles > 1));
        }
        Stmt::Block(parts)
    }

    /// All of `extent` elements along an axis, from `start`: several vectors a turn, then single ones, then a short one.
    fn vectors(
        &mut self,
        axis: AxisId,
        start: Scalar,
        extent: i64,
        body: &impl Fn(&HashMap<AxisId, Scalar>) -> Stmt,
    ) -> Stmt {
        let lanes = self.unit.lanes();
        let mut parts = Vec::new();
        let mut done = 0;
        for size in [UNROLL * lanes, lanes] {
            let tiles = (extent - done) / size;
            if tiles > 0 {
                parts.push(self.vector_loop(axis, start.clone() + done, tiles, size, body));
                done += tiles * size;
            }
        }
        if done < extent {
            parts.push(self.vector_loop(axis, start + done, 1, extent - done, body));
        }
        Stmt::Block(parts)
    }

    /// `tiles` times `size` lanes along an axis, from `start`: the body gets what stands for the axis.
    fn vector_loop(
        &mut self,
        axis: AxisId,
        start: Scalar,
        tiles: i64,
        size: i64,
        body: &impl Fn(&HashMap<AxisId, Scalar>) -> Stmt,
    ) -> Stmt {
        let (tile, unroll, lane) = (self.fresh(), self.fresh(), self.fresh());
        let native = self.unit.lanes();
        let (vectors, lanes) = if size > native { (size / native, native) } else { (1, size) };
        let at = if tiles == 1 { start } else { Scalar::axis(tile) * size + start };
        let at = if vectors == 1 { at } else { at + Scalar::axis(unroll) * lanes };
        let mut stmt = match lanes {
            1 => body(&HashMap::from_iter([(axis, at)])),
            _ => {
                let with = HashMap::from_iter([(axis, at + Scalar::axis(lane))]);
                for_(lane, lanes, LoopKind::Vector, body(&with))
            }
        };
        if vectors > 1 {
            stmt = for_(unroll, vectors, LoopKind::Unrolled, stmt);
        }
        if tiles > 1 { for_(tile, tiles, LoopKind::Serial, stmt) } else { stmt }
    }

    /// The output's axes with extents of 1 gone and neighbours merged where every access steps evenly along both. `to` and the
    /// expressions are rewritten alike; an axis that stands outside of reads in one of them stays as it is.
    pub(super) fn merge_axes(&mut self, axes: &[Axis], to: &mut Scalar, exprs: &mut [&mut Scalar]) -> Vec<Axis> {
        let (mut axes, single): (Vec<Axis>, Vec<Axis>) = axes.iter().partition(|a| a.extent != 1);
        let mut stand_still = |axes: &[Axis], to: &mut Scalar| {
            let with = axes.iter().map(|a| (a.id, Scalar::index(0))).collect();
            for e in exprs.iter_mut().map(|e| &mut **e).chain([to]) {
                *e = replace_axes(e, &with);
            }
            exprs.iter().map(|e| (**e).clone()).collect::<Vec<Scalar>>()
        };
        let mut now = stand_still(&single, to);
        let free: Vec<AxisId> = now.iter().flat_map(axes_outside_of_reads).collect();
        loop {
            let accesses = now.iter().flat_map(|e| self.accesses(e)).map(|a| a.offset);
            let Some(offsets) = accesses.chain([Affine::of(to)]).collect::<Option<Vec<Affine>>>() else { break };
            let even = |i: usize| {
                let (outer, inner) = (axes[i], axes[i + 1]);
                !free.contains(&outer.id)
                    && !free.contains(&inner.id)
                    && offsets.iter().all(|o| o.coeff(outer.id) == o.coeff(inner.id) * inner.extent)
            };
            let Some(i) = (0..axes.len().saturating_sub(1)).find(|&i| even(i)) else { break };
            // Every offset goes on along the inner axis as it steps along the outer one.
            let outer = axes.remove(i);
            axes[i].extent *= outer.extent;
            // What is simplified from now on must know how far the axis goes.
            self.extents.insert(axes[i].id, axes[i].extent);
            now = stand_still(&[outer], to);
        }
        axes
    }
}

/// The axes whose values matter beside where an expression reads.
fn axes_outside_of_reads(e: &Scalar) -> Vec<AxisId> {
    let mut found = Vec::new();
    let mut seen = hashbrown::HashSet::new();
    let mut stack = vec![e];
    while let Some(e) = stack.pop() {
        match e.kind() {
            ScalarKind::Read(..) => {}
            ScalarKind::Axis(a) => found.push(*a),
            _ => stack.extend(e.operands().into_iter().filter(|o| seen.insert(o.key()))),
        }
    }
    found
}
