//! Several operators that the library takes as one.

use crate::{
    ir::Expr,
    partition::{Composite, Found},
    runtime::onednn::Library,
    tensor::{DType, Tensor},
};

/// The composite of a gelu.
const GELU: &str = "onednn.gelu_erf";

/// Whether a composite is a gelu, which is no chain of primitives but one.
pub(super) fn is_gelu(name: &str) -> bool {
    name == GELU
}

/// The composites, the preferred ones first.
pub(super) fn all() -> Vec<Composite> {
    let exact = |f: &Found<'_>| Library::get().is_ok_and(Library::has_exact_bytes) && is_exact(f);
    let mut all = Vec::new();
    let conv = "(qnn.conv2d {..?c} ?x ?w ?xz ?wz ?xs ?ws)";
    let dense = "(qnn.dense {..?c} ?x ?w ?xz ?wz ?xs ?ws)";
    for (name, product) in [("qnn_conv2d", conv), ("qnn_dense", dense)] {
        for (bias, sum) in [
            ("_bias", format!("(nn.bias_add {{..?b}} {product} ?bias)")),
            ("_bias", format!("(add {product} ?bias)")),
            ("", product.to_owned()),
        ] {
            let requantized = format!("(qnn.requantize {{..?r}} {sum} ?rs ?rz ?os ?oz)");
            let clipped = format!("(clip {{..?l}} {requantized})");
            all.push(Composite::new(format!("onednn.{name}{bias}_requantize_clip"), clipped).when(exact));
            all.push(Composite::new(format!("onednn.{name}{bias}_requantize"), requantized).when(exact));
        }
        all.push(Composite::new(format!("onednn.{name}"), product).when(exact));
    }
    all.push(Composite::new("onednn.qnn_add", "(qnn.add {..?a} ?x ?y ?xs ?xz ?ys ?yz ?os ?oz)").when(exact));
    // Halves of x by one plus erf of x by the root of two, in the ways that exporters write them.
    for erf in ["(erf (divide ?x ?root))", "(erf (multiply ?x ?root))"] {
        for pattern in [
            format!("(multiply (multiply ?x (add {erf} ?one)) ?half)"),
            format!("(multiply (multiply ?x ?half) (add {erf} ?one))"),
            format!("(multiply ?x (multiply ?half (add {erf} ?one)))"),
            format!("(multiply ?x (add (multiply {erf} ?half) ?half))"),
        ] {
            all.push(Composite::new(GELU, pattern).when(is_gelu_of));
        }
    }
    all
}

/// The constant that an argument is.
fn constant(f: &Found<'_>, call: usize, arg: usize) -> Option<Tensor> {
    let m = f.typed.module();
    let (_, args, _) = m.op_call(f.calls[call])?;
    match &m[*args.get(arg)?] {
        Expr::Constant(t) => Some(t.clone()),
        _ => None,
    }
}

/// Whether all scales and zero points are constants, and the types are such as the library multiplies.
fn is_exact(f: &Found<'_>) -> bool {
    let m = f.typed.module();
    (0..f.calls.len()).all(|i| {
        let Some((op, args, attrs)) = m.op_call(f.calls[i]) else { return false };
        let dtype = |a: usize| f.typed.ty(args[a]).as_tensor().map(|t| t.dtype);
        let known = |from: usize| (from..args.len()).all(|a| constant(f, i, a).is_some());
        let byte = |d: Option<DType>| matches!(d, Some(DType::U8 | DType::I8));
        let shaped = |a: usize| super::words::known(f.typed.ty(args[a])).is_some();
        match op.op().name() {
            name @ ("qnn.conv2d" | "qnn.dense") => {
                let zero = constant(f, i, 2).filter(|t| t.len() == 1).map(|t| t.get_i64(0));
                let range = if dtype(0) == Some(DType::U8) { 0..=255 } else { -128..=127 };
                let plain = constant(f, i, 3).is_some_and(|t| t.to_i64_vec().iter().all(|&z| z == 0));
                let layouts = name != "qnn.conv2d" || super::supports::convolution(attrs, "nn.conv2d", "OI");
                let rows = name != "qnn.dense" || f.typed.ty(args[0]).as_tensor().is_some_and(|t| t.rank() == 2);
                let weight = zero == Some(0) || constant(f, i, 1).is_some();
                let out = f.typed.ty(f.calls[i]).as_tensor().map(|t| t.dtype) == Some(DType::I32);
                let types = byte(dtype(0)) && dtype(1) == Some(DType::I8) && out;
                known(2)
                    && zero.is_some_and(|z| range.contains(&z))
                    && plain
                    && layouts
                    && rows
                    && weight
                    && types
                    && shaped(0)
                    && shaped(1)
            }
            "qnn.requantize" => {
                let out = f.typed.ty(f.calls[i]).as_tensor().map(|t| t.dtype);
                known(1)
                    && matches!(attrs.str("compute_dtype"), "None" | "int64")
                    && matches!(out, Some(DType::U8 | DType::I8 | DType::I32))
                    && dtype(0) == Some(DType::I32)
                    && along_channels(f, i, attrs.int("axis"))
            }
            "qnn.add" => {
                let types = f.calls[i];
                let shape = |e| super::words::known(f.typed.ty(e));
                let same = shape(args[0]) == shape(types) && shape(args[1]) == shape(types);
                let single = (2..8).all(|a| constant(f, i, a).is_some_and(|t| t.len() == 1));
                byte(dtype(0)) && same && single && shaped(0)
            }
            "nn.bias_add" => along_channels(f, i, attrs.int("axis")),
            "add" => {
                let vector = f.typed.ty(args[1]).as_tensor().and_then(|t| t.known_shape());
                vector.is_some_and(|shape| {
                    let long: Vec<usize> = (0..shape.len()).filter(|&k| shape[k] != 1).collect();
                    match long[..] {
                        [] => true,
                        [k] => along_channels(f, i, k as i64 - shape.len() as i64),
                        _ => false,
                    }
                })
            }
            "clip" => f.typed.ty(f.calls[i]).as_tensor().is_some_and(|t| t.dtype != DType::F32),
            _ => true,
        }
    })
}

/// Whether an axis of a call's data is that of the channels, as the product that it comes from has them.
fn along_channels(f: &Found<'_>, call: usize, at: i64) -> bool {
    let m = f.typed.module();
    let Some(rank) = f.typed.ty(f.calls[call]).as_tensor().map(|t| t.rank()) else { return false };
    let Some(axis) = super::words::axis(at, rank) else { return false };
    let product = f.calls.iter().find_map(|&c| {
        let (op, _, attrs) = m.op_call(c)?;
        match op.op().name() {
            "qnn.conv2d" => {
                let out = if attrs.str("out_layout").is_empty() { "data_layout" } else { "out_layout" };
                attrs.str(out).chars().position(|c| c == 'C')
            }
            "qnn.dense" => Some(1),
            _ => None,
        }
    });
    product.is_none_or(|c| c == axis)
}

/// Whether the constants of a pattern are those of a gelu.
fn is_gelu_of(f: &Found<'_>) -> bool {
    const NEAR: f64 = 1e-5;
    let m = f.typed.module();
    let supported = f.typed.ty(f.root).as_tensor().is_some_and(|t| {
        t.known_shape().is_some_and(|s| !s.is_empty() && s.iter().all(|&n| n > 0)) && t.dtype == DType::F32
    });
    let (mut root, mut one, mut halves) = (false, false, 0);
    let is = |t: &Tensor, v: f64| t.len() == 1 && (t.get_f64(0) - v).abs() < NEAR;
    for (i, &call) in f.calls.iter().enumerate() {
        let Some((op, args, _)) = m.op_call(call) else { return false };
        for a in 0..args.len() {
            let Some(t) = constant(f, i, a) else { continue };
            match op.op().name() {
                "divide" if is(&t, std::f64::consts::SQRT_2) => root = true,
                "multiply" if is(&t, std::f64::consts::FRAC_1_SQRT_2) => root = true,
                "multiply" | "add" if is(&t, 0.5) => halves += 1,
                "add" if is(&t, 1.0) => one = true,
                _ => return false,
            }
        }
    }
    supported && root && (one && halves == 1 || !one && halves == 2)
}
