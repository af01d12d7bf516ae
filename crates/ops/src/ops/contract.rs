//! Dense layers and matrix multiplications.

use super::{
    AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work,
    nn::{
        geometry::{all_offsets, check_shape, layout_of, offsets, whole},
        numbers::{Num, dot, in_arithmetic, sum_products},
        place::{Place, extent, indices},
    },
    op_ensure,
    util::{bytes, elements, may_equal, tensor_arg},
};
use crate::{
    ir::{AttrValue, Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand, Scalar},
    tensor::{DType, Layout, Tensor, Value},
};

/// The family.
pub(super) const OPS: Family = &[&DENSE, &MATMUL, &BATCH_MATMUL, &DENSE_PACK];

const UNITS: AttrField = AttrField::new("units", AttrKind::Int, AttrDefault::None);
const OUT_DTYPE: AttrField = AttrField::new("out_dtype", AttrKind::DType, AttrDefault::None);
const TRANSPOSE_A: AttrField = AttrField::new("transpose_a", AttrKind::Bool, AttrDefault::Bool(false));
const TRANSPOSE_B: AttrField = AttrField::new("transpose_b", AttrKind::Bool, AttrDefault::Bool(false));
const WEIGHT_LAYOUT: AttrField = AttrField::new("weight_layout", AttrKind::Str, AttrDefault::Str("NC"));

/// A product of a tensor's last axes with a matrix.
#[derive(Debug)]
pub(super) struct Matmul {
    name: &'static str,
    doc: &'static str,
    inputs: &'static [&'static str],
    attrs: &'static [AttrField],
    /// Which sides are transposed, where attributes do not say.
    transposed: Option<(bool, bool)>,
}

/// `nn.dense`.
pub(super) const DENSE: Matmul = Matmul {
    name: "nn.dense",
    doc: "out[.., n] = sum over k of data[.., k] * weight[n, k].
        C1: data has at least one axis, weight has two. C2: data's last extent is weight's second.
        C3: units, where given, is weight's first extent. C4: out_dtype, where given, is the sum's type, else data's.",
    inputs: &["data", "weight"],
    attrs: &[UNITS, OUT_DTYPE],
    transposed: Some((false, true)),
};

const MATMUL: Matmul = Matmul {
    name: "nn.matmul",
    doc: "out[.., m, n] = sum over k of tensor_a[.., m, k] * tensor_b[k, n], each with its last two axes exchanged where
        transpose_a or transpose_b is set.
        C1: tensor_a has at least one axis (two where it is transposed), tensor_b has two. C2: the summed extents are equal.
        C3: units, where given, is n. C4: out_dtype, where given, is the sum's type, else tensor_a's.",
    inputs: &["tensor_a", "tensor_b"],
    attrs: &[UNITS, OUT_DTYPE, TRANSPOSE_A, TRANSPOSE_B],
    transposed: None,
};

/// The transposed copy of `batch` matrices of these extents.
fn transpose<T: Num>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
    let matrix = |m: &[T]| (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c)).map(|i| m[i]).collect();
    values.chunks(rows * columns).flat_map(|m| -> Vec<T> { matrix(m) }).collect()
}

/// `a` of rows of `k` times the rows of `b`, also of `k`.
fn products<T: Num>(a: &[T], b: &[T], k: usize, rows: usize, columns: usize) -> Vec<T> {
    let row = |m: usize| (0..columns).map(move |n| (m, n));
    (0..rows).flat_map(row).map(|(m, n)| dot(&a[m * k..][..k], &b[n * k..][..k])).collect()
}

fn eval_matmul<T: Num>(a: &Tensor, b: &Tensor, (ta, tb): (bool, bool), dtype: DType) -> Tensor {
    let rank = a.shape().len();
    let mut shape = a.shape().to_vec();
    if ta {
        shape.swap(rank - 1, rank - 2);
    }
    let (k, n) = (shape[rank - 1], b.shape()[if tb { 0 } else { 1 }]);
    shape[rank - 1] = n;
    let rows = shape[..rank - 1].iter().product();
    let (mut xs, mut ws) = (T::read(a), T::read(b));
    if ta && !xs.is_empty() {
        xs = transpose(&xs, k, shape[rank - 2]);
    }
    if !tb && !ws.is_empty() {
        ws = transpose(&ws, k, n);
    }
    T::write(dtype, &shape, &products(&xs, &ws, k, rows, n))
}

impl Matmul {
    fn transposed(&self, attrs: &Attrs) -> (bool, bool) {
        self.transposed.unwrap_or_else(|| (attrs.bool("transpose_a"), attrs.bool("transpose_b")))
    }
}

impl Op for Matmul {
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
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (na, nb) = (self.inputs[0], self.inputs[1]);
        let (x, w) = (tensor_arg(args, 0, na)?, tensor_arg(args, 1, nb)?);
        let (ta, tb) = self.transposed(attrs);
        op_ensure!(
            x.rank() > ta as usize && w.rank() == 2,
            "C1: `{na}` is {x} and `{nb}` is {w}, but should have at least {} and two axes",
            1 + ta as usize
        );
        let mut shape = x.shape.to_vec();
        let last = x.rank() - 1;
        if ta {
            shape.swap(last, last - 1);
        }
        let (k, n) = if tb { (w.shape[1], w.shape[0]) } else { (w.shape[0], w.shape[1]) };
        op_ensure!(
            may_equal(shape[last], k),
            "C2: `{na}` is {x} and `{nb}` is {w}: the summed extents {} and {k} should be equal",
            shape[last]
        );
        if let Some(units) = attrs.opt_int("units") {
            op_ensure!(may_equal(Dim::Known(units), n), "C3: `units` is {units}, but `{nb}` is {w}");
        }
        shape[last] = attrs.opt_int("units").map_or(n, Dim::Known);
        Ok(TensorType::of(shape, attrs.opt_dtype("out_dtype").unwrap_or(x.dtype)).into())
    }
    fn complete(&self, attrs: &Attrs, args: &[Type]) -> Vec<(usize, Type)> {
        let (ta, tb) = self.transposed(attrs);
        let (Some(x), Some(units)) = (args[0].as_tensor(), attrs.opt_int("units")) else { return Vec::new() };
        let Some(k) = x.rank().checked_sub(1 + ta as usize).map(|axis| x.shape[axis]) else { return Vec::new() };
        let shape = if tb { [Dim::Known(units), k] } else { [k, Dim::Known(units)] };
        vec![(1, TensorType::of(shape, x.dtype).into())]
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype());
        Ok(in_arithmetic!(dtype, eval_matmul(x, w, self.transposed(attrs), dtype)).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let rank = args[0].as_tensor().map_or(1, TensorType::rank);
        let (ta, tb) = self.transposed(attrs);
        let mut data: Vec<AxisRole> = (0..rank - 1).map(AxisRole::Maps).collect();
        data.push(AxisRole::Reduced);
        if ta {
            data.swap(rank - 1, rank - 2);
        }
        let (n, k) = (AxisRole::Maps(rank - 1), AxisRole::Reduced);
        AxisMap(vec![data, if tb { vec![n, k] } else { vec![k, n] }])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let axis = if self.transposed(attrs).1 { 1 } else { 0 };
        let k = args[1].as_tensor().and_then(|w| w.shape[axis].known()).unwrap_or(1) as f64;
        Work { flops: 2.0 * k * elements(out), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, w) = (args[0].tensor(), args[1].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(x));
        let (ta, tb) = self.transposed(attrs);
        let (k, n) = if tb { (b.shape(w)[1], b.shape(w)[0]) } else { (b.shape(w)[0], b.shape(w)[1]) };
        let mut shape = b.shape(x).to_vec();
        let last = shape.len() - 1;
        if ta {
            shape.swap(last, last - 1);
        }
        shape[last] = n;
        let out = sum_products(b, &shape, &[k], dtype, |b, i, r| {
            let mut row = i.to_vec();
            row[last] = r[0].clone();
            if ta {
                row.swap(last, last - 1);
            }
            let (n, k) = (i[last].clone(), r[0].clone());
            let column = if tb { [n, k] } else { [k, n] };
            (b.read(x, row), b.read(w, column))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |a: &[i64], b: &[i64], d: DType, attrs: Vec<(&'static str, AttrValue)>| Sample {
            attrs,
            args: vec![Type::tensor(a, d), Type::tensor(b, d)],
        };
        let f = DType::F32;
        match self.transposed {
            Some(_) => vec![
                call(&[2, 3], &[4, 3], f, vec![]),
                call(&[1, 8], &[1, 8], f, vec![]),
                call(&[2, 3, 10], &[4, 10], f, vec![("units", 4.into())]),
                call(&[2, 3], &[4, 3], DType::I8, vec![("out_dtype", DType::I32.into())]),
            ],
            None => vec![
                call(&[2, 3], &[3, 4], f, vec![]),
                call(&[2, 3], &[4, 3], f, vec![("transpose_b", true.into())]),
                call(&[3, 2], &[3, 4], f, vec![("transpose_a", true.into()), ("units", 4.into())]),
                call(&[5, 3, 2], &[4, 3], f, vec![("transpose_a", true.into()), ("transpose_b", true.into())]),
                call(&[2, 3], &[3, 4], DType::U8, vec![("out_dtype", DType::I32.into())]),
            ],
        }
    }
}

/// `nn.batch_matmul`.
#[derive(Debug)]
pub(super) struct BatchMatmul;

/// `nn.batch_matmul`.
pub(super) const BATCH_MATMUL: BatchMatmul = BatchMatmul;

/// The extents of one side: batch, outer, summed.
fn side<T: Copy>(shape: &[T], summed_last: bool) -> (T, T, T) {
    if summed_last { (shape[0], shape[1], shape[2]) } else { (shape[0], shape[2], shape[1]) }
}

fn eval_batch<T: Num>(x: &Tensor, y: &Tensor, (ta, tb): (bool, bool), dtype: DType) -> Tensor {
    let ((ba, m, k), (bb, n, _)) = (side(x.shape(), !ta), side(y.shape(), tb));
    let (mut xs, mut ys) = (T::read(x), T::read(y));
    if ta && !xs.is_empty() {
        xs = transpose(&xs, k, m);
    }
    if !tb && !ys.is_empty() {
        ys = transpose(&ys, k, n);
    }
    let batch = if ba == 1 { bb } else { ba };
    let at = |b: usize, own: usize, size: usize| if own == 1 { 0 } else { b * size };
    let out: Vec<T> =
        (0..batch).flat_map(|b| products(&xs[at(b, ba, m * k)..], &ys[at(b, bb, n * k)..], k, m, n)).collect();
    T::write(dtype, &[batch, m, n], &out)
}

impl Op for BatchMatmul {
    fn name(&self) -> &'static str {
        "nn.batch_matmul"
    }
    fn doc(&self) -> &'static str {
        "out[b, m, n] = sum over k of tensor_a[b, m, k] * tensor_b[b, k, n], each with its last two axes exchanged where
        transpose_a or transpose_b is set.
        C1: both have three axes. C2: the summed extents are equal. C3: the batches are equal, or one of them is 1.
        C4: out_dtype, where given, is the sum's type, else tensor_a's."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["tensor_a", "tensor_b"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        &[OUT_DTYPE, TRANSPOSE_A, TRANSPOSE_B]
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, y) = (tensor_arg(args, 0, "tensor_a")?, tensor_arg(args, 1, "tensor_b")?);
        op_ensure!(
            x.rank() == 3 && y.rank() == 3,
            "C1: `tensor_a` is {x} and `tensor_b` is {y}, but both should have three axes"
        );
        let (ta, tb) = (attrs.bool("transpose_a"), attrs.bool("transpose_b"));
        let ((ba, m, ka), (bb, n, kb)) = (side(&x.shape, !ta), side(&y.shape, tb));
        op_ensure!(
            may_equal(ka, kb),
            "C2: `tensor_a` is {x} and `tensor_b` is {y}: the summed extents {ka} and {kb} should be equal"
        );
        let batch = match (ba, bb) {
            (Dim::Known(1), b) | (b, Dim::Known(1)) => b,
            (Dim::Known(a), Dim::Known(b)) => {
                op_ensure!(a == b, "C3: `tensor_a` is {x} and `tensor_b` is {y}: the batches {a} and {b} differ");
                ba
            }
            _ => Dim::Any,
        };
        Ok(TensorType::of([batch, m, n], attrs.opt_dtype("out_dtype").unwrap_or(x.dtype)).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, y) = (args[0].tensor(), args[1].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype());
        let transposed = (attrs.bool("transpose_a"), attrs.bool("transpose_b"));
        Ok(in_arithmetic!(dtype, eval_batch(x, y, transposed, dtype)).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let batch = |arg: &Type| match arg.as_tensor().map(|t| t.shape[0]) {
            Some(Dim::Known(1)) => AxisRole::Broadcasts(0),
            Some(Dim::Known(_)) => AxisRole::Maps(0),
            _ => AxisRole::Opaque,
        };
        let roles = |arg: usize, outer: usize, summed_last: bool| match summed_last {
            true => vec![batch(&args[arg]), AxisRole::Maps(outer), AxisRole::Reduced],
            false => vec![batch(&args[arg]), AxisRole::Reduced, AxisRole::Maps(outer)],
        };
        AxisMap(vec![roles(0, 1, !attrs.bool("transpose_a")), roles(1, 2, attrs.bool("transpose_b"))])
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let axis = if attrs.bool("transpose_a") { 1 } else { 2 };
        let k = args[0].as_tensor().and_then(|t| t.shape[axis].known()).unwrap_or(1) as f64;
        Work { flops: 2.0 * k * elements(out), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, y) = (args[0].tensor(), args[1].tensor());
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(x));
        let (ta, tb) = (attrs.bool("transpose_a"), attrs.bool("transpose_b"));
        let ((ba, m, k), (bb, n, _)) = (side(b.shape(x), !ta), side(b.shape(y), tb));
        let batch = if ba == 1 { bb } else { ba };
        let out = sum_products(b, &[batch, m, n], &[k], dtype, |b, i, r| {
            let at = |own: i64, outer: &Scalar, summed_last: bool| {
                let batch = if b.stands_still(own, &i[0]) { Scalar::index(0) } else { i[0].clone() };
                let (outer, k) = (outer.clone(), r[0].clone());
                if summed_last { [batch, outer, k] } else { [batch, k, outer] }
            };
            (b.read(x, at(ba, &i[1], !ta)), b.read(y, at(bb, &i[2], tb)))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |a: &[i64], b: &[i64], d: DType, ta: bool, tb: bool| Sample {
            attrs: vec![("transpose_a", ta.into()), ("transpose_b", tb.into())],
            args: vec![Type::tensor(a, d), Type::tensor(b, d)],
        };
        let mut samples = vec![
            call(&[2, 3, 4], &[2, 4, 5], DType::F32, false, false),
            call(&[2, 3, 4], &[2, 5, 4], DType::F32, false, true),
            call(&[2, 4, 3], &[1, 4, 5], DType::F32, true, false),
            call(&[1, 4, 3], &[2, 5, 4], DType::F32, true, true),
            call(&[2, 3, 4], &[2, 5, 4], DType::I8, false, true),
        ];
        samples[4].attrs.push(("out_dtype", DType::I32.into()));
        samples
    }
}

/// `nn.contrib_dense_pack`.
#[derive(Debug)]
pub(super) struct DensePack;

/// `nn.contrib_dense_pack`.
pub(super) const DENSE_PACK: DensePack = DensePack;

/// The weight's layout: outputs and summed axis, either in blocks.
pub(super) fn packed_layout(attrs: &Attrs) -> Result<Layout, OpError> {
    layout_of(attrs.str("weight_layout"), "weight_layout", "NC", "NC")
}

/// How many of the weight's outputs there are: where `units` is given, all but those that fill the last block up.
fn packed_outputs(attrs: &Attrs, outputs: i64) -> i64 {
    attrs.opt_int("units").map_or(outputs, |units| units.min(outputs))
}

fn eval_packed<T: Num>(attrs: &Attrs, layout: &Layout, x: &Tensor, w: &Tensor, dtype: DType) -> Tensor {
    let mut tables = [offsets(layout, w.shape(), 'N'), offsets(layout, w.shape(), 'C')];
    let outputs = packed_outputs(attrs, tables[0].len() as i64);
    tables[0].truncate(outputs as usize);
    let (n, k, all) = (tables[0].len(), tables[1].len(), T::read(w));
    let ws: Vec<T> = all_offsets(&tables).into_iter().map(|o| all[o]).collect();
    let mut shape = x.shape().to_vec();
    let rows = shape[..shape.len() - 1].iter().product();
    shape[x.shape().len() - 1] = n;
    T::write(dtype, &shape, &products(&T::read(x), &ws, k, rows, n))
}

impl Op for DensePack {
    fn name(&self) -> &'static str {
        "nn.contrib_dense_pack"
    }
    fn doc(&self) -> &'static str {
        "out[.., n] = sum over k of data[.., k] * weight[n, k], the weight in blocks as weight_layout says (\"NC16n\": n / 16, k,
        n % 16).
        C1: data has two axes or more, weight those of its layout. C2: data's last extent is the weight's summed one.
        C3: units, where given, is the weight's outputs, or fewer by less than a block: those that fill the last block up are
        left out. C4: out_dtype, where given, is the sum's type, else data's."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "weight"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        &[UNITS, OUT_DTYPE, WEIGHT_LAYOUT]
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let (x, w, layout) = (tensor_arg(args, 0, "data")?, tensor_arg(args, 1, "weight")?, packed_layout(attrs)?);
        op_ensure!(x.rank() >= 2, "C1: `data` is {x}, but should have at least two axes");
        check_shape(&layout, &w.shape, "weight")?;
        let (n, k) = (whole(&layout, &w.shape, 'N'), whole(&layout, &w.shape, 'C'));
        let last = x.rank() - 1;
        op_ensure!(may_equal(x.shape[last], k), "C2: `data` is {x}, but `weight` is {w} ({layout}), for {k}");
        let block = layout.block('N').map_or(1, |(_, block)| block);
        let outputs = match (attrs.opt_int("units"), n) {
            (Some(units), Dim::Known(n)) => {
                let fits = units <= n && n - units < block;
                op_ensure!(fits, "C3: `units` is {units}, but `weight` is {w} ({layout})");
                Dim::Known(units)
            }
            _ => n,
        };
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype);
        Ok(TensorType::of(x.shape[..last].iter().copied().chain([outputs]), dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (x, w, layout) = (args[0].tensor(), args[1].tensor(), packed_layout(attrs)?);
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(x.dtype());
        Ok(in_arithmetic!(dtype, eval_packed(attrs, &layout, x, w, dtype)).into())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        let last = args[0].as_tensor().map_or(0, |t| t.rank().saturating_sub(1));
        let data = (0..last).map(AxisRole::Maps).chain([AxisRole::Reduced]).collect();
        let rank = args[1].as_tensor().map_or(0, TensorType::rank);
        let weight = packed_layout(attrs).ok().filter(|l| l.rank() == rank).map(|layout| {
            let split = layout.block('N').is_some();
            let role = |primal| match primal {
                'N' if split => AxisRole::Opaque,
                'N' => AxisRole::Maps(last),
                _ => AxisRole::Reduced,
            };
            layout.axes().iter().map(|a| role(a.primal)).collect()
        });
        AxisMap(vec![data, weight.unwrap_or_else(|| vec![AxisRole::Opaque; rank])])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let k = args[0].as_tensor().and_then(|t| t.shape.last().and_then(|d| d.known())).unwrap_or(1) as f64;
        Work { flops: 2.0 * k * elements(out), bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let (x, w, layout) = (args[0].tensor(), args[1].tensor(), packed_layout(attrs)?);
        let dtype = attrs.opt_dtype("out_dtype").unwrap_or(b.dtype(x));
        let (n, k) = (extent(&layout, b.shape(w), 'N'), extent(&layout, b.shape(w), 'C'));
        let mut shape = b.shape(x).to_vec();
        let last = shape.len() - 1;
        shape[last] = packed_outputs(attrs, n);
        let block = layout.block('C').map_or(1, |(_, block)| block);
        let over = if block > 1 { vec![k / block, block] } else { vec![k] };
        let out = sum_products(b, &shape, &over, dtype, |b, i, r| {
            let inner = if block > 1 { r[1].clone() } else { Scalar::index(0) };
            let summed = Place { outer: r[0].clone(), inner, block };
            let weight = indices(&layout, |p| if p == 'N' { Place::flat(i[last].clone()) } else { summed.clone() });
            let row = i[..last].iter().cloned().chain([summed.index()]);
            (b.read(x, row), b.read(w, weight))
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |layout: &str, w: &[i64], d: DType| Sample {
            attrs: vec![("weight_layout", layout.into()), ("units", 8.into())],
            args: vec![Type::tensor(&[3, 8], d), Type::tensor(w, d)],
        };
        let mut samples = vec![
            call("NC", &[8, 8], DType::F32),
            call("NC4n", &[2, 8, 4], DType::F32),
            call("NC4n2c", &[2, 4, 4, 2], DType::I8),
            call("NC4n4c", &[2, 2, 4, 4], DType::I8),
        ];
        samples[2..].iter_mut().for_each(|s| s.attrs.push(("out_dtype", DType::I32.into())));
        let mut of_three_axes = call("NC4n", &[2, 8, 4], DType::F32);
        of_three_axes.args[0] = Type::tensor(&[2, 3, 8], DType::F32);
        samples.push(of_three_axes);
        // The last block is filled up.
        samples.push(call("NC3n", &[3, 8, 3], DType::F32));
        samples
    }
}
