//! numpy's `.npz` archives: the inputs and outputs of runs.

use std::io::{Cursor, Read, Write};

use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

use super::params::with_plain_bools;
use crate::{
    diag::{Diagnostic, Refused},
    ir::Name,
    tensor::{DType, Tensor, row_major_strides},
};

const NPY_MAGIC: &[u8] = b"\x93NUMPY";

/// numpy pads headers so that the data starts on a multiple of this.
const NPY_ALIGN: usize = 64;

/// Deflate can't shrink data by more than this; an entry that claims more is damaged.
const DEFLATE_LIMIT: u64 = 1032;

/// Reads every array of an archive, in its order, under the entry's name without `.npy`.
///
/// Both byte orders and both axis orders are taken, stored or deflated. Strings come as `uint32`: an innermost axis of
/// their code points. Other numpy types that Relay does not have are refused.
/// `name` is the file's, for messages.
pub fn read(name: &str, bytes: &[u8]) -> Result<Vec<(Name, Tensor)>, Refused> {
    let refuse = |message: String| Refused::from(Diagnostic::new(format!("{name}: {message}")));
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| refuse(format!("not an npz archive: {e}")))?;
    let mut arrays: Vec<(Name, Tensor)> = Vec::new();
    let mut left = (bytes.len() as u64).saturating_mul(DEFLATE_LIMIT);
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(|e| refuse(format!("entry {i}: {e}")))?;
        let key = entry.name().to_owned();
        let key = key.strip_suffix(".npy").unwrap_or(&key);
        let size = entry.size();
        // All entries count: they may be made to overlap.
        let Some(rest) = left.checked_sub(size) else {
            return Err(refuse(format!("array `{key}` claims {size} bytes, which can't be")));
        };
        left = rest;
        let mut npy = Vec::with_capacity(bytes.len().min(size as usize));
        entry.by_ref().take(size).read_to_end(&mut npy).map_err(|e| refuse(format!("array `{key}`: {e}")))?;
        let tensor = read_npy(&npy).map_err(|e| refuse(format!("array `{key}`: {e}")))?;
        if arrays.iter().any(|(n, _)| n.as_str() == key) {
            return Err(refuse(format!("array `{key}` is given twice")));
        }
        arrays.push((key.into(), tensor));
    }
    Ok(arrays)
}

/// An archive of the given arrays, uncompressed. numpy has no `bfloat16`: such arrays become `uint16`, of the same bits, which
/// [`as_element`] takes back.
pub fn write<'a>(arrays: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<Vec<u8>, Refused> {
    write_with_texts(arrays, &[])
}

/// The same, where arrays of those names hold text: code points along their innermost axis, as numpy's strings.
///
/// # Errors
/// As [`write`].
pub fn write_with_texts<'a>(
    arrays: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    texts: &[String],
) -> Result<Vec<u8>, Refused> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let mut add = |name: &str, t: &Tensor| -> Result<(), String> {
        let text = texts.iter().any(|n| n == name) && t.dtype() == DType::U32;
        let header = npy_header(t, text)?;
        let big = t.bytes().len() as u64 + header.len() as u64 >= u32::MAX as u64;
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(big);
        zip.start_file(format!("{name}.npy"), options).map_err(|e| e.to_string())?;
        zip.write_all(&header).and_then(|()| zip.write_all(t.bytes())).map_err(|e| e.to_string())
    };
    for (name, t) in arrays {
        add(name, t).map_err(|e| Diagnostic::new(format!("array `{name}` can't be written as npz: {e}")))?;
    }
    let done = zip.finish().map_err(|e| Diagnostic::new(format!("the npz archive can't be finished: {e}")))?;
    Ok(done.into_inner())
}

/// An array as one of the wanted element type where it holds the bits of one: `uint16` stands for `bfloat16`. Others stay.
pub fn as_element(t: Tensor, wanted: DType) -> Tensor {
    match (t.dtype(), wanted) {
        (DType::U16, DType::BF16) => t.reinterpreted(wanted),
        _ => t,
    }
}

fn npy_header(t: &Tensor, text: bool) -> Result<Vec<u8>, String> {
    // Of text, the innermost axis is a part of the type.
    let (shape, length) = match t.shape().split_last() {
        Some((&length, shape)) if text => (shape, Some(length)),
        _ => (t.shape(), None),
    };
    let kind = match t.dtype() {
        DType::BF16 => 'u',
        DType::Bool => 'b',
        d if d.is_float() => 'f',
        d if d.is_signed_int() => 'i',
        _ => 'u',
    };
    let order = if t.dtype().bytes() == 1 { '|' } else { '<' };
    let extents: String = shape.iter().map(|d| format!("{d}, ")).collect();
    let shape = if shape.len() == 1 { extents.trim_end() } else { extents.trim_end_matches(", ") };
    let (kind, size) = length.map_or((kind, t.dtype().bytes()), |length| ('U', length));
    let dict = format!("{{'descr': '{order}{kind}{size}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Magic, version and length take ten bytes, the closing newline one.
    let padding = (dict.len() + 11).next_multiple_of(NPY_ALIGN) - dict.len() - 11;
    let len = u16::try_from(dict.len() + padding + 1).map_err(|_| "it has too many axes".to_owned())?;
    let mut header = [NPY_MAGIC, &[1, 0], &len.to_le_bytes(), dict.as_bytes()].concat();
    header.resize(header.len() + padding, b' ');
    header.push(b'\n');
    Ok(header)
}

/// What an `.npy` header says.
struct Header {
    dtype: DType,
    big_endian: bool,
    fortran: bool,
    shape: Vec<usize>,
}

fn read_npy(bytes: &[u8]) -> Result<Tensor, String> {
    let rest = bytes.strip_prefix(NPY_MAGIC).ok_or("not in numpy's npy format")?;
    let (len, rest) = match rest {
        [1, _, a, b, rest @ ..] => (u16::from_le_bytes([*a, *b]) as usize, rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err("not of a known npy version".to_owned()),
    };
    let (text, data) = rest.split_at_checked(len).ok_or("it ends within its header")?;
    let text = std::str::from_utf8(text).map_err(|_| "its header is not text")?;
    let h = HeaderParser { rest: text }.header()?;
    let t = match (h.big_endian, h.fortran && h.shape.len() > 1) {
        (false, false) => Tensor::from_bytes(h.dtype, &h.shape, data),
        (big, fortran) => {
            let mut data = data.to_vec();
            if big {
                data.chunks_exact_mut(h.dtype.bytes()).for_each(<[u8]>::reverse);
            }
            let shape: Vec<usize> = if fortran { h.shape.iter().rev().copied().collect() } else { h.shape.clone() };
            Tensor::from_bytes(h.dtype, &shape, &data).map(|t| if fortran { axes_reversed(&t) } else { t })
        }
    }
    .map_err(|e| e.to_string())?;
    Ok(if h.dtype == DType::Bool { with_plain_bools(t) } else { t })
}

/// The transpose that reverses all axes.
fn axes_reversed(t: &Tensor) -> Tensor {
    let shape: Vec<usize> = t.shape().iter().rev().copied().collect();
    let size = t.dtype().bytes();
    // Stepping the output's last axis steps the input's first.
    let steps: Vec<usize> = row_major_strides(t.shape()).iter().rev().copied().collect();
    let mut out = Tensor::zeros(t.dtype(), &shape);
    let from = t.bytes();
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    for to in out.bytes_mut().chunks_exact_mut(size) {
        to.copy_from_slice(&from[at * size..(at + 1) * size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            at += steps[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= steps[axis] * shape[axis];
            index[axis] = 0;
        }
    }
    out
}

/// Reads the one form of Python dictionary that numpy writes: three keys; a string, a bool and a tuple of integers.
struct HeaderParser<'a> {
    rest: &'a str,
}

impl<'a> HeaderParser<'a> {
    fn header(&mut self) -> Result<Header, String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.want("{")?;
        while !self.take("}") {
            match self.string()? {
                "descr" => {
                    self.want(":")?;
                    descr = Some(self.string().map_err(|_| "its elements are records, which Relay does not have")?);
                }
                "fortran_order" => {
                    self.want(":")?;
                    fortran = Some(self.take("True"));
                    if fortran == Some(false) {
                        self.want("False")?;
                    }
                }
                "shape" => {
                    self.want(":")?;
                    shape = Some(self.extents()?);
                }
                key => return Err(format!("its header has an unknown key `{key}`")),
            }
            if !self.take(",") {
                self.want("}")?;
                break;
            }
        }
        let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
            return Err("its header lacks one of descr, fortran_order and shape".to_owned());
        };
        // Strings are code points, filled up with zeros: an innermost axis of their own.
        if let Some(length) =
            descr.strip_prefix(['<', '>', '=']).and_then(|d| d.strip_prefix('U')).and_then(|n| n.parse().ok())
        {
            if fortran && shape.len() > 1 {
                return Err("it holds strings in Fortran's order, which is not supported".to_owned());
            }
            let shape = shape.into_iter().chain([length]).collect();
            return Ok(Header { dtype: DType::U32, big_endian: descr.starts_with('>'), fortran: false, shape });
        }
        let (dtype, big_endian) = element(descr).ok_or_else(|| format!("Relay has no element type `{descr}`"))?;
        Ok(Header { dtype, big_endian, fortran, shape })
    }

    fn take(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn want(&mut self, token: &str) -> Result<(), String> {
        match self.take(token) {
            true => Ok(()),
            false => Err(format!("its header is damaged: `{token}` is wanted before `{:.20}`", self.rest)),
        }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let quote = if self.take("\"") { '"' } else { '\'' };
        if quote == '\'' {
            self.want("'")?;
        }
        let (text, rest) = self.rest.split_once(quote).ok_or("its header is damaged: a string does not end")?;
        self.rest = rest;
        Ok(text)
    }

    fn extents(&mut self) -> Result<Vec<usize>, String> {
        let mut shape = Vec::new();
        self.want("(")?;
        while !self.take(")") {
            self.rest = self.rest.trim_start();
            let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
            let (digits, rest) = self.rest.split_at(end);
            // Python 2 wrote long integers with an L.
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
            shape.push(digits.parse().map_err(|_| format!("its header has an extent `{digits}`"))?);
            if !self.take(",") {
                self.want(")")?;
                break;
            }
        }
        Ok(shape)
    }
}

/// The element type of a numpy type string such as `<f4`, and whether it is big-endian.
fn element(descr: &str) -> Option<(DType, bool)> {
    let (order, kind) = match descr.strip_prefix(['<', '>', '|', '=']) {
        Some(kind) => (descr.as_bytes()[0], kind),
        None => (b'=', descr),
    };
    let dtype = match kind {
        "b1" | "?" => DType::Bool,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        _ => return None,
    };
    Some((dtype, order == b'>'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        [NPY_MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes(), data].concat()
    }

    #[test]
    fn every_numpy_type_survives() {
        let shapes: [&[usize]; 4] = [&[], &[3], &[2, 0, 1], &[2, 3]];
        let arrays: Vec<(String, Tensor)> = DType::ALL
            .into_iter()
            .flat_map(|d| shapes.map(|s| (format!("{d}.{}", s.len()), Tensor::from_i64_fn(d, s, |i| i as i64 % 2))))
            .collect();
        let bytes = write(arrays.iter().map(|(n, t)| (n.as_str(), t))).expect("numpy has these types");
        let back = read("a.npz", &bytes).expect("what was written is read");
        assert_eq!(back.len(), arrays.len());
        for ((n, t), (m, u)) in arrays.iter().zip(&back) {
            assert_eq!((n.as_str(), t), (m.as_str(), &as_element(u.clone(), t.dtype())));
        }
    }

    #[test]
    fn headers_are_numpys() {
        let header =
            |t: &Tensor| String::from_utf8_lossy(&npy_header(t, false).expect("numpy has the type")[10..]).into_owned();
        let t = Tensor::from_slice(&[2], &[1.0f32, 2.0]);
        assert_eq!(header(&t).trim_end(), "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }");
        assert_eq!((header(&t).len() + 10) % NPY_ALIGN, 0);
        let t = Tensor::from_bools(&[1, 2], &[true, false]);
        assert_eq!(header(&t).trim_end(), "{'descr': '|b1', 'fortran_order': False, 'shape': (1, 2), }");
        let t = Tensor::scalar(1u8);
        assert_eq!(header(&t).trim_end(), "{'descr': '|u1', 'fortran_order': False, 'shape': (), }");
    }

    #[test]
    fn fortran_and_big_endian_are_put_in_order() {
        let header = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }\n";
        let t = read_npy(&npy(header, &[0, 0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5])).expect("a legal array");
        assert_eq!((t.shape(), t.as_slice::<i16>()), ([2, 3].as_slice(), [0, 1, 2, 3, 4, 5].as_slice()));
        let header = "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }";
        let data: Vec<u8> = (0..24).map(|i| (i % 2 * 12 + i / 2 % 3 * 4 + i / 6) as u8).collect();
        let t = read_npy(&npy(header, &data)).expect("a legal array");
        assert_eq!(t.to_i64_vec(), (0..24).collect::<Vec<i64>>());
    }

    #[test]
    fn what_can_not_be_is_refused() {
        assert!(read("a.npz", b"").expect_err("empty").to_string().starts_with("a.npz: not an npz archive"));
        let refused = |header: &str| read_npy(&npy(header, &[0; 8])).expect_err("refused");
        assert!(refused("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }").contains("`<c8`"));
        assert!(refused("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }").contains("records"));
        assert!(refused("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }").contains("8 bytes given"));
        assert!(
            refused("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999, 9999999999), }")
                .contains("8 bytes given")
        );
        assert!(refused("{'descr': '<f4', ").contains("damaged"));
        assert!(refused(&"(".repeat(60000)).contains("damaged"));
    }

    #[test]
    fn truncation_and_damage_do_not_panic() {
        let bytes = write([("x", &Tensor::from_slice(&[2], &[1.0f32, 2.0]))]).expect("numpy has the type");
        for end in 0..bytes.len() {
            assert!(read("x", &bytes[..end]).is_err());
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = bytes.clone();
                bad[at] = value;
                let _ = read("x", &bad);
            }
        }
    }
}
