//! Diagonals of matrices.

use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_ensure,
        util::{field, may_equal, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&MatrixSetDiag];

/// `matrix_set_diag`.
#[derive(Debug)]
struct MatrixSetDiag;

/// Which diagonals are set, and how shorter ones lie in their lines.
struct Band {
    low: i64,
    high: i64,
    /// Whether those above the main diagonal, and those below it, end (rather than start) where their line does.
    right: (bool, bool),
}

impl Band {
    fn new(attrs: &Attrs) -> Band {
        Band {
            low: attrs.int("k1"),
            high: attrs.int("k2"),
            right: (attrs.bool("super_diag_right_align"), attrs.bool("sub_diag_right_align")),
        }
    }

    /// Elements of diagonal `k` of a matrix.
    fn length(k: i64, rows: i64, columns: i64) -> i64 {
        rows.saturating_add(k.min(0)).min(columns.saturating_sub(k.max(0)))
    }
}

impl Op for MatrixSetDiag {
    op_head!(
        "matrix_set_diag",
        "input with the diagonals k1 to k2 of the matrices in its last two axes replaced: element j of diagonal k (0 is the
        main one, 1 lies above it) is diagonal[.., k2 - k, j], or diagonal[.., j] where k1 is k2. Lines longer than their
        diagonal hold it at their end, where super_diag_right_align (k >= 0) or sub_diag_right_align (k < 0) says so, else at
        their start. C1: k1 is no more than k2, and both are diagonals of the matrices. C2: diagonal has input's axes before
        the matrices', then, where there are several, an axis of k2 - k1 + 1 diagonals, then their elements, as many as the
        longest has or more. C3: element types are equal.",
        ["input", "diagonal"],
        [
            field("k1", AttrKind::Int, AttrDefault::Int(0)),
            field("k2", AttrKind::Int, AttrDefault::Int(0)),
            field("super_diag_right_align", AttrKind::Bool, AttrDefault::Bool(true)),
            field("sub_diag_right_align", AttrKind::Bool, AttrDefault::Bool(false))
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, diagonal) = (tensor_arg(args, 0, "input")?, tensor_arg(args, 1, "diagonal")?);
        let Band { low, high, .. } = Band::new(attrs);
        op_ensure!(x.rank() >= 2 && low <= high, "C1: `input` is {x}, `k1` {low} and `k2` {high}");
        let batch = x.rank() - 2;
        let (rows, columns) = (x.shape[batch].known(), x.shape[batch + 1].known());
        op_ensure!(
            rows.is_none_or(|n| n > low.saturating_neg()) && columns.is_none_or(|n| n > high),
            "C1: `input` is {x}, `k1` {low} and `k2` {high}"
        );
        let several = (low < high) as usize;
        let longest = match (rows, columns) {
            // The one nearest to the main diagonal.
            (Some(r), Some(c)) => Band::length(0.clamp(low, high), r, c),
            _ => 0,
        };
        op_ensure!(
            diagonal.rank() == batch + several + 1
                && (0..batch).all(|k| may_equal(x.shape[k], diagonal.shape[k]))
                && (several == 0 || diagonal.shape[batch].known().is_none_or(|n| n == high - low + 1))
                && diagonal.shape[batch + several].known().is_none_or(|n| n >= longest),
            "C2: `input` is {x}, `diagonal` {diagonal}, `k1` {low} and `k2` {high}"
        );
        op_ensure!(x.dtype == diagonal.dtype, "C3: `input` is {x} and `diagonal` {diagonal}");
        Ok(x.clone().into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, diagonal) = (args[0].tensor(), args[1].tensor());
        let Band { low, high, right } = Band::new(attrs);
        let [rows, columns] = x.shape()[x.shape().len() - 2..] else { unreachable!("matrices have two axes") };
        let lines = (high - low + 1) as usize;
        let line = diagonal.shape()[diagonal.shape().len() - 1];
        let mut out = x.clone();
        let width = x.dtype().bytes();
        for i in 0..x.len() {
            let (row, column) = ((i / columns % rows) as i64, (i % columns) as i64);
            let k = column - row;
            if k < low || high < k {
                continue;
            }
            let spare = line as i64 - Band::length(k, rows as i64, columns as i64);
            let shift = if lines > 1 && (if k >= 0 { right.0 } else { right.1 }) { spare } else { 0 };
            let at = (i / columns / rows * lines + (high - k) as usize) * line + (row.min(column) + shift) as usize;
            out.bytes_mut()[i * width..][..width].copy_from_slice(&diagonal.bytes()[at * width..][..width]);
        }
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = [0, 1].map(|k| args[k].as_tensor().map_or(0, TensorType::rank));
        let band = Band::new(attrs);
        let inner = [2, 1 + (band.low < band.high) as usize];
        let roles = |k: usize| {
            let role = |axis| if axis + inner[k] < ranks[k] { AxisRole::Maps(axis) } else { AxisRole::Opaque };
            (0..ranks[k]).map(role).collect()
        };
        AxisMap(vec![roles(0), roles(1)])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, diagonal) = (args[0].tensor(), args[1].tensor());
        let Band { low, high, right } = Band::new(attrs);
        let (shape, lines) = (b.shape(x).to_vec(), b.shape(diagonal).to_vec());
        let (batch, line) = (shape.len() - 2, lines[lines.len() - 1]);
        let out = b.map(&shape, |b, i| {
            let (row, column) = (i[batch].clone(), i[batch + 1].clone());
            let k = column.clone() - row.clone();
            let set = Scalar::binary(BinOp::Ge, k.clone(), Scalar::index(low)).and(Scalar::binary(
                BinOp::Le,
                k.clone(),
                Scalar::index(high),
            ));
            let above = || k.clone().ge(Scalar::index(0));
            let mut place = row.clone().min(column.clone());
            if low < high {
                let zero = Scalar::index(0);
                // How much longer the line is than the diagonal.
                let upper = Scalar::index(line)
                    - (Scalar::index(shape[batch + 1]) - k.clone()).min(Scalar::index(shape[batch]));
                let lower = Scalar::index(line)
                    - (Scalar::index(shape[batch]) + k.clone()).min(Scalar::index(shape[batch + 1]));
                let upper = if right.0 { upper } else { zero.clone() };
                place = place + Scalar::select(above(), upper, if right.1 { lower } else { zero });
            }
            let which = (low < high).then(|| Scalar::index(high) - k.clone());
            let at = i[..batch].iter().cloned().chain(which).chain([place]);
            Scalar::select(set, b.read(diagonal, at.collect::<Vec<_>>()), b.read(x, i.iter().cloned()))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |k: (i64, i64), right: (bool, bool), x: &[i64], d: &[i64], dtype| {
            let attrs = [
                ("k1", k.0.into()),
                ("k2", k.1.into()),
                ("super_diag_right_align", right.0.into()),
                ("sub_diag_right_align", right.1.into()),
            ];
            sample(attrs, vec![t(x, dtype), t(d, dtype)])
        };
        vec![
            call((0, 0), (true, false), &[2, 3, 4], &[2, 3], DType::F32),
            call((1, 1), (true, false), &[4, 4], &[3], DType::I8),
            call((-1, 1), (true, false), &[2, 4, 4], &[2, 3, 4], DType::F32),
            call((-2, 0), (false, true), &[4, 3], &[3, 3], DType::F32),
            call((0, 2), (true, true), &[3, 5], &[3, 3], DType::I32),
            call((1, 2), (false, false), &[3, 4], &[2, 3], DType::F32),
        ]
    }
}
