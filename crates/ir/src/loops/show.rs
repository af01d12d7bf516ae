//! Kernels as text, for people.

use std::fmt::{self, Write};

use super::{BinOp, Buffer, Kernel, LoopKind, Scalar, ScalarKind, Space, Stmt, TileOperand, TileStep};
use crate::tensor::DType;

/// How tightly an expression binds: what is looser than its surroundings stands in parentheses.
fn operator(op: BinOp) -> Option<(&'static str, u8)> {
    Some(match op {
        BinOp::Or => ("|", 1),
        BinOp::Xor => ("^", 1),
        BinOp::And => ("&", 2),
        BinOp::Eq => ("==", 3),
        BinOp::Ne => ("!=", 3),
        BinOp::Lt => ("<", 3),
        BinOp::Le => ("<=", 3),
        BinOp::Gt => (">", 3),
        BinOp::Ge => (">=", 3),
        BinOp::Shl => ("<<", 4),
        BinOp::Shr => (">>", 4),
        BinOp::Add => ("+", 5),
        BinOp::Sub => ("-", 5),
        BinOp::Mul => ("*", 6),
        BinOp::Div => ("/", 6),
        BinOp::FloorDiv => ("//", 6),
        BinOp::Rem | BinOp::FloorMod | BinOp::Min | BinOp::Max | BinOp::Pow | BinOp::Atan2 => return None,
    })
}

fn expression<W: Write>(f: &mut W, s: &Scalar, around: u8) -> fmt::Result {
    let call = |f: &mut W, name: &str, args: &[&Scalar]| {
        write!(f, "{name}(")?;
        for (i, a) in args.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            expression(f, a, 0)?;
        }
        f.write_char(')')
    };
    match s.kind() {
        ScalarKind::Int(i) if s.dtype() == DType::Bool => write!(f, "{}", *i != 0),
        ScalarKind::Int(i) => write!(f, "{i}"),
        ScalarKind::Float(x) => write!(f, "{x:?}"),
        ScalarKind::Axis(a) => write!(f, "i{}", a.0),
        ScalarKind::Read(b, index) => {
            write!(f, "b{}[", b.0)?;
            for (i, a) in index.iter().enumerate() {
                if i > 0 {
                    f.write_str(", ")?;
                }
                expression(f, a, 0)?;
            }
            f.write_char(']')
        }
        ScalarKind::Binary(op, a, b) => match operator(*op) {
            Some((sign, level)) => {
                let paren = level < around;
                f.write_str(if paren { "(" } else { "" })?;
                expression(f, a, level)?;
                write!(f, " {sign} ")?;
                expression(f, b, level + 1)?;
                f.write_str(if paren { ")" } else { "" })
            }
            None => call(f, &format!("{op:?}").to_lowercase(), &[a, b]),
        },
        ScalarKind::Unary(op, a) => call(f, &format!("{op:?}").to_lowercase(), &[a]),
        ScalarKind::Select(c, a, b) => call(f, "select", &[c, a, b]),
        ScalarKind::Bits(a) => call(f, &format!("bits_{}", s.dtype().name()), &[a]),
        ScalarKind::Cast(a) => call(f, s.dtype().name(), &[a]),
        ScalarKind::Dot(_) => call(f, "dot", &s.operands()),
        ScalarKind::MulShift(_) => call(f, "mul_shift", &s.operands()),
        ScalarKind::Saturate(a) => call(f, &format!("saturate_{}", s.dtype().name()), &[a]),
    }
}

/// Takes text up to a length: shared subexpressions print once per use, so that a small expression may be a long text.
struct Short(String);

impl Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const LONGEST: usize = 2000;
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// A scalar expression in the usual notation, shortened where it is very long.
struct Shown<'a>(&'a Scalar);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Short(String::new());
        let complete = expression(&mut text, self.0, 0).is_ok();
        f.write_str(&text.0)?;
        f.write_str(if complete { "" } else { "…" })
    }
}

/// The first line of a statement, without what it contains.
pub(super) fn line(s: &Stmt) -> String {
    match s {
        Stmt::Block(all) => format!("block of {}", all.len()),
        Stmt::For { var, extent, kind, .. } => {
            let kind = match kind {
                LoopKind::Serial => "for",
                LoopKind::Parallel => "parallel",
                LoopKind::Unrolled => "unroll",
                LoopKind::Vector => "vector",
            };
            format!("{kind} i{} in 0..{}", var.0, Shown(extent))
        }
        Stmt::Store { buffer, index, value } => format!("b{}[{}] = {}", buffer.0, Shown(index), Shown(value)),
        Stmt::Prefetch { buffer, index } => format!("prefetch b{}[{}]", buffer.0, Shown(index)),
        Stmt::Transpose { from, at, stride, to, extent } => {
            format!("b{} = transpose b{}[{}; by {}] of {extent} x {extent}", to.0, from.0, Shown(at), Shown(stride))
        }
        Stmt::Let { var, value, .. } => format!("let i{}: {} = {}", var.0, value.dtype(), Shown(value)),
        Stmt::If { cond, .. } => format!("if {}", Shown(cond)),
        Stmt::While { cond, .. } => format!("while {}", Shown(cond)),
        Stmt::Tiles { block, step } => {
            let sums = format!("tiles b{} of {:?} x {:?}", block.sums.0, block.rows, block.columns);
            let operand = |o: &TileOperand| {
                let at: Vec<String> = o.at.iter().map(|a| Shown(a).to_string()).collect();
                format!("b{}[{}; by {}]", o.buffer.0, at.join("; "), o.stride)
            };
            match &**step {
                TileStep::Clear => format!("{sums} = 0"),
                TileStep::Load => format!("{sums} = memory"),
                TileStep::Add { left, right } => {
                    format!("{sums} += {} * {}, {} deep", operand(left), operand(right), block.depth)
                }
                TileStep::Store => format!("memory = {sums}"),
                TileStep::Wake => format!("wake {sums}"),
            }
        }
    }
}

fn statement(f: &mut fmt::Formatter<'_>, s: &Stmt, depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    match s {
        Stmt::Block(all) => all.iter().try_for_each(|s| statement(f, s, depth)),
        Stmt::Store { .. } | Stmt::Prefetch { .. } | Stmt::Transpose { .. } | Stmt::Tiles { .. } => {
            writeln!(f, "{pad}{}", line(s))
        }
        Stmt::Let { body, .. } => {
            writeln!(f, "{pad}{}", line(s))?;
            statement(f, body, depth)
        }
        Stmt::For { body, .. } | Stmt::While { body, .. } => {
            writeln!(f, "{pad}{} {{", line(s))?;
            statement(f, body, depth + 1)?;
            writeln!(f, "{pad}}}")
        }
        Stmt::If { then, otherwise, .. } => {
            writeln!(f, "{pad}{} {{", line(s))?;
            statement(f, then, depth + 1)?;
            if let Some(otherwise) = otherwise {
                writeln!(f, "{pad}}} else {{")?;
                statement(f, otherwise, depth + 1)?;
            }
            writeln!(f, "{pad}}}")
        }
    }
}

impl fmt::Display for Stmt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        statement(f, self, 0)
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}] ", self.dtype, self.len)?;
        match self.space {
            Space::Input(i) => write!(f, "input {i}"),
            Space::Output(i) => write!(f, "output {i}"),
            Space::Shared => f.write_str("shared"),
            Space::Local => f.write_str("local"),
            Space::Register => f.write_str("register"),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {} {{", self.name)?;
        for (i, b) in self.buffers.iter().enumerate() {
            writeln!(f, "  b{i}: {b}")?;
        }
        statement(f, &self.body, 1)?;
        writeln!(f, "}}")
    }
}
