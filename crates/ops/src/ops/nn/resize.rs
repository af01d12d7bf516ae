//! Resizing images over any number of spatial axes: image.resize1d to 3d and nn.upsampling, a table row each.

use super::geometry::{layout_of, shape_of, whole};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_bail,
        op_ensure,
        util::{tensor_arg, work_per_element},
    },
    tensor::{DType, Layout, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Resize { name: "image.resize1d", spatial: "W", attrs: RESIZE1D, scales: None },
    &Resize { name: "image.resize2d", spatial: "HW", attrs: RESIZE2D, scales: None },
    &Resize { name: "image.resize3d", spatial: "DHW", attrs: RESIZE3D, scales: None },
    &Resize { name: "nn.upsampling", spatial: "HW", attrs: UPSAMPLING, scales: Some(&["scale_h", "scale_w"]) },
    &Resize {
        name: "nn.upsampling3d",
        spatial: "DHW",
        attrs: UPSAMPLING3D,
        scales: Some(&["scale_d", "scale_h", "scale_w"]),
    },
];

const MODES: &[&str] =
    &["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn", "tf_crop_and_resize"];
const ROUNDINGS: &[&str] = &["", "round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"];

/// The attributes of a resize whose layout defaults to this.
macro_rules! resize_attrs {
    ($layout:expr) => {
        &[
            AttrField::new("size", AttrKind::Ints, AttrDefault::None),
            AttrField::new("roi", AttrKind::List, AttrDefault::None),
            AttrField::new("layout", AttrKind::Str, AttrDefault::Str($layout)),
            AttrField::new(
                "method",
                AttrKind::OneOf(&["nearest_neighbor", "linear", "cubic"]),
                AttrDefault::Str("linear"),
            ),
            AttrField::new("coordinate_transformation_mode", AttrKind::OneOf(MODES), AttrDefault::Str("half_pixel")),
            AttrField::new("rounding_method", AttrKind::OneOf(ROUNDINGS), AttrDefault::Str("round")),
            AttrField::new("cubic_alpha", AttrKind::Float, AttrDefault::Float(-0.5)),
            AttrField::new("cubic_exclude", AttrKind::Int, AttrDefault::Int(0)),
            AttrField::new("extrapolation_value", AttrKind::Float, AttrDefault::Float(0.0)),
            AttrField::new("out_dtype", AttrKind::DType, AttrDefault::None),
        ]
    };
}
const RESIZE1D: &[AttrField] = resize_attrs!("NCW");
/// The attributes of `image.resize2d`.
pub(in crate::ops) const RESIZE2D: &[AttrField] = resize_attrs!("NCHW");
const RESIZE3D: &[AttrField] = resize_attrs!("NCDHW");
/// The attributes of `nn.upsampling`.
pub(in crate::ops) const UPSAMPLING: &[AttrField] = &[
    AttrField::new("scale_h", AttrKind::Float, AttrDefault::Required),
    AttrField::new("scale_w", AttrKind::Float, AttrDefault::Required),
    AttrField::new("layout", AttrKind::Str, AttrDefault::Str("NCHW")),
    AttrField::new(
        "method",
        AttrKind::OneOf(&["nearest_neighbor", "bilinear", "bicubic"]),
        AttrDefault::Str("nearest_neighbor"),
    ),
    AttrField::new("align_corners", AttrKind::Bool, AttrDefault::Bool(false)),
];
/// The attributes of `nn.upsampling3d`.
pub(in crate::ops) const UPSAMPLING3D: &[AttrField] = &[
    AttrField::new("scale_d", AttrKind::Float, AttrDefault::Required),
    AttrField::new("scale_h", AttrKind::Float, AttrDefault::Required),
    AttrField::new("scale_w", AttrKind::Float, AttrDefault::Required),
    AttrField::new("layout", AttrKind::Str, AttrDefault::Str("NCDHW")),
    AttrField::new("method", AttrKind::OneOf(&["nearest_neighbor", "trilinear"]), AttrDefault::Str("nearest_neighbor")),
    AttrField::new("coordinate_transformation_mode", AttrKind::OneOf(MODES), AttrDefault::Str("half_pixel")),
];

/// A resize.
#[derive(Debug)]
struct Resize {
    name: &'static str,
    /// The spatial axes' letters, outermost first.
    spatial: &'static str,
    attrs: &'static [AttrField],
    /// The attributes that give factors, where there is no `size`.
    scales: Option<&'static [&'static str]>,
}

/// How elements are made of their neighbours.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Method {
    Nearest,
    Linear,
    Cubic,
}

/// How one axis is resized.
#[derive(Clone, Debug)]
struct AxisPlan {
    /// The axis in the data.
    axis: usize,
    from: i64,
    to: i64,
    /// The ends of the region of interest, as parts of the extent.
    roi: (f32, f32),
    /// How often each element is repeated, where TVM finds that this is all that there is to do: then no rounding matters.
    repeats: Option<i64>,
    /// Whether places outside of the data are extrapolated. (TVM never looks at an image's depth.)
    bounded: bool,
}

/// The attributes, read.
#[derive(Clone, Debug)]
struct Plan {
    method: Method,
    mode: String,
    rounding: String,
    alpha: f32,
    exclude: bool,
    extrapolation: f32,
    axes: Vec<AxisPlan>,
}

/// By how much the output is longer, where two-dimensional nearest neighbours of asymmetric coordinates just repeat elements.
fn repeats(from: i64, to: i64) -> Option<i64> {
    let factor = to as f32 / from as f32;
    (from > 0 && to % from == 0 && factor <= 1.0 / (SLACK * from as f32 + SLACK)).then(|| to / from)
}

/// Rows are mixed whole where they are at most so many times as long as those of the result.
const MOST_MIXED: i64 = 3;

/// Guards the rounding of coordinates that are whole but for an error of float arithmetic.
const SLACK: f32 = 1e-5;

impl Resize {
    fn layout(&self, attrs: &Attrs) -> Result<Layout, OpError> {
        layout_of(attrs.str("layout"), "layout", &format!("NC{}", self.spatial), "NC")
    }

    /// The output's spatial extents.
    fn sizes(&self, attrs: &Attrs, layout: &Layout, x: &[Dim]) -> Result<Vec<Dim>, OpError> {
        match self.scales {
            Some(scales) => {
                let scaled = |(letter, name): (char, &&str)| {
                    let scale = attrs.float(name);
                    op_ensure!(scale.is_finite() && scale > 0.0, "C2: `{name}` is {scale}, but should be positive");
                    Ok(match whole(layout, x, letter) {
                        // Halves to even, as TVM folds constants.
                        Dim::Known(n) => Dim::Known((n as f32 * scale as f32).round_ties_even() as i64),
                        _ => Dim::Any,
                    })
                };
                self.spatial.chars().zip(scales).map(scaled).collect()
            }
            None => {
                let size = attrs.ints("size");
                op_ensure!(
                    size.len() == self.spatial.len() && size.iter().all(|&n| n > 0),
                    "C2: `size` is {size:?}, but should have {} positive numbers",
                    self.spatial.len()
                );
                Ok(size.into_iter().map(Dim::Known).collect())
            }
        }
    }

    fn plan(&self, attrs: &Attrs, shape: &[i64]) -> Result<Plan, OpError> {
        let layout = self.layout(attrs)?;
        let dims: Vec<Dim> = shape.iter().map(|&n| Dim::Known(n)).collect();
        let mode = match (self.scales, attrs.get("align_corners").and_then(AttrValue::as_int)) {
            (Some(_), Some(aligned)) => if aligned != 0 { "align_corners" } else { "asymmetric" }.to_owned(),
            _ => attrs.str("coordinate_transformation_mode").to_owned(),
        };
        let rounding = match attrs.get("rounding_method") {
            Some(AttrValue::Str(s)) if !s.is_empty() => s.to_string(),
            _ => if mode == "align_corners" { "round" } else { "floor" }.to_owned(),
        };
        let number = |name: &str, default: f64| attrs.get(name).and_then(AttrValue::as_float).unwrap_or(default) as f32;
        let roi: Vec<f32> = match attrs.get("roi") {
            Some(AttrValue::List(l)) => l.iter().filter_map(|v| v.as_float().map(|f| f as f32)).collect(),
            _ => vec![],
        };
        let axes = self.spatial.len();
        if mode == "tf_crop_and_resize" && roi.len() != 2 * axes {
            op_bail!("C3: `roi` has {} numbers, but should have {}", roi.len(), 2 * axes);
        }
        // In three dimensions TVM counts the region's axes from the innermost.
        let place = |k: usize| if axes == 3 { axes - 1 - k } else { k };
        let part = |k: usize| roi.get(k).copied().unwrap_or(0.0);
        let sizes = self.sizes(attrs, &layout, &dims)?;
        let method = match attrs.str("method") {
            "nearest_neighbor" => Method::Nearest,
            "linear" | "bilinear" | "trilinear" => Method::Linear,
            _ => Method::Cubic,
        };
        let may_repeat = axes == 2 && method == Method::Nearest && mode == "asymmetric";
        Ok(Plan {
            method,
            mode,
            rounding,
            alpha: number("cubic_alpha", -0.5),
            exclude: number("cubic_exclude", 0.0) != 0.0,
            extrapolation: number("extrapolation_value", 0.0),
            axes: self
                .spatial
                .chars()
                .zip(sizes)
                .enumerate()
                .map(|(k, (letter, to))| {
                    let axis = layout.position(letter).expect("the layout's letters were checked");
                    let roi = (part(place(k)), part(place(k) + axes));
                    let (from, to) = (shape[axis], to.known().unwrap_or(0));
                    let repeats = if may_repeat { repeats(from, to) } else { None };
                    AxisPlan { axis, from, to, roi, repeats, bounded: axes < 3 || k > 0 }
                })
                .collect(),
        })
    }
}

/// The type of `x` resized to spatial extents that are not known.
pub(in crate::ops) fn resized_somehow(attrs: &Attrs, spatial: &str, x: &TensorType) -> Result<Type, OpError> {
    let layout = layout_of(attrs.str("layout"), "layout", &format!("NC{spatial}"), "NC")?;
    super::geometry::check_shape(&layout, &x.shape, "data").map_err(|e| OpError(format!("C1: {e}")))?;
    let shape = shape_of(&layout, "layout", |letter| match spatial.contains(letter) {
        true => Dim::Any,
        false => whole(&layout, &x.shape, letter),
    })?;
    let dtype = match attrs.get("out_dtype") {
        Some(AttrValue::DType(d)) => *d,
        _ => x.dtype,
    };
    Ok(TensorType::of(shape, dtype).into())
}

/// Weights of four neighbours at distance `t` from the second, by a cubic spline.
fn spline(t: f32, a: f32) -> [f32; 4] {
    let (t2, t3) = (t * t, t * t * t);
    [
        a * (t3 - 2.0 * t2 + t),
        (a + 2.0) * t3 - (3.0 + a) * t2 + 1.0,
        -(a + 2.0) * t3 + (3.0 + 2.0 * a) * t2 - a * t,
        -a * t3 + a * t2,
    ]
}

impl Plan {
    /// The input coordinate of output position `i`, in f32 as TVM computes it.
    fn coordinate(&self, axis: &AxisPlan, i: i64) -> f32 {
        let (i, from, to) = (i as f32, axis.from as f32, axis.to as f32);
        let scale = from / to;
        match self.mode.as_str() {
            _ if self.pinned(axis) => 0.0,
            "align_corners" => (from - 1.0) / (to - 1.0) * i,
            "asymmetric" => scale * i,
            "tf_half_pixel_for_nn" => (i + 0.5) * scale,
            "tf_crop_and_resize" if axis.to > 1 => {
                axis.roi.0 * (from - 1.0) + i * (axis.roi.1 - axis.roi.0) * (from - 1.0) / (to - 1.0)
            }
            "tf_crop_and_resize" => 0.5 * (axis.roi.0 + axis.roi.1) * (from - 1.0),
            _ => (i + 0.5) * scale - 0.5,
        }
    }

    /// Whether a single output position looks at the first element.
    fn pinned(&self, axis: &AxisPlan) -> bool {
        axis.to <= 1 && matches!(self.mode.as_str(), "align_corners" | "pytorch_half_pixel")
    }

    /// The input positions of output position `i`, with their weights, and whether it lies outside the data.
    fn taps(&self, axis: &AxisPlan, i: i64) -> (Vec<(usize, f32)>, bool) {
        if let Some(repeats) = axis.repeats {
            return (vec![((i / repeats) as usize, 1.0)], false);
        }
        let x = self.coordinate(axis, i);
        let clamp = |k: i64| k.clamp(0, axis.from - 1) as usize;
        let outside = axis.bounded && self.mode == "tf_crop_and_resize" && (x < 0.0 || x > (axis.from - 1) as f32);
        let (first, part) = (x.floor() as i64, x - x.floor());
        let taps = match self.method {
            Method::Nearest => {
                let k = match self.rounding.as_str() {
                    "round" => x.round(),
                    "round_prefer_floor" => (x - 0.5).ceil(),
                    "round_prefer_ceil" => (x + 0.5).floor(),
                    "ceil" => (x - SLACK).ceil(),
                    _ => (x + SLACK).floor(),
                };
                vec![(clamp(k as i64), 1.0)]
            }
            Method::Linear => vec![(clamp(first), 1.0 - part), (clamp(first + 1), part)],
            Method::Cubic => {
                let mut weights = spline(part, self.alpha);
                if self.exclude {
                    for (k, w) in weights.iter_mut().enumerate() {
                        let at = first - 1 + k as i64;
                        if at < 0 || at + 1 > axis.from {
                            *w = 0.0;
                        }
                    }
                    let sum: f32 = weights.iter().sum();
                    weights.iter_mut().for_each(|w| *w /= sum);
                }
                weights.into_iter().enumerate().map(|(k, w)| (clamp(first - 1 + k as i64), w)).collect()
            }
        };
        (taps, outside)
    }

    /// How often each element is repeated, where that is all that nearest neighbours come to along an axis.
    fn only_repeats(&self, axis: &AxisPlan) -> Option<i64> {
        let factor = (self.method == Method::Nearest && axis.from > 0 && axis.to % axis.from == 0)
            .then(|| axis.to / axis.from)
            .filter(|f| *f > 0)?;
        let is_one = |i: i64| self.taps(axis, i).0[0].0 as i64 == i / factor;
        (0..axis.to).all(is_one).then_some(factor)
    }

    /// Where an axis becomes twice as long, and mixtures have the same weights for all even places and the same for all odd ones: those, and which
    /// neighbour of element `i` is the first one of places `2 i` and `2 i + 1`.
    fn doubled(&self, axis: &AxisPlan) -> Option<[(i64, f32); 2]> {
        if self.method != Method::Linear || self.mode == "tf_crop_and_resize" || axis.to != 2 * axis.from {
            return None;
        }
        let at = |i: i64| {
            let x = self.coordinate(axis, i);
            (x.floor() as i64 - i / 2, x - x.floor())
        };
        let both = [at(0), at(1)];
        (0..axis.to).all(|i| at(i) == both[i as usize % 2]).then_some(both)
    }

    /// Mixtures along the innermost axis, which becomes twice as long, of rows: these get their first and last elements again at either end, so
    /// that where a mixture reads follows from the place alone.
    fn doubled_rows(&self, b: &mut Builder, rows: TensorId, both: [(i64, f32); 2], dtype: DType) -> TensorId {
        let mut shape = b.shape(rows).to_vec();
        let (last, width) = (shape.len() - 1, shape[shape.len() - 1]);
        let [(even, part_of_even), (odd, part_of_odd)] = both;
        let before = even.min(odd);
        shape[last] = width + even.max(odd) + 1 - before;
        let longer = b.map(&shape, |b, i| {
            let at = |element: Scalar| b.read(rows, i[..last].iter().cloned().chain([element]));
            let inside = Scalar::select(
                i[last].clone().lt((width - before).into()),
                at(i[last].clone() + before),
                at((width - 1).into()),
            );
            Scalar::select(i[last].clone().lt((-before).into()), at(0.into()), inside)
        });
        shape[last] = 2 * width;
        b.map(&shape, |b, i| {
            let (element, is_odd) = (i[last].clone().floor_div(2), i[last].clone().floor_mod(2));
            let value = |next: i64| {
                let mut place = i.to_vec();
                place[last] = element.clone() + is_odd.clone() * (odd - even) + (even - before + next);
                b.read(longer, place)
            };
            let weight = |of_even: f32, of_odd: f32| {
                let real = |f: f32| Scalar::float(f.into(), DType::F32);
                Scalar::select(is_odd.clone().equals(0), real(of_even), real(of_odd))
            };
            let first = value(0) * weight(1.0 - part_of_even, 1.0 - part_of_odd);
            (first + value(1) * weight(part_of_even, part_of_odd)).cast(dtype)
        })
    }

    /// The coordinate as an expression.
    fn coordinate_scalar(&self, axis: &AxisPlan, i: &Scalar) -> Scalar {
        let real = |f: f32| Scalar::float(f as f64, DType::F32);
        let (from, to, i) = (axis.from as f32, axis.to as f32, i.clone().cast(DType::F32));
        let scale = real(from / to);
        match self.mode.as_str() {
            _ if self.pinned(axis) => real(0.0),
            "align_corners" => real((from - 1.0) / (to - 1.0)) * i,
            "asymmetric" => scale * i,
            "tf_half_pixel_for_nn" => (i + real(0.5)) * scale,
            "tf_crop_and_resize" if axis.to > 1 => {
                let along = i * real(axis.roi.1 - axis.roi.0) * real(from - 1.0) / real(to - 1.0);
                real(axis.roi.0 * (from - 1.0)) + along
            }
            "tf_crop_and_resize" => real(0.5 * (axis.roi.0 + axis.roi.1) * (from - 1.0)),
            _ => (i + real(0.5)) * scale - real(0.5),
        }
    }

    /// The input positions and weights as expressions.
    fn taps_scalar(&self, axis: &AxisPlan, i: &Scalar, x: Scalar) -> Vec<(Scalar, Scalar)> {
        let real = |f: f32| Scalar::float(f as f64, DType::F32);
        if let Some(repeats) = axis.repeats {
            return vec![(i.clone().floor_div(repeats), real(1.0))];
        }
        // Images are no longer than 32 bits count, of which vectors hold twice as many as of 64.
        let int = |n: i64| Scalar::int(n, DType::I32);
        let clamp = |k: Scalar| k.max(int(0)).min(int(axis.from - 1)).cast(DType::I64);
        let floor = Scalar::unary(UnOp::Floor, x.clone());
        let (first, t) = (floor.clone().cast(DType::I32), x.clone() - floor);
        match self.method {
            Method::Nearest => {
                let k = match self.rounding.as_str() {
                    "round" => Scalar::unary(UnOp::Round, x),
                    "round_prefer_floor" => Scalar::unary(UnOp::Ceil, x - real(0.5)),
                    "round_prefer_ceil" => Scalar::unary(UnOp::Floor, x + real(0.5)),
                    "ceil" => Scalar::unary(UnOp::Ceil, x - real(SLACK)),
                    _ => Scalar::unary(UnOp::Floor, x + real(SLACK)),
                };
                vec![(clamp(k.cast(DType::I32)), real(1.0))]
            }
            Method::Linear => {
                vec![(clamp(first.clone()), real(1.0) - t.clone()), (clamp(first + int(1)), t)]
            }
            Method::Cubic => {
                let a = self.alpha;
                let (t2, t3) = (t.clone() * t.clone(), t.clone() * t.clone() * t.clone());
                let mut weights = vec![
                    real(a) * (t3.clone() - real(2.0) * t2.clone() + t.clone()),
                    real(a + 2.0) * t3.clone() - real(3.0 + a) * t2.clone() + real(1.0),
                    real(-(a + 2.0)) * t3.clone() + real(3.0 + 2.0 * a) * t2.clone() - real(a) * t,
                    real(-a) * t3 + real(a) * t2,
                ];
                let at = |k: i64| first.clone() + int(k - 1);
                if self.exclude {
                    for (k, w) in weights.iter_mut().enumerate() {
                        let inside = at(k as i64).ge(int(0)).and(at(k as i64).lt(int(axis.from)));
                        *w = Scalar::select(inside, w.clone(), real(0.0));
                    }
                    let sum = weights.iter().cloned().reduce(|a, b| a + b).expect("four weights");
                    weights.iter_mut().for_each(|w| *w = w.clone() / sum.clone());
                }
                weights.into_iter().enumerate().map(|(k, w)| (clamp(at(k as i64)), w)).collect()
            }
        }
    }

    /// The mixture, of dtype `float32`, that an element is along some axes; its other indices are the result's.
    fn mixed(&self, b: &Builder, x: TensorId, axes: &[AxisPlan], i: &[Scalar]) -> Scalar {
        let taps = |a: &AxisPlan| self.taps_scalar(a, &i[a.axis], self.coordinate_scalar(a, &i[a.axis]));
        let taps: Vec<Vec<(Scalar, Scalar)>> = axes.iter().map(taps).collect();
        let mut places = vec![i.to_vec()];
        for (a, t) in axes.iter().zip(&taps) {
            let moved = |p: &Vec<Scalar>, at: &Scalar| {
                let mut p = p.clone();
                p[a.axis] = at.clone();
                p
            };
            places = places.iter().flat_map(|p| t.iter().map(move |(at, _)| moved(p, at))).collect();
        }
        let mut values: Vec<Scalar> = places.into_iter().map(|p| b.read(x, p).cast(DType::F32)).collect();
        for t in taps.iter().rev() {
            let mix = |v: &[Scalar]| {
                let products = v.iter().zip(t).map(|(v, (_, w))| v.clone() * w.clone());
                products.reduce(|a, b| a + b).expect("at least one tap")
            };
            values = values.chunks(t.len()).map(mix).collect();
        }
        values.swap_remove(0)
    }

    /// A value, of this dtype, where the coordinates lie within the data, else what is put there.
    fn within(&self, i: &[Scalar], value: Scalar, dtype: DType) -> Scalar {
        if self.mode != "tf_crop_and_resize" {
            return value;
        }
        let real = |f: f32| Scalar::float(f as f64, DType::F32);
        // NaN is neither inside of the data nor outside.
        let outside = self.axes.iter().filter(|a| a.bounded).fold(Scalar::bool(false), |any, a| {
            let x = self.coordinate_scalar(a, &i[a.axis]);
            any.or(x.clone().lt(real(0.0))).or(real((a.from - 1) as f32).lt(x))
        });
        Scalar::select(outside, real(self.extrapolation).cast(dtype), value)
    }
}

impl Op for Resize {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        "The spatial axes resized: each output position has a coordinate in the input (by the transformation mode, or aligned
        corners), and is the nearest element there or the linear or cubic mixture of the neighbours, axis by axis; neighbours
        beyond the ends are the last elements. Coordinates and mixtures are float32. Two-dimensional asymmetric nearest neighbours
        of a multiple of the size are the elements repeated, whatever the rounding. With tf_crop_and_resize, what lies outside
        (in width, and of images in height) is extrapolation_value.
        C1: layout names N, C and the spatial axes, the latter not split, and has data's rank. C2: size has a positive number
        per spatial axis, or the scales are positive. C3: tf_crop_and_resize needs a roi of two numbers per spatial axis."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Injective
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let layout = self.layout(attrs)?;
        super::geometry::check_shape(&layout, &x.shape, "data").map_err(|e| OpError(format!("C1: {e}")))?;
        let known: Vec<i64> = x.shape.iter().map(|d| d.known().unwrap_or(1)).collect();
        self.plan(attrs, &known)?;
        let empty = self.spatial.chars().any(|letter| whole(&layout, &x.shape, letter) == Dim::Known(0));
        op_ensure!(!empty, "`data` is {x}: there is nothing to resize");
        let sizes = self.sizes(attrs, &layout, &x.shape)?;
        let shape = shape_of(&layout, "layout", |letter| match self.spatial.find(letter) {
            Some(k) => sizes[k],
            None => whole(&layout, &x.shape, letter),
        })?;
        let dtype = attrs.get("out_dtype").and_then(|v| if let AttrValue::DType(d) = v { Some(*d) } else { None });
        Ok(TensorType::of(shape, dtype.unwrap_or(x.dtype)).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let from: Vec<i64> = x.shape().iter().map(|&n| n as i64).collect();
        let plan = self.plan(attrs, &from)?;
        let dtype = match attrs.get("out_dtype") {
            Some(AttrValue::DType(d)) => *d,
            _ => x.dtype(),
        };
        let mut shape = x.shape().to_vec();
        plan.axes.iter().for_each(|a| shape[a.axis] = a.to as usize);
        let taps: Vec<Vec<(Vec<(usize, f32)>, bool)>> =
            plan.axes.iter().map(|a| (0..a.to).map(|i| plan.taps(a, i)).collect()).collect();
        let strides = &row_major_strides(x.shape());
        let mut out = Tensor::zeros(dtype, &shape);
        let mut index = vec![0; shape.len()];
        for flat in 0..out.len() {
            let mut rest = flat;
            for k in (0..shape.len()).rev() {
                (index[k], rest) = (rest % shape[k], rest / shape[k]);
            }
            let resized = |k: usize| plan.axes.iter().any(|a| a.axis == k);
            let base: usize = (0..shape.len()).filter(|&k| !resized(k)).map(|k| index[k] * strides[k]).sum();
            let here: Vec<&(Vec<(usize, f32)>, bool)> =
                plan.axes.iter().zip(&taps).map(|(a, t)| &t[index[a.axis]]).collect();
            if here.iter().any(|t| t.1) {
                out.set_f64(flat, plan.extrapolation as f64);
                continue;
            }
            let mut places = vec![base];
            for (a, t) in plan.axes.iter().zip(&here) {
                places = places.iter().flat_map(|p| t.0.iter().map(move |(i, _)| p + i * strides[a.axis])).collect();
            }
            if plan.method == Method::Nearest {
                match x.dtype().is_float() {
                    true => out.set_f64(flat, x.get_f64(places[0])),
                    false => out.set_i64(flat, x.get_i64(places[0])),
                }
                continue;
            }
            // Mixed along the innermost axis first.
            let mut values: Vec<f32> = places.iter().map(|&p| x.get_f64(p) as f32).collect();
            for t in here.iter().rev() {
                let mix = |v: &[f32]| v.iter().zip(&t.0).map(|(v, (_, w))| v * w).reduce(|a, b| a + b).unwrap_or(0.0);
                values = values.chunks(t.0.len()).map(mix).collect();
            }
            out.set_f64(flat, values[0] as f64);
        }
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(layout) = self.layout(attrs) else { return AxisMap::opaque([rank]) };
        let role = |(k, a): (usize, &crate::tensor::LayoutAxis)| match self.spatial.contains(a.primal) {
            true => AxisRole::Opaque,
            false => AxisRole::Maps(k),
        };
        AxisMap(vec![layout.axes().iter().enumerate().map(role).collect()])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let taps: f64 = match attrs.str("method") {
            "nearest_neighbor" => 0.5,
            "cubic" | "bicubic" => 4.0,
            _ => 2.0,
        };
        work_per_element(2.0 * taps.powi(self.spatial.len() as i32), args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let from = b.shape(x).to_vec();
        let plan = self.plan(attrs, &from)?;
        let dtype = match attrs.get("out_dtype") {
            Some(AttrValue::DType(d)) => *d,
            _ => b.dtype(x),
        };
        let mut shape = from.clone();
        plan.axes.iter().for_each(|a| shape[a.axis] = a.to);
        if plan.method == Method::Nearest {
            let out = b.map(&shape, |b, i| {
                let place = plan.axes.iter().fold(i.to_vec(), |mut place, a| {
                    place[a.axis] = match plan.only_repeats(a) {
                        Some(times) => i[a.axis].clone().floor_div(times),
                        None => {
                            let coordinate = plan.coordinate_scalar(a, &i[a.axis]);
                            plan.taps_scalar(a, &i[a.axis], coordinate).swap_remove(0).0
                        }
                    };
                    place
                });
                plan.within(i, b.read(x, place).cast(dtype), dtype)
            });
            return Ok(out.into());
        }
        // Whole rows are mixed first, unless most of what is in them is not used: their elements lie side by side, and those of a row's neighbours do not.
        let (inner, outer) = plan.axes.split_last().expect("at least one axis");
        let apart = inner.axis + 1 == from.len() && inner.from <= MOST_MIXED * inner.to && !outer.is_empty();
        let (first, rest) = if apart { (outer, &plan.axes[outer.len()..]) } else { (&plan.axes[..], &[][..]) };
        let mut between = from;
        first.iter().for_each(|a| between[a.axis] = a.to);
        let rows = b.map(&between, |b, i| {
            let value = plan.mixed(b, x, first, i);
            if apart { value } else { plan.within(i, value.cast(dtype), dtype) }
        });
        if !apart {
            return Ok(rows.into());
        }
        if let Some(both) = plan.doubled(inner) {
            return Ok(plan.doubled_rows(b, rows, both, dtype).into());
        }
        let out = b.map(&shape, |b, i| plan.within(i, plan.mixed(b, rows, rest, i).cast(dtype), dtype));
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let n = self.spatial.len();
        let (plain, last) = (format!("NC{}", self.spatial), format!("N{}C", self.spatial));
        let big: &[i64] = &[2, 3, 4][3 - n..];
        let x = |layout: &str, dtype: DType| {
            let shape = if layout.ends_with('C') { [&[1], big, &[2]].concat() } else { [&[1, 2], big].concat() };
            vec![Type::tensor(&shape, dtype)]
        };
        if let Some(scales) = self.scales {
            let call = |layout: &str, method: &str, dtype: DType, more: Vec<(&'static str, AttrValue)>| {
                let scales = scales.iter().enumerate().map(|(k, &s)| (s, (k as f64 + 1.5).into()));
                let base = [("layout", layout.into()), ("method", method.into())];
                Sample { attrs: scales.chain(base).chain(more).collect(), args: x(layout, dtype) }
            };
            let mode: (&'static str, AttrValue) = match n {
                2 => ("align_corners", true.into()),
                _ => ("coordinate_transformation_mode", "align_corners".into()),
            };
            let linear = if n == 2 { "bilinear" } else { "trilinear" };
            return vec![
                call(&plain, "nearest_neighbor", DType::I8, vec![]),
                call(&last, linear, DType::F32, vec![mode.clone()]),
                call(&plain, linear, DType::F32, vec![]),
                call(&last, "nearest_neighbor", DType::F32, vec![mode]),
            ];
        }
        let call =
            |layout: &str, method: &str, mode: &str, rounding: &str, more: Vec<(&'static str, AttrValue)>| Sample {
                attrs: [
                    ("size", AttrValue::ints(&[3, 5, 7][3 - n..])),
                    ("layout", layout.into()),
                    ("method", method.into()),
                    ("coordinate_transformation_mode", mode.into()),
                    ("rounding_method", rounding.into()),
                ]
                .into_iter()
                .chain(more)
                .collect(),
                args: x(layout, DType::F32),
            };
        let roi =
            |from: f64, to: f64| AttrValue::List((0..2 * n).map(|k| if k < n { from } else { to }.into()).collect());
        let mut doubled = call(&plain, "nearest_neighbor", "asymmetric", "ceil", vec![]);
        doubled.attrs[0].1 = AttrValue::ints(&[4, 6, 12][3 - n..]);
        vec![
            call(&plain, "linear", "half_pixel", "", vec![]),
            call(&last, "linear", "align_corners", "", vec![]),
            call(&plain, "cubic", "asymmetric", "", vec![("cubic_alpha", (-0.75).into())]),
            call(&last, "cubic", "half_pixel", "", vec![("cubic_exclude", 1.into())]),
            call(&plain, "nearest_neighbor", "asymmetric", "", vec![]),
            call(&plain, "nearest_neighbor", "align_corners", "", vec![]),
            doubled,
            call(&plain, "nearest_neighbor", "half_pixel", "round_prefer_ceil", vec![]),
            call(&plain, "nearest_neighbor", "tf_half_pixel_for_nn", "round_prefer_floor", vec![]),
            call(&plain, "linear", "pytorch_half_pixel", "ceil", vec![]),
            call(
                &plain,
                "linear",
                "tf_crop_and_resize",
                "",
                vec![("roi", roi(0.25, 1.25)), ("extrapolation_value", 0.5.into())],
            ),
        ]
    }
}
