//! Dialects from outside of the crate: registered by one call, they are read, typed, interpreted, legalized and compiled like
//! the shipped one.
#![cfg(feature = "llvm")]

use std::sync::Once;

use resat::{
    diag::Refused,
    dialect::{self, Dialect},
    driver::{Options, build},
    frontend::{LoadOptions, SourceFile, load_from},
    infer::infer_types,
    interp,
    ir::{Attrs, Expr, Module, Type, reachable},
    loops::{Builder, Operand, Scalar},
    ops::{self, AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Op, OpError, Sample, Work},
    pass::{PassContext, Settings, sequence},
    relay::text::parse_module,
    rules,
    target::Target,
    tensor::{DType, Tensor, Value},
};

const LIMIT: AttrField = AttrField::new("limit", AttrKind::Int, AttrDefault::Int(6));
const SCALE: AttrField = AttrField::new("scale", AttrKind::Float, AttrDefault::Float(1.0));
const SHIFT: AttrField = AttrField::new("shift", AttrKind::Float, AttrDefault::Float(0.0));

/// An operator of one float argument that maps each element.
#[derive(Debug)]
struct Map {
    name: &'static str,
    attrs: &'static [AttrField],
    f: fn(&Attrs, f64) -> f64,
    lower: Option<fn(&Attrs, Scalar) -> Scalar>,
}

impl Op for Map {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        "A function of each element. C1: data are floats."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        match args[0].as_tensor() {
            Some(t) if t.dtype.is_float() => Ok(args[0].clone()),
            _ => Err(OpError(format!("C1: `data` is {}, but should be a tensor of floats", args[0]))),
        }
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        Ok(Tensor::from_f64_fn(x.dtype(), x.shape(), |i| (self.f)(attrs, x.get_f64(i))).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        AxisMap(vec![(0..args[0].as_tensor().map_or(0, |t| t.rank())).map(AxisRole::Maps).collect()])
    }
    fn work(&self, _: &Attrs, _: &[Type], out: &Type) -> Work {
        let bytes = out.as_tensor().and_then(|t| t.bytes()).unwrap_or(1) as f64;
        Work { flops: bytes / 2.0, bytes_read: bytes, bytes_written: bytes }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let Some(lower) = self.lower else { return Err(OpError("it has no kernel".into())) };
        let x = args[0].tensor();
        let shape = b.shape(x).to_vec();
        Ok(b.map(&shape, |b, i| lower(attrs, b.read(x, i.iter().cloned()))).into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![Sample { attrs: vec![], args: vec![Type::tensor(&[2, 3], DType::F32)] }]
    }
}

const AFFINE: Map =
    Map { name: "toy.affine", attrs: &[SCALE, SHIFT], f: |a, x| a.float("scale") * x + a.float("shift"), lower: None };

const GATE: Map = Map { name: "toy.gate", attrs: &[LIMIT], f: |a, x| x.clamp(0.0, a.int("limit") as f64), lower: None };

/// Has code of its own and no rule.
const TWICE: Map = Map { name: "toy.twice", attrs: &[], f: |_, x| 2.0 * x, lower: Some(|_, x| x.clone() + x) };

/// Has neither.
const RIDDLE: Map = Map { name: "toy.riddle", attrs: &[], f: |_, x| x, lower: None };

/// Of another dialect, in terms of the first.
const SWISH: Map = Map { name: "hat.swish", attrs: &[], f: |_, x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0, lower: None };

const TOY_RULES: &str = "(ruleset toy-legal :numerics real)

;; affine(x) == x * scale + shift.
(rule affine
  (toy.affine {scale ?s shift ?t} ?x) => (add (multiply ?x (const ?s like ?x)) (const ?t like ?x)))

;; gate(x) == min(max(x, 0), limit).
(rule gate
  (toy.gate {limit ?n} ?x) => (minimum (nn.relu ?x) (const ?n like ?x)))";

const HAT_RULES: &str = "(ruleset hat-legal :numerics real)

;; swish(x) == x * gate(x + 3) / 6.
(rule swish
  (hat.swish ?x) => (multiply ?x (toy.affine {scale 0.16666666666666666 shift 0.0} (toy.gate {limit 6} (toy.affine {scale 1.0 shift 3.0} ?x)))))";

fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let toy = Dialect::new("toy").op(AFFINE).op(GATE).op(TWICE).op(RIDDLE).rules("toy.rules", TOY_RULES);
        dialect::register(toy).unwrap_or_else(|e| panic!("{e}"));
        let hat = Dialect::new("hat").op(SWISH).rules("hat.rules", HAT_RULES);
        dialect::register(hat).unwrap_or_else(|e| panic!("{e}"));
    });
}

fn module(body: &str) -> Module {
    register();
    let text = format!(
        "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(2, 5), float32]) -> Tensor[(2, 5), float32] {{\n  {body}\n}}\n"
    );
    parse_module("toy.relay", &text).unwrap_or_else(|e| panic!("{e}"))
}

fn settings() -> Settings {
    Settings::new(Target::host())
}

fn input() -> Tensor {
    Tensor::from_slice(&[2, 5], &[-9.0f32, -3.0, -1.5, -0.25, 0.0, 0.5, 1.0, 2.5, 6.0, 50.0])
}

fn run_passes(m: Module, passes: &str) -> Result<Module, Refused> {
    use resat::pass::Pass;
    sequence(passes, &settings())?.run(m, &mut PassContext::default())
}

fn dialects_left(m: &Module) -> Vec<&'static str> {
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    ids.into_iter()
        .filter_map(|e| m.op_call(e))
        .filter(|(op, ..)| op.dialect().is_some())
        .map(|c| c.0.op().name())
        .collect()
}

/// Interpreted as written, and built: equal to a few units in the last place.
fn agree(body: &str) -> Vec<f32> {
    let m = module(body);
    let want = interp::run_flat(&m, "main", vec![input().into()]).unwrap_or_else(|e| panic!("{e}"));
    let built = build(m, &[], Options::new(settings())).unwrap_or_else(|e| panic!("{body}: {e}"));
    let got = built.executable.run(&[input()]).unwrap_or_else(|e| panic!("{e}"));
    let (want, got) = (want[0].as_slice::<f32>().to_vec(), got[0].as_slice::<f32>().to_vec());
    for (w, g) in want.iter().zip(&got) {
        assert!((w - g).abs() <= 1e-5 * w.abs().max(1.0), "{body}: {got:?} against {want:?}");
    }
    want
}

#[test]
fn a_dialect_from_outside_runs_like_any_other() {
    let y = agree("%0 = toy.affine(%x, scale=2f, shift=1f);\n  %1 = nn.relu(%0);\n  toy.gate(%1, limit=4)");
    assert_eq!(y, [0.0, 0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0]);
    agree("toy.affine(%x)");
    agree("%0 = toy.twice(%x);\n  toy.gate(%0)");
}

#[test]
fn its_programs_print_and_read_back() {
    let m = module("toy.gate(%x, limit=3)");
    let text = resat::relay::text::print_module(&m);
    assert!(text.contains("toy.gate(%x, limit=3)"), "{text}");
    assert_eq!(resat::relay::text::print_module(&parse_module("again", &text).expect("it reads back")), text);
    let default = module("toy.gate(%x, limit=6)");
    assert!(!resat::relay::text::print_module(&default).contains("limit"), "defaults are not printed");
    let wrong = parse_module("toy.relay", "#[version = \"0.0.5\"]\ndef @main(%x: float32) { toy.gat(%x) }");
    assert!(wrong.expect_err("misspelt").to_string().contains("did you mean `toy.gate`?"));
}

#[test]
fn dialects_in_terms_of_dialects_are_legalized_to_the_end() {
    let m = module("hat.swish(%x)");
    assert_eq!(dialect::held_by(&m), ["toy", "hat"]);
    let legal = run_passes(m, "Legalize").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(dialects_left(&legal), Vec::<&str>::new());
    agree("hat.swish(%x)");
}

#[test]
fn each_of_the_ways_to_legalize_takes_what_is_there() {
    let text = "#[version = \"0.0.5\"]
    def @main(%x: Tensor[(2, 5), float32]) {
      %0 = toy.affine(%x, shift=0.5f);
      %1 = qnn.quantize(%0, 0.5f, 3, out_dtype=\"uint8\");
      %2 = qnn.dequantize(%1, 0.5f, 3);
      hat.swish(%2)
    }";
    register();
    let m = parse_module("mixed.relay", text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(dialect::held_by(&m), ["qnn", "toy", "hat"]);
    let legal = run_passes(m.clone(), "Legalize").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(dialects_left(&legal), Vec::<&str>::new());
    let run = |m: &Module| interp::run_flat(m, "main", vec![input().into()]).unwrap_or_else(|e| panic!("{e}"));
    let (want, got) = (run(&m)[0].to_f64_vec(), run(&legal)[0].to_f64_vec());
    assert!(want.iter().zip(&got).all(|(w, g)| (w - g).abs() < 1e-4), "{got:?} against {want:?}");
    // By name, and by node counts, where an operator of a dialect is cheaper than what it is made of.
    let toy_only = run_passes(m.clone(), "Saturate(toy-legal)").unwrap_or_else(|e| panic!("{e}"));
    assert!(dialects_left(&toy_only).contains(&"hat.swish"));
    let mut by_count = settings();
    by_count.cost = std::sync::Arc::new(resat::cost::NodeCount);
    let built = build(m, &[], Options::new(by_count)).unwrap_or_else(|e| panic!("{e}"));
    let got = built.executable.run(&[input()]).expect("it runs")[0].to_f64_vec();
    assert!(want.iter().zip(&got).all(|(w, g)| (w - g).abs() < 1e-4), "{got:?} against {want:?}");
}

#[test]
fn what_nothing_legalizes_is_refused_by_name_and_place() {
    let m = module("%0 = nn.relu(%x);\n  toy.riddle(%0)");
    assert!(interp::run_flat(&m, "main", vec![input().into()]).is_ok(), "the interpreter needs no lowering");
    let wanted = "toy.relay:4:3: no rule of dialect `toy` legalizes this call of `toy.riddle`, which has no lowering";
    let refused = run_passes(m.clone(), "Legalize").expect_err("nothing says what it is").to_string();
    assert!(refused.starts_with(wanted), "{refused}");
    let refused = build(m, &[], Options::new(settings())).err().expect("nothing says what it is").to_string();
    assert!(refused.contains("of `toy.riddle`, which has no lowering"), "{refused}");
    // What has a lowering may stay.
    let stays = run_passes(module("toy.twice(%x)"), "Legalize").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(dialects_left(&stays), ["toy.twice"]);
}

#[test]
fn nodes_of_an_onnx_model_are_operators_of_a_dialect() {
    use std::io::Read;
    register();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/frontends/onnx.zip");
    let file = std::fs::File::open(path).expect("the archive is there");
    let mut archive = zip::ZipArchive::new(file).expect("it is an archive");
    let mut bytes = Vec::new();
    archive.by_name("custom_operator/model.onnx").expect("it is there").read_to_end(&mut bytes).expect("it is whole");
    let file = SourceFile { name: "model.onnx", bytes: &bytes, folder: None };
    let model = load_from(&file, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(dialects_left(&model.module), ["toy.affine"]);
    let built = build(model.module, &[], Options::new(settings())).unwrap_or_else(|e| panic!("{e}"));
    let y = built.executable.run(&[input()]).unwrap_or_else(|e| panic!("{e}"));
    let want = Tensor::from_f64_fn(DType::F32, &[2, 5], |i| 2.0 * input().get_f64(i) - 1.0);
    assert!(y[0].same_bits(&want), "{:?}", y[0]);
}

#[test]
fn rules_may_be_added_to_a_dialect_later() {
    const LATE: Map = Map { name: "late.negate", attrs: &[], f: |_, x| -x, lower: None };
    dialect::register(Dialect::new("late").op(LATE)).unwrap_or_else(|e| panic!("{e}"));
    assert!(build(module("late.negate(%x)"), &[], Options::new(settings())).is_err());
    let text = "(ruleset late-legal)\n;; -x.\n(rule negate (late.negate ?x) => (negative ?x))";
    for ruleset in rules::load("late.rules", text).unwrap_or_else(|e| panic!("{e}")) {
        dialect::legalize_by("late", ruleset).unwrap_or_else(|e| panic!("{e}"));
    }
    agree("late.negate(%x)");
    let none = rules::load("late.rules", text).unwrap_or_else(|e| panic!("{e}")).swap_remove(0);
    assert!(dialect::legalize_by("lat", none).expect_err("unknown").to_string().contains("no dialect `lat`"));
}

#[test]
fn a_wrong_dialect_is_refused_whole() {
    register();
    let refused = |d: Dialect| dialect::register(d).expect_err("wrong").to_string();
    assert_eq!(refused(Dialect::new("toy")), "dialect `toy` is already registered");
    let stranger = refused(Dialect::new("other").op(TWICE));
    assert_eq!(stranger, "operator `toy.twice` of dialect `other` should be called `other.…`");
    const ONE: Map = Map { name: "wrong.one", attrs: &[], f: |_, x| x, lower: None };
    let twice = refused(Dialect::new("wrong").op(ONE).op(ONE));
    assert_eq!(twice, "operator `wrong.one` is already defined");
    assert_eq!(ops::lookup("wrong.one"), None);
    let rules =
        refused(Dialect::new("wrong").op(ONE).rules("wrong.rules", "(ruleset r) (rule a (wrong.two ?x) => ?x)"));
    assert!(rules.contains("wrong.rules:1:22: there is no operator `wrong.two`"), "{rules}");
    assert_eq!(ops::lookup("wrong.one"), None);
    assert!(!ops::all().iter().any(|op| op.op().name() == "wrong.one"));
    let right = Dialect::new("wrong").op(ONE).rules("wrong.rules", "(ruleset r)\n;; x.\n(rule a (wrong.one ?x) => ?x)");
    dialect::register(right).unwrap_or_else(|e| panic!("nothing was left of it: {e}"));
}

#[test]
fn the_shipped_dialect_is_one_of_them() {
    let qnn = ops::dialects()[0];
    assert_eq!(qnn.name(), "qnn");
    assert!(qnn.ops().iter().all(|op| ops::lookup(op.name()).and_then(|id| id.dialect()) == Some("qnn")));
    let sets: Vec<String> = dialect::legalization("qnn").iter().map(|set| set.name.to_string()).collect();
    assert_eq!(sets, ["qnn", "qnn-simplify"]);
    let plain = parse_module("t", "#[version = \"0.0.5\"] def @main(%x: float32) { exp(%x) }").expect("it is legal");
    assert!(dialect::held_by(&plain).is_empty());
    let typed = infer_types(plain).expect("it is typed");
    assert!(matches!(typed.module()[typed.module().function("main").expect("main").body], Expr::Call { .. }));
}
