//! Convolutions, computed plainly.

use super::{
    conv_attrs::ConvAttrs,
    geometry::{Window, all_offsets, offsets},
    numbers::{Num, in_arithmetic},
};
use crate::{
    ir::Dim,
    tensor::{DType, Tensor},
};

/// Known extents as a type has them.
fn dims(t: &Tensor) -> Vec<Dim> {
    t.shape().iter().map(|&n| Dim::Known(n as i64)).collect()
}

/// The convolution of `x` with `w`, summed over channels, then over taps.
pub(super) fn convolve(c: &ConvAttrs, x: &Tensor, w: &Tensor, dtype: DType) -> Tensor {
    in_arithmetic!(dtype, convolve_in(c, x, w, dtype))
}

/// Numbers of the problem in the plain order (batch, channels, spatial axes).
struct Problem {
    batch: usize,
    groups: usize,
    in_per_group: usize,
    out_per_group: usize,
    extents: Vec<usize>,
    outputs: Vec<usize>,
    windows: Vec<Window>,
}

fn convolve_in<T: Num>(c: &ConvAttrs, x: &Tensor, w: &Tensor, dtype: DType) -> Tensor {
    let table = |layout, t: &Tensor, letter| offsets(layout, t.shape(), letter);
    let data: Vec<Vec<usize>> = format!("NC{}", c.spatial).chars().map(|l| table(&c.data, x, l)).collect();
    let kernel: Vec<Vec<usize>> = format!("GOI{}", c.spatial).chars().map(|l| table(&c.kernel, w, l)).collect();
    let outs = kernel[0].len() * kernel[1].len();
    let channels = if c.is_depthwise(&dims(x), &dims(w)) { outs * kernel[2].len() } else { outs };
    let windows: Vec<Window> = (0..c.spatial.len()).map(|k| c.window(k, kernel[k + 3].len() as i64)).collect();
    let extents: Vec<usize> = data[2..].iter().map(Vec::len).collect();
    let outputs = windows.iter().zip(&extents).map(|(w, &n)| w.outputs(n as i64) as usize).collect();
    let groups = c.groups as usize;
    let mut p = Problem {
        batch: data[0].len(),
        groups,
        in_per_group: data[1].len() / groups,
        out_per_group: channels / groups,
        extents,
        outputs,
        windows,
    };
    let values = |t: &Tensor, tables: &[Vec<usize>]| -> Vec<T> {
        let all = T::read(t);
        all_offsets(tables).into_iter().map(|o| all[o]).collect()
    };
    let (xs, ws) = (values(x, &data), values(w, &kernel));
    let shape: Vec<usize> = c
        .out
        .axes()
        .iter()
        .map(|axis| {
            let whole = match axis.primal {
                'N' => p.batch,
                'C' => channels,
                s => p.outputs[c.spatial.find(s).expect("the layout's letters were checked")],
            };
            let block = c.out.block(axis.primal).map_or(1, |(_, b)| b as usize);
            if axis.block.is_some() { block } else { whole / block }
        })
        .collect();
    if p.windows.iter().all(Window::is_point) {
        // Every position is by itself: one long row is quicker than many short ones.
        let positions = p.outputs.iter().product();
        (p.extents, p.outputs) = (vec![positions], vec![positions]);
        p.windows.truncate(1);
    }
    let plain = sum_up(&p, &xs, &ws);
    let out: Vec<Vec<usize>> = format!("NC{}", c.spatial).chars().map(|l| offsets(&c.out, &shape, l)).collect();
    let mut placed = vec![T::default(); plain.len()];
    all_offsets(&out).into_iter().zip(plain).for_each(|(o, v)| placed[o] = v);
    T::write(dtype, &shape, &placed)
}

/// One tap of the window: the rows of output and input that it connects, as offsets into their planes.
struct Tap {
    rows: Vec<(usize, usize)>,
    /// Within a row: first output, number of outputs, first input, inputs from one to the next.
    first: usize,
    count: usize,
    from: usize,
    step: usize,
}

/// The tap of these places within the windows.
fn tap(p: &Problem, place: &[usize]) -> Tap {
    let reach = |axis: usize| -> Vec<(usize, usize)> {
        let w = &p.windows[axis];
        let from = |y: usize| y as i64 * w.stride + place[axis] as i64 * w.dilation - w.before;
        (0..p.outputs[axis])
            .map(|y| (y, from(y)))
            .filter(|&(_, x)| x >= 0 && x < p.extents[axis] as i64)
            .map(|(y, x)| (y, x as usize))
            .collect()
    };
    let last = p.windows.len() - 1;
    let mut rows = vec![(0, 0)];
    for axis in 0..last {
        let reach = reach(axis);
        rows = rows
            .iter()
            .flat_map(|(o, i)| reach.iter().map(move |(y, x)| (o * p.outputs[axis] + y, i * p.extents[axis] + x)))
            .collect();
    }
    rows.iter_mut().for_each(|(o, i)| (*o, *i) = (*o * p.outputs[last], *i * p.extents[last]));
    let columns = reach(last);
    let (first, from) = columns.first().copied().unwrap_or((0, 0));
    Tap { rows, first, count: columns.len(), from, step: p.windows[last].stride as usize }
}

fn sum_up<T: Num>(p: &Problem, xs: &[T], ws: &[T]) -> Vec<T> {
    let sizes: Vec<usize> = p.windows.iter().map(|w| w.kernel as usize).collect();
    let taps: Vec<Tap> = (0..sizes.iter().product())
        .map(|flat: usize| {
            let mut rest = flat;
            let mut place: Vec<usize> = sizes.iter().rev().map(|n| (rest % n, rest /= n).0).collect();
            place.reverse();
            tap(p, &place)
        })
        .collect();
    let (in_plane, out_plane) = (p.extents.iter().product::<usize>(), p.outputs.iter().product::<usize>());
    let (ins, outs) = (p.in_per_group * p.groups, p.out_per_group * p.groups);
    let mut out = vec![T::default(); p.batch * outs * out_plane];
    if out_plane == 0 {
        return out;
    }
    for (at, sums) in out.chunks_mut(out_plane).enumerate() {
        let (n, o) = (at / outs, at % outs);
        for i in 0..p.in_per_group {
            let channel = n * ins + o / p.out_per_group * p.in_per_group + i;
            let plane = &xs[channel * in_plane..][..in_plane];
            let weights = &ws[(o * p.in_per_group + i) * taps.len()..][..taps.len()];
            for (tap, &weight) in taps.iter().zip(weights) {
                if tap.count == 0 {
                    continue;
                }
                for &(to, from) in &tap.rows {
                    let to = &mut sums[to + tap.first..][..tap.count];
                    let from = &plane[from + tap.from..];
                    match tap.step {
                        1 => to.iter_mut().zip(from).for_each(|(s, &x)| *s += weight * x),
                        step => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(s, &x)| *s += weight * x),
                    }
                }
            }
        }
    }
    out
}
