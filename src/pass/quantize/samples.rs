//! Samples for calibration: a value per parameter, several times.

use std::path::Path;

use crate::{
    diag::{Diagnostic, Refused, nearest},
    infer::TypedModule,
    ir::{Name, Type},
    relay::npz,
    tensor::Tensor,
};

/// The arrays of an npz archive.
pub(super) fn read(path: &Path) -> Result<Vec<(Name, Tensor)>, Refused> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| Refused::from(Diagnostic::new(format!("{name}: {e}"))))?;
    npz::read(&name, &bytes)
}

/// The inputs of each run: for every sample, a tensor per parameter of `@main`.
///
/// An array has the shape of its parameter and one axis more in front, the samples'; or the shape of the parameter where its first
/// extent may be a multiple of the parameter's: then every so many rows are a sample. All arrays hold equally many.
pub(super) fn runs(m: &TypedModule, arrays: &[(Name, Tensor)]) -> Result<Vec<Vec<Tensor>>, Refused> {
    let main = m.entry("main")?;
    let names: Vec<&str> = main.params.iter().map(|&p| m.var(p).name.as_str()).collect();
    let mut refused = Vec::new();
    for (name, _) in arrays.iter().filter(|(n, _)| !names.contains(&n.as_str())) {
        let d = Diagnostic::new(format!("the samples hold `{name}`, but the program has no such parameter"));
        refused.push(match nearest(name, names.iter().copied()) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d.help(format!("it has {}", names.join(", "))),
        });
    }
    let mut columns: Vec<Vec<Tensor>> = Vec::new();
    for &p in &main.params {
        let name = &m.var(p).name;
        let Some((_, array)) = arrays.iter().find(|(n, _)| n == name) else {
            let d = Diagnostic::new(format!("the samples lack the parameter `{name}`"));
            refused.push(d.help("give weights by --params, and an array of samples for each input"));
            continue;
        };
        match split(m.var_ty(p), array) {
            Ok(column) => columns.push(column),
            Err(why) => refused.push(Diagnostic::new(format!("the samples' array `{name}` {why}"))),
        }
    }
    if let Some(first) = columns.first()
        && let Some(other) = columns.iter().find(|c| c.len() != first.len())
    {
        let message = format!("of one parameter there are {} samples, of another {}", first.len(), other.len());
        refused.push(Diagnostic::new(message));
    }
    if !refused.is_empty() {
        return Err(Refused(refused));
    }
    let n = columns.first().map_or(0, Vec::len);
    if n == 0 {
        return Err(Diagnostic::new("there are no samples to calibrate with").into());
    }
    Ok((0..n).map(|k| columns.iter().map(|c| c[k].clone()).collect()).collect())
}

/// The samples in an array.
fn split(wanted: &Type, array: &Tensor) -> Result<Vec<Tensor>, String> {
    let Type::Tensor(t) = wanted else { return Err(format!("stands for a parameter of type {wanted}, not a tensor")) };
    let array = npz::as_element(array.clone(), t.dtype);
    if array.dtype() != t.dtype {
        return Err(format!("is of {}, but should be of {}", array.dtype(), t.dtype));
    }
    let fits = |found: &[usize], wanted: &[crate::ir::Dim]| {
        found.len() == wanted.len() && found.iter().zip(wanted).all(|(&f, w)| w.known().is_none_or(|w| w == f as i64))
    };
    let shape = array.shape().to_vec();
    let (count, each) = match (shape.split_first(), t.shape.split_first()) {
        (Some((&n, rest)), _) if fits(rest, &t.shape) => (n, rest.to_vec()),
        (Some((&n, rest)), Some((first, others))) if fits(rest, others) => {
            let rows = first.known().map_or(n.max(1), |k| k.max(1) as usize);
            if n % rows != 0 {
                return Err(format!("has {n} rows, which is no multiple of the {rows} that the program takes"));
            }
            (n / rows, [&[rows], rest].concat())
        }
        _ => return Err(format!("is of shape {shape:?}, but should be of {t}'s, with an axis of samples in front")),
    };
    let bytes = each.iter().product::<usize>() * t.dtype.bytes();
    (0..count)
        .map(|k| {
            let part = &array.bytes()[k * bytes..(k + 1) * bytes];
            Tensor::from_bytes(t.dtype, &each, part).map_err(|e| e.to_string())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn samples_have_an_axis_of_their_own_or_fill_batches() {
        let array = Tensor::from_slice(&[6, 1, 2], &(0..12).map(|k| k as f32).collect::<Vec<f32>>());
        let of =
            |shape: &[i64]| split(&Type::tensor(shape, DType::F32), &array).map(|s| (s.len(), s[0].shape().to_vec()));
        assert_eq!(of(&[1, 2]), Ok((6, vec![1, 2])));
        assert_eq!(of(&[3, 1, 2]), Ok((2, vec![3, 1, 2])));
        assert_eq!(of(&[6, 1, 2]), Ok((1, vec![6, 1, 2])));
        assert!(of(&[4, 1, 2]).is_err_and(|e| e.contains("no multiple")));
        assert!(of(&[2, 2]).is_err_and(|e| e.contains("axis of samples")));
    }
}
