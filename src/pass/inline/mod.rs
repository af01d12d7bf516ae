//! Functions that are known are called no more: their bodies take the calls' places.
//!
//! The pass evaluates the program over *symbols*: pieces of new code, tuples of symbols, and closures that have not become
//! code. Pure bindings become sharing. A closure that must become code after all (an argument of an unknown function, a
//! recursive function, a result) does so with fresh variables where it does so twice.

mod machine;
mod symbols;

use hashbrown::{HashMap, HashSet};

use super::effects::{Effects, has_references};
use crate::{
    diag::Refused,
    infer,
    interp::program::Program,
    ir::{Expr, ExprId, Function, Module, Name, children, free_vars, reachable},
};

/// The module with calls of closures and of non-recursive functions replaced by their bodies, tuples projected away, and
/// pure bindings turned into sharing.
///
/// Bindings stay where their values have effects (references keep their order), where they are recursive functions, and
/// where only an inner function that stays uses them, which would otherwise compute them at each call. Functions marked
/// `Primitive`, `Compiler` or `Composite` stay as they are called. Where the module has a `@main`, functions that it no
/// longer reaches go. Programs that grow more than thirtyfold keep the calls beyond that.
///
/// Refuses what [`infer::verify`] refuses.
pub fn inline(m: &Module) -> Result<Module, Refused> {
    infer::verify(m)?;
    let program = Program::new(m);
    let known = Known {
        recursive_lets: recursive_lets(m),
        globals: inlinable_globals(m),
        has_effects: has_references(m),
        effects: Effects::new(m),
        shared_outside: shared_outside(m, &program),
    };
    Ok(machine::Inliner::new(m, &known, program).run())
}

/// What is known of a module before.
struct Known {
    /// `let`s of functions that call themselves.
    recursive_lets: HashSet<ExprId>,
    /// Functions of the module that may take their calls' places.
    globals: HashSet<Name>,
    /// Whether calls of unknown functions may have effects.
    has_effects: bool,
    /// Which expressions have effects.
    effects: Effects,
    /// By function: the scopes around it whose shared results it asks for, itself or in functions within it.
    shared_outside: HashMap<ExprId, Vec<u32>>,
}

fn shared_outside(m: &Module, program: &Program<'_>) -> HashMap<ExprId, Vec<u32>> {
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    let functions: HashMap<u32, ExprId> =
        ids.iter().filter(|&&e| matches!(m[e], Expr::Func(_))).map(|&e| (program.scope_of(e), e)).collect();
    let mut outside: HashMap<ExprId, Vec<u32>> = HashMap::new();
    for &e in &ids {
        let user = match m[e] {
            Expr::Func(_) => program.scope_of(e),
            _ => program.home(e),
        };
        children(&m[e], |c| {
            let home = program.home(c);
            let mut scope = user;
            while scope != home && program.shared(c).is_some() {
                let homes = outside.entry(functions[&scope]).or_default();
                if !homes.contains(&home) {
                    homes.push(home);
                }
                scope = program.home(functions[&scope]);
            }
        });
    }
    outside
}

fn recursive_lets(m: &Module) -> HashSet<ExprId> {
    let recursive = |id: &ExprId| match &m[*id] {
        Expr::Let { var, value, .. } => matches!(m[*value], Expr::Func(_)) && free_vars(m, *value).contains(var),
        _ => false,
    };
    reachable(m, m.functions().map(|(_, f)| f)).into_iter().filter(recursive).collect()
}

fn inlinable_globals(m: &Module) -> HashSet<Name> {
    let calls: HashMap<&Name, Vec<&Name>> = m
        .functions()
        .map(|(name, f)| {
            let called = reachable(m, [f]).into_iter().filter_map(|e| match &m[e] {
                Expr::Global(n) => Some(n),
                _ => None,
            });
            (name, called.collect())
        })
        .collect();
    let recursive = |name: &Name| {
        let mut seen: HashSet<&Name> = HashSet::new();
        let mut todo: Vec<&Name> = calls[name].clone();
        while let Some(n) = todo.pop() {
            if n == name {
                return true;
            }
            if seen.insert(n) {
                todo.extend(calls.get(n).into_iter().flatten());
            }
        }
        false
    };
    m.functions().filter(|(n, f)| inlinable(m.func(*f)) && !recursive(n)).map(|(n, _)| n.clone()).collect()
}

/// Whether a function is nothing but its body.
fn inlinable(f: &Function) -> bool {
    !f.is_primitive() && f.compiler().is_none() && f.attrs.get("Composite").is_none()
}
