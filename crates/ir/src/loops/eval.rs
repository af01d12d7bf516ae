//! Tensor expressions evaluated plainly: what a schedule's kernel must compute, element by element.

use hashbrown::HashMap;

use super::{
    AxisId, BinOp, Body, Combine, Definition, LoopKind, Routine, Scalar, ScalarKind, Stage, Stages, Stmt, TensorId,
    num::{Num, ZeroDivision, as_dtype, binary, bits, cast, dot, mul_shift, saturate, unary},
};
use crate::tensor::{DType, Tensor};

/// Why stages have no value on some arguments.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvalError {
    /// An index lies outside its tensor.
    #[error("index {index:?} of tensor {tensor} lies outside its shape {shape:?}")]
    Outside {
        /// The tensor's number.
        tensor: u32,
        /// The index.
        index: Vec<i64>,
        /// The tensor's extents.
        shape: Vec<usize>,
    },
    /// An integer was divided by zero.
    #[error(transparent)]
    ZeroDivision(#[from] ZeroDivision),
}

struct Evaluator<'a> {
    stages: &'a Stages,
    tensors: Vec<Option<Tensor>>,
    axes: HashMap<AxisId, Num>,
}

/// The results of stages on the given arguments. Every operation rounds floats to its dtype and wraps integers, and a
/// reduction combines in the order of its axes. Parallel loops of routines run backwards, and what is not written holds garbage:
/// results that depend on either show it.
///
/// Panics where the arguments are not those that the stages declare.
pub fn eval_stages(stages: &Stages, args: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    assert_eq!(stages.args.len(), args.len(), "as many tensors as the stages take");
    let mut e = Evaluator { stages, tensors: vec![None; stages.tensors.len()], axes: HashMap::new() };
    for (&id, arg) in stages.args.iter().zip(args) {
        let decl = stages.decl(id);
        assert!(
            decl.dtype == arg.dtype() && decl.shape.iter().map(|&n| n as usize).eq(arg.shape().iter().copied()),
            "an argument is as declared"
        );
        e.tensors[id.0 as usize] = Some(arg.clone());
    }
    for definition in &stages.definitions {
        match definition {
            Definition::Stage(stage) => e.stage(stage)?,
            Definition::Routine(routine) => e.routine(routine)?,
        }
    }
    let tensors = e.tensors;
    Ok(stages.results.iter().map(|t| tensors[t.0 as usize].clone().expect("results are defined")).collect())
}

/// All indices into a shape, row-major.
fn indices(shape: &[i64]) -> impl Iterator<Item = Vec<i64>> + use<> {
    let shape = shape.to_vec();
    let count: i64 = shape.iter().product();
    (0..count).map(move |flat| {
        let mut rest = flat;
        let mut index: Vec<i64> = shape.iter().rev().map(|&n| (rest % n, rest /= n).0).collect();
        index.reverse();
        index
    })
}

/// What tensors of routines hold before they are written.
const GARBAGE: u8 = 0xa5;

impl Evaluator<'_> {
    fn stage(&mut self, stage: &Stage) -> Result<(), EvalError> {
        let decl = self.stages.decl(stage.tensor);
        let shape: Vec<usize> = decl.shape.iter().map(|&n| n as usize).collect();
        let mut values = Vec::with_capacity(shape.iter().product());
        let ids: Vec<AxisId> = stage.axes.iter().map(|a| a.id).collect();
        for index in indices(&decl.shape) {
            self.axes.extend(ids.iter().copied().zip(index.into_iter().map(Num::Int)));
            values.push(self.element(&stage.body, decl.dtype)?);
        }
        let tensor = match decl.dtype.is_float() {
            true => Tensor::from_f64_fn(decl.dtype, &shape, |i| values[i].float()),
            false => Tensor::from_i64_fn(decl.dtype, &shape, |i| values[i].int()),
        };
        self.tensors[stage.tensor.0 as usize] = Some(tensor);
        Ok(())
    }

    fn routine(&mut self, routine: &Routine) -> Result<(), EvalError> {
        self.spoil(
            routine
                .defines
                .iter()
                .chain(&routine.scratch)
                .chain(routine.locals.iter().flatten())
                .chain(&routine.registers),
        );
        for start in &routine.starts {
            self.stage(start)?;
        }
        self.axes.extend(routine.bound.iter().map(|&(axis, n)| (axis, Num::Int(n))));
        self.stmt(&routine.body, routine)
    }

    fn spoil<'a>(&mut self, tensors: impl IntoIterator<Item = &'a TensorId>) {
        for t in tensors {
            let decl = self.stages.decl(*t);
            let shape: Vec<usize> = decl.shape.iter().map(|&n| n as usize).collect();
            let mut tensor = Tensor::zeros(decl.dtype, &shape);
            tensor.bytes_mut().fill(GARBAGE);
            self.tensors[t.0 as usize] = Some(tensor);
        }
    }

    fn stmt(&mut self, s: &Stmt, routine: &Routine) -> Result<(), EvalError> {
        match s {
            Stmt::Block(all) => all.iter().try_for_each(|s| self.stmt(s, routine)),
            Stmt::For { var, extent, kind, body } => {
                let n = self.scalar(extent)?.int();
                for i in 0..n {
                    let parallel = *kind == LoopKind::Parallel;
                    if parallel {
                        self.spoil(routine.locals.iter().flatten().chain(&routine.registers));
                    }
                    self.axes.insert(*var, Num::Int(if parallel { n - 1 - i } else { i }));
                    self.stmt(body, routine)?;
                }
                Ok(())
            }
            Stmt::Store { buffer, index, value } => {
                let (at, value) = (self.scalar(index)?.int(), self.scalar(value)?);
                let tensor = self.tensors[buffer.0 as usize].as_mut().expect("routines write what they declared");
                if at < 0 || at >= tensor.len() as i64 {
                    return Err(EvalError::Outside {
                        tensor: buffer.0,
                        index: vec![at],
                        shape: tensor.shape().to_vec(),
                    });
                }
                match value {
                    Num::Int(i) => tensor.set_i64(at as usize, i),
                    Num::Float(f) => tensor.set_f64(at as usize, f),
                }
                Ok(())
            }
            Stmt::Prefetch { .. } => Ok(()),
            Stmt::Let { var, value, body } => {
                let value = self.scalar(value)?;
                self.axes.insert(*var, value);
                self.stmt(body, routine)
            }
            Stmt::If { cond, then, otherwise } => match (self.scalar(cond)?.int() != 0, otherwise) {
                (true, _) => self.stmt(then, routine),
                (false, Some(s)) => self.stmt(s, routine),
                (false, None) => Ok(()),
            },
            Stmt::While { cond, body } => {
                while self.scalar(cond)?.int() != 0 {
                    self.stmt(body, routine)?;
                }
                Ok(())
            }
            Stmt::Transpose { .. } | Stmt::Tiles { .. } => {
                unreachable!("schedules make these, routines come before them")
            }
        }
    }

    fn element(&mut self, body: &Body, dtype: DType) -> Result<Num, EvalError> {
        let (axes, combine, value) = match body {
            Body::Map(value) => return self.scalar(value),
            Body::Reduce { axes, combine, value } => (axes, *combine, value),
        };
        let mut sum = start(combine, dtype);
        let extents: Vec<i64> = axes.iter().map(|a| a.extent).collect();
        for index in indices(&extents) {
            self.axes.extend(axes.iter().map(|a| a.id).zip(index.into_iter().map(Num::Int)));
            let v = self.scalar(value)?;
            let op = match combine {
                Combine::Sum => BinOp::Add,
                Combine::Prod => BinOp::Mul,
                Combine::Max => BinOp::Max,
                Combine::Min => BinOp::Min,
                Combine::All => BinOp::And,
                Combine::Any => BinOp::Or,
            };
            // NaN are left out of bounds: see `combined` of schedules.
            sum = match combine {
                Combine::Max | Combine::Min => binary(op, v, sum, dtype)?,
                _ => binary(op, sum, v, dtype)?,
            };
        }
        Ok(sum)
    }

    fn scalar(&self, s: &Scalar) -> Result<Num, EvalError> {
        let dtype = s.dtype();
        Ok(match s.kind() {
            ScalarKind::Int(i) => as_dtype(Num::Int(*i), dtype),
            ScalarKind::Float(f) => as_dtype(Num::Float(*f), dtype),
            ScalarKind::Axis(a) => self.axes[a],
            ScalarKind::Read(t, index) => self.read(*t, index)?,
            ScalarKind::Binary(op, a, b) => binary(*op, self.scalar(a)?, self.scalar(b)?, a.dtype())?,
            ScalarKind::Unary(op, a) => as_dtype(unary(*op, self.scalar(a)?, a.dtype()), dtype),
            ScalarKind::Select(c, a, b) => self.scalar(if self.scalar(c)?.int() != 0 { a } else { b })?,
            ScalarKind::Bits(a) => bits(self.scalar(a)?, a.dtype(), dtype),
            ScalarKind::Cast(a) => cast(self.scalar(a)?, a.dtype(), dtype),
            ScalarKind::Dot(operands) => {
                dot(&operands.iter().map(|o| self.scalar(o)).collect::<Result<Vec<Num>, _>>()?)
            }
            ScalarKind::MulShift(operands) => {
                let [x, m, round, shift] = &**operands;
                let int = |o: &Scalar| Ok::<_, EvalError>(self.scalar(o)?.int());
                mul_shift(int(x)?, int(m)?, int(round)?, int(shift)?)
            }
            ScalarKind::Saturate(a) => saturate(self.scalar(a)?, dtype),
        })
    }

    fn read(&self, t: TensorId, index: &[Scalar]) -> Result<Num, EvalError> {
        let tensor = self.tensors[t.0 as usize].as_ref().expect("stages read earlier stages and arguments");
        let at = index.iter().map(|i| Ok(self.scalar(i)?.int())).collect::<Result<Vec<i64>, EvalError>>()?;
        // A single index into several axes counts elements, as those of routines may.
        let whole = [tensor.len()];
        let shape = if at.len() == 1 { &whole[..] } else { tensor.shape() };
        debug_assert_eq!(at.len(), shape.len());
        let mut flat = 0;
        for (&i, &n) in at.iter().zip(shape) {
            if i < 0 || i >= n as i64 {
                return Err(EvalError::Outside { tensor: t.0, index: at.clone(), shape: tensor.shape().to_vec() });
            }
            flat = flat * n + i as usize;
        }
        Ok(match tensor.dtype().is_float() {
            true => Num::Float(tensor.get_f64(flat)),
            false => Num::Int(tensor.get_i64(flat)),
        })
    }
}

fn start(combine: Combine, dtype: DType) -> Num {
    let (least, greatest) = match dtype.int_range() {
        Some((lo, hi)) => (Num::Int(lo as i64), Num::Int(hi as i64)),
        None => (Num::Float(f64::NEG_INFINITY), Num::Float(f64::INFINITY)),
    };
    let number = |i: i64| if dtype.is_float() { Num::Float(i as f64) } else { Num::Int(i) };
    match combine {
        Combine::Sum | Combine::Any => number(0),
        Combine::Prod | Combine::All => number(1),
        Combine::Max => least,
        Combine::Min => greatest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::Builder;

    #[test]
    fn sums_and_windows() {
        let mut b = Builder::new();
        let x = b.arg(&[2, 3], DType::I8);
        let double = b.map(&[3, 2], |b, i| b.read(x, [i[1].clone(), i[0].clone()]) * 2);
        let sum = b.reduce(&[3], &[2], Combine::Sum, |b, i, r| b.read(double, [i[0].clone(), r[0].clone()]));
        let stages = b.finish(vec![double, sum]);
        let out = eval_stages(&stages, &[Tensor::from_slice(&[2, 3], &[1i8, 2, 100, 4, 5, 6])]).expect("in range");
        assert_eq!(out[0], Tensor::from_slice(&[3, 2], &[2i8, 8, 4, 10, -56, 12]));
        assert_eq!(out[1], Tensor::from_slice(&[3], &[10i8, 14, -44]));
    }

    #[test]
    fn outside() {
        let mut b = Builder::new();
        let x = b.arg(&[2], DType::F32);
        let y = b.map(&[2], |b, i| b.read(x, [i[0].clone() + 1]));
        let stages = b.finish(vec![y]);
        let err = eval_stages(&stages, &[Tensor::zeros(DType::F32, &[2])]).expect_err("reads beyond the end");
        assert_eq!(err, EvalError::Outside { tensor: 0, index: vec![2], shape: vec![2] });
    }
}
