//! The compilers that there are, by name: the shipped ones and what users register.

use std::sync::{OnceLock, PoisonError, RwLock};

use super::{CSource, ExternalCompiler, OneDnn};
use crate::diag::{Diagnostic, Refused};

/// The shipped compilers.
const SHIPPED: &[&dyn ExternalCompiler] = &[&CSource, &OneDnn];

/// Other names that programs in the world have for a shipped compiler: TVM's own compiler by C source is `ccompiler`, that by oneDNN
/// `dnnl`.
const ALIASES: &[(&str, &str)] = &[("ccompiler", "c"), ("dnnl", "onednn")];

/// A compiler can't be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Another one has its name.
    #[error("there is a compiler `{0}` already")]
    Taken(String),
    /// Its name would be no part of a symbol.
    #[error("a compiler can't be called `{0}`: names are letters, digits and `_`, not a digit first")]
    Name(String),
    /// The patterns or rules that it brings can't be read.
    #[error("compiler `{0}`: {1}")]
    Rules(String, String),
}

fn table() -> &'static RwLock<Vec<&'static dyn ExternalCompiler>> {
    static TABLE: OnceLock<RwLock<Vec<&'static dyn ExternalCompiler>>> = OnceLock::new();
    TABLE.get_or_init(|| RwLock::new(SHIPPED.to_vec()))
}

fn all() -> Vec<&'static dyn ExternalCompiler> {
    table().read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Adds a compiler for as long as the process lives.
///
/// Refuses a name that another compiler has, and rules that can't be read.
pub fn register(compiler: impl ExternalCompiler + 'static) -> Result<&'static dyn ExternalCompiler, RegisterError> {
    let name = compiler.name().to_owned();
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(RegisterError::Name(name));
    }
    let rules = compiler.rules();
    if let Some(Err(e)) = rules.map(|r| crate::rules::define(&r.file, &r.text)) {
        return Err(RegisterError::Rules(name, e.to_string()));
    }
    let mut table = table().write().unwrap_or_else(PoisonError::into_inner);
    if table.iter().any(|c| c.name() == name) || ALIASES.iter().any(|a| a.0 == name) {
        return Err(RegisterError::Taken(name));
    }
    let compiler: &'static dyn ExternalCompiler = Box::leak(Box::new(compiler));
    table.push(compiler);
    Ok(compiler)
}

/// The compiler of that name.
pub fn compiler(name: &str) -> Option<&'static dyn ExternalCompiler> {
    let name = ALIASES.iter().find(|a| a.0 == name).map_or(name, |a| a.1);
    all().into_iter().find(|c| c.name() == name)
}

/// Refuses what went wrong with a compiler while it was asked what it supports or costs.
pub fn heed(compiler: &dyn ExternalCompiler) -> Result<(), Refused> {
    match compiler.trouble() {
        Some(why) => Err(Diagnostic::new(format!("compiler `{}` failed: {why}", compiler.name())).into()),
        None => Ok(()),
    }
}

/// The names of all compilers, in order of registration.
pub fn compilers() -> Vec<&'static str> {
    all().into_iter().map(|c| c.name()).collect()
}
