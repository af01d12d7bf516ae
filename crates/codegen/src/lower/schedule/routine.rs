//! Routines run as they are written: only places in tensors become places in buffers, and parallel loops stay so where they pay.

use std::{borrow::Cow, sync::Arc};

use super::{Emitter, PARALLEL_FROM, bind};
use crate::{
    loops::{AxisId, BufferId, LoopKind, Routine, Scalar, ScalarKind, SharedBody, Space, Stmt, TensorId},
    lower::{
        affine::{Substitution, in_order},
        normalize::{Step, Stored, at_place, map_step, store_as},
    },
    tensor::DType,
};

impl Emitter {
    /// The statements of a routine over the kernel's buffers.
    pub(super) fn routine(&mut self, r: &Routine, stored: Option<&Stored>) -> Stmt {
        for &t in r.defines.iter().chain(&r.scratch) {
            let in_memory = stored.filter(|s| s.instead_of == t).map_or(t, |s| s.step.tensor);
            if !self.buffer_of.contains_key(&in_memory) {
                self.declare(in_memory, Space::Shared);
            }
            let buffer = self.buffer_of[&in_memory];
            self.buffer_of.insert(t, buffer);
        }
        self.locals(&r.locals);
        r.registers.iter().for_each(|t| self.declare(*t, Space::Register));
        let starts: Vec<Step> = r.starts.iter().map(|s| map_step(s, self.changing())).collect();
        self.extents.extend(starts.iter().flat_map(|s| &s.axes).map(|a| (a.id, a.extent)));
        let later = |t: TensorId| r.defines.contains(&t) || r.scratch.contains(&t);
        let mut all = self.steps(starts, &later);
        let numbers: Vec<(AxisId, Scalar)> = r.bound.iter().map(|&(name, n)| (name, self.number(n))).collect();
        let body = match r.shared.as_ref().filter(|_| self.is_sized()) {
            Some(shared) => self.shared_statements(shared, stored),
            None => self.statements(r),
        };
        let body = match self.is_dry() {
            true => body,
            false => numbers.into_iter().rev().fold(body, |body, (name, n)| bind(name, n, body)),
        };
        let shapes = self.group.tensors.clone();
        let size = |t: TensorId| shapes[t.0 as usize].shape.iter().product::<i64>();
        let parallel = self.decide(|_| {
            let touched = r.reads().into_iter().chain(r.defines.iter().copied()).map(size).max().unwrap_or(0);
            touched.max(visits(&r.body)) >= PARALLEL_FROM
        });
        all.push(if parallel { body } else { serial(body) });
        Stmt::Block(all)
    }
}

impl Emitter {
    fn statements(&mut self, r: &Routine) -> Stmt {
        self.extents.extend(r.indices.iter().map(|a| (a.id, a.extent)));
        r.body.for_each(&mut |s| {
            if let Stmt::For { var, extent, .. } = s
                && let Some(n) = extent.as_int()
            {
                self.extents.insert(*var, n);
            }
        });
        match self.is_sized() {
            true => self.named_statements(&r.body, &r.numbers),
            false => self.flat_statements(&r.body),
        }
    }

    /// Statements that are the same at all sizes: nothing in them changes but names.
    fn shared_statements(&mut self, shared: &SharedBody, stored: Option<&Stored>) -> Stmt {
        // What is the same stands in one place (see `lower::sites`).
        self.same(Arc::as_ptr(&shared.body) as usize);
        let buffers: Vec<Option<BufferId>> = shared.reads.iter().map(|t| self.buffer_of.get(t).copied()).collect();
        self.same(buffers);
        let value = stored.map(|s| self.value_of_stored(s));
        if self.is_dry() {
            return Stmt::Block(vec![]);
        }
        let mut flat = Substitution::new(|s: &Scalar| {
            let ScalarKind::Read(t, index) = s.kind() else { return None };
            let buffer = *self.buffer_of.get(t)?;
            let place = match &index[..] {
                [flat] => flat.clone(),
                _ => {
                    let shape = &self.group.decl(*t).shape;
                    let term = |(axis, i): (usize, &Scalar)| i.clone() * shared.stride(*t, axis, shape);
                    index.iter().enumerate().map(term).reduce(|a, b| a + b)?
                }
            };
            Some(Scalar::read(buffer, vec![in_order(&place).unwrap_or(place)], s.dtype()))
        });
        let mut flattened = |e: &Scalar| {
            let e = flat.apply(e);
            match e.dtype() {
                DType::I64 => in_order(&e).unwrap_or(e),
                _ => e,
            }
        };
        let body = shared.body.map(&mut flattened, &|t| self.buffer_of[&t]);
        let Some((stored, (value, of_routine))) = stored.zip(value) else { return body };
        let to = self.buffer_of[&stored.step.tensor];
        let places: Vec<(Scalar, Vec<Scalar>)> =
            shared.places.iter().map(|p| (flattened(&p.flat), p.index.iter().map(&mut flattened).collect())).collect();
        let other = store_as(&body, false, &|buffer, flat, given| {
            if buffer != to {
                return Some(None);
            }
            let (_, index) = places.iter().find(|(place, _)| place == flat)?;
            let axes = stored.step.axes.iter().map(|a| a.id).zip(index.iter().cloned());
            let value = at_place(&value, axes.chain([(of_routine, given.clone())]), |_| None);
            Some(Some(Stmt::Store { buffer, index: flat.clone(), value }))
        });
        other.expect("such statements store vectors alone, at places of which the index is known")
    }

    /// What a step stores instead of a routine, at its axes, with names for what changes in it, and the variable in it that stands for what the
    /// routine would store.
    fn value_of_stored(&mut self, stored: &Stored) -> (Scalar, AxisId) {
        let Stored { instead_of, step } = stored;
        self.extents.extend(step.axes.iter().map(|a| (a.id, a.extent)));
        step.axes.iter().for_each(|a| self.same_axis(a.id, a.extent));
        let of_routine = self.fresh();
        let variable = Scalar::bound(of_routine, self.group.decl(*instead_of).dtype);
        let is_it = |s: &Scalar| matches!(s.kind(), ScalarKind::Read(t, _) if t == instead_of);
        let value = Substitution::new(|s: &Scalar| is_it(s).then(|| variable.clone())).apply(&step.value);
        (self.named(&value), of_routine)
    }

    fn flat_statements(&self, body: &Stmt) -> Stmt {
        // Expressions of one statement are met again in others.
        let mut flat = Substitution::new(self.flattening());
        let is_there = |t: TensorId| self.buffer_of.contains_key(&t);
        let mut all_there = true;
        body.for_each(&mut |s| all_there &= !matches!(s, Stmt::Prefetch { buffer, .. } if !is_there(*buffer)));
        let body = if all_there { Cow::Borrowed(body) } else { Cow::Owned(in_memory(body.clone(), &is_there)) };
        body.map(&mut |e| flat.apply(e), &|t| self.buffer_of[&t])
    }

    /// Declares what lies on the stack. Parallel loops follow each other, and what they have there takes the same place.
    fn locals(&mut self, by_loop: &[Vec<TensorId>]) {
        let Some((outside, loops)) = by_loop.split_first() else { return };
        outside.iter().for_each(|t| self.declare(*t, Space::Local));
        let mut all: Vec<BufferId> = Vec::new();
        for tensors in loops {
            let mut free = all.clone();
            for &t in tensors {
                let decl = self.group.decl(t);
                let (dtype, len) = (decl.dtype, decl.shape.iter().product::<i64>().max(1));
                match free.iter().position(|b| self.buffers[b.0 as usize].dtype == dtype) {
                    Some(at) => {
                        let b = free.remove(at);
                        self.same((t, at, len));
                        let buffer = &mut self.buffers[b.0 as usize];
                        buffer.len = buffer.len.max(len);
                        self.buffer_of.insert(t, b);
                    }
                    None => {
                        self.declare(t, Space::Local);
                        all.push(self.buffer_of[&t]);
                    }
                }
            }
        }
    }
}

/// How often the innermost statements run, as far as constants tell.
fn visits(s: &Stmt) -> i64 {
    match s {
        Stmt::Block(all) => all.iter().map(visits).fold(0, i64::saturating_add),
        Stmt::For { extent, body, .. } => extent.as_int().unwrap_or(1).max(0).saturating_mul(visits(body)),
        Stmt::Let { body, .. } | Stmt::While { body, .. } => visits(body),
        Stmt::If { then, otherwise, .. } => visits(then).max(otherwise.as_ref().map_or(0, |o| visits(o))),
        Stmt::Store { .. } | Stmt::Transpose { .. } | Stmt::Tiles { .. } => 1,
        Stmt::Prefetch { .. } => 0,
    }
}

/// The same statements in one thread.
fn serial(s: Stmt) -> Stmt {
    rewritten(s, &|s| match s {
        Stmt::For { var, extent, kind: LoopKind::Parallel, body } => {
            Stmt::For { var, extent, kind: LoopKind::Serial, body }
        }
        other => other,
    })
}

/// The same statements without prefetches of what is in no memory.
fn in_memory(s: Stmt, is_there: &impl Fn(TensorId) -> bool) -> Stmt {
    rewritten(s, &|s| match s {
        Stmt::Prefetch { buffer, .. } if !is_there(buffer) => Stmt::Block(vec![]),
        other => other,
    })
}

/// The statements, each rewritten after those within it.
fn rewritten(s: Stmt, rewrite: &impl Fn(Stmt) -> Stmt) -> Stmt {
    let all = |s: Box<Stmt>| Box::new(rewritten(*s, rewrite));
    rewrite(match s {
        Stmt::Block(b) => Stmt::Block(b.into_iter().map(|s| rewritten(s, rewrite)).collect()),
        Stmt::For { var, extent, kind, body } => Stmt::For { var, extent, kind, body: all(body) },
        Stmt::Let { var, value, body } => Stmt::Let { var, value, body: all(body) },
        Stmt::While { cond, body } => Stmt::While { cond, body: all(body) },
        Stmt::If { cond, then, otherwise } => Stmt::If { cond, then: all(then), otherwise: otherwise.map(all) },
        s @ (Stmt::Store { .. } | Stmt::Prefetch { .. } | Stmt::Transpose { .. } | Stmt::Tiles { .. }) => s,
    })
}
