//! Situations in which TVM's tests convert layouts, at smaller extents, and how many transforms TVM leaves in each.

/// A program, the pass, and what must hold afterwards.
pub(crate) struct Situation {
    pub(crate) name: &'static str,
    pub(crate) passes: &'static str,
    /// In the short spelling of [`spelled_out`].
    pub(crate) program: &'static str,
    /// Transforms and transposes in TVM's result, of data and of weights that are parameters.
    pub(crate) most: usize,
    /// Calls (operator, attribute, value) that there must be.
    pub(crate) holds: &'static [(&'static str, &'static str, &'static str)],
}

/// A program in full: `F(…)` and `I8(…)` are tensors, `NHWC` and `NCHW` after a bar the attributes of a convolution of 8 channels
/// and three by three taps.
pub(crate) fn spelled_out(program: &str) -> String {
    let mut text = program.to_owned();
    for (short, dtype) in [("F(", "float32"), ("I8(", "int8")] {
        while let Some(at) = text.find(&format!(": {short}")) {
            let open = at + 2 + short.len();
            let close = open + text[open..].find(')').expect("closed");
            text = format!("{}: Tensor[({}), {dtype}]{}", &text[..at], &text[open..close], &text[close + 1..]);
        }
    }
    let attrs = |layouts: &str| format!("padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]{layouts}");
    let text = text
        .replace("|NHWC", &attrs(", data_layout=\"NHWC\", kernel_layout=\"HWIO\""))
        .replace("|NCHW", &attrs(""))
        .replace("|OHWI", &attrs(", kernel_layout=\"OHWI\""));
    format!("#[version = \"0.0.5\"]\ndef @main{text}")
}

const NHWC: &str = "ConvertLayout(nn.conv2d=NHWC:default)";
const NCHW: &str = "ConvertLayout(nn.conv2d=NCHW:default)";
type Holds = &'static [(&'static str, &'static str, &'static str)];
const TO_NHWC: Holds = &[("nn.conv2d", "data_layout", "NHWC")];
const TO_NCHW: Holds = &[("nn.conv2d", "data_layout", "NCHW")];

/// Of channels last to channels first, data and weight being `%x` and `%w`.
const fn to_nchw(name: &'static str, program: &'static str, most: usize) -> Situation {
    Situation { name, passes: NCHW, program, most, holds: TO_NCHW }
}

const fn to_nhwc(name: &'static str, program: &'static str, most: usize) -> Situation {
    Situation { name, passes: NHWC, program, most, holds: TO_NHWC }
}

pub(crate) const SITUATIONS: &[Situation] = &[
    to_nchw("already there", "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3)) { nn.relu(nn.conv2d(%x, %w, |NCHW)) }", 0),
    Situation {
        name: "nothing wanted",
        passes: "ConvertLayout()",
        program: "(%x: F(2, 2), %y: F(1, 2)) { add(%x, %y) }",
        most: 0,
        holds: &[],
    },
    to_nchw("one convolution", "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) { nn.relu(nn.conv2d(%x, %w, |NHWC)) }", 3),
    to_nhwc("one convolution, back", "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3)) { nn.relu(nn.conv2d(%x, %w, |NCHW)) }", 3),
    Situation {
        name: "transposed convolution",
        passes: "ConvertLayout(nn.conv2d_transpose=NCHW:IOHW)",
        program: "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) { nn.relu(nn.conv2d_transpose(%x, %w, |NHWC)) }",
        most: 3,
        holds: &[("nn.conv2d_transpose", "kernel_layout", "IOHW")],
    },
    to_nchw(
        "bias and pool",
        "(%x: F(1, 6, 6, 8), %b: F(8), %w: F(3, 3, 8, 8)) {
          %0 = (nn.bias_add(nn.conv2d(%x, %w, |NHWC), %b, axis=3),);
          %1 = nn.max_pool2d(nn.relu(%0.0), pool_size=[2, 2], layout=\"NHWC\");
          nn.batch_flatten(cast(%1, dtype=\"int32\"))
        }",
        4,
    ),
    Situation {
        name: "bias and a pool of its own layout",
        passes: "ConvertLayout(nn.conv2d=NCHW:OIHW, nn.max_pool2d=NHWC)",
        program: "(%x: F(1, 6, 6, 8), %b: F(8), %w: F(3, 3, 8, 8)) {
          %0 = (nn.bias_add(nn.conv2d(%x, %w, |NHWC), %b, axis=3),);
          %1 = nn.max_pool2d(nn.relu(%0.0), pool_size=[2, 2], layout=\"NHWC\");
          nn.batch_flatten(cast(%1, dtype=\"int32\"))
        }",
        most: 4,
        holds: &[("nn.conv2d", "data_layout", "NCHW"), ("nn.max_pool2d", "layout", "NHWC")],
    },
    to_nchw(
        "concatenation of neighbours",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %v: F(3, 3, 8, 8)) {
          %0 = nn.conv2d(%x, %w, |NHWC);
          %1 = nn.conv2d(%0, %v, |NHWC);
          %2 = (%0, %1);
          concatenate(%2, axis=3)
        }",
        4,
    ),
    Situation {
        name: "deformable convolution",
        passes: "ConvertLayout(nn.deformable_conv2d=NCHW:default)",
        program: "(%x: F(1, 7, 7, 3), %o: F(1, 5, 5, 18), %w: F(3, 3, 3, 4), %b: F(4)) {
          %0 = nn.deformable_conv2d(%x, %o, %w, channels=4, kernel_size=[3, 3], data_layout=\"NHWC\", kernel_layout=\"HWIO\");
          %1 = nn.max_pool2d(nn.relu(nn.bias_add(%0, %b, axis=-1)), pool_size=[2, 2], layout=\"NHWC\");
          nn.batch_flatten(cast(%1, dtype=\"int32\"))
        }",
        most: 5,
        holds: &[("nn.deformable_conv2d", "data_layout", "NCHW"), ("nn.max_pool2d", "layout", "NCHW")],
    },
    Situation {
        name: "deformable convolution, back, and a pool of its own layout",
        passes: "ConvertLayout(nn.deformable_conv2d=NHWC:default, nn.max_pool2d=NCHW)",
        program: "(%x: F(1, 3, 7, 7), %o: F(1, 18, 5, 5), %w: F(4, 3, 3, 3), %b: F(4)) {
          %0 = nn.deformable_conv2d(%x, %o, %w, channels=4, kernel_size=[3, 3]);
          %1 = nn.max_pool2d(nn.relu(nn.bias_add(%0, %b)), pool_size=[2, 2]);
          nn.batch_flatten(cast(%1, dtype=\"int32\"))
        }",
        most: 5,
        holds: &[("nn.deformable_conv2d", "kernel_layout", "HWIO"), ("nn.max_pool2d", "layout", "NCHW")],
    },
    to_nchw(
        "two ways on",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %v: F(3, 3, 8, 8)) {
          %0 = nn.relu(nn.conv2d(%x, %w, |NHWC));
          %1 = nn.relu(nn.conv2d(%0, %v, |NHWC));
          %2 = nn.batch_flatten(%0);
          (%1, %2)
        }",
        5,
    ),
    to_nchw(
        "batch normalization",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %g: F(8), %h: F(8), %m: F(8), %v: F(8)) {
          %0 = nn.batch_norm(nn.conv2d(%x, %w, |NHWC), %g, %h, %m, exp(%v), axis=3);
          %0.0
        }",
        3,
    ),
    to_nchw(
        "batch normalization and more",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %g: F(8), %h: F(8), %m: F(8), %v: F(8)) {
          %0 = nn.batch_norm(nn.conv2d(%x, %w, |NHWC), %g, %h, %m, exp(%v), axis=3);
          nn.relu(%0.0)
        }",
        3,
    ),
    Situation {
        name: "slice like itself",
        passes: NCHW,
        program: "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) {
          %0 = nn.conv2d(%x, %w, |NHWC);
          %1 = nn.conv2d(%x, %w, padding=[0, 0, 0, 0], channels=8, kernel_size=[3, 3], data_layout=\"NHWC\", kernel_layout=\"HWIO\");
          slice_like(%0, %1, axes=[1, 2])
        }",
        most: 3,
        holds: TO_NCHW,
    },
    to_nchw(
        "slice like something else",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %z: F(1, 6, 6, 8)) { slice_like(nn.conv2d(%x, %w, |NHWC), %z, axes=[1, 2]) }",
        3,
    ),
    to_nchw(
        "a transpose that the conversion makes idle",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %z: F(6, 6, 8)) {
          nn.batch_flatten(transpose(add(nn.conv2d(%x, %w, |NHWC), %z), axes=[0, 3, 1, 2]))
        }",
        3,
    ),
    to_nhwc(
        "a transpose that the conversion makes idle, back",
        "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3), %z: F(8, 6, 6)) {
          nn.batch_flatten(transpose(add(nn.conv2d(%x, %w, |NCHW), %z), axes=[0, 2, -1, 1]))
        }",
        3,
    ),
    to_nhwc(
        "a transpose of all axes",
        "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3), %z: F(8, 6, 6)) { transpose(add(nn.conv2d(%x, %w, |NCHW), %z)) }",
        4,
    ),
    to_nchw(
        "a residual block",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %v: F(1, 1, 8, 8)) {
          %0 = nn.relu(nn.conv2d(%x, %w, |NHWC));
          %1 = nn.relu(nn.conv2d(%x, %v, channels=8, kernel_size=[1, 1], data_layout=\"NHWC\", kernel_layout=\"HWIO\"));
          nn.global_max_pool2d(add(%0, %1), layout=\"NHWC\")
        }",
        4,
    ),
    Situation {
        name: "a residual block and a pool of its own layout",
        passes: "ConvertLayout(nn.conv2d=NCHW:default, nn.global_max_pool2d=NHWC)",
        program: "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %v: F(1, 1, 8, 8)) {
          %0 = nn.relu(nn.conv2d(%x, %w, |NHWC));
          %1 = nn.relu(nn.conv2d(%x, %v, channels=8, kernel_size=[1, 1], data_layout=\"NHWC\", kernel_layout=\"HWIO\"));
          nn.global_max_pool2d(add(%0, %1), layout=\"NHWC\")
        }",
        most: 4,
        holds: &[("nn.conv2d", "data_layout", "NCHW"), ("nn.global_max_pool2d", "layout", "NHWC")],
    },
    to_nchw("a scalar", "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) { add(nn.conv2d(%x, %w, |NHWC), 1f) }", 3),
    to_nchw(
        "layer normalization",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %g: F(8), %h: F(8)) { nn.layer_norm(nn.conv2d(%x, %w, |NHWC), %g, %h, axis=3) }",
        3,
    ),
    to_nchw(
        "instance normalization",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %g: F(8), %h: F(8)) { nn.instance_norm(nn.conv2d(%x, %w, |NHWC), %g, %h, axis=3) }",
        3,
    ),
    Situation {
        name: "quantized convolution and requantize",
        passes: "ConvertLayout(qnn.conv2d=NCHW:default)",
        program: "(%x: I8(1, 6, 6, 8), %w: I8(3, 3, 8, 8)) {
          %0 = qnn.conv2d(%x, %w, 1, 1, 1f, 1f, |NHWC, out_dtype=\"int32\");
          nn.relu(qnn.requantize(%0, 1f, 1, 1f, 1, out_dtype=\"int32\"))
        }",
        most: 3,
        holds: &[("qnn.conv2d", "data_layout", "NCHW")],
    },
    Situation {
        name: "quantized concatenation",
        passes: "ConvertLayout(qnn.conv2d=NCHW:default)",
        program: "(%x: I8(1, 6, 6, 8), %w: I8(3, 3, 8, 8)) {
          %0 = cast(qnn.conv2d(%x, %w, 1, 1, 1f, 1f, |NHWC, out_dtype=\"int32\"), dtype=\"int8\");
          %1 = cast(%0, dtype=\"int8\");
          %2 = (%0, %1);
          %3 = (1f, 1f);
          %4 = (1, 1);
          qnn.concatenate(%2, %3, %4, 1f, 1, axis=3)
        }",
        most: 3,
        holds: &[("qnn.conv2d", "data_layout", "NCHW")],
    },
    Situation {
        name: "quantized addition",
        passes: "ConvertLayout(qnn.conv2d=NCHW:default)",
        program: "(%x: I8(1, 6, 6, 8), %w: I8(3, 3, 8, 8)) {
          %0 = cast(qnn.conv2d(%x, %w, 1, 1, 1f, 1f, |NHWC, out_dtype=\"int32\"), dtype=\"int8\");
          qnn.add(%0, %0, 1f, 1, 1f, 1, 1f, 1)
        }",
        most: 3,
        holds: &[("qnn.conv2d", "data_layout", "NCHW")],
    },
    Situation {
        name: "quantized convolution, back",
        passes: "ConvertLayout(qnn.conv2d=NHWC:default)",
        program: "(%x: I8(1, 8, 6, 6), %w: I8(8, 8, 3, 3)) { nn.relu(qnn.conv2d(%x, %w, 1, 1, 1f, 1f, |NCHW, out_dtype=\"int32\")) }",
        most: 3,
        holds: &[("qnn.conv2d", "kernel_layout", "HWIO")],
    },
    Situation {
        name: "quantized transposed convolution and requantize",
        passes: "ConvertLayout(qnn.conv2d_transpose=NCHW:default)",
        program: "(%x: I8(1, 6, 6, 8), %w: I8(3, 3, 8, 8)) {
          %0 = qnn.conv2d_transpose(%x, %w, 1, 1, 1f, 1f, |NHWC, out_dtype=\"int32\");
          nn.relu(qnn.requantize(%0, 1f, 1, 1f, 1, out_dtype=\"int32\"))
        }",
        most: 3,
        holds: &[("qnn.conv2d_transpose", "kernel_layout", "IOHW")],
    },
    Situation {
        name: "the weight alone",
        passes: "ConvertLayout(nn.conv2d=NHWC:OHWI)",
        program: "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) { nn.conv2d(%x, %w, |NHWC) }",
        most: 1,
        holds: &[("nn.conv2d", "kernel_layout", "OHWI")],
    },
    Situation {
        name: "regions, aligned",
        passes: "ConvertLayout(nn.conv2d=NHWC:HWIO, vision.roi_align=NHWC:default)",
        program: "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3), %r: F(4, 5)) {
          vision.roi_align(nn.conv2d(%x, %w, |NCHW), abs(multiply(%r, 0f)), pooled_size=[2, 2], spatial_scale=0.5f, sample_ratio=2)
        }",
        most: 3,
        holds: &[("nn.conv2d", "data_layout", "NHWC"), ("vision.roi_align", "layout", "NHWC")],
    },
    Situation {
        name: "regions, pooled",
        passes: "ConvertLayout(nn.conv2d=NHWC:HWIO, vision.roi_pool=NHWC:default)",
        program: "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3), %r: F(4, 5)) {
          vision.roi_pool(nn.conv2d(%x, %w, |NCHW), abs(multiply(%r, 0f)), pooled_size=[2, 2], spatial_scale=0.5f)
        }",
        most: 3,
        holds: &[("nn.conv2d", "data_layout", "NHWC"), ("vision.roi_pool", "layout", "NHWC")],
    },
    Situation {
        name: "regions for which nothing is wanted",
        passes: "ConvertLayout(nn.conv2d=NHWC:HWIO)",
        program: "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3), %r: F(4, 5)) {
          vision.roi_align(nn.conv2d(%x, %w, |NCHW), abs(multiply(%r, 0f)), pooled_size=[2, 2], spatial_scale=0.5f, sample_ratio=2)
        }",
        most: 3,
        holds: TO_NHWC,
    },
    to_nhwc(
        "a slice of the first axes",
        "(%x: F(1, 8, 14, 6), %w: F(8, 8, 3, 3)) {
          strided_slice(nn.relu(nn.conv2d(%x, %w, |NCHW)), begin=[0, 1], end=[1, -1, 10], strides=[1, 1, 2, 1])
        }",
        3,
    ),
    to_nchw(
        "a slice of named axes",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) {
          strided_slice(nn.conv2d(%x, %w, |NHWC), begin=[0, 4], end=[1, 9], strides=[1, 1], axes=[0, 3])
        }",
        3,
    ),
    to_nchw(
        "a split of the last axis",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) {
          %0 = split(nn.relu(nn.conv2d(%x, %w, |NHWC)), indices_or_sections=2, axis=-1);
          %1 = %0.0;
          %2 = %0.1;
          (%1, %2)
        }",
        4,
    ),
    to_nchw(
        "a split at places",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) {
          %0 = split(nn.relu(nn.conv2d(%x, %w, |NHWC)), indices_or_sections=[3, 5], axis=3);
          %1 = %0.0;
          %2 = %0.1;
          %3 = %0.2;
          (%1, %2, %3)
        }",
        5,
    ),
    Situation {
        name: "a split of blocks",
        passes: "ConvertLayout(nn.conv2d=NCHW4c:OIHW4o)",
        program: "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3)) {
          %0 = split(nn.relu(nn.conv2d(%x, %w, |NCHW)), indices_or_sections=[4], axis=1);
          %1 = %0.0;
          %2 = %0.1;
          (%1, %2)
        }",
        most: 4,
        holds: &[("nn.contrib_conv2d_NCHWc", "kernel_layout", "OIHW4o")],
    },
    to_nchw(
        "the greatest along an axis",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) {
          %0 = topk(nn.conv2d(%x, %w, |NHWC), k=2, axis=2, ret_type=\"both\");
          %1 = %0.0;
          %2 = %0.1;
          (%1, %2)
        }",
        4,
    ),
    Situation {
        name: "the weight's default",
        passes: NCHW,
        program: "(%x: F(1, 8, 6, 6), %w: F(8, 3, 3, 8)) { nn.conv2d(%x, %w, |OHWI) }",
        most: 1,
        holds: &[("nn.conv2d", "kernel_layout", "OIHW")],
    },
    Situation {
        name: "different operators in different layouts",
        passes: "ConvertLayout(nn.conv2d=NHWC:HWIO, qnn.conv2d=NCHW:OIHW, nn.conv2d_transpose=NHWC:HWIO)",
        program: "(%x: F(1, 8, 6, 6), %w: F(8, 3, 3, 8), %v: I8(8, 3, 3, 8), %u: F(8, 3, 3, 8)) {
          %0 = cast(nn.conv2d(%x, %w, |OHWI), dtype=\"int8\");
          %1 = cast(qnn.conv2d(%0, %v, 1, 1, 1f, 1f, |OHWI, out_dtype=\"int32\"), dtype=\"float32\");
          nn.conv2d_transpose(%1, %u, |OHWI)
        }",
        most: 7,
        holds: &[
            ("nn.conv2d", "kernel_layout", "HWIO"),
            ("qnn.conv2d", "kernel_layout", "OIHW"),
            ("nn.conv2d_transpose", "kernel_layout", "HWIO"),
        ],
    },
    Situation {
        name: "a layer that is skipped",
        passes: "ConvertLayout(nn.conv2d=HWNC:default, skip=0)",
        program: "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %v: F(3, 3, 8, 8)) {
          %0 = nn.relu(nn.conv2d(%x, %w, |NHWC));
          nn.relu(nn.conv2d(%0, %v, |NHWC))
        }",
        most: 3,
        holds: &[("nn.conv2d", "data_layout", "NHWC"), ("nn.conv2d", "kernel_layout", "HWOI")],
    },
    to_nchw(
        "a squeeze of one axis",
        "(%x: F(1, 1, 1, 16), %w: F(1, 1, 16, 10)) {
          squeeze(nn.relu(nn.conv2d(%x, %w, channels=10, kernel_size=[1, 1], data_layout=\"NHWC\", kernel_layout=\"HWIO\")), axis=[-3])
        }",
        3,
    ),
    to_nchw(
        "a squeeze of all axes of extent 1",
        "(%x: F(1, 1, 1, 16), %w: F(1, 1, 16, 10)) {
          squeeze(nn.relu(nn.conv2d(%x, %w, channels=10, kernel_size=[1, 1], data_layout=\"NHWC\", kernel_layout=\"HWIO\")))
        }",
        2,
    ),
    to_nchw(
        "a squeeze of an image's rows",
        "(%x: F(1, 3, 8, 8), %w: F(3, 3, 8, 8)) {
          squeeze(nn.conv2d(%x, %w, padding=[0, 1, 0, 1], channels=8, kernel_size=[3, 3], data_layout=\"NHWC\", kernel_layout=\"HWIO\"), axis=[1])
        }",
        3,
    ),
    to_nchw(
        "sums until nothing is left",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) {
          %0 = sum(nn.relu(nn.conv2d(%x, %w, |NHWC)), axis=[1, 2]);
          sum(sum(sum(%0, axis=[1])))
        }",
        2,
    ),
    to_nchw(
        "a sum that keeps its axis",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) {
          %0 = nn.relu(nn.conv2d(%x, %w, |NHWC));
          sum(multiply(%0, %0), axis=[3], keepdims=True)
        }",
        3,
    ),
    to_nhwc("a mean over an image", "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3)) { mean(nn.conv2d(%x, %w, |NCHW), axis=[2, 3]) }", 2),
    to_nhwc("a maximum over an image", "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3)) { max(nn.conv2d(%x, %w, |NCHW), axis=[2, 3]) }", 2),
    to_nhwc("where an image is greatest", "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3)) { argmax(nn.conv2d(%x, %w, |NCHW), axis=[2, 3]) }", 2),
    Situation {
        name: "a resize",
        passes: "ConvertLayout(image.resize2d=NHWC)",
        program: "(%x: F(1, 2, 4, 4)) { image.resize2d(%x, size=[8, 8], roi=[0f, 0f, 0f, 0f]) }",
        most: 2,
        holds: &[("image.resize2d", "layout", "NHWC")],
    },
    Situation {
        name: "a resize, back",
        passes: "ConvertLayout(image.resize2d=NCHW)",
        program: "(%x: F(1, 4, 4, 2)) { image.resize2d(%x, size=[8, 8], roi=[0f, 0f, 0f, 0f], layout=\"NHWC\") }",
        most: 2,
        holds: &[("image.resize2d", "layout", "NCHW")],
    },
    to_nchw(
        "a convolution and a resize",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) {
          image.resize2d(nn.conv2d(%x, %w, |NHWC), size=[12, 12], roi=[0f, 0f, 0f, 0f], layout=\"NHWC\")
        }",
        3,
    ),
    Situation {
        name: "a pool in the layout of its convolution",
        passes: "ConvertLayout(nn.conv2d=NHWC:OHWI, nn.max_pool2d=NHWC)",
        program: "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3)) {
          nn.batch_flatten(nn.max_pool2d(nn.relu(nn.conv2d(%x, %w, |NCHW)), pool_size=[2, 2]))
        }",
        most: 3,
        holds: &[("nn.conv2d", "kernel_layout", "OHWI"), ("nn.max_pool2d", "layout", "NHWC")],
    },
    Situation {
        name: "a simulated quantization",
        passes: "ConvertLayout(nn.conv2d=NHWC:OHWI)",
        program: "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3)) {
          nn.relu(relay.op.annotation.simulated_quantize(nn.conv2d(%x, %w, |NCHW), 0.5f, -8f, 7f, kind=1))
        }",
        most: 3,
        holds: &[("nn.conv2d", "data_layout", "NHWC")],
    },
    blocked("blocks of 1", "ConvertLayout(nn.conv2d=NCHW1c:OIHW1i1o)", 5),
    blocked("blocks of 4", "ConvertLayout(nn.conv2d=NCHW4c:OIHW4i4o)", 4),
    blocked("blocks of 8", "ConvertLayout(nn.conv2d=NCHW8c:OIHW8i8o)", 4),
    blocked("blocks of 16", "ConvertLayout(nn.conv2d=NCHW16c:OIHW16i16o)", 4),
    to_nchw("l2_normalize across channels", "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) { nn.l2_normalize(nn.conv2d(%x, %w, |NHWC), eps=0.001f, axis=[-1]) }", 3),
    to_nchw("l2_normalize across two axes", "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8)) { nn.l2_normalize(nn.conv2d(%x, %w, |NHWC), eps=0.001f, axis=[2, 3]) }", 3),
    to_nchw(
        "between convolutions: padding, slopes, softmax, a choice",
        "(%x: F(1, 6, 6, 8), %w: F(3, 3, 8, 8), %v: F(3, 3, 8, 8), %a: F(8)) {
          %0 = nn.prelu(nn.conv2d(%x, %w, |NHWC), %a, axis=3);
          %1 = nn.softmax(nn.pad(%0, 0f, pad_width=[[0, 0], [1, 1], [2, 0], [0, 0]]), axis=-1);
          %2 = strided_slice(%1, begin=[0, 1, 1, 0], end=[1, 7, 7, 8], strides=[1]);
          %3 = where(greater(%2, 0.1f), %2, %0);
          nn.conv2d(nn.upsampling(%3, scale_h=2f, scale_w=2f, layout=\"NHWC\"), %v, |NHWC)
        }",
        4,
    ),
    to_nhwc(
        "between convolutions: a gate for each channel",
        "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3), %v: F(8, 8, 1, 1)) {
          %0 = nn.conv2d(%x, %w, |NCHW);
          %1 = nn.conv2d(nn.global_avg_pool2d(%0), %v, channels=8, kernel_size=[1, 1]);
          nn.conv2d(multiply(%0, sigmoid(%1)), %w, |NCHW)
        }",
        4,
    ),
    Situation {
        name: "an image is padded before it is convolved twice",
        passes: NHWC,
        program: "(%x: F(1, 8, 6, 6), %w: F(8, 8, 3, 3)) {
          %0 = nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]);
          %1 = nn.conv2d(%x, %w, |NCHW);
          %2 = nn.conv2d(%0, %w, channels=8, kernel_size=[3, 3]);
          add(%1, %2)
        }",
        most: 3,
        holds: TO_NHWC,
    },
];

const fn blocked(name: &'static str, passes: &'static str, most: usize) -> Situation {
    Situation {
        name,
        passes,
        program: "(%x: F(1, 3, 12, 12), %w: F(16, 3, 7, 7), %v: F(16, 16, 3, 3), %u: F(16, 16, 1, 1)) {
          %0 = nn.relu(nn.conv2d(%x, %w, strides=[2, 2], padding=[3, 3, 3, 3], channels=16, kernel_size=[7, 7]));
          %1 = nn.max_pool2d(%0, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1]);
          %2 = nn.relu(nn.conv2d(%1, %v, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]));
          %3 = nn.relu(nn.conv2d(%1, %u, channels=16, kernel_size=[1, 1]));
          nn.global_max_pool2d(add(%2, %3))
        }",
        most,
        holds: &[],
    }
}
