//! From what calibration saw of a tensor to its range, and from a range to a scale and a zero point.

use crate::{diag::Diagnostic, tensor::DType};

/// Bins of a histogram, over the range from minus to plus the greatest magnitude: odd, so that one is around 0.
pub(super) const BINS: usize = 2001;

/// Steps that the range of a signed type of 8 bits is cut into when its threshold is sought by divergence.
const STEPS: usize = 255;

/// How a tensor's range follows from its values.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Method {
    /// The same range for all: from minus this to this.
    GlobalScale(f64),
    /// From the least value seen to the greatest.
    MinMax,
    /// The range that this share of the values lies in, in percent.
    Percentile(f64),
    /// The range whose distribution in 8 bits diverges least (Kullback, Leibler) from that of the values.
    Kl,
}

impl Method {
    /// The names, as users write them.
    pub const NAMES: [&str; 4] = ["global_scale", "minmax", "percentile", "kl"];

    /// Whether it looks at how values are distributed, not only at their limits.
    pub(super) fn needs_histogram(self) -> bool {
        matches!(self, Method::Percentile(_) | Method::Kl)
    }
}

/// What was seen of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) min: f64,
    pub(super) max: f64,
    /// How many values were in each of [`BINS`] bins; empty until a second look.
    pub(super) bins: Vec<u64>,
}

impl Seen {
    pub(super) fn nothing() -> Seen {
        Seen { min: f64::INFINITY, max: f64::NEG_INFINITY, bins: Vec::new() }
    }

    /// The first look: limits. What is not finite is not looked at.
    pub(super) fn limits(&mut self, values: &[f32]) {
        for &v in values.iter().filter(|v| v.is_finite()) {
            self.min = self.min.min(v.into());
            self.max = self.max.max(v.into());
        }
    }

    fn greatest(&self) -> f64 {
        if self.min > self.max { 0.0 } else { self.min.abs().max(self.max.abs()) }
    }

    /// The second look: the distribution.
    pub(super) fn distribution(&mut self, values: &[f32]) {
        self.bins.resize(BINS, 0);
        let greatest = self.greatest();
        if greatest <= 0.0 {
            return;
        }
        for &v in values.iter().filter(|v| v.is_finite()) {
            let at = (f64::from(v) + greatest) / (2.0 * greatest) * BINS as f64;
            self.bins[(at as usize).min(BINS - 1)] += 1;
        }
    }

    /// The lower edge of a bin.
    fn edge(&self, bin: usize) -> f64 {
        let greatest = self.greatest();
        -greatest + 2.0 * greatest * bin as f64 / BINS as f64
    }

    /// The range by a method; (0, 0) where nothing was seen. `unsigned` says that the type has no negative numbers.
    pub(super) fn range(&self, method: Method, symmetric: bool, unsigned: bool) -> (f64, f64) {
        if self.min > self.max {
            return (0.0, 0.0);
        }
        let within = |lo: f64, hi: f64| (lo.max(self.min), hi.min(self.max));
        match method {
            Method::GlobalScale(scale) if self.min >= 0.0 => (0.0, scale),
            Method::GlobalScale(scale) => (-scale, scale),
            Method::MinMax => (self.min, self.max),
            Method::Percentile(percent) if symmetric => {
                let threshold = self.magnitude(percent);
                within(-threshold, threshold)
            }
            Method::Percentile(percent) => {
                let all: u64 = self.bins.iter().sum();
                let cut = all as f64 * (100.0 - percent) / 200.0;
                let (lo, hi) = (self.first_beyond(cut, 0..BINS), self.first_beyond(cut, (0..BINS).rev()));
                within(self.edge(lo), self.edge(hi + 1))
            }
            Method::Kl => {
                let threshold = self.least_divergence(if unsigned && self.min >= 0.0 { 2 * STEPS + 1 } else { STEPS });
                within(-threshold, threshold)
            }
        }
    }

    /// The first bin, in this order, with which more than `cut` values have been passed.
    fn first_beyond(&self, cut: f64, bins: impl Iterator<Item = usize>) -> usize {
        let mut passed = 0.0;
        for bin in bins {
            passed += self.bins[bin] as f64;
            if passed > cut {
                return bin;
            }
        }
        BINS / 2
    }

    /// The magnitude that this share of the values does not exceed.
    fn magnitude(&self, percent: f64) -> f64 {
        let all: u64 = self.bins.iter().sum();
        let wanted = all as f64 * percent / 100.0;
        let middle = BINS / 2;
        let mut passed = self.bins[middle] as f64;
        for k in 0..middle {
            if passed >= wanted {
                return self.edge(middle + k + 1);
            }
            passed += (self.bins[middle + k + 1] + self.bins[middle - k - 1]) as f64;
        }
        self.greatest()
    }

    /// The threshold whose distribution, cut there and merged into `steps`, diverges least from that of the values (with what lies
    /// beyond counted at its ends). The search is that of MXNet and TVM: every symmetric range of bins from `steps` on.
    fn least_divergence(&self, steps: usize) -> f64 {
        let middle = BINS / 2;
        let mut best = (f64::INFINITY, self.greatest());
        for half in steps / 2..=middle {
            let (from, to) = (middle - half, middle + half + 1);
            let inside = &self.bins[from..to];
            let mut p: Vec<f64> = inside.iter().map(|&n| n as f64).collect();
            let below: u64 = self.bins[..=from].iter().sum();
            let above: u64 = self.bins[to - 1..].iter().sum();
            // Of the ends only what lies beyond them is merged again: they are no part of what is to be represented.
            let mut kept: Vec<f64> = p.clone();
            (p[0], kept[0]) = (below as f64, 0.0);
            let last = p.len() - 1;
            p[last] = above as f64;
            let width = p.len() / steps;
            let mut q = vec![0.0; p.len()];
            for step in 0..steps {
                let (start, stop) = (step * width, if step + 1 == steps { p.len() } else { (step + 1) * width });
                let sum: f64 = kept[start..stop].iter().sum();
                let filled = kept[start..stop].iter().filter(|&&n| n != 0.0).count();
                if filled > 0 {
                    (start..stop).filter(|&k| p[k] != 0.0).for_each(|k| q[k] = sum / filled as f64);
                }
            }
            let divergence = match (smooth(p), smooth(q)) {
                (Some(p), Some(q)) => divergence(&p, &q),
                _ => f64::INFINITY,
            };
            if divergence < best.0 {
                best = (divergence, self.edge(to));
            }
        }
        best.1
    }
}

/// A distribution without zeros: each gets a little, which the others give. `None` where there is nothing to take from.
fn smooth(mut p: Vec<f64>) -> Option<Vec<f64>> {
    const LITTLE: f64 = 1e-4;
    let zeros = p.iter().filter(|&&x| x == 0.0).count();
    let others = p.len() - zeros;
    if others == 0 {
        return None;
    }
    let each = LITTLE * zeros as f64 / others as f64;
    if each >= 1.0 {
        return None;
    }
    p.iter_mut().for_each(|x| *x = if *x == 0.0 { LITTLE } else { *x - each });
    Some(p)
}

fn divergence(p: &[f64], q: &[f64]) -> f64 {
    let (all_p, all_q): (f64, f64) = (p.iter().sum(), q.iter().sum());
    let term = |(p, q): (&f64, &f64)| {
        let (p, q) = (p / all_p, q / all_q);
        // Where `q` took more than there was, nothing is represented: infinitely far.
        if q > 0.0 && p > 0.0 { p * (p / q).ln() } else { f64::INFINITY }
    };
    p.iter().zip(q).map(term).sum()
}

/// A scale and a zero point.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Params {
    pub(super) scale: f32,
    pub(super) zero_point: i32,
}

/// The scale and zero point with which an integer type spans a range. Symmetric ones have the zero point in the middle of a signed
/// type's range (which leaves out its least value), and of an unsigned type's at its middle, or at 0 where the range has no
/// negative numbers. Others span from the range's ends, 0 always among them.
pub(super) fn params((lo, hi): (f64, f64), symmetric: bool, dtype: DType) -> Result<Params, Diagnostic> {
    let (least, greatest) = dtype
        .int_range()
        .map(|(a, b)| (a as f64, b as f64))
        .ok_or_else(|| Diagnostic::new(format!("`{dtype}` is no type to quantize to")))?;
    let usable = |scale: f64| Some(scale as f32).filter(|s| s.is_normal()).unwrap_or(1.0);
    Ok(match symmetric {
        true if least < 0.0 => Params { scale: usable(lo.abs().max(hi.abs()) / greatest), zero_point: 0 },
        true if lo >= 0.0 => Params { scale: usable(hi / greatest), zero_point: 0 },
        true => {
            let middle = (greatest + 1.0) / 2.0;
            Params { scale: usable(lo.abs().max(hi.abs()) / (middle - 1.0)), zero_point: middle as i32 }
        }
        false => {
            let (lo, hi) = (lo.min(0.0), hi.max(0.0));
            let scale = usable((hi - lo) / (greatest - least));
            let zero = (least - lo / f64::from(scale)).round().clamp(least, greatest);
            Params { scale, zero_point: zero as i32 }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(values: &[f32]) -> Seen {
        let mut seen = Seen::nothing();
        seen.limits(values);
        seen.distribution(values);
        seen
    }

    /// Values as of a normal distribution, and one far out.
    fn with_outlier() -> Vec<f32> {
        let mut values: Vec<f32> = Vec::new();
        for k in 0..200 {
            let x = (k as f64 - 99.5) / 33.0;
            values.extend(vec![x as f32; (400.0 * (-x * x / 2.0).exp()) as usize + 1]);
        }
        values.push(30.0);
        values
    }

    #[test]
    fn outliers_are_cut_where_the_method_says_so() {
        let seen = seen(&with_outlier());
        assert_eq!(seen.range(Method::MinMax, true, false).1, 30.0);
        assert_eq!(seen.range(Method::GlobalScale(8.0), true, false), (-8.0, 8.0));
        for method in [Method::Percentile(99.9), Method::Kl] {
            let (lo, hi) = seen.range(method, true, false);
            assert!((2.0..6.0).contains(&hi) && (-6.0..-2.0).contains(&lo), "{method:?}: {lo} {hi}");
        }
        let (lo, hi) = seen.range(Method::Percentile(99.9), false, false);
        assert!((2.0..6.0).contains(&hi) && (-6.0..-2.0).contains(&lo), "{lo} {hi}");
    }

    #[test]
    fn nothing_and_zeros_have_a_scale() {
        for values in [&[][..], &[0.0, 0.0], &[f32::NAN]] {
            let seen = seen(values);
            for method in [Method::MinMax, Method::Percentile(99.0), Method::Kl] {
                let found = params(seen.range(method, true, false), true, DType::I8).expect("a type of integers");
                assert_eq!(found, Params { scale: 1.0, zero_point: 0 }, "{method:?} {values:?}");
            }
        }
    }

    #[test]
    fn scales_span_the_range() {
        let p = |range, symmetric, dtype| params(range, symmetric, dtype).expect("a type of integers");
        assert_eq!(p((-1.0, 12.7), true, DType::I8), Params { scale: 0.1, zero_point: 0 });
        assert_eq!(p((0.0, 25.5), true, DType::U8), Params { scale: 0.1, zero_point: 0 });
        assert_eq!(p((-12.7, 1.0), true, DType::U8), Params { scale: 0.1, zero_point: 128 });
        assert_eq!(p((-5.0, 20.5), false, DType::U8), Params { scale: 0.1, zero_point: 50 });
        assert_eq!(p((-5.0, 20.5), false, DType::I8), Params { scale: 0.1, zero_point: -78 });
        // 0 is exact even where the range does not hold it.
        assert_eq!(p((5.0, 25.5), false, DType::U8).zero_point, 0);
        assert!(params((0.0, 1.0), true, DType::F32).is_err());
    }
}
