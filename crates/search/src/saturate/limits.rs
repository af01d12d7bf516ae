//! What a run may take.

use std::time::Duration;

use crate::cancel::Cancel;

/// Where saturation stops. The best program of what was found by then is always there to extract.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// E-nodes, over all rules. Overshot by what one application adds, no more.
    pub nodes: usize,
    /// Rounds in which every rule is searched and applied once.
    pub iterations: usize,
    /// Wall time. The only limit that makes results depend on the machine: set it where that does not matter, or high.
    pub time: Duration,
    /// Bytes, by an estimate per e-node.
    pub bytes: usize,
    /// Matches of one rule in one round. A rule that has more is searched again, with twice the room, in the next.
    pub matches: usize,
    /// Matches in one round of a rule that can grow the graph without end. Such rules rest once the graph is
    /// [`Limits::growth`] times its first size.
    pub growing_matches: usize,
    /// See [`Limits::growing_matches`].
    pub growth: usize,
    /// Unions that rules may make: to find, by halving, the application that breaks a program.
    pub unions: u64,
    /// The error that the program may be predicted to have, as a share of its result's largest magnitude: of approximate programs
    /// only those within it are chosen. Without a limit by default.
    pub error: f64,
    /// Whether rules look at everything in every round, also at what has not changed since the last: slower, to check that
    /// nothing is missed otherwise.
    pub everything: bool,
    /// Whether parameters that are weights by their use count as known before the program runs, as they are where it is
    /// deployed: what is computed from them alone is then free, though they are not bound yet.
    pub weights_known: bool,
    /// Whether equal blocks of a program, as the layers of a decoder are, are searched once, and what was chosen is put in place of each.
    /// Not where kernels are formed, equalities are explained, or errors are bounded.
    pub blocks: bool,
    /// Whether to keep what is needed to explain equalities; several times slower.
    pub explanations: bool,
    /// By which somebody else may end the run: rules stop, and the program stays as it was.
    pub cancel: Cancel,
    /// Whether to find out how far from the cheapest program the chosen one may be, where the extractor does not say: a bound by
    /// relaxation takes as long as some extractions.
    pub bound: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            nodes: 200_000,
            iterations: 64,
            time: Duration::from_secs(20),
            bytes: 768 << 20,
            matches: 20_000,
            growing_matches: 1_000,
            growth: 3,
            unions: u64::MAX,
            error: f64::INFINITY,
            everything: false,
            weights_known: false,
            blocks: true,
            explanations: false,
            cancel: Cancel::default(),
            bound: false,
        }
    }
}
