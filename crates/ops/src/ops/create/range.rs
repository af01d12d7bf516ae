//! Sequences and one-hot encodings.

use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, StaticCall, Work, op, op_bail,
        op_ensure,
        util::{axis_of, bytes, field, lowered_shapes, op_head, sample, t, tensor_arg, value_shapes, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Arange, &OneHot];

/// `arange`.
#[derive(Debug)]
struct Arange;

impl Arange {
    /// Number of elements from `start` to before `stop`.
    fn count(start: f64, stop: f64, step: f64) -> Result<usize, OpError> {
        let n = ((stop - start) / step).ceil().max(0.0);
        op_ensure!(
            step != 0.0 && n <= i32::MAX as f64,
            "C2: from {start} to {stop} in steps of {step} is not a sequence"
        );
        Ok(n as usize)
    }

    /// Start, stop and step, where the attributes hold them as constants.
    fn constants(attrs: &Attrs) -> Option<[f64; 3]> {
        let get = |name: &str| match attrs.get(name)? {
            AttrValue::Tensor(c) if c.0.len() == 1 => Some(c.0.get_f64(0)),
            v => v.as_float(),
        };
        Some([get("start")?, get("stop")?, get("step")?])
    }

    fn dtype(attrs: &Attrs) -> Result<DType, OpError> {
        attrs.opt_dtype("dtype").ok_or_else(|| OpError("`dtype` is not set".into()))
    }
}

impl Op for Arange {
    op_head!(
        "arange",
        "start, start + step, start + 2 step, … before stop. The attributes of these names repeat the arguments; where they
        are constants, the result's extent is known. C1: the arguments have no axes and element type dtype. C2: the sequence
        is finite.",
        ["start", "end", "step"],
        [
            field("start", AttrKind::Any, AttrDefault::None),
            field("stop", AttrKind::Any, AttrDefault::None),
            field("step", AttrKind::Any, AttrDefault::None),
            field("dtype", AttrKind::DType, AttrDefault::Required)
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let dtype = Arange::dtype(attrs)?;
        for (i, name) in ["start", "end", "step"].into_iter().enumerate() {
            let v = tensor_arg(args, i, name)?;
            op_ensure!(v.rank() == 0 && v.dtype == dtype, "C1: `{name}` is {v}, but should be {dtype} without axes");
        }
        let extent = match Arange::constants(attrs) {
            Some([start, stop, step]) => Dim::Known(Arange::count(start, stop, step)? as i64),
            None => Dim::Any,
        };
        Ok(TensorType::of([extent], dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let dtype = Arange::dtype(attrs)?;
        let [start, stop, step] = [0, 1, 2].map(|k| args[k].tensor());
        let [a, b, c] = [start, stop, step].map(|v| v.get_f64(0));
        let n = Arange::count(a, b, c)?;
        Ok(match dtype.is_float() {
            true => Tensor::from_f64_fn(dtype, &[n], |i| a + c * i as f64),
            false => {
                let (a, c) = (start.get_i64(0), step.get_i64(0));
                Tensor::from_i64_fn(dtype, &[n], |i| a.wrapping_add(c.wrapping_mul(i as i64)))
            }
        }
        .into())
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap(vec![vec![], vec![], vec![]])
    }
    fn work(&self, _: &Attrs, _: &[Type], out: &Type) -> Work {
        Work { flops: 0.0, bytes_read: 0.0, bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let Some([start, stop, step]) = Arange::constants(attrs) else {
            op_bail!("the length of the sequence follows from values, not from types");
        };
        let n = Arange::count(start, stop, step)? as i64;
        let out = b.map(&[n], |b, i| {
            let [start, step] = [0, 2].map(|k| b.read(args[k].tensor(), []));
            let dtype = start.dtype();
            start + step * i[0].clone().cast(dtype)
        });
        Ok(out.into())
    }
    fn decided_by(&self, attrs: &Attrs) -> &'static [usize] {
        if Arange::constants(attrs).is_some() { &[] } else { &[0, 1, 2] }
    }
    fn to_static(&self, attrs: &Attrs, values: &[&Tensor]) -> Result<StaticCall, OpError> {
        let known = ["start", "stop", "step"].into_iter().zip(values);
        let attrs = known.fold(attrs.clone(), |a, (name, v)| a.with(name, (*v).clone()));
        Ok(StaticCall { op: op("arange"), attrs, args: vec![0, 1, 2] })
    }
    fn samples(&self) -> Vec<Sample> {
        let scalars = |d| vec![t(&[], d); 3];
        vec![
            sample([("dtype", DType::I32.into())], scalars(DType::I32)),
            sample([("dtype", DType::F32.into())], scalars(DType::F32)),
        ]
    }
}

/// `one_hot`.
#[derive(Debug)]
struct OneHot;

impl OneHot {
    fn axis(attrs: &Attrs, rank: usize) -> Result<usize, OpError> {
        axis_of(attrs.int("axis"), rank + 1)
    }
}

impl Op for OneHot {
    op_head!(
        "one_hot",
        "on_value where the index along the new axis, of extent depth, equals indices, else off_value, as elements of dtype.
        C1: indices are integers. C2: depth is positive. C3: the values have no axes and one element type.",
        ["indices", "on_value", "off_value"],
        [
            field("depth", AttrKind::Int, AttrDefault::Int(1)),
            field("axis", AttrKind::Int, AttrDefault::Int(-1)),
            field("dtype", AttrKind::DType, AttrDefault::None)
        ],
        Broadcast
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let indices = tensor_arg(args, 0, "indices")?;
        let (on, off) = (tensor_arg(args, 1, "on_value")?, tensor_arg(args, 2, "off_value")?);
        op_ensure!(indices.dtype.is_int(), "C1: `indices` is {indices}, but should hold integers");
        op_ensure!(attrs.int("depth") > 0, "C2: `depth` is {}, but should be positive", attrs.int("depth"));
        op_ensure!(
            on.rank() == 0 && off.rank() == 0,
            "C3: `on_value` is {on} and `off_value` {off}, but they should have no axes"
        );
        let mut shape = indices.shape.to_vec();
        shape.insert(OneHot::axis(attrs, shape.len())?, Dim::Known(attrs.int("depth")));
        Ok(TensorType::of(shape, attrs.opt_dtype("dtype").unwrap_or(on.dtype)).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (indices, on, off) = (args[0].tensor(), args[1].tensor(), args[2].tensor());
        let axis = OneHot::axis(attrs, indices.shape().len())?;
        let dtype = attrs.opt_dtype("dtype").unwrap_or(on.dtype());
        let depth = attrs.int("depth") as usize;
        let inner: usize = indices.shape()[axis..].iter().product();
        let at = indices.to_i64_vec();
        let hot = |i: usize| at[i / (inner * depth) * inner + i % inner] == (i / inner % depth) as i64;
        let shape = &value_shapes(self, attrs, args)?[0];
        let pick = |i| if hot(i) { on } else { off };
        Ok(match on.dtype().is_float() {
            true => Tensor::from_f64_fn(dtype, shape, |i| pick(i).get_f64(0)),
            false => Tensor::from_i64_fn(dtype, shape, |i| pick(i).get_i64(0)),
        }
        .into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(axis) = OneHot::axis(attrs, rank) else { return AxisMap::opaque([rank, 0, 0]) };
        let role = |k| AxisRole::Maps(if k < axis { k } else { k + 1 });
        AxisMap(vec![(0..rank).map(role).collect(), vec![], vec![]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [indices, on, off] = [0, 1, 2].map(|k| args[k].tensor());
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let axis = OneHot::axis(attrs, shape.len() - 1)?;
        let dtype = attrs.opt_dtype("dtype").unwrap_or(b.dtype(on));
        let out = b.map(&shape, |b, i| {
            let mut index = i.to_vec();
            let place = index.remove(axis);
            let hot = Scalar::binary(BinOp::Eq, b.read(indices, index).cast(DType::I64), place);
            Scalar::select(hot, b.read(on, []).cast(dtype), b.read(off, []).cast(dtype))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let args = |s: &[i64], i, d| vec![t(s, i), t(&[], d), t(&[], d)];
        let dtype = |d: DType| ("dtype", d.into());
        vec![
            sample([("depth", 4.into()), dtype(DType::F32)], args(&[3], DType::I32, DType::F32)),
            sample([("depth", 5.into()), ("axis", 0.into()), dtype(DType::I8)], args(&[2, 3], DType::I64, DType::I32)),
            sample([("depth", 3.into()), ("axis", 1.into()), dtype(DType::F32)], args(&[2, 2], DType::U8, DType::I32)),
        ]
    }
}
