//! Regions for external compilers, situation by situation: annotated by predicates, by patterns and by hand, in every place
//! where calls stand. What was partitioned gives what the program gave, by the interpreter and compiled.

use resat::{
    diag::Refused,
    driver::{self, Options},
    infer::infer_types,
    interp,
    ir::{AttrValue, Expr, Function, Module, reachable},
    ops,
    partition::{CSource, Composite},
    pass::{
        AnnotateTarget, MergeCompilerRegions, MergeComposite, PartitionGraph, Pass, PassContext, Settings, Taker,
        bind_params, partition_for, sequence,
    },
    relay::{json, text},
    target::Target,
    tensor::{Tensor, Value},
};

fn module(body: &str) -> Module {
    let source = format!("#[version = \"0.0.5\"]\n{body}");
    text::parse_module("t", &source).unwrap_or_else(|e| panic!("{e}\n{body}"))
}

fn run(pass: &dyn Pass, m: &Module) -> Result<Module, Refused> {
    pass.run(m.clone(), &mut PassContext::default())
}

fn passed(spec: &str, m: &Module) -> Module {
    let passes = sequence(spec, &Settings::new(Target::host())).unwrap_or_else(|e| panic!("{e}"));
    run(&passes, m).unwrap_or_else(|e| panic!("{spec}: {e}\n{}", text::print_module(m)))
}

/// Compilers that take the operators named.
fn annotated(takers: &[(&str, &[&str])], m: &Module) -> Module {
    let taker = |(name, names): &(&str, &[&str])| {
        let taken = names.iter().map(|n| ops::lookup(n).unwrap_or_else(|| panic!("{n}"))).collect();
        Taker::new(*name, |_| true).only(taken)
    };
    run(&AnnotateTarget::new(takers.iter().map(taker).collect()), m).unwrap_or_else(|e| panic!("{e}"))
}

fn external(m: &Module) -> Vec<&Function> {
    let all = reachable(m, m.functions().map(|(_, f)| f)).into_iter();
    let functions = all.filter_map(|e| match &m[e] {
        Expr::Func(f) if f.compiler().is_some() => Some(&**f),
        _ => None,
    });
    functions.collect()
}

fn results(m: &Module, inputs: &[Value]) -> Vec<Tensor> {
    interp::run_flat(m, "main", inputs.to_vec()).unwrap_or_else(|e| panic!("{e}\n{}", text::print_module(m)))
}

fn compiled(m: &Module, passes: &str, inputs: &[Value]) -> Vec<Tensor> {
    let mut options = Options::new(Settings::new(Target::host()));
    options.passes = Some(Box::new(sequence(passes, &options.settings).unwrap_or_else(|e| panic!("{e}"))));
    let built = driver::build(m.clone(), &[], options).unwrap_or_else(|e| panic!("{e}\n{}", text::print_module(m)));
    let flat: Vec<Tensor> = inputs.iter().flat_map(Value::flatten).collect();
    built.executable.run(&flat).unwrap_or_else(|e| panic!("{e}"))
}

fn near(found: &[Tensor], wanted: &[Tensor], m: &Module) {
    assert_eq!(found.len(), wanted.len());
    for (f, w) in found.iter().zip(wanted) {
        assert_eq!(f.shape(), w.shape());
        let apart = (0..w.len()).any(|i| (f.get_f64(i) - w.get_f64(i)).abs() > 1e-4 * (1.0 + w.get_f64(i).abs()));
        assert!(!apart, "{f:?} instead of {w:?}\n{}", text::print_module(m));
    }
}

/// Partitions and compares; the partitioned module.
fn same(m: &Module, takers: &[(&str, &[&str])]) -> Module {
    let annotated = annotated(takers, m);
    let merged = run(&MergeCompilerRegions, &annotated).unwrap_or_else(|e| panic!("{e}"));
    let split = run(&PartitionGraph::default(), &merged).unwrap_or_else(|e| panic!("{e}"));
    let typed = infer_types(m.clone()).unwrap_or_else(|e| panic!("{e}"));
    let inputs = interp::random_inputs(&typed, 1).unwrap_or_else(|e| panic!("{e}"));
    let wanted = results(m, &inputs);
    for step in [&annotated, &merged, &split] {
        assert_eq!(results(step, &inputs), wanted, "{}", text::print_module(step));
        let again = text::parse_module("again", &text::print_module(step)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(results(&again, &inputs), wanted);
        let written = json::print_module(step).unwrap_or_else(|e| panic!("{e}"));
        let again = json::parse_module("again", &written).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(results(&again, &inputs), wanted);
    }
    if takers.iter().all(|(name, _)| *name == "c") {
        near(&compiled(&split, "none", &inputs), &wanted, &split);
        near(&compiled(&split, "default", &inputs), &wanted, &split);
        near(&compiled(&annotated, "none", &inputs), &wanted, &annotated);
        near(&compiled(&annotated, "MergeCompilerRegions, PartitionGraph, default", &inputs), &wanted, &annotated);
    }
    split
}

#[test]
fn a_region_has_what_tvm_gives_it() {
    let m = module("def @main(%x: Tensor[(2, 2), float32], %y: Tensor[(2, 2), float32]) { multiply(add(%x, %x), %y) }");
    let split = same(&m, &[("c", &["add"])]);
    let (name, f) = split.functions().nth(1).expect("a region is a function of the module");
    let f = split.func(f);
    assert_eq!(name.as_str(), "tvmgen_default_c_main_0");
    assert_eq!((f.compiler(), f.is_primitive(), f.params.len()), (Some("c"), true, 1));
    assert_eq!(f.attrs.get("Inline"), Some(&AttrValue::Int(1)));
    assert_eq!(f.attrs.get("global_symbol"), Some(&AttrValue::Str("tvmgen_default_c_main_0".into())));
    let odd = same(&m, &[("unsanitary-name++", &["add"])]);
    assert!(odd.function("tvmgen_default_unsanitary_name___main_0").is_some());
}

#[test]
fn regions_are_convex() {
    // relu goes around the region: it can't be one.
    let m = module(
        "def @main(%x: Tensor[(2, 2), float32]) {
           %0 = exp(%x); %1 = nn.relu(%0); %2 = add(%0, %1); %3 = exp(%2); multiply(%3, %2)
         }",
    );
    assert_eq!(external(&same(&m, &[("c", &["exp", "add", "multiply"])])).len(), 2);
    // Two compilers whose regions would wait for each other.
    let m = module(
        "def @main(%x: Tensor[(2, 2), float32]) {
           %0 = exp(%x); %1 = tanh(%x); %2 = tanh(%0); %3 = exp(%1); (%2, %3, add(%2, %3))
         }",
    );
    assert_eq!(external(&same(&m, &[("a", &["exp"]), ("b", &["tanh"])])).len(), 4);
    let both = same(&m, &[("a", &["exp", "add"]), ("b", &["tanh"])]);
    assert!(external(&both).len() <= 4);
}

#[test]
fn results_are_many_one_or_the_same() {
    let several = module(
        "def @main(%x: Tensor[(2, 6), float32]) {
           %0 = exp(%x); %1 = split(%0, indices_or_sections=3, axis=1); %2 = %1.0;
           %3 = tanh(%1.1); (%0, nn.relu(%2), %3, %0, (%1.2, tanh(%2)))
         }",
    );
    let split = same(&several, &[("c", &["exp", "split"])]);
    let [f] = external(&split)[..] else { panic!("one region was expected\n{}", text::print_module(&split)) };
    // exp once, and three fields.
    assert!(matches!(&split[f.body], Expr::Tuple(fields) if fields.len() == 4), "{}", text::print_module(&split));
    let tuple = module(
        "def @main(%x: Tensor[(2, 3), float32]) {
           %0 = exp(%x); %1 = nn.relu(%x); %2 = (%0, %1); (concatenate(%2, axis=1), %2, stack(%2, axis=0))
         }",
    );
    assert_eq!(external(&same(&tuple, &[("c", &["exp", "nn.relu", "concatenate", "stack"])])).len(), 1);
    let inputs = module(
        "def @main(%x: (Tensor[(2, 3), float32], Tensor[(2, 3), float32])) { (%x, concatenate(%x, axis=0), exp(%x.1)) }",
    );
    same(&inputs, &[("c", &["concatenate", "exp"])]);
}

#[test]
fn constants_are_where_they_are_wanted() {
    let m = module(
        "def @main(%x: Tensor[(2, 2), float32], %k: Tensor[(2, 2), float32]) {
           %0 = add(%x, %k); %1 = zeros(shape=[2, 2], dtype=\"float32\"); multiply(add(%0, %1), 2f)
         }",
    );
    let k = Tensor::from_slice(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]);
    let m = bind_params(&m, &[("k".into(), k)]).unwrap_or_else(|e| panic!("{e}"));
    let split = same(&m, &[("c", &["add", "multiply"])]);
    // The constant and the zeros are arguments of a compiler that keeps no constants.
    assert_eq!(external(&split)[0].params.len(), 3, "{}", text::print_module(&split));
    let annotated = annotated(&[("c", &["add", "multiply"])], &m);
    let merged = passed("MergeCompilerRegions", &annotated);
    assert_eq!(external(&passed("PartitionGraph(bind_constants=true)", &merged))[0].params.len(), 2);
    assert_eq!(external(&same(&m, &[("unknown", &["add", "multiply"])]))[0].params.len(), 2);
}

#[test]
fn regions_are_in_branches_bindings_closures_and_other_functions() {
    let m = module(
        "def @main(%x: Tensor[(2, 3), float32], %c: bool) {
           let %a = exp(%x);
           let %b = tanh(%a);
           %0 = if (%c) { nn.relu(exp(%b)) } else { @twice(%b) };
           let %f = fn (%y: Tensor[(2, 3), float32]) { tanh(exp(add(%y, %0))) };
           (%f(%0), %f(%a))
         }
         def @twice(%x: Tensor[(2, 3), float32]) { exp(exp(%x)) }",
    );
    let split = same(&m, &[("c", &["exp", "tanh", "add"])]);
    // One of main, of the branch that is joined to it, of the closure and of the function.
    assert!(external(&split).len() <= 4, "{}", text::print_module(&split));
    let loops = module(
        "def @main(%x: float32, %n: int32) {
           let %loop = fn (%i: int32, %acc: float32) -> float32 {
             if (less(%i, %n)) { %loop(add(%i, 1), exp(tanh(%acc))) } else { tanh(%acc) }
           };
           %loop(0, %x)
         }",
    );
    let typed = infer_types(loops.clone()).unwrap_or_else(|e| panic!("{e}"));
    let inputs: Vec<Value> = vec![Tensor::scalar(0.5f32).into(), Tensor::scalar(3i32).into()];
    drop(typed);
    let split = passed("AllowedListAnnotator(c, exp, tanh, add), MergeCompilerRegions, PartitionGraph", &loops);
    assert!(!external(&split).is_empty());
    near(&results(&split, &inputs), &results(&loops, &inputs), &split);
    near(&compiled(&split, "default", &inputs), &results(&loops, &inputs), &split);
}

#[test]
fn what_takes_long_stays_in_its_branch() {
    let m = module(
        "def @main(%x: Tensor[(2, 2), float32], %c: bool) {
           %0 = exp(%x); if (%c) { nn.dense(%0, %0) } else { tanh(%0) }
         }",
    );
    let split = same(&m, &[("c", &["exp", "tanh", "nn.dense"])]);
    // tanh may be computed in vain, the product not.
    assert_eq!(external(&split).len(), 2, "{}", text::print_module(&split));
}

#[test]
fn effects_keep_their_order() {
    let m = module(
        "def @main(%x: float32) {
           let %r = ref(%x);
           %0 = exp(%x);
           %1 = ref_write(%r, %0);
           %2 = add(ref_read(%r), %0);
           (%1, %2, exp(%2))
         }",
    );
    let split = passed("AllowedListAnnotator(c, exp, add), MergeCompilerRegions, PartitionGraph", &m);
    let inputs: Vec<Value> = vec![Tensor::scalar(0.5f32).into()];
    near(&results(&split, &inputs), &results(&m, &inputs), &split);
    near(&compiled(&split, "none", &inputs), &results(&m, &inputs), &split);
}

const BEGIN: &str = "annotation.compiler_begin";
const END: &str = "annotation.compiler_end";

#[test]
fn regions_are_written_by_hand() {
    let m = module(&format!(
        "def @main(%x: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32]) {{
           %0 = {BEGIN}(%x, compiler=\"c\"); %1 = exp(%0); %2 = add(%1, 1f);
           let %v = nn.relu(%2);
           %3 = {END}(%1, compiler=\"c\"); %4 = {END}(%v, compiler=\"c\"); %5 = {END}(%v, compiler=\"c\");
           %6 = {BEGIN}(%5, compiler=\"default\");
           subtract(multiply(%3, {END}(tanh(%6), compiler=\"default\")), add(%4, %y))
         }}"
    ));
    let split = passed("PartitionGraph", &m);
    assert_eq!(external(&split).len(), 1, "{}", text::print_module(&split));
    let typed = infer_types(m.clone()).unwrap_or_else(|e| panic!("{e}"));
    let inputs = interp::random_inputs(&typed, 1).unwrap_or_else(|e| panic!("{e}"));
    near(&results(&split, &inputs), &results(&m, &inputs), &split);
    near(&compiled(&m, "PartitionGraph, default", &inputs), &results(&m, &inputs), &split);
    near(&compiled(&m, "default", &inputs), &results(&m, &inputs), &split);
    // One that can't be a function is two.
    let m = module(&format!(
        "def @main(%x: Tensor[(2, 3), float32]) {{
           %0 = exp({BEGIN}(%x, compiler=\"c\"));
           %1 = tanh({END}(%0, compiler=\"c\"));
           {END}(add(%0, {BEGIN}(%1, compiler=\"c\")), compiler=\"c\")
         }}"
    ));
    assert_eq!(external(&passed("PartitionGraph", &m)).len(), 2);
}

#[test]
fn annotations_that_make_no_sense_are_refused() {
    let refused = |body: &str, says: &str| {
        let m = module(&format!("def @main(%x: Tensor[(2, 3), float32]) {{ {body} }}"));
        let e = run(&PartitionGraph::default(), &m).expect_err("it is refused").to_string();
        assert!(e.contains(says) && e.starts_with("t:2:"), "{e}");
    };
    refused(&format!("{END}(exp(%x), compiler=\"c\")"), "no region for `c` ends here");
    refused(
        &format!("{END}(exp({BEGIN}(%x, compiler=\"a\")), compiler=\"b\")"),
        "a region for `a` ends here as one for `b`",
    );
    refused(
        &format!("add({BEGIN}(%x, compiler=\"a\"), {BEGIN}(%x, compiler=\"b\"))"),
        "regions for `a` and `b` meet here",
    );
}

#[test]
fn functions_of_the_user_go_to_their_compiler() {
    let m = module(
        "def @main(%x: Tensor[(2, 3), float32]) {
           %0 = fn (%y: Tensor[(2, 3), float32], Compiler=\"c\") { let %a = exp(%y); add(%a, %a) };
           let %f = fn (%y: Tensor[(2, 3), float32], Compiler=\"c\", Primitive=1, global_symbol=\"mine\") { tanh(%y) };
           @g(%f(%0(%x)))
         }
         def @g(%x: Tensor[(2, 3), float32], Compiler=\"ccompiler\") { sqrt(exp(%x)) }",
    );
    let typed = infer_types(m.clone()).unwrap_or_else(|e| panic!("{e}"));
    let inputs = interp::random_inputs(&typed, 1).unwrap_or_else(|e| panic!("{e}"));
    for passes in ["none", "default", "partition_for(c), default"] {
        near(&compiled(&m, passes, &inputs), &results(&m, &inputs), &m);
    }
    assert_eq!(external(&passed("partition_for(c)", &m)).len(), 3);
}

#[test]
fn patterns_become_composites() {
    let m = module(
        "def @main(%x: Tensor[(1, 3, 6, 6), float32], %w: Tensor[(4, 3, 3, 3), float32], %b: Tensor[(4), float32]) {
           %0 = nn.conv2d(%x, %w, channels=4, kernel_size=[3, 3]); %1 = nn.bias_add(%0, %b); %2 = nn.relu(%1);
           %3 = exp(nn.relu(add(%2, 1f))); %4 = tanh(%2); (%4, %3)
         }",
    );
    let table = "
        ;; Larger ones first.
        (composite c.conv (nn.relu (nn.bias_add {..} (nn.conv2d {..} ?x ?w) ?b)))
        (composite c.conv (nn.bias_add {..} (nn.conv2d {..} ?x ?w) ?b))
        (composite other.add_relu (nn.relu (~add 1 ?y)) :when (not (const ?y)))";
    let merge = MergeComposite::of_text("table", table).unwrap_or_else(|e| panic!("{e}"));
    let merged = run(&merge, &m).unwrap_or_else(|e| panic!("{e}"));
    let printed = text::print_module(&merged);
    assert!(
        printed.contains("PartitionedFromPattern=\"nn.conv2d_nn.bias_add_nn.relu_\", Composite=\"c.conv\""),
        "{printed}"
    );
    assert!(printed.contains("PartitionedFromPattern=\"add_nn.relu_\", Composite=\"other.add_relu\""), "{printed}");
    let typed = infer_types(m.clone()).unwrap_or_else(|e| panic!("{e}"));
    let inputs = interp::random_inputs(&typed, 1).unwrap_or_else(|e| panic!("{e}"));
    let wanted = results(&m, &inputs);
    near(&results(&merged, &inputs), &wanted, &merged);
    // Those that nobody takes are compiled like anything else.
    near(&compiled(&merged, "default", &inputs), &wanted, &merged);
    let split = passed("AllowedListAnnotator(c, tanh), MergeCompilerRegions, PartitionGraph", &merged);
    assert_eq!(external(&split).len(), 1, "{}", text::print_module(&split));
    near(&results(&split, &inputs), &wanted, &split);
    near(&compiled(&split, "default", &inputs), &wanted, &split);
    // A check says no; what is used outside is no part.
    let none = MergeComposite::new().with(&Composite::new("c.exp", "(exp (nn.relu ?x))").when(|f| f.calls.len() != 2));
    let none = run(&none.unwrap_or_else(|e| panic!("{e}")), &m).unwrap_or_else(|e| panic!("{e}"));
    assert!(!text::print_module(&none).contains("Composite"));
    let wrong =
        MergeComposite::of_text("table", "(composite a.b (nn.rleu ?x)) (rule x y)").err().expect("refused").to_string();
    assert!(wrong.contains("nn.rleu") && wrong.contains("this is no composite"), "{wrong}");
}

#[test]
fn one_call_does_it_all() {
    let m = module("def @main(%x: Tensor[(4, 4), float32]) { nn.softmax(nn.relu(nn.dense(%x, exp(%x)))) }");
    let split = partition_for(m.clone(), &CSource).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(external(&split).len(), 1);
    let again = partition_for(split.clone(), &CSource).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(text::print_module(&again), text::print_module(&split));
    let typed = infer_types(m.clone()).unwrap_or_else(|e| panic!("{e}"));
    let inputs = interp::random_inputs(&typed, 1).unwrap_or_else(|e| panic!("{e}"));
    near(&compiled(&m, "partition_for(c)", &inputs), &results(&m, &inputs), &split);
    for (spec, says) in [
        ("partition_for(cc)", "did you mean `c`?"),
        ("partition_for", "needs a compiler's name"),
        ("AnnotateTarget(c, include_non_call_op=true)", "did you mean `include_non_call_ops`?"),
        ("PartitionGraph(bind_constants=maybe)", "should be true or false"),
        ("MergeComposite(nothing.patterns)", "no file can be read"),
        ("AllowedListAnnotator(c, nn.softmx)", "did you mean `nn.softmax`?"),
    ] {
        let e = sequence(spec, &Settings::new(Target::host())).err().expect("refused").to_string();
        assert!(e.contains(says), "{e}");
    }
}
