//! The C sources of an exported library: its header, and a driver that runs the steps.

use std::fmt::Write;

use super::HEADER;
use crate::runtime::{
    Port,
    plan::Plan,
    program::{Place, Program, Step},
};

/// Threads: the same for every model.
pub(super) const THREADS: &str = include_str!("threads.c");

/// Checks and the loop over steps: the same for every model of known extents.
const SUPPORT: &str = include_str!("support.c");

/// Types that the headers of several models share.
pub(super) const TYPES: &str = include_str!("types.h");

/// A C identifier made of a program's name: what all its exported symbols start with.
pub(super) fn prefix(name: &str) -> String {
    let mut id: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !id.starts_with(|c: char| c.is_ascii_alphabetic()) {
        id.insert_str(0, "model_");
    }
    id
}

/// A C string literal.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for b in text.bytes() {
        match b {
            b'"' | b'\\' | b'?' => out.extend(['\\', b as char]),
            b' '..=b'~' => out.push(b as char),
            _ => out.push_str(&format!("\\{b:03o}")),
        }
    }
    out + "\""
}

/// Text that is safe within a C comment.
pub(super) fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || c == '*' { '_' } else { c }).collect()
}

/// The header that C programs include.
pub(super) fn header(program: &Program, plan: &Plan, ready: &[String]) -> String {
    let p = prefix(program.name());
    let upper = p.to_ascii_uppercase();
    let ports = ports_text(program);
    let needs = match ready.is_empty() {
        true => "",
        false => ",\n   and libraries of the system for some of its functions: runs say what is missing (RESAT_FAILED)",
    };
    let about = format!(
        "A compiled model. Link with the shared library beside this header; it needs the C library, libm and POSIX threads{needs}.

   Arrays are dense and row-major. Every pointer is to memory aligned to RESAT_ALIGN (64) bytes:
{ports}
   A model that was built for a processor with matrix registers (AMX) asks Linux for them when the library is loaded; where they are
   refused, runs return RESAT_REFUSED.

   Functions may be called from several threads at once, runs with outputs and workspaces of their own; inputs and weights are shared."
    );
    let declared = format!(
        "#define {upper}_INPUTS {}
#define {upper}_OUTPUTS {}

/* Bytes that `workspace` must have, on a boundary of RESAT_ALIGN. */
#define {upper}_WORKSPACE_BYTES {}

/* Runs the model once. Inputs are only read. Outputs must not overlap each other, inputs or the workspace. `workspace` is
   scratch memory of {upper}_WORKSPACE_BYTES for the time of this call, which no other call uses meanwhile; where it is NULL, the
   call takes and frees its own.
   Returns RESAT_OK or what was wrong. */
int {p}_run(const void *const *inputs, void *const *outputs, void *workspace);

{threads}
/* Names, types and sizes. */
const resat_model *{p}_model(void);

/* What was wrong in the calling thread's last run that returned RESAT_FAILED; NULL before. */
const char *{p}_error(void);
",
        program.inputs().len(),
        program.outputs().len(),
        plan.arena,
        threads = declared_threads(&p),
    );
    header_text(&p, &about, &declared)
}

/// Inputs and outputs, for comments: a line each.
pub(super) fn ports_text(program: &Program) -> String {
    let ports = |what: &str, ports: &mut dyn Iterator<Item = &Port>| {
        let line = |(i, port): (usize, &Port)| {
            format!(
                "     {what}[{i}]: {:?}, {} of shape {:?}, {} bytes\n",
                comment(&port.name),
                port.dtype,
                &port.shape[..],
                port.bytes()
            )
        };
        ports.enumerate().map(line).collect::<String>()
    };
    ports("inputs", &mut program.inputs().iter()) + &ports("outputs", &mut program.outputs())
}

/// What can be seen of a library from outside: nothing but the interface.
pub(super) fn symbols(program: &Program) -> Vec<String> {
    let p = prefix(program.name());
    let own = ["run", "set_threads", "model", "error"].map(|what| format!("{p}_{what}"));
    own.into_iter().chain(["resat_model_v1".to_owned(), "resat_error_v1".to_owned()]).collect()
}

/// What kernels are called with, and functions that say what keeps others from being called.
fn declare(ready: &[String]) -> String {
    let mut out = String::from(
        "typedef void (*parallel_body)(void *env, int64_t begin, int64_t end);
struct ResatCtx {
  void (*parallel_for)(const struct ResatCtx *, parallel_body, void *env, int64_t n);
  const void *pool;
  int64_t threads;
};
",
    );
    for f in ready {
        out += &format!("const char *{f}(const struct ResatCtx *);\n");
    }
    out += "static const char *(*const ready[])(const struct ResatCtx *) = {\n";
    for f in ready {
        out += &format!("  {f},\n");
    }
    out + "  NULL\n};\n"
}

/// What stands before everything else in the C of a library: what it includes, its name and weights, and the kernels that it calls.
pub(super) fn prologue<'a>(name: &str, ready: &[String], kernels: impl IntoIterator<Item = &'a str>) -> String {
    let mut out = format!("#define _POSIX_C_SOURCE 200809L\n#include {}\n", quoted(HEADER));
    for file in ["pthread", "sched", "stdarg", "stdio", "stdlib", "string"] {
        out += &format!("#include <{file}.h>\n");
    }
    out.push('\n');
    out += &declare(ready);
    for k in kernels {
        out += &format!("void {k}(const struct ResatCtx *, void *const *, void *);\n");
    }
    let weights = weights_symbol(name);
    out += &format!("#define MODEL_NAME {}\n", quoted(name));
    out += &format!("extern const unsigned char {weights}[] __attribute__((visibility(\"hidden\")));\n");
    out + &format!("#define WEIGHTS {weights}\n")
}

/// A header: what it is about, for a comment, and what it declares.
pub(super) fn header_text(p: &str, about: &str, declared: &str) -> String {
    let upper = p.to_ascii_uppercase();
    format!(
        "/* {about} */
#ifndef {upper}_H
#define {upper}_H

{TYPES}
#ifdef __cplusplus
extern \"C\" {{
#endif

{declared}
#ifdef __cplusplus
}}
#endif
#endif
"
    )
}

/// How threads are set, as headers declare it.
pub(super) fn declared_threads(p: &str) -> String {
    format!(
        "/* Sets how many threads share the work of runs to come, the caller counted: 1 at first, at most 256. Waits for runs under
   way. Where the system gives fewer, returns RESAT_NO_MEMORY and uses those. */
int {p}_set_threads(int threads);
"
    )
}

/// The driver. `weights` gives each constant's offset in the block of weights.
///
/// `ready` are functions that say what keeps others from being called.
pub(super) fn driver(program: &Program, plan: &Plan, weights: &[usize], ready: &[String]) -> String {
    let mut out = String::new();
    // Writing into a String does not fail.
    let _ = write_driver(&mut out, program, plan, weights, ready);
    out
}

fn write_driver(
    out: &mut String,
    program: &Program,
    plan: &Plan,
    weights: &[usize],
    ready: &[String],
) -> std::fmt::Result {
    let p = prefix(program.name());
    *out += &prologue(program.name(), ready, program.functions());
    out.push('\n');
    write_ports(out, "input", program.inputs())?;
    write_ports(out, "output", &program.outputs().cloned().collect::<Vec<_>>())?;

    writeln!(out, "struct place {{ enum {{ INPUT, OUTPUT, CONSTANT, ARENA }} kind; uint64_t at; }};")?;
    let place = |buffer| match program.place(plan, buffer) {
        Place::Input(n) => format!("{{INPUT, {n}}}"),
        Place::Output(n) => format!("{{OUTPUT, {n}}}"),
        Place::OutputPart(..) => unreachable!("libraries of programs that append to what they keep are refused"),
        Place::Constant(n) => format!("{{CONSTANT, {}}}", weights[n]),
        Place::Arena(offset) => format!("{{ARENA, {offset}}}"),
    };
    writeln!(out, "static const struct place places[] = {{")?;
    for Step::Call(call) in program.steps() {
        let places: Vec<String> = call.args.iter().map(|&(b, _)| place(b)).collect();
        writeln!(out, "  {},", places.join(", "))?;
    }
    writeln!(out, "  {{INPUT, 0}}\n}};\nstatic const struct place results[] = {{")?;
    for (_, buffer) in &program.outputs {
        writeln!(out, "  {},", place(*buffer))?;
    }
    writeln!(out, "  {{INPUT, 0}}\n}};")?;
    writeln!(out, "static const struct {{")?;
    writeln!(out, "  void (*function)(const struct ResatCtx *, void *const *, void *);")?;
    writeln!(out, "  uint32_t args;\n  uint64_t workspace;\n}} steps[] = {{")?;
    for (Step::Call(call), workspace) in program.steps().iter().zip(&plan.workspaces) {
        let function = &program.functions[call.function.0 as usize];
        writeln!(out, "  {{{function}, {}, {workspace}}},", call.args.len())?;
    }
    writeln!(out, "  {{NULL, 0, 0}}\n}};")?;
    let most_args = program.steps().iter().map(|Step::Call(c)| c.args.len()).max().unwrap_or(0).max(1);
    writeln!(out, "enum {{ MAX_ARGS = {most_args} }};")?;
    for (name, value) in [
        ("STEPS", program.steps().len()),
        ("INPUTS", program.inputs().len()),
        ("OUTPUTS", program.outputs().len()),
        ("WORKSPACE_BYTES", plan.arena),
    ] {
        writeln!(out, "static const size_t {name} = {value};")?;
    }
    writeln!(
        out,
        "
static void *locate(const struct place *p, const void *const *inputs, void *const *outputs, unsigned char *arena) {{
  switch (p->kind) {{
    case INPUT: return (void *)(uintptr_t)inputs[p->at];
    case OUTPUT: return outputs[p->at];
    case CONSTANT: return (void *)(uintptr_t)(WEIGHTS + p->at);
    case ARENA: return arena + p->at;
  }}
  return NULL;
}}

{THREADS}
{SUPPORT}
static const resat_model model = {{
  MODEL_NAME, {inputs}, {outputs}, input_tensors, output_tensors, {arena}, run, set_threads
}};

int {p}_run(const void *const *inputs, void *const *outputs, void *workspace) {{ return run(inputs, outputs, workspace); }}
int {p}_set_threads(int threads) {{ return set_threads(threads); }}
const char *{p}_error(void) {{ return error; }}
const resat_model *{p}_model(void) {{ return &model; }}
const char *resat_error_v1(void) {{ return error; }}
const resat_model *resat_model_v1(void) {{ return &model; }}",
        inputs = program.inputs().len(),
        outputs = program.outputs().len(),
        arena = plan.arena,
    )
}

/// The symbol of the block of weights.
pub(super) fn weights_symbol(name: &str) -> String {
    format!("{}_weights", prefix(name))
}

fn write_ports(out: &mut String, what: &str, ports: &[Port]) -> std::fmt::Result {
    // All extents in one array: C compilers take long over thousands of small ones.
    write!(out, "static const int64_t {what}_extents[] = {{")?;
    for extent in ports.iter().flat_map(|port| &port.shape) {
        write!(out, "{extent}, ")?;
    }
    writeln!(out, "0}};\nstatic const resat_tensor {what}_tensors[] = {{")?;
    let mut first = 0;
    for port in ports {
        let (name, rank) = (quoted(&port.name), port.shape.len());
        writeln!(out, "  {{{name}, \"{}\", {rank}, {what}_extents + {first}, {}}},", port.dtype, port.bytes())?;
        first += rank;
    }
    writeln!(out, "  {{NULL, NULL, 0, NULL, 0}}\n}};")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_c() {
        assert_eq!(prefix("resnet-18.v2"), "resnet_18_v2");
        assert_eq!(prefix("2d"), "model_2d");
        assert_eq!(quoted("a\"b\\c\u{e9}?"), "\"a\\\"b\\\\c\\303\\251\\?\"");
        assert_eq!(comment("a*/b\n"), "a_/b_");
    }
}
