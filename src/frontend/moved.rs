//! Values of which a part is known: extents of a tensor some of which are open, and what is picked from them.

use super::Builder;
use crate::{
    ir::{Expr, ExprId},
    tensor::{DType, Tensor, Value},
};

/// Operators that move elements of their first argument, and change none.
const MOVES: &[&str] =
    &["take", "strided_slice", "reshape", "squeeze", "expand_dims", "concatenate", "transpose", "cast"];

/// How many operators may lie between extents and what is picked from them.
const MOST_MOVES: usize = 32;

/// A vector of integers, as far as they are known, and its shape.
struct Partial {
    shape: Vec<usize>,
    items: Vec<Option<i64>>,
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
        let items: Vec<i64> = part.items.into_iter().collect::<Option<_>>()?;
        let dtype = self.ty(e).as_tensor()?.dtype;
        Some(Value::Tensor(Tensor::from_i64_fn(dtype, &part.shape, |i| items[i])))
    }

    fn partial(&mut self, e: ExprId, left: usize) -> Option<Partial> {
        let left = left.checked_sub(1)?;
        let Expr::Call { callee, args, attrs, .. } = &self.module()[e] else { return self.whole(e) };
        let Expr::Op(op) = self.module()[*callee] else { return None };
        let (args, attrs, name) = (args.clone(), attrs.clone(), op.op().name().to_owned());
        if name == "shape_of" {
            let ty = self.ty(args[0]).as_tensor()?;
            let items: Vec<Option<i64>> = ty.shape.iter().map(|d| d.known()).collect();
            return Some(Partial { shape: vec![items.len()], items });
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
        let items = picked.to_i64_vec().into_iter().map(|i| known.get(usize::try_from(i).ok()?).copied().flatten());
        Some(Partial { shape: picked.shape().to_vec(), items: items.collect() })
    }

    /// An expression all of whose elements are known.
    fn whole(&mut self, e: ExprId) -> Option<Partial> {
        let v = self.value(e).filter(|v| v.dtype().is_int())?;
        Some(Partial { shape: v.shape().to_vec(), items: v.to_i64_vec().into_iter().map(Some).collect() })
    }
}
