//! Extents that are computed become extents that are known.

use super::fold_constant::{Folded, fold_calls};
use crate::{
    diag::{Diagnostic, Refused},
    infer::{TypedModule, infer_types},
    ir::{Copier, Expr, ExprId, Module, reachable},
    tensor::{Tensor, Value},
};

/// The module with calls whose extents follow from constants (`dyn.reshape` and its like) turned into calls whose extents
/// follow from types, and what reads shapes alone turned into constants where these are known; again and again, for
/// one makes the other known.
///
/// Refuses a module whose types are wrong, and constants that make no legal call.
pub fn dynamic_to_static(m: Module) -> Result<Module, Refused> {
    let mut m = m;
    // Other modules keep their constants as they are written: rules may look for them.
    while has_computed_extents(&m) {
        let typed = infer_types(fold_calls(m, Folded::Narrow)?)?;
        match step(&typed)? {
            Some(next) => m = next,
            None => return Ok(typed.into_module()),
        }
    }
    Ok(m)
}

/// The module with what reads shapes alone turned into constants where these are known.
pub(super) fn known_shapes(m: Module) -> Result<Module, Refused> {
    let reads = |e: ExprId| m.op_call(e).is_some_and(|(op, ..)| op.op().reads_types_only());
    if !reachable(&m, m.functions().map(|(_, f)| f)).into_iter().any(reads) {
        return Ok(m);
    }
    let typed = infer_types(m)?;
    let m = typed.module();
    let (mut out, mut copier) = (m.derive(), Copier::new());
    for (name, id) in m.functions() {
        let new = copier.copy_with(m, id, &mut out, |out, from, _| {
            let (op, ..) = m.op_call(from)?;
            let value = op.op().reads_types_only().then(|| shape_value(&typed, from))??;
            Some(out.add_at(Expr::Constant(value), m.span(from).cloned()))
        });
        out.define(name.clone(), new);
    }
    Ok(out)
}

fn has_computed_extents(m: &Module) -> bool {
    reachable(m, m.functions().map(|(_, f)| f))
        .into_iter()
        .any(|e| m.op_call(e).is_some_and(|(op, _, attrs)| !op.op().decided_by(attrs).is_empty()))
}

/// The module with calls whose extents follow from constants turned into calls whose extents follow from types: one round,
/// without folding anything.
#[cfg(feature = "llvm")]
pub(crate) fn static_calls(typed: TypedModule) -> Result<TypedModule, Refused> {
    match step(&typed)? {
        Some(m) => infer_types(m),
        None => Ok(typed),
    }
}

/// One round; `None` where nothing is left to do.
fn step(typed: &TypedModule) -> Result<Option<Module>, Refused> {
    let m = typed.module();
    let mut out = m.derive();
    let mut copier = Copier::new();
    let (mut changed, mut refused) = (false, Vec::new());
    for (name, id) in m.functions() {
        let new = copier.copy_with(m, id, &mut out, |out, from, expr| {
            let Expr::Call { callee, args, attrs, type_args } = expr else { return None };
            let Expr::Op(op) = out[*callee] else { return None };
            let span = || m.span(from).cloned();
            if op.op().reads_types_only() {
                let value = shape_value(typed, from)?;
                changed = true;
                return Some(out.add_at(Expr::Constant(value), span()));
            }
            let decisive = op.op().decided_by(attrs);
            if decisive.is_empty() {
                return None;
            }
            let constant = |&i: &usize| match &out[args[i]] {
                Expr::Constant(t) => Some(t),
                _ => None,
            };
            let values: Vec<&Tensor> = decisive.iter().map(constant).collect::<Option<_>>()?;
            if op.op().runs_as_is() {
                let values: Vec<Value> = values.into_iter().cloned().map(Value::from).collect();
                return match op.op().eval(attrs, &values) {
                    Ok(value) => {
                        changed = true;
                        Some(out.add_at(Expr::Constant(value.tensor().clone()), span()))
                    }
                    Err(e) => {
                        refused.push(Diagnostic::new(format!("`{}`: {e}", op.op().name())).at(span()));
                        None
                    }
                };
            }
            match op.op().to_static(attrs, &values) {
                Ok(s) => {
                    changed = true;
                    let callee = out.add_at(Expr::Op(s.op), span());
                    let args = s.args.iter().map(|&i| args[i]).collect();
                    let call = Expr::Call { callee, args, attrs: s.attrs, type_args: type_args.clone() };
                    Some(out.add_at(call, span()))
                }
                Err(e) => {
                    refused.push(Diagnostic::new(format!("`{}`: {e}", op.op().name())).at(span()));
                    None
                }
            }
        });
        out.define(name.clone(), new);
    }
    match (refused.is_empty(), changed) {
        (false, _) => Err(Refused(refused)),
        (true, true) => Ok(Some(out)),
        (true, false) => Ok(None),
    }
}

/// The value of a call that reads nothing but the types of its arguments, where these are known.
fn shape_value(typed: &TypedModule, call: ExprId) -> Option<Tensor> {
    let (op, args, attrs) = typed.module().op_call(call)?;
    let extents: Vec<Vec<i64>> = args.iter().map(|&a| typed.ty(a).as_tensor()?.known_shape()).collect::<Option<_>>()?;
    op.op().of_extents(attrs, &extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::text::{parse_module, print_module};

    fn after(text: &str) -> String {
        let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).expect("it parses");
        print_module(&dynamic_to_static(m).unwrap_or_else(|e| panic!("{e}")))
    }

    #[test]
    fn shapes_of_known_extents_are_constants() {
        let text = after(
            "def @main(%x: Tensor[(2, 6), float32], %y: Tensor[(3, 4), float32]) {
                add(dyn.reshape(%x, shape_of(%y, dtype=\"int64\")), %y) }",
        );
        assert!(text.contains("reshape(%x, newshape=[3, 4]") && !text.contains("dyn."), "{text}");
    }

    #[test]
    fn shapes_of_large_tensors_are_constants() {
        let text = "#[version = \"0.0.5\"]
            def @main(%x: Tensor[(1000000, 100000), float32]) {
                (shape_of(%x, dtype=\"int64\"), ndarray_size(%x, dtype=\"int64\")) }";
        let m = parse_module("test", text).expect("it parses");
        let text = print_module(&known_shapes(m).unwrap_or_else(|e| panic!("{e}")));
        assert!(!text.contains("shape_of") && !text.contains("ndarray_size"), "{text}");
    }

    #[test]
    fn what_is_unknown_stays() {
        let text = after("def @main(%x: Tensor[(2, 6), float32], %s: Tensor[(2), int64]) { dyn.reshape(%x, %s) }");
        assert!(text.contains("dyn.reshape"), "{text}");
    }

    #[test]
    fn arange_of_constants_is_a_constant() {
        let text = after("def @main() { arange(0, multiply(2, 5), 3, dtype=\"int32\") }");
        assert!(!text.contains("arange"), "{text}");
    }
}
