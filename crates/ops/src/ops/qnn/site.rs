//! Places that may be quantized, as calibration marks them.

use super::{params::quantized_type, quantize::channel_roles};
use crate::{
    ir::{Attrs, Type},
    loops::{Builder, Operand},
    ops::{
        AttrDefault, AttrField, AttrKind, AxisMap, Class, Dialect, Op, OpError, Sample, Work, op_ensure,
        util::work_per_element,
    },
    tensor::{DType, Value},
};

/// The dialect of marks for quantization. Where nothing quantizes them, they are nothing.
pub(in crate::ops) fn dialect() -> Dialect {
    Dialect::new("quantize").op(Site).rules("rules/quantize.rules", include_str!("../../../../../rules/quantize.rules"))
}

/// Half a step of a type of 8 bits, as a share of the greatest number that it stands for.
const HALF_A_STEP: f64 = 0.5 / 127.0;

/// `quantize.site`.
#[derive(Debug)]
struct Site;

impl Op for Site {
    fn name(&self) -> &'static str {
        "quantize.site"
    }
    fn doc(&self) -> &'static str {
        "data, which may be quantized here with this scale and zero point: calibration saw that it lies in the range that they
        span. `layer` counts the layers that may be quantized from 0, `name` is the layer's name, `error` the share of the
        program's result by which that result changes where the layer is quantized. C1: data is float32, out_dtype int8, uint8,
        int16, uint16 or int32. C2: scale (float32) and zero point (int32) are single numbers or vectors of data's axis. C3: the
        error is not negative."
    }
    fn inputs(&self) -> &'static [&'static str] {
        &["data", "scale", "zero_point"]
    }
    fn attrs(&self) -> &'static [AttrField] {
        const ATTRS: &[AttrField] = &[
            AttrField::new("out_dtype", AttrKind::DType, AttrDefault::DType(DType::I8)),
            AttrField::new("axis", AttrKind::Int, AttrDefault::Int(-1)),
            AttrField::new("layer", AttrKind::Int, AttrDefault::Int(0)),
            AttrField::new("name", AttrKind::Str, AttrDefault::Str("")),
            AttrField::new("error", AttrKind::Float, AttrDefault::Float(HALF_A_STEP)),
        ];
        ATTRS
    }
    fn class(&self) -> Class {
        Class::Elementwise
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        quantized_type(attrs, args, ["scale", "zero_point"])?;
        let error = attrs.float("error");
        op_ensure!(error >= 0.0, "C3: `error` is {error}, but should not be negative");
        Ok(args[0].clone())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        Ok(args[0].clone())
    }
    fn axes(&self, attrs: &Attrs, args: &[Type]) -> AxisMap {
        channel_roles(attrs, args)
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        let x = args[0].tensor();
        let shape = b.shape(x).to_vec();
        Ok(b.map(&shape, |b, i| b.read(x, i.iter().cloned())).into())
    }
    fn samples(&self) -> Vec<Sample> {
        let call = |dtype: DType, axis: i64, n: &[i64]| Sample {
            attrs: vec![("out_dtype", dtype.into()), ("axis", axis.into()), ("name", "w".into())],
            args: vec![Type::tensor(&[2, 3, 2], DType::F32), Type::tensor(n, DType::F32), Type::tensor(n, DType::I32)],
        };
        vec![call(DType::I8, -1, &[]), call(DType::U8, 1, &[3])]
    }
}
