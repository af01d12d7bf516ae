//! Conversion of a model: its graph, its functions, and the scopes of names in them.

use std::{borrow::Borrow, collections::BTreeSet};

use hashbrown::{HashMap, HashSet};

use super::{
    custom,
    elem::Elem,
    history,
    listing::{Listing, described},
    node::Node,
    ops,
    proto::{
        AttributeProto, DimensionValue, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
        TensorProto, TypeProto, TypeValue, ValueInfoProto,
    },
    tensors::{self, Files},
};
use crate::{
    diag::{Diagnostic, Refused, nearest},
    frontend::{Builder, Convert, LoadOptions, Model},
    ir::{Dim, ExprId, Span, TensorType, Type, VarId},
    tensor::{DType, Tensor},
};

/// How deep functions and bodies may be nested.
const MOST_NESTED: usize = 64;

/// How many nodes may be converted in all: functions that call functions may multiply.
const MOST_NODES: usize = 1 << 22;

/// A tensor of the model.
#[derive(Copy, Clone, Debug)]
pub(super) struct Tens {
    /// What computes it.
    pub e: ExprId,
    /// Its elements, as ONNX sees them.
    pub elem: Elem,
}

/// A value of the model.
#[derive(Clone, Debug)]
pub(super) enum Val {
    /// A tensor.
    Tensor(Tens),
    /// A sequence, whose length is known when the model is read.
    Seq(Vec<Val>),
    /// A sequence whose length is known only while running.
    List(List),
    /// A sequence of maps, one for each row of a matrix.
    Maps {
        /// The values: a column for each key.
        values: Tens,
        /// The keys, which all maps share.
        keys: Tens,
    },
    /// An optional value that is absent.
    Absent,
    /// An optional value of which only running shows whether it is there.
    Maybe {
        /// Whether it is.
        there: Tens,
        /// The value, where it is; anything of its structure, where it is not.
        value: Box<Val>,
    },
}

/// A sequence of tensors with one number of axes, whose length is known only while running.
#[derive(Copy, Clone, Debug)]
pub(super) struct List {
    /// The elements of all its tensors, one after another, along one axis.
    pub data: Tens,
    /// Their shapes, a row each, of `int64`.
    pub shapes: ExprId,
}

impl List {
    fn shapes(&self) -> Tens {
        Tens { e: self.shapes, elem: Elem::Plain(DType::I64) }
    }
}

impl Val {
    /// The tensors that it is made of.
    pub(super) fn tensors(&self) -> Vec<Tens> {
        match self {
            Val::Tensor(t) => vec![*t],
            Val::Seq(items) => items.iter().flat_map(Val::tensors).collect(),
            Val::List(l) => vec![l.data, l.shapes()],
            Val::Maps { values, keys } => vec![*values, *keys],
            Val::Absent => Vec::new(),
            Val::Maybe { there, value } => [*there].into_iter().chain(value.tensors()).collect(),
        }
    }

    /// The same structure with other tensors.
    pub(super) fn rebuilt(&self, next: &mut impl FnMut(Tens) -> Tens) -> Val {
        match self {
            Val::Tensor(t) => Val::Tensor(next(*t)),
            Val::Seq(items) => Val::Seq(items.iter().map(|v| v.rebuilt(next)).collect()),
            Val::List(l) => Val::List(List { data: next(l.data), shapes: next(l.shapes()).e }),
            Val::Maps { values, keys } => Val::Maps { values: next(*values), keys: next(*keys) },
            Val::Absent => Val::Absent,
            Val::Maybe { there, value } => {
                let there = next(*there);
                Val::Maybe { there, value: value.rebuilt(next).into() }
            }
        }
    }
}

/// What is captured from outside by a function of the program: the value there, and the parameter that stands for it.
pub(super) struct Capture {
    pub outer: ExprId,
    pub var: VarId,
    pub inner: ExprId,
}

/// Names and what they mean.
#[derive(Default)]
pub(super) struct Frame {
    names: HashMap<String, Val>,
    /// Whether names that are not here are looked up in the frame around.
    sees_outer: bool,
    /// Of a function of the program: what it takes from outside. Tensors of frames around are parameters within.
    captures: Option<Vec<Capture>>,
}

impl Frame {
    /// A body's: it sees what is around.
    pub(super) fn body() -> Frame {
        Frame { sees_outer: true, ..Frame::default() }
    }

    /// What was taken from outside.
    pub(super) fn into_captures(self) -> Vec<Capture> {
        self.captures.unwrap_or_default()
    }

    /// That of a body that becomes a function of the program.
    pub(super) fn function() -> Frame {
        Frame { sees_outer: true, captures: Some(Vec::new()), ..Frame::default() }
    }
}

/// The versions of operators that are meant, by domain.
type Opsets = HashMap<String, i64>;

/// What a model is converted with.
pub(super) struct Importer<'m> {
    pub b: Builder,
    file: &'m str,
    options: &'m LoadOptions,
    files: Files<'m>,
    listing: Listing,
    functions: HashMap<(&'m str, &'m str, &'m str), &'m FunctionProto>,
    frames: Vec<Frame>,
    /// The versions that hold where nodes are converted: the model's, or a function's.
    opsets: Vec<Opsets>,
    /// Attributes that were given to the functions whose nodes are converted.
    attributes: Vec<HashMap<&'m str, &'m AttributeProto>>,
    dims: Vec<String>,
    nodes: usize,
    pub loops: usize,
}

/// Converts a model.
///
/// `weights` are the initializers of its graph, which does not have them any more: each goes as soon as it is a tensor, so that not all of them are in memory
/// as messages and as tensors at once.
pub(super) fn import(
    model: &ModelProto,
    weights: Vec<TensorProto>,
    file: &str,
    files: Files,
    options: &LoadOptions,
) -> Result<Model, Refused> {
    let refuse = |m: String| Refused::from(Diagnostic::new(format!("{}: {m}", file)));
    let graph = model.graph.as_ref().ok_or_else(|| refuse("the ONNX model has no graph".into()))?;
    let mut functions = HashMap::new();
    for f in &model.functions {
        if functions.insert((domain(&f.domain), f.name.as_str(), f.overload.as_str()), f).is_some() {
            return Err(refuse(format!("the function {}.{} is defined twice", f.domain, f.name)));
        }
    }
    let opsets = versions(&model.opset_import, model.ir_version).map_err(refuse)?;
    let im = Importer {
        b: Builder::new(),
        file,
        options,
        files,
        listing: Listing::of(file, model),
        functions,
        frames: vec![Frame::default()],
        opsets: vec![opsets],
        attributes: Vec::new(),
        dims: Vec::new(),
        nodes: 0,
        loops: 0,
    };
    im.main(graph, weights)
}

/// A domain by its short name.
pub(super) fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

fn versions(imports: &[OperatorSetIdProto], ir_version: i64) -> Result<Opsets, String> {
    let mut found = Opsets::new();
    for i in imports {
        if domain(&i.domain).is_empty() && !(1..=history::NEWEST).contains(&i.version) {
            return Err(format!(
                "the model imports version {} of ONNX's operators; 1 to {} are known",
                i.version,
                history::NEWEST
            ));
        }
        let known = found.entry(domain(&i.domain).to_owned()).or_insert(i.version);
        *known = i.version.max(*known);
    }
    // The first models did not say.
    if found.is_empty() && ir_version < 3 {
        found.insert(String::new(), 1);
    }
    Ok(found)
}

impl<'m> Importer<'m> {
    fn refuse(&self, message: impl Into<String>) -> Refused {
        Diagnostic::new(format!("{}: {}", self.file, message.into())).into()
    }

    fn main(mut self, graph: &'m GraphProto, weights: Vec<TensorProto>) -> Result<Model, Refused> {
        self.initializers(weights, graph)?;
        let mut names: Vec<&str> = Vec::new();
        for input in &graph.input {
            if names.contains(&input.name.as_str()) {
                return Err(self.refuse(format!("the model has two inputs `{}`", input.name)));
            }
            names.push(&input.name);
            if !self.frames[0].names.contains_key(&input.name) {
                self.input(input)?;
            }
        }
        let dims: Vec<&str> = self.dims.iter().map(String::as_str).collect();
        self.options.check_names(self.file, &names, &dims)?;
        self.nodes_of(&graph.node)?;
        let mut outputs = Vec::new();
        let mut named = HashSet::new();
        for output in &graph.output {
            let value = self
                .lookup(&output.name)
                .ok_or_else(|| self.refuse(format!("the output `{}` is computed by no node", output.name)))?;
            let name = match named.insert(output.name.clone()) {
                true => output.name.clone(),
                false => named.len().to_string(),
            };
            self.output(&name, &value, &mut outputs)?;
        }
        Ok(self.b.finish(&outputs))
    }

    /// Flattens an output as npz archives have it.
    fn output(&mut self, name: &str, value: &Val, outputs: &mut Vec<(String, ExprId)>) -> Convert<()> {
        match value {
            Val::Tensor(t) => {
                if t.elem == Elem::Text {
                    self.b.name_text(name);
                }
                outputs.push((name.to_owned(), t.e));
            }
            Val::Seq(items) if items.is_empty() => {
                let none = self.b.constant(Tensor::zeros(DType::F32, &[0]));
                outputs.push((format!("{name}#"), none));
            }
            Val::Seq(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.output(&format!("{name}#{i}"), item, outputs)?;
                }
            }
            Val::Maps { values, keys } => {
                self.output(name, &Val::Tensor(*values), outputs)?;
                self.output(&format!("{name}#keys"), &Val::Tensor(*keys), outputs)?;
            }
            Val::List(l) => {
                outputs.push((format!("{name}#data"), l.data.e));
                outputs.push((format!("{name}#shapes"), l.shapes));
            }
            Val::Absent => {}
            Val::Maybe { there, value } => {
                outputs.push((format!("{name}#there"), there.e));
                self.output(name, value, outputs)?;
            }
        }
        Ok(())
    }

    /// Declares an input of the model.
    fn input(&mut self, info: &ValueInfoProto) -> Result<(), Refused> {
        let ty = info.r#type.as_ref();
        let value = self.input_value(&info.name, &info.name, ty)?;
        self.frames[0].names.insert(info.name.clone(), value);
        Ok(())
    }

    fn input_value(&mut self, input: &str, key: &str, ty: Option<&TypeProto>) -> Convert<Val> {
        let given = self.options.given.as_ref();
        match ty.and_then(|t| t.value.as_ref()) {
            Some(TypeValue::Tensor(t)) => {
                let elem = Elem::of(t.elem_type)
                    .ok_or_else(|| self.refuse(format!("the input `{input}` has elements of type {}", t.elem_type)))?;
                let mut shape = match (&t.shape, self.options.shape_of(input)) {
                    (declared, Some(shape)) => {
                        let rank = declared.as_ref().map_or(shape.len(), |d| d.dim.len());
                        if rank != shape.len() {
                            let message =
                                format!("the input `{input}` has {rank} axes, but --shape gives {}", shape.len());
                            return Err(self.refuse(message));
                        }
                        shape.iter().map(|d| d.map_or(Dim::Any, Dim::Known)).collect()
                    }
                    (Some(declared), None) => self.declared(&declared.dim),
                    (None, None) => {
                        let rank = given.and_then(|g| g.iter().find(|(n, _)| n == key)).map(|g| g.1);
                        let text = usize::from(elem == Elem::Text);
                        let rank = rank.ok_or_else(|| {
                            let message =
                                format!("{}: the model does not say how many axes the input `{input}` has", self.file);
                            Refused::from(Diagnostic::new(message).help(format!("say so: --shape {input}=?x3")))
                        })?;
                        vec![Dim::Any; rank.saturating_sub(text)]
                    }
                };
                if elem == Elem::Text {
                    shape.push(Dim::Any);
                }
                let ty = TensorType::of(shape, elem.storage());
                if !ty.is_sensible() {
                    return Err(self.refuse(format!("the input `{input}` is {ty}, which no memory holds")));
                }
                let names = match (&t.shape, self.options.shape_of(input)) {
                    // Elements of a sequence differ in what a name means.
                    (Some(declared), None) if key == input => self.open_dims(&declared.dim),
                    _ => Vec::new(),
                };
                let e = self.b.input(key, ty.into());
                self.b.name_dims(names);
                Ok(Val::Tensor(Tens { e, elem }))
            }
            Some(TypeValue::Optional(of)) => {
                let there =
                    |(n, _): &&(String, usize)| n == key || n.strip_prefix(key).is_some_and(|r| r.starts_with('#'));
                match given.is_some_and(|g| g.iter().any(|g| there(&g))) {
                    true => self.input_value(input, key, of.elem_type.as_deref()),
                    false => Ok(Val::Absent),
                }
            }
            Some(TypeValue::Sequence(of)) => {
                let count =
                    given.map(|g| (0..).take_while(|i| g.iter().any(|(n, _)| *n == format!("{key}#{i}"))).count());
                let Some(count) = count else {
                    let message = format!(
                        "{}: the input `{input}` is a sequence, whose length the model does not say",
                        self.file
                    );
                    return Err(Diagnostic::new(message).help("`resat run` takes it from its --inputs").into());
                };
                if count == 0 {
                    // An empty sequence has a key, too.
                    self.b.input(&format!("{key}#"), Type::tensor(&[0], DType::F32));
                }
                let items = (0..count).map(|i| self.input_value(input, &format!("{key}#{i}"), of.elem_type.as_deref()));
                Ok(Val::Seq(items.collect::<Convert<_>>()?))
            }
            _ => Err(self.refuse(format!("the input `{input}` is neither a tensor nor a sequence or optional value"))),
        }
    }

    fn declared(&mut self, dims: &[super::proto::Dimension]) -> Vec<Dim> {
        let mut shape = Vec::new();
        for d in dims {
            shape.push(match &d.value {
                Some(DimensionValue::Value(n)) if *n >= 0 => Dim::Known(*n),
                Some(DimensionValue::Param(name)) if !name.is_empty() => {
                    if !self.dims.contains(name) {
                        self.dims.push(name.clone());
                    }
                    self.options.dim(name).map_or(Dim::Any, Dim::Known)
                }
                _ => Dim::Any,
            });
        }
        shape
    }

    /// The names of extents that stay open.
    fn open_dims(&self, dims: &[super::proto::Dimension]) -> Vec<String> {
        // Some exporters write `?` for whatever is unknown, which names nothing.
        let is_name = |name: &str| name.contains(char::is_alphanumeric);
        let name = |d: &super::proto::Dimension| match &d.value {
            Some(DimensionValue::Param(name)) if is_name(name) && self.options.dim(name).is_none() => name.clone(),
            _ => String::new(),
        };
        dims.iter().map(name).collect()
    }

    /// Declares the constants of a graph: these, and its sparse ones.
    fn initializers(
        &mut self,
        dense: impl IntoIterator<Item = impl Borrow<TensorProto>>,
        graph: &'m GraphProto,
    ) -> Convert<()> {
        for t in dense {
            let t = t.borrow();
            let (elem, value) =
                tensors::read(t, &self.files).map_err(|e| self.refuse(format!("the initializer `{}` {e}", t.name)))?;
            self.weight(&t.name, elem, value)?;
        }
        for t in &graph.sparse_initializer {
            let name = t.values.as_ref().map_or("", |v| v.name.as_str());
            let (elem, value) = tensors::read_sparse(t, &self.files)
                .map_err(|e| self.refuse(format!("the initializer `{name}` {e}")))?;
            self.weight(name, elem, value)?;
        }
        Ok(())
    }

    fn weight(&mut self, name: &str, elem: Elem, value: Tensor) -> Convert<()> {
        // Only what is large is worth a parameter of its own.
        let e = if value.len() > 64 { self.b.weight(name, value) } else { self.b.constant(value) };
        let frame = self.frames.len() - 1;
        match self.frames[frame].names.insert(name.to_owned(), Val::Tensor(Tens { e, elem })) {
            None => Ok(()),
            Some(_) => Err(self.refuse(format!("there are two values `{name}`"))),
        }
    }

    /// What a name means.
    pub(super) fn lookup(&mut self, name: &str) -> Option<Val> {
        let mut at = self.frames.len();
        let found = loop {
            at -= 1;
            if let Some(v) = self.frames[at].names.get(name) {
                break v.clone();
            }
            if !self.frames[at].sees_outer || at == 0 {
                return None;
            }
        };
        // Functions of the program on the way take it as a parameter.
        let mut value = found;
        for k in at + 1..self.frames.len() {
            if self.frames[k].captures.is_some() {
                value = value.rebuilt(&mut |t| self.capture(k, name, t));
            }
        }
        Some(value)
    }

    fn capture(&mut self, frame: usize, name: &str, t: Tens) -> Tens {
        let mut captures = self.frames[frame].captures.take().unwrap_or_default();
        let e = self.captured(&mut captures, name, t.e);
        self.frames[frame].captures = Some(captures);
        Tens { e, ..t }
    }

    /// A tensor within a function of the program: a constant, or a parameter, which is noted.
    pub(super) fn captured(&mut self, captures: &mut Vec<Capture>, name: &str, outer: ExprId) -> ExprId {
        if let Some(value) = self.b.value(outer) {
            return self.b.constant(value);
        }
        if let Some(known) = captures.iter().find(|c| c.outer == outer) {
            return known.inner;
        }
        let ty = self.b.ty(outer).clone();
        let (var, inner) = self.b.var(name, ty);
        captures.push(Capture { outer, var, inner });
        inner
    }

    /// Within a frame of its own, the values of a body's outputs, given its inputs; and the frame.
    pub(super) fn body(&mut self, graph: &'m GraphProto, inputs: Vec<Val>, frame: Frame) -> Convert<(Vec<Val>, Frame)> {
        if self.frames.len() >= MOST_NESTED {
            return Err(self.b.refuse("bodies and functions are nested too deeply"));
        }
        self.frames.push(frame);
        let result = self.body_inside(graph, inputs);
        let frame = self.frames.pop().unwrap_or_default();
        Ok((result?, frame))
    }

    fn body_inside(&mut self, graph: &'m GraphProto, inputs: Vec<Val>) -> Convert<Vec<Val>> {
        self.initializers(&graph.initializer, graph)?;
        if inputs.len() > graph.input.len() {
            return Err(self.b.refuse(format!(
                "its body takes {} inputs, but is given {}",
                graph.input.len(),
                inputs.len()
            )));
        }
        let top = self.frames.len() - 1;
        for (info, value) in graph.input.iter().zip(inputs) {
            self.frames[top].names.insert(info.name.clone(), value);
        }
        self.nodes_of(&graph.node)?;
        let output = |im: &mut Self, o: &ValueInfoProto| {
            im.lookup(&o.name)
                .ok_or_else(|| im.b.refuse(format!("the output `{}` of its body is computed by no node", o.name)))
        };
        graph.output.iter().map(|o| output(self, o)).collect()
    }

    fn nodes_of(&mut self, nodes: &'m [NodeProto]) -> Convert<()> {
        for node in in_order(nodes) {
            self.nodes += 1;
            if self.nodes > MOST_NODES {
                return Err(self.refuse("the model's functions have too many nodes in all"));
            }
            let span = self.listing.span(node);
            let before = self.b.at(span);
            let done = self.node(node).map_err(|r| located(r, node));
            self.b.at(before);
            done?;
        }
        Ok(())
    }

    fn node(&mut self, node: &'m NodeProto) -> Convert<()> {
        let mut inputs = Vec::new();
        for name in &node.input {
            inputs.push(match name.is_empty() {
                true => None,
                false => Some(self.lookup(name).ok_or_else(|| {
                    self.b.refuse(format!(
                        "reads `{name}`, which is no input, no initializer and no earlier node's output"
                    ))
                })?),
            });
        }
        // Values that are absent are as if they were not given, except to what asks for that.
        let outputs = self.convert(node, inputs)?;
        if outputs.len() < node.output.len() && node.output[outputs.len()..].iter().any(|o| !o.is_empty()) {
            let message = format!("has {} outputs, but {} are supported", node.output.len(), outputs.len());
            return Err(self.b.refuse(message));
        }
        let top = self.frames.len() - 1;
        for (name, value) in node.output.iter().zip(outputs).filter(|(n, _)| !n.is_empty()) {
            if self.frames[top].names.insert(name.clone(), value).is_some() {
                return Err(self.b.refuse(format!("computes `{name}`, but there is another value of that name")));
            }
        }
        Ok(())
    }

    fn convert(&mut self, node: &'m NodeProto, inputs: Vec<Option<Val>>) -> Convert<Vec<Val>> {
        let d = domain(&node.domain);
        if let Some(&f) = self.functions.get(&(d, node.op_type.as_str(), node.overload.as_str())) {
            return self.function(f, node, inputs);
        }
        let version = self.opsets.last().and_then(|o| o.get(d)).copied();
        let Some(row) = ops::find(d, &node.op_type) else {
            return match custom::find(d, &node.op_type) {
                Some(op) => {
                    custom::convert(&mut Node { im: self, proto: node, inputs, version: version.unwrap_or(1) }, op)
                }
                None => Err(self.unknown(node)),
            };
        };
        let version = match version {
            Some(v) => v,
            // Exporters forget domains that are not ONNX's own.
            None if !d.is_empty() => 1,
            None => return Err(self.b.refuse("the model does not import ONNX's own operators")),
        };
        if let Some(since) = history::since(d, &node.op_type)
            && version < since[0]
        {
            let message = format!("is an operator since version {}, but the model imports version {version}", since[0]);
            return Err(self.b.refuse(message));
        }
        (row.convert)(&mut Node { im: self, proto: node, inputs, version })
    }

    fn unknown(&self, node: &NodeProto) -> Refused {
        let d = domain(&node.domain);
        let shown = if d.is_empty() { "ai.onnx" } else { d };
        let diagnostic =
            Diagnostic::new(format!("the operator `{}` of domain `{shown}` is not supported", node.op_type))
                .at(self.span(node));
        let known = ops::all().filter(|r| r.domain == d).map(|r| r.op);
        Refused::from(match nearest(&node.op_type, known) {
            Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
            None if !d.is_empty() => custom::help(diagnostic, d, &node.op_type),
            None => diagnostic,
        })
    }

    fn function(&mut self, f: &'m FunctionProto, node: &'m NodeProto, inputs: Vec<Option<Val>>) -> Convert<Vec<Val>> {
        if self.frames.len() >= MOST_NESTED {
            return Err(self.b.refuse("functions are nested too deeply, or call themselves"));
        }
        if inputs.len() > f.input.len() {
            return Err(self.b.refuse(format!("takes {} inputs, but is given {}", f.input.len(), inputs.len())));
        }
        let given: HashMap<&str, &AttributeProto> =
            node.attribute.iter().filter_map(|a| self.resolved(a).map(|r| (a.name.as_str(), r))).collect();
        let defaults = f.attribute_proto.iter().map(|a| (a.name.as_str(), a));
        let attributes = defaults.chain(given).collect();
        let mut opsets = versions(&f.opset_import, 10).map_err(|e| self.b.refuse(e))?;
        for (d, v) in self.opsets.last().into_iter().flatten() {
            opsets.entry(d.clone()).or_insert(*v);
        }
        let mut frame = Frame::default();
        for (name, value) in f.input.iter().zip(inputs.into_iter().chain(std::iter::repeat(None))) {
            frame.names.insert(name.clone(), value.unwrap_or(Val::Absent));
        }
        self.frames.push(frame);
        self.opsets.push(opsets);
        self.attributes.push(attributes);
        let outputs = self.nodes_of(&f.node).and_then(|()| {
            let output = |name: &String| {
                self.lookup(name).ok_or_else(|| self.b.refuse(format!("its output `{name}` is computed by no node")))
            };
            f.output.iter().map(output).collect()
        });
        self.frames.pop();
        self.opsets.pop();
        self.attributes.pop();
        outputs
    }

    /// An attribute as it was given, where it refers to one of the function around.
    pub(super) fn resolved(&self, a: &'m AttributeProto) -> Option<&'m AttributeProto> {
        match a.ref_attr_name.is_empty() {
            true => Some(a),
            false => self.attributes.last().and_then(|known| known.get(a.ref_attr_name.as_str()).copied()),
        }
    }

    /// Where a node is in the model's listing.
    pub(super) fn span(&self, node: &NodeProto) -> Option<Span> {
        self.listing.span(node)
    }

    /// The files beside the model, for data in them.
    pub(super) fn files(&self) -> &Files<'m> {
        &self.files
    }
}

/// Nodes in an order in which what they read is computed before: as they are, as a rule. Those that wait for each other in a circle
/// stay at the end.
fn in_order(nodes: &[NodeProto]) -> Vec<&NodeProto> {
    let outputs = nodes.iter().enumerate().flat_map(|(i, n)| n.output.iter().map(move |o| (o.as_str(), i)));
    let by: HashMap<&str, usize> = outputs.filter(|(o, _)| !o.is_empty()).collect();
    let reads: Vec<Vec<usize>> = nodes
        .iter()
        .map(|n| {
            let mut names = Vec::new();
            read_by(n, &mut names);
            names.iter().filter_map(|name| by.get(name).copied()).collect()
        })
        .collect();
    if reads.iter().enumerate().all(|(i, r)| r.iter().all(|&k| k < i)) {
        return nodes.iter().collect();
    }
    let mut waits: Vec<usize> = reads.iter().map(Vec::len).collect();
    let mut readers = vec![Vec::new(); nodes.len()];
    reads.iter().enumerate().for_each(|(i, r)| r.iter().for_each(|&k| readers[k].push(i)));
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|&i| waits[i] == 0).collect();
    let mut ordered = Vec::new();
    while let Some(i) = ready.pop_first() {
        ordered.push(i);
        for &k in &readers[i] {
            waits[k] -= 1;
            if waits[k] == 0 {
                ready.insert(k);
            }
        }
    }
    ordered.extend((0..nodes.len()).filter(|&i| waits[i] > 0));
    ordered.into_iter().map(|i| &nodes[i]).collect()
}

/// The names that a node reads, its bodies included.
fn read_by<'a>(node: &'a NodeProto, names: &mut Vec<&'a str>) {
    names.extend(node.input.iter().map(String::as_str));
    for graph in node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)) {
        graph.node.iter().for_each(|n| read_by(n, names));
        names.extend(graph.output.iter().map(|o| o.name.as_str()));
    }
}

/// A refusal that names the node.
fn located(r: Refused, node: &NodeProto) -> Refused {
    let named = |mut d: Diagnostic| {
        if !d.message.starts_with("node ") {
            let outputs = node.output.first().map_or("", String::as_str);
            d.message = format!("node {} (output `{outputs}`): {}", described(node), d.message);
        }
        d
    };
    Refused(r.0.into_iter().map(named).collect())
}
