//! Levels, switches and edits of the default pipeline, as arguments.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};

use crate::pass::{BuildConfig, Edit, NewStage};

/// Arguments that shape the default pipeline. The order among edits counts, which is why clap does not derive them.
#[derive(Debug, Default)]
pub(super) struct ConfigArgs(Option<BuildConfig>);

impl ConfigArgs {
    /// What was asked for.
    pub(super) fn config(&self) -> BuildConfig {
        self.0.clone().unwrap_or_default()
    }
}

/// Flags that take `STAGE=PASS`, with their help and the edit that they are.
const EDITS: [(&str, &str, fn(String, NewStage) -> Edit); 3] = [
    (
        "run-before",
        "Add a pass to the default pipeline right before a stage; PASS may be NAME:PASS. Edits apply in the order given",
        Edit::RunBefore,
    ),
    ("run-after", "Add a pass right after a stage", Edit::RunAfter),
    ("replace", "Put another pass under a stage's name", Edit::Replace),
];

fn stage_and_pass(text: &str) -> Result<(String, NewStage), String> {
    match text.split_once('=') {
        Some((stage, pass)) if !stage.trim().is_empty() && !pass.trim().is_empty() => {
            Ok((stage.trim().to_owned(), NewStage::parse(pass)))
        }
        _ => Err("should be STAGE=PASS or STAGE=NAME:PASS".into()),
    }
}

fn option_and_value(text: &str) -> Result<(String, String), String> {
    let (option, value) = text.split_once('=').ok_or("should be OPTION=VALUE")?;
    Ok((option.trim().to_owned(), value.trim().to_owned()))
}

/// Several names with commas, as TVM's command line takes them. Commas inside of parentheses do not count.
fn names(found: &mut ArgMatches, id: &str) -> Vec<String> {
    let given = found.remove_many::<String>(id).into_iter().flatten().collect::<Vec<_>>();
    given.iter().flat_map(|g| g.split(',')).map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect()
}

impl FromArgMatches for ConfigArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ConfigArgs, clap::Error> {
        ConfigArgs::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(found: &mut ArgMatches) -> Result<ConfigArgs, clap::Error> {
        let mut edits: Vec<(usize, Edit)> = Vec::new();
        for (id, _, edit) in EDITS {
            let at: Vec<usize> = found.indices_of(id).into_iter().flatten().collect();
            let given = found.remove_many::<(String, NewStage)>(id).into_iter().flatten();
            edits.extend(at.into_iter().zip(given).map(|(at, (stage, new))| (at, edit(stage, new))));
        }
        let at: Vec<usize> = found.indices_of("remove").into_iter().flatten().collect();
        let removed = found.remove_many::<String>("remove").into_iter().flatten();
        edits.extend(at.into_iter().zip(removed).map(|(at, stage)| (at, Edit::Remove(stage))));
        edits.sort_by_key(|e| e.0);
        Ok(ConfigArgs(Some(BuildConfig {
            opt_level: found.remove_one::<u8>("opt-level").unwrap_or(BuildConfig::DEFAULT_LEVEL),
            required_pass: names(found, "required-pass"),
            disabled_pass: names(found, "disabled-pass"),
            pass_config: found.remove_many("pass-config").into_iter().flatten().collect(),
            edits: edits.into_iter().map(|e| e.1).collect(),
        })))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ConfigArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ConfigArgs {
    fn augment_args(command: Command) -> Command {
        let many = |id: &'static str, value: &'static str, help: &'static str| {
            Arg::new(id).long(id).value_name(value).help(help).action(ArgAction::Append)
        };
        let last = BuildConfig::LEVELS.len() as i64 - 1;
        let level = Arg::new("opt-level")
            .short('O')
            .long("opt-level")
            .value_name("LEVEL")
            .value_parser(value_parser!(u8).range(0..=last))
            .help("How much the default pipeline does, from 0 to 4; 3 where not given. `resat passes` says what");
        let required = many(
            "required-pass",
            "NAMES",
            "Passes, stages or rulesets that run whatever the level is; several with commas",
        );
        let disabled = many(
            "disabled-pass",
            "NAMES",
            "Passes, stages or rulesets of the default pipeline that do not run; several with commas",
        );
        let options = BuildConfig::OPTIONS.map(|o| o.0).join(", ");
        let options = format!("Options of passes by TVM's names: {options}");
        let options = many("pass-config", "OPTION=VALUE", "").help(options).value_parser(option_and_value);
        let edits = EDITS.map(|(id, help, _)| many(id, "STAGE=PASS", help).value_parser(stage_and_pass));
        command.arg(level).arg(required).arg(disabled).arg(options).args(edits).arg(many(
            "remove",
            "STAGE",
            "Take a stage out",
        ))
    }

    fn augment_args_for_update(command: Command) -> Command {
        ConfigArgs::augment_args(command)
    }
}
