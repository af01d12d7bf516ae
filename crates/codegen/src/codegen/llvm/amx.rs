//! Blocks of sums in matrix registers (AMX): tiles 0 to 3 hold sums, 4 and 5 those of the left operand, 6 and 7 those of the right one.

use inkwell::{AddressSpace, module::Linkage, types::BasicMetadataTypeEnum, values::PointerValue};

use super::{
    CodegenError,
    emit::Emitter,
    ir::{Ir, V},
};
use crate::{
    loops::{BufferId, LoopKind, Stmt, TILES_ASIDE, TileBlock, TileStep},
    tensor::DType,
};

/// The first tile of the left operand.
const LEFT: usize = TILES_ASIDE * TILES_ASIDE;
/// The first tile of the right operand.
const RIGHT: usize = LEFT + TILES_ASIDE;
/// Bytes of a word.
const WORD: i64 = 4;

/// A symbol that is there where code uses matrix registers: exported libraries ask the system for them then.
const MARK: &str = "resat_uses_tiles";

/// The block of 64 bytes that sets up all tiles: palette 1, bytes of each tile's rows from the 16th on, its rows from the 48th on.
fn configuration(block: &TileBlock) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut set = |tile: usize, rows: i64, words: i64| {
        bytes[16 + 2 * tile] = (words * WORD) as u8;
        bytes[48 + tile] = rows as u8;
    };
    for (i, &m) in block.rows.iter().enumerate() {
        set(LEFT + i, m, block.depth);
        for (j, &n) in block.columns.iter().enumerate() {
            set(i * TILES_ASIDE + j, m, n);
        }
    }
    for (j, &n) in block.columns.iter().enumerate() {
        set(RIGHT + j, block.depth, n);
    }
    bytes
}

/// The blocks of statements that are set up differently, and whether threads take part in them.
fn blocks(s: &Stmt) -> (Vec<TileBlock>, bool) {
    let (mut found, mut parallel): (Vec<TileBlock>, bool) = (vec![], false);
    s.for_each(&mut |s| match s {
        Stmt::Tiles { block, .. } if !found.iter().any(|b| configuration(b) == configuration(block)) => {
            found.push((**block).clone());
        }
        Stmt::For { kind: LoopKind::Parallel, .. } => parallel = true,
        _ => {}
    });
    (found, parallel)
}

impl<'ctx> Emitter<'_, 'ctx> {
    /// Emits what is in a function. Where all blocks of sums in it are set up alike, they are so once: other code that is called in between
    /// (functions of libm) has no use for matrix registers.
    pub(super) fn with_tiles(
        &mut self,
        body: &Stmt,
        emit: impl FnOnce(&mut Self) -> Result<(), CodegenError>,
    ) -> Result<(), CodegenError> {
        let (found, parallel) = blocks(body);
        match &found[..] {
            [one] if !parallel => {
                self.set_up(one);
                self.tiles = Some(one.clone());
                emit(self)?;
                self.tiles = None;
                self.release();
                Ok(())
            }
            _ => emit(self),
        }
    }

    pub(super) fn tile_step(&mut self, block: &TileBlock, step: &TileStep) -> Result<(), CodegenError> {
        self.fresh();
        let sums = |block: &TileBlock| {
            let columns = block.columns.len();
            let of = move |(k, place): (usize, [i64; 4])| (k / columns * TILES_ASIDE + k % columns, place);
            block.tiles().enumerate().map(of).collect::<Vec<_>>()
        };
        let alone = self.tiles.is_none();
        if alone && matches!(step, TileStep::Clear | TileStep::Load) {
            self.set_up(block);
        }
        match step {
            TileStep::Clear => sums(block).into_iter().for_each(|(t, _)| self.instruct("tilezero", &[self.tile(t)])),
            TileStep::Load | TileStep::Store => {
                let name = if *step == TileStep::Load { "tileloadd64" } else { "tilestored64" };
                for (t, [r, c, ..]) in sums(block) {
                    let p = self.buffer(block.sums);
                    let p = self.ir.offset(self.unit.ctx.i32_type().into(), p, self.ir.i64(r * block.width() + c));
                    self.instruct(name, &[self.tile(t), p.into(), self.ir.i64(block.width() * WORD).into()]);
                }
            }
            TileStep::Add { left, right } => {
                for (operand, first) in [(left, LEFT), (right, RIGHT)] {
                    let bytes = self.dtype(operand.buffer).bytes() as i64;
                    for (i, at) in operand.at.iter().enumerate() {
                        let at = self.index(at);
                        let p: PointerValue = self.address(operand.buffer, &at)?;
                        let stride = self.ir.i64(operand.stride * bytes);
                        self.instruct("tileloadd64", &[self.tile(first + i), p.into(), stride.into()]);
                    }
                }
                let name = match (self.dtype(left.buffer), self.dtype(right.buffer)) {
                    (DType::I8, DType::I8) => "tdpbssd",
                    (DType::I8, _) => "tdpbsud",
                    (DType::U8, DType::I8) => "tdpbusd",
                    (DType::U8, _) => "tdpbuud",
                    _ => "tdpbf16ps",
                };
                for (i, j) in (0..block.rows.len()).flat_map(|i| (0..block.columns.len()).map(move |j| (i, j))) {
                    let [to, a, b] = [i * TILES_ASIDE + j, LEFT + i, RIGHT + j].map(|t| self.tile(t));
                    self.instruct(name, &[to, a, b]);
                }
            }
        }
        if alone && *step == TileStep::Store {
            self.release();
        }
        Ok(())
    }

    fn dtype(&self, b: BufferId) -> DType {
        self.kernel.buffers[b.0 as usize].dtype
    }

    /// A tile's number, which is a part of instructions.
    fn tile(&self, number: usize) -> V<'ctx> {
        self.ir.int(number as i64, self.unit.ctx.i8_type().into())
    }

    fn set_up(&mut self, block: &TileBlock) {
        let byte = self.unit.ctx.i8_type();
        let bytes = configuration(block).map(|b| byte.const_int(b as u64, false));
        let module = &self.unit.module;
        let global = module.add_global(byte.array_type(64), Some(AddressSpace::default()), "");
        global.set_linkage(Linkage::Private);
        global.set_constant(true);
        global.set_alignment(64);
        global.set_initializer(&byte.const_array(&bytes));
        if !self.unit.target.emulates_tiles() && module.get_global(MARK).is_none() {
            let mark = module.add_global(byte, Some(AddressSpace::default()), MARK);
            mark.set_linkage(Linkage::WeakAny);
            mark.set_constant(true);
            mark.set_initializer(&byte.const_int(1, false));
        }
        self.instruct("ldtilecfg", &[global.as_pointer_value().into()]);
    }

    /// Whoever switches between threads need not save the registers from here on.
    fn release(&self) {
        self.instruct("tilerelease", &[]);
    }

    /// An instruction on tiles, or what stands in for it.
    fn instruct(&self, name: &str, args: &[V<'ctx>]) {
        let ir: &Ir<'_, 'ctx> = &self.ir;
        let f = match self.unit.target.emulates_tiles() {
            false => ir.declared(&format!("llvm.x86.{name}")),
            true => {
                let name = format!("resat_amx_{name}");
                let module = &self.unit.module;
                module.get_function(&name).unwrap_or_else(|| {
                    let params: Vec<BasicMetadataTypeEnum> = args.iter().map(|a| a.get_type().into()).collect();
                    module.add_function(&name, self.unit.ctx.void_type().fn_type(&params, false), None)
                })
            }
        };
        ir.call(f, args);
    }
}
