//! Region proposals of Faster R-CNN.

use super::boxes::{descending, more, sort_row};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Nest, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, field, floats_attr, may_equal, op_head, t, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Proposal];

/// `vision.proposal`.
#[derive(Debug)]
struct Proposal;

/// The attributes, read and checked.
struct Plan {
    /// The anchors (x1, y1, x2, y2) around the first position.
    anchors: Vec<[f32; 4]>,
    stride: i64,
    bound: f32,
    /// How many of the best are looked at; none for all.
    before: Option<i64>,
    after: i64,
    least: i64,
    corners: bool,
}

impl Plan {
    fn new(attrs: &Attrs) -> Result<Plan, OpError> {
        let (scales, ratios) = (floats_attr(attrs, "scales")?, floats_attr(attrs, "ratios")?);
        let (stride, after) = (attrs.int("feature_stride"), attrs.int("rpn_post_nms_top_n"));
        let positive = scales.iter().chain(&ratios).all(|&v| v > 0.0) && !scales.is_empty() && !ratios.is_empty();
        op_ensure!(
            positive && stride > 0 && after >= 0,
            "C2: scales, ratios and feature_stride should be positive, `rpn_post_nms_top_n` not negative"
        );
        let base = stride as f64;
        let anchor = |ratio: f64, scale: f64| {
            let width = ((base * base / ratio).floor().sqrt() + 0.5).floor() * scale;
            let height = (width / scale * ratio + 0.5).floor() * scale;
            let (center, half) = (0.5 * (base - 1.0), [0.5 * (width - 1.0), 0.5 * (height - 1.0)]);
            [center - half[0], center - half[1], center + half[0], center + half[1]].map(|v| v as f32)
        };
        Ok(Plan {
            anchors: ratios.iter().flat_map(|&r| scales.iter().map(move |&s| anchor(r, s))).collect(),
            stride,
            bound: attrs.float("threshold") as f32,
            before: Some(attrs.int("rpn_pre_nms_top_n")).filter(|&n| n > 0),
            after,
            least: attrs.int("rpn_min_size"),
            corners: attrs.bool("iou_loss"),
        })
    }
}

/// The common part of two boxes of pixels, both ends included, by what either covers.
fn overlap(a: &[f32; 5], b: &[f32; 5]) -> f32 {
    let side = |k: usize| (a[k + 2].min(b[k + 2]) - a[k].max(b[k]) + 1.0).max(0.0);
    let area = |v: &[f32; 5]| (v[2] - v[0] + 1.0) * (v[3] - v[1] + 1.0);
    let both = side(0) * side(1);
    both / (area(a) + area(b) - both)
}

/// [`overlap`] as an expression.
fn overlap_scalar(a: &[Scalar; 4], b: &[Scalar; 4]) -> Scalar {
    let real = |v: f64| Scalar::float(v, DType::F32);
    let side = |k: usize| {
        let (end, first) = (a[k + 2].clone().min(b[k + 2].clone()), a[k].clone().max(b[k].clone()));
        (end - first + real(1.0)).max(real(0.0))
    };
    let area = |v: &[Scalar; 4]| (v[2].clone() - v[0].clone() + real(1.0)) * (v[3].clone() - v[1].clone() + real(1.0));
    let both = side(0) * side(1);
    both.clone() / (area(a) + area(b) - both)
}

impl Op for Proposal {
    op_head!(
        "vision.proposal",
        "For each batch rpn_post_nms_top_n rows (batch, x1, y1, x2, y2): of the boxes of all positions and anchors, the
        rpn_pre_nms_top_n ones of greatest score (all, where that is not positive; equal ones in order), those that overlap no better
        one that is left by more than threshold, over and over again until there are enough. Anchors are a square of feature_stride
        stretched by ratios and enlarged by scales, around positions feature_stride apart. The box is the anchor moved by
        bbox_pred in parts of its size and enlarged by the exponential of it (with iou_loss, its corners are moved), cut at the
        image's (im_info: height, width, scale) ends. The score is the second half of cls_prob, or -1 where the position is
        outside of the image or the box less than rpn_min_size * scale wide or high, by half of which it is then enlarged.
        C1: with a anchors, float32 of shapes (batch, 2 * a, h, w), (batch, 4 * a, h, w) and (batch, 3). C2: scales, ratios and
        feature_stride are positive, rpn_post_nms_top_n is not negative. C3: there is a position.",
        ["cls_prob", "bbox_pred", "im_info"],
        [
            field("scales", AttrKind::List, AttrDefault::Floats(&[4.0, 8.0, 16.0, 32.0])),
            field("ratios", AttrKind::List, AttrDefault::Floats(&[0.5, 1.0, 2.0])),
            field("feature_stride", AttrKind::Int, AttrDefault::Int(16)),
            field("threshold", AttrKind::Float, AttrDefault::Float(0.7)),
            field("rpn_pre_nms_top_n", AttrKind::Int, AttrDefault::Int(6000)),
            field("rpn_post_nms_top_n", AttrKind::Int, AttrDefault::Int(300)),
            field("rpn_min_size", AttrKind::Int, AttrDefault::Int(16)),
            field("iou_loss", AttrKind::Bool, AttrDefault::Bool(false)),
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (scores, moves, image) =
            (tensor_arg(args, 0, "cls_prob")?, tensor_arg(args, 1, "bbox_pred")?, tensor_arg(args, 2, "im_info")?);
        let plan = Plan::new(attrs)?;
        let anchors = plan.anchors.len() as i64;
        let fits = scores.rank() == 4
            && moves.rank() == 4
            && image.rank() == 2
            && [0, 2, 3].iter().all(|&k| may_equal(scores.shape[k], moves.shape[k]))
            && may_equal(scores.shape[1], Dim::Known(2 * anchors))
            && may_equal(moves.shape[1], Dim::Known(4 * anchors))
            && may_equal(image.shape[0], scores.shape[0])
            && may_equal(image.shape[1], Dim::Known(3));
        op_ensure!(
            fits && [scores, moves, image].iter().all(|t| t.dtype == DType::F32),
            "C1: `cls_prob` is {scores}, `bbox_pred` {moves} and `im_info` {image}, but should have float32 and, with {anchors} \
             anchors, the shapes (batch, {}, h, w), (batch, {}, h, w) and (batch, 3)",
            2 * anchors,
            4 * anchors
        );
        op_ensure!(
            scores.shape[2..].iter().all(|d| d.known() != Some(0)),
            "C3: `cls_prob` is {scores}, which has no position"
        );
        let rows = scores.shape[0].known().map_or(Dim::Any, |n| Dim::Known(n * plan.after));
        Ok(TensorType::of([rows, Dim::Known(5)], DType::F32).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [scores, moves, image] = [0, 1, 2].map(|k| args[k].tensor());
        let plan = Plan::new(attrs)?;
        let (batch, h, w, a) = (scores.shape()[0], scores.shape()[2], scores.shape()[3], plan.anchors.len());
        op_ensure!(h * w > 0, "C3: `cls_prob` has no position");
        let (stride, after) = (plan.stride as f32, plan.after as usize);
        let mut out = Tensor::zeros(DType::F32, &[batch * after, 5]);
        for b in 0..batch {
            let [height, width, scale] = [0, 1, 2].map(|k| image.get_f64(b * 3 + k) as f32);
            let mut boxes: Vec<[f32; 5]> = Vec::new();
            for (i, j, k) in (0..h).flat_map(|i| (0..w).flat_map(move |j| (0..a).map(move |k| (i, j, k)))) {
                let anchor = plan.anchors[k];
                let at = [0, 1, 2, 3].map(|c| anchor[c] + ([j, i][c % 2] as i64 * plan.stride) as f32);
                let d = [0, 1, 2, 3].map(|c| moves.get_f64((((b * a + k) * 4 + c) * h + i) * w + j) as f32);
                let moved = match plan.corners {
                    true => [0, 1, 2, 3].map(|c| at[c] + d[c]),
                    false => {
                        let along = |c: usize| {
                            let size = at[c + 2] - at[c] + 1.0;
                            let center = d[c] * size + (at[c] + 0.5 * (size - 1.0));
                            let half = 0.5 * (d[c + 2].exp() * size - 1.0);
                            [center - half, center + half]
                        };
                        let ([x0, x1], [y0, y1]) = (along(0), along(1));
                        [x0, y0, x1, y1]
                    }
                };
                let cut = |c: usize| moved[c].min([width, height][c % 2] - 1.0).max(0.0);
                let mut found = [cut(0), cut(1), cut(2), cut(3), 0.0];
                let outside = i as i64 >= (height / stride) as i64 || j as i64 >= (width / stride) as i64;
                found[4] = match outside {
                    true => -1.0,
                    false => scores.get_f64(((b * 2 * a + a + k) * h + i) * w + j) as f32,
                };
                let least = scale * plan.least as f32;
                if found[2] - found[0] + 1.0 < least || found[3] - found[1] + 1.0 < least {
                    let half = least / 2.0;
                    found = [found[0] - half, found[1] - half, found[2] + half, found[3] + half, -1.0];
                }
                boxes.push(found);
            }
            boxes.sort_by(|x, y| descending(x[4], y[4]));
            boxes.truncate(plan.before.map_or(boxes.len(), |n| n as usize));
            let mut left: Vec<[f32; 5]> = Vec::new();
            for found in boxes {
                if !left.iter().any(|better| overlap(better, &found) > plan.bound) {
                    left.push(found);
                }
            }
            for to in 0..after {
                let row = (b * after + to) * 5;
                out.set_f64(row, b as f64);
                (0..4).for_each(|k| out.set_f64(row + 1 + k, f64::from(left[to % left.len()][k])));
            }
        }
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap::opaque([4, 4, 2])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let boxes = args[1].as_tensor().and_then(TensorType::elements).map_or(1.0, |n| n as f64 / 4.0);
        let looked_at = boxes.min(attrs.int("rpn_pre_nms_top_n").max(1) as f64);
        let flops = boxes * 40.0 + looked_at * looked_at * 8.0;
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [scores, moves, image] = [0, 1, 2].map(|k| args[k].tensor());
        let plan = Plan::new(attrs)?;
        let (batch, h, w) = (b.shape(scores)[0], b.shape(scores)[2], b.shape(scores)[3]);
        let n = h * w * plan.anchors.len() as i64;
        op_ensure!(n > 0, "C3: `cls_prob` has no position");
        let looked_at = plan.before.map_or(n, |most| n.min(most));
        let out = b.routine(|r| {
            let out = r.output(&[batch * plan.after, 5], DType::F32);
            let boxes = r.scratch(&[batch, n, 5], DType::F32);
            let orders = [0, 1].map(|_| r.scratch(&[batch, n], DType::I64));
            let left = r.scratch(&[batch, n], DType::I64);
            r.parallel(batch, |r, i| {
                predict(r, &plan, [scores, moves, image, boxes], [h, w], &i);
                r.for_(n, |r, j| r.store(orders[0], [i.clone(), j.clone()], j));
                let score = |r: &Nest<'_>, j: Scalar| r.read(boxes, [i.clone(), j, Scalar::index(4)]);
                sort_row(r, orders, &i, &Scalar::index(n), |r, a, b| more(score(r, a), score(r, b)));
                let corners = |r: &mut Nest<'_>, j: &Scalar| {
                    [0, 1, 2, 3].map(|k| {
                        let value = r.read(boxes, [i.clone(), j.clone(), Scalar::index(k)]);
                        r.let_(value)
                    })
                };
                let count = r.var(0);
                r.for_(looked_at, |r, k| {
                    let j = r.let_(r.read(orders[0], [i.clone(), k]));
                    let mine = corners(r, &j);
                    let valid = r.var(Scalar::bool(true));
                    let k = r.var(0);
                    let go_on = r.get(k).lt(r.get(count)).and(r.get(valid));
                    r.while_(go_on, |r| {
                        let at = r.let_(r.get(k));
                        let better = r.let_(r.read(left, [i.clone(), at.clone()]));
                        let theirs = corners(r, &better);
                        let bound = Scalar::float(f64::from(plan.bound), DType::F32);
                        let beaten = more(overlap_scalar(&theirs, &mine), bound);
                        r.if_(beaten, |r| r.set(valid, Scalar::bool(false)));
                        r.set(k, at + 1);
                    });
                    r.if_(r.get(valid), |r| {
                        let to = r.let_(r.get(count));
                        r.store(left, [i.clone(), to.clone()], j.clone());
                        r.set(count, to + 1);
                    });
                });
                // The best box is left, so that there is one.
                let count = r.let_(r.get(count).max(Scalar::index(1)));
                r.for_(plan.after, |r, to| {
                    let from = Scalar::binary(BinOp::FloorMod, to.clone(), count.clone());
                    let from = r.let_(r.read(left, [i.clone(), from]));
                    let row = r.let_(i.clone() * plan.after + to);
                    r.store(out, [row.clone(), Scalar::index(0)], i.clone().cast(DType::F32));
                    r.for_(4, |r, k| {
                        let value = r.read(boxes, [i.clone(), from.clone(), k.clone()]);
                        r.store(out, [row.clone(), k + 1], value);
                    });
                });
            });
            out
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let list = |v: &[f64]| AttrValue::List(v.iter().map(|&f| f.into()).collect());
        let call = |scales: &[f64], ratios: &[f64], [h, w]: [i64; 2], more: Vec<(&'static str, AttrValue)>| Sample {
            attrs: [
                ("scales", list(scales)),
                ("ratios", list(ratios)),
                ("feature_stride", 1.into()),
                ("rpn_min_size", 1.into()),
                ("rpn_post_nms_top_n", 4.into()),
            ]
            .into_iter()
            .chain(more)
            .collect(),
            args: {
                let a = (scales.len() * ratios.len()) as i64;
                vec![t(&[2, 2 * a, h, w], DType::F32), t(&[2, 4 * a, h, w], DType::F32), t(&[2, 3], DType::F32)]
            },
        };
        vec![
            call(&[0.5], &[0.5], [2, 3], vec![]),
            call(&[2.0, 4.0], &[0.5, 1.0, 2.0], [2, 2], vec![("rpn_pre_nms_top_n", 7.into())]),
            call(&[1.0, 3.0], &[1.0], [3, 2], vec![("iou_loss", true.into()), ("threshold", 0.4.into())]),
        ]
    }
}

/// Statements that fill batch `i` of `boxes` with the boxes (x1, y1, x2, y2, score) of all positions and anchors.
fn predict(r: &mut Nest<'_>, plan: &Plan, [scores, moves, image, boxes]: [TensorId; 4], [h, w]: [i64; 2], i: &Scalar) {
    let (a, real) = (plan.anchors.len() as i64, |v: f32| Scalar::float(f64::from(v), DType::F32));
    let [height, width, scale] = [0, 1, 2].map(|k| {
        let value = r.read(image, [i.clone(), Scalar::index(k)]);
        r.let_(value)
    });
    let least = r.let_(scale * real(plan.least as f32));
    let stride = real(plan.stride as f32);
    r.for_each(&[h, w], |r, position| {
        let (row, column) = (position[0].clone(), position[1].clone());
        let beyond = |at: &Scalar, n: &Scalar| at.clone().ge((n.clone() / stride.clone()).cast(DType::I64));
        let outside = Scalar::binary(BinOp::Or, beyond(&row, &height), beyond(&column, &width));
        let outside = r.let_(outside);
        let shifts = [column.clone(), row.clone()].map(|p| r.let_((p * plan.stride).cast(DType::F32)));
        for (k, anchor) in plan.anchors.iter().enumerate() {
            let k = k as i64;
            let at: [Scalar; 4] = std::array::from_fn(|c| real(anchor[c]) + shifts[c % 2].clone());
            let d = [0, 1, 2, 3].map(|c| {
                let value = r.read(moves, [i.clone(), Scalar::index(k * 4 + c), row.clone(), column.clone()]);
                r.let_(value)
            });
            let moved: [Scalar; 4] = match plan.corners {
                true => std::array::from_fn(|c| at[c].clone() + d[c].clone()),
                false => {
                    let along = |c: usize| {
                        let size = at[c + 2].clone() - at[c].clone() + real(1.0);
                        let middle = at[c].clone() + real(0.5) * (size.clone() - real(1.0));
                        let center = d[c].clone() * size.clone() + middle;
                        let half = real(0.5) * (Scalar::unary(UnOp::Exp, d[c + 2].clone()) * size - real(1.0));
                        [center.clone() - half.clone(), center + half]
                    };
                    let ([x0, x1], [y0, y1]) = (along(0), along(1));
                    [x0, y0, x1, y1]
                }
            };
            let ends = [width.clone(), height.clone()];
            let cut: [Scalar; 4] = std::array::from_fn(|c| {
                let value = moved[c].clone().min(ends[c % 2].clone() - real(1.0)).max(real(0.0));
                r.let_(value)
            });
            let short = |c: usize| (cut[c + 2].clone() - cut[c].clone() + real(1.0)).lt(least.clone());
            let small = r.let_(Scalar::binary(BinOp::Or, short(0), short(1)));
            let half = Scalar::select(small.clone(), least.clone() / real(2.0), real(0.0));
            let half = r.let_(half);
            let number = (row.clone() * w + column.clone()) * a + k;
            let number = r.let_(number);
            for (c, v) in cut.iter().enumerate() {
                let value = if c < 2 { v.clone() - half.clone() } else { v.clone() + half.clone() };
                r.store(boxes, [i.clone(), number.clone(), Scalar::index(c as i64)], value);
            }
            let score = r.read(scores, [i.clone(), Scalar::index(a + k), row.clone(), column.clone()]);
            let none = Scalar::binary(BinOp::Or, outside.clone(), small);
            r.store(boxes, [i.clone(), number, Scalar::index(4)], Scalar::select(none, real(-1.0), score));
        }
    });
}
