//! Fusion: chains of operators become primitive functions, one kernel each.
//!
//! A producer joins the node that post-dominates it, with everything in between: then no value of the group is needed
//! outside. What may be a group at all, [`ops::kernel`](crate::ops::kernel) says. Kernels that the ruleset `fusion` has formed stay as they
//! are.

use hashbrown::{HashMap, HashSet};

use super::{effects::Effects, outline::outline};
use crate::{
    infer::TypedModule,
    ir::{AttrValue, Attrs, Copier, Dim, Expr, ExprId, Module, Type, children, reachable_outside},
    ops::{
        self, Class,
        kernel::{Part, kernel_class, may_be_one},
    },
};

/// The module with each function's operators grouped into calls of primitive functions, at most `largest` operators each.
/// `annotation.stop_fusion` keeps what is before it and after it apart, and goes.
/// Functions that are primitive or meant for an external compiler stay as they are.
pub fn fuse(typed: &TypedModule, largest: usize) -> Module {
    let m = typed.module();
    let mut out = m.derive();
    for (name, id) in m.functions() {
        let new = match is_kept(&m[id]) {
            true => Copier::new().copy(m, id, &mut out),
            false => fuse_function(typed, id, largest, &mut out),
        };
        out.define(name.clone(), new);
    }
    out
}

/// The module in which fields of tuples that are written out are these values themselves, where no other field has an effect that it would
/// take along: who reads a field reads nothing else.
pub(super) fn resolve_fields(m: &Module) -> Module {
    let effects = Effects::new(m);
    let mut out = m.derive();
    let mut copier = Copier::new();
    for (name, f) in m.functions() {
        let new = copier.copy_with(m, f, &mut out, |to, from, copied| match (&m[from], copied) {
            (Expr::Proj(tuple, _), Expr::Proj(new, index)) if !effects.has(*tuple) => match &to[*new] {
                Expr::Tuple(fields) => fields.get(*index).copied(),
                _ => None,
            },
            _ => None,
        });
        out.define(name.clone(), new);
    }
    out
}

/// Whether it is a function that is one kernel already, or another compiler's.
fn is_kept(e: &Expr) -> bool {
    matches!(e, Expr::Func(f) if f.is_primitive() || f.compiler().is_some())
}

/// What `root` is made of, but for the bodies of kept functions; children before parents.
fn scope(m: &Module, root: ExprId) -> Vec<ExprId> {
    reachable_outside(m, [root], is_kept)
}

/// Whether a reshape takes apart what unknown extents lie within: a kernel would divide by these for each element, where one of its own reads
/// the same memory. Axes that are copied, that merge into one, or that one is split into, are found without.
fn mixes_unknown_extents(x: &Type, attrs: &Attrs) -> bool {
    let Some(x) = x.as_tensor().filter(|t| t.known_shape().is_none()) else { return false };
    let codes = attrs.ints("newshape");
    if codes.iter().any(|&c| c < -1) {
        return false;
    }
    let same = |i: usize, j: usize, aligned: bool| match codes[j] {
        0 => aligned,
        n => n > 0 && x.shape[i] == Dim::Known(n),
    };
    let (rank, out) = (x.rank(), codes.len());
    let before = (0..rank.min(out)).take_while(|&i| same(i, i, true)).count();
    let most = rank.min(out) - before;
    let after = (1..=most).take_while(|&k| same(rank - k, out - k, rank == out)).count();
    rank - before - after > 1 && out - before - after > 1
}

/// The operator calls of a scope and who reads them.
struct Graph<'a> {
    typed: &'a TypedModule,
    nodes: Vec<ExprId>,
    /// The calls that read a call's result, tuples and projections looked through; `None` among them is the function's result
    /// or anything that is not an operator.
    users: HashMap<ExprId, Vec<Option<ExprId>>>,
}

impl<'a> Graph<'a> {
    fn new(typed: &'a TypedModule, body: ExprId) -> Graph<'a> {
        let m = typed.module();
        let order = scope(m, body);
        let mut readers: HashMap<ExprId, Vec<Option<ExprId>>> = HashMap::from_iter([(body, vec![None])]);
        // A tuple of which fields are taken right there (because the others have effects) is no way from its fields to who
        // reads one of them.
        let projected: HashSet<ExprId> = order
            .iter()
            .filter_map(|&id| match m[id] {
                Expr::Proj(tuple, _) => Some(tuple),
                _ => None,
            })
            .collect();
        for &id in order.iter().rev() {
            let own = match &m[id] {
                Expr::Tuple(_) if projected.contains(&id) => vec![None],
                Expr::Tuple(_) | Expr::Proj(..) => readers.get(&id).cloned().unwrap_or_default(),
                Expr::Call { .. } if m.op_call(id).is_some() => vec![Some(id)],
                _ => vec![None],
            };
            children(&m[id], |c| readers.entry(c).or_default().extend(own.iter().copied()));
        }
        let nodes: Vec<ExprId> = order.into_iter().filter(|&id| m.op_call(id).is_some()).collect();
        let users = nodes
            .iter()
            .map(|n| {
                let mut users = readers.remove(n).unwrap_or_default();
                users.sort_unstable();
                users.dedup();
                (*n, users)
            })
            .collect();
        Graph { typed, nodes, users }
    }

    fn class(&self, id: ExprId) -> Class {
        let (op, args, attrs) = self.typed.module().op_call(id).expect("nodes are operator calls");
        let mixes = || args.first().is_some_and(|&x| mixes_unknown_extents(self.ty(x), attrs));
        match op.op().name() {
            "reshape" if mixes() => Class::Opaque,
            _ => kernel_class(op, attrs),
        }
    }

    fn ty(&self, id: ExprId) -> &Type {
        self.typed.ty(id)
    }

    /// The immediate post-dominator of each node: the first call that all its uses flow into.
    fn post_dominators(&self) -> HashMap<ExprId, ExprId> {
        let mut dominator: HashMap<ExprId, (Option<ExprId>, u32)> = HashMap::new();
        for &n in self.nodes.iter().rev() {
            let users = &self.users[&n];
            let mut meet = users.first().copied().flatten();
            for u in users {
                meet = match (meet, u) {
                    (Some(a), Some(b)) => common(&dominator, a, *b),
                    _ => None,
                };
            }
            let depth = meet.map_or(0, |d| dominator[&d].1 + 1);
            dominator.insert(n, (meet, depth));
        }
        self.nodes.iter().filter_map(|n| Some((*n, dominator[n].0?))).collect()
    }

    /// The calls on all ways from `from` to `to`, both left out.
    fn between(&self, from: ExprId, to: ExprId) -> Vec<ExprId> {
        let mut seen = HashSet::new();
        let mut stack: Vec<ExprId> = self.users[&from].iter().copied().flatten().collect();
        while let Some(n) = stack.pop() {
            if n != to && seen.insert(n) {
                stack.extend(self.users[&n].iter().copied().flatten());
            }
        }
        let mut nodes: Vec<ExprId> = seen.into_iter().collect();
        nodes.sort_unstable();
        nodes
    }
}

fn common(dominator: &HashMap<ExprId, (Option<ExprId>, u32)>, a: ExprId, b: ExprId) -> Option<ExprId> {
    let (mut a, mut b) = (a, b);
    while a != b {
        match dominator[&a].1 >= dominator[&b].1 {
            true => a = dominator[&a].0?,
            false => b = dominator[&b].0?,
        }
    }
    Some(a)
}

/// Which group each call is in, and the groups' members. A group is named by one of its calls.
struct Groups {
    leader: HashMap<ExprId, ExprId>,
    members: HashMap<ExprId, Vec<ExprId>>,
}

impl Groups {
    fn of(&self, id: ExprId) -> &[ExprId] {
        &self.members[&self.leader[&id]]
    }

    /// All members of the groups that the given calls are in.
    fn all_of(&self, calls: &[ExprId]) -> Vec<ExprId> {
        let mut leaders: Vec<ExprId> = calls.iter().map(|c| self.leader[c]).collect();
        leaders.sort_unstable();
        leaders.dedup();
        leaders.iter().flat_map(|l| self.members[l].iter().copied()).collect()
    }

    fn join(&mut self, calls: &[ExprId]) {
        let all = self.all_of(calls);
        for &c in &all {
            let old = self.leader.insert(c, all[0]);
            self.members.remove(&old.expect("every call has a group"));
        }
        self.members.insert(all[0], all);
    }
}

fn group(g: &Graph<'_>, largest: usize) -> Groups {
    let mut groups = Groups {
        leader: g.nodes.iter().map(|&n| (n, n)).collect(),
        members: g.nodes.iter().map(|&n| (n, vec![n])).collect(),
    };
    let dominators = g.post_dominators();
    // Contractions first: an elementwise node between two of them belongs to the one that makes its input.
    for heavy_first in [true, false] {
        for &n in &g.nodes {
            let mut at = n;
            while let Some(&d) = dominators.get(&at) {
                let heavy = groups.of(at).iter().any(|&x| g.class(x).is_heavy());
                if heavy != heavy_first || groups.leader[&at] == groups.leader[&d] {
                    break;
                }
                let mut way = vec![at];
                way.extend(g.between(at, d));
                way.push(d);
                if !may_join(g, &groups, &way, largest) {
                    break;
                }
                groups.join(&way);
                // What has no reduction grows evenly from its leaves: a group that ran ahead would be full before the
                // branches that it meets are in it.
                if !heavy_first {
                    break;
                }
                at = d;
            }
        }
    }
    groups
}

/// Whether the groups along all ways from the first to the last call of `way` may be one.
fn may_join(g: &Graph<'_>, groups: &Groups, way: &[ExprId], largest: usize) -> bool {
    let mut all = groups.all_of(way);
    if all.len() > largest {
        return false;
    }
    all.sort_unstable();
    let mut parts: Vec<Part> =
        all.iter().map(|&x| Part { class: g.class(x), ty: Some(g.ty(x)), reads: Vec::new() }).collect();
    for (i, x) in all.iter().enumerate() {
        for reader in g.users[x].iter().flatten().filter_map(|u| all.binary_search(u).ok()) {
            parts[reader].reads.push(i);
        }
    }
    may_be_one(&parts)
}

fn fuse_function(typed: &TypedModule, id: ExprId, largest: usize, out: &mut Module) -> ExprId {
    let m = typed.module();
    let graph = Graph::new(typed, m.func(id).body);
    let groups = group(&graph, largest);
    let mut done: HashMap<ExprId, ExprId> = HashMap::new();
    for e in scope(m, id) {
        let is_call = m.op_call(e).is_some();
        let new = if is_call {
            // A group is emitted where its last member stands: everything that it reads is older.
            let mut members = groups.of(e).to_vec();
            members.sort_unstable();
            if members.last() != Some(&e) {
                continue;
            }
            match m.op_call(e) {
                // It has done its work: nothing was grouped across it.
                Some((op, args, _)) if ops::lookup("annotation.stop_fusion") == Some(op) => done[&args[0]],
                _ => {
                    let primitive = Attrs::new(vec![("Primitive".into(), AttrValue::Int(1))]);
                    outline(typed, &members, &[e], primitive, &done, out)
                }
            }
        } else {
            let mut known = true;
            if is_kept(&m[e]) {
                done.insert(e, Copier::new().copy(m, e, out));
                continue;
            }
            children(&m[e], |c| known &= done.contains_key(&c));
            if !known {
                continue; // A tuple or projection inside of a group.
            }
            let mut copier = Copier::new();
            children(&m[e], |c| copier.replace(c, done[&c]));
            copier.copy(m, e, out)
        };
        done.insert(e, new);
    }
    done[&id]
}
