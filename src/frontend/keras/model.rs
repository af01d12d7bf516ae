//! Models: layers in a row, graphs of layers, and models within models.

use std::{rc::Rc, sync::Arc};

use hashbrown::HashMap;
use serde_json::Value as Json;

use super::{
    call::{Arg, Held, State, invoke},
    layer::{Layer, as_int, plain},
};
use crate::{
    diag::{Diagnostic, Refused},
    frontend::{Convert, LoadOptions, Model},
    ir::{Dim, Source, Span, TensorType, Type},
    tensor::DType,
};

/// Models within models are listed up to this depth.
const DEEPEST: usize = 64;

/// An input of the outermost model.
struct Input {
    name: String,
    /// What Keras calls it within a dictionary of inputs.
    layer: String,
    ty: TensorType,
}

/// The whole model as a program.
pub(super) fn read(file: &str, mut top: Layer, mut s: State, options: &LoadOptions) -> Result<Model, Refused> {
    if !top.is_model() {
        let message =
            format!("{file}: the configuration is of a `{}`, not of a Sequential or Functional model", top.class());
        let help = "subclassed models hold Python code; make a functional model of them";
        return Err(Diagnostic::new(message).help(help).into());
    }
    let places = Places::of(file, &top);
    top.span = None;
    let top = top.shared();
    let layers = layers_of(&s, &top, &places)?;
    let inputs = inputs_of(&top, &layers, options)?;
    let names: Vec<&str> = inputs.iter().map(|i| i.name.as_str()).collect();
    options.check_names(file, &names, &[])?;
    let held: Vec<(String, Held)> = inputs
        .iter()
        .map(|i| (i.layer.clone(), Held { id: s.b.input(&i.name, Type::Tensor(i.ty.clone())), mask: None }))
        .collect();
    let out = if top.class() == "Sequential" {
        let first = held.first().map(|h| Arg::Tensor(h.1)).ok_or_else(|| top.refuse("it has no input"))?;
        let name = layers.last().map_or("output", |l| l.name()).to_owned();
        vec![(name, row(&mut s, &layers, first, &places)?)]
    } else {
        let found = graph(&mut s, &top, &layers, held, &places)?;
        named_outputs(&found)
    };
    let mut outputs: Vec<(String, crate::ir::ExprId)> = Vec::new();
    for (name, arg) in out {
        let tensors = arg.tensors();
        for (i, t) in tensors.iter().enumerate() {
            let mut own = if tensors.len() == 1 { name.clone() } else { format!("{name}_{i}") };
            let base = own.clone();
            let mut n = 1;
            while outputs.iter().any(|(o, _)| *o == own) {
                own = format!("{base}_{n}");
                n += 1;
            }
            outputs.push((own, t.id));
        }
    }
    if outputs.is_empty() {
        return Err(top.refuse("it has no outputs"));
    }
    Ok(s.b.finish(&outputs))
}

/// A model within another one, called.
pub(super) fn call_model(s: &mut State, model: &Rc<Layer>, args: Vec<Arg>) -> Convert<Arg> {
    let places = s.places.clone();
    let layers = layers_of(s, model, &places)?;
    let Some(given) = args.into_iter().next() else { return Err(model.refuse("it is called without an input")) };
    if model.class() == "Sequential" {
        let first = match given {
            Arg::List(mut items) if items.len() == 1 => items.remove(0),
            other => other,
        };
        return row(s, &layers, first, &places);
    }
    let refs = references(model, "input_layers")?;
    let mut wanted = Vec::new();
    leaves(&refs, &mut String::new(), &mut wanted);
    let bound: Vec<(String, Held)> = match &given {
        Arg::Dict(items) => {
            let find = |(key, r): &(String, Ref)| {
                let found = items.iter().find(|(k, _)| k == key || *k == r.layer);
                let tensor = found.and_then(|(_, a)| a.tensors().first().copied());
                tensor
                    .map(|t| (r.layer.clone(), t))
                    .ok_or_else(|| model.refuse(format!("it lacks its input `{}`", r.layer)))
            };
            wanted.iter().map(find).collect::<Convert<_>>()?
        }
        other => {
            let tensors = other.tensors();
            if tensors.len() != wanted.len() {
                let message = format!("it has {} inputs, but is called with {}", wanted.len(), tensors.len());
                return Err(model.refuse(message));
            }
            wanted.iter().zip(tensors).map(|((_, r), t)| (r.layer.clone(), t)).collect()
        }
    };
    let out = graph(s, model, &layers, bound, &places)?;
    Ok(structure(&out))
}

// --- where layers are described ---

/// A list of all layers as a text, for messages, and where each stands in it.
#[derive(Clone)]
pub(super) struct Places(Rc<HashMap<String, Span>>);

impl Places {
    /// Of no layers.
    pub(super) fn none() -> Places {
        Places(Rc::new(HashMap::new()))
    }

    fn of(file: &str, top: &Layer) -> Places {
        let (mut text, mut found) = (String::new(), Vec::new());
        list(top.config(), "", 0, &mut text, &mut found);
        let source = Arc::new(Source { name: file.to_owned(), text });
        let span = |(path, start, end): (String, u32, u32)| (path, Span { source: source.clone(), start, end });
        Places(Rc::new(found.into_iter().map(span).collect()))
    }
}

fn list(config: &Json, within: &str, depth: usize, text: &mut String, found: &mut Vec<(String, u32, u32)>) {
    if depth > DEEPEST {
        return;
    }
    for json in entries(config) {
        let Ok(layer) = Layer::parse(json, false) else { continue };
        let path = if within.is_empty() { layer.name().to_owned() } else { format!("{within}/{}", layer.name()) };
        let line = format!("{path}: {}", layer.class().replace('\n', " "));
        let start = text.len() as u32;
        text.push_str(&line.replace('\n', " "));
        found.push((path.clone(), start, text.len() as u32));
        text.push('\n');
        if layer.is_model() {
            list(layer.config(), &path, depth + 1, text, found);
        }
    }
}

/// The layers' entries; of Keras 1 and 2 the configuration of a Sequential model may be that list.
fn entries(config: &Json) -> impl Iterator<Item = &Json> {
    let layers = config.get("layers").unwrap_or(config);
    layers.as_array().into_iter().flatten()
}

/// The layers of a model, each with the place of its arrays.
fn layers_of(s: &State, model: &Rc<Layer>, places: &Places) -> Convert<Vec<Rc<Layer>>> {
    let container = s.weights.part(&model.place.group, &["layers", "_layer_checkpoint_dependencies"]);
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut layers = Vec::new();
    for json in entries(model.config()) {
        let mut layer = model.inner_of(json)?;
        let snake = snake_case(layer.class());
        let mut counted = snake.clone();
        if !layer.is_operation() {
            let n = counts.entry(snake).or_default();
            if *n > 0 {
                counted = format!("{counted}_{n}");
            }
            *n += 1;
        }
        layer.place.group = s.weights.child(&container, &counted, layer.name());
        layer.place.names = model.place.names.clone();
        layer.place.names.push(layer.name().to_owned());
        layer.span = places.0.get(&layer.place.names.join("/")).cloned();
        layers.push(layer.shared());
    }
    Ok(layers)
}

/// A class' name as Keras writes it in paths: `BatchNormalization` is `batch_normalization`.
fn snake_case(class: &str) -> String {
    // The one layer that is configured under another name than its class has.
    let class = if class == "GroupQueryAttention" { "GroupedQueryAttention" } else { class };
    let chars: Vec<char> = class.chars().filter(|c| c.is_alphanumeric() || *c == '_').collect();
    let mut out = String::new();
    for (i, &c) in chars.iter().enumerate() {
        let lower = |c: Option<&char>| c.is_some_and(|c| c.is_lowercase());
        // Before a capital that starts a word, and after a small letter.
        let starts = i > 0 && c.is_uppercase() && lower(chars.get(i + 1));
        let follows = i > 0 && c.is_uppercase() && lower(chars.get(i - 1));
        if starts || follows {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

// --- inputs ---

fn inputs_of(top: &Rc<Layer>, layers: &[Rc<Layer>], options: &LoadOptions) -> Convert<Vec<Input>> {
    if top.class() == "Sequential" {
        return Ok(vec![sequential_input(top, layers, options)?]);
    }
    let refs = references(top, "input_layers")?;
    let mut wanted = Vec::new();
    leaves(&refs, &mut String::new(), &mut wanted);
    let input = |(_, r): &(String, Ref)| {
        let layer = layers.iter().find(|l| l.name() == r.layer);
        let layer = layer.ok_or_else(|| top.refuse(format!("its input `{}` is none of its layers", r.layer)))?;
        input_of(layer, layer.name(), options)
    };
    wanted.iter().map(input).collect()
}

fn sequential_input(top: &Rc<Layer>, layers: &[Rc<Layer>], options: &LoadOptions) -> Convert<Input> {
    let first = layers.first().ok_or_else(|| top.refuse("it has no layers"))?;
    if first.class() == "InputLayer" || shape_field(first).is_some() {
        let name = match first.class() {
            "InputLayer" => first.name().to_owned(),
            _ => format!("{}_input", first.name()),
        };
        return input_of(first, &name, options);
    }
    if first.is_model() {
        // The model within says what it takes.
        let inner = entries(first.config()).map(|json| first.inner_of(json)).collect::<Convert<Vec<_>>>()?;
        if let Some(input) = inner.iter().find(|l| shape_field(l).is_some()) {
            return input_of(input, input.name(), options);
        }
    }
    let name = format!("{}_input", first.name());
    if let Some(shape) = top.get("build_input_shape") {
        return typed_input(first, &name, shape, DType::F32, options);
    }
    match options.shape_of(&name) {
        Some(_) => typed_input(first, &name, &Json::Array(Vec::new()), DType::F32, options),
        None => Err(top.refuse(format!("it does not say the shape of its input: give it with --shape {name}=..."))),
    }
}

fn shape_field(layer: &Layer) -> Option<&Json> {
    layer.get("batch_shape").or_else(|| layer.get("batch_input_shape"))
}

fn input_of(layer: &Layer, name: &str, options: &LoadOptions) -> Convert<Input> {
    for kind in ["sparse", "ragged"] {
        if layer.bool(kind, false) {
            return Err(layer.refuse(format!("{kind} inputs are not supported")));
        }
    }
    let shape = shape_field(layer).ok_or_else(|| layer.refuse("it does not say its shape"))?;
    let dtype = match layer.str("dtype") {
        Some(name) => name.parse().map_err(|_| layer.refuse(format!("inputs of `{name}` are not supported")))?,
        None => layer.policy()?.compute,
    };
    typed_input(layer, name, shape, dtype, options)
}

fn typed_input(layer: &Layer, name: &str, shape: &Json, dtype: DType, options: &LoadOptions) -> Convert<Input> {
    let dims: Vec<Dim> = match options.shape_of(name) {
        Some(given) => given.iter().map(|n| n.map_or(Dim::Any, Dim::Known)).collect(),
        None => {
            let items = plain(shape).as_array().ok_or_else(|| layer.refuse("its shape is not a list"))?;
            let dim = |v: &Json| match v {
                Json::Null => Ok(Dim::Any),
                v => {
                    as_int(v).filter(|n| *n >= 0).map(Dim::Known).ok_or_else(|| layer.refuse("its shape is malformed"))
                }
            };
            items.iter().map(dim).collect::<Convert<_>>()?
        }
    };
    let ty = TensorType::of(dims, dtype);
    match ty.is_sensible() {
        true => Ok(Input { name: name.to_owned(), layer: layer.name().to_owned(), ty }),
        false => Err(layer.refuse("its shape has more elements than memory holds")),
    }
}

// --- layers in a row ---

fn row(s: &mut State, layers: &[Rc<Layer>], first: Arg, places: &Places) -> Convert<Arg> {
    s.places = places.clone();
    let mut value = first;
    for layer in layers.iter().filter(|l| l.class() != "InputLayer") {
        value = invoke(s, layer, vec![value], Vec::new())?;
    }
    Ok(value)
}

// --- graphs of layers ---

/// An output of a call of a layer.
#[derive(Clone, Debug)]
struct Ref {
    layer: String,
    node: usize,
    tensor: usize,
}

/// A structure of references.
#[derive(Clone, Debug)]
enum Refs {
    One(Ref),
    List(Vec<Refs>),
    Dict(Vec<(String, Refs)>),
}

fn one_ref(v: &Json) -> Option<Ref> {
    let Json::Array(a) = plain(v) else { return None };
    let (layer, node) = (a.first()?.as_str()?, a.get(1)?.as_u64()?);
    Some(Ref { layer: layer.to_owned(), node: node as usize, tensor: a.get(2)?.as_u64()? as usize })
}

fn refs(v: &Json, depth: usize) -> Option<Refs> {
    if let Some(r) = one_ref(v) {
        return Some(Refs::One(r));
    }
    if depth > DEEPEST {
        return None;
    }
    match plain(v) {
        Json::Array(items) => Some(Refs::List(items.iter().map(|i| refs(i, depth + 1)).collect::<Option<_>>()?)),
        Json::Object(items) => {
            let one = |(k, i): (&String, &Json)| Some((k.clone(), refs(i, depth + 1)?));
            Some(Refs::Dict(items.iter().map(one).collect::<Option<_>>()?))
        }
        _ => None,
    }
}

fn references(model: &Layer, key: &str) -> Convert<Refs> {
    let found = model.get(key).and_then(|v| refs(v, 0));
    found.ok_or_else(|| model.refuse(format!("its `{key}` is malformed")))
}

/// All references, with the keys that lead to them.
fn leaves(r: &Refs, key: &mut String, out: &mut Vec<(String, Ref)>) {
    match r {
        Refs::One(one) => out.push((key.clone(), one.clone())),
        Refs::List(items) => items.iter().for_each(|i| leaves(i, key, out)),
        Refs::Dict(items) => {
            let mut sorted: Vec<&(String, Refs)> = items.iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(&b.0));
            for (k, i) in sorted {
                leaves(i, &mut k.clone(), out);
            }
        }
    }
}

/// What a graph gives: its outputs in their structure, each with its name.
enum Outputs {
    One(String, Held),
    List(Vec<Outputs>),
    Dict(Vec<(String, Outputs)>),
}

fn structure(o: &Outputs) -> Arg {
    match o {
        Outputs::One(_, t) => Arg::Tensor(*t),
        Outputs::List(items) => Arg::List(items.iter().map(structure).collect()),
        Outputs::Dict(items) => Arg::Dict(items.iter().map(|(k, i)| (k.clone(), structure(i))).collect()),
    }
}

/// Outputs in Keras' order: those of a dictionary by their keys, which are their names.
fn named_outputs(o: &Outputs) -> Vec<(String, Arg)> {
    match o {
        Outputs::One(name, t) => vec![(name.clone(), Arg::Tensor(*t))],
        Outputs::List(items) => items.iter().flat_map(named_outputs).collect(),
        Outputs::Dict(items) => {
            let mut sorted: Vec<&(String, Outputs)> = items.iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(&b.0));
            let named = |(k, i): &(String, Outputs)| match i {
                Outputs::One(_, t) => vec![(k.clone(), Arg::Tensor(*t))],
                more => named_outputs(more),
            };
            sorted.into_iter().flat_map(named).collect()
        }
    }
}

/// The calls of a model's layers, as far as they were made.
struct Graph<'a> {
    model: &'a Layer,
    /// What came of each call.
    made: HashMap<&'a str, Vec<Option<Arg>>>,
    /// The layers that are models: Keras 2 counts their calls from 1.
    from_one: Vec<&'a str>,
    /// Those that are functional models.
    functional: Vec<&'a str>,
    /// Whether calls are written as Keras 2 does.
    legacy: bool,
}

impl Graph<'_> {
    /// What a reference means: an output that is there, one that is not yet, or none.
    fn get(&self, r: &Ref) -> Convert<Option<Held>> {
        let missing = || self.model.refuse(format!("it refers to `{}`, call {}, which is not there", r.layer, r.node));
        let calls = self.made.get(r.layer.as_str()).ok_or_else(missing)?;
        let node = if self.from_one.contains(&r.layer.as_str()) { r.node.saturating_sub(1) } else { r.node };
        match calls.get(node).ok_or_else(missing)? {
            None => Ok(None),
            Some(made) => {
                let tensors = made.tensors();
                tensors.get(r.tensor).copied().map(Some).ok_or_else(missing)
            }
        }
    }
}

fn graph<'a>(
    s: &mut State,
    model: &'a Rc<Layer>,
    layers: &'a [Rc<Layer>],
    bound: Vec<(String, Held)>,
    places: &Places,
) -> Convert<Outputs> {
    s.places = places.clone();
    let nodes: Vec<Vec<&Json>> = entries(model.config())
        .map(|json| json.get("inbound_nodes").and_then(Json::as_array).into_iter().flatten().collect())
        .collect();
    let legacy = nodes.iter().flatten().any(|n| n.is_array());
    let from_one = layers.iter().filter(|l| legacy && l.is_model()).map(|l| l.name()).collect();
    let functional = layers.iter().filter(|l| l.is_model() && l.class() != "Sequential").map(|l| l.name()).collect();
    let mut graph = Graph { model, made: HashMap::new(), from_one, functional, legacy };
    for (layer, nodes) in layers.iter().zip(&nodes) {
        let calls = match bound.iter().find(|(name, _)| name == layer.name()) {
            Some((_, t)) => vec![Some(Arg::Tensor(*t))],
            None => vec![None; nodes.len()],
        };
        if graph.made.insert(layer.name(), calls).is_some() {
            return Err(model.refuse(format!("two of its layers are called `{}`", layer.name())));
        }
    }
    // Layers stand in an order in which they can be called; those that are called several times may need several rounds.
    let mut left: Vec<(usize, usize)> = Vec::new();
    for (i, nodes) in nodes.iter().enumerate() {
        if bound.iter().all(|(name, _)| name != layers[i].name()) {
            left.extend((0..nodes.len()).map(|n| (i, n)));
        }
    }
    while !left.is_empty() {
        let before = left.len();
        let mut later = Vec::new();
        for (i, n) in left {
            let layer = &layers[i];
            match arguments(&graph, layer, nodes[i][n])? {
                None => later.push((i, n)),
                Some((args, kwargs)) => {
                    let out = invoke(s, layer, args, kwargs)?;
                    if let Some(slot) = graph.made.get_mut(layer.name()).and_then(|c| c.get_mut(n)) {
                        *slot = Some(out);
                    }
                }
            }
        }
        if later.len() == before {
            let stuck: Vec<&str> = later.iter().take(3).map(|&(i, _)| layers[i].name()).collect();
            return Err(model.refuse(format!("its layers wait for each other: {}", stuck.join(", "))));
        }
        left = later;
    }
    outputs(&graph, &references(model, "output_layers")?)
}

fn outputs(graph: &Graph, r: &Refs) -> Convert<Outputs> {
    Ok(match r {
        Refs::One(one) => {
            let mut one = one.clone();
            // Among outputs, Keras 3 counts the calls of functional models from 1.
            if !graph.legacy && graph.functional.contains(&one.layer.as_str()) {
                one.node = one.node.saturating_sub(1);
            }
            let found = graph.get(&one)?;
            let found = found.ok_or_else(|| graph.model.refuse(format!("its output `{}` is never made", one.layer)))?;
            Outputs::One(one.layer.clone(), found)
        }
        Refs::List(items) => Outputs::List(items.iter().map(|i| outputs(graph, i)).collect::<Convert<_>>()?),
        Refs::Dict(items) => {
            let one = |(k, i): &(String, Refs)| Ok((k.clone(), outputs(graph, i)?));
            Outputs::Dict(items.iter().map(one).collect::<Convert<_>>()?)
        }
    })
}

type Arguments = (Vec<Arg>, Vec<(String, Arg)>);

/// The arguments of a call; `None` where some are not made yet.
fn arguments(graph: &Graph, layer: &Layer, node: &Json) -> Convert<Option<Arguments>> {
    let mut ready = true;
    let found = match node {
        Json::Array(refs) => legacy_arguments(graph, layer, refs, &mut ready)?,
        node => {
            let args = node.get("args").map(|a| argument(graph, layer, a, &mut ready, 0)).transpose()?;
            let kwargs = node.get("kwargs").map(|a| argument(graph, layer, a, &mut ready, 0)).transpose()?;
            let args = match args {
                Some(Arg::List(items)) => items,
                None => Vec::new(),
                Some(one) => vec![one],
            };
            let kwargs = match kwargs {
                Some(Arg::Dict(items)) => items,
                Some(Arg::Json(Json::Object(items))) => items.into_iter().map(|(k, v)| (k, Arg::Json(v))).collect(),
                _ => Vec::new(),
            };
            (args, kwargs)
        }
    };
    Ok(ready.then_some(found))
}

/// Keras 3: structures with tensors in them.
fn argument(graph: &Graph, layer: &Layer, v: &Json, ready: &mut bool, depth: usize) -> Convert<Arg> {
    if depth > DEEPEST {
        return Err(layer.refuse("its arguments are nested too deeply"));
    }
    let class = v.get("class_name").and_then(Json::as_str);
    match (class, v) {
        (Some("__keras_tensor__"), v) => {
            let history = v.get("config").and_then(|c| c.get("keras_history")).and_then(one_ref);
            let r = history.ok_or_else(|| layer.refuse("one of its arguments is malformed"))?;
            let found = graph.get(&r)?;
            *ready &= found.is_some();
            Ok(found.map_or(Arg::Json(Json::Null), Arg::Tensor))
        }
        (Some("__tuple__"), _) | (_, Json::Array(_)) => {
            let Json::Array(items) = plain(v) else { return Err(layer.refuse("one of its arguments is malformed")) };
            let items = items.iter().map(|i| argument(graph, layer, i, ready, depth + 1)).collect::<Convert<_>>()?;
            Ok(Arg::List(items))
        }
        (None, Json::Object(items)) => {
            let one = |(k, i): (&String, &Json)| Ok((k.clone(), argument(graph, layer, i, ready, depth + 1)?));
            Ok(Arg::Dict(items.iter().map(one).collect::<Convert<_>>()?))
        }
        _ => Ok(Arg::Json(v.clone())),
    }
}

/// Keras 2: a list of `[layer, node, tensor, kwargs]`, or a dictionary of these.
fn legacy_arguments(graph: &Graph, layer: &Layer, refs: &[Json], ready: &mut bool) -> Convert<Arguments> {
    let (mut args, mut kwargs) = (Vec::new(), Vec::new());
    // A call with one argument may be written without the list around it.
    let single = refs.first().is_some_and(Json::is_string);
    let all: Vec<&[Json]> = match single {
        true => vec![refs],
        false => refs.iter().filter_map(|r| r.as_array().map(Vec::as_slice)).collect(),
    };
    for r in all {
        if let Some(Json::Object(more)) = r.get(3) {
            for (k, v) in more {
                kwargs.push((k.clone(), legacy_value(graph, v, ready)?));
            }
        }
        if r.first().and_then(Json::as_str) == Some("_CONSTANT_VALUE") {
            args.push(Arg::Json(r.get(2).cloned().unwrap_or(Json::Null)));
            continue;
        }
        let head = Json::Array(r.iter().take(3).cloned().collect());
        let r = one_ref(&head).ok_or_else(|| layer.refuse("one of its inputs is malformed"))?;
        let found = graph.get(&r)?;
        *ready &= found.is_some();
        args.extend(found.map(Arg::Tensor));
    }
    // Several tensors are one argument, a list.
    let args = if args.len() > 1 { vec![Arg::List(args)] } else { args };
    Ok((args, kwargs))
}

fn legacy_value(graph: &Graph, v: &Json, ready: &mut bool) -> Convert<Arg> {
    if let Json::Array(items) = v {
        if let Some(r) = one_ref(v).filter(|r| graph.made.contains_key(r.layer.as_str())) {
            let found = graph.get(&r)?;
            *ready &= found.is_some();
            return Ok(found.map_or(Arg::Json(Json::Null), Arg::Tensor));
        }
        let tensors = |i: &Json| one_ref(i).is_some_and(|r| graph.made.contains_key(r.layer.as_str()));
        if !items.is_empty() && items.iter().all(tensors) {
            let items = items.iter().map(|i| legacy_value(graph, i, ready)).collect::<Convert<_>>()?;
            return Ok(Arg::List(items));
        }
    }
    Ok(Arg::Json(v.clone()))
}
