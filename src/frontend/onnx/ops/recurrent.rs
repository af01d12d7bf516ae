//! Recurrent cells: laid out over time where the number of steps is known and not large, loops of the program where it is not.

use super::{
    Row,
    quant::{dynamically_quantized, product_of_quantized, signed_weight},
    repeat::{Captured, Iteration, repeated},
    row,
};
use crate::{
    frontend::{
        Convert,
        onnx::{
            importer::{Tens, Val},
            node::Node,
        },
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[
    row("GRU", |n| recurrent(n, Kind::Gru, Form::Floats)),
    row("LSTM", |n| recurrent(n, Kind::Lstm, Form::Floats)),
    row("RNN", |n| recurrent(n, Kind::Plain, Form::Floats)),
];

/// `com.microsoft`'s LSTM whose weights are of 8 bits, and whose inputs and states are quantized as they come.
pub(super) fn dynamically_quantized_lstm(n: &mut Node) -> Convert<Vec<Val>> {
    recurrent(n, Kind::Lstm, Form::Bytes)
}

/// A matrix that inputs or states are multiplied by.
#[derive(Copy, Clone)]
enum Weights {
    /// (outputs, inputs), of floats.
    Floats(ExprId),
    /// (inputs, outputs), of 8 bits; a scale and a zero point, or one of each for each output.
    Bytes { values: ExprId, scale: ExprId, zero: Option<ExprId> },
}

impl Weights {
    fn times(self, n: &mut Node, x: ExprId) -> Convert {
        match self {
            Weights::Floats(w) => n.op("nn.dense", &[x, w], &[]),
            Weights::Bytes { values, scale, zero } => {
                let [x, sx, zx] = dynamically_quantized(n, x)?;
                product_of_quantized(n, (x, sx, Some(zx)), (values, scale, zero))
            }
        }
    }

    /// The same within a loop's body.
    fn within(self, outside: &mut impl FnMut(ExprId) -> ExprId) -> Weights {
        match self {
            Weights::Floats(w) => Weights::Floats(outside(w)),
            Weights::Bytes { values, scale, zero } => {
                Weights::Bytes { values: outside(values), scale: outside(scale), zero: zero.map(outside) }
            }
        }
    }
}

/// How a node has its weights.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Form {
    /// (directions, outputs, inputs), of floats.
    Floats,
    /// (directions, inputs, outputs), of 8 bits: scales are inputs 8 and 10 of the node, zero points 9 and 11.
    Bytes,
}

impl Form {
    /// The axes of outputs and of inputs.
    fn axes(self) -> (usize, usize) {
        match self {
            Form::Floats => (1, 2),
            Form::Bytes => (2, 1),
        }
    }

    /// The weights of inputs (the node's input 1) or of states (2) in one direction.
    fn weights(self, n: &mut Node, input: usize, direction: i64) -> Convert<Weights> {
        let of = |n: &mut Node, e: ExprId| n.index(e, 0, direction);
        let values = n.x(input)?;
        let values = of(n, values)?;
        if self == Form::Floats {
            return Ok(Weights::Floats(values));
        }
        let (scale, zero) = (n.x(6 + 2 * input)?, n.opt(7 + 2 * input)?);
        let zero = zero.map(|z| of(n, z)).transpose()?;
        Ok(Weights::Bytes { values, scale: of(n, scale)?, zero })
    }
}

/// The most steps that are laid out one after another.
const MOST_LAID_OUT: i64 = 256;

#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    Plain,
    Gru,
    Lstm,
}

/// An activation, with its numbers.
#[derive(Clone)]
struct Activation {
    name: String,
    alpha: Option<f64>,
    beta: Option<f64>,
}

impl Activation {
    fn apply(&self, n: &mut Node, x: ExprId) -> Convert {
        let (alpha, beta) = (self.alpha, self.beta);
        match self.name.as_str() {
            "relu" => n.un("nn.relu", x),
            "tanh" => n.un("tanh", x),
            "sigmoid" => n.un("sigmoid", x),
            "affine" => {
                let y = n.with("multiply", x, alpha.unwrap_or(1.0))?;
                n.with("add", y, beta.unwrap_or(0.0))
            }
            "leakyrelu" => n.op("nn.leaky_relu", &[x], &[("alpha", alpha.unwrap_or(0.01).into())]),
            "scaledtanh" => {
                let y = n.with("multiply", x, beta.unwrap_or(1.0))?;
                let y = n.un("tanh", y)?;
                n.with("multiply", y, alpha.unwrap_or(1.0))
            }
            "hardsigmoid" => {
                let y = n.with("multiply", x, alpha.unwrap_or(0.2))?;
                let y = n.with("add", y, beta.unwrap_or(0.5))?;
                n.op("clip", &[y], &[("a_min", 0.0.into()), ("a_max", 1.0.into())])
            }
            "softsign" => {
                let below = n.un("abs", x)?;
                let below = n.with("add", below, 1.0)?;
                n.div(x, below)
            }
            "softplus" => super::activation::softplus(n, x),
            other => Err(n.refuse(format!("the activation `{other}` is not supported"))),
        }
    }
}

fn activations(n: &Node, kind: Kind, directions: usize) -> Convert<Vec<Vec<Activation>>> {
    let defaults: &[&str] = match kind {
        Kind::Plain => &["Tanh"],
        Kind::Gru => &["Sigmoid", "Tanh"],
        Kind::Lstm => &["Sigmoid", "Tanh", "Tanh"],
    };
    let names = n.texts("activations")?.filter(|l| !l.is_empty());
    let names =
        names.unwrap_or_else(|| (0..directions).flat_map(|_| defaults.iter().map(|s| (*s).to_owned())).collect());
    n.ensure(names.len() == directions * defaults.len(), || format!("it names {} activations", names.len()))?;
    let (alpha, beta) =
        (n.floats("activation_alpha")?.unwrap_or_default(), n.floats("activation_beta")?.unwrap_or_default());
    let all: Vec<Activation> = names
        .iter()
        .enumerate()
        .map(|(i, s)| Activation { name: s.to_lowercase(), alpha: alpha.get(i).copied(), beta: beta.get(i).copied() })
        .collect();
    Ok(all.chunks(defaults.len()).map(<[Activation]>::to_vec).collect())
}

/// What one direction runs with.
struct Cell<'a> {
    kind: Kind,
    /// Weights of the gates that see the hidden state as it is. Their biases are in what the inputs contribute.
    r: Weights,
    /// Weights of a GRU's last gate, (hidden, hidden), where it sees the state after that is reset.
    last: Option<ExprId>,
    /// The bias of a GRU's last gate, (hidden), that is reset with what it is added to.
    last_bias: Option<ExprId>,
    /// Peepholes for input, output and forget gate.
    p: Option<Vec<ExprId>>,
    f: &'a [Activation],
    clip: Option<f64>,
    coupled: bool,
}

impl Cell<'_> {
    /// The same within a loop's body.
    fn within(&self, outside: &mut impl FnMut(ExprId) -> ExprId) -> Self {
        Cell {
            r: self.r.within(outside),
            last: self.last.map(&mut *outside),
            last_bias: self.last_bias.map(&mut *outside),
            p: self.p.as_ref().map(|p| p.iter().map(|&e| outside(e)).collect()),
            ..*self
        }
    }

    fn act(&self, n: &mut Node, k: usize, x: ExprId) -> Convert {
        let x = match self.clip {
            Some(c) => n.op("clip", &[x], &[("a_min", (-c).into()), ("a_max", c.into())])?,
            None => x,
        };
        self.f[k].apply(n, x)
    }

    /// The next states, from what the input contributes to the gates: (batch, gates * hidden).
    fn step(
        &self,
        n: &mut Node,
        x: ExprId,
        hidden: i64,
        h: ExprId,
        c: Option<ExprId>,
    ) -> Convert<(ExprId, Option<ExprId>)> {
        let gate = |n: &mut Node, of: ExprId, k: i64| n.slice(of, 1, k * hidden, (k + 1) * hidden);
        let seen = self.r.times(n, h)?;
        match (self.kind, c) {
            (Kind::Gru, _) => {
                let mut opened = |k| {
                    let (own, seen) = (gate(n, x, k)?, gate(n, seen, k)?);
                    let sum = n.add(own, seen)?;
                    self.act(n, 0, sum)
                };
                let (z, r) = (opened(0)?, opened(1)?);
                let biased = |n: &mut Node, y: ExprId| self.last_bias.map_or(Ok(y), |b| n.add(y, b));
                let part = match self.last {
                    None => {
                        let last = gate(n, seen, 2)?;
                        let last = biased(n, last)?;
                        n.mul(r, last)?
                    }
                    Some(weights) => {
                        let reset = n.mul(r, h)?;
                        let last = n.op("nn.dense", &[reset, weights], &[])?;
                        biased(n, last)?
                    }
                };
                let new = gate(n, x, 2)?;
                let new = n.add(new, part)?;
                let new = self.act(n, 1, new)?;
                let rest = n.from("subtract", 1.0, z)?;
                let (a, b) = (n.mul(rest, new)?, n.mul(z, h)?);
                Ok((n.add(a, b)?, None))
            }
            (Kind::Lstm, Some(c)) => {
                let sum = n.add(x, seen)?;
                let gates = (0..4).map(|k| gate(n, sum, k)).collect::<Convert<Vec<_>>>()?;
                let peep = |n: &mut Node, gate: ExprId, k: usize, c: ExprId| -> Convert {
                    match &self.p {
                        Some(p) => {
                            let seen = n.mul(p[k], c)?;
                            n.add(gate, seen)
                        }
                        None => Ok(gate),
                    }
                };
                let i = peep(n, gates[0], 0, c)?;
                let i = self.act(n, 0, i)?;
                let f = match self.coupled {
                    true => n.from("subtract", 1.0, i)?,
                    false => {
                        let f = peep(n, gates[2], 2, c)?;
                        self.act(n, 0, f)?
                    }
                };
                let new = self.act(n, 1, gates[3])?;
                let (kept, added) = (n.mul(f, c)?, n.mul(i, new)?);
                let c = n.add(kept, added)?;
                let o = peep(n, gates[1], 1, c)?;
                let o = self.act(n, 0, o)?;
                let shown = self.f[2].apply(n, c)?;
                Ok((n.mul(o, shown)?, Some(c)))
            }
            _ => {
                let sum = n.add(x, seen)?;
                Ok((self.act(n, 0, sum)?, None))
            }
        }
    }
}

/// One direction of a layer.
struct Run<'a> {
    cell: Cell<'a>,
    /// What the inputs contribute to the gates: (steps, batch, gates * hidden).
    all: ExprId,
    lengths: Option<ExprId>,
    zero: ExprId,
    back: bool,
    hidden: i64,
}

/// The hidden state and that of the cell, where it has one.
type States = (ExprId, Option<ExprId>);

impl Run<'_> {
    /// The output and the next states of a step, given what its inputs contribute and its place.
    fn step(&self, n: &mut Node, here: ExprId, t: ExprId, (h, c): States) -> Convert<(ExprId, States)> {
        let (next_h, next_c) = self.cell.step(n, here, self.hidden, h, c)?;
        let Some(l) = self.lengths else { return Ok((next_h, (next_h, next_c))) };
        // Beyond a sequence's end its states stay, and its outputs are zero.
        let (l, t) = (n.cast(l, DType::I32)?, n.cast(t, DType::I32)?);
        let within = n.bin("greater", l, t)?;
        let within = n.trailing(within, 1)?;
        let y = n.select(within, next_h, self.zero)?;
        let h = n.select(within, next_h, h)?;
        let c = match (next_c, c) {
            (Some(next), Some(old)) => Some(n.select(within, next, old)?),
            _ => None,
        };
        Ok((y, (h, c)))
    }

    /// All steps one after another: outputs, stacked, and the last states.
    fn laid_out(
        &self,
        n: &mut Node,
        time: i64,
        h: ExprId,
        c: Option<ExprId>,
    ) -> Convert<(ExprId, ExprId, Option<ExprId>)> {
        let mut states = (h, c);
        let mut outputs = Vec::new();
        for step in 0..time {
            let t = if self.back { time - 1 - step } else { step };
            let here = n.index(self.all, 0, t)?;
            let at = n.im.b.scalar(DType::I32, t as f64);
            let (y, next) = self.step(n, here, at, states)?;
            outputs.push(y);
            states = next;
        }
        if self.back {
            outputs.reverse();
        }
        Ok((n.stack(&outputs, 0)?, states.0, states.1))
    }

    /// The steps as a loop of the program.
    fn repeated(&self, n: &mut Node, h: ExprId, c: Option<ExprId>) -> Convert<(ExprId, ExprId, Option<ExprId>)> {
        let steps = n.size(self.all, 0, DType::I64)?;
        let carried = [Some(h), c].into_iter().flatten().map(|e| n.out(e)).collect::<Convert<_>>()?;
        let (states, collected) = repeated(n, Some(steps), None, carried, &mut |n, i, go, carried| {
            let mut outside = Captured::default();
            let mut inner = |e: ExprId| outside.take(n, e);
            let run = Run {
                cell: self.cell.within(&mut inner),
                all: inner(self.all),
                lengths: self.lengths.map(&mut inner),
                zero: inner(self.zero),
                ..*self
            };
            let t = if self.back {
                let steps = n.size(run.all, 0, DType::I64)?;
                let last = n.with("subtract", steps, 1.0)?;
                n.sub(last, i)?
            } else {
                i
            };
            let here = n.take(run.all, t, 0)?;
            let states: Vec<Tens> = carried.iter().flat_map(Val::tensors).collect();
            let (y, (h, c)) = run.step(n, here, t, (states[0].e, states.get(1).map(|c| c.e)))?;
            let state = [Some(h), c].into_iter().flatten().map(|e| n.out(e)).collect::<Convert<_>>()?;
            let collect = n.out(y)?.tensors();
            Ok(Iteration { again: go, state, collect, captures: outside.into_captures() })
        })?;
        let states: Vec<Tens> = states.iter().flat_map(Val::tensors).collect();
        let mut y = collected[0].e;
        if self.back {
            y = n.op("reverse", &[y], &[("axis", 0.into())])?;
        }
        Ok((y, states[0].e, states.get(1).map(|c| c.e)))
    }
}

/// Whether all activations are those that `nn.lstm` and `nn.gru` compute.
fn are_usual(kind: Kind, functions: &[Vec<Activation>]) -> bool {
    let usual: &[&str] = match kind {
        Kind::Plain => &["tanh"],
        Kind::Gru => &["sigmoid", "tanh"],
        Kind::Lstm => &["sigmoid", "tanh", "tanh"],
    };
    functions.iter().all(|of| of.iter().map(|f| f.name.as_str()).eq(usual.iter().copied()))
}

/// A layer of LSTM or GRU that one operator computes, all steps and directions.
struct Layer {
    kind: Kind,
    /// (steps, batch, width); steps and batch may be open.
    x: ExprId,
    time: Option<i64>,
    batch: Option<i64>,
    /// Zeros of (batch, hidden).
    zero: ExprId,
    hidden: i64,
    by_batch: bool,
    reverse: bool,
    reset_after: bool,
    /// What inputs and states are multiplied by, as the node has them.
    weights: [ExprId; 2],
    bias: Option<ExprId>,
    lengths: Option<ExprId>,
}

impl Layer {
    /// How many gates there are.
    fn gates(&self) -> i64 {
        if self.kind == Kind::Lstm { 4 } else { 3 }
    }

    /// Blocks of results, and how many are in each.
    fn blocks(&self) -> [i64; 2] {
        let block = [32, 16].into_iter().find(|b| self.hidden >= *b).unwrap_or(8);
        [(self.hidden + block - 1) / block, block]
    }

    /// From (directions, gates * hidden, …) to (directions, blocks, gates, block, …), filled up with zeros. `more` are the last extents.
    fn in_blocks(&self, n: &mut Node, e: ExprId, gates: i64, more: &[i64]) -> Convert {
        let ([blocks, block], directions) = (self.blocks(), n.extent(e, 0)?);
        let e = n.reshape(e, &[&[directions, gates, self.hidden], more].concat())?;
        let (before, mut behind) = ([0; 4], [0; 4]);
        behind[2] = blocks * block - self.hidden;
        let (axes, zero) = (3 + more.len(), n.c(e, 0.0)?);
        let e = n.pad(e, &before[..axes], &behind[..axes], zero)?;
        let e = n.reshape(e, &[&[directions, gates, blocks, block], more].concat())?;
        n.transpose(e, &[0, 2, 1, 3, 4][..axes + 1])
    }

    /// What biases (directions, 2 * gates * hidden) add for all steps, in blocks, and the bias of a GRU's last gate, (directions, blocks * block):
    /// it is reset with what it is added to.
    fn biases(&self, n: &mut Node, b: ExprId) -> Convert<[ExprId; 2]> {
        let ([blocks, block], hidden, gates) = (self.blocks(), self.hidden, self.gates());
        let (directions, dtype) = (n.extent(b, 0)?, n.dtype(b)?);
        let own = n.slice(b, 1, 0, gates * hidden)?;
        let seen = n.slice(b, 1, gates * hidden, 2 * gates * hidden)?;
        let none = n.constant(Tensor::zeros(dtype, &[directions as usize, hidden as usize]));
        let (seen, last) = match self.kind {
            Kind::Gru => {
                let (others, last) = (n.slice(seen, 1, 0, 2 * hidden)?, n.slice(seen, 1, 2 * hidden, 3 * hidden)?);
                (n.concat(&[others, none], 1)?, last)
            }
            _ => (seen, none),
        };
        let bias = n.add(own, seen)?;
        let bias = self.in_blocks(n, bias, gates, &[])?;
        let last = self.in_blocks(n, last, 1, &[])?;
        Ok([n.reshape(bias, &[directions * blocks * gates * block])?, n.reshape(last, &[directions, blocks * block])?])
    }

    /// The first state that input `i` of the node gives.
    fn state(&self, n: &mut Node, i: usize, directions: i64) -> Convert {
        match n.opt(i)? {
            None => n.stack(&vec![self.zero; directions as usize], 0),
            Some(s) if self.by_batch => n.transpose(s, &[1, 0, 2]),
            Some(s) => Ok(s),
        }
    }

    fn lengths(&self, n: &mut Node) -> Convert {
        match self.lengths {
            Some(l) => n.cast(l, DType::I32),
            None => Ok(n.constant(Tensor::from_slice(&[1], &[i32::MAX]))),
        }
    }

    /// The outputs of the node, from those of the operator.
    fn outputs(&self, n: &mut Node, results: ExprId) -> Convert<Vec<Val>> {
        let y = n.im.b.field(results, 0);
        let y = if self.by_batch { n.transpose(y, &[2, 0, 1, 3])? } else { y };
        let mut all = vec![n.out(y)?];
        for i in 1..if self.kind == Kind::Lstm { 3 } else { 2 } {
            let s = n.im.b.field(results, i);
            let s = if self.by_batch { n.transpose(s, &[1, 0, 2])? } else { s };
            all.push(n.out(s)?);
        }
        Ok(all)
    }

    /// The layer by one operator, where that takes its element type.
    fn of_floats(&self, n: &mut Node) -> Convert<Option<Vec<Val>>> {
        let ([w, r], b) = (self.weights, self.bias);
        let (dtype, hidden, gates) = (n.dtype(self.x)?, self.hidden, self.gates());
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Ok(None);
        }
        let ([blocks, block], directions, width) = (self.blocks(), n.extent(w, 0)?, n.extent(w, 2)?);
        let columns = directions * blocks * gates * block;
        let flat = n.reshape(self.x, &[-1, width])?;
        let weight = self.in_blocks(n, w, gates, &[width])?;
        let weight = n.reshape(weight, &[columns, width])?;
        let mut all = n.op("nn.dense", &[flat, weight], &[])?;
        let mut last_bias = n.constant(Tensor::zeros(dtype, &[directions as usize, (blocks * block) as usize]));
        if let Some(b) = b {
            let [bias, last] = self.biases(n, b)?;
            (all, last_bias) = (n.add(all, bias)?, last);
        }
        let all = by_step(n, self.x, all, (self.time, self.batch), columns)?;
        let weight = self.in_blocks(n, r, gates, &[hidden])?;
        let weight = n.transpose(weight, &[0, 1, 4, 2, 3])?;
        let (h, lengths) = (self.state(n, 5, directions)?, self.lengths(n)?);
        let reverse = ("reverse", self.reverse.into());
        let results = match self.kind {
            Kind::Lstm => {
                let c = self.state(n, 6, directions)?;
                n.op("nn.lstm", &[all, weight, h, c, lengths], &[reverse])?
            }
            _ => {
                let reset_after = ("reset_after", self.reset_after.into());
                n.op("nn.gru", &[all, weight, last_bias, h, lengths], &[reverse, reset_after])?
            }
        };
        Ok(Some(self.outputs(n, results)?))
    }

    /// The same with int8 weights, where they are constants and there is one row: ONNX Runtime quantizes the states of all rows together.
    fn of_int8(&self, n: &mut Node) -> Convert<Option<Vec<Val>>> {
        let ([w, r], b) = (self.weights, self.bias);
        let gates = self.gates();
        let (directions, width, hidden) = (n.extent(w, 0)?, n.extent(w, 1)?, self.hidden);
        let [blocks, block] = self.blocks();
        let (zw, zr) = (n.opt(9)?, n.opt(11)?);
        let both = (signed_weight(n, w, zw)?, signed_weight(n, r, zr)?);
        let (Some((w, zw)), Some((r, zr))) = both else { return Ok(None) };
        if self.batch != Some(1) || n.dtype(self.x)? != DType::F32 {
            return Ok(None);
        }
        // A number for each direction, or for each of its gates' results, in blocks.
        let each = |n: &mut Node, e: ExprId| -> Convert {
            let rank = n.rank(e)?;
            let e = if rank == 1 { n.trailing(e, 1)? } else { e };
            let all = n.broadcast(e, &[directions, gates * hidden])?;
            self.in_blocks(n, all, gates, &[])
        };
        let columns = directions * blocks * gates * block;
        let (sw, sr) = (n.x(8)?, n.x(10)?);
        let (sw, sr) = (each(n, sw)?, each(n, sr)?);
        let sw = n.reshape(sw, &[columns])?;
        let zw = match zw {
            Some(z) => {
                let z = each(n, z)?;
                Some(n.reshape(z, &[columns])?)
            }
            None => None,
        };
        let zr = match zr {
            Some(z) => each(n, z)?,
            None => n.constant(Tensor::zeros(DType::I32, &[directions, blocks, gates, block].map(|e| e as usize))),
        };
        let outputs_first = |n: &mut Node, e: ExprId, inputs: i64| -> Convert {
            let e = n.transpose(e, &[0, 2, 1])?;
            self.in_blocks(n, e, gates, &[inputs])
        };
        let w = outputs_first(n, w, width)?;
        let w = n.reshape(w, &[columns, width])?;
        let w = n.transpose(w, &[1, 0])?;
        let flat = n.reshape(self.x, &[-1, width])?;
        let [x, sx, zx] = dynamically_quantized(n, flat)?;
        let mut all = product_of_quantized(n, (x, sx, Some(zx)), (w, sw, zw))?;
        if let Some(b) = b {
            let [bias, _] = self.biases(n, b)?;
            all = n.add(all, bias)?;
        }
        let all = by_step(n, self.x, all, (self.time, self.batch), columns)?;
        let r = outputs_first(n, r, hidden)?;
        let (fours, zero) = ((hidden + 3) / 4, n.c(r, 0.0)?);
        let r = n.pad(r, &[0; 5], &[0, 0, 0, 0, fours * 4 - hidden], zero)?;
        let r = n.reshape(r, &[directions, blocks, gates, block, fours, 4])?;
        let r = n.transpose(r, &[0, 1, 4, 2, 3, 5])?;
        let (h, c) = (self.state(n, 5, directions)?, self.state(n, 6, directions)?);
        let lengths = self.lengths(n)?;
        let results = n.op("nn.lstm_int8", &[all, r, sr, zr, h, c, lengths], &[("reverse", self.reverse.into())])?;
        Ok(Some(self.outputs(n, results)?))
    }
}

/// What the inputs `x` contribute to gates, of (steps * batch, columns), by steps.
fn by_step(n: &mut Node, x: ExprId, all: ExprId, (time, batch): (Option<i64>, Option<i64>), columns: i64) -> Convert {
    match (time, batch) {
        (Some(time), batch) => n.reshape(all, &[time, batch.unwrap_or(-1), columns]),
        (None, Some(batch)) => n.reshape(all, &[-1, batch, columns]),
        (None, None) => {
            let (shape, columns) = (n.shape_of(x)?, n.im.b.ints(&[columns]));
            let steps = n.slice(shape, 0, 0, 2)?;
            let shape = n.concat(&[steps, columns], 0)?;
            n.reshape_to(all, shape)
        }
    }
}

fn recurrent(n: &mut Node, kind: Kind, form: Form) -> Convert<Vec<Val>> {
    let (mut x, w, r, b, lengths) = (n.x(0)?, n.x(1)?, n.x(2)?, n.opt(3)?, n.opt(4)?);
    let by_batch = n.flag("layout", false)?;
    if by_batch {
        x = n.transpose(x, &[1, 0, 2])?;
    }
    n.ensure(n.rank(x)? == 3, || "its input should have three axes".into())?;
    let (outputs, inputs) = form.axes();
    let width = n.extent(w, inputs)?;
    // Steps and batch may be open.
    let dims = n.dims(x)?;
    let (time, batch) = (dims[0], dims[1]);
    let (directions, hidden) = (n.extent(w, 0)?, n.extent(r, inputs)?);
    let gates: i64 = match kind {
        Kind::Plain => 1,
        Kind::Gru => 3,
        Kind::Lstm => 4,
    };
    n.ensure(n.extent(r, outputs)? == gates * hidden && n.extent(w, outputs)? == gates * hidden, || {
        "its weights do not fit each other".into()
    })?;
    let direction = n.text("direction", "forward")?;
    let functions = activations(n, kind, directions as usize)?;
    let dtype = n.dtype(x)?;
    let zero = match batch {
        Some(b) => n.constant(Tensor::zeros(dtype, &[b.max(0) as usize, hidden as usize])),
        None => {
            let (rows, columns) = (n.size(x, 1, DType::I64)?, n.im.b.ints(&[hidden]));
            let rows = n.reshape(rows, &[1])?;
            let shape = n.concat(&[rows, columns], 0)?;
            let zero = n.im.b.scalar(dtype, 0.0);
            n.filled(zero, shape)?
        }
    };
    let initial = |n: &mut Node, i: usize, d: i64| -> Convert {
        match n.opt(i)? {
            None => Ok(zero),
            Some(s) => n.index(s, usize::from(by_batch), d),
        }
    };
    let clip = n.opt_float("clip")?.filter(|c| *c > 0.0);
    let (reset_after, coupled) = (n.flag("linear_before_reset", false)?, n.flag("input_forget", false)?);
    let is_plain = clip.is_none() && !coupled && n.opt(7)?.is_none() && are_usual(kind, &functions);
    if is_plain && kind != Kind::Plain && !time.is_some_and(|t| (1..=MOST_LAID_OUT).contains(&t)) {
        let (reverse, weights, bias) = (direction == "reverse", [w, r], b);
        let layer =
            Layer { kind, x, time, batch, zero, hidden, by_batch, reverse, reset_after, weights, bias, lengths };
        let done = match form {
            Form::Floats => layer.of_floats(n)?,
            Form::Bytes => layer.of_int8(n)?,
        };
        if let Some(done) = done {
            return Ok(done);
        }
    }
    let mut sequences = Vec::new();
    let (mut last_h, mut last_c) = (Vec::new(), Vec::new());
    for d in 0..directions {
        let back = d == 1 || direction == "reverse";
        let of = |n: &mut Node, e: ExprId, from: i64, to: i64| -> Convert {
            let part = n.index(e, 0, d)?;
            n.slice(part, 0, from, to)
        };
        let weights = form.weights(n, 1, d)?;
        // Which gates see the hidden state as it is, and which biases are for what inputs contribute.
        let (seeing, plain) = match kind {
            Kind::Gru if reset_after => (3, 2),
            Kind::Gru => (2, 2),
            Kind::Plain | Kind::Lstm => (gates, gates),
        };
        let last = (seeing < gates).then(|| of(n, r, 2 * hidden, 3 * hidden)).transpose()?;
        let last_bias = b.filter(|_| kind == Kind::Gru).map(|b| of(n, b, 5 * hidden, 6 * hidden)).transpose()?;
        let seen = match form.weights(n, 2, d)? {
            Weights::Floats(r) => Weights::Floats(n.slice(r, 0, 0, seeing * hidden)?),
            all => all,
        };
        let p = match (kind, n.opt(7)?) {
            (Kind::Lstm, Some(p)) => {
                Some((0..3).map(|k| of(n, p, k * hidden, (k + 1) * hidden)).collect::<Convert<Vec<_>>>()?)
            }
            _ => None,
        };
        let cell = Cell { kind, r: seen, last, last_bias, p, f: &functions[d as usize], clip, coupled };
        // What the inputs contribute is computed for all steps at once.
        let flat = n.reshape(x, &[-1, width])?;
        let mut all = weights.times(n, flat)?;
        if let Some(b) = b {
            let wb = of(n, b, 0, gates * hidden)?;
            let rb = of(n, b, gates * hidden, (gates + plain) * hidden)?;
            let rb = match kind {
                Kind::Gru => {
                    let none = n.constant(Tensor::zeros(dtype, &[hidden as usize]));
                    n.concat(&[rb, none], 0)?
                }
                _ => rb,
            };
            let bias = n.add(wb, rb)?;
            all = n.add(all, bias)?;
        }
        let all = by_step(n, x, all, (time, batch), gates * hidden)?;
        let h = initial(n, 5, d)?;
        let c = if kind == Kind::Lstm { Some(initial(n, 6, d)?) } else { None };
        let run = Run { cell, all, lengths, zero, back, hidden };
        let (y, h, c) = match time {
            Some(time) if (1..=MOST_LAID_OUT).contains(&time) => run.laid_out(n, time, h, c)?,
            _ => run.repeated(n, h, c)?,
        };
        sequences.push(y);
        last_h.push(h);
        last_c.extend(c);
    }
    let y = n.stack(&sequences, 1)?;
    let y = if by_batch { n.transpose(y, &[2, 0, 1, 3])? } else { y };
    let mut states = vec![n.out(y)?];
    for list in [last_h, last_c] {
        if !list.is_empty() {
            let s = n.stack(&list, usize::from(by_batch))?;
            states.push(n.out(s)?);
        }
    }
    Ok(states)
}
