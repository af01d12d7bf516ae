//! Kernels as C99, from the same loop nests that LLVM is given. What a program of them needs besides is a C compiler and libm.
//!
//! Integers wrap around and never overflow as C means it; floats are computed as the nests say, short ones by conversion.
//! Parallel loops are functions of their own, for whatever threads there are.

mod expr;
mod stmt;

use std::fmt::Write;

use super::{Code, CodeGenerator, CodegenError, CodegenTarget, cc::described};
use crate::{
    loops::{Kernel, Space},
    machine::Core,
    tensor::DType,
};

/// What the code of kernels relies on: once at the head of each file.
pub const PRELUDE: &str = include_str!("prelude.h");

/// C99 for the target's C compiler.
#[derive(Debug)]
pub struct C99;

impl CodeGenerator for C99 {
    fn name(&self) -> &str {
        "c"
    }

    fn version(&self, target: &CodegenTarget) -> String {
        described(target)
    }

    /// Scalar code: the C compiler may vectorize what it likes. Enough registers for tiles of four by four.
    fn core(&self, _: Core) -> Core {
        Core::SCALAR
    }

    fn supports(&self, _: &Kernel, _: &CodegenTarget) -> Result<(), CodegenError> {
        Ok(())
    }

    fn generate(&self, k: &Kernel, _: &CodegenTarget) -> Result<Code, CodegenError> {
        let body = kernel(k, "body", !k.in_place().is_empty());
        let entry = format!(
            "void {}(const ResatCtx *ctx, void *const *args, unsigned char *workspace) {{\n  body(ctx, args, workspace);\n}}\n",
            k.name
        );
        Ok(Code::Source(format!("{PRELUDE}{body}{entry}")))
    }
}

/// A kernel as a C function `static void name(const ResatCtx *ctx, void *const *args, unsigned char *workspace)`, in the
/// convention of [`abi`](crate::runtime::abi); `ctx` may be null. With `in_place`, an output may be the same memory as an
/// input. Panics where the kernel is not one that [`check`](crate::loops::check) passes.
pub fn kernel(kernel: &Kernel, name: &str, in_place: bool) -> String {
    let pointers = pointers(kernel, in_place);
    let mut printer = stmt::Printer::new(kernel, name, &pointers);
    printer.stmt(&kernel.body);
    let (bodies, body) = printer.finish();
    format!(
        "{bodies}static void {name}(const ResatCtx *ctx, void *const *args, unsigned char *workspace) {{\n{pointers}{}  \
         (void)ctx, (void)workspace;\n{body}}}\n\n",
        locals(kernel),
    )
}

/// Declarations of the buffers that callers give.
fn pointers(kernel: &Kernel, in_place: bool) -> String {
    let (offsets, _) = kernel.workspace();
    let restrict = if in_place { "" } else { "restrict " };
    let mut out = String::new();
    for (i, (b, offset)) in kernel.buffers.iter().zip(offsets).enumerate() {
        let ty = memory_type(b.dtype);
        // Writing into a string does not fail.
        let _ = match (b.space, offset) {
            (Space::Input(n), _) => writeln!(out, "  const {ty} *{restrict}b{i} = (const {ty} *)args[{n}];"),
            (Space::Output(n), _) => writeln!(out, "  {ty} *{restrict}b{i} = ({ty} *)args[{n}];"),
            (Space::Shared, Some(at)) => writeln!(out, "  {ty} *{restrict}b{i} = ({ty} *)(workspace + {at});"),
            _ => continue,
        };
        let _ = writeln!(out, "  (void)b{i};");
    }
    out
}

/// Declarations of what each thread has of its own.
fn locals(kernel: &Kernel) -> String {
    let own = |b: &crate::loops::Buffer| matches!(b.space, Space::Local | Space::Register);
    let declared = kernel.buffers.iter().enumerate().filter(|(_, b)| own(b));
    // Cleared, for the sake of compilers' warnings: nests read what they have written.
    declared
        .map(|(i, b)| format!("  {} b{i}[{}] = {{0}};\n  (void)b{i};\n", memory_type(b.dtype), b.len.max(1)))
        .collect()
}

/// How elements lie in memory.
pub fn memory_type(d: DType) -> &'static str {
    match d {
        DType::Bool | DType::U8 => "uint8_t",
        DType::I8 => "int8_t",
        DType::I16 => "int16_t",
        DType::I32 => "int32_t",
        DType::I64 => "int64_t",
        DType::U16 | DType::F16 | DType::BF16 => "uint16_t",
        DType::U32 => "uint32_t",
        DType::U64 => "uint64_t",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// What values are computed in.
fn value_type(d: DType) -> &'static str {
    match d {
        DType::F16 | DType::BF16 => "float",
        d => memory_type(d),
    }
}

/// A number as a constant expression: of short floats, their bits.
pub fn constant(t: &crate::tensor::Tensor, i: usize) -> String {
    match t.dtype() {
        DType::F16 => half::f16::from_f64(t.get_f64(i)).to_bits().to_string(),
        DType::BF16 => half::bf16::from_f64(t.get_f64(i)).to_bits().to_string(),
        d if d.is_float() => expr::float(t.get_f64(i), d),
        d => expr::int(t.get_i64(i), d),
    }
}
