//! The run of a cell over the steps of a sequence: step by step in the program where they are few and known, else a loop.

use super::{super::super::call::Call, cell::Cell};
use crate::{
    frontend::Convert,
    ir::{Expr, ExprId, FuncType, Type},
    tensor::{DType, Tensor},
};

/// Longer sequences are run through by a loop.
const MOST_UNROLLED: i64 = 64;

/// What a cell is run over.
pub(super) struct Steps {
    /// Projected inputs: (batch, steps, ..).
    pub inputs: ExprId,
    /// Which steps count: (batch, steps).
    pub mask: Option<ExprId>,
    /// From the last step to the first.
    pub backwards: bool,
    /// Whether all outputs are wanted, in the order in which they are made.
    pub all: bool,
    /// Whether steps that do not count give zeros, and not what the step before gave.
    pub zero_masked: bool,
}

/// What comes of it.
pub(super) struct Scanned {
    /// The last step's output.
    pub last: ExprId,
    /// All outputs: (batch, steps, ..).
    pub all: Option<ExprId>,
    /// The states at the end.
    pub states: Vec<ExprId>,
}

/// Runs a cell.
pub(super) fn scan(c: &mut Call, cell: &Cell, states: Vec<ExprId>, steps: Steps) -> Convert<Scanned> {
    match c.shape(steps.inputs)?.get(1).copied().flatten() {
        Some(n @ 1..=MOST_UNROLLED) => unrolled(c, cell, states, &steps, n),
        n => looped(c, cell, states, &steps, n),
    }
}

/// The pieces of a tensor along its second axis.
fn pieces(c: &mut Call, x: ExprId, n: i64) -> Convert<Vec<ExprId>> {
    let parts = match n {
        1 => vec![x],
        _ => {
            let parts = c.op("split", &[x], &[("indices_or_sections", n.into()), ("axis", 1.into())])?;
            (0..n as usize).map(|i| c.s.b.field(parts, i)).collect()
        }
    };
    parts.into_iter().map(|p| c.op("squeeze", &[p], &[("axis", [1].into())])).collect()
}

/// A step whose outcome counts where the mask holds: (batch).
fn masked(
    c: &mut Call,
    counts: ExprId,
    (out, new): (ExprId, Vec<ExprId>),
    otherwise: ExprId,
    old: &[ExprId],
) -> Convert<(ExprId, Vec<ExprId>)> {
    let mut choose = |x: ExprId, y: ExprId| {
        let rank = c.rank(x)? as i64;
        let counts = c.expand(counts, -1, rank - 1)?;
        c.select(counts, x, y)
    };
    let out = choose(out, otherwise)?;
    let new = new.into_iter().zip(old).map(|(x, &y)| choose(x, y)).collect::<Convert<_>>()?;
    Ok((out, new))
}

fn unrolled(c: &mut Call, cell: &Cell, states: Vec<ExprId>, steps: &Steps, n: i64) -> Convert<Scanned> {
    let inputs = pieces(c, steps.inputs, n)?;
    let counts = match steps.mask {
        Some(mask) => pieces(c, mask, n)?,
        None => Vec::new(),
    };
    let (mut states, mut outputs, mut before) = (states, Vec::new(), None);
    for i in 0..n as usize {
        let at = if steps.backwards { n as usize - 1 - i } else { i };
        let mut made = cell.step(c, inputs[at], &states)?;
        if let Some(&counts) = counts.get(at) {
            let otherwise = match before {
                Some(before) if !steps.zero_masked => before,
                _ => c.un("zeros_like", made.0)?,
            };
            made = masked(c, counts, made, otherwise, &states)?;
        }
        before = Some(made.0);
        outputs.push(made.0);
        states = made.1;
    }
    let last = outputs[outputs.len() - 1];
    let all = match steps.all {
        true => {
            let tuple = c.s.b.tuple(&outputs);
            Some(c.op("stack", &[tuple], &[("axis", 1.into())])?)
        }
        false => None,
    };
    Ok(Scanned { last, all, states })
}

/// `let x = ..; let loop = fn (i, states.., last, all) { if (i < n) { loop(i + 1, ..) } else { (..) } }; loop(0, ..)`.
fn looped(c: &mut Call, cell: &Cell, states: Vec<ExprId>, steps: &Steps, n: Option<i64>) -> Convert<Scanned> {
    let count = match n {
        Some(n) => c.s.b.scalar(DType::I32, n as f64),
        None => {
            let shape = c.op("shape_of", &[steps.inputs], &[("dtype", DType::I32.into())])?;
            let one = c.slice(shape, 0, 1, 2)?;
            c.op("squeeze", &[one], &[("axis", [0].into())])?
        }
    };
    // Bound before the loop, so that it does not compute them again.
    let mut bound = Vec::new();
    let mut bind = |c: &mut Call, name: &str, value: ExprId| {
        let ty = c.s.b.ty(value).clone();
        let (var, used) = c.s.b.var(name, ty);
        bound.push((var, value));
        used
    };
    let count = bind(c, "steps", count);
    let inputs = bind(c, "inputs", steps.inputs);
    let mask = steps.mask.map(|m| bind(c, "mask", m));
    let places = match n {
        Some(n) => {
            let n = c.count(n)?;
            c.constant(Tensor::from_i64_fn(DType::I32, &[n], |i| i as i64))
        }
        None => {
            let (zero, one) = (c.s.b.scalar(DType::I32, 0.0), c.s.b.scalar(DType::I32, 1.0));
            let range = c.op("arange", &[zero, count, one], &[("dtype", DType::I32.into())])?;
            bind(c, "places", range)
        }
    };
    // An output has the shape of the first of the cell's states that it is; that of stacked cells is of the last cell.
    let like = states[cell.output_state()];
    let zero = c.un("zeros_like", like)?;
    let rank = c.rank(zero)?;
    let mut start = states.clone();
    start.push(zero);
    let along_steps = |c: &mut Call, x: ExprId| c.expand(x, -1, rank as i64 - 1);
    if steps.all {
        // (batch, 1, ..) and (steps, 1, ..) make zeros for all outputs.
        let dtype = c.dtype(zero)?;
        let one = c.expand(zero, 1, 1)?;
        let many = c.cast(places, dtype)?;
        let many = c.un("zeros_like", many)?;
        let many = along_steps(c, many)?;
        start.push(c.bin("add", one, many)?);
    }
    let first = c.s.b.scalar(DType::I32, 0.0);
    let mut params = Vec::new();
    let mut uses = Vec::new();
    for (name, value) in [("i", first)].into_iter().chain(start.iter().map(|&s| ("state", s))) {
        let ty = c.s.b.ty(value).clone();
        let (var, used) = c.s.b.var(name, ty);
        params.push(var);
        uses.push(used);
    }
    let types: Vec<Type> = uses.iter().map(|&u| c.s.b.ty(u).clone()).collect();
    let ret = Type::tuple(types[1..].iter().cloned());
    let func_type = FuncType { type_params: Vec::new(), params: types, ret: ret.clone() };
    let (loop_var, loop_use) = c.s.b.var("loop", Type::Func(func_type.into()));

    let (i, now) = (uses[0], &uses[1..]);
    let more = c.bin("less", i, count)?;
    let at = if steps.backwards {
        let last = c.with("subtract", count, 1.0)?;
        c.bin("subtract", last, i)?
    } else {
        i
    };
    let take = |c: &mut Call, x: ExprId| c.op("take", &[x, at], &[("axis", 1.into())]);
    let x = take(c, inputs)?;
    let old = &now[..states.len()];
    let mut made = cell.step(c, x, old)?;
    if let Some(mask) = mask {
        let counts = take(c, mask)?;
        let otherwise = if steps.zero_masked { c.un("zeros_like", made.0)? } else { now[states.len()] };
        made = masked(c, counts, made, otherwise, old)?;
    }
    let one = c.s.b.scalar(DType::I32, 1.0);
    let mut next = vec![c.bin("add", i, one)?];
    next.extend(&made.1);
    next.push(made.0);
    if steps.all {
        let here = c.bin("equal", places, i)?;
        let here = along_steps(c, here)?;
        let out = c.expand(made.0, 1, 1)?;
        next.push(c.select(here, out, now[states.len() + 1])?);
    }
    let again = c.s.b.call(loop_use, &next, ret.clone());
    let done = c.s.b.tuple(now);
    let body = c.s.b.if_else(more, again, done, ret.clone());
    let func = c.s.b.func(params, body, ret.clone());
    let args: Vec<ExprId> = [first].into_iter().chain(start).collect();
    let mut result = c.s.b.call(loop_use, &args, ret.clone());
    for (var, value) in [(loop_var, func)].into_iter().chain(bound.into_iter().rev()) {
        result = c.s.b.add(Expr::Let { var, value, body: result }, ret.clone());
    }
    let found = (0..states.len()).map(|k| c.s.b.field(result, k)).collect();
    let last = c.s.b.field(result, states.len());
    let all = steps.all.then(|| c.s.b.field(result, states.len() + 1));
    Ok(Scanned { last, all, states: found })
}
