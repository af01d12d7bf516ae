//! Sums, differences and products of quantized tensors, with broadcasting.

use super::{
    fixed::{Factor, Factors, Rounding, factors, factors_of, fixed_point},
    params::{channel_axis, channel_extent, check_param, check_quantized, check_single, read_param},
    quantize::{Channels, bounds, narrow, requantize_int, requantize_scalar},
};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{broadcast_shapes, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Binary {
        name: "qnn.add",
        doc: "Both sides requantized to the output's scale and zero point (int32), added, less the zero point, clipped.
        C1: lhs and rhs have one integer type and shapes that broadcast. C2: the sides' scales (float32) and zero points
        (int32) are single numbers or vectors of lhs_axis and rhs_axis, those of the output single numbers.",
        kind: Kind::Add,
    },
    &Binary {
        name: "qnn.subtract",
        doc: "Both sides requantized to the output's scale and zero point (int32), subtracted, plus the zero point, clipped.
        C1: lhs and rhs have one integer type and shapes that broadcast. C2: the sides' scales (float32) and zero points
        (int32) are single numbers or vectors of lhs_axis and rhs_axis, those of the output single numbers.",
        kind: Kind::Subtract,
    },
    &Binary {
        name: "qnn.mul",
        doc: "The product of both sides less their zero points (int32), requantized from the product of their scales (float32)
        to the output's, clipped.
        C1: lhs and rhs have one integer type and shapes that broadcast. C2: the sides' scales (float32) and zero points
        (int32) are single numbers or vectors of lhs_axis and rhs_axis, those of the output single numbers. C3: where both
        scales are vectors, they run along one axis.",
        kind: Kind::Multiply,
    },
];

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Kind {
    Add,
    Subtract,
    Multiply,
}

/// A binary operator.
#[derive(Debug)]
struct Binary {
    name: &'static str,
    doc: &'static str,
    kind: Kind,
}

/// The channel axis of a side, as an axis of the result.
fn axis_in_result(attrs: &Attrs, name: &str, rank: usize, result: usize) -> Result<Option<usize>, OpError> {
    Ok(channel_axis(attrs.int(name), rank)?.map(|k| k + result - rank))
}

/// For each element of the result, the element of a side.
fn sources(from: &[usize], to: &[usize]) -> Vec<usize> {
    let (strides, skip) = (row_major_strides(from), to.len() - from.len());
    (0..to.iter().product())
        .map(|flat: usize| {
            let (mut rest, mut at) = (flat, 0);
            for k in (0..to.len()).rev() {
                if k >= skip && from[k - skip] != 1 {
                    at += rest % to[k] * strides[k - skip];
                }
                rest /= to[k];
            }
            at
        })
        .collect()
}

impl Op for Binary {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &[
            "lhs",
            "rhs",
            "lhs_scale",
            "lhs_zero_point",
            "rhs_scale",
            "rhs_zero_point",
            "output_scale",
            "output_zero_point",
        ]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("lhs_axis", AttrKind::Int, AttrDefault::Int(-1)),
            AttrField::new("rhs_axis", AttrKind::Int, AttrDefault::Int(-1)),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Broadcast
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, y) = (tensor_arg(args, 0, "lhs")?, tensor_arg(args, 1, "rhs")?);
        check_quantized(x, "lhs", &[DType::I8, DType::U8, DType::I16, DType::U16, DType::I32])?;
        op_ensure!(x.dtype == y.dtype, "C1: `lhs` is {x} and `rhs` is {y}: their element types should be equal");
        let shape = broadcast_shapes(&x.shape, &y.shape)?;
        for (side, first, axis) in [(x, 2, "lhs_axis"), (y, 4, "rhs_axis")] {
            let extent = channel_extent(side, channel_axis(attrs.int(axis), side.rank())?);
            check_param(args, first, self.inputs()[first], DType::F32, extent)?;
            check_param(args, first + 1, self.inputs()[first + 1], DType::I32, extent)?;
        }
        check_single(args, 6, "output_scale", DType::F32)?;
        check_single(args, 7, "output_zero_point", DType::I32)?;
        if self.kind == Kind::Multiply {
            let vector = |i: usize| args[i].as_tensor().is_some_and(|t| t.elements() != Some(1));
            let axes = [("lhs_axis", x), ("rhs_axis", y)].map(|(a, t)| axis_in_result(attrs, a, t.rank(), shape.len()));
            op_ensure!(
                !(vector(2) && vector(4)) || axes[0] == axes[1],
                "C3: `lhs_scale` and `rhs_scale` are vectors along different axes"
            );
        }
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let t: Vec<&Tensor> = args.iter().map(Value::tensor).collect();
        let (x, y) = (t[0], t[1]);
        let dims = |t: &Tensor| t.shape().iter().map(|&n| Dim::Known(n as i64)).collect::<Vec<_>>();
        let shape: Vec<usize> = broadcast_shapes(&dims(x), &dims(y))?
            .iter()
            .map(|d| d.known().expect("values have known extents") as usize)
            .collect();
        let (ix, iy) = (sources(x.shape(), &shape), sources(y.shape(), &shape));
        let channels = |t: &Tensor, axis: &str| {
            Ok::<_, OpError>(Channels::new(t.shape(), channel_axis(attrs.int(axis), t.shape().len())?))
        };
        let (cx, cy) = (channels(x, "lhs_axis")?, channels(y, "rhs_axis")?);
        let (to_scale, to_zero, (lo, hi)) = (t[6].get_f64(0), t[7].get_i64(0), bounds(x.dtype()));
        let factors = |scale: &Tensor| -> Vec<(i64, i64)> {
            (0..scale.len()).map(|c| fixed_point(scale.get_f64(c) / to_scale)).collect()
        };
        let (fx, fy) = (factors(t[2]), factors(t[4]));
        // A side's element, from its own scale and zero point to the output's.
        let moved = |t: &Tensor, i: usize, c: &Channels, f: &[(i64, i64)], scale: &Tensor, zero: &Tensor| {
            requantize_int(t.get_i64(i), zero.get_i64(c.at(i, zero)), f[c.at(i, scale)], to_zero, Rounding::Upward)
        };
        let out = Tensor::from_i64_fn(x.dtype(), &shape, |i| {
            let (i, j) = (ix[i], iy[i]);
            let value = match self.kind {
                Kind::Multiply => {
                    let (zx, zy) = (t[3].get_i64(cx.at(i, t[3])), t[5].get_i64(cy.at(j, t[5])));
                    let (a, b) = (x.get_i64(i).wrapping_sub(zx), y.get_i64(j).wrapping_sub(zy));
                    let product = (a as i32).wrapping_mul(b as i32);
                    let scale = t[2].get_f64(cx.at(i, t[2])) as f32 * t[4].get_f64(cy.at(j, t[4])) as f32;
                    let factor = fixed_point(scale as f64 / to_scale);
                    requantize_int(product as i64, 0, factor, to_zero, Rounding::Upward)
                }
                kind => {
                    let (a, b) = (moved(x, i, &cx, &fx, t[2], t[3]), moved(y, j, &cy, &fy, t[4], t[5]));
                    let (a, b, z) = (a as i32, b as i32, to_zero as i32);
                    match kind {
                        Kind::Add => a.wrapping_add(b).wrapping_sub(z),
                        _ => a.wrapping_sub(b).wrapping_add(z),
                    }
                    .into()
                }
            };
            value.clamp(lo, hi)
        });
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let ranks: Vec<usize> = args[..2].iter().map(|t| t.as_tensor().map_or(0, TensorType::rank)).collect();
        let result = ranks.iter().copied().max().unwrap_or(0);
        let vectors = args[2..].iter().any(|t| t.as_tensor().is_some_and(|t| t.elements() != Some(1)));
        let role = |arg: &Type, rank: usize, k: usize| match arg.as_tensor().map(|t| t.shape[k]) {
            // A vector of scales runs along one of the axes and claims nothing.
            _ if vectors => AxisRole::Opaque,
            Some(Dim::Known(1)) => AxisRole::Broadcasts(k + result - rank),
            Some(Dim::Known(_)) => AxisRole::Maps(k + result - rank),
            _ => AxisRole::Opaque,
        };
        let side = |i: usize| (0..ranks[i]).map(|k| role(&args[i], ranks[i], k)).collect();
        let params = args[2..].iter().map(|t| vec![AxisRole::Opaque; t.as_tensor().map_or(0, TensorType::rank)]);
        AxisMap([side(0), side(1)].into_iter().chain(params).collect())
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(16.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let t: Vec<TensorId> = args.iter().map(Operand::tensor).collect();
        let (sx, sy, dtype) = (b.shape(t[0]).to_vec(), b.shape(t[1]).to_vec(), b.dtype(t[0]));
        let rank = sx.len().max(sy.len());
        let extent = |s: &[i64], k: usize| if k + s.len() < rank { 1 } else { s[k + s.len() - rank] };
        let shape: Vec<i64> = (0..rank)
            .map(|k| match (extent(&sx, k), extent(&sy, k)) {
                (1, n) => n,
                (n, _) => n,
            })
            .collect();
        let ax = axis_in_result(attrs, "lhs_axis", sx.len(), rank)?;
        let ay = axis_in_result(attrs, "rhs_axis", sy.len(), rank)?;
        let pick = |b: &Builder, s: &[i64], i: &[Scalar]| -> Vec<Scalar> {
            let axes = s.iter().zip(&i[rank - s.len()..]);
            axes.map(|(&n, i)| if b.stands_still(n, i) { Scalar::index(0) } else { i.clone() }).collect()
        };
        let wide = |s: Scalar| s.cast(DType::I32);
        let out = if self.kind == Kind::Multiply {
            let both: Factors = product_factors(&t, b);
            b.map(&shape, |b, i| {
                let (cx, cy) = (ax.map(|k| &i[k]), ay.map(|k| &i[k]));
                let x = wide(b.read(t[0], pick(b, &sx, i))) - read_param(b, t[3], cx);
                let y = wide(b.read(t[1], pick(b, &sy, i))) - read_param(b, t[5], cy);
                let channel = if b.shape(t[2]).iter().any(|&n| n > 1) { cx } else { cy };
                let (zero, to_zero) = (Scalar::int(0, DType::I32), read_param(b, t[7], None));
                let moved = requantize_scalar(x * y, zero, both.read(b, channel), to_zero, Rounding::Upward);
                narrow(moved, dtype)
            })
        } else {
            let (fx, fy) = (factors(t[2], t[6], b), factors(t[4], t[6], b));
            b.map(&shape, |b, i| {
                let to_zero = read_param(b, t[7], None);
                let moved = |q: Scalar, zero: TensorId, f: Factors, channel: Option<&Scalar>| {
                    let factor: Factor = f.read(b, channel);
                    requantize_scalar(q, read_param(b, zero, channel), factor, to_zero.clone(), Rounding::Upward)
                };
                let x = moved(b.read(t[0], pick(b, &sx, i)), t[3], fx, ax.map(|k| &i[k]));
                let y = moved(b.read(t[1], pick(b, &sy, i)), t[5], fy, ay.map(|k| &i[k]));
                let value = match self.kind {
                    Kind::Add => x + y - to_zero.clone(),
                    _ => x - y + to_zero.clone(),
                };
                narrow(value, dtype)
            })
        };
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call =
            |x: &[i64], y: &[i64], dtype: DType, px: &[i64], py: &[i64], attrs: Vec<(&'static str, AttrValue)>| {
                let (f, i) = (DType::F32, DType::I32);
                let args = [(x, dtype), (y, dtype), (px, f), (px, i), (py, f), (py, i), (&[], f), (&[], i)];
                Sample { attrs, args: args.map(|(s, d)| Type::tensor(s, d)).into() }
            };
        let along = |axis: i64| vec![("lhs_axis", axis.into()), ("rhs_axis", axis.into())];
        vec![
            call(&[2, 3], &[2, 3], DType::U8, &[], &[], vec![]),
            call(&[2, 3, 2], &[2, 3, 2], DType::I8, &[3], &[3], along(1)),
            call(&[2, 3, 2], &[2], DType::I8, &[], &[2], along(-1)),
            call(&[1, 3], &[2, 1], DType::U8, &[1], &[], along(1)),
        ]
    }
}

/// The products of both sides' scales (float32) over the output's, as fixed-point factors.
fn product_factors(t: &[TensorId], b: &mut Builder) -> Factors {
    let vector = |t: TensorId, b: &Builder| b.shape(t).iter().product::<i64>();
    let shape = match (vector(t[2], b), vector(t[4], b)) {
        (1, 1) => vec![],
        (n, m) => vec![n.max(m)],
    };
    let ratio = b.map(&shape, |b, i| {
        let scale = |t| read_param(b, t, i.first());
        (scale(t[2]) * scale(t[4])).cast(DType::F64) / read_param(b, t[6], None).cast(DType::F64)
    });
    factors_of(ratio, b)
}
