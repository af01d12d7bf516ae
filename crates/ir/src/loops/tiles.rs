//! Products of matrices of narrow numbers, as matrix registers add them up: *tiles* of at most 16 rows of at most 16 words of 32 bits.
//!
//! A word holds four bytes or two `bfloat16`. A product of tiles adds, to the sum in row `r` and column `c`, the products of the
//! numbers in word `k` of row `r` on the left with those in word `c` of row `k` on the right, for all `k`.

use super::{BufferId, Scalar};
use crate::tensor::DType;

/// Rows of a tile, and words of a row, at most.
pub const TILE: i64 = 16;

/// Tiles of a block of sums, at most: half of the registers that there are, whose others hold operands.
pub const TILES_OF_SUMS: i64 = 4;

/// A block of sums in tiles, which belong to a buffer: between the first statement about it and [`TileStep::Store`], only they are
/// up to date.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TileBlock {
    /// The sums in memory, row by row: a local buffer of `int32` or `float32`.
    pub sums: BufferId,
    /// Rows of each tile, from above.
    pub rows: Vec<i64>,
    /// Columns of each tile, from the left.
    pub columns: Vec<i64>,
    /// Words that a step multiplies for each sum.
    pub depth: i64,
}

impl TileBlock {
    /// Rows of the whole block.
    pub fn height(&self) -> i64 {
        self.rows.iter().sum()
    }

    /// Columns of the whole block.
    pub fn width(&self) -> i64 {
        self.columns.iter().sum()
    }

    /// The tiles of sums: first row and column, rows and columns.
    pub fn tiles(&self) -> impl Iterator<Item = [i64; 4]> + '_ {
        let starts = |sizes: &[i64]| -> Vec<(i64, i64)> {
            let mut end = 0;
            let start = |&n| {
                end += n;
                (end - n, n)
            };
            sizes.iter().map(start).collect()
        };
        let columns = starts(&self.columns);
        starts(&self.rows)
            .into_iter()
            .flat_map(move |(r, m)| columns.clone().into_iter().map(move |(c, n)| [r, c, m, n]))
    }
}

/// Tiles in memory: their rows lie evenly apart.
#[derive(Clone, PartialEq, Debug)]
pub struct TileOperand {
    /// Of `int8`, `uint8` or `bfloat16`.
    pub buffer: BufferId,
    /// Where each tile begins, in elements.
    pub at: Vec<Scalar>,
    /// Elements from a row to the next.
    pub stride: i64,
}

/// What happens to a block of sums.
#[derive(Clone, PartialEq, Debug)]
pub enum TileStep {
    /// They become 0.
    Clear,
    /// They are read from memory.
    Load,
    /// Products are added: of the left operand's tiles, which have the block's rows, with the right one's, which have its columns.
    Add {
        /// A tile for each of the block's [`rows`](TileBlock::rows).
        left: TileOperand,
        /// A tile of `depth` rows for each of the block's [`columns`](TileBlock::columns).
        right: TileOperand,
    },
    /// They are written to memory.
    Store,
    /// A tile of them is written to memory, where it means nothing yet: a core that stores one now and then does so faster.
    Wake,
}

impl TileStep {
    /// The operands of a step that adds products, each with the rows and words of its tiles.
    pub fn operands(&self, block: &TileBlock) -> Vec<(&TileOperand, Vec<[i64; 2]>)> {
        match self {
            TileStep::Add { left, right } => vec![
                (left, block.rows.iter().map(|&m| [m, block.depth]).collect()),
                (right, block.columns.iter().map(|&n| [block.depth, n]).collect()),
            ],
            TileStep::Clear | TileStep::Load | TileStep::Store | TileStep::Wake => vec![],
        }
    }
}

/// Numbers of a type in a word, where there are instructions for it.
pub fn numbers_in_word(dtype: DType) -> Option<i64> {
    matches!(dtype, DType::I8 | DType::U8 | DType::BF16).then(|| 4 / dtype.bytes() as i64)
}
