//! Winograd's convolution of data in blocks of channels, strip by strip: one thread transforms some tiles, multiplies them, and transforms them back. It
//! reads what it has written, and the next layer finds in its cache what it wrote, as threads take strips in the order of the image's rows. Data needs no
//! copy with padding: tiles at an edge read a window of their own. Results that are not finite are mended before they are stored, so that what follows the
//! convolution becomes a part of that ([`crate::lower`] writes it into the stores).

use super::{
    winograd_any::{RegisterTiles, STRIPS, split},
    winograd_blocked::{
        self, Ahead, BAND, Edge, Group, Part, Pass, Sums, WEIGHTS_NEAR, each_part, enough_tiles, products,
        register_tile, tile_at, total, transform,
    },
    winograd_conv::Plan,
    winograd_direct::Direct,
};
use crate::{
    loops::{BinOp, Builder, Nest, Scalar, TensorId, UnOp, cut_evenly},
    tensor::DType,
};

/// Bytes of transformed tiles and their products on a thread's stack, at most.
const STACK: i64 = 448 << 10;

/// Strips come in multiples of this, so that threads have as many each.
const EVEN: i64 = 4;

/// The tiles of all images, cut for threads.
pub(super) struct Strips {
    /// One or two pieces: the first tile, strips, and tiles of each.
    cut: Vec<(i64, i64, i64)>,
    /// Whether a strip's transformed tiles lie on the thread's stack.
    on_stack: bool,
}

impl Strips {
    /// None where a strip would have too few tiles for the weights that it goes through.
    pub(super) fn new(plan: &Plan, [ins, outs]: [i64; 2], shape: &[i64], dtype: DType) -> Option<Strips> {
        let [images, _, height, width, lanes] = shape[..] else { return None };
        let tiles = images * plan.tiles(height) * plan.tiles(width);
        let [rows, wide, batch] = register_tile(plan, shape, dtype);
        let of_point = plan.points * plan.points * dtype.bytes() as i64;
        let (of_tile, of_products) = (of_point * ins, of_point * wide * lanes);
        let on_stack = of_tile * outs <= WEIGHTS_NEAR;
        let (most, least) = match on_stack {
            true => (STACK / (of_tile + of_products), rows),
            false => (batch.min(BAND / of_tile), enough_tiles(rows)),
        };
        let even = most.max(1) * EVEN;
        let count = ((tiles + even - 1) / even * EVEN).max(1);
        let (size, larger) = (tiles / count, tiles % count);
        let cut = [(0, larger, size + 1), (larger * (size + 1), count - larger, size)];
        let cut = cut.into_iter().filter(|piece| piece.1 > 0).collect();
        (size >= least).then_some(Strips { cut, on_stack })
    }
}

/// The data, without padding.
pub(super) struct Image<'a> {
    pub(super) plan: &'a Plan,
    pub(super) x: TensorId,
    /// What it is computed in.
    pub(super) dtype: DType,
    /// Its rows and columns, which have names where they are others at other sizes.
    pub(super) rows_columns: [Scalar; 2],
}

impl Image<'_> {
    /// Blocks of channels, and channels of a block.
    fn blocks(&self, n: &Nest<'_>) -> [i64; 2] {
        let [_, blocks, .., block] = n.shape(self.x)[..] else { unreachable!("five axes") };
        [blocks, block]
    }

    fn read(&self, n: &Nest<'_>, at: [Scalar; 5]) -> Scalar {
        n.read(self.x, at).cast(self.dtype)
    }

    /// Whether a row and a column that are counted from the padding's begin lie within the data, and which of the data's they are.
    fn inside(&self, n: &mut Nest<'_>, [row, column]: [Scalar; 2]) -> (Scalar, [Scalar; 2]) {
        let [height, width] = &self.rows_columns;
        let [top, left, ..] = self.plan.padding;
        let mut along = |at: Scalar, before: i64, extent: &Scalar| {
            let at = n.let_(at - before);
            let inside = at.clone().ge(Scalar::index(0)).and(at.clone().lt(extent.clone()));
            let last = extent.clone() - 1;
            let near = Scalar::binary(BinOp::Min, Scalar::binary(BinOp::Max, at, 0.into()), last);
            (inside, n.let_index(near, extent.as_int().unwrap_or(1)))
        };
        let (above, row) = along(row, top, height);
        let (beside, column) = along(column, left, width);
        (above.and(beside), [row, column])
    }

    /// Transforms the tile at that image, row and column of tiles, all its channels: `put` takes the two numbers of a point and a channel.
    pub(super) fn transform(
        &self,
        n: &mut Nest<'_>,
        data: &[Vec<f64>],
        [image, y, z]: &[Scalar; 3],
        put: &impl Fn(&mut Nest<'_>, Scalar, Scalar, Scalar, Scalar),
    ) {
        let [blocks, block] = self.blocks(n);
        let [height, width] = &self.rows_columns;
        let &Plan { tile, points, padding: [top, left, ..], .. } = self.plan;
        let [row, column] = [(y, top), (z, left)].map(|(at, before)| at.clone() * tile - before);
        let whole = |n: &mut Nest<'_>| {
            let [first, beside] = [(&row, height), (&column, width)].map(|(at, extent)| {
                let extent = extent.as_int().map_or(1, |extent| extent - points + 1);
                n.let_index(at.clone(), extent.max(1))
            });
            transform(n, data, self.x, [image.clone(), first, beside], None, self.dtype, put);
        };
        let at_edge = |n: &mut Nest<'_>| {
            let window = n.local(&[1, 1, points, points, block], self.dtype);
            n.for_(blocks, |n, k| {
                n.for_each(&[points, points], |n, at| {
                    let [r, c] = [at[0].clone(), at[1].clone()];
                    let place = [y.clone() * tile + r.clone(), z.clone() * tile + c.clone()];
                    let (inside, [from, beside]) = self.inside(n, place);
                    let to = |lane: Scalar| [0.into(), 0.into(), r.clone(), c.clone(), lane];
                    n.if_else(
                        inside,
                        |n| {
                            n.vector(block, |n, lane| {
                                let place = [image.clone(), k.clone(), from, beside, lane.clone()];
                                n.store(window, to(lane), self.read(n, place));
                            });
                        },
                        |n| n.vector(block, |n, lane| n.store(window, to(lane), Scalar::float(0.0, self.dtype))),
                    );
                });
                let at = [0, 0, 0].map(Scalar::index);
                transform(n, data, window, at, None, self.dtype, |n, p, q, channel, value| {
                    put(n, p, q, k.clone() * block + channel, value);
                });
            });
        };
        if [height, width].iter().any(|extent| extent.as_int().is_some_and(|extent| extent < points)) {
            return at_edge(n);
        }
        let within = |at: &Scalar, extent: &Scalar| {
            at.clone().ge(Scalar::index(0)).and(at.clone().lt(extent.clone() - (points - 1)))
        };
        let inside = within(&row, height).and(within(&column, width));
        n.if_else(inside, whole, at_edge);
    }
}

/// The tiles of a strip, one group of blocks of results after another.
pub(super) struct Strip<'a> {
    pub(super) image: &'a Image<'a>,
    /// The weight, the signs of the direct one, and the result.
    pub(super) w: TensorId,
    pub(super) signs: Option<TensorId>,
    pub(super) out: TensorId,
    /// The matrix that transforms back, and the products that it takes.
    pub(super) back: &'a [Vec<f64>],
    pub(super) sums: TensorId,
    /// Rows and columns of results, and whether tiles come out even.
    pub(super) results: [Scalar; 2],
    pub(super) edge: Edge<'a>,
}

impl Strip<'_> {
    /// Transforms the products of so many tiles back and stores the results. `place` takes the number of a tile in the strip.
    pub(super) fn store(
        &self,
        n: &mut Nest<'_>,
        group: &Group,
        tiles: &Scalar,
        place: &impl Fn(&mut Nest<'_>, &Scalar) -> [Scalar; 3],
    ) {
        let dtype = self.image.dtype;
        let lanes = n.shape(self.w)[4];
        let total = self.signs.map(|_| total(n, lanes, dtype));
        let of_tile = |turn: Scalar, total| Sums { sums: self.sums, turn, back: self.back, total, plane: None };
        n.for_(tiles.clone(), |n, t| {
            let place = place(n, &t);
            of_tile(t, total).store(n, self.out, group, &place, self.edge);
        });
        let (Some(signs), Some(total)) = (self.signs, total) else { return };
        let all = n.var(Scalar::float(0.0, dtype));
        n.unrolled(lanes, |n, lane| n.set(all, n.get(all) + n.read(total, [lane])));
        n.if_(!Scalar::unary(UnOp::IsFinite, n.get(all)), |n| {
            n.for_(tiles.clone(), |n, t| {
                let place = place(n, &t);
                self.mend(n, signs, &of_tile(t, None), group, &place);
            });
        });
    }

    /// Stores a tile's results again, those that are not finite as a direct convolution has them.
    fn mend(&self, n: &mut Nest<'_>, signs: TensorId, sums: &Sums<'_>, group: &Group, [number, y, z]: &[Scalar; 3]) {
        let &Strip { image, w, out, .. } = self;
        let (tile, dtype) = (image.plan.tile, image.dtype);
        let [_, outs, .., lanes] = n.shape(out)[..] else { unreachable!("five axes") };
        n.for_(group.wide, |n, o| {
            let results = n.local(&[tile, tile, lanes], dtype);
            n.vector(lanes, |n, lane| {
                let sum = |n: &Nest<'_>, p: usize, q: usize, lane: &Scalar| {
                    let at = [(p as i64).into(), (q as i64).into(), sums.turn.clone(), o.clone(), lane.clone()];
                    n.read(sums.sums, at)
                };
                sums.results(n, &lane, dtype, &sum, |n, r, c, value| {
                    n.store(results, [r.into(), c.into(), lane.clone()], value);
                });
            });
            n.for_each(&[tile, tile], |n, at| {
                let [r, c] = [at[0].clone(), at[1].clone()];
                let (row, column) = (y.clone() * tile + r.clone(), z.clone() * tile + c.clone());
                let [height, width] = &self.results;
                let inside = row.clone().lt(height.clone()).and(column.clone().lt(width.clone()));
                n.if_(inside, |n| {
                    let [row, column] = [(row, height), (column, width)]
                        .map(|(at, extent)| n.let_index(at, extent.as_int().unwrap_or(1)));
                    let block_of_results = n.let_index(group.out.clone() + o.clone(), outs);
                    let of = Direct { plan: image.plan, planes: None, blocks: image.blocks(n), made: None };
                    let direct = of.sums(n, [w, signs], &block_of_results, |n, k, _, [down, across], channel| {
                        let (inside, [r, c]) = image.inside(n, [row.clone() + down, column.clone() + across]);
                        let value = image.read(n, [number.clone(), k, r, c, channel]);
                        Scalar::select(inside, value, Scalar::float(0.0, dtype))
                    });
                    n.vector(lanes, |n, lane| {
                        let given = n.read(results, [r.clone(), c.clone(), lane.clone()]);
                        let is_right = Scalar::unary(UnOp::IsFinite, given.clone());
                        let value = Scalar::select(is_right, given, n.read(direct, [lane.clone()]));
                        let place = [number.clone(), block_of_results.clone(), row.clone(), column.clone(), lane];
                        n.store(out, place, value);
                    });
                });
            });
        });
    }
}

/// The convolution of `x`, `[images, blocks, rows, columns, block]` without padding, by `w` and `signs` as [`winograd_blocked::lower`] takes them.
pub(super) fn lower(
    plan: &Plan,
    [x, w]: [TensorId; 2],
    signs: Option<TensorId>,
    shape: &[i64],
    strips: &Strips,
    b: &mut Builder,
) -> TensorId {
    let dtype = b.dtype(w);
    let rows_columns = [b.shape(x)[2], b.shape(x)[3]].map(Scalar::index);
    let image = Image { plan, x, dtype, rows_columns };
    let [data, back] = winograd_blocked::matrices(plan);
    let (points, tile) = (plan.points, plan.tile);
    let [images, outs, height, width, lanes] = shape[..] else { unreachable!("five axes") };
    let channels = b.shape(x)[1] * b.shape(x)[4];
    let (down, across) = (plan.tiles(height), plan.tiles(width));
    let tiles = images * down * across;
    let [rows, wide, _] = register_tile(plan, shape, dtype);
    let groups: Vec<(i64, i64, i64)> = cut_evenly(outs, wide);
    b.routine(|n| {
        let out = n.output(shape, dtype);
        let most = strips.cut.iter().map(|piece| piece.2).max().unwrap_or(0);
        let count: i64 = strips.cut.iter().map(|piece| piece.1).sum();
        let shared = (!strips.on_stack).then(|| n.scratch(&[count, points, points, most, channels], dtype));
        // All strips are one loop, whose iterations threads have as many of each.
        n.parallel(count, |n, strip| {
            let (values, slot) = match shared {
                Some(values) => (values, strip.clone()),
                None => (n.local(&[1, points, points, most, channels], dtype), Scalar::index(0)),
            };
            let sums = n.local(&[points, points, most, wide, lanes], dtype);
            let (results, edge) = ([height, width].map(Scalar::index), Edge::of(tile, [height, width]));
            let strip_of = Strip { image: &image, w, signs, out, back: &back, sums, results, edge };
            let piece = |n: &mut Nest<'_>, (first_tile, batch): (Scalar, i64)| {
                let register_tiles = cut_evenly(batch, rows);
                let passes: i64 = register_tiles.iter().map(|t| t.1).sum();
                let place = |n: &mut Nest<'_>, i: &Scalar| {
                    let number = n.let_index(first_tile.clone() + i.clone(), tiles);
                    tile_at(n, &number, [images, down, across])
                };
                n.for_(batch, |n, i| {
                    let place = place(n, &i);
                    image.transform(n, &data, &place, &|n, p, q, channel, value| {
                        n.store(values, [slot.clone(), p, q, i.clone(), channel], value);
                    });
                });
                for &(first, turns, wide) in &groups {
                    n.for_(turns, |n, turn| {
                        let group = Group { out: turn * wide + first, wide };
                        n.for_each(&[points, points], |n, point| {
                            each_part(n, w, passes, |n, part| {
                                let mut before = 0;
                                for &(first, turns, size) in &register_tiles {
                                    n.for_(turns, |n, turn| {
                                        let at = turn.clone() * size + first;
                                        let value = |n: &Nest<'_>, row: Scalar, _: &Scalar, channel: Scalar| {
                                            let [p, q] = [point[0].clone(), point[1].clone()];
                                            n.read(values, [slot.clone(), p, q, at.clone() + row, channel])
                                        };
                                        let steps = part.channels.clone();
                                        let pass = Pass { number: turn + before, of: passes, steps };
                                        let of: (&Ahead<'_>, &Part) = (&Ahead::Pass(&pass), &part);
                                        products(n, &group, point, of, None, w, sums, size, &at, value);
                                    });
                                    before += turns;
                                }
                            });
                        });
                        strip_of.store(n, &group, &batch.into(), &place);
                    });
                }
            };
            match strips.cut[..] {
                [(_, many, batch), (first, _, last)] => {
                    let later = strip.clone() - many;
                    n.if_else(
                        strip.clone().lt(Scalar::index(many)),
                        |n| piece(n, (strip.clone() * batch, batch)),
                        |n| piece(n, (later * last + first, last)),
                    );
                }
                _ => piece(n, (strip.clone() * most, most)),
            }
        });
        out
    })
}

/// The same where extents of images are others at other sizes: as many tiles in each strip as in another, or one more. None where weights are too many for
/// that.
pub(super) fn lower_any(
    plan: &Plan,
    [x, w]: [TensorId; 2],
    signs: Option<TensorId>,
    shape: &[i64],
    b: &mut Builder,
) -> Option<TensorId> {
    let dtype = b.dtype(w);
    let [data, back] = winograd_blocked::matrices(plan);
    let points = plan.points;
    let [images, outs, height, width, lanes] = shape[..] else { unreachable!("five axes") };
    let channels = b.shape(x)[1] * b.shape(x)[4];
    let (down, across) = (plan.tiles(height), plan.tiles(width));
    let [rows, wide, _] = register_tile(plan, shape, dtype);
    let of_point = points * points * dtype.bytes() as i64;
    let (of_tile, of_products) = (of_point * channels, of_point * wide * lanes);
    let most = STACK / (of_tile + of_products) / rows * rows;
    if of_tile * outs * lanes > WEIGHTS_NEAR || most == 0 {
        return None;
    }
    let tiles = images * down * across;
    let wanted = (tiles + most * EVEN - 1) / (most * EVEN) * EVEN;
    let count = wanted.min(tiles * 2 / rows).max(1);
    let groups: Vec<(i64, i64, i64)> = cut_evenly(outs, wide);
    let [rows_of_data, columns_of_data] = [b.shape(x)[2], b.shape(x)[3]];
    let numbers = [tiles, count, down * across, across, rows_of_data, columns_of_data, height, width];
    Some(b.routine(|n| {
        let out = n.output(shape, dtype);
        let images: &[usize] = &[0, 2, 3];
        n.at_all_sizes(&[STRIPS], &[(x, images), (out, images)], &numbers, |n, names| {
            let [all, of_strips, of_image, of_row, rows_of_data, columns_of_data, height, width] = names else {
                unreachable!("a name for each number")
            };
            let rows_columns = [rows_of_data, columns_of_data].map(Scalar::clone);
            let image = Image { plan, x, dtype, rows_columns };
            n.parallel(of_strips.clone(), |n, strip| {
                let values = n.local(&[points, points, most, channels], dtype);
                let sums = n.local(&[points, points, most, wide, lanes], dtype);
                let (results, edge) = ([height, width].map(Scalar::clone), Edge::Unknown([height, width]));
                let strip_of = Strip { image: &image, w, signs, out, back: &back, sums, results, edge };
                let begins = |strip: Scalar| Scalar::binary(BinOp::FloorDiv, strip * all.clone(), of_strips.clone());
                let start = n.let_(begins(strip.clone()));
                let mine = n.let_(begins(strip + 1) - start.clone());
                let place = |n: &mut Nest<'_>, i: &Scalar| {
                    let number = n.let_(start.clone() + i.clone());
                    let [image, tile] = split(n, &number, of_image);
                    let [y, z] = split(n, &tile, of_row);
                    [image, y, z]
                };
                n.for_(mine.clone(), |n, i| {
                    let place = place(n, &i);
                    image.transform(n, &data, &place, &|n, p, q, channel, value| {
                        n.store(values, [p, q, i.clone(), channel], value);
                    });
                });
                let register_tiles = RegisterTiles::new(n, &mine, rows);
                for &(first, turns, wide) in &groups {
                    n.for_(turns, |n, turn| {
                        let group = Group { out: turn * wide + first, wide };
                        register_tiles.multiply(n, &group, [w, values, sums], &0.into());
                        strip_of.store(n, &group, &mine, &place);
                    });
                }
            });
        });
        out
    }))
}
