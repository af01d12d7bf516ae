//! Functions of floats. Of f32, those that networks use much are polynomials on whole vectors; the rest, and all of f64,
//! call libm lane by lane.

use inkwell::{FloatPredicate as FP, IntPredicate, values::InstructionOpcode as Opcode};

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

/// A function of floats that gives a float. `scales` says that the machine multiplies sixteen lanes by powers of 2 at once.
pub(super) fn unary<'ctx>(ir: &Ir<'_, 'ctx>, op: UnOp, a: V<'ctx>, scales: bool) -> V<'ctx> {
    let f = Single { ir, scales };
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
        UnOp::FlushSubnormal => {
            let least = ir.float(f32::MIN_POSITIVE as f64, a.get_type());
            let zero = ir.fmul(a, ir.float(0.0, a.get_type()));
            ir.select(ir.fcmp(FP::OLT, abs(ir, a), least), zero, a)
        }
        UnOp::Sigmoid => ir.fdiv(one(), ir.fadd(one(), unary(ir, UnOp::Exp, ir.fneg(a), scales))),
        UnOp::Exp if single => f.exp(a),
        UnOp::Exp2 if single => f.exp2(a),
        UnOp::Log if single => f.log(a, std::f64::consts::LN_2, 1.0),
        UnOp::Log2 if single => f.log(a, 1.0, std::f64::consts::LOG2_E),
        UnOp::Log10 if single => f.log(a, std::f64::consts::LOG10_2, std::f64::consts::LOG10_E),
        UnOp::Tanh if single => f.tanh(a),
        UnOp::Erf if single => f.erf(a),
        UnOp::Sin | UnOp::Cos | UnOp::Tan if single => f.periodic(a, op),
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

/// Functions of f32 by reduction to a short interval, where there is one, and a minimax polynomial or quotient of polynomials there
/// (weighted least squares, refined until the relative error is level). Errors are within 2 to 6 units in the last place. NaN
/// stays NaN throughout.
struct Single<'a, 'u, 'ctx> {
    ir: &'a Ir<'u, 'ctx>,
    /// Whether one instruction scales sixteen lanes by powers of 2.
    scales: bool,
}

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
/// From here on tanh is 1 in f32.
const TANH_END: f64 = 9.01;
/// tanh(x) / x as a quotient of polynomials over x^2 up to there: above and below.
const TANH: [&[f64]; 2] = [
    &[
        1.0,
        0.133_803_755_044_937_13,
        3.494_815_202_429_890_6e-3,
        2.059_633_516_182_657_3e-5,
        1.333_692_534_188_912_8e-8,
    ],
    &[1.0, 0.467_136_919_498_443_6, 0.025_874_042_883_515_358, 3.284_369_595_348_835e-4, 7.769_316_425_765_282e-7],
];
/// From here on erf is 1 in f32.
const ERF_END: f64 = 3.925;
/// erf(x) / x likewise.
const ERF: [&[f64]; 2] = [
    &[
        1.128_379_225_730_896,
        0.192_458_048_462_867_74,
        0.055_581_279_098_987_58,
        4.194_365_348_666_906e-3,
        4.056_938_050_780_445_3e-4,
        6.586_818_471_987_499e-6,
    ],
    &[
        1.0,
        0.503_894_925_117_492_7,
        0.117_222_025_990_486_15,
        0.016_212_670_132_517_815,
        1.407_438_074_238_598_3e-3,
        7.109_824_946_383_014e-5,
        2.488_984_307_547_071e-7,
    ],
];

/// (sin(r) - r) / r^3 over r^2 for |r| <= pi / 4.
const SIN: [f64; 3] = [-0.166_666_552_424_430_85, 0.008_332_160_301_506_52, -0.000_195_152_824_744_582_18];
/// (cos(r) - 1 + r^2 / 2) / r^4 likewise.
const COS: [f64; 3] = [0.041_666_645_556_688_31, -0.001_388_731_645_420_193_7, 0.000_024_433_156_795_566_9];
/// pi / 2 in three numbers: products of the first two, of 22 bits, with integers up to 2^30 are exact, and so are their differences from what they leave
/// (Cody and Waite), whether a machine rounds once or twice.
const HALF_PI: [f64; 3] = [1.570_796_012_878_418, 3.139_164_164_167_596e-7, 6.223_372_171_896_613e-14];
/// Up to here the remainder by pi / 2 is found in f64: it has as many bits again as f32 needs of it, however close to 0 it is.
const PERIODIC_END: f64 = 1_073_741_824.0;

impl<'ctx> Single<'_, '_, 'ctx> {
    fn c(&self, x: f64, like: V<'ctx>) -> V<'ctx> {
        self.ir.float(x, like.get_type())
    }

    fn int_type(&self) -> super::ir::Ty<'ctx> {
        self.ir.ctx.i32_type().into()
    }

    fn polynomial(&self, x: V<'ctx>, coefficients: &[f64]) -> V<'ctx> {
        let (last, rest) = coefficients.split_last().expect("a polynomial has coefficients");
        rest.iter().rev().fold(self.c(*last, x), |sum, &k| self.ir.fma(sum, x, self.c(k, x)))
    }

    /// At most (or at least) `limit`; NaN stays.
    fn limit(&self, over: FP, x: V<'ctx>, limit: f64) -> V<'ctx> {
        let limit = self.c(limit, x);
        self.ir.select(self.ir.fcmp(over, x, limit), limit, x)
    }

    /// The nearest integer to `x * factor`, as a float and as an i32. Adding 1.5 * 2^23 shifts the fraction out; its bits
    /// then count from there, and even for NaN are some integer.
    fn nearest(&self, x: V<'ctx>, factor: f64) -> (V<'ctx>, V<'ctx>) {
        let magic = self.c(12_582_912.0, x);
        let shifted = self.ir.fma(x, self.c(factor, x), magic);
        let n = self.ir.bitcast(shifted, self.int_type());
        (self.ir.bin(Opcode::FSub, shifted, magic), self.ir.sub(n, self.ir.bitcast(magic, self.int_type())))
    }

    /// `y` times 2 to the power of `n` (the same as a float and as an i32): by halves, where the machine does not do it, so that
    /// infinities and subnormal numbers come out right. Zero where `is_zero` says so: results that underflow take Intel's processors some
    /// 200 cycles each, and masks of attention are made of such.
    fn scale(&self, y: V<'ctx>, (float, n): (V<'ctx>, V<'ctx>), is_zero: V<'ctx>) -> V<'ctx> {
        let ir = self.ir;
        if self.scales && Ir::lanes(y) == Some(16) {
            let others = ir.recast(ir.not(is_zero), ir.ctx.i16_type().into());
            let as_ever = ir.ctx.i32_type().const_int(4, false).into();
            return ir.intrinsic(
                "llvm.x86.avx512.mask.scalef.ps.512",
                &[],
                &[y, float, self.c(0.0, y), others, as_ever],
            );
        }
        let y = ir.select(is_zero, self.c(0.0, y), y);
        let power = |k| {
            let biased = ir.add(k, ir.int(127, k.get_type()));
            ir.bitcast(ir.shift(Opcode::Shl, biased, 23), ir.ctx.f32_type().into())
        };
        let half = ir.shift(Opcode::AShr, n, 1);
        ir.fmul(ir.fmul(y, power(half)), power(ir.sub(n, half)))
    }

    /// exp(r) for |r| <= ln(2) / 2.
    fn exp_small(&self, r: V<'ctx>) -> V<'ctx> {
        let ir = self.ir;
        ir.fadd(ir.fma(ir.fmul(r, r), self.polynomial(r, &EXP), r), self.c(1.0, r))
    }

    fn exp(&self, x: V<'ctx>) -> V<'ctx> {
        let is_zero = self.ir.fcmp(FP::OLT, x, self.c(-104.0, x));
        let x = self.limit(FP::OLT, self.limit(FP::OGT, x, 89.0), -104.0);
        let power = self.nearest(x, std::f64::consts::LOG2_E);
        let n = power.0;
        // ln(2) in two parts, of which products of the first with small integers are exact.
        let r = self.ir.fma(n, self.c(-0.693_359_375, x), x);
        let r = self.ir.fma(n, self.c(2.121_944_400_546_905_8e-4, x), r);
        self.scale(self.exp_small(r), power, is_zero)
    }

    fn exp2(&self, x: V<'ctx>) -> V<'ctx> {
        let is_zero = self.ir.fcmp(FP::OLT, x, self.c(-151.0, x));
        let x = self.limit(FP::OLT, self.limit(FP::OGT, x, 129.0), -151.0);
        let power = self.nearest(x, 1.0);
        let r = self.ir.fmul(self.ir.fsub(x, power.0), self.c(std::f64::consts::LN_2, x));
        self.scale(self.exp_small(r), power, is_zero)
    }

    /// The logarithm in which 2 has the value `of_two`, where natural ones are multiplied by `factor`.
    fn log(&self, x: V<'ctx>, of_two: f64, factor: f64) -> V<'ctx> {
        let ir = self.ir;
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

    /// Sine, cosine or tangent. Where any lane is beyond [`PERIODIC_END`], all call libm.
    fn periodic(&self, x: V<'ctx>, op: UnOp) -> V<'ctx> {
        let ir = self.ir;
        let name = match op {
            UnOp::Sin => "sin",
            UnOp::Cos => "cos",
            _ => "tan",
        };
        let is_far = ir.fcmp(FP::OGT, abs(ir, x), self.c(PERIODIC_END, x));
        let any = match Ir::lanes(x) {
            Some(_) => ir.intrinsic("llvm.vector.reduce.or", &[is_far.get_type()], &[is_far]),
            None => is_far,
        };
        let function = ir.here().get_parent().expect("code stands in a function");
        let [far, near, done] = ["far", "near", "done"].map(|name| ir.block(function, name));
        ir.branch(any, far, near);
        ir.go_to(far);
        let by_libm = (ir.libm(name, &[x]), ir.here());
        ir.jump(done);
        ir.go_to(near);
        let by_remainder = (self.periodic_near(x, op), ir.here());
        ir.jump(done);
        ir.go_to(done);
        ir.phi(&[by_libm, by_remainder])
    }

    /// The same of lanes that are not beyond.
    fn periodic_near(&self, x: V<'ctx>, op: UnOp) -> V<'ctx> {
        let ir = self.ir;
        let (double, long) = (ir.ctx.f64_type().into(), ir.ctx.i64_type().into());
        // Quarters of a turn: adding 1.5 * 2^52 shifts the fraction out.
        let exact = ir.cast(Opcode::FPExt, x, double);
        let magic = self.c(6_755_399_441_055_744.0, exact);
        let shifted = ir.fma(exact, self.c(std::f64::consts::FRAC_2_PI, exact), magic);
        let n = ir.bin(Opcode::FSub, shifted, magic);
        let quarters = ir.cast(Opcode::Trunc, ir.bitcast(shifted, long), self.int_type());
        let r = HALF_PI.iter().fold(exact, |r, part| ir.fma(n, self.c(-part, r), r));
        let r = ir.cast(Opcode::FPTrunc, r, ir.ctx.f32_type().into());
        let square = ir.fmul(r, r);
        let sine = ir.fma(ir.fmul(square, r), self.polynomial(square, &SIN), r);
        let cosine = ir.fma(square, self.c(-0.5, r), self.c(1.0, r));
        let cosine = ir.fma(ir.fmul(square, square), self.polynomial(square, &COS), cosine);
        let one = ir.int(1, quarters.get_type());
        let is_odd = |q| ir.icmp(IntPredicate::NE, ir.and(q, one), ir.int(0, one.get_type()));
        // The second bit of the quarters is the sign.
        let signed = |y, quarters| {
            let sign = ir.shift(Opcode::Shl, ir.shift(Opcode::LShr, quarters, 1), 31);
            ir.bitcast(ir.xor(ir.bitcast(y, self.int_type()), sign), ir.ctx.f32_type().into())
        };
        let later = ir.add(quarters, one);
        match op {
            UnOp::Sin => signed(ir.select(is_odd(quarters), cosine, sine), quarters),
            UnOp::Cos => signed(ir.select(is_odd(quarters), sine, cosine), later),
            _ => {
                let odd = is_odd(quarters);
                let over = ir.select(odd, cosine, sine);
                let under = ir.select(odd, ir.fneg(sine), cosine);
                ir.fdiv(over, under)
            }
        }
    }

    /// An odd function that is 1 from `end` on, by its quotient by x over x^2 before.
    fn saturating(&self, x: V<'ctx>, end: f64, [above, below]: [&[f64]; 2]) -> V<'ctx> {
        let ir = self.ir;
        let within = |x, most: f64| self.limit(FP::OLT, self.limit(FP::OGT, x, most), -most);
        let x = within(x, end);
        let square = ir.fmul(x, x);
        let y = ir.fdiv(ir.fmul(x, self.polynomial(square, above)), self.polynomial(square, below));
        // Rounding must not take it beyond its limits.
        within(y, 1.0)
    }

    fn tanh(&self, x: V<'ctx>) -> V<'ctx> {
        self.saturating(x, TANH_END, TANH)
    }

    fn erf(&self, x: V<'ctx>) -> V<'ctx> {
        self.saturating(x, ERF_END, ERF)
    }
}
