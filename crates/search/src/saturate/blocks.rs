//! Blocks of a program that are equal, as the layers of a decoder are: searched once, and the result put in place of each.
//!
//! Blocks are equal where they call the same operators with the same attributes on values of the same types, and where constants
//! whose numbers rules look at closely are the same: small ones, integers, and those that hold one number alone. Other
//! constants become parameters of a function that stands for all blocks: known before the program runs, within the range that holds all of
//! them. So a rule never sees more of a block than is true of each, and what it makes of one is right for all.
//!
//! What a block reads and what of it is read stays as it is. That costs nothing where blocks meet in a value that every rule leaves in its
//! place, but layouts pass from one operator to the next: blocks with operators that have one are searched where they stand.

use std::hash::{Hash, Hasher};

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxHasher;

use crate::{
    cost::{CostModel, Head, NodeView},
    egraph::{ModuleTrials, Range, Trials},
    infer::{TypedModule, infer_types},
    ir::{Copier, Expr, ExprId, Function, Module, Name, Type, VarId, children, reachable},
    target::Target,
    tensor::Tensor,
};

/// So many equal blocks in a row, at least, are searched once.
const FEWEST: usize = 4;

/// A block has so many expressions at least: the search of smaller ones takes no time.
const SMALLEST: usize = 12;

/// Constants of up to so many elements are compared by their numbers.
const SMALL_CONSTANT: usize = 16;

/// Families of equal blocks that are looked for in one function.
const FAMILIES: usize = 4;

/// So many of the commonest distances between expressions that start alike are tried as the length of a block.
const DISTANCES: usize = 12;

/// Expressions in a row that start alike.
const WINDOW: usize = 6;

/// The functions that stand for equal blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// By function: how many blocks it stands for.
    pub(super) functions: HashMap<Name, usize>,
    /// Parameters that are constants in every block, with the range of all of these.
    pub(super) known: HashMap<VarId, Option<Range>>,
    /// Parameters of which some extent is unknown, at made-up sizes.
    pub(super) trials: HashMap<VarId, Trials>,
}

/// The module with a function for each family of equal blocks, and calls of it; none where there are no such blocks.
/// `weights` are variables that count as known.
pub(super) fn outline(
    typed: &TypedModule,
    weights: &HashSet<VarId>,
    trials: &ModuleTrials,
) -> Option<(TypedModule, Blocks)> {
    let m = typed.module();
    let (mut to, mut blocks) = (m.derive(), Blocks::default());
    let mut done = Vec::new();
    for (name, func) in m.functions() {
        let found = Flow::of(typed, func).map(|flow| (flow.families(), flow)).filter(|(f, _)| !f.is_empty());
        done.push((
            name.clone(),
            match found {
                Some((families, flow)) => flow.outlined(func, &families, (weights, trials), &mut to, &mut blocks),
                None => Copier::new().copy(m, func, &mut to),
            },
        ));
    }
    if blocks.functions.is_empty() {
        return None;
    }
    done.into_iter().for_each(|(name, func)| to.define(name, func));
    let outlined = infer_types(to).ok()?;
    // Inference may know less of extents that are found while running where it does not see from where they come.
    let same = m.functions().all(|(name, _)| outlined.result_type(name.as_str()) == typed.result_type(name.as_str()));
    same.then_some((outlined, blocks))
}

impl Blocks {
    /// What the calls of the functions cost by themselves, all together.
    pub(super) fn price_of_calls(&self, m: &TypedModule, model: &dyn CostModel, target: &Target) -> f64 {
        let price = |(name, &times): (&Name, &usize)| {
            let args: Vec<Type> = m.param_types(name.as_str()).into_iter().cloned().collect();
            let known = m.function(name.as_str()).map_or(&[][..], |f| &f.params);
            let constant: Vec<bool> = known.iter().map(|v| self.known.contains_key(v)).collect();
            let (head, out) = (Head::Carried { bodies: 0.0 }, m.result_type(name.as_str()));
            times as f64 * model.cost(&NodeView { head, args: &args, constant: &constant, out, target })
        };
        self.functions.iter().map(price).sum()
    }

    /// The module with what the functions have become in place of their calls, and without these functions.
    pub(super) fn inline(&self, m: &Module) -> Module {
        let mut to = m.derive();
        let mut done = Vec::new();
        for (name, func) in m.functions().filter(|(name, _)| !self.functions.contains_key(*name)) {
            let mut inlined: HashSet<ExprId> = HashSet::new();
            let func = Copier::new().copy_with(m, func, &mut to, |to, _, expr| match expr {
                Expr::Call { callee, args, .. } => {
                    let function = match &to[*callee] {
                        Expr::Global(name) if self.functions.contains_key(name) => m.function(name.as_str())?,
                        _ => return None,
                    };
                    let body = copy_body(m, function, args, to);
                    inlined.insert(body);
                    Some(body)
                }
                Expr::Proj(of, field) if inlined.contains(of) => match &to[*of] {
                    Expr::Tuple(fields) => fields.get(*field).copied(),
                    _ => None,
                },
                _ => None,
            });
            done.push((name.clone(), func));
        }
        done.into_iter().for_each(|(name, func)| to.define(name, func));
        to
    }
}

/// The body of a function of another module over these arguments.
fn copy_body(m: &Module, f: &Function, args: &[ExprId], to: &mut Module) -> ExprId {
    let mut copier = Copier::new();
    let params: HashMap<VarId, ExprId> = f.params.iter().copied().zip(args.iter().copied()).collect();
    for e in reachable(m, [f.body]) {
        if let Expr::Var(v) = m[e]
            && let Some(&arg) = params.get(&v)
        {
            copier.replace(e, arg);
        }
    }
    copier.copy(m, f.body, to)
}

/// A function that is plain dataflow: each value once, in the order in which they are asked for.
struct Flow<'a> {
    typed: &'a TypedModule,
    /// Calls, tuples and projections, children first; no two are equal.
    order: Vec<ExprId>,
    /// By place in the order: what the expression there reads, each as it is first.
    reads: Vec<Vec<ExprId>>,
    /// By expression: the first one that is equal.
    first: HashMap<ExprId, ExprId>,
    /// By place in the order: what the expressions at two places have in common where the search can't tell them apart.
    labels: Vec<u64>,
    /// By expression of the order: its place.
    places: HashMap<ExprId, usize>,
    /// By place: the place of its last use.
    last_use: Vec<usize>,
    /// By place: values that are made before it and used there or later.
    passing: Vec<usize>,
}

/// Equal blocks one after the other.
#[derive(Copy, Clone, Debug)]
struct Family {
    /// Where the first one begins.
    start: usize,
    /// Expressions of each.
    length: usize,
    /// How many there are.
    times: usize,
}

impl Family {
    fn end(&self) -> usize {
        self.start + self.length * self.times
    }
}

impl<'a> Flow<'a> {
    /// None where the function does something else than to compute.
    fn of(typed: &'a TypedModule, func: ExprId) -> Option<Flow<'a>> {
        let m = typed.module();
        let f = m.func(func);
        if f.is_primitive() || f.compiler().is_some() || f.attrs.get("Composite").is_some() {
            return None;
        }
        let mut flow = Flow {
            typed,
            order: Vec::new(),
            reads: Vec::new(),
            first: HashMap::new(),
            labels: Vec::new(),
            places: HashMap::new(),
            last_use: Vec::new(),
            passing: Vec::new(),
        };
        let mut known: HashMap<u64, Vec<ExprId>> = HashMap::new();
        let mut stack = vec![(f.body, false)];
        while let Some((id, ready)) = stack.pop() {
            if flow.first.contains_key(&id) {
                continue;
            }
            let plain = match &m[id] {
                Expr::Call { .. } => m.op_call(id).is_some(),
                e => matches!(e, Expr::Var(_) | Expr::Constant(_) | Expr::Op(_) | Expr::Tuple(_) | Expr::Proj(..)),
            };
            if !plain {
                return None;
            }
            if !ready {
                stack.push((id, true));
                let from = stack.len();
                children(&m[id], |c| stack.push((c, false)));
                stack[from..].reverse();
                continue;
            }
            flow.add(id, &mut known);
        }
        flow.last_use = (0..flow.order.len()).collect();
        for (at, reads) in flow.reads.iter().enumerate() {
            for c in reads {
                if let Some(&place) = flow.places.get(c) {
                    flow.last_use[place] = at;
                }
            }
        }
        if let Some(&place) = flow.places.get(&flow.first[&f.body]) {
            flow.last_use[place] = flow.order.len();
        }
        let mut ends = vec![0; flow.order.len() + 1];
        flow.last_use.iter().for_each(|&last| ends[last] += 1);
        let mut passing = 0;
        for ended in ends {
            flow.passing.push(passing);
            passing = passing + 1 - ended;
        }
        Some(flow)
    }

    /// Adds an expression whose children are there.
    fn add(&mut self, id: ExprId, known: &mut HashMap<u64, Vec<ExprId>>) {
        let m = self.typed.module();
        let (args, mut hash) = (self.args(id), FxHasher::default());
        std::mem::discriminant(&m[id]).hash(&mut hash);
        args.hash(&mut hash);
        let mut label = FxHasher::default();
        std::mem::discriminant(&m[id]).hash(&mut label);
        match &m[id] {
            Expr::Call { attrs, .. } => {
                let op = m.op_call(id).map(|(op, ..)| op);
                (op, attrs).hash(&mut hash);
                (op, attrs).hash(&mut label);
            }
            Expr::Proj(_, field) => {
                field.hash(&mut hash);
                field.hash(&mut label);
            }
            Expr::Var(v) => v.hash(&mut hash),
            Expr::Constant(t) => t.hash(&mut hash),
            Expr::Op(op) => op.hash(&mut hash),
            _ => {}
        }
        let same = known.entry(hash.finish()).or_default();
        let equal = |&&e: &&ExprId| self.args(e) == args && alike(m, e, id);
        if let Some(&e) = same.iter().find(equal) {
            self.first.insert(id, e);
            return;
        }
        same.push(id);
        self.first.insert(id, id);
        if matches!(m[id], Expr::Var(_) | Expr::Constant(_) | Expr::Op(_)) {
            return;
        }
        self.typed.ty(id).hash(&mut label);
        for &arg in &args {
            self.typed.ty(arg).hash(&mut label);
            match &m[arg] {
                Expr::Constant(t) if by_number(t) => t.hash(&mut label),
                e => matches!(e, Expr::Constant(_)).hash(&mut label),
            }
        }
        self.places.insert(id, self.order.len());
        self.order.push(id);
        self.reads.push(args);
        self.labels.push(label.finish());
    }

    /// What an expression reads, operators as callees aside, each as it is first.
    fn args(&self, id: ExprId) -> Vec<ExprId> {
        let m = self.typed.module();
        let mut args = Vec::new();
        children(&m[id], |c| {
            if !matches!(m[c], Expr::Op(_)) {
                args.push(self.first.get(&c).copied().unwrap_or(c));
            }
        });
        args
    }

    /// The families of equal blocks that save most, none of which overlap.
    fn families(&self) -> Vec<Family> {
        let mut labels = self.labels.clone();
        let mut found: Vec<Family> = Vec::new();
        while found.len() < FAMILIES {
            let Some(family) = self.family(&labels) else { break };
            // What was found is equal to nothing from now on.
            for (at, label) in labels.iter_mut().enumerate().take(family.end()).skip(family.start) {
                *label = at as u64;
            }
            found.push(family);
        }
        found.sort_by_key(|f| f.start);
        found
    }

    fn family(&self, labels: &[u64]) -> Option<Family> {
        let mut distances: HashMap<usize, usize> = HashMap::new();
        let mut before: HashMap<&[u64], usize> = HashMap::new();
        for (at, window) in labels.windows(WINDOW).enumerate() {
            if let Some(was) = before.insert(window, at) {
                *distances.entry(at - was).or_default() += 1;
            }
        }
        let mut distances: Vec<(usize, usize)> = distances.into_iter().filter(|d| d.0 >= SMALLEST).collect();
        distances.sort_by_key(|&(distance, often)| (std::cmp::Reverse(often), distance));
        let mut runs: Vec<(usize, usize, usize)> = distances
            .iter()
            .take(DISTANCES)
            .flat_map(|&(length, _)| {
                let alike = |at: &usize| labels[*at] == labels[*at + length];
                let mut runs = Vec::new();
                let mut at = 0;
                while at + length < labels.len() {
                    let run = (at..labels.len() - length).take_while(alike).count();
                    if run >= length * (FEWEST - 1) {
                        runs.push((at, run, length));
                    }
                    at += run + 1;
                }
                runs
            })
            .collect();
        // What repeats itself after a block does so after two.
        runs.sort_by_key(|&(start, run, length)| (std::cmp::Reverse(run), length, start));
        runs.into_iter().find_map(|(start, run, length)| self.cut(start, run, length))
    }

    /// Where to cut what repeats itself after `length`, from `start` on for `run` expressions: where fewest values pass.
    fn cut(&self, start: usize, run: usize, length: usize) -> Option<Family> {
        let middle = start + run / length / 2 * length;
        let mut offsets: Vec<(usize, usize)> =
            (0..length).map(|offset| (self.passing[middle + offset], offset)).collect();
        offsets.sort_unstable();
        let families = offsets.iter().take(4).filter_map(|&(_, offset)| {
            // So many blocks begin in the run, or at its end.
            let times = (start + run + length - (start + offset)) / length;
            self.equal(Family { start: start + offset, length, times })
        });
        families.max_by_key(|f| f.times).filter(|f| f.times >= FEWEST && !self.has_layouts(f))
    }

    /// The longest row of blocks that read the same of what they compute themselves.
    fn equal(&self, all: Family) -> Option<Family> {
        let model = all.start + all.times / 2 * all.length;
        let same = |block: usize| {
            (0..all.length).all(|at| {
                let own = |start: usize| {
                    let place = move |arg: ExprId| self.places.get(&arg).filter(|&&p| p >= start).map(|p| p - start);
                    self.reads[start + at].iter().map(move |arg| place(*arg))
                };
                self.looks_the_same(block + at, model + at) && own(block).eq(own(model))
            })
        };
        let blocks: Vec<usize> = (0..all.times).map(|i| all.start + i * all.length).collect();
        let before = blocks.iter().filter(|&&b| b < model).rev().take_while(|&&b| same(b)).count();
        let after = blocks.iter().filter(|&&b| b > model).take_while(|&&b| same(b)).count();
        let times = before + 1 + after;
        (times >= FEWEST).then_some(Family { start: model - before * all.length, times, ..all })
    }

    /// Whether the expressions at two places are the same to all rules, as far as they are looked at by themselves.
    fn looks_the_same(&self, a: usize, b: usize) -> bool {
        let m = self.typed.module();
        let same_type = |x: ExprId, y: ExprId| self.typed.ty(x) == self.typed.ty(y);
        let argument = |(&x, &y): (&ExprId, &ExprId)| {
            let constants = match (constant(m, x), constant(m, y)) {
                (Some(s), Some(t)) => s == t || !by_number(s) && !by_number(t),
                (s, t) => s.is_none() && t.is_none(),
            };
            constants && same_type(x, y)
        };
        let (x, y) = (self.order[a], self.order[b]);
        let (reads, others) = (&self.reads[a], &self.reads[b]);
        self.labels[a] == self.labels[b]
            && alike(m, x, y)
            && same_type(x, y)
            && reads.len() == others.len()
            && reads.iter().zip(others).all(argument)
    }

    /// Whether operators of a block have a layout, which the neighbours' choice depends on.
    fn has_layouts(&self, family: &Family) -> bool {
        let m = self.typed.module();
        let block = &self.order[family.start..family.start + family.length];
        block
            .iter()
            .filter_map(|&e| m.op_call(e))
            .any(|(_, _, attrs)| ["data_layout", "layout", "src_layout"].iter().any(|field| attrs.get(field).is_some()))
    }

    /// The function with calls in place of blocks.
    fn outlined(
        &self,
        func: ExprId,
        families: &[Family],
        known: (&HashSet<VarId>, &ModuleTrials),
        to: &mut Module,
        blocks: &mut Blocks,
    ) -> ExprId {
        let m = self.typed.module();
        let mut copied: HashMap<ExprId, ExprId> = HashMap::new();
        let mut at = 0;
        let mut families = families.iter().peekable();
        while at < self.order.len() {
            match families.next_if(|f| f.start == at) {
                Some(family) => {
                    self.calls(family, known, &mut copied, to, blocks);
                    at = family.end();
                }
                None => {
                    self.copy(self.order[at], &mut copied, to);
                    at += 1;
                }
            }
        }
        let f = m.func(func);
        let body = self.copy(self.first[&f.body], &mut copied, to);
        to.add_at(Expr::Func(Box::new(Function { body, ..f.clone() })), m.span(func).cloned())
    }

    /// Copies an expression of which all parts but constants and variables have been copied.
    fn copy(&self, id: ExprId, copied: &mut HashMap<ExprId, ExprId>, to: &mut Module) -> ExprId {
        if let Some(&new) = copied.get(&id) {
            return new;
        }
        let m = self.typed.module();
        let expr = crate::ir::map_children(&m[id], |c| {
            let c = self.first[&c];
            *copied.entry(c).or_insert_with(|| to.add_at(m[c].clone(), m.span(c).cloned()))
        });
        let new = to.add_at(expr, m.span(id).cloned());
        copied.insert(id, new);
        new
    }

    /// Adds a function for a family, and calls of it.
    fn calls(
        &self,
        family: &Family,
        (weights, trials): (&HashSet<VarId>, &ModuleTrials),
        copied: &mut HashMap<ExprId, ExprId>,
        to: &mut Module,
        blocks: &mut Blocks,
    ) {
        let m = self.typed.module();
        let starts: Vec<usize> = (0..family.times).map(|i| family.start + i * family.length).collect();
        // What the blocks read from elsewhere, by block, each once; and where the first block reads it.
        let mut outer: Vec<Vec<ExprId>> = Vec::new();
        let mut slots: HashMap<(usize, usize), usize> = HashMap::new();
        for at in 0..family.length {
            for (k, arg) in self.reads[family.start + at].iter().enumerate() {
                if self.places.get(arg).is_some_and(|&p| p >= family.start) {
                    continue;
                }
                let read: Vec<ExprId> = starts.iter().map(|s| self.reads[s + at][k]).collect();
                let slot = outer.iter().position(|known| *known == read).unwrap_or_else(|| {
                    outer.push(read);
                    outer.len() - 1
                });
                slots.insert((at, k), slot);
            }
        }
        let results: Vec<usize> =
            (0..family.length).filter(|at| starts.iter().any(|s| self.last_use[s + at] >= s + family.length)).collect();
        // The function: the first block over parameters, but for constants that are the same in all blocks.
        let mut params: Vec<(usize, VarId)> = Vec::new();
        let mut inside: HashMap<usize, ExprId> = HashMap::new();
        for (slot, read) in outer.iter().enumerate() {
            let constants: Vec<&Tensor> = read.iter().filter_map(|&e| constant(m, e)).collect();
            if constants.len() == read.len() && read.iter().all(|e| e == &read[0]) {
                inside.insert(slot, to.add_at(m[read[0]].clone(), m.span(read[0]).cloned()));
                continue;
            }
            let var = to.new_var(format!("b{}", params.len()), Some(self.typed.ty(read[0]).clone()));
            if constants.len() == read.len() {
                let ranges: Option<Vec<Range>> = constants.iter().map(|t| Range::of(t)).collect();
                blocks.known.insert(var, ranges.and_then(|r| r.into_iter().reduce(Range::join)));
            } else if read.iter().all(|&e| matches!(&m[e], Expr::Var(v) if weights.contains(v))) {
                blocks.known.insert(var, None);
            }
            let at_sizes: Option<Vec<&Trials>> = read.iter().map(|&e| trials.expr(e)).collect();
            if let Some(trials) = at_sizes.and_then(|t| Trials::one_of(self.typed.ty(read[0]), &t)) {
                blocks.trials.insert(var, trials);
            }
            inside.insert(slot, to.add(Expr::Var(var)));
            params.push((slot, var));
        }
        let mut body: Vec<ExprId> = Vec::with_capacity(family.length);
        for at in 0..family.length {
            let id = self.order[family.start + at];
            let mut k = 0;
            let expr = crate::ir::map_children(&m[id], |c| match &m[c] {
                Expr::Op(_) => to.add(m[c].clone()),
                _ => {
                    k += 1;
                    match slots.get(&(at, k - 1)) {
                        Some(slot) => inside[slot],
                        None => body[self.places[&self.first[&c]] - family.start],
                    }
                }
            });
            body.push(to.add_at(expr, m.span(id).cloned()));
        }
        let types = results.iter().map(|&r| self.typed.ty(self.order[family.start + r]).clone());
        let ret = Type::tuple(types.collect::<Vec<Type>>());
        let result = to.add(Expr::Tuple(results.iter().map(|&r| body[r]).collect()));
        let vars = params.iter().map(|p| p.1).collect();
        let span = m.span(self.order[family.start + family.length - 1]).cloned();
        let function = to.add_at(Expr::Func(Box::new(Function::new(vars, result, Some(ret)))), span);
        let taken = |name: &Name| m.function(name.as_str()).is_some() || blocks.functions.contains_key(name);
        let name = (0..).map(|n| Name::from(format!("block{n}"))).find(|n| !taken(n)).expect("names don't end");
        to.define(name.clone(), function);
        for (block, start) in starts.iter().enumerate() {
            let args = params.iter().map(|&(slot, _)| self.leaf_or_copied(outer[slot][block], copied, to)).collect();
            let callee = to.add(Expr::Global(name.clone()));
            let call = Expr::Call { callee, args, attrs: crate::ir::Attrs::empty(), type_args: Vec::new() };
            let call = to.add_at(call, m.span(self.order[start + family.length - 1]).cloned());
            for (field, at) in results.iter().enumerate() {
                let new = to.add(Expr::Proj(call, field));
                copied.insert(self.order[start + at], new);
            }
        }
        blocks.functions.insert(name, family.times);
    }

    /// What an argument has become: what is neither variable nor constant has been copied.
    fn leaf_or_copied(&self, id: ExprId, copied: &mut HashMap<ExprId, ExprId>, to: &mut Module) -> ExprId {
        let m = self.typed.module();
        *copied.entry(id).or_insert_with(|| to.add_at(m[id].clone(), m.span(id).cloned()))
    }
}

/// Whether two expressions are the same, what they read aside.
fn alike(m: &Module, a: ExprId, b: ExprId) -> bool {
    match (&m[a], &m[b]) {
        (Expr::Call { attrs: x, .. }, Expr::Call { attrs: y, .. }) => {
            let op = |e| m.op_call(e).map(|(op, ..)| op);
            x == y && op(a) == op(b)
        }
        (Expr::Tuple(_), Expr::Tuple(_)) => true,
        (Expr::Proj(_, x), Expr::Proj(_, y)) => x == y,
        (x, y) => x == y,
    }
}

fn constant(m: &Module, e: ExprId) -> Option<&Tensor> {
    match &m[e] {
        Expr::Constant(t) => Some(t),
        _ => None,
    }
}

/// Whether rules may look at each number of a constant.
fn by_number(t: &Tensor) -> bool {
    let size = t.dtype().bytes();
    let first = t.bytes().get(..size);
    t.len() <= SMALL_CONSTANT || !t.dtype().is_float() || t.bytes().chunks_exact(size).all(|x| Some(x) == first)
}
