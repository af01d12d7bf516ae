//! Every operator on every element type that its type relation allows: it is lowered, its kernel is legal, and both agree with
//! its evaluation.

use crate::common::{Data, Rng, cut_counted, difference, random_tensor};
use resat::{
    ir::{AttrValue, Name, TensorType, Type},
    loops::{Builder, check, eval_stages},
    lower::kernel,
    machine::Core,
    ops,
    tensor::{DType, Tensor, Value},
};

/// The type with elements of `from` changed to `to`.
fn changed(t: &Type, from: DType, to: DType) -> Type {
    match t {
        Type::Tensor(t) if t.dtype == from => TensorType { dtype: to, ..t.clone() }.into(),
        Type::Tuple(f) => Type::tuple(f.iter().map(|t| changed(t, from, to))),
        other => other.clone(),
    }
}

fn random_value(t: &Type, rng: &mut Rng) -> Value {
    match t {
        Type::Tensor(t) => random_tensor(t, Data::Tame, rng).into(),
        Type::Tuple(f) => Value::Tuple(f.iter().map(|t| random_value(t, rng)).collect()),
        other => panic!("samples take tensors and tuples, not {other}"),
    }
}

/// Elements beyond which plain evaluation takes too long for what it tells.
const LARGEST: usize = 600;

#[test]
fn operators_compute_with_every_type_that_they_take() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for id in ops::all() {
        let op = id.op();
        // Once per type of the first argument.
        let mut tried: Vec<DType> = Vec::new();
        for sample in op.samples() {
            let Some(first) = sample.args.iter().flat_map(|t| t.flatten().unwrap_or_default()).next() else { continue };
            for to in DType::ALL {
                let args: Vec<Type> = sample.args.iter().map(|t| changed(t, first.dtype, to)).collect();
                // An attribute that names the type follows.
                let named = |v: &AttrValue| matches!(v, AttrValue::DType(d) if *d == first.dtype);
                let given: Vec<(Name, AttrValue)> = sample
                    .attrs
                    .iter()
                    .map(|(n, v)| (Name::from(n), if named(v) { to.into() } else { v.clone() }))
                    .collect();
                let Ok(attrs) = ops::make_attrs(id, &given) else { continue };
                let Ok(ty) = op.infer(&attrs, &args) else { continue };
                if to == first.dtype || tried.contains(&to) {
                    continue;
                }
                tried.push(to);
                let mut b = Builder::new();
                let Some(operands) = crate::common::operands(&args, &mut b) else { continue };
                let mut fail = |why: String| wrong.push(format!("{} {:?} {args:?}: {why}", op.name(), sample.attrs));
                let out = match op.lower(&attrs, &operands, &mut b) {
                    Ok(out) => out,
                    Err(_) if !op.decided_by(&attrs).is_empty() => continue,
                    Err(e) => {
                        fail(format!("lower: {e}"));
                        continue;
                    }
                };
                count += 1;
                let types: Vec<DType> = ty.flatten().unwrap_or_default().iter().map(|t| t.dtype).collect();
                let stages = b.finish_with(&out);
                let got: Vec<DType> = out.tensors().iter().map(|t| stages.decl(*t).dtype).collect();
                if types != got {
                    fail(format!("infer says {ty}, but lower gives {got:?}"));
                    continue;
                }
                if let Err(e) = check(&kernel(
                    "k",
                    &stages,
                    Core { vector_bytes: 32, vector_registers: 16, int8_dot: 4, bf16_dot: 3, ..Core::SCALAR },
                )) {
                    fail(e.to_string());
                    continue;
                }
                let size = |t: &TensorType| t.known_shape().map_or(0, |s| s.iter().product::<i64>() as usize);
                if args.iter().flat_map(|t| t.flatten().unwrap_or_default()).any(|t| size(&t) > LARGEST) {
                    continue;
                }
                let mut rng = Rng(7);
                let values: Vec<Value> = args.iter().map(|t| random_value(t, &mut rng)).collect();
                // Values may not be legal for the type.
                let Ok(want) = op.eval(&attrs, &values) else { continue };
                let tensors: Vec<Tensor> = values.iter().flat_map(Value::flatten).collect();
                match eval_stages(&stages, &tensors).map_err(|e| e.to_string()).and_then(|t| cut_counted(&stages, t)) {
                    Err(e) => fail(format!("stages: {e}")),
                    Ok(got) => {
                        let differ = want.flatten().iter().zip(&got).find_map(|(w, g)| difference(w, g));
                        differ.into_iter().for_each(|d| fail(format!("by eval against stages: {d}")));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
