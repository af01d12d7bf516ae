//! Features as classical models make them.

use super::{
    super::{Row, row},
    ml,
};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(in crate::frontend::onnx::ops) const OPS: &[Row] = &[
    ml("ArrayFeatureExtractor", array_features),
    ml("Binarizer", binarizer),
    row("TfIdfVectorizer", term_frequencies),
];

fn array_features(n: &mut Node) -> Convert<Vec<Val>> {
    let (mut x, places) = (n.x(0)?, n.x(1)?);
    if n.rank(x)? == 1 {
        x = n.expand(x, 0, 1)?;
    }
    let rank = n.rank(x)?;
    let places = n.reshape(places, &[-1])?;
    let y = n.take(x, places, rank - 1)?;
    n.one(y)
}

fn binarizer(n: &mut Node) -> Convert<Vec<Val>> {
    let (x, bound) = (n.x(0)?, n.float("threshold", 0.0)?);
    let above = n.with("greater", x, bound)?;
    let dtype = n.dtype(x)?;
    let y = n.cast(above, dtype)?;
    n.one(y)
}

/// The most elements that windows beside n-grams may take.
const MOST_COMPARED: i64 = 1 << 26;

/// How often each n-gram of a pool occurs in each row, with items of a row up to a distance apart.
fn term_frequencies(n: &mut Node) -> Convert<Vec<Val>> {
    let x = n.x(0)?;
    let pool = n.ints("pool_int64s")?.ok_or_else(|| n.refuse("pools of strings are not supported"))?;
    let starts = n.ints("ngram_counts")?.unwrap_or_default();
    let columns = n.ints("ngram_indexes")?.unwrap_or_default();
    let (least, most) = (n.int("min_gram_length", 1)?, n.int("max_gram_length", 1)?);
    let skips = n.int("max_skip_count", 0)?;
    let line = n.rank(x)? == 1;
    let x = n.cast(x, DType::I64)?;
    let x = if line { n.expand(x, 0, 1)? } else { x };
    n.ensure(n.rank(x)? == 2, || "its input should have one or two axes".into())?;
    let (rows, length) = (n.extent(x, 0)?, n.extent(x, 1)?);
    let width = columns.iter().max().map_or(0, |m| m + 1);
    n.ensure((0..1 << 24).contains(&width) && columns.iter().all(|&c| c >= 0), || "its columns are too many".into())?;
    n.ensure((0..=1024).contains(&skips), || format!("{skips} skipped items are not supported"))?;
    // Which n-gram's count each column shows: the last place is a zero.
    let mut shown = vec![None; width as usize];
    let mut counts = Vec::new();
    let mut first = 0;
    for (k, &begin) in starts.iter().enumerate() {
        let size = k as i64 + 1;
        let end = starts.get(k + 1).copied().unwrap_or(pool.len() as i64);
        let fits = 0 <= begin && begin <= end && end <= pool.len() as i64 && (end - begin) % size == 0;
        n.ensure(fits, || format!("its n-grams of {size} items are from {begin} to {end} of {}", pool.len()))?;
        let grams = (end - begin) / size;
        if grams == 0 {
            continue;
        }
        for g in 0..grams {
            let column = columns.get((first + g) as usize).copied();
            let column = column.ok_or_else(|| n.refuse("it has fewer columns than n-grams"))?;
            shown[column as usize] = Some(first + g);
        }
        first += grams;
        let items =
            n.constant(Tensor::from_slice(&[grams as usize, size as usize], &pool[begin as usize..end as usize]));
        let mut sum = n.constant(Tensor::zeros(DType::I64, &[rows as usize, grams as usize]));
        let distances = if size == 1 { 1 } else { skips + 1 };
        for apart in (1..=distances).filter(|_| (least..=most).contains(&size)) {
            let windows = length - (size - 1) * apart;
            if windows <= 0 {
                continue;
            }
            n.ensure(windows * size * grams * rows <= MOST_COMPARED, || "it compares too much".into())?;
            let places: Vec<i64> = (0..windows * size).map(|i| i / size + i % size * apart).collect();
            let places = n.constant(Tensor::from_slice(&[windows as usize, size as usize], &places));
            let taken = n.take(x, places, 1)?;
            let taken = n.expand(taken, 2, 1)?;
            let same = n.bin("equal", taken, items)?;
            let hit = n.reduce("all", same, &[3], false)?;
            let hit = n.cast(hit, DType::I64)?;
            let found = n.reduce("sum", hit, &[1], false)?;
            sum = n.add(sum, found)?;
        }
        counts.push(sum);
    }
    counts.push(n.constant(Tensor::zeros(DType::I64, &[rows as usize, 1])));
    let counts = n.concat(&counts, 1)?;
    let counts = n.cast(counts, DType::F32)?;
    let weighted = weighed(n, counts, first)?;
    let order: Vec<i64> = shown.iter().map(|s| s.unwrap_or(first)).collect();
    let order = n.im.b.ints(&order);
    let y = n.take(weighted, order, 1)?;
    let y = if line { n.squeeze(y, &[0])? } else { y };
    n.one(y)
}

/// Counts of n-grams (and a zero after them) by the weights that the node gives.
fn weighed(n: &mut Node, counts: ExprId, grams: i64) -> Convert {
    let weights = n.floats("weights")?;
    let weights = weights.unwrap_or_else(|| vec![1.0; grams as usize]);
    n.ensure(weights.len() as i64 == grams, || format!("it has {} weights for {grams} n-grams", weights.len()))?;
    let weights = Tensor::from_f64_fn(DType::F32, &[weights.len() + 1], |i| weights.get(i).copied().unwrap_or(0.0));
    let weights = n.constant(weights);
    match n.text("mode", "")?.as_str() {
        "TF" => Ok(counts),
        "IDF" => {
            let some = n.with("greater", counts, 0.0)?;
            let some = n.cast(some, DType::F32)?;
            n.mul(some, weights)
        }
        "TFIDF" => n.mul(counts, weights),
        other => Err(n.refuse(format!("there is no mode `{other}`"))),
    }
}
