//! Convolution whose taps are displaced by data.

use super::{
    conv::{infer_shape, weight_type},
    conv_attrs::ConvAttrs,
    geometry::{check_shape, offsets, shape_of, whole},
    place::{Place, indices, place_in},
};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar},
    ops::{
        AttrDefault, AttrKind, AxisMap, AxisRole, Family, Op, OpError, Sample, Work,
        bilinear::{mixed, mixed_scalar},
        op_ensure,
        real::{Real, arithmetic, in_real},
        util::{bytes, elements, field, lowered_shapes, may_equal, op_head, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&DeformableConv];

/// `nn.deformable_conv2d`.
#[derive(Debug)]
struct DeformableConv;

/// The attributes, read.
struct Plan {
    conv: ConvAttrs,
    /// Groups of input channels that share their displacements.
    displaced: i64,
}

impl Plan {
    fn new(attrs: &Attrs) -> Result<Plan, OpError> {
        let displaced = attrs.int("deformable_groups");
        op_ensure!(displaced > 0, "C2: `deformable_groups` is {displaced}, but should be positive");
        Ok(Plan { conv: ConvAttrs::new(attrs, "HW")?, displaced })
    }

    /// Where the taps of output (i, j) lie without displacement: the first, and from one to the next.
    fn tap(&self, k: usize) -> (i64, i64, i64) {
        (self.conv.strides[k], self.conv.dilation[k], self.conv.padding[k].0)
    }
}

fn convolve<T: Real>(plan: &Plan, [x, offset, w]: [&Tensor; 3], shape: &[usize], dtype: DType) -> Tensor {
    let c = &plan.conv;
    let [xn, xc, xh, xw] = ['N', 'C', 'H', 'W'].map(|l| offsets(&c.data, x.shape(), l));
    let [on, oc, oh, ow] = ['N', 'C', 'H', 'W'].map(|l| offsets(&c.data, offset.shape(), l));
    let [wo, wi, wh, ww] = ['O', 'I', 'H', 'W'].map(|l| offsets(&c.kernel, w.shape(), l));
    let [to_n, to_c, to_h, to_w] = ['N', 'C', 'H', 'W'].map(|l| offsets(&c.out, shape, l));
    let (per_group, shared) = (xc.len() / c.groups as usize, xc.len() / plan.displaced as usize);
    let (outputs, taps) = (to_c.len() / c.groups as usize, wh.len() * ww.len());
    let mut out = Tensor::zeros(dtype, shape);
    for n in 0..to_n.len() {
        for (i, j) in (0..to_h.len()).flat_map(|i| (0..to_w.len()).map(move |j| (i, j))) {
            // What every channel and tap sees here.
            let mut seen = vec![0.0; xc.len() * taps];
            for (at, seen) in seen.iter_mut().enumerate() {
                let (channel, tap) = (at / taps, at % taps);
                let moved = |axis: usize| {
                    let place = on[n] + oh[i] + ow[j] + oc[channel / shared * 2 * taps + 2 * tap + axis];
                    let (stride, dilation, before) = plan.tap(axis);
                    let (out, tap) = [(i, tap / ww.len()), (j, tap % ww.len())][axis];
                    let here = out as i64 * stride + tap as i64 * dilation - before;
                    T::of(here as f64) + T::of(offset.get_f64(place))
                };
                let (place, extents) = ([moved(0), moved(1)], [xh.len(), xw.len()]);
                let outside = (0..2).any(|k| place[k] < T::of(0.0) || place[k] >= T::of(extents[k] as f64));
                let read = |at: &[usize]| T::of(x.get_f64(xn[n] + xc[channel] + xh[at[0]] + xw[at[1]]));
                *seen = if outside { 0.0 } else { mixed(&place, &extents, read).wide() };
            }
            for (f, to_f) in to_c.iter().enumerate() {
                let first = f / outputs * per_group;
                let mut sum = 0.0;
                for (c, tap) in (0..per_group).flat_map(|c| (0..taps).map(move |tap| (c, tap))) {
                    let weight = wo[f] + wi[c] + wh[tap / ww.len()] + ww[tap % ww.len()];
                    sum += seen[(first + c) * taps + tap] * w.get_f64(weight);
                }
                out.set_f64(to_n[n] + to_f + to_h[i] + to_w[j], sum);
            }
        }
    }
    out
}

impl Op for DeformableConv {
    op_head!(
        "nn.deformable_conv2d",
        "As nn.conv2d, but tap (u, v) of output (i, j) reads data at the bilinear mixture around
        (i * strides + u * dilation - padding + dy, j * .. + dx), where dy and dx are channels 2 * (u * kernel width + v) and the
        next of offset at (i, j), each deformable group of input channels having such channels of its own; 0 outside of data.
        C1: those of nn.conv2d for data and weight, which with offset have floats; the weight has no axis of groups. C2:
        deformable_groups divides the input channels. C3: offset, in data's layout, has data's batch, 2 * deformable_groups *
        taps channels, and the spatial extents of the result.",
        ["data", "offset", "weight"],
        [
            field("strides", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
            field("padding", AttrKind::Ints, AttrDefault::Ints(&[0, 0])),
            field("dilation", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
            field("deformable_groups", AttrKind::Int, AttrDefault::Int(1)),
            field("groups", AttrKind::Int, AttrDefault::Int(1)),
            field("channels", AttrKind::Int, AttrDefault::None),
            field("kernel_size", AttrKind::Ints, AttrDefault::None),
            field("data_layout", AttrKind::Str, AttrDefault::Str("NCHW")),
            field("kernel_layout", AttrKind::Str, AttrDefault::Str("OIHW")),
            field("out_layout", AttrKind::Str, AttrDefault::Str("")),
            field("out_dtype", AttrKind::DType, AttrDefault::None),
        ],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, offset, w) =
            (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "offset")?, tensor_arg(args, 2, "weight")?);
        let plan = Plan::new(attrs)?;
        let c = &plan.conv;
        let floats = [x, offset, w].iter().all(|t| t.dtype.is_float());
        op_ensure!(
            floats && c.kernel.position('G').is_none(),
            "C1: `data` is {x}, `offset` {offset} and `weight` {w} ({}), but should have floats, and no axis of groups",
            c.kernel
        );
        let shape = infer_shape(c, attrs, x, w)?;
        let channels = whole(&c.data, &x.shape, 'C');
        op_ensure!(
            channels.known().is_none_or(|n| n % plan.displaced == 0),
            "C2: `data` is {x}: its {channels} channels do not divide into {} deformable groups",
            plan.displaced
        );
        let out = |letter| whole(&c.out, &shape, letter);
        let own = |letter| {
            if offset.rank() == c.data.rank() { whole(&c.data, &offset.shape, letter) } else { Dim::Known(-1) }
        };
        let taps = whole(&c.kernel, &w.shape, 'H').known().zip(whole(&c.kernel, &w.shape, 'W').known());
        let wanted = taps.map_or(Dim::Any, |(h, w)| Dim::Known(2 * h * w * plan.displaced));
        let fits = may_equal(own('C'), wanted) && ['N', 'H', 'W'].iter().all(|&l| may_equal(own(l), out(l)));
        op_ensure!(
            fits,
            "C3: `offset` is {offset} ({}), but should have a batch of {}, {wanted} channels, and extents ({}, {})",
            c.data,
            out('N'),
            out('H'),
            out('W')
        );
        Ok(TensorType::of(shape, attrs.opt_dtype("out_dtype").unwrap_or(x.dtype)).into())
    }
    fn complete(&self, attrs: &Attrs, args: &[Type]) -> Vec<(usize, Type)> {
        let (Ok(plan), Some(x)) = (Plan::new(attrs), args[0].as_tensor()) else { return Vec::new() };
        let c = &plan.conv;
        if check_shape(&c.data, &x.shape, "data").is_err() {
            return Vec::new();
        }
        let mut found: Vec<(usize, Type)> = weight_type(attrs, "HW", args).map(|w| (2, w)).into_iter().collect();
        let size = attrs.opt_ints("kernel_size").filter(|s| s.len() == 2).map(|s| [Dim::Known(s[0]), Dim::Known(s[1])]);
        let own = args[2].as_tensor().filter(|w| check_shape(&c.kernel, &w.shape, "weight").is_ok());
        let Some(size) = size.or_else(|| own.map(|w| ['H', 'W'].map(|l| whole(&c.kernel, &w.shape, l)))) else {
            return found;
        };
        let outputs = [0, 1].map(|k| match (whole(&c.data, &x.shape, ['H', 'W'][k]), size[k]) {
            (Dim::Known(n), Dim::Known(kernel)) => Dim::Known(c.window(k, kernel).outputs(n)),
            _ => Dim::Any,
        });
        let taps = size[0].known().zip(size[1].known()).map(|(h, w)| 2 * h * w * plan.displaced);
        let shape = shape_of(&c.data, "data_layout", |letter| match letter {
            'N' => whole(&c.data, &x.shape, 'N'),
            'C' => taps.map_or(Dim::Any, Dim::Known),
            'H' => outputs[0],
            _ => outputs[1],
        });
        found.extend(shape.ok().map(|s| (1, TensorType::of(s, x.dtype).into())));
        found
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let tensors = [0, 1, 2].map(|k| args[k].tensor());
        let plan = Plan::new(attrs)?;
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(tensors[0].dtype());
        Ok(in_real!(&[tensors[0].dtype(), tensors[1].dtype()], convolve(&plan, tensors, &shape, dtype)).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank));
        let Ok(Plan { conv: c, .. }) = Plan::new(attrs) else { return AxisMap::opaque(ranks) };
        let to = |letter: char| match c.out.block(letter) {
            None => c.out.position(letter).map_or(AxisRole::Opaque, AxisRole::Maps),
            Some(_) => AxisRole::Opaque,
        };
        let data = c.data.axes().iter().map(|a| match a.primal {
            'N' => to('N'),
            'C' if c.groups == 1 => AxisRole::Reduced,
            _ => AxisRole::Opaque,
        });
        // Where an output lies decides what it sees, so spatial axes map to nothing.
        let offset = c.data.axes().iter().map(|a| if a.primal == 'N' { to('N') } else { AxisRole::Opaque });
        let weight = c.kernel.axes().iter().map(|a| match (a.primal, a.block) {
            ('O', None) if c.groups == 1 && c.kernel.block('O').is_none() => to('C'),
            ('O', _) => AxisRole::Opaque,
            _ => AxisRole::Reduced,
        });
        AxisMap(vec![data.collect(), offset.collect(), weight.collect()])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let per_output = match (Plan::new(attrs), args[2].as_tensor()) {
            (Ok(plan), Some(w)) if w.rank() == plan.conv.kernel.rank() => ['I', 'H', 'W']
                .iter()
                .map(|&l| whole(&plan.conv.kernel, &w.shape, l).known().unwrap_or(1) as f64)
                .product(),
            _ => 1.0,
        };
        let bytes_read = args.iter().map(bytes).sum();
        Work { flops: 2.0 * per_output * elements(out), bytes_read, bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, offset, w] = [0, 1, 2].map(|k| args[k].tensor());
        let plan = Plan::new(attrs)?;
        let c = &plan.conv;
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(x));
        let real = arithmetic(&[b.dtype(x), b.dtype(offset)]);
        let extent = |layout, shape: &[i64], letter| super::place::extent(layout, shape, letter);
        let [n, channels, h, width] = ['N', 'C', 'H', 'W'].map(|l| extent(&c.data, b.shape(x), l));
        let [kh, kw] = ['H', 'W'].map(|l| extent(&c.kernel, b.shape(w), l));
        let [rows, columns, outputs] = ['H', 'W', 'C'].map(|l| extent(&c.out, &shape, l));
        let (per_group, shared) = (channels / c.groups, (channels / plan.displaced).max(1));
        // What every channel and tap sees, in the same way for all outputs.
        let seen = b.map(&[n, channels, kh, kw, rows, columns], |b, i| {
            let place = [0, 1].map(|k| {
                let number = (i[2].clone() * kw + i[3].clone()) * 2 + k as i64;
                let channel = i[1].clone().floor_div(shared) * (2 * kh * kw) + number;
                let from = indices(&c.data, |letter| {
                    Place::flat(match letter {
                        'N' => i[0].clone(),
                        'C' => channel.clone(),
                        'H' => i[4].clone(),
                        _ => i[5].clone(),
                    })
                });
                let (stride, dilation, before) = plan.tap(k);
                let here = i[4 + k].clone() * stride + i[2 + k].clone() * dilation - before;
                here.cast(real) + b.read(offset, from).cast(real)
            });
            let extents = [h, width];
            let inside = place.iter().zip(extents).fold(Scalar::bool(true), |all, (p, n)| {
                all.and(p.clone().ge(Scalar::float(0.0, real))).and(p.clone().lt(Scalar::float(n as f64, real)))
            });
            let read = |at: &[Scalar]| {
                let from = indices(&c.data, |letter| {
                    Place::flat(match letter {
                        'N' => i[0].clone(),
                        'C' => i[1].clone(),
                        'H' => at[0].clone(),
                        _ => at[1].clone(),
                    })
                });
                b.read(x, from).cast(real)
            };
            Scalar::select(inside, mixed_scalar(&place, &extents, read), Scalar::float(0.0, real)).cast(b.dtype(x))
        });
        let out = b.reduce(&shape, &[per_group, kh, kw], Combine::Sum, |b, i, r| {
            let place = |letter| place_in(&c.out, letter, i).index();
            let group = place('C').floor_div((outputs / c.groups).max(1));
            let from =
                [place('N'), group * per_group + r[0].clone(), r[1].clone(), r[2].clone(), place('H'), place('W')];
            let weight = indices(&c.kernel, |letter| match letter {
                'O' => place_in(&c.out, 'C', i),
                'I' => Place::flat(r[0].clone()),
                'H' => Place::flat(r[1].clone()),
                _ => Place::flat(r[2].clone()),
            });
            b.read(seen, from).cast(dtype) * b.read(w, weight).cast(dtype)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |layouts: [&str; 2], shapes: [&[i64]; 3], groups: [i64; 2], d| Sample {
            attrs: vec![
                ("padding", [1, 1].into()),
                ("data_layout", layouts[0].into()),
                ("kernel_layout", layouts[1].into()),
                ("deformable_groups", groups[0].into()),
                ("groups", groups[1].into()),
            ],
            args: shapes.map(|s| t(s, d)).into(),
        };
        let plain = ["NCHW", "OIHW"];
        let mut samples = vec![
            call(plain, [&[2, 4, 5, 4], &[2, 18, 5, 4], &[3, 4, 3, 3]], [1, 1], DType::F32),
            call(plain, [&[1, 4, 4, 4], &[1, 36, 4, 4], &[4, 2, 3, 3]], [2, 2], DType::F32),
            call(["NHWC", "HWIO"], [&[1, 4, 5, 2], &[1, 4, 5, 36], &[3, 3, 2, 3]], [2, 1], DType::F32),
            call(["NCHW2c", "OIHW2o"], [&[1, 2, 4, 4, 2], &[1, 9, 4, 4, 2], &[1, 4, 3, 3, 2]], [1, 1], DType::F32),
            call(plain, [&[1, 2, 5, 6], &[1, 12, 3, 4], &[3, 2, 2, 3]], [1, 1], DType::F32),
        ];
        samples[4].attrs.extend([
            ("strides", [2, 1].into()),
            ("dilation", [2, 2].into()),
            ("channels", 3.into()),
            ("kernel_size", [2, 3].into()),
        ]);
        samples
    }
}
