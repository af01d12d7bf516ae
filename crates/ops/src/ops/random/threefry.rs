//! The generator itself: Threefry with four 64-bit words and 20 rounds.
//!
//! A key holds ten words: four of hash key, two of path (the history of splits, a bit each), two of counter (of which the
//! second counts), and two that mark the path's next bit.

use crate::{
    ir::{Attrs, Dim, Type},
    loops::{BinOp, Builder, Nest, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        transform::reshape_index,
        util::{bytes, elements, extents, field, ints_attr, op_head, sample, t, tensor_arg},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Generate, &Split];

/// How far words are rotated in the rounds, by turns.
const ROTATIONS: [[u32; 2]; 8] = [[14, 16], [52, 57], [23, 40], [5, 37], [25, 33], [46, 12], [58, 22], [32, 32]];
/// What makes the fifth word of the hash key.
const PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;
/// Operations that a word of output takes.
const FLOPS: f64 = 60.0;

/// The hash of a counter under a key.
fn hash(key: [u64; 4], counter: [u64; 4]) -> [u64; 4] {
    let full = [key[0], key[1], key[2], key[3], key.iter().fold(PARITY, |all, k| all ^ k)];
    let mut w = counter;
    for s in 0..5 {
        for (j, word) in w.iter_mut().enumerate() {
            *word = word.wrapping_add(full[(s + j) % 5]);
        }
        w[3] = w[3].wrapping_add(s as u64);
        for k in 0..4 {
            let by = ROTATIONS[(4 * s + k) % 8];
            let mixed = |a: u64, b: u64, by: u32| {
                let sum = a.wrapping_add(b);
                (sum, sum.wrapping_add(b) ^ b.rotate_left(by))
            };
            let ((a, b), (c, d)) = (mixed(w[0], w[1], by[0]), mixed(w[2], w[3], by[1]));
            w = [a, d, c, b];
        }
    }
    w
}

/// The same hash as statements.
fn lowered_hash(r: &mut Nest<'_>, key: &[Scalar], counter: [Scalar; 4]) -> [Scalar; 4] {
    let parity = key.iter().fold(word(PARITY), |all, k| Scalar::binary(BinOp::Xor, all, k.clone()));
    let parity = r.let_(parity);
    let full = [key, &[parity]].concat();
    let mut w = counter;
    for s in 0..5 {
        w = std::array::from_fn(|j| w[j].clone() + full[(s + j) % 5].clone());
        w[3] = w[3].clone() + word(s as u64);
        w = w.map(|word| r.let_(word));
        for k in 0..4 {
            let by = ROTATIONS[(4 * s + k) % 8];
            let mut mixed = |a: &Scalar, b: &Scalar, by: u32| {
                let turned = Scalar::binary(
                    BinOp::Or,
                    Scalar::binary(BinOp::Shl, b.clone(), word(by as u64)),
                    Scalar::binary(BinOp::Shr, b.clone(), word(64 - by as u64)),
                );
                let sum = r.let_(a.clone() + b.clone());
                (sum.clone(), r.let_(Scalar::binary(BinOp::Xor, sum + b.clone(), turned)))
            };
            let ((a, b), (c, d)) = (mixed(&w[0], &w[1], by[0]), mixed(&w[2], &w[3], by[1]));
            w = [a, d, c, b];
        }
    }
    w
}

/// A constant word.
fn word(w: u64) -> Scalar {
    Scalar::int(w as i64, DType::U64)
}

/// Reads an argument as a key.
fn key_words(t: &Tensor) -> [u64; 10] {
    let words = t.as_slice::<u64>();
    std::array::from_fn(|i| words[i])
}

fn tensor_of(key: [u64; 10]) -> Value {
    Tensor::from_slice(&[10], &key).into()
}

/// The type of keys.
pub(super) fn key_type() -> Type {
    Type::tensor(&[10], DType::U64)
}

/// Whether argument 0 is a key.
pub(super) fn check_key(args: &[Type]) -> Result<(), OpError> {
    let key = tensor_arg(args, 0, "key")?;
    let fits = key.dtype == DType::U64 && matches!(key.shape[..], [Dim::Known(10) | Dim::Any]);
    op_ensure!(fits, "C1: `key` is {key}, but should be {}", key_type());
    Ok(())
}

/// What is known of an argument that is a key before its type is.
pub(super) fn complete_key() -> Vec<(usize, Type)> {
    vec![(0, key_type())]
}

/// The attribute `out_shape`.
pub(super) fn shape_attr(attrs: &Attrs) -> Result<Vec<i64>, OpError> {
    let shape = ints_attr(attrs, "out_shape")?;
    op_ensure!(shape.iter().all(|&n| n >= 0), "C2: `out_shape` is {shape:?}, but should hold no negative numbers");
    Ok(shape)
}

/// The position of the next bit of the path, one further.
fn next_bit(a: u64, b: u64) -> (u64, u64) {
    match a {
        1 => (0, 1 << 63),
        0 => (0, b >> 1),
        a => (a >> 1, 0),
    }
}

/// The state that has room for `count` more numbers: the key's own, the next on its path, or, at the path's end, a new one.
fn with_room(gen_key: [u64; 10], count: u64) -> [u64; 10] {
    let k = gen_key;
    if k[7] < u64::MAX.wrapping_sub(count) {
        return k;
    }
    if k[8] == 0 {
        let [a, b, c, d] = hash([k[0], k[1], k[2], k[3]], [u64::MAX; 4]);
        return [a, b, c, d, 0, 0, 0, 0, 1 << 63, 0];
    }
    let (m, n) = next_bit(k[8], k[9]);
    [k[0], k[1], k[2], k[3], k[4] | k[8], k[5] | k[9], 0, 0, m, n]
}

/// The next key and `count` random numbers.
pub(super) fn generate(key: &Tensor, count: usize) -> (Value, Vec<u64>) {
    let mut state = with_room(key_words(key), count as u64);
    let [k0, k1, k2, k3, p0, p1, c0, c1, ..] = state;
    let key = [k0, k1, k2, k3];
    let whole = count as u64 / 4;
    let mut out: Vec<u64> =
        (0..whole).flat_map(|l| hash(key, [p0, p1, c0, c1].map(|w: u64| w.wrapping_add(l)))).collect();
    let rest = count % 4;
    if rest > 0 {
        out.extend(&hash(key, [p0, p1, c0, c1.wrapping_add(4 * whole)])[..rest]);
    }
    state[6] = 0;
    state[7] = c1.wrapping_add(4 * (count as u64).div_ceil(4));
    (tensor_of(state), out)
}

/// The next key, and a tensor of random bits of this shape.
pub(super) fn lower_generate(key: TensorId, shape: &[i64], b: &mut Builder) -> (TensorId, TensorId) {
    let count: i64 = shape.iter().product();
    let (next, bits) = b.routine(|r| {
        let (next, bits) = (r.output(&[10], DType::U64), r.output(&[count], DType::U64));
        let state = r.scratch(&[10], DType::U64);
        let k = lowered_key(r, key);
        let store = |r: &mut Nest<'_>, words: [Scalar; 10]| {
            words.into_iter().enumerate().for_each(|(i, w)| r.store(state, [i as i64], w));
        };
        let room = k[7].clone().lt(word(u64::MAX.wrapping_sub(count as u64)));
        r.if_else(
            room,
            |r| store(r, k.clone()),
            |r| {
                r.if_else(
                    k[8].clone().equals(word(0)),
                    |r| {
                        let [a, b, c, d] = lowered_hash(r, &k[..4], [(); 4].map(|()| word(u64::MAX)));
                        store(r, [a, b, c, d, word(0), word(0), word(0), word(0), word(1 << 63), word(0)]);
                    },
                    |r| {
                        let mut new = k.clone();
                        [new[4], new[5]] = [4, 5].map(|w| Scalar::binary(BinOp::Or, k[w].clone(), k[w + 4].clone()));
                        [new[6], new[7]] = [word(0), word(0)];
                        [new[8], new[9]] = lowered_next_bit(&k[8], &k[9]);
                        store(r, new);
                    },
                )
            },
        );
        let s: Vec<Scalar> = (0..8).map(|w| r.let_(r.read(state, [w]))).collect();
        r.parallel(count / 4, |r, l| {
            let on = r.let_(l.clone().cast(DType::U64));
            let counter = std::array::from_fn(|w| s[4 + w].clone() + on.clone());
            let words = lowered_hash(r, &s[..4], counter);
            words.into_iter().enumerate().for_each(|(j, w)| r.store(bits, [l.clone() * 4 + j as i64], w));
        });
        if count % 4 > 0 {
            let whole = count / 4 * 4;
            let counter = [s[4].clone(), s[5].clone(), s[6].clone(), s[7].clone() + word(whole as u64)];
            let words = lowered_hash(r, &s[..4], counter);
            words.into_iter().zip(whole..count).for_each(|(w, at)| r.store(bits, [at], w));
        }
        r.for_(10, |r, w| r.store(next, [w.clone()], r.read(state, [w])));
        r.store(next, [6], word(0));
        r.store(next, [7], s[7].clone() + word((count as u64).div_ceil(4) * 4));
        (next, bits)
    });
    let shaped = b.map(shape, |b, i| b.read(bits, reshape_index(&[count], shape, i, b.is_for_all_sizes())));
    (next, shaped)
}

/// The words of a key, named.
fn lowered_key(r: &mut Nest<'_>, key: TensorId) -> [Scalar; 10] {
    std::array::from_fn(|w| r.let_(r.read(key, [w as i64])))
}

fn lowered_next_bit(a: &Scalar, b: &Scalar) -> [Scalar; 2] {
    let half = |x: &Scalar| Scalar::binary(BinOp::Shr, x.clone(), word(1));
    let is = |w: u64| a.clone().equals(word(w));
    // Half of 0 and of 1 is 0.
    [half(a), Scalar::select(is(1), word(1 << 63), Scalar::select(is(0), half(b), word(0)))]
}

/// `random.threefry_generate`.
#[derive(Debug)]
struct Generate;

const OUT_SHAPE: AttrField = field("out_shape", AttrKind::Ints, AttrDefault::Required);

impl Op for Generate {
    op_head!(
        "random.threefry_generate",
        "The next key, and a tensor of out_shape of random bits (uint64): the Threefry hashes of the key's path and counter,
        counted on by four words at a time. C1: key is a key. C2: no extent is negative.",
        ["key"],
        [OUT_SHAPE],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        check_key(args)?;
        Ok(Type::tuple([key_type(), Type::tensor(&shape_attr(attrs)?, DType::U64)]))
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let shape = extents(&shape_attr(attrs)?);
        let (key, bits) = generate(args[0].tensor(), shape.iter().product());
        Ok(Value::Tuple(vec![key, Tensor::from_slice(&shape, &bits).into()]))
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap::opaque([1])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: FLOPS * elements(out), bytes_read: bytes(&args[0]), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (next, bits) = lower_generate(args[0].tensor(), &shape_attr(attrs)?, b);
        Ok(Operand::Tuple(vec![next.into(), bits.into()]))
    }
    fn complete(&self, _: &Attrs, _: &[Type]) -> Vec<(usize, Type)> {
        complete_key()
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |s: &[i64]| sample([("out_shape", s.into())], vec![key_type()]);
        vec![call(&[7]), call(&[2, 4]), call(&[3]), call(&[]), call(&[0, 2])]
    }
}

/// `random.threefry_split`.
#[derive(Debug)]
struct Split;

impl Op for Split {
    op_head!(
        "random.threefry_split",
        "Two keys whose numbers are independent of each other and of the given key's: its path with a zero and with a one
        appended. C1: key is a key.",
        ["key"],
        [],
        Opaque
    );
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        check_key(args)?;
        Ok(Type::tuple([key_type(), key_type()]))
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let k = key_words(args[0].tensor());
        let keys = if k[8] == 0 {
            let [a, b, c, d] = hash([k[0], k[1], k[2], k[3]], [k[4], k[5], k[6], k[7]]);
            [0, 1 << 63].map(|path| [a, b, c, d, path, 0, 0, 0, 1 << 62, 0])
        } else {
            let (m, n) = next_bit(k[8], k[9]);
            [(0, 0), (k[8], k[9])].map(|(x, y)| [k[0], k[1], k[2], k[3], k[4] | x, k[5] | y, k[6], k[7], m, n])
        };
        Ok(Value::Tuple(keys.map(tensor_of).into()))
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap::opaque([1])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: FLOPS * 4.0, bytes_read: bytes(&args[0]), bytes_written: bytes(out) }
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let key = args[0].tensor();
        let keys = b.routine(|r| {
            let keys = [(); 2].map(|()| r.output(&[10], DType::U64));
            let k = lowered_key(r, key);
            let store = |r: &mut Nest<'_>, key: TensorId, words: &[Scalar]| {
                words.iter().enumerate().for_each(|(i, w)| r.store(key, [i as i64], w.clone()));
            };
            r.if_else(
                k[8].clone().equals(word(0)),
                |r| {
                    let counter = std::array::from_fn(|w| k[4 + w].clone());
                    let hashed = lowered_hash(r, &k[..4], counter);
                    let marks = [word(0), word(0), word(0), word(0), word(1 << 62), word(0)];
                    keys.iter().for_each(|&key| store(r, key, &[&hashed[..], &marks].concat()));
                    r.store(keys[1], [4], word(1 << 63));
                },
                |r| {
                    let mut longer = k.clone();
                    [longer[8], longer[9]] = lowered_next_bit(&k[8], &k[9]);
                    store(r, keys[0], &longer);
                    [longer[4], longer[5]] = [4, 5].map(|w| Scalar::binary(BinOp::Or, k[w].clone(), k[w + 4].clone()));
                    store(r, keys[1], &longer);
                },
            );
            keys
        });
        Ok(Operand::Tuple(keys.map(Operand::from).into()))
    }
    fn complete(&self, _: &Attrs, _: &[Type]) -> Vec<(usize, Type)> {
        complete_key()
    }
    fn samples(&self) -> Vec<Sample> {
        vec![sample([], vec![t(&[10], DType::U64)])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(op: &dyn Op, attrs: &Attrs, key: [u64; 10]) -> (Vec<Tensor>, Vec<Tensor>) {
        let key = Tensor::from_slice(&[10], &key);
        let want = op.eval(attrs, &[key.clone().into()]).expect("a key").flatten();
        let mut b = Builder::new();
        let arg = b.arg(&[10], DType::U64);
        let out = op.lower(attrs, &[arg.into()], &mut b).expect("known extents");
        let results = out.fields().iter().map(Operand::tensor).collect();
        let got = crate::loops::eval_stages(&b.finish(results), &[key]).expect("in range");
        (want, got)
    }

    #[test]
    fn keys_at_their_ends() {
        let attrs = Attrs::new(vec![("out_shape".into(), [6].into())]);
        let last = u64::MAX - 3;
        for key in [
            [1, 2, 3, 4, 0, 0, 0, 0, 1 << 63, 0],
            // No room in the counter, and then none in the path either.
            [1, 2, 3, 4, 0, 0, 0, last, 1 << 63, 0],
            [1, 2, 3, 4, 5, 0, 0, last, 1, 0],
            [1, 2, 3, 4, 5, 6, 0, last, 0, 4],
        ] {
            for op in [&Generate as &dyn Op, &Split] {
                let (want, got) = run(op, &attrs, key);
                assert_eq!(want, got, "{} of {key:?}", op.name());
            }
        }
    }

    /// TVM's numbers for the key of seed 1.
    #[test]
    fn known_numbers() {
        let key = Tensor::from_slice(&[10], &[1u64, 0, 0, 0, 0, 0, 0, 0, 1 << 63, 0]);
        let (next, numbers) = generate(&key, 5);
        assert_eq!(
            numbers,
            [
                0xee64_5155_fd86_327c,
                0x33ce_7486_d9ee_2681,
                0xeead_e93f_4f57_b2c5,
                0x4eb9_65c9_661b_e53a,
                0xc3b2_965b_ba8f_b629
            ]
        );
        assert_eq!(next.tensor().as_slice::<u64>(), [1, 0, 0, 0, 0, 0, 0, 8, 1 << 63, 0]);
    }

    #[test]
    fn keys_have_ten_words() {
        assert!(Split.infer(&Attrs::new(vec![]), &[t(&[9], DType::U64)]).is_err());
        assert!(Split.infer(&Attrs::new(vec![]), &[t(&[10], DType::I64)]).is_err());
    }
}
