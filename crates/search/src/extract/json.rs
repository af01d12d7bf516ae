//! Extraction problems as JSON in the format of egraph-serialize: ours for others' extractors, others' for ours.

use hashbrown::HashMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Choice, Flaw, Problem};
use crate::{
    diag::{Diagnostic, Refused},
    egraph::{Case, Graph, Node, What},
};

/// What a node costs, as JSON says it, that can't be had.
const UNOBTAINABLE: f64 = 1e300;

/// A problem that is an e-graph's as a JSON object of egraph-serialize: `nodes` by name (`class.place`), each with its
/// operator, children (the first node of a class stands for the class), class and cost; `root_eclasses`; and `class_data`
/// with each class's type. Costs are the model's; JSON has no infinity, so that what can't be had costs 1e300.
pub fn to_json(p: &Problem, graph: &Graph) -> Value {
    let name = |class: u32, candidate: u32| {
        let (id, place) = p.origin(class, candidate);
        format!("{id}.{place}")
    };
    let class_name = |class: u32| p.class_id(class).to_string();
    // Classes without candidates are known by no name: who needs one is no candidate either.
    let possible = |candidate: u32| p.needs(candidate).iter().all(|&c| !p.of_class(c).is_empty());
    let mut nodes = Map::new();
    let mut data = Map::new();
    for class in 0..p.classes() as u32 {
        for candidate in p.of_class(class).filter(|&c| possible(c)) {
            let (id, place) = p.origin(class, candidate);
            let children: Vec<String> = p.needs(candidate).iter().map(|&c| name(c, p.of_class(c).start)).collect();
            let cost = p.candidate(candidate).cost;
            let entry = json!({
                "op": label(graph, &graph[id].nodes[place]),
                "children": children,
                "eclass": id.to_string(),
                "cost": if cost.is_finite() { cost } else { UNOBTAINABLE },
            });
            nodes.insert(name(class, candidate), entry);
        }
        if let What::Type(ty) = &graph[p.class_id(class)].data.what {
            data.insert(class_name(class), json!({ "type": ty.to_string() }));
        }
    }
    json!({ "nodes": nodes, "root_eclasses": [class_name(p.root())], "class_data": data })
}

/// What a node is, its leaves spelt out where their numbers would say nothing.
fn label(graph: &Graph, node: &Node) -> String {
    let tables = &graph.analysis.tables;
    match node.case() {
        Case::Attrs(id) => format!("{:?}", tables.attrs(id)),
        Case::Const(id) => {
            let t = tables.constant(id);
            format!("const#{} {}{:?}", id.0, t.dtype(), t.shape())
        }
        _ => tables.name_of(node),
    }
}

/// A problem that came as JSON, and what its classes and nodes are called there.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The problem. Where there are several roots, a class that needs all of them stands above; it has no name.
    pub problem: Problem,
    classes: Vec<Option<String>>,
    /// By candidate.
    nodes: Vec<Option<String>>,
}

#[derive(Deserialize)]
struct File {
    nodes: Map<String, Value>,
    #[serde(default)]
    root_eclasses: Vec<String>,
}

#[derive(Deserialize)]
struct FileNode {
    #[serde(default)]
    children: Vec<String>,
    eclass: String,
    #[serde(default = "one")]
    cost: f64,
    #[serde(default)]
    subsumed: bool,
}

/// What a node costs that says nothing.
fn one() -> f64 {
    1.0
}

impl Imported {
    /// Reads an e-graph of egraph-serialize; `name` is the file's, for messages. Nodes that are marked as subsumed are not
    /// candidates. Refused are texts of another form, children and roots that are not there, and costs below 0.
    pub fn parse(name: &str, text: &str) -> Result<Imported, Refused> {
        let refuse = |m: String| Refused::from(Diagnostic::new(format!("{name}: {m}")));
        let file: File =
            serde_json::from_str(text).map_err(|e| refuse(format!("no e-graph of egraph-serialize: {e}")))?;
        let mut read: Vec<(String, FileNode)> = Vec::with_capacity(file.nodes.len());
        for (node, value) in file.nodes {
            let parsed: FileNode = serde_json::from_value(value).map_err(|e| refuse(format!("node `{node}`: {e}")))?;
            if parsed.cost.is_nan() || parsed.cost < 0.0 {
                return Err(refuse(format!("node `{node}` costs {}", parsed.cost)));
            }
            read.push((node, parsed));
        }
        let mut classes: Vec<Option<String>> = Vec::new();
        let mut numbers: HashMap<String, u32> = HashMap::new();
        let mut class_of: HashMap<&str, u32> = HashMap::new();
        for (node, parsed) in &read {
            let number = *numbers.entry(parsed.eclass.clone()).or_insert_with(|| {
                classes.push(Some(parsed.eclass.clone()));
                classes.len() as u32 - 1
            });
            class_of.insert(node, number);
        }
        let mut parts: Vec<Vec<(f64, Vec<u32>)>> = vec![Vec::new(); classes.len()];
        let mut names: Vec<Vec<Option<String>>> = vec![Vec::new(); classes.len()];
        for (node, parsed) in &read {
            let children: Result<Vec<u32>, Refused> = parsed
                .children
                .iter()
                .map(|c| {
                    let found = class_of.get(c.as_str()).copied();
                    found.ok_or_else(|| refuse(format!("node `{node}` has the child `{c}`, which is not there")))
                })
                .collect();
            let class = class_of[node.as_str()] as usize;
            let children = children?;
            if !parsed.subsumed {
                parts[class].push((if parsed.cost >= UNOBTAINABLE { f64::INFINITY } else { parsed.cost }, children));
                names[class].push(Some(node.clone()));
            }
        }
        let roots: Result<Vec<u32>, Refused> = file
            .root_eclasses
            .iter()
            .map(|r| numbers.get(r.as_str()).copied().ok_or_else(|| refuse(format!("the root `{r}` is no class"))))
            .collect();
        let root = match roots?.as_slice() {
            [] => return Err(refuse("it has no root".into())),
            [root] => *root,
            several => {
                classes.push(None);
                parts.push(vec![(0.0, several.to_vec())]);
                names.push(vec![None]);
                classes.len() as u32 - 1
            }
        };
        let problem = Problem::from_parts(&parts, root);
        Ok(Imported { problem, classes, nodes: names.into_iter().flatten().collect() })
    }

    /// A choice as a JSON object: the node of every class that the roots need, and what they cost together.
    pub fn choice_to_json(&self, choice: &Choice) -> Result<Value, Flaw> {
        let mut chosen = Map::new();
        for class in choice.order(&self.problem)? {
            let node = choice.get(class).and_then(|c| self.nodes[c as usize].as_ref());
            if let (Some(class), Some(node)) = (&self.classes[class as usize], node) {
                chosen.insert(class.clone(), json!(node));
            }
        }
        Ok(json!({ "choices": chosen, "cost": choice.cost(&self.problem)? }))
    }

    /// The choice that a JSON object of that form makes, by whatever extractor; it must still be checked. Refused are classes and
    /// nodes that the e-graph does not have.
    pub fn choice_from_json(&self, name: &str, text: &str) -> Result<Choice, Refused> {
        let refuse = |m: String| Refused::from(Diagnostic::new(format!("{name}: {m}")));
        let json: Value = serde_json::from_str(text).map_err(|e| refuse(e.to_string()))?;
        let Some(choices) = json.get("choices").and_then(Value::as_object) else {
            return Err(refuse("it has no object `choices`".into()));
        };
        let of = |names: &[Option<String>]| -> HashMap<String, u32> {
            names.iter().enumerate().filter_map(|(i, n)| Some((n.clone()?, i as u32))).collect()
        };
        let (classes, nodes) = (of(&self.classes), of(&self.nodes));
        let mut chosen = vec![None; self.problem.classes()];
        for (class, node) in choices {
            let number = classes.get(class.as_str()).ok_or_else(|| refuse(format!("there is no class `{class}`")))?;
            let node = node.as_str().and_then(|n| nodes.get(n));
            let node = node.ok_or_else(|| refuse(format!("class `{class}` has a node that is not there")))?;
            chosen[*number as usize] = Some(*node);
        }
        for (class, name) in self.classes.iter().enumerate() {
            if name.is_none() {
                chosen[class] = Some(self.problem.of_class(class as u32).start);
            }
        }
        Ok(Choice::new(chosen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cost::NodeCount,
        egraph::Facts,
        extract::{DagGreedy, Extractor},
        ir::Type,
        ops::{make_attrs, op},
        target::Target,
        tensor::DType,
    };

    #[test]
    fn problems_come_back_the_same() {
        let mut g = Graph::new(Facts::default());
        let x = g.analysis.tables.add_input(Some(Type::tensor(&[2], DType::F32)));
        let x = g.add(Node::input(x));
        let attrs = make_attrs(op("nn.relu"), &[]).expect("no attributes");
        let attrs = g.analysis.tables.intern_attrs(&attrs);
        let attrs = g.add(Node::attrs(attrs));
        let y = g.add(Node::op(op("nn.relu"), attrs, [x]));
        let z = g.add(Node::op(op("nn.relu"), attrs, [y]));
        g.union(y, z);
        g.rebuild();
        let p = Problem::new(&g, z, &NodeCount, &Target::host());
        let json = to_json(&p, &g);
        assert_eq!(json["nodes"].as_object().map(Map::len), Some(4));
        let root = json["root_eclasses"][0].as_str().expect("a root").to_owned();
        assert_eq!(json["class_data"][&root]["type"], "Tensor[(2), float32]");
        let back = Imported::parse("test", &json.to_string()).expect("legal");
        let choice = DagGreedy::default().extract(&back.problem);
        assert_eq!(choice.total(&back.problem), DagGreedy::default().extract(&p).total(&p));
        let made = back.choice_to_json(&choice).expect("a program");
        assert_eq!(made["cost"], 1.0);
        let again = back.choice_from_json("test", &made.to_string()).expect("legal");
        assert_eq!(again.total(&back.problem), choice.total(&back.problem));
    }

    #[test]
    fn several_roots_are_all_needed() {
        let text = r#"{"nodes": {
            "a": {"op": "a", "eclass": "1", "cost": 3.0},
            "a2": {"op": "a", "eclass": "1", "cost": 1.0, "subsumed": true},
            "b": {"op": "b", "children": ["a2"], "eclass": "2"},
            "c": {"op": "c", "children": ["a"], "eclass": "3", "cost": 2}
        }, "root_eclasses": ["2", "3"]}"#;
        let g = Imported::parse("test", text).expect("legal");
        let choice = DagGreedy::default().extract(&g.problem);
        assert_eq!(g.choice_to_json(&choice).expect("a program")["cost"], 6.0);
    }

    #[test]
    fn what_is_no_e_graph_is_refused() {
        for (text, part) in [
            ("{}", "missing field `nodes`"),
            (r#"{"nodes": {}}"#, "no root"),
            (r#"{"nodes": {"a": {"eclass": "0", "children": ["b"]}}, "root_eclasses": ["0"]}"#, "child `b`"),
            (r#"{"nodes": {"a": {"eclass": "0", "cost": -1}}, "root_eclasses": ["0"]}"#, "costs -1"),
            (r#"{"nodes": {"a": {"eclass": "0"}}, "root_eclasses": ["1"]}"#, "root `1`"),
        ] {
            let said = Imported::parse("test", text).expect_err("refused").to_string();
            assert!(said.contains(part), "{text}: {said}");
        }
    }
}
