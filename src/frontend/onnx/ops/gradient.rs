//! Derivatives of a tensor of the graph by others.

use hashbrown::HashMap;

use super::{Row, row_of};
use crate::{
    frontend::{
        Convert,
        onnx::{importer::Val, node::Node},
    },
    ir::{Attrs, Expr, ExprId},
};

pub(super) const OPS: &[Row] = &[row_of("ai.onnx.preview.training", "Gradient", gradient)];

fn gradient(n: &mut Node) -> Convert<Vec<Val>> {
    let (by, held) = (n.texts("xs")?.unwrap_or_default(), n.texts("zs")?.unwrap_or_default());
    let of = n.text("y", "")?;
    let tensor = |n: &mut Node, name: &str| match n.im.lookup(name) {
        Some(Val::Tensor(t)) => Ok(t.e),
        _ => Err(n.refuse(format!("there is no tensor `{name}`"))),
    };
    let y = tensor(n, &of)?;
    let mut variables = Vec::new();
    for (i, name) in by.iter().chain(&held).enumerate() {
        let e = tensor(n, name)?;
        n.ensure(n.opt(i)? == Some(e), || {
            format!("input {i} should be `{name}` itself, at which it is differentiated")
        })?;
        variables.push(e);
    }
    let adjoints = adjoints(n, y, &variables)?;
    variables[..by.len()]
        .iter()
        .map(|&x| {
            let d = match adjoints.get(&x) {
                Some(&d) => d,
                None => n.with("multiply", x, 0.0)?,
            };
            n.out(d)
        })
        .collect()
}

/// The derivatives of the sum of `y` by what lies between it and the variables, these included.
fn adjoints(n: &mut Node, y: ExprId, variables: &[ExprId]) -> Convert<HashMap<ExprId, ExprId>> {
    let depends = dependents(n, y, variables);
    let one = n.c(y, 1.0)?;
    let shape = n.shape_of(y)?;
    let seed = n.broadcast_to(one, shape)?;
    let mut found = HashMap::from([(y, seed)]);
    // Readers have greater numbers than what they read.
    for &e in depends.iter().rev() {
        let Some(&d) = found.get(&e) else { continue };
        if variables.contains(&e) {
            continue;
        }
        let Expr::Call { callee, args, attrs, .. } = &n.im.b.module()[e] else {
            return Err(n.refuse("what is differentiated is no call of an operator"));
        };
        let Expr::Op(op) = n.im.b.module()[*callee] else { return Err(n.refuse("functions are not differentiated")) };
        let (args, attrs) = (args.clone(), attrs.clone());
        for (k, &a) in args.iter().enumerate() {
            if depends.binary_search(&a).is_err() {
                continue;
            }
            let part = partial(n, op.op().name(), &attrs, &args, e, d, k)?;
            let part = match n.ty(part)? == n.ty(a)? {
                true => part,
                false => n.op("collapse_sum_like", &[part, a], &[])?,
            };
            let sum = match found.get(&a) {
                Some(&s) => n.add(s, part)?,
                None => part,
            };
            found.insert(a, sum);
        }
    }
    Ok(found)
}

/// What `y` is computed from that depends on the variables, ascending.
fn dependents(n: &Node, y: ExprId, variables: &[ExprId]) -> Vec<ExprId> {
    let m = n.im.b.module();
    let mut seen: HashMap<ExprId, bool> = HashMap::new();
    let mut stack = vec![y];
    while let Some(&e) = stack.last() {
        let children: Vec<ExprId> = match &m[e] {
            _ if variables.contains(&e) => Vec::new(),
            Expr::Call { args, .. } => args.clone(),
            Expr::Tuple(fields) => fields.clone(),
            Expr::Proj(of, _) => vec![*of],
            _ => Vec::new(),
        };
        let before = stack.len();
        stack.extend(children.iter().filter(|c| !seen.contains_key(*c)));
        if stack.len() == before {
            let depends = variables.contains(&e) || children.iter().any(|c| seen.get(c) == Some(&true));
            seen.insert(e, depends);
            stack.pop();
        }
    }
    let mut all: Vec<ExprId> = seen.into_iter().filter(|s| s.1).map(|s| s.0).collect();
    all.sort();
    all
}

/// An operator's part in the derivative by its argument `k`, before what was broadcast is summed; `d` is the derivative by its result
/// `e`.
fn partial(n: &mut Node, op: &str, attrs: &Attrs, args: &[ExprId], e: ExprId, d: ExprId, k: usize) -> Convert {
    let x = args[0];
    match (op, k) {
        ("add", _) | ("subtract", 0) => Ok(d),
        ("subtract", _) | ("negative", _) => n.un("negative", d),
        ("multiply", _) => n.mul(d, args[1 - k]),
        ("divide", 0) => n.div(d, args[1]),
        ("divide", _) => {
            let q = n.div(e, args[1])?;
            let q = n.mul(d, q)?;
            n.un("negative", q)
        }
        ("exp", _) => n.mul(d, e),
        ("log", _) => n.div(d, x),
        ("sqrt", _) => {
            let half = n.with("multiply", d, 0.5)?;
            n.div(half, e)
        }
        ("tanh", _) => {
            let square = n.mul(e, e)?;
            let slope = n.from("subtract", 1.0, square)?;
            n.mul(d, slope)
        }
        ("sigmoid", _) => {
            let other = n.from("subtract", 1.0, e)?;
            let slope = n.mul(e, other)?;
            n.mul(d, slope)
        }
        ("sin", _) => {
            let slope = n.un("cos", x)?;
            n.mul(d, slope)
        }
        ("cos", _) => {
            let slope = n.un("sin", x)?;
            let part = n.mul(d, slope)?;
            n.un("negative", part)
        }
        ("nn.relu", _) => {
            let on = n.with("greater", x, 0.0)?;
            let zero = n.c(d, 0.0)?;
            n.select(on, d, zero)
        }
        ("power", 0) => {
            let less = n.with("subtract", args[1], 1.0)?;
            let slope = n.bin("power", x, less)?;
            let slope = n.mul(slope, args[1])?;
            n.mul(d, slope)
        }
        ("reshape" | "squeeze" | "expand_dims", _) => {
            let shape = n.shape_of(x)?;
            n.reshape_to(d, shape)
        }
        ("transpose", _) => {
            let rank = n.rank(x)?;
            let axes: Vec<i64> = match attrs.opt_ints("axes") {
                Some(axes) if !axes.is_empty() => axes,
                _ => (0..rank as i64).rev().collect(),
            };
            let mut back = vec![0; rank];
            for (to, &from) in axes.iter().enumerate() {
                back[from.rem_euclid(rank as i64) as usize] = to;
            }
            n.transpose(d, &back)
        }
        ("nn.matmul", _) if n.rank(x)? == 2 && !attrs.bool("transpose_a") && !attrs.bool("transpose_b") => {
            let other = n.transpose(args[1 - k], &[1, 0])?;
            if k == 0 { n.matmul(d, other, None) } else { n.matmul(other, d, None) }
        }
        ("sum" | "mean", _) if attrs.opt_ints("axis").is_none() || attrs.bool("keepdims") => {
            let shape = n.shape_of(x)?;
            let wide = n.broadcast_to(d, shape)?;
            if op == "sum" {
                return Ok(wide);
            }
            let (all, left) = (n.reduce("prod", shape, &[0], false)?, n.shape_of(e)?);
            let left = n.reduce("prod", left, &[0], false)?;
            let count = n.bin("floor_divide", all, left)?;
            let count = n.cast(count, n.dtype(d)?)?;
            n.div(wide, count)
        }
        _ => Err(n.refuse(format!("the derivative of `{op}` is not supported"))),
    }
}
