//! Contents of constant tensors: packed and sparse ones as plain ones.

use super::{
    flat::Table,
    schema::{Element, TensorInfo},
};
use crate::tensor::{DType, Tensor};

/// The content of a tensor; `None` for one that is no constant.
///
/// # Errors
/// What the content does not fit.
pub(super) fn of(info: &TensorInfo) -> Result<Option<Tensor>, String> {
    let Some(data) = info.data else { return Ok(None) };
    let shape: Option<Vec<usize>> = info.shape.iter().map(|d| d.and_then(|d| usize::try_from(d).ok())).collect();
    let shape = shape.ok_or("a constant should have a known shape")?;
    let dtype = match info.element {
        Element::Plain(d) => d,
        Element::Int4 if info.sparsity.is_none() => return int4(&shape, data).map(Some),
        other => return Err(format!("constants of {other:?} are not supported")),
    };
    match &info.sparsity {
        Some(s) => dense(dtype, &shape, data, s).map(Some),
        None => Tensor::from_bytes(dtype, &shape, data).map(Some).map_err(|e| e.to_string()),
    }
}

/// Two integers a byte, the lower half first.
fn int4(shape: &[usize], data: &[u8]) -> Result<Tensor, String> {
    let n = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or("too many elements")?;
    if data.len() != n.div_ceil(2) {
        return Err(format!("{} bytes are not {n} integers of 4 bits", data.len()));
    }
    let half = |i: usize| ((data[i / 2] >> (4 * (i % 2))) & 15) as i64;
    Ok(Tensor::from_i64_fn(DType::I8, shape, |i| (half(i) ^ 8) - 8))
}

/// How one axis of a sparse tensor is stored.
enum Axis {
    Dense(usize),
    Sparse { segments: Vec<usize>, indices: Vec<usize> },
}

/// A vector of indices, of one of three widths.
fn indices(t: &Table, kind: u16, at: u16) -> Result<Vec<usize>, String> {
    let table = t.table(at).ok_or("a sparse axis has no indices")?;
    let found: Option<Vec<usize>> = match t.byte(kind).unwrap_or(0) {
        1 => table.ints(0).map(|v| v.into_iter().map(|i| i.max(0) as usize).collect()),
        2 => table.shorts(0).map(|v| v.into_iter().map(usize::from).collect()),
        3 => table.bytes(0).map(|v| v.iter().map(|&i| i as usize).collect()),
        other => return Err(format!("sparse indices of kind {other} are not known")),
    };
    Ok(found.unwrap_or_default())
}

/// A sparse tensor's content as a dense one: values are stored in the order of a traversal of the axes, of which some list their
/// non-zero indices only, and the innermost may be those of a block.
fn dense(dtype: DType, shape: &[usize], data: &[u8], t: &Table) -> Result<Tensor, String> {
    let order: Vec<usize> = t.ints(0).unwrap_or_default().into_iter().map(|i| i.max(0) as usize).collect();
    let blocks: Vec<usize> = t.ints(1).unwrap_or_default().into_iter().map(|i| i.max(0) as usize).collect();
    let (rank, levels) = (shape.len(), order.len());
    if levels > 32 {
        return Err(format!("{levels} axes of storage are too many"));
    }
    let mut seen = vec![false; levels];
    for &o in &order {
        if o >= levels || std::mem::replace(&mut seen[o], true) {
            return Err("the traversal order of a sparse tensor is no permutation".into());
        }
    }
    if levels != rank + blocks.len() || blocks.iter().any(|&b| b >= rank) {
        return Err(format!("{levels} axes of storage do not fit {rank} axes and {} of a block", blocks.len()));
    }
    let metadata = t.tables(2);
    if metadata.len() != levels {
        return Err(format!("{} of {levels} axes of storage are described", metadata.len()));
    }
    let mut axes = Vec::new();
    for m in &metadata {
        axes.push(match m.byte(0).unwrap_or(0) {
            0 => Axis::Dense(m.int(1).unwrap_or(0).max(0) as usize),
            1 => Axis::Sparse { segments: indices(m, 2, 3)?, indices: indices(m, 4, 5)? },
            other => return Err(format!("storage of kind {other} is not known")),
        });
    }
    // Extents of a block's axes, which are dense.
    let mut block = vec![1usize; rank];
    for (k, &of) in blocks.iter().enumerate() {
        let level = order.iter().position(|&o| o == rank + k).ok_or("a block's axis is not stored")?;
        let Axis::Dense(n) = axes[level] else { return Err("a block's axis is stored sparsely".into()) };
        block[of] *= n.max(1);
    }
    let size = dtype.bytes();
    let values = data.len() / size;
    let total =
        shape.iter().try_fold(size, |n, &d| n.checked_mul(d)).filter(|&n| n <= 1 << 27).ok_or("too many elements")?;
    let mut out = vec![0u8; total];
    let mut at = vec![0usize; levels];
    // Each step makes a value, or is one of few that lead to it.
    let left = values.saturating_add(total).saturating_mul(levels.max(1)).saturating_add(1 << 16);
    let mut walk = Walk { axes: &axes, order: &order, at: &mut at, left };
    walk.level(0, 0, &mut |at: &[usize], value: usize| {
        if value >= values {
            return Err(format!("a sparse tensor has {values} values, but more are described"));
        }
        let mut flat = 0;
        for d in 0..rank {
            let mut i = at[d] * block[d];
            for (k, &of) in blocks.iter().enumerate() {
                if of == d {
                    i += at[rank + k];
                }
            }
            if i >= shape[d] {
                return Err(format!("a sparse tensor has an element at {i} of axis {d}, which has {}", shape[d]));
            }
            flat = flat * shape[d] + i;
        }
        out[flat * size..(flat + 1) * size].copy_from_slice(&data[value * size..(value + 1) * size]);
        Ok(())
    })?;
    Tensor::from_bytes(dtype, shape, &out).map_err(|e| e.to_string())
}

/// A walk over what is stored of a sparse tensor.
struct Walk<'w> {
    axes: &'w [Axis],
    order: &'w [usize],
    /// The index of each axis of the tensor and of its block.
    at: &'w mut [usize],
    /// Steps that are left before the description counts as nonsense.
    left: usize,
}

impl Walk<'_> {
    fn level(
        &mut self,
        level: usize,
        parent: usize,
        visit: &mut dyn FnMut(&[usize], usize) -> Result<(), String>,
    ) -> Result<(), String> {
        if level == self.axes.len() {
            return visit(self.at, parent);
        }
        self.left = self.left.checked_sub(1).ok_or("a sparse tensor describes more than it holds")?;
        let axes = self.axes;
        match &axes[level] {
            Axis::Dense(n) => {
                for i in 0..*n {
                    self.at[self.order[level]] = i;
                    self.level(level + 1, parent * n + i, visit)?;
                }
            }
            Axis::Sparse { segments, indices } => {
                let (Some(&from), Some(&to)) = (segments.get(parent), segments.get(parent + 1)) else {
                    return Err("a sparse axis has too few segments".into());
                };
                for i in from..to {
                    let index = indices.get(i).ok_or("a sparse axis has too few indices")?;
                    self.at[self.order[level]] = *index;
                    self.level(level + 1, i, visit)?;
                }
            }
        }
        Ok(())
    }
}
