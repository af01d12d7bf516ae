//! Places in a program, and the programs that look at them or mark them.

use hashbrown::HashMap;

use crate::{
    ir::{AttrValue, Attrs, Copier, Expr, ExprId, Function, Module, Name, Type},
    ops::{lookup, make_attrs},
    tensor::{DType, Tensor},
};

/// An operand of a layer, with what it is quantized by.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// The layer's number, and the name that reports call it.
    pub(super) layer: usize,
    pub(super) name: Name,
    /// The layer's call, and which of its arguments is meant.
    pub(super) call: ExprId,
    pub(super) operand: usize,
    pub(super) scale: Tensor,
    pub(super) zero_point: Tensor,
    pub(super) axis: i64,
    pub(super) dtype: DType,
    /// What quantizing the layer does to the program's result, on the site that stands for the layer; none where it was not measured.
    pub(super) error: Option<f64>,
}

/// The program whose result is these values of `@main`, as a tuple.
pub(super) fn observing(m: &Module, values: &[ExprId]) -> Module {
    rewritten(m, |copier, from, out| {
        let fields = values.iter().map(|&v| copier.copy(from, v, out)).collect();
        let body = out.add(Expr::Tuple(fields));
        let main = from.function("main").expect("the program has layers, hence a body");
        out.add(Expr::Func(Box::new(Function { body, ret: None, ..main.clone() })))
    })
}

/// The program with `quantize.site` at each of these places.
pub(super) fn marked(m: &Module, sites: &[Site]) -> Module {
    let by_call = by_call(sites);
    rewritten(m, |copier, from, out| {
        let main = from.function_id("main").expect("the program has layers, hence a body");
        copier.copy_with(from, main, out, |out, id, expr| {
            place(out, expr, by_call.get(&id)?, |out, x, site| {
                let mut given: Vec<(Name, AttrValue)> = vec![
                    ("out_dtype".into(), site.dtype.into()),
                    ("axis".into(), site.axis.into()),
                    ("layer".into(), (site.layer as i64).into()),
                    ("name".into(), AttrValue::Str(site.name.clone())),
                ];
                given.extend(site.error.map(|e| ("error".into(), e.into())));
                let (scale, zero) = (out.constant(site.scale.clone()), out.constant(site.zero_point.clone()));
                call(out, "quantize.site", &given, vec![x, scale, zero])
            })
        })
    })
}

/// The program that quantizes those of its layers that its last parameter says: a vector of as many truth values. All is computed
/// in floats, each operand either as it is or quantized and back.
pub(super) fn switched(m: &Module, sites: &[Site], layers: usize) -> Module {
    let by_call = by_call(sites);
    rewritten(m, |copier, from, out| {
        let ty = Type::tensor(&[layers as i64], DType::Bool);
        let var = out.new_var("quantized_layers", Some(ty));
        let switches = out.add(Expr::Var(var));
        let main_id = from.function_id("main").expect("the program has layers, hence a body");
        copier.copy_with(from, main_id, out, |out, id, expr| {
            if id == main_id {
                let Expr::Func(f) = expr else { unreachable!("a definition is a function") };
                let params = f.params.iter().copied().chain([var]).collect();
                return Some(out.add(Expr::Func(Box::new(Function { params, ..(**f).clone() }))));
            }
            place(out, expr, by_call.get(&id)?, |out, x, site| {
                let number = out.constant(Tensor::scalar(site.layer as i64));
                let switch = call(out, "take", &[("axis".into(), 0.into())], vec![switches, number]);
                let axis: (Name, AttrValue) = ("axis".into(), site.axis.into());
                let (scale, zero) = (out.constant(site.scale.clone()), out.constant(site.zero_point.clone()));
                let to = [axis.clone(), ("out_dtype".into(), site.dtype.into())];
                let q = call(out, "qnn.quantize", &to, vec![x, scale, zero]);
                let back = call(out, "qnn.dequantize", &[axis], vec![q, scale, zero]);
                call(out, "where", &[], vec![switch, back, x])
            })
        })
    })
}

fn by_call(sites: &[Site]) -> HashMap<ExprId, Vec<&Site>> {
    let mut by_call: HashMap<ExprId, Vec<&Site>> = HashMap::new();
    for site in sites {
        by_call.entry(site.call).or_default().push(site);
    }
    by_call
}

/// The module with another `@main`.
fn rewritten(m: &Module, main: impl FnOnce(&mut Copier, &Module, &mut Module) -> ExprId) -> Module {
    let mut out = m.derive();
    let mut copier = Copier::new();
    let new = main(&mut copier, m, &mut out);
    for (name, id) in m.functions() {
        let id = if name.as_str() == "main" { new } else { copier.copy(m, id, &mut out) };
        out.define(name.clone(), id);
    }
    out
}

/// A layer's call with something around its operands.
fn place(
    out: &mut Module,
    expr: &Expr,
    sites: &[&Site],
    mut around: impl FnMut(&mut Module, ExprId, &Site) -> ExprId,
) -> Option<ExprId> {
    let Expr::Call { callee, args, attrs, type_args } = expr else { return None };
    let mut args = args.clone();
    for site in sites {
        args[site.operand] = around(out, args[site.operand], site);
    }
    let call = Expr::Call { callee: *callee, args, attrs: attrs.clone(), type_args: type_args.clone() };
    Some(out.add(call))
}

fn call(out: &mut Module, name: &str, given: &[(Name, AttrValue)], args: Vec<ExprId>) -> ExprId {
    let op = lookup(name).expect("a shipped operator");
    let attrs: Attrs = make_attrs(op, given).expect("these fields are the operator's");
    out.call_op(op, args, attrs)
}
