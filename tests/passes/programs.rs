//! Small programs: written, run through passes, compared.

use crate::common::{Data, Rng, difference, random_tensor};
use resat::{
    infer::{TypedModule, infer_types},
    interp,
    ir::{Module, Type},
    pass::{Pass, PassContext, Settings, sequence},
    relay::text,
    saturate::Report,
    tensor::Value,
};

/// A program of one function.
pub(crate) fn program(params: &str, body: &str) -> Module {
    let text = format!("#[version = \"0.0.5\"]\ndef @main({params}) {{\n{body}\n}}");
    text::parse_module("test", &text).unwrap_or_else(|e| panic!("{text}\n{e}"))
}

pub(crate) fn typed(m: &Module) -> TypedModule {
    infer_types(m.clone()).unwrap_or_else(|e| panic!("{}\n{e}", text::print_module(m)))
}

/// The module after these passes, and what the last saturation did.
pub(crate) fn run(m: &Module, passes: &str, settings: &Settings) -> (Module, Report) {
    let mut cx = PassContext::default();
    let passes = sequence(passes, settings).unwrap_or_else(|e| panic!("{e}"));
    let out = passes.run(m.clone(), &mut cx).unwrap_or_else(|e| panic!("{e}"));
    (out, cx.reports.pop().unwrap_or_default())
}

/// Both programs give the same for random arguments.
pub(crate) fn assert_same(a: &Module, b: &Module) {
    let name = text::print_module(b);
    let (a, b) = (typed(a), typed(b));
    let main = a.entry("main").unwrap_or_else(|e| panic!("{e}"));
    let mut rng = Rng(11);
    let args: Vec<Value> = main
        .params
        .iter()
        .map(|&p| match a.var_ty(p) {
            Type::Tensor(t) => random_tensor(t, Data::Tame, &mut rng).into(),
            ty => panic!("{name}: a parameter is {ty}"),
        })
        .collect();
    let run = |m: &TypedModule| interp::run_flat(m, "main", args.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (x, y) = (run(&a), run(&b));
    assert_eq!(x.len(), y.len(), "{name}");
    for (x, y) in x.iter().zip(&y) {
        assert_eq!(difference(x, y), None, "{name}");
    }
}
