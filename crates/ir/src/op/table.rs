//! The table that operators are found in.

use std::sync::{OnceLock, RwLock};

use hashbrown::HashMap;

use super::{Dialect, DialectError, Op};
use crate::ir::OpId;

/// All operators and dialects of this process.
#[derive(Default)]
pub struct Table {
    /// Operators by id, with the place of the dialect that they are of.
    ops: Vec<(&'static dyn Op, Option<usize>)>,
    by_name: HashMap<&'static str, OpId>,
    /// In order of registration; withdrawn ones leave a gap.
    dialects: Vec<Option<&'static Dialect>>,
}

/// Why an operator was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("operator `{0}` is already defined")]
pub struct RegisterError(pub &'static str);

impl Table {
    /// Adds an operator.
    ///
    /// # Errors
    /// Where there is one of that name.
    pub fn add(&mut self, op: &'static dyn Op, dialect: Option<usize>) -> Result<OpId, RegisterError> {
        let id = OpId(self.ops.len() as u32);
        match self.by_name.try_insert(op.name(), id) {
            Ok(_) => {
                self.ops.push((op, dialect));
                Ok(id)
            }
            Err(_) => Err(RegisterError(op.name())),
        }
    }

    /// Adds all operators of a dialect, or none.
    pub fn add_dialect(&mut self, dialect: Dialect) -> Result<(), DialectError> {
        if self.dialects.iter().flatten().any(|d| d.name() == dialect.name()) {
            return Err(DialectError::Registered(dialect.name()));
        }
        if let Some(e) = dialect.stranger() {
            return Err(e);
        }
        let number = self.dialects.len();
        for (i, op) in dialect.ops().iter().enumerate() {
            if let Err(e) = self.add(*op, Some(number)) {
                for op in &dialect.ops()[..i] {
                    self.by_name.remove(op.name());
                }
                return Err(e.into());
            }
        }
        self.dialects.push(Some(Box::leak(Box::new(dialect))));
        Ok(())
    }

    /// Takes a dialect's operators out: no name means them any more.
    pub fn withdraw_dialect(&mut self, name: &str) {
        let Some(at) = self.dialects.iter().position(|d| d.is_some_and(|d| d.name() == name)) else { return };
        if let Some(dialect) = self.dialects[at].take() {
            for op in dialect.ops() {
                self.by_name.remove(op.name());
            }
        }
    }

    /// The operators by name.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, OpId)> + '_ {
        self.by_name.iter().map(|(n, id)| (*n, *id))
    }

    /// The operator of that name.
    pub fn lookup(&self, name: &str) -> Option<OpId> {
        self.by_name.get(name).copied()
    }

    /// The dialects in order of registration.
    pub fn dialects(&self) -> impl Iterator<Item = &'static Dialect> + '_ {
        self.dialects.iter().flatten().copied()
    }
}

/// The table. It is empty until the crate of the operators fills it.
pub fn table() -> &'static RwLock<Table> {
    static TABLE: OnceLock<RwLock<Table>> = OnceLock::new();
    TABLE.get_or_init(RwLock::default)
}

fn read() -> std::sync::RwLockReadGuard<'static, Table> {
    table().read().expect("no operator registration panics")
}

/// The name of the dialect that an operator is of.
pub(super) fn dialect_of(id: OpId) -> Option<&'static str> {
    let table = read();
    let number = table.ops[id.0 as usize].1?;
    table.dialects[number].map(Dialect::name)
}

pub(super) fn by_id(id: OpId) -> &'static dyn Op {
    read().ops[id.0 as usize].0
}
