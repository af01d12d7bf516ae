//! `FakeQuantizationToInteger`: the ruleset of that name, under prices that prefer integers.
//!
//! A quantized value's meaning is its dequantize. Scale, zero point and axis are not kept beside the program: a dequantize moves down, a
//! quantize moves up, and where they meet they are a requantize.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::{Pass, PassContext, PassSpec, Saturate, Settings, saturate::MOVING_ROUNDS};
use crate::{
    cost::Integers,
    diag::{Diagnostic, Refused, nearest},
    infer::TypedModule,
    ir::{Expr, ExprId, Module, Name, OpId, reachable},
    ops::{self},
    rules,
    saturate::{Grade, Limits, Ruleset},
};

/// The pass. Regions of floats that a quantize closes become integers, and contractions of dequantized tensors also where none
/// does.
pub(super) struct FakeQuantization {
    saturate: Saturate,
    /// Whether floats that are left between a dequantize and a quantize are refused.
    hard_fail: bool,
}

/// How many convolutions and products of quantized operands `@main` has that compute in floats, as exporters write them: both operands are given by a
/// `qnn.dequantize`.
pub fn quantized_in_floats(m: &TypedModule) -> usize {
    const CONTRACTIONS: [&str; 7] =
        ["nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv2d_transpose", "nn.dense", "nn.matmul", "nn.batch_matmul"];
    let Some(main) = m.function("main") else { return 0 };
    let dequantized = |e: ExprId| m.module().op_call(e).is_some_and(|(op, ..)| op.op().name() == "qnn.dequantize");
    let is_one = |e: &ExprId| {
        m.module().op_call(*e).is_some_and(|(op, args, _)| {
            CONTRACTIONS.contains(&op.op().name()) && args.len() >= 2 && args[..2].iter().all(|&a| dequantized(a))
        })
    };
    reachable(m.module(), [main.body]).iter().filter(|e| is_one(e)).count()
}

/// Reads `hard_fail`, `use_qat` and, as often as wanted, `optional_qnn_ops`. As TVM's, they may come by position.
pub(super) fn make(spec: &PassSpec, settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let refuse = |m: String| Refused::from(Diagnostic::new(m).at(Some(spec.span.clone())));
    let (mut hard_fail, mut optional) = (false, Vec::new());
    for (i, arg) in spec.args.iter().enumerate() {
        let name =
            arg.name.as_deref().unwrap_or(["hard_fail", "use_qat"].get(i).copied().unwrap_or("optional_qnn_ops"));
        let flag = || match arg.value.to_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            other => Err(refuse(format!("`{name}` is `{other}`, but should be true or false"))),
        };
        match name {
            "hard_fail" => hard_fail = flag()?,
            // Regions that nothing closes are rewritten either way: whether that pays is a matter of cost.
            "use_qat" => drop(flag()?),
            "optional_qnn_ops" => optional.push(arg.value.clone()),
            other => {
                let known = ["hard_fail", "use_qat", "optional_qnn_ops"];
                let d =
                    Diagnostic::new(format!("`{}` has no argument `{other}`; it has {}", spec.name, known.join(", ")));
                let d = d.at(Some(spec.span.clone()));
                return Err(match nearest(other, known) {
                    Some(near) => d.help(format!("did you mean `{near}`?")),
                    None => d,
                }
                .into());
            }
        }
    }
    let named = |name: &str| rules::by_request().into_iter().find(|set| set.name.as_str() == name);
    let always = named("fake-quantization").expect("the ruleset is shipped");
    let mut by_name = named("fake-quantization-optional").expect("the ruleset is shipped");
    let known: Vec<Name> = by_name.rules.iter().map(|r| r.name.clone()).collect();
    if let Some(other) = optional.iter().find(|o| !known.iter().any(|k| k.as_str() == o.as_str())) {
        let known = known.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
        return Err(refuse(format!("there is no optional integer form of `{other}`; there are those of {known}")));
    }
    by_name.rules.retain(|r| optional.iter().any(|o| r.name.as_str() == o.as_str()));
    Ok(Box::new(FakeQuantization { saturate: saturation(vec![always, by_name], settings), hard_fail }))
}

/// A saturation that prefers integers. That results differ by a step of their scale is what was asked for.
fn saturation(rulesets: Vec<Ruleset>, settings: &Settings) -> Saturate {
    let cost = Arc::new(Integers(settings.cost.clone()));
    let limits = Limits { iterations: settings.limits.iterations.max(MOVING_ROUNDS), ..settings.limits.clone() };
    let settings = Settings { cost, limits, grade: Grade::Approx, ..settings.clone() };
    Saturate::new("FakeQuantizationToInteger", rulesets, &settings)
}

impl Pass for FakeQuantization {
    fn name(&self) -> String {
        self.saturate.name()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let module = self.saturate.run(module, cx)?;
        if self.hard_fail {
            refuse_floats(&module)?;
        }
        Ok(module)
    }

    fn restricted(&self, without: &[Name], unions: u64) -> Option<Box<dyn Pass>> {
        self.saturate.restricted(without, unions)
    }
}

/// Refuses operators between a dequantize and a quantize: those have no integer form.
fn refuse_floats(m: &Module) -> Result<(), Refused> {
    let (quantize, dequantize) = (ops::op("qnn.quantize"), ops::op("qnn.dequantize"));
    let op_of = |e: ExprId| m.op_call(e).map(|(op, ..)| op);
    // Children come first, so that one walk up tells what a dequantize reaches without a quantize in between.
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    let mut floats: HashSet<ExprId> = HashSet::new();
    let mut wrong: HashMap<ExprId, OpId> = HashMap::new();
    for &e in &ids {
        let mut from = Vec::new();
        match &m[e] {
            Expr::Call { args, .. } if m.op_call(e).is_some() => from.extend(args.iter().copied()),
            Expr::Tuple(_) | Expr::Proj(..) => crate::ir::children(&m[e], |c| from.push(c)),
            _ => continue,
        }
        let reached = from.iter().any(|c| floats.contains(c));
        match op_of(e) {
            Some(op) if op == dequantize => drop(floats.insert(e)),
            Some(op) if op == quantize && reached => blame(m, from, &floats, dequantize, &mut wrong),
            Some(op) if op == quantize => {}
            _ if reached => drop(floats.insert(e)),
            _ => {}
        }
    }
    let mut complaints = Vec::new();
    for e in ids {
        if let Some(op) = wrong.get(&e) {
            let d = Diagnostic::new(format!(
                "`{}` has no integer form between this dequantize and quantize",
                op.op().name()
            ));
            complaints.push(d.at(m.span(e).cloned()));
        }
    }
    if complaints.is_empty() { Ok(()) } else { Err(Refused(complaints)) }
}

/// Notes the operators on the ways from dequantizes to a quantize.
fn blame(
    m: &Module,
    mut todo: Vec<ExprId>,
    floats: &HashSet<ExprId>,
    dequantize: OpId,
    wrong: &mut HashMap<ExprId, OpId>,
) {
    let mut seen: HashSet<ExprId> = HashSet::new();
    while let Some(e) = todo.pop() {
        if !floats.contains(&e) || !seen.insert(e) {
            continue;
        }
        match m.op_call(e) {
            Some((op, ..)) if op == dequantize => continue,
            Some((op, ..)) => drop(wrong.insert(e, op)),
            None => {}
        }
        crate::ir::children(&m[e], |c| todo.push(c));
    }
}
