//! Functions of floats. Of f32, those that networks use much are polynomials on whole vectors; the rest, and all of f64,
//! call libm lane by lane.

use inkwell::{FloatPredicate as FP, values::InstructionOpcode as Opcode};

use super::ir::{Ir, V};
use crate::loops::UnOp;

fn same<'ctx>(ir: &Ir<'_, 'ctx>, name: &str, a: V<'ctx>) -> V<'ctx> {
    ir.intrinsic(name, &[a.get_type()], &[a])
}

/// Magnitude.
pub(super) fn abs<'ctx>(ir: &Ir<'_, 'ctx>, a: V<'ctx>) -> V<'ctx> {
    same(ir, "llvm.fabs", a)
}

/// Rounded down.
pub(super) fn floor<'ctx>(ir: &Ir<'_, 'ctx>, a: V<'ctx>) -> V<'ctx> {
    same(ir, "llvm.floor", a)
}

/// `a` to a constant power, where a few operations do.
pub(super) fn power<'ctx>(ir: &Ir<'_, 'ctx>, a: V<'ctx>, x: f64) -> Option<V<'ctx>> {
    let one = ir.float(1.0, a.get_type());
    let root = |a: V<'ctx>| {
        // Unlike the root, the power of -0 is 0 and that of -infinity is infinity.
        let r = ir.bin(Opcode::FAdd, same(ir, "llvm.sqrt", a), ir.float(0.0, a.get_type()));
        let low = ir.fcmp(FP::OEQ, a, ir.float(f64::NEG_INFINITY, a.get_type()));
        ir.select(low, ir.float(f64::INFINITY, a.get_type()), r)
    };
    match x {
        0.0 => Some(one),
        1.0 => Some(a),
        2.0 => Some(ir.fmul(a, a)),
        3.0 => Some(ir.fmul(ir.fmul(a, a), a)),
        0.5 => Some(root(a)),
        -0.5 => Some(ir.fdiv(one, root(a))),
        0.25 => Some(root(root(a))),
        0.75 => Some(ir.fmul(root(a), root(root(a)))),
        -0.75 => Some(ir.fdiv(one, ir.fmul(root(a), root(root(a))))),
        -1.0 => Some(ir.fdiv(one, a)),
        -2.0 => Some(ir.fdiv(one, ir.fmul(a, a))),
        _ => None,
    }
}

/// A function of floats that gives a float.
pub(super) fn unary<'ctx>(ir: &Ir<'_, 'ctx>, op: UnOp, a: V<'ctx>) -> V<'ctx> {
    let one = || ir.float(1.0, a.get_type());
    let libm = |name: &str| ir.libm(name, &[a]);
    let single = Ir::element_bits(a) == 32;
    match op {
        UnOp::Sqrt => same(ir, "llvm.sqrt", a),
        UnOp::Rsqrt => ir.fdiv(one(), same(ir, "llvm.sqrt", a)),
        UnOp::Floor => floor(ir, a),
        UnOp::Ceil => same(ir, "llvm.ceil", a),
        UnOp::Trunc => same(ir, "llvm.trunc", a),
        UnOp::Round => same(ir, "llvm.round", a),
        UnOp::RoundEven => same(ir, "llvm.roundeven", a),
        UnOp::Sigmoid => ir.fdiv(one(), ir.fadd(one(), unary(ir, UnOp::Exp, ir.fneg(a)))),
        UnOp::Exp if single => Single(ir).exp(a),
        UnOp::Exp2 if single => Single(ir).exp2(a),
        UnOp::Log if single => Single(ir).log(a, std::f64::consts::LN_2, 1.0),
        UnOp::Log2 if single => Single(ir).log(a, 1.0, std::f64::consts::LOG2_E),
        UnOp::Log10 if single => Single(ir).log(a, std::f64::consts::LOG10_2, std::f64::consts::LOG10_E),
        UnOp::Tanh if single => Single(ir).tanh(a),
        UnOp::Erf if single => Single(ir).erf(a),
        UnOp::Exp => libm("exp"),
        UnOp::Exp2 => libm("exp2"),
        UnOp::Log => libm("log"),
        UnOp::Log2 => libm("log2"),
        UnOp::Log10 => libm("log10"),
        UnOp::Erf => libm("erf"),
        UnOp::Tanh => libm("tanh"),
        UnOp::Sin => libm("sin"),
        UnOp::Cos => libm("cos"),
        UnOp::Tan => libm("tan"),
        UnOp::Asin => libm("asin"),
        UnOp::Acos => libm("acos"),
        UnOp::Atan => libm("atan"),
        UnOp::Sinh => libm("sinh"),
        UnOp::Cosh => libm("cosh"),
        UnOp::Asinh => libm("asinh"),
        UnOp::Acosh => libm("acosh"),
        UnOp::Atanh => libm("atanh"),
        UnOp::Neg | UnOp::Abs | UnOp::Not | UnOp::Popcount | UnOp::IsNan | UnOp::IsInf | UnOp::IsFinite => {
            unreachable!("no function of floats to floats")
        }
    }
}

/// Functions of f32 by reduction to a short interval and a minimax polynomial there (weighted least squares, refined until
/// the relative error is level). Errors are within 2 to 4 units in the last place. NaN stays NaN throughout.
struct Single<'a, 'u, 'ctx>(&'a Ir<'u, 'ctx>);

/// (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2.
const EXP: [f64; 5] = [
    0.499_999_940_395_355_2,
    0.166_665_196_418_762_2,
    0.041_668_392_717_838_29,
    0.008_368_780_836_462_975,
    0.001_381_446_723_826_229_6,
];
/// (log(1 + f) - f + f^2 / 2) / f^3 for 1 + f within a factor of the root of 2 around 1.
const LOG: [f64; 8] = [
    0.333_333_313_465_118_4,
    -0.250_008_195_638_656_6,
    0.200_012_266_635_894_78,
    -0.166_233_569_383_621_22,
    0.142_017_588_019_371_03,
    -0.131_601_825_356_483_46,
    0.127_615_749_835_968_02,
    -0.076_344_929_635_524_75,
];
/// (tanh(x) - x) / x^3 over x^2 for |x| <= 0.63.
const TANH: [f64; 5] = [
    -0.333_332_777_023_315_43,
    0.133_313_313_126_564_03,
    -0.053_730_007_261_037_83,
    0.020_606_176_927_685_738,
    -0.005_666_977_260_261_774,
];
/// erf(x) / x over x^2 for |x| <= 1.
const ERF: [f64; 7] = [
    1.128_379_106_521_606_4,
    -0.376_126_259_565_353_4,
    0.112_835_854_291_915_9,
    -0.026_853_812_858_462_334,
    0.005_188_329_145_312_309,
    -0.000_801_020_534_709_096,
    7.853_896_386_222_914e-5,
];
/// log(1 - erf(x)) + x^2 for 1 <= x <= 4.
const ERFC: [f64; 7] = [
    -0.000_353_718_758_560_717_1,
    -1.127_040_028_572_082_5,
    0.361_774_325_370_788_6,
    -0.103_037_372_231_483_46,
    0.021_805_319_935_083_39,
    -0.002_939_607_948_064_804,
    0.000_185_574_070_201_255_38,
];

impl<'ctx> Single<'_, '_, 'ctx> {
    fn c(&self, x: f64, like: V<'ctx>) -> V<'ctx> {
        self.0.float(x, like.get_type())
    }

    fn int_type(&self) -> super::ir::Ty<'ctx> {
        self.0.ctx.i32_type().into()
    }

    fn polynomial(&self, x: V<'ctx>, coefficients: &[f64]) -> V<'ctx> {
        let (last, rest) = coefficients.split_last().expect("a polynomial has coefficients");
        rest.iter().rev().fold(self.c(*last, x), |sum, &k| self.0.fma(sum, x, self.c(k, x)))
    }

    /// At most (or at least) `limit`; NaN stays.
    fn limit(&self, over: FP, x: V<'ctx>, limit: f64) -> V<'ctx> {
        let limit = self.c(limit, x);
        self.0.select(self.0.fcmp(over, x, limit), limit, x)
    }

    /// The nearest integer to `x * factor`, as a float and as an i32. Adding 1.5 * 2^23 shifts the fraction out; its bits
    /// then count from there, and even for NaN are some integer.
    fn nearest(&self, x: V<'ctx>, factor: f64) -> (V<'ctx>, V<'ctx>) {
        let magic = self.c(12_582_912.0, x);
        let shifted = self.0.fma(x, self.c(factor, x), magic);
        let n = self.0.bitcast(shifted, self.int_type());
        (self.0.bin(Opcode::FSub, shifted, magic), self.0.sub(n, self.0.bitcast(magic, self.int_type())))
    }

    /// `y` times 2 to the power of `n`, by halves, so that infinities and subnormal numbers come out right.
    fn scale(&self, y: V<'ctx>, n: V<'ctx>) -> V<'ctx> {
        let ir = self.0;
        let power = |k| {
            let biased = ir.add(k, ir.int(127, k.get_type()));
            ir.bitcast(ir.shift(Opcode::Shl, biased, 23), ir.ctx.f32_type().into())
        };
        let half = ir.shift(Opcode::AShr, n, 1);
        ir.fmul(ir.fmul(y, power(half)), power(ir.sub(n, half)))
    }

    /// exp(r) for |r| <= ln(2) / 2.
    fn exp_small(&self, r: V<'ctx>) -> V<'ctx> {
        let ir = self.0;
        ir.fadd(ir.fma(ir.fmul(r, r), self.polynomial(r, &EXP), r), self.c(1.0, r))
    }

    fn exp(&self, x: V<'ctx>) -> V<'ctx> {
        let x = self.limit(FP::OLT, self.limit(FP::OGT, x, 89.0), -104.0);
        let (n, k) = self.nearest(x, std::f64::consts::LOG2_E);
        // ln(2) in two parts, of which products of the first with small integers are exact.
        let r = self.0.fma(n, self.c(-0.693_359_375, x), x);
        let r = self.0.fma(n, self.c(2.121_944_400_546_905_8e-4, x), r);
        self.scale(self.exp_small(r), k)
    }

    fn exp2(&self, x: V<'ctx>) -> V<'ctx> {
        let x = self.limit(FP::OLT, self.limit(FP::OGT, x, 129.0), -151.0);
        let (n, k) = self.nearest(x, 1.0);
        let r = self.0.fmul(self.0.fsub(x, n), self.c(std::f64::consts::LN_2, x));
        self.scale(self.exp_small(r), k)
    }

    /// The logarithm in which 2 has the value `of_two`, where natural ones are multiplied by `factor`.
    fn log(&self, x: V<'ctx>, of_two: f64, factor: f64) -> V<'ctx> {
        let ir = self.0;
        let float: super::ir::Ty = ir.ctx.f32_type().into();
        // Subnormal numbers are brought up by 2^23.
        let tiny = ir.fcmp(FP::OLT, x, self.c(f32::MIN_POSITIVE as f64, x));
        let raised = ir.select(tiny, ir.fmul(x, self.c(8_388_608.0, x)), x);
        let bits = ir.bitcast(raised, self.int_type());
        // The exponent, counted from the root of 1/2.
        let from_root = ir.sub(bits, ir.int(0x3f35_04f3, bits.get_type()));
        let k = ir.shift(Opcode::AShr, from_root, 23);
        let mantissa = ir.bitcast(ir.sub(bits, ir.shift(Opcode::Shl, k, 23)), float);
        let e = ir.cast(Opcode::SIToFP, k, float);
        let e = ir.fsub(e, ir.select(tiny, self.c(23.0, x), self.c(0.0, x)));
        let f = ir.fsub(mantissa, self.c(1.0, x));
        let f2 = ir.fmul(f, f);
        let rest = ir.fsub(ir.fmul(ir.fmul(f2, f), self.polynomial(f, &LOG)), ir.fmul(f2, self.c(0.5, x)));
        // `of_two` in two parts, of which products of the first with exponents are exact.
        let high = (of_two * 512.0).round() / 512.0;
        let low = of_two - high;
        let y = match factor {
            1.0 => ir.fadd(f, ir.fma(e, self.c(low, x), rest)),
            _ => ir.fma(ir.fadd(f, rest), self.c(factor, x), ir.fmul(e, self.c(low, x))),
        };
        let y = ir.fma(e, self.c(high, x), y);
        let positive = ir.fcmp(FP::OGT, x, self.c(0.0, x));
        let finite = ir.fcmp(FP::OLT, x, self.c(f64::INFINITY, x));
        let negative = ir.fcmp(FP::OLT, x, self.c(0.0, x));
        let zero = ir.fcmp(FP::OEQ, x, self.c(0.0, x));
        let odd = ir.select(negative, self.c(f64::NAN, x), ir.select(zero, self.c(f64::NEG_INFINITY, x), x));
        ir.select(ir.and(positive, finite), y, odd)
    }

    fn copysign(&self, magnitude: V<'ctx>, sign: V<'ctx>) -> V<'ctx> {
        self.0.intrinsic("llvm.copysign", &[magnitude.get_type()], &[magnitude, sign])
    }

    fn tanh(&self, x: V<'ctx>) -> V<'ctx> {
        let ir = self.0;
        let t = self.limit(FP::OGT, abs(ir, x), 10.0);
        let e = self.exp(ir.fmul(t, self.c(2.0, x)));
        let large = ir.fsub(self.c(1.0, x), ir.fdiv(self.c(2.0, x), ir.fadd(e, self.c(1.0, x))));
        let square = ir.fmul(x, x);
        let small = ir.fma(ir.fmul(square, x), self.polynomial(square, &TANH), x);
        ir.select(ir.fcmp(FP::OLT, t, self.c(0.625, x)), small, self.copysign(large, x))
    }

    fn erf(&self, x: V<'ctx>) -> V<'ctx> {
        let ir = self.0;
        let t = self.limit(FP::OGT, abs(ir, x), 4.0);
        let square = ir.fmul(t, t);
        let tail = self.exp(ir.fsub(self.polynomial(t, &ERFC), square));
        let large = self.copysign(ir.fsub(self.c(1.0, x), tail), x);
        let small = ir.fmul(x, self.polynomial(square, &ERF));
        ir.select(ir.fcmp(FP::OLT, t, self.c(1.0, x)), small, large)
    }
}
