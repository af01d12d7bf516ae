//! What happens at a step.

use std::rc::Rc;

use super::{
    super::{
        super::{
            call::{Call, turned},
            layer::Layer,
        },
        activation,
        conv::{Windows, convolve},
        core::bias_along,
    },
    zeros,
};
use crate::{frontend::Convert, ir::ExprId, tensor::Tensor};

/// Kinds of cells.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Simple,
    Lstm,
    Gru,
    /// With so many spatial axes.
    ConvLstm(usize),
    /// One after another.
    Stacked(Vec<Cell>),
}

/// A cell. Its work on the inputs does not depend on the states, and is done for all steps at once.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    kind: Kind,
    /// Its configuration, and where its arrays are.
    layer: Rc<Layer>,
    /// Elements of its output, or channels.
    units: i64,
}

/// As Keras names the activations of a gate and of what passes.
const GATE: &str = "recurrent_activation";
const VALUE: &str = "activation";

impl Cell {
    pub(super) fn new(kind: Kind, layer: Rc<Layer>) -> Convert<Cell> {
        let units = match &kind {
            Kind::Stacked(cells) => cells.last().map(|c| c.units).ok_or_else(|| layer.refuse("it has no cells"))?,
            Kind::ConvLstm(_) => layer.int("filters")?,
            _ => layer.int("units")?,
        };
        match (1..=1 << 24).contains(&units) {
            true => Ok(Cell { kind, layer, units }),
            false => Err(layer.refuse(format!("{units} units are not supported"))),
        }
    }

    /// The cell that a layer is.
    pub(super) fn of(c: &Call, layer: Rc<Layer>) -> Convert<Cell> {
        let kind = match layer.class() {
            "SimpleRNNCell" => Kind::Simple,
            "LSTMCell" => Kind::Lstm,
            "GRUCell" => Kind::Gru,
            "StackedRNNCells" => {
                let listed = layer.get("cells").and_then(|v| v.as_array()).cloned().unwrap_or_default();
                let container = c.s.weights.part(&layer.place.group, &["cells"]);
                let mut cells: Vec<Cell> = Vec::new();
                for json in &listed {
                    let mut inner = layer.inner_of(json)?;
                    let class = inner.class().to_owned();
                    let before = cells.iter().filter(|c| c.layer.class() == class).count();
                    let snake = match class.as_str() {
                        "SimpleRNNCell" => "simple_rnn_cell",
                        "LSTMCell" => "lstm_cell",
                        "GRUCell" => "gru_cell",
                        "StackedRNNCells" => {
                            return Err(layer.refuse("stacked cells within stacked cells are not supported"));
                        }
                        _ => "",
                    };
                    let counted = if before == 0 { snake.to_owned() } else { format!("{snake}_{before}") };
                    inner.place.group = c.s.weights.child(&container, &counted, inner.name());
                    inner.place.names = layer.place.names.clone();
                    inner.place.names.push(inner.name().to_owned());
                    cells.push(Cell::of(c, inner.shared())?);
                }
                Kind::Stacked(cells)
            }
            class => {
                let message =
                    format!("layer `{}`: the cell class `{class}` is not one that Keras ships", c.layer.name());
                let d = crate::diag::Diagnostic::new(message).at(c.layer.span.clone());
                return Err(d.help("register a converter for the layer around it").into());
            }
        };
        Cell::new(kind, layer)
    }

    /// How many states it has.
    pub(super) fn states(&self) -> usize {
        match &self.kind {
            Kind::Simple | Kind::Gru => 1,
            Kind::Lstm | Kind::ConvLstm(_) => 2,
            Kind::Stacked(cells) => cells.iter().map(Cell::states).sum(),
        }
    }

    /// Which of its states has the shape of its output.
    pub(super) fn output_state(&self) -> usize {
        match &self.kind {
            Kind::Stacked(cells) => self.states() - cells.last().map_or(0, Cell::states),
            _ => 0,
        }
    }

    /// Axes of a step's input.
    pub(super) fn rank(&self) -> usize {
        match &self.kind {
            Kind::ConvLstm(spatial) => spatial + 2,
            _ => 2,
        }
    }

    /// What the cell does to a step's input before it meets the states.
    pub(super) fn project_step(&self, c: &mut Call, x: ExprId) -> Convert {
        if let Kind::Stacked(cells) = &self.kind {
            return cells[0].project_step(c, x);
        }
        c.within(&self.layer, |c| match &self.kind {
            Kind::ConvLstm(spatial) => {
                let w = Windows::of(c, *spatial, "kernel_size")?;
                let kernel = c.weight(0, "kernel")?;
                let y = convolve(c, x, kernel, &w, 1)?;
                biased(c, y, w.channels())
            }
            kind => {
                let kernel = c.weight_as(0, "kernel", "turned", |t| turned(&t))?;
                let y = c.dense(x, kernel)?;
                match kind {
                    Kind::Gru if c.layer.bool("use_bias", true) => {
                        let bias = c.weight_as(2, "bias", "of inputs", |t| row(&t, 0))?;
                        bias_along(c, y, bias, -1)
                    }
                    _ => biased(c, y, -1),
                }
            }
        })
    }

    /// The same for all steps: (batch, steps, ..).
    pub(super) fn project_sequence(&self, c: &mut Call, x: ExprId) -> Convert {
        if !matches!(self.kind, Kind::ConvLstm(_)) {
            return self.project_step(c, x);
        }
        let merged = c.reshape(x, &[-3, -2])?;
        let y = self.project_step(c, merged)?;
        apart(c, y, x)
    }

    /// States of zeros for a sequence that was projected: (batch, steps, ..).
    pub(super) fn zero_states(&self, c: &mut Call, projected: ExprId) -> Convert<Vec<ExprId>> {
        let dtype = c.dtype(projected)?;
        match &self.kind {
            Kind::Stacked(cells) => {
                let mut all = Vec::new();
                for cell in cells {
                    all.extend(cell.zero_states(c, projected)?);
                }
                Ok(all)
            }
            Kind::ConvLstm(_) => {
                let channels = if self.layer.channels_last() { -1 } else { 2 };
                let first = c.slice(projected, 1, 0, 1)?;
                let first = c.op("squeeze", &[first], &[("axis", [1].into())])?;
                let channels = if channels == 2 { 1 } else { c.rank(first)? as i64 - 1 };
                let part = c.slice(first, channels, 0, self.units)?;
                let zero = c.un("zeros_like", part)?;
                Ok(vec![zero; 2])
            }
            _ => {
                let zero = zeros(c, projected, &[self.units], dtype)?;
                Ok(vec![zero; self.states()])
            }
        }
    }

    /// A step: the output and the states after it. The input was projected.
    pub(super) fn step(&self, c: &mut Call, x: ExprId, states: &[ExprId]) -> Convert<(ExprId, Vec<ExprId>)> {
        if let Kind::Stacked(cells) = &self.kind {
            let (mut x, mut at, mut after) = (x, 0, Vec::new());
            for (i, cell) in cells.iter().enumerate() {
                if i > 0 {
                    x = cell.project_step(c, x)?;
                }
                let (out, new) = cell.step(c, x, &states[at..at + cell.states()])?;
                at += cell.states();
                after.extend(new);
                x = out;
            }
            return Ok((x, after));
        }
        c.within(&self.layer, |c| match &self.kind {
            Kind::Simple => {
                let h = recurrent(c, states[0], "turned", |t| turned(&t))?;
                let sum = c.bin("add", x, h)?;
                let out = activation::configured(c, VALUE, sum)?;
                Ok((out, vec![out]))
            }
            Kind::Lstm => {
                let h = recurrent(c, states[0], "turned", |t| turned(&t))?;
                let sum = c.bin("add", x, h)?;
                gates(c, sum, states[1], 1)
            }
            Kind::ConvLstm(spatial) => {
                let ones = vec![1; *spatial];
                let w = Windows {
                    size: c.layer.positive_sizes("kernel_size", *spatial, 1)?,
                    strides: ones.clone(),
                    dilation: ones,
                    padding: "same".to_owned(),
                    channels_last: c.layer.channels_last(),
                };
                let kernel = c.weight(1, "recurrent_kernel")?;
                let h = convolve(c, states[0], kernel, &w, 1)?;
                let sum = c.bin("add", x, h)?;
                let axis = if w.channels_last { *spatial as i64 + 1 } else { 1 };
                gates(c, sum, states[1], axis)
            }
            _ => self.gru(c, x, states[0]),
        })
    }

    fn gru(&self, c: &mut Call, x: ExprId, h: ExprId) -> Convert<(ExprId, Vec<ExprId>)> {
        let units = self.units;
        let after = c.layer.bool("reset_after", !c.layer.keras2);
        let parts = c.op("split", &[x], &[("indices_or_sections", 3.into()), ("axis", 1.into())])?;
        let [xz, xr, xh] = [0, 1, 2].map(|i| c.s.b.field(parts, i));
        let (z, r, candidate);
        if after {
            let mut all = recurrent(c, h, "turned", |t| turned(&t))?;
            if c.layer.bool("use_bias", true) {
                let bias = c.weight_as(2, "bias", "of states", |t| row(&t, 1))?;
                all = bias_along(c, all, bias, -1)?;
            }
            let parts = c.op("split", &[all], &[("indices_or_sections", 3.into()), ("axis", 1.into())])?;
            let [hz, hr, hh] = [0, 1, 2].map(|i| c.s.b.field(parts, i));
            z = gate(c, xz, hz)?;
            r = gate(c, xr, hr)?;
            candidate = c.bin("multiply", r, hh)?;
        } else {
            let both = recurrent(c, h, "gates", |t| columns(&t, 0, 2 * units as usize))?;
            let parts = c.op("split", &[both], &[("indices_or_sections", 2.into()), ("axis", 1.into())])?;
            let [hz, hr] = [0, 1].map(|i| c.s.b.field(parts, i));
            z = gate(c, xz, hz)?;
            r = gate(c, xr, hr)?;
            let kept = c.bin("multiply", r, h)?;
            candidate = recurrent(c, kept, "candidate", |t| columns(&t, 2 * units as usize, 3 * units as usize))?;
        }
        let sum = c.bin("add", xh, candidate)?;
        let new = activation::configured(c, VALUE, sum)?;
        // z h + (1 - z) new
        let kept = c.bin("multiply", z, h)?;
        let one = c.number(z, 1.0)?;
        let rest = c.bin("subtract", one, z)?;
        let rest = c.bin("multiply", rest, new)?;
        let out = c.bin("add", kept, rest)?;
        Ok((out, vec![out]))
    }
}

fn biased(c: &mut Call, x: ExprId, channels: i64) -> Convert {
    if !c.layer.bool("use_bias", true) {
        return Ok(x);
    }
    let bias = c.weight(2, "bias")?;
    bias_along(c, x, bias, channels)
}

/// The state times the recurrent kernel, or a part of that.
fn recurrent(c: &mut Call, h: ExprId, how: &str, change: impl FnOnce(Tensor) -> Result<Tensor, String>) -> Convert {
    let kernel = c.weight_as(1, "recurrent_kernel", how, change)?;
    c.dense(h, kernel)
}

fn gate(c: &mut Call, x: ExprId, h: ExprId) -> Convert {
    let sum = c.bin("add", x, h)?;
    activation::configured(c, GATE, sum)
}

/// What an LSTM makes of its four sums and of what it remembers.
fn gates(c: &mut Call, sums: ExprId, carry: ExprId, axis: i64) -> Convert<(ExprId, Vec<ExprId>)> {
    let parts = c.op("split", &[sums], &[("indices_or_sections", 4.into()), ("axis", axis.into())])?;
    let [i, f, n, o] = [0, 1, 2, 3].map(|k| c.s.b.field(parts, k));
    let i = activation::configured(c, GATE, i)?;
    let f = activation::configured(c, GATE, f)?;
    let n = activation::configured(c, VALUE, n)?;
    let o = activation::configured(c, GATE, o)?;
    let kept = c.bin("multiply", f, carry)?;
    let new = c.bin("multiply", i, n)?;
    let carry = c.bin("add", kept, new)?;
    let shown = activation::configured(c, VALUE, carry)?;
    let out = c.bin("multiply", o, shown)?;
    Ok((out, vec![out, carry]))
}

/// A row of a matrix; of a vector, itself for the first one.
fn row(t: &Tensor, row: usize) -> Result<Tensor, String> {
    match *t.shape() {
        [n] if row == 0 => Ok(t.reshaped(&[n])),
        [rows, n] if row < rows => Ok(t.pick(&[n], |i| Some(row * n + i))),
        _ => Err(format!("it has the shape {:?}, which does not fit `reset_after`", t.shape())),
    }
}

/// Some columns of a matrix, turned: (columns, rows).
fn columns(t: &Tensor, from: usize, to: usize) -> Result<Tensor, String> {
    match *t.shape() {
        [rows, all] if to <= all => Ok(t.pick(&[to - from, rows], |i| Some(i % rows * all + from + i / rows))),
        _ => Err(format!("it has the shape {:?}, which does not fit its units", t.shape())),
    }
}

/// (batch * steps, ..) as (batch, steps, ..), as `like` has them.
pub(in super::super) fn apart(c: &mut Call, x: ExprId, like: ExprId) -> Convert {
    match c.shape(like)?[..] {
        [_, Some(steps), ..] if steps > 0 => c.reshape(x, &[-4, -1, steps, -2]),
        _ => {
            let attrs =
                [("lhs_begin", 0.into()), ("lhs_end", 1.into()), ("rhs_begin", 0.into()), ("rhs_end", 2.into())];
            c.op("reshape_like", &[x, like], &attrs)
        }
    }
}
