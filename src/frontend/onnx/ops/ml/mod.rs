//! Classical models, the domain `ai.onnx.ml`: features, linear models, trees, support vectors.

pub(super) mod encode;
pub(super) mod features;
pub(super) mod linear;
pub(super) mod support;
pub(super) mod trees;

use super::{Converter, Row, row_of};
use crate::{
    frontend::{
        Convert,
        onnx::{
            elem::Elem,
            importer::{Tens, Val},
            node::Node,
            tensors,
        },
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// An operator of the domain.
const fn ml(op: &'static str, convert: Converter) -> Row {
    row_of("ai.onnx.ml", op, convert)
}

/// What becomes of scores in the end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

/// Transforms by the numbers that `TreeEnsemble` has for them, with their names.
const TRANSFORMS: [(&str, Transform); 5] = [
    ("NONE", Transform::None),
    ("SOFTMAX", Transform::Softmax),
    ("LOGISTIC", Transform::Logistic),
    ("SOFTMAX_ZERO", Transform::SoftmaxZero),
    ("PROBIT", Transform::Probit),
];

impl Transform {
    /// That of the node's attribute, a name.
    fn of(n: &Node) -> Convert<Transform> {
        let name = n.text("post_transform", "NONE")?;
        let found = TRANSFORMS.iter().find(|t| t.0 == name);
        found.map(|t| t.1).ok_or_else(|| n.refuse(format!("the transform `{name}` is not supported")))
    }

    /// Scores, (rows, several), as they are given.
    fn of_several(self, n: &mut Node, x: ExprId) -> Convert {
        match self {
            Transform::None => Ok(x),
            Transform::Softmax => n.op("nn.softmax", &[x], &[("axis", (-1).into())]),
            Transform::Logistic => n.un("sigmoid", x),
            Transform::SoftmaxZero => {
                // What is zero takes no part, and stays next to nothing.
                let high = n.reduce("max", x, &[1], true)?;
                let less = n.sub(x, high)?;
                let e = n.un("exp", less)?;
                let magnitude = n.un("abs", x)?;
                let some = n.with("greater", magnitude, 1e-7)?;
                let zero = n.c(x, 0.0)?;
                let part = n.select(some, e, zero)?;
                let sum = n.reduce("sum", part, &[1], true)?;
                let below = n.un("negative", high)?;
                let below = n.un("exp", below)?;
                let rest = n.mul(x, below)?;
                let all = n.select(some, e, rest)?;
                n.div(all, sum)
            }
            Transform::Probit => probit(n, x),
        }
    }
}

/// The inverse of the normal distribution, by Winitzki's formula for the inverse of erf, as ONNX Runtime computes it.
fn probit(n: &mut Node, x: ExprId) -> Convert {
    const A: f64 = 0.147;
    let double = n.with("multiply", x, 2.0)?;
    let y = n.with("subtract", double, 1.0)?;
    let sign = n.un("sign", y)?;
    let squares = n.mul(y, y)?;
    let rest = n.from("subtract", 1.0, squares)?;
    let log = n.un("log", rest)?;
    let half = n.with("multiply", log, 0.5)?;
    let v = n.with("add", half, 2.0 / (std::f64::consts::PI * A))?;
    let v2 = n.with("multiply", log, 1.0 / A)?;
    let vv = n.mul(v, v)?;
    let inner = n.sub(vv, v2)?;
    let root = n.un("sqrt", inner)?;
    let outer = n.sub(root, v)?;
    let erf = n.un("sqrt", outer)?;
    let erf = n.mul(sign, erf)?;
    n.with("multiply", erf, std::f64::consts::SQRT_2)
}

/// A matrix of floats: a vector is one row, and integers become float32.
fn matrix(n: &mut Node) -> Convert {
    let x = n.x(0)?;
    let x = if n.rank(x)? == 1 { n.expand(x, 0, 1)? } else { x };
    n.ensure(n.rank(x)? == 2, || "its input should be rows of features".into())?;
    if n.dtype(x)? == DType::F64 { Ok(x) } else { n.cast(x, DType::F32) }
}

/// A constant of floats.
fn floats(n: &mut Node, dtype: DType, shape: &[usize], values: &[f64]) -> ExprId {
    let t = Tensor::from_f64_fn(dtype, shape, |i| values[i]);
    if t.len() > 64 { n.im.b.weight(&n.proto.output[0], t) } else { n.constant(t) }
}

/// The code points of a text.
fn points(text: &str) -> Vec<u32> {
    text.chars().map(u32::from).collect()
}

/// A constant vector of texts.
fn texts(n: &mut Node, all: &[String]) -> ExprId {
    let all: Vec<Vec<u32>> = all.iter().map(|s| points(s)).collect();
    n.constant(tensors::of_points(&[all.len()], &all))
}

/// What classes are called.
struct Labels {
    names: ExprId,
    elem: Elem,
    count: usize,
}

impl Labels {
    /// Those that the node's attributes give: integers, or texts.
    fn of(n: &mut Node, integers: &str, strings: &str) -> Convert<Labels> {
        if let Some(names) = n.texts(strings)?.filter(|l| !l.is_empty()) {
            return Ok(Labels { names: texts(n, &names), elem: Elem::Text, count: names.len() });
        }
        let names = n.ints(integers)?.unwrap_or_default();
        n.ensure(!names.is_empty(), || "its classes have no labels".into())?;
        Ok(Labels { names: n.im.b.ints(&names), elem: Elem::Plain(DType::I64), count: names.len() })
    }

    /// The labels of classes by their numbers.
    fn at(&self, n: &mut Node, classes: ExprId) -> Convert<Val> {
        Ok(Val::Tensor(Tens { e: n.take(self.names, classes, 0)?, elem: self.elem }))
    }

    /// Of two labels the second where a score, (rows, 1), is above a bound, else the first.
    fn above(&self, n: &mut Node, score: ExprId, bound: f64) -> Convert<Val> {
        let above = n.with("greater", score, bound)?;
        let class = n.cast(above, DType::I64)?;
        let class = n.squeeze(class, &[1])?;
        self.at(n, class)
    }
}

/// The labels of the greatest of several scores, and the scores as they are given.
fn classified(n: &mut Node, labels: &Labels, scores: ExprId, transform: Transform) -> Convert<Vec<Val>> {
    let best = n.op("argmax", &[scores], &[("axis", [1].into())])?;
    let label = labels.at(n, best)?;
    let shown = transform.of_several(n, scores)?;
    let shown = n.cast(shown, DType::F32)?;
    Ok(vec![label, n.out(shown)?])
}

/// The same where one score, (rows, 1), decides between two classes: the second one wins above `bound`. Scores that are probabilities
/// add up to 1; others differ by their sign.
fn of_one_score(
    n: &mut Node,
    labels: &Labels,
    score: ExprId,
    transform: Transform,
    bound: f64,
    probability: bool,
) -> Convert<Vec<Val>> {
    let label = labels.above(n, score, bound)?;
    let (no, yes) = match (transform, probability) {
        (Transform::Probit, _) => return Err(n.refuse("the transform `PROBIT` of two classes is not supported")),
        (Transform::Logistic, _) => {
            let no = n.un("negative", score)?;
            (n.un("sigmoid", no)?, n.un("sigmoid", score)?)
        }
        (_, true) => (n.from("subtract", 1.0, score)?, score),
        (_, false) => (n.un("negative", score)?, score),
    };
    let shown = n.concat(&[no, yes], 1)?;
    let shown = n.cast(shown, DType::F32)?;
    Ok(vec![label, n.out(shown)?])
}
