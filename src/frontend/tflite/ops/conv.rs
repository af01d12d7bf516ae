//! Convolutions.

use super::{
    super::{node::Node, quant::Target, schema::Quant},
    Results,
    hybrid::{self, Scales, Weight},
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// Padding before and after along an axis, so that there are as many results as strides fit in.
pub(super) fn same_padding(extent: i64, kernel: i64, stride: i64, dilation: i64) -> (i64, i64) {
    let window = (kernel - 1) * dilation + 1;
    let outputs = (extent + stride - 1) / stride;
    let total = ((outputs - 1) * stride + window - extent).max(0);
    (total / 2, total - total / 2)
}

/// What all convolutions say of their axes, outermost first.
struct Window {
    strides: Vec<i64>,
    dilation: Vec<i64>,
    kernel: Vec<i64>,
    same: bool,
}

impl Window {
    fn check(&self, n: &Node) -> Convert<()> {
        let all = self.strides.iter().chain(&self.dilation).chain(&self.kernel);
        match all.clone().all(|v| (1..1 << 20).contains(v)) {
            true => Ok(()),
            false => n.refuse(format!(
                "strides {:?}, dilations {:?} and a kernel of {:?} have no meaning",
                self.strides, self.dilation, self.kernel
            )),
        }
    }

    /// Paddings as Relay has them: all that come before, then all that come after.
    fn padding(&self, n: &Node, x: ExprId) -> Convert<Vec<i64>> {
        let rank = self.kernel.len();
        if !self.same {
            return Ok(vec![0; 2 * rank]);
        }
        let mut pads = vec![0; 2 * rank];
        for a in 0..rank {
            // Without strides, padding does not depend on the extent.
            let extent = match self.strides[a] {
                1 => n.shape(x)?[a + 1].unwrap_or(self.kernel[a] * self.dilation[a]),
                _ => n.extent(x, a + 1)?,
            };
            (pads[a], pads[rank + a]) = same_padding(extent, self.kernel[a], self.strides[a], self.dilation[a]);
        }
        Ok(pads)
    }
}

/// The factors from products of two scales to a result's, and whether they are one for each channel.
pub(super) struct Factors {
    /// One, or one for each channel.
    pub(super) factors: Vec<f64>,
    /// The weight's zero points, one or one for each channel.
    pub(super) zeros: Vec<i64>,
}

/// How a product's sums become result 0. `precise` says that scales are multiplied in `float64` also where there is one only.
pub(super) fn factors(n: &Node, x: usize, w: usize, precise: bool) -> Convert<Factors> {
    let ((s, _), (so, _)) = (n.quant_in(x)?, n.quant_out(0)?);
    let info = n.input(w)?;
    let Some(Quant { scales, zeros, .. }) = &info.quant else {
        return n.refuse(format!("`{}` has no scale", info.name));
    };
    let factors = scales
        .iter()
        .map(|&sw| match precise || scales.len() > 1 {
            true => s as f64 * sw as f64 / so as f64,
            false => (s * sw) as f64 / so as f64,
        })
        .collect();
    Ok(Factors { factors, zeros: zeros.clone() })
}

/// Adds a bias to sums, changes their scale, and applies the fused activation. The type of the bias says how wide sums are.
fn finish(n: &mut Node, sums: ExprId, bias: Option<ExprId>, f: &Factors, axis: i64, code: i8) -> Convert {
    let (_, zero) = n.quant_out(0)?;
    let dtype = n.out_dtype(0)?;
    let sums = biased(n, sums, bias)?;
    let e = n.scaled_by_channel(sums, &f.factors, axis, Target { zero, dtype })?;
    n.activate_quantized(e, code)
}

/// Sums with a bias, which has their scale.
pub(super) fn biased(n: &mut Node, sums: ExprId, bias: Option<ExprId>) -> Convert {
    let Some(b) = bias else { return Ok(sums) };
    let of = n.dtype(sums)?;
    let b = n.cast(b, of)?;
    n.bin("add", sums, b)
}

/// The type of sums of products: 64 bits for 16-bit data, except where the bias has 32.
pub(super) fn sums_of(n: &Node, data: DType, bias: Option<ExprId>) -> Convert<DType> {
    Ok(match (data, bias) {
        (DType::I16, Some(b)) if n.dtype(b)? == DType::I32 => DType::I32,
        (DType::I16, _) => DType::I64,
        _ => DType::I32,
    })
}

/// Zero points as an argument: one number where all are the same.
pub(super) fn zeros(n: &mut Node, zeros: &[i64]) -> ExprId {
    let same = zeros.iter().all(|z| *z == zeros[0]);
    let t = match same {
        true => Tensor::scalar(zeros[0] as i32),
        false => Tensor::from_i64_fn(DType::I32, &[zeros.len()], |i| zeros[i]),
    };
    n.b.constant(t)
}

/// A convolution of two spatial axes. The weight has the axes of `layout`.
fn conv2d(n: &mut Node, w: Weight, layout: &str, groups: i64, win: &Window, code: i8) -> Results {
    win.check(n)?;
    let x = n.x(0)?;
    let pads = win.padding(n, x)?;
    let attrs = |padding: &[i64], out: Option<DType>| {
        let mut attrs = vec![
            ("strides", win.strides.clone().into()),
            ("padding", padding.into()),
            ("dilation", win.dilation.clone().into()),
            ("groups", groups.into()),
            ("kernel_size", win.kernel.clone().into()),
            ("data_layout", "NHWC".into()),
            ("kernel_layout", layout.into()),
        ];
        attrs.extend(out.map(|d| ("out_dtype", d.into())));
        attrs
    };
    let bias = n.opt(2);
    if let Some(scales) = &w.scales {
        let [zero, one] = [n.b.scalar(DType::I32, 0.0), n.f32(1.0)];
        let asymmetric = scales.len() > 1 || groups > 1 || layout != "OHWI";
        let around = [0, 0, pads[0], pads[2], pads[1], pads[3], 0, 0];
        let rows = hybrid::quantized_padded(n, x, &[1, 2, 3], asymmetric, &around)?;
        let e = n.op("qnn.conv2d", &[rows.q, w.e, zero, zero, one, one], &attrs(&[0; 4], Some(DType::I32)))?;
        let results = n.extent(e, 3)?;
        hybrid::check(n, scales, results)?;
        let of_weight = hybrid::sums_of_weight(n, w.e, if layout == "OHWI" { &[1, 2, 3] } else { &[0, 1] })?;
        let of_weight = n.reshape(of_weight, &[results])?;
        let order = if asymmetric && layout == "OHWI" { Scales::OneByOne(scales) } else { Scales::AtOnce(scales) };
        let e = hybrid::numbers(n, e, rows, order, of_weight)?;
        return Ok(vec![hybrid::finish(n, e, bias, code)?]);
    }
    let w = w.e;
    if !n.quantized()? {
        let e = n.op("nn.conv2d", &[x, w], &attrs(&pads, None))?;
        return Ok(vec![hybrid::finish(n, e, bias, code)?]);
    }
    let data = n.dtype(x)?;
    let f = factors(n, 0, 1, data != DType::U8)?;
    let sums = sums_of(n, data, bias)?;
    let (s, z) = n.quant_in(0)?;
    let (zx, zw) = (n.b.scalar(DType::I32, z as f64), zeros(n, &f.zeros));
    // The integers do not depend on the scales, which the change of scale has in full.
    let (sx, sw) = (n.f32(s), n.f32(1.0));
    let e = n.op("qnn.conv2d", &[x, w, zx, zw, sx, sw], &attrs(&pads, Some(sums)))?;
    Ok(vec![finish(n, e, bias, &f, 3, code)?])
}

/// The weight of a convolution: bytes as they are where results are quantized.
fn weight(n: &mut Node, i: usize) -> Convert<Weight> {
    match n.quantized()? {
        true => Ok(Weight { e: n.x(i)?, scales: None }),
        false => {
            let out = n.out_dtype(0)?;
            hybrid::weight(n, i, out)
        }
    }
}

/// CONV_2D.
pub(in crate::frontend::tflite) fn conv_2d(n: &mut Node) -> Results {
    let (x, w) = (n.x(0)?, weight(n, 1)?);
    let shape = n.known(w.e)?;
    if shape.len() != 4 || n.rank(x)? != 4 {
        return n.refuse("data and weight should have four axes");
    }
    let channels = n.extent(x, 3)?;
    let win = Window {
        strides: vec![n.int(2, 0), n.int(1, 0)],
        dilation: vec![n.int(5, 1), n.int(4, 1)],
        kernel: vec![shape[1], shape[2]],
        same: n.byte(0) == 0,
    };
    if shape[3] == 0 || channels % shape[3] != 0 {
        return n.refuse(format!("{channels} channels do not divide into groups of {}", shape[3]));
    }
    let groups = channels / shape[3];
    let code = n.byte(3);
    conv2d(n, w, "OHWI", groups, &win, code)
}

/// DEPTHWISE_CONV_2D.
pub(in crate::frontend::tflite) fn depthwise_conv_2d(n: &mut Node) -> Results {
    let (x, mut w) = (n.x(0)?, weight(n, 1)?);
    let shape = n.known(w.e)?;
    if shape.len() != 4 || n.rank(x)? != 4 {
        return n.refuse("data and weight should have four axes");
    }
    let channels = n.extent(x, 3)?;
    if channels == 0 || shape[3] % channels != 0 {
        return n.refuse(format!("{} results are no multiple of {channels} channels", shape[3]));
    }
    let win = Window {
        strides: vec![n.int(2, 0), n.int(1, 0)],
        dilation: vec![n.int(6, 1), n.int(5, 1)],
        kernel: vec![shape[1], shape[2]],
        same: n.byte(0) == 0,
    };
    let code = n.byte(4);
    w.e = n.reshape(w.e, &[shape[1], shape[2], channels, shape[3] / channels])?;
    // One channel has no groups: its weight's last axis is that of the results.
    let layout = if channels == 1 { "HWIO" } else { "HWOI" };
    conv2d(n, w, layout, channels, &win, code)
}

/// Padding and output padding of a transposed convolution, from the extents that are wanted.
fn transposed_padding(n: &Node, win: &Window, given: &[i64], wanted: &[i64]) -> Convert<(Vec<i64>, Vec<i64>)> {
    let rank = given.len();
    let (mut pads, mut more) = (vec![0; 2 * rank], vec![0; rank]);
    for a in 0..rank {
        let window = (win.kernel[a] - 1) * win.dilation[a] + 1;
        let full = (given[a] - 1) * win.strides[a] + window;
        let outputs = match win.same {
            true => (wanted[a] + win.strides[a] - 1) / win.strides[a],
            false => (wanted[a] - window + win.strides[a]) / win.strides[a],
        };
        if outputs != given[a] {
            return n.refuse(format!("an output of {wanted:?} does not fit an input of {given:?}"));
        }
        // The padding that a convolution from the output to the input has.
        let total = if win.same { ((outputs - 1) * win.strides[a] + window - wanted[a]).max(0) } else { 0 };
        (pads[a], pads[rank + a]) = (total / 2, total - total / 2);
        more[a] = wanted[a] - (full - total);
    }
    Ok((pads, more))
}

/// TRANSPOSE_CONV.
pub(in crate::frontend::tflite) fn transpose_conv(n: &mut Node) -> Results {
    let (weight, x) = (weight(n, 1)?, n.x(2)?);
    let w = weight.e;
    let (wanted, shape) = (n.ints(0)?, n.known(w)?);
    if shape.len() != 4 || wanted.len() != 4 || n.rank(x)? != 4 {
        return n.refuse("data, weight and output should have four axes");
    }
    let win = Window {
        strides: vec![n.int(2, 0), n.int(1, 0)],
        dilation: vec![1, 1],
        kernel: vec![shape[1], shape[2]],
        same: n.byte(0) == 0,
    };
    win.check(n)?;
    let code = n.byte(3);
    let given = [n.extent(x, 1)?, n.extent(x, 2)?];
    let (pads, more) = transposed_padding(n, &win, &given, &wanted[1..3])?;
    let bias = n.opt(3);
    let attrs = |out: Option<DType>| {
        let mut attrs = vec![
            ("strides", win.strides.clone().into()),
            ("padding", pads.clone().into()),
            ("output_padding", more.clone().into()),
            ("kernel_size", win.kernel.clone().into()),
            ("data_layout", "NHWC".into()),
            ("kernel_layout", "OHWI".into()),
        ];
        attrs.extend(out.map(|d| ("out_dtype", d.into())));
        attrs
    };
    if let Some(scales) = &weight.scales {
        // The kernel adds products up as floats.
        let rows = hybrid::quantized(n, x, &[1, 2, 3], true)?;
        let x = rows.differences(n)?;
        let (x, w) = (n.cast(x, DType::F32)?, n.cast(w, DType::F32)?);
        let e = n.op("nn.conv2d_transpose", &[x, w], &attrs(None))?;
        hybrid::check(n, scales, shape[0])?;
        let e = hybrid::scaled(n, e, rows, Scales::OneByOne(scales))?;
        return Ok(vec![hybrid::finish(n, e, bias, code)?]);
    }
    if !n.quantized()? {
        let e = n.op("nn.conv2d_transpose", &[x, w], &attrs(None))?;
        return Ok(vec![hybrid::finish(n, e, bias, code)?]);
    }
    let data = n.dtype(x)?;
    let f = factors(n, 2, 1, data != DType::U8)?;
    let sums = sums_of(n, data, bias)?;
    let (s, z) = n.quant_in(2)?;
    let (zx, zw) = (n.b.scalar(DType::I32, z as f64), zeros(n, &f.zeros));
    let (sx, sw) = (n.f32(s), n.f32(1.0));
    let e = n.op("qnn.conv2d_transpose", &[x, w, zx, zw, sx, sw], &attrs(Some(sums)))?;
    Ok(vec![finish(n, e, bias, &f, 3, code)?])
}

/// The weight of a convolution of three spatial axes, which has no kernel for bytes.
fn widened(n: &mut Node) -> Convert {
    let (w, out) = (n.x(1)?, n.out_dtype(0)?);
    if n.dtype(w)?.is_float() { n.cast(w, out) } else { super::unary::widened(n, 1) }
}

/// What the options of convolutions of three spatial axes say.
fn window_3d(n: &Node, kernel: &[i64]) -> Window {
    Window {
        strides: vec![n.int(1, 0), n.int(3, 0), n.int(2, 0)],
        dilation: vec![n.int(5, 1), n.int(7, 1), n.int(6, 1)],
        kernel: kernel[..3].to_vec(),
        same: n.byte(0) == 0,
    }
}

/// CONV_3D.
pub(in crate::frontend::tflite) fn conv_3d(n: &mut Node) -> Results {
    let (x, w) = (n.x(0)?, widened(n)?);
    let shape = n.known(w)?;
    if shape.len() != 5 || n.rank(x)? != 5 {
        return n.refuse("data and weight should have five axes");
    }
    let channels = n.extent(x, 4)?;
    let win = window_3d(n, &shape);
    win.check(n)?;
    let pads = win.padding(n, x)?;
    let attrs = [
        ("strides", win.strides.into()),
        ("padding", pads.into()),
        ("dilation", win.dilation.into()),
        ("groups", (channels / shape[3].max(1)).max(1).into()),
        ("kernel_size", win.kernel.into()),
        ("data_layout", "NDHWC".into()),
        ("kernel_layout", "DHWIO".into()),
    ];
    let e = n.op("nn.conv3d", &[x, w], &attrs)?;
    Ok(vec![hybrid::finish(n, e, n.opt(2), n.byte(4))?])
}

/// CONV_3D_TRANSPOSE.
pub(in crate::frontend::tflite) fn conv_3d_transpose(n: &mut Node) -> Results {
    let (w, x) = (widened(n)?, n.x(2)?);
    let (wanted, shape) = (n.ints(0)?, n.known(w)?);
    if shape.len() != 5 || wanted.len() != 5 || n.rank(x)? != 5 {
        return n.refuse("data, weight and output should have five axes");
    }
    let win = window_3d(n, &shape);
    win.check(n)?;
    let given = [n.extent(x, 1)?, n.extent(x, 2)?, n.extent(x, 3)?];
    let (pads, more) = transposed_padding(n, &win, &given, &wanted[1..4])?;
    let attrs = [
        ("strides", win.strides.into()),
        ("padding", pads.into()),
        ("output_padding", more.into()),
        ("dilation", win.dilation.into()),
        ("kernel_size", win.kernel.into()),
        ("data_layout", "NDHWC".into()),
        ("kernel_layout", "DHWOI".into()),
    ];
    let e = n.op("nn.conv3d_transpose", &[x, w], &attrs)?;
    Ok(vec![hybrid::finish(n, e, n.opt(3), n.byte(4))?])
}
