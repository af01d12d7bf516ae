//! How far results are apart.

use crate::tensor::{DType, Tensor};

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

/// The largest difference, as a share of the largest value; `Err` says where results differ by more than rounding.
pub fn difference(want: &[Tensor], got: &[Tensor]) -> Result<f64, String> {
    if want.len() != got.len() {
        return Err(format!("there are {} outputs where {} were expected", got.len(), want.len()));
    }
    let mut worst: f64 = 0.0;
    for (i, (w, g)) in want.iter().zip(got).enumerate() {
        if (w.dtype(), w.shape()) != (g.dtype(), g.shape()) {
            return Err(format!("output {i} is {g:?} where {w:?} was expected"));
        }
        if !w.dtype().is_float() {
            if !w.same_bits(g) {
                return Err(format!("output {i} has other integers"));
            }
            continue;
        }
        let allowed = tolerance(w.dtype());
        let (w, g) = (w.to_f64_vec(), g.to_f64_vec());
        let scale = w.iter().filter(|x| x.is_finite()).fold(1e-6f64, |m, x| m.max(x.abs()));
        for (j, (a, b)) in w.iter().zip(&g).enumerate() {
            let off = if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() / scale };
            if off.is_nan() || off > allowed {
                return Err(format!("output {i} differs at element {j}: {b} where {a} was expected"));
            }
            worst = worst.max(off);
        }
    }
    Ok(worst)
}
