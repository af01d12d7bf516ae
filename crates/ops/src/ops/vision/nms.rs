//! Boxes with scores: those that count, and those that no better one suppresses.

use super::boxes::{bounded, check_number, descending, more, overlap, overlap_scalar, single, sort_row};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Nest, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        real::{Real, arithmetic, in_real},
        util::{elements, field, may_equal, op_head, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&GetValidCounts, &NonMaxSuppression];

/// Batches of boxes of so many numbers each.
fn check_boxes<'a>(args: &'a [Type], name: &str) -> Result<&'a TensorType, OpError> {
    let x = tensor_arg(args, 0, name)?;
    op_ensure!(
        x.rank() == 3 && x.dtype.is_float(),
        "C1: `{name}` is {x}, but should have floats and the shape (batch, boxes, numbers per box)"
    );
    Ok(x)
}

/// Which of a box's numbers an attribute names; none for a negative one.
fn place(attrs: &Attrs, name: &str, numbers: Dim, count: i64) -> Result<Option<usize>, OpError> {
    let at = attrs.int(name);
    op_ensure!(
        numbers.known().is_none_or(|n| at + count <= n),
        "C2: `{name}` is {at}, but a box has {numbers} numbers"
    );
    Ok(usize::try_from(at).ok())
}

/// [`place`] where there must be one.
fn needed(attrs: &Attrs, name: &str, numbers: Dim, count: i64) -> Result<usize, OpError> {
    place(attrs, name, numbers, count)?
        .ok_or_else(|| OpError(format!("C2: `{name}` is {}, but should not be negative", attrs.int(name))))
}

/// The axes of `inputs` ranks of which the first is the batch in all that have one.
fn batched(ranks: &[usize]) -> AxisMap {
    let role = |k| if k == 0 { AxisRole::Maps(0) } else { AxisRole::Opaque };
    AxisMap(ranks.iter().map(|&r| (0..r).map(role).collect()).collect())
}

/// `vision.get_valid_counts`.
#[derive(Debug)]
struct GetValidCounts;

impl Op for GetValidCounts {
    op_head!(
        "vision.get_valid_counts",
        "Three results for each batch: how many boxes have data[.., score_index] > score_threshold (the argument; the attribute
        of that name means nothing) and, unless id_index is negative, data[.., id_index] >= 0; these boxes, in order, then boxes
        of -1; and their places in data, then -1.
        C1: data has floats and the shape (batch, boxes, numbers per box). C2: score_index and id_index are places of a box's
        numbers, the latter possibly negative. C3: score_threshold is a single float.",
        ["data", "score_threshold"],
        [
            field("score_threshold", AttrKind::Float, AttrDefault::None),
            field("id_index", AttrKind::Int, AttrDefault::Int(0)),
            field("score_index", AttrKind::Int, AttrDefault::Int(1)),
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = check_boxes(args, "data")?;
        needed(attrs, "score_index", x.shape[2], 1)?;
        place(attrs, "id_index", x.shape[2], 1)?;
        check_number(args, 1, "score_threshold", true).map_err(|e| OpError(format!("C3: {e}")))?;
        let counts = TensorType::of([x.shape[0]], DType::I32);
        let places = TensorType::of([x.shape[0], x.shape[1]], DType::I32);
        Ok(Type::tuple([counts.into(), x.clone().into(), places.into()]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, least) = (args[0].tensor(), args[1].tensor().get_f64(0));
        let (score, id) = (attrs.int("score_index") as usize, usize::try_from(attrs.int("id_index")).ok());
        let [batch, n, numbers] = [0, 1, 2].map(|k| x.shape()[k]);
        let mut counts = Tensor::zeros(DType::I32, &[batch]);
        let mut boxes = Tensor::from_f64_fn(x.dtype(), x.shape(), |_| -1.0);
        let mut places = Tensor::from_i64_fn(DType::I32, &[batch, n], |_| -1);
        for b in 0..batch {
            let at = |j: usize, k: usize| x.get_f64((b * n + j) * numbers + k);
            let valid: Vec<usize> =
                (0..n).filter(|&j| at(j, score) > least && id.is_none_or(|id| at(j, id) >= 0.0)).collect();
            counts.set_i64(b, valid.len() as i64);
            for (to, &j) in valid.iter().enumerate() {
                (0..numbers).for_each(|k| boxes.set_f64((b * n + to) * numbers + k, at(j, k)));
                places.set_i64(b * n + to, j as i64);
            }
        }
        Ok(Value::Tuple(vec![counts.into(), boxes.into(), places.into()]))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[1].as_tensor().map_or(0, TensorType::rank);
        AxisMap(vec![batched(&[3]).0.remove(0), vec![AxisRole::Opaque; rank]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(1.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, least) = (args[0].tensor(), args[1].tensor());
        let (score, id) = (attrs.int("score_index"), attrs.int("id_index"));
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let [batch, n, numbers] = [0, 1, 2].map(|k| shape[k]);
        let real = arithmetic(&[dtype, b.dtype(least)]);
        let results = b.routine(|r| {
            let counts = r.output(&[batch], DType::I32);
            let boxes = r.output(&shape, dtype);
            let places = r.output(&[batch, n], DType::I32);
            r.parallel(batch, |r, i| {
                let least = r.let_(single(r, least).cast(real));
                let count = r.var(0);
                r.for_(n, |r, j| {
                    let at = |k: i64| r.read(x, [i.clone(), j.clone(), Scalar::index(k)]);
                    let mut valid = more(at(score).cast(real), least.clone());
                    if id >= 0 {
                        valid = valid.and(at(id).ge(Scalar::int(0, dtype)));
                    }
                    r.if_(valid, |r| {
                        let to = r.let_(r.get(count));
                        r.for_(numbers, |r, k| {
                            let value = r.read(x, [i.clone(), j.clone(), k.clone()]);
                            r.store(boxes, [i.clone(), to.clone(), k], value);
                        });
                        r.store(places, [i.clone(), to.clone()], j.clone().cast(DType::I32));
                        r.set(count, to + 1);
                    });
                });
                let count = r.let_(r.get(count));
                r.store(counts, [i.clone()], count.clone().cast(DType::I32));
                r.for_range(count, n, |r, j| {
                    r.for_(numbers, |r, k| r.store(boxes, [i.clone(), j.clone(), k], Scalar::int(-1, dtype)));
                    r.store(places, [i.clone(), j], Scalar::int(-1, DType::I32));
                });
            });
            [counts, boxes, places]
        });
        Ok(Operand::Tuple(results.map(Operand::Tensor).into()))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |shape: &[i64], id: i64, score: i64, d, least: &[i64]| Sample {
            attrs: vec![("id_index", id.into()), ("score_index", score.into())],
            args: vec![t(shape, d), t(least, DType::F32)],
        };
        vec![
            call(&[2, 7, 6], 0, 1, DType::F32, &[]),
            call(&[1, 5, 5], -1, 0, DType::F32, &[1]),
            call(&[3, 4, 6], 1, 0, DType::F64, &[]),
        ]
    }
}

/// `vision.non_max_suppression`.
#[derive(Debug)]
struct NonMaxSuppression;

/// The attributes, read.
struct Plan {
    /// Boxes suppress those of other classes, too.
    force: bool,
    /// How many of the best are looked at; none for all.
    top: Option<i64>,
    corners: usize,
    score: usize,
    /// Where the class is; none for no classes.
    id: Option<usize>,
    places: bool,
    compact: bool,
}

impl Plan {
    fn new(attrs: &Attrs, numbers: Dim) -> Result<Plan, OpError> {
        Ok(Plan {
            force: attrs.bool("force_suppress"),
            top: Some(attrs.int("top_k")).filter(|&k| k > 0),
            corners: needed(attrs, "coord_start", numbers, 4)?,
            score: needed(attrs, "score_index", numbers, 1)?,
            id: place(attrs, "id_index", numbers, 1)?,
            places: attrs.bool("return_indices"),
            compact: attrs.bool("invalid_to_bottom"),
        })
    }
}

/// The boxes that are left of a batch's `n` first ones, in the order of the result: none stands for one that is gone.
fn left<T: Real>(plan: &Plan, boxes: &[Vec<T>], n: usize, most: i64, bound: T) -> Vec<Option<usize>> {
    let zero = T::of(0.0);
    if bound <= zero {
        return (0..n).map(Some).collect();
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| descending(boxes[a][plan.score], boxes[b][plan.score]));
    let looked_at = plan.top.map_or(n, |top| n.min(top as usize));
    let mut left: Vec<Option<usize>> = order.iter().enumerate().map(|(k, &j)| (k < looked_at).then_some(j)).collect();
    let corners = |j: usize| [0, 1, 2, 3].map(|k| boxes[j][plan.corners + k]);
    let mut kept = 0;
    for k in 0..n {
        let Some(mine) = left[k].filter(|_| kept != most) else {
            left[k] = None;
            continue;
        };
        if boxes[mine][plan.score] <= zero {
            continue;
        }
        let suppressed = left[..k].iter().flatten().any(|&better| {
            let (a, b) = (&boxes[mine], &boxes[better]);
            let class = |v: &Vec<T>| plan.id.map(|id| v[id]);
            let meet = plan.force || class(a).zip(class(b)).is_none_or(|(a, b)| a == b);
            let counts = b[plan.score] > zero && class(b).is_none_or(|id| id >= zero);
            meet && counts && overlap(corners(mine), corners(better)) >= bound
        });
        match suppressed {
            true => left[k] = None,
            false => kept += 1,
        }
    }
    left
}

fn suppress<T: Real>(plan: &Plan, args: &[Value]) -> Value {
    let [x, valid, indices, most, bound] = [0, 1, 2, 3, 4].map(|k| args[k].tensor());
    let [batch, n, numbers] = [0, 1, 2].map(|k| x.shape()[k]);
    let mut out = Tensor::from_f64_fn(x.dtype(), x.shape(), |_| -1.0);
    let mut places = Tensor::from_i64_fn(DType::I32, &[batch, n], |_| -1);
    let mut counts = Tensor::zeros(DType::I32, &[batch, 1]);
    for b in 0..batch {
        let row = |j: usize| (0..numbers).map(|k| T::of(x.get_f64((b * n + j) * numbers + k))).collect();
        let boxes: Vec<Vec<T>> = (0..n).map(row).collect();
        let valid = valid.get_i64(b).clamp(0, n as i64) as usize;
        let mut left = left(plan, &boxes, valid, most.get_i64(0), T::of(bound.get_f64(0)));
        if plan.places {
            let of = left.iter().flatten().map(|&j| indices.get_i64(b * n + j)).filter(|&at| at >= 0);
            let mut count = 0;
            for (to, at) in of.enumerate() {
                places.set_i64(b * n + to, at);
                count = to + 1;
            }
            counts.set_i64(b, count as i64);
            continue;
        }
        if plan.compact {
            left.retain(|j| j.is_some_and(|j| boxes[j].first().is_some_and(|&v| v >= T::of(0.0))));
        }
        for (to, j) in left.iter().enumerate() {
            let Some(j) = *j else { continue };
            (0..numbers).for_each(|k| out.set_f64((b * n + to) * numbers + k, boxes[j][k].wide()));
        }
    }
    match plan.places {
        true => Value::Tuple(vec![places.into(), counts.into()]),
        false => out.into(),
    }
}

/// What the statements of a suppression work on.
struct Step {
    x: TensorId,
    /// The boxes in the order of the result; those that are gone hold -1.
    out: TensorId,
    /// Which box of the argument each is; -1 for those that are gone.
    from: TensorId,
    numbers: i64,
    real: DType,
}

impl Step {
    fn number(&self, r: &Nest<'_>, i: &Scalar, j: &Scalar, k: usize) -> Scalar {
        r.read(self.out, [i.clone(), j.clone(), Scalar::index(k as i64)]).cast(self.real)
    }

    /// Takes box `from` of the argument as number `j`.
    fn take(&self, r: &mut Nest<'_>, i: &Scalar, j: &Scalar, from: &Scalar) {
        r.for_(self.numbers, |r, k| {
            let value = r.read(self.x, [i.clone(), from.clone(), k.clone()]);
            r.store(self.out, [i.clone(), j.clone(), k], value);
        });
        r.store(self.from, [i.clone(), j.clone()], from.clone().cast(DType::I32));
    }

    /// Box number `j` is gone.
    fn clear(&self, r: &mut Nest<'_>, i: &Scalar, j: &Scalar) {
        let dtype = r.dtype(self.out);
        r.for_(self.numbers, |r, k| r.store(self.out, [i.clone(), j.clone(), k], Scalar::int(-1, dtype)));
        r.store(self.from, [i.clone(), j.clone()], Scalar::int(-1, DType::I32));
    }

    fn corners(&self, r: &mut Nest<'_>, plan: &Plan, i: &Scalar, j: &Scalar) -> [Scalar; 4] {
        [0, 1, 2, 3].map(|k| {
            let value = self.number(r, i, j, plan.corners + k);
            r.let_(value)
        })
    }

    /// Sets `valid` to false where a better box that is left suppresses number `j`.
    fn compare(&self, r: &mut Nest<'_>, plan: &Plan, i: &Scalar, j: &Scalar, bound: &Scalar, valid: crate::loops::Var) {
        let zero = Scalar::float(0.0, self.real);
        let mine = self.corners(r, plan, i, j);
        let k = r.var(0);
        let go_on = r.get(k).lt(j.clone()).and(r.get(valid));
        r.while_(go_on, |r| {
            let better = r.let_(r.get(k));
            let mut meet = more(self.number(r, i, &better, plan.score), zero.clone());
            if let Some(id) = plan.id {
                let (a, b) = (self.number(r, i, j, id), self.number(r, i, &better, id));
                meet = meet.and(b.clone().ge(zero.clone()));
                if !plan.force {
                    meet = meet.and(Scalar::binary(BinOp::Eq, a, b));
                }
            }
            r.if_(meet, |r| {
                let theirs = self.corners(r, plan, i, &better);
                r.if_(overlap_scalar(&mine, &theirs).ge(bound.clone()), |r| r.set(valid, Scalar::bool(false)));
            });
            r.set(k, better + 1);
        });
    }
}

impl Op for NonMaxSuppression {
    op_head!(
        "vision.non_max_suppression",
        "Of each batch's first valid_count boxes, ordered by score (equal ones as in data; only the top_k first stay, where top_k
        is positive): a box of positive score is gone where max_output_size boxes are kept already (unless that is negative),
        or where its overlap (intersection by union) with a better one that is left is at least iou_threshold; only boxes of
        one class meet, unless force_suppress is set or id_index negative, and a better one of negative class does not count. An
        iou_threshold of 0 or less leaves all as it is. The result with return_indices: the numbers that `indices` has for what
        is left (where not negative), then -1, and how many; else the boxes, in order, -1 for those that are gone, and with
        invalid_to_bottom those whose first number is not negative first.
        C1: data has floats and the shape (batch, boxes, numbers per box). C2: coord_start (of four numbers), score_index and
        id_index are places of a box's numbers, the latter possibly negative. C3: valid_count has an integer per batch, indices
        has integers and the shape (batch, boxes), unless return_indices is
        not set; max_output_size is a single integer, iou_threshold a single float.",
        ["data", "valid_count", "indices", "max_output_size", "iou_threshold"],
        [
            field("force_suppress", AttrKind::Bool, AttrDefault::Bool(false)),
            field("top_k", AttrKind::Int, AttrDefault::Int(-1)),
            field("coord_start", AttrKind::Int, AttrDefault::Int(2)),
            field("score_index", AttrKind::Int, AttrDefault::Int(1)),
            field("id_index", AttrKind::Int, AttrDefault::Int(0)),
            field("return_indices", AttrKind::Bool, AttrDefault::Bool(true)),
            field("invalid_to_bottom", AttrKind::Bool, AttrDefault::Bool(false)),
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, valid, indices) =
            (check_boxes(args, "data")?, tensor_arg(args, 1, "valid_count")?, tensor_arg(args, 2, "indices")?);
        Plan::new(attrs, x.shape[2])?;
        op_ensure!(
            valid.rank() == 1 && valid.dtype.is_int() && may_equal(valid.shape[0], x.shape[0]),
            "C3: `valid_count` is {valid}, but should have one integer per batch of {x}"
        );
        let fits =
            indices.rank() == 2 && indices.dtype.is_int() && (0..2).all(|k| may_equal(indices.shape[k], x.shape[k]));
        op_ensure!(
            fits || !attrs.bool("return_indices"),
            "C3: `indices` is {indices}, but should have an integer for each box of {x}"
        );
        check_number(args, 3, "max_output_size", false).map_err(|e| OpError(format!("C3: {e}")))?;
        check_number(args, 4, "iou_threshold", true).map_err(|e| OpError(format!("C3: {e}")))?;
        if !attrs.bool("return_indices") {
            return Ok(x.clone().into());
        }
        let places = TensorType::of([x.shape[0], x.shape[1]], DType::I32);
        let counts = TensorType::of([x.shape[0], Dim::Known(1)], DType::I32);
        Ok(Type::tuple([places.into(), counts.into()]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let plan = Plan::new(attrs, Dim::Known(x.shape()[2] as i64))?;
        Ok(in_real!(&[x.dtype(), args[4].tensor().dtype()], suppress(&plan, args)))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let rank = |k: usize| args[k].as_tensor().map_or(0, TensorType::rank);
        let mut roles = batched(&[3, 1, rank(2)]).0;
        roles.extend([vec![AxisRole::Opaque; rank(3)], vec![AxisRole::Opaque; rank(4)]]);
        AxisMap(roles)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        // Each box against half of the others, at the worst.
        let pairs = args[0].as_tensor().and_then(|x| x.shape.get(1)?.known()).unwrap_or(1) as f64 / 2.0;
        Work { flops: elements(&args[0]) * pairs * 4.0, ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, valid, indices, most, bound] = [0, 1, 2, 3, 4].map(|k| args[k].tensor());
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let [batch, n, numbers] = [0, 1, 2].map(|k| shape[k]);
        let plan = Plan::new(attrs, Dim::Known(numbers))?;
        let real = arithmetic(&[dtype, b.dtype(bound)]);
        let zero = Scalar::float(0.0, real);
        let results: Vec<TensorId> = b.routine(|r| {
            let whole = !plan.places && !plan.compact;
            let (out, from) = match whole {
                true => (r.output(&shape, dtype), r.scratch(&[batch, n], DType::I32)),
                false => (r.scratch(&shape, dtype), r.scratch(&[batch, n], DType::I32)),
            };
            let results = match (plan.places, whole) {
                (true, _) => vec![r.output(&[batch, n], DType::I32), r.output(&[batch, 1], DType::I32)],
                (false, true) => vec![out],
                (false, false) => vec![r.output(&shape, dtype)],
            };
            let orders = [0, 1].map(|_| r.scratch(&[batch, n], DType::I64));
            let w = Step { x, out, from, numbers, real };
            r.parallel(batch, |r, i| {
                let valid = r.let_(bounded(r.read(valid, [i.clone()]), n));
                let most = r.let_(single(r, most).cast(DType::I64));
                let bound = r.let_(single(r, bound).cast(real));
                r.if_else(
                    more(bound.clone(), zero.clone()),
                    |r| {
                        r.for_(valid.clone(), |r, j| r.store(orders[0], [i.clone(), j.clone()], j));
                        let score = |r: &Nest<'_>, j: Scalar| {
                            r.read(x, [i.clone(), j, Scalar::index(plan.score as i64)]).cast(real)
                        };
                        sort_row(r, orders, &i, &valid, |r, a, b| more(score(r, a), score(r, b)));
                        let looked_at = plan.top.map_or(valid.clone(), |top| valid.clone().min(Scalar::index(top)));
                        let looked_at = r.let_(looked_at);
                        r.for_(looked_at.clone(), |r, j| {
                            let from = r.let_(r.read(orders[0], [i.clone(), j.clone()]));
                            w.take(r, &i, &j, &from);
                        });
                        r.for_range(looked_at, valid.clone(), |r, j| w.clear(r, &i, &j));
                        let kept = r.var(0);
                        r.for_(valid.clone(), |r, j| {
                            let full = Scalar::binary(BinOp::Eq, r.get(kept), most.clone());
                            r.if_else(
                                full,
                                |r| w.clear(r, &i, &j),
                                |r| {
                                    let positive = more(w.number(r, &i, &j, plan.score), zero.clone());
                                    r.if_(positive, |r| {
                                        let valid = r.var(Scalar::bool(true));
                                        w.compare(r, &plan, &i, &j, &bound, valid);
                                        r.if_else(
                                            r.get(valid),
                                            |r| r.set(kept, r.get(kept) + 1),
                                            |r| w.clear(r, &i, &j),
                                        );
                                    });
                                },
                            );
                        });
                    },
                    |r| r.for_(valid.clone(), |r, j| w.take(r, &i, &j, &j)),
                );
                r.for_range(valid.clone(), n, |r, j| w.clear(r, &i, &j));
                if whole {
                    return;
                }
                let count = r.var(0);
                r.for_(n, |r, j| {
                    let from = r.let_(r.read(from, [i.clone(), j.clone()]).cast(DType::I64));
                    r.if_(from.clone().ge(Scalar::index(0)), |r| {
                        if plan.places {
                            let at = r.let_(r.read(indices, [i.clone(), from]).cast(DType::I64));
                            r.if_(at.clone().ge(Scalar::index(0)), |r| {
                                let to = r.let_(r.get(count));
                                r.store(results[0], [i.clone(), to.clone()], at.cast(DType::I32));
                                r.set(count, to + 1);
                            });
                        } else {
                            let first = r.read(out, [i.clone(), j.clone(), Scalar::index(0)]);
                            r.if_(first.ge(Scalar::int(0, dtype)), |r| {
                                let to = r.let_(r.get(count));
                                r.for_(numbers, |r, k| {
                                    let value = r.read(out, [i.clone(), j.clone(), k.clone()]);
                                    r.store(results[0], [i.clone(), to.clone(), k], value);
                                });
                                r.set(count, to + 1);
                            });
                        }
                    });
                });
                let count = r.let_(r.get(count));
                if plan.places {
                    r.store(results[1], [i.clone(), Scalar::index(0)], count.clone().cast(DType::I32));
                }
                r.for_range(count, n, |r, j| match plan.places {
                    true => r.store(results[0], [i.clone(), j], Scalar::int(-1, DType::I32)),
                    false => r.for_(numbers, |r, k| {
                        r.store(results[0], [i.clone(), j.clone(), k], Scalar::int(-1, dtype));
                    }),
                });
            });
            results
        });
        Ok(match results[..] {
            [one] => Operand::Tensor(one),
            _ => Operand::Tuple(results.into_iter().map(Operand::Tensor).collect()),
        })
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |shape: &[i64], attrs: Vec<(&'static str, crate::ir::AttrValue)>| Sample {
            attrs,
            args: vec![
                t(shape, DType::F32),
                t(&shape[..1], DType::I32),
                t(&shape[..2], DType::I32),
                t(&[], DType::I32),
                t(&[], DType::F32),
            ],
        };
        let boxes = ("return_indices", false.into());
        vec![
            call(&[2, 6, 6], vec![]),
            call(&[2, 6, 6], vec![boxes.clone(), ("top_k", 2.into())]),
            call(&[1, 6, 6], vec![boxes.clone(), ("invalid_to_bottom", true.into()), ("force_suppress", true.into())]),
            call(
                &[3, 5, 5],
                vec![("id_index", (-1).into()), ("score_index", 0.into()), ("coord_start", 1.into()), boxes],
            ),
        ]
    }
}
