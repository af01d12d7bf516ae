//! `ConvertLayout`: the rulesets that convert operators and move layout transforms, under prices that count transforms.
//!
//! The pass runs the same moves of transforms as the default pipeline, further rules that offer each operator in the layouts that are asked
//! for, and a cost model under which a call in another layout costs more than any transforms, and a transform more than any bytes. What
//! can't be converted is then simply the dearest part of the cheapest program. A transform moves up by inserting it and its inverse on the
//! operand: the inverse is what moves down, and cancels.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};

use super::{Pass, PassContext, PassSpec, Saturate, Settings, saturate::MOVING_ROUNDS};
use crate::{
    cost::{CostModel, Head, NodeView},
    diag::{Diagnostic, Refused, nearest},
    infer::{TypedModule, infer_types},
    ir::{AttrValue, Attrs, Copier, Expr, ExprId, Function, Module, Name, OpId, Type, VarId, reachable},
    ops::{self, AttrDefault},
    rules::{self, functions::LayoutRequest},
    saturate::{Grade, Limits, Ruleset},
    tensor::Layout,
};

/// Which operators should be in which layouts: what the pass `ConvertLayout` is made of.
///
/// ```
/// use resat::{pass::{ConvertLayout, Pass, PassContext, Settings}, relay::text, target::Target};
///
/// # fn main() -> Result<(), resat::diag::Refused> {
/// let module = text::parse_module(
///     "example.relay",
///     r#"#[version = "0.0.5"]
///     def @main(%x: Tensor[(1, 8, 6, 6), float32], %w: Tensor[(8, 8, 3, 3), float32]) {
///       %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1]);
///       %1 = nn.relu(%0);
///       nn.conv2d(%1, %w, padding=[1, 1, 1, 1])
///     }"#,
/// )?;
/// let layouts = ConvertLayout::to("NHWC")?.from("NCHW")?;
/// // Or one by one, as TVM has it: ConvertLayout::default().op("nn.conv2d", ["NHWC", "HWIO"])?
/// let settings = Settings::new(Target::host());
/// let converted = layouts.pass(&settings).run(module, &mut PassContext::default())?;
/// // One transform for the data, one for the weight that both convolutions share, one for the result.
/// assert_eq!(text::print_module(&converted).matches("layout_transform(").count(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConvertLayout {
    from: Option<Layout>,
    /// For all operators whose data has these axes.
    to: Option<Layout>,
    /// For single operators, which go first.
    single: Vec<LayoutRequest>,
    /// Calls that stay as they are, counted from 0 among those for which something is wanted.
    skipped: Vec<usize>,
}

/// `ConvertLayout(from="NHWC", to="NHWC4c", nn.conv2d="NHWC:HWIO")`: a pass from its arguments.
pub(super) fn make(spec: &PassSpec, settings: &Settings) -> Result<Box<dyn Pass>, Refused> {
    let here = |Refused(mut complaints): Refused| {
        complaints.iter_mut().filter(|d| d.span.is_none()).for_each(|d| d.span = Some(spec.span.clone()));
        Refused(complaints)
    };
    let mut layouts = ConvertLayout::default();
    for arg in &spec.args {
        layouts = match arg.name.as_deref() {
            Some("to") => ConvertLayout { to: Some(all_operators(&arg.value).map_err(here)?), ..layouts },
            Some("from") => layouts.from(&arg.value).map_err(here)?,
            Some("skip") => match arg.value.parse() {
                Ok(n) => layouts.skip(n),
                Err(_) => {
                    let d =
                        Diagnostic::new(format!("`skip` is `{}`, but should be a call's number, from 0", arg.value));
                    return Err(d.at(Some(spec.span.clone())).into());
                }
            },
            Some(op) => {
                let (data, kernel) = arg.value.split_once(':').unwrap_or((&arg.value, DEFAULT));
                layouts.op(op, [data, kernel]).map_err(here)?
            }
            None => {
                let d = Diagnostic::new(format!("`{}` has no argument `{}` without a name", spec.name, arg.value));
                let d = d.at(Some(spec.span.clone()));
                return Err(d.help("write to=\"NHWC\", or an operator: nn.conv2d=\"NHWC:HWIO\"").into());
            }
        };
    }
    if layouts.to.is_none() && layouts.from.is_some() {
        let d = Diagnostic::new(format!("`{}` says what to convert from, but not what to", spec.name));
        return Err(d.at(Some(spec.span.clone())).help("write to=\"NHWC\"").into());
    }
    Ok(layouts.pass(settings))
}

/// What TVM calls the layout that goes with another.
const DEFAULT: &str = "default";

impl ConvertLayout {
    /// All operators that have a layout of these axes should be in this layout. Refused are texts that are no layout, and axes
    /// that no operator has.
    pub fn to(layout: &str) -> Result<ConvertLayout, Refused> {
        Ok(ConvertLayout { to: Some(all_operators(layout)?), ..ConvertLayout::default() })
    }

    /// Of these only calls that are in this layout.
    pub fn from(mut self, layout: &str) -> Result<ConvertLayout, Refused> {
        self.from = Some(layout_of(layout)?);
        Ok(self)
    }

    /// Calls of an operator should have data and weight in these layouts; `default` (or nothing) for the weight is what goes
    /// with the data. Operators without a weight ignore the second.
    pub fn op(mut self, name: &str, [data, kernel]: [&str; 2]) -> Result<ConvertLayout, Refused> {
        let Some(op) = ops::lookup(name) else {
            let d = Diagnostic::new(format!("there is no operator `{name}`"));
            return Err(match ops::suggest(name) {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None => d,
            }
            .into());
        };
        let Some(usual) = usual_layout(op) else {
            let known = ops::all().into_iter().filter(|&o| usual_layout(o).is_some()).map(|o| o.op().name());
            let d = Diagnostic::new(format!("`{name}` has no layout that could be converted"));
            return Err(match nearest(name, known) {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None => d,
            }
            .into());
        };
        let data = layout_of(data)?;
        if !data.is_convertible(&usual) {
            return Err(
                Diagnostic::new(format!("`{name}` can't be in layout {data}: its axes are those of {usual}")).into()
            );
        }
        let kernel = match kernel {
            "" | DEFAULT => None,
            given => Some(layout_of(given)?),
        };
        self.single.retain(|w| w.op != name);
        self.single.push(LayoutRequest { op: name.to_owned(), from: None, data, kernel });
        Ok(self)
    }

    /// One call stays as it is: that of this number, from 0, among those for which something is wanted, in the program's order
    /// (a layer that is sensitive to its layout, say). Where calls are skipped, primitive functions become operators again.
    pub fn skip(mut self, call: usize) -> ConvertLayout {
        self.skipped.push(call);
        self
    }

    /// The pass.
    pub fn pass(&self, settings: &Settings) -> Box<dyn Pass> {
        let requests = self.requests();
        let value = AttrValue::List(requests.iter().map(LayoutRequest::value).collect());
        // Normalizations have no blocks along their axis; as arithmetic they have, where that saves transforms.
        let blocks = requests.iter().any(|w| !w.data.is_plain());
        let given = |set: &rules::Definitions| match set.name.as_str() {
            "simplify-inference" if blocks => Some(set.compile()),
            "convert-layout" => Some(set.clone().given("?requests", &value).compile()),
            "layout-moves" => Some(set.clone().given("?moving", &"any".into()).compile()),
            _ => None,
        };
        let rulesets: Vec<Ruleset> = rules::general_definitions().iter().filter_map(given).collect();
        let mut of_op: HashMap<OpId, Vec<LayoutRequest>> = HashMap::new();
        for request in requests {
            of_op.entry(ops::op(&request.op)).or_default().push(request);
        }
        let requests = Arc::new(of_op);
        let settings = Settings {
            cost: Arc::new(Transforms { requests: requests.clone() }),
            // Who asks for another layout asks for sums in another order.
            grade: settings.grade.max(Grade::Finite),
            limits: Limits { iterations: settings.limits.iterations.max(MOVING_ROUNDS), ..settings.limits.clone() },
            ..settings.clone()
        };
        let saturate = Saturate::new(self.to_string(), rulesets, &settings);
        Box::new(Conversion { saturate, requests, skipped: self.skipped.clone() })
    }

    fn requests(&self) -> Vec<LayoutRequest> {
        let mut requests = self.single.clone();
        if let Some(to) = &self.to {
            let fits = |op: &OpId| usual_layout(*op).is_some_and(|usual| usual.is_convertible(to));
            for op in ops::all().into_iter().filter(fits) {
                let op = op.op().name();
                if !self.single.iter().any(|w| w.op == op) {
                    requests.push(LayoutRequest {
                        op: op.to_owned(),
                        from: self.from.clone(),
                        data: to.clone(),
                        kernel: None,
                    });
                }
            }
        }
        requests
    }
}

impl std::fmt::Display for ConvertLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let from = self.from.iter().map(|l| format!("from={l}"));
        let to = self.to.iter().map(|l| format!("to={l}"));
        let single = self.single.iter().map(|w| match &w.kernel {
            None => format!("{}={}", w.op, w.data),
            Some(kernel) => format!("{}={}:{kernel}", w.op, w.data),
        });
        let skipped = self.skipped.iter().map(|n| format!("skip={n}"));
        write!(f, "ConvertLayout({})", from.chain(to).chain(single).chain(skipped).collect::<Vec<_>>().join(", "))
    }
}

fn layout_of(text: &str) -> Result<Layout, Refused> {
    text.parse().map_err(|e: crate::tensor::LayoutError| Diagnostic::new(e.to_string()).into())
}

/// A layout for all operators whose data has its axes.
fn all_operators(text: &str) -> Result<Layout, Refused> {
    let layout = layout_of(text)?;
    match ops::all().into_iter().any(|op| usual_layout(op).is_some_and(|usual| usual.is_convertible(&layout))) {
        true => Ok(layout),
        false => Err(Diagnostic::new(format!("no operator has a layout of the axes of {layout}")).into()),
    }
}

/// The layout of data that an operator has where none is given, where it has one.
fn usual_layout(op: OpId) -> Option<Layout> {
    let fields = op.op().attrs();
    let default = |name: &str| fields.iter().find(|f| f.name == name).map(|f| f.default);
    match default("data_layout").or(default("layout"))? {
        AttrDefault::Str(text) => text.parse().ok(),
        _ => None,
    }
}

/// The prices: first calls that are not as they should be, then transforms of what is not constant, then the bytes that they move,
/// then operators.
struct Transforms {
    requests: Arc<HashMap<OpId, Vec<LayoutRequest>>>,
}

/// A call that is not as wanted costs more than any number of transforms.
const UNMET: f64 = 1e4;
/// Ten gigabytes count as one more transform.
const BYTE: f64 = 1e-10;
const CALL: f64 = 1e-7;

impl CostModel for Transforms {
    fn name(&self) -> &str {
        "layout-transforms"
    }

    fn reported(&self, _price: f64) -> Option<f64> {
        None
    }

    fn cost(&self, node: &NodeView) -> f64 {
        match node.head {
            Head::Tuple | Head::Proj(_) => 0.0,
            Head::Carried { bodies } => CALL + bodies,
            Head::Op(op, attrs) => {
                let requests = self.requests.get(&op).map_or(&[][..], Vec::as_slice);
                let unmet = requests.iter().any(|w| w.is_met(attrs, node.args) == Some(false));
                let transform = match op.op().name() {
                    "layout_transform" | "transpose" => {
                        let bytes = node.out.flatten().map_or(0, |ts| ts.iter().filter_map(|t| t.bytes()).sum::<i64>());
                        1.0 + BYTE * bytes as f64
                    }
                    _ => 0.0,
                };
                CALL + transform + if unmet { UNMET } else { 0.0 }
            }
        }
    }
}

/// The pass.
struct Conversion {
    saturate: Saturate,
    requests: Arc<HashMap<OpId, Vec<LayoutRequest>>>,
    skipped: Vec<usize>,
}

impl Conversion {
    /// The module with skipped calls in primitive functions of their own, which no rule looks into.
    fn set_aside(&self, typed: &TypedModule) -> Module {
        let m = typed.module();
        let wanted = |e: &ExprId| m.op_call(*e).is_some_and(|(op, ..)| self.requests.contains_key(&op));
        let calls: Vec<ExprId> = reachable(m, m.functions().map(|(_, f)| f)).into_iter().filter(wanted).collect();
        let skipped: HashSet<ExprId> = self.skipped.iter().filter_map(|&n| calls.get(n).copied()).collect();
        let mut out = m.derive();
        let mut copier = Copier::new();
        for (name, f) in m.functions() {
            let new = copier.copy_with(m, f, &mut out, |to, from, copied| {
                skipped.contains(&from).then(|| in_function(typed, from, copied.clone(), to))
            });
            out.define(name.clone(), new);
        }
        out
    }

    /// What a user should know where no call is meant: then the pass does nothing.
    fn nothing_meant(&self, m: &Module) -> Option<String> {
        let mut found: BTreeSet<&str> = BTreeSet::new();
        for e in reachable(m, m.functions().map(|(_, f)| f)) {
            let Some((op, _, attrs)) = m.op_call(e) else { continue };
            let Some(requests) = self.requests.get(&op) else { continue };
            let field = |name: &str| match attrs.get(name) {
                Some(AttrValue::Str(s)) => Some(s.as_str()),
                _ => None,
            };
            let Some(data) = field("data_layout").or(field("layout")) else { continue };
            // Layouts other than those that are converted from are of no interest where one call is meant.
            let out = field("out_layout").filter(|o| !o.is_empty()).unwrap_or(data);
            let (Ok(data_layout), Ok(out)) = (data.parse(), out.parse()) else { continue };
            if requests.iter().any(|w| w.means(&w.op, &data_layout, &out)) {
                return None;
            }
            found.insert(data);
        }
        let what = match found.is_empty() {
            true => "no operator of the program has a layout that it is about".to_owned(),
            false => {
                let found = found.into_iter().collect::<Vec<_>>().join(", ");
                format!("it is about none of the program's operators, whose layouts are {found}")
            }
        };
        Some(format!("{} converts nothing: {what}", self.saturate.name()))
    }

    /// What stays as it was, as sentences.
    fn left(&self, m: &TypedModule) -> Vec<String> {
        let mut left: BTreeMap<(&str, String, bool), usize> = BTreeMap::new();
        let all = reachable(m, m.functions().map(|(_, f)| f));
        let primitive = all.iter().filter_map(|&e| match &m[e] {
            Expr::Func(f) if f.is_primitive() => Some(f.body),
            _ => None,
        });
        let aside: HashSet<ExprId> = reachable(m, primitive).into_iter().collect();
        for e in all.iter().copied() {
            // Where calls are skipped, they are in primitive functions, which come apart again.
            let fused = aside.contains(&e);
            if fused && !self.skipped.is_empty() {
                continue;
            }
            let Some((op, args, attrs)) = m.op_call(e) else { continue };
            let args: Vec<_> = args.iter().map(|&a| m.ty(a).clone()).collect();
            for request in self.requests.get(&op).into_iter().flatten() {
                if request.is_met(attrs, &args) == Some(false) {
                    *left.entry((op.op().name(), request.data.to_string(), fused)).or_default() += 1;
                }
            }
        }
        let sentence = |((op, to, fused), n): ((&str, String, bool), usize)| {
            let calls = if n == 1 { format!("a call of {op} is") } else { format!("{n} calls of {op} are") };
            match fused {
                false => format!("{calls} not converted to {to}: no call in that layout can stand for it"),
                true => {
                    format!("{calls} not converted to {to}, in primitive functions: DefuseOps makes operators of them")
                }
            }
        };
        left.into_iter().map(sentence).collect()
    }
}

impl Pass for Conversion {
    fn name(&self) -> String {
        self.saturate.name()
    }

    fn rulesets(&self) -> Vec<Name> {
        self.saturate.rulesets()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let module = match self.skipped.is_empty() {
            true => module,
            false => self.set_aside(&infer_types(module)?),
        };
        cx.warnings.extend(self.nothing_meant(&module));
        let module = infer_types(self.saturate.run(module, cx)?)?;
        let left = self.left(&module);
        if let Some(report) = cx.reports.last_mut() {
            report.notes.extend(left);
        }
        match self.skipped.is_empty() {
            true => Ok(module.into_module()),
            false => Ok(super::defuse(&module)),
        }
    }

    fn restricted(&self, without: &[Name], unions: u64) -> Option<Box<dyn Pass>> {
        match self.skipped.is_empty() {
            true => self.saturate.restricted(without, unions),
            false => None,
        }
    }
}

/// A call of a new primitive function that makes a call of an operator, whose arguments have been copied.
fn in_function(typed: &TypedModule, from: ExprId, copied: Expr, to: &mut Module) -> ExprId {
    let Expr::Call { callee, args, attrs, type_args } = copied else {
        unreachable!("calls are set aside, and copies of calls are calls")
    };
    let Some((_, old, _)) = typed.op_call(from) else { unreachable!("calls of operators are set aside") };
    let types: Vec<Type> = old.iter().map(|&a| typed.ty(a).clone()).collect();
    let params: Vec<VarId> =
        types.into_iter().enumerate().map(|(k, ty)| to.new_var(format!("p{k}"), Some(ty))).collect();
    let used: Vec<ExprId> = params.iter().map(|&p| to.add(Expr::Var(p))).collect();
    let body = to.add(Expr::Call { callee, args: used, attrs, type_args });
    let attrs = Attrs::new(vec![("Primitive".into(), AttrValue::Int(1))]);
    let func = Function { type_params: vec![], params, ret: Some(typed.ty(from).clone()), body, attrs };
    let callee = to.add(Expr::Func(Box::new(func)));
    to.add_at(Expr::Call { callee, args, attrs: Attrs::empty(), type_args: vec![] }, typed.module().span(from).cloned())
}
