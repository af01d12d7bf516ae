//! The code generators that there are, by name: the shipped ones and what users register.

use std::sync::{OnceLock, PoisonError, RwLock};

#[cfg(feature = "llvm")]
use super::llvm::Llvm;
use super::{CodeGenerator, c::C99};

/// The shipped generators.
const SHIPPED: &[&dyn CodeGenerator] = &[
    #[cfg(feature = "llvm")]
    &Llvm,
    &C99,
];

/// A generator can't be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Another one has its name.
    #[error("there is a code generator `{0}` already")]
    Taken(String),
    /// Targets can't begin with its name.
    #[error("a code generator can't be called `{0}`: names are letters, digits and `_`")]
    Name(String),
}

fn table() -> &'static RwLock<Vec<&'static dyn CodeGenerator>> {
    static TABLE: OnceLock<RwLock<Vec<&'static dyn CodeGenerator>>> = OnceLock::new();
    TABLE.get_or_init(|| RwLock::new(SHIPPED.to_vec()))
}

/// Adds a generator for as long as the process lives.
///
/// # Errors
/// Where another has its name, or targets could not name it.
pub fn register(generator: impl CodeGenerator + 'static) -> Result<(), RegisterError> {
    let name = generator.name().to_owned();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(RegisterError::Name(name));
    }
    let mut table = table().write().unwrap_or_else(PoisonError::into_inner);
    if table.iter().any(|g| g.name() == name) {
        return Err(RegisterError::Taken(name));
    }
    table.push(Box::leak(Box::new(generator)));
    Ok(())
}

/// All generators, in order of registration.
pub fn generators() -> Vec<&'static dyn CodeGenerator> {
    table().read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The generator of that name.
pub fn generator(name: &str) -> Option<&'static dyn CodeGenerator> {
    generators().into_iter().find(|g| g.name() == name)
}
