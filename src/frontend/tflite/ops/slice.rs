//! Parts of tensors.

use super::{super::node::Node, Results};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// Updates of more elements would make too long a list of their places.
const MOST_UPDATED: usize = 1 << 22;

/// An end beyond all extents.
const FAR: i64 = i32::MAX as i64;

/// SLICE.
pub(in crate::frontend::tflite) fn slice(n: &mut Node) -> Results {
    let (x, begin, size) = (n.x(0)?, n.x(1)?, n.x(2)?);
    if let (Some(begin), Some(size)) = (n.b.value(begin), n.b.value(size)) {
        let (begin, size) = (begin.to_i64_vec(), size.to_i64_vec());
        let end: Vec<i64> =
            begin.iter().zip(&size).map(|(b, &s)| if s < 0 { FAR } else { b.saturating_add(s) }).collect();
        let ones = vec![1; begin.len()];
        let attrs = [("begin", begin.into()), ("end", end.into()), ("strides", ones.into())];
        return Ok(vec![n.op("strided_slice", &[x], &attrs)?]);
    }
    let rank = n.rank(x)?;
    let (begin, size) = (n.cast(begin, DType::I64)?, n.cast(size, DType::I64)?);
    let shape = n.op("shape_of", &[x], &[("dtype", DType::I64.into())])?;
    let open = n.with("less", size, 0.0)?;
    let sum = n.bin("add", begin, size)?;
    let end = n.op("where", &[open, shape, sum], &[])?;
    let ones = n.b.ints(&vec![1; rank]);
    Ok(vec![n.op("dyn.strided_slice", &[x, begin, end, ones], &[])?])
}

/// What one entry of a strided slice says.
enum Entry {
    /// An axis of extent 1 is added.
    New,
    /// As many axes as are left over are taken whole.
    Ellipsis,
    /// An axis; the entry's number.
    Axis(usize),
}

/// STRIDED_SLICE.
pub(in crate::frontend::tflite) fn strided_slice(n: &mut Node) -> Results {
    let x = n.x(0)?;
    let rank = n.rank(x)?;
    let [begin_mask, end_mask, ellipsis, new_axis, shrink] = [0, 1, 2, 3, 4].map(|slot| n.int(slot, 0));
    let offset = n.flag(5);
    let strides = n.ints(3)?;
    let bit = |mask: i64, i: usize| i < 63 && mask >> i & 1 == 1;
    let entries: Vec<Entry> = (0..strides.len())
        .map(|i| match (bit(ellipsis, i), bit(new_axis, i)) {
            (true, _) => Entry::Ellipsis,
            (_, true) => Entry::New,
            _ => Entry::Axis(i),
        })
        .collect();
    let used = entries.iter().filter(|e| matches!(e, Entry::Axis(_))).count();
    if used > rank {
        return n.refuse(format!("{used} axes are sliced of {rank}"));
    }
    // For each axis of the data, its entry; for each axis of the result, where it comes from.
    let mut of_axis: Vec<Option<usize>> = Vec::new();
    let mut added = Vec::new();
    let mut dropped = Vec::new();
    for e in &entries {
        match e {
            Entry::New => added.push(of_axis.len() - dropped.len() + added.len()),
            Entry::Ellipsis => of_axis.extend(std::iter::repeat_n(None, rank - used)),
            Entry::Axis(i) => {
                if bit(shrink, *i) {
                    dropped.push(of_axis.len());
                }
                of_axis.push(Some(*i));
            }
        }
    }
    of_axis.resize(rank, None);
    let (begin, end) = (n.x(1)?, n.x(2)?);
    let e = match (n.b.value(begin), n.b.value(end)) {
        (Some(begin), Some(end)) => {
            let (begin, end) = (begin.to_i64_vec(), end.to_i64_vec());
            if begin.len() != strides.len() || end.len() != strides.len() {
                return n.refuse("begin, end and strides should have as many entries");
            }
            let mut bounds = Vec::new();
            for entry in &of_axis {
                bounds.push(match *entry {
                    None => (0, FAR, 1),
                    Some(i) if bit(shrink, i) => {
                        let at = begin[i];
                        (at, if at == -1 { FAR } else { at.saturating_add(1) }, 1)
                    }
                    Some(i) => {
                        let down = strides[i] < 0;
                        let last = if offset { begin[i].saturating_add(end[i]) } else { end[i] };
                        (
                            if bit(begin_mask, i) { if down { FAR } else { 0 } } else { begin[i] },
                            if bit(end_mask, i) { if down { -FAR } else { FAR } } else { last },
                            strides[i],
                        )
                    }
                });
            }
            let attrs = [
                ("begin", bounds.iter().map(|b| b.0).collect::<Vec<_>>().into()),
                ("end", bounds.iter().map(|b| b.1).collect::<Vec<_>>().into()),
                ("strides", bounds.iter().map(|b| b.2).collect::<Vec<_>>().into()),
            ];
            let e = n.op("strided_slice", &[x], &attrs)?;
            match dropped.is_empty() {
                true => e,
                false => {
                    let axes: Vec<i64> = dropped.iter().map(|&a| a as i64).collect();
                    n.op("squeeze", &[e], &[("axis", axes.into())])?
                }
            }
        }
        _ => {
            let masks = Masks { begin_mask, end_mask, shrink, offset };
            computed(n, x, &of_axis, &strides, &masks)?
        }
    };
    added.into_iter().try_fold(e, |e, at| n.expand(e, at as i64)).map(|e| vec![e])
}

/// The masks of a strided slice.
struct Masks {
    begin_mask: i64,
    end_mask: i64,
    shrink: i64,
    offset: bool,
}

/// A strided slice whose begin or end is known only at run time: first the ranges, then the single indices.
fn computed(n: &mut Node, x: ExprId, of_axis: &[Option<usize>], strides: &[i64], m: &Masks) -> Convert {
    let bit = |mask: i64, i: usize| i < 63 && mask >> i & 1 == 1;
    let (begin, end) = (n.x(1)?, n.x(2)?);
    let (begin, end) = (n.cast(begin, DType::I64)?, n.cast(end, DType::I64)?);
    let at = |n: &mut Node, v: ExprId, i: usize| -> Convert { n.slice(v, 0, i as i64, i as i64 + 1) };
    let whole = |entry: &Option<usize>| {
        entry.is_none_or(|i| bit(m.shrink, i) || bit(m.begin_mask, i) && bit(m.end_mask, i) && strides[i] == 1)
    };
    let mut e = x;
    if !of_axis.iter().all(whole) {
        let (mut begins, mut ends, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for entry in of_axis {
            let (b, f, s) = match *entry {
                Some(i) if !bit(m.shrink, i) => {
                    let down = strides[i] < 0;
                    let b = match bit(m.begin_mask, i) {
                        true => n.b.ints(&[if down { FAR } else { 0 }]),
                        false => at(n, begin, i)?,
                    };
                    let f = match bit(m.end_mask, i) {
                        true => n.b.ints(&[if down { -FAR } else { FAR }]),
                        false => at(n, end, i)?,
                    };
                    let f = if m.offset && !bit(m.end_mask, i) { n.bin("add", b, f)? } else { f };
                    (b, f, strides[i])
                }
                _ => (n.b.ints(&[0]), n.b.ints(&[FAR]), 1),
            };
            begins.push(b);
            ends.push(f);
            steps.push(s);
        }
        let (begins, ends) = (n.concat(&begins, 0)?, n.concat(&ends, 0)?);
        let steps = n.b.ints(&steps);
        e = n.op("dyn.strided_slice", &[e, begins, ends, steps], &[])?;
    }
    for (axis, entry) in of_axis.iter().enumerate().rev() {
        let Some(i) = entry.filter(|&i| bit(m.shrink, i)) else { continue };
        let index = at(n, begin, i)?;
        let index = n.reshape(index, &[])?;
        let shape = n.op("shape_of", &[x], &[("dtype", DType::I64.into())])?;
        let extent = at(n, shape, axis)?;
        let extent = n.reshape(extent, &[])?;
        let from_end = n.bin("add", index, extent)?;
        let negative = n.with("less", index, 0.0)?;
        let index = n.op("where", &[negative, from_end, index], &[])?;
        e = n.op("take", &[e, index], &[("axis", (axis as i64).into())])?;
    }
    Ok(e)
}

/// DYNAMIC_UPDATE_SLICE: the update replaces elements from an index on, which is moved so that all of it fits.
pub(in crate::frontend::tflite) fn dynamic_update_slice(n: &mut Node) -> Results {
    let (x, update, start) = (n.x(0)?, n.x(1)?, n.x(2)?);
    let (shape, size) = (n.known(x)?, n.known(update)?);
    let rank = shape.len();
    if rank == 0 {
        return Ok(vec![update]);
    }
    let count = size.iter().fold(1i64, |n, &d| n.saturating_mul(d)) as usize;
    if count > MOST_UPDATED {
        return n.refuse(format!("an update of {count} elements is not supported"));
    }
    let most: Vec<i64> = shape.iter().zip(&size).map(|(s, u)| s - u).collect();
    let start = n.cast(start, DType::I64)?;
    let most = n.b.ints(&most);
    let start = n.bin("minimum", start, most)?;
    let start = n.with("maximum", start, 0.0)?;
    let start = n.reshape(start, &[rank as i64, 1])?;
    // Where each element of the update is within it.
    let strides = crate::tensor::row_major_strides(&size.iter().map(|&d| d as usize).collect::<Vec<_>>());
    let places = Tensor::from_i64_fn(DType::I64, &[rank, count], |i| {
        let (axis, flat) = (i / count, i % count);
        (flat / strides[axis]) as i64 % size[axis]
    });
    let places = n.b.constant(places);
    let indices = n.bin("add", places, start)?;
    let flat = n.reshape(update, &[count as i64])?;
    Ok(vec![n.op("scatter_nd", &[x, indices, flat], &[("mode", "update".into())])?])
}
