//! Blocks of sums in matrix registers (AMX): tiles 0 to 3 hold sums, those from 4 on tiles of the left operand, the last ones those of the right one.

use inkwell::{AddressSpace, module::Linkage, types::BasicMetadataTypeEnum, values::PointerValue};

use super::{
    CodegenError,
    emit::Emitter,
    ir::{Ir, V},
};
use crate::{
    loops::{BufferId, LoopKind, Stmt, TILES_OF_SUMS, TileBlock, TileStep},
    tensor::DType,
};

/// The first tile of operands.
const OPERANDS: usize = TILES_OF_SUMS as usize;
/// All tiles.
const ALL: usize = 8;
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
    let [left, right] = operands(block);
    for (i, &m) in block.rows.iter().enumerate() {
        set(left[i], m, block.depth);
        for (j, &n) in block.columns.iter().enumerate() {
            set(i * block.columns.len() + j, m, n);
        }
    }
    for (j, &n) in block.columns.iter().enumerate() {
        set(right[j], block.depth, n);
    }
    bytes
}

/// The registers of either operand's tiles. Of the one that has more tiles than are left beside the other one's, two of a size take turns
/// in a register.
fn operands(block: &TileBlock) -> [Vec<usize>; 2] {
    let sides = [&block.rows, &block.columns];
    let most = usize::from(sides[1].len() > sides[0].len());
    let kept = sides[1 - most].len();
    let room = ALL - OPERANDS - kept;
    let sizes = sides[most];
    let pairs = (0..sizes.len()).flat_map(|b| (0..b).map(move |a| (a, b))).filter(|&(a, b)| sizes[a] == sizes[b]);
    let shared = pairs.max_by_key(|&(a, b)| b - a).filter(|_| sizes.len() > room);
    let mut registers: Vec<usize> = Vec::new();
    for i in 0..sizes.len() {
        let again = shared.filter(|s| s.1 == i).map(|s| registers[s.0]);
        registers.push(again.unwrap_or(i - usize::from(shared.is_some_and(|s| s.1 < i))));
    }
    let [first, others] = if most == 0 { [OPERANDS, ALL - kept] } else { [OPERANDS + kept, OPERANDS] };
    let taken: Vec<usize> = registers.into_iter().map(|r| first + r).collect();
    let kept: Vec<usize> = (others..others + kept).collect();
    if most == 0 { [taken, kept] } else { [kept, taken] }
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
        let sums = |block: &TileBlock| block.tiles().enumerate().collect::<Vec<_>>();
        let alone = self.tiles.is_none();
        if alone && matches!(step, TileStep::Clear | TileStep::Load) {
            self.set_up(block);
        }
        match step {
            TileStep::Clear => sums(block).into_iter().for_each(|(t, _)| self.instruct("tilezero", &[self.tile(t)])),
            TileStep::Load | TileStep::Store | TileStep::Wake => {
                let name = if *step == TileStep::Load { "tileloadd64" } else { "tilestored64" };
                let all = if *step == TileStep::Wake { 1 } else { usize::MAX };
                for (t, [r, c, ..]) in sums(block).into_iter().take(all) {
                    let p = self.buffer(block.sums);
                    let p = self.ir.offset(self.unit.ctx.i32_type().into(), p, self.ir.i64(r * block.width() + c));
                    self.instruct(name, &[self.tile(t), p.into(), self.ir.i64(block.width() * WORD).into()]);
                }
            }
            TileStep::Add { left, right } => {
                let name = match (self.dtype(left.buffer), self.dtype(right.buffer)) {
                    (DType::I8, DType::I8) => "tdpbssd",
                    (DType::I8, _) => "tdpbsud",
                    (DType::U8, DType::I8) => "tdpbusd",
                    (DType::U8, _) => "tdpbuud",
                    _ => "tdpbf16ps",
                };
                let registers = operands(block);
                let load = |e: &mut Self, side: usize, i: usize| -> Result<(), CodegenError> {
                    let operand = [left, right][side];
                    let bytes = e.dtype(operand.buffer).bytes() as i64;
                    let at = e.index(&operand.at[i]);
                    let p: PointerValue = e.address(operand.buffer, &at)?;
                    let stride = e.ir.i64(operand.stride * bytes);
                    e.instruct("tileloadd64", &[e.tile(registers[side][i]), p.into(), stride.into()]);
                    Ok(())
                };
                // Tiles of the operand that has fewer are all at hand; those of the other one are multiplied one after another.
                let sizes = [block.rows.len(), block.columns.len()];
                let passing = usize::from(sizes[1] > sizes[0]);
                for i in 0..sizes[1 - passing] {
                    load(self, 1 - passing, i)?;
                }
                for k in 0..sizes[passing] {
                    load(self, passing, k)?;
                    for l in 0..sizes[1 - passing] {
                        let (i, j) = if passing == 0 { (k, l) } else { (l, k) };
                        let to = i * sizes[1] + j;
                        let [to, a, b] = [to, registers[0][i], registers[1][j]].map(|t| self.tile(t));
                        self.instruct(name, &[to, a, b]);
                    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::TensorId;

    /// Every tile has a register, one that no tile of another size has, and neighbours have different ones.
    #[test]
    fn operands_share_registers_by_size() {
        let shapes: [(&[i64], &[i64]); 6] = [
            (&[16, 16], &[16, 16]),
            (&[13, 12, 12, 12], &[16]),
            (&[13, 13, 13, 12], &[16]),
            (&[14, 13, 14, 13], &[8]),
            (&[7], &[16, 16, 16, 16]),
            (&[5, 4, 4], &[16]),
        ];
        for (rows, columns) in shapes {
            let block = TileBlock { sums: TensorId(0), rows: rows.to_vec(), columns: columns.to_vec(), depth: 16 };
            let registers = operands(&block);
            let sizes = [rows, columns];
            let all: Vec<(usize, usize, i64)> = (0..2)
                .flat_map(|side| registers[side].iter().zip(sizes[side]).map(move |(r, n)| (side, *r, *n)))
                .collect();
            assert!(all.iter().all(|t| (OPERANDS..ALL).contains(&t.1)), "{rows:?} {columns:?}: {all:?}");
            for (i, a) in all.iter().enumerate() {
                let shared = all[i + 1..].iter().filter(|b| b.1 == a.1);
                assert!(shared.clone().all(|b| (b.0, b.2) == (a.0, a.2)), "{rows:?} {columns:?}: {all:?}");
                assert!(all.get(i + 1).is_none_or(|b| b.1 != a.1), "{rows:?} {columns:?}: {all:?}");
            }
        }
    }
}
