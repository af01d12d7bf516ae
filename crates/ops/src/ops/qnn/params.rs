//! Scales and zero points: one for the whole tensor, or one per index along an axis.

use crate::{
    ir::{Attrs, Dim, TensorType, Type},
    loops::{Builder, Scalar, TensorId},
    ops::{OpError, nn::axis_of, op_ensure, util::tensor_arg},
    tensor::DType,
};

/// The element types of quantized tensors.
pub(super) fn check_quantized(t: &TensorType, name: &str, wanted: &[DType]) -> Result<(), OpError> {
    op_ensure!(wanted.contains(&t.dtype), "`{name}` is {t}, but its elements should be one of {wanted:?}");
    Ok(())
}

/// That argument `i` is a single number of this type.
pub(super) fn check_single(args: &[Type], i: usize, name: &str, dtype: DType) -> Result<(), OpError> {
    check_param(args, i, name, dtype, Some(Dim::Known(1)))
}

/// That argument `i` is a single number of this type, or a vector of this extent.
pub(super) fn check_param(
    args: &[Type],
    i: usize,
    name: &str,
    dtype: DType,
    extent: Option<Dim>,
) -> Result<(), OpError> {
    let t = tensor_arg(args, i, name)?;
    let single = t.shape.iter().all(|d| d.known() == Some(1));
    let vector = t.rank() == 1
        && match (t.shape[0], extent) {
            (Dim::Known(n), Some(Dim::Known(m))) => n == m,
            (_, extent) => extent.is_some(),
        };
    op_ensure!(
        t.dtype == dtype && (single || vector),
        "`{name}` is {t}, but should be one {dtype}{}",
        match extent {
            Some(Dim::Known(1)) | None => String::new(),
            Some(n) => format!(" or a vector of {n}"),
        }
    );
    Ok(())
}

/// The type that float32 data has once it is quantized by arguments 1 and 2, a scale and a zero point of these names.
pub(super) fn quantized_type(attrs: &Attrs, args: &[Type], names: [&str; 2]) -> Result<TensorType, OpError> {
    let x = tensor_arg(args, 0, "data")?;
    op_ensure!(x.dtype == DType::F32, "C1: `data` is {x}, but should be of float32");
    let dtype = attrs.opt_dtype("out_dtype").unwrap_or(DType::I8);
    op_ensure!(
        matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32),
        "C1: `out_dtype` is {dtype}, but should be int8, uint8, int16, uint16 or int32"
    );
    let extent = channel_extent(x, channel_axis(attrs.int("axis"), x.rank())?);
    check_param(args, 1, names[0], DType::F32, extent)?;
    check_param(args, 2, names[1], DType::I32, extent)?;
    Ok(TensorType { shape: x.shape.clone(), dtype })
}

/// The axis that vectors of scales run along, counted from the end where negative; `None` for a tensor without axes.
pub(super) fn channel_axis(axis: i64, rank: usize) -> Result<Option<usize>, OpError> {
    match rank {
        0 => Ok(None),
        // As TVM, a vector's only axis is meant whatever is given.
        1 => Ok(Some(0)),
        _ => axis_of(axis, rank).map(Some),
    }
}

/// The extent of that axis.
pub(super) fn channel_extent(t: &TensorType, axis: Option<usize>) -> Option<Dim> {
    axis.map_or(Some(Dim::Known(1)), |k| Some(t.shape[k]))
}

/// A scale or zero point read for an element: at `channel` where it is a vector.
pub(super) fn read_param(b: &Builder, t: TensorId, channel: Option<&Scalar>) -> Scalar {
    let index = b.shape(t).iter().map(|&n| match channel {
        Some(c) if n > 1 => c.clone(),
        _ => Scalar::index(0),
    });
    b.read(t, index.collect::<Vec<_>>())
}
