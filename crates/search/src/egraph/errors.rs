//! What approximate rules have brought into an e-graph: errors of nodes and classes, which extraction adds up.
//!
//! An approximate rule says that its sides differ by so much. The program pays that once if it uses what the rule made. Exact
//! rules go on rewriting what was made, so an error does not lie on the new top node, which they would soon find another form
//! of, but on the *innermost new class* of the right side (the quantized tensor, the weight cast to fewer bits): whatever
//! the forms of what is above it, they need it. Where the right side has no new class besides its top, the top node carries
//! the error, and so does what an exact rule makes of that node.
//!
//! A class may hold exact terms beside approximate ones; equalities that were found by way of the approximate ones must not lend
//! the exact ones to others. [`Errors::has_exact`] says which classes have a term without any error.
//!
//! Errors are shares of the result's largest magnitude, and add up: the first order of what happens, where no operator
//! magnifies its argument's relative error. What is predicted so is worth comparing with what samples show.

use egg::{Id, Language};
use hashbrown::{HashMap, HashSet};

use super::{Graph, Node};

/// The errors of an e-graph.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    /// Classes that approximate rules made. Two of one class add up.
    classes: Vec<(Id, f64)>,
    /// Nodes that approximate rules made in a class that was there before.
    nodes: HashMap<Node, f64>,
    /// Classes that have a term without an error, as of the latest refresh.
    exact: HashSet<Id>,
    /// What classes are charged with, as of the latest refresh.
    charged: HashMap<Id, f64>,
}

impl Errors {
    /// Whether no approximate rule has fired.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty() && self.nodes.is_empty()
    }

    /// Whoever uses the class has this error.
    pub fn charge(&mut self, class: Id, error: f64) {
        self.classes.push((class, error));
    }

    /// Whoever uses the node has this error, or what it had before where that is less.
    pub fn mark(&mut self, node: Node, error: f64) {
        let place = self.nodes.entry(node).or_insert(error);
        *place = place.min(error);
    }

    /// The error of a node as it stands, that of its class aside.
    pub fn of_node(&self, node: &Node) -> f64 {
        self.nodes.get(node).copied().unwrap_or(0.0)
    }

    /// Whether the class had a term without an error when the latest round of rules began.
    pub fn has_exact(&self, class: Id) -> bool {
        self.is_empty() || self.exact.contains(&class)
    }

    /// What the class was charged with when the latest round of rules began.
    pub fn of_class(&self, class: Id) -> f64 {
        self.charged.get(&class).copied().unwrap_or(0.0)
    }

    /// The errors of classes: for each class as the graph finds it now, what it was charged with, in order of its first charge.
    pub fn of_classes(&self, graph: &Graph) -> Vec<(Id, f64)> {
        let mut places: HashMap<Id, usize> = HashMap::new();
        let mut found: Vec<(Id, f64)> = Vec::new();
        for &(class, error) in &self.classes {
            let class = graph.find(class);
            match places.get(&class) {
                Some(&at) => found[at].1 += error,
                None => {
                    places.insert(class, found.len());
                    found.push((class, error));
                }
            }
        }
        found
    }
}

/// Brings the errors up to date with what has been found equal since.
pub fn refresh_errors(graph: &mut Graph) {
    if graph.analysis.errors.is_empty() {
        return;
    }
    let old = std::mem::take(&mut graph.analysis.errors.nodes);
    let mut new: HashMap<Node, f64> = HashMap::with_capacity(old.len());
    for (node, error) in old {
        let node = node.map_children(|c| graph.find(c));
        let place = new.entry(node).or_insert(error);
        *place = place.min(error);
    }
    graph.analysis.errors.nodes = new;
    let charged: HashMap<Id, f64> = graph.analysis.errors.of_classes(graph).into_iter().collect();
    let mut classes: Vec<Id> = graph.classes().map(|c| c.id).filter(|c| !charged.contains_key(c)).collect();
    // Mostly, children are older: few walks are enough.
    classes.sort_unstable();
    let mut exact: HashSet<Id> = HashSet::with_capacity(classes.len());
    loop {
        let before = exact.len();
        for &class in &classes {
            let has = |n: &Node| graph.analysis.errors.of_node(n) == 0.0 && n.all(|c| exact.contains(&graph.find(c)));
            if !exact.contains(&class) && graph[class].iter().any(has) {
                exact.insert(class);
            }
        }
        if exact.len() == before {
            break;
        }
    }
    (graph.analysis.errors.exact, graph.analysis.errors.charged) = (exact, charged);
}
