//! Padding and dilation: nn.pad, nn.mirror_pad, nn.dilate.

use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_bail,
        op_ensure,
        util::{tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Pad, &MirrorPad, &Dilate];

/// What stands where the data ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Mode {
    /// A value.
    Constant,
    /// The nearest element.
    Edge,
    /// The elements before the end, the last one not repeated.
    Reflect,
    /// The elements up to the end, the last one repeated.
    Symmetric,
}

/// `pad_width`: before and after, per axis.
pub(super) fn pairs(attrs: &Attrs, name: &str) -> Result<Vec<(i64, i64)>, OpError> {
    let AttrValue::List(rows) = attrs.get(name).cloned().unwrap_or(AttrValue::None) else {
        op_bail!("`{name}` should be a list of pairs")
    };
    rows.iter()
        .map(|row| match row.as_ints().as_deref() {
            Some([before, after]) => Ok((*before, *after)),
            _ => op_bail!("`{name}` should be a list of pairs of integers"),
        })
        .collect()
}

/// The padded type of `x`.
fn padded(x: &TensorType, widths: &[(i64, i64)], mode: Mode) -> Result<Type, OpError> {
    op_ensure!(widths.len() == x.rank(), "C1: `pad_width` has {} pairs, but `data` is {x}", widths.len());
    let mut shape = Vec::new();
    for (&d, &(before, after)) in x.shape.iter().zip(widths) {
        op_ensure!(
            mode == Mode::Constant || (before >= 0 && after >= 0),
            "C2: `pad_width` holds {before} and {after}, but only constant padding may be negative"
        );
        shape.push(match d {
            Dim::Known(n) => {
                let whole = n.saturating_add(before).saturating_add(after);
                op_ensure!(whole >= 0, "C2: `pad_width` takes more from `data`, {x}, than there is");
                let most = if mode == Mode::Reflect { n - 1 } else { n };
                op_ensure!(
                    !matches!(mode, Mode::Reflect | Mode::Symmetric) || (before <= most && after <= most),
                    "C3: `pad_width` holds {before} and {after}, but an extent of {n} mirrors at most {most}"
                );
                op_ensure!(
                    mode != Mode::Edge || n > 0 || (before, after) == (0, 0),
                    "C3: `data` is {x}: it has no edge"
                );
                Dim::Known(whole)
            }
            // As `?` plus a number is not a `?` in TVM's text, so an unknown extent stays one.
            other => other,
        });
    }
    Ok(TensorType::of(shape, x.dtype).into())
}

/// The position in an axis of `n` elements that position `i` of the padding shows; `None` for the constant.
fn source(mode: Mode, i: i64, n: i64) -> Option<i64> {
    let inside = (0..n).contains(&i);
    match mode {
        Mode::Constant => inside.then_some(i),
        Mode::Edge => Some(i.clamp(0, n - 1)),
        Mode::Reflect if i < 0 => Some(-i),
        Mode::Reflect if !inside => Some(2 * n - 2 - i),
        Mode::Symmetric if i < 0 => Some(-i - 1),
        Mode::Symmetric if !inside => Some(2 * n - 1 - i),
        Mode::Reflect | Mode::Symmetric => Some(i),
    }
}

fn eval_pad(x: &Tensor, widths: &[(i64, i64)], mode: Mode, fill: impl Fn(&mut Tensor, usize)) -> Tensor {
    let shape: Vec<usize> = x.shape().iter().zip(widths).map(|(&n, (b, a))| (n as i64 + b + a) as usize).collect();
    let strides = row_major_strides(x.shape());
    let mut out = Tensor::zeros(x.dtype(), &shape);
    let mut index = vec![0; shape.len()];
    for flat in 0..out.len() {
        let mut rest = flat;
        for k in (0..shape.len()).rev() {
            (index[k], rest) = (rest % shape[k], rest / shape[k]);
        }
        let place = (0..shape.len()).try_fold(0, |at, k| {
            let from = source(mode, index[k] as i64 - widths[k].0, x.shape()[k] as i64)?;
            Some(at + from as usize * strides[k])
        });
        match place {
            Some(at) if x.dtype().is_float() => out.set_f64(flat, x.get_f64(at)),
            Some(at) => out.set_i64(flat, x.get_i64(at)),
            None => fill(&mut out, flat),
        }
    }
    out
}

fn lower_pad(
    x: Operand,
    widths: &[(i64, i64)],
    mode: Mode,
    fill: impl Fn(&Builder) -> Scalar,
    b: &mut Builder,
) -> Operand {
    let x = x.tensor();
    let from = b.shape(x).to_vec();
    let shape: Vec<i64> = from.iter().zip(widths).map(|(n, (before, after))| n + before + after).collect();
    let out = b.map(&shape, |b, i| {
        let (mut index, mut inside) = (Vec::new(), Scalar::bool(true));
        for (k, &(before, after)) in widths.iter().enumerate() {
            let (at, n) = (i[k].clone() - before, from[k]);
            let (low, high) = (at.clone().lt(Scalar::index(0)), at.clone().ge(Scalar::index(n)));
            let mirrored = |at: Scalar, low_end: i64, high_end: i64| {
                let upper = match after > 0 {
                    true => Scalar::select(high, Scalar::index(high_end) - at.clone(), at.clone()),
                    false => at.clone(),
                };
                match before > 0 {
                    true => Scalar::select(low, Scalar::index(low_end) - at, upper),
                    false => upper,
                }
            };
            index.push(match mode {
                Mode::Constant => {
                    if before > 0 {
                        inside = inside.clone().and(at.clone().ge(Scalar::index(0)));
                    }
                    if after > 0 {
                        inside = inside.clone().and(at.clone().lt(Scalar::index(n)));
                    }
                    at
                }
                Mode::Edge => at.max(Scalar::index(0)).min(Scalar::index(n - 1)),
                Mode::Reflect => mirrored(at, 0, 2 * n - 2),
                Mode::Symmetric => mirrored(at, -1, 2 * n - 1),
            });
        }
        Scalar::select(inside.clone(), b.read(x, index), if inside.as_int() == Some(1) { zero(b, x) } else { fill(b) })
    });
    out.into()
}

/// A zero of a tensor's type.
fn zero(b: &Builder, x: crate::loops::TensorId) -> Scalar {
    Scalar::int(0, b.dtype(x))
}

/// Roles of a padded tensor's axes: those that keep their extent correspond element by element.
fn pad_roles(widths: Result<Vec<(i64, i64)>, OpError>, rank: usize) -> Vec<AxisRole> {
    match widths {
        Ok(w) if w.len() == rank => {
            w.iter().enumerate().map(|(k, w)| if *w == (0, 0) { AxisRole::Maps(k) } else { AxisRole::Opaque }).collect()
        }
        _ => vec![AxisRole::Opaque; rank],
    }
}

fn rank(t: &Type) -> usize {
    t.as_tensor().map_or(0, TensorType::rank)
}

/// A list of pairs as an attribute.
fn pairs_value(pairs: &[[i64; 2]]) -> AttrValue {
    AttrValue::List(pairs.iter().map(|p| AttrValue::ints(p)).collect())
}

/// The attributes of `nn.pad`.
pub(in crate::ops) const PAD_ATTRS: &[AttrField] = &[
    AttrField::new("pad_width", AttrKind::List, AttrDefault::Required),
    AttrField::new("pad_mode", AttrKind::OneOf(&["constant", "edge", "reflect"]), AttrDefault::Str("constant")),
];

/// `nn.pad`.
#[derive(Debug)]
struct Pad;

fn pad_mode(attrs: &Attrs) -> Mode {
    match attrs.str("pad_mode") {
        "edge" => Mode::Edge,
        "reflect" => Mode::Reflect,
        _ => Mode::Constant,
    }
}

impl Op for Pad {
    fn name(&self) -> &'static str {
        "nn.pad"
    }
    fn doc(&self) -> &'static str {
        "data with pad_width elements before and after it along each axis: pad_val (constant), the nearest element (edge), or
        the elements before the end (reflect). Negative widths take elements away.
        C1: pad_width has a pair per axis. C2: what is taken away is there, and only constant padding is negative.
        C3: reflection reaches no further than the data. C4: pad_val has one element."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "pad_val"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        PAD_ATTRS
    }
    fn class(&self) -> Class {
        Class::Injective
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, v) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "pad_val")?);
        op_ensure!(v.elements().is_none_or(|n| n >= 1), "C4: `pad_val` is {v}, but should have one element");
        padded(x, &pairs(attrs, "pad_width")?, pad_mode(attrs))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, v) = (args[0].tensor(), args[1].tensor());
        let out = eval_pad(x, &pairs(attrs, "pad_width")?, pad_mode(attrs), |out, i| {
            match v.dtype().is_float() {
                true => out.set_f64(i, v.get_f64(0)),
                false => out.set_i64(i, v.get_i64(0)),
            };
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let data = pad_roles(pairs(attrs, "pad_width"), rank(&args[0]));
        AxisMap(vec![data, vec![AxisRole::Opaque; rank(&args[1])]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, v) = (args[0].tensor(), args[1].tensor());
        let fill = |b: &Builder| b.read(v, b.shape(v).iter().map(|_| Scalar::index(0))).cast(b.dtype(x));
        Ok(lower_pad(args[0].clone(), &pairs(attrs, "pad_width")?, pad_mode(attrs), fill, b))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |widths: &[[i64; 2]], mode: &str, dtype: DType, fill: DType| Sample {
            attrs: vec![("pad_width", pairs_value(widths)), ("pad_mode", mode.into())],
            args: vec![Type::tensor(&[2, 3, 4], dtype), Type::tensor(&[], fill)],
        };
        let (f, i) = (DType::F32, DType::I32);
        vec![
            call(&[[0, 0], [1, 2], [3, 0]], "constant", f, f),
            call(&[[0, 0], [-1, 2], [0, -2]], "constant", f, i),
            call(&[[0, 0], [0, 0], [0, 0]], "constant", i, i),
            call(&[[1, 0], [1, 2], [4, 5]], "edge", f, f),
            call(&[[1, 0], [1, 2], [3, 0]], "reflect", i, i),
        ]
    }
}

/// `nn.mirror_pad`.
#[derive(Debug)]
struct MirrorPad;

fn mirror_mode(attrs: &Attrs) -> Mode {
    if attrs.str("mode") == "REFLECT" { Mode::Reflect } else { Mode::Symmetric }
}

impl Op for MirrorPad {
    fn name(&self) -> &'static str {
        "nn.mirror_pad"
    }
    fn doc(&self) -> &'static str {
        "data mirrored at its ends, pad_width elements before and after it along each axis; REFLECT does not repeat the last
        element, SYMMETRIC does.
        C1: pad_width has a pair per axis. C2: no width is negative. C3: the mirror images reach no further than the data."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("mode", AttrKind::OneOf(&["SYMMETRIC", "REFLECT"]), AttrDefault::Str("SYMMETRIC")),
            AttrField::new("pad_width", AttrKind::List, AttrDefault::Required),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Injective
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        padded(tensor_arg(args, 0, "data")?, &pairs(attrs, "pad_width")?, mirror_mode(attrs))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let out = eval_pad(args[0].tensor(), &pairs(attrs, "pad_width")?, mirror_mode(attrs), |_, _| {
            unreachable!("a mirror shows elements everywhere")
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(vec![pad_roles(pairs(attrs, "pad_width"), rank(&args[0]))])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        Ok(lower_pad(args[0].clone(), &pairs(attrs, "pad_width")?, mirror_mode(attrs), |b| zero(b, x), b))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |mode: &str, widths: &[[i64; 2]]| Sample {
            attrs: vec![("mode", mode.into()), ("pad_width", pairs_value(widths))],
            args: vec![Type::tensor(&[2, 3, 4], DType::F32)],
        };
        vec![call("SYMMETRIC", &[[0, 0], [3, 2], [0, 4]]), call("REFLECT", &[[1, 1], [2, 0], [0, 0]])]
    }
}

/// `nn.dilate`.
#[derive(Debug)]
struct Dilate;

impl Op for Dilate {
    fn name(&self) -> &'static str {
        "nn.dilate"
    }
    fn doc(&self) -> &'static str {
        "data with dilation_value between its elements: element i along an axis goes to i times the axis' stride.
        C1: strides has a positive number per axis."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("strides", AttrKind::Ints, AttrDefault::Required),
            AttrField::new("dilation_value", AttrKind::Float, AttrDefault::Float(0.0)),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Injective
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, strides) = (tensor_arg(args, 0, "data")?, attrs.ints("strides"));
        op_ensure!(
            strides.len() == x.rank() && strides.iter().all(|&s| s > 0),
            "C1: `strides` is {strides:?}, but `data` is {x}: a positive number per axis is wanted"
        );
        let dilated = |(d, s): (&Dim, &i64)| d.known().map_or(*d, |n| Dim::Known((n - 1).max(-1) * s + 1));
        Ok(TensorType::of(x.shape.iter().zip(&strides).map(dilated), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, strides) = (args[0].tensor(), attrs.ints("strides"));
        let shape: Vec<usize> =
            x.shape().iter().zip(&strides).map(|(&n, &s)| if n == 0 { 0 } else { (n - 1) * s as usize + 1 }).collect();
        let mut out = Tensor::from_f64_fn(x.dtype(), &shape, |_| attrs.float("dilation_value"));
        let to = row_major_strides(&shape);
        for i in 0..x.len() {
            let (mut rest, mut at) = (i, 0);
            for k in (0..shape.len()).rev() {
                at += rest % x.shape()[k] * strides[k] as usize * to[k];
                rest /= x.shape()[k];
            }
            match x.dtype().is_float() {
                true => out.set_f64(at, x.get_f64(i)),
                false => out.set_i64(at, x.get_i64(i)),
            }
        }
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let strides = attrs.ints("strides");
        let role = |k: usize| if strides.get(k) == Some(&1) { AxisRole::Maps(k) } else { AxisRole::Opaque };
        AxisMap(vec![(0..rank(&args[0])).map(role).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, strides) = (args[0].tensor(), attrs.ints("strides"));
        let (from, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let shape: Vec<i64> =
            from.iter().zip(&strides).map(|(&n, s)| (n - 1).max(-1) * s + 1).map(|n| n.max(0)).collect();
        let fill = Scalar::float(attrs.float("dilation_value"), dtype);
        let out = b.map(&shape, |b, i| {
            let (mut index, mut inside) = (Vec::new(), Scalar::bool(true));
            for (at, &s) in i.iter().zip(&strides) {
                if s > 1 {
                    let rest = at.clone().floor_mod(s);
                    inside = inside.clone().and(Scalar::binary(BinOp::Eq, rest, Scalar::index(0)));
                }
                index.push(at.clone().floor_div(s));
            }
            Scalar::select(inside, b.read(x, index), fill)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |strides: &[i64], dtype: DType, value: f64| Sample {
            attrs: vec![("strides", strides.into()), ("dilation_value", value.into())],
            args: vec![Type::tensor(&[2, 3, 2], dtype)],
        };
        vec![call(&[1, 2, 3], DType::F32, 0.5), call(&[1, 1, 1], DType::F32, 0.0), call(&[2, 1, 2], DType::I32, 0.0)]
    }
}
