//! Operands of contractions that lie the wrong way are copied into order first, where that pays: so that vectors are met whole, and so
//! that what a register tile reads step after step lies together, in blocks of its width.

use hashbrown::HashMap;

use super::{
    Access, Emitter,
    choose::{choose, gap},
    combine::{factors, narrow_multiplied},
    tiling::{Form, Tiling, coeff, form},
};
use crate::{
    loops::{Axis, AxisId, Scalar, ScalarKind, TILE, TensorDecl, TensorId, numbers_in_word},
    lower::{
        affine::{Affine, Substitution, for_each_node, replace_axes},
        normalize::{Reduction, Step, reads},
    },
};

/// Cycles to move one element, and to go on to the next row of what is moved row by row.
const MOVE: f64 = 0.45;
const ROW: f64 = 4.0;
/// A packed copy may be so many times as large as what it is made of: windows must not be unrolled into memory.
const LARGEST: i64 = 1;
/// What is used less often than this does not pay for being moved.
const USES: i64 = 4;
/// Blocks of so many vectors are tried, where there are at most so many axes, as products have: to price more takes long.
const BLOCKS: [i64; 4] = [4, 3, 2, 1];
const AXES: usize = 5;

/// An order for the copy of an operand: the axes of results that it depends on, those that are summed over, and last of all one of the
/// former, or a block of it; or the order that it has, without the gaps between what is read.
struct Order {
    last: Axis,
    end: End,
}

/// What comes last in a copy.
#[derive(Copy, Clone, PartialEq, Debug)]
enum End {
    /// The whole of an axis of results.
    Axis,
    /// So many elements of it. Where it is one, what is summed over comes last.
    Block(i64),
    /// What does in the operand.
    Same,
}

impl Emitter {
    /// The steps, with packing steps before those reductions that they speed up.
    pub(super) fn pack_operands(&mut self, steps: Vec<Step>) -> Vec<Step> {
        let mut all = Vec::new();
        for mut step in steps {
            // One operand, and then the other where that pays, too.
            let mut packed: Vec<TensorId> = Vec::new();
            if let Some((copy, now)) = step.reduction.as_ref().and_then(|r| self.pack_for_tiles(&step.axes, r)) {
                all.extend([copy, Step { reduction: Some(now), ..step }]);
                continue;
            }
            while let Some(r) = &step.reduction
                && let Some((copy, now)) = self.pack(&step.axes, r, &packed)
            {
                packed.push(copy.tensor);
                all.push(copy);
                step.reduction = Some(now);
            }
            all.push(step);
        }
        all
    }

    /// The copy that speeds up a reduction most, and the reduction that reads it. `packed` are copies that it reads already.
    fn pack(&mut self, axes: &[Axis], r: &Reduction, packed: &[TensorId]) -> Option<(Step, Reduction)> {
        let (mut to, mut value) = (Scalar::index(0), r.value.clone());
        let split = self.split_axes(axes, &mut to, &mut [&mut value]);
        let stays = self.decide(|e| {
            let is_read_by_rows = e.parts_of_far_rows(axes, r).is_some() || e.slices(axes, r).is_some();
            is_read_by_rows || e.ragged(axes, &r.value).is_some()
        });
        // Who has an operand in blocks has put it in order.
        if (split.len() > axes.len() || stays) && packed.is_empty() {
            return None;
        }
        let best = self.decide(|e| {
            let (form, seen) = (form(r, e.unit), e.accesses(&value));
            e.best_order(axes, &split, r, packed, &seen, form)
        });
        let (read, last, end) = best?;
        let (Some((tensor, index)), Some(&last)) =
            (reads(&r.value).into_iter().nth(read), axes.iter().find(|a| a.id == last))
        else {
            self.diverge();
            return None;
        };
        Some(self.copied(axes, r, tensor, &index, &Order { last, end }))
    }

    /// The copy that speeds up a reduction most: which of its reads, the axis of its order, and what comes last.
    fn best_order(
        &mut self,
        axes: &[Axis],
        split: &[Axis],
        r: &Reduction,
        packed: &[TensorId],
        seen: &[Access],
        form: Form,
    ) -> Option<(usize, AxisId, End)> {
        let to = self.packed_access(split, 4).offset?;
        let (mut least, _) = choose(split, Some(&to), &r.axes, seen, form, self.unit, self.changing())?;
        let mut best = None;
        let visits: i64 = axes.iter().chain(&r.axes).map(|a| a.extent).product();
        let conditional = conditional(&r.value);
        for (i, (tensor, index)) in reads(&r.value).into_iter().enumerate() {
            let stays = packed.contains(&tensor) || conditional.contains(&tensor);
            let Some(offset) = Affine::of(&self.flat(tensor, &index)).filter(|_| !stays) else {
                continue;
            };
            let elements: i64 =
                axes.iter().chain(&r.axes).filter(|a| offset.coeff(a.id) != 0).map(|a| a.extent).product();
            let size: i64 = self.group.decl(tensor).shape.iter().product();
            if elements > LARGEST * size || visits / elements.max(1) < USES {
                continue;
            }
            for order in self.orders(axes, r, &offset, &seen[i]) {
                let parts = [self.fresh(), self.fresh()];
                let cut = |id: AxisId| (id == order.last.id && order.is_cut()).then_some((order.block(), parts));
                let axes: Vec<Axis> = split
                    .iter()
                    .flat_map(|a| match cut(a.id) {
                        Some((block, [outer, inner])) => {
                            vec![Axis { id: outer, extent: a.extent / block }, Axis { id: inner, extent: block }]
                        }
                        None => vec![*a],
                    })
                    .collect();
                let mut changed: Vec<Access> = seen.iter().map(|a| cut_access(a, &cut)).collect();
                changed[i] = self.packed_access(&order.axes(&axes, r, &offset, parts), seen[i].bytes);
                let to = cut_offset(&to, &cut);
                let chosen = choose(&axes, Some(&to), &r.axes, &changed, form, self.unit, self.changing());
                let Some((cost, tiling)) = chosen else { continue };
                if order.is_cut() && !takes_whole(&tiling, parts[1], order.block()) {
                    continue;
                }
                // Whole vectors move at once where they lie so already.
                let moves = match (order.end, offset.coeff(order.last.id)) {
                    (End::Same, _) => ROW * (elements / run(&offset, &axes, &r.axes).min(self.unit.lanes())) as f64,
                    (_, 1) => MOVE * elements as f64 + ROW * (elements / order.block()) as f64,
                    _ => MOVE * elements as f64,
                };
                let cost = cost + moves;
                if cost < least {
                    least = cost;
                    best = Some((i, order.last.id, order.end));
                }
            }
        }
        best
    }

    /// Orders that a copy of an operand with this offset could have, other than its own unless that has gaps.
    fn orders(&self, axes: &[Axis], r: &Reduction, offset: &Affine, seen: &Access) -> Vec<Order> {
        let mut orders = Vec::new();
        if let Some(&last) = axes.iter().rfind(|a| offset.coeff(a.id) != 0)
            && gap(seen, axes, &r.axes, &self.unit.timing) > 1
        {
            orders.push(Order { last, end: End::Same });
        }
        for &last in axes.iter().filter(|a| offset.coeff(a.id) != 0) {
            // Of orders that cost the same, blocks are the ones that neither caches nor pages can spoil.
            let fits = |block: &i64| *block < last.extent && last.extent % block == 0 && !self.changes(last.id);
            if axes.len() + r.axes.len() <= AXES {
                let blocks = BLOCKS.iter().map(|b| b * self.unit.lanes()).filter(fits);
                orders.extend(blocks.map(|block| Order { last, end: End::Block(block) }));
            }
            if offset.coeff(last.id) != 1 {
                orders.push(Order { last, end: End::Axis });
            }
        }
        let summed_last = r.axes.last().is_none_or(|a| offset.coeff(a.id) == 1);
        if let (false, Some(&last)) = (summed_last, axes.iter().rfind(|a| offset.coeff(a.id) != 0)) {
            orders.push(Order { last, end: End::Block(1) });
        }
        orders
    }

    /// The step that copies what is read at `index` in that order, and the reduction that reads the copy.
    fn copied(
        &mut self,
        axes: &[Axis],
        r: &Reduction,
        tensor: TensorId,
        index: &[Scalar],
        order: &Order,
    ) -> (Step, Reduction) {
        let offset = Affine::of(&self.flat(tensor, index)).expect("only operands whose offset is affine are packed");
        let parts = [self.fresh(), self.fresh()];
        let last = Scalar::axis(order.last.id);
        let (block, within) = (last.clone().floor_div(order.block()), last.floor_mod(order.block()));
        let cut: Vec<Axis> = axes
            .iter()
            .flat_map(|a| match a.id == order.last.id && order.is_cut() {
                true => vec![
                    Axis { id: parts[0], extent: a.extent / order.block() },
                    Axis { id: parts[1], extent: order.block() },
                ],
                false => vec![*a],
            })
            .collect();
        let ordered = order.axes(&cut, r, &offset, parts);
        let rejoined = |own: &HashMap<AxisId, Scalar>| match (own.get(&parts[0]), own.get(&parts[1])) {
            (Some(outer), Some(inner)) => Some((order.last.id, outer.clone() * order.block() + inner.clone())),
            _ => None,
        };
        let place = |a: &Axis| match a.id {
            id if id == parts[0] => block.clone(),
            id if id == parts[1] => within.clone(),
            id => Scalar::axis(id),
        };
        self.moved(r, (tensor, index), &ordered, &rejoined, &place)
    }

    /// The step that copies what is read at an index into the order of some axes, and the reduction that reads the copy. `rejoined` says where an
    /// axis is that has become two of them, `place` where one of them is for who reads.
    fn moved(
        &mut self,
        r: &Reduction,
        (tensor, index): (TensorId, &[Scalar]),
        ordered: &[Axis],
        rejoined: &dyn Fn(&HashMap<AxisId, Scalar>) -> Option<(AxisId, Scalar)>,
        place: &dyn Fn(&Axis) -> Scalar,
    ) -> (Step, Reduction) {
        let dtype = self.group.decl(tensor).dtype;
        self.group.tensors.push(TensorDecl { shape: ordered.iter().map(|a| a.extent).collect(), dtype });
        let packed = TensorId(self.group.tensors.len() as u32 - 1);
        // The copy runs over axes of its own.
        let own: Vec<Axis> = ordered.iter().map(|a| Axis { id: self.fresh(), extent: a.extent }).collect();
        self.extents.extend(own.iter().map(|a| (a.id, a.extent)));
        for (a, o) in ordered.iter().zip(&own) {
            if self.changes(a.id) {
                self.mark(o.id);
            }
        }
        let mut with: HashMap<AxisId, Scalar> =
            ordered.iter().zip(&own).map(|(a, o)| (a.id, Scalar::axis(o.id))).collect();
        with.extend(rejoined(&with));
        let source = Scalar::read(tensor, index.iter().map(|i| replace_axes(i, &with)).collect(), dtype);
        let place: Vec<Scalar> = ordered.iter().map(place).collect();
        let value = Substitution::new(|s: &Scalar| match s.kind() {
            ScalarKind::Read(t, at) if *t == tensor && at == index => Some(Scalar::read(packed, place.clone(), dtype)),
            _ => None,
        })
        .apply(&r.value);
        let step = Step { tensor: packed, axes: own, reduction: None, value: source };
        (step, Reduction { value, ..r.clone() })
    }

    /// The copy of an operand of a product of narrow numbers by which matrix registers can multiply it: words of numbers that are summed over lie
    /// side by side along an axis of results, in blocks as wide as a tile where these come out even. None where operands lie so, or where vectors
    /// cost less.
    fn pack_for_tiles(&mut self, axes: &[Axis], r: &Reduction) -> Option<(Step, Reduction)> {
        let (a, b) = narrow_multiplied(r)?;
        let count =
            numbers_in_word(a).filter(|_| self.unit.has_tiles(a) && numbers_in_word(b) == numbers_in_word(a))?;
        if self.is_sized() {
            return None;
        }
        let (mut to, mut value) = (Scalar::index(0), r.value.clone());
        // Who has an operand in blocks has put it in order.
        let is_blocked = self.split_axes(axes, &mut to, &mut [&mut value]).len() > axes.len();
        if is_blocked || self.in_tiles(axes, r).is_some() {
            return None;
        }
        let [x, y] = factors(&r.value)?;
        let [left, right] = [self.accesses(&x).pop()?, self.accesses(&y).pop()?];
        let along = |has: &Access, lacks: &Access| {
            let fits = |a: &&Axis| a.extent >= TILE && coeff(has, a.id) != Some(0) && coeff(lacks, a.id) == Some(0);
            axes.iter().filter(fits).max_by_key(|a| a.extent).copied()
        };
        let summed = |left: &Access, right: &Access| {
            let fits =
                |k: &&Axis| k.extent % count == 0 && coeff(left, k.id) == Some(1) && coeff(right, k.id) != Some(0);
            r.axes.iter().find(fits).copied()
        };
        let sides = [(&left, &right, &y), (&right, &left, &x)];
        let (k, columns, read, right) = sides.into_iter().find_map(|(left, right, read)| {
            along(left, right)?;
            Some((summed(left, right)?, along(right, left)?, read, right))
        })?;
        // The axis that is summed over, as words and numbers of a word.
        let [words, part] = [k.extent / count, count].map(|extent| Axis { id: self.fresh(), extent });
        self.extents.extend([words, part].map(|a| (a.id, a.extent)));
        let with = HashMap::from_iter([(k.id, Scalar::axis(words.id) * count + Scalar::axis(part.id))]);
        let reduced = r.axes.iter().flat_map(|a| if a.id == k.id { vec![words, part] } else { vec![*a] }).collect();
        let halved = Reduction { value: replace_axes(&r.value, &with), axes: reduced, ..r.clone() };
        let ScalarKind::Read(tensor, index) = read.kind() else { return None };
        let index: Vec<Scalar> = index.iter().map(|i| replace_axes(i, &with)).collect();
        let parts = [self.fresh(), self.fresh()];
        let is_cut = columns.extent % TILE == 0 && columns.extent > TILE;
        let used = |a: &&Axis| coeff(right, a.id) != Some(0) && a.id != k.id && a.id != columns.id;
        let mut ordered: Vec<Axis> = axes.iter().chain(&r.axes).filter(used).copied().collect();
        match is_cut {
            true => ordered.extend([
                Axis { id: parts[0], extent: columns.extent / TILE },
                words,
                Axis { id: parts[1], extent: TILE },
                part,
            ]),
            false => ordered.extend([words, columns, part]),
        }
        let at = Scalar::axis(columns.id);
        let rejoined = |own: &HashMap<AxisId, Scalar>| match (own.get(&parts[0]), own.get(&parts[1])) {
            (Some(outer), Some(inner)) => Some((columns.id, outer.clone() * TILE + inner.clone())),
            _ => None,
        };
        let place = |a: &Axis| match a.id {
            id if id == parts[0] => at.clone().floor_div(TILE),
            id if id == parts[1] => at.clone().floor_mod(TILE),
            id => Scalar::axis(id),
        };
        let (copy, now) = self.moved(&halved, (*tensor, &index), &ordered, &rejoined, &place);
        let elements: f64 = ordered.iter().map(|a| a.extent as f64).product();
        let (mut to, mut value) = (Scalar::index(0), now.value.clone());
        let split = self.split_axes(axes, &mut to, &mut [&mut value]);
        let tiles = self.in_tiles(&split, &Reduction { value, ..now.clone() }).map(|c| c.0 + MOVE * elements);
        let to = self.packed_access(axes, 4).offset;
        let seen = self.accesses(&r.value);
        let vectors = choose(axes, to.as_ref(), &r.axes, &seen, form(r, self.unit), self.unit, self.changing());
        if tiles.is_some_and(|cost| vectors.is_none_or(|v| cost < v.0)) {
            return Some((copy, now));
        }
        self.group.tensors.pop();
        None
    }

    /// What a read of a packed copy with these axes, and elements of so many bytes, will be.
    fn packed_access(&self, order: &[Axis], bytes: i64) -> Access {
        let mut below = 1;
        let mut terms = Vec::new();
        for a in order.iter().rev() {
            terms.push((a.id, below));
            below *= a.extent;
        }
        terms.sort_unstable();
        let axes = order.iter().map(|a| a.id).collect();
        Access { tensor: None, axes, offset: Some(Affine { base: 0, terms }), bytes }
    }
}

impl Order {
    /// How many elements of the axis come last.
    fn block(&self) -> i64 {
        match self.end {
            End::Block(n) => n,
            End::Axis | End::Same => self.last.extent,
        }
    }

    /// Whether there are several blocks of several elements.
    fn is_cut(&self) -> bool {
        self.block() > 1 && self.block() < self.last.extent
    }

    /// The axes of the copy of an operand with this offset, where `parts` are those of blocks and of places in a block.
    fn axes(&self, axes: &[Axis], r: &Reduction, offset: &Affine, parts: [AxisId; 2]) -> Vec<Axis> {
        let used = |a: &&Axis| offset.coeff(a.id) != 0 || a.id == parts[0];
        if self.end == End::Same {
            let mut all: Vec<Axis> = axes.iter().chain(&r.axes).filter(used).copied().collect();
            all.sort_by_key(|a| std::cmp::Reverse(offset.coeff(a.id).abs()));
            return all;
        }
        let last = match (self.is_cut(), self.block()) {
            (true, _) => Some(parts[1]),
            (false, 1) => None,
            (false, _) => Some(self.last.id),
        };
        let first = axes.iter().filter(used).filter(|a| Some(a.id) != last);
        let summed = r.axes.iter().filter(|a| offset.coeff(a.id) != 0);
        first.chain(summed).chain(axes.iter().filter(|a| Some(a.id) == last)).copied().collect()
    }
}

/// Whether a register tile takes the whole of a block, whose places are that axis. One that takes a part reads lines with gaps between them, which prefetchers
/// fill: twice as much comes from the second cache as is used (Zen 3, 512 x 512 x 2048: 14.1 ms for 12.1).
fn takes_whole(tiling: &Tiling, places: AxisId, block: i64) -> bool {
    let size = tiling.tiles.iter().find(|t| t.0 == places).map_or(1, |t| t.1);
    let lanes = if tiling.vector == places { tiling.lanes } else { 1 };
    size * lanes == block
}

/// How many elements that are read lie side by side.
fn run(offset: &Affine, axes: &[Axis], reduced: &[Axis]) -> i64 {
    let along = axes.iter().chain(reduced).find(|a| offset.coeff(a.id).abs() == 1);
    along.map_or(1, |a| a.extent)
}

/// What is read under a condition: elsewhere there may be nothing to copy.
fn conditional(value: &Scalar) -> Vec<TensorId> {
    let mut found = Vec::new();
    for_each_node(value, &mut |n| {
        if let ScalarKind::Select(_, a, b) = n.kind() {
            found.extend(reads(a).into_iter().chain(reads(b)).map(|r| r.0));
        }
    });
    found
}

/// An offset where an axis has become two: blocks of so many elements, and the places in them.
fn cut_offset(offset: &Affine, cut: &impl Fn(AxisId) -> Option<(i64, [AxisId; 2])>) -> Affine {
    let part = |&(axis, c): &(AxisId, i64)| match cut(axis) {
        Some((block, [outer, inner])) => vec![(outer, c * block), (inner, c)],
        None => vec![(axis, c)],
    };
    let mut terms: Vec<(AxisId, i64)> = offset.terms.iter().flat_map(part).collect();
    terms.sort_unstable();
    Affine { base: offset.base, terms }
}

fn cut_access(a: &Access, cut: &impl Fn(AxisId) -> Option<(i64, [AxisId; 2])>) -> Access {
    let part = |&id: &AxisId| match cut(id) {
        Some((_, parts)) => parts.to_vec(),
        None => vec![id],
    };
    Access {
        offset: a.offset.as_ref().map(|o| cut_offset(o, cut)),
        axes: a.axes.iter().flat_map(part).collect(),
        ..a.clone()
    }
}
