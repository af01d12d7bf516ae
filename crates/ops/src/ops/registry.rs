//! The table of all operators that resat ships, and those that dialects add at run time.

use std::sync::{OnceLock, RwLock, RwLockReadGuard};

use resat_ir::op::{RegisterError, Table};

use super::{
    Dialect, DialectError, Family, Op, annotation, contract, create, einsum, elementwise, fourier, image, nn, order,
    qnn, random, reduce, sparse, transform, vision,
};
use crate::{diag::nearest, ir::OpId};

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
    nn::NBITS,
    nn::RECURRENT,
    nn::LSTM_INT8,
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
    nn::WINOGRAD_CONV_3D,
    nn::WINOGRAD_INT8,
    nn::INVERTED_BOTTLENECK,
    qnn::FIXED,
    qnn::RESCALED,
    qnn::ANNOTATED,
    image::GRID,
    image::CROP,
    image::DECODE,
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

/// How many operators are shipped; set once the table is filled.
static FILLED: OnceLock<usize> = OnceLock::new();

/// The table, filled with what is shipped.
fn table() -> &'static RwLock<Table> {
    let table = resat_ir::op::table();
    FILLED.get_or_init(|| {
        let mut table = table.write().expect("no operator registration panics");
        for &op in FAMILIES.iter().copied().flatten() {
            table.add(op, None).expect("the shipped table names each operator once");
        }
        for dialect in DIALECTS {
            table.add_dialect(dialect()).expect("the shipped dialects have names of their own");
        }
        table.names().count()
    });
    table
}

fn read() -> RwLockReadGuard<'static, Table> {
    table().read().expect("no operator registration panics")
}

/// Adds an operator that belongs to no dialect. It lives as long as the process.
pub fn register(op: Box<dyn Op>) -> Result<OpId, RegisterError> {
    let mut table = table().write().expect("no operator registration panics");
    match table.lookup(op.name()) {
        Some(_) => Err(RegisterError(op.name())),
        None => table.add(Box::leak(op), None),
    }
}

/// Adds the operators of a dialect, all or none; its rules are for `dialect::register` to add.
pub fn register_dialect(dialect: Dialect) -> Result<(), DialectError> {
    table().write().expect("no operator registration panics").add_dialect(dialect)
}

/// Takes a dialect's operators out of the table: no name means them any more.
pub fn withdraw_dialect(name: &str) {
    table().write().expect("no operator registration panics").withdraw_dialect(name);
}

/// The dialects, shipped ones first, in order of registration.
pub fn dialects() -> Vec<&'static Dialect> {
    read().dialects().collect()
}

/// How many of [`dialects`] are shipped.
pub fn shipped_dialects() -> usize {
    DIALECTS.len()
}

/// Whether an operator comes with resat: it was not registered by a user.
pub fn is_shipped(op: OpId) -> bool {
    FILLED.get().is_some_and(|&n| (op.0 as usize) < n)
}

/// The operator of that name.
pub fn lookup(name: &str) -> Option<OpId> {
    read().lookup(name)
}

/// All operators, in table order.
pub fn all() -> Vec<OpId> {
    let mut ids: Vec<OpId> = read().names().map(|(_, id)| id).collect();
    ids.sort_unstable();
    ids
}

/// The operator name that is nearest to a misspelt one, where one is near.
pub fn suggest(name: &str) -> Option<&'static str> {
    let names: Vec<&'static str> = read().names().map(|(name, _)| name).collect();
    nearest(name, names)
}
