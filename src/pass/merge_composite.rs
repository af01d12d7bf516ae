//! Patterns of operators become functions with the attribute `Composite`: what a compiler takes as one.
//!
//! Composites are left sides of rules, searched as rules are, in an e-graph that holds the program and nothing else; the match is followed
//! back to the expressions, since equal calls are one class.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::{
    Pass, PassContext,
    outline::Outline,
    regions::{interior, is_kept},
    sharing::share_bindings,
};
use crate::{
    diag::Refused,
    infer::{TypedModule, infer_types},
    ir::{Attrs, Copier, Expr, ExprId, Module, Name, children},
    ops::kernel::INLINE_CONSTANT,
    partition::{Composite, ExternalCompiler, Found},
    rules::{CallPattern, Mirror},
};

/// What else must hold where a pattern is met.
type Check = Arc<dyn Fn(&Found<'_>) -> bool + Send + Sync>;

/// Makes functions of what patterns meet, by TVM's convention: their attributes are `Composite`, the pattern's name, and
/// `PartitionedFromPattern`, the operators. The functions stand where they are called.
///
/// A pattern takes what those before it have left; of one pattern's ways the ones nearest to the result come first. What is used outside
/// of a composite is its result, or the pattern does not fit.
#[derive(Clone, Default)]
pub struct MergeComposite {
    patterns: Vec<(CallPattern, Option<Check>)>,
}

impl MergeComposite {
    /// No patterns yet.
    pub fn new() -> MergeComposite {
        MergeComposite::default()
    }

    /// The patterns of a compiler. Refuses those that can't be read.
    pub fn of(compiler: &dyn ExternalCompiler) -> Result<MergeComposite, Refused> {
        compiler.patterns().iter().try_fold(MergeComposite::new(), MergeComposite::with)
    }

    /// The patterns of a text, as a file has them: `(composite NAME PATTERN :when GUARD …)` each. `name` is what messages call it.
    pub fn of_text(name: &str, text: &str) -> Result<MergeComposite, Refused> {
        let all = CallPattern::read_all(name, text)?;
        Ok(MergeComposite { patterns: all.into_iter().map(|p| (p, None)).collect() })
    }

    /// The same with another pattern after those that there are. Refuses one that can't be read.
    pub fn with(mut self, composite: &Composite) -> Result<MergeComposite, Refused> {
        let pattern = CallPattern::new(&composite.name, &composite.pattern)?;
        self.patterns.push((pattern, composite.check.clone()));
        Ok(self)
    }

    /// Both, one after the other.
    pub fn and(mut self, other: MergeComposite) -> MergeComposite {
        self.patterns.extend(other.patterns);
        self
    }

    /// Whether there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    fn merged(&self, typed: &TypedModule) -> Module {
        let m = typed.module();
        let order = interior(m);
        let mirror = Mirror::new(typed, &order);
        let mut users: HashMap<ExprId, Vec<ExprId>> = HashMap::new();
        for &e in order.iter().filter(|&&e| !is_kept(&m[e])) {
            children(&m[e], |c| users.entry(c).or_default().push(e));
        }
        let mut taken: HashSet<ExprId> = HashSet::new();
        let mut groups: HashMap<ExprId, (&CallPattern, Vec<ExprId>)> = HashMap::new();
        for (pattern, check) in &self.patterns {
            for &root in order.iter().rev().filter(|&&e| m.op_call(e).is_some()) {
                let fits = |parts: &Vec<ExprId>| {
                    let inner = |e: ExprId| e == root || matches!(m[e], Expr::Constant(_));
                    let used_inside = |e: ExprId| users[&e].iter().all(|u| parts.binary_search(u).is_ok());
                    let free = parts.iter().all(|&e| !taken.contains(&e) && (inner(e) || used_inside(e)));
                    let calls: Vec<ExprId> = parts.iter().copied().filter(|&e| m.op_call(e).is_some()).collect();
                    free && check.as_ref().is_none_or(|holds| holds(&Found { typed, root, calls: &calls }))
                };
                if taken.contains(&root) {
                    continue;
                }
                if let Some(parts) = pattern.find_in(&mirror, root).into_iter().find(fits) {
                    taken.extend(parts.iter().filter(|&&e| !matches!(m[e], Expr::Constant(_))));
                    groups.insert(root, (pattern, parts));
                }
            }
        }
        emit(typed, &order, &taken, &groups)
    }
}

/// The module with the groups as functions, each by its result.
fn emit(
    typed: &TypedModule,
    order: &[ExprId],
    taken: &HashSet<ExprId>,
    groups: &HashMap<ExprId, (&CallPattern, Vec<ExprId>)>,
) -> Module {
    let m = typed.module();
    let mut out = m.derive();
    let mut done: HashMap<ExprId, ExprId> = HashMap::new();
    let mut made = 0;
    for &e in order {
        let new = match groups.get(&e) {
            Some((pattern, parts)) => {
                let results = [e];
                let outline = Outline::new(typed, parts, &results, INLINE_CONSTANT);
                let attrs = Attrs::new(vec![
                    ("PartitionedFromPattern".into(), pattern_of(m, outline.parts()).as_str().into()),
                    ("Composite".into(), pattern.name().into()),
                ]);
                let function = outline.function(&format!("FunctionVar_{made}_"), attrs, &mut out);
                made += 1;
                outline.call(function, &done, &mut out)
            }
            None if taken.contains(&e) => continue,
            None if is_kept(&m[e]) => Copier::new().copy(m, e, &mut out),
            None => {
                let mut copier = Copier::new();
                children(&m[e], |c| copier.replace(c, done[&c]));
                copier.copy(m, e, &mut out)
            }
        };
        done.insert(e, new);
    }
    for (name, f) in m.functions() {
        out.define(name.clone(), done[&f]);
    }
    out
}

/// The operators of a composite as TVM writes them: `add_nn.relu_`.
fn pattern_of(m: &Module, parts: &[ExprId]) -> String {
    let part = |&e: &ExprId| match &m[e] {
        Expr::Tuple(_) => Some("Tuple_".to_owned()),
        Expr::Proj(_, i) => Some(format!("TupleGetItem{i}_")),
        _ => m.op_call(e).map(|(op, ..)| format!("{}_", op.op().name())),
    };
    parts.iter().filter_map(part).collect()
}

impl Pass for MergeComposite {
    fn name(&self) -> String {
        "MergeComposite".into()
    }

    fn run(&self, module: Module, _: &mut PassContext) -> Result<Module, Refused> {
        if self.patterns.is_empty() {
            return Ok(module);
        }
        Ok(self.merged(&infer_types(share_bindings(module))?))
    }
}

/// The name of the compiler that a composite is for: what stands before the first dot.
pub(super) fn compiler_of(composite: &Name) -> Option<&str> {
    composite.split_once('.').map(|(compiler, _)| compiler)
}
