//! An operator that is being converted: its arguments and options, and short forms of what conversions are made of.

use super::schema::{Element, Graph, Operator, Quant, TensorInfo};
use crate::{
    frontend::{Builder, Convert},
    ir::{AttrValue, Dim, ExprId},
    tensor::{DType, Tensor},
};

/// An operator and what it is given.
pub(super) struct Node<'n, 'a> {
    /// The Relay so far.
    pub(super) b: &'n mut Builder,
    graph: &'a Graph<'a>,
    /// The operator.
    pub(super) op: &'a Operator<'a>,
    args: Vec<Option<ExprId>>,
}

impl<'n, 'a> Node<'n, 'a> {
    /// An operator of a subgraph with its arguments.
    pub(super) fn new(
        b: &'n mut Builder,
        graph: &'a Graph<'a>,
        op: &'a Operator<'a>,
        args: Vec<Option<ExprId>>,
    ) -> Node<'n, 'a> {
        Node { b, graph, op, args }
    }

    /// A refusal that names the operator.
    pub(super) fn refuse<T>(&self, message: impl std::fmt::Display) -> Convert<T> {
        Err(self.b.refuse(format!("{}: {message}", self.op.name)))
    }

    /// Number of arguments, those that are left out among them.
    pub(super) fn count(&self) -> usize {
        self.args.len()
    }

    /// An argument.
    pub(super) fn x(&self, i: usize) -> Convert {
        match self.opt(i) {
            Some(e) => Ok(e),
            None => self.refuse(format!("input {i} is missing")),
        }
    }

    /// An argument that may be left out.
    pub(super) fn opt(&self, i: usize) -> Option<ExprId> {
        self.args.get(i).copied().flatten()
    }

    /// What the file says of an argument.
    pub(super) fn input(&self, i: usize) -> Convert<&'a TensorInfo<'a>> {
        match self.op.inputs.get(i).copied().flatten() {
            Some(t) => Ok(&self.graph.tensors[t]),
            None => self.refuse(format!("input {i} is missing")),
        }
    }

    /// What the file says of a result.
    pub(super) fn output(&self, i: usize) -> Convert<&'a TensorInfo<'a>> {
        match self.op.outputs.get(i) {
            Some(&t) => Ok(&self.graph.tensors[t]),
            None => self.refuse(format!("output {i} is missing")),
        }
    }

    /// What the file says of a tensor within the operator's computation.
    pub(super) fn intermediate(&self, i: usize) -> Option<&'a TensorInfo<'a>> {
        self.op.intermediates.get(i).copied().flatten().map(|t| &self.graph.tensors[t])
    }

    /// The element type of a result.
    pub(super) fn out_dtype(&self, i: usize) -> Convert<DType> {
        let info = self.output(i)?;
        match info.element {
            Element::Plain(d) => Ok(d),
            other => self.refuse(format!("`{}` is of {other:?}", info.name)),
        }
    }

    /// An integer of the options.
    pub(super) fn int(&self, slot: u16, default: i64) -> i64 {
        self.op.options.and_then(|o| o.int(slot)).map_or(default, i64::from)
    }

    /// A byte of the options: an enumeration.
    pub(super) fn byte(&self, slot: u16) -> i8 {
        self.op.options.and_then(|o| o.byte(slot)).unwrap_or(0)
    }

    /// A truth value of the options.
    pub(super) fn flag(&self, slot: u16) -> bool {
        self.byte(slot) != 0
    }

    /// A number of the options.
    pub(super) fn number(&self, slot: u16) -> f32 {
        self.op.options.and_then(|o| o.float(slot)).unwrap_or(0.0)
    }

    /// The value of an argument that must follow from constants.
    pub(super) fn constant(&mut self, i: usize) -> Convert<Tensor> {
        let e = self.x(i)?;
        match self.b.value(e) {
            Some(t) => Ok(t),
            None => {
                let name = &self.input(i)?.name;
                self.refuse(format!("input {i} (`{name}`) should be constant"))
            }
        }
    }

    /// The integers of an argument that must follow from constants.
    pub(super) fn ints(&mut self, i: usize) -> Convert<Vec<i64>> {
        Ok(self.constant(i)?.to_i64_vec())
    }

    /// The one scale and zero point of an argument; refused where there is none.
    pub(super) fn quant_in(&self, i: usize) -> Convert<(f32, i64)> {
        self.single(self.input(i)?)
    }

    /// The one scale and zero point of a result; refused where there is none.
    pub(super) fn quant_out(&self, i: usize) -> Convert<(f32, i64)> {
        self.single(self.output(i)?)
    }

    /// The one scale and zero point of a tensor; refused where there is none.
    pub(super) fn single(&self, info: &TensorInfo) -> Convert<(f32, i64)> {
        match &info.quant {
            Some(Quant { scales, zeros, .. }) if scales.len() == 1 => Ok((scales[0], zeros[0])),
            Some(_) => self.refuse(format!("`{}` has a scale per channel, which is not supported here", info.name)),
            None => self.refuse(format!("`{}` has no scale", info.name)),
        }
    }

    /// Whether a tensor is integers that stand for numbers.
    pub(super) fn is_quantized(info: &TensorInfo) -> bool {
        info.quant.is_some() && matches!(info.element, Element::Plain(DType::I8 | DType::U8 | DType::I16))
    }

    /// Whether result 0 is integers that stand for numbers.
    pub(super) fn quantized(&self) -> Convert<bool> {
        Ok(Self::is_quantized(self.output(0)?))
    }

    /// Calls an operator of Relay.
    pub(super) fn op(&mut self, name: &str, args: &[ExprId], attrs: &[(&str, AttrValue)]) -> Convert {
        self.b.op(name, args, attrs)
    }

    /// Calls an operator of one argument without attributes.
    pub(super) fn un(&mut self, name: &str, x: ExprId) -> Convert {
        self.b.op(name, &[x], &[])
    }

    /// Calls an operator of two arguments without attributes.
    pub(super) fn bin(&mut self, name: &str, x: ExprId, y: ExprId) -> Convert {
        self.b.op(name, &[x, y], &[])
    }

    /// An operator of two arguments, of which the second is a number of the first one's element type.
    pub(super) fn with(&mut self, name: &str, x: ExprId, y: f64) -> Convert {
        let y = self.num(x, y)?;
        self.bin(name, x, y)
    }

    /// A number of an expression's element type.
    pub(super) fn num(&mut self, like: ExprId, value: f64) -> Convert {
        let dtype = self.dtype(like)?;
        Ok(self.b.scalar(dtype, value))
    }

    /// An expression's element type.
    pub(super) fn dtype(&self, e: ExprId) -> Convert<DType> {
        Ok(self.b.tensor(e)?.dtype)
    }

    /// An expression's number of axes.
    pub(super) fn rank(&self, e: ExprId) -> Convert<usize> {
        Ok(self.b.tensor(e)?.rank())
    }

    /// An expression's extents; `None` where it is known only at run time.
    pub(super) fn shape(&self, e: ExprId) -> Convert<Vec<Option<i64>>> {
        Ok(self.b.tensor(e)?.shape.iter().map(|d: &Dim| d.known()).collect())
    }

    /// An expression's extents, refused where one is unknown.
    pub(super) fn known(&self, e: ExprId) -> Convert<Vec<i64>> {
        match self.b.tensor(e)?.known_shape() {
            Some(s) => Ok(s),
            None => self.refuse(format!("the shape of {} should be known", self.b.ty(e))),
        }
    }

    /// One extent, refused where it is unknown.
    pub(super) fn extent(&self, e: ExprId, axis: usize) -> Convert<i64> {
        match self.shape(e)?.get(axis).copied().flatten() {
            Some(n) => Ok(n),
            None => self.refuse(format!("axis {axis} of {} should be known", self.b.ty(e))),
        }
    }

    /// An axis that may be counted from the end.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Convert<usize> {
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(at).ok().filter(|&a| a < rank) {
            Some(a) => Ok(a),
            None => self.refuse(format!("there is no axis {axis} among {rank}")),
        }
    }

    /// Another element type.
    pub(super) fn cast(&mut self, x: ExprId, dtype: DType) -> Convert {
        if self.dtype(x)? == dtype {
            return Ok(x);
        }
        self.b.op("cast", &[x], &[("dtype", dtype.into())])
    }

    /// Another shape; -1 is what is left, 0 what is there.
    pub(super) fn reshape(&mut self, x: ExprId, shape: &[i64]) -> Convert {
        self.b.op("reshape", &[x], &[("newshape", shape.into())])
    }

    /// Another shape, in which 0 is the extent 0.
    pub(super) fn reshape_exact(&mut self, x: ExprId, shape: &[i64]) -> Convert {
        self.b.op("reshape", &[x], &[("newshape", shape.into()), ("allowzero", true.into())])
    }

    /// Axes in another order.
    pub(super) fn transpose(&mut self, x: ExprId, axes: &[i64]) -> Convert {
        if axes.iter().enumerate().all(|(i, &a)| a == i as i64) {
            return Ok(x);
        }
        self.b.op("transpose", &[x], &[("axes", axes.into())])
    }

    /// An axis of extent 1 at `axis`.
    pub(super) fn expand(&mut self, x: ExprId, axis: i64) -> Convert {
        self.b.op("expand_dims", &[x], &[("axis", axis.into())])
    }

    /// Values within bounds.
    pub(super) fn clip(&mut self, x: ExprId, low: f64, high: f64) -> Convert {
        self.b.op("clip", &[x], &[("a_min", low.into()), ("a_max", high.into())])
    }

    /// Elements `begin..end` along an axis.
    pub(super) fn slice(&mut self, x: ExprId, axis: i64, begin: i64, end: i64) -> Convert {
        let attrs =
            [("begin", [begin].into()), ("end", [end].into()), ("strides", [1].into()), ("axes", [axis].into())];
        self.b.op("strided_slice", &[x], &attrs)
    }

    /// Tensors one after the other along an axis.
    pub(super) fn concat(&mut self, parts: &[ExprId], axis: i64) -> Convert {
        let tuple = self.b.tuple(parts);
        self.b.op("concatenate", &[tuple], &[("axis", axis.into())])
    }

    /// A constant of `float32`.
    pub(super) fn f32(&mut self, value: f32) -> ExprId {
        self.b.constant(Tensor::scalar(value))
    }

    /// The fused activation of a result of plain numbers.
    pub(super) fn activate(&mut self, x: ExprId, code: i8) -> Convert {
        match code {
            0 => Ok(x),
            1 if self.dtype(x)?.is_float() => self.un("nn.relu", x),
            1 => self.with("maximum", x, 0.0),
            2 => self.clip(x, -1.0, 1.0),
            3 => self.clip(x, 0.0, 6.0),
            4 => self.un("tanh", x),
            5 => {
                // The sign bit.
                let zero = self.num(x, 0.0)?;
                let negative = self.bin("less", x, zero)?;
                let dtype = self.dtype(x)?;
                self.cast(negative, dtype)
            }
            other => self.refuse(format!("fused activation {other} is not known")),
        }
    }
}
