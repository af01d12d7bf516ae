//! What is known of a class: type, constness, small values; and the tables that nodes' ids point into.

use std::sync::Arc;

use egg::{Analysis, DidMerge, EGraph, Id, Language};
use hashbrown::HashMap;

use super::{
    Errors, Range, RegionId,
    fact::{Fact, What},
    kernel::KernelBody,
    likely,
    node::{AttrsId, Case, ConstId, InputId, KernelId, Node, OpaqueId, PlaceId},
    range,
    trials::{self, Trials},
    uses::Uses,
};
use crate::{
    ir::{Attrs, Dim, Name, TensorType, Type},
    ops,
    tensor::{Tensor, Value},
};

/// The e-graph of one region.
pub type Graph = EGraph<Node, Facts>;

/// Values of classes are computed up to so many elements (of each argument and of the result): enough for scalars, pad
/// widths, axes and scales, too few to cost time.
const KNOWN_VALUE_ELEMENTS: usize = 16;

/// What node ids point into. Append-only, shared by all regions of a module one after the other.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    attrs: Vec<Attrs>,
    attrs_ids: HashMap<Attrs, AttrsId>,
    consts: Vec<Tensor>,
    const_ids: HashMap<Tensor, ConstId>,
    const_ranges: HashMap<ConstId, Option<Range>>,
    const_names: HashMap<ConstId, Name>,
    inputs: Vec<Option<Type>>,
    input_names: HashMap<InputId, Name>,
    /// Types of inputs with numbers for extents that are unknown, where something is said of these.
    likely_inputs: HashMap<InputId, Type>,
    /// Types of inputs at made-up sizes, where that is known.
    trial_inputs: HashMap<InputId, Trials>,
    /// How many made-up sizes there are.
    trials: usize,
    /// Inputs that count as known before the program runs, with the range of their elements where that is known.
    known: HashMap<InputId, Option<Range>>,
    opaques: Vec<OpaqueInfo>,
    body_costs: HashMap<RegionId, f64>,
    kernels: Vec<Arc<KernelBody>>,
    kernel_ids: HashMap<Arc<KernelBody>, KernelId>,
    places: Vec<Name>,
    /// Whether programs are priced by kernels: an operator that is in none is one by itself. Otherwise they are priced by
    /// operators, of which cost models may guess that they will be fused.
    pub by_kernel: bool,
}

#[derive(Clone, Debug)]
struct OpaqueInfo {
    ty: Option<Type>,
    bodies: Vec<RegionId>,
}

impl Tables {
    /// The id of an attribute record; equal records have one.
    pub fn intern_attrs(&mut self, attrs: &Attrs) -> AttrsId {
        if let Some(&id) = self.attrs_ids.get(attrs) {
            return id;
        }
        let id = AttrsId(self.attrs.len() as u32);
        self.attrs.push(attrs.clone());
        self.attrs_ids.insert(attrs.clone(), id);
        id
    }

    /// The id of an attribute record, where it has one.
    pub fn attrs_id(&self, attrs: &Attrs) -> Option<AttrsId> {
        self.attrs_ids.get(attrs).copied()
    }

    /// The record of an id.
    pub fn attrs(&self, id: AttrsId) -> &Attrs {
        &self.attrs[id.0 as usize]
    }

    /// The id of a constant; tensors of the same bits have one. Shares the data.
    pub fn intern_const(&mut self, t: &Tensor) -> ConstId {
        if let Some(&id) = self.const_ids.get(t) {
            return id;
        }
        let id = ConstId(self.consts.len() as u32);
        self.consts.push(t.clone());
        self.const_ids.insert(t.clone(), id);
        id
    }

    /// Between which numbers a constant's elements lie, where all are finite. Found out once.
    fn range(&mut self, id: ConstId) -> Option<Range> {
        if let Some(&range) = self.const_ranges.get(&id) {
            return range;
        }
        let range = Range::of(self.constant(id));
        self.const_ranges.insert(id, range);
        range
    }

    /// The constant of an id.
    pub fn constant(&self, id: ConstId) -> &Tensor {
        &self.consts[id.0 as usize]
    }

    /// A new input of the given type; none where inference did not say.
    pub fn add_input(&mut self, ty: Option<Type>) -> InputId {
        self.inputs.push(ty);
        InputId(self.inputs.len() as u32 - 1)
    }

    /// Numbers to reckon with for an input's extents, as its type with these.
    pub(super) fn expect_input(&mut self, id: InputId, ty: Type) {
        self.likely_inputs.insert(id, ty);
    }

    /// That type, where something is said of the input.
    pub(super) fn likely_input(&self, id: InputId) -> Option<&Type> {
        self.likely_inputs.get(&id)
    }

    /// The types of an input at made-up sizes, where extents of others are known to be the same.
    pub(super) fn try_input(&mut self, id: InputId, trials: Trials) {
        self.trial_inputs.insert(id, trials);
    }

    /// How many made-up sizes there are.
    pub fn trials(&self) -> usize {
        self.trials
    }

    /// Says how many there are.
    pub(super) fn set_trials(&mut self, trials: usize) {
        self.trials = trials;
    }

    /// Those types, where something is known.
    pub(super) fn trials_of_input(&self, id: InputId) -> Option<&Trials> {
        self.trial_inputs.get(&id)
    }

    /// What an input is called where people read it.
    pub(super) fn name_input(&mut self, id: InputId, name: Name) {
        self.input_names.insert(id, name);
    }

    /// What constants are called where people read them: by their values, such as a model's parameters.
    pub fn name_constants<'n>(&mut self, names: impl IntoIterator<Item = (&'n Name, &'n Tensor)>) {
        for (name, t) in names {
            if let Some(&id) = self.const_ids.get(t) {
                self.const_names.entry(id).or_insert_with(|| name.clone());
            }
        }
    }

    /// Lets an input count as known before the program runs, though its value is not known here.
    pub(super) fn assume_known(&mut self, id: InputId, range: Option<Range>) {
        self.known.insert(id, range);
    }

    /// The type of an input.
    pub fn input(&self, id: InputId) -> Option<&Type> {
        self.inputs[id.0 as usize].as_ref()
    }

    /// A new expression that is carried through, by the type of its result and the regions that it owns.
    pub(super) fn add_opaque(&mut self, ty: Option<Type>, bodies: Vec<RegionId>) -> OpaqueId {
        self.opaques.push(OpaqueInfo { ty, bodies });
        OpaqueId(self.opaques.len() as u32 - 1)
    }

    /// The type of a carried expression's result.
    pub fn opaque(&self, id: OpaqueId) -> Option<&Type> {
        self.opaques[id.0 as usize].ty.as_ref()
    }

    /// What the regions inside a carried expression cost, each counted once.
    pub fn opaque_cost(&self, id: OpaqueId) -> f64 {
        let cost = |r: &RegionId| self.body_costs.get(r).copied().unwrap_or(0.0);
        self.opaques[id.0 as usize].bodies.iter().map(cost).sum()
    }

    /// The id of a kernel's body; equal bodies have one.
    pub fn intern_kernel(&mut self, body: KernelBody) -> KernelId {
        if let Some(&id) = self.kernel_ids.get(&body) {
            return id;
        }
        let (id, body) = (KernelId(self.kernels.len() as u32), Arc::new(body));
        self.kernels.push(body.clone());
        self.kernel_ids.insert(body, id);
        id
    }

    /// The kernel's body of an id.
    pub fn kernel(&self, id: KernelId) -> &Arc<KernelBody> {
        &self.kernels[id.0 as usize]
    }

    /// The id of an external compiler.
    pub fn intern_place(&mut self, compiler: &Name) -> PlaceId {
        let known = self.places.iter().position(|p| p == compiler);
        let at = known.unwrap_or_else(|| {
            self.places.push(compiler.clone());
            self.places.len() - 1
        });
        PlaceId(at as u32)
    }

    /// The name of an external compiler.
    pub fn place(&self, id: PlaceId) -> &Name {
        &self.places[id.0 as usize]
    }

    /// What a node is called where people read it: an operator by its name, an input by that of its variable, a constant by its own,
    /// its number or its type, a kernel by its operators', with its compiler where that is not resat.
    pub fn name_of(&self, node: &Node) -> String {
        match node.case() {
            Case::Kernel(id) => match self.kernel(id).place() {
                Some(place) => format!("{}[{}]", self.place(place).as_str(), self.kernel(id).name()),
                None => format!("kernel[{}]", self.kernel(id).name()),
            },
            Case::Input(id) if self.input_names.contains_key(&id) => format!("%{}", self.input_names[&id]),
            Case::Const(id) => match (self.const_names.get(&id), self.constant(id)) {
                (Some(name), _) => name.to_string(),
                (None, t) if t.len() == 1 && t.dtype().is_float() => format!("{:?}", t.get_f64(0) as f32),
                (None, t) if t.len() == 1 => t.get_i64(0).to_string(),
                (None, t) => format!("{}{:?}", t.dtype(), t.shape()),
            },
            Case::Enter(id) => format!("enter.{}", self.place(id).as_str()),
            Case::Leave(id) => format!("leave.{}", self.place(id).as_str()),
            _ => node.to_string(),
        }
    }

    pub(super) fn set_body_cost(&mut self, region: RegionId, cost: f64) {
        self.body_costs.insert(region, cost);
    }
}

/// Something that a rule wanted and must not have: its two sides are of different types, or its right side of none.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The rule at fault; none where equality followed from others by congruence.
    pub rule: Option<Name>,
    /// What was wrong.
    pub reason: String,
}

/// What the run that is under way may still do.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Rules stop applying at so many e-nodes.
    pub nodes: usize,
    /// Rules may make so many more unions.
    pub unions: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { nodes: usize::MAX, unions: u64::MAX }
    }
}

/// The analysis: tables, budget, and what was refused.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// What node ids point into.
    pub tables: Tables,
    /// What the run may still do.
    pub budget: Budget,
    /// Which calls of the program as written use which values.
    pub uses: Uses,
    /// What was refused so far, each (rule, reason) once, the first few.
    pub refusals: Vec<Refusal>,
    /// The rule that made the latest union.
    pub last_rule: Option<Name>,
    /// What approximate rules have brought in.
    pub errors: Errors,
}

/// So many refusals are remembered; a wrong rule would repeat itself without end.
const REFUSALS_KEPT: usize = 64;

impl Facts {
    /// Remembers a refusal.
    pub fn refuse(&mut self, rule: Option<&Name>, reason: String) {
        let refusal = Refusal { rule: rule.cloned(), reason };
        if self.refusals.len() < REFUSALS_KEPT && !self.refusals.contains(&refusal) {
            self.refusals.push(refusal);
        }
    }
}

/// Whether a rule may go on applying matches: the scheduler asks before each.
pub fn may_apply(graph: &Graph) -> bool {
    let budget = &graph.analysis.budget;
    budget.unions > 0 && graph.total_size() < budget.nodes
}

/// Whether rules look at a class as something to rewrite. What is made of constants alone is computed before the program
/// runs: other ways to compute it gain nothing, and there are endlessly many.
pub fn worth_rewriting(graph: &Graph, class: Id) -> bool {
    !graph[class].data.constant
}

/// Says that two classes are equal because of a rule, unless their types differ or the budget is spent. Gives whether
/// anything changed. A refusal is remembered in [`Facts::refusals`].
pub fn union_checked(graph: &mut Graph, a: Id, b: Id, rule: &Name) -> bool {
    let (a, b) = (graph.find(a), graph.find(b));
    if a == b || graph.analysis.budget.unions == 0 {
        return false;
    }
    let reason = match (&graph[a].data.what, &graph[b].data.what) {
        (What::Type(x), What::Type(y)) if meet(x, y).is_some() => None,
        (What::Attrs(x), What::Attrs(y)) if x == y => None,
        (What::Type(x), What::Type(y)) => Some(format!("the left side is of type {x}, the right side of type {y}")),
        (_, What::Ill(why)) => Some(format!("the right side is ill-typed: {why}")),
        (What::Ill(why), _) => Some(format!("the left side is ill-typed: {why}")),
        _ => Some("an attribute record can't equal a value or another record".to_owned()),
    };
    if let Some(reason) = reason {
        graph.analysis.refuse(Some(rule), reason);
        return false;
    }
    graph.analysis.budget.unions -= 1;
    graph.analysis.last_rule = Some(rule.clone());
    // egg asks for a reason only where explanations are on; it knows rules by symbol.
    match graph.are_explanations_enabled() {
        true => graph.union_trusted(a, b, rule.as_str()),
        false => graph.union(a, b),
    }
}

/// The more precise of two types that are equal up to unknown extents; `None` where they differ.
pub fn meet(a: &Type, b: &Type) -> Option<Type> {
    match (a, b) {
        _ if a == b => Some(a.clone()),
        (Type::Tensor(x), Type::Tensor(y)) if x.dtype == y.dtype && x.rank() == y.rank() => {
            let dims: Option<Vec<Dim>> = x.shape.iter().zip(y.shape.iter()).map(|(&p, &q)| meet_dim(p, q)).collect();
            Some(TensorType::of(dims?, x.dtype).into())
        }
        (Type::Tuple(x), Type::Tuple(y)) if x.len() == y.len() => {
            x.iter().zip(y.iter()).map(|(p, q)| meet(p, q)).collect::<Option<Vec<Type>>>().map(Type::tuple)
        }
        _ => None,
    }
}

fn meet_dim(a: Dim, b: Dim) -> Option<Dim> {
    match (a, b) {
        _ if a == b => Some(a),
        (Dim::Any, d) | (d, Dim::Any) => Some(d),
        _ => None,
    }
}

/// The fact of a node by those of its children, its value aside.
pub fn fact_of<'f>(tables: &Tables, node: &Node, fact: impl Fn(Id) -> &'f Fact) -> Fact {
    let found = known_of(tables, node, &fact);
    let likely = likely::of_node(tables, node, found.ty(), &fact);
    let trials = trials::of_node(tables, node, found.ty(), &fact);
    Fact { likely, trials, ..found }
}

/// The same without numbers for what is unknown.
fn known_of<'f>(tables: &Tables, node: &Node, fact: &impl Fn(Id) -> &'f Fact) -> Fact {
    let all_constant = || node.children().iter().all(|&c| fact(c).constant);
    let value = |ty: Type, constant: bool| Fact {
        what: What::Type(ty),
        constant,
        value: None,
        range: None,
        likely: None,
        trials: None,
    };
    match node.case() {
        Case::Attrs(id) => {
            Fact { what: What::Attrs(id), constant: true, value: None, range: None, likely: None, trials: None }
        }
        Case::Const(id) => {
            let t = tables.constant(id);
            let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
            Fact { value: Some(id), ..value(Type::tensor(&shape, t.dtype()), true) }
        }
        Case::Input(id) => {
            let known = tables.known.get(&id);
            Fact { constant: known.is_some(), range: known.copied().flatten(), ..Fact::given(tables.input(id)) }
        }
        Case::Opaque(id) => Fact::given(tables.opaque(id)),
        Case::Tuple => {
            let fields: Option<Vec<Type>> = node.children().iter().map(|&c| fact(c).ty().cloned()).collect();
            match fields {
                Some(fields) => value(Type::tuple(fields), all_constant()),
                None => Fact::ill("a field of the tuple has no type"),
            }
        }
        Case::Proj(field) => match fact(node.children()[0]).ty() {
            Some(Type::Tuple(fields)) if (field as usize) < fields.len() => {
                value(fields[field as usize].clone(), all_constant())
            }
            Some(ty) => Fact::ill(format!("there is no field {field} in a value of type {ty}")),
            None => Fact::ill("the tuple has no type"),
        },
        // What crosses into a region or out of it stays the same value.
        Case::Enter(_) | Case::Leave(_) => {
            let value = fact(node.children()[0]);
            Fact {
                what: value.what.clone(),
                constant: value.constant,
                value: None,
                range: value.range,
                likely: None,
                trials: None,
            }
        }
        Case::Kernel(id) => {
            let body = tables.kernel(id);
            let fits = |(&c, wanted): (&Id, &Type)| fact(c).ty().is_some_and(|ty| meet(ty, wanted).is_some());
            match node.len() == body.args().len() && node.children().iter().zip(body.args()).all(fits) {
                true => value(body.ty().clone(), all_constant()),
                false => Fact::ill("the arguments of a kernel are not of its types"),
            }
        }
        Case::Op(_) => match op_type(tables, node, fact) {
            Ok(ty) => value(ty, all_constant()),
            Err(why) => Fact::ill(why),
        },
    }
}

/// The type of an operator's call, by its type relation.
fn op_type<'f>(tables: &Tables, node: &Node, fact: &impl Fn(Id) -> &'f Fact) -> Result<Type, String> {
    let (op, attrs, args) = node.as_op().ok_or("an operator without an attribute record")?;
    let What::Attrs(attrs) = fact(attrs).what else {
        return Err("the first child of an operator is not an attribute record".to_owned());
    };
    let def = op.op();
    if def.inputs().len() != args.len() {
        return Err(format!("`{}` takes {} arguments, not {}", def.name(), def.inputs().len(), args.len()));
    }
    let types: Option<Vec<Type>> = args.iter().map(|&a| fact(a).ty().cloned()).collect();
    let types = types.ok_or_else(|| format!("an argument of `{}` has no type", def.name()))?;
    def.infer(tables.attrs(attrs), &types).map_err(|ops::OpError(why)| format!("`{}`: {why}", def.name()))
}

impl Analysis<Node> for Facts {
    type Data = Fact;

    fn make(graph: &mut Graph, node: &Node, _: Id) -> Fact {
        let mut fact = fact_of(&graph.analysis.tables, node, |c| &graph[c].data);
        fact.range = match node.case() {
            Case::Const(id) => graph.analysis.tables.range(id),
            Case::Op(_) if fact.constant => range::of_call(node, &fact, |c| &graph[c].data),
            _ => fact.range,
        };
        if fact.constant
            && fact.value.is_none()
            && let Some(value) = small_value(graph, node, &fact)
        {
            let id = graph.analysis.tables.intern_const(&value);
            (fact.value, fact.range) = (Some(id), graph.analysis.tables.range(id));
        }
        fact
    }

    fn merge(&mut self, a: &mut Fact, b: Fact) -> DidMerge {
        let what = match (&a.what, &b.what) {
            (x, y) if x == y => a.what.clone(),
            (What::Ill(_), other) => other.clone(),
            (other, What::Ill(_)) => other.clone(),
            (What::Type(x), What::Type(y)) => match meet(x, y) {
                Some(t) => What::Type(t),
                None => {
                    self.refuse(None, format!("equal terms are of types {x} and {y}"));
                    a.what.clone().min_of(&b.what)
                }
            },
            _ => {
                self.refuse(None, "equal terms are attribute records or values that differ".to_owned());
                a.what.clone().min_of(&b.what)
            }
        };
        // Real-grade rules may give values that differ in rounding: the older one stays.
        let value = [a.value, b.value].into_iter().flatten().min();
        // Whichever was known first, so that ranges that each other's terms narrow come to an end.
        let range = a.range.or(b.range);
        // The same of numbers for extents: what was reckoned with stays.
        let likely = a.likely.clone().or_else(|| b.likely.clone());
        let trials = match &what {
            What::Type(ty) => a.trials.clone().or_else(|| b.trials.clone()).and_then(|t| t.fitted(ty)),
            _ => None,
        };
        let merged = Fact { what, constant: a.constant || b.constant, value, range, likely, trials };
        let did = DidMerge(merged != *a, merged != b);
        *a = merged;
        did
    }
}

/// The value of an operator's call, where arguments and result are known and small.
fn small_value(graph: &Graph, node: &Node, fact: &Fact) -> Option<Tensor> {
    let small = |n: usize| n <= KNOWN_VALUE_ELEMENTS;
    let elements = fact.tensor()?.elements()?;
    small(usize::try_from(elements).ok()?).then_some(())?;
    let (op, attrs, args) = node.as_op()?;
    let What::Attrs(attrs) = graph[attrs].data.what else { return None };
    let tables = &graph.analysis.tables;
    let args: Option<Vec<Value>> = args
        .iter()
        .map(|&a| {
            let t = tables.constant(graph[a].data.value?);
            small(t.len()).then(|| t.clone().into())
        })
        .collect();
    match op.op().eval(tables.attrs(attrs), &args?) {
        Ok(Value::Tensor(t)) => Some(t),
        _ => None,
    }
}
