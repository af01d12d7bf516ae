//! Programs as words, for the machine of exported libraries, which is written in C.

use super::{
    program::{Function, Instr, Label, Layout, Operand, Program},
    value::{Adt, Closure, Value},
};
use crate::runtime::export::{Entry, Word, Words};

fn operand(o: Operand) -> i32 {
    let (index, kind) = match o {
        Operand::Copy(r) => (r.0, 0),
        Operand::Take(r) => (r.0, 1),
        Operand::Const(n) => (n, 2),
        Operand::Captured(n) => (n, 3),
        Operand::Own => (0, 4),
    };
    (index << 3 | kind) as i32
}

/// The words of an instruction: what it is, and what it takes in the order of its fields, lists after their length. Operands are
/// `index << 3 | kind`: 0 a register, 1 one that is empty afterwards, 2 a constant, 3 what was captured, 4 the running closure.
/// `at` says where in the words an instruction begins.
fn words(instr: &Instr, at: impl Fn(Label) -> i32, out: &mut Vec<i32>) {
    let list = |all: &[Operand], out: &mut Vec<i32>| {
        out.push(all.len() as i32);
        out.extend(all.iter().map(|&o| operand(o)));
    };
    match instr {
        Instr::Move { dst, src } => out.extend([0, dst.0 as i32, operand(*src)]),
        Instr::Invoke { dst, kernel, args } => {
            out.extend([1, dst.0 as i32, kernel.0 as i32]);
            list(args, out);
        }
        Instr::Tuple { dst, fields } => {
            out.extend([2, dst.0 as i32]);
            list(fields, out);
        }
        Instr::Field { dst, src, index } => out.extend([3, dst.0 as i32, operand(*src), *index as i32]),
        Instr::Adt { dst, tag, fields } => {
            out.extend([4, dst.0 as i32, *tag as i32]);
            list(fields, out);
        }
        Instr::Closure { dst, function, captures } => {
            out.extend([5, dst.0 as i32, *function as i32]);
            list(captures, out);
        }
        Instr::Call { dst, function, args } => {
            out.extend([6, dst.0 as i32, *function as i32]);
            list(args, out);
        }
        Instr::CallClosure { dst, callee, args } => {
            out.extend([7, dst.0 as i32, operand(*callee)]);
            list(args, out);
        }
        Instr::TailCall { function, args } => {
            out.extend([8, *function as i32]);
            list(args, out);
        }
        Instr::TailCallClosure { callee, args } => {
            out.extend([9, operand(*callee)]);
            list(args, out);
        }
        Instr::Return(v) => out.extend([10, operand(*v)]),
        Instr::If { cond, otherwise } => out.extend([11, operand(*cond), at(*otherwise)]),
        Instr::Switch { data, targets } => {
            out.extend([12, operand(*data)]);
            out.extend(targets.iter().map(|&t| at(t)));
        }
        Instr::IfTag { data, tag, otherwise } => out.extend([13, operand(*data), *tag as i32, at(*otherwise)]),
        Instr::Goto(target) => out.extend([14, at(*target)]),
        Instr::RefNew { dst, value } => out.extend([15, dst.0 as i32, operand(*value)]),
        Instr::RefRead { dst, cell } => out.extend([16, dst.0 as i32, operand(*cell)]),
        Instr::RefWrite { cell, value } => out.extend([17, operand(*cell), operand(*value)]),
        Instr::Delay { dst, function, captures } => {
            out.extend([18, dst.0 as i32, *function as i32]);
            list(captures, out);
        }
        Instr::Force { dst, src } => out.extend([19, dst.0 as i32, operand(*src)]),
        Instr::Drop(registers) => {
            out.extend([20, registers.len() as i32]);
            out.extend(registers.iter().map(|r| r.0 as i32));
        }
        Instr::Fatal { value } => out.extend([21, operand(*value)]),
    }
}

fn layout(l: &Layout, out: &mut Vec<i32>) {
    match l {
        Layout::Tensor => out.push(-1),
        Layout::Tuple(fields) => {
            out.push(fields.len() as i32);
            // Types bound how deep tuples are nested.
            fields.iter().for_each(|f| layout(f, out));
        }
    }
}

impl Program {
    /// The program as words.
    pub fn words(&self) -> Words {
        let mut all: Vec<i32> = Vec::new();
        let mut functions = Vec::new();
        for Function { name, params, registers, code, .. } in &self.functions {
            let start = all.len();
            let (mut begins, mut next, mut own) = (Vec::new(), start, Vec::new());
            for instr in code {
                begins.push(next as i32);
                own.clear();
                words(instr, |_| 0, &mut own);
                next += own.len();
            }
            code.iter().for_each(|instr| words(instr, |l| begins[l as usize], &mut all));
            functions.push(Entry { name: name.to_string(), params: *params, registers: *registers, start });
        }
        let constant = |c: &Value| match c {
            Value::Tensor(t) => Word::Tensor(t.clone()),
            Value::Closure(Closure { function, .. }) => Word::Function(*function),
            Value::Adt(Adt { tag, .. }) => Word::Constructor(*tag),
            Value::Tuple(_) | Value::Ref(_) => Word::Unit,
        };
        let result = |k: &super::Kernel| {
            let mut out = Vec::new();
            layout(&k.result, &mut out);
            out
        };
        Words {
            code: all,
            functions,
            entry: self.entry,
            constants: self.constants.iter().map(constant).collect(),
            results: self.kernels.iter().map(result).collect(),
        }
    }
}
