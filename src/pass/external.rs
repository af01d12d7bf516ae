//! The passes for external compilers as the command line names them.

use super::{AnnotateTarget, MergeComposite, PartitionFor, PartitionGraph, Pass, PassSpec, Settings, SpecArg, Taker};
use crate::{
    diag::{Diagnostic, Refused, nearest, read_text},
    ir::OpId,
    ops::{self},
    partition::{self, ExternalCompiler},
};

fn refuse(spec: &PassSpec, message: String, near: Option<&str>) -> Refused {
    let d = Diagnostic::new(message).at(Some(spec.span.clone()));
    Refused::from(match near {
        Some(near) => d.help(format!("did you mean `{near}`?")),
        None => d,
    })
}

fn compiler(spec: &PassSpec, name: &str) -> Result<&'static dyn ExternalCompiler, Refused> {
    let known = partition::compilers();
    partition::compiler(name).ok_or_else(|| {
        let near = nearest(name, known.clone());
        refuse(spec, format!("there is no compiler `{name}`; there are {}", known.join(", ")), near)
    })
}

fn operators<'a>(spec: &PassSpec, names: impl Iterator<Item = &'a str>) -> Result<Vec<OpId>, Refused> {
    names
        .map(|n| ops::lookup(n).ok_or_else(|| refuse(spec, format!("there is no operator `{n}`"), ops::suggest(n))))
        .collect()
}

/// What is given by position, and what by name; refused are names that are not known.
fn arguments<'a>(spec: &'a PassSpec, names: &[&str]) -> Result<(Vec<&'a str>, Vec<&'a SpecArg>), Refused> {
    for name in spec.args.iter().filter_map(|a| a.name.as_deref()) {
        if !names.contains(&name) {
            let message = format!("pass `{}` takes no argument `{name}`", spec.name);
            return Err(refuse(spec, message, nearest(name, names.iter().copied())));
        }
    }
    let by_position = spec.args.iter().filter(|a| a.name.is_none()).map(|a| a.value.as_str());
    Ok((by_position.collect(), spec.args.iter().filter(|a| a.name.is_some()).collect()))
}

fn truth(spec: &PassSpec, arg: &SpecArg) -> Result<bool, Refused> {
    match arg.value.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        other => {
            let name = arg.name.as_deref().unwrap_or("");
            Err(refuse(spec, format!("`{name}` is `{other}`, but should be true or false"), None))
        }
    }
}

fn some<'a>(spec: &PassSpec, names: &[&'a str]) -> Result<&'a str, Refused> {
    let first = names.first().copied();
    first.ok_or_else(|| refuse(spec, format!("pass `{}` needs a compiler's name", spec.name), None))
}

/// `Partition(compiler, op, …)`.
pub(super) fn partition(spec: &PassSpec, _: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let (names, _) = arguments(spec, &[])?;
    let compiler = compiler(spec, some(spec, &names)?)?;
    let ops = operators(spec, names[1..].iter().copied())?;
    Ok(Box::new(PartitionFor::new(&[(compiler, ops)])?))
}

/// `partition_for(compiler, …)`.
pub(super) fn partition_for(spec: &PassSpec, _: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let (names, _) = arguments(spec, &[])?;
    some(spec, &names)?;
    let all = names.iter().map(|n| Ok((compiler(spec, n)?, Vec::new()))).collect::<Result<Vec<_>, Refused>>()?;
    Ok(Box::new(PartitionFor::new(&all)?))
}

/// `AnnotateTarget(compiler, …, include_non_call_ops=true)`.
pub(super) fn annotate_target(spec: &PassSpec, _: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let (names, named) = arguments(spec, &["include_non_call_ops"])?;
    some(spec, &names)?;
    let takers = names.iter().map(|n| Ok(Taker::of(compiler(spec, n)?))).collect::<Result<Vec<_>, Refused>>()?;
    let mut pass = AnnotateTarget::new(takers);
    for arg in named {
        pass = pass.include_non_call_ops(truth(spec, arg)?);
    }
    Ok(Box::new(pass))
}

/// `AllowedListAnnotator(compiler, op, …)`.
pub(super) fn allowed_list(spec: &PassSpec, _: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let (names, _) = arguments(spec, &[])?;
    let compiler = some(spec, &names)?;
    let ops = operators(spec, names[1..].iter().copied())?;
    Ok(Box::new(AnnotateTarget::new(vec![Taker::new(compiler, |_| true).only(ops)])))
}

/// `MergeComposite(compiler or file, …)`.
pub(super) fn merge_composite(spec: &PassSpec, _: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let (names, _) = arguments(spec, &[])?;
    if names.is_empty() {
        return Err(refuse(spec, "pass `MergeComposite` needs a compiler's name, or a file of patterns".into(), None));
    }
    let mut pass = MergeComposite::new();
    for name in names {
        let more = match partition::compiler(name) {
            Some(compiler) => MergeComposite::of(compiler)?,
            None => {
                let text = read_text(name.as_ref()).map_err(|e| {
                    let known = partition::compilers();
                    let message =
                        format!("`{name}` is no compiler ({}), and no file can be read: {e}", known.join(", "));
                    refuse(spec, message, nearest(name, known))
                })?;
                MergeComposite::of_text(name, &text)?
            }
        };
        pass = pass.and(more);
    }
    Ok(Box::new(pass))
}

/// `PartitionGraph(mod_name=default, bind_constants=true)`.
pub(super) fn partition_graph(spec: &PassSpec, _: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let (positional, named) = arguments(spec, &["mod_name", "bind_constants"])?;
    if let Some(odd) = positional.first() {
        return Err(refuse(spec, format!("pass `PartitionGraph` takes arguments by name only, not `{odd}`"), None));
    }
    let mut pass = PartitionGraph::default();
    for arg in named {
        pass = match arg.name.as_deref() {
            Some("mod_name") => pass.mod_name(arg.value.clone()),
            _ => pass.bind_constants(truth(spec, arg)?),
        };
    }
    Ok(Box::new(pass))
}
