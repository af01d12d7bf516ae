//! Whole programs, one placement against another.

use std::sync::Arc;

use super::{Placement, Strategy, modelled::Modelled};
use crate::{
    cost::{Timer, TimerError},
    diag::Refused,
    ir::{Expr, Module, reachable},
    pass::{BuildConfig, Pass, PassContext, Pipeline, Settings, partition_annotated},
    saturate::{PlacedReport, Report},
};

/// The default pipeline with placement by cost, and a last look at whole programs: as placement by cost has it, as it is without external
/// compilers, with all that it can give to each, and with all given to the first that takes it. The fastest is the result.
///
/// Where costs are measured, parts were timed alone, which says little of caches between them; here programs run in turns
/// ([`Timer::race`]). Where they are modelled, a region is priced whole, with all that its compiler makes one of; and since models of
/// other compilers are further off than that of resat's own kernels, only clear gains count.
pub struct Fastest {
    candidates: Vec<(String, Pipeline)>,
    judge: Judge,
}

enum Judge {
    Timer(Arc<dyn Timer>),
    Model(Box<Modelled>),
}

/// Another program must be faster than the one by cost by this share: less is noise.
const NOISE: f64 = 0.01;

/// By models, a program with regions of external compilers counts as slower than it seems by this share.
const DOUBT: f64 = 0.1;

impl Fastest {
    /// The candidates among a placement's compilers, each by the default pipeline as a configuration makes it.
    pub fn new(settings: &Settings, config: &BuildConfig) -> Result<Fastest, Refused> {
        let placement = &settings.placement;
        let mut ways: Vec<(String, Placement)> =
            vec![("by cost".into(), placement.clone()), ("resat alone".into(), Placement::default())];
        for compiler in &placement.compilers {
            let strategy = Strategy::All(compiler.name().into());
            ways.push((format!("all:{}", compiler.name()), Placement { strategy, machine: None, ..placement.clone() }));
        }
        if placement.compilers.len() > 1 {
            let strategy = Strategy::Greedy;
            ways.push(("greedy".into(), Placement { strategy, machine: None, ..placement.clone() }));
        }
        let made = ways
            .into_iter()
            .map(|(name, placement)| Ok((name, config.pipeline(&Settings { placement, ..settings.clone() })?)));
        let judge = match &placement.machine {
            Some(timer) => Judge::Timer(timer.clone()),
            None => Judge::Model(Box::new(Modelled {
                model: settings.cost.clone(),
                compilers: placement.compilers.clone(),
                target: settings.target.clone(),
            })),
        };
        Ok(Fastest { candidates: made.collect::<Result<_, Refused>>()?, judge })
    }
}

impl Judge {
    /// The seconds of each program, to be compared.
    fn seconds(&self, programs: &[&Module]) -> Vec<Result<f64, TimerError>> {
        match self {
            Judge::Timer(timer) => timer.race(programs),
            Judge::Model(model) => programs.iter().map(|p| Ok(model.seconds(p)?)).collect(),
        }
    }

    /// Which is the fastest, the first where they are alike.
    fn best(&self, programs: &[&Module], seconds: &[Result<f64, TimerError>]) -> usize {
        let score = |i: usize| {
            let seconds = seconds[i].as_ref().copied().unwrap_or(f64::INFINITY);
            match self {
                Judge::Timer(_) if i > 0 => seconds * (1.0 + NOISE),
                Judge::Model(_) if has_regions(programs[i]) => seconds * (1.0 + DOUBT),
                _ => seconds,
            }
        };
        (1..programs.len()).fold(0, |best, i| if score(i) < score(best) { i } else { best })
    }
}

fn has_regions(m: &Module) -> bool {
    let all = reachable(m, m.functions().map(|(_, f)| f));
    all.into_iter().any(|e| matches!(&m[e], Expr::Func(f) if f.compiler().is_some()))
}

impl Pass for Fastest {
    fn name(&self) -> String {
        "Fastest".into()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let module = partition_annotated(module, cx)?;
        let mut made: Vec<(&(String, Pipeline), Module, PassContext)> = Vec::new();
        let mut notes = Vec::new();
        for candidate in &self.candidates {
            let (name, pipeline) = candidate;
            if let Some(f) = &mut cx.on_start {
                f(name);
            }
            let mut own = PassContext::default();
            match pipeline.run(module.clone(), &mut own) {
                Ok(program) => made.push((candidate, program, own)),
                // What fails while it is asked is not passed over.
                Err(refused) if made.is_empty() => return Err(refused),
                // A compiler that can't have all can still have a part.
                Err(refused) => notes.push(format!("{name}: {refused}")),
            }
        }
        // How extraction weighed the parts, whatever is taken in the end.
        let weighed: Vec<PlacedReport> =
            made.iter().flat_map(|m| &m.2.reports).flat_map(|r| r.placed.clone()).collect();
        // Where nothing is given to anybody, the program is the one that there is without compilers: models of whole kernels have
        // settled who makes what, and what is left is for the pipeline that is tuned for it.
        if matches!(self.judge, Judge::Model(_)) && made.len() > 1 && !has_regions(&made[0].1) {
            made.truncate(2);
            made.remove(0);
        }
        let programs: Vec<&Module> = made.iter().map(|(_, program, _)| program).collect();
        if let (Some(f), Judge::Timer(_)) = (&mut cx.on_start, &self.judge) {
            f("whole programs in turns");
        }
        let seconds = self.judge.seconds(&programs);
        let best = self.judge.best(&programs, &seconds);
        let how = if matches!(self.judge, Judge::Timer(_)) { "" } else { ", by the models" };
        notes.extend(made.iter().zip(&seconds).map(|(((name, _), ..), seconds)| match seconds {
            Ok(seconds) => format!("{name}: {:.3} ms for the whole program{how}", 1e3 * seconds),
            Err(why) => format!("{name}: the whole program has no time: {why}"),
        }));
        let ((taken, pipeline), mut program, own) = made.swap_remove(best);
        notes.push(format!("placement: {taken}"));
        match cx.on_region.is_some() || cx.before_pass.is_some() || cx.after_pass.is_some() {
            // Whoever looks at how programs come about looks at this one.
            true => program = pipeline.run(module, cx)?,
            false => {
                cx.log.extend(own.log);
                cx.reports.extend(own.reports);
                cx.warnings.extend(own.warnings);
            }
        }
        if cx.reports.is_empty() {
            cx.reports.push(Report::default());
        }
        if !weighed.is_empty() && cx.reports.iter().all(|r| r.placed.is_empty()) {
            notes.push("the parts are reported as extraction priced them, whose program this one replaced".into());
            cx.reports.last_mut().expect("there is one").placed = weighed;
        }
        cx.reports.last_mut().expect("there is one").notes.extend(notes);
        Ok(program)
    }
}
