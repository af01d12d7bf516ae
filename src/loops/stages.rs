//! Tensor expressions: each stage says what every element of one tensor is.

use super::{AxisId, Scalar, TensorId};
use crate::tensor::DType;

/// A loop over `0..extent`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// The variable that takes the values.
    pub id: AxisId,
    /// Number of iterations.
    pub extent: i64,
}

/// How a reduction combines values.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Combine {
    /// Sum, from 0.
    Sum,
    /// Product, from 1.
    Prod,
    /// Greatest, from the dtype's least value (-infinity for floats).
    Max,
    /// Least, from the dtype's greatest value (infinity for floats).
    Min,
    /// Whether all hold.
    All,
    /// Whether any holds.
    Any,
}

/// What an element is.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// The value of an expression over the stage's axes.
    Map(Scalar),
    /// The values of an expression over the stage's axes and the reduction's, combined over the latter.
    Reduce {
        /// What is reduced over, outermost first.
        axes: Vec<Axis>,
        /// How.
        combine: Combine,
        /// Each value.
        value: Scalar,
    },
}

/// The definition of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The tensor that is defined.
    pub tensor: TensorId,
    /// One axis per dimension of it.
    pub axes: Vec<Axis>,
    /// What the element at these axes is.
    pub body: Body,
}

/// A tensor that stages read or define.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDecl {
    /// Extents, outermost first.
    pub shape: Vec<i64>,
    /// Element type.
    pub dtype: DType,
}

/// A group of tensor expressions: arguments come in, stages define further tensors, some of which are the results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stages {
    /// All tensors.
    pub tensors: Vec<TensorDecl>,
    /// The tensors that are given, in order.
    pub args: Vec<TensorId>,
    /// The definitions; each reads only arguments and tensors of earlier stages.
    pub stages: Vec<Stage>,
    /// The tensors that are wanted, in order.
    pub results: Vec<TensorId>,
    axis_count: u32,
}

/// What an operator lowers from and to: a tensor, or a tuple of such.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// One tensor.
    Tensor(TensorId),
    /// A tuple.
    Tuple(Vec<Operand>),
}

impl Operand {
    /// The tensor. Panics on a tuple: types are checked before lowering.
    pub fn tensor(&self) -> TensorId {
        match self {
            Operand::Tensor(t) => *t,
            Operand::Tuple(_) => panic!("a tensor was expected where type inference had allowed a tuple"),
        }
    }

    /// The tuple's fields. Panics on a tensor: types are checked before lowering.
    pub fn fields(&self) -> &[Operand] {
        match self {
            Operand::Tuple(f) => f,
            Operand::Tensor(_) => panic!("a tuple was expected where type inference had allowed a tensor"),
        }
    }
}

impl From<TensorId> for Operand {
    fn from(t: TensorId) -> Operand {
        Operand::Tensor(t)
    }
}

impl Stages {
    /// What a tensor is.
    pub fn decl(&self, t: TensorId) -> &TensorDecl {
        &self.tensors[t.0 as usize]
    }

    /// The stage that defines a tensor; arguments have none.
    pub fn stage_of(&self, t: TensorId) -> Option<&Stage> {
        self.stages.iter().find(|s| s.tensor == t)
    }

    /// A fresh axis.
    pub fn new_axis(&mut self, extent: i64) -> Axis {
        self.axis_count += 1;
        Axis { id: AxisId(self.axis_count - 1), extent }
    }

    /// Number of axes made so far: the first free axis id.
    pub fn axis_count(&self) -> u32 {
        self.axis_count
    }
}

/// Builds [`Stages`]; operators' `lower` methods work on one.
#[derive(Debug, Default)]
pub struct Builder {
    stages: Stages,
}

impl Builder {
    /// A builder without tensors.
    pub fn new() -> Builder {
        Builder::default()
    }

    fn declare(&mut self, shape: &[i64], dtype: DType) -> TensorId {
        self.stages.tensors.push(TensorDecl { shape: shape.to_vec(), dtype });
        TensorId(self.stages.tensors.len() as u32 - 1)
    }

    /// A tensor that is given.
    pub fn arg(&mut self, shape: &[i64], dtype: DType) -> TensorId {
        let t = self.declare(shape, dtype);
        self.stages.args.push(t);
        t
    }

    /// A tensor's extents.
    pub fn shape(&self, t: TensorId) -> &[i64] {
        &self.stages.decl(t).shape
    }

    /// A tensor's element type.
    pub fn dtype(&self, t: TensorId) -> DType {
        self.stages.decl(t).dtype
    }

    /// An element of a tensor: one index per axis.
    pub fn read(&self, t: TensorId, index: impl IntoIterator<Item = Scalar>) -> Scalar {
        let index: Vec<Scalar> = index.into_iter().collect();
        assert_eq!(index.len(), self.shape(t).len(), "one index per axis");
        Scalar::read(t, index, self.dtype(t))
    }

    /// Defines a tensor whose element at indices `i` is `value(builder, i)`.
    pub fn map(&mut self, shape: &[i64], value: impl FnOnce(&Builder, &[Scalar]) -> Scalar) -> TensorId {
        let axes: Vec<Axis> = shape.iter().map(|&n| self.stages.new_axis(n)).collect();
        let index: Vec<Scalar> = axes.iter().map(|a| Scalar::axis(a.id)).collect();
        let value = value(self, &index);
        let tensor = self.declare(shape, value.dtype());
        self.stages.stages.push(Stage { tensor, axes, body: Body::Map(value) });
        tensor
    }

    /// Defines a tensor whose element at `i` combines `value(builder, i, r)` over all `r` within `over`.
    pub fn reduce(
        &mut self,
        shape: &[i64],
        over: &[i64],
        combine: Combine,
        value: impl FnOnce(&Builder, &[Scalar], &[Scalar]) -> Scalar,
    ) -> TensorId {
        let axes: Vec<Axis> = shape.iter().map(|&n| self.stages.new_axis(n)).collect();
        let reduced: Vec<Axis> = over.iter().map(|&n| self.stages.new_axis(n)).collect();
        let index: Vec<Scalar> = axes.iter().map(|a| Scalar::axis(a.id)).collect();
        let r: Vec<Scalar> = reduced.iter().map(|a| Scalar::axis(a.id)).collect();
        let value = value(self, &index, &r);
        let tensor = self.declare(shape, value.dtype());
        self.stages.stages.push(Stage { tensor, axes, body: Body::Reduce { axes: reduced, combine, value } });
        tensor
    }

    /// The stages, with the given results.
    pub fn finish(mut self, results: Vec<TensorId>) -> Stages {
        self.stages.results = results;
        self.stages
    }
}
