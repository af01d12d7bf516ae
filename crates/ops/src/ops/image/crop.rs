//! Crops of images, resized.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar, UnOp},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work,
        nn::{
            geometry::{check_shape, layout_of, offsets, shape_of, whole},
            place::{Place, indices, place_in},
        },
        op_ensure,
        real::Real,
        util::{field, lowered_shapes, may_equal, op_head, t, tensor_arg, value_shapes, work_per_element},
    },
    tensor::{DType, Layout, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&CropAndResize];

/// `image.crop_and_resize`.
#[derive(Debug)]
struct CropAndResize;

fn layout(attrs: &Attrs) -> Result<Layout, OpError> {
    layout_of(attrs.str("layout"), "layout", "NCHW", "C").map_err(|e| OpError(format!("C1: {e}")))
}

/// The crops' height and width.
fn size(attrs: &Attrs) -> Result<[i64; 2], OpError> {
    match attrs.ints("crop_size")[..] {
        [h, w] if h > 0 && w > 0 => Ok([h, w]),
        ref other => Err(OpError(format!("C3: `crop_size` is {other:?}, but should be two positive numbers"))),
    }
}

/// The coordinate in the image (of `n` elements) of position `i` of `to` between the parts `from` and `end` of it.
fn coordinate<T: Real>(from: T, end: T, n: usize, to: usize, i: usize) -> T {
    let last = T::of(n as f64 - 1.0);
    match to {
        // One position lies in the middle.
        1 => T::of(0.5) * (from + end) * last,
        _ => from * last + last * (end - from) / T::of(to as f64 - 1.0) * T::of(i as f64),
    }
}

impl Op for CropAndResize {
    op_head!(
        "image.crop_and_resize",
        "out[b]: of image box_indices[b] of data (the nearest one, where there is no such image), the box (y1, x1, y2, x2) =
        boxes[b], in parts of the image's last row and column, resized to crop_size: the bilinear mixture, or the nearest element
        (halves away from zero), and extrapolation_value where a coordinate is outside of the image. Coordinates are float32.
        C1: layout names N, C, H and W, of which C may be split, and has data's rank. C2: boxes has floats and the shape
        (number of boxes, 4), box_indices as many integers. C3: crop_size has two positive numbers.",
        ["data", "boxes", "box_indices"],
        [
            field("crop_size", AttrKind::Ints, AttrDefault::None),
            field("layout", AttrKind::Str, AttrDefault::Str("NCHW")),
            field("method", AttrKind::OneOf(&["bilinear", "nearest_neighbor"]), AttrDefault::Str("bilinear")),
            field("extrapolation_value", AttrKind::Float, AttrDefault::Float(0.0)),
            field("out_dtype", AttrKind::DType, AttrDefault::None),
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, boxes, image) =
            (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "boxes")?, tensor_arg(args, 2, "box_indices")?);
        let (layout, size) = (layout(attrs)?, size(attrs)?);
        check_shape(&layout, &x.shape, "data").map_err(|e| OpError(format!("C1: {e}")))?;
        let fits = boxes.rank() == 2 && boxes.dtype.is_float() && may_equal(boxes.shape[1], Dim::Known(4));
        op_ensure!(fits, "C2: `boxes` is {boxes}, but should have floats and the shape (number of boxes, 4)");
        let each = image.rank() == 1 && image.dtype.is_int() && may_equal(image.shape[0], boxes.shape[0]);
        op_ensure!(each, "C2: `box_indices` is {image}, but should be one integer for each box of {boxes}");
        let shape = shape_of(&layout, "layout", |letter| match letter {
            'N' => boxes.shape[0],
            'H' => Dim::Known(size[0]),
            'W' => Dim::Known(size[1]),
            _ => whole(&layout, &x.shape, letter),
        })?;
        Ok(TensorType::of(shape, attrs.opt_dtype("out_dtype").unwrap_or(x.dtype)).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, boxes, image] = [0, 1, 2].map(|k| args[k].tensor());
        let (layout, nearest) = (layout(attrs)?, attrs.str("method") == "nearest_neighbor");
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let to = |letter| offsets(&layout, &shape, letter);
        let from = |letter| offsets(&layout, x.shape(), letter);
        let (rows, columns, images) = (from('H'), from('W'), from('N'));
        op_ensure!(
            shape.contains(&0) || !(rows.is_empty() || columns.is_empty() || images.is_empty()),
            "`data` is empty, so there is nothing to crop"
        );
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype());
        let mut out = Tensor::zeros(dtype, &shape);
        for (b, to_n) in to('N').into_iter().enumerate() {
            let [y1, x1, y2, x2] = [0, 1, 2, 3].map(|k| boxes.get_f64(4 * b + k) as f32);
            let base = images[image.get_i64(b).clamp(0, images.len() as i64 - 1) as usize];
            for (i, to_h) in to('H').into_iter().enumerate() {
                let y = coordinate(y1, y2, rows.len(), to('H').len(), i);
                for (j, to_w) in to('W').into_iter().enumerate() {
                    let x_at = coordinate(x1, x2, columns.len(), to('W').len(), j);
                    let last = |n: usize| n as f32 - 1.0;
                    let outside = y < 0.0 || y > last(rows.len()) || x_at < 0.0 || x_at > last(columns.len());
                    let clamp = |table: &[usize], k: i64| table[k.clamp(0, table.len() as i64 - 1) as usize];
                    for (to_c, from_c) in to('C').into_iter().zip(from('C')) {
                        let read =
                            |i: i64, j: i64| x.get_f64(base + from_c + clamp(&rows, i) + clamp(&columns, j)) as f32;
                        let at = (y.floor() as i64, x_at.floor() as i64);
                        let value = if outside {
                            attrs.float("extrapolation_value")
                        } else if nearest {
                            f64::from(read(y.round() as i64, x_at.round() as i64))
                        } else {
                            let (down, right) = (y - y.floor(), x_at - x_at.floor());
                            let mix = |a: f32, b: f32, t: f32| a * (1.0 - t) + b * t;
                            let row = |i: i64| mix(read(i, at.1), read(i, at.1 + 1), right);
                            f64::from(mix(row(at.0), row(at.0 + 1), down))
                        };
                        out.set_f64(to_n + to_c + to_h + to_w, value);
                    }
                }
            }
        }
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(layout) = layout(attrs) else { return AxisMap::opaque([rank, 2, 1]) };
        let role = |(k, a): (usize, &crate::tensor::LayoutAxis)| match a.primal {
            'C' => AxisRole::Maps(k),
            _ => AxisRole::Opaque,
        };
        let batch = layout.position('N').map_or(AxisRole::Opaque, AxisRole::Maps);
        AxisMap(vec![layout.axes().iter().enumerate().map(role).collect(), vec![batch, AxisRole::Opaque], vec![batch]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(24.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, boxes, image] = [0, 1, 2].map(|k| args[k].tensor());
        let (layout, nearest) = (layout(attrs)?, attrs.str("method") == "nearest_neighbor");
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(x));
        let axis = |letter: char| layout.position(letter).expect("the layout's letters were checked");
        let extent = |letter: char| (b.shape(x)[axis(letter)], shape[axis(letter)]);
        let spatial = [('H', extent('H')), ('W', extent('W'))];
        let images = extent('N').0;
        op_ensure!(shape.contains(&0) || !b.shape(x).contains(&0), "`data` is empty, so there is nothing to crop");
        let real = |v: f64| Scalar::float(v, DType::F32);
        let out = b.map(&shape, |b, i| {
            let box_at = i[axis('N')].clone();
            let part = |k: i64| b.read(boxes, [box_at.clone(), Scalar::index(k)]).cast(DType::F32);
            let [y, x_at] = [0, 1].map(|k| {
                let (letter, (n, to)) = spatial[k];
                let (from, end, last) = (part(k as i64), part(k as i64 + 2), real(n as f64 - 1.0));
                match to {
                    1 => real(0.5) * (from + end) * last,
                    _ => {
                        let step = last.clone() * (end - from.clone()) / real(to as f64 - 1.0);
                        from * last + step * i[axis(letter)].clone().cast(DType::F32)
                    }
                }
            });
            let places = [&y, &x_at];
            let clamp = |k: Scalar, n: i64| k.max(Scalar::index(0)).min(Scalar::index(n - 1));
            let number = clamp(b.read(image, [box_at.clone()]).cast(DType::I64), images);
            let read = |at: [Scalar; 2]| {
                let index = indices(&layout, |letter| match letter {
                    'N' => Place::flat(number.clone()),
                    'H' => Place::flat(clamp(at[0].clone(), spatial[0].1.0)),
                    'W' => Place::flat(clamp(at[1].clone(), spatial[1].1.0)),
                    _ => place_in(&layout, letter, i),
                });
                b.read(x, index)
            };
            let value = if nearest {
                read(places.map(|p| Scalar::unary(UnOp::Round, p.clone()).cast(DType::I64))).cast(DType::F32)
            } else {
                let floors = places.map(|p| Scalar::unary(UnOp::Floor, p.clone()));
                let [down, right] = [0, 1].map(|k| places[k].clone() - floors[k].clone());
                let first = floors.map(|f| f.cast(DType::I64));
                let mix = |a: Scalar, b: Scalar, t: &Scalar| a * (real(1.0) - t.clone()) + b * t.clone();
                let element = |di: i64, dj: i64| read([first[0].clone() + di, first[1].clone() + dj]).cast(DType::F32);
                let row = |di: i64| mix(element(di, 0), element(di, 1), &right);
                mix(row(0), row(1), &down)
            };
            // NaN is neither inside of the image nor outside: it makes the result NaN.
            let outside = places.iter().zip(&spatial).fold(Scalar::bool(false), |any, (p, (_, (n, _)))| {
                let before = (*p).clone().lt(real(0.0));
                any.or(before).or(real(*n as f64 - 1.0).lt((*p).clone()))
            });
            Scalar::select(outside, real(attrs.float("extrapolation_value")), value).cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |layout: &str, shape: &[i64], size: [i64; 2], method: &str, d| Sample {
            attrs: vec![
                ("crop_size", size.into()),
                ("layout", layout.into()),
                ("method", method.into()),
                ("extrapolation_value", 0.5.into()),
            ],
            args: vec![t(shape, d), t(&[3, 4], DType::F32), t(&[3], DType::I32)],
        };
        let mut samples = vec![
            call("NCHW", &[4, 2, 5, 6], [3, 4], "bilinear", DType::F32),
            call("NHWC", &[4, 5, 6, 2], [3, 4], "nearest_neighbor", DType::F32),
            call("NHWC", &[4, 5, 6, 2], [1, 1], "bilinear", DType::F32),
            call("NCHW2c", &[2, 2, 5, 6, 2], [2, 3], "bilinear", DType::F32),
            call("NCHW", &[1, 2, 5, 6], [3, 3], "bilinear", DType::U8),
        ];
        samples[4].attrs.push(("out_dtype", DType::F32.into()));
        samples
    }
}
