//! Gradients of pools with respect to their data.

use super::{
    geometry::Window,
    pool::{AVG_POOL2D, MAX_POOL2D, PoolAttrs},
};
use crate::{
    ir::{Attrs, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar, TensorId},
    ops::{
        AttrField, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, may_equal, tensor_arg},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &PoolGrad { name: "nn.max_pool2d_grad", average: false },
    &PoolGrad { name: "nn.avg_pool2d_grad", average: true },
];

/// The gradient of a two-dimensional pool.
#[derive(Debug)]
struct PoolGrad {
    name: &'static str,
    average: bool,
}

/// The indices of a row-major array.
fn index_of(flat: usize, shape: &[usize]) -> Vec<usize> {
    let strides = row_major_strides(shape);
    shape.iter().zip(&strides).map(|(n, s)| flat / s % n).collect()
}

impl PoolGrad {
    /// The pool's attributes. Its gradient takes no account of dilation, hence takes none.
    fn pool(&self, attrs: &Attrs, rank: Option<usize>) -> Result<PoolAttrs, OpError> {
        let p = PoolAttrs::new(attrs, "HW", rank)?;
        op_ensure!(
            p.windows.iter().all(|(_, w)| w.dilation == 1),
            "C3: `dilation` is {:?}, but only 1 is supported",
            attrs.ints("dilation")
        );
        Ok(p)
    }
}

/// Positions of the data that the window at `y` covers.
fn covered(w: &Window, y: usize, extent: usize) -> std::ops::Range<usize> {
    let start = y as i64 * w.stride - w.before;
    start.clamp(0, extent as i64) as usize..(start + w.kernel).clamp(0, extent as i64) as usize
}

/// Over which windows an element of the data sums: for each pooled axis the number of windows that can cover it.
fn reach(p: &PoolAttrs) -> Vec<i64> {
    p.windows.iter().map(|(_, w)| 1 + (w.kernel - 1) / w.stride).collect()
}

/// The index of window number `r` among those that can cover the element at `i`, and whether it exists and does.
fn window_at(p: &PoolAttrs, outputs: &[i64], i: &[Scalar], r: &[Scalar]) -> (Vec<Scalar>, Scalar) {
    let (mut at, mut covers) = (i.to_vec(), Scalar::bool(true));
    for ((axis, w), back) in p.windows.iter().zip(r) {
        let place = i[*axis].clone() + w.before;
        let window = place.clone().floor_div(w.stride) - back.clone();
        covers = covers
            .and(window.clone().ge(Scalar::index(0)))
            .and(window.clone().lt(Scalar::index(outputs[*axis])))
            .and(place.lt(window.clone() * w.stride + w.kernel));
        at[*axis] = window;
    }
    (at, covers)
}

/// How many elements the mean of the window at `at` is over.
fn divisor(p: &PoolAttrs, shape: &[i64], at: &[Scalar]) -> Scalar {
    let count = p.windows.iter().fold(Scalar::index(1), |all, (axis, w)| {
        if p.count_pad {
            return all * w.kernel;
        }
        let start = at[*axis].clone() * w.stride - w.before;
        let end = (start.clone() + w.kernel).min(Scalar::index(shape[*axis]));
        all * (end - start.max(Scalar::index(0)))
    });
    count.max(Scalar::index(1))
}

/// For each window the number of the first of its greatest elements.
fn greatest(p: &PoolAttrs, x: TensorId, outputs: &[i64], b: &mut Builder) -> TensorId {
    let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
    let over: Vec<i64> = p.windows.iter().map(|(_, w)| w.kernel).collect();
    let least = match dtype.int_range() {
        Some((least, _)) => Scalar::int(least as i64, dtype),
        None => Scalar::float(f64::NEG_INFINITY, dtype),
    };
    let tap = |i: &[Scalar], r: &[Scalar]| {
        let (mut at, mut inside) = (i.to_vec(), Scalar::bool(true));
        for ((axis, w), tap) in p.windows.iter().zip(r) {
            at[*axis] = i[*axis].clone() * w.stride + tap.clone() - w.before;
            inside = inside
                .and(at[*axis].clone().ge(Scalar::index(0)))
                .and(at[*axis].clone().lt(Scalar::index(shape[*axis])));
        }
        (at, inside)
    };
    let most = b.reduce(outputs, &over, Combine::Max, |b, i, r| {
        let (at, inside) = tap(i, r);
        Scalar::select(inside, b.read(x, at), least.clone())
    });
    b.reduce(outputs, &over, Combine::Min, |b, i, r| {
        let (at, inside) = tap(i, r);
        let number = at.iter().zip(&shape).fold(Scalar::index(0), |sum, (k, &n)| sum * n + k.clone());
        let is = Scalar::binary(BinOp::Eq, b.read(x, at), b.read(most, i.iter().cloned()));
        Scalar::select(inside, Scalar::select(is, number, Scalar::index(i64::MAX)), Scalar::index(i64::MAX))
    })
}

impl Op for PoolGrad {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        match self.average {
            true => {
                "The gradient of avg_pool2d at data: every element gets its share of out_grad from each window that covers it.
                C1: layout has the rank of data and the axes H and W, not split. C2: out_grad is of the type of the pool's
                result. C3: dilation is 1."
            }
            false => {
                "The gradient of max_pool2d at data: every element gets out_grad from each window whose first greatest element
                it is. C1: layout has the rank of data and the axes H and W, not split. C2: out_grad is of the type of the
                pool's result. C3: dilation is 1."
            }
        }
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["out_grad", "data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        if self.average { AVG_POOL2D.attrs() } else { MAX_POOL2D.attrs() }
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (grad, x) = (tensor_arg(args, 0, "out_grad")?, tensor_arg(args, 1, "data")?);
        let shape = self.pool(attrs, Some(x.rank()))?.infer_shape(x)?;
        op_ensure!(
            grad.dtype == x.dtype
                && grad.rank() == x.rank()
                && grad.shape.iter().zip(&shape).all(|(a, b)| may_equal(*a, *b)),
            "C2: `out_grad` is {grad} and `data` {x}"
        );
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (grad, x) = (args[0].tensor(), args[1].tensor());
        let p = self.pool(attrs, None)?;
        let strides = row_major_strides(x.shape());
        let mut out = vec![0.0; x.len()];
        for o in 0..grad.len() {
            let at = index_of(o, grad.shape());
            let mut places = vec![0];
            let mut count = 1;
            for axis in 0..at.len() {
                let range = match p.windows.iter().find(|(a, _)| *a == axis) {
                    Some((_, w)) => {
                        let range = covered(w, at[axis], x.shape()[axis]);
                        count *= if p.count_pad { w.kernel as usize } else { range.len() };
                        range
                    }
                    None => at[axis]..at[axis] + 1,
                };
                let stride = strides[axis];
                places = places.iter().flat_map(|s| range.clone().map(move |k| s + k * stride)).collect();
            }
            let g = grad.get_f64(o);
            if self.average {
                let share = match x.dtype().is_float() {
                    true => g / count.max(1) as f64,
                    false => (g / count.max(1) as f64).trunc(),
                };
                places.iter().for_each(|&k| out[k] += share);
            } else if let Some(first) =
                places.iter().copied().reduce(|m, k| if x.get_f64(k) > x.get_f64(m) { k } else { m })
            {
                out[first] += g;
            }
        }
        Ok(Tensor::from_f64_fn(x.dtype(), x.shape(), |i| out[i]).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[1].as_tensor().map_or(0, |t| t.rank());
        let Ok(p) = self.pool(attrs, None) else { return AxisMap::opaque([rank, rank]) };
        let role =
            |axis| if p.windows.iter().any(|(a, _)| *a == axis) { AxisRole::Opaque } else { AxisRole::Maps(axis) };
        let roles: Vec<AxisRole> = (0..rank).map(role).collect();
        AxisMap(vec![roles.clone(), roles])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let taps: f64 = attrs.ints("pool_size").iter().map(|&n| n as f64).product();
        Work {
            flops: 2.0 * elements(&args[0]) * taps,
            bytes_read: args.iter().map(bytes).sum(),
            bytes_written: bytes(out),
        }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (grad, x) = (args[0].tensor(), args[1].tensor());
        let p = self.pool(attrs, None)?;
        let (shape, outputs, dtype) = (b.shape(x).to_vec(), b.shape(grad).to_vec(), b.dtype(x));
        let zero = Scalar::int(0, dtype);
        if outputs.contains(&0) {
            return Ok(b.map(&shape, |_, _| zero).into());
        }
        let first = if self.average { None } else { Some(greatest(&p, x, &outputs, b)) };
        let out = b.reduce(&shape, &reach(&p), Combine::Sum, |b, i, r| {
            let (at, covers) = window_at(&p, &outputs, i, r);
            let value = match first {
                None => {
                    let count = divisor(&p, &shape, &at);
                    let g = b.read(grad, at);
                    if dtype.is_float() { g / count.cast(dtype) } else { (g.cast(DType::I64) / count).cast(dtype) }
                }
                Some(first) => {
                    let number = i.iter().zip(&shape).fold(Scalar::index(0), |sum, (k, &n)| sum * n + k.clone());
                    let mine = Scalar::binary(BinOp::Eq, b.read(first, at.clone()), number);
                    Scalar::select(mine, b.read(grad, at), zero.clone())
                }
            };
            Scalar::select(covers, value, zero.clone())
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let pool: &dyn Op = if self.average { &AVG_POOL2D } else { &MAX_POOL2D };
        let id = crate::ops::op(pool.name());
        let gradient = |s: Sample| {
            let given: Vec<_> = s.attrs.iter().map(|(n, v)| (crate::ir::Name::from(n), v.clone())).collect();
            let attrs = crate::ops::make_attrs(id, &given).ok()?;
            let result = pool.infer(&attrs, &s.args).ok()?;
            self.infer(&attrs, &[result.clone(), s.args[0].clone()]).ok()?;
            Some(Sample { attrs: s.attrs, args: vec![result, s.args[0].clone()] })
        };
        pool.samples().into_iter().filter_map(gradient).collect()
    }
}
