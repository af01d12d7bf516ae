//! How great the extents of a program's tensors may become, as far as that follows before it runs.
//!
//! Every register, field of a constructor and captured value stands for all values that it may hold. Extents of inputs are bounded by who
//! calls; those of what kernels give follow from their types; what is greater each time it is come by has no bound. Closures are followed
//! to where they are called; fields are told apart by their constructor's number only, and cells not at all, which may find no bound where
//! there is one.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::{
    program::{Instr, KernelId, Label, Layout, Operand, Program, Reg},
    value::{Adt, Closure, Value},
};

/// The greatest that each extent of a tensor may be; none where nothing bounds it.
pub type Reach = Vec<Option<i64>>;

/// What grows so often has no bound.
const GROWS: u8 = 3;

/// All values that something may hold.
#[derive(Clone, Debug, Default, PartialEq)]
enum Held {
    /// None that is known yet.
    #[default]
    Nothing,
    Tensor(Reach),
    Tuple(Vec<Held>),
    /// Values of a data type, whose fields are looked up by constructor.
    Data,
    /// Functions.
    Closures(BTreeSet<u32>),
    /// Cells, which all hold the same.
    Cell,
    /// Values of more than one kind.
    Anything,
}

impl Held {
    fn of(layout: &Layout, tensors: &mut impl Iterator<Item = Reach>) -> Held {
        match layout {
            Layout::Tensor => tensors.next().map_or(Held::Anything, Held::Tensor),
            // Types bound how deep tuples are nested.
            Layout::Tuple(fields) => Held::Tuple(fields.iter().map(|f| Held::of(f, tensors)).collect()),
        }
    }

    fn constant(value: &Value) -> Held {
        match value {
            Value::Tensor(t) => Held::Tensor(t.shape().iter().map(|&n| Some(n as i64)).collect()),
            Value::Tuple(fields) => Held::Tuple(fields.as_slice().iter().map(Held::constant).collect()),
            Value::Adt(Adt { .. }) => Held::Data,
            Value::Closure(Closure { function, .. }) => Held::Closures([*function].into()),
            Value::Ref(_) => Held::Cell,
        }
    }

    /// Adds what another may hold; whether that is more. What grows has no bound where `unbounded`.
    fn join(&mut self, other: &Held, unbounded: bool) -> bool {
        match (&mut *self, other) {
            (_, Held::Nothing) | (Held::Anything, _) => false,
            (Held::Nothing, _) => {
                *self = other.clone();
                true
            }
            (Held::Tensor(a), Held::Tensor(b)) if a.len() == b.len() => {
                let mut more = false;
                for (a, b) in a.iter_mut().zip(b) {
                    let greatest = match (*a, *b) {
                        (Some(a), Some(b)) if b <= a => Some(a),
                        (Some(_), Some(b)) if !unbounded => Some(b),
                        _ => None,
                    };
                    more |= greatest != *a;
                    *a = greatest;
                }
                more
            }
            (Held::Tuple(a), Held::Tuple(b)) if a.len() == b.len() => {
                a.iter_mut().zip(b).fold(false, |more, (a, b)| a.join(b, unbounded) | more)
            }
            (Held::Closures(a), Held::Closures(b)) => {
                let before = a.len();
                a.extend(b);
                a.len() > before
            }
            (Held::Data, Held::Data) | (Held::Cell, Held::Cell) => false,
            _ => {
                *self = Held::Anything;
                true
            }
        }
    }

    /// The tensors, depth first; whether these are all.
    fn tensors(&self, out: &mut Vec<Reach>) -> bool {
        match self {
            Held::Tensor(t) => {
                out.push(t.clone());
                true
            }
            Held::Tuple(fields) => fields.iter().all(|f| f.tensors(out)),
            _ => false,
        }
    }

    fn is_known(&self) -> bool {
        match self {
            Held::Nothing => false,
            Held::Tuple(fields) => fields.iter().all(Held::is_known),
            _ => true,
        }
    }
}

/// A place that several values come to.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
enum Place {
    /// A parameter of a function.
    Parameter(u32, u32),
    /// What a function captured.
    Capture(u32, u32),
    /// What it gives.
    Result(u32),
    /// A field of a constructor.
    Field(u32, u32),
    /// What cells hold.
    Cell,
    /// A kernel's argument, by tensor.
    Argument(KernelId, u32),
}

/// What a function's registers hold where its instructions are jumped to, which is further on.
type Labels = HashMap<Label, Vec<Held>>;

struct Flow<'a> {
    program: &'a Program,
    /// What each place holds, and how often that became more.
    held: HashMap<Place, (Held, u8)>,
    called: BTreeSet<u32>,
    changed: bool,
    results: &'a mut dyn FnMut(KernelId, Option<&[Reach]>) -> Vec<Reach>,
}

/// By kernel, how great the extents of its arguments may become, tuples flattened depth first; none of kernels that are not called, or on values
/// that are not followed.
///
/// `params` is how the tensors make up the program's parameters; `results` gives what the extents of a kernel's results may be for those of its
/// arguments, where they are known.
pub fn reach(
    program: &Program,
    params: &[Layout],
    inputs: Vec<Reach>,
    results: &mut dyn FnMut(KernelId, Option<&[Reach]>) -> Vec<Reach>,
) -> Vec<Option<Vec<Reach>>> {
    let (held, called) = (HashMap::new(), [program.entry].into());
    let mut flow = Flow { program, held, called, changed: true, results };
    let mut inputs = inputs.into_iter();
    for (i, layout) in params.iter().enumerate() {
        flow.put(Place::Parameter(program.entry, i as u32), &Held::of(layout, &mut inputs));
    }
    // Each place grows so often at most.
    while std::mem::take(&mut flow.changed) {
        for f in flow.called.clone() {
            flow.function(f);
        }
    }
    let argument = |k: KernelId, i: u32| match flow.held.get(&Place::Argument(k, i)) {
        Some((Held::Tensor(t), _)) => Some(t.clone()),
        _ => None,
    };
    let of = |k: usize| -> Option<Vec<Reach>> {
        let all: Vec<Reach> = (0..).map_while(|i| argument(KernelId(k as u32), i)).collect();
        // One that is called on what is not followed has that in the place of its arguments.
        let followed =
            !matches!(flow.held.get(&Place::Argument(KernelId(k as u32), u32::MAX)), Some((Held::Anything, _)));
        (followed && !all.is_empty()).then_some(all)
    };
    (0..program.kernels.len()).map(of).collect()
}

impl Flow<'_> {
    fn at(&self, place: Place) -> Held {
        self.held.get(&place).map(|h| h.0.clone()).unwrap_or_default()
    }

    fn put(&mut self, place: Place, value: &Held) {
        let (held, grown) = self.held.entry(place).or_default();
        if held.join(value, *grown >= GROWS) {
            *grown = grown.saturating_add(1);
            self.changed = true;
        }
    }

    /// What a call gives, on these arguments.
    fn call(&mut self, function: u32, args: &[Held]) -> Held {
        self.changed |= self.called.insert(function);
        for (i, a) in args.iter().enumerate() {
            self.put(Place::Parameter(function, i as u32), a);
        }
        self.at(Place::Result(function))
    }

    fn call_any(&mut self, callee: &Held, args: &[Held]) -> Held {
        let all = match callee {
            Held::Closures(all) => all.clone(),
            Held::Nothing => return Held::Nothing,
            // Whatever takes so many arguments.
            _ => {
                let takes = |f: &u32| self.program.functions[*f as usize].params as usize == args.len();
                (0..self.program.functions.len() as u32).filter(takes).collect()
            }
        };
        let mut result = Held::Nothing;
        for f in all {
            result.join(&self.call(f, args), false);
        }
        result
    }

    /// A closure of a function.
    fn closure(&mut self, function: u32, captures: &[Held]) -> Held {
        for (i, c) in captures.iter().enumerate() {
            self.put(Place::Capture(function, i as u32), c);
        }
        Held::Closures([function].into())
    }

    fn invoke(&mut self, kernel: KernelId, args: &[Held]) -> Held {
        if !args.iter().all(Held::is_known) {
            return Held::Nothing;
        }
        let mut tensors = Vec::new();
        let followed = args.iter().all(|a| a.tensors(&mut tensors));
        if followed {
            for (i, t) in tensors.iter().enumerate() {
                self.put(Place::Argument(kernel, i as u32), &Held::Tensor(t.clone()));
            }
        } else {
            self.put(Place::Argument(kernel, u32::MAX), &Held::Anything);
        }
        let results = (self.results)(kernel, followed.then_some(&tensors));
        Held::of(&self.program.kernels[kernel.index()].result, &mut results.into_iter())
    }

    /// Follows a function from its beginning to its end.
    fn function(&mut self, number: u32) {
        let program = self.program;
        let f = &program.functions[number as usize];
        let mut registers = vec![Held::Nothing; f.registers as usize];
        for i in 0..f.params {
            registers[i as usize] = self.at(Place::Parameter(number, i));
        }
        let mut labels = Labels::new();
        let mut reached = true;
        for (at, instr) in f.code.iter().enumerate() {
            if let Some(there) = labels.remove(&(at as Label)) {
                match reached {
                    true => join_all(&mut registers, &there),
                    false => registers = there,
                }
                reached = true;
            }
            if reached {
                self.step(number, instr, &mut registers, &mut labels);
                reached = instr.falls_through();
            }
        }
    }

    fn step(&mut self, function: u32, instr: &Instr, registers: &mut [Held], labels: &mut Labels) {
        let mut jump = |to: Label, registers: &[Held]| match labels.get_mut(&to) {
            Some(there) => join_all(there, registers),
            None => _ = labels.insert(to, registers.to_vec()),
        };
        let read = |flow: &Flow<'_>, registers: &[Held], o: &Operand| match *o {
            Operand::Copy(Reg(r)) | Operand::Take(Reg(r)) => registers[r as usize].clone(),
            Operand::Const(n) => Held::constant(&flow.program.constants[n as usize]),
            Operand::Captured(n) => flow.at(Place::Capture(function, n)),
            Operand::Own => Held::Closures([function].into()),
        };
        let all = |flow: &Flow<'_>, registers: &[Held], list: &[Operand]| -> Vec<Held> {
            list.iter().map(|o| read(flow, registers, o)).collect()
        };
        let written: Option<(Reg, Held)> = match instr {
            Instr::Move { dst, src } => Some((*dst, read(self, registers, src))),
            Instr::Invoke { dst, kernel, args } => {
                let args = all(self, registers, args);
                Some((*dst, self.invoke(*kernel, &args)))
            }
            Instr::Tuple { dst, fields } => Some((*dst, Held::Tuple(all(self, registers, fields)))),
            Instr::Field { dst, src, index } => {
                let field = match read(self, registers, src) {
                    Held::Tuple(fields) => fields.get(*index as usize).cloned().unwrap_or(Held::Anything),
                    Held::Nothing => Held::Nothing,
                    Held::Data => self.field(*index),
                    _ => Held::Anything,
                };
                Some((*dst, field))
            }
            Instr::Adt { dst, tag, fields } => {
                for (i, value) in all(self, registers, fields).iter().enumerate() {
                    self.put(Place::Field(*tag, i as u32), value);
                }
                Some((*dst, Held::Data))
            }
            Instr::Closure { dst, function, captures } => {
                let captures = all(self, registers, captures);
                Some((*dst, self.closure(*function, &captures)))
            }
            Instr::Call { dst, function, args } => {
                let args = all(self, registers, args);
                Some((*dst, self.call(*function, &args)))
            }
            Instr::CallClosure { dst, callee, args } => {
                let (args, callee) = (all(self, registers, args), read(self, registers, callee));
                Some((*dst, self.call_any(&callee, &args)))
            }
            Instr::TailCall { function: callee, args } => {
                let args = all(self, registers, args);
                let result = self.call(*callee, &args);
                self.put(Place::Result(function), &result);
                None
            }
            Instr::TailCallClosure { callee, args } => {
                let (args, callee) = (all(self, registers, args), read(self, registers, callee));
                let result = self.call_any(&callee, &args);
                self.put(Place::Result(function), &result);
                None
            }
            Instr::Return(value) => {
                let value = read(self, registers, value);
                self.put(Place::Result(function), &value);
                None
            }
            Instr::If { otherwise, .. } | Instr::IfTag { otherwise, .. } => {
                jump(*otherwise, registers);
                None
            }
            Instr::Switch { targets, .. } => {
                targets.iter().for_each(|t| jump(*t, registers));
                None
            }
            Instr::Goto(target) => {
                jump(*target, registers);
                None
            }
            Instr::RefNew { dst, value } => {
                let value = read(self, registers, value);
                self.put(Place::Cell, &value);
                Some((*dst, Held::Cell))
            }
            Instr::RefRead { dst, .. } => Some((*dst, self.at(Place::Cell))),
            Instr::RefWrite { value, .. } => {
                let value = read(self, registers, value);
                self.put(Place::Cell, &value);
                None
            }
            Instr::Delay { dst, function, captures } => {
                let captures = all(self, registers, captures);
                Some((*dst, self.closure(*function, &captures)))
            }
            Instr::Force { dst, src } => {
                let delayed = read(self, registers, src);
                Some((*dst, self.call_any(&delayed, &[])))
            }
            Instr::Drop(emptied) => {
                emptied.iter().for_each(|&Reg(r)| registers[r as usize] = Held::Nothing);
                None
            }
            Instr::Fatal { .. } => None,
        };
        if let Some((Reg(r), value)) = written {
            registers[r as usize] = value;
        }
    }

    /// That field of any constructor.
    fn field(&self, index: u32) -> Held {
        let mut all = Held::Nothing;
        for (place, (held, _)) in &self.held {
            if matches!(place, Place::Field(_, i) if *i == index) {
                all.join(held, false);
            }
        }
        all
    }
}

fn join_all(registers: &mut [Held], others: &[Held]) {
    for (a, b) in registers.iter_mut().zip(others) {
        a.join(b, false);
    }
}
