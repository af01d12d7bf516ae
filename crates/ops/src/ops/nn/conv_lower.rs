//! Convolutions as tensor expressions: the padded data, then sums of products whose indices are affine.

use super::{
    conv_attrs::ConvAttrs,
    conv_far_taps,
    geometry::Window,
    numbers::sum_products,
    place::{Pad, Place, extent, indices, pad, place_in, shape_in},
};
use crate::{
    ir::Dim,
    loops::{Builder, Scalar, TensorId},
    tensor::DType,
};

/// Where at least one tap of so many sees padding, it is left out. Of images with depth, any is along all axes but the last one: the others
/// are neither vectors nor sides of register tiles.
const SHARE_OF_PADDING: i64 = 4;

/// And where for each tap at least so many products are added.
const LEAST_WITHIN: i64 = 8;

/// Whether so many taps of windows along a spatial axis see padding that loops should leave it out.
fn sees_padding(w: &Window, extent: i64, outputs: i64, outer_of_three: bool) -> bool {
    let all = w.kernel.saturating_mul(outputs);
    let padding = all.saturating_sub(w.seeing(extent, outputs));
    padding > 0 && (outer_of_three || padding >= all / SHARE_OF_PADDING)
}

/// The convolution of `x` with `w`, summed in `dtype`.
pub(super) fn convolve(c: &ConvAttrs, x: TensorId, w: TensorId, dtype: DType, b: &mut Builder) -> TensorId {
    let (xs, ws) = (b.shape(x).to_vec(), b.shape(w).to_vec());
    let known = |shape: &[i64]| shape.iter().map(|&n| Dim::Known(n)).collect::<Vec<_>>();
    let depthwise = c.is_depthwise(&known(&xs), &known(&ws));
    let (per_group, outs) = (extent(&c.kernel, &ws, 'O'), extent(&c.kernel, &ws, 'G') * extent(&c.kernel, &ws, 'O'));
    // Results per input channel of a depthwise convolution.
    let multiplier = if depthwise { extent(&c.kernel, &ws, 'I') } else { 1 };
    let channels = outs * multiplier;
    let windows: Vec<Window> =
        c.spatial.chars().enumerate().map(|(k, l)| c.window(k, extent(&c.kernel, &ws, l))).collect();
    let outputs: Vec<i64> = c.spatial.chars().zip(&windows).map(|(l, w)| w.outputs(extent(&c.data, &xs, l))).collect();
    if dtype == DType::F32
        && let Some(out) = conv_far_taps::convolve(c, [x, w], &outputs, b)
    {
        return out;
    }
    let spatial = |letter: char| c.spatial.find(letter).expect("the layout's letters were checked");

    let shape = c.spatial.chars().zip(windows.iter().zip(&outputs));
    // Along axes where windows see much padding, it is decided tap by tap, so that loops leave it out, and not copied.
    let much = |(l, (w, &n)): (char, (&Window, &i64))| {
        sees_padding(w, extent(&c.data, &xs, l), n, c.spatial.len() == 3 && l != 'W')
    };
    let mut by_taps: Vec<bool> = shape.clone().map(much).collect();
    let floats = [b.dtype(x), b.dtype(w), dtype].iter().all(|d| matches!(d, DType::F32 | DType::F64));
    let other_taps = windows.iter().zip(&by_taps).filter(|(_, by_taps)| !**by_taps).map(|(w, _)| w.kernel);
    let within = extent(&c.kernel, &ws, 'I') * other_taps.product::<i64>();
    if !floats || depthwise || within < LEAST_WITHIN || b.is_for_all_sizes() {
        by_taps.fill(false);
    }
    let pads: Vec<Pad> = shape
        .zip(&by_taps)
        .filter(|(_, by_taps)| !**by_taps)
        .map(|((l, (w, &n)), _)| Pad::of(c.data.position(l).expect("the layout's letters were checked"), w, n))
        .collect();
    let x = pad(x, &pads, Scalar::int(0, b.dtype(x)), b);

    let shape = shape_in(&c.out, |letter| match letter {
        'N' => extent(&c.data, &xs, 'N'),
        'C' => channels,
        s => outputs[spatial(s)],
    });
    // The channels that are summed over are blocked as the weight blocks them, else as the data does.
    let summed = if depthwise { 1 } else { extent(&c.kernel, &ws, 'I') };
    let block = match (c.kernel.block('I'), c.data.block('C')) {
        _ if depthwise => 1,
        (Some((_, block)), _) => block,
        (None, Some((_, block))) if summed % block == 0 => block,
        _ => 1,
    };
    // Where the data's blocks hold several of the weight's, both are met in order by going through a block of the data.
    let several = match c.data.block('C') {
        Some((_, data)) if c.groups == 1 && data > block && data % block == 0 && summed % data == 0 => data / block,
        _ => 1,
    };
    let mut over = vec![summed / (block * several)];
    over.extend(windows.iter().map(|w| w.kernel));
    if several > 1 {
        over.push(several);
    }
    if block > 1 {
        over.push(block);
    }
    sum_products(b, &shape, &over, dtype, |b, i, r| {
        let out = place_in(&c.out, 'C', i);
        let inner = if block > 1 { r[r.len() - 1].clone() } else { Scalar::index(0) };
        let outer = match several {
            1 => r[0].clone(),
            n => r[0].clone() * n + r[c.spatial.len() + 1].clone(),
        };
        let summed = Place { outer, inner, block };
        let channel = match () {
            _ if c.groups == 1 => summed.clone(),
            _ if depthwise && multiplier == 1 => out.clone(),
            _ if depthwise => Place::flat(out.index().floor_div(multiplier)),
            _ => {
                let group = out.index().floor_div(channels / c.groups);
                match c.data.block('C') {
                    // Groups of whole blocks stay in blocks.
                    Some((_, data)) if data == block && extent(&c.kernel, &ws, 'I') % block == 0 => {
                        let first = group * (extent(&c.kernel, &ws, 'I') / block);
                        Place { outer: first + summed.outer.clone(), ..summed.clone() }
                    }
                    _ => Place::flat(group * extent(&c.kernel, &ws, 'I') + summed.index()),
                }
            }
        };
        let at = |s: char| {
            let k = spatial(s);
            let at = place_in(&c.out, s, i).index() * windows[k].stride + r[k + 1].clone() * windows[k].dilation;
            if by_taps[k] { at - windows[k].before } else { at }
        };
        let data = indices(&c.data, |letter| match letter {
            'N' => place_in(&c.out, 'N', i),
            'C' => channel.clone(),
            s => Place::flat(at(s)),
        });
        let inside = c.spatial.chars().filter(|s| by_taps[spatial(*s)]).map(|s| {
            let at = at(s);
            at.clone().ge(Scalar::index(0)).and(at.lt(Scalar::index(extent(&c.data, &xs, s))))
        });
        let inside = inside.reduce(Scalar::and).unwrap_or_else(|| Scalar::bool(true));
        let weight = indices(&c.kernel, |letter| match letter {
            'G' => Place::flat(out.index().floor_div(per_group)),
            'O' if c.kernel.position('G').is_some() => Place::flat(out.index().floor_mod(per_group)),
            'O' if multiplier == 1 => out.clone(),
            'O' => Place::flat(out.index().floor_div(multiplier)),
            'I' if multiplier > 1 => Place::flat(out.index().floor_mod(multiplier)),
            'I' => summed.clone(),
            s => Place::flat(r[spatial(s) + 1].clone()),
        });
        let zero = Scalar::int(0, b.dtype(x));
        (Scalar::select(inside, b.read(x, data), zero), b.read(w, weight))
    })
}
