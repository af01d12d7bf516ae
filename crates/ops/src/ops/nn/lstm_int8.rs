//! LSTM layers with int8 weights, whose states are quantized at each step, as ONNX Runtime's `DynamicQuantizeLSTM`.

use super::recurrent::{check_lengths, each, goes_back, sigmoid, step_at, tanh};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Nest, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, field, may_equal, op_head, sample, t, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&LstmInt8];

/// `nn.lstm_int8`.
#[derive(Debug)]
struct LstmInt8;

/// Gates: input, output, forgetting, the new value.
const GATES: i64 = 4;

/// How many bytes a lane's dot product takes.
const FOUR: i64 = 4;

/// A state as unsigned bytes: its scale and zero point, and the bytes.
fn quantized(state: &[f32]) -> (f32, i64, Vec<i64>) {
    let (low, high) = state.iter().fold((0f32, 0f32), |(low, high), &v| (low.min(v), high.max(v)));
    let scale = if high == low { 1.0 } else { (high - low) / 255.0 };
    let zero = (-low / scale).clamp(0.0, 255.0).round_ties_even();
    let bytes = state.iter().map(|v| ((v / scale).round_ties_even() + zero).clamp(0.0, 255.0) as i64).collect();
    (scale, zero as i64, bytes)
}

impl Op for LstmInt8 {
    op_head!(
        "nn.lstm_int8",
        "As nn.lstm of float32, where what states are multiplied by is scale[d, n, g, c] * (w - zero[d, n, g, c]) for bytes
        w = weight[d, n, k / 4, g, c, k % 4], and each state h is quantized before: to bytes q between its own least and greatest number and 0,
        s = (max(h, 0) - min(h, 0)) / 255, or 1 for a state of zeros, z = round(-min(h, 0) / s), q = round(h / s) + z, all within 0 to 255; the
        sums are s * scale * (sum over k of (q[k] - z) * (w - zero)), of int32.
        C1: data, scale and states are float32, weight int8, zero int32. C2: extents fit each other. C3: directions are 1 or 2, blocks at most 64 and
        multiples of 4. C4: lengths are int32, one for each row or one for all.",
        ["data", "weight", "scale", "zero", "hidden", "cell", "lengths"],
        [field("reverse", AttrKind::Bool, AttrDefault::Bool(false))],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let names = self.inputs();
        let all: Vec<&TensorType> = (0..7).map(|i| tensor_arg(args, i, names[i])).collect::<Result<_, _>>()?;
        let (f, x, w) = (DType::F32, all[0], all[1]);
        for ((t, name), (dtype, rank)) in
            all.iter().zip(names).zip([(f, 3), (DType::I8, 6), (f, 4), (DType::I32, 4), (f, 3), (f, 3)])
        {
            op_ensure!(t.dtype == dtype, "C1: `{name}` is {t}, but should be {dtype}");
            op_ensure!(t.rank() == rank, "C2: `{name}` is {t}, but should have {rank} axes");
        }
        let Some([d, n, k, gates, c, four]) = w.known_shape().and_then(|s| <[i64; 6]>::try_from(s).ok()) else {
            return Err(OpError(format!("C2: `weight` is {w}, but should have known extents")));
        };
        let blocks = (4..=64).contains(&c) && c % FOUR == 0;
        op_ensure!((1..=2).contains(&d) && blocks, "C3: `weight` is {w}, of {d} directions in blocks of {c}");
        op_ensure!(gates == GATES && four == FOUR, "C2: `weight` is {w}, of {gates} gates, {four} side by side");
        op_ensure!(may_equal(x.shape[2], Dim::Known(d * n * gates * c)), "C2: `data` is {x}, but `weight` is {w}");
        for (t, name) in [(all[2], "scale"), (all[3], "zero")] {
            let fits = t.shape.iter().zip([d, n, gates, c]).all(|(&a, b)| may_equal(a, Dim::Known(b)));
            op_ensure!(fits, "C2: `{name}` is {t}, but `weight` is {w}");
        }
        let Dim::Known(h) = all[4].shape[2] else {
            return Err(OpError(format!("C2: `hidden` is {}, but its last extent should be known", all[4])));
        };
        op_ensure!(k == (h + FOUR - 1) / FOUR && n * c >= h, "C2: `hidden` is {}, but `weight` is {w}", all[4]);
        let mut batch = x.shape[1];
        for (s, name) in [(all[4], "hidden"), (all[5], "cell")] {
            let fits = may_equal(s.shape[0], Dim::Known(d)) && may_equal(s.shape[2], Dim::Known(h));
            op_ensure!(fits && may_equal(s.shape[1], batch), "C2: `{name}` is {s}, but `data` is {x}, `weight` {w}");
            batch = if batch.known().is_some() { batch } else { s.shape[1] };
        }
        check_lengths(all[6], batch)?;
        let (d, h) = (Dim::Known(d), Dim::Known(h));
        let state = || TensorType::of([d, batch, h], f).into();
        Ok(Type::tuple(vec![TensorType::of([x.shape[0], d, batch, h], f).into(), state(), state()]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, w, scale, zero, hidden, cell, lengths] = [0, 1, 2, 3, 4, 5, 6].map(|i| args[i].tensor());
        let (steps, batch) = (x.shape()[0], x.shape()[1]);
        let [directions, blocks, fours, _, lanes] = [0, 1, 2, 3, 4].map(|i| w.shape()[i]);
        let size = hidden.shape()[2];
        let (mut h, mut c) = (hidden.to_f64_vec(), cell.to_f64_vec());
        let mut out = vec![0.0; steps * directions * batch * size];
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        for (d, row) in (0..directions).flat_map(|d| (0..batch).map(move |row| (d, row))) {
            let length = lengths.get_i64(if lengths.len() == 1 { 0 } else { row });
            let at = (d * batch + row) * size;
            for step in 0..steps {
                let now = if d == 1 || attrs.bool("reverse") { steps - 1 - step } else { step };
                if now as i64 >= length {
                    continue;
                }
                let state: Vec<f32> = h[at..at + size].iter().map(|&v| v as f32).collect();
                let (s, z, q) = quantized(&state);
                for j in 0..size {
                    let gate = |g: usize| {
                        let place = ((d * blocks + j / lanes) * 4 + g) * lanes + j % lanes;
                        let weight = |k: usize| {
                            let four = ((d * blocks + j / lanes) * fours + k / 4) * 4 + g;
                            w.get_i64((four * lanes + j % lanes) * 4 + k % 4)
                        };
                        // Of zero points beyond bytes, sums of 32 bits keep the lower bits.
                        let product = |k: usize| (q[k] - z).wrapping_mul(weight(k) - zero.get_i64(place));
                        let sum = (0..size).map(product).fold(0, i64::wrapping_add) as i32;
                        let data = (now * batch + row) * directions * blocks * 4 * lanes;
                        x.get_f64(data + place) + f64::from(s) * scale.get_f64(place) * f64::from(sum)
                    };
                    let value = sigmoid(gate(2)) * c[at + j] + sigmoid(gate(0)) * gate(3).tanh();
                    c[at + j] = f64::from(value as f32);
                    h[at + j] = f64::from((sigmoid(gate(1)) * c[at + j].tanh()) as f32);
                    out[((now * directions + d) * batch + row) * size + j] = h[at + j];
                }
            }
        }
        let state = |v: Vec<f64>| Value::from(Tensor::from_f64_fn(DType::F32, &[directions, batch, size], |i| v[i]));
        let out = Tensor::from_f64_fn(DType::F32, &[steps, directions, batch, size], |i| out[i]);
        Ok(Value::Tuple(vec![out.into(), state(h), state(c)]))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = args.iter().map(|t| t.as_tensor().map_or(0, TensorType::rank));
        AxisMap(ranks.map(|rank| vec![AxisRole::Opaque; rank]).collect())
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let fours = args[1].as_tensor().and_then(|t| t.shape[2].known()).unwrap_or(1);
        let flops = 2.0 * (FOUR * fours) as f64 * elements(&args[0]) + 30.0 * elements(out);
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, weight, scale, zero, hidden, cell, lengths] = [0, 1, 2, 3, 4, 5, 6].map(|i| args[i].tensor());
        let (steps, batch) = (b.shape(x)[0], b.shape(x)[1]);
        let [directions, blocks, _, _, lanes, _] = b.shape(weight)[..] else { unreachable!("six axes") };
        let (size, dtype) = (b.shape(hidden)[2], DType::F32);
        let (state, room) = ([directions, batch, size], blocks * lanes);
        let one_length = b.shape(lengths)[0] == 1;
        let results = b.routine(|r| {
            let out = r.output(&[steps, directions, batch, size], dtype);
            let last = [r.output(&state, dtype), r.output(&state, dtype)];
            r.parallel_each(&[directions, batch], |r, i| {
                let [d, row] = [i[0].clone(), i[1].clone()];
                let own = [r.local(&[room], dtype), r.local(&[room], dtype)];
                let layer = Layer { weight, scale, zero, direction: d.clone(), size, room, lanes };
                let work = Quantized { bytes: r.local(&[room], DType::U8), sums: layer.sums(r) };
                let place = |j: &Scalar| [d.clone(), row.clone(), j.clone()];
                for (own, given) in own.into_iter().zip([hidden, cell]) {
                    each(r, room, &|r, j| r.store(own, [j], Scalar::float(0.0, dtype)));
                    each(r, size, &|r, j| r.store(own, [j.clone()], r.read(given, place(&j))));
                }
                let length = if one_length { Scalar::index(0) } else { row.clone() };
                let length = r.let_(r.read(lengths, [length]));
                r.for_(steps, |r, step| {
                    let now = step_at(r, &d, step, steps, (goes_back(attrs, 0), directions));
                    let to = |j: Scalar| [now.clone(), d.clone(), row.clone(), j];
                    r.if_else(
                        now.clone().cast(DType::I32).lt(length.clone()),
                        |r| {
                            let input = |r: &Nest<'_>, at: Scalar| {
                                r.read(x, [now.clone(), row.clone(), d.clone() * (GATES * room) + at])
                            };
                            layer.step(r, &input, own, &work);
                            each(r, size, &|r, j| r.store(out, to(j.clone()), r.read(own[0], [j])));
                        },
                        |r| each(r, size, &|r, j| r.store(out, to(j), Scalar::float(0.0, dtype))),
                    );
                });
                for (own, last) in own.into_iter().zip(last) {
                    each(r, size, &|r, j| r.store(last, place(&j), r.read(own, [j])));
                }
            });
            [out, last[0], last[1]]
        });
        Ok(Operand::Tuple(results.into_iter().map(Operand::Tensor).collect()))
    }
    fn samples(&self) -> Vec<Sample> {
        let f = DType::F32;
        let call = |reverse: bool, [steps, batch, d, h]: [i64; 4], [n, c]: [i64; 2], lengths: i64| {
            let (state, each) = (t(&[d, batch, h], f), [d, n, GATES, c]);
            let weight = t(&[d, n, (h + FOUR - 1) / FOUR, GATES, c, FOUR], DType::I8);
            let data = t(&[steps, batch, d * n * GATES * c], f);
            let args = vec![data, weight, t(&each, f), t(&each, DType::I32), state.clone(), state];
            sample([("reverse", reverse.into())], [args, vec![t(&[lengths], DType::I32)]].concat())
        };
        vec![
            call(false, [2, 1, 1, 6], [1, 8], 1),
            call(true, [2, 2, 1, 18], [2, 16], 2),
            call(false, [1, 1, 2, 35], [2, 32], 1),
            call(false, [2, 1, 1, 4], [1, 4], 1),
        ]
    }
}

/// One direction of a layer.
struct Layer {
    weight: TensorId,
    scale: TensorId,
    zero: TensorId,
    direction: Scalar,
    /// Results.
    size: i64,
    /// Results, with those that fill up the last block.
    room: i64,
    /// Results of a block.
    lanes: i64,
}

/// Where a state is quantized, and what does not change from step to step.
struct Quantized {
    /// (room).
    bytes: TensorId,
    /// Sums of weights, (blocks * gates * block).
    sums: TensorId,
}

impl Layer {
    /// Lanes of a vector that blocks are whole vectors of.
    fn vector(&self) -> i64 {
        [16, 8].into_iter().find(|v| self.lanes % v == 0).unwrap_or(FOUR)
    }

    /// The int8 dot products of a state with the weights of each block: `body` gets the block, a vector of it, and a function that gives a gate's
    /// sum in a lane.
    fn products(
        &self,
        n: &mut Nest<'_>,
        byte: &dyn Fn(&Nest<'_>, &Scalar, i64) -> Scalar,
        body: &dyn Fn(&mut Nest<'_>, &Scalar, i64, &dyn Fn(&Nest<'_>, i64, &Scalar) -> Scalar),
    ) {
        let [_, blocks, fours, ..] = n.shape(self.weight)[..] else { unreachable!("six axes") };
        let vector = self.vector();
        let vectors = self.lanes / vector;
        n.for_(blocks, |n, block| {
            let sums = n.registers(&[GATES, vectors, vector], DType::I32);
            let place = |g: i64, v: i64, lane: &Scalar| [g.into(), v.into(), lane.clone()];
            let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, i64, i64, Scalar)| {
                for (g, v) in (0..GATES).flat_map(|g| (0..vectors).map(move |v| (g, v))) {
                    n.vector(vector, |n, lane| body(n, g, v, lane));
                }
            };
            each(n, &|n, g, v, lane| n.store(sums, place(g, v, &lane), 0));
            n.for_(fours, |n, k| {
                each(n, &|n, g, v, lane| {
                    let to = lane.clone() + v * vector;
                    let at = |i: i64| {
                        [self.direction.clone(), block.clone(), k.clone(), g.into(), to.clone(), Scalar::index(i)]
                    };
                    let pairs = (0..FOUR).map(|i| [byte(n, &k, i), n.read(self.weight, at(i))]);
                    let pairs: Vec<[Scalar; 2]> = pairs.collect();
                    let sum = n.read(sums, place(g, v, &lane));
                    n.store(sums, place(g, v, &lane), Scalar::dot(sum, pairs));
                });
            });
            for v in 0..vectors {
                body(n, &block, v, &|n, g, lane| n.read(sums, place(g, v, lane)));
            }
        });
    }

    /// The place of a gate's result among those of a direction, which have a block's gates beside each other.
    fn place(&self, block: &Scalar, g: i64, v: i64, lane: &Scalar) -> Scalar {
        (block.clone() * GATES + g) * self.lanes + lane.clone() + v * self.vector()
    }

    /// Sums of the weights of each result.
    fn sums(&self, n: &mut Nest<'_>) -> TensorId {
        let all = n.local(&[GATES * self.room], DType::I32);
        let ones = n.local(&[FOUR], DType::U8);
        n.for_(FOUR, |n, i| n.store(ones, [i], 1));
        self.products(n, &|n, _, i| n.read(ones, [i]), &|n, block, v, sum| {
            for g in 0..GATES {
                n.vector(self.vector(), |n, lane| {
                    n.store(all, [self.place(block, g, v, &lane)], sum(n, g, &lane));
                });
            }
        });
        all
    }

    /// The next states in the place of the last ones. `input` says what the input contributes to a gate's result.
    fn step(
        &self,
        n: &mut Nest<'_>,
        input: &dyn Fn(&Nest<'_>, Scalar) -> Scalar,
        [hidden, cell]: [TensorId; 2],
        work: &Quantized,
    ) {
        let [scale, zero, sum] = self.quantize(n, hidden, work.bytes);
        let above = n.let_(sum - zero.clone() * Scalar::int(self.room, DType::I32));
        self.products(n, &|n, k, i| n.read(work.bytes, [k.clone() * FOUR + i]), &|n, block, v, sum| {
            n.vector(self.vector(), |n, lane| {
                let within = lane.clone() + v * self.vector();
                let mut gates = Vec::new();
                for g in 0..GATES {
                    let at = [self.direction.clone(), block.clone(), g.into(), within.clone()];
                    let to = self.place(block, g, v, &lane);
                    let off = zero.clone() * n.read(work.sums, [to.clone()]);
                    let off = off + n.read(self.zero, at.clone()) * above.clone();
                    let factor = scale.clone() * n.read(self.scale, at);
                    let seen = (sum(n, g, &lane) - off).cast(DType::F32) * factor;
                    gates.push(input(n, to) + seen);
                }
                let [i, o, f, new] = &gates[..] else { unreachable!("four gates") };
                let j = block.clone() * self.lanes + within;
                let c = sigmoid(f) * n.read(cell, [j.clone()]) + sigmoid(i) * tanh(new);
                let c = n.let_(c);
                n.store(cell, [j.clone()], c.clone());
                let state = sigmoid(o) * tanh(&c);
                // What fills up the last block stays 0: it would count among what is quantized.
                let state = match self.size < self.room {
                    true => {
                        Scalar::select(j.clone().lt(Scalar::index(self.size)), state, Scalar::float(0.0, DType::F32))
                    }
                    false => state,
                };
                n.store(hidden, [j], state);
            });
        });
    }

    /// Quantizes a state: its scale, its zero point and the sum of its bytes as int32.
    fn quantize(&self, n: &mut Nest<'_>, state: TensorId, to: TensorId) -> [Scalar; 3] {
        let (lanes, dtype) = (self.vector(), DType::F32);
        let ends = [BinOp::Min, BinOp::Max].map(|op| (op, n.registers(&[lanes], dtype)));
        let sums = n.registers(&[lanes], DType::I32);
        n.vector(lanes, |n, lane| {
            ends.iter().for_each(|end| n.store(end.1, [lane.clone()], Scalar::float(0.0, dtype)));
            n.store(sums, [lane], 0);
        });
        let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, Scalar, Scalar)| {
            n.for_(self.room / lanes, |n, v| {
                let first = n.let_(v * lanes);
                n.vector(lanes, |n, lane| body(n, lane.clone(), first + lane));
            });
        };
        each(n, &|n, lane, j| {
            for (op, end) in ends {
                let value = Scalar::binary(op, n.read(end, [lane.clone()]), n.read(state, [j.clone()]));
                n.store(end, [lane.clone()], value);
            }
        });
        let [low, high] = ends.map(|(op, end)| {
            let total = n.var(Scalar::float(0.0, dtype));
            n.unrolled(lanes, |n, lane| n.set(total, Scalar::binary(op, n.get(total), n.read(end, [lane]))));
            n.let_(n.get(total))
        });
        let number = |v: f64| Scalar::float(v, dtype);
        let within = |v: Scalar| v.max(number(0.0)).min(number(255.0));
        let rounded = |v: Scalar| Scalar::unary(UnOp::RoundEven, v);
        let same = Scalar::binary(BinOp::Eq, low.clone(), high.clone());
        let scale = n.let_(Scalar::select(same, number(1.0), (high - low.clone()) / number(255.0)));
        let zero = n.let_(rounded(within((number(0.0) - low) / scale.clone())));
        each(n, &|n, lane, j| {
            let value = within(rounded(n.read(state, [j.clone()]) / scale.clone()) + zero.clone());
            let value = n.let_(value.cast(DType::I32));
            n.store(to, [j], value.clone().cast(DType::U8));
            let sum = n.read(sums, [lane.clone()]) + value;
            n.store(sums, [lane], sum);
        });
        let total = n.var(Scalar::int(0, DType::I32));
        n.unrolled(lanes, |n, lane| n.set(total, n.get(total) + n.read(sums, [lane])));
        let sum = n.let_(n.get(total));
        let zero = n.let_(zero.cast(DType::I32));
        [scale, zero, sum]
    }
}
