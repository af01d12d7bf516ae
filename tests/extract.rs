//! Extractors on random problems: results are programs, as cheap as promised, and the same on every run.

mod common;

use common::Rng;
use resat::extract::{Choice, DagGreedy, Extractor, Flaw, Problem, Total, TreeGreedy};

type Classes = Vec<Vec<(f64, Vec<u32>)>>;

/// A random problem: every class has a leaf or a node over smaller classes, so that all can be had; other nodes point
/// anywhere, so that there are cycles.
fn random(rng: &mut Rng, classes: usize, extra: usize) -> Problem {
    let below = |rng: &mut Rng, n: usize| (rng.next() % n.max(1) as u64) as u32;
    let cost = |rng: &mut Rng| [0.0, 1.0, 2.0, 5.0, 40.0][below(rng, 5) as usize];
    let mut all: Classes = Vec::new();
    for class in 0..classes {
        let arity = if class == 0 { 0 } else { below(rng, 3) };
        let mut nodes = vec![(cost(rng), (0..arity).map(|_| below(rng, class)).collect())];
        for _ in 0..below(rng, extra + 1) {
            let arity = 1 + below(rng, 3);
            nodes.push((cost(rng), (0..arity).map(|_| below(rng, classes)).collect()));
        }
        all.push(nodes);
    }
    Problem::from_parts(&all, classes as u32 - 1)
}

/// The cheapest program, by trying all.
fn best(p: &Problem) -> Total {
    let mut best: Option<Total> = None;
    let mut picks: Vec<u32> = (0..p.classes() as u32).map(|c| p.of_class(c).start).collect();
    loop {
        let choice = Choice::new(picks.iter().map(|&c| Some(c)).collect());
        if let Ok(total) = choice.total(p)
            && best.is_none_or(|b| total < b)
        {
            best = Some(total);
        }
        let mut class = 0;
        loop {
            if class == picks.len() {
                return best.expect("every class can be had");
            }
            let range = p.of_class(class as u32);
            picks[class] += 1;
            if picks[class] < range.end {
                break;
            }
            picks[class] = range.start;
            class += 1;
        }
    }
}

#[test]
fn random_problems_are_solved() {
    let mut rng = Rng(1);
    let (mut dag_sum, mut tree_sum) = (0u128, 0u128);
    for round in 0..400 {
        let n = 2 + round % 97;
        let p = random(&mut rng, n, 3);
        let (tree, dag) = (TreeGreedy.extract(&p), DagGreedy::default().extract(&p));
        tree.check(&p).expect("tree-greedy gives a program");
        dag.check(&p).expect("DAG-greedy gives a program");
        let (t, d) = (tree.total(&p).expect("checked"), dag.total(&p).expect("checked"));
        assert!(d <= t, "round {round}: {d:?} > {t:?}");
        assert_eq!(dag, DagGreedy::default().extract(&p), "round {round}");
        assert_eq!(tree, TreeGreedy.extract(&p), "round {round}");
        // Without room for sets the result is still a program, and no worse than the trees.
        let small = DagGreedy { set_bytes: 0 }.extract(&p);
        assert!(small.total(&p).expect("a program") <= t, "round {round}");
        (dag_sum, tree_sum) = (dag_sum + d.units, tree_sum + t.units);
    }
    assert!(dag_sum < tree_sum);
}

#[test]
fn small_problems_are_solved_nearly_exactly() {
    let mut rng = Rng(7);
    let mut exact = 0;
    let rounds = 200;
    for _ in 0..rounds {
        let p = random(&mut rng, 7, 2);
        let (found, best) = (DagGreedy::default().extract(&p).total(&p).expect("a program"), best(&p));
        assert!(found >= best);
        exact += (found == best) as usize;
    }
    assert!(exact * 100 >= rounds * 97, "{exact} of {rounds}");
}

#[test]
fn sharing_is_paid_once() {
    // The root needs classes 1 and 2. Each has its own way for 6, or one by way of class 3, which costs 10 once.
    let p = Problem::from_parts(
        &[
            vec![(1.0, vec![1, 2])],
            vec![(6.0, vec![]), (0.5, vec![3])],
            vec![(6.0, vec![]), (0.5, vec![3])],
            vec![(10.0, vec![])],
        ],
        0,
    );
    assert_eq!(TreeGreedy.extract(&p).cost(&p), Ok(13.0));
    assert_eq!(DagGreedy::default().extract(&p).cost(&p), Ok(12.0));
}

#[test]
fn residual_towers_do_not_drown_prices() {
    // x[i+1] = f(x[i]) + x[i], a hundred times; each f has a dear and a cheap form.
    let mut classes: Classes = vec![vec![(1.0, vec![])]];
    for _ in 0..100 {
        let x = classes.len() as u32 - 1;
        classes.push(vec![(5.0, vec![x]), (4.0, vec![x])]);
        classes.push(vec![(1.0, vec![x + 1, x])]);
    }
    let root = classes.len() as u32 - 1;
    let p = Problem::from_parts(&classes, root);
    assert_eq!(DagGreedy::default().extract(&p).cost(&p), Ok(501.0));
}

#[test]
fn what_can_not_be_had_is_avoided() {
    let p = Problem::from_parts(
        &[vec![(0.0, vec![1]), (3.0, vec![2])], vec![(f64::INFINITY, vec![])], vec![(1.0, vec![])]],
        0,
    );
    for choice in [TreeGreedy.extract(&p), DagGreedy::default().extract(&p)] {
        assert_eq!(choice.cost(&p), Ok(4.0));
    }
}

#[test]
fn flaws_are_found() {
    let p = Problem::from_parts(&[vec![(1.0, vec![1])], vec![(1.0, vec![0]), (9.0, vec![])]], 0);
    assert_eq!(Choice::new(vec![Some(0), Some(1)]).check(&p), Err(Flaw::Cycle(0)));
    assert_eq!(Choice::new(vec![Some(0), None]).check(&p), Err(Flaw::Missing(1)));
    assert_eq!(Choice::new(vec![Some(2), Some(1)]).check(&p), Err(Flaw::Foreign(0, 2)));
    assert_eq!(Choice::new(vec![Some(0), Some(2)]).check(&p), Ok(()));
}

#[test]
fn large_problems_are_solved_in_time() {
    let mut rng = Rng(3);
    // A long chain with layers of alternatives, as layouts make them.
    let mut classes: Classes = vec![vec![(1.0, vec![])], vec![(1.0, vec![])]];
    for _ in 0..15_000 {
        let (a, b) = (classes.len() as u32 - 2, classes.len() as u32 - 1);
        let cost = |rng: &mut Rng| (1 + rng.next() % 9) as f64;
        let (x, y, t) = (cost(&mut rng), cost(&mut rng), cost(&mut rng));
        classes.push(vec![(x, vec![a]), (t, vec![b + 2])]);
        classes.push(vec![(y, vec![b]), (t, vec![b + 1])]);
    }
    let root = classes.len() as u32 - 1;
    let p = Problem::from_parts(&classes, root);
    let start = std::time::Instant::now();
    let choice = DagGreedy::default().extract(&p);
    assert!(start.elapsed().as_secs_f64() < 30.0);
    choice.check(&p).expect("a program");
}
