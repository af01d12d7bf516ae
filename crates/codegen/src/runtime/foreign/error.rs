//! How libraries that compile, and code that is tried, fail.

use std::time::Duration;

/// What a library, or code that was tried, did instead of giving an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignError {
    /// No process can be started for it.
    #[error("can't start a process for it: {0}")]
    Start(String),
    /// It took too long.
    #[error("`{entry}` gave no answer within {} s", limit.as_secs_f64())]
    NoAnswer {
        /// The function that was called.
        entry: String,
        /// How long it had.
        limit: Duration,
    },
    /// Its process ended.
    #[error("`{entry}` {fate}")]
    Died {
        /// The function that was called.
        entry: String,
        /// How the process ended.
        fate: String,
    },
    /// It refused, or what it gave makes no sense: what its process says.
    #[error("{0}")]
    Refused(String),
    /// A cost that is no number.
    #[error("`resat_compiler_cost` gives NaN")]
    CostIsNan,
    /// C that is no text.
    #[error("its C is no UTF-8 at byte {at}")]
    NoUtf8 {
        /// The first byte that is wrong.
        at: usize,
    },
    /// What was a function at first was none when it was asked for again.
    #[error("`resat_compiler_compile` gives a function only at times")]
    NoFunction,
}
