//! What front ends write Relay with: a module under construction whose types are known at every step.

use hashbrown::{HashMap, HashSet};

use super::Model;
use crate::{
    diag::{Diagnostic, Refused},
    ir::{
        AttrValue, Attrs, Clause, Expr, ExprId, Function, Module, Name, Span, TensorType, Type, VarId, name_attrs,
        reachable, text_names_attr,
    },
    ops::{OpError, lookup, make_attrs},
    tensor::{DType, Tensor, Value},
};

/// The outcome of converting a part of a model.
pub type Convert<T = ExprId> = Result<T, Refused>;

/// Tensors of at most so many elements are evaluated when a converter asks for a value: shapes, axes, scales.
const MOST_EVALUATED: i64 = 1 << 16;

/// Builds the module of a model. Every expression gets its type when it is added, so that converters may ask for ranks, extents
/// and element types of what they are given, and for values that follow from constants.
pub struct Builder {
    module: Module,
    types: Vec<Type>,
    span: Option<Span>,
    inputs: Vec<(String, VarId)>,
    dims: Vec<Vec<String>>,
    texts: Vec<String>,
    weights: Vec<(Name, VarId, Tensor)>,
    weight_of: HashMap<VarId, usize>,
    names: HashSet<String>,
    values: HashMap<ExprId, Option<Value>>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// A module without anything.
    pub fn new() -> Builder {
        Builder {
            module: Module::new(),
            types: Vec::new(),
            span: None,
            inputs: Vec::new(),
            dims: Vec::new(),
            texts: Vec::new(),
            weights: Vec::new(),
            weight_of: HashMap::new(),
            names: HashSet::new(),
            values: HashMap::new(),
        }
    }

    /// Says where the expressions that are added next come from; gives what was said before.
    pub fn at(&mut self, span: Option<Span>) -> Option<Span> {
        std::mem::replace(&mut self.span, span)
    }

    /// A refusal at the present place.
    pub fn refuse(&self, message: impl Into<String>) -> Refused {
        Diagnostic::new(message).at(self.span.clone()).into()
    }

    /// The module so far.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// For what the builder has no function for: data types, functions of the module.
    pub fn module_mut(&mut self) -> &mut Module {
        &mut self.module
    }

    /// Adds an expression of a type that the caller knows.
    pub fn add(&mut self, expr: Expr, ty: Type) -> ExprId {
        let id = self.module.add_at(expr, self.span.clone());
        // Whoever added to the module itself left expressions without types here.
        self.types.resize(id.index(), Type::Hole(0));
        self.types.push(ty);
        id
    }

    /// A name that no parameter has yet: the given one, or that with a number.
    fn fresh(&mut self, name: &str) -> String {
        let name = if name.is_empty() { "value" } else { name };
        let mut found = name.to_owned();
        let mut n = 1;
        while !self.names.insert(found.clone()) {
            found = format!("{name}_{n}");
            n += 1;
        }
        found
    }

    /// Declares an input of the model, after those that were declared before.
    pub fn input(&mut self, name: &str, ty: Type) -> ExprId {
        self.input_called(name, name, ty)
    }

    /// Declares an input as [`input`](Builder::input) does, whose parameter of `@main` has a name of its own: inputs may be given by
    /// either.
    pub fn input_called(&mut self, parameter: &str, name: &str, ty: Type) -> ExprId {
        let parameter = self.fresh(parameter);
        let var = self.module.new_var(parameter.as_str(), Some(ty.clone()));
        self.inputs.push((name.to_owned(), var));
        self.dims.push(Vec::new());
        self.add(Expr::Var(var), ty)
    }

    /// Names the extents of the input that was declared last, one name for each axis, or an empty one. Extents of the same name are
    /// equal, and inputs that disagree are refused when the program runs.
    pub fn name_dims(&mut self, names: Vec<String>) {
        if let Some(last) = self.dims.last_mut() {
            *last = names;
        }
    }

    /// The name of an extent, where the expression is an input.
    pub(super) fn dim_name(&self, e: ExprId, axis: usize) -> Option<&str> {
        let Expr::Var(v) = self.module[e] else { return None };
        let at = self.inputs.iter().position(|i| i.1 == v)?;
        self.dims[at].get(axis).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Says that the output of that name holds text: an innermost axis of code points.
    pub fn name_text(&mut self, output: &str) {
        self.texts.push(output.to_owned());
    }

    /// Declares a weight: a parameter of `@main` whose value is known.
    pub fn weight(&mut self, name: &str, value: Tensor) -> ExprId {
        let ty = type_of(&value);
        let name = self.fresh(name);
        let var = self.module.new_var(name.as_str(), Some(ty.clone()));
        self.weight_of.insert(var, self.weights.len());
        self.weights.push((name.as_str().into(), var, value));
        self.add(Expr::Var(var), ty)
    }

    /// A constant within the program.
    pub fn constant(&mut self, value: Tensor) -> ExprId {
        let ty = type_of(&value);
        self.add(Expr::Constant(value), ty)
    }

    /// A constant scalar of any element type.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> ExprId {
        let t = match dtype.is_float() {
            true => Tensor::from_f64_fn(dtype, &[], |_| value),
            false => Tensor::from_i64_fn(dtype, &[], |_| value as i64),
        };
        self.constant(t)
    }

    /// A constant vector of `int64`.
    pub fn ints(&mut self, values: &[i64]) -> ExprId {
        self.constant(Tensor::from_slice(&[values.len()], values))
    }

    /// Calls an operator. Attributes that are not given are at their defaults.
    ///
    /// # Errors
    /// What the operator's type relation does not allow.
    pub fn op(&mut self, name: &str, args: &[ExprId], attrs: &[(&str, AttrValue)]) -> Convert {
        let op = lookup(name).ok_or_else(|| self.refuse(format!("there is no operator `{name}`")))?;
        let given: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| (Name::from(*n), v.clone())).collect();
        let attrs = make_attrs(op, &given).map_err(|e| self.refuse(e.to_string()))?;
        let wanted = op.op().inputs().len();
        if wanted != args.len() {
            return Err(self.refuse(format!("`{name}` takes {wanted} arguments, but is given {}", args.len())));
        }
        let types: Vec<Type> = args.iter().map(|&a| self.types[a.index()].clone()).collect();
        let ty = op.op().infer(&attrs, &types).map_err(|OpError(e)| self.refuse(format!("`{name}`: {e}")))?;
        let callee = self.module.add_at(Expr::Op(op), self.span.clone());
        self.types.resize(callee.index() + 1, Type::Hole(0));
        Ok(self.add(Expr::Call { callee, args: args.to_vec(), attrs, type_args: Vec::new() }, ty))
    }

    /// The data, padded while the program runs so that some axes have as many windows as strides fit in: of each the axis, how far a window reaches, and the
    /// stride. Where the padding is odd, there is one more after the data, or before it.
    ///
    /// # Errors
    /// What operators' type relations do not allow.
    pub fn same_padded(&mut self, x: ExprId, axes: &[(usize, i64, i64)], more_after: bool, value: ExprId) -> Convert {
        let rank = self.tensor(x)?.shape.len();
        let extents = self.op("shape_of", &[x], &[("dtype", DType::I64.into())])?;
        let mut rows = Vec::with_capacity(rank);
        for axis in 0..rank {
            let Some(&(_, reach, stride)) = axes.iter().find(|a| a.0 == axis) else {
                rows.push(self.ints(&[0, 0]));
                continue;
            };
            let ends = [("begin", [axis as i64].into()), ("end", [axis as i64 + 1].into())];
            let at: Vec<_> = ends.into_iter().chain([("strides", [1].into()), ("axes", [0].into())]).collect();
            let n = self.op("strided_slice", &[extents], &at)?;
            let by = |b: &mut Builder, name: &str, x: ExprId, value: i64| {
                let value = b.ints(&[value]);
                b.op(name, &[x, value], &[])
            };
            let windows = by(self, "add", n, stride - 1)?;
            let windows = by(self, "floor_divide", windows, stride)?;
            let covered = by(self, "multiply", windows, stride)?;
            let covered = by(self, "add", covered, reach - stride)?;
            let total = self.op("subtract", &[covered, n], &[])?;
            let total = by(self, "maximum", total, 0)?;
            let less = by(self, "floor_divide", total, 2)?;
            let more = self.op("subtract", &[total, less], &[])?;
            let both = self.tuple(&if more_after { [less, more] } else { [more, less] });
            rows.push(self.op("concatenate", &[both], &[("axis", 0.into())])?);
        }
        let widths = self.tuple(&rows);
        let widths = self.op("stack", &[widths], &[("axis", 0.into())])?;
        let none = vec![AttrValue::ints(&[0, 0]); rank];
        self.op("dyn.nn.pad", &[x, widths, value], &[("pad_width", AttrValue::List(none.into()))])
    }

    /// A tuple.
    pub fn tuple(&mut self, fields: &[ExprId]) -> ExprId {
        let ty = Type::tuple(fields.iter().map(|f| self.ty(*f).clone()));
        self.add(Expr::Tuple(fields.to_vec()), ty)
    }

    /// A field of a tuple. Panics where the expression is no tuple or has no such field.
    pub fn field(&mut self, tuple: ExprId, index: usize) -> ExprId {
        let ty = self.ty(tuple).as_tuple().expect("a tuple has fields")[index].clone();
        self.add(Expr::Proj(tuple, index), ty)
    }

    /// A variable that `let`, a function or a pattern binds, and its use.
    pub fn var(&mut self, name: &str, ty: Type) -> (VarId, ExprId) {
        let var = self.module.new_var(name, Some(ty.clone()));
        (var, self.add(Expr::Var(var), ty))
    }

    /// A conditional on a scalar `bool`; `ty` is the result's type, which both branches fit.
    pub fn if_else(&mut self, cond: ExprId, then: ExprId, otherwise: ExprId, ty: Type) -> ExprId {
        self.add(Expr::If { cond, then, otherwise }, ty)
    }

    /// A `match` that covers all values.
    pub fn matches(&mut self, data: ExprId, clauses: Vec<Clause>, ty: Type) -> ExprId {
        self.add(Expr::Match { data, clauses, complete: true }, ty)
    }

    /// A function of the module, or a closure.
    pub fn func(&mut self, params: Vec<VarId>, body: ExprId, ret: Type) -> ExprId {
        let types = params.iter().map(|&p| self.module.var(p).ty.clone().expect("parameters have types")).collect();
        let ty = crate::ir::FuncType { type_params: Vec::new(), params: types, ret: ret.clone() };
        let func = Function::new(params, body, Some(ret));
        self.add(Expr::Func(Box::new(func)), Type::Func(ty.into()))
    }

    /// Calls a function, closure or constructor; `ty` is the result's type.
    pub fn call(&mut self, callee: ExprId, args: &[ExprId], ty: Type) -> ExprId {
        let call = Expr::Call { callee, args: args.to_vec(), attrs: Attrs::empty(), type_args: Vec::new() };
        self.add(call, ty)
    }

    /// The type of an expression.
    pub fn ty(&self, e: ExprId) -> &Type {
        &self.types[e.index()]
    }

    /// The type of an expression that must be a tensor.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn tensor(&self, e: ExprId) -> Convert<&TensorType> {
        self.ty(e).as_tensor().ok_or_else(|| self.refuse(format!("a tensor was expected, not {}", self.ty(e))))
    }

    /// The value of an expression, where it follows from constants, weights and types alone and is small. Evaluated once, by the
    /// operators' reference kernels.
    pub fn value(&mut self, e: ExprId) -> Option<Tensor> {
        match self.evaluate(e)? {
            Value::Tensor(t) => Some(t),
            Value::Tuple(_) => None,
        }
    }

    /// Whether a value follows from constants and weights alone, however large it is.
    pub fn is_constant(&self, root: ExprId) -> bool {
        let (mut stack, mut seen) = (vec![root], HashSet::new());
        while let Some(e) = stack.pop() {
            if !seen.insert(e) {
                continue;
            }
            match &self.module[e] {
                Expr::Constant(_) => {}
                Expr::Var(v) if self.weight_of.contains_key(v) => {}
                Expr::Tuple(fields) => stack.extend(fields),
                Expr::Proj(t, _) => stack.push(*t),
                Expr::Call { callee, args, .. } if matches!(self.module[*callee], Expr::Op(_)) => stack.extend(args),
                _ => return false,
            }
        }
        true
    }

    fn evaluate(&mut self, root: ExprId) -> Option<Value> {
        let mut stack = vec![root];
        while let Some(&e) = stack.last() {
            if self.values.contains_key(&e) {
                stack.pop();
                continue;
            }
            let before = stack.len();
            let wanted = |stack: &mut Vec<ExprId>, values: &HashMap<ExprId, Option<Value>>, of: &[ExprId]| {
                stack.extend(of.iter().filter(|c| !values.contains_key(*c)));
            };
            let small = self
                .ty(e)
                .flatten()
                .is_some_and(|ts| ts.iter().all(|t| t.elements().is_some_and(|n| n <= MOST_EVALUATED)));
            let value = match &self.module[e] {
                Expr::Constant(t) => Some(Value::Tensor(t.clone())),
                Expr::Var(v) => self.weight_of.get(v).map(|&i| Value::Tensor(self.weights[i].2.clone())),
                Expr::Tuple(fields) => {
                    wanted(&mut stack, &self.values, fields);
                    fields
                        .iter()
                        .map(|f| self.values.get(f).cloned().flatten())
                        .collect::<Option<_>>()
                        .map(Value::Tuple)
                }
                Expr::Proj(t, i) => {
                    wanted(&mut stack, &self.values, &[*t]);
                    self.values.get(t).cloned().flatten().map(|t| t.fields()[*i].clone())
                }
                Expr::Call { callee, args, attrs, .. } if small => match self.module[*callee] {
                    // Of a type whose extents are all known, the values do not matter.
                    Expr::Op(op) if op.op().reads_types_only() => self.of_types(op, attrs, args),
                    Expr::Op(op) => {
                        wanted(&mut stack, &self.values, args);
                        let given: Option<Vec<Value>> =
                            args.iter().map(|a| self.values.get(a).cloned().flatten()).collect();
                        match given {
                            Some(given) => op.op().eval(attrs, &given).ok(),
                            None if stack.len() == before => self.moved_extents(e),
                            None => None,
                        }
                    }
                    _ => None,
                },
                _ => None,
            };
            if stack.len() == before {
                self.values.insert(e, value);
                stack.pop();
            }
        }
        self.values.get(&root).cloned().flatten()
    }

    /// The result of an operator that reads its arguments' types only, where these are known.
    fn of_types(&self, op: crate::ir::OpId, attrs: &Attrs, args: &[ExprId]) -> Option<Value> {
        let extents: Option<Vec<Vec<i64>>> = args.iter().map(|&a| self.ty(a).as_tensor()?.known_shape()).collect();
        op.op().of_extents(attrs, &extents?).map(Value::Tensor)
    }

    /// The model whose outputs are the given expressions: one by itself, several as a tuple. Weights that nothing uses are left
    /// out.
    pub fn finish(mut self, outputs: &[(String, ExprId)]) -> Model {
        self.span = None;
        let body = match outputs {
            [(_, one)] => *one,
            several => self.tuple(&several.iter().map(|o| o.1).collect::<Vec<_>>()),
        };
        let functions: Vec<ExprId> = self.module.functions().map(|(_, f)| f).collect();
        let used: HashSet<VarId> = reachable(&self.module, functions.into_iter().chain([body]))
            .into_iter()
            .filter_map(|e| if let Expr::Var(v) = self.module[e] { Some(v) } else { None })
            .collect();
        let weights: Vec<_> = self.weights.drain(..).filter(|(_, v, _)| used.contains(v)).collect();
        let params = self.inputs.iter().map(|i| i.1).chain(weights.iter().map(|w| w.1)).collect();
        let ret = self.ty(body).clone();
        let mut func = Function::new(params, body, Some(ret));
        func.attrs = name_attrs(self.inputs.iter().map(|i| &i.0), outputs.iter().map(|o| &o.0), &self.dims);
        if let Some((name, value)) = text_names_attr(&self.texts) {
            func.attrs = func.attrs.with(&name, value);
        }
        let main = self.module.add(Expr::Func(Box::new(func)));
        self.module.define("main", main);
        Model { module: self.module, params: weights.into_iter().map(|(n, _, t)| (n, t)).collect() }
    }
}

/// The type of a constant.
fn type_of(t: &Tensor) -> Type {
    let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
    Type::tensor(&shape, t.dtype())
}
