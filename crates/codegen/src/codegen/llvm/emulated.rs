//! Instructions on tiles as functions: palette 1 of AMX by Intel's manual, with what it forbids. A process that breaks a rule ends, as it
//! would by the processor.
#![allow(unsafe_code)]

use std::{cell::RefCell, ffi::CStr, slice};

/// Tiles of palette 1, their rows, and the bytes of a row.
const TILES: usize = 8;
const ROWS: usize = 16;
const BYTES: usize = 64;

/// The matrix registers of a thread.
struct Registers {
    /// Rows and bytes of each tile, once they are set up.
    shapes: Option<[(usize, usize); TILES]>,
    rows: [[[u8; BYTES]; ROWS]; TILES],
}

thread_local! {
    static REGISTERS: RefCell<Registers> =
        const { RefCell::new(Registers { shapes: None, rows: [[[0; BYTES]; ROWS]; TILES] }) };
}

impl Registers {
    /// Rows and bytes of a tile that is in use.
    fn shape(&self, tile: u8) -> (usize, usize) {
        let (rows, bytes) = self.shapes.expect("tiles are set up before they are used")[tile as usize];
        assert!(rows > 0 && bytes > 0, "tile {tile} is used though it has no rows");
        (rows, bytes)
    }

    /// The tiles of a product: their rows, words of the sums' rows, and words that are multiplied.
    fn product(&self, [sums, left, right]: [u8; 3]) -> (usize, usize, usize) {
        let [c, a, b] = [sums, left, right].map(|t| self.shape(t));
        assert!(sums != left && sums != right && left != right, "a product is of three different tiles");
        assert!([c, a, b].iter().all(|s| s.1 % 4 == 0), "rows are whole words");
        assert_eq!((c.0, c.1, a.1 / 4), (a.0, b.1, b.0), "tiles of a product fit together");
        (c.0, c.1 / 4, b.0)
    }

    fn word(&self, tile: u8, row: usize, word: usize) -> [u8; 4] {
        let row = &self.rows[tile as usize][row];
        [0, 1, 2, 3].map(|i| row[4 * word + i])
    }

    fn set_word(&mut self, tile: u8, row: usize, word: usize, value: [u8; 4]) {
        self.rows[tile as usize][row][4 * word..4 * word + 4].copy_from_slice(&value);
    }

    /// Each instruction that writes a tile sets the rest of it to zero.
    fn clear(&mut self, tile: u8, rows: usize, bytes: usize) {
        for (r, row) in self.rows[tile as usize].iter_mut().enumerate() {
            row[if r < rows { bytes } else { 0 }..].fill(0);
        }
    }
}

fn with<T>(f: impl FnOnce(&mut Registers) -> T) -> T {
    REGISTERS.with_borrow_mut(f)
}

/// # Safety
/// 64 readable bytes.
unsafe extern "C" fn ldtilecfg(from: *const u8) {
    // SAFETY: by the caller's word.
    let bytes = unsafe { slice::from_raw_parts(from, 64) };
    assert_eq!((bytes[0], bytes[1]), (1, 0), "palette 1, from the first row on");
    assert!(bytes[2..16].iter().all(|b| *b == 0), "reserved bytes are 0");
    let shapes: [(usize, usize); ROWS] = std::array::from_fn(|i| {
        (bytes[48 + i] as usize, u16::from_le_bytes([bytes[16 + 2 * i], bytes[17 + 2 * i]]) as usize)
    });
    for (i, &(rows, row)) in shapes.iter().enumerate() {
        let fits = rows <= ROWS && row <= BYTES && (rows == 0) == (row == 0) && (i < TILES || rows == 0);
        assert!(fits, "tile {i} can't have {rows} rows of {row} bytes");
    }
    with(|r| {
        *r = Registers { shapes: Some(std::array::from_fn(|i| shapes[i])), rows: [[[0; BYTES]; ROWS]; TILES] };
    });
}

extern "C" fn tilerelease() {
    with(|r| *r = Registers { shapes: None, rows: [[[0; BYTES]; ROWS]; TILES] });
}

extern "C" fn tilezero(tile: u8) {
    with(|r| {
        r.shape(tile);
        r.clear(tile, 0, 0);
    });
}

/// # Safety
/// The tile's rows lie readable, `stride` bytes apart.
unsafe extern "C" fn tileloadd64(tile: u8, from: *const u8, stride: i64) {
    with(|r| {
        let (rows, bytes) = r.shape(tile);
        for row in 0..rows {
            // SAFETY: by the caller's word.
            let source = unsafe { slice::from_raw_parts(from.offset(row as isize * stride as isize), bytes) };
            r.rows[tile as usize][row][..bytes].copy_from_slice(source);
        }
        r.clear(tile, rows, bytes);
    });
}

/// # Safety
/// The tile's rows lie writable, `stride` bytes apart.
unsafe extern "C" fn tilestored64(tile: u8, to: *mut u8, stride: i64) {
    with(|r| {
        let (rows, bytes) = r.shape(tile);
        for row in 0..rows {
            // SAFETY: by the caller's word.
            let place = unsafe { slice::from_raw_parts_mut(to.offset(row as isize * stride as isize), bytes) };
            place.copy_from_slice(&r.rows[tile as usize][row][..bytes]);
        }
    });
}

/// Int8 dot products, which wrap around.
fn bytes(tiles: [u8; 3], left: fn(u8) -> i32, right: fn(u8) -> i32) {
    let [c, a, b] = tiles;
    with(|r| {
        let (rows, columns, depth) = r.product(tiles);
        for (m, n) in (0..rows).flat_map(|m| (0..columns).map(move |n| (m, n))) {
            let mut sum = i32::from_le_bytes(r.word(c, m, n));
            for k in 0..depth {
                let products = r.word(a, m, k).into_iter().zip(r.word(b, k, n)).map(|(x, y)| left(x) * right(y));
                sum = products.fold(sum, i32::wrapping_add);
            }
            r.set_word(c, m, n, sum.to_le_bytes());
        }
        r.clear(c, rows, 4 * columns);
    });
}

fn signed(byte: u8) -> i32 {
    byte as i8 as i32
}

fn unsigned(byte: u8) -> i32 {
    byte as i32
}

extern "C" fn tdpbssd(c: u8, a: u8, b: u8) {
    bytes([c, a, b], signed, signed);
}

extern "C" fn tdpbsud(c: u8, a: u8, b: u8) {
    bytes([c, a, b], signed, unsigned);
}

extern "C" fn tdpbusd(c: u8, a: u8, b: u8) {
    bytes([c, a, b], unsigned, signed);
}

extern "C" fn tdpbuud(c: u8, a: u8, b: u8) {
    bytes([c, a, b], unsigned, unsigned);
}

/// Numbers that are too small to be normal count as zero, in arguments and in results.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// Even and odd numbers are multiplied and added up apart, each step rounded once, to the nearest even; then both sums together, then to
/// what was there.
extern "C" fn tdpbf16ps(c: u8, a: u8, b: u8) {
    let halves = |w: [u8; 4]| {
        [[w[0], w[1]], [w[2], w[3]]].map(|h| flushed(f32::from_bits((u16::from_le_bytes(h) as u32) << 16)))
    };
    with(|r| {
        let (rows, columns, depth) = r.product([c, a, b]);
        for (m, n) in (0..rows).flat_map(|m| (0..columns).map(move |n| (m, n))) {
            let mut sums = [0.0f32; 2];
            for k in 0..depth {
                let (x, y) = (halves(r.word(a, m, k)), halves(r.word(b, k, n)));
                sums = [0, 1].map(|i| flushed(x[i].mul_add(y[i], sums[i])));
            }
            let before = flushed(f32::from_bits(u32::from_le_bytes(r.word(c, m, n))));
            let sum = flushed(before + flushed(sums[0] + sums[1]));
            r.set_word(c, m, n, sum.to_bits().to_le_bytes());
        }
        r.clear(c, rows, 4 * columns);
    });
}

/// The functions by the names that code calls them by, and where they are.
pub(super) fn functions() -> [(&'static CStr, usize); 10] {
    [
        (c"resat_amx_ldtilecfg", ldtilecfg as unsafe extern "C" fn(*const u8) as usize),
        (c"resat_amx_tilerelease", tilerelease as extern "C" fn() as usize),
        (c"resat_amx_tilezero", tilezero as extern "C" fn(u8) as usize),
        (c"resat_amx_tileloadd64", tileloadd64 as unsafe extern "C" fn(u8, *const u8, i64) as usize),
        (c"resat_amx_tilestored64", tilestored64 as unsafe extern "C" fn(u8, *mut u8, i64) as usize),
        (c"resat_amx_tdpbssd", tdpbssd as extern "C" fn(u8, u8, u8) as usize),
        (c"resat_amx_tdpbsud", tdpbsud as extern "C" fn(u8, u8, u8) as usize),
        (c"resat_amx_tdpbusd", tdpbusd as extern "C" fn(u8, u8, u8) as usize),
        (c"resat_amx_tdpbuud", tdpbuud as extern "C" fn(u8, u8, u8) as usize),
        (c"resat_amx_tdpbf16ps", tdpbf16ps as extern "C" fn(u8, u8, u8) as usize),
    ]
}
