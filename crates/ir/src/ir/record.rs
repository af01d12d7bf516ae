//! Modules as data, to be kept beside their constants: all of a module but the elements of those.
//!
//! Ids stay as they are: what is read is the module that was written, expression by expression.

use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{AdtDef, Attrs, ConstAttr, Expr, ExprId, Module, Name, Source, Span, VarInfo, children};
use crate::tensor::{DType, Tensor};

/// A span: the number of its text, first byte, one past the last byte.
type Place = (usize, u32, u32);

/// A module as it is written.
#[derive(Serialize)]
struct Written<'a> {
    exprs: &'a [Expr],
    /// The texts that spans are in, each once.
    sources: &'a [&'a Source],
    spans: &'a [Option<Place>],
    vars: &'a [VarInfo],
    type_vars: &'a [Name],
    functions: &'a [(Name, ExprId)],
    adts: &'a [AdtDef],
    attrs: &'a Option<Attrs>,
}

/// The same as it is read.
#[derive(Deserialize)]
struct Read {
    exprs: Vec<Expr>,
    sources: Vec<Source>,
    spans: Vec<Option<Place>>,
    vars: Vec<VarInfo>,
    type_vars: Vec<Name>,
    functions: Vec<(Name, ExprId)>,
    adts: Vec<AdtDef>,
    attrs: Option<Attrs>,
}

impl Serialize for Module {
    /// Without the elements of constants, which whoever reads it puts back: [`Module::replace_constant`].
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Module { exprs, spans, vars, type_vars, functions, adts, attrs } = self;
        let mut sources: Vec<&Source> = Vec::new();
        let mut numbers: HashMap<*const Source, usize> = HashMap::new();
        let mut place = |span: &'_ Span| {
            let source: *const Source = Arc::as_ptr(&span.source);
            let next = numbers.len();
            (*numbers.entry(source).or_insert(next), span.start, span.end)
        };
        let places: Vec<Option<Place>> = spans.iter().map(|s| s.as_ref().map(&mut place)).collect();
        for (span, at) in spans.iter().flatten().zip(places.iter().flatten()) {
            if at.0 == sources.len() {
                sources.push(&span.source);
            }
        }
        let written = Written { exprs, sources: &sources, spans: &places, vars, type_vars, functions, adts, attrs };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Module {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Module, D::Error> {
        let Read { exprs, sources, spans, vars, type_vars, functions, adts, attrs } = Read::deserialize(deserializer)?;
        let mut are_older = exprs.len() == spans.len();
        for (at, expr) in exprs.iter().enumerate() {
            children(expr, |child| are_older &= child.index() < at);
        }
        let is_function = |f: &(Name, ExprId)| matches!(exprs.get(f.1.index()), Some(Expr::Func(_)));
        if !are_older || !functions.iter().all(is_function) {
            return Err(D::Error::custom("the expressions are no module"));
        }
        let sources: Vec<Arc<Source>> = sources.into_iter().map(Arc::new).collect();
        let span = |place: Option<Place>| {
            let (source, start, end) = place?;
            Some(Span { source: sources.get(source)?.clone(), start, end })
        };
        let spans = spans.into_iter().map(span).collect();
        Ok(Module { exprs, spans, vars, type_vars, functions, adts, attrs })
    }
}

impl Serialize for Attrs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Attrs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Attrs, D::Error> {
        Vec::deserialize(deserializer).map(Attrs::new)
    }
}

impl Serialize for DType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Those within attributes are small: they are written with their elements.
impl Serialize for ConstAttr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.0.dtype(), self.0.shape(), self.0.bytes()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ConstAttr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ConstAttr, D::Error> {
        let (dtype, shape, bytes) = <(DType, Vec<usize>, Vec<u8>)>::deserialize(deserializer)?;
        Tensor::from_bytes(dtype, &shape, &bytes).map(ConstAttr).map_err(D::Error::custom)
    }
}

/// Constants, without their elements.
pub(super) mod without_elements {
    use super::*;

    pub(in crate::ir) fn serialize<S: Serializer>(_: &Tensor, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }

    pub(in crate::ir) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tensor, D::Error> {
        <()>::deserialize(deserializer)?;
        Ok(Tensor::zeros(DType::F32, &[0]))
    }
}

/// Numbers by their bits, since JSON has neither infinities nor what is no number.
pub(super) mod by_bits {
    use ordered_float::OrderedFloat;

    use super::*;

    pub(in crate::ir) fn serialize<S: Serializer>(v: &OrderedFloat<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(v.to_bits())
    }

    pub(in crate::ir) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<OrderedFloat<f64>, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits).map(OrderedFloat)
    }
}
