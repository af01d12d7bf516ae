//! `resat passes`.

use super::{Failure, config::ConfigArgs};
use crate::{
    pass::{self, BuildConfig, Settings},
    rules,
    target::Target,
};

/// Arguments of `resat passes`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  resat passes\n  resat passes -O1 --run-before fuse=FoldConstant    # the stages as these switches make them"
)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

/// The first sentence of a ruleset's comment, without what only its file needs.
fn first_sentence(doc: &str) -> String {
    let text = doc.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.find(". ") {
        Some(end) => text[..=end].to_owned(),
        None => text,
    }
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let settings = Settings::new(Target::host());
    let config = args.config.config();
    let adjusted = config.settings(&settings)?;
    let pipeline = config.pipeline(&settings)?;
    let mut text = String::from("Passes, for --passes and the edits of the default pipeline:\n");
    for (name, doc) in pass::passes() {
        text += &format!("  {name:24} {doc}\n");
    }
    text += "\nStages of the default pipeline, for --run-before, --run-after, --replace and --remove:\n";
    for (stage, pass) in pipeline.stages() {
        text += &format!("  {stage:24} {}\n", pass.name());
    }
    text += "\nLevels, for -O:\n";
    for (level, doc) in BuildConfig::LEVELS.iter().enumerate() {
        text += &format!("  {level:<24} {doc}\n");
    }
    text += "\nRulesets, for Saturate(…), --required-pass and --disabled-pass; `resat rules show NAME` shows their rules:\n";
    for set in rules::shipped_definitions() {
        let off = if adjusted.rulesets_off.contains(&set.name) { ", off" } else { "" };
        let off = if set.by_request { ", by request" } else { off };
        text += &format!("  {:24} {} ({} rules{off})\n", set.name.as_str(), first_sentence(&set.doc), set.rules.len());
    }
    for set in rules::in_code() {
        text += &format!("  {:24} {} ({} rules, by request)\n", set.name, first_sentence(set.doc), set.rules.len());
    }
    super::print(&text)
}
