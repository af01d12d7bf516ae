//! Sorting along an axis. Sorts are stable: equals keep their order. NaN counts as greater than every number.

use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Nest, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        order::Lines,
        transform::reshape_index,
        util::{axis_of, elements, field, lowered_shapes, t, tensor_arg, value_shapes, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Sorted {
        name: "sort",
        doc: "data with its elements along axis in ascending (or descending) order.",
        kind: Kind::Sort,
    },
    &Sorted {
        name: "argsort",
        doc: "Along axis the places, as dtype (int32 where none is given), at which data has its elements in ascending (or
        descending) order; of equals the first comes first.",
        kind: Kind::Argsort,
    },
    &Sorted {
        name: "topk",
        doc: "The k greatest (or least, with is_ascend) elements of data along axis in order, their places as dtype (int32
        where none is given), or a tuple of both, as ret_type says. A k below 1 means all. C1: k is no more than the extent.",
        kind: Kind::Topk,
    },
];

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Kind {
    Sort,
    Argsort,
    Topk,
}

/// Up to so many elements of a line are found by insertion, whatever its length. Steps grow with the square of how many, and a little with the
/// length; those of sorting it all with the length.
const MOST_INSERTED: i64 = 128;

/// Where a line has so many more elements than are wanted, what is not among these is skipped by vectors.
const ENOUGH_TO_SKIP: i64 = 256;

/// `sort`, `argsort` or `topk`.
#[derive(Debug)]
struct Sorted {
    name: &'static str,
    doc: &'static str,
    kind: Kind,
}

/// For each line of `values` along an axis of extent `n`, the places in sorted order: element `(line * n + k)` is the place
/// of the line's k-th element. A line's elements lie `inner` apart.
///
/// NaN, which alone differs from itself, counts as greater than every number.
fn orders<T: PartialOrd>(values: &[T], n: usize, inner: usize, ascend: bool) -> Vec<usize> {
    let lines = values.len().checked_div(n).unwrap_or(0);
    let mut all = Vec::with_capacity(values.len());
    for line in 0..lines {
        let at = |k: usize| &values[(line / inner * n + k) * inner + line % inner];
        let mut places: Vec<usize> = (0..n).collect();
        places.sort_by(|&a, &b| {
            let nan = |k: usize| at(k) != at(k);
            let order = at(a).partial_cmp(at(b)).unwrap_or_else(|| nan(a).cmp(&nan(b)));
            if ascend { order } else { order.reverse() }
        });
        all.extend(places);
    }
    all
}

impl Sorted {
    fn axis(attrs: &Attrs, rank: usize) -> Result<usize, OpError> {
        axis_of(attrs.int("axis"), rank)
    }

    fn count(&self, attrs: &Attrs, extent: Dim) -> Result<Dim, OpError> {
        if self.kind != Kind::Topk {
            return Ok(extent);
        }
        let Some(k) = attrs.opt_int("k") else { return Err(OpError("`k` is not set".into())) };
        if k < 1 {
            return Ok(extent);
        }
        op_ensure!(extent.known().is_none_or(|n| k <= n), "C1: `k` is {k}, but the axis has {extent} elements");
        Ok(Dim::Known(k))
    }

    /// Whether values and places are wanted.
    fn wants(&self, attrs: &Attrs) -> (bool, bool) {
        match self.kind {
            Kind::Sort => (true, false),
            Kind::Argsort => (false, true),
            Kind::Topk => (attrs.str("ret_type") != "indices", attrs.str("ret_type") != "values"),
        }
    }

    /// The results that are wanted, as the operator gives them.
    fn results<T>(&self, attrs: &Attrs, values: T, places: T, tuple: impl FnOnce(Vec<T>) -> T) -> T {
        match self.wants(attrs) {
            (true, false) => values,
            (false, _) => places,
            (true, true) => tuple(vec![values, places]),
        }
    }
}

impl Op for Sorted {
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
        const AXIS: AttrField = field("axis", AttrKind::Int, AttrDefault::Int(-1));
        const DTYPE: AttrField = field("dtype", AttrKind::DType, AttrDefault::None);
        const SORT: &[AttrField] = &[AXIS, field("is_ascend", AttrKind::Bool, AttrDefault::Bool(true)), DTYPE];
        const TOPK: &[AttrField] = &[
            field("k", AttrKind::Int, AttrDefault::Required),
            AXIS,
            field("ret_type", AttrKind::OneOf(&["both", "values", "indices"]), AttrDefault::Str("both")),
            field("is_ascend", AttrKind::Bool, AttrDefault::Bool(false)),
            DTYPE,
        ];
        if self.kind == Kind::Topk { TOPK } else { SORT }
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.dtype != DType::Bool, "`data` is {x}, but the operator takes numbers only");
        let axis = Sorted::axis(attrs, x.rank())?;
        let mut shape = x.shape.to_vec();
        shape[axis] = self.count(attrs, shape[axis])?;
        let values = TensorType::of(shape.iter().copied(), x.dtype);
        let places = TensorType::of(shape, attrs.opt_dtype("dtype").unwrap_or(DType::I32));
        Ok(self.results(attrs, values.into(), places.into(), Type::tuple))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let axis = Sorted::axis(attrs, x.shape().len())?;
        let (n, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
        let ascend = attrs.bool("is_ascend");
        let order = match x.dtype() {
            DType::U64 => orders(x.as_slice::<u64>(), n, inner, ascend),
            d if d.is_float() => orders(&x.to_f64_vec(), n, inner, ascend),
            _ => orders(&x.to_i64_vec(), n, inner, ascend),
        };
        let shape = &value_shapes(self, attrs, args)?[0];
        let k = shape[axis];
        // The result's element i lies on a line, at a place in sorted order.
        let place = |i: usize| order[(i / (inner * k) * inner + i % inner) * n + i / inner % k];
        let values = x.pick(shape, |i| Some((i / (inner * k) * n + place(i)) * inner + i % inner));
        let dtype = attrs.opt_dtype("dtype").unwrap_or(DType::I32);
        let places = Tensor::from_i64_fn(dtype, shape, |i| place(i) as i64);
        Ok(self.results(attrs, values.into(), places.into(), Value::Tuple))
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let axis = Sorted::axis(attrs, rank).ok();
        AxisMap(vec![(0..rank).map(|k| if Some(k) == axis { AxisRole::Opaque } else { AxisRole::Maps(k) }).collect()])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let x = args[0].as_tensor();
        let axis = x.and_then(|x| Some(x.shape[Sorted::axis(attrs, x.rank()).ok()?].known()? as f64));
        let passes = axis.unwrap_or(2.0).max(2.0).log2();
        Work { flops: 4.0 * elements(&args[0]) * passes, ..work_per_element(1.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let from = b.shape(x).to_vec();
        let axis = Sorted::axis(attrs, from.len())?;
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let dtype = attrs.opt_dtype("dtype").unwrap_or(DType::I32);
        let (wants_values, wants_places) = self.wants(attrs);
        // Lines by the other axes.
        let others: Vec<i64> = (0..from.len()).filter(|&k| k != axis).map(|k| from[k]).collect();
        let count = others.iter().product();
        let lines =
            Lines { count, len: from[axis], dtype: b.dtype(x), ascend: attrs.bool("is_ascend"), places: wants_places };
        let all_sizes = b.is_for_all_sizes();
        let sorted = b.routine(|r| {
            let key = |r: &Nest<'_>, line: &Scalar, k: &Scalar| {
                let mut index = reshape_index(&others, &[count], std::slice::from_ref(line), all_sizes);
                index.insert(axis, k.clone());
                r.read(x, index)
            };
            match attrs.get("k").and_then(AttrValue::as_int) {
                Some(k) if k >= 1 && (k <= MOST_INSERTED || !all_sizes && k.saturating_mul(k) <= 8 * from[axis]) => {
                    // Places of one line lie side by side; of extents that change, whether there are enough of them shows later.
                    let side_by_side = axis + 1 == from.len() && (all_sizes || from[axis] - k >= ENOUGH_TO_SKIP);
                    lines.first(r, k, side_by_side, key)
                }
                _ => lines.sort(r, key),
            }
        });
        let at = |i: &[Scalar]| {
            let other: Vec<Scalar> = (0..i.len()).filter(|&k| k != axis).map(|k| i[k].clone()).collect();
            let line = reshape_index(&[count], &others, &other, all_sizes).remove(0);
            [line, i[axis].clone()]
        };
        let mut out: Vec<TensorId> = Vec::new();
        if wants_values {
            out.push(b.map(&shape, |b, i| b.read(sorted.keys, at(i))));
        }
        if let Some(places) = sorted.places {
            out.push(b.map(&shape, |b, i| b.read(places, at(i)).cast(dtype)));
        }
        Ok(match &out[..] {
            [one] => Operand::Tensor(*one),
            _ => Operand::Tuple(out.into_iter().map(Operand::Tensor).collect()),
        })
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |attrs, s: &[i64], d| Sample { attrs, args: vec![t(s, d)] };
        match self.kind {
            Kind::Topk => vec![
                call(vec![("k", 2.into())], &[2, 4], DType::F32),
                call(vec![("k", 0.into()), ("axis", 0.into()), ("ret_type", "values".into())], &[3, 2], DType::I32),
                call(
                    vec![
                        ("k", 3.into()),
                        ("ret_type", "indices".into()),
                        ("is_ascend", true.into()),
                        ("dtype", DType::I64.into()),
                    ],
                    &[5],
                    DType::I8,
                ),
                call(vec![("k", 5.into())], &[3, 300], DType::F16),
                call(vec![("k", 150.into()), ("axis", 0.into()), ("is_ascend", true.into())], &[3000, 2], DType::F32),
                call(vec![("k", 140.into())], &[2, 200], DType::I32),
            ],
            _ => vec![
                call(vec![], &[2, 4], DType::F32),
                call(vec![], &[300], DType::F32),
                call(vec![("axis", 1.into())], &[20, 70, 2], DType::F16),
                call(vec![("is_ascend", false.into())], &[1, 33], DType::I16),
                call(vec![], &[3, 0], DType::F32),
                call(vec![("axis", 0.into()), ("is_ascend", false.into())], &[4, 2], DType::I32),
                call(vec![("axis", 1.into()), ("dtype", DType::I64.into())], &[2, 3, 2], DType::U8),
            ],
        }
    }
}
