//! What has changed since rules last looked, so that they need not look at everything in every round.
//!
//! What a rule finds at a class depends on the class, on what stands within its patterns' depth below, and on nothing else, but for
//! guards that ask who uses a value. So a class is dirty for a rule where something within that depth has changed, or for those
//! rules where something there has other users.

use std::hash::{Hash, Hasher};

use egg::{Id, Language};
use rustc_hash::FxHasher;

use super::Graph;

/// What has changed, by class.
#[derive(Clone, Debug, Default)]
pub struct DirtySet {
    /// By class: what it was when it was last looked at; `None` where it was not there.
    prints: Vec<Option<Print>>,
    /// By class: how many steps below the nearest change of a node or a fact is.
    inside: Vec<u8>,
    /// The same where a new use of a class is a change of it, too.
    around: Vec<u8>,
}

/// Hashes of what rules can see of a class.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
struct Print {
    /// Nodes and facts.
    inside: u64,
    /// By which nodes of which classes it is used, and how often by the program as written.
    uses: u64,
}

/// No change is so near.
const FAR: u8 = u8::MAX;

impl DirtySet {
    /// Whether something has changed at a class or at most so many steps below; `of_uses` says whether a new use of a class is a change of it:
    /// for rules that ask who uses a value.
    pub fn near(&self, class: Id, steps: usize, of_uses: bool) -> bool {
        let distances = if of_uses { &self.around } else { &self.inside };
        // A class that came after the last look is dirty.
        distances.get(usize::from(class)).is_none_or(|&d| d != FAR && usize::from(d) <= steps)
    }

    /// Notes what has changed since this was last called. The graph must be rebuilt.
    pub fn refresh(&mut self, graph: &Graph) {
        let prints = prints(graph);
        let old = std::mem::take(&mut self.prints);
        let changed = |same: fn(&Print, &Print) -> bool| -> Vec<Id> {
            let is_old = |at: usize, now: &Print| old.get(at).copied().flatten().is_some_and(|was| same(&was, now));
            let now = prints.iter().enumerate().filter_map(|(at, p)| Some((at, p.as_ref()?)));
            now.filter(|(at, p)| !is_old(*at, p)).map(|(at, _)| Id::from(at)).collect()
        };
        self.inside = distances(graph, changed(|was, now| was.inside == now.inside));
        self.around = distances(graph, changed(|was, now| was == now));
        self.prints = prints;
    }
}

fn prints(graph: &Graph) -> Vec<Option<Print>> {
    let mut prints: Vec<Option<Print>> = vec![None; graph.nodes().len()];
    let mut uses = vec![0u64; graph.nodes().len()];
    for class in graph.classes() {
        let mut inside = FxHasher::default();
        for node in &class.nodes {
            node.hash(&mut inside);
            // Uses are added up, so that their order does not matter.
            let use_of = hash(&(class.id, node.case()));
            node.for_each(|c| {
                let c = usize::from(graph.find(c));
                uses[c] = uses[c].wrapping_add(use_of);
            });
        }
        class.data.hash(&mut inside);
        let written = hash(&graph.analysis.uses.of(class.id));
        prints[usize::from(class.id)] = Some(Print { inside: inside.finish(), uses: written });
    }
    for (print, uses) in prints.iter_mut().zip(uses) {
        if let Some(print) = print {
            print.uses = print.uses.wrapping_add(uses);
        }
    }
    prints
}

fn hash(x: &impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    x.hash(&mut hasher);
    hasher.finish()
}

/// By class: the steps down to the nearest of these.
fn distances(graph: &Graph, changed: Vec<Id>) -> Vec<u8> {
    let mut distances = vec![FAR; graph.nodes().len()];
    changed.iter().for_each(|&id| distances[usize::from(id)] = 0);
    let mut level = changed;
    for step in 1..FAR {
        let mut above = Vec::new();
        for id in level {
            for parent in graph[id].parents() {
                let parent = graph.find(parent);
                let distance = &mut distances[usize::from(parent)];
                if *distance == FAR {
                    *distance = step;
                    above.push(parent);
                }
            }
        }
        if above.is_empty() {
            break;
        }
        level = above;
    }
    distances
}
