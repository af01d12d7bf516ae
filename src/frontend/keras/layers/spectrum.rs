//! Spectrograms: Fourier transforms of frames, as convolutions.

use super::super::call::{Arg, Call};
use super::{
    Class, Masks, class,
    conv::{Windows, convolve},
};
use crate::{
    frontend::Convert,
    ir::ExprId,
    tensor::{DType, Tensor},
};
use std::f64::consts::TAU;

/// The layers.
pub(super) const CLASSES: &[Class] =
    &[class("STFTSpectrogram", Masks::Own, stft), class("MelSpectrogram", Masks::Own, mel)];

/// Longest frames, in samples, and most bands: the transform's kernel has as many elements as the square.
const LONGEST: i64 = 1 << 13;

/// What Keras takes roots and logarithms of at least.
const EPSILON: f64 = 1e-7;

fn stft(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    if c.rank(x)? != 3 {
        return Err(c.refuse("its input does not have three axes"));
    }
    let mode = c.layer.str("mode").unwrap_or("log").to_owned();
    let real = |c: &mut Call| frames(c, x, 0, "real_kernel");
    let imaginary = |c: &mut Call| frames(c, x, (mode != "imag") as usize, "imag_kernel");
    let power = |c: &mut Call| {
        let (re, im) = (real(c)?, imaginary(c)?);
        let (re, im) = (c.bin("multiply", re, re)?, c.bin("multiply", im, im)?);
        c.bin("add", re, im)
    };
    let spectrum = match mode.as_str() {
        "real" => real(c)?,
        "imag" => imaginary(c)?,
        "stft" => {
            let (re, im) = (real(c)?, imaginary(c)?);
            c.concat(&[re, im], 2)?
        }
        "psd" => {
            let power = power(c)?;
            // All but the first and the last frequency stand for two.
            let inner = c.slice(power, 2, 1, -1)?;
            let inner = c.pad(inner, &[(0, 0), (0, 0), (1, 1), (0, 0)], 0.0)?;
            c.bin("add", power, inner)?
        }
        "magnitude" | "log" => {
            let power = power(c)?;
            let power = c.with("maximum", power, EPSILON)?;
            let root = c.un("sqrt", power)?;
            match mode == "log" {
                true => {
                    let root = c.with("maximum", root, EPSILON)?;
                    c.un("log", root)?
                }
                false => root,
            }
        }
        _ => return Err(c.refuse(format!("its mode `{mode}` is not supported"))),
    };
    // (batch, channels, frequencies, frames), in the order that is asked for.
    let last = c.layer.channels_last();
    let out = match c.layer.bool("expand_dims", false) {
        true if last => c.transpose(spectrum, &[0, 3, 2, 1])?,
        true => c.transpose(spectrum, &[0, 1, 3, 2])?,
        false => {
            let merged = c.reshape(spectrum, &[0, -3, -2])?;
            if last { c.transpose(merged, &[0, 2, 1])? } else { merged }
        }
    };
    Ok(Arg::of(out))
}

/// (batch, channels, frequencies, frames) of a signal.
fn frames(c: &mut Call, x: ExprId, index: usize, name: &str) -> Convert {
    let last = c.layer.channels_last();
    let length = c.layer.int("frame_length")?;
    let step = match c.layer.get("frame_step") {
        Some(_) => c.layer.int("frame_step")?,
        None => length / 2,
    };
    if !(1..=1 << 24).contains(&length) || !(1..=length).contains(&step) {
        return Err(c.refuse("its frames are not positive"));
    }
    let w = Windows {
        size: vec![length],
        strides: vec![step],
        dilation: vec![1],
        padding: c.layer.str("padding").unwrap_or("valid").to_owned(),
        channels_last: true,
    };
    let x = if last { c.transpose(x, &[0, 2, 1])? } else { x };
    let channels = c.extent(x, 1)?;
    let x = c.reshape(x, &[-3, -2])?;
    let x = c.expand(x, 2, 1)?;
    let kernel = c.weight(index, name)?;
    let y = convolve(c, x, kernel, &w, 1)?;
    let y = c.transpose(y, &[0, 2, 1])?;
    c.reshape(y, &[-4, -1, channels, -2])
}

/// Powers of a signal's bands: (batch, samples) or (samples) to (batch, bands, frames) or (bands, frames).
fn mel(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let rank = c.rank(x)?;
    let (compute, x) = (c.dtype(x)?, c.cast(x, DType::F32)?);
    let batched = match rank {
        1 => c.expand(x, 0, 1)?,
        2 => x,
        _ => return Err(c.refuse(format!("its input has {rank} axes, and is no signal"))),
    };
    let (length, step) = (c.layer.int("fft_length")?, c.layer.int("sequence_stride")?);
    let bands = c.layer.int("num_mel_bins")?;
    let within = match c.layer.get("sequence_length") {
        Some(_) => c.layer.int("sequence_length")?,
        None => length,
    };
    if !(2..=LONGEST).contains(&length)
        || !(1..=length).contains(&within)
        || step < 1
        || !(1..=LONGEST).contains(&bands)
    {
        return Err(c.refuse("its frames or bands are not positive, or too many"));
    }
    let window = window(c, length, within)?;
    let side = length / 2;
    let padded = c.mirror(batched, &[(0, 0), (side, side)], "REFLECT")?;
    let signal = c.expand(padded, 2, 1)?;
    // All cosines, then all sines.
    let bins = (length / 2 + 1) as usize;
    let kernel = Tensor::from_f64_fn(DType::F32, &[length as usize, 1, 2 * bins], |i| {
        let (t, bin) = (i / (2 * bins), i % (2 * bins));
        let angle = TAU * ((t * (bin % bins)) % length as usize) as f64 / length as f64;
        window[t] * if bin < bins { angle.cos() } else { -angle.sin() }
    });
    let kernel = c.constant(kernel);
    let windows = Windows {
        size: vec![length],
        strides: vec![step],
        dilation: vec![1],
        padding: "valid".to_owned(),
        channels_last: true,
    };
    let spectrum = convolve(c, signal, kernel, &windows, 1)?;
    let (re, im) = (c.slice(spectrum, 2, 0, bins as i64)?, c.slice(spectrum, 2, bins as i64, 2 * bins as i64)?);
    let (re, im) = (c.bin("multiply", re, re)?, c.bin("multiply", im, im)?);
    let power = c.bin("add", re, im)?;
    let exponent = c.layer.float("mag_exp", 2.0)?;
    let power = if exponent == 2.0 { power } else { c.with("power", power, exponent / 2.0)? };
    let matrix = mel_matrix(c, bins, bands as usize)?;
    let mut y = c.op("nn.matmul", &[power, matrix], &[])?;
    if c.layer.bool("power_to_db", true) {
        y = decibels(c, y)?;
    }
    let y = c.transpose(y, &[0, 2, 1])?;
    let y = if rank == 1 { c.op("squeeze", &[y], &[("axis", [0].into())])? } else { y };
    c.cast(y, compute).map(Arg::of)
}

/// The window of a layer, in the middle of a frame.
fn window(c: &Call, length: i64, within: i64) -> Convert<Vec<f64>> {
    let (first, last) = match c.layer.get("window") {
        None => (1.0, 0.0),
        Some(name) => match name.as_str() {
            Some("hann") => (0.5, 0.5),
            Some("hamming") => (0.54, 0.46),
            _ => return Err(c.refuse(format!("its window {name} is not supported"))),
        },
    };
    let left = (length - within) / 2;
    let at = |t: i64| match t - left {
        k if (0..within).contains(&k) => first - last * (TAU * k as f64 / within as f64).cos(),
        _ => 0.0,
    };
    Ok((0..length).map(at).collect())
}

/// Triangles over the bands: (bins, bands). Keras has HTK's scale, 1127 ln(1 + f / 700).
fn mel_matrix(c: &mut Call, bins: usize, bands: usize) -> Convert {
    let rate = c.layer.float("sampling_rate", 16000.0)?;
    let (least, most) = (c.layer.float("min_freq", 20.0)?, c.layer.float("max_freq", (rate / 2.0).trunc())?);
    let mel = |f: f64| 1127.0 * (1.0 + f / 700.0).ln();
    let edge = |k: usize| mel(least) + (mel(most) - mel(least)) * k as f64 / (bands + 1) as f64;
    let matrix = Tensor::from_f64_fn(DType::F32, &[bins, bands], |i| {
        let (bin, band) = (i / bands, i % bands);
        let at = mel(rate / 2.0 * bin as f64 / (bins - 1) as f64);
        let (low, middle, high) = (edge(band), edge(band + 1), edge(band + 2));
        let inside = ((at - low) / (middle - low)).min((high - at) / (high - middle)).max(0.0);
        // The first bin is the signal's mean, and no sound.
        if bin == 0 { 0.0 } else { inside }
    });
    Ok(c.constant(matrix))
}

/// Powers in decibels, as far below the loudest of all as is asked for.
fn decibels(c: &mut Call, x: ExprId) -> Convert {
    let least = c.layer.float("min_power", 1e-10)?;
    let reference = c.layer.float("ref_power", 1.0)?.abs().max(least);
    let range = c.layer.float("top_db", 80.0)?;
    let y = c.with("maximum", x, least)?;
    let y = c.un("log10", y)?;
    let y = c.with("multiply", y, 10.0)?;
    let y = c.with("subtract", y, 10.0 * reference.log10())?;
    let loudest = c.reduce("max", y, &[0, 1, 2], true)?;
    let floor = c.with("subtract", loudest, range)?;
    c.bin("maximum", y, floor)
}
