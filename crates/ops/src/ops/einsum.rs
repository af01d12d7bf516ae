//! Sums of products, as an equation of axis labels says.

use std::{collections::BTreeSet, num::Wrapping};

use super::{
    AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work,
    nn::{geometry::all_offsets, numbers::Num},
    op_bail, op_ensure,
    util::{broadcast_shapes, elements, field, op_head, sample, t, tuple_arg, work_per_element},
};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar},
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(super) const OPS: Family = &[&Einsum];

/// The label of `...`; it sorts before letters.
const ELLIPSIS: char = '\0';

/// An equation: the labels of each operand's axes, and of the result's.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Equation {
    inputs: Vec<Vec<char>>,
    output: Vec<char>,
}

impl Equation {
    /// Reads an equation. Without an arrow, the result has the labels that occur once, in order, after an ellipsis.
    fn parse(text: &str) -> Result<Equation, OpError> {
        let compact: String = text.chars().filter(|c| *c != ' ').collect();
        let (inputs, output) = match compact.split_once("->") {
            Some((inputs, output)) => (inputs, Some(labels(output)?)),
            None => (&compact[..], None),
        };
        let inputs = inputs.split(',').map(labels).collect::<Result<Vec<_>, OpError>>()?;
        let output = output.unwrap_or_else(|| {
            let all: BTreeSet<char> = inputs.iter().flatten().copied().collect();
            let once = |c: &char| *c == ELLIPSIS || inputs.iter().flatten().filter(|o| *o == c).count() == 1;
            all.into_iter().filter(once).collect()
        });
        Ok(Equation { inputs, output })
    }
}

/// The labels of one operand.
fn labels(text: &str) -> Result<Vec<char>, OpError> {
    let parts: Vec<&str> = text.split("...").collect();
    op_ensure!(parts.len() <= 2, "C1: `{text}` has more than one ellipsis");
    if let Some(c) = parts.concat().chars().find(|c| !c.is_ascii_alphabetic()) {
        op_bail!("C1: `{c}` in `{text}` is neither a letter nor part of an ellipsis");
    }
    let parts: Vec<Vec<char>> = parts.iter().map(|p| p.chars().collect()).collect();
    Ok(parts.join(&ELLIPSIS))
}

/// An axis of an operand: the loop that runs along it, and whether it has one element for all iterations.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Along {
    /// First the result's axes count, then those that are summed.
    loop_number: usize,
    repeats: bool,
}

/// An equation over operands of given shapes.
#[derive(Clone, Debug)]
struct Plan {
    shape: Vec<Dim>,
    over: Vec<Dim>,
    /// Per operand and axis.
    operands: Vec<Vec<Along>>,
}

/// The extent that two axes of one label have together.
fn common(a: Dim, b: Dim, label: char) -> Result<Dim, OpError> {
    Ok(match (a, b) {
        (Dim::Known(1), d) | (d, Dim::Known(1)) => d,
        (Dim::Known(m), Dim::Known(n)) if m != n => op_bail!("C4: the extents {m} and {n} of `{label}` are not equal"),
        (Dim::Known(n), _) | (_, Dim::Known(n)) => Dim::Known(n),
        _ => Dim::Any,
    })
}

impl Plan {
    fn new(equation: &Equation, shapes: &[&[Dim]]) -> Result<Plan, OpError> {
        op_ensure!(
            equation.inputs.len() == shapes.len(),
            "C2: the equation has {} operands, but {} are given",
            equation.inputs.len(),
            shapes.len()
        );
        let mut extents: Vec<(char, Dim)> = Vec::new();
        let mut dots: Vec<Dim> = Vec::new();
        // Which axes each label of each operand means.
        let mut spans = Vec::new();
        for (subscript, shape) in equation.inputs.iter().zip(shapes) {
            let named = subscript.iter().filter(|c| **c != ELLIPSIS).count();
            let fits = shape.len() == named || (shape.len() > named && subscript.contains(&ELLIPSIS));
            op_ensure!(fits, "C3: an operand of {} axes has {named} labels", shape.len());
            let mut at = 0;
            for &label in subscript {
                let n = if label == ELLIPSIS { shape.len() - named } else { 1 };
                match extents.iter_mut().find(|(l, _)| *l == label) {
                    _ if label == ELLIPSIS => {
                        dots = broadcast_shapes(&dots, &shape[at..at + n]).map_err(|e| OpError(format!("C4: {e}")))?;
                    }
                    Some((_, d)) => *d = common(*d, shape[at], label)?,
                    None => extents.push((label, shape[at])),
                }
                spans.push((label, n));
                at += n;
            }
        }
        let extent = |label: char| extents.iter().find(|(l, _)| *l == label).map(|(_, d)| *d);
        // The loops of each label: where it is first in the result, or among the sums.
        let (mut loops, mut first): (Vec<Dim>, Vec<(char, usize)>) = (Vec::new(), Vec::new());
        let mut add = |label: char, loops: &mut Vec<Dim>| {
            if !first.iter().any(|(l, _)| *l == label) {
                first.push((label, loops.len()));
            }
            match (label, extent(label)) {
                (ELLIPSIS, _) => loops.extend(&dots),
                (_, Some(d)) => loops.push(d),
                (label, None) => op_bail!("C5: `{label}` of the result is no operand's label"),
            }
            Ok::<_, OpError>(())
        };
        for &label in &equation.output {
            add(label, &mut loops)?;
        }
        let results = loops.len();
        let all: BTreeSet<char> = equation.inputs.iter().flatten().copied().collect();
        for label in all.into_iter().filter(|c| !equation.output.contains(c)) {
            add(label, &mut loops)?;
        }
        let mut spans = spans.into_iter();
        let operands = equation.inputs.iter().zip(shapes).map(|(subscript, shape)| {
            let mut along = Vec::new();
            for (label, n) in spans.by_ref().take(subscript.len()) {
                let start = first.iter().find(|(l, _)| *l == label).map_or(0, |(_, at)| *at);
                let start = if label == ELLIPSIS { start + dots.len() - n } else { start };
                for (loop_number, &extent) in loops.iter().enumerate().skip(start).take(n) {
                    let repeats = shape[along.len()] == Dim::Known(1) && extent != Dim::Known(1);
                    along.push(Along { loop_number, repeats });
                }
            }
            along
        });
        let operands = operands.collect();
        let over = loops.split_off(results);
        Ok(Plan { shape: loops, over, operands })
    }

    fn of_types(attrs: &Attrs, types: &[&TensorType]) -> Result<Plan, OpError> {
        Plan::new(&Equation::parse(attrs.str("equation"))?, &types.iter().map(|x| &x.shape[..]).collect::<Vec<_>>())
    }

    /// A plan for known extents.
    fn of_extents(attrs: &Attrs, shapes: &[Vec<i64>]) -> Result<Plan, OpError> {
        let shapes: Vec<Vec<Dim>> = shapes.iter().map(|s| s.iter().map(|&n| Dim::Known(n)).collect()).collect();
        let shapes: Vec<&[Dim]> = shapes.iter().map(|s| &s[..]).collect();
        Plan::new(&Equation::parse(attrs.str("equation"))?, &shapes)
    }
}

/// Extents that are known.
fn known(dims: &[Dim]) -> Vec<i64> {
    dims.iter().map(|d| d.known().expect("made of known extents")).collect()
}

fn eval_einsum<T: Num>(plan: &Plan, operands: &[&Tensor]) -> Tensor {
    let (shape, over) = (known(&plan.shape), known(&plan.over));
    // How far each operand's elements lie from its start, per iteration of the outer and of the inner loops.
    let offsets = |x: &Tensor, along: &[Along], extents: &[i64], first: usize| {
        let strides = row_major_strides(x.shape());
        let table = |(k, &n): (usize, &i64)| {
            let step: usize = (along.iter().zip(&strides))
                .filter(|(a, _)| a.loop_number == first + k && !a.repeats)
                .map(|(_, s)| s)
                .sum();
            (0..n as usize).map(|i| i * step).collect()
        };
        all_offsets(&extents.iter().enumerate().map(table).collect::<Vec<Vec<usize>>>())
    };
    let pairs = || operands.iter().zip(&plan.operands);
    let values: Vec<Vec<T>> = operands.iter().map(|x| T::read(x)).collect();
    let outer: Vec<Vec<usize>> = pairs().map(|(x, a)| offsets(x, a, &shape, 0)).collect();
    let inner: Vec<Vec<usize>> = pairs().map(|(x, a)| offsets(x, a, &over, shape.len())).collect();
    let product = |i: usize, r: usize| {
        let factor = |k: usize| values[k][outer[k][i] + inner[k][r]];
        (1..values.len()).fold(factor(0), |p, k| p * factor(k))
    };
    let out: Vec<T> = (0..outer[0].len())
        .map(|i| {
            let mut sum = T::default();
            (0..inner[0].len()).for_each(|r| sum += product(i, r));
            sum
        })
        .collect();
    T::write(operands[0].dtype(), &shape.iter().map(|&n| n as usize).collect::<Vec<_>>(), &out)
}

/// `einsum`.
#[derive(Debug)]
struct Einsum;

impl Op for Einsum {
    op_head!(
        "einsum",
        "The products of the operands' elements, where axes of one label run together and `...` means any further axes, which
        broadcast; summed over the labels that the result lacks. Without an arrow, the result has the axes of `...` and the
        labels that occur once, in alphabetical order. C1: labels are letters, and an operand has at most one ellipsis. C2: the
        equation has as many operands as the tuple. C3: an operand has an axis per label. C4: the extents of a label are equal
        or 1. C5: the result's labels are among the operands'. C6: all hold numbers of one type.",
        ["data"],
        [field("equation", AttrKind::Str, AttrDefault::Required)],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let xs = tuple_arg(args, 0, "data")?;
        let Some(first) = xs.first() else { op_bail!("C2: `data` holds no tensors") };
        op_ensure!(
            first.dtype != DType::Bool && xs.iter().all(|x| x.dtype == first.dtype),
            "C6: `data` is {}, which should hold numbers of one type",
            args[0]
        );
        Ok(TensorType::of(Plan::of_types(attrs, &xs)?.shape, first.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let Value::Tuple(fields) = &args[0] else { op_bail!("C2: `data` is not a tuple") };
        let xs: Vec<&Tensor> = fields.iter().map(Value::tensor).collect();
        let shapes: Vec<Vec<i64>> = xs.iter().map(|x| x.shape().iter().map(|&n| n as i64).collect()).collect();
        let plan = Plan::of_extents(attrs, &shapes)?;
        Ok(match xs[0].dtype().is_float() {
            true => eval_einsum::<f64>(&plan, &xs),
            false => eval_einsum::<Wrapping<i64>>(&plan, &xs),
        }
        .into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let xs = tuple_arg(args, 0, "data").unwrap_or_default();
        let Ok(plan) = Plan::of_types(attrs, &xs) else { return AxisMap::opaque(xs.iter().map(|x| x.rank())) };
        let role = |(a, d): (&Along, &Dim)| match d {
            Dim::Known(_) if a.loop_number >= plan.shape.len() => AxisRole::Reduced,
            Dim::Known(_) if a.repeats => AxisRole::Broadcasts(a.loop_number),
            Dim::Known(_) => AxisRole::Maps(a.loop_number),
            _ => AxisRole::Opaque,
        };
        let operand = |(along, x): (&Vec<Along>, &&TensorType)| along.iter().zip(x.shape.iter()).map(role).collect();
        AxisMap(plan.operands.iter().zip(&xs).map(operand).collect())
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let xs = tuple_arg(args, 0, "data").unwrap_or_default();
        let terms: f64 = match Plan::of_types(attrs, &xs) {
            Ok(plan) => plan.over.iter().map(|d| d.known().unwrap_or(1) as f64).product(),
            Err(_) => 1.0,
        };
        Work { flops: terms * xs.len() as f64 * elements(out), ..work_per_element(0.0, args, out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let xs: Vec<_> = args[0].fields().iter().map(Operand::tensor).collect();
        let shapes: Vec<Vec<i64>> = xs.iter().map(|x| b.shape(*x).to_vec()).collect();
        let plan = Plan::of_extents(attrs, &shapes)?;
        let (shape, over, dtype) = (known(&plan.shape), known(&plan.over), b.dtype(xs[0]));
        // Half-precision sums run in float32.
        let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        let product = |b: &Builder, i: &[Scalar], r: &[Scalar]| {
            let loops = [i, r].concat();
            let place = |a: &Along| if a.repeats { Scalar::index(0) } else { loops[a.loop_number].clone() };
            let factors =
                xs.iter().zip(&plan.operands).map(|(x, along)| b.read(*x, along.iter().map(place)).cast(wide));
            factors.reduce(|p, f| p * f).expect("at least one operand")
        };
        if over.is_empty() {
            return Ok(b.map(&shape, |b, i| product(b, i, &[]).cast(dtype)).into());
        }
        let sum = b.reduce(&shape, &over, Combine::Sum, product);
        if wide == dtype {
            return Ok(sum.into());
        }
        Ok(b.map(&shape, |b, i| b.read(sum, i.iter().cloned()).cast(dtype)).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |equation: &str, shapes: &[&[i64]], d: DType| {
            let fields = Type::tuple(shapes.iter().map(|s| t(s, d)));
            sample([("equation", AttrValue::from(equation))], vec![fields])
        };
        vec![
            call("ij,jk->ik", &[&[2, 3], &[3, 4]], DType::F32),
            call("ij, jk", &[&[2, 3], &[3, 4]], DType::I8),
            call("ii", &[&[3, 3]], DType::F32),
            call("ii->i", &[&[3, 3]], DType::I32),
            call("ba", &[&[2, 3]], DType::F32),
            call("...ab,...cb->...ac", &[&[2, 1, 2, 3], &[4, 4, 3]], DType::F32),
            call("i...->...", &[&[3, 2]], DType::F16),
            call("a...b->ab", &[&[2, 3, 2]], DType::F32),
            call("ij,i,kj->k", &[&[2, 3], &[1], &[4, 3]], DType::F32),
            call(",i->i", &[&[], &[3]], DType::F32),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations() {
        let read = |text: &str| Equation::parse(text).map(|e| (e.inputs, e.output));
        let l = |s: &str| s.replace('.', "\0").chars().collect::<Vec<char>>();
        assert_eq!(read("ab, bC ->C"), Ok((vec![l("ab"), l("bC")], l("C"))));
        assert_eq!(read("b...a"), Ok((vec![l("b.a")], l(".ab"))));
        assert_eq!(read("aB,a"), Ok((vec![l("aB"), l("a")], l("B"))));
        for wrong in ["a1", "a..b", "...a...", "a-b", "a->b,c", "a->b->c"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn extents_of_a_label() {
        let shape =
            |text: &str, shapes: &[&[Dim]]| Plan::new(&Equation::parse(text).expect("legal"), shapes).map(|p| p.shape);
        let (two, any) = (Dim::Known(2), Dim::Any);
        assert_eq!(shape("a,a->a", &[&[two], &[any]]), Ok(vec![two]));
        assert!(shape("a,a->a", &[&[two], &[Dim::Known(3)]]).is_err());
        assert!(shape("a->b", &[&[two]]).is_err());
    }
}
