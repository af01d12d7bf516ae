//! Broadcasting binary operators without attributes.

use super::{Floats, Integers, Takes};
use crate::{
    ir::{Attrs, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar},
    ops::{
        AttrField, AxisMap, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{
            broadcast_axes, broadcast_extents, broadcast_read, broadcast_shapes, broadcast_sources, tensor_arg,
            work_per_element,
        },
    },
    tensor::{DType, Tensor, Value},
};

/// What integers a binary operator refuses on its right side: there TVM's result is undefined.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Refuses {
    Nothing,
    /// Zero.
    Zero,
    /// What is not within 0 and the type's width.
    Shifts,
}

/// A broadcasting binary operator without attributes.
#[derive(Debug)]
pub struct Binary {
    name: &'static str,
    doc: &'static str,
    takes: Takes,
    /// Whether the result is `bool` instead of the operands' type.
    to_bool: bool,
    /// The function on floats, computed in f64 and rounded to the operands' type.
    float: fn(f64, f64) -> f64,
    /// The function on integers and `bool`, wrapped to the operands' type.
    int: fn(i128, i128) -> i128,
    refuses: Refuses,
    /// The function as a loop expression.
    lower: fn(Scalar, Scalar) -> Scalar,
    /// Operations per element.
    flops: f64,
}

/// For an operator that does not take integers: `infer` has refused them.
fn no_int(_: i128, _: i128) -> i128 {
    unreachable!("type inference refuses integers here")
}

/// For an operator that does not take floats: `infer` has refused them.
fn no_float(_: f64, _: f64) -> f64 {
    unreachable!("type inference refuses floats here")
}

fn floor_div(a: i128, b: i128) -> i128 {
    let q = a / b;
    if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q }
}

/// A row of the table: an operation that loops have too.
macro_rules! row {
    ($name:literal, $doc:literal, $takes:ident, $float:expr, $int:expr, $refuses:ident, $op:ident) => {
        row!($name, $doc, $takes, $float, $int, $refuses, |a, b| Scalar::binary(BinOp::$op, a, b), 1.0)
    };
    ($name:literal, $doc:literal, $takes:ident, $float:expr, $int:expr, $refuses:ident, $lower:expr, $flops:literal) => {
        &Binary {
            name: $name,
            doc: $doc,
            takes: Takes::$takes,
            to_bool: false,
            float: $float,
            int: $int,
            refuses: Refuses::$refuses,
            lower: $lower,
            flops: $flops,
        }
    };
}

/// A row of the table: a comparison.
macro_rules! comparison {
    ($name:literal, $doc:literal, $symbol:tt, $op:ident) => {
        &Binary {
            name: $name,
            doc: $doc,
            takes: Takes::Any,
            to_bool: true,
            float: |a, b| (a $symbol b) as u8 as f64,
            int: |a, b| (a $symbol b) as i128,
            refuses: Refuses::Nothing,
            lower: |a, b| Scalar::binary(BinOp::$op, a, b),
            flops: 1.0,
        }
    };
}

fn is_float(a: &Scalar) -> bool {
    a.dtype().is_float()
}

/// Binary operators.
pub(in crate::ops) const OPS: Family = &[
    row!(
        "add",
        "lhs + rhs, broadcast; wraps, so that of bools it is whether they differ.",
        Any,
        |a, b| a + b,
        |a, b| a + b,
        Nothing,
        // As TVM's code does, which has bools as integers of one bit.
        |a, b| Scalar::binary(if a.dtype() == DType::Bool { BinOp::Xor } else { BinOp::Add }, a, b),
        1.0
    ),
    row!(
        "subtract",
        "lhs - rhs, broadcast; wraps, so that of bools it is whether they differ.",
        Any,
        |a, b| a - b,
        |a, b| a - b,
        Nothing,
        Sub
    ),
    row!(
        "multiply",
        "lhs * rhs, broadcast; wraps, so that of bools it is whether both hold.",
        Any,
        |a, b| a * b,
        i128::wrapping_mul,
        Nothing,
        Mul
    ),
    row!(
        "divide",
        "lhs / rhs, broadcast; integers truncate towards zero.",
        Numbers,
        |a, b| a / b,
        |a, b| a / b,
        Zero,
        |a, b| Scalar::binary(BinOp::Div, a, b),
        4.0
    ),
    row!(
        "floor_divide",
        "lhs / rhs rounded down, broadcast.",
        Numbers,
        |a, b| (a / b).floor(),
        floor_div,
        Zero,
        |a, b| Scalar::binary(BinOp::FloorDiv, a, b),
        5.0
    ),
    row!(
        "trunc_divide",
        "lhs / rhs rounded towards zero, broadcast.",
        Numbers,
        |a, b| (a / b).trunc(),
        |a, b| a / b,
        Zero,
        |a, b| {
            // In double width, so that a quotient just below an integer is not rounded up to it.
            let (d, float) = (a.dtype(), is_float(&a));
            let wide = if float { DType::F64 } else { d };
            let q = Scalar::binary(BinOp::Div, a.cast(wide), b.cast(wide));
            if float { Scalar::unary(crate::loops::UnOp::Trunc, q).cast(d) } else { q }
        },
        5.0
    ),
    row!(
        "mod",
        "Remainder of lhs / rhs with the sign of lhs, broadcast.",
        Numbers,
        |a, b| a % b,
        |a, b| a % b,
        Zero,
        |a, b| Scalar::binary(BinOp::Rem, a, b),
        6.0
    ),
    row!(
        "floor_mod",
        "lhs - rhs * floor(lhs / rhs), broadcast: the remainder with the sign of rhs.",
        Numbers,
        |a, b| a - (a / b).floor() * b,
        |a, b| a - floor_div(a, b) * b,
        Zero,
        |a, b| Scalar::binary(BinOp::FloorMod, a, b),
        6.0
    ),
    row!(
        "trunc_mod",
        "lhs - rhs * trunc(lhs / rhs), broadcast: the remainder with the sign of lhs.",
        Numbers,
        |a, b| a % b,
        |a, b| a % b,
        Zero,
        |a, b| Scalar::binary(BinOp::Rem, a, b),
        6.0
    ),
    row!(
        "power",
        "lhs to the power rhs, broadcast.",
        Floats,
        f64::powf,
        no_int,
        Nothing,
        |a, b| Scalar::binary(BinOp::Pow, a, b),
        20.0
    ),
    row!(
        "maximum",
        "The greater of lhs and rhs, broadcast; rhs where either is NaN.",
        Numbers,
        |a, b| if a > b { a } else { b },
        i128::max,
        Nothing,
        Max
    ),
    row!(
        "minimum",
        "The smaller of lhs and rhs, broadcast; rhs where either is NaN.",
        Numbers,
        |a, b| if a < b { a } else { b },
        i128::min,
        Nothing,
        Min
    ),
    row!("left_shift", "lhs * 2^rhs, broadcast; wraps.", Ints, no_float, |a, b| a << b, Shifts, Shl),
    row!("right_shift", "lhs / 2^rhs rounded down, broadcast.", Ints, no_float, |a, b| a >> b, Shifts, Shr),
    row!("logical_and", "Whether both hold, broadcast.", Bools, no_float, |a, b| a & b, Nothing, And),
    row!("logical_or", "Whether any holds, broadcast.", Bools, no_float, |a, b| a | b, Nothing, Or),
    row!("logical_xor", "Whether exactly one holds, broadcast.", Bools, no_float, |a, b| a ^ b, Nothing, Xor),
    row!("bitwise_and", "Bits that both have, broadcast.", Bits, no_float, |a, b| a & b, Nothing, And),
    row!("bitwise_or", "Bits that any has, broadcast.", Bits, no_float, |a, b| a | b, Nothing, Or),
    row!("bitwise_xor", "Bits that exactly one has, broadcast.", Bits, no_float, |a, b| a ^ b, Nothing, Xor),
    comparison!("equal", "lhs = rhs, broadcast.", ==, Eq),
    comparison!("not_equal", "lhs is not rhs, broadcast (true for NaN).", !=, Ne),
    comparison!("less", "lhs < rhs, broadcast.", <, Lt),
    comparison!("less_equal", "lhs <= rhs, broadcast.", <=, Le),
    comparison!("greater", "lhs > rhs, broadcast.", >, Gt),
    comparison!("greater_equal", "lhs >= rhs, broadcast.", >=, Ge),
];

/// Elements that one thread evaluates at a time: few tensors of programs under test have more.
const PART: usize = 1 << 14;

impl Op for Binary {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["lhs", "rhs"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        &[]
    }
    fn class(&self) -> Class {
        Class::Broadcast
    }
    fn infer(&self, _: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (a, b) = (tensor_arg(args, 0, "lhs")?, tensor_arg(args, 1, "rhs")?);
        op_ensure!(a.dtype == b.dtype, "`lhs` is {a} and `rhs` is {b}: their element types should be equal");
        op_ensure!(self.takes.holds(a.dtype), "`lhs` is {a}, but the operator takes {} only", self.takes.words());
        let dtype = if self.to_bool { DType::Bool } else { a.dtype };
        Ok(TensorType::of(broadcast_shapes(&a.shape, &b.shape)?, dtype).into())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (a, b) = (args[0].tensor(), args[1].tensor());
        let shape = broadcast_extents(&[a.shape(), b.shape()])?;
        let (ia, ib) = (broadcast_sources(a.shape(), &shape), broadcast_sources(b.shape(), &shape));
        let dtype = if self.to_bool { DType::Bool } else { a.dtype() };
        let out = if a.dtype().is_float() {
            let (x, y) = (Floats::of(a), Floats::of(b));
            match dtype.is_float() {
                true => Tensor::from_f64_rows(dtype, &shape, PART, |part, out| {
                    let mut right = vec![0.0; out.len()];
                    x.read(&ia, part * PART, out);
                    y.read(&ib, part * PART, &mut right);
                    out.iter_mut().zip(right).for_each(|(x, y)| *x = (self.float)(*x, y));
                }),
                false => Tensor::from_f64_fn(dtype, &shape, |i| (self.float)(x.at(ia.at(i)), y.at(ib.at(i)))),
            }
        } else {
            let (x, y) = (Integers::of(a), Integers::of(b));
            match self.refuses {
                Refuses::Nothing => {}
                Refuses::Zero => op_ensure!((0..b.len()).all(|i| y.at(i) != 0), "an integer would be divided by zero"),
                Refuses::Shifts => {
                    let bits = i128::from(a.dtype().bits());
                    let wrong = (0..b.len()).map(|i| y.at(i)).find(|v| *v < 0 || *v >= bits);
                    op_ensure!(wrong.is_none(), "{} would be shifted by {} bits", a.dtype(), wrong.unwrap_or(0));
                }
            }
            let bits = if a.dtype() == DType::Bool { 1 } else { -1 };
            Tensor::from_i64_fn(dtype, &shape, |i| (self.int)(x.at(ia.at(i)), y.at(ib.at(i))) as i64 & bits)
        };
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        broadcast_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(self.flops, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, y) = (args[0].tensor(), args[1].tensor());
        let (sx, sy) = (b.shape(x).to_vec(), b.shape(y).to_vec());
        let rank = sx.len().max(sy.len());
        let extent = |s: &[i64], axis: usize| if axis + s.len() < rank { 1 } else { s[axis + s.len() - rank] };
        let shape: Vec<i64> = (0..rank)
            .map(|k| match (extent(&sx, k), extent(&sy, k)) {
                (1, n) => n,
                (n, _) => n,
            })
            .collect();
        Ok(b.map(&shape, |b, i| (self.lower)(broadcast_read(b, x, i), broadcast_read(b, y, i))).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let shapes: [(&[i64], &[i64]); 4] =
            [(&[2, 3], &[2, 3]), (&[2, 3], &[3]), (&[2, 1, 3], &[4, 1]), (&[1, 3], &[])];
        let call = |d, a, b| Sample { attrs: vec![], args: vec![Type::tensor(a, d), Type::tensor(b, d)] };
        self.takes.dtypes().into_iter().flat_map(|d| shapes.map(|(a, b)| call(d, a, b))).collect()
    }
}
