//! Coordinates, windows and chosen points of grids.

use super::index::nearest;
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_bail, op_ensure,
        util::{
            axis_of, broadcast_extents, broadcast_read, broadcast_shapes, broadcast_sources, bytes, field, ints_attr,
            lowered_shapes, op_head, sample, signed_strides, t, tensor_arg, tuple_arg, value_shapes, work_per_element,
        },
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Meshgrid, &SlidingWindow, &AdvIndex];

/// The tensors of a tuple argument.
fn fields(arg: &Value) -> Result<Vec<&Tensor>, OpError> {
    match arg {
        Value::Tuple(f) => Ok(f.iter().map(Value::tensor).collect()),
        Value::Tensor(_) => op_bail!("the argument is a tensor, but should be a tuple of tensors"),
    }
}

/// `meshgrid`.
#[derive(Debug)]
struct Meshgrid;

impl Meshgrid {
    /// Which axis of the result argument `k` of `n` runs along.
    fn axis(attrs: &Attrs, k: usize, n: usize) -> usize {
        if attrs.str("indexing") == "xy" && n >= 2 && k < 2 { 1 - k } else { k }
    }
}

impl Op for Meshgrid {
    op_head!(
        "meshgrid",
        "For each of the n lines in data an array of n axes that holds the line along one of them and repeats it along the
        others: line k along axis k, with indexing xy the first two exchanged. C1: all have the same element type and no axes,
        or one.",
        ["data"],
        [field("indexing", AttrKind::OneOf(&["ij", "xy"]), AttrDefault::Str("ij"))],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let lines = tuple_arg(args, 0, "data")?;
        let Some(first) = lines.first() else { op_bail!("`data` holds no tensors") };
        op_ensure!(lines.iter().all(|x| x.rank() <= 1 && x.dtype == first.dtype), "C1: `data` is {}", args[0]);
        let mut shape = vec![Dim::Known(1); lines.len()];
        for (k, x) in lines.iter().enumerate() {
            shape[Meshgrid::axis(attrs, k, lines.len())] = x.shape.first().copied().unwrap_or(Dim::Known(1));
        }
        let grid = Type::from(TensorType::of(shape, first.dtype));
        Ok(Type::tuple(vec![grid; lines.len()]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let lines = fields(&args[0])?;
        let shape = &value_shapes(self, attrs, args)?[0];
        let grid = |(k, x): (usize, &&Tensor)| {
            let mut steps = vec![0; shape.len()];
            steps[Meshgrid::axis(attrs, k, lines.len())] = x.shape().len() as i64;
            x.strided(shape, 0, &steps).into()
        };
        Ok(Value::Tuple(lines.iter().enumerate().map(grid).collect()))
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let lines = tuple_arg(args, 0, "data").unwrap_or_default();
        let role =
            |(k, x): (usize, &&TensorType)| vec![AxisRole::Maps(Meshgrid::axis(attrs, k, lines.len())); x.rank()];
        // Each line is only in one of the results, so no axis of theirs maps to an axis of all.
        match lines.len() {
            1 => AxisMap(lines.iter().enumerate().map(role).collect()),
            _ => AxisMap::opaque(lines.iter().map(|x| x.rank())),
        }
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let lines: Vec<_> = args[0].fields().iter().map(Operand::tensor).collect();
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let grids = lines.iter().enumerate().map(|(k, &x)| {
            let axis = Meshgrid::axis(attrs, k, lines.len());
            b.map(&shape, |b, i| b.read(x, b.shape(x).iter().map(|_| i[axis].clone()).collect::<Vec<_>>())).into()
        });
        Ok(Operand::Tuple(grids.collect()))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |indexing: &str, lines: &[&[i64]], d| {
            sample([("indexing", indexing.into())], vec![Type::tuple(lines.iter().map(|s| t(s, d)))])
        };
        vec![
            call("ij", &[&[3], &[5]], DType::F32),
            call("xy", &[&[3], &[2], &[4]], DType::I8),
            call("xy", &[&[3], &[]], DType::F32),
            call("ij", &[&[3]], DType::I64),
        ]
    }
}

/// `sliding_window`.
#[derive(Debug)]
struct SlidingWindow;

/// Where windows slide: the first axis, and extent and stride of the window per axis.
struct Sliding {
    axis: usize,
    window: Vec<i64>,
    strides: Vec<i64>,
}

impl Sliding {
    fn new(attrs: &Attrs, rank: usize) -> Result<Sliding, OpError> {
        let axis = attrs.int("axis");
        op_ensure!((0..rank as i64).contains(&axis), "C1: `axis` is {axis}, but `data` has {rank} axes");
        let (window, strides) = (ints_attr(attrs, "window_shape")?, ints_attr(attrs, "strides")?);
        let fits = |v: &[i64]| v.len() + axis as usize == rank && v.iter().all(|&n| n > 0);
        op_ensure!(
            fits(&window) && fits(&strides),
            "C2: `window_shape` is {window:?} and `strides` {strides:?}, for {} axes",
            rank as i64 - axis
        );
        Ok(Sliding { axis: axis_of(axis, rank)?, window, strides })
    }
}

impl Op for SlidingWindow {
    op_head!(
        "sliding_window",
        "All windows of window_shape over the axes of data from axis on, strides apart:
        out[b.., i.., w..] = data[b.., i * strides + w..]. C1: axis is one of data's, counted from the front. C2: window_shape
        and strides have a positive number per axis from there on. C3: no window is longer than its axis.",
        ["data"],
        [
            field("axis", AttrKind::Int, AttrDefault::Required),
            field("window_shape", AttrKind::Ints, AttrDefault::Required),
            field("strides", AttrKind::Ints, AttrDefault::Required)
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let s = Sliding::new(attrs, x.rank())?;
        let mut shape = x.shape[..s.axis].to_vec();
        for ((d, &w), &step) in x.shape[s.axis..].iter().zip(&s.window).zip(&s.strides) {
            op_ensure!(d.known().is_none_or(|n| n >= w), "C3: `data` is {x}, and a window has {w} elements");
            shape.push(d.known().map_or(Dim::Any, |n| Dim::Known((n - w) / step + 1)));
        }
        shape.extend(s.window.iter().map(|&w| Dim::Known(w)));
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let s = Sliding::new(attrs, x.shape().len())?;
        let own = signed_strides(x.shape());
        let moved: Vec<i64> = own[s.axis..].iter().zip(&s.strides).map(|(a, b)| a * b).collect();
        let steps = [&own[..s.axis], &moved, &own[s.axis..]].concat();
        Ok(x.strided(&value_shapes(self, attrs, args)?[0], 0, &steps).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let axis = attrs.int("axis");
        AxisMap(vec![(0..rank).map(|k| if (k as i64) < axis { AxisRole::Maps(k) } else { AxisRole::Opaque }).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let s = Sliding::new(attrs, b.shape(x).len())?;
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let n = s.window.len();
        let out = b.map(&shape, |b, i| {
            let place = |k: usize| i[s.axis + k].clone() * s.strides[k] + i[s.axis + n + k].clone();
            b.read(x, i[..s.axis].iter().cloned().chain((0..n).map(place)).collect::<Vec<Scalar>>())
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |axis: i64, window: &[i64], strides: &[i64], x: &[i64], d| {
            let attrs = [("axis", axis.into()), ("window_shape", window.into()), ("strides", strides.into())];
            sample(attrs, vec![t(x, d)])
        };
        vec![
            call(1, &[3, 2], &[1, 2], &[2, 3, 6], DType::F32),
            call(0, &[2], &[3], &[7], DType::I8),
            call(2, &[4], &[2], &[2, 2, 4], DType::F32),
        ]
    }
}

/// `adv_index`.
#[derive(Debug)]
struct AdvIndex;

impl Op for AdvIndex {
    op_head!(
        "adv_index",
        "The first of inputs indexed by the others, which broadcast against each other: out[i.., j..] = data[a[i..], b[i..], j..].
        Indices outside are not allowed. C1: there is an index tensor, and no more than data has axes. C2: indices are integers.
        C3: their shapes broadcast.",
        ["inputs"],
        [],
        Injective
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let all = tuple_arg(args, 0, "inputs")?;
        let Some((x, indices)) = all.split_first() else { op_bail!("`inputs` holds no tensors") };
        op_ensure!(!indices.is_empty() && indices.len() <= x.rank(), "C1: `inputs` is {}", args[0]);
        op_ensure!(indices.iter().all(|i| i.dtype.is_int()), "C2: `inputs` is {}", args[0]);
        let first = indices[0].shape.to_vec();
        let shape = indices[1..].iter().try_fold(first, |all, i| broadcast_shapes(&all, &i.shape));
        let shape = shape.map_err(|e| OpError(format!("C3: {e}")))?;
        Ok(TensorType::of([&shape, &x.shape[indices.len()..]].concat(), x.dtype).into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let all = fields(&args[0])?;
        let (x, indices) = (all[0], &all[1..]);
        let chosen = broadcast_extents(&indices.iter().map(|i| i.shape()).collect::<Vec<_>>())?;
        let strides = signed_strides(x.shape());
        let mut starts = vec![0; chosen.iter().product()];
        for (k, index) in indices.iter().enumerate() {
            let (from, n) = (broadcast_sources(index.shape(), &chosen), x.shape()[k] as i64);
            for (at, start) in starts.iter_mut().enumerate() {
                let i = index.get_i64(from.at(at));
                op_ensure!((0..n).contains(&i), "index {i} lies outside {n} elements");
                *start += (i * strides[k]) as usize;
            }
        }
        let rest = &x.shape()[indices.len()..];
        let inner: usize = rest.iter().product();
        Ok(x.pick(&[&chosen, rest].concat(), |i| Some(starts[i / inner] + i % inner)).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let all = tuple_arg(args, 0, "inputs").unwrap_or_default();
        let Some((x, indices)) = all.split_first() else { return AxisMap(vec![]) };
        let chosen = indices.iter().map(|i| i.rank()).max().unwrap_or(0);
        let (n, rank) = (indices.len(), x.rank());
        let data = (0..rank).map(|k| if k < n { AxisRole::Opaque } else { AxisRole::Maps(k - n + chosen) }).collect();
        let index = |i: &&TensorType| {
            let role = |(k, d): (usize, &Dim)| match d {
                Dim::Known(1) => AxisRole::Broadcasts(k + chosen - i.rank()),
                Dim::Known(_) => AxisRole::Maps(k + chosen - i.rank()),
                _ => AxisRole::Opaque,
            };
            i.shape.iter().enumerate().map(role).collect()
        };
        AxisMap([data].into_iter().chain(indices.iter().map(index)).collect())
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let indices: f64 = args[0].as_tuple().unwrap_or_default().iter().skip(1).map(bytes).sum();
        Work { flops: 0.0, bytes_read: indices + bytes(out), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let all: Vec<_> = args[0].fields().iter().map(Operand::tensor).collect();
        let (x, indices) = (all[0], &all[1..]);
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let chosen = indices.iter().map(|i| b.shape(*i).len()).max().unwrap_or(0);
        let out = b.map(&shape, |b, i| {
            let at = indices
                .iter()
                .zip(b.shape(x))
                .map(|(&index, &extent)| nearest(broadcast_read(b, index, &i[..chosen]).cast(DType::I64), extent));
            b.read(x, at.chain(i[chosen..].iter().cloned()).collect::<Vec<_>>())
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |x: &[i64], indices: &[&[i64]], d, i| {
            sample([], vec![Type::tuple([t(x, d)].into_iter().chain(indices.iter().map(|s| t(s, i))))])
        };
        vec![
            call(&[4, 5], &[&[3, 2], &[3, 1]], DType::F32, DType::I64),
            call(&[4, 4, 2], &[&[1, 2], &[3, 1]], DType::I8, DType::I32),
            call(&[5, 3], &[&[2, 2]], DType::F32, DType::U8),
            call(&[4, 4], &[&[], &[3]], DType::F32, DType::I32),
        ]
    }
}
