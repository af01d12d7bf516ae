//! `resat explain`.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    Failure,
    args::{ModelArgs, PassArgs},
    progress::Progress,
};
use crate::{
    frontend::Model,
    infer::infer_types,
    ir::{Module, Span},
    pass::{Pass, PassContext, Settings, bind_params},
    saturate::{Became, Counterfactual, Extracted, Piece, PlacedReport, Report, counterfactuals, explain},
};

/// Arguments of `resat explain`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  resat explain model.relay --params model.params --at 12\n  resat explain model.relay --passes \"Saturate(all,fusion)\" --alternatives 5\n\nSaturation keeps proofs for this, which makes it several times slower."
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    passes: PassArgs,
    /// Only the operators' calls on this line of the program
    #[arg(long, value_name = "LINE")]
    at: Option<usize>,
    /// Also the calls that stayed as they were
    #[arg(long)]
    all: bool,
    /// Instead: for so many of the program's dearest parts, what the next best program without each would cost
    #[arg(long, value_name = "N", conflicts_with_all = ["at", "all"])]
    alternatives: Option<usize>,
    /// Instead: which compiler makes which part of the program, and what the next best would take for it
    #[arg(long, conflicts_with_all = ["at", "all", "alternatives"])]
    placed: bool,
    /// With --placed: as JSON, a list of parts with compiler (null for resat), name, calls, cost, next (compiler and cost)
    #[arg(long, requires = "placed")]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    if let Some(most) = args.alternatives {
        return next_best(&args, most);
    }
    if args.placed {
        return placement(&args);
    }
    let mut settings = args.passes.settings()?;
    settings.limits.explanations = true;
    let pieces: Arc<Mutex<Vec<Piece>>> = Arc::default();
    let (found, at) = (pieces.clone(), args.at);
    let wanted = move |span: Option<&Span>| at.is_none_or(|line| span.is_some_and(|s| s.line_col().0 == line));
    let Model { module, params } = args.model.read()?;
    let module = bind_params(&module, &params)?;
    let on_region = move |mut x: Extracted| {
        x.region.graph.analysis.tables.name_constants(params.iter().map(|(name, t)| (name, t)));
        found.lock().unwrap_or_else(PoisonError::into_inner).extend(explain(&mut x, &wanted));
    };
    watched(&args, module, &settings, Some(Box::new(on_region)))?;
    let pieces = std::mem::take(&mut *pieces.lock().unwrap_or_else(PoisonError::into_inner));
    let (mut text, mut stayed, mut unneeded, mut inside) = (String::new(), 0, 0, 0);
    let (mut moved, mut absorbed) = (0, 0);
    for piece in &pieces {
        let place = piece.span.as_ref().map_or("computed by a pass".to_owned(), Span::to_string);
        let shown = args.all || args.at.is_some();
        match &piece.became {
            Became::Itself => {
                stayed += 1;
                if shown {
                    text += &format!("{place}: {}\n  stayed\n", piece.was);
                }
            }
            Became::Inside { kernel } => {
                inside += 1;
                text += &format!("{place}: {}\n  is computed inside of {kernel}\n", piece.was);
            }
            Became::Moved { way, now, steps } => {
                moved += 1;
                text += &format!("{place}: {}\n  is computed in another layout (beside it stands {way}): {now}\n", piece.was);
                for (i, step) in steps.iter().enumerate() {
                    text += &format!("  {:3}. {step}\n", i + 1);
                }
            }
            Became::Absorbed { by, was } => {
                absorbed += 1;
                let by = by.as_ref().map_or(was.clone(), |span| format!("{span}: {was}"));
                text += &format!("{place}: {}\n  is part of what became of {by}\n", piece.was);
            }
            Became::Unneeded => {
                unneeded += 1;
                if shown {
                    text += &format!("{place}: {}\n  is not needed any more\n", piece.was);
                }
            }
            Became::Other { now, steps } => {
                text += &format!("{place}: {}\n  became {now}\n", piece.was);
                for (i, step) in steps.iter().enumerate() {
                    text += &format!("  {:3}. {step}\n", i + 1);
                }
            }
        }
    }
    let changed = pieces.len() - stayed - unneeded - inside - moved - absorbed;
    let inside = if inside > 0 { format!("{inside} run inside of kernels, ") } else { String::new() };
    let moved = if moved > 0 { format!("{moved} are computed in another layout, ") } else { String::new() };
    let absorbed = if absorbed > 0 { format!("{absorbed} are part of what others became, ") } else { String::new() };
    let summary = format!("{moved}{absorbed}{inside}{unneeded} are not needed any more, {stayed} stayed");
    text += &format!("{} calls: {changed} changed, {summary}\n", pieces.len());
    super::print(&text)
}

/// Runs the passes over the module while somebody looks at what saturations extract; gives their reports.
fn watched(
    args: &Args,
    module: Module,
    settings: &Settings,
    on_region: Option<Box<dyn FnMut(Extracted) + Send>>,
) -> Result<Vec<Report>, Failure> {
    let passes = args.passes.sequence(settings)?;
    let progress = Progress::new();
    let mut cx =
        PassContext { on_start: Some(Box::new(progress.teller())), on_region, ..PassContext::default() };
    passes.run(infer_types(module)?.into_module(), &mut cx)?;
    Ok(cx.reports)
}

/// Who makes what.
fn placement(args: &Args) -> Result<(), Failure> {
    let reports = watched(args, args.model.bound()?, &args.passes.settings()?, None)?;
    let placed: Vec<&Report> = reports.iter().filter(|r| !r.placed.is_empty()).collect();
    if args.json {
        let part = |p: &PlacedReport| {
            let next = p.next.as_ref().map(|(by, cost)| serde_json::json!({ "compiler": by, "cost": cost }));
            serde_json::json!({
                "compiler": p.compiler, "name": p.name, "calls": p.calls, "cost": p.cost, "next": next,
            })
        };
        let parts: Vec<_> = placed.iter().flat_map(|r| &r.placed).map(part).collect();
        return super::print(&format!("{}\n", serde_json::Value::from(parts)));
    }
    if placed.is_empty() {
        return super::print("resat makes all of it: external compilers are named by --compiler\n");
    }
    super::print(&placed.iter().map(|r| r.to_string()).collect::<String>())
}

/// What the program would cost without its dearest parts.
fn next_best(args: &Args, most: usize) -> Result<(), Failure> {
    let settings = args.passes.settings()?;
    let found: Arc<Mutex<Vec<Counterfactual>>> = Arc::default();
    let (to, extractor) = (found.clone(), settings.extractor.clone());
    let on_region = move |x: Extracted| {
        to.lock().unwrap_or_else(PoisonError::into_inner).extend(counterfactuals(&x, extractor.as_ref(), most));
    };
    watched(args, args.model.bound()?, &settings, Some(Box::new(on_region)))?;
    let mut text = String::new();
    for c in found.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let place = c.span.as_ref().map_or("computed by a rule".to_owned(), Span::to_string);
        text += &format!("{place}: {} costs {:.3e}\n", c.chosen, c.cost);
        text += &match &c.next {
            None => "  nothing else computes it\n".to_owned(),
            Some((instead, extra)) => {
                let instead = instead.as_ref().map_or("without its value".to_owned(), |i| format!("with {i}"));
                let share = if c.total > 0.0 { 100.0 * extra / c.total } else { 0.0 };
                format!("  {instead} the program costs {extra:+.3e} ({share:+.2} %)\n")
            }
        };
    }
    super::print(&text)
}
