//! Strings taken apart, and matched by patterns.

use regex_automata::{
    Anchored,
    dfa::{Automaton, StartKind, dense},
    nfa::thompson,
    util::{primitives::StateID, start, syntax},
};

use super::{
    Row,
    repeat::{Captured, Iteration, repeated},
    row,
    text::{filled, text, texts},
};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{Tens, Val},
            node::Node,
        },
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(super) const OPS: &[Row] = &[row("RegexFullMatch", full_match), row("StringSplit", string_split)];

/// The pieces that texts fall into: for each character the number of its piece, whether it is in one, and how many there are.
struct Pieces {
    number: ExprId,
    within: ExprId,
    count: ExprId,
}

fn string_split(n: &mut Node) -> Convert<Vec<Val>> {
    let x = text(n, 0)?.e;
    let last = n.rank(x)? - 1;
    let delimiter: Vec<u32> = n.text("delimiter", "")?.chars().map(u32::from).collect();
    let most = n.opt_int("maxsplit")?.filter(|&m| m >= 0);
    let pieces = if delimiter.is_empty() { words(n, x, most)? } else { delimited(n, x, &delimiter, most)? };
    // As many pieces as the text with the most of them has; of no texts none.
    let counts = n.reshape(pieces.count, &[-1])?;
    let none = n.im.b.ints(&[0]);
    let counts = n.concat(&[counts, none], 0)?;
    let slots = n.reduce("max", counts, &[0], false)?;
    let (zero, one) = (n.c(slots, 0.0)?, n.c(slots, 1.0)?);
    let slots = n.op("arange", &[zero, slots, one], &[("dtype", DType::I64.into())])?;
    let slots = n.trailing(slots, 1)?;
    // Where each piece begins, and how long it is.
    let (number, within) = (n.expand(pieces.number, last, 1)?, n.expand(pieces.within, last, 1)?);
    let mine = n.bin("equal", number, slots)?;
    let mine = n.bin("logical_and", mine, within)?;
    let places = n.places(x, last, DType::I64)?;
    let length = n.size(x, last, DType::I64)?;
    let begin = n.select(mine, places, length)?;
    let begin = n.reduce("min", begin, &[last + 1], true)?;
    let size = n.cast(mine, DType::I64)?;
    let size = n.reduce("sum", size, &[last + 1], true)?;
    let from = n.add(begin, places)?;
    let end = n.with("subtract", length, 1.0)?;
    let from = n.bin("minimum", from, end)?;
    let characters = n.expand(x, last, 1)?;
    let shape = n.shape_of(from)?;
    let characters = n.broadcast_to(characters, shape)?;
    let y = n.op("gather", &[characters, from], &[("axis", (last as i64 + 1).into())])?;
    let there = n.bin("less", places, size)?;
    let zero = n.c(y, 0.0)?;
    let y = n.select(there, y, zero)?;
    let mut outputs = texts(y);
    outputs.push(n.out(pieces.count)?);
    Ok(outputs)
}

/// Characters some places further on (before, where negative), and whether there are such.
fn moved(n: &mut Node, x: ExprId, by: i64) -> Convert<(ExprId, ExprId)> {
    let last = n.rank(x)? - 1;
    let places = n.places(x, last, DType::I64)?;
    let length = n.size(x, last, DType::I64)?;
    let end = n.with("subtract", length, 1.0)?;
    let at = n.with("add", places, by as f64)?;
    let there = if by < 0 { n.with("greater_equal", at, 0.0)? } else { n.bin("less", at, length)? };
    let held = n.bin("minimum", at, end)?;
    let held = n.with("maximum", held, 0.0)?;
    Ok((n.take(x, held, last)?, there))
}

/// How many of a flag there are up to each place.
fn counted(n: &mut Node, flags: ExprId) -> Convert {
    let last = n.rank(flags)? - 1;
    let ones = n.cast(flags, DType::I64)?;
    n.op("cumsum", &[ones], &[("axis", (last as i64).into())])
}

fn total(n: &mut Node, flags: ExprId) -> Convert {
    let last = n.rank(flags)? - 1;
    let ones = n.cast(flags, DType::I64)?;
    n.reduce("sum", ones, &[last], false)
}

/// What spaces separate, as Python's `str.split` sees it.
fn words(n: &mut Node, x: ExprId, most: Option<i64>) -> Convert<Pieces> {
    let spaces: Vec<u32> = (0..0x3001)
        .filter(|&p| (0x1c..0x20).contains(&p) || char::from_u32(p).is_some_and(char::is_whitespace))
        .collect();
    let spaces = n.constant(Tensor::from_slice(&[spaces.len()], &spaces));
    let each = n.trailing(x, 1)?;
    let space = n.bin("equal", each, spaces)?;
    let last = n.rank(x)?;
    let space = n.reduce("any", space, &[last], false)?;
    let shown = filled(n, x)?;
    let visible = n.un("logical_not", space)?;
    let word = n.bin("logical_and", shown, visible)?;
    let (before, there) = moved(n, word, -1)?;
    let before = n.bin("logical_and", before, there)?;
    let fresh = n.un("logical_not", before)?;
    let first = n.bin("logical_and", word, fresh)?;
    let number = counted(n, first)?;
    let number = n.with("subtract", number, 1.0)?;
    let count = total(n, first)?;
    let Some(most) = most else { return Ok(Pieces { number, within: word, count }) };
    // What is left belongs to the last piece, spaces included.
    let left = n.with("greater_equal", number, most as f64)?;
    let left = n.bin("logical_and", left, shown)?;
    let within = n.bin("logical_or", word, left)?;
    Ok(Pieces {
        number: n.with("minimum", number, most as f64)?,
        within,
        count: n.with("minimum", count, most as f64 + 1.0)?,
    })
}

/// What a delimiter separates.
fn delimited(n: &mut Node, x: ExprId, delimiter: &[u32], most: Option<i64>) -> Convert<Pieces> {
    let mut found = None;
    for (k, &c) in delimiter.iter().enumerate() {
        let (there, inside) = moved(n, x, k as i64)?;
        let hit = n.with("equal", there, c.into())?;
        let hit = n.bin("logical_and", hit, inside)?;
        found = Some(match found {
            None => hit,
            Some(f) => n.bin("logical_and", f, hit)?,
        });
    }
    let mut found = found.ok_or_else(|| n.refuse("its delimiter is empty"))?;
    let length = delimiter.len();
    if (1..length).any(|k| delimiter[k..] == delimiter[..length - k]) {
        found = apart(n, found, length)?;
    }
    if let Some(most) = most {
        let so_far = counted(n, found)?;
        let early = n.with("less_equal", so_far, most as f64)?;
        found = n.bin("logical_and", found, early)?;
    }
    let mut covered = found;
    for k in 1..length {
        let (before, there) = moved(n, found, -(k as i64))?;
        let over = n.bin("logical_and", before, there)?;
        covered = n.bin("logical_or", covered, over)?;
    }
    let shown = filled(n, x)?;
    let free = n.un("logical_not", covered)?;
    let within = n.bin("logical_and", shown, free)?;
    let count = total(n, found)?;
    Ok(Pieces { number: counted(n, found)?, within, count: n.with("add", count, 1.0)? })
}

/// Of delimiters that may overlap, those that are met from left to right, each after the end of the one before.
fn apart(n: &mut Node, found: ExprId, length: usize) -> Convert {
    let last = n.rank(found)? - 1;
    let trips = n.size(found, last, DType::I64)?;
    let counts = total(n, found)?;
    // The place from which on the next one may begin.
    let free = n.with("multiply", counts, 0.0)?;
    let free = n.out(free)?;
    let (_, taken) = repeated(n, Some(trips), None, vec![free], &mut |n, i, go, carried| {
        let mut outside = Captured::default();
        let all = outside.take(n, found);
        let Some(Val::Tensor(free)) = carried.first().cloned() else { return Err(n.refuse("a loop lost its state")) };
        let here = n.take(all, i, last)?;
        let allowed = n.bin("greater_equal", i, free.e)?;
        let hit = n.bin("logical_and", here, allowed)?;
        let after = n.with("add", i, length as f64)?;
        let next = n.select(hit, after, free.e)?;
        let state = vec![n.out(next)?];
        let collect = vec![Tens { e: hit, elem: Elem::Plain(DType::Bool) }];
        Ok(Iteration { again: go, state, collect, captures: outside.into_captures() })
    })?;
    let taken = taken.first().map(|t| t.e).ok_or_else(|| n.refuse("a loop lost what it collected"))?;
    let order: Vec<usize> = (1..=last).chain([0]).collect();
    n.transpose(taken, &order)
}

/// A pattern as a table.
struct Table {
    /// The class of each byte; behind them that of none, which changes nothing.
    classes: Vec<i32>,
    /// How many classes there are.
    width: usize,
    /// From a state by a class to the next one.
    next: Vec<i32>,
    /// Whether a text may end in a state.
    accepts: Vec<bool>,
}

/// The most elements of a pattern's table.
const MOST_TABLED: usize = 1 << 22;

/// RE2's syntax as that of the crate `regex`: classes such as `\w` are ASCII, and within brackets an opening one is itself.
fn in_rust(pattern: &str) -> String {
    let mut out = String::new();
    let mut chars = pattern.chars().peekable();
    let mut bracket = false;
    while let Some(c) = chars.next() {
        match (c, bracket) {
            ('\\', _) => match chars.next() {
                Some('w') => out += "[0-9A-Za-z_]",
                Some('W') => out += "[^0-9A-Za-z_]",
                Some('d') => out += "[0-9]",
                Some('D') => out += "[^0-9]",
                Some('s') => out += "[\\t\\n\\f\\r ]",
                Some('S') => out += "[^\\t\\n\\f\\r ]",
                Some(b @ ('b' | 'B')) if !bracket => out += &format!("(?-u:\\{b})"),
                Some('Z') => out += "\\z",
                Some(e) => out.extend(['\\', e]),
                None => out.push('\\'),
            },
            ('[', false) => {
                out.push('[');
                if chars.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                // A bracket that closes is itself where it comes first.
                if chars.next_if_eq(&']').is_some() {
                    out += "\\]";
                }
                bracket = true;
            }
            ('[', true) if chars.peek() == Some(&':') => {
                // A named class, up to its end.
                out.push('[');
                while let Some(c) = chars.next() {
                    out.push(c);
                    if c == ':' && chars.next_if_eq(&']').is_some() {
                        out.push(']');
                        break;
                    }
                }
            }
            (']', true) => {
                out.push(']');
                bracket = false;
            }
            ('[' | '&' | '~', true) => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

fn table(pattern: &str) -> Result<Table, String> {
    let dfa = dense::Builder::new()
        .configure(
            dense::Config::new()
                .start_kind(StartKind::Anchored)
                .dfa_size_limit(Some(8 * MOST_TABLED))
                .determinize_size_limit(Some(16 * MOST_TABLED)),
        )
        .syntax(syntax::Config::new().utf8(false))
        .thompson(thompson::Config::new().utf8(false))
        .build(&format!("\\A(?:{})\\z", in_rust(pattern)))
        .map_err(|e| match std::error::Error::source(&e) {
            Some(source) => format!("{e}: {source}"),
            None => e.to_string(),
        })?;
    let of = |b: u8| usize::from(dfa.byte_classes().get(b));
    let width = (0..=255).map(of).max().unwrap_or(0) + 2;
    let mut classes: Vec<i32> = (0..=255).map(|b| of(b) as i32).collect();
    classes.push(width as i32 - 1);
    let first = dfa.start_state(&start::Config::new().anchored(Anchored::Yes)).map_err(|e| e.to_string())?;
    let mut number: hashbrown::HashMap<StateID, usize> = [(first, 0)].into();
    let mut states = vec![first];
    let (mut next, mut accepts) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < states.len() {
        if states.len() * width > MOST_TABLED {
            return Err("its table is too large".into());
        }
        let state = states[at];
        accepts.push(dfa.is_match_state(dfa.next_eoi_state(state)));
        let mut row = vec![at as i32; width];
        for b in 0..=255u8 {
            let to = dfa.next_state(state, b);
            if dfa.is_quit_state(to) {
                return Err("it looks at more than bytes".into());
            }
            let known = number.len();
            row[of(b)] = *number.entry(to).or_insert_with(|| {
                states.push(to);
                known
            }) as i32;
        }
        next.extend(row);
        at += 1;
    }
    Ok(Table { classes, width, next, accepts })
}

/// The bytes of UTF-8 of code points, along a new last axis of four; 256 where there is none.
fn bytes(n: &mut Node, x: ExprId) -> Convert {
    let p = n.cast(x, DType::I32)?;
    let none = n.c(p, 256.0)?;
    // Codes with two, three and four bytes begin at these points.
    let starts = [0x80, 0x800, 0x1_0000];
    let mut longer = Vec::new();
    for s in starts {
        longer.push(n.with("greater_equal", p, s.into())?);
    }
    let six = |n: &mut Node, shift: u32| -> Convert {
        let v = n.with("right_shift", p, f64::from(6 * shift))?;
        let v = n.with("bitwise_and", v, 63.0)?;
        n.with("bitwise_or", v, 128.0)
    };
    let head = |n: &mut Node, shift: u32, mark: f64| -> Convert {
        let v = n.with("right_shift", p, f64::from(6 * shift))?;
        n.with("bitwise_or", v, mark)
    };
    // Of codes with one, two, three and four bytes.
    let mut all = vec![vec![p], vec![head(n, 1, 192.0)?, six(n, 0)?]];
    all.push(vec![head(n, 2, 224.0)?, six(n, 1)?, six(n, 0)?]);
    all.push(vec![head(n, 3, 240.0)?, six(n, 2)?, six(n, 1)?, six(n, 0)?]);
    let shown = filled(n, x)?;
    let mut parts = Vec::new();
    for k in 0..4 {
        let mut byte = all[0].get(k).copied().unwrap_or(none);
        for (more, code) in longer.iter().zip(&all[1..]) {
            byte = n.select(*more, code.get(k).copied().unwrap_or(none), byte)?;
        }
        parts.push(n.select(shown, byte, none)?);
    }
    let axis = n.rank(x)?;
    n.stack(&parts, axis)
}

fn full_match(n: &mut Node) -> Convert<Vec<Val>> {
    let x = text(n, 0)?.e;
    let pattern = n.text("pattern", "")?;
    let t = table(&pattern).map_err(|e| n.refuse(format!("its pattern `{pattern}`: {e}")))?;
    let last = n.rank(x)? - 1;
    let all = bytes(n, x)?;
    let classes = n.constant(Tensor::from_slice(&[t.classes.len()], &t.classes));
    let all = n.take(classes, all, 0)?;
    let next = n.im.b.weight("pattern", Tensor::from_slice(&[t.next.len()], &t.next));
    let trips = n.size(x, last, DType::I64)?;
    let first = n.reduce("max", all, &[last, last + 1], false)?;
    let first = n.with("multiply", first, 0.0)?;
    let first = n.out(first)?;
    let (states, _) = repeated(n, Some(trips), None, vec![first], &mut |n, i, go, carried| {
        let mut outside = Captured::default();
        let (all, next) = (outside.take(n, all), outside.take(n, next));
        let Some(Val::Tensor(state)) = carried.first().cloned() else { return Err(n.refuse("a loop lost its state")) };
        let own = n.take(all, i, last)?;
        let mut state = state.e;
        for k in 0..4 {
            let class = n.index(own, last, k)?;
            let row = n.with("multiply", state, t.width as f64)?;
            let at = n.add(row, class)?;
            state = n.take(next, at, 0)?;
        }
        let state = vec![n.out(state)?];
        Ok(Iteration { again: go, state, collect: Vec::new(), captures: outside.into_captures() })
    })?;
    let Some(Val::Tensor(state)) = states.first() else { return Err(n.refuse("a loop lost its state")) };
    let accepts = n.constant(Tensor::from_bools(&[t.accepts.len()], &t.accepts));
    let y = n.take(accepts, state.e, 0)?;
    n.one(y)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        let t = table(pattern).expect("the pattern is one");
        let step = |s: usize, b: u8| t.next[s * t.width + t.classes[usize::from(b)] as usize] as usize;
        t.accepts[text.bytes().fold(0, step)]
    }

    #[test]
    fn patterns_are_re2s() {
        assert!(matches(r"www\.[\w.-]+\.\bcom\b", "www.google.com"));
        assert!(!matches(r"www\.[\w.-]+\.\bcom\b", "www.bbc.co.uk"));
        // Classes hold ASCII only; all else are single characters.
        assert!(!matches(r"\w", "é") && matches(r"\W", "é") && matches(".", "é") && !matches("..", "é"));
        assert!(matches("[[&&a]*", "[&a") && matches("[]a]*", "]a]") && matches("[[:digit:]x]+", "4x2"));
        assert!(matches("a|b", "a") && !matches("a|b", "ab") && matches("", "") && !matches("", "a"));
        assert!(table("(").is_err());
    }
}
