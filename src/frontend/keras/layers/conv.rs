//! Convolutions, in the layout that the data has.

use super::{
    super::call::{Arg, Call},
    Class, Masks, activation, class,
    core::bias_along,
};
use crate::{frontend::Convert, ir::ExprId, tensor::Tensor};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("Conv1D", Masks::Own, |c| conv(c, 1)),
    class("Conv2D", Masks::Own, |c| conv(c, 2)),
    class("Conv3D", Masks::Own, |c| conv(c, 3)),
    class("DepthwiseConv1D", Masks::Own, |c| depthwise(c, 1)),
    class("DepthwiseConv2D", Masks::Own, |c| depthwise(c, 2)),
    class("SeparableConv1D", Masks::Own, |c| separable(c, 1)),
    class("SeparableConv2D", Masks::Own, |c| separable(c, 2)),
    // Keras 1 and 2 knew them by these names, too.
    class("Convolution1D", Masks::Own, |c| conv(c, 1)),
    class("Convolution2D", Masks::Own, |c| conv(c, 2)),
    class("Convolution3D", Masks::Own, |c| conv(c, 3)),
    class("SeparableConvolution1D", Masks::Own, |c| separable(c, 1)),
    class("SeparableConvolution2D", Masks::Own, |c| separable(c, 2)),
];

/// The layout of data with so many spatial axes.
pub(super) fn data_layout(spatial: usize, last: bool) -> &'static str {
    match (spatial, last) {
        (1, true) => "NWC",
        (1, false) => "NCW",
        (2, true) => "NHWC",
        (2, false) => "NCHW",
        (_, true) => "NDHWC",
        (_, false) => "NCDHW",
    }
}

fn kernel_layout(spatial: usize) -> &'static str {
    ["WIO", "HWIO", "DHWIO"][spatial.clamp(1, 3) - 1]
}

/// Where windows go over spatial axes.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    pub size: Vec<i64>,
    pub strides: Vec<i64>,
    pub dilation: Vec<i64>,
    /// `valid`, `same` or `causal`.
    pub padding: String,
    pub channels_last: bool,
}

impl Windows {
    /// As a layer says.
    pub(super) fn of(c: &Call, spatial: usize, size: &str) -> Convert<Windows> {
        let size = c.layer.positive_sizes(size, spatial, 1)?;
        let strides = c.layer.positive_sizes("strides", spatial, 1)?;
        let dilation = c.layer.positive_sizes("dilation_rate", spatial, 1)?;
        let padding = c.layer.str("padding").unwrap_or("valid").to_owned();
        if !["valid", "same", "causal"].contains(&padding.as_str()) {
            return Err(c.refuse(format!("its padding `{padding}` is unknown")));
        }
        Ok(Windows { size, strides, dilation, padding, channels_last: c.layer.channels_last() })
    }

    /// The first spatial axis.
    pub(super) fn first(&self) -> usize {
        if self.channels_last { 1 } else { 2 }
    }

    /// The axis of channels.
    pub(super) fn channels(&self) -> i64 {
        if self.channels_last { -1 } else { 1 }
    }

    /// How far a window reaches along an axis.
    pub(super) fn reach(&self, axis: usize) -> i64 {
        (self.size[axis] - 1).saturating_mul(self.dilation[axis]) + 1
    }

    /// Elements before and after each spatial axis; none where they depend on an extent that is not known.
    pub(super) fn pads(&self, c: &Call, x: ExprId) -> Convert<Option<Vec<(i64, i64)>>> {
        let shape = c.shape(x)?;
        let spatial = self.size.len();
        if shape.len() != spatial + 2 {
            return Err(c.refuse(format!("its input has {} axes, not {}", shape.len(), spatial + 2)));
        }
        let pads = (0..spatial).map(|i| {
            let reach = self.reach(i);
            Some(match (self.padding.as_str(), shape[self.first() + i]) {
                ("causal", _) => (reach - 1, 0),
                ("same", Some(n)) => {
                    let windows = (n + self.strides[i] - 1) / self.strides[i];
                    let total = ((windows - 1) * self.strides[i] + reach - n).max(0);
                    (total / 2, total - total / 2)
                }
                // Whatever the extent is, there are as many windows as elements.
                ("same", None) if self.strides[i] == 1 => ((reach - 1) / 2, reach / 2),
                ("same", None) => return None,
                _ => (0, 0),
            })
        });
        Ok(pads.collect())
    }

    /// The data padded as its extents want while the program runs, and the windows over that.
    pub(super) fn padded_while_running(&self, c: &mut Call, x: ExprId, value: f64) -> Convert<(ExprId, Windows)> {
        let first = self.first();
        let axes: Vec<(usize, i64, i64)> =
            (0..self.size.len()).map(|i| (first + i, self.reach(i), self.strides[i])).collect();
        let value = c.number(x, value)?;
        let x = c.s.b.same_padded(x, &axes, true, value)?;
        Ok((x, Windows { padding: "valid".to_owned(), ..self.clone() }))
    }
}

/// All numbers before the axes, then all after them: as Relay's operators take padding.
pub(super) fn padding_attr(pads: &[(i64, i64)]) -> Vec<i64> {
    pads.iter().map(|p| p.0).chain(pads.iter().map(|p| p.1)).collect()
}

/// A convolution with a kernel of (spatial.., inputs of a group, outputs).
pub(super) fn convolve(c: &mut Call, x: ExprId, kernel: ExprId, w: &Windows, groups: i64) -> Convert {
    let spatial = w.size.len();
    let (x, w, pads) = match w.pads(c, x)? {
        Some(pads) => (x, w.clone(), pads),
        None => {
            let (x, w) = w.padded_while_running(c, x, 0.0)?;
            (x, w, vec![(0, 0); spatial])
        }
    };
    let kernel_shape = c.shape(kernel)?;
    let attrs = [
        ("strides", w.strides.clone().into()),
        ("padding", padding_attr(&pads).into()),
        ("dilation", w.dilation.clone().into()),
        ("groups", groups.into()),
        ("channels", kernel_shape.last().copied().flatten().unwrap_or_default().into()),
        ("kernel_size", w.size.clone().into()),
        ("data_layout", data_layout(spatial, w.channels_last).into()),
        ("kernel_layout", kernel_layout(spatial).into()),
    ];
    let name = ["nn.conv1d", "nn.conv2d", "nn.conv3d"][spatial.clamp(1, 3) - 1];
    c.op(name, &[x, kernel], &attrs)
}

/// The bias, where there is one, and the activation.
pub(super) fn finished(c: &mut Call, y: ExprId, bias: usize, channels: i64) -> Convert<Arg> {
    let mut y = y;
    if c.layer.bool("use_bias", true) {
        let bias = c.weight(bias, "bias")?;
        y = bias_along(c, y, bias, channels)?;
    }
    activation::configured(c, "activation", y).map(Arg::of)
}

fn conv(c: &mut Call, spatial: usize) -> Convert<Arg> {
    let x = c.input()?;
    let w = Windows::of(c, spatial, "kernel_size")?;
    let groups = c.layer.get("groups").map_or(Ok(1), |_| c.layer.int("groups"))?;
    if groups < 1 {
        return Err(c.refuse("its `groups` is not positive"));
    }
    let kernel = c.weight(0, "kernel")?;
    let y = convolve(c, x, kernel, &w, groups)?;
    finished(c, y, 1, w.channels())
}

/// A kernel of (spatial.., channels, multiplier) as one of groups: (spatial.., 1, channels * multiplier).
fn as_groups(t: Tensor) -> Result<Tensor, String> {
    let Some((&[channels, multiplier], spatial)) = t.shape().split_last_chunk::<2>().map(|(s, l)| (l, s)) else {
        return Err("it has too few axes".to_owned());
    };
    let shape: Vec<usize> = spatial.iter().copied().chain([1, channels * multiplier]).collect();
    Ok(t.reshaped(&shape))
}

fn depthwise_part(c: &mut Call, x: ExprId, w: &Windows, name: &str) -> Convert {
    let channels = c.array(0, name)?;
    let rank = channels.shape().len();
    let groups = channels.shape().get(rank.saturating_sub(2)).copied().unwrap_or_default() as i64;
    let kernel = c.weight_as(0, name, "groups", as_groups)?;
    convolve(c, x, kernel, w, groups)
}

/// Keras 3 calls it `kernel`, Keras 2 `depthwise_kernel`.
fn depthwise_name(c: &mut Call) -> Convert<&'static str> {
    Ok(if c.array_if_there(0, "kernel")?.is_some() { "kernel" } else { "depthwise_kernel" })
}

fn depthwise(c: &mut Call, spatial: usize) -> Convert<Arg> {
    let x = c.input()?;
    let w = Windows::of(c, spatial, "kernel_size")?;
    let name = depthwise_name(c)?;
    let y = depthwise_part(c, x, &w, name)?;
    finished(c, y, 1, w.channels())
}

fn separable(c: &mut Call, spatial: usize) -> Convert<Arg> {
    let x = c.input()?;
    let w = Windows::of(c, spatial, "kernel_size")?;
    let y = depthwise_part(c, x, &w, "depthwise_kernel")?;
    let kernel = c.weight(1, "pointwise_kernel")?;
    let ones = vec![1; spatial];
    let points = Windows {
        size: ones.clone(),
        strides: ones.clone(),
        dilation: ones,
        padding: "valid".to_owned(),
        channels_last: w.channels_last,
    };
    let y = convolve(c, y, kernel, &points, 1)?;
    finished(c, y, 2, w.channels())
}
