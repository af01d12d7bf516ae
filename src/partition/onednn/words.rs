//! Relay's attributes in the library's words.

use crate::{
    ir::{Attrs, Type},
    ops,
    runtime::onednn::{BinaryKind, Eltwise, EltwiseKind, Fixed, Windows},
    tensor::Tensor,
};

/// A tensor type's extents and type, where all are known, and there is at least one element.
pub(super) fn known(ty: &Type) -> Option<(Vec<i64>, crate::tensor::DType)> {
    let t = ty.as_tensor()?;
    let shape = t.known_shape()?.to_vec();
    shape.iter().all(|&n| n > 0).then_some((shape, t.dtype))
}

/// Of each letter of `wanted`, the axis in a layout that has just these letters, none split.
pub(super) fn order(layout: &str, wanted: &str) -> Option<Vec<usize>> {
    if layout.len() != wanted.len() {
        return None;
    }
    wanted.chars().map(|w| layout.chars().position(|c| c == w)).collect()
}

/// The letters of so many spatial axes.
pub(super) fn spatial(axes: usize) -> &'static str {
    ["", "W", "HW", "DHW"][axes.min(3)]
}

/// A list of one number, of one an axis, or of the numbers before and those after, as numbers before and after.
pub(super) fn paddings(list: &[i64], axes: usize) -> Option<(Vec<i64>, Vec<i64>)> {
    Some(match list {
        [p] => (vec![*p; axes], vec![*p; axes]),
        l if l.len() == axes => (l.to_vec(), l.to_vec()),
        l if l.len() == 2 * axes => (l[..axes].to_vec(), l[axes..].to_vec()),
        _ => return None,
    })
}

/// A list of one number an axis, or of one for all.
pub(super) fn per_axis(list: &[i64], axes: usize) -> Option<Vec<i64>> {
    match list {
        [n] => Some(vec![*n; axes]),
        l if l.len() == axes => Some(l.to_vec()),
        _ => None,
    }
}

/// The windows of a convolution or pool.
pub(super) fn windows(attrs: &Attrs, axes: usize) -> Option<Windows> {
    let (before, after) = paddings(&attrs.ints("padding"), axes)?;
    let (strides, dilation) = (per_axis(&attrs.ints("strides"), axes)?, per_axis(&attrs.ints("dilation"), axes)?);
    Some(Windows { strides, dilation, before, after })
}

/// The spatial axes of an operator that is named for them: `nn.conv2d`.
pub(super) fn dimensions(name: &str) -> Option<usize> {
    [("1d", 1), ("2d", 2), ("3d", 3)].iter().find(|(s, _)| name.contains(s)).map(|s| s.1)
}

/// The functions of one number.
pub(super) fn eltwise(name: &str, attrs: &Attrs) -> Option<Eltwise> {
    Some(match name {
        "nn.relu" => EltwiseKind::Relu.with(0.0, 0.0),
        "nn.leaky_relu" => EltwiseKind::Relu.with(attrs.float("alpha") as f32, 0.0),
        "tanh" => EltwiseKind::Tanh.with(0.0, 0.0),
        "sigmoid" => EltwiseKind::Logistic.with(0.0, 0.0),
        "exp" => EltwiseKind::Exp.with(0.0, 0.0),
        "log" => EltwiseKind::Log.with(0.0, 0.0),
        "sqrt" => EltwiseKind::Sqrt.with(0.0, 0.0),
        "rsqrt" => EltwiseKind::Pow.with(1.0, -0.5),
        "abs" => EltwiseKind::Abs.with(0.0, 0.0),
        "negative" => EltwiseKind::Linear.with(-1.0, 0.0),
        "clip" => EltwiseKind::Clip.with(attrs.float("a_min") as f32, attrs.float("a_max") as f32),
        _ => return None,
    })
}

/// The functions of two numbers.
pub(super) fn binary(name: &str) -> Option<BinaryKind> {
    Some(match name {
        "add" => BinaryKind::Add,
        "subtract" => BinaryKind::Sub,
        "multiply" => BinaryKind::Mul,
        "divide" => BinaryKind::Div,
        "maximum" => BinaryKind::Max,
        "minimum" => BinaryKind::Min,
        _ => return None,
    })
}

/// A factor as the quantized operators multiply with it.
pub(super) fn fixed(factor: f64) -> Fixed {
    const POINT: i64 = 31;
    let (significand, exponent) = ops::fixed_point(factor);
    let (left, right) = (exponent.clamp(0, 63), (POINT + (-exponent).max(0)).min(63));
    Fixed { significand, left: left as u32, right: right as u32 }
}

/// The axis that is meant, counted from the end where negative.
pub(super) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let n = rank as i64;
    (-n <= axis && axis < n).then(|| if axis < 0 { axis + n } else { axis } as usize)
}

/// A constant with its axes in another order: axis `k` of the result is axis `axes[k]`.
pub(super) fn permuted(t: &Tensor, shape: &[i64], axes: &[usize]) -> Tensor {
    let mut strides = vec![1usize; shape.len()];
    for k in (1..shape.len()).rev() {
        strides[k - 1] = strides[k] * shape[k] as usize;
    }
    let to: Vec<usize> = axes.iter().map(|&a| shape[a] as usize).collect();
    let source = |i: usize| {
        let (mut rest, mut at) = (i, 0);
        for k in (0..to.len()).rev() {
            at += rest % to[k] * strides[axes[k]];
            rest /= to[k];
        }
        Some(at)
    };
    t.pick(&to, source)
}

/// Extents as tensors take them.
pub(super) fn extents(shape: &[i64]) -> Vec<usize> {
    shape.iter().map(|&n| n as usize).collect()
}
