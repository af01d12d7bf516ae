//! Convolutions whose operands the second cache does not hold as they are: images that are read with strides, and weights of so many channels that sums are
//! computed in parts. Compiled programs against the interpreter; sums of small integers are exact in any order.
#![cfg(feature = "llvm")]

use crate::slices::agree;
use resat::{
    loops::{Builder, Kernel, Operand},
    lower::kernel,
    ops,
    target::Target,
    tensor::DType,
};

/// A convolution of one image in blocks of 16 channels.
#[derive(Copy, Clone, Debug)]
struct Convolution {
    inputs: usize,
    outputs: usize,
    size: usize,
    taps: usize,
    strides: i64,
}

impl Convolution {
    fn shapes(&self) -> [Vec<usize>; 2] {
        let &Convolution { inputs, outputs, size, taps, .. } = self;
        [vec![1, inputs / 16, size, size, 16], vec![outputs / 16, inputs / 16, taps, taps, 16, 16]]
    }

    fn padding(&self) -> i64 {
        self.taps as i64 / 2
    }

    fn text(&self) -> String {
        let shape = |s: &[usize]| format!("({})", s.iter().map(usize::to_string).collect::<Vec<_>>().join(", "));
        let ([x, w], p) = (self.shapes(), self.padding());
        let &Convolution { outputs, taps, strides, .. } = self;
        format!(
            "def @main(%x: Tensor[{}, float32], %w: Tensor[{}, float32]) {{
               nn.contrib_conv2d_NCHWc(%x, %w, strides=[{strides}, {strides}], padding=[{p}, {p}, {p}, {p}], channels={outputs},
                 kernel_size=[{taps}, {taps}], data_layout=\"NCHW16c\", kernel_layout=\"OIHW16i16o\", out_layout=\"NCHW16c\") }}",
            shape(&x),
            shape(&w)
        )
    }

    /// Its kernel for a processor.
    fn kernel(&self, cpu: &str) -> Kernel {
        let mut b = Builder::new();
        let extents = |s: &[usize]| -> Vec<i64> { s.iter().map(|&n| n as i64).collect() };
        let args: Vec<Operand> =
            self.shapes().iter().map(|s| Operand::Tensor(b.arg(&extents(s), DType::F32))).collect();
        let p = self.padding();
        let layouts = [("data_layout", "NCHW16c"), ("kernel_layout", "OIHW16i16o"), ("out_layout", "NCHW16c")];
        let mut attrs = vec![
            ("strides".into(), vec![self.strides; 2].into()),
            ("padding".into(), vec![p; 4].into()),
            ("channels".into(), (self.outputs as i64).into()),
            ("kernel_size".into(), vec![self.taps as i64; 2].into()),
        ];
        attrs.extend(layouts.map(|(name, layout)| (name.into(), layout.into())));
        let id = ops::lookup("nn.contrib_conv2d_NCHWc").expect("it is an operator");
        let attrs = ops::make_attrs(id, &attrs).expect("legal");
        let out = id.op().lower(&attrs, &args, &mut b).expect("lowers");
        let target = format!("llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu={cpu}");
        kernel("convolution", &b.finish_with(&out), Target::parse(&target).expect("a target").core())
    }
}

/// Bytes of a tensor of these extents.
fn bytes(extents: &[usize]) -> i64 {
    extents.iter().product::<usize>() as i64 * 4
}

/// What strides leave out is left out of a copy, too, where lines of an image would else be met with gaps between them: a large image's pixels only
/// (its rows and columns have other extents than the copy's).
#[test]
fn images_with_strides_are_copied_without_gaps() {
    let large = Convolution { inputs: 64, outputs: 96, size: 37, taps: 1, strides: 2 };
    let small = Convolution { inputs: 16, outputs: 96, size: 7, taps: 1, strides: 2 };
    let third = Convolution { strides: 3, ..large };
    for (c, is_copied) in [(large, true), (small, false), (third, true)] {
        agree(&c.text(), &[c.shapes()]);
        let pixels = (c.size as i64 + c.strides - 1) / c.strides;
        let workspace = c.kernel("skylake-avx512").workspace().1;
        assert_eq!(workspace >= pixels * pixels * c.inputs as i64 * 4, is_copied, "{c:?}: {workspace} bytes");
    }
}

/// A panel of weights, the next one and the image do not stay in the second cache together: in parts they do, and sums are in memory in between.
#[test]
fn sums_over_many_channels_are_computed_in_parts() {
    for (inputs, taps, is_cut) in [(768, 3, true), (64, 3, false)] {
        let c = Convolution { inputs, outputs: 256, size: 6, taps, strides: 2 };
        agree(&c.text(), &[c.shapes()]);
        let sums = bytes(&[1, c.outputs / 16, 3, 3, 16]);
        let padded = bytes(&[1, c.inputs / 16, 7, 7, 16]);
        let workspace = c.kernel("skylake-avx512").workspace().1;
        assert_eq!(workspace >= sums + padded, is_cut, "{c:?}: {workspace} bytes");
    }
}
