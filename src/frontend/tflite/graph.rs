//! From subgraphs to Relay: operators in order, each by its rule.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{
    builtins::Rule,
    constants,
    node::Node,
    schema::{Element, Graph, ModelFile, Operator, TensorInfo},
};
use crate::{
    diag::{Diagnostic, Refused},
    frontend::{Builder, Convert, LoadOptions, Model},
    ir::{AttrValue, Dim, ExprId, Source, Span, TensorType, Type},
    tensor::Tensor,
};

/// Subgraphs may call each other; so deep at most.
const DEEPEST: usize = 64;

/// So many operators at most, those of subgraphs each time that they are called.
const MOST_OPERATORS: usize = 1 << 18;

/// A variable of more bytes is refused: files say sizes without paying for them.
const LARGEST_VARIABLE: usize = 1 << 27;

/// A constant of more bytes is a parameter of `@main`.
const LARGEST_CONSTANT: usize = 64;

/// What a tensor of the model is in Relay.
#[derive(Clone, Debug)]
pub(super) enum Val {
    /// A tensor.
    One(ExprId),
    /// Complex numbers: real and imaginary parts.
    Complex(ExprId, ExprId),
    /// A handle to a variable, by name.
    Handle(String),
}

/// A model that is being read.
pub(super) struct Import<'a> {
    /// The Relay so far.
    pub(super) b: Builder,
    /// The file.
    pub(super) file: &'a ModelFile<'a>,
    constants: HashMap<(usize, usize), ExprId>,
    /// Values of resource variables, by name.
    pub(super) variables: HashMap<String, ExprId>,
    /// Whether what is read now may run any number of times, or not at all.
    pub(super) conditional: bool,
    depth: usize,
    operators: usize,
    lines: Vec<Vec<Span>>,
}

/// The operators of all subgraphs, one a line, and where each is.
fn listing(name: &str, file: &ModelFile) -> Vec<Vec<Span>> {
    let mut text = String::new();
    let mut places: Vec<Vec<(usize, usize)>> = Vec::new();
    for g in &file.graphs {
        text.push_str(&format!("subgraph {}\n", g.name));
        let mut of_graph = Vec::new();
        for o in &g.operators {
            let names = |ts: Vec<&str>| ts.iter().map(|t| format!("`{t}`")).collect::<Vec<_>>().join(", ");
            let inputs = o.inputs.iter().map(|t| t.map_or("", |t| g.tensors[t].name.as_str())).collect();
            let outputs = o.outputs.iter().map(|&t| g.tensors[t].name.as_str()).collect();
            let line = format!("{} {} -> {}", o.name, names(inputs), names(outputs));
            let start = text.len() + 2;
            of_graph.push((start, start + line.len()));
            text.push_str(&format!("  {}\n", line.replace('\n', " ")));
        }
        places.push(of_graph);
    }
    let source = Arc::new(Source { name: name.to_owned(), text });
    let span = |(start, end): (usize, usize)| Span { source: source.clone(), start: start as u32, end: end as u32 };
    places.into_iter().map(|g| g.into_iter().map(span).collect()).collect()
}

/// Reads a decoded model.
pub(super) fn import(name: &str, file: &ModelFile, options: &LoadOptions) -> Result<Model, Refused> {
    let main = &file.graphs[0];
    let lines = listing(name, file);
    let mut im = Import {
        b: Builder::new(),
        file,
        constants: HashMap::new(),
        variables: HashMap::new(),
        conditional: false,
        depth: 0,
        operators: 0,
        lines,
    };
    let signature = file.signatures.iter().find(|s| s.graph == 0);
    let alias = |names: Option<&Vec<(String, usize)>>, tensor: usize| {
        let of = names.and_then(|ns| ns.iter().find(|n| n.1 == tensor)).map(|n| n.0.clone());
        of.filter(|n| !n.is_empty())
    };
    let names: Vec<(&str, Option<String>)> =
        main.inputs.iter().map(|&t| (main.tensors[t].name.as_str(), alias(signature.map(|s| &s.inputs), t))).collect();
    let known: Vec<&str> = names.iter().flat_map(|(n, a)| [Some(*n), a.as_deref()]).flatten().collect();
    options.check_names(name, &known, &[])?;
    let mut args = Vec::new();
    for (&t, (own, alias)) in main.inputs.iter().zip(&names) {
        let info = &main.tensors[t];
        let Element::Plain(dtype) = info.element else {
            let message = format!("{name}: input `{own}` is of {:?}, which Relay has no tensors of", info.element);
            return Err(Diagnostic::new(message).into());
        };
        let given = options.shape_of(own).or_else(|| alias.as_deref().and_then(|a| options.shape_of(a)));
        let unknown = file.tells_ranks && !info.has_rank && info.shape.is_empty();
        // Inputs that are there say how many axes they have.
        let there = options.rank_of(own).or_else(|| alias.as_deref().and_then(|a| options.rank_of(a)));
        let shape = match (unknown, given) {
            (true, Some(given)) => given.to_vec(),
            (true, None) if there.is_some() => vec![None; there.unwrap_or_default()],
            // Inputs that are there say how many axes they have.
            (true, None) => {
                let d = Diagnostic::new(format!("{name}: input `{own}` has no known number of axes"));
                return Err(d.help(format!("say its shape: --shape '{own}=1x224x224x3'")).into());
            }
            (false, _) => shape_of_input(name, own, &info.shape, given)?,
        };
        let ty = TensorType::of(shape.iter().map(|d| d.map_or(Dim::Any, Dim::Known)), dtype);
        args.push(Val::One(im.b.input_called(own, alias.as_deref().unwrap_or(own), ty.into())));
    }
    let results = im.run(0, args)?;
    let mut outputs = Vec::new();
    for (i, (&t, v)) in main.outputs.iter().zip(results).enumerate() {
        let info = &main.tensors[t];
        let Val::One(e) = v else {
            let message = format!("{name}: output {i} (`{}`) is no tensor of plain numbers", info.name);
            return Err(Diagnostic::new(message).into());
        };
        let own = alias(signature.map(|s| &s.outputs), t).unwrap_or_else(|| info.name.clone());
        outputs.push((own, e));
    }
    Ok(im.b.finish(&outputs))
}

/// The shape of an input: the model's, with what the user says of it.
fn shape_of_input(
    file: &str,
    name: &str,
    shape: &[Option<i64>],
    given: Option<&[Option<i64>]>,
) -> Result<Vec<Option<i64>>, Refused> {
    let Some(given) = given else { return Ok(shape.to_vec()) };
    let fits = given.len() == shape.len() && given.iter().zip(shape).all(|(g, s)| s.is_none() || g == s);
    let text =
        |s: &[Option<i64>]| s.iter().map(|d| d.map_or("?".to_owned(), |d| d.to_string())).collect::<Vec<_>>().join("x");
    match fits {
        true => Ok(given.to_vec()),
        false => {
            let message = format!("{file}: input `{name}` is {}, which {} does not fit", text(shape), text(given));
            Err(Diagnostic::new(message).into())
        }
    }
}

impl<'a> Import<'a> {
    /// The results of a subgraph for arguments.
    pub(super) fn run(&mut self, graph: usize, args: Vec<Val>) -> Convert<Vec<Val>> {
        let file = self.file;
        let g = file.graphs.get(graph).ok_or_else(|| self.b.refuse(format!("there is no subgraph {graph}")))?;
        if self.depth >= DEEPEST {
            return Err(self.b.refuse(format!("subgraphs call each other more than {DEEPEST} deep")));
        }
        if args.len() != g.inputs.len() {
            let message = format!("{} takes {} inputs, but is given {}", g.name, g.inputs.len(), args.len());
            return Err(self.b.refuse(message));
        }
        self.depth += 1;
        let mut values: Vec<Option<Val>> = vec![None; g.tensors.len()];
        for (&t, v) in g.inputs.iter().zip(args) {
            values[t] = Some(v);
        }
        for (i, op) in g.operators.iter().enumerate() {
            let before = self.b.at(Some(self.lines[graph][i].clone()));
            self.operators += 1;
            if self.operators > MOST_OPERATORS {
                return Err(self.b.refuse(format!("the model runs more than {MOST_OPERATORS} operators")));
            }
            let results = self.operator(graph, g, op, &values)?;
            if results.len() < op.outputs.len() {
                let message =
                    format!("{} makes {} results, but {} are named", op.name, results.len(), op.outputs.len());
                return Err(self.b.refuse(message));
            }
            for (&t, v) in op.outputs.iter().zip(results) {
                self.check(&g.tensors[t], &v)?;
                values[t] = Some(self.refined(&g.tensors[t], v)?);
            }
            self.b.at(before);
        }
        let results = g.outputs.iter().map(|&t| self.value(graph, g, t, &values)).collect();
        self.depth -= 1;
        results
    }

    fn operator(
        &mut self,
        graph: usize,
        g: &'a Graph<'a>,
        op: &'a Operator<'a>,
        values: &[Option<Val>],
    ) -> Convert<Vec<Val>> {
        let mut args = Vec::with_capacity(op.inputs.len());
        for t in &op.inputs {
            args.push(t.map(|t| self.value(graph, g, t, values)).transpose()?);
        }
        let rule = match op.builtin {
            Some(b) => b.rule,
            None if op.is_custom => Rule::Plain(super::ops::custom::convert),
            None => Rule::Refused("it has no rule here"),
        };
        match rule {
            Rule::Values(f) => f(self, g, op, &args),
            Rule::Refused(why) => Err(Diagnostic::new(format!("{} is not supported", op.name))
                .at(self.lines[graph].get(index_of(g, op)).cloned())
                .help(why)
                .into()),
            Rule::Moves(f) if args.iter().any(|v| matches!(v, Some(Val::Complex(..)))) => {
                let mut parts = [Vec::new(), Vec::new()];
                for arg in args {
                    let (re, imaginary) = match arg {
                        None => (None, None),
                        Some(Val::One(e)) => (Some(e), Some(e)),
                        Some(Val::Complex(re, imaginary)) => (Some(re), Some(imaginary)),
                        Some(_) => return Err(self.b.refuse(format!("{} takes plain numbers only", op.name))),
                    };
                    parts[0].push(re);
                    parts[1].push(imaginary);
                }
                let [re, imaginary] = parts.map(|args| f(&mut Node::new(&mut self.b, g, op, args)));
                Ok(re?.into_iter().zip(imaginary?).map(|(re, imaginary)| Val::Complex(re, imaginary)).collect())
            }
            Rule::Plain(f) | Rule::Moves(f) => {
                let plain = args.into_iter().map(|v| match v {
                    None => Ok(None),
                    Some(Val::One(e)) => Ok(Some(e)),
                    Some(_) => Err(self.b.refuse(format!("{} takes plain numbers only", op.name))),
                });
                let args = plain.collect::<Convert<Vec<Option<ExprId>>>>()?;
                let mut node = Node::new(&mut self.b, g, op, args);
                Ok(f(&mut node)?.into_iter().map(Val::One).collect())
            }
        }
    }

    /// That a result has the element type that the file says.
    fn check(&self, info: &TensorInfo, v: &Val) -> Convert<()> {
        let (Val::One(e), Element::Plain(wanted)) = (v, info.element) else { return Ok(()) };
        let found = self.b.tensor(*e)?.dtype;
        match found == wanted {
            true => Ok(()),
            false => {
                let message = format!("the result `{}` is of {found}, but the file says {wanted}", info.name);
                Err(self.b.refuse(message))
            }
        }
    }

    /// A result with the extents that the file knows of it: they may follow from the values of tensors, such as shapes that are computed.
    fn refined(&mut self, info: &TensorInfo, v: Val) -> Convert<Val> {
        let Val::One(e) = v else { return Ok(v) };
        let found = self.b.tensor(e)?.shape.clone();
        let learns = |(d, n): (&Dim, &Option<i64>)| d.known().is_none() && n.is_some();
        // Where the file leaves no extent open, it may have been written before tensors could be said to have any.
        let says = found.len() == info.shape.len() && info.shape.contains(&None);
        if !says || !found.iter().zip(&info.shape).any(learns) {
            return Ok(v);
        }
        // Of a reshape, 0 is the extent that there is.
        let shape: Vec<i64> = found.iter().zip(&info.shape).map(|(d, n)| d.known().or(*n).unwrap_or(0)).collect();
        if shape.iter().zip(&info.shape).any(|(&n, said)| n == 0 && said.is_some()) {
            return Ok(v);
        }
        Ok(Val::One(self.b.op("reshape", &[e], &[("newshape", AttrValue::ints(&shape))])?))
    }

    /// What a tensor of a subgraph is.
    fn value(&mut self, graph: usize, g: &'a Graph<'a>, tensor: usize, values: &[Option<Val>]) -> Convert<Val> {
        if let Some(v) = &values[tensor] {
            return Ok(v.clone());
        }
        if let Some(&e) = self.constants.get(&(graph, tensor)) {
            return Ok(Val::One(e));
        }
        let info = &g.tensors[tensor];
        let value = match (constants::of(info), info.variable) {
            (Ok(Some(t)), _) => t,
            // What a variable holds at first.
            (Ok(None), true) => self.zeros(info)?,
            (Ok(None), false) if info.shape.contains(&Some(0)) => self.zeros(info)?,
            (Ok(None), false) => {
                return Err(self.b.refuse(format!("`{}` is used before anything makes it", info.name)));
            }
            (Err(e), _) => return Err(self.b.refuse(format!("`{}`: {e}", info.name))),
        };
        let e = match value.bytes().len() > LARGEST_CONSTANT {
            true => self.b.weight(&info.name, value),
            false => self.b.constant(value),
        };
        self.constants.insert((graph, tensor), e);
        Ok(Val::One(e))
    }

    fn zeros(&self, info: &TensorInfo) -> Convert<Tensor> {
        let shape: Option<Vec<usize>> = info.shape.iter().map(|d| d.and_then(|d| usize::try_from(d).ok())).collect();
        let elements = shape.as_ref().map_or(0, |s| s.iter().fold(1usize, |n, &d| n.saturating_mul(d)));
        match (shape, info.element) {
            (Some(shape), Element::Plain(dtype)) if elements.saturating_mul(dtype.bytes()) <= LARGEST_VARIABLE => {
                // Zero, in what stands for numbers.
                let zero = info.quant.as_ref().map_or(0, |q| q.zeros[0]);
                Ok(Tensor::from_i64_fn(dtype, &shape, |_| zero))
            }
            _ => Err(self.b.refuse(format!("the variable `{}` has no size that is known and supported", info.name))),
        }
    }

    /// What two branches, or two rounds of a loop, both are: extents that differ are open.
    pub(super) fn join(&self, a: ExprId, b: ExprId) -> Convert<TensorType> {
        let (x, y) = (self.b.tensor(a)?.clone(), self.b.tensor(b)?.clone());
        joined(&x, &y).ok_or_else(|| self.b.refuse(format!("{x} and {y} are not of one type")))
    }
}

/// The least type that both are of.
pub(super) fn joined(x: &TensorType, y: &TensorType) -> Option<TensorType> {
    let fits = x.dtype == y.dtype && x.rank() == y.rank();
    let dims = x.shape.iter().zip(y.shape.iter()).map(|(a, b)| if a == b { *a } else { Dim::Any });
    fits.then(|| TensorType::of(dims, x.dtype))
}

fn index_of(g: &Graph, op: &Operator) -> usize {
    g.operators.iter().position(|o| std::ptr::eq(o, op)).unwrap_or(0)
}

/// The type of several results: one by itself, several as a tuple.
pub(super) fn tuple_type(types: &[TensorType]) -> Type {
    match types {
        [one] => one.clone().into(),
        several => Type::tuple(several.iter().map(|t| Type::from(t.clone()))),
    }
}
