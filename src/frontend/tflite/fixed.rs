//! Functions of fixed-point numbers of 16 or 32 bits, sign and integer bits among them, as the kernels compute them: in integers,
//! so that tables of them are the same everywhere.

/// Numbers of so many bits.
#[derive(Copy, Clone)]
pub(super) struct Fixed {
    bits: i64,
}

/// Numbers of 16 bits.
pub(super) const SHORT: Fixed = Fixed { bits: 16 };
/// Numbers of 32 bits.
pub(super) const LONG: Fixed = Fixed { bits: 32 };

/// `x / 2^by`, halves away from zero.
pub(super) fn divided(x: i64, by: i64) -> i64 {
    if by <= 0 {
        return x;
    }
    let by = by.min(62);
    let half = 1i64 << (by - 1);
    (x + if x < 0 { half - 1 } else { half }) >> by
}

impl Fixed {
    /// The greatest number, which stands for 1 where there are no integer bits.
    pub(super) fn one(self) -> i64 {
        (1 << (self.bits - 1)) - 1
    }

    /// Within the range of so many bits.
    fn fit(self, x: i64) -> i64 {
        x.clamp(-self.one() - 1, self.one())
    }

    /// A product, of as many integer bits as both factors have together.
    pub(super) fn times(self, a: i64, b: i64) -> i64 {
        self.fit((a * b + (1 << (self.bits - 2))) >> (self.bits - 1))
    }

    /// A constant that is given with 32 bits.
    fn constant(self, of_32: i64) -> i64 {
        self.fit(divided(of_32, 32 - self.bits))
    }

    /// The exponential of a number that is not positive, of so many integer bits; the result has none.
    pub(super) fn exp(self, a: i64, integer: i64) -> i64 {
        /// exp(-2^k) for k from -2 on.
        const POWERS: [i64; 7] = [1_672_461_947, 1_302_514_674, 790_015_084, 290_630_308, 39_332_535, 720_401, 242];
        if a == 0 {
            return self.one();
        }
        let fractional = self.bits - 1 - integer;
        if integer > 5 && a < -(1 << (fractional + 5)) {
            return 0;
        }
        let quarter = 1i64 << (fractional - 2);
        let rest = (a & (quarter - 1)) - quarter;
        let whole = rest - a;
        let mut result = self.exp_near_zero(self.fit(rest << integer));
        for (k, power) in POWERS.iter().enumerate() {
            // Powers of 2^k only where numbers reach so far.
            if integer > k as i64 - 2 && whole >> (fractional - 2 + k as i64) & 1 == 1 {
                result = self.times(result, self.constant(*power));
            }
        }
        result
    }

    /// The exponential of a fraction between -1/4 and 0: a polynomial around -1/8.
    fn exp_near_zero(self, a: i64) -> i64 {
        let (around, third) = (self.constant(1_895_147_668), self.constant(715_827_883));
        let x = a + (1 << (self.bits - 4));
        let x2 = self.times(x, x);
        let x3 = self.times(x2, x);
        let x4 = self.times(x2, x2);
        let rest = divided(self.times(divided(x4, 2) + x3, third) + x2, 1);
        self.fit(around + self.times(around, x + rest))
    }

    /// `1 / (1 + a)` of a fraction from 0 to 1, with two integer bits, halved: Newton's method.
    fn half_reciprocal(self, a: i64) -> i64 {
        let (offset, slope) = (self.constant(1_515_870_810), self.constant(-1_010_580_540));
        // The half of 1 + a, away from zero; it is positive.
        let half = (a + self.one() + 1) >> 1;
        let mut x = offset + self.times(half, slope);
        for _ in 0..3 {
            let rest = (1 << (self.bits - 3)) - self.times(half, x);
            x += self.fit(self.times(x, rest) << 2);
        }
        x
    }

    /// The logistic function of a number of so many integer bits.
    pub(super) fn logistic(self, a: i64, integer: i64) -> i64 {
        if a == 0 {
            return 1 << (self.bits - 2);
        }
        let above = self.fit(self.half_reciprocal(self.exp(-a.abs(), integer)) << 1);
        if a > 0 { above } else { self.one() - above }
    }

    /// The hyperbolic tangent of a number of so many integer bits.
    pub(super) fn tanh(self, a: i64, integer: i64) -> i64 {
        if a == 0 {
            return 0;
        }
        // With one integer bit more, the same bits are twice the number.
        let e = self.exp(-a.abs(), integer + 1);
        let size = self.fit((self.half_reciprocal(e) - (1 << (self.bits - 3))) << 2);
        if a > 0 { size } else { -size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_numbers() {
        for q in -128..=128i64 {
            let x = q as f64 / 16.0;
            let (short, long) = (q << 8, q << 24);
            let near = |got: i64, one: f64, want: f64, by: f64| {
                let got = got as f64 / one;
                assert!((got - want).abs() < by, "{got} for {want} at {x}");
            };
            let logistic = 1.0 / (1.0 + (-x).exp());
            if short <= SHORT.one() && long <= LONG.one() {
                near(SHORT.logistic(short, 3), 32768.0, logistic, 1e-3);
                near(LONG.logistic(long, 3), 2147483648.0, logistic, 1e-6);
                near(SHORT.tanh(short, 3), 32768.0, x.tanh(), 1e-3);
                near(LONG.tanh(long, 3), 2147483648.0, x.tanh(), 1e-6);
            }
            if q <= 0 {
                // What the Taylor series leaves out is at most e^(-1/8) (1/8)^5 / 5! = 2.25e-7.
                near(LONG.exp(long, 3), 2147483648.0, x.exp(), 2.3e-7);
            }
        }
    }
}
