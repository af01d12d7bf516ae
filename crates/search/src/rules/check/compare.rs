//! Whether two values are equal, as strictly as a grade demands.

use super::show_tensor;
use crate::{
    saturate::Grade,
    tensor::{DType, Tensor, Value},
};

/// How the values differ, where they do; `error` is the bound of an approximate rule.
pub(super) fn differ(x: &Value, y: &Value, grade: Grade, error: f64) -> Option<String> {
    match (x, y) {
        (Value::Tensor(x), Value::Tensor(y)) => {
            if (x.dtype(), x.shape()) != (y.dtype(), y.shape()) {
                return Some(format!("{} is not {}", show_tensor(x), show_tensor(y)));
            }
            let at = first_difference(x, y, grade, error)?;
            let (a, b) = (x.get_f64(at), y.get_f64(at));
            let bound = if grade == Grade::Approx { format!(" (the bound is {error})") } else { String::new() };
            Some(format!(
                "element {at} is {a:?} left and {b:?} right{bound}: {} and {}",
                show_tensor(x),
                show_tensor(y)
            ))
        }
        (Value::Tuple(x), Value::Tuple(y)) if x.len() == y.len() => {
            x.iter().zip(y).find_map(|(x, y)| differ(x, y, grade, error))
        }
        _ => Some("one side is a tensor, the other a tuple".to_owned()),
    }
}

fn first_difference(x: &Tensor, y: &Tensor, grade: Grade, error: f64) -> Option<usize> {
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
    (0..x.len()).find(|&i| {
        let (a, b) = (x.get_f64(i), y.get_f64(i));
        match grade {
            Grade::Exact => !(bits(x, i) == bits(y, i) || a.is_nan() && b.is_nan()),
            // Over the reals there is neither infinity nor NaN: what the left side makes of them is no promise.
            Grade::Real | Grade::Approx => a.is_finite() && !within((a - b).abs(), (epsilon * scale).max(least)),
        }
    })
}

/// Whether a difference is no larger than it may be; NaN never is.
fn within(difference: f64, bound: f64) -> bool {
    difference <= bound
}
