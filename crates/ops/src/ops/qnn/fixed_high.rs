//! Multiplication by fixed-point numbers below one quarter, of which only the upper words of products count.

use super::fixed::{check_factors, factor_axes};
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

/// Bits of a word.
const WORD: i64 = 32;

impl Op for FixedPointMultiplyHighPerAxis {
    op_head!(
        "fixed_point_multiply_high_per_axis",
        "out = (high + half) >> shift, wrapped to 32 bits, where high is the upper word of data * m, all of it of int32; m, half and shift are read at the
        indices along axes. A shift by more than 31 or less than 0 leaves the sign alone. With half = 2^(s - 2) and shift = s - 1 it is
        fixed_point_multiply_per_axis without left shifts, for right shifts s from 2 to 31. C1: the elements are int32. C2: m, half and shift are int32,
        of the extents of axes. (Of resat's own making.)",
        ["data", "fp_multiplier", "half", "right_shift"],
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
        let [x, m, half, right] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let axes = factor_axes(attrs, x.shape().len())?;
        let strides = crate::tensor::row_major_strides(x.shape());
        let out = Tensor::from_i64_fn(DType::I32, x.shape(), |i| {
            let at = axes.iter().fold(0, |at, &a| at * x.shape()[a] + i / strides[a] % x.shape()[a]);
            let high = (x.get_i64(i) * m.get_i64(at)) >> WORD;
            let right = u64::try_from(right.get_i64(at)).map_or(31, |s| s.min(31));
            ((high as i32).wrapping_add(half.get_i64(at) as i32) >> right).into()
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, |t| t.rank());
        match factor_axes(attrs, rank) {
            Ok(axes) => {
                let vector: Vec<AxisRole> = axes.into_iter().map(AxisRole::Maps).collect();
                AxisMap(vec![(0..rank).map(AxisRole::Maps).collect(), vector.clone(), vector.clone(), vector])
            }
            Err(_) => AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, |t| t.rank()))),
        }
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(3.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, m, half, right] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let shape = b.shape(x).to_vec();
        let axes = factor_axes(attrs, shape.len())?;
        let out = b.map(&shape, |b, i| {
            let read = |t| b.read(t, axes.iter().map(|&a| i[a].clone()));
            let long = |x: Scalar| x.cast(DType::I64);
            let (none, word) = (Scalar::int(0, DType::I64), Scalar::int(WORD, DType::I64));
            let high = Scalar::mul_shift(long(b.read(x, i.iter().cloned())), long(read(m)), none, word);
            Scalar::binary(BinOp::Shr, high + read(half), read(right))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let i = DType::I32;
        let call = |axes: &[i64], x: &[i64], m: &[i64]| {
            sample([("axes", axes.to_vec().into())], vec![t(x, i), t(m, i), t(m, i), t(m, i)])
        };
        vec![call(&[1], &[2, 3, 4], &[3]), call(&[1, 4], &[1, 2, 3, 2, 16], &[2, 16])]
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::fixed::{Rounding, shift_multiply},
        *,
    };

    /// The upper word, rounded and shifted by what is left: as exact as 64 bits.
    #[test]
    fn upper_words_are_enough() {
        for seed in 0..20_000u64 {
            let draw = |k: u64| (seed * 3 + k + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let x = i64::from((draw(0) >> 32) as i32 >> (seed % 30));
            let m = i64::from((draw(1) >> 33) as i32);
            let s = 2 + (draw(2) >> 40) as i64 % 30;
            let high = ((x * m) >> WORD) as i32;
            let got = high.wrapping_add(1 << (s - 2)) >> (s - 1);
            assert_eq!(i64::from(got), shift_multiply(x, m, 0, 31 + s, Rounding::Upward), "{x} {m} {s}");
        }
    }
}
