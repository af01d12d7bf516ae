//! Winograd's convolution of data in blocks of channels, as loops: transform all tiles, then, for some tiles and some blocks of
//! results at a time, multiply point by point and transform back while the products are at hand. Where the transformed tiles of an image are
//! more than a second cache holds, and weights are few, that is done band by band. Where there are tiles enough for that, `winograd_strips` has each thread
//! do all of it for some of them.
//!
//! The algorithm adds and subtracts what lies in a tile, so that one infinity makes the whole tile infinite or NaN. Whatever is not finite in
//! a window of the data leaves no result of that window finite, though, and neither does what overflows before the transform back. So
//! results that are not finite can be computed again, directly. To see whether there are any costs four additions by tile: each point
//! counts in the first or the last row of results, and in the first or the last column.
//!
//! The direct weight is had back from the transformed one, all but its signs: what infinity times 0, or times a number that rounding made of
//! 0, is would be another. A copy of the weight would take as much memory as a quarter of the transformed one; signs take a sixteenth.
//!
//! Images of several planes are transformed plane by plane; what a plane of results sums over are the channels of all planes within its window.

use super::{winograd_conv::Plan, winograd_direct::Mend};
use crate::{
    loops::{BinOp, Builder, Nest, Scalar, TensorId, UnOp, cut_evenly},
    tensor::DType,
};

/// Accumulators of a register tile: rows (tiles of the image) and blocks of results, for blocks of at least 16 results (of which a
/// register of 512 bits holds one) and for smaller ones.
const REGISTER_TILES: [(i64, i64, i64); 2] = [(16, 14, 2), (1, 6, 2)];

/// Bytes of products on a thread's stack, at most.
const PRODUCTS: i64 = 256 << 10;

/// Bytes of weights that each thread may go through for its own part of the image: they stay in its second cache. Then a thread reads the
/// tiles that it has transformed, and the next layer finds in each thread's cache what that wrote.
pub(super) const WEIGHTS_NEAR: i64 = 640 << 10;

/// The sum of terms times coefficients, without those that are zero.
fn linear(coefficients: &[f64], dtype: DType, mut term: impl FnMut(usize) -> Scalar) -> Scalar {
    let mut sum: Option<Scalar> = None;
    for (i, &c) in coefficients.iter().enumerate().filter(|(_, c)| **c != 0.0) {
        let scaled = match c.abs() {
            1.0 => term(i),
            size => term(i) * Scalar::float(size, dtype),
        };
        sum = Some(match sum {
            None if c < 0.0 => scaled * Scalar::float(-1.0, dtype),
            None => scaled,
            Some(s) if c < 0.0 => s - scaled,
            Some(s) => s + scaled,
        });
    }
    sum.unwrap_or_else(|| Scalar::float(0.0, dtype))
}

/// Both sides of a square of values by the same matrix, whose rows are `rows`: the values' columns first, named once. `value` and
/// `put` take row and column.
pub(super) fn both_sides(
    n: &mut Nest<'_>,
    rows: &[Vec<f64>],
    dtype: DType,
    value: impl Fn(&Nest<'_>, usize, usize) -> Scalar,
    mut put: impl FnMut(&mut Nest<'_>, usize, usize, Scalar),
) {
    let inner = rows[0].len();
    // Each value is in the sums of several rows.
    let mut values: Vec<Option<Scalar>> = vec![None; inner * inner];
    for (i, row) in rows.iter().enumerate() {
        let mut column = |n: &mut Nest<'_>, j: usize| {
            if rows.iter().all(|row| row[j] == 0.0) {
                return Scalar::float(0.0, dtype);
            }
            let sum = linear(row, dtype, |k| values[k * inner + j].get_or_insert_with(|| value(n, k, j)).clone());
            n.let_(sum)
        };
        let half: Vec<Scalar> = (0..inner).map(|j| column(n, j)).collect();
        for (j, other) in rows.iter().enumerate() {
            put(n, i, j, linear(other, dtype, |k| half[k].clone()));
        }
    }
}

/// The matrices of the data's transform, and of that of results back: these are sums over points.
pub(super) fn matrices(plan: &Plan) -> [Vec<Vec<f64>>; 2] {
    let [data, result] = plan.matrices();
    [data, (0..plan.tile as usize).map(|i| result.iter().map(|row| row[i]).collect()).collect()]
}

/// Rows of a register tile, how many blocks of results it has, and so many tiles at a time: a multiple of what a register tile takes.
pub(super) fn register_tile(plan: &Plan, shape: &[i64], dtype: DType) -> [i64; 3] {
    let (outs, lanes) = (shape[1], shape[shape.len() - 1]);
    let &(_, rows, wide) = REGISTER_TILES.iter().find(|r| lanes >= r.0).expect("the last one is for all blocks");
    let wide = wide.min(outs);
    let fits = PRODUCTS / (plan.points * plan.points * wide * lanes * dtype.bytes() as i64);
    [rows, wide, (fits / rows).clamp(1, 4) * rows]
}

/// Planes of images that have a third spatial axis.
#[derive(Copy, Clone)]
pub(super) struct Planes {
    /// Planes of the data.
    pub(super) given: i64,
    /// Planes of results.
    pub(super) made: i64,
    /// Planes of a window.
    pub(super) taps: i64,
    /// Planes of padding before the first one.
    pub(super) before: i64,
}

/// Where a row of an image in blocks stands: of an image, or of one of its planes.
pub(super) fn place(
    [image, block]: [Scalar; 2],
    plane: Option<&Scalar>,
    [row, column, lane]: [Scalar; 3],
) -> Vec<Scalar> {
    [image, block].into_iter().chain(plane.cloned()).chain([row, column, lane]).collect()
}

/// The convolution: `x` is `[images, blocks, rows, columns, block]`, padded to whole tiles, `w` `[blocks of results, points,
/// points, channels, block of results]`, the result `shape`: `[images, blocks of results, rows, columns, block of results]`. `signs` are those of the
/// weight that `w` was made of, `[blocks of results, blocks, taps, taps, block, block of results]`, where results are to be finite where
/// those of a direct convolution are. With `planes`, data and results have these before their rows, and `w` and `signs` the channels of
/// all planes of a window, one plane's after the other's.
pub(super) fn lower(
    plan: &Plan,
    planes: Option<Planes>,
    [x, w]: [TensorId; 2],
    signs: Option<TensorId>,
    shape: &[i64],
    b: &mut Builder,
) -> TensorId {
    let dtype = b.dtype(x);
    let [data, back] = matrices(plan);
    let (points, tile) = (plan.points, plan.tile);
    let [images, outs, .., height, width, lanes] = shape[..] else { unreachable!("five axes or six") };
    let [_, blocks, .., block] = b.shape(x)[..] else { unreachable!("five axes or six") };
    let channels = blocks * block;
    let (down, across) = (plan.tiles(height), plan.tiles(width));
    let [given, made, taps] = planes.map_or([1; 3], |p| [p.given, p.made, p.taps]);
    // Tiles of all images are one row of tiles, so that each weight is read once for all of them.
    let tiles = images * down * across;
    let [rows, wide, batch] = register_tile(plan, shape, dtype);
    let groups: Vec<(i64, i64, i64)> = cut_evenly(outs, wide);
    let bytes = dtype.bytes() as i64;
    let (of_tile, of_weights) =
        (points * points * channels * given * bytes, points * points * channels * taps * outs * lanes * bytes);
    let bands = bands(tiles, batch, of_tile, of_weights, (outs + wide - 1) / wide);
    // Threads begin with parts of the image, or else with groups of blocks.
    let by_place = of_weights <= WEIGHTS_NEAR;
    let computed = bands.iter().map(|band| band.2).max().unwrap_or(tiles);
    b.routine(|n| {
        let out = n.output(shape, dtype);
        let values = n.scratch(&[points, points, given, computed, channels], dtype);
        let mut checks = Vec::new();
        for &(first_of_bands, bands, band) in &bands {
            let pieces = pieces(band, batch, made);
            let by_piece: Vec<Vec<Option<TensorId>>> = groups
                .iter()
                .map(|&(_, turns, _)| {
                    let mut check = |piece: &Piece| n.scratch(&[bands * turns * piece.count(), lanes], dtype);
                    pieces.iter().map(|piece| signs.map(|_| check(piece))).collect()
                })
                .collect();
            checks.extend(by_piece.iter().flatten().flatten().copied());
            let all = |n: &mut Nest<'_>, number_of_band: Scalar| {
                let base = number_of_band.clone() * band + first_of_bands;
                n.parallel_each(&[given, band], |n, i| {
                    let [plane, i] = [i[0].clone(), i[1].clone()];
                    let number = match bands > 1 || first_of_bands > 0 {
                        true => n.let_index(base.clone() + i.clone(), tiles),
                        false => i.clone(),
                    };
                    let [image, y, z] = tile_at(n, &number, [images, down, across]);
                    let from = planes.map(|_| &plane);
                    transform(n, &data, x, [image, y * tile, z * tile], from, dtype, |n, p, q, channel, value| {
                        n.store(values, [p, q, plane.clone(), i.clone(), channel], value);
                    });
                });
                for (&(first, turns, wide), checks) in groups.iter().zip(&by_piece) {
                    for (piece, check) in pieces.iter().zip(checks) {
                        let &Piece { tiles: (start, many, batch), planes: (first_plane, deep, each) } = piece;
                        let order = if by_place { [deep, many, turns] } else { [turns, deep, many] };
                        n.parallel_each(&order, |n, i| {
                            let [depth, number_of_piece, turn] =
                                if by_place { [0, 1, 2] } else { [1, 2, 0] }.map(|at: usize| i[at].clone());
                            let group = Group { out: turn.clone() * wide + first, wide };
                            let tile_of_group = number_of_piece.clone() * batch + start;
                            let plane_of_group = depth.clone() * each + first_plane;
                            let sums = n.local(&[points, points, each * batch, wide, lanes], dtype);
                            n.for_each(&[points, points, each], |n, point| {
                                let made = plane_of_group.clone() + point[2].clone();
                                let made = planes.map(|p| (p, n.let_index(made, p.made)));
                                let register_tiles = cut_evenly(batch, rows);
                                let of_plane: i64 = register_tiles.iter().map(|t| t.1).sum();
                                let passes_of_part = if planes.is_some() { 1 } else { of_plane };
                                each_part(n, w, passes_of_part, |n, part| {
                                    let mut before = point[2].clone() * of_plane;
                                    for &(first, turns, size) in &register_tiles {
                                        n.for_(turns, |n, turn| {
                                            let at = turn.clone() * size + first;
                                            let value = |n: &Nest<'_>, row: Scalar, plane: &Scalar, channel: Scalar| {
                                                let [p, q] = [point[0].clone(), point[1].clone()];
                                                let tile = tile_of_group.clone() + at.clone() + row;
                                                n.read(values, [p, q, plane.clone(), tile, channel])
                                            };
                                            let at = point[2].clone() * batch + at.clone();
                                            let (number, steps) = (before.clone() + turn, part.channels.clone());
                                            let pass = Pass { number, of: each * of_plane, steps };
                                            let of = (&Ahead::Pass(&pass), &part);
                                            products(n, &group, point, of, made.as_ref(), w, sums, size, &at, value);
                                        });
                                        before = before + turns;
                                    }
                                });
                            });
                            let total = check.map(|_| total(n, lanes, dtype));
                            n.for_each(&[each, batch], |n, t| {
                                let number = base.clone() + tile_of_group.clone() + t[1].clone();
                                let number = n.let_index(number, tiles);
                                let place = tile_at(n, &number, [images, down, across]);
                                let plane = plane_of_group.clone() + t[0].clone();
                                let plane = planes.map(|p| n.let_index(plane, p.made));
                                let turn = t[0].clone() * batch + t[1].clone();
                                let sums = Sums { sums, turn, back: &back, total, plane };
                                sums.store(n, out, &group, &place, Edge::of(tile, [height, width]));
                            });
                            if let (Some(check), Some(total)) = (check, total) {
                                let number = (number_of_band.clone() * turns + turn) * deep + depth;
                                keep(n, *check, &(number * many + number_of_piece), total);
                            }
                        });
                    }
                }
            };
            match bands {
                1 => all(n, Scalar::index(0)),
                _ => n.for_(bands, all),
            }
        }
        if let Some(signs) = signs {
            let bad = not_finite(n, &checks);
            n.if_(bad, |n| Mend { plan, planes, tensors: [x, w, signs], out }.all(n));
        }
        out
    })
}

/// Tiles of planes of results that are computed together.
struct Piece {
    /// Tiles, and planes, as [`cut_evenly`] says it.
    tiles: (i64, i64, i64),
    planes: (i64, i64, i64),
}

impl Piece {
    /// How many such pieces there are.
    fn count(&self) -> i64 {
        self.tiles.1 * self.planes.1
    }
}

/// A band in pieces of so many tiles at most, of several planes where a plane has few tiles.
fn pieces(band: i64, batch: i64, planes: i64) -> Vec<Piece> {
    let of_tiles = |tiles: (i64, i64, i64)| {
        cut_evenly(planes, (batch / tiles.2).max(1)).into_iter().map(move |planes| Piece { tiles, planes })
    };
    cut_evenly(band, batch).into_iter().flat_map(of_tiles).collect()
}

/// Tiles that a thread should have for itself, where register tiles have so many rows, to go through weights that come from the last cache.
pub(super) fn enough_tiles(rows: i64) -> i64 {
    rows + rows / 4
}

/// Bytes of transformed tiles at a time where there are more than twice as many: what second caches hold.
pub(super) const BAND: i64 = 1 << 20;

/// Tiles in bands, as [`cut_evenly`] says it: all at once, unless to read the weights again for each band is less than to read all transformed
/// tiles from memory for each of `turns` groups of results. A band has `least` tiles at least.
pub(super) fn bands(
    tiles: i64,
    least: i64,
    bytes_of_tile: i64,
    bytes_of_weights: i64,
    turns: i64,
) -> Vec<(i64, i64, i64)> {
    let count = (tiles * bytes_of_tile / BAND + 1).min(tiles / least);
    match count > 2 && bytes_of_weights * count < tiles * bytes_of_tile * turns {
        true => cut_evenly(tiles, (tiles + count - 1) / count),
        false => vec![(0, 1, tiles)],
    }
}

/// Whether an element of some tensors of two axes, or their sum, is infinite or NaN.
fn not_finite(n: &mut Nest<'_>, all: &[TensorId]) -> Scalar {
    let Some(&first) = all.first() else { return Scalar::bool(false) };
    let (dtype, lanes) = (n.dtype(first), n.shape(first)[1]);
    let sums = n.registers(&[lanes], dtype);
    n.vector(lanes, |n, lane| n.store(sums, [lane], Scalar::float(0.0, dtype)));
    for t in all {
        n.for_(n.shape(*t)[0], |n, i| {
            n.vector(lanes, |n, lane| {
                let sum = n.read(sums, [lane.clone()]) + n.read(*t, [i, lane.clone()]);
                n.store(sums, [lane], sum);
            });
        });
    }
    let total = n.var(Scalar::float(0.0, dtype));
    n.unrolled(lanes, |n, lane| n.set(total, n.get(total) + n.read(sums, [lane])));
    !Scalar::unary(UnOp::IsFinite, n.get(total))
}

/// Image, row and column of the tile of that number, of all images.
pub(super) fn tile_at(n: &mut Nest<'_>, number: &Scalar, [images, down, across]: [i64; 3]) -> [Scalar; 3] {
    let image = n.let_index(number.clone().floor_div(down * across), images);
    let y = n.let_index(number.clone().floor_div(across).floor_mod(down), down);
    [image, y, n.let_index(number.clone().floor_mod(across), across)]
}

/// Transforms the tile that begins at that image, row and column, of that plane if there are several, all its channels, in a type: `put` takes the two
/// numbers of a point and a channel.
pub(super) fn transform(
    n: &mut Nest<'_>,
    data: &[Vec<f64>],
    x: TensorId,
    [image, row, column]: [Scalar; 3],
    plane: Option<&Scalar>,
    dtype: DType,
    put: impl Fn(&mut Nest<'_>, Scalar, Scalar, Scalar, Scalar),
) {
    let [_, blocks, .., block] = n.shape(x)[..] else { unreachable!("five axes or six") };
    // Each is in many places.
    let along = |first: Scalar| (0..data[0].len() as i64).map(|i| first.clone() + i).collect::<Vec<Scalar>>();
    let (rows, columns) = (along(row), along(column));
    n.for_(blocks, |n, k| {
        n.vector(block, |n, lane| {
            let at = |n: &Nest<'_>, r: usize, c: usize| {
                n.read(x, place([image.clone(), k.clone()], plane, [&rows[r], &columns[c], &lane].map(Scalar::clone)))
                    .cast(dtype)
            };
            let channel = k.clone() * block + lane.clone();
            both_sides(n, data, dtype, at, |n, p, q, value| {
                put(n, (p as i64).into(), (q as i64).into(), channel.clone(), value);
            });
        });
    });
}

/// Where results are added to, lane by lane, so that one is not finite where any of them is not.
pub(super) fn total(n: &mut Nest<'_>, lanes: i64, dtype: DType) -> TensorId {
    let total = n.registers(&[lanes], dtype);
    n.vector(lanes, |n, lane| n.store(total, [lane], Scalar::float(0.0, dtype)));
    total
}

/// Keeps that for [`not_finite`], as the row of that number.
fn keep(n: &mut Nest<'_>, check: TensorId, number: &Scalar, total: TensorId) {
    n.vector(n.shape(total)[0], |n, lane| {
        let total = n.read(total, [lane.clone()]);
        n.store(check, [number.clone(), lane], total);
    });
}

/// Whether tiles come out even in an image of results.
#[derive(Copy, Clone)]
pub(super) enum Edge<'a> {
    /// They do.
    Whole,
    /// Some hang over, of images of so many rows and columns.
    Over([i64; 2]),
    /// That differs from size to size, and so do rows and columns: each tile is asked.
    Unknown([&'a Scalar; 2]),
}

impl Edge<'_> {
    /// Of tiles in an image of so many rows and columns.
    pub(super) fn of(tile: i64, extents: [i64; 2]) -> Edge<'static> {
        if extents.iter().all(|n| n % tile == 0) { Edge::Whole } else { Edge::Over(extents) }
    }
}

/// The products of a tile, by points.
pub(super) struct Sums<'a> {
    pub(super) sums: TensorId,
    /// Which tile of its group it is.
    pub(super) turn: Scalar,
    /// The matrix that transforms back.
    pub(super) back: &'a [Vec<f64>],
    /// To what the results are added, lane by lane, of which one is not finite where any product of the tile is not.
    pub(super) total: Option<TensorId>,
    /// Which plane it is of, if there are several.
    pub(super) plane: Option<Scalar>,
}

impl Sums<'_> {
    /// A tile's results in one lane: `put` takes row and column.
    pub(super) fn results(
        &self,
        n: &mut Nest<'_>,
        lane: &Scalar,
        dtype: DType,
        sum: &impl Fn(&Nest<'_>, usize, usize, &Scalar) -> Scalar,
        mut put: impl FnMut(&mut Nest<'_>, i64, i64, Scalar),
    ) {
        let mut corners: Option<Scalar> = None;
        let is_edge = |at: usize| at == 0 || at + 1 == self.back.len();
        both_sides(
            n,
            self.back,
            dtype,
            |n, p, q| sum(n, p, q, lane),
            |n, r, c, value| {
                if self.total.is_none() || !is_edge(r) || !is_edge(c) {
                    return put(n, r as i64, c as i64, value);
                }
                let value = n.let_(value);
                put(n, r as i64, c as i64, value.clone());
                corners = Some(match corners.take() {
                    None => value,
                    Some(others) => n.let_(others + value),
                });
            },
        );
        if let Some((total, corners)) = self.total.zip(corners) {
            n.store(total, [lane.clone()], n.read(total, [lane.clone()]) + corners);
        }
    }

    /// Transforms back and stores what lies within the image: the tile is that of an image, a row and a column of tiles.
    pub(super) fn store(&self, n: &mut Nest<'_>, out: TensorId, group: &Group, at: &[Scalar; 3], edge: Edge<'_>) {
        let dtype = n.dtype(out);
        let [.., lanes] = n.shape(out)[..] else { unreachable!("five axes or six") };
        let [image, y, z] = at;
        let tile = self.back.len() as i64;
        n.for_(group.wide, |n, o| {
            let sum = |n: &Nest<'_>, p: usize, q: usize, lane: &Scalar| {
                let at = [(p as i64).into(), (q as i64).into(), self.turn.clone(), o.clone(), lane.clone()];
                n.read(self.sums, at)
            };
            let place = |r: Scalar, c: Scalar, lane: &Scalar| {
                let (r, c) = (y.clone() * tile + r, z.clone() * tile + c);
                place([image.clone(), group.out.clone() + o.clone()], self.plane.as_ref(), [r, c, lane.clone()])
            };
            let [height, width] = match edge {
                Edge::Whole => [const { None }; 2],
                Edge::Over([height, width]) => [Some(height.into()), Some(width.into())],
                Edge::Unknown([height, width]) => [Some(height.clone()), Some(width.clone())],
            };
            let (Some(height), Some(width)) = (height, width) else {
                n.vector(lanes, |n, lane| {
                    self.results(n, &lane, dtype, &sum, |n, r, c, value| {
                        n.store(out, place(r.into(), c.into(), &lane), value);
                    });
                });
                return;
            };
            let results = n.local(&[tile, tile, lanes], dtype);
            n.vector(lanes, |n, lane| {
                self.results(n, &lane, dtype, &sum, |n, r, c, value| {
                    n.store(results, [r.into(), c.into(), lane.clone()], value);
                });
            });
            let put = |n: &mut Nest<'_>, r: &Scalar, c: &Scalar| {
                n.vector(lanes, |n, lane| {
                    let value = n.read(results, [r.clone(), c.clone(), lane.clone()]);
                    n.store(out, place(r.clone(), c.clone(), &lane), value);
                });
            };
            let is_inside = |r: Scalar, c: Scalar| {
                let inside = (y.clone() * tile + r).lt(height.clone());
                inside.and((z.clone() * tile + c).lt(width.clone()))
            };
            // Tiles at the edge hang over.
            let each = |n: &mut Nest<'_>| {
                n.for_each(&[tile, tile], |n, at| {
                    n.if_(is_inside(at[0].clone(), at[1].clone()), |n| put(n, &at[0], &at[1]));
                });
            };
            match edge {
                Edge::Whole | Edge::Over(_) => each(n),
                Edge::Unknown(_) => n.if_else(
                    is_inside((tile - 1).into(), (tile - 1).into()),
                    |n| n.unrolled(tile, |n, r| n.unrolled(tile, |n, c| put(n, &r, &c))),
                    each,
                ),
            }
        });
    }
}

/// Some blocks of results of some tiles, which are computed together.
pub(super) struct Group {
    /// The first block of results.
    pub(super) out: Scalar,
    /// Blocks of results.
    pub(super) wide: i64,
}

/// Bytes between the weights that are multiplied and those that are prefetched: a page of virtual memory, the least that operating systems
/// map. Hardware prefetchers work on physical addresses and stop at its end (Intel's optimization manual, "Data Prefetching"), whatever the processor.
const PAGE: i64 = 4096;

/// Which of the register tiles it is that go through the same weights, one after the other.
pub(super) struct Pass {
    pub(super) number: Scalar,
    pub(super) of: i64,
    /// Steps of each, before the next one goes through the same.
    pub(super) steps: Scalar,
}

/// What is prefetched while weights are gone through.
pub(super) enum Ahead<'a> {
    /// See [`ahead`].
    Pass(&'a Pass),
    /// In each step a step's weights from the first place on, in elements, and from the others unless that is true.
    From(Vec<Scalar>, Scalar),
}

impl Ahead<'_> {
    /// As [`ahead`] has it for the pass of that number of so many, where it is not known how many there are: the places that it would prefetch from if
    /// there were one pass, or else those if there were several.
    pub(super) fn unknown(
        n: &mut Nest<'_>,
        point: &[Scalar],
        g: &Group,
        [number, of, steps]: [&Scalar; 3],
        w: TensorId,
    ) -> Ahead<'static> {
        let shape = n.shape(w).to_vec();
        let lanes: i64 = shape[4..].iter().product();
        let of_block = shape[1] * shape[1] * shape[3];
        let at = (point[0].clone() * shape[1] + point[1].clone()) * shape[3];
        let is_one_of_several = n.let_(Scalar::index(1).lt(of.clone()));
        // As many blocks before as that number has of `wide`, without a division.
        let is_before =
            |o: i64| Scalar::select((number.clone() * g.wide).lt(of.clone() * o), Scalar::index(0), Scalar::index(1));
        let block = (1..g.wide).map(is_before).fold(Scalar::index(0), |sum, one| sum + one);
        let next = n.let_((g.out.clone() + block) * of_block + steps.clone());
        let of_page = |o: i64| (g.out.clone() + o) * of_block + steps_of_page(n, w);
        let each: Vec<Scalar> = (0..g.wide).map(of_page).collect();
        let place = |n: &mut Nest<'_>, page| {
            n.let_((Scalar::select(is_one_of_several.clone(), next.clone(), page) + at.clone()) * lanes)
        };
        let places = each.into_iter().map(|page| place(n, page)).collect();
        Ahead::From(places, is_one_of_several)
    }
}

/// Steps in which a page of weights is read.
fn steps_of_page(n: &Nest<'_>, w: TensorId) -> i64 {
    let in_step: i64 = n.shape(w)[4..].iter().product();
    PAGE / (in_step * n.dtype(w).bytes() as i64)
}

/// Prefetches weights in a step, a channel or a pair of them. Where several register tiles go through the same weights these are those that come
/// after them, a part of them by each, so that memory is read all the time and not by the first one alone; else those that come a page after those of
/// the step.
pub(super) fn ahead(n: &mut Nest<'_>, point: &[Scalar], g: &Group, pass: &Pass, w: TensorId, step: &Scalar) {
    let shape = n.shape(w).to_vec();
    let (points, steps) = (shape[1], shape[3]);
    let lanes: i64 = shape[4..].iter().product();
    let of_block = points * points * steps;
    let at = (point[0].clone() * points + point[1].clone()) * steps + step.clone();
    if pass.of > 1 {
        let block = g.out.clone() + (pass.number.clone() * g.wide).floor_div(pass.of);
        return n.prefetch(w, (block * of_block + at + pass.steps.clone()) * lanes);
    }
    let distance = steps_of_page(n, w);
    if distance == 0 {
        return;
    }
    let first = n.let_((g.out.clone() * of_block + at + distance) * lanes);
    for o in 0..g.wide {
        n.prefetch(w, first.clone() + o * of_block * lanes);
    }
}

/// Channels that a register tile sums up at a time.
pub(super) struct Part {
    pub(super) first: Scalar,
    pub(super) channels: Scalar,
    /// Whether these are all.
    pub(super) is_all: bool,
}

/// All channels, part by part where `passes` register tiles go through the same weights: those of a part, a page for each block of results, stay in the
/// first cache from one tile to the next.
pub(super) fn each_part(n: &mut Nest<'_>, w: TensorId, passes: i64, mut body: impl FnMut(&mut Nest<'_>, Part)) {
    let (channels, most) = (n.shape(w)[3], steps_of_page(n, w));
    if passes == 1 || most == 0 || channels <= most {
        return body(n, Part { first: 0.into(), channels: channels.into(), is_all: true });
    }
    // Parts of one size are one piece of code.
    let even = steps_of_even_part(n, w);
    let parts = even.map_or_else(|| cut_evenly(channels, most), |size| vec![(0, channels / size, size)]);
    for (start, turns, channels) in parts {
        n.for_(turns, |n, turn| {
            let first = n.let_(turn * channels + start);
            body(n, Part { first, channels: channels.into(), is_all: false });
        });
    }
}

/// Steps of a part of which all have as many, where there are several.
pub(super) fn steps_of_even_part(n: &Nest<'_>, w: TensorId) -> Option<i64> {
    let (channels, most) = (n.shape(w)[3], steps_of_page(n, w));
    (most / 2 + 1..=most.min(channels - 1)).rev().find(|size| channels % size == 0)
}

/// A register tile of so many rows, which are tiles of images, at a point: `sums[p, q, at + row, o] = sum over the part's channels of
/// value(row, plane, channel) * w[out + o, p, q, channel]`, or `+=` for all parts but the first. With planes, `made` is that of the results, and channels
/// are those of all planes within its window; without, `plane` is 0.
#[expect(clippy::too_many_arguments, reason = "operands, and where in them")]
pub(super) fn products(
    n: &mut Nest<'_>,
    g: &Group,
    point: &[Scalar],
    (of_ahead, part): (&Ahead<'_>, &Part),
    made: Option<&(Planes, Scalar)>,
    w: TensorId,
    sums: TensorId,
    rows: i64,
    at: &Scalar,
    value: impl Fn(&Nest<'_>, Scalar, &Scalar, Scalar) -> Scalar,
) {
    let dtype = n.dtype(sums);
    let lanes = n.shape(w)[4];
    let [p, q] = [point[0].clone(), point[1].clone()];
    let sum = n.registers(&[rows, g.wide, lanes], dtype);
    let each = |n: &mut Nest<'_>, body: &dyn Fn(&mut Nest<'_>, [Scalar; 3])| {
        n.unrolled(rows, |n, row| {
            n.unrolled(g.wide, |n, o| n.vector(lanes, |n, lane| body(n, [row, o, lane])));
        });
    };
    let place_of = |[row, o, lane]: [Scalar; 3]| [p.clone(), q.clone(), at.clone() + row, o, lane];
    let zeros = |n: &mut Nest<'_>| each(n, &|n, place| n.store(sum, place, Scalar::float(0.0, dtype)));
    let of_earlier_parts = |n: &mut Nest<'_>| {
        each(n, &|n, place| {
            let value = n.read(sums, place_of(place.clone()));
            n.store(sum, place, value);
        });
    };
    match part.is_all {
        true => zeros(n),
        false => n.if_else(part.first.clone().lt(Scalar::index(1)), zeros, of_earlier_parts),
    }
    let lanes_of_step: i64 = n.shape(w)[4..].iter().product();
    let of_plane = |n: &mut Nest<'_>, channels: Scalar, plane: &Scalar, first: &Scalar| {
        n.for_(channels, |n, channel| {
            let step = first.clone() + channel.clone();
            match of_ahead {
                Ahead::Pass(pass) => ahead(n, point, g, pass, w, &step),
                Ahead::From(places, is_first_alone) => {
                    let [first, others @ ..] = &places[..] else { return };
                    let prefetch = |n: &mut Nest<'_>, place: &Scalar| {
                        n.prefetch(w, place.clone() + step.clone() * lanes_of_step);
                    };
                    prefetch(n, first);
                    if !others.is_empty() {
                        n.if_(!is_first_alone.clone(), |n| others.iter().for_each(|place| prefetch(n, place)));
                    }
                }
            }
            let of_data = if made.is_some() { channel } else { step.clone() };
            each(n, &|n, place| {
                let [row, o, lane] = place.clone();
                let value = value(n, row, plane, of_data.clone());
                let weight = n.read(w, [g.out.clone() + o, p.clone(), q.clone(), step.clone(), lane]);
                let next = n.read(sum, place.clone()) + value * weight;
                n.store(sum, place, next);
            });
        });
    };
    match made {
        None => of_plane(n, part.channels.clone(), &0.into(), &part.first),
        Some((planes, made)) => {
            let &Planes { given, taps, before, .. } = planes;
            // Taps before the first plane and after the last one see padding alone.
            let within = |n: &mut Nest<'_>, plane: i64| {
                let tap = Scalar::binary(BinOp::Max, Scalar::index(plane + before) - made.clone(), 0.into());
                n.let_(Scalar::binary(BinOp::Min, tap, taps.into()))
            };
            let [first, end] = [0, given].map(|plane| within(n, plane));
            n.for_(end - first.clone(), |n, tap| {
                let tap = Scalar::binary(BinOp::Min, first + tap, (taps - 1).into());
                let tap = n.let_index(tap, taps);
                let plane = made.clone() + tap.clone() - before;
                let plane = Scalar::binary(BinOp::Max, Scalar::binary(BinOp::Min, plane, (given - 1).into()), 0.into());
                let plane = n.let_index(plane, given);
                let channels = part.channels.as_int().expect("channels of planes are known") / taps;
                of_plane(n, channels.into(), &plane, &(tap * channels));
            });
        }
    }
    each(n, &|n, place| {
        let value = n.read(sum, place.clone());
        n.store(sums, place_of(place), value);
    });
}
