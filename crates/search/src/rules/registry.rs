//! The rule files that resat ships, embedded; they go through the same reader as a user's.

use std::sync::OnceLock;

use super::{Definitions, define};
use crate::{ops, saturate::Ruleset};

/// The shipped files that are of no dialect: name and text.
pub const SHIPPED: &[(&str, &str)] = &[
    ("rules/simplify-inference.rules", include_str!("../../../../rules/simplify-inference.rules")),
    ("rules/concretize.rules", include_str!("../../../../rules/concretize.rules")),
    ("rules/algebra.rules", include_str!("../../../../rules/algebra.rules")),
    ("rules/shapes.rules", include_str!("../../../../rules/shapes.rules")),
    ("rules/fold-scale-bias.rules", include_str!("../../../../rules/fold-scale-bias.rules")),
    ("rules/layout.rules", include_str!("../../../../rules/layout.rules")),
    ("rules/convert-layout.rules", include_str!("../../../../rules/convert-layout.rules")),
    ("rules/dot-products.rules", include_str!("../../../../rules/dot-products.rules")),
    ("rules/tiles.rules", include_str!("../../../../rules/tiles.rules")),
    ("rules/quantization.rules", include_str!("../../../../rules/quantization.rules")),
    ("rules/fast-math.rules", include_str!("../../../../rules/fast-math.rules")),
    ("rules/recurrent.rules", include_str!("../../../../rules/recurrent.rules")),
    ("rules/combine-parallel.rules", include_str!("../../../../rules/combine-parallel.rules")),
    ("rules/conv.rules", include_str!("../../../../rules/conv.rules")),
    ("rules/mixed-precision.rules", include_str!("../../../../rules/mixed-precision.rules")),
    ("rules/idioms.rules", include_str!("../../../../rules/idioms.rules")),
    ("rules/taso.rules", include_str!("../../../../rules/taso.rules")),
    ("rules/fake-quantization.rules", include_str!("../../../../rules/fake-quantization.rules")),
];

/// The definitions of a text that is shipped.
fn shipped_file(name: &str, text: &str) -> Vec<Definitions> {
    match define(name, text) {
        Ok(sets) => sets,
        Err(refused) => panic!("the shipped rules are well formed, which a test shows:\n{refused}"),
    }
}

/// The definitions of the shipped rulesets that are of no dialect, in the order of [`SHIPPED`].
pub fn general_definitions() -> &'static [Definitions] {
    static ALL: OnceLock<Vec<Definitions>> = OnceLock::new();
    ALL.get_or_init(|| SHIPPED.iter().flat_map(|(name, text)| shipped_file(name, text)).collect())
}

/// The definitions of all shipped rulesets: those of no dialect, then those of the shipped dialects.
pub fn shipped_definitions() -> &'static [Definitions] {
    static ALL: OnceLock<Vec<Definitions>> = OnceLock::new();
    ALL.get_or_init(|| {
        let dialects = ops::dialects().into_iter().take(ops::shipped_dialects());
        let texts = dialects.flat_map(|d| d.rule_texts()).flat_map(|r| shipped_file(&r.file, &r.text));
        general_definitions().iter().cloned().chain(texts).collect()
    })
}

/// The shipped rulesets that are of no dialect and run where none is named, ready to run.
pub fn general() -> Vec<Ruleset> {
    general_definitions().iter().filter(|s| !s.by_request).map(Definitions::compile).collect()
}

/// The shipped rulesets that are of no dialect and run only where they are named, ready to run.
pub fn by_request() -> Vec<Ruleset> {
    let defined = general_definitions().iter().filter(|s| s.by_request).map(Definitions::compile);
    defined.chain([super::fusion()]).collect()
}

/// All shipped rulesets that run where none is named, ready to run.
pub fn shipped() -> Vec<Ruleset> {
    shipped_definitions().iter().filter(|s| !s.by_request).map(Definitions::compile).collect()
}
