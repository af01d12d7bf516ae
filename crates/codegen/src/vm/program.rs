//! Programs: functions of instructions over registers, constants, and the kernels that they call.

use std::fmt;

use super::value::Value;
use crate::ir::{ExprId, Name, Span};

/// A kernel of a [`Program`], by its place in [`Program::kernels`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KernelId(pub u32);

impl KernelId {
    /// Position in the program's kernels.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A primitive function, or one for an external compiler, that a program calls.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The function's expression in the module that was compiled.
    pub func: ExprId,
    /// Its global name, or the operators in it; not necessarily unique.
    pub name: Name,
    /// How many arguments it is called with. Tuples among them are handed over flattened, depth first.
    pub params: usize,
    /// What its results, which it gives flattened, are put together to.
    pub result: Layout,
    /// The external compiler that it is for.
    pub compiler: Option<Name>,
}

/// How tensors make up a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One tensor.
    Tensor,
    /// A tuple of such values.
    Tuple(Vec<Layout>),
}

impl Layout {
    /// How many tensors there are.
    pub fn tensors(&self) -> usize {
        match self {
            Layout::Tensor => 1,
            // Types bound how deep tuples are nested.
            Layout::Tuple(fields) => fields.iter().map(Layout::tensors).sum(),
        }
    }
}

/// A register of the function that runs.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Reg(pub(super) u32);

/// What an instruction reads.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Operand {
    /// A register, which keeps its value.
    Copy(Reg),
    /// A register, which is empty afterwards.
    Take(Reg),
    /// A constant of the program.
    Const(u32),
    /// A value that the running closure captured.
    Captured(u32),
    /// The running closure itself.
    Own,
}

/// A place in a function's instructions.
pub(super) type Label = u32;

/// One instruction.
#[derive(Clone, Debug)]
pub(super) enum Instr {
    /// `dst = src`.
    Move { dst: Reg, src: Operand },
    /// Calls a kernel.
    Invoke { dst: Reg, kernel: KernelId, args: Box<[Operand]> },
    /// Makes a tuple.
    Tuple { dst: Reg, fields: Box<[Operand]> },
    /// A field of a tuple or of a data type's value.
    Field { dst: Reg, src: Operand, index: u32 },
    /// Makes a value of a data type.
    Adt { dst: Reg, tag: u32, fields: Box<[Operand]> },
    /// Makes a closure.
    Closure { dst: Reg, function: u32, captures: Box<[Operand]> },
    /// Calls a function that sees nothing but its arguments.
    Call { dst: Reg, function: u32, args: Box<[Operand]> },
    /// Calls a closure.
    CallClosure { dst: Reg, callee: Operand, args: Box<[Operand]> },
    /// As `Call`, whose result is the running function's.
    TailCall { function: u32, args: Box<[Operand]> },
    /// As `CallClosure`, whose result is the running function's.
    TailCallClosure { callee: Operand, args: Box<[Operand]> },
    /// Ends the running function.
    Return(Operand),
    /// Goes on with the next instruction where a scalar holds, else elsewhere.
    If { cond: Operand, otherwise: Label },
    /// Goes where the constructor's number says.
    Switch { data: Operand, targets: Box<[Label]> },
    /// Goes on with the next instruction where the constructor has that number, else elsewhere.
    IfTag { data: Operand, tag: u32, otherwise: Label },
    /// Goes on elsewhere.
    Goto(Label),
    /// Makes a cell.
    RefNew { dst: Reg, value: Operand },
    /// What a cell holds.
    RefRead { dst: Reg, cell: Operand },
    /// Writes to a cell; gives nothing.
    RefWrite { cell: Operand, value: Operand },
    /// What a function without parameters will give when it is first asked for, if ever.
    Delay { dst: Reg, function: u32, captures: Box<[Operand]> },
    /// Asks for what was delayed.
    Force { dst: Reg, src: Operand },
    /// Empties registers.
    Drop(Box<[Reg]>),
    /// Gives up: no clause of a `match` meets the value.
    Fatal { value: Operand },
}

/// A function of a program.
#[derive(Clone, Debug)]
pub(super) struct Function {
    /// A name for listings.
    pub(super) name: Name,
    /// Parameters; they are in the first registers when the function starts.
    pub(super) params: u32,
    /// Registers that it needs.
    pub(super) registers: u32,
    /// What it does.
    pub(super) code: Vec<Instr>,
    /// Where instructions that may fail stand in the source, by place in the code, ascending.
    pub(super) spans: Vec<(Label, Span)>,
}

impl Function {
    /// Where an instruction stands in the source.
    pub(super) fn span(&self, at: usize) -> Option<Span> {
        self.spans.binary_search_by_key(&(at as Label), |s| s.0).ok().map(|i| self.spans[i].1.clone())
    }
}

/// A compiled module. Prints as a listing.
#[derive(Clone, Debug)]
pub struct Program {
    /// The functions.
    pub(super) functions: Vec<Function>,
    /// Which of them runs, by place.
    pub(super) entry: u32,
    /// Tensors, functions without captures, and values of constructors without fields.
    pub(super) constants: Vec<Value>,
    /// What the functions call, by [`KernelId`].
    pub(super) kernels: Vec<Kernel>,
}

impl Program {
    /// The kernels, by [`KernelId`].
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// How many arguments the program runs on.
    pub fn params(&self) -> usize {
        self.entry().params as usize
    }

    /// The function that runs.
    pub(super) fn entry(&self) -> &Function {
        &self.functions[self.entry as usize]
    }
}

impl Instr {
    /// The register that it writes.
    pub(super) fn dst(&mut self) -> Option<Reg> {
        let mut dst = None;
        self.visit(|_| {}, |r| dst = Some(*r));
        dst
    }

    /// Whether it does nothing but write its register.
    pub(super) fn is_pure(&self) -> bool {
        use Instr::*;
        matches!(
            self,
            Move { .. }
                | Tuple { .. }
                | Field { .. }
                | Adt { .. }
                | Closure { .. }
                | RefNew { .. }
                | RefRead { .. }
                | Delay { .. }
        )
    }

    /// Whether the next instruction may follow it.
    pub(super) fn falls_through(&self) -> bool {
        use Instr::*;
        !matches!(self, TailCall { .. } | TailCallClosure { .. } | Return(_) | Switch { .. } | Goto(_) | Fatal { .. })
    }

    /// Calls a function on each operand in the order in which they are read, and another on the register that is written.
    pub(super) fn visit(&mut self, mut read: impl FnMut(&mut Operand), mut written: impl FnMut(&mut Reg)) {
        use Instr::*;
        match self {
            Move { dst, src } | Field { dst, src, .. } | Force { dst, src } => {
                read(src);
                written(dst);
            }
            RefNew { dst, value } => {
                read(value);
                written(dst);
            }
            RefRead { dst, cell } => {
                read(cell);
                written(dst);
            }
            Invoke { dst, args, .. } | Call { dst, args, .. } => {
                args.iter_mut().for_each(read);
                written(dst);
            }
            Tuple { dst, fields } | Adt { dst, fields, .. } => {
                fields.iter_mut().for_each(read);
                written(dst);
            }
            Closure { dst, captures, .. } | Delay { dst, captures, .. } => {
                captures.iter_mut().for_each(read);
                written(dst);
            }
            CallClosure { dst, callee, args } => {
                args.iter_mut().for_each(&mut read);
                read(callee);
                written(dst);
            }
            TailCall { args, .. } => args.iter_mut().for_each(read),
            TailCallClosure { callee, args } => {
                args.iter_mut().for_each(&mut read);
                read(callee);
            }
            Return(value) | Fatal { value } => read(value),
            If { cond, .. } => read(cond),
            Switch { data, .. } | IfTag { data, .. } => read(data),
            RefWrite { cell, value } => {
                read(cell);
                read(value);
            }
            Goto(_) | Drop(_) => {}
        }
    }

    /// Calls a function on each place that it may jump to.
    pub(super) fn labels(&mut self, mut f: impl FnMut(&mut Label)) {
        match self {
            Instr::If { otherwise, .. } | Instr::IfTag { otherwise, .. } => f(otherwise),
            Instr::Switch { targets, .. } => targets.iter_mut().for_each(f),
            Instr::Goto(target) => f(target),
            _ => {}
        }
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

impl fmt::Display for Operand {
    /// `!` says that the register is empty afterwards.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Copy(r) => write!(f, "{r}"),
            Operand::Take(r) => write!(f, "{r}!"),
            Operand::Const(n) => write!(f, "c{n}"),
            Operand::Captured(n) => write!(f, "^{n}"),
            Operand::Own => f.write_str("^"),
        }
    }
}

/// Things with commas between them.
struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, x) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            x.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, c) in self.constants.iter().enumerate() {
            match c {
                Value::Closure(c) => writeln!(f, "c{i} = {}", self.label(c.function))?,
                c => writeln!(f, "c{i} = {c:?}")?,
            }
        }
        for (i, func) in self.functions.iter().enumerate() {
            writeln!(f, "\n{}: {} parameters, {} registers", self.label(i as u32), func.params, func.registers)?;
            for (at, instr) in func.code.iter().enumerate() {
                write!(f, "{at:5}  ")?;
                self.instr(instr, f)?;
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

impl Program {
    fn label(&self, function: u32) -> String {
        format!("f{function} {}", self.functions[function as usize].name)
    }

    fn instr(&self, instr: &Instr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |function: &u32| self.label(*function);
        match instr {
            Instr::Move { dst, src } => write!(f, "{dst} = {src}"),
            Instr::Invoke { dst, kernel, args } => {
                write!(f, "{dst} = invoke k{} {}({})", kernel.0, self.kernels[kernel.index()].name, List(args))
            }
            Instr::Tuple { dst, fields } => write!(f, "{dst} = tuple ({})", List(fields)),
            Instr::Field { dst, src, index } => write!(f, "{dst} = {src}.{index}"),
            Instr::Adt { dst, tag, fields } => write!(f, "{dst} = adt {tag} ({})", List(fields)),
            Instr::Closure { dst, function, captures } => {
                write!(f, "{dst} = closure {} ({})", name(function), List(captures))
            }
            Instr::Call { dst, function, args } => write!(f, "{dst} = call {} ({})", name(function), List(args)),
            Instr::CallClosure { dst, callee, args } => write!(f, "{dst} = call {callee} ({})", List(args)),
            Instr::TailCall { function, args } => write!(f, "tail call {} ({})", name(function), List(args)),
            Instr::TailCallClosure { callee, args } => write!(f, "tail call {callee} ({})", List(args)),
            Instr::Return(v) => write!(f, "return {v}"),
            Instr::If { cond, otherwise } => write!(f, "if {cond} else {otherwise}"),
            Instr::Switch { data, targets } => write!(f, "switch {data} ({})", List(targets)),
            Instr::IfTag { data, tag, otherwise } => write!(f, "if tag {data} is {tag} else {otherwise}"),
            Instr::Goto(target) => write!(f, "goto {target}"),
            Instr::RefNew { dst, value } => write!(f, "{dst} = ref {value}"),
            Instr::RefRead { dst, cell } => write!(f, "{dst} = read {cell}"),
            Instr::RefWrite { cell, value } => write!(f, "write {cell} {value}"),
            Instr::Delay { dst, function, captures } => {
                write!(f, "{dst} = delay {} ({})", name(function), List(captures))
            }
            Instr::Force { dst, src } => write!(f, "{dst} = force {src}"),
            Instr::Drop(regs) => write!(f, "drop {}", List(regs)),
            Instr::Fatal { value } => write!(f, "no clause meets {value}"),
        }
    }
}
