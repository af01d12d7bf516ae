//! Regions as graphs of primitives.
//!
//! A tensor of Relay is a tensor of the graph with its axes in some order: convolutions want `N C H W`, whatever the program's
//! layout is, and what follows them elementwise keeps that order, so that no step stands between them.

use hashbrown::HashMap;

use super::words::{axis, binary, dimensions, eltwise, extents, known, order, per_axis, permuted, spatial, windows};
use crate::{
    infer::TypedModule,
    ir::{AttrValue, Attrs, Expr, ExprId, Module, VarId, children, reachable_outside},
    partition::Region,
    runtime::onednn::{BinaryKind, EltwiseKind, Graph, Kind, PoolKind, ValueId, What},
    tensor::{DType, Tensor},
};

/// A tensor of the program: axis `k` is axis `axes[k]` of a tensor of the graph. A scalar is a vector of one element there.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) base: ValueId,
    pub(super) axes: Vec<usize>,
}

/// A sum of integers that is not made yet: its terms, and vectors along the second axis.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    pub(super) terms: Vec<(ValueId, bool)>,
    pub(super) per_channel: Vec<ValueId>,
    pub(super) axes: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(super) enum Val {
    Tensor(View),
    Sum(Sum),
    Tuple(Vec<Val>),
}

pub(super) struct Translator<'a> {
    pub(super) typed: &'a TypedModule,
    pub(super) graph: Graph,
    /// Uses of each expression within the region.
    uses: HashMap<ExprId, usize>,
}

/// What is known while one body is translated.
type Values = HashMap<ExprId, Val>;

/// The graph of a region.
pub(super) fn graph(region: &Region<'_>) -> Result<Graph, String> {
    let mut t = Translator { typed: region.typed(), graph: Graph::default(), uses: HashMap::new() };
    let f = region.function();
    let mut params = HashMap::new();
    for &p in &f.params {
        let value = t.parameter(region.typed().var_ty(p))?;
        params.insert(p, value);
    }
    let result = t.body(f.body, &params)?;
    let mut outputs = Vec::new();
    t.results(&result, &mut outputs)?;
    t.graph.outputs = outputs;
    Ok(t.graph)
}

/// The expressions of a body, children first, without those inside of functions.
fn scope(m: &Module, body: ExprId) -> Vec<ExprId> {
    reachable_outside(m, [body], |e| matches!(e, Expr::Func(_)))
}

fn identity(n: usize) -> Vec<usize> {
    (0..n).collect()
}

/// The order that undoes another.
fn inverse(axes: &[usize]) -> Vec<usize> {
    let mut out = vec![0; axes.len()];
    axes.iter().enumerate().for_each(|(k, &a)| out[a] = k);
    out
}

impl Translator<'_> {
    fn parameter(&mut self, ty: &crate::ir::Type) -> Result<Val, String> {
        if let Some(fields) = ty.as_tuple() {
            return Ok(Val::Tuple(fields.iter().map(|f| self.parameter(f)).collect::<Result<_, _>>()?));
        }
        let (shape, dtype) = known(ty).ok_or_else(|| format!("a parameter is {ty}"))?;
        let base = self.graph.value(&full(&shape), dtype);
        self.graph.inputs.push(base);
        Ok(Val::Tensor(View { base, axes: identity(shape.len()) }))
    }

    fn results(&mut self, v: &Val, out: &mut Vec<ValueId>) -> Result<(), String> {
        match v {
            Val::Tuple(fields) => fields.iter().try_for_each(|f| self.results(f, out)),
            other => {
                let view = self.materialize(other)?;
                out.push(self.plain(&view));
                Ok(())
            }
        }
    }

    fn body(&mut self, body: ExprId, params: &HashMap<VarId, Val>) -> Result<Val, String> {
        let m = self.typed.module();
        let ids = scope(m, body);
        for &e in &ids {
            children(&m[e], |c| *self.uses.entry(c).or_default() += 1);
        }
        *self.uses.entry(body).or_default() += 1;
        let mut values: Values = HashMap::new();
        for e in ids {
            if let Some(v) = self.expr(e, &values, params)? {
                values.insert(e, v);
            }
        }
        values.remove(&body).ok_or_else(|| "its result is a function".into())
    }

    fn expr(&mut self, e: ExprId, values: &Values, params: &HashMap<VarId, Val>) -> Result<Option<Val>, String> {
        let m = self.typed.module();
        Ok(Some(match &m[e] {
            Expr::Var(v) => {
                params.get(v).cloned().ok_or_else(|| format!("it reads `{}` from outside", m.var(*v).name))?
            }
            Expr::Constant(t) => {
                let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
                let base = self.graph.constant(t.clone(), &full(&shape));
                Val::Tensor(View { base, axes: identity(shape.len()) })
            }
            Expr::Tuple(fields) => Val::Tuple(fields.iter().map(|f| values[f].clone()).collect()),
            Expr::Proj(t, i) => match &values[t] {
                Val::Tuple(fields) => fields[*i].clone(),
                _ => return Err("a projection of what is no tuple".into()),
            },
            Expr::Call { callee, args, .. } => match &m[*callee] {
                Expr::Func(f) => {
                    let given = f.params.iter().copied().zip(args.iter().map(|a| values[a].clone())).collect();
                    let gelu = matches!(f.attrs.get("Composite"), Some(AttrValue::Str(s)) if super::patterns::is_gelu(s.as_str()));
                    match gelu {
                        true => self.gelu(e, args, values)?,
                        false => self.body(f.body, &given)?,
                    }
                }
                _ => {
                    let Some((op, args, attrs)) = m.op_call(e) else {
                        return Err("a call of a function from outside".into());
                    };
                    let name = op.op().name();
                    self.call(e, name, attrs, args, values).map_err(|why| format!("`{name}`: {why}"))?
                }
            },
            Expr::Func(_) | Expr::Op(_) => return Ok(None),
            _ => return Err("control flow, data types and references are not for primitives".into()),
        }))
    }

    /// The tensor that a value is.
    pub(super) fn materialize(&mut self, v: &Val) -> Result<View, String> {
        match v {
            Val::Tensor(t) => Ok(t.clone()),
            Val::Sum(s) => Ok(self.summed(s)),
            Val::Tuple(_) => Err("a tuple where a tensor should be".into()),
        }
    }

    /// The graph's tensor whose axis `k` is axis `axes[k]` of a tensor of the program.
    pub(super) fn in_order(&mut self, v: &View, axes: &[usize]) -> ValueId {
        let wanted: Vec<usize> = axes.iter().map(|&a| v.axes[a]).collect();
        if wanted.iter().enumerate().all(|(k, &a)| k == a) {
            return v.base;
        }
        let shape = self.graph.shape(v.base).to_vec();
        let moved: Vec<i64> = wanted.iter().map(|&a| shape[a]).collect();
        if let Some(t) = &self.graph.values[v.base.0].data {
            let t = permuted(t, &shape, &wanted);
            return self.graph.constant(t, &moved);
        }
        let dtype = self.graph.dtype(v.base);
        self.graph.step(What::Permute(wanted), vec![v.base], &moved, dtype)
    }

    /// The graph's tensor with the axes in the program's order.
    pub(super) fn plain(&mut self, v: &View) -> ValueId {
        self.in_order(v, &identity(v.axes.len()))
    }

    fn reshaped(&mut self, v: ValueId, shape: &[i64]) -> ValueId {
        if self.graph.shape(v) == shape {
            return v;
        }
        if let Some(t) = &self.graph.values[v.0].data {
            let t = t.reshaped(&extents(shape));
            return self.graph.constant(t, shape);
        }
        let dtype = self.graph.dtype(v);
        self.graph.step(What::Reshape, vec![v], shape, dtype)
    }

    /// The shape that the program knows.
    pub(super) fn shape(&self, v: &View) -> Vec<i64> {
        let base = self.graph.shape(v.base);
        v.axes.iter().map(|&a| base[a]).collect()
    }

    pub(super) fn constant(&self, v: &Val) -> Option<Tensor> {
        match v {
            Val::Tensor(t) => self.graph.values[t.base.0].data.clone(),
            _ => None,
        }
    }

    fn unary(&mut self, kind: Kind, v: &View, dtype: DType) -> Val {
        let shape = self.graph.shape(v.base).to_vec();
        let base = self.graph.step(What::Primitive(kind, vec![]), vec![v.base], &shape, dtype);
        Val::Tensor(View { base, axes: v.axes.clone() })
    }

    fn gelu(&mut self, e: ExprId, args: &[ExprId], values: &Values) -> Result<Val, String> {
        let (shape, dtype) = known(self.typed.ty(e)).ok_or("a result of unknown extents")?;
        for a in args {
            let v = self.materialize(&values[a])?;
            if self.shape(&v) == shape && self.graph.values[v.base.0].data.is_none() {
                return Ok(self.unary(Kind::Eltwise(EltwiseKind::GeluErf.with(0.0, 0.0)), &v, dtype));
            }
        }
        Err("a gelu of nothing".into())
    }

    fn call(&mut self, e: ExprId, name: &str, attrs: &Attrs, args: &[ExprId], values: &Values) -> Result<Val, String> {
        let tuple = [Val::Tuple(vec![])];
        let given: Vec<&Val> = args.iter().map(|a| values.get(a).unwrap_or(&tuple[0])).collect();
        if let Some(done) = self.integers(e, name, attrs, &given)? {
            return Ok(done);
        }
        let result = self.typed.ty(e).clone();
        let (shape, dtype) = known(&result).unwrap_or_default_type();
        let data = match given[0] {
            Val::Tuple(fields) => self.materialize(fields.first().ok_or("an empty tuple")?)?,
            other => self.materialize(other)?,
        };
        match name {
            "nn.batch_norm" => return self.batch_norm(attrs, &data, &given, args[0]),
            "concatenate" => return self.concatenate(attrs, given[0], &shape, dtype),
            "nn.bias_add" => {
                let bias = self.materialize(given[1])?;
                let k = axis(attrs.int("axis"), data.axes.len()).ok_or("no such axis")?;
                let mut wide = vec![1; data.axes.len()];
                wide[k] = shape[k];
                let bias = self.reshaped(bias.base, &wide);
                let bias = View { base: bias, axes: identity(wide.len()) };
                return self.binary(BinaryKind::Add, &data, &bias, &shape, dtype);
            }
            "reshape" | "nn.batch_flatten" | "expand_dims" | "squeeze" => {
                let from = self.plain(&data);
                let base = self.reshaped(from, &full(&shape));
                return Ok(Val::Tensor(View { base, axes: identity(shape.len()) }));
            }
            "transpose" => {
                let rank = data.axes.len();
                let axes = match attrs.opt_ints("axes") {
                    Some(l) if !l.is_empty() => {
                        l.iter().map(|&a| axis(a, rank)).collect::<Option<Vec<_>>>().ok_or("no such axis")?
                    }
                    _ => (0..rank).rev().collect(),
                };
                return Ok(Val::Tensor(View { base: data.base, axes: axes.iter().map(|&a| data.axes[a]).collect() }));
            }
            "cast" => return Ok(self.unary(Kind::Convert, &data, dtype)),
            "nn.softmax" | "nn.log_softmax" => {
                let k = axis(attrs.int("axis"), data.axes.len()).ok_or("no such axis")?;
                let kind = Kind::Softmax { axis: data.axes[k], log: name == "nn.log_softmax" };
                return Ok(self.unary(kind, &data, dtype));
            }
            "nn.dense" => {
                let weight = self.materialize(given[1])?;
                return self.dense(What::Primitive(Kind::InnerProduct, vec![]), &data, &weight, &shape, dtype);
            }
            "nn.matmul" | "nn.batch_matmul" => {
                let other = self.materialize(given[1])?;
                let n = data.axes.len();
                let swapped: Vec<usize> = (0..n - 2).chain([n - 1, n - 2]).collect();
                let place = |t: bool| if t { swapped.clone() } else { identity(n) };
                let x = self.in_order(&data, &place(attrs.bool("transpose_a")));
                let y = self.in_order(&other, &place(attrs.bool("transpose_b")));
                let what = What::Primitive(Kind::Matmul, vec![]);
                let base = self.graph.step(what, vec![x, y], &shape, dtype);
                return Ok(Val::Tensor(View { base, axes: identity(n) }));
            }
            _ => {}
        }
        if name.contains("pool") {
            return self.pool(name, attrs, &data, &shape, dtype);
        }
        if name.starts_with("nn.conv") {
            let weight = self.materialize(given[1])?;
            return self.convolution(name, attrs, &data, &weight, &shape, dtype, &|k| What::Primitive(k, vec![]));
        }
        if let Some(kind) = eltwise(name, attrs) {
            return Ok(self.unary(Kind::Eltwise(kind), &data, dtype));
        }
        let kind = binary(name).ok_or("the library has no primitive for it")?;
        let other = self.materialize(given[1])?;
        self.binary(kind, &data, &other, &shape, dtype)
    }

    fn binary(&mut self, kind: BinaryKind, x: &View, y: &View, shape: &[i64], dtype: DType) -> Result<Val, String> {
        let is_full = |t: &Self, v: &View| t.shape(v) == shape;
        let constant = |t: &Self, v: &View| t.graph.values[v.base.0].data.is_some();
        let first = is_full(self, x) && !(constant(self, x) && is_full(self, y) && kind.commutes());
        if first {
            let other = self.beside(y, x);
            let base = x.base;
            let like = self.graph.shape(base).to_vec();
            let base = self.graph.step(What::Primitive(Kind::Binary(kind), vec![]), vec![base, other], &like, dtype);
            return Ok(Val::Tensor(View { base, axes: x.axes.clone() }));
        }
        if !is_full(self, y) {
            return Err("both operands are repeated".into());
        }
        // x - y is -y + x, and x / y is 1 / y * x.
        let (kind, y) = match kind {
            BinaryKind::Sub => {
                (BinaryKind::Add, self.unary(Kind::Eltwise(EltwiseKind::Linear.with(-1.0, 0.0)), y, dtype))
            }
            BinaryKind::Div => (BinaryKind::Mul, self.unary(Kind::Eltwise(EltwiseKind::Pow.with(1.0, -1.0)), y, dtype)),
            other => (other, Val::Tensor(y.clone())),
        };
        let y = self.materialize(&y)?;
        let other = self.beside(x, &y);
        let like = self.graph.shape(y.base).to_vec();
        let base = self.graph.step(What::Primitive(Kind::Binary(kind), vec![]), vec![y.base, other], &like, dtype);
        Ok(Val::Tensor(View { base, axes: y.axes }))
    }

    /// A tensor with its axes as those of another, which it is repeated along.
    fn beside(&mut self, v: &View, like: &View) -> ValueId {
        let rank = like.axes.len();
        let mut v = v.clone();
        if v.axes.len() < rank {
            let shape = self.shape(&v);
            let wide: Vec<i64> = std::iter::repeat_n(1, rank - shape.len()).chain(shape).collect();
            let plain = self.plain(&v);
            v = View { base: self.reshaped(plain, &wide), axes: identity(rank) };
        }
        self.in_order(&v, &inverse(&like.axes))
    }

    /// A product with the rows of a weight, of data of any number of axes.
    pub(super) fn dense(
        &mut self,
        what: What,
        data: &View,
        weight: &View,
        shape: &[i64],
        dtype: DType,
    ) -> Result<Val, String> {
        let (x, w) = (self.plain(data), self.plain(weight));
        let inner = *self.graph.shape(x).last().ok_or("data without axes")?;
        let rows = self.graph.shape(x).iter().product::<i64>() / inner;
        let x = self.reshaped(x, &[rows, inner]);
        let units = self.graph.shape(w)[0];
        let base = self.graph.step(what, vec![x, w], &[rows, units], dtype);
        let base = self.reshaped(base, shape);
        Ok(Val::Tensor(View { base, axes: identity(shape.len()) }))
    }

    #[allow(clippy::too_many_arguments, reason = "an operator's call is its name, attributes, operands and result")]
    pub(super) fn convolution(
        &mut self,
        name: &str,
        attrs: &Attrs,
        data: &View,
        weight: &View,
        shape: &[i64],
        dtype: DType,
        what: &dyn Fn(Kind) -> What,
    ) -> Result<Val, String> {
        let n = dimensions(name).ok_or("no spatial axes")?;
        let transposed = name.contains("transpose");
        let (letters, kernel) = (format!("NC{}", spatial(n)), format!("OI{}", spatial(n)));
        let layout = attrs.str("data_layout");
        let out = if attrs.str("out_layout").is_empty() { layout } else { attrs.str("out_layout") };
        let places = |l: &str, w: &str| order(l, w).ok_or_else(|| format!("layout {l} is not plain"));
        let x = self.in_order(data, &places(layout, &letters)?);
        let mut w = self.in_order(weight, &places(attrs.str("kernel_layout"), &kernel)?);
        let groups = attrs.int("groups");
        let whole = self.graph.shape(w).to_vec();
        let channels = self.graph.shape(x)[1];
        // The library counts outputs before inputs; the weights of transposed convolutions have it the other way, whatever Relay's
        // letters say: `I` counts results where the layout is named for the forward convolution.
        let rest = &whole[2..];
        if transposed {
            w = self.transposed_weight(w, channels, groups)?;
        } else if groups > 1 {
            let inputs = channels / groups;
            let outputs = whole[0] * whole[1] / inputs;
            let grouped: Vec<i64> = [groups, outputs / groups, inputs].iter().chain(rest).copied().collect();
            w = self.reshaped(w, &grouped);
        }
        let outer = places(out, &letters)?;
        let made: Vec<i64> = outer.iter().map(|&k| shape[k]).collect();
        let windows = windows(attrs, n).ok_or("windows that are not plain")?;
        let kind = if transposed { Kind::Deconvolution(windows) } else { Kind::Convolution(windows) };
        let base = self.graph.step(what(kind), vec![x, w], &made, dtype);
        Ok(Val::Tensor(View { base, axes: inverse(&outer) }))
    }

    /// The weight `[C, O / G, ...]` of a transposed convolution of so many channels, outputs first, groups before them.
    fn transposed_weight(&mut self, w: ValueId, channels: i64, groups: i64) -> Result<ValueId, String> {
        let whole = self.graph.shape(w).to_vec();
        let (a, b) = (whole[0], whole[1]);
        // In the program's order of letters, `O` and `I`; the one that counts the data's channels goes second.
        let inputs_first = a == channels;
        if !inputs_first && b != channels {
            return Err("a weight that does not fit the data".into());
        }
        let n = whole.len();
        let swap: Vec<usize> = [1, 0].into_iter().chain(2..n).collect();
        let view = View { base: w, axes: identity(n) };
        if groups == 1 {
            return Ok(if inputs_first { self.in_order(&view, &swap) } else { w });
        }
        let w = if inputs_first { w } else { self.in_order(&view, &swap) };
        let shape = self.graph.shape(w).to_vec();
        let grouped: Vec<i64> = [groups, shape[0] / groups, shape[1]].iter().chain(&shape[2..]).copied().collect();
        let base = self.reshaped(w, &grouped);
        let order: Vec<usize> = [0, 2, 1].into_iter().chain(3..n + 1).collect();
        Ok(self.in_order(&View { base, axes: identity(n + 1) }, &order))
    }

    fn pool(&mut self, name: &str, attrs: &Attrs, data: &View, shape: &[i64], dtype: DType) -> Result<Val, String> {
        let n = dimensions(name).ok_or("no spatial axes")?;
        let places = order(attrs.str("layout"), &format!("NC{}", spatial(n))).ok_or("a layout that is not plain")?;
        let x = self.in_order(data, &places);
        let from = self.graph.shape(x).to_vec();
        let made: Vec<i64> = places.iter().map(|&k| shape[k]).collect();
        let whole = name.contains("global") || name.contains("adaptive");
        let (kernel, windows) = if whole {
            let none = vec![0; n];
            let windows = crate::runtime::onednn::Windows {
                strides: vec![1; n],
                dilation: vec![1; n],
                before: none.clone(),
                after: none,
            };
            (from[2..].to_vec(), windows)
        } else {
            let kernel = per_axis(&attrs.ints("pool_size"), n).ok_or("a window that is not plain")?;
            let mut windows = windows(attrs, n).ok_or("windows that are not plain")?;
            for k in 0..n {
                // Rounding up adds padding.
                let reach = (kernel[k] - 1) * windows.dilation[k] + 1;
                let needed = (made[k + 2] - 1) * windows.strides[k] + reach - from[k + 2] - windows.before[k];
                windows.after[k] = windows.after[k].max(needed);
            }
            (kernel, windows)
        };
        let kind = match name.contains("max") {
            true => PoolKind::Max,
            false if !whole && attrs.bool("count_include_pad") => PoolKind::MeanOfAll,
            false => PoolKind::Mean,
        };
        let what = What::Primitive(Kind::Pool { kind, kernel, windows }, vec![]);
        let base = self.graph.step(what, vec![x], &made, dtype);
        Ok(Val::Tensor(View { base, axes: inverse(&places) }))
    }

    fn concatenate(&mut self, attrs: &Attrs, given: &Val, shape: &[i64], dtype: DType) -> Result<Val, String> {
        let Val::Tuple(fields) = given else { return Err("data that are no tuple".into()) };
        let k = axis(attrs.int("axis"), shape.len()).ok_or("no such axis")?;
        let views = fields.iter().map(|f| self.materialize(f)).collect::<Result<Vec<_>, _>>()?;
        let like = views[0].clone();
        let order = inverse(&like.axes);
        let reads: Vec<ValueId> = views.iter().map(|v| self.in_order(v, &order)).collect();
        let made: Vec<i64> = order.iter().map(|&a| shape[a]).collect();
        let what = What::Primitive(Kind::Concat { axis: like.axes[k] }, vec![]);
        let base = self.graph.step(what, reads, &made, dtype);
        Ok(Val::Tensor(View { base, axes: like.axes }))
    }

    fn batch_norm(&mut self, attrs: &Attrs, data: &View, given: &[&Val], source: ExprId) -> Result<Val, String> {
        let rank = data.axes.len();
        let k = axis(attrs.int("axis"), rank).ok_or("no such axis")?;
        let [gamma, beta, mean, var] = [1, 2, 3, 4].map(|i| self.constant(given[i]));
        let (Some(gamma), Some(beta), Some(mean), Some(var)) = (gamma, beta, mean, var) else {
            return self.batch_norm_of(attrs, data, given, k);
        };
        let (eps, scales, centers) = (attrs.float("epsilon"), attrs.bool("scale"), attrs.bool("center"));
        let scale = |c: usize| (if scales { gamma.get_f64(c) } else { 1.0 }) / (var.get_f64(c) + eps).sqrt();
        let shift = |c: usize| (if centers { beta.get_f64(c) } else { 0.0 }) - mean.get_f64(c) * scale(c);
        let (shape, dtype) = (self.shape(data), self.graph.dtype(data.base));
        let n = gamma.len();
        let mut wide = vec![1; rank];
        wide[k] = n as i64;
        let vector = |t: &mut Self, f: &dyn Fn(usize) -> f64| {
            let data = Tensor::from_f64_fn(dtype, &extents(&wide), f);
            View { base: t.graph.constant(data, &wide), axes: identity(rank) }
        };
        let scaled =
            match self.uses.get(&source) == Some(&1) && data.axes[k] == 1 && self.scale_weight(data.base, &scale) {
                true => data.clone(),
                false => {
                    let factor = vector(self, &scale);
                    let v = self.binary(BinaryKind::Mul, data, &factor, &shape, dtype)?;
                    self.materialize(&v)?
                }
            };
        let summand = vector(self, &shift);
        let result = self.binary(BinaryKind::Add, &scaled, &summand, &shape, dtype)?;
        Ok(Val::Tuple(vec![result, given[3].clone(), given[4].clone()]))
    }

    /// A normalization whose parameters come with the call.
    fn batch_norm_of(&mut self, attrs: &Attrs, data: &View, given: &[&Val], k: usize) -> Result<Val, String> {
        let mut vectors = Vec::new();
        for v in &given[1..5] {
            vectors.push(self.materialize(v)?);
        }
        let [gamma, beta, mean, var] = [0, 1, 2, 3].map(|i| vectors[i].clone());
        let (shape, dtype) = (self.shape(data), self.graph.dtype(data.base));
        let (n, rank) = (self.shape(&gamma), data.axes.len());
        let power = Kind::Eltwise(EltwiseKind::Pow.with(1.0, -0.5));
        let eps = Kind::Eltwise(EltwiseKind::Linear.with(1.0, attrs.float("epsilon") as f32));
        let shifted = self.unary(eps, &var, dtype);
        let shifted = self.materialize(&shifted)?;
        let mut scale = self.unary(power, &shifted, dtype);
        if attrs.bool("scale") {
            let inverse = self.materialize(&scale)?;
            scale = self.binary(BinaryKind::Mul, &inverse, &gamma, &n, dtype)?;
        }
        let scale = self.materialize(&scale)?;
        let moved = self.binary(BinaryKind::Mul, &mean, &scale, &n, dtype)?;
        let moved = self.materialize(&moved)?;
        let negative = self.unary(Kind::Eltwise(EltwiseKind::Linear.with(-1.0, 0.0)), &moved, dtype);
        let mut shift = self.materialize(&negative)?;
        if attrs.bool("center") {
            let sum = self.binary(BinaryKind::Add, &shift, &beta, &n, dtype)?;
            shift = self.materialize(&sum)?;
        }
        let mut wide = vec![1; rank];
        wide[k] = shape[k];
        let [scale, shift] = [scale, shift].map(|v| {
            let plain = self.plain(&v);
            View { base: self.reshaped(plain, &wide), axes: identity(rank) }
        });
        let scaled = self.binary(BinaryKind::Mul, data, &scale, &shape, dtype)?;
        let scaled = self.materialize(&scaled)?;
        let result = self.binary(BinaryKind::Add, &scaled, &shift, &shape, dtype)?;
        Ok(Val::Tuple(vec![result, given[3].clone(), given[4].clone()]))
    }

    /// Multiplies a convolution's constant weight by a number for each output, where that convolution makes a tensor.
    fn scale_weight(&mut self, v: ValueId, scale: &dyn Fn(usize) -> f64) -> bool {
        let Some(step) = self.graph.steps.iter().position(|s| s.makes == v) else { return false };
        let What::Primitive(Kind::Convolution(_), posts) = &self.graph.steps[step].what else { return false };
        let reads = self.graph.steps[step].reads.clone();
        let channels = self.graph.shape(v)[1] as usize;
        let (true, 2, Some(w)) = (posts.is_empty(), reads.len(), self.graph.values[reads[1].0].data.clone()) else {
            return false;
        };
        let per = w.len() / channels;
        let scaled = Tensor::from_f64_fn(w.dtype(), w.shape(), |i| w.get_f64(i) * scale(i / per));
        let shape = self.graph.shape(reads[1]).to_vec();
        self.graph.steps[step].reads[1] = self.graph.constant(scaled, &shape);
        true
    }
}

/// A shape with at least one axis.
pub(super) fn full(shape: &[i64]) -> Vec<i64> {
    if shape.is_empty() { vec![1] } else { shape.to_vec() }
}

trait TypeOr {
    fn unwrap_or_default_type(self) -> (Vec<i64>, DType);
}

impl TypeOr for Option<(Vec<i64>, DType)> {
    fn unwrap_or_default_type(self) -> (Vec<i64>, DType) {
        self.unwrap_or((vec![], DType::F32))
    }
}
