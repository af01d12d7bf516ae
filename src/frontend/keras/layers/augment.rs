//! Layers that change images at random while a model is trained, and do nothing afterwards.

use super::super::{
    call::{Arg, Call},
    layer::plain,
};
use super::{Class, Masks, activation::clip, class, core::same};
use crate::{frontend::Convert, ir::ExprId};

/// The layers.
pub(super) const CLASSES: &[Class] = &[
    class("AugMix", Masks::Own, same),
    class("CutMix", Masks::Own, same),
    class("MixUp", Masks::Own, same),
    class("RandAugment", Masks::Own, same),
    class("RandomBrightness", Masks::Own, same),
    class("RandomColorDegeneration", Masks::Own, same),
    class("RandomColorJitter", Masks::Own, same),
    class("RandomContrast", Masks::Own, same),
    class("RandomElasticTransform", Masks::Own, same),
    class("RandomErasing", Masks::Own, same),
    class("RandomFlip", Masks::Own, same),
    class("RandomGaussianBlur", Masks::Own, same),
    class("RandomGrayscale", Masks::Own, same),
    class("RandomHue", Masks::Own, same),
    class("RandomInvert", Masks::Own, same),
    class("RandomPerspective", Masks::Own, same),
    class("RandomPosterization", Masks::Own, same),
    class("RandomRotation", Masks::Own, same),
    class("RandomSaturation", Masks::Own, same),
    class("RandomSharpness", Masks::Own, same),
    class("RandomShear", Masks::Own, same),
    class("RandomTranslation", Masks::Own, same),
    class("RandomZoom", Masks::Own, same),
    class("Solarization", Masks::Own, same),
    class("RandomCrop", Masks::Own, same),
    class("AutoContrast", Masks::Own, auto_contrast),
];

/// Each image's values stretched to the whole range.
fn auto_contrast(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    let compute = c.layer.policy()?.compute;
    let x = c.cast(x, compute)?;
    let range = c.layer.get("value_range").map(plain).and_then(|v| v.as_array()).cloned().unwrap_or_default();
    let range: Option<Vec<f64>> = range.iter().map(|v| v.as_f64()).collect();
    let (least, most) = match range.as_deref() {
        Some(&[least, most]) if most > least => (least, most),
        Some([]) => (0.0, 255.0),
        _ => return Err(c.refuse("its `value_range` is not two numbers")),
    };
    if c.rank(x)? < 3 {
        return Err(c.refuse("its input is no image"));
    }
    let to_bytes = |c: &mut Call, x: ExprId| {
        let y = c.with("subtract", x, least)?;
        c.with("multiply", y, 255.0 / (most - least))
    };
    let bytes = to_bytes(c, x)?;
    let low = c.reduce("min", bytes, &[1, 2], true)?;
    let high = c.reduce("max", bytes, &[1, 2], true)?;
    let width = c.bin("subtract", high, low)?;
    let all = c.number(width, 255.0)?;
    let scale = c.bin("divide", all, width)?;
    let y = c.bin("multiply", bytes, scale)?;
    let offset = c.bin("multiply", low, scale)?;
    let y = c.bin("subtract", y, offset)?;
    let y = clip(c, y, 0.0, 255.0)?;
    let y = c.with("multiply", y, (most - least) / 255.0)?;
    let y = c.with("add", y, least)?;
    // An image of one value stays as it is.
    let flat = c.with("equal", width, 0.0)?;
    c.select(flat, x, y).map(Arg::of)
}
