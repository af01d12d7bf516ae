//! An e-graph as JSON, in the format of egraph-serialize: for extraction-gym and other tools.

use egg::{Id, Language};
use serde_json::{Map, Value, json};

use super::{Graph, Node};

/// The e-graph as a JSON object: `nodes` by name (`class.place`), each with its operator, children (the first node of each
/// child's class stands for the class), class and cost; and the root's class. Classes are in order of their ids.
pub fn to_json(graph: &Graph, root: Id, cost: impl Fn(Id, &Node) -> f64) -> Value {
    let mut ids: Vec<Id> = graph.classes().map(|c| c.id).collect();
    ids.sort_unstable();
    let name = |class: Id, place: usize| format!("{class}.{place}");
    let mut nodes = Map::new();
    for id in ids {
        for (place, node) in graph[id].nodes.iter().enumerate() {
            let children: Vec<String> = node.children().iter().map(|&c| name(graph.find(c), 0)).collect();
            let entry = json!({
                "op": node.to_string(),
                "children": children,
                "eclass": id.to_string(),
                "cost": cost(id, node),
            });
            nodes.insert(name(id, place), entry);
        }
    }
    json!({ "nodes": nodes, "root_eclasses": [graph.find(root).to_string()] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        egraph::Facts,
        ir::Type,
        ops::{make_attrs, op},
        tensor::DType,
    };

    #[test]
    fn every_node_has_an_entry() {
        let mut g = Graph::new(Facts::default());
        let x = g.analysis.tables.add_input(Some(Type::tensor(&[2], DType::F32)));
        let x = g.add(Node::input(x));
        let attrs = make_attrs(op("nn.relu"), &[]).expect("no attributes");
        let attrs = g.analysis.tables.intern_attrs(&attrs);
        let attrs = g.add(Node::attrs(attrs));
        let y = g.add(Node::op(op("nn.relu"), attrs, [x]));
        g.rebuild();
        let json = to_json(&g, y, |_, node| node.len() as f64);
        assert_eq!(json["nodes"].as_object().map(Map::len), Some(3));
        assert_eq!(json["nodes"]["2.0"]["op"], "nn.relu");
        assert_eq!(json["nodes"]["2.0"]["children"], json!(["1.0", "0.0"]));
        assert_eq!(json["root_eclasses"], json!(["2"]));
    }
}
