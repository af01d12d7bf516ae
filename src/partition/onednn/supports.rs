//! Which calls the library takes by themselves.

use super::words::{axis, binary, dimensions, eltwise, known, order, paddings, spatial, windows};
use crate::{
    ir::{Attrs, Type},
    runtime::onednn::Library,
    tensor::DType,
};

/// The most axes of a tensor: the library's fast kernels stop there.
const MOST_AXES: usize = 6;

/// Whether the library takes a call of an operator.
pub(super) fn supports(library: &Library, name: &str, attrs: &Attrs, args: &[Type], result: &Type) -> bool {
    let float = |d: DType| d == DType::F32 || d == DType::BF16 && library.has_bf16();
    let all_known = |t: &Type| {
        t.flatten().is_some_and(|all| {
            all.iter().all(|t| known(&Type::Tensor(t.clone())).is_some_and(|(s, _)| s.len() <= MOST_AXES))
        })
    };
    if args.is_empty() || !args.iter().all(all_known) || !all_known(result) {
        return false;
    }
    let first = args[0].flatten().unwrap_or_default();
    let Some(data) = first.first().map(|t| t.dtype) else { return false };
    let of = |i: usize| known(&args[i]).unwrap_or_default_shape();
    let out = result.flatten().and_then(|all| all.first().map(|t| t.dtype));
    let bytes = library.has_exact_bytes()
        && matches!(data, DType::U8 | DType::I8)
        && args.get(1).is_some_and(|w| known(w).is_some_and(|w| w.1 == DType::I8))
        && out == Some(DType::I32);
    let same_float = float(data)
        && args.iter().all(|a| a.flatten().is_some_and(|all| all.iter().all(|t| t.dtype == data)))
        && out.is_some_and(|o| o == data || data == DType::BF16 && o == DType::F32);
    match name {
        "nn.conv1d" | "nn.conv2d" | "nn.conv3d" => (same_float || bytes) && convolution(attrs, name, "OI"),
        "nn.conv1d_transpose" | "nn.conv2d_transpose" | "nn.conv3d_transpose" => {
            same_float && convolution(attrs, name, "OI")
        }
        "nn.dense" => (same_float || bytes) && of(0).len() >= 2 && of(1).len() == 2,
        "nn.matmul" => same_float && of(0).len() == 2 && of(1).len() == 2,
        "nn.batch_matmul" => same_float,
        _ if out != Some(data) && name != "cast" => false,
        "nn.max_pool1d" | "nn.max_pool2d" | "nn.max_pool3d" => {
            (float(data) || matches!(data, DType::U8 | DType::I8)) && pool(attrs, name)
        }
        "nn.avg_pool1d" | "nn.avg_pool2d" | "nn.avg_pool3d" => {
            // Whether windows that reach beyond the padding count it is defined by rounding up, which the library does not know.
            float(data) && pool(attrs, name) && !(attrs.bool("ceil_mode") && attrs.bool("count_include_pad"))
        }
        "nn.global_avg_pool1d"
        | "nn.global_avg_pool2d"
        | "nn.global_avg_pool3d"
        | "nn.global_max_pool1d"
        | "nn.global_max_pool2d"
        | "nn.global_max_pool3d" => float(data) && layout(attrs, name, "layout"),
        "nn.adaptive_avg_pool1d"
        | "nn.adaptive_avg_pool2d"
        | "nn.adaptive_avg_pool3d"
        | "nn.adaptive_max_pool1d"
        | "nn.adaptive_max_pool2d"
        | "nn.adaptive_max_pool3d" => {
            let one = attrs.opt_ints("output_size").is_some_and(|s| !s.is_empty() && s.iter().all(|&n| n == 1));
            float(data) && one && layout(attrs, name, "layout")
        }
        "nn.softmax" | "nn.log_softmax" => float(data) && axis(attrs.int("axis"), of(0).len()).is_some(),
        "nn.bias_add" => same_float,
        "nn.batch_norm" => same_float,
        "concatenate" => same_float && first.len() > 1,
        "reshape" | "nn.batch_flatten" | "expand_dims" | "squeeze" | "transpose" => float(data),
        "cast" => {
            let pair = [Some(data), out];
            float(data) && pair.contains(&Some(DType::F32)) && pair.contains(&Some(DType::BF16)) && library.has_bf16()
        }
        _ if binary(name).is_some() => {
            let Some((shape, _)) = known(result) else { return false };
            // The library repeats one operand, not both; and it knows no scalars alone.
            same_float && !shape.is_empty() && (of(0) == shape || of(1) == shape)
        }
        _ if eltwise(name, attrs).is_some() => float(data) && !of(0).is_empty(),
        _ => false,
    }
}

trait ShapeOr {
    fn unwrap_or_default_shape(self) -> Vec<i64>;
}

impl ShapeOr for Option<(Vec<i64>, DType)> {
    fn unwrap_or_default_shape(self) -> Vec<i64> {
        self.map(|k| k.0).unwrap_or_default()
    }
}

/// Whether layouts are plain and windows sensible.
pub(super) fn convolution(attrs: &Attrs, name: &str, weight: &str) -> bool {
    let Some(n) = dimensions(name) else { return false };
    let (data, kernel) = (format!("NC{}", spatial(n)), format!("{weight}{}", spatial(n)));
    let out = attrs.str("out_layout");
    order(attrs.str("data_layout"), &data).is_some()
        && order(attrs.str("kernel_layout"), &kernel).is_some()
        && (out.is_empty() || order(out, &data).is_some())
        && windows(attrs, n).is_some()
}

fn layout(attrs: &Attrs, name: &str, attr: &str) -> bool {
    dimensions(name).is_some_and(|n| order(attrs.str(attr), &format!("NC{}", spatial(n))).is_some())
}

fn pool(attrs: &Attrs, name: &str) -> bool {
    let Some(n) = dimensions(name) else { return false };
    let size = super::words::per_axis(&attrs.ints("pool_size"), n);
    let Some((size, (before, after))) = size.zip(paddings(&attrs.ints("padding"), n)) else { return false };
    // A window of nothing but padding has no mean and no greatest element.
    let inside = (0..n).all(|k| before[k] < size[k] && after[k] < size[k]);
    inside && layout(attrs, name, "layout") && windows(attrs, n).is_some()
}
