//! Support vector machines.

use super::{Labels, Transform, classified, floats, matrix, ml};
use crate::{
    frontend::{
        Convert,
        onnx::{
            importer::Val,
            node::Node,
            ops::{
                Row,
                repeat::{Captured, Iteration, repeated},
            },
        },
    },
    ir::ExprId,
    tensor::{DType, Tensor},
};

pub(in crate::frontend::onnx::ops) const OPS: &[Row] =
    &[ml("SVMClassifier", classifier), ml("SVMRegressor", regressor)];

/// How alike each row is to each vector, (rows, vectors), by the node's kernel.
fn kernel(n: &mut Node, x: ExprId, vectors: &[f64], width: usize) -> Convert {
    let name = n.text("kernel_type", "LINEAR")?;
    let numbers = n.floats("kernel_params")?.unwrap_or_default();
    let number = |i: usize| numbers.get(i).copied().unwrap_or(0.0);
    n.ensure(width > 0 && vectors.len().is_multiple_of(width), || {
        format!("{} numbers are no vectors of {width}", vectors.len())
    })?;
    let count = vectors.len() / width;
    let v = floats(n, DType::F32, &[count, width], vectors);
    if name == "RBF" {
        let (x, v) = (n.expand(x, 1, 1)?, n.expand(v, 0, 1)?);
        let less = n.sub(x, v)?;
        let squares = n.mul(less, less)?;
        let sum = n.reduce("sum", squares, &[2], false)?;
        let scaled = n.with("multiply", sum, -number(0))?;
        return n.un("exp", scaled);
    }
    let product = n.op("nn.dense", &[x, v], &[("units", (count as i64).into())])?;
    if name == "LINEAR" {
        return Ok(product);
    }
    let scaled = n.with("multiply", product, number(0))?;
    let moved = n.with("add", scaled, number(1))?;
    match name.as_str() {
        "POLY" => n.with("power", moved, number(2)),
        "SIGMOID" => n.un("tanh", moved),
        other => Err(n.refuse(format!("the kernel `{other}` is not supported"))),
    }
}

fn regressor(n: &mut Node) -> Convert<Vec<Val>> {
    let x = matrix(n)?;
    let x = n.cast(x, DType::F32)?;
    let width = n.extent(x, 1)?.max(1) as usize;
    let (vectors, coefficients) =
        (n.floats("support_vectors")?.unwrap_or_default(), n.floats("coefficients")?.unwrap_or_default());
    let rho = n.floats("rho")?.and_then(|r| r.first().copied()).unwrap_or(0.0);
    let sum = if n.int("n_supports", 0)? > 0 {
        let k = kernel(n, x, &vectors, width)?;
        n.ensure(coefficients.len() * width == vectors.len(), || "it has other coefficients than vectors".into())?;
        let c = floats(n, DType::F32, &[1, coefficients.len()], &coefficients);
        n.op("nn.dense", &[k, c], &[("units", 1.into())])?
    } else {
        n.ensure(coefficients.len() == width, || format!("it has {} coefficients", coefficients.len()))?;
        kernel(n, x, &coefficients, width)?
    };
    let mut y = n.with("add", sum, rho)?;
    if n.flag("one_class", false)? {
        let above = n.with("greater", y, 0.0)?;
        let (one, minus) = (n.c(y, 1.0)?, n.c(y, -1.0)?);
        y = n.select(above, one, minus)?;
    }
    let y = Transform::of(n)?.of_several(n, y)?;
    n.one(y)
}

fn classifier(n: &mut Node) -> Convert<Vec<Val>> {
    let x = matrix(n)?;
    let x = n.cast(x, DType::F32)?;
    let labels = Labels::of(n, "classlabels_ints", "classlabels_strings")?;
    let transform = Transform::of(n)?;
    let width = n.extent(x, 1)?.max(1) as usize;
    let list = |n: &Node, name: &str| -> Convert<Vec<f64>> { Ok(n.floats(name)?.unwrap_or_default()) };
    let (vectors, coefficients) = (list(n, "support_vectors")?, list(n, "coefficients")?);
    let (rho, of_class) = (list(n, "rho")?, n.ints("vectors_per_class")?.unwrap_or_default());
    let sigmoids = [list(n, "prob_a")?, list(n, "prob_b")?];
    if of_class.iter().sum::<i64>() == 0 {
        // Each class has a vector of its own.
        n.ensure(coefficients.len() == labels.count * width && labels.count > 2, || {
            format!("{} coefficients of {} classes are not supported", coefficients.len(), labels.count)
        })?;
        let k = kernel(n, x, &coefficients, width)?;
        let scores = n.with("add", k, rho.first().copied().unwrap_or(0.0))?;
        return classified(n, &labels, scores, transform);
    }
    let (classes, count) = (labels.count, vectors.len() / width);
    let pairs = classes * (classes - 1) / 2;
    let fits = of_class.len() == classes
        && of_class.iter().all(|&c| c >= 0)
        && of_class.iter().sum::<i64>() == count as i64
        && coefficients.len() == (classes - 1) * count
        && rho.len() >= pairs;
    n.ensure(fits && (classes > 2 || !sigmoids[0].is_empty()), || {
        format!("its vectors and coefficients are not those of {classes} classes")
    })?;
    let k = kernel(n, x, &vectors, width)?;
    let first: Vec<usize> =
        of_class.iter().scan(0, |at, &c| Some(std::mem::replace(at, *at + c as usize))).chain([count]).collect();
    // Each pair of classes decides by the vectors of both.
    let mut rows = vec![0.0; pairs * count];
    let mut votes = [vec![0.0; pairs * classes], vec![0.0; pairs * classes]];
    let mut p = 0;
    for i in 0..classes {
        for j in i + 1..classes {
            for s in first[i]..first[i + 1] {
                rows[p * count + s] = coefficients[(j - 1) * count + s];
            }
            for s in first[j]..first[j + 1] {
                rows[p * count + s] = coefficients[i * count + s];
            }
            votes[0][j * pairs + p] = 1.0;
            votes[1][i * pairs + p] = 1.0;
            p += 1;
        }
    }
    let w = floats(n, DType::F32, &[pairs, count], &rows);
    let sums = n.op("nn.dense", &[k, w], &[("units", (pairs as i64).into())])?;
    let rho = floats(n, DType::F32, &[pairs], &rho[..pairs]);
    let sums = n.add(sums, rho)?;
    let above = n.with("greater", sums, 0.0)?;
    let above = n.cast(above, DType::F32)?;
    let below = n.from("subtract", 1.0, above)?;
    let mut total = None;
    for (side, won) in [(0, below), (1, above)] {
        let v = floats(n, DType::F32, &[classes, pairs], &votes[side]);
        let t = n.op("nn.dense", &[won, v], &[("units", (classes as i64).into())])?;
        total = Some(match total {
            None => t,
            Some(other) => n.add(other, t)?,
        });
    }
    let total = total.ok_or_else(|| n.refuse("it has no classes"))?;
    let best = n.op("argmax", &[total], &[("axis", [1].into())])?;
    let label = labels.at(n, best)?;
    let scores = if sigmoids[0].is_empty() { sums } else { probabilities(n, sums, classes, &sigmoids)? };
    let shown = transform.of_several(n, scores)?;
    Ok(vec![label, n.out(shown)?])
}

/// Probabilities of classes from what pairs decided, (rows, pairs): sigmoids make these probabilities, which Wu's, Lin's and Weng's
/// second method couples. Iterated as libsvm does, at most 100 times, until a row's error is small.
fn probabilities(n: &mut Node, sums: ExprId, classes: usize, sigmoids: &[Vec<f64>; 2]) -> Convert {
    let pairs = classes * (classes - 1) / 2;
    n.ensure(sigmoids.iter().all(|s| s.len() == pairs), || format!("it has other sigmoids than {pairs} pairs"))?;
    let (a, b) = (floats(n, DType::F32, &[pairs], &sigmoids[0]), floats(n, DType::F32, &[pairs], &sigmoids[1]));
    let scaled = n.mul(sums, a)?;
    let moved = n.add(scaled, b)?;
    let below = n.un("negative", moved)?;
    let first = n.un("sigmoid", below)?;
    let first = n.op("clip", &[first], &[("a_min", 1e-7.into()), ("a_max", (1.0 - 1e-7).into())])?;
    // r[i][j] is the probability of class i against class j.
    let square = classes * classes;
    let mut pair = vec![0i64; square];
    let mut of_pair = 0;
    for i in 0..classes {
        for j in i + 1..classes {
            pair[i * classes + j] = of_pair;
            pair[j * classes + i] = of_pair;
            of_pair += 1;
        }
    }
    let k = classes as i64;
    let mask = |holds: fn(usize, usize) -> bool| {
        Tensor::from_f64_fn(DType::F32, &[classes, classes], |at| f64::from(holds(at / classes, at % classes)))
    };
    let [above, beneath, diagonal, rest] =
        [mask(|i, j| i < j), mask(|i, j| i > j), mask(|i, j| i == j), mask(|i, j| i != j)].map(|t| n.constant(t));
    let places = n.im.b.ints(&pair);
    let spread = n.take(first, places, 1)?;
    let spread = n.reshape(spread, &[-1, k, k])?;
    let other = n.from("subtract", 1.0, spread)?;
    let (upper, lower) = (n.mul(spread, above)?, n.mul(other, beneath)?);
    let r = n.add(upper, lower)?;
    let turned = n.transpose(r, &[0, 2, 1])?;
    let products = n.mul(turned, r)?;
    let products = n.mul(products, rest)?;
    let squares = n.mul(r, r)?;
    let own = n.reduce("sum", squares, &[1], false)?;
    let column = n.expand(own, 2, 1)?;
    let column = n.mul(column, diagonal)?;
    let q = n.sub(column, products)?;
    let start = n.reduce("sum", own, &[1], true)?;
    let start = n.with("multiply", start, 0.0)?;
    let start = n.with("add", start, 1.0 / classes as f64)?;
    let ones = n.constant(Tensor::from_f64_fn(DType::F32, &[1, classes], |_| 1.0));
    let start = n.mul(start, ones)?;
    let limit = n.im.b.scalar(DType::I64, 100.0);
    let carried = vec![n.out(start)?];
    let (state, _) = repeated(n, Some(limit), None, carried, &mut |n, _, _, carried| {
        let mut outside = Captured::default();
        let (q, own) = (outside.take(n, q), outside.take(n, own));
        let was = carried.iter().flat_map(Val::tensors).next().ok_or_else(|| n.refuse("nothing is carried"))?.e;
        let line = n.expand(was, 1, 1)?;
        let parts = n.mul(q, line)?;
        let mut qp = n.reduce("sum", parts, &[2], false)?;
        let parts = n.mul(was, qp)?;
        let mut pqp = n.reduce("sum", parts, &[1], true)?;
        let error = n.sub(qp, pqp)?;
        let error = n.un("abs", error)?;
        let error = n.reduce("max", error, &[1], true)?;
        let open = n.with("greater_equal", error, 0.005 / classes as f64)?;
        let mut p = was;
        for t in 0..k {
            let (qpt, qtt) = (n.slice(qp, 1, t, t + 1)?, n.slice(own, 1, t, t + 1)?);
            let step = n.sub(pqp, qpt)?;
            let step = n.div(step, qtt)?;
            let here = n.constant(Tensor::from_f64_fn(DType::F32, &[1, classes], |i| f64::from(i as i64 == t)));
            let (moved, whole) = (n.mul(step, here)?, n.with("add", step, 1.0)?);
            p = n.add(p, moved)?;
            p = n.div(p, whole)?;
            let (twice, part) = (n.with("multiply", qpt, 2.0)?, n.mul(step, qtt)?);
            let slope = n.add(part, twice)?;
            let change = n.mul(step, slope)?;
            pqp = n.add(pqp, change)?;
            pqp = n.div(pqp, whole)?;
            pqp = n.div(pqp, whole)?;
            let row = n.index(q, 1, t)?;
            let change = n.mul(step, row)?;
            qp = n.add(qp, change)?;
            qp = n.div(qp, whole)?;
        }
        let next = n.select(open, p, was)?;
        let again = n.reduce("any", open, &[0, 1], false)?;
        Ok(Iteration { again, state: vec![n.out(next)?], collect: Vec::new(), captures: outside.into_captures() })
    })?;
    match state.first() {
        Some(Val::Tensor(t)) => Ok(t.e),
        _ => Err(n.refuse("nothing is carried")),
    }
}
