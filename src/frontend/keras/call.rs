//! Calls of layers: what converters are given, and what they write Relay with.

use std::{rc::Rc, sync::Arc};

use hashbrown::HashMap;
use serde_json::Value as Json;

use super::{
    layer::Layer,
    layers,
    model::{self, Places},
    weights::Weights,
};
use crate::{
    diag::Refused,
    frontend::{Builder, Convert},
    ir::{AttrValue, ExprId},
    tensor::{DType, Tensor},
};

/// Models and wrappers within each other are read up to this depth.
const DEEPEST: usize = 64;

/// Models that call models that call models grow beyond any file: programs of more operators are refused.
const MOST_OPERATORS: usize = 1_000_000;

/// Lists of more numbers are not made up.
const MOST_NUMBERS: i64 = 1 << 24;

/// A tensor on its way through a model.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Held {
    /// Its value.
    pub id: ExprId,
    /// Which steps count: `bool`, of the value's first axes. None where all do.
    pub mask: Option<ExprId>,
}

/// What a layer is called with or gives: tensors, and structures of them.
#[derive(Clone, Debug)]
pub enum Arg {
    /// A tensor.
    Tensor(Held),
    /// A list or tuple.
    List(Vec<Arg>),
    /// A dictionary.
    Dict(Vec<(String, Arg)>),
    /// Anything else.
    Json(Json),
}

impl Arg {
    /// A tensor without a mask.
    pub fn of(id: ExprId) -> Arg {
        Arg::Tensor(Held { id, mask: None })
    }

    /// The tensors in it, depth first; dictionaries in the order of their keys, as Keras does.
    pub fn tensors(&self) -> Vec<Held> {
        match self {
            Arg::Tensor(t) => vec![*t],
            Arg::List(items) => items.iter().flat_map(Arg::tensors).collect(),
            Arg::Dict(items) => {
                let mut sorted: Vec<&(String, Arg)> = items.iter().collect();
                sorted.sort_by(|a, b| a.0.cmp(&b.0));
                sorted.into_iter().flat_map(|(_, a)| a.tensors()).collect()
            }
            Arg::Json(_) => Vec::new(),
        }
    }

    /// The same structure with every tensor replaced.
    pub(super) fn map(&self, f: &mut impl FnMut(Held) -> Convert<Held>) -> Convert<Arg> {
        Ok(match self {
            Arg::Tensor(t) => Arg::Tensor(f(*t)?),
            Arg::List(items) => Arg::List(items.iter().map(|a| a.map(f)).collect::<Convert<_>>()?),
            Arg::Dict(items) => {
                Arg::Dict(items.iter().map(|(k, a)| Ok((k.clone(), a.map(f)?))).collect::<Convert<_>>()?)
            }
            Arg::Json(v) => Arg::Json(v.clone()),
        })
    }

    /// Whether it stands for Python's `None`.
    pub fn is_none(&self) -> bool {
        matches!(self, Arg::Json(Json::Null))
    }
}

/// What all calls of a model share.
pub(super) struct State {
    pub b: Builder,
    pub weights: Weights,
    /// Arrays that became weights of the program, by path and what was done to them.
    made: HashMap<(String, String), ExprId>,
    depth: usize,
    operators: usize,
    /// Where layers stand in the list that messages point at.
    pub places: Places,
}

impl State {
    pub(super) fn new(weights: Weights) -> State {
        State { b: Builder::new(), weights, made: HashMap::new(), depth: 0, operators: 0, places: Places::none() }
    }
}

/// One call of a layer, as its converter sees it: the layer, the arguments, and the program so far.
pub struct Call<'s> {
    pub(super) s: &'s mut State,
    /// The layer.
    pub layer: Rc<Layer>,
    /// The positional arguments.
    pub args: Vec<Arg>,
    /// The other arguments, by name.
    pub kwargs: Vec<(String, Arg)>,
}

/// Calls a layer: arguments become of its type, its converter writes Relay, masks are passed on.
pub(super) fn invoke(s: &mut State, layer: &Rc<Layer>, args: Vec<Arg>, kwargs: Vec<(String, Arg)>) -> Convert<Arg> {
    if s.depth >= DEEPEST {
        return Err(layer.refuse("layers are nested too deeply"));
    }
    s.depth += 1;
    let before = s.b.at(layer.span.clone());
    let found = invoke_at_depth(s, layer, args, kwargs);
    s.b.at(before);
    s.depth -= 1;
    found
}

fn invoke_at_depth(s: &mut State, layer: &Rc<Layer>, args: Vec<Arg>, kwargs: Vec<(String, Arg)>) -> Convert<Arg> {
    if layer.is_model() && layers::registered(layer).is_none() {
        return model::call_model(s, layer, args);
    }
    let converter = layers::find(layer)?;
    let mut call = Call { s, layer: layer.clone(), args, kwargs };
    if converter.autocasts && call.layer.bool("autocast", true) {
        call.cast_arguments()?;
    }
    let first = call.args.first().map(Arg::tensors).unwrap_or_default();
    let out = (converter.convert)(&mut call).map_err(|why| call.named(why))?;
    let mask = first.first().and_then(|t| t.mask);
    let mut pass = |t: Held| Ok(Held { mask: t.mask.or(mask), ..t });
    if converter.passes_masks { out.map(&mut pass) } else { Ok(out) }
}

impl Call<'_> {
    /// A refusal with the layer's name, where what complained did not know it.
    fn named(&self, why: Refused) -> Refused {
        let known = format!("layer `{}`", self.layer.name());
        let name = |mut d: crate::diag::Diagnostic| {
            if !d.message.starts_with("layer `") && !d.message.contains(&known) {
                d.message = format!("layer `{}` ({}): {}", self.layer.name(), self.layer.class(), d.message);
            }
            let span = d.span.clone().or(self.layer.span.clone());
            d.at(span)
        };
        Refused(why.0.into_iter().map(name).collect())
    }

    fn cast_arguments(&mut self) -> Convert<()> {
        let compute = self.layer.policy()?.compute;
        if !compute.is_float() {
            return Ok(());
        }
        let args = std::mem::take(&mut self.args);
        let kwargs = std::mem::take(&mut self.kwargs);
        let mut cast = |t: Held| {
            let float = self.s.b.tensor(t.id)?.dtype.is_float();
            Ok(if float { Held { id: self.cast(t.id, compute)?, ..t } } else { t })
        };
        let args = args.iter().map(|a| a.map(&mut cast)).collect::<Convert<_>>()?;
        let kwargs = kwargs.iter().map(|(k, a)| Ok((k.clone(), a.map(&mut cast)?))).collect::<Convert<_>>()?;
        (self.args, self.kwargs) = (args, kwargs);
        Ok(())
    }

    /// The program so far, for what this has no function for.
    pub fn builder(&mut self) -> &mut Builder {
        &mut self.s.b
    }

    /// A refusal that names the layer.
    pub fn refuse(&self, message: impl AsRef<str>) -> Refused {
        self.layer.refuse(message)
    }

    /// The first argument, a tensor.
    ///
    /// # Errors
    /// Where it is missing or something else.
    pub fn input(&self) -> Convert<ExprId> {
        Ok(self.held()?.id)
    }

    /// The first argument with its mask.
    ///
    /// # Errors
    /// As [`Call::input`].
    pub fn held(&self) -> Convert<Held> {
        match self.args.first().or_else(|| self.named_arg("inputs")).or_else(|| self.named_arg("x")) {
            Some(Arg::Tensor(t)) => Ok(*t),
            Some(Arg::List(items)) if items.len() == 1 => match &items[0] {
                Arg::Tensor(t) => Ok(*t),
                _ => Err(self.refuse("its input is not a tensor")),
            },
            Some(_) => Err(self.refuse("its input is not a tensor")),
            None => Err(self.refuse("it is called without an input")),
        }
    }

    /// The argument at a position or of a name; `None` where it is absent or Python's `None`.
    pub fn arg(&self, position: usize, name: &str) -> Option<&Arg> {
        self.args.get(position).or_else(|| self.named_arg(name)).filter(|a| !a.is_none())
    }

    fn named_arg(&self, name: &str) -> Option<&Arg> {
        self.kwargs.iter().find(|(k, _)| k == name).map(|(_, a)| a)
    }

    /// A tensor that may be given at a position or by a name.
    ///
    /// # Errors
    /// Where what is given is not a tensor.
    pub fn tensor_arg(&self, position: usize, name: &str) -> Convert<Option<Held>> {
        match self.arg(position, name) {
            None => Ok(None),
            Some(Arg::Tensor(t)) => Ok(Some(*t)),
            Some(_) => Err(self.refuse(format!("its argument `{name}` is not a tensor"))),
        }
    }

    /// A boolean argument given by name; false where it is absent.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.named_arg(name), Some(Arg::Json(Json::Bool(true))))
    }

    /// The mask of the first argument, or that given as `mask`.
    ///
    /// # Errors
    /// Where what is given as mask is no tensor.
    pub fn mask(&mut self) -> Convert<Option<ExprId>> {
        let given = match self.named_arg("mask") {
            Some(Arg::Tensor(t)) => Some(t.id),
            Some(Arg::List(items)) => items.first().and_then(|a| a.tensors().first().map(|t| t.id)),
            Some(Arg::Json(Json::Null)) | None => None,
            Some(_) => return Err(self.refuse("its argument `mask` is not a tensor")),
        };
        let own = self.args.first().and_then(|a| a.tensors().first().and_then(|t| t.mask));
        match given.or(own) {
            Some(m) => Ok(Some(self.cast(m, DType::Bool)?)),
            None => Ok(None),
        }
    }

    /// Calls a layer that this one has within itself. `groups` are the names that the group of its arrays may have.
    ///
    /// # Errors
    /// What its converter refuses.
    pub(super) fn call_inner(&mut self, inner: &Rc<Layer>, args: Vec<Arg>, kwargs: Vec<(String, Arg)>) -> Convert<Arg> {
        invoke(self.s, inner, args, kwargs)
    }

    /// Does something as another layer would: with its configuration and its arrays.
    pub(super) fn within<T>(&mut self, layer: &Rc<Layer>, f: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.layer, layer.clone());
        let out = f(self);
        self.layer = before;
        out
    }

    /// Says where the arrays of an inner layer are: `groups` are the names that their group may have.
    pub(super) fn place(&self, inner: &mut Layer, groups: &[&str]) {
        inner.place.group = self.s.weights.part(&self.layer.place.group, groups);
        inner.place.names = self.layer.place.names.clone();
        inner.place.names.push(inner.name().to_owned());
    }

    // --- arrays ---

    /// An array of the layer: its number among the layer's arrays, and the name that Keras gives it (`kernel`). Floats come as
    /// what the layer computes in.
    ///
    /// # Errors
    /// Where the file has no such array, or it can't be read.
    pub fn array(&mut self, index: usize, name: &str) -> Convert<Tensor> {
        Ok(self.array_if_there(index, name)?.ok_or_else(|| self.no_array(index, name))?.1)
    }

    fn no_array(&self, index: usize, name: &str) -> Refused {
        self.refuse(format!("the file has no array `{name}` (number {index}) for it"))
    }

    /// As [`Call::array`], with the array's path in the file; `None` where the file has no such array.
    ///
    /// # Errors
    /// Where the array can't be read.
    pub fn array_if_there(&mut self, index: usize, name: &str) -> Convert<Option<(String, Tensor)>> {
        let compute = self.layer.policy()?.compute;
        self.array_as(index, name, compute)
    }

    fn array_as(&mut self, index: usize, name: &str, dtype: DType) -> Convert<Option<(String, Tensor)>> {
        let found = self.s.weights.get(&self.layer.place, index, name).map_err(|e| self.refuse(e))?;
        let Some(found) = found else { return Ok(None) };
        let (path, t) = &*found;
        Ok(Some((path.clone(), as_float(t, dtype))))
    }

    /// An array as a weight of the program, as `float32` or wider whatever the layer computes in.
    ///
    /// # Errors
    /// As [`Call::array`].
    pub fn wide_weight(&mut self, index: usize, name: &str) -> Convert {
        let compute = self.layer.policy()?.compute;
        let dtype = if compute == DType::F64 { compute } else { DType::F32 };
        self.weight_of(index, name, "", dtype, Ok)
    }

    /// An array as a weight of the program.
    ///
    /// # Errors
    /// As [`Call::array`].
    pub fn weight(&mut self, index: usize, name: &str) -> Convert {
        self.weight_as(index, name, "", Ok)
    }

    /// An array as a weight of the program, changed: `how` tells one change from another, since layers share arrays.
    ///
    /// # Errors
    /// As [`Call::array`], and what the change says.
    pub fn weight_as(
        &mut self,
        index: usize,
        name: &str,
        how: &str,
        change: impl FnOnce(Tensor) -> Result<Tensor, String>,
    ) -> Convert {
        let compute = self.layer.policy()?.compute;
        self.weight_of(index, name, how, compute, change)
    }

    fn weight_of(
        &mut self,
        index: usize,
        name: &str,
        how: &str,
        dtype: DType,
        change: impl FnOnce(Tensor) -> Result<Tensor, String>,
    ) -> Convert {
        let (path, t) = self.array_as(index, name, dtype)?.ok_or_else(|| self.no_array(index, name))?;
        let key = (path, format!("{how} {}", t.dtype()));
        if let Some(&id) = self.s.made.get(&key) {
            return Ok(id);
        }
        // Only its scale would say what it stands for.
        if matches!(t.dtype(), DType::I8 | DType::U8) && dtype.is_float() && !self.layer.of_bytes() {
            return Err(
                self.refuse(format!("array `{name}` is of {}, but its dtype policy does not quantize", t.dtype()))
            );
        }
        let t = change(t).map_err(|e| self.refuse(format!("array `{name}`: {e}")))?;
        let called = format!("{}/{name}", self.layer.place.names.join("/"));
        let id = self.s.b.weight(&called, t);
        self.s.made.insert(key, id);
        Ok(id)
    }

    // --- types ---

    /// The element type of a tensor.
    ///
    /// # Errors
    /// Where it is not a tensor.
    pub fn dtype(&self, x: ExprId) -> Convert<DType> {
        Ok(self.s.b.tensor(x)?.dtype)
    }

    /// The extents of a tensor; `None` for those that are not known.
    ///
    /// # Errors
    /// Where it is not a tensor.
    pub fn shape(&self, x: ExprId) -> Convert<Vec<Option<i64>>> {
        Ok(self.s.b.tensor(x)?.shape.iter().map(|d| d.known()).collect())
    }

    /// The number of axes.
    ///
    /// # Errors
    /// Where it is not a tensor.
    pub fn rank(&self, x: ExprId) -> Convert<usize> {
        Ok(self.s.b.tensor(x)?.rank())
    }

    /// An extent that must be known.
    ///
    /// # Errors
    /// Where it is not, with advice.
    pub fn extent(&self, x: ExprId, axis: usize) -> Convert<i64> {
        let shape = self.shape(x)?;
        let Some(n) = shape.get(axis) else { return Err(self.refuse(format!("its input has no axis {axis}"))) };
        n.ok_or_else(|| {
            let mut why = self.refuse(format!("the extent of axis {axis} of its input must be known"));
            for d in &mut why.0 {
                d.help = Some("give the input's shape with --shape".to_owned());
            }
            why
        })
    }

    /// A number of elements that a constant is to have.
    ///
    /// # Errors
    /// Where it is negative or so large that a damaged file must be the reason.
    pub fn count(&self, n: i64) -> Convert<usize> {
        match (0..=MOST_NUMBERS).contains(&n) {
            true => Ok(n as usize),
            false => Err(self.refuse(format!("a list of {n} numbers is not supported"))),
        }
    }

    /// An axis, counted from the end where negative.
    ///
    /// # Errors
    /// Where there is none.
    pub fn axis(&self, axis: i64, rank: usize) -> Convert<usize> {
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(at) {
            Ok(at) if at < rank => Ok(at),
            _ => Err(self.refuse(format!("there is no axis {axis} of {rank}"))),
        }
    }

    // --- operators ---

    /// Calls an operator of Relay.
    ///
    /// # Errors
    /// What its type relation does not allow.
    pub fn op(&mut self, name: &str, args: &[ExprId], attrs: &[(&str, AttrValue)]) -> Convert {
        self.s.operators += 1;
        if self.s.operators > MOST_OPERATORS {
            return Err(self.refuse(format!("the model takes more than {MOST_OPERATORS} operators")));
        }
        self.s.b.op(name, args, attrs)
    }

    /// An operator of one argument without attributes.
    ///
    /// # Errors
    /// As [`Call::op`].
    pub fn un(&mut self, name: &str, x: ExprId) -> Convert {
        self.op(name, &[x], &[])
    }

    /// An operator of two arguments without attributes.
    ///
    /// # Errors
    /// As [`Call::op`].
    pub fn bin(&mut self, name: &str, a: ExprId, b: ExprId) -> Convert {
        self.op(name, &[a, b], &[])
    }

    /// An operator of a tensor and a number.
    ///
    /// # Errors
    /// As [`Call::op`].
    pub fn with(&mut self, name: &str, x: ExprId, value: f64) -> Convert {
        let value = self.number(x, value)?;
        self.bin(name, x, value)
    }

    /// A number of a tensor's element type.
    ///
    /// # Errors
    /// Where it is not a tensor.
    pub fn number(&mut self, like: ExprId, value: f64) -> Convert {
        let dtype = self.dtype(like)?;
        Ok(self.s.b.scalar(dtype, value))
    }

    /// A tensor of another element type; itself where it has that type.
    ///
    /// # Errors
    /// Where it is not a tensor.
    pub fn cast(&mut self, x: ExprId, dtype: DType) -> Convert {
        if self.dtype(x)? == dtype {
            return Ok(x);
        }
        self.op("cast", &[x], &[("dtype", dtype.into())])
    }

    /// A reshape, with Relay's special numbers.
    ///
    /// # Errors
    /// Where the elements do not fit.
    pub fn reshape(&mut self, x: ExprId, shape: &[i64]) -> Convert {
        let known: Option<Vec<i64>> = self.shape(x)?.into_iter().collect();
        if known.is_some_and(|k| k == shape && !shape.contains(&0)) {
            return Ok(x);
        }
        self.op("reshape", &[x], &[("newshape", shape.into())])
    }

    /// The axes in another order.
    ///
    /// # Errors
    /// Where they are not all named once.
    pub fn transpose(&mut self, x: ExprId, axes: &[i64]) -> Convert {
        if axes.iter().enumerate().all(|(i, &a)| i as i64 == a) {
            return Ok(x);
        }
        self.op("transpose", &[x], &[("axes", axes.into())])
    }

    /// New axes of extent 1 before an axis.
    ///
    /// # Errors
    /// Where there is no such place.
    pub fn expand(&mut self, x: ExprId, axis: i64, count: i64) -> Convert {
        if count == 0 {
            return Ok(x);
        }
        self.op("expand_dims", &[x], &[("axis", axis.into()), ("num_newaxis", count.into())])
    }

    /// A reduction over axes.
    ///
    /// # Errors
    /// Where there are no such axes.
    pub fn reduce(&mut self, name: &str, x: ExprId, axes: &[i64], keep: bool) -> Convert {
        self.op(name, &[x], &[("axis", axes.into()), ("keepdims", keep.into())])
    }

    /// Elements from `begin` to before `end` along an axis.
    ///
    /// # Errors
    /// Where there is no such axis.
    pub fn slice(&mut self, x: ExprId, axis: i64, begin: i64, end: i64) -> Convert {
        let attrs =
            [("begin", [begin].into()), ("end", [end].into()), ("strides", [1].into()), ("axes", [axis].into())];
        self.op("strided_slice", &[x], &attrs)
    }

    /// Tensors one after another along an axis.
    ///
    /// # Errors
    /// Where their shapes do not fit.
    pub fn concat(&mut self, parts: &[ExprId], axis: i64) -> Convert {
        if let [one] = parts {
            return Ok(*one);
        }
        let tuple = self.s.b.tuple(parts);
        self.op("concatenate", &[tuple], &[("axis", axis.into())])
    }

    /// Elements before and after each axis.
    ///
    /// # Errors
    /// Where the operator does not allow it.
    pub fn pad(&mut self, x: ExprId, widths: &[(i64, i64)], value: f64) -> Convert {
        if widths.iter().all(|&w| w == (0, 0)) {
            return Ok(x);
        }
        let value = self.number(x, value)?;
        let widths = widths.iter().map(|&(a, b)| AttrValue::ints(&[a, b])).collect();
        self.op("nn.pad", &[x, value], &[("pad_width", AttrValue::List(widths))])
    }

    /// `x` with borders of its own elements; `mode` is `REFLECT` or `SYMMETRIC`.
    ///
    /// # Errors
    /// Where there are not as many widths as axes, or fewer elements than a border takes.
    pub fn mirror(&mut self, x: ExprId, widths: &[(i64, i64)], mode: &str) -> Convert {
        let widths = widths.iter().map(|&(a, b)| AttrValue::ints(&[a, b])).collect();
        self.op("nn.mirror_pad", &[x], &[("pad_width", AttrValue::List(widths)), ("mode", mode.into())])
    }

    /// One where a condition holds, else the other.
    ///
    /// # Errors
    /// Where they do not broadcast.
    pub fn select(&mut self, condition: ExprId, then: ExprId, otherwise: ExprId) -> Convert {
        self.op("where", &[condition, then, otherwise], &[])
    }

    /// The product of a tensor's last axis with a matrix of (inputs, outputs) that was turned: (outputs, inputs).
    ///
    /// # Errors
    /// Where extents do not fit.
    pub fn dense(&mut self, x: ExprId, weight: ExprId) -> Convert {
        self.op("nn.dense", &[x, weight], &[])
    }

    /// A constant.
    pub fn constant(&mut self, t: Tensor) -> ExprId {
        self.s.b.constant(t)
    }
}

/// A tensor with its elements as another float type; integers stay.
pub(super) fn as_float(t: &Tensor, dtype: DType) -> Tensor {
    match t.dtype().is_float() && dtype.is_float() && t.dtype() != dtype {
        true => Tensor::from_f64_fn(dtype, t.shape(), |i| t.get_f64(i)),
        false => t.clone(),
    }
}

/// The transposed copy of a matrix.
pub(super) fn turned(t: &Tensor) -> Result<Tensor, String> {
    let &[rows, columns] = t.shape() else { return Err(format!("it has {} axes, not two", t.shape().len())) };
    Ok(t.pick(&[columns, rows], |i| Some(i % rows.max(1) * columns + i / rows.max(1))))
}

/// A converter of a class, as [`register`](super::register) takes it.
pub type Converter = Arc<dyn Fn(&mut Call) -> Convert<Arg> + Send + Sync>;
