//! What Winograd's algorithm left infinite or NaN, computed again as a direct convolution has it: [`winograd_blocked`](super::winograd_blocked) says why.

use super::{
    winograd_blocked::{Planes, both_sides, place},
    winograd_conv::Plan,
};
use crate::loops::{BinOp, Nest, Scalar, TensorId, UnOp};

/// A window's sums without the algorithm.
pub(super) struct Direct<'a> {
    pub(super) plan: &'a Plan,
    pub(super) planes: Option<Planes>,
    /// Blocks of channels, and channels of a block.
    pub(super) blocks: [i64; 2],
    /// The plane of results, if there are several.
    pub(super) made: Option<Scalar>,
}

impl Direct<'_> {
    /// The sums of a block of results, in registers, of the transformed weight and the signs of the direct one: `x` takes a block of channels, a plane of
    /// the data, a tap's row and column, and a channel of the block.
    pub(super) fn sums(
        &self,
        n: &mut Nest<'_>,
        [w, signs]: [TensorId; 2],
        out: &Scalar,
        x: impl Fn(&mut Nest<'_>, Scalar, Option<&Scalar>, [Scalar; 2], Scalar) -> Scalar,
    ) -> TensorId {
        let (dtype, lanes) = (n.dtype(w), n.shape(w)[4]);
        let [blocks, block] = self.blocks;
        let (back, taps) = (self.plan.weight_back(), self.plan.taps as usize);
        let least = Scalar::float(f64::from(f32::MIN_POSITIVE), dtype);
        let (planes, window) = (self.planes, self.planes.map_or(1, |p| p.taps));
        let sums = n.registers(&[lanes], dtype);
        n.vector(lanes, |n, lane| n.store(sums, [lane], Scalar::float(0.0, dtype)));
        n.for_each(&[window * blocks, block], |n, at| {
            // Of the planes within the window, one after the other.
            let k = if planes.is_some() { at[0].clone().floor_mod(blocks) } else { at[0].clone() };
            let made = planes.zip(self.made.as_ref());
            let plane = made.map(|(p, made)| made.clone() + at[0].clone().floor_div(blocks) - p.before);
            let inside = planes
                .zip(plane.clone())
                .map(|(p, plane)| plane.clone().ge(Scalar::index(0)).and(plane.lt(Scalar::index(p.given))));
            let channel = at[1].clone();
            let add = |n: &mut Nest<'_>| {
                let mut values = Vec::with_capacity(taps * taps);
                for tap in 0..taps * taps {
                    let [down, across] = [tap / taps, tap % taps].map(|at| Scalar::index(at as i64));
                    let value = x(n, k.clone(), plane.as_ref(), [down, across], channel.clone());
                    values.push(n.let_(value));
                }
                n.vector(lanes, |n, lane| {
                    let transformed = |n: &Nest<'_>, p: usize, q: usize| {
                        let channel = at[0].clone() * block + channel.clone();
                        n.read(w, [out.clone(), (p as i64).into(), (q as i64).into(), channel, lane.clone()])
                    };
                    let mut weights = vec![Scalar::float(0.0, dtype); taps * taps];
                    both_sides(
                        n,
                        &back,
                        dtype,
                        |n, q, p| transformed(n, p, q),
                        |_, across, down, weight| {
                            weights[down * taps + across] = weight;
                        },
                    );
                    let sum = n.read(sums, [lane.clone()]);
                    let sum = weights.into_iter().zip(&values).enumerate().fold(sum, |sum, (tap, (weight, value))| {
                        let [down, across] = [tap / taps, tap % taps].map(|at| Scalar::index(at as i64));
                        let of_weight = [out.clone(), at[0].clone(), down, across];
                        let sign = of_weight.into_iter().chain([channel.clone(), lane.clone()]);
                        let size = Scalar::binary(BinOp::Max, Scalar::unary(UnOp::Abs, weight), least.clone());
                        sum + value.clone() * (n.read(signs, sign).cast(dtype) * size)
                    });
                    n.store(sums, [lane], sum);
                });
            };
            match inside {
                None => add(n),
                Some(inside) => n.if_(inside, add),
            }
        });
        sums
    }
}

/// Computes results directly that are not finite.
pub(super) struct Mend<'a> {
    pub(super) plan: &'a Plan,
    pub(super) planes: Option<Planes>,
    /// The data, the transformed weight and the signs of the direct one.
    pub(super) tensors: [TensorId; 3],
    pub(super) out: TensorId,
}

impl Mend<'_> {
    /// All of them.
    pub(super) fn all(&self, n: &mut Nest<'_>) {
        let [images, outs, ..] = n.shape(self.out)[..] else { unreachable!("five axes or six") };
        let made = self.planes.map_or(1, |p| p.made);
        n.parallel_each(&[images, outs, made], |n, i| {
            let made = self.planes.map(|_| &i[2]);
            self.plane(n, [&i[0], &i[1]], made);
        });
    }

    /// Those of a block of an image, and of one of its planes if there are several.
    fn plane(&self, n: &mut Nest<'_>, [image, of_results]: [&Scalar; 2], made: Option<&Scalar>) {
        let &Mend { plan, planes, tensors: [x, w, signs], out } = self;
        let (dtype, lanes) = (n.dtype(out), n.shape(w)[4]);
        let [_, blocks, .., block] = n.shape(x)[..] else { unreachable!("five axes or six") };
        let [.., height, width, _] = n.shape(out)[..] else { unreachable!("five axes or six") };
        n.for_(height, |n, r| {
            n.for_(width, |n, c| {
                let place = |lane: &Scalar| {
                    place([image.clone(), of_results.clone()], made, [r.clone(), c.clone(), lane.clone()])
                };
                let total = n.var(Scalar::float(0.0, dtype));
                n.for_(lanes, |n, lane| n.set(total, n.get(total) + n.read(out, place(&lane))));
                n.if_(!Scalar::unary(UnOp::IsFinite, n.get(total)), |n| {
                    let of = Direct { plan, planes, blocks: [blocks, block], made: made.cloned() };
                    let sums = of.sums(n, [w, signs], of_results, |n, k, plane, [down, across], channel| {
                        let of_tap = [r.clone() + down, c.clone() + across, channel];
                        n.read(x, super::winograd_blocked::place([image.clone(), k], plane, of_tap))
                    });
                    n.vector(lanes, |n, lane| {
                        let given = n.read(out, place(&lane));
                        let is_right = Scalar::unary(UnOp::IsFinite, given.clone());
                        let value = Scalar::select(is_right, given, n.read(sums, [lane.clone()]));
                        n.store(out, place(&lane), value);
                    });
                });
            });
        });
    }
}
