//! What extractors owe each other.

use resat::extract::{DagGreedy, Extractor, Problem, Search, Total, TreeGreedy};

/// Asserts that each extractor gives a program and that thorough ones are no worse than fast ones.
pub(crate) fn compare(p: &Problem, what: &str) {
    let total = |e: &dyn Extractor| -> Total {
        e.extract(p).total(p).unwrap_or_else(|flaw| panic!("{what}, {}: {flaw}", e.name()))
    };
    let dag = total(&DagGreedy::default());
    let (tree, search) = (total(&TreeGreedy), total(&Search { most_moves: 2_000, ..Search::default() }));
    assert!(search <= dag && dag <= tree, "{what}: {search:?} {dag:?} {tree:?}");
    {
        let solution = resat::extract::Ilp { time: std::time::Duration::from_secs(3) }.solve(p);
        let ilp = solution.choice.total(p).unwrap_or_else(|flaw| panic!("{what}, ilp: {flaw}"));
        assert!(ilp <= dag, "{what}: {ilp:?} {dag:?}");
        // What is solved is the best there is; the solver's numbers are floats, ours are not.
        if solution.gap(p).is_some_and(|gap| gap < 1e-9) {
            assert!(ilp.units as f64 <= search.units as f64 * (1.0 + 1e-6), "{what}: {ilp:?} {search:?}");
        }
    }
}
