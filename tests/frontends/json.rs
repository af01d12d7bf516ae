//! Relay JSON: programs go through it unchanged.

use std::path::{Path, PathBuf};

use resat::{
    ir::{AttrValue, Expr, Function, Module, Name, Type},
    ops,
    relay::{json, text},
    tensor::{DType, Tensor},
};

/// Through text, JSON and back: the same text, and the same JSON again. Through the form in which it is kept: the same module.
fn goes_through(name: &str, source: &str) {
    let m = text::parse_module(name, source).unwrap_or_else(|e| panic!("{e}"));
    let written = json::print_module(&m).unwrap_or_else(|e| panic!("{name}: {e}"));
    let back = json::parse_module(name, &written).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(text::print_module(&back), text::print_module(&m), "{name}");
    assert_eq!(json::print_module(&back).unwrap_or_else(|e| panic!("{name}: {e}")), written, "{name}");
    is_kept(name, &m);
}

/// Written as data without constants' elements, and read again: each expression is what it was, where it was.
fn is_kept(name: &str, m: &Module) {
    let written = serde_json::to_vec(m).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut read: Module = serde_json::from_slice(&written).unwrap_or_else(|e| panic!("{name}: {e}"));
    for e in m.ids() {
        if let Expr::Constant(t) = &m[e] {
            read.replace_constant(e, t.clone());
        }
        let place = |m: &Module| m.span(e).map(ToString::to_string);
        assert_eq!((&read[e], place(&read)), (&m[e], place(m)), "{name}");
    }
    assert_eq!((read.len(), &read.attrs), (m.len(), &m.attrs), "{name}");
    assert_eq!(text::print_module(&read), text::print_module(m), "{name}");
}

#[test]
fn the_whole_language_goes_through() {
    goes_through(
        "language",
        r#"#[version = "0.0.5"]
type List[A] {
  Cons(A, List[A]),
  Nil,
}
extern type Foreign

def @length[A](%l: List[A]) -> Tensor[(), int32] {
  match (%l) {
    Cons(_, %rest) => add(1, @length(%rest)),
    Nil => 0,
  }
}

def @main(%x: Tensor[(2, ?), float32], %y: (Tensor[(3), bool], float16), %f: fn (int32) -> int32) -> (Tensor[(2, ?), float32], ref(int32)) {
  let %r = ref(1);
  %0 = ref_write(%r, 2);
  let %g = fn (%a: Tensor[(2, ?), float32], Primitive=1, Compiler="c é") {
    if (greater(ref_read(%r), 0)) {
      add(%a, 1.5f)
    } else {
      %1 = (%a, %a);
      %1.0
    }
  };
  let %n = @length(Cons(1, Nil));
  %2 = match? (%y) {
    (%p, _) => nn.dense(%x, %x, units=None, out_dtype="float32"),
  };
  (%g(%2), %r)
}
"#,
    );
}

#[test]
fn extents_that_are_parameters_go_through() {
    goes_through(
        "parameters",
        "#[version = \"0.0.5\"]\ndef @main[n](%x: Tensor[(n, 3), float32], %y: Tensor[(n), int8]) -> Tensor[(n, 3), float32] {\n  \
         tanh(%x)\n}\n",
    );
}

/// Numbers that JSON has no word for, and arrays within attributes, are kept to the bit.
#[test]
fn attributes_of_every_kind_are_kept() {
    let mut m = Module::new();
    let x = m.new_var("x", None);
    let body = m.add(Expr::Var(x));
    let array = Tensor::from_f64_fn(DType::BF16, &[2, 3], |i| i as f64 / 3.0);
    let all = [
        AttrValue::from(f64::INFINITY),
        (-0.0).into(),
        f64::NAN.into(),
        0.1.into(),
        i64::MIN.into(),
        AttrValue::None,
        AttrValue::AnyDim,
        DType::I8.into(),
        array.into(),
        AttrValue::Type(Type::tuple([Type::tensor(&[2], DType::Bool), Type::Hole(3)])),
        AttrValue::Dict([("a".into(), true.into())].into()),
        AttrValue::Opaque("Map".into(), "{}".into()),
    ];
    let bits: Vec<u64> = all.iter().filter_map(AttrValue::as_float).map(f64::to_bits).collect();
    let f = Function::new(vec![x], body, None).with_attr("all", AttrValue::List(all.into()));
    let f = m.add(Expr::Func(Box::new(f)));
    m.define("main", f);
    is_kept("attributes", &m);
    let read: Module = serde_json::from_slice(&serde_json::to_vec(&m).expect("written")).expect("read");
    let Some(AttrValue::List(read)) = read.func(f).attrs.get("all").cloned() else { panic!("the list is there") };
    assert_eq!(read.iter().filter_map(AttrValue::as_float).map(f64::to_bits).collect::<Vec<_>>(), bits);
}

#[test]
fn long_programs_go_through() {
    let lets: String = (0..10_000).map(|i| format!("  let %v{} = add(%v{i}, 1f);\n", i + 1)).collect();
    let source = format!("#[version = \"0.0.5\"]\ndef @main(%v0: float32) {{\n{lets}  %v10000\n}}\n");
    goes_through("long", &source);
}

#[test]
fn data_types_that_nothing_makes_are_extern() {
    goes_through("never", "#[version = \"0.0.5\"] type Never[A] type None {} def @main() { 1 }");
}

#[test]
fn wrong_programs_are_refused() {
    let m = text::parse_module("t", "fn (%x: Tensor[(3), float32]) { tanh(add(%x, 1f)) }").expect("it is legal");
    let good = json::print_module(&m).expect("it can be written");
    let refused = |text: &str| json::parse_module("t.json", text).expect_err("it is wrong").to_string();
    assert!(refused(&good.replace("\"tanh\"", "\"tahn\"")).contains("unknown operator `tahn`; did you mean `"));
    assert!(
        refused(&good.replace("\"IRModule\"", "\"tir.PrimFunc\""))
            .contains("(tir.PrimFunc): a module or a function is wanted")
    );
    assert!(refused(&good.replace("\"float32\"", "\"float33\"")).contains("float33"));
    let named = text::parse_module("t", "fn (%x: Tensor[(3), float32], Primitive=1) { %x }").expect("it is legal");
    let named = json::print_module(&named).expect("it can be written");
    assert!(
        refused(&named.replace("\"Primitive\"", "\"Primit*ve\"")).contains("`Primit*ve` is no name of an attribute")
    );
    for end in (0..good.len()).step_by(7) {
        assert!(json::parse_module("t", &good[..end]).is_err());
    }
    // Every reference to another node, wrong.
    for (at, _) in good.match_indices("\": \"") {
        let end = good[at + 4..].find('"').map_or(good.len(), |e| at + 4 + e);
        for wrong in ["0", "1", "2", "7", "11", "999", "x"] {
            let _ = json::parse_module("t", &format!("{}{wrong}{}", &good[..at + 4], &good[end..]));
        }
    }
}

#[test]
fn the_corpus_goes_through() {
    let shared = std::env::var_os("RESAT_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let Ok(models) = std::fs::read_dir(shared.join("corpus")) else {
        eprintln!("skipped: no corpus beside the repository; RESAT_SHARED says where it is");
        return;
    };
    let mut models: Vec<PathBuf> = models.filter_map(|m| Some(m.ok()?.path().join("model.relay"))).collect();
    models.retain(|m| m.exists());
    models.sort();
    for model in models {
        let source = std::fs::read_to_string(&model).unwrap_or_else(|e| panic!("{}: {e}", model.display()));
        goes_through(&model.display().to_string(), &source);
    }
}

/// Every operator in every sample: JSON knows its attributes' class, with all their fields.
#[test]
fn every_operator_goes_through() {
    let mut wrong = Vec::new();
    // TVM does not know operators that resat makes of others.
    for op in ops::all().into_iter().filter(|op| !op.op().name().starts_with("static.")) {
        for sample in op.op().samples() {
            let mut m = Module::new();
            let params: Vec<_> = sample.args.iter().map(|t: &Type| m.new_var("x", Some(t.clone()))).collect();
            let args = params.iter().map(|&p| m.add(Expr::Var(p))).collect();
            let given: Vec<(Name, _)> = sample.attrs.iter().map(|(n, v)| (n.into(), v.clone())).collect();
            let body = m.call_op(op, args, ops::make_attrs(op, &given).unwrap_or_else(|e| panic!("{e}")));
            let f = m.add(Expr::Func(Box::new(Function::new(params, body, None))));
            m.define("main", f);
            let printed = text::print_module(&m);
            let through = json::print_module(&m).and_then(|written| json::parse_module("written", &written));
            match through.and_then(|back| Ok((text::print_module(&back), text::parse_module("printed", &printed)?))) {
                Ok((back, _)) if back != printed => wrong.push(format!("{printed}became\n{back}")),
                Ok((_, again)) if text::print_module(&again) != printed => wrong.push(format!("{printed} by text")),
                Ok(_) => {}
                Err(e) => wrong.push(format!("{e}\n{printed}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
