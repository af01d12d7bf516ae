//! Anchor boxes of single-shot detectors, and the boxes that predictions make of them.

use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar, UnOp},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        real::{Real, arithmetic, in_real},
        util::{field, floats_attr, may_equal, op_head, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Prior, &TransformLoc];

/// `vision.multibox_prior`.
#[derive(Debug)]
struct Prior;

/// The anchors' boxes, as halves of their widths and heights, around centers.
struct Anchors {
    halves: Vec<(f32, f32)>,
    steps: [f32; 2],
    offsets: [f32; 2],
    clip: bool,
}

/// Exactly `N` numbers.
fn numbers<const N: usize>(attrs: &Attrs, name: &str) -> Result<[f32; N], OpError> {
    let all: Vec<f32> = floats_attr(attrs, name)?.into_iter().map(|v| v as f32).collect();
    let found = all.len();
    all.try_into().map_err(|_| OpError(format!("`{name}` has {found} numbers, but should have {N}")))
}

/// How many anchors each position has.
fn per_position(attrs: &Attrs) -> Result<usize, OpError> {
    let [sizes, ratios] = [floats_attr(attrs, "sizes")?, floats_attr(attrs, "ratios")?];
    op_ensure!(
        !sizes.is_empty() && !ratios.is_empty() && ratios.iter().all(|&r| r > 0.0),
        "C2: `sizes` is {sizes:?} and `ratios` {ratios:?}: both should have a number, ratios positive ones"
    );
    Ok(sizes.len() + ratios.len() - 1)
}

impl Anchors {
    fn new(attrs: &Attrs, h: i64, w: i64) -> Result<Anchors, OpError> {
        per_position(attrs)?;
        let single = |all: Vec<f64>| all.into_iter().map(|v| v as f32).collect::<Vec<f32>>();
        let (sizes, ratios) = (single(floats_attr(attrs, "sizes")?), single(floats_attr(attrs, "ratios")?));
        let shape = h as f32 / w as f32;
        let plain = sizes.iter().map(|&s| (s * shape / 2.0, s / 2.0));
        let stretched = ratios[1..].iter().map(|r| (sizes[0] * shape * r.sqrt() / 2.0, sizes[0] / r.sqrt() / 2.0));
        let extents = [h, w];
        let steps: [f32; 2] = numbers(attrs, "steps")?;
        let step = |k: usize| if steps[k] > 0.0 { steps[k] } else { 1.0 / extents[k] as f32 };
        Ok(Anchors {
            halves: plain.chain(stretched).collect(),
            steps: [step(0), step(1)],
            offsets: numbers(attrs, "offsets")?,
            clip: attrs.bool("clip"),
        })
    }
}

impl Op for Prior {
    op_head!(
        "vision.multibox_prior",
        "The anchor boxes (xmin, ymin, xmax, ymax) of all positions of data's last two axes, in parts of them: around ((j +
        offsets[1]) * steps[1], (i + offsets[0]) * steps[0]) (a step of 1 / extent where steps is not positive) one for each size,
        of height size and width size * height / width, and one for each ratio but the first, as the first size, but the width
        times and the height divided by the root of the ratio. With clip, within 0 and 1. Computed as float32.
        C1: data has floats and the shape (batch, channels, height, width). C2: sizes and ratios have a number at least, ratios
        positive ones; steps and offsets have two.",
        ["data"],
        [
            field("sizes", AttrKind::List, AttrDefault::Floats(&[1.0])),
            field("ratios", AttrKind::List, AttrDefault::Floats(&[1.0])),
            field("steps", AttrKind::List, AttrDefault::Floats(&[-1.0, -1.0])),
            field("offsets", AttrKind::List, AttrDefault::Floats(&[0.5, 0.5])),
            field("clip", AttrKind::Bool, AttrDefault::Bool(false)),
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(
            x.rank() == 4 && x.dtype.is_float(),
            "C1: `data` is {x}, but should have floats and the shape (batch, channels, height, width)"
        );
        let per = per_position(attrs)?;
        numbers::<2>(attrs, "steps").and(numbers::<2>(attrs, "offsets")).map_err(|e| OpError(format!("C2: {e}")))?;
        let positions = x.shape[2].known().zip(x.shape[3].known()).map(|(h, w)| h * w * per as i64);
        Ok(TensorType::of([Dim::Known(1), positions.map_or(Dim::Any, Dim::Known), Dim::Known(4)], x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let (h, w) = (x.shape()[2], x.shape()[3]);
        let a = Anchors::new(attrs, h as i64, w as i64)?;
        let per = a.halves.len();
        let out = Tensor::from_f64_fn(x.dtype(), &[1, h * w * per, 4], |flat| {
            let (k, anchor) = (flat % 4, flat / 4);
            let (half, place) = (a.halves[anchor % per], anchor / per);
            let (position, half, axis) = if k % 2 == 0 { (place % w, half.0, 1) } else { (place / w, half.1, 0) };
            let center = (position as f32 + a.offsets[axis]) * a.steps[axis];
            let value = if k < 2 { center - half } else { center + half };
            f64::from(if a.clip { value.clamp(0.0, 1.0) } else { value })
        });
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap::opaque([4])
    }
    fn work(&self, _: &Attrs, _: &[Type], out: &Type) -> Work {
        work_per_element(4.0, &[], out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let ([h, w], dtype) = ([b.shape(x)[2], b.shape(x)[3]], b.dtype(x));
        let a = Anchors::new(attrs, h, w)?;
        let per = a.halves.len() as i64;
        let real = |v: f32| Scalar::float(f64::from(v), DType::F32);
        let out = b.map(&[1, h * w * per, 4], |_, i| {
            let (which, place) = (i[1].clone().floor_mod(per), i[1].clone().floor_div(per));
            let half = |of: fn(&(f32, f32)) -> f32| {
                let last = real(a.halves.last().map_or(0.0, of));
                (0..per - 1).rev().fold(last, |rest, q| {
                    let here = Scalar::binary(BinOp::Eq, which.clone(), Scalar::index(q));
                    Scalar::select(here, real(of(&a.halves[q as usize])), rest)
                })
            };
            let center = |position: Scalar, axis: usize| {
                (position.cast(DType::F32) + real(a.offsets[axis])) * real(a.steps[axis])
            };
            let along_x = Scalar::binary(BinOp::Eq, i[2].clone().floor_mod(2), Scalar::index(0));
            let (cx, cy) = (center(place.clone().floor_mod(w.max(1)), 1), center(place.floor_div(w.max(1)), 0));
            let middle = Scalar::select(along_x.clone(), cx, cy);
            let half = Scalar::select(along_x, half(|s| s.0), half(|s| s.1));
            let first = i[2].clone().lt(Scalar::index(2));
            let value = Scalar::select(first, middle.clone() - half.clone(), middle + half);
            let value = if a.clip { value.max(real(0.0)).min(real(1.0)) } else { value };
            value.cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let list = |v: &[f64]| AttrValue::List(v.iter().map(|&f| f.into()).collect());
        let call = |attrs, shape: &[i64], d| Sample { attrs, args: vec![t(shape, d)] };
        vec![
            call(vec![], &[1, 2, 3, 4], DType::F32),
            call(
                vec![
                    ("sizes", list(&[0.3, 1.5, 0.7])),
                    ("ratios", list(&[1.3, 2.4])),
                    ("steps", list(&[2.0, 1.5])),
                    ("offsets", list(&[0.2, 0.3])),
                    ("clip", true.into()),
                ],
                &[2, 1, 3, 2],
                DType::F32,
            ),
            call(vec![("ratios", list(&[1.0, 2.0]))], &[1, 1, 2, 2], DType::F64),
        ]
    }
}

/// `vision.multibox_transform_loc`.
#[derive(Debug)]
struct TransformLoc;

fn transform<T: Real>(attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
    let [scores, moves, anchors] = [0, 1, 2].map(|k| args[k].tensor());
    let [batch, classes, n] = [0, 1, 2].map(|k| scores.shape()[k]);
    let variances = numbers::<4>(attrs, "variances")?.map(|v| T::of(f64::from(v)));
    let (keep, clip, least) =
        (attrs.bool("keep_background"), attrs.bool("clip"), T::of(f64::from(attrs.float("threshold") as f32)));
    let mut out = Tensor::from_f64_fn(scores.dtype(), &[batch, n, 6], |_| -1.0);
    let mut counts = Tensor::zeros(DType::I32, &[batch]);
    let two = T::of(2.0);
    for b in 0..batch {
        let mut count = 0;
        for j in 0..n {
            let (mut class, mut score) = (0, T::of(-1.0));
            for k in if keep { 0 } else { 1 }..classes {
                let value = T::of(scores.get_f64((b * classes + k) * n + j));
                if value > score {
                    (class, score) = (k, value);
                }
            }
            if class > 0 && score < least {
                class = 0;
            }
            if !keep && class == 0 {
                continue;
            }
            let a = [0, 1, 2, 3].map(|k| T::of(anchors.get_f64(j * 4 + k)));
            let p = [0, 1, 2, 3].map(|k| T::of(moves.get_f64(b * n * 4 + j * 4 + k)));
            let along = |k: usize| {
                let (size, center) = (a[k + 2] - a[k], (a[k] + a[k + 2]) / two);
                let middle = p[k] * variances[k] * size + center;
                let half = (p[k + 2] * variances[k + 2]).exp() * size / two;
                [middle - half, middle + half]
            };
            let clipped = |v: T| if clip { T::of(0.0).greatest(T::of(1.0).least(v)) } else { v };
            let ([x0, x1], [y0, y1]) = (along(0), along(1));
            let id = T::of(class as f64) - T::of(if keep { 0.0 } else { 1.0 });
            let row = [id, score, clipped(x0), clipped(y0), clipped(x1), clipped(y1)];
            row.iter().enumerate().for_each(|(k, v)| out.set_f64((b * n + count) * 6 + k, v.wide()));
            count += 1;
        }
        counts.set_i64(b, count as i64);
    }
    Ok(Value::Tuple(vec![out.into(), counts.into()]))
}

impl Op for TransformLoc {
    op_head!(
        "vision.multibox_transform_loc",
        "For each batch the boxes (class, score, xmin, ymin, xmax, ymax) that predictions make of the anchors, in their order, then
        boxes of -1; and how many there are. An anchor's class is the one of greatest probability above -1 (the first of equal
        ones; class 0, the background, does not take part unless keep_background is set), or 0 where that is less than
        threshold; those of class 0 are left out and the others' classes counted from 0, unless keep_background is set. The
        box's center is the anchor's moved by loc_pred * variances in parts of its size, its size the anchor's times the exponential
        of loc_pred * variances; with clip, within 0 and 1.
        C1: cls_prob has floats and the shape (batch, classes, anchors), loc_pred (batch, 4 * anchors), anchor (1, anchors, 4).
        C2: variances has four numbers.",
        ["cls_prob", "loc_pred", "anchor"],
        [
            field("clip", AttrKind::Bool, AttrDefault::Bool(true)),
            field("threshold", AttrKind::Float, AttrDefault::Float(0.01)),
            field(
                "variances",
                AttrKind::List,
                AttrDefault::Floats(&[0.1f32 as f64, 0.1f32 as f64, 0.2f32 as f64, 0.2f32 as f64])
            ),
            field("keep_background", AttrKind::Bool, AttrDefault::Bool(false)),
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (scores, moves, anchors) =
            (tensor_arg(args, 0, "cls_prob")?, tensor_arg(args, 1, "loc_pred")?, tensor_arg(args, 2, "anchor")?);
        numbers::<4>(attrs, "variances").map_err(|e| OpError(format!("C2: {e}")))?;
        let floats = [scores, moves, anchors].iter().all(|t| t.dtype.is_float());
        let fits = scores.rank() == 3 && moves.rank() == 2 && anchors.rank() == 3 && {
            let n = scores.shape[2];
            let four = n.known().map_or(Dim::Any, |n| Dim::Known(4 * n));
            may_equal(moves.shape[0], scores.shape[0])
                && may_equal(moves.shape[1], four)
                && may_equal(anchors.shape[1], n)
                && may_equal(anchors.shape[2], Dim::Known(4))
                && anchors.shape[0].known().is_none_or(|b| b > 0)
        };
        op_ensure!(
            fits && floats,
            "C1: `cls_prob` is {scores}, `loc_pred` {moves} and `anchor` {anchors}, but should have floats and the shapes (batch, \
             classes, anchors), (batch, 4 * anchors) and (1, anchors, 4)"
        );
        let (batch, n) = (scores.shape[0], anchors.shape[1]);
        let boxes = TensorType::of([batch, n, Dim::Known(6)], scores.dtype);
        Ok(Type::tuple([boxes.into(), TensorType::of([batch], DType::I32).into()]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let dtypes = [0, 1, 2].map(|k| args[k].tensor().dtype());
        in_real!(&dtypes, transform(attrs, args))
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        let (batch, rest) = (AxisRole::Maps(0), AxisRole::Opaque);
        AxisMap(vec![vec![batch, rest, rest], vec![batch, rest], vec![rest; 3]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(12.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [scores, moves, anchors] = [0, 1, 2].map(|k| args[k].tensor());
        let [batch, classes, n] = [0, 1, 2].map(|k| b.shape(scores)[k]);
        let dtype = b.dtype(scores);
        let real = arithmetic(&[scores, moves, anchors].map(|t| b.dtype(t)));
        let variances = numbers::<4>(attrs, "variances")?;
        let (keep, clip) = (attrs.bool("keep_background"), attrs.bool("clip"));
        let value = |v: f64| Scalar::float(v, real);
        let (out, counts) = b.routine(|r| {
            let out = r.output(&[batch, n, 6], dtype);
            let counts = r.output(&[batch], DType::I32);
            r.parallel(batch, |r, i| {
                let count = r.var(0);
                r.for_(n, |r, j| {
                    let (class, score) = (r.var(0), r.var(value(-1.0)));
                    r.for_range(if keep { 0 } else { 1 }, classes, |r, k| {
                        let here = r.read(scores, [i.clone(), k.clone(), j.clone()]).cast(real);
                        let here = r.let_(here);
                        r.if_(Scalar::binary(BinOp::Gt, here.clone(), r.get(score)), |r| {
                            r.set(class, k);
                            r.set(score, here);
                        });
                    });
                    let score = r.let_(r.get(score));
                    let low = score.clone().lt(value(f64::from(attrs.float("threshold") as f32)));
                    r.if_(low, |r| r.set(class, 0));
                    let class = r.let_(r.get(class));
                    let wanted = if keep { Scalar::bool(true) } else { class.clone().ge(Scalar::index(1)) };
                    r.if_(wanted, |r| {
                        let to = r.let_(r.get(count));
                        let a = |k: i64| r.read(anchors, [Scalar::index(0), j.clone(), Scalar::index(k)]).cast(real);
                        let p = |k: i64| r.read(moves, [i.clone(), j.clone() * 4 + k]).cast(real);
                        let along = |k: i64| {
                            let variance = |k: i64| value(f64::from(variances[k as usize]));
                            let (size, center) = (a(k + 2) - a(k), (a(k) + a(k + 2)) / value(2.0));
                            let middle = p(k) * variance(k) * size.clone() + center;
                            let half = Scalar::unary(UnOp::Exp, p(k + 2) * variance(k + 2)) * size / value(2.0);
                            [middle.clone() - half.clone(), middle + half]
                        };
                        let clipped = |v: Scalar| if clip { value(0.0).max(value(1.0).min(v)) } else { v };
                        let ([x0, x1], [y0, y1]) = (along(0), along(1));
                        let id = class.cast(real) - value(if keep { 0.0 } else { 1.0 });
                        let row = [id, score, clipped(x0), clipped(y0), clipped(x1), clipped(y1)];
                        for (k, v) in row.into_iter().enumerate() {
                            r.store(out, [i.clone(), to.clone(), Scalar::index(k as i64)], v.cast(dtype));
                        }
                        r.set(count, to + 1);
                    });
                });
                let count = r.let_(r.get(count));
                r.store(counts, [i.clone()], count.clone().cast(DType::I32));
                r.for_range(count, n, |r, j| {
                    r.for_(6, |r, k| r.store(out, [i.clone(), j.clone(), k], Scalar::int(-1, dtype)));
                });
            });
            (out, counts)
        });
        Ok(Operand::Tuple(vec![out.into(), counts.into()]))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |attrs, batch: i64, classes: i64, n: i64| Sample {
            attrs,
            args: [&[batch, classes, n][..], &[batch, 4 * n], &[1, n, 4]].map(|s| t(s, DType::F32)).into(),
        };
        vec![
            call(vec![], 2, 3, 5),
            call(vec![("clip", false.into()), ("threshold", 0.5.into())], 1, 4, 6),
            call(vec![("keep_background", true.into()), ("threshold", 1.0.into())], 2, 2, 4),
        ]
    }
}
