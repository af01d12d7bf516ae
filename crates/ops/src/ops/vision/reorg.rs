//! The reordering of YOLO networks.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{field, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&YoloReorg];

/// `vision.yolo_reorg`.
#[derive(Debug)]
struct YoloReorg;

impl Op for YoloReorg {
    op_head!(
        "vision.yolo_reorg",
        "With s the stride and data of shape (batch, c, h, w): each batch's elements read as an image of c / s^2 channels and s * h
        by s * w elements; element (k, j, i) of (c, h, w) is element (k mod (c / s^2), j * s + q / s, i * s + q mod s) of that, where
        q is k divided by c / s^2; and the result is read as of shape (batch, c * s^2, h / s, w / s).
        C1: data has four axes. C2: stride is positive, its square divides c, and it divides h and w.",
        ["data"],
        [field("stride", AttrKind::Int, AttrDefault::Int(1))],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, s) = (tensor_arg(args, 0, "data")?, attrs.int("stride"));
        op_ensure!(x.rank() == 4, "C1: `data` is {x}, but should have four axes");
        op_ensure!(s > 0, "C2: `stride` is {s}, but should be positive");
        let divides = |k: usize, by: i64| x.shape[k].known().is_none_or(|n| n % by == 0);
        op_ensure!(
            divides(1, s.saturating_mul(s)) && divides(2, s) && divides(3, s),
            "C2: `data` is {x}: a stride of {s} divides its height and width, and its square its channels, with remainder"
        );
        let scaled = |k: usize, f: &dyn Fn(i64) -> i64| x.shape[k].known().map_or(x.shape[k], |n| Dim::Known(f(n)));
        let shape = [x.shape[0], scaled(1, &|c| c * s * s), scaled(2, &|n| n / s), scaled(3, &|n| n / s)];
        Ok(TensorType::of(shape, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, s) = (args[0].tensor(), attrs.int("stride") as usize);
        let [n, c, h, w] = [0, 1, 2, 3].map(|k| x.shape()[k]);
        let few = (c / (s * s)).max(1);
        Ok(x.pick(&[n, c * s * s, h / s, w / s], |flat| {
            let (i, j, k, b) = (flat % w, flat / w % h, flat / (w * h) % c, flat / (w * h * c));
            let q = k / few;
            Some(((b * few + k % few) * h * s + j * s + q / s) * w * s + i * s + q % s)
        })
        .into())
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap(vec![vec![AxisRole::Maps(0), AxisRole::Opaque, AxisRole::Opaque, AxisRole::Opaque]])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, s) = (args[0].tensor(), attrs.int("stride"));
        let [n, c, h, w] = [0, 1, 2, 3].map(|k| b.shape(x)[k]);
        let few = (c / (s * s)).max(1);
        let digits = |flat: Scalar, over: [i64; 3]| {
            let mut parts = Vec::new();
            let mut rest = flat;
            for n in over.into_iter().rev() {
                parts.push(rest.clone().floor_mod(n.max(1)));
                rest = rest.floor_div(n.max(1));
            }
            parts.reverse();
            parts
        };
        let out = b.map(&[n, c * s * s, h / s, w / s], |b, o| {
            let flat = (o[1].clone() * (h / s) + o[2].clone()) * (w / s) + o[3].clone();
            let p = digits(flat, [c, h, w]);
            let (k, j, i) = (p[0].clone(), p[1].clone(), p[2].clone());
            let q = k.clone().floor_div(few);
            let row = k.floor_mod(few) * (h * s) + j * s + q.clone().floor_div(s);
            let from = digits(row * (w * s) + i * s + q.floor_mod(s), [c, h, w]);
            b.read(x, std::iter::once(o[0].clone()).chain(from))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |s: i64, shape: &[i64], d| sample([("stride", s.into())], vec![t(shape, d)]);
        vec![
            call(2, &[1, 4, 6, 6], DType::F32),
            call(2, &[2, 8, 4, 2], DType::I8),
            call(1, &[2, 3, 2, 2], DType::F32),
            call(3, &[1, 9, 3, 6], DType::F32),
        ]
    }
}
