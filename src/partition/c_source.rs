//! The compiler `c`: regions as plain C99, made by the system's C compiler (`CC`, else `cc`).

use std::fmt::Write;

use super::{Compiled, CompilerError, ExternalCompiler, Region};
use crate::{
    ir::{Attrs, OpId, Type},
    loops::{BinOp, Buffer, Builder, Kernel, LoopKind, Operand, Scalar, ScalarKind, Space, Stmt, UnOp},
    lower::{self, VectorUnit},
    tensor::DType,
};

/// Scalar code: the C compiler may vectorize what it likes. Enough registers for tiles of four by four.
const SCALAR: VectorUnit = VectorUnit { bytes: 4, registers: 16, dot: 0 };

/// The compiler `c`.
#[derive(Debug)]
pub struct CSource;

impl ExternalCompiler for CSource {
    fn name(&self) -> &str {
        "c"
    }

    fn supports(&self, op: OpId, attrs: &Attrs, args: &[Type], result: &Type) -> bool {
        // Whatever has tensor expressions that C can say: tried, as lowering is cheap and decides by itself.
        let mut b = Builder::new();
        let Some(args) = args.iter().map(|t| operand(&mut b, t)).collect::<Option<Vec<_>>>() else { return false };
        let Ok(out) = op.op().lower(attrs, &args, &mut b) else { return false };
        // A result that is cut while running is not what a caller of a region expects.
        let group = b.finish_with(&out);
        let whole = group.counted.is_empty() && result.flatten().is_some();
        whole && source("probe", &lower::kernel("probe", &group, SCALAR)).is_ok()
    }

    fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError> {
        let group = lower::stages(region.module(), region.function()).map_err(|e| region.refuse(e.to_string()))?.stages;
        let kernel = lower::kernel(region.symbol(), &group, SCALAR);
        let text = source(region.symbol(), &kernel).map_err(|e| region.refuse(e))?;
        Ok(Compiled::source(text).with_workspace(kernel.workspace().1 as usize))
    }
}

fn operand(b: &mut Builder, ty: &Type) -> Option<Operand> {
    Some(match ty {
        Type::Tensor(t) => b.arg(&t.known_shape()?, t.dtype).into(),
        Type::Tuple(f) => Operand::Tuple(f.iter().map(|t| operand(b, t)).collect::<Option<_>>()?),
        _ => return None,
    })
}

/// A kernel as a C file; `Err` says what C has no plain words for.
fn source(symbol: &str, kernel: &Kernel) -> Result<String, String> {
    let mut c = Printer { kernel, out: String::new(), depth: 1 };
    let (offsets, _) = kernel.workspace();
    let mut head = String::from(PRELUDE);
    let _ = writeln!(head, "void {symbol}(const void *ctx, void *const *args, unsigned char *workspace) {{");
    for (i, (b, offset)) in kernel.buffers.iter().zip(offsets).enumerate() {
        let ty = c_type(b.dtype)?;
        let _ = match (b.space, offset) {
            (Space::Input(n), _) => writeln!(head, "  const {ty} *restrict b{i} = args[{n}];"),
            (Space::Output(n), _) => writeln!(head, "  {ty} *restrict b{i} = args[{n}];"),
            (_, Some(at)) => writeln!(head, "  {ty} *restrict b{i} = ({ty} *)(workspace + {at});"),
            _ => writeln!(head, "  {ty} b{i}[{}];", b.len),
        };
    }
    c.stmt(&kernel.body)?;
    Ok(format!("{head}{}}}\n", c.out))
}

/// What the generated code relies on. Integer shifts and divisions that C leaves undefined do not occur in legal programs.
const PRELUDE: &str = "#include <stdint.h>\n#include <math.h>\n\n\
static inline int64_t floordiv(int64_t a, int64_t b) { int64_t q = a / b; return q - ((a % b != 0) && ((a < 0) != (b < 0))); }\n\
static inline int64_t floormod(int64_t a, int64_t b) { return a - floordiv(a, b) * b; }\n\
#define PICK(T) static inline T least_##T(T a, T b) { return a < b ? a : b; } static inline T most_##T(T a, T b) { return a > b ? a : b; }\n\
PICK(int8_t) PICK(int16_t) PICK(int32_t) PICK(int64_t) PICK(uint8_t) PICK(uint16_t) PICK(uint32_t) PICK(uint64_t) PICK(float) PICK(double)\n\n";

fn c_type(d: DType) -> Result<&'static str, String> {
    Ok(match d {
        DType::Bool | DType::U8 => "uint8_t",
        DType::I8 => "int8_t",
        DType::I16 => "int16_t",
        DType::I32 => "int32_t",
        DType::I64 => "int64_t",
        DType::U16 => "uint16_t",
        DType::U32 => "uint32_t",
        DType::U64 => "uint64_t",
        DType::F32 => "float",
        DType::F64 => "double",
        DType::F16 | DType::BF16 => return Err(format!("C99 has no type for {d}")),
    })
}

struct Printer<'a> {
    kernel: &'a Kernel,
    out: String,
    depth: usize,
}

impl Printer<'_> {
    fn line(&mut self, text: &str) {
        self.out.push_str(&"  ".repeat(self.depth));
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn block(&mut self, head: &str, body: &Stmt) -> Result<(), String> {
        self.line(&format!("{head} {{"));
        self.depth += 1;
        self.stmt(body)?;
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    fn stmt(&mut self, s: &Stmt) -> Result<(), String> {
        match s {
            Stmt::Block(all) => all.iter().try_for_each(|s| self.stmt(s)),
            // One thread: a parallel loop is a loop. The lanes of a vector run one after another; schedules for scalar code
            // make no vectors whose lanes read what other lanes write.
            Stmt::For {
                var,
                extent,
                kind: LoopKind::Serial | LoopKind::Parallel | LoopKind::Unrolled | LoopKind::Vector,
                body,
            } => {
                // The extent may read what the body writes, but counts as it was before.
                let (v, n) = (var.0, expr(extent)?);
                self.block(&format!("for (int64_t i{v} = 0, n{v} = {n}; i{v} < n{v}; i{v}++)"), body)
            }
            Stmt::Store { buffer, index, value } => {
                let Buffer { dtype, .. } = self.kernel.buffers[buffer.0 as usize];
                let text = format!("b{}[{}] = ({})({});", buffer.0, expr(index)?, c_type(dtype)?, expr(value)?);
                self.line(&text);
                Ok(())
            }
            Stmt::Let { var, value, body } => {
                let name = format!("{{ const {} i{} = {};", c_type(value.dtype())?, var.0, expr(value)?);
                self.line(&name);
                self.depth += 1;
                self.stmt(body)?;
                self.depth -= 1;
                self.line("}");
                Ok(())
            }
            Stmt::While { cond, body } => self.block(&format!("while ({})", expr(cond)?), body),
            Stmt::If { cond, then, otherwise } => {
                self.block(&format!("if ({})", expr(cond)?), then)?;
                match otherwise {
                    Some(o) => self.block("else", o),
                    None => Ok(()),
                }
            }
        }
    }
}

fn float(x: f64, d: DType) -> String {
    let suffix = if d == DType::F32 { "f" } else { "" };
    match x {
        x if x.is_nan() => format!("((({})0.0) / 0.0)", if d == DType::F32 { "float" } else { "double" }),
        x if x.is_infinite() => format!("({}HUGE_VAL)", if x < 0.0 { "-" } else { "" }),
        x => format!("({x:e}{suffix})"),
    }
}

/// A scalar expression in C. Results narrower than `int` are cut back to their type after each operation.
fn expr(e: &Scalar) -> Result<String, String> {
    let d = e.dtype();
    let ty = c_type(d)?;
    Ok(match e.kind() {
        ScalarKind::Int(i) if d == DType::U64 => format!("({}u)", *i as u64),
        ScalarKind::Int(i) if *i == i64::MIN => "(INT64_MIN)".into(),
        ScalarKind::Int(i) if d == DType::I64 => format!("((int64_t){i})"),
        ScalarKind::Int(i) => format!("(({ty}){i})"),
        ScalarKind::Float(x) => float(*x, d),
        ScalarKind::Axis(a) => format!("i{}", a.0),
        ScalarKind::Read(b, index) => match &index[..] {
            [i] => format!("b{}[{}]", b.0, expr(i)?),
            _ => return Err("a read that is not flat".into()),
        },
        ScalarKind::Select(c, a, b) => format!("({} ? {} : {})", expr(c)?, expr(a)?, expr(b)?),
        ScalarKind::Bits(_) => return Err("C99 has no plain words for the bits of a float".into()),
        ScalarKind::Cast(a) => match d {
            DType::Bool => format!("({} != 0)", expr(a)?),
            _ => format!("(({ty}){})", expr(a)?),
        },
        ScalarKind::Unary(op, a) => unary(*op, a, ty)?,
        ScalarKind::Binary(op, a, b) => binary(*op, a, b, ty)?,
    })
}

fn unary(op: UnOp, a: &Scalar, ty: &str) -> Result<String, String> {
    let (x, d) = (expr(a)?, a.dtype());
    let f = |name: &str| format!("{name}{}({x})", if d == DType::F32 { "f" } else { "" });
    Ok(match op {
        UnOp::Neg => format!("(({ty})(-{x}))"),
        UnOp::Abs if d.is_float() => f("fabs"),
        UnOp::Abs => format!("(({ty})most_{ty}({x}, -{x}))"),
        UnOp::Not if d == DType::Bool => format!("(!{x})"),
        UnOp::Not => format!("(({ty})(~{x}))"),
        UnOp::Exp => f("exp"),
        UnOp::Exp2 => f("exp2"),
        UnOp::Log => f("log"),
        UnOp::Log2 => f("log2"),
        UnOp::Log10 => f("log10"),
        UnOp::Sqrt => f("sqrt"),
        UnOp::Rsqrt => format!("(1 / {})", f("sqrt")),
        UnOp::Erf => f("erf"),
        UnOp::Sigmoid => format!("(1 / (1 + exp{}(-{x})))", if d == DType::F32 { "f" } else { "" }),
        UnOp::Tanh => f("tanh"),
        UnOp::Sin => f("sin"),
        UnOp::Cos => f("cos"),
        UnOp::Tan => f("tan"),
        UnOp::Asin => f("asin"),
        UnOp::Acos => f("acos"),
        UnOp::Atan => f("atan"),
        UnOp::Sinh => f("sinh"),
        UnOp::Cosh => f("cosh"),
        UnOp::Asinh => f("asinh"),
        UnOp::Acosh => f("acosh"),
        UnOp::Atanh => f("atanh"),
        UnOp::Floor => f("floor"),
        UnOp::Ceil => f("ceil"),
        UnOp::Trunc => f("trunc"),
        UnOp::Round => f("round"),
        UnOp::RoundEven => f("rint"),
        UnOp::IsNan => format!("(isnan({x}) != 0)"),
        UnOp::IsInf => format!("(isinf({x}) != 0)"),
        UnOp::IsFinite => format!("(isfinite({x}) != 0)"),
        UnOp::Popcount => return Err("C99 has no population count".into()),
    })
}

fn binary(op: BinOp, a: &Scalar, b: &Scalar, ty: &str) -> Result<String, String> {
    let (x, y, d) = (expr(a)?, expr(b)?, a.dtype());
    let f = |name: &str| format!("{name}{}({x}, {y})", if d == DType::F32 { "f" } else { "" });
    let plain = |sign: &str| format!("(({ty})({x} {sign} {y}))");
    let test = |sign: &str| format!("({x} {sign} {y})");
    Ok(match op {
        BinOp::Add => plain("+"),
        BinOp::Sub => plain("-"),
        BinOp::Mul => plain("*"),
        BinOp::Div => plain("/"),
        BinOp::Rem if d.is_float() => f("fmod"),
        BinOp::Rem => plain("%"),
        BinOp::FloorDiv if d.is_float() => format!("floor{}({x} / {y})", if d == DType::F32 { "f" } else { "" }),
        BinOp::FloorMod if d.is_float() => {
            let q = format!("floor{}({x} / {y})", if d == DType::F32 { "f" } else { "" });
            format!("({x} - {q} * {y})")
        }
        BinOp::FloorDiv if d.is_unsigned_int() => plain("/"),
        BinOp::FloorMod if d.is_unsigned_int() => plain("%"),
        BinOp::FloorDiv => format!("(({ty})floordiv({x}, {y}))"),
        BinOp::FloorMod => format!("(({ty})floormod({x}, {y}))"),
        BinOp::Min => format!("least_{ty}({x}, {y})"),
        BinOp::Max => format!("most_{ty}({x}, {y})"),
        BinOp::Pow => f("pow"),
        BinOp::Atan2 => f("atan2"),
        BinOp::And => plain("&"),
        BinOp::Or => plain("|"),
        BinOp::Xor => plain("^"),
        BinOp::Shl => plain("<<"),
        BinOp::Shr => plain(">>"),
        BinOp::Eq => test("=="),
        BinOp::Ne => test("!="),
        BinOp::Lt => test("<"),
        BinOp::Le => test("<="),
        BinOp::Gt => test(">"),
        BinOp::Ge => test(">="),
    })
}
