//! Attention: softmax(Q K^T * scale + mask) V as one operator, of which no array of scores reaches memory.

use super::{
    norm::rounded,
    numbers::{dot, sum_products},
};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        util::{broadcast_sources, bytes, field, may_equal, op_head, opaque_axes, sample, t, tensor_arg},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Attention];

/// `nn.attention`.
#[derive(Debug)]
struct Attention;

const fn layout(name: &'static str) -> AttrField {
    field(name, AttrKind::Str, AttrDefault::Str(LETTERS))
}

/// Batch, head, place in the sequence, depth.
const LETTERS: &str = "BHSD";

/// Where each of the letters stands in a layout.
fn places(attrs: &Attrs, name: &str) -> Result<[usize; 4], OpError> {
    let given = attrs.str(name);
    let at = |letter: char| given.find(letter).filter(|_| given.chars().count() == LETTERS.len());
    let places: Option<Vec<usize>> = LETTERS.chars().map(at).collect();
    let refused = || OpError(format!("C1: `{name}` is {given}, but should be the letters of BHSD in some order"));
    places.and_then(|p| p.try_into().ok()).ok_or_else(refused)
}

/// What scores are where a mask of bool holds.
fn masked(attrs: &Attrs) -> Option<f64> {
    attrs.get("masked").and_then(AttrValue::as_float)
}

/// The extents of a tensor in the order BHSD.
fn ordered<T: Copy>(shape: &[T], places: [usize; 4]) -> [T; 4] {
    places.map(|p| shape[p])
}

/// Things in the order BHSD as a layout has them.
fn arranged<T: Clone>(things: [T; 4], places: [usize; 4]) -> Vec<T> {
    (0..4).map(|p| things[places.iter().position(|&q| q == p).expect("a layout has all letters")].clone()).collect()
}

/// A call's extents: batch, heads, queries, keys, depth of keys, depth of values.
fn extents<T: Copy>(attrs: &Attrs, [q, k, v]: [&[T]; 3]) -> Result<[T; 6], OpError> {
    let q = ordered(q, places(attrs, "query_layout")?);
    let k = ordered(k, places(attrs, "key_layout")?);
    let v = ordered(v, places(attrs, "value_layout")?);
    Ok([q[0], q[1], q[2], k[2], q[3], v[3]])
}

/// A tensor's elements in the order BHSD.
fn in_order(x: &Tensor, places: [usize; 4]) -> Vec<f64> {
    let strides = row_major_strides(x.shape());
    let (n, step) = (ordered(x.shape(), places), ordered(&strides, places));
    let mut values = Vec::with_capacity(x.len());
    for b in 0..n[0] {
        for h in 0..n[1] {
            for s in 0..n[2] {
                let row = b * step[0] + h * step[1] + s * step[2];
                values.extend((0..n[3]).map(|d| x.get_f64(row + d * step[3])));
            }
        }
    }
    values
}

/// An index of a tensor that is broadcast.
fn clamped<'a>(b: &'a Builder, t: TensorId, index: [&'a Scalar; 4]) -> impl Iterator<Item = Scalar> + 'a {
    b.shape(t).iter().zip(index).map(|(&n, i)| if b.stands_still(n, i) { Scalar::index(0) } else { i.clone() })
}

impl Op for Attention {
    op_head!(
        "nn.attention",
        "out[b, h, s, d] = sum over t of w[b, h, s, t] * value[b, h, t, d], where w is softmax over t of
        scale * (sum over e of query[b, h, s, e] * key[b, h, t, e]) + mask[b, h, s, t]; or, with `masked` and a mask of bool, that number where the mask
        holds and else what stands before it. The layouts say in which order tensors have
        batch (B), heads (H), places in the sequence (S) and depth (D); the mask is broadcast to batch, heads, queries, keys.
        C1: all have four axes, and layouts hold each of the letters BHSD once. C2: all are of the same floats, but for a mask of bool where there is `masked`. C3: query, key and
        value have the same batch and heads, query and key the same depth, key and value as many places. C4: each of the
        mask's extents is 1 or that of the scores.",
        ["query", "key", "value", "mask"],
        [
            field("scale", AttrKind::Float, AttrDefault::Float(1.0)),
            field("masked", AttrKind::Float, AttrDefault::None),
            layout("query_layout"),
            layout("key_layout"),
            layout("value_layout"),
            layout("out_layout"),
        ],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let names = self.inputs();
        let ts: Vec<&TensorType> = (0..4).map(|i| tensor_arg(args, i, names[i])).collect::<Result<_, _>>()?;
        let chooses = masked(attrs).is_some();
        for (x, name) in ts.iter().zip(names) {
            op_ensure!(x.rank() == 4, "C1: `{name}` is {x}, but should have four axes");
            let same = x.dtype.is_float() && x.dtype == ts[0].dtype;
            let fits = if *name == "mask" && chooses { x.dtype == DType::Bool } else { same };
            op_ensure!(
                fits,
                "C2: `{name}` is {x} and `query` {}, but all should be of the same floats, and the mask of bool where there is `masked`",
                ts[0]
            );
        }
        let shape = |i: usize| -> &[Dim] { &ts[i].shape };
        let [batch, heads, queries, keys, _, depth] = extents(attrs, [shape(0), shape(1), shape(2)])?;
        let q = ordered(shape(0), places(attrs, "query_layout")?);
        let k = ordered(shape(1), places(attrs, "key_layout")?);
        let v = ordered(shape(2), places(attrs, "value_layout")?);
        let fits = (0..2).all(|i| may_equal(q[i], k[i]) && may_equal(q[i], v[i]))
            && may_equal(q[3], k[3])
            && may_equal(k[2], v[2]);
        op_ensure!(fits, "C3: `query` is {}, `key` {} and `value` {}: their extents differ", ts[0], ts[1], ts[2]);
        let scores = [batch, heads, queries, keys];
        let one = Dim::Known(1);
        let broadcasts = ts[3].shape.iter().zip(scores).all(|(&m, s)| m == one || may_equal(m, s));
        op_ensure!(broadcasts, "C4: `mask` is {}, which does not broadcast to the scores", ts[3]);
        let out = arranged([batch, heads, queries, depth], places(attrs, "out_layout")?);
        Ok(TensorType::of(out, ts[0].dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [q, k, v, m] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let [batch, heads, queries, keys, inner, depth] = extents(attrs, [q.shape(), k.shape(), v.shape()])?;
        let (q, k) = (in_order(q, places(attrs, "query_layout")?), in_order(k, places(attrs, "key_layout")?));
        let v = in_order(v, places(attrs, "value_layout")?);
        let to = places(attrs, "out_layout")?;
        let shape = arranged([batch, heads, queries, depth], to);
        let masks = broadcast_sources(m.shape(), &[batch, heads, queries, keys]);
        let mut out = vec![0.0; shape.iter().product()];
        let dtype = args[2].tensor().dtype();
        for row in 0..batch * heads * queries {
            let head = row / queries;
            let score = |t: usize| {
                let sum = dot(&q[row * inner..][..inner], &k[(head * keys + t) * inner..][..inner]);
                // Scores are of the element type: very large ones are infinite, or no different from each other.
                let scaled = rounded(rounded(sum, dtype) * attrs.float("scale"), dtype);
                let mask = m.get_f64(masks.at(row * keys + t));
                match masked(attrs) {
                    Some(masked) if mask != 0.0 => rounded(masked, dtype),
                    Some(_) => scaled,
                    None => rounded(scaled + mask, dtype),
                }
            };
            let scores: Vec<f64> = (0..keys).map(score).collect();
            let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = scores.iter().map(|x| (x - greatest).exp()).collect();
            let total: f64 = powers.iter().sum();
            let mut sums = vec![0.0; depth];
            for (t, power) in powers.iter().enumerate() {
                let value = &v[(head * keys + t) * depth..][..depth];
                sums.iter_mut().zip(value).for_each(|(sum, v)| *sum += power * v);
            }
            for (d, sum) in sums.iter().enumerate() {
                let index = arranged([head / heads, head % heads, row % queries, d], to);
                out[index.iter().zip(&shape).fold(0, |at, (&i, &n)| at * n + i)] = sum / total;
            }
        }
        Ok(Tensor::from_f64_fn(dtype, &shape, |i| out[i]).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let shape = |i: usize| args[i].as_tensor().map(|t| &t.shape[..]).unwrap_or_default();
        let known = |d: Dim| d.known().unwrap_or(1) as f64;
        // The two products, and softmax.
        let flops = extents(attrs, [shape(0), shape(1), shape(2)]).map_or(0.0, |[b, h, s, t, e, d]| {
            known(b) * known(h) * known(s) * known(t) * (2.0 * known(e) + 2.0 * known(d) + 14.0)
        });
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [q, k, v, m] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let given = b.dtype(q);
        // Scores of two bytes would not do: exp makes much of little differences.
        let dtype = if given.bytes() == 2 { DType::F32 } else { given };
        let [batch, heads, queries, keys, inner, depth] = extents(attrs, [b.shape(q), b.shape(k), b.shape(v)])?;
        let [of_q, of_k, of_v, to] = [
            places(attrs, "query_layout")?,
            places(attrs, "key_layout")?,
            places(attrs, "value_layout")?,
            places(attrs, "out_layout")?,
        ];
        let products = sum_products(b, &[batch, heads, queries, keys], &[inner], dtype, |b, i, r| {
            let at = |s: &Scalar| [i[0].clone(), i[1].clone(), s.clone(), r[0].clone()];
            (b.read(q, arranged(at(&i[2]), of_q)), b.read(k, arranged(at(&i[3]), of_k)))
        });
        let scale = attrs.float("scale");
        let scores = b.map(&[batch, heads, queries, keys], |b, i| {
            let product = b.read(products, i.iter().cloned());
            let scaled = if scale == 1.0 { product } else { product * Scalar::float(scale, dtype) };
            let mask = b.read(m, clamped(b, m, [&i[0], &i[1], &i[2], &i[3]]));
            match masked(attrs) {
                Some(masked) => Scalar::select(mask, Scalar::float(rounded(masked, given), dtype), scaled),
                None => scaled + mask.cast(dtype),
            }
        });
        let whole = |i: &[Scalar], r: &Scalar| [i[0].clone(), i[1].clone(), i[2].clone(), r.clone()];
        let rows = [batch, heads, queries];
        let greatest = b.reduce(&rows, &[keys], Combine::Max, |b, i, r| b.read(scores, whole(i, &r[0])));
        let powers = b.map(&[batch, heads, queries, keys], |b, i| {
            let off = b.read(scores, i.iter().cloned()) - b.read(greatest, i[..3].iter().cloned());
            Scalar::unary(UnOp::Exp, off)
        });
        let sum = b.reduce(&rows, &[keys], Combine::Sum, |b, i, r| b.read(powers, whole(i, &r[0])));
        let inverse = b.map(&rows, |b, i| Scalar::float(1.0, dtype) / b.read(sum, i.iter().cloned()));
        // Reduced to rows, scaled at the end: one division a row.
        let shape = arranged([batch, heads, queries, depth], to);
        let sums = sum_products(b, &shape, &[keys], dtype, |b, i, r| {
            let [batch, head, s, d] = to.map(|p| i[p].clone());
            let weight = b.read(powers, [batch.clone(), head.clone(), s, r[0].clone()]);
            (weight, b.read(v, arranged([batch, head, r[0].clone(), d], of_v)))
        });
        let out = b.map(&shape, |b, i| {
            let row = [0, 1, 2].map(|k| i[to[k]].clone());
            (b.read(sums, i.iter().cloned()) * b.read(inverse, row)).cast(given)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let (f, b) = (DType::F32, DType::Bool);
        vec![
            sample(
                [("masked", (-1e30).into())],
                vec![t(&[2, 3, 5, 4], f), t(&[2, 3, 7, 4], f), t(&[2, 3, 7, 6], f), t(&[2, 1, 5, 7], b)],
            ),
            sample([], vec![t(&[2, 3, 5, 4], f), t(&[2, 3, 7, 4], f), t(&[2, 3, 7, 6], f), t(&[2, 1, 1, 7], f)]),
            sample(
                [("scale", 0.5.into()), ("query_layout", "BSHD".into()), ("key_layout", "BHDS".into())],
                vec![t(&[1, 5, 2, 4], f), t(&[1, 2, 4, 9], f), t(&[1, 2, 9, 3], f), t(&[1, 2, 5, 9], f)],
            ),
            sample(
                [("value_layout", "BSHD".into()), ("out_layout", "BSHD".into()), ("key_layout", "BSHD".into())],
                vec![t(&[2, 2, 19, 8], f), t(&[2, 21, 2, 8], f), t(&[2, 21, 2, 20], f), t(&[1, 1, 1, 1], f)],
            ),
        ]
    }
}
