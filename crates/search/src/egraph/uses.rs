//! How often the program as written uses its values. Rules add terms to the e-graph, and with them uses that no program has at
//! once; what a user means by "used once" is what stands in the program.

use egg::{Id, Language};
use hashbrown::{HashMap, HashSet};

use super::Graph;

/// Which calls of the program as written use which values.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    /// A value and what uses it, as encoded; nothing uses the result but the program's caller.
    pairs: Vec<(Id, Option<Id>)>,
    /// By class of the moment: how many classes use it.
    counts: HashMap<Id, usize>,
}

impl Uses {
    /// By how many different values of the program as written a class is used; `None` where the program has no term of it.
    pub fn of(&self, class: Id) -> Option<usize> {
        self.counts.get(&class).copied()
    }
}

/// Takes what is in the e-graph for the program as written, with these results. Nothing may have been united yet.
pub fn note_uses(graph: &mut Graph, roots: &[Id]) {
    let nodes = graph.nodes();
    let mut needed = vec![false; nodes.len()];
    roots.iter().for_each(|&r| needed[usize::from(r)] = true);
    let mut pairs: Vec<(Id, Option<Id>)> = roots.iter().map(|&r| (r, None)).collect();
    for at in (0..nodes.len()).rev() {
        if needed[at] {
            nodes[at].for_each(|c| {
                needed[usize::from(c)] = true;
                pairs.push((c, Some(Id::from(at))));
            });
        }
    }
    graph.analysis.uses = Uses { pairs, counts: HashMap::new() };
    refresh_uses(graph);
}

/// Counts uses again, in view of what has become equal: two uses that are equal now are one.
pub fn refresh_uses(graph: &mut Graph) {
    let uses = &graph.analysis.uses;
    let mut counts: HashMap<Id, usize> = HashMap::new();
    let distinct: HashSet<(Id, Option<Id>)> =
        uses.pairs.iter().map(|&(c, by)| (graph.find(c), by.map(|by| graph.find(by)))).collect();
    distinct.into_iter().for_each(|(c, _)| *counts.entry(c).or_default() += 1);
    graph.analysis.uses.counts = counts;
}
