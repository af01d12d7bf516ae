//! The result of extraction, and its checks.

use egg::{Id, Language};
use hashbrown::HashMap;

use super::{Problem, Total};
use crate::egraph::{RegionGraph, Term};

/// One candidate for every class that the root needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    of_class: Vec<Option<u32>>,
}

/// What is wrong with a choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// A class that is needed has no node.
    #[error("class {0} is needed, but nothing is chosen for it")]
    Missing(u32),
    /// The node chosen for a class is another class's.
    #[error("candidate {1} is chosen for class {0}, but is not one of its candidates")]
    Foreign(u32, u32),
    /// A class needs itself.
    #[error("class {0} needs itself")]
    Cycle(u32),
}

impl Choice {
    /// A choice by class; none for classes that the root does not need (or may not need).
    pub fn new(of_class: Vec<Option<u32>>) -> Choice {
        Choice { of_class }
    }

    /// What is chosen for a class.
    pub fn get(&self, class: u32) -> Option<u32> {
        self.of_class[class as usize]
    }

    pub(super) fn set(&mut self, class: u32, candidate: u32) {
        self.of_class[class as usize] = Some(candidate);
    }

    /// The classes that the root needs, children before parents; or why there is no such order.
    pub fn order(&self, p: &Problem) -> Result<Vec<u32>, Flaw> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; p.classes()];
        let mut order = Vec::new();
        let mut stack = vec![(p.root(), 0usize)];
        while let Some((class, next)) = stack.pop() {
            if next == 0 {
                match marks[class as usize] {
                    Mark::Done => continue,
                    Mark::Open => return Err(Flaw::Cycle(class)),
                    Mark::New => marks[class as usize] = Mark::Open,
                }
            }
            let chosen = self.of_class.get(class as usize).copied().flatten().ok_or(Flaw::Missing(class))?;
            if !p.of_class(class).contains(&chosen) {
                return Err(Flaw::Foreign(class, chosen));
            }
            match p.needs(chosen).get(next) {
                Some(&child) => {
                    stack.push((class, next + 1));
                    stack.push((child, 0));
                }
                None => {
                    marks[class as usize] = Mark::Done;
                    order.push(class);
                }
            }
        }
        Ok(order)
    }

    /// Whether it is a program: everything needed is chosen, from the class's own candidates, without cycles.
    pub fn check(&self, p: &Problem) -> Result<(), Flaw> {
        self.order(p).map(drop)
    }

    /// The price of the program, every class once.
    pub fn total(&self, p: &Problem) -> Result<Total, Flaw> {
        let chosen = |c: &u32| self.of_class[*c as usize].expect("in the order, hence chosen");
        Ok(self.order(p)?.iter().fold(Total::default(), |sum, c| sum.plus(p.candidate(chosen(c)).total)))
    }

    /// The price of the program in the model's own numbers, every class once.
    pub fn cost(&self, p: &Problem) -> Result<f64, Flaw> {
        let chosen = |c: &u32| self.of_class[*c as usize].expect("in the order, hence chosen");
        Ok(self.order(p)?.iter().map(|c| p.candidate(chosen(c)).cost).sum())
    }

    /// The error that the program is predicted to have: the sum of what its parts bring in, every class once.
    pub fn error(&self, p: &Problem) -> Result<f64, Flaw> {
        let chosen = |c: &u32| self.of_class[*c as usize].expect("in the order, hence chosen");
        Ok(self.order(p)?.iter().map(|c| p.candidate(chosen(c)).error).sum())
    }
}

/// The chosen program of a region. The problem must be that of the region's e-graph.
pub fn chosen_term(p: &Problem, choice: &Choice, region: &RegionGraph) -> Result<Term, Flaw> {
    let spans = region.spans();
    let mut term = Term::default();
    let mut places: HashMap<Id, Id> = HashMap::new();
    for class in choice.order(p)? {
        let (id, place) = p.origin(class, choice.get(class).ok_or(Flaw::Missing(class))?);
        let node = region.graph[id].nodes[place].clone().map_children(|c| places[&region.graph.find(c)]);
        places.insert(id, term.add(node, spans.get(&id).cloned()));
    }
    Ok(term)
}
