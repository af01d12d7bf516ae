//! What the next best choice would cost: extraction again, without a node that was chosen.

use super::{Choice, Extractor, Problem};

/// A chosen candidate, and what becomes of the program without it.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// The class that it was chosen for.
    pub class: u32,
    /// The candidate.
    pub candidate: u32,
    /// Its own price.
    pub cost: f64,
    /// The cheapest program without it that the extractor finds; none where there is none.
    pub next: Option<Next>,
}

/// A program without a candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    /// What is chosen for the class then; none where the program does not need the class then.
    pub candidate: Option<u32>,
    /// What the program costs more. Below 0 where the extractor had missed a cheaper program.
    pub extra: f64,
}

/// For each of these candidates of a chosen program (class and candidate): what the program costs more without it. Every one
/// takes another extraction. A choice that is no program has no alternatives.
pub fn alternatives(
    p: &Problem,
    choice: &Choice,
    extractor: &dyn Extractor,
    of: impl IntoIterator<Item = (u32, u32)>,
) -> Vec<Alternative> {
    let Ok(now) = choice.cost(p) else { return Vec::new() };
    let next = |class: u32, candidate: u32| -> Option<Next> {
        let other = extractor.extract(&p.without(candidate));
        let order = other.order(p).ok()?;
        let needed = |class: u32| order.contains(&class).then(|| other.get(class)).flatten();
        let is_gone = !order.iter().any(|&c| other.get(c) == Some(candidate));
        is_gone.then_some(Next { candidate: needed(class), extra: other.cost(p).ok()? - now })
    };
    of.into_iter()
        .map(|(class, candidate)| Alternative {
            class,
            candidate,
            cost: p.candidate(candidate).cost,
            next: next(class, candidate),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::DagGreedy;

    #[test]
    fn the_next_best_is_found() {
        // The root takes class 1 for 2, or class 2 for 5; class 1 is a leaf of 1 or of 4, class 2 one of 3.
        let p = Problem::from_parts(
            &[vec![(2.0, vec![1]), (5.0, vec![2])], vec![(1.0, vec![]), (4.0, vec![])], vec![(3.0, vec![])]],
            0,
        );
        let extractor = DagGreedy::default();
        let choice = extractor.extract(&p);
        assert_eq!(choice.cost(&p), Ok(3.0));
        let found = alternatives(&p, &choice, &extractor, [(0, 0), (1, 2)]);
        assert_eq!(found[0].next, Some(Next { candidate: Some(1), extra: 5.0 }));
        assert_eq!(found[1].next, Some(Next { candidate: Some(3), extra: 3.0 }));
        let p = Problem::from_parts(&[vec![(2.0, vec![1])], vec![(1.0, vec![])]], 0);
        let choice = extractor.extract(&p);
        assert_eq!(alternatives(&p, &choice, &extractor, [(1, 1)])[0].next, None, "there is nothing else");
    }
}
