//! LSTM layers of floats, also with weights of bytes, with peepholes, projections, layer normalization, and input gates that are coupled to forget gates.

use super::{
    super::node::Node,
    Results,
    hybrid::{self, Data, Weight},
    recurrent::{sequence, steps},
    unary,
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};

/// Where a cell's parts are among the arguments; gates come in the order input, forget, cell, output.
struct Places {
    input: usize,
    recurrent: usize,
    /// Of input, forget and output gate.
    peephole: usize,
    bias: usize,
    projection: usize,
    projection_bias: usize,
    state: usize,
    cell: usize,
    norm: Option<usize>,
    aux: Option<usize>,
}

const FORWARD: Places = Places {
    input: 1,
    recurrent: 5,
    peephole: 9,
    bias: 12,
    projection: 16,
    projection_bias: 17,
    state: 18,
    cell: 19,
    norm: Some(20),
    aux: None,
};

/// What the options say.
#[derive(Copy, Clone)]
struct Options {
    activation: i8,
    cell_clip: f32,
    projection_clip: f32,
    /// Whether data of products with bytes is quantized with a zero point.
    asymmetric: bool,
}

const INPUT: usize = 0;
const FORGET: usize = 1;
const CELL: usize = 2;
const OUTPUT: usize = 3;

/// A gate's weights.
struct Gate {
    input: Weight,
    recurrent: Weight,
    peephole: Option<ExprId>,
    bias: Option<ExprId>,
    norm: Option<ExprId>,
    aux: Option<Weight>,
}

/// A cell.
struct Lstm {
    gates: [Option<Gate>; 4],
    projection: Option<(Weight, Option<ExprId>)>,
    options: Options,
}

/// A matrix that data is multiplied by.
fn matrix(n: &mut Node, i: usize) -> Convert<Option<Weight>> {
    n.opt(i).map(|_| hybrid::weight(n, i, DType::F32)).transpose()
}

/// An argument as floats, also where it is stored as bytes.
fn floats(n: &mut Node, i: usize) -> Convert<Option<ExprId>> {
    let Some(e) = n.opt(i) else { return Ok(None) };
    Ok(Some(if n.dtype(e)?.is_float() { n.cast(e, DType::F32)? } else { unary::widened(n, i)? }))
}

/// What the products of a step are of.
struct Step {
    x: Data,
    aux: Option<Data>,
    h: Data,
    /// The cell state.
    c: ExprId,
}

impl Lstm {
    fn new(n: &mut Node, p: &Places, options: Options) -> Convert<Lstm> {
        let mut gates = [None, None, None, None];
        for (k, gate) in gates.iter_mut().enumerate() {
            let Some(input) = matrix(n, p.input + k)? else { continue };
            let Some(recurrent) = matrix(n, p.recurrent + k)? else { continue };
            let peephole = match k {
                INPUT => floats(n, p.peephole)?,
                FORGET => floats(n, p.peephole + 1)?,
                OUTPUT => floats(n, p.peephole + 2)?,
                _ => None,
            };
            let norm = match p.norm {
                Some(at) => floats(n, at + k)?,
                None => None,
            };
            let aux = match p.aux {
                Some(at) => matrix(n, at + k)?,
                None => None,
            };
            *gate = Some(Gate { input, recurrent, peephole, bias: floats(n, p.bias + k)?, norm, aux });
        }
        if gates[FORGET..].iter().any(Option::is_none) {
            return n.refuse("weights of the forget, cell or output gate are missing");
        }
        let projection = match matrix(n, p.projection)? {
            Some(w) => Some((w, floats(n, p.projection_bias)?)),
            None => None,
        };
        Ok(Lstm { gates, projection, options })
    }

    /// What a gate sums up, without its activation.
    fn gate(&self, n: &mut Node, k: usize, of: &mut Step) -> Convert {
        let Some(g) = &self.gates[k] else { return n.refuse("a gate is missing") };
        let (forward, back) = (of.x.times(n, &g.input)?, of.h.times(n, &g.recurrent)?);
        let mut e = n.bin("add", forward, back)?;
        if let (Some(a), Some(w)) = (&mut of.aux, &g.aux) {
            let a = a.times(n, w)?;
            e = n.bin("add", e, a)?;
        }
        if let Some(p) = g.peephole {
            let seen = n.bin("multiply", of.c, p)?;
            e = n.bin("add", e, seen)?;
        }
        if let Some(norm) = g.norm {
            e = normalized(n, e)?;
            e = n.bin("multiply", e, norm)?;
        }
        match g.bias {
            Some(b) => n.bin("add", e, b),
            None => Ok(e),
        }
    }

    /// One step: the new output and cell state.
    fn step(&self, n: &mut Node, x: ExprId, aux: Option<ExprId>, h: ExprId, c: ExprId) -> Convert<(ExprId, ExprId)> {
        let Options { activation, cell_clip, projection_clip, asymmetric } = self.options;
        let data = |x| Data::new(x, asymmetric);
        let mut of = Step { x: data(x), aux: aux.map(data), h: data(h), c };
        let forget = self.gate(n, FORGET, &mut of)?;
        let forget = n.un("sigmoid", forget)?;
        let input = match self.gates[INPUT] {
            Some(_) => {
                let input = self.gate(n, INPUT, &mut of)?;
                n.un("sigmoid", input)?
            }
            None => {
                let one = n.num(forget, 1.0)?;
                n.bin("subtract", one, forget)?
            }
        };
        let new = self.gate(n, CELL, &mut of)?;
        let new = n.activate(new, activation)?;
        let kept = n.bin("multiply", forget, c)?;
        let added = n.bin("multiply", input, new)?;
        let mut c = n.bin("add", kept, added)?;
        if cell_clip > 0.0 {
            c = n.clip(c, -cell_clip as f64, cell_clip as f64)?;
        }
        of.c = c;
        let output = self.gate(n, OUTPUT, &mut of)?;
        let output = n.un("sigmoid", output)?;
        let seen = n.activate(c, activation)?;
        let mut h = n.bin("multiply", output, seen)?;
        if let Some((w, b)) = &self.projection {
            h = data(h).times(n, w)?;
            if let Some(b) = b {
                h = n.bin("add", h, *b)?;
            }
            if projection_clip > 0.0 {
                h = n.clip(h, -projection_clip as f64, projection_clip as f64)?;
            }
        }
        Ok((h, c))
    }
}

/// Rows brought to mean 0 and variance 1.
fn normalized(n: &mut Node, x: ExprId) -> Convert {
    let rows = |n: &mut Node, e| n.op("mean", &[e], &[("axis", [-1].into()), ("keepdims", true.into())]);
    let mean = rows(n, x)?;
    let d = n.bin("subtract", x, mean)?;
    let square = n.bin("multiply", d, d)?;
    let variance = rows(n, square)?;
    let variance = n.with("add", variance, 1e-8)?;
    let inverse = n.un("rsqrt", variance)?;
    n.bin("multiply", d, inverse)
}

/// The outputs for a sequence of inputs.
fn run(n: &mut Node, p: &Places, options: Options, inputs: &[ExprId], aux: &[ExprId]) -> Convert<Vec<ExprId>> {
    let cell = Lstm::new(n, p, options)?;
    let (mut h, mut c) = (n.x(p.state)?, n.x(p.cell)?);
    let mut results = Vec::new();
    for (i, &x) in inputs.iter().enumerate() {
        (h, c) = cell.step(n, x, aux.get(i).copied(), h, c)?;
        results.push(h);
    }
    Ok(results)
}

/// Options of all three layers; `asymmetric` is the place of one that they do not have in common.
fn options(n: &Node, asymmetric: u16) -> Options {
    let asymmetric = n.flag(asymmetric);
    Options { activation: n.byte(0), cell_clip: n.number(1), projection_clip: n.number(2), asymmetric }
}

/// UNIDIRECTIONAL_SEQUENCE_LSTM.
pub(in crate::frontend::tflite) fn sequence_lstm(n: &mut Node) -> Results {
    if n.quantized()? {
        return super::lstm_integer::sequence_lstm(n);
    }
    let (x, time_major) = (n.x(0)?, n.flag(3));
    let options = options(n, 4);
    let inputs = steps(n, x, time_major)?;
    let results = run(n, &FORWARD, options, &inputs, &[])?;
    Ok(vec![sequence(n, &results, time_major)?])
}

/// LSTM: one step.
pub(in crate::frontend::tflite) fn lstm(n: &mut Node) -> Results {
    let x = n.x(0)?;
    if n.quantized()? {
        return n.refuse("quantized results are not supported");
    }
    if n.byte(3) == 0 {
        let options = options(n, 4);
        return run(n, &FORWARD, options, &[x], &[]);
    }
    // The basic kernel: input and state side by side, one weight for all gates in the order input, cell, forget, output.
    let (h, b, c) = (n.x(1)?, n.x(3)?, n.x(4)?);
    let Some(w) = floats(n, 2)? else { return n.refuse("the weight is missing") };
    let both = n.concat(&[x, h], 1)?;
    let all = n.op("nn.dense", &[both, w], &[])?;
    let all = n.bin("add", all, b)?;
    let units = n.extent(c, 1)?;
    let gates = (0..4).map(|k| n.slice(all, 1, k * units, (k + 1) * units)).collect::<Convert<Vec<_>>>()?;
    let (input, forget, output) = (n.un("sigmoid", gates[0])?, n.un("sigmoid", gates[2])?, n.un("sigmoid", gates[3])?);
    let new = n.un("tanh", gates[1])?;
    let (added, kept) = (n.bin("multiply", input, new)?, n.bin("multiply", forget, c)?);
    let c = n.bin("add", added, kept)?;
    let seen = n.un("tanh", c)?;
    let h = n.bin("multiply", output, seen)?;
    Ok(vec![h, c, both, all])
}

/// BIDIRECTIONAL_SEQUENCE_LSTM.
pub(in crate::frontend::tflite) fn bidirectional_lstm(n: &mut Node) -> Results {
    const AUX: usize = 39;
    if n.quantized()? {
        return n.refuse("quantized results are not supported");
    }
    let forward = Places { state: 35, cell: 36, norm: None, aux: Some(40), ..FORWARD };
    let backward = Places {
        input: 18,
        recurrent: 22,
        peephole: 26,
        bias: 29,
        projection: 33,
        projection_bias: 34,
        state: 37,
        cell: 38,
        norm: None,
        aux: Some(44),
    };
    let (x, merge) = (n.x(0)?, n.flag(3));
    let time_major = n.op.options.and_then(|o| o.byte(4)).unwrap_or(1) != 0;
    let options = options(n, 5);
    let mut inputs = steps(n, x, time_major)?;
    let aux_steps = match n.opt(AUX) {
        Some(a) => steps(n, a, time_major)?,
        None => Vec::new(),
    };
    // With a second input but no weights for it, that is what the backward cell reads.
    let crossed = !aux_steps.is_empty() && n.opt(41).is_none();
    let aux: Vec<ExprId> = if crossed { Vec::new() } else { aux_steps.clone() };
    let ahead = run(n, &forward, options, &inputs, &aux)?;
    if crossed {
        inputs = aux_steps;
    }
    inputs.reverse();
    let aux: Vec<ExprId> = aux.into_iter().rev().collect();
    let mut back = run(n, &backward, options, &inputs, &aux)?;
    back.reverse();
    let (ahead, back) = (sequence(n, &ahead, time_major)?, sequence(n, &back, time_major)?);
    match merge {
        true => Ok(vec![n.concat(&[ahead, back], 2)?]),
        false => Ok(vec![ahead, back]),
    }
}
