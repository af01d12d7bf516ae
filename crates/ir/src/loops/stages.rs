//! Tensor expressions: each stage says what every element of one tensor is.

use std::{collections::HashSet, sync::Arc};

use super::{AxisId, Routine, Scalar, ScalarKind, SharedBody, TensorId};
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

/// The definition of one tensor by an expression, or of several by statements.
#[derive(Clone, Debug, PartialEq)]
pub enum Definition {
    /// What each element is.
    Stage(Stage),
    /// What to do.
    Routine(Routine),
}

impl Definition {
    /// The tensors that it defines.
    pub fn defines(&self) -> &[TensorId] {
        match self {
            Definition::Stage(s) => std::slice::from_ref(&s.tensor),
            Definition::Routine(r) => &r.defines,
        }
    }
}

/// A tensor that stages read or define.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDecl {
    /// Extents, outermost first.
    pub shape: Vec<i64>,
    /// Element type.
    pub dtype: DType,
}

/// A group of definitions: arguments come in, further tensors are defined, some of which are the results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stages {
    /// All tensors.
    pub tensors: Vec<TensorDecl>,
    /// The tensors that are given, in order.
    pub args: Vec<TensorId>,
    /// The definitions; each reads only arguments and tensors of earlier ones (and routines their own).
    pub definitions: Vec<Definition>,
    /// The tensors that are wanted, in order: those of the result, then the counts that `counted` names.
    pub results: Vec<TensorId>,
    /// Of results whose outermost extent is found while running: the result's place in `results`, and its count's, which is an
    /// `int64` of one element. The result's tensor has the greatest extent that can be; its first `count` rows are meant,
    /// further ones hold anything. Whoever runs the kernel cuts it, and drops the counts.
    pub counted: Vec<(usize, usize)>,
    axis_count: u32,
}

/// What an operator lowers from and to: a tensor, or a tuple of such.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// One tensor.
    Tensor(TensorId),
    /// A tuple.
    Tuple(Vec<Operand>),
    /// The first rows of a tensor, where how many is found while running. Only results are: of operators whose result has an
    /// unknown outermost extent although those of all arguments are known. Such operators fuse with nothing.
    Counted {
        /// With an upper bound as its outermost extent.
        tensor: TensorId,
        /// How many rows are meant: one element of `int64`, from 0 to that bound.
        count: TensorId,
    },
}

impl Operand {
    /// The tensor. Panics on a tuple: types are checked before lowering.
    pub fn tensor(&self) -> TensorId {
        match self {
            Operand::Tensor(t) => *t,
            Operand::Tuple(_) => panic!("a tensor was expected where type inference had allowed a tuple"),
            Operand::Counted { .. } => panic!("what is counted while running fuses with nothing"),
        }
    }

    /// The tuple's fields. Panics on a tensor: types are checked before lowering.
    pub fn fields(&self) -> &[Operand] {
        match self {
            Operand::Tuple(f) => f,
            _ => panic!("a tuple was expected where type inference had allowed a tensor"),
        }
    }

    /// The tensors, depth first, without the counts.
    pub fn tensors(&self) -> Vec<TensorId> {
        match self {
            Operand::Tensor(tensor) | Operand::Counted { tensor, .. } => vec![*tensor],
            Operand::Tuple(f) => f.iter().flat_map(Operand::tensors).collect(),
        }
    }

    /// As [`Operand::tensors`], the count of each that has one.
    fn counts(&self) -> Vec<Option<TensorId>> {
        match self {
            Operand::Tensor(_) => vec![None],
            Operand::Counted { count, .. } => vec![Some(*count)],
            Operand::Tuple(f) => f.iter().flat_map(Operand::counts).collect(),
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

    /// The stage that defines a tensor; arguments have none, nor have tensors of routines.
    pub fn stage_of(&self, t: TensorId) -> Option<&Stage> {
        self.definitions.iter().find_map(|d| match d {
            Definition::Stage(s) if s.tensor == t => Some(s),
            _ => None,
        })
    }

    /// The tensors alone: without what defines them.
    pub fn declared(&self) -> Stages {
        Stages {
            tensors: self.tensors.clone(),
            args: self.args.clone(),
            definitions: Vec::new(),
            results: self.results.clone(),
            counted: self.counted.clone(),
            axis_count: self.axis_count,
        }
    }

    /// A fresh axis.
    pub fn new_axis(&mut self, extent: i64) -> Axis {
        self.axis_count += 1;
        Axis { id: AxisId(self.axis_count - 1), extent }
    }

    /// Goes on with axes from that number.
    pub(super) fn skip_axes(&mut self, to: u32) {
        self.axis_count = to;
    }

    /// Number of axes made so far: the first free axis id.
    pub fn axis_count(&self) -> u32 {
        self.axis_count
    }
}

/// Builds [`Stages`]; operators' `lower` methods work on one.
#[derive(Debug, Default)]
pub struct Builder {
    pub(super) stages: Stages,
    all_sizes: bool,
    /// Statements of routines that are known from other sizes.
    pub(super) kept: Vec<Arc<SharedBody>>,
    /// Axes of extent 1 of results.
    single: HashSet<AxisId>,
}

impl Builder {
    /// A builder without tensors.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// A builder of stages that are to become kernels for all sizes: of what is done, the form should not depend on extents.
    pub fn for_all_sizes() -> Builder {
        Builder { all_sizes: true, ..Builder::default() }
    }

    /// The same, where these statements of routines are known from other sizes.
    pub fn for_further_sizes(kept: Vec<Arc<SharedBody>>) -> Builder {
        Builder { kept, ..Builder::for_all_sizes() }
    }

    /// Whether the form of what is done should not depend on extents.
    pub fn is_for_all_sizes(&self) -> bool {
        self.all_sizes
    }

    /// Whether an operand of extent `n` along an axis that a result has at index `i` is read at 0 there: it is broadcast. Where the
    /// result's extent is 1, too, the index is as good, and the same at other sizes.
    pub fn stands_still(&self, n: i64, i: &Scalar) -> bool {
        let is_single = || matches!(i.kind(), ScalarKind::Axis(a) if self.single.contains(a));
        n == 1 && !(self.all_sizes && is_single())
    }

    fn axes(&mut self, shape: &[i64]) -> Vec<Axis> {
        let axes: Vec<Axis> = shape.iter().map(|&n| self.stages.new_axis(n)).collect();
        if self.all_sizes {
            self.single.extend(axes.iter().filter(|a| a.extent == 1).map(|a| a.id));
        }
        axes
    }

    pub(super) fn declare(&mut self, shape: &[i64], dtype: DType) -> TensorId {
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
        let axes = self.axes(shape);
        let index: Vec<Scalar> = axes.iter().map(|a| Scalar::axis(a.id)).collect();
        let value = value(self, &index);
        let tensor = self.declare(shape, value.dtype());
        self.stages.definitions.push(Definition::Stage(Stage { tensor, axes, body: Body::Map(value) }));
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
        let axes = self.axes(shape);
        let reduced: Vec<Axis> = over.iter().map(|&n| self.stages.new_axis(n)).collect();
        let index: Vec<Scalar> = axes.iter().map(|a| Scalar::axis(a.id)).collect();
        let r: Vec<Scalar> = reduced.iter().map(|a| Scalar::axis(a.id)).collect();
        let value = value(self, &index, &r);
        let tensor = self.declare(shape, value.dtype());
        let body = Body::Reduce { axes: reduced, combine, value };
        self.stages.definitions.push(Definition::Stage(Stage { tensor, axes, body }));
        tensor
    }

    /// The stages, with the given results, none of which is counted.
    pub fn finish(mut self, results: Vec<TensorId>) -> Stages {
        self.stages.results = results;
        self.stages
    }

    /// The stages, with an operator's result: its tensors, depth first, and then the counts of those that have one.
    pub fn finish_with(mut self, result: &Operand) -> Stages {
        let mut results = result.tensors();
        for (at, count) in result.counts().into_iter().enumerate() {
            let Some(count) = count else { continue };
            let from = result.counts().len();
            let place = match results[from..].iter().position(|t| *t == count) {
                Some(known) => from + known,
                None => {
                    results.push(count);
                    results.len() - 1
                }
            };
            self.stages.counted.push((at, place));
        }
        self.finish(results)
    }
}
