//! Whole programs, one placement against another.

use std::sync::Arc;

use super::{Placement, Strategy};
use crate::{
    cost::Machine,
    diag::Refused,
    ir::Module,
    pass::{BuildConfig, Pass, PassContext, Pipeline, Settings},
    saturate::Report,
};

/// The default pipeline with placement by measured costs, and a last look: parts were timed alone, which says little of caches
/// between them, so the whole program is timed as well, as placement by cost has it, and as it is without external compilers, with all
/// that it can give to each, and with all given to the first that takes it. The fastest is the result.
pub struct Fastest {
    candidates: Vec<(String, Pipeline)>,
    machine: Arc<dyn Machine>,
}

/// Another program must be faster than the one by cost by this share: less is noise.
const NOISE: f64 = 0.02;

impl Fastest {
    /// The candidates among a placement's compilers, each by the default pipeline as a configuration makes it.
    pub fn new(settings: &Settings, config: &BuildConfig, machine: Arc<dyn Machine>) -> Result<Fastest, Refused> {
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
        Ok(Fastest { candidates: made.collect::<Result<_, Refused>>()?, machine })
    }
}

impl Pass for Fastest {
    fn name(&self) -> String {
        "Fastest".into()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let mut best: Option<(f64, Module, PassContext)> = None;
        let mut taken = "";
        let (mut notes, mut failed) = (Vec::new(), None);
        for (name, pipeline) in &self.candidates {
            if let Some(f) = &mut cx.on_start {
                f(name);
            }
            let mut own = PassContext::default();
            let by_cost = best.is_none();
            let made = match pipeline.run(module.clone(), &mut own) {
                Ok(made) => made,
                // A compiler that can't have all can still have a part.
                Err(refused) if by_cost => {
                    failed = Some(refused);
                    continue;
                }
                Err(refused) => {
                    notes.push(format!("{name}: {refused}"));
                    continue;
                }
            };
            match (self.machine.seconds(&made), &best) {
                (Ok(seconds), known) => {
                    notes.push(format!("{name}: {:.3} ms for the whole program", 1e3 * seconds));
                    let margin = known.as_ref().map_or(f64::INFINITY, |b| b.0) * (1.0 - NOISE);
                    if known.is_none() || seconds < margin {
                        best = Some((seconds, made, own));
                        taken = name;
                    }
                }
                (Err(why), None) => {
                    notes.push(format!("{name}: the whole program can't be timed: {why}"));
                    best = Some((f64::INFINITY, made, own));
                    taken = name;
                }
                (Err(why), Some(_)) => notes.push(format!("{name}: the whole program can't be timed: {why}")),
            }
        }
        let Some((_, made, own)) = best else { return Err(failed.expect("there is a candidate, and it was refused")) };
        notes.push(format!("placement: {taken}"));
        cx.log.extend(own.log);
        cx.reports.extend(own.reports);
        match cx.reports.last_mut() {
            Some(report) => report.notes.extend(notes),
            None => cx.reports.push(Report { notes, ..Report::default() }),
        }
        Ok(made)
    }
}
