//! The options of `Quantize`, and how they are written.

use std::path::PathBuf;

use super::{layers::Selection, ranges::Method};
use crate::{
    diag::{Diagnostic, Refused, nearest},
    ir::Name,
    pass::PassSpec,
    tensor::{DType, Tensor},
};

/// What is quantized, and how.
///
/// ```
/// use resat::{pass::{CalibrationMethod, Pass, PassContext, Quantize, QuantizeOptions, Settings}, relay::text, target::Target, tensor::Tensor};
/// # let program = "#[version = \"0.0.5\"] def @main(%x: Tensor[(8, 64), float32], %w: Tensor[(32, 64), float32]) { nn.dense(%x, %w, units=32) }";
/// # let written = text::parse_module("dense", program)?;
/// # let wave = |shape: &[usize]| Tensor::from_f64_fn(resat::tensor::DType::F32, shape, |i| (i as f64 * 0.7).sin());
/// # let module = resat::pass::bind_params(&written, &[("w".into(), wave(&[32, 64]))])?;
/// // Four samples of the input `x`, with an axis of samples in front.
/// let x = wave(&[4, 8, 64]);
/// let options = QuantizeOptions { samples: vec![("x".into(), x)], method: CalibrationMethod::Percentile(99.9), ..Default::default() };
/// let pass = Quantize::new(options, &Settings::new(Target::host()))?;
/// let quantized = pass.run(module, &mut PassContext::default())?;
/// assert!(text::print_module(&quantized).contains("qnn.dense"));
/// # Ok::<(), resat::diag::Refused>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// Which layers.
    pub selection: Selection,
    /// Element type of activations: `int8` or `uint8`.
    pub dtype_input: DType,
    /// Whether weights have a scale per channel.
    pub per_channel: bool,
    /// An npz archive of samples: an array per input, with an axis of samples in front.
    pub calibration: Option<PathBuf>,
    /// Samples, as in the archive; those of the archive come before them.
    pub samples: Vec<(Name, Tensor)>,
    /// How ranges follow from samples; all but `GlobalScale` need some.
    pub method: Method,
    /// Whether the zero point of activations is in the middle of their type's range.
    pub symmetric: bool,
    /// The error that the result may have, as a share of its largest magnitude; where it is given, each layer is a choice. It is
    /// measured on samples.
    pub max_error: Option<f64>,
    /// Whether layers become integer arithmetic, or stay floats that are quantized and back.
    pub integer: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            selection: Selection::default(),
            dtype_input: DType::I8,
            per_channel: true,
            calibration: None,
            samples: Vec::new(),
            method: Method::MinMax,
            symmetric: true,
            max_error: None,
            integer: true,
        }
    }
}

/// Every argument, for messages.
const ARGUMENTS: [&str; 13] = [
    "from_layer",
    "to_layer",
    "skip",
    "dtype_input",
    "dtype_weight",
    "per_channel",
    "calibration",
    "method",
    "scale",
    "percentile",
    "symmetric",
    "max_error",
    "integer",
];

impl Options {
    /// Whether there are samples to look at.
    pub(super) fn has_samples(&self) -> bool {
        self.calibration.is_some() || !self.samples.is_empty()
    }

    /// What is wrong with options that no text was read for.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut errors = Vec::new();
        if !matches!(self.dtype_input, DType::I8 | DType::U8) {
            errors.push(format!("`dtype_input` is {}, but should be int8 or uint8", self.dtype_input));
        }
        match self.method {
            Method::GlobalScale(x) if !(x > 0.0 && x.is_finite()) => {
                errors.push(format!("`scale` is {x}, but should be a positive number"));
            }
            Method::Percentile(x) if !(x > 0.0 && x <= 100.0) => {
                errors.push(format!("`percentile` is {x}, but should be a share in percent"));
            }
            _ => {}
        }
        if self.max_error.is_some_and(|e| !(e >= 0.0 && e.is_finite())) {
            errors.push("`max_error` should be a positive number".into());
        }
        if !self.has_samples() && !matches!(self.method, Method::GlobalScale(_)) {
            errors.push("this method needs samples, `calibration=\"samples.npz\"`".into());
        }
        if !self.has_samples() && self.max_error.is_some() {
            errors.push("`max_error` is measured on samples, `calibration=\"samples.npz\"`".into());
        }
        errors
    }

    /// The options that a pass' arguments say.
    pub fn parse(spec: &PassSpec) -> Result<Options, Refused> {
        Options::parse_with(spec, None)
    }

    /// The same with samples that are no file: an array for each parameter, with an axis of samples in front.
    pub fn parse_with(spec: &PassSpec, samples: Option<Vec<(Name, Tensor)>>) -> Result<Options, Refused> {
        let mut o = Options { samples: samples.unwrap_or_default(), ..Options::default() };
        let mut errors = Vec::new();
        let (mut scale, mut percentile, mut method, mut symmetric) = (None, None, None, None);
        let mut seen: Vec<&str> = Vec::new();
        for arg in &spec.args {
            let Some(name) = arg.name.as_deref() else {
                errors.push(format!("`{}` is given without a name, as in `method={}`", arg.value, arg.value));
                continue;
            };
            if seen.contains(&name) {
                errors.push(format!("`{name}` is given twice"));
            }
            seen.push(name);
            let v = arg.value.as_str();
            let mut wrong = |wanted: &str| errors.push(format!("`{name}` is `{v}`, but should be {wanted}"));
            match name {
                "from_layer" => match v.parse() {
                    Ok(n) => o.selection.from = n,
                    Err(_) => wrong("a layer's number"),
                },
                "to_layer" => match v.parse() {
                    Ok(n) => o.selection.to = Some(n),
                    Err(_) => wrong("a layer's number"),
                },
                "skip" => {
                    let parts = v.split(',').map(str::trim).filter(|s| !s.is_empty());
                    o.selection.skip = parts.map(str::to_owned).collect();
                }
                "dtype_input" => match v {
                    "int8" => o.dtype_input = DType::I8,
                    "uint8" => o.dtype_input = DType::U8,
                    _ => wrong("int8 or uint8"),
                },
                "dtype_weight" if v == "int8" => {}
                "dtype_weight" => wrong("int8"),
                "per_channel" | "symmetric" | "integer" => match v.to_ascii_lowercase().parse::<bool>() {
                    Err(_) => wrong("true or false"),
                    Ok(b) if name == "per_channel" => o.per_channel = b,
                    Ok(b) if name == "integer" => o.integer = b,
                    Ok(b) => symmetric = Some(b),
                },
                "calibration" => o.calibration = Some(v.into()),
                "method" if Method::NAMES.contains(&v) => method = Some(v),
                "method" => wrong(&format!("one of {}", Method::NAMES.join(", "))),
                "scale" | "percentile" | "max_error" => {
                    let limit = if name == "percentile" { 100.0 } else { f64::MAX };
                    match v.parse::<f64>() {
                        Ok(x) if x >= 0.0 && x <= limit && (x > 0.0 || name == "max_error") => match name {
                            "scale" => scale = Some(x),
                            "percentile" => percentile = Some(x),
                            _ => o.max_error = Some(x),
                        },
                        _ => wrong(if name == "percentile" { "a share in percent" } else { "a positive number" }),
                    }
                }
                other => errors.push(match nearest(other, ARGUMENTS) {
                    Some(near) => format!("there is no argument `{other}` (did you mean `{near}`?)"),
                    None => format!("there is no argument `{other}`; there are {}", ARGUMENTS.join(", ")),
                }),
            }
        }
        // Without samples, there is one range for all.
        let default = if o.has_samples() { "minmax" } else { "global_scale" };
        o.method = match method.unwrap_or(default) {
            "global_scale" => Method::GlobalScale(scale.take().unwrap_or(8.0)),
            "percentile" => Method::Percentile(percentile.take().unwrap_or(99.99)),
            "kl" => Method::Kl,
            _ => Method::MinMax,
        };
        if scale.is_some() || percentile.is_some() {
            errors.push("`scale` is for `method=global_scale`, `percentile` for `method=percentile`".into());
        }
        errors.extend(o.complaints());
        o.symmetric = symmetric.unwrap_or(o.dtype_input == DType::I8);
        match errors.is_empty() {
            true => Ok(o),
            false => {
                let tell =
                    |e: String| Diagnostic::new(format!("pass `{}`: {e}", spec.name)).at(Some(spec.span.clone()));
                Err(Refused(errors.into_iter().map(tell).collect()))
            }
        }
    }
}
