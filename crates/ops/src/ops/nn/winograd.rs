//! Weights of convolutions, rearranged for other algorithms: Winograd's, and products of matrices in tiles.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Combine, Operand, Scalar, TensorId},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Class, Family, Op, OpError, Sample, Work, op_ensure,
        util::{bytes, elements, field, lowered_shapes, op_head, opaque_axes, sample, t, tensor_arg, value_shapes},
    },
    tensor::{DType, Tensor, Value, row_major_strides},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[
    &WinogradWeight { name: "nn.contrib_conv2d_winograd_weight_transform", axes: 2 },
    &WinogradWeight { name: "nn.contrib_conv3d_winograd_weight_transform", axes: 3 },
    &GemmWeight,
];

/// The points of interpolation for so many of them that are finite, from those of Barabasz, Anderson, Soodhalter and Gregg,
/// "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", as TVM takes them.
pub(super) fn points(count: usize) -> Vec<f64> {
    let (third, half, quarter) = (4.0 / 3.0, 0.5, 0.25);
    let eight = [0.0, -1.0, 1.0, half, -half, 2.0, -2.0, -quarter];
    let rest: &[f64] = match count {
        4 => return vec![0.0, -1.0, 1.0, half],
        5 => return vec![0.0, -1.0, 1.0, half, -2.0],
        6 => return vec![0.0, -1.0, 1.0, half, -2.0, -half],
        0..=8 => return eight[..count].to_vec(),
        9 => &[4.0],
        10 => &[0.75, -third],
        11 => &[4.0, 0.75, -third],
        12 => &[4.0, 0.75, -third, quarter],
        // Tiles of 8 and windows of 7 take 13.
        _ => &[4.0, quarter, -0.75, third, -4.0],
    };
    [&eight[..], rest].concat()
}

/// The matrix that takes a row of `taps` weights to its values at all points, the last of which is infinity: for outputs in
/// tiles of `tile`.
pub(super) fn transform(tile: usize, taps: usize) -> Vec<Vec<f64>> {
    let finite = points(tile + taps - 2);
    let mut rows: Vec<Vec<f64>> = finite
        .iter()
        .enumerate()
        .map(|(i, p)| {
            let factor: f64 = finite.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, q)| p - q).product();
            // Of the first point the sign goes to the data's side.
            let factor = if i == 0 { factor.abs() } else { factor };
            (0..taps as i32).map(|k| p.powi(k) / factor).collect()
        })
        .collect();
    rows.push((0..taps).map(|k| (k + 1 == taps) as usize as f64).collect());
    rows
}

/// So many sums are in the first cache at once.
const BLOCK: usize = 512;

/// The weight transform of Winograd's algorithm over two or three spatial axes.
#[derive(Debug)]
struct WinogradWeight {
    name: &'static str,
    axes: usize,
}

/// What is transformed: of a weight with axes O, I and the spatial ones.
struct Plan {
    /// Points per transformed axis.
    points: i64,
    taps: i64,
    tile: i64,
    /// The extent of a depth that is kept.
    depth: Option<i64>,
    /// Transformed axes.
    axes: usize,
}

impl WinogradWeight {
    fn plan(&self, attrs: &Attrs, shape: &[i64]) -> Result<Plan, OpError> {
        let tile = attrs.int("tile_size");
        op_ensure!((2..=8).contains(&tile), "C3: `tile_size` is {tile}, but should be from 2 to 8");
        let spatial = &shape[2..];
        let taps = spatial[spatial.len() - 1];
        let depth = (self.axes == 3 && !(3..=7).contains(&spatial[0])).then(|| spatial[0]);
        let same = if depth.is_some() { &spatial[1..] } else { spatial };
        op_ensure!(
            (3..=7).contains(&taps) && same.iter().all(|&n| n == taps),
            "C2: the window {spatial:?} should be from 3 to 7 along all axes alike"
        );
        let points = tile + taps - 1;
        Ok(Plan { points, taps, tile, depth, axes: same.len() })
    }

    fn matrix(p: &Plan) -> Vec<Vec<f64>> {
        transform(p.tile as usize, p.taps as usize)
    }
}

impl Op for WinogradWeight {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        "out[p.., o, i] = sum over k.. of weight[o, i, k..] * G[p, k] for each spatial axis, where G takes a row of weights to
        the points at which Winograd's algorithm for tiles of tile_size multiplies. A depth of less than 3 or more than 7 is
        kept, between the points and o. C1: weight is of floats with the axes O and I, then the spatial ones, of known extents.
        C2: spatial extents are from 3 to 7 and the same. C3: tile_size is from 2 to 8."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["weight"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[field("tile_size", AttrKind::Int, AttrDefault::Required)];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Contract
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let w = tensor_arg(args, 0, "weight")?;
        let window: Option<Vec<i64>> = w.shape.iter().skip(2).map(|d| d.known()).collect();
        let (true, true, Some(window)) = (w.rank() == 2 + self.axes, w.dtype.is_float(), window) else {
            return Err(OpError(format!(
                "C1: `weight` is {w}, but should be of floats with {} axes of known extents",
                2 + self.axes
            )));
        };
        let p = self.plan(attrs, &[&[0, 0], &window[..]].concat())?;
        let mut shape = vec![Dim::Known(p.points); p.axes];
        shape.extend(p.depth.map(Dim::Known));
        shape.extend([w.shape[0], w.shape[1]]);
        Ok(TensorType::of(shape, w.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let w = args[0].tensor();
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let extents: Vec<i64> = w.shape().iter().map(|&n| n as i64).collect();
        let p = self.plan(attrs, &extents)?;
        let (g, strides) = (WinogradWeight::matrix(&p), row_major_strides(&shape));
        let (taps, rank) = (p.taps as usize, shape.len());
        let window = taps.pow(p.axes as u32);
        let (filters, kept_planes) = (shape[rank - 2] * shape[rank - 1], p.depth.unwrap_or(1) as usize);
        // By place within the window and plane that is kept, the weights of all filters: sums for several filters are vectors.
        let given = w.to_f64_vec();
        let mut by_place = vec![0.0; given.len()];
        for (n, plane) in given.chunks_exact(window).enumerate() {
            let (filter, kept) = (n / kept_planes, n % kept_planes);
            for (k, w) in plane.iter().enumerate() {
                by_place[(k * kept_planes + kept) * filters + filter] = *w;
            }
        }
        drop(given);
        // A row of the result is one place of the transformed window, of all filters.
        let row = |row: usize, out: &mut [f64]| {
            let index: Vec<usize> = shape.iter().zip(&strides).map(|(n, s)| row * filters / s % n).collect();
            let kept = if p.depth.is_some() { index[p.axes] } else { 0 };
            let factor = |k: usize| {
                let factors = (0..p.axes).map(|axis| {
                    let tap = k / taps.pow((p.axes - 1 - axis) as u32) % taps;
                    g[index[axis]][tap]
                });
                factors.product::<f64>()
            };
            let factors: Vec<f64> = (0..window).map(factor).collect();
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                for (k, factor) in factors.iter().enumerate() {
                    let weights = &by_place[(k * kept_planes + kept) * filters + block * BLOCK..];
                    let terms = out.iter_mut().zip(weights).map(|(out, w)| (out, w * factor));
                    match k {
                        0 => terms.for_each(|(out, term)| *out = term),
                        _ => terms.for_each(|(out, term)| *out += term),
                    }
                }
            }
        };
        Ok(Tensor::from_f64_rows(w.dtype(), &shape, filters, row).into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        let filters = args[0]
            .as_tensor()
            .map_or(1.0, |w| w.shape.iter().take(2).map(|d| d.known().unwrap_or(1).max(1) as f64).product::<f64>());
        let window = elements(&args[0]) / filters;
        Work { flops: 4.0 * elements(out) * window, bytes_read: bytes(&args[0]), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let w = args[0].tensor();
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let (p, dtype) = (self.plan(attrs, b.shape(w))?, b.dtype(w));
        let matrix = WinogradWeight::matrix(&p);
        let g: TensorId = b.routine(|r| {
            let g = r.output(&[p.points, p.taps], dtype);
            for (i, row) in matrix.iter().enumerate() {
                for (k, v) in row.iter().enumerate() {
                    r.store(g, [i as i64, k as i64], Scalar::float(*v, dtype));
                }
            }
            g
        });
        let out = b.reduce(&shape, &vec![p.taps; p.axes], Combine::Sum, |b, i, r| {
            let filter = &i[shape.len() - 2..];
            let kept = p.depth.map(|_| i[p.axes].clone());
            let place = filter.iter().cloned().chain(kept).chain(r.iter().cloned());
            let factors = i[..p.axes].iter().zip(r).map(|(point, tap)| b.read(g, [point.clone(), tap.clone()]));
            factors.fold(b.read(w, place), |product, factor| product * factor)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |tile: i64, w: &[i64], d| sample([("tile_size", tile.into())], vec![t(w, d)]);
        match self.axes {
            2 => vec![
                call(2, &[2, 3, 3, 3], DType::F32),
                call(4, &[3, 2, 3, 3], DType::F32),
                call(2, &[1, 2, 5, 5], DType::F64),
            ],
            _ => vec![call(2, &[2, 2, 3, 3, 3], DType::F32), call(4, &[2, 3, 2, 3, 3], DType::F32)],
        }
    }
}

/// `nn.contrib_conv2d_gemm_weight_transform`.
#[derive(Debug)]
struct GemmWeight;

impl GemmWeight {
    /// Extents of the matrix of weights, and of its tiles along both sides.
    fn tiles(attrs: &Attrs, w: &[Dim]) -> Result<[Dim; 2], OpError> {
        let (rows, columns) = (attrs.int("tile_rows"), attrs.int("tile_cols"));
        op_ensure!(
            [rows, columns].iter().all(|n| (1..1 << 32).contains(n)),
            "C2: `tile_rows` is {rows} and `tile_cols` {columns}, but should be positive, and no more than memory holds"
        );
        let summed: Option<i64> = w[..3].iter().map(|d| d.known()).product();
        // Four tiles along the summed side go together.
        let summed = summed.map_or(Dim::Any, |k| Dim::Known((k + 4 * columns - 1) / (4 * columns) * 4));
        Ok([w[3].known().map_or(Dim::Any, |n| Dim::Known((n + rows - 1) / rows)), summed])
    }
}

impl Op for GemmWeight {
    op_head!(
        "nn.contrib_conv2d_gemm_weight_transform",
        "out[n, k, i, j] = weight as a matrix (its first three axes as rows, the last as columns) at row k * tile_cols + j and
        column n * tile_rows + i, 0 outside; there are tiles for all columns, and a multiple of four tiles for all rows.
        C1: weight has four axes (HWIO). C2: the tiles' extents are positive.",
        ["weight"],
        [
            field("tile_rows", AttrKind::Int, AttrDefault::Required),
            field("tile_cols", AttrKind::Int, AttrDefault::Required)
        ],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let w = tensor_arg(args, 0, "weight")?;
        op_ensure!(w.rank() == 4, "C1: `weight` is {w}, but should have four axes");
        let [columns, rows] = GemmWeight::tiles(attrs, &w.shape)?;
        let tile = ["tile_rows", "tile_cols"].map(|n| Dim::Known(attrs.int(n)));
        Ok(TensorType::of([columns, rows, tile[0], tile[1]], w.dtype).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let w = args[0].tensor();
        let shape = value_shapes(self, attrs, args)?.remove(0);
        let (rows, columns) = (w.shape()[..3].iter().product::<usize>(), w.shape()[3]);
        let strides = row_major_strides(&shape);
        let out = w.pick(&shape, |flat| {
            let [n, k, i, j] = [0, 1, 2, 3].map(|a| flat / strides[a] % shape[a]);
            let (row, column) = (k * shape[3] + j, n * shape[2] + i);
            (row < rows && column < columns).then(|| row * columns + column)
        });
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        Work { flops: 0.0, bytes_read: bytes(&args[0]), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let w = args[0].tensor();
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let (from, zero) = (b.shape(w).to_vec(), Scalar::int(0, b.dtype(w)));
        let rows: i64 = from[..3].iter().product();
        let out = b.map(&shape, |b, i| {
            let row = i[1].clone() * shape[3] + i[3].clone();
            let column = i[0].clone() * shape[2] + i[2].clone();
            let inside = row.clone().lt(Scalar::index(rows)).and(column.clone().lt(Scalar::index(from[3])));
            let place = row.clone().floor_div(from[2].max(1));
            let index = [
                place.clone().floor_div(from[1].max(1)),
                place.floor_mod(from[1].max(1)),
                row.floor_mod(from[2].max(1)),
                column,
            ];
            Scalar::select(inside, b.read(w, index), zero)
        });
        Ok(out.into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |tile: [i64; 2], w: &[i64], d| {
            sample([("tile_rows", tile[0].into()), ("tile_cols", tile[1].into())], vec![t(w, d)])
        };
        vec![
            call([4, 2], &[3, 3, 2, 6], DType::I8),
            call([3, 1], &[1, 2, 4, 3], DType::F32),
            call([2, 4], &[1, 1, 3, 1], DType::U8),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of outputs by Winograd's algorithm is that of the convolution: the points' products, interpolated.
    #[test]
    fn transformed_weights_convolve() {
        for (tile, taps) in [(2, 3), (4, 3), (6, 3), (2, 5), (3, 4), (8, 7)] {
            let weight: Vec<f64> = (0..taps).map(|k| 1.0 + 0.25 * k as f64).collect();
            let g = transform(tile, taps);
            let finite = points(tile + taps - 2);
            // The product of two polynomials, of `taps` and of `tile` coefficients, by its values at all points.
            let other: Vec<f64> = (0..tile).map(|k| 0.5 - 0.125 * k as f64).collect();
            let mut product = vec![0.0; tile + taps - 1];
            for (i, a) in weight.iter().enumerate() {
                other.iter().enumerate().for_each(|(j, b)| product[i + j] += a * b);
            }
            for (row, p) in g.iter().zip(&finite) {
                let value = |c: &[f64]| c.iter().enumerate().map(|(k, c)| c * p.powi(k as i32)).sum::<f64>();
                let scale: f64 = finite.iter().filter(|q| *q != p).map(|q| p - q).product();
                let scale = if *p == 0.0 { scale.abs() } else { scale };
                let transformed: f64 = row.iter().zip(&weight).map(|(g, w)| g * w).sum();
                let difference = transformed * scale * value(&other) - value(&product);
                assert!(difference.abs() < 1e-6 * (1.0 + value(&product).abs()), "{tile} {taps} {p}: {difference}");
            }
            assert_eq!(g[finite.len()][taps - 1], 1.0);
        }
    }
}
