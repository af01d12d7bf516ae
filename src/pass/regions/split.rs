//! Regions become functions.

use hashbrown::{HashMap, HashSet};

use super::{Regions, annotations::Uses, is_kept};
use crate::{
    ir::{AttrValue, Attrs, Copier, Expr, ExprId, Module, Name, children},
    ops::kernel::INLINE_CONSTANT,
    pass::outline::Outline,
};

/// The module with each region as a function of it, by TVM's convention: its attributes are `Compiler`, `Primitive`, `Inline` and
/// `global_symbol`, its name is `tvmgen_MODULE_COMPILER_FUNCTION_NUMBER`. What several regions or calls outside use is given once.
///
/// `binds` says of a compiler whether its functions hold the constants that they use; otherwise constants of more than one element are
/// arguments. The regions must have been [split](Regions::split_unsound) where they are not sound.
pub fn split(regions: &Regions<'_>, module: &str, binds: &dyn Fn(&str) -> bool) -> Module {
    let m = regions.typed().module();
    let mut s = Split {
        regions,
        results: results(regions),
        gives: HashMap::new(),
        done: HashMap::new(),
        made: Vec::new(),
        names: m.functions().map(|(name, _)| name.clone()).collect(),
        module,
        binds,
        out: m.derive(),
    };
    for (r, results) in s.results.iter().enumerate() {
        s.gives.extend(results.iter().map(|&e| (e, r)));
    }
    let mut functions = Vec::new();
    for (name, f) in m.functions() {
        let new = s.run(name, f);
        functions.push((name.clone(), new));
    }
    let Split { made, mut out, .. } = s;
    for (name, f) in functions.into_iter().chain(made) {
        out.define(name, f);
    }
    out
}

/// By region: its calls, and fields of them, that are used outside of it.
fn results(regions: &Regions<'_>) -> Vec<Vec<ExprId>> {
    let m = regions.typed().module();
    let uses = Uses::new(regions);
    let mut results: Vec<Vec<ExprId>> = vec![Vec::new(); regions.regions.len()];
    for &u in regions.scopes.order().iter().filter(|&&u| !is_kept(&m[u])) {
        let own = regions.region_of(u);
        children(&m[u], |c| {
            let Some(r) = regions.region_of(c) else { return };
            let elsewhere = uses.of(u).iter().any(|&x| x != Some(r));
            match &m[u] {
                Expr::Proj(..) if elsewhere => results[r].push(u),
                Expr::Tuple(_) if elsewhere => results[r].push(c),
                Expr::Proj(..) | Expr::Tuple(_) => {}
                _ if own != Some(r) => results[r].push(c),
                _ => {}
            }
        });
    }
    for all in &mut results {
        all.sort_unstable();
        all.dedup();
    }
    results
}

struct Split<'a> {
    regions: &'a Regions<'a>,
    results: Vec<Vec<ExprId>>,
    /// The region that gives an expression.
    gives: HashMap<ExprId, usize>,
    done: HashMap<ExprId, ExprId>,
    made: Vec<(Name, ExprId)>,
    names: HashSet<Name>,
    module: &'a str,
    binds: &'a dyn Fn(&str) -> bool,
    out: Module,
}

impl Split<'_> {
    /// A function of the module. A region is emitted where the first of its results is asked for; what it reads is asked for before.
    fn run(&mut self, name: &Name, function: ExprId) -> ExprId {
        let m = self.regions.typed().module();
        let mut number = 0;
        let mut stack = vec![function];
        while let Some(&e) = stack.last() {
            if self.done.contains_key(&e) {
                stack.pop();
                continue;
            }
            let mut missing = Vec::new();
            let mut need = |c: ExprId| {
                if !self.done.contains_key(&c) {
                    missing.push(c);
                }
            };
            if let Some(&r) = self.gives.get(&e) {
                let regions = self.regions;
                let constants = if (self.binds)(regions.compiler(r)) { usize::MAX } else { INLINE_CONSTANT };
                let results = std::mem::take(&mut self.results[r]);
                let outline = Outline::new(regions.typed(), regions.members(r), &results, constants);
                outline.arguments().iter().rev().for_each(|&a| need(a));
                if missing.is_empty() {
                    self.region(r, &results, &outline, name, number);
                    number += 1;
                }
                drop(outline);
                self.results[r] = results;
            } else if is_kept(&m[e]) {
                let new = Copier::new().copy(m, e, &mut self.out);
                self.done.insert(e, new);
            } else {
                assert!(self.regions.region_of(e).is_none(), "of a region only its results are asked for");
                children(&m[e], &mut need);
                missing.reverse();
                if missing.is_empty() {
                    let mut copier = Copier::new();
                    children(&m[e], |c| copier.replace(c, self.done[&c]));
                    let new = copier.copy(m, e, &mut self.out);
                    self.done.insert(e, new);
                }
            }
            stack.extend(missing);
        }
        self.done[&function]
    }

    fn region(&mut self, r: usize, results: &[ExprId], outline: &Outline<'_>, of: &str, number: usize) {
        let compiler = self.regions.compiler(r);
        let symbol = sanitized(&format!("tvmgen_{}_{compiler}_{of}_{number}", self.module));
        let taken = |s: &str| self.names.contains(s);
        let free = (1..).map(|k| format!("{symbol}_{k}")).find(|s| !taken(s)).filter(|_| taken(&symbol));
        let symbol: Name = free.unwrap_or(symbol).into();
        self.names.insert(symbol.clone());
        let attrs = Attrs::new(vec![
            ("Compiler".into(), compiler.as_str().into()),
            ("Primitive".into(), AttrValue::Int(1)),
            ("Inline".into(), AttrValue::Int(1)),
            ("global_symbol".into(), symbol.as_str().into()),
        ]);
        let prefix = sanitized(&format!("{compiler}_{number}_i"));
        let function = outline.function(&prefix, attrs, &mut self.out);
        self.made.push((symbol.clone(), function));
        let callee = self.out.add(Expr::Global(symbol));
        let call = outline.call(callee, &self.done, &mut self.out);
        for (i, &result) in results.iter().enumerate() {
            let value = if results.len() == 1 { call } else { self.out.add(Expr::Proj(call, i)) };
            self.done.insert(result, value);
        }
    }
}

/// The text as part of a C identifier.
fn sanitized(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
