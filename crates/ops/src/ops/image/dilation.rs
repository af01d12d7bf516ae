//! Grey-scale dilation.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work,
        nn::{
            geometry::{Window, check_shape, layout_of, paddings, per_axis, shape_of, whole},
            place::{Pad, pad},
        },
        op_ensure,
        util::{bytes, elements, field, lowered_shapes, may_equal, op_head, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Layout, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Dilation];

/// `image.dilation2d`.
#[derive(Debug)]
struct Dilation;

/// The attributes, read and checked.
struct Plan {
    data: Layout,
    kernel: Layout,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    padding: Vec<(i64, i64)>,
}

const SPATIAL: &str = "HW";

impl Plan {
    fn new(attrs: &Attrs) -> Result<Plan, OpError> {
        let padding = paddings(attrs, 2)?;
        op_ensure!(
            padding.iter().all(|p| p.0 >= 0 && p.1 >= 0),
            "C3: `padding` is {padding:?}, but should not be negative"
        );
        Ok(Plan {
            data: layout_of(attrs.str("data_layout"), "data_layout", "NCHW", "")?,
            kernel: layout_of(attrs.str("kernel_layout"), "kernel_layout", "IHW", "")?,
            strides: per_axis(attrs, "strides", 2)?,
            dilations: per_axis(attrs, "dilations", 2)?,
            padding,
        })
    }

    fn window(&self, k: usize, kernel: i64) -> Window {
        let (before, after) = self.padding[k];
        Window { kernel, stride: self.strides[k], dilation: self.dilations[k], before, after }
    }

    /// The axes of batch (of data only), channels, height and width.
    fn places(&self) -> [[usize; 4]; 2] {
        let at = |l: &Layout, letter: char| l.position(letter).expect("the layout's letters were checked");
        let (d, k) = (&self.data, &self.kernel);
        [[at(d, 'N'), at(d, 'C'), at(d, 'H'), at(d, 'W')], [0, at(k, 'I'), at(k, 'H'), at(k, 'W')]]
    }
}

impl Op for Dilation {
    op_head!(
        "image.dilation2d",
        "out[n, c, i, j] = the greatest over u, v of data[n, c, i * strides + u * dilations - padding ..] + weight[c, u, v],
        where data outside of its extents is 0; both as out_dtype (data's type, where none is given).
        C1: data_layout names N, C, H and W, kernel_layout I, H and W, and data and weight have their ranks. C2: both have as
        many channels. C3: strides and dilations are positive, padding is not negative. C4: the window fits the padded data.",
        ["data", "weight"],
        [
            field("strides", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
            field("padding", AttrKind::Ints, AttrDefault::Ints(&[0, 0])),
            field("dilations", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
            field("data_layout", AttrKind::Str, AttrDefault::Str("NCHW")),
            field("kernel_layout", AttrKind::Str, AttrDefault::Str("IHW")),
            field("out_dtype", AttrKind::DType, AttrDefault::None),
        ],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, w, plan) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "weight")?, Plan::new(attrs)?);
        check_shape(&plan.data, &x.shape, "data").map_err(|e| OpError(format!("C1: {e}")))?;
        check_shape(&plan.kernel, &w.shape, "weight").map_err(|e| OpError(format!("C1: {e}")))?;
        op_ensure!(x.dtype != DType::Bool && w.dtype != DType::Bool, "`data` is {x} and `weight` {w}: not numbers");
        let (channels, own) = (whole(&plan.data, &x.shape, 'C'), whole(&plan.kernel, &w.shape, 'I'));
        op_ensure!(
            may_equal(channels, own),
            "C2: `data` is {x}, of {channels} channels, but `weight` is {w}, of {own}"
        );
        let mut outputs = Vec::new();
        for (k, letter) in SPATIAL.chars().enumerate() {
            outputs.push(match (whole(&plan.data, &x.shape, letter), whole(&plan.kernel, &w.shape, letter)) {
                (Dim::Known(n), Dim::Known(kernel)) => {
                    let out = plan.window(k, kernel).outputs(n);
                    op_ensure!(
                        out > 0,
                        "C4: `data` is {x}: a window of {kernel} does not fit its {letter} axis of {n}"
                    );
                    Dim::Known(out)
                }
                _ => Dim::Any,
            });
        }
        let shape = shape_of(&plan.data, "data_layout", |letter| match SPATIAL.find(letter) {
            Some(k) => outputs[k],
            None if letter == 'C' => own,
            None => whole(&plan.data, &x.shape, letter),
        })?;
        Ok(TensorType::of(shape, attrs.opt_dtype("out_dtype").unwrap_or(x.dtype)).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, w, plan) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs)?);
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype());
        // Converted first: integers may wrap.
        let cast = |t: &Tensor| match t.dtype().is_float() {
            true => Tensor::from_f64_fn(dtype, t.shape(), |i| t.get_f64(i)),
            false => Tensor::from_i64_fn(dtype, t.shape(), |i| t.get_i64(i)),
        };
        let (x, w, [d, k]) = (cast(x), cast(w), plan.places());
        let (xs, ws, os) = (row_major_strides(x.shape()), row_major_strides(w.shape()), row_major_strides(&shape));
        let mut out = Tensor::zeros(dtype, &shape);
        for flat in 0..out.len() {
            let i = |axis: usize| flat / os[axis] % shape[axis];
            let mut best: Option<usize> = None;
            let mut sums = Tensor::zeros(dtype, &[w.shape()[k[2]] * w.shape()[k[3]]]);
            for tap in 0..sums.len() {
                let at = [tap / w.shape()[k[3]], tap % w.shape()[k[3]]];
                let here = [0, 1].map(|s| {
                    (i(d[2 + s]) as i64) * plan.strides[s] + at[s] as i64 * plan.dilations[s] - plan.padding[s].0
                });
                let inside = (0..2).all(|s| 0 <= here[s] && here[s] < x.shape()[d[2 + s]] as i64);
                let from = inside.then(|| {
                    let spatial: usize = (0..2).map(|s| here[s] as usize * xs[d[2 + s]]).sum();
                    i(d[0]) * xs[d[0]] + i(d[1]) * xs[d[1]] + spatial
                });
                let weight = i(d[1]) * ws[k[1]] + at[0] * ws[k[2]] + at[1] * ws[k[3]];
                if dtype.is_float() {
                    sums.set_f64(tap, from.map_or(0.0, |f| x.get_f64(f)) + w.get_f64(weight));
                    // NaN are left out, as in the lowered form.
                    if sums.get_f64(tap).is_nan() {
                        sums.set_f64(tap, f64::NEG_INFINITY);
                    }
                    best = best.filter(|&b| sums.get_f64(b) >= sums.get_f64(tap)).or(Some(tap));
                } else {
                    sums.set_i64(tap, from.map_or(0, |f| x.get_i64(f)).wrapping_add(w.get_i64(weight)));
                    let wide = |i: usize| match dtype {
                        DType::U64 => sums.get_i64(i) as u64 as i128,
                        _ => sums.get_i64(i) as i128,
                    };
                    best = best.filter(|&b| wide(b) >= wide(tap)).or(Some(tap));
                }
            }
            let Some(best) = best else { continue };
            match dtype.is_float() {
                true => out.set_f64(flat, sums.get_f64(best)),
                false => out.set_i64(flat, sums.get_i64(best)),
            }
        }
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank));
        let Ok(plan) = Plan::new(attrs) else { return AxisMap::opaque(ranks) };
        let to = |letter: char| plan.data.position(letter).unwrap_or(0);
        let data = plan.data.axes().iter().map(|a| match SPATIAL.contains(a.primal) {
            true => AxisRole::Windows(to(a.primal)),
            false => AxisRole::Maps(to(a.primal)),
        });
        let weight = plan.kernel.axes().iter().map(|a| match a.primal {
            'I' => AxisRole::Maps(to('C')),
            _ => AxisRole::Reduced,
        });
        AxisMap(vec![data.collect(), weight.collect()])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let taps = match (Plan::new(attrs), args[1].as_tensor()) {
            (Ok(plan), Some(w)) if w.rank() == 3 => {
                let [_, [_, _, h, v]] = plan.places();
                [h, v].iter().map(|&k| w.shape[k].known().unwrap_or(1) as f64).product()
            }
            _ => 1.0,
        };
        let bytes_read = args.iter().map(bytes).sum();
        Work { flops: 2.0 * taps * elements(out), bytes_read, bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, w, plan) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs)?);
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(x));
        let [d, k] = plan.places();
        let over = [b.shape(w)[k[2]], b.shape(w)[k[3]]];
        let pads = [0, 1].map(|s| Pad::of(d[2 + s], &plan.window(s, over[s]), shape[d[2 + s]]));
        let zero = Scalar::int(0, b.dtype(x));
        let padded = pad(x, &pads, zero, b);
        let out = b.reduce(&shape, &over, Combine::Max, |b, i, r| {
            let mut from = i.to_vec();
            for s in 0..2 {
                from[d[2 + s]] = i[d[2 + s]].clone() * plan.strides[s] + r[s].clone() * plan.dilations[s];
            }
            let mut weight = vec![i[d[1]].clone(); 3];
            weight[k[2]] = r[0].clone();
            weight[k[3]] = r[1].clone();
            b.read(padded, from).cast(dtype) + b.read(w, weight).cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |layouts: [&str; 2], shapes: [&[i64]; 2], d| Sample {
            attrs: vec![("data_layout", layouts[0].into()), ("kernel_layout", layouts[1].into())],
            args: shapes.map(|s| t(s, d)).into(),
        };
        let plain = || call(["NCHW", "IHW"], [&[2, 3, 5, 6], &[3, 2, 3]], DType::F32);
        let with = |mut s: Sample, more: Vec<(&'static str, crate::ir::AttrValue)>| {
            s.attrs.extend(more);
            s
        };
        let uneven = [("padding", [1, 0, 2, 1].into()), ("strides", [2, 1].into()), ("dilations", [1, 2].into())];
        vec![
            plain(),
            with(plain(), uneven.into()),
            with(call(["NHWC", "HWI"], [&[1, 4, 4, 2], &[3, 3, 2]], DType::F32), vec![("padding", [1, 1].into())]),
            with(call(["NCHW", "IHW"], [&[1, 2, 4, 4], &[2, 2, 2]], DType::I8), vec![("out_dtype", DType::I32.into())]),
        ]
    }
}
