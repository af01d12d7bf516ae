//! The rule files that resat ships, embedded; they go through the same reader as a user's.

use std::sync::OnceLock;

use super::{Definitions, define};
use crate::saturate::Ruleset;

/// The shipped files: name and text.
pub const SHIPPED: &[(&str, &str)] = &[
    ("rules/simplify-inference.rules", include_str!("../../rules/simplify-inference.rules")),
    ("rules/algebra.rules", include_str!("../../rules/algebra.rules")),
    ("rules/shapes.rules", include_str!("../../rules/shapes.rules")),
    ("rules/qnn.rules", include_str!("../../rules/qnn.rules")),
    ("rules/fold-scale-bias.rules", include_str!("../../rules/fold-scale-bias.rules")),
    ("rules/layout.rules", include_str!("../../rules/layout.rules")),
    ("rules/merge.rules", include_str!("../../rules/merge.rules")),
];

/// The definitions of all shipped rulesets, in the order of [`SHIPPED`].
pub fn shipped_definitions() -> &'static [Definitions] {
    static ALL: OnceLock<Vec<Definitions>> = OnceLock::new();
    ALL.get_or_init(|| {
        SHIPPED
            .iter()
            .flat_map(|(name, text)| match define(name, text) {
                Ok(sets) => sets,
                Err(refused) => panic!("the shipped rules are well formed, which a test shows:\n{refused}"),
            })
            .collect()
    })
}

/// All shipped rulesets, ready to run.
pub fn shipped() -> Vec<Ruleset> {
    shipped_definitions().iter().map(Definitions::compile).collect()
}
