//! Sequences whose length is known only while running: all elements one after another, and their shapes. The elements have one number of
//! axes.

use super::repeat::{Captured, Iteration, repeated};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{List, Tens, Val},
            node::Node,
        },
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

impl List {
    /// The list of elements that are known one by one; of none, that of the element type and number of axes that are said.
    pub(super) fn of(n: &mut Node, items: &[Val], elem: Elem, rank: usize) -> Convert<List> {
        let (mut parts, mut rows) = (Vec::new(), Vec::new());
        for item in items {
            let Val::Tensor(t) = item else { return Err(n.refuse("its sequences should hold tensors")) };
            let same = t.elem == elem && elem != Elem::Text && n.rank(t.e)? == rank;
            n.ensure(same, || {
                "a sequence whose length is known only while running should hold tensors of one element type and number of axes, \
                 and no strings"
                    .into()
            })?;
            parts.push(n.reshape(t.e, &[-1])?);
            let shape = n.shape_of(t.e)?;
            rows.push(n.expand(shape, 0, 1)?);
        }
        if parts.is_empty() {
            let data = n.constant(Tensor::zeros(elem.storage(), &[0]));
            let shapes = n.constant(Tensor::zeros(DType::I64, &[0, rank]));
            return Ok(List { data: Tens { e: data, elem }, shapes });
        }
        let (data, shapes) = (n.concat(&parts, 0)?, n.concat(&rows, 0)?);
        Ok(List { data: Tens { e: data, elem }, shapes })
    }

    /// How many axes its elements have.
    pub(super) fn rank(&self, n: &Node) -> Convert<usize> {
        Ok(n.extent(self.shapes, 1)? as usize)
    }

    /// How many elements there are: a scalar of `int64`.
    pub(super) fn length(&self, n: &mut Node) -> Convert {
        n.size(self.shapes, 0, DType::I64)
    }

    /// Where each element begins, and the end of the last one.
    fn bounds(&self, n: &mut Node) -> Convert {
        let sizes = n.reduce("prod", self.shapes, &[1], false)?;
        let ends = n.op("cumsum", &[sizes], &[("axis", 0.into())])?;
        let zero = n.im.b.ints(&[0]);
        n.concat(&[zero, ends], 0)
    }

    /// From the element of one place to before that of another, as a list; places are scalars of `int64`.
    fn part(&self, n: &mut Node, from: ExprId, to: ExprId) -> Convert<List> {
        let bounds = self.bounds(n)?;
        let one = n.im.b.ints(&[1]);
        let cut = |n: &mut Node, x: ExprId, from: ExprId, to: ExprId| -> Convert {
            let (from, to) = (n.reshape(from, &[1])?, n.reshape(to, &[1])?);
            n.op("dyn.strided_slice", &[x, from, to, one], &[])
        };
        let places = n.places(self.shapes, 0, DType::I64)?;
        let places = cut(n, places, from, to)?;
        let shapes = n.take(self.shapes, places, 0)?;
        let (begin, end) = (n.take(bounds, from, 0)?, n.take(bounds, to, 0)?);
        let data = cut(n, self.data.e, begin, end)?;
        Ok(List { data: Tens { e: data, ..self.data }, shapes })
    }

    /// The one after the other.
    fn then(&self, n: &mut Node, other: &List) -> Convert<List> {
        let data = n.concat(&[self.data.e, other.data.e], 0)?;
        let shapes = n.concat(&[self.shapes, other.shapes], 0)?;
        Ok(List { data: Tens { e: data, ..self.data }, shapes })
    }

    /// A place as a node gives it, from the front; where there is none, the given one.
    fn place(&self, n: &mut Node, i: usize, otherwise: ExprId) -> Convert {
        let Some(at) = n.opt(i)? else { return Ok(otherwise) };
        let at = n.cast(at, DType::I64)?;
        let at = n.reshape(at, &[])?;
        let length = self.length(n)?;
        let counted = n.add(at, length)?;
        let negative = n.with("less", at, 0.0)?;
        n.select(negative, counted, at)
    }

    /// The element at a place.
    pub(super) fn at(&self, n: &mut Node, place: ExprId) -> Convert<Tens> {
        let next = n.with("add", place, 1.0)?;
        let own = self.part(n, place, next)?;
        let shape = n.take(self.shapes, place, 0)?;
        Ok(Tens { e: n.reshape_to(own.data.e, shape)?, ..self.data })
    }

    /// `SequenceAt`.
    pub(super) fn sequence_at(&self, n: &mut Node) -> Convert<Vec<Val>> {
        let first = n.im.b.scalar(DType::I64, 0.0);
        let place = self.place(n, 1, first)?;
        Ok(vec![Val::Tensor(self.at(n, place)?)])
    }

    /// `SequenceInsert`.
    pub(super) fn insert(&self, n: &mut Node) -> Convert<Vec<Val>> {
        let item = n.val(1).cloned().ok_or_else(|| n.refuse("what it inserts is not given"))?;
        let rank = self.rank(n)?;
        let one = List::of(n, &[item], self.data.elem, rank)?;
        if !n.has(2) {
            return Ok(vec![Val::List(self.then(n, &one)?)]);
        }
        let end = self.length(n)?;
        let place = self.place(n, 2, end)?;
        let first = n.c(place, 0.0)?;
        let (before, after) = (self.part(n, first, place)?, self.part(n, place, end)?);
        let all = before.then(n, &one)?;
        Ok(vec![Val::List(all.then(n, &after)?)])
    }

    /// `SequenceErase`.
    pub(super) fn erase(&self, n: &mut Node) -> Convert<Vec<Val>> {
        let end = self.length(n)?;
        let last = n.with("subtract", end, 1.0)?;
        let place = self.place(n, 1, last)?;
        let (first, next) = (n.c(place, 0.0)?, n.with("add", place, 1.0)?);
        let (before, after) = (self.part(n, first, place)?, self.part(n, next, end)?);
        Ok(vec![Val::List(before.then(n, &after)?)])
    }

    /// `ConcatFromSequence`, an element after another.
    pub(super) fn concatenated(&self, n: &mut Node, axis: usize, new: bool) -> Convert<Vec<Val>> {
        let zero = n.im.b.scalar(DType::I64, 0.0);
        let element = |n: &mut Node, list: &List, place: ExprId| -> Convert {
            let t = list.at(n, place)?;
            n.expand(t.e, axis, usize::from(new))
        };
        let first = element(n, self, zero)?;
        let elem = self.data.elem;
        let length = self.length(n)?;
        let trips = n.with("subtract", length, 1.0)?;
        let start = vec![Val::Tensor(Tens { e: first, elem })];
        let list = *self;
        let (all, _) = repeated(n, Some(trips), None, start, &mut |n, i, go, carried| {
            let mut outside = Captured::default();
            let data = Tens { e: outside.take(n, list.data.e), ..list.data };
            let inner = List { data, shapes: outside.take(n, list.shapes) };
            let Some(Val::Tensor(so_far)) = carried.first().cloned() else {
                return Err(n.refuse("a loop lost its state"));
            };
            let place = n.with("add", i, 1.0)?;
            let next = element(n, &inner, place)?;
            let e = n.concat(&[so_far.e, next], axis)?;
            let state = vec![Val::Tensor(Tens { e, ..so_far })];
            Ok(Iteration { again: go, state, collect: Vec::new(), captures: outside.into_captures() })
        })?;
        Ok(all)
    }
}

/// Parts of so many elements along an axis (the last one may be shorter), how many being known only while running.
pub(super) fn split(n: &mut Node, t: Tens, axis: usize, chunk: ExprId) -> Convert<List> {
    let chunk = n.cast(chunk, DType::I64)?;
    let chunk = n.reshape(chunk, &[])?;
    let extent = n.size(t.e, axis, DType::I64)?;
    let up = n.add(extent, chunk)?;
    let up = n.with("subtract", up, 1.0)?;
    let trips = n.bin("floor_divide", up, chunk)?;
    let rank = n.rank(t.e)?;
    let none = List::of(n, &[], t.elem, rank)?;
    let start = vec![Val::List(none)];
    let (all, _) = repeated(n, Some(trips), None, start, &mut |n, i, go, carried| {
        let mut outside = Captured::default();
        let (x, chunk) = (outside.take(n, t.e), outside.take(n, chunk));
        let Some(Val::List(so_far)) = carried.first().cloned() else { return Err(n.refuse("a loop lost its state")) };
        let from = n.mul(i, chunk)?;
        let to = n.add(from, chunk)?;
        let extent = n.size(x, axis, DType::I64)?;
        let to = n.bin("minimum", to, extent)?;
        let places = n.places(x, axis, DType::I64)?;
        let one = n.im.b.ints(&[1]);
        let (from, to) = (n.reshape(from, &[1])?, n.reshape(to, &[1])?);
        let places = n.op("dyn.strided_slice", &[places, from, to, one], &[])?;
        let part = n.take(x, places, axis)?;
        let part = List::of(n, &[Val::Tensor(Tens { e: part, ..t })], t.elem, rank)?;
        let state = vec![Val::List(so_far.then(n, &part)?)];
        Ok(Iteration { again: go, state, collect: Vec::new(), captures: outside.into_captures() })
    })?;
    match all.first() {
        Some(Val::List(list)) => Ok(*list),
        _ => Err(n.refuse("a loop lost its state")),
    }
}

/// Values of two kinds of the same structure: a sequence of known length becomes one of unknown length where the other is such, or has
/// another length; one that may be absent has a flag. None where they have the same structure already, or nothing in common.
pub(super) fn unified(n: &mut Node, a: &Val, b: &Val) -> Convert<Option<(Val, Val)>> {
    let list = |n: &mut Node, v: &Val, elem: Elem, rank: usize| -> Convert<Val> {
        Ok(match v {
            Val::Seq(items) => Val::List(List::of(n, items, elem, rank)?),
            other => other.clone(),
        })
    };
    let kind = |n: &Node, v: &Val| -> Convert<Option<(Elem, usize)>> {
        Ok(match v {
            Val::Seq(items) => match items.first() {
                Some(Val::Tensor(t)) => Some((t.elem, n.rank(t.e)?)),
                _ => None,
            },
            Val::List(l) => Some((l.data.elem, l.rank(n)?)),
            _ => None,
        })
    };
    match (a, b) {
        (Val::Seq(x), Val::Seq(y)) if x.len() == y.len() => Ok(None),
        (Val::Seq(_), Val::Seq(_) | Val::List(_)) | (Val::List(_), Val::Seq(_)) => {
            let known = match kind(n, a)? {
                Some(k) => Some(k),
                None => kind(n, b)?,
            };
            let Some((elem, rank)) = known else { return Ok(None) };
            Ok(Some((list(n, a, elem, rank)?, list(n, b, elem, rank)?)))
        }
        (Val::Absent, other) | (other, Val::Absent) if !matches!(other, Val::Absent) => {
            // What is absent has some value of the same structure.
            let (inner, there) = match other {
                Val::Maybe { there, value } => ((**value).clone(), Some(*there)),
                v => (v.clone(), None),
            };
            let flag = |n: &mut Node, there: bool| {
                let e = n.im.b.scalar(DType::Bool, f64::from(there));
                Tens { e, elem: Elem::Plain(DType::Bool) }
            };
            let mut nothing = Vec::new();
            for t in inner.tensors() {
                let ty = n.ty(t.e)?;
                let extents: Vec<usize> = ty.shape.iter().map(|d| d.known().unwrap_or(0) as usize).collect();
                nothing.push(Tens { e: n.constant(Tensor::zeros(ty.dtype, &extents)), ..t });
            }
            let mut next = nothing.into_iter();
            let empty = inner.rebuilt(&mut |t| next.next().unwrap_or(t));
            let absent = Val::Maybe { there: flag(n, false), value: empty.into() };
            let there = there.unwrap_or_else(|| flag(n, true));
            let present = Val::Maybe { there, value: inner.into() };
            Ok(Some(if matches!(a, Val::Absent) { (absent, present) } else { (present, absent) }))
        }
        _ => Ok(None),
    }
}
