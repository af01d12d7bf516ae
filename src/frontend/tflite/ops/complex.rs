//! Complex numbers: a real and an imaginary part.

use super::super::{
    graph::{Import, Val},
    node::Node,
    schema::{Graph, Operator},
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};

/// A plain argument.
fn plain(im: &Import, op: &Operator, args: &[Option<Val>], i: usize) -> Convert {
    match args.get(i) {
        Some(Some(Val::One(e))) => Ok(*e),
        _ => Err(im.b.refuse(format!("{}: input {i} should be a tensor of plain numbers", op.name))),
    }
}

/// Both parts of a complex argument.
fn parts(im: &Import, op: &Operator, args: &[Option<Val>]) -> Convert<(ExprId, ExprId)> {
    match args.first() {
        Some(Some(Val::Complex(re, imaginary))) => Ok((*re, *imaginary)),
        _ => Err(im.b.refuse(format!("{}: input 0 should be complex", op.name))),
    }
}

/// REAL.
pub(in crate::frontend::tflite) fn real(
    im: &mut Import,
    _: &Graph,
    op: &Operator,
    args: &[Option<Val>],
) -> Convert<Vec<Val>> {
    Ok(vec![Val::One(parts(im, op, args)?.0)])
}

/// IMAG.
pub(in crate::frontend::tflite) fn imag(
    im: &mut Import,
    _: &Graph,
    op: &Operator,
    args: &[Option<Val>],
) -> Convert<Vec<Val>> {
    Ok(vec![Val::One(parts(im, op, args)?.1)])
}

/// COMPLEX.
pub(in crate::frontend::tflite) fn complex(
    im: &mut Import,
    _: &Graph,
    op: &Operator,
    args: &[Option<Val>],
) -> Convert<Vec<Val>> {
    Ok(vec![Val::Complex(plain(im, op, args, 0)?, plain(im, op, args, 1)?)])
}

/// COMPLEX_ABS.
pub(in crate::frontend::tflite) fn abs(
    im: &mut Import,
    _: &Graph,
    op: &Operator,
    args: &[Option<Val>],
) -> Convert<Vec<Val>> {
    let (re, imaginary) = parts(im, op, args)?;
    let (a, b) = (im.b.op("multiply", &[re, re], &[])?, im.b.op("multiply", &[imaginary, imaginary], &[])?);
    let sum = im.b.op("add", &[a, b], &[])?;
    Ok(vec![Val::One(im.b.op("sqrt", &[sum], &[])?)])
}

/// RFFT2D: over the last two axes, cut or lengthened to the size that is asked for; of the last, half and one are kept.
pub(in crate::frontend::tflite) fn rfft2d<'a>(
    im: &mut Import<'a>,
    g: &'a Graph<'a>,
    op: &'a Operator<'a>,
    args: &[Option<Val>],
) -> Convert<Vec<Val>> {
    let given = vec![Some(plain(im, op, args, 0)?), Some(plain(im, op, args, 1)?)];
    let mut n = Node::new(&mut im.b, g, op, given);
    let n = &mut n;
    let (mut x, size) = (n.x(0)?, n.ints(1)?);
    let rank = n.rank(x)?;
    let ([rows, columns], 2..) = (
        match size[..] {
            [r, c] if r > 0 && c > 0 && r <= 4096 && c <= 4096 => [r, c],
            _ => return n.refuse(format!("a size of {size:?} has no meaning")),
        },
        rank,
    ) else {
        return n.refuse("data should have two axes at least");
    };
    for (axis, size) in [(rank - 2, rows), (rank - 1, columns)] {
        let have = n.extent(x, axis)?;
        if have > size {
            x = n.slice(x, axis as i64, 0, size)?;
        } else if have < size {
            let zero = n.num(x, 0.0)?;
            let widths: Vec<i64> = (0..rank).flat_map(|a| [0, if a == axis { size - have } else { 0 }]).collect();
            x = n.op("nn.pad", &[x, zero], &[("pad_width", super::shape::pairs(&widths))])?;
        }
    }
    // Both transforms are products with matrices of cosines and sines.
    let kept = columns / 2 + 1;
    let matrix = |rows: i64, columns: i64, period: i64, f: fn(f64) -> f64| {
        Tensor::from_f64_fn(DType::F32, &[rows as usize, columns as usize], |i| {
            let (r, c) = (i as i64 / columns, i as i64 % columns);
            f(std::f64::consts::TAU * ((r * c) % period) as f64 / period as f64)
        })
    };
    // One extent before these axes may be unknown.
    let mut out: Vec<i64> = n.shape(x)?[..rank - 2].iter().map(|d| d.unwrap_or(-1)).collect();
    if out.iter().filter(|&&d| d < 0).count() > 1 {
        return n.refuse("more than one axis before the last two is of unknown extent");
    }
    out.extend([rows, kept]);
    let x = n.reshape(x, &[-1, columns])?;
    let cosines = n.b.weight("RFFT2D cosines", matrix(kept, columns, columns, f64::cos));
    let sines = n.b.weight("RFFT2D sines", matrix(kept, columns, columns, |a| -a.sin()));
    let (re, imaginary) = (n.bin("nn.dense", x, cosines)?, n.bin("nn.dense", x, sines)?);
    let along = |n: &mut Node, e: ExprId| -> Convert {
        let e = n.reshape(e, &[-1, rows, kept])?;
        let e = n.transpose(e, &[0, 2, 1])?;
        n.reshape(e, &[-1, rows])
    };
    let (re, imaginary) = (along(n, re)?, along(n, imaginary)?);
    let cosines = n.b.weight("RFFT2D cosines", matrix(rows, rows, rows, f64::cos));
    let sines = n.b.weight("RFFT2D sines", matrix(rows, rows, rows, |a| -a.sin()));
    let (a, b) = (n.bin("nn.dense", re, cosines)?, n.bin("nn.dense", imaginary, sines)?);
    let (c, d) = (n.bin("nn.dense", re, sines)?, n.bin("nn.dense", imaginary, cosines)?);
    let (re, imaginary) = (n.bin("subtract", a, b)?, n.bin("add", c, d)?);
    let back = |n: &mut Node, e: ExprId| -> Convert {
        let e = n.reshape(e, &[-1, kept, rows])?;
        let e = n.transpose(e, &[0, 2, 1])?;
        n.reshape(e, &out)
    };
    Ok(vec![Val::Complex(back(n, re)?, back(n, imaginary)?)])
}
