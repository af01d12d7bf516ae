//! Dense layers whose weights are integers of a few bits in blocks, each with a scale and a zero point.
//!
//! Weights stay packed in memory: kernels unpack what they read where they multiply it. For the product of a vector, whose time is that
//! of reading the weights, the bytes are what counts.

use super::numbers::sum_products;
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, field, may_equal, op_head, sample, t, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&DenseNBits];

/// `nn.dense_nbits`.
#[derive(Debug)]
struct DenseNBits;

/// How many numbers of `bits` bits are in a byte.
fn per_byte(attrs: &Attrs) -> Result<i64, OpError> {
    let bits = attrs.int("bits");
    op_ensure!(matches!(bits, 1 | 2 | 4 | 8), "C1: `bits` is {bits}, but should be 1, 2, 4 or 8");
    Ok(8 / bits)
}

/// An extent that is a product.
fn product(a: Dim, b: Dim) -> Dim {
    match (a, b) {
        (Dim::Known(a), Dim::Known(b)) => Dim::Known(a * b),
        _ => Dim::Any,
    }
}

impl Op for DenseNBits {
    op_head!(
        "nn.dense_nbits",
        "out[.., n] = sum over k of data[.., k] * (w[n, k] - zeros[n / c, k / b, n % c]) * scales[n / c, k / b, n % c], where w[n, k] are
        unsigned numbers of `bits` bits: those at k % (8 / bits) * bits and up of weight[n / c, k / (8 / bits), n % c]. So outputs are
        in blocks of c, the weight's last extent, and inputs in blocks of b, as the scales' second extent says.
        C1: bits is 1, 2, 4 or 8. C2: data are floats of at least one axis, weight and zeros uint8 of three, scales floats of three.
        C3: data's last extent is what the weight holds. C4: scales have the weight's blocks of outputs, and their second extent
        divides the weight's. C5: each extent of zeros is that of scales, or 1.",
        ["data", "weight", "scales", "zeros"],
        [field("bits", AttrKind::Int, AttrDefault::Int(4))],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let per = per_byte(attrs)?;
        let names = self.inputs();
        let ts: Vec<&TensorType> = (0..4).map(|i| tensor_arg(args, i, names[i])).collect::<Result<_, _>>()?;
        let (x, w, scales, zeros) = (ts[0], ts[1], ts[2], ts[3]);
        op_ensure!(x.rank() > 0 && x.dtype.is_float(), "C2: `data` is {x}, but should be floats of at least one axis");
        for (given, name) in ts.iter().zip(names).skip(1) {
            op_ensure!(given.rank() == 3, "C2: `{name}` is {given}, but should have three axes");
        }
        op_ensure!(
            w.dtype == DType::U8 && zeros.dtype == DType::U8,
            "C2: `weight` is {w} and `zeros` {zeros}, not uint8"
        );
        op_ensure!(scales.dtype.is_float(), "C2: `scales` is {scales}, but should be floats");
        let k = product(w.shape[1], Dim::Known(per));
        op_ensure!(
            may_equal(x.shape[x.rank() - 1], k),
            "C3: `data` is {x}, but `weight` is {w}, for {k} numbers of {} bits",
            attrs.int("bits")
        );
        let evenly = match (w.shape[1], scales.shape[1]) {
            (Dim::Known(k), Dim::Known(blocks)) => blocks > 0 && k % blocks == 0,
            _ => true,
        };
        let fits = may_equal(w.shape[0], scales.shape[0]) && may_equal(w.shape[2], scales.shape[2]);
        op_ensure!(evenly && fits, "C4: `scales` is {scales}, which does not fit `weight`, {w}");
        let broadcasts =
            zeros.shape.iter().zip(scales.shape.iter()).all(|(&z, &s)| z == Dim::Known(1) || may_equal(z, s));
        op_ensure!(broadcasts, "C5: `zeros` is {zeros}, which does not broadcast to `scales`, {scales}");
        let mut shape = x.shape.to_vec();
        shape[x.rank() - 1] = product(w.shape[0], w.shape[2]);
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, w, scales, zeros] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let (bits, per) = (attrs.int("bits"), per_byte(attrs)? as usize);
        let [outer, rows, c] = [0, 1, 2].map(|i| w.shape()[i]);
        let (n, k, blocks) = (outer * c, rows * per, scales.shape()[1]);
        let zero_at = |index: [usize; 3]| {
            index.iter().zip(zeros.shape()).fold(0, |at, (&i, &n)| at * n + if n == 1 { 0 } else { i })
        };
        let mut weights = vec![0.0; n * k];
        for (at, weight) in weights.iter_mut().enumerate() {
            let (o, i) = (at / k, at % k);
            let block = i * blocks / k;
            let byte = w.get_i64((o / c * rows + i / per) * c + o % c);
            let value = (byte >> ((i % per) as i64 * bits)) & ((1 << bits) - 1);
            let zero = zeros.get_i64(zero_at([o / c, block, o % c]));
            *weight = (value - zero) as f64 * scales.get_f64((o / c * blocks + block) * c + o % c);
        }
        let mut shape = x.shape().to_vec();
        let xs = x.to_f64_vec();
        *shape.last_mut().expect("data have an axis") = n;
        let sum = |i: usize| -> f64 {
            let (row, o) = (i / n, i % n);
            xs[row * k..][..k].iter().zip(&weights[o * k..][..k]).map(|(x, w)| x * w).sum()
        };
        Ok(Tensor::from_f64_fn(x.dtype(), &shape, sum).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(1, TensorType::rank);
        let data = (0..rank - 1).map(AxisRole::Maps).chain([AxisRole::Reduced]).collect();
        AxisMap(vec![data, vec![AxisRole::Opaque; 3], vec![AxisRole::Opaque; 3], vec![AxisRole::Opaque; 3]])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let rows = args[1].as_tensor().and_then(|w| w.shape[1].known()).unwrap_or(1);
        let k = (rows * per_byte(attrs).unwrap_or(1)) as f64;
        Work { flops: 2.0 * k * elements(out), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, w, scales, zeros] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let (bits, per) = (attrs.int("bits"), per_byte(attrs)?);
        let given = b.dtype(x);
        let dtype = if given.bytes() == 2 { DType::F32 } else { given };
        let (outer, rows, c) = (b.shape(w)[0], b.shape(w)[1], b.shape(w)[2]);
        let blocks = b.shape(scales)[1];
        let in_block = rows / blocks;
        // A block's scale and zero are the same for all of its inputs, a byte for all of its numbers.
        let over = [blocks, in_block, per];
        let weights = b.map(&[outer, blocks, in_block, per, c], |b, i| {
            let byte = b.read(w, [i[0].clone(), i[1].clone() * in_block + i[2].clone(), i[4].clone()]).cast(DType::I32);
            let number = match per {
                1 => byte,
                _ => {
                    let moved = Scalar::binary(BinOp::Shr, byte, (i[3].clone() * bits).cast(DType::I32));
                    Scalar::binary(BinOp::And, moved, Scalar::int((1 << bits) - 1, DType::I32))
                }
            };
            let block = [i[0].clone(), i[1].clone(), i[4].clone()];
            let zero =
                block.iter().zip(b.shape(zeros)).map(|(i, &n)| if n == 1 { Scalar::index(0) } else { i.clone() });
            let zero = b.read(zeros, zero.collect::<Vec<_>>()).cast(DType::I32);
            // Conversion by way of int32, which vectors have instructions for.
            (number - zero).cast(dtype) * b.read(scales, block).cast(dtype)
        });
        let mut shape = b.shape(x).to_vec();
        let last = shape.len() - 1;
        shape[last] = outer * c;
        let sum = sum_products(b, &shape, &over, dtype, |b, i, r| {
            let mut row = i.to_vec();
            row[last] = (r[0].clone() * in_block + r[1].clone()) * per + r[2].clone();
            let n = &i[last];
            let weight = [n.clone().floor_div(c), r[0].clone(), r[1].clone(), r[2].clone(), n.clone().floor_mod(c)];
            (b.read(x, row), b.read(weights, weight))
        });
        let out = if given == dtype { sum } else { b.map(&shape, |b, i| b.read(sum, i.iter().cloned()).cast(given)) };
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let (f, u) = (DType::F32, DType::U8);
        let call = |bits: i64, x: &[i64], w: [i64; 3], blocks: i64, zeros: &[i64]| {
            let scales = t(&[w[0], blocks, w[2]], f);
            sample([("bits", bits.into())], vec![t(x, f), t(&w, u), scales, t(zeros, u)])
        };
        vec![
            call(4, &[1, 16], [2, 8, 16], 2, &[2, 2, 16]),
            call(4, &[3, 8], [1, 4, 8], 1, &[1, 1, 1]),
            call(8, &[2, 2, 6], [2, 6, 4], 3, &[2, 3, 4]),
            call(2, &[8], [3, 2, 2], 2, &[1, 1, 1]),
            call(1, &[2, 16], [2, 2, 8], 1, &[2, 1, 8]),
        ]
    }
}
