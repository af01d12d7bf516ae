//! Products of numbers of few bits: bits are packed into words, and words combined by counting bits.

use super::{
    geometry::{Window, paddings, per_axis},
    place::{Pad, pad},
};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Combine, Operand, Scalar, TensorId, UnOp},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_bail, op_ensure,
        util::{bytes, elements, field, lowered_shapes, may_equal, op_head, opaque_axes, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&BitPack, &BitserialConv2d, &BitserialDense];

/// How bits are packed: word `w` of a row holds the elements from `w` times its width on, the first in its highest bit, and
/// there is a word for each bit that counts.
#[derive(Copy, Clone)]
struct Packing {
    bits: i64,
    pack_axis: usize,
    bit_axis: usize,
    word: DType,
}

const UNSIGNED: [DType; 4] = [DType::U8, DType::U16, DType::U32, DType::U64];

impl Packing {
    fn new(bits: i64, pack_axis: usize, bit_axis: usize, word: Option<DType>, name: &str) -> Result<Packing, OpError> {
        let Some(word) = word.filter(|w| UNSIGNED.contains(w)) else {
            op_bail!("`{name}` should be an unsigned type");
        };
        op_ensure!((1..=8).contains(&bits), "{bits} bits are asked for, but 1 to 8 are supported");
        Ok(Packing { bits, pack_axis, bit_axis, word })
    }

    fn width(&self) -> i64 {
        self.word.bits() as i64
    }

    /// The packed extents.
    fn shape(&self, x: &TensorType, name: &str) -> Result<Vec<Dim>, OpError> {
        op_ensure!(x.dtype.is_int() || x.dtype == DType::Bool, "`{name}` is {x}, but should be integers");
        let mut shape = x.shape.to_vec();
        op_ensure!(
            self.pack_axis < shape.len() && self.bit_axis <= shape.len(),
            "`{name}` is {x}, but should have an axis {} and a place {} for the bits",
            self.pack_axis,
            self.bit_axis
        );
        if let Dim::Known(n) = shape[self.pack_axis] {
            op_ensure!(n % self.width() == 0, "`{name}` is {x}: {n} elements do not fill words of {}", self.word);
            shape[self.pack_axis] = Dim::Known(n / self.width());
        }
        shape.insert(self.bit_axis, Dim::Known(self.bits));
        Ok(shape)
    }

    /// The packed words, with their extents.
    fn eval(&self, x: &Tensor) -> (Vec<u64>, Vec<usize>) {
        let width = self.width() as usize;
        let mut shape = x.shape().to_vec();
        shape[self.pack_axis] /= width;
        shape.insert(self.bit_axis, self.bits as usize);
        let (to, from) = (row_major_strides(&shape), row_major_strides(x.shape()));
        let words = (0..shape.iter().product()).map(|flat: usize| {
            let mut index: Vec<usize> = shape.iter().zip(&to).map(|(n, s)| flat / s % n).collect();
            let bit = index.remove(self.bit_axis);
            index[self.pack_axis] *= width;
            let start: usize = index.iter().zip(&from).map(|(i, s)| i * s).sum();
            (0..width).fold(0u64, |word, k| word << 1 | (x.get_i64(start + k * from[self.pack_axis]) as u64 >> bit & 1))
        });
        (words.collect(), shape)
    }

    fn lower(&self, x: TensorId, b: &mut Builder) -> TensorId {
        let mut shape = b.shape(x).to_vec();
        shape[self.pack_axis] /= self.width();
        shape.insert(self.bit_axis, self.bits);
        b.reduce(&shape, &[self.width()], Combine::Sum, |b, i, r| {
            let mut index = i.to_vec();
            let bit = index.remove(self.bit_axis);
            index[self.pack_axis] = index[self.pack_axis].clone() * self.width() + r[0].clone();
            let value = Scalar::binary(BinOp::Shr, b.read(x, index).cast(DType::I64), bit);
            let value = Scalar::binary(BinOp::And, value, Scalar::index(1));
            let place = Scalar::index(self.width() - 1) - r[0].clone();
            Scalar::binary(BinOp::Shl, value.cast(self.word), place.cast(self.word))
        })
    }
}

/// Which bits of the data meet those of a weight's word: as many as are set in both, of which without `signed`, and less
/// those that the weight lacks with it (where its bits mean 1 and -1).
fn count(data: u64, weight: u64, signed: bool) -> i64 {
    let both = (data & weight).count_ones() as i64;
    if signed { both - (data & !weight).count_ones() as i64 } else { both }
}

/// The same as an expression in the result's type.
fn counted(data: Scalar, weight: Scalar, signed: bool, dtype: DType) -> Scalar {
    let ones = |s: Scalar| Scalar::unary(UnOp::Popcount, s).cast(dtype);
    let both = ones(Scalar::binary(BinOp::And, data.clone(), weight.clone()));
    match signed {
        true => both - ones(Scalar::binary(BinOp::And, data, Scalar::unary(UnOp::Not, weight))),
        false => both,
    }
}

/// `value` times 2 to the power of the sum of two bits' numbers.
fn weighed(value: Scalar, bits: [&Scalar; 2]) -> Scalar {
    let dtype = value.dtype();
    Scalar::binary(BinOp::Shl, value, (bits[0].clone() + bits[1].clone()).cast(dtype))
}

const fn bits(name: &'static str) -> AttrField {
    field(name, AttrKind::Int, AttrDefault::Int(1))
}

/// `nn.bitpack`.
#[derive(Debug)]
struct BitPack;

impl BitPack {
    fn packing(attrs: &Attrs) -> Result<Packing, OpError> {
        let axis = |name: &str| {
            let axis = attrs.int(name);
            usize::try_from(axis).map_err(|_| OpError(format!("`{name}` is {axis}, but should not be negative")))
        };
        Packing::new(
            attrs.int("bits"),
            axis("pack_axis")?,
            axis("bit_axis")?,
            attrs.opt_dtype("pack_type"),
            "pack_type",
        )
    }
}

impl Op for BitPack {
    op_head!(
        "nn.bitpack",
        "The lowest bits of integers as words of pack_type: as many neighbours along pack_axis as a word has bits become one
        word for each bit, the first neighbour in the word's highest bit; words of the same neighbours lie along the new axis
        bit_axis. C1: data holds integers. C2: pack_type is unsigned. C3: words divide data's extent along pack_axis.
        C4: both axes exist and are not negative. C5: bits is from 1 to 8.",
        ["data"],
        [
            bits("bits"),
            field("pack_axis", AttrKind::Int, AttrDefault::Int(1)),
            field("bit_axis", AttrKind::Int, AttrDefault::Int(-1)),
            field("pack_type", AttrKind::DType, AttrDefault::None),
            field("name", AttrKind::Str, AttrDefault::Str("BitPack"))
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let packing = BitPack::packing(attrs)?;
        Ok(TensorType::of(packing.shape(tensor_arg(args, 0, "data")?, "data")?, packing.word).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let packing = BitPack::packing(attrs)?;
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let (words, _) = packing.eval(args[0].tensor());
        Ok(Tensor::from_i64_fn(packing.word, &shape, |i| words[i] as i64).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        Work {
            flops: 3.0 * attrs.int("bits") as f64 * elements(&args[0]),
            bytes_read: bytes(&args[0]),
            bytes_written: bytes(out),
        }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        Ok(BitPack::packing(attrs)?.lower(args[0].tensor(), b).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |axes: [i64; 2], bits: i64, word: DType, x: &[i64], d| Sample {
            attrs: vec![
                ("pack_axis", axes[0].into()),
                ("bit_axis", axes[1].into()),
                ("bits", bits.into()),
                ("pack_type", word.into()),
            ],
            args: vec![t(x, d)],
        };
        vec![
            call([1, 4], 1, DType::U16, &[2, 32, 1, 2], DType::I32),
            call([0, 0], 3, DType::U8, &[16, 2], DType::I8),
            call([1, 0], 2, DType::U32, &[2, 32], DType::U8),
            call([0, 1], 2, DType::U64, &[64], DType::I64),
        ]
    }
}

/// `nn.bitserial_dense`.
#[derive(Debug)]
struct BitserialDense;

impl BitserialDense {
    /// How data is packed, and weights where they are not packed already.
    fn packings(attrs: &Attrs) -> Result<[Packing; 2], OpError> {
        let word = attrs.opt_dtype("pack_dtype");
        let packing = |name| Packing::new(attrs.int(name), 1, 1, word, "pack_dtype");
        Ok([packing("data_bits")?, packing("weight_bits")?])
    }
}

impl Op for BitserialDense {
    op_head!(
        "nn.bitserial_dense",
        "dense of integers of data_bits and weight_bits bits: out[m, n] = sum over k of data[m, k] * weight[n, k], in
        out_dtype (data's, where none is given); with unipolar a weight's bit means 1 or -1. A weight of three axes is packed
        by bitpack along axis 1 already. C1: data has two axes of integers. C2: the weight's axes fit data and units.
        C3: pack_dtype is an unsigned type whose words divide the summed axis. C4: out_dtype is an integer type.",
        ["data", "weight"],
        [
            field("units", AttrKind::Int, AttrDefault::Required),
            bits("data_bits"),
            bits("weight_bits"),
            field("pack_dtype", AttrKind::DType, AttrDefault::None),
            field("out_dtype", AttrKind::DType, AttrDefault::None),
            field("unipolar", AttrKind::Bool, AttrDefault::Bool(true))
        ],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, w) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "weight")?);
        op_ensure!(x.rank() == 2, "C1: `data` is {x}, but should have two axes");
        let [data, weight] = BitserialDense::packings(attrs)?;
        let words = data.shape(x, "data")?;
        let packed = match w.rank() {
            3 => w.shape.to_vec(),
            _ => weight.shape(w, "weight")?,
        };
        op_ensure!(
            packed.len() == 3
                && may_equal(packed[0], Dim::Known(attrs.int("units")))
                && may_equal(packed[1], Dim::Known(weight.bits))
                && may_equal(packed[2], words[2])
                && (w.rank() == 2 || w.dtype == weight.word),
            "C2: `data` is {x}, `weight` {w} and `units` {}",
            attrs.int("units")
        );
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype);
        op_ensure!(dtype.is_int(), "C4: the result is of {dtype}, but should be of an integer type");
        Ok(TensorType::of([x.shape[0], Dim::Known(attrs.int("units"))], dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let [data, weight] = BitserialDense::packings(attrs)?;
        let (ds, [_, db, k]) = sized::<3>(data.eval(x));
        let (ws, [units, wb, _]) = sized::<3>(packed_or(w, 2, &weight));
        let signed = attrs.bool("unipolar");
        let out = |i: usize| {
            let (m, n) = (i / units, i % units);
            let mut sum = 0i64;
            for (d, v) in (0..db).flat_map(|d| (0..wb).map(move |v| (d, v))) {
                for j in 0..k {
                    let words = (ds[(m * db + d) * k + j], ws[(n * wb + v) * k + j]);
                    sum = sum.wrapping_add(count(words.0, words.1, signed) << (d + v));
                }
            }
            sum
        };
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype());
        Ok(Tensor::from_i64_fn(dtype, &[x.shape()[0], units], out).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let k = args[0].as_tensor().and_then(|t| t.shape[1].known()).unwrap_or(1);
        let pairs = attrs.int("data_bits") * attrs.int("weight_bits");
        Work {
            flops: elements(out) * (k * pairs) as f64 / 8.0,
            bytes_read: args.iter().map(bytes).sum(),
            bytes_written: bytes(out),
        }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(x));
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let [data, weight] = BitserialDense::packings(attrs)?;
        let x = data.lower(x, b);
        let w = if b.shape(w).len() == 2 { weight.lower(w, b) } else { w };
        let (signed, words) = (attrs.bool("unipolar"), b.shape(x)[2]);
        let out = b.reduce(&shape, &[weight.bits, data.bits, words], Combine::Sum, |b, i, r| {
            let x = b.read(x, [i[0].clone(), r[1].clone(), r[2].clone()]);
            let w = b.read(w, [i[1].clone(), r[0].clone(), r[2].clone()]);
            weighed(counted(x, w, signed, dtype), [&r[0], &r[1]])
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |bits: [i64; 2], word: DType, unipolar: bool, out: DType, x: Type, w: Type| Sample {
            attrs: vec![
                ("units", 3.into()),
                ("data_bits", bits[0].into()),
                ("weight_bits", bits[1].into()),
                ("pack_dtype", word.into()),
                ("out_dtype", out.into()),
                ("unipolar", unipolar.into()),
            ],
            args: vec![x, w],
        };
        let (u8, i16) = (DType::U8, DType::I16);
        vec![
            call([1, 1], DType::U32, true, i16, t(&[2, 64], u8), t(&[3, 64], u8)),
            call([2, 3], u8, false, DType::I32, t(&[2, 16], DType::I8), t(&[3, 16], DType::I8)),
            call([2, 1], DType::U16, true, i16, t(&[2, 32], u8), t(&[3, 1, 2], DType::U16)),
        ]
    }
}

/// Words and extents, of which there are so many.
fn sized<const N: usize>((words, shape): (Vec<u64>, Vec<usize>)) -> (Vec<u64>, [usize; N]) {
    (words, shape.try_into().expect("the type relation checked the axes"))
}

/// A tensor of `rank` axes packed, one of more as it is.
fn packed_or(t: &Tensor, rank: usize, packing: &Packing) -> (Vec<u64>, Vec<usize>) {
    match t.shape().len() == rank {
        true => packing.eval(t),
        false => (t.to_i64_vec().into_iter().map(|v| v as u64).collect(), t.shape().to_vec()),
    }
}

/// `nn.bitserial_conv2d`.
#[derive(Debug)]
struct BitserialConv2d;

/// The attributes, read and checked.
struct ConvRecord {
    /// Channels last instead of after the batch.
    last: bool,
    data: Packing,
    weight: Packing,
    windows: [Window; 2],
    dtype: DType,
    signed: bool,
}

impl ConvRecord {
    fn new(attrs: &Attrs) -> Result<ConvRecord, OpError> {
        let last = match (attrs.str("data_layout"), attrs.str("kernel_layout")) {
            ("NCHW", "OIHW") => false,
            // The weight's default layout is that of the other data layout.
            ("NHWC", "HWIO" | "OIHW") => true,
            (data, kernel) => op_bail!("C1: `data_layout` is {data} and `kernel_layout` {kernel}"),
        };
        let word = attrs.opt_dtype("pack_dtype");
        let (size, strides) = (per_axis(attrs, "kernel_size", 2)?, per_axis(attrs, "strides", 2)?);
        let padding = paddings(attrs, 2)?;
        op_ensure!(
            padding.iter().all(|p| p.0 >= 0 && p.1 >= 0),
            "C8: `padding` is {padding:?}, but should not be negative"
        );
        let window = |k: usize| Window {
            kernel: size[k],
            stride: strides[k],
            dilation: 1,
            before: padding[k].0,
            after: padding[k].1,
        };
        let Some(dtype) = attrs.opt_dtype("out_dtype").filter(|d| d.is_int()) else {
            op_bail!("C5: `out_dtype` should be given as an integer type");
        };
        let (data, weight) = if last { ((3, 4), (2, 4)) } else { ((1, 2), (1, 4)) };
        Ok(ConvRecord {
            last,
            data: Packing::new(attrs.int("activation_bits"), data.0, data.1, word, "pack_dtype")?,
            weight: Packing::new(attrs.int("weight_bits"), weight.0, weight.1, word, "pack_dtype")?,
            windows: [window(0), window(1)],
            dtype,
            signed: attrs.bool("unipolar"),
        })
    }

    /// Where packed data has its batch, words, bits, rows and columns.
    fn data_axes(&self) -> [usize; 5] {
        if self.last { [0, 3, 4, 1, 2] } else { [0, 1, 2, 3, 4] }
    }

    /// Where packed weights have their outputs, words, bits, rows and columns.
    fn weight_axes(&self) -> [usize; 5] {
        if self.last { [3, 2, 4, 0, 1] } else { [0, 1, 4, 2, 3] }
    }

    /// Where the result has its batch, channels, rows and columns.
    fn out_axes(&self) -> [usize; 4] {
        if self.last { [0, 3, 1, 2] } else { [0, 1, 2, 3] }
    }
}

impl Op for BitserialConv2d {
    op_head!(
        "nn.bitserial_conv2d",
        "conv2d of integers of activation_bits and weight_bits bits; with unipolar a weight's bit means 1 or -1. A weight of
        five axes is packed by bitpack along its input channels already, with the bits along axis 4. C1: the layouts are NCHW
        and OIHW, or NHWC and HWIO. C2: data has four axes of integers. C3: channels is given. C4: the weight fits data,
        channels and kernel_size. C5: out_dtype is given as an integer type. C6: pack_dtype is an unsigned type whose words
        divide the input channels. C7: the window fits the padded data. C8: no padding is
        negative.",
        ["data", "weight"],
        [
            field("strides", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
            field("padding", AttrKind::Ints, AttrDefault::Ints(&[0, 0])),
            field("kernel_size", AttrKind::Ints, AttrDefault::Ints(&[3, 3])),
            field("channels", AttrKind::Int, AttrDefault::None),
            bits("activation_bits"),
            bits("weight_bits"),
            field("data_layout", AttrKind::Str, AttrDefault::Str("NCHW")),
            field("kernel_layout", AttrKind::Str, AttrDefault::Str("OIHW")),
            field("pack_dtype", AttrKind::DType, AttrDefault::None),
            field("out_dtype", AttrKind::DType, AttrDefault::None),
            field("unipolar", AttrKind::Bool, AttrDefault::Bool(true))
        ],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, w) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "weight")?);
        let r = ConvRecord::new(attrs)?;
        op_ensure!(x.rank() == 4, "C2: `data` is {x}, but should have four axes");
        let Some(channels) = attrs.opt_int("channels") else { op_bail!("C3: `channels` should be given") };
        let data = r.data.shape(x, "data")?;
        let weight = match w.rank() {
            5 => w.shape.to_vec(),
            _ => r.weight.shape(w, "weight")?,
        };
        let [n, words, _, rows, columns] = r.data_axes();
        let [o, summed, bit, ky, kx] = r.weight_axes();
        op_ensure!(
            weight.len() == 5
                && (w.rank() == 4 || w.dtype == r.weight.word)
                && may_equal(weight[o], Dim::Known(channels))
                && may_equal(weight[summed], data[words])
                && may_equal(weight[bit], Dim::Known(r.weight.bits))
                && may_equal(weight[ky], Dim::Known(r.windows[0].kernel))
                && may_equal(weight[kx], Dim::Known(r.windows[1].kernel)),
            "C4: `data` is {x}, `weight` {w}, `channels` {channels} and `kernel_size` {:?}",
            attrs.ints("kernel_size")
        );
        let mut out = [Dim::Any; 4];
        let axes = r.out_axes();
        out[axes[0]] = data[n];
        out[axes[1]] = Dim::Known(channels);
        for ((axis, w), from) in axes[2..].iter().zip(&r.windows).zip([rows, columns]) {
            if let Dim::Known(n) = data[from] {
                op_ensure!(w.outputs(n) > 0, "C7: `data` is {x}: a window of {} does not fit {n}", w.kernel);
                out[*axis] = Dim::Known(w.outputs(n));
            }
        }
        Ok(TensorType::of(out, r.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let (r, shape) = (ConvRecord::new(attrs)?, value_shapes(self, attrs, args)?.remove(0));
        let (ds, data) = sized::<5>(r.data.eval(x));
        let (ws, weight) = sized::<5>(packed_or(w, 4, &r.weight));
        let at = |axes: [usize; 5], shape: &[usize; 5], index: [usize; 5]| -> usize {
            let strides = row_major_strides(shape);
            axes.iter().zip(index).map(|(&a, i)| strides[a] * i).sum()
        };
        let strides = row_major_strides(&shape);
        let axes = r.out_axes();
        let [_, words, _, rows, columns] = r.data_axes().map(|a| data[a]);
        let out = |flat: usize| {
            let [n, o, y, x] = axes.map(|a| flat / strides[a] % shape[a]);
            let place = |k: usize, y: usize, tap: i64, extent: usize| {
                let p = y as i64 * r.windows[k].stride + tap - r.windows[k].before;
                (0..extent as i64).contains(&p).then_some(p as usize)
            };
            let mut sum = 0i64;
            for (ky, kx) in (0..r.windows[0].kernel).flat_map(|ky| (0..r.windows[1].kernel).map(move |kx| (ky, kx))) {
                let (Some(iy), Some(ix)) = (place(0, y, ky, rows), place(1, x, kx, columns)) else { continue };
                for (d, v) in (0..r.data.bits as usize).flat_map(|d| (0..r.weight.bits as usize).map(move |v| (d, v))) {
                    for c in 0..words {
                        let word = ds[at(r.data_axes(), &data, [n, c, d, iy, ix])];
                        let with = ws[at(r.weight_axes(), &weight, [o, c, v, ky as usize, kx as usize])];
                        sum = sum.wrapping_add(count(word, with, r.signed) << (d + v));
                    }
                }
            }
            sum
        };
        Ok(Tensor::from_i64_fn(r.dtype, &shape, out).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let per_element = ConvRecord::new(attrs).ok().and_then(|r| {
            let channels = args[0].as_tensor()?.shape[r.data.pack_axis].known()?;
            Some((channels * r.windows[0].kernel * r.windows[1].kernel * r.data.bits * r.weight.bits) as f64 / 8.0)
        });
        Work {
            flops: elements(out) * per_element.unwrap_or(1.0),
            bytes_read: args.iter().map(bytes).sum(),
            bytes_written: bytes(out),
        }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let (r, shape) = (ConvRecord::new(attrs)?, lowered_shapes(self, attrs, args, b)?.remove(0));
        let x = r.data.lower(x, b);
        let w = if b.shape(w).len() == 4 { r.weight.lower(w, b) } else { w };
        let [_, words, _, rows, columns] = r.data_axes();
        let out = r.out_axes();
        let pads = [rows, columns].into_iter().zip(&r.windows).zip(&out[2..]);
        let pads: Vec<_> = pads.map(|((axis, w), &o)| Pad::of(axis, w, shape[o])).collect();
        let x = pad(x, &pads, Scalar::int(0, r.data.word), b);
        let over = [b.shape(x)[words], r.windows[0].kernel, r.windows[1].kernel, r.weight.bits, r.data.bits];
        let conv = b.reduce(&shape, &over, Combine::Sum, |b, i, s| {
            let [n, o, y, x_] = out.map(|a| i[a].clone());
            let place = |axes: [usize; 5], index: [Scalar; 5]| {
                let mut at = vec![Scalar::index(0); 5];
                axes.into_iter().zip(index).for_each(|(a, v)| at[a] = v);
                at
            };
            let iy = y * r.windows[0].stride + s[1].clone();
            let ix = x_ * r.windows[1].stride + s[2].clone();
            let word = b.read(x, place(r.data_axes(), [n, s[0].clone(), s[4].clone(), iy, ix]));
            let with = place(r.weight_axes(), [o, s[0].clone(), s[3].clone(), s[1].clone(), s[2].clone()]);
            weighed(counted(word, b.read(w, with), r.signed, r.dtype), [&s[3], &s[4]])
        });
        Ok(conv.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |layouts: [&str; 2], bits: [i64; 2], unipolar: bool, padding: &[i64], x: Type, w: Type| Sample {
            attrs: vec![
                ("data_layout", layouts[0].into()),
                ("kernel_layout", layouts[1].into()),
                ("activation_bits", bits[0].into()),
                ("weight_bits", bits[1].into()),
                ("unipolar", unipolar.into()),
                ("padding", padding.into()),
                ("channels", 2.into()),
                ("kernel_size", [2, 3].into()),
                ("pack_dtype", DType::U8.into()),
                ("out_dtype", DType::I16.into()),
            ],
            args: vec![x, w],
        };
        let (u8, plain, last) = (DType::U8, ["NCHW", "OIHW"], ["NHWC", "HWIO"]);
        let mut strided = call(plain, [2, 1], false, &[1, 0], t(&[1, 8, 4, 5], DType::I32), t(&[2, 8, 2, 3], u8));
        strided.attrs.push(("strides", [2, 1].into()));
        vec![
            call(plain, [1, 1], true, &[0, 0], t(&[2, 16, 3, 4], u8), t(&[2, 16, 2, 3], u8)),
            strided,
            call(last, [2, 2], true, &[0, 1, 1, 0], t(&[1, 3, 4, 8], u8), t(&[2, 3, 8, 2], u8)),
            call(plain, [1, 2], true, &[1, 1], t(&[1, 8, 3, 3], u8), t(&[2, 1, 2, 3, 2], u8)),
        ]
    }
}
