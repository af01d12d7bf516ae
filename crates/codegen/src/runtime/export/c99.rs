//! A program as C99: as one function, and as files for targets that have nothing but a C compiler.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use super::{ExportError, source, write_tensors};
use crate::output::WorkFolder;
use crate::runtime::{
    plan::Plan,
    program::{Call, Place, Program, Step},
};

/// What the function of a program takes besides tensors.
#[derive(Debug)]
pub struct FunctionText {
    /// `void symbol(const ResatCtx *ctx, void *const *args, unsigned char *workspace)`: `args` are the inputs, then the outputs.
    pub text: String,
    /// Bytes of workspace that it takes.
    pub workspace: usize,
}

/// Whether a step calls the function with an output in an input's place.
pub fn works_in_place(program: &Program, function: &str) -> bool {
    let of = |c: &Call| program.functions[c.function.0 as usize].as_str() == function;
    program.steps.iter().any(|Step::Call(c)| of(c) && !c.in_place.is_empty())
}

/// The C function of a program whose functions are declared before. `constant` gives the C expression of a constant's address.
pub fn c_function(program: &Program, symbol: &str, constant: &dyn Fn(usize) -> String) -> FunctionText {
    let plan = program.plan();
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(&mut text, program, &plan, symbol, constant);
    FunctionText { text, workspace: plan.arena }
}

fn write(
    out: &mut String,
    program: &Program,
    plan: &Plan,
    symbol: &str,
    constant: &dyn Fn(usize) -> String,
) -> std::fmt::Result {
    let first_output = program.inputs.len();
    let at = |place| match place {
        Place::Input(n) => format!("args[{n}]"),
        Place::Output(n) => format!("args[{}]", first_output + n),
        Place::OutputPart(n, at) => format!("(char *)args[{}] + {at}", first_output + n),
        Place::Constant(n) => format!("(void *){}", constant(n)),
        Place::Arena(offset) => format!("workspace + {offset}"),
    };
    writeln!(out, "void {symbol}(const ResatCtx *ctx, void *const *args, unsigned char *workspace) {{")?;
    writeln!(out, "  (void)ctx, (void)args, (void)workspace;")?;
    for &(from, to) in &program.appended {
        let bytes = program.inputs[from].bytes();
        writeln!(out, "  memcpy(args[{}], args[{from}], {bytes});", first_output + to)?;
    }
    for (Step::Call(call), own) in program.steps.iter().zip(&plan.workspaces) {
        let function = &program.functions[call.function.0 as usize];
        let given: Vec<String> = call.args.iter().map(|&(b, _)| at(program.place(plan, b))).collect();
        writeln!(out, "  {{")?;
        writeln!(out, "    void *const given[] = {{{}}};", given.join(", "))?;
        writeln!(out, "    {function}(ctx, given, workspace + {own});\n  }}")?;
    }
    // Outputs that are inputs, constants or other outputs.
    for (i, (port, buffer)) in program.outputs.iter().enumerate() {
        let place = program.place(plan, *buffer);
        if place != Place::Output(i) && port.bytes() > 0 {
            writeln!(out, "  memcpy(args[{}], {}, {});", first_output + i, at(place), port.bytes())?;
        }
    }
    writeln!(out, "}}")
}

/// Weights of more bytes than this are a file of their own: C compilers take long, and much memory, for large arrays.
pub(super) const INLINE_WEIGHTS: usize = 1 << 20;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedC {
    /// The source, C99.
    pub source: PathBuf,
    /// The header, which documents how to call it.
    pub header: PathBuf,
    /// The weights, where they are too large for C; the program gives them to the model when it runs.
    pub weights: Option<PathBuf>,
    /// Why it refuses sizes within bounds that the program takes, and how many, where it does.
    pub unserved: Option<String>,
}

/// Writes a program as C99 that needs a C compiler and libm, nothing else: a source at `path` and a header beside it.
///
/// `kernels` is the text of the program's functions with what they rely on; `constant` gives a constant, of that number, as the
/// definition of an array `c<number>`. Weights of more than a megabyte go to a file beside it with the extension `weights`.
pub fn export_c(
    program: &Program,
    kernels: &str,
    constant: &dyn Fn(usize) -> String,
    path: &Path,
) -> Result<ExportedC, ExportError> {
    let at = |p: &Path| {
        let p = p.to_owned();
        move |e| ExportError::Write(p, e)
    };
    let (header, weights) = (path.with_extension("h"), path.with_extension("weights"));
    let bytes: usize = program.constants().iter().map(|t| t.bytes().len()).sum();
    let apart = bytes > INLINE_WEIGHTS;
    let work = WorkFolder::beside(path).map_err(at(path))?;
    let offsets = match apart {
        true => write_tensors(program.constants(), &work.path().join("weights")).map_err(at(&weights))?,
        false => Vec::new(),
    };
    let size = if apart { std::fs::metadata(work.path().join("weights")).map_err(at(&weights))?.len() } else { 0 };
    let prefix = source::prefix(program.name());
    let function = match apart {
        true => c_function(program, "resat_model", &|i| format!("(weights + {})", offsets[i])),
        false => c_function(program, "resat_model", &|i| format!("c{i}")),
    };
    let mut text = String::from(kernels);
    match apart {
        true => text += "static const unsigned char *weights;\n\n",
        false => (0..program.constants().len()).for_each(|i| text += &constant(i)),
    }
    let name = header.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let text = format!(
        "#include \"{name}\"\n#include <stdlib.h>\n{text}static {}\n{}",
        function.text,
        entry(program, &prefix, size)
    );
    let declared = c_header(program, &prefix, function.workspace, size);
    std::fs::write(work.path().join("source"), text).map_err(at(path))?;
    std::fs::write(work.path().join("header"), declared).map_err(at(&header))?;
    let parts = [("weights", &*weights), ("header", &header), ("source", path)];
    work.publish(&parts[usize::from(!apart)..]).map_err(|(p, e)| ExportError::Write(p, e))?;
    Ok(ExportedC { source: path.to_owned(), header, weights: apart.then_some(weights), unserved: None })
}

/// The functions that the header declares.
fn entry(program: &Program, prefix: &str, weights: u64) -> String {
    let (inputs, outputs) = (program.inputs().len(), program.outputs().len());
    let upper = prefix.to_ascii_uppercase();
    let set = match weights {
        0 => String::new(),
        n => format!(
            "int {prefix}_set_weights(const void *all, uint64_t bytes) {{\n  if (!all || bytes != {n}) return RESAT_BAD_ARGUMENT;\n  \
             weights = (const unsigned char *)all;\n  return RESAT_OK;\n}}\n\n"
        ),
    };
    let missing = if weights > 0 { "  if (!weights) return RESAT_BAD_ARGUMENT;\n" } else { "" };
    // C has no arrays without elements.
    let all = (inputs + outputs).max(1);
    format!(
        "{set}int {prefix}_run(const void *const *inputs, void *const *outputs, void *workspace) {{
  void *args[{all}] = {{0}};
  unsigned char *own = NULL;
{missing}  for (int i = 0; i < {inputs}; i++) args[i] = (void *)inputs[i];
  for (int i = 0; i < {outputs}; i++) args[{inputs} + i] = outputs[i];
  if (!workspace && {upper}_WORKSPACE_BYTES > 0) {{
    workspace = own = (unsigned char *)malloc({upper}_WORKSPACE_BYTES);
    if (!own) return RESAT_NO_MEMORY;
  }}
  resat_model(NULL, args, (unsigned char *)workspace);
  free(own);
  return RESAT_OK;
}}
"
    )
}

fn c_header(program: &Program, prefix: &str, workspace: usize, weights: u64) -> String {
    let upper = prefix.to_ascii_uppercase();
    let ports = source::ports_text(program);
    let set = match weights {
        0 => String::new(),
        n => format!(
            "\n/* Gives the model its weights, which stay where they are: the {n} bytes of the file `.weights` beside the source, aligned\n   \
             to 8 bytes, on a machine of little-endian order. To be called before the first run. */\n\
             #define {upper}_WEIGHTS_BYTES {n}\nint {prefix}_set_weights(const void *weights, uint64_t bytes);\n"
        ),
    };
    format!(
        "/* A model in C99. Compile the source beside this header and link with libm; with OpenMP (-fopenmp), loops run on several
   threads.

   Arrays are dense and row-major, aligned to their elements:
{ports}   Functions may be called from several threads at once. */
#ifndef {upper}_H
#define {upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {{
#endif

#define {upper}_INPUTS {}
#define {upper}_OUTPUTS {}

/* Bytes that `workspace` must have. */
#define {upper}_WORKSPACE_BYTES {workspace}

#if !defined(RESAT_MODEL_TYPES) && !defined(RESAT_MODEL_CODES)
#define RESAT_MODEL_CODES
enum {{
  RESAT_OK = 0,
  RESAT_BAD_ARGUMENT = 1,
  RESAT_NO_MEMORY = 2
}};
#endif
{set}
/* Runs the model once. Inputs are only read. Outputs must not overlap each other, inputs or the workspace. `workspace` is
   scratch memory of {upper}_WORKSPACE_BYTES, aligned to 8 bytes, for the time of this call; where it is NULL, the call takes and
   frees its own. Returns RESAT_OK or what was wrong. */
int {prefix}_run(const void *const *inputs, void *const *outputs, void *workspace);

#ifdef __cplusplus
}}
#endif
#endif
",
        program.inputs().len(),
        program.outputs().len(),
    )
}
