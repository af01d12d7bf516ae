//! Programs of the kinds that TVM's own tests of its passes are about, and how little each pass should leave of them: calls of operators
//! outside of primitive functions, or primitive functions. What is left computes the same.

use resat::{
    infer::infer_types,
    interp,
    ir::{Expr, Module, reachable},
    pass::{Pass, PassContext, Settings, sequence},
    relay::text,
    target::Target,
};

struct Kind {
    what: &'static str,
    pass: &'static str,
    program: &'static str,
    /// Primitive functions where there are any, else calls.
    left: usize,
}

const KINDS: &[Kind] = &[
    Kind {
        what: "a quantized convolution between rearrangements is dilated",
        pass: "FlattenAtrousConv",
        program: "def @main(%x: Tensor[(1, 5, 5, 4), int8], %w: Tensor[(3, 3, 4, 1), int8]) {
            %0 = nn.space_to_batch_nd(%x, block_shape=[2, 2], paddings=[[2, 3], [2, 3]]);
            %1 = qnn.conv2d(%0, %w, 0, 0, 2f, 1f, padding=[0, 0, 0, 0], groups=4, channels=4, kernel_size=[3, 3],
                            data_layout=\"NHWC\", kernel_layout=\"HWOI\", out_dtype=\"int32\");
            nn.batch_to_space_nd(%1, block_shape=[2, 2], crops=[[0, 1], [0, 1]])
        }",
        left: 1,
    },
    Kind {
        what: "fields of a split are added up in one kernel",
        pass: "FuseOps",
        program: "def @main(%x: Tensor[(6, 9), float32]) {
            %0 = split(%x, indices_or_sections=3);
            add(add(%0.0, %0.1), %0.2)
        }",
        left: 1,
    },
    Kind {
        what: "what is before a split is computed where it splits",
        pass: "FuseOps",
        program: "def @main(%x: Tensor[(6, 9), float32]) {
            %0 = exp(%x);
            %1 = split(%0, indices_or_sections=3);
            (nn.relu(%1.0), %1.0)
        }",
        left: 2,
    },
    Kind {
        what: "fields of a tuple that is written out are its values",
        pass: "FuseOps",
        program: "def @main(%x: Tensor[(6, 9), float32], %y: Tensor[(6, 9), float32]) {
            %0 = (exp(%x), nn.relu(%y));
            add(%0.0, %0.1)
        }",
        left: 1,
    },
    Kind {
        what: "tuples between concatenations",
        pass: "FuseOps",
        program: "def @main(%x: Tensor[(1, 4, 8, 8), float32]) {
            %0 = concatenate((add(%x, 1f), add(%x, 2f)), axis=1);
            %1 = concatenate((add(%x, 3f), add(%x, 4f)), axis=1);
            %2 = concatenate((add(%0, 1f), add(%1, 1f)), axis=1);
            %3 = nn.max_pool2d(%2, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
            %4 = add(%3, 1f);
            (%4, add(%4, 1f))
        }",
        left: 3,
    },
    Kind {
        what: "transposes around layout transforms are part of them",
        pass: "SimplifyExpr",
        program: "def @main(%x: Tensor[(1, 6, 6, 8), float32]) {
            %0 = transpose(%x, axes=[0, 3, 1, 2]);
            %1 = layout_transform(%0, src_layout=\"NCHW\", dst_layout=\"NCHW4c\");
            %2 = nn.relu(%1);
            %3 = layout_transform(%2, src_layout=\"NCHW4c\", dst_layout=\"NCHW\");
            transpose(%3, axes=[0, 2, 3, 1])
        }",
        left: 3,
    },
    Kind {
        what: "a batch normalization between primitive functions is arithmetic",
        pass: "SimplifyInference",
        program: "def @main(%x: Tensor[(1, 4, 2, 2), float32], %g: Tensor[(4), float32], %b: Tensor[(4), float32]) {
            %0 = fn (%p: Tensor[(1, 4, 2, 2), float32], Primitive=1) { exp(%p) };
            %1 = nn.batch_norm(%0(%x), %g, %b, %b, exp(%g));
            %2 = fn (%p: Tensor[(1, 4, 2, 2), float32], Primitive=1) { nn.relu(%p) };
            %2(%1.0)
        }",
        left: 2,
    },
    Kind {
        what: "bindings on a device that follow from constants",
        pass: "FoldConstant",
        program: "def @main(%x: Tensor[(1), float32]) {
            let %a = on_device(1f, constrain_body=False);
            let %b = on_device(add(%a, %a), constrain_body=False);
            add(%b, %x)
        }",
        left: 1,
    },
];

fn left(m: &Module) -> usize {
    let all = reachable(m, m.functions().map(|(_, f)| f));
    let primitive = all.iter().filter(|&&e| matches!(&m[e], Expr::Func(f) if f.is_primitive())).count();
    match primitive {
        0 => all.iter().filter(|&&e| m.op_call(e).is_some()).count(),
        n => n,
    }
}

#[test]
fn passes_leave_as_little_as_tvms() {
    let settings = Settings::new(Target::host());
    let mut wrong = Vec::new();
    for Kind { what, pass, program, left: most } in KINDS {
        let module = text::parse_module(what, &format!("#[version = \"0.0.5\"]\n{program}"))
            .unwrap_or_else(|e| panic!("{}", e.render()));
        let before = infer_types(module.clone()).unwrap_or_else(|e| panic!("{}", e.render()));
        let sequence = sequence(pass, &settings).expect("a pass");
        let after = sequence.run(module, &mut PassContext::default()).unwrap_or_else(|e| panic!("{}", e.render()));
        let found = left(&after);
        if found > *most {
            wrong.push(format!("{pass}: {what}: {found} are left, not {most}:\n{}", text::print_module(&after)));
        }
        let inputs = interp::random_inputs(&before, 1).unwrap_or_else(|e| panic!("{}", e.render()));
        let run = |m: &Module| interp::run_flat(m, "main", inputs.clone()).unwrap_or_else(|e| panic!("{}", e.render()));
        for (x, y) in run(before.module()).iter().zip(&run(&after)) {
            let apart = x.to_f64_vec().iter().zip(&y.to_f64_vec()).any(|(x, y)| (x - y).abs() > 1e-5 * (1.0 + x.abs()));
            if x.shape() != y.shape() || apart {
                wrong.push(format!("{pass}: {what}: {x:?} became {y:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
