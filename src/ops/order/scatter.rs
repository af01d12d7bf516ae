//! Updates at places that index tensors name. Where a place is named twice, updates apply in the order of the indices.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_bail, op_ensure,
        transform::reshape_index,
        util::{axis_of, field, may_equal, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&ScatterElements, &ScatterNd];

const MODES: &[&str] = &["update", "add", "mul", "mean", "min", "max"];

/// The index counted from the front; negative ones count from the end.
fn place(index: i64, extent: usize) -> Result<usize, OpError> {
    let n = extent as i64;
    let at = if index < 0 { index + n } else { index };
    op_ensure!((0..n).contains(&at), "index {index} lies outside {extent} elements");
    Ok(at as usize)
}

/// `data` with `updates[u]` applied at element `to` for each pair `(u, to)`.
fn apply(data: &Tensor, updates: &Tensor, pairs: &[(usize, usize)], mode: &str) -> Tensor {
    if data.dtype().is_float() {
        let (mut out, us) = (data.to_f64_vec(), updates.to_f64_vec());
        for &(u, to) in pairs {
            let (a, b) = (out[to], us[u]);
            out[to] = match mode {
                "add" => a + b,
                "mul" => a * b,
                "mean" => (a + b) / 2.0,
                "min" => {
                    if b < a {
                        b
                    } else {
                        a
                    }
                }
                "max" => {
                    if b > a {
                        b
                    } else {
                        a
                    }
                }
                _ => b,
            };
        }
        return Tensor::from_f64_fn(data.dtype(), data.shape(), |i| out[i]);
    }
    let (mut out, us) = (data.to_i64_vec(), updates.to_i64_vec());
    let less = |a: i64, b: i64| if data.dtype() == DType::U64 { (a as u64) < b as u64 } else { a < b };
    for &(u, to) in pairs {
        let (a, b) = (out[to], us[u]);
        out[to] = match mode {
            "add" => a.wrapping_add(b),
            "mul" => a.wrapping_mul(b),
            "mean" => a.wrapping_add(b) / 2,
            "min" => {
                if less(b, a) {
                    b
                } else {
                    a
                }
            }
            "max" => {
                if less(a, b) {
                    b
                } else {
                    a
                }
            }
            _ => b,
        };
    }
    Tensor::from_i64_fn(data.dtype(), data.shape(), |i| out[i])
}

/// A value for an element's index and an update's.
type AtUpdate<'a> = dyn Fn(&Builder, &[Scalar], &[Scalar]) -> Scalar + 'a;

/// Element by element: each place asks all updates whether they mean it. `hit` says so for the update at index `r` over
/// `over`, and `update` reads that.
struct Asked<'a> {
    data: TensorId,
    over: &'a [i64],
    hit: &'a AtUpdate<'a>,
    update: &'a AtUpdate<'a>,
}

impl Asked<'_> {
    fn lower(&self, mode: &str, b: &mut Builder) -> Result<Operand, OpError> {
        let (shape, dtype) = (b.shape(self.data).to_vec(), b.dtype(self.data));
        if self.over.contains(&0) {
            return Ok(b.map(&shape, |b, i| b.read(self.data, i.iter().cloned())).into());
        }
        let (least, greatest) = match dtype.int_range() {
            Some((lo, hi)) => (Scalar::int(lo as i64, dtype), Scalar::int(hi as i64, dtype)),
            None => (Scalar::float(f64::NEG_INFINITY, dtype), Scalar::float(f64::INFINITY, dtype)),
        };
        let (combine, neutral, op) = match mode {
            "add" => (Combine::Sum, Scalar::int(0, dtype), BinOp::Add),
            "mul" => (Combine::Prod, Scalar::int(1, dtype), BinOp::Mul),
            "min" => (Combine::Min, greatest, BinOp::Min),
            "max" => (Combine::Max, least, BinOp::Max),
            "update" => {
                let flat =
                    |r: &[Scalar]| r.iter().zip(self.over).fold(Scalar::index(0), |sum, (r, &n)| sum * n + r.clone());
                let last = b.reduce(&shape, self.over, Combine::Max, |b, i, r| {
                    Scalar::select((self.hit)(b, i, r), flat(r), Scalar::index(-1))
                });
                let count: i64 = self.over.iter().product();
                let out = b.map(&shape, |b, i| {
                    let at = b.read(last, i.iter().cloned());
                    let named = at.clone().ge(Scalar::index(0));
                    let r = reshape_index(self.over, &[count], &[at]);
                    Scalar::select(named, (self.update)(b, i, &r), b.read(self.data, i.iter().cloned()))
                });
                return Ok(out.into());
            }
            mode => op_bail!("updates of mode {mode}, which depend on their order, are not generated as code"),
        };
        let sum = b.reduce(&shape, self.over, combine, |b, i, r| {
            Scalar::select((self.hit)(b, i, r), (self.update)(b, i, r), neutral.clone())
        });
        let out = b.map(&shape, |b, i| {
            Scalar::binary(op, b.read(self.data, i.iter().cloned()), b.read(sum, i.iter().cloned()))
        });
        Ok(out.into())
    }
}

/// An index read as int64 and counted from the front.
fn lowered_place(index: Scalar, extent: i64) -> Scalar {
    let index = index.cast(DType::I64);
    Scalar::select(index.clone().lt(Scalar::index(0)), index.clone() + extent, index)
}

/// `scatter_elements`.
#[derive(Debug)]
struct ScatterElements;

impl Op for ScatterElements {
    op_head!(
        "scatter_elements",
        "data with updates[i] applied at i with indices[i] in place of its component along axis, for all i; negative indices
        count from the end, those outside are not allowed. reduction says how: it replaces the element, or is added,
        multiplied, averaged (the mean of the two), or the lesser or greater counts. C1: indices are integers, no
        longer than updates anywhere, and no longer than data except along axis. C2: updates have data's element type.",
        ["data", "indices", "updates"],
        [
            field("axis", AttrKind::Int, AttrDefault::Int(0)),
            field("reduction", AttrKind::OneOf(MODES), AttrDefault::Str("update"))
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, indices) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "indices")?);
        let updates = tensor_arg(args, 2, "updates")?;
        let axis = axis_of(attrs.int("axis"), x.rank())?;
        let exceeds = |a: Dim, b: Dim| matches!((a, b), (Dim::Known(a), Dim::Known(b)) if a > b);
        let longer = |k: usize| k != axis && exceeds(indices.shape[k], x.shape[k]);
        op_ensure!(
            indices.dtype.is_int()
                && indices.rank() == x.rank()
                && indices.rank() == updates.rank()
                && (0..x.rank()).all(|k| !longer(k) && !exceeds(indices.shape[k], updates.shape[k])),
            "C1: `data` is {x}, `indices` {indices} and `updates` {updates}"
        );
        op_ensure!(updates.dtype == x.dtype, "C2: `data` is {x} and `updates` {updates}");
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, indices, updates) = (args[0].tensor(), args[1].tensor(), args[2].tensor());
        let axis = axis_of(attrs.int("axis"), x.shape().len())?;
        let from = row_major_strides(indices.shape());
        let (given, to) = (row_major_strides(updates.shape()), row_major_strides(x.shape()));
        let rank = x.shape().len();
        let fits = |k: usize| {
            let n = indices.shape()[k];
            n <= updates.shape()[k] && (k == axis || n <= x.shape()[k])
        };
        op_ensure!(
            (0..rank).all(fits),
            "indices of shape {:?} are longer than updates of {:?} or data of {:?}",
            indices.shape(),
            updates.shape(),
            x.shape()
        );
        let mut pairs = Vec::with_capacity(indices.len());
        for (i, index) in indices.to_i64_vec().into_iter().enumerate() {
            let at = place(index, x.shape()[axis])?;
            let own = |k: usize| i / from[k] % indices.shape()[k];
            let source = (0..rank).map(|k| own(k) * given[k]).sum();
            let target = (0..rank).map(|k| if k == axis { at } else { own(k) } * to[k]).sum();
            pairs.push((source, target));
        }
        Ok(apply(x, updates, &pairs, attrs.str("reduction")).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque((0..3).map(|k| args[k].as_tensor().map_or(0, TensorType::rank)))
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [data, indices, updates] = [0, 1, 2].map(|k| args[k].tensor());
        let (shape, reach) = (b.shape(data).to_vec(), b.shape(indices).to_vec());
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let at = |i: &[Scalar], r: &[Scalar]| {
            let mut index = i.to_vec();
            index[axis] = r[0].clone();
            index
        };
        let hit = |b: &Builder, i: &[Scalar], r: &[Scalar]| {
            let inside = (0..shape.len())
                .filter(|&k| k != axis && reach[k] < shape[k])
                .fold(Scalar::bool(true), |all, k| all.and(i[k].clone().lt(Scalar::index(reach[k]))));
            let to = lowered_place(b.read(indices, at(i, r)), shape[axis]);
            Scalar::select(inside, Scalar::binary(BinOp::Eq, to, i[axis].clone()), Scalar::bool(false))
        };
        let update = |b: &Builder, i: &[Scalar], r: &[Scalar]| b.read(updates, at(i, r));
        Asked { data, over: &[reach[axis]], hit: &hit, update: &update }.lower(attrs.str("reduction"), b)
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |mode: &str, axis: i64, x: &[i64], i: &[i64], d| {
            sample([("reduction", mode.into()), ("axis", axis.into())], vec![t(x, d), t(i, DType::I64), t(i, d)])
        };
        vec![
            call("update", 0, &[4, 3], &[2, 3], DType::F32),
            call("update", -1, &[3, 5], &[2, 4], DType::I8),
            call("add", 1, &[2, 4, 2], &[2, 5, 2], DType::F32),
            call("mul", 0, &[4], &[3], DType::I32),
            call("min", 0, &[4, 2], &[3, 2], DType::F32),
            call("max", 0, &[4, 2], &[3, 1], DType::U8),
            call("mean", 0, &[4], &[3], DType::F32),
            sample(
                [("reduction", "add".into())],
                vec![t(&[4, 2], DType::F32), t(&[2, 2], DType::I64), t(&[3, 2], DType::F32)],
            ),
        ]
    }
}

/// `scatter_nd`.
#[derive(Debug)]
struct ScatterNd;

impl Op for ScatterNd {
    op_head!(
        "scatter_nd",
        "data with updates[y.., x..] applied at indices[0, y..], …, indices[M-1, y..], x.. for all y and x; negative indices
        count from the end, those outside are not allowed. mode says how: it replaces the element, or is added, multiplied, or
        the lesser or greater counts. Where updates have still more axes, of U elements, x counts those as well and a step along
        data's axis M - 1 is U elements long, updates beyond data's end being dropped. C1: M, the first extent of indices, is known and no more than data's axes.
        C2: indices are integers. C3: updates have the extents y of indices and then those of data from axis M.",
        ["data", "indices", "updates"],
        [field("mode", AttrKind::OneOf(MODES), AttrDefault::Str("update"))],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, indices) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "indices")?);
        let updates = tensor_arg(args, 2, "updates")?;
        let m = indices.shape.first().and_then(|d| d.known()).filter(|&m| m <= x.rank() as i64);
        let Some(m) = m else { op_bail!("C1: `data` is {x} and `indices` {indices}") };
        op_ensure!(indices.dtype.is_int(), "C2: `indices` is {indices}, but should hold integers");
        let want = [&indices.shape[1..], &x.shape[m as usize..]].concat();
        op_ensure!(
            updates.dtype == x.dtype
                && updates.rank() >= want.len()
                && want.iter().zip(updates.shape.iter()).all(|(a, b)| may_equal(*a, *b)),
            "C3: `data` is {x}, `indices` {indices} and `updates` {updates}"
        );
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, indices, updates) = (args[0].tensor(), args[1].tensor(), args[2].tensor());
        let m = indices.shape()[0];
        let inner: usize = updates.shape()[indices.shape().len() - 1..].iter().product();
        let strides: Vec<usize> = row_major_strides(&x.shape()[..m]).iter().map(|s| s * inner).collect();
        let places: usize = indices.shape()[1..].iter().product();
        let values = indices.to_i64_vec();
        let mut pairs = Vec::with_capacity(updates.len());
        for y in 0..places {
            let start = (0..m).try_fold(0, |sum, k| {
                Ok::<_, OpError>(sum + place(values[k * places + y], x.shape()[k])? * strides[k])
            })?;
            // Only updates of more axes than data has can reach beyond its end.
            pairs.extend((0..inner).map(|k| (y * inner + k, start + k)).filter(|&(_, to)| to < x.len()));
        }
        Ok(apply(x, updates, &pairs, attrs.str("mode")).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap::opaque((0..3).map(|k| args[k].as_tensor().map_or(0, TensorType::rank)))
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [data, indices, updates] = [0, 1, 2].map(|k| args[k].tensor());
        let (shape, index_shape) = (b.shape(data).to_vec(), b.shape(indices).to_vec());
        let m = index_shape[0] as usize;
        let ranks = (b.shape(updates).len(), index_shape.len() - 1 + shape.len() - m);
        op_ensure!(
            ranks.0 == ranks.1,
            "updates of {} axes, not {}, are not written by generated code",
            ranks.0,
            ranks.1
        );
        let hit = |b: &Builder, i: &[Scalar], r: &[Scalar]| {
            (0..m).fold(Scalar::bool(true), |all, k| {
                let index = b.read(indices, [&[Scalar::index(k as i64)], r].concat());
                all.and(Scalar::binary(BinOp::Eq, lowered_place(index, shape[k]), i[k].clone()))
            })
        };
        let update = |b: &Builder, i: &[Scalar], r: &[Scalar]| b.read(updates, [r, &i[m..]].concat());
        Asked { data, over: &index_shape[1..], hit: &hit, update: &update }.lower(attrs.str("mode"), b)
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |mode: &str, x: &[i64], i: &[i64], u: &[i64], d| {
            sample([("mode", mode.into())], vec![t(x, d), t(i, DType::I32), t(u, d)])
        };
        vec![
            call("update", &[4, 4], &[2, 3], &[3], DType::F32),
            call("add", &[4, 2], &[1, 3], &[3, 2], DType::F32),
            call("update", &[4, 3], &[1, 2, 2], &[2, 2, 3], DType::I8),
            call("mul", &[4, 4], &[2, 3], &[3], DType::I32),
            call("min", &[4], &[1, 3], &[3], DType::F32),
            call("max", &[4], &[1, 3], &[3], DType::U8),
        ]
    }
}
