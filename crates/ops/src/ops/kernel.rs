//! What may be one kernel: the one definition that the pass `FuseOps` and the ruleset `fusion` share.

use super::Class;
use crate::ir::{Attrs, Dim, OpId, Type};

/// As many operators become one kernel where nothing else is asked for: beyond that compiling takes longer than it saves.
pub const LARGEST_KERNEL: usize = 1000;

/// Constants of up to so many elements are written into a kernel's code, larger ones are its arguments.
pub const INLINE_CONSTANT: usize = 1;

/// An operator's call within what might be a kernel.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Its class.
    pub class: Class,
    /// Its result's type; none where it is not known.
    pub ty: Option<&'a Type>,
    /// The parts that it reads, by place, each once; tuples between them are looked through.
    pub reads: Vec<usize>,
}

/// The class that counts for what may be one kernel: an operator whose arguments' values decide its extents is a kernel by itself, since
/// these are wanted before it is lowered.
pub fn kernel_class(op: OpId, attrs: &Attrs) -> Class {
    match op.op().decided_by(attrs) {
        [] => op.op().class(),
        _ => Class::Opaque,
    }
}

/// Whether calls (readers after what they read, the result last) may be one kernel. All but the result are read within.
///
/// One call always may. Of several none is opaque, and all give tensors, or several at once where that but moves elements (a split). At most one combines elements: all others run on its
/// accumulators or beside them, element by element, and so are elementwise and of its shape; before it runs nothing, unless it is a
/// reduction and the result, which takes its elements from whatever moves or computes them one by one. What is read in
/// several places is read there element by element, so that it is computed once.
pub fn may_be_one(parts: &[Part]) -> bool {
    let Some(result) = parts.len().checked_sub(1) else { return false };
    if result == 0 {
        return true;
    }
    let is_plain = |p: &Part| {
        p.class != Class::Opaque
            && p.ty.is_some_and(|t| match t {
                Type::Tuple(fields) => p.class == Class::Injective && fields.iter().all(|f| f.as_tensor().is_some()),
                t => t.as_tensor().is_some(),
            })
    };
    if !parts.iter().all(is_plain) {
        return false;
    }
    let mut heavy = (0..parts.len()).filter(|&i| parts[i].class.is_heavy());
    match (heavy.next(), heavy.next()) {
        (Some(_), Some(_)) => false,
        (Some(h), None) if h == result => parts[h].class == Class::Reduce && meets_before_it_moves(parts),
        (Some(h), None) => runs_on_accumulators(parts, h),
        (None, _) => meets_before_it_moves(parts),
    }
}

fn shape<'a>(p: &Part<'a>) -> Option<&'a [Dim]> {
    p.ty.and_then(Type::as_tensor).map(|t| &t.shape[..])
}

/// Whether the heavy part reads none of the others, and these are elementwise and of its shape: they are computed where an
/// accumulator is stored, from it or from what lies at the same place elsewhere.
fn runs_on_accumulators(parts: &[Part], heavy: usize) -> bool {
    let beside = |(i, p): (usize, &Part)| i == heavy || p.class <= Class::Broadcast && shape(p) == shape(&parts[heavy]);
    parts[heavy].reads.is_empty() && parts.iter().enumerate().all(beside)
}

/// Whether between a part with several readers and the part where all ways from it meet again, everything is elementwise.
fn meets_before_it_moves(parts: &[Part]) -> bool {
    if parts[..parts.len() - 1].iter().all(|p| p.class <= Class::Broadcast) {
        return true;
    }
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); parts.len()];
    for (i, p) in parts.iter().enumerate() {
        p.reads.iter().for_each(|&r| readers[r].push(i));
    }
    // By part: where all ways from it to the result meet, and how many such places there are up to the result.
    let mut meets = vec![(usize::MAX, 0u32); parts.len()];
    for i in (0..parts.len() - 1).rev() {
        let common = readers[i].iter().copied().reduce(|a, b| meeting(&meets, a, b));
        let Some(meet) = common else { return false };
        meets[i] = (meet, meets[meet].1 + 1);
    }
    (0..parts.len()).filter(|&i| readers[i].len() > 1).all(|i| {
        let mut seen = vec![false; parts.len()];
        let mut stack = readers[i].clone();
        while let Some(p) = stack.pop() {
            if p == meets[i].0 || std::mem::replace(&mut seen[p], true) {
                continue;
            }
            if parts[p].class > Class::Broadcast {
                return false;
            }
            stack.extend(&readers[p]);
        }
        true
    })
}

fn meeting(meets: &[(usize, u32)], mut a: usize, mut b: usize) -> usize {
    while a != b {
        match meets[a].1 >= meets[b].1 {
            true => a = meets[a].0,
            false => b = meets[b].0,
        }
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn may(parts: &[(Class, &[i64], &[usize])]) -> bool {
        let types: Vec<Type> = parts.iter().map(|(_, shape, _)| Type::tensor(shape, DType::F32)).collect();
        let parts: Vec<Part> = parts
            .iter()
            .zip(&types)
            .map(|((class, _, reads), ty)| Part { class: *class, ty: Some(ty), reads: reads.to_vec() })
            .collect();
        may_be_one(&parts)
    }

    #[test]
    fn chains_and_diamonds() {
        use Class::{Broadcast, Elementwise, Injective, Opaque};
        let s: &[i64] = &[2, 3];
        assert!(may(&[(Opaque, s, &[])]));
        assert!(!may(&[(Opaque, s, &[]), (Elementwise, s, &[0])]));
        assert!(may(&[(Elementwise, s, &[]), (Injective, &[3, 2], &[0]), (Broadcast, &[3, 2], &[1])]));
        assert!(may(&[(Elementwise, s, &[]), (Elementwise, s, &[0]), (Broadcast, s, &[0, 1])]));
        // x + transpose(x): two elements of x for one of the result.
        assert!(!may(&[(Elementwise, s, &[]), (Injective, s, &[0]), (Broadcast, s, &[0, 1])]));
    }

    #[test]
    fn fields_of_a_split_meet() {
        let (whole, half) = (Type::tensor(&[2, 4], DType::F32), Type::tensor(&[2, 2], DType::F32));
        let halves = Type::tuple([half.clone(), half.clone()]);
        let part = |class, ty, reads: &[usize]| Part { class, ty: Some(ty), reads: reads.to_vec() };
        let exp = || part(Class::Elementwise, &whole, &[]);
        assert!(may_be_one(&[exp(), part(Class::Injective, &halves, &[0]), part(Class::Broadcast, &half, &[1])]));
        assert!(may_be_one(&[exp(), part(Class::Injective, &halves, &[0])]));
        assert!(!may_be_one(&[exp(), part(Class::Reduce, &halves, &[0])]));
        assert!(!may_be_one(&[part(Class::Contract, &whole, &[]), part(Class::Injective, &halves, &[0])]));
    }

    #[test]
    fn reductions_and_contractions() {
        use Class::{Broadcast, Contract, Elementwise, Injective, Reduce};
        let (s, r): (&[i64], &[i64]) = (&[2, 3], &[2]);
        assert!(may(&[(Contract, s, &[]), (Broadcast, s, &[0]), (Elementwise, s, &[1])]));
        assert!(!may(&[(Contract, s, &[]), (Broadcast, &[4, 2, 3], &[0])]), "another shape");
        assert!(!may(&[(Contract, s, &[]), (Injective, s, &[0])]));
        assert!(!may(&[(Elementwise, s, &[]), (Contract, s, &[0])]));
        assert!(!may(&[(Contract, s, &[]), (Contract, s, &[0])]));
        assert!(may(&[(Elementwise, s, &[]), (Reduce, r, &[0])]));
        assert!(may(&[(Reduce, r, &[]), (Elementwise, r, &[0])]));
        assert!(!may(&[(Elementwise, s, &[]), (Reduce, r, &[0]), (Elementwise, r, &[1])]));
        // What only the epilogue reads is computed in it.
        assert!(may(&[(Contract, s, &[]), (Elementwise, s, &[]), (Broadcast, s, &[0, 1])]));
        assert!(!may(&[(Contract, s, &[]), (Elementwise, r, &[]), (Broadcast, s, &[0, 1])]));
    }
}
