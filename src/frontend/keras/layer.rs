//! Layers as the configuration describes them.

use std::rc::Rc;

use serde_json::Value as Json;

use super::weights::Place;
use crate::{
    diag::{Diagnostic, Refused},
    frontend::Convert,
    ir::Span,
    tensor::{DType, Tensor},
};

/// A layer of the model: its class, name and configuration.
#[derive(Clone, Debug)]
pub struct Layer {
    class: String,
    name: String,
    module: String,
    registered: Option<String>,
    config: Json,
    pub(super) place: Place,
    pub(super) span: Option<Span>,
    /// Whether Keras 2 wrote the model.
    pub(super) keras2: bool,
}

/// The policy of kernels of bytes beside floats.
const BYTES: &str = "int8_from_float32";

/// Classes of layers that may have it.
const OF_BYTES: [&str; 3] = ["Dense", "EinsumDense", "Embedding"];

/// What a layer computes in, and what its arrays are kept in.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Elements of inputs, arrays and outputs while it computes.
    pub compute: DType,
    /// Elements of its arrays in the file.
    pub variable: DType,
}

impl Layer {
    /// A layer from its entry (`class_name`, `config`, …), without a place for its arrays.
    pub(super) fn parse(json: &Json, keras2: bool) -> Result<Layer, String> {
        let text = |key: &str| json.get(key).and_then(Json::as_str);
        let class = text("class_name").ok_or("a layer has no `class_name`")?.to_owned();
        let config = json.get("config").cloned().unwrap_or(Json::Null);
        let name = text("name").or_else(|| config.get("name").and_then(Json::as_str)).unwrap_or(&class).to_owned();
        // Keras 2 names packages in the class only.
        let module = text("module").unwrap_or(if class.contains('>') { "custom" } else { "" }).to_owned();
        Ok(Layer {
            // Keras 2 wrote `Package>Class` for what was registered.
            class: class.rsplit('>').next().unwrap_or(&class).to_owned(),
            name,
            module,
            registered: text("registered_name").map(str::to_owned).or(class.contains('>').then(|| class.clone())),
            config,
            place: Place::default(),
            span: None,
            keras2,
        })
    }

    /// Its class, without the package: `Dense`.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// Its name, unique within its model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Python module that its class is of, where the file says so.
    pub fn module(&self) -> &str {
        &self.module
    }

    /// The name under which a class of the user's own was registered with Keras: `package>Class`.
    pub fn registered_name(&self) -> Option<&str> {
        self.registered.as_deref()
    }

    /// Whether it is one of `keras.ops` in a functional model, and no layer: these have no element type of their own.
    pub(super) fn is_operation(&self) -> bool {
        let bare =
            self.module.is_empty() && self.config.get("trainable").is_none() && self.config.get("dtype").is_none();
        self.module.contains(".ops") || bare && self.class != "InputLayer" && !self.is_model()
    }

    /// Whether it is itself a model.
    pub(super) fn is_model(&self) -> bool {
        matches!(self.class.as_str(), "Sequential" | "Functional" | "Model")
            && (self.config.get("layers").is_some() || self.config.is_array())
    }

    /// Whether its class may be one of the user's that has the name of one of Keras'.
    pub(super) fn is_custom(&self) -> bool {
        let module = self.module.as_str();
        !(module.is_empty() || ["keras", "tf_keras", "tensorflow"].iter().any(|m| module.split('.').next() == Some(m)))
    }

    /// The whole configuration.
    pub fn config(&self) -> &Json {
        &self.config
    }

    /// A refusal that names the layer.
    pub fn refuse(&self, message: impl AsRef<str>) -> Refused {
        let message = format!("layer `{}` ({}): {}", self.name, self.class, message.as_ref());
        Diagnostic::new(message).at(self.span.clone()).into()
    }

    /// A field of the configuration; `None` where it is absent or null.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.config.get(key).filter(|v| !v.is_null())
    }

    /// An integer field.
    ///
    /// # Errors
    /// Where it is absent or something else.
    pub fn int(&self, key: &str) -> Convert<i64> {
        self.get(key).and_then(as_int).ok_or_else(|| self.refuse(format!("its `{key}` is not an integer")))
    }

    /// A number, or the default where the field is absent or null.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn float(&self, key: &str, default: f64) -> Convert<f64> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_f64().ok_or_else(|| self.refuse(format!("its `{key}` is {v}, which is not a number"))),
        }
    }

    /// A boolean field, or the default where it is absent or null.
    pub fn bool(&self, key: &str, default: bool) -> bool {
        self.get(key).and_then(Json::as_bool).unwrap_or(default)
    }

    /// A text field.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Json::as_str)
    }

    /// A field that is an integer or a list of them.
    pub fn ints(&self, key: &str) -> Option<Vec<i64>> {
        ints(self.get(key)?)
    }

    /// A size per spatial axis: a list of that length, or one number for all.
    ///
    /// # Errors
    /// Where the field is something else, or a number is negative or huge.
    pub fn sizes(&self, key: &str, rank: usize, default: i64) -> Convert<Vec<i64>> {
        let found = match self.get(key) {
            None => vec![default; rank],
            Some(v) => ints(v).unwrap_or_default(),
        };
        let found = if found.len() == 1 && rank != 1 { vec![found[0]; rank] } else { found };
        if found.len() != rank || found.iter().any(|n| !(0..=1 << 24).contains(n)) {
            return Err(self.refuse(format!("its `{key}` is not {rank} sizes")));
        }
        Ok(found)
    }

    /// As [`Layer::sizes`], for what must not be zero.
    ///
    /// # Errors
    /// As there.
    pub fn positive_sizes(&self, key: &str, rank: usize, default: i64) -> Convert<Vec<i64>> {
        let found = self.sizes(key, rank, default)?;
        match found.contains(&0) {
            true => Err(self.refuse(format!("its `{key}` has a zero"))),
            false => Ok(found),
        }
    }

    /// A layer within the configuration (of wrappers, cells). `groups` are the names that Keras gives its arrays' group.
    ///
    /// # Errors
    /// Where the field is absent or is no layer.
    pub(super) fn inner(&self, key: &str) -> Convert<Layer> {
        let json = self.get(key).ok_or_else(|| self.refuse(format!("its configuration has no `{key}`")))?;
        self.inner_of(json)
    }

    /// As [`Layer::inner`], of an entry that was found already. Its arrays have no place yet.
    pub(super) fn inner_of(&self, json: &Json) -> Convert<Layer> {
        let mut inner = Layer::parse(json, self.keras2).map_err(|e| self.refuse(e))?;
        inner.span = self.span.clone();
        Ok(inner)
    }

    /// The same recurrent layer in the other direction.
    pub(super) fn turned_around(&self) -> Layer {
        let mut other = self.clone();
        let backwards = self.bool("go_backwards", false);
        if let Some(config) = other.config.as_object_mut() {
            config.insert("go_backwards".to_owned(), Json::Bool(!backwards));
        }
        other
    }

    /// Whether the last axis has the channels (else the one after the batch).
    pub fn channels_last(&self) -> bool {
        self.str("data_format") != Some("channels_first")
    }

    /// The name of its dtype policy.
    fn policy_name(&self) -> Convert<String> {
        let text = |c: Option<&Json>, key: &str| c.and_then(|c| c.get(key)).and_then(Json::as_str).map(str::to_owned);
        let dtype = self.get("dtype").or_else(|| self.get("dtype_policy"));
        let name = match dtype {
            None => None,
            Some(Json::String(s)) => Some(s.clone()),
            Some(policy) => {
                let class = policy.get("class_name").and_then(Json::as_str).unwrap_or_default();
                let config = policy.get("config");
                if class == "DTypePolicyMap" {
                    let parts = config.and_then(|c| c.get("policy_map")).and_then(Json::as_object);
                    if parts.is_some_and(|m| !m.is_empty()) {
                        return Err(self.refuse("dtype policies for each of its parts are not supported"));
                    }
                    text(config, "default_policy")
                } else {
                    // Policies that quantize have a mode instead of a name.
                    let mode = text(config, "mode").zip(text(config, "source_name"));
                    mode.map(|(mode, source)| format!("{mode}_from_{source}")).or_else(|| text(config, "name"))
                }
            }
        };
        Ok(name.unwrap_or_else(|| "float32".to_owned()))
    }

    /// Whether its kernel is of bytes, for which inputs are quantized.
    pub(super) fn of_bytes(&self) -> bool {
        OF_BYTES.contains(&self.class()) && self.policy_name().is_ok_and(|name| name == BYTES)
    }

    /// What it computes in.
    ///
    /// # Errors
    /// Policies that quantize, where the layer is none that is known of bytes, and types that are unknown.
    pub fn policy(&self) -> Convert<Policy> {
        let name = self.policy_name()?;
        let of = |compute, variable| Ok(Policy { compute, variable });
        match name.as_str() {
            BYTES if OF_BYTES.contains(&self.class()) => of(DType::F32, DType::F32),
            "mixed_float16" => of(DType::F16, DType::F32),
            "mixed_bfloat16" => of(DType::BF16, DType::F32),
            // Keras 2's way to say that the type is that of the first input.
            "_infer" => of(DType::F32, DType::F32),
            name => match name.parse::<DType>() {
                Ok(dtype) => of(dtype, dtype),
                Err(_) => Err(self.refuse(format!("its dtype policy `{name}` is not supported"))),
            },
        }
    }

    /// The same layer for use by several converters.
    pub(super) fn shared(self) -> Rc<Layer> {
        Rc::new(self)
    }
}

/// An integer, also where it is written as a float.
pub(super) fn as_int(v: &Json) -> Option<i64> {
    v.as_i64().or_else(|| v.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 1e15).map(|f| f as i64))
}

/// An integer or a list of them, also where tuples are written as objects.
pub(super) fn ints(v: &Json) -> Option<Vec<i64>> {
    match plain(v) {
        Json::Array(a) => a.iter().map(as_int).collect(),
        one => Some(vec![as_int(one)?]),
    }
}

/// A list, also where Keras marks that it was a tuple.
pub(super) fn plain(v: &Json) -> &Json {
    match v.get("class_name").and_then(Json::as_str) {
        Some("__tuple__") => v.get("items").unwrap_or(v),
        _ => v,
    }
}

/// Whether a value is an array, as Keras writes those of NumPy and its own.
pub(super) fn is_array(v: &Json) -> bool {
    matches!(v.get("class_name").and_then(Json::as_str), Some("__numpy__" | "__tensor__"))
}

/// Nested lists of numbers as an array: float32, where nothing else is said.
pub(super) fn numbers(json: &Json) -> Option<Tensor> {
    fn go(v: &Json, depth: usize, shape: &mut Vec<usize>, out: &mut Vec<f64>) -> Option<()> {
        let Json::Array(items) = plain(v) else {
            out.push(v.as_f64().or_else(|| v.as_bool().map(|b| b as u8 as f64))?);
            return (shape.len() == depth).then_some(());
        };
        match shape.get(depth) {
            Some(&n) if n != items.len() => return None,
            Some(_) => {}
            None if out.is_empty() => shape.push(items.len()),
            None => return None,
        }
        items.iter().try_for_each(|i| go(i, depth + 1, shape, out))
    }
    let (json, dtype) = match is_array(json).then(|| json.get("config")).flatten() {
        Some(config) => (config.get("value")?, config.get("dtype").and_then(Json::as_str).unwrap_or("float32")),
        None => (json, "float32"),
    };
    let (mut shape, mut out) = (Vec::new(), Vec::new());
    go(json, 0, &mut shape, &mut out)?;
    Some(Tensor::from_f64_fn(dtype.parse().ok()?, &shape, |i| out[i]))
}
