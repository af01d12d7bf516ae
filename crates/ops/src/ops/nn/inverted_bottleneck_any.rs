//! MobileNet's blocks where extents of images are others at other sizes: as [`inverted_bottleneck`](super::inverted_bottleneck) has them, by loops
//! that are the same whatever the extents are.
//!
//! A thread computes a patch of results at a time: some rows of so many columns at most, so that its buffers, whose sizes are constants, hold a patch of
//! any image; narrower patches have more rows. A patch reuses the last rows that the one above it has read; columns that two patches side by side read are
//! computed twice.

use super::{
    inverted_bottleneck::{PARTS, PIXELS, Plan, ROWS, bias, by_columns, products},
    winograd_any::split,
};
use crate::{
    loops::{BinOp, Builder, Nest, Scalar, TensorId},
    tensor::DType,
};

/// Columns of results of a patch, at most and at least.
const COLUMNS: [i64; 2] = [64, 16];

/// Rows of results of a patch that is as wide as can be, at least.
const BAND: i64 = 2;

/// How results are cut into patches.
struct Patches {
    /// Rows and columns of results, and of what they take.
    rows: i64,
    columns: i64,
    taken: i64,
    wide: i64,
    /// Pixels that there is room for: of what more channels are made of, and of what is filtered.
    room: [i64; 2],
}

impl Patches {
    /// Patches of `plan`; none where a thread has no room for a patch.
    fn new(plan: &Plan, dtype: DType) -> Option<Patches> {
        let [most, least] = COLUMNS;
        let fits = |rows: i64, columns: i64| plan.between(rows, columns) * dtype.bytes() as i64 <= ROWS;
        let most = (least..=most).rev().step_by(PIXELS as usize).find(|&columns| fits(BAND, columns))?;
        let band = (BAND..).take_while(|&rows| fits(rows, most)).last()?;
        let wide = |columns: i64| (columns - 1) * plan.strides[1] + plan.taps[1];
        let room = [plan.taken(band) * wide(most), band * most];
        let side_by_side = ((plan.out[1] + most - 1) / most).max(1);
        let columns = ((plan.out[1] + side_by_side - 1) / side_by_side).max(1);
        let fits = |rows: &i64| plan.taken(*rows) * wide(columns) <= room[0] && rows * columns <= room[1];
        // Threads take parts of the image.
        let rows = (1..=plan.out[0] / 2).rev().find(fits).unwrap_or(1);
        Some(Patches { rows, columns, taken: plan.taken(rows), wide: wide(columns), room })
    }
}

/// Tiles of so many pixels, then of fewer for what is left: of two thirds and a third where that is a whole number of fours (so that widths that are multiples
/// of four have no pixel in two tiles), else of half as many, and of one where there is no room for any of these. A tile that would reach beyond the end
/// begins where it fits, and computes some pixels again.
fn tiles(n: &mut Nest<'_>, count: &Scalar, pixels: i64, body: &dyn Fn(&mut Nest<'_>, Scalar, i64)) {
    let sizes = match pixels % 12 {
        0 => vec![pixels, pixels * 2 / 3, pixels / 3, 1],
        _ => vec![pixels, pixels / 2, 1],
    };
    let mut done = Scalar::index(0);
    for (k, &size) in sizes.iter().enumerate() {
        let next = sizes.get(k + 1).copied().unwrap_or(0);
        // The next smaller tile is enough where no more than that is left.
        let turns = (count.clone() - done.clone() + (size - next - 1)).floor_div(size);
        let there = count.clone().ge(Scalar::index(size));
        let turns = n.let_(Scalar::select(there, turns, Scalar::index(0)));
        n.for_(turns.clone(), |n, turn| {
            let start = n.let_((done.clone() + turn * size).min(count.clone() - size));
            body(n, start, size);
        });
        done = n.let_((done + turns * size).min(count.clone()));
    }
}

/// Pixels of all blocks, in memory of a thread.
#[derive(Clone)]
struct Pixels {
    /// Their lanes, one pixel after another.
    lanes: TensorId,
    of_pixel: i64,
    /// Pixels of a row, and of a block.
    of_row: Scalar,
    of_block: Scalar,
}

impl Pixels {
    /// The first lane of a pixel.
    fn at(&self, block: &Scalar, row: &Scalar, column: &Scalar) -> Scalar {
        let number = block.clone() * self.of_block.clone() + row.clone() * self.of_row.clone() + column.clone();
        number * self.of_pixel
    }
}

/// A patch at hand.
struct Patch<'a> {
    plan: &'a Plan,
    x: TensorId,
    /// Weight and bias of the convolution that makes more channels, and of the one of single channels.
    expand: [TensorId; 2],
    depthwise: [TensorId; 2],
    project: TensorId,
    out: TensorId,
    expanded: Pixels,
    filtered: Pixels,
    image: Scalar,
    /// The column of the image that is the first one of `expanded`, or would be.
    first: Scalar,
    /// Those that lie in the image: the first one of them, and how many.
    inside: [Scalar; 2],
    /// The first column of results, and how many.
    start: Scalar,
    columns: Scalar,
}

impl Patch<'_> {
    /// Row `row` of an image with more channels, as row `to` of those at hand.
    fn expand(&self, n: &mut Nest<'_>, row: &Scalar, to: &Scalar) {
        let plan = self.plan;
        let [[pixels, vectors], _] = plan.register_tiles(plan.lanes);
        let [before, count] = &self.inside;
        by_columns(n, [plan.blocks, plan.lanes], vectors, &|n, columns| {
            tiles(n, count, pixels, &|n, start, pixels| {
                let at = n.let_(before.clone() + start);
                let from = n.let_(self.first.clone() + at.clone());
                let value = |n: &Nest<'_>, p: Scalar, i: Scalar, c: Scalar| {
                    n.read(self.x, [self.image.clone(), i, row.clone(), from.clone() + p, c])
                };
                products(n, self.expand[0], (pixels, columns), &value, &|n, p, o, lane, sum| {
                    let value = plan.clipped(sum + bias(n, self.expand[1], &o, &lane));
                    let place = self.expanded.at(&o, to, &(at.clone() + p));
                    n.store_flat(self.expanded.lanes, place + lane, value);
                });
            });
        });
    }

    /// Fills rows of what is at hand with zeros, of so many columns from one on.
    fn clear(&self, n: &mut Nest<'_>, (row, rows): (&Scalar, &Scalar), from: &Scalar, count: Scalar) {
        let zero = Scalar::float(0.0, n.dtype(self.expanded.lanes));
        n.for_(count, |n, column| {
            n.for_(self.plan.blocks, |n, o| {
                n.for_(rows.clone(), |n, r| {
                    let place = n.let_(self.expanded.at(&o, &(row.clone() + r), &(from.clone() + column.clone())));
                    n.vector(self.plan.lanes, |n, lane| {
                        n.store_flat(self.expanded.lanes, place.clone() + lane, zero.clone());
                    });
                });
            });
        });
    }

    /// Moves the last `kept` rows of `taken` to the first ones.
    fn keep(&self, n: &mut Nest<'_>, kept: i64, taken: &Scalar) {
        n.for_each(&[self.plan.blocks, kept], |n, at| {
            let last = n.let_(taken.clone() - kept + at[1].clone());
            n.for_(self.expanded.of_row.clone(), |n, column| {
                let [from, to] = [&last, &at[1]].map(|row| n.let_(self.expanded.at(&at[0], row, &column)));
                n.vector(self.plan.lanes, |n, lane| {
                    let value = n.read_flat(self.expanded.lanes, from.clone() + lane.clone());
                    n.store_flat(self.expanded.lanes, to.clone() + lane, value);
                });
            });
        });
    }

    /// Results of the convolution of single channels, of so many rows.
    fn filter(&self, n: &mut Nest<'_>, rows: &Scalar) {
        let (plan, [by, along]) = (self.plan, self.plan.strides);
        n.for_(plan.blocks, |n, o| {
            n.for_(rows.clone(), |n, row| {
                tiles(n, &self.columns, PIXELS, &|n, start, pixels| {
                    let to = n.let_(self.filtered.at(&o, &row, &start));
                    let rows = (0..plan.taps[0])
                        .map(|y| n.let_(self.expanded.at(&o, &(row.clone() * by + y), &(start.clone() * along))));
                    let rows: Vec<Scalar> = rows.collect();
                    let value = |n: &Nest<'_>, y: i64, z: Scalar, lane: Scalar| {
                        n.read_flat(self.expanded.lanes, rows[y as usize].clone() + z * plan.lanes + lane)
                    };
                    plan.filtered(n, self.depthwise, (&o, pixels), &value, &|n, p, lane, value| {
                        n.store_flat(self.filtered.lanes, to.clone() + p * plan.lanes + lane, value);
                    });
                });
            });
        });
    }

    /// So many rows of results, `to` the first one: of what is filtered.
    fn project(&self, n: &mut Nest<'_>, rows: &Scalar, to: &Scalar) {
        let [outs, lanes] = [n.shape(self.out)[1], n.shape(self.out)[4]];
        let [_, [pixels, vectors]] = self.plan.register_tiles(lanes);
        by_columns(n, [outs, lanes], vectors, &|n, columns| {
            n.for_(rows.clone(), |n, row| {
                let y = n.let_(to.clone() + row.clone());
                tiles(n, &self.columns, pixels, &|n, start, pixels| {
                    let value = |n: &Nest<'_>, p: Scalar, i: Scalar, c: Scalar| {
                        n.read_flat(self.filtered.lanes, self.filtered.at(&i, &row, &(start.clone() + p)) + c)
                    };
                    products(n, self.project, (pixels, columns), &value, &|n, p, o, lane, sum| {
                        let column = self.start.clone() + start.clone() + p;
                        n.store(self.out, [self.image.clone(), o, y.clone(), column, lane], sum);
                    });
                });
            });
        });
    }
}

/// All results; none where a thread has no room for a patch of them.
pub(super) fn lower(
    plan: &Plan,
    [x, e, eb, d, db, project]: [TensorId; 6],
    shape: &[i64],
    b: &mut Builder,
) -> Option<TensorId> {
    let dtype = b.dtype(x);
    let Patches { rows, columns, taken, wide, room } = Patches::new(plan, dtype)?;
    let ([down, across], [by, along]) = (plan.taps, plan.strides);
    // Rows that a patch leaves for the next one.
    let kept = (down - by).max(0);
    let bands = (plan.out[0] + rows - 1) / rows;
    let parts = PARTS.min(bands).max(1);
    let side_by_side = ((plan.out[1] + columns - 1) / columns).max(1);
    let channels = plan.blocks * plan.lanes;
    Some(b.routine(|n| {
        let out = n.output(shape, dtype);
        let of_image = parts * side_by_side;
        let numbers =
            [plan.image[0], plan.image[1], plan.out[0], plan.out[1], bands, parts, rows, columns, taken, wide]
                .into_iter()
                .chain([taken * wide, rows * columns, shape[0] * of_image, of_image, side_by_side]);
        let images: &[usize] = &[0, 2, 3];
        n.at_all_sizes(&room, &[(x, images), (out, images)], &numbers.collect::<Vec<i64>>(), |n, names| {
            let [image_rows, image_columns, out_rows, out_columns, bands, parts, of_band, of_patch, rest @ ..] = names
            else {
                unreachable!("a name for each number")
            };
            let [all_taken, taken_row, taken_block, filtered_block, all, of_image, of_part] = rest else {
                unreachable!("a name for each number")
            };
            n.parallel(all.clone(), |n, number| {
                let [image, rest] = split(n, &number, of_image);
                let [part, patch] = split(n, &rest, of_part);
                let of_pixel = plan.lanes;
                let lanes = n.local(&[channels * room[0]], dtype);
                let expanded = Pixels { lanes, of_pixel, of_row: taken_row.clone(), of_block: taken_block.clone() };
                let lanes = n.local(&[channels * room[1]], dtype);
                let filtered = Pixels { lanes, of_pixel, of_row: of_patch.clone(), of_block: filtered_block.clone() };
                let start = n.let_(patch * of_patch.clone());
                let columns = n.let_((out_columns.clone() - start.clone()).min(of_patch.clone()));
                let first = n.let_(start.clone() * along - plan.padding[1]);
                let there = n.let_((columns.clone() - 1) * along + across);
                let before = n.let_((-first.clone()).max(Scalar::index(0)).min(there.clone()));
                let end = n.let_((image_columns.clone() - first.clone()).min(there.clone()).max(before.clone()));
                let count = n.let_(end.clone() - before.clone());
                let inside = [before.clone(), count.clone()];
                let (expand, depthwise) = ([e, eb], [d, db]);
                let patch = Patch {
                    plan,
                    x,
                    expand,
                    depthwise,
                    project,
                    out,
                    expanded,
                    filtered,
                    image,
                    first,
                    inside,
                    start,
                    columns,
                };
                let zero = Scalar::index(0);
                patch.clear(n, (&zero, all_taken), &zero, before.clone());
                patch.clear(n, (&zero, all_taken), &end, there - end.clone());
                let share = |part: Scalar| Scalar::binary(BinOp::FloorDiv, part * bands.clone(), parts.clone());
                let begin = n.let_(share(part.clone()));
                n.for_range(begin.clone(), share(part + 1), |n, number| {
                    let to = n.let_(number.clone() * of_band.clone());
                    let rows = n.let_((out_rows.clone() - to.clone()).min(of_band.clone()));
                    let is_first = number.equals(begin.clone());
                    let done = n.let_(Scalar::select(is_first.clone(), Scalar::index(0), Scalar::index(kept)));
                    n.if_(!is_first, |n| patch.keep(n, kept, all_taken));
                    let last = n.let_((rows.clone() - 1) * by + down);
                    n.for_range(done, last, |n, r| {
                        let row = n.let_(to.clone() * by + r.clone() - plan.padding[0]);
                        let is_there = row.clone().ge(Scalar::index(0)).and(row.clone().lt(image_rows.clone()));
                        n.if_else(
                            is_there,
                            |n| patch.expand(n, &row, &r),
                            |n| patch.clear(n, (&r, &Scalar::index(1)), &before, count.clone()),
                        );
                    });
                    patch.filter(n, &rows);
                    patch.project(n, &rows, &to);
                });
            });
        });
        out
    }))
}
