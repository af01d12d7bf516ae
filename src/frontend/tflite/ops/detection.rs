//! Boxes: suppression of those that overlap better ones.

use super::{
    super::{flex::Map, node::Node},
    Results, unary,
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// Indices of the boxes that are kept, best first, then -1: (1, boxes), of `scores` (boxes) and `boxes` (boxes, 4).
fn kept(n: &mut Node, boxes: ExprId, scores: ExprId, most: i64, overlap: f64, least: f64) -> Convert {
    let scores = n.expand(scores, -1)?;
    // Corners in any order become the least and the greatest.
    let parts = (0..4).map(|k| n.slice(boxes, 1, k, k + 1)).collect::<Convert<Vec<_>>>()?;
    let mut sides = vec![scores];
    for (relay, a, b) in [("minimum", 0, 2), ("minimum", 1, 3), ("maximum", 0, 2), ("maximum", 1, 3)] {
        sides.push(n.bin(relay, parts[a], parts[b])?);
    }
    let data = n.concat(&sides, 1)?;
    let data = n.expand(data, 0)?;
    let attrs = [("id_index", (-1).into()), ("score_index", 0.into())];
    let least = n.f32(least as f32);
    let valid = n.op("vision.get_valid_counts", &[data, least], &attrs)?;
    let (count, data, indices) = (n.b.field(valid, 0), n.b.field(valid, 1), n.b.field(valid, 2));
    let most = n.b.scalar(DType::I32, most as f64);
    let overlap = n.f32(overlap as f32);
    let attrs = [
        ("force_suppress", true.into()),
        ("top_k", (-1).into()),
        ("coord_start", 1.into()),
        ("score_index", 0.into()),
        ("id_index", (-1).into()),
        ("return_indices", true.into()),
    ];
    let found = n.op("vision.non_max_suppression", &[data, count, indices, most, overlap], &attrs)?;
    Ok(n.b.field(found, 0))
}

/// The first `most` of (1, boxes) indices, with -1 where there are fewer, as (most).
fn first(n: &mut Node, indices: ExprId, most: i64) -> Convert {
    let have = n.extent(indices, 1)?;
    let flat = n.reshape(indices, &[-1])?;
    if have >= most {
        return n.slice(flat, 0, 0, most);
    }
    let none = n.num(flat, -1.0)?;
    n.op("nn.pad", &[flat, none], &[("pad_width", super::shape::pairs(&[0, most - have]))])
}

/// A suppression under which scores fall off with overlap.
struct Falling {
    boxes: ExprId,
    scores: ExprId,
    most: i64,
    overlap: f64,
    least: f64,
    /// A score becomes `exp(by * overlap^2)` times that.
    by: f32,
}

/// The best box again and again, after each of which the scores of boxes that overlap it fall. As the kernel has it, a box competes with
/// itself, too: one without an area, which overlaps nothing, is chosen again.
fn falling_off(n: &mut Node, f: &Falling) -> Results {
    let part = |k: i64| {
        let e = n.slice(f.boxes, 1, k, k + 1)?;
        n.reshape(e, &[-1])
    };
    let parts = (0..4).map(part).collect::<Convert<Vec<_>>>()?;
    let mut sides = Vec::new();
    for (relay, a, b) in [("minimum", 0, 2), ("minimum", 1, 3), ("maximum", 0, 2), ("maximum", 1, 3)] {
        sides.push(n.bin(relay, parts[a], parts[b])?);
    }
    let (height, width) = (n.bin("subtract", sides[2], sides[0])?, n.bin("subtract", sides[3], sides[1])?);
    let areas = n.bin("multiply", height, width)?;
    let (dead, least) = (n.f32(f32::NEG_INFINITY), n.f32(f.least as f32));
    let above = |n: &mut Node, e| n.bin("greater", e, least);
    let candidates = above(n, f.scores)?;
    let scores = n.op("where", &[candidates, f.scores, dead], &[])?;
    let candidates = n.cast(candidates, DType::I32)?;
    let count = n.op("sum", &[candidates], &[])?;
    let limit = n.with("minimum", count, f.most as f64)?;
    let places = Tensor::from_i64_fn(DType::I32, &[f.most as usize], |i| i as i64);
    let places = n.b.constant(places);
    let none = n.b.constant(Tensor::from_i64_fn(DType::I32, &[f.most as usize], |_| 0));
    let no_score = n.cast(none, DType::F32)?;

    let zero = n.b.scalar(DType::I32, 0.0);
    let start = [zero, scores, none, no_score];
    let types = start.iter().map(|&e| n.b.tensor(e).cloned()).collect::<Convert<Vec<_>>>()?;
    let params: Vec<_> = types.iter().map(|t| n.b.var("v", t.clone().into())).collect();
    let [done, scores, chosen, values] = [0, 1, 2, 3].map(|i| params[i].1);
    let best = n.op("argmax", &[scores], &[("axis", [0].into())])?;
    let best = n.cast(best, DType::I32)?;
    let pick = |n: &mut Node, of| n.op("take", &[of, best], &[("axis", 0.into())]);
    let score = pick(n, scores)?;
    let (left, good) = (n.bin("less", done, limit)?, above(n, score)?);
    let go = n.bin("logical_and", left, good)?;
    let mut ends = Vec::new();
    for (k, relay) in ["maximum", "maximum", "minimum", "minimum"].into_iter().enumerate() {
        let own = pick(n, sides[k])?;
        ends.push(n.bin(relay, sides[k], own)?);
    }
    let mut shared = Vec::new();
    for k in 0..2 {
        let extent = n.bin("subtract", ends[k + 2], ends[k])?;
        shared.push(n.with("maximum", extent, 0.0)?);
    }
    let (area, shared) = (pick(n, areas)?, n.bin("multiply", shared[0], shared[1])?);
    let both = n.bin("add", areas, area)?;
    let both = n.bin("subtract", both, shared)?;
    let overlap = n.bin("divide", shared, both)?;
    let (some, own) = (n.with("greater", areas, 0.0)?, n.with("greater", area, 0.0)?);
    let some = n.bin("logical_and", some, own)?;
    let nothing = n.f32(0.0);
    let overlap = n.op("where", &[some, overlap, nothing], &[])?;
    let power = n.with("multiply", overlap, f.by as f64)?;
    let power = n.bin("multiply", power, overlap)?;
    let fall = n.un("exp", power)?;
    let fallen = n.bin("multiply", scores, fall)?;
    let (apart, good) = (n.with("less", overlap, f.overlap)?, above(n, fallen)?);
    let kept = n.bin("logical_and", apart, good)?;
    let fallen = n.op("where", &[kept, fallen, dead], &[])?;
    let here = n.bin("equal", places, done)?;
    let next = [
        n.with("add", done, 1.0)?,
        fallen,
        n.op("where", &[here, best, chosen], &[])?,
        n.op("where", &[here, score, values], &[])?,
    ];
    let results = super::control::looped(n.b, &params, go, &next, &start, &types);
    Ok(vec![n.b.field(results, 2), n.b.field(results, 3), n.b.field(results, 0)])
}

/// NON_MAX_SUPPRESSION_V4 and V5: the indices, with V5 their scores, and how many there are.
pub(in crate::frontend::tflite) fn non_max_suppression(n: &mut Node) -> Results {
    let (boxes, scores) = (n.x(0)?, n.x(1)?);
    let most = n.constant(2)?.get_i64(0);
    let (overlap, least) = (n.constant(3)?.get_f64(0), n.constant(4)?.get_f64(0));
    let soft = n.op.outputs.len() == 3;
    let sigma = if soft { n.constant(5)?.get_f64(0) } else { 0.0 };
    if !(0..1 << 24).contains(&most) || sigma < 0.0 || sigma.is_nan() {
        return n.refuse(format!("{most} results and a sigma of {sigma} are not possible"));
    }
    if sigma > 0.0 && most > 0 {
        return falling_off(n, &Falling { boxes, scores, most, overlap, least, by: (-0.5 / sigma) as f32 });
    }
    let indices = kept(n, boxes, scores, most, overlap, least)?;
    let indices = first(n, indices, most)?;
    let valid = n.with("greater_equal", indices, 0.0)?;
    let chosen = n.with("maximum", indices, 0.0)?;
    let ones = n.cast(valid, DType::I32)?;
    let count = n.op("sum", &[ones], &[])?;
    if !soft {
        return Ok(vec![chosen, count]);
    }
    let values = n.op("take", &[scores, chosen], &[("axis", 0.into())])?;
    let zero = n.num(values, 0.0)?;
    let values = n.op("where", &[valid, values, zero], &[])?;
    Ok(vec![chosen, values, count])
}

/// Boxes as corners, from centers and sizes relative to anchors, as (boxes, 4).
fn decoded(n: &mut Node, map: &Map) -> Convert {
    let number = |name: &str| map.number(name).filter(|v| *v != 0.0).unwrap_or(1.0);
    let (mut boxes, mut anchors) = (n.x(0)?, n.x(2)?);
    if !n.dtype(boxes)?.is_float() {
        (boxes, anchors) = (unary::widened(n, 0)?, unary::widened(n, 2)?);
    }
    let coordinates = n.extent(boxes, 2)?;
    let boxes = n.reshape(boxes, &[-1, coordinates])?;
    let part = |n: &mut Node, e, k: i64| n.slice(e, 1, k, k + 1);
    let mut corners = [Vec::new(), Vec::new()];
    for (k, (place, size)) in [("y_scale", "h_scale"), ("x_scale", "w_scale")].into_iter().enumerate() {
        let k = k as i64;
        let (at, extent) = (part(n, boxes, k)?, part(n, boxes, k + 2)?);
        let (anchor, width) = (part(n, anchors, k)?, part(n, anchors, k + 2)?);
        let at = n.with("divide", at, number(place))?;
        let at = n.bin("multiply", at, width)?;
        let center = n.bin("add", at, anchor)?;
        let extent = n.with("divide", extent, number(size))?;
        let extent = n.un("exp", extent)?;
        let extent = n.bin("multiply", extent, width)?;
        let half = n.with("multiply", extent, 0.5)?;
        corners[0].push(n.bin("subtract", center, half)?);
        corners[1].push(n.bin("add", center, half)?);
    }
    n.concat(&corners.concat(), 1)
}

/// TFLite_Detection_PostProcess: boxes, classes, scores, and how many there are.
pub(super) fn post_process(n: &mut Node) -> Results {
    let Some(map) = Map::of(n.op.custom) else { return n.refuse("the options are no map") };
    let number = |name: &str, default: f64| map.number(name).unwrap_or(default);
    let most = number("max_detections", 0.0) as i64;
    let classes = number("num_classes", 0.0) as i64;
    let (overlap, least) = (number("nms_iou_threshold", 0.0), number("nms_score_threshold", 0.0));
    let per_box = (number("max_classes_per_detection", 1.0) as i64).min(classes);
    let scores = n.x(1)?;
    let scores = if n.dtype(scores)?.is_float() { scores } else { unary::widened(n, 1)? };
    let width = n.extent(scores, 2)?;
    if !(1..1 << 20).contains(&most) || classes < 1 || classes > width || per_box < 1 {
        return n.refuse(format!("{most} detections of {classes} classes of {width} have no meaning"));
    }
    let boxes = decoded(n, &map)?;
    if number("use_regular_nms", 0.0) != 0.0 {
        let attrs = [
            ("max_detections_per_class", (number("detections_per_class", 100.0) as i64).into()),
            ("max_detections", most.into()),
            ("num_classes", classes.into()),
            ("iou_threshold", overlap.into()),
            ("score_threshold", least.into()),
        ];
        let boxes = n.expand(boxes, 0)?;
        let found = n.op("vision.regular_non_max_suppression", &[boxes, scores], &attrs)?;
        let count = n.b.field(found, 3);
        let count = n.cast(count, DType::F32)?;
        return Ok(vec![n.b.field(found, 0), n.b.field(found, 1), n.b.field(found, 2), count]);
    }
    // The fast way: boxes are compared by their best class, and each has as many classes as are asked for.
    let scores = n.reshape(scores, &[-1, width])?;
    let scores = n.slice(scores, 1, width - classes, width)?;
    let attrs =
        [("k", per_box.into()), ("axis", (-1).into()), ("ret_type", "both".into()), ("dtype", DType::I32.into())];
    let top = n.op("topk", &[scores], &attrs)?;
    let (best, class) = (n.b.field(top, 0), n.b.field(top, 1));
    let first_score = n.slice(best, 1, 0, 1)?;
    let first_score = n.reshape(first_score, &[-1])?;
    let indices = kept(n, boxes, first_score, most, overlap, least)?;
    let indices = first(n, indices, most)?;
    let valid = n.with("greater_equal", indices, 0.0)?;
    let valid = n.cast(valid, DType::F32)?;
    let valid = n.expand(valid, -1)?;
    let chosen = n.with("maximum", indices, 0.0)?;
    let take = |n: &mut Node, e: ExprId| -> Convert {
        let e = n.op("take", &[e, chosen], &[("axis", 0.into())])?;
        let e = n.cast(e, DType::F32)?;
        n.bin("multiply", e, valid)
    };
    let (boxes, class, best) = (take(n, boxes)?, take(n, class)?, take(n, best)?);
    let boxes = n.op("repeat", &[boxes], &[("repeats", per_box.into()), ("axis", 0.into())])?;
    let boxes = n.expand(boxes, 0)?;
    let (class, best) = (n.reshape(class, &[1, -1])?, n.reshape(best, &[1, -1])?);
    let count = n.op("sum", &[valid], &[])?;
    Ok(vec![boxes, class, best, n.reshape(count, &[1])?])
}
