//! Between which numbers a constant's elements lie: by interval arithmetic, so that nothing large is computed to know it.

use egg::Language;

use super::{
    fact::Fact,
    node::{Case, Node},
};
use crate::tensor::{DType, Element, Tensor};

/// All elements are numbers from the first to the second, finite; neither infinite nor NaN.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Range {
    /// The least that an element may be.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

// The ends are no NaN.
impl Eq for Range {}

impl std::hash::Hash for Range {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        (self.least.to_bits(), self.greatest.to_bits()).hash(h);
    }
}

impl Range {
    /// From one finite number to another that is not less.
    pub fn new(least: f64, greatest: f64) -> Option<Range> {
        (least.is_finite() && greatest.is_finite() && least <= greatest).then_some(Range { least, greatest })
    }

    /// That of a tensor's elements; `None` where some is not finite, or there is none.
    pub fn of(t: &Tensor) -> Option<Range> {
        match t.dtype() {
            DType::F32 => {
                // Lanes of their own, which a processor treats at once.
                const LANES: usize = 16;
                let (mut least, mut greatest) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
                let mut nan = [0u32; LANES];
                let mut see = |chunk: &[f32]| {
                    for (i, &x) in chunk.iter().enumerate() {
                        least[i] = if x < least[i] { x } else { least[i] };
                        greatest[i] = if x > greatest[i] { x } else { greatest[i] };
                        nan[i] |= u32::from(x.is_nan());
                    }
                };
                let (whole, rest) = t.as_slice::<f32>().as_chunks::<LANES>();
                whole.iter().for_each(|chunk| see(chunk));
                see(rest);
                let least = least.into_iter().fold(f32::INFINITY, f32::min);
                let greatest = greatest.into_iter().fold(f32::NEG_INFINITY, f32::max);
                (nan == [0; LANES]).then(|| Range::new(least as f64, greatest as f64)).flatten()
            }
            d if d.is_float() => {
                let mut range: Option<Range> = None;
                for i in 0..t.len() {
                    let x = t.get_f64(i);
                    let here = Range::new(x, x)?;
                    range = Some(range.map_or(here, |r| r.join(here)));
                }
                range
            }
            DType::I8 => ends::<i8>(t, f64::from),
            DType::U8 => ends::<u8>(t, f64::from),
            DType::I16 => ends::<i16>(t, f64::from),
            DType::I32 => ends::<i32>(t, f64::from),
            DType::I64 => ends::<i64>(t, |x| x as f64),
            _ => {
                let all = || (0..t.len()).map(|i| t.get_i64(i));
                Range::new(all().min()? as f64, all().max()? as f64)
            }
        }
    }

    /// The largest magnitude.
    pub fn magnitude(self) -> f64 {
        self.least.abs().max(self.greatest.abs())
    }

    /// What holds the elements of both.
    pub(crate) fn join(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), greatest: self.greatest.max(other.greatest) }
    }

    fn ends(self, other: Range, f: impl Fn(f64, f64) -> f64) -> Option<Range> {
        let all = [
            f(self.least, other.least),
            f(self.least, other.greatest),
            f(self.greatest, other.least),
            f(self.greatest, other.greatest),
        ];
        let least = all.into_iter().fold(f64::INFINITY, f64::min);
        let greatest = all.into_iter().fold(f64::NEG_INFINITY, f64::max);
        all.iter().all(|x| x.is_finite()).then(|| Range::new(least, greatest)).flatten()
    }
}

/// Whether an operator moves elements, all of them from its first argument, and makes no new ones.
fn is_move(node: &Node) -> bool {
    let Case::Op(op) = node.case() else { return false };
    matches!(
        op.op().name(),
        "reshape"
            | "transpose"
            | "squeeze"
            | "expand_dims"
            | "broadcast_to"
            | "strided_slice"
            | "reverse"
            | "copy"
            | "repeat"
            | "tile"
            | "nn.batch_flatten"
    )
}

/// The range of integers, by comparisons that a processor does for a vector at once.
fn ends<T: Element + Ord>(t: &Tensor, number: impl Fn(T) -> f64) -> Option<Range> {
    let all = || t.as_slice::<T>().iter().copied();
    Range::new(number(all().reduce(Ord::min)?), number(all().reduce(Ord::max)?))
}

/// The range of an operator's result by those of its arguments; only of constants, of what moves integers, and of float tensors whose type holds
/// the range with room to spare for rounding.
pub(super) fn of_call<'f>(node: &Node, out: &Fact, fact: impl Fn(egg::Id) -> &'f Fact) -> Option<Range> {
    let ty = out.tensor()?;
    let most = match ty.dtype {
        DType::F64 => 1e300,
        DType::F32 | DType::BF16 => 1e37,
        DType::F16 => 6e4,
        // Others may wrap.
        d if d.is_int() && is_move(node) => f64::MAX,
        _ => return None,
    };
    let range = match node.case() {
        Case::Op(op) => {
            let (_, _, args) = node.as_op()?;
            let arg = |i: usize| fact(*args.get(i)?).range;
            let monotonous = |f: fn(f64) -> f64| arg(0).and_then(|r| Range::new(f(r.least), f(r.greatest)));
            match op.op().name() {
                "add" | "nn.bias_add" => arg(0)?.ends(arg(1)?, |x, y| x + y),
                "subtract" => arg(0)?.ends(arg(1)?, |x, y| x - y),
                "multiply" => arg(0)?.ends(arg(1)?, |x, y| x * y),
                "divide" => {
                    let by = arg(1)?;
                    (by.least > 0.0 || by.greatest < 0.0).then(|| arg(0)?.ends(by, |x, y| x / y)).flatten()
                }
                "maximum" => {
                    let (x, y) = (arg(0)?, arg(1)?);
                    Range::new(x.least.max(y.least), x.greatest.max(y.greatest))
                }
                "minimum" => {
                    let (x, y) = (arg(0)?, arg(1)?);
                    Range::new(x.least.min(y.least), x.greatest.min(y.greatest))
                }
                "negative" => arg(0).and_then(|r| Range::new(-r.greatest, -r.least)),
                "abs" => {
                    let r = arg(0)?;
                    let least =
                        if r.least <= 0.0 && r.greatest >= 0.0 { 0.0 } else { r.least.abs().min(r.greatest.abs()) };
                    Range::new(least, r.magnitude())
                }
                "exp" => monotonous(f64::exp),
                "sqrt" if arg(0)?.least >= 0.0 => monotonous(f64::sqrt),
                // A root of what is next to nothing is next to infinite: the type must hold its square, too.
                "rsqrt" if arg(0)?.least > 0.0 => {
                    arg(0).and_then(|r| Range::new(1.0 / r.greatest.sqrt(), 1.0 / r.least.sqrt()))
                }
                "tanh" | "erf" | "sin" | "cos" => Range::new(-1.0, 1.0).filter(|_| arg(0).is_some()),
                "sigmoid" => Range::new(0.0, 1.0).filter(|_| arg(0).is_some()),
                "nn.relu" => monotonous(|x| x.max(0.0)),
                "cast" => arg(0),
                "sum" => {
                    let (r, x) = (arg(0)?, fact(*args.first()?).tensor()?.elements()?);
                    let n = (x / ty.elements()?.max(1)) as f64;
                    Range::new(r.least.min(r.least * n), r.greatest.max(r.greatest * n))
                }
                "mean" | "max" | "min" => arg(0),
                "full" => arg(0),
                "zeros" => Range::new(0.0, 0.0),
                "ones" => Range::new(1.0, 1.0),
                _ if is_move(node) => arg(0),
                // Blocks that are filled up hold zeros.
                "layout_transform" => arg(0).map(|r| r.join(Range { least: 0.0, greatest: 0.0 })),
                _ => None,
            }
        }
        Case::Enter(_) | Case::Leave(_) => fact(*node.children().first()?).range,
        _ => None,
    }?;
    (range.magnitude() <= most).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_tensors_see_every_element() {
        for n in [1, 15, 16, 37, 64] {
            for at in [0, n / 2, n - 1] {
                let of = |x: f64| Range::of(&Tensor::from_f64_fn(DType::F32, &[n], |i| if i == at { x } else { 1.0 }));
                let rest: [f64; 2] = if n == 1 { [-3.0, 5.0] } else { [1.0, 1.0] };
                assert_eq!(of(-3.0), Range::new(-3.0, rest[0].max(-3.0)), "{n}, {at}");
                assert_eq!(of(5.0), Range::new(rest[1].min(5.0), 5.0), "{n}, {at}");
                assert_eq!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(of), [None; 3], "{n}, {at}");
            }
        }
        assert_eq!(Range::of(&Tensor::zeros(DType::F32, &[0])), None);
    }
}
