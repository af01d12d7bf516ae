//! Random programs of every construct, with sharing wherever variables allow it: the machine against the interpreter.

use crate::common::{
    Rng,
    plain::{after_passes, compiled, run},
};
use resat::{
    diag::Refused,
    infer::infer_types,
    interp,
    ir::{AdtDef, Attrs, Clause, Constructor, Expr, ExprId, Function, Module, Pattern, Type, VarId},
    ops,
    relay::text::print_module,
    tensor::{DType, Tensor, Value},
};

/// What an expression of the generator is.
#[derive(Copy, Clone, PartialEq)]
enum Kind {
    Int,
    Pair,
    Option,
    Function,
}

struct Generator {
    rng: Rng,
    m: Module,
    /// What may be used again: expressions whose variables are all bound here.
    pool: Vec<(Kind, ExprId)>,
    /// A cell in which effects leave their traces, where there are effects.
    trace: Option<VarId>,
    names: usize,
}

impl Generator {
    fn below(&mut self, n: u64) -> u64 {
        (self.rng.next() >> 20) % n
    }

    fn var(&mut self) -> VarId {
        self.names += 1;
        self.m.new_var(format!("v{}", self.names), None)
    }

    fn use_of(&mut self, v: VarId) -> ExprId {
        self.m.add(Expr::Var(v))
    }

    fn int(&mut self, n: i32) -> ExprId {
        self.m.constant(Tensor::scalar(n))
    }

    fn op(&mut self, name: &str, args: Vec<ExprId>) -> ExprId {
        let op = ops::lookup(name).expect("a known operator");
        self.m.call_op(op, args, ops::make_attrs(op, &[]).expect("no attributes are needed"))
    }

    fn call(&mut self, callee: ExprId, args: Vec<ExprId>) -> ExprId {
        self.m.add(Expr::Call { callee, args, attrs: Attrs::empty(), type_args: vec![] })
    }

    fn function(&mut self, params: Vec<VarId>, body: ExprId, ret: Option<Type>) -> ExprId {
        self.m.add(Expr::Func(Box::new(Function::new(params, body, ret))))
    }

    fn made(&mut self, kind: Kind, e: ExprId) -> ExprId {
        self.pool.push((kind, e));
        e
    }

    /// Something of the kind that is there already.
    fn again(&mut self, kind: Kind) -> Option<ExprId> {
        let all: Vec<ExprId> = self.pool.iter().filter(|p| p.0 == kind).map(|p| p.1).collect();
        match all.is_empty() {
            true => None,
            false => Some(all[self.below(all.len() as u64) as usize]),
        }
    }

    fn bound<T>(&mut self, vars: &[(Kind, VarId)], inside: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.pool.len();
        for &(kind, v) in vars {
            let e = self.use_of(v);
            self.pool.push((kind, e));
        }
        let out = inside(self);
        self.pool.truncate(before);
        out
    }

    fn gen_kind(&mut self, kind: Kind, size: u64) -> ExprId {
        match kind {
            Kind::Int => self.gen_int(size),
            Kind::Pair => self.gen_pair(size),
            Kind::Option => self.gen_option(size),
            Kind::Function => self.gen_function(size),
        }
    }

    fn any_kind(&mut self) -> Kind {
        [Kind::Int, Kind::Int, Kind::Pair, Kind::Option, Kind::Function][self.below(5) as usize]
    }

    /// What takes any kind of result: branches, bindings, clauses.
    fn control(&mut self, kind: Kind, size: u64) -> ExprId {
        let part = size / 2;
        let e = match self.below(3) {
            0 => {
                let (a, b) = (self.gen_int(part / 2), self.gen_int(part / 2));
                let cond = self.op("less", vec![a, b]);
                let then = self.gen_kind(kind, part);
                let otherwise = self.gen_kind(kind, part);
                self.m.add(Expr::If { cond, then, otherwise })
            }
            1 => {
                let of = self.any_kind();
                let value = self.gen_kind(of, part);
                let var = self.var();
                let body = self.bound(&[(of, var)], |g| g.gen_kind(kind, part));
                self.m.add(Expr::Let { var, value, body })
            }
            _ => {
                let data = self.gen_option(part);
                let v = self.var();
                let some = self.bound(&[(Kind::Int, v)], |g| g.gen_kind(kind, part));
                let none = self.gen_kind(kind, part);
                let last = match self.below(2) {
                    0 => Pattern::Wildcard,
                    _ => Pattern::Constructor("None".into(), vec![]),
                };
                let some = Clause { pattern: Pattern::Constructor("Some".into(), vec![Pattern::Var(v)]), body: some };
                let clauses = vec![some, Clause { pattern: last, body: none }];
                self.m.add(Expr::Match { data, clauses, complete: true })
            }
        };
        self.made(kind, e)
    }

    fn gen_pair(&mut self, size: u64) -> ExprId {
        if let (true, Some(e)) = (self.below(3) == 0 || size == 0, self.again(Kind::Pair)) {
            return e;
        }
        if size > 4 && self.below(3) == 0 {
            return self.control(Kind::Pair, size - 1);
        }
        let fields = vec![self.gen_int(size / 2), self.gen_int(size / 2)];
        let e = self.m.add(Expr::Tuple(fields));
        self.made(Kind::Pair, e)
    }

    fn gen_option(&mut self, size: u64) -> ExprId {
        if let (true, Some(e)) = (self.below(3) == 0 || size == 0, self.again(Kind::Option)) {
            return e;
        }
        if size > 4 && self.below(3) == 0 {
            return self.control(Kind::Option, size - 1);
        }
        let e = match self.below(4) {
            0 => self.m.add(Expr::Constructor("None".into())),
            _ => {
                let arg = self.gen_int(size.saturating_sub(1));
                let some = self.m.add(Expr::Constructor("Some".into()));
                self.call(some, vec![arg])
            }
        };
        self.made(Kind::Option, e)
    }

    fn gen_function(&mut self, size: u64) -> ExprId {
        if let (true, Some(e)) = (self.below(2) == 0 || size == 0, self.again(Kind::Function)) {
            return e;
        }
        if size > 4 && self.below(4) == 0 {
            return self.control(Kind::Function, size - 1);
        }
        let p = self.var();
        let body = self.bound(&[(Kind::Int, p)], |g| g.gen_int(size.saturating_sub(1)));
        self.m.var_mut(p).ty = Some(Type::tensor(&[], DType::I32));
        let e = self.function(vec![p], body, None);
        self.made(Kind::Function, e)
    }

    fn gen_int(&mut self, size: u64) -> ExprId {
        if size == 0 || self.below(4) == 0 {
            return match self.again(Kind::Int) {
                Some(e) if self.below(4) > 0 => e,
                _ => {
                    let n = self.below(10) as i32;
                    self.int(n)
                }
            };
        }
        let part = size / 2;
        let e = match self.below(14) {
            0..4 => {
                let name = ["add", "subtract", "maximum"][self.below(3) as usize];
                let args = vec![self.gen_int(part), self.gen_int(part)];
                self.op(name, args)
            }
            4..8 => return self.control(Kind::Int, size - 1),
            8 => {
                let pair = self.gen_pair(size - 1);
                let field = self.below(2) as usize;
                self.m.add(Expr::Proj(pair, field))
            }
            9..11 => {
                let f = self.gen_function(part);
                let arg = self.gen_int(part);
                self.call(f, vec![arg])
            }
            11 => return self.bounded_loop(size - 1),
            _ => return self.effect(size - 1),
        };
        self.made(Kind::Int, e)
    }

    /// A local function that calls itself a few times.
    fn bounded_loop(&mut self, size: u64) -> ExprId {
        let int = Type::tensor(&[], DType::I32);
        let (own, i, s) = (self.var(), self.var(), self.var());
        self.m.var_mut(i).ty = Some(int.clone());
        self.m.var_mut(s).ty = Some(int.clone());
        let times = self.below(4) as i32;
        let body = self.bound(&[(Kind::Int, i), (Kind::Int, s)], |g| {
            let (i_use, limit) = (g.use_of(i), g.int(times));
            let cond = g.op("less", vec![i_use, limit]);
            let (one, own_use) = (g.int(1), g.use_of(own));
            let next = g.op("add", vec![i_use, one]);
            let more = g.gen_int(size / 2);
            let again = g.call(own_use, vec![next, more]);
            let then = match g.below(2) {
                0 => again,
                _ => {
                    let e = g.gen_int(size / 4);
                    g.op("add", vec![again, e])
                }
            };
            let otherwise = g.gen_int(size / 4);
            g.m.add(Expr::If { cond, then, otherwise })
        });
        let value = self.function(vec![i, s], body, Some(int));
        let start = self.gen_int(size / 4);
        let (own_use, zero) = (self.use_of(own), self.int(0));
        let first = self.call(own_use, vec![zero, start]);
        let e = self.m.add(Expr::Let { var: own, value, body: first });
        self.made(Kind::Int, e)
    }

    /// Leaves a trace that tells when and how often it was evaluated.
    fn effect(&mut self, size: u64) -> ExprId {
        let Some(cell) = self.trace else { return self.control(Kind::Int, size) };
        let read = {
            let cell = self.use_of(cell);
            self.m.add(Expr::RefRead(cell))
        };
        if self.below(4) == 0 {
            return self.made(Kind::Int, read);
        }
        let (many, mark) = (self.int(7), self.names as i32 % 5 + 1);
        let (scaled, mark) = (self.op("multiply", vec![read, many]), self.int(mark));
        let limit = self.int(1_000_003);
        let sum = self.op("add", vec![scaled, mark]);
        let sum = self.op("mod", vec![sum, limit]);
        let cell = self.use_of(cell);
        let value = self.m.add(Expr::RefWrite(cell, sum));
        let (var, body) = (self.var(), self.gen_int(size));
        let e = self.m.add(Expr::Let { var, value, body });
        self.made(Kind::Int, e)
    }
}

/// A module of which each function, closure and branch may share what others around it or beside it use.
fn random_module(seed: u64, effects: bool) -> Module {
    let mut m = Module::new();
    let a = m.new_type_var("A");
    let some = Constructor { name: "Some".into(), fields: vec![Type::Var(a)] };
    let none = Constructor { name: "None".into(), fields: vec![] };
    m.add_adt(AdtDef { name: "Option".into(), params: vec![a], constructors: vec![some, none], is_extern: false });
    let mut g = Generator { rng: Rng(seed), m, pool: Vec::new(), trace: None, names: 0 };
    let int = Type::tensor(&[], DType::I32);
    let params: Vec<VarId> = (0..2).map(|i| g.m.new_var(format!("p{i}"), Some(int.clone()))).collect();
    let cell = g.m.new_var("trace", None);
    let mut vars: Vec<(Kind, VarId)> = params.iter().map(|&p| (Kind::Int, p)).collect();
    vars.reverse();
    g.trace = effects.then_some(cell);
    let size = 10 + g.below(60);
    let result = g.bound(&vars, |g| g.gen_int(size));
    let out = g.m.new_var("out", None);
    let (out_use, cell_use) = (g.use_of(out), g.use_of(cell));
    let read = g.m.add(Expr::RefRead(cell_use));
    let both = g.m.add(Expr::Tuple(vec![out_use, read]));
    let mut body = g.m.add(Expr::Let { var: out, value: result, body: both });
    let zero = g.int(0);
    let new = g.m.add(Expr::RefNew(zero));
    body = match effects {
        true => g.m.add(Expr::Let { var: cell, value: new, body }),
        false => result,
    };
    let main = g.function(params, body, None);
    g.m.define("main", main);
    g.m
}

fn check(seed: u64, effects: bool, passes: bool) -> Result<(), String> {
    let m = random_module(seed, effects);
    let text = || print_module(&m);
    // Nothing may say of what a `None` is none.
    let Ok(typed) = infer_types(m.clone()) else { return Ok(()) };
    let m = typed.into_module();
    for args in [[3, 8], [5, -1]] {
        let args: Vec<Value> = args.iter().map(|&a| Tensor::scalar(a).into()).collect();
        let wanted = interp::run_flat(&m, "main", args.clone()).map_err(|e| format!("interpreter: {e}\n{}", text()))?;
        let m = match passes {
            true => after_passes(m.clone()).map_err(|e: Refused| format!("passes: {e}\n{}", text()))?,
            false => m.clone(),
        };
        let program = compiled(m).map_err(|e| format!("compile: {e}\n{}", text()))?;
        let found = run(&program, &args).map_err(|e| format!("run: {e}\n{}\n{}", text(), program.0))?;
        let ints = |t: &[Tensor]| t.iter().flat_map(|t| t.to_i64_vec()).collect::<Vec<_>>();
        if ints(&found) != ints(&wanted) {
            return Err(format!("{:?} against {:?}\n{}\n{}", ints(&found), ints(&wanted), text(), program.0));
        }
    }
    Ok(())
}

fn check_all(seeds: u64, effects: bool, passes: bool) {
    let first = std::env::var("RESAT_SEED").ok().and_then(|s| s.parse().ok());
    let failed: Vec<(u64, String)> = (first.unwrap_or(0)..first.map_or(seeds, |s| s + 1))
        .filter_map(|seed| check(seed, effects, passes).err().map(|e| (seed, e)))
        .collect();
    if let Some((seed, e)) = failed.iter().min_by_key(|f| f.1.len()) {
        let seeds: Vec<u64> = failed.iter().map(|f| f.0).collect();
        panic!("{} of {seeds:?} fail; seed {seed}: {e}", seeds.len());
    }
}

#[test]
fn programs_with_effects() {
    check_all(200, true, false);
}

#[test]
fn programs_after_the_passes_of_a_build() {
    check_all(40, false, true);
}

#[test]
fn programs_with_effects_after_the_passes_of_a_build() {
    check_all(40, true, true);
}
