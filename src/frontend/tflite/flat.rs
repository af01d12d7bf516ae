//! Tables of a flatbuffer: what a field's slot holds, and whether the whole buffer is well formed.
//!
//! The `flatbuffers` crate's verifier says whether every offset, vector and string lies within the buffer before anything is
//! read. Reading checks bounds once more, so that no mistake in the list of verified fields can do harm.

use flatbuffers::{ForwardsUOffset, InvalidFlatbuffer, Verifiable, Verifier, VerifierOptions};

/// Slots of the vtable start after its size and the table's size.
fn vtable_entry(slot: u16) -> u16 {
    4 + 2 * slot
}

/// A vector of tables or strings.
type Many<T> = flatbuffers::Vector<'static, ForwardsUOffset<T>>;
/// A vector of numbers.
type Numbers<T> = flatbuffers::Vector<'static, T>;

/// Tables of the schema by the slots that hold offsets; numbers within a table are checked where they are read.
macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident { $($slot:literal $field:literal: $ty:ty),* })*) => {$(
        $(#[$doc])*
        struct $name;
        impl Verifiable for $name {
            fn run_verifier(v: &mut Verifier, pos: usize) -> Result<(), InvalidFlatbuffer> {
                let table = v.visit_table(pos)?;
                $(let table = table.visit_field::<ForwardsUOffset<$ty>>($field, vtable_entry($slot), false)?;)*
                table.finish();
                Ok(())
            }
        }
    )*};
}

tables! {
    /// The root.
    Model { 1 "operator_codes": Many<OperatorCode>, 2 "subgraphs": Many<SubGraph>, 3 "description": &str,
            4 "buffers": Many<Buffer>, 7 "signature_defs": Many<SignatureDef> }
    OperatorCode { 1 "custom_code": &str }
    SubGraph { 0 "tensors": Many<TensorTable>, 1 "inputs": Numbers<i32>, 2 "outputs": Numbers<i32>,
               3 "operators": Many<Operator>, 4 "name": &str }
    TensorTable { 0 "shape": Numbers<i32>, 3 "name": &str, 4 "quantization": Quantization, 6 "sparsity": Sparsity,
                  7 "shape_signature": Numbers<i32> }
    Quantization { 2 "scale": Numbers<f32>, 3 "zero_point": Numbers<i64> }
    Sparsity { 0 "traversal_order": Numbers<i32>, 1 "block_map": Numbers<i32>, 2 "dim_metadata": Many<DimMetadata> }
    Int32Vector { 0 "values": Numbers<i32> }
    Uint16Vector { 0 "values": Numbers<u16> }
    Uint8Vector { 0 "values": Numbers<u8> }
    Buffer { 0 "data": Numbers<u8> }
    TensorMap { 0 "name": &str }
    SignatureDef { 0 "inputs": Many<TensorMap>, 1 "outputs": Many<TensorMap>, 2 "signature_key": &str }
    /// Options that hold numbers only.
    PlainOptions { }
    /// Options whose first slot is a list of 32-bit numbers: `ReshapeOptions`, `SqueezeOptions`, `BucketizeOptions`.
    ListOptions { 0 "values": Numbers<i32> }
    VarHandleOptions { 0 "container": &str, 1 "shared_name": &str }
    CompositeOptions { 0 "name": &str }
}

/// Codes of the union of options for tables that hold more than numbers.
const RESHAPE_OPTIONS: u8 = 17;
const SQUEEZE_OPTIONS: u8 = 30;
const VAR_HANDLE_OPTIONS: u8 = 111;
const BUCKETIZE_OPTIONS: u8 = 115;
/// The same of the second union.
const COMPOSITE_OPTIONS: u8 = 21;

/// An operator: vectors, and a union of options whose type is a code in the slot before it.
struct Operator;

impl Verifiable for Operator {
    fn run_verifier(v: &mut Verifier, pos: usize) -> Result<(), InvalidFlatbuffer> {
        let e = vtable_entry;
        v.visit_table(pos)?
            .visit_field::<ForwardsUOffset<Numbers<i32>>>("inputs", e(1), false)?
            .visit_field::<ForwardsUOffset<Numbers<i32>>>("outputs", e(2), false)?
            .visit_union::<u8, _>(
                "builtin_options_type",
                e(3),
                "builtin_options",
                e(4),
                false,
                |key, v, pos| match key {
                    RESHAPE_OPTIONS | SQUEEZE_OPTIONS | BUCKETIZE_OPTIONS => {
                        v.verify_union_variant::<ForwardsUOffset<ListOptions>>("ListOptions", pos)
                    }
                    VAR_HANDLE_OPTIONS => v.verify_union_variant::<ForwardsUOffset<VarHandleOptions>>("VarHandle", pos),
                    _ => v.verify_union_variant::<ForwardsUOffset<PlainOptions>>("options", pos),
                },
            )?
            .visit_field::<ForwardsUOffset<Numbers<u8>>>("custom_options", e(5), false)?
            .visit_field::<ForwardsUOffset<Numbers<i32>>>("intermediates", e(8), false)?
            .visit_union::<u8, _>("options_2_type", e(11), "options_2", e(12), false, |key, v, pos| match key {
                COMPOSITE_OPTIONS => v.verify_union_variant::<ForwardsUOffset<CompositeOptions>>("Composite", pos),
                _ => v.verify_union_variant::<ForwardsUOffset<PlainOptions>>("options", pos),
            })?
            .finish();
        Ok(())
    }
}

/// How one axis of a sparse tensor is stored: two unions of vectors of indices.
struct DimMetadata;

impl Verifiable for DimMetadata {
    fn run_verifier(v: &mut Verifier, pos: usize) -> Result<(), InvalidFlatbuffer> {
        fn vector(key: u8, v: &mut Verifier, pos: usize) -> Result<(), InvalidFlatbuffer> {
            match key {
                1 => v.verify_union_variant::<ForwardsUOffset<Int32Vector>>("Int32Vector", pos),
                2 => v.verify_union_variant::<ForwardsUOffset<Uint16Vector>>("Uint16Vector", pos),
                3 => v.verify_union_variant::<ForwardsUOffset<Uint8Vector>>("Uint8Vector", pos),
                _ => v.verify_union_variant::<ForwardsUOffset<PlainOptions>>("unknown", pos),
            }
        }
        let e = vtable_entry;
        v.visit_table(pos)?
            .visit_union::<u8, _>("array_segments_type", e(2), "array_segments", e(3), false, vector)?
            .visit_union::<u8, _>("array_indices_type", e(4), "array_indices", e(5), false, vector)?
            .finish();
        Ok(())
    }
}

/// A table of a verified buffer. Fields that are absent have their defaults.
#[derive(Copy, Clone)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The root table of a model file, verified with all that hangs on it.
///
/// # Errors
/// What the verifier finds first.
pub(super) fn root(bytes: &[u8]) -> Result<Table<'_>, String> {
    // As many tables as bytes leave room for; tables that are shared are counted each time.
    let options = VerifierOptions {
        max_depth: 64,
        max_tables: bytes.len() / 4 + 64,
        max_apparent_size: bytes.len().saturating_mul(4).saturating_add(1 << 20),
        ignore_missing_null_terminator: true,
    };
    let mut verifier = Verifier::new(&options, bytes);
    <ForwardsUOffset<Model> as Verifiable>::run_verifier(&mut verifier, 0).map_err(|e| {
        let text = e.to_string();
        text.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
    })?;
    let at = offset(bytes, 0).ok_or("the root is outside of the file")?;
    Ok(Table { bytes, at })
}

/// Reads `N` bytes.
fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Where the forward offset at `at` points.
fn offset(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(u32::from_le_bytes(take(bytes, at)?) as usize)
}

impl<'a> Table<'a> {
    /// Where a field is, if it is there.
    fn field(&self, slot: u16) -> Option<usize> {
        let back = i32::from_le_bytes(take(self.bytes, self.at)?);
        let vtable = (self.at as i64).checked_sub(back as i64).and_then(|v| usize::try_from(v).ok())?;
        let size = u16::from_le_bytes(take(self.bytes, vtable)?);
        let entry = vtable_entry(slot);
        if entry + 2 > size {
            return None;
        }
        match u16::from_le_bytes(take(self.bytes, vtable + entry as usize)?) {
            0 => None,
            o => Some(self.at + o as usize),
        }
    }

    fn number<const N: usize>(&self, slot: u16) -> Option<[u8; N]> {
        take(self.bytes, self.field(slot)?)
    }

    /// A byte.
    pub(super) fn byte(&self, slot: u16) -> Option<i8> {
        self.number(slot).map(i8::from_le_bytes)
    }

    /// A 32-bit integer.
    pub(super) fn int(&self, slot: u16) -> Option<i32> {
        self.number(slot).map(i32::from_le_bytes)
    }

    /// A 64-bit integer.
    pub(super) fn long(&self, slot: u16) -> Option<u64> {
        self.number(slot).map(u64::from_le_bytes)
    }

    /// A number.
    pub(super) fn float(&self, slot: u16) -> Option<f32> {
        self.number(slot).map(f32::from_le_bytes)
    }

    /// A table.
    pub(super) fn table(&self, slot: u16) -> Option<Table<'a>> {
        Some(Table { bytes: self.bytes, at: offset(self.bytes, self.field(slot)?)? })
    }

    /// Where the elements of a vector are, and how many.
    fn vector(&self, slot: u16) -> Option<(usize, usize)> {
        let at = offset(self.bytes, self.field(slot)?)?;
        Some((at + 4, u32::from_le_bytes(take(self.bytes, at)?) as usize))
    }

    /// A vector of tables; empty where there is none.
    pub(super) fn tables(&self, slot: u16) -> Vec<Table<'a>> {
        let Some((at, n)) = self.vector(slot) else { return Vec::new() };
        (0..n).map_while(|i| Some(Table { bytes: self.bytes, at: offset(self.bytes, at + 4 * i)? })).collect()
    }

    /// A vector of bytes.
    pub(super) fn bytes(&self, slot: u16) -> Option<&'a [u8]> {
        let (at, n) = self.vector(slot)?;
        self.bytes.get(at..at.checked_add(n)?)
    }

    fn numbers<const N: usize, T>(&self, slot: u16, of: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
        let (at, n) = self.vector(slot)?;
        let bytes = self.bytes.get(at..at.checked_add(n.checked_mul(N)?)?)?;
        bytes.chunks_exact(N).map(|c| Some(of(c.try_into().ok()?))).collect()
    }

    /// A vector of 32-bit integers.
    pub(super) fn ints(&self, slot: u16) -> Option<Vec<i32>> {
        self.numbers(slot, i32::from_le_bytes)
    }

    /// A vector of unsigned 16-bit integers.
    pub(super) fn shorts(&self, slot: u16) -> Option<Vec<u16>> {
        self.numbers(slot, u16::from_le_bytes)
    }

    /// A vector of 64-bit integers.
    pub(super) fn longs(&self, slot: u16) -> Option<Vec<i64>> {
        self.numbers(slot, i64::from_le_bytes)
    }

    /// A vector of numbers.
    pub(super) fn floats(&self, slot: u16) -> Option<Vec<f32>> {
        self.numbers(slot, f32::from_le_bytes)
    }

    /// A string; what is no UTF-8 in it is replaced.
    pub(super) fn text(&self, slot: u16) -> Option<String> {
        self.bytes(slot).map(|b| String::from_utf8_lossy(b).into_owned())
    }
}
