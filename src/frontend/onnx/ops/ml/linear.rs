//! Linear models.

use super::{Labels, Transform, classified, floats, matrix, ml, of_one_score};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node, ops::Row},
    },
    ir::ExprId,
    tensor::DType,
};

pub(in crate::frontend::onnx::ops) const OPS: &[Row] =
    &[ml("LinearClassifier", classifier), ml("LinearRegressor", regressor)];

/// A score for each row of coefficients: (rows, scores).
fn scores(n: &mut Node, count: Option<usize>) -> Convert<(ExprId, usize)> {
    let x = matrix(n)?;
    let x = n.cast(x, DType::F32)?;
    let coefficients = n.floats("coefficients")?.unwrap_or_default();
    let intercepts = n.floats("intercepts")?.unwrap_or_default();
    // How many features there are, the number of scores says where the input's shape does not.
    let count = count.or(Some(intercepts.len()).filter(|&c| c > 0));
    let width = match (n.dims(x)?[1], count) {
        (Some(width), _) => width.max(1) as usize,
        (None, Some(count)) => coefficients.len() / count.max(1),
        (None, None) => return Err(n.refuse("neither its input nor its intercepts say how many features it has")),
    };
    let count = count.unwrap_or(coefficients.len() / width.max(1)).max(1);
    n.ensure(coefficients.len() == count * width, || {
        format!("{} coefficients are not {count} rows for {width} features", coefficients.len())
    })?;
    let w = floats(n, DType::F32, &[count, width], &coefficients);
    let mut y = n.op("nn.dense", &[x, w], &[("units", (count as i64).into())])?;
    if !intercepts.is_empty() {
        n.ensure(intercepts.len() == count, || format!("it has {} intercepts for {count}", intercepts.len()))?;
        let b = floats(n, DType::F32, &[count], &intercepts);
        y = n.add(y, b)?;
    }
    Ok((y, count))
}

fn regressor(n: &mut Node) -> Convert<Vec<Val>> {
    let targets = usize::try_from(n.int("targets", 1)?).unwrap_or(0);
    let (y, _) = scores(n, Some(targets))?;
    let y = Transform::of(n)?.of_several(n, y)?;
    n.one(y)
}

fn classifier(n: &mut Node) -> Convert<Vec<Val>> {
    let labels = Labels::of(n, "classlabels_ints", "classlabels_strings")?;
    let transform = Transform::of(n)?;
    let (y, count) = scores(n, None)?;
    if count == 1 && labels.count == 2 {
        return of_one_score(n, &labels, y, transform, 0.0, true);
    }
    n.ensure(count == labels.count, || format!("it has {count} scores for {} classes", labels.count))?;
    classified(n, &labels, y, transform)
}
