//! Short forms of what converters write most: arithmetic, and changes of shape.

use super::node::Node;
use crate::{
    frontend::Convert,
    ir::{AttrValue, Dim, ExprId, TensorType, Type},
    tensor::{DType, Tensor},
};

/// Whether sums of such elements are wanted in `float32`.
pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// The tensor type that both fit: extents that differ are unknown.
pub(super) fn join(a: &Type, b: &Type) -> Option<Type> {
    let (a, b) = (a.as_tensor()?, b.as_tensor()?);
    if a.dtype != b.dtype || a.rank() != b.rank() {
        return None;
    }
    let shape = a.shape.iter().zip(b.shape.iter()).map(|(x, y)| if x == y { *x } else { Dim::Any });
    Some(TensorType::of(shape.collect::<Vec<_>>(), a.dtype).into())
}

impl Node<'_, '_> {
    /// One of two tensors of the same rank, by a condition without axes.
    pub(super) fn either(&mut self, cond: ExprId, then: ExprId, otherwise: ExprId) -> Convert {
        if then == otherwise {
            return Ok(then);
        }
        if let Some(v) = self.value(cond) {
            return Ok(if v.get_i64(0) != 0 { then } else { otherwise });
        }
        let (then, otherwise, ty) = self.branches(cond, then, otherwise)?;
        Ok(self.im.b.if_else(cond, then, otherwise, ty))
    }

    /// Two tensors as branches of a conditional, and the type that both fit. Extents in which they differ are made to depend on the
    /// condition, which keeps them unknown until the program runs.
    pub(super) fn branches(
        &mut self,
        cond: ExprId,
        then: ExprId,
        otherwise: ExprId,
    ) -> Convert<(ExprId, ExprId, Type)> {
        let ty = join(self.im.b.ty(then), self.im.b.ty(otherwise));
        let ty = ty.ok_or_else(|| self.refuse("what is chosen while running has different ranks or elements"))?;
        let (a, b) = (self.dims(then)?, self.dims(otherwise)?);
        if a.iter().zip(&b).all(|(x, y)| x == y || x.is_none() || y.is_none()) {
            return Ok((then, otherwise, ty));
        }
        let (sa, sb) = (self.shape_of(then)?, self.shape_of(otherwise)?);
        let shape = self.select(cond, sa, sb)?;
        let attrs = [("allowzero", true.into())];
        let then = self.op("dyn.reshape", &[then, shape], &attrs)?;
        let otherwise = self.op("dyn.reshape", &[otherwise, shape], &attrs)?;
        Ok((then, otherwise, ty))
    }

    /// Axes that are known only while running, counted from the front: a vector of `int64`.
    pub(super) fn counted(&mut self, axes: ExprId, rank: usize) -> Convert {
        let axes = self.cast(axes, DType::I64)?;
        let axes = self.reshape(axes, &[-1])?;
        let up = self.with("add", axes, rank as f64)?;
        let negative = self.with("less", axes, 0.0)?;
        self.select(negative, up, axes)
    }

    /// Whether an axis is among such.
    pub(super) fn among(&mut self, axes: ExprId, axis: usize) -> Convert {
        let hit = self.with("equal", axes, axis as f64)?;
        self.reduce("any", hit, &[0], false)
    }

    /// The extents of which a mask holds, as many as are said.
    pub(super) fn masked_extents(&mut self, shape: ExprId, mask: ExprId, count: usize) -> Convert {
        let places = self.un("argwhere", mask)?;
        let places = self.reshape(places, &[count as i64])?;
        self.take(shape, places, 0)
    }

    /// Calls an operator of Relay.
    pub(super) fn op(&mut self, name: &str, args: &[ExprId], attrs: &[(&str, AttrValue)]) -> Convert {
        self.im.b.op(name, args, attrs)
    }

    /// An operator of one argument.
    pub(super) fn un(&mut self, name: &str, x: ExprId) -> Convert {
        self.op(name, &[x], &[])
    }

    /// An operator of two arguments, which broadcast.
    pub(super) fn bin(&mut self, name: &str, x: ExprId, y: ExprId) -> Convert {
        self.op(name, &[x, y], &[])
    }

    pub(super) fn add(&mut self, x: ExprId, y: ExprId) -> Convert {
        self.bin("add", x, y)
    }

    pub(super) fn sub(&mut self, x: ExprId, y: ExprId) -> Convert {
        self.bin("subtract", x, y)
    }

    pub(super) fn mul(&mut self, x: ExprId, y: ExprId) -> Convert {
        self.bin("multiply", x, y)
    }

    pub(super) fn div(&mut self, x: ExprId, y: ExprId) -> Convert {
        self.bin("divide", x, y)
    }

    /// A constant of the element type that an expression has.
    pub(super) fn c(&mut self, like: ExprId, value: f64) -> Convert {
        let dtype = self.dtype(like)?;
        Ok(self.im.b.scalar(dtype, value))
    }

    /// A binary operator whose second operand is a constant.
    pub(super) fn with(&mut self, name: &str, x: ExprId, value: f64) -> Convert {
        let c = self.c(x, value)?;
        self.bin(name, x, c)
    }

    /// A constant minus an expression, or divided by it, and so on.
    pub(super) fn from(&mut self, name: &str, value: f64, x: ExprId) -> Convert {
        let c = self.c(x, value)?;
        self.bin(name, c, x)
    }

    pub(super) fn select(&mut self, condition: ExprId, x: ExprId, y: ExprId) -> Convert {
        self.op("where", &[condition, x, y], &[])
    }

    /// Conversion to another element type; none where it is that already.
    pub(super) fn cast(&mut self, x: ExprId, dtype: DType) -> Convert {
        match self.dtype(x)? == dtype {
            true => Ok(x),
            false => self.op("cast", &[x], &[("dtype", dtype.into())]),
        }
    }

    /// Constants within the program.
    pub(super) fn constant(&mut self, value: Tensor) -> ExprId {
        self.im.b.constant(value)
    }

    /// The elements under another shape; -1 stands for what is left, and 0 means an empty axis.
    pub(super) fn reshape(&mut self, x: ExprId, shape: &[i64]) -> Convert {
        if self.dims(x)?.iter().copied().eq(shape.iter().map(|&n| Some(n))) {
            return Ok(x);
        }
        self.op("reshape", &[x], &[("newshape", shape.into()), ("allowzero", true.into())])
    }

    /// The axes in another order.
    pub(super) fn transpose(&mut self, x: ExprId, axes: &[usize]) -> Convert {
        if axes.iter().enumerate().all(|(i, &a)| i == a) {
            return Ok(x);
        }
        let axes: Vec<i64> = axes.iter().map(|&a| a as i64).collect();
        self.op("transpose", &[x], &[("axes", axes.into())])
    }

    /// Part of an axis: from `begin` to before `end`, both not negative.
    pub(super) fn slice(&mut self, x: ExprId, axis: usize, begin: i64, end: i64) -> Convert {
        let attrs =
            [("begin", [begin].into()), ("end", [end].into()), ("strides", [1].into()), ("axes", [axis as i64].into())];
        self.op("strided_slice", &[x], &attrs)
    }

    /// One place along an axis, which goes.
    pub(super) fn index(&mut self, x: ExprId, axis: usize, at: i64) -> Convert {
        let part = self.slice(x, axis, at, at + 1)?;
        self.squeeze(part, &[axis])
    }

    /// New axes of extent 1 before an axis.
    pub(super) fn expand(&mut self, x: ExprId, axis: usize, count: usize) -> Convert {
        match count {
            0 => Ok(x),
            _ => {
                self.op("expand_dims", &[x], &[("axis", (axis as i64).into()), ("num_newaxis", (count as i64).into())])
            }
        }
    }

    /// Without the given axes, of extent 1.
    pub(super) fn squeeze(&mut self, x: ExprId, axes: &[usize]) -> Convert {
        if axes.is_empty() {
            return Ok(x);
        }
        let axes: Vec<i64> = axes.iter().map(|&a| a as i64).collect();
        self.op("squeeze", &[x], &[("axis", axes.into())])
    }

    /// A reduction over the given axes; none of them reduces nothing.
    pub(super) fn reduce(&mut self, name: &str, x: ExprId, axes: &[usize], keep: bool) -> Convert {
        if axes.is_empty() {
            return Ok(x);
        }
        let axes: Vec<i64> = axes.iter().map(|&a| a as i64).collect();
        self.op(name, &[x], &[("axis", axes.into()), ("keepdims", keep.into())])
    }

    /// Tensors one after another.
    pub(super) fn concat(&mut self, parts: &[ExprId], axis: usize) -> Convert {
        if let [one] = parts {
            return Ok(*one);
        }
        let tuple = self.im.b.tuple(parts);
        self.op("concatenate", &[tuple], &[("axis", (axis as i64).into())])
    }

    /// Tensors side by side along a new axis.
    pub(super) fn stack(&mut self, parts: &[ExprId], axis: usize) -> Convert {
        let parts = parts.iter().map(|&p| self.expand(p, axis, 1)).collect::<Convert<Vec<_>>>()?;
        self.concat(&parts, axis)
    }

    /// Slices along an axis at places.
    pub(super) fn take(&mut self, x: ExprId, indices: ExprId, axis: usize) -> Convert {
        self.op("take", &[x, indices], &[("axis", (axis as i64).into())])
    }

    /// The extents as a vector of `int64`: a constant where they are known.
    pub(super) fn shape_of(&mut self, x: ExprId) -> Convert {
        match self.ty(x)?.known_shape() {
            Some(shape) => Ok(self.im.b.ints(&shape)),
            None => self.op("shape_of", &[x], &[("dtype", DType::I64.into())]),
        }
    }

    /// Broadcast to a shape that is given as an expression.
    pub(super) fn broadcast_to(&mut self, x: ExprId, shape: ExprId) -> Convert {
        match self.value(shape) {
            Some(v) => self.broadcast(x, &v.to_i64_vec()),
            None => self.op("dyn.broadcast_to", &[x, shape], &[]),
        }
    }

    /// Broadcast to known extents.
    pub(super) fn broadcast(&mut self, x: ExprId, shape: &[i64]) -> Convert {
        if self.dims(x)?.iter().copied().eq(shape.iter().map(|&n| Some(n))) {
            return Ok(x);
        }
        self.op("broadcast_to", &[x], &[("shape", shape.into())])
    }

    /// A reshape to extents that are given as an expression.
    pub(super) fn reshape_to(&mut self, x: ExprId, shape: ExprId) -> Convert {
        match self.value(shape) {
            Some(v) => self.reshape(x, &v.to_i64_vec()),
            None => self.op("dyn.reshape", &[x, shape], &[("allowzero", true.into())]),
        }
    }

    /// A tensor of one value, of extents that are given as an expression.
    pub(super) fn filled(&mut self, value: ExprId, shape: ExprId) -> Convert {
        match self.value(shape) {
            Some(v) => self.op("full", &[value], &[("shape", v.to_i64_vec().into())]),
            None => self.op("dyn.full", &[value, shape], &[]),
        }
    }

    /// 0, 1, … before an extent of a tensor.
    pub(super) fn places(&mut self, x: ExprId, axis: usize, dtype: DType) -> Convert {
        match self.dims(x)?.get(axis).copied().flatten() {
            Some(n) => Ok(self.constant(Tensor::from_i64_fn(dtype, &[n.max(0) as usize], |i| i as i64))),
            None => self.op("arange_like", &[x], &[("axis", (axis as i64).into()), ("dtype", dtype.into())]),
        }
    }

    /// An extent as an expression: a scalar of that element type.
    pub(super) fn size(&mut self, x: ExprId, axis: usize, dtype: DType) -> Convert {
        match self.dims(x)?.get(axis).copied().flatten() {
            Some(n) => Ok(self.im.b.scalar(dtype, n as f64)),
            None => {
                let shape = self.shape_of(x)?;
                let n = self.index(shape, 0, axis as i64)?;
                self.cast(n, dtype)
            }
        }
    }

    /// Matrices flattened around an axis: what is before it and what is from it on, as one axis each.
    pub(super) fn flattened(&mut self, x: ExprId, axis: usize) -> Convert {
        let dims = self.dims(x)?;
        let product = |d: &[Option<i64>]| d.iter().copied().product::<Option<i64>>();
        match (product(&dims[..axis]), product(&dims[axis..])) {
            (Some(a), Some(b)) => self.reshape(x, &[a, b]),
            (Some(a), None) => self.reshape(x, &[a, -1]),
            (None, Some(b)) => self.reshape(x, &[-1, b]),
            (None, None) => {
                let shape = self.shape_of(x)?;
                let after = self.slice(shape, 0, axis as i64, dims.len() as i64)?;
                let n = self.reduce("prod", after, &[0], true)?;
                let left = self.im.b.ints(&[-1]);
                let new = self.concat(&[left, n], 0)?;
                self.reshape_to(x, new)
            }
        }
    }

    /// Moves an axis to the end.
    pub(super) fn axis_to_last(&mut self, x: ExprId, axis: usize) -> Convert {
        let rank = self.rank(x)?;
        let axes: Vec<usize> = (0..rank).filter(|&a| a != axis).chain([axis]).collect();
        self.transpose(x, &axes)
    }

    /// Moves the last axis to a place.
    pub(super) fn last_to_axis(&mut self, x: ExprId, axis: usize) -> Convert {
        let rank = self.rank(x)?;
        let axes: Vec<usize> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
        self.transpose(x, &axes)
    }

    /// `num` axes of extent 1 after the axes that there are.
    pub(super) fn trailing(&mut self, x: ExprId, num: usize) -> Convert {
        let rank = self.rank(x)?;
        self.expand(x, rank, num)
    }

    /// Elements added at the ends of axes: `before` and `after` are one number for each axis.
    pub(super) fn pad(&mut self, x: ExprId, before: &[i64], after: &[i64], value: ExprId) -> Convert {
        if before.iter().chain(after).all(|&n| n == 0) {
            return Ok(x);
        }
        let width: Vec<AttrValue> = before.iter().zip(after).map(|(&b, &a)| [b, a].into()).collect();
        self.op("nn.pad", &[x, value], &[("pad_width", AttrValue::List(width.into()))])
    }

    /// The product of matrices in the last two axes, the axes before broadcast.
    ///
    /// Products of halves are summed in `float32`, and rounded once.
    pub(super) fn matmul(&mut self, x: ExprId, y: ExprId, out: Option<DType>) -> Convert {
        let dtype = self.dtype(x)?;
        if out.is_none() && is_half(dtype) {
            let z = self.matmul(x, y, Some(DType::F32))?;
            return self.cast(z, dtype);
        }
        let (mut x, mut y) = (x, y);
        let (vector_x, vector_y) = (self.rank(x)? == 1, self.rank(y)? == 1);
        if vector_x {
            x = self.expand(x, 0, 1)?;
        }
        if vector_y {
            y = self.expand(y, 1, 1)?;
        }
        let out_dtype = out.map_or(AttrValue::None, AttrValue::from);
        let (rx, ry) = (self.rank(x)?, self.rank(y)?);
        self.ensure(rx >= 2 && ry >= 2, || "the operands of a matrix multiplication have axes".into())?;
        let mut result = if ry == 2 {
            self.op("nn.matmul", &[x, y], &[("out_dtype", out_dtype)])?
        } else {
            let lead = rx.max(ry) - 2;
            let (tx, ty) = (self.ty(x)?, self.ty(y)?);
            let dims = |t: &crate::ir::TensorType| -> Vec<Dim> {
                std::iter::repeat_n(Dim::Known(1), lead + 2 - t.rank())
                    .chain(t.shape[..t.rank() - 2].iter().copied())
                    .collect()
            };
            let (bx, by) = (dims(&tx), dims(&ty));
            if lead == 1 {
                let x3 = self.expand(x, 0, 3 - rx)?;
                let y3 = self.expand(y, 0, 3 - ry)?;
                self.op("nn.batch_matmul", &[x3, y3], &[("out_dtype", out_dtype)])?
            } else {
                let lead_of = |a: &Dim, b: &Dim| match (a, b) {
                    (Dim::Known(1), d) | (d, Dim::Known(1)) => d.known(),
                    (Dim::Known(n), _) | (_, Dim::Known(n)) => Some(*n),
                    _ => None,
                };
                let both: Option<Vec<i64>> = bx.iter().zip(&by).map(|(a, b)| lead_of(a, b)).collect();
                match (both, tx.known_shape(), ty.known_shape()) {
                    (Some(batch), Some(sx), Some(sy)) => {
                        let n: i64 = batch.iter().product();
                        let (mx, my) = (&sx[rx - 2..], &sy[ry - 2..]);
                        let full = |m: &[i64]| [batch.as_slice(), m].concat();
                        let x = self.broadcast(x, &full(mx))?;
                        let y = self.broadcast(y, &full(my))?;
                        let x = self.reshape(x, &[n, mx[0], mx[1]])?;
                        let y = self.reshape(y, &[n, my[0], my[1]])?;
                        let z = self.op("nn.batch_matmul", &[x, y], &[("out_dtype", out_dtype)])?;
                        self.reshape(z, &full(&[mx[0], my[1]]))?
                    }
                    _ => self.matmul_of_unknown(x, y, lead, out_dtype)?,
                }
            }
        };
        let rank = self.rank(result)?;
        if vector_y {
            result = self.squeeze(result, &[rank - 1])?;
        }
        if vector_x {
            let rank = self.rank(result)?;
            let axis = if vector_y { rank - 1 } else { rank - 2 };
            result = self.squeeze(result, &[axis])?;
        }
        Ok(result)
    }

    /// The same where batches have extents that are known only while running.
    fn matmul_of_unknown(&mut self, x: ExprId, y: ExprId, lead: usize, out_dtype: AttrValue) -> Convert {
        let whole = |n: &mut Self, e: ExprId| -> Convert {
            let rank = n.rank(e)?;
            n.expand(e, 0, lead + 2 - rank)
        };
        let (x, y) = (whole(self, x)?, whole(self, y)?);
        let (sx, sy) = (self.shape_of(x)?, self.shape_of(y)?);
        let (cut, end) = (lead as i64, lead as i64 + 2);
        let (bx, by) = (self.slice(sx, 0, 0, cut)?, self.slice(sy, 0, 0, cut)?);
        let batch = self.bin("maximum", bx, by)?;
        let (mx, my) = (self.slice(sx, 0, cut, end)?, self.slice(sy, 0, cut, end)?);
        let one = self.im.b.ints(&[-1]);
        let mut flat = Vec::new();
        for (e, m) in [(x, mx), (y, my)] {
            let full = self.concat(&[batch, m], 0)?;
            let e = self.broadcast_to(e, full)?;
            let three = self.concat(&[one, m], 0)?;
            flat.push(self.reshape_to(e, three)?);
        }
        let z = self.op("nn.batch_matmul", &flat, &[("out_dtype", out_dtype)])?;
        let rows = self.slice(mx, 0, 0, 1)?;
        let columns = self.slice(my, 0, 1, 2)?;
        let full = self.concat(&[batch, rows, columns], 0)?;
        self.reshape_to(z, full)
    }
}
