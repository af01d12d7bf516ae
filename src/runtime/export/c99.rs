//! A program as one C function: its steps, its memory plan, its small constants.

use std::fmt::Write;

use crate::runtime::{
    plan::Plan,
    program::{Call, Place, Program, Step},
};

/// What the function of a program must be told.
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
        Place::Constant(n) => format!("(void *){}", constant(n)),
        Place::Arena(offset) => format!("workspace + {offset}"),
    };
    writeln!(out, "void {symbol}(const ResatCtx *ctx, void *const *args, unsigned char *workspace) {{")?;
    writeln!(out, "  (void)ctx, (void)args, (void)workspace;")?;
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
