//! Whether two values are equal, as strictly as a grade demands.

use super::show_tensor;
use crate::{
    saturate::{Grade, RIM},
    tensor::{DType, Tensor, Value},
};

/// How the values differ, where they do; `error` is the bound of an approximate rule, `specials` whether inputs were special:
/// of large numbers' differences nothing is known but whether they are finite.
pub(super) fn differ(x: &Value, y: &Value, grade: Grade, error: f64, specials: bool) -> Option<String> {
    match (x, y) {
        (Value::Tensor(x), Value::Tensor(y)) => {
            if (x.dtype(), x.shape()) != (y.dtype(), y.shape()) {
                return Some(format!("{} is not {}", show_tensor(x), show_tensor(y)));
            }
            let at = first_difference(x, y, grade, error, specials)?;
            let (a, b) = (x.get_f64(at), y.get_f64(at));
            let bound = if grade == Grade::Approx { format!(" (the bound is {error})") } else { String::new() };
            Some(format!(
                "element {at} is {a:?} left and {b:?} right{bound}: {} and {}",
                show_tensor(x),
                show_tensor(y)
            ))
        }
        (Value::Tuple(x), Value::Tuple(y)) if x.len() == y.len() => {
            x.iter().zip(y).find_map(|(x, y)| differ(x, y, grade, error, specials))
        }
        _ => Some("one side is a tensor, the other a tuple".to_owned()),
    }
}

/// Results above this are of numbers that were drawn large.
const LARGE: f64 = 1e5;

/// The greatest finite number of a float type.
fn greatest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F16 => 65504.0 * RIM / 64.0,
        _ => f32::MAX as f64,
    }
}

fn first_difference(x: &Tensor, y: &Tensor, grade: Grade, error: f64, specials: bool) -> Option<usize> {
    let size = x.dtype().bytes();
    let bits = |t: &Tensor, i: usize| t.bytes()[i * size..][..size].to_vec();
    if !x.dtype().is_float() && grade != Grade::Approx {
        return (0..x.len()).find(|&i| bits(x, i) != bits(y, i));
    }
    // Smaller results are judged as if they were 1: what they are the difference of is about 1.
    let scale = (0..x.len()).map(|i| x.get_f64(i).abs()).filter(|v| v.is_finite()).fold(1.0, f64::max);
    let epsilon = match (grade, x.dtype()) {
        (Grade::Approx, _) => error,
        (_, DType::F64) => 1e-9,
        (_, DType::F32) => 1e-4,
        _ => 2e-2,
    };
    // Integers are rounded: a neighbour is always near enough.
    let least = if x.dtype().is_float() { 0.0 } else { 1.0 };
    let rim = greatest(x.dtype()) / RIM;
    (0..x.len()).find(|&i| {
        let (a, b) = (x.get_f64(i), y.get_f64(i));
        match grade {
            Grade::Real if !(a.is_finite() && b.is_finite()) => {
                // One of both may overflow where the other nearly does.
                let near = |x: f64, over: f64| over.is_infinite() && x * over.signum() >= rim;
                !(a.is_nan() && b.is_nan() || a == b || near(a, b) || near(b, a))
            }
            Grade::Real if specials && scale > LARGE => false,
            Grade::Exact => !(bits(x, i) == bits(y, i) || a.is_nan() && b.is_nan()),
            // What the left side makes of infinities and NaN is no promise.
            Grade::Real | Grade::Finite | Grade::Approx => {
                a.is_finite() && !within((a - b).abs(), (epsilon * scale).max(least))
            }
        }
    })
}

/// Whether a difference is no larger than it may be; NaN never is.
fn within(difference: f64, bound: f64) -> bool {
    difference <= bound
}
