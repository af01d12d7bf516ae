//! Regions for external compilers: marked by what a compiler supports, split into functions of their own (attributes
//! `Compiler`, `global_symbol`, `Primitive`, by TVM's convention), compiled by it, called like any kernel.
//!
//! A compiler is an [`ExternalCompiler`]: the shipped ones, what a program [registers](register), and shared libraries that are
//! [loaded](load).

pub(crate) mod c_source;
mod check;
mod foreign;
#[cfg(feature = "llvm")]
#[doc = include_str!("../../docs/external-compilers.md")]
pub mod guide {}
mod onednn;
mod region;
mod registry;

use std::{fmt, sync::Arc};

pub use c_source::CSource;
pub use check::check;
pub use foreign::{find, load};
pub use onednn::OneDnn;
pub use region::Region;
pub use registry::{RegisterError, compiler, compilers, heed, register};

use crate::{
    infer::TypedModule,
    ir::{Attrs, ExprId, Name, OpId, Type},
};
pub use crate::{
    ops::RuleText,
    runtime::{Arguments, CallError, Callable, Code, Compiled, Data, SerializeError, Serialized},
};

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

/// Several operators that a compiler takes as one: what the pattern meets becomes a function with the attribute `Composite`.
#[derive(Clone)]
pub struct Composite {
    /// The attribute's value; by convention the compiler's name, a dot, and a word: `onednn.conv2d_relu`.
    pub name: Name,
    /// A left side in the language of rules, such as `(nn.relu (nn.bias_add (nn.conv2d ?x ?w) ?b))`.
    pub pattern: String,
    /// What else must hold, where something must.
    pub check: Option<Arc<dyn Fn(&Found<'_>) -> bool + Send + Sync>>,
}

/// Where a pattern was met.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The module.
    pub typed: &'a TypedModule,
    /// The call that is the result.
    pub root: ExprId,
    /// All calls that the pattern has met, children first, the root last.
    pub calls: &'a [ExprId],
}

impl Composite {
    /// A composite of all that a pattern meets.
    pub fn new(name: impl Into<Name>, pattern: impl Into<String>) -> Composite {
        Composite { name: name.into(), pattern: pattern.into(), check: None }
    }

    /// The same where a condition holds besides.
    pub fn when(self, check: impl Fn(&Found<'_>) -> bool + Send + Sync + 'static) -> Composite {
        Composite { check: Some(Arc::new(check)), ..self }
    }
}

impl fmt::Debug for Composite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.check.is_some() { " when …" } else { "" };
        write!(f, "{} = {}{when}", self.name, self.pattern)
    }
}

/// A compiler that takes regions of a program. `docs/external-compilers.md` has a whole one.
///
/// Three methods make one: what it is called, which operators it takes, and what it makes of a region. The others have
/// defaults that are true of a compiler of which nothing else is known.
pub trait ExternalCompiler: Send + Sync {
    /// Its name: the `Compiler` attribute of its functions. A C identifier, which no other compiler has.
    fn name(&self) -> &str;

    /// Whether it takes the call of an operator by itself. It is asked of calls with known extents and with others.
    fn supports(&self, op: OpId, attrs: &Attrs, args: &[Type], result: &Type) -> bool;

    /// Several operators that it takes as one, the preferred ones first: what an earlier pattern has met, later ones leave alone.
    fn patterns(&self) -> Vec<Composite> {
        Vec::new()
    }

    /// Rules of its own, which run where its regions are chosen: forms of programs that it has more for.
    fn rules(&self) -> Option<RuleText> {
        None
    }

    /// Whether regions hold the constants that they use, so that they can be packed once. Otherwise constants of more than one
    /// element are given to each call.
    fn keeps_constants(&self) -> bool {
        false
    }

    /// Seconds that a region takes, measured or modelled, without what its call costs. `None`: nothing is known, and whoever
    /// chooses takes the cost model's word for the region's operators.
    fn cost(&self, region: &Region<'_>) -> Option<f64> {
        let _ = region;
        None
    }

    /// Seconds that a call of a region costs beyond a call of a kernel: nothing, as both are called alike.
    fn call_cost(&self) -> f64 {
        0.0
    }

    /// Seconds that it costs to bring so many bytes to a region, or back: nothing, as regions work in the program's memory.
    fn transfer_cost(&self, bytes: u64) -> f64 {
        let _ = bytes;
        0.0
    }

    /// What went wrong since it was last asked, where the answers to other questions could not say: a compiler in another process
    /// that crashed when it was asked what it supports supports nothing, and whoever asked shall tell. See [`heed`].
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Compiles a region: a function of supported calls and of calls of its composites.
    ///
    /// [`Region::refuse`] makes the error of a region that it can't compile.
    fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError>;
}

impl fmt::Debug for dyn ExternalCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "compiler `{}`", self.name())
    }
}
