//! Which classes a rule need look at: those that are dirty in reach of its patterns.

use egg::{Id, Language};
use hashbrown::HashSet;

use super::{
    ast::{Pattern, RuleDef, Slot},
    search::{above, anchor, candidates},
};
use crate::{
    egraph::{Graph, Node},
    saturate::SearchContext,
};

/// How far a rule looks.
pub(super) struct Reach {
    /// By root: how many steps below it its pattern goes.
    depths: Vec<usize>,
    /// By root but the first: how it is found, as earlier roots are bound.
    links: Vec<Link>,
}

/// A later root and an earlier one share a class.
struct Link {
    /// The earlier root.
    to: usize,
    /// How many steps below the earlier root the shared class is.
    up: usize,
    /// How many steps below the later one.
    down: usize,
}

impl Reach {
    pub(super) fn of(rule: &RuleDef) -> Reach {
        let roots = &rule.roots;
        let link = |k: usize| {
            let place = |slot: Slot| {
                roots[..k].iter().enumerate().find_map(|(to, earlier)| Some((to, depth_of(earlier, slot)?)))
            };
            let (slot, down) = anchor(&roots[k], &|slot| place(slot).is_some())?;
            let (to, up) = place(slot)?;
            Some(Link { to, up, down })
        };
        // Where a later root shares nothing (which loading refuses), the first alone counts.
        let links = (1..roots.len()).map_while(link).collect();
        Reach { depths: roots.iter().map(depth).collect(), links }
    }

    /// The candidates of the first root at which there may be matches that were not there when the rule last looked.
    pub(super) fn dirty(&self, rule: &RuleDef, cx: &SearchContext<'_>) -> Vec<Id> {
        let graph = cx.graph;
        let mut all = candidates(&rule.roots[0], graph);
        if cx.is_everywhere() {
            return all;
        }
        let near = |k: usize, class: Id| cx.is_new(class, self.depths[k]);
        if self.links.is_empty() {
            all.retain(|&c| near(0, c));
            return all;
        }
        // From the last root to the first: what is new at one is new at the one that it is found from.
        let mut fresh: Vec<HashSet<Id>> = vec![HashSet::new(); rule.roots.len()];
        for k in (0..rule.roots.len()).rev() {
            let candidates = if k == 0 { std::mem::take(&mut all) } else { candidates(&rule.roots[k], graph) };
            let mut classes: Vec<Id> =
                candidates.into_iter().filter(|&c| near(k, c) || fresh[k].contains(&c)).collect();
            classes.sort_unstable();
            match k.checked_sub(1).and_then(|i| self.links.get(i)) {
                Some(link) => {
                    for shared in below(graph, classes, link.down) {
                        fresh[link.to].extend(above(graph, shared, link.up));
                    }
                }
                None => return classes,
            }
        }
        Vec::new()
    }
}

/// How many steps down a pattern goes.
fn depth(p: &Pattern) -> usize {
    match p {
        Pattern::Class(_) | Pattern::Splat(_) | Pattern::Each(_) => 0,
        Pattern::As(_, inner) => depth(inner),
        Pattern::Op { args, .. } => 1 + args.iter().map(depth).max().unwrap_or(0),
        Pattern::Tuple(fields) => 1 + fields.iter().map(depth).max().unwrap_or(0),
        Pattern::TupleOf(inner) | Pattern::Proj(_, inner) => 1 + depth(inner),
    }
}

/// How many steps below a pattern's top a class stands.
fn depth_of(p: &Pattern, slot: Slot) -> Option<usize> {
    let of_any = |ps: &[Pattern]| ps.iter().filter_map(|p| depth_of(p, slot)).map(|d| d + 1).min();
    match p {
        Pattern::Class(s) => (*s == slot).then_some(0),
        Pattern::As(s, inner) => {
            if *s == slot {
                Some(0)
            } else {
                depth_of(inner, slot)
            }
        }
        Pattern::Op { args, .. } => of_any(args),
        Pattern::Tuple(fields) => of_any(fields),
        Pattern::TupleOf(inner) | Pattern::Proj(_, inner) => of_any(std::slice::from_ref(inner)),
        Pattern::Splat(_) | Pattern::Each(_) => None,
    }
}

/// The classes so many steps below, each once. Attribute records are shared by all and lead nowhere.
fn below(graph: &Graph, mut classes: Vec<Id>, steps: usize) -> Vec<Id> {
    let args = |node: &Node| -> Vec<Id> {
        node.as_op().map_or_else(|| node.children(), |(_, _, args)| args).iter().map(|&c| graph.find(c)).collect()
    };
    for _ in 0..steps {
        classes = classes.iter().flat_map(|&id| graph[id].iter().flat_map(args)).collect();
        classes.sort_unstable();
        classes.dedup();
    }
    classes
}
