//! Running sums and products.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        transform::reshape_index,
        util::{axis_of, elements, field, lowered_shapes, t, tensor_arg, value_shapes, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Scan {
        name: "cumsum",
        doc: "out[k] = data[0] + … + data[k] along axis, or of the flattened data without axis, summed as dtype (data's, where
        none is given); with exclusive, without data[k].",
        product: false,
    },
    &Scan {
        name: "cumprod",
        doc: "out[k] = data[0] * … * data[k] along axis, or of the flattened data without axis, multiplied as dtype (data's,
        where none is given); with exclusive, without data[k].",
        product: true,
    },
];

/// `cumsum` or `cumprod`.
#[derive(Debug)]
struct Scan {
    name: &'static str,
    doc: &'static str,
    product: bool,
}

impl Op for Scan {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            field("axis", AttrKind::Int, AttrDefault::None),
            field("dtype", AttrKind::DType, AttrDefault::None),
            field("exclusive", AttrKind::Bool, AttrDefault::Bool(false)),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let dtype = attrs.opt_dtype("dtype").unwrap_or(x.dtype);
        op_ensure!(dtype != DType::Bool, "`data` is {x}, so `dtype` should say which numbers to compute with");
        let shape = match attrs.opt_int("axis") {
            Some(axis) => {
                axis_of(axis, x.rank())?;
                x.shape.to_vec()
            }
            None => vec![x.elements().map_or(Dim::Any, Dim::Known)],
        };
        Ok(TensorType::of(shape, dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let shape = &value_shapes(self, attrs, args)?[0];
        let dtype = attrs.opt_dtype("dtype").unwrap_or(x.dtype());
        let axis = attrs.opt_int("axis").map_or(Ok(0), |a| axis_of(a, shape.len()))?;
        let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let exclusive = attrs.bool("exclusive");
        let starts = |i: usize| (i / inner).is_multiple_of(n);
        if dtype.is_float() {
            let xs = x.to_f64_vec();
            let mut sums = vec![0.0; xs.len()];
            let one = if self.product { 1.0 } else { 0.0 };
            for i in 0..xs.len() {
                let so_far = if starts(i) { one } else { sums[i - inner] };
                sums[i] = if self.product { so_far * xs[i] } else { so_far + xs[i] };
            }
            let out = |i: usize| match (exclusive, starts(i)) {
                (false, _) => sums[i],
                (true, true) => one,
                (true, false) => sums[i - inner],
            };
            return Ok(Tensor::from_f64_fn(dtype, shape, out).into());
        }
        let xs = x.to_i64_vec();
        let mut sums = vec![0i64; xs.len()];
        let one = self.product as i64;
        for i in 0..xs.len() {
            let so_far = if starts(i) { one } else { sums[i - inner] };
            sums[i] = if self.product { so_far.wrapping_mul(xs[i]) } else { so_far.wrapping_add(xs[i]) };
        }
        let out = |i: usize| match (exclusive, starts(i)) {
            (false, _) => sums[i],
            (true, true) => one,
            (true, false) => sums[i - inner],
        };
        Ok(Tensor::from_i64_fn(dtype, shape, out).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let axis = attrs.opt_int("axis").and_then(|a| axis_of(a, rank).ok());
        let role = |k| if axis.is_none() || Some(k) == axis { AxisRole::Opaque } else { AxisRole::Maps(k) };
        AxisMap(vec![(0..rank).map(role).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: elements(out), ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let from = b.shape(x).to_vec();
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let dtype = attrs.opt_dtype("dtype").unwrap_or(b.dtype(x));
        let axis = attrs.opt_int("axis").map_or(Ok(0), |a| axis_of(a, shape.len()))?;
        let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        // Lines side by side are summed together, as memory has them.
        const TILE: i64 = 64;
        let view = [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()];
        let exclusive = attrs.bool("exclusive");
        let all_sizes = b.is_for_all_sizes();
        let out = b.routine(|r| {
            let out = r.output(&shape, dtype);
            r.parallel_tiles(&view[..1], view[2], TILE.min(view[2]).max(1), |r, outer, first, width| {
                let sums = r.local(&[width], wide);
                r.for_(width, |r, t| r.store(sums, [t], Scalar::int(self.product as i64, wide)));
                r.for_(view[1], |r, k| {
                    r.for_(width, |r, t| {
                        let place = [outer[0].clone(), k, r.let_index(first + t.clone(), view[2])];
                        let before = r.let_(r.read(sums, [t.clone()]));
                        let x = r.read(x, reshape_index(&from, &view, &place, all_sizes)).cast(wide);
                        let op = if self.product { BinOp::Mul } else { BinOp::Add };
                        let after = r.let_(Scalar::binary(op, before.clone(), x));
                        r.store(sums, [t], after.clone());
                        let value = if exclusive { before } else { after };
                        r.store(out, reshape_index(&shape, &view, &place, all_sizes), value.cast(dtype));
                    });
                });
            });
            out
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |attrs, s: &[i64], d| Sample { attrs, args: vec![t(s, d)] };
        vec![
            call(vec![], &[2, 3], DType::F32),
            call(vec![("axis", 1.into())], &[2, 3, 2], DType::I8),
            call(
                vec![("axis", 0.into()), ("exclusive", true.into()), ("dtype", DType::I64.into())],
                &[4, 2],
                DType::I32,
            ),
            call(vec![("axis", (-1).into()), ("dtype", DType::I32.into())], &[2, 4], DType::Bool),
            call(vec![("axis", 1.into())], &[2, 3, 5, 27], DType::F16),
            call(vec![("axis", 0.into()), ("dtype", DType::F32.into())], &[0, 2], DType::U64),
        ]
    }
}
