//! The short run of what `make fuzz` does at length: every file of the corpus, attacks on limits, and a few thousand changed
//! files a reader; the same on every run. No input may panic, take much longer than others, or take memory that it does
//! not pay for in bytes.
#![allow(unsafe_code, reason = "an allocator that counts")]
#![allow(unreachable_pub, reason = "the modules are also those of a library")]

#[path = "../fuzz/src/mutate.rs"]
mod mutate;
#[path = "common/same.rs"]
mod same;
#[path = "../fuzz/src/targets.rs"]
mod targets;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use mutate::Random;
use targets::{TARGETS, Target, named};

/// What an input may take of memory, besides some hundred times its own size.
const MEMORY: usize = 256 << 20;
/// What a byte may take: a tree's node for a sign of the text, and the same program a few times over.
const MEMORY_PER_BYTE: usize = 20_000;
/// What an input may take of time, in an unoptimized build on a busy machine.
const TIME: Duration = Duration::from_secs(20);

/// Counts what each thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn count(taken: usize, freed: usize) {
    // While a thread ends, its counters are gone already.
    let _ = HELD.try_with(|held| {
        let (now, peak) = held.get();
        let now = now.saturating_add(taken).saturating_sub(freed);
        held.set((now, peak.max(now)));
    });
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as the caller says.
        unsafe { System.dealloc(p, layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as the caller says.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a target on one input; what is wrong is reported with the input's name.
fn check(target: &Target, what: &str, input: &[u8]) {
    if let Some(wrong) = fault(target, what, input) {
        panic!("{wrong}");
    }
}

/// What is wrong with a target's way with an input.
fn fault(target: &Target, what: &str, input: &[u8]) -> Option<String> {
    let (start, before) = (Instant::now(), HELD.with(|h| h.get().0));
    HELD.with(|h| h.set((before, before)));
    let outcome = std::panic::catch_unwind(|| (target.run)(input));
    let taken = HELD.with(|h| h.get().1) - before;
    let limit = MEMORY + MEMORY_PER_BYTE * input.len().min(1 << 16);
    let wrong = match outcome {
        Err(_) => "it panicked".to_owned(),
        Ok(()) if taken > limit => format!("it took {} MB", taken >> 20),
        Ok(()) if start.elapsed() > TIME => format!("it took {:?}", start.elapsed()),
        Ok(()) => return None,
    };
    let kept = std::env::temp_dir().join(format!("resat-{}-{}.input", target.name, std::process::id()));
    fs::write(&kept, input).expect("the input can be kept");
    Some(format!("{}: {what}: {wrong}; the input is kept as {}", target.name, kept.display()))
}

fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
    let mut files: Vec<_> = fs::read_dir(&dir)
        .expect("the corpus is there")
        .map(|e| e.expect("an entry can be read").path())
        .map(|p| (p.display().to_string(), fs::read(&p).expect("a file can be read")))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files
}

/// So many changed files a reader; `RESAT_FUZZ` says otherwise.
fn rounds() -> usize {
    std::env::var("RESAT_FUZZ").ok().map_or(2000, |n| n.parse().expect("RESAT_FUZZ is a number"))
}

/// On a stack such as main threads have: test threads have less.
fn on_a_large_stack(f: impl FnOnce() + Send) {
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().stack_size(8 << 20);
        let done = thread.spawn_scoped(s, f).expect("a thread starts").join();
        done.unwrap_or_else(|why| std::panic::resume_unwind(why));
    });
}

fn changed(name: &str) {
    let target = named(name);
    on_a_large_stack(|| {
        let files = corpus(target);
        for (what, bytes) in &files {
            check(target, what, bytes);
        }
        let others: Vec<Vec<u8>> = files.into_iter().map(|(_, bytes)| bytes).collect();
        for round in 0..rounds() {
            let mut random = Random(round as u64);
            let mut input = others[random.below(others.len())].clone();
            mutate::change(target.format, &mut input, &others, &mut random);
            check(target, &format!("round {round}"), &input);
        }
    });
}

#[test]
fn changed_texts() {
    changed("text");
}

#[test]
fn changed_json() {
    changed("json");
}

#[test]
fn changed_parameter_files() {
    changed("params");
}

#[test]
fn changed_archives() {
    changed("npz");
}

#[test]
fn changed_keras_files() {
    changed("keras");
}

#[test]
fn changed_keras_configurations() {
    changed("keras_config");
}

#[test]
fn changed_tflite_models() {
    changed("tflite");
}

#[test]
fn every_target_has_a_test_and_a_corpus() {
    let names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
    assert_eq!(names, ["text", "json", "params", "onnx", "npz", "keras", "keras_config", "tflite"]);
    TARGETS.iter().for_each(|t| drop(corpus(t)));
}

/// Nestings of all kinds, far deeper than any stack.
#[test]
fn nested_texts() {
    let text = |s: String| check(named("text"), &s[..s.len().min(40)], s.as_bytes());
    on_a_large_stack(|| {
        for (open, close) in mutate::NESTS {
            for n in [100, 3000] {
                text(format!("{}1{}", open.repeat(n), close.repeat(n)));
                text(format!("fn (%x: {}int32{}) {{ %x }}", open.repeat(n), close.repeat(n)));
                text(format!("{}{}", open.repeat(n), "x=1"));
            }
        }
        text(format!("#[version = \"0.0.5\"]\n{}", "def @f() { 1 }\n".repeat(2000)));
        text(format!("#[version = \"0.0.5\"]\ntype A {{ {} }}", "C(A), ".repeat(2000)));
        text(format!("#[version = \"0.0.5\"]\n#[metadata]\n{}", "[".repeat(100_000)));
    });
}

/// A few bytes that name huge things.
#[test]
fn huge_numbers() {
    const BIG: &str = "9223372036854775807";
    let mut wrong = Vec::new();
    let mut text = |s: String| wrong.extend(fault(named("text"), &s[..s.len().min(300)], s.as_bytes()));
    on_a_large_stack(|| {
        for call in [
            "reshape(%x, newshape=[B, B])",
            "reshape(%x, newshape=[-1, B])",
            "reshape(%x, newshape=[-4, B, -1])",
            "zeros(shape=[B, B], dtype=\"float32\")",
            "full(1f, shape=[B, 2, 0], dtype=\"int8\")",
            "tile(%x, reps=[B, B])",
            "repeat(%x, repeats=B, axis=0)",
            "broadcast_to(%x, shape=[B, B, 2, 3])",
            "split(%x, indices_or_sections=B, axis=0)",
            "split(%x, indices_or_sections=[B], axis=0)",
            "expand_dims(%x, axis=0, num_newaxis=B)",
            "one_hot(1, 1f, 0f, depth=B, axis=-1, dtype=\"float32\")",
            "nn.pad(%x, 0f, pad_width=[[B, B], [B, 0]])",
            "strided_slice(%x, begin=[-B], end=[B], strides=[B])",
            "strided_slice(%x, begin=[-B], end=[B], strides=[-1])",
            "nn.dense(%x, %x, units=B)",
            "arange(0, B, 1, start=0, stop=B, step=1, dtype=\"int64\")",
            "squeeze(%x, axis=[B])",
            "transpose(%x, axes=[-B, B])",
            "%x.B",
            "topk(%x, k=B)",
            "nn.conv2d(%y, %y, padding=[B, B, B, B], strides=[1, 1], dilation=[B, B])",
            "nn.conv2d(%y, %y, padding=[1, 1], strides=[0, 0], kernel_size=[B, B], channels=B)",
            "nn.max_pool2d(%y, pool_size=[B, B], padding=[B, B, B, B], strides=[1, 1])",
            "nn.avg_pool2d(%y, pool_size=[2, 2], strides=[0, 0], dilation=[B, B])",
            "nn.upsampling(%y, scale_h=1e300f64, scale_w=1e300f64)",
            "image.resize2d(%y, size=[B, B])",
            "nn.space_to_depth(%y, block_size=B)",
            "nn.depth_to_space(%y, block_size=B)",
            "nn.conv2d_transpose(%y, %y, strides=[B, B], output_padding=[B, B], channels=B)",
            "nn.batch_to_space_nd(%y, block_shape=[B, B], crops=[[B, B], [B, B]])",
            "nn.space_to_batch_nd(%y, block_shape=[B, B], paddings=[[B, B], [B, B]])",
            "layout_transform(%y, src_layout=\"NCHW\", dst_layout=\"NCHWBc\")",
            "layout_transform(%y, src_layout=\"NCHW\", dst_layout=\"NCHW0c\")",
            "meshgrid((%z, %z), indexing=\"ij\")",
            "concatenate((%z, %z, %w))",
            "stack((%z, %z), axis=B)",
            "matrix_set_diag(%x, %x, k1=-B, k2=B)",
            "nn.batch_matmul(%w, %w)",
            "reverse_reshape(%x, newshape=[B, -1, B])",
            "sum(%w, axis=[B, -B])",
            "reshape(%w, newshape=[-1])",
            "nn.batch_flatten(%w)",
            "ndarray_size(%w)",
            "cumsum(%w)",
        ] {
            let call = call.replace('B', BIG);
            text(format!(
                "fn (%x: Tensor[(2, 3), float32], %y: Tensor[(1, 4, 4, 4), float32], %z: Tensor[({BIG}), int8], %w: Tensor[({BIG}, {BIG}, 2), float64]) {{ {call} }}"
            ));
        }
        text(format!("fn (%x: Tensor[({}), int8]) {{ %x }}", "999999999, ".repeat(5000)));
        text(format!("{}i64", "9".repeat(100_000)));
        text(format!("1e{}f", "9".repeat(100_000)));
        text(format!("meta[relay.Constant][{}]", "9".repeat(30)));
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Archives that unpack to more than they are.
#[test]
fn archives_that_grow() {
    let npz = |what: &str, bytes: &[u8]| check(named("npz"), what, bytes);
    // Entries that claim one another's bytes: the directory names the same entry many times over.
    let zeros = vec![0u8; 1 << 20];
    let one = targets::stored(&[("x.npy", &zeros)]);
    let start = one.windows(4).position(|w| w == b"PK\x01\x02").expect("there is a directory");
    let end = one.windows(4).position(|w| w == b"PK\x05\x06").expect("it has an end");
    let mut directory = Vec::new();
    for i in 0..5000u32 {
        let mut entry = one[start..end].to_vec();
        let name = format!("{i:05}");
        let n = entry.len() - 5;
        entry[n..].copy_from_slice(name.as_bytes());
        directory.extend(entry);
    }
    let mut bomb = [&one[..start], &directory, &one[end..]].concat();
    let n = bomb.len() - 22;
    for at in [n + 8, n + 10] {
        bomb[at..at + 2].copy_from_slice(&5000u16.to_le_bytes());
    }
    bomb[n + 12..n + 16].copy_from_slice(&(directory.len() as u32).to_le_bytes());
    npz("overlapping entries", &bomb);
    // Headers that promise more than there is.
    for shape in
        ["(9223372036854775807, 2)", "(1000000000000,)", "(-1,)", "(0, 9223372036854775807, 9223372036854775807)"]
    {
        for order in ["True", "False"] {
            let dict = format!("{{'descr': '<f4', 'fortran_order': {order}, 'shape': {shape}, }}\n");
            let npy =
                [&b"\x93NUMPY\x01\x00"[..], &(dict.len() as u16).to_le_bytes(), dict.as_bytes(), &[0; 8]].concat();
            npz(shape, &npy);
        }
    }
    npz("a header of 4 GB", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{");
}
