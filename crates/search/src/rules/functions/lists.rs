//! Arithmetic of numbers, lists and permutations.

use super::{Function, Input, Param};
use crate::ir::AttrValue;

/// A list longer than this is not made: the rule does not fire.
const LONGEST: i64 = 4096;

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "+",
        params: &[Param::Rest],
        gives: Param::Number,
        doc: "The sum of numbers.",
        of_extents: true,
        eval: |a| fold(a, i64::checked_add, |x, y| x + y),
    },
    Function {
        name: "-",
        params: &[Param::Rest],
        gives: Param::Number,
        doc: "The first number less the others; of one number, its negative.",
        of_extents: true,
        eval: |a| match a {
            [x] => match x.int() {
                Some(i) => i.checked_neg().map(AttrValue::Int),
                None => x.float().map(|x| (-x).into()),
            },
            _ => fold(a, i64::checked_sub, |x, y| x - y),
        },
    },
    Function {
        name: "*",
        params: &[Param::Rest],
        gives: Param::Number,
        doc: "The product of numbers.",
        of_extents: true,
        eval: |a| fold(a, i64::checked_mul, |x, y| x * y),
    },
    Function {
        name: "/",
        params: &[Param::Number, Param::Number],
        gives: Param::Number,
        doc: "The quotient; of integers, only where it is one.",
        of_extents: true,
        eval: |a| match (a[0].int(), a[1].int()) {
            (Some(x), Some(y)) => (x.checked_rem(y)? == 0).then(|| (x / y).into()),
            _ => Some((a[0].float()? / a[1].float()?).into()),
        },
    },
    Function {
        name: "floordiv",
        params: &[Param::Int, Param::Int],
        gives: Param::Int,
        doc: "The quotient of integers, rounded down; the divisor is positive.",
        of_extents: false,
        eval: |a| a[1].int().filter(|&y| y > 0).and_then(|y| Some(a[0].int()?.div_euclid(y).into())),
    },
    Function {
        name: "mod",
        params: &[Param::Int, Param::Int],
        gives: Param::Int,
        doc: "The remainder of integers, not negative; the divisor is positive.",
        of_extents: false,
        eval: |a| a[1].int().filter(|&y| y > 0).and_then(|y| Some(a[0].int()?.rem_euclid(y).into())),
    },
    Function {
        name: "min",
        params: &[Param::Rest],
        gives: Param::Number,
        doc: "The least number.",
        of_extents: false,
        eval: |a| fold(a, |x, y| Some(x.min(y)), f64::min),
    },
    Function {
        name: "max",
        params: &[Param::Rest],
        gives: Param::Number,
        doc: "The greatest number.",
        of_extents: false,
        eval: |a| fold(a, |x, y| Some(x.max(y)), f64::max),
    },
    Function {
        name: "pow",
        params: &[Param::Number, Param::Number],
        gives: Param::Number,
        doc: "The first number to the power of the second, as a float.",
        of_extents: false,
        eval: |a| Some(a[0].float()?.powf(a[1].float()?).into()),
    },
    Function {
        name: "len",
        params: &[Param::List],
        gives: Param::Int,
        doc: "The number of elements of a list.",
        of_extents: true,
        eval: |a| Some((a[0].list()?.len() as i64).into()),
    },
    Function {
        name: "at",
        params: &[Param::List, Param::Int],
        gives: Param::Any,
        doc: "The element at a position; negative ones count from the end.",
        of_extents: true,
        eval: |a| {
            let l = a[0].list()?;
            l.get(position(a[1].int()?, l.len())?).cloned()
        },
    },
    Function {
        name: "at-each",
        params: &[Param::List, Param::List],
        gives: Param::List,
        doc: "The elements of the first list at the positions that the second holds; negative ones count from the end.",
        of_extents: true,
        eval: |a| {
            let l = a[0].list()?;
            let at = |i: i64| l.get(position(i, l.len())?).cloned();
            Some(AttrValue::List(a[1].ints()?.into_iter().map(at).collect::<Option<_>>()?))
        },
    },
    Function {
        name: "take",
        params: &[Param::List, Param::Int],
        gives: Param::List,
        doc: "The first so many elements of a list that has as many.",
        of_extents: true,
        eval: |a| Some(list(a[0].list()?.get(..usize::try_from(a[1].int()?).ok()?)?)),
    },
    Function {
        name: "drop",
        params: &[Param::List, Param::Int],
        gives: Param::List,
        doc: "A list without its first so many elements.",
        of_extents: true,
        eval: |a| Some(list(a[0].list()?.get(usize::try_from(a[1].int()?).ok()?..)?)),
    },
    Function {
        name: "append",
        params: &[Param::List, Param::List],
        gives: Param::List,
        doc: "The elements of both lists.",
        of_extents: true,
        eval: |a| Some(list(&[a[0].list()?, a[1].list()?].concat())),
    },
    Function {
        name: "insert",
        params: &[Param::List, Param::Int, Param::Any],
        gives: Param::List,
        doc: "A list with one more element, at this position.",
        of_extents: true,
        eval: |a| {
            let mut l = a[0].list()?.to_vec();
            let at = usize::try_from(a[1].int()?).ok().filter(|&i| i <= l.len())?;
            l.insert(at, a[2].attr()?.clone());
            Some(list(&l))
        },
    },
    Function {
        name: "remove",
        params: &[Param::List, Param::Int],
        gives: Param::List,
        doc: "A list without the element at this position.",
        of_extents: true,
        eval: |a| {
            let mut l = a[0].list()?.to_vec();
            l.remove(position(a[1].int()?, l.len())?);
            Some(list(&l))
        },
    },
    Function {
        name: "replace",
        params: &[Param::List, Param::Int, Param::Any],
        gives: Param::List,
        doc: "A list with another element at this position.",
        of_extents: true,
        eval: |a| {
            let mut l = a[0].list()?.to_vec();
            let at = position(a[1].int()?, l.len())?;
            l[at] = a[2].attr()?.clone();
            Some(list(&l))
        },
    },
    Function {
        name: "repeat",
        params: &[Param::Any, Param::Int],
        gives: Param::List,
        doc: "A list of so many times the same.",
        of_extents: true,
        eval: |a| {
            let n = a[1].int().filter(|n| (0..=LONGEST).contains(n))?;
            Some(list(&vec![a[0].attr()?.clone(); n as usize]))
        },
    },
    Function {
        name: "range",
        params: &[Param::Int, Param::Int],
        gives: Param::List,
        doc: "The integers from the first on, up to but without the second.",
        of_extents: false,
        eval: |a| {
            let (from, to) = (a[0].int()?, a[1].int()?);
            (to.checked_sub(from)? <= LONGEST).then(|| (from..to).collect::<Vec<i64>>().into())
        },
    },
    Function {
        name: "reverse",
        params: &[Param::List],
        gives: Param::List,
        doc: "A list from its end to its start.",
        of_extents: true,
        eval: |a| Some(AttrValue::List(a[0].list()?.iter().rev().cloned().collect())),
    },
    Function {
        name: "index-of",
        params: &[Param::List, Param::Any],
        gives: Param::Int,
        doc: "The position of the first element that is equal.",
        of_extents: false,
        eval: |a| Some((a[0].list()?.iter().position(|v| Some(v) == a[1].attr())? as i64).into()),
    },
    Function {
        name: "product",
        params: &[Param::List],
        gives: Param::Int,
        doc: "The product of a list's integers; 1 for none.",
        of_extents: true,
        eval: |a| a[0].ints()?.iter().try_fold(1i64, |p, &n| p.checked_mul(n)).map(AttrValue::Int),
    },
    Function {
        name: "least",
        params: &[Param::List],
        gives: Param::Int,
        doc: "The least of a list's integers.",
        of_extents: false,
        eval: |a| a[0].ints()?.into_iter().min().map(AttrValue::Int),
    },
    Function {
        name: "sum",
        params: &[Param::List],
        gives: Param::Int,
        doc: "The sum of a list's integers; 0 for none.",
        of_extents: true,
        eval: |a| a[0].ints()?.iter().try_fold(0i64, |p, &n| p.checked_add(n)).map(AttrValue::Int),
    },
    Function {
        name: "add-each",
        params: &[Param::List, Param::List],
        gives: Param::List,
        doc: "The sums of two lists' integers, place by place.",
        of_extents: true,
        eval: |a| {
            let (x, y) = (a[0].ints()?, a[1].ints()?);
            (x.len() == y.len()).then_some(())?;
            x.iter().zip(&y).map(|(x, y)| x.checked_add(*y)).collect::<Option<Vec<i64>>>().map(Into::into)
        },
    },
    Function {
        name: "compose",
        params: &[Param::List, Param::List],
        gives: Param::List,
        doc: "The permutation q after p of a transpose by p of a transpose by q: (compose q p)[k] = q[p[k]].",
        of_extents: true,
        eval: |a| {
            let (q, p) = (a[0].list()?, a[1].ints()?);
            (q.len() == p.len()).then_some(())?;
            p.iter().map(|&k| q.get(usize::try_from(k).ok()?).cloned()).collect::<Option<_>>().map(AttrValue::List)
        },
    },
    Function {
        name: "invert",
        params: &[Param::List],
        gives: Param::List,
        doc: "The inverse of a permutation.",
        of_extents: true,
        eval: |a| {
            let p = a[0].ints()?;
            let mut inverse = vec![-1; p.len()];
            for (k, &axis) in p.iter().enumerate() {
                *inverse.get_mut(usize::try_from(axis).ok()?)? = k as i64;
            }
            (!inverse.contains(&-1)).then(|| inverse.into())
        },
    },
    Function {
        name: "axis",
        params: &[Param::Int, Param::Int],
        gives: Param::Int,
        doc: "An axis counted from the start: (axis k rank) is k, or rank + k for a negative k.",
        of_extents: true,
        eval: |a| Some((position(a[0].int()?, usize::try_from(a[1].int()?).ok()?)? as i64).into()),
    },
];

fn list(items: &[AttrValue]) -> AttrValue {
    AttrValue::List(items.into())
}

fn position(i: i64, len: usize) -> Option<usize> {
    let i = if i < 0 { i + len as i64 } else { i };
    usize::try_from(i).ok().filter(|&i| i < len)
}

/// Folds numbers: as integers where all are, else as floats.
fn fold(a: &[Input<'_>], int: fn(i64, i64) -> Option<i64>, float: fn(f64, f64) -> f64) -> Option<AttrValue> {
    let ints: Option<Vec<i64>> = a.iter().map(Input::int).collect();
    match ints {
        Some(v) => v[1..].iter().try_fold(v[0], |x, &y| int(x, y)).map(AttrValue::Int),
        None => {
            let v = a.iter().map(Input::float).collect::<Option<Vec<f64>>>()?;
            Some(v[1..].iter().fold(v[0], |x, &y| float(x, y)).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::call;
    use crate::ir::AttrValue;

    #[test]
    fn arithmetic() {
        let n = |i: i64| AttrValue::Int(i);
        assert_eq!(call("+", &[n(1), n(2), n(3)]), Some(n(6)));
        assert_eq!(call("-", &[n(5)]), Some(n(-5)));
        assert_eq!(call("/", &[n(7), n(2)]), None, "not a whole number");
        assert_eq!(call("/", &[n(7), n(0)]), None);
        assert_eq!(call("/", &[7.0.into(), n(2)]), Some(3.5.into()));
        assert_eq!(call("*", &[n(i64::MAX), n(2)]), None, "overflow");
    }

    #[test]
    fn permutations() {
        let (p, q) = (AttrValue::ints(&[2, 0, 1]), AttrValue::ints(&[0, 2, 1]));
        assert_eq!(call("compose", &[q, p.clone()]), Some([1, 0, 2].into()));
        assert_eq!(call("invert", &[p]), Some([1, 2, 0].into()));
        assert_eq!(call("invert", &[[0, 0].into()]), None, "not a permutation");
        assert_eq!(call("invert", &[[0, 7].into()]), None);
    }

    #[test]
    fn lists() {
        let l: AttrValue = [4, 5, 6].into();
        assert_eq!(call("at", &[l.clone(), AttrValue::Int(-1)]), Some(AttrValue::Int(6)));
        assert_eq!(call("at", &[l.clone(), AttrValue::Int(3)]), None);
        assert_eq!(call("insert", &[l.clone(), AttrValue::Int(3), AttrValue::Int(7)]), Some([4, 5, 6, 7].into()));
        assert_eq!(call("remove", &[l.clone(), AttrValue::Int(0)]), Some([5, 6].into()));
        assert_eq!(call("take", &[l, AttrValue::Int(4)]), None);
        assert_eq!(call("repeat", &[AttrValue::Int(1), AttrValue::Int(i64::MAX)]), None, "too long");
        assert_eq!(call("axis", &[AttrValue::Int(-2), AttrValue::Int(4)]), Some(AttrValue::Int(2)));
    }
}
