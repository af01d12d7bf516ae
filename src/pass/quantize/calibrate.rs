//! Scales and zero points of layers' operands, from samples.

use hashbrown::HashMap;

use super::{
    backend::Backend,
    layers::Layer,
    options::Options,
    ranges::{Method, Seen, params},
    sites::{Site, observing},
};
use crate::{
    diag::Refused,
    infer::TypedModule,
    ir::{AttrValue, Expr, ExprId},
    tensor::{DType, Tensor},
};

/// The operands of the chosen layers with their scales: weights (which are constants) by their limits, others by the method.
pub(super) fn sites(
    m: &TypedModule,
    layers: &[Layer],
    chosen: &[usize],
    options: &Options,
    runs: &[Vec<Tensor>],
    backend: &dyn Backend,
) -> Result<Vec<Site>, Refused> {
    let operands: Vec<(usize, usize, ExprId)> = chosen
        .iter()
        .flat_map(|&n| {
            let args = m.op_call(layers[n].call).map_or(&[][..], |(_, args, _)| args);
            args.iter().take(2).enumerate().map(move |(k, &a)| (n, k, a))
        })
        .collect();
    let constant = |id: ExprId| match &m[id] {
        Expr::Constant(t) => Some(t),
        _ => None,
    };
    let mut watched: Vec<ExprId> = operands.iter().map(|o| o.2).filter(|&a| constant(a).is_none()).collect();
    watched.sort_unstable();
    watched.dedup();
    let seen = look(m, &watched, options.method, runs, backend)?;
    operands
        .into_iter()
        .map(|(layer, operand, id)| {
            let (scale, zero_point, axis, dtype) = match constant(id) {
                Some(weight) => weight_params(m, &layers[layer], operand, weight, options)?,
                None => {
                    let dtype = options.dtype_input;
                    let range = seen[&id].range(options.method, options.symmetric, dtype == DType::U8);
                    let p = params(range, options.symmetric, dtype)?;
                    (Tensor::scalar(p.scale), Tensor::scalar(p.zero_point), -1, dtype)
                }
            };
            let name = layers[layer].names.first().cloned().unwrap_or_else(|| "".into());
            let call = layers[layer].call;
            Ok(Site { layer, name, call, operand, scale, zero_point, axis, dtype, error: None })
        })
        .collect()
}

/// What values of the program are on the samples. Where the method does not look, nothing runs.
fn look(
    m: &TypedModule,
    watched: &[ExprId],
    method: Method,
    runs: &[Vec<Tensor>],
    backend: &dyn Backend,
) -> Result<HashMap<ExprId, Seen>, Refused> {
    let mut seen: Vec<Seen> = watched.iter().map(|_| Seen::nothing()).collect();
    if runs.is_empty() || watched.is_empty() {
        // A range for all needs to see nothing but that there may be something.
        seen.iter_mut().for_each(|s| (s.min, s.max) = (-1.0, 1.0));
        return Ok(watched.iter().copied().zip(seen).collect());
    }
    let program = backend.prepare(&observing(m.module(), watched))?;
    for second in [false, true].into_iter().take(if method.needs_histogram() { 2 } else { 1 }) {
        for inputs in runs {
            for (seen, value) in seen.iter_mut().zip(program.run(inputs)?) {
                match second {
                    false => seen.limits(value.as_slice::<f32>()),
                    true => seen.distribution(value.as_slice::<f32>()),
                }
            }
        }
    }
    Ok(watched.iter().copied().zip(seen).collect())
}

/// The symmetric scale of a weight, of the whole tensor or for each of its output channels.
fn weight_params(
    m: &TypedModule,
    layer: &Layer,
    operand: usize,
    weight: &Tensor,
    options: &Options,
) -> Result<(Tensor, Tensor, i64, DType), Refused> {
    let axis = if options.per_channel && operand == 1 { channel_axis(m, layer) } else { None };
    let channels = axis.map_or(1, |k| weight.shape()[k]);
    let inner: usize = axis.map_or(1, |k| weight.shape()[k + 1..].iter().product());
    let mut seen: Vec<Seen> = (0..channels).map(|_| Seen::nothing()).collect();
    for (i, v) in weight.as_slice::<f32>().iter().enumerate() {
        seen[i / inner.max(1) % channels].limits(std::slice::from_ref(v));
    }
    let scales = seen
        .iter()
        .map(|s| Ok(params(s.range(Method::MinMax, true, false), true, DType::I8)?.scale))
        .collect::<Result<Vec<f32>, Refused>>()?;
    Ok(match axis {
        // Where the axis is, is as good as -1 for a single number.
        None => (Tensor::scalar(scales[0]), Tensor::scalar(0i32), -1, DType::I8),
        Some(k) => (
            Tensor::from_slice(&[channels], &scales),
            Tensor::from_slice(&[channels], &vec![0i32; channels]),
            k as i64,
            DType::I8,
        ),
    })
}

/// The axis of a weight that its layer's output channels are on, where integer kernels take a scale for each.
fn channel_axis(m: &TypedModule, layer: &Layer) -> Option<usize> {
    let (op, _, attrs) = m.op_call(layer.call)?;
    match op.op().name() {
        "nn.dense" => Some(0),
        "nn.conv2d" => {
            let layout = match attrs.get("kernel_layout") {
                Some(AttrValue::Str(s)) if !s.as_str().is_empty() => s.as_str().to_owned(),
                _ => "OIHW".to_owned(),
            };
            let groups = attrs.get("groups").and_then(AttrValue::as_int).unwrap_or(1);
            // In groups, other layouts count channels within a group.
            let whole = groups == 1 && layout.chars().all(char::is_alphabetic) || layout == "OIHW";
            layout.find('O').filter(|_| whole)
        }
        _ => None,
    }
}
