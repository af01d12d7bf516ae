//! Annotate, merge, split: which calls form regions, and the module with each region as a function.

use hashbrown::{HashMap, HashSet};

use super::ExternalCompiler;
use crate::{
    infer::TypedModule,
    ir::{AttrValue, Attrs, Copier, Expr, ExprId, Module, OpId, Type, children},
    pass::outline,
};

/// The module with the regions of `main` that a compiler supports (and `wanted` picks) as functions for it.
///
/// Regions are as large as possible and convex: nothing leaves a region and comes back into it.
pub fn partition(typed: &TypedModule, compiler: &dyn ExternalCompiler, wanted: &dyn Fn(OpId) -> bool) -> Module {
    let m = typed.module();
    let mut out = m.derive();
    for (name, id) in m.functions() {
        let new = match name.as_str() {
            "main" => split(typed, id, compiler, wanted, &mut out),
            _ => Copier::new().copy(m, id, &mut out),
        };
        out.define(name.clone(), new);
    }
    out
}

/// The expressions of a body, without those inside of functions and conditionals; children before parents.
fn straight(m: &Module, body: ExprId) -> Vec<ExprId> {
    let mut ids = vec![body];
    let mut seen: HashSet<ExprId> = HashSet::from_iter([body]);
    let mut next = 0;
    while let Some(&e) = ids.get(next) {
        next += 1;
        let mut visit = |c| {
            if seen.insert(c) {
                ids.push(c);
            }
        };
        match &m[e] {
            Expr::Func(_) => {}
            Expr::If { cond, .. } => visit(*cond),
            Expr::Match { data, .. } => visit(*data),
            other => children(other, visit),
        }
    }
    ids.sort_unstable();
    ids
}

/// Regions while they grow, and which reads which.
#[derive(Default)]
struct Growing {
    region: HashMap<ExprId, usize>,
    /// For each region, the regions that its members read, possibly through calls outside of all regions.
    reads: Vec<HashSet<usize>>,
    /// For each expression outside of all regions, the regions that it reads likewise.
    outside: HashMap<ExprId, HashSet<usize>>,
}

impl Growing {
    /// The regions that an expression's value comes from.
    fn sources(&self, e: ExprId) -> HashSet<usize> {
        match self.region.get(&e) {
            Some(&r) => HashSet::from_iter([r]),
            None => self.outside.get(&e).cloned().unwrap_or_default(),
        }
    }

    /// Whether a region waits for another, directly or through further ones.
    fn waits_for(&self, waiting: usize, other: usize) -> bool {
        let mut stack = vec![waiting];
        let mut seen: HashSet<usize> = HashSet::new();
        while let Some(r) = stack.pop() {
            if r == other {
                return true;
            }
            if seen.insert(r) {
                stack.extend(&self.reads[r]);
            }
        }
        false
    }

    /// A region that the call may join: one that makes an argument, while no other argument waits for that region.
    fn joinable(&self, m: &Module, args: &[ExprId]) -> Option<usize> {
        // Arguments, tuples and projections looked through.
        let mut leaves = Vec::new();
        let mut stack: Vec<ExprId> = args.to_vec();
        while let Some(a) = stack.pop() {
            match &m[a] {
                Expr::Tuple(fields) => stack.extend(fields),
                Expr::Proj(t, _) if !self.region.contains_key(&a) => stack.push(*t),
                _ => leaves.push(a),
            }
        }
        let mut makers: Vec<usize> = leaves.iter().filter_map(|l| self.region.get(l).copied()).collect();
        makers.sort_unstable();
        makers.dedup();
        let waits = |leaf: &ExprId, r: usize| {
            self.region.get(leaf) != Some(&r) && self.sources(*leaf).iter().any(|&s| self.waits_for(s, r))
        };
        makers.into_iter().find(|&r| !leaves.iter().any(|l| waits(l, r)))
    }
}

/// The region of each call that is in one.
fn regions(
    typed: &TypedModule,
    order: &[ExprId],
    compiler: &dyn ExternalCompiler,
    wanted: &dyn Fn(OpId) -> bool,
) -> HashMap<ExprId, usize> {
    let m = typed.module();
    let mut g = Growing::default();
    for &e in order {
        let mut reads: HashSet<usize> = HashSet::new();
        children(&m[e], |c| reads.extend(g.sources(c)));
        let supported = m.op_call(e).is_some_and(|(op, args, attrs)| {
            let types: Vec<Type> = args.iter().map(|a| typed.ty(*a).clone()).collect();
            wanted(op) && compiler.supports(op, attrs, &types, typed.ty(e))
        });
        match m.op_call(e) {
            Some((_, args, _)) if supported => {
                let joined = g.joinable(m, args).unwrap_or_else(|| {
                    g.reads.push(HashSet::new());
                    g.reads.len() - 1
                });
                reads.remove(&joined);
                g.reads[joined].extend(reads);
                g.region.insert(e, joined);
            }
            _ => {
                g.outside.insert(e, reads);
            }
        }
    }
    g.region
}

fn split(
    typed: &TypedModule,
    id: ExprId,
    compiler: &dyn ExternalCompiler,
    wanted: &dyn Fn(OpId) -> bool,
    out: &mut Module,
) -> ExprId {
    let m = typed.module();
    let order = straight(m, m.func(id).body);
    let region = regions(typed, &order, compiler, wanted);
    let mut members: HashMap<usize, Vec<ExprId>> = HashMap::new();
    for &e in &order {
        if let Some(&r) = region.get(&e) {
            members.entry(r).or_default().push(e);
        }
    }
    // What of a region is read outside of it, tuples and projections looked through.
    let mut read_outside: HashSet<ExprId> = HashSet::from_iter([m.func(id).body]);
    let everything = crate::ir::reachable(m, [id]);
    for &e in everything.iter().rev() {
        let passes_on = matches!(m[e], Expr::Tuple(_) | Expr::Proj(..)) && !read_outside.contains(&e);
        children(&m[e], |c| {
            let same = region.get(&c).is_some() && region.get(&c) == region.get(&e);
            if !same && !passes_on {
                read_outside.insert(c);
            }
        });
    }
    let mut done: HashMap<ExprId, ExprId> = HashMap::new();
    let mut emitted: HashSet<usize> = HashSet::new();
    // A region is emitted when the first thing outside of it asks for it; what it reads is asked for before.
    let mut stack = vec![id];
    while let Some(&e) = stack.last() {
        if done.contains_key(&e) {
            stack.pop();
            continue;
        }
        let parts = region.get(&e).map(|r| &members[r]);
        let mut missing = Vec::new();
        match parts {
            Some(parts) => {
                for &p in parts {
                    arguments(m, p, &region, region[&e], &mut |c| {
                        if !done.contains_key(&c) {
                            missing.push(c);
                        }
                    });
                }
            }
            None => children(&m[e], |c| {
                if !done.contains_key(&c) {
                    missing.push(c);
                }
            }),
        }
        if !missing.is_empty() {
            stack.extend(missing);
            continue;
        }
        stack.pop();
        match parts {
            Some(parts) => {
                let r = region[&e];
                if emitted.insert(r) {
                    let results: Vec<ExprId> = parts.iter().copied().filter(|p| read_outside.contains(p)).collect();
                    let attrs = Attrs::new(vec![
                        ("Primitive".into(), AttrValue::Int(1)),
                        ("Compiler".into(), AttrValue::Str(compiler.name().into())),
                        (
                            "global_symbol".into(),
                            format!("{}_main_{}", compiler.name(), emitted.len() - 1).as_str().into(),
                        ),
                    ]);
                    let call = outline(typed, parts, &results, attrs, &done, out);
                    for (i, result) in results.iter().enumerate() {
                        let value = if results.len() == 1 { call } else { out.add(Expr::Proj(call, i)) };
                        done.insert(*result, value);
                    }
                }
                assert!(done.contains_key(&e), "only a region's results are asked for");
            }
            None => {
                let mut copier = Copier::new();
                children(&m[e], |c| copier.replace(c, done[&c]));
                let new = copier.copy(m, e, out);
                done.insert(e, new);
            }
        }
    }
    done[&id]
}

/// What a member of a region reads from outside of it.
fn arguments(m: &Module, e: ExprId, region: &HashMap<ExprId, usize>, own: usize, f: &mut impl FnMut(ExprId)) {
    children(&m[e], |c| match &m[c] {
        _ if region.get(&c) == Some(&own) => {}
        Expr::Op(_) => {}
        Expr::Tuple(_) => arguments(m, c, region, own, f),
        Expr::Proj(t, _) if region.get(t) == Some(&own) => {}
        _ => f(c),
    });
}
