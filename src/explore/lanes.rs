//! The sequences of passes that are compared: the saturation's, the program's as it was written, and one for each order.

use std::sync::Arc;

use serde::Serialize;

use super::{
    Options,
    engine::{Engine, Ran, Station},
};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{Module, Name},
    loops::{Digest, digest_bytes},
    pass::{
        BuildConfig, Pass, PassContext, Pipeline, Sequential, Settings, SpecArg, default_pipeline,
        parse_optional_specs, parse_specs, passes, sequence,
    },
    tensor::Tensor,
};

/// A pass whose place is varied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// What it is called in results.
    pub label: String,
    /// The pass with its arguments.
    pub pass: String,
    /// Which of the passes as written it is: of several that are one with other arguments, each order has one.
    pub slot: usize,
    /// Whether orders without it are tried, too.
    pub optional: bool,
}

/// A pass of the user's own, which is known by its name.
pub type OwnPass = Arc<dyn Pass>;

/// Such a pass, as one of several.
struct Own(OwnPass);

impl Pass for Own {
    fn name(&self) -> String {
        self.0.name()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        self.0.run(module, cx)
    }

    fn rulesets(&self) -> Vec<Name> {
        self.0.rulesets()
    }
}

/// A pass for each way to choose among the alternatives of its arguments, `NHWC|NCHW8c`, in the order written, with what tells it apart.
fn alternatives(args: &[SpecArg]) -> Vec<(Vec<SpecArg>, String)> {
    let mut ways: Vec<(Vec<SpecArg>, Vec<&str>)> = vec![(Vec::new(), Vec::new())];
    for arg in args {
        let values: Vec<&str> = arg.value.split('|').map(str::trim).collect();
        let mut more = Vec::new();
        for (args, chosen) in &ways {
            for &value in &values {
                let (mut args, mut chosen): (Vec<SpecArg>, Vec<&str>) = (args.clone(), chosen.clone());
                args.push(SpecArg { name: arg.name.clone(), value: value.to_owned() });
                chosen.extend((values.len() > 1).then_some(value));
                more.push((args, chosen));
            }
        }
        ways = more;
    }
    ways.into_iter().map(|(args, chosen)| (args, chosen.join(" "))).collect()
}

impl Member {
    /// Reads a list of passes. Each is a pass with or without arguments, or a ruleset, or a stage of the default pipeline, which stand
    /// for the saturation with that ruleset and for the stage's pass; case does not count where a pass is meant. `LABEL:PASS` gives it
    /// a name of its own. Alternatives in an argument, `to="NHWC|NCHW8c"`, are as many members, of which each order has one, and a
    /// pass with a question mark behind it is in some orders only.
    ///
    /// Refused are names that neither the registry nor the user's `own` passes have, and two members of one label.
    pub fn parse(text: &str, settings: &Settings, own: &[OwnPass]) -> Result<Vec<Member>, Refused> {
        let (mut members, mut complaints): (Vec<Member>, Vec<Diagnostic>) = (Vec::new(), Vec::new());
        for (slot, (spec, optional)) in parse_optional_specs(text)?.into_iter().enumerate() {
            let (label, name) = match spec.name.split_once(':') {
                Some((label, name)) if !label.is_empty() && !name.is_empty() => (Some(label), name),
                _ => (None, spec.name.as_str()),
            };
            for (args, chosen) in alternatives(&spec.args) {
                let pass = match args.is_empty() && named(own, name).is_some() {
                    true => name.to_owned(),
                    false => resolve(name, &args, settings)?,
                };
                if let Err(Refused(d)) = made(&pass, settings, own) {
                    // Places are those of the whole list.
                    complaints
                        .extend(d.into_iter().map(|d| Diagnostic { span: None, ..d }.at(Some(spec.span.clone()))));
                    continue;
                }
                let label =
                    label.unwrap_or(name).to_owned() + &if chosen.is_empty() { chosen } else { format!("[{chosen}]") };
                if members.iter().any(|m| m.label == label) {
                    let d = Diagnostic::new(format!("`{label}` is there twice")).at(Some(spec.span.clone()));
                    complaints.push(d.help("write `LABEL:PASS` to tell passes of one name apart"));
                    continue;
                }
                members.push(Member { label, pass, slot, optional });
            }
        }
        if complaints.is_empty() { Ok(members) } else { Err(Refused(complaints)) }
    }
}

/// The pass of the user's own that has this name.
fn named<'a>(own: &'a [OwnPass], name: &str) -> Option<&'a OwnPass> {
    own.iter().find(|p| p.name() == name)
}

/// The pass of a text: the user's own, or one of the registry.
fn made(text: &str, settings: &Settings, own: &[OwnPass]) -> Result<Box<dyn Pass>, Refused> {
    match named(own, text) {
        Some(pass) => Ok(Box::new(Own(pass.clone()))),
        None => Ok(alone(sequence(text, settings)?)),
    }
}

/// The text of the pass that is meant.
fn resolve(name: &str, args: &[SpecArg], settings: &Settings) -> Result<String, Refused> {
    let quoted = |v: &str| match v.chars().all(|c| c.is_alphanumeric() || "_.-/:+".contains(c)) && !v.is_empty() {
        true => v.to_owned(),
        false => format!("\"{v}\""),
    };
    let arg = |a: &SpecArg| match &a.name {
        Some(name) => format!("{name}={}", quoted(&a.value)),
        None => quoted(&a.value),
    };
    let with_args = |name: &str| match args {
        [] => name.to_owned(),
        _ => format!("{name}({})", args.iter().map(arg).collect::<Vec<_>>().join(", ")),
    };
    if passes().any(|p| p.0 == name) {
        return Ok(with_args(name));
    }
    if args.is_empty() {
        let ruleset = format!("Saturate({name})");
        if sequence(&ruleset, settings).is_ok() {
            return Ok(ruleset);
        }
        let pipeline = default_pipeline(settings)?;
        if let Some((_, pass)) = pipeline.stages().find(|s| s.0 == name).filter(|s| s.0 != OPTIMIZE) {
            return Ok(pass.name());
        }
    }
    let same = |p: &(&'static str, &'static str)| p.0.eq_ignore_ascii_case(name);
    Ok(with_args(passes().find(same).map_or(name, |p| p.0)))
}

/// The stage whose place the orders take.
const OPTIMIZE: &str = "optimize";

/// The members of each slot that an order may have: one of these, or none.
pub(super) fn choices(members: &[Member]) -> Vec<(Vec<usize>, bool)> {
    let mut slots: Vec<(usize, Vec<usize>, bool)> = Vec::new();
    for (i, m) in members.iter().enumerate() {
        match slots.iter_mut().find(|s| s.0 == m.slot) {
            Some(slot) => slot.1.push(i),
            None => slots.push((m.slot, vec![i], m.optional)),
        }
    }
    slots.into_iter().map(|(_, members, optional)| (members, optional)).collect()
}

struct Held {
    key: String,
    shown: String,
    pass: Box<dyn Pass>,
}

/// Everything that lanes are made of.
pub(super) struct Lanes {
    before: Vec<Held>,
    members: Vec<Held>,
    after: Vec<Held>,
    saturation: Vec<Held>,
    default: Vec<Held>,
    baseline: Vec<Held>,
}

/// What a pass is remembered by: its name, and the rulesets that it runs, for the name may not say.
fn held(shown: String, pass: Box<dyn Pass>) -> Held {
    let rulesets = pass.rulesets();
    let key = match rulesets.is_empty() {
        true => shown.clone(),
        false => format!("{shown} [{}]", rulesets.iter().map(Name::as_str).collect::<Vec<_>>().join(" ")),
    };
    Held { key, shown, pass }
}

fn stations(pipeline: Pipeline) -> Vec<(String, Held)> {
    pipeline.into_stages().map(|(stage, pass)| (stage, held(pass.name(), pass))).collect()
}

fn base(name: &str) -> &str {
    name.split('(').next().unwrap_or(name)
}

fn alone(mut passes: Sequential) -> Box<dyn Pass> {
    match passes.0.len() {
        1 => passes.0.remove(0),
        _ => Box::new(passes),
    }
}

impl Lanes {
    pub(super) fn new(options: &Options) -> Result<Lanes, Refused> {
        let settings = &options.settings;
        let of_config = options.config.settings(settings)?;
        let mut members = Vec::new();
        for m in &options.members {
            members.push(held(m.pass.clone(), made(&m.pass, &of_config, &options.own)?));
        }
        let own = |pass: &Held| options.members.iter().any(|m| base(&m.pass) == base(&pass.shown));
        let (mut before, mut after, mut met) = (Vec::new(), Vec::new(), false);
        let pipeline = options.config.pipeline(settings)?;
        let names = pipeline.names().join(", ");
        for (stage, pass) in stations(pipeline) {
            match (stage == OPTIMIZE, met) {
                (true, _) => met = true,
                (false, _) if own(&pass) => {}
                (false, false) => before.push(pass),
                (false, true) => after.push(pass),
            }
        }
        if !met {
            let d = Diagnostic::new(format!(
                "the orders take the place of the stage `{OPTIMIZE}`, which the pipeline has not"
            ));
            return Err(d.help(format!("its stages are {names}")).into());
        }
        let written = BuildConfig { opt_level: 0, ..BuildConfig::default() };
        let default = stations(options.config.pipeline(settings)?).into_iter().map(|s| s.1).collect();
        let baseline = stations(written.pipeline(settings)?).into_iter().map(|s| s.1).collect();
        let saturation = saturation(options, &members)?;
        Ok(Lanes { before, members, after, saturation, default, baseline })
    }

    pub(super) fn order<'a>(&'a self, order: &[usize]) -> Vec<Station<'a>> {
        let members = order.iter().map(|&i| &self.members[i]);
        self.before.iter().chain(members).chain(&self.after).map(station).collect()
    }

    pub(super) fn saturation(&self) -> Vec<Station<'_>> {
        self.saturation.iter().map(station).collect()
    }

    pub(super) fn default(&self) -> Vec<Station<'_>> {
        self.default.iter().map(station).collect()
    }

    pub(super) fn baseline(&self) -> Vec<Station<'_>> {
        self.baseline.iter().map(station).collect()
    }

    /// The pass that is remembered by this key.
    pub(super) fn station(&self, key: &str) -> Option<Station<'_>> {
        let all = [&self.before, &self.members, &self.after, &self.saturation, &self.default, &self.baseline];
        all.into_iter().flatten().find(|h| h.key == key).map(station)
    }

    /// The passes around every order.
    pub(super) fn around(&self) -> (Vec<String>, Vec<String>) {
        let shown = |list: &[Held]| list.iter().map(|h| h.shown.clone()).collect();
        (shown(&self.before), shown(&self.after))
    }

    /// The module that the saturation's largest e-graph was of, and the place of its pass in the lane.
    pub(super) fn saturating(&self, engine: &Engine, ran: &Ran) -> Option<(Digest, usize)> {
        let mut found: Option<(usize, Digest, usize)> = None;
        for (place, (station, from)) in self.saturation().iter().zip(&ran.from).enumerate() {
            let nodes = engine.saturated(station.key, *from).map_or(0, |s| s.nodes);
            if nodes > found.map_or(0, |f| f.0) {
                found = Some((nodes, *from, place));
            }
        }
        found.map(|(_, from, place)| (from, place))
    }
}

fn station(held: &Held) -> Station<'_> {
    Station { key: &held.key, shown: &held.shown, pass: held.pass.as_ref() }
}

/// Passes for whose purpose, dialects and layouts, the default saturation has rules that weigh it: theirs would force it.
const COVERED: [&str; 4] = ["InferType", "Legalize", "ConvertLayout", "DefuseOps"];

/// The passes that the orders are compared with. Members that are made of rulesets put them into the saturation; those that are neither
/// that nor a stage of the default pipeline come before it, in the order given.
fn saturation(options: &Options, members: &[Held]) -> Result<Vec<Held>, Refused> {
    let settings = &options.settings;
    if let Some(text) = &options.saturation {
        let config = &options.config;
        let mut lane = Vec::new();
        for spec in parse_specs(text)? {
            let pass = &text[spec.span.start as usize..spec.span.end as usize];
            if spec.name == "default" && spec.args.is_empty() {
                lane.extend(stations(config.pipeline(settings)?).into_iter().map(|s| s.1));
            } else {
                lane.push(held(pass.to_owned(), made(pass, settings, &options.own)?));
            }
        }
        return Ok(lane);
    }
    let mut settings = settings.clone();
    let mut first = Vec::new();
    let plain = default_pipeline(&settings)?;
    for (member, held_member) in options.members.iter().zip(members) {
        if COVERED.contains(&base(&member.pass)) {
            continue;
        }
        let rulesets = held_member.pass.rulesets();
        let is_stage = plain.stages().any(|(_, p)| base(&p.name()) == base(&member.pass));
        if rulesets.is_empty() && !is_stage {
            first.push(held(member.pass.clone(), made(&member.pass, &settings, &options.own)?));
        }
        settings.rulesets_on.extend(rulesets);
    }
    let mut lane: Vec<Held> = stations(options.config.pipeline(&settings)?).into_iter().map(|s| s.1).collect();
    // Where rulesets are what is ordered, the saturation has these and no others.
    if options.members.iter().all(|m| base(&m.pass) == "Saturate") && !options.members.is_empty() {
        let names: Vec<String> = settings.rulesets_on.iter().map(Name::to_string).collect();
        let text = format!("Saturate({})", names.join(", "));
        let at = lane.iter().position(|h| base(&h.shown) == "Saturate").unwrap_or(lane.len());
        lane.splice(at..(at + 1).min(lane.len()), [held(text.clone(), alone(sequence(&text, &settings)?))]);
    }
    first.extend(lane);
    Ok(first)
}

/// What results depend on: named and said, for the state's file and the page.
pub(super) fn about(options: &Options, inputs: &[Tensor]) -> Vec<(String, String)> {
    let s = &options.settings;
    let given: Vec<&[u8]> = inputs.iter().map(Tensor::bytes).collect();
    let limits = format!("{:?}", s.limits);
    let own = [
        ("inputs", digest_bytes(&given).to_string()),
        ("target", s.target.to_string()),
        ("threads", options.threads.to_string()),
        ("cost model", s.cost.name().to_owned()),
        ("extractor", s.extractor.name().to_owned()),
        ("grade", s.grade.to_string()),
        ("limits", limits),
        ("opt level", options.config.opt_level.to_string()),
        ("required passes", options.config.required_pass.join(", ")),
        ("disabled passes", options.config.disabled_pass.join(", ")),
        ("options", options.config.pass_config.iter().map(|(o, v)| format!("{o}={v}")).collect::<Vec<_>>().join(", ")),
        ("edits", options.config.edits.iter().map(|e| format!("{e:?}")).collect::<Vec<_>>().join("; ")),
        ("rules left out", s.without.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")),
        ("seconds of measuring", options.measure.as_secs_f64().to_string()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    own.chain(options.about.iter().cloned()).collect()
}

/// The same settings with so many rounds.
pub(super) fn with_rounds(settings: &Settings, rounds: usize) -> Settings {
    let mut settings = settings.clone();
    settings.limits.iterations = rounds;
    settings
}

/// The options without what only their owner can call.
pub(super) fn copied(o: &Options) -> Options {
    Options {
        settings: o.settings.clone(),
        config: o.config.clone(),
        members: o.members.clone(),
        own: o.own.clone(),
        saturation: o.saturation.clone(),
        state: None,
        model: o.model.clone(),
        about: o.about.clone(),
        on_progress: None,
        crew: None,
        ..*o
    }
}
