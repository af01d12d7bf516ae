//! Winograd's convolution of data in blocks of channels, where extents of images are others at other sizes: as [`winograd_blocked`]
//! has it, by loops that are the same whatever the extents are.
//!
//! The tiles of all images are numbered together, so that weights are read once for what is left of several images. They are
//! computed in bands, each in groups of about as many tiles, and a group in whole register tiles and a few smaller ones.

use super::{
    winograd_blocked::{
        self, BAND, Edge, Group, Mend, Part, Pass, Sums, WEIGHTS_NEAR, enough_tiles, keep, not_finite, products,
        register_tile, total, transform,
    },
    winograd_conv::Plan,
};
use crate::{
    loops::{BinOp, Builder, Nest, Scalar, TensorId, cut_evenly},
    tensor::DType,
};

/// So many parallel iterations there should be at least, where there are register tiles for that.
const PIECES: i64 = 4;

/// How the tiles of all images are cut.
struct Bands {
    /// Tiles in all.
    tiles: i64,
    /// How many bands.
    count: i64,
    /// Tiles of each, of the last one at most.
    band: i64,
}

impl Bands {
    /// Bands of tiles for [`BAND`] bytes each, where reading the weights again for each is less than reading all transformed
    /// tiles from memory for each of `turns` groups of results; else one band.
    fn new(tiles: i64, rows: i64, bytes_of_tile: i64, bytes_of_weights: i64, turns: i64) -> Bands {
        let least = (BAND / bytes_of_tile / rows).max(1) * rows;
        let count = (tiles + least - 1) / least;
        let pays = count > 2 && bytes_of_weights * count < tiles * bytes_of_tile * turns;
        let count = if pays { count } else { 1 };
        let band = up((tiles + count - 1) / count, rows).max(rows);
        Bands { tiles, count: ((tiles + band - 1) / band).max(1), band }
    }

    /// A band in groups of `most` tiles at most, for each of so many turns: how many groups, the tiles of each at most, and whether threads had better begin
    /// with groups: as many each, of tiles that they transformed themselves, where these are enough for weights that come from the last cache.
    fn groups(&self, rows: i64, most: i64, turns: i64, weights_near: bool) -> (i64, i64, bool) {
        let wanted = (self.band + most - 1) / most;
        let even = (wanted + PIECES - 1) / PIECES * PIECES;
        let by_place = weights_near || self.band / even >= enough_tiles(rows);
        let wanted = if by_place && !weights_near { even } else { wanted.max((PIECES + turns - 1) / turns) };
        let wanted = wanted.min(self.band / rows).max(1);
        (wanted, (self.band + wanted - 1) / wanted, by_place)
    }
}

/// The register tiles that some tiles of images go through, which are not known: so many of each size. What they compute beyond the tiles that there are is
/// little, and never more than the last of whole register tiles would.
pub(super) struct RegisterTiles {
    sizes: [i64; SIZES],
    counts: [Scalar; SIZES],
}

/// Whole register tiles, and smaller ones.
const SIZES: usize = 4;

impl RegisterTiles {
    pub(super) fn new(n: &mut Nest<'_>, tiles: &Scalar, rows: i64) -> RegisterTiles {
        let sizes = [rows, (4 * rows + 2) / 5, rows / 2 + 1, (rows + 2) / 4];
        let by = Scalar::index(rows);
        let whole = n.let_(Scalar::binary(BinOp::FloorDiv, tiles.clone(), by.clone()));
        let rest = n.let_(Scalar::binary(BinOp::FloorMod, tiles.clone(), by));
        // Where there is a whole one, it may be given up for smaller ones.
        let [least, given_up] = [0, rows].map(|more| {
            let best = |rest: i64| fewest(sizes, rest + more);
            (0..rows).map(best).collect::<Vec<[i64; SIZES]>>()
        });
        let none = whole.clone().lt(Scalar::index(1));
        let counts = std::array::from_fn(|size| {
            let of =
                |all: &[[i64; SIZES]]| by_number(&rest, &all.iter().map(|counts| counts[size]).collect::<Vec<i64>>());
            let more = if size == 0 { whole.clone() - 1 } else { 0.into() };
            n.let_(Scalar::select(none.clone(), of(&least), more + of(&given_up)))
        });
        RegisterTiles { sizes, counts }
    }

    /// Calls `body` with the first tile and the rows of each.
    pub(super) fn for_each(&self, n: &mut Nest<'_>, body: impl Fn(&mut Nest<'_>, Scalar, i64)) {
        let mut done = Scalar::index(0);
        for (&size, count) in self.sizes.iter().zip(&self.counts) {
            n.for_(count.clone(), |n, turn| body(n, done.clone() + turn * size, size));
            done = n.let_(done + count.clone() * size);
        }
    }

    /// The products of all of them with the weights of a group, at all points: `sums` gets those of the transformed tiles `values` from the one of number
    /// `first` on, whose axes are two numbers of a point, tiles and channels.
    pub(super) fn multiply(&self, n: &mut Nest<'_>, group: &Group, [w, values, sums]: [TensorId; 3], first: &Scalar) {
        let [_, points, _, channels, _] = n.shape(w)[..] else { unreachable!("five axes") };
        n.for_each(&[points, points], |n, point| {
            self.for_each(n, |n, at, rows| {
                let at = n.let_(at);
                let begin = n.let_(first.clone() + at.clone());
                let [p, q] = [point[0].clone(), point[1].clone()];
                let value = |n: &Nest<'_>, row: Scalar, _: &Scalar, channel: Scalar| {
                    n.read(values, [p.clone(), q.clone(), begin.clone() + row, channel])
                };
                let pass = Pass { number: 0.into(), of: 1, steps: channels };
                let part = Part { first: 0.into(), channels, is_all: true };
                products(n, group, point, (&pass, &part), None, w, sums, rows, &at, value);
            });
        });
    }
}

/// How many register tiles of each size take the least time for so many tiles, each as long as its rows and one more; not more rows than whole ones would have.
fn fewest(sizes: [i64; SIZES], tiles: i64) -> [i64; SIZES] {
    let most = up(tiles, sizes[0]);
    let counts = (0..=tiles / sizes[0] + 1)
        .flat_map(|a| (0..=1).flat_map(move |b| (0..=2).flat_map(move |c| (0..=1).map(move |d| [a, b, c, d]))));
    let rows = |counts: &[i64; SIZES]| counts.iter().zip(sizes).map(|(n, size)| n * size).sum::<i64>();
    let fits = |counts: &[i64; SIZES]| (tiles..=most).contains(&rows(counts));
    let time = |counts: &[i64; SIZES]| rows(counts) + counts.iter().sum::<i64>();
    counts.filter(fits).min_by_key(time).unwrap_or([most / sizes[0], 0, 0, 0])
}

/// `values[at]`.
fn by_number(at: &Scalar, values: &[i64]) -> Scalar {
    let mut found = Scalar::index(values[values.len() - 1]);
    for k in (1..values.len()).rev().filter(|&k| values[k - 1] != values[k]) {
        found = Scalar::select(at.clone().lt(Scalar::index(k as i64)), Scalar::index(values[k - 1]), found);
    }
    found
}

/// What a routine's statements are known by, of this form and of that by strips: they may stand in the same place.
const ANY: i64 = 0;
pub(super) const STRIPS: i64 = 1;

/// How many names all groups of blocks have in common, and how many each has.
const COMMON: usize = 8;
const OF_GROUP: usize = 4;

fn up(n: i64, to: i64) -> i64 {
    (n + to - 1) / to * to
}

/// Quotient and remainder of a division.
pub(super) fn split(n: &mut Nest<'_>, value: &Scalar, by: &Scalar) -> [Scalar; 2] {
    [BinOp::FloorDiv, BinOp::FloorMod].map(|op| n.let_(Scalar::binary(op, value.clone(), by.clone())))
}

fn least(a: Scalar, b: &Scalar) -> Scalar {
    Scalar::binary(BinOp::Min, a, b.clone())
}

/// The convolution, of operands as [`winograd_blocked::lower`] takes them.
pub(super) fn lower(
    plan: &Plan,
    x: TensorId,
    w: TensorId,
    signs: Option<TensorId>,
    shape: &[i64],
    b: &mut Builder,
) -> TensorId {
    let dtype: DType = b.dtype(x);
    let [data, back] = winograd_blocked::matrices(plan);
    let (points, tile) = (plan.points, plan.tile);
    let [images, outs, height, width, lanes] = shape[..] else { unreachable!("five axes") };
    let channels = b.shape(x)[1] * b.shape(x)[4];
    let (down, across) = (plan.tiles(height), plan.tiles(width));
    let [rows, wide, batch] = register_tile(plan, shape, dtype);
    let bytes = points * points * channels * dtype.bytes() as i64;
    let weights_near = bytes * outs * lanes <= WEIGHTS_NEAR;
    let cut = Bands::new(images * down * across, rows, bytes, bytes * outs * lanes, (outs + wide - 1) / wide);
    let Bands { tiles, count, band } = cut;
    let groups: Vec<(i64, i64, i64)> = cut_evenly(outs, wide);
    b.routine(|n| {
        let out = n.output(shape, dtype);
        // The last register tile may compute more than there is.
        let room = band + rows;
        let values = n.scratch(&[points, points, room, channels], dtype);
        let in_groups: Vec<(i64, i64, bool)> =
            groups.iter().map(|&(_, turns, _)| cut.groups(rows, batch, turns, weights_near)).collect();
        let checks: Vec<TensorId> = match signs {
            Some(_) => {
                let rows = |(&(_, turns, _), &(many, ..)): (&(i64, i64, i64), &(i64, i64, bool))| count * turns * many;
                let rows: Vec<i64> = groups.iter().zip(&in_groups).map(rows).collect();
                rows.into_iter().map(|rows| n.scratch(&[rows, lanes], dtype)).collect()
            }
            None => Vec::new(),
        };
        let mut numbers = vec![tiles, band, down * across, across, count, height, width, images * outs];
        for (&(_, turns, _), &(many, _, by_place)) in groups.iter().zip(&in_groups) {
            numbers.extend([many, turns * many, by_place as i64, count * turns * many]);
        }
        let images: &[usize] = &[0, 2, 3];
        n.at_all_sizes(&[ANY], &[(x, images), (out, images), (values, &[2])], &numbers, |n, names| {
            let ([all, of_band, of_image, of_row, bands, of_results @ ..], of_groups) = names.split_at(COMMON) else {
                unreachable!("a name for each number")
            };
            let [height, width, planes] = of_results else { unreachable!("a name for each number") };
            let of_groups: Vec<&[Scalar]> = of_groups.chunks(OF_GROUP).collect();
            let place = |n: &mut Nest<'_>, number: &Scalar| {
                let [image, tile] = split(n, number, of_image);
                let [y, z] = split(n, &tile, of_row);
                [image, y, z]
            };
            n.for_(bands.clone(), |n, number_of_band| {
                let base = n.let_(number_of_band.clone() * of_band.clone());
                let here = n.let_(least(all.clone() - base.clone(), of_band));
                n.parallel(here.clone(), |n, i| {
                    let number = n.let_(base.clone() + i.clone());
                    let [image, y, z] = place(n, &number);
                    transform(n, &data, x, [image, y * tile, z * tile], None, dtype, |n, p, q, channel, value| {
                        n.store(values, [p, q, i.clone(), channel], value);
                    });
                });
                for (at, (&(first, turns, wide), of_group)) in groups.iter().zip(&of_groups).enumerate() {
                    let [many, of_turn, by_place, _] = of_group else { unreachable!("a name for each number") };
                    n.parallel(of_turn.clone(), |n, flat| {
                        // Threads begin with parts of the images, or else with groups of blocks.
                        let by_place = Scalar::index(0).lt(by_place.clone());
                        let [first_piece, turn_within] = split(n, &flat, &Scalar::index(turns));
                        let [first_turn, piece_within] = split(n, &flat, many);
                        let piece = n.let_(Scalar::select(by_place.clone(), first_piece, piece_within));
                        let turn = n.let_index(Scalar::select(by_place, turn_within, first_turn), turns);
                        let group = Group { out: turn * wide + first, wide };
                        let begins =
                            |piece: Scalar| Scalar::binary(BinOp::FloorDiv, piece * of_band.clone(), many.clone());
                        let start = n.let_(begins(piece.clone()));
                        let end = Scalar::binary(BinOp::Min, begins(piece + 1), here.clone());
                        let mine = n.let_(Scalar::binary(BinOp::Max, end - start.clone(), 0.into()));
                        let register_tiles = RegisterTiles::new(n, &mine, rows);
                        let sums = n.local(&[points, points, batch, wide, lanes], dtype);
                        register_tiles.multiply(n, &group, [w, values, sums], &start);
                        let total = signs.map(|_| total(n, lanes, dtype));
                        n.for_(mine, |n, t| {
                            let number = n.let_(base.clone() + start.clone() + t.clone());
                            let place = place(n, &number);
                            let sums = Sums { sums, turn: t, back: &back, total, plane: None };
                            sums.store(n, out, &group, &place, Edge::Unknown([height, width]));
                        });
                        if let (Some(&check), Some(total)) = (checks.get(at), total) {
                            keep(n, check, &(number_of_band.clone() * of_turn.clone() + flat), total);
                        }
                    });
                }
            });
            if let Some(signs) = signs {
                let rows = of_groups.iter().map(|of_group| of_group[OF_GROUP - 1].clone());
                let checks: Vec<(TensorId, Scalar)> = checks.iter().copied().zip(rows).collect();
                let bad = not_finite(n, &checks);
                n.if_(bad, |n| {
                    n.parallel(planes.clone(), |n, number| {
                        let [image, block] = split(n, &number, &Scalar::index(outs));
                        let mend = Mend { plan, planes: None, tensors: [x, w, signs], out };
                        mend.plane(n, [&image, &block], None, [height, width].map(Scalar::clone));
                    });
                });
            }
        });
        out
    })
}
