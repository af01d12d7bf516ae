//! The layers of a program that may be quantized: which they are, and what they are called.

use hashbrown::{HashMap, HashSet};

use crate::{
    infer::TypedModule,
    ir::{Expr, ExprId, Module, Name, OpId, Span, Type, free_vars, reachable},
    ops,
    tensor::DType,
};

/// The operators that are layers.
pub(super) const LAYERS: [&str; 4] = ["nn.conv2d", "nn.conv2d_transpose", "nn.dense", "nn.batch_matmul"];

/// A convolution, dense layer or matrix multiplication of floats.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) call: ExprId,
    pub(super) op: OpId,
    /// What users may call it: the parameter that is its weight, the variable that is bound to it, its operator; the first is what
    /// reports call it.
    pub(super) names: Vec<Name>,
    pub(super) span: Option<Span>,
}

/// The layers of `@main`, in the order in which they are executed. Those inside functions and branches are none: they may not
/// run, or run often.
pub(super) fn layers(m: &TypedModule) -> Vec<Layer> {
    let Some(main) = m.module().function("main") else { return Vec::new() };
    let ops = layer_ops();
    let body = straight(m, main.body);
    let mut bound: HashMap<ExprId, Name> = HashMap::new();
    for &id in &body {
        if let Expr::Let { var, value, .. } = &m[id] {
            bound.entry(*value).or_insert_with(|| m.var(*var).name.clone());
        }
    }
    // Values that are bound have a meaning only below; there are none once `Inline` has run, but for those with effects.
    let given = |id: ExprId| free_vars(m, id).iter().all(|v| main.params.contains(v));
    let is_float = |id: ExprId| matches!(m.ty(id), Type::Tensor(t) if t.dtype == DType::F32);
    body.into_iter()
        .filter_map(|call| {
            let (op, args, _) = m.op_call(call)?;
            (ops.contains(&op) && is_float(call) && args.iter().all(|&a| is_float(a) && given(a))).then_some(())?;
            let weight = args.get(1).and_then(|&w| weight_name(m, w));
            let names = [weight, bound.get(&call).cloned(), Some(op.op().name().into())];
            let names = names.into_iter().flatten().collect();
            Some(Layer { call, op, names, span: m.span(call).cloned() })
        })
        .collect()
}

fn layer_ops() -> Vec<OpId> {
    LAYERS.iter().filter_map(|name| ops::lookup(name)).collect()
}

/// How many calls of layers of floats the whole module has, those inside functions and branches included.
pub(super) fn inside(m: &TypedModule) -> usize {
    let ops = layer_ops();
    let is_layer = |&id: &ExprId| {
        m.op_call(id).is_some_and(|(op, ..)| ops.contains(&op))
            && matches!(m.ty(id), Type::Tensor(t) if t.dtype == DType::F32)
    };
    let functions = m.module().functions().map(|(_, f)| f);
    reachable(m.module(), functions).iter().filter(|&id| is_layer(id)).count()
}

/// Expressions that run whenever the body does, each once, children before parents.
fn straight(m: &Module, body: ExprId) -> Vec<ExprId> {
    let mut seen: HashSet<ExprId> = HashSet::from([body]);
    let mut stack = vec![body];
    while let Some(id) = stack.pop() {
        let mut visit = |c: ExprId| {
            if seen.insert(c) {
                stack.push(c);
            }
        };
        match &m[id] {
            Expr::Func(_) | Expr::If { .. } | Expr::Match { .. } => {}
            other => crate::ir::children(other, &mut visit),
        }
    }
    let mut ids: Vec<ExprId> = seen.into_iter().collect();
    ids.sort_unstable();
    ids
}

/// The name of the parameter that a weight is made of: of a variable, or of the constant that was bound to one and stands where it
/// was first named. Whatever scales or moves a weight has it as its first argument.
fn weight_name(m: &Module, mut weight: ExprId) -> Option<Name> {
    loop {
        match &m[weight] {
            Expr::Var(v) => return Some(m.var(*v).name.clone()),
            Expr::Constant(_) => {
                let span = m.span(weight)?;
                let text = span.source.text.get(span.start as usize..span.end as usize)?;
                return Some(text.strip_prefix('%')?.into());
            }
            Expr::Call { args, .. } => weight = *args.first()?,
            Expr::Proj(tuple, _) => weight = *tuple,
            _ => return None,
        }
    }
}

/// Which layers are chosen: convolutions, dense layers and matrix multiplications, numbered from 0 as the program has them.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The first one.
    pub from: usize,
    /// The last one, itself included; all that follow where not given.
    pub to: Option<usize>,
    /// Numbers of those between that are not, and names of their weights.
    pub skip: Vec<String>,
}

impl Selection {
    pub(super) fn holds(&self, number: usize, layer: &Layer) -> bool {
        let named = |s: &String| match s.parse::<usize>() {
            Ok(n) => n == number,
            Err(_) => layer.names.iter().any(|n| n.as_str() == s),
        };
        (self.from..=self.to.unwrap_or(usize::MAX)).contains(&number) && !self.skip.iter().any(named)
    }

    /// Names and numbers to skip that no layer has.
    pub(super) fn strangers<'a>(&'a self, layers: &[Layer]) -> Vec<&'a str> {
        let known = |s: &String| match s.parse::<usize>() {
            Ok(n) => n < layers.len(),
            Err(_) => layers.iter().any(|l| l.names.iter().any(|n| n.as_str() == s)),
        };
        self.skip.iter().filter(|s| !known(s)).map(String::as_str).collect()
    }
}
