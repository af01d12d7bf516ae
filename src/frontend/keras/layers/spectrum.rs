//! Spectrograms: Fourier transforms of frames, as convolutions with kernels that the layer keeps.

use super::super::call::{Arg, Call};
use super::{
    Class, Masks, class,
    conv::{Windows, convolve},
};
use crate::{frontend::Convert, ir::ExprId};

/// The layers.
pub(super) const CLASSES: &[Class] = &[class("STFTSpectrogram", Masks::Own, stft)];

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
