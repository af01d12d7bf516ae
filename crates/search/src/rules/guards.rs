//! The closed table of guards: conditions of rules. A guard that does not know answers `None`, which counts as no, also
//! under `not`.

mod layouts;

use std::sync::{OnceLock, RwLock};

pub use super::signature::{Guard, Param};
use super::{
    functions::fills_nothing,
    signature::{ClassView, Input},
};
use crate::{
    ir::{AttrValue, Attrs, Dim},
    ops::RegisterError,
    tensor::{DType, Layout},
};

const SHIPPED: &[Guard] = &[
    Guard {
        name: "const",
        params: &[Param::Class],
        doc: "The value can be computed before the program runs.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.constant()),
    },
    Guard {
        name: "known",
        params: &[Param::Class],
        doc: "The value is a constant of the program, or a small computation of such.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.value().is_some()),
    },
    Guard {
        name: "splat",
        params: &[Param::Class, Param::Number],
        doc: "The value is a known constant whose elements are all this number. 0 is both 0.0 and -0.0: `zero` is sharper.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.splat()? == a[1].float()?),
    },
    Guard {
        name: "not-all",
        params: &[Param::Class, Param::Number],
        doc: "The value is not known to be this number everywhere; holds where nothing is known. For rules that would never end \
              on neutral elements: x is x + 0, hence (x + 0) + 0, and so on.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.splat() != Some(a[1].float()?)),
    },
    Guard {
        name: "negative-zero",
        params: &[Param::Class],
        doc: "The value is a known constant whose elements are all -0.0.",
        of_extents: false,
        eval: |a| a[0].class()?.splat().map(|x| x == 0.0 && x.is_sign_negative()),
    },
    Guard {
        name: "positive",
        params: &[Param::Class],
        doc: "The value is a known constant whose elements are all above 0 and finite.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.value()?.to_f64_vec().iter().all(|&x| x > 0.0 && x.is_finite())),
    },
    Guard {
        name: "nonnegative",
        params: &[Param::Class],
        doc: "The value is a known constant whose elements are all 0 or above, and finite.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.value()?.to_f64_vec().iter().all(|&x| x >= 0.0 && x.is_finite())),
    },
    Guard {
        name: "between",
        params: &[Param::Class, Param::Number, Param::Number],
        doc: "The value can be computed before the program runs, and all its elements are known to lie between these numbers, which \
              they may equal: they are finite. Known of constants and of what sums, products, roots and moves make of them.",
        of_extents: false,
        eval: |a| {
            let (range, least, greatest) = (a[0].class()?.range()?, a[1].float()?, a[2].float()?);
            Some(range.least >= least && range.greatest <= greatest)
        },
    },
    Guard {
        name: "bounded",
        params: &[Param::Class],
        doc: "(bounded c) is (between c -2^32 2^32), of float16 (between c -32 32): a factor or term that makes nothing infinite or NaN \
              that is not next to it.",
        of_extents: false,
        eval: |a| {
            let class = a[0].class()?;
            Some(class.range()?.magnitude() <= factor(&class)?)
        },
    },
    Guard {
        name: "moderate",
        params: &[Param::Class],
        doc: "The value is bounded, as `bounded` says, and so are its reciprocals: all its elements are of one sign, and none is nearly 0.",
        of_extents: false,
        eval: |a| {
            let class = a[0].class()?;
            let (range, most) = (class.range()?, factor(&class)?);
            Some(range.magnitude() <= most && (range.least >= 1.0 / most || range.greatest <= -1.0 / most))
        },
    },
    Guard {
        name: "close",
        params: &[Param::Class, Param::Class],
        doc: "The values are known constants that differ by at most 1e-8 + 1e-5 of the second, element by element; a single number \
              stands for as many as the other value has.",
        of_extents: false,
        eval: |a| {
            let (x, y) = (a[0].class()?.value()?.to_f64_vec(), a[1].class()?.value()?.to_f64_vec());
            let near = |x: f64, y: f64| (x - y).abs() <= 1e-8 + 1e-5 * y.abs();
            Some(match (&x[..], &y[..]) {
                ([x], ys) => ys.iter().all(|&y| near(*x, y)),
                (xs, [y]) => xs.iter().all(|&x| near(x, *y)),
                (xs, ys) => xs.len() == ys.len() && xs.iter().zip(ys).all(|(&x, &y)| near(x, y)),
            })
        },
    },
    Guard {
        name: "zero-point",
        params: &[Param::Class, Param::Any],
        doc: "The value is known and within the range of this integer type: a zero point that the type can say.",
        of_extents: false,
        eval: |a| {
            let AttrValue::DType(dtype) = a[1].attr()? else { return None };
            let (min, max) = dtype.int_range()?;
            Some(a[0].class()?.value()?.to_i64_vec().iter().all(|&z| (min..=max).contains(&i128::from(z))))
        },
    },
    Guard {
        name: "quantizable",
        params: &[Param::Class, Param::Class, Param::Class, Param::Any],
        doc: "(quantizable x scale zero dtype): x / scale + zero lies in the integer type's range for each number of x, all known, scale \
              and zero point single.",
        of_extents: false,
        eval: |a| {
            let (x, scale, zero) = (a[0].class()?.value()?, a[1].class()?.splat()?, a[2].class()?.splat()?);
            let AttrValue::DType(dtype) = a[3].attr()? else { return None };
            let (min, max) = dtype.int_range()?;
            let fits = |x: f64| {
                let q = (x / scale).round() + zero;
                q >= min as f64 && q <= max as f64
            };
            Some(x.to_f64_vec().into_iter().all(fits))
        },
    },
    Guard {
        name: "zeros",
        params: &[Param::Class],
        doc: "The value is a known constant whose elements are all 0 (or -0.0).",
        of_extents: false,
        eval: |a| Some(a[0].class()?.value()?.to_f64_vec().iter().all(|&x| x == 0.0)),
    },
    Guard {
        name: "power-of-two",
        params: &[Param::Class],
        doc: "The value is a known constant whose elements are powers of two with a power-of-two reciprocal: \
              multiplying by it and dividing by the reciprocal are the same bits.",
        of_extents: false,
        eval: |a| {
            let exact = |x: f64| x.is_normal() && x.to_bits() << 12 == 0 && (1e-30..1e30).contains(&x.abs());
            Some(a[0].class()?.value()?.to_f64_vec().into_iter().all(exact))
        },
    },
    Guard {
        name: "scalar",
        params: &[Param::Class],
        doc: "The tensor has one element.",
        of_extents: false,
        eval: |a| a[0].class()?.tensor()?.elements().map(|n| n == 1),
    },
    Guard {
        name: "float",
        params: &[Param::Class],
        doc: "The elements are floats.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.tensor()?.dtype.is_float()),
    },
    Guard {
        name: "int",
        params: &[Param::Class],
        doc: "The elements are integers (`bool` is none).",
        of_extents: false,
        eval: |a| Some(a[0].class()?.tensor()?.dtype.is_int()),
    },
    Guard {
        name: "has-rank",
        params: &[Param::Class, Param::Int],
        doc: "The tensor has so many axes.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.tensor()?.rank() as i64 == a[1].int()?),
    },
    Guard {
        name: "has-dtype",
        params: &[Param::Class, Param::Any],
        doc: "The tensor's elements are of this type.",
        of_extents: false,
        eval: |a| Some(AttrValue::DType(a[0].class()?.tensor()?.dtype) == *a[1].attr()?),
    },
    Guard {
        name: "same-type",
        params: &[Param::Class, Param::Class],
        doc: "Both are of one type, all extents known.",
        of_extents: true,
        eval: |a| {
            let (x, y) = (a[0].class()?, a[1].class()?);
            Some(x.shape()? == y.shape()? && x.ty()? == y.ty()?)
        },
    },
    Guard {
        name: "same-dtype",
        params: &[Param::Class, Param::Class],
        doc: "Both have elements of one type.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.tensor()?.dtype == a[1].class()?.tensor()?.dtype),
    },
    Guard {
        name: "same-shape",
        params: &[Param::Class, Param::Class],
        doc: "Both have the same known extents.",
        of_extents: true,
        eval: |a| Some(a[0].class()?.shape()? == a[1].class()?.shape()?),
    },
    Guard {
        name: "static",
        params: &[Param::Class],
        doc: "All extents are known.",
        of_extents: false,
        eval: |a| a[0].class()?.shape().map(|_| true),
    },
    Guard {
        name: "divides",
        params: &[Param::Int, Param::Int],
        doc: "The first integer, positive, divides the second.",
        of_extents: true,
        eval: |a| a[0].int().filter(|&n| n > 0).and_then(|n| Some(a[1].int()? % n == 0)),
    },
    Guard {
        name: "older",
        params: &[Param::Class, Param::Class],
        doc: "The first class is the older one: an order, so that a rule of two like roots fires once for each pair.",
        of_extents: false,
        eval: |a| Some(a[0].class()?.id()? < a[1].class()?.id()?),
    },
    Guard {
        name: "has-op",
        params: &[Param::Class, Param::Str],
        doc: "Some term of the class is a call of this operator.",
        of_extents: false,
        eval: |a| a[0].class()?.has_op(crate::ops::lookup(a[1].str()?)?),
    },
    Guard {
        name: "single-transform",
        params: &[Param::Class, Param::Str, Param::Str],
        doc: "Of several terms of the class, one alone is a transform of a value from the first layout to the second.",
        of_extents: false,
        eval: |a| {
            let (from, to) = (AttrValue::from(a[1].str()?), AttrValue::from(a[2].str()?));
            let between =
                |attrs: &Attrs| attrs.get("src_layout") == Some(&from) && attrs.get("dst_layout") == Some(&to);
            let class = a[0].class()?;
            Some(class.terms()? > 1 && class.calls_of(crate::ops::op("layout_transform"), between)? == 1)
        },
    },
    Guard {
        name: "cast-from",
        params: &[Param::Class, Param::Any],
        doc: "Some term of the class is a cast of elements of this type.",
        of_extents: false,
        eval: |a| {
            let AttrValue::DType(dtype) = a[1].attr()? else { return None };
            a[0].class()?.cast_from(*dtype)
        },
    },
    Guard {
        name: "leaf",
        params: &[Param::Class],
        doc: "The value is a parameter of the region, or can be computed before the program runs.",
        of_extents: false,
        eval: |a| {
            let class = a[0].class()?;
            Some(class.constant() || class.is_input()?)
        },
    },
    Guard {
        name: "feeds",
        params: &[Param::Class, Param::Str],
        doc: "Some term applies this operator to the value.",
        of_extents: false,
        eval: |a| a[0].class()?.feeds(crate::ops::lookup(a[1].str()?)?),
    },
    Guard {
        name: "used-once",
        params: &[Param::Class],
        doc: "One value of the program as written uses this one. Of what rules alone made: one class of the e-graph does.",
        of_extents: false,
        eval: |a| {
            let x = a[0].class()?;
            Some(x.uses().or(x.users())? <= 1)
        },
    },
    Guard {
        name: "=",
        params: &[Param::Any, Param::Any],
        doc: "Both attribute values are equal; numbers of different kinds by value.",
        of_extents: true,
        eval: |a| equal(&a[0], &a[1]),
    },
    Guard {
        name: "!=",
        params: &[Param::Any, Param::Any],
        doc: "The attribute values differ.",
        of_extents: false,
        eval: |a| equal(&a[0], &a[1]).map(|b| !b),
    },
    Guard {
        name: "<",
        params: &[Param::Number, Param::Number],
        doc: "The first number is less.",
        of_extents: false,
        eval: |a| Some(a[0].float()? < a[1].float()?),
    },
    Guard {
        name: "<=",
        params: &[Param::Number, Param::Number],
        doc: "The first number is not greater.",
        of_extents: false,
        eval: |a| Some(a[0].float()? <= a[1].float()?),
    },
    Guard {
        name: ">",
        params: &[Param::Number, Param::Number],
        doc: "The first number is greater.",
        of_extents: false,
        eval: |a| Some(a[0].float()? > a[1].float()?),
    },
    Guard {
        name: ">=",
        params: &[Param::Number, Param::Number],
        doc: "The first number is not less.",
        of_extents: false,
        eval: |a| Some(a[0].float()? >= a[1].float()?),
    },
    Guard {
        name: "unset",
        params: &[Param::Any],
        doc: "The attribute is not set.",
        of_extents: false,
        eval: |a| Some(*a[0].attr()? == AttrValue::None),
    },
    Guard {
        name: "true",
        params: &[Param::Any],
        doc: "The attribute is true.",
        of_extents: false,
        eval: |a| a[0].int().map(|b| b != 0),
    },
    Guard {
        name: "all-equal",
        params: &[Param::List, Param::Any],
        doc: "All elements of a list are this value.",
        of_extents: true,
        eval: |a| Some(a[0].list()?.iter().all(|v| Some(v) == a[1].attr())),
    },
    Guard {
        name: "contains",
        params: &[Param::List, Param::Any],
        doc: "Some element of a list is this value.",
        of_extents: false,
        eval: |a| Some(a[0].list()?.iter().any(|v| Some(v) == a[1].attr())),
    },
    Guard {
        name: "none-zero",
        params: &[Param::List],
        doc: "No element of a list of extents is 0, which a `newshape` takes for another extent. Unknown extents are none: these are \
              written by what they are made of.",
        of_extents: true,
        eval: |a| Some(a[0].ints()?.iter().all(|&n| n != 0)),
    },
    Guard {
        name: "broadcasts-to",
        params: &[Param::Class, Param::Class],
        doc: "The first tensor, whose extents are known, broadcasts to the second's shape, whatever unknown extents that has: \
              broadcasting the two gives the second's type.",
        of_extents: true,
        eval: |a| {
            let (x, y) = (a[0].class()?.shape()?, &a[1].class()?.tensor()?.shape);
            let fits = |(m, n): (&i64, &Dim)| *m == 1 || n.known() == Some(*m);
            Some(x.len() <= y.len() && x.iter().rev().zip(y.iter().rev()).all(fits))
        },
    },
    Guard {
        name: "same-trailing",
        params: &[Param::Class, Param::Class, Param::Int],
        doc: "From this axis on both tensors have the same known extents, and as many axes.",
        of_extents: true,
        eval: |a| {
            let (x, y) = (a[0].class()?.shape()?, a[1].class()?.shape()?);
            let k = usize::try_from(a[2].int()?).ok()?;
            Some(x.len() == y.len() && x.get(k..)? == y.get(k..)?)
        },
    },
    Guard {
        name: "lies-along",
        params: &[Param::Class, Param::Int, Param::Int],
        doc: "(lies-along s k rank): beside a tensor of so many axes, s broadcasts along all but axis k: its other extents are \
              1. Missing leading axes count as 1.",
        of_extents: true,
        eval: |a| {
            let (s, k, rank) = (a[0].class()?.shape()?, a[1].int()?, a[2].int()?);
            let k = if k < 0 { k + rank } else { k };
            let skip = rank - s.len() as i64;
            Some(skip >= 0 && s.iter().enumerate().all(|(i, &n)| n == 1 || i as i64 + skip == k))
        },
    },
    Guard {
        name: "moves-only-ones",
        params: &[Param::List, Param::List],
        doc: "A transpose by this permutation of a tensor of this shape moves axes of extent 1 alone past others.",
        of_extents: true,
        eval: |a| {
            let (p, shape) = (a[0].ints()?, a[1].ints()?);
            let wide: Vec<i64> =
                p.into_iter().filter(|&k| usize::try_from(k).ok().and_then(|k| shape.get(k)) != Some(&1)).collect();
            Some(wide.is_sorted())
        },
    },
    Guard {
        name: "layouts-keep-order",
        params: &[Param::Str, Param::Str, Param::Class, Param::Class],
        doc: "A transform between these layouts from the first tensor to the second keeps the elements' order: axes of \
              extent 1 aside, both layouts name the same axes in the same order, blocks right behind what they split. Nothing is \
              filled up.",
        of_extents: false,
        eval: |a| {
            let order = |layout: &Layout, shape: &[Dim]| -> Option<Vec<char>> {
                let axes = layout.axes().iter().zip(shape).filter(|(_, n)| n.known() != Some(1));
                let mut order: Vec<char> = axes.map(|(axis, _)| axis.primal).collect();
                order.dedup();
                // A letter that comes again was split by another axis in between: its order depends on the blocks.
                let split = (1..order.len()).any(|i| order[..i].contains(&order[i]));
                (layout.rank() == shape.len() && !split).then_some(order)
            };
            let (from, to) = (a[0].str()?.parse::<Layout>().ok()?, a[1].str()?.parse::<Layout>().ok()?);
            let (x, y) = (&a[2].class()?.tensor()?.shape, &a[3].class()?.tensor()?.shape);
            let extents: Vec<Option<i64>> = x.iter().copied().map(Dim::known).collect();
            Some(fills_nothing(&from, &to, &extents)? && order(&from, x)? == order(&to, y)?)
        },
    },
    Guard {
        name: "plain-layout",
        params: &[Param::Str],
        doc: "The layout has no blocks.",
        of_extents: false,
        eval: |a| a[0].str()?.parse::<Layout>().ok().map(|l| l.is_plain()),
    },
    Guard {
        name: "all-of-dtype",
        params: &[Param::Classes, Param::Any],
        doc: "All tensors of a sequence have elements of this type.",
        of_extents: false,
        eval: |a| {
            let AttrValue::DType(dtype) = a[1].attr()? else { return None };
            Some(a[0].classes()?.iter().all(|c| c.tensor().is_some_and(|t| t.dtype == *dtype)))
        },
    },
    Guard {
        name: "all-const",
        params: &[Param::Classes],
        doc: "All values of a sequence can be computed before the program runs.",
        of_extents: false,
        eval: |a| Some(a[0].classes()?.iter().all(ClassView::constant)),
    },
];

fn equal(a: &Input<'_>, b: &Input<'_>) -> Option<bool> {
    Some(match (a.attr()?, b.attr()?) {
        (x, y) if x == y => true,
        (x, y) => matches!((x.as_float(), y.as_float()), (Some(x), Some(y)) if x == y),
    })
}

/// How large a factor may be that is of no concern to overflow: see [`RIM`](crate::saturate::RIM).
fn factor(class: &ClassView<'_>) -> Option<f64> {
    Some(if class.tensor()?.dtype == DType::F16 { 32.0 } else { (1u64 << 32) as f64 })
}

fn table() -> &'static RwLock<Vec<&'static Guard>> {
    static TABLE: OnceLock<RwLock<Vec<&'static Guard>>> = OnceLock::new();
    TABLE.get_or_init(|| RwLock::new(SHIPPED.iter().chain(layouts::GUARDS).collect()))
}

/// All guards, in table order.
pub fn all() -> Vec<&'static Guard> {
    table().read().expect("no registration panics").clone()
}

/// The guard of that name.
pub fn lookup(name: &str) -> Option<&'static Guard> {
    all().into_iter().find(|g| g.name == name)
}

/// Adds a guard, for the life of the process.
pub fn register(guard: Guard) -> Result<(), RegisterError> {
    let mut table = table().write().expect("no registration panics");
    match table.iter().any(|g| g.name == guard.name) {
        true => Err(RegisterError(guard.name)),
        false => {
            table.push(Box::leak(Box::new(guard)));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Type;

    fn holds(name: &str, inputs: &[Input<'_>]) -> Option<bool> {
        (lookup(name).expect("a shipped guard").eval)(inputs)
    }

    #[test]
    fn names_are_unique() {
        let all = all();
        for (i, g) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|h| h.name != g.name), "{} is defined twice", g.name);
        }
    }

    #[test]
    fn what_is_not_known_is_no() {
        let ty = Type::tensor(&[2, 3], DType::F32);
        let x = || Input::Class(ClassView::of_type(&ty));
        assert_eq!(holds("splat", &[x(), Input::Attr(0i64.into())]), None);
        assert_eq!(holds("const", &[x()]), Some(false));
        assert_eq!(holds("has-op", &[x(), Input::Attr("add".into())]), None);
        assert_eq!(holds("same-shape", &[x(), x()]), Some(true));
    }

    #[test]
    fn numbers_compare_by_value() {
        let n = |v: AttrValue| Input::Attr(v);
        assert_eq!(holds("=", &[n(1i64.into()), n(1.0.into())]), Some(true));
        assert_eq!(holds("<", &[n(1i64.into()), n(1.5.into())]), Some(true));
        assert_eq!(holds("divides", &[n(0i64.into()), n(4i64.into())]), None);
    }
}
