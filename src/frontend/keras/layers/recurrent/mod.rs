//! Recurrent layers: cells, and their run over the steps of a sequence.

mod cell;
mod scan;

use std::rc::Rc;

use super::{
    super::{
        call::{Arg, Call, Held},
        layer::Layer,
    },
    Class, Masks, class,
};
use crate::{frontend::Convert, ir::ExprId, tensor::DType};
pub(super) use cell::apart;
use cell::{Cell, Kind};
use scan::{Steps, scan};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("SimpleRNN", Masks::Own, |c| with_own_cell(c, Kind::Simple)),
    class("LSTM", Masks::Own, |c| with_own_cell(c, Kind::Lstm)),
    class("GRU", Masks::Own, |c| with_own_cell(c, Kind::Gru)),
    class("ConvLSTM1D", Masks::Own, |c| with_own_cell(c, Kind::ConvLstm(1))),
    class("ConvLSTM2D", Masks::Own, |c| with_own_cell(c, Kind::ConvLstm(2))),
    class("ConvLSTM3D", Masks::Own, |c| with_own_cell(c, Kind::ConvLstm(3))),
    class("RNN", Masks::Own, with_given_cell),
    class("SimpleRNNCell", Masks::Own, cell_alone),
    class("LSTMCell", Masks::Own, cell_alone),
    class("GRUCell", Masks::Own, cell_alone),
    class("StackedRNNCells", Masks::Own, cell_alone),
    class("Bidirectional", Masks::Own, bidirectional),
];

/// The argument by which a wrapper says that steps that do not count give zeros.
const ZERO_OUTPUT: &str = "zero_output_for_mask";

fn with_own_cell(c: &mut Call, kind: Kind) -> Convert<Arg> {
    let mut layer = (*c.layer).clone();
    layer.place.group = c.s.weights.part(&c.layer.place.group, &["cell"]);
    let cell = Cell::new(kind, layer.shared())?;
    run(c, cell)
}

fn with_given_cell(c: &mut Call) -> Convert<Arg> {
    let mut inner = c.layer.inner("cell")?;
    c.place(&mut inner, &["cell"]);
    let cell = Cell::of(c, inner.shared())?;
    run(c, cell)
}

/// A cell that is called as a layer: one step.
fn cell_alone(c: &mut Call) -> Convert<Arg> {
    let layer = c.layer.clone();
    let cell = Cell::of(c, layer)?;
    let x = c.input()?;
    let states: Vec<ExprId> = c.arg(1, "states").map(Arg::tensors).unwrap_or_default().iter().map(|t| t.id).collect();
    if states.len() != cell.states() {
        return Err(c.refuse(format!("it has {} states, but is given {}", cell.states(), states.len())));
    }
    let projected = cell.project_step(c, x)?;
    let (out, states) = cell.step(c, projected, &states)?;
    let states = states.into_iter().map(Arg::of).collect();
    Ok(Arg::List(vec![Arg::of(out), Arg::List(states)]))
}

/// The layer's inputs: the sequence, and the states that it starts from, where some are given.
fn sequence_and_states(c: &Call) -> Convert<(ExprId, Vec<ExprId>)> {
    let given = c.arg(1, "initial_state").map(Arg::tensors).unwrap_or_default();
    let mut states: Vec<ExprId> = given.iter().map(|t| t.id).collect();
    match c.args.first() {
        // Keras 2: states come after the sequence, in one list.
        Some(Arg::List(items)) => {
            let mut tensors = items.iter().flat_map(Arg::tensors).map(|t| t.id);
            let x = tensors.next().ok_or_else(|| c.refuse("it is called without an input"))?;
            states.extend(tensors);
            Ok((x, states))
        }
        _ => Ok((c.input()?, states)),
    }
}

fn run(c: &mut Call, cell: Cell) -> Convert<Arg> {
    let (x, given) = sequence_and_states(c)?;
    let rank = c.rank(x)?;
    if rank != cell.rank() + 1 {
        return Err(c.refuse(format!("its input has {rank} axes, not {}", cell.rank() + 1)));
    }
    let mask = c.mask()?;
    let zero_masked = c.flag(ZERO_OUTPUT) || c.layer.bool(ZERO_OUTPUT, false);
    let all = c.layer.bool("return_sequences", false);
    let backwards = c.layer.bool("go_backwards", false);
    let projected = cell.project_sequence(c, x)?;
    let compute = c.layer.policy()?.compute;
    let states = match given.len() {
        0 => cell.zero_states(c, projected)?,
        n if n == cell.states() => given.iter().map(|&s| c.cast(s, compute)).collect::<Convert<_>>()?,
        n => return Err(c.refuse(format!("it has {} states, but is given {n}", cell.states()))),
    };
    let steps = Steps { inputs: projected, mask, backwards, all, zero_masked };
    let found = scan(c, &cell, states, steps)?;
    let own = c.args.first().and_then(|a| a.tensors().first().and_then(|t| t.mask));
    let out = match found.all {
        Some(id) => Arg::Tensor(Held { id, mask: mask.or(own) }),
        None => Arg::of(found.last),
    };
    if !c.layer.bool("return_state", false) {
        return Ok(out);
    }
    let states = found.states.into_iter().map(Arg::of);
    Ok(Arg::List([out].into_iter().chain(states).collect()))
}

/// The layers of both directions: the second one may be left to be the first, backwards.
fn directions(c: &Call) -> Convert<(Rc<Layer>, Rc<Layer>)> {
    let mut forward = c.layer.inner("layer")?;
    let mut backward = match c.layer.get("backward_layer") {
        Some(json) => c.layer.inner_of(json)?,
        None => forward.turned_around(),
    };
    c.place(&mut forward, &["forward_layer"]);
    c.place(&mut backward, &["backward_layer"]);
    for (layer, prefix) in [(&mut forward, "forward_"), (&mut backward, "backward_")] {
        // Keras 2 names the arrays so, whatever the layers are called.
        let name = layer.name().to_owned();
        if let Some(last) = layer.place.names.last_mut().filter(|_| layer.keras2 && !name.starts_with(prefix)) {
            *last = format!("{prefix}{name}");
        }
    }
    Ok((forward.shared(), backward.shared()))
}

fn bidirectional(c: &mut Call) -> Convert<Arg> {
    let (forward, backward) = directions(c)?;
    let sequences = forward.bool("return_sequences", false);
    let (x, states) = sequence_and_states(c)?;
    let held = c.args.first().and_then(|a| a.tensors().first().copied());
    let mask = c.mask()?;
    let input = Arg::Tensor(Held { id: x, mask: held.and_then(|h| h.mask) });
    let one = |c: &mut Call, layer: &Rc<Layer>, states: &[ExprId]| {
        let mut kwargs = vec![(ZERO_OUTPUT.to_owned(), Arg::Json(sequences.into()))];
        if let Some(mask) = mask {
            kwargs.push(("mask".to_owned(), Arg::of(mask)));
        }
        if !states.is_empty() {
            let states = states.iter().map(|&s| Arg::of(s)).collect();
            kwargs.push(("initial_state".to_owned(), Arg::List(states)));
        }
        let out = c.call_inner(layer, vec![input.clone()], kwargs)?;
        let mut tensors = out.tensors();
        if tensors.is_empty() {
            return Err(c.refuse("a layer within it gives no tensor"));
        }
        let first = tensors.remove(0);
        Ok((first, tensors))
    };
    let half = states.len() / 2;
    let (y, mut after) = one(c, &forward, &states[..half])?;
    let (z, other) = one(c, &backward, &states[half..])?;
    after.extend(other);
    let z_id = match sequences {
        true => c.op("reverse", &[z.id], &[("axis", 1.into())])?,
        false => z.id,
    };
    let mode = match c.layer.config().get("merge_mode") {
        None => Some("concat".to_owned()),
        Some(m) => m.as_str().map(str::to_owned),
    };
    let merged = |id: ExprId| Arg::Tensor(Held { id, mask: y.mask });
    let mut outputs = match mode.as_deref() {
        Some("concat") => vec![merged(c.concat(&[y.id, z_id], -1)?)],
        Some("sum") => vec![merged(c.bin("add", y.id, z_id)?)],
        Some("mul") => vec![merged(c.bin("multiply", y.id, z_id)?)],
        Some("ave") => {
            let sum = c.bin("add", y.id, z_id)?;
            vec![merged(c.with("multiply", sum, 0.5)?)]
        }
        None => vec![merged(y.id), merged(z_id)],
        Some(other) => return Err(c.refuse(format!("its merge mode `{other}` is unknown"))),
    };
    outputs.extend(after.into_iter().map(Arg::Tensor));
    Ok(if outputs.len() == 1 { outputs.remove(0) } else { Arg::List(outputs) })
}

/// Zeros of a batch, as many as `like` has, with further extents.
fn zeros(c: &mut Call, like: ExprId, extents: &[i64], dtype: DType) -> Convert {
    if let Some(Some(batch)) = c.shape(like)?.first().copied() {
        let shape: Vec<i64> = [batch].into_iter().chain(extents.iter().copied()).collect();
        return c.op("zeros", &[], &[("shape", shape.into()), ("dtype", dtype.into())]);
    }
    let flat = c.un("nn.batch_flatten", like)?;
    let one = c.slice(flat, 1, 0, 1)?;
    let one = c.cast(one, dtype)?;
    let zero = c.un("zeros_like", one)?;
    let zero = c.expand(zero, -1, extents.len() as i64 - 1)?;
    let reps: Vec<i64> = [1].into_iter().chain(extents.iter().copied()).collect();
    c.op("tile", &[zero], &[("reps", reps.into())])
}
