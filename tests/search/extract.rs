//! Extractors on random problems: results are programs, as cheap as promised, and the same on every run.

use crate::common::Rng;
use resat::extract::{Choice, DagGreedy, Extractor, Flaw, Problem, Search, Total, TreeGreedy, by_name, names};

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

/// The cheapest program, by trying all that costs no more than one that was found before even if the classes that are still to
/// be decided cost what their cheapest nodes do.
fn best(p: &Problem) -> Total {
    let cheapest = (0..p.classes() as u32)
        .map(|c| p.of_class(c).map(|k| p.candidate(k).total).min().expect("classes have candidates"))
        .collect();
    let mut all = Branches { p, cheapest, picked: vec![None; p.classes()], best: None };
    all.decide(vec![p.root()], Total::default());
    all.best.expect("every class can be had")
}

struct Branches<'a> {
    p: &'a Problem,
    cheapest: Vec<Total>,
    picked: Vec<Option<u32>>,
    best: Option<Total>,
}

impl Branches<'_> {
    fn decide(&mut self, mut open: Vec<u32>, paid: Total) {
        let bound = open.iter().fold(paid, |sum, &c| sum.plus(self.cheapest[c as usize]));
        if self.best.is_some_and(|best| bound >= best) {
            return;
        }
        let Some(class) = open.pop() else {
            let choice = Choice::new(self.picked.clone());
            self.best = choice.total(self.p).ok().or(self.best);
            return;
        };
        for candidate in self.p.of_class(class) {
            self.picked[class as usize] = Some(candidate);
            let mut then = open.clone();
            for &need in self.p.needs(candidate) {
                if self.picked[need as usize].is_none() && !then.contains(&need) {
                    then.push(need);
                }
            }
            self.decide(then, paid.plus(self.p.candidate(candidate).total));
        }
        self.picked[class as usize] = None;
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
fn no_extractor_beats_the_best_and_thorough_ones_come_near() {
    let mut rng = Rng(41);
    let search = Search { most_moves: 4_000, ..Search::default() };
    let (mut dag_exact, mut search_exact) = (0, 0);
    for round in 0..200 {
        let p = random(&mut rng, 3 + round % 14, 3);
        let [tree, dag, found] = [&TreeGreedy as &dyn Extractor, &DagGreedy::default(), &search]
            .map(|e| e.extract(&p).total(&p).expect("a program"));
        let best = best(&p);
        assert!(best <= found && found <= dag && dag <= tree, "round {round}: {best:?} {found:?} {dag:?} {tree:?}");
        dag_exact += (dag == best) as usize;
        search_exact += (found == best) as usize;
    }
    assert!(dag_exact >= 198 && search_exact >= 199, "{dag_exact} and {search_exact} of 200");
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

#[test]
fn search_is_never_worse_than_dag_greedy() {
    let mut rng = Rng(11);
    let search = Search { most_moves: 4_000, ..Search::default() };
    let (mut better, mut exact) = (0, 0);
    for round in 0..200 {
        let p = random(&mut rng, 3 + round % 60, 3);
        let (dag, found) = (DagGreedy::default().extract(&p), search.extract(&p));
        let (d, s) = (dag.total(&p).expect("a program"), found.total(&p).expect("a program"));
        assert!(s <= d, "round {round}: {s:?} > {d:?}");
        assert_eq!(found, search.extract(&p), "round {round}: the same on every run");
        better += (s < d) as usize;
    }
    for _ in 0..100 {
        let p = random(&mut rng, 7, 2);
        exact += (search.extract(&p).total(&p).expect("a program") == best(&p)) as usize;
    }
    assert!(exact >= 99, "{exact} of 100");
    println!("search is better than DAG-greedy on {better} of 200");
}

/// Layers that can be computed two at a time, and four at a time only by way of two merged pairs: each pair costs more than its
/// two layers, the merged four much less.
fn merged_layers() -> Problem {
    // 0: root; 1..=4: layers; 5, 6: pairs; 7: all four.
    Problem::from_parts(
        &[
            vec![(0.0, vec![1, 2, 3, 4])],
            vec![(10.0, vec![]), (0.5, vec![5])],
            vec![(10.0, vec![]), (0.5, vec![5])],
            vec![(10.0, vec![]), (0.5, vec![6])],
            vec![(10.0, vec![]), (0.5, vec![6])],
            vec![(21.0, vec![]), (0.5, vec![7])],
            vec![(21.0, vec![]), (0.5, vec![7])],
            vec![(24.0, vec![])],
        ],
        0,
    )
}

#[test]
fn layers_that_pay_only_together_are_found() {
    let p = merged_layers();
    assert_eq!(DagGreedy::default().extract(&p).cost(&p), Ok(27.0));
    assert_eq!(Search::default().extract(&p).cost(&p), Ok(27.0));
}

#[test]
fn extractors_are_known_by_name() {
    let time = std::time::Duration::from_secs(1);
    for name in names() {
        assert_eq!(by_name(name, time).expect("shipped").name(), name);
    }
    let said = by_name("dagg", time).err().expect("refused").to_string();
    assert!(said.contains("there are tree, dag, search, ilp") && said.contains("did you mean `dag`"), "{said}");
}

mod ilp {
    use std::time::Duration;

    use resat::extract::Ilp;

    use super::*;

    fn ilp() -> Ilp {
        Ilp { time: Duration::from_secs(60) }
    }

    #[test]
    fn no_extractor_is_better() {
        let mut rng = Rng(21);
        let (mut better, mut bounded) = (0, 0);
        for round in 0..200 {
            let p = random(&mut rng, 3 + round % 80, 3);
            let solution = ilp().solve(&p);
            let [i, d, t] = [&solution.choice, &DagGreedy::default().extract(&p), &TreeGreedy.extract(&p)]
                .map(|c| c.total(&p).expect("a program"));
            let s = Search { most_moves: 4_000, ..Search::default() }.extract(&p).total(&p).expect("a program");
            assert!(i <= d && d <= t && i.units <= s.units, "round {round}: {i:?} {s:?} {d:?} {t:?}");
            better += (i.units < d.units) as usize;
            bounded += solution.gap(&p).is_some_and(|g| g < 1e-6) as usize;
        }
        assert_eq!(bounded, 200, "all are solved");
        println!("the program is better than DAG-greedy's on {better} of 200");
    }

    #[test]
    fn small_problems_with_cycles_are_solved_exactly() {
        let mut rng = Rng(5);
        for round in 0..200 {
            let p = random(&mut rng, 7, 3);
            let units = ilp().extract(&p).total(&p).expect("a program").units;
            assert_eq!(units, best(&p).units, "round {round}");
        }
    }

    #[test]
    fn cycles_are_not_chosen() {
        // Classes 1, 2 and 3 are cheapest by way of each other.
        let p = Problem::from_parts(
            &[
                vec![(0.0, vec![1])],
                vec![(1.0, vec![2]), (50.0, vec![])],
                vec![(1.0, vec![3]), (40.0, vec![])],
                vec![(1.0, vec![1]), (60.0, vec![])],
            ],
            0,
        );
        let solution = ilp().solve(&p);
        assert_eq!(solution.choice.cost(&p), Ok(41.0));
        assert!((solution.bound.expect("solved") - 41.0).abs() < 1e-3);
    }

    #[test]
    fn layers_are_merged() {
        let p = merged_layers();
        assert_eq!(ilp().extract(&p).cost(&p), Ok(27.0));
    }

    #[test]
    fn without_time_the_greedy_choice_is_left() {
        let p = merged_layers();
        let solution = Ilp { time: Duration::ZERO }.solve(&p);
        assert!(solution.timed_out && solution.choice == DagGreedy::default().extract(&p));
    }
}
