//! A model's nodes as text, one per line: what messages and reports point into.

use std::{fmt::Write, sync::Arc};

use hashbrown::HashMap;

use super::proto::{GraphProto, ModelProto, NodeProto};
use crate::ir::{Source, Span};

/// Which line a node has, by the node's address: the model stays where it is while it is read.
pub(super) struct Listing {
    source: Arc<Source>,
    lines: HashMap<*const NodeProto, (u32, u32)>,
}

impl Listing {
    /// The nodes of a model, of its functions and of its nodes' bodies.
    pub(super) fn of(name: &str, model: &ModelProto) -> Listing {
        let mut text = String::new();
        let mut lines = HashMap::new();
        if let Some(graph) = &model.graph {
            list(&graph.node, 0, &mut text, &mut lines);
        }
        for f in &model.functions {
            text.push_str(&format!("function {}.{}:\n", f.domain, f.name));
            list(&f.node, 1, &mut text, &mut lines);
        }
        Listing { source: Arc::new(Source { name: name.to_owned(), text }), lines }
    }

    /// The line of a node.
    pub(super) fn span(&self, node: &NodeProto) -> Option<Span> {
        let &(start, end) = self.lines.get(&std::ptr::from_ref(node))?;
        Some(Span { source: self.source.clone(), start, end })
    }
}

fn list(nodes: &[NodeProto], depth: usize, text: &mut String, lines: &mut HashMap<*const NodeProto, (u32, u32)>) {
    for node in nodes {
        text.extend(std::iter::repeat_n("  ", depth));
        let start = text.len();
        // Writing to a string does not fail.
        let _ = write!(text, "{} = {}", node.output.join(", "), described(node));
        let _ = write!(text, "({})", node.input.join(", "));
        if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(text.len())) {
            lines.insert(std::ptr::from_ref(node), (start, end));
        }
        text.push('\n');
        for (a, graph) in node.attribute.iter().flat_map(bodies) {
            text.extend(std::iter::repeat_n("  ", depth + 1));
            let _ = writeln!(text, "{a}:");
            list(&graph.node, depth + 2, text, lines);
        }
    }
}

fn bodies(a: &super::proto::AttributeProto) -> impl Iterator<Item = (&str, &GraphProto)> {
    a.g.iter().chain(&a.graphs).map(|g| (a.name.as_str(), g))
}

/// A node's operator with its domain, and the node's name.
pub(super) fn described(node: &NodeProto) -> String {
    let op = if node.domain.is_empty() { node.op_type.clone() } else { format!("{}.{}", node.domain, node.op_type) };
    match node.name.is_empty() {
        true => op,
        false => format!("{op} \"{}\"", node.name),
    }
}
