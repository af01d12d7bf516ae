//! Correlation of two images' patches, as optical flow networks use it.

use super::{
    geometry::paddings,
    place::{Pad, pad},
};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, may_equal, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Correlation];

/// `nn.correlation`.
#[derive(Debug)]
struct Correlation;

/// The attributes, read and checked.
struct Plan {
    kernel: i64,
    reach: i64,
    stride1: i64,
    stride2: i64,
    padding: Vec<(i64, i64)>,
    multiply: bool,
}

impl Plan {
    fn new(attrs: &Attrs) -> Result<Plan, OpError> {
        let plan = Plan {
            kernel: attrs.int("kernel_size"),
            reach: attrs.int("max_displacement"),
            stride1: attrs.int("stride1"),
            stride2: attrs.int("stride2"),
            padding: paddings(attrs, 2)?,
            multiply: attrs.bool("is_multiply"),
        };
        op_ensure!(
            plan.kernel > 0 && plan.kernel % 2 == 1,
            "C2: `kernel_size` is {}, but should be odd and positive",
            plan.kernel
        );
        op_ensure!(
            plan.reach >= 0
                && plan.stride1 > 0
                && plan.stride2 > 0
                && plan.padding.iter().all(|p| p.0 >= 0 && p.1 >= 0),
            "C2: strides should be positive, `max_displacement` and `padding` not negative"
        );
        Ok(plan)
    }

    /// Displacements per axis, each side of none.
    fn radius(&self) -> i64 {
        self.reach / self.stride2
    }

    fn side(&self) -> i64 {
        2 * self.radius() + 1
    }

    /// The output's extent along spatial axis `k`.
    fn outputs(&self, k: usize, extent: i64) -> i64 {
        let border = self.reach + (self.kernel - 1) / 2;
        (extent + self.padding[k].0 + self.padding[k].1 - 2 * border + self.stride1 - 1).div_euclid(self.stride1)
    }
}

impl Op for Correlation {
    fn name(&self) -> &'static str {
        "nn.correlation"
    }
    fn doc(&self) -> &'static str {
        "out[n, q, y, x]: the mean, over channels and a window, of data1 times data2 displaced by the q-th of a square of
        displacements up to max_displacement in steps of stride2 (of the magnitude of their difference, where is_multiply is
        not set); windows start every stride1.
        C1: layout is NCHW, and data1 and data2 have one type of four axes. C2: kernel_size is odd, strides are positive,
        max_displacement and padding not negative. C3: something is left of the padded extents."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data1", "data2"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("kernel_size", AttrKind::Int, AttrDefault::Int(1)),
            AttrField::new("max_displacement", AttrKind::Int, AttrDefault::Int(1)),
            AttrField::new("stride1", AttrKind::Int, AttrDefault::Int(1)),
            AttrField::new("stride2", AttrKind::Int, AttrDefault::Int(1)),
            AttrField::new("padding", AttrKind::Ints, AttrDefault::Ints(&[0, 0])),
            AttrField::new("is_multiply", AttrKind::Bool, AttrDefault::Bool(true)),
            AttrField::new("layout", AttrKind::OneOf(&["NCHW"]), AttrDefault::Str("NCHW")),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, y, plan) = (tensor_arg(args, 0, "data1")?, tensor_arg(args, 1, "data2")?, Plan::new(attrs)?);
        let alike = x.rank() == 4 && y.rank() == 4 && (0..4).all(|k| may_equal(x.shape[k], y.shape[k]));
        op_ensure!(
            alike && x.dtype == y.dtype && x.dtype.is_float(),
            "C1: `data1` is {x} and `data2` is {y}, but should have one type, of floats and four axes"
        );
        let mut shape = vec![x.shape[0], Dim::Known(plan.side() * plan.side())];
        for k in 0..2 {
            shape.push(match x.shape[k + 2] {
                Dim::Known(n) => {
                    op_ensure!(plan.outputs(k, n) > 0, "C3: `data1` is {x}: nothing is left of axis {}", k + 2);
                    Dim::Known(plan.outputs(k, n))
                }
                other => other,
            });
        }
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, y, p) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs)?);
        let [n, channels, h, w] = [0, 1, 2, 3].map(|k| x.shape()[k] as i64);
        let (side, extents) = (p.side(), [h, w]);
        let (rows, columns) = (p.outputs(0, h), p.outputs(1, w));
        let at = |t: &Tensor, b: i64, c: i64, place: [i64; 2]| -> f64 {
            let [i, j] = [0, 1].map(|k| place[k] - p.padding[k].0);
            match (0..extents[0]).contains(&i) && (0..extents[1]).contains(&j) {
                true => t.get_f64((((b * channels + c) * h + i) * w + j) as usize),
                false => 0.0,
            }
        };
        let shape = [n, side * side, rows, columns].map(|n| n as usize);
        let out = Tensor::from_f64_fn(x.dtype(), &shape, |flat| {
            let flat = flat as i64;
            let (j, i) = (flat % columns, flat / columns % rows);
            let (q, b) = (flat / (columns * rows) % (side * side), flat / (columns * rows * side * side));
            let first = [i, j].map(|k| k * p.stride1 + p.reach);
            let step = [q / side, q % side].map(|d| (d - p.radius()) * p.stride2);
            let mut sum = 0.0;
            for c in 0..channels {
                for tap in 0..p.kernel * p.kernel {
                    let here = [first[0] + tap / p.kernel, first[1] + tap % p.kernel];
                    let (a, d) = (at(x, b, c, here), at(y, b, c, [here[0] + step[0], here[1] + step[1]]));
                    sum += if p.multiply { a * d } else { (a - d).abs() };
                }
            }
            sum / (p.kernel * p.kernel * channels) as f64
        });
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let roles = vec![AxisRole::Maps(0), AxisRole::Reduced, AxisRole::Windows(2), AxisRole::Windows(3)];
        AxisMap(vec![roles; args.len()])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let channels = args[0].as_tensor().and_then(|t| t.shape.get(1)?.known()).unwrap_or(1);
        let flops = 2.0 * elements(out) * (attrs.int("kernel_size").pow(2) * channels) as f64;
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, y, p) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs)?);
        let (from, dtype, side) = (b.shape(x).to_vec(), b.dtype(x), p.side());
        let shape = [from[0], side * side, p.outputs(0, from[2]), p.outputs(1, from[3])];
        let zero = Scalar::int(0, dtype);
        let padded = |t: TensorId, b: &mut Builder| {
            let pads = [0, 1].map(|k| {
                let (axis, (before, after)) = (k + 2, p.padding[k]);
                Pad { axis, before, to: before + from[axis] + after, may_end_beyond: after > 0 }
            });
            pad(t, &pads, zero.clone(), b)
        };
        let (px, py) = (padded(x, b), padded(y, b));
        let (inside, ends) = (b.shape(py).to_vec(), zero.clone());
        let sum = b.reduce(&shape, &[from[1], p.kernel, p.kernel], Combine::Sum, |b, i, r| {
            let here = [0, 1].map(|k| i[k + 2].clone() * p.stride1 + p.reach + r[k + 1].clone());
            let step = [i[1].clone().floor_div(side), i[1].clone().floor_mod(side)];
            let there = [0, 1].map(|k| here[k].clone() + (step[k].clone() - p.radius()) * p.stride2);
            let read = |t, at: &[Scalar; 2]| {
                let within = [0, 1].into_iter().fold(Scalar::bool(true), |all, k| {
                    let bound = at[k].clone().lt(Scalar::index(inside[k + 2]));
                    all.and(at[k].clone().ge(Scalar::index(0))).and(bound)
                });
                let value = b.read(t, [i[0].clone(), r[0].clone(), at[0].clone(), at[1].clone()]);
                Scalar::select(within, value, ends.clone())
            };
            let (a, d) = (read(px, &here), read(py, &there));
            if p.multiply { a * d } else { Scalar::unary(UnOp::Abs, a - d) }
        });
        let count = Scalar::float((p.kernel * p.kernel * from[1]) as f64, dtype);
        Ok(b.map(&shape, |b, i| b.read(sum, i.iter().cloned()) / count).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |kernel: i64, reach: i64, strides: [i64; 2], padding: &[i64], multiply: bool| Sample {
            attrs: vec![
                ("kernel_size", kernel.into()),
                ("max_displacement", reach.into()),
                ("stride1", strides[0].into()),
                ("stride2", strides[1].into()),
                ("padding", padding.into()),
                ("is_multiply", multiply.into()),
            ],
            args: vec![Type::tensor(&[2, 3, 5, 6], DType::F32); 2],
        };
        vec![
            call(1, 1, [1, 1], &[0, 0], true),
            call(3, 1, [2, 1], &[2, 2], true),
            call(3, 2, [1, 2], &[2, 2, 3, 3], false),
        ]
    }
}
