//! Transposed convolutions over any number of spatial axes: a table row each.

use super::{
    geometry::{all_offsets, check_shape, kernel_sizes, layout_of, offsets, paddings, per_axis, shape_of, whole},
    numbers::{Num, in_arithmetic, sum_products},
    place::{Place, extent, indices, place_in, shape_in},
};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{BinOp, Builder, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, may_equal, tensor_arg},
    },
    tensor::{DType, Layout, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &ConvTranspose { name: "nn.conv1d_transpose", spatial: "W", attrs: CONV1D },
    &CONV2D_TRANSPOSE,
    &ConvTranspose { name: "nn.conv3d_transpose", spatial: "DHW", attrs: CONV3D },
];

/// The attributes of a transposed convolution whose defaults are these.
macro_rules! transpose_attrs {
    ($ones:expr, $zeros:expr, $data:expr, $kernel:expr) => {
        &[
            AttrField::new("channels", AttrKind::Int, AttrDefault::None),
            AttrField::new("kernel_size", AttrKind::Ints, AttrDefault::None),
            AttrField::new("strides", AttrKind::Ints, AttrDefault::Ints($ones)),
            AttrField::new("output_padding", AttrKind::Ints, AttrDefault::Ints($zeros)),
            AttrField::new("padding", AttrKind::Ints, AttrDefault::Ints($zeros)),
            AttrField::new("dilation", AttrKind::Ints, AttrDefault::Ints($ones)),
            AttrField::new("groups", AttrKind::Int, AttrDefault::Int(1)),
            AttrField::new("data_layout", AttrKind::Str, AttrDefault::Str($data)),
            AttrField::new("kernel_layout", AttrKind::Str, AttrDefault::Str($kernel)),
            AttrField::new("out_layout", AttrKind::Str, AttrDefault::Str("")),
            AttrField::new("out_dtype", AttrKind::DType, AttrDefault::None),
        ]
    };
}
const CONV1D: &[AttrField] = transpose_attrs!(&[1], &[0], "NCW", "IOW");
const CONV2D: &[AttrField] = transpose_attrs!(&[1, 1], &[0, 0], "NCHW", "IOHW");
const CONV3D: &[AttrField] = transpose_attrs!(&[1, 1, 1], &[0, 0, 0], "NCDHW", "IODHW");

/// `nn.conv2d_transpose`.
pub(in crate::ops) const CONV2D_TRANSPOSE: ConvTranspose =
    ConvTranspose { name: "nn.conv2d_transpose", spatial: "HW", attrs: CONV2D };

/// A transposed convolution.
#[derive(Debug)]
pub(in crate::ops) struct ConvTranspose {
    name: &'static str,
    /// The spatial axes' letters, outermost first.
    spatial: &'static str,
    attrs: &'static [AttrField],
}

/// One spatial axis: an input position `x` and a tap `k` add to the output at `x * stride + k * dilation - before`.
#[derive(Copy, Clone, Debug)]
struct Spread {
    stride: i64,
    dilation: i64,
    before: i64,
    after: i64,
    extra: i64,
}

impl Spread {
    fn outputs(&self, extent: i64, kernel: i64) -> i64 {
        (extent - 1) * self.stride + (kernel - 1) * self.dilation + 1 - self.before - self.after + self.extra
    }
}

/// The attributes, read and checked.
struct Plan {
    spatial: &'static str,
    data: Layout,
    kernel: Layout,
    out: Layout,
    groups: i64,
    spreads: Vec<Spread>,
}

impl Plan {
    fn new(attrs: &Attrs, spatial: &'static str) -> Result<Plan, OpError> {
        let axes = spatial.len();
        let out = match attrs.str("out_layout") {
            "" => attrs.str("data_layout"),
            given => given,
        };
        let groups = attrs.int("groups");
        op_ensure!(groups > 0, "C5: `groups` is {groups}, but should be positive");
        let (strides, dilation) = (per_axis(attrs, "strides", axes)?, per_axis(attrs, "dilation", axes)?);
        let extra = attrs.ints("output_padding");
        op_ensure!(
            extra.len() >= axes || extra.len() == 1,
            "`output_padding` has {} numbers, but should have {axes}",
            extra.len()
        );
        op_ensure!(extra.iter().all(|&e| e >= 0), "C6: `output_padding` is {extra:?}, but should not be negative");
        let spread = |(k, (before, after)): (usize, (i64, i64))| Spread {
            stride: strides[k],
            dilation: dilation[k],
            before,
            after,
            extra: extra[if extra.len() == 1 { 0 } else { k }],
        };
        let letters = format!("NC{spatial}");
        Ok(Plan {
            spatial,
            data: layout_of(attrs.str("data_layout"), "data_layout", &letters, "C")?,
            kernel: layout_of(attrs.str("kernel_layout"), "kernel_layout", &format!("IO{spatial}"), "IO")?,
            out: layout_of(out, "out_layout", &letters, "C")?,
            groups,
            spreads: paddings(attrs, axes)?.into_iter().enumerate().map(spread).collect(),
        })
    }

    fn axis(&self, letter: char) -> usize {
        self.spatial.find(letter).expect("the layout's letters were checked")
    }
}

/// The transposed convolution.
fn spread_in<T: Num>(p: &Plan, x: &Tensor, w: &Tensor, dtype: DType) -> Tensor {
    let letters: Vec<char> = p.spatial.chars().collect();
    let tables = |layout: &Layout, shape: &[usize], first: [char; 2]| -> Vec<Vec<usize>> {
        first.iter().chain(&letters).map(|&l| offsets(layout, shape, l)).collect()
    };
    let (data, kernel) = (tables(&p.data, x.shape(), ['N', 'C']), tables(&p.kernel, w.shape(), ['I', 'O']));
    let plain = |t: &Tensor, tables: &[Vec<usize>]| -> Vec<T> {
        let all = T::read(t);
        all_offsets(tables).into_iter().map(|o| all[o]).collect()
    };
    let (xs, ws) = (plain(x, &data), plain(w, &kernel));
    let (batch, ins, per_group, groups) = (data[0].len(), data[1].len(), kernel[1].len(), p.groups as usize);
    let outs = per_group * groups;
    let outputs: Vec<i64> = (0..letters.len())
        .map(|k| p.spreads[k].outputs(data[k + 2].len() as i64, kernel[k + 2].len() as i64))
        .collect();
    // Every pair of input position and tap, with the output position that it adds to.
    let mut steps: Vec<(usize, usize, usize)> = vec![(0, 0, 0)];
    for (k, s) in p.spreads.iter().enumerate() {
        let (extent, taps, outputs) = (data[k + 2].len(), kernel[k + 2].len(), outputs[k]);
        let pairs: Vec<(usize, usize, usize)> = (0..extent)
            .flat_map(|x| (0..taps).map(move |t| (x, t)))
            .map(|(x, t)| (x, t, x as i64 * s.stride + t as i64 * s.dilation - s.before))
            .filter(|(_, _, y)| (0..outputs).contains(y))
            .map(|(x, t, y)| (x, t, y as usize))
            .collect();
        let outputs = outputs as usize;
        steps = steps
            .iter()
            .flat_map(|&(x, t, y)| {
                pairs.iter().map(move |&(px, pt, py)| (x * extent + px, t * taps + pt, y * outputs + py))
            })
            .collect();
    }
    let plane = |tables: &[Vec<usize>]| tables[2..].iter().map(Vec::len).product::<usize>();
    let (in_plane, taps) = (plane(&data), plane(&kernel));
    let out_plane: usize = outputs.iter().map(|&n| n as usize).product();
    let mut sums = vec![T::default(); batch * outs * out_plane];
    for n in 0..batch {
        for i in 0..ins {
            let from = &xs[(n * ins + i) * in_plane..][..in_plane];
            for o in 0..per_group {
                let to = &mut sums[(n * outs + i / (ins / groups) * per_group + o) * out_plane..][..out_plane];
                let weights = &ws[(i * per_group + o) * taps..][..taps];
                steps.iter().for_each(|&(x, t, y)| to[y] += from[x] * weights[t]);
            }
        }
    }
    let shape: Vec<usize> = shape_in(&p.out, |letter| match letter {
        'N' => batch as i64,
        'C' => outs as i64,
        s => outputs[p.axis(s)],
    })
    .into_iter()
    .map(|n| n as usize)
    .collect();
    let mut placed = vec![T::default(); sums.len()];
    all_offsets(&tables(&p.out, &shape, ['N', 'C'])).into_iter().zip(sums).for_each(|(o, v)| placed[o] = v);
    T::write(dtype, &shape, &placed)
}

/// The data with zeros between and around its elements, so that an ordinary convolution with the reversed weight follows.
fn spread_data(p: &Plan, x: TensorId, kernel: &[i64], outputs: &[i64], b: &mut Builder) -> TensorId {
    let from = b.shape(x).to_vec();
    let mut shape = from.clone();
    let axes: Vec<usize> = p.spatial.chars().map(|l| p.data.position(l).expect("checked with the layout")).collect();
    for (k, &axis) in axes.iter().enumerate() {
        shape[axis] = outputs[k] + (kernel[k] - 1) * p.spreads[k].dilation;
    }
    let zero = Scalar::int(0, b.dtype(x));
    b.map(&shape, |b, i| {
        let (mut index, mut inside) = (i.to_vec(), Scalar::bool(true));
        for (k, &axis) in axes.iter().enumerate() {
            let s = p.spreads[k];
            let at = i[axis].clone() - ((kernel[k] - 1) * s.dilation - s.before);
            inside = inside.and(at.clone().ge(Scalar::index(0)));
            inside = inside.and(at.clone().lt(Scalar::index((from[axis] - 1) * s.stride + 1)));
            if s.stride > 1 {
                let rest = at.clone().floor_mod(s.stride);
                inside = inside.and(Scalar::binary(BinOp::Eq, rest, Scalar::index(0)));
            }
            index[axis] = at.floor_div(s.stride);
        }
        Scalar::select(inside, b.read(x, index), zero)
    })
}

impl Op for ConvTranspose {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        "Each data[n, i, x..] * weight[i, o, k..] adds to out[n, g + o, x * strides + k * dilation - padding ..], where g is
        the first output of i's group; output_padding lengthens the output at its ends.
        C1: ranks and blocks are those of data_layout and kernel_layout. C2: data's channels are the weight's inputs.
        C3: channels, where given, is the weight's outputs times groups. C4: kernel_size, where given, is the weight's.
        C5: groups divides the inputs. C6: output_padding is not negative. C7: the output is not empty."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "weight"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, w, p) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "weight")?, Plan::new(attrs, self.spatial)?);
        check_shape(&p.data, &x.shape, "data")?;
        check_shape(&p.kernel, &w.shape, "weight")?;
        let (channels, i) = (whole(&p.data, &x.shape, 'C'), whole(&p.kernel, &w.shape, 'I'));
        op_ensure!(
            may_equal(channels, i),
            "C2: `data` is {x} ({}) with {channels} channels, but `weight` is {w} ({}) for {i}",
            p.data,
            p.kernel
        );
        op_ensure!(
            i.known().is_none_or(|n| n % p.groups == 0),
            "C5: {i} channels do not divide into {} groups",
            p.groups
        );
        let out = whole(&p.kernel, &w.shape, 'O').known().map_or(Dim::Any, |o| Dim::Known(o * p.groups));
        if let Some(given) = attrs.opt_int("channels") {
            op_ensure!(
                may_equal(Dim::Known(given), out),
                "C3: `channels` is {given}, but `weight` is {w} ({}) for {out} in {} groups",
                p.kernel,
                p.groups
            );
        }
        let sizes = kernel_sizes(attrs, self.spatial, &p.kernel, w)?;
        let mut extents = Vec::new();
        for (k, (letter, size)) in self.spatial.chars().zip(&sizes).enumerate() {
            extents.push(match (whole(&p.data, &x.shape, letter), size) {
                (Dim::Known(n), Dim::Known(kernel)) => {
                    let outputs = p.spreads[k].outputs(n, *kernel);
                    op_ensure!(outputs > 0, "C7: `data` is {x} ({}): nothing of axis {letter} is left", p.data);
                    Dim::Known(outputs)
                }
                _ => Dim::Any,
            });
        }
        let shape = shape_of(&p.out, "out_layout", |letter| match letter {
            'N' => whole(&p.data, &x.shape, 'N'),
            'C' => attrs.opt_int("channels").map_or(out, Dim::Known),
            s => extents[p.axis(s)],
        })?;
        Ok(TensorType::of(shape, attrs.opt_dtype("out_dtype").unwrap_or(x.dtype)).into())
    }
    fn complete(&self, attrs: &Attrs, args: &[Type]) -> Vec<(usize, Type)> {
        let weight = || -> Option<Type> {
            let p = Plan::new(attrs, self.spatial).ok()?;
            let (x, channels) = (args[0].as_tensor()?, attrs.opt_int("channels")?);
            let size = attrs.opt_ints("kernel_size").filter(|s| s.len() == self.spatial.len())?;
            check_shape(&p.data, &x.shape, "data").ok()?;
            let shape = shape_of(&p.kernel, "kernel_layout", |letter| match letter {
                'I' => whole(&p.data, &x.shape, 'C'),
                'O' => Dim::Known(channels / p.groups),
                s => Dim::Known(size[p.axis(s)]),
            });
            Some(TensorType::of(shape.ok()?, x.dtype).into())
        };
        weight().map(|w| (1, w)).into_iter().collect()
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, w, p) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs, self.spatial)?);
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype());
        let out = in_arithmetic!(dtype, spread_in(&p, x, w, dtype));
        Ok(out.into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let ranks = args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank));
        let Ok(p) = Plan::new(attrs, self.spatial) else { return AxisMap::opaque(ranks) };
        let to = |letter| p.out.position(letter).expect("the layout's letters were checked");
        let data = p.data.axes().iter().map(|axis| match axis.primal {
            'N' => AxisRole::Maps(to('N')),
            'C' if p.groups == 1 => AxisRole::Reduced,
            _ => AxisRole::Opaque,
        });
        let weight = p.kernel.axes().iter().map(|axis| match axis.primal {
            'O' if p.groups == 1 && p.kernel.block('O').is_none() && p.out.block('C').is_none() => {
                AxisRole::Maps(to('C'))
            }
            'O' => AxisRole::Opaque,
            'I' if p.groups > 1 => AxisRole::Opaque,
            _ => AxisRole::Reduced,
        });
        AxisMap(vec![data.collect(), weight.collect()])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let per_input = match (Plan::new(attrs, self.spatial), args[1].as_tensor()) {
            (Ok(p), Some(w)) => {
                let letters = self.spatial.chars().chain(['O']);
                letters.map(|l| whole(&p.kernel, &w.shape, l).known().unwrap_or(1) as f64).product()
            }
            _ => 0.0,
        };
        // Kernels multiply the zeros between elements, too.
        let spread: i64 = Plan::new(attrs, self.spatial).map_or(1, |p| p.spreads.iter().map(|s| s.stride).product());
        let flops = 2.0 * elements(&args[0]) * per_input * spread as f64;
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, w, p) = (args[0].tensor(), args[1].tensor(), Plan::new(attrs, self.spatial)?);
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(x));
        let (xs, ws) = (b.shape(x).to_vec(), b.shape(w).to_vec());
        let (per_group, ins) = (extent(&p.kernel, &ws, 'O'), extent(&p.kernel, &ws, 'I') / p.groups);
        let kernel: Vec<i64> = self.spatial.chars().map(|l| extent(&p.kernel, &ws, l)).collect();
        let outputs: Vec<i64> = self
            .spatial
            .chars()
            .enumerate()
            .map(|(k, l)| p.spreads[k].outputs(extent(&p.data, &xs, l), kernel[k]))
            .collect();
        let spread = spread_data(&p, x, &kernel, &outputs, b);
        let shape = shape_in(&p.out, |letter| match letter {
            'N' => extent(&p.data, &xs, 'N'),
            'C' => per_group * p.groups,
            s => outputs[p.axis(s)],
        });
        let block = match (p.kernel.block('I'), p.data.block('C')) {
            (Some((_, block)), _) | (None, Some((_, block))) if ins % block == 0 => block,
            _ => 1,
        };
        let mut over = vec![ins / block];
        over.extend(&kernel);
        if block > 1 {
            over.push(block);
        }
        let out = sum_products(b, &shape, &over, dtype, |b, i, r| {
            let out = place_in(&p.out, 'C', i);
            let inner = if block > 1 { r[r.len() - 1].clone() } else { Scalar::index(0) };
            let summed = Place { outer: r[0].clone(), inner, block };
            let (channel, output) = match p.groups {
                1 => (summed, out),
                _ => {
                    let first = out.index().floor_div(per_group) * (ins / block);
                    let channel = Place { outer: first + summed.outer.clone(), ..summed };
                    (channel, Place::flat(out.index().floor_mod(per_group)))
                }
            };
            let data = indices(&p.data, |letter| match letter {
                'N' => place_in(&p.out, 'N', i),
                'C' => channel.clone(),
                s => {
                    let k = p.axis(s);
                    let at = place_in(&p.out, s, i).index() + r[k + 1].clone() * p.spreads[k].dilation;
                    Place::flat(at)
                }
            });
            let weight = indices(&p.kernel, |letter| match letter {
                'I' => channel.clone(),
                'O' => output.clone(),
                s => Place::flat(Scalar::index(kernel[p.axis(s)] - 1) - r[p.axis(s) + 1].clone()),
            });
            (b.read(spread, data), b.read(w, weight))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let axes = self.spatial.len();
        let (plain, last) = (format!("NC{}", self.spatial), format!("N{}C", self.spatial));
        let (io, oi) = (format!("IO{}", self.spatial), format!("{}OI", self.spatial));
        let (big, small): (&[i64], &[i64]) = (&[2, 3, 4][3 - axes..], &[2, 3, 2][3 - axes..]);
        let call = |data: &str, x: Vec<i64>, kernel: &str, w: Vec<i64>, dtype, more: Vec<(&'static str, AttrValue)>| {
            let base = vec![("data_layout", data.into()), ("kernel_layout", kernel.into())];
            Sample {
                attrs: base.into_iter().chain(more).collect(),
                args: vec![Type::tensor(&x, dtype), Type::tensor(&w, dtype)],
            }
        };
        let nc = |n: i64, c: i64| [&[n, c], big].concat();
        let kernel = |i: i64, o: i64| [&[i, o], small].concat();
        let two: AttrValue = vec![2; axes].into();
        let one: AttrValue = vec![1; axes].into();
        let f = DType::F32;
        vec![
            call(&plain, nc(2, 3), &io, kernel(3, 4), f, vec![]),
            call(
                &plain,
                nc(1, 3),
                &io,
                kernel(3, 4),
                f,
                vec![
                    ("strides", two.clone()),
                    ("padding", one.clone()),
                    ("output_padding", one.clone()),
                    ("channels", 4.into()),
                    ("kernel_size", small.into()),
                ],
            ),
            call(&plain, nc(1, 2), &io, kernel(2, 2), f, vec![("dilation", two.clone()), ("strides", two.clone())]),
            call(&plain, nc(1, 4), &io, kernel(4, 3), f, vec![("groups", 2.into()), ("strides", two)]),
            call(
                &last,
                [&[1], big, &[3]].concat(),
                &oi,
                [small, &[2, 3]].concat(),
                f,
                vec![("padding", (0..2 * axes as i64).map(|k| k % 2).collect::<Vec<_>>().into())],
            ),
            call(
                &format!("{plain}2c"),
                [&nc(1, 2)[..], &[2]].concat(),
                &format!("{io}2i3o"),
                [&kernel(2, 2)[..], &[2, 3]].concat(),
                f,
                vec![("out_layout", format!("{plain}2c").as_str().into())],
            ),
            call(&plain, nc(1, 2), &io, kernel(2, 2), DType::I8, vec![("out_dtype", DType::I32.into())]),
        ]
    }
}
