//! Programs that are long or deeply nested go through everything on a small stack.

use resat::{
    infer::infer_types,
    interp,
    ir::Module,
    pass::{Pass, PassContext, Settings, passes, sequence},
    relay::{
        json,
        text::{parse_module, print_module},
    },
    target::Target,
    tensor::{Tensor, Value},
};

/// How deep types nest in these programs.
const DEEP: usize = 1_000;

/// How many bindings follow each other.
const LONG: usize = 10_000;

/// Printed, as JSON, typed, by every pass that needs no arguments, and interpreted: the same program each time.
fn survives(body: &str) {
    let text = format!(
        "#[version = \"0.0.5\"]\ntype Box[A] {{ Put(A) }}\ndef @main(%x: Tensor[(2), float32]) {{\n{body}\n}}\n"
    );
    let m = parse_module("deep", &text).unwrap_or_else(|e| panic!("{e}"));
    let printed = print_module(&m);
    let again = parse_module("printed", &printed).unwrap_or_else(|e| panic!("{e}"));
    assert!(print_module(&again) == printed, "the printed text is read back");
    let as_json = json::print_module(&m).unwrap_or_else(|e| panic!("{e}"));
    let from_json = json::parse_module("json", &as_json).unwrap_or_else(|e| panic!("{e}"));
    let x = || vec![Value::from(Tensor::from_slice(&[2], &[-1.5f32, 2.5]))];
    let run = |m: &Module| interp::run_flat(m, "main", x()).unwrap_or_else(|e| panic!("{e}"));
    let want = run(&m);
    assert_eq!(run(&from_json), want);
    let typed = infer_types(m).unwrap_or_else(|e| panic!("{e}")).into_module();
    let settings = Settings::new(Target::host());
    // It gives other types.
    for (name, _) in passes().filter(|(n, _)| *n != "ToMixedPrecision") {
        let for_compilers = ["Partition", "partition_for", "AnnotateTarget", "AllowedListAnnotator", "MergeComposite"];
        let spec = if for_compilers.contains(&name) { format!("{name}(c)") } else { name.to_owned() };
        let pass = sequence(&spec, &settings).unwrap_or_else(|e| panic!("{e}"));
        let done = pass.run(typed.clone(), &mut PassContext::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(run(&done), want, "after {name}");
        let printed = print_module(&done);
        parse_module("printed", &printed).unwrap_or_else(|e| panic!("after {name}: {e}"));
    }
}

#[test]
fn many_bindings() {
    let mut body = "let %v0 = nn.relu(%x);\n".to_owned();
    for i in 1..LONG {
        body += &format!("let %v{i} = negative(%v{});\n", i - 1);
    }
    survives(&format!("{body}%v{}", LONG - 1));
}

#[test]
fn tuples_in_tuples() {
    survives(&format!("{}%x{}", "(".repeat(DEEP), ",)".repeat(DEEP)));
}

#[test]
fn tuples_taken_apart() {
    let fields: String = (0..DEEP).map(|i| format!("%{} = %{i}.0;\n", i + 1)).collect();
    survives(&format!("%0 = {}%x{};\n{fields}nn.relu(%{DEEP})", "(".repeat(DEEP), ",)".repeat(DEEP)));
}

#[test]
fn patterns_and_annotated_types() {
    let ty = format!("{}float32{}", "(".repeat(DEEP), ",)".repeat(DEEP));
    let pattern = format!("{}%y{}", "(".repeat(DEEP), ")".repeat(DEEP));
    survives(&format!("let %f = fn (%t: {ty}) -> {ty} {{ match (%t) {{ {pattern} => {{ %t }}, }} }};\nnn.relu(%x)"));
}

#[test]
fn data_in_data() {
    // Each constructor is an instance of its own: the time to infer types grows with the square.
    let n = DEEP / 4;
    survives(&format!("let %d = {}%x{};\n(%d, 1f).1", "Put(".repeat(n), ")".repeat(n)));
}

#[test]
fn cells_in_cells() {
    let n = DEEP / 4;
    survives(&format!("let %d = {}%x{};\n(%d, 1f).1", "ref(".repeat(n), ")".repeat(n)));
}

#[test]
fn branches_in_branches() {
    let n = DEEP;
    survives(&format!("{}%x{}", "if (False) { exp(%x) } else { ".repeat(n), "}".repeat(n)));
}

#[test]
fn closures_in_closures() {
    survives(&format!("{}%x{}", "(fn () { ".repeat(DEEP), " })()".repeat(DEEP)));
}
