//! Images: resizing, and space that becomes depth or batches.

use super::{
    super::node::Node,
    Results,
    shape::{pairs, zero_of},
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// The height and width that the second argument says, and those of the data.
fn sizes(n: &mut Node) -> Convert<([i64; 2], [i64; 2])> {
    let x = n.x(0)?;
    let size = n.ints(1)?;
    match size[..] {
        [h, w] if h > 0 && w > 0 && h < 1 << 20 && w < 1 << 20 => Ok(([n.extent(x, 1)?, n.extent(x, 2)?], [h, w])),
        _ => n.refuse(format!("a size of {size:?} has no meaning")),
    }
}

/// Rows, or columns, by number.
fn pick(n: &mut Node, x: ExprId, axis: i64, places: &[i64]) -> Convert {
    let places = Tensor::from_i64_fn(DType::I32, &[places.len()], |i| places[i]);
    let places = n.b.constant(places);
    n.op("take", &[x, places], &[("axis", axis.into()), ("mode", "clip".into())])
}

/// RESIZE_NEAREST_NEIGHBOR: which pixel is nearest is known from the sizes.
pub(in crate::frontend::tflite) fn resize_nearest(n: &mut Node) -> Results {
    let (corners, half) = (n.flag(0), n.flag(1));
    let mut e = n.x(0)?;
    if n.b.value(n.x(1)?).is_none() {
        return resize_computed(n, corners, half, "nearest_neighbor");
    }
    let (from, to) = sizes(n)?;
    for a in 0..2 {
        let scale = match corners && to[a] > 1 {
            true => (from[a] - 1) as f32 / (to[a] - 1) as f32,
            false => from[a] as f32 / to[a] as f32,
        };
        let offset = if half { 0.5f32 } else { 0.0 };
        let place = |o: i64| {
            let at = (o as f32 + offset) * scale;
            (if corners { at.round() } else { at.floor() } as i64).clamp(0, (from[a] - 1).max(0))
        };
        let places: Vec<i64> = (0..to[a]).map(place).collect();
        e = pick(n, e, a as i64 + 1, &places)?;
    }
    Ok(vec![e])
}

/// How Relay calls the coordinates.
fn coordinates(corners: bool, half: bool) -> &'static str {
    match (corners, half) {
        (true, _) => "align_corners",
        (_, true) => "half_pixel",
        _ => "asymmetric",
    }
}

/// A resize to a size that is known only at run time.
fn resize_computed(n: &mut Node, corners: bool, half: bool, method: &str) -> Results {
    let (x, size) = (n.x(0)?, n.x(1)?);
    let size = n.cast(size, DType::I64)?;
    let roi = n.b.constant(Tensor::zeros(DType::F32, &[4]));
    let nearest = method == "nearest_neighbor";
    let mode = if nearest && half { "tf_half_pixel_for_nn" } else { coordinates(corners, half) };
    let rounding = match (nearest, corners) {
        (false, _) => "",
        (_, true) => "round",
        _ => "floor",
    };
    let attrs = [
        ("layout", "NHWC".into()),
        ("method", method.into()),
        ("coordinate_transformation_mode", mode.into()),
        ("rounding_method", rounding.into()),
    ];
    Ok(vec![n.op("dyn.image.resize2d", &[x, size, roi], &attrs)?])
}

/// RESIZE_BILINEAR.
pub(in crate::frontend::tflite) fn resize_bilinear(n: &mut Node) -> Results {
    let (corners, half) = (n.flag(2), n.flag(3));
    let x = n.x(0)?;
    if n.b.value(n.x(1)?).is_none() {
        return resize_computed(n, corners, half, "linear");
    }
    let (from, to) = sizes(n)?;
    if !n.dtype(x)?.is_float() {
        return Ok(vec![bilinear_integers(n, x, from, to, corners, half)?]);
    }
    let attrs = [
        ("size", to.into()),
        ("layout", "NHWC".into()),
        ("method", "linear".into()),
        ("coordinate_transformation_mode", coordinates(corners && to.iter().all(|&t| t > 1), half).into()),
        ("rounding_method", "".into()),
    ];
    Ok(vec![n.op("image.resize2d", &[x], &attrs)?])
}

/// Bits behind the point of where a pixel of the result lies in the data.
const POINT: i64 = 10;

/// Bilinear interpolation with coordinates of 10 bits behind the point. Unsigned numbers are interpolated in floats, as the
/// reference kernel does it.
fn bilinear_integers(n: &mut Node, x: ExprId, from: [i64; 2], to: [i64; 2], corners: bool, half: bool) -> Convert {
    let dtype = n.dtype(x)?;
    let unsigned = dtype == DType::U8;
    let wide = if unsigned { DType::F32 } else { DType::I64 };
    let mut e = n.cast(x, wide)?;
    for a in 0..2 {
        let (mut low, mut high, mut weight) = (Vec::new(), Vec::new(), Vec::new());
        for o in 0..to[a] {
            if unsigned {
                let scale = match corners && to[a] > 1 {
                    true => (from[a] - 1) as f32 / (to[a] - 1) as f32,
                    false => from[a] as f32 / to[a] as f32,
                };
                let at = if half { (o as f32 + 0.5) * scale - 0.5 } else { o as f32 * scale };
                let lower = (at.floor() as i64).max(0);
                low.push(lower);
                high.push((at.ceil() as i64).min(from[a] - 1));
                weight.push((at - lower as f32) as f64);
            } else {
                let one = 1i64 << POINT;
                let scale = match corners && to[a] > 1 {
                    true => (one * (from[a] - 1) + (to[a] - 1) / 2) / (to[a] - 1),
                    false => (one * from[a] + to[a] / 2) / to[a],
                };
                let at = if half { o * scale + scale / 2 - one / 2 } else { o * scale };
                let lower = (at / one).max(0);
                low.push(lower);
                high.push(((at + one - 1) / one).min(from[a] - 1));
                weight.push((at - one * lower) as f64);
            }
        }
        // Weights along the axis, for all that comes after it.
        let shape: &[usize] = if a == 0 { &[weight.len(), 1, 1] } else { &[weight.len(), 1] };
        let whole = if unsigned { 1.0 } else { (1i64 << POINT) as f64 };
        let upper = n.b.constant(Tensor::from_f64_fn(wide, shape, |i| weight[i]));
        let lower = n.b.constant(Tensor::from_f64_fn(wide, shape, |i| whole - weight[i]));
        let (below, above) = (pick(n, e, a as i64 + 1, &low)?, pick(n, e, a as i64 + 1, &high)?);
        let (below, above) = (n.bin("multiply", below, lower)?, n.bin("multiply", above, upper)?);
        e = n.bin("add", below, above)?;
    }
    let e = if unsigned {
        n.with("add", e, 0.5)?
    } else {
        let half = (1i64 << (2 * POINT - 1)) as f64;
        let positive = n.with("greater", e, 0.0)?;
        let (more, less) = (n.with("add", e, half)?, n.with("subtract", e, half)?);
        let e = n.op("where", &[positive, more, less], &[])?;
        n.with("trunc_divide", e, (1i64 << (2 * POINT)) as f64)?
    };
    n.cast(e, dtype)
}

/// SPACE_TO_DEPTH.
pub(in crate::frontend::tflite) fn space_to_depth(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let attrs = [("block_size", n.int(0, 0).into()), ("layout", "NHWC".into())];
    Ok(vec![n.op("nn.space_to_depth", &[x], &attrs)?])
}

/// DEPTH_TO_SPACE.
pub(in crate::frontend::tflite) fn depth_to_space(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let attrs = [("block_size", n.int(0, 0).into()), ("layout", "NHWC".into()), ("mode", "DCR".into())];
    Ok(vec![n.op("nn.depth_to_space", &[x], &attrs)?])
}

/// SPACE_TO_BATCH_ND.
pub(in crate::frontend::tflite) fn space_to_batch(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let (block, paddings) = (n.ints(1)?, n.ints(2)?);
    let zero = if n.quantized()? { zero_of(n.output(0)?) } else { 0 };
    let attrs = [("block_shape", block.into()), ("paddings", pairs(&paddings)), ("pad_value", (zero as f64).into())];
    Ok(vec![n.op("nn.space_to_batch_nd", &[x], &attrs)?])
}

/// BATCH_TO_SPACE_ND.
pub(in crate::frontend::tflite) fn batch_to_space(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let (block, crops) = (n.ints(1)?, n.ints(2)?);
    Ok(vec![n.op("nn.batch_to_space_nd", &[x], &[("block_shape", block.into()), ("crops", pairs(&crops))])?])
}
