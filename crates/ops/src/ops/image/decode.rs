//! Images in the formats of files.

use std::io::Cursor;

use hayro_jpeg2000::{DecodeSettings, DecoderContext};
use image::{ImageFormat, ImageReader, Limits};

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Operand},
    ops::{
        AttrDefault, AttrKind, AxisMap, Family, Op, OpError, Sample, Work, op_ensure,
        util::{field, op_head, sample, t, tensor_arg, work_per_element},
    },
    tensor::{DType, Tensor, Value},
};

/// The family.
pub(in crate::ops) const OPS: Family = &[&Decode];

/// `image.decode`.
#[derive(Debug)]
struct Decode;

/// Files that claim more pixels are refused: a few bytes may claim any number.
const MOST_PIXELS: u64 = 1 << 28;

/// How JPEG 2000 files begin: boxed ones, and bare streams.
const JPEG_2000: [&[u8]; 2] = [b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"];

/// The order of colours of each format; none is the one channel of grey.
fn channels(attrs: &Attrs) -> Result<Option<[usize; 3]>, OpError> {
    match attrs.str("pixel_format") {
        "RGB" => Ok(Some([0, 1, 2])),
        "BGR" => Ok(Some([2, 1, 0])),
        "Grayscale" => Ok(None),
        other => Err(OpError(format!("C2: `pixel_format` is {other:?}, but should be RGB, BGR or Grayscale"))),
    }
}

/// Rows, columns and the red, green and blue of each pixel.
fn pixels(bytes: &[u8]) -> Result<(usize, usize, Vec<u8>), String> {
    if JPEG_2000.iter().any(|head| bytes.starts_with(head)) {
        return jpeg_2000(bytes);
    }
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| e.to_string())?;
    let known =
        [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::WebP, ImageFormat::Pnm];
    if !reader.format().is_some_and(|f| known.contains(&f)) {
        return Err("they are no PNG, JPEG, JPEG 2000, BMP, TIFF, WebP or PNM file".into());
    }
    let mut reader = reader;
    let mut limits = Limits::default();
    limits.max_alloc = Some(4 * MOST_PIXELS);
    reader.limits(limits);
    let image = reader.decode().map_err(|e| e.to_string())?.into_rgb8();
    Ok((image.height() as usize, image.width() as usize, image.into_raw()))
}

fn jpeg_2000(bytes: &[u8]) -> Result<(usize, usize, Vec<u8>), String> {
    let image = hayro_jpeg2000::Image::new(bytes, &DecodeSettings::default()).map_err(|e| e.to_string())?;
    let (rows, columns) = (image.height() as usize, image.width() as usize);
    let count = u64::from(image.height()) * u64::from(image.width());
    if count > MOST_PIXELS {
        return Err(format!("an image of {rows} by {columns} pixels is too large"));
    }
    let channels = usize::from(image.color_space().num_channels()) + usize::from(image.has_alpha());
    let gray = channels <= 2;
    let mut context = DecoderContext::default();
    let decoded = image.decode(&mut context).map_err(|e| e.to_string())?;
    let data = decoded.data_u8();
    if channels == 0
        || channels > 4
        || (channels == 4 && !image.has_alpha())
        || data.len() as u64 != count * channels as u64
    {
        return Err(format!("an image of {channels} channels is not supported"));
    }
    let of = |p: &[u8]| if gray { [p[0]; 3] } else { [p[0], p[1], p[2]] };
    Ok((rows, columns, data.chunks_exact(channels).flat_map(of).collect()))
}

impl Op for Decode {
    op_head!(
        "image.decode",
        "The pixels of the image that is a file whose bytes are data: rows, columns and channels, as uint8. Files are PNG, JPEG, JPEG 2000,
        BMP, TIFF, WebP or PNM. With pixel_format \"RGB\" and \"BGR\" there are three channels in that order, with \"Grayscale\" one,
        (19595 red + 38470 green + 7471 blue + 32768) / 65536.
        C1: data are uint8 with one axis. C2: pixel_format is one of these.",
        ["data"],
        [field("pixel_format", AttrKind::Str, AttrDefault::Str("RGB"))],
        Opaque
    );
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let x = tensor_arg(args, 0, "data")?;
        op_ensure!(x.rank() == 1 && x.dtype == DType::U8, "C1: `data` is {x}, but should be uint8 with one axis");
        let count = channels(attrs)?.map_or(1, |c| c.len() as i64);
        Ok(TensorType::of([Dim::Any, Dim::Any, Dim::Known(count)], DType::U8).into())
    }
    fn eval(&self, attrs: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        let (rows, columns, rgb) =
            pixels(args[0].tensor().bytes()).map_err(|e| OpError(format!("`data` can't be decoded: {e}")))?;
        let out = match channels(attrs)? {
            Some(order) => {
                let all: Vec<u8> = rgb.chunks_exact(3).flat_map(|p| order.map(|k| p[k])).collect();
                Tensor::from_slice(&[rows, columns, 3], &all)
            }
            None => {
                let gray = |p: &[u8]| {
                    let sum = 19595 * u32::from(p[0]) + 38470 * u32::from(p[1]) + 7471 * u32::from(p[2]);
                    ((sum + 32768) >> 16) as u8
                };
                let all: Vec<u8> = rgb.chunks_exact(3).map(gray).collect();
                Tensor::from_slice(&[rows, columns, 1], &all)
            }
        };
        Ok(out.into())
    }
    fn axes(&self, _: &Attrs, _: &[Type]) -> AxisMap {
        AxisMap::opaque([1])
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(100.0, args, out)
    }
    fn lower(&self, _: &Attrs, _: &[Operand], _: &mut Builder) -> Result<Operand, OpError> {
        Err(OpError(
            "files are decoded by the running program itself, not by a kernel: it can't be part of an exported library"
                .into(),
        ))
    }
    fn decided_by(&self, _: &Attrs) -> &'static [usize] {
        &[0]
    }
    fn runs_as_is(&self) -> bool {
        true
    }
    fn samples(&self) -> Vec<Sample> {
        vec![
            sample([], vec![t(&[64], DType::U8)]),
            sample([("pixel_format", "Grayscale".into())], vec![t(&[64], DType::U8)]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{make_attrs, op};

    fn decoded(format: &str, bytes: &[u8]) -> Result<Tensor, OpError> {
        let id = op("image.decode");
        let attrs = make_attrs(id, &[("pixel_format".into(), format.into())]).map_err(|e| OpError(e.to_string()))?;
        let out = id.op().eval(&attrs, &[Tensor::from_slice(&[bytes.len()], bytes).into()])?;
        Ok(out.tensor().clone())
    }

    #[test]
    fn images_are_decoded_and_other_bytes_refused() {
        let file = b"P6\n2 1\n255\n\x01\x02\x03\xff\x00\x00";
        assert_eq!(decoded("RGB", file).expect("it is an image").as_slice::<u8>(), [1, 2, 3, 255, 0, 0]);
        let bgr = decoded("BGR", file).expect("it is an image");
        assert_eq!((bgr.shape(), bgr.as_slice::<u8>()), (&[1, 2, 3][..], &[3, 2, 1, 0, 0, 255][..]));
        let gray = decoded("Grayscale", file).expect("it is an image");
        assert_eq!((gray.shape(), gray.as_slice::<u8>()), (&[1, 2, 1][..], &[2, 76][..]));
        for bad in
            [&b""[..], b"P6\n2 1\n255\n\x01", b"hello, world", b"\xff\x4f\xff\x51\0", b"P6\n99999999 99999999\n255\n"]
        {
            assert!(decoded("RGB", bad).is_err_and(|e| e.0.contains("can't be decoded")), "{bad:?}");
        }
    }
}
