//! TENSAT's networks through our rules and extractors: layers that share an input are merged where that pays, and the extractors
//! are as good as they promise, relative to each other.

use std::collections::BTreeMap;

use crate::networks::{Network, TENSAT, bert_attention, counts, nasrnn};
use resat::{
    cost::{CostModel, Head, NodeView, Roofline},
    egraph::encode,
    extract::{DagGreedy, Extractor, Problem, Search},
    infer::infer_types,
    ir::Module,
    ops::Class,
    pass::fold_constant,
    rules,
    saturate::{Limits, Report, Ruleset, Stop, optimize, saturate},
    target::Target,
};

/// Prices of a machine on which starting a kernel is dear, as on a GPU: sums of products cost a start and their arithmetic, what
/// is elementwise little, and what moves data nothing, as it is part of other kernels.
struct Starts;

impl CostModel for Starts {
    fn name(&self) -> &str {
        "starts"
    }

    fn cost(&self, node: &NodeView) -> f64 {
        let Head::Op(op, attrs) = node.head else { return 0.0 };
        match op.op().class() {
            Class::Contract => 1.0 + 1e-10 * op.op().work(attrs, node.args, node.out).flops,
            Class::Elementwise | Class::Broadcast => 0.01,
            Class::Injective => 0.0,
            _ => 1.0,
        }
    }
}

fn target() -> Target {
    Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal")
}

fn rulesets(names: &[&str]) -> Vec<Ruleset> {
    rules::general().into_iter().filter(|r| names.contains(&r.name.as_str())).collect()
}

fn optimized(network: &Network, extractor: &dyn Extractor, limits: &Limits) -> (Module, Report) {
    let typed = infer_types(network.bound(&network.cheap_weights())).expect("well typed");
    let rules = rulesets(&["shapes", "combine-dense", "layout"]);
    let done = optimize(&typed, &rules, limits, &Starts, extractor, &target());
    assert_eq!(done.report.faults, Vec::<String>::new());
    let folded = fold_constant(&done.module).expect("constants can be computed");
    infer_types(folded.clone()).expect("well typed");
    (folded, done.report)
}

fn products(counts: &BTreeMap<&str, usize>) -> usize {
    ["nn.matmul", "nn.dense", "nn.contrib_dense_pack"].iter().filter_map(|op| counts.get(op)).sum()
}

#[test]
fn queries_keys_and_values_are_merged() {
    let network = bert_attention(2);
    let limits = Limits { time: std::time::Duration::from_secs(600), ..Limits::default() };
    for extractor in [&DagGreedy::default() as &dyn Extractor, &Search { most_moves: 2_000, ..Search::default() }] {
        let (module, report) = optimized(&network, extractor, &limits);
        let found = counts(&module);
        assert!(products(&found) <= 4, "{}: {found:?}", extractor.name());
        // Whether their operands are transposed by themselves is for the processor's costs to say.
        let of_heads = ["nn.batch_matmul", "einsum"].iter().filter_map(|op| found.get(op)).sum::<usize>();
        assert_eq!(of_heads, 4, "{}: {found:?}", extractor.name());
        assert!(report.cost_after < report.cost_before);
    }
}

#[test]
fn integer_programs_merge_what_reads_one_input() {
    let limits = Limits { time: std::time::Duration::from_secs(600), ..Limits::default() };
    let ilp = resat::extract::Ilp { time: std::time::Duration::from_secs(60) };
    let network = bert_attention(8);
    let (merged, report) = optimized(&network, &ilp, &limits);
    let found = counts(&merged);
    // Four products of each block's input are two, or fewer.
    assert!(products(&found) <= 16, "{found:?}");
    let (_, greedy) = optimized(&network, &DagGreedy::default(), &limits);
    assert!(report.cost_after <= greedy.cost_after * (1.0 + 1e-9), "{} {}", report.cost_after, greedy.cost_after);
}

#[test]
fn gates_of_a_recurrent_cell_are_merged() {
    let limits = Limits { time: std::time::Duration::from_secs(600), ..Limits::default() };
    // Eight products of the input; those of the first state, a weight, are constants.
    for (extractor, most) in [(&DagGreedy::default() as &dyn Extractor, 4), (&Search::default(), 3)] {
        let (module, _) = optimized(&nasrnn(1), extractor, &limits);
        let found = counts(&module);
        assert!((1..=most).contains(&products(&found)), "{}: {found:?}", extractor.name());
    }
}

#[test]
fn thorough_extractors_are_no_worse_on_tensat() {
    for published in TENSAT.iter().filter(|p| !matches!(p.name, "VGG-19" | "NasRNN")) {
        let network = (published.make)();
        let typed = infer_types(network.module).expect("well typed");
        let mut encoded = encode(&typed);
        let outermost = *encoded.regions().last().expect("a module has a region");
        let mut region = encoded.open(outermost, false);
        let limits = Limits { time: std::time::Duration::from_secs(600), ..Limits::default() };
        let report = saturate(&mut region.graph, &rulesets(&["shapes", "layout"]), &limits);
        assert_eq!(report.stop, Stop::Saturated, "{}", published.name);
        for model in [&Roofline as &dyn CostModel, &Starts] {
            let problem = Problem::new(&region.graph, region.root, model, &target());
            crate::common::extractors::compare(&problem, &format!("{} by {}", published.name, model.name()));
        }
    }
}

#[test]
fn searches_end_and_stay_small() {
    for published in &TENSAT {
        let network = (published.make)();
        let typed = infer_types(network.bound(&network.cheap_weights())).expect("well typed");
        let mut encoded = encode(&typed);
        let outermost = *encoded.regions().last().expect("a module has a region");
        let mut region = encoded.open(outermost, false);
        let limits = Limits { time: std::time::Duration::from_secs(3600), ..Limits::default() };
        let report = saturate(&mut region.graph, &rules::general(), &limits);
        // TENSAT's own search stops at 50,000 nodes.
        assert!(report.stop <= Stop::GrowthBounded && report.nodes < 25_000, "{}: {report}", published.name);
    }
}
