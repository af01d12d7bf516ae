//! What an exploration found: for people, and as JSON for machines.

use serde::Serialize;

use super::{
    Member, Options,
    engine::Ran,
    measure::spread,
    state::{Anytime, Refusal, Saturated, State},
};

/// What an exploration found.
#[derive(Clone, Debug, Serialize)]
pub struct Exploration {
    /// The version that explored.
    pub resat: String,
    /// The model's name.
    pub model: String,
    /// The passes whose orders were tried.
    pub members: Vec<Member>,
    /// How many orders they have.
    pub orders_possible: u64,
    /// Of the draw, where not all orders were tried.
    pub seed: u64,
    /// One saturation instead of an order.
    pub saturation: Run,
    /// Its passes.
    pub saturation_passes: Vec<String>,
    /// The default pipeline without the members: what it does to programs that nobody asked to change further.
    pub default: Run,
    /// The program as it was written, every operator a kernel.
    pub baseline: Run,
    /// Passes that come before and after every order.
    pub around: (Vec<String>, Vec<String>),
    /// The orders that were tried.
    pub orders: Vec<Run>,
    /// The passes of the fastest program, orders and the saturation alike, as `--passes` takes them.
    pub winner: Option<String>,
    /// The order of the least median latency, by its place among `orders`.
    pub best: Option<usize>,
    /// The order in the middle.
    pub median: Option<usize>,
    /// The order of the greatest median latency.
    pub worst: Option<usize>,
    /// Different programs.
    pub programs: usize,
    /// Passes that the orders are made of, all together.
    pub passes_written: usize,
    /// Passes that had to run for them, as orders share their beginnings and equal modules.
    pub passes_run: usize,
    /// Results that were known from a former run.
    pub resumed: usize,
    /// What costs are by.
    pub cost_model: String,
    /// How good the saturation is when it is stopped early.
    pub anytime: Vec<Anytime>,
    /// The machine, in words.
    pub machine: Vec<(String, String)>,
    /// The settings, in words.
    pub settings: Vec<(String, String)>,
    /// How long the exploration took.
    pub seconds: f64,
}

/// One way from the model to a program.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Its name; of orders, the passes.
    pub name: String,
    /// The passes' labels in order; none where it is no order.
    pub order: Vec<String>,
    /// The program, by the digest of its content: equal programs are measured once.
    pub program: Option<String>,
    /// Why there is no program, or none that runs.
    pub refused: Option<Refusal>,
    /// By the cost model.
    pub cost: Option<f64>,
    /// The median of warm runs, in seconds.
    pub median_s: Option<f64>,
    /// The fastest run.
    pub min_s: Option<f64>,
    /// The run that 90 % are faster than.
    pub p90_s: Option<f64>,
    /// How many runs were measured.
    pub runs: usize,
    /// Seconds that the passes took.
    pub passes_s: f64,
    /// Seconds that code generation took.
    pub code_s: Option<f64>,
    /// The largest difference from what the program computes as it was written, as a share of the largest value.
    pub difference: Option<f64>,
    /// Kernels of the program, each once.
    pub kernels: Option<usize>,
    /// Calls of kernels.
    pub calls: Option<usize>,
    /// How much slower than the fastest of all: 0.1 is a tenth.
    pub regret: Option<f64>,
    /// What its largest saturation did.
    pub saturated: Option<Saturated>,
}

/// Puts together what is known of a lane.
pub(super) fn describe(ran: &Ran, name: String, order: Vec<String>, state: &State) -> Run {
    let code = ran.program.and_then(|p| state.programs.get(&p));
    let measured = ran.program.and_then(|p| state.latencies.get(&p));
    let of_code = code.and_then(|c| c.refused.clone()).map(|reason| Refusal { at: "code".into(), reason });
    let spread = measured.map(|m| spread(&m.0));
    Run {
        name,
        order,
        program: ran.program.map(|p| p.to_string()),
        refused: ran.refused.clone().or(of_code),
        cost: code.and_then(|c| c.cost),
        median_s: spread.map(|s| s.0),
        min_s: spread.map(|s| s.1),
        p90_s: spread.map(|s| s.2),
        runs: measured.map_or(0, |m| m.0.len()),
        passes_s: ran.passes_s,
        code_s: code.map(|c| c.compile_s),
        difference: measured.and_then(|m| m.1),
        kernels: code.map(|c| c.kernels),
        calls: code.map(|c| c.calls),
        regret: None,
        saturated: ran.saturated.clone(),
    }
}

impl Exploration {
    /// Finds best, median and worst, and how much slower each is than the fastest of all.
    pub(super) fn rank(&mut self) {
        let ranked = self.ranked();
        self.best = ranked.first().copied();
        self.median = ranked.get(ranked.len() / 2).copied();
        self.worst = ranked.last().copied();
        let all = || self.orders.iter().chain([&self.saturation]).filter_map(|r| r.median_s);
        let least = all().fold(f64::INFINITY, f64::min);
        for run in self.orders.iter_mut().chain([&mut self.saturation, &mut self.default, &mut self.baseline]) {
            run.regret = run.median_s.map(|s| s / least - 1.0);
        }
    }

    /// What is fastest: an order, by its place, or the saturation (`Some(None)`); `None` where nothing was measured.
    pub fn fastest(&self) -> Option<Option<usize>> {
        let order = self.best.and_then(|i| Some((i, self.orders[i].median_s?)));
        match (order, self.saturation.median_s) {
            (Some((i, order)), Some(saturation)) => Some((order < saturation).then_some(i)),
            (Some((i, _)), None) => Some(Some(i)),
            (None, Some(_)) => Some(None),
            (None, None) => None,
        }
    }

    /// The places of the orders that were measured, from the fastest to the slowest; equally fast ones as they were tried.
    pub fn ranked(&self) -> Vec<usize> {
        let mut places: Vec<(usize, f64)> =
            self.orders.iter().enumerate().filter_map(|(i, r)| Some((i, r.median_s?))).collect();
        places.sort_by(|a, b| a.1.total_cmp(&b.1));
        places.into_iter().map(|p| p.0).collect()
    }

    /// The orders that gave no program.
    pub fn refused(&self) -> impl Iterator<Item = (&Run, &Refusal)> {
        self.orders.iter().filter_map(|r| Some((r, r.refused.as_ref()?)))
    }

    /// A few lines for a terminal.
    pub fn summary(&self) -> String {
        let ms = |r: &Run| r.median_s.map_or("no program".into(), |s| format!("{:.3} ms", 1e3 * s));
        let line = |what: &str, r: &Run| {
            let cost = r.cost.map_or(String::new(), |c| format!(", cost {c:.4e}"));
            let off = r.difference.map_or(String::new(), |d| format!(", off by {d:.1e}"));
            let name = if r.order.is_empty() { String::new() } else { format!("  {}", r.name) };
            let why = r.refused.as_ref().map_or(String::new(), |f| format!(" ({}: {})", f.at, f.reason));
            let compiled = r.passes_s + r.code_s.unwrap_or(0.0);
            format!("{what:13} {:>12}{cost}{off}, compiled in {compiled:.2} s{why}{name}\n", ms(r))
        };
        let refused = self.refused().count();
        let drawn = match self.orders_possible > self.orders.len() as u64 {
            true => format!(" of {}, drawn with seed {}", self.orders_possible, self.seed),
            false => String::new(),
        };
        let mut text = format!(
            "{} orders{drawn}: {} different programs, {refused} refused; {} passes run instead of {}; {:.0} s\n",
            self.orders.len(),
            self.programs,
            self.passes_run,
            self.passes_written,
            self.seconds
        );
        text += &line("saturation", &self.saturation);
        for (what, place) in [("best order", self.best), ("median order", self.median), ("worst order", self.worst)] {
            text += &place.map_or(String::new(), |i| line(what, &self.orders[i]));
        }
        if self.default.program != self.saturation.program {
            text += &line("default", &self.default);
        }
        text += &line("as written", &self.baseline);
        text
    }
}

/// The machine, in words.
pub(super) fn machine(options: &Options) -> Vec<(String, String)> {
    let t = &options.settings.target;
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split_once(": "));
    let cores = std::thread::available_parallelism().map_or("unknown".into(), |n| n.to_string());
    [
        ("processor", model.map_or("unnamed".to_owned(), |m| m.1.to_owned())),
        ("compiled for", t.to_string()),
        ("cores", cores),
        ("threads", options.threads.to_string()),
        ("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}
