//! What suppressions share: how much two boxes overlap, and orders by score.

use std::cmp::Ordering;

use crate::{
    ir::{TensorType, Type},
    loops::{BinOp, Nest, Scalar, TensorId},
    ops::{OpError, op_ensure, real::Real, util::tensor_arg},
    tensor::DType,
};

/// Refuses an argument that is not a single number, floats or integers as `float` says.
pub(super) fn check_number<'a>(args: &'a [Type], i: usize, name: &str, float: bool) -> Result<&'a TensorType, OpError> {
    let t = tensor_arg(args, i, name)?;
    let single = t.shape.iter().all(|d| d.known().is_none_or(|n| n == 1)) && t.rank() <= 1;
    op_ensure!(
        single && if float { t.dtype.is_float() } else { t.dtype.is_int() },
        "`{name}` is {t}, but should be a single {}",
        if float { "floating-point number" } else { "integer" }
    );
    Ok(t)
}

/// The intersection of two boxes (each of two opposite corners, whichever way round) divided by their union.
pub(super) fn overlap<T: Real>(a: [T; 4], b: [T; 4]) -> T {
    let zero = T::of(0.0);
    let ends = |v: [T; 4], k: usize| (v[k].least(v[k + 2]), v[k].greatest(v[k + 2]));
    let common = |k: usize| {
        let ((a0, a1), (b0, b1)) = (ends(a, k), ends(b, k));
        zero.greatest(a1.least(b1) - a0.greatest(b0))
    };
    let area = |v: [T; 4]| {
        let ((x0, x1), (y0, y1)) = (ends(v, 0), ends(v, 1));
        (x1 - x0) * (y1 - y0)
    };
    let both = common(1) * common(0);
    let any = area(a) + area(b) - both;
    if any <= zero { zero } else { both / any }
}

/// [`overlap`] as an expression.
pub(super) fn overlap_scalar(a: &[Scalar; 4], b: &[Scalar; 4]) -> Scalar {
    let zero = Scalar::float(0.0, a[0].dtype());
    let ends = |v: &[Scalar; 4], k: usize| (v[k].clone().min(v[k + 2].clone()), v[k].clone().max(v[k + 2].clone()));
    let common = |k: usize| {
        let ((a0, a1), (b0, b1)) = (ends(a, k), ends(b, k));
        zero.clone().max(a1.min(b1) - a0.max(b0))
    };
    let area = |v: &[Scalar; 4]| {
        let ((x0, x1), (y0, y1)) = (ends(v, 0), ends(v, 1));
        (x1 - x0) * (y1 - y0)
    };
    let both = common(1) * common(0);
    let any = area(a) + area(b) - both.clone();
    let none = Scalar::binary(BinOp::Le, any.clone(), zero.clone());
    Scalar::select(none, zero, both / any)
}

/// The greater first; what is not a number last.
pub(super) fn descending<T: Real>(a: T, b: T) -> Ordering {
    let nan = |v: T| v.wide().is_nan();
    b.partial_cmp(&a).unwrap_or_else(|| nan(a).cmp(&nan(b)))
}

/// Greater, of one type.
pub(super) fn more(a: Scalar, b: Scalar) -> Scalar {
    Scalar::binary(BinOp::Gt, a, b)
}

/// An integer within `0..=most`.
pub(super) fn bounded(v: Scalar, most: i64) -> Scalar {
    v.cast(DType::I64).max(Scalar::index(0)).min(Scalar::index(most))
}

/// The element of a tensor that has one.
pub(super) fn single(r: &Nest<'_>, t: TensorId) -> Scalar {
    let rank = r.shape(t).len();
    r.read(t, vec![Scalar::index(0); rank])
}

/// Sorts the first `count` numbers of row `row` of `places` (`int64`), so that no one stands before one that `before` says must
/// precede it, and others keep their order. `spare` has the shape of `places`.
pub(super) fn sort_row(
    r: &mut Nest<'_>,
    [places, spare]: [TensorId; 2],
    row: &Scalar,
    count: &Scalar,
    before: impl Fn(&Nest<'_>, Scalar, Scalar) -> Scalar,
) {
    // Runs of `width` are sorted; two at a time are merged.
    let width = r.var(1);
    r.while_(r.get(width).lt(count.clone()), |r| {
        let step = r.let_(r.get(width));
        let runs = Scalar::binary(BinOp::FloorDiv, count.clone() + step.clone() * 2 - 1, step.clone() * 2);
        r.for_(runs, |r, run| {
            let first = r.let_(run * (step.clone() * 2));
            let middle = r.let_((first.clone() + step.clone()).min(count.clone()));
            let end = r.let_((first.clone() + step.clone() * 2).min(count.clone()));
            let (left, right) = (r.var(first.clone()), r.var(middle.clone()));
            r.for_range(first, end.clone(), |r, to| {
                let (i, j) = (r.let_(r.get(left)), r.let_(r.get(right)));
                let at = |r: &Nest<'_>, k: &Scalar| r.read(places, [row.clone(), k.clone()]);
                let sooner = before(r, at(r, &j), at(r, &i));
                let take = Scalar::select(j.clone().lt(end.clone()), sooner, Scalar::bool(false));
                let take = r.let_(Scalar::select(i.clone().lt(middle.clone()), take, Scalar::bool(true)));
                r.if_else(
                    take,
                    |r| {
                        r.store(spare, [row.clone(), to.clone()], at(r, &j));
                        r.set(right, j.clone() + 1);
                    },
                    |r| {
                        r.store(spare, [row.clone(), to.clone()], at(r, &i));
                        r.set(left, i.clone() + 1);
                    },
                );
            });
        });
        r.for_(count.clone(), |r, k| {
            let value = r.read(spare, [row.clone(), k.clone()]);
            r.store(places, [row.clone(), k], value);
        });
        r.set(width, step * 2);
    });
}
