//! A primitive function as tensor expressions.

use hashbrown::HashMap;

use crate::{
    diag::{Diagnostic, Refused},
    infer::TypedModule,
    ir::{Expr, ExprId, Function, Module, Type, VarId},
    loops::{Builder, Operand, Scalar, Stages, TensorId},
    tensor::Tensor,
};

/// A function's tensor expressions.
#[derive(Debug)]
pub struct FunctionGroup {
    /// The expressions; arguments are the parameters' tensors in order (tuples flattened), results the body's, and after these
    /// the counts of those whose outermost extent is found while running (see [`Stages::counted`]).
    pub stages: Stages,
}

/// The tensor expressions of a function of operators, tuples, parameters and scalar constants, of plain bindings, and of calls of
/// functions that stand right there and are the same (composites of an external compiler). Its parameters' types must be
/// annotated and their extents known.
pub fn stages(m: &Module, f: &Function) -> Result<FunctionGroup, Refused> {
    stages_with(Builder::new(), m, f, &|p| {
        m.var(p).ty.as_ref().expect("parameters of primitive functions are annotated")
    })
}

/// The same, where inference knows the parameters' types. `all_sizes` where the kernel is to serve other extents, too.
pub(super) fn stages_of(typed: &TypedModule, f: &Function, all_sizes: bool) -> Result<FunctionGroup, Refused> {
    let b = if all_sizes { Builder::for_all_sizes() } else { Builder::new() };
    stages_with(b, typed.module(), f, &|p| typed.var_ty(p))
}

pub(super) fn stages_with<'a>(
    mut b: Builder,
    m: &Module,
    f: &Function,
    type_of: &dyn Fn(VarId) -> &'a Type,
) -> Result<FunctionGroup, Refused> {
    let mut values = HashMap::new();
    for &p in &f.params {
        let ty = type_of(p);
        values.insert(p, argument(&mut b, ty).map_err(|t| unknown_extent(&m.var(p).name, &t))?);
    }
    let body = Lowering { m, b: &mut b, values, done: HashMap::new() }.function(f)?;
    Ok(FunctionGroup { stages: b.finish_with(&body) })
}

/// The types of a function's parameters, given in their order.
pub(super) fn argument_types<'a>(f: &'a Function, types: &'a [Type]) -> impl Fn(VarId) -> &'a Type {
    move |p| {
        let at = f.params.iter().position(|known| *known == p);
        at.and_then(|at| types.get(at)).expect("there is a type for each parameter")
    }
}

struct Lowering<'a> {
    m: &'a Module,
    b: &'a mut Builder,
    /// What parameters and bound variables stand for.
    values: HashMap<VarId, Operand>,
    done: HashMap<ExprId, Operand>,
}

impl Lowering<'_> {
    fn function(&mut self, f: &Function) -> Result<Operand, Refused> {
        let m = self.m;
        let mut stack = vec![f.body];
        while let Some(&id) = stack.last() {
            if self.done.contains_key(&id) {
                stack.pop();
                continue;
            }
            // A bound variable has a value once its binding has been met, which is before its body.
            let needed: Vec<ExprId> = match &m[id] {
                Expr::Let { var, value, body } => match self.done.get(value).cloned() {
                    Some(value) => {
                        self.values.insert(*var, value);
                        vec![*body]
                    }
                    None => vec![*value],
                },
                Expr::Tuple(fields) => fields.clone(),
                Expr::Proj(tuple, _) => vec![*tuple],
                Expr::Call { args, .. } => args.clone(),
                _ => Vec::new(),
            };
            let missing: Vec<ExprId> = needed.into_iter().filter(|c| !self.done.contains_key(c)).collect();
            if missing.is_empty() {
                let operand = self.expr(id)?;
                self.done.insert(id, operand);
            } else {
                stack.extend(missing.into_iter().rev());
            }
        }
        Ok(self.done[&f.body].clone())
    }

    fn expr(&mut self, id: ExprId) -> Result<Operand, Refused> {
        let m = self.m;
        let refuse = |what: String| Refused::from(Diagnostic::new(what).at(m.span(id).cloned()));
        Ok(match &m[id] {
            Expr::Var(v) => {
                self.values.get(v).cloned().ok_or_else(|| refuse(format!("`{}` is not bound", m.var(*v).name)))?
            }
            Expr::Constant(t) => constant(self.b, t).into(),
            Expr::Tuple(fields) => Operand::Tuple(fields.iter().map(|f| self.done[f].clone()).collect()),
            Expr::Proj(tuple, i) => self.done[tuple].fields()[*i].clone(),
            Expr::Let { body, .. } => self.done[body].clone(),
            Expr::Call { callee, args, .. } => {
                let given: Vec<Operand> = args.iter().map(|a| self.done[a].clone()).collect();
                match (m.op_call(id), &m[*callee]) {
                    (Some((op, _, attrs)), _) => {
                        let op = op.op();
                        op.lower(attrs, &given, self.b).map_err(|e| refuse(format!("`{}`: {e}", op.name())))?
                    }
                    (None, Expr::Func(inner)) => {
                        // What is within may be called in several places, with other arguments.
                        let values = inner.params.iter().copied().zip(given).collect();
                        Lowering { m, b: self.b, values, done: HashMap::new() }.function(inner)?
                    }
                    _ => return Err(refuse("a primitive function calls operators only".into())),
                }
            }
            other => {
                let kind = format!("{other:?}");
                let kind = kind.split([' ', '(']).next().unwrap_or_default().to_owned();
                return Err(refuse(format!("`{kind}` has no place in a primitive function")));
            }
        })
    }
}

fn unknown_extent(name: &str, ty: &Type) -> Refused {
    let message =
        format!("parameter `{name}` is {ty}: extents that are unknown at compile time are not supported here");
    Diagnostic::new(message).into()
}

fn argument(b: &mut Builder, ty: &Type) -> Result<Operand, Type> {
    match ty {
        Type::Tensor(t) => match t.known_shape() {
            Some(shape) => Ok(b.arg(&shape, t.dtype).into()),
            None => Err(ty.clone()),
        },
        Type::Tuple(fields) => Ok(Operand::Tuple(fields.iter().map(|f| argument(b, f)).collect::<Result<_, _>>()?)),
        _ => Err(ty.clone()),
    }
}

/// A constant that is written into the code: a scalar, or the same value everywhere.
fn constant(b: &mut Builder, t: &Tensor) -> TensorId {
    let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
    let element = |i: usize| match t.dtype().is_float() {
        true => Scalar::float(t.get_f64(i), t.dtype()),
        false => Scalar::int(t.get_i64(i), t.dtype()),
    };
    b.map(&shape, |_, index| {
        // Few elements: a chain of choices by the flat index.
        let flat = index
            .iter()
            .zip(crate::tensor::row_major_strides(t.shape()))
            .map(|(i, s)| i.clone() * s as i64)
            .reduce(|a, b| a + b);
        let Some(flat) = flat else { return element(0) };
        if t.is_empty() {
            return Scalar::int(0, t.dtype());
        }
        (0..t.len() - 1).rev().fold(element(t.len() - 1), |rest, i| {
            Scalar::select(
                Scalar::binary(crate::loops::BinOp::Eq, flat.clone(), Scalar::index(i as i64)),
                element(i),
                rest,
            )
        })
    })
}
