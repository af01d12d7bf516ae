//! Suppression for each class by itself, as ONNX and TensorFlow give its results.

use super::boxes::{bounded, check_number, descending, more, overlap, overlap_scalar, single, sort_row};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Nest, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        real::{Real, arithmetic, in_real},
        util::{elements, field, may_equal, op_head, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&AllClass];

/// `vision.all_class_non_max_suppression`.
#[derive(Debug)]
struct AllClass;

fn is_onnx(attrs: &Attrs) -> bool {
    attrs.str("output_format") == "onnx"
}

fn product(dims: &[Dim]) -> Dim {
    dims.iter().map(|d| d.known()).product::<Option<i64>>().map_or(Dim::Any, Dim::Known)
}

/// The boxes that are selected of one batch and class, the best first, with their scores.
fn selected<T: Real>(boxes: &[[T; 4]], scores: &[T], most: i64, bound: T, least: T) -> Vec<(usize, T)> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| descending(scores[a], scores[b]));
    order.retain(|&j| scores[j] > least);
    let most = if most > 0 { most as usize } else { order.len() };
    let mut found: Vec<(usize, T)> = Vec::new();
    if bound <= T::of(0.0) {
        return found;
    }
    for &j in &order {
        let beaten = found.iter().any(|&(better, _)| {
            // What has no positive score is not compared.
            scores[j] > T::of(0.0) && overlap(boxes[better], boxes[j]) >= bound
        });
        if found.len() < most && !beaten && scores[j] > T::of(-1.0) {
            found.push((j, scores[j]));
        }
    }
    found
}

fn suppress<T: Real>(onnx: bool, args: &[Value]) -> Value {
    let [boxes, scores, most, bound, least] = [0, 1, 2, 3, 4].map(|k| args[k].tensor());
    let (batch, n, classes) = (boxes.shape()[0], boxes.shape()[1], scores.shape()[1]);
    let (bound, least) = (T::of(bound.get_f64(0)), T::of(least.get_f64(0)));
    let mut all: Vec<(usize, usize, Vec<(usize, T)>)> = Vec::new();
    for (b, c) in (0..batch).flat_map(|b| (0..classes).map(move |c| (b, c))) {
        let corners = |j: usize| [0, 1, 2, 3].map(|k| T::of(boxes.get_f64((b * n + j) * 4 + k)));
        let corners: Vec<[T; 4]> = (0..n).map(corners).collect();
        let own: Vec<T> = (0..n).map(|j| T::of(scores.get_f64((b * classes + c) * n + j))).collect();
        all.push((b, c, selected(&corners, &own, most.get_i64(0), bound, least)));
    }
    if onnx {
        let mut rows = Tensor::zeros(DType::I64, &[batch * classes * n, 3]);
        let mut count = 0;
        for (b, c, j) in all.iter().flat_map(|(b, c, found)| found.iter().map(move |(j, _)| (b, c, j))) {
            [*b, *c, *j].iter().enumerate().for_each(|(k, &v)| rows.set_i64(count * 3 + k, v as i64));
            count += 1;
        }
        return Value::Tuple(vec![rows.into(), Tensor::from_slice(&[1], &[count as i64]).into()]);
    }
    let mut rows = Tensor::zeros(DType::I64, &[batch, classes * n, 2]);
    let mut values = Tensor::zeros(DType::F32, &[batch, classes * n]);
    let mut counts = Tensor::zeros(DType::I64, &[batch]);
    for (b, c, found) in &all {
        for (j, score) in found {
            let at = b * classes * n + counts.get_i64(*b) as usize;
            rows.set_i64(at * 2, *c as i64);
            rows.set_i64(at * 2 + 1, *j as i64);
            values.set_f64(at, score.wide());
            counts.set_i64(*b, counts.get_i64(*b) + 1);
        }
    }
    Value::Tuple(vec![rows.into(), values.into(), counts.into()])
}

/// What the selection leaves for collecting it: per batch and class, the boxes, their scores, and how many.
struct Selection {
    boxes: TensorId,
    scores: TensorId,
    counts: TensorId,
}

impl Op for AllClass {
    op_head!(
        "vision.all_class_non_max_suppression",
        "For each batch and class: of the boxes (of two opposite corners) whose score is greater than score_threshold, ordered by
        score (equal ones as they come), those that no better selected one overlaps (intersection by union) by iou_threshold or
        more, at most max_output_boxes_per_class where that is positive. Boxes of scores up to 0 are not compared, those up to -1
        not selected, and nothing is by an iou_threshold of 0 or less. Results as output_format says: \"onnx\": (batch, class,
        box) rows for all, and how many there are; \"tensorflow\": per batch (class, box) rows, the scores, and how many. What
        follows after is 0.
        C1: boxes has floats and the shape (batch, boxes, 4). C2: scores has floats and the shape (batch, classes, boxes). C3: the
        other arguments are single numbers, the first an integer, further ones floats.",
        ["boxes", "scores", "max_output_boxes_per_class", "iou_threshold", "score_threshold"],
        [field("output_format", AttrKind::OneOf(&["onnx", "tensorflow"]), AttrDefault::Str("onnx"))],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (boxes, scores) = (tensor_arg(args, 0, "boxes")?, tensor_arg(args, 1, "scores")?);
        let fits = boxes.rank() == 3 && may_equal(boxes.shape[2], Dim::Known(4)) && boxes.dtype.is_float();
        op_ensure!(fits, "C1: `boxes` is {boxes}, but should have floats and the shape (batch, boxes, 4)");
        let fits = scores.rank() == 3
            && scores.dtype.is_float()
            && may_equal(scores.shape[0], boxes.shape[0])
            && may_equal(scores.shape[2], boxes.shape[1]);
        op_ensure!(fits, "C2: `scores` is {scores}, but should have floats, one per class for each box of {boxes}");
        for (k, float) in [(2, false), (3, true), (4, true)] {
            check_number(args, k, self.inputs()[k], float).map_err(|e| OpError(format!("C3: {e}")))?;
        }
        let (batch, n, classes) = (boxes.shape[0], boxes.shape[1], scores.shape[1]);
        let long = |shape: &[Dim]| Type::from(TensorType::of(shape.iter().copied(), DType::I64));
        let known = Dim::Known;
        if is_onnx(attrs) {
            return Ok(Type::tuple([long(&[product(&[batch, classes, n]), known(3)]), long(&[known(1)])]));
        }
        let rows = product(&[classes, n]);
        let values = TensorType::of([batch, rows], DType::F32).into();
        Ok(Type::tuple([long(&[batch, rows, known(2)]), values, long(&[batch])]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let dtypes = [0, 1, 3, 4].map(|k| args[k].tensor().dtype());
        Ok(in_real!(&dtypes, suppress(is_onnx(attrs), args)))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(args.iter().map(|a| vec![AxisRole::Opaque; a.as_tensor().map_or(0, TensorType::rank)]).collect())
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let pairs = args[0].as_tensor().and_then(|x| x.shape.get(1)?.known()).unwrap_or(1) as f64 / 2.0;
        Work { flops: elements(&args[1]) * pairs * 16.0, ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [boxes, scores, most, bound, least] = [0, 1, 2, 3, 4].map(|k| args[k].tensor());
        let (batch, n, classes) = (b.shape(boxes)[0], b.shape(boxes)[1], b.shape(scores)[1]);
        let real = arithmetic(&[boxes, scores, bound, least].map(|t| b.dtype(t)));
        let zero = Scalar::float(0.0, real);
        let onnx = is_onnx(attrs);
        let results: Vec<TensorId> = b.routine(|r| {
            let rows = batch * classes;
            let orders = [0, 1].map(|_| r.scratch(&[rows, n], DType::I64));
            let s = Selection {
                boxes: r.scratch(&[rows, n], DType::I64),
                scores: r.scratch(&[rows, n], real),
                counts: r.scratch(&[rows], DType::I64),
            };
            r.parallel(rows, |r, row| {
                let (image, class) = (row.clone().floor_div(classes.max(1)), row.clone().floor_mod(classes.max(1)));
                let (image, class) = (r.let_(image), r.let_(class));
                let most = r.let_(single(r, most).cast(DType::I64));
                let bound = r.let_(single(r, bound).cast(real));
                let least = r.let_(single(r, least).cast(real));
                let score = |r: &Nest<'_>, j: Scalar| r.read(scores, [image.clone(), class.clone(), j]).cast(real);
                let corners = |r: &mut Nest<'_>, j: &Scalar| {
                    [0, 1, 2, 3].map(|k| {
                        let value = r.read(boxes, [image.clone(), j.clone(), Scalar::index(k)]).cast(real);
                        r.let_(value)
                    })
                };
                // Only those above the threshold are sorted: the order among them is the same.
                let above = r.var(0);
                r.for_(n, |r, j| {
                    r.if_(more(score(r, j.clone()), least.clone()), |r| {
                        let to = r.let_(r.get(above));
                        r.store(orders[0], [row.clone(), to.clone()], j);
                        r.set(above, to + 1);
                    });
                });
                let above = r.let_(r.get(above));
                sort_row(r, orders, &row, &above, |r, a, b| more(score(r, a), score(r, b)));
                let count = r.var(0);
                r.if_(more(bound.clone(), zero.clone()), |r| {
                    let unbounded = Scalar::binary(crate::loops::BinOp::Le, most.clone(), Scalar::index(0));
                    let most = r.let_(Scalar::select(unbounded, above.clone(), most.clone()));
                    r.for_(above.clone(), |r, k| {
                        let j = r.let_(r.read(orders[0], [row.clone(), k]));
                        let own = r.let_(score(r, j.clone()));
                        let may = r.get(count).lt(most.clone()).and(more(own.clone(), Scalar::float(-1.0, real)));
                        r.if_(may, |r| {
                            let valid = r.var(Scalar::bool(true));
                            r.if_(more(own.clone(), zero.clone()), |r| {
                                let mine = corners(r, &j);
                                let k = r.var(0);
                                let go_on = r.get(k).lt(r.get(count)).and(r.get(valid));
                                r.while_(go_on, |r| {
                                    let at = r.let_(r.get(k));
                                    let better = r.let_(r.read(s.boxes, [row.clone(), at.clone()]));
                                    let theirs = corners(r, &better);
                                    let beaten = overlap_scalar(&theirs, &mine).ge(bound.clone());
                                    r.if_(beaten, |r| r.set(valid, Scalar::bool(false)));
                                    r.set(k, at + 1);
                                });
                            });
                            r.if_(r.get(valid), |r| {
                                let to = r.let_(r.get(count));
                                r.store(s.boxes, [row.clone(), to.clone()], j.clone());
                                r.store(s.scores, [row.clone(), to.clone()], own.clone());
                                r.set(count, to + 1);
                            });
                        });
                    });
                });
                r.store(s.counts, [row], r.get(count));
            });
            match onnx {
                true => collect_all(r, &s, [batch, classes, n]),
                false => collect_each(r, &s, [batch, classes, n]),
            }
        });
        Ok(Operand::Tuple(results.into_iter().map(Operand::Tensor).collect()))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |format: &str, boxes: &[i64], classes: i64, d, count: DType| Sample {
            attrs: vec![("output_format", format.into())],
            args: vec![
                t(boxes, d),
                t(&[boxes[0], classes, boxes[1]], d),
                t(&[], count),
                t(&[], DType::F32),
                t(&[], DType::F32),
            ],
        };
        vec![
            call("onnx", &[1, 6, 4], 2, DType::F32, DType::I32),
            call("onnx", &[3, 4, 4], 1, DType::F32, DType::I64),
            call("tensorflow", &[2, 6, 4], 3, DType::F32, DType::I32),
        ]
    }
}

/// (batch, class, box) rows of all that is selected, and how many.
fn collect_all(r: &mut Nest<'_>, s: &Selection, [batch, classes, n]: [i64; 3]) -> Vec<TensorId> {
    let rows = r.output(&[batch * classes * n, 3], DType::I64);
    let total = r.output(&[1], DType::I64);
    let count = r.var(0);
    r.for_(batch * classes, |r, row| {
        let own = r.read(s.counts, [row.clone()]);
        r.for_(bounded(own, n), |r, j| {
            let to = r.let_(r.get(count));
            let at = r.read(s.boxes, [row.clone(), j]);
            let row = [row.clone().floor_div(classes.max(1)), row.floor_mod(classes.max(1)), at];
            for (k, value) in row.into_iter().enumerate() {
                r.store(rows, [to.clone(), Scalar::index(k as i64)], value);
            }
            r.set(count, to + 1);
        });
    });
    let count = r.let_(r.get(count));
    r.store(total, [0], count.clone());
    r.for_range(count, batch * classes * n, |r, j| r.for_(3, |r, k| r.store(rows, [j.clone(), k], 0)));
    vec![rows, total]
}

/// Per batch, (class, box) rows of what is selected, the scores, and how many.
fn collect_each(r: &mut Nest<'_>, s: &Selection, [batch, classes, n]: [i64; 3]) -> Vec<TensorId> {
    let rows = r.output(&[batch, classes * n, 2], DType::I64);
    let values = r.output(&[batch, classes * n], DType::F32);
    let counts = r.output(&[batch], DType::I64);
    r.parallel(batch, |r, image| {
        let count = r.var(0);
        r.for_(classes, |r, class| {
            let row = r.let_(image.clone() * classes + class.clone());
            let own = r.read(s.counts, [row.clone()]);
            r.for_(bounded(own, n), |r, j| {
                let to = r.let_(r.get(count));
                let at = |k: i64| [image.clone(), to.clone(), Scalar::index(k)];
                r.store(rows, at(0), class.clone());
                r.store(rows, at(1), r.read(s.boxes, [row.clone(), j.clone()]));
                let score = r.read(s.scores, [row.clone(), j]).cast(DType::F32);
                r.store(values, [image.clone(), to.clone()], score);
                r.set(count, to + 1);
            });
        });
        let count = r.let_(r.get(count));
        r.store(counts, [image.clone()], count.clone());
        r.for_range(count, classes * n, |r, j| {
            r.for_(2, |r, k| r.store(rows, [image.clone(), j.clone(), k], 0));
            r.store(values, [image.clone(), j], Scalar::float(0.0, DType::F32));
        });
    });
    vec![rows, values, counts]
}
