//! What a region computes, in the library's words: steps over tensors, each in the axis order that the library wants. Plain data.

use crate::tensor::{DType, Tensor};

/// A tensor of a [`Graph`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ValueId(pub usize);

/// What a tensor is.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its extents, at least one.
    pub shape: Vec<i64>,
    /// Its type.
    pub dtype: DType,
    /// Its elements, where they are known.
    pub data: Option<Tensor>,
}

/// A function of one number.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Eltwise {
    /// Which.
    pub kind: EltwiseKind,
    /// Its first parameter.
    pub alpha: f32,
    /// Its second parameter.
    pub beta: f32,
}

/// The functions of one number, with their parameters `a` and `b`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum EltwiseKind {
    /// `x` where it is positive, else `a x`.
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// `x` where it is positive, else `a (exp(x) - 1)`.
    Elu,
    /// `x x`.
    Square,
    /// The absolute value.
    Abs,
    /// The square root.
    Sqrt,
    /// `a x + b`.
    Linear,
    /// `1 / (1 + exp(-x))`.
    Logistic,
    /// `exp(x)`.
    Exp,
    /// `x / 2 (1 + erf(x / sqrt(2)))`.
    GeluErf,
    /// `x` times the logistic of `a x`.
    Swish,
    /// The natural logarithm.
    Log,
    /// `x` between `a` and `b`.
    Clip,
    /// `a x^b`.
    Pow,
}

impl EltwiseKind {
    /// With its parameters.
    pub fn with(self, alpha: f32, beta: f32) -> Eltwise {
        Eltwise { kind: self, alpha, beta }
    }
}

/// A function of two numbers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BinaryKind {
    /// The sum.
    Add,
    /// The product.
    Mul,
    /// The greater.
    Max,
    /// The smaller.
    Min,
    /// The quotient.
    Div,
    /// The difference.
    Sub,
}

impl BinaryKind {
    /// Whether operands may change places.
    pub fn commutes(self) -> bool {
        !matches!(self, BinaryKind::Div | BinaryKind::Sub)
    }
}

/// Windows along the spatial axes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Windows {
    /// The distance between windows.
    pub strides: Vec<i64>,
    /// The distance between taps, from 1.
    pub dilation: Vec<i64>,
    /// Padding before and after.
    pub before: Vec<i64>,
    /// As above.
    pub after: Vec<i64>,
}

/// What a pool takes of a window.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PoolKind {
    /// The greatest element.
    Max,
    /// The mean, of padding too.
    MeanOfAll,
    /// The mean of what is no padding.
    Mean,
}

/// A primitive.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// Of data `[N, C, ...]` and weight `[O, I, ...]` or `[G, O, I, ...]`, and maybe a bias `[O]`.
    Convolution(Windows),
    /// The gradient of a convolution by its data, in the same words.
    Deconvolution(Windows),
    /// Of data `[M, K]` and weight `[N, K]`, and maybe a bias `[N]`.
    InnerProduct,
    /// Of `[..., M, K]` and `[..., K, N]`, and maybe a bias `[1..., N]`.
    Matmul,
    /// Of data `[N, C, ...]`.
    Pool {
        /// What it takes.
        kind: PoolKind,
        /// The extents of a window.
        kernel: Vec<i64>,
        /// Where windows are.
        windows: Windows,
    },
    /// Of one tensor.
    Eltwise(Eltwise),
    /// Of two tensors of as many axes, the second of extent 1 where it is repeated.
    Binary(BinaryKind),
    /// Along an axis.
    Softmax {
        /// The axis.
        axis: usize,
        /// Its logarithm instead.
        log: bool,
    },
    /// Any number of tensors, one after another along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// The same numbers in another type.
    Convert,
}

/// What is done to a primitive's result before it is written.
#[derive(Clone, PartialEq, Debug)]
pub enum Post {
    /// A function of each element.
    Eltwise(Eltwise),
    /// A function of each element and one of another tensor, as of [`Kind::Binary`].
    Binary(BinaryKind, ValueId),
}

/// A factor as the quantized operators multiply with it: `x * 2^left * significand`, rounded while shifted right.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fixed {
    /// The significand, of 31 bits.
    pub significand: i64,
    /// Bits to the left, before.
    pub left: u32,
    /// Bits to the right, after; at least 1.
    pub right: u32,
}

/// How a requantization multiplies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rescale {
    /// Subtracted before: one number, or one per channel.
    pub zero: Vec<i64>,
    /// The factors: one, or one per channel. `None`: the scales are the same, and nothing is multiplied.
    pub factor: Option<Vec<Fixed>>,
    /// Whether halves go away from zero instead of up.
    pub away: bool,
    /// Added after.
    pub to_zero: i64,
}

/// Integer arithmetic that the library's conversions through f32 would not do exactly: own code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Integer {
    /// `int32` tensors of the result's shape, which are summed, wrapping; the bool says to subtract.
    pub terms: Vec<(ValueId, bool)>,
    /// Vectors of `int32` along the channel axis, added likewise.
    pub per_channel: Vec<ValueId>,
    /// Quantized tensors of the result's shape, each rescaled by itself, then summed with the rest, and `offset` with them.
    pub rescaled: Vec<(ValueId, Rescale)>,
    /// What the sum of terms is rescaled by, where it is.
    pub rescale: Option<Rescale>,
    /// Added to the sum of what was rescaled.
    pub offset: i64,
    /// The range of the result, within its type's.
    pub range: (i64, i64),
    /// The channel axis.
    pub axis: usize,
}

/// What a step does.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// A primitive and what follows it.
    Primitive(Kind, Vec<Post>),
    /// An exact integer product: an int8 convolution or inner product with sums in `int32`, whatever their size. The zero
    /// point is subtracted from the data.
    Exact(Kind, i64),
    /// Own code.
    Integer(Integer),
    /// The same elements with the axes in another order: axis `k` is axis `axes[k]` of what is read.
    Permute(Vec<usize>),
    /// The same elements, row by row, under other extents.
    Reshape,
}

/// A step.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// What it does.
    pub what: What,
    /// What it reads, without the operands of what follows.
    pub reads: Vec<ValueId>,
    /// What it makes.
    pub makes: ValueId,
}

/// A region: values, and steps in an order in which they can run.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    /// The tensors.
    pub values: Vec<Value>,
    /// The steps.
    pub steps: Vec<Step>,
    /// Which tensors the caller gives, row by row.
    pub inputs: Vec<ValueId>,
    /// Which tensors the caller wants, row by row.
    pub outputs: Vec<ValueId>,
}

impl Step {
    /// All that it reads.
    pub fn all_reads(&self) -> Vec<ValueId> {
        let mut all = self.reads.clone();
        match &self.what {
            What::Primitive(_, posts) => all.extend(posts.iter().filter_map(|p| match p {
                Post::Binary(_, v) => Some(*v),
                Post::Eltwise(_) => None,
            })),
            What::Integer(i) => {
                all.extend(i.terms.iter().map(|t| t.0));
                all.extend(&i.per_channel);
                all.extend(i.rescaled.iter().map(|r| r.0));
            }
            What::Exact(..) | What::Permute(_) | What::Reshape => {}
        }
        all
    }
}

impl Graph {
    /// A tensor that a step will make, or that the caller gives.
    pub fn value(&mut self, shape: &[i64], dtype: DType) -> ValueId {
        self.values.push(Value { shape: shape.to_vec(), dtype, data: None });
        ValueId(self.values.len() - 1)
    }

    /// A tensor that is known, under these extents.
    pub fn constant(&mut self, data: Tensor, shape: &[i64]) -> ValueId {
        self.values.push(Value { shape: shape.to_vec(), dtype: data.dtype(), data: Some(data) });
        ValueId(self.values.len() - 1)
    }

    /// A tensor's shape.
    pub fn shape(&self, v: ValueId) -> &[i64] {
        &self.values[v.0].shape
    }

    /// A tensor's type.
    pub fn dtype(&self, v: ValueId) -> DType {
        self.values[v.0].dtype
    }

    /// Adds a step; what it makes.
    pub fn step(&mut self, what: What, reads: Vec<ValueId>, shape: &[i64], dtype: DType) -> ValueId {
        let makes = self.value(shape, dtype);
        self.steps.push(Step { what, reads, makes });
        makes
    }

    /// How often each tensor is read; outputs count as read.
    fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        self.steps.iter().flat_map(Step::all_reads).chain(self.outputs.iter().copied()).for_each(|v| uses[v.0] += 1);
        uses
    }

    /// Elementwise steps join the primitive whose result only they read; sums with a vector along the channels become biases.
    /// Numbers stay what they are, but that intermediate results are not rounded to a short type.
    pub fn fuse(&mut self) {
        let mut uses = self.uses();
        // By what it makes: the step, while it waits for a place.
        let mut done: Vec<Step> = Vec::new();
        for step in std::mem::take(&mut self.steps) {
            let Some((at, post)) = self.joins(&step, &done, &uses) else {
                done.push(step);
                continue;
            };
            let mut root = done.remove(at);
            uses[root.makes.0] = 0;
            root.makes = step.makes;
            let What::Primitive(kind, posts) = &mut root.what else { unreachable!("only primitives are joined") };
            match bias(kind, posts, &post, &root.reads, &self.values) {
                Some(shape) => {
                    let Post::Binary(_, v) = post else { unreachable!("a bias is a sum") };
                    root.reads.push(self.flat(v, &shape, &mut done));
                }
                None => posts.push(post),
            }
            done.push(root);
        }
        self.steps = done;
    }

    /// A tensor under other extents of as many elements.
    fn flat(&mut self, v: ValueId, shape: &[i64], steps: &mut Vec<Step>) -> ValueId {
        if self.shape(v) == shape {
            return v;
        }
        if let Some(data) = &self.values[v.0].data {
            return self.constant(data.clone(), shape);
        }
        let makes = self.value(shape, self.dtype(v));
        steps.push(Step { what: What::Reshape, reads: vec![v], makes });
        makes
    }

    /// The primitive that a step can join, and as what.
    fn joins(&self, step: &Step, done: &[Step], uses: &[usize]) -> Option<(usize, Post)> {
        let What::Primitive(kind, posts) = &step.what else { return None };
        if !posts.is_empty() {
            return None;
        }
        let root_of = |v: ValueId| {
            let at = done.iter().position(|s| s.makes == v)?;
            let What::Primitive(kind, posts) = &done[at].what else { return None };
            // Not transposed convolutions: with many channels, version 3.2 computes what follows them, a bias too, more than once.
            let takes = matches!(kind, Kind::Convolution(_) | Kind::InnerProduct | Kind::Matmul | Kind::Binary(_));
            let same = self.shape(v) == self.shape(step.makes) && self.dtype(v) == self.dtype(step.makes);
            let float = matches!(self.dtype(v), DType::F32 | DType::BF16);
            (takes && same && float && uses[v.0] == 1 && posts.len() < MOST_POSTS).then_some(at)
        };
        match kind {
            Kind::Eltwise(e) => root_of(step.reads[0]).map(|at| (at, Post::Eltwise(*e))),
            Kind::Binary(b) => {
                let [x, y] = [step.reads[0], step.reads[1]];
                let first = root_of(x).map(|at| (at, Post::Binary(*b, y)));
                let second = || match b.commutes() {
                    true => root_of(y).map(|at| (at, Post::Binary(*b, x))),
                    false => None,
                };
                // The later one, of two: the other is there by then.
                match (first, second()) {
                    (Some(a), Some(b)) => Some(if a.0 > b.0 { a } else { b }),
                    (a, b) => a.or(b),
                }
            }
            _ => None,
        }
    }
}

/// The most operations that follow a primitive.
const MOST_POSTS: usize = 6;

/// The shape of the bias that an operation after a primitive is, where it is the first one and adds a vector along the channels.
fn bias(kind: &Kind, posts: &[Post], post: &Post, reads: &[ValueId], values: &[Value]) -> Option<Vec<i64>> {
    let Post::Binary(BinaryKind::Add, v) = post else { return None };
    if !posts.is_empty() || reads.len() != 2 {
        return None;
    }
    let shape = &values[v.0].shape;
    let axis = match kind {
        Kind::Convolution(_) | Kind::InnerProduct => 1,
        Kind::Matmul => shape.len() - 1,
        _ => return None,
    };
    let weight = &values[reads[1].0].shape;
    let channels = match kind {
        // The weight may have an axis of groups before its outputs.
        Kind::Convolution(_) => {
            let grouped = weight.len() > shape.len();
            if grouped { weight[0] * weight[1] } else { weight[0] }
        }
        Kind::InnerProduct => weight[0],
        _ => *weight.last()?,
    };
    let only = shape.iter().enumerate().all(|(k, &n)| if k == axis { n == channels } else { n == 1 });
    only.then(|| if *kind == Kind::Matmul { shape.clone() } else { vec![channels] })
}
