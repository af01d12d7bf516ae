//! The table of all operators, and those that dialects add at run time.

use std::sync::{OnceLock, RwLock};

use hashbrown::HashMap;

use super::{Family, Op, contract, create, elementwise, nn, order, qnn, reduce, sparse, transform};
use crate::ir::OpId;

/// Every family that resat ships, in manual order.
const FAMILIES: &[Family] = &[
    elementwise::UNARY,
    elementwise::BINARY,
    elementwise::CONVERT,
    elementwise::SELECT,
    transform::SHAPE,
    transform::PERMUTE,
    transform::JOIN,
    transform::SLICE,
    transform::INDEX,
    transform::REPEAT,
    transform::MASK,
    reduce::FOLD,
    reduce::ARG,
    reduce::VARIANCE,
    create::FILL,
    create::RANGE,
    create::SHAPE,
    create::DYNAMIC,
    order::SORT,
    order::SCAN,
    order::SCATTER,
    order::FIND,
    sparse::COO,
    contract::OPS,
    nn::ACTIVATION,
    nn::CONV,
    nn::CONV_TRANSPOSE,
    nn::POOL,
    nn::ADAPTIVE,
    nn::NORM,
    nn::SOFTMAX,
    nn::PAD,
    nn::REARRANGE,
    nn::RESIZE,
    nn::CORRELATION,
    nn::LOSS,
    nn::FIFO,
    nn::POOL_GRAD,
    nn::CONV_GRAD,
    nn::BITSERIAL,
    qnn::FIXED,
    qnn::QUANTIZE,
    qnn::CONTRACT,
    qnn::ELEMENTWISE,
    qnn::CONCAT,
    qnn::UNARY,
];

#[derive(Default)]
struct Table {
    ops: Vec<&'static dyn Op>,
    by_name: HashMap<&'static str, OpId>,
}

/// Why an operator was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("operator `{0}` is already defined")]
pub struct RegisterError(pub &'static str);

impl Table {
    fn add(&mut self, op: &'static dyn Op) -> Result<OpId, RegisterError> {
        let id = OpId(self.ops.len() as u32);
        match self.by_name.try_insert(op.name(), id) {
            Ok(_) => {
                self.ops.push(op);
                Ok(id)
            }
            Err(_) => Err(RegisterError(op.name())),
        }
    }
}

fn table() -> &'static RwLock<Table> {
    static TABLE: OnceLock<RwLock<Table>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Table::default();
        for &op in FAMILIES.iter().copied().flatten() {
            table.add(op).expect("the shipped table names each operator once");
        }
        RwLock::new(table)
    })
}

fn read() -> std::sync::RwLockReadGuard<'static, Table> {
    table().read().expect("no operator registration panics")
}

/// Adds an operator, as a dialect from outside the crate does. It lives as long as the process.
pub fn register(op: Box<dyn Op>) -> Result<OpId, RegisterError> {
    let mut table = table().write().expect("no operator registration panics");
    match table.by_name.contains_key(op.name()) {
        true => Err(RegisterError(op.name())),
        false => table.add(Box::leak(op)),
    }
}

/// The operator of that name.
pub fn lookup(name: &str) -> Option<OpId> {
    read().by_name.get(name).copied()
}

/// All operators, in table order.
pub fn all() -> Vec<OpId> {
    (0..read().ops.len() as u32).map(OpId).collect()
}

/// The operator name that is nearest to a misspelt one, where one is near.
pub fn suggest(name: &str) -> Option<&'static str> {
    let names: Vec<&'static str> = read().ops.iter().map(|o| o.name()).collect();
    nearest(name, names)
}

/// The candidate that a misspelt name most likely meant: fewest edits, and no more than a third of its length.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|c| (strsim::damerau_levenshtein(name, c), c))
        .filter(|(edits, c)| *edits <= (c.len().max(name.len()) / 3).max(1))
        .min()
        .map(|(_, c)| c)
}

pub(super) fn by_id(id: OpId) -> &'static dyn Op {
    read().ops[id.0 as usize]
}
