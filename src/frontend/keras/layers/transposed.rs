//! Transposed convolutions.

use super::{
    super::call::{Arg, Call},
    Class, Masks, class,
    conv::{Windows, data_layout, finished, padding_attr},
};
use crate::{frontend::Convert, ir::ExprId, tensor::Tensor};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("Conv1DTranspose", Masks::Own, |c| layer(c, 1)),
    class("Conv2DTranspose", Masks::Own, |c| layer(c, 2)),
    class("Conv3DTranspose", Masks::Own, |c| layer(c, 3)),
    // Keras 1 and 2 knew them by these names, too.
    class("Convolution2DTranspose", Masks::Own, |c| layer(c, 2)),
    class("Convolution3DTranspose", Masks::Own, |c| layer(c, 3)),
];

fn layer(c: &mut Call, spatial: usize) -> Convert<Arg> {
    let x = c.input()?;
    let w = Windows::of(c, spatial, "kernel_size")?;
    let output_padding = match c.layer.get("output_padding") {
        None => None,
        Some(_) => Some(c.layer.sizes("output_padding", spatial, 0)?),
    };
    let groups = c.layer.get("groups").map_or(Ok(1), |_| c.layer.int("groups"))?;
    if groups != 1 {
        return Err(c.refuse("transposed convolutions in groups are not supported"));
    }
    // (spatial.., outputs, inputs) becomes (inputs, outputs, spatial..).
    let kernel = c.weight_as(0, "kernel", "inputs first", |t| inputs_first(&t))?;
    let y = convolve(c, x, kernel, &w, output_padding.as_deref())?;
    finished(c, y, 1, w.channels())
}

fn inputs_first(t: &Tensor) -> Result<Tensor, String> {
    let Some((&[outputs, inputs], spatial)) = t.shape().split_last_chunk::<2>().map(|(s, l)| (l, s)) else {
        return Err("it has too few axes".to_owned());
    };
    let places: usize = spatial.iter().product();
    let shape: Vec<usize> = [inputs, outputs].into_iter().chain(spatial.iter().copied()).collect();
    Ok(t.pick(&shape, |e| {
        let (place, channel) = (e % places, e / places);
        let (output, input) = (channel % outputs, channel / outputs);
        Some((place * outputs + output) * inputs + input)
    }))
}

fn convolve(c: &mut Call, x: ExprId, kernel: ExprId, w: &Windows, output_padding: Option<&[i64]>) -> Convert {
    let spatial = w.size.len();
    if c.rank(x)? != spatial + 2 {
        return Err(c.refuse(format!("its input has {} axes, not {}", c.rank(x)?, spatial + 2)));
    }
    let (mut pads, mut longer) = (Vec::new(), Vec::new());
    for i in 0..spatial {
        let (reach, stride) = (w.reach(i), w.strides[i]);
        // How much longer the output is than (n - 1) * stride.
        let more = match (w.padding.as_str(), output_padding) {
            ("same", None) => stride,
            ("same", Some(o)) => reach % 2 + o[i],
            (_, None) => reach.max(stride),
            (_, Some(o)) => reach + o[i],
        };
        let total = if w.padding == "same" { (reach - more).max(0) } else { 0 };
        pads.push((total / 2, total - total / 2));
        longer.push(more - (reach - total));
    }
    let kernel_shape = c.shape(kernel)?;
    let channels = kernel_shape.get(1).copied().flatten().unwrap_or_default();
    let attrs = [
        ("channels", channels.into()),
        ("kernel_size", w.size.clone().into()),
        ("strides", w.strides.clone().into()),
        ("padding", padding_attr(&pads).into()),
        ("output_padding", longer.into()),
        ("dilation", w.dilation.clone().into()),
        ("data_layout", data_layout(spatial, w.channels_last).into()),
        ("kernel_layout", ["IOW", "IOHW", "IODHW"][spatial - 1].into()),
    ];
    let name = ["nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"][spatial - 1];
    c.op(name, &[x, kernel], &attrs)
}
