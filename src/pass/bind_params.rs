//! Parameters of `@main` become constants.

use hashbrown::HashMap;

use crate::{
    diag::{Diagnostic, Refused, nearest},
    egraph::weights,
    infer::{self, TypedModule},
    ir::{Copier, Expr, ExprId, Function, Module, Name, TensorType, Type, VarId},
    tensor::Tensor,
};

/// The parameters of `@main` that are used as weights are: whoever runs the program would give them with every call.
pub fn unbound_weights(m: &TypedModule) -> Vec<Name> {
    let found = weights(m);
    let params = m.function("main").map(|f| f.params.clone()).unwrap_or_default();
    params.iter().filter(|p| found.contains(*p)).map(|&p| m.var(p).name.clone()).collect()
}

/// The module with parameters of `@main` replaced by constants, by name. The other parameters stay: they are the inputs.
///
/// Refuses a name that `@main` lacks or has twice, a name that is given twice, and a tensor that the parameter's annotated
/// type does not take; all of them at once.
pub fn bind_params(m: &Module, params: &[(Name, Tensor)]) -> Result<Module, Refused> {
    if params.is_empty() {
        return Ok(m.clone());
    }
    let main = infer::entry(m, "main")?;
    let names = || main.params.iter().map(|&p| m.var(p).name.as_str());
    let mut refused = Vec::new();
    let mut values: HashMap<VarId, &Tensor> = HashMap::new();
    for (name, tensor) in params {
        let mut named = main.params.iter().filter(|&&p| m.var(p).name == *name);
        let (first, second) = (named.next(), named.next());
        let message = match (first, second) {
            (None, _) => {
                let d = Diagnostic::new(format!("`@main` has no parameter `%{name}` to bind"));
                refused.push(match nearest(name, names()) {
                    Some(near) => d.help(format!("did you mean `%{near}`?")),
                    None => d,
                });
                continue;
            }
            (_, Some(_)) => format!("`@main` has several parameters `%{name}`: which to bind is not clear"),
            (Some(&p), None) => match &m.var(p).ty {
                Some(wanted) if !takes(wanted, tensor) => {
                    let shape: Vec<i64> = tensor.shape().iter().map(|&n| n as i64).collect();
                    let found = TensorType::new(&shape, tensor.dtype());
                    format!("parameter `%{name}` is given {found}, but should be {wanted}")
                }
                _ if values.insert(p, tensor).is_some() => format!("parameter `%{name}` is given twice"),
                _ => continue,
            },
        };
        refused.push(Diagnostic::new(message));
    }
    if !refused.is_empty() {
        return Err(Refused(refused));
    }
    let main_id = m.function_id("main").expect("the function exists");
    let mut out = m.derive();
    let mut copier = Copier::new();
    let mut constants: HashMap<VarId, ExprId> = HashMap::new();
    for (name, id) in m.functions() {
        let new = copier.copy_with(m, id, &mut out, |out, from, expr| match expr {
            Expr::Var(v) => {
                let tensor = values.get(v)?;
                // The place keeps the parameter's name.
                let constant = || out.add_at(Expr::Constant((*tensor).clone()), m.span(from).cloned());
                Some(*constants.entry(*v).or_insert_with(constant))
            }
            Expr::Func(f) if from == main_id => {
                let params = f.params.iter().copied().filter(|p| !values.contains_key(p)).collect();
                let f = Function { params, ..(**f).clone() };
                Some(out.add_at(Expr::Func(Box::new(f)), m.span(from).cloned()))
            }
            _ => None,
        });
        out.define(name.clone(), new);
    }
    Ok(out)
}

/// Whether a parameter of that type takes the tensor.
fn takes(wanted: &Type, tensor: &Tensor) -> bool {
    match wanted {
        Type::Tensor(w) => {
            w.dtype == tensor.dtype()
                && w.rank() == tensor.shape().len()
                && w.shape.iter().zip(tensor.shape()).all(|(w, &f)| w.known().is_none_or(|w| w == f as i64))
        }
        Type::Var(_) | Type::Hole(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{interp, relay::text::parse_module};

    const TEXT: &str = "#[version = \"0.0.5\"]
        def @main(%x: Tensor[(2), float32], %w.0: Tensor[(2), float32]) { @f(add(%x, %w.0)) }
        def @f(%x: Tensor[(2), float32]) { %x }";

    fn tensor(v: &[f32]) -> Tensor {
        Tensor::from_slice(&[v.len()], v)
    }

    #[test]
    fn binds_by_name() {
        let m = parse_module("test", TEXT).expect("it parses");
        let m = bind_params(&m, &[("w.0".into(), tensor(&[1.0, 2.0]))]).expect("it fits");
        assert_eq!(m.function("main").map(|f| f.params.len()), Some(1));
        let out = interp::run_flat(&m, "main", vec![tensor(&[10.0, 20.0]).into()]).expect("it runs");
        assert_eq!(out, [tensor(&[11.0, 22.0])]);
    }

    #[test]
    fn refuses_what_does_not_fit_all_at_once() {
        let m = parse_module("test", TEXT).expect("it parses");
        let params = [("w.1".into(), tensor(&[1.0])), ("x".into(), tensor(&[1.0]))];
        let message = bind_params(&m, &params).expect_err("neither fits").to_string();
        assert!(message.contains("no parameter `%w.1` to bind (did you mean `%w.0`?)"), "{message}");
        assert!(
            message.contains("`%x` is given Tensor[(1), float32], but should be Tensor[(2), float32]"),
            "{message}"
        );
    }
}
