//! Cost models that measure: what they say grows with the work, is remembered, and falls back where nothing can be timed.
#![cfg(feature = "llvm")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use resat::{
    cost::{CostModel, Head, Machine, Measured, NodeView, Roofline, parse},
    driver::Stopwatch,
    ir::{Module, Type},
    ops::{make_attrs, op},
    target::{Peaks, Target},
    tensor::DType,
};
use tempfile::TempDir;

fn target() -> Target {
    Target::parse("llvm -mcpu=native -num-cores=1").expect("legal")
}

/// The price of an operator's call with default attributes.
fn price(model: &dyn CostModel, name: &str, args: &[Type]) -> f64 {
    let op = op(name);
    let attrs = make_attrs(op, &[]).expect("no attribute is needed");
    let out = op.op().infer(&attrs, args).expect("well typed");
    let (constant, target) = (vec![false; args.len()], target());
    model.cost(&NodeView { head: Head::Op(op, &attrs), args, constant: &constant, out: &out, target: &target })
}

fn square(n: i64) -> Type {
    Type::tensor(&[n, n], DType::F32)
}

#[test]
fn kernels_are_timed_once_per_machine() {
    let folder = TempDir::new().expect("a folder can be made");
    let watch = || Arc::new(Stopwatch::new(target(), Some(folder.path().to_owned())));
    let first = watch();
    let model = Measured::new(first.clone());
    let dense = |model: &Measured, n| price(model, "nn.dense", &[square(n), square(n)]);
    let (small, large) = (dense(&model, 16), dense(&model, 192));
    assert!(small > 0.0 && large > 20.0 * small, "{small} and {large}");
    // Arithmetic that fuses is cheap beside what it fuses into; whatever noise says, it is not free.
    let relu = price(&model, "nn.relu", &[square(192)]);
    assert!(relu > 0.0 && relu < large, "{relu} and {large}");
    assert!(price(&model, "less", &[square(8), square(8)]) > 0.0);
    let written = std::fs::read_to_string(first.file().expect("a folder was given")).expect("written");
    assert!(written.starts_with("# resat ") && written.contains("nn_dense"), "{written}");
    // Another process reads what this one wrote, down to a line that was cut short.
    std::fs::write(first.file().expect("a folder was given"), format!("{written}0123")).expect("writable");
    let again = Measured::new(watch());
    assert_eq!((dense(&again, 16), dense(&again, 192)), (small, large));
    assert!(model.notes().is_empty(), "{:?}", model.notes());
}

#[test]
fn peaks_are_measured_once() {
    let folder = TempDir::new().expect("a folder can be made");
    let watch = || Stopwatch::new(target(), Some(folder.path().to_owned()));
    let peaks = watch().peaks().expect("measurable");
    let f32s = peaks.of(DType::F32).expect("always measured");
    // Any machine that LLVM 22 makes code for is within this, also while others use it.
    assert!((1e8..1e13).contains(&f32s) && (1e7..1e13).contains(&peaks.bandwidth), "{peaks:?}");
    assert!(peaks.of(DType::F64).is_some_and(|f64s| f64s < 2.0 * f32s), "{peaks:?}");
    assert_eq!(watch().peaks().expect("remembered"), peaks);
    let machine: Arc<dyn Machine> = Arc::new(watch());
    let model = parse("roofline:measured", Some(&machine)).expect("measurable");
    let measured = Target { peaks: Some(peaks), ..target() };
    assert!((measured.peak(DType::F32) / f32s - 1.0).abs() < 1e-9);
    assert!(price(model.as_ref(), "nn.dense", &[square(256), square(256)]) > 0.0);
}

/// A machine that can time nothing, and counts how often it is asked.
struct Broken(AtomicUsize);

impl Machine for Broken {
    fn seconds(&self, _: &Module) -> Result<f64, String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err("it is broken".into())
    }

    fn peaks(&self) -> Result<Peaks, String> {
        Err("it is broken".into())
    }
}

#[test]
fn what_can_not_be_timed_is_estimated_and_said() {
    let machine = Arc::new(Broken(AtomicUsize::new(0)));
    let model = Measured::new(machine.clone());
    let args = [square(64), square(64)];
    assert_eq!(price(&model, "nn.dense", &args), price(&Roofline, "nn.dense", &args));
    assert_eq!(price(&model, "nn.dense", &args), price(&Roofline, "nn.dense", &args));
    assert_eq!(machine.0.load(Ordering::Relaxed), 1);
    assert_eq!(model.notes().len(), 1);
    assert!(
        model.notes()[0].contains("`nn.dense`") && model.notes()[0].contains("it is broken"),
        "{:?}",
        model.notes()
    );
    let machine: Arc<dyn Machine> = machine;
    let said = parse("roofline:measured", Some(&machine)).err().expect("refused").to_string();
    assert!(said.contains("it is broken"), "{said}");
}
