//! A convolution of 1 x 1 that makes more channels, one of each channel by itself, and one of 1 x 1 that makes fewer: MobileNet's blocks. What
//! stands between them is several times larger than what they read and write, and need never be in memory: a thread makes some rows of it at a
//! time, which stay in its second cache.

use super::{
    geometry::{Window, paddings, per_axis},
    inverted_bottleneck_any as any,
};
use crate::{
    ir::{AttrValue, Attrs, OpId, Type},
    loops::{Builder, Nest, Operand, Scalar, TensorId, cut_evenly},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_bail, op_ensure,
        util::{bytes, field, lowered_shapes, op_head, opaque_axes, sample, t, tensor_arg, value_type},
    },
    tensor::{DType, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&InvertedBottleneck];

/// Accumulators of a register tile of either convolution of 1 x 1, in vectors: pixels, and blocks of results. For blocks of at least 16 results (of
/// which a register of 512 bits holds one) and for smaller ones.
const REGISTER_TILES: [(i64, [i64; 2], [i64; 2]); 2] = [(16, [8, 3], [12, 2]), (1, [6, 2], [6, 2])];

/// Pixels of a row that the convolution of single channels makes at a time.
pub(super) const PIXELS: i64 = 4;

/// Lanes of a vector of results, at most.
const LANES: i64 = 16;

/// Bytes of a thread's stack for rows of what stands between.
pub(super) const ROWS: i64 = 384 << 10;

/// Threads take parts of the image, so many at most: each makes rows that the one before it has made, too.
pub(super) const PARTS: i64 = 4;

/// `nn.inverted_bottleneck`.
#[derive(Debug)]
struct InvertedBottleneck;

/// A call of which one is made.
#[derive(Clone, Debug)]
pub struct Part {
    /// The operator.
    pub op: OpId,
    /// Its attributes.
    pub attrs: Attrs,
    /// Its arguments.
    pub args: Vec<Type>,
    /// Its result.
    pub out: Type,
}

/// The calls that an `nn.inverted_bottleneck` is made of, in order.
pub fn inverted_bottleneck_parts(attrs: &Attrs, args: &[Type]) -> Result<Vec<Part>, OpError> {
    let mut parts = Vec::new();
    composed(attrs, args, args, &mut |op, attrs, args: &[Type]| {
        let out = op.op().infer(attrs, args)?;
        parts.push(Part { op, attrs: attrs.clone(), args: args.to_vec(), out: out.clone() });
        Ok(out)
    })?;
    Ok(parts)
}

/// How often an `nn.inverted_bottleneck` reads its weights, once for each band of rows; none where no thread has room for one, or an extent is unknown.
pub fn inverted_bottleneck_bands(attrs: &Attrs, args: &[Type]) -> Option<i64> {
    let tensors: Vec<_> = args.iter().map(Type::as_tensor).collect::<Option<_>>()?;
    let shapes: Vec<_> = tensors.iter().map(|t| t.known_shape()).collect::<Option<_>>()?;
    let (shapes, out): (Vec<&[i64]>, _) = (shapes.iter().map(|s| &s[..]).collect(), extents(attrs, args)?);
    let rows = Plan::new(attrs, &shapes, &out).ok()?.band(tensors[0].dtype)?;
    Some(out[0] * (out[2] / rows))
}

/// The calls of operators that it is made of, on arguments of these types.
fn composed<T: Clone>(
    attrs: &Attrs,
    types: &[Type],
    args: &[T],
    call: &mut impl FnMut(OpId, &Attrs, &[T]) -> Result<T, OpError>,
) -> Result<T, OpError> {
    let weight = |i: usize, name: &str| -> Result<[i64; 6], OpError> {
        let w = tensor_arg(types, i, name)?;
        let known = w.known_shape().and_then(|s| <[i64; 6]>::try_from(s).ok());
        known.ok_or_else(|| OpError(format!("C1: `{name}` is {w}, but should have six axes of known extents")))
    };
    let (expand, depthwise, project) = (weight(1, "expand")?, weight(3, "depthwise")?, weight(5, "project")?);
    let make = |name: &str, given: &[(&str, AttrValue)]| {
        let op = crate::ops::op(name);
        let given: Vec<_> = given.iter().map(|(n, v)| ((*n).into(), v.clone())).collect();
        crate::ops::make_attrs(op, &given).map(|attrs| (op, attrs)).map_err(|e| OpError(e.to_string()))
    };
    let conv = |w: [i64; 6], groups: i64, at: [&AttrValue; 2]| {
        let [o, i] = [w[5], if groups > 1 { w[5] } else { w[4] }];
        let name = if groups > 1 { "nn.contrib_depthwise_conv2d_NCHWc" } else { "nn.contrib_conv2d_NCHWc" };
        let layout = |s: String| AttrValue::from(s.as_str());
        let given = [
            ("strides", at[0].clone()),
            ("padding", at[1].clone()),
            ("groups", groups.into()),
            ("channels", (w[0] * o).into()),
            ("kernel_size", vec![w[2], w[3]].into()),
            ("data_layout", layout(format!("NCHW{i}c"))),
            ("kernel_layout", layout(format!("OIHW{}i{o}o", w[4]))),
            ("out_layout", layout(format!("NCHW{o}c"))),
        ];
        make(name, &given)
    };
    let field = |name: &str| attrs.get(name).cloned().unwrap_or(AttrValue::None);
    let (ones, none): (AttrValue, AttrValue) = (vec![1, 1].into(), vec![0, 0].into());
    let channels = depthwise[0] * depthwise[5];
    op_ensure!(channels > 1, "C1: `depthwise` has one channel");
    let (add, clip) = (make("add", &[])?, make("clip", &[("a_min", field("a_min")), ("a_max", field("a_max"))])?);
    let mut clipped = |(op, attrs): (OpId, Attrs), x: T, w: usize| -> Result<T, OpError> {
        let y = call(op, &attrs, &[x, args[w].clone()])?;
        let y = call(add.0, &add.1, &[y, args[w + 1].clone()])?;
        call(clip.0, &clip.1, &[y])
    };
    let y = clipped(conv(expand, 1, [&ones, &none])?, args[0].clone(), 1)?;
    let y = clipped(conv(depthwise, channels, [&field("strides"), &field("padding")])?, y, 3)?;
    let (op, attrs) = conv(project, 1, [&ones, &none])?;
    call(op, &attrs, &[y, args[5].clone()])
}

/// The result's extents where all arguments' are known and the calls that it is made of are plainly legal: what [`composed`] finds, which takes tens of
/// microseconds, and is asked at each new size of images.
fn extents(attrs: &Attrs, args: &[Type]) -> Option<[i64; 5]> {
    fn of<const N: usize>(args: &[Type], i: usize) -> Option<[i64; N]> {
        args.get(i)?.as_tensor()?.known_shape()?.try_into().ok()
    }
    let ([n, from, height, width, c], expand, depthwise) = (of::<5>(args, 0)?, of::<6>(args, 1)?, of::<6>(args, 3)?);
    let ([mid, _, _, _, _, lanes], [_, _, down, across, _, _], project) = (expand, depthwise, of::<6>(args, 5)?);
    let bias = [1, mid, 1, 1, lanes];
    let fits = expand == [mid, from, 1, 1, c, lanes]
        && depthwise == [mid, 1, down, across, 1, lanes]
        && project == [project[0], mid, 1, 1, lanes, project[5]]
        && [of::<5>(args, 2)?, of::<5>(args, 4)?] == [bias; 2];
    let all = [n, from, height, width, c, mid, lanes, down, across, project[0], project[5]];
    if !fits || all.iter().any(|&extent| extent <= 0) || mid * lanes == 1 {
        return None;
    }
    let (strides, padding) = (per_axis(attrs, "strides", 2).ok()?, paddings(attrs, 2).ok()?);
    let results = |axis: usize, extent: i64, kernel: i64| {
        let (before, after) = padding[axis];
        let results = Window { kernel, stride: strides[axis], dilation: 1, before, after }.outputs(extent);
        (before >= 0 && after >= 0 && results > 0).then_some(results)
    };
    Some([n, project[0], results(0, height, down)?, results(1, width, across)?, project[5]])
}

/// Some vectors of results: block, first lane, and how many lanes.
pub(super) type Columns = [(Scalar, i64, i64)];

/// Blocks of results, so many at a time that a register tile is so many vectors wide, each with a loop around.
pub(super) fn by_columns(
    n: &mut Nest<'_>,
    [blocks, lanes]: [i64; 2],
    wide: i64,
    body: &dyn Fn(&mut Nest<'_>, &Columns),
) {
    let vectors: Vec<(i64, i64)> = (0..lanes).step_by(LANES as usize).map(|l| (l, LANES.min(lanes - l))).collect();
    for (first, turns, wide) in cut_evenly(blocks, (wide / vectors.len() as i64).max(1)) {
        n.for_(turns, |n, turn| {
            let block = |k: i64| vectors.iter().map(move |v| (k, *v));
            let all = (0..wide).flat_map(block).map(|(k, v)| (turn.clone() * wide + (first + k), v.0, v.1));
            body(n, &all.collect::<Vec<_>>());
        });
    }
}

/// A register tile of a convolution of 1 x 1 with `w`: the sums over all channels of `value(pixel, block, channel)` times weights. `put` takes the
/// pixel, the block of results, the lane and the sum.
pub(super) fn products(
    n: &mut Nest<'_>,
    w: TensorId,
    (pixels, columns): (i64, &Columns),
    value: &dyn Fn(&Nest<'_>, Scalar, Scalar, Scalar) -> Scalar,
    put: &dyn Fn(&mut Nest<'_>, Scalar, Scalar, Scalar, Scalar),
) {
    let dtype = n.dtype(w);
    let [_, blocks, _, _, block, _] = n.shape(w)[..] else { unreachable!("six axes") };
    let sums: Vec<TensorId> = columns.iter().map(|c| n.registers(&[pixels, c.2], dtype)).collect();
    let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, usize, [Scalar; 2])| {
        n.unrolled(pixels, |n, pixel| {
            for (k, column) in columns.iter().enumerate() {
                n.vector(column.2, |n, lane| body(n, k, [pixel.clone(), lane]));
            }
        });
    };
    each(n, &|n, k, at| n.store(sums[k], at, Scalar::float(0.0, dtype)));
    n.for_each(&[blocks, block], |n, channel| {
        each(n, &|n, k, at| {
            let (o, first, _) = columns[k].clone();
            let [i, c] = [channel[0].clone(), channel[1].clone()];
            let factor = value(n, at[0].clone(), i.clone(), c.clone());
            let weight = n.read(w, [o, i, Scalar::index(0), Scalar::index(0), c, at[1].clone() + first]);
            let sum = n.read(sums[k], at.clone()) + factor * weight;
            n.store(sums[k], at, sum);
        });
    });
    each(n, &|n, k, at| {
        let (o, first, _) = columns[k].clone();
        let sum = n.read(sums[k], at.clone());
        let [pixel, lane] = at;
        put(n, pixel, o, lane + first, sum);
    });
}

/// The extents of a call.
pub(super) struct Plan {
    /// Of the image that comes, and of what stands between, but for padding.
    pub(super) image: [i64; 2],
    /// Of what stands between, after the convolution of single channels, and of the result.
    pub(super) out: [i64; 2],
    pub(super) taps: [i64; 2],
    pub(super) strides: [i64; 2],
    /// Above, left, below, right.
    pub(super) padding: [i64; 4],
    /// Blocks of what stands between, and their extent.
    pub(super) blocks: i64,
    pub(super) lanes: i64,
    bounds: [f64; 2],
}

/// The tensors of a call.
#[derive(Copy, Clone)]
pub(super) struct Tensors {
    pub(super) x: TensorId,
    /// Weight and bias of the convolution that makes more channels, and of the one of single channels.
    pub(super) expand: [TensorId; 2],
    pub(super) depthwise: [TensorId; 2],
    pub(super) project: TensorId,
    /// Some rows of what it makes, with padding on both sides, and of what the second one makes.
    pub(super) expanded: TensorId,
    pub(super) filtered: TensorId,
    pub(super) out: TensorId,
}

impl Plan {
    fn new(attrs: &Attrs, args: &[&[i64]], out: &[i64]) -> Result<Plan, OpError> {
        let (x, depthwise) = (args[0], args[3]);
        let (strides, p) = (per_axis(attrs, "strides", 2)?, paddings(attrs, 2)?);
        Ok(Plan {
            image: [x[2], x[3]],
            out: [out[2], out[3]],
            taps: [depthwise[2], depthwise[3]],
            strides: [strides[0], strides[1]],
            padding: [p[0].0, p[1].0, p[0].1, p[1].1],
            blocks: depthwise[0],
            lanes: depthwise[5],
            bounds: [attrs.float("a_min"), attrs.float("a_max")],
        })
    }

    /// Rows of the expanded image that so many rows of results take.
    pub(super) fn taken(&self, rows: i64) -> i64 {
        (rows - 1) * self.strides[0] + self.taps[0]
    }

    /// Its columns, with padding.
    fn wide(&self) -> i64 {
        self.image[1] + self.padding[1] + self.padding[3]
    }

    /// Elements of what stands between, of so many rows of so many results.
    pub(super) fn between(&self, rows: i64, columns: i64) -> i64 {
        let wide = (columns - 1) * self.strides[1] + self.taps[1];
        self.blocks * self.lanes * (self.taken(rows) * wide + rows * columns)
    }

    /// Rows of results at a time: as many as a thread has room for, of those that come out even; none where it has none for one.
    fn band(&self, dtype: DType) -> Option<i64> {
        let fits = |r: &i64| self.out[0] % r == 0 && self.between(*r, self.out[1]) * dtype.bytes() as i64 <= ROWS;
        (1..=(self.out[0] / 2).max(1)).rev().find(fits)
    }

    pub(super) fn clipped(&self, value: Scalar) -> Scalar {
        let [least, most] = self.bounds.map(|b| Scalar::float(b, value.dtype()));
        value.min(most).max(least)
    }

    pub(super) fn register_tiles(&self, lanes: i64) -> [[i64; 2]; 2] {
        let found = REGISTER_TILES.iter().find(|t| lanes >= t.0).expect("the last one is for all blocks");
        [found.1, found.2]
    }

    /// Row `row` of an image with more channels, as row `to` of those at hand.
    fn expand(&self, n: &mut Nest<'_>, t: &Tensors, image: &Scalar, row: &Scalar, to: &Scalar) {
        let [[pixels, wide], _] = self.register_tiles(self.lanes);
        by_columns(n, [self.blocks, self.lanes], wide, &|n, columns| {
            for (start, turns, pixels) in cut_evenly(self.image[1], pixels) {
                n.for_(turns, |n, turn| {
                    let at = |p: Scalar| turn.clone() * pixels + p + start;
                    let value = |n: &Nest<'_>, p: Scalar, i: Scalar, c: Scalar| {
                        n.read(t.x, [image.clone(), i, row.clone(), at(p), c])
                    };
                    products(n, t.expand[0], (pixels, columns), &value, &|n, p, o, lane, sum| {
                        let value = self.clipped(sum + bias(n, t.expand[1], &o, &lane));
                        n.store(t.expanded, [o, to.clone(), at(p) + self.padding[1], lane], value);
                    });
                });
            }
        });
    }

    /// Fills rows of what is at hand with zeros, or a part of their columns.
    fn clear(&self, n: &mut Nest<'_>, t: &Tensors, rows: (Scalar, i64), columns: (i64, i64)) {
        let zero = Scalar::float(0.0, n.dtype(t.expanded));
        n.for_each(&[self.blocks, rows.1, columns.1], |n, at| {
            n.vector(self.lanes, |n, lane| {
                let place = [at[0].clone(), rows.0.clone() + at[1].clone(), at[2].clone() + columns.0, lane];
                n.store(t.expanded, place, zero.clone());
            });
        });
    }

    /// Results of the convolution of single channels: of the rows at hand.
    fn filter(&self, n: &mut Nest<'_>, t: &Tensors, band: i64) {
        let [by, along] = self.strides;
        n.for_each(&[self.blocks, band], |n, at| {
            let [o, row] = [at[0].clone(), at[1].clone()];
            for (start, turns, pixels) in cut_evenly(self.out[1], PIXELS) {
                n.for_(turns, |n, turn| {
                    let first = turn * pixels + start;
                    let value = |n: &Nest<'_>, y: i64, z: Scalar, lane: Scalar| {
                        n.read(t.expanded, [o.clone(), row.clone() * by + y, first.clone() * along + z, lane])
                    };
                    self.filtered(n, t.depthwise, (&o, pixels), &value, &|n, p, lane, value| {
                        n.store(t.filtered, [o.clone(), row.clone(), first.clone() + p, lane], value);
                    });
                });
            }
        });
    }

    /// So many pixels of them in a row, of block `o`: the sums over all taps of `value(row of taps, column, lane)` times weights, of which columns are
    /// counted from what the first pixel takes. `put` takes the pixel, the lane and the result.
    pub(super) fn filtered(
        &self,
        n: &mut Nest<'_>,
        [w, b]: [TensorId; 2],
        (o, pixels): (&Scalar, i64),
        value: &dyn Fn(&Nest<'_>, i64, Scalar, Scalar) -> Scalar,
        put: &dyn Fn(&mut Nest<'_>, Scalar, Scalar, Scalar),
    ) {
        let dtype = n.dtype(w);
        let [[down, across], [_, along]] = [self.taps, self.strides];
        let sums = n.registers(&[pixels, self.lanes], dtype);
        let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, [Scalar; 2])| {
            n.unrolled(pixels, |n, p| n.vector(self.lanes, |n, lane| body(n, [p, lane])));
        };
        each(n, &|n, at| n.store(sums, at, Scalar::float(0.0, dtype)));
        for y in 0..down {
            n.unrolled(across, |n, z| {
                each(n, &|n, [p, lane]| {
                    let zero = Scalar::index(0);
                    let weight = [o.clone(), zero.clone(), y.into(), z.clone(), zero, lane.clone()];
                    let factor = value(n, y, p.clone() * along + z.clone(), lane.clone());
                    let sum = n.read(sums, [p.clone(), lane.clone()]) + factor * n.read(w, weight);
                    n.store(sums, [p, lane], sum);
                });
            });
        }
        each(n, &|n, [p, lane]| {
            let sum = n.read(sums, [p.clone(), lane.clone()]);
            let value = self.clipped(sum + bias(n, b, o, &lane));
            put(n, p, lane, value);
        });
    }

    /// Rows of results from `first` on: of what is filtered.
    fn project(&self, n: &mut Nest<'_>, t: &Tensors, image: &Scalar, first: &Scalar, band: i64) {
        let [outs, lanes] = [n.shape(t.out)[1], n.shape(t.out)[4]];
        let [_, [pixels, wide]] = self.register_tiles(lanes);
        by_columns(n, [outs, lanes], wide, &|n, columns| {
            n.for_(band, |n, row| {
                for (start, turns, pixels) in cut_evenly(self.out[1], pixels) {
                    n.for_(turns, |n, turn| {
                        let at = |p: Scalar| turn.clone() * pixels + p + start;
                        let value = |n: &Nest<'_>, p: Scalar, i: Scalar, c: Scalar| {
                            n.read(t.filtered, [i, row.clone(), at(p), c])
                        };
                        products(n, t.project, (pixels, columns), &value, &|n, p, o, lane, sum| {
                            n.store(t.out, [image.clone(), o, first.clone() + row.clone(), at(p), lane], sum);
                        });
                    });
                }
            });
        });
    }

    /// All results, `band` rows of them at a time.
    fn lower(&self, [x, e, eb, d, db, p]: [TensorId; 6], shape: &[i64], band: i64, b: &mut Builder) -> TensorId {
        let dtype = b.dtype(x);
        let (taken, bands) = (self.taken(band), self.out[0] / band);
        // Rows that a band leaves for the next one.
        let kept = (self.taps[0] - self.strides[0]).max(0);
        let parts = PARTS.min(bands);
        b.routine(|n| {
            let out = n.output(shape, dtype);
            n.parallel_each(&[shape[0], parts], |n, at| {
                let expanded = n.local(&[self.blocks, taken, self.wide(), self.lanes], dtype);
                let filtered = n.local(&[self.blocks, band, self.out[1], self.lanes], dtype);
                let t = Tensors { x, expand: [e, eb], depthwise: [d, db], project: p, expanded, filtered, out };
                for (column, count) in [(0, self.padding[1]), (self.wide() - self.padding[3], self.padding[3])] {
                    if count > 0 {
                        self.clear(n, &t, (Scalar::index(0), taken), (column, count));
                    }
                }
                let share = |part: Scalar| (part * bands).floor_div(parts);
                let start = n.let_(share(at[1].clone()));
                // Indices are held within bounds, which loops of unknown extents do not show.
                n.for_range(start.clone(), share(at[1].clone() + 1), |n, number| {
                    let number = n.let_index(number.min(Scalar::index(bands - 1)), bands);
                    let first = number.clone() * band;
                    let is_first = number.equals(start.clone());
                    let done = n.let_(Scalar::select(is_first.clone(), Scalar::index(0), Scalar::index(kept)));
                    n.if_(!is_first, |n| {
                        n.for_each(&[self.blocks, kept, self.wide()], |n, i| {
                            n.vector(self.lanes, |n, lane| {
                                let [o, r, c] = [i[0].clone(), i[1].clone(), i[2].clone()];
                                let last = r.clone() + (taken - kept);
                                let value = n.read(expanded, [o.clone(), last, c.clone(), lane.clone()]);
                                n.store(expanded, [o, r, c, lane], value);
                            });
                        });
                    });
                    n.for_range(done, taken, |n, r| {
                        let r = n.let_index(r.min(Scalar::index(taken - 1)), taken);
                        let row = n.let_(first.clone() * self.strides[0] + r.clone() - self.padding[0]);
                        let is_there =
                            row.clone().ge(Scalar::index(0)).and(row.clone().lt(Scalar::index(self.image[0])));
                        n.if_else(
                            is_there,
                            |n| {
                                let last = Scalar::index(self.image[0] - 1);
                                let row = row.clone().max(Scalar::index(0)).min(last);
                                let row = n.let_index(row, self.image[0]);
                                self.expand(n, &t, &at[0], &row, &r);
                            },
                            |n| self.clear(n, &t, (r.clone(), 1), (self.padding[1], self.image[1])),
                        );
                    });
                    self.filter(n, &t, band);
                    self.project(n, &t, &at[0], &first, band);
                });
            });
            out
        })
    }
}

/// What is added to a channel.
pub(super) fn bias(n: &Nest<'_>, bias: TensorId, block: &Scalar, lane: &Scalar) -> Scalar {
    let zero = Scalar::index(0);
    n.read(bias, [zero.clone(), block.clone(), zero.clone(), zero, lane.clone()])
}

impl Op for InvertedBottleneck {
    op_head!(
        "nn.inverted_bottleneck",
        "conv(f(depthwise(f(conv(data, expand) + expand_bias), depthwise) + depthwise_bias), project), where f clips to a_min and a_max, conv is
        nn.contrib_conv2d_NCHWc with windows of 1 x 1, and depthwise nn.contrib_depthwise_conv2d_NCHWc with strides and padding. C1: all are of
        the same floats; data has the axes N, C, H, W, c, weights O, I, H, W, i, o, of known extents, biases 1, C, 1, 1, c, and expand and project
        windows of 1 x 1. C2: the calls that it is made of are legal. (Of resat's own making.)",
        ["data", "expand", "expand_bias", "depthwise", "depthwise_bias", "project"],
        [
            field("strides", AttrKind::Ints, AttrDefault::Ints(&[1, 1])),
            field("padding", AttrKind::Ints, AttrDefault::Ints(&[0, 0])),
            field("a_min", AttrKind::Float, AttrDefault::Required),
            field("a_max", AttrKind::Float, AttrDefault::Required),
        ],
        Contract
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.dtype.is_float() && x.rank() == 5, "C1: `data` is {x}, but should be of floats, with five axes");
        for (i, name) in self.inputs().iter().enumerate().skip(1) {
            let w = tensor_arg(args, i, name)?;
            op_ensure!(w.dtype == x.dtype, "C1: `data` is {x} and `{name}` {w}, but both should be of the same floats");
        }
        if let Some(shape) = extents(attrs, args) {
            return Ok(Type::tensor(&shape, x.dtype));
        }
        for i in [1, 5] {
            let (w, name) = (tensor_arg(args, i, "weight")?, self.inputs()[i]);
            let is_one = w.rank() == 6 && w.shape[2..4].iter().all(|n| n.known() == Some(1));
            op_ensure!(is_one, "C1: `{name}` is {w}, but should have six axes, and windows of 1 x 1");
        }
        let (depthwise, wide) =
            (tensor_arg(args, 3, "depthwise")?, [0, 5].map(|k| tensor_arg(args, 1, "expand").map(|w| w.shape[k])));
        let [Ok(blocks), Ok(lanes)] = wide else { op_bail!("C1: `expand` should be a tensor") };
        for i in [2, 4] {
            let (w, name) = (tensor_arg(args, i, "bias")?, self.inputs()[i]);
            let one = crate::ir::Dim::Known(1);
            op_ensure!(
                w.shape[..] == [one, blocks, one, one, lanes],
                "C1: `{name}` is {w} and `depthwise` {depthwise}, but a bias should have the axes 1, C, 1, 1, c"
            );
        }
        let parts = inverted_bottleneck_parts(attrs, args).map_err(|e| OpError(format!("C2: {}", e.0)))?;
        Ok(parts.last().expect("there are some").out.clone())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let types: Vec<Type> = args.iter().map(value_type).collect();
        composed(attrs, &types, args, &mut |op, attrs, args: &[Value]| op.op().eval(attrs, args))
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        opaque_axes(args)
    }
    fn work(&self, attrs: &Attrs, args: &[Type], out: &Type) -> Work {
        let parts = inverted_bottleneck_parts(attrs, args).unwrap_or_default();
        let flops = parts.iter().map(|p| p.op.op().work(&p.attrs, &p.args, &p.out).flops).sum();
        Work { flops, bytes_read: args.iter().map(bytes).sum(), bytes_written: bytes(out) }
    }
    fn lower(&self, attrs: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let shape = lowered_shapes(self, attrs, args, b)?.remove(0);
        let tensors = [0, 1, 2, 3, 4, 5].map(|k| args[k].tensor());
        let extents = tensors.map(|t| b.shape(t).to_vec());
        let plan = Plan::new(attrs, &extents.each_ref().map(|s| &s[..]), &shape)?;
        let dtype = b.dtype(tensors[0]);
        let made = match b.is_for_all_sizes() {
            _ if plan.padding.iter().any(|&p| p < 0) => None,
            true => any::lower(&plan, tensors, &shape, b),
            false => plan.band(dtype).map(|band| plan.lower(tensors, &shape, band, b)),
        };
        if let Some(made) = made {
            return Ok(made.into());
        }
        // Rows that no thread has room for are in memory.
        let types: Vec<Type> = tensors.iter().map(|&t| Type::tensor(b.shape(t), b.dtype(t))).collect();
        composed(attrs, &types, args, &mut |op, attrs, args: &[Operand]| op.op().lower(attrs, args, b))
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |strides: i64, padding: &[i64], x: [i64; 5], taps: i64, mid: [i64; 2], out: [i64; 2]| {
            let f = |s: &[i64]| t(s, DType::F32);
            let bias = f(&[1, mid[0], 1, 1, mid[1]]);
            let args = vec![
                f(&x),
                f(&[mid[0], x[1], 1, 1, x[4], mid[1]]),
                bias.clone(),
                f(&[mid[0], 1, taps, taps, 1, mid[1]]),
                bias,
                f(&[out[0], mid[0], 1, 1, mid[1], out[1]]),
            ];
            let given = [
                ("strides", vec![strides, strides].into()),
                ("padding", padding.to_vec().into()),
                ("a_min", 0.0.into()),
                ("a_max", 6.0.into()),
            ];
            sample(given, args)
        };
        vec![
            call(1, &[1, 1], [1, 1, 6, 5, 8], 3, [3, 8], [1, 8]),
            call(2, &[1, 1], [2, 2, 8, 9, 8], 3, [2, 16], [1, 24]),
            call(2, &[0, 1, 2, 0], [1, 1, 7, 9, 3], 3, [1, 5], [2, 3]),
            call(1, &[2], [1, 1, 4, 18, 4], 5, [4, 16], [3, 16]),
            call(3, &[0, 0], [1, 1, 11, 8, 4], 2, [1, 8], [1, 4]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found at once is what the calls make of it, also where one of the extents or numbers does not fit.
    #[test]
    fn extents_are_those_of_the_calls() {
        let is_known = |args: &[Type]| args.iter().all(|a| a.as_tensor().is_some_and(|t| t.known_shape().is_some()));
        for sample in InvertedBottleneck.samples().into_iter().filter(|s| is_known(&s.args)) {
            let given: Vec<_> = sample.attrs.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
            let op = crate::ops::op("nn.inverted_bottleneck");
            let attrs = crate::ops::make_attrs(op, &given).expect("they are complete");
            let by_calls = |args: &[Type]| Some(inverted_bottleneck_parts(&attrs, args).ok()?.pop()?.out);
            let found = |args: &[Type]| Some(Type::tensor(&extents(&attrs, args)?, DType::F32));
            assert_eq!(found(&sample.args), by_calls(&sample.args));
            assert!(found(&sample.args).is_some(), "{:?}", sample.args);
            for (i, arg) in sample.args.iter().enumerate() {
                let shape = arg.as_tensor().and_then(|t| t.known_shape()).expect("it is known");
                for (axis, by) in (0..shape.len()).flat_map(|axis| [-4, -1, 1, 7].map(|by| (axis, by))) {
                    let (mut shape, mut args) = (shape.to_vec(), sample.args.clone());
                    shape[axis] += by;
                    if shape[axis] > 0 {
                        args[i] = Type::tensor(&shape, DType::F32);
                        if let Some(found) = found(&args) {
                            assert_eq!(Some(found), by_calls(&args), "{args:?}");
                        }
                    }
                }
            }
        }
    }
}
