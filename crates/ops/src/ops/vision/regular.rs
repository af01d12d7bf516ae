//! Suppression as TensorFlow Lite's "regular" one does it.

use super::boxes::{descending, more, sort_row};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Nest, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{elements, field, may_equal, op_head, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Regular];

/// `vision.regular_non_max_suppression`.
#[derive(Debug)]
struct Regular;

/// The attributes, read and checked.
struct Plan {
    per_class: i64,
    most: i64,
    classes: i64,
    bound: f32,
    least: f32,
}

impl Plan {
    fn new(attrs: &Attrs) -> Result<Plan, OpError> {
        let plan = Plan {
            per_class: attrs.int("max_detections_per_class"),
            most: attrs.int("max_detections"),
            classes: attrs.int("num_classes"),
            bound: attrs.float("iou_threshold") as f32,
            least: attrs.float("score_threshold") as f32,
        };
        op_ensure!(
            plan.most >= 0 && plan.classes >= 0,
            "C3: `max_detections` is {} and `num_classes` {}, but they should not be negative",
            plan.most,
            plan.classes
        );
        Ok(plan)
    }
}

/// The part of two boxes (ymin, xmin, ymax, xmax) that is common to them; 0 where either has no area.
fn overlap(a: [f32; 4], b: [f32; 4]) -> f32 {
    let area = |v: [f32; 4]| (v[2] - v[0]) * (v[3] - v[1]);
    if area(a) <= 0.0 || area(b) <= 0.0 {
        return 0.0;
    }
    let side = |k: usize| (a[k + 2].min(b[k + 2]) - a[k].max(b[k])).max(0.0);
    let both = side(0) * side(1);
    both / (area(a) + area(b) - both)
}

/// [`overlap`] as an expression.
fn overlap_scalar(a: &[Scalar; 4], b: &[Scalar; 4]) -> Scalar {
    let zero = Scalar::float(0.0, DType::F32);
    let area = |v: &[Scalar; 4]| (v[2].clone() - v[0].clone()) * (v[3].clone() - v[1].clone());
    let side = |k: usize| {
        let (end, first) = (a[k + 2].clone().min(b[k + 2].clone()), a[k].clone().max(b[k].clone()));
        (end - first).max(zero.clone())
    };
    let both = side(0) * side(1);
    let solid = more(area(a), zero.clone()).and(more(area(b), zero.clone()));
    Scalar::select(solid, both.clone() / (area(a) + area(b) - both), zero)
}

impl Op for Regular {
    op_head!(
        "vision.regular_non_max_suppression",
        "For each batch the max_detections best of what is left of the num_classes last classes of scores: their boxes, classes
        (of these, from 0), scores, and how many; 0 after. Of a class are left, ordered by score (equal ones as they come), the boxes
        of at least score_threshold that overlap (intersection by union) no better one that is left by more than iou_threshold,
        at most max_detections_per_class. Boxes are (ymin, xmin, ymax, xmax); those without area overlap nothing.
        C1: boxes has float32 and the shape (batch, boxes, 4). C2: scores has float32 and the shape (batch, boxes, classes), at
        least num_classes of them. C3: max_detections and num_classes are not negative.",
        ["boxes", "scores"],
        [
            field("max_detections_per_class", AttrKind::Int, AttrDefault::Required),
            field("max_detections", AttrKind::Int, AttrDefault::Required),
            field("num_classes", AttrKind::Int, AttrDefault::Required),
            field("iou_threshold", AttrKind::Float, AttrDefault::Required),
            field("score_threshold", AttrKind::Float, AttrDefault::Required),
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (boxes, scores, plan) = (tensor_arg(args, 0, "boxes")?, tensor_arg(args, 1, "scores")?, Plan::new(attrs)?);
        let fits = boxes.rank() == 3 && may_equal(boxes.shape[2], Dim::Known(4)) && boxes.dtype == DType::F32;
        op_ensure!(fits, "C1: `boxes` is {boxes}, but should have float32 and the shape (batch, boxes, 4)");
        let fits = scores.rank() == 3
            && scores.dtype == DType::F32
            && (0..2).all(|k| may_equal(scores.shape[k], boxes.shape[k]))
            && scores.shape[2].known().is_none_or(|n| n >= plan.classes);
        op_ensure!(
            fits,
            "C2: `scores` is {scores}, but should have float32, one for each of at least {} classes for each box of {boxes}",
            plan.classes
        );
        let (batch, most) = (boxes.shape[0], Dim::Known(plan.most));
        let floats = |shape: &[Dim]| Type::from(TensorType::of(shape.iter().copied(), DType::F32));
        let counts = TensorType::of([batch], DType::I32).into();
        Ok(Type::tuple([floats(&[batch, most, Dim::Known(4)]), floats(&[batch, most]), floats(&[batch, most]), counts]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (boxes, scores, plan) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs)?);
        let (batch, n, width) = (boxes.shape()[0], boxes.shape()[1], scores.shape()[2]);
        let (most, skip) = (plan.most as usize, width - plan.classes as usize);
        let mut results = [
            Tensor::zeros(DType::F32, &[batch, most, 4]),
            Tensor::zeros(DType::F32, &[batch, most]),
            Tensor::zeros(DType::F32, &[batch, most]),
            Tensor::zeros(DType::I32, &[batch]),
        ];
        for b in 0..batch {
            let corners = |j: usize| [0, 1, 2, 3].map(|k| boxes.get_f64((b * n + j) * 4 + k) as f32);
            let mut best: Vec<(usize, usize, f32)> = Vec::new();
            for class in 0..plan.classes as usize {
                let score = |j: usize| scores.get_f64((b * n + j) * width + skip + class) as f32;
                let mut order: Vec<usize> = (0..n).filter(|&j| score(j) >= plan.least).collect();
                order.sort_by(|&x, &y| descending(score(x), score(y)));
                let mut left: Vec<usize> = Vec::new();
                for &j in &order {
                    let beaten = left.iter().any(|&better| overlap(corners(better), corners(j)) > plan.bound);
                    if (left.len() as i64) < plan.per_class && !beaten {
                        left.push(j);
                    }
                }
                best.extend(left.iter().map(|&j| (j, class, score(j))));
                best.sort_by(|x, y| descending(x.2, y.2));
                best.truncate(most);
            }
            for (to, &(j, class, score)) in best.iter().enumerate() {
                let at = b * most + to;
                (0..4).for_each(|k| results[0].set_f64(at * 4 + k, f64::from(corners(j)[k])));
                results[1].set_f64(at, class as f64);
                results[2].set_f64(at, f64::from(score));
            }
            results[3].set_i64(b, best.len() as i64);
        }
        Ok(Value::Tuple(results.map(Value::Tensor).into()))
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap(vec![vec![AxisRole::Maps(0), AxisRole::Opaque, AxisRole::Opaque]; 2])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let pairs = args[0].as_tensor().and_then(|x| x.shape.get(1)?.known()).unwrap_or(1) as f64 / 2.0;
        Work { flops: elements(&args[1]) * pairs * 16.0, ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (boxes, scores, plan) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs)?);
        let (batch, n, width) = (b.shape(boxes)[0], b.shape(boxes)[1], b.shape(scores)[2]);
        let (most, skip) = (plan.most, width - plan.classes);
        let bound = Scalar::float(f64::from(plan.bound), DType::F32);
        let results = b.routine(|r| {
            let out = [
                r.output(&[batch, most, 4], DType::F32),
                r.output(&[batch, most], DType::F32),
                r.output(&[batch, most], DType::F32),
            ];
            let counts = r.output(&[batch], DType::I32);
            let orders = [0, 1].map(|_| r.scratch(&[batch, n], DType::I64));
            let left = r.scratch(&[batch, n], DType::I64);
            // The best so far, then what a class adds: box, class, score; twice, to sort them.
            let room = most + n;
            let best = [0, 1].map(|_| Candidates {
                boxes: r.scratch(&[batch, room], DType::I64),
                classes: r.scratch(&[batch, room], DType::I64),
                scores: r.scratch(&[batch, room], DType::F32),
            });
            let ranks = [0, 1].map(|_| r.scratch(&[batch, room], DType::I64));
            r.parallel(batch, |r, i| {
                let corners = |r: &mut Nest<'_>, j: &Scalar| {
                    [0, 1, 2, 3].map(|k| {
                        let value = r.read(boxes, [i.clone(), j.clone(), Scalar::index(k)]);
                        r.let_(value)
                    })
                };
                let size = r.var(0);
                r.for_(plan.classes, |r, class| {
                    let score = |r: &Nest<'_>, j: Scalar| r.read(scores, [i.clone(), j, class.clone() + skip]);
                    let above = r.var(0);
                    r.for_(n, |r, j| {
                        let least = Scalar::float(f64::from(plan.least), DType::F32);
                        r.if_(score(r, j.clone()).ge(least), |r| {
                            let to = r.let_(r.get(above));
                            r.store(orders[0], [i.clone(), to.clone()], j);
                            r.set(above, to + 1);
                        });
                    });
                    let above = r.let_(r.get(above));
                    sort_row(r, orders, &i, &above, |r, a, b| more(score(r, a), score(r, b)));
                    let count = r.var(0);
                    r.for_(above, |r, k| {
                        let j = r.let_(r.read(orders[0], [i.clone(), k]));
                        let valid = r.var(r.get(count).lt(Scalar::index(plan.per_class)));
                        let mine = corners(r, &j);
                        let k = r.var(0);
                        let go_on = r.get(k).lt(r.get(count)).and(r.get(valid));
                        r.while_(go_on, |r| {
                            let at = r.let_(r.get(k));
                            let better = r.let_(r.read(left, [i.clone(), at.clone()]));
                            let theirs = corners(r, &better);
                            let beaten = more(overlap_scalar(&theirs, &mine), bound.clone());
                            r.if_(beaten, |r| r.set(valid, Scalar::bool(false)));
                            r.set(k, at + 1);
                        });
                        r.if_(r.get(valid), |r| {
                            let to = r.let_(r.get(count));
                            r.store(left, [i.clone(), to.clone()], j.clone());
                            let end = r.let_(r.get(size) + to.clone());
                            let own = score(r, j.clone());
                            best[0].store(r, &i, &end, [j.clone(), class.clone(), own]);
                            r.set(count, to + 1);
                        });
                    });
                    let all = r.let_(r.get(size) + r.get(count));
                    r.for_(all.clone(), |r, k| r.store(ranks[0], [i.clone(), k.clone()], k));
                    let of = |r: &Nest<'_>, k: Scalar| r.read(best[0].scores, [i.clone(), k]);
                    sort_row(r, ranks, &i, &all, |r, a, b| more(of(r, a), of(r, b)));
                    let kept = r.let_(all.min(Scalar::index(most)));
                    r.for_(kept.clone(), |r, k| {
                        let from = r.let_(r.read(ranks[0], [i.clone(), k.clone()]));
                        let one = best[0].read(r, &i, &from);
                        best[1].store(r, &i, &k, one);
                    });
                    r.for_(kept.clone(), |r, k| {
                        let one = best[1].read(r, &i, &k);
                        best[0].store(r, &i, &k, one);
                    });
                    r.set(size, kept);
                });
                let size = r.let_(r.get(size));
                r.for_(size.clone(), |r, to| {
                    let [j, class, score] = best[0].read(r, &i, &to);
                    let j = r.let_(j);
                    r.for_(4, |r, k| {
                        let value = r.read(boxes, [i.clone(), j.clone(), k.clone()]);
                        r.store(out[0], [i.clone(), to.clone(), k], value);
                    });
                    r.store(out[1], [i.clone(), to.clone()], class.cast(DType::F32));
                    r.store(out[2], [i.clone(), to], score);
                });
                r.for_range(size.clone(), most, |r, to| {
                    let zero = Scalar::float(0.0, DType::F32);
                    r.for_(4, |r, k| r.store(out[0], [i.clone(), to.clone(), k], zero.clone()));
                    r.store(out[1], [i.clone(), to.clone()], zero.clone());
                    r.store(out[2], [i.clone(), to], zero);
                });
                r.store(counts, [i], size.cast(DType::I32));
            });
            [out[0], out[1], out[2], counts]
        });
        Ok(Operand::Tuple(results.map(Operand::Tensor).into()))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |n: i64, width: i64, limits: [i64; 3], bound: f64, least: f64| Sample {
            attrs: vec![
                ("max_detections_per_class", limits[0].into()),
                ("max_detections", limits[1].into()),
                ("num_classes", limits[2].into()),
                ("iou_threshold", bound.into()),
                ("score_threshold", least.into()),
            ],
            args: vec![t(&[2, n, 4], DType::F32), t(&[2, n, width], DType::F32)],
        };
        vec![call(6, 3, [2, 4, 2], 0.3, 0.25), call(8, 4, [8, 6, 4], 0.5, -1.0), call(3, 2, [3, 10, 1], 0.0, 0.0)]
    }
}

/// Tensors of boxes, classes and scores.
struct Candidates {
    boxes: TensorId,
    classes: TensorId,
    scores: TensorId,
}

impl Candidates {
    fn store(&self, r: &mut Nest<'_>, i: &Scalar, k: &Scalar, [place, class, score]: [Scalar; 3]) {
        let at = || [i.clone(), k.clone()];
        r.store(self.boxes, at(), place);
        r.store(self.classes, at(), class);
        r.store(self.scores, at(), score);
    }

    fn read(&self, r: &Nest<'_>, i: &Scalar, k: &Scalar) -> [Scalar; 3] {
        [self.boxes, self.classes, self.scores].map(|t| r.read(t, [i.clone(), k.clone()]))
    }
}
