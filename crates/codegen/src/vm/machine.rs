//! The machine: activations on one stack, their registers on another.

use super::{
    Kernels,
    program::{Function, Instr, Layout, Operand, Program, Reg},
    value::{Adt, Cells, Closure, Fields, MutableCell, Value},
};
use crate::{
    diag::{Diagnostic, Refused},
    tensor::Tensor,
};

/// The cell of a delayed value holds one of these, as a data type's value.
const DELAYED: u32 = 0;
const KNOWN: u32 = 1;

/// A call that has not ended.
struct Frame {
    function: u32,
    /// The next instruction.
    at: u32,
    /// The first register.
    base: usize,
    captures: Fields,
    /// The caller's register for the result.
    dst: Reg,
    /// A delayed value's cell, where this computes one.
    delayed: Option<MutableCell>,
}

struct Machine<'p> {
    program: &'p Program,
    kernels: &'p dyn Kernels,
    /// The running call.
    now: Frame,
    /// The calls that wait for it.
    waiting: Vec<Frame>,
    registers: Vec<Option<Value>>,
    cells: Cells,
    /// The arguments of the kernel that runs, kept for its memory.
    args: Vec<Tensor>,
}

impl Program {
    /// Runs the program on arguments, one per parameter of its entry.
    ///
    /// Refuses another number of arguments, functions among them, values that no clause of a `match` meets, and what
    /// kernels refuse. Programs that do not end run until memory does.
    pub fn run(&self, kernels: &dyn Kernels, inputs: Vec<Value>) -> Result<Value, Refused> {
        let entry = self.entry();
        if inputs.len() != entry.params as usize {
            let (n, found) = (entry.params, inputs.len());
            let message = format!("`@{}` has {n} parameters, but is given {found} arguments", entry.name);
            return Err(Diagnostic::new(message).into());
        }
        if inputs.iter().any(|v| v.flatten().is_none()) {
            return Err(Diagnostic::new("an argument is a function, which only programs can make").into());
        }
        let mut registers: Vec<Option<Value>> = inputs.into_iter().map(Some).collect();
        registers.resize_with(entry.registers as usize, || None);
        let frame =
            Frame { function: self.entry, at: 0, base: 0, captures: Fields::default(), dst: Reg(0), delayed: None };
        let mut machine = Machine {
            program: self,
            kernels,
            now: frame,
            waiting: Vec::new(),
            registers,
            cells: Cells::default(),
            args: Vec::new(),
        };
        let result = machine.run();
        let Machine { registers, waiting, now, cells, .. } = machine;
        drop((registers, waiting, now));
        cells.clear_all_but(result.as_ref().ok());
        result
    }
}

/// What a mismatch of values and instructions says: inference has ruled it out.
fn mismatch(wanted: &str, found: &Value) -> Refused {
    Diagnostic::new(format!("{wanted} was expected, but found {}", found.kind())).into()
}

fn as_bool(v: &Value) -> Result<bool, Refused> {
    match v {
        Value::Tensor(t) if t.len() == 1 => Ok(t.get_i64(0) != 0),
        v => Err(mismatch("a scalar", v)),
    }
}

fn as_tag(v: &Value) -> Result<u32, Refused> {
    match v {
        Value::Adt(a) => Ok(a.tag),
        v => Err(mismatch("a value of a data type", v)),
    }
}

fn as_cell(v: &Value) -> Result<&MutableCell, Refused> {
    match v {
        Value::Ref(cell) => Ok(cell),
        v => Err(mismatch("a reference", v)),
    }
}

/// Puts a kernel's results together.
fn assemble(layout: &Layout, tensors: &mut impl Iterator<Item = Tensor>) -> Option<Value> {
    match layout {
        Layout::Tensor => tensors.next().map(Value::Tensor),
        // Types bound how deep tuples are nested.
        Layout::Tuple(fields) => {
            fields.iter().map(|f| assemble(f, tensors)).collect::<Option<Fields>>().map(Value::Tuple)
        }
    }
}

/// Hands over a kernel's argument.
fn spread(v: Value, out: &mut Vec<Tensor>) -> Result<(), Refused> {
    match v {
        Value::Tensor(t) => out.push(t),
        // Types bound how deep tuples are nested.
        Value::Tuple(f) => f.as_slice().iter().try_for_each(|v| spread(v.clone(), out))?,
        v => return Err(mismatch("a tensor", &v)),
    }
    Ok(())
}

/// The register's value. Registers are written before they are read.
macro_rules! full {
    ($slot:expr) => {
        $slot.expect("a register is written before it is read")
    };
}

impl<'p> Machine<'p> {
    fn function(&self) -> &'p Function {
        &self.program.functions[self.now.function as usize]
    }

    /// The value of an operand, whose register is empty afterwards if it says so.
    fn value(&mut self, o: Operand) -> Value {
        match o {
            Operand::Copy(r) => full!(self.registers[self.now.base + r.0 as usize].clone()),
            Operand::Take(r) => full!(self.registers[self.now.base + r.0 as usize].take()),
            Operand::Const(n) => self.program.constants[n as usize].clone(),
            Operand::Captured(n) => self.now.captures.as_slice()[n as usize].clone(),
            Operand::Own => Value::Closure(self.own()),
        }
    }

    fn own(&self) -> Closure {
        Closure { function: self.now.function, captures: self.now.captures.clone() }
    }

    fn values(&mut self, operands: &[Operand]) -> Fields {
        operands.iter().map(|&o| self.value(o)).collect()
    }

    /// Looks at an operand.
    fn look<T>(&mut self, o: Operand, f: impl FnOnce(&Value) -> Result<T, Refused>) -> Result<T, Refused> {
        match o {
            Operand::Copy(r) => f(full!(self.registers[self.now.base + r.0 as usize].as_ref())),
            Operand::Const(n) => f(&self.program.constants[n as usize]),
            Operand::Captured(n) => f(&self.now.captures.as_slice()[n as usize]),
            Operand::Take(_) | Operand::Own => f(&self.value(o)),
        }
    }

    fn set(&mut self, dst: Reg, v: Value) {
        self.registers[self.now.base + dst.0 as usize] = Some(v);
    }

    fn run(&mut self) -> Result<Value, Refused> {
        self.steps().map_err(|mut refused| {
            let span = self.function().span(self.now.at as usize - 1);
            for d in refused.0.iter_mut().filter(|d| d.span.is_none()) {
                d.span = span.clone();
            }
            refused
        })
    }

    fn steps(&mut self) -> Result<Value, Refused> {
        let mut code: &'p [Instr] = &self.function().code;
        loop {
            let instr = &code[self.now.at as usize];
            self.now.at += 1;
            match instr {
                Instr::Move { dst, src } => {
                    let v = self.value(*src);
                    self.set(*dst, v);
                }
                Instr::Invoke { dst, kernel, args } => {
                    let v = self.invoke(kernel.index(), args)?;
                    self.set(*dst, v);
                }
                Instr::Tuple { dst, fields } => {
                    let v = Value::Tuple(self.values(fields));
                    self.set(*dst, v);
                }
                Instr::Field { dst, src, index } => {
                    let v = self.field(*src, *index as usize)?;
                    self.set(*dst, v);
                }
                Instr::Adt { dst, tag, fields } => {
                    let v = Value::Adt(Adt { tag: *tag, fields: self.values(fields) });
                    self.set(*dst, v);
                }
                Instr::Closure { dst, function, captures } => {
                    let v = Value::Closure(Closure { function: *function, captures: self.values(captures) });
                    self.set(*dst, v);
                }
                Instr::Call { dst, function, args } => {
                    let base = self.registers.len();
                    self.push(args);
                    self.enter(*function, base, Fields::default(), *dst, None);
                    code = &self.function().code;
                }
                Instr::CallClosure { dst, callee, args } => {
                    let base = self.registers.len();
                    self.push(args);
                    let closure = self.closure(*callee, args.len())?;
                    self.enter(closure.function, base, closure.captures, *dst, None);
                    code = &self.function().code;
                }
                Instr::TailCall { function, args } => {
                    let own = self.registers.len();
                    self.push(args);
                    self.reenter(*function, own, Fields::default());
                    code = &self.function().code;
                }
                Instr::TailCallClosure { callee, args } => {
                    let own = self.registers.len();
                    self.push(args);
                    let closure = self.closure(*callee, args.len())?;
                    self.reenter(closure.function, own, closure.captures);
                    code = &self.function().code;
                }
                Instr::Return(v) => {
                    let v = self.value(*v);
                    self.registers.truncate(self.now.base);
                    if let Some(cell) = self.now.delayed.take() {
                        cell.set(Value::Adt(Adt { tag: KNOWN, fields: [v.clone()].into_iter().collect() }));
                    }
                    let dst = self.now.dst;
                    match self.waiting.pop() {
                        Some(caller) => self.now = caller,
                        None => return Ok(v),
                    }
                    self.set(dst, v);
                    code = &self.function().code;
                }
                Instr::If { cond, otherwise } => {
                    if !self.look(*cond, as_bool)? {
                        self.now.at = *otherwise;
                    }
                }
                Instr::Switch { data, targets } => {
                    let tag = self.look(*data, as_tag)?;
                    self.now.at = targets[tag as usize];
                }
                Instr::IfTag { data, tag, otherwise } => {
                    if self.look(*data, as_tag)? != *tag {
                        self.now.at = *otherwise;
                    }
                }
                Instr::Goto(target) => self.now.at = *target,
                Instr::RefNew { dst, value } => {
                    let v = self.value(*value);
                    let cell = self.cells.make(v);
                    self.set(*dst, Value::Ref(cell));
                }
                Instr::RefRead { dst, cell } => {
                    let v = self.look(*cell, |c| Ok(as_cell(c)?.get()))?;
                    self.set(*dst, v.expect("cells are cleared when nothing runs any more"));
                }
                Instr::RefWrite { cell, value } => {
                    let cell = self.value(*cell);
                    let v = self.value(*value);
                    as_cell(&cell)?.set(v);
                }
                Instr::Delay { dst, function, captures } => {
                    let closure = Value::Closure(Closure { function: *function, captures: self.values(captures) });
                    let fields = [closure].into_iter().collect();
                    let cell = self.cells.make(Value::Adt(Adt { tag: DELAYED, fields }));
                    self.set(*dst, Value::Ref(cell));
                }
                Instr::Force { dst, src } => {
                    let cell = self.look(*src, |c| as_cell(c).cloned())?;
                    match cell.get() {
                        Some(Value::Adt(Adt { tag: DELAYED, fields })) => {
                            let thunk = fields.into_field(0);
                            let Some(Value::Closure(c)) = thunk else {
                                unreachable!("what is delayed is a function");
                            };
                            let base = self.registers.len();
                            self.enter(c.function, base, c.captures, *dst, Some(cell));
                            code = &self.function().code;
                        }
                        Some(Value::Adt(Adt { fields, .. })) => {
                            let v = fields.into_field(0).expect("what is known is one value");
                            self.set(*dst, v);
                        }
                        _ => unreachable!("only delayed values are asked for"),
                    }
                }
                Instr::Drop(registers) => {
                    for r in registers {
                        self.registers[self.now.base + r.0 as usize] = None;
                    }
                }
                Instr::Fatal { value } => {
                    let v = self.value(*value);
                    return Err(Diagnostic::new(format!("no clause of `match` meets {}", v.kind())).into());
                }
            }
        }
    }

    fn push(&mut self, args: &[Operand]) {
        for &arg in args {
            let v = self.value(arg);
            self.registers.push(Some(v));
        }
    }

    /// The closure that is called, once its arguments are there.
    fn closure(&mut self, callee: Operand, args: usize) -> Result<Closure, Refused> {
        let closure = match self.value(callee) {
            Value::Closure(c) => c,
            v => return Err(mismatch("a function", &v)),
        };
        let wanted = self.program.functions[closure.function as usize].params as usize;
        match wanted == args {
            true => Ok(closure),
            false => Err(Diagnostic::new(format!("a function of {wanted} arguments is given {args}")).into()),
        }
    }

    /// Starts a function whose arguments lie in the registers from `base` on.
    fn enter(&mut self, function: u32, base: usize, captures: Fields, dst: Reg, delayed: Option<MutableCell>) {
        let registers = self.program.functions[function as usize].registers as usize;
        self.registers.resize_with(base + registers, || None);
        let callee = Frame { function, at: 0, base, captures, dst, delayed };
        self.waiting.push(std::mem::replace(&mut self.now, callee));
    }

    /// Starts a function in the place of the running one. Its arguments lie in the registers from `args` on.
    fn reenter(&mut self, function: u32, args: usize, captures: Fields) {
        self.registers.drain(self.now.base..args);
        let registers = self.program.functions[function as usize].registers as usize;
        self.registers.resize_with(self.now.base + registers, || None);
        self.now.function = function;
        self.now.at = 0;
        self.now.captures = captures;
    }

    fn field(&mut self, src: Operand, index: usize) -> Result<Value, Refused> {
        let of = |fields: &Fields| fields.as_slice().get(index).cloned();
        let found = match src {
            Operand::Take(_) => match self.value(src) {
                Value::Tuple(f) | Value::Adt(Adt { fields: f, .. }) => f.into_field(index),
                _ => None,
            },
            _ => self.look(src, |v| match v {
                Value::Tuple(f) | Value::Adt(Adt { fields: f, .. }) => Ok(of(f)),
                v => Err(mismatch("a tuple", v)),
            })?,
        };
        found.ok_or_else(|| Diagnostic::new(format!("there is no field {index}")).into())
    }

    fn invoke(&mut self, kernel: usize, operands: &[Operand]) -> Result<Value, Refused> {
        let mut args = std::mem::take(&mut self.args);
        for &o in operands {
            let v = self.value(o);
            spread(v, &mut args)?;
        }
        let results = self.kernels.call(super::KernelId(kernel as u32), &args)?;
        args.clear();
        self.args = args;
        let k = &self.program.kernels[kernel];
        if let (Layout::Tensor, [_]) = (&k.result, &results[..]) {
            return results.into_iter().next().map(Value::Tensor).ok_or_else(|| wrong_results(&k.name, 1, 0));
        }
        let (wanted, found) = (k.result.tensors(), results.len());
        match wanted == found {
            true => assemble(&k.result, &mut results.into_iter()).ok_or_else(|| wrong_results(&k.name, wanted, found)),
            false => Err(wrong_results(&k.name, wanted, found)),
        }
    }
}

fn wrong_results(name: &str, wanted: usize, found: usize) -> Refused {
    Diagnostic::new(format!("kernel `{name}` gave {found} results, but should give {wanted}")).into()
}
