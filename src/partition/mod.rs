//! Regions for external compilers: marked by what a compiler supports, split into functions of their own (attributes
//! `Compiler`, `global_symbol`, `Primitive`, by TVM's convention), compiled by it, called like any kernel.

mod c_source;
mod regions;

use std::fmt;

pub use c_source::CSource;
pub use regions::partition;

use crate::{
    infer::TypedModule,
    ir::{Attrs, Function, OpId, Type},
};

/// What an external compiler makes of a region.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// An object file of the target's format with one function, named by the symbol that was asked for, in the calling
    /// convention of [`runtime::abi`](crate::runtime::abi): pointers to the inputs in order, then to the outputs (tuples
    /// flattened depth first).
    pub object: Vec<u8>,
    /// Bytes of workspace that a call takes.
    pub workspace: usize,
}

/// Why an external compiler did not compile a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompilerError {
    /// The compiler.
    pub compiler: String,
    /// The region's symbol.
    pub region: String,
    /// What went wrong.
    pub reason: String,
}

impl fmt::Display for CompilerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "compiler `{}` failed on region `{}`: {}", self.compiler, self.region, self.reason)
    }
}

impl std::error::Error for CompilerError {}

/// A compiler that takes regions of a program.
pub trait ExternalCompiler: Send + Sync {
    /// Its name: the `Compiler` attribute of its functions.
    fn name(&self) -> &'static str;

    /// Whether it takes the call of an operator.
    fn supports(&self, op: OpId, attrs: &Attrs, args: &[Type], result: &Type) -> bool;

    /// Compiles a region: a function of supported calls.
    fn compile(&self, module: &TypedModule, function: &Function, symbol: &str) -> Result<Compiled, CompilerError>;
}

/// The shipped compilers.
const COMPILERS: &[&dyn ExternalCompiler] = &[&CSource];

/// Other names that programs in the world have for a shipped compiler: TVM's own compiler by C source is `ccompiler`.
const ALIASES: &[(&str, &str)] = &[("ccompiler", "c")];

/// The compiler of that name.
pub fn compiler(name: &str) -> Option<&'static dyn ExternalCompiler> {
    let name = ALIASES.iter().find(|a| a.0 == name).map_or(name, |a| a.1);
    COMPILERS.iter().find(|c| c.name() == name).copied()
}

/// The names of all compilers.
pub fn compilers() -> Vec<&'static str> {
    COMPILERS.iter().map(|c| c.name()).collect()
}
