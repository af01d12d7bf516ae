//! LSTM layers of 8-bit integers whose gates and cell state have 16 bits.

use super::{
    super::{
        fixed::SHORT,
        node::Node,
        quant::{Target, range},
    },
    Results,
    recurrent::{sequence, steps},
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// A gate: weights and the factors that bring both products to a scale that the gate's function takes.
struct Gate {
    input: ExprId,
    recurrent: ExprId,
    bias: Option<ExprId>,
    input_factor: f64,
    recurrent_factor: f64,
}

/// The layer.
struct Lstm {
    /// Input, forget, cell and output gate; no input gate where it is what the forget gate leaves.
    gates: [Option<Gate>; 4],
    input_zero: i64,
    state_zero: i64,
    hidden_zero: i64,
    hidden_factor: f64,
    /// The cell state's scale is two to this power.
    cell_exponent: i64,
    cell_clip: Option<i64>,
}

/// Integer bits of what the gates' functions take.
const GATE_BITS: i64 = 3;

impl Lstm {
    fn new(n: &mut Node) -> Convert<Lstm> {
        for (i, what) in [
            (9, "peepholes"),
            (10, "peepholes"),
            (16, "a projection"),
            (20, "layer normalization"),
            (21, "layer normalization"),
        ] {
            if n.opt(i).is_some() {
                return n.refuse(format!("{what} of integers are not supported"));
            }
        }
        let (input, input_zero) = n.quant_in(0)?;
        let (state, state_zero) = n.quant_in(18)?;
        let (cell, _) = n.quant_in(19)?;
        let cell_exponent = cell.log2().round() as i64;
        if (cell as f64 - (cell_exponent as f64).exp2()).abs() > 1e-3 * cell as f64
            || !(-15..=-9).contains(&cell_exponent)
        {
            return n.refuse(format!("the cell state's scale is {cell}, but should be a power of two"));
        }
        let Some((hidden, hidden_zero)) = n.intermediate(4).map(|t| n.single(t)).transpose()? else {
            return n.refuse("the scale of the hidden state is missing");
        };
        let mut gates = [None, None, None, None];
        for (k, gate) in gates.iter_mut().enumerate() {
            if n.opt(1 + k).is_none() {
                continue;
            }
            // Gates take numbers of 12 bits behind the point.
            let unit = (-12f32).exp2();
            *gate = Some(Gate {
                input: n.x(1 + k)?,
                recurrent: n.x(5 + k)?,
                bias: n.opt(12 + k),
                input_factor: (n.quant_in(1 + k)?.0 * input / unit) as f64,
                recurrent_factor: (n.quant_in(5 + k)?.0 * state / unit) as f64,
            });
        }
        if gates[1..].iter().any(Option::is_none) {
            return n.refuse("weights of the forget, cell or output gate are missing");
        }
        let clip = n.number(1);
        let short = range(DType::I16);
        Ok(Lstm {
            gates,
            input_zero,
            state_zero,
            hidden_zero,
            hidden_factor: ((-15f64).exp2() / hidden as f64 * (-15f64).exp2()) as f32 as f64,
            cell_exponent,
            cell_clip: (clip > 0.0).then(|| ((clip / cell) as i64).clamp(short.0, short.1)),
        })
    }

    /// What a gate's function is applied to.
    fn gate(&self, n: &mut Node, k: usize, x: ExprId, h: ExprId) -> Convert {
        let Some(g) = &self.gates[k] else { return n.refuse("a gate is missing") };
        let product = |n: &mut Node, x: ExprId, w: ExprId, zero: i64| -> Convert {
            let (zx, zw) = (n.b.scalar(DType::I32, zero as f64), n.b.scalar(DType::I32, 0.0));
            let one = n.f32(1.0);
            n.op("qnn.dense", &[x, w, zx, zw, one, one], &[("out_dtype", DType::I32.into())])
        };
        let mut forward = product(n, x, g.input, self.input_zero)?;
        if let Some(b) = g.bias {
            forward = n.bin("add", forward, b)?;
        }
        let back = product(n, h, g.recurrent, self.state_zero)?;
        let forward = n.scaled(forward, 0, g.input_factor, Target { zero: 0, dtype: DType::I16 })?;
        let back = n.scaled(back, 0, g.recurrent_factor, Target { zero: 0, dtype: DType::I32 })?;
        let forward = n.cast(forward, DType::I32)?;
        let sum = n.bin("add", forward, back)?;
        short(n, sum)
    }

    fn step(&self, n: &mut Node, x: ExprId, h: ExprId, c: ExprId) -> Convert<(ExprId, ExprId)> {
        let logistic = |n: &mut Node, e| n.table(e, DType::I16, |q| SHORT.logistic(q, GATE_BITS));
        let forget = self.gate(n, 1, x, h)?;
        let forget = logistic(n, forget)?;
        let input = match self.gates[0] {
            Some(_) => {
                let input = self.gate(n, 0, x, h)?;
                logistic(n, input)?
            }
            None => {
                let one = n.num(forget, SHORT.one() as f64)?;
                n.bin("subtract", one, forget)?
            }
        };
        let new = self.gate(n, 2, x, h)?;
        let new = n.table(new, DType::I16, |q| SHORT.tanh(q, GATE_BITS))?;
        let kept = product(n, forget, c)?;
        let kept = n.divided(kept, 15)?;
        let added = product(n, input, new)?;
        let added = n.divided(added, 30 + self.cell_exponent)?;
        let sum = n.bin("add", kept, added)?;
        let mut c = short(n, sum)?;
        if let Some(clip) = self.cell_clip {
            c = n.within(c, (-clip, clip))?;
        }
        let output = self.gate(n, 3, x, h)?;
        let output = logistic(n, output)?;
        let bits = 15 + self.cell_exponent;
        let seen = n.table(c, DType::I16, |q| SHORT.tanh(q, bits))?;
        let hidden = product(n, output, seen)?;
        let to = Target { zero: self.hidden_zero, dtype: DType::I8 };
        Ok((n.scaled(hidden, 0, self.hidden_factor, to)?, c))
    }
}

/// Products of 16-bit numbers, in 32 bits.
fn product(n: &mut Node, a: ExprId, b: ExprId) -> Convert {
    let (a, b) = (n.cast(a, DType::I32)?, n.cast(b, DType::I32)?);
    n.bin("multiply", a, b)
}

/// 32-bit numbers as the nearest of 16 bits.
fn short(n: &mut Node, e: ExprId) -> Convert {
    let e = n.within(e, range(DType::I16))?;
    n.cast(e, DType::I16)
}

/// UNIDIRECTIONAL_SEQUENCE_LSTM of 8-bit integers with a cell state of 16 bits.
pub(super) fn sequence_lstm(n: &mut Node) -> Results {
    let (x, time_major) = (n.x(0)?, n.flag(3));
    let (mut h, mut c) = (n.x(18)?, n.x(19)?);
    if n.dtype(x)? != DType::I8 || n.dtype(c)? != DType::I16 {
        return n.refuse("of integers, only 8 bits with a cell state of 16 bits are supported");
    }
    let layer = Lstm::new(n)?;
    let mut results = Vec::new();
    for x in steps(n, x, time_major)? {
        (h, c) = layer.step(n, x, h, c)?;
        results.push(h);
    }
    Ok(vec![sequence(n, &results, time_major)?])
}
