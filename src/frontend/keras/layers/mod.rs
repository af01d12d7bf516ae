//! The converters: for each class of layer what it means in Relay.

mod activation;
mod attention;
mod augment;
mod bytes;
mod conv;
mod core;
mod encode;
mod merge;
mod norm;
mod operation;
mod pool;
mod recurrent;
mod reshape;
mod resize;
mod spectrum;
mod transposed;
mod wrapper;

use std::sync::{Arc, RwLock};

use hashbrown::HashMap;

use super::{
    call::{Arg, Call, Converter},
    layer::Layer,
};
use crate::{
    diag::{Diagnostic, Refused, nearest},
    frontend::Convert,
};

/// What becomes of the mask of a layer's first input.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Masks {
    /// Outputs without a mask of their own take it.
    Pass,
    /// Outputs have the masks that the converter gives them.
    Own,
}

/// A class of layers.
struct Class {
    name: &'static str,
    masks: Masks,
    convert: fn(&mut Call) -> Convert<Arg>,
}

/// A row of a family's table.
const fn class(name: &'static str, masks: Masks, convert: fn(&mut Call) -> Convert<Arg>) -> Class {
    Class { name, masks, convert }
}

/// The classes, by family.
const FAMILIES: &[&[Class]] = &[
    activation::CLASSES,
    attention::CLASSES,
    augment::CLASSES,
    conv::CLASSES,
    transposed::CLASSES,
    core::CLASSES,
    encode::CLASSES,
    merge::CLASSES,
    norm::CLASSES,
    pool::CLASSES,
    recurrent::CLASSES,
    reshape::CLASSES,
    resize::CLASSES,
    spectrum::CLASSES,
    operation::tensorflow::CLASSES,
    wrapper::CLASSES,
];

/// Classes that are refused for a reason that is worth telling.
const REFUSED: &[(&str, &str)] = &[
    (
        "Lambda",
        "it holds Python code, which only Python runs; write it with layers or keras.ops, or register a converter",
    ),
    ("TFSMLayer", "it holds a TensorFlow program; convert it with TFLite or ONNX instead"),
    ("TorchModuleWrapper", "it holds a PyTorch module; export that to ONNX instead"),
    ("JaxLayer", "it holds Python code, which only Python runs"),
    ("FlaxLayer", "it holds Python code, which only Python runs"),
    ("TextVectorization", "its input is text, and Relay has no text"),
    ("StringLookup", "its input is text, and Relay has no text"),
    ("Hashing", "its input may be text, and its hash function is TensorFlow's own"),
    ("HashedCrossing", "its hash function is TensorFlow's own"),
    ("Equalization", "images by their histograms are not supported"),
    ("CLAHE", "images by their histograms are not supported"),
    ("FeatureSpace", "its tables are kept outside of the model's configuration"),
];

/// What is done with a layer.
pub(super) struct Found {
    /// Writes it.
    pub convert: Converter,
    /// Whether inputs are converted to what the layer computes in.
    pub autocasts: bool,
    /// Whether outputs without a mask take that of the first input.
    pub passes_masks: bool,
}

static REGISTERED: RwLock<Option<HashMap<String, Converter>>> = RwLock::new(None);

/// Registers a converter for a class of layers, `Lambda` and classes of the user's own included; it takes precedence over one of
/// that name that is there. The name is that of the Python class, or `package>Class`, as it was registered with Keras.
///
/// ```
/// use resat::frontend::keras::{Arg, register};
///
/// // class Twice(keras.layers.Layer): def call(self, x): return 2 * x
/// register("Twice", |call| {
///     let x = call.input()?;
///     Ok(Arg::of(call.with("multiply", x, 2.0)?))
/// });
/// ```
pub fn register(class: &str, convert: impl Fn(&mut Call) -> Convert<Arg> + Send + Sync + 'static) {
    let mut all = REGISTERED.write().unwrap_or_else(|e| e.into_inner());
    all.get_or_insert_with(HashMap::new).insert(class.to_owned(), Arc::new(convert));
}

/// The converter that was registered for a layer.
pub(super) fn registered(layer: &Layer) -> Option<Converter> {
    let all = REGISTERED.read().unwrap_or_else(|e| e.into_inner());
    let all = all.as_ref()?;
    layer.registered_name().and_then(|n| all.get(n)).or_else(|| all.get(layer.class())).cloned()
}

/// The converter of a layer's class.
pub(super) fn find(layer: &Layer) -> Result<Found, Refused> {
    if let Some(convert) = registered(layer) {
        return Ok(Found { convert, autocasts: true, passes_masks: true });
    }
    if layer.is_operation() && !layer.is_custom() {
        match operation::find(layer.class()) {
            Some(convert) => return Ok(Found { convert: Arc::new(convert), autocasts: false, passes_masks: false }),
            None if layer.module().contains(".ops") => {
                return Err(layer.refuse("this function of keras.ops is not supported"));
            }
            // A layer that says little of itself.
            None => {}
        }
    }
    if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == layer.class()) {
        return Err(layer.refuse(why));
    }
    let mut classes = FAMILIES.iter().flat_map(|f| f.iter());
    match classes.find(|c| c.name == layer.class()) {
        Some(c) if !layer.is_custom() => {
            let convert = c.convert;
            Ok(Found { convert: Arc::new(convert), autocasts: true, passes_masks: c.masks == Masks::Pass })
        }
        // Without a module, a function that has an element type looks like a layer.
        None if layer.module().is_empty() => match operation::find(layer.class()) {
            Some(convert) => Ok(Found { convert: Arc::new(convert), autocasts: false, passes_masks: false }),
            None => Err(unknown(layer)),
        },
        _ => Err(unknown(layer)),
    }
}

fn unknown(layer: &Layer) -> Refused {
    let message = format!("layer `{}`: the class `{}` is not one that Keras ships", layer.name(), layer.class());
    let known = FAMILIES.iter().flat_map(|f| f.iter()).map(|c| c.name);
    let help = match nearest(layer.class(), known) {
        Some(near) if !layer.is_custom() => format!("did you mean `{near}`?"),
        _ => "the file does not hold what it computes; register a converter for it".to_owned(),
    };
    Diagnostic::new(message).help(help).at(layer.span.clone()).into()
}
