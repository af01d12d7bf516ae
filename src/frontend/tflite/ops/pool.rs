//! Pooling.

use super::{super::node::Node, Results, conv::same_padding};
use crate::{
    frontend::Convert,
    ir::{AttrValue, ExprId},
    tensor::{DType, Tensor},
};

/// A pooling's window and where it is padded.
struct Window {
    size: [i64; 2],
    strides: [i64; 2],
    /// Before and after, rows first.
    pads: [(i64, i64); 2],
}

fn window(n: &Node) -> Convert<Window> {
    let x = n.x(0)?;
    if n.rank(x)? != 4 {
        return n.refuse("data should have four axes");
    }
    let (size, strides) = ([n.int(4, 0), n.int(3, 0)], [n.int(2, 0), n.int(1, 0)]);
    if size.iter().chain(&strides).any(|v| !(1..1 << 20).contains(v)) {
        return n.refuse(format!("a window of {size:?} by {strides:?} has no meaning"));
    }
    let mut pads = [(0, 0); 2];
    if n.byte(0) == 0 {
        for a in 0..2 {
            pads[a] = same_padding(n.extent(x, a + 1)?, size[a], strides[a], 1);
        }
    }
    Ok(Window { size, strides, pads })
}

impl Window {
    fn attrs(&self) -> Vec<(&'static str, AttrValue)> {
        let [(top, bottom), (left, right)] = self.pads;
        vec![
            ("pool_size", self.size.into()),
            ("strides", self.strides.into()),
            ("padding", [top, left, bottom, right].into()),
            ("layout", "NHWC".into()),
        ]
    }

    /// How many elements each window holds that are no padding, along one axis.
    fn counts(&self, axis: usize, extent: i64) -> Vec<i64> {
        let (before, after) = self.pads[axis];
        let outputs = (extent + before + after - self.size[axis]) / self.strides[axis] + 1;
        (0..outputs.max(0))
            .map(|o| {
                let start = o * self.strides[axis] - before;
                (start + self.size[axis]).min(extent) - start.max(0)
            })
            .collect()
    }
}

fn activated(n: &mut Node, e: ExprId) -> Results {
    let code = n.byte(5);
    Ok(vec![match n.quantized()? {
        true => n.activate_quantized(e, code)?,
        false => n.activate(e, code)?,
    }])
}

/// MAX_POOL_2D.
pub(in crate::frontend::tflite) fn max(n: &mut Node) -> Results {
    let (x, w) = (n.x(0)?, window(n)?);
    let e = n.op("nn.max_pool2d", &[x], &w.attrs())?;
    activated(n, e)
}

/// AVERAGE_POOL_2D: of quantized numbers, the sum of the integers divided with halves away from zero.
pub(in crate::frontend::tflite) fn average(n: &mut Node) -> Results {
    let (x, w) = (n.x(0)?, window(n)?);
    if !n.quantized()? {
        let e = n.op("nn.avg_pool2d", &[x], &w.attrs())?;
        return activated(n, e);
    }
    let (height, width, channels) = (n.extent(x, 1)?, n.extent(x, 2)?, n.extent(x, 3)?);
    let dtype = n.dtype(x)?;
    let windows = height.saturating_mul(width).max(w.size[0].saturating_mul(w.size[1]).saturating_mul(channels));
    if windows > 1 << 24 {
        return n.refuse(format!("windows of {:?} in {height} by {width} are not supported", w.size));
    }
    let sums = if w.size == [height, width] && w.pads == [(0, 0); 2] {
        let wide = n.cast(x, DType::I32)?;
        n.op("sum", &[wide], &[("axis", [1, 2].into()), ("keepdims", true.into())])?
    } else {
        // Sums of windows are a convolution of each channel with ones.
        let wide = n.cast(x, DType::I32)?;
        let shape = [w.size[0] as usize, w.size[1] as usize, channels as usize, 1];
        let ones = n.b.constant(Tensor::from_i64_fn(DType::I32, &shape, |_| 1));
        let [(top, bottom), (left, right)] = w.pads;
        let attrs = [
            ("strides", w.strides.into()),
            ("padding", [top, left, bottom, right].into()),
            ("groups", channels.into()),
            ("kernel_size", w.size.into()),
            ("data_layout", "NHWC".into()),
            ("kernel_layout", if channels == 1 { "HWIO".into() } else { "HWOI".into() }),
            ("out_dtype", DType::I32.into()),
        ];
        n.op("nn.conv2d", &[wide, ones], &attrs)?
    };
    let (rows, columns) = (w.counts(0, height), w.counts(1, width));
    let count = Tensor::from_i64_fn(DType::I32, &[rows.len(), columns.len(), 1], |i| {
        rows[i / columns.len()] * columns[i % columns.len()]
    });
    let half = Tensor::from_i64_fn(DType::I32, count.shape(), |i| count.get_i64(i) / 2);
    let (count, half) = (n.b.constant(count), n.b.constant(half));
    let positive = n.with("greater", sums, 0.0)?;
    let (more, less) = (n.bin("add", sums, half)?, n.bin("subtract", sums, half)?);
    let e = n.op("where", &[positive, more, less], &[])?;
    let e = n.bin("trunc_divide", e, count)?;
    let e = n.cast(e, dtype)?;
    activated(n, e)
}

/// L2_POOL_2D: the root of the mean of squares.
pub(in crate::frontend::tflite) fn l2(n: &mut Node) -> Results {
    let (x, w) = (n.x(0)?, window(n)?);
    let square = n.bin("multiply", x, x)?;
    let mean = n.op("nn.avg_pool2d", &[square], &w.attrs())?;
    let e = n.un("sqrt", mean)?;
    activated(n, e)
}
