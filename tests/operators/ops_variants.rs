//! Every operator on variants of its samples: with other extents (none, one, unknown), axes, element types and attribute
//! values. What the type relation accepts must evaluate and lower without a panic, to that type, and to the same values.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{Data, Rng, cut_counted, difference, operands, random_tensor};
use resat::{
    ir::{AttrValue, Attrs, Dim, Name, TensorType, Type},
    loops::{Builder, eval_stages},
    ops::{self, Class, Op},
    tensor::{DType, Tensor, Value},
};

/// Variants of each sample.
const VARIANTS: usize = 3;
/// Tensors and sums of more elements than this are left out, so that the test stays fast.
const MOST: i64 = 1024;

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.next() as usize % from.len()]
}

fn vary_tensor(t: &TensorType, rng: &mut Rng) -> TensorType {
    let mut shape = t.shape.to_vec();
    let mut dtype = t.dtype;
    let extents = [0, 1, 2, 3, 4, 7].map(Dim::Known);
    match rng.next() % 8 {
        0 => shape.insert(rng.next() as usize % (shape.len() + 1), pick(rng, &extents)),
        1 if !shape.is_empty() => drop(shape.remove(rng.next() as usize % shape.len())),
        2 => {
            dtype = pick(
                rng,
                &[DType::F32, DType::F64, DType::F16, DType::I32, DType::I8, DType::U8, DType::U64, DType::Bool],
            )
        }
        3 if !shape.is_empty() => {
            let at = rng.next() as usize % shape.len();
            shape[at] = Dim::Any;
        }
        _ if !shape.is_empty() => {
            let at = rng.next() as usize % shape.len();
            shape[at] = pick(rng, &extents);
        }
        _ => {}
    }
    TensorType::of(shape, dtype)
}

/// Every extent `from` in the types becomes `to`: shapes that belong together stay so.
fn rename(t: &Type, from: i64, to: Dim) -> Type {
    match t {
        Type::Tensor(t) => {
            TensorType::of(t.shape.iter().map(|&d| if d == Dim::Known(from) { to } else { d }), t.dtype).into()
        }
        Type::Tuple(f) => Type::tuple(f.iter().map(|t| rename(t, from, to))),
        other => other.clone(),
    }
}

fn vary_type(t: &Type, rng: &mut Rng) -> Type {
    match t {
        Type::Tensor(t) => vary_tensor(t, rng).into(),
        Type::Tuple(f) if f.is_empty() => t.clone(),
        Type::Tuple(f) => {
            let at = rng.next() as usize % f.len();
            Type::tuple(f.iter().enumerate().map(|(k, t)| if k == at { vary_type(t, rng) } else { t.clone() }))
        }
        other => other.clone(),
    }
}

fn vary_value(v: &AttrValue, rng: &mut Rng) -> AttrValue {
    match v {
        AttrValue::Int(_) => pick(rng, &[-2, -1, 0, 1, 2, 3, 5, i64::MAX, i64::MIN, 1 << 40]).into(),
        AttrValue::Bool(b) => (!b).into(),
        AttrValue::Float(_) => pick(rng, &[-1.0, 0.0, 0.5, 1.0, 2.0, 1e30, f64::NAN, f64::INFINITY]).into(),
        AttrValue::None => pick(rng, &[AttrValueOf::Int(1), AttrValueOf::Ints, AttrValueOf::None]).into(),
        AttrValue::List(l) => {
            let mut l = l.to_vec();
            match rng.next() % 4 {
                0 if !l.is_empty() => drop(l.pop()),
                1 => l.push(1.into()),
                _ if !l.is_empty() => {
                    let at = rng.next() as usize % l.len();
                    l[at] = vary_value(&l[at], rng);
                }
                _ => {}
            }
            AttrValue::List(l.into())
        }
        other => other.clone(),
    }
}

#[derive(Copy, Clone)]
enum AttrValueOf {
    Int(i64),
    Ints,
    None,
}

impl From<AttrValueOf> for AttrValue {
    fn from(v: AttrValueOf) -> AttrValue {
        match v {
            AttrValueOf::Int(i) => i.into(),
            AttrValueOf::Ints => [1, 0].into(),
            AttrValueOf::None => AttrValue::None,
        }
    }
}

fn random_value(t: &Type, rng: &mut Rng) -> Value {
    match t {
        Type::Tensor(t) => random_tensor(t, Data::Tame, rng).into(),
        Type::Tuple(f) => Value::Tuple(f.iter().map(|t| random_value(t, rng)).collect()),
        other => panic!("samples take tensors and tuples, not {other}"),
    }
}

fn value_type(v: &Value) -> Type {
    match v {
        Value::Tensor(t) => Type::tensor(&t.shape().iter().map(|&n| n as i64).collect::<Vec<_>>(), t.dtype()),
        Value::Tuple(f) => Type::tuple(f.iter().map(value_type)),
    }
}

fn small(types: &[TensorType]) -> bool {
    types.iter().all(|t| t.elements().unwrap_or(0) <= MOST)
}

fn check(op: &dyn Op, attrs: &Attrs, args: &[Type], rng: &mut Rng) -> Result<(), String> {
    let Ok(ty) = op.infer(attrs, args) else { return Ok(()) };
    if !ty.flatten().is_none_or(|t| t.iter().all(TensorType::is_sensible)) {
        return Ok(());
    }
    let all: Vec<TensorType> = args.iter().flat_map(|t| t.flatten().unwrap_or_default()).collect();
    let want = ty.flatten().ok_or("the result is neither tensor nor tuple")?;
    let roles = op.axes(attrs, args).0;
    if roles.len() != all.len() || roles.iter().zip(&all).any(|(r, t)| r.len() != t.rank()) {
        return Err(format!("axes {roles:?} are not one per axis of {all:?}"));
    }
    let work = op.work(attrs, args, &ty);
    if ![work.flops, work.bytes_read, work.bytes_written].iter().all(|v| v.is_finite() && *v >= 0.0) {
        return Err(format!("{work:?}"));
    }
    if !small(&all) || !small(&want) || work.flops > 1e5 {
        return Ok(());
    }
    let values: Vec<Value> = args.iter().map(|t| random_value(t, rng)).collect();
    // Unknown extents may turn out not to go together.
    let found: Vec<Type> = values.iter().map(value_type).collect();
    if op.infer(attrs, &found).is_err() {
        return Ok(());
    }
    let evaluated = op.eval(attrs, &values).map(|v| v.flatten());
    if let Ok(out) = &evaluated {
        let fits = |t: &TensorType, v: &Tensor| {
            t.dtype == v.dtype()
                && t.shape.len() == v.shape().len()
                && t.shape.iter().zip(v.shape()).all(|(d, &n)| d.known().is_none_or(|m| m == n as i64))
        };
        if out.len() != want.len() || !want.iter().zip(out).all(|(t, v)| fits(t, v)) {
            return Err(format!("infer says {ty}, but eval gives {out:?}"));
        }
    }
    let mut b = Builder::new();
    let Some(operands) = operands(args, &mut b) else { return Ok(()) };
    let lowered = match op.lower(attrs, &operands, &mut b) {
        Ok(o) => o,
        Err(_) if op.class() == Class::Opaque || op.name() == "reinterpret" => return Ok(()),
        Err(_) if !op.decided_by(attrs).is_empty() => return Ok(()),
        Err(e) => return Err(format!("lower: {e}")),
    };
    let stages = b.finish_with(&lowered);
    let Ok(out) = evaluated else { return Ok(()) };
    let tensors: Vec<Tensor> = values.iter().flat_map(Value::flatten).collect();
    let got = eval_stages(&stages, &tensors).map_err(|e| format!("stages: {e}"))?;
    let got = cut_counted(&stages, got)?;
    if got.len() != out.len() {
        return Err(format!("{} results by eval, {} by stages", out.len(), got.len()));
    }
    for (k, (w, g)) in out.iter().zip(&got).enumerate() {
        if let Some(d) = difference(w, g) {
            return Err(format!("result {k} by eval against stages: {d}"));
        }
    }
    Ok(())
}

#[test]
fn what_the_relation_accepts_can_be_computed() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut wrong = Vec::new();
    let (mut tried, mut accepted) = (0, 0);
    for id in ops::all() {
        let op = id.op();
        for (s, sample) in op.samples().iter().enumerate() {
            let mut rng = Rng(s as u64 + 17);
            for _ in 0..VARIANTS {
                let mut fields: Vec<(Name, AttrValue)> =
                    sample.attrs.iter().map(|(n, v)| (Name::from(n), v.clone())).collect();
                if let Ok(all) = ops::make_attrs(id, &fields) {
                    fields = all.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
                }
                let mut args = sample.args.clone();
                for _ in 0..1 + rng.next() % 2 {
                    match rng.next() % 4 {
                        0 if !fields.is_empty() => {
                            let at = rng.next() as usize % fields.len();
                            fields[at].1 = vary_value(&fields[at].1, &mut rng);
                        }
                        1 if !args.is_empty() => {
                            let at = rng.next() as usize % args.len();
                            args[at] = vary_type(&args[at], &mut rng);
                        }
                        _ => {
                            let (from, to) = (1 + rng.next() as i64 % 4, pick(&mut rng, &[0, 1, 3, 5]));
                            let to = if rng.next().is_multiple_of(5) { Dim::Any } else { Dim::Known(to) };
                            args = args.iter().map(|t| rename(t, from, to)).collect();
                        }
                    }
                }
                let Ok(attrs) = ops::make_attrs(id, &fields) else { continue };
                tried += 1;
                accepted +=
                    usize::from(catch_unwind(AssertUnwindSafe(|| op.infer(&attrs, &args).is_ok())).unwrap_or(true));
                let outcome = catch_unwind(AssertUnwindSafe(|| check(op, &attrs, &args, &mut rng)));
                let outcome = outcome.unwrap_or_else(|p| {
                    let what = p.downcast_ref::<String>().cloned();
                    Err(format!(
                        "panic: {}",
                        what.or(p.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
                    ))
                });
                if let Err(why) = outcome {
                    wrong.push(format!("{} {attrs:?} {args:?}: {why}", op.name()));
                }
            }
        }
    }
    std::panic::set_hook(hook);
    assert!(accepted * 4 > tried, "only {accepted} of {tried} variants are legal");
    assert!(wrong.is_empty(), "{} of {accepted} variants are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
