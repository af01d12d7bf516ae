//! Regions as text shows them: `annotation.compiler_begin` on what a region reads, `annotation.compiler_end` on what it gives.

use hashbrown::{HashMap, HashSet};

use super::{Regions, composite, is_kept};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{AttrValue, Attrs, Copier, Expr, ExprId, Module, Name, OpId, children, map_children},
    ops,
};

/// The names that stand for no compiler: what they are said of stays with whoever compiles the rest.
const DEFAULT: [&str; 2] = ["default", ""];

/// A module without its annotations, and what they said.
#[derive(Debug)]
pub(in crate::pass) struct Annotated {
    /// The module.
    pub(in crate::pass) module: Module,
    /// The regions: the compiler of each, and its calls.
    pub(in crate::pass) regions: Vec<(Name, Vec<ExprId>)>,
}

impl Annotated {
    /// The regions of the module, which inference must have gone over.
    pub(in crate::pass) fn add_to(&self, regions: &mut Regions<'_>) {
        for (compiler, members) in &self.regions {
            regions.add(compiler.clone(), members);
        }
    }
}

/// Whether an expression begins or ends a region, for which compiler, and of what.
enum Mark<'a> {
    Begin(&'a str, ExprId),
    End(&'a str, ExprId),
}

fn mark(m: &Module, e: ExprId) -> Option<Mark<'_>> {
    let (op, args, attrs) = m.op_call(e)?;
    let compiler = match attrs.get("compiler") {
        Some(AttrValue::Str(c)) => c,
        _ => return None,
    };
    match op.op().name() {
        "annotation.compiler_begin" => Some(Mark::Begin(compiler, args[0])),
        "annotation.compiler_end" => Some(Mark::End(compiler, args[0])),
        _ => None,
    }
}

/// The module without annotations for the compiler `default`, which say nothing.
pub(in crate::pass) fn without_defaults(m: &Module) -> Module {
    let is_default = |e| matches!(mark(m, e), Some(Mark::Begin(c, _) | Mark::End(c, _)) if DEFAULT.contains(&c));
    without(m, &mut Copier::new(), &is_default)
}

/// The module with the arguments of some annotations in their places.
fn without(m: &Module, copier: &mut Copier, goes: &dyn Fn(ExprId) -> bool) -> Module {
    let mut out = m.derive();
    for (name, f) in m.functions() {
        let new = copier.copy_with(m, f, &mut out, |_, id, copied| match copied {
            Expr::Call { args, .. } if goes(id) => Some(args[0]),
            _ => None,
        });
        out.define(name.clone(), new);
    }
    out
}

/// Regions while they are read: which have turned out to be one.
#[derive(Default)]
struct Open {
    compilers: Vec<Name>,
    became: Vec<usize>,
    /// The region that an expression is in, where that goes on with whoever uses it.
    of: HashMap<ExprId, usize>,
    members: Vec<(ExprId, usize)>,
}

impl Open {
    fn begin(&mut self, compiler: &str) -> usize {
        self.compilers.push(compiler.into());
        self.became.push(self.became.len());
        self.became.len() - 1
    }

    fn now(&self, mut r: usize) -> usize {
        while self.became[r] != r {
            r = self.became[r];
        }
        r
    }

    /// The region that goes on through what reads these; `Err` says which compilers meet.
    fn through(&mut self, args: &[ExprId]) -> Result<Option<usize>, (Name, Name)> {
        let mut all: Option<usize> = None;
        for a in args {
            let Some(&r) = self.of.get(a) else { continue };
            let r = self.now(r);
            match all {
                Some(first) if self.compilers[first] != self.compilers[r] => {
                    return Err((self.compilers[first].clone(), self.compilers[r].clone()));
                }
                Some(first) => self.became[r] = first,
                None => all = Some(r),
            }
        }
        Ok(all)
    }
}

/// Takes annotations away and notes what they say.
///
/// A region is what follows a `compiler_begin`, up to the `compiler_end`s, or to where a value leaves calls, tuples and
/// projections. Annotations for the compiler `default`, or for one without a name, say nothing. Refuses a `compiler_end` before which no region began, one for
/// another compiler than that of its region, and calls in which regions of different compilers meet.
pub(in crate::pass) fn read(m: &Module) -> Result<Annotated, Refused> {
    let order = super::interior(m);
    let mut open = Open::default();
    let mut complaints: Vec<Diagnostic> = Vec::new();
    let meet = |e: ExprId, (a, b): (Name, Name)| {
        let d = Diagnostic::new(format!("regions for `{a}` and `{b}` meet here")).at(m.span(e).cloned());
        d.help("a value goes from one region to another by compiler_end and compiler_begin")
    };
    for &e in &order {
        match mark(m, e) {
            Some(Mark::Begin(c, x) | Mark::End(c, x)) if DEFAULT.contains(&c) => {
                if let Some(&r) = open.of.get(&x) {
                    open.of.insert(e, r);
                }
                continue;
            }
            Some(Mark::Begin(compiler, _)) => {
                let r = open.begin(compiler);
                open.of.insert(e, r);
                continue;
            }
            Some(Mark::End(compiler, x)) => {
                match open.of.get(&x).map(|&r| open.now(r)) {
                    Some(r) if open.compilers[r].as_str() == compiler => {}
                    Some(r) => {
                        let what = format!("a region for `{}` ends here as one for `{compiler}`", open.compilers[r]);
                        complaints.push(Diagnostic::new(what).at(m.span(e).cloned()));
                    }
                    // What reads nothing but constants has nothing to begin with.
                    None if is_made_of_nothing(m, x) => {
                        if super::may_be_member(m, x) {
                            let r = open.begin(compiler);
                            open.members.push((x, r));
                        }
                    }
                    None => {
                        let d = Diagnostic::new(format!("no region for `{compiler}` ends here")).at(m.span(e).cloned());
                        complaints.push(d.help("a region begins with compiler_begin on each value that it reads"));
                    }
                }
                continue;
            }
            None => {}
        }
        let is_call = m.op_call(e).is_some() || composite(m, e).is_some();
        let args: &[ExprId] = match &m[e] {
            Expr::Call { args, .. } if is_call => args,
            Expr::Tuple(fields) => fields,
            Expr::Proj(t, _) => std::slice::from_ref(t),
            _ => continue,
        };
        match open.through(args) {
            Ok(Some(r)) => {
                open.of.insert(e, r);
                if is_call {
                    open.members.push((e, r));
                }
            }
            Ok(None) => {}
            Err(compilers) => complaints.push(meet(e, compilers)),
        }
    }
    if !complaints.is_empty() {
        return Err(Refused(complaints));
    }
    let mut copier = Copier::new();
    let out = without(m, &mut copier, &|e| mark(m, e).is_some());
    let mut regions: Vec<Option<(Name, Vec<ExprId>)>> = vec![None; open.compilers.len()];
    for &(e, r) in &open.members {
        let r = open.now(r);
        let at = copier.get(e).expect("what functions are made of is copied");
        regions[r].get_or_insert_with(|| (open.compilers[r].clone(), Vec::new())).1.push(at);
    }
    Ok(Annotated { module: out, regions: regions.into_iter().flatten().collect() })
}

/// Whether an expression is the call of an operator on constants, or on nothing.
fn is_made_of_nothing(m: &Module, e: ExprId) -> bool {
    m.op_call(e).is_some_and(|(_, args, _)| args.iter().all(|&a| matches!(m[a], Expr::Constant(_))))
}

/// The uses of the tuples and projections between calls: by regions, and by what is in none (`None`).
pub(super) struct Uses {
    contexts: HashMap<ExprId, Vec<Option<usize>>>,
    /// Tuples and projections through which a region reads what it has made itself.
    own: HashSet<(ExprId, usize)>,
}

impl Uses {
    pub(super) fn new(regions: &Regions<'_>) -> Uses {
        let m = regions.typed().module();
        let is_free = |e: ExprId| matches!(m[e], Expr::Tuple(_) | Expr::Proj(..));
        let mut contexts: HashMap<ExprId, Vec<Option<usize>>> = HashMap::new();
        let order = regions.scopes.order();
        for &u in order.iter().rev() {
            let of_user = match is_free(u) {
                true => contexts.get(&u).cloned().unwrap_or_default(),
                false => vec![regions.region_of(u)],
            };
            if is_kept(&m[u]) {
                continue;
            }
            children(&m[u], |c| {
                if is_free(c) {
                    let all = contexts.entry(c).or_default();
                    all.extend(of_user.iter().copied());
                    all.sort_unstable();
                    all.dedup();
                }
            });
        }
        let mut own = HashSet::new();
        for &e in order {
            let Some(users) = contexts.get(&e) else { continue };
            for r in users.iter().copied().flatten() {
                let mut has = false;
                children(&m[e], |c| has |= regions.region_of(c) == Some(r) || own.contains(&(c, r)));
                if has {
                    own.insert((e, r));
                }
            }
        }
        Uses { contexts, own }
    }

    /// Who uses a tuple or projection.
    pub(super) fn of(&self, e: ExprId) -> &[Option<usize>] {
        self.contexts.get(&e).map_or(&[], Vec::as_slice)
    }

    /// Whether a region reads, by this tuple or projection, what it has made itself.
    pub(super) fn is_own(&self, e: ExprId, region: usize) -> bool {
        self.own.contains(&(e, region))
    }
}

/// The module with annotations where values come into regions and leave them. Tuples that only one region reads are made
/// within it, where `tuples` says so.
pub(in crate::pass) fn write(regions: &Regions<'_>, tuples: bool) -> Module {
    let m = regions.typed().module();
    let out = m.derive();
    let uses = Uses::new(regions);
    let mut w = Writer {
        regions,
        uses,
        tuples,
        out,
        outside: HashMap::new(),
        inside: HashMap::new(),
        begins: HashMap::new(),
        ends: HashMap::new(),
        begin: ops::op("annotation.compiler_begin"),
        end: ops::op("annotation.compiler_end"),
    };
    for &e in regions.scopes.order() {
        w.expr(e);
    }
    let Writer { mut out, outside, .. } = w;
    for (name, f) in m.functions() {
        out.define(name.clone(), outside[&f]);
    }
    out
}

struct Writer<'a> {
    regions: &'a Regions<'a>,
    uses: Uses,
    tuples: bool,
    out: Module,
    /// What became of an expression: of a call in a region, the call; of another, what is outside of all regions.
    outside: HashMap<ExprId, ExprId>,
    /// What became of a tuple or projection within a region.
    inside: HashMap<(ExprId, usize), ExprId>,
    begins: HashMap<(ExprId, usize), ExprId>,
    ends: HashMap<ExprId, ExprId>,
    begin: OpId,
    end: OpId,
}

impl Writer<'_> {
    fn expr(&mut self, e: ExprId) {
        let m = self.regions.typed().module();
        let span = m.span(e).cloned();
        if is_kept(&m[e]) {
            let new = Copier::new().copy(m, e, &mut self.out);
            self.outside.insert(e, new);
            return;
        }
        if let Some(r) = self.regions.region_of(e) {
            let Expr::Call { callee, .. } = &m[e] else { unreachable!("members of regions are calls") };
            let callee = *callee;
            let new = map_children(&m[e], |c| if c == callee { self.outside[&c] } else { self.within(c, r) });
            let new = self.out.add_at(new, span);
            self.outside.insert(e, new);
            return;
        }
        let contexts: Vec<Option<usize>> = self.uses.of(e).to_vec();
        let inside: Vec<usize> = contexts.iter().copied().flatten().filter(|&r| self.is_inside(e, r)).collect();
        for &r in &inside {
            let new = map_children(&m[e], |c| self.within(c, r));
            let new = self.out.add_at(new, span.clone());
            self.inside.insert((e, r), new);
        }
        if !contexts.is_empty() && inside.len() == contexts.len() {
            return;
        }
        // A field that leaves its region is taken within it.
        let field_of = match m[e] {
            Expr::Proj(t, _) => self.regions.region_of(t).map(|r| (t, r)),
            _ => None,
        };
        let new = match field_of {
            Some((t, r)) => {
                let field = map_children(&m[e], |_| self.outside[&t]);
                let field = self.out.add_at(field, span);
                self.annotated(self.end, field, r)
            }
            None => {
                let new = map_children(&m[e], |c| self.beyond(c));
                self.out.add_at(new, span)
            }
        };
        self.outside.insert(e, new);
    }

    /// Whether a tuple or projection that a region uses is made within it.
    fn is_inside(&self, e: ExprId, r: usize) -> bool {
        self.uses.is_own(e, r) || self.tuples && self.uses.of(e) == [Some(r)]
    }

    /// An expression as a region sees it.
    fn within(&mut self, e: ExprId, r: usize) -> ExprId {
        if self.regions.region_of(e) == Some(r) {
            return self.outside[&e];
        }
        if let Some(&own) = self.inside.get(&(e, r)) {
            return own;
        }
        if let Some(&begun) = self.begins.get(&(e, r)) {
            return begun;
        }
        let value = self.beyond(e);
        let begun = self.annotated(self.begin, value, r);
        self.begins.insert((e, r), begun);
        begun
    }

    /// An expression as it is seen from outside of all regions.
    fn beyond(&mut self, e: ExprId) -> ExprId {
        let raw = self.outside[&e];
        let Some(r) = self.regions.region_of(e) else { return raw };
        if let Some(&ended) = self.ends.get(&e) {
            return ended;
        }
        let ended = self.annotated(self.end, raw, r);
        self.ends.insert(e, ended);
        ended
    }

    fn annotated(&mut self, op: OpId, e: ExprId, r: usize) -> ExprId {
        let span = self.out.span(e).cloned();
        let attrs = Attrs::new(vec![("compiler".into(), self.regions.compiler(r).as_str().into())]);
        let call = self.out.call_op(op, vec![e], attrs);
        self.out.set_span(call, span);
        call
    }
}
