//! Passes under TVM's names that are rulesets: each applies wherever it can, as TVM's does, and not only where that pays.
//!
//! What makes them so is the price: calls count, whatever their size ([`Calls`]), what the pass is there to remove is dear, and
//! weights count as known before the program runs, bound or not. `Saturate(ruleset)` weighs the same rules by the cost model.

use std::sync::Arc;

use super::{Pass, PassContext, PassSpec, Saturate, Settings, fold_constant};
use crate::{
    cost::Calls,
    diag::{Diagnostic, Refused, nearest},
    dialect,
    ir::{Module, Name},
    ops::{self},
    rules,
    saturate::{Grade, Limits, Rule, Ruleset},
};

/// A pass that is rulesets.
pub(super) struct Named {
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
    /// Rulesets, or single rules as `ruleset/rule`.
    rulesets: &'static [&'static str],
    /// Operators that are to go.
    avoid: &'static [&'static str],
    /// The arguments that it takes.
    takes: Takes,
}

/// What arguments a pass takes.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Takes {
    Nothing,
    /// `min_num_branches=N`.
    Branches,
    /// That, and `to_batch=true|false`.
    BranchesToBatch,
    /// Names, which don't matter: every weight is taken.
    Names,
}

const fn pass(
    name: &'static str,
    doc: &'static str,
    rulesets: &'static [&'static str],
    avoid: &'static [&'static str],
) -> Named {
    Named { name, doc, rulesets, avoid, takes: Takes::Nothing }
}

/// What inference needs no operator for.
const TRAINING: &[&str] =
    &["nn.batch_norm", "nn.dropout", "nn.instance_norm", "nn.layer_norm", "nn.group_norm", "nn.l2_normalize"];

pub(super) const NAMED: &[Named] = &[
    pass(
        "SimplifyInference",
        "batch_norm, dropout and their like become arithmetic",
        &["simplify-inference"],
        TRAINING,
    ),
    pass(
        "SimplifyExpr",
        "algebra of elementwise operators, reshapes, transposes and casts",
        &[
            "algebra",
            "shapes",
            "concretize",
            "qnn-simplify",
            "layout-moves/drop-transform",
            "layout-moves/cancel-transforms",
            "layout-moves/merge-transforms",
            "layout-moves/join-transforms",
            "layout/transform-is-transpose",
            "layout-moves/move-through-unary",
            "convert-layout/transpose-of-transform",
            "convert-layout/transform-of-transpose",
        ],
        &[],
    ),
    pass(
        "FoldScaleAxis",
        "scales and biases move into the weights of convolutions and dense layers",
        &["fold-scale-bias"],
        &[],
    ),
    pass(
        "ForwardFoldScaleAxis",
        "scales of their inputs move into the weights of convolutions and dense layers",
        &["fold-scale-bias"],
        &[],
    ),
    pass(
        "BackwardFoldScaleAxis",
        "scales of their results move into the weights of convolutions and dense layers",
        &["fold-scale-bias"],
        &[],
    ),
    pass("EliminateCommonSubexpr", "what is computed twice is computed once", &[], &[]),
    pass("CanonicalizeOps", "bias_add becomes an add", &["simplify-inference"], &["nn.bias_add"]),
    pass("CanonicalizeCast", "casts of casts become one, and casts to the same type none", &["algebra"], &[]),
    pass(
        "FoldExplicitPadding",
        "padding by itself moves into the convolution or pool that follows",
        &["fold-padding", "qnn-simplify"],
        &["nn.pad"],
    ),
    pass(
        "FlattenAtrousConv",
        "a convolution between space_to_batch_nd and batch_to_space_nd becomes a dilated one",
        &["conv"],
        &["nn.space_to_batch_nd", "nn.batch_to_space_nd"],
    ),
    Named {
        name: "SimplifyFCTranspose",
        doc: "a dense layer of a transposed weight becomes a product with the weight as it is",
        rulesets: &["shapes"],
        avoid: &["transpose"],
        takes: Takes::Names,
    },
    Named {
        name: "CombineParallelConv2D",
        doc: "convolutions of one input become one, and slices of its result; `min_num_branches=N`, 3 where not given",
        rulesets: &["combine-conv2d"],
        avoid: &[],
        takes: Takes::Branches,
    },
    Named {
        name: "CombineParallelDense",
        doc: "dense layers of one input become one batch_matmul, or with `to_batch=false` one dense layer; `min_num_branches=N`",
        rulesets: &["combine-dense"],
        avoid: &[],
        takes: Takes::BranchesToBatch,
    },
    Named {
        name: "CombineParallelBatchMatmul",
        doc: "batch_matmuls of one input become one, and slices of its result; `min_num_branches=N`, 3 where not given",
        rulesets: &["combine-batch-matmul"],
        avoid: &[],
        takes: Takes::Branches,
    },
];

/// What the arguments of a pass say.
struct Given {
    branches: u64,
    to_batch: bool,
}

impl Named {
    pub(super) fn make(&self, spec: &PassSpec, settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
        let given = self.arguments(spec)?;
        let settings = Settings {
            cost: Arc::new(Calls::avoiding(self.avoid)),
            // Whoever names the pass asks for what it does in TVM, which asks nothing about infinities.
            grade: settings.grade.max(Grade::Finite),
            limits: Limits { weights_known: self.takes != Takes::Names, ..settings.limits.clone() },
            ..settings.clone()
        };
        let wanted: &[&str] = if given.to_batch { &["combine-dense-to-batch"] } else { self.rulesets };
        let dialects = ops::dialects();
        let mut all: Vec<Ruleset> = rules::general();
        all.extend(rules::by_request());
        all.extend(dialects.iter().flat_map(|d| dialect::legalization(d.name())));
        for set in &mut all {
            let whole = wanted.contains(&set.name.as_str());
            let named = |r: &Rule| wanted.iter().any(|w| w.contains('/') && r.is_named(w));
            set.rules.retain(|r| (whole || named(r)) && branches(r).is_none_or(|n| n >= given.branches));
        }
        all.retain(|set| !set.rules.is_empty());
        Ok(Box::new(Folded(Saturate::new(self.name, all, &settings))))
    }

    fn arguments(&self, spec: &PassSpec) -> Result<Given, Refused> {
        let refuse = |message: String| Refused::from(Diagnostic::new(message).at(Some(spec.span.clone())));
        let mut given = Given { branches: 3, to_batch: self.takes == Takes::BranchesToBatch };
        let known: &[&str] = match self.takes {
            Takes::Names => return Ok(given),
            Takes::Nothing if !spec.args.is_empty() => {
                return Err(refuse(format!("pass `{}` takes no arguments", self.name)));
            }
            Takes::Nothing => &[],
            Takes::Branches => &["min_num_branches"],
            Takes::BranchesToBatch => &["min_num_branches", "to_batch"],
        };
        for (i, arg) in spec.args.iter().enumerate() {
            let name = arg.name.as_deref().or(known.get(i).copied()).unwrap_or("");
            match (name, arg.value.to_ascii_lowercase().as_str()) {
                ("min_num_branches", value) if known.contains(&name) => {
                    given.branches =
                        value.parse().ok().filter(|n| (2..=MOST_BRANCHES).contains(n)).ok_or_else(|| {
                            let what =
                                format!("`min_num_branches` is `{}`, but should be 2 to {MOST_BRANCHES}", arg.value);
                            refuse(what)
                        })?;
                }
                ("to_batch", "true" | "1") if known.contains(&name) => given.to_batch = true,
                ("to_batch", "false" | "0") if known.contains(&name) => given.to_batch = false,
                ("to_batch", _) if known.contains(&name) => {
                    return Err(refuse(format!("`to_batch` is `{}`, but should be true or false", arg.value)));
                }
                _ => {
                    let d = Diagnostic::new(format!("pass `{}` takes {} only", self.name, known.join(" and ")))
                        .at(Some(spec.span.clone()));
                    return Err(match nearest(name, known.iter().copied()) {
                        Some(near) => d.help(format!("did you mean `{near}`?")),
                        None => d,
                    }
                    .into());
                }
            }
        }
        Ok(given)
    }
}

/// A saturation, and then what depends on constants alone computed: what rules moved into weights is no call any more.
struct Folded(Saturate);

impl Pass for Folded {
    fn name(&self) -> String {
        self.0.name()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        fold_constant(&self.0.run(module, cx)?)
    }

    fn rulesets(&self) -> Vec<Name> {
        self.0.rulesets()
    }

    fn restricted(&self, without: &[Name], unions: u64) -> Option<Box<dyn Pass>> {
        self.0.restricted(without, unions)
    }
}

/// Rules join so many branches at most.
const MOST_BRANCHES: u64 = 4;

/// How many branches a rule joins, as its name says; none where it joins no branches.
fn branches(rule: &Rule) -> Option<u64> {
    let counts = [("two-", 2), ("three-", 3), ("four-", 4)];
    counts.iter().find_map(|(prefix, n)| rule.name.strip_prefix(*prefix).map(|_| *n))
}
