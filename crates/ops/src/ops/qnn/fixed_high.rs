//! Multiplication by fixed-point numbers below one quarter, of which only the upper words of products count.

use super::fixed::{POINT, Rounding, check_factors, factor_axes, shift_multiply};
use crate::{
    ir::{Attrs, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Op, OpError, Sample, Work, op_ensure,
        util::{field, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// `fixed_point_multiply_high_per_axis`.
#[derive(Debug)]
pub(super) struct FixedPointMultiplyHighPerAxis;

/// The least shift beyond that of the significand's point: with it products are shifted by more than a word.
const LEAST: i64 = 2;

impl Op for FixedPointMultiplyHighPerAxis {
    op_head!(
        "fixed_point_multiply_high_per_axis",
        "out = data * m * 2^(-31 - s), halves rounded up, wrapped to 32 bits, where s is rshift, at least 2 and at most 31; m and rshift are read at
        the indices along axes: fixed_point_multiply_per_axis without left shifts. C1: the elements are int32. C2: m and rshift are int32, of the
        extents of axes. (Of resat's own making.)",
        ["data", "fp_multiplier", "right_shift"],
        [field("axes", AttrKind::Ints, AttrDefault::Required)],
        Broadcast
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.dtype == DType::I32, "C1: `data` is {x}, but should be of int32");
        check_factors(self, args, &factor_axes(attrs, x.rank())?)?;
        Ok(args[0].clone())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, m, right] = [0, 1, 2].map(|i| args[i].tensor());
        let axes = factor_axes(attrs, x.shape().len())?;
        let strides = crate::tensor::row_major_strides(x.shape());
        let out = Tensor::from_i64_fn(DType::I32, x.shape(), |i| {
            let at = axes.iter().fold(0, |at, &a| at * x.shape()[a] + i / strides[a] % x.shape()[a]);
            let right = POINT + right.get_i64(at).clamp(LEAST, POINT);
            shift_multiply(x.get_i64(i), m.get_i64(at), 0, right, Rounding::Upward)
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, |t| t.rank());
        match factor_axes(attrs, rank) {
            Ok(axes) => {
                let vector: Vec<AxisRole> = axes.into_iter().map(AxisRole::Maps).collect();
                AxisMap(vec![(0..rank).map(AxisRole::Maps).collect(), vector.clone(), vector])
            }
            Err(_) => AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, |t| t.rank()))),
        }
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(3.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, m, right] = [0, 1, 2].map(|i| args[i].tensor());
        let shape = b.shape(x).to_vec();
        let axes = factor_axes(attrs, shape.len())?;
        let int = |i: i64| Scalar::int(i, DType::I32);
        let shr = |x: Scalar, by: Scalar| Scalar::binary(BinOp::Shr, x, by);
        let out = b.map(&shape, |b, i| {
            let read = |t| b.read(t, axes.iter().map(|&a| i[a].clone()));
            let long = |x: Scalar| x.cast(DType::I64);
            let word = Scalar::int(POINT + 1, DType::I64);
            let high =
                Scalar::mul_shift(long(b.read(x, i.iter().cloned())), long(read(m)), Scalar::int(0, DType::I64), word);
            // Of the last bit but one, half of it is known; what lies below it rounds nothing up.
            let less = read(right).max(int(LEAST)).min(int(POINT)) - int(LEAST);
            shr(shr(high, less) + int(1), int(1))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let i = DType::I32;
        let call = |axes: &[i64], x: &[i64], m: &[i64]| {
            sample([("axes", axes.to_vec().into())], vec![t(x, i), t(m, i), t(m, i)])
        };
        vec![call(&[1], &[2, 3, 4], &[3]), call(&[1, 4], &[1, 2, 3, 2, 16], &[2, 16])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The upper word, shifted by all but one place, and rounded by that one: as exact as 64 bits.
    #[test]
    fn upper_words_are_enough() {
        for seed in 0..20_000u64 {
            let draw = |k: u64| (seed * 3 + k + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let x = i64::from((draw(0) >> 32) as i32 >> (seed % 30));
            let m = i64::from((draw(1) >> 33) as i32);
            let s = LEAST + (draw(2) >> 40) as i64 % (POINT - LEAST + 1);
            let high = ((x * m) >> 32) as i32;
            let got = ((high >> (s - LEAST)) + 1) >> 1;
            assert_eq!(i64::from(got), shift_multiply(x, m, 0, POINT + s, Rounding::Upward), "{x} {m} {s}");
        }
    }
}
