//! TVM's JSON as it stands: a numbered list of objects, with arrays beside it.

use std::{collections::BTreeMap, fmt::Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use hashbrown::{HashMap, HashSet};
use serde::Deserialize;

use super::schema::{self, Kind};
use crate::{
    diag::{Diagnostic, Refused},
    relay::params::{read_array, write_array},
    tensor::{DType, Tensor},
};

/// What TVM writes into every file.
const TVM_VERSION: &str = "0.14.0";

/// One object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Node {
    pub(super) type_key: String,
    #[serde(default)]
    pub(super) repr_str: Option<String>,
    #[serde(default)]
    pub(super) repr_b64: Option<String>,
    #[serde(default)]
    pub(super) attrs: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) keys: Vec<String>,
    #[serde(default)]
    pub(super) data: Vec<usize>,
}

/// A list of objects that refer to each other by number; number 0 is null.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    /// What the file is called, for messages.
    pub(super) file: String,
    pub(super) root: usize,
    pub(super) nodes: Vec<Node>,
    pub(super) arrays: Vec<Tensor>,
}

#[derive(Deserialize)]
struct Written {
    root: usize,
    nodes: Vec<Node>,
    #[serde(default)]
    b64ndarrays: Vec<String>,
}

impl Node {
    pub(super) fn new(type_key: &str) -> Node {
        Node { type_key: type_key.to_owned(), ..Node::default() }
    }

    /// An object that TVM writes as a string, such as a string or an operator.
    pub(super) fn with_repr(type_key: &str, repr: &str) -> Node {
        let mut node = Node::new(type_key);
        // TVM asks the C locale: ASCII without control characters goes as text.
        match repr.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            _ if repr.is_empty() => {}
            true => node.repr_str = Some(repr.to_owned()),
            false => {
                let framed = [&(repr.len() as u64).to_le_bytes(), repr.as_bytes()].concat();
                node.repr_b64 = Some(STANDARD.encode(framed));
            }
        }
        node
    }
}

impl Graph {
    /// Reads TVM's JSON text. `file` names it in messages.
    pub(super) fn parse(file: &str, text: &str) -> Result<Graph, Refused> {
        let refuse = |message: String| Refused::from(Diagnostic::new(format!("{file}: {message}")));
        let written: Written =
            serde_json::from_str(text).map_err(|e| refuse(format!("not in the form of TVM's JSON: {e}")))?;
        let count = written.nodes.len();
        let arrays = written
            .b64ndarrays
            .iter()
            .enumerate()
            .map(|(i, text)| read_array(&format!("{file}: array {i}"), &decode(text).map_err(&refuse)?))
            .collect::<Result<Vec<Tensor>, Refused>>()?;
        let graph = Graph { file: file.to_owned(), root: written.root, nodes: written.nodes, arrays };
        if graph.root >= count {
            return Err(refuse(format!("the root is node {}, but there are {count} nodes", graph.root)));
        }
        for (i, node) in graph.nodes.iter().enumerate() {
            if let Some(&bad) = node.data.iter().find(|&&n| n >= count) {
                return graph.refuse(i, format_args!("there is no node {bad}"));
            }
            let paired = if node.keys.is_empty() {
                node.data.len().is_multiple_of(2)
            } else {
                node.keys.len() == node.data.len()
            };
            if node.type_key == "Map" && !paired {
                return graph.refuse(i, "it has not as many keys as values");
            }
        }
        Ok(graph)
    }

    /// Refuses the file because of one node.
    pub(super) fn refuse<T>(&self, node: usize, message: impl std::fmt::Display) -> Result<T, Refused> {
        let what = match self.nodes[node].type_key.as_str() {
            "" => "null",
            key => key,
        };
        Err(Diagnostic::new(format!("{}: JSON node {node} ({what}): {message}", self.file)).into())
    }

    pub(super) fn key(&self, node: usize) -> &str {
        &self.nodes[node].type_key
    }

    /// A field's text.
    pub(super) fn text(&self, node: usize, field: &str) -> Result<&str, Refused> {
        match self.nodes[node].attrs.get(field) {
            Some(text) => Ok(text),
            None => self.refuse(node, format_args!("field `{field}` is missing")),
        }
    }

    /// A field that is an integer.
    pub(super) fn int(&self, node: usize, field: &str) -> Result<i64, Refused> {
        let text = self.text(node, field)?;
        match text.parse() {
            Ok(i) => Ok(i),
            Err(_) => self.refuse(node, format_args!("field `{field}` should be an integer, but is `{text}`")),
        }
    }

    /// A field that is a number.
    pub(super) fn float(&self, node: usize, field: &str) -> Result<f64, Refused> {
        let text = self.text(node, field)?;
        match text.parse() {
            Ok(f) => Ok(f),
            Err(_) => self.refuse(node, format_args!("field `{field}` should be a number, but is `{text}`")),
        }
    }

    /// A field that is an element type; `None` for TVM's void.
    pub(super) fn dtype(&self, node: usize, field: &str) -> Result<Option<DType>, Refused> {
        match self.text(node, field)? {
            "" | "void" => Ok(None),
            text => match text.parse() {
                Ok(d) => Ok(Some(d)),
                Err(e) => self.refuse(node, format_args!("field `{field}`: {e}")),
            },
        }
    }

    /// A field that is the number of another node; 0 for null.
    pub(super) fn reference(&self, node: usize, field: &str) -> Result<usize, Refused> {
        let text = self.text(node, field)?;
        match text.parse() {
            Ok(n) if n < self.nodes.len() => Ok(n),
            _ => self.refuse(node, format_args!("field `{field}` should be the number of a node, but is `{text}`")),
        }
    }

    /// A field that is a list: the numbers of its members. Null counts as empty.
    pub(super) fn list(&self, node: usize, field: &str) -> Result<&[usize], Refused> {
        let list = self.reference(node, field)?;
        match self.key(list) {
            "Array" => Ok(&self.nodes[list].data),
            "" => Ok(&[]),
            key => self.refuse(node, format_args!("field `{field}` should be a list, but is of type `{key}`")),
        }
    }

    /// A field that is a string object.
    pub(super) fn string(&self, node: usize, field: &str) -> Result<String, Refused> {
        let string = self.reference(node, field)?;
        match self.key(string) {
            "runtime.String" => self.repr(string),
            key => self.refuse(node, format_args!("field `{field}` should be a string, but is of type `{key}`")),
        }
    }

    /// A map's entries. Its keys are strings, or objects that have a `name_hint`.
    pub(super) fn entries(&self, map: usize) -> Result<Vec<(String, usize)>, Refused> {
        let node = &self.nodes[map];
        match node.type_key.as_str() {
            "" => Ok(Vec::new()),
            "Map" if !node.keys.is_empty() => Ok(node.keys.iter().cloned().zip(node.data.iter().copied()).collect()),
            "Map" => node
                .data
                .chunks_exact(2)
                .map(|kv| match self.key(kv[0]) {
                    "runtime.String" => Ok((self.repr(kv[0])?, kv[1])),
                    _ => Ok((self.string(kv[0], "name_hint")?, kv[1])),
                })
                .collect(),
            _ => self.refuse(map, "a map is wanted here"),
        }
    }

    /// An array that a field names.
    pub(super) fn array(&self, node: usize, field: &str) -> Result<&Tensor, Refused> {
        let text = self.text(node, field)?;
        match text.parse().ok().and_then(|n: usize| self.arrays.get(n)) {
            Some(t) => Ok(t),
            None => {
                self.refuse(node, format_args!("field `{field}` should be the number of an array, but is `{text}`"))
            }
        }
    }

    /// The text of an object that is written as a string.
    pub(super) fn repr(&self, node: usize) -> Result<String, Refused> {
        match &self.nodes[node] {
            Node { repr_str: Some(text), .. } => Ok(text.clone()),
            Node { repr_b64: Some(text), .. } => {
                let bytes = decode(text).or_else(|e| self.refuse(node, e))?;
                let text = bytes.get(8..).and_then(|b| std::str::from_utf8(b).ok());
                text.map_or_else(|| self.refuse(node, "its name is not UTF-8"), |t| Ok(t.to_owned()))
            }
            _ => Ok(String::new()),
        }
    }

    /// The nodes that one refers to, in TVM's order.
    pub(super) fn children(&self, node: usize) -> Result<Vec<usize>, Refused> {
        let n = &self.nodes[node];
        if n.type_key.is_empty() {
            return Ok(Vec::new());
        }
        let Some(class) = schema::class(&n.type_key) else {
            return self.refuse(node, "objects of this type are not part of Relay programs");
        };
        let mut children = n.data.clone();
        for (field, kind) in &class.fields {
            if matches!(kind, Kind::Ref | Kind::FloatRef) {
                children.push(self.reference(node, field)?);
            }
        }
        Ok(children)
    }

    /// All nodes that `root` is made of, itself included, children before parents; `children` says what a node refers to.
    pub(super) fn in_order(
        &self,
        root: usize,
        mut children: impl FnMut(usize) -> Result<Vec<usize>, Refused>,
    ) -> Result<Vec<usize>, Refused> {
        let (mut order, mut open, mut done) = (Vec::new(), HashSet::new(), HashSet::new());
        let mut stack = vec![(root, false)];
        while let Some((node, left)) = stack.pop() {
            if left {
                open.remove(&node);
                done.insert(node);
                order.push(node);
            } else if !done.contains(&node) {
                if !open.insert(node) {
                    return self.refuse(node, "it is part of itself");
                }
                stack.push((node, true));
                stack.extend(children(node)?.into_iter().rev().filter(|c| !done.contains(c)).map(|c| (c, false)));
            }
        }
        Ok(order)
    }

    /// The part of the graph that a node is made of, as a graph of its own, numbered as TVM does: each object, then what it
    /// refers to, in the order of its fields.
    pub(super) fn part(&self, root: usize) -> Result<Graph, Refused> {
        let mut part = Graph { file: self.file.clone(), ..Graph::empty() };
        part.root = part.append(self, root)?;
        Ok(part)
    }

    /// Copies what a node of another graph is made of, and returns the node's number here.
    pub(super) fn append(&mut self, from: &Graph, root: usize) -> Result<usize, Refused> {
        // Checks that nothing is part of itself, too.
        let mut order = from.in_order(root, |n| from.children(n))?;
        order.clear();
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        numbers.insert(0, 0);
        let mut stack = vec![root];
        while let Some(node) = stack.pop() {
            if !numbers.contains_key(&node) {
                numbers.insert(node, self.nodes.len() + order.len());
                order.push(node);
                stack.extend(from.children(node)?.into_iter().rev());
            }
        }
        let mut arrays: HashMap<&str, usize> = HashMap::new();
        for old in order {
            let mut node = from.nodes[old].clone();
            node.data.iter_mut().for_each(|n| *n = numbers[n]);
            let class = schema::class(&node.type_key);
            for (field, kind) in class.iter().flat_map(|c| &c.fields) {
                let new = match kind {
                    Kind::Ref | Kind::FloatRef => numbers[&from.reference(old, field)?],
                    Kind::Array => *arrays.entry(from.text(old, field)?).or_insert(self.arrays.len()),
                    _ => continue,
                };
                if *kind == Kind::Array && new == self.arrays.len() {
                    self.arrays.push(from.array(old, field)?.clone());
                }
                node.attrs.insert((*field).to_owned(), new.to_string());
            }
            self.nodes.push(node);
        }
        Ok(numbers[&root])
    }

    /// An empty graph to write into.
    pub(super) fn empty() -> Graph {
        Graph { file: String::new(), root: 0, nodes: vec![Node::default()], arrays: Vec::new() }
    }

    /// Adds a node and returns its number.
    pub(super) fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// TVM's text of the graph.
    pub(super) fn print(&self) -> String {
        let mut out = String::new();
        // Writing into a String does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let quote = |text: &str| serde_json::Value::from(text).to_string();
        write!(out, "{{\n  \"root\": {}, \n  \"nodes\": [", self.root)?;
        for (i, node) in self.nodes.iter().enumerate() {
            write!(out, "{}\n    {{\n      \"type_key\": {}", if i > 0 { ", " } else { "" }, quote(&node.type_key))?;
            for (name, repr) in [("repr_str", &node.repr_str), ("repr_b64", &node.repr_b64)] {
                if let Some(repr) = repr {
                    write!(out, ", \n      \"{name}\": {}", quote(repr))?;
                }
            }
            if !node.attrs.is_empty() {
                let attrs = node.attrs.iter().map(|(k, v)| format!("{}: {}", quote(k), quote(v)));
                write!(out, ", \n      \"attrs\": ")?;
                list(out, '{', '}', 6, node.attrs.len() > 1, attrs)?;
            }
            if !node.keys.is_empty() {
                write!(out, ", \n      \"keys\": ")?;
                list(out, '[', ']', 6, true, node.keys.iter().map(|k| quote(k)))?;
            }
            if !node.data.is_empty() {
                write!(out, ", \n      \"data\": ")?;
                list(out, '[', ']', 6, node.data.len() > 10, node.data.iter().map(usize::to_string))?;
            }
            out.push_str("\n    }");
        }
        out.push_str("\n  ], \n  \"b64ndarrays\": ");
        let arrays = self.arrays.iter().map(|t| {
            let mut bytes = Vec::new();
            write_array(t, &mut bytes);
            format!("\"{}\"", STANDARD.encode(&bytes))
        });
        list(out, '[', ']', 2, !self.arrays.is_empty(), arrays)?;
        write!(out, ", \n  \"attrs\": {{\"tvm_version\": \"{TVM_VERSION}\"}}\n}}")
    }
}

/// A list in the style of TVM's writer: on one line, or a line per item and each but the last followed by a space.
fn list(
    out: &mut String,
    open: char,
    close: char,
    indent: usize,
    multi_line: bool,
    items: impl Iterator<Item = String>,
) -> std::fmt::Result {
    out.push(open);
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        match multi_line {
            true => write!(out, "\n{:1$}{item}", "", indent + 2)?,
            false => out.push_str(&item),
        }
    }
    if multi_line {
        write!(out, "\n{:indent$}", "")?;
    }
    out.push(close);
    Ok(())
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    let wrong = |e| format!("not base64: {e}");
    match text.contains(|c: char| c.is_ascii_whitespace()) {
        false => STANDARD.decode(text).map_err(wrong),
        true => STANDARD.decode(text.split_ascii_whitespace().collect::<String>()).map_err(wrong),
    }
}
