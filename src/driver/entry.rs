//! Modules that functions of a program are made code from: one function of tensors, for some extents.

use crate::{
    ir::{Attrs, Dim, Expr, ExprId, Function, Module, TensorType, Type, VarId},
    tensor::{Shape, Tensor},
};

/// What the function of that number is called in a module that is made for it.
pub(super) fn entry_name(number: usize) -> String {
    format!("f{number}")
}

/// Defines a function that does nothing but call `callee` on parameters of these types.
pub(super) fn define_entry(m: &mut Module, number: usize, callee: ExprId, types: &[Type]) {
    let params: Vec<VarId> =
        types.iter().enumerate().map(|(i, t)| m.new_var(format!("x{i}"), Some(t.clone()))).collect();
    let args = params.iter().map(|&p| m.add(Expr::Var(p))).collect();
    let body = m.add(Expr::Call { callee, args, attrs: Attrs::empty(), type_args: vec![] });
    let func = m.add(Expr::Func(Box::new(Function::new(params, body, None))));
    m.define(entry_name(number), func);
}

/// The type with the extents that are given for its tensors, which are taken in order.
pub(super) fn of_extents<'a>(ty: &Type, given: &mut impl Iterator<Item = &'a Shape>) -> Type {
    match ty {
        Type::Tuple(fields) => Type::tuple(fields.iter().map(|f| of_extents(f, given)).collect::<Vec<_>>()),
        Type::Tensor(t) => match given.next() {
            Some(shape) => TensorType::of(shape.iter().map(|&n| Dim::Known(n as i64)), t.dtype).into(),
            None => ty.clone(),
        },
        _ => ty.clone(),
    }
}

/// The type with the extents of the tensors that are given for it, which are taken in order.
pub(super) fn concrete<'a>(ty: &Type, given: &mut impl Iterator<Item = (usize, &'a Tensor)>) -> Type {
    match ty {
        Type::Tuple(fields) => Type::tuple(fields.iter().map(|f| concrete(f, given)).collect::<Vec<_>>()),
        _ => match given.next() {
            Some((_, t)) => TensorType::of(t.shape().iter().map(|&n| Dim::Known(n as i64)), t.dtype()).into(),
            None => ty.clone(),
        },
    }
}
