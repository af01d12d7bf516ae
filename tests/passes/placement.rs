//! Placement by cost: one extraction gives each part of a program to resat or to an external compiler.

use std::sync::{Arc, Once};

use crate::{
    common::Rng,
    programs::{assert_same, program, run, typed},
};
use resat::{
    cost::{CostModel, Head, NodeView, Roofline, Timer, TimerError},
    ir::{Attrs, Expr, ExprId, Function, Module, OpId, Type, reachable},
    ops::{make_attrs, op},
    partition::{self, Compiled, CompilerError, Composite, ExternalCompiler, Region, RuleText},
    pass::{Placement, Settings, Strategy},
    relay::text,
    saturate::Grade,
    target::{Peaks, Target},
    tensor::DType,
};

/// A compiler of made-up prices: each operator that it takes, its price; what a call and a crossing cost.
struct Toy {
    name: &'static str,
    prices: &'static [(&'static str, f64)],
    call: f64,
    crossing: f64,
    composites: &'static [(&'static str, &'static str, f64)],
}

impl ExternalCompiler for Toy {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, op: OpId, _: &Attrs, _: &[Type], _: &Type) -> bool {
        self.prices.iter().any(|p| p.0 == op.op().name())
    }

    fn patterns(&self) -> Vec<Composite> {
        self.composites.iter().map(|&(name, pattern, _)| Composite::new(name, pattern)).collect()
    }

    fn cost(&self, region: &Region<'_>) -> Option<f64> {
        let m = region.module();
        let f = region.function();
        if let Expr::Call { callee, .. } = &m[f.body]
            && let Expr::Func(inner) = &m[*callee]
            && let Some(name) = inner.attrs.get("Composite")
        {
            let price = self.composites.iter().find(|c| *name == c.0.into())?;
            return Some(price.2);
        }
        let ops = reachable(m, [f.body]).into_iter().filter_map(|e| m.op_call(e));
        ops.map(|(op, ..)| Some(self.prices.iter().find(|p| p.0 == op.op().name())?.1)).sum()
    }

    fn call_cost(&self) -> f64 {
        self.call
    }

    fn transfer_cost(&self, _: u64) -> f64 {
        self.crossing
    }

    fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError> {
        Err(region.refuse("it is a toy"))
    }
}

/// Cheap for `exp`, dear at its borders.
const FAR: Toy = Toy {
    name: "toy_far",
    prices: &[("exp", 1.0), ("tanh", 4.0), ("add", 2.0), ("nn.relu", 1.0)],
    call: 5.0,
    crossing: 3.0,
    composites: &[("toy_far.relu_of_sum", "(nn.relu (add ?a ?b))", 1.5)],
};

/// Good at `tanh` and `add`, next door.
const NEAR: Toy = Toy {
    name: "toy_near",
    prices: &[("tanh", 2.0), ("add", 1.0), ("sqrt", 3.0)],
    call: 0.5,
    crossing: 0.25,
    composites: &[],
};

/// What resat's own code costs.
const OWN: &[(&str, f64)] = &[("exp", 6.0), ("tanh", 7.0), ("add", 2.5), ("nn.relu", 2.0), ("sqrt", 3.5), ("abs", 1.0)];

struct Own;

fn own(op: &str) -> f64 {
    OWN.iter().find(|p| p.0 == op).map_or(1.0, |p| p.1)
}

impl CostModel for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn cost(&self, node: &NodeView) -> f64 {
        match node.head {
            Head::Op(op, _) => own(op.op().name()),
            Head::Carried { bodies } => bodies,
            Head::Tuple | Head::Proj(_) => 0.0,
        }
    }
}

/// What leaving a region costs in any case: the call, as the prices have it.
const CALL: f64 = 1e-6;

fn settings(names: &[&str]) -> Settings {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        partition::register(FAR).expect("a name of its own");
        partition::register(NEAR).expect("a name of its own");
    });
    let mut settings = Settings::new(Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal"));
    settings.cost = Arc::new(Own);
    settings.placement = Placement::of(names).unwrap_or_else(|e| panic!("{e}"));
    settings
}

/// A random program of elementwise operators, as operators with the numbers of their arguments: 0 is the parameter, each call one more.
type Calls = Vec<(&'static str, Vec<usize>)>;

fn random_calls(rng: &mut Rng, n: usize) -> Calls {
    let mut calls: Calls = Vec::new();
    for i in 0..n {
        let (name, arity) = [("exp", 1), ("tanh", 1), ("add", 2), ("nn.relu", 1), ("sqrt", 1), ("abs", 1), ("add", 2)]
            [(rng.next() % 7) as usize];
        // Mostly the latest values, so that there are chains.
        let pick = |rng: &mut Rng| match rng.next() % 3 {
            0 => (rng.next() % (i as u64 + 1)) as usize,
            _ => i,
        };
        calls.push((name, (0..arity).map(|_| pick(rng)).collect()));
    }
    calls
}

fn module_of(calls: &Calls) -> Module {
    let mut m = Module::new();
    let x = m.new_var("x", Some(Type::tensor(&[2, 3], DType::F32)));
    let mut values: Vec<ExprId> = vec![m.add(Expr::Var(x))];
    for (name, args) in calls {
        let op = op(name);
        let args = args.iter().map(|&a| values[a]).collect();
        let attrs = make_attrs(op, &[]).expect("no attributes");
        let call = m.call_op(op, args, attrs);
        values.push(call);
    }
    let body = *values.last().expect("the parameter");
    let f = m.add(Expr::Func(Box::new(Function::new(vec![x], body, None))));
    m.define("main", f);
    m
}

/// What the best placement costs, by trying all: each call at one or several of the places (0 is resat), composites aside.
fn brute_force(calls: &Calls, toys: &[&Toy]) -> f64 {
    // What is not needed is no part of the program; equal calls are one.
    let mut class: Vec<usize> = vec![0];
    let mut distinct: Calls = Vec::new();
    for (name, args) in calls {
        let call = (*name, args.iter().map(|&a| class[a]).collect::<Vec<_>>());
        let at = distinct.iter().position(|c| *c == call).unwrap_or_else(|| {
            distinct.push(call);
            distinct.len() - 1
        });
        class.push(at + 1);
    }
    let mut needed = vec![false; distinct.len() + 1];
    let result = *class.last().expect("a value");
    needed[result] = true;
    for (i, (_, args)) in distinct.iter().enumerate().rev() {
        if needed[i + 1] {
            args.iter().for_each(|&a| needed[a] = true);
        }
    }
    let price = |call: usize, place: usize| match place {
        0 => Some(own(distinct[call].0)),
        k => toys[k - 1].prices.iter().find(|p| p.0 == distinct[call].0).map(|p| p.1),
    };
    let live: Vec<usize> = (0..distinct.len()).filter(|&i| needed[i + 1]).collect();
    let places = toys.len() + 1;
    let sets: Vec<Vec<u32>> = live
        .iter()
        .map(|&c| {
            (1..1u32 << places).filter(|s| (0..places).all(|p| s >> p & 1 == 0 || price(c, p).is_some())).collect()
        })
        .collect();
    let mut best = f64::INFINITY;
    let mut at = vec![0usize; live.len()];
    loop {
        // By value: where it is computed, where it is wanted.
        let mut computed = vec![0u32; distinct.len() + 1];
        let mut wanted = vec![0u32; distinct.len() + 1];
        computed[0] = 1;
        wanted[result] |= 1;
        let mut cost = 0.0;
        for (k, &c) in live.iter().enumerate() {
            let set = sets[k][at[k]];
            computed[c + 1] = set;
            for p in (0..places).filter(|p| set >> p & 1 == 1) {
                cost += price(c, p).expect("sets hold what can be had");
                distinct[c].1.iter().for_each(|&a| wanted[a] |= 1 << p);
            }
        }
        for (have, want) in computed.iter().zip(&wanted) {
            let lacking = want & !have;
            for k in (1..places).filter(|k| lacking >> k & 1 == 1) {
                cost += toys[k - 1].crossing;
            }
            if lacking != 0 && have & 1 == 0 {
                let leave = |k: usize| CALL + toys[k - 1].call + toys[k - 1].crossing;
                cost += (1..places).filter(|k| have >> k & 1 == 1).map(leave).fold(f64::INFINITY, f64::min);
            }
        }
        best = best.min(cost);
        let Some(next) = (0..at.len()).find(|&i| at[i] + 1 < sets[i].len()) else { return best };
        at[next] += 1;
        at[..next].fill(0);
    }
}

/// Without composites: brute force knows of none.
fn plain(toy: Toy, name: &'static str) -> Toy {
    Toy { name, composites: &[], ..toy }
}

#[test]
fn random_programs_are_placed_as_cheaply_as_can_be() {
    const CASES: usize = 120;
    let far = plain(FAR, "toy_far_plain");
    partition::register(plain(FAR, "toy_far_plain")).expect("a name of its own");
    let (mut exact, mut worst) = (0, 1.0f64);
    let mut rng = Rng(5);
    for case in 0..CASES {
        let calls = random_calls(&mut rng, 2 + case % 6);
        let m = module_of(&calls);
        let (names, toys): (&[&str], Vec<&Toy>) = match case % 2 {
            0 => (&["toy_far_plain"], vec![&far]),
            _ => (&["toy_far_plain", "toy_near"], vec![&far, &NEAR]),
        };
        let best = brute_force(&calls, &toys);
        let (placed, report) = run(&m, "Saturate(placement)", &settings(names));
        assert!(report.faults.is_empty(), "{:?}", report.faults);
        assert_same(&m, &placed);
        let ours = report.cost_after;
        assert!(ours >= best - 1e-9, "case {case}: {ours} is less than the best, {best}: {calls:?}");
        exact += usize::from(ours <= best + 1e-9);
        worst = worst.max(ours / best);
    }
    // Extraction is no proof: a program in a hundred may be a little more expensive than need be.
    assert!(exact * 100 >= CASES * 98 && worst < 1.05, "{exact} of {CASES}, the worst {worst} times the best");
}

#[test]
fn composites_are_placed_as_one() {
    let m = program("%x: Tensor[(2, 3), float32]", "%0 = exp(%x); %1 = exp(%0); %2 = exp(%1); nn.relu(add(%2, %1))");
    let (placed, report) = run(&m, "Saturate(placement)", &settings(&["toy_far"]));
    assert_same(&m, &placed);
    // Three times exp, the composite; one way in, one way out.
    assert!((report.cost_after - (3.0 + 1.5 + 3.0 + 3.0 + 5.0 + CALL)).abs() < 1e-9, "{report}");
    let text = text::print_module(&placed);
    assert!(text.contains("Composite=\"toy_far.relu_of_sum\""), "{text}");
}

/// A compiler that takes calls by their attributes and types, next to nothing each.
struct Picky {
    name: &'static str,
    takes: fn(&str, &[Type]) -> bool,
    rules: Option<&'static str>,
}

impl ExternalCompiler for Picky {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, op: OpId, _: &Attrs, args: &[Type], _: &Type) -> bool {
        (self.takes)(op.op().name(), args)
    }

    fn rules(&self) -> Option<RuleText> {
        self.rules.map(|text| RuleText { file: format!("{}.rules", self.name).into(), text: text.into() })
    }

    fn cost(&self, _: &Region<'_>) -> Option<f64> {
        Some(1e-9)
    }

    fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError> {
        Err(region.refuse("it is a toy"))
    }
}

/// The operators that a compiler is given in an annotated program.
fn given(m: &Module, compiler: &str) -> Vec<String> {
    let all = reachable(m, m.functions().map(|(_, f)| f));
    let is_end = |e: &ExprId| {
        m.op_call(*e).is_some_and(|(op, _, attrs)| {
            op.op().name() == "annotation.compiler_end" && attrs.get("compiler") == Some(&compiler.into())
        })
    };
    let ends = all.iter().filter(|e| is_end(e)).filter_map(|e| m.op_call(m.op_call(*e)?.1[0]));
    ends.map(|(op, ..)| op.op().name().to_owned()).collect()
}

#[test]
fn layout_and_placement_are_one_choice() {
    // Only convolutions of blocked layouts: the program has none until rules make them.
    let blocked = Picky { name: "toy_blocked", takes: |op, _| op == "nn.contrib_conv2d_NCHWc", rules: None };
    partition::register(blocked).expect("a name of its own");
    let mut settings = settings(&["toy_blocked"]);
    settings.cost = Arc::new(Roofline);
    settings.limits.weights_known = true;
    let m = program(
        "%x: Tensor[(1, 16, 8, 8), float32], %w: Tensor[(16, 16, 3, 3), float32]",
        "nn.relu(nn.conv2d(nn.relu(%x), %w, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]))",
    );
    let (placed, report) = run(&m, "Saturate(all, placement)", &settings);
    assert_eq!(given(&placed, "toy_blocked"), ["nn.contrib_conv2d_NCHWc"], "{report}\n{}", text::print_module(&placed));
    assert_same(&m, &placed);
    let part = report.placed.iter().find(|p| p.name == "nn.contrib_conv2d_NCHWc").expect("who makes what is reported");
    let next = part.next.as_ref().expect("resat makes convolutions as well");
    assert_eq!(next.0, None);
    assert!(next.1 > part.cost, "{report}");
}

#[test]
fn precision_and_placement_are_one_choice() {
    // Short floats only; its rules say how a program comes by them, and what that does to the result.
    let short = Picky {
        name: "toy_short",
        takes: |op, args| {
            let is_short = |t: &Type| t.as_tensor().is_some_and(|t| t.dtype == DType::F16);
            op == "nn.dense" && args.iter().all(is_short)
        },
        rules: Some(
            "(ruleset toy-short :numerics approx :error 0.01)
             ;; Dense layers of rounded arguments.
             (rule dense (as ?y (nn.dense {out_dtype ?o ..?a} ?x ?w))
               => (cast {dtype float32} (nn.dense {..?a out_dtype float16} (cast {dtype float16} ?x) (cast {dtype float16} ?w)))
               :when (has-dtype ?x float32) (has-dtype ?w float32) (has-dtype ?y float32))",
        ),
    };
    partition::register(short).expect("a name of its own");
    let mut settings = settings(&["toy_short"]);
    settings.cost = Arc::new(Roofline);
    settings.grade = Grade::Approx;
    let m = program(
        "%x: Tensor[(64, 512), float32], %w: Tensor[(256, 512), float32]",
        "nn.relu(nn.dense(%x, %w, units=256))",
    );
    for (error, wanted) in [(0.0, 0), (0.005, 0), (0.011, 1)] {
        settings.limits.error = error;
        let (placed, report) = run(&m, "Saturate(placement)", &settings);
        assert_eq!(given(&placed, "toy_short").len(), wanted, "within {error}: {report}");
        assert_eq!(report.error > 0.0, wanted > 0, "within {error}: {report}");
        typed(&placed);
    }
}

#[test]
fn what_is_dear_stays() {
    // One cheap call between dear crossings is no region; many in a row are.
    let settings = settings(&["toy_far"]);
    let chain = |n: usize| {
        let lines: String = (0..n).map(|i| format!("%{} = exp(%{});\n", i + 1, i)).collect();
        program("%x: Tensor[(2, 3), float32]", &format!("%0 = abs(%x);\n{lines}abs(%{n})"))
    };
    // A call saves 5; a way in and a way out cost 11.
    for (n, regions) in [(1, 0), (2, 0), (3, 3), (6, 6)] {
        let (placed, report) = run(&chain(n), "Saturate(placement)", &settings);
        assert_eq!(given(&placed, "toy_far").len(), regions, "{n}: {report}");
    }
}

#[test]
fn names_of_placements_are_read() {
    assert_eq!("cost".parse(), Ok(Strategy::Cost));
    assert_eq!("greedy".parse(), Ok(Strategy::Greedy));
    assert_eq!("all:c".parse(), Ok(Strategy::All("c".into())));
    assert!("all:".parse::<Strategy>().is_err() && "best".parse::<Strategy>().is_err());
    let e = Placement::of(&["cc"]).unwrap_err().to_string();
    assert!(e.contains("there is no compiler `cc`; there are c"), "{e}");
}

/// A machine on which each region of an external compiler takes so long, and each operator elsewhere a second.
struct Clock(f64);

impl Timer for Clock {
    fn seconds(&self, program: &Module) -> Result<f64, TimerError> {
        let regions = regions(program);
        let inside: usize = regions.iter().map(|&f| calls_in(program, program.func(f).body)).sum();
        let main = program.function("main").ok_or("no main")?;
        Ok(regions.len() as f64 * self.0 + (calls_in(program, main.body) - inside) as f64)
    }

    fn peaks(&self) -> Result<Peaks, TimerError> {
        Err("nobody asks".into())
    }
}

fn calls_in(m: &Module, root: ExprId) -> usize {
    // Regions may be functions of the module, called by name.
    let mut roots = vec![root];
    for e in reachable(m, [root]) {
        if let Expr::Global(name) = &m[e] {
            roots.extend(m.function_id(name.as_str()));
        }
    }
    reachable(m, roots).into_iter().filter(|&e| m.op_call(e).is_some()).count()
}

/// The functions of a program that are for external compilers.
fn regions(m: &Module) -> Vec<ExprId> {
    let all = reachable(m, m.functions().map(|(_, f)| f));
    all.into_iter().filter(|&e| matches!(&m[e], Expr::Func(f) if f.compiler().is_some())).collect()
}

fn chain(ops: &[&str]) -> Module {
    let lines: String = ops.iter().enumerate().map(|(i, op)| format!("%{i} = {op}({});\n", operand(i))).collect();
    program("%x: Tensor[(2, 3), float32]", &format!("{lines}abs(%{})", ops.len() - 1))
}

fn operand(i: usize) -> String {
    if i == 0 { "%x".into() } else { format!("%{}", i - 1) }
}

#[test]
fn the_default_pipeline_makes_regions() {
    let m = chain(&["abs", "exp", "exp", "exp", "exp", "abs"]);
    for strategy in [Strategy::Cost, Strategy::Greedy, Strategy::All("toy_far".into())] {
        let mut settings = settings(&["toy_far"]);
        settings.placement.strategy = strategy.clone();
        let (placed, _) = run(&m, "default", &settings);
        let found = regions(&placed);
        assert_eq!(found.len(), 1, "{strategy}: {}", text::print_module(&placed));
        assert_eq!(calls_in(&placed, placed.func(found[0]).body), 4, "{strategy}: neighbours are one region");
        assert_same(&m, &placed);
    }
}

#[test]
fn prices_are_measured_where_that_is_asked_for() {
    let m = chain(&["abs", "exp", "exp", "exp", "exp", "abs"]);
    for (region, wanted) in [(0.001, 4), (100.0, 0)] {
        let mut settings = settings(&["toy_far"]);
        settings.placement.machine = Some(Arc::new(Clock(region)));
        // The model would have regions; the machine knows better. Crossings cost what the compiler says.
        let cheap = Toy { call: 0.01, crossing: 0.01, ..plain(FAR, if wanted > 0 { "toy_timed" } else { "toy_slow" }) };
        let name = cheap.name;
        partition::register(cheap).expect("a name of its own");
        settings.placement.compilers = Placement::of(&[name]).expect("registered").compilers;
        let (placed, report) = run(&m, "Saturate(placement)", &settings);
        assert_eq!(given(&placed, name).len(), wanted, "{region}: {report}");
        assert_same(&m, &placed);
    }
}

#[test]
fn who_was_guessed_to_be_slow_is_timed_as_well() {
    // By guesses, the first is the cheaper one by a little; in truth it takes longer, and the second next to nothing.
    struct Truth;
    impl Timer for Truth {
        fn seconds(&self, program: &Module) -> Result<f64, TimerError> {
            let named = |f: ExprId| program.func(f).compiler().is_some_and(|c| c == "toy_shy");
            let of = |f: &ExprId| if named(*f) { 0.5 } else { 3.0 };
            let regions = regions(program);
            if !regions.is_empty() {
                return Ok(regions.iter().map(of).sum());
            }
            Ok(calls_in(program, program.function("main").ok_or("no main")?.body) as f64)
        }
        fn peaks(&self) -> Result<Peaks, TimerError> {
            Err("nobody asks".into())
        }
    }
    let toy = |name, prices| Toy { name, prices, call: 0.0, crossing: 0.0, composites: &[] };
    partition::register(toy("toy_bold", &[("exp", 2.0)])).expect("a name of its own");
    partition::register(toy("toy_shy", &[("exp", 3.1)])).expect("a name of its own");
    let mut settings = settings(&["toy_bold", "toy_shy"]);
    settings.placement.machine = Some(Arc::new(Truth));
    let m = chain(&["exp"]);
    let (placed, report) = run(&m, "Saturate(placement)", &settings);
    assert_eq!((given(&placed, "toy_bold").len(), given(&placed, "toy_shy").len()), (0, 1), "{report}");
    assert_same(&m, &placed);
}

#[test]
fn where_nothing_is_given_to_anybody_compilers_leave_no_trace() {
    let m = chain(&["abs", "sqrt", "abs"]);
    let with = settings(&["toy_far"]);
    let mut without = with.clone();
    without.placement = Placement::default();
    let ((placed, report), (plain, _)) = (run(&m, "default", &with), run(&m, "default", &without));
    assert_eq!(text::print_module(&placed), text::print_module(&plain));
    assert!(report.notes.iter().any(|n| n == "placement: resat alone"), "{report}");
    assert!(report.placed.iter().all(|p| p.compiler.is_none()), "{report}");
}

#[test]
fn whole_programs_are_compared_where_that_is_asked_for() {
    // The parts look cheap, but a program with a region takes long: resat's own is the fastest.
    struct Whole;
    impl Timer for Whole {
        fn seconds(&self, program: &Module) -> Result<f64, TimerError> {
            let main = program.function("main").ok_or("no main")?;
            let large = calls_in(program, main.body) > 4;
            Ok(if large && !regions(program).is_empty() { 50.0 } else { 1e-3 * calls_in(program, main.body) as f64 })
        }
        fn peaks(&self) -> Result<Peaks, TimerError> {
            Err("nobody asks".into())
        }
    }
    let m = chain(&["abs", "exp", "exp", "exp", "exp", "abs"]);
    let mut settings = settings(&["toy_far", "toy_near"]);
    settings.placement.machine = Some(Arc::new(Whole));
    let (placed, report) = run(&m, "default", &settings);
    assert!(regions(&placed).is_empty(), "{report}");
    assert!(report.notes.iter().any(|n| n.starts_with("greedy: ")), "{report}");
    assert_same(&m, &placed);
}
