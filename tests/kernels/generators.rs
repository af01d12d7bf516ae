//! Code generators behind one trait: the shipped ones give the same results, and another is a type and a call of `register`.
#![cfg(feature = "llvm")]

use std::sync::atomic::{AtomicUsize, Ordering};

use resat::{
    codegen::{self, Code, CodeGenerator, CodegenError, CodegenTarget, RegisterError, c},
    driver::{BuildError, Cache, Options, build},
    loops::{Kernel, LoopKind, Stmt},
    machine::Core,
    pass::Settings,
    relay::text::parse_module,
    target::Target,
    tensor::{DType, Tensor},
};

const NETWORK: &str = r#"
#[version = "0.0.5"]
def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(8, 3, 3, 3), float32], %b: Tensor[(8), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]);
  %1 = nn.bias_add(%0, %b);
  %2 = nn.relu(%1);
  %3 = nn.max_pool2d(%2, pool_size=[2, 2], strides=[2, 2]);
  nn.softmax(nn.batch_flatten(%3))
}
"#;

fn tensors() -> Vec<Tensor> {
    let tensor = |shape: &[usize]| Tensor::from_f64_fn(DType::F32, shape, |i| ((i * 37) % 19) as f64 / 19.0 - 0.4);
    vec![tensor(&[1, 3, 8, 8]), tensor(&[8, 3, 3, 3]), tensor(&[8])]
}

fn run(target: &str, cache: Option<Cache>) -> Result<Vec<Tensor>, BuildError> {
    let module = parse_module("network.relay", NETWORK).expect("is read");
    let target = Target::parse(target).expect("is a target");
    let mut options = Options::new(Settings::new(target));
    options.cache = cache.map(std::sync::Arc::new);
    let built = build(module, &[], options)?;
    Ok(built.executable.run(&tensors()).expect("runs"))
}

fn assert_close(a: &[Tensor], b: &[Tensor]) {
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.shape(), b.shape());
        for i in 0..a.len() {
            assert!((a.get_f64(i) - b.get_f64(i)).abs() < 1e-5, "element {i}: {} and {}", a.get_f64(i), b.get_f64(i));
        }
    }
}

/// C99 with a count of the kernels that it is asked for, and without `float64`.
#[derive(Debug)]
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

impl CodeGenerator for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn version(&self, _: &CodegenTarget) -> String {
        "1".into()
    }

    fn core(&self, _: Core) -> Core {
        Core::SCALAR
    }

    fn supports(&self, kernel: &Kernel, _: &CodegenTarget) -> Result<(), CodegenError> {
        match kernel.buffers.iter().any(|b| b.dtype == DType::F64) {
            false => Ok(()),
            true => Err(CodegenError::Unsupported {
                generator: self.name().into(),
                kernel: kernel.name.clone(),
                construct: "elements of float64".into(),
            }),
        }
    }

    fn generate(&self, kernel: &Kernel, target: &CodegenTarget) -> Result<Code, CodegenError> {
        let mut vectors = false;
        kernel.body.for_each(&mut |s| vectors |= matches!(s, Stmt::For { kind: LoopKind::Vector, .. }));
        assert!(!vectors, "schedules follow the generator's core, which has no vectors");
        COUNT.fetch_add(1, Ordering::Relaxed);
        c::C99.generate(kernel, target)
    }
}

#[test]
fn all_give_the_same() {
    let by_llvm = run("llvm", None).expect("is built");
    assert_close(&run("c", None).expect("is built"), &by_llvm);
    codegen::register(Counting).expect("the name is free");
    assert_close(&run("counting -num-cores=1", None).expect("is built"), &by_llvm);
    assert!(COUNT.load(Ordering::Relaxed) > 0);
    assert_eq!(codegen::register(Counting), Err(RegisterError::Taken("counting".into())));

    // Programs are kept by generator.
    let folder = tempfile::tempdir().expect("a folder");
    let before = COUNT.load(Ordering::Relaxed);
    for target in ["counting", "llvm", "c", "counting"] {
        assert_close(&run(target, Some(Cache::new(folder.path()))).expect("is built"), &by_llvm);
    }
    let first = COUNT.load(Ordering::Relaxed) - before;
    assert!(first > 0);
    assert_close(&run("counting", Some(Cache::new(folder.path()))).expect("is found"), &by_llvm);
    assert_eq!(COUNT.load(Ordering::Relaxed) - before, first, "what is kept is not made again");

    // What it does not support is refused, by kernel and construct.
    let text = "#[version = \"0.0.5\"]\ndef @main(%x: Tensor[(16), float64]) { tanh(%x) }";
    let module = parse_module("wide.relay", text).expect("is read");
    let settings = Settings::new(Target::parse("counting").expect("is a target"));
    let refused = build(module, &[], Options::new(settings)).err().expect("it has float64").to_string();
    assert!(refused.contains("`counting` does not support elements of float64 (kernel `"), "{refused}");
}

#[test]
fn an_unknown_generator_is_refused() {
    let message = run("lvm", None).expect_err("there is no such generator").to_string();
    assert!(message.contains("no code generator `lvm`") && message.contains("did you mean `llvm`"), "{message}");
}
