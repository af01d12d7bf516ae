//! Resizing of images, by factors or to extents, which may be known only while running.

use super::{Row, row};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::{AttrValue, ExprId},
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[row("Resize", resize), row("Upsample", upsample)];

/// How one axis is resized.
struct Axis {
    /// Extents before and after.
    from: i64,
    to: i64,
    /// The factor as it is given.
    scale: f64,
    /// The region of interest.
    roi: (f64, f64),
}

/// How elements are made of their neighbours.
struct Method {
    mode: String,
    coordinates: String,
    nearest: String,
    cubic: f64,
    antialias: bool,
    exclude_outside: bool,
    extrapolation: f64,
}

impl Axis {
    /// Where in the data the element at `i` of the result lies.
    fn coordinate(&self, how: &str, i: i64) -> Option<f64> {
        let (i, from, to) = (i as f64, self.from as f64, self.to as f64);
        let length = self.scale * from;
        Some(match how {
            "half_pixel" => (i + 0.5) / self.scale - 0.5,
            "half_pixel_symmetric" => {
                let offset = from / 2.0 * (1.0 - to / length);
                offset + (i + 0.5) / self.scale - 0.5
            }
            "pytorch_half_pixel" => {
                if length == 1.0 || self.to == 1 {
                    -0.5
                } else {
                    (i + 0.5) / self.scale - 0.5
                }
            }
            "align_corners" => {
                if length == 1.0 || self.to == 1 {
                    0.0
                } else {
                    i * (from - 1.0) / (length - 1.0)
                }
            }
            "asymmetric" => i / self.scale,
            "tf_half_pixel_for_nn" => (i + 0.5) / self.scale,
            "tf_crop_and_resize" => {
                let (start, end) = self.roi;
                if self.to > 1 {
                    start * (from - 1.0) + i * (end - start) * (from - 1.0) / (to - 1.0)
                } else {
                    0.5 * (start + end) * (from - 1.0)
                }
            }
            _ => return None,
        })
    }

    /// The weights with which the data's elements make up the result's, a row each; and whether the coordinate lies outside.
    fn weights(&self, m: &Method) -> Option<(Vec<f64>, Vec<bool>)> {
        let (from, to) = (self.from as usize, self.to as usize);
        let mut rows = vec![0.0; from * to];
        let mut outside = vec![false; to];
        for i in 0..to {
            let mut x = self.coordinate(&m.coordinates, i as i64)?;
            if m.coordinates == "pytorch_half_pixel" && self.to == 1 {
                x = 0.0;
            }
            outside[i] = m.coordinates == "tf_crop_and_resize" && (x < 0.0 || x > from as f64 - 1.0);
            let row = &mut rows[i * from..(i + 1) * from];
            for (place, weight) in self.neighbours(m, x)? {
                let inside = place >= 0 && place < from as i64;
                if inside || !m.exclude_outside {
                    row[place.clamp(0, from as i64 - 1) as usize] += weight;
                }
            }
            let sum: f64 = row.iter().sum();
            if m.exclude_outside && sum != 0.0 {
                row.iter_mut().for_each(|w| *w /= sum);
            }
        }
        Some((rows, outside))
    }

    fn neighbours(&self, m: &Method, x: f64) -> Option<Vec<(i64, f64)>> {
        let floor = x.floor();
        if m.mode == "nearest" {
            let place = match m.nearest.as_str() {
                "round_prefer_floor" if x - floor == 0.5 => floor,
                "round_prefer_floor" | "round_prefer_ceil" => (x + 0.5).floor(),
                "floor" => floor,
                "ceil" => x.ceil(),
                // The first version's rule.
                "simple" => {
                    if self.scale < 1.0 {
                        x.ceil()
                    } else {
                        floor
                    }
                }
                _ => return None,
            };
            return Some(vec![(place as i64, 1.0)]);
        }
        // Antialiasing widens the filter where the data is made smaller.
        let stretch = if m.antialias { self.scale.min(1.0) } else { 1.0 };
        let reach = if m.mode == "cubic" { 2.0 } else { 1.0 } / stretch;
        let filter = |d: f64| -> f64 {
            let d = (d * stretch).abs();
            let a = m.cubic;
            match m.mode.as_str() {
                "cubic" if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
                "cubic" if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
                "cubic" => 0.0,
                _ => (1.0 - d).max(0.0),
            }
        };
        let (low, high) = ((x - reach).floor() as i64, (x + reach).ceil() as i64);
        let mut all: Vec<(i64, f64)> = (low..=high).map(|p| (p, filter(p as f64 - x))).filter(|p| p.1 != 0.0).collect();
        if m.antialias {
            let sum: f64 = all.iter().map(|p| p.1).sum();
            all.iter_mut().for_each(|p| p.1 /= sum);
        }
        Some(all)
    }
}

/// The names of an operator that resizes images of that rank, and of its layout.
fn operator(rank: usize) -> Option<(&'static str, &'static str)> {
    match rank {
        3 => Some(("image.resize1d", "NCW")),
        4 => Some(("image.resize2d", "NCHW")),
        5 => Some(("image.resize3d", "NCDHW")),
        _ => None,
    }
}

/// The resize as Relay's operator, where that means the same: linear and cubic mixtures of spatial axes in `float32`, by factors that
/// are the quotients of the extents.
fn as_operator(n: &mut Node, x: ExprId, axes: &[(usize, Axis)], m: &Method) -> Convert<Option<ExprId>> {
    let rank = n.rank(x)?;
    let Some((name, layout)) = operator(rank) else { return Ok(None) };
    let exact = |a: &Axis| (a.scale * a.from as f64 - a.to as f64).abs() < 1e-6;
    let changed = || axes.iter().filter(|(_, a)| a.from != a.to || !exact(a));
    let same = changed().all(|(at, a)| {
        // Filters of antialiasing are those of the operator where nothing gets smaller.
        *at >= 2 && a.from > 0 && a.to > 0 && exact(a) && !(m.antialias && a.to < a.from)
    });
    // One element of `pytorch_half_pixel` is the first one in both.
    let modes = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"];
    let mixes = matches!(m.mode.as_str(), "linear" | "cubic") && modes.contains(&m.coordinates.as_str());
    if changed().next().is_none() || !same || !mixes || n.dtype(x)? != DType::F32 {
        return Ok(None);
    }
    // Axes that keep an unknown extent have no number to give.
    let Some(mut size) = n.dims(x)?[2..].iter().copied().collect::<Option<Vec<i64>>>() else { return Ok(None) };
    changed().for_each(|(at, a)| size[at - 2] = a.to);
    let attrs = [
        ("size", AttrValue::ints(&size)),
        ("layout", layout.into()),
        ("method", m.mode.as_str().into()),
        ("coordinate_transformation_mode", m.coordinates.as_str().into()),
        ("rounding_method", "".into()),
        ("cubic_alpha", m.cubic.into()),
        ("cubic_exclude", i64::from(m.exclude_outside).into()),
    ];
    n.op(name, &[x], &attrs).map(Some)
}

/// How often each element is repeated along an axis, where the factor is whole and that is all that nearest neighbours do, whatever the extent.
fn repeats(m: &Method, factor: f64) -> Option<i64> {
    let whole = factor.fract() == 0.0 && (1.0..=i32::MAX as f64).contains(&factor);
    let rounds = m.nearest.starts_with("round_prefer");
    let same = match m.coordinates.as_str() {
        "asymmetric" => matches!(m.nearest.as_str(), "floor" | "simple"),
        // Coordinates are less than half an element away from the one that is repeated.
        "half_pixel" => rounds,
        _ => false,
    };
    (m.mode == "nearest" && whole && same).then_some(factor as i64)
}

/// Each axis by itself: places where every element is one of the data's, products with matrices of weights elsewhere.
fn resized(n: &mut Node, x: ExprId, axes: &[(usize, Axis)], m: &Method) -> Convert {
    if let Some(y) = as_operator(n, x, axes, m)? {
        return Ok(y);
    }
    let mut y = x;
    let dtype = n.dtype(x)?;
    let mut outside_all: Option<ExprId> = None;
    let rank = n.rank(x)?;
    for (at, axis) in axes {
        n.ensure(axis.from > 0 && axis.to >= 0 && axis.from.saturating_mul(axis.to) < 1 << 28, || {
            "it is too large".into()
        })?;
        let (rows, outside) = axis.weights(m).ok_or_else(|| {
            n.refuse(format!("there is no mode `{}` with `{}` and `{}`", m.mode, m.coordinates, m.nearest))
        })?;
        let from = axis.from as usize;
        if outside.contains(&true) {
            let mask = n.constant(Tensor::from_bools(&[outside.len()], &outside));
            let mask = n.trailing(mask, rank - 1 - at)?;
            outside_all = Some(match outside_all {
                None => mask,
                Some(o) => n.bin("logical_or", o, mask)?,
            });
        }
        let single =
            |row: &[f64]| row.iter().position(|&w| w == 1.0).filter(|_| row.iter().filter(|&&w| w != 0.0).count() == 1);
        let places: Option<Vec<i64>> = rows.chunks(from).map(|r| single(r).map(|p| p as i64)).collect();
        if let Some(places) = places {
            let times = axis.to / axis.from;
            if times > 0 && places.iter().copied().eq((0..axis.to).map(|i| i / times)) {
                if times > 1 {
                    y = n.op("repeat", &[y], &[("repeats", times.into()), ("axis", (*at as i64).into())])?;
                }
                continue;
            }
            let places = n.im.b.ints(&places);
            y = n.take(y, places, *at)?;
            continue;
        }
        let within = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let weights = Tensor::from_f64_fn(within, &[axis.to as usize, from], |i| rows[i]);
        let weights = n.constant(weights);
        y = n.cast(y, within)?;
        let moved = n.axis_to_last(y, *at)?;
        let made = n.op("nn.dense", &[moved, weights], &[])?;
        y = n.last_to_axis(made, *at)?;
    }
    if dtype.is_int() && n.dtype(y)? != dtype {
        y = super::math::round_even(n, y)?;
        let (low, high) = dtype.int_range().unwrap_or((0, 255));
        y = n.op("clip", &[y], &[("a_min", (low as f64).into()), ("a_max", (high as f64).into())])?;
    }
    y = n.cast(y, dtype)?;
    if let Some(mask) = outside_all {
        let value = n.c(y, m.extrapolation)?;
        y = n.select(mask, value, y)?;
    }
    Ok(y)
}

fn method(n: &Node) -> Convert<Method> {
    let plain = n.version < 11;
    Ok(Method {
        mode: match n.text("mode", "nearest")?.as_str() {
            "bilinear" | "trilinear" => "linear".into(),
            other => other.to_owned(),
        },
        coordinates: if plain { "asymmetric".into() } else { n.text("coordinate_transformation_mode", "half_pixel")? },
        nearest: if plain { "simple".into() } else { n.text("nearest_mode", "round_prefer_floor")? },
        cubic: n.float("cubic_coeff_a", -0.75)?,
        antialias: n.flag("antialias", false)?,
        exclude_outside: n.flag("exclude_outside", false)?,
        extrapolation: n.float("extrapolation_value", 0.0)?,
    })
}

fn resize(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let method = method(n)?;
    let axes = n.ints("axes")?.unwrap_or_else(|| (0..rank as i64).collect());
    let axes = axes.iter().map(|&a| n.axis_of(a, rank)).collect::<Convert<Vec<_>>>()?;
    let (scales_at, sizes_at) = if n.version < 11 { (1, 3) } else { (2, 3) };
    let given = |n: &mut Node, i: usize| -> Convert<Option<ExprId>> {
        Ok(n.opt(i)?.filter(|&e| n.ty(e).is_ok_and(|t| t.elements() != Some(0))))
    };
    let (scales, sizes) = (given(n, scales_at)?, given(n, sizes_at)?);
    let sizes = if scales.is_some() { None } else { sizes };
    let crops = n.version >= 11 && method.coordinates == "tf_crop_and_resize";
    let unknown = [scales.or(sizes), if crops { n.opt(1)? } else { None }];
    // Axes that keep their extents need none.
    let factors = match scales {
        Some(e) => n.value(e).map(|v| v.to_f64_vec()),
        None => None,
    };
    if let Some(f) = factors.as_ref().filter(|f| f.len() == axes.len()) {
        let times: Option<Vec<i64>> = f.iter().map(|&f| repeats(&method, f)).collect();
        if let Some(times) = times {
            let longer = axes.iter().zip(times).filter(|(_, times)| *times > 1);
            let y = longer.collect::<Vec<_>>().into_iter().try_fold(x, |y, (&at, times)| {
                n.op("repeat", &[y], &[("repeats", times.into()), ("axis", (at as i64).into())])
            })?;
            return n.one(y);
        }
    }
    let dims = n.dims(x)?;
    let kept = |k: usize| factors.as_ref().is_some_and(|f| f.get(k) == Some(&1.0));
    let open = axes.iter().enumerate().any(|(k, &a)| dims[a].is_none() && !kept(k));
    if open || unknown.into_iter().flatten().any(|e| n.value(e).is_none()) {
        return resize_while_running(n, x, &axes, &method, scales, sizes);
    }
    let roi = if n.version >= 11 && method.coordinates == "tf_crop_and_resize" {
        n.known_floats(1)?.unwrap_or_default()
    } else {
        Vec::new()
    };
    let scales = if scales.is_some() { n.known_floats(scales_at)? } else { None };
    let sizes = if sizes.is_some() { n.known_ints(sizes_at)? } else { None };
    let policy = n.text("keep_aspect_ratio_policy", "stretch")?;
    let count = scales.as_ref().map_or_else(|| sizes.as_ref().map_or(0, Vec::len), Vec::len);
    n.ensure(count == axes.len(), || format!("it resizes {} axes, but {count} sizes are given", axes.len()))?;
    let mut plan = Vec::new();
    let mut one = None;
    if let (Some(s), true) = (&sizes, policy != "stretch") {
        let ratios = axes
            .iter()
            .zip(s)
            .map(|(&a, &to)| Ok(to as f64 / n.extent(x, a)? as f64))
            .collect::<Convert<Vec<f64>>>()?;
        let least = policy == "not_larger";
        one = Some(
            ratios
                .into_iter()
                .fold(if least { f64::INFINITY } else { 0.0 }, |a, b| if least { a.min(b) } else { a.max(b) }),
        );
    }
    for (k, &at) in axes.iter().enumerate() {
        let unchanged = scales.as_ref().is_some_and(|s| s[k] == 1.0);
        if unchanged && roi.is_empty() {
            continue;
        }
        let from = n.extent(x, at)?;
        let (to, scale) = match (&scales, &sizes, one) {
            (Some(s), _, _) => ((from as f64 * s[k]).floor() as i64, s[k]),
            (_, Some(_), Some(ratio)) => ((ratio * from as f64).round() as i64, ratio),
            (_, Some(s), None) => (s[k], s[k] as f64 / from as f64),
            _ => return Err(n.refuse("neither scales nor sizes are given")),
        };
        let roi = if roi.len() == 2 * axes.len() { (roi[k], roi[k + axes.len()]) } else { (0.0, 1.0) };
        plan.push((at, Axis { from, to, scale, roi }));
    }
    let y = resized(n, x, &plan, &method)?;
    n.one(y)
}

/// Scalars that say how an axis is resized while running: extents before and after (floats), the factor, and the region of interest.
struct Running {
    from: ExprId,
    to: ExprId,
    scale: ExprId,
    roi: Option<(ExprId, ExprId)>,
}

/// A resize by scales or to sizes that are known only while running, an axis at a time.
fn resize_while_running(
    n: &mut Node,
    x: ExprId,
    axes: &[usize],
    m: &Method,
    scales: Option<ExprId>,
    sizes: Option<ExprId>,
) -> Convert<Vec<Val>> {
    let policy = n.text("keep_aspect_ratio_policy", "stretch")?;
    let of = |n: &mut Node, list: ExprId, k: usize| -> Convert {
        let v = n.index(list, 0, k as i64)?;
        n.cast(v, DType::F32)
    };
    let mut plan = Vec::new();
    let mut ratio: Option<ExprId> = None;
    let factors = match scales {
        Some(e) => n.value(e).map(|v| v.to_f64_vec()),
        None => None,
    };
    for (k, &at) in axes.iter().enumerate() {
        if m.coordinates != "tf_crop_and_resize" && factors.as_ref().is_some_and(|f| f.get(k) == Some(&1.0)) {
            continue;
        }
        let from = n.size(x, at, DType::F32)?;
        let (to, scale) = match (scales, sizes) {
            (Some(s), _) => {
                let s = of(n, s, k)?;
                let to = n.mul(from, s)?;
                (n.un("floor", to)?, s)
            }
            (_, Some(s)) => {
                let to = of(n, s, k)?;
                (to, n.div(to, from)?)
            }
            _ => return Err(n.refuse("neither scales nor sizes are given")),
        };
        if sizes.is_some() && policy != "stretch" {
            let least = if policy == "not_larger" { "minimum" } else { "maximum" };
            ratio = Some(match ratio {
                None => scale,
                Some(r) => n.bin(least, r, scale)?,
            });
        }
        let roi = match (m.coordinates.as_str(), n.opt(1)?) {
            ("tf_crop_and_resize", Some(r)) => Some((of(n, r, k)?, of(n, r, k + axes.len())?)),
            _ => None,
        };
        plan.push((at, Running { from, to, scale, roi }));
    }
    if let Some(r) = ratio {
        for (_, p) in &mut plan {
            let to = n.mul(r, p.from)?;
            let to = n.with("add", to, 0.5)?;
            (p.to, p.scale) = (n.un("floor", to)?, r);
        }
    }
    let dtype = n.dtype(x)?;
    let rank = n.rank(x)?;
    let mut y = x;
    let mut outside: Option<ExprId> = None;
    for (at, p) in &plan {
        let at = *at;
        let place = coordinates(n, m, p)?;
        if m.coordinates == "tf_crop_and_resize" {
            let last = n.with("subtract", p.from, 1.0)?;
            let (below, above) = (n.with("less", place, 0.0)?, n.bin("greater", place, last)?);
            let mask = n.bin("logical_or", below, above)?;
            let mask = n.trailing(mask, rank - 1 - at)?;
            outside = Some(match outside {
                None => mask,
                Some(o) => n.bin("logical_or", o, mask)?,
            });
        }
        y = if m.mode == "nearest" { nearest(n, y, at, m, p, place)? } else { mixed(n, y, at, m, p, place)? };
    }
    let mut y = n.cast(y, dtype)?;
    if let Some(mask) = outside {
        let value = n.c(y, m.extrapolation)?;
        y = n.select(mask, value, y)?;
    }
    n.one(y)
}

/// Where in the data the elements of the result lie.
fn coordinates(n: &mut Node, m: &Method, p: &Running) -> Convert {
    let (zero, one) = (n.c(p.to, 0.0)?, n.c(p.to, 1.0)?);
    let i = n.op("arange", &[zero, p.to, one], &[("dtype", DType::F32.into())])?;
    let last = n.with("subtract", p.from, 1.0)?;
    let half_pixel = |n: &mut Node| -> Convert {
        let c = n.with("add", i, 0.5)?;
        n.div(c, p.scale)
    };
    let length = n.mul(p.scale, p.from)?;
    match m.coordinates.as_str() {
        "asymmetric" => n.div(i, p.scale),
        "tf_half_pixel_for_nn" => half_pixel(n),
        "half_pixel" => {
            let c = half_pixel(n)?;
            n.with("subtract", c, 0.5)
        }
        "pytorch_half_pixel" => {
            let c = half_pixel(n)?;
            let c = n.with("subtract", c, 0.5)?;
            let single = n.with("less_equal", p.to, 1.0)?;
            n.select(single, zero, c)
        }
        "half_pixel_symmetric" => {
            let share = n.div(p.to, length)?;
            let rest = n.from("subtract", 1.0, share)?;
            let middle = n.with("multiply", p.from, 0.5)?;
            let offset = n.mul(middle, rest)?;
            let c = half_pixel(n)?;
            let c = n.with("subtract", c, 0.5)?;
            n.add(c, offset)
        }
        "align_corners" => {
            let steps = n.with("subtract", length, 1.0)?;
            let none = n.with("equal", steps, 0.0)?;
            let steps = n.select(none, one, steps)?;
            let scaled = n.mul(i, last)?;
            n.div(scaled, steps)
        }
        "tf_crop_and_resize" => {
            let (start, end) = p.roi.ok_or_else(|| n.refuse("the region of interest is not given"))?;
            let steps = n.with("subtract", p.to, 1.0)?;
            let single = n.with("less_equal", steps, 0.0)?;
            let steps = n.select(single, one, steps)?;
            let width = n.sub(end, start)?;
            let step = n.mul(width, last)?;
            let step = n.div(step, steps)?;
            let moved = n.mul(i, step)?;
            let first = n.mul(start, last)?;
            let c = n.add(first, moved)?;
            let both = n.add(start, end)?;
            let middle = n.mul(both, last)?;
            let middle = n.with("multiply", middle, 0.5)?;
            n.select(single, middle, c)
        }
        other => Err(n.refuse(format!("there is no coordinate_transformation_mode `{other}`"))),
    }
}

/// Places held within the data, as integers.
fn held(n: &mut Node, place: ExprId, p: &Running) -> Convert {
    let last = n.with("subtract", p.from, 1.0)?;
    let c = n.with("maximum", place, 0.0)?;
    let c = n.bin("minimum", c, last)?;
    n.cast(c, DType::I64)
}

/// Guards the rounding of places that are whole, or halves, but for an error of float arithmetic.
const SLACK: f64 = 1e-5;

fn nearest(n: &mut Node, x: ExprId, at: usize, m: &Method, p: &Running, place: ExprId) -> Convert {
    let down = |n: &mut Node, less: f64| -> Convert {
        let c = n.with("add", place, less + SLACK)?;
        n.un("floor", c)
    };
    let up = |n: &mut Node, less: f64| -> Convert {
        let c = n.with("subtract", place, less + SLACK)?;
        n.un("ceil", c)
    };
    let c = match m.nearest.as_str() {
        "floor" => down(n, 0.0)?,
        "ceil" => up(n, 0.0)?,
        "round_prefer_ceil" => down(n, 0.5)?,
        "round_prefer_floor" => up(n, 0.5)?,
        _ => {
            let (up, down) = (up(n, 0.0)?, down(n, 0.0)?);
            let shrinks = n.with("less", p.scale, 1.0)?;
            n.select(shrinks, up, down)?
        }
    };
    let c = held(n, c, p)?;
    n.take(x, c, at)
}

/// Elements as mixtures of the two around. Places beyond the ends count as the last elements, whether or not those outside are excluded: what
/// is left then has the whole weight.
fn between(n: &mut Node, x: ExprId, at: usize, p: &Running, place: ExprId) -> Convert {
    let low = n.un("floor", place)?;
    let part = n.sub(place, low)?;
    let high = n.with("add", low, 1.0)?;
    let wide = n.cast(x, DType::F32)?;
    let trailing = n.rank(x)? - 1 - at;
    let side = |n: &mut Node, which: ExprId, weight: ExprId| {
        let which = held(n, which, p)?;
        let elements = n.take(wide, which, at)?;
        let weight = n.trailing(weight, trailing)?;
        n.mul(elements, weight)
    };
    let rest = n.from("subtract", 1.0, part)?;
    let (first, second) = (side(n, low, rest)?, side(n, high, part)?);
    n.add(first, second)
}

/// Elements as mixtures of those around: a product with a matrix of weights, computed while running. Places beyond the ends count
/// as the last elements.
fn mixed(n: &mut Node, x: ExprId, at: usize, m: &Method, p: &Running, place: ExprId) -> Convert {
    if m.mode == "linear" && !m.antialias {
        return between(n, x, at, p, place);
    }
    let one = n.c(p.scale, 1.0)?;
    let stretch = if m.antialias { n.bin("minimum", p.scale, one)? } else { one };
    let reach = n.from("divide", if m.mode == "cubic" { 2.0 } else { 1.0 }, stretch)?;
    let reach = n.un("ceil", reach)?;
    let reach = n.with("add", reach, 1.0)?;
    let first = n.un("negative", reach)?;
    let end = n.add(p.from, reach)?;
    let all = n.op("arange", &[first, end, one], &[("dtype", DType::F32.into())])?;
    let rows = n.trailing(place, 1)?;
    let d = n.sub(all, rows)?;
    let d = n.mul(d, stretch)?;
    let d = n.un("abs", d)?;
    let mut w = filter(n, m, d)?;
    if m.exclude_outside {
        let (low, high) = (n.with("greater_equal", all, 0.0)?, n.bin("less", all, p.from)?);
        let inside = n.bin("logical_and", low, high)?;
        let zero = n.c(w, 0.0)?;
        w = n.select(inside, w, zero)?;
    }
    if m.exclude_outside || m.antialias {
        let sum = n.reduce("sum", w, &[1], true)?;
        w = n.div(w, sum)?;
    }
    let places = held(n, all, p)?;
    let wide = n.cast(x, DType::F32)?;
    let around = n.take(wide, places, at)?;
    let around = n.axis_to_last(around, at)?;
    let y = n.op("nn.dense", &[around, w], &[])?;
    n.last_to_axis(y, at)
}

/// The weight of what is so far away.
fn filter(n: &mut Node, m: &Method, d: ExprId) -> Convert {
    let a = m.cubic;
    let polynomial = |n: &mut Node, c: [f64; 4]| -> Convert {
        let mut w = n.c(d, c[0])?;
        for v in &c[1..] {
            w = n.mul(w, d)?;
            w = n.with("add", w, *v)?;
        }
        Ok(w)
    };
    match m.mode.as_str() {
        "linear" => {
            let w = n.from("subtract", 1.0, d)?;
            n.with("maximum", w, 0.0)
        }
        "cubic" => {
            let near = polynomial(n, [a + 2.0, -(a + 3.0), 0.0, 1.0])?;
            let far = polynomial(n, [a, -5.0 * a, 8.0 * a, -4.0 * a])?;
            let (first, second) = (n.with("less_equal", d, 1.0)?, n.with("less", d, 2.0)?);
            let zero = n.c(d, 0.0)?;
            let far = n.select(second, far, zero)?;
            n.select(first, near, far)
        }
        other => Err(n.refuse(format!("there is no mode `{other}`"))),
    }
}

fn upsample(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let scales = match n.version {
        1..7 => {
            let (h, w) = (n.float("height_scale", 1.0)?, n.float("width_scale", 1.0)?);
            n.constant(Tensor::from_slice(&[4], &[1.0, 1.0, h as f32, w as f32]))
        }
        7..9 => {
            let all = n.floats("scales")?.unwrap_or_default();
            n.constant(Tensor::from_f64_fn(DType::F32, &[all.len()], |i| all[i]))
        }
        _ => n.x(1)?,
    };
    let m = Method { nearest: "floor".into(), coordinates: "asymmetric".into(), ..method(n)? };
    let known = n.value(scales).map(|v| v.to_f64_vec());
    let dims = n.dims(x)?;
    let Some(scales) = known.filter(|s| s.iter().zip(&dims).all(|(s, d)| *s == 1.0 || d.is_some())) else {
        let axes = (0..rank).collect::<Vec<_>>();
        return resize_while_running(n, x, &axes, &m, Some(scales), None);
    };
    n.ensure(scales.len() == rank, || format!("it scales {} axes of {rank}", scales.len()))?;
    let mut plan = Vec::new();
    for (at, &scale) in scales.iter().enumerate().filter(|s| *s.1 != 1.0) {
        let from = n.extent(x, at)?;
        plan.push((at, Axis { from, to: (from as f64 * scale).floor() as i64, scale, roi: (0.0, 1.0) }));
    }
    let y = resized(n, x, &plan, &m)?;
    n.one(y)
}
