//! Boxes: suppression of those that overlap better ones.

use super::{
    super::{flex::Map, node::Node},
    Results, unary,
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

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

/// NON_MAX_SUPPRESSION_V4 and V5: the indices, with V5 their scores, and how many there are.
pub(in crate::frontend::tflite) fn non_max_suppression(n: &mut Node) -> Results {
    let (boxes, scores) = (n.x(0)?, n.x(1)?);
    let most = n.constant(2)?.get_i64(0);
    let (overlap, least) = (n.constant(3)?.get_f64(0), n.constant(4)?.get_f64(0));
    let soft = n.op.outputs.len() == 3;
    if soft && n.constant(5)?.get_f64(0) != 0.0 {
        return n.refuse("scores that fall off with overlap (a sigma other than 0) are not supported");
    }
    if !(0..1 << 24).contains(&most) {
        return n.refuse(format!("{most} results are not possible"));
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
