//! Convolutions over any number of spatial axes: a table row each.

use super::{
    conv_attrs::ConvAttrs,
    conv_eval, conv_lower,
    geometry::{check_shape, kernel_sizes, shape_of, whole},
};
use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, may_equal, tensor_arg},
    },
    tensor::{DType, Layout, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &Conv { name: "nn.conv1d", spatial: "W", attrs: CONV1D },
    &CONV2D,
    &Conv { name: "nn.conv3d", spatial: "DHW", attrs: CONV3D },
    &Conv { name: "nn.contrib_conv2d_NCHWc", spatial: "HW", attrs: CONV2D_ATTRS },
    &Conv { name: "nn.contrib_depthwise_conv2d_NCHWc", spatial: "HW", attrs: CONV2D_ATTRS },
];

/// The attributes of a convolution whose defaults are these.
macro_rules! conv_attrs {
    ($ones:expr, $zeros:expr, $data:expr, $kernel:expr) => {
        &[
            AttrField::new("strides", AttrKind::Ints, AttrDefault::Ints($ones)),
            AttrField::new("padding", AttrKind::Ints, AttrDefault::Ints($zeros)),
            AttrField::new("dilation", AttrKind::Ints, AttrDefault::Ints($ones)),
            AttrField::new("groups", AttrKind::Int, AttrDefault::Int(1)),
            AttrField::new("channels", AttrKind::Int, AttrDefault::None),
            AttrField::new("kernel_size", AttrKind::Ints, AttrDefault::None),
            AttrField::new("data_layout", AttrKind::Str, AttrDefault::Str($data)),
            AttrField::new("kernel_layout", AttrKind::Str, AttrDefault::Str($kernel)),
            AttrField::new("out_layout", AttrKind::Str, AttrDefault::Str("")),
            AttrField::new("out_dtype", AttrKind::DType, AttrDefault::None),
        ]
    };
}
const CONV1D: &[AttrField] = conv_attrs!(&[1], &[0, 0], "NCW", "OIW");
const CONV2D_ATTRS: &[AttrField] = conv_attrs!(&[1, 1], &[0, 0], "NCHW", "OIHW");
const CONV3D: &[AttrField] = conv_attrs!(&[1, 1, 1], &[0, 0, 0], "NCDHW", "OIDHW");

/// `nn.conv2d`.
pub(in crate::ops) const CONV2D: Conv = Conv { name: "nn.conv2d", spatial: "HW", attrs: CONV2D_ATTRS };

/// A convolution.
#[derive(Debug)]
pub(in crate::ops) struct Conv {
    name: &'static str,
    /// The spatial axes' letters, outermost first.
    spatial: &'static str,
    attrs: &'static [AttrField],
}

/// The type relation, for convolutions and their quantized kin: the output's shape.
pub(in crate::ops) fn infer_shape(
    c: &ConvAttrs,
    attrs: &Attrs,
    x: &TensorType,
    w: &TensorType,
) -> Result<Vec<Dim>, OpError> {
    op_ensure!(
        x.dtype != DType::Bool && w.dtype != DType::Bool,
        "`data` is {x} and `weight` {w}, but the operator takes numbers only"
    );
    check_shape(&c.data, &x.shape, "data")?;
    check_shape(&c.kernel, &w.shape, "weight")?;
    let (channels, o, i) = (whole(&c.data, &x.shape, 'C'), c.weight_out(&w.shape), whole(&c.kernel, &w.shape, 'I'));
    let depthwise = c.is_depthwise(&x.shape, &w.shape);
    let out = match (depthwise, o, i) {
        (true, Dim::Known(o), Dim::Known(i)) => Dim::Known(o * i),
        _ => o,
    };
    if !depthwise {
        let wanted = channels.known().map(|n| n / c.groups);
        op_ensure!(
            wanted.is_none_or(|n| may_equal(Dim::Known(n), i)) && channels.known().is_none_or(|n| n % c.groups == 0),
            "C2: `data` is {x} ({}) with {channels} channels in {} groups, and `weight` is {w} ({}) for {i} per group",
            c.data,
            c.groups,
            c.kernel
        );
        op_ensure!(
            out.known().is_none_or(|n| n % c.groups == 0),
            "C5: {out} output channels do not divide into {} groups",
            c.groups
        );
    }
    if let Some(given) = attrs.opt_int("channels") {
        op_ensure!(
            may_equal(Dim::Known(given), out),
            "C3: `channels` is {given}, but `weight` is {w} ({}) for {out}",
            c.kernel
        );
    }
    let sizes = kernel_sizes(attrs, c.spatial, &c.kernel, w)?;
    let mut extents = Vec::new();
    for (k, (letter, size)) in c.spatial.chars().zip(&sizes).enumerate() {
        extents.push(match (whole(&c.data, &x.shape, letter), size) {
            (Dim::Known(n), Dim::Known(kernel)) => {
                let outputs = c.window(k, *kernel).outputs(n);
                op_ensure!(
                    outputs > 0,
                    "C7: `data` is {x} ({}): a window of {kernel} does not fit its {letter} axis of {n}",
                    c.data
                );
                Dim::Known(outputs)
            }
            _ => Dim::Any,
        });
    }
    shape_of(&c.out, "out_layout", |letter| match letter {
        'N' => whole(&c.data, &x.shape, 'N'),
        'C' => attrs.opt_int("channels").map_or(out, Dim::Known),
        s => extents[c.spatial.find(s).expect("the layout's letters were checked")],
    })
}

/// The weight's type, where `kernel_size` and `channels` are given.
pub(super) fn weight_type(attrs: &Attrs, spatial: &'static str, args: &[Type]) -> Option<Type> {
    let c = ConvAttrs::new(attrs, spatial).ok()?;
    let (x, channels) = (args[0].as_tensor()?, attrs.opt_int("channels")?);
    let size = attrs.opt_ints("kernel_size").filter(|s| s.len() == spatial.len())?;
    check_shape(&c.data, &x.shape, "data").ok()?;
    let ins = match whole(&c.data, &x.shape, 'C') {
        Dim::Known(n) => Dim::Known(n / c.groups),
        unknown => unknown,
    };
    let shape = shape_of(&c.kernel, "kernel_layout", |letter| match letter {
        'O' => Dim::Known(channels),
        'I' => ins,
        'G' => Dim::Known(1),
        s => Dim::Known(size[spatial.find(s).expect("the layout's letters were checked")]),
    });
    Some(TensorType::of(shape.ok()?, x.dtype).into())
}

/// Roles of the data's and the weight's axes.
pub(in crate::ops) fn axis_roles(c: &ConvAttrs, x: &[Dim], w: &[Dim]) -> AxisMap {
    let channel = |from: &Layout, primal: char, k: usize| {
        let inner = from.axes()[k].block.is_some();
        match (from.block(primal), c.out.block('C')) {
            (a, b) if a.map(|a| a.1) != b.map(|b| b.1) => AxisRole::Opaque,
            (Some(_), Some((to, _))) if inner => AxisRole::Maps(to),
            _ => AxisRole::Maps(c.out.position('C').expect("the layout's letters were checked")),
        }
    };
    let depthwise = c.is_depthwise(x, w) && whole(&c.kernel, w, 'I') == Dim::Known(1);
    let data = c.data.axes().iter().enumerate().map(|(k, axis)| match axis.primal {
        'C' if c.groups == 1 => AxisRole::Reduced,
        'C' if depthwise => channel(&c.data, 'C', k),
        'C' => AxisRole::Opaque,
        letter => {
            let to = c.out.position(letter).expect("the layout's letters were checked");
            let size = whole(&c.kernel, w, letter).known();
            match c.spatial.find(letter) {
                Some(s) if !size.is_some_and(|n| c.window(s, n).is_point()) => AxisRole::Windows(to),
                _ => AxisRole::Maps(to),
            }
        }
    });
    let weight = c.kernel.axes().iter().enumerate().map(|(k, axis)| match axis.primal {
        'O' if c.groups == 1 || depthwise => channel(&c.kernel, 'O', k),
        'O' | 'G' => AxisRole::Opaque,
        'I' if c.is_depthwise(x, w) && !depthwise => AxisRole::Opaque,
        _ => AxisRole::Reduced,
    });
    AxisMap(vec![data.collect(), weight.collect()])
}

/// Multiply-adds of a convolution, counted as two operations each.
pub(in crate::ops) fn flops(c: &ConvAttrs, x: &[Dim], w: &[Dim], out: &Type) -> f64 {
    let taps: f64 = c.spatial.chars().map(|s| whole(&c.kernel, w, s).known().unwrap_or(1) as f64).product();
    2.0 * elements(out) * taps * c.channels_per_group(x).unwrap_or(1) as f64
}

/// Samples that cover the attributes over these spatial axes.
pub(in crate::ops) fn samples(spatial: &'static str) -> Vec<Sample> {
    let axes = spatial.len();
    let (plain, last) = (format!("NC{spatial}"), format!("N{spatial}C"));
    let shape = |layout: &str, n: i64, c: i64, extents: &[i64]| -> Vec<i64> {
        let layout: Layout = layout.parse().expect("a sample's layout");
        let whole = |p: char| match p {
            'N' | 'O' => n,
            'C' | 'I' => c,
            s => extents[spatial.find(s).expect("a sample's layout")],
        };
        let block = |p| layout.block(p).map_or(1, |(_, b)| b);
        layout.axes().iter().map(|a| a.block.unwrap_or(whole(a.primal) / block(a.primal))).collect()
    };
    let big: Vec<i64> = [5, 6, 7][3 - axes..].to_vec();
    let small: Vec<i64> = [2, 3, 2][3 - axes..].to_vec();
    let ones = vec![1; axes];
    let call = |data: &str, c: i64, kernel: &str, (o, i): (i64, i64), size: &[i64], dtypes: (DType, DType)| Sample {
        attrs: vec![("data_layout", data.into()), ("kernel_layout", kernel.into())],
        args: vec![
            Type::tensor(&shape(data, 2, c, &big), dtypes.0),
            Type::tensor(&shape(kernel, o, i, size), dtypes.1),
        ],
    };
    let with = |mut s: Sample, more: Vec<(&'static str, crate::ir::AttrValue)>| {
        s.attrs.extend(more);
        s
    };
    let (f, oi) = ((DType::F32, DType::F32), format!("OI{spatial}"));
    let uneven: Vec<i64> = (0..2 * axes as i64).map(|k| k % 3).collect();
    vec![
        call(&plain, 3, &oi, (4, 3), &small, f),
        call(&plain, 4, &oi, (5, 4), &ones, f),
        with(
            call(&plain, 3, &oi, (4, 3), &small, f),
            vec![
                ("padding", uneven.into()),
                ("strides", vec![2; axes].into()),
                ("dilation", vec![2; axes].into()),
                ("channels", 4.into()),
                ("kernel_size", small.clone().into()),
            ],
        ),
        with(call(&last, 3, &format!("{spatial}IO"), (4, 3), &small, f), vec![("padding", vec![1; axes].into())]),
        with(call(&plain, 4, &oi, (6, 2), &small, f), vec![("groups", 2.into())]),
        with(call(&plain, 4, &oi, (4, 1), &small, f), vec![("groups", 4.into()), ("padding", vec![1; axes].into())]),
        with(
            call(&last, 4, &format!("{spatial}OI"), (4, 2), &small, f),
            vec![("groups", 4.into()), ("channels", 8.into())],
        ),
        with(
            call(&format!("{plain}4c"), 8, &format!("{oi}4i2o"), (6, 8), &small, f),
            vec![("out_layout", format!("{plain}2c").as_str().into()), ("padding", vec![1; axes].into())],
        ),
        with(
            call(&format!("{plain}4c"), 8, &format!("{oi}1i4o"), (8, 1), &small, f),
            vec![("groups", 8.into()), ("strides", vec![2; axes].into())],
        ),
        with(
            call(&format!("{plain}2c"), 4, &oi, (4, 2), &small, f),
            vec![("groups", 2.into()), ("out_layout", plain.as_str().into())],
        ),
        with(call(&plain, 3, &oi, (4, 3), &small, (DType::I8, DType::I8)), vec![("out_dtype", DType::I32.into())]),
        // Bytes in fours, for vectors of three widths.
        with(
            call(&format!("{plain}8c"), 16, &format!("{oi}16o4i"), (32, 16), &small, (DType::U8, DType::I8)),
            vec![("out_layout", format!("{plain}16c").as_str().into()), ("out_dtype", DType::I32.into())],
        ),
        with(
            call(&format!("{plain}4c"), 8, &format!("{oi}8o4i"), (8, 8), &small, (DType::I8, DType::U8)),
            vec![("out_layout", format!("{plain}8c").as_str().into()), ("out_dtype", DType::I32.into())],
        ),
        with(
            call(&format!("{plain}4c"), 8, &format!("{oi}4o4i"), (8, 8), &small, (DType::I8, DType::I8)),
            vec![("out_dtype", DType::I32.into())],
        ),
        with(call(&plain, 3, &oi, (4, 3), &small, (DType::U8, DType::I8)), vec![("out_dtype", DType::I32.into())]),
        with(call(&plain, 3, &oi, (4, 3), &small, (DType::I16, DType::I16)), vec![("out_dtype", DType::I32.into())]),
    ]
}

/// The shapes of the arguments as extents that may be unknown.
fn shapes(args: &[Type]) -> Option<(&[Dim], &[Dim])> {
    Some((&args[0].as_tensor()?.shape, &args[1].as_tensor()?.shape))
}

impl Op for Conv {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        "out[n, o, y..] = sum over i, k.. of data[n, g + i, y * strides + k * dilation - padding ..] * weight[o, i, k..],
        where g is the first channel of o's group, and data outside its extents is 0.
        C1: ranks and blocks are those of data_layout and kernel_layout. C2: the channels of data, divided by groups, are the
        weight's; or data's channels and the weight's outputs both equal groups (depthwise: the weight's I counts results
        per channel). C3: channels, where given, is the number of outputs. C4: kernel_size, where given, is the weight's.
        C5: groups divides inputs and outputs. C6: no padding is negative. C7: the window fits the padded data."
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
        let (x, w) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "weight")?);
        let shape = infer_shape(&ConvAttrs::new(attrs, self.spatial)?, attrs, x, w)?;
        Ok(TensorType::of(shape, attrs.opt_dtype("out_dtype").unwrap_or(x.dtype)).into())
    }
    fn complete(&self, attrs: &Attrs, args: &[Type]) -> Vec<(usize, Type)> {
        // Of groups over two spatial axes TVM wants to see the weight: they may be depthwise.
        match attrs.int("groups") > 1 && self.spatial == "HW" {
            true => Vec::new(),
            false => weight_type(attrs, self.spatial, args).map(|w| (1, w)).into_iter().collect(),
        }
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype());
        Ok(conv_eval::convolve(&ConvAttrs::new(attrs, self.spatial)?, x, w, dtype).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        match (ConvAttrs::new(attrs, self.spatial), shapes(args)) {
            (Ok(c), Some((x, w))) => axis_roles(&c, x, w),
            _ => AxisMap::opaque(args.iter().map(|a| a.as_tensor().map_or(0, TensorType::rank))),
        }
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let flops = match (ConvAttrs::new(attrs, self.spatial), shapes(args)) {
            (Ok(c), Some((x, w))) => flops(&c, x, w, out),
            _ => 0.0,
        };
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(x));
        Ok(conv_lower::convolve(&ConvAttrs::new(attrs, self.spatial)?, x, w, dtype, b).into())
    }
    fn samples(&self) -> Vec<Sample> {
        samples(self.spatial)
    }
}
