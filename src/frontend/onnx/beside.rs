//! Which files beside a model its tensors have their data in, found without reading what the model itself holds.
//!
//! The messages are those of [`proto`](super::proto) with only the fields that lead to such tensors; the decoder skips all others.

use std::collections::BTreeSet;

use prost::Message;

use super::proto::StringStringEntryProto;

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "25")]
    functions: Vec<Function>,
}

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    node: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "15")]
    sparse_initializer: Vec<Sparse>,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(message, repeated, tag = "7")]
    node: Vec<Node>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(message, optional, tag = "5")]
    t: Option<Tensor>,
    #[prost(message, optional, tag = "6")]
    g: Option<Graph>,
    #[prost(message, optional, tag = "22")]
    sparse_tensor: Option<Sparse>,
    #[prost(message, repeated, tag = "10")]
    tensors: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<Graph>,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<StringStringEntryProto>,
}

#[derive(Clone, PartialEq, Message)]
struct Sparse {
    #[prost(message, optional, tag = "1")]
    values: Option<Tensor>,
    #[prost(message, optional, tag = "2")]
    indices: Option<Tensor>,
}

/// The files that a model's tensors name, in order and each once; none where the model is malformed.
pub(super) fn files(bytes: &[u8]) -> Vec<String> {
    let mut found = BTreeSet::new();
    if let Ok(model) = Model::decode(bytes) {
        model.graph.iter().for_each(|g| of_graph(g, &mut found));
        model.functions.iter().for_each(|f| of_nodes(&f.node, &mut found));
    }
    found.into_iter().collect()
}

fn of_graph(graph: &Graph, found: &mut BTreeSet<String>) {
    graph.initializer.iter().for_each(|t| of_tensor(t, found));
    graph.sparse_initializer.iter().for_each(|t| of_sparse(t, found));
    of_nodes(&graph.node, found);
}

fn of_nodes(nodes: &[Node], found: &mut BTreeSet<String>) {
    for a in nodes.iter().flat_map(|n| &n.attribute) {
        a.t.iter().chain(&a.tensors).for_each(|t| of_tensor(t, found));
        a.sparse_tensor.iter().for_each(|t| of_sparse(t, found));
        a.g.iter().chain(&a.graphs).for_each(|g| of_graph(g, found));
    }
}

fn of_sparse(t: &Sparse, found: &mut BTreeSet<String>) {
    t.values.iter().chain(&t.indices).for_each(|t| of_tensor(t, found));
}

fn of_tensor(t: &Tensor, found: &mut BTreeSet<String>) {
    found.extend(t.external_data.iter().filter(|e| e.key == "location").map(|e| e.value.clone()));
}

#[cfg(test)]
mod tests {
    use super::{super::proto, *};

    #[test]
    fn data_of_every_kind_of_tensor_is_found() {
        let tensor = |place: &str| {
            let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
            proto::TensorProto {
                external_data: vec![entry("location", place), entry("offset", "4096")],
                ..Default::default()
            }
        };
        let node =
            |attribute: proto::AttributeProto| proto::NodeProto { attribute: vec![attribute], ..Default::default() };
        let inner = proto::GraphProto {
            initializer: vec![tensor("inner"), tensor("weights")],
            node: vec![node(proto::AttributeProto { tensors: vec![tensor("list")], ..Default::default() })],
            ..Default::default()
        };
        let sparse = proto::SparseTensorProto {
            values: Some(tensor("values")),
            indices: Some(tensor("indices")),
            ..Default::default()
        };
        let whole = proto::TensorProto { raw_data: Some(b"location"[..].into()), ..Default::default() };
        let graph = proto::GraphProto {
            initializer: vec![tensor("weights"), whole],
            sparse_initializer: vec![sparse],
            node: vec![node(proto::AttributeProto {
                g: Some(inner),
                t: Some(tensor("constant")),
                ..Default::default()
            })],
            ..Default::default()
        };
        let of_function = node(proto::AttributeProto { t: Some(tensor("function")), ..Default::default() });
        let model = proto::ModelProto {
            graph: Some(graph),
            functions: vec![proto::FunctionProto { node: vec![of_function], ..Default::default() }],
            ..Default::default()
        };
        let found = files(&model.encode_to_vec());
        assert_eq!(found, ["constant", "function", "indices", "inner", "list", "values", "weights"]);
        assert_eq!(files(b"\x3a\xff"), [""; 0]);
    }
}
