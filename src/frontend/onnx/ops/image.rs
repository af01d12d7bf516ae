//! Sampling of images, and boxes in them.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("AffineGrid", affine_grid),
    row("Col2Im", col2im),
    row("GridSample", grid_sample),
    row("ImageDecoder", decoder),
    row("MaxRoiPool", max_roi_pool),
    row("NonMaxSuppression", non_max_suppression),
    row("RoiAlign", roi_align),
];

fn grid_sample(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, grid) = (n.x(0)?, n.x(1)?);
    let mode = match n.text("mode", if n.version < 20 { "bilinear" } else { "linear" })?.as_str() {
        "linear" | "bilinear" => "bilinear",
        "nearest" => "nearest",
        "cubic" | "bicubic" => "bicubic",
        other => return Err(n.refuse(format!("there is no mode `{other}`"))),
    };
    let (padding, corners) = (n.text("padding_mode", "zeros")?, n.flag("align_corners", false)?);
    let rank = n.rank(x)?;
    n.ensure((4..=5).contains(&rank), || format!("{rank} axes are not supported"))?;
    let axes: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let grid = n.transpose(grid, &axes)?;
    let layout = if rank == 4 { "NCHW" } else { "NCDHW" };
    let attrs = [
        ("method", mode.into()),
        ("layout", layout.into()),
        ("padding_mode", padding.as_str().into()),
        ("align_corners", corners.into()),
    ];
    let y = n.op("image.grid_sample", &[x, grid], &attrs)?;
    n.one(y)
}

fn decoder(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, format) = (n.x(0)?, n.text("pixel_format", "RGB")?);
    let y = n.op("image.decode", &[x], &[("pixel_format", format.as_str().into())])?;
    n.one(y)
}

fn affine_grid(n: &mut Node) -> Convert<Vec<Val>> {
    let (theta, size) = (n.x(0)?, n.x(1)?);
    let corners = n.flag("align_corners", false)?;
    let count = n.extent(theta, 1)? as usize;
    let dtype = n.dtype(theta)?;
    let size = n.cast(size, DType::I64)?;
    // Coordinates along each spatial axis, from the last one on, and a one.
    let mut lines = Vec::new();
    for k in 0..count {
        let extent = n.index(size, 0, 2 + k as i64)?;
        let (zero, one) = (n.c(extent, 0.0)?, n.c(extent, 1.0)?);
        let i = n.op("arange", &[zero, extent, one], &[("dtype", DType::I64.into())])?;
        let i = n.cast(i, dtype)?;
        let long = n.cast(extent, dtype)?;
        let line = if corners {
            let steps = n.with("subtract", long, 1.0)?;
            let twice = n.with("multiply", i, 2.0)?;
            n.div(twice, steps)?
        } else {
            let twice = n.with("multiply", i, 2.0)?;
            let middle = n.with("add", twice, 1.0)?;
            n.div(middle, long)?
        };
        let line = n.with("subtract", line, 1.0)?;
        // Its axis among the result's: N, the spatial ones, and the coordinates.
        let line = n.trailing(line, count - 1 - k)?;
        lines.push(line);
    }
    // theta has a row for each coordinate, which is x first.
    let mut coordinates = Vec::new();
    for row in 0..count {
        let row_of = n.index(theta, 1, row as i64)?;
        let column = |n: &mut Node, c: usize| -> Convert {
            let v = n.index(row_of, 1, c as i64)?;
            n.trailing(v, count)
        };
        let mut sum = column(n, count)?;
        for c in 0..count {
            let t = column(n, c)?;
            let part = n.mul(t, lines[count - 1 - c])?;
            sum = n.add(sum, part)?;
        }
        coordinates.push(sum);
    }
    let y = n.stack(&coordinates, count + 1)?;
    n.one(y)
}

fn col2im(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, image, block) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let count = n.extent(image, 0)? as usize;
    let list = |name: &str, default: i64, len: usize| -> Convert<Vec<i64>> {
        let l = n.ints(name)?.unwrap_or_else(|| vec![default; len]);
        n.ensure(l.len() == len, || format!("its attribute `{name}` should have {len} numbers"))?;
        Ok(l)
    };
    let (dilations, pads, strides) =
        (list("dilations", 1, count)?, list("pads", 0, 2 * count)?, list("strides", 1, count)?);
    let (image, block) = (n.cast(image, DType::I64)?, n.cast(block, DType::I64)?);
    let shape = n.shape(x)?;
    let [batch, rows, columns] = shape[..] else { return Err(n.refuse("its input should have three axes")) };
    let line =
        |n: &mut Node, count: i64| n.constant(Tensor::from_i64_fn(DType::I64, &[count.max(0) as usize], |i| i as i64));
    let taps = n.reduce("prod", block, &[0], false)?;
    // Of the rows, those of one channel follow each other: an element's place within the window, and the window's.
    let row = line(n, rows);
    let channel = n.bin("floor_divide", row, taps)?;
    let mut tap = n.bin("floor_mod", row, taps)?;
    let mut window = line(n, columns);
    let total = n.reduce("prod", image, &[0], false)?;
    let mut place: Option<ExprId> = None;
    let mut inside: Option<ExprId> = None;
    let mut weight: Option<ExprId> = None;
    for k in (0..count).rev() {
        let (size, reach) = (n.index(image, 0, k as i64)?, n.index(block, 0, k as i64)?);
        let padded = n.with("add", size, (pads[k] + pads[k + count] - 1) as f64)?;
        let less = n.with("subtract", reach, 1.0)?;
        let less = n.with("multiply", less, dilations[k] as f64)?;
        let room = n.sub(padded, less)?;
        let steps = n.with("floor_divide", room, strides[k] as f64)?;
        let steps = n.with("add", steps, 1.0)?;
        let (w, t) = (n.bin("floor_mod", window, steps)?, n.bin("floor_mod", tap, reach)?);
        (window, tap) = (n.bin("floor_divide", window, steps)?, n.bin("floor_divide", tap, reach)?);
        let w = n.with("multiply", w, strides[k] as f64)?;
        let t = n.with("multiply", t, dilations[k] as f64)?;
        let t = n.with("subtract", t, pads[k] as f64)?;
        let t = n.trailing(t, 1)?;
        let p = n.add(t, w)?;
        let (low, high) = (n.with("greater_equal", p, 0.0)?, n.bin("less", p, size)?);
        let both = n.bin("logical_and", low, high)?;
        inside = Some(match inside {
            None => both,
            Some(i) => n.bin("logical_and", i, both)?,
        });
        let part = match weight {
            None => p,
            Some(w) => n.mul(p, w)?,
        };
        place = Some(match place {
            None => part,
            Some(s) => n.add(s, part)?,
        });
        weight = Some(match weight {
            None => size,
            Some(w) => n.mul(w, size)?,
        });
    }
    let (Some(place), Some(inside)) = (place, inside) else { return Err(n.refuse("the image has no axes")) };
    // Channels lie one after another; what falls into the padding goes to a place behind them all.
    let start = n.mul(channel, total)?;
    let start = n.trailing(start, 1)?;
    let place = n.add(place, start)?;
    let below = n.c(taps, rows as f64)?;
    let channels = n.bin("floor_divide", below, taps)?;
    let length = n.mul(channels, total)?;
    let place = n.select(inside, place, length)?;
    let place = n.reshape(place, &[1, rows * columns])?;
    let place = n.broadcast(place, &[batch, rows * columns])?;
    let flat = n.reshape(x, &[batch, rows * columns])?;
    let vector = |n: &mut Node, e: ExprId| n.reshape(e, &[1]);
    let longer = n.with("add", length, 1.0)?;
    let (all, longer) = (n.im.b.ints(&[batch]), vector(n, longer)?);
    let extents = n.concat(&[all, longer], 0)?;
    let zero = n.c(x, 0.0)?;
    let empty = n.filled(zero, extents)?;
    let sum = n.op("scatter_elements", &[empty, place, flat], &[("axis", 1.into()), ("reduction", "add".into())])?;
    let (zeros, ones) = (n.im.b.ints(&[0, 0]), n.im.b.ints(&[1, 1]));
    let length = vector(n, length)?;
    let end = n.concat(&[all, length], 0)?;
    let kept = match n.value(end) {
        Some(v) => n.slice(sum, 1, 0, v.get_i64(1))?,
        None => n.op("dyn.strided_slice", &[sum, zeros, end, ones], &[])?,
    };
    let channels = vector(n, channels)?;
    let full = n.concat(&[all, channels, image], 0)?;
    let y = n.reshape_to(kept, full)?;
    n.one(y)
}

fn roi_align(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, rois, batch) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let (h, w) = (n.int("output_height", 1)?, n.int("output_width", 1)?);
    let (ratio, mode) = (n.int("sampling_ratio", 0)?, n.text("mode", "avg")?);
    let scale = n.float("spatial_scale", 1.0)?;
    let default = if n.version >= 16 { "half_pixel" } else { "output_half_pixel" };
    let half = n.text("coordinate_transformation_mode", default)? == "half_pixel";
    let mut rois = n.cast(rois, n.dtype(x)?)?;
    if mode == "max" {
        let y = roi_max(n, [x, rois, batch], [h, w], ratio, scale, half)?;
        return n.one(y);
    }
    if half {
        rois = n.with("subtract", rois, 0.5 / scale)?;
    }
    let batch = n.cast(batch, n.dtype(x)?)?;
    let batch = n.trailing(batch, 1)?;
    let rois = n.concat(&[batch, rois], 1)?;
    let attrs = [
        ("pooled_size", [h, w].into()),
        ("spatial_scale", scale.into()),
        ("sample_ratio", ratio.into()),
        ("mode", mode.as_str().into()),
    ];
    let y = n.op("vision.roi_align", &[x, rois], &attrs)?;
    n.one(y)
}

/// The greatest share that any neighbour of any sampling point has, where ONNX takes the maximum (Relay takes that of the points).
fn roi_max(n: &mut Node, [x, rois, batch]: [ExprId; 3], size: [i64; 2], ratio: i64, scale: f64, half: bool) -> Convert {
    let dtype = n.dtype(x)?;
    let batch = n.cast(batch, DType::I64)?;
    let x = n.take(x, batch, 0)?;
    let rois = n.with("multiply", rois, scale)?;
    let rois = if half { n.with("subtract", rois, 0.5)? } else { rois };
    // Along each spatial axis: places before and after the points, their shares, and whether there is a point.
    let mut axes = Vec::new();
    for (k, &bins) in size.iter().enumerate() {
        let (from, to) = (n.slice(rois, 1, 1 - k as i64, 2 - k as i64)?, n.slice(rois, 1, 3 - k as i64, 4 - k as i64)?);
        let long = n.sub(to, from)?;
        let long = if half { long } else { n.with("maximum", long, 1.0)? };
        let bin = n.with("divide", long, bins as f64)?;
        let grid = match ratio {
            0 => n.un("ceil", bin)?,
            _ => {
                let none = n.with("multiply", bin, 0.0)?;
                n.with("add", none, ratio as f64)?
            }
        };
        let most = match ratio {
            0 => {
                let whole = n.cast(grid, DType::I64)?;
                let one = n.im.b.constant(Tensor::from_slice(&[1, 1], &[1i64]));
                let whole = n.concat(&[whole, one], 0)?;
                n.reduce("max", whole, &[0, 1], false)?
            }
            _ => n.im.b.scalar(DType::I64, ratio as f64),
        };
        let all = n.with("multiply", most, bins as f64)?;
        let (zero, one) = (n.c(all, 0.0)?, n.c(all, 1.0)?);
        let i = n.op("arange", &[zero, all, one], &[("dtype", DType::I64.into())])?;
        let (which, point) = (n.bin("floor_divide", i, most)?, n.bin("floor_mod", i, most)?);
        let (which, point) = (n.cast(which, dtype)?, n.cast(point, dtype)?);
        let there = n.bin("less", point, grid)?;
        let point = n.with("add", point, 0.5)?;
        let (at, step) = (n.mul(which, bin)?, n.mul(point, bin)?);
        let step = n.div(step, grid)?;
        let at = n.add(from, at)?;
        let at = n.add(at, step)?;
        let extent = n.size(x, 2 + k, dtype)?;
        let (low, high) = (n.with("greater_equal", at, -1.0)?, n.bin("less_equal", at, extent)?);
        let inside = n.bin("logical_and", low, high)?;
        let last = n.with("subtract", extent, 1.0)?;
        let at = n.with("maximum", at, 0.0)?;
        let at = n.bin("minimum", at, last)?;
        let before = n.un("floor", at)?;
        let after = n.with("add", before, 1.0)?;
        let after = n.bin("minimum", after, last)?;
        let near = n.sub(at, before)?;
        let far = n.from("subtract", 1.0, near)?;
        // What lies outside has no share.
        let (none, inside) = (n.c(near, 0.0)?, inside);
        let shares = [n.select(inside, far, none)?, n.select(inside, near, none)?];
        let places = [n.cast(before, DType::I64)?, n.cast(after, DType::I64)?];
        axes.push((places, shares, there, most));
    }
    let [(rows, down, row_there, row_most), (columns, across, column_there, column_most)] =
        <[_; 2]>::try_from(axes).map_err(|_| n.refuse("an image has two axes"))?;
    let width = n.size(x, 3, DType::I64)?;
    let flat = n.shape_of(x)?;
    let flat = n.slice(flat, 0, 0, 2)?;
    let rest = n.im.b.ints(&[-1]);
    let flat = n.concat(&[flat, rest], 0)?;
    let flat = n.reshape_to(x, flat)?;
    let channels = n.size(x, 1, DType::I64)?;
    let mut best: Option<ExprId> = None;
    for (row, share_down) in rows.into_iter().zip(down) {
        for (&column, &share_across) in columns.iter().zip(&across) {
            let (row, column) = (n.expand(row, 2, 1)?, n.expand(column, 1, 1)?);
            let row = n.mul(row, width)?;
            let place = n.add(row, column)?;
            // Channels see the same places.
            let shape = n.shape_of(place)?;
            let line = n.im.b.ints(&[-1]);
            let (count, line_shape) = (n.slice(shape, 0, 0, 1)?, line);
            let one = n.im.b.ints(&[1]);
            let single = n.concat(&[count, one, line_shape], 0)?;
            let place = n.reshape_to(place, single)?;
            let points = n.shape_of(place)?;
            let points = n.slice(points, 0, 2, 3)?;
            let channels = n.reshape(channels, &[1])?;
            let full = n.concat(&[count, channels, points], 0)?;
            let place = n.broadcast_to(place, full)?;
            let value = n.op("gather", &[flat, place], &[("axis", 2.into())])?;
            let (a, b) = (n.expand(share_down, 2, 1)?, n.expand(share_across, 1, 1)?);
            let share = n.mul(a, b)?;
            let share = n.reshape_to(share, single)?;
            let value = n.mul(value, share)?;
            best = Some(match best {
                None => value,
                Some(b) => n.bin("maximum", b, value)?,
            });
        }
    }
    let best = best.ok_or_else(|| n.refuse("a point has neighbours"))?;
    let (a, b) = (n.trailing(row_there, 1)?, n.expand(column_there, 1, 1)?);
    let there = n.bin("logical_and", a, b)?;
    let shape = n.shape_of(x)?;
    let head = n.slice(shape, 0, 0, 2)?;
    let (h, w) = (n.im.b.ints(&[size[0]]), n.im.b.ints(&[size[1]]));
    let (p, q) = (n.reshape(row_most, &[1])?, n.reshape(column_most, &[1])?);
    let full = n.concat(&[head, h, p, w, q], 0)?;
    let best = n.reshape_to(best, full)?;
    let (count, one) = (n.slice(shape, 0, 0, 1)?, n.im.b.ints(&[1]));
    let seen = n.concat(&[count, one, h, p, w, q], 0)?;
    let there = n.reshape_to(there, seen)?;
    let none = n.c(best, f64::NEG_INFINITY)?;
    let best = n.select(there, best, none)?;
    let best = n.reduce("max", best, &[3, 5], false)?;
    // A bin without points.
    let empty = n.with("equal", best, f64::NEG_INFINITY)?;
    let zero = n.c(best, 0.0)?;
    n.select(empty, zero, best)
}

fn max_roi_pool(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, rois) = (n.x(0)?, n.x(1)?);
    let size = n.ints("pooled_shape")?.ok_or_else(|| n.refuse("its attribute `pooled_shape` is not given"))?;
    let scale = n.float("spatial_scale", 1.0)?;
    let y = n.op("vision.roi_pool", &[x, rois], &[("pooled_size", size.into()), ("spatial_scale", scale.into())])?;
    n.one(y)
}

fn non_max_suppression(n: &mut Node) -> Convert<Vec<Val>> {
    let (mut boxes, scores) = (n.x(0)?, n.x(1)?);
    if n.int("center_point_box", 0)? == 1 {
        // Centres and extents as corners.
        let part = |n: &mut Node, k: i64| n.slice(boxes, 2, k, k + 1);
        let (x, y, w, h) = (part(n, 0)?, part(n, 1)?, part(n, 2)?, part(n, 3)?);
        let (w, h) = (n.with("divide", w, 2.0)?, n.with("divide", h, 2.0)?);
        let corners = [n.sub(y, h)?, n.sub(x, w)?, n.add(y, h)?, n.add(x, w)?];
        boxes = n.concat(&corners, 2)?;
    }
    let scalar = |n: &mut Node, i: usize, d: DType, default: f64| -> Convert {
        match n.opt(i)? {
            Some(e) => {
                let e = n.cast(e, d)?;
                n.reshape(e, &[])
            }
            None => Ok(n.im.b.scalar(d, default)),
        }
    };
    let most = scalar(n, 2, DType::I64, 0.0)?;
    let overlap = scalar(n, 3, DType::F32, 0.0)?;
    let least = scalar(n, 4, DType::F32, f64::NEG_INFINITY)?;
    // Boxes give way to those that they overlap by more than the threshold, where Relay's operator asks for as much: it is given the next
    // number. Thresholds are not negative.
    let overlap = n.with("maximum", overlap, 0.0)?;
    let bits = n.op("reinterpret", &[overlap], &[("dtype", DType::I32.into())])?;
    let bits = n.with("add", bits, 1.0)?;
    let overlap = n.op("reinterpret", &[bits], &[("dtype", DType::F32.into())])?;
    let (scores, least) = if n.value(least).is_some_and(|v| v.get_f64(0) >= 0.0) {
        (scores, least)
    } else {
        // Relay compares boxes of positive scores only. The score's place in the order of all does as well.
        let attrs = |ascend: bool| [("axis", 2.into()), ("is_ascend", ascend.into()), ("dtype", DType::I32.into())];
        let order = n.op("argsort", &[scores], &attrs(false))?;
        let place = n.op("argsort", &[order], &attrs(true))?;
        let place = n.cast(place, DType::F32)?;
        let count = n.size(scores, 2, DType::F32)?;
        let rank = n.sub(count, place)?;
        let least = n.cast(least, n.dtype(scores)?)?;
        let good = n.bin("greater", scores, least)?;
        let none = n.c(rank, 0.0)?;
        (n.select(good, rank, none)?, none)
    };
    let boxes = n.cast(boxes, n.dtype(scores)?)?;
    let args = [boxes, scores, most, overlap, least];
    let all = n.op("vision.all_class_non_max_suppression", &args, &[("output_format", "onnx".into())])?;
    let (rows, count) = (n.im.b.field(all, 0), n.im.b.field(all, 1));
    let count = n.cast(count, DType::I64)?;
    // Of a greatest number of 0, Relay gives all, and ONNX none.
    let some = n.with("greater", most, 0.0)?;
    let some = n.cast(some, DType::I64)?;
    let count = n.mul(count, some)?;
    let count = n.reshape(count, &[1])?;
    let (begin, three) = (n.im.b.ints(&[0, 0]), n.im.b.ints(&[3]));
    let end = n.concat(&[count, three], 0)?;
    let strides = n.im.b.ints(&[1, 1]);
    let rows = n.cast(rows, DType::I64)?;
    let y = n.op("dyn.strided_slice", &[rows, begin, end, strides], &[])?;
    n.one(y)
}
