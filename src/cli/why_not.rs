//! `resat why-not`.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Failure,
    args::{ModelArgs, PassArgs},
    progress::Progress,
};
use crate::{
    driver::load_module,
    frontend::Model,
    infer::infer_types,
    ir::Span,
    pass::{Pass, PassContext, bind_params, pair},
    saturate::{Extracted, WhyNot, why_not},
};

/// Arguments of `resat why-not`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  resat why-not model.relay wanted.relay --params model.params")]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The form that is wanted: a program of the same parameters
    wanted: PathBuf,
    #[command(flatten)]
    passes: PassArgs,
}

pub(super) fn run(mut args: Args) -> Result<(), Failure> {
    let settings = args.passes.settings()?;
    // What comes after the saturation, such as fusion, has nothing to do with the question.
    if !args.passes.asked() {
        args.passes.passes = Some("Inline,DynamicToStatic,Saturate".into());
    }
    let passes = args.passes.sequence(&settings)?;
    let Model { module, params } = args.model.read()?;
    let program = infer_types(bind_params(&module, &params)?)?.into_module();
    let wanted = infer_types(bind_params(&load_module(&args.wanted)?, &params)?)?.into_module();
    let progress = Progress::new();
    let answer: Arc<Mutex<Option<WhyNot>>> = Arc::default();
    let found = answer.clone();
    let on_region = move |mut x: Extracted| {
        let (model, extractor) = (settings.cost.as_ref(), settings.extractor.as_ref());
        let now = why_not(&mut x, model, extractor, &settings.target);
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        *found = found.take().or(now);
    };
    let mut cx = PassContext {
        on_start: Some(Box::new(progress.teller())),
        on_region: Some(Box::new(on_region)),
        ..PassContext::default()
    };
    let module = infer_types(pair(&program, &wanted)?)?.into_module();
    passes.run(module, &mut cx)?;
    drop(progress);
    let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut text = match answer {
        None => "the passes saturate nothing\n".to_owned(),
        Some(WhyNot::CostsMore { wanted, chosen }) if wanted <= chosen => {
            format!("the wanted form is found, and costs no more than what is chosen: {wanted:.6e} and {chosen:.6e}\n")
        }
        Some(WhyNot::CostsMore { wanted, chosen }) => {
            format!("the wanted form is found, but costs {wanted:.6e}, while what is chosen costs {chosen:.6e}\n")
        }
        Some(WhyNot::NotEqual) => {
            "all parts of the wanted form are found, but no rule says that it equals the program\n".to_owned()
        }
        Some(WhyNot::Missing(parts)) => {
            let mut text = "no chain of rules leads to the wanted form; its innermost parts that are not found:\n".to_owned();
            for (span, part) in parts {
                let place = span.as_ref().map_or(String::new(), |s: &Span| format!("{s}: "));
                text += &format!("  {place}{part}\n");
            }
            text
        }
    };
    for report in &cx.reports {
        text += &format!("({} after {} rounds)\n", report.stop, report.iterations);
        for refusal in &report.refusals {
            let rule = refusal.rule.as_ref().map_or("congruence", |n| n.as_str());
            text += &format!("  refused: {rule}: {}\n", refusal.reason);
        }
    }
    super::print(&text)
}
