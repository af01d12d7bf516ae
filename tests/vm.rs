//! The machine for whole programs, against the interpreter.

mod common;

use common::plain::{after_passes, compiled, run, typed};
use resat::{
    interp,
    ir::Module,
    tensor::{Tensor, Value},
};

/// The result of `@main` by the interpreter, which the machine must give as well, with and without the passes of a build.
fn ints(text: &str, args: &[i32]) -> Vec<i64> {
    let m = typed(text).unwrap_or_else(|e| panic!("{e}")).into_module();
    let args: Vec<Value> = args.iter().map(|&a| Tensor::scalar(a).into()).collect();
    let flat = |tensors: Vec<Tensor>| tensors.iter().flat_map(|t| t.to_i64_vec()).collect::<Vec<i64>>();
    let wanted = flat(interp::run_flat(&m, "main", args.clone()).unwrap_or_else(|e| panic!("{e}")));
    let check = |m: Module, what: &str| {
        let program = compiled(m).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = run(&program, &args).unwrap_or_else(|e| panic!("{what}: {e}\n{}", program.0));
        assert_eq!(flat(found), wanted, "{what}:\n{}", program.0);
    };
    check(m.clone(), "as written");
    check(after_passes(m).unwrap_or_else(|e| panic!("{e}")), "after the passes");
    wanted
}

#[test]
fn loops_and_branches() {
    let text = "def @main(%n: int32, %x: int32) {
        let %loop = fn (%i: int32, %s: int32) {
            if (less(%i, %n)) { %loop(add(%i, 1), add(%s, %x)) } else { (%i, %s) }
        };
        %loop(0, 0).1
    }";
    assert_eq!(ints(text, &[50, 3]), [150]);
}
