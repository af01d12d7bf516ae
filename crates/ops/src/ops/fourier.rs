//! Discrete Fourier transforms, as the sums that define them. Angles are computed in the data's precision.

use std::f64::consts::TAU;

use super::{
    AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
    util::{
        elements, field, lowered_shapes, may_equal, op_head, sample, t, tensor_arg, value_shapes, work_per_element,
    },
};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar, UnOp},
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(super) const OPS: Family = &[&Stft, &Dft];

/// The angle of step `k` of `n` around the circle; `k` is less than `n`, for which the quotient is exact enough.
fn angle(k: Scalar, n: i64, dtype: DType) -> Scalar {
    k.cast(dtype) * Scalar::float(TAU / n as f64, dtype)
}

/// The type that sums of `dtype` run in.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// `stft`.
#[derive(Debug)]
struct Stft;

impl Stft {
    /// Transform size, hop and window length, checked.
    fn sizes(attrs: &Attrs) -> Result<(i64, i64, i64), OpError> {
        let (n, hop, window) = (attrs.int("n_fft"), attrs.int("hop_length"), attrs.int("win_length"));
        op_ensure!(
            n > 0 && hop > 0 && 0 < window && window <= n,
            "C2: `n_fft` is {n}, `hop_length` {hop} and `win_length` {window}"
        );
        Ok((n, hop, window))
    }
}

impl Op for Stft {
    op_head!(
        "stft",
        "The Fourier transforms of windows of a line of data, hop_length apart:
        out[.., w, f] = sum over k below win_length of window[k] * data[.., f * hop_length + k] * exp(-2 pi i w k / win_length),
        real and imaginary part along a last axis of two; for w below n_fft, or, onesided, up to n_fft / 2; divided by the root
        of n_fft where normalized. C1: data holds floats and has one axis, or two, of which the first is a batch. C2: the sizes
        are positive, and win_length is no more than n_fft. C3: window holds win_length numbers. C4: data is no shorter than
        n_fft.",
        ["data", "window"],
        [
            field("n_fft", AttrKind::Int, AttrDefault::Int(-1)),
            field("hop_length", AttrKind::Int, AttrDefault::Int(-1)),
            field("win_length", AttrKind::Int, AttrDefault::Int(-1)),
            field("normalized", AttrKind::Bool, AttrDefault::Bool(false)),
            field("onesided", AttrKind::Bool, AttrDefault::Bool(true)),
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, window) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "window")?);
        op_ensure!(x.dtype.is_float() && matches!(x.rank(), 1 | 2), "C1: `data` is {x}");
        let (n, hop, length) = Stft::sizes(attrs)?;
        op_ensure!(
            window.rank() == 1 && window.dtype != DType::Bool && may_equal(window.shape[0], Dim::Known(length)),
            "C3: `window` is {window}, but should hold {length} numbers"
        );
        let last = x.shape[x.rank() - 1];
        op_ensure!(last.known().is_none_or(|m| m >= n), "C4: `data` is {x}, which is shorter than {n}");
        let rows = if attrs.bool("onesided") { n / 2 + 1 } else { n };
        let frames = last.known().map_or(Dim::Any, |m| Dim::Known((m - n) / hop + 1));
        let batch = &x.shape[..x.rank() - 1];
        Ok(TensorType::of([batch, &[Dim::Known(rows), frames, Dim::Known(2)]].concat(), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, window) = (args[0].tensor(), args[1].tensor().to_f64_vec());
        let shape = &value_shapes(self, attrs, args)?[0];
        let (n, hop, length) = Stft::sizes(attrs)?;
        let [rows, frames, _] = shape[shape.len() - 3..] else { unreachable!("three axes follow the batch") };
        let (line, xs) = (x.shape()[x.shape().len() - 1], x.to_f64_vec());
        let scale = if attrs.bool("normalized") { 1.0 / (n as f64).sqrt() } else { 1.0 };
        let out = |i: usize| {
            let (part, frame, row, batch) = (i % 2, i / 2 % frames, i / 2 / frames % rows, i / 2 / frames / rows);
            let start = batch * line + frame * hop as usize;
            let term = |k: usize| {
                let turn = TAU * (row * k) as f64 / length as f64;
                window[k] * xs[start + k] * if part == 0 { turn.cos() } else { -turn.sin() }
            };
            (0..length as usize).map(term).sum::<f64>() * scale
        };
        Ok(Tensor::from_f64_fn(x.dtype(), shape, out).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let data = (0..rank).map(|k| if k + 1 < rank { AxisRole::Maps(k) } else { AxisRole::Opaque });
        AxisMap(vec![data.collect(), vec![AxisRole::Opaque]])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let each = 20.0 * attrs.int("win_length").max(1) as f64;
        work_per_element(each, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, window) = (args[0].tensor(), args[1].tensor());
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let (n, hop, length) = Stft::sizes(attrs)?;
        let (dtype, at) = (b.dtype(x), shape.len() - 3);
        let sum_type = wide(dtype);
        let rows = shape[at];
        // The window's terms do not depend on the frame.
        let waves = b.map(&[rows, 2, length], |b, i| {
            let turn = angle((i[0].clone() * i[2].clone()).floor_mod(length), length, sum_type);
            let cosine = Scalar::unary(UnOp::Cos, turn.clone());
            let sine = -Scalar::unary(UnOp::Sin, turn);
            let wave = Scalar::select(Scalar::binary(BinOp::Eq, i[1].clone(), Scalar::index(0)), cosine, sine);
            b.read(window, [i[2].clone()]).cast(sum_type) * wave
        });
        let sum = b.reduce(&shape, &[length], Combine::Sum, |b, i, r| {
            let place = i[at + 1].clone() * hop + r[0].clone();
            let value = b.read(x, i[..at].iter().cloned().chain([place])).cast(sum_type);
            b.read(waves, [i[at].clone(), i[at + 2].clone(), r[0].clone()]) * value
        });
        let scale = if attrs.bool("normalized") { 1.0 / (n as f64).sqrt() } else { 1.0 };
        let out = b.map(&shape, |b, i| (b.read(sum, i.iter().cloned()) * Scalar::float(scale, sum_type)).cast(dtype));
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |n: i64, hop: i64, win: i64, flags: (bool, bool), x: &[i64], w| {
            let sizes = [("n_fft", n.into()), ("hop_length", hop.into()), ("win_length", win.into())];
            let flags = [("normalized", flags.0.into()), ("onesided", flags.1.into())];
            Sample { attrs: sizes.into_iter().chain(flags).collect(), args: vec![t(x, DType::F32), t(&[win], w)] }
        };
        vec![
            call(3, 3, 3, (false, true), &[6], DType::I32),
            call(2, 1, 2, (true, true), &[2, 5], DType::F32),
            call(4, 2, 3, (false, false), &[2, 9], DType::F32),
        ]
    }
}

/// `dft`.
#[derive(Debug)]
struct Dft;

impl Op for Dft {
    op_head!(
        "dft",
        "The discrete Fourier transform along the last axis of the complex numbers of which the arguments are real and imaginary
        part, as a tuple of such: out[.., n] = sum over k below N of data[.., k] * exp(-2 pi i n k / N); inverse with the other
        sign, divided by N. C1: both hold floats of one type, in one shape with at least one axis.",
        ["re_data", "im_data"],
        [field("inverse", AttrKind::Bool, AttrDefault::Bool(false))],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (re, im) = (tensor_arg(args, 0, "re_data")?, tensor_arg(args, 1, "im_data")?);
        op_ensure!(
            re.dtype.is_float()
                && re.dtype == im.dtype
                && re.rank() == im.rank()
                && re.rank() > 0
                && re.shape.iter().zip(im.shape.iter()).all(|(a, b)| may_equal(*a, *b)),
            "C1: `re_data` is {re} and `im_data` {im}"
        );
        Ok(Type::tuple([re.clone().into(), im.clone().into()]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (re, im) = (args[0].tensor(), args[1].tensor());
        op_ensure!(re.shape() == im.shape(), "C1: the parts' shapes are {:?} and {:?}", re.shape(), im.shape());
        let n = re.shape()[re.shape().len() - 1];
        let (sign, scale) = if attrs.bool("inverse") { (1.0, 1.0 / n as f64) } else { (-1.0, 1.0) };
        let (xs, ys) = (re.to_f64_vec(), im.to_f64_vec());
        let sums: Vec<(f64, f64)> = (0..xs.len())
            .map(|i| {
                let (line, w) = (i / n * n, i % n);
                (0..n).fold((0.0, 0.0), |(a, b), k| {
                    let (sin, cos) = (sign * TAU * (w * k % n) as f64 / n as f64).sin_cos();
                    let (x, y) = (xs[line + k], ys[line + k]);
                    (a + x * cos - y * sin, b + x * sin + y * cos)
                })
            })
            .collect();
        let real = Tensor::from_f64_fn(re.dtype(), re.shape(), |i| sums[i].0 * scale);
        let imaginary = Tensor::from_f64_fn(re.dtype(), re.shape(), |i| sums[i].1 * scale);
        Ok(Value::Tuple(vec![real.into(), imaginary.into()]))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let roles = || (0..rank).map(|k| if k + 1 < rank { AxisRole::Maps(k) } else { AxisRole::Opaque }).collect();
        AxisMap(vec![roles(), roles()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let n = args[0].as_tensor().and_then(|x| x.shape.last()?.known()).unwrap_or(1) as f64;
        Work { flops: 4.0 * n * elements(out), ..work_per_element(0.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (re, im) = (args[0].tensor(), args[1].tensor());
        let (shape, dtype) = (b.shape(re).to_vec(), b.dtype(re));
        let (last, sum_type) = (shape.len() - 1, wide(dtype));
        let n = shape[last];
        let (sign, scale) = if attrs.bool("inverse") { (1.0, 1.0 / n as f64) } else { (-1.0, 1.0) };
        let real = |v: f64| Scalar::float(v, sum_type);
        // Cosines and sines by the step, of which there are only n.
        let [cosines, sines] = [UnOp::Cos, UnOp::Sin]
            .map(|f| b.map(&[n], |_, i| Scalar::unary(f, real(sign) * angle(i[0].clone(), n, sum_type))));
        let parts = [false, true].map(|imaginary| {
            let sum = b.reduce(&shape, &[n], Combine::Sum, |b, i, r| {
                let step = (i[last].clone() * r[0].clone()).floor_mod(n.max(1));
                let (cos, sin) = (b.read(cosines, [step.clone()]), b.read(sines, [step]));
                let at = || i[..last].iter().chain([&r[0]]).cloned();
                let (x, y) = (b.read(re, at()).cast(sum_type), b.read(im, at()).cast(sum_type));
                if imaginary { x * sin + y * cos } else { x * cos - y * sin }
            });
            let out = b.map(&shape, |b, i| (b.read(sum, i.iter().cloned()) * real(scale)).cast(dtype));
            Operand::from(out)
        });
        Ok(Operand::Tuple(parts.into()))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |inverse: bool, s: &[i64], d| sample([("inverse", inverse.into())], vec![t(s, d), t(s, d)]);
        vec![call(false, &[5], DType::F32), call(true, &[2, 4], DType::F32), call(false, &[2, 3], DType::F64)]
    }
}
