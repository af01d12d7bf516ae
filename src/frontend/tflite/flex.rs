//! Maps in the flexbuffer format: options of custom operators.

/// A number of a map's, by key.
pub(super) struct Map<'a> {
    bytes: &'a [u8],
    /// Where the values are, and the width of each.
    at: usize,
    width: usize,
    keys: Vec<&'a [u8]>,
}

/// Types of values that stand for numbers.
const INT: u8 = 1;
const UINT: u8 = 2;
const FLOAT: u8 = 3;
const INDIRECT_INT: u8 = 6;
const INDIRECT_UINT: u8 = 7;
const INDIRECT_FLOAT: u8 = 8;
const MAP: u8 = 9;
const BOOL: u8 = 26;

fn unsigned(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let raw = bytes.get(at..at.checked_add(width)?)?;
    matches!(width, 1 | 2 | 4 | 8).then(|| raw.iter().rev().fold(0, |n, &b| n << 8 | b as u64))
}

fn signed(bytes: &[u8], at: usize, width: usize) -> Option<i64> {
    let shift = 64 - 8 * width as u32;
    unsigned(bytes, at, width).map(|v| ((v << shift) as i64) >> shift)
}

fn float(bytes: &[u8], at: usize, width: usize) -> Option<f64> {
    let v = unsigned(bytes, at, width)?;
    match width {
        4 => Some(f32::from_bits(v as u32) as f64),
        8 => Some(f64::from_bits(v)),
        _ => None,
    }
}

/// Follows the offset that is stored at `at`, which counts backwards.
fn follow(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    at.checked_sub(usize::try_from(unsigned(bytes, at, width)?).ok()?)
}

impl<'a> Map<'a> {
    /// The map that a buffer holds, if it is one.
    pub(super) fn of(bytes: &'a [u8]) -> Option<Map<'a>> {
        let n = bytes.len();
        let (kind, width) = (*bytes.get(n.checked_sub(2)?)?, *bytes.last()? as usize);
        if kind >> 2 != MAP {
            return None;
        }
        // The root is an offset of so many bytes, before its type and that number.
        let at = follow(bytes, n.checked_sub(2 + width)?, width)?;
        let width = 1usize << (kind & 3);
        let count = usize::try_from(unsigned(bytes, at.checked_sub(width)?, width)?).ok()?;
        let key_width = usize::try_from(unsigned(bytes, at.checked_sub(2 * width)?, width)?).ok()?;
        let keys_at = follow(bytes, at.checked_sub(3 * width)?, width)?;
        if count > n {
            return None;
        }
        let key = |i: usize| {
            let from = follow(bytes, keys_at + i * key_width, key_width)?;
            let rest = bytes.get(from..)?;
            rest.iter().position(|&b| b == 0).map(|end| &rest[..end])
        };
        let keys = (0..count).map(key).collect::<Option<Vec<_>>>()?;
        Some(Map { bytes, at, width, keys })
    }

    /// A number, if there is one of that name.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        let i = self.keys.iter().position(|k| *k == name.as_bytes())?;
        let kind = *self.bytes.get(self.at + self.keys.len() * self.width + i)?;
        let at = self.at + i * self.width;
        let wide = 1usize << (kind & 3);
        match kind >> 2 {
            INT => signed(self.bytes, at, self.width).map(|v| v as f64),
            UINT | BOOL => unsigned(self.bytes, at, self.width).map(|v| v as f64),
            FLOAT => float(self.bytes, at, self.width),
            INDIRECT_INT => signed(self.bytes, follow(self.bytes, at, self.width)?, wide).map(|v| v as f64),
            INDIRECT_UINT => unsigned(self.bytes, follow(self.bytes, at, self.width)?, wide).map(|v| v as f64),
            INDIRECT_FLOAT => float(self.bytes, follow(self.bytes, at, self.width)?, wide),
            _ => None,
        }
    }
}
