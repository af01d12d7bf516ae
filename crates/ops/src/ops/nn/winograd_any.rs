//! Winograd's convolution of data in blocks of channels, where extents of images are others at other sizes: as [`winograd_blocked`]
//! has it, by loops that are the same whatever the extents are.
//!
//! The tiles of all images are numbered together, so that weights are read once for what is left of several images. They are
//! computed in bands, each in groups of about as many tiles, and a group in whole register tiles and a few smaller ones. Data is read without a padded copy, and
//! results are stored, and mended where they are not finite, as in [`winograd_strips`](super::winograd_strips).

use super::{
    winograd_blocked::{
        self, Ahead, BAND, Edge, Group, Part, WEIGHTS_NEAR, enough_tiles, products, register_tile, steps_of_even_part,
    },
    winograd_conv::Plan,
    winograd_strips::{Image, Strip},
};
use crate::{
    loops::{BinOp, Builder, Nest, Scalar, TensorId, cut_evenly},
    tensor::DType,
};

/// So many parallel iterations there should be at least, where there are register tiles for that.
const PIECES: i64 = 4;

/// Where threads begin with groups, the number of these is a multiple of this. It is small, since each group reads all weights once more.
const EVEN: i64 = 2;

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

    /// A band in groups of `most` tiles at most, for each of so many turns: how many groups, and whether threads had better begin
    /// with groups: as many each, of tiles that they transformed themselves, where these are enough for weights that come from the last cache.
    fn groups(&self, rows: i64, most: i64, turns: i64, weights_near: bool) -> (i64, bool) {
        // The band is that of whole register tiles: there may be fewer tiles.
        let tiles = self.band.min(self.tiles);
        let wanted = (tiles + most - 1) / most;
        let even = up(wanted, EVEN);
        let by_place = weights_near || tiles / even >= enough_tiles(rows);
        let wanted = if by_place && !weights_near { even } else { wanted.max((PIECES + turns - 1) / turns) };
        (wanted.min(self.band / rows).max(1), by_place)
    }
}

/// The register tiles that some tiles of images go through, which are not known: so many of each size. What they compute beyond the tiles that there are is
/// little, and never more than the last of whole register tiles would.
pub(super) struct RegisterTiles {
    sizes: [i64; SIZES],
    counts: [Scalar; SIZES],
}

/// Whole register tiles, and three smaller ones: of 14 rows these have 13, 10 and 8. As [`fewest`] reckons, 8 to 59 tiles take 1 % longer
/// with these than with tiles of all sizes (mean).
const SIZES: usize = 4;

impl RegisterTiles {
    pub(super) fn new(n: &mut Nest<'_>, tiles: &Scalar, rows: i64) -> RegisterTiles {
        let sizes = [rows, rows - 1, (5 * rows + 2) / 7, 4 * rows / 7];
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

    /// Calls `body` with the number, the first tile and the rows of each.
    fn for_each(&self, n: &mut Nest<'_>, body: impl Fn(&mut Nest<'_>, Scalar, Scalar, i64)) {
        let (mut before, mut done) = (Scalar::index(0), Scalar::index(0));
        for (&size, count) in self.sizes.iter().zip(&self.counts) {
            n.for_(count.clone(), |n, turn| body(n, before.clone() + turn.clone(), done.clone() + turn * size, size));
            before = n.let_(before + count.clone());
            done = n.let_(done + count.clone() * size);
        }
    }

    /// The products of all of them with the weights of a group, at all points: `sums` gets those of the transformed tiles `values` from the one of number
    /// `first` on, whose axes are two numbers of a point, tiles and channels.
    pub(super) fn multiply(&self, n: &mut Nest<'_>, group: &Group, [w, values, sums]: [TensorId; 3], first: &Scalar) {
        let [_, points, _, channels, _] = n.shape(w)[..] else { unreachable!("five axes") };
        let of = self.counts.iter().cloned().reduce(|a, b| a + b).expect("there are sizes");
        let of = n.let_(of);
        // All channels, or part by part where several register tiles go through the same weights, as `each_part` has it.
        let of_part = steps_of_even_part(n, w);
        let [parts, steps] = match of_part {
            None => [1, channels].map(Scalar::index),
            Some(steps) => {
                let several = Scalar::index(1).lt(of.clone());
                [(channels / steps, 1), (steps, channels)]
                    .map(|(a, b)| n.let_(Scalar::select(several.clone(), a.into(), b.into())))
            }
        };
        n.for_each(&[points, points], |n, point| {
            n.for_(parts, |n, part| {
                let first_step = n.let_(part * steps.clone());
                self.for_each(n, |n, number, at, rows| {
                    let at = n.let_(at);
                    let begin = n.let_(first.clone() + at.clone());
                    let [p, q] = [point[0].clone(), point[1].clone()];
                    let value = |n: &Nest<'_>, row: Scalar, _: &Scalar, channel: Scalar| {
                        n.read(values, [p.clone(), q.clone(), begin.clone() + row, channel])
                    };
                    let ahead = Ahead::unknown(n, point, group, [&number, &of, &steps], w);
                    let part = Part { first: first_step.clone(), channels: steps.clone(), is_all: of_part.is_none() };
                    products(n, group, point, (&ahead, &part), None, w, sums, rows, &at, value);
                });
            });
        });
    }
}

/// How many register tiles of each size take the least time for so many tiles, each as long as its rows and two more; not more rows than whole ones would
/// have. Of those that take the same, those of which none is large: weights are prefetched as evenly as tiles are.
fn fewest(sizes: [i64; SIZES], tiles: i64) -> [i64; SIZES] {
    let most = up(tiles, sizes[0]);
    // Less than two whole ones are cut: see `RegisterTiles::new`.
    let counts = (0..3_i64.pow(SIZES as u32)).map(|code| std::array::from_fn(|size| code / 3_i64.pow(size as u32) % 3));
    let rows = |counts: &[i64; SIZES]| counts.iter().zip(sizes).map(|(n, size)| n * size).sum::<i64>();
    let fits = |counts: &[i64; SIZES]| (tiles..=most).contains(&rows(counts));
    let time = |counts: &[i64; SIZES]| rows(counts) + 2 * counts.iter().sum::<i64>();
    let largest = |counts: &[i64; SIZES]| sizes.iter().zip(counts).find(|(_, n)| **n > 0).map_or(0, |(size, _)| *size);
    counts.filter(fits).min_by_key(|counts| (time(counts), largest(counts))).unwrap_or([most / sizes[0], 0, 0, 0])
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
const COMMON: usize = 9;
const OF_GROUP: usize = 3;

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

/// The convolution of `x`, `[images, blocks, rows, columns, block]` without padding, by `w` and `signs` as [`winograd_blocked::lower`] takes them.
pub(super) fn lower(
    plan: &Plan,
    [x, w]: [TensorId; 2],
    signs: Option<TensorId>,
    shape: &[i64],
    b: &mut Builder,
) -> TensorId {
    let dtype: DType = b.dtype(w);
    let [data, back] = winograd_blocked::matrices(plan);
    let points = plan.points;
    let [images, outs, height, width, lanes] = shape[..] else { unreachable!("five axes") };
    let channels = b.shape(x)[1] * b.shape(x)[4];
    let (down, across) = (plan.tiles(height), plan.tiles(width));
    let [rows, wide, batch] = register_tile(plan, shape, dtype);
    let bytes = points * points * channels * dtype.bytes() as i64;
    let weights_near = bytes * outs * lanes <= WEIGHTS_NEAR;
    let cut = Bands::new(images * down * across, rows, bytes, bytes * outs * lanes, (outs + wide - 1) / wide);
    let Bands { tiles, count, band } = cut;
    let groups: Vec<(i64, i64, i64)> = cut_evenly(outs, wide);
    let [rows_of_data, columns_of_data] = [b.shape(x)[2], b.shape(x)[3]];
    b.routine(|n| {
        let out = n.output(shape, dtype);
        // The last register tile may compute more than there is.
        let room = band + rows;
        let values = n.scratch(&[points, points, room, channels], dtype);
        let mut numbers = vec![tiles, band, down * across, across, count, rows_of_data, columns_of_data, height, width];
        for &(_, turns, _) in &groups {
            let (many, by_place) = cut.groups(rows, batch, turns, weights_near);
            numbers.extend([many, turns * many, by_place as i64]);
        }
        let images: &[usize] = &[0, 2, 3];
        n.at_all_sizes(&[ANY], &[(x, images), (out, images), (values, &[2])], &numbers, |n, names| {
            let ([all, of_band, of_image, of_row, bands, of_images @ ..], of_groups) = names.split_at(COMMON) else {
                unreachable!("a name for each number")
            };
            let [rows_of_data, columns_of_data, height, width] = of_images else {
                unreachable!("a name for each number")
            };
            let image = Image { plan, x, dtype, rows_columns: [rows_of_data, columns_of_data].map(Scalar::clone) };
            let place = |n: &mut Nest<'_>, number: Scalar| {
                let number = n.let_(number);
                let [image, tile] = split(n, &number, of_image);
                let [y, z] = split(n, &tile, of_row);
                [image, y, z]
            };
            n.for_(bands.clone(), |n, number_of_band| {
                let base = n.let_(number_of_band * of_band.clone());
                let here = n.let_(least(all.clone() - base.clone(), of_band));
                n.parallel(here.clone(), |n, i| {
                    let place = place(n, base.clone() + i.clone());
                    image.transform(n, &data, &place, &|n, p, q, channel, value| {
                        n.store(values, [p, q, i.clone(), channel], value);
                    });
                });
                for (&(first, turns, wide), of_group) in groups.iter().zip(of_groups.chunks(OF_GROUP)) {
                    let [many, of_turn, by_place] = of_group else { unreachable!("a name for each number") };
                    n.parallel(of_turn.clone(), |n, flat| {
                        // Threads begin with parts of the images, or else with groups of blocks.
                        let by_place = Scalar::index(0).lt(by_place.clone());
                        let [first_piece, turn_within] = split(n, &flat, &Scalar::index(turns));
                        let [first_turn, piece_within] = split(n, &flat, many);
                        let piece = n.let_(Scalar::select(by_place.clone(), first_piece, piece_within));
                        let turn = n.let_index(Scalar::select(by_place, turn_within, first_turn), turns);
                        let group = Group { out: turn * wide + first, wide };
                        let begins =
                            |piece: Scalar| Scalar::binary(BinOp::FloorDiv, piece * here.clone(), many.clone());
                        let start = n.let_(begins(piece.clone()));
                        let mine = n.let_(begins(piece + 1) - start.clone());
                        let register_tiles = RegisterTiles::new(n, &mine, rows);
                        let sums = n.local(&[points, points, batch, wide, lanes], dtype);
                        let (results, edge) = ([height, width].map(Scalar::clone), Edge::Unknown([height, width]));
                        let strip = Strip { image: &image, w, signs, out, back: &back, sums, results, edge };
                        register_tiles.multiply(n, &group, [w, values, sums], &start);
                        let first_tile = base.clone() + start;
                        strip.store(n, &group, &mine, &|n, t| place(n, first_tile.clone() + t.clone()));
                    });
                }
            });
        });
        out
    })
}
