//! Extents to reckon with where a program's are unknown, since prices need numbers.
//!
//! Those of inputs are guessed; all others follow from these by the operators' type relations. So they fit each other: of an image that is
//! halved five times, the last layers are priced as small ones.

use egg::{Id, Language};
use hashbrown::HashMap;

use super::{AttrsId, Case, Fact, KernelBody, Node, Step, Tables, What, meet};
use crate::{
    infer::TypedModule,
    ir::{Dim, TensorType, Type, VarId, likely_extents},
};

/// What an unknown outermost extent of several counts as: a batch.
const BATCH: i64 = 1;
/// What another one of a tensor of four axes and more counts as: a height or a width. Halved five times it is 8, which is even as the extents of most images'
/// last layers are; by the 7 that 224 becomes, algorithms that go by tiles of two and four would seem dearer than they mostly are.
const SIDE: i64 = 256;
/// And of one of fewer: a length.
const LENGTH: i64 = 32;

/// Whether all extents are known.
pub(super) fn is_known(ty: &Type) -> bool {
    match ty {
        Type::Tensor(t) => t.shape.iter().all(|d| matches!(d, Dim::Known(_))),
        // Types bound how deep tuples are nested.
        Type::Tuple(fields) => fields.iter().all(is_known),
        _ => true,
    }
}

/// The type of an input with a number for each extent that is unknown: that which is said, by tensor (tuples flattened depth first) and
/// axis, or a guess.
pub fn likely_input(ty: &Type, said: &[Vec<Option<i64>>]) -> Type {
    with_numbers(ty, &mut said.iter())
}

fn with_numbers<'a>(ty: &Type, said: &mut impl Iterator<Item = &'a Vec<Option<i64>>>) -> Type {
    let tensor = |t: &TensorType, said: Option<&Vec<Option<i64>>>| {
        let guess = |(i, d): (usize, &Dim)| match d {
            Dim::Known(n) => Dim::Known(*n),
            _ if let Some(n) = said.and_then(|s| *s.get(i)?) => Dim::Known(n),
            _ if i == 0 && t.rank() > 2 => Dim::Known(BATCH),
            _ if t.rank() > 3 => Dim::Known(SIDE),
            _ => Dim::Known(LENGTH),
        };
        TensorType::of(t.shape.iter().enumerate().map(guess), t.dtype)
    };
    match ty {
        Type::Tensor(t) => tensor(t, said.next()).into(),
        // Types bound how deep tuples are nested.
        Type::Tuple(fields) => Type::tuple(fields.iter().map(|f| with_numbers(f, said)).collect::<Vec<_>>()),
        _ => ty.clone(),
    }
}

/// The types of the parameters of `@main` of which something is said, with numbers for extents that are unknown.
pub(super) fn of_parameters(module: &TypedModule) -> HashMap<VarId, Type> {
    let all = likely_extents(module.module());
    let mut said = &all[..];
    let mut found = HashMap::new();
    for &p in module.function("main").filter(|_| !all.is_empty()).iter().flat_map(|main| &main.params) {
        let ty = module.var_ty(p);
        let (own, others) = said.split_at(ty.flatten().map_or(0, |t| t.len()).min(said.len()));
        if own.iter().flatten().any(Option::is_some) {
            found.insert(p, likely_input(ty, own));
        }
        said = others;
    }
    found
}

/// The type of a node's result with numbers for its unknown extents, by those of its children; none where nothing is unknown, or nothing
/// follows.
pub(super) fn of_node<'f>(
    tables: &Tables,
    node: &Node,
    ty: Option<&Type>,
    fact: &impl Fn(Id) -> &'f Fact,
) -> Option<Type> {
    let ty = ty.filter(|ty| !is_known(ty))?;
    if let Case::Input(input) = node.case() {
        let found = tables.likely_input(input).cloned().unwrap_or_else(|| likely_input(ty, &[]));
        return fitting(ty, found);
    }
    let record = |id: Id| match fact(id).what {
        What::Attrs(attrs) => Some(attrs),
        _ => None,
    };
    inferred(tables, node, ty, &|id| fact(id).priced_type(), &record)
}

/// The type of a node's result with numbers for all extents, by such types of its children, where it follows from these.
pub(super) fn inferred<'f>(
    tables: &Tables,
    node: &Node,
    ty: &Type,
    type_of: &impl Fn(Id) -> Option<&'f Type>,
    record: &impl Fn(Id) -> Option<AttrsId>,
) -> Option<Type> {
    let types = |of: &[Id]| of.iter().map(|&c| type_of(c).cloned()).collect::<Option<Vec<Type>>>();
    let found = match node.case() {
        Case::Tuple => Type::tuple(types(node.children())?),
        Case::Proj(field) => match type_of(node.children()[0])? {
            Type::Tuple(fields) => fields.get(field as usize)?.clone(),
            _ => return None,
        },
        Case::Enter(_) | Case::Leave(_) => type_of(node.children()[0])?.clone(),
        Case::Op(_) => {
            let (op, attrs, args) = node.as_op()?;
            op.op().infer(tables.attrs(record(attrs)?), &types(args)?).ok()?
        }
        Case::Kernel(id) => of_steps(tables, tables.kernel(id), &types(node.children())?).pop()?,
        Case::Input(_) | Case::Attrs(_) | Case::Const(_) | Case::Opaque(_) => return None,
    };
    fitting(ty, found)
}

/// The second type where it is the first one with numbers for all extents.
pub(super) fn fitting(ty: &Type, found: Type) -> Option<Type> {
    (is_known(&found) && meet(ty, &found).as_ref() == Some(&found)).then_some(found)
}

/// The types of the steps of a kernel over arguments of these types: with numbers for unknown extents where they follow.
pub fn of_steps(tables: &Tables, body: &KernelBody, args: &[Type]) -> Vec<Type> {
    let mut types: Vec<Type> = Vec::with_capacity(body.steps().len());
    for step in body.steps() {
        let all = |of: &[u32]| of.iter().map(|&s| types[s as usize].clone()).collect::<Vec<Type>>();
        types.push(match step {
            Step::Arg(i) => args[*i as usize].clone(),
            Step::Const(id) => {
                let t = tables.constant(*id);
                let shape: Vec<i64> = t.shape().iter().map(|&n| n as i64).collect();
                Type::tensor(&shape, t.dtype())
            }
            Step::Tuple(fields) => Type::tuple(all(fields)),
            Step::Op(_, _, _, ty) if is_known(ty) => ty.clone(),
            Step::Op(op, attrs, of, ty) => {
                let found = op.op().infer(tables.attrs(*attrs), &all(of)).ok();
                found.and_then(|found| fitting(ty, found)).unwrap_or_else(|| ty.clone())
            }
        });
    }
    types
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn tensor(dims: &[Option<i64>]) -> Type {
        TensorType::of(dims.iter().map(|d| d.map_or(Dim::Any, Dim::Known)), DType::F32).into()
    }

    #[test]
    fn inputs_get_numbers_for_what_is_unknown() {
        let image = likely_input(&tensor(&[None, Some(3), None, None]), &[]);
        assert_eq!(image, Type::tensor(&[BATCH, 3, SIDE, SIDE], DType::F32));
        assert_eq!(likely_input(&tensor(&[None, Some(7)]), &[]), Type::tensor(&[LENGTH, 7], DType::F32));
        let pair = Type::tuple([tensor(&[None]), tensor(&[None, Some(7), None])]);
        let said = likely_input(&pair, &[vec![Some(9)], vec![Some(2), Some(1), None]]);
        let wanted = [Type::tensor(&[9], DType::F32), Type::tensor(&[2, 7, LENGTH], DType::F32)];
        assert_eq!(said, Type::tuple(wanted));
        assert_eq!(fitting(&tensor(&[None, Some(3)]), Type::tensor(&[2, 4], DType::F32)), None, "another extent");
    }
}
