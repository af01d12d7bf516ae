//! Pools over regions of interest.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Nest, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work,
        bilinear::{mixed, mixed_scalar},
        nn::{
            geometry::{check_shape, layout_of, offsets, shape_of, whole},
            place::extent,
        },
        op_ensure,
        real::{Real, arithmetic, in_real},
        util::{bytes, elements, field, lowered_shapes, may_equal, op_head, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Layout, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&RoiAlign, &RoiPool];

fn layout(attrs: &Attrs) -> Result<Layout, OpError> {
    layout_of(attrs.str("layout"), "layout", "NCHW", "").map_err(|e| OpError(format!("C1: {e}")))
}

/// The result's height and width.
fn pooled(attrs: &Attrs) -> Result<[i64; 2], OpError> {
    match attrs.ints("pooled_size")[..] {
        [h, w] if h > 0 && w > 0 => Ok([h, w]),
        ref other => Err(OpError(format!("C3: `pooled_size` is {other:?}, but should be two positive numbers"))),
    }
}

/// The type relation of both pools.
fn infer(attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
    let (x, rois, layout) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "rois")?, layout(attrs)?);
    check_shape(&layout, &x.shape, "data").map_err(|e| OpError(format!("C1: {e}")))?;
    let fits = rois.rank() == 2 && may_equal(rois.shape[1], Dim::Known(5));
    op_ensure!(
        fits && rois.dtype.is_float() && x.dtype.is_float(),
        "C2: `data` is {x} and `rois` {rois}, but should have floats, the latter in the shape (regions, 5)"
    );
    let size = pooled(attrs)?.map(Dim::Known);
    let shape = shape_of(&layout, "layout", |letter| match letter {
        'N' => rois.shape[0],
        'H' => size[0],
        'W' => size[1],
        _ => whole(&layout, &x.shape, letter),
    })?;
    Ok(TensorType::of(shape, x.dtype).into())
}

fn axes(attrs: &Attrs, args: &[Type]) -> AxisMap {
    let rank = |k: usize| args[k].as_tensor().map_or(0, TensorType::rank);
    let Ok(layout) = layout(attrs) else { return AxisMap::opaque([rank(0), rank(1)]) };
    let role = |(k, a): (usize, &crate::tensor::LayoutAxis)| match a.primal {
        'C' => AxisRole::Maps(k),
        _ => AxisRole::Opaque,
    };
    let regions = layout.position('N').map_or(AxisRole::Opaque, AxisRole::Maps);
    AxisMap(vec![layout.axes().iter().enumerate().map(role).collect(), vec![regions, AxisRole::Opaque]])
}

fn work(per_element: f64, args: &[Type], out: &Type) -> Work {
    Work { flops: per_element * elements(out), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
}

/// The result, element by element: `value` is given the region's numbers, the position in the pool, and the elements of the
/// region's image and channel.
fn eval<T: Real>(
    attrs: &Attrs,
    [x, rois]: [&Tensor; 2],
    shape: &[usize],
    value: impl Fn([T; 5], [usize; 2], &dyn Fn(&[usize]) -> T) -> T,
) -> Result<Tensor, OpError> {
    let layout = layout(attrs)?;
    let from = ['N', 'C', 'H', 'W'].map(|l| offsets(&layout, x.shape(), l));
    let to = ['N', 'C', 'H', 'W'].map(|l| offsets(&layout, shape, l));
    let mut out = Tensor::zeros(x.dtype(), shape);
    op_ensure!(out.is_empty() || !x.is_empty(), "`data` is empty, so there is nothing to pool");
    for (region, to_n) in to[0].iter().enumerate() {
        let roi = [0, 1, 2, 3, 4].map(|k| T::of(rois.get_f64(region * 5 + k)));
        let image = from[0][roi[0].int().clamp(0, from[0].len() as i64 - 1) as usize];
        for (channel, to_c) in to[1].iter().enumerate() {
            let read = |at: &[usize]| T::of(x.get_f64(image + from[1][channel] + from[2][at[0]] + from[3][at[1]]));
            for (i, to_h) in to[2].iter().enumerate() {
                for (j, to_w) in to[3].iter().enumerate() {
                    out.set_f64(to_n + to_c + to_h + to_w, value(roi, [i, j], &read).wide());
                }
            }
        }
    }
    Ok(out)
}

/// The statements of a pool: `pool` makes those of one element, and gives its value.
fn lower(
    op: &dyn Op,
    attrs: &Attrs,
    args: &[Operand],
    b: &mut Builder,
    pool: impl FnOnce(&mut Nest<'_>, &Region) -> Scalar,
) -> Result<Operand, OpError> {
    let (x, rois) = (args[0].tensor(), args[1].tensor());
    let (layout, dtype) = (layout(attrs)?, b.dtype(x));
    let shape = lowered_shapes(op, attrs, args, b)?.remove(0);
    op_ensure!(shape.contains(&0) || !b.shape(x).contains(&0), "`data` is empty, so there is nothing to pool");
    let at = ['N', 'C', 'H', 'W'].map(|l| layout.position(l).expect("the layout's letters were checked"));
    let extents = ['N', 'H', 'W'].map(|l| extent(&layout, b.shape(x), l));
    let real = arithmetic(&[dtype, b.dtype(rois)]);
    let out = b.routine(|r| {
        let out = r.output(&shape, dtype);
        r.parallel_each(&shape, |r, i| {
            let numbers = [0, 1, 2, 3, 4].map(|k| {
                let value = r.read(rois, [i[at[0]].clone(), Scalar::index(k)]).cast(real);
                r.let_(value)
            });
            let image = super::boxes::bounded(numbers[0].clone(), extents[0] - 1);
            let image = r.let_(image);
            let region = Region {
                x,
                numbers,
                image,
                channel: i[at[1]].clone(),
                position: [i[at[2]].clone(), i[at[3]].clone()],
                at,
                extents: [extents[1], extents[2]],
                real,
            };
            let value = pool(r, &region);
            r.store(out, i.iter().cloned(), value.cast(dtype));
        });
        out
    });
    Ok(out.into())
}

/// What the statements of one element have.
struct Region {
    x: TensorId,
    /// The region: image, first column and row, last column and row.
    numbers: [Scalar; 5],
    image: Scalar,
    channel: Scalar,
    /// The row and column of the pool.
    position: [Scalar; 2],
    /// The axes of images, channels, rows and columns.
    at: [usize; 4],
    extents: [i64; 2],
    real: DType,
}

impl Region {
    fn real(&self, v: f64) -> Scalar {
        Scalar::float(v, self.real)
    }

    fn read(&self, r: &Nest<'_>, place: &[Scalar]) -> Scalar {
        let mut index = vec![Scalar::index(0); 4];
        index[self.at[0]] = self.image.clone();
        index[self.at[1]] = self.channel.clone();
        index[self.at[2]] = place[0].clone();
        index[self.at[3]] = place[1].clone();
        r.read(self.x, index).cast(self.real)
    }
}

/// `vision.roi_align`.
#[derive(Debug)]
struct RoiAlign;

/// A bin takes no more samples: of a region as large as numbers get there would be no end.
const MOST_SAMPLES: f64 = (1u64 << 24) as f64;

/// Refuses regions whose bins, of no given number of samples, take too many.
fn check_samples(attrs: &Attrs, rois: &Tensor, pooled: [i64; 2]) -> Result<(), OpError> {
    if attrs.int("sample_ratio") > 0 {
        return Ok(());
    }
    let scale = attrs.float("spatial_scale");
    for region in 0..rois.shape()[0] {
        let at = |k: usize| rois.get_f64(region * 5 + k) * scale;
        let samples = [0, 1].map(|k| ((at(4 - k) - at(2 - k)).max(1.0) / pooled[k] as f64).ceil());
        op_ensure!(
            samples[0] * samples[1] <= MOST_SAMPLES,
            "C4: a bin of region {region} takes {} by {} samples: too many",
            samples[0],
            samples[1]
        );
    }
    Ok(())
}

/// One element: the mean or the greatest of samples spread evenly over a bin.
fn aligned<T: Real>(
    attrs: &Attrs,
    roi: [T; 5],
    position: [usize; 2],
    pooled: [i64; 2],
    extents: [usize; 2],
    read: &dyn Fn(&[usize]) -> T,
) -> T {
    let scale = T::of(f64::from(attrs.float("spatial_scale") as f32));
    let (ratio, greatest) = (attrs.int("sample_ratio"), attrs.str("mode") == "max");
    // Rows, then columns: the first coordinate of the bin, its length, and its number of samples.
    let bins = [0, 1].map(|k| {
        let (first, last) = (roi[2 - k] * scale, roi[4 - k] * scale);
        let length = (last - first).greatest(T::of(1.0)) / T::of(pooled[k] as f64);
        let samples = if ratio > 0 { ratio } else { length.ceil().int() };
        (first + T::of(position[k] as f64) * length, length, samples)
    });
    let along = |k: usize, i: i64| {
        let (first, length, samples) = bins[k];
        first + (T::of(i as f64) + T::of(0.5)) * length / T::of(samples as f64)
    };
    let count = T::of((bins[0].2 * bins[1].2) as f64);
    let mut total = T::of(if greatest { f64::NEG_INFINITY } else { 0.0 });
    for i in 0..bins[0].2 {
        for j in 0..bins[1].2 {
            let place = [along(0, i), along(1, j)];
            let outside = (0..2).any(|k| place[k] < T::of(-1.0) || place[k] > T::of(extents[k] as f64));
            let inward = |k: usize| place[k].greatest(T::of(0.0)).least(T::of(extents[k] as f64 - 1.0));
            let value = if outside { T::of(0.0) } else { mixed(&[inward(0), inward(1)], &extents, read) };
            total = if greatest { total.greatest(value) } else { total + value / count };
        }
    }
    total
}

impl Op for RoiAlign {
    op_head!(
        "vision.roi_align",
        "out[n, c, i, j]: the mean, or with mode \"max\" the greatest, of sample_ratio by sample_ratio samples (where that is not
        positive, as many as its rounded-up height by its width) spread evenly over bin (i, j) of pooled_size bins that divide the
        region (image, x1, y1, x2, y2) = rois[n], its corners times spatial_scale and at least 1 wide and high; a sample is the
        bilinear mixture of data[image, c] there, places less than 1 outside moved to the border, further ones 0. The image is the
        nearest one, where there is no such image.
        C1: layout names N, C, H and W, and data has its rank. C2: data and rois have floats, the latter the shape (regions, 5).
        C3: pooled_size has two positive numbers. C4: no bin takes more than 2^24 samples.",
        ["data", "rois"],
        [
            field("pooled_size", AttrKind::Ints, AttrDefault::Required),
            field("spatial_scale", AttrKind::Float, AttrDefault::Required),
            field("sample_ratio", AttrKind::Int, AttrDefault::Int(-1)),
            field("layout", AttrKind::Str, AttrDefault::Str("NCHW")),
            field("mode", AttrKind::OneOf(&["avg", "max"]), AttrDefault::Str("avg")),
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        infer(attrs, args)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let tensors = [args[0].tensor(), args[1].tensor()];
        let (shape, size, layout) = (value_shapes(self, attrs, args)?.remove(0), pooled(attrs)?, layout(attrs)?);
        let extents = ['H', 'W'].map(|l| offsets(&layout, tensors[0].shape(), l).len());
        check_samples(attrs, tensors[1], size)?;
        fn all<T: Real>(
            attrs: &Attrs,
            tensors: [&Tensor; 2],
            shape: &[usize],
            size: [i64; 2],
            extents: [usize; 2],
        ) -> Result<Tensor, OpError> {
            eval(attrs, tensors, shape, |roi: [T; 5], at, read| aligned(attrs, roi, at, size, extents, read))
        }
        let dtypes = tensors.map(Tensor::dtype);
        Ok(in_real!(&dtypes, all(attrs, tensors, &shape, size, extents))?.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        axes(attrs, args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        work(20.0 * attrs.int("sample_ratio").max(2).pow(2) as f64, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let size = pooled(attrs)?;
        let (ratio, greatest) = (attrs.int("sample_ratio"), attrs.str("mode") == "max");
        lower(self, attrs, args, b, |r, region| {
            let scale = region.real(f64::from(attrs.float("spatial_scale") as f32));
            let bins = [0, 1].map(|k| {
                let end = |k: usize| region.numbers[k].clone() * scale.clone();
                let length = (end(4 - k) - end(2 - k)).max(region.real(1.0)) / region.real(size[k] as f64);
                let length = r.let_(length);
                let samples = match ratio {
                    ratio if ratio > 0 => Scalar::index(ratio),
                    _ => Scalar::unary(UnOp::Ceil, length.clone()).cast(DType::I64),
                };
                let first = end(2 - k) + region.position[k].clone().cast(region.real) * length.clone();
                let (first, samples) = (r.let_(first), r.let_(samples));
                let step = length.clone();
                (first, step, samples)
            });
            let count = r.let_((bins[0].2.clone() * bins[1].2.clone()).cast(region.real));
            let total = r.var(region.real(if greatest { f64::NEG_INFINITY } else { 0.0 }));
            let along = |k: usize, i: Scalar| {
                let (first, length, samples) = bins[k].clone();
                first + (i.cast(region.real) + region.real(0.5)) * length / samples.cast(region.real)
            };
            r.for_(bins[0].2.clone(), |r, i| {
                let y = r.let_(along(0, i));
                r.for_(bins[1].2.clone(), |r, j| {
                    let x = r.let_(along(1, j));
                    let place = [y.clone(), x];
                    let inside = place.iter().zip(region.extents).fold(Scalar::bool(true), |all, (p, n)| {
                        let end = Scalar::binary(crate::loops::BinOp::Le, p.clone(), region.real(n as f64));
                        all.and(p.clone().ge(region.real(-1.0))).and(end)
                    });
                    let inward = [0, 1].map(|k| {
                        let last = region.real(region.extents[k] as f64 - 1.0);
                        r.let_(place[k].clone().max(region.real(0.0)).min(last))
                    });
                    let value = mixed_scalar(&inward, &region.extents, |at| region.read(r, at));
                    let value = r.let_(Scalar::select(inside, value, region.real(0.0)));
                    let next = match greatest {
                        true => r.get(total).max(value),
                        false => r.get(total) + value / count.clone(),
                    };
                    r.set(total, next);
                });
            });
            r.get(total)
        })
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |layout: &str, x: &[i64], d, more: Vec<(&'static str, crate::ir::AttrValue)>| Sample {
            attrs: [("pooled_size", [2, 3].into()), ("spatial_scale", 1.0.into()), ("layout", layout.into())]
                .into_iter()
                .chain(more)
                .collect(),
            args: vec![t(x, d), t(&[4, 5], d)],
        };
        let wide = |ratio: i64| vec![("spatial_scale", 3.0.into()), ("sample_ratio", ratio.into())];
        let mut samples = vec![
            call("NCHW", &[2, 2, 5, 6], DType::F32, vec![("sample_ratio", 2.into())]),
            call("NHWC", &[3, 4, 4, 2], DType::F32, vec![("mode", "max".into())]),
            call("NCHW", &[1, 2, 4, 4], DType::F64, vec![("mode", "max".into()), ("sample_ratio", 1.into())]),
            call("NCHW", &[2, 2, 5, 6], DType::F32, vec![]),
            call("NHWC", &[2, 5, 6, 2], DType::F32, vec![]),
        ];
        for (sample, ratio) in [(3, -1), (4, 3)] {
            samples[sample].attrs.retain(|(n, _)| *n != "spatial_scale");
            samples[sample].attrs.extend(wide(ratio));
        }
        samples
    }
}

/// `vision.roi_pool`.
#[derive(Debug)]
struct RoiPool;

/// Guards the rounding of bins' ends that are whole but for an error of float arithmetic.
const SLACK: f64 = 0.00001;

/// One element: the greatest of a bin of whole elements; 0 where it is empty.
fn greatest<T: Real>(
    scale: T,
    roi: [T; 5],
    position: [usize; 2],
    pooled: [i64; 2],
    extents: [usize; 2],
    read: &dyn Fn(&[usize]) -> T,
) -> T {
    let ends = [0, 1].map(|k| {
        let [first, last] = [roi[2 - k], roi[4 - k]].map(|v| (v * scale).round().int());
        let length = T::of((last - first + 1).max(1) as f64) / T::of(pooled[k] as f64);
        let from = (T::of(position[k] as f64) * length + T::of(SLACK)).floor().int() + first;
        let to = (T::of(position[k] as f64 + 1.0) * length - T::of(SLACK)).ceil().int() + first;
        [from, to].map(|i| i.clamp(0, extents[k] as i64) as usize)
    });
    let rows = ends[0][0]..ends[0][1];
    let places = rows.flat_map(|i| (ends[1][0]..ends[1][1]).map(move |j| [i, j]));
    places.map(|at| read(&at)).reduce(|a, b| a.greatest(b)).unwrap_or(T::of(0.0))
}

impl Op for RoiPool {
    op_head!(
        "vision.roi_pool",
        "out[n, c, i, j]: the greatest element of data[image, c] in bin (i, j) of pooled_size bins that divide the region (image,
        x1, y1, x2, y2) = rois[n], its corners times spatial_scale and rounded, both included, at least one element wide and high;
        bins overlap where they do not divide it evenly, and are cut at data's ends; 0 where nothing is left. The image is the
        nearest one, where there is no such image.
        C1: layout names N, C, H and W, and data has its rank. C2: data and rois have floats, the latter the shape (regions, 5).
        C3: pooled_size has two positive numbers.",
        ["data", "rois"],
        [
            field("pooled_size", AttrKind::Ints, AttrDefault::Required),
            field("spatial_scale", AttrKind::Float, AttrDefault::Required),
            field("layout", AttrKind::Str, AttrDefault::Str("NCHW")),
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        infer(attrs, args)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let tensors = [args[0].tensor(), args[1].tensor()];
        let (shape, size, layout) = (value_shapes(self, attrs, args)?.remove(0), pooled(attrs)?, layout(attrs)?);
        let extents = ['H', 'W'].map(|l| offsets(&layout, tensors[0].shape(), l).len());
        fn all<T: Real>(
            attrs: &Attrs,
            tensors: [&Tensor; 2],
            shape: &[usize],
            size: [i64; 2],
            extents: [usize; 2],
        ) -> Result<Tensor, OpError> {
            let scale = T::of(attrs.float("spatial_scale"));
            eval(attrs, tensors, shape, |roi: [T; 5], at, read| greatest(scale, roi, at, size, extents, read))
        }
        let dtypes = tensors.map(Tensor::dtype);
        Ok(in_real!(&dtypes, all(attrs, tensors, &shape, size, extents))?.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        axes(attrs, args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work(4.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let size = pooled(attrs)?;
        lower(self, attrs, args, b, |r, region| {
            let whole = |op: UnOp, v: Scalar| Scalar::unary(op, v).cast(DType::I64);
            let ends = [0, 1].map(|k| {
                let corner = |n: usize| {
                    let scale = region.real(attrs.float("spatial_scale"));
                    whole(UnOp::Round, region.numbers[n].clone() * scale)
                };
                let (first, last) = (r.let_(corner(2 - k)), r.let_(corner(4 - k)));
                let length = (last - first.clone() + 1).max(Scalar::index(1)).cast(region.real);
                let length = r.let_(length / region.real(size[k] as f64));
                let position = region.position[k].clone();
                let from = position.clone().cast(region.real) * length.clone() + region.real(SLACK);
                let to = (position + 1).cast(region.real) * length - region.real(SLACK);
                [whole(UnOp::Floor, from), whole(UnOp::Ceil, to)]
                    .map(|i| r.let_(super::boxes::bounded(i + first.clone(), region.extents[k])))
            });
            let best = r.var(region.real(0.0));
            let found = r.var(Scalar::bool(false));
            r.for_range(ends[0][0].clone(), ends[0][1].clone(), |r, i| {
                r.for_range(ends[1][0].clone(), ends[1][1].clone(), |r, j| {
                    let value = r.let_(region.read(r, &[i.clone(), j]));
                    let next = Scalar::select(r.get(found), r.get(best).max(value.clone()), value);
                    r.set(best, next);
                    r.set(found, Scalar::bool(true));
                });
            });
            r.get(best)
        })
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |layout: &str, x: &[i64], scale: f64, d| Sample {
            attrs: vec![("pooled_size", [2, 3].into()), ("spatial_scale", scale.into()), ("layout", layout.into())],
            args: vec![t(x, d), t(&[6, 5], d)],
        };
        vec![
            call("NCHW", &[2, 2, 5, 6], 3.0, DType::F32),
            call("NHWC", &[2, 5, 6, 2], 1.5, DType::F32),
            call("NCHW", &[1, 1, 3, 3], 1.0, DType::F64),
        ]
    }
}
