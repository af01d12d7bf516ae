//! Convolutions.

use super::{
    Row,
    quant::{centred, signed_weight},
    row,
};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, kit::is_half, node::Node},
    },
    ir::{AttrValue, ExprId},
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("Conv", conv),
    row("ConvInteger", conv_integer),
    row("ConvTranspose", conv_transpose),
    row("DeformConv", deform_conv),
];

/// Where windows stand.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// Extents of the window.
    pub kernel: Vec<i64>,
    /// Steps between windows.
    pub strides: Vec<i64>,
    /// Steps within a window.
    pub dilations: Vec<i64>,
    /// Padding before and after each axis.
    pub pads: (Vec<i64>, Vec<i64>),
}

/// A tensor and the windows that the attributes place over its spatial axes. Where padding depends on extents that are not known, the tensor is padded with
/// `value` while the program runs, and the windows have no padding any more.
pub(super) fn windows_over(
    n: &mut Node,
    x: ExprId,
    kernel: Vec<i64>,
    value: impl FnOnce(&mut Node) -> Convert,
) -> Convert<(ExprId, Windows)> {
    let auto = n.text("auto_pad", "NOTSET")?;
    if !auto.starts_with("SAME") {
        return Ok((x, windows(n, x, kernel)?));
    }
    let at = windows_as(n, x, kernel.clone(), "VALID")?;
    let dims = n.dims(x)?;
    if (0..kernel.len()).all(|k| at.strides[k] == 1 || dims[k + 2].is_some()) {
        return Ok((x, windows(n, x, kernel)?));
    }
    let axis = |k: usize| (k + 2, (at.kernel[k] - 1) * at.dilations[k] + 1, at.strides[k]);
    let axes: Vec<(usize, i64, i64)> = (0..at.kernel.len()).map(axis).collect();
    let value = value(n)?;
    let x = n.im.b.same_padded(x, &axes, auto != "SAME_LOWER", value)?;
    Ok((x, at))
}

/// The attributes that place windows over the spatial axes of a tensor.
pub(super) fn windows(n: &Node, x: ExprId, kernel: Vec<i64>) -> Convert<Windows> {
    windows_as(n, x, kernel, &n.text("auto_pad", "NOTSET")?)
}

/// The same, with padding as `auto_pad` has it.
fn windows_as(n: &Node, x: ExprId, kernel: Vec<i64>, auto: &str) -> Convert<Windows> {
    let count = kernel.len();
    let dims = n.dims(x)?;
    n.ensure(dims.len() == count + 2, || {
        format!("its windows have {count} axes, but its input has {} in all", dims.len())
    })?;
    let list = |name: &str| -> Convert<Vec<i64>> {
        let l = n.ints(name)?.unwrap_or_else(|| vec![1; count]);
        n.ensure(l.len() == count && l.iter().all(|&v| v > 0), || {
            format!("its attribute `{name}` should have {count} positive numbers")
        })?;
        Ok(l)
    };
    let (strides, dilations) = (list("strides")?, list("dilations")?);
    let pads = match auto {
        "NOTSET" | "" => {
            let p = n.ints("pads")?.unwrap_or_else(|| vec![0; 2 * count]);
            n.ensure(p.len() == 2 * count, || format!("its attribute `pads` should have {} numbers", 2 * count))?;
            (p[..count].to_vec(), p[count..].to_vec())
        }
        "VALID" => (vec![0; count], vec![0; count]),
        "SAME_UPPER" | "SAME_LOWER" => {
            let (mut before, mut after) = (Vec::new(), Vec::new());
            for k in 0..count {
                let reach = (kernel[k] - 1) * dilations[k] + 1;
                let total = match (dims[k + 2], strides[k]) {
                    // Of steps of 1, the extent does not matter.
                    (_, 1) => reach - 1,
                    (Some(d), s) => (((d + s - 1) / s - 1) * s + reach - d).max(0),
                    (None, _) => n.extent(x, k + 2)?,
                };
                let small = total / 2;
                before.push(if auto == "SAME_UPPER" { small } else { total - small });
                after.push(if auto == "SAME_UPPER" { total - small } else { small });
            }
            (before, after)
        }
        other => return Err(n.refuse(format!("there is no auto_pad `{other}`"))),
    };
    Ok(Windows { kernel, strides, dilations, pads })
}

/// Relay's name for an operator over so many spatial axes, where it has one.
pub(super) fn numbered(n: &Node, name: &str, count: usize) -> Convert<String> {
    n.ensure((1..=3).contains(&count), || format!("{count} spatial axes are not supported"))?;
    Ok(name.replace('#', &count.to_string()))
}

fn spatial(kernel: &[Option<i64>]) -> Option<Vec<i64>> {
    kernel.iter().copied().collect()
}

/// The window of a convolution: the attribute, or the weight's own extents.
fn kernel_of(n: &Node, w: ExprId) -> Convert<Vec<i64>> {
    let dims = n.dims(w)?;
    match spatial(dims.get(2..).unwrap_or_default()) {
        Some(k) => Ok(k),
        None => n.ints("kernel_shape")?.ok_or_else(|| n.refuse("the window's extents should be known")),
    }
}

fn conv(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, w, bias) = (n.x(0)?, n.x(1)?, n.opt(2)?);
    let y = convolved(n, x, w, None)?;
    let y = biased(n, y, bias)?;
    n.one(y)
}

pub(super) fn biased(n: &mut Node, y: ExprId, bias: Option<ExprId>) -> Convert {
    match bias {
        None => Ok(y),
        Some(b) => n.op("nn.bias_add", &[y, b], &[("axis", 1.into())]),
    }
}

/// The convolution that the node's attributes place. Products of halves are summed in `float32`, and rounded once.
pub(in crate::frontend::onnx) fn convolved(n: &mut Node, x: ExprId, w: ExprId, out: Option<DType>) -> Convert {
    let dtype = n.dtype(x)?;
    if out.is_none() && is_half(dtype) {
        let y = convolved(n, x, w, Some(DType::F32))?;
        return n.cast(y, dtype);
    }
    placed(n, x, w, out, None)
}

/// The same, where integers are padded with what stands for zero.
fn placed(n: &mut Node, x: ExprId, w: ExprId, out: Option<DType>, zero: Option<ExprId>) -> Convert {
    let kernel = kernel_of(n, w)?;
    let count = kernel.len();
    let name = numbered(n, "nn.conv#d", count)?;
    let group = n.int("group", 1)?;
    let (mut x, at) = windows_over(n, x, kernel, |n| zero.map_or_else(|| n.c(x, 0.0), Ok))?;
    let mut padding = [at.pads.0.clone(), at.pads.1.clone()].concat();
    if padding.iter().any(|&p| p < 0) {
        return Err(n.refuse("negative padding is not supported"));
    }
    if out == Some(DType::I32) {
        // Without a zero point, that has been taken off.
        let zero = match zero {
            Some(z) => z,
            None => n.c(x, 0.0)?,
        };
        let (before, after) = (with_lead(&at.pads.0), with_lead(&at.pads.1));
        x = n.pad(x, &before, &after, zero)?;
        padding = vec![0; 2 * count];
    }
    let channels = n.dims(w)?[0].map_or(AttrValue::None, AttrValue::from);
    n.op(
        &name,
        &[x, w],
        &[
            ("strides", at.strides.into()),
            ("padding", padding.into()),
            ("dilation", at.dilations.into()),
            ("groups", group.into()),
            ("channels", channels),
            ("kernel_size", at.kernel.into()),
            ("out_dtype", out.map_or(AttrValue::None, AttrValue::from)),
        ],
    )
}

/// Numbers for the spatial axes as numbers for all.
pub(super) fn with_lead(spatial: &[i64]) -> Vec<i64> {
    [0, 0].iter().chain(spatial).copied().collect()
}

fn conv_integer(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, w, zx, zw) = (n.x(0)?, n.x(1)?, n.opt(2)?, n.opt(3)?);
    let y = convolved_integers(n, (x, zx), (w, zw))?;
    n.one(y)
}

/// The convolution of integers less their zero points, as int32: one for all data, and for all weights or those of each output.
pub(super) fn convolved_integers(
    n: &mut Node,
    (x, zx): (ExprId, Option<ExprId>),
    (w, zw): (ExprId, Option<ExprId>),
) -> Convert {
    let rank = n.rank(w)?;
    let zx = zx.map(|z| n.reshape(z, &[])).transpose()?;
    // Bytes are convolved as they are, x padded with its zero point p: conv(x - p, w - q) = conv(x, w) - p (sum of w) - q (sum of x - p), where
    // sums are over a window.
    if matches!(n.dtype(x)?, DType::U8 | DType::I8)
        && n.int("group", 1)? == 1
        && let Some((narrow, zw)) = signed_weight(n, w, zw)?
    {
        let mut y = placed(n, x, narrow, Some(DType::I32), zx)?;
        let zx = zx.map(|z| n.cast(z, DType::I32)).transpose()?;
        if let Some(z) = zx {
            let wide = n.cast(narrow, DType::I32)?;
            let sums = n.reduce("sum", wide, &(1..rank).collect::<Vec<_>>(), false)?;
            let off = n.mul(sums, z)?;
            let off = n.trailing(off, rank - 2)?;
            y = n.sub(y, off)?;
        }
        if let Some(q) = zw {
            let (wide, kernel) = (n.cast(x, DType::I32)?, kernel_of(n, w)?);
            let wide = match zx {
                Some(z) => n.sub(wide, z)?,
                None => wide,
            };
            let sums = n.reduce("sum", wide, &[1], true)?;
            let window: Vec<usize> = [1, 1].into_iter().chain(kernel.iter().map(|&k| k as usize)).collect();
            let ones = n.constant(Tensor::from_i64_fn(DType::I32, &window, |_| 1));
            let sums = placed(n, sums, ones, Some(DType::I32), None)?;
            let q = if n.ty(q)?.elements() == Some(1) { n.reshape(q, &[])? } else { n.trailing(q, rank - 2)? };
            let off = n.mul(sums, q)?;
            y = n.sub(y, off)?;
        }
        return Ok(y);
    }
    let zw = match zw {
        Some(z) if n.ty(z)?.elements() == Some(1) => Some(n.reshape(z, &[])?),
        Some(z) => Some(n.trailing(z, rank - 1)?),
        None => None,
    };
    let (x, w) = (centred(n, x, zx, false)?, centred(n, w, zw, false)?);
    convolved(n, x, w, Some(DType::I32))
}

fn conv_transpose(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, w, bias) = (n.x(0)?, n.x(1)?, n.opt(2)?);
    let kernel = kernel_of(n, w)?;
    let count = kernel.len();
    let name = numbered(n, "nn.conv#d_transpose", count)?;
    let group = n.int("group", 1)?;
    let list = |n: &Node, name: &str, default: i64| -> Convert<Vec<i64>> {
        let l = n.ints(name)?.unwrap_or_else(|| vec![default; count]);
        n.ensure(l.len() == count, || format!("its attribute `{name}` should have {count} numbers"))?;
        Ok(l)
    };
    let (strides, dilations) = (list(n, "strides", 1)?, list(n, "dilations", 1)?);
    let extra = list(n, "output_padding", 0)?;
    let auto = n.text("auto_pad", "NOTSET")?;
    let wanted = n.ints("output_shape")?;
    let (mut before, mut after) = match n.ints("pads")? {
        Some(p) if p.len() == 2 * count && (auto == "NOTSET" || auto.is_empty()) => {
            (p[..count].to_vec(), p[count..].to_vec())
        }
        _ => (vec![0; count], vec![0; count]),
    };
    for k in 0..count {
        // The extent without any padding.
        let full = |n: &Node| -> Convert<i64> {
            Ok(strides[k] * (n.extent(x, k + 2)? - 1) + (kernel[k] - 1) * dilations[k] + 1 + extra[k])
        };
        let same = auto.starts_with("SAME");
        let to = match &wanted {
            Some(s) if s.len() >= count => Some(s[s.len() - count + k]),
            _ if same => Some(n.extent(x, k + 2)? * strides[k]),
            _ => None,
        };
        if let Some(to) = to {
            let total = full(n)? - to;
            let small = total.div_euclid(2);
            (before[k], after[k]) = if auto == "SAME_UPPER" { (small, total - small) } else { (total - small, small) };
        }
    }
    // The whole result is computed and cut; what is beyond it is zeros.
    let plain = before.iter().chain(&after).all(|&p| p >= 0);
    let channels = n.dims(w)?[1].map(|c| c * group).map_or(AttrValue::None, AttrValue::from);
    let padding = if plain { [before.clone(), after.clone()].concat() } else { vec![0; 2 * count] };
    let mut y = n.op(
        &name,
        &[x, w],
        &[
            ("strides", strides.into()),
            ("padding", padding.into()),
            ("dilation", dilations.into()),
            ("groups", group.into()),
            ("channels", channels),
            ("kernel_size", kernel.into()),
            ("output_padding", extra.into()),
        ],
    )?;
    if !plain {
        let zero = n.c(y, 0.0)?;
        for k in 0..count {
            let extent = n.extent(y, k + 2)?;
            y = n.slice(y, k + 2, before[k].max(0), extent - after[k].max(0))?;
        }
        let beyond = |l: &[i64]| with_lead(&l.iter().map(|&p| (-p).max(0)).collect::<Vec<_>>());
        y = n.pad(y, &beyond(&before), &beyond(&after), zero)?;
    }
    let y = biased(n, y, bias)?;
    n.one(y)
}

fn deform_conv(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, w, offset, bias, mask) = (n.x(0)?, n.x(1)?, n.x(2)?, n.opt(3)?, n.opt(4)?);
    let kernel = kernel_of(n, w)?;
    let at = windows(n, x, kernel)?;
    n.ensure(at.kernel.len() == 2, || "only images are supported".into())?;
    let (groups, offset_groups) = (n.int("group", 1)?, n.int("offset_group", 1)?);
    // ONNX has zeros around the image, towards which it mixes; Relay's operator has the outermost elements. With a ring of zeros around the
    // image, which all places move by, both are the same; there are more of them then, which are cut off.
    let zero = n.c(x, 0.0)?;
    let x = n.pad(x, &[0, 0, 1, 1], &[0, 0, 1, 1], zero)?;
    let offset = n.with("add", offset, 1.0)?;
    let mut more = vec![0; 4];
    for k in 0..2 {
        if at.strides[k] == 1 {
            more[k + 2] = 2;
            continue;
        }
        let reach = (at.kernel[k] - 1) * at.dilations[k] + 1;
        let places = n.extent(x, k + 2)? + at.pads.0[k] + at.pads.1[k] - reach;
        more[k + 2] = places / at.strides[k] + 1 - n.extent(offset, k + 2)?;
    }
    let zero = n.c(offset, 0.0)?;
    let offset = n.pad(offset, &[0; 4], &more, zero)?;
    let displaced = |n: &mut Node, w: ExprId, groups: i64| -> Convert {
        n.op(
            "nn.deformable_conv2d",
            &[x, offset, w],
            &[
                ("strides", at.strides.clone().into()),
                ("padding", [at.pads.0.clone(), at.pads.1.clone()].concat().into()),
                ("dilation", at.dilations.clone().into()),
                ("deformable_groups", offset_groups.into()),
                ("groups", groups.into()),
                ("channels", n.extent(w, 0)?.into()),
                ("kernel_size", at.kernel.clone().into()),
            ],
        )
    };
    let y = match mask {
        None => displaced(n, w, groups)?,
        Some(mask) => {
            // What each tap of each channel sees, as a channel of its own; weighed by the mask, and summed by a convolution.
            let (channels, taps) = (n.extent(x, 1)?, at.kernel.iter().product::<i64>());
            n.ensure(offset_groups > 0 && channels % offset_groups == 0 && taps > 0, || {
                format!("{channels} channels do not divide into {offset_groups} groups of offsets")
            })?;
            let dtype = n.dtype(w)?;
            let eye = [channels * taps, 1, at.kernel[0], at.kernel[1]].map(|d| d as usize);
            let eye = Tensor::from_f64_fn(dtype, &eye, |i| {
                let (row, tap) = (i as i64 / taps, i as i64 % taps);
                f64::from(u8::from(row % taps == tap))
            });
            let eye = n.constant(eye);
            let seen = displaced(n, eye, channels)?;
            let shared = channels / offset_groups;
            let of: Vec<i64> = (0..channels * taps).map(|k| k / taps / shared * taps + k % taps).collect();
            let of = n.im.b.ints(&of);
            let mask = n.take(mask, of, 1)?;
            let mask = n.pad(mask, &[0; 4], &more, zero)?;
            let seen = n.mul(seen, mask)?;
            let shape = n.shape(w)?;
            let w = n.reshape(w, &[shape[0], shape[1] * taps, 1, 1])?;
            let attrs = [("channels", shape[0].into()), ("kernel_size", [1, 1].into()), ("groups", groups.into())];
            n.op("nn.conv2d", &[seen, w], &attrs)?
        }
    };
    // What belongs to the places that there are.
    let mut y = y;
    for (k, &more) in more.iter().enumerate().filter(|m| *m.1 > 0) {
        y = match n.dims(y)?[k] {
            Some(all) => n.slice(y, k, 0, all - more)?,
            None => n.slice(y, k, 0, -more)?,
        };
    }
    let y = biased(n, y, bias)?;
    n.one(y)
}
