//! Facts of classes: types and values.

use super::{Function, Param};
use crate::{
    ir::AttrValue,
    tensor::{DType, Tensor},
};

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "shape",
        params: &[Param::Class],
        gives: Param::List,
        doc: "The extents of a tensor whose extents are all known.",
        of_extents: true,
        eval: |a| a[0].class()?.shape().map(Into::into),
    },
    Function {
        name: "dim",
        params: &[Param::Class, Param::Int],
        gives: Param::Int,
        doc: "The known extent of a tensor along an axis; negative axes count from the end.",
        of_extents: true,
        eval: |a| {
            let x = a[0].class()?;
            let k = a[1].int()?;
            let k = if k < 0 { k + x.tensor()?.rank() as i64 } else { k };
            x.extent(usize::try_from(k).ok()?).map(AttrValue::Int)
        },
    },
    Function {
        name: "rank",
        params: &[Param::Class],
        gives: Param::Int,
        doc: "The number of axes of a tensor.",
        of_extents: true,
        eval: |a| Some((a[0].class()?.tensor()?.rank() as i64).into()),
    },
    Function {
        name: "dtype",
        params: &[Param::Class],
        gives: Param::Any,
        doc: "The element type of a tensor.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.tensor()?.dtype.into()),
    },
    Function {
        name: "rounding",
        params: &[Param::Any],
        gives: Param::Number,
        doc: "By which share of itself a number may change where it is rounded to this float type: 2^-11 for float16.",
        of_extents: false,
        eval: |a| float(a[0].attr()?).map(|(bits, _)| 2f64.powi(-bits).into()),
    },
    Function {
        name: "float-max",
        params: &[Param::Any],
        gives: Param::Number,
        doc: "The greatest finite number of a float type.",
        of_extents: false,
        eval: |a| float(a[0].attr()?).map(|(_, most)| most.into()),
    },
    Function {
        name: "elements",
        params: &[Param::Class],
        gives: Param::Int,
        doc: "The number of elements of a tensor whose extents are all known.",
        of_extents: true,
        eval: |a| a[0].class()?.elements().map(AttrValue::Int),
    },
    Function {
        name: "number",
        params: &[Param::Class],
        gives: Param::Number,
        doc: "The number that all elements of a known constant are; an integer for an integer tensor.",
        of_extents: false,
        eval: |a| {
            let c = a[0].class()?;
            let x = c.splat()?;
            match c.tensor()?.dtype.is_float() {
                true => Some(x.into()),
                false => c.value().map(|t| t.get_i64(0).into()),
            }
        },
    },
    Function {
        name: "value",
        params: &[Param::Class],
        gives: Param::Tensor,
        doc: "The value of a known constant.",
        of_extents: false,
        eval: |a| a[0].class()?.value().cloned().map(AttrValue::from),
    },
    Function {
        name: "tensor-of",
        params: &[Param::List],
        gives: Param::Tensor,
        doc: "A list of integers as a vector of int64.",
        of_extents: false,
        eval: |a| {
            let list = a[0].ints()?;
            Some(Tensor::from_i64_fn(DType::I64, &[list.len()], |i| list[i]).into())
        },
    },
    Function {
        name: "count",
        params: &[Param::Classes],
        gives: Param::Int,
        doc: "The number of classes in a sequence.",
        of_extents: true,
        eval: |a| Some((a[0].classes()?.len() as i64).into()),
    },
    Function {
        name: "dims",
        params: &[Param::Classes, Param::Int],
        gives: Param::List,
        doc: "The known extents of all tensors of a sequence along an axis.",
        of_extents: true,
        eval: |a| {
            let k = usize::try_from(a[1].int()?).ok()?;
            let dims = a[0].classes()?.iter().map(|c| c.extent(k));
            dims.collect::<Option<Vec<i64>>>().map(Into::into)
        },
    },
    Function {
        name: "uses",
        params: &[Param::Class],
        gives: Param::Int,
        doc: "By how many different values the program as written uses this one, its caller counting as one. Only what the \
              program as written has is counted: a value that rules alone made has no uses, and the function does not apply.",
        of_extents: false,
        eval: |a| Some((a[0].class()?.uses()? as i64).into()),
    },
    Function {
        name: "users",
        params: &[Param::Class],
        gives: Param::Int,
        doc: "How many classes of the e-graph have a term that uses the value: those of the program as written and those of all \
              alternatives found so far.",
        of_extents: false,
        eval: |a| Some((a[0].class()?.users()? as i64).into()),
    },
    Function {
        name: "broadcast-axes",
        params: &[Param::Class, Param::Int],
        gives: Param::List,
        doc: "A tensor's extents with as many 1s in front as make it of this rank.",
        of_extents: true,
        eval: |a| {
            let shape = a[0].class()?.shape()?;
            let pad = usize::try_from(a[1].int()?).ok()?.checked_sub(shape.len())?;
            Some([vec![1; pad.min(64)], shape].concat().into())
        },
    },
    Function {
        name: "along",
        params: &[Param::Int, Param::Int, Param::Int],
        gives: Param::List,
        doc: "The shape of a vector of n elements that lies along axis k of so many axes: (along n k rank).",
        of_extents: true,
        eval: |a| {
            let (n, k, rank) = (a[0].int()?, a[1].int()?, a[2].int().filter(|r| (0..64).contains(r))?);
            let k = if k < 0 { k + rank } else { k };
            let mut shape = vec![1; rank as usize];
            *shape.get_mut(usize::try_from(k).ok()?)? = n;
            Some(shape.into())
        },
    },
];

/// The bits of a float type's significand, the first one included, and its greatest finite number.
fn float(v: &AttrValue) -> Option<(i32, f64)> {
    match v {
        AttrValue::DType(DType::F16) => Some((11, 65504.0)),
        AttrValue::DType(DType::BF16) => Some((8, 255.0 * 2f64.powi(120))),
        AttrValue::DType(DType::F32) => Some((24, f64::from(f32::MAX))),
        AttrValue::DType(DType::F64) => Some((53, f64::MAX)),
        _ => None,
    }
}
