//! Losses of classifiers.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{elements, field, may_equal, op_head, opaque_axes, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &CrossEntropy {
        name: "nn.cross_entropy",
        doc: "-(sum of log(predictions) * targets) / batch. C1: both have two axes of the same extents. C2: predictions are
        floats.",
        log: true,
    },
    &CrossEntropy {
        name: "nn.cross_entropy_with_logits",
        doc: "-(sum of predictions * targets) / batch. C1: both have two axes of the same extents. C2: predictions are floats.",
        log: false,
    },
    &NllLoss,
];

/// `nn.cross_entropy`, or the one whose predictions are logarithms already.
#[derive(Debug)]
struct CrossEntropy {
    name: &'static str,
    doc: &'static str,
    log: bool,
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["predictions", "targets"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        &[]
    }
    fn class(&self) -> Class {
        Class::Reduce
    }
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, y) = (tensor_arg(args, 0, "predictions")?, tensor_arg(args, 1, "targets")?);
        op_ensure!(
            x.rank() == 2 && y.rank() == 2 && x.shape.iter().zip(y.shape.iter()).all(|(a, b)| may_equal(*a, *b)),
            "C1: `predictions` is {x} and `targets` {y}"
        );
        op_ensure!(x.dtype.is_float(), "C2: `predictions` is {x}, but should be floats");
        Ok(Type::tensor(&[], x.dtype))
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, y) = (args[0].tensor(), args[1].tensor());
        let log = |v: f64| if self.log { v.ln() } else { v };
        let sum: f64 = x.to_f64_vec().into_iter().zip(y.to_f64_vec()).map(|(x, y)| log(x) * y).sum();
        Ok(Tensor::from_f64_fn(x.dtype(), &[], |_| -sum / x.shape()[0] as f64).into())
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap(vec![vec![AxisRole::Reduced; 2]; 2])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let per_element = if self.log { 22.0 } else { 2.0 };
        Work { flops: per_element * elements(&args[0]), ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, y) = (args[0].tensor(), args[1].tensor());
        let (shape, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let sum = b.reduce(&[], &shape, Combine::Sum, |b, _, r| {
            let value = b.read(x, r.iter().cloned());
            let value = if self.log { Scalar::unary(UnOp::Log, value) } else { value };
            value * b.read(y, r.iter().cloned()).cast(dtype)
        });
        let batch = Scalar::float(shape[0] as f64, dtype);
        Ok(b.map(&[], |b, _| -b.read(sum, []) / batch).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |x, y| Sample { attrs: vec![], args: vec![t(&[3, 4], x), t(&[3, 4], y)] };
        vec![call(DType::F32, DType::F32), call(DType::F64, DType::I32)]
    }
}

/// `nn.nll_loss`.
#[derive(Debug)]
struct NllLoss;

/// The axis of the predictions that runs over classes.
fn class_axis(rank: usize) -> usize {
    if rank == 1 { 0 } else { 1 }
}

impl NllLoss {
    /// For each target's index its loss, or its weight.
    fn term(args: [TensorId; 3], ignored: i64, weight_only: bool, b: &Builder, i: &[Scalar]) -> Scalar {
        let [predictions, targets, weights] = args;
        let (dtype, classes) = (b.dtype(weights), b.shape(weights)[0]);
        let class = b.read(targets, i.iter().cloned()).cast(DType::I64);
        let counts = Scalar::binary(BinOp::Ne, class.clone(), Scalar::index(ignored))
            .and(class.clone().ge(Scalar::index(0)))
            .and(class.clone().lt(Scalar::index(classes)));
        let weight = b.read(weights, [class.clone()]);
        let mut index = i.to_vec();
        index.insert(class_axis(i.len() + 1), class);
        let term = if weight_only { weight } else { -b.read(predictions, index) * weight };
        Scalar::select(counts, term, Scalar::float(0.0, dtype))
    }
}

impl Op for NllLoss {
    op_head!(
        "nn.nll_loss",
        "loss[n, x..] = -predictions[n, c, x..] * weights[c] for the class c = targets[n, x..], 0 where c is ignore_index;
        of that the sum, the sum divided by the sum of the weights that count (mean), or all of it, as reduction says.
        C1: predictions have the axes of targets and one more for classes: the second, or the only one.
        C2: weights have one axis of as many elements as there are classes. C3: predictions and weights are of one float type.
        C4: targets are integers.",
        ["predictions", "targets", "weights"],
        [
            field("reduction", AttrKind::OneOf(&["none", "mean", "sum"]), AttrDefault::Str("mean")),
            field("ignore_index", AttrKind::Int, AttrDefault::Required)
        ],
        Reduce
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, y) = (tensor_arg(args, 0, "predictions")?, tensor_arg(args, 1, "targets")?);
        let w = tensor_arg(args, 2, "weights")?;
        op_ensure!(x.rank() == y.rank() + 1, "C1: `predictions` is {x} and `targets` {y}");
        let classes = class_axis(x.rank());
        let mut rest = x.shape.to_vec();
        rest.remove(classes);
        op_ensure!(
            rest.iter().zip(y.shape.iter()).all(|(a, b)| may_equal(*a, *b)),
            "C1: `predictions` is {x} and `targets` {y}"
        );
        op_ensure!(
            w.rank() == 1 && may_equal(w.shape[0], x.shape[classes]),
            "C2: `predictions` is {x} and `weights` {w}"
        );
        op_ensure!(
            x.dtype == w.dtype && x.dtype.is_float(),
            "C3: `predictions` is {x} and `weights` {w}, but both should be of one float type"
        );
        op_ensure!(y.dtype.is_int(), "C4: `targets` is {y}, but should be integers");
        let shape: &[Dim] = if attrs.str("reduction") == "none" { &y.shape } else { &[] };
        Ok(TensorType::of(shape.iter().copied(), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, y, w] = [0, 1, 2].map(|k| args[k].tensor());
        let (ignored, classes) = (attrs.int("ignore_index"), w.len());
        let strides = row_major_strides(x.shape());
        let class = class_axis(x.shape().len());
        let inner: usize = x.shape()[class + 1..].iter().product();
        let mut losses = vec![0.0; y.len()];
        let mut weight = 0.0;
        for (i, loss) in losses.iter_mut().enumerate() {
            let c = y.get_i64(i);
            if c == ignored {
                continue;
            }
            op_ensure!((0..classes as i64).contains(&c), "class {c} is not one of {classes}");
            let c = c as usize;
            let outer = if class == 0 { 0 } else { i / inner * strides[0] };
            *loss = -x.get_f64(outer + c * strides[class] + i % inner) * w.get_f64(c);
            weight += w.get_f64(c);
        }
        let total: f64 = losses.iter().sum();
        Ok(match attrs.str("reduction") {
            "none" => Tensor::from_f64_fn(x.dtype(), y.shape(), |i| losses[i]),
            "sum" => Tensor::from_f64_fn(x.dtype(), &[], |_| total),
            _ => Tensor::from_f64_fn(x.dtype(), &[], |_| total / weight),
        }
        .into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: 3.0 * elements(&args[1]), ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let all = [0, 1, 2].map(|k| args[k].tensor());
        let (shape, ignored) = (b.shape(all[1]).to_vec(), attrs.int("ignore_index"));
        let reduction = attrs.str("reduction");
        if reduction == "none" {
            return Ok(b.map(&shape, |b, i| NllLoss::term(all, ignored, false, b, i)).into());
        }
        let mut sum =
            |weights| b.reduce(&[], &shape, Combine::Sum, |b, _, r| NllLoss::term(all, ignored, weights, b, r));
        let losses = sum(false);
        if reduction == "sum" {
            return Ok(losses.into());
        }
        let weights = sum(true);
        Ok(b.map(&[], |b, _| b.read(losses, []) / b.read(weights, [])).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |reduction: &str, ignored: i64, x: &[i64], y: Type, d| Sample {
            attrs: vec![("reduction", reduction.into()), ("ignore_index", ignored.into())],
            args: vec![t(x, d), y, t(&[x[class_axis(x.len())]], d)],
        };
        vec![
            call("mean", -100, &[5, 4], t(&[5], DType::I32), DType::F32),
            call("sum", 2, &[3, 4, 2], t(&[3, 2], DType::I64), DType::F32),
            call("none", 1, &[2, 5, 2, 3], t(&[2, 2, 3], DType::I32), DType::F64),
            call("mean", -1, &[4], t(&[], DType::U8), DType::F32),
        ]
    }
}
