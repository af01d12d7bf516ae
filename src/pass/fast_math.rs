//! `FastMath`: the ruleset of that name, under prices that prefer what it makes.

use std::sync::Arc;

use super::{Pass, PassSpec, Saturate, Settings};
use crate::{
    cost::Penalized,
    diag::{Diagnostic, Refused},
    rules,
    saturate::Grade,
};

/// The pass takes no arguments. That results differ in the last places is what was asked for.
pub(super) fn make(spec: &PassSpec, settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
    if !spec.args.is_empty() {
        let d = Diagnostic::new(format!("pass `{}` takes no arguments", spec.name));
        return Err(d.at(Some(spec.span.clone())).into());
    }
    let sets: Vec<_> = rules::general_definitions().iter().filter(|s| s.name.as_str() == "fast-math").collect();
    let ops = sets.iter().flat_map(|s| &s.rules).flat_map(|r| r.matches()).collect();
    let mut settings = settings.clone();
    settings.cost = Arc::new(Penalized { model: settings.cost, ops });
    settings.grade = Grade::Approx;
    let rulesets = sets.into_iter().map(rules::Definitions::compile).collect();
    Ok(Box::new(Saturate::new("FastMath", rulesets, &settings)))
}
