//! A module through the e-graph: encode, saturate, extract, decode, region by region.

use std::time::Instant;

use hashbrown::HashSet;

use super::{KernelReport, Limits, Report, Ruleset, blocks, placed::placed, saturate};
use crate::{
    cost::{Checked, CostModel},
    egraph::{Case, Graph, ModuleTrials, RegionGraph, Term, encode, meet, note_uses, weights},
    extract::{Choice, Extractor, Problem, bound, chosen_term, refine_term, term_cost, term_prices, within},
    infer::TypedModule,
    ir::{Module, likely_extents},
    target::Target,
};

/// A module that went through the e-graph, and what happened to it.
#[derive(Debug)]
pub struct Optimized {
    /// The module.
    pub module: Module,
    /// What happened.
    pub report: Report,
}

/// A region after saturation, and what was chosen for it: for whoever wants to look.
pub struct Extracted<'a> {
    /// The region and its e-graph. Nodes may be added, and equalities explained where limits asked for that.
    pub region: &'a mut RegionGraph,
    /// What there was to choose from.
    pub problem: &'a Problem,
    /// What was chosen.
    pub choice: &'a Choice,
    /// What saturation did.
    pub report: &'a Report,
}

/// As [`optimize_observed`], without an observer.
pub fn optimize(
    module: &TypedModule,
    rulesets: &[Ruleset],
    limits: &Limits,
    model: &dyn CostModel,
    extractor: &dyn Extractor,
    target: &Target,
) -> Optimized {
    optimize_observed(module, rulesets, limits, model, extractor, target, &mut |_| {})
}

/// The program that the rules, the model and the extractor make of a module.
///
/// Whatever limit is met, the result is a program equal to the module (to the grade that the report states), and no
/// more expensive by the model: a region for which nothing cheaper is found stays as it is. What an extractor gets wrong (a cycle,
/// a type that does not fit) is kept out, and reported in [`Report::faults`].
///
/// The observer sees every region that was saturated.
pub fn optimize_observed(
    module: &TypedModule,
    rulesets: &[Ruleset],
    limits: &Limits,
    model: &dyn CostModel,
    extractor: &dyn Extractor,
    target: &Target,
    observer: &mut dyn FnMut(Extracted),
) -> Optimized {
    let start = Instant::now();
    let checked = Checked::new(model);
    let model: &dyn CostModel = &checked;
    // Kernels are formed of what the other rules have found: no rule looks at kernels.
    let forms_kernels = |r: &&Ruleset| r.rules.iter().any(|rule| rule.forms_kernels);
    let (forming, others): (Vec<&Ruleset>, Vec<&Ruleset>) = rulesets.iter().partition(forms_kernels);
    let (forming, others): (Vec<Ruleset>, Vec<Ruleset>) =
        (forming.into_iter().cloned().collect(), others.into_iter().cloned().collect());
    let mut report = Report::of(others.iter().chain(&forming).flat_map(|r| &r.rules));
    let mut left = limits.clone();
    let weights = if limits.weights_known { weights(module) } else { HashSet::new() };
    // What is said of `main`'s extents is not said of a function's.
    let hinted = !likely_extents(module.module()).is_empty();
    let apart = limits.blocks && forming.is_empty() && !limits.explanations && limits.error.is_infinite() && !hinted;
    let trials = ModuleTrials::of(module);
    let outlined = apart.then(|| blocks::outline(module, &weights, &trials)).flatten();
    let (module, blocks) = match &outlined {
        Some((module, blocks)) => (module, Some(blocks)),
        None => (module, None),
    };
    let mut encoded = encode(module);
    if !forming.is_empty() {
        encoded.price_by_kernel();
    }
    encoded.know(weights.into_iter().map(|v| (v, None)));
    encoded.know(blocks.into_iter().flat_map(|b| b.known.iter().map(|(&v, &range)| (v, range))));
    let of_blocks = blocks.into_iter().flat_map(|b| b.trials.iter().map(|(&v, trials)| (v, trials.clone())));
    encoded.try_at(trials.count(), trials.params().chain(of_blocks));
    for id in encoded.regions().to_vec() {
        left.time = limits.time.saturating_sub(start.elapsed());
        let mut region = encoded.open(id, limits.explanations);
        let frozen = encoded.is_frozen(id);
        let mut of_region = match frozen {
            true => Report::of(&[]),
            false => {
                note_uses(&mut region.graph, &[region.root]);
                match forming.is_empty() {
                    true => saturate(&mut region.graph, &others, &left),
                    false => in_turn(&mut region.graph, &others, &forming, &left),
                }
            }
        };
        // What is inside of a kernel already is no kernel by itself.
        let by_kernel = std::mem::take(&mut region.graph.analysis.tables.by_kernel);
        region.graph.analysis.tables.by_kernel = by_kernel && !frozen;
        left.unions -= (of_region.unions() as u64).min(left.unions);
        let begin = Instant::now();
        let original = region.original();
        let (before, ty) = term_cost(&original, &region.graph.analysis.tables, model, target)
            .unwrap_or_else(|why| unreachable!("an encoded term is well typed: {why}"));
        let found = match frozen || limits.cancel.is_cancelled() {
            true => Ok(None),
            false => {
                let wanted = Wanted { error: left.error, bound: limits.bound };
                extract(&mut region, model, extractor, target, wanted, &mut of_region, observer).map(Some)
            }
        };
        let (term, after) = match found {
            // Sums of the same prices in another order differ in the last bits.
            Ok(Some((term, after, new_ty, error))) if after < before * (1.0 - 1e-12) && error <= left.error => {
                match (&ty, &new_ty) {
                    (Some(old), Some(new)) if meet(old, new).is_none() => {
                        of_region.faults.push(format!("a program of type {new} for one of type {old}"));
                        (original, before)
                    }
                    _ => {
                        of_region.regions_changed = 1;
                        left.error -= error;
                        of_region.error = error;
                        (term, after)
                    }
                }
            }
            Ok(_) => (original, before),
            Err(why) => {
                of_region.faults.push(why);
                (original, before)
            }
        };
        of_region.extract_time = begin.elapsed();
        if region.graph.analysis.tables.by_kernel {
            of_region.kernels = kernels(&term, &region, model, target);
        }
        report.add(of_region);
        region.graph.analysis.tables.by_kernel = by_kernel;
        let times = match (blocks, encoded.function(id)) {
            (Some(b), Some(name)) => b.functions.get(name).map_or(1.0, |&n| n as f64),
            _ => 1.0,
        };
        // What is inside a region is part of its price already, as it became: only its own gain is new.
        report.cost_before += times * (before - after);
        if encoded.is_outermost(id) {
            report.cost_before += times * after;
            report.cost_after += times * after;
        }
        encoded.close(region, term, after);
    }
    // Calls of blocks are none in the program that is given back.
    let calls = blocks.map_or(0.0, |b| b.price_of_calls(module, model, target));
    report.cost_before -= calls;
    report.cost_after -= calls;
    report.reported = [report.cost_before, report.cost_after].map(|price| model.reported(price));
    report.notes = model.notes();
    report.warnings.extend(checked.complaint());
    report.warnings.extend(report.stopped());
    let module = encoded.finish();
    Optimized { module: if let Some(blocks) = blocks { blocks.inline(&module) } else { module }, report }
}

/// One set of rules, and then one that forms kernels of what they found, within limits that hold for both.
fn in_turn(graph: &mut Graph, rulesets: &[Ruleset], forming: &[Ruleset], limits: &Limits) -> Report {
    let part = |n: usize| n - n / FOR_KERNELS;
    let first = Limits { nodes: part(limits.nodes), bytes: part(limits.bytes), ..limits.clone() };
    let mut report = saturate(graph, rulesets, &first);
    let unions = limits.unions - (report.unions() as u64).min(limits.unions);
    // Without kernels, prices by kernels say nothing: some time is left for them in any case.
    let least = limits.time / FOR_KERNELS as u32;
    let time = limits.time.saturating_sub(report.saturate_time).max(least);
    report.then(saturate(graph, forming, &Limits { unions, time, ..limits.clone() }));
    report
}

/// So often programs are extracted again in view of prices that were refined; what is left of guesses then stays.
const REFINEMENTS: usize = 32;

/// The part of the e-graph, and of the time, that is kept for kernels: one in so many nodes, and seconds.
const FOR_KERNELS: usize = 4;

/// The kernels of a program, with how often they are called and what a call costs: those that cost most together first.
fn kernels(term: &Term, region: &RegionGraph, model: &dyn CostModel, target: &Target) -> Vec<KernelReport> {
    let tables = &region.graph.analysis.tables;
    let Ok((prices, _)) = term_prices(term, tables, model, target) else { return Vec::new() };
    let mut kernels: Vec<KernelReport> = Vec::new();
    for (node, &cost) in term.nodes().iter().zip(&prices).filter(|(_, cost)| **cost > 0.0) {
        let name = match node.case() {
            Case::Kernel(id) if tables.kernel(id).place().is_none() => tables.kernel(id).name(),
            Case::Kernel(_) => tables.name_of(node),
            Case::Op(op) => op.op().name().to_owned(),
            _ => continue,
        };
        match kernels.iter_mut().find(|k| k.name == name && k.cost == cost) {
            Some(k) => k.calls += 1,
            None => kernels.push(KernelReport { name, calls: 1, cost }),
        }
    }
    kernels
}

/// What extraction is to heed, and to find out.
#[derive(Copy, Clone)]
struct Wanted {
    /// See [`Limits::error`].
    error: f64,
    /// See [`Limits::bound`].
    bound: bool,
}

/// The program that the extractor chooses within an error, its price as it stands, its type and its predicted error.
fn extract(
    region: &mut RegionGraph,
    model: &dyn CostModel,
    extractor: &dyn Extractor,
    target: &Target,
    wanted: Wanted,
    report: &mut Report,
    observer: &mut dyn FnMut(Extracted),
) -> Result<(Term, f64, Option<crate::ir::Type>, f64), String> {
    // What a model measures only where it is about to be chosen is measured then, until nothing guessed is chosen.
    let mut rounds = 0;
    let (problem, solution, term) = loop {
        let problem = Problem::new(&region.graph, region.root, model, target);
        let mut solution = within(&problem, extractor, wanted.error);
        let term =
            chosen_term(&problem, &solution.choice, region).map_err(|flaw| format!("{}: {flaw}", extractor.name()))?;
        rounds += 1;
        if rounds == REFINEMENTS || !refine_term(&term, &region.graph.analysis.tables, model, target) {
            if wanted.bound && solution.bound.is_none() {
                solution.bound = bound(&problem, &solution.choice);
            }
            break (problem, solution, term);
        }
    };
    let (cost, ty) = term_cost(&term, &region.graph.analysis.tables, model, target).map_err(|e| e.to_string())?;
    report.placed = placed(region, &problem, &solution.choice);
    report.gap = solution.gap(&problem);
    report.extractor_timed_out = solution.timed_out;
    let error = solution.choice.error(&problem).map_err(|flaw| flaw.to_string())?;
    observer(Extracted { region, problem: &problem, choice: &solution.choice, report });
    Ok((term, cost, ty, error))
}
