//! A TFLite model file, decoded and checked: indices lie within their lists, tensors have types and shapes that make sense.

use super::{
    builtins,
    flat::{self, Table},
};
use crate::tensor::DType;

/// A model.
pub(super) struct ModelFile<'a> {
    /// The subgraphs; the first is the model's.
    pub(super) graphs: Vec<Graph<'a>>,
    /// Whether scalars can be distinguished from tensors of unknown rank.
    pub(super) tells_ranks: bool,
    /// Signatures: names of inputs and outputs.
    pub(super) signatures: Vec<Signature>,
}

/// Names that a model gives to a subgraph's inputs and outputs.
pub(super) struct Signature {
    /// The subgraph.
    pub(super) graph: usize,
    /// Inputs: name and tensor.
    pub(super) inputs: Vec<(String, usize)>,
    /// Outputs: name and tensor.
    pub(super) outputs: Vec<(String, usize)>,
}

/// A subgraph.
pub(super) struct Graph<'a> {
    /// Its name.
    pub(super) name: String,
    /// All tensors.
    pub(super) tensors: Vec<TensorInfo<'a>>,
    /// The tensors that are inputs.
    pub(super) inputs: Vec<usize>,
    /// The tensors that are outputs.
    pub(super) outputs: Vec<usize>,
    /// In the order in which they run.
    pub(super) operators: Vec<Operator<'a>>,
}

/// Element types of TFLite.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Element {
    /// One that Relay has.
    Plain(DType),
    /// Pairs of `float32`.
    Complex64,
    /// Two 4-bit integers a byte.
    Int4,
    /// A handle to a variable.
    Resource,
    /// Any other, by the schema's name.
    Other(&'static str),
}

/// Element types by the schema's number.
const ELEMENTS: [Element; 19] = [
    Element::Plain(DType::F32),
    Element::Plain(DType::F16),
    Element::Plain(DType::I32),
    Element::Plain(DType::U8),
    Element::Plain(DType::I64),
    Element::Other("STRING"),
    Element::Plain(DType::Bool),
    Element::Plain(DType::I16),
    Element::Complex64,
    Element::Plain(DType::I8),
    Element::Plain(DType::F64),
    Element::Other("COMPLEX128"),
    Element::Plain(DType::U64),
    Element::Resource,
    Element::Other("VARIANT"),
    Element::Plain(DType::U32),
    Element::Plain(DType::U16),
    Element::Int4,
    Element::Plain(DType::BF16),
];

impl Element {
    /// By the schema's number.
    pub(super) fn of(code: i8) -> Element {
        usize::try_from(code).ok().and_then(|i| ELEMENTS.get(i).copied()).unwrap_or(Element::Other("an unknown type"))
    }
}

/// Scales and zero points of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Quant {
    /// One for the whole tensor, or one for each index along `axis`.
    pub(super) scales: Vec<f32>,
    /// As many as scales.
    pub(super) zeros: Vec<i64>,
    /// The axis of several scales.
    pub(super) axis: usize,
}

/// A tensor's description.
#[derive(Clone)]
pub(super) struct TensorInfo<'a> {
    /// Its name.
    pub(super) name: String,
    /// Element type.
    pub(super) element: Element,
    /// Whether the file says that the tensor has as many axes as its shape: old files say it of none.
    pub(super) has_rank: bool,
    /// Extents; `None` where it is known only at run time.
    pub(super) shape: Vec<Option<i64>>,
    /// The content of a constant.
    pub(super) data: Option<&'a [u8]>,
    /// How the integers stand for numbers.
    pub(super) quant: Option<Quant>,
    /// Whether it keeps its value from run to run.
    pub(super) variable: bool,
    /// How the content of a sparse tensor is stored.
    pub(super) sparsity: Option<Table<'a>>,
}

/// An operator.
pub(super) struct Operator<'a> {
    /// Its row in the table of builtin operators; none for custom operators.
    pub(super) builtin: Option<&'static builtins::Builtin>,
    /// Whether it is a custom operator.
    pub(super) is_custom: bool,
    /// Its name, as in messages.
    pub(super) name: String,
    /// Tensors that it reads; `None` for one that is left out.
    pub(super) inputs: Vec<Option<usize>>,
    /// Tensors that it makes.
    pub(super) outputs: Vec<usize>,
    /// Tensors that describe what it computes within.
    pub(super) intermediates: Vec<Option<usize>>,
    /// Options of a builtin operator.
    pub(super) options: Option<Table<'a>>,
    /// Options of a custom operator: a flexbuffer, mostly.
    pub(super) custom: &'a [u8],
}

/// Decodes a file.
///
/// # Errors
/// What is malformed.
pub(super) fn decode(bytes: &[u8]) -> Result<ModelFile<'_>, String> {
    let root = flat::root(bytes)?;
    let version = root.int(0).unwrap_or(0);
    if version != 3 {
        return Err(format!("version {version} of TFLite's format is not supported; models since 2017 have version 3"));
    }
    let codes: Vec<_> = root.tables(1).into_iter().map(code_of).collect();
    let buffers: Vec<Option<&[u8]>> = root.tables(4).into_iter().map(|b| content(bytes, b)).collect();
    let graphs = root.tables(2).into_iter().enumerate();
    let graphs: Vec<Graph> = graphs.map(|(i, g)| graph(i, g, &codes, &buffers)).collect::<Result<_, _>>()?;
    if graphs.is_empty() {
        return Err("the model has no subgraph".into());
    }
    let map = |t: Table, slot| -> Vec<(String, usize)> {
        t.tables(slot).iter().map(|m| (m.text(0).unwrap_or_default(), m.int(1).unwrap_or(0) as u32 as usize)).collect()
    };
    let signatures = root.tables(7).into_iter();
    let signatures = signatures
        .map(|s| Signature { graph: s.int(4).unwrap_or(0) as u32 as usize, inputs: map(s, 0), outputs: map(s, 1) })
        .collect();
    let tells_ranks = graphs.iter().any(|g| g.tensors.iter().any(|t| t.has_rank));
    Ok(ModelFile { graphs, tells_ranks, signatures })
}

/// The builtin code and the custom name of an operator code.
fn code_of(t: Table) -> (i32, Option<String>) {
    // Older files hold the code in a byte, newer ones hold 127 there where it does not fit.
    ((t.byte(0).unwrap_or(0) as i32).max(t.int(3).unwrap_or(0)), t.text(1))
}

/// The bytes of a buffer: in place, or behind the flatbuffer in files of more than 2 GiB.
fn content<'a>(file: &'a [u8], t: Table<'a>) -> Option<&'a [u8]> {
    let (from, len) = (t.long(1).unwrap_or(0), t.long(2).unwrap_or(0));
    if from > 1 {
        let from = usize::try_from(from).ok()?;
        return file.get(from..from.checked_add(usize::try_from(len).ok()?)?);
    }
    t.bytes(0).filter(|b| !b.is_empty())
}

fn graph<'a>(
    index: usize,
    t: Table<'a>,
    codes: &[(i32, Option<String>)],
    buffers: &[Option<&'a [u8]>],
) -> Result<Graph<'a>, String> {
    let name = t.text(4).filter(|n| !n.is_empty()).unwrap_or_else(|| format!("subgraph {index}"));
    let tensors: Vec<TensorInfo> = t
        .tables(0)
        .into_iter()
        .enumerate()
        .map(|(i, t)| tensor(i, t, buffers).map_err(|e| format!("{name}: {e}")))
        .collect::<Result<_, _>>()?;
    let within = |i: i32, what: &str| -> Result<usize, String> {
        let found = usize::try_from(i).ok().filter(|&i| i < tensors.len());
        found.ok_or_else(|| format!("{name}: {what} names tensor {i}, but there are {}", tensors.len()))
    };
    let list = |slot, what: &str| -> Result<Vec<usize>, String> {
        t.ints(slot).unwrap_or_default().into_iter().map(|i| within(i, what)).collect()
    };
    let (inputs, outputs) = (list(1, "the list of inputs")?, list(2, "the list of outputs")?);
    let mut operators = Vec::new();
    for (i, o) in t.tables(3).into_iter().enumerate() {
        let at = o.int(0).unwrap_or(0) as u32 as usize;
        let (code, custom) = codes
            .get(at)
            .ok_or_else(|| format!("{name}: operator {i} has code {at}, but there are {}", codes.len()))?;
        let builtin = builtins::by_code(*code);
        let operator = match (*code, builtin) {
            (builtins::CUSTOM, _) => custom.clone().unwrap_or_else(|| "a custom operator without a name".into()),
            (_, Some(b)) => b.name.to_owned(),
            (code, None) => format!("builtin operator {code}"),
        };
        let what = format!("operator {i} ({operator})");
        let optional = |slot| -> Result<Vec<Option<usize>>, String> {
            let of = |i: i32| if i == -1 { Ok(None) } else { within(i, &what).map(Some) };
            o.ints(slot).unwrap_or_default().into_iter().map(of).collect()
        };
        operators.push(Operator {
            builtin,
            is_custom: *code == builtins::CUSTOM,
            name: operator.clone(),
            inputs: optional(1)?,
            outputs: optional(2)?.into_iter().flatten().collect(),
            intermediates: optional(8)?,
            options: o.table(4).or_else(|| o.table(12)),
            custom: o.bytes(5).unwrap_or_default(),
        });
    }
    Ok(Graph { name, tensors, inputs, outputs, operators })
}

fn tensor<'a>(index: usize, t: Table<'a>, buffers: &[Option<&'a [u8]>]) -> Result<TensorInfo<'a>, String> {
    let name = t.text(3).filter(|n| !n.is_empty()).unwrap_or_else(|| format!("tensor {index}"));
    let shape = t.ints(0).unwrap_or_default();
    // An extent known at run time is -1 in the signature of the shape, and 1 or -1 in the shape.
    let signature = t.ints(7).filter(|s| s.len() == shape.len()).unwrap_or_else(|| shape.clone());
    let extents: Vec<Option<i64>> =
        signature.iter().zip(&shape).map(|(&s, &n)| if s < 0 || n < 0 { None } else { Some(n as i64) }).collect();
    let elements = extents.iter().flatten().try_fold(1i64, |n, &d| n.checked_mul(d.max(1)));
    if shape.len() > 16 || elements.is_none_or(|n| n > crate::ir::MOST_ELEMENTS) {
        return Err(format!("`{name}` has the shape {shape:?}"));
    }
    let buffer = t.int(2).unwrap_or(0) as u32 as usize;
    let data = match buffers.get(buffer) {
        Some(data) => *data,
        None if buffer == 0 => None,
        None => return Err(format!("`{name}` names buffer {buffer}, but there are {}", buffers.len())),
    };
    Ok(TensorInfo {
        name: name.clone(),
        element: Element::of(t.byte(1).unwrap_or(0)),
        data,
        has_rank: t.byte(8).unwrap_or(0) != 0,
        quant: t.table(4).map(|q| quant(&name, q, &extents)).transpose()?.flatten(),
        shape: extents,
        variable: t.byte(5).unwrap_or(0) != 0,
        sparsity: t.table(6),
    })
}

fn quant(name: &str, t: Table, shape: &[Option<i64>]) -> Result<Option<Quant>, String> {
    let scales = t.floats(2).unwrap_or_default();
    if scales.is_empty() {
        return Ok(None);
    }
    let mut zeros = t.longs(3).unwrap_or_default();
    if zeros.len() <= 1 {
        zeros = vec![zeros.first().copied().unwrap_or(0); scales.len()];
    }
    let axis = t.int(6).unwrap_or(0);
    let at = usize::try_from(axis).ok();
    if zeros.len() != scales.len() {
        return Err(format!("`{name}` has {} scales, but {} zero points", scales.len(), zeros.len()));
    }
    if let Some(s) = scales.iter().find(|s| !(0.0..1e30).contains(*s)) {
        return Err(format!("`{name}` has the scale {s}"));
    }
    if zeros.iter().any(|z| i32::try_from(*z).is_err()) {
        return Err(format!("`{name}` has a zero point beyond 32 bits"));
    }
    if scales.len() > 1 && at.and_then(|a| shape.get(a)).is_none_or(|d| *d != Some(scales.len() as i64)) {
        return Err(format!("`{name}` has {} scales along axis {axis} of {shape:?}", scales.len()));
    }
    Ok(Some(Quant { scales, zeros, axis: at.unwrap_or(0) }))
}
