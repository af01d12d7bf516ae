//! Two programs as one, for questions about both.

use hashbrown::HashMap;

use crate::{
    diag::{Diagnostic, Refused},
    ir::{Expr, ExprId, Function, Module, VarId},
};

/// The module whose `main` gives a tuple: what the program's `main` gives, and what the wanted form gives of the same
/// parameters, which are matched by position. Refused are wanted forms that are made of more than operators' calls, constants,
/// tuples and pure bindings, and those of other parameters.
pub fn pair(program: &Module, wanted: &Module) -> Result<Module, Refused> {
    let main = |m: &Module, what: &str| -> Result<ExprId, Refused> {
        m.function_id("main").ok_or_else(|| Diagnostic::new(format!("{what} has no `@main`")).into())
    };
    let (of_program, of_wanted) = (main(program, "the program")?, main(wanted, "the wanted form")?);
    let mut out = program.clone();
    let (f, g) = (program.func(of_program).clone(), wanted.func(of_wanted));
    if f.params.len() != g.params.len() {
        let (n, m) = (g.params.len(), f.params.len());
        let d = Diagnostic::new(format!("the wanted form has {n} parameters, the program {m}"));
        return Err(d.at(wanted.span(of_wanted).cloned()).into());
    }
    let params: HashMap<VarId, ExprId> =
        g.params.iter().zip(&f.params).map(|(&theirs, &ours)| (theirs, out.add(Expr::Var(ours)))).collect();
    let mut lets: HashMap<VarId, ExprId> = HashMap::new();
    let mut copied: HashMap<ExprId, ExprId> = HashMap::new();
    // Children come first, but a variable may stand before what it is bound to: its uses are looked up last.
    let reachable = crate::ir::reachable(wanted, [g.body]);
    for &id in &reachable {
        if let Expr::Let { var, value, .. } = &wanted[id] {
            lets.insert(*var, *value);
        }
    }
    let mut stack = vec![g.body];
    while let Some(&id) = stack.last() {
        if copied.contains_key(&id) {
            stack.pop();
            continue;
        }
        let mut needs: Vec<ExprId> = Vec::new();
        match &wanted[id] {
            Expr::Var(v) => needs.extend(lets.get(v)),
            Expr::Let { body, .. } => needs.push(*body),
            Expr::Tuple(_) | Expr::Proj(..) => crate::ir::children(&wanted[id], |c| needs.push(c)),
            Expr::Call { args, .. } if wanted.op_call(id).is_some() => needs.extend(args),
            Expr::Constant(_) => {}
            _ => {
                let message = "a wanted form is made of operators' calls, constants, tuples and pure bindings only";
                return Err(Diagnostic::new(message).at(wanted.span(id).cloned()).into());
            }
        }
        let before = stack.len();
        stack.extend(needs.iter().copied().filter(|c| !copied.contains_key(c)));
        if stack.len() > before {
            continue;
        }
        stack.pop();
        let span = wanted.span(id).cloned();
        let new = match &wanted[id] {
            Expr::Var(v) => match (params.get(v), lets.get(v)) {
                (Some(&p), _) => p,
                (_, Some(value)) => copied[value],
                _ => return Err(Diagnostic::new("a free variable").at(span).into()),
            },
            Expr::Let { body, .. } => copied[body],
            Expr::Tuple(fields) => {
                let fields = fields.iter().map(|c| copied[c]).collect();
                out.add_at(Expr::Tuple(fields), span)
            }
            Expr::Proj(t, i) => {
                let tuple = copied[t];
                out.add_at(Expr::Proj(tuple, *i), span)
            }
            Expr::Constant(t) => out.add_at(Expr::Constant(t.clone()), span),
            _ => {
                let (op, args, attrs) = wanted.op_call(id).expect("all else was refused above");
                let args = args.iter().map(|c| copied[c]).collect();
                let call = out.call_op(op, args, attrs.clone());
                out.set_span(call, span);
                call
            }
        };
        copied.insert(id, new);
    }
    let both = out.add(Expr::Tuple(vec![f.body, copied[&g.body]]));
    let main = out.add(Expr::Func(Box::new(Function { body: both, ret: None, ..f })));
    out.define("main", main);
    Ok(out)
}
