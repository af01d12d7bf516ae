//! Recurrent layers of one gate, and SVDF.

use super::{
    super::{node::Node, quant::Target},
    Results,
    conv::biased,
    hybrid::{self, Data},
    unary,
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// Longer sequences would make a program of that many steps.
pub(super) const LONGEST: i64 = 4096;

/// A sequence's steps, each with the batch first.
pub(super) fn steps(n: &mut Node, x: ExprId, time_major: bool) -> Convert<Vec<ExprId>> {
    if n.rank(x)? != 3 {
        return n.refuse("a sequence should have three axes");
    }
    let axis = if time_major { 0 } else { 1 };
    let length = n.extent(x, axis)?;
    if length > LONGEST {
        return n.refuse(format!("a sequence of {length} is longer than {LONGEST}"));
    }
    let step = |i: i64| {
        let e = n.slice(x, axis as i64, i, i + 1)?;
        n.op("squeeze", &[e], &[("axis", [axis as i64].into())])
    };
    (0..length).map(step).collect()
}

/// Steps as a sequence.
pub(super) fn sequence(n: &mut Node, steps: &[ExprId], time_major: bool) -> Convert {
    let tuple = n.b.tuple(steps);
    let axis = if time_major { 0 } else { 1 };
    n.op("stack", &[tuple], &[("axis", axis.into())])
}

/// Where a cell's weights, bias and state are among the arguments.
struct Cell {
    weight: usize,
    recurrent: usize,
    bias: usize,
    state: usize,
    /// A second input, and its weight.
    aux: Option<(usize, usize)>,
}

/// The results of a cell for a sequence of inputs, in the order in which they come.
fn run(
    n: &mut Node,
    cell: &Cell,
    inputs: &[ExprId],
    aux: &[ExprId],
    code: i8,
    asymmetric: bool,
) -> Convert<Vec<ExprId>> {
    let (w, r) = (hybrid::weight(n, cell.weight, DType::F32)?, hybrid::weight(n, cell.recurrent, DType::F32)?);
    let mut state = n.x(cell.state)?;
    let side = match cell.aux {
        Some((_, weight)) if !aux.is_empty() => Some(hybrid::weight(n, weight, DType::F32)?),
        _ => None,
    };
    let mut results = Vec::new();
    for (i, &x) in inputs.iter().enumerate() {
        let product = |n: &mut Node, x, w| Data::new(x, asymmetric).times(n, w);
        let mut e = product(n, x, &w)?;
        if let (Some(side), Some(&a)) = (&side, aux.get(i)) {
            let a = product(n, a, side)?;
            e = n.bin("add", e, a)?;
        }
        let back = product(n, state, &r)?;
        e = n.bin("add", e, back)?;
        if let Some(b) = n.opt(cell.bias) {
            e = n.bin("add", e, b)?;
        }
        state = n.activate(e, code)?;
        results.push(state);
    }
    Ok(results)
}

const CELL: Cell = Cell { weight: 1, recurrent: 2, bias: 3, state: 4, aux: None };

/// RNN: one step.
pub(in crate::frontend::tflite) fn rnn(n: &mut Node) -> Results {
    let (x, code) = (n.x(0)?, n.byte(0));
    run(n, &CELL, &[x], &[], code, n.flag(1))
}

/// UNIDIRECTIONAL_SEQUENCE_RNN.
pub(in crate::frontend::tflite) fn sequence_rnn(n: &mut Node) -> Results {
    let (x, time_major, code) = (n.x(0)?, n.flag(0), n.byte(1));
    let inputs = steps(n, x, time_major)?;
    let results = run(n, &CELL, &inputs, &[], code, n.flag(2))?;
    Ok(vec![sequence(n, &results, time_major)?])
}

/// BIDIRECTIONAL_SEQUENCE_RNN.
pub(in crate::frontend::tflite) fn bidirectional_rnn(n: &mut Node) -> Results {
    let (x, time_major, code, merge, asymmetric) = (n.x(0)?, n.flag(0), n.byte(1), n.flag(2), n.flag(3));
    let forward = Cell { aux: Some((9, 10)), ..CELL };
    let backward = Cell { weight: 5, recurrent: 6, bias: 7, state: 8, aux: Some((9, 11)) };
    let mut inputs = steps(n, x, time_major)?;
    let aux_steps = match n.opt(9) {
        Some(a) => steps(n, a, time_major)?,
        None => Vec::new(),
    };
    // With a second input but no weights for it, that is what the backward cell reads.
    let crossed = !aux_steps.is_empty() && n.opt(10).is_none();
    let aux: Vec<ExprId> = if crossed { Vec::new() } else { aux_steps.clone() };
    let ahead = run(n, &forward, &inputs, &aux, code, asymmetric)?;
    if crossed {
        inputs = aux_steps;
    }
    inputs.reverse();
    let aux: Vec<ExprId> = aux.into_iter().rev().collect();
    let mut back = run(n, &backward, &inputs, &aux, code, asymmetric)?;
    back.reverse();
    let (ahead, back) = (sequence(n, &ahead, time_major)?, sequence(n, &back, time_major)?);
    match merge {
        true => Ok(vec![n.concat(&[ahead, back], 2)?]),
        false => Ok(vec![ahead, back]),
    }
}

/// SVDF: a layer whose weights are products of a feature's and a time's part, with a memory.
pub(in crate::frontend::tflite) fn svdf(n: &mut Node) -> Results {
    let (x, state, mut time) = (n.x(0)?, n.x(4)?, n.x(2)?);
    let (rank, code, quantized) = (n.int(0, 0), n.byte(1), n.quantized()?);
    let (filters, memory) = (n.extent(time, 0)?, n.extent(time, 1)?);
    if rank < 1 || filters % rank != 0 {
        return n.refuse(format!("{filters} filters do not divide by a rank of {rank}"));
    }
    let seen = match quantized {
        true => seen_in_integers(n, x)?,
        false => {
            let feature = hybrid::weight(n, 1, DType::F32)?;
            Data::new(x, n.flag(2)).times(n, &feature)?
        }
    };
    let seen = n.expand(seen, -1)?;
    let state = n.reshape(state, &[-1, filters, memory])?;
    let kept = n.slice(state, 2, 1, memory)?;
    let mut state = if memory > 1 { n.concat(&[kept, seen], 2)? } else { seen };
    if quantized {
        (state, time) = (n.cast(state, DType::I32)?, n.cast(time, DType::I32)?);
    } else if !n.dtype(time)?.is_float() {
        time = unary::widened(n, 2)?;
    }
    let weighted = n.bin("multiply", state, time)?;
    let sums = n.op("sum", &[weighted], &[("axis", [-1].into())])?;
    let sums = n.reshape(sums, &[-1, filters / rank, rank])?;
    let e = n.op("sum", &[sums], &[("axis", [-1].into())])?;
    if !quantized {
        return Ok(vec![hybrid::finish(n, e, n.opt(3), code)?]);
    }
    // The kernel takes this activation alone, and means the range of the results by it.
    if code != 1 {
        return n.refuse(format!("fused activation {code} of integers is not supported"));
    }
    let e = biased(n, e, n.opt(3))?;
    let ((of_time, _), (of_state, _), (scale, zero)) = (n.quant_in(2)?, n.quant_in(4)?, n.quant_out(0)?);
    let dtype = n.out_dtype(0)?;
    Ok(vec![n.scaled(e, 0, (of_state * of_time / scale) as f64, Target { zero, dtype })?])
}

/// What is new in the memory of an integer SVDF, of 16 bits.
fn seen_in_integers(n: &mut Node, x: ExprId) -> Convert {
    let (feature, one) = (n.x(1)?, n.f32(1.0));
    let ((scale, zero), (of_feature, _), (of_state, _)) = (n.quant_in(0)?, n.quant_in(1)?, n.quant_in(4)?);
    let (zx, zw) = (n.b.scalar(DType::I32, zero as f64), n.b.scalar(DType::I32, 0.0));
    let attrs = [("units", n.extent(feature, 0)?.into()), ("out_dtype", DType::I32.into())];
    let sums = n.op("qnn.dense", &[x, feature, zx, zw, one, one], &attrs)?;
    n.scaled(sums, 0, (scale * of_feature / of_state) as f64, Target { zero: 0, dtype: DType::I16 })
}
