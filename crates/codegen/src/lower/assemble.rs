//! A module of primitive functions as a program for the runtime: buffers, calls, and the kernels that they need.

use std::{borrow::Cow, sync::Arc};

use hashbrown::HashMap;
use rayon::prelude::*;

use super::{
    Group, Reduced, Scheduled, Tuned,
    append::{self, Kept},
    call::{CallAt, Linked, ProgramAt, estimate},
    form::Form,
    resized::{Called, Template},
    sites::{Made, Met, SizedKernel, as_view},
    worth_measuring,
};
use crate::machine::Core;
use crate::{
    cancel::Cancel,
    diag::{Diagnostic, Refused},
    infer::TypedModule,
    ir::{
        AttrValue, Expr, ExprId, Function, Module, TensorType, Type, input_names, output_names, reachable,
        reachable_outside,
    },
    loops::{Kernel, Stages},
    runtime::{BufferId, Call, Compiled, Estimate, Expected, FunctionId, Port, Program, Step},
    tensor::{DType, Shape},
};

/// The code that programs call and that is still to be made: shared by programs that are assembled together.
#[derive(Debug)]
pub struct CodeSet {
    unit: Core,
    /// The kernels, each once, named as the programs name their functions.
    pub kernels: Vec<Kernel>,
    /// What external compilers made of their functions, by the symbol that programs call: filled before programs that call them
    /// are assembled.
    pub external: Vec<(String, Compiled)>,
    /// By number of a kernel: the bytes that it works in, and pairs of an input and an output that may be the same memory.
    memory: Vec<(usize, Vec<(u32, u32)>)>,
    /// Groups that are lowered already, and the number of their kernel.
    known: HashMap<String, usize>,
    /// By digest: the number of a kernel that serves many sizes.
    sized: HashMap<u64, usize>,
    /// What was measured about reductions.
    tuned: Option<Arc<Tuned>>,
    /// By name of a kernel: the cycles of its reductions by the model; none of kernels that serve many sizes.
    cycles: HashMap<String, f64>,
    /// Kernels with something to measure.
    pub tunable: Vec<Tunable>,
    /// What the program keeps from one run to the next: pairs of numbers of an input and the output that is it the next time.
    pub state: Vec<(usize, usize)>,
    /// The calls of the program that is assembled next, in order, where its extents change from run to run.
    pub met: Option<std::vec::IntoIter<Met>>,
    /// By which somebody ends the work.
    pub cancel: Cancel,
}

/// A kernel with reductions that run in several ways.
#[derive(Debug)]
pub struct Tunable {
    /// Its number.
    pub kernel: usize,
    /// What it computes.
    pub group: Stages,
    /// Its reductions, with the candidates of each.
    pub reductions: Vec<Reduced>,
    /// By reduction: the candidate that it takes now.
    pub choices: Vec<usize>,
    /// How often a program calls it.
    pub calls: usize,
}

/// A program and how many calls it makes.
#[derive(Debug)]
pub struct Assembled {
    /// What runs.
    pub program: Program,
    /// Outputs of which only so many rows are meant as another output, one `int64`, says: pairs of their numbers. Those outputs
    /// come after all that are the result.
    pub counted: Vec<(usize, usize)>,
    /// Calls of kernels: more than there are kernels, where some are the same.
    pub calls: usize,
    /// What programs for further sizes are made of, where it keeps state and is for one of several sizes.
    pub template: Option<Template>,
}

/// A value while the program is assembled.
#[derive(Clone, Debug)]
enum Slot {
    Tensor(BufferId),
    Tuple(Vec<Slot>),
}

struct Assembler<'a> {
    typed: &'a TypedModule,
    /// The types, where those of the module are for all sizes.
    at: Option<&'a ProgramAt>,
    code: &'a mut CodeSet,
    program: Program,
    /// Buffers whose outermost extent is a bound: that bound with the other extents, and the buffer that holds the number
    /// of rows.
    counted: HashMap<BufferId, (Shape, BufferId)>,
    /// The calls that give what is kept for the next run.
    kept: Kept,
    /// By number of a kernel: the program's function.
    functions: HashMap<usize, FunctionId>,
    calls: usize,
    /// The calls with their buffers, and what was known of others, where programs for further sizes are made of this one.
    record: Vec<Called>,
    values: Vec<(ExprId, BufferId)>,
}

impl CodeSet {
    /// No code yet; kernels are going to be scheduled for these vectors.
    pub fn new(unit: Core) -> CodeSet {
        CodeSet {
            unit,
            kernels: Vec::new(),
            external: Vec::new(),
            memory: Vec::new(),
            known: HashMap::new(),
            sized: HashMap::new(),
            cycles: HashMap::new(),
            tuned: None,
            tunable: Vec::new(),
            state: Vec::new(),
            met: None,
            cancel: Cancel::default(),
        }
    }

    /// The same, where reductions run as was measured to be best.
    pub fn tuned(self, tuned: Option<Arc<Tuned>>) -> CodeSet {
        CodeSet { tuned, ..self }
    }

    /// The same without kernels: programs are going to be assembled again.
    pub fn emptied(self) -> CodeSet {
        let (kernels, memory, tunable) = (Vec::new(), Vec::new(), Vec::new());
        let (known, sized, cycles) = (HashMap::new(), HashMap::new(), HashMap::new());
        CodeSet { kernels, memory, known, sized, cycles, tunable, ..self }
    }

    /// The number of the kernel of that name.
    fn number(&self, name: &str) -> Option<usize> {
        self.kernels.iter().position(|k| k.name == name)
    }

    /// The number of a kernel, known by its name.
    fn add(&mut self, kernel: Kernel, cycles: Option<f64>) -> usize {
        self.number(&kernel.name).unwrap_or_else(|| {
            self.memory.push((kernel.workspace().1 as usize, kernel.in_place()));
            self.cycles.extend(cycles.map(|cycles| (kernel.name.clone(), cycles)));
            self.kernels.push(kernel);
            self.kernels.len() - 1
        })
    }

    /// The number of the kernel for all sizes that a call is made of, where there is one.
    pub fn sized_kernel(&self, met: &Met) -> Option<usize> {
        match &met.made {
            Made::Sized(kernel, _) => self.sized.get(&kernel.digest).copied(),
            Made::View(_) | Made::Alone => None,
        }
    }

    /// The vectors that kernels are scheduled for.
    pub fn unit(&self) -> Core {
        self.unit
    }
}

/// Whether no argument's value decides extents within a function, be it a constant's. One may even where the extents are known: a
/// list of no axes leaves a tensor as it is.
pub fn shapes_follow_from_types(m: &Module, f: ExprId) -> bool {
    let mut calls = reachable(m, [m.func(f).body]).into_iter().filter_map(|e| m.op_call(e));
    calls.all(|(op, _, attrs)| op.op().decided_by(attrs).is_empty())
}

/// Whether a function's body is a plain sequence of calls of primitive functions and of functions for external compilers on tensors
/// of known extents: what [`assemble`] takes.
pub fn is_plain(typed: &TypedModule, entry: &str) -> Result<bool, Refused> {
    is_sequence(typed, entry, &|t| t.known_shape().is_some(), &|f| shapes_follow_from_types(typed.module(), f))
}

/// The same but for extents, which may be unknown: those of a run decide all others, where values do not. What external compilers make
/// is for known ones.
pub fn is_plain_once_known(typed: &TypedModule, entry: &str) -> Result<bool, Refused> {
    let m = typed.module();
    let external = reachable(m, [typed.entry(entry)?.body]).into_iter().any(|e| match &m[e] {
        Expr::Func(f) => f.compiler().is_some(),
        Expr::Global(_) => true,
        _ => false,
    });
    Ok(!external && is_sequence(typed, entry, &|_| true, &|_| true)?)
}

/// Whether a function's body is a sequence of calls of functions on tensors, where these and the tensors' types are as asked.
fn is_sequence(
    typed: &TypedModule,
    entry: &str,
    fits: &dyn Fn(&TensorType) -> bool,
    takes: &dyn Fn(ExprId) -> bool,
) -> Result<bool, Refused> {
    let m = typed.module();
    let f = typed.entry(entry)?;
    let known = |ty: &Type| ty.flatten().is_some_and(|all| all.iter().all(fits));
    let is_kernel = |callee: ExprId| {
        let func = match &m[callee] {
            Expr::Func(_) => Some(callee),
            Expr::Global(name) => m.function_id(name),
            _ => None,
        };
        func.is_some_and(|f| (m.func(f).is_primitive() || m.func(f).compiler().is_some()) && takes(f))
    };
    let plain = |&id: &ExprId| match &m[id] {
        Expr::Var(v) => f.params.contains(v) && known(typed.var_ty(*v)),
        Expr::Constant(_) | Expr::Tuple(_) | Expr::Proj(..) => true,
        Expr::Call { callee, .. } => is_kernel(*callee) && known(typed.ty(id)),
        // Values of these are refused where they are the result, and fine where they are called.
        Expr::Func(_) | Expr::Global(_) => id != f.body && is_kernel(id),
        _ => false,
    };
    Ok(scope(typed, f.body).iter().all(plain) && f.params.iter().all(|&p| known(typed.var_ty(p))))
}

/// What each call of a kernel computes, in the order in which [`assemble`] meets them, where the program keeps `state`: pairs of numbers
/// of an input and an output.
pub fn groups(typed: &TypedModule, entry: &str, state: &[(usize, usize)]) -> Result<Vec<Group>, Refused> {
    let m = typed.module();
    let kept = append::kept(typed, entry, state);
    let mut all = Vec::new();
    for id in scope(typed, typed.entry(entry)?.body) {
        let Expr::Call { callee, .. } = &m[id] else { continue };
        let func = match &m[*callee] {
            Expr::Func(_) => Some(*callee),
            Expr::Global(name) => m.function_id(name),
            _ => None,
        };
        let func = func.map(|f| m.func(f)).filter(|f| f.is_primitive() && f.compiler().is_none());
        all.extend(func.map(|f| (id, f)));
    }
    // Functions of one form compute the same.
    let mut forms: HashMap<Form, usize> = HashMap::new();
    let mut first = |at: usize, call: ExprId, f: &Function| match kept.contains_key(&call) {
        true => at,
        false => Form::of(m, f, |p| Some(typed.var_ty(p).clone())).map_or(at, |form| *forms.entry(form).or_insert(at)),
    };
    let same: Vec<usize> = all.iter().enumerate().map(|(at, &(id, f))| first(at, id, f)).collect();
    let lowered = |at: usize| {
        let (id, f) = all[at];
        (same[at] == at).then(|| group(typed, id, f, &kept, true)).transpose()
    };
    let groups: Vec<Option<Group>> = (0..all.len()).into_par_iter().map(lowered).collect::<Result<_, _>>()?;
    Ok(same.iter().filter_map(|&at| groups[at].clone()).collect())
}

/// What a call of a function computes.
fn group(typed: &TypedModule, call: ExprId, f: &Function, kept: &Kept, all_sizes: bool) -> Result<Group, Refused> {
    let stages = super::stages_of(typed, f, all_sizes)?.stages;
    let state = kept.get(&call).and_then(|&(_, _, var)| match &typed.module()[call] {
        Expr::Call { args, .. } => append::argument(typed, args, var),
        _ => None,
    });
    Ok(append::group(stages, state))
}

/// The program of a function, whose body must be [plain](is_plain). What it calls joins `code`.
pub fn assemble(typed: &TypedModule, entry: &str, name: &str, code: &mut CodeSet) -> Result<Assembled, Refused> {
    assemble_at(typed, None, entry, name, code)
}

/// The same at one size, where the module's own extents are unknown. Its calls are known to be of [kernels](FunctionAt::met).
pub fn assemble_at(
    typed: &TypedModule,
    at: Option<&ProgramAt>,
    entry: &str,
    name: &str,
    code: &mut CodeSet,
) -> Result<Assembled, Refused> {
    let main = typed.entry(entry)?;
    let kept = append::kept(typed, entry, &code.state);
    let (program, counted, functions) = (Program::new(name), HashMap::new(), HashMap::new());
    let (record, values) = (Vec::new(), Vec::new());
    let mut a = Assembler { typed, at, code, program, counted, kept, functions, calls: 0, record, values };
    let order = at.map_or_else(|| Cow::Owned(scope(typed, main.body)), |at| Cow::Borrowed(&at.order));
    let mut slots: HashMap<ExprId, Slot> = HashMap::with_capacity(order.len());
    a.program.reserve(order.len(), at.map_or(0, |at| at.calls.len()));
    let mut params = HashMap::new();
    let own = input_names(typed.module()).filter(|_| entry == "main").unwrap_or_default();
    for (i, &p) in main.params.iter().enumerate() {
        let ty = at.and_then(|at| at.params.get(i)).unwrap_or_else(|| typed.var_ty(p)).clone();
        let name = typed.module().var(p).name.clone();
        params.insert(p, a.input(&name, own.get(i).map(String::as_str), &ty)?);
    }
    for &id in order.iter() {
        a.code.cancel.go_on()?;
        if let Some(slot) = a.expr(id, &slots, &params)? {
            slots.insert(id, slot);
        }
    }
    let mut results = Vec::new();
    flatten(&slots[&main.body], &mut results);
    let types = tensors(at.map_or_else(|| typed.ty(main.body), |at| &at.result), "the result")?;
    let names = output_names(typed.module()).filter(|names| names.len() == types.len() && entry == "main");
    let mut counts = Vec::new();
    for (i, (buffer, ty)) in results.into_iter().zip(types).enumerate() {
        let shape = match a.counted.get(&buffer) {
            Some((bound, count)) => {
                counts.push((i, *count));
                bound.clone()
            }
            None => shape_of(&ty).ok_or_else(|| unknown_extent("the result", &ty))?,
        };
        let name = names.as_ref().map_or_else(|| i.to_string(), |n| n[i].clone());
        a.program.output(Port::new(name, ty.dtype, &shape), buffer);
    }
    let mut counted = Vec::new();
    for (i, count) in counts {
        let at = a.program.outputs().len();
        a.program.output(Port::new(at.to_string(), DType::I64, &[1]), count);
        counted.push((i, at));
    }
    let records = at.filter(|_| !a.code.state.is_empty() && counted.is_empty());
    let template = records.map(|at| Template {
        program: a.program.clone(),
        order: at.order.clone(),
        values: a.values,
        calls: a.record,
    });
    Ok(Assembled { program: a.program, counted, calls: a.calls, template })
}

/// The expressions of a body, without those inside of functions.
pub fn scope(typed: &TypedModule, body: ExprId) -> Vec<ExprId> {
    reachable_outside(typed.module(), [body], |e| matches!(e, Expr::Func(_)))
}

fn shape_of(t: &TensorType) -> Option<Shape> {
    t.shape.iter().map(|d| d.known().and_then(|n| usize::try_from(n).ok())).collect()
}

fn unknown_extent(what: &str, t: &TensorType) -> Refused {
    Diagnostic::new(format!("{what} is {t}: a plain sequence of calls has extents that are known")).into()
}

fn tensors(ty: &Type, what: &str) -> Result<Vec<TensorType>, Refused> {
    ty.flatten().ok_or_else(|| {
        Diagnostic::new(format!("{what} is {ty}: compiled code takes and gives tensors and tuples of tensors")).into()
    })
}

fn flatten(slot: &Slot, out: &mut Vec<BufferId>) {
    match slot {
        Slot::Tensor(b) => out.push(*b),
        Slot::Tuple(fields) => fields.iter().for_each(|f| flatten(f, out)),
    }
}

/// The buffers of a value of that type.
fn shaped(ty: &Type, buffers: &mut impl Iterator<Item = BufferId>) -> Slot {
    match ty {
        Type::Tuple(fields) => Slot::Tuple(fields.iter().map(|f| shaped(f, buffers)).collect()),
        _ => Slot::Tensor(buffers.next().expect("kernels have a result for each tensor of their type")),
    }
}

/// A call of a kernel that is about to join a program.
struct KernelCall<'a> {
    /// The primitive function, and the module that it is in.
    function: (&'a Module, &'a Function),
    inputs: Vec<BufferId>,
    ty: &'a Type,
    met: &'a Met,
    /// What it is expected to take, but for cycles, or what tells that.
    estimate: Estimate,
    expected: Option<Arc<dyn Expected>>,
}

impl<'a> Assembler<'a> {
    /// The buffers of a parameter, which the model may have a name of its own for.
    fn input(&mut self, name: &str, own: Option<&str>, ty: &Type) -> Result<Slot, Refused> {
        match ty {
            Type::Tensor(t) => {
                let what = format!("parameter `{name}`");
                let shape = shape_of(t).ok_or_else(|| unknown_extent(&what, t))?;
                let port = Port::new(name, t.dtype, &shape);
                Ok(Slot::Tensor(self.program.input(match own {
                    Some(own) => port.called(own),
                    None => port,
                })))
            }
            Type::Tuple(fields) => {
                let field = |(i, f): (usize, &Type)| self.input(&format!("{name}.{i}"), None, f);
                Ok(Slot::Tuple(fields.iter().enumerate().map(field).collect::<Result<_, _>>()?))
            }
            _ => Err(tensors(ty, &format!("parameter `{name}`")).expect_err("neither tensor nor tuple")),
        }
    }

    fn expr(
        &mut self,
        id: ExprId,
        slots: &HashMap<ExprId, Slot>,
        params: &HashMap<crate::ir::VarId, Slot>,
    ) -> Result<Option<Slot>, Refused> {
        let m = self.typed.module();
        let refuse = |construct: &str| -> Refused {
            Diagnostic::new(format!("{construct} are not part of a plain sequence of calls"))
                .at(m.span(id).cloned())
                .into()
        };
        if let Some(known) = self.at.and_then(|at| at.values.get(&id)) {
            let buffer = self.program.constant(known.clone());
            self.values.push((id, buffer));
            return Ok(Some(Slot::Tensor(buffer)));
        }
        let slot = match &m[id] {
            Expr::Var(v) => params.get(v).cloned().ok_or_else(|| refuse("captured variables"))?,
            Expr::Constant(t) => Slot::Tensor(self.program.constant(t.clone())),
            Expr::Tuple(fields) => Slot::Tuple(fields.iter().map(|f| slots[f].clone()).collect()),
            Expr::Proj(t, i) => match &slots[t] {
                Slot::Tuple(fields) => fields[*i].clone(),
                Slot::Tensor(_) => unreachable!("inference allows projections of tuples only"),
            },
            Expr::Func(_) | Expr::Global(_) | Expr::Op(_) => return Ok(None),
            Expr::Call { callee, args, .. } => {
                let (func, symbol) = match &m[*callee] {
                    Expr::Func(_) => (*callee, None),
                    Expr::Global(name) => match m.function_id(name) {
                        Some(f) => (f, Some(name.to_string())),
                        None => return Err(refuse("calls of undefined functions")),
                    },
                    _ => return Err(refuse("calls of closures")),
                };
                let mut inputs = Vec::new();
                if let Some(call) = self.at.and_then(|at| at.calls.get(&id)) {
                    match &call.taken {
                        Some(taken) => taken.iter().for_each(|&i| flatten(&slots[&args[i]], &mut inputs)),
                        None => args.iter().for_each(|a| flatten(&slots[a], &mut inputs)),
                    }
                    return self.call_at(id, call, inputs).map(Some);
                }
                args.iter().for_each(|a| flatten(&slots[a], &mut inputs));
                let f = m.func(func);
                match (f.compiler(), f.is_primitive()) {
                    (Some(_), _) => self.call_external(id, func, symbol, inputs)?,
                    (None, true) => self.call_kernel(id, f, inputs)?,
                    _ => return Err(refuse("calls of functions that are not inlined")),
                }
            }
            _ => return Err(refuse("control flow, data types and references")),
        };
        Ok(Some(slot))
    }

    fn call_kernel(&mut self, id: ExprId, f: &Function, inputs: Vec<BufferId>) -> Result<Slot, Refused> {
        let met = self.code.met.as_mut().and_then(Iterator::next);
        let mut met = match met {
            Some(met) => met,
            None => Met { group: group(self.typed, id, f, &self.kept, false)?, made: Made::Alone },
        };
        if let (Made::Alone, Some(arg)) = (&met.made, as_view(&met.group)) {
            met.made = Made::View(arg);
        }
        let typed = self.typed;
        let estimate = estimate(typed.module(), f, &|e| typed.ty(e).clone());
        let function = (typed.module(), f);
        let call = KernelCall { function, inputs, ty: typed.ty(id), met: &met, estimate, expected: None };
        Ok(self.call(id, call, &Linked::default()))
    }

    /// The same of a function for extents at hand, of which it is known by what it is called: what needs no kernel is a view already.
    fn call_at(&mut self, id: ExprId, call: &CallAt, inputs: Vec<BufferId>) -> Result<Slot, Refused> {
        let at = &call.function;
        if !self.code.state.is_empty() {
            self.record.push(Called::new(call, inputs.clone()));
        }
        let met = at.met().ok_or_else(|| Refused::from(Diagnostic::new("a call that has no kernel")))?;
        let (estimate, expected) = (Estimate::default(), Some(at.clone() as Arc<dyn Expected>));
        let call = KernelCall { function: at.function(), inputs, ty: at.result(), met, estimate, expected };
        let slot = self.call(id, call, &at.linked);
        let count = self.program.steps().len();
        // A view makes no step.
        if let (Some(called), false) = (self.record.last_mut(), matches!(met.made, Made::View(_))) {
            called.made_by(met, &self.program, count - 1);
        }
        Ok(slot)
    }

    fn call(&mut self, id: ExprId, call: KernelCall<'_>, known: &Linked) -> Slot {
        let KernelCall { function: f, inputs, ty, met, estimate, expected } = call;
        let Met { group: Group { stages: group, after }, made } = met;
        let after = *after;
        if let Made::View(arg) = *made {
            // The same bytes in the same order: no code, no copy.
            return shaped(ty, &mut std::iter::once(inputs[arg]));
        }
        let number = match made {
            Made::Sized(kernel, _) => *known.number.get_or_init(|| self.add_sized(f, kernel)),
            _ => *known.number.get_or_init(|| self.kernel(f, group)),
        };
        let (program, kernels) = (&mut self.program, &self.code.kernels);
        let function = *self.functions.entry(number).or_insert_with(|| program.function(&kernels[number].name));
        let mut args: Vec<(BufferId, bool)> = inputs.iter().map(|&b| (b, false)).collect();
        let mut results = Vec::new();
        for &t in &group.results {
            let decl = group.decl(t);
            let shape: Shape = decl.shape.iter().map(|&n| n as usize).collect();
            let bytes = shape.iter().product::<usize>() * decl.dtype.bytes();
            let buffer = match after {
                Some(arg) => {
                    let before = self.program.bytes(inputs[arg]);
                    let whole = self.program.buffer(before + bytes);
                    args.push((self.program.part(whole, before, bytes), true));
                    whole
                }
                None => {
                    let buffer = self.program.buffer(bytes);
                    args.push((buffer, true));
                    buffer
                }
            };
            results.push((buffer, shape));
        }
        if let Made::Sized(_, member) = made {
            args.extend(member.scratch.iter().map(|&bytes| (self.program.buffer(bytes as usize), true)));
            let parameters = known.parameters.get_or_init(|| member.tensor());
            args.push((self.program.constant(parameters.clone()), false));
        }
        for &(at, count) in &group.counted {
            let (buffer, shape) = results[at].clone();
            self.counted.insert(buffer, (shape, results[count].0));
        }
        self.calls += 1;
        if let (Some(_), Some(&(output, input, _))) = (after, self.kept.get(&id)) {
            self.program.append(input, output);
        }
        let (workspace, pairs) = &self.code.memory[number];
        // A buffer that is given several times may go only where all of its readers say so.
        let gives_way = |b: BufferId, to: u32| {
            inputs.iter().enumerate().all(|(i, &other)| other != b || pairs.contains(&(i as u32, to)))
        };
        let in_place = pairs.iter().map(|&(from, to)| (inputs[from as usize], to));
        let in_place = in_place.filter(|&(b, to)| gives_way(b, to)).map(|(b, to)| (b, args[to as usize].0)).collect();
        let workspace = *workspace;
        let cycles = self.code.cycles.get(&self.code.kernels[number].name).copied().unwrap_or(0.0);
        let estimate = Estimate { cycles, ..estimate };
        self.program.step(Step::Call(Call { function, args, workspace, in_place, estimate }));
        if let Some(expected) = expected {
            self.program.expect_of(self.program.steps().len() - 1, expected);
        }
        shaped(ty, &mut results.into_iter().map(|r| r.0))
    }

    fn outputs(&mut self, ty: &Type, args: &mut Vec<(BufferId, bool)>) -> Result<Slot, Refused> {
        match ty {
            Type::Tuple(fields) => {
                let slots = fields.iter().map(|f| self.outputs(f, args)).collect::<Result<_, _>>()?;
                Ok(Slot::Tuple(slots))
            }
            _ => {
                let t = tensors(ty, "an intermediate value")?.swap_remove(0);
                let bytes = t.bytes().ok_or_else(|| unknown_extent("an intermediate value", &t))?;
                let buffer = self.program.buffer(bytes as usize);
                args.push((buffer, true));
                Ok(Slot::Tensor(buffer))
            }
        }
    }

    /// The kernel of a group: a known one where it is the same.
    fn kernel(&mut self, f: (&Module, &Function), group: &Stages) -> usize {
        let key = format!("{group:?}");
        if let Some(&known) = self.code.known.get(&key) {
            self.code.tunable.iter_mut().filter(|t| t.kernel == known).for_each(|t| t.calls += 1);
            return known;
        }
        let Scheduled { mut kernel, reductions } = super::schedule("", group, self.code.unit, &[]);
        let mut cycles = reductions.iter().map(Reduced::cycles).sum();
        let mut tunable = None;
        if let Some(tuned) = &self.code.tuned {
            let choices = tuned.choices(group, &reductions);
            if choices.iter().any(|&c| c > 0) {
                kernel = super::schedule("", group, self.code.unit, &choices).kernel;
                cycles = reductions.iter().zip(&choices).map(|(r, &c)| r.cycles_of(c)).sum();
            }
            let worth = worth_measuring(&reductions).next().is_some();
            tunable = worth.then_some((reductions, choices));
        }
        let number = self.add_kernel(f, kernel, Some(cycles));
        if let Some((reductions, choices)) = tunable {
            let group = group.clone();
            self.code.tunable.push(Tunable { kernel: number, group, reductions, choices, calls: 1 });
        }
        self.code.known.insert(key, number);
        number
    }

    /// The number of a kernel, which gets a name.
    fn add_kernel(&mut self, f: (&Module, &Function), mut kernel: Kernel, cycles: Option<f64>) -> usize {
        kernel.name = self.symbol(f, kernel.digest().0 as u64);
        self.code.add(kernel, cycles)
    }

    /// The same of a kernel that serves many sizes.
    fn add_sized(&mut self, f: (&Module, &Function), sized: &SizedKernel) -> usize {
        if let Some(&known) = self.code.sized.get(&sized.digest) {
            return known;
        }
        let name = self.symbol(f, sized.digest);
        let number = self.code.add(Kernel { name, ..sized.kernel.clone() }, None);
        self.code.sized.insert(sized.digest, number);
        number
    }

    /// Kernels are named by content: what is the same in another program has the same code, name included.
    fn symbol(&self, f: (&Module, &Function), digest: u64) -> String {
        format!("{}_{digest:016x}", describe(f))
    }

    fn call_external(
        &mut self,
        id: ExprId,
        func: ExprId,
        symbol: Option<String>,
        inputs: Vec<BufferId>,
    ) -> Result<Slot, Refused> {
        let f = self.typed.module().func(func);
        let named = match f.attrs.get("global_symbol") {
            Some(AttrValue::Str(s)) => Some(s.to_string()),
            _ => symbol,
        };
        let compiled = named.as_ref().and_then(|s| self.code.external.iter().find(|(known, _)| known == s));
        let Some((symbol, compiled)) = compiled else {
            let compiler = f.compiler().unwrap_or_default();
            let region = named.unwrap_or_else(|| "a region".into());
            let message = format!("`{region}` is for compiler `{compiler}`, which has not compiled it");
            return Err(Diagnostic::new(message).at(self.typed.module().span(id).cloned()).into());
        };
        let (function, workspace) = (self.program.function(symbol), compiled.workspace);
        let mut args: Vec<(BufferId, bool)> = inputs.into_iter().map(|b| (b, false)).collect();
        let ty = self.typed.ty(id).clone();
        let result = self.outputs(&ty, &mut args)?;
        self.program.step(Step::Call(Call {
            function,
            args,
            workspace,
            in_place: vec![],
            estimate: Estimate::default(),
        }));
        Ok(result)
    }
}

/// The operators of a function, as the beginning of a symbol's name.
fn describe((m, f): (&Module, &Function)) -> String {
    const LONGEST: usize = 60;
    let ops = reachable(m, [f.body]).into_iter().filter_map(|e| m.op_call(e));
    let mut name = ops.map(|(op, _, _)| op.op().name().replace('.', "_")).collect::<Vec<_>>().join("_");
    name.truncate(LONGEST);
    name
}
