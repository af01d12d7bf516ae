//! Types: every expression of a module gets one, by unification and by the operators' type relations.
//!
//! The result is a [`TypedModule`]; what needs types takes that, so that inference can't be skipped.

mod matches;
mod relate;
mod solve;
mod typed;
mod verify;
mod walk;

pub use typed::TypedModule;
pub use typed::entry;
pub use verify::{MAX_NESTING, MAX_PARTS, verify};

use crate::{
    diag::Refused,
    ir::{Expr, Module},
};

/// Infers the type of every expression and variable that the module's functions reach.
///
/// Parameters and results need no annotation where their use tells; what nothing tells is refused, as are calls that an
/// operator's type relation does not allow, types that do not fit, matches that do not cover all values, and whatever
/// [`verify`] refuses. Functions with type parameters may be used at several types. An unknown extent (`?`) fits every
/// extent, in both directions, as in TVM.
pub fn infer_types(module: Module) -> Result<TypedModule, Refused> {
    verify(&module)?;
    let mut infer = walk::Infer::new(&module);
    infer.functions();
    let (types, vars) = infer.finish()?;
    let mut complaints = Vec::new();
    for id in module.ids().filter(|id| !matches!(types[id.index()], crate::ir::Type::Hole(_))) {
        if let Expr::Match { clauses, complete: true, .. } = &module[id] {
            complaints.extend(matches::check_covers(&module, clauses).map(|d| d.at(module.span(id).cloned())));
        }
    }
    match complaints.is_empty() {
        true => Ok(TypedModule::new(module, types, vars)),
        false => Err(Refused(complaints)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ir::{Attrs, Dim, Function, TensorType, Type},
        ops::op,
        tensor::{DType, Tensor},
    };

    fn call(m: &mut Module, name: &str, args: Vec<crate::ir::ExprId>) -> crate::ir::ExprId {
        let attrs = crate::ops::make_attrs(op(name), &[]).expect("all attributes have defaults");
        m.call_op(op(name), args, attrs)
    }

    #[test]
    fn straight_line() {
        let mut m = Module::new();
        let x = m.new_var("x", Some(Type::tensor(&[2, 3], DType::F32)));
        let e = m.add(Expr::Var(x));
        let w = m.constant(Tensor::zeros(DType::F32, &[4, 3]));
        let d = call(&mut m, "nn.dense", vec![e, w]);
        let r = call(&mut m, "nn.relu", vec![d]);
        let f = m.add(Expr::Func(Box::new(Function::new(vec![x], r, None))));
        m.define("main", f);
        let t = infer_types(m).expect("well typed");
        assert_eq!(t.ty(r), &Type::tensor(&[2, 4], DType::F32));
        assert_eq!(t.result_type("main"), t.ty(r));
        assert_eq!(t.var_ty(x), &Type::tensor(&[2, 3], DType::F32));
    }

    #[test]
    fn unannotated_parameter_of_a_closure_is_known_by_its_call() {
        let mut m = Module::new();
        let (x, f) = (m.new_var("x", None), m.new_var("f", None));
        let ex = m.add(Expr::Var(x));
        let body = call(&mut m, "add", vec![ex, ex]);
        let func = m.add(Expr::Func(Box::new(Function::new(vec![x], body, None))));
        let one = m.constant(Tensor::scalar(1i32));
        let ef = m.add(Expr::Var(f));
        let applied = m.add(Expr::Call { callee: ef, args: vec![one], attrs: Attrs::empty(), type_args: vec![] });
        let whole = m.add(Expr::Let { var: f, value: func, body: applied });
        let main = m.add(Expr::Func(Box::new(Function::new(vec![], whole, None))));
        m.define("main", main);
        let t = infer_types(m).expect("well typed");
        assert_eq!(t.ty(body), &Type::tensor(&[], DType::I32));
        assert_eq!(t.var_ty(x), &Type::tensor(&[], DType::I32));
    }

    #[test]
    fn branches_that_differ_in_an_unknown_extent_meet() {
        let mut m = Module::new();
        let any = TensorType::of([Dim::Any], DType::F32);
        let c = m.new_var("c", Some(Type::tensor(&[], DType::Bool)));
        let x = m.new_var("x", Some(any.clone().into()));
        let y = m.new_var("y", Some(Type::tensor(&[3], DType::F32)));
        let (ec, ex, ey) = (m.add(Expr::Var(c)), m.add(Expr::Var(x)), m.add(Expr::Var(y)));
        let e = m.add(Expr::If { cond: ec, then: ey, otherwise: ex });
        let f = m.add(Expr::Func(Box::new(Function::new(vec![c, x, y], e, None))));
        m.define("main", f);
        let t = infer_types(m).expect("well typed");
        assert_eq!(t.ty(e), &any.into());
        assert_eq!(t.ty(ey), &Type::tensor(&[3], DType::F32));
    }

    #[test]
    fn errors_say_which_operator() {
        let mut m = Module::new();
        let a = m.constant(Tensor::zeros(DType::F32, &[2, 3]));
        let b = m.constant(Tensor::zeros(DType::F32, &[4, 5]));
        let e = call(&mut m, "add", vec![a, b]);
        let f = m.add(Expr::Func(Box::new(Function::new(vec![], e, None))));
        m.define("main", f);
        let message = infer_types(m).expect_err("shapes do not broadcast").to_string();
        assert!(message.contains("`add`"), "{message}");
    }

    #[test]
    fn long_chains_take_no_stack() {
        let mut m = Module::new();
        let x = m.new_var("x", Some(Type::tensor(&[1], DType::F32)));
        let mut e = m.add(Expr::Var(x));
        for _ in 0..20_000 {
            e = call(&mut m, "nn.relu", vec![e]);
        }
        let lets: Vec<_> = (0..20_000).map(|i| m.new_var(format!("v{i}"), None)).collect();
        let mut values = vec![e];
        for &v in &lets[..lets.len() - 1] {
            let used = m.add(Expr::Var(v));
            values.push(call(&mut m, "nn.relu", vec![used]));
        }
        let mut body = m.add(Expr::Var(lets[lets.len() - 1]));
        for (&var, &value) in lets.iter().zip(&values).rev() {
            body = m.add(Expr::Let { var, value, body });
        }
        let f = m.add(Expr::Func(Box::new(Function::new(vec![x], body, None))));
        m.define("main", f);
        assert!(infer_types(m).is_ok());
    }
}
