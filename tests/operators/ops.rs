//! Every operator of the table, by the samples it gives: its facets exist, are well formed, and agree with each other.

use crate::common::{Data, Rng, cut_counted, difference, operands, random_tensor};
use resat::{
    ir::{AttrValue, Attrs, Dim, Name, OpId, TensorType, Type},
    loops::{Builder, EvalError, eval_stages},
    ops::{self, AttrDefault, AttrKind, AxisRole, Op},
    tensor::{Tensor, Value},
};

fn random_value(t: &Type, data: Data, rng: &mut Rng) -> Value {
    match t {
        Type::Tensor(t) => random_tensor(t, data, rng).into(),
        Type::Tuple(f) => Value::Tuple(f.iter().map(|t| random_value(t, data, rng)).collect()),
        other => panic!("samples take tensors and tuples, not {other}"),
    }
}

fn given(sample: &ops::Sample) -> Vec<(Name, AttrValue)> {
    sample.attrs.iter().map(|(n, v)| (Name::from(n), v.clone())).collect()
}

fn fits(t: &TensorType, v: &Tensor) -> bool {
    t.dtype == v.dtype()
        && t.shape.len() == v.shape().len()
        && t.shape.iter().zip(v.shape()).all(|(d, &n)| matches!(d, Dim::Any) || d.known() == Some(n as i64))
}

/// All operators with their samples; `check` says what is wrong. All complaints are shown at once.
fn for_all_samples(check: impl Fn(&'static dyn Op, &Attrs, &ops::Sample, &Type) -> Result<(), String>) {
    let mut wrong = Vec::new();
    for id in ops::all() {
        let op = id.op();
        for sample in op.samples() {
            let outcome = ops::make_attrs(id, &given(&sample)).map_err(|e| e.to_string()).and_then(|attrs| {
                let ty = op.infer(&attrs, &sample.args).map_err(|e| format!("infer: {e}"))?;
                check(op, &attrs, &sample, &ty)
            });
            if let Err(why) = outcome {
                wrong.push(format!("{} {:?} {:?}: {why}", op.name(), sample.attrs, sample.args));
            }
        }
    }
    assert!(wrong.is_empty(), "{} samples are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The same of operators that random values can be given to. Those that read files of a format have tests of their own.
fn for_random_values(check: impl Fn(&'static dyn Op, &Attrs, &ops::Sample, &Type) -> Result<(), String>) {
    for_all_samples(|op, attrs, sample, ty| if op.runs_as_is() { Ok(()) } else { check(op, attrs, sample, ty) });
}

#[test]
fn tables_are_well_formed() {
    for id in ops::all() {
        let op = id.op();
        let name = op.name();
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c)), "{name:?}");
        assert_eq!(ops::lookup(name), Some(id), "{name}");
        assert!(!op.doc().trim().is_empty(), "{name} has no doc");
        assert!(!op.samples().is_empty(), "{name} has no samples");
        let distinct = |names: Vec<&str>| names.iter().enumerate().all(|(i, n)| !names[..i].contains(n));
        assert!(distinct(op.inputs().to_vec()), "{name}: two inputs of one name");
        assert!(distinct(op.attrs().iter().map(|f| f.name).collect()), "{name}: two attributes of one name");
        for f in op.attrs() {
            let fits = match (f.default, f.kind) {
                (AttrDefault::Required | AttrDefault::None, _) | (_, AttrKind::Any) => true,
                (AttrDefault::Str(s), AttrKind::OneOf(names)) => names.contains(&s),
                (AttrDefault::Bool(_), AttrKind::Bool)
                | (AttrDefault::Int(_), AttrKind::Int)
                | (AttrDefault::Float(_), AttrKind::Float)
                | (AttrDefault::Str(_), AttrKind::Str)
                | (AttrDefault::DType(_), AttrKind::DType)
                | (AttrDefault::Ints(_), AttrKind::Ints | AttrKind::List)
                | (AttrDefault::Floats(_), AttrKind::List) => true,
                _ => false,
            };
            assert!(fits, "{name}: the default of `{}` is not of its kind", f.name);
        }
        for sample in op.samples() {
            assert_eq!(sample.args.len(), op.inputs().len(), "{name}: a sample with another number of arguments");
        }
    }
}

#[test]
fn complete_attributes_are_accepted_again() {
    for_all_samples(|op, attrs, _, _| {
        let fields: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
        let id: OpId = ops::lookup(op.name()).expect("in the table");
        match ops::make_attrs(id, &fields) {
            Ok(again) if again == *attrs => Ok(()),
            Ok(again) => Err(format!("{attrs:?} became {again:?}")),
            Err(e) => Err(e.to_string()),
        }
    });
}

#[test]
fn evaluation_gives_the_inferred_type() {
    for_random_values(|op, attrs, sample, ty| {
        let mut rng = Rng(1);
        let args: Vec<Value> = sample.args.iter().map(|t| random_value(t, Data::Tame, &mut rng)).collect();
        let out = op.eval(attrs, &args).map_err(|e| format!("eval: {e}"))?.flatten();
        let want = ty.flatten().ok_or("the result is neither tensor nor tuple")?;
        match out.len() == want.len() && want.iter().zip(&out).all(|(t, v)| fits(t, v)) {
            true => Ok(()),
            false => Err(format!("infer says {ty}, but eval gives {out:?}")),
        }
    });
}

#[test]
fn static_calls_compute_what_evaluation_does() {
    for_random_values(|op, attrs, sample, _| {
        let decisive = op.decided_by(attrs);
        if decisive.is_empty() {
            return Ok(());
        }
        let mut rng = Rng(5);
        let args: Vec<Value> = sample.args.iter().map(|t| random_value(t, Data::Tame, &mut rng)).collect();
        let want = op.eval(attrs, &args).map_err(|e| format!("eval: {e}"))?.flatten();
        let values: Vec<&Tensor> = decisive.iter().map(|&i| args[i].tensor()).collect();
        let call = op.to_static(attrs, &values).map_err(|e| format!("to_static: {e}"))?;
        let own: Vec<Value> = call.args.iter().map(|&i| args[i].clone()).collect();
        let types: Vec<Type> = call.args.iter().map(|&i| sample.args[i].clone()).collect();
        let fixed = call.op.op();
        let ty = fixed.infer(&call.attrs, &types).map_err(|e| format!("infer: {e}"))?;
        // What stays unknown is counted while running: outermost extents.
        let inner = |t: &TensorType| t.shape.iter().skip(1).any(|d| d.known().is_none());
        if ty.flatten().is_none_or(|t| t.iter().any(inner)) {
            return Err(format!("{} still gives {ty}", fixed.name()));
        }
        match fixed.eval(&call.attrs, &own).map_err(|e| format!("eval: {e}"))?.flatten() == want {
            true => Ok(()),
            false => Err("another result".into()),
        }
    });
}

#[test]
fn stages_compute_what_evaluation_does() {
    for_random_values(|op, attrs, sample, ty| {
        let mut b = Builder::new();
        let Some(operands) = operands(&sample.args, &mut b) else {
            return Ok(());
        };
        let out = match op.lower(attrs, &operands, &mut b) {
            Ok(out) => out,
            // Their extents are known before they are lowered.
            Err(_) if !op.decided_by(attrs).is_empty() => return Ok(()),
            Err(e) => return Err(format!("lower: {e}")),
        };
        let types = ty.flatten().ok_or("the result is neither tensor nor tuple")?;
        let stages = b.finish_with(&out);
        let tensors = out.tensors();
        if types.len() != tensors.len() {
            return Err(format!("infer says {ty}, but lower gives {} tensors", tensors.len()));
        }
        for (k, (t, id)) in types.iter().zip(&tensors).enumerate() {
            let decl = stages.decl(*id);
            // Of a counted result, the outermost extent is a bound of what is not known.
            let counted = stages.counted.iter().any(|c| c.0 == k);
            let rest = |shape: &[Dim]| shape.iter().map(|d| d.known()).collect::<Option<Vec<i64>>>();
            let fits = match counted {
                true => t.shape.first() == Some(&Dim::Any) && rest(&t.shape[1..]).as_deref() == decl.shape.get(1..),
                false => t.known_shape().as_ref() == Some(&decl.shape),
            };
            if !fits || t.dtype != decl.dtype {
                return Err(format!("infer says {ty}, but lower gives {:?} of {}", decl.shape, decl.dtype));
            }
        }
        for (data, seed) in [(Data::Tame, 2), (Data::Tame, 3), (Data::Wild, 4)] {
            let mut rng = Rng(seed);
            let args: Vec<Value> = sample.args.iter().map(|t| random_value(t, data, &mut rng)).collect();
            let want = match op.eval(attrs, &args) {
                Ok(v) => v.flatten(),
                Err(_) if data == Data::Wild => continue,
                Err(e) => return Err(format!("eval: {e}")),
            };
            let tensors: Vec<Tensor> = args.iter().flat_map(Value::flatten).collect();
            let got = eval_stages(&stages, &tensors).map_err(|e: EvalError| format!("stages: {e}"))?;
            let got = cut_counted(&stages, got)?;
            if got.len() != want.len() {
                return Err(format!("{} results by eval, {} by stages", want.len(), got.len()));
            }
            for (k, (w, g)) in want.iter().zip(&got).enumerate() {
                if let Some(d) = difference(w, g) {
                    return Err(format!("{data:?} data: result {k} by eval against stages: {d}"));
                }
            }
        }
        Ok(())
    });
}

/// A value of the type that holds whatever it may.
fn any_value(t: &Type, rng: &mut Rng) -> Value {
    let tensor = |t: &TensorType, rng: &mut Rng| {
        let shape: Vec<usize> = t.shape.iter().map(|d| d.known().unwrap_or(2) as usize).collect();
        match t.dtype.is_float() {
            true => Tensor::from_f64_fn(t.dtype, &shape, |_| match rng.next() % 8 {
                0 => f64::NAN,
                // Not more: how long some operators take follows from the size of regions that they are given.
                1 => 50.0,
                2 => -50.0,
                _ => 20.0 * rng.unit() - 10.0,
            }),
            false => Tensor::from_i64_fn(t.dtype, &shape, |_| match rng.next() % 4 {
                0 => rng.next() as i64,
                1 => i64::MIN >> (rng.next() % 2 * 32),
                _ => (rng.next() >> 20) as i64 % 12 - 5,
            }),
        }
    };
    match t {
        Type::Tensor(t) => tensor(t, rng).into(),
        Type::Tuple(f) => Value::Tuple(f.iter().map(|t| any_value(t, rng)).collect()),
        other => panic!("samples take tensors and tuples, not {other}"),
    }
}

/// Compiled code checks no access: what operators lower to must stay within its tensors by itself, also where evaluation would
/// refuse the values.
#[test]
fn no_values_lead_out_of_tensors() {
    for_all_samples(|op, attrs, sample, _| {
        let mut b = Builder::new();
        let Some(operands) = operands(&sample.args, &mut b) else { return Ok(()) };
        let Ok(out) = op.lower(attrs, &operands, &mut b) else { return Ok(()) };
        let stages = b.finish_with(&out);
        for seed in 0..2 {
            let mut rng = Rng(seed);
            let args: Vec<Tensor> = sample.args.iter().flat_map(|t| any_value(t, &mut rng).flatten()).collect();
            match eval_stages(&stages, &args) {
                Err(e @ EvalError::Outside { .. }) => return Err(e.to_string()),
                Err(EvalError::ZeroDivision(_)) => {}
                Ok(out) => _ = cut_counted(&stages, out)?,
            }
        }
        Ok(())
    });
}

/// `t` with the order of elements along an axis reversed.
fn reversed(t: &Tensor, axis: usize) -> Tensor {
    let (n, inner) = (t.shape()[axis], t.shape()[axis + 1..].iter().product::<usize>());
    t.pick(t.shape(), |i| {
        let at = i / inner % n;
        Some(i - at * inner + (n - 1 - at) * inner)
    })
}

/// An axis that maps to output axis k does so element by element and in the same way for all elements: reversing all
/// inputs along such axes reverses the output along k. (Skipped where another axis claims nothing about k.)
#[test]
fn axes_mean_what_they_say() {
    for_random_values(|op, attrs, sample, ty| {
        let roles = op.axes(attrs, &sample.args).0;
        let inputs: Vec<TensorType> = sample.args.iter().flat_map(|t| t.flatten().unwrap_or_default()).collect();
        if roles.len() != inputs.len() || roles.iter().zip(&inputs).any(|(r, t)| r.len() != t.rank()) {
            return Err(format!("axes {roles:?} are not one per axis of {inputs:?}"));
        }
        let outputs = ty.flatten().ok_or("the result is neither tensor nor tuple")?;
        let rank = outputs.iter().map(TensorType::rank).min().unwrap_or(0);
        for role in roles.iter().flatten() {
            if let AxisRole::Maps(k) | AxisRole::Broadcasts(k) | AxisRole::Windows(k) = role
                && *k >= rank
            {
                return Err(format!("{role:?} names an axis that the result lacks"));
            }
        }
        let mut rng = Rng(5);
        let args: Vec<Value> = sample.args.iter().map(|t| random_value(t, Data::Tame, &mut rng)).collect();
        let plain = op.eval(attrs, &args).map_err(|e| format!("eval: {e}"))?.flatten();
        for k in 0..rank {
            let maps = roles.iter().flatten().any(|r| *r == AxisRole::Maps(k));
            let unclear = roles.iter().flatten().any(|r| *r == AxisRole::Windows(k));
            if !maps || unclear {
                continue;
            }
            let mut at = 0;
            let mut turn = |t: &Tensor| {
                at += 1;
                let axes = (0..t.shape().len()).filter(|&a| roles[at - 1][a] == AxisRole::Maps(k));
                axes.fold(t.clone(), |t, axis| reversed(&t, axis))
            };
            fn turned(v: &Value, turn: &mut impl FnMut(&Tensor) -> Tensor) -> Value {
                match v {
                    Value::Tensor(t) => turn(t).into(),
                    Value::Tuple(f) => Value::Tuple(f.iter().map(|v| turned(v, turn)).collect()),
                }
            }
            let args: Vec<Value> = args.iter().map(|v| turned(v, &mut turn)).collect();
            let out = op.eval(attrs, &args).map_err(|e| format!("eval of reversed arguments: {e}"))?.flatten();
            for (p, o) in plain.iter().zip(&out) {
                if let Some(d) = difference(&reversed(p, k), o) {
                    return Err(format!("{roles:?}, but reversed along axis {k}: {d}"));
                }
            }
        }
        Ok(())
    });
}

#[test]
fn work_is_sensible() {
    for_all_samples(|op, attrs, sample, ty| {
        let w = op.work(attrs, &sample.args, ty);
        let all = [w.flops, w.bytes_read, w.bytes_written];
        match all.iter().all(|v| v.is_finite() && *v >= 0.0) {
            true => Ok(()),
            false => Err(format!("{w:?}")),
        }
    });
}
