//! Values of which a part is known: extents of a tensor some of which are open, what is picked from them, and their sums.

use std::collections::BTreeMap;

use super::Builder;
use crate::{
    ir::{Dim, Expr, ExprId},
    tensor::{DType, Tensor, Value},
};

/// Operators that move elements of their first argument, and change none.
const MOVES: &[&str] =
    &["take", "strided_slice", "reshape", "squeeze", "expand_dims", "concatenate", "transpose", "cast"];

/// Operators that make as many of one element as are wanted.
const REPEATS: &[&str] = &["broadcast_to", "dyn.broadcast_to"];

/// How many operators may lie between extents and what is picked from them.
const MOST_MOVES: usize = 32;

/// A sum of a number and of extents that have names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// The number.
    pub constant: i64,
    /// How often each extent is in it; none not at all.
    pub extents: BTreeMap<String, i64>,
}

impl Sum {
    /// The sum of this and so many times another.
    pub fn plus(&self, other: &Sum, times: i64) -> Sum {
        let mut sum = self.clone();
        sum.constant += times * other.constant;
        for (name, count) in &other.extents {
            *sum.extents.entry(name.clone()).or_default() += times * count;
        }
        sum.extents.retain(|_, count| *count != 0);
        sum
    }

    /// Whether it is a single extent, once.
    pub fn is_an_extent(&self) -> bool {
        self.constant == 0 && self.extents.len() == 1 && self.extents.values().all(|&n| n == 1)
    }

    fn known(&self) -> Option<i64> {
        self.extents.is_empty().then_some(self.constant)
    }
}

impl From<i64> for Sum {
    fn from(constant: i64) -> Sum {
        Sum { constant, ..Sum::default() }
    }
}

/// A vector of integers, as far as they are known, and its shape.
struct Partial {
    shape: Vec<usize>,
    items: Vec<Option<Sum>>,
}

impl Builder {
    /// The value of an expression that moves extents about, where all that it picks are known.
    pub(super) fn moved_extents(&mut self, e: ExprId) -> Option<Value> {
        let Expr::Call { callee, .. } = &self.module()[e] else { return None };
        let Expr::Op(op) = self.module()[*callee] else { return None };
        // What computes is left to whoever asks.
        if !MOVES.contains(&op.op().name()) {
            return None;
        }
        let part = self.partial(e, MOST_MOVES)?;
        let items: Vec<i64> = part.items.into_iter().map(|i| i?.known()).collect::<Option<_>>()?;
        let dtype = self.ty(e).as_tensor()?.dtype;
        Some(Value::Tensor(Tensor::from_i64_fn(dtype, &part.shape, |i| items[i])))
    }

    /// What all elements of an expression are, where it computes with extents of inputs and numbers alone, and they are the same.
    pub fn sum(&mut self, e: ExprId) -> Option<Sum> {
        let mut items = self.partial(e, MOST_MOVES)?.items.into_iter();
        let first = items.next()??;
        items.all(|i| i.as_ref() == Some(&first)).then_some(first)
    }

    fn partial(&mut self, e: ExprId, left: usize) -> Option<Partial> {
        let left = left.checked_sub(1)?;
        let Expr::Call { callee, args, attrs, .. } = &self.module()[e] else { return self.whole(e) };
        let Expr::Op(op) = self.module()[*callee] else { return None };
        let (args, attrs, name) = (args.clone(), attrs.clone(), op.op().name().to_owned());
        if name == "shape_of" {
            let ty = self.ty(args[0]).as_tensor()?;
            let extent = |(axis, d): (usize, &Dim)| match d {
                Dim::Known(n) => Some(Sum::from(*n)),
                _ => {
                    let name = self.dim_name(args[0], axis)?.to_owned();
                    Some(Sum { constant: 0, extents: BTreeMap::from([(name, 1)]) })
                }
            };
            let items: Vec<Option<Sum>> = ty.shape.iter().enumerate().map(extent).collect();
            return Some(Partial { shape: vec![items.len()], items });
        }
        if REPEATS.contains(&name.as_str()) {
            let part = self.partial(args[0], left)?;
            return (part.items.len() == 1).then_some(part);
        }
        if let "add" | "subtract" = name.as_str() {
            let (a, b) = (self.partial(args[0], left)?, self.partial(args[1], left)?);
            // Of a different number of elements, one is broadcast.
            let (n, m) = (a.items.len(), b.items.len());
            let times = if name == "add" { 1 } else { -1 };
            let of = |items: &[Option<Sum>], i: usize| items[if items.len() == 1 { 0 } else { i }].clone();
            let sum = |i| Some(of(&a.items, i)?.plus(&of(&b.items, i)?, times));
            let items = (0..n.max(m)).map(sum).collect();
            return (n == m || n == 1 || m == 1)
                .then_some(Partial { shape: if n < m { b.shape } else { a.shape }, items });
        }
        if !MOVES.contains(&name.as_str()) {
            return self.whole(e);
        }
        // Elements are replaced by their numbers, to see which ones the operator picks.
        let mut known = Vec::new();
        let mut numbered = |part: Partial| {
            let first = known.len() as i64;
            known.extend(part.items);
            Value::Tensor(Tensor::from_i64_fn(DType::I64, &part.shape, |i| first + i as i64))
        };
        let mut values = Vec::new();
        if name == "concatenate" {
            let Expr::Tuple(fields) = &self.module()[args[0]] else { return None };
            let parts = fields.clone().into_iter().map(|f| self.partial(f, left)).collect::<Option<Vec<_>>>()?;
            values.push(Value::Tuple(parts.into_iter().map(&mut numbered).collect()));
        } else {
            let part = self.partial(args[0], left)?;
            values.push(numbered(part));
        }
        for &a in &args[1..] {
            values.push(Value::Tensor(self.value(a)?));
        }
        let picked = match name.as_str() {
            "cast" if matches!(self.ty(e).as_tensor()?.dtype, DType::I32 | DType::I64) => values.swap_remove(0),
            "cast" => return None,
            _ => op.op().eval(&attrs, &values).ok()?,
        };
        let picked = picked.tensor();
        let items = picked.to_i64_vec().into_iter().map(|i| known.get(usize::try_from(i).ok()?).cloned().flatten());
        Some(Partial { shape: picked.shape().to_vec(), items: items.collect() })
    }

    /// An expression all of whose elements are known.
    fn whole(&mut self, e: ExprId) -> Option<Partial> {
        let v = self.value(e).filter(|v| v.dtype().is_int())?;
        Some(Partial { shape: v.shape().to_vec(), items: v.to_i64_vec().into_iter().map(|n| Some(n.into())).collect() })
    }
}
