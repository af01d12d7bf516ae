//! Pooling: windows, whole images, and images cut into a given number of windows.

use super::{
    super::call::{Arg, Call},
    Class, Masks, class,
    conv::{Windows, data_layout, padding_attr},
};
use crate::{frontend::Convert, ir::ExprId};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("MaxPooling1D", Masks::Own, |c| windows(c, 1, true)),
    class("MaxPooling2D", Masks::Own, |c| windows(c, 2, true)),
    class("MaxPooling3D", Masks::Own, |c| windows(c, 3, true)),
    class("AveragePooling1D", Masks::Own, |c| windows(c, 1, false)),
    class("AveragePooling2D", Masks::Own, |c| windows(c, 2, false)),
    class("AveragePooling3D", Masks::Own, |c| windows(c, 3, false)),
    class("MaxPool1D", Masks::Own, |c| windows(c, 1, true)),
    class("MaxPool2D", Masks::Own, |c| windows(c, 2, true)),
    class("MaxPool3D", Masks::Own, |c| windows(c, 3, true)),
    class("AvgPool1D", Masks::Own, |c| windows(c, 1, false)),
    class("AvgPool2D", Masks::Own, |c| windows(c, 2, false)),
    class("AvgPool3D", Masks::Own, |c| windows(c, 3, false)),
    class("GlobalMaxPooling1D", Masks::Own, |c| global(c, 1, "max")),
    class("GlobalMaxPooling2D", Masks::Own, |c| global(c, 2, "max")),
    class("GlobalMaxPooling3D", Masks::Own, |c| global(c, 3, "max")),
    class("GlobalAveragePooling1D", Masks::Own, global_average_1d),
    class("GlobalAveragePooling2D", Masks::Own, |c| global(c, 2, "mean")),
    class("GlobalAveragePooling3D", Masks::Own, |c| global(c, 3, "mean")),
    class("GlobalMaxPool1D", Masks::Own, |c| global(c, 1, "max")),
    class("GlobalMaxPool2D", Masks::Own, |c| global(c, 2, "max")),
    class("GlobalMaxPool3D", Masks::Own, |c| global(c, 3, "max")),
    class("GlobalAvgPool1D", Masks::Own, global_average_1d),
    class("GlobalAvgPool2D", Masks::Own, |c| global(c, 2, "mean")),
    class("GlobalAvgPool3D", Masks::Own, |c| global(c, 3, "mean")),
    class("AdaptiveMaxPooling1D", Masks::Own, |c| adaptive(c, 1, "nn.adaptive_max_pool1d")),
    class("AdaptiveMaxPooling2D", Masks::Own, |c| adaptive(c, 2, "nn.adaptive_max_pool2d")),
    class("AdaptiveMaxPooling3D", Masks::Own, |c| adaptive(c, 3, "nn.adaptive_max_pool3d")),
    class("AdaptiveAveragePooling1D", Masks::Own, |c| adaptive(c, 1, "nn.adaptive_avg_pool1d")),
    class("AdaptiveAveragePooling2D", Masks::Own, |c| adaptive(c, 2, "nn.adaptive_avg_pool2d")),
    class("AdaptiveAveragePooling3D", Masks::Own, |c| adaptive(c, 3, "nn.adaptive_avg_pool3d")),
];

fn windows(c: &mut Call, spatial: usize, max: bool) -> Convert<Arg> {
    let x = c.input()?;
    let mut w = Windows::of(c, spatial, "pool_size")?;
    if c.layer.get("strides").is_none() {
        w.strides = w.size.clone();
    }
    pool(c, x, w, max).map(Arg::of)
}

/// The greatest, or the mean, of windows.
pub(super) fn pool(c: &mut Call, x: ExprId, w: Windows, max: bool) -> Convert {
    let spatial = w.size.len();
    let (x, w, pads) = match w.pads(c, x)? {
        Some(pads) => (x, w, pads),
        None if max => {
            let (x, w) = w.padded_while_running(c, x, f64::NEG_INFINITY)?;
            (x, w, vec![(0, 0); spatial])
        }
        None => {
            // How much of each window counts is a mean, too: of ones that are padded alike.
            let ones = c.op("ones_like", &[x], &[])?;
            let [sums, counts] = [x, ones].map(|x| {
                let (x, w) = w.padded_while_running(c, x, 0.0)?;
                relays_pool(c, x, &w, &vec![(0, 0); spatial], false)
            });
            return c.bin("divide", sums?, counts?);
        }
    };
    relays_pool(c, x, &w, &pads, max)
}

/// The same by Relay's operator, with padding that is known; of means, what pads does not count.
fn relays_pool(c: &mut Call, x: ExprId, w: &Windows, pads: &[(i64, i64)], max: bool) -> Convert {
    let spatial = w.size.len();
    let attrs = [
        ("pool_size", w.size.clone().into()),
        ("strides", w.strides.clone().into()),
        ("padding", padding_attr(pads).into()),
        ("layout", data_layout(spatial, w.channels_last).into()),
    ];
    let names = match max {
        true => ["nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"],
        false => ["nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"],
    };
    c.op(names[spatial.clamp(1, 3) - 1], &[x], &attrs)
}

fn spatial_axes(c: &Call, spatial: usize) -> Vec<i64> {
    let first = if c.layer.channels_last() { 1 } else { 2 };
    (first..first + spatial as i64).collect()
}

fn global(c: &mut Call, spatial: usize, how: &str) -> Convert<Arg> {
    let x = c.input()?;
    if c.rank(x)? != spatial + 2 {
        return Err(c.refuse(format!("its input has {} axes, not {}", c.rank(x)?, spatial + 2)));
    }
    let axes = spatial_axes(c, spatial);
    let keep = c.layer.bool("keepdims", false);
    c.reduce(how, x, &axes, keep).map(Arg::of)
}

/// The mean of the steps that count.
fn global_average_1d(c: &mut Call) -> Convert<Arg> {
    let Some(mask) = c.mask()? else { return global(c, 1, "mean") };
    let x = c.input()?;
    let axes = spatial_axes(c, 1);
    let keep = c.layer.bool("keepdims", false);
    let dtype = c.dtype(x)?;
    let mask = c.cast(mask, dtype)?;
    let mask = c.expand(mask, if axes[0] == 1 { 2 } else { 1 }, 1)?;
    let kept = c.bin("multiply", x, mask)?;
    let sum = c.reduce("sum", kept, &axes, keep)?;
    let count = c.reduce("sum", mask, &axes, keep)?;
    c.bin("divide", sum, count).map(Arg::of)
}

fn adaptive(c: &mut Call, spatial: usize, name: &str) -> Convert<Arg> {
    let x = c.input()?;
    let size = c.layer.positive_sizes("output_size", spatial, 1)?;
    let layout = data_layout(spatial, c.layer.channels_last());
    c.op(name, &[x], &[("output_size", size.into()), ("layout", layout.into())]).map(Arg::of)
}
