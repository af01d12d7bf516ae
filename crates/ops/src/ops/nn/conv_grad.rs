//! Gradients of convolutions with respect to their weights.

use super::{
    conv::CONV2D,
    geometry::{Window, check_shape, layout_of, offsets, paddings, per_axis, shape_of, whole},
    numbers::{Num, in_arithmetic, sum_products},
    place::{Pad, Place, extent, indices, pad, place_in},
};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrField, AxisMap, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, lowered_shapes, may_equal, opaque_axes, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Layout, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Conv2dBackwardWeight];

/// `nn.conv2d_backward_weight`.
#[derive(Debug)]
struct Conv2dBackwardWeight;

/// The attributes, read and checked. The record is that of `nn.conv2d`, with layouts of other arguments.
struct Record {
    grad: Layout,
    data: Layout,
    weight: Layout,
    groups: i64,
    /// The windows along H and W.
    windows: Vec<Window>,
}

impl Record {
    fn new(attrs: &Attrs) -> Result<Record, OpError> {
        let out = match attrs.str("out_layout") {
            "" => "OIHW",
            given => given,
        };
        let Some(size) = attrs.opt_ints("kernel_size").filter(|s| s.len() == 2 && s.iter().all(|&n| n > 0)) else {
            return Err(OpError("C1: `kernel_size` should be given as two positive numbers".into()));
        };
        let (strides, dilation) = (per_axis(attrs, "strides", 2)?, per_axis(attrs, "dilation", 2)?);
        let padding = paddings(attrs, 2)?;
        op_ensure!(
            padding.iter().all(|p| p.0 >= 0 && p.1 >= 0),
            "C6: `padding` is {padding:?}, but should not be negative"
        );
        let groups = attrs.int("groups");
        op_ensure!(groups > 0, "C4: `groups` is {groups}, but should be positive");
        let window = |k: usize| Window {
            kernel: size[k],
            stride: strides[k],
            dilation: dilation[k],
            before: padding[k].0,
            after: padding[k].1,
        };
        Ok(Record {
            grad: layout_of(attrs.str("data_layout"), "data_layout", "NCHW", "C")?,
            // The default of the shared record is a weight's layout, which no data has.
            data: match attrs.str("kernel_layout") {
                "OIHW" => layout_of("NCHW", "kernel_layout", "NCHW", "C")?,
                given => layout_of(given, "kernel_layout", "NCHW", "C")?,
            },
            weight: layout_of(out, "out_layout", "OIHW", "OI")?,
            groups,
            windows: vec![window(0), window(1)],
        })
    }
}

fn backward<T: Num>(r: &Record, grad: &Tensor, x: &Tensor, shape: &[usize], dtype: DType) -> Tensor {
    let tables = |layout: &Layout, shape: &[usize], letters: &str| -> Vec<Vec<usize>> {
        letters.chars().map(|l| offsets(layout, shape, l)).collect()
    };
    let (g, d) = (tables(&r.grad, grad.shape(), "NCHW"), tables(&r.data, x.shape(), "NCHW"));
    let w = tables(&r.weight, shape, "OIHW");
    let (gs, xs) = (T::read(grad), T::read(x));
    let mut out = vec![T::default(); shape.iter().product()];
    let outs_per_group = w[0].len() / r.groups as usize;
    let at = |k: usize, y: usize, tap: usize| -> Option<usize> {
        let v = &r.windows[k];
        let place = y as i64 * v.stride + tap as i64 * v.dilation - v.before;
        (0..d[k + 2].len() as i64).contains(&place).then_some(place as usize)
    };
    for o in 0..w[0].len() {
        for i in 0..w[1].len() {
            let channel = o / outs_per_group * w[1].len() + i;
            for (ky, kx) in (0..w[2].len()).flat_map(|ky| (0..w[3].len()).map(move |kx| (ky, kx))) {
                let mut sum = T::default();
                for n in 0..g[0].len() {
                    for (y, iy) in (0..g[2].len()).filter_map(|y| Some((y, at(0, y, ky)?))) {
                        for (x, ix) in (0..g[3].len()).filter_map(|x| Some((x, at(1, x, kx)?))) {
                            let grad = gs[g[0][n] + g[1][o] + g[2][y] + g[3][x]];
                            sum += grad * xs[d[0][n] + d[1][channel] + d[2][iy] + d[3][ix]];
                        }
                    }
                }
                out[w[0][o] + w[1][i] + w[2][ky] + w[3][kx]] = sum;
            }
        }
    }
    T::write(dtype, shape, &out)
}

impl Op for Conv2dBackwardWeight {
    fn name(&self) -> &'static str {
        "nn.conv2d_backward_weight"
    }
    fn doc(&self) -> &'static str {
        "The gradient of conv2d with respect to its weight:
        out[o, i, k..] = sum over n, y.. of grad[n, o, y..] * data[n, g + i, y * strides + k * dilation - padding ..],
        where g is the first channel of o's group, and data outside its extents is 0. data_layout is that of grad,
        kernel_layout that of data, and out_layout that of the result. C1: kernel_size is given. C2: ranks and blocks are
        those of the layouts. C3: both have one batch. C4: groups divides the channels of both. C5: the windows of grad fit
        the padded data. C6: no padding is negative."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["grad", "data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        CONV2D.attrs()
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (grad, x) = (tensor_arg(args, 0, "grad")?, tensor_arg(args, 1, "data")?);
        let r = Record::new(attrs)?;
        check_shape(&r.grad, &grad.shape, "grad")?;
        check_shape(&r.data, &x.shape, "data")?;
        let of = |letter| (whole(&r.grad, &grad.shape, letter), whole(&r.data, &x.shape, letter));
        op_ensure!(may_equal(of('N').0, of('N').1), "C3: `grad` is {grad} and `data` {x}");
        let (outs, ins) = of('C');
        let divides = |d: Dim| d.known().is_none_or(|n| n % r.groups == 0);
        op_ensure!(
            divides(outs) && divides(ins),
            "C4: `grad` has {outs} and `data` {ins} channels, in {} groups",
            r.groups
        );
        for (letter, w) in "HW".chars().zip(&r.windows) {
            if let (Dim::Known(y), Dim::Known(n)) = of(letter) {
                op_ensure!(
                    w.needs(y) <= n.saturating_add(w.before).saturating_add(w.after),
                    "C5: {y} windows of {} along {letter} do not fit an extent of {n}",
                    w.kernel
                );
            }
        }
        let per_group = ins.known().map_or(ins, |n| Dim::Known(n / r.groups));
        let shape = shape_of(&r.weight, "out_layout", |letter| match letter {
            'O' => outs,
            'I' => per_group,
            'H' => Dim::Known(r.windows[0].kernel),
            _ => Dim::Known(r.windows[1].kernel),
        })?;
        Ok(TensorType::of(shape, attrs.opt_dtype("out_dtype").unwrap_or(grad.dtype)).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (grad, x) = (args[0].tensor(), args[1].tensor());
        let (r, shape) = (Record::new(attrs)?, value_shapes(self, attrs, args)?.remove(0));
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(grad.dtype());
        Ok(in_arithmetic!(dtype, backward(&r, grad, x, &shape, dtype)).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let places = Record::new(attrs).ok().and_then(|r| {
            let shape = &args[0].as_tensor()?.shape;
            Some("NHW".chars().map(|l| whole(&r.grad, shape, l).known().unwrap_or(1) as f64).product::<f64>())
        });
        Work {
            flops: 2.0 * elements(out) * places.unwrap_or(1.0),
            bytes_read: args.iter().map(bytes).sum(),
            bytes_written: bytes(out),
        }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (grad, x) = (args[0].tensor(), args[1].tensor());
        let (r, shape) = (Record::new(attrs)?, lowered_shapes(self, attrs, args, b)?.remove(0));
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(grad));
        let gs = b.shape(grad).to_vec();
        let over: Vec<i64> = "NHW".chars().map(|l| extent(&r.grad, &gs, l)).collect();
        let pads: Vec<Pad> = "HW"
            .chars()
            .zip(r.windows.iter().zip(&over[1..]))
            .map(|(l, (w, &n))| Pad::of(r.data.position(l).expect("the layout's letters were checked"), w, n))
            .collect();
        let x = pad(x, &pads, Scalar::int(0, b.dtype(x)), b);
        let (outs, per_group) = (extent(&r.weight, &shape, 'O'), extent(&r.weight, &shape, 'I'));
        let out = sum_products(b, &shape, &over, dtype, |b, i, s| {
            let (o, c) = (place_in(&r.weight, 'O', i), place_in(&r.weight, 'I', i));
            let channel = match r.groups {
                1 => c,
                _ => Place::flat(o.index().floor_div(outs / r.groups) * per_group + c.index()),
            };
            let tap = |k: usize, letter| {
                let w = &r.windows[k];
                s[k + 1].clone() * w.stride + place_in(&r.weight, letter, i).index() * w.dilation
            };
            let g = indices(&r.grad, |letter| match letter {
                'N' => Place::flat(s[0].clone()),
                'C' => o.clone(),
                'H' => Place::flat(s[1].clone()),
                _ => Place::flat(s[2].clone()),
            });
            let d = indices(&r.data, |letter| match letter {
                'N' => Place::flat(s[0].clone()),
                'C' => channel.clone(),
                'H' => Place::flat(tap(0, 'H')),
                _ => Place::flat(tap(1, 'W')),
            });
            (b.read(grad, g), b.read(x, d))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |more: Vec<(&'static str, crate::ir::AttrValue)>, layouts: [&str; 3], grad: &[i64], x: &[i64], d| {
            let [g, l, o] = layouts;
            let base = vec![
                ("kernel_size", [3, 2].into()),
                ("data_layout", g.into()),
                ("kernel_layout", l.into()),
                ("out_layout", o.into()),
            ];
            Sample { attrs: base.into_iter().chain(more).collect(), args: vec![t(grad, d), t(x, d)] }
        };
        let plain = ["NCHW", "NCHW", "OIHW"];
        vec![
            call(vec![], plain, &[2, 4, 3, 4], &[2, 3, 5, 5], DType::F32),
            call(
                vec![("strides", [2, 1].into()), ("padding", [1, 0, 1, 1].into()), ("dilation", [1, 2].into())],
                plain,
                &[1, 2, 3, 4],
                &[1, 3, 5, 5],
                DType::F32,
            ),
            call(vec![("groups", 2.into())], plain, &[2, 4, 3, 4], &[2, 6, 5, 5], DType::F32),
            call(
                vec![("groups", 4.into()), ("channels", 4.into())],
                ["NHWC", "NHWC", "OHWI"],
                &[2, 3, 4, 4],
                &[2, 5, 5, 4],
                DType::F32,
            ),
            call(vec![("out_dtype", DType::I32.into())], plain, &[1, 2, 3, 4], &[1, 3, 5, 5], DType::I8),
        ]
    }
}
