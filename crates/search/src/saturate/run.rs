//! The scheduler: rounds of searching all rules, on all cores, then applying them in order, within limits that hold inside a rule too.
//!
//! egg is the e-graph alone. Its own runner looks at its limits between rules only, and one rule can multiply the graph by ten; and a match is
//! a substitution of pattern variables there, where ours also bind operators, fields and sequences ([`Rewrite`](super::Rewrite)).

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use super::{Asked, Limits, Matches, Report, Rule, RuleReport, Ruleset, SearchContext, Stop};
use crate::egraph::{DirtySet, Graph, may_apply, refresh_errors, refresh_uses};

/// Measured resident bytes of one e-node with its class, fact, parents, and share of the hash tables.
const BYTES_PER_NODE: usize = 450;

/// Matches that are applied before time is looked at again.
const CHUNK: usize = 64;

/// Rules that a thread searches before it looks whether others have nothing to do.
const RULES_AT_ONCE: usize = 8;

/// What the scheduler remembers of a rule between rounds.
struct Turn<'a> {
    rule: &'a Rule,
    /// Matches that it may have in the next round.
    room: usize,
    /// Whether it found and applied all that there was in the last round, so that it need only look at what has changed.
    done: bool,
    /// Whether it has asked who uses a value.
    asks: bool,
}

/// What `f` makes of each, in order, on all cores. The caller's thread is one of those that work: where it only waited, the system might wake two
/// others on one core and leave its own idle.
fn on_all_cores<T: Send, R: Send>(items: &mut [T], f: impl Fn(&mut T) -> R + Sync) -> Vec<R> {
    let workers = rayon::current_num_threads().min(items.len().div_ceil(RULES_AT_ONCE));
    let parts = Mutex::new(items.chunks_mut(RULES_AT_ONCE).enumerate());
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((number, part)) = next else { break };
            let made: Vec<R> = part.iter_mut().map(&f).collect();
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, made));
        }
    };
    rayon::in_place_scope(|scope| {
        (1..workers).for_each(|_| scope.spawn(|_| work()));
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|part| part.0);
    done.into_iter().flat_map(|part| part.1).collect()
}

/// Runs rulesets over an e-graph, in their order, until nothing changes or a limit is met. Deterministic, but for the
/// time limit.
pub fn saturate<'r>(graph: &mut Graph, rulesets: &'r [Ruleset], limits: &Limits) -> Report {
    let start = Instant::now();
    let mut report = Report::of(rulesets.iter().flat_map(|r| &r.rules));
    report.nodes_before = graph.total_size();
    let growth_limit = report.nodes_before.saturating_mul(limits.growth).max(limits.growing_matches);
    let by_bytes = limits.bytes / BYTES_PER_NODE;
    graph.analysis.budget.nodes = limits.nodes.min(by_bytes);
    graph.analysis.budget.unions = limits.unions;
    let deadline = start.checked_add(limits.time);
    let mut dirty = DirtySet::default();
    let mut turns: Vec<Turn> = rulesets
        .iter()
        .flat_map(|r| &r.rules)
        .map(|rule| Turn {
            rule,
            room: if rule.grows { limits.growing_matches } else { limits.matches },
            done: false,
            asks: false,
        })
        .collect();
    let limit_met = |graph: &Graph| -> Option<Stop> {
        let nodes = graph.total_size();
        match () {
            _ if limits.cancel.is_cancelled() => Some(Stop::Cancelled),
            _ if graph.analysis.budget.unions == 0 => Some(Stop::Unions),
            _ if nodes >= limits.nodes => Some(Stop::Nodes),
            _ if nodes >= by_bytes => Some(Stop::Memory),
            _ if start.elapsed() >= limits.time => Some(Stop::Time),
            _ => None,
        }
    };
    let ended = || match limits.cancel.is_cancelled() {
        true => Some(Stop::Cancelled),
        false => (start.elapsed() >= limits.time).then_some(Stop::Time),
    };
    if !graph.clean {
        graph.rebuild();
    }
    let mut stop = None;
    while stop.is_none() {
        if turns.is_empty() {
            stop = Some(Stop::Saturated);
            break;
        }
        if report.iterations == limits.iterations {
            stop = Some(Stop::Iterations);
            break;
        }
        report.iterations += 1;
        refresh_uses(graph);
        dirty.refresh(graph);
        let size_before = (graph.total_size(), graph.number_of_classes());
        let rests = graph.total_size() >= growth_limit;
        // Nothing changes while rules are searched, so that all cores may do that, and what each finds does not depend on the others.
        let seen = &*graph;
        let search = |(turn, row): &mut (&mut Turn<'r>, &mut RuleReport)| -> Option<Matches<'r>> {
            if turn.rule.grows && rests {
                turn.done = false;
                return None;
            }
            if ended().is_some() {
                return None;
            }
            let begin = Instant::now();
            let mut cx = SearchContext::everywhere(seen).until(deadline);
            if turn.done && !limits.everything {
                cx = cx.of_dirty(&dirty, turn.asks);
            }
            let matches = turn.rule.rewrite.search(cx, turn.room);
            let count = matches.len();
            turn.asks |= matches.asked;
            row.cut |= matches.cut;
            row.undecided += matches.undecided;
            turn.done = count < turn.room;
            if count >= turn.room {
                // The same matches come first again: only more room gets beyond them.
                turn.room = turn.room.saturating_mul(2);
            }
            row.matches += count;
            row.time += begin.elapsed();
            Some(matches)
        };
        let mut searched: Vec<_> = turns.iter_mut().zip(&mut report.rules).collect();
        let found: Vec<Option<Matches>> = on_all_cores(&mut searched, search);
        let rested = rests && turns.iter().any(|turn| turn.rule.grows);
        let capped = turns.iter().zip(&found).any(|(turn, found)| found.is_some() && !turn.done);
        stop = ended();
        let mut unions = 0;
        'apply: for ((turn, row), matches) in turns.iter_mut().zip(&mut report.rules).zip(found) {
            let begin = Instant::now();
            let (mut taught, asked) = (0, Asked::default());
            for at in 0..matches.as_ref().map_or(0, Matches::len) {
                if !may_apply(graph) || at % CHUNK == 0 && ended().is_some() {
                    stop = stop.or_else(|| limit_met(graph));
                    break 'apply;
                }
                let left = graph.analysis.budget.unions;
                // What a rule's own limit leaves for this round; matches beyond it come again in the next.
                let share = turn.rule.limit.map_or(left, |n| left.min(n - taught.min(n)));
                if share == 0 {
                    turn.done = false;
                    break;
                }
                graph.analysis.budget.unions = share;
                matches.iter().for_each(|m| m.apply(at, graph, &asked));
                let made = share - graph.analysis.budget.unions;
                graph.analysis.budget.unions = left - made;
                taught += made;
                // What the limit cut off is looked for again.
                turn.done &= turn.rule.limit.is_none_or(|n| taught < n);
                row.unions += made as usize;
                unions += made;
            }
            turn.asks |= asked.get();
            row.undecided += asked.undecided();
            row.time += begin.elapsed();
        }
        graph.rebuild();
        refresh_errors(graph);
        stop = stop.or_else(|| limit_met(graph));
        let size = (graph.total_size(), graph.number_of_classes());
        if stop.is_none() && unions == 0 && size == size_before && !capped {
            // What was cut once is not looked for again: the same ways would come first.
            let bounded = rested || report.rules.iter().any(|r| r.cut);
            stop = Some(if bounded { Stop::GrowthBounded } else { Stop::Saturated });
        }
    }
    // Extraction and the facts of what it chooses are not bound by what the rules were.
    graph.analysis.budget = Default::default();
    report.stop = stop.unwrap_or_default();
    report.nodes = graph.total_size();
    report.classes = graph.number_of_classes();
    report.peak_bytes = report.nodes * BYTES_PER_NODE;
    report.refusals = graph.analysis.refusals.clone();
    report.last_rule = graph.analysis.last_rule.take();
    report.grade = report.rules.iter().filter(|r| r.unions > 0).map(|r| r.grade).max().unwrap_or_default();
    report.saturate_time = start.elapsed();
    report
}
