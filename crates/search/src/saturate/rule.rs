//! A compiled rule, as the scheduler sees it.

use std::fmt;

use super::Rewriter;
use crate::ir::Name;

/// Rules of grade [`Grade::Real`] keep overflow but for results, and operands, within this factor of the greatest number: which
/// of two products by constants comes first is of no concern there.
pub const RIM: f64 = (1u64 << 40) as f64;

/// How equal the two sides of a rule are; from strict to loose.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Grade {
    /// Bit for bit.
    #[default]
    Exact,
    /// Over the reals, with the same special values: floats may round differently, but overflow, infinities and NaN stand in the
    /// same places, and a function has no value for the same arguments. Numbers below the least normal one may count as zero,
    /// and within [`RIM`] of overflow one side alone may overflow.
    Real,
    /// Over the reals, where all values on the way are finite: what one side makes of overflow, infinities, NaN or arguments
    /// that a function has no value for, the other need not.
    Finite,
    /// Within an error: quantization, reduced precision, fast approximations.
    Approx,
}

impl Grade {
    /// All of them, from strict to loose.
    pub const ALL: [Grade; 4] = [Grade::Exact, Grade::Real, Grade::Finite, Grade::Approx];

    /// The name, as rule files write it.
    pub fn name(self) -> &'static str {
        match self {
            Grade::Exact => "exact",
            Grade::Real => "real",
            Grade::Finite => "finite",
            Grade::Approx => "approx",
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Grade {
    type Err = String;
    fn from_str(s: &str) -> Result<Grade, String> {
        Grade::ALL
            .into_iter()
            .find(|g| g.name() == s)
            .ok_or_else(|| format!("`{s}` is no grade; grades are exact, real, finite, approx"))
    }
}

/// A rule, ready to run.
#[derive(Clone)]
pub struct Rule {
    /// The rule's name, unique in its ruleset.
    pub name: Name,
    /// The ruleset that it belongs to.
    pub ruleset: Name,
    /// How equal its sides are.
    pub grade: Grade,
    /// Whether it can grow the graph without end (commutativity, associativity): the scheduler bounds it.
    pub grows: bool,
    /// Equalities that it may teach in one round; none where only the run's own limits hold.
    pub limit: Option<u64>,
    /// Whether it forms kernels. Such rules run once the others are done, as no other rule looks at kernels, and where one is
    /// there, programs are priced by kernels.
    pub forms_kernels: bool,
    /// Its search, and what applies a match.
    pub rewrite: Rewriter,
}

impl Rule {
    /// Whether this is its name, as `ruleset/rule`.
    pub fn is_named(&self, name: &str) -> bool {
        match name.split_once('/') {
            Some((set, rule)) => set == self.ruleset.as_str() && rule == self.name.as_str(),
            None => name == self.name.as_str(),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({}{})", self.ruleset, self.name, self.grade, if self.grows { ", grows" } else { "" })
    }
}

/// Rules that serve one purpose.
#[derive(Clone, Debug)]
pub struct Ruleset {
    /// Its name, as passes and the command line use it.
    pub name: Name,
    /// Its rules, in the order in which they run.
    pub rules: Vec<Rule>,
}
