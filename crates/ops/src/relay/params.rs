//! Relay's binary parameter files: named arrays, as `tvm.runtime.save_param_dict` writes them.
//!
//! Little endian throughout: magic, a reserved word, the names (count, then length and bytes of each), the number of
//! arrays, then per array a record of magic, reserved word, device, rank, element type, extents, byte count and data.

use std::io::Read;

use hashbrown::HashSet;

use crate::{
    diag::{Diagnostic, Refused},
    ir::Name,
    tensor::{DType, Tensor},
};

const FILE_MAGIC: u64 = 0xF7E5_8D4F_0504_9CB7;
const ARRAY_MAGIC: u64 = 0xDD5E_40F0_96B4_A13F;

/// DLPack's element type codes.
mod code {
    pub(super) const INT: u8 = 0;
    pub(super) const UINT: u8 = 1;
    pub(super) const FLOAT: u8 = 2;
    pub(super) const BFLOAT: u8 = 4;
    pub(super) const BOOL: u8 = 6;
}

/// DLPack's device type of main memory.
const CPU: i32 = 1;

/// What numpy and TVM can address; a larger rank is taken for damage.
const MAX_RANK: usize = 64;

/// Reads a parameter file. `name` is the file's, for messages.
///
/// Damage of any kind (a wrong magic number, truncation at any byte, sizes that contradict each other, names given twice,
/// bytes left over) is refused with the offset where it shows. No size that the file states is trusted: memory is taken
/// only for bytes that are there.
pub fn read(name: &str, bytes: &[u8]) -> Result<Vec<(Name, Tensor)>, Refused> {
    read_from(name, bytes, bytes.len() as u64)
}

/// As [`read`], from something that has so many bytes. Each array's data goes straight to where it stays.
pub fn read_from(name: &str, from: impl Read, length: u64) -> Result<Vec<(Name, Tensor)>, Refused> {
    Reader { file: name, from, at: 0, end: length }.file()
}

/// A parameter file of the given arrays, in the given order.
pub fn write<'a>(params: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Vec<u8> {
    let params: Vec<(&str, &Tensor)> = params.into_iter().collect();
    let size: usize = params.iter().map(|(n, t)| n.len() + t.bytes().len() + 8 * t.shape().len() + 56).sum();
    let mut out = Vec::with_capacity(size + 32);
    for word in [FILE_MAGIC, 0, params.len() as u64] {
        out.extend(word.to_le_bytes());
    }
    for (name, _) in &params {
        out.extend((name.len() as u64).to_le_bytes());
        out.extend(name.as_bytes());
    }
    out.extend((params.len() as u64).to_le_bytes());
    for (_, tensor) in &params {
        write_array(tensor, &mut out);
    }
    out
}

/// Appends one array's record: the form that Relay JSON embeds too.
pub fn write_array(t: &Tensor, out: &mut Vec<u8>) {
    for word in [ARRAY_MAGIC, 0] {
        out.extend(word.to_le_bytes());
    }
    for word in [CPU, 0, t.shape().len() as i32] {
        out.extend(word.to_le_bytes());
    }
    let code = match t.dtype() {
        DType::Bool => code::UINT,
        DType::BF16 => code::BFLOAT,
        d if d.is_float() => code::FLOAT,
        d if d.is_signed_int() => code::INT,
        _ => code::UINT,
    };
    out.extend([code, t.dtype().bits() as u8]);
    out.extend(1u16.to_le_bytes());
    for &extent in t.shape() {
        out.extend((extent as i64).to_le_bytes());
    }
    out.extend((t.bytes().len() as i64).to_le_bytes());
    out.extend_from_slice(t.bytes());
}

/// Reads one array's record that takes all of `bytes`. `name` says what it is, for messages.
pub fn read_array(name: &str, bytes: &[u8]) -> Result<Tensor, Refused> {
    let mut reader = Reader { file: name, from: bytes, at: 0, end: bytes.len() as u64 };
    let tensor = reader.array("the array")?;
    reader.end()?;
    Ok(tensor)
}

struct Reader<'a, R> {
    file: &'a str,
    from: R,
    at: u64,
    /// How many bytes there are.
    end: u64,
}

impl<R: Read> Reader<'_, R> {
    fn refuse<T>(&self, message: impl std::fmt::Display) -> Result<T, Refused> {
        Err(Diagnostic::new(format!("{}: {message}, at byte {}", self.file, self.at)).into())
    }

    /// Whether so many bytes are there: memory is taken for no more.
    fn has(&self, n: u64, what: &str) -> Result<(), Refused> {
        let left = self.end - self.at;
        match n <= left {
            true => Ok(()),
            false => self.refuse(format_args!("the file ends within {what}: {n} bytes are wanted, {left} are left")),
        }
    }

    fn fill(&mut self, to: &mut [u8], what: &str) -> Result<(), Refused> {
        self.has(to.len() as u64, what)?;
        if let Err(e) = self.from.read_exact(to) {
            return self.refuse(format_args!("{what} can't be read: {e}"));
        }
        self.at += to.len() as u64;
        Ok(())
    }

    fn take(&mut self, n: u64, what: &str) -> Result<Vec<u8>, Refused> {
        self.has(n, what)?;
        let mut taken = vec![0; n as usize];
        self.fill(&mut taken, what)?;
        Ok(taken)
    }

    fn word<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Refused> {
        let mut word = [0; N];
        self.fill(&mut word, what)?;
        Ok(word)
    }

    fn u64(&mut self, what: &str) -> Result<u64, Refused> {
        Ok(u64::from_le_bytes(self.word(what)?))
    }

    fn i32(&mut self, what: &str) -> Result<i32, Refused> {
        Ok(i32::from_le_bytes(self.word(what)?))
    }

    fn end(&self) -> Result<(), Refused> {
        match self.end - self.at {
            0 => Ok(()),
            left => self.refuse(format_args!("{left} bytes are left over after the last array")),
        }
    }

    fn file(mut self) -> Result<Vec<(Name, Tensor)>, Refused> {
        let magic = self.u64("the magic number")?;
        if magic != FILE_MAGIC {
            self.at = 0;
            return self.refuse(format_args!(
                "not a Relay parameter file: it starts with {magic:#018x}, not {FILE_MAGIC:#018x}"
            ));
        }
        self.u64("the reserved word")?;
        let names = self.names()?;
        let count = self.u64("the number of arrays")?;
        if count != names.len() as u64 {
            return self.refuse(format_args!("{} names are given for {count} arrays", names.len()));
        }
        let mut params = Vec::with_capacity(names.len());
        for name in names {
            let tensor = self.array(&format!("parameter `{name}`"))?;
            params.push((name, tensor));
        }
        self.end()?;
        Ok(params)
    }

    fn names(&mut self) -> Result<Vec<Name>, Refused> {
        let count = self.u64("the number of names")?;
        // A name takes eight bytes at least, so a larger count is damage; found here, it is not reported as truncation.
        let most = (self.end - self.at) / 8;
        if count > most {
            return self.refuse(format_args!("{count} names are announced, where the file has room for {most}"));
        }
        let mut names = Vec::with_capacity(count as usize);
        let mut seen = HashSet::new();
        for i in 0..count {
            let len = self.u64("the length of a name")?;
            let Ok(name) = String::from_utf8(self.take(len, "a name")?) else {
                return self.refuse(format_args!("name {i} is not UTF-8"));
            };
            let name = Name::from(name);
            if !seen.insert(name.clone()) {
                return self.refuse(format_args!("parameter `{name}` is given twice"));
            }
            names.push(name);
        }
        Ok(names)
    }

    fn array(&mut self, what: &str) -> Result<Tensor, Refused> {
        let magic = self.u64(what)?;
        if magic != ARRAY_MAGIC {
            return self.refuse(format_args!("{what} starts with {magic:#018x}, not {ARRAY_MAGIC:#018x}"));
        }
        self.u64(what)?;
        // The device that the array lived on: TVM writes main memory, and only the data matters.
        self.u64(what)?;
        let rank = self.i32(what)?;
        let Some(rank) = usize::try_from(rank).ok().filter(|&r| r <= MAX_RANK) else {
            return self.refuse(format_args!("{what} has {rank} axes"));
        };
        let [code, bits] = self.word(what)?;
        let lanes = u16::from_le_bytes(self.word(what)?);
        let Some(dtype) = dtype_of(code, bits).filter(|_| lanes == 1) else {
            return self
                .refuse(format_args!("{what} has an unknown element type (code {code}, {bits} bits, {lanes} lanes)"));
        };
        let mut shape = Vec::with_capacity(rank);
        for _ in 0..rank {
            let extent = i64::from_le_bytes(self.word(what)?);
            match usize::try_from(extent) {
                Ok(extent) => shape.push(extent),
                Err(_) => return self.refuse(format_args!("{what} has an extent of {extent}")),
            }
        }
        let stated = i64::from_le_bytes(self.word(what)?);
        let wanted = shape.iter().fold(dtype.bytes() as u128, |n, &d| n.saturating_mul(d as u128));
        if u128::try_from(stated) != Ok(wanted) {
            return self
                .refuse(format_args!("{what} states {stated} bytes, where {dtype} of shape {shape:?} takes {wanted}"));
        }
        self.has(stated as u64, what)?;
        let made = match stated {
            0 => Tensor::from_bytes(dtype, &shape, &[]),
            _ => Ok(Tensor::zeros(dtype, &shape)),
        };
        let mut t = made.or_else(|e| self.refuse(format_args!("{what}: {e}")))?;
        self.fill(t.bytes_mut(), what)?;
        Ok(if dtype == DType::Bool { with_plain_bools(t) } else { t })
    }
}

fn dtype_of(code: u8, bits: u8) -> Option<DType> {
    match (code, bits) {
        (code::UINT, 1) | (code::BOOL, 1 | 8) => Some(DType::Bool),
        (code::BFLOAT, 16) => Some(DType::BF16),
        (code, bits) => DType::ALL.into_iter().find(|d| {
            d.bits() == bits as u32
                && match code {
                    code::INT => d.is_signed_int(),
                    code::UINT => d.is_unsigned_int(),
                    code::FLOAT => d.is_float() && *d != DType::BF16,
                    _ => false,
                }
        }),
    }
}

/// Any non-zero byte of a file counts as true; in memory true is 1.
pub(super) fn with_plain_bools(mut t: Tensor) -> Tensor {
    if t.bytes().iter().any(|&b| b > 1) {
        t.bytes_mut().iter_mut().for_each(|b| *b = (*b != 0) as u8);
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<(String, Tensor)> {
        let shapes: [&[usize]; 4] = [&[], &[3], &[2, 0, 4], &[2, 3]];
        let name = |d: DType, shape: &[usize]| format!("{d}.{}", shape.len());
        let make = |d, shape| (name(d, shape), Tensor::from_i64_fn(d, shape, |i| i as i64 % 2));
        DType::ALL.into_iter().flat_map(|d| shapes.map(|shape| make(d, shape))).collect()
    }

    fn written(params: &[(String, Tensor)]) -> Vec<u8> {
        write(params.iter().map(|(n, t)| (n.as_str(), t)))
    }

    #[test]
    fn every_dtype_survives() {
        let params = one_of_each();
        let back = read("p", &written(&params)).expect("what was written is read");
        assert_eq!(back.len(), params.len());
        for ((n, t), (m, u)) in params.iter().zip(&back) {
            assert_eq!((n.as_str(), t), (m.as_str(), u));
        }
    }

    #[test]
    fn the_layout_is_relays() {
        let bytes = write([("w", &Tensor::from_bools(&[2], &[true, false]))]);
        let mut want: Vec<u8> = Vec::new();
        want.extend(0xF7E58D4F05049CB7u64.to_le_bytes());
        want.extend([0; 8]);
        want.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'w', 1, 0, 0, 0, 0, 0, 0, 0]);
        want.extend(0xDD5E40F096B4A13Fu64.to_le_bytes());
        want.extend([0; 8]);
        want.extend([1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0]);
        want.extend([2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(bytes, want);
    }

    #[test]
    fn truncation_anywhere_is_refused() {
        let bytes = written(&one_of_each());
        for end in 0..bytes.len() {
            let refused = read("p", &bytes[..end]).expect_err("a part is not a file");
            assert!(refused.to_string().contains("p: "), "{refused}");
        }
    }

    #[test]
    fn damage_anywhere_does_not_panic() {
        let bytes = write([("a", &Tensor::scalar(1.5f32)), ("b", &Tensor::from_slice(&[2], &[1i64, 2]))]);
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = bytes.clone();
                bad[at] = value;
                let _ = read("p", &bad);
            }
        }
    }

    #[test]
    fn messages_say_what_is_wrong() {
        let message = |bytes: &[u8]| read("w.params", bytes).expect_err("damaged").to_string();
        assert!(message(b"not a parameter file").starts_with("w.params: not a Relay parameter file"));
        let good = write([("a", &Tensor::scalar(1.5f32))]);
        let mut many = good.clone();
        many[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(message(&many).contains("names are announced"), "{}", message(&many));
        let mut more = good.clone();
        more.push(0);
        assert!(message(&more).contains("1 bytes are left over"));
        let t = Tensor::scalar(1.5f32);
        assert!(message(&write([("a", &t), ("a", &t)])).contains("parameter `a` is given twice"));
        let mut empty = write([("a", &Tensor::zeros(DType::F32, &[1, 1, 0]))]);
        let at = empty.len() - 8 - 24;
        empty[at..at + 8].copy_from_slice(&i64::MAX.to_le_bytes());
        empty[at + 8..at + 16].copy_from_slice(&i64::MAX.to_le_bytes());
        assert!(message(&empty).contains("parameter `a`"), "{}", message(&empty));
        let mut huge = write([("a", &Tensor::from_slice(&[1], &[1.5f32]))]);
        let at = huge.len() - 4 - 16;
        huge[at..at + 8].copy_from_slice(&i64::MAX.to_le_bytes());
        assert!(message(&huge).contains("states 4 bytes"), "{}", message(&huge));
    }
}
