//! Dialects: operators under a prefix of their own, and rules that legalize them, which is to say what they are in terms of
//! other operators.
//!
//! A dialect is registered by one call, [`register`]: its operators take part in reading, typing, interpreting and
//! rewriting like all others, and wherever a module holds some of them, its rules are among those that [`pass::Saturate`]
//! runs and that the pass `Legalize` runs to the end. QNN is a dialect like any other. An operator of a dialect may be made
//! code as it is ([`Op::lower`]); one that can't be, and that no rule legalizes, is refused by name and place.
//!
//! ```
//! use resat::{
//!     dialect::{self, Dialect},
//!     ir::{Attrs, Type},
//!     loops::{Builder, Operand},
//!     ops::{AttrDefault, AttrField, AttrKind, AxisMap, Class, Op, OpError, Sample, Work},
//!     pass::{Pass, PassContext, Settings, sequence},
//!     relay::text,
//!     target::Target,
//!     tensor::{DType, Tensor, Value},
//! };
//!
//! /// `scalar.scaled`: data * by.
//! #[derive(Debug)]
//! struct Scaled;
//!
//! impl Op for Scaled {
//!     fn name(&self) -> &'static str { "scalar.scaled" }
//!     fn doc(&self) -> &'static str { "data * by." }
//!     fn inputs(&self) -> &'static [&'static str] { &["data"] }
//!     fn attrs(&self) -> &'static [AttrField] {
//!         const { &[AttrField::new("by", AttrKind::Float, AttrDefault::Required)] }
//!     }
//!     fn class(&self) -> Class { Class::Elementwise }
//!     fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> { Ok(args[0].clone()) }
//!     fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
//!         let x = args[0].tensor();
//!         Ok(Tensor::from_f64_fn(x.dtype(), x.shape(), |i| x.get_f64(i) * attrs.float("by")).into())
//!     }
//!     fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
//!         AxisMap::opaque(args.iter().filter_map(|a| a.as_tensor()).map(|t| t.rank()))
//!     }
//!     fn work(&self, _: &Attrs, _: &[Type], _: &Type) -> Work { Work::default() }
//!     fn lower(&self, _: &Attrs, _: &[Operand], _: &mut Builder) -> Result<Operand, OpError> {
//!         Err(OpError("rules say what it is".into()))
//!     }
//!     fn samples(&self) -> Vec<Sample> {
//!         vec![Sample { attrs: vec![("by", 2.0.into())], args: vec![Type::tensor(&[2, 3], DType::F32)] }]
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! dialect::register(Dialect::new("scalar").op(Scaled).rules(
//!     "scalar.rules",
//!     "(ruleset scalar :numerics real)
//!
//!      ;; scaled(x) == x * by.
//!      (rule scaled (scalar.scaled {by ?k} ?x) => (multiply ?x (const ?k like ?x)))",
//! ))?;
//!
//! let program = "#[version = \"0.0.5\"] def @main(%x: Tensor[(4), float32]) { scalar.scaled(%x, by=3f) }";
//! let module = text::parse_module("example.relay", program)?;
//! let legal = sequence("Legalize", &Settings::new(Target::host()))?.run(module, &mut PassContext::default())?;
//! assert!(text::print_module(&legal).contains("multiply(%x, 3f)"));
//! # Ok(())
//! # }
//! ```
//!
//! [`pass::Saturate`]: crate::pass::Saturate
//! [`Op::lower`]: crate::ops::Op::lower

use std::sync::{Arc, Mutex};

use hashbrown::{HashMap, HashSet};

pub use crate::ops::{Dialect, RuleText};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{Module, OpId, reachable},
    ops,
    rules::{self, Definitions},
    saturate::Ruleset,
};

/// What legalizes one dialect.
#[derive(Clone, Default)]
struct Legalization {
    /// Of the rule files that came with it.
    definitions: Arc<Vec<Definitions>>,
    /// Those added ready to run.
    rulesets: Vec<Ruleset>,
}

/// By dialect; the rule files of those not in here have not been asked for.
static LEGALIZATIONS: Mutex<Option<HashMap<&'static str, Legalization>>> = Mutex::new(None);

fn define(dialect: &Dialect) -> Result<Legalization, Refused> {
    let mut definitions = Vec::new();
    for r in dialect.rule_texts() {
        definitions.extend(rules::define(&r.file, &r.text)?);
    }
    Ok(Legalization { definitions: Arc::new(definitions), rulesets: Vec::new() })
}

/// Applies a function to a dialect's legalization.
fn with<T>(dialect: &'static Dialect, f: impl FnOnce(&mut Legalization) -> T) -> T {
    let mut all = LEGALIZATIONS.lock().expect("nothing panics with the lock");
    let entry = all.get_or_insert_default().entry(dialect.name());
    f(entry.or_insert_with(|| define(dialect).expect("a dialect's rules were read when it was registered")))
}

/// Adds a dialect for as long as the process lives: its operators, then its rules, which may name them.
///
/// Refused are a dialect or operators of names that are taken, operators without the dialect's prefix, and rules that are
/// wrong; nothing is added then.
pub fn register(dialect: Dialect) -> Result<(), Refused> {
    let name = dialect.name();
    ops::register_dialect(dialect).map_err(|e| Diagnostic::new(e.to_string()))?;
    let dialect = find(name).expect("it was just registered");
    match define(dialect) {
        Ok(legalization) => {
            let mut all = LEGALIZATIONS.lock().expect("nothing panics with the lock");
            all.get_or_insert_default().insert(name, legalization);
            Ok(())
        }
        Err(refused) => {
            ops::withdraw_dialect(name);
            Err(refused)
        }
    }
}

/// Adds a ruleset to those that legalize a dialect: one whose rules are Rust code, or more rules for a dialect of others.
/// Refused where there is no such dialect.
pub fn legalize_by(dialect: &str, ruleset: Ruleset) -> Result<(), Refused> {
    match find(dialect) {
        Some(d) => {
            with(d, |l| l.rulesets.push(ruleset));
            Ok(())
        }
        None => {
            let names: Vec<&str> = ops::dialects().iter().map(|d| d.name()).collect();
            let d = Diagnostic::new(format!("there is no dialect `{dialect}`; there are {}", names.join(", ")));
            Err(d.into())
        }
    }
}

fn find(name: &str) -> Option<&'static Dialect> {
    ops::dialects().into_iter().find(|d| d.name() == name)
}

/// The rulesets that legalize a dialect, ready to run; none where there is no such dialect.
pub fn legalization(dialect: &str) -> Vec<Ruleset> {
    let Some(dialect) = find(dialect) else { return Vec::new() };
    let Legalization { definitions, rulesets } = with(dialect, |l| l.clone());
    definitions.iter().map(Definitions::compile).chain(rulesets).collect()
}

/// The operators that a module's functions name.
fn operators(m: &Module) -> HashSet<OpId> {
    let ids = reachable(m, m.functions().map(|(_, f)| f));
    ids.into_iter().filter_map(|e| if let crate::ir::Expr::Op(op) = m[e] { Some(op) } else { None }).collect()
}

/// The dialects whose operators a module names, or come of legalizing those that it names, in order of registration.
pub fn held_by(m: &Module) -> Vec<&'static str> {
    let mut held: HashSet<&'static str> = operators(m).into_iter().filter_map(OpId::dialect).collect();
    let all = ops::dialects();
    let mut done: HashSet<&'static str> = HashSet::new();
    while let Some(d) = all.iter().find(|d| held.contains(d.name()) && !done.contains(d.name())) {
        done.insert(d.name());
        let definitions = with(d, |l| l.definitions.clone());
        let made = definitions.iter().flat_map(|s| &s.rules).flat_map(|r| r.makes());
        held.extend(made.filter_map(OpId::dialect));
    }
    all.iter().map(|d| d.name()).filter(|n| held.contains(n)).collect()
}

/// Refuses a module that calls an operator of a dialect which can't be made code: none of the dialect's rules legalized it
/// there, and it has no lowering.
pub fn refuse_unlegalized(m: &Module) -> Result<(), Refused> {
    let mut lacking: HashMap<OpId, bool> = HashMap::new();
    let mut complaints = Vec::new();
    for e in reachable(m, m.functions().map(|(_, f)| f)) {
        let Some((op, ..)) = m.op_call(e) else { continue };
        let Some(dialect) = op.dialect() else { continue };
        if *lacking.entry(op).or_insert_with(|| !crate::ops::has_lowering(op)) {
            let name = op.op().name();
            let message =
                format!("no rule of dialect `{dialect}` legalizes this call of `{name}`, which has no lowering");
            let help = format!("add a rule that says what it is here, or implement the lowering of `{name}`");
            complaints.push(Diagnostic::new(message).at(m.span(e).cloned()).help(help));
        }
    }
    if complaints.is_empty() { Ok(()) } else { Err(Refused(complaints)) }
}
