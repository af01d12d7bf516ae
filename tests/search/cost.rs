//! Cost models that measure: what they say grows with the work, is remembered, and falls back where nothing can be timed.
#![cfg(feature = "llvm")]

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use resat::{
    cost::{
        CostModel, Flops, Head, Integers, KernelCall, KernelView, Measured, NodeView, Penalized, Precision, Roofline,
        Source, Timer, TimerError, Weighted, parse,
    },
    driver::Stopwatch,
    ir::{AttrValue, Module, Type, reachable},
    ops::{make_attrs, op},
    pass::{Pass, PassContext, Settings, bind_params, sequence},
    relay::text::parse_module,
    target::{Peaks, Target},
    tensor::{DType, Tensor},
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

/// What became of a 3 x 3 convolution of so many channels, given its weights, over squares of so many elements a side: operators' names, with tiles where they
/// have some.
fn convolved(channels: usize, side: usize, target: Target) -> String {
    convolved_over(channels, &[side; 2], DType::F32, target)
}

/// The same over images of these extents, with windows of 3 along each, of a type.
fn convolved_over(channels: usize, image: &[usize], dtype: DType, target: Target) -> String {
    convolved_by(3, channels, image, dtype, target)
}

/// The same with windows of so many along each.
fn convolved_by(taps: usize, channels: usize, image: &[usize], dtype: DType, target: Target) -> String {
    let (c, axes) = (channels, image.len());
    let window = vec![taps; axes];
    let (x, w) = ([&[1, c], image].concat(), [&[c, c], &window[..]].concat());
    let tensor = |shape: &[usize]| format!("{shape:?}").replace('[', "(").replace(']', ")");
    let text = format!(
        r#"#[version = "0.0.5"]
        def @main(%x: Tensor[{}, {dtype}], %w: Tensor[{}, {dtype}]) {{
          nn.relu(nn.conv{axes}d(%x, %w, padding={:?}, kernel_size={window:?}, channels={c}))
        }}"#,
        tensor(&x),
        tensor(&w),
        vec![taps / 2; axes],
    );
    let module = parse_module("conv", &text).expect("legal");
    let weights = Tensor::from_f64_fn(dtype, &w, |i| (i % 7) as f64);
    let module = bind_params(&module, &[("w".into(), weights)]).expect("it has that parameter");
    let passes = sequence("default", &Settings::new(target)).expect("there is such a pass");
    let module = passes.run(module, &mut PassContext::default()).expect("it can be built");
    let ops = reachable(&module, module.functions().map(|(_, f)| f)).into_iter().filter_map(|e| module.op_call(e));
    let said = ops.map(|(op, _, attrs)| match attrs.get("tile_size").and_then(AttrValue::as_int) {
        Some(tile) => format!("{}({tile})", op.op().name()),
        None => op.op().name().to_owned(),
    });
    said.collect::<Vec<_>>().join(" ")
}

/// Winograd's algorithm multiplies less and reads more weights: 16/9 times as many by tiles of 2, four times by tiles of 4. Where these come from memory
/// at every run, however fast the caches are, the larger tiles are slower, and where memory is slow so are both.
#[test]
fn weights_that_no_cache_keeps_are_read_from_memory() {
    let mut target = Target::parse("llvm -mcpu=znver5 -num-cores=1").expect("legal");
    target.timing.memory = 110e9;
    target.timing.dram = 40e9;
    target.timing.l3.bytes = 32 << 20;
    assert!(convolved(128, 28, target.clone()).contains("winograd_conv2d(4)"));
    assert!(convolved(512, 7, target.clone()).contains("winograd_conv2d(2)"));
    let mut slow = target.clone();
    slow.timing.dram = 10e9;
    assert!(!convolved(512, 7, slow).contains("winograd"));
    // A cache that keeps them.
    target.timing.l3.bytes = 1 << 30;
    assert!(convolved(512, 7, target).contains("winograd_conv2d(4)"));
}

/// Many channels that no block of a register's lanes divides are one block, whose convolutions of one pixel are dense layers with weights in blocks.
#[test]
fn channels_that_fill_no_blocks_are_dense() {
    let convolved = |channels: usize| {
        let target = Target::parse("llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu=icelake-server,-num-cores=1");
        convolved_by(1, channels, &[7; 2], DType::F32, target.expect("legal"))
    };
    for (channels, found) in [(1000, true), (456, true), (448, false), (1024, false)] {
        let ops = convolved(channels);
        assert_eq!(ops.contains("nn.contrib_dense_pack"), found, "{channels}: {ops}");
        assert_eq!(ops.contains("nn.contrib_conv2d_NCHWc"), !found, "{channels}: {ops}");
    }
}

/// Convolutions over planes, rows and columns take Winograd's algorithm over rows and columns where it pays.
#[test]
fn planes_take_winograd() {
    let mut target = Target::parse("llvm -mcpu=znver5 -num-cores=1").expect("legal");
    target.timing.l3.bytes = 32 << 20;
    assert!(convolved_over(64, &[4, 28, 28], DType::F32, target.clone()).contains("winograd_conv3d"));
    target.timing.dram = 40e9;
    assert!(convolved_over(512, &[1, 7, 7], DType::F32, target.clone()).contains("winograd_conv3d(2)"));
    target.timing.dram = 10e9;
    assert!(!convolved_over(512, &[1, 7, 7], DType::F32, target).contains("winograd"));
}

/// Short floats take Winograd's algorithm in float32 where products of pairs are twice as fast as those, and not where matrix registers multiply them;
/// nor where its weights are to be read from memory.
#[test]
fn short_floats_take_winograd_in_vectors() {
    let convolved = |channels: usize, side: usize, cpu: &str| {
        let target = Target::parse(&format!("llvm,-mtriple=x86_64-unknown-linux-gnu,-mcpu={cpu},-num-cores=1"));
        convolved_over(channels, &[side; 2], DType::BF16, target.expect("legal"))
    };
    for (cpu, channels, side, found) in [
        ("znver4", 64, 56, true),
        ("znver4", 128, 28, true),
        ("znver4", 512, 7, false),
        ("znver5", 128, 28, true),
        ("haswell", 128, 28, true),
        ("sapphirerapids", 128, 28, false),
    ] {
        let ops = convolved(channels, side, cpu);
        assert_eq!(ops.contains("winograd"), found, "{channels} channels of {side} x {side} on {cpu}: {ops}");
    }
}

/// Bytes take Winograd's algorithm where results are sure to be less than 2^25, and weights are few beside tiles.
#[test]
fn bytes_take_winograd_where_it_is_exact() {
    let convolved = |channels: usize, side: usize, weight: i64| {
        let (c, n) = (channels, side);
        let text = format!(
            r#"#[version = "0.0.5"]
            def @main(%x: Tensor[(1, {c}, {n}, {n}), uint8], %w: Tensor[({c}, {c}, 3, 3), int8]) {{
              nn.conv2d(%x, %w, padding=[1, 1, 1, 1], kernel_size=[3, 3], channels={c}, out_dtype="int32")
            }}"#
        );
        let module = parse_module("conv", &text).expect("legal");
        let weights = Tensor::from_i64_fn(DType::I8, &[c, c, 3, 3], |_| weight);
        let module = bind_params(&module, &[("w".into(), weights)]).expect("it has that parameter");
        let settings = Settings::new(Target::parse("llvm -mcpu=cascadelake -num-cores=1").expect("legal"));
        let passes = sequence("default", &settings).expect("there is such a pass");
        let module = passes.run(module, &mut PassContext::default()).expect("it can be built");
        let ops = reachable(&module, module.functions().map(|(_, f)| f)).into_iter().filter_map(|e| module.op_call(e));
        ops.map(|(op, ..)| op.op().name().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert!(convolved(128, 28, 100).contains("winograd"));
    // 1152 weights of 127 and bytes of 255 may be more than that.
    assert!(!convolved(128, 28, 127).contains("winograd"));
    assert!(!convolved(512, 7, 1).contains("winograd"));
}

/// A model that sees nodes before it is asked for them.
#[derive(Default)]
struct Prepared(Mutex<Vec<String>>);

impl Prepared {
    fn key(node: &NodeView) -> String {
        format!("{:?} {:?} {:?}", node.head, node.args, node.out)
    }
}

impl CostModel for Prepared {
    fn name(&self) -> &str {
        "prepared"
    }

    fn cost(&self, node: &NodeView) -> f64 {
        let prepared = self.0.lock().expect("nothing panics with the lock");
        assert!(
            matches!(node.head, Head::Tuple) || prepared.contains(&Prepared::key(node)),
            "{node:?} is asked for unannounced"
        );
        1.0
    }

    fn prepares(&self) -> bool {
        true
    }

    fn prepare(&self, nodes: &[NodeView]) {
        self.0.lock().expect("nothing panics with the lock").extend(nodes.iter().map(Prepared::key));
    }
}

#[test]
fn models_that_want_to_see_nodes_at_once() {
    let text =
        "#[version = \"0.0.5\"] def @main(%x: Tensor[(2, 3), float32]) { nn.relu(transpose(transpose(exp(%x)))) }";
    let module = parse_module("prepared", text).expect("legal");
    type Wrap = fn(Arc<dyn CostModel>) -> Arc<dyn CostModel>;
    let wraps: [Wrap; 5] = [
        |m| m,
        |m| Arc::new(Weighted::new(vec![(2.0, m), (1.0, Arc::new(Flops))])),
        |model| Arc::new(Penalized { model, ops: Vec::new() }),
        |model| Arc::new(Precision { model, dtype: DType::BF16, ignored: Vec::new() }),
        |m| Arc::new(Integers(m)),
    ];
    for wrap in wraps {
        let mut settings = Settings::new(target());
        let model = Arc::new(Prepared::default());
        settings.cost = wrap(model.clone());
        let passes = sequence("Saturate", &settings).expect("legal");
        passes.run(module.clone(), &mut PassContext::default()).expect("it runs");
        assert!(model.0.lock().expect("nothing panics with the lock").len() > 4, "{}", settings.cost.name());
    }
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
    let (same, other) = ((dense(&again, 16), dense(&again, 192)), (small, large));
    // On a machine that is too busy to time anything well, the next process tries again, and says so.
    let is_busy = model.notes().iter().any(|n| n.contains("busy"));
    assert!(
        same == other || is_busy && same.0 <= small && same.1 <= large,
        "{same:?} and {other:?}: {:?}",
        model.notes()
    );
    assert!(model.notes().iter().all(|n| n.contains("busy")), "{:?}", model.notes());
}

/// A kernel of a chain of operators on square matrices.
fn chain_price(model: &dyn CostModel, names: &[&str], n: i64) -> f64 {
    let ty = square(n);
    let none = make_attrs(op("exp"), &[]).expect("no attribute is needed");
    let call = |(i, name): (usize, &&str)| {
        let sources = vec![if i == 0 { Source::Arg(0) } else { Source::Call(i - 1) }];
        KernelCall { op: op(name), attrs: &none, sources, args: vec![ty.clone()], constant: vec![false], out: &ty }
    };
    let calls: Vec<KernelCall> = names.iter().enumerate().map(call).collect();
    let target = target();
    model.kernel(&KernelView { calls: &calls, args: std::slice::from_ref(&ty), constant: &[false], target: &target })
}

#[test]
fn whole_kernels_are_timed_as_one() {
    let model = Measured::new(Arc::new(Stopwatch::new(target(), None)));
    let alone: f64 = ["negative", "abs", "nn.relu"].iter().map(|op| chain_price(&model, &[op], 1024)).sum();
    let together = chain_price(&model, &["negative", "abs", "nn.relu"], 1024);
    // Four megabytes are read and written once instead of three times.
    assert!(together > 0.0 && together < 0.8 * alone, "{together} and {alone}: {:?}", model.notes());
    let machine = Arc::new(Broken(AtomicUsize::new(0)));
    let model = Measured::new(machine.clone());
    let estimate = chain_price(&Roofline, &["negative", "abs"], 64);
    assert_eq!(chain_price(&model, &["negative", "abs"], 64), estimate);
    assert_eq!(chain_price(&model, &["negative", "abs"], 64), estimate);
    assert_eq!(machine.0.load(Ordering::Relaxed), 1);
    assert!(model.notes()[0].contains("`negative+abs`"), "{:?}", model.notes());
}

#[test]
fn programs_take_turns() {
    let program = |text: &str| parse_module("test", &format!("#[version = \"0.0.5\"]\n{text}")).expect("legal");
    let sized = |n: usize| program(&format!("def @main(%x: Tensor[({n}, {n}), float32]) {{ nn.dense(%x, %x) }}"));
    let (small, large) = (sized(64), sized(384));
    let region = program(
        "def @main(%x: Tensor[(256, 256), float32]) {
           %0 = fn (%y: Tensor[(256, 256), float32], Primitive=1, Compiler=\"c\", global_symbol=\"r\") { exp(%y) };
           %0(%x)
         }",
    );
    let unknown = program("def @main(%x: Tensor[(?, 4), float32]) { exp(%x) }");
    let watch = Stopwatch::new(target(), None);
    let times = watch.race(&[&large, &small, &large, &unknown, &region]);
    let of = |i: usize| *times[i].as_ref().unwrap_or_else(|e| panic!("{i}: {e}"));
    assert!(of(0) > 5.0 * of(1), "{times:?}");
    // The same program is the same time.
    assert_eq!(of(0), of(2));
    assert!(of(4) > 0.0 && matches!(&times[3], Err(TimerError::Build(why)) if why.contains("extents")), "{times:?}");
    assert!(watch.race(&[&small])[0].as_ref().is_ok_and(|&s| s > 0.0));
    assert!(watch.race(&[]).is_empty());
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
    let machine: Arc<dyn Timer> = Arc::new(watch());
    let model = parse("roofline:measured", Some(&machine)).expect("measurable");
    let measured = Target { peaks: Some(peaks), ..target() };
    assert!((measured.peak(DType::F32) / f32s - 1.0).abs() < 1e-9);
    assert!(price(model.as_ref(), "nn.dense", &[square(256), square(256)]) > 0.0);
}

/// A machine that can time nothing, and counts how often it is asked.
struct Broken(AtomicUsize);

impl Timer for Broken {
    fn seconds(&self, _: &Module) -> Result<f64, TimerError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err("it is broken".into())
    }

    fn peaks(&self) -> Result<Peaks, TimerError> {
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
    let machine: Arc<dyn Timer> = machine;
    let said = parse("roofline:measured", Some(&machine)).err().expect("refused").to_string();
    assert!(said.contains("it is broken"), "{said}");
}
