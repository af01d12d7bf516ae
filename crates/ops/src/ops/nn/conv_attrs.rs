//! The attributes that all convolutions have.

use super::geometry::{Window, layout_of, paddings, per_axis, whole};
use crate::{
    ir::{Attrs, Dim},
    ops::{OpError, op_ensure},
    tensor::Layout,
};

/// A convolution's attributes, read and checked.
#[derive(Clone, Debug)]
pub(in crate::ops) struct ConvAttrs {
    /// The spatial axes' letters, outermost first.
    pub(in crate::ops) spatial: &'static str,
    /// Layouts of data, weight and result.
    pub(in crate::ops) data: Layout,
    pub(in crate::ops) kernel: Layout,
    pub(in crate::ops) out: Layout,
    pub(in crate::ops) groups: i64,
    pub(in crate::ops) strides: Vec<i64>,
    pub(in crate::ops) dilation: Vec<i64>,
    pub(in crate::ops) padding: Vec<(i64, i64)>,
}

impl ConvAttrs {
    /// The attributes of a convolution over the axes of `spatial`.
    pub(in crate::ops) fn new(attrs: &Attrs, spatial: &'static str) -> Result<ConvAttrs, OpError> {
        let axes = spatial.len();
        let nc = ["NC", spatial].concat();
        let data_layout = attrs.str("data_layout");
        let out = match attrs.str("out_layout") {
            "" => data_layout,
            given => given,
        };
        let groups = attrs.int("groups");
        op_ensure!(groups > 0, "C5: `groups` is {groups}, but should be positive");
        let padding = paddings(attrs, axes)?;
        op_ensure!(
            padding.iter().all(|p| p.0 >= 0 && p.1 >= 0),
            "C6: `padding` is {padding:?}, but should not be negative"
        );
        let kernel = attrs.str("kernel_layout");
        let axes_of_kernel = [if kernel.contains('G') { "GOI" } else { "OI" }, spatial].concat();
        let kernel = layout_of(kernel, "kernel_layout", &axes_of_kernel, "OI")?;
        let data = layout_of(data_layout, "data_layout", &nc, "C")?;
        Ok(ConvAttrs {
            spatial,
            out: if out == data_layout { data.clone() } else { layout_of(out, "out_layout", &nc, "C")? },
            data,
            kernel,
            groups,
            strides: per_axis(attrs, "strides", axes)?,
            dilation: per_axis(attrs, "dilation", axes)?,
            padding,
        })
    }

    /// The window along spatial axis number `k`, of so many taps.
    pub(in crate::ops) fn window(&self, k: usize, kernel: i64) -> Window {
        let (before, after) = self.padding[k];
        Window { kernel, stride: self.strides[k], dilation: self.dilation[k], before, after }
    }

    /// Whether each channel is convolved by itself, with the weight's output axis counting input channels and its input
    /// axis the results per channel. (A weight of one result per channel reads the same either way.)
    pub(in crate::ops) fn is_depthwise(&self, data: &[Dim], weight: &[Dim]) -> bool {
        let groups = Dim::Known(self.groups);
        self.groups > 1 && whole(&self.data, data, 'C') == groups && self.weight_out(weight) == groups
    }

    /// The whole extent of the weight's output axis, groups included.
    pub(in crate::ops) fn weight_out(&self, weight: &[Dim]) -> Dim {
        match (whole(&self.kernel, weight, 'G'), whole(&self.kernel, weight, 'O')) {
            (Dim::Known(g), Dim::Known(o)) => Dim::Known(g * o),
            (_, unknown) => unknown,
        }
    }

    /// Input channels that feed one output channel.
    pub(in crate::ops) fn channels_per_group(&self, data: &[Dim]) -> Option<i64> {
        whole(&self.data, data, 'C').known().map(|c| c / self.groups)
    }
}
