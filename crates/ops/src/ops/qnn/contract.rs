//! Products and convolutions of quantized tensors: those of the float operators, on differences from the zero points.

use super::params::{check_param, check_quantized, check_single, read_param};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar, TensorId},
    ops::{
        AttrField, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work,
        contract::{BATCH_MATMUL, DENSE, DENSE_PACK, packed_layout},
        nn::{
            CONV2D, CONV2D_TRANSPOSE, ConvAttrs,
            geometry::{offsets, whole},
            place::{extent, place_in},
        },
        op_ensure,
        util::{may_equal, tensor_arg},
    },
    tensor::{DType, Layout, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Quantized { name: "qnn.dense", doc: DENSE_DOC, inputs: WEIGHTED, base: &DENSE, channel: Channel::First },
    &Quantized { name: "qnn.conv2d", doc: CONV_DOC, inputs: WEIGHTED, base: &CONV2D, channel: Channel::Output },
    &Quantized {
        name: "qnn.conv2d_transpose",
        doc: TRANSPOSE_DOC,
        inputs: WEIGHTED,
        base: &CONV2D_TRANSPOSE,
        channel: Channel::Output,
    },
    &Quantized {
        name: "qnn.contrib_dense_pack",
        doc: PACK_DOC,
        inputs: WEIGHTED,
        base: &DENSE_PACK,
        channel: Channel::Packed,
    },
    &Quantized {
        name: "qnn.batch_matmul",
        doc: BATCH_DOC,
        inputs: PAIRED,
        base: &BATCH_MATMUL,
        channel: Channel::None,
    },
];

const WEIGHTED: &[&str] = &["data", "weight", "input_zero_point", "weight_zero_point", "input_scale", "weight_scale"];
const PAIRED: &[&str] = &["x", "y", "x_zero_point", "y_zero_point", "x_scale", "y_scale"];

macro_rules! doc {
    ($base:literal) => {
        concat!(
            "As ",
            $base,
            " of (data - input_zero_point) and (weight - weight_zero_point), both as int32; padding is 0 after the
            subtraction. The scales do not matter to the integers.
            C1: data and weight are int8, uint8 or int16 (data of dense and conv2d_transpose also uint16); out_dtype is given
            and is int16, int32 or int64. C2: the input's zero point (int32) and scale (float32) are single numbers, the
            weight's single numbers or vectors of the outputs. Further constraints are those of ",
            $base,
            "."
        )
    };
}
const DENSE_DOC: &str = doc!("nn.dense");
const CONV_DOC: &str = doc!("nn.conv2d");
const TRANSPOSE_DOC: &str = doc!("nn.conv2d_transpose");
const PACK_DOC: &str = doc!("nn.contrib_dense_pack");
const BATCH_DOC: &str = doc!("nn.batch_matmul");

/// What a vector of weight scales runs along.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Channel {
    /// There is no such vector.
    None,
    /// The weight's first axis.
    First,
    /// The output channels that the kernel layout tells.
    Output,
    /// The outputs that the weight layout tells.
    Packed,
}

/// A quantized product.
#[derive(Debug)]
struct Quantized {
    name: &'static str,
    doc: &'static str,
    inputs: &'static [&'static str],
    /// The operator on plain numbers; the attributes are the same.
    base: &'static dyn Op,
    channel: Channel,
}

/// Where the outputs are in a convolution's weight.
struct Outputs {
    layout: Layout,
    /// Whether the weight's input axis counts results per channel.
    multiplied: bool,
}

impl Quantized {
    fn outputs(&self, attrs: &Attrs, data: &[Dim], weight: &[Dim]) -> Result<Outputs, OpError> {
        if self.channel == Channel::Packed {
            return Ok(Outputs { layout: packed_layout(attrs)?, multiplied: false });
        }
        let layout: Layout =
            attrs.str("kernel_layout").parse().map_err(|e| OpError(format!("`kernel_layout`: {e}")))?;
        let multiplied = self.name == "qnn.conv2d" && ConvAttrs::new(attrs, "HW")?.is_depthwise(data, weight);
        Ok(Outputs { layout, multiplied })
    }

    /// How many elements a vector of weight zero points has, and one of weight scales.
    fn channels(&self, attrs: &Attrs, data: &[Dim], weight: &[Dim]) -> Result<[Option<Dim>; 2], OpError> {
        let one = match self.channel {
            Channel::None => Some(Dim::Known(1)),
            Channel::First => weight.first().copied(),
            Channel::Packed => Some(whole(&packed_layout(attrs)?, weight, 'N')),
            Channel::Output => {
                let o = self.outputs(attrs, data, weight)?;
                let product_of = |letters: &[char]| {
                    let product = letters.iter().map(|&l| whole(&o.layout, weight, l).known()).product::<Option<i64>>();
                    Some(product.map_or(Dim::Any, Dim::Known))
                };
                // A depthwise weight has zero points per input channel, but scales per output.
                let scales: &[char] = if o.multiplied { &['O', 'I'] } else { &['G', 'O'] };
                return Ok([product_of(&['G', 'O']), product_of(scales)]);
            }
        };
        Ok([one; 2])
    }

    /// The arguments of the plain operator.
    fn base_types(args: &[Type]) -> [Type; 2] {
        let wide = |t: &Type| match t {
            Type::Tensor(t) => TensorType { shape: t.shape.clone(), dtype: DType::I32 }.into(),
            other => other.clone(),
        };
        [wide(&args[0]), wide(&args[1])]
    }
}

/// For each element of a weight, its place in a vector of zero points.
fn channel_of_each(o: &Outputs, shape: &[usize]) -> Vec<usize> {
    let mut channel = vec![0; shape.iter().product()];
    let letters: String = o.layout.axes().iter().filter(|a| a.block.is_none()).map(|a| a.primal).collect();
    let tables: Vec<(char, Vec<usize>)> = letters.chars().map(|l| (l, offsets(&o.layout, shape, l))).collect();
    let outputs = tables.iter().find(|(l, _)| *l == 'O').map_or(1, |(_, t)| t.len());
    let step_of = |letter| match letter {
        'G' => outputs,
        // A dense layer's outputs are its N.
        'O' | 'N' => 1,
        _ => 0,
    };
    let mut all = vec![(0, 0)];
    for (letter, table) in &tables {
        let step = step_of(*letter);
        all = all
            .iter()
            .flat_map(|&(at, c)| table.iter().enumerate().map(move |(k, t)| (at + t, c + k * step)))
            .collect();
    }
    all.into_iter().for_each(|(at, c)| channel[at] = c);
    channel
}

impl Op for Quantized {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        self.inputs
    }
    fn attrs(&self) -> &'static [AttrField] {
        self.base.attrs()
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let n = self.inputs;
        let (x, w) = (tensor_arg(args, 0, n[0])?, tensor_arg(args, 1, n[1])?);
        check_quantized(x, n[0], &[DType::I8, DType::U8, DType::I16, DType::U16])?;
        check_quantized(w, n[1], &[DType::I8, DType::U8, DType::I16])?;
        let dtype = attrs.opt_dtype("out_dtype");
        op_ensure!(
            matches!(dtype, Some(DType::I16 | DType::I32 | DType::I64)),
            "C1: `out_dtype` is {}, but should be int16, int32 or int64",
            dtype.map_or("not given".to_owned(), |d| d.to_string())
        );
        check_single(args, 2, n[2], DType::I32)?;
        check_single(args, 4, n[4], DType::F32)?;
        let out = self.base.infer(attrs, &Self::base_types(args))?;
        let [zeros, scales] = self.channels(attrs, &x.shape, &w.shape)?;
        let units = if self.channel == Channel::Packed { attrs.opt_int("units") } else { None };
        op_ensure!(
            units.is_none_or(|n| zeros.is_none_or(|all| may_equal(Dim::Known(n), all))),
            "`units` is {units:?}, but `{}` is {w}, of which all outputs are taken",
            n[1]
        );
        check_param(args, 3, n[3], DType::I32, zeros)?;
        check_param(args, 5, n[5], DType::F32, scales)?;
        Ok(out)
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let [x, w, x_zero, w_zero] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let zero = x_zero.get_i64(0);
        let x = Tensor::from_i64_fn(DType::I32, x.shape(), |i| x.get_i64(i).wrapping_sub(zero));
        let each = match self.channel {
            _ if w_zero.len() == 1 => vec![0; w.len()],
            Channel::Output | Channel::Packed => {
                let dims = |t: &Tensor| t.shape().iter().map(|&n| Dim::Known(n as i64)).collect::<Vec<_>>();
                channel_of_each(&self.outputs(attrs, &dims(&x), &dims(w))?, w.shape())
            }
            _ => (0..w.len()).map(|i| i / w.shape()[1..].iter().product::<usize>()).collect(),
        };
        let w = Tensor::from_i64_fn(DType::I32, w.shape(), |i| w.get_i64(i).wrapping_sub(w_zero.get_i64(each[i])));
        self.base.eval(attrs, &[x.into(), w.into()])
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let mut roles = self.base.axes(attrs, &Self::base_types(args)).0;
        roles.extend(args[2..].iter().map(|t| {
            let shape = t.as_tensor().map(|t| t.shape.to_vec()).unwrap_or_default();
            vec![AxisRole::Opaque; shape.len()]
        }));
        // The vectors run along the weight's outputs and claim nothing, so no one else may claim that axis either.
        if args[2..].iter().any(|t| t.as_tensor().is_some_and(|t| t.elements() != Some(1))) {
            let claimed = roles[1].clone();
            for role in roles[..2].iter_mut().flatten() {
                if matches!(role, AxisRole::Maps(_)) && claimed.contains(role) {
                    *role = AxisRole::Opaque;
                }
            }
        }
        AxisMap(roles)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let plain = self.base.work(attrs, &args[..2], out);
        Work { bytes_read: args.iter().map(crate::ops::util::bytes).sum(), ..plain }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let [x, w, x_zero, w_zero] = [0, 1, 2, 3].map(|i| args[i].tensor());
        let wide = |b: &Builder, t: TensorId, i: &[Scalar]| b.read(t, i.iter().cloned()).cast(DType::I32);
        let known = |shape: &[i64]| shape.iter().map(|&n| Dim::Known(n)).collect::<Vec<_>>();
        let from = b.shape(x).to_vec();
        let data = b.map(&from, |b, i| wide(b, x, i) - read_param(b, x_zero, None));
        let shape = b.shape(w).to_vec();
        let outputs = match self.channel {
            Channel::Output | Channel::Packed => Some(self.outputs(attrs, &known(&from), &known(&shape))?),
            _ => None,
        };
        let weight = b.map(&shape, |b, i| {
            let channel = match &outputs {
                None => i[0].clone(),
                Some(o) => {
                    let place = |letter| place_in(&o.layout, letter, i).index();
                    place('G') * extent(&o.layout, &shape, 'O') + place('O') + place('N')
                }
            };
            wide(b, w, i) - read_param(b, w_zero, Some(&channel))
        });
        self.base.lower(attrs, &[data.into(), weight.into()], b)
    }
    fn samples(&self) -> Vec<Sample> {
        // Those of the plain operator on integers, and with a vector of zero points where all else is plain.
        let mut samples = Vec::new();
        for sample in self.base.samples() {
            let plain = |i: usize| sample.args[i].as_tensor().map(|t| t.shape.clone());
            let (Some(x), Some(w)) = (plain(0), plain(1)) else { continue };
            let attrs: Vec<_> = sample.attrs.iter().filter(|(n, _)| *n != "out_dtype").cloned().collect();
            let vectors = crate::ops::lookup(self.base.name()).and_then(|op| {
                let given: Vec<_> = attrs.iter().map(|(n, v)| (crate::ir::Name::from(n), v.clone())).collect();
                let [zeros, scales] = self.channels(&crate::ops::make_attrs(op, &given).ok()?, &x, &w).ok()?;
                Some((zeros?.known()?, scales?.known()?))
            });
            let units = sample.attrs.iter().find(|a| a.0 == "units").and_then(|a| a.1.as_int());
            // All outputs of a packed weight are taken here.
            if self.channel == Channel::Packed && units.zip(vectors).is_some_and(|(units, all)| units < all.0) {
                continue;
            }
            for n in std::iter::once(None).chain(vectors.filter(|n| n.0 > 1).map(Some)) {
                let (zeros, scales): (Vec<i64>, Vec<i64>) = n.into_iter().unzip();
                samples.push(Sample {
                    attrs: attrs.iter().cloned().chain([("out_dtype", DType::I32.into())]).collect(),
                    args: vec![
                        TensorType { shape: x.clone(), dtype: DType::U8 }.into(),
                        TensorType { shape: w.clone(), dtype: DType::I8 }.into(),
                        Type::tensor(&[], DType::I32),
                        Type::tensor(&zeros, DType::I32),
                        Type::tensor(&[], DType::F32),
                        Type::tensor(&scales, DType::F32),
                    ],
                });
            }
        }
        samples
    }
}
