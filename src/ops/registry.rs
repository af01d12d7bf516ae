//! The table of all operators, and those that dialects add at run time.

use std::sync::{OnceLock, RwLock};

use hashbrown::HashMap;

use super::{
    Dialect, DialectError, Family, Op, annotation, contract, create, einsum, elementwise, fourier, image, nn, order,
    qnn, random, reduce, sparse, transform, vision,
};
use crate::ir::OpId;

/// Every family that resat ships, in manual order.
const FAMILIES: &[Family] = &[
    elementwise::UNARY,
    elementwise::BINARY,
    elementwise::CONVERT,
    elementwise::SELECT,
    annotation::OPS,
    transform::SHAPE,
    transform::PERMUTE,
    transform::JOIN,
    transform::SLICE,
    transform::INDEX,
    transform::REPEAT,
    transform::MASK,
    transform::DIAGONAL,
    transform::GRID,
    reduce::FOLD,
    reduce::ARG,
    reduce::VARIANCE,
    reduce::COLLAPSE,
    create::FILL,
    create::RANGE,
    create::SHAPE,
    create::DYNAMIC,
    order::SORT,
    order::UNIQUE,
    order::SEARCH,
    order::SCAN,
    order::SCATTER,
    order::FIND,
    sparse::COO,
    sparse::FILL_ROWS,
    sparse::ROWS,
    contract::OPS,
    einsum::OPS,
    fourier::OPS,
    random::THREEFRY,
    random::DRAW,
    nn::ACTIVATION,
    nn::CONV,
    nn::CONV_TRANSPOSE,
    nn::POOL,
    nn::ADAPTIVE,
    nn::NORM,
    nn::SOFTMAX,
    nn::ATTENTION,
    nn::PAD,
    nn::REARRANGE,
    nn::RESIZE,
    nn::CORRELATION,
    nn::LOSS,
    nn::FIFO,
    nn::POOL_GRAD,
    nn::CONV_GRAD,
    nn::BITSERIAL,
    nn::WINOGRAD,
    nn::WINOGRAD_CONV,
    qnn::FIXED,
    qnn::ANNOTATED,
    image::GRID,
    image::CROP,
    image::DILATION,
    nn::DEFORMABLE,
    vision::NMS,
    vision::ALL_CLASS,
    vision::REGULAR,
    vision::MULTIBOX,
    vision::PROPOSAL,
    vision::ROI,
    vision::REORG,
];

/// The dialects that resat ships. They are added as a user's are.
const DIALECTS: &[fn() -> Dialect] = &[qnn::dialect, qnn::sites];

#[derive(Default)]
struct Table {
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
    fn add(&mut self, op: &'static dyn Op, dialect: Option<usize>) -> Result<OpId, RegisterError> {
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
    fn add_dialect(&mut self, dialect: Dialect) -> Result<(), DialectError> {
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
}

fn table() -> &'static RwLock<Table> {
    static TABLE: OnceLock<RwLock<Table>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Table::default();
        for &op in FAMILIES.iter().copied().flatten() {
            table.add(op, None).expect("the shipped table names each operator once");
        }
        for dialect in DIALECTS {
            table.add_dialect(dialect()).expect("the shipped dialects have names of their own");
        }
        RwLock::new(table)
    })
}

fn read() -> std::sync::RwLockReadGuard<'static, Table> {
    table().read().expect("no operator registration panics")
}

/// Adds an operator that belongs to no dialect. It lives as long as the process.
pub fn register(op: Box<dyn Op>) -> Result<OpId, RegisterError> {
    let mut table = table().write().expect("no operator registration panics");
    match table.by_name.contains_key(op.name()) {
        true => Err(RegisterError(op.name())),
        false => table.add(Box::leak(op), None),
    }
}

/// Adds the operators of a dialect, all or none; its rules are for [`crate::dialect::register`] to add.
pub fn register_dialect(dialect: Dialect) -> Result<(), DialectError> {
    table().write().expect("no operator registration panics").add_dialect(dialect)
}

/// Takes a dialect's operators out of the table: no name means them any more.
pub(crate) fn withdraw_dialect(name: &str) {
    let mut table = table().write().expect("no operator registration panics");
    let Some(at) = table.dialects.iter().position(|d| d.is_some_and(|d| d.name() == name)) else { return };
    if let Some(dialect) = table.dialects[at].take() {
        for op in dialect.ops() {
            table.by_name.remove(op.name());
        }
    }
}

/// The dialects, shipped ones first, in order of registration.
pub fn dialects() -> Vec<&'static Dialect> {
    read().dialects.iter().flatten().copied().collect()
}

/// How many of [`dialects`] are shipped.
pub fn shipped_dialects() -> usize {
    DIALECTS.len()
}

/// The name of the dialect that an operator is of.
pub(super) fn dialect_of(id: OpId) -> Option<&'static str> {
    let table = read();
    let number = table.ops[id.0 as usize].1?;
    table.dialects[number].map(Dialect::name)
}

/// The operator of that name.
pub fn lookup(name: &str) -> Option<OpId> {
    read().by_name.get(name).copied()
}

/// All operators, in table order.
pub fn all() -> Vec<OpId> {
    let mut ids: Vec<OpId> = read().by_name.values().copied().collect();
    ids.sort_unstable();
    ids
}

/// The operator name that is nearest to a misspelt one, where one is near.
pub fn suggest(name: &str) -> Option<&'static str> {
    let names: Vec<&'static str> = read().by_name.keys().copied().collect();
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
    read().ops[id.0 as usize].0
}
