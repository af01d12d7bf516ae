//! Tensors of a model file.

use std::{
    cell::RefCell,
    path::{Component, Path},
    sync::Arc,
};

use hashbrown::HashMap;

use super::{
    elem::Elem,
    proto::{SparseTensorProto, TensorProto},
};
use crate::{
    runtime::MappedFile,
    tensor::{DType, Tensor, row_major_strides},
};

/// Where a tensor's data is that the model refers to.
const EXTERNAL: i32 = 1;

/// The element type and value of a tensor. `files` are those beside the model. Messages lack the tensor's name.
pub(super) fn read(t: &TensorProto, files: &Files) -> Result<(Elem, Tensor), String> {
    let elem =
        Elem::of(t.data_type).ok_or_else(|| format!("has elements of type {}, which is not supported", t.data_type))?;
    let shape = extents(&t.dims)?;
    let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|n| *n <= isize::MAX as usize / 16);
    let count = count.ok_or_else(|| format!("has the shape {shape:?}, which no memory holds"))?;
    if t.data_location == EXTERNAL {
        let wanted = (count * elem.bits()).div_ceil(8);
        let (file, at) = files.data(t, wanted)?;
        let part = &(*file).as_ref()[at..at + wanted];
        return match elem {
            // What lies as a tensor does stays where it is.
            Elem::Plain(d) if d != DType::Bool && cfg!(target_endian = "little") && Tensor::may_lie_at(part) => {
                Ok((elem, Tensor::from_part(d, &shape, file, at).map_err(|e| e.to_string())?))
            }
            _ => Ok((elem, raw(elem, &shape, count, part, Some(&file))?)),
        };
    }
    if elem == Elem::Text {
        return Ok((elem, texts(&shape, count, &t.string_data)?));
    }
    if let Some(bytes) = &t.raw_data {
        return Ok((elem, raw(elem, &shape, count, bytes, files.model.as_deref())?));
    }
    let check = |given: usize| match given == count {
        true => Ok(()),
        false => Err(format!("has {given} elements, but its shape {shape:?} takes {count}")),
    };
    let storage = elem.storage();
    let tensor = match (elem, storage) {
        (Elem::Small(s), _) if s.bits() < 8 => {
            // Elements are packed, and each number holds the bits of a byte.
            let packed: Vec<u8> = t.int32_data.iter().map(|&v| v as u8).collect();
            raw(elem, &shape, count, &packed, None)?
        }
        (_, DType::F32) => {
            check(t.float_data.len())?;
            Tensor::from_slice(&shape, &t.float_data)
        }
        (_, DType::F64) => {
            check(t.double_data.len())?;
            Tensor::from_slice(&shape, &t.double_data)
        }
        (_, DType::I64) => {
            check(t.int64_data.len())?;
            Tensor::from_slice(&shape, &t.int64_data)
        }
        (_, DType::U64 | DType::U32) => {
            check(t.uint64_data.len())?;
            Tensor::from_i64_fn(storage, &shape, |i| t.uint64_data[i] as i64)
        }
        // Floats of two bytes are given by their bits.
        (_, DType::F16 | DType::BF16) => {
            check(t.int32_data.len())?;
            Tensor::from_i64_fn(DType::U16, &shape, |i| t.int32_data[i].into()).reinterpreted(storage)
        }
        _ => {
            check(t.int32_data.len())?;
            Tensor::from_i64_fn(storage, &shape, |i| t.int32_data[i].into())
        }
    };
    Ok((elem, tensor))
}

/// A tensor of which what is not zero is given.
pub(super) fn read_sparse(t: &SparseTensorProto, files: &Files) -> Result<(Elem, Tensor), String> {
    let (Some(values), Some(indices)) = (&t.values, &t.indices) else {
        return Err("is sparse and lacks values or indices".into());
    };
    let ((elem, values), (_, indices)) = (read(values, files)?, read(indices, files)?);
    let shape = extents(&t.dims)?;
    let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n <= 1 << 32);
    let count = count.ok_or_else(|| format!("has the shape {shape:?}, which is too large for a sparse tensor"))?;
    if elem == Elem::Text || indices.dtype() != DType::I64 {
        return Err("is sparse and has text or indices other than int64".into());
    }
    let n = values.len();
    let places = indices.to_i64_vec();
    let per_entry = if indices.shape().len() == 2 { shape.len() } else { 1 };
    if n.checked_mul(per_entry) != Some(places.len()) {
        return Err(format!("is sparse, with {n} values and {} indices", places.len()));
    }
    let strides = row_major_strides(&shape);
    let mut source = hashbrown::HashMap::new();
    for k in 0..n {
        let entry = &places[k * per_entry..(k + 1) * per_entry];
        let at = match indices.shape().len() == 2 {
            true => {
                let fits = entry.iter().zip(&shape).all(|(&i, &d)| i >= 0 && (i as usize) < d);
                fits.then(|| entry.iter().zip(&strides).map(|(&i, &s)| i as usize * s).sum())
            }
            false => usize::try_from(entry[0]).ok().filter(|&i| i < count),
        };
        source.insert(at.ok_or("is sparse, and an index is out of its shape")?, k);
    }
    Ok((elem, values.pick(&shape, |i| source.get(&i).copied())))
}

fn extents(dims: &[i64]) -> Result<Vec<usize>, String> {
    dims.iter().map(|&d| usize::try_from(d).map_err(|_| format!("has a negative extent: {dims:?}"))).collect()
}

/// A tensor of bytes of a file, which is given where it is mapped.
fn raw(elem: Elem, shape: &[usize], count: usize, bytes: &[u8], mapped: Option<&MappedFile>) -> Result<Tensor, String> {
    let bits = elem.bits();
    let wanted = count.checked_mul(bits).map(|n| n.div_ceil(8));
    if wanted != Some(bytes.len()) || elem == Elem::Text {
        return Err(format!(
            "has {} bytes of data, but {} of shape {shape:?} take another number",
            bytes.len(),
            elem.name()
        ));
    }
    if bits < 8 {
        let per = 8 / bits;
        let mask = (1u8 << bits) - 1;
        let unpacked: Vec<u8> = (0..count).map(|i| bytes[i / per] >> (i % per * bits) & mask).collect();
        return Ok(Tensor::from_slice(shape, &unpacked));
    }
    if elem == Elem::Plain(DType::Bool) {
        let bools: Vec<bool> = bytes.iter().map(|&b| b != 0).collect();
        return Ok(Tensor::from_bools(shape, &bools));
    }
    let Some(mapped) = mapped else {
        return Tensor::from_bytes(elem.storage(), shape, bytes).map_err(|e| e.to_string());
    };
    let mut tensor = Tensor::zeros(elem.storage(), shape);
    mapped.copy_out(bytes, tensor.bytes_mut());
    Ok(tensor)
}

/// Texts, as code points along an innermost axis as long as the longest.
fn texts(shape: &[usize], count: usize, data: &[Vec<u8>]) -> Result<Tensor, String> {
    if data.len() != count {
        return Err(format!("has {} strings, but its shape {shape:?} takes {count}", data.len()));
    }
    let all: Vec<Vec<u32>> = data
        .iter()
        .map(|s| std::str::from_utf8(s).map(|s| s.chars().map(u32::from).collect()))
        .collect::<Result<_, _>>()
        .map_err(|_| "has a string that is not UTF-8".to_owned())?;
    Ok(of_points(shape, &all))
}

/// A text tensor of those lines of code points.
pub(super) fn of_points(shape: &[usize], all: &[Vec<u32>]) -> Tensor {
    let longest = all.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let mut points = vec![0u32; all.len() * longest];
    for (row, text) in points.chunks_exact_mut(longest).zip(all) {
        row[..text.len()].copy_from_slice(text);
    }
    let shape: Vec<usize> = shape.iter().copied().chain([longest]).collect();
    Tensor::from_slice(&shape, &points)
}

/// Files that tensors have their data in: the model, and others beside it, within its folder. Each is mapped once, and stays as long as a tensor of it.
pub(super) struct Files<'a> {
    /// The model's, where it is mapped.
    model: Option<Arc<MappedFile>>,
    folder: Option<&'a Path>,
    open: RefCell<HashMap<String, Arc<MappedFile>>>,
}

impl<'a> Files<'a> {
    /// Those of a model's folder; none where the model is not read from a file.
    pub(super) fn of(folder: Option<&'a Path>) -> Files<'a> {
        Files { model: None, folder, open: RefCell::default() }
    }

    /// Those of a model whose file is mapped.
    pub(super) fn of_mapped(model: Arc<MappedFile>, folder: &'a Path) -> Files<'a> {
        Files { model: Some(model), folder: Some(folder), open: RefCell::default() }
    }

    /// A file by its path from the folder.
    fn open(&self, place: &str) -> Result<Arc<MappedFile>, String> {
        if let Some(found) = self.open.borrow().get(place) {
            return Ok(found.clone());
        }
        let folder = self.folder.ok_or("has its data in another file, but the model is not read from a file")?;
        let path = Path::new(place);
        if path.components().any(|c| !matches!(c, Component::Normal(_) | Component::CurDir)) {
            return Err(format!("has its data in `{place}`, which is not within the model's folder"));
        }
        let failed = |e: std::io::Error| format!("has its data in `{place}`: {e}");
        let (inside, path) =
            (std::fs::canonicalize(folder).map_err(failed)?, std::fs::canonicalize(folder.join(path)).map_err(failed)?);
        if !path.starts_with(&inside) {
            return Err(format!("has its data in `{place}`, a link that leads out of the model's folder"));
        }
        // Mapping asks of a file that it is one, and not a pipe or a folder.
        if !std::fs::metadata(&path).map_err(failed)?.is_file() {
            return Err(format!("has its data in `{place}`, which is no regular file"));
        }
        let file = Arc::new(MappedFile::open(&path).map_err(failed)?);
        self.open.borrow_mut().insert(place.to_owned(), file.clone());
        Ok(file)
    }

    /// The file that a tensor has its data in, and where the data begin, which take so many bytes.
    fn data(&self, t: &TensorProto, wanted: usize) -> Result<(Arc<MappedFile>, usize), String> {
        let entry = |key: &str| t.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(v) => v.parse::<u64>().map(Some).map_err(|_| format!("says that its data's {key} is `{v}`")),
        };
        let place = entry("location").ok_or("does not say where its data is")?;
        let file = self.open(place)?;
        let size = (*file).as_ref().len() as u64;
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?.unwrap_or(wanted as u64));
        if length != wanted as u64 || offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(format!(
                "takes {wanted} bytes, but `{place}` has {size} and it should have {length} from {offset} on"
            ));
        }
        // It is at most the file's length, which is that of memory.
        Ok((file, offset as usize))
    }
}
