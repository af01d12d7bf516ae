//! Dialects: operators that share a prefix, and the rules that say what they are in terms of other operators.

use std::borrow::Cow;

use super::{Family, Op, RegisterError};

/// A dialect, to be registered: a prefix, its operators, and the text of the rules that legalize them.
///
/// It is plain data; `dialect::register` makes operators and rules of it, for QNN as for a user's own.
#[derive(Debug)]
pub struct Dialect {
    name: &'static str,
    ops: Vec<&'static dyn Op>,
    rules: Vec<RuleText>,
}

/// A rule file that came with a dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// What messages call it.
    pub file: Cow<'static, str>,
    /// What it says.
    pub text: Cow<'static, str>,
}

/// Why a dialect's operators were not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialectError {
    /// There is one of that name.
    #[error("dialect `{0}` is already registered")]
    Registered(&'static str),
    /// There is an operator of that name.
    #[error(transparent)]
    Operator(#[from] RegisterError),
    /// An operator without the dialect's prefix.
    #[error("operator `{op}` of dialect `{dialect}` should be called `{dialect}.…`")]
    Prefix {
        /// The operator.
        op: &'static str,
        /// The dialect.
        dialect: &'static str,
    },
}

impl Dialect {
    /// A dialect without operators. Those of `toy` are called `toy.something`.
    pub fn new(name: &'static str) -> Dialect {
        Dialect { name, ops: Vec::new(), rules: Vec::new() }
    }

    /// Adds an operator. It lives as long as the process.
    pub fn op(mut self, op: impl Op + 'static) -> Dialect {
        self.ops.push(Box::leak(Box::new(op)));
        self
    }

    /// Adds operators of a table.
    pub fn family(mut self, ops: Family) -> Dialect {
        self.ops.extend(ops);
        self
    }

    /// Adds the text of a rule file; `file` is what messages call it.
    pub fn rules(mut self, file: impl Into<Cow<'static, str>>, text: impl Into<Cow<'static, str>>) -> Dialect {
        self.rules.push(RuleText { file: file.into(), text: text.into() });
        self
    }

    /// The prefix of its operators, without the dot.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its operators, in the order in which they were added.
    pub fn ops(&self) -> &[&'static dyn Op] {
        &self.ops
    }

    /// Its rule files.
    pub fn rule_texts(&self) -> &[RuleText] {
        &self.rules
    }

    /// An operator that lacks the prefix.
    pub fn stranger(&self) -> Option<DialectError> {
        let own = |op: &&'static dyn Op| op.name().strip_prefix(self.name).is_some_and(|n| n.starts_with('.'));
        let op = self.ops.iter().find(|op| !own(op))?.name();
        Some(DialectError::Prefix { op, dialect: self.name })
    }
}
