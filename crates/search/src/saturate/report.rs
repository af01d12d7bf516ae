//! What a run did.

use std::{fmt, time::Duration};

use super::placed::{self, PlacedReport};
use crate::{
    egraph::Refusal,
    ir::Name,
    saturate::{Grade, Rule},
};

/// Why a run stopped; from good to bad.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Stop {
    /// No rule has anything new to say.
    #[default]
    Saturated,
    /// Rules that grow the graph without end rest, or some class has more ways through it than a search takes (see
    /// [`RuleReport::cut`]); other than that no rule has anything new to say.
    GrowthBounded,
    /// The limit of rounds.
    Iterations,
    /// The limit of e-nodes.
    Nodes,
    /// The limit of memory.
    Memory,
    /// The limit of wall time.
    Time,
    /// The limit of unions.
    Unions,
    /// Somebody asked for it.
    Cancelled,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stop::Saturated => "saturated",
            Stop::GrowthBounded => "saturated, but for rules that grow without end",
            Stop::Iterations => "stopped at the iteration limit",
            Stop::Nodes => "stopped at the node limit",
            Stop::Memory => "stopped at the memory limit",
            Stop::Time => "stopped at the time limit",
            Stop::Unions => "stopped at the union limit",
            Stop::Cancelled => "cancelled",
        })
    }
}

/// What one rule did.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleReport {
    /// Its ruleset.
    pub ruleset: Name,
    /// Its name.
    pub rule: Name,
    /// How equal its sides are.
    pub grade: Grade,
    /// Places where its left side was found, over all rounds.
    pub matches: usize,
    /// Equalities that it taught.
    pub unions: usize,
    /// For searching and applying.
    pub time: Duration,
    /// Whether a search has left out matches, as there were too many ways through some class.
    pub cut: bool,
    /// Places where it counts as not applying since an extent that decides is unknown, over all rounds.
    pub undecided: usize,
}

/// A kernel of a program that is priced by kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelReport {
    /// Its operators' names, in order, with `+` between them.
    pub name: String,
    /// How often it stands in the program.
    pub calls: usize,
    /// What each call costs, by the cost model.
    pub cost: f64,
}

/// What a run did, over all regions of a module.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Why it stopped: of all regions, the worst reason.
    pub stop: Stop,
    /// Rounds: of all regions, the most.
    pub iterations: usize,
    /// Regions.
    pub regions: usize,
    /// E-nodes, over all regions.
    pub nodes: usize,
    /// Classes, over all regions.
    pub classes: usize,
    /// E-nodes that the program itself came with.
    pub nodes_before: usize,
    /// Estimated bytes of the largest e-graph.
    pub peak_bytes: usize,
    /// Searching, applying, rebuilding.
    pub saturate_time: Duration,
    /// Pricing and choosing.
    pub extract_time: Duration,
    /// Price of the program as it came and as it went, by the cost model.
    pub cost_before: f64,
    /// See `cost_before`.
    pub cost_after: f64,
    /// These two as reports show them: see [`CostModel::reported`](crate::cost::CostModel::reported).
    pub reported: [Option<f64>; 2],
    /// The error that the program is predicted to have: what its approximations bring in, added up.
    pub error: f64,
    /// Regions for which something cheaper was found.
    pub regions_changed: usize,
    /// The loosest grade among rules that taught anything.
    pub grade: Grade,
    /// Every rule, in the order in which they ran.
    pub rules: Vec<RuleReport>,
    /// What rules wanted and must not have.
    pub refusals: Vec<Refusal>,
    /// What extraction came up with and could not be used, and why: faults of an extractor or a rule.
    pub faults: Vec<String>,
    /// How far the chosen programs may be from the cheapest, as a share of their cost, at most; none where the extractor knows
    /// no bound.
    pub gap: Option<f64>,
    /// Whether an extractor stopped for want of time.
    pub extractor_timed_out: bool,
    /// What the prices rest on that a user should know.
    pub notes: Vec<String>,
    /// What a user should know without having asked for a report.
    pub warnings: Vec<String>,
    /// Where programs are priced by kernels: those of the chosen program.
    pub kernels: Vec<KernelReport>,
    /// Where external compilers are at hand: who makes what in the chosen program.
    pub placed: Vec<PlacedReport>,
    /// The rule that taught the last equality, as `ruleset/rule`.
    pub last_rule: Option<Name>,
}

impl Report {
    /// A report on the rules before any ran.
    pub(super) fn of<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Report {
        let row = |r: &Rule| RuleReport {
            ruleset: r.ruleset.clone(),
            rule: r.name.clone(),
            grade: r.grade,
            matches: 0,
            unions: 0,
            time: Duration::ZERO,
            cut: false,
            undecided: 0,
        };
        Report { rules: rules.into_iter().map(row).collect(), ..Report::default() }
    }

    /// Adds a region's report. Both are about the same rules.
    pub(super) fn add(&mut self, region: Report) {
        self.stop = self.stop.max(region.stop);
        self.iterations = self.iterations.max(region.iterations);
        self.regions += 1;
        self.nodes += region.nodes;
        self.classes += region.classes;
        self.nodes_before += region.nodes_before;
        self.peak_bytes = self.peak_bytes.max(region.peak_bytes);
        self.saturate_time += region.saturate_time;
        self.extract_time += region.extract_time;
        self.regions_changed += region.regions_changed;
        self.error += region.error;
        self.grade = self.grade.max(region.grade);
        for (all, one) in self.rules.iter_mut().zip(region.rules) {
            all.matches += one.matches;
            all.unions += one.unions;
            all.time += one.time;
            all.cut |= one.cut;
            all.undecided += one.undecided;
        }
        for refusal in region.refusals {
            if !self.refusals.contains(&refusal) {
                self.refusals.push(refusal);
            }
        }
        self.faults.extend(region.faults);
        self.gap = [self.gap, region.gap].into_iter().flatten().reduce(f64::max);
        self.extractor_timed_out |= region.extractor_timed_out;
        self.last_rule = region.last_rule.or(self.last_rule.take());
        for kernel in region.kernels {
            match self.kernels.iter_mut().find(|k| k.name == kernel.name && k.cost == kernel.cost) {
                Some(k) => k.calls += kernel.calls,
                None => self.kernels.push(kernel),
            }
        }
        for part in region.placed {
            let same = |q: &&mut PlacedReport| {
                (&q.compiler, &q.name, q.cost, &q.next) == (&part.compiler, &part.name, part.cost, &part.next)
            };
            match self.placed.iter_mut().find(same) {
                Some(q) => q.calls += part.calls,
                None => self.placed.push(part),
            }
        }
    }

    /// Adds the report of other rules that ran over the same e-graph afterwards.
    pub(super) fn then(&mut self, later: Report) {
        self.stop = self.stop.max(later.stop);
        self.iterations += later.iterations;
        (self.nodes, self.classes) = (later.nodes, later.classes);
        self.peak_bytes = self.peak_bytes.max(later.peak_bytes);
        self.saturate_time += later.saturate_time;
        self.grade = self.grade.max(later.grade);
        self.rules.extend(later.rules);
        self.refusals = later.refusals;
        self.last_rule = later.last_rule.or(self.last_rule.take());
    }

    /// What a user should know where a limit stopped the run before its rules had come to an end. A limit of
    /// unions is how applications are counted, and no surprise to who set it.
    pub(super) fn stopped(&self) -> Option<String> {
        let cut_short = [Stop::Iterations, Stop::Nodes, Stop::Memory, Stop::Time].contains(&self.stop);
        cut_short.then(|| {
            format!(
                "{} after {} rounds: {} e-nodes, of which {} came in; the program is the cheapest of what was found by then",
                self.stop, self.iterations, self.nodes, self.nodes_before
            )
        })
    }

    /// Equalities taught, over all rules.
    pub fn unions(&self) -> usize {
        self.rules.iter().map(|r| r.unions).sum()
    }
}

impl Report {
    /// Who makes what: a line for each maker, and for its dearest parts.
    fn show_placed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let maker = |part: &PlacedReport| part.compiler.clone().unwrap_or(placed::OWN.to_owned());
        let crosses = |part: &PlacedReport| ["enter", "leave"].contains(&part.name.as_str());
        let mut makers: Vec<String> = self.placed.iter().map(maker).collect();
        makers.sort_unstable();
        makers.dedup();
        let sum = |of: &mut dyn Iterator<Item = &PlacedReport>| {
            of.fold((0, 0.0), |(calls, cost), p| (calls + p.calls, cost + p.calls as f64 * p.cost))
        };
        for name in makers {
            let of = || self.placed.iter().filter(|p| maker(p) == name);
            let (parts, cost) = sum(&mut of().filter(|p| !crosses(p)));
            let (crossings, border) = sum(&mut of().filter(|p| crosses(p)));
            write!(f, "{name} makes {parts} parts for {cost:.3e}")?;
            match crossings {
                0 => writeln!(f, ":")?,
                _ => writeln!(f, ", {crossings} values that cross its borders cost {border:.3e}:")?,
            }
            let mut all: Vec<&PlacedReport> = of().filter(|p| !crosses(p)).collect();
            all.sort_by(|a, b| (b.calls as f64 * b.cost).total_cmp(&(a.calls as f64 * a.cost)));
            for p in all.iter().take(KERNELS_SHOWN) {
                let times = if p.calls > 1 { format!("{} x ", p.calls) } else { String::new() };
                let next = match &p.next {
                    Some((by, cost)) => format!("; next best {} for {cost:.3e}", by.as_deref().unwrap_or(placed::OWN)),
                    None => "; nobody else".to_owned(),
                };
                writeln!(f, "  {times}{:.3e}: {}{next}", p.cost, shortened(&p.name))?;
            }
            if all.len() > KERNELS_SHOWN {
                writeln!(f, "  and {} that cost less", all.len() - KERNELS_SHOWN)?;
            }
        }
        Ok(())
    }
}

/// So many kernels are shown to people.
const KERNELS_SHOWN: usize = 24;

/// A name of so many characters is shown whole.
const NAME_SHOWN: usize = 120;

fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_SHOWN) {
        Some((at, _)) => format!("{}…, {} operators", &name[..at], name.matches('+').count() + 1),
        None => name.to_owned(),
    }
}

impl fmt::Display for Report {
    /// A few lines for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} after {} rounds: {} e-nodes in {} classes (from {}), about {} MiB",
            self.stop,
            self.iterations,
            self.nodes,
            self.classes,
            self.nodes_before,
            self.peak_bytes.div_ceil(1 << 20),
        )?;
        writeln!(
            f,
            "{}saturation {:.3} s, extraction {:.3} s; grade {}",
            match self.reported {
                [Some(before), Some(after)] => format!("cost {before:.6e} -> {after:.6e}; "),
                [None, Some(after)] => format!("cost {after:.6e}; "),
                _ => String::new(),
            },
            self.saturate_time.as_secs_f64(),
            self.extract_time.as_secs_f64(),
            self.grade,
        )?;
        if self.error > 0.0 {
            writeln!(f, "predicted error {:.3e} of the result's largest magnitude", self.error)?;
        }
        if let Some(gap) = self.gap {
            let why = if self.extractor_timed_out { ", where time was up" } else { "" };
            writeln!(f, "the cheapest program costs at most {:.2} % less{why}", 100.0 * gap)?;
        }
        for r in self.rules.iter().filter(|r| r.unions > 0) {
            writeln!(
                f,
                "  {}/{}: {} matches, {} unions, {:.1} ms",
                r.ruleset,
                r.rule,
                r.matches,
                r.unions,
                r.time.as_secs_f64() * 1e3
            )?;
        }
        for r in self.rules.iter().filter(|r| r.cut) {
            writeln!(
                f,
                "  bounded: {}/{} left out matches, as there are too many ways through a class",
                r.ruleset, r.rule
            )?;
        }
        for r in self.rules.iter().filter(|r| r.undecided > 0) {
            writeln!(f, "  undecided: {}/{}: {} matches, where extents are unknown", r.ruleset, r.rule, r.undecided)?;
        }
        self.show_placed(f)?;
        if !self.kernels.is_empty() && self.placed.is_empty() {
            let mut kernels: Vec<&KernelReport> = self.kernels.iter().collect();
            kernels.sort_by(|a, b| (b.calls as f64 * b.cost).total_cmp(&(a.calls as f64 * a.cost)));
            let calls: usize = kernels.iter().map(|k| k.calls).sum();
            writeln!(f, "{calls} kernels, {} of them different:", kernels.len())?;
            for k in kernels.iter().take(KERNELS_SHOWN) {
                let times = if k.calls > 1 { format!("{} x ", k.calls) } else { String::new() };
                writeln!(f, "  {times}{:.3e}: {}", k.cost, shortened(&k.name))?;
            }
            if kernels.len() > KERNELS_SHOWN {
                writeln!(f, "  and {} that cost less", kernels.len() - KERNELS_SHOWN)?;
            }
        }
        for r in &self.refusals {
            let rule = r.rule.as_ref().map_or("congruence", |n| n.as_str());
            writeln!(f, "  refused: {rule}: {}", r.reason)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "  not used: {fault}"))
    }
}
