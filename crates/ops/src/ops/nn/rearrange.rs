//! Between space, depth and batch: depth_to_space, space_to_depth, space_to_batch_nd, batch_to_space_nd.

use super::{geometry::layout_of, pad::pairs};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &SubPixel { name: "nn.depth_to_space", to_space: true },
    &SubPixel { name: "nn.space_to_depth", to_space: false },
    &Blocks { name: "nn.space_to_batch_nd", to_batch: true, attrs: TO_BATCH },
    &Blocks { name: "nn.batch_to_space_nd", to_batch: false, attrs: TO_SPACE },
];

/// The result of moving elements: for each index of the result, the index it comes from, or none for `fill`.
fn moved(x: &Tensor, shape: &[usize], fill: f64, from: impl Fn(&[i64]) -> Option<Vec<i64>>) -> Tensor {
    let strides = row_major_strides(x.shape());
    let mut out = Tensor::from_f64_fn(x.dtype(), shape, |_| fill);
    let mut index = vec![0; shape.len()];
    for flat in 0..out.len() {
        let mut rest = flat;
        for k in (0..shape.len()).rev() {
            (index[k], rest) = ((rest % shape[k]) as i64, rest / shape[k]);
        }
        if let Some(at) = from(&index) {
            let at = at.iter().zip(&strides).map(|(&i, s)| i as usize * s).sum();
            match x.dtype().is_float() {
                true => out.set_f64(flat, x.get_f64(at)),
                false => out.set_i64(flat, x.get_i64(at)),
            }
        }
    }
    out
}

/// No block is larger, and nothing is padded or cropped by more.
const MOST: i64 = 1 << 31;

fn sizes(shape: &[i64]) -> Vec<usize> {
    shape.iter().map(|&n| n as usize).collect()
}

/// `nn.depth_to_space` and its inverse.
#[derive(Debug)]
struct SubPixel {
    name: &'static str,
    to_space: bool,
}

/// The axes of channels, height and width, and the block's extent.
fn sub_pixel(attrs: &Attrs) -> Result<([usize; 3], i64), OpError> {
    let layout = layout_of(attrs.str("layout"), "layout", "NCHW", "")?;
    let block = attrs.int("block_size");
    op_ensure!((1..=MOST).contains(&block), "C2: `block_size` is {block}, but should be positive (and at most {MOST})");
    Ok((['C', 'H', 'W'].map(|l| layout.position(l).expect("the layout's letters were checked")), block))
}

impl SubPixel {
    /// The result's extents.
    fn shape(&self, [c, h, w]: [usize; 3], block: i64, from: &[i64]) -> Vec<i64> {
        let mut shape = from.to_vec();
        match self.to_space {
            true => {
                (shape[c], shape[h], shape[w]) =
                    (from[c] / (block * block), from[h].saturating_mul(block), from[w].saturating_mul(block))
            }
            false => {
                (shape[c], shape[h], shape[w]) =
                    (from[c].saturating_mul(block * block), from[h] / block, from[w] / block)
            }
        }
        shape
    }
}

impl Op for SubPixel {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        match self.to_space {
            true => {
                "Channels become blocks of space: out[n, c, y, x] is data[n, k, y / b, x / b] with b = block_size and k =
                ((y % b) * b + x % b) * channels + c (mode DCR) or (c * b + y % b) * b + x % b (mode CRD).
                C1: layout names the axes of NCHW, not split. C2: block_size is positive, its square divides the channels."
            }
            false => {
                "Blocks of space become channels: out[n, k, y, x] is data[n, c, y * b + i, x * b + j] with b = block_size and
                k = (i * b + j) * channels + c.
                C1: layout names the axes of NCHW, not split. C2: block_size is positive and divides height and width."
            }
        }
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("block_size", AttrKind::Int, AttrDefault::Int(1)),
            AttrField::new("layout", AttrKind::Str, AttrDefault::Str("NCHW")),
            AttrField::new("mode", AttrKind::OneOf(&["DCR", "CDR", "CRD"]), AttrDefault::Str("DCR")),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Injective
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        let ([c, h, w], b) = sub_pixel(attrs)?;
        op_ensure!(x.rank() == 4, "C1: `data` is {x}, but should have four axes");
        let divided = |d: Dim, by: i64| d.known().is_none_or(|n| n % by == 0);
        let fits = match self.to_space {
            // TVM lets the channels be too few for one block, and gives nothing.
            true => divided(x.shape[c], b * b) || x.shape[c].known().is_some_and(|n| n < b * b),
            false => divided(x.shape[h], b) && divided(x.shape[w], b),
        };
        op_ensure!(fits, "C2: `data` is {x}, which blocks of {b} do not divide");
        let known: Vec<i64> = x.shape.iter().map(|d| d.known().unwrap_or(0)).collect();
        let shape = self.shape([c, h, w], b, &known);
        let dim = |(d, n): (&Dim, i64)| if d.known().is_some() { Dim::Known(n) } else { *d };
        Ok(TensorType::of(x.shape.iter().zip(shape).map(dim), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let x = args[0].tensor();
        let ([c, h, w], b) = sub_pixel(attrs)?;
        let from: Vec<i64> = x.shape().iter().map(|&n| n as i64).collect();
        let shape = self.shape([c, h, w], b, &from);
        let (depth_first, channels) = (attrs.str("mode") != "CRD", if self.to_space { shape[c] } else { from[c] });
        let out = moved(x, &sizes(&shape), 0.0, |i| {
            let mut at = i.to_vec();
            match self.to_space {
                true => {
                    let within = i[h] % b * b + i[w] % b;
                    at[c] = if depth_first { within * channels + i[c] } else { i[c] * b * b + within };
                    (at[h], at[w]) = (i[h] / b, i[w] / b);
                }
                false => {
                    let within = i[c] / channels;
                    (at[c], at[h], at[w]) = (i[c] % channels, i[h] * b + within / b, i[w] * b + within % b);
                }
            }
            Some(at)
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let Ok((moved, _)) = sub_pixel(attrs) else { return AxisMap::opaque([rank]) };
        AxisMap(vec![
            (0..rank).map(|k| if moved.contains(&k) { AxisRole::Opaque } else { AxisRole::Maps(k) }).collect(),
        ])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let ([c, h, w], block) = sub_pixel(attrs)?;
        let from = b.shape(x).to_vec();
        let shape = self.shape([c, h, w], block, &from);
        let out = b.map(&shape, |b, i| {
            let mut at = i.to_vec();
            let get = |k: usize| i[k].clone();
            if self.to_space {
                let (y, x) = (get(h).floor_mod(block), get(w).floor_mod(block));
                let within = y * block + x;
                at[c] = match attrs.str("mode") {
                    "CRD" => get(c) * (block * block) + within,
                    _ => within * shape[c] + get(c),
                };
                (at[h], at[w]) = (get(h).floor_div(block), get(w).floor_div(block));
            } else {
                let within = get(c).floor_div(from[c]);
                at[c] = get(c).floor_mod(from[c]);
                at[h] = get(h) * block + within.clone().floor_div(block);
                at[w] = get(w) * block + within.floor_mod(block);
            }
            b.read(x, at)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |layout: &str, shape: &[i64], mode: &str| Sample {
            attrs: vec![("block_size", 2.into()), ("layout", layout.into()), ("mode", mode.into())],
            args: vec![Type::tensor(shape, DType::F32)],
        };
        match self.to_space {
            true => vec![
                call("NCHW", &[2, 8, 2, 3], "DCR"),
                call("NCHW", &[1, 8, 2, 3], "CRD"),
                call("NHWC", &[1, 2, 3, 4], "DCR"),
            ],
            false => vec![call("NCHW", &[2, 3, 4, 6], "DCR"), call("NHWC", &[1, 2, 4, 3], "DCR")],
        }
    }
}

/// `nn.space_to_batch_nd` and its inverse.
#[derive(Debug)]
struct Blocks {
    name: &'static str,
    to_batch: bool,
    attrs: &'static [AttrField],
}

const TO_BATCH: &[AttrField] = &[
    AttrField::new("block_shape", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
    AttrField::new("paddings", AttrKind::List, AttrDefault::Required),
    AttrField::new("pad_value", AttrKind::Float, AttrDefault::Float(0.0)),
];
const TO_SPACE: &[AttrField] = &[
    AttrField::new("block_shape", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
    AttrField::new("crops", AttrKind::List, AttrDefault::Required),
];

impl Blocks {
    /// The block's extent, and what is added before and after (or taken away), per axis after the batch.
    fn plan(&self, attrs: &Attrs) -> Result<Vec<(i64, i64, i64)>, OpError> {
        let name = if self.to_batch { "paddings" } else { "crops" };
        let (blocks, ends) = (attrs.ints("block_shape"), pairs(attrs, name)?);
        op_ensure!(
            blocks.len() == ends.len(),
            "C2: `block_shape` has {} numbers, but `{name}` has {} pairs",
            blocks.len(),
            ends.len()
        );
        op_ensure!(
            blocks.iter().all(|b| (1..=MOST).contains(b)),
            "C2: `block_shape` is {blocks:?}, but should be positive (and at most {MOST})"
        );
        op_ensure!(
            ends.iter().all(|e| (0..=MOST).contains(&e.0) && (0..=MOST).contains(&e.1)),
            "C2: `{name}` should hold numbers from 0 to {MOST}"
        );
        Ok(blocks.into_iter().zip(ends).map(|(b, (before, after))| (b, before, after)).collect())
    }

    /// The result's extents.
    fn shape(&self, plan: &[(i64, i64, i64)], from: &[i64]) -> Vec<i64> {
        let (mut shape, blocks) = (from.to_vec(), plan.iter().fold(1i64, |n, p| n.saturating_mul(p.0)));
        shape[0] = if self.to_batch { from[0].saturating_mul(blocks) } else { from[0] / blocks };
        for (k, (block, before, after)) in plan.iter().enumerate() {
            shape[k + 1] = match self.to_batch {
                true => (from[k + 1] + before + after) / block,
                false => from[k + 1].saturating_mul(*block) - before - after,
            };
        }
        shape
    }
}

impl Op for Blocks {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        match self.to_batch {
            true => {
                "Blocks of the padded axes after the batch become batches: out[i * batch + n, y..] is data[n, y * block + i..],
                i counting the places within a block, row-major; paddings are filled with pad_value.
                C1: data has more axes than block_shape. C2: paddings has a pair per positive block extent.
                C3: blocks divide the padded axes."
            }
            false => {
                "Batches become blocks of the axes after the batch, which are then cropped: the inverse of space_to_batch_nd.
                C1: data has more axes than block_shape. C2: crops has a pair per positive block extent.
                C3: the blocks' elements divide the batch, and the crops leave something."
            }
        }
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Injective
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, plan) = (tensor_arg(args, 0, "data")?, self.plan(attrs)?);
        op_ensure!(x.rank() > plan.len(), "C1: `data` is {x}, but should have more than {} axes", plan.len());
        let known: Vec<i64> = x.shape.iter().map(|d| d.known().unwrap_or(0)).collect();
        if self.to_batch {
            for (k, (block, before, after)) in plan.iter().enumerate() {
                op_ensure!(
                    x.shape[k + 1].known().is_none_or(|n| (n + before + after) % block == 0),
                    "C3: `data` is {x}: blocks of {block} do not divide axis {}, padded by {before} and {after}",
                    k + 1
                );
            }
        }
        let shape = self.shape(&plan, &known);
        op_ensure!(
            x.shape.iter().zip(&shape).all(|(d, &n)| d.known().is_none() || n >= 0),
            "C3: `data` is {x}: nothing is left of it"
        );
        let dim = |(d, n): (&Dim, i64)| if d.known().is_some() { Dim::Known(n) } else { *d };
        Ok(TensorType::of(x.shape.iter().zip(shape).map(dim), x.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, plan) = (args[0].tensor(), self.plan(attrs)?);
        let from: Vec<i64> = x.shape().iter().map(|&n| n as i64).collect();
        let shape = self.shape(&plan, &from);
        let fill = if self.to_batch { attrs.float("pad_value") } else { 0.0 };
        let out = moved(x, &sizes(&shape), fill, |i| {
            let mut at = i.to_vec();
            let mut batch = 0;
            let mut places = if self.to_batch { i[0] / from[0] } else { 0 };
            if self.to_batch {
                at[0] = i[0] % from[0];
                for (k, (block, before, _)) in plan.iter().enumerate().rev() {
                    at[k + 1] = i[k + 1] * block + places % block - before;
                    places /= block;
                    if !(0..from[k + 1]).contains(&at[k + 1]) {
                        return None;
                    }
                }
            } else {
                for (k, (block, before, _)) in plan.iter().enumerate() {
                    let y = i[k + 1] + before;
                    at[k + 1] = y / block;
                    batch = batch * block + y % block;
                }
                at[0] = batch * shape[0] + i[0];
            }
            Some(at)
        });
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(0, TensorType::rank);
        let moved = self.plan(attrs).map_or(rank, |p| p.len() + 1);
        AxisMap(vec![(0..rank).map(|k| if k < moved { AxisRole::Opaque } else { AxisRole::Maps(k) }).collect()])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, plan) = (args[0].tensor(), self.plan(attrs)?);
        let (from, dtype) = (b.shape(x).to_vec(), b.dtype(x));
        let shape = self.shape(&plan, &from);
        let out = b.map(&shape, |b, i| {
            let mut at = i.to_vec();
            if !self.to_batch {
                let mut batch = Scalar::index(0);
                for (k, &(block, before, _)) in plan.iter().enumerate() {
                    let y = i[k + 1].clone() + before;
                    at[k + 1] = y.clone().floor_div(block);
                    batch = batch * block + y.floor_mod(block);
                }
                at[0] = batch * shape[0] + i[0].clone();
                return b.read(x, at);
            }
            let (mut places, mut inside) = (i[0].clone().floor_div(from[0]), Scalar::bool(true));
            at[0] = i[0].clone().floor_mod(from[0]);
            for (k, &(block, before, after)) in plan.iter().enumerate().rev() {
                at[k + 1] = i[k + 1].clone() * block + places.clone().floor_mod(block) - before;
                places = places.floor_div(block);
                if before > 0 {
                    inside = inside.and(at[k + 1].clone().ge(Scalar::index(0)));
                }
                if after > 0 {
                    inside = inside.and(at[k + 1].clone().lt(Scalar::index(from[k + 1])));
                }
            }
            Scalar::select(inside, b.read(x, at), Scalar::float(attrs.float("pad_value"), dtype))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let pairs = |p: &[[i64; 2]]| AttrValue::List(p.iter().map(|p| AttrValue::ints(p)).collect());
        let call = |shape: &[i64], block: &[i64], ends: &[[i64; 2]]| Sample {
            attrs: vec![("block_shape", block.into()), (if self.to_batch { "paddings" } else { "crops" }, pairs(ends))],
            args: vec![Type::tensor(shape, DType::F32)],
        };
        match self.to_batch {
            true => vec![call(&[2, 4, 3, 2], &[2, 3], &[[0, 0], [1, 2]]), call(&[1, 5, 2], &[2], &[[1, 0]])],
            false => vec![call(&[12, 2, 3, 2], &[2, 3], &[[0, 1], [1, 2]]), call(&[2, 3, 2], &[2], &[[0, 0]])],
        }
    }
}
