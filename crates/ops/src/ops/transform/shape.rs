//! The same elements under other extents.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work, op_bail, op_ensure,
        util::{
            axis_of, field, ints_attr, lowered_shapes, may_equal, op_head, sample, show, t, tensor_arg, value_shapes,
            work_per_element,
        },
    },
    tensor::{DType, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family =
    &[&Reshape { reverse: false }, &ReverseReshape(Reshape { reverse: true }), &ReshapeLike, &Squeeze, &ExpandDims];

/// Groups of axes of two shapes that hold the same elements, each as small as may be; axes of extent 1 are in none.
/// Extents are positive.
fn groups(from: &[i64], to: &[i64]) -> Vec<(Vec<usize>, Vec<usize>)> {
    let wide = |s: &[i64]| (0..s.len()).filter(|&k| s[k] != 1).collect::<Vec<_>>();
    groups_of((from, &wide(from)), (to, &wide(to)))
}

/// The same of some of the axes; those of extent 1 that are none of the last ones are in a group, too.
fn groups_of((from, f): (&[i64], &[usize]), (to, g): (&[i64], &[usize])) -> Vec<(Vec<usize>, Vec<usize>)> {
    let (mut i, mut j) = (0, 0);
    let mut groups = Vec::new();
    while i < f.len() && j < g.len() {
        let (i0, j0) = (i, j);
        let (mut a, mut b) = (from[f[i]], to[g[j]]);
        (i, j) = (i + 1, j + 1);
        while a != b {
            if a < b {
                a *= from[f[i]];
                i += 1;
            } else {
                b *= to[g[j]];
                j += 1;
            }
        }
        groups.push((f[i0..i].to_vec(), g[j0..j].to_vec()));
    }
    groups
}

/// The index into a tensor of shape `from` of the element that has index `i` under shape `to`. Axes that the reshape leaves
/// alone keep their index as it is. For all sizes, an axis of extent 1 is one that may have another extent elsewhere.
pub(in crate::ops) fn reshape_index(from: &[i64], to: &[i64], i: &[Scalar], all_sizes: bool) -> Vec<Scalar> {
    let mut index = vec![Scalar::index(0); from.len()];
    if from.contains(&0) || to.contains(&0) {
        return index;
    }
    let all = |s: &[i64]| (0..s.len()).collect::<Vec<_>>();
    let groups = if all_sizes { groups_of((from, &all(from)), (to, &all(to))) } else { groups(from, to) };
    for (f, g) in groups {
        if let ([k], [l]) = (&f[..], &g[..]) {
            index[*k] = i[*l].clone();
            continue;
        }
        let flat = g.iter().fold(Scalar::index(0), |sum, &k| sum * to[k] + i[k].clone());
        let whole: i64 = f.iter().map(|&k| from[k]).product();
        let mut inner = whole;
        for (at, k) in f.into_iter().enumerate() {
            inner /= from[k];
            let place = flat.clone().floor_div(inner);
            // The outermost axis needs no remainder: the sum does not reach beyond it.
            let is_outermost = if all_sizes { at == 0 } else { from[k] * inner == whole };
            index[k] = if is_outermost { place } else { place.floor_mod(from[k]) };
        }
    }
    index
}

/// The roles of a reshaped tensor's axes: those that stay alone keep their elements.
fn reshape_axes(arg: &Type, out: Result<Type, OpError>) -> AxisMap {
    let rank = arg.as_tensor().map_or(0, TensorType::rank);
    let mut roles = vec![AxisRole::Opaque; rank];
    if let (Some(x), Ok(Type::Tensor(out))) = (arg.as_tensor(), out)
        && let (Some(from), Some(to)) = (x.known_shape(), out.known_shape())
        && !from.contains(&0)
        && !to.contains(&0)
    {
        for (f, g) in groups(&from, &to) {
            if let ([k], [l]) = (&f[..], &g[..]) {
                roles[*k] = AxisRole::Maps(*l);
            }
        }
    }
    AxisMap(vec![roles])
}

fn reshaped(op: &dyn Op, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
    let x = args[0].tensor();
    let shape = &value_shapes(op, attrs, args)?[0];
    op_ensure!(
        shape.iter().product::<usize>() == x.len(),
        "an array of shape {:?} does not take shape {shape:?}: the numbers of elements differ",
        x.shape()
    );
    Ok(x.reshaped(shape).into())
}

fn lower_reshape(op: &dyn Op, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
    let to = lowered_shapes(op, attrs, args, b)?.remove(0);
    Ok(reshape_stage(b, args[0].tensor(), &to).into())
}

/// A stage that gives a tensor other extents.
fn reshape_stage(b: &mut Builder, x: TensorId, to: &[i64]) -> TensorId {
    let from = b.shape(x).to_vec();
    b.map(to, |b, i| b.read(x, reshape_index(&from, to, i, b.is_for_all_sizes())))
}

/// Work of an operator that moves nothing: a view, where the compiler makes it one.
fn view_work(args: &[Type], out: &Type) -> Work {
    work_per_element(0.0, &args[..1], out)
}

fn product(dims: impl IntoIterator<Item = Dim>) -> Option<i64> {
    dims.into_iter().try_fold(1i64, |n, d| n.checked_mul(d.known()?))
}

/// `reshape`, and the rule of `contrib_reverse_reshape`, which reads both shapes from the right.
#[derive(Debug)]
struct Reshape {
    reverse: bool,
}

/// `contrib_reverse_reshape`.
#[derive(Debug)]
struct ReverseReshape(Reshape);

impl Reshape {
    fn new_shape(&self, attrs: &Attrs, x: &TensorType) -> Result<Vec<Dim>, OpError> {
        let (mut given, mut from) = (ints_attr(attrs, "newshape")?, x.shape.to_vec());
        let allow_zero = attrs.bool("allowzero");
        if self.reverse {
            given.reverse();
            from.reverse();
        }
        let next = |at: &mut usize| {
            *at += 1;
            from.get(*at - 1).copied().ok_or_else(|| {
                OpError(format!("C2: `newshape` {given:?} speaks of more axes than `data`, which is {x}, has"))
            })
        };
        let div = |d: Dim, by: i64| match d {
            Dim::Known(n) if by > 0 => Dim::Known(n / by),
            _ => Dim::Any,
        };
        // The result's extents; which of them, and which of the input's, were copied and take no part in the inference of -1.
        let (mut to, mut at, mut copied, mut used) = (Vec::new(), 0, vec![], vec![false; from.len()]);
        let mut inferred = None;
        let mut i = 0;
        while i < given.len() {
            match given[i] {
                n if n > 0 || (n == 0 && allow_zero) => {
                    to.push(Dim::Known(n));
                    copied.push(false);
                    at += 1;
                }
                0 => {
                    to.push(next(&mut at)?);
                    copied.push(true);
                    used[at - 1] = true;
                }
                -1 => {
                    op_ensure!(inferred.is_none(), "C1: `newshape` {given:?} has more than one -1");
                    inferred = Some(to.len());
                    to.push(Dim::Known(1));
                    copied.push(false);
                    at += 1;
                }
                -2 => {
                    while at < from.len() {
                        to.push(next(&mut at)?);
                        copied.push(true);
                        used[at - 1] = true;
                    }
                }
                -3 => {
                    let (p, q) = (next(&mut at)?, next(&mut at)?);
                    used[at - 2] = true;
                    used[at - 1] = true;
                    to.push(product([p, q]).map_or(Dim::Any, Dim::Known));
                    copied.push(true);
                }
                -4 => {
                    let d = next(&mut at)?;
                    used[at - 1] = true;
                    let (Some(&p), Some(&q)) = (given.get(i + 1), given.get(i + 2)) else {
                        op_bail!("C3: -4 in `newshape` {given:?} should be followed by two extents");
                    };
                    op_ensure!(
                        (p > 0 || p == -1) && (q > 0 || q == -1) && (p, q) != (-1, -1),
                        "C3: -4 in `newshape` {given:?} should be followed by two extents, of which one may be -1"
                    );
                    to.push(if p == -1 { div(d, q) } else { Dim::Known(p) });
                    to.push(if q == -1 { div(d, p) } else { Dim::Known(q) });
                    copied.extend([true, true]);
                    i += 2;
                }
                n => op_bail!("C1: `newshape` {given:?} holds {n}, which has no meaning"),
            }
            i += 1;
        }
        if let Some(k) = inferred {
            let free = |s: &[Dim], out: &[bool]| {
                s.iter().zip(out).filter(|(_, out)| !**out).map(|(d, _)| *d).collect::<Vec<_>>()
            };
            to[k] = match (product(free(&from, &used)), product(free(&to, &copied))) {
                (Some(n), Some(m)) if m > 0 => Dim::Known(n / m),
                (Some(_), Some(_)) => {
                    op_bail!("C4: `data` is {x}: `newshape` {given:?} does not tell what -1 stands for")
                }
                _ => Dim::Any,
            };
        }
        if self.reverse {
            to.reverse();
        }
        if let (Some(n), Some(m)) = (product(x.shape.iter().copied()), product(to.iter().copied())) {
            op_ensure!(n == m, "C4: `data` is {x}, which has {n} elements, but shape {} takes {m}", show(&to));
        }
        Ok(to)
    }

    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        Ok(TensorType::of(self.new_shape(attrs, x)?, x.dtype).into())
    }
}

impl Op for Reshape {
    op_head!(
        "reshape",
        "The elements of data, in row-major order, under shape newshape, in which 0 copies the input's extent (unless
        allowzero), -1 stands for what is left, -2 copies all further extents, -3 multiplies two extents, and -4 splits one
        into the two numbers that follow, of which one may be -1.
        C1: no other negative numbers, and -1 at most once. C2: the input has the axes that are copied. C3: two numbers follow
        -4. C4: the number of elements stays.",
        ["data"],
        [
            field("newshape", AttrKind::Ints, AttrDefault::Required),
            field("allowzero", AttrKind::Bool, AttrDefault::Bool(false))
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        Reshape::infer(self, attrs, args)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        reshaped(self, attrs, args)
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        reshape_axes(&args[0], Reshape::infer(self, attrs, args))
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        view_work(args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        lower_reshape(self, attrs, args, b)
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |from: &[i64], to: &[i64]| sample([("newshape", to.into())], vec![t(from, DType::F32)]);
        vec![
            call(&[2, 3, 4], &[4, 0, 2]),
            call(&[2, 3, 4], &[-1]),
            call(&[2, 3, 4], &[6, 1, -1]),
            call(&[2, 3, 4], &[3, -1, 8]),
            call(&[2, 3, 4], &[-2, 1, 1]),
            call(&[2, 3, 4, 5], &[-3, -3]),
            call(&[2, 3, 4], &[0, -3]),
            call(&[2, 3, 4], &[2, -4, -1, 3, -2]),
            call(&[2, 1, 4], &[1, 2, 2, 2, 1]),
            call(&[6, 4], &[4, 6]),
            call(&[1], &[]),
            call(&[], &[1, 1]),
        ]
    }
}

impl Op for ReverseReshape {
    op_head!(
        "contrib_reverse_reshape",
        "As reshape, but both shapes are read from the right.",
        ["data"],
        [
            field("newshape", AttrKind::Ints, AttrDefault::Required),
            field("allowzero", AttrKind::Bool, AttrDefault::Bool(false))
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        self.0.infer(attrs, args)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        reshaped(self, attrs, args)
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        reshape_axes(&args[0], self.0.infer(attrs, args))
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        view_work(args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        lower_reshape(self, attrs, args, b)
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |from: &[i64], to: &[i64]| sample([("newshape", to.into())], vec![t(from, DType::I32)]);
        vec![call(&[2, 3, 4], &[-1, 0]), call(&[8, 3], &[-1, 0, 0]), call(&[2, 3, 5], &[-3, 0])]
    }
}

/// `reshape_like`.
#[derive(Debug)]
struct ReshapeLike;

impl Op for ReshapeLike {
    op_head!(
        "reshape_like",
        "The elements of data under a shape whose axes lhs_begin..lhs_end are replaced by axes rhs_begin..rhs_end of
        shape_like. C1: the ranges lie within the shapes. C2: the number of elements stays.",
        ["data", "shape_like"],
        [
            field("lhs_begin", AttrKind::Int, AttrDefault::Int(0)),
            field("lhs_end", AttrKind::Int, AttrDefault::None),
            field("rhs_begin", AttrKind::Int, AttrDefault::Int(0)),
            field("rhs_end", AttrKind::Int, AttrDefault::None)
        ],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, like) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "shape_like")?);
        let place = |name: &str, missing: i64, rank: usize| -> Result<usize, OpError> {
            let given = attrs.opt_int(name).unwrap_or(missing);
            let at = if given < 0 { given + rank as i64 } else { given };
            op_ensure!(0 <= at && at <= rank as i64, "C1: `{name}` is {given}, but there are {rank} axes");
            Ok(at as usize)
        };
        let (l0, l1) = (place("lhs_begin", 0, x.rank())?, place("lhs_end", x.rank() as i64, x.rank())?);
        let (r0, r1) = (place("rhs_begin", 0, like.rank())?, place("rhs_end", like.rank() as i64, like.rank())?);
        op_ensure!(l0 <= l1 && r0 <= r1, "C1: a range of axes ends before it begins");
        let to = [&x.shape[..l0], &like.shape[r0..r1], &x.shape[l1..]].concat();
        if let (Some(n), Some(m)) = (product(x.shape.iter().copied()), product(to.iter().copied())) {
            op_ensure!(n == m, "C2: `data` is {x}, which has {n} elements, but shape {} takes {m}", show(&to));
        }
        Ok(TensorType::of(to, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        reshaped(self, attrs, args)
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let mut map = reshape_axes(&args[0], self.infer(attrs, args));
        map.0.push(vec![AxisRole::Opaque; args[1].as_tensor().map_or(0, TensorType::rank)]);
        map
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        view_work(args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        lower_reshape(self, attrs, args, b)
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[2, 6], DType::F32), t(&[3, 4], DType::I32)]),
            sample(
                [("lhs_begin", 1.into()), ("rhs_end", 3.into())],
                vec![t(&[1, 2, 3, 4], DType::F32), t(&[6, 2, 2, 3], DType::F32)],
            ),
            sample(
                [("lhs_begin", (-2).into()), ("rhs_begin", 1.into()), ("rhs_end", (-1).into())],
                vec![t(&[2, 3, 4], DType::U8), t(&[5, 12, 7], DType::F32)],
            ),
        ]
    }
}

/// `squeeze`.
#[derive(Debug)]
struct Squeeze;

/// The axes that a call of it leaves out.
fn squeezed(attrs: &Attrs, x: &TensorType) -> Result<Vec<usize>, OpError> {
    match attrs.get("axis") {
        Some(crate::ir::AttrValue::None) | None => {
            op_ensure!(x.known_shape().is_some(), "C2: `data` is {x}, so `axis` should say which axes go");
            Ok((0..x.rank()).filter(|&k| x.shape[k] == Dim::Known(1)).collect())
        }
        Some(_) => ints_attr(attrs, "axis")?.into_iter().map(|axis| axis_of(axis, x.rank())).collect(),
    }
}

impl Op for Squeeze {
    op_head!(
        "squeeze",
        "data without the given axes, or, where none are given, without any axis of extent 1. C1: these axes have extent 1.
        C2: where none are given, all extents are known.",
        ["data"],
        [field("axis", AttrKind::Ints, AttrDefault::None)],
        Injective
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let gone = squeezed(attrs, x)?;
        let wide = gone.iter().find(|&&k| !may_equal(x.shape[k], Dim::Known(1)));
        op_ensure!(wide.is_none(), "C1: `data` is {x}, whose axis {} does not have extent 1", wide.unwrap_or(&0));
        let kept = (0..x.rank()).filter(|k| !gone.contains(k)).map(|k| x.shape[k]);
        Ok(TensorType::of(kept, x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        reshaped(self, attrs, args)
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        reshape_axes(&args[0], self.infer(attrs, args))
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        view_work(args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let to = lowered_shapes(self, attrs, args, b)?.remove(0);
        let x = args[0].tensor();
        let from = b.shape(x).to_vec();
        let gone = squeezed(attrs, &TensorType::new(&from, b.dtype(x)))?;
        // Which axes go is said: others that are 1 by chance stay.
        let out = b.map(&to, |b, i| {
            let mut left = i.iter().cloned();
            let index = (0..from.len()).map(|k| match gone.contains(&k) {
                true => Scalar::index(0),
                false => left.next().unwrap_or(Scalar::index(0)),
            });
            b.read(x, index)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[1, 3, 1, 4], DType::F32)]),
            sample([("axis", [0].into())], vec![t(&[1, 3, 1], DType::I8)]),
            sample([("axis", [-1, 0].into())], vec![t(&[1, 3, 1], DType::Bool)]),
        ]
    }
}

/// `expand_dims`.
#[derive(Debug)]
struct ExpandDims;

impl Op for ExpandDims {
    op_head!(
        "expand_dims",
        "data with num_newaxis axes of extent 1 before axis (counted in the result from its end where negative).
        C1: axis is a place in the result. C2: num_newaxis is not negative.",
        ["data"],
        [field("axis", AttrKind::Int, AttrDefault::Required), field("num_newaxis", AttrKind::Int, AttrDefault::Int(1))],
        Broadcast
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let count = attrs.int("num_newaxis");
        op_ensure!((0..=1024).contains(&count), "C2: `num_newaxis` is {count}, but should be 0 or more (1024 at most)");
        let at = axis_of(attrs.int("axis"), x.rank() + 1)?;
        let new = vec![Dim::Known(1); count as usize];
        Ok(TensorType::of([&x.shape[..at], &new, &x.shape[at..]].concat(), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        reshaped(self, attrs, args)
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok(at) = axis_of(attrs.int("axis"), rank + 1) else { return AxisMap::opaque([rank]) };
        let new = attrs.int("num_newaxis") as usize;
        AxisMap(vec![(0..rank).map(|k| AxisRole::Maps(if k < at { k } else { k + new })).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        view_work(args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let to = lowered_shapes(self, attrs, args, b)?.remove(0);
        let x = args[0].tensor();
        let rank = b.shape(x).len();
        let at = axis_of(attrs.int("axis"), rank + 1)?;
        let new = attrs.int("num_newaxis") as usize;
        Ok(b.map(&to, |b, i| b.read(x, i[..at].iter().chain(&i[at + new..]).cloned())).into())
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([("axis", 0.into())], vec![t(&[2, 3], DType::F32)]),
            sample([("axis", (-1).into()), ("num_newaxis", 2.into())], vec![t(&[2, 3], DType::I64)]),
            sample([("axis", 1.into())], vec![t(&[2, 3], DType::F32)]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_stay() {
        assert_eq!(groups(&[2, 3, 4], &[6, 4]), [(vec![0, 1], vec![0]), (vec![2], vec![1])]);
        assert_eq!(groups(&[2, 1, 4], &[1, 2, 4]), [(vec![0], vec![1]), (vec![2], vec![2])]);
        assert_eq!(groups(&[1], &[]), []);
    }
}
