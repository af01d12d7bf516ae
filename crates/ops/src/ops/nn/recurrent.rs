//! Recurrent layers: all steps of a layer in one kernel, whose states stay in the thread's own memory.
//!
//! What the inputs contribute to the gates is a product for all steps at once, and is not part of it. What the state contributes
//! is the product of a vector by a matrix at each step, and mostly takes the time to read the weights: these lie in the order in which they are read,
//! the gates of a block of results beside each other, so that all gates of a block are summed at once, and its states follow from registers.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Nest, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, field, may_equal, t, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Recurrent { lstm: true }, &Recurrent { lstm: false }];

/// `nn.lstm` or `nn.gru`.
#[derive(Debug)]
struct Recurrent {
    lstm: bool,
}

impl Recurrent {
    fn gates(&self) -> i64 {
        if self.lstm { 4 } else { 3 }
    }

    /// Whether an argument is of both directions: (directions, batch, hidden), or (directions, hidden) of a bias.
    fn states(&self) -> &'static [usize] {
        if self.lstm { &[2, 3] } else { &[3] }
    }
}

impl Op for Recurrent {
    fn name(&self) -> &'static str {
        if self.lstm { "nn.lstm" } else { "nn.gru" }
    }
    fn doc(&self) -> &'static str {
        if self.lstm {
            "All steps of an LSTM of H results, in N blocks of C, N * C >= H; of D directions, 1 or 2. data (T, B, D * N * 4 * C) is what the inputs
            contribute to the gates, biases added; weight (D, N, H, 4, C) what states are multiplied by; gates are those of input, output,
            forgetting, and the new value. Beyond H, data and weights are 0. Step t of direction d, at result j = n * C + c:
            i, o, f, g = data[t, d, n, .., c] + sum over k of h[k] * weight[d, n, k, .., c]; c = sigmoid(f) * c + sigmoid(i) * tanh(g);
            h = sigmoid(o) * tanh(c), from h and c = hidden[d] and cell[d]. The second direction, and with reverse the first, goes from the last
            step to the first. From step lengths[b] on, states of row b stay and its outputs are 0. Gives h of all steps (T, D, B, H), then h and c
            of the last ones, (D, B, H) each.
            C1: data are floats of 32 or 64 bits, and so are weight and states. C2: extents fit each other. C3: D is 1 or 2, C at most 64.
            C4: lengths are int32, one for each row or one for all."
        } else {
            "All steps of a GRU of H results, in N blocks of C, N * C >= H; of D directions, 1 or 2. data (T, B, D * N * 3 * C) is what the inputs
            contribute to the gates, biases added; weight (D, N, H, 3, C) what states are multiplied by; gates are those of updating, resetting,
            and the new value. Beyond H, data, weights and bias (D, N * C) are 0. Step t of direction d, at result j = n * C + c:
            z, r, g = data[t, d, n, .., c]; zs, rs, gs = sum over k of h[k] * weight[d, n, k, .., c]; z = sigmoid(z + zs); r = sigmoid(r + rs);
            g = tanh(g + r * (gs + bias[d, j])), without reset_after tanh(g + bias[d, j] + sum over k of r[k] * h[k] * weight[d, n, k, 2, c]);
            h = (1 - z) * g + z * h, from h = hidden[d]. The second direction, and with reverse the first, goes from the last
            step to the first. From step lengths[b] on, states of row b stay and its outputs are 0. Gives h of all steps (T, D, B, H), then that
            of the last ones, (D, B, H).
            C1: data are floats of 32 or 64 bits, and so are weight, bias and states. C2: extents fit each other. C3: D is 1 or 2, C at most 64.
            C4: lengths are int32, one for each row or one for all."
        }
    }
    fn inputs(&self) -> &'static [&'static str] {
        if self.lstm {
            &["data", "weight", "hidden", "cell", "lengths"]
        } else {
            &["data", "weight", "bias", "hidden", "lengths"]
        }
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            field("reverse", AttrKind::Bool, AttrDefault::Bool(false)),
            field("reset_after", AttrKind::Bool, AttrDefault::Bool(true)),
        ];
        if self.lstm { &ATTRS[..1] } else { ATTRS }
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let names = self.inputs();
        let all: Vec<&TensorType> = (0..5).map(|i| tensor_arg(args, i, names[i])).collect::<Result<_, _>>()?;
        let (x, w, lengths) = (all[0], all[1], all[4]);
        op_ensure!(
            matches!(x.dtype, DType::F32 | DType::F64),
            "C1: `data` is {x}, but should be floats of 32 or 64 bits"
        );
        for ((t, name), rank) in all.iter().zip(names).zip([3, 5, if self.lstm { 3 } else { 2 }, 3]) {
            op_ensure!(t.dtype == x.dtype, "C1: `{name}` is {t}, but `data` is {x}");
            op_ensure!(t.rank() == rank, "C2: `{name}` is {t}, but should have {rank} axes");
        }
        let Some([d, n, h, gates, c]) = w.known_shape().and_then(|s| <[i64; 5]>::try_from(s).ok()) else {
            return Err(OpError(format!("C2: `weight` is {w}, but should have known extents")));
        };
        op_ensure!(
            (1..=2).contains(&d) && (1..=64).contains(&c),
            "C3: `weight` is {w}, of {d} directions in blocks of {c}"
        );
        op_ensure!(gates == self.gates() && n * c >= h, "C2: `weight` is {w}, of {gates} gates and {n} blocks of {c}");
        op_ensure!(may_equal(x.shape[2], Dim::Known(d * n * gates * c)), "C2: `data` is {x}, but `weight` is {w}");
        let mut batch = x.shape[1];
        for &i in self.states() {
            let (s, name) = (all[i], names[i]);
            let fits = may_equal(s.shape[0], Dim::Known(d)) && may_equal(s.shape[2], Dim::Known(h));
            op_ensure!(fits && may_equal(s.shape[1], batch), "C2: `{name}` is {s}, but `data` is {x}, `weight` {w}");
            batch = if batch.known().is_some() { batch } else { s.shape[1] };
        }
        if !self.lstm {
            let b = all[2];
            let fits = may_equal(b.shape[0], Dim::Known(d)) && may_equal(b.shape[1], Dim::Known(n * c));
            op_ensure!(fits, "C2: `bias` is {b}, but `weight` is {w}");
        }
        check_lengths(lengths, batch)?;
        let (d, h) = (Dim::Known(d), Dim::Known(h));
        let state = || TensorType::of([d, batch, h], x.dtype).into();
        let mut results = vec![TensorType::of([x.shape[0], d, batch, h], x.dtype).into()];
        results.extend(self.states().iter().map(|_| state()));
        Ok(Type::tuple(results))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let values = |i: usize| args[i].tensor().to_f64_vec();
        let [x, w] = [0, 1].map(|i| args[i].tensor());
        let (steps, batch) = (x.shape()[0], x.shape()[1]);
        let [directions, blocks, hidden, gates, lanes] = [0, 1, 2, 3, 4].map(|i| w.shape()[i]);
        let dtype = x.dtype();
        let lengths = args[4].tensor().to_i64_vec();
        let (xs, ws) = (values(0), values(1));
        let mut h = values(self.states()[0]);
        let mut other = values(if self.lstm { 3 } else { 2 });
        let mut out = vec![0.0; steps * directions * batch * hidden];
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let rounded = |v: f64| if dtype == DType::F32 { f64::from(v as f32) } else { v };
        for d in 0..directions {
            for row in 0..batch {
                let length = lengths[if lengths.len() == 1 { 0 } else { row }];
                let at = (d * batch + row) * hidden;
                for step in 0..steps {
                    let back = goes_back(attrs, d as i64);
                    let now = if back { steps - 1 - step } else { step };
                    if now as i64 >= length {
                        continue;
                    }
                    let before = h[at..at + hidden].to_vec();
                    let own = |g: usize, j: usize| {
                        let block = ((now * batch + row) * directions + d) * blocks + j / lanes;
                        xs[(block * gates + g) * lanes + j % lanes]
                    };
                    let seen = |state: &[f64], g: usize, j: usize| -> f64 {
                        let block = d * blocks + j / lanes;
                        let weight = |k: usize| ws[((block * hidden + k) * gates + g) * lanes + j % lanes];
                        state.iter().enumerate().map(|(k, s)| s * weight(k)).sum()
                    };
                    let gate = |g: usize, j: usize| own(g, j) + seen(&before, g, j);
                    let reset: Vec<f64> = (0..hidden).map(|k| sigmoid(gate(1, k)) * before[k]).collect();
                    for j in 0..hidden {
                        let value = if self.lstm {
                            let c = &mut other[at + j];
                            *c = rounded(sigmoid(gate(2, j)) * *c + sigmoid(gate(0, j)) * gate(3, j).tanh());
                            sigmoid(gate(1, j)) * c.tanh()
                        } else {
                            let (z, r, bias) =
                                (sigmoid(gate(0, j)), sigmoid(gate(1, j)), other[d * blocks * lanes + j]);
                            let part = match attrs.bool("reset_after") {
                                true => r * (seen(&before, 2, j) + bias),
                                false => seen(&reset, 2, j) + bias,
                            };
                            (1.0 - z) * (own(2, j) + part).tanh() + z * before[j]
                        };
                        h[at + j] = rounded(value);
                        out[((now * directions + d) * batch + row) * hidden + j] = value;
                    }
                }
            }
        }
        let state = |v: Vec<f64>| Value::from(Tensor::from_f64_fn(dtype, &[directions, batch, hidden], |i| v[i]));
        let out = Tensor::from_f64_fn(dtype, &[steps, directions, batch, hidden], |i| out[i]);
        let mut results = vec![out.into(), state(h)];
        results.extend(self.lstm.then(|| state(other)));
        Ok(Value::Tuple(results))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = args.iter().map(|t| t.as_tensor().map_or(0, TensorType::rank));
        AxisMap(ranks.map(|rank| vec![AxisRole::Opaque; rank]).collect())
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let gates = args[0].as_tensor().and_then(|t| t.bytes().map(|b| b as f64 / t.dtype.bytes() as f64));
        let hidden = args[1].as_tensor().and_then(|t| t.shape[2].known()).unwrap_or(1) as f64;
        let flops = 2.0 * hidden * gates.unwrap_or(1.0) + 20.0 * elements(out);
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let all = [0, 1, 2, 3, 4].map(|i| args[i].tensor());
        let (steps, batch, dtype) = (b.shape(all[0])[0], b.shape(all[0])[1], b.dtype(all[0]));
        let (directions, hidden) = (b.shape(all[1])[0], b.shape(all[1])[2]);
        let (state, changing) = ([directions, batch, hidden], b.is_for_all_sizes());
        let results = b.routine(|r| {
            let out = r.output(&[steps, directions, batch, hidden], dtype);
            let last: Vec<TensorId> = self.states().iter().map(|_| r.output(&state, dtype)).collect();
            let layer = Layer { attrs, lstm: self.lstm, all, out, last: last.clone() };
            // Of batches of any size, there may be no rows together, or none alone.
            let together = batch / TOGETHER;
            if together > 0 || changing {
                r.parallel_each(&[directions, together], |r, i| {
                    layer.rows(r, &i[0], &(i[1].clone() * TOGETHER), TOGETHER);
                });
            }
            if batch % TOGETHER > 0 || changing {
                r.parallel_each(&[directions, batch % TOGETHER], |r, i| {
                    layer.rows(r, &i[0], &(i[1].clone() + together * TOGETHER), 1);
                });
            }
            [vec![out], last].concat()
        });
        Ok(Operand::Tuple(results.into_iter().map(Operand::Tensor).collect()))
    }
    fn samples(&self) -> Vec<Sample> {
        let call =
            |attrs: &[(&'static str, bool)], [steps, batch, d, h]: [i64; 4], [n, c]: [i64; 2], lengths, dtype| {
                let state = t(&[d, batch, h], dtype);
                let other = if self.lstm { state.clone() } else { t(&[d, n * c], dtype) };
                let (data, weight) = ([steps, batch, d * n * self.gates() * c], [d, n, h, self.gates(), c]);
                let args = vec![t(&data, dtype), t(&weight, dtype), other, state, t(&[lengths], DType::I32)];
                let attrs = attrs.iter().filter(|a| !self.lstm || a.0 == "reverse").map(|&(k, v)| (k, v.into()));
                Sample { attrs: attrs.collect(), args }
            };
        vec![
            call(&[], [3, 1, 1, 4], [1, 4], 1, DType::F32),
            call(&[("reverse", true)], [2, 2, 1, 51], [2, 32], 2, DType::F32),
            call(&[], [3, 2, 2, 17], [3, 6], 2, DType::F64),
            call(&[("reset_after", false)], [2, 1, 2, 35], [3, 16], 1, DType::F32),
            call(&[("reset_after", false), ("reverse", true)], [4, 2, 1, 3], [1, 8], 2, DType::F32),
            call(&[], [2, 5, 2, 33], [2, 32], 5, DType::F32),
            call(&[("reset_after", false)], [3, 4, 1, 9], [1, 16], 1, DType::F32),
        ]
    }
}

/// Whether a direction goes from the last step to the first.
pub(super) fn goes_back(attrs: &Attrs, direction: i64) -> bool {
    direction == 1 || attrs.bool("reverse")
}

/// Refuses lengths that are not int32, one for each row or one for all.
pub(super) fn check_lengths(lengths: &TensorType, batch: Dim) -> Result<(), OpError> {
    op_ensure!(
        lengths.dtype == DType::I32 && lengths.rank() == 1,
        "C4: `lengths` is {lengths}, but should be int32 of one axis"
    );
    let fits = lengths.shape[0] == Dim::Known(1) || may_equal(lengths.shape[0], batch);
    op_ensure!(fits, "C4: `lengths` is {lengths}, but there are {batch} rows");
    Ok(())
}

/// The place of a direction's turn among so many steps, where the first direction goes back or not.
pub(super) fn step_at(
    n: &mut Nest<'_>,
    direction: &Scalar,
    turn: Scalar,
    steps: i64,
    (back, directions): (bool, i64),
) -> Scalar {
    let last = Scalar::index(steps - 1) - turn.clone();
    let now = match (back, directions) {
        (true, _) => last,
        (false, 1) => turn,
        (false, _) => Scalar::select(direction.clone().equals(0), turn, last),
    };
    n.let_index(now, steps)
}

/// Lanes of a vector.
const LANES: i64 = 16;

/// All of `0..extent`, in vectors.
pub(super) fn each(n: &mut Nest<'_>, extent: i64, body: &dyn Fn(&mut Nest<'_>, Scalar)) {
    let whole = extent / LANES;
    if whole > 0 {
        n.for_(whole, |n, v| {
            let first = n.let_(v * LANES);
            n.vector(LANES, |n, lane| body(n, first + lane));
        });
    }
    if extent % LANES > 0 {
        n.vector(extent % LANES, |n, lane| body(n, lane + whole * LANES));
    }
}

/// Rows of a batch that share what is read of the weights.
const TOGETHER: i64 = 4;

/// A layer as statements.
struct Layer<'a> {
    attrs: &'a Attrs,
    lstm: bool,
    /// The operator's arguments.
    all: [TensorId; 5],
    out: TensorId,
    /// The last states.
    last: Vec<TensorId>,
}

/// A row of a batch, in the thread's own memory.
struct Row {
    number: Scalar,
    /// From this step on its states stay.
    length: Scalar,
    /// The hidden state, and that of the cell.
    states: Vec<TensorId>,
    /// The next ones: of the states before, all is read until all of these are there.
    next: Vec<TensorId>,
    /// Where the last gate of a GRU sees the state after it is reset: how much the state is kept, and the state that it sees.
    between: Option<[TensorId; 2]>,
}

impl Layer<'_> {
    /// All steps of so many rows in one direction.
    fn rows(&self, n: &mut Nest<'_>, direction: &Scalar, first: &Scalar, count: i64) {
        let [x, weight, .., lengths] = self.all;
        let (steps, dtype) = (n.shape(x)[0], n.dtype(x));
        let [directions, blocks, hidden, gates, lanes] = n.shape(weight)[..] else { unreachable!("five axes") };
        let room = blocks * lanes;
        let given: &[usize] = if self.lstm { &[2, 3] } else { &[3] };
        let rows: Vec<Row> = (0..count)
            .map(|i| {
                let number = n.let_index(first.clone() + i, n.shape(x)[1]);
                let length = if n.shape(lengths)[0] == 1 { Scalar::index(0) } else { number.clone() };
                let length = n.let_(n.read(lengths, [length]));
                let mut own = || given.iter().map(|_| n.local(&[room], dtype)).collect::<Vec<_>>();
                let (states, next) = (own(), own());
                let between = (!self.lstm && !self.attrs.bool("reset_after"))
                    .then(|| [n.local(&[room], dtype), n.local(&[room], dtype)]);
                for (&own, &i) in states.iter().zip(given) {
                    each(n, room, &|n, j| n.store(own, [j], Scalar::float(0.0, dtype)));
                    let at = |j: &Scalar| [direction.clone(), number.clone(), j.clone()];
                    each(n, hidden, &|n, j| n.store(own, [j.clone()], n.read(self.all[i], at(&j))));
                }
                Row { number, length, states, next, between }
            })
            .collect();
        n.for_(steps, |n, turn| {
            let now = step_at(n, direction, turn, steps, (goes_back(self.attrs, 0), directions));
            let within = |row: &Row| now.clone().cast(DType::I32).lt(row.length.clone());
            let any = rows.iter().map(within).reduce(|a, b| Scalar::binary(BinOp::Or, a, b));
            n.if_(any.expect("there is a row"), |n| {
                let input = |n: &Nest<'_>, row: &Scalar, g: i64, [block, lane]: [Scalar; 2]| {
                    let block = direction.clone() * blocks + block;
                    n.read(x, [now.clone(), row.clone(), (block * gates + g) * lanes + lane])
                };
                let step = Step { weight, direction: direction.clone(), input: &input, rows: &rows };
                match (self.lstm, self.attrs) {
                    (true, _) => step.lstm(n),
                    (false, attrs) if attrs.bool("reset_after") => step.gru(n, self.all[2]),
                    (false, _) => step.gru_that_resets(n, self.all[2]),
                }
            });
            for row in &rows {
                let to = |j: Scalar| [now.clone(), direction.clone(), row.number.clone(), j];
                n.if_else(
                    within(row),
                    |n| {
                        for (&state, &next) in row.states.iter().zip(&row.next) {
                            each(n, hidden, &|n, j| n.store(state, [j.clone()], n.read(next, [j])));
                        }
                        each(n, hidden, &|n, j| n.store(self.out, to(j.clone()), n.read(row.next[0], [j])));
                    },
                    |n| each(n, hidden, &|n, j| n.store(self.out, to(j), Scalar::float(0.0, dtype))),
                );
            }
        });
        for row in &rows {
            for (&state, &last) in row.states.iter().zip(&self.last) {
                let to = |j: Scalar| [direction.clone(), row.number.clone(), j];
                each(n, hidden, &|n, j| n.store(last, to(j.clone()), n.read(state, [j])));
            }
        }
    }
}

/// What the input contributes to a gate of a row's result, whose block and place in it are given.
type Input<'a> = dyn Fn(&Nest<'_>, &Scalar, i64, [Scalar; 2]) -> Scalar + 'a;

/// One step of some rows.
struct Step<'a> {
    /// (directions, blocks, hidden, gates, block).
    weight: TensorId,
    direction: Scalar,
    input: &'a Input<'a>,
    rows: &'a [Row],
}

impl Step<'_> {
    /// Sums some gates over states, one for each row: `start` says what a gate of a row's result begins with; `body` gets the row, the
    /// gates of a result, its block and its place in it, and its number.
    fn sums(
        &self,
        n: &mut Nest<'_>,
        gates: std::ops::Range<i64>,
        states: &[TensorId],
        start: &Input<'_>,
        body: &dyn Fn(&mut Nest<'_>, &Row, &[Scalar], [Scalar; 2], Scalar),
    ) {
        let [_, blocks, hidden, _, block] = n.shape(self.weight)[..] else { unreachable!("five axes") };
        let lanes = [LANES, LANES / 2].into_iter().find(|lanes| block % lanes == 0).unwrap_or(block);
        let (dtype, rows) = (n.dtype(self.weight), self.rows.len() as i64);
        // Of several rows one vector of each gate at a time: sums are to stay in registers.
        let (turns, vectors) = if rows == 1 { (1, block / lanes) } else { (block / lanes, 1) };
        n.for_(blocks * turns, |n, turn| {
            let at = n.let_index(turn.clone().floor_div(turns), blocks);
            let first = n.let_(turn.floor_mod(turns) * lanes);
            let sums = n.registers(&[rows, gates.end - gates.start, vectors, lanes], dtype);
            let place =
                |r: i64, g: i64, v: i64, lane: &Scalar| [r.into(), (g - gates.start).into(), v.into(), lane.clone()];
            let lane_of = |v: i64, lane: &Scalar| first.clone() + v * lanes + lane.clone();
            let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, i64, i64, i64, Scalar)| {
                for r in 0..rows {
                    for (g, v) in gates.clone().flat_map(|g| (0..vectors).map(move |v| (g, v))) {
                        n.vector(lanes, |n, lane| body(n, r, g, v, lane));
                    }
                }
            };
            each(n, &|n, r, g, v, lane| {
                let value = start(n, &self.rows[r as usize].number, g, [at.clone(), lane_of(v, &lane)]);
                n.store(sums, place(r, g, v, &lane), value);
            });
            n.for_(hidden, |n, k| {
                let values: Vec<Scalar> = states.iter().map(|&s| n.let_(n.read(s, [k.clone()]))).collect();
                each(n, &|n, r, g, v, lane| {
                    let to = [self.direction.clone(), at.clone(), k.clone(), g.into(), lane_of(v, &lane)];
                    let product = values[r as usize].clone() * n.read(self.weight, to);
                    let sum = n.read(sums, place(r, g, v, &lane)) + product;
                    n.store(sums, place(r, g, v, &lane), sum);
                });
            });
            for (r, row) in self.rows.iter().enumerate() {
                for v in 0..vectors {
                    n.vector(lanes, |n, lane| {
                        let sum = |g| n.read(sums, place(r as i64, g, v, &lane));
                        let all: Vec<Scalar> = gates.clone().map(sum).collect();
                        let lane = lane_of(v, &lane);
                        let number = at.clone() * block + lane.clone();
                        body(n, row, &all, [at.clone(), lane], number);
                    });
                }
            }
        });
    }

    fn hidden(&self) -> Vec<TensorId> {
        self.rows.iter().map(|row| row.states[0]).collect()
    }

    fn lstm(&self, n: &mut Nest<'_>) {
        self.sums(n, 0..4, &self.hidden(), self.input, &|n, row, gates, _, j| {
            let [i, o, f, new] = gates else { unreachable!("four gates") };
            let c = sigmoid(f) * n.read(row.states[1], [j.clone()]) + sigmoid(i) * tanh(new);
            let c = n.let_(c);
            n.store(row.next[1], [j.clone()], c.clone());
            n.store(row.next[0], [j], sigmoid(o) * tanh(&c));
        });
    }

    /// What a bias of all results is for one of them.
    fn bias(&self, n: &Nest<'_>, bias: TensorId, [block, lane]: [Scalar; 2]) -> Scalar {
        n.read(bias, [self.direction.clone(), block * n.shape(self.weight)[4] + lane])
    }

    fn gru(&self, n: &mut Nest<'_>, bias: TensorId) {
        let start = |n: &Nest<'_>, row: &Scalar, g: i64, to: [Scalar; 2]| match g {
            2 => self.bias(n, bias, to),
            _ => (self.input)(n, row, g, to),
        };
        self.sums(n, 0..3, &self.hidden(), &start, &|n, row, gates, to, j| {
            let [z, r, last] = gates else { unreachable!("three gates") };
            let new = tanh(&((self.input)(n, &row.number, 2, to) + sigmoid(r) * last.clone()));
            mix(n, row, sigmoid(z), new, j);
        });
    }

    /// The last gate sees the state after it is reset.
    fn gru_that_resets(&self, n: &mut Nest<'_>, bias: TensorId) {
        let between = |row: &Row| row.between.expect("states are reset");
        self.sums(n, 0..2, &self.hidden(), self.input, &|n, row, gates, _, j| {
            let [z, r] = gates else { unreachable!("two gates") };
            let [kept, seen] = between(row);
            n.store(kept, [j.clone()], sigmoid(z));
            n.store(seen, [j.clone()], sigmoid(r) * n.read(row.states[0], [j]));
        });
        let start = |n: &Nest<'_>, row: &Scalar, g: i64, to: [Scalar; 2]| {
            (self.input)(n, row, g, to.clone()) + self.bias(n, bias, to)
        };
        let seen: Vec<TensorId> = self.rows.iter().map(|row| between(row)[1]).collect();
        self.sums(n, 2..3, &seen, &start, &|n, row, gates, _, j| {
            mix(n, row, n.read(between(row)[0], [j.clone()]), tanh(&gates[0]), j);
        });
    }
}

/// The next state of a GRU.
fn mix(n: &mut Nest<'_>, row: &Row, z: Scalar, new: Scalar, j: Scalar) {
    let z = n.let_(z);
    let rest = Scalar::float(1.0, new.dtype()) - z.clone();
    let value = rest * new + z * n.read(row.states[0], [j.clone()]);
    n.store(row.next[0], [j], value);
}

pub(super) fn sigmoid(x: &Scalar) -> Scalar {
    Scalar::unary(UnOp::Sigmoid, x.clone())
}

pub(super) fn tanh(x: &Scalar) -> Scalar {
    Scalar::unary(UnOp::Tanh, x.clone())
}
