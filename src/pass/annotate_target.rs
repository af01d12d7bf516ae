//! Calls that external compilers take get annotations, which become regions, which become functions.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use hashbrown::HashMap;

use super::{
    FnPass, MergeComposite, Pass, PassContext, Sequential, fold_constant,
    merge_composite::compiler_of,
    regions::{Regions, composite, read, split, without_defaults, write},
    sharing::share_bindings,
};
use crate::{
    diag::Refused,
    infer::{TypedModule, infer_types},
    ir::{AttrValue, Attrs, Expr, ExprId, Module, Name, OpId, Type, reachable},
    partition::{self, ExternalCompiler},
};

/// The call of an operator that a compiler may take.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The module.
    pub typed: &'a TypedModule,
    /// The call.
    pub call: ExprId,
    /// Its operator.
    pub op: OpId,
    /// Its attributes.
    pub attrs: &'a Attrs,
    /// The types of its arguments.
    pub args: &'a [Type],
    /// The type of its result.
    pub result: &'a Type,
}

/// What decides whether a compiler supports a call.
type Asked = (OpId, Attrs, Vec<Type>, Type);

/// Which calls a compiler takes.
#[derive(Clone)]
pub struct Taker {
    name: Name,
    takes: Arc<dyn Fn(&Candidate<'_>) -> bool + Send + Sync>,
    composites: Vec<Name>,
}

impl Taker {
    /// The compiler of that name, registered or not, takes the calls of operators that the function says, and composites whose
    /// names begin with its own and a dot.
    pub fn new(name: impl Into<Name>, takes: impl Fn(&Candidate<'_>) -> bool + Send + Sync + 'static) -> Taker {
        Taker { name: name.into(), takes: Arc::new(takes), composites: Vec::new() }
    }

    /// A compiler takes what it supports, and its composites.
    pub fn of(compiler: &'static dyn ExternalCompiler) -> Taker {
        // Compilers may try what they are asked, and programs repeat themselves.
        let known: Mutex<HashMap<Asked, bool>> = Mutex::default();
        let takes = move |c: &Candidate<'_>| {
            let asked = (c.op, c.attrs.clone(), c.args.to_vec(), c.result.clone());
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            *known.entry(asked).or_insert_with(|| compiler.supports(c.op, c.attrs, c.args, c.result))
        };
        let composites = compiler.patterns().into_iter().map(|c| c.name).collect();
        Taker { composites, ..Taker::new(compiler.name(), takes) }
    }

    /// The same, of these operators only.
    pub fn only(self, ops: Vec<OpId>) -> Taker {
        let before = self.takes.clone();
        Taker { takes: Arc::new(move |c: &Candidate<'_>| ops.contains(&c.op) && before(c)), ..self }
    }

    /// The compiler's name.
    pub fn name(&self) -> &Name {
        &self.name
    }
}

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what `{}` takes", self.name)
    }
}

/// Annotates each call that a compiler takes with `annotation.compiler_begin` on what it reads and `annotation.compiler_end` on what it
/// gives. Of several compilers that take a call the first gets it. What is annotated already stays so; what nobody takes has no annotation
/// (TVM writes `default`, which is read as none).
#[derive(Clone, Debug)]
pub struct AnnotateTarget {
    takers: Vec<Taker>,
    non_calls: bool,
}

impl AnnotateTarget {
    /// For these compilers, the preferred ones first.
    pub fn new(takers: Vec<Taker>) -> AnnotateTarget {
        AnnotateTarget { takers, non_calls: true }
    }

    /// Whether tuples that one region alone reads are made within it, which TVM calls `include_non_call_ops`. That is how they
    /// are written only: regions grow through tuples either way.
    pub fn include_non_call_ops(self, non_calls: bool) -> AnnotateTarget {
        AnnotateTarget { non_calls, ..self }
    }

    fn taker(&self, typed: &TypedModule, e: ExprId) -> Option<&Name> {
        let m = typed.module();
        let taker = match m.op_call(e) {
            Some((op, args, attrs)) => {
                let args: Vec<Type> = args.iter().map(|a| typed.ty(*a).clone()).collect();
                let candidate = Candidate { typed, call: e, op, attrs, args: &args, result: typed.ty(e) };
                self.takers.iter().find(|t| (t.takes)(&candidate))
            }
            None => {
                let (_, name) = composite(m, e)?;
                let takes = |t: &&Taker| t.composites.contains(&name) || compiler_of(&name) == Some(t.name.as_str());
                self.takers.iter().find(takes)
            }
        };
        taker.map(Taker::name)
    }
}

impl Pass for AnnotateTarget {
    fn name(&self) -> String {
        let names: Vec<&str> = self.takers.iter().map(|t| t.name.as_str()).collect();
        format!("AnnotateTarget({})", names.join(", "))
    }

    fn run(&self, module: Module, _: &mut PassContext) -> Result<Module, Refused> {
        let annotated = with_regions(module, |regions| {
            for e in regions.free_calls() {
                if let Some(name) = self.taker(regions.typed(), e).cloned() {
                    regions.add(name, &[e]);
                }
            }
            write(regions, self.non_calls)
        })?;
        self.takers.iter().filter_map(|t| partition::compiler(&t.name)).try_for_each(partition::heed)?;
        Ok(annotated)
    }
}

/// The module without annotations for the compiler `default`, by which TVM marks what no compiler takes.
pub fn drop_default_annotations(module: Module) -> Module {
    let is_annotated = module.ids().any(|e| module.op_call(e).is_some_and(|(_, _, a)| a.get("compiler").is_some()));
    if is_annotated { without_defaults(&module) } else { module }
}

/// The compilers that a module's annotations name, in their order, without `default`, by which nobody is meant.
pub fn annotated_compilers(module: &Module) -> Vec<Name> {
    let mut found: Vec<Name> = Vec::new();
    for e in reachable(module, module.functions().map(|(_, f)| f)) {
        let Some((op, _, attrs)) = module.op_call(e) else { continue };
        if let (ANNOTATIONS, Some(AttrValue::Str(name))) = (op.op().name(), attrs.get("compiler"))
            && name.as_str() != "default"
            && !found.iter().any(|f| f == name)
        {
            found.push(name.as_str().into());
        }
    }
    found
}

/// What ends a region.
const ANNOTATIONS: &str = "annotation.compiler_end";

/// The module with a function for each region that is annotated; the module itself where none is. What a program says of its regions
/// holds before anything looks at what would pay.
pub fn partition_annotated(module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
    match annotated_compilers(&module).is_empty() {
        true => Ok(module),
        false => PartitionGraph::default().run(module, cx),
    }
}

/// What a user should know of annotations that a program had and passes made nothing of: they are not done as they were written.
///
/// Annotations that are still there may yet become regions, unless the program is `finished`.
pub fn forgotten_annotations(before: &[Name], after: &Module, finished: bool) -> Vec<String> {
    let all = reachable(after, after.functions().map(|(_, f)| f));
    let has_region = |name: &Name| {
        all.iter().any(|&e| matches!(&after[e], Expr::Func(f) if f.compiler().is_some_and(|c| c == name.as_str())))
    };
    let still = if finished { Vec::new() } else { annotated_compilers(after) };
    let forgotten = before.iter().filter(|name| !still.contains(name) && !has_region(name));
    forgotten
        .map(|name| {
            format!(
                "the program's annotations for the compiler `{name}` had no effect: `--compiler {name}` or the pass \
                 PartitionGraph makes regions of them"
            )
        })
        .collect()
}

/// The module that is made of the regions that annotations say.
fn with_regions(module: Module, f: impl FnOnce(&mut Regions<'_>) -> Module) -> Result<Module, Refused> {
    let mut annotated = read(&share_bindings(module))?;
    let typed = infer_types(std::mem::take(&mut annotated.module))?;
    let mut regions = Regions::new(&typed);
    annotated.add_to(&mut regions);
    Ok(f(&mut regions))
}

/// Lets annotated regions of one compiler that follow each other become one, wherever that keeps them convex and in order.
#[derive(Clone, Copy, Debug)]
pub struct MergeCompilerRegions;

impl Pass for MergeCompilerRegions {
    fn name(&self) -> String {
        "MergeCompilerRegions".into()
    }

    fn run(&self, module: Module, _: &mut PassContext) -> Result<Module, Refused> {
        with_regions(module, |regions| {
            regions.split_unsound();
            regions.grow();
            write(regions, true)
        })
    }
}

/// Makes functions of the module of annotated regions; see [`split`]. A region that can't be one function is several.
#[derive(Clone, Debug)]
pub struct PartitionGraph {
    module: String,
    bind_constants: Option<bool>,
}

impl Default for PartitionGraph {
    fn default() -> PartitionGraph {
        PartitionGraph { module: "default".into(), bind_constants: None }
    }
}

impl PartitionGraph {
    /// The same with another name in those of the functions, `default` where none is given.
    pub fn mod_name(self, name: impl Into<String>) -> PartitionGraph {
        PartitionGraph { module: name.into(), ..self }
    }

    /// Whether functions hold the constants that they use, or take those of more than one element as arguments. Where nothing
    /// is said, compilers that are known and keep no constants take them as arguments.
    pub fn bind_constants(self, bind: bool) -> PartitionGraph {
        PartitionGraph { bind_constants: Some(bind), ..self }
    }
}

impl Pass for PartitionGraph {
    fn name(&self) -> String {
        "PartitionGraph".into()
    }

    fn run(&self, module: Module, _: &mut PassContext) -> Result<Module, Refused> {
        let binds = |compiler: &str| {
            self.bind_constants.unwrap_or_else(|| partition::compiler(compiler).is_none_or(|c| c.keeps_constants()))
        };
        with_regions(module, |regions| {
            regions.split_unsound();
            split(regions, &self.module, &binds)
        })
    }
}

/// Everything for some compilers, the preferred ones first: their composites, annotations, regions as large as they can be, and
/// functions.
pub struct PartitionFor {
    name: String,
    passes: Sequential,
}

impl PartitionFor {
    /// For these compilers; of one with operators named, these only, and none of its composites. Refuses patterns that can't be read.
    pub fn new(compilers: &[(&'static dyn ExternalCompiler, Vec<OpId>)]) -> Result<PartitionFor, Refused> {
        let mut composites = MergeComposite::new();
        let mut takers = Vec::new();
        for (compiler, ops) in compilers {
            let all = Taker::of(*compiler);
            match ops.is_empty() {
                true => {
                    composites = composites.and(MergeComposite::of(*compiler)?);
                    takers.push(all);
                }
                false => takers.push(all.only(ops.clone())),
            }
        }
        let names: Vec<&str> = compilers.iter().map(|(c, _)| c.name()).collect();
        let name = format!("partition_for({})", names.join(", "));
        let passes: Vec<Box<dyn Pass>> = vec![
            // What is computed of constants alone is a constant of a region, and none of its own.
            Box::new(FnPass("FoldConstant", |m: Module| fold_constant(&m))),
            Box::new(composites),
            Box::new(AnnotateTarget::new(takers)),
            Box::new(MergeCompilerRegions),
            Box::new(PartitionGraph::default()),
        ];
        Ok(PartitionFor { name, passes: Sequential(passes) })
    }
}

/// The module with all that a compiler takes as functions for it; see [`PartitionFor`].
pub fn partition_for(module: Module, compiler: &'static dyn ExternalCompiler) -> Result<Module, Refused> {
    PartitionFor::new(&[(compiler, Vec::new())])?.run(module, &mut PassContext::default())
}

impl Pass for PartitionFor {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn run(&self, module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        let mut quiet = PassContext::default();
        let module = self.passes.run(module, &mut quiet)?;
        cx.reports.extend(quiet.reports);
        Ok(module)
    }
}
