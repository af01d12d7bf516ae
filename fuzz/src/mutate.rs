//! Changes of inputs that know what inputs look like: words, numbers and brackets of texts, sizes in binary files.

use crate::targets::Format;

/// Small reproducible random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which counts as 1 where it is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Numbers at which readers break.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "-1",
    "7",
    "255",
    "256",
    "65536",
    "2147483647",
    "2147483648",
    "4294967296",
    "9999999999",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551616",
    "1e308f",
    "1e-50f64",
    "0x10",
    "00",
    "-0f",
    "nanf",
    "-inff",
    "3i64",
    "300i8",
    "0.1f16",
];

/// Words of Relay text and of its JSON.
const WORDS: &[&str] = &[
    "let",
    "fn",
    "def",
    "if",
    "else",
    "type",
    "match",
    "match?",
    "extern",
    "free_var",
    "ref",
    "ref_read",
    "ref_write",
    "True",
    "False",
    "None",
    "nullptr",
    "Tensor",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    ",",
    ";",
    ":",
    "=",
    "=>",
    "->",
    "-",
    "+",
    "*",
    "/",
    "==",
    "!=",
    "<=",
    ">=",
    ".",
    "?",
    "_",
    "\"",
    "\\",
    "%",
    "%0",
    "%x",
    "%x.0",
    "%y",
    "@f",
    "@main",
    "/*",
    "*/",
    "//",
    "#[version = \"0.0.5\"]",
    "#[metadata]",
    "meta[relay.Constant][0]",
    "import \"x\"",
    "float32",
    "int64",
    "bool",
    "uint8",
    "float16",
    "bfloat16",
    "int4",
    "float32x4",
    "Tensor[(2, 3), float32]",
    "Tensor[(?), int8]",
    "Tensor[(9999999999, 9999999999), float32]",
    "add",
    "nn.conv2d",
    "nn.dense",
    "reshape",
    "concatenate",
    "split",
    "strided_slice",
    "zeros",
    "full",
    "tile",
    "repeat",
    "broadcast_to",
    "nn.pad",
    "arange",
    "nn.batch_norm",
    "one_hot",
    "axis=0",
    "axis=[9, -9]",
    "newshape=[-1]",
    "shape=[9999999999, 9999999999]",
    "reps=[99999, 99999, 99999]",
    "strides=[0, 0]",
    "padding=[-1, 9223372036854775807]",
    "dilation=[0, 0]",
    "groups=0",
    "indices_or_sections=0",
    "channels=-1",
    "kernel_size=[0, 0]",
    "dtype=\"float32\"",
    "depth=-1",
    "num_newaxis=99999999",
    "\u{e9}",
    "\0",
    "root",
    "nodes",
    "attrs",
    "keys",
    "data",
    "type_key",
    "repr_str",
    "repr_b64",
    "b64ndarrays",
    "null",
    "Map",
    "Array",
    "relay.Call",
    "relay.Function",
    "relay.Let",
    "relay.Var",
    "relay.Constant",
    "relay.TensorType",
    "TypeVar",
    "IRModule",
    "IntImm",
    "FloatImm",
    "runtime.String",
    "GlobalVar",
    "Op",
    "relay.Tuple",
    "relay.TupleGetItem",
    "relay.If",
];

/// Brackets and prefixes that may nest.
pub const NESTS: &[(&str, &str)] = &[
    ("(", ")"),
    ("(", ",)"),
    ("[", "]"),
    ("{", "}"),
    ("exp(", ")"),
    ("let %x = 1; ", ""),
    ("fn (%x) { ", "}"),
    ("/*", "*/"),
    ("if (True) { 0 } else { ", "}"),
    ("-", ""),
    ("fn (int32) -> ", ""),
    ("ref(", ")"),
    ("1 + ", ""),
    ("", ".0"),
    ("Tensor[(", ")]"),
    ("fn () -> ", ""),
    ("add(1, ", ")"),
    ("(let %y = ", "; %y)"),
    ("{\"a\"=", "}"),
    ("[[", "]]"),
    ("match (1) { _ => ", " }"),
    ("", "(1)"),
    ("{\"nodes\": ", "}"),
];

/// Changes an input in one to four places. `others` are inputs that parts may be taken from.
pub fn change(format: Format, bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        match format {
            Format::Text => text(bytes, others, random),
            Format::Binary => binary(bytes, others, random),
        }
    }
}

/// The bounds of words, numbers, strings and signs.
fn tokens(bytes: &[u8]) -> Vec<(usize, usize)> {
    let word = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'%' | b'@');
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at += 1;
        if word(bytes[start]) {
            while at < bytes.len() && word(bytes[at]) {
                at += 1;
            }
        }
        if !bytes[start].is_ascii_whitespace() {
            found.push((start, at));
        }
    }
    found
}

fn replace(bytes: &mut Vec<u8>, (from, to): (usize, usize), with: &[u8]) {
    bytes.splice(from..to, with.iter().copied());
}

/// A run of up to `most` tokens.
fn run(bytes: &[u8], most: usize, random: &mut Random) -> (usize, usize) {
    let all = tokens(bytes);
    if all.is_empty() {
        return (0, bytes.len());
    }
    let first = random.below(all.len());
    let last = (first + random.below(most)).min(all.len() - 1);
    (all[first].0, all[last].1)
}

fn text(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let place = run(bytes, 12, random);
    match random.below(12) {
        0 => replace(bytes, place, b""),
        1 => {
            let part = bytes[place.0..place.1].to_vec();
            let times = [2, 3, 40][random.below(3)];
            replace(bytes, place, &[&part[..], b" "].concat().repeat(times));
        }
        2 | 3 => {
            let (at, _) = run(bytes, 1, random);
            let word = random.pick(WORDS);
            replace(bytes, (at, at), format!("{word} ").as_bytes());
        }
        4 | 5 => {
            let place = run(bytes, 1, random);
            let word = random.pick(WORDS);
            replace(bytes, place, word.as_bytes());
        }
        6 | 7 => {
            let digits = |&(from, _): &(usize, usize)| bytes[from].is_ascii_digit();
            let numbers: Vec<_> = tokens(bytes).into_iter().filter(digits).collect();
            if !numbers.is_empty() {
                let place = *random.pick(&numbers);
                let number = random.pick(NUMBERS);
                replace(bytes, place, number.as_bytes());
            }
        }
        8 => {
            let (open, close) = random.pick(NESTS);
            let times = [1, 2, 30, 300, 3000][random.below(5)];
            let part = bytes[place.0..place.1].to_vec();
            let nested = [open.repeat(times).as_bytes(), &part, close.repeat(times).as_bytes()].concat();
            replace(bytes, place, &nested);
        }
        9 => {
            // A part of another text, or another part of this one.
            let from = if others.is_empty() { bytes.clone() } else { random.pick(others).clone() };
            let part = run(&from, 20, random);
            let at = if random.below(2) == 0 { place } else { (place.0, place.0) };
            replace(bytes, at, &from[part.0..part.1]);
        }
        10 => {
            let (a, b) = (run(bytes, 1, random), run(bytes, 1, random));
            let (a, b) = if a.0 < b.0 { (a, b) } else { (b, a) };
            if a.1 <= b.0 {
                let (x, y) = (bytes[a.0..a.1].to_vec(), bytes[b.0..b.1].to_vec());
                replace(bytes, b, &x);
                replace(bytes, a, &y);
            }
        }
        _ => flip(bytes, random),
    }
}

fn flip(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return bytes.push(random.next() as u8);
    }
    let at = random.below(bytes.len());
    match random.below(4) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.insert(at, random.next() as u8),
        _ => bytes.truncate(at),
    }
}

fn binary(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    if bytes.len() < 8 {
        return flip(bytes, random);
    }
    // Sizes stand at multiples of two, mostly.
    let at = random.below(bytes.len() - 7) & !(random.below(2));
    match random.below(8) {
        0 | 1 => flip(bytes, random),
        2..=4 => {
            let width = [1, 2, 4, 8][random.below(4)];
            let old = (0..width).fold(0u64, |v, i| v | (bytes[at + i] as u64) << (8 * i));
            let sizes = [0, 1, 2, 64, 0x7f, 0x8000, 0xffff_ffff, 1 << 31, 1 << 40, i64::MAX as u64, 1 << 63, u64::MAX];
            let new = match random.below(4) {
                0 => old.wrapping_add(1),
                1 => old.wrapping_sub(1),
                2 => old << random.below(40),
                _ => sizes[random.below(sizes.len())],
            };
            bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
        }
        5 => {
            // numpy's headers are text.
            text(bytes, others, random);
        }
        6 => {
            let from = if others.is_empty() { bytes.clone() } else { random.pick(others).clone() };
            let start = random.below(from.len());
            let end = (start + 1 + random.below(64)).min(from.len());
            replace(bytes, (at, at), &from[start..end]);
        }
        _ => {
            let end = (at + 1 + random.below(32)).min(bytes.len());
            replace(bytes, (at, end), b"");
        }
    }
}
