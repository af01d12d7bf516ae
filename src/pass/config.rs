//! Switches over the default pipeline: how much to optimize, what must and must not run, and edits of its stages by name.
//!
//! They are a layer over [`Pipeline`], [`Settings`] and the passes' names, and know nothing that those do not: whoever wants something
//! else composes a pipeline.

use hashbrown::HashSet;

use super::{Pass, Pipeline, PipelineError, Settings, default_pipeline, make, parse_specs, passes, sequence};
use crate::{
    diag::{Diagnostic, Refused, nearest},
    dialect,
    ir::Name,
    ops::{self},
    rules,
    saturate::Grade,
    saturate::Limits,
};

/// What TVM calls the pass context: the level of optimization, passes that must or must not run, and edits of the pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildConfig {
    /// From 0, what it takes to run at all, to 4; see [`BuildConfig::LEVELS`].
    pub opt_level: u8,
    /// Passes, stages and rulesets that run whatever the level is.
    pub required_pass: Vec<String>,
    /// Passes, stages and rulesets that do not run.
    pub disabled_pass: Vec<String>,
    /// Options of passes by TVM's names, with their values; see [`BuildConfig::OPTIONS`].
    pub pass_config: Vec<(String, String)>,
    /// Applied to what levels and switches left, in this order.
    pub edits: Vec<Edit>,
}

/// One change of a pipeline by the names of its stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// A stage right before another.
    RunBefore(String, NewStage),
    /// A stage right after another.
    RunAfter(String, NewStage),
    /// Another pass under a stage's name.
    Replace(String, NewStage),
    /// A stage less.
    Remove(String),
}

/// A pass as text, and the name of the stage that it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewStage {
    /// The name; the pass' own where none is given.
    pub name: Option<String>,
    /// A pass with its arguments, or several with commas.
    pub pass: String,
}

impl NewStage {
    /// Reads `PASS` or `NAME:PASS`. A colon among a pass' arguments is theirs.
    pub fn parse(text: &str) -> NewStage {
        let head = &text[..text.find('(').unwrap_or(text.len())];
        match head.split_once(':') {
            Some((name, _)) => {
                NewStage { name: Some(name.trim().to_owned()), pass: text[name.len() + 1..].trim().to_owned() }
            }
            None => NewStage { name: None, pass: text.trim().to_owned() },
        }
    }

    fn name(&self) -> Result<String, Refused> {
        match (&self.name, &parse_specs(&self.pass)?[..]) {
            (Some(name), _) if !name.is_empty() => Ok(name.clone()),
            (None, [spec]) => Ok(spec.name.clone()),
            _ => {
                let d = Diagnostic::new(format!("the stage of `{}` needs a name", self.pass));
                Err(d.help(format!("write `NAME:{}`", self.pass)).into())
            }
        }
    }
}

/// From which level on passes and rulesets of the default pipeline run: TVM's levels where it has the same pass.
const FROM: &[(&str, u8)] = &[
    ("simplify-inference", 0),
    ("algebra", 1),
    ("shapes", 1),
    ("FuseOps", 1),
    ("DeadCodeElimination", 1),
    ("FoldConstant", 2),
];

/// The level of shipped rulesets that are not in [`FROM`]; other passes run at every level.
const RULESETS_FROM: u8 = 3;

/// The level of what rounds more coarsely than the default allows.
const APPROXIMATE_FROM: u8 = 4;

/// Passes that join the default pipeline at [`APPROXIMATE_FROM`].
const APPROXIMATE: [&str; 1] = ["FastMath"];

/// Passes whose rulesets are about what their arguments request: without those, and the prices that go with them, they are no part of a
/// saturation.
const WANT_LAYOUTS: [&str; 1] = ["ConvertLayout"];

impl Default for BuildConfig {
    fn default() -> BuildConfig {
        BuildConfig {
            opt_level: BuildConfig::DEFAULT_LEVEL,
            required_pass: Vec::new(),
            disabled_pass: Vec::new(),
            pass_config: Vec::new(),
            edits: Vec::new(),
        }
    }
}

/// What is known by a name that a switch gives.
struct Known {
    stage: bool,
    /// The rulesets of that name, or those that the pass of that name is made of.
    rulesets: Vec<Name>,
}

impl BuildConfig {
    /// The level where none is asked for: what `default` stands for.
    pub const DEFAULT_LEVEL: u8 = 3;

    /// What each level means, from 0 on.
    pub const LEVELS: [&str; 5] = [
        "what it takes to run: inference forms of operators, dialects legalized, a kernel an operator",
        "also algebra of elementwise operators and shapes, dead code, fusion",
        "also constants folded",
        "also scales and biases in weights, blocked layouts, merged layers and all other rules within rounding (the default)",
        "also rules that hold where all values are finite, fast approximations of functions, and more time: four times the e-nodes, extraction by search",
    ];

    /// Options that `pass_config` may set: the name that TVM gives them, the pass of the default pipeline that takes them, and what the
    /// pass calls them.
    pub const OPTIONS: [(&str, &str, &str); 1] = [("relay.FuseOps.max_depth", "FuseOps", "largest")];

    /// The settings that the level and the switches ask for: limits, extractor, and rulesets that are off and on.
    ///
    /// Refused are levels and names that there are not.
    pub fn settings(&self, settings: &Settings) -> Result<Settings, Refused> {
        let mut settings = settings.clone();
        if usize::from(self.opt_level) >= BuildConfig::LEVELS.len() {
            let last = BuildConfig::LEVELS.len() - 1;
            return Err(Diagnostic::new(format!("there is no level {}: levels are 0 to {last}", self.opt_level)).into());
        }
        let stages = default_pipeline(&settings)?;
        let stages = stages.names();
        let (required, disabled) = match (
            lookup_all(&self.required_pass, &stages, &settings),
            lookup_all(&self.disabled_pass, &stages, &settings),
        ) {
            (Ok(required), Ok(disabled)) => (required, disabled),
            (Err(Refused(mut a)), Err(Refused(b))) => {
                a.extend(b);
                return Err(Refused(a));
            }
            (Err(e), _) | (_, Err(e)) => return Err(e),
        };
        let mut on: Vec<Name> = Vec::new();
        for (name, known) in self.required_pass.iter().zip(required) {
            if !known.stage && known.rulesets.is_empty() && !self.stage_of(name, &settings)? {
                let d = Diagnostic::new(format!("pass `{name}` is no part of the default pipeline"));
                return Err(d
                    .help(format!("add it with `--run-before STAGE={name}` or `--run-after STAGE={name}`"))
                    .into());
            }
            on.extend(known.rulesets);
        }
        if self.opt_level >= APPROXIMATE_FROM {
            for name in APPROXIMATE {
                on.extend(lookup(name, &stages, &settings)?.rulesets);
            }
        }
        let mut off: Vec<Name> = disabled.into_iter().flat_map(|known| known.rulesets).collect();
        on.retain(|name| !off.contains(name));
        let late = |name: &str| FROM.iter().find(|f| f.0 == name).map_or(RULESETS_FROM, |f| f.1) > self.opt_level;
        off.extend(general_names().filter(|name| late(name.as_str()) && !on.contains(name)));
        settings.rulesets_off.extend(off);
        settings.rulesets_on.extend(on);
        if self.opt_level >= APPROXIMATE_FROM {
            settings.grade = settings.grade.max(Grade::Finite);
            let defaults = Limits::default();
            settings.limits.nodes = settings.limits.nodes.max(4 * defaults.nodes);
            settings.limits.iterations = settings.limits.iterations.max(2 * defaults.iterations);
            settings.limits.time = settings.limits.time.max(6 * defaults.time);
            settings.limits.bytes = settings.limits.bytes.max(2 * defaults.bytes);
        }
        Ok(settings)
    }

    /// What a user should know of switches that change nothing: passes that are switched off and no part of the default pipeline.
    ///
    /// # Errors
    /// Refused are the names that [`BuildConfig::settings`] refuses.
    pub fn without_effect(&self, settings: &Settings) -> Result<Vec<String>, Refused> {
        let stages = default_pipeline(settings)?;
        let known = lookup_all(&self.disabled_pass, &stages.names(), settings)?;
        let requested: Vec<Name> = rules::by_request().into_iter().map(|r| r.name).collect();
        let mut notes = Vec::new();
        for (name, known) in self.disabled_pass.iter().zip(known) {
            let runs =
                |set: &Name| !requested.contains(set) || settings.rulesets_on.contains(set) || self.requires(set);
            if !known.stage && !known.rulesets.iter().any(runs) && !self.stage_of(name, settings)? {
                notes.push(format!(
                    "`{name}` is switched off, but no part of the default pipeline: that changes nothing"
                ));
            }
        }
        Ok(notes)
    }

    /// Whether a ruleset that runs by request is asked for, by name or by the level.
    fn requires(&self, set: &Name) -> bool {
        let of_level = self.opt_level >= APPROXIMATE_FROM && set.as_str() == "fast-math";
        of_level || self.required_pass.iter().any(|n| n == set.as_str())
    }

    /// The name of the extractor that the level asks for where the user names none.
    pub fn extractor(&self) -> &'static str {
        if self.opt_level >= APPROXIMATE_FROM { "search" } else { "dag" }
    }

    /// Whether a stage of the default pipeline runs this pass.
    fn stage_of(&self, pass: &str, settings: &Settings) -> Result<bool, Refused> {
        Ok(default_pipeline(settings)?.stages().any(|(_, p)| base(&p.name()) == pass))
    }

    /// The default pipeline as the level, the switches and the edits make it.
    ///
    /// Refused are levels, passes, stages and rulesets that there are not, and a second stage of a name.
    pub fn pipeline(&self, settings: &Settings) -> Result<Pipeline, Refused> {
        let settings = self.settings(settings)?;
        let mut pipeline = default_pipeline(&settings)?;
        let mut gone: Vec<String> = Vec::new();
        for (stage, pass) in pipeline.stages() {
            let pass = pass.name();
            let named = |names: &[String]| names.iter().any(|n| *n == stage || *n == base(&pass));
            let level = FROM.iter().find(|f| f.0 == base(&pass)).map_or(0, |f| f.1);
            if named(&self.disabled_pass) || level > self.opt_level && !named(&self.required_pass) {
                gone.push(stage.to_owned());
            }
        }
        for stage in gone {
            pipeline.remove(&stage).expect("the name was the pipeline's own");
        }
        for (option, value) in &self.pass_config {
            let Some((_, pass, argument)) = BuildConfig::OPTIONS.iter().find(|o| o.0 == option) else {
                let known = BuildConfig::OPTIONS.map(|o| o.0);
                let d = Diagnostic::new(format!("no pass has an option `{option}`; options are {}", known.join(", ")));
                return Err(match nearest(option, known) {
                    Some(near) => d.help(format!("did you mean `{near}`?")).into(),
                    None => d.into(),
                });
            };
            let stages: Vec<String> = pipeline
                .stages()
                .filter(|(_, p)| base(&p.name()) == *pass)
                .map(|(stage, _)| stage.to_owned())
                .collect();
            for stage in stages {
                let text = format!("{pass}({argument}=\"{}\")", value.replace('"', ""));
                pipeline.replace(&stage, Box::new(sequence(&text, &settings)?))?;
            }
        }
        let made = |new: &NewStage| -> Result<Box<dyn Pass>, Refused> {
            let mut passes = sequence(&new.pass, &settings)?;
            // A pass alone is logged once, not as a sequence as well.
            Ok(match passes.0.len() {
                1 => passes.0.remove(0),
                _ => Box::new(passes),
            })
        };
        for edit in &self.edits {
            match edit {
                Edit::RunBefore(stage, new) => pipeline.run_before(stage, &new.name()?, made(new)?)?,
                Edit::RunAfter(stage, new) => pipeline.run_after(stage, &new.name()?, made(new)?)?,
                Edit::Replace(stage, new) => {
                    pipeline.replace(stage, made(new)?)?;
                    if let Some(name) = &new.name {
                        pipeline.rename(stage, name)?;
                    }
                }
                Edit::Remove(stage) => pipeline.remove(stage)?,
            }
        }
        Ok(pipeline)
    }
}

impl From<PipelineError> for Refused {
    fn from(e: PipelineError) -> Refused {
        let d = Diagnostic::new(e.to_string());
        match e {
            PipelineError::Unknown { .. } | PipelineError::Several { .. } => d.into(),
            PipelineError::Duplicate(_) => {
                d.help("write `NAME:PASS` to give a stage another name than its pass").into()
            }
        }
    }
}

/// The names of the shipped rulesets that are of no dialect.
fn general_names() -> impl Iterator<Item = Name> {
    rules::general_definitions().iter().map(|d| d.name.clone())
}

/// A pass' name without its arguments.
fn base(name: &str) -> &str {
    name.split('(').next().unwrap_or(name)
}

/// What is known by each name; all that are not known are refused together.
fn lookup_all(names: &[String], stages: &[&str], settings: &Settings) -> Result<Vec<Known>, Refused> {
    let (mut found, mut complaints) = (Vec::new(), Vec::new());
    for name in names {
        match lookup(name, stages, settings) {
            Ok(known) => found.push(known),
            Err(Refused(d)) => complaints.extend(d),
        }
    }
    if complaints.is_empty() { Ok(found) } else { Err(Refused(complaints)) }
}

fn lookup(name: &str, stages: &[&str], settings: &Settings) -> Result<Known, Refused> {
    let mut rulesets: Vec<Name> = general_names().collect();
    rulesets.extend(rules::by_request().into_iter().map(|r| r.name));
    rulesets.extend(settings.rulesets.iter().map(|r| r.name.clone()));
    rulesets.extend(ops::dialects().iter().flat_map(|d| dialect::legalization(d.name())).map(|r| r.name));
    let stage = stages.contains(&name);
    let pass = passes().any(|(p, _)| p == name);
    if let Some(found) = rulesets.iter().find(|r| r.as_str() == name) {
        return Ok(Known { stage, rulesets: vec![found.clone()] });
    }
    if !stage && !pass {
        let all: HashSet<&str> =
            stages.iter().copied().chain(passes().map(|p| p.0)).chain(rulesets.iter().map(Name::as_str)).collect();
        let mut all: Vec<&str> = all.into_iter().collect();
        all.sort_unstable();
        let d = Diagnostic::new(format!("there is no pass, stage or ruleset `{name}`"));
        let list = format!("there are {}; `resat passes` says what they do", all.join(", "));
        return Err(d
            .help(match nearest(name, all) {
                Some(near) => format!("did you mean `{near}`? {list}"),
                None => list,
            })
            .into());
    }
    // Passes that are made of rulesets say so. Those that need arguments are not.
    let made = if pass && !WANT_LAYOUTS.contains(&name) {
        parse_specs(name)?.first().and_then(|spec| make(spec, settings).ok())
    } else {
        None
    };
    let rulesets = match made {
        Some(made) if !stages_run(made.as_ref(), settings)? => made.rulesets(),
        _ => Vec::new(),
    };
    Ok(Known { stage, rulesets })
}

/// Whether a stage of the default pipeline is this very pass, so that it is the stage that is meant and not its rules.
fn stages_run(pass: &dyn Pass, settings: &Settings) -> Result<bool, Refused> {
    let name = pass.name();
    Ok(default_pipeline(settings)?.stages().any(|(_, p)| p.name() == name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    fn settings() -> Settings {
        Settings::new(Target::host())
    }

    fn names(config: &BuildConfig) -> Vec<String> {
        config.pipeline(&settings()).unwrap().names().iter().map(|n| n.to_string()).collect()
    }

    #[test]
    fn levels_leave_stages_and_rulesets_out() {
        let all: Vec<String> = default_pipeline(&settings()).unwrap().names().iter().map(|n| n.to_string()).collect();
        assert_eq!(names(&BuildConfig::default()), all);
        let at = |opt_level| BuildConfig { opt_level, ..BuildConfig::default() };
        assert!(!names(&at(1)).contains(&"fold-constant".to_owned()) && names(&at(1)).contains(&"fuse".to_owned()));
        assert!(!names(&at(0)).contains(&"fuse".to_owned()));
        let off = at(2).settings(&settings()).unwrap().rulesets_off;
        assert!(off.iter().any(|n| n.as_str() == "layout") && !off.iter().any(|n| n.as_str() == "algebra"));
        assert!(at(3).settings(&settings()).unwrap().rulesets_off.is_empty());
        assert_eq!(at(5).settings(&settings()).err().unwrap().to_string(), "there is no level 5: levels are 0 to 4");
    }

    #[test]
    fn the_table_names_what_there_is() {
        for (name, _) in FROM {
            let known = passes().any(|p| p.0 == *name) || general_names().any(|r| r.as_str() == *name);
            assert!(known, "{name}");
        }
    }

    #[test]
    fn switches_name_passes_stages_and_rulesets() {
        let config = BuildConfig {
            opt_level: 0,
            required_pass: vec!["FuseOps".into(), "FoldScaleAxis".into(), "layout".into()],
            disabled_pass: vec!["SimplifyInference".into(), "dynamic-to-static".into(), "EtaExpand".into()],
            ..BuildConfig::default()
        };
        assert_eq!(names(&config), ["inline", "optimize", "fuse"]);
        let made = config.settings(&settings()).unwrap();
        let has = |list: &[Name], name: &str| list.iter().any(|n| n.as_str() == name);
        assert!(has(&made.rulesets_off, "simplify-inference") && has(&made.rulesets_on, "fold-scale-bias"));
        assert!(!has(&made.rulesets_off, "layout") && has(&made.rulesets_off, "algebra"));
        let wrong = BuildConfig { disabled_pass: vec!["FuseOp".into()], ..BuildConfig::default() };
        let e = wrong.settings(&settings()).err().unwrap().to_string();
        assert!(
            e.contains("there is no pass, stage or ruleset `FuseOp`") && e.contains("did you mean `FuseOps`?"),
            "{e}"
        );
        for name in ["Partition", "ConvertLayout"] {
            let elsewhere = BuildConfig { required_pass: vec![name.into()], ..BuildConfig::default() };
            let e = elsewhere.settings(&settings()).err().unwrap().to_string();
            assert!(e.contains("no part of the default pipeline"), "{e}");
        }
    }

    #[test]
    fn the_last_level_approximates_functions() {
        let at = |opt_level, disabled: &[&str]| {
            let disabled_pass = disabled.iter().map(|d| d.to_string()).collect();
            let config = BuildConfig { opt_level, disabled_pass, ..BuildConfig::default() };
            config.settings(&settings()).unwrap().rulesets_on
        };
        assert_eq!(at(4, &[]), [Name::from("fast-math")]);
        assert!(at(4, &["FastMath"]).is_empty() && at(4, &["fast-math"]).is_empty() && at(3, &[]).is_empty());
    }

    #[test]
    fn options_have_tvm_s_names() {
        let with = |option: &str, value: &str| BuildConfig {
            pass_config: vec![(option.into(), value.into())],
            ..BuildConfig::default()
        };
        assert_eq!(names(&with("relay.FuseOps.max_depth", "2")), names(&BuildConfig::default()));
        let e = with("relay.FuseOps.max_depth", "many").pipeline(&settings()).err().unwrap().to_string();
        assert!(e.contains("`largest` is `many`"), "{e}");
        let e = with("relay.FuseOps.max_dept", "2").pipeline(&settings()).err().unwrap().to_string();
        assert!(e.contains("did you mean `relay.FuseOps.max_depth`?"), "{e}");
    }

    #[test]
    fn edits_apply_in_order() {
        let edit = |stage: &str, new: &str, f: fn(String, NewStage) -> Edit| f(stage.into(), NewStage::parse(new));
        let config = BuildConfig {
            edits: vec![
                edit("fuse", "part:Partition(c, nn.dense)", Edit::RunBefore),
                edit("part", "FoldConstant", Edit::RunAfter),
                edit("optimize", "Saturate(algebra)", Edit::Replace),
                Edit::Remove("fold-constant".into()),
            ],
            ..BuildConfig::default()
        };
        let got = names(&config);
        let at = got.iter().position(|n| n == "part").unwrap();
        assert_eq!(got[at + 1], "FoldConstant");
        assert!(!got.contains(&"fold-constant".to_owned()) && got.contains(&"optimize".to_owned()));
        let twice = BuildConfig {
            edits: vec![edit("fuse", "FuseOps", Edit::RunAfter), edit("fuse", "FuseOps", Edit::RunAfter)],
            ..BuildConfig::default()
        };
        let e = twice.pipeline(&settings()).err().unwrap().to_string();
        assert_eq!(
            e,
            "the pipeline already has a stage `FuseOps` (write `NAME:PASS` to give a stage another name than its pass)"
        );
        let unknown = BuildConfig { edits: vec![Edit::Remove("fold-constnt".into())], ..BuildConfig::default() };
        let e = unknown.pipeline(&settings()).err().unwrap().to_string();
        assert!(e.contains("did you mean `fold-constant`?") && e.contains("its stages are inline"), "{e}");
        let nameless =
            BuildConfig { edits: vec![edit("fuse", "Inline,FuseOps", Edit::RunBefore)], ..BuildConfig::default() };
        assert!(nameless.pipeline(&settings()).err().unwrap().to_string().contains("needs a name"));
    }

    #[test]
    fn names_of_stages_are_told_from_arguments() {
        assert_eq!(NewStage::parse("a:B(x=\"y:z\")"), NewStage { name: Some("a".into()), pass: "B(x=\"y:z\")".into() });
        assert_eq!(NewStage::parse("B(x=\"y:z\")"), NewStage { name: None, pass: "B(x=\"y:z\")".into() });
    }
}
