//! Sampling images at the places that a grid tells, and grids that affine transformations give.

use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar, UnOp},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work,
        bilinear::{mixed, mixed_scalar},
        nn::{
            geometry::{check_shape, layout_of, shape_of, whole},
            place::{Place, indices, place_in},
        },
        op_ensure,
        real::{Real, arithmetic, in_real},
        util::{field, lowered_shapes, may_equal, op_head, sample, t, tensor_arg, value_shapes, work_per_element},
    },
    tensor::{DType, Layout, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&AffineGrid, &GridSample];

/// `image.affine_grid`.
#[derive(Debug)]
struct AffineGrid;

/// The target's height and width.
fn target(attrs: &Attrs) -> Result<[i64; 2], OpError> {
    match attrs.ints("target_shape")[..] {
        [h, w] if h > 1 && w > 1 => Ok([h, w]),
        ref other => Err(OpError(format!("C2: `target_shape` is {other:?}, but should be two numbers greater than 1"))),
    }
}

/// From one position of a grid of `n` to the next, slightly less than what reaches 1 at the last.
fn step(n: i64) -> f64 {
    (2.0 - 1e-7) / (n - 1) as f64
}

fn affine<T: Real>(x: &Tensor, [h, w]: [i64; 2]) -> Tensor {
    let (h, w) = (h as usize, w as usize);
    let at = |i: usize, n: usize| T::of(-1.0) + T::of(i as f64) * T::of(step(n as i64));
    Tensor::from_f64_fn(x.dtype(), &[x.shape()[0], 2, h, w], |flat| {
        let row = flat / (h * w) * 3;
        let m = [0, 1, 2].map(|k| T::of(x.get_f64(row + k)));
        (m[0] * at(flat % w, w) + m[1] * at(flat / w % h, h) + m[2]).wide()
    })
}

impl Op for AffineGrid {
    op_head!(
        "image.affine_grid",
        "out[n, k, i, j] = data[n, k, 0] * x(j) + data[n, k, 1] * y(i) + data[n, k, 2], where x and y run evenly from -1 to
        (just below) 1 along the target's width and height: the coordinates (x, y) at which an image is to be sampled.
        C1: data has floats and the shape (batch, 2, 3). C2: target_shape has two numbers greater than 1.",
        ["data"],
        [field("target_shape", AttrKind::Ints, AttrDefault::Required)],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let fits = x.rank() == 3 && may_equal(x.shape[1], Dim::Known(2)) && may_equal(x.shape[2], Dim::Known(3));
        op_ensure!(fits && x.dtype.is_float(), "C1: `data` is {x}, but should have floats and the shape (batch, 2, 3)");
        let [h, w] = target(attrs)?.map(Dim::Known);
        Ok(TensorType::of([x.shape[0], Dim::Known(2), h, w], x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        Ok(in_real!(&[x.dtype()], affine(x, target(attrs)?)).into())
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap(vec![vec![AxisRole::Maps(0), AxisRole::Maps(1), AxisRole::Opaque]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(8.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let (target, dtype) = (target(attrs)?, arithmetic(&[b.dtype(x)]));
        let shape = [b.shape(x)[0], 2, target[0], target[1]];
        let out = b.map(&shape, |b, i| {
            let m = |k: i64| b.read(x, [i[0].clone(), i[1].clone(), Scalar::index(k)]).cast(dtype);
            let at = |axis: usize| {
                let steps = i[axis].clone().cast(dtype) * Scalar::float(step(shape[axis]), dtype);
                Scalar::float(-1.0, dtype) + steps
            };
            (m(0) * at(3) + m(1) * at(2) + m(2)).cast(b.dtype(x))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |n: i64, target: [i64; 2], d| sample([("target_shape", target.into())], vec![t(&[n, 2, 3], d)]);
        vec![call(2, [3, 4], DType::F32), call(1, [2, 2], DType::F64), call(1, [3, 2], DType::F16)]
    }
}

/// `image.grid_sample`.
#[derive(Debug)]
struct GridSample;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Method {
    Nearest,
    Linear,
    Cubic,
}

/// What stands for elements outside of the image.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// The attributes, read.
struct Plan {
    layout: Layout,
    /// The spatial axes' letters, outermost first.
    spatial: &'static str,
    method: Method,
    padding: Padding,
    align: bool,
}

/// The free parameter of the cubic weights.
const CUBIC: f64 = -0.75;

impl Plan {
    fn new(attrs: &Attrs) -> Result<Plan, OpError> {
        let text = attrs.str("layout");
        let spatial = if text.contains('D') { "DHW" } else { "HW" };
        let method = match attrs.str("method") {
            "nearest" => Method::Nearest,
            "bilinear" => Method::Linear,
            _ => Method::Cubic,
        };
        op_ensure!(
            method != Method::Cubic || spatial.len() == 2,
            "C3: the method \"bicubic\" is for two spatial axes, but `layout` is {text}"
        );
        let padding = match attrs.str("padding_mode") {
            "border" => Padding::Border,
            "reflection" => Padding::Reflection,
            _ => Padding::Zeros,
        };
        let layout =
            layout_of(text, "layout", &format!("NC{spatial}"), "C").map_err(|e| OpError(format!("C1: {e}")))?;
        Ok(Plan { layout, spatial, method, padding, align: attrs.bool("align_corners") })
    }

    /// The coordinate in elements that a grid's number from -1 to 1 stands for, along an axis of `n` elements.
    fn coordinate<T: Real>(&self, g: T, n: usize) -> T {
        let shifted = g + T::of(1.0);
        match self.align {
            true => shifted * T::of(n as f64 - 1.0) / T::of(2.0),
            false => T::of(-0.5) + shifted * T::of(n as f64) / T::of(2.0),
        }
    }

    /// The coordinate within the image that a coordinate anywhere is mirrored to, again and again.
    fn reflected<T: Real>(&self, x: T, n: usize) -> T {
        let (first, span) = if self.align { (0.0, n as i64 - 1) } else { (-0.5, n as i64) };
        let (first, length) = (T::of(first), T::of(span as f64));
        if x >= first && x <= length + first || span == 0 {
            return if span == 0 { first } else { x };
        }
        let away = (first - x).abs();
        let times = away.int() / span;
        let rest = away - T::of((times * span) as f64);
        if times % 2 == 0 { rest + first } else { length - rest + first }
    }

    /// A coordinate, brought into the image where the padding says so.
    fn inward<T: Real>(&self, x: T, n: usize) -> T {
        let x = if self.padding == Padding::Reflection { self.reflected(x, n) } else { x };
        match self.padding {
            Padding::Zeros => x,
            _ => x.greatest(T::of(0.0)).least(T::of(n as f64 - 1.0)),
        }
    }

    /// The element at a place, of coordinates outermost first.
    fn sampled<T: Real>(&self, place: &[T], extents: &[usize], read: impl Fn(&[usize]) -> T) -> T {
        let inward: Vec<T> = place.iter().zip(extents).map(|(&x, &n)| self.inward(x, n)).collect();
        let single = |at: &[i64]| match at.iter().zip(extents).all(|(&i, &n)| 0 <= i && i < n as i64) {
            true => read(&at.iter().map(|&i| i as usize).collect::<Vec<_>>()),
            false => T::of(0.0),
        };
        match self.method {
            Method::Linear => mixed(&inward, extents, read),
            Method::Nearest => single(&inward.iter().map(|x| x.round_even().int()).collect::<Vec<_>>()),
            Method::Cubic => {
                let part = |k: usize| place[k] - place[k].floor();
                let tap = |k: usize, j: i64| {
                    let at = place[k].floor().int().saturating_add(j - 1);
                    if self.padding == Padding::Zeros { at } else { self.inward(T::of(at as f64), extents[k]).int() }
                };
                let (rows, columns) = (cubic(part(0)), cubic(part(1)));
                let mut sum = T::of(0.0);
                for (i, &row) in rows.iter().enumerate() {
                    let taps = columns.iter().enumerate();
                    let line =
                        taps.fold(T::of(0.0), |s, (j, &w)| s + single(&[tap(0, i as i64), tap(1, j as i64)]) * w);
                    sum = sum + line * row;
                }
                sum
            }
        }
    }
}

/// Weights of the four elements around a place that lies `f` behind the second.
fn cubic<T: Real>(f: T) -> [T; 4] {
    let (a, n) = (T::of(CUBIC), |v: f64| T::of(v));
    let near = |f: T| ((a + n(2.0)) * f - (a + n(3.0))) * f * f + n(1.0);
    let far = |f: T| ((a * f - n(5.0) * a) * f + n(8.0) * a) * f - n(4.0) * a;
    [far(f + n(1.0)), near(f), near(n(1.0) - f), far(n(2.0) - f)]
}

fn sample_grid<T: Real>(plan: &Plan, x: &Tensor, grid: &Tensor, shape: &[usize]) -> Tensor {
    let (k, strides, layout) = (plan.spatial.len(), row_major_strides(x.shape()), &plan.layout);
    let axis = |letter: char| layout.position(letter).expect("the layout's letters were checked");
    let spatial: Vec<usize> = plan.spatial.chars().map(axis).collect();
    let from: Vec<usize> = spatial.iter().map(|&a| x.shape()[a]).collect();
    let grid_strides = row_major_strides(grid.shape());
    let batch = axis('N');
    let mut index = vec![0; shape.len()];
    Tensor::from_f64_fn(x.dtype(), shape, |flat| {
        let mut rest = flat;
        for axis in (0..shape.len()).rev() {
            (index[axis], rest) = (rest % shape[axis], rest / shape[axis]);
        }
        let n = index[batch];
        let at: usize = spatial.iter().enumerate().map(|(s, &a)| index[a] * grid_strides[2 + s]).sum();
        // The grid tells the innermost coordinate first.
        let place: Vec<T> = (0..k)
            .map(|s| T::of(grid.get_f64(n * grid_strides[0] + (k - 1 - s) * grid_strides[1] + at)))
            .zip(&from)
            .map(|(g, &n)| plan.coordinate(g, n))
            .collect();
        let base: usize = (0..shape.len()).filter(|a| !spatial.contains(a)).map(|a| index[a] * strides[a]).sum();
        let read = |i: &[usize]| {
            let moved: usize = i.iter().zip(&spatial).map(|(i, &a)| i * strides[a]).sum();
            T::of(x.get_f64(base + moved))
        };
        plan.sampled(&place, &from, read).wide()
    })
}

/// As the methods of [`Plan`] of these names, as expressions of one float type.
impl Plan {
    fn coordinate_scalar(&self, g: Scalar, n: i64) -> Scalar {
        let real = |v: f64| Scalar::float(v, g.dtype());
        let shifted = g.clone() + real(1.0);
        match self.align {
            true => shifted * real(n as f64 - 1.0) / real(2.0),
            false => real(-0.5) + shifted * real(n as f64) / real(2.0),
        }
    }

    fn reflected_scalar(&self, x: Scalar, n: i64) -> Scalar {
        let dtype = x.dtype();
        let real = |v: f64| Scalar::float(v, dtype);
        let (first, span) = if self.align { (0.0, n - 1) } else { (-0.5, n) };
        if span == 0 {
            return real(first);
        }
        let away = Scalar::unary(UnOp::Abs, real(first) - x.clone());
        let times = away.clone().cast(DType::I64).floor_div(span);
        let rest = away - (times.clone() * span).cast(dtype);
        let even = Scalar::binary(BinOp::Eq, times.floor_mod(2), Scalar::index(0));
        let mirrored = Scalar::select(even, rest.clone() + real(first), real(span as f64) - rest + real(first));
        let end = Scalar::binary(BinOp::Le, x.clone(), real(span as f64 + first));
        Scalar::select(x.clone().ge(real(first)).and(end), x, mirrored)
    }

    fn inward_scalar(&self, x: Scalar, n: i64) -> Scalar {
        let x = if self.padding == Padding::Reflection { self.reflected_scalar(x, n) } else { x };
        let real = |v: f64| Scalar::float(v, x.dtype());
        match self.padding {
            Padding::Zeros => x,
            _ => x.clone().max(real(0.0)).min(real(n as f64 - 1.0)),
        }
    }

    fn sampled_scalar(&self, place: &[Scalar], extents: &[i64], read: impl Fn(&[Scalar]) -> Scalar) -> Scalar {
        let dtype = place[0].dtype();
        let inward: Vec<Scalar> = place.iter().zip(extents).map(|(x, &n)| self.inward_scalar(x.clone(), n)).collect();
        let single = |at: &[Scalar]| {
            let inside = at.iter().zip(extents).fold(Scalar::bool(true), |all, (i, &n)| {
                all.and(i.clone().ge(Scalar::index(0))).and(i.clone().lt(Scalar::index(n)))
            });
            Scalar::select(inside, read(at), Scalar::float(0.0, dtype))
        };
        match self.method {
            Method::Linear => mixed_scalar(&inward, extents, read),
            Method::Nearest => {
                let near = |x: &Scalar| Scalar::unary(UnOp::RoundEven, x.clone()).cast(DType::I64);
                single(&inward.iter().map(near).collect::<Vec<_>>())
            }
            Method::Cubic => {
                let floors: Vec<Scalar> = place.iter().map(|x| Scalar::unary(UnOp::Floor, x.clone())).collect();
                let tap = |k: usize, j: i64| {
                    let at = floors[k].clone().cast(DType::I64) + (j - 1);
                    match self.padding {
                        Padding::Zeros => at,
                        _ => self.inward_scalar(at.cast(dtype), extents[k]).cast(DType::I64),
                    }
                };
                let taps: Vec<Vec<Scalar>> = (0..2).map(|k| (0..4).map(|j| tap(k, j)).collect()).collect();
                let weights: Vec<[Scalar; 4]> =
                    (0..2).map(|k| cubic_scalar(place[k].clone() - floors[k].clone())).collect();
                let sum = |terms: Vec<Scalar>| terms.into_iter().reduce(|a, b| a + b).expect("four taps");
                let line = |i: usize| {
                    let term = |j: usize| single(&[taps[0][i].clone(), taps[1][j].clone()]) * weights[1][j].clone();
                    sum((0..4).map(term).collect())
                };
                sum((0..4).map(|i| line(i) * weights[0][i].clone()).collect())
            }
        }
    }
}

/// [`cubic`] as expressions.
fn cubic_scalar(f: Scalar) -> [Scalar; 4] {
    let (a, dtype) = (CUBIC, f.dtype());
    let n = |v: f64| Scalar::float(v, dtype);
    let near = |f: Scalar| (n(a + 2.0) * f.clone() - n(a + 3.0)) * f.clone() * f + n(1.0);
    let far = |f: Scalar| ((n(a) * f.clone() - n(5.0 * a)) * f.clone() + n(8.0 * a)) * f - n(4.0 * a);
    [far(f.clone() + n(1.0)), near(f.clone()), near(n(1.0) - f.clone()), far(n(2.0) - f)]
}

impl Op for GridSample {
    op_head!(
        "image.grid_sample",
        "out[n, c, i, j]: data[n, c] at the coordinates x = grid[n, 0, i, j], y = grid[n, 1, i, j] (and z, from grid[n, 2], with
        three spatial axes), where -1 and 1 are the first and last element (with align_corners), or their outer edges: the
        nearest element (halves to even), or the (bi- or tri-)linear or (bi)cubic mixture of those around. Outside of data
        there are zeros, or the elements at the border, or data mirrored there.
        C1: layout names N, C and two or three spatial axes, the latter not split, and has data's rank; data and grid have floats.
        C2: grid has the shape (batch, number of spatial axes, spatial extents of the result..). C3: bicubic is for two axes.",
        ["data", "grid"],
        [
            field("method", AttrKind::OneOf(&["nearest", "bilinear", "bicubic"]), AttrDefault::Str("bilinear")),
            field("layout", AttrKind::Str, AttrDefault::Str("NCHW")),
            field("padding_mode", AttrKind::OneOf(&["zeros", "border", "reflection"]), AttrDefault::Str("zeros")),
            field("align_corners", AttrKind::Bool, AttrDefault::Bool(true)),
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, grid, plan) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "grid")?, Plan::new(attrs)?);
        check_shape(&plan.layout, &x.shape, "data").map_err(|e| OpError(format!("C1: {e}")))?;
        op_ensure!(
            x.dtype.is_float() && grid.dtype.is_float(),
            "C1: `data` is {x} and `grid` is {grid}, but both should have floats"
        );
        let (k, batch) = (plan.spatial.len(), whole(&plan.layout, &x.shape, 'N'));
        op_ensure!(
            grid.rank() == 2 + k && may_equal(grid.shape[0], batch) && may_equal(grid.shape[1], Dim::Known(k as i64)),
            "C2: `data` is {x} and `grid` is {grid}, which should have the shape ({batch}, {k}, and {k} extents)"
        );
        let shape = shape_of(&plan.layout, "layout", |letter| match plan.spatial.find(letter) {
            Some(s) => grid.shape[2 + s],
            None => whole(&plan.layout, &x.shape, letter),
        })?;
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, grid, plan) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs)?);
        let shape = value_shapes(self, attrs, args)?.remove(0);
        Ok(in_real!(&[x.dtype(), grid.dtype()], sample_grid(&plan, x, grid, &shape)).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank));
        let Ok(plan) = Plan::new(attrs) else { return AxisMap::opaque(ranks) };
        let role = |(k, a): (usize, &crate::tensor::LayoutAxis)| match plan.spatial.contains(a.primal) {
            true => AxisRole::Opaque,
            false => AxisRole::Maps(k),
        };
        let data = plan.layout.axes().iter().enumerate().map(role).collect();
        let to = |letter: char| plan.layout.position(letter).map_or(AxisRole::Opaque, AxisRole::Maps);
        AxisMap(vec![data, [to('N'), AxisRole::Opaque].into_iter().chain(plan.spatial.chars().map(to)).collect()])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let taps: f64 = match attrs.str("method") {
            "nearest" => 1.0,
            "bilinear" => 2.0,
            _ => 4.0,
        };
        work_per_element(10.0 + 4.0 * taps.powi(args[1].as_tensor().map_or(2, |g| g.rank() as i32 - 2)), args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, grid, plan) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs)?);
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let dtype = arithmetic(&[b.dtype(x), b.dtype(grid)]);
        let (k, layout) = (plan.spatial.len(), &plan.layout);
        let axis = |letter: char| layout.position(letter).expect("the layout's letters were checked");
        let from: Vec<i64> = plan.spatial.chars().map(|s| b.shape(x)[axis(s)]).collect();
        let out = b.map(&shape, |b, i| {
            let at: Vec<Scalar> = plan.spatial.chars().map(|s| i[axis(s)].clone()).collect();
            let coordinate = |s: usize| {
                let mut index = vec![i[axis('N')].clone(), Scalar::index((k - 1 - s) as i64)];
                index.extend(at.iter().cloned());
                plan.coordinate_scalar(b.read(grid, index).cast(dtype), from[s])
            };
            let place: Vec<Scalar> = (0..k).map(coordinate).collect();
            let read = |at: &[Scalar]| {
                let index = indices(layout, |letter| match plan.spatial.find(letter) {
                    Some(s) => Place::flat(at[s].clone()),
                    None => place_in(layout, letter, i),
                });
                b.read(x, index).cast(dtype)
            };
            plan.sampled_scalar(&place, &from, read).cast(b.dtype(x))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |method: &str, padding: &str, align: bool, more: (&str, &[i64], &[i64]), d: DType| Sample {
            attrs: vec![
                ("method", method.into()),
                ("padding_mode", padding.into()),
                ("align_corners", align.into()),
                ("layout", AttrValue::from(more.0)),
            ],
            args: vec![t(more.1, d), t(more.2, d)],
        };
        let flat = ("NCHW", &[2, 3, 4, 5][..], &[2, 2, 3, 4][..]);
        let deep = ("NCDHW", &[1, 2, 3, 4, 5][..], &[1, 3, 2, 3, 4][..]);
        let mut samples = Vec::new();
        for padding in ["zeros", "border", "reflection"] {
            for align in [true, false] {
                samples.extend(["nearest", "bilinear", "bicubic"].map(|m| call(m, padding, align, flat, DType::F32)));
                samples.extend(["nearest", "bilinear"].map(|m| call(m, padding, align, deep, DType::F32)));
            }
        }
        samples.push(call("bilinear", "zeros", true, ("NHWC", &[2, 4, 5, 3], &[2, 2, 3, 4]), DType::F32));
        samples.push(call("bicubic", "border", false, ("NCHW2c", &[1, 2, 4, 5, 2], &[1, 2, 3, 4]), DType::F64));
        samples.push(call("bilinear", "reflection", true, ("NCHW", &[1, 1, 1, 5], &[1, 2, 2, 2]), DType::F32));
        samples
    }
}
