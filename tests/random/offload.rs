//! Random parts of a program for external compilers: annotated by predicates, by patterns and by hand, for one compiler to three.

use std::sync::Once;

use resat::{
    infer::infer_types,
    ir::{Attrs, Expr, ExprId, Module, Name, OpId, Type},
    partition::{self, CSource, Compiled, CompilerError, Composite, ExternalCompiler, Region},
    pass::{AnnotateTarget, MergeCompilerRegions, MergeComposite, PartitionGraph, Pass, PassContext, Regions, Taker},
};

use crate::common::Rng;

/// The compiler `c` by another name, so that there are several.
#[derive(Debug)]
struct Another(&'static str);

impl ExternalCompiler for Another {
    fn name(&self) -> &str {
        self.0
    }
    fn supports(&self, op: OpId, attrs: &Attrs, args: &[Type], result: &Type) -> bool {
        CSource.supports(op, attrs, args, result)
    }
    fn compile(&self, region: &Region<'_>) -> Result<Compiled, CompilerError> {
        CSource.compile(region)
    }
}

/// The names of the compilers, the shipped one first.
const COMPILERS: [&str; 3] = ["c", "c_second", "c_third"];

/// Programs that are annotated at random: the annotated one, the one with merged regions, and the partitioned one.
pub(crate) struct Offloaded {
    pub(crate) annotated: Module,
    pub(crate) merged: Module,
    pub(crate) partitioned: Module,
}

/// Draws who takes what. `real` says that compilers take what they support only, so that there is code.
pub(crate) fn offloaded(m: &Module, seed: u64, real: bool) -> Result<Offloaded, String> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        for name in &COMPILERS[1..] {
            partition::register(Another(name)).unwrap_or_else(|e| panic!("{e}"));
        }
    });
    let mut rng = Rng(seed ^ 0xa07);
    let compilers = &COMPILERS[..1 + (rng.next() >> 20) as usize % 3];
    let run = |pass: &dyn Pass, m: Module| {
        pass.run(m, &mut PassContext::default()).map_err(|e| format!("`{}` refused: {e}", pass.name()))
    };
    let mut composed = m.clone();
    if rng.unit() < 0.5 {
        composed = run(&composites(compilers, real)?, composed)?;
    }
    let salt = rng.next();
    let share = 0.2 + 0.8 * rng.unit();
    let takers = compilers.iter().enumerate().map(|(k, name)| {
        Taker::new(*name, move |c| {
            // By the operator, and, where the number is odd, by the call, too.
            let call = if salt % 2 == 1 { c.call.index() as u64 } else { 0 };
            let draw = Rng(salt ^ (u64::from(c.op.0) << 32) ^ (call << 8) ^ k as u64).unit();
            draw < share && (!real || CSource.supports(c.op, c.attrs, c.args, c.result))
        })
    });
    let annotate = AnnotateTarget::new(takers.collect()).include_non_call_ops(rng.unit() < 0.5);
    let by_hand = rng.unit() < 0.4;
    let annotated = match by_hand {
        true => hand_annotated(composed, compilers, real, &mut rng)?,
        false => composed,
    };
    let annotated = if by_hand && rng.unit() < 0.5 { annotated } else { run(&annotate, annotated)? };
    let merged = if rng.unit() < 0.8 { run(&MergeCompilerRegions, annotated.clone())? } else { annotated.clone() };
    // What is written into code must be small.
    let graph = PartitionGraph::default();
    let graph = if real || rng.unit() < 0.5 { graph } else { graph.bind_constants(true) };
    let partitioned = run(&graph, merged.clone())?;
    Ok(Offloaded { annotated, merged, partitioned })
}

/// Some pairs of operators.
fn composites(compilers: &[&str], real: bool) -> Result<MergeComposite, String> {
    let patterns = [
        "(?f:unary {..} (?g:binary {..} ?x ?y))",
        "(?f:binary {..} ?x (?g:unary {..} ?y))",
        "(proj ?i (?f:unary {..} ?x))",
    ];
    let mut pass = MergeComposite::new();
    for (i, pattern) in patterns.iter().enumerate() {
        let name: Name = format!("{}.pair", compilers[i % compilers.len()]).into();
        let supported = move |found: &partition::Found<'_>| {
            found.calls.iter().all(|&e| {
                let (op, args, attrs) = found.typed.module().op_call(e).expect("calls of operators are found");
                let args: Vec<Type> = args.iter().map(|a| found.typed.ty(*a).clone()).collect();
                !real || CSource.supports(op, attrs, &args, found.typed.ty(e))
            })
        };
        pass = pass.with(&Composite::new(name, *pattern).when(supported)).map_err(|e| e.to_string())?;
    }
    Ok(pass)
}

/// Any calls as regions, whether or not they can be such: what is no region is taken apart.
fn hand_annotated(m: Module, compilers: &[&str], real: bool, rng: &mut Rng) -> Result<Module, String> {
    let typed = infer_types(m).map_err(|e| e.to_string())?;
    let m = typed.module();
    let supported = |e: ExprId| match m.op_call(e) {
        Some((op, args, attrs)) => {
            let args: Vec<Type> = args.iter().map(|a| typed.ty(*a).clone()).collect();
            !real || CSource.supports(op, attrs, &args, typed.ty(e))
        }
        None => matches!(m[e], Expr::Call { .. }),
    };
    let mut regions = Regions::new(&typed);
    for _ in 0..1 + (rng.next() >> 20) % 4 {
        let free: Vec<ExprId> = regions.free_calls().into_iter().filter(|&e| supported(e)).collect();
        let members: Vec<ExprId> = free.into_iter().filter(|_| rng.unit() < 0.3).collect();
        let compiler = compilers[(rng.next() >> 20) as usize % compilers.len()];
        if !members.is_empty() {
            regions.add(compiler, &members);
        }
    }
    regions.split_unsound();
    Ok(regions.annotated())
}
