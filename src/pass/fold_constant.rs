//! Calls of constants become constants.

use hashbrown::{HashMap, HashSet};

use super::effects::Effects;
use crate::{
    diag::{Diagnostic, Refused},
    interp,
    ir::{Attrs, Clause, Copier, Expr, ExprId, Module, OpId, Pattern, VarId, children, reachable},
    tensor::{DType, Tensor, Value},
};

/// A result larger than this, in bytes, and than what it is made of by so many times, stays a call: `zeros` of a big shape is cheaper to make
/// than to store. Winograd's transform makes of a weight's bytes four times as many numbers of 16 bits.
const LARGEST_GROWN: usize = 1 << 16;
const GROWTH: usize = 8;
/// What decides extents takes no more bytes than this.
const LARGEST_WIDENED: usize = 1 << 10;

/// The module with every operator call of nothing but constants evaluated, projections of tuples taken, and conditionals
/// on constants and matches of known constructors decided. Variables that are bound to constants, or to what small constants are computed to, count as constants; other bindings are looked
/// through after inlining.
///
/// Refuses a call that its operator does not allow.
pub fn fold_constant(m: &Module) -> Result<Module, Refused> {
    fold_calls(m.clone(), Folded::All)
}

/// Which calls of constants are folded.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Folded {
    /// All that there are.
    All,
    /// Those of operators that are of no dialect.
    Plain,
    /// All but casts of large constants to wider types: rules may do without, and what decides extents is small.
    Narrow,
}

impl Folded {
    fn takes(self, op: OpId, values: &[Value], result: &Value) -> bool {
        let bytes = |v: &Value| v.flatten().iter().map(|t| t.bytes().len()).sum::<usize>();
        match self {
            Folded::All => true,
            Folded::Plain => op.dialect().is_none(),
            Folded::Narrow => {
                let before = values.iter().map(bytes).sum::<usize>();
                op.op().name() != "cast" || bytes(result) <= before.max(LARGEST_WIDENED)
            }
        }
    }
}

/// The same, where some calls are left alone.
///
/// What nothing needs once it was folded, weights as they were given and what stands between them and their last form, is let go at
/// once: a network's weights need not be there twice.
pub(super) fn fold_calls(mut m: Module, folded: Folded) -> Result<Module, Refused> {
    let mut given: HashMap<ExprId, Tensor> = HashMap::new();
    let same = duplicates(&m);
    let first = |e: ExprId| same.get(&e).copied().unwrap_or(e);
    let mut uses = uses(&m, &same);
    // What those became that there are duplicates of.
    let mut became: HashMap<ExprId, ExprId> = HashMap::new();
    let dialects = folded != Folded::Plain;
    let bound = bound_constants(&m, dialects);
    for id in m.ids() {
        given.extend(m.take_constant(id).map(|t| (id, t)));
    }
    let m = &m;
    let mut out = m.derive();
    let mut copier = Copier::new();
    let effects = Effects::new(m);
    let (mut refused, mut bindings) = (Vec::new(), false);
    for (name, id) in m.functions() {
        let new = copier.copy_with(m, id, &mut out, |out, from, expr| {
            let span = || m.span(from).cloned();
            if let Some(first) = same.get(&from) {
                // Of what is not folded, duplicates are not, either.
                return became.get(first).copied();
            }
            let new = match expr {
                Expr::Constant(_) => given.remove(&from).map(|t| out.add_at(Expr::Constant(t), span())),
                Expr::Var(v) => bound.get(v).map(|t| out.add_at(Expr::Constant(t.clone()), span())),
                Expr::Proj(tuple, i) => match (&m[from], &out[*tuple]) {
                    (Expr::Proj(before, _), Expr::Tuple(fields)) if !effects.has(*before) => fields.get(*i).copied(),
                    _ => None,
                },
                Expr::If { cond, then, otherwise } => match &out[*cond] {
                    Expr::Constant(t) if t.len() == 1 => Some(if t.get_i64(0) != 0 { *then } else { *otherwise }),
                    _ => None,
                },
                Expr::Match { data, clauses, .. } => {
                    let Expr::Match { data: before, .. } = &m[from] else { return None };
                    let clauses = if effects.has(*before) { &[] } else { &clauses[..] };
                    let (bound, body) = decided(out, *data, clauses)?;
                    bindings |= !bound.is_empty();
                    let bind = |body, (var, value)| out.add_at(Expr::Let { var, value, body }, span());
                    Some(bound.into_iter().rev().fold(body, bind))
                }
                Expr::Call { callee, args, attrs, .. } => {
                    let Expr::Op(op) = out[*callee] else { return None };
                    (dialects || op.dialect().is_none()).then_some(())?;
                    let values: Vec<Value> = args.iter().map(|&a| constant(out, a)).collect::<Option<_>>()?;
                    match interp::eval_op(op, attrs, &values) {
                        Ok(v) if worth_keeping(&values, &v) && folded.takes(op, &values, &v) => {
                            drop(values);
                            let Expr::Call { args: before, .. } = &m[from] else { unreachable!("a call is copied") };
                            for (&old, &new) in before.iter().zip(args) {
                                let old = first(old);
                                let left = uses.get_mut(&old).expect("what is copied was counted");
                                *left -= 1;
                                // Other kinds of expressions may have become what others are, too.
                                if *left == 0 && matches!(m[old], Expr::Constant(_) | Expr::Call { .. }) {
                                    out.take_constant(new);
                                }
                            }
                            Some(store(out, v, from, m))
                        }
                        Ok(_) => None,
                        Err(e) => {
                            refused.push(Diagnostic::new(format!("`{}`: {e}", op.op().name())).at(span()));
                            None
                        }
                    }
                }
                _ => None,
            };
            became.extend(new.map(|new| (from, new)));
            new
        });
        out.define(name.clone(), new);
    }
    match refused.is_empty() {
        // Fields of known constructors are bindings that sharing does without.
        true if bindings => super::inline(&out),
        true => Ok(out),
        false => Err(Refused(refused)),
    }
}

/// What constants are, or calls, tuples and fields of nothing but constants.
#[derive(PartialEq, Eq, Hash)]
enum Form {
    /// Its data, by address.
    Constant(DType, Vec<usize>, usize),
    Call(OpId, Attrs, Vec<ExprId>),
    Tuple(Vec<ExprId>),
    Field(ExprId, usize),
}

/// Of what is made of constants alone and stands several times, all but the one that is copied first, with that one: a recurrent network has the
/// transform of its weight once for each step.
fn duplicates(m: &Module) -> HashMap<ExprId, ExprId> {
    let mut firsts: HashMap<Form, ExprId> = HashMap::new();
    let (mut known, mut found): (HashSet<ExprId>, HashMap<ExprId, ExprId>) = (HashSet::new(), HashMap::new());
    let mut copied = HashSet::new();
    for (_, function) in m.functions() {
        // As a copier goes through them.
        for id in reachable(m, [function]).into_iter().filter(|&e| copied.insert(e)) {
            let first = |e: &ExprId| known.contains(e).then(|| found.get(e).copied().unwrap_or(*e));
            let form = match (&m[id], m.op_call(id)) {
                (Expr::Constant(t), _) => {
                    Some(Form::Constant(t.dtype(), t.shape().to_vec(), t.bytes().as_ptr().addr()))
                }
                (Expr::Tuple(fields), _) => fields.iter().map(first).collect::<Option<_>>().map(Form::Tuple),
                (Expr::Proj(tuple, i), _) => first(tuple).map(|t| Form::Field(t, *i)),
                (_, Some((op, args, attrs))) => {
                    let args = args.iter().map(first).collect::<Option<_>>();
                    args.map(|args| Form::Call(op, attrs.clone(), args))
                }
                _ => None,
            };
            let Some(form) = form else { continue };
            known.insert(id);
            let first = *firsts.entry(form).or_insert(id);
            if first != id {
                found.insert(id, first);
            }
        }
    }
    found
}

/// How often each expression is used by others, but for duplicates.
fn uses(m: &Module, same: &HashMap<ExprId, ExprId>) -> HashMap<ExprId, usize> {
    let mut uses = HashMap::new();
    let all = reachable(m, m.functions().map(|(_, f)| f));
    for id in all.into_iter().filter(|e| !same.contains_key(e)) {
        children(&m[id], |c| *uses.entry(same.get(&c).copied().unwrap_or(c)).or_default() += 1);
    }
    uses
}

/// The clause that a known constructor meets, and what it binds; `None` where that is not to be seen.
fn decided(m: &Module, data: ExprId, clauses: &[Clause]) -> Option<(Vec<(VarId, ExprId)>, ExprId)> {
    let Expr::Call { callee, args, .. } = &m[data] else { return None };
    let Expr::Constructor(name) = &m[*callee] else { return None };
    for Clause { pattern, body } in clauses {
        match pattern {
            Pattern::Wildcard => return Some((Vec::new(), *body)),
            Pattern::Var(v) => return Some((vec![(*v, data)], *body)),
            Pattern::Constructor(other, _) if other != name => {}
            Pattern::Constructor(_, fields) => {
                let mut bound = Vec::new();
                for (field, &arg) in fields.iter().zip(args) {
                    match field {
                        Pattern::Wildcard => {}
                        Pattern::Var(v) => bound.push((*v, arg)),
                        Pattern::Constructor(..) | Pattern::Tuple(_) => return None,
                    }
                }
                return Some((bound, *body));
            }
            Pattern::Tuple(_) => return None,
        }
    }
    None
}

/// Variables that a `let` binds to a constant, or to what small constants alone are computed to.
fn bound_constants(m: &Module, dialects: bool) -> HashMap<VarId, Tensor> {
    let all = reachable(m, m.functions().map(|(_, f)| f));
    let bindings: Vec<(VarId, ExprId)> = all
        .iter()
        .filter_map(|&id| match &m[id] {
            Expr::Let { var, value, .. } => Some((*var, *value)),
            _ => None,
        })
        .collect();
    let values: HashMap<VarId, ExprId> = bindings.iter().copied().collect();
    let mut known: HashMap<ExprId, Tensor> = HashMap::new();
    if !bindings.is_empty() {
        // What a binding is of mostly stands before what reads it; where it does not, it is not known.
        for id in m.ids() {
            let value = match (&m[id], m.op_call(id)) {
                (Expr::Constant(t), _) => Some(t.clone()),
                (Expr::Var(v), _) => values.get(v).and_then(|e| known.get(e)).cloned(),
                (_, Some((op, args, attrs))) if dialects || op.dialect().is_none() => {
                    let given: Option<Vec<Value>> =
                        args.iter().map(|a| known.get(a).cloned().map(Value::Tensor)).collect();
                    let small = |vs: &Vec<Value>| vs.iter().all(|v| v.tensor().bytes().len() <= LARGEST_GROWN);
                    given.filter(small).and_then(|given| match interp::eval_op(op, attrs, &given) {
                        Ok(Value::Tensor(t)) if t.bytes().len() <= LARGEST_GROWN => Some(t),
                        _ => None,
                    })
                }
                _ => None,
            };
            known.extend(value.map(|t| (id, t)));
        }
    }
    bindings.into_iter().filter_map(|(var, value)| Some((var, known.get(&value)?.clone()))).collect()
}

/// The value of an expression that is a constant or a tuple of such.
fn constant(m: &Module, e: ExprId) -> Option<Value> {
    match &m[e] {
        Expr::Constant(t) => Some(t.clone().into()),
        Expr::Tuple(fields) => {
            let flat = |&f: &ExprId| match &m[f] {
                Expr::Constant(t) => Some(t.clone().into()),
                _ => None,
            };
            fields.iter().map(flat).collect::<Option<Vec<_>>>().map(Value::Tuple)
        }
        _ => None,
    }
}

fn worth_keeping(args: &[Value], result: &Value) -> bool {
    let bytes = |v: &Value| v.flatten().iter().map(|t| t.bytes().len()).sum::<usize>();
    let made_of: usize = args.iter().map(bytes).sum();
    bytes(result) <= LARGEST_GROWN.max(GROWTH * made_of)
}

fn store(out: &mut Module, v: Value, from: ExprId, m: &Module) -> ExprId {
    let expr = match v {
        Value::Tensor(t) => Expr::Constant(t),
        // Operators' results are tensors or tuples of tensors.
        Value::Tuple(fields) => Expr::Tuple(fields.into_iter().map(|f| store(out, f, from, m)).collect()),
    };
    out.add_at(expr, m.span(from).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::text::parse_module;

    fn folded(text: &str) -> (Module, ExprId) {
        let m = parse_module("test", &format!("#[version = \"0.0.5\"] {text}")).expect("it parses");
        let m = fold_constant(&m).unwrap_or_else(|e| panic!("{e}"));
        let body = m.function("main").expect("it has one").body;
        (m, body)
    }

    #[test]
    fn calls_of_constants_are_evaluated() {
        let (m, body) = folded("def @main(%x: int32) { add(%x, add(add(1, 2), (3, 4).1)) }");
        let (_, args, _) = m.op_call(body).expect("the outer call stays");
        assert_eq!(m[args[1]], Expr::Constant(Tensor::scalar(7i32)));
    }

    #[test]
    fn what_stands_twice_is_there_once() {
        let text = "def @main(%x: Tensor[(2), int32]) {
            %0 = stack((3, 4), axis=0);
            %1 = reverse(negative(%0), axis=0);
            %2 = reverse(negative(%0), axis=0);
            (add(%x, %1), multiply(%x, %2), negative(%0))
        }";
        let (m, body) = folded(text);
        let Expr::Tuple(fields) = &m[body] else { panic!("a tuple stays one") };
        let constant = |e: ExprId| m.op_call(e).expect("it is a call").1[1];
        assert_eq!(constant(fields[0]), constant(fields[1]));
        assert_eq!(m[constant(fields[0])], Expr::Constant(Tensor::from_slice(&[2], &[-4i32, -3])));
        assert_eq!(m[fields[2]], Expr::Constant(Tensor::from_slice(&[2], &[-3i32, -4])));
    }

    #[test]
    fn what_is_used_elsewhere_stays() {
        // A constant and a folded call that others use as well, and the fields of a folded tuple.
        let text = "def @main(%x: int32) {
            let %c = 5;
            %0 = add(1, 2);
            %1 = multiply(%0, %0);
            %2 = split(meta[relay.Constant][0], indices_or_sections=2);
            (add(%x, %0), %1, negative(%c), negative(%2.0), %2.0, %2.1, add(%2.0, %2.1))
        }";
        let text = text.replace("meta[relay.Constant][0]", "stack((3, 4), axis=0)");
        let (m, body) = folded(&text);
        let out = interp::run_flat(&m, "main", vec![Tensor::scalar(1i32).into()]).expect("it runs");
        let values: Vec<i64> = out.iter().map(|t| t.get_i64(0)).collect();
        assert_eq!(values, [4, 9, -5, -3, 3, 4, 7]);
        assert!(!matches!(m[body], Expr::Constant(_)));
    }

    #[test]
    fn bindings_that_follow_from_bindings_are_constants() {
        let text = "def @main(%x: int32) {
            let %a = on_device(1, constrain_body=False);
            let %b = on_device(add(%a, %a), constrain_body=False);
            on_device(add(%b, %x), constrain_body=False)
        }";
        let (m, _) = folded(text);
        let text = crate::relay::text::print_module(&m);
        assert!(text.contains("add(2, %x)"), "{text}");
    }

    #[test]
    fn conditionals_on_constants_are_decided() {
        let (m, body) = folded("def @main(%x: int32) { if (True) { %x } else { 0 } }");
        assert!(matches!(m[body], Expr::Var(_)));
    }

    #[test]
    fn matches_of_known_constructors_are_decided() {
        let types = "type Maybe[A] { Some(A), None, }";
        let (m, body) = folded(&format!(
            "{types} def @main(%x: int32) {{ match (Some(%x)) {{ None => {{ 0 }}, Some(%y) => {{ add(%y, %y) }}, }} }}"
        ));
        let (_, args, _) = m.op_call(body).expect("the clause's body");
        assert!(args.iter().all(|&a| matches!(m[a], Expr::Var(_))), "{:?}", m[body]);
        // Of a missing value nothing is known, not even what the other clause would do with it.
        let (m, body) = folded(&format!(
            "{types} def @main(%x: int32) {{ match (if (False) {{ Some(%x) }} else {{ None }}) {{ Some(%y) => {{ add(%y, 1) }}, _ => {{ %x }}, }} }}"
        ));
        assert!(matches!(m[body], Expr::Var(_)));
    }

    #[test]
    fn illegal_calls_are_refused() {
        let text = "#[version = \"0.0.5\"] def @main() { add(1, 2f) }";
        let m = parse_module("test", text).expect("it parses");
        assert!(fold_constant(&m).expect_err("the types differ").to_string().contains("`add`"));
    }
}
