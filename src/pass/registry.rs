//! Passes by name.

use super::{
    BuildConfig, Fastest, FnPass, Legalize, Pass, PassSpec, Pipeline, Saturate, Sequential, Settings, external,
    named::NAMED, parse_specs, place,
};
use crate::{
    diag::{Diagnostic, Refused, nearest},
    dialect,
    infer::infer_types,
    ir::{Module, Name},
    ops::{self, kernel::LARGEST_KERNEL},
    rules,
    saturate::{Grade, Ruleset},
};

/// A pass that users can name.
struct Entry {
    name: &'static str,
    doc: &'static str,
    make: fn(&PassSpec, &Settings) -> Result<Box<dyn Pass>, Refused>,
}

/// Every named pass. Those that are rulesets under TVM's names say which.
const PASSES: &[Entry] = &[
    Entry {
        name: "InferType",
        doc: "checks the module's types and annotates parameters",
        make: |s, _| plain(s, "InferType", |m| Ok(infer_types(m)?.into_module())),
    },
    Entry {
        name: "Inline",
        doc: "calls of known functions become their bodies, pure bindings sharing",
        make: |s, _| plain(s, "Inline", |m| super::inline(&m)),
    },
    Entry {
        name: "EtaExpand",
        doc: "operators that are used as values become functions",
        make: |s, _| plain(s, "EtaExpand", |m| super::eta_expand(&m)),
    },
    Entry {
        name: "FoldConstant",
        doc: "what depends on constants and known shapes alone is computed now; `fold_qnn=false` leaves operators of dialects",
        make: fold_constants,
    },
    Entry {
        name: "DynamicToStatic",
        doc: "extents that follow from constants become known",
        make: |s, _| plain(s, "DynamicToStatic", super::dynamic_to_static),
    },
    Entry {
        name: "DeadCodeElimination",
        doc: "drops what nothing uses",
        make: |s, _| plain(s, "DeadCodeElimination", |m| Ok(super::dead_code(&m))),
    },
    Entry {
        name: "FuseOps",
        doc: "groups operators into primitive functions, one kernel each; `largest=N` bounds a group",
        make: fuse_ops,
    },
    Entry {
        name: "DefuseOps",
        doc: "calls of primitive functions become their operators again",
        make: |s, _| plain(s, "DefuseOps", |m| Ok(super::defuse(&m))),
    },
    Entry {
        name: "Partition",
        doc: "`Partition(compiler, op, …)`: regions of these operators (all that it supports where none is named) go to an external compiler",
        make: external::partition,
    },
    Entry {
        name: "partition_for",
        doc: "`partition_for(compiler, …)`: all that these compilers take becomes functions for them, the preferred ones first: their \
              composites, annotations, regions as large as can be",
        make: external::partition_for,
    },
    Entry {
        name: "MergeComposite",
        doc: "`MergeComposite(compiler or file, …)`: what patterns meet becomes functions with the attribute `Composite`",
        make: external::merge_composite,
    },
    Entry {
        name: "AnnotateTarget",
        doc: "`AnnotateTarget(compiler, …)`: compiler_begin and compiler_end around each call that the compilers take, the preferred \
              ones first; `include_non_call_ops=false` leaves tuples outside",
        make: external::annotate_target,
    },
    Entry {
        name: "AllowedListAnnotator",
        doc: "`AllowedListAnnotator(compiler, op, …)`: the same for the operators named, and a compiler of any name",
        make: external::allowed_list,
    },
    Entry {
        name: "MergeCompilerRegions",
        doc: "annotated regions that follow each other become one, as long as they stay convex",
        make: |s, _| {
            no_arguments(s)?;
            Ok(Box::new(super::MergeCompilerRegions))
        },
    },
    Entry {
        name: "PartitionGraph",
        doc: "annotated regions become functions of the module, for their compilers; `bind_constants=true|false` says whether \
              constants are in them, `mod_name=default` is part of their names",
        make: external::partition_graph,
    },
    Entry {
        name: "Saturate",
        doc: "the named rulesets over one e-graph; where none is named, or for the name `all`, the shipped ones and those of the dialects that the module holds",
        make: |s, settings| {
            let names: Vec<&str> = s.args.iter().map(|a| a.value.as_str()).collect();
            saturate(s, &names, settings)
        },
    },
    Entry {
        name: "FastMath",
        doc: "functions that may be less exact in the last places, which are faster: fast_tanh, fast_erf, fast_exp, nn.fast_softmax",
        make: super::fast_math::make,
    },
    Entry {
        name: "Legalize",
        doc: "operators of whatever dialects the module holds become plain ones",
        make: |s, settings| {
            no_arguments(s)?;
            Ok(Box::new(Legalize::new(settings)))
        },
    },
    Entry {
        name: "FakeQuantizationToInteger",
        doc: "float operators between dequantize and quantize become integer operators; `hard_fail=true` refuses what has no integer \
              form, `optional_qnn_ops=nn.softmax` allows less exact forms of the operators named",
        make: super::fake_quantization::make,
    },
    Entry {
        name: "ConvertLayout",
        doc: "operators in the layouts that are wanted, with as few transforms as can be: `from=\"NHWC\", to=\"NHWC4c\"` for all, \
              `nn.conv2d=\"NHWC:HWIO\"` (data and weight; `default` goes with the data) for single ones; `skip=0` leaves the first such call",
        make: super::convert_layout::make,
    },
    Entry {
        name: "Calibrate",
        doc: "marks the operands that `Quantize` would quantize, with their scales and their layer's error; its arguments, but for \
              `max_error` and `integer`",
        make: super::Calibrate::from_spec,
    },
    Entry {
        name: "Quantize",
        doc: "convolutions, dense layers and matrix multiplications in integers, by scales that samples show: `calibration=\"samples.npz\"`, \
              `method=minmax|percentile|kl|global_scale`, `percentile=99.99`, `scale=8.0`, `from_layer=0`, `to_layer=N`, \
              `skip=\"name,2\"`, `dtype_input=int8|uint8`, `dtype_weight=int8`, `per_channel=true`, `symmetric=true`, \
              `integer=true`; with `max_error=E` each layer is a choice",
        make: super::Quantize::from_spec,
    },
    Entry {
        name: "ToMixedPrecision",
        doc: "contractions, and what follows them, compute in float16 (or bfloat16, float64): `mixed_precision_type=…`; results keep \
              their types with `keep_orig_output_dtype=true`, sums are float32 with `accumulation_dtype=float32`, `ignore=OP` leaves \
              an operator as it is, `missing_op_mode=0` refuses operators of which nothing is said",
        make: super::mixed_precision::make,
    },
    Entry {
        name: "AlterOpLayout",
        doc: "convolutions and pools in blocked layouts where that pays",
        make: |s, settings| ruleset(s, &["layout", "layout-moves"], settings),
    },
];

/// The names of all passes with a sentence each.
pub fn passes() -> impl Iterator<Item = (&'static str, &'static str)> {
    PASSES.iter().map(|e| (e.name, e.doc)).chain(NAMED.iter().map(|e| (e.name, e.doc)))
}

fn plain(
    spec: &PassSpec,
    name: &'static str,
    f: fn(Module) -> Result<Module, Refused>,
) -> Result<Box<dyn Pass>, Refused> {
    no_arguments(spec)?;
    Ok(Box::new(FnPass(name, f)))
}

fn fold_constants(spec: &PassSpec, _: &Settings) -> Result<Box<dyn Pass>, Refused> {
    use super::fold_constant::Folded;
    let dialects = match &spec.args[..] {
        [] => true,
        [a] if a.name.as_deref().is_none_or(|n| n == "fold_qnn")
            && ["true", "false"].contains(&a.value.to_lowercase().as_str()) =>
        {
            a.value.eq_ignore_ascii_case("true")
        }
        _ => {
            let d = Diagnostic::new("pass `FoldConstant` takes `fold_qnn=true` or `fold_qnn=false` only");
            return Err(d.at(Some(spec.span.clone())).into());
        }
    };
    let folded = if dialects { Folded::All } else { Folded::Plain };
    let run = move |m| super::fold_constant::fold_calls(super::dynamic_to_static::known_shapes(m)?, folded);
    Ok(Box::new(FnPass("FoldConstant", run)))
}

fn no_arguments(spec: &PassSpec) -> Result<(), Refused> {
    match spec.args.is_empty() {
        true => Ok(()),
        false => {
            Err(Diagnostic::new(format!("pass `{}` takes no arguments", spec.name)).at(Some(spec.span.clone())).into())
        }
    }
}

fn fuse_ops(spec: &PassSpec, _: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let refuse = |m: String| Refused::from(Diagnostic::new(m).at(Some(spec.span.clone())));
    let largest = match &spec.args[..] {
        [] => LARGEST_KERNEL,
        [a] if a.name.as_deref() == Some("largest") => a
            .value
            .parse()
            .ok()
            .filter(|&n| n > 0)
            .ok_or_else(|| refuse(format!("`largest` is `{}`, but should be a positive number", a.value)))?,
        _ => return Err(refuse("pass `FuseOps` takes `largest=N` only".into())),
    };
    Ok(Box::new(FnPass("FuseOps", move |m| {
        let resolved = super::fuse::resolve_fields(&m);
        Ok(super::fuse(&infer_types(resolved)?, largest))
    })))
}

fn ruleset(spec: &PassSpec, names: &[&str], settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
    no_arguments(spec)?;
    saturate(spec, names, settings)
}

/// The rulesets of these names: the user's, the shipped ones and those of dialects. Where no name is given, or among others the
/// name `all`, all of them that need not be named, but of dialects only those that the module holds.
fn saturate(spec: &PassSpec, names: &[&str], settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let mut all: Vec<Ruleset> = rules::general();
    all.extend(settings.rulesets.iter().cloned());
    let requested = rules::by_request();
    let by_request: Vec<Name> = requested.iter().map(|set| set.name.clone()).collect();
    let with_all = names.is_empty() || names.contains(&ALL);
    // Where external compilers are at hand, what they could make is a ruleset as well, under prices that know of them.
    let places = names.contains(&place::NAME) && !settings.placement.compilers.is_empty();
    let placing = if places { settings.placement.rulesets()? } else { Vec::new() };
    let priced = if places { &settings.placement.settings(settings) } else { settings };
    let mut named: Vec<Ruleset> = Vec::new();
    if with_all {
        let target = &settings.target;
        let suits = |name: &str| match name {
            TILES => target.has_matrix_registers(),
            PAIRS => target.codegen().widens_bytes(),
            _ => false,
        };
        let wanted = |r: &&Ruleset| settings.rulesets_on.contains(&r.name) || suits(&r.name);
        named.extend(all.iter().chain(requested.iter().filter(wanted)).cloned());
        named.retain(|r| !settings.rulesets_off.contains(&r.name));
    }
    if names.is_empty() {
        return Ok(Box::new(Saturate::new(format!("{}({ALL})", spec.name), named, settings).with_dialects()));
    }
    all.extend(requested.into_iter().filter(|r| !placing.iter().any(|p| p.name == r.name)));
    all.extend(placing.iter().cloned());
    all.extend(ops::dialects().iter().flat_map(|d| dialect::legalization(d.name())));
    for name in names {
        if *name != ALL && !all.iter().any(|r| r.name.as_str() == *name) {
            let known: Vec<&str> = all.iter().map(|r| r.name.as_str()).chain([ALL]).collect();
            let mut d = Diagnostic::new(format!("no ruleset is named `{name}`; there are {}", known.join(", ")))
                .at(Some(spec.span.clone()));
            if let Some(near) = nearest(name, known) {
                d = d.help(format!("did you mean `{near}`?"));
            }
            return Err(d.into());
        }
    }
    // A ruleset that runs by request alone may hold only where all is finite: it was asked for.
    let asked = by_request.iter().any(|n| names.contains(&n.as_str()));
    let priced =
        &Settings { grade: if asked { priced.grade.max(Grade::Finite) } else { priced.grade }, ..priced.clone() };
    for set in named.iter_mut().chain(&mut all).filter(|set| !by_request.contains(&set.name)) {
        set.rules.retain(|r| r.grade <= settings.grade || settings.rulesets_on.contains(&set.name));
    }
    let is_new = |r: &Ruleset| names.contains(&r.name.as_str()) && !named.iter().any(|n| n.name == r.name);
    // A compiler's own rules and resat's kernels come with what it could make.
    all.retain(|r| is_new(r) || placing.iter().any(|p| p.name == r.name) && !named.iter().any(|n| n.name == r.name));
    named.extend(all);
    let pass = Saturate::new(format!("{}({})", spec.name, names.join(", ")), named, priced);
    Ok(Box::new(if with_all { pass.with_dialects() } else { pass }))
}

/// The ruleset for machines with matrix registers.
const TILES: &str = "tiles";

/// The ruleset for machines that multiply bytes as numbers of 16 bits.
const PAIRS: &str = "dot-products-16";

/// Stands, among names of rulesets, for all that run where none is named.
const ALL: &str = "all";

pub(super) fn make(spec: &PassSpec, settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
    if let Some(named) = NAMED.iter().find(|e| e.name == spec.name) {
        return named.make(spec, settings);
    }
    match PASSES.iter().find(|e| e.name == spec.name) {
        Some(e) => (e.make)(spec, settings),
        None => {
            let names: Vec<&str> = passes().map(|(name, _)| name).collect();
            let mut d = Diagnostic::new(format!("no pass is named `{}`; there are {}", spec.name, names.join(", ")))
                .at(Some(spec.span.clone()));
            if let Some(near) = nearest(&spec.name, names) {
                d = d.help(format!("did you mean `{near}`?"));
            }
            Err(d.into())
        }
    }
}

/// The passes that a text names, in order; `default` stands for the default pipeline and `none` for nothing.
pub fn sequence(text: &str, settings: &Settings) -> Result<Sequential, Refused> {
    sequence_of(text, settings, &|| default_pass(settings, &BuildConfig::default()))
}

/// The same, where `default` stands for the default pipeline as a configuration makes it. Refused is a configuration of a default
/// pipeline that the text does not name.
pub fn sequence_with(text: &str, settings: &Settings, config: &BuildConfig) -> Result<Sequential, Refused> {
    if *config != BuildConfig::default() && !parse_specs(text)?.iter().any(|s| s.name == "default") {
        let d = Diagnostic::new(format!(
            "levels, switches and edits shape the default pipeline, which the passes `{text}` do not name"
        ));
        return Err(d.help("`default` is a name among passes: it stands for that pipeline").into());
    }
    sequence_of(text, settings, &|| default_pass(settings, config))
}

fn sequence_of(
    text: &str,
    settings: &Settings,
    default: &dyn Fn() -> Result<Box<dyn Pass>, Refused>,
) -> Result<Sequential, Refused> {
    let mut passes = Vec::new();
    let mut complaints = Vec::new();
    for spec in parse_specs(text)? {
        let made = match spec.name.as_str() {
            "none" => no_arguments(&spec).map(|()| None),
            "default" => no_arguments(&spec).and_then(|()| Ok(Some(default()?))),
            _ => make(&spec, settings).map(Some),
        };
        match made {
            Ok(pass) => passes.extend(pass),
            Err(Refused(d)) => complaints.extend(d),
        }
    }
    if complaints.is_empty() { Ok(Sequential(passes)) } else { Err(Refused(complaints)) }
}

/// The default pipeline as a configuration makes it; where placement is by cost, the fastest of several.
pub fn default_pass(settings: &Settings, config: &BuildConfig) -> Result<Box<dyn Pass>, Refused> {
    match settings.placement.is_by_cost() {
        true => Ok(Box::new(Fastest::new(settings, config)?)),
        false => Ok(Box::new(config.pipeline(settings)?)),
    }
}

/// What `build` does where nothing else is asked for.
pub fn default_pipeline(settings: &Settings) -> Result<Pipeline, Refused> {
    let mut p = Pipeline::new();
    let by_cost = settings.placement.is_by_cost();
    let at_first: Vec<&str> = settings.placement.at_first()?.iter().map(|c| c.name()).collect();
    let at_first = (!at_first.is_empty()).then(|| format!("partition_for({})", at_first.join(", ")));
    let mut stages = vec![("inline", "Inline"), ("eta-expand", "EtaExpand"), ("dynamic-to-static", "DynamicToStatic")];
    // What goes to other compilers whatever it costs goes as it was written.
    stages.extend(at_first.iter().map(|pass| ("partition", pass.as_str())));
    stages.extend([
        ("optimize", if by_cost { "Saturate(all, placement)" } else { "Saturate" }),
        ("fold-constant", "FoldConstant"),
        ("dead-code", "DeadCodeElimination"),
    ]);
    if by_cost {
        stages.push(("regions", "MergeCompilerRegions"));
        stages.push(("partition", "PartitionGraph"));
    }
    stages.push(("fuse", "FuseOps"));
    for (name, pass) in stages {
        for spec in parse_specs(pass)? {
            p.push(name, make(&spec, settings)?).expect("the stages' names differ");
        }
    }
    Ok(p)
}
