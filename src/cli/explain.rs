//! `resat explain`.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    Failure,
    args::{ModelArgs, PassArgs},
    progress::Progress,
};
use crate::{
    infer::infer_types,
    ir::Span,
    pass::{Pass, PassContext, bind_params},
    saturate::{Became, Extracted, Piece, explain},
};

/// Arguments of `resat explain`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  resat explain model.relay --params model.params --at 12\n\nSaturation keeps proofs for this, which makes it several times slower."
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
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let mut settings = args.passes.settings()?;
    settings.limits.explanations = true;
    let passes = args.passes.sequence(&settings)?;
    let progress = Progress::new();
    let pieces: Arc<Mutex<Vec<Piece>>> = Arc::default();
    let (found, at) = (pieces.clone(), args.at);
    let wanted = move |span: Option<&Span>| at.is_none_or(|line| span.is_some_and(|s| s.line_col().0 == line));
    let on_region = move |mut x: Extracted| {
        found.lock().unwrap_or_else(PoisonError::into_inner).extend(explain(&mut x, &wanted));
    };
    let mut cx = PassContext {
        on_start: Some(Box::new(progress.teller())),
        on_region: Some(Box::new(on_region)),
        ..PassContext::default()
    };
    let module = bind_params(&args.model.module()?, &args.model.params()?)?;
    passes.run(infer_types(module)?.into_module(), &mut cx)?;
    drop(progress);
    let pieces = std::mem::take(&mut *pieces.lock().unwrap_or_else(PoisonError::into_inner));
    let (mut text, mut stayed, mut unneeded, mut inside) = (String::new(), 0, 0, 0);
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
    let changed = pieces.len() - stayed - unneeded - inside;
    let inside = if inside > 0 { format!("{inside} run inside of kernels, ") } else { String::new() };
    let summary = format!("{inside}{unneeded} are not needed any more, {stayed} stayed");
    text += &format!("{} calls: {changed} changed, {summary}\n", pieces.len());
    super::print(&text)
}
