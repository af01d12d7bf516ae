//! Winograd's convolution of images of several planes: over rows and columns, of the channels of all planes within a window side by side.

use super::{
    geometry::paddings,
    winograd_blocked::{self, Planes},
    winograd_conv::{KEEPS, Plan},
};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, field, lowered_shapes, op_head, opaque_axes, sample, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&WinogradConv3d];

/// `nn.winograd_conv3d`.
#[derive(Debug)]
struct WinogradConv3d;

/// The attributes of `nn.winograd_conv2d` that compute a plane of results.
fn of_plane(attrs: &Attrs) -> Result<Attrs, OpError> {
    let p = paddings(attrs, 3)?;
    let of_plane = |name: &str| match attrs.str(name).strip_prefix("NCDHW") {
        Some(block) => Ok(format!("NCHW{block}")),
        None => Err(OpError(format!("C2: `{name}` is {}, but should be as NCDHW16c", attrs.str(name)))),
    };
    let given = [
        ("tile_size".into(), attrs.int("tile_size").into()),
        ("padding".into(), vec![p[1].0, p[2].0, p[1].1, p[2].1].into()),
        ("data_layout".into(), of_plane("data_layout")?.as_str().into()),
        ("kernel_layout".into(), attrs.str("kernel_layout").into()),
        ("out_layout".into(), of_plane("out_layout")?.as_str().into()),
    ];
    crate::ops::make_attrs(crate::ops::op(KEEPS.name()), &given).map_err(|e| OpError(e.to_string()))
}

/// Planes of the data and of results, of data and weight in blocks.
fn planes(attrs: &Attrs, x: &[Dim], w: &[Dim]) -> Result<Planes, OpError> {
    let (before, after) = paddings(attrs, 3)?[0];
    let known = |axis: Option<&Dim>| axis.and_then(|d| d.known());
    let extents = (x.len() == 6 && w.len() == 5)
        .then_some(())
        .and_then(|()| Some((known(x.get(1))? * known(x.get(5))?, known(x.get(2))?, known(w.get(3))?)));
    let fits = extents.filter(|&(channels, _, summed)| channels > 0 && summed > 0 && summed % channels == 0);
    let Some((channels, given, summed)) = fits else {
        let [x, w] = [x, w].map(|s| TensorType::of(s.to_vec(), DType::F32));
        return Err(OpError(format!(
            "C1: `data` is {x} and `weight` {w}, but there should be six axes of data and five of the weight, whose fourth is a multiple of the \
             channels, of known extents"
        )));
    };
    let taps = summed / channels;
    let made = given + before + after - taps + 1;
    op_ensure!(
        before >= 0 && after >= 0 && made > 0,
        "C3: a window of {taps} planes does not fit in {given} with {before} and {after} around"
    );
    Ok(Planes { given, made, taps, before })
}

/// The type of the data of one plane of results: the planes of its window side by side.
fn stacked(x: &TensorType, taps: i64) -> Type {
    let blocks = x.shape[1].known().map_or(Dim::Any, |n| Dim::Known(n * taps));
    TensorType::of([x.shape[0], blocks, x.shape[3], x.shape[4], x.shape[5]], x.dtype).into()
}

impl Op for WinogradConv3d {
    op_head!(
        "nn.winograd_conv3d",
        "A convolution over planes, rows and columns by Winograd's algorithm over rows and columns: a plane of results is nn.winograd_conv2d of
        the channels of all planes within its window side by side, the first plane's first; planes of padding are 0. The weight's and the signs' channels
        are in that order, too. C1: data is of known extents, and the weight has the channels of one plane or several. C2: layouts are blocks as of
        NCDHW8c for the data, OHWI16o for the weight (whose H and W are points) and NCDHW16c for the result. C3: no padding is negative, and the window
        fits. What nn.winograd_conv2d asks for holds for each plane. (Of resat's own making.)",
        ["data", "weight", "signs"],
        [
            field("tile_size", AttrKind::Int, AttrDefault::Required),
            field("padding", AttrKind::Ints, AttrDefault::Ints(&[0, 0, 0])),
            field("data_layout", AttrKind::Str, AttrDefault::Required),
            field("kernel_layout", AttrKind::Str, AttrDefault::Required),
            field("out_layout", AttrKind::Str, AttrDefault::Required)
        ],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, w) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "weight")?);
        let planes = planes(attrs, &x.shape, &w.shape)?;
        let out = KEEPS.infer(&of_plane(attrs)?, &[stacked(x, planes.taps), args[1].clone(), args[2].clone()])?;
        let out = tensor_arg(std::slice::from_ref(&out), 0, "plane")?.clone();
        let mut shape = out.shape.to_vec();
        shape.insert(2, Dim::Known(planes.made));
        Ok(TensorType::of(shape, out.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let dims = |t: &Tensor| t.shape().iter().map(|&n| Dim::Known(n as i64)).collect::<Vec<_>>();
        let p = planes(attrs, &dims(x), &dims(w))?;
        let [images, blocks, given, rows, columns, block] = x.shape()[..] else { unreachable!("six axes") };
        let (of_plane, image) = (of_plane(attrs)?, rows * columns * block);
        let made = (0..p.made).map(|plane| {
            let side_by_side = x.pick(&[images, p.taps as usize * blocks, rows, columns, block], |flat| {
                let (at, k, n) = (flat % image, flat / image % blocks, flat / image / blocks / p.taps as usize);
                let tap = (flat / image / blocks) as i64 % p.taps;
                let from = usize::try_from(plane + tap - p.before).ok().filter(|from| *from < given)?;
                Some(((n * blocks + k) * given + from) * image + at)
            });
            KEEPS.eval(&of_plane, &[side_by_side.into(), args[1].clone(), args[2].clone()])
        });
        let made = made.collect::<Result<Vec<_>, _>>()?;
        let (result, deep) = (shape[3] * shape[4] * shape[5], shape[2]);
        let out = |flat: usize| {
            let (plane, outer) = (flat / result % deep, flat / result / deep);
            made[plane].tensor().get_f64(outer * result + flat % result)
        };
        Ok(Tensor::from_f64_fn(x.dtype(), &shape, out).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let (bytes_read, bytes_written) = (args[..2].iter().map(bytes).sum(), bytes(out));
        let flops = || {
            let (x, w) = (args[0].as_tensor()?, args[1].as_tensor()?);
            let p = planes(attrs, &x.shape, &w.shape).ok()?;
            let plan = Plan::new(&of_plane(attrs).ok()?, &w.shape[1..]).ok()?;
            let [images, outs, _, height, width, lanes] = out.as_tensor()?.known_shape()?[..] else { return None };
            // No products with planes of padding.
            let taps = (0..p.made).map(|made| (p.before + p.given - made).min(p.taps) - (p.before - made).max(0));
            let taps: i64 = taps.map(|taps| taps.max(0)).sum();
            let (ins, outs) = (w.shape[3].known()? / p.taps, outs * lanes);
            let tiles = images * plan.tiles(height) * plan.tiles(width);
            let products = (2 * plan.points * plan.points * ins * outs * taps) as f64;
            let [data, results] = plan.transforms();
            Some(tiles as f64 * (products + data * (ins * p.given) as f64 + results * (outs * p.made) as f64))
        };
        Work { flops: flops().unwrap_or(0.0), bytes_read, bytes_written }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let [x, w, signs] = [0, 1, 2].map(|k| args[k].tensor());
        let dims = |shape: &[i64]| shape.iter().map(|&n| Dim::Known(n)).collect::<Vec<_>>();
        let planes = planes(attrs, &dims(b.shape(x)), &dims(b.shape(w)))?;
        let weight = dims(b.shape(w));
        let plan = Plan::new(&of_plane(attrs)?, &weight[1..])?;
        let x = plan.padded(x, [3, 4], [shape[3], shape[4]], b);
        Ok(winograd_blocked::lower(&plan, Some(planes), [x, w], Some(signs), &shape, b).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |padding: &[i64], [i, o]: [i64; 2], x: &[i64], w: &[i64]| {
            let layout = |s: String| AttrValue::from(s.as_str());
            let attrs = [
                ("tile_size", 4.into()),
                ("padding", padding.to_vec().into()),
                ("data_layout", layout(format!("NCDHW{i}c"))),
                ("kernel_layout", layout(format!("OHWI{o}o"))),
                ("out_layout", layout(format!("NCDHW{o}c"))),
            ];
            let signs = [w[0], w[3] / i, 3, 3, i, o];
            sample(attrs, vec![t(x, DType::F32), t(w, DType::F32), t(&signs, DType::I8)])
        };
        vec![
            call(&[1, 1, 1], [8, 8], &[1, 2, 3, 8, 8, 8], &[3, 6, 6, 48, 8]),
            call(&[0, 0, 1, 1, 2, 0], [3, 16], &[2, 1, 4, 7, 9, 3], &[2, 6, 6, 9, 16]),
            call(&[2, 1, 1], [16, 8], &[1, 1, 1, 9, 12, 16], &[1, 6, 6, 48, 8]),
        ]
    }
}
