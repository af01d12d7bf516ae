//! TensorFlow's functions in functional models of Keras 2, by what they are among Keras' own.

use super::super::super::call::{Arg, Call};
use super::super::{Class, Masks, class};
use crate::frontend::Convert;

/// The layers that stand for them.
pub(in super::super) const CLASSES: &[Class] =
    &[class("TFOpLambda", Masks::Own, call), class("SlicingOpLambda", Masks::Own, call)];

/// TensorFlow's name, and the class of Keras' function.
const FUNCTIONS: &[(&str, &str)] = &[
    ("__operators__.add", "Add"),
    ("__operators__.getitem", "GetItem"),
    ("math.add", "Add"),
    ("math.subtract", "Subtract"),
    ("math.multiply", "Multiply"),
    ("math.divide", "TrueDivide"),
    ("math.truediv", "TrueDivide"),
    ("math.floordiv", "FloorDivide"),
    ("math.floormod", "Mod"),
    ("math.pow", "Power"),
    ("math.maximum", "Maximum"),
    ("math.minimum", "Minimum"),
    ("math.equal", "Equal"),
    ("math.not_equal", "NotEqual"),
    ("math.less", "Less"),
    ("math.less_equal", "LessEqual"),
    ("math.greater", "Greater"),
    ("math.greater_equal", "GreaterEqual"),
    ("math.logical_and", "LogicalAnd"),
    ("math.logical_or", "LogicalOr"),
    ("math.logical_not", "LogicalNot"),
    ("math.squared_difference", "SquaredDifference"),
    ("math.negative", "Negative"),
    ("math.abs", "Absolute"),
    ("math.exp", "Exp"),
    ("math.log", "Log"),
    ("math.log1p", "Log1p"),
    ("math.sqrt", "Sqrt"),
    ("math.rsqrt", "Rsqrt"),
    ("math.square", "Square"),
    ("math.reciprocal", "Reciprocal"),
    ("math.sin", "Sin"),
    ("math.cos", "Cos"),
    ("math.tanh", "Tanh"),
    ("math.erf", "Erf"),
    ("math.floor", "Floor"),
    ("math.ceil", "Ceil"),
    ("math.sign", "Sign"),
    ("math.sigmoid", "Sigmoid"),
    ("math.softplus", "Softplus"),
    ("math.reduce_sum", "Sum"),
    ("math.reduce_mean", "Mean"),
    ("math.reduce_max", "Max"),
    ("math.reduce_min", "Min"),
    ("math.reduce_prod", "Prod"),
    ("math.reduce_logsumexp", "Logsumexp"),
    ("linalg.matmul", "Matmul"),
    ("nn.relu", "Relu"),
    ("nn.relu6", "Relu6"),
    ("nn.sigmoid", "Sigmoid"),
    ("nn.silu", "Silu"),
    ("nn.softmax", "Softmax"),
    ("nn.log_softmax", "LogSoftmax"),
    ("nn.softplus", "Softplus"),
    ("nn.tanh", "Tanh"),
    ("nn.elu", "Elu"),
    ("nn.selu", "Selu"),
    ("concat", "Concatenate"),
    ("stack", "Stack"),
    ("reshape", "Reshape"),
    ("transpose", "Transpose"),
    ("compat.v1.transpose", "Transpose"),
    ("expand_dims", "ExpandDims"),
    ("squeeze", "Squeeze"),
    ("compat.v1.squeeze", "Squeeze"),
    ("tile", "Tile"),
    ("reverse", "Flip"),
    ("cast", "Cast"),
    ("identity", "Identity"),
    ("stop_gradient", "StopGradient"),
    ("zeros_like", "ZerosLike"),
    ("ones_like", "OnesLike"),
    ("where", "Where"),
    ("clip_by_value", "Clip"),
];

/// What TensorFlow calls an argument, and what Keras does.
const ARGUMENTS: &[(&str, &str)] = &[
    ("y", "x2"),
    ("b", "x2"),
    ("slice_spec", "key"),
    ("shape", "newshape"),
    ("perm", "axes"),
    ("multiples", "repeats"),
    ("clip_value_min", "x_min"),
    ("clip_value_max", "x_max"),
];

fn call(c: &mut Call) -> Convert<Arg> {
    let function = c.layer.str("function").unwrap_or_default().to_owned();
    let refuse = |c: &Call| c.refuse(format!("TensorFlow's function `{function}` is not supported"));
    let name = FUNCTIONS.iter().find(|(tf, _)| *tf == function).map(|(_, keras)| *keras);
    let convert = name.and_then(super::find).ok_or_else(|| refuse(c))?;
    for (name, value) in &mut c.kwargs {
        let turned = ["transpose_a", "transpose_b", "adjoint_a", "adjoint_b"].contains(&name.as_str());
        if turned && matches!(value, Arg::Json(serde_json::Value::Bool(true))) {
            return Err(refuse(c));
        }
        // The second operand of a choice has its own name.
        let renamed = ARGUMENTS.iter().find(|(tf, _)| tf == name).map(|(_, keras)| *keras);
        *name = match (function.as_str(), name.as_str()) {
            ("where", "x") => "x1".to_owned(),
            _ => renamed.unwrap_or(name).to_owned(),
        };
    }
    convert(c)
}
