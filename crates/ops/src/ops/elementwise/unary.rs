//! Unary operators without attributes.

use super::{Floats, Integers, Takes};
use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar, UnOp},
    ops::{
        AttrField, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, acosh, asinh, erf},
};

/// A unary operator without attributes.
#[derive(Debug)]
pub struct Unary {
    name: &'static str,
    doc: &'static str,
    takes: Takes,
    /// Whether the result is `bool` instead of the operand's type.
    to_bool: bool,
    /// The function on floats, computed in f64 and rounded to the operand's type.
    float: fn(f64) -> f64,
    /// The function on integers and `bool`, wrapped to the operand's type.
    int: fn(i128) -> i128,
    /// The function as a loop expression.
    lower: fn(Scalar) -> Scalar,
    /// Operations per element. Of exp, logarithms, erf, sigmoid, tanh, sin, cos and tan about as many sums as take as long within a kernel (measured on Granite
    /// Rapids); others are counted.
    flops: f64,
}

impl Unary {
    /// A function of floats: `float` says what it is, in f64, and `lower` how it is computed in the operand's own type. `doc` is
    /// its formula in x; `flops` are operations per element.
    pub const fn floats(
        name: &'static str,
        doc: &'static str,
        float: fn(f64) -> f64,
        lower: fn(Scalar) -> Scalar,
        flops: f64,
    ) -> Unary {
        Unary { name, doc, takes: Takes::Floats, to_bool: false, float, int: no_int, lower, flops }
    }
}

/// For an operator that does not take integers: `infer` has refused them.
fn no_int(_: i128) -> i128 {
    unreachable!("type inference refuses integers here")
}

/// For an operator that does not take floats: `infer` has refused them.
fn no_float(_: f64) -> f64 {
    unreachable!("type inference refuses floats here")
}

/// A row of the table: a function of floats only.
macro_rules! floats {
    ($name:literal, $doc:literal, $f:expr, $op:ident, $flops:literal) => {
        &Unary::floats($name, $doc, $f, |x| Scalar::unary(UnOp::$op, x), $flops)
    };
}

/// A row of the table: a rounding, which leaves integers as they are.
macro_rules! rounding {
    ($name:literal, $doc:literal, $f:expr, $op:ident) => {
        &Unary {
            name: $name,
            doc: $doc,
            takes: Takes::Numbers,
            to_bool: false,
            float: $f,
            int: |x| x,
            lower: |x| if x.dtype().is_float() { Scalar::unary(UnOp::$op, x) } else { x },
            flops: 1.0,
        }
    };
}

/// A row of the table: a test of floats, which gives the same for all integers.
macro_rules! test {
    ($name:literal, $doc:literal, $f:expr, $op:ident, $of_ints:literal) => {
        &Unary {
            name: $name,
            doc: $doc,
            takes: Takes::Any,
            to_bool: true,
            float: $f,
            int: |_| $of_ints as i128,
            lower: |x| if x.dtype().is_float() { Scalar::unary(UnOp::$op, x) } else { Scalar::bool($of_ints) },
            flops: 1.0,
        }
    };
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// An odd function as x * p(x^2) / q(x^2), with x clipped. The numbers are those of TVM's approximations.
struct Quotient {
    /// x is clipped to this distance from 0.
    end: f64,
    /// Coefficients of p, that of the highest power first.
    p: [f64; 7],
    /// Those of q.
    q: &'static [f64],
}

const FAST_TANH: Quotient = Quotient {
    end: 9.0,
    p: [
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-8,
        1.48572235717979e-5,
        6.37261928875436e-4,
        4.89352455891786e-3,
    ],
    q: &[1.19825839466702e-6, 1.18534705686654e-4, 2.26843463243900e-3, 4.89352518554385e-3],
};

const FAST_ERF: Quotient = Quotient {
    end: 4.0,
    p: [
        -2.72614225801306e-10,
        2.77068142495902e-8,
        -2.10102402082508e-6,
        -5.69250639462346e-5,
        -7.34990630326855e-4,
        -2.95459980854025e-3,
        -1.60960333262415e-2,
    ],
    q: &[-1.45660718464996e-5, -2.13374055278905e-4, -1.68282697438203e-3, -7.37332916720468e-3, -1.42647390514189e-2],
};

impl Quotient {
    fn of(&self, x: f64) -> f64 {
        let x = if x.is_nan() { x } else { x.clamp(-self.end, self.end) };
        let at = |c: &[f64]| c.iter().fold(0.0, |sum, k| sum * (x * x) + k);
        x * at(&self.p) / at(self.q)
    }

    /// In f32 at least, as shorter floats can't say the coefficients.
    fn lower(&self, x: Scalar) -> Scalar {
        let given = x.dtype();
        let dtype = if given == DType::F64 { given } else { DType::F32 };
        let real = |v: f64| Scalar::float(v, dtype);
        let x = x.cast(dtype);
        // Comparisons with NaN don't hold, and NaN stays.
        let x = Scalar::select(Scalar::binary(BinOp::Gt, x.clone(), real(self.end)), real(self.end), x);
        let x = Scalar::select(Scalar::binary(BinOp::Lt, x.clone(), real(-self.end)), real(-self.end), x);
        let square = x.clone() * x.clone();
        let at = |c: &[f64]| c[1..].iter().fold(real(c[0]), |sum, &k| sum * square.clone() + real(k));
        (x * at(&self.p) / at(self.q)).cast(given)
    }
}

/// Unary operators.
pub(in crate::ops) const OPS: Family = &[
    floats!("log", "Natural logarithm of x.", f64::ln, Log, 30.0),
    floats!("log2", "Logarithm of x to base 2.", f64::log2, Log2, 30.0),
    floats!("log10", "Logarithm of x to base 10.", f64::log10, Log10, 31.0),
    floats!("exp", "e to the power x.", f64::exp, Exp, 17.0),
    floats!("fast_exp", "e to the power x; may be approximated (here it is not).", f64::exp, Exp, 17.0),
    floats!("erf", "The Gauss error function of x.", erf, Erf, 26.0),
    &Unary::floats(
        "fast_erf",
        "The Gauss error function of x as a quotient of polynomials of x within 4 of 0, at most 4e-7 off.",
        |x| FAST_ERF.of(x),
        |x| FAST_ERF.lower(x),
        12.0,
    ),
    floats!("sqrt", "Square root of x.", f64::sqrt, Sqrt, 4.0),
    floats!("rsqrt", "1 / sqrt(x).", |x| 1.0 / x.sqrt(), Rsqrt, 5.0),
    floats!("sigmoid", "1 / (1 + exp(-x)).", sigmoid, Sigmoid, 22.0),
    floats!("tanh", "Hyperbolic tangent of x.", f64::tanh, Tanh, 26.0),
    &Unary::floats(
        "fast_tanh",
        "Hyperbolic tangent of x as a quotient of polynomials of x within 9 of 0, at most 3e-7 off.",
        |x| FAST_TANH.of(x),
        |x| FAST_TANH.lower(x),
        11.0,
    ),
    floats!("sin", "Sine of x (radians).", f64::sin, Sin, 40.0),
    floats!("cos", "Cosine of x (radians).", f64::cos, Cos, 40.0),
    floats!("tan", "Tangent of x (radians).", f64::tan, Tan, 50.0),
    floats!("sinh", "Hyperbolic sine of x.", f64::sinh, Sinh, 20.0),
    floats!("cosh", "Hyperbolic cosine of x.", f64::cosh, Cosh, 20.0),
    floats!("asin", "Inverse sine of x, in radians.", f64::asin, Asin, 20.0),
    floats!("acos", "Inverse cosine of x, in radians.", f64::acos, Acos, 20.0),
    floats!("atan", "Inverse tangent of x, in radians.", f64::atan, Atan, 20.0),
    floats!("asinh", "Inverse hyperbolic sine of x.", asinh, Asinh, 20.0),
    floats!("acosh", "Inverse hyperbolic cosine of x.", acosh, Acosh, 20.0),
    floats!("atanh", "Inverse hyperbolic tangent of x.", f64::atanh, Atanh, 20.0),
    rounding!("floor", "x rounded down.", f64::floor, Floor),
    rounding!("ceil", "x rounded up.", f64::ceil, Ceil),
    rounding!("trunc", "x rounded towards zero.", f64::trunc, Trunc),
    rounding!("round", "x rounded to the nearest integer, halves away from zero.", f64::round, Round),
    rounding!(
        "round_even",
        "x rounded to the nearest integer, halves to the even one.",
        f64::round_ties_even,
        RoundEven
    ),
    test!("isnan", "Whether x is NaN.", |x| x.is_nan() as u8 as f64, IsNan, false),
    test!("isinf", "Whether x is an infinity.", |x| x.is_infinite() as u8 as f64, IsInf, false),
    test!("isfinite", "Whether x is neither NaN nor an infinity.", |x| x.is_finite() as u8 as f64, IsFinite, true),
    &Unary {
        name: "abs",
        doc: "Magnitude of x; the least signed integer stays itself.",
        takes: Takes::Numbers,
        to_bool: false,
        float: f64::abs,
        int: i128::abs,
        lower: |x| if x.dtype().is_unsigned_int() { x } else { Scalar::unary(UnOp::Abs, x) },
        flops: 1.0,
    },
    &Unary {
        name: "negative",
        doc: "-x.",
        takes: Takes::Numbers,
        to_bool: false,
        float: |x| -x,
        int: |x| -x,
        lower: |x| -x,
        flops: 1.0,
    },
    &Unary {
        name: "sign",
        doc: "1 where x > 0, -1 where x < 0, else 0.",
        takes: Takes::Numbers,
        to_bool: false,
        float: |x| (x > 0.0) as i8 as f64 - (x < 0.0) as i8 as f64,
        int: i128::signum,
        lower: |x| {
            let d = x.dtype();
            let k = |i| Scalar::int(i, d);
            let positive = Scalar::binary(BinOp::Gt, x.clone(), k(0));
            let rest = if d.is_unsigned_int() { k(0) } else { Scalar::select(x.lt(k(0)), k(-1), k(0)) };
            Scalar::select(positive, k(1), rest)
        },
        flops: 2.0,
    },
    &Unary {
        name: "nn.relu",
        doc: "max(x, 0).",
        takes: Takes::Numbers,
        to_bool: false,
        float: |x| if x > 0.0 { x } else { 0.0 },
        int: |x| x.max(0),
        lower: |x| {
            let d = x.dtype();
            x.max(Scalar::int(0, d))
        },
        flops: 1.0,
    },
    &Unary {
        name: "copy",
        doc: "x.",
        takes: Takes::Any,
        to_bool: false,
        float: |x| x,
        int: |x| x,
        lower: |x| x,
        flops: 0.0,
    },
    &Unary {
        name: "logical_not",
        doc: "Whether x does not hold.",
        takes: Takes::Bools,
        to_bool: false,
        float: no_float,
        int: |x| (x == 0) as i128,
        lower: |x| Scalar::unary(UnOp::Not, x),
        flops: 1.0,
    },
    &Unary {
        name: "bitwise_not",
        doc: "x with every bit inverted.",
        takes: Takes::Ints,
        to_bool: false,
        float: no_float,
        int: |x| !x,
        lower: |x| Scalar::unary(UnOp::Not, x),
        flops: 1.0,
    },
];

impl Op for Unary {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        &[]
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let t = tensor_arg(args, 0, "data")?;
        op_ensure!(self.takes.holds(t.dtype), "`data` is {t}, but the operator takes {} only", self.takes.words());
        let dtype = if self.to_bool { DType::Bool } else { t.dtype };
        Ok(TensorType { shape: t.shape.clone(), dtype }.into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let dtype = if self.to_bool { DType::Bool } else { x.dtype() };
        let out = if x.dtype().is_float() {
            let values = Floats::of(x);
            Tensor::from_f64_fn(dtype, x.shape(), |i| (self.float)(values.at(i)))
        } else {
            let values = Integers::of(x);
            Tensor::from_i64_fn(dtype, x.shape(), |i| (self.int)(values.at(i)) as i64)
        };
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        AxisMap(vec![(0..rank).map(AxisRole::Maps).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(self.flops, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let shape = b.shape(x).to_vec();
        Ok(b.map(&shape, |b, i| (self.lower)(b.read(x, i.iter().cloned()))).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |d| Sample { attrs: vec![], args: vec![Type::tensor(&[2, 3], d)] };
        self.takes.dtypes().into_iter().map(call).collect()
    }
}
