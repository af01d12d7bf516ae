//! A node as converters see it: its inputs and attributes, with defaults and refusals.

use super::{
    elem::Elem,
    importer::{Importer, List, Tens, Val},
    proto::{AttributeProto, GraphProto, NodeProto, TensorProto, kinds},
    tensors,
};
use crate::{
    diag::Refused,
    frontend::Convert,
    ir::{ExprId, TensorType},
    tensor::{DType, Tensor},
};

/// A node that is converted.
pub(super) struct Node<'a, 'm> {
    /// Where it goes.
    pub im: &'a mut Importer<'m>,
    /// The node itself.
    pub proto: &'m NodeProto,
    /// Its inputs; none where left out.
    pub inputs: Vec<Option<Val>>,
    /// The version of the domain's operators that the model imports.
    pub version: i64,
}

impl<'m> Node<'_, 'm> {
    /// A refusal at this node.
    pub(super) fn refuse(&self, message: impl Into<String>) -> Refused {
        self.im.b.refuse(message)
    }

    /// `Err` with a refusal, unless a condition holds.
    pub(super) fn ensure(&self, condition: bool, message: impl FnOnce() -> String) -> Convert<()> {
        if condition { Ok(()) } else { Err(self.refuse(message())) }
    }

    /// Input `i`, where it is given and not absent.
    pub(super) fn val(&self, i: usize) -> Option<&Val> {
        self.inputs.get(i)?.as_ref().filter(|v| !matches!(v, Val::Absent))
    }

    /// Whether input `i` is given.
    pub(super) fn has(&self, i: usize) -> bool {
        self.val(i).is_some()
    }

    /// Input `i` as a tensor of any elements, where it is given.
    pub(super) fn opt_tens(&self, i: usize) -> Convert<Option<Tens>> {
        match self.val(i) {
            None => Ok(None),
            Some(Val::Tensor(t)) => Ok(Some(*t)),
            Some(_) => Err(self.refuse(format!("input {i} is a sequence, where a tensor is wanted"))),
        }
    }

    /// Input `i` as a tensor of any elements.
    pub(super) fn tens(&self, i: usize) -> Convert<Tens> {
        self.opt_tens(i)?.ok_or_else(|| self.refuse(format!("input {i} is not given")))
    }

    /// Input `i` as a tensor of elements that Relay has, where it is given.
    pub(super) fn opt(&self, i: usize) -> Convert<Option<ExprId>> {
        match self.opt_tens(i)? {
            None => Ok(None),
            Some(Tens { e, elem: Elem::Plain(_) }) => Ok(Some(e)),
            Some(t) => Err(self.refuse(format!("input {i} is of {}, which is not supported here", t.elem.name()))),
        }
    }

    /// Input `i` as a tensor of elements that Relay has.
    pub(super) fn x(&self, i: usize) -> Convert<ExprId> {
        self.opt(i)?.ok_or_else(|| self.refuse(format!("input {i} is not given")))
    }

    /// All inputs that are given, as tensors of elements that Relay has.
    pub(super) fn all(&self) -> Convert<Vec<ExprId>> {
        (0..self.inputs.len()).filter(|&i| self.has(i)).map(|i| self.x(i)).collect()
    }

    /// Input `i` as a sequence whose length is known only while running, where it is such.
    pub(super) fn list(&self, i: usize) -> Option<List> {
        match self.val(i) {
            Some(Val::List(l)) => Some(*l),
            _ => None,
        }
    }

    /// Input `i` as a sequence.
    pub(super) fn seq(&self, i: usize) -> Convert<Vec<Val>> {
        match self.val(i) {
            Some(Val::Seq(items)) => Ok(items.clone()),
            Some(Val::List(_)) => Err(self
                .refuse(format!("the length of input {i} is known only while running, which is not supported here"))),
            _ => Err(self.refuse(format!("input {i} should be a sequence"))),
        }
    }

    /// The integers of input `i`, which must follow from constants, where it is given.
    pub(super) fn known_ints(&mut self, i: usize) -> Convert<Option<Vec<i64>>> {
        let Some(e) = self.opt(i)? else { return Ok(None) };
        match self.im.b.value(e) {
            Some(v) => Ok(Some(v.to_i64_vec())),
            None => Err(self.refuse(format!("input {i} is known only while running, which is not supported"))),
        }
    }

    /// The numbers of input `i`, which must follow from constants, where it is given.
    pub(super) fn known_floats(&mut self, i: usize) -> Convert<Option<Vec<f64>>> {
        let Some(e) = self.opt(i)? else { return Ok(None) };
        match self.im.b.value(e) {
            Some(v) => Ok(Some(v.to_f64_vec())),
            None => Err(self.refuse(format!("input {i} is known only while running, which is not supported"))),
        }
    }

    /// The value of an expression, where it follows from constants.
    pub(super) fn value(&mut self, e: ExprId) -> Option<Tensor> {
        self.im.b.value(e)
    }

    /// The type of a tensor.
    pub(super) fn ty(&self, e: ExprId) -> Convert<TensorType> {
        self.im.b.tensor(e).cloned()
    }

    /// Its element type in Relay.
    pub(super) fn dtype(&self, e: ExprId) -> Convert<DType> {
        Ok(self.im.b.tensor(e)?.dtype)
    }

    /// Its number of axes.
    pub(super) fn rank(&self, e: ExprId) -> Convert<usize> {
        Ok(self.im.b.tensor(e)?.rank())
    }

    /// Its extents, as far as they are known.
    pub(super) fn dims(&self, e: ExprId) -> Convert<Vec<Option<i64>>> {
        Ok(self.im.b.tensor(e)?.shape.iter().map(|d| d.known()).collect())
    }

    /// Its extents, which must all be known.
    pub(super) fn shape(&self, e: ExprId) -> Convert<Vec<i64>> {
        let ty = self.im.b.tensor(e)?;
        ty.known_shape().ok_or_else(|| {
            self.refuse(format!("an operand is {ty}: its extents should be known (see --dim and --shape)"))
        })
    }

    /// An extent that must be known.
    pub(super) fn extent(&self, e: ExprId, axis: usize) -> Convert<i64> {
        let ty = self.im.b.tensor(e)?;
        let d =
            ty.shape.get(axis).ok_or_else(|| self.refuse(format!("an operand is {ty}, which has no axis {axis}")))?;
        d.known().ok_or_else(|| {
            self.refuse(format!(
                "an operand is {ty}: the extent of axis {axis} should be known (see --dim and --shape)"
            ))
        })
    }

    /// An axis counted from the front.
    pub(super) fn axis_of(&self, axis: i64, rank: usize) -> Convert<usize> {
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(at) {
            Ok(a) if a < rank => Ok(a),
            _ => Err(self.refuse(format!("axis {axis} is not one of {rank} axes"))),
        }
    }

    /// An attribute, where it is given.
    pub(super) fn attr(&self, name: &str) -> Option<&'m AttributeProto> {
        self.proto.attribute.iter().find(|a| a.name == name).and_then(|a| self.im.resolved(a))
    }

    fn of_kind(&self, name: &str, kind: i32) -> Convert<Option<&'m AttributeProto>> {
        match self.attr(name) {
            // The first exporters did not write kinds.
            Some(a) if a.r#type != kind && a.r#type != 0 => {
                Err(self.refuse(format!("its attribute `{name}` is of another kind than it should be")))
            }
            found => Ok(found),
        }
    }

    /// An integer attribute, where it is given.
    pub(super) fn opt_int(&self, name: &str) -> Convert<Option<i64>> {
        Ok(self.of_kind(name, kinds::INT)?.map(|a| a.i.unwrap_or(0)))
    }

    /// An integer attribute with a default.
    pub(super) fn int(&self, name: &str, default: i64) -> Convert<i64> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    /// A flag.
    pub(super) fn flag(&self, name: &str, default: bool) -> Convert<bool> {
        Ok(self.int(name, default.into())? != 0)
    }

    /// A number, where it is given.
    pub(super) fn opt_float(&self, name: &str) -> Convert<Option<f64>> {
        Ok(self.of_kind(name, kinds::FLOAT)?.map(|a| a.f.unwrap_or(0.0).into()))
    }

    /// A number with a default.
    pub(super) fn float(&self, name: &str, default: f64) -> Convert<f64> {
        Ok(self.opt_float(name)?.unwrap_or(default))
    }

    /// A string with a default.
    pub(super) fn text(&self, name: &str, default: &str) -> Convert<String> {
        match self.of_kind(name, kinds::STRING)? {
            None => Ok(default.to_owned()),
            Some(a) => self.utf8(name, a.s.as_deref().unwrap_or_default()),
        }
    }

    fn utf8(&self, name: &str, bytes: &[u8]) -> Convert<String> {
        String::from_utf8(bytes.to_vec()).map_err(|_| self.refuse(format!("its attribute `{name}` is not UTF-8")))
    }

    /// Strings, where they are given.
    pub(super) fn texts(&self, name: &str) -> Convert<Option<Vec<String>>> {
        match self.of_kind(name, kinds::STRINGS)? {
            None => Ok(None),
            Some(a) => a.strings.iter().map(|s| self.utf8(name, s)).collect::<Convert<Vec<_>>>().map(Some),
        }
    }

    /// Integers, where they are given.
    pub(super) fn ints(&self, name: &str) -> Convert<Option<Vec<i64>>> {
        Ok(self.of_kind(name, kinds::INTS)?.map(|a| a.ints.clone()))
    }

    /// Numbers, where they are given.
    pub(super) fn floats(&self, name: &str) -> Convert<Option<Vec<f64>>> {
        Ok(self.of_kind(name, kinds::FLOATS)?.map(|a| a.floats.iter().map(|&f| f.into()).collect()))
    }

    /// A tensor, where it is given.
    pub(super) fn tensor_attr(&self, name: &str) -> Convert<Option<(Elem, Tensor)>> {
        match self.of_kind(name, kinds::TENSOR)?.and_then(|a| a.t.as_ref()) {
            None => Ok(None),
            Some(t) => self.read_tensor(name, t).map(Some),
        }
    }

    fn read_tensor(&self, name: &str, t: &TensorProto) -> Convert<(Elem, Tensor)> {
        tensors::read(t, self.im.files()).map_err(|e| self.refuse(format!("its attribute `{name}` {e}")))
    }

    /// A body.
    pub(super) fn graph(&self, name: &str) -> Convert<&'m GraphProto> {
        let found = self.of_kind(name, kinds::GRAPH)?.and_then(|a| a.g.as_ref());
        found.ok_or_else(|| self.refuse(format!("its attribute `{name}` is not given")))
    }

    /// An element type, by ONNX's number.
    pub(super) fn elem(&self, code: i64) -> Convert<Elem> {
        let elem = i32::try_from(code).ok().and_then(Elem::of);
        elem.ok_or_else(|| self.refuse(format!("there is no element type {code}")))
    }

    /// An element type that Relay has, by ONNX's number in an attribute with a default.
    pub(super) fn dtype_attr(&self, name: &str, default: DType) -> Convert<DType> {
        match self.opt_int(name)? {
            None => Ok(default),
            Some(code) => match self.elem(code)? {
                Elem::Plain(d) => Ok(d),
                other => {
                    Err(self.refuse(format!("its attribute `{name}` is {}, which is not supported here", other.name())))
                }
            },
        }
    }

    /// A tensor of elements that Relay has, as an output.
    pub(super) fn out(&self, e: ExprId) -> Convert<Val> {
        Ok(Val::Tensor(Tens { e, elem: Elem::Plain(self.dtype(e)?) }))
    }

    /// Such a tensor as the only output.
    pub(super) fn one(&self, e: ExprId) -> Convert<Vec<Val>> {
        Ok(vec![self.out(e)?])
    }

    /// Whether the node's output `i` is wanted.
    pub(super) fn wants(&self, i: usize) -> bool {
        self.proto.output.get(i).is_some_and(|o| !o.is_empty())
    }
}
