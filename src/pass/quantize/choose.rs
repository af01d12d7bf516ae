//! Quantization as a choice per layer: what each does to the result, and the cheapest program within an error.

use super::{
    Plan,
    backend::Prepared,
    report::{LayerStudy, Point, Study},
    ruleset,
    sites::{Site, marked, switched},
};
use crate::{
    cost::Legal,
    diag::{Diagnostic, Refused},
    dialect,
    egraph::{Case, Graph, Node, What},
    extract::{Choice, DagGreedy, Extractor, Problem, within as cheapest_within},
    infer::infer_types,
    ir::{AttrValue, Module},
    ops::lookup,
    pass::{PassContext, Settings},
    rules,
    saturate::{Extracted, Limits, Report, Rule, Ruleset, optimize_observed},
    tensor::Tensor,
};

/// Attempts at a choice whose measured error is within the limit, where predictions were too low.
const ATTEMPTS: usize = 4;

/// No approximation is taken for exact, even where the samples don't show it.
const LEAST: f64 = 1e-9;

/// Points of the trade-off curve that are looked for.
const POINTS: usize = 9;

/// The samples' results, and the program that quantizes what it is asked to.
struct Probe<'a> {
    plan: &'a Plan,
    program: Box<dyn Prepared>,
    exact: Vec<Vec<Tensor>>,
}

impl<'a> Probe<'a> {
    fn new(plan: &'a Plan, settings: &Settings) -> Result<Probe<'a>, Refused> {
        if plan.runs.is_empty() {
            return Err(Diagnostic::new("errors are measured on samples, and there are none").into());
        }
        let module = switched(plan.module.module(), &plan.sites, plan.layers.len());
        let program = settings.backend.prepare(&infer_types(module)?.into_module())?;
        let mut probe = Probe { plan, program, exact: Vec::new() };
        probe.exact = probe.results(&vec![false; plan.layers.len()])?;
        Ok(probe)
    }

    fn results(&self, quantized: &[bool]) -> Result<Vec<Vec<Tensor>>, Refused> {
        let switches = Tensor::from_bools(&[quantized.len()], quantized);
        let run =
            |inputs: &Vec<Tensor>| self.program.run(&[inputs.as_slice(), std::slice::from_ref(&switches)].concat());
        self.plan.runs.iter().map(run).collect()
    }

    /// The error of the program that has these layers quantized.
    fn error(&self, quantized: &[bool]) -> Result<f64, Refused> {
        Ok(difference(&self.exact, &self.results(quantized)?))
    }

    /// The error of each layer that may be quantized, if it alone is; by layer.
    fn errors(&self) -> Result<Vec<Option<f64>>, Refused> {
        let one = |n: usize| {
            let mut quantized = vec![false; self.plan.layers.len()];
            quantized[n] = true;
            self.error(&quantized)
        };
        (0..self.plan.layers.len())
            .map(|n| if self.plan.sites.iter().any(|s| s.layer == n) { one(n).map(Some) } else { Ok(None) })
            .collect()
    }

    /// The error of a program with the same parameters and results.
    fn error_of(&self, module: &Module, settings: &Settings) -> Result<f64, Refused> {
        let program = settings.backend.prepare(module)?;
        let found = self.plan.runs.iter().map(|inputs| program.run(inputs)).collect::<Result<Vec<_>, _>>()?;
        Ok(difference(&self.exact, &found))
    }
}

/// The greatest difference of an output over all samples, as a share of the output's greatest magnitude; of several outputs the
/// greatest. What is not finite in both is no difference, in one of them an infinite one.
fn difference(exact: &[Vec<Tensor>], found: &[Vec<Tensor>]) -> f64 {
    let outputs = exact.first().map_or(0, Vec::len);
    let of_output = |k: usize| {
        let (mut magnitude, mut difference) = (0.0f64, 0.0f64);
        for (x, y) in exact.iter().zip(found) {
            for (a, b) in x[k].to_f64_vec().into_iter().zip(y[k].to_f64_vec()) {
                if a.is_finite() {
                    magnitude = magnitude.max(a.abs());
                    difference = difference.max(if b.is_finite() { (a - b).abs() } else { f64::INFINITY });
                }
            }
        }
        if difference == 0.0 { 0.0 } else { difference / magnitude.max(f64::MIN_POSITIVE) }
    };
    (0..outputs).map(of_output).fold(0.0, f64::max)
}

/// The sites with the measured errors: a layer's lies on its weight, which no other layer has, or on its first operand.
fn with_errors(sites: &[Site], errors: &[Option<f64>]) -> Vec<Site> {
    let carries = |site: &Site| {
        let of_layer = || sites.iter().filter(|s| s.layer == site.layer);
        of_layer().map(|s| s.operand).max() == Some(site.operand)
    };
    let marked = |site: &Site| Site {
        error: Some(if carries(site) { errors[site.layer].unwrap_or(0.0).max(LEAST) } else { 0.0 }),
        ..site.clone()
    };
    sites.iter().map(marked).collect()
}

/// The program with its places marked, with what each layer does to the result where there are samples to tell.
pub(super) fn marked_with_errors(plan: &Plan, settings: &Settings) -> Result<Module, Refused> {
    let sites = match plan.runs.is_empty() {
        true => plan.sites.clone(),
        false => with_errors(&plan.sites, &Probe::new(plan, settings)?.errors()?),
    };
    Ok(marked(plan.module.module(), &sites))
}

/// All rules that the choice is made by. The ruleset `fusion` is among them, so that programs are judged by their kernels.
fn rulesets(module: &Module, settings: &Settings) -> Vec<Ruleset> {
    let mut all = rules::general();
    all.extend(settings.rulesets.iter().cloned());
    all.extend(["quantization", "fake-quantization", "fusion"].map(ruleset));
    // What quantized tensors are made of is not in the program yet.
    let dialects = dialect::held_by(module).into_iter().chain(["qnn"]);
    all.extend(dialects.flat_map(dialect::legalization));
    let mut names = hashbrown::HashSet::new();
    all.retain(|s| names.insert(s.name.clone()));
    let excluded = |rule: &Rule| settings.without.iter().any(|name| rule.is_named(name));
    all.iter_mut().for_each(|set| set.rules.retain(|rule| !excluded(rule)));
    all
}

/// Saturates the program, each layer of which is a choice, and shows each of its regions that has layers.
fn saturated(
    plan: &Plan,
    errors: &[Option<f64>],
    limit: f64,
    settings: &Settings,
    look: &mut dyn FnMut(&Extracted),
) -> Result<Report, Refused> {
    let module = infer_types(marked(plan.module.module(), &with_errors(&plan.sites, errors)))?;
    let sets = rulesets(module.module(), settings);
    let model = Legal { model: settings.cost.as_ref(), all: false };
    let mut look = |x: Extracted| {
        if !layer_classes(&x.region.graph, x.problem).is_empty() {
            look(&x);
        }
    };
    let extractor = settings.extractor.as_ref();
    let limits = Limits { error: limit, ..settings.limits.clone() };
    Ok(optimize_observed(&module, &sets, &limits, &model, extractor, &settings.target, &mut look).report)
}

/// The layers of the cheapest program whose error on the samples is within the limit, each of which is quantized.
///
/// The choice is made among all forms that rules find of the program; what comes of it is the program with these layers quantized,
/// for further passes to optimize.
pub(super) fn within(
    plan: &Plan,
    limit: f64,
    settings: &Settings,
    cx: &mut PassContext,
    quantize: &dyn Fn(&[Site], &mut PassContext) -> Result<Module, Refused>,
) -> Result<Module, Refused> {
    let probe = Probe::new(plan, settings)?;
    let errors = probe.errors()?;
    let (mut chosen, mut predicted, mut failed) = (vec![false; plan.layers.len()], 0.0, None);
    let mut report = saturated(plan, &errors, limit, settings, &mut |x| {
        let mut allowed = limit;
        for _ in 0..ATTEMPTS {
            let choice = cheapest_within(x.problem, settings.extractor.as_ref(), allowed).choice;
            let mut used = vec![false; plan.layers.len()];
            for (layer, class) in layer_classes(&x.region.graph, x.problem) {
                used[layer] |= needs(x.problem, &choice, class);
            }
            match probe.error(&used) {
                Err(refused) => {
                    failed = Some(refused);
                    return;
                }
                Ok(measured) if measured > limit => {
                    // Errors add up to more than was predicted, by about this much.
                    allowed *= 0.9 * limit / measured;
                }
                Ok(_) => {
                    predicted += choice.error(x.problem).unwrap_or(0.0);
                    chosen.iter_mut().zip(used).for_each(|(all, new)| *all |= new);
                    return;
                }
            }
        }
    })?;
    if let Some(refused) = failed {
        return Err(refused);
    }
    loop {
        let sites: Vec<Site> = plan.sites.iter().filter(|s| chosen[s.layer]).cloned().collect();
        let module = if sites.is_empty() { plan.module.module().clone() } else { quantize(&sites, cx)? };
        let measured = probe.error_of(&module, settings)?;
        // Integers round at other places than floats that are quantized and back. Without layers, it is the program itself.
        let worst = (0..chosen.len())
            .filter(|&n| chosen[n])
            .max_by(|&a, &b| errors[a].unwrap_or(0.0).total_cmp(&errors[b].unwrap_or(0.0)));
        if let (true, Some(worst)) = (measured > limit, worst) {
            chosen[worst] = false;
            continue;
        }
        let names: Vec<String> = (0..chosen.len()).filter(|&n| chosen[n]).map(|n| plan.title(n)).collect();
        report.notes.push(format!(
            "quantized {} of {} layers ({}): error {measured:.3e} measured on {} samples, {predicted:.3e} predicted, {limit:.3e} allowed",
            names.len(),
            chosen.len(),
            if names.is_empty() { "none".to_owned() } else { names.join(", ") },
            plan.runs.len(),
        ));
        cx.reports.push(report);
        return Ok(module);
    }
}

impl Plan {
    /// A layer's number and name.
    fn title(&self, layer: usize) -> String {
        match self.layers[layer].names.first() {
            Some(name) => format!("{layer} {name}"),
            None => layer.to_string(),
        }
    }
}

/// The classes that a program needs if and only if it has the layer quantized: of the quantized operands that carry the layers' errors.
fn layer_classes(graph: &Graph, problem: &Problem) -> Vec<(usize, u32)> {
    let (Some(site), Some(quantize)) = (lookup("quantize.site"), lookup("qnn.quantize")) else { return Vec::new() };
    let mut found = Vec::new();
    for class in graph.classes_for_op(&Case::Op(site)).into_iter().flatten() {
        for node in graph[class].iter().filter(|n| n.case() == Case::Op(site)) {
            let Some((_, attrs, args)) = node.as_op() else { continue };
            let What::Attrs(attrs) = graph[attrs].data.what else { continue };
            let attrs = graph.analysis.tables.attrs(attrs);
            let Some(layer) = attrs.get("layer").and_then(AttrValue::as_int) else { continue };
            if attrs.float("error") <= 0.0 {
                continue;
            }
            // Records are compared by what they say: no record may have to be made to look a node up.
            let same = |n: &Node| {
                n.as_op().is_some_and(|(op, record, found)| {
                    op == quantize
                        && found.iter().map(|&c| graph.find(c)).eq(args.iter().map(|&c| graph.find(c)))
                        && matches!(graph[record].data.what, What::Attrs(r) if {
                            let record = graph.analysis.tables.attrs(r);
                            record.get("axis") == attrs.get("axis") && record.get("out_dtype") == attrs.get("out_dtype")
                        })
                })
            };
            let quantized = graph.classes_for_op(&Case::Op(quantize)).into_iter().flatten();
            let mut places = quantized.filter(|&c| graph[c].iter().any(same));
            if let Some(class) = places.next().and_then(|c| problem.class_of(graph.find(c))) {
                found.push((layer as usize, class));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn needs(problem: &Problem, choice: &Choice, class: u32) -> bool {
    choice.order(problem).is_ok_and(|order| order.contains(&class))
}

/// What quantizing each layer does, and the trade-off between cost and error.
pub(super) fn study(plan: &Plan, settings: &Settings) -> Result<Study, Refused> {
    let probe = Probe::new(plan, settings)?;
    let errors = probe.errors()?;
    let mut curve: Option<Curve> = None;
    saturated(plan, &errors, f64::INFINITY, settings, &mut |x| {
        curve = Some(Curve::new(x, settings.extractor.as_ref(), plan.layers.len(), &errors));
    })?;
    let Some(curve) = curve else {
        return Err(Diagnostic::new("no layer of the program can be quantized, or none is chosen").into());
    };
    let layers = (0..plan.layers.len())
        .map(|n| LayerStudy {
            number: n,
            name: plan.layers[n].names.first().cloned().unwrap_or_else(|| "".into()),
            op: plan.layers[n].op.op().name().into(),
            place: plan.layers[n].span.as_ref().map(ToString::to_string),
            error: errors[n],
            gain: curve.gains[n],
        })
        .collect();
    let mut points = Vec::new();
    for (cost, predicted, quantized) in curve.points {
        let measured = probe.error(&quantized)?;
        let quantized = (0..quantized.len()).filter(|&n| quantized[n]).collect();
        points.push(Point { cost, predicted, measured, quantized });
    }
    Ok(Study { model: settings.cost.name().to_owned(), cost: curve.cost, samples: plan.runs.len(), layers, points })
}

/// What extraction says of one e-graph under several limits.
struct Curve {
    /// The price of the float program.
    cost: f64,
    /// By layer: how much cheaper the program is that has it alone quantized; none for layers that can't be.
    gains: Vec<Option<f64>>,
    /// Price, predicted error, and which layers are quantized; none worse than another in both.
    points: Vec<(f64, f64, Vec<bool>)>,
}

impl Curve {
    fn new(x: &Extracted, extractor: &dyn Extractor, layers: usize, errors: &[Option<f64>]) -> Curve {
        let classes = layer_classes(&x.region.graph, x.problem);
        let layer_of = |class: u32| classes.iter().find(|c| c.1 == class).map(|c| c.0);
        let cost_with = |allowed: Option<usize>| {
            // Smaller approximations that only quantized layers make possible are part of their gain.
            let p = x.problem.repriced(|class, c| match layer_of(class) {
                Some(layer) if Some(layer) != allowed => f64::INFINITY,
                _ => c.cost,
            });
            // Often: no extractor that takes its time.
            DagGreedy::default().extract(&p).cost(x.problem).unwrap_or(f64::INFINITY)
        };
        let cost = cost_with(None);
        let gains = (0..layers)
            .map(|n| classes.iter().any(|c| c.0 == n).then(|| (cost - cost_with(Some(n))).max(0.0)))
            .collect();
        let mut known: Vec<f64> = errors.iter().copied().flatten().filter(|&e| e > 0.0).collect();
        known.sort_by(f64::total_cmp);
        let sums: Vec<f64> = known
            .iter()
            .scan(0.0, |sum, e| {
                *sum += e;
                Some(*sum)
            })
            .collect();
        // The limits: none, all, and sums of the least errors between, evenly spread.
        let mut limits = vec![0.0];
        limits.extend((1..POINTS).filter_map(|k| sums.get((k * sums.len()).div_ceil(POINTS - 1).max(1) - 1).copied()));
        limits.dedup();
        let mut points: Vec<(f64, f64, Vec<bool>)> = Vec::new();
        for limit in limits {
            // Sums of the same numbers in another order differ in the last bits.
            let choice = cheapest_within(x.problem, extractor, limit * (1.0 + 1e-9)).choice;
            if let (Ok(cost), Ok(error)) = (choice.cost(x.problem), choice.error(x.problem)) {
                let mut used = vec![false; layers];
                classes.iter().for_each(|&(layer, class)| used[layer] |= needs(x.problem, &choice, class));
                points.push((cost, error, used));
            }
        }
        points.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.total_cmp(&b.0)));
        let mut least = f64::INFINITY;
        points.retain(|p| {
            let better = p.0 < least * (1.0 - 1e-9);
            least = least.min(p.0);
            better
        });
        Curve { cost, gains, points }
    }
}
