//! Operators that say something of an expression and compute nothing: each gives its argument, tensor or tuple, as it is.

use super::{
    AttrDefault, AttrField, AttrKind, AxisMap, AxisRole, Class, Family, Op, OpError, Sample, Work, op_ensure,
    util::{field, sample, t, work_per_element},
};
use crate::{
    ir::{AttrValue, Attrs, Type},
    loops::{Builder, Operand},
    tensor::{DType, Value},
};

/// The family.
pub(super) const OPS: Family = &[
    &Annotation {
        name: "annotation.stop_fusion",
        doc: "data; kernels do not fuse across it.",
        input: &["data"],
        attrs: &[],
    },
    &Annotation { name: "annotation.bitpack_start", doc: "data; bits are packed from here on.", input: DATA, attrs: &[] },
    &Annotation { name: "annotation.bitpack_end", doc: "data; bits are packed up to here.", input: DATA, attrs: &[] },
    &Annotation {
        name: "annotation.checkpoint",
        doc: "data, tensor or tuple; gradients keep it instead of computing it again.",
        input: DATA,
        attrs: &[],
    },
    &Annotation {
        name: "annotation.cast_hint",
        doc: "data; a pass may compute it as dtype.",
        input: DATA,
        attrs: &[field("dtype", AttrKind::DType, AttrDefault::None)],
    },
    &Annotation {
        name: "annotation.compiler_begin",
        doc: "data; a region for the named compiler begins with it.",
        input: DATA,
        attrs: COMPILER,
    },
    &Annotation {
        name: "annotation.compiler_end",
        doc: "data; a region for the named compiler ends with it.",
        input: DATA,
        attrs: COMPILER,
    },
    &Annotation {
        name: "on_device",
        doc: "body, tensor or tuple; computed on virtual_device (constrain_body) or wanted there (constrain_result). There is one
        device, so nothing follows from it.",
        input: &["body"],
        attrs: &[
            field("virtual_device", AttrKind::Any, AttrDefault::None),
            field("constrain_result", AttrKind::Bool, AttrDefault::Bool(false)),
            field("constrain_body", AttrKind::Bool, AttrDefault::Bool(true)),
        ],
    },
    &Annotation {
        name: "device_copy",
        doc: "data, brought from one device to another. There is one device, so it stays where it is.",
        input: DATA,
        attrs: &[
            field("src_virtual_device", AttrKind::Any, AttrDefault::None),
            field("dst_virtual_device", AttrKind::Any, AttrDefault::None),
        ],
    },
    &Annotation {
        name: "debug",
        doc: "program, tensor or tuple. C1: there is no debug_func, which would be a function of a Python process.",
        input: &["program"],
        attrs: &[field("debug_func", AttrKind::Any, AttrDefault::None)],
    },
];

const DATA: &[&str] = &["data"];
const COMPILER: &[AttrField] = &[field("compiler", AttrKind::Str, AttrDefault::Str(""))];

/// An operator that gives its argument.
#[derive(Debug)]
struct Annotation {
    name: &'static str,
    doc: &'static str,
    input: &'static [&'static str],
    attrs: &'static [AttrField],
}

fn copied(o: &Operand, b: &mut Builder) -> Operand {
    match o {
        Operand::Tuple(fields) => Operand::Tuple(fields.iter().map(|f| copied(f, b)).collect()),
        one => {
            let x = one.tensor();
            let shape = b.shape(x).to_vec();
            b.map(&shape, |b, i| b.read(x, i.iter().cloned())).into()
        }
    }
}

impl Op for Annotation {
    fn name(&self) -> &'static str {
        self.name
    }
    fn doc(&self) -> &'static str {
        self.doc
    }
    fn inputs(&self) -> &'static [&'static str] {
        self.input
    }
    fn attrs(&self) -> &'static [AttrField] {
        self.attrs
    }
    fn class(&self) -> Class {
        Class::Opaque
    }
    fn infer(&self, attrs: &Attrs, args: &[Type]) -> Result<Type, OpError> {
        let Some(ty) = args.first() else { return Err(OpError(format!("`{}` is missing", self.input[0]))) };
        // Where a region begins and ends, functions, references and data types may pass, too.
        op_ensure!(
            ty.flatten().is_some() || self.attrs == COMPILER,
            "`{}` is {ty}, but should be a tensor or a tuple of such",
            self.input[0]
        );
        op_ensure!(
            !matches!(attrs.get("debug_func"), Some(v) if *v != AttrValue::None),
            "C1: `debug_func` is a function of a Python process, which can't be called"
        );
        Ok(ty.clone())
    }
    fn eval(&self, _: &Attrs, args: &[Value]) -> Result<Value, OpError> {
        Ok(args[0].clone())
    }
    fn axes(&self, _: &Attrs, args: &[Type]) -> AxisMap {
        let tensors = args[0].flatten().unwrap_or_default();
        // Of a tuple, each result's axes are its own.
        let role = |k| if tensors.len() == 1 { AxisRole::Maps(k) } else { AxisRole::Opaque };
        AxisMap(tensors.iter().map(|t| (0..t.rank()).map(role).collect()).collect())
    }
    fn work(&self, _: &Attrs, args: &[Type], out: &Type) -> Work {
        work_per_element(0.0, args, out)
    }
    fn lower(&self, _: &Attrs, args: &[Operand], b: &mut Builder) -> Result<Operand, OpError> {
        Ok(copied(&args[0], b))
    }
    fn samples(&self) -> Vec<Sample> {
        let tuple = Type::tuple([t(&[2, 3], DType::F32), Type::tuple([t(&[], DType::I64)])]);
        vec![sample([], vec![t(&[2, 3], DType::F32)]), sample([], vec![t(&[4], DType::U8)]), sample([], vec![tuple])]
    }
}
