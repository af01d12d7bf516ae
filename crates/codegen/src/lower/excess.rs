//! Excess precision: what a kernel computes of a sum of `bfloat16` stays `float32` in registers and is rounded once, when it is stored, as C allows
//! (`FLT_EVAL_METHOD`) and XLA does. Each rounding in between would take more instructions than what it rounds. Only of programs that allow it
//! ([`Module::has_excess_precision`](crate::ir::Module::has_excess_precision)).

use hashbrown::HashMap;

use super::{
    affine::{Substitution, for_each_node},
    normalize::{Step, reads},
};
use crate::{
    loops::{BinOp, Combine, Scalar, ScalarKind, TensorId, UnOp},
    tensor::DType,
};

/// Leaves out of a step's value the roundings to `bfloat16` between the sum of products of `bfloat16` that it starts from and what it stores: a
/// reduction of its own, or a `float32` tensor that a routine of the kernel has stored (`of_routine`). Where the machine's instruction to round takes
/// what is too small to be normal for zero (`flush`), as those do that multiply, it does here, too.
pub(super) fn round_once(step: &mut Step, of_routine: &dyn Fn(TensorId) -> bool, flush: bool) {
    sum_in_float32(step);
    let sum = match &step.reduction {
        Some(r) if r.combine == Combine::Sum && is_of_short(&r.value) => Some(r.tensor),
        Some(_) => None,
        None => reads(&step.value).into_iter().map(|(t, _)| t).find(|&t| of_routine(t)),
    };
    let Some(sum) = sum else { return };
    let mut excess = Excess { sum, forms: HashMap::new(), wide: HashMap::new() };
    step.value = match excess.form(&step.value) {
        Some(wide) if flush => Scalar::unary(UnOp::FlushSubnormal, wide).cast(DType::BF16),
        Some(wide) => wide.cast(DType::BF16),
        None => excess.kept(&step.value),
    };
}

/// A sum that is of `bfloat16` itself, as those of pools are, is added up in `float32`.
fn sum_in_float32(step: &mut Step) {
    let Some(r) = step.reduction.as_mut().filter(|r| r.combine == Combine::Sum && r.value.dtype() == DType::BF16)
    else {
        return;
    };
    r.value = r.value.clone().cast(DType::F32);
    let sum = r.tensor;
    let widened = |s: &Scalar| match s.kind() {
        ScalarKind::Read(t, index) if *t == sum => Some(Scalar::read(*t, index.to_vec(), DType::F32).cast(DType::BF16)),
        _ => None,
    };
    step.value = Substitution::new(widened).apply(&step.value);
}

/// Whether a summand is `float32`, and made of `bfloat16`.
fn is_of_short(value: &Scalar) -> bool {
    let mut found = false;
    for_each_node(value, &mut |n| {
        found |= matches!(n.kind(), ScalarKind::Cast(x) if n.dtype() == DType::F32 && x.dtype() == DType::BF16);
    });
    found && value.dtype() == DType::F32
}

struct Excess {
    /// The sum.
    sum: TensorId,
    /// By address of an expression of `bfloat16` that comes of the sum: the expression, and what it is in `float32`.
    forms: HashMap<usize, (Scalar, Option<Scalar>)>,
    /// By address of any other expression: the expression, and what it is without such roundings.
    wide: HashMap<usize, (Scalar, Scalar)>,
}

impl Excess {
    /// An expression of `bfloat16` in `float32`, where it comes of the sum.
    fn form(&mut self, e: &Scalar) -> Option<Scalar> {
        if e.dtype() != DType::BF16 {
            return None;
        }
        if let Some((_, form)) = self.forms.get(&e.key()) {
            return form.clone();
        }
        let form = match e.kind() {
            ScalarKind::Cast(x) if x.dtype() == DType::F32 => {
                reads(x).iter().any(|(t, _)| *t == self.sum).then(|| self.kept(x))
            }
            // Divisions take several times as long as multiplications; rounding to `bfloat16` leaves nothing of the difference.
            ScalarKind::Binary(BinOp::Div, a, b) if let ScalarKind::Float(by) = b.kind() => {
                self.form(a).map(|a| Scalar::binary(BinOp::Mul, a, Scalar::float(1.0 / *by, DType::F32)))
            }
            ScalarKind::Binary(op, a, b) if is_continuous(*op) => {
                self.both(a, b).map(|(a, b)| Scalar::binary(*op, a, b))
            }
            ScalarKind::Select(c, a, b) => self.both(a, b).map(|(a, b)| Scalar::select(c.clone(), a, b)),
            ScalarKind::Unary(op, x) if !is_step(*op) => self.form(x).map(|x| Scalar::unary(*op, x)),
            _ => None,
        };
        self.forms.insert(e.key(), (e.clone(), form.clone()));
        form
    }

    fn both(&mut self, a: &Scalar, b: &Scalar) -> Option<(Scalar, Scalar)> {
        let (x, y) = (self.form(a), self.form(b));
        let wide = |form: Option<Scalar>, e: &Scalar| form.unwrap_or_else(|| e.clone().cast(DType::F32));
        (x.is_some() || y.is_some()).then(|| (wide(x, a), wide(y, b)))
    }

    /// An expression that reads forms where it widened what was rounded.
    fn kept(&mut self, e: &Scalar) -> Scalar {
        match e.kind() {
            ScalarKind::Cast(x)
                if e.dtype() == DType::F32
                    && let Some(form) = self.form(x) =>
            {
                form
            }
            ScalarKind::Read(..) => e.clone(),
            _ if !e.is_shared() => e.map_operands(|o| self.kept(o)),
            _ => match self.wide.get(&e.key()) {
                Some((_, kept)) => kept.clone(),
                None => {
                    let kept = e.map_operands(|o| self.kept(o));
                    self.wide.insert(e.key(), (e.clone(), kept.clone()));
                    kept
                }
            },
        }
    }
}

/// Whether what an operation gives changes little where its operands do.
fn is_continuous(op: BinOp) -> bool {
    matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Div | BinOp::Min | BinOp::Max)
}

/// Whether it jumps.
fn is_step(op: UnOp) -> bool {
    matches!(op, UnOp::Floor | UnOp::Ceil | UnOp::Trunc | UnOp::Round | UnOp::RoundEven)
}
