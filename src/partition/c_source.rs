//! The compiler `c`: regions as plain C99.

use std::fmt::Write;

use super::{Compiled, CompilerError, ExternalCompiler, Region};
use crate::{
    codegen::{
        CodeGenerator,
        c::{self, C99},
    },
    diag::Refused,
    infer::infer_types,
    ir::{Attrs, ExprId, OpId, Type, reachable},
    loops::{Builder, Kernel, Operand},
    lower::{Assembled, CodeSet, assemble},
    machine::Core,
    ops::kernel::LARGEST_KERNEL,
    pass::fuse,
    runtime::{
        Program,
        export::{c_function, works_in_place},
    },
    tensor::Tensor,
};

/// The kernels that are written as C, with none yet.
pub(crate) fn no_kernels() -> CodeSet {
    CodeSet::new(C99.core(Core::SCALAR))
}

/// The compiler `c`: every operator that has kernels, grouped into kernels as everywhere, written as C99 instead of given to LLVM.
#[derive(Debug)]
pub struct CSource;

impl ExternalCompiler for CSource {
    fn name(&self) -> &str {
        "c"
    }

    fn supports(&self, op: OpId, attrs: &Attrs, args: &[Type], result: &Type) -> bool {
        // Whatever has tensor expressions: tried, as lowering is cheap and decides by itself.
        let known = |t: &Type| t.flatten().is_some_and(|all| all.iter().all(|t| t.known_shape().is_some()));
        if !known(result) || !op.op().decided_by(attrs).is_empty() {
            return false;
        }
        let mut b = Builder::new();
        let Some(args) = args.iter().map(|t| operand(&mut b, t)).collect::<Option<Vec<_>>>() else { return false };
        // A result that is cut while running is not what a caller of a region expects.
        op.op().lower(attrs, &args, &mut b).is_ok_and(|out| b.finish_with(&out).counted.is_empty())
    }

    /// Scalar loops, of which the C compiler makes vectors where it can: so many operations and bytes a second, one operator after
    /// another, on one thread.
    fn cost(&self, region: &Region<'_>) -> Option<f64> {
        const OPERATIONS: f64 = 3.0e9;
        const BYTES: f64 = 8.0e9;
        let (typed, m) = (region.typed(), region.module());
        let seconds = |e: ExprId| {
            let (op, args, attrs) = m.op_call(e)?;
            let types: Vec<Type> = args.iter().map(|&a| typed.ty(a).clone()).collect();
            let work = op.op().work(attrs, &types, typed.ty(e));
            Some((work.flops / OPERATIONS).max((work.bytes_read + work.bytes_written) / BYTES))
        };
        Some(reachable(m, [region.function().body]).into_iter().filter_map(seconds).sum())
    }

    fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError> {
        let compiled = || -> Result<Compiled, Refused> {
            let fused = infer_types(fuse(&infer_types(region.plain()?)?, LARGEST_KERNEL))?;
            let typed = infer_types(fuse(&fused, 1))?;
            let mut code = no_kernels();
            let Assembled { program, .. } = assemble(&typed, "main", region.symbol(), &mut code)?;
            let (text, workspace) = source(&program, &code, region.symbol());
            Ok(Compiled::source(text).with_workspace(workspace))
        };
        compiled().map_err(|e| region.refuse(e.to_string()))
    }
}

fn operand(b: &mut Builder, ty: &Type) -> Option<Operand> {
    Some(match ty {
        Type::Tensor(t) => b.arg(&t.known_shape()?, t.dtype).into(),
        Type::Tuple(f) => Operand::Tuple(f.iter().map(|t| operand(b, t)).collect::<Option<_>>()?),
        _ => return None,
    })
}

/// The functions of a program that are kernels, with what they rely on.
pub(crate) fn kernels(program: &Program, code: &CodeSet) -> String {
    let kernel = |k: &Kernel| c::kernel(k, &k.name, works_in_place(program, &k.name));
    String::from(c::PRELUDE) + &code.kernels.iter().map(kernel).collect::<String>()
}

/// Kernels, with what they rely on. An output may be the same memory as an input wherever that is possible.
pub(crate) fn all(kernels: &[Kernel]) -> String {
    String::from(c::PRELUDE)
        + &kernels.iter().map(|k| c::kernel(k, &k.name, !k.in_place().is_empty())).collect::<String>()
}

/// A program whose functions are all kernels as a C file with one function, and the workspace that that takes.
fn source(program: &Program, code: &CodeSet, symbol: &str) -> (String, usize) {
    let mut text = kernels(program, code);
    for (i, t) in program.constants().iter().enumerate() {
        text += &constant(i, t);
    }
    let function = c_function(program, symbol, &|i| format!("c{i}"));
    (text + &function.text, function.workspace)
}

/// A constant as an array.
pub(crate) fn constant(number: usize, t: &Tensor) -> String {
    // An array of no elements is no C.
    let values: Vec<String> = match t.is_empty() {
        true => vec!["0".into()],
        false => (0..t.len()).map(|i| c::constant(t, i)).collect(),
    };
    let mut out = format!("static const {} c{number}[] = {{\n", c::memory_type(t.dtype()));
    for line in values.chunks(PER_LINE) {
        // Writing into a string does not fail.
        let _ = writeln!(out, "  {},", line.join(", "));
    }
    out + "};\n\n"
}

/// Numbers in a line of an array.
const PER_LINE: usize = 8;
