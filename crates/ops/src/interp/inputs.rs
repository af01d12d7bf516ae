//! Random arguments, for benchmarks and comparisons.

use crate::{
    diag::{Diagnostic, Refused},
    infer::TypedModule,
    ir::{TensorType, Type},
    tensor::{DType, SplitMix64, Tensor, Value, within_memory},
};

/// Random arguments for `@main`, the same for the same seed on every machine.
///
/// Floats lie in [-1, 1); integers of 8 bits take their whole range, as quantized data does; wider integers and `bool` are
/// 0 or 1, which is a legal index and mask wherever there are two things to choose from. Refused are parameters of unknown
/// extents and those that are not tensors or tuples of tensors.
pub fn random_inputs(m: &TypedModule, seed: u64) -> Result<Vec<Value>, Refused> {
    let main = m.entry("main")?;
    let mut refused = Vec::new();
    let mut values = Vec::new();
    for (i, &p) in main.params.iter().enumerate() {
        match within_memory(|| random_value(m.var_ty(p), seed, i)) {
            Ok(Some(v)) => values.push(v),
            Err(e) => {
                let (name, ty) = (&m.var(p).name, m.var_ty(p));
                refused
                    .push(Diagnostic::new(format!("no random value can be made for parameter `%{name}`: {ty}: {e}")));
            }
            Ok(None) => {
                let (name, ty) = (&m.var(p).name, m.var_ty(p));
                let message = format!("no random value can be made for parameter `%{name}`: {ty}");
                refused.push(Diagnostic::new(message).help("give inputs"));
            }
        }
    }
    if refused.is_empty() { Ok(values) } else { Err(Refused(refused)) }
}

/// A random value of a type, as argument number `i`: what [`random_inputs`] is made of. `None` for unknown extents and for what
/// is not made of tensors.
pub fn random_value(ty: &Type, seed: u64, i: usize) -> Option<Value> {
    random(ty, &mut SplitMix64(seed.wrapping_mul(SplitMix64::STEP).wrapping_add(i as u64 + 1)))
}

fn random(ty: &Type, rng: &mut SplitMix64) -> Option<Value> {
    match ty {
        Type::Tensor(t) => random_tensor(t, rng).map(Value::Tensor),
        // Inference bounds how deep tuples are nested.
        Type::Tuple(fields) => fields.iter().map(|t| random(t, rng)).collect::<Option<Vec<_>>>().map(Value::Tuple),
        _ => None,
    }
}

fn random_tensor(t: &TensorType, rng: &mut SplitMix64) -> Option<Tensor> {
    let shape: Vec<usize> = t.known_shape()?.iter().map(|&n| n as usize).collect();
    Some(match t.dtype {
        d if d.is_float() => {
            Tensor::from_f64_fn(d, &shape, |_| (rng.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
        }
        d @ (DType::I8 | DType::U8) => Tensor::from_i64_fn(d, &shape, |_| (rng.next_u64() >> 56) as i64),
        d => Tensor::from_i64_fn(d, &shape, |_| (rng.next_u64() >> 63) as i64),
    })
}
