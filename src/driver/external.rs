//! Regions of a module compiled by whom they are for, before the program that calls them is assembled.

use std::{
    borrow::Cow,
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
};

use hashbrown::{HashMap, HashSet};

use super::Built;
use crate::{
    cancel::Cancel,
    codegen::{CodegenTarget, EMULATED, compile_c, compile_data},
    diag::{Diagnostic, Refused, nearest},
    infer::{TypedModule, infer_types},
    ir::{
        AttrValue, Attrs, Copier, Expr, ExprId, Function, Module, Type, VarId, children, free_vars, map_children,
        reachable_outside,
    },
    lower::shapes_follow_from_types,
    ops::{kernel::INLINE_CONSTANT, kernel::LARGEST_KERNEL},
    partition::{self, CompilerError, ExternalCompiler, Region},
    pass::{fuse, inline},
    runtime::{Code, Compiled, export::Exportable},
};

/// What a build does about regions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handling {
    /// Whether a region that its compiler fails on is compiled as everything else is.
    pub fallback: bool,
    /// Whether each region's code is run once and compared with the interpreter before it is used.
    pub check: bool,
}

/// A module whose regions are compiled.
pub(super) struct Regions {
    pub typed: TypedModule,
    /// What became of them, by symbol.
    pub compiled: Vec<(String, Compiled)>,
    /// Failures whose regions are ordinary code now.
    pub fallen: Vec<CompilerError>,
}

/// What a user is warned of for a region that its compiler failed on, where there is a fallback.
pub(super) fn fallback_warning(e: &CompilerError) -> String {
    format!("region `{}` is resat's own code now: {e}", e.region)
}

/// Compiles all regions whose extents are known. Every region has a `global_symbol` then; those of unknown extents are left for
/// when extents are known.
pub(super) fn compile_regions(
    typed: TypedModule,
    target: &CodegenTarget,
    how: Handling,
    cancel: &Cancel,
) -> Result<Regions, Refused> {
    if regions(typed.module()).is_empty() {
        return Ok(Regions { typed, compiled: Vec::new(), fallen: Vec::new() });
    }
    let typed = infer_types(named(&typed)?)?;
    let m = typed.module();
    let (mut compiled, mut fallen) = (Vec::<(String, Compiled)>::new(), Vec::new());
    for id in regions(m) {
        let f = m.func(id);
        let known = |t: &Type| t.flatten().is_some_and(|all| all.iter().all(|t| t.known_shape().is_some()));
        if !(shapes_follow_from_types(m, id)
            && f.params.iter().all(|&p| known(typed.var_ty(p)))
            && known(typed.ty(f.body)))
        {
            continue;
        }
        cancel.go_on()?;
        let compiler = compiler_of(m, id)?;
        let symbol = symbol_of(f).expect("regions were named");
        let region = Region::new(&typed, id, f.compiler().unwrap_or_default(), symbol, target);
        match compile(compiler, &region, how.check) {
            Ok(c) => compiled.push((symbol.to_owned(), c)),
            Err(e) if how.fallback => fallen.push(e),
            Err(e) => return Err(Diagnostic::new(e.to_string()).at(m.span(id).cloned()).into()),
        }
    }
    if fallen.is_empty() {
        return Ok(Regions { typed, compiled, fallen });
    }
    let back = |f: &Function| symbol_of(f).is_some_and(|s| fallen.iter().any(|e| e.region == s));
    Ok(Regions { typed: dissolved(m, &back)?, compiled, fallen })
}

/// The module with some regions as kernels like all others.
fn dissolved(m: &Module, which: &dyn Fn(&Function) -> bool) -> Result<TypedModule, Refused> {
    let plain = inline(&unmarked(m, which))?;
    let grouped = fuse(&infer_types(plain)?, LARGEST_KERNEL);
    infer_types(fuse(&infer_types(grouped)?, 1))
}

/// The module without the regions of a compiler: they are kernels like all others.
pub(super) fn without_regions_of(typed: TypedModule, compiler: &str) -> Result<TypedModule, Refused> {
    let m = typed.module();
    let its = |f: &Function| f.compiler().and_then(partition::compiler).is_some_and(|c| c.name() == compiler);
    match regions(m).into_iter().any(|r| its(m.func(r))) {
        true => dissolved(m, &its),
        false => Ok(typed),
    }
}

/// Refuses a module that has regions.
pub(super) fn refuse_regions(typed: &TypedModule) -> Result<(), Refused> {
    let m = typed.module();
    let Some(id) = regions(m).into_iter().next() else { return Ok(()) };
    let (region, compiler) = (symbol_of(m.func(id)).unwrap_or("a region"), m.func(id).compiler().unwrap_or_default());
    let message = format!("`{region}` is for compiler `{compiler}`, whose code is not C");
    Err(Diagnostic::new(message)
        .at(m.span(id).cloned())
        .help("without that compiler, all of the program becomes C")
        .into())
}

impl Built {
    /// What an exported library is made of: the objects of all compilers, and the C of functions that live in this process.
    ///
    /// Refuses functions that can't leave it.
    pub fn exportable(&self, target: &CodegenTarget) -> Result<Exportable<'_>, Refused> {
        if target.emulates_tiles() {
            let message = format!("code with `{EMULATED}` runs in this process only, and can't be exported");
            return Err(Diagnostic::new(message).into());
        }
        let mut objects: Vec<Cow<'_, [u8]>> = self.objects.iter().map(|o| Cow::Borrowed(&o.bytes[..])).collect();
        let external = self.record().map_or(&[][..], |r| &r.external);
        let mut libraries: Vec<String> = external.iter().flat_map(|(_, c)| c.libraries.clone()).collect();
        let (mut support, mut ready) = (Vec::<String>::new(), Vec::new());
        for (symbol, compiled) in external {
            let Code::Callable(f) = &compiled.code else { continue };
            let refuse = |why: &dyn Display| {
                Refused::from(Diagnostic::new(format!("region `{symbol}` can't be exported: {why}")))
            };
            let made = f.serialize(symbol).map_err(|e| refuse(&e))?;
            // What it calls was compiled with another function, or is compiled with this one.
            let new: Vec<String> = made.support.into_iter().filter(|t| !support.contains(t)).collect();
            for text in [&made.source].into_iter().chain(&new) {
                objects.push(Cow::Owned(compile_c(text, target).map_err(|e| refuse(&e))?));
            }
            for data in &made.data {
                objects.push(Cow::Owned(compile_data(data, target).map_err(|e| refuse(&e))?));
            }
            support.extend(new);
            ready.extend(made.ready);
            libraries.extend(made.libraries);
        }
        libraries.sort();
        libraries.dedup();
        Ok(Exportable { objects, libraries, ready })
    }
}

/// The code of a region: compiled, with whatever is wrong with it reported.
fn compile(compiler: &dyn ExternalCompiler, region: &Region<'_>, check: bool) -> Result<Compiled, CompilerError> {
    // A compiler that panics has failed, and nothing of it is used afterwards but its next answer.
    let made = catch_unwind(AssertUnwindSafe(|| compiler.compile(region))).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(region.refuse(format!("it panicked: {}", said.unwrap_or("without a word"))))
    })?;
    let made = partition::check(region, made)?;
    if check {
        super::trial::try_region(region, &made)?;
    }
    Ok(made)
}

/// The functions of a module that are regions, but for those within others; children before parents.
fn regions(m: &Module) -> Vec<ExprId> {
    let mut found: Vec<ExprId> =
        outside(m).into_iter().filter(|&e| matches!(&m[e], Expr::Func(f) if f.compiler().is_some())).collect();
    found.sort_unstable();
    found
}

/// All that a module's functions are made of, regions as leaves; children before parents.
fn outside(m: &Module) -> Vec<ExprId> {
    let roots = m.functions().map(|(_, id)| id);
    reachable_outside(m, roots, |e| matches!(e, Expr::Func(f) if f.compiler().is_some()))
}

fn symbol_of(f: &Function) -> Option<&str> {
    match f.attrs.get("global_symbol") {
        Some(AttrValue::Str(s)) => Some(s),
        _ => None,
    }
}

fn compiler_of(m: &Module, id: ExprId) -> Result<&'static dyn ExternalCompiler, Refused> {
    let f = m.func(id);
    let name = f.compiler().unwrap_or_default();
    partition::compiler(name).ok_or_else(|| {
        let region = symbol_of(f).unwrap_or("without a name");
        let known = partition::compilers();
        let d = Diagnostic::new(format!("region `{region}` is for compiler `{name}`, which is not known"));
        let help = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the compilers are {}; `--compiler` loads others", known.join(", ")),
        };
        d.at(m.span(id).cloned()).help(help).into()
    })
}

/// How a region is used.
#[derive(Default)]
struct Uses {
    /// The calls of it, wherever they stand.
    calls: Vec<ExprId>,
    /// Whether it is used otherwise too.
    as_value: bool,
}

/// The module with a symbol of its own for every region, a C identifier, and with constants where the region's compiler wants
/// them: inside, or among the arguments.
fn named(typed: &TypedModule) -> Result<Module, Refused> {
    let m = typed.module();
    let all = regions(m);
    let order = outside(m);
    let resolve = |callee: ExprId| match &m[callee] {
        Expr::Global(name) => m.function_id(name),
        _ => Some(callee),
    };
    let mut uses: HashMap<ExprId, Uses> = all.iter().map(|&r| (r, Uses::default())).collect();
    for &e in &order {
        if let Expr::Func(f) = &m[e]
            && f.compiler().is_some()
        {
            continue;
        }
        let callee = match &m[e] {
            Expr::Call { callee, .. } => Some(*callee),
            _ => None,
        };
        children(&m[e], |c| {
            if let Some(of) = resolve(c).and_then(|r| uses.get_mut(&r)) {
                match callee == Some(c) {
                    true => of.calls.push(e),
                    false => of.as_value = true,
                }
            }
        });
    }
    let symbols = symbols(m, &all)?;
    let mut out = m.derive();
    let mut made: HashMap<ExprId, (ExprId, Vec<ExprId>, Vec<bool>)> = HashMap::new();
    let mut done: HashMap<ExprId, ExprId> = HashMap::new();
    for &e in &order {
        let new = match &m[e] {
            Expr::Func(f) if f.compiler().is_some() => {
                let region = rewrite(typed, e, &symbols[&e], &uses[&e], &mut out)?;
                let new = region.0;
                made.insert(e, region);
                new
            }
            Expr::Call { callee, args, attrs, type_args } => match resolve(*callee).filter(|r| uses.contains_key(r)) {
                // A global region's definition may come later: its rewriting does not depend on where it is called.
                Some(r) => {
                    if !made.contains_key(&r) {
                        let region = rewrite(typed, r, &symbols[&r], &uses[&r], &mut out)?;
                        done.insert(r, region.0);
                        made.insert(r, region);
                    }
                    let (_, hoisted, kept) = &made[&r];
                    let kept = args.iter().zip(kept).filter(|(_, kept)| **kept).map(|(a, _)| done[a]);
                    let args = kept.chain(hoisted.iter().copied()).collect();
                    let callee = match &m[*callee] {
                        Expr::Global(_) => done[callee],
                        _ => made[&r].0,
                    };
                    let call = Expr::Call { callee, args, attrs: attrs.clone(), type_args: type_args.clone() };
                    out.add_at(call, m.span(e).cloned())
                }
                None => out.add_at(map_children(&m[e], |c| done[&c]), m.span(e).cloned()),
            },
            other => out.add_at(map_children(other, |c| done[&c]), m.span(e).cloned()),
        };
        done.entry(e).or_insert(new);
    }
    for (name, id) in m.functions() {
        out.define(name.clone(), done[&id]);
    }
    Ok(out)
}

/// A region's function with its symbol; the constants that became arguments; and which of its parameters are left.
fn rewrite(
    typed: &TypedModule,
    id: ExprId,
    symbol: &str,
    uses: &Uses,
    out: &mut Module,
) -> Result<(ExprId, Vec<ExprId>, Vec<bool>), Refused> {
    let m = typed.module();
    let f = m.func(id);
    if let Some(v) = free_vars(m, id).first() {
        let message =
            format!("region `{symbol}` uses `{}`, which is bound outside of it: regions are closed", m.var(*v).name);
        return Err(Diagnostic::new(message).at(m.span(id).cloned()).into());
    }
    let compiler = compiler_of(m, id)?;
    let mut copier = Copier::new();
    let mut kept = vec![true; f.params.len()];
    let (mut params, mut hoisted): (Vec<VarId>, Vec<ExprId>) = (Vec::new(), Vec::new());
    match (&uses.calls[..], uses.as_value) {
        // Constants move in where there is but one call, which says which.
        ([call], false) if compiler.keeps_constants() => {
            let Expr::Call { args, .. } = &m[*call] else { unreachable!("calls are calls") };
            for (i, &a) in args.iter().enumerate() {
                if let Expr::Constant(t) = &m[a] {
                    let constant = out.constant(t.clone());
                    for e in crate::ir::reachable(m, [f.body]) {
                        if matches!(&m[e], Expr::Var(v) if *v == f.params[i]) {
                            copier.replace(e, constant);
                        }
                    }
                    kept[i] = false;
                }
            }
        }
        (_, false) if !compiler.keeps_constants() => {
            for e in crate::ir::reachable(m, [f.body]) {
                if let Expr::Constant(t) = &m[e]
                    && t.len() > INLINE_CONSTANT
                {
                    let var = out.new_var(format!("c{}", hoisted.len()), Some(typed.ty(e).clone()));
                    let used = out.add(Expr::Var(var));
                    copier.replace(e, used);
                    params.push(var);
                    hoisted.push(out.constant(t.clone()));
                }
            }
        }
        _ => {}
    }
    let body = copier.copy(m, f.body, out);
    let own = f.params.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(p, _)| *p);
    let params: Vec<VarId> = own.chain(params).collect();
    let attrs = f.attrs.with("global_symbol", AttrValue::Str(symbol.into()));
    let new = Function { params, body, attrs, ..f.clone() };
    let new = out.add_at(Expr::Func(Box::new(new)), m.span(id).cloned());
    Ok((new, hoisted, kept))
}

/// The symbol of each region: its `global_symbol`, else its name in the module, else one that nobody has.
fn symbols(m: &Module, regions: &[ExprId]) -> Result<HashMap<ExprId, String>, Refused> {
    let mut taken: HashSet<String> = HashSet::new();
    let mut out = HashMap::new();
    let global = |id: ExprId| m.functions().find(|(_, f)| *f == id).map(|(name, _)| name.to_string());
    let mut unnamed = Vec::new();
    for &id in regions {
        let Some(own) = symbol_of(m.func(id)).map(str::to_owned).or_else(|| global(id)) else {
            unnamed.push(id);
            continue;
        };
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut symbol: String = own.chars().map(|c| if legal(c) { c } else { '_' }).collect();
        if !symbol.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            symbol.insert(0, '_');
        }
        if !taken.insert(symbol.clone()) {
            let d = Diagnostic::new(format!("two regions are called `{symbol}`: `global_symbol` names one"));
            return Err(d.at(m.span(id).cloned()).into());
        }
        out.insert(id, symbol);
    }
    for id in unnamed {
        let compiler = m.func(id).compiler().unwrap_or_default();
        let free = (0..).map(|n| format!("{compiler}_region_{n}")).find(|s| !taken.contains(s));
        let symbol = free.expect("there is always another number");
        taken.insert(symbol.clone());
        out.insert(id, symbol);
    }
    Ok(out)
}

/// The module with the regions that `which` picks as plain functions, and so the composites within them.
fn unmarked(m: &Module, which: &dyn Fn(&Function) -> bool) -> Module {
    let mut out = m.derive();
    let mut marked: HashSet<ExprId> = HashSet::new();
    for id in regions(m) {
        if which(m.func(id)) {
            marked.extend(crate::ir::reachable(m, [id]).into_iter().filter(|&e| matches!(m[e], Expr::Func(_))));
        }
    }
    let mut copier = Copier::new();
    for (name, id) in m.functions() {
        let new = copier.copy_with(m, id, &mut out, |out, from, e| match e {
            Expr::Func(f) if marked.contains(&from) => {
                let f = Function { attrs: Attrs::empty(), ..(**f).clone() };
                Some(out.add_at(Expr::Func(Box::new(f)), m.span(from).cloned()))
            }
            _ => None,
        });
        out.define(name.clone(), new);
    }
    out
}
