//! How far results are apart.

use crate::{
    infer::TypedModule,
    ir::reachable,
    tensor::{DType, Tensor},
};

/// Largest difference that floats may show, against the largest value, where rules round differently; integers may show none.
/// Short floats may be so many units in the last place of the largest value apart, where that is more.
const TOLERANCE: f64 = 1e-3;
const UNITS_IN_LAST_PLACE: f64 = 2.0;

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => UNITS_IN_LAST_PLACE / 128.0,
        DType::F16 => UNITS_IN_LAST_PLACE / 1024.0,
        _ => TOLERANCE,
    }
}

/// How far results may be apart for what was asked of a program, rounding aside.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allowed {
    /// The error that approximations bring in, as a share of the result's largest magnitude.
    pub error: f64,
    /// How far integers may be apart.
    pub steps: i64,
    /// The element types that the results were asked for in, where passes change them; none where they stay.
    pub dtypes: Option<Vec<DType>>,
    /// The shortest float type that the program computes with, where that is shorter than its results: they are rounded to it on the way.
    pub computed_in: Option<DType>,
}

/// The shortest float type of any value in a program, its inputs and constants included; none where it has no floats.
pub fn shortest_float(typed: &TypedModule) -> Option<DType> {
    let m = typed.module();
    let all = reachable(m, m.functions().map(|(_, f)| f)).into_iter().filter_map(|e| typed.ty(e).flatten());
    // Of both types of 16 bits, `bfloat16` rounds more.
    let order = |d: &DType| (d.bytes(), *d != DType::BF16);
    all.flatten().map(|t| t.dtype).filter(|d| d.is_float()).min_by_key(order)
}

/// Where results differ by more than rounding.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// There are more or fewer.
    #[error("there are {found} outputs where {expected} were expected")]
    Count {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// One is of another element type or shape.
    #[error("output {output} is {found} where {asked} as in {expected} was expected")]
    Type {
        /// Its number, from 0.
        output: usize,
        /// What it is.
        found: String,
        /// The element type that it should have.
        asked: DType,
        /// The tensor that it is compared with.
        expected: String,
    },
    /// Integers differ that must be the same.
    #[error("output {output} has other integers")]
    Integers {
        /// The output's number, from 0.
        output: usize,
    },
    /// An element is further off than it may be.
    #[error("output {output} differs at element {element}: {found} where {expected} was expected")]
    Element {
        /// The output's number, from 0.
        output: usize,
        /// The element's, in row-major order.
        element: usize,
        /// What it is.
        found: f64,
        /// What it should be.
        expected: f64,
    },
}

/// The largest difference, as a share of the largest value; `Err` says where results differ by more than rounding.
pub fn difference(want: &[Tensor], got: &[Tensor]) -> Result<f64, Mismatch> {
    difference_within(want, got, &Allowed::default())
}

/// The same for results that may be further apart, or of other element types.
///
/// # Errors
/// Says which output differs, and where.
pub fn difference_within(want: &[Tensor], got: &[Tensor], allowed: &Allowed) -> Result<f64, Mismatch> {
    if want.len() != got.len() {
        return Err(Mismatch::Count { found: got.len(), expected: want.len() });
    }
    let mut worst: f64 = 0.0;
    for (i, (w, g)) in want.iter().zip(got).enumerate() {
        let asked = allowed.dtypes.as_ref().and_then(|d| d.get(i)).copied().unwrap_or(w.dtype());
        if (asked, w.shape()) != (g.dtype(), g.shape()) {
            let (found, expected) = (format!("{g:?}"), format!("{w:?}"));
            return Err(Mismatch::Type { output: i, found, asked, expected });
        }
        let floats = w.dtype().is_float() && asked.is_float();
        if w.dtype() == asked && !floats && allowed.steps == 0 {
            if !w.same_bits(g) {
                return Err(Mismatch::Integers { output: i });
            }
            continue;
        }
        let scale_of = |x: &[f64]| x.iter().filter(|x| x.is_finite()).fold(1e-6f64, |m, x| m.max(x.abs()));
        // What follows may magnify what was rounded on the way, as a softmax does.
        let computed = allowed.computed_in.filter(|d| d.bytes() < 4).map_or(0.0, |d| 2.0 * tolerance(d));
        let rounding = tolerance(w.dtype()).max(tolerance(asked)).max(computed);
        let (w, g) = (w.to_f64_vec(), g.to_f64_vec());
        let scale = scale_of(&w);
        let most = match floats {
            true => rounding + allowed.error,
            false => (allowed.steps as f64 / scale).max(allowed.error),
        };
        for (j, (a, b)) in w.iter().zip(&g).enumerate() {
            let off = if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() / scale };
            if off.is_nan() || off > most {
                return Err(Mismatch::Element { output: i, element: j, found: *b, expected: *a });
            }
            worst = worst.max(off);
        }
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_is_allowed_and_no_more() {
        let floats = |x: f32| [Tensor::scalar(x)];
        let error = |error| Allowed { error, ..Allowed::default() };
        assert!(difference(&floats(1.0), &floats(1.05)).is_err());
        assert!(difference_within(&floats(1.0), &floats(1.05), &error(0.1)).is_ok());
        assert!(difference_within(&floats(1.0), &floats(1.2), &error(0.1)).is_err());
        let (seven, eight, nine) = ([Tensor::scalar(7i8)], [Tensor::scalar(8i8)], [Tensor::scalar(9i8)]);
        let step = Allowed { steps: 1, ..Allowed::default() };
        assert!(difference(&seven, &eight).is_err());
        assert!(difference_within(&seven, &eight, &step).is_ok() && difference_within(&seven, &nine, &step).is_err());
        let short = [Tensor::from_f64_fn(DType::F16, &[], |_| 1.0)];
        let asked = Allowed { dtypes: Some(vec![DType::F16]), ..Allowed::default() };
        assert!(difference(&floats(1.0), &short).is_err());
        assert!(difference_within(&floats(1.0), &short, &asked).is_ok());
        assert!(difference_within(&floats(1.0), &floats(1.0), &asked).is_err());
        let computed_in = Allowed { computed_in: Some(DType::F16), ..Allowed::default() };
        assert!(difference(&floats(1.0), &floats(1.0015)).is_err());
        assert!(difference_within(&floats(1.0), &floats(1.0015), &computed_in).is_ok());
    }
}
