//! What the names of one rule mean, while it is being read.

use std::sync::Arc;

use super::{
    ast::{AttrDef, Slot, SlotKind},
    reader::Form,
};
use crate::{
    diag::{Diagnostic, nearest},
    ir::{Name, OpId, Span},
    ops::{self, Class},
};

/// What a variable stands for.
#[derive(Clone, Debug)]
pub(super) enum Means {
    /// A value of the program.
    Class(Slot),
    /// A sequence of values.
    Seq(usize),
    /// An attribute.
    Attr(usize),
    /// An attribute record, and what may be in it.
    Record(Slot, RecordInfo),
    /// An operator of these.
    Op(Slot, Arc<[OpId]>),
    /// What a `let` of the right side built.
    Built(usize),
}

impl Means {
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Means::Class(_) => "a value",
            Means::Seq(_) => "a sequence of values",
            Means::Attr(_) => "an attribute",
            Means::Record(..) => "an attribute record",
            Means::Op(..) => "an operator",
            Means::Built(_) => "a value that the right side builds",
        }
    }
}

/// Which operators' records a record variable stands for, and which of their fields the pattern named.
#[derive(Clone, Debug)]
pub(super) struct RecordInfo {
    pub(super) ops: Arc<[OpId]>,
    pub(super) named: Arc<[Name]>,
}

/// A variable of the rule.
#[derive(Clone, Debug)]
pub(super) struct Var {
    pub(super) name: String,
    pub(super) span: Span,
    pub(super) means: Means,
    pub(super) used: bool,
}

/// The names of one rule, and its errors so far.
#[derive(Default)]
pub(super) struct Scope {
    pub(super) errors: Vec<Diagnostic>,
    pub(super) vars: Vec<Var>,
    pub(super) slots: Vec<SlotKind>,
    pub(super) seqs: usize,
    pub(super) attr_vars: Vec<AttrDef>,
    /// Whether the pattern that is being read is inside a `...`.
    pub(super) in_seq: bool,
}

impl Scope {
    pub(super) fn error(&mut self, d: Diagnostic) {
        self.errors.push(d);
    }

    pub(super) fn slot(&mut self, kind: SlotKind) -> Slot {
        self.slots.push(kind);
        self.slots.len() - 1
    }

    /// The variable of that name; a use of it.
    pub(super) fn find(&mut self, name: &str) -> Option<&Var> {
        let var = self.vars.iter_mut().find(|v| v.name == name)?;
        var.used = true;
        Some(var)
    }

    pub(super) fn define(&mut self, form: &Form, name: &str, means: Means) {
        self.vars.push(Var { name: name.to_owned(), span: form.span.clone(), means, used: false });
    }

    /// A new attribute variable.
    pub(super) fn define_attr(&mut self, form: &Form, name: &str, def: AttrDef) -> usize {
        self.attr_vars.push(def);
        self.define(form, name, Means::Attr(self.attr_vars.len() - 1));
        self.attr_vars.len() - 1
    }

    /// The class slot of a variable in a pattern: a new one at its first occurrence.
    pub(super) fn class_in_pattern(&mut self, form: &Form, name: &str) -> Option<Means> {
        match self.find(name).map(|v| v.means.clone()) {
            Some(m @ (Means::Class(_) | Means::Seq(_))) => match (&m, self.in_seq) {
                (Means::Seq(_), false) => {
                    self.wrong_kind(form, name, "a value");
                    None
                }
                _ => Some(m),
            },
            Some(_) => {
                self.wrong_kind(form, name, "a value");
                None
            }
            None if self.in_seq => {
                self.seqs += 1;
                self.define(form, name, Means::Seq(self.seqs - 1));
                Some(Means::Seq(self.seqs - 1))
            }
            None => {
                let slot = self.slot(SlotKind::Class);
                self.define(form, name, Means::Class(slot));
                Some(Means::Class(slot))
            }
        }
    }

    /// Complains that a variable is of another kind than is wanted here.
    pub(super) fn wrong_kind(&mut self, form: &Form, name: &str, wanted: &str) {
        let Some(var) = self.vars.iter().find(|v| v.name == name) else { return self.unbound(form, name) };
        let (line, col) = var.span.line_col();
        let d = form
            .complain(format!("`{name}` is {}, but should be {wanted} here", var.means.describe()))
            .label(format!("it became {} at line {line}, column {col}", var.means.describe()));
        self.error(d);
    }

    /// Complains that a variable has no meaning.
    pub(super) fn unbound(&mut self, form: &Form, name: &str) {
        let mut d = form.complain(format!("`{name}` is not bound by the left side"));
        if let Some(near) = nearest(name, self.vars.iter().map(|v| v.name.as_str())) {
            d = d.help(format!("did you mean `{near}`?"));
        }
        self.error(d);
    }

    /// The operator of that name, or a complaint.
    pub(super) fn operator(&mut self, form: &Form, name: &str) -> Option<OpId> {
        let op = ops::lookup(name);
        if op.is_none() {
            let mut d = form.complain(format!("there is no operator `{name}`"));
            if let Some(near) = ops::suggest(name) {
                d = d.help(format!("did you mean `{near}`?"));
            }
            self.error(d);
        }
        op
    }

    /// The operators of a class of patterns that take so many arguments, or a complaint.
    pub(super) fn operators(&mut self, form: &Form, class: &str, args: usize) -> Option<Arc<[OpId]>> {
        let of = |wanted: Class| -> Vec<OpId> {
            ops::all().into_iter().filter(|o| o.op().class() == wanted && o.op().inputs().len() == args).collect()
        };
        let found = match class {
            // `full` is elementwise by its class, but its shape is not that of its input, which is no `data`.
            "unary" if args == 1 => {
                of(Class::Elementwise).into_iter().filter(|o| o.op().inputs() == ["data"]).collect()
            }
            // `nn.bias_add` and its like broadcast in another way than by numpy's rule: those say `lhs` and `rhs`.
            "binary" if args == 2 => {
                of(Class::Broadcast).into_iter().filter(|o| o.op().inputs() == ["lhs", "rhs"]).collect()
            }
            "unary" | "binary" => {
                let d = form.complain(format!("a {class} operator does not take {args} arguments"));
                self.error(d);
                return None;
            }
            "elementwise" => of(Class::Elementwise),
            "broadcast" => of(Class::Broadcast),
            "injective" => of(Class::Injective),
            "reduce" => of(Class::Reduce),
            "contract" => of(Class::Contract),
            names => {
                let known = ops::lookup(names.split('|').next().unwrap_or(""));
                if !names.contains('|') && known.is_none() {
                    let classes = ["unary", "binary", "elementwise", "broadcast", "injective", "reduce", "contract"];
                    let mut d = form.complain(format!("there is no class of operators `{names}`"));
                    d = match nearest(names, classes) {
                        Some(near) => d.help(format!("did you mean `{near}`?")),
                        None => d.help(format!("classes are {}, or operators joined by `|`", classes.join(", "))),
                    };
                    self.error(d);
                    return None;
                }
                names.split('|').map(|n| self.operator(form, n)).collect::<Option<Vec<_>>>()?
            }
        };
        if let Some(bad) = found.iter().find(|o| o.op().inputs().len() != args) {
            self.arity(form, bad.op().name(), bad.op().inputs(), args);
            return None;
        }
        if found.is_empty() {
            let d = form.complain(format!("no operator of class `{class}` takes {args} arguments"));
            self.error(d);
            return None;
        }
        Some(found.into())
    }

    /// Complains about a wrong number of arguments.
    pub(super) fn arity(&mut self, form: &Form, name: &str, inputs: &[&str], found: usize) {
        let wanted = match inputs {
            [] => "no arguments".to_owned(),
            [one] => format!("1 argument ({one})"),
            many => format!("{} arguments ({})", many.len(), many.join(", ")),
        };
        let d = form.complain(format!("`{name}` takes {wanted}, but has {found} here"));
        self.error(d);
    }
}
