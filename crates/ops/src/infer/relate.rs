//! What waits until more is known: operators' type relations, and fields of tuples.

use super::{
    solve::{Misfit, Term, Ty},
    walk::Infer,
};
use crate::{
    diag::Diagnostic,
    ir::{AttrValue, Attrs, Dim, ExprId, Name, OpId, TensorType, Type},
    ops,
};

/// Something that gives a type once others are known.
pub(super) enum Pending {
    /// The result of an operator.
    Relation { op: OpId, attrs: Attrs, args: Vec<Ty>, out: Ty, at: ExprId },
    /// A field of a tuple.
    Field { tuple: Ty, index: usize, out: Ty, at: ExprId },
}

impl Infer<'_> {
    /// Tries now, and waits where too little is known.
    pub(super) fn relate(&mut self, p: Pending) {
        if let Some(p) = self.attempt(p) {
            self.pending.push(p);
        }
    }

    /// Goes over all that waits until nothing moves any more. Only then arguments get the types that operators' relations
    /// give them: what the program says of them goes first.
    pub(super) fn solve_all(&mut self) {
        loop {
            self.solve_relations();
            if !self.complete_arguments() {
                return;
            }
        }
    }

    /// Gives arguments of which too little is known the types that follow from others; whether there were any.
    fn complete_arguments(&mut self) -> bool {
        let before = self.solver.solved;
        let pending = std::mem::take(&mut self.pending);
        for p in &pending {
            let Pending::Relation { op, attrs, args, at, .. } = p else { continue };
            let known: Vec<Type> = args.iter().map(|&a| self.solver.partial(a)).collect();
            for (i, ty) in op.op().complete(attrs, &known) {
                let whole = ty.as_tensor().is_some_and(|t| !t.shape.iter().any(|d| matches!(d, Dim::Hole(_))));
                if !whole || !matches!(self.solver.complete(args[i]), Ok(None)) {
                    continue;
                }
                let found = self.solver.import(&ty);
                if let Err(misfit) = self.solver.assign(found, args[i]) {
                    let wanted = self.solver.partial(args[i]);
                    let what = format!("`{}` of `{}`", op.op().inputs()[i], op.op().name());
                    self.complain_flow(*at, misfit, &what, &ty, &wanted);
                }
            }
        }
        self.pending.extend(pending);
        self.solver.solved != before
    }

    fn solve_relations(&mut self) {
        while self.solved_at != Some(self.solver.solved) {
            self.solved_at = Some(self.solver.solved);
            for (op, f) in std::mem::take(&mut self.solver.op_flows) {
                let Some(at) = self.current else { continue };
                if let Some(attrs) = self.op_attrs(op, &Attrs::empty(), at)
                    && self.op_takes(op, f.params.len(), at)
                {
                    self.relate(Pending::Relation { op, attrs, args: f.params, out: f.ret, at });
                }
            }
            for p in std::mem::take(&mut self.pending) {
                self.relate(p);
            }
        }
    }

    /// The complete record of a call of an operator that is known only by inference.
    pub(super) fn op_attrs(&mut self, op: OpId, attrs: &Attrs, at: ExprId) -> Option<Attrs> {
        let given: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
        ops::make_attrs(op, &given).map_err(|e| self.complain(at, Diagnostic::new(e.to_string()))).ok()
    }

    /// Whether an operator takes that many arguments; a complaint where not.
    pub(super) fn op_takes(&mut self, op: OpId, found: usize, at: ExprId) -> bool {
        let inputs = op.op().inputs();
        if inputs.len() != found {
            let names = if inputs.is_empty() { String::new() } else { format!(" (`{}`)", inputs.join("`, `")) };
            let (name, n, s) = (op.op().name(), inputs.len(), if inputs.len() == 1 { "" } else { "s" });
            self.complain(at, Diagnostic::new(format!("`{name}` takes {n} argument{s}{names}, but is given {found}")));
        }
        inputs.len() == found
    }

    fn attempt(&mut self, p: Pending) -> Option<Pending> {
        match &p {
            Pending::Relation { op, attrs, args, out, at } => {
                let mut types: Vec<Type> = Vec::with_capacity(args.len());
                for &arg in args {
                    match self.solver.complete(arg) {
                        Ok(Some(ty)) => types.push(ty),
                        Ok(None) => return Some(p),
                        Err(misfit) => return self.complain_misfit(*at, misfit),
                    }
                }
                match op.op().infer(attrs, &types) {
                    Ok(ty) if !ty.flatten().is_none_or(|t| t.iter().all(TensorType::is_sensible)) => {
                        let message =
                            format!("the result of `{}` would be {ty}: more than memory can hold", op.op().name());
                        self.complain(*at, Diagnostic::new(message));
                    }
                    Ok(ty) => {
                        let found = self.solver.import(&ty);
                        if let Err(misfit) = self.solver.assign(found, *out) {
                            let wanted = self.solver.partial(*out);
                            let what = format!("the result of `{}`", op.op().name());
                            self.complain_flow(*at, misfit, &what, &ty, &wanted);
                        }
                    }
                    Err(e) => self.complain(*at, Diagnostic::new(format!("`{}`: {e}", op.op().name()))),
                }
                None
            }
            Pending::Field { tuple, index, out, at } => {
                let field = match self.solver.term(*tuple) {
                    Term::Hole => return Some(p),
                    Term::Tuple(fields) => fields.get(*index).copied(),
                    _ => None,
                };
                let Some(field) = field else {
                    let found = self.solver.partial(*tuple);
                    let message = format!("field {index} is taken of {found}, which has no such field");
                    self.complain(*at, Diagnostic::new(message));
                    return None;
                };
                if let Err(misfit) = self.solver.assign(field, *out) {
                    let (found, wanted) = (self.solver.partial(field), self.solver.partial(*out));
                    self.complain_flow(*at, misfit, &format!("field {index}"), &found, &wanted);
                }
                None
            }
        }
    }

    /// Says why two types do not fit: `what` is `found`, but should be `wanted`.
    pub(super) fn complain_flow(&mut self, at: ExprId, misfit: Misfit, what: &str, found: &Type, wanted: &Type) {
        match misfit {
            Misfit::Differ => {
                self.complain(at, Diagnostic::new(format!("{what} is {found}, but should be {wanted}")));
            }
            _ => drop(self.complain_misfit::<()>(at, misfit)),
        }
    }

    /// Says why a type can't be; gives `None`.
    pub(super) fn complain_misfit<T>(&mut self, at: ExprId, misfit: Misfit) -> Option<T> {
        let message = match misfit {
            Misfit::Differ => "types differ".into(),
            Misfit::Recursive => "a type would contain itself: recursive types need a `type` definition".into(),
            Misfit::TooDeep => format!("a type is nested more than {} deep", super::MAX_NESTING),
            Misfit::TooWide => format!("a type is made of more than {} types", super::MAX_PARTS),
        };
        self.complain(at, Diagnostic::new(message));
        None
    }
}
