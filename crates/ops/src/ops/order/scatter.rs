//! Updates at places that index tensors name. Where a place is named twice, updates apply in the order of the indices.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Nest, Operand, Scalar},
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
    let unsigned = data.dtype() == DType::U64;
    let less = |a: i64, b: i64| if unsigned { (a as u64) < b as u64 } else { a < b };
    // The sum wraps as an element does before it is halved.
    let mean = |a: i64, b: i64| {
        let sum = Tensor::from_i64_fn(data.dtype(), &[], |_| a.wrapping_add(b)).get_i64(0);
        match data.dtype() {
            DType::Bool => a & b,
            DType::U64 => (sum as u64 / 2) as i64,
            _ => sum / 2,
        }
    };
    for &(u, to) in pairs {
        let (a, b) = (out[to], us[u]);
        out[to] = match mode {
            "add" => a.wrapping_add(b),
            "mul" => a.wrapping_mul(b),
            "mean" => mean(a, b),
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

/// What an element becomes by an update.
fn updated(mode: &str, element: Scalar, update: Scalar) -> Scalar {
    let dtype = element.dtype();
    let op = match mode {
        "add" => BinOp::Add,
        "mul" => BinOp::Mul,
        // Where either is NaN, the element stays.
        "min" => return Scalar::binary(BinOp::Min, update, element),
        "max" => return Scalar::binary(BinOp::Max, update, element),
        "mean" if dtype == DType::Bool => BinOp::And,
        "mean" => return (element + update) / Scalar::int(2, dtype),
        _ => return update,
    };
    Scalar::binary(op, element, update)
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
        multiplied, averaged (the mean of the two), or the smaller or greater counts. C1: indices are integers, no
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
        let mode = attrs.str("reduction");
        let out = b.routine(|r| {
            let out = r.output_from(&shape, |b, i| b.read(data, i.iter().cloned()));
            let apply = |r: &mut Nest<'_>, outer: &[Scalar], k: &Scalar, inner: &[Scalar]| {
                let index = [outer, std::slice::from_ref(k), inner].concat();
                let at = r.let_(lowered_place(r.read(indices, index.iter().cloned()), shape[axis]));
                let target = [outer, std::slice::from_ref(&at), inner].concat();
                let inside = at.clone().ge(Scalar::index(0)).and(at.lt(Scalar::index(shape[axis])));
                r.if_(inside, |r| {
                    let update = r.read(updates, index.iter().cloned());
                    let value = updated(mode, r.read(out, target.iter().cloned()), update);
                    r.store(out, target.iter().cloned(), value);
                });
            };
            // Lines along the axis don't touch each other.
            let (outer, inner) = (&reach[..axis], &reach[axis + 1..]);
            match outer.iter().product::<i64>() > 1 {
                true => r.parallel_each(outer, |r, o| {
                    r.for_(reach[axis], |r, k| r.for_each(inner, |r, i| apply(r, o, &k, i)));
                }),
                false => r.parallel_each(inner, |r, i| {
                    r.for_each(outer, |r, o| r.for_(reach[axis], |r, k| apply(r, o, &k, i)));
                }),
            }
            out
        });
        Ok(out.into())
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
            call("mean", 0, &[4, 2], &[3, 2], DType::I8),
            call("add", 1, &[2, 4], &[1, 3], DType::F16),
            call("max", 0, &[4], &[3], DType::Bool),
            call("mean", 0, &[4], &[3], DType::Bool),
            call("update", 0, &[4, 2], &[0, 2], DType::F32),
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
        the smaller or greater counts. Where updates have still more axes, of U elements, x counts those as well and a step along
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
        let given = b.shape(updates).to_vec();
        let m = index_shape[0] as usize;
        let (outer, slice) = given.split_at(index_shape.len() - 1);
        let inner: i64 = slice.iter().product();
        let extents: Vec<usize> = shape[..m].iter().map(|&n| n as usize).collect();
        let strides = row_major_strides(&extents);
        let len: i64 = shape.iter().product();
        let beyond = inner > shape[m..].iter().product();
        let mode = attrs.str("mode");
        // Parts of slices don't touch each other, unless slices overlap.
        const PART: i64 = 512;
        let part = if beyond { inner } else { PART.min(inner) };
        let all_sizes = b.is_for_all_sizes();
        let out = b.routine(|r| {
            let out = r.output_from(&shape, |b, i| b.read(data, i.iter().cloned()));
            r.parallel_tiles(&[], inner, part.max(1), |r, _, first, size| {
                r.for_each(outer, |r, y| {
                    let (mut start, mut inside) = (Scalar::index(0), Scalar::bool(true));
                    for k in 0..m {
                        let index = r.read(indices, [&[Scalar::index(k as i64)], y].concat());
                        let at = r.let_(lowered_place(index, shape[k]));
                        inside =
                            inside.and(at.clone().ge(Scalar::index(0))).and(at.clone().lt(Scalar::index(shape[k])));
                        start = start + at * (strides[k] as i64 * inner);
                    }
                    r.if_(inside, |r| {
                        let start = r.let_(start);
                        r.for_(size, |r, k| {
                            let x = r.let_index(first + k, inner);
                            let to = r.let_(start + x.clone());
                            let from = [y, &reshape_index(slice, &[inner], &[x], all_sizes)].concat();
                            let apply = |r: &mut Nest<'_>| {
                                let value = updated(mode, r.read_flat(out, to.clone()), r.read(updates, from));
                                r.store_flat(out, to.clone(), value);
                            };
                            match beyond {
                                true => r.if_(to.clone().lt(Scalar::index(len)), apply),
                                false => apply(r),
                            }
                        });
                    });
                });
            });
            out
        });
        Ok(out.into())
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
            call("mean", &[4], &[1, 3], &[3], DType::F32),
            call("add", &[4, 4, 2], &[2, 5], &[5, 2], DType::BF16),
            call("add", &[5, 600], &[1, 3], &[3, 600], DType::F32),
            call("update", &[8], &[1, 2], &[2, 2], DType::F32),
            call("update", &[4, 3], &[0, 2], &[2, 4, 3], DType::I64),
        ]
    }
}
