//! Attribute values as JSON objects, and back.

use super::{
    graph::{Graph, Node},
    schema::{self, Kind},
};
use crate::{
    diag::{Diagnostic, Refused},
    ir::{AttrValue, ConstAttr, Dim, Name, TensorType, Type},
    relay::lexer::is_identifier,
    tensor::{DType, Tensor},
};

/// How deep lists and maps may stand within each other.
const MAX_DEPTH: usize = 64;

impl Graph {
    /// A node as an attribute's value. Objects without a meaning to resat become [`AttrValue::Opaque`], whose text is TVM's
    /// JSON of the object alone.
    pub(super) fn value(&self, node: usize) -> Result<AttrValue, Refused> {
        self.value_at(node, MAX_DEPTH)
    }

    fn value_at(&self, node: usize, depth: usize) -> Result<AttrValue, Refused> {
        if depth == 0 {
            return self.refuse(node, format_args!("values stand within values more than {MAX_DEPTH} deep"));
        }
        Ok(match self.key(node) {
            "" => AttrValue::None,
            "IntImm" | "FloatImm" | "runtime.String" | "tir.Any" => self.leaf(node)?,
            "Array" => {
                let members = self.nodes[node].data.iter().map(|&n| self.value_at(n, depth - 1));
                AttrValue::List(members.collect::<Result<_, _>>()?)
            }
            "Map" => self.dict(node, depth)?,
            "DictAttrs" => self.dict(self.reference(node, "__dict__")?, depth)?,
            "relay.Constant" => AttrValue::Tensor(ConstAttr(self.array(node, "data")?.clone())),
            "relay.TensorType" => match self.tensor_type(node)? {
                Some(t) => AttrValue::Type(t.into()),
                None => self.opaque(node)?,
            },
            key if key.starts_with(schema::ATTRS_PREFIX) => AttrValue::Dict(self.record_at(node, depth)?.into()),
            _ => self.opaque(node)?,
        })
    }

    fn leaf(&self, node: usize) -> Result<AttrValue, Refused> {
        Ok(match self.key(node) {
            "IntImm" if self.dtype(node, "dtype")? == Some(DType::Bool) => (self.int(node, "value")? != 0).into(),
            "IntImm" => self.int(node, "value")?.into(),
            "FloatImm" => self.float(node, "value")?.into(),
            "runtime.String" => AttrValue::Str(self.repr(node)?.into()),
            _ => AttrValue::AnyDim,
        })
    }

    fn dict(&self, map: usize, depth: usize) -> Result<AttrValue, Refused> {
        let entries = self.entries(map)?.into_iter();
        let fields = entries.map(|(key, n)| Ok((Name::from(key), self.value_at(n, depth - 1)?)));
        Ok(AttrValue::Dict(fields.collect::<Result<_, Refused>>()?))
    }

    /// The fields of a free-form attribute record.
    pub(super) fn dict_fields(&self, node: usize) -> Result<Vec<(Name, AttrValue)>, Refused> {
        let entries = self.entries(self.reference(node, "__dict__")?)?.into_iter();
        entries
            .map(|(key, n)| match is_identifier(&key) {
                true => Ok((Name::from(key), self.value(n)?)),
                false => self.refuse(node, format!("`{key}` is no name of an attribute: Relay's text can't have it")),
            })
            .collect()
    }

    fn opaque(&self, node: usize) -> Result<AttrValue, Refused> {
        Ok(AttrValue::Opaque(self.key(node).into(), self.part(node)?.print().into()))
    }

    /// The fields of an operator's attribute record, in TVM's order.
    pub(super) fn record(&self, node: usize) -> Result<Vec<(Name, AttrValue)>, Refused> {
        self.record_at(node, MAX_DEPTH)
    }

    fn record_at(&self, node: usize, depth: usize) -> Result<Vec<(Name, AttrValue)>, Refused> {
        let Some(class) = schema::class(self.key(node)) else {
            return self.refuse(node, "attributes of this type are not known");
        };
        let value = |(field, kind): &(&'static str, Kind)| {
            let value = match kind {
                Kind::Int => self.int(node, field)?.into(),
                Kind::Bool => (self.int(node, field)? != 0).into(),
                Kind::Float => self.float(node, field)?.into(),
                Kind::Str => AttrValue::Str(self.text(node, field)?.into()),
                Kind::DType => self.dtype(node, field)?.map_or(AttrValue::None, AttrValue::DType),
                Kind::Ref | Kind::FloatRef => self.value_at(self.reference(node, field)?, depth - 1)?,
                Kind::Array => AttrValue::Tensor(ConstAttr(self.array(node, field)?.clone())),
            };
            Ok((Name::from(field), value))
        };
        let there = |(field, _): &&(&'static str, Kind)| !class.either || self.nodes[node].attrs.contains_key(*field);
        class.fields.iter().filter(there).map(value).collect()
    }

    /// A tensor type; `None` where an extent is an expression other than a number or `?`.
    pub(super) fn tensor_type(&self, node: usize) -> Result<Option<TensorType>, Refused> {
        let Some(dtype) = self.dtype(node, "dtype")? else {
            return self.refuse(node, "a tensor type needs an element type");
        };
        let extents = self.list(node, "shape")?.iter().map(|&n| match self.key(n) {
            "IntImm" => self.int(n, "value").map(|i| Some(Dim::Known(i))),
            "tir.Any" => Ok(Some(Dim::Any)),
            _ => Ok(None),
        });
        let extents = extents.collect::<Result<Option<Vec<Dim>>, Refused>>()?;
        Ok(extents.map(|e| TensorType::of(e, dtype)))
    }
}

/// Writes objects into a graph, sharing what every expression repeats.
pub(super) struct Writer {
    pub(super) graph: Graph,
    device: Option<usize>,
}

/// Refuses to write something.
pub(super) fn refuse<T>(message: String) -> Result<T, Refused> {
    Err(Diagnostic::new(message).into())
}

impl Writer {
    pub(super) fn new() -> Writer {
        Writer { graph: Graph::empty(), device: None }
    }

    /// TVM's JSON of an object and all that it refers to.
    pub(super) fn print(&self, root: usize) -> Result<String, Refused> {
        Ok(self.graph.part(root)?.print())
    }

    /// Adds an object of the given fields. A field of its class that is not given is written as null.
    pub(super) fn object(&mut self, type_key: &str, fields: &[(&str, String)]) -> usize {
        let mut node = Node::new(type_key);
        let class = schema::class(type_key);
        for (field, kind) in class.iter().flat_map(|c| &c.fields) {
            let given = fields.iter().find(|(n, _)| n == field).map(|(_, v)| v.clone());
            let text = match (given, kind) {
                (Some(text), _) => text,
                (None, _) if class.is_some_and(|c| c.either) => continue,
                (None, Kind::Ref) if *field == "virtual_device_" => self.device().to_string(),
                (None, _) => "0".to_owned(),
            };
            node.attrs.insert((*field).to_owned(), text);
        }
        self.graph.add(node)
    }

    /// The unconstrained device, which TVM's expressions share.
    fn device(&mut self) -> usize {
        if let Some(device) = self.device {
            return device;
        }
        let scope = self.string("");
        let mut node = Node::new("VirtualDevice");
        for (field, text) in [
            ("device_type_int", "-1".to_owned()),
            ("memory_scope", scope.to_string()),
            ("target", "0".to_owned()),
            ("virtual_device_id", "-1".to_owned()),
        ] {
            node.attrs.insert(field.to_owned(), text);
        }
        let device = self.graph.add(node);
        self.device = Some(device);
        device
    }

    pub(super) fn string(&mut self, text: &str) -> usize {
        self.graph.add(Node::with_repr("runtime.String", text))
    }

    pub(super) fn array(&mut self, members: Vec<usize>) -> usize {
        self.graph.add(Node { data: members, ..Node::new("Array") })
    }

    /// A map with string keys, in the given order.
    pub(super) fn map(&mut self, entries: Vec<(String, usize)>) -> usize {
        let (keys, data) = entries.into_iter().unzip();
        self.graph.add(Node { keys, data, ..Node::new("Map") })
    }

    /// A map whose keys are objects: each key, then its value.
    pub(super) fn pairs(&mut self, data: Vec<usize>) -> usize {
        self.graph.add(Node { data, ..Node::new("Map") })
    }

    pub(super) fn int(&mut self, value: i64) -> usize {
        let dtype = if i32::try_from(value).is_ok() { DType::I32 } else { DType::I64 };
        self.imm("IntImm", dtype, value.to_string())
    }

    fn imm(&mut self, type_key: &str, dtype: DType, value: String) -> usize {
        self.object(type_key, &[("dtype", dtype.to_string()), ("value", value)])
    }

    pub(super) fn constant(&mut self, t: &Tensor) -> usize {
        self.graph.arrays.push(t.clone());
        let number = self.graph.arrays.len() - 1;
        let shape = self.shape(&t.shape().iter().map(|&d| Dim::Known(d as i64)).collect::<Vec<_>>(), |_, _| 0);
        let ty = self.object("relay.TensorType", &[("shape", shape.to_string()), ("dtype", t.dtype().to_string())]);
        self.object("relay.Constant", &[("data", number.to_string()), ("_checked_type_", ty.to_string())])
    }

    /// A list of extents; `var` gives the node of a type parameter or hole.
    pub(super) fn shape(&mut self, dims: &[Dim], mut var: impl FnMut(&mut Writer, Dim) -> usize) -> usize {
        let dims: Vec<usize> = dims
            .iter()
            .map(|&d| match d {
                Dim::Known(n) => self.int(n),
                Dim::Any => self.object("tir.Any", &[("dtype", DType::I32.to_string())]),
                d => var(self, d),
            })
            .collect();
        self.array(dims)
    }

    /// A value as an object of its own.
    pub(super) fn value(&mut self, v: &AttrValue) -> Result<usize, Refused> {
        self.value_at(v, false, MAX_DEPTH)
    }

    /// `floats` says that numbers are to be floats.
    fn value_at(&mut self, v: &AttrValue, floats: bool, depth: usize) -> Result<usize, Refused> {
        if depth == 0 {
            return refuse(format!("an attribute has values within values more than {MAX_DEPTH} deep"));
        }
        Ok(match v {
            AttrValue::None => 0,
            AttrValue::Int(i) if floats => self.imm("FloatImm", DType::F32, float(*i as f64)),
            AttrValue::Bool(b) => self.imm("IntImm", DType::Bool, (*b as u8).to_string()),
            AttrValue::Int(i) => self.int(*i),
            AttrValue::Float(f) => self.imm("FloatImm", DType::F32, float(f.0)),
            AttrValue::Str(s) => self.string(s),
            AttrValue::DType(d) => self.string(d.name()),
            AttrValue::AnyDim => self.object("tir.Any", &[("dtype", DType::I32.to_string())]),
            AttrValue::List(l) => {
                let members = l.iter().map(|v| self.value_at(v, floats, depth - 1)).collect::<Result<_, _>>()?;
                self.array(members)
            }
            AttrValue::Dict(d) => {
                let entries = d.iter().map(|(k, v)| Ok((k.to_string(), self.value_at(v, floats, depth - 1)?)));
                let entries = entries.collect::<Result<_, Refused>>()?;
                self.map(entries)
            }
            AttrValue::Tensor(t) => self.constant(&t.0),
            AttrValue::Type(Type::Tensor(t)) if t.shape.iter().all(|d| matches!(d, Dim::Known(_) | Dim::Any)) => {
                let shape = self.shape(&t.shape, |_, _| 0);
                self.object("relay.TensorType", &[("shape", shape.to_string()), ("dtype", t.dtype.to_string())])
            }
            AttrValue::Type(t) => {
                return refuse(format!("an attribute that is the type `{t}` can't be written as JSON"));
            }
            AttrValue::Opaque(key, text) => {
                let part = Graph::parse(&format!("the object of type {key}"), text)?;
                self.graph.append(&part, part.root)?
            }
        })
    }

    /// An operator's attribute record of the given type key.
    pub(super) fn record<'a>(
        &mut self,
        type_key: &str,
        fields: impl IntoIterator<Item = (&'a Name, &'a AttrValue)>,
    ) -> Result<usize, Refused> {
        let Some(class) = schema::class(type_key) else {
            return refuse(format!("attributes of type `{type_key}` can't be written as JSON"));
        };
        let mut texts = Vec::new();
        for (name, value) in fields {
            let Some(kind) = class.kind(name) else {
                return refuse(format!("TVM's `{type_key}` has no field `{name}`, so it can't be written as JSON"));
            };
            let text = match (kind, value) {
                (Kind::Int, v) if v.as_int().is_some() => v.as_int().map(|i| i.to_string()),
                (Kind::Bool, v) => v.as_int().map(|i| ((i != 0) as u8).to_string()),
                (Kind::Float, v) => v.as_float().map(float),
                (Kind::Str, AttrValue::Str(s)) => Some(s.to_string()),
                (Kind::Str, AttrValue::DType(d)) => Some(d.to_string()),
                (Kind::Str, AttrValue::None) => Some(String::new()),
                (Kind::DType, AttrValue::DType(d)) => Some(d.to_string()),
                (Kind::DType, AttrValue::None) => Some(String::new()),
                (Kind::Ref, v) => Some(self.value_at(v, false, MAX_DEPTH)?.to_string()),
                (Kind::FloatRef, v) => Some(self.value_at(v, true, MAX_DEPTH)?.to_string()),
                _ => None,
            };
            match text {
                Some(text) => texts.push((name.as_str(), text)),
                None => return refuse(format!("`{name}` of `{type_key}` can't be {value:?} in JSON")),
            }
        }
        for (field, kind) in &class.fields {
            if !class.either && !texts.iter().any(|(n, _)| n == field) && matches!(kind, Kind::Str | Kind::DType) {
                texts.push((field, String::new()));
            }
        }
        Ok(self.object(type_key, &texts))
    }
}

/// The shortest text that reads back as the very same number.
fn float(f: f64) -> String {
    format!("{f:?}").replace("NaN", "nan")
}
