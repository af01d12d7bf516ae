//! `ToMixedPrecision`: the ruleset of that name for one type of floats, under prices that prefer it.

use std::sync::Arc;

use super::{Pass, PassContext, PassSpec, Saturate, Settings, saturate::MOVING_ROUNDS};
use crate::{
    cost::Precision,
    diag::{Diagnostic, Refused, nearest},
    infer::infer_types,
    ir::{Expr, ExprId, Function, Module, Name, OpId, VarId, reachable},
    ops::{self},
    rules,
    saturate::Grade,
    tensor::DType,
};

/// Operators that stay in float32: they magnify the errors of their arguments, sum up much, or take numbers that short floats can't
/// say. All others that the rules don't name are missing from both lists.
const NEVER: &[&str] = &[
    "exp",
    "power",
    "nn.cross_entropy",
    "nn.cross_entropy_with_logits",
    "nn.softmax",
    "nn.log_softmax",
    "nn.fast_softmax",
    "nn.l2_normalize",
    "erf",
    "arange",
    "nn.global_avg_pool2d",
    "nn.adaptive_avg_pool1d",
    "nn.adaptive_avg_pool2d",
    "nn.adaptive_avg_pool3d",
    "sum",
    "mean",
    "variance",
    "nn.layer_norm",
    "nn.instance_norm",
    "nn.group_norm",
];

/// What any program may hold in any type.
const NEUTRAL: &[&str] =
    &["cast", "cast_like", "zeros", "ones", "full", "zeros_like", "ones_like", "shape_of", "argwhere"];

/// The pass. Contractions are of the wanted type, and what follows them.
pub(super) struct MixedPrecision {
    saturate: Saturate,
    dtype: DType,
    /// Whether results keep their types; else casts from the wanted type at the end of `@main` go.
    keep_results: bool,
    /// Whether operators of which nothing is said are refused.
    refuse_missing: bool,
}

const ARGUMENTS: [&str; 5] =
    ["mixed_precision_type", "missing_op_mode", "keep_orig_output_dtype", "accumulation_dtype", "ignore"];

/// Reads the arguments; as TVM's, they may come by position.
pub(super) fn make(spec: &PassSpec, settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let refuse = |m: String| Refused::from(Diagnostic::new(m).at(Some(spec.span.clone())));
    let (mut dtype, mut keep_results, mut refuse_missing) = (DType::F16, false, false);
    let (mut wide, mut ignored) = (false, Vec::new());
    for (i, arg) in spec.args.iter().enumerate() {
        let name = arg.name.as_deref().or_else(|| ARGUMENTS.get(i).copied()).unwrap_or("ignore");
        let wrong = |wanted: &str| refuse(format!("`{name}` is `{}`, but should be {wanted}", arg.value));
        match name {
            "mixed_precision_type" => {
                let known = [DType::F16, DType::BF16, DType::F64];
                let found = arg.value.parse().ok().filter(|d| known.contains(d));
                dtype = found.ok_or_else(|| wrong("float16, bfloat16 or float64"))?;
            }
            "missing_op_mode" => match arg.value.as_str() {
                "0" => refuse_missing = true,
                "1" | "2" => refuse_missing = false,
                _ => return Err(wrong("0 (operators of which nothing is said are refused), 1 or 2 (they stay)")),
            },
            "keep_orig_output_dtype" => match arg.value.to_lowercase().as_str() {
                "true" | "1" => keep_results = true,
                "false" | "0" => keep_results = false,
                _ => return Err(wrong("true or false")),
            },
            "accumulation_dtype" => match arg.value.parse() {
                Ok(DType::F32) => wide = true,
                Ok(d) if d == dtype => wide = false,
                _ => return Err(wrong("float32 or the mixed precision's type")),
            },
            "ignore" => ignored.push(ops::lookup(&arg.value).ok_or_else(|| {
                let d = Diagnostic::new(format!("there is no operator `{}`", arg.value)).at(Some(spec.span.clone()));
                match ops::suggest(&arg.value) {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d,
                }
            })?),
            other => {
                let message = format!("`{}` has no argument `{other}`; it has {}", spec.name, ARGUMENTS.join(", "));
                let d = Diagnostic::new(message).at(Some(spec.span.clone()));
                return Err(match nearest(other, ARGUMENTS) {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d,
                }
                .into());
            }
        }
    }
    let value = dtype.into();
    let of_type = |set: &rules::Definitions| set.clone().given("?t", &value).compile();
    let rulesets = definitions().map(of_type).collect();
    let mut settings = settings.clone();
    settings.cost = Arc::new(Precision { model: settings.cost, dtype, ignored });
    settings.grade = Grade::Approx;
    settings.limits.iterations = settings.limits.iterations.max(MOVING_ROUNDS);
    // The two ways to sum up exclude each other.
    settings.without.push(format!("{RULESET}/{}", if wide { "contraction" } else { "contraction-summed-wide" }).into());
    let saturate = Saturate::new(format!("ToMixedPrecision({dtype})"), rulesets, &settings);
    Ok(Box::new(MixedPrecision { saturate, dtype, keep_results, refuse_missing }))
}

const RULESET: &str = "mixed-precision";

fn definitions() -> impl Iterator<Item = &'static rules::Definitions> {
    rules::general_definitions().iter().filter(|s| s.name.as_str() == RULESET)
}

impl Pass for MixedPrecision {
    fn name(&self) -> String {
        self.saturate.name()
    }

    fn run(&self, mut module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        forget_bindings(&mut module);
        if self.refuse_missing {
            refuse_missing(&module)?;
        }
        let mut module = self.saturate.run(module, cx)?;
        if self.dtype == DType::BF16 {
            module = module.with_excess_precision();
        }
        if self.keep_results { Ok(module) } else { drop_last_casts(module, self.dtype) }
    }

    fn restricted(&self, without: &[Name], unions: u64) -> Option<Box<dyn Pass>> {
        // What is compared needs the results' types.
        self.saturate.restricted(without, unions)
    }
}

/// The types of bindings are what the pass is to change: what was written of them is forgotten. Functions that call themselves keep
/// theirs, which inference needs.
fn forget_bindings(m: &mut Module) {
    let bound: Vec<VarId> = m
        .ids()
        .filter_map(|e| match &m[e] {
            Expr::Let { var, value, .. } if !matches!(m[*value], Expr::Func(_)) => Some(*var),
            _ => None,
        })
        .collect();
    bound.into_iter().for_each(|v| m.var_mut(v).ty = None);
}

/// Refuses operators on floats of which neither the rules nor [`NEVER`] say anything.
fn refuse_missing(module: &Module) -> Result<(), Refused> {
    let named: Vec<OpId> = definitions().flat_map(|s| &s.rules).flat_map(|r| r.matches()).collect();
    let typed = infer_types(module.clone())?;
    let mut complaints = Vec::new();
    for e in reachable(&typed, typed.functions().map(|(_, f)| f)) {
        let Some((op, args, _)) = typed.op_call(e) else { continue };
        let name = op.op().name();
        let floats = |e: ExprId| typed.ty(e).flatten().is_some_and(|ts| ts.iter().any(|t| t.dtype.is_float()));
        let is_said = named.contains(&op) || NEVER.contains(&name) || NEUTRAL.contains(&name);
        if !is_said && (floats(e) || args.iter().any(|&a| floats(a))) {
            let d = Diagnostic::new(format!("nothing is said of `{name}` in mixed precision"));
            complaints.push(d.at(typed.span(e).cloned()).help("missing_op_mode=1 leaves such operators as they are"));
        }
    }
    if complaints.is_empty() { Ok(()) } else { Err(Refused(complaints)) }
}

/// Casts of `@main`'s results from the wanted type go.
fn drop_last_casts(m: Module, dtype: DType) -> Result<Module, Refused> {
    let typed = infer_types(m)?;
    let Some(f) = typed.function("main").cloned() else { return Ok(typed.into_module()) };
    let cast = ops::op("cast");
    let inner = |e: ExprId| match typed.op_call(e) {
        Some((op, &[x], _)) if op == cast && typed.ty(x).as_tensor().is_some_and(|t| t.dtype == dtype) => Some(x),
        _ => None,
    };
    let (body, fields) = match &typed[f.body] {
        Expr::Tuple(fields) => (
            None,
            fields.iter().any(|&e| inner(e).is_some()).then(|| fields.iter().map(|&e| inner(e).unwrap_or(e)).collect()),
        ),
        _ => (inner(f.body), None),
    };
    let mut out = typed.into_module();
    let body = match (body, fields) {
        (Some(body), _) => body,
        (None, Some(fields)) => out.add(Expr::Tuple(fields)),
        (None, None) => return Ok(out),
    };
    let main = out.add(Expr::Func(Box::new(Function { body, ret: None, ..f })));
    out.define("main", main);
    Ok(super::dead_code(&out))
}
