//! Relay text: programs come back from print and parse as they were; wrong texts are refused with the right words.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::same::Same;
use resat::{
    ir::{Clause, Expr, ExprId, Function, Module, Pattern, VarId},
    ops,
    relay::text::{Parsed, parse, parse_module, print_expr, print_module},
    tensor::Tensor,
};

fn shared() -> PathBuf {
    match std::env::var_os("RESAT_SHARED") {
        Some(dir) => dir.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"),
    }
}

#[test]
fn corpus_models_survive() {
    let Ok(models) = fs::read_dir(shared().join("corpus")) else {
        eprintln!("skipped: no corpus beside the repository, and RESAT_SHARED does not name one");
        return;
    };
    let mut files: Vec<PathBuf> =
        models.flatten().map(|m| m.path().join("model.relay")).filter(|f| f.exists()).collect();
    files.sort();
    let mut wrong = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let text = fs::read_to_string(&file).expect("the corpus can be read");
        let Parsed::Module(first) = parse(&name, &text).unwrap_or_else(|e| panic!("{e}")) else {
            panic!("{name} is not a module");
        };
        let printed = print_module(&first);
        let second = parse_module("printed", &printed).unwrap_or_else(|e| panic!("{name}, printed: {e}"));
        if let Err(e) = Same::modules(&first, &second) {
            wrong.push(format!("{name}: {e}"));
        }
        if print_module(&second) != printed {
            wrong.push(format!("{name}: printed twice, it is two texts"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn infix_operators_bind_as_in_tvm() {
    for (infix, calls) in [
        ("1 + 2 * 3", "add(1, multiply(2, 3))"),
        ("1 - 2 - 3", "subtract(subtract(1, 2), 3)"),
        ("1 < 2 + 3 == 4 >= 5", "equal(less(1, add(2, 3)), greater_equal(4, 5))"),
        ("1 / 2 * 3 != 4", "not_equal(multiply(divide(1, 2), 3), 4)"),
        ("(1 + 2) * -3", "multiply(add(1, 2), -3)"),
        ("1 -1", "subtract(1, 1)"),
        ("-exp(1f) > --2f", "greater(negative(exp(1f)), 2f)"),
    ] {
        let print = |text: &str| parse("test", text).unwrap_or_else(|e| panic!("{e}")).print();
        assert_eq!(print(infix), print(calls), "{infix}");
    }
}

/// A source of numbers that is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// Programs of every kind of expression, with sharing across scopes.
struct Maker {
    m: Module,
    random: Random,
}

impl Maker {
    /// An expression over the given variables and earlier expressions, which it adds to.
    fn expr(&mut self, depth: usize, vars: &[VarId], pool: &mut Vec<ExprId>) -> ExprId {
        if !pool.is_empty() && self.random.below(3) == 0 {
            return pool[self.random.below(pool.len())];
        }
        let kind = if depth == 0 { self.random.below(2) } else { self.random.below(12) };
        let e = match kind {
            0 => Expr::Constant(match self.random.below(3) {
                0 => Tensor::scalar(self.random.below(9) as f32 / 7.0),
                1 => Tensor::from_slice(&[2], &[1i8, self.random.below(3) as i8]),
                _ => Tensor::scalar(f64::NAN),
            }),
            1 => match vars.is_empty() {
                true => Expr::Tuple(vec![]),
                false => Expr::Var(vars[self.random.below(vars.len())]),
            },
            2 => Expr::Tuple((0..self.random.below(3)).map(|_| self.expr(depth - 1, vars, pool)).collect()),
            3 => Expr::Proj(self.expr(depth - 1, vars, pool), self.random.below(2)),
            4 | 5 => {
                let op = ops::op(["add", "exp"][kind - 4]);
                let args = (0..6 - kind).map(|_| self.expr(depth - 1, vars, pool)).collect();
                let attrs = ops::make_attrs(op, &[]).expect("these have no attributes");
                let e = self.m.call_op(op, args, attrs);
                pool.push(e);
                return e;
            }
            6 | 7 => {
                let value = self.expr(depth - 1, vars, pool);
                let var = self.var();
                let body = self.scope(depth, vars, &[var], pool);
                Expr::Let { var, value, body }
            }
            8 => {
                let cond = self.expr(depth - 1, vars, pool);
                let then = self.scope(depth, vars, &[], pool);
                let otherwise = self.scope(depth, vars, &[], pool);
                Expr::If { cond, then, otherwise }
            }
            9 => {
                let params: Vec<VarId> = (0..self.random.below(3)).map(|_| self.var()).collect();
                let body = self.scope(depth, vars, &params, pool);
                Expr::Func(Box::new(Function::new(params, body, None)))
            }
            10 => {
                let data = self.expr(depth - 1, vars, pool);
                let clauses = (0..2).map(|_| {
                    let (v, w) = (self.var(), self.var());
                    let pattern =
                        Pattern::Tuple(vec![Pattern::Var(v), Pattern::Wildcard, Pattern::Tuple(vec![Pattern::Var(w)])]);
                    Clause { pattern, body: self.scope(depth, vars, &[v, w], pool) }
                });
                Expr::Match { data, clauses: clauses.collect(), complete: self.random.below(2) == 0 }
            }
            _ => {
                let cell = self.expr(depth - 1, vars, pool);
                match self.random.below(3) {
                    0 => Expr::RefNew(cell),
                    1 => Expr::RefRead(cell),
                    _ => Expr::RefWrite(cell, self.expr(depth - 1, vars, pool)),
                }
            }
        };
        let e = self.m.add(e);
        pool.push(e);
        e
    }

    /// An expression that may use more variables; what is made in it is not used outside.
    fn scope(&mut self, depth: usize, vars: &[VarId], more: &[VarId], pool: &[ExprId]) -> ExprId {
        let vars = [vars, more].concat();
        self.expr(depth - 1, &vars, &mut pool.to_vec())
    }

    fn var(&mut self) -> VarId {
        let name = ["x", "x1", "x.0", "a/b", "_", "3", ""][self.random.below(7)];
        self.m.new_var(name, None)
    }
}

#[test]
fn random_programs_survive() {
    for seed in 0..400 {
        let mut maker = Maker { m: Module::new(), random: Random(seed) };
        let params: Vec<VarId> = (0..2).map(|_| maker.var()).collect();
        let body = maker.expr(9, &params, &mut Vec::new());
        let main = maker.m.add(Expr::Func(Box::new(Function::new(params, body, None))));
        let mut m = maker.m;
        m.define("main", main);
        let printed = print_module(&m);
        let again = parse_module("printed", &printed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{printed}"));
        Same::modules(&m, &again).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{printed}"));
        assert_eq!(print_module(&again), printed, "seed {seed}");
        let body = m.func(main).body;
        let expr = print_expr(&m, body);
        let parsed = parse("printed", &expr).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{expr}"));
        assert_eq!(parsed.print(), expr, "seed {seed}");
    }
}

#[test]
fn deep_programs_are_printed() {
    let n = 10_000;
    for text in [
        format!("{}1f{}", "exp(".repeat(n), ")".repeat(n)),
        format!("{}%x", "let %x = 1f;\n".repeat(n)),
        format!("{}1f{}", "if (True) { 0f } else { ".repeat(n), "}".repeat(n)),
        format!("{}1f{}", "fn (%x) { ".repeat(n), "}".repeat(n)),
        format!("{}1f{}", "(let %x = ".repeat(n), "; %x)".repeat(n)),
    ] {
        let printed = parse("test", &text).unwrap_or_else(|e| panic!("{e}")).print();
        assert_eq!(parse("printed", &printed).unwrap_or_else(|e| panic!("{e}")).print(), printed);
    }
}

#[test]
fn names_with_signs_end_where_they_are_bound() {
    let text = "#[version = \"0.0.5\"]
        def @main(%in-0: (float32, float32), %a+b: float32, %x {virtual_device=meta[VirtualDevice][0]}: float32,
                  %data:0 /* ty=float32 */, %conv/w-1.5: float32) {
          let %t-1: float32 = add(%a+b, %in-0.1);
          let %u-v = (%t-1, %x-%x);
          add(%u-v.0, @g-h(%conv/w-1.5 - %data:0, -%x-1f))
        }
        def @g-h(%y: float32, %z: float32) { %y-%z }
        #[metadata]
        {\"root\": 1, \"nodes\": [{\"type_key\": \"\"}, {\"type_key\": \"Map\", \"keys\": [\"VirtualDevice\"], \"data\": [2]},
         {\"type_key\": \"Array\", \"data\": [3]}, {\"type_key\": \"VirtualDevice\", \"attrs\": {\"device_type_int\": \"1\",
         \"memory_scope\": \"4\", \"target\": \"0\", \"virtual_device_id\": \"0\"}}, {\"type_key\": \"runtime.String\"}],
         \"b64ndarrays\": [], \"attrs\": {\"tvm_version\": \"0.14.0\"}}";
    let m = parse("names", text).unwrap_or_else(|e| panic!("{e}")).into_module();
    let main = m.function("main").expect("it is there");
    let names: Vec<&str> = main.params.iter().map(|&p| m.var(p).name.as_str()).collect();
    assert_eq!(names, ["in-0", "a+b", "x", "data:0", "conv/w-1.5"]);
    assert!(m.function("g-h").is_some());
    // Printed, they are names that every reader takes.
    let printed = resat::relay::text::print_module(&m);
    assert!(printed.contains("%in_0: (float32, float32), %a_b: float32"), "{printed}");
    parse("printed", &printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
}

/// Each `tests/fail/NAME.relay` is refused with the message in `NAME.stderr`. With `BLESS=1` the messages are written.
#[test]
fn wrong_texts_are_refused_with_these_words() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fail");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&dir).expect("the folder is there").flatten().map(|e| e.path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "relay"));
    files.sort();
    assert!(!files.is_empty());
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let text = fs::read_to_string(&file).expect("a test can be read");
        let found = match parse(&name, &text) {
            Ok(_) => "accepted\n".to_owned(),
            Err(refused) => refused.render(),
        };
        let wanted = file.with_extension("stderr");
        if std::env::var_os("BLESS").is_some() {
            fs::write(&wanted, &found).expect("messages can be written");
        } else if fs::read_to_string(&wanted).unwrap_or_default() != found {
            wrong.push(format!("{name} says\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
