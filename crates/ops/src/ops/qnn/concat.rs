//! Concatenation of quantized tensors of different scales.

use super::{
    fixed::{Factors, Rounding, factors, fixed_point},
    params::{check_quantized, check_single, read_param},
    quantize::{bounds, narrow, requantize_int, requantize_scalar},
};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work,
        nn::axis_of,
        op_bail, op_ensure,
        util::{may_equal, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Concatenate];

/// `qnn.concatenate`.
#[derive(Debug)]
struct Concatenate;

/// The fields of a tuple argument.
fn fields<'a>(args: &'a [Type], i: usize, name: &str) -> Result<&'a [Type], OpError> {
    match args.get(i).and_then(Type::as_tuple) {
        Some(fields) => Ok(fields),
        None => op_bail!("`{name}` should be a tuple"),
    }
}

impl Op for Concatenate {
    fn name(&self) -> &'static str {
        "qnn.concatenate"
    }
    fn doc(&self) -> &'static str {
        "The tensors, each requantized to the output's scale and zero point and clipped, one after another along axis.
        C1: data is a tuple of at least one tensor, all of one integer type and equal but for axis. C2: input_scales (float32)
        and input_zero_points (int32) are tuples of one number per tensor, those of the output single numbers."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "input_scales", "input_zero_points", "output_scale", "output_zero_point"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[AttrField::new("axis", AttrKind::Int, AttrDefault::Int(0))];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Injective
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (data, scales, zeros) =
            (fields(args, 0, "data")?, fields(args, 1, "input_scales")?, fields(args, 2, "input_zero_points")?);
        op_ensure!(
            scales.len() == data.len() && zeros.len() == data.len(),
            "C2: `data` has {} tensors, but there are {} scales and {} zero points",
            data.len(),
            scales.len(),
            zeros.len()
        );
        for k in 0..data.len() {
            check_single(scales, k, "input_scales", DType::F32)?;
            check_single(zeros, k, "input_zero_points", DType::I32)?;
        }
        check_single(args, 3, "output_scale", DType::F32)?;
        check_single(args, 4, "output_zero_point", DType::I32)?;
        let tensors: Vec<&TensorType> = data.iter().filter_map(Type::as_tensor).collect();
        op_ensure!(tensors.len() == data.len() && !data.is_empty(), "C1: `data` should be a tuple of tensors");
        let first = tensors[0];
        check_quantized(first, "data", &[DType::I8, DType::U8, DType::I16, DType::U16, DType::I32])?;
        let axis = axis_of(attrs.int("axis"), first.rank())?;
        let mut shape = first.shape.to_vec();
        let mut total = Some(0);
        for t in &tensors {
            let alike = t.dtype == first.dtype
                && t.rank() == first.rank()
                && (0..t.rank()).all(|k| k == axis || may_equal(t.shape[k], shape[k]));
            op_ensure!(alike, "C1: `data` holds {first} and {t}, which do not concatenate along axis {axis}");
            total = total.zip(t.shape[axis].known()).map(|(a, b)| a + b);
        }
        shape[axis] = total.map_or(Dim::Any, Dim::Known);
        Ok(TensorType::of(shape, first.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (data, scales, zeros) = (args[0].flatten(), args[1].flatten(), args[2].flatten());
        let (to_scale, to_zero) = (args[3].tensor().get_f64(0), args[4].tensor().get_i64(0));
        let (dtype, mut shape) = (data[0].dtype(), data[0].shape().to_vec());
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        shape[axis] = data.iter().map(|t| t.shape()[axis]).sum();
        let ((lo, hi), inner) = (bounds(dtype), shape[axis + 1..].iter().product::<usize>());
        let mut out = Tensor::zeros(dtype, &shape);
        let mut first = 0;
        for ((t, scale), zero) in data.iter().zip(&scales).zip(&zeros) {
            let factor = fixed_point(scale.get_f64(0) / to_scale);
            let row = t.shape()[axis] * inner;
            for i in 0..t.len() {
                let moved = requantize_int(t.get_i64(i), zero.get_i64(0), factor, to_zero, Rounding::Upward);
                out.set_i64(i / row * shape[axis] * inner + first + i % row, moved.clamp(lo, hi));
            }
            first += row;
        }
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let tensors: Vec<TensorType> = args.iter().flat_map(|t| t.flatten().unwrap_or_default()).collect();
        let count = args[0].as_tuple().map_or(0, <[Type]>::len);
        let role = |t: &TensorType, of_data: bool| -> Vec<AxisRole> {
            let axis = axis_of(attrs.int("axis"), t.rank()).ok();
            let maps = |k| if of_data && Some(k) != axis { AxisRole::Maps(k) } else { AxisRole::Opaque };
            (0..t.rank()).map(maps).collect()
        };
        AxisMap(tensors.iter().enumerate().map(|(k, t)| role(t, k < count)).collect())
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(8.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let list = |o: &Operand| o.fields().iter().map(Operand::tensor).collect::<Vec<TensorId>>();
        let (data, scales, zeros) = (list(&args[0]), list(&args[1]), list(&args[2]));
        let (to_scale, to_zero) = (args[3].tensor(), args[4].tensor());
        let (dtype, mut shape) = (b.dtype(data[0]), b.shape(data[0]).to_vec());
        let axis = axis_of(attrs.int("axis"), shape.len())?;
        let factors: Vec<Factors> = scales.iter().map(|&s| factors(s, to_scale, b)).collect();
        let ends: Vec<i64> = data
            .iter()
            .scan(0, |end, &t| {
                *end += b.shape(t)[axis];
                Some(*end)
            })
            .collect();
        shape[axis] = *ends.last().expect("C1");
        let out = b.map(&shape, |b, i| {
            // The last tensor, unless an earlier one ends after the index.
            let mut value: Option<Scalar> = None;
            for k in (0..data.len()).rev() {
                let mut index = i.to_vec();
                index[axis] = i[axis].clone() - if k == 0 { 0 } else { ends[k - 1] };
                let (zero, factor) = (read_param(b, zeros[k], None), factors[k].read(b, None));
                let to_zero = read_param(b, to_zero, None);
                let moved = requantize_scalar(b.read(data[k], index), zero, factor, to_zero, Rounding::Upward);
                value = Some(match value {
                    None => moved,
                    Some(later) => Scalar::select(i[axis].clone().lt(Scalar::index(ends[k])), moved, later),
                });
            }
            narrow(value.expect("C1"), dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |shapes: &[&[i64]], axis: i64, dtype: DType| {
            let each = |d: DType| Type::tuple(shapes.iter().map(|_| Type::tensor(&[], d)));
            Sample {
                attrs: vec![("axis", axis.into())],
                args: vec![
                    Type::tuple(shapes.iter().map(|s| Type::tensor(s, dtype))),
                    each(DType::F32),
                    each(DType::I32),
                    Type::tensor(&[], DType::F32),
                    Type::tensor(&[], DType::I32),
                ],
            }
        };
        vec![
            call(&[&[2, 3], &[1, 3]], 0, DType::U8),
            call(&[&[2, 3, 2], &[2, 1, 2], &[2, 2, 2]], 1, DType::I8),
            call(&[&[2, 3]], -1, DType::I8),
        ]
    }
}
