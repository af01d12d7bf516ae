//! Every operator's kernel, scheduled and compiled, against the plain evaluation of its tensor expressions.
#![cfg(feature = "llvm")]

use std::{process::Command, sync::Arc};

use crate::common::{Data, Rng, cut_counted, difference, random_tensor};
use resat::{
    codegen::{self, CodegenTarget, c, llvm},
    ir::Name,
    loops::{Builder, Kernel, eval_stages},
    lower::kernel,
    machine::Core,
    ops,
    runtime::{Call, CompiledCode, Estimate, Executable, Pool, Port, Program, SharedLibrary, Step},
    tensor::{DType, Tensor},
};

#[test]
fn compiled_kernels_agree_with_their_definitions() {
    compare(&resat::codegen::llvm::host_target(), |_| true);
}

/// Machines without some of the extensions that this one has: int8 dot products are other code there.
#[test]
fn products_of_bytes_agree_on_smaller_machines() {
    let host = resat::codegen::llvm::host_target();
    for lacks in [&["avx512vnni", "avxvnni"][..], &["avx512", "avxvnni"], &["avx", "fma", "f16c", "vaes", "vpclmul"]] {
        let is_lacking = |f: &str| lacks.iter().any(|l| f[1..].starts_with(l));
        let features: Vec<&str> = host.features.split(',').filter(|f| !is_lacking(f)).collect();
        let target = CodegenTarget { cpu: "x86-64".into(), features: features.join(","), ..host.clone() };
        if host.arch() == "x86_64" {
            compare(&target, |name| name.contains("conv2d"));
        }
    }
}

/// Products of sizes that are cut into blocks for the caches, with rests of tiles, against sums in the order of the terms.
#[test]
fn large_products_agree() {
    let build = |m: i64, k: i64, n: i64| {
        let text = format!(
            "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[({m}, {k}), float32], %w: Tensor[({}, {k}, 16), float32]) {{\n  \
             nn.contrib_dense_pack(%x, %w, weight_layout=\"NC16n\")\n}}",
            n / 16
        );
        let module = resat::relay::text::parse_module("products", &text).expect("well formed");
        let settings = resat::pass::Settings::new(resat::target::Target::host());
        let passes: Box<dyn resat::pass::Pass> = Box::new(resat::pass::Sequential::default());
        let options = resat::driver::Options { passes: Some(passes), ..resat::driver::Options::new(settings) };
        resat::driver::build(module, &[], options).expect("builds").executable
    };
    for (m, k, n) in [(131, 700, 96), (520, 1024, 48), (17, 4096, 112)] {
        let x = Tensor::from_f64_fn(DType::F32, &[m, k], |i| ((i * 7919) % 101) as f64 - 50.0);
        let w = Tensor::from_f64_fn(DType::F32, &[n / 16, k, 16], |i| ((i * 104_729) % 13) as f64 - 6.0);
        let got = build(m as i64, k as i64, n as i64).run(&[x.clone(), w.clone()]).expect("runs");
        // Sums of small integers are exact in any order.
        let (xs, ws, out) = (x.to_f64_vec(), w.to_f64_vec(), got[0].to_f64_vec());
        for (i, &got) in out.iter().enumerate().step_by(7) {
            let (row, o) = (i / n, i % n);
            let want: f64 = (0..k).map(|c| xs[row * k + c] * ws[(o / 16 * k + c) * 16 + o % 16]).sum();
            assert_eq!(got, want, "at {row}, {o} of {m} x {k} x {n}");
        }
    }
}

/// Runs `@main` of small integers, of which sums are exact in any order, scheduled as it is written, against the interpreter.
fn agrees_exactly(text: &str) {
    let text = format!("#[version = \"0.0.5\"]\n{text}");
    let m = resat::relay::text::parse_module("sums", &text).unwrap_or_else(|e| panic!("{}", e.render()));
    let (_, main) = m.functions().next().expect("one function");
    let args: Vec<Tensor> = (m.func(main).params.iter().enumerate())
        .map(|(n, &p)| {
            let ty = m.var(p).ty.as_ref().expect("annotated").as_tensor().expect("a tensor").clone();
            let shape: Vec<usize> = ty.shape.iter().map(|d| d.known().expect("known") as usize).collect();
            Tensor::from_f64_fn(ty.dtype, &shape, |i| ((i * 7919 + n) % 17) as f64 - 8.0)
        })
        .collect();
    let want = resat::interp::run_flat(&m, "main", args.iter().cloned().map(Into::into).collect()).expect("runs");
    let settings = resat::pass::Settings::new(resat::target::Target::host());
    let passes: Box<dyn resat::pass::Pass> = Box::new(resat::pass::Sequential::default());
    let options = resat::driver::Options { passes: Some(passes), ..resat::driver::Options::new(settings) };
    let got = resat::driver::build(m, &[], options).expect("builds").executable.run(&args).expect("runs");
    for (w, g) in want.iter().zip(&got) {
        if let Some(d) = difference(w, g) {
            panic!("{text}\n{d}");
        }
    }
}

/// Images that become twice as large, and some that do not, by all ways to count their places, of few columns and of many: what that comes to for each
/// other place is found out beforehand.
#[test]
fn images_of_twice_the_size_agree() {
    let resize = |image: &str, size: &str, attrs: &str| {
        agrees_exactly(&format!(
            "def @main(%x: Tensor[({image}), float32]) {{ image.resize2d(%x, size=[{size}], {attrs}) }}"
        ));
    };
    for mode in ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"] {
        for (image, size) in
            [("1, 2, 5, 16", "10, 32"), ("2, 1, 3, 37", "6, 74"), ("1, 1, 1, 1", "2, 2"), ("1, 3, 2, 2", "4, 4")]
        {
            if mode != "align_corners" || size == "2, 2" {
                resize(image, size, &format!("method=\"linear\", coordinate_transformation_mode=\"{mode}\""));
            }
            for rounding in ["round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"] {
                let how = format!("coordinate_transformation_mode=\"{mode}\", rounding_method=\"{rounding}\"");
                resize(image, size, &format!("method=\"nearest_neighbor\", {how}"));
            }
        }
    }
    let nearest = "method=\"nearest_neighbor\", rounding_method=\"round_prefer_floor\"";
    resize("1, 2, 4, 7", "12, 21", nearest);
    resize("1, 2, 4, 8", "16, 32", nearest);
    resize("1, 2, 8, 8", "4, 4", nearest);
    resize(
        "1, 2, 4, 12",
        "5, 24",
        "method=\"linear\", coordinate_transformation_mode=\"asymmetric\", out_dtype=\"float64\"",
    );
    agrees_exactly(
        "def @main(%x: Tensor[(1, 2, 6, 20), float32]) {
           nn.upsampling(%x, scale_h=2f, scale_w=2f, method=\"bilinear\", align_corners=False) }",
    );
}

/// Taps that see padding alone are left out of loops: windows that mostly see padding, of several strides and dilations, along rows, columns and
/// depth, in blocks and without, in groups, and images of one place.
#[test]
fn windows_over_much_padding_agree() {
    let blocked = |image: &str, weight: &str, attrs: &str| {
        format!(
            "def @main(%x: Tensor[({image}, 16), float32], %w: Tensor[({weight}, 16, 16), float32]) {{\n  nn.relu(\
             nn.contrib_conv2d_NCHWc(%x, %w, data_layout=\"NCHW16c\", kernel_layout=\"OIHW16i16o\", out_layout=\"NCHW16c\", {attrs}))\n}}"
        )
    };
    agrees_exactly(&blocked("1, 2, 14, 14", "4, 2, 3, 3", "padding=[12, 12, 12, 12], dilation=[12, 12]"));
    agrees_exactly(&blocked("2, 3, 9, 17", "1, 3, 3, 5", "padding=[6, 14, 5, 9], dilation=[6, 5]"));
    agrees_exactly(&blocked("1, 1, 7, 6", "2, 1, 7, 4", "padding=[6, 5, 6, 5], strides=[2, 1], dilation=[1, 2]"));
    agrees_exactly(&blocked("1, 2, 5, 20", "3, 2, 3, 3", "padding=[9, 4, 3, 4], strides=[3, 2], dilation=[4, 4]"));
    agrees_exactly(&blocked("1, 1, 1, 1", "1, 1, 5, 5", "padding=[2, 2, 2, 2]"));
    agrees_exactly(&blocked("1, 4, 8, 8", "4, 2, 3, 3", "padding=[7, 7, 7, 7], dilation=[7, 7], groups=2"));
    let deep = |image: &str, weight: &str, attrs: &str| {
        format!(
            "def @main(%x: Tensor[({image}, 16), float32], %w: Tensor[({weight}, 16, 16), float32]) {{\n  \
             nn.conv3d(%x, %w, data_layout=\"NCDHW16c\", kernel_layout=\"OIDHW16i16o\", {attrs})\n}}"
        )
    };
    agrees_exactly(&deep("1, 2, 4, 9, 9", "4, 2, 3, 3, 3", "padding=[1, 1, 1, 1, 1, 1]"));
    agrees_exactly(&deep(
        "2, 1, 2, 7, 30",
        "2, 1, 3, 5, 3",
        "padding=[2, 2, 1, 0, 2, 1], strides=[2, 2, 1], dilation=[1, 1, 1]",
    ));
    agrees_exactly(&deep("1, 2, 5, 6, 7", "2, 1, 2, 2, 2", "padding=[3, 2, 2, 3, 2, 2], dilation=[3, 2, 2], groups=2"));
    let plain = |op: &str, image: &str, weight: &str, attrs: &str| {
        format!(
            "def @main(%x: Tensor[({image}), float32], %w: Tensor[({weight}), float32]) {{\n  {op}(%x, %w, {attrs})\n}}"
        )
    };
    agrees_exactly(&plain(
        "nn.conv3d",
        "1, 3, 5, 9, 10",
        "4, 3, 3, 7, 7",
        "padding=[1, 3, 3, 1, 3, 3], strides=[1, 2, 2]",
    ));
    agrees_exactly(&plain("nn.conv3d", "1, 6, 3, 4, 5", "6, 1, 3, 3, 3", "padding=[1, 1, 1, 1, 1, 1], groups=6"));
    agrees_exactly(&plain("nn.conv2d", "2, 5, 13, 11", "7, 5, 3, 3", "padding=[10, 9, 10, 9], dilation=[10, 9]"));
    agrees_exactly(&plain("nn.conv1d", "1, 5, 40", "7, 5, 3", "padding=[30, 20], dilation=[25]"));
    agrees_exactly(&plain("nn.conv1d", "1, 4, 6", "4, 1, 3", "padding=[5, 5], dilation=[5], groups=4"));
}

/// Products whose outputs do not fill the last block of their weight.
#[test]
fn products_with_a_block_that_is_not_full_agree() {
    for (rows, k, n, block) in [(5, 33, 67, 16), (64, 40, 49, 16), (1, 300, 1001, 8), (3, 7, 9, 8), (2, 5, 3, 4)] {
        let blocks = (n + block - 1) / block;
        agrees_exactly(&format!(
            "def @main(%x: Tensor[({rows}, {k}), float32], %w: Tensor[({blocks}, {k}, {block}), float32], %b: Tensor[({n}), float32]) {{\n  \
             nn.relu(add(nn.contrib_dense_pack(%x, %w, units={n}, weight_layout=\"NC{block}n\"), %b))\n}}"
        ));
    }
}

/// Kernels as C99, without a warning, and with a trap for whatever C leaves undefined: as they are scheduled for scalars, which is
/// what compilers and exports take, and some of them for vectors.
#[test]
fn kernels_in_c_agree_with_their_definitions() {
    let some = |name: &str| ["nn.conv2d", "nn.dense", "nn.softmax", "argsort", "sum", "multiply"].contains(&name);
    for (vectors, unit) in [
        (false, Core::SCALAR),
        (true, Core { vector_bytes: 32, vector_registers: 16, int8_dot: 4, bf16_dot: 3, ..Core::SCALAR }),
    ] {
        compare_by(
            unit,
            |name| !vectors || some(name),
            |kernels| {
                let dir = tempfile::tempdir().expect("a temporary folder");
                let head = c::PRELUDE.to_owned();
                let text = kernels.iter().fold(head, |text, k| {
                    let own = format!("static_{}", k.name);
                    let call = format!("{own}(ctx, args, workspace);");
                    let params = "const ResatCtx *ctx, void *const *args, unsigned char *workspace";
                    format!("{text}{}void {}({params}) {{ {call} }}\n", c::kernel(k, &own, false), k.name)
                });
                let (source, library) = (dir.path().join("kernels.c"), dir.path().join("kernels.so"));
                std::fs::write(&source, text).expect("it is written");
                let run = Command::new("cc")
                    .args(["-std=c99", "-Wall", "-Werror", "-O0", "-fPIC", "-shared", "-ffp-contract=off"])
                    .args(["-fsanitize=undefined,float-cast-overflow", "-fsanitize-undefined-trap-on-error", "-o"])
                    .args([&library, &source])
                    .arg("-lm")
                    .output()
                    .expect("the system has a C compiler");
                let said = String::from_utf8_lossy(&run.stderr).into_owned();
                assert!(run.status.success(), "{}", said.lines().take(40).collect::<Vec<_>>().join("\n"));
                Arc::new(SharedLibrary::load(&library).expect("it was compiled"))
            },
        );
    }
}

/// Compares the kernels of operators of such names.
fn compare(target: &CodegenTarget, wanted: impl Fn(&str) -> bool) {
    compare_by(Core::here(target), wanted, |kernels| {
        Arc::new(
            llvm::JitLibrary::load(&codegen::compile(&llvm::Llvm, kernels, target).expect("compiles")).expect("links"),
        )
    });
}

/// Compares the kernels of operators of such names, as a compiler makes code of them.
fn compare_by(unit: Core, wanted: impl Fn(&str) -> bool, compile: impl Fn(&[&Kernel]) -> Arc<dyn CompiledCode>) {
    let mut groups = Vec::new();
    for id in ops::all().into_iter().filter(|id| wanted(id.op().name())) {
        let op = id.op();
        for (n, sample) in op.samples().into_iter().enumerate() {
            let given: Vec<_> = sample.attrs.iter().map(|(n, v)| (Name::from(n), v.clone())).collect();
            let attrs = ops::make_attrs(id, &given).expect("samples are legal");
            let mut b = Builder::new();
            let Some(args) = crate::common::operands(&sample.args, &mut b) else { continue };
            let out = match op.lower(&attrs, &args, &mut b) {
                Ok(out) => out,
                // Their extents are known before they are lowered.
                Err(_) if !op.decided_by(&attrs).is_empty() => continue,
                Err(e) => panic!("{} {:?}: {e}", op.name(), sample),
            };
            let group = b.finish_with(&out);
            let name = format!("{}_{n}", op.name().replace('.', "_"));
            groups.push((kernel(&name, &group, unit), group, sample));
        }
    }
    let kernels: Vec<_> = groups.iter().map(|g| &g.0).collect();
    let code = compile(&kernels);
    let mut wrong = Vec::new();
    for (kernel, group, sample) in &groups {
        let mut program = Program::new("test");
        let mut args = Vec::new();
        let mut inputs: Vec<Tensor> = Vec::new();
        let mut rng = Rng(5);
        for (i, t) in sample.args.iter().flat_map(|t| t.flatten().expect("tensors")).enumerate() {
            let tensor = random_tensor(&t, Data::Tame, &mut rng);
            args.push((program.input(Port::new(i.to_string(), t.dtype, tensor.shape())), false));
            inputs.push(tensor);
        }
        let mut ports = Vec::new();
        for (i, &t) in group.results.iter().enumerate() {
            let shape: Vec<usize> = group.decl(t).shape.iter().map(|&n| n as usize).collect();
            let port = Port::new(i.to_string(), group.decl(t).dtype, &shape);
            let buffer = program.buffer(port.bytes());
            args.push((buffer, true));
            ports.push((port, buffer));
        }
        let function = program.function(&kernel.name);
        let workspace = kernel.workspace().1 as usize;
        program.step(Step::Call(Call { function, args, workspace, in_place: vec![], estimate: Estimate::default() }));
        for (port, buffer) in ports {
            program.output(port, buffer);
        }
        let exe = Executable::link(program, vec![code.clone()], Arc::new(Pool::new(2))).expect("links");
        let want = cut_counted(group, eval_stages(group, &inputs).expect("samples evaluate")).expect("counts");
        let got = cut_counted(group, exe.run(&inputs).expect("runs")).expect("counts");
        for (w, g) in want.iter().zip(&got) {
            if let Some(d) = difference(w, g) {
                wrong.push(format!("{} {:?} {:?}: {d}", kernel.name, sample.attrs, sample.args));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} kernels are wrong:\n{}", wrong.len(), groups.len(), wrong.join("\n"));
}
