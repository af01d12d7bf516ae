//! What regions take, as a model of the library says. Where the user has prices measured, whoever chooses times regions instead.

use std::sync::OnceLock;

use super::translate;
use crate::{
    partition::Region,
    runtime::onednn::{Graph, Kind, Step, ValueId, What},
    target::Target,
    tensor::DType,
};

/// Seconds that a call of a region takes beyond what its primitives do: memory is handed over, threads are woken.
pub(super) const CALL: f64 = 2e-6;

/// Seconds that a primitive takes to start: arguments are looked up, threads are woken.
const PRIMITIVE: f64 = 2e-6;

/// Shares of the processor's peak that the library's kernels are taken to reach, estimates that no fit stands behind: convolutions of
/// floats, GEMMs, int8 GEMMs, and depthwise convolutions.
const CONVOLUTION: f64 = 0.65;
const MATRIX: f64 = 0.75;
const BYTES: f64 = 0.8;
const DEPTHWISE: f64 = 0.15;

/// Bytes per second and core, of what mostly lies in caches.
const CACHED: f64 = 20e9;

/// Elements per second and core of own integer code.
const INTEGERS: f64 = 1e9;

/// Seconds to bring so many bytes into the library's layout, or back: they are read and written by a primitive.
pub(super) fn transfer(bytes: u64) -> f64 {
    PRIMITIVE + 2.0 * bytes as f64 / (CACHED * host().cores as f64)
}

fn host() -> &'static Target {
    static HOST: OnceLock<Target> = OnceLock::new();
    HOST.get_or_init(Target::host)
}

/// Seconds of a region; `None` where it is none that the library takes.
pub(super) fn seconds(region: &Region<'_>) -> Option<f64> {
    let mut graph = translate::graph(region).ok()?;
    graph.fuse();
    let target = region.machine().unwrap_or(host());
    Some(graph.steps.iter().map(|s| step(&graph, s, target)).sum())
}

fn elements(g: &Graph, v: ValueId) -> f64 {
    g.shape(v).iter().product::<i64>() as f64
}

fn bytes(g: &Graph, v: ValueId) -> f64 {
    elements(g, v) * g.dtype(v).bytes() as f64
}

fn step(g: &Graph, s: &Step, target: &Target) -> f64 {
    let moved: f64 = s.all_reads().into_iter().chain([s.makes]).map(|v| bytes(g, v)).sum();
    let memory = moved / (CACHED * target.cores as f64);
    match &s.what {
        // Another look at the same memory; where it must be copied after all, the next primitive does it.
        What::Permute(_) | What::Reshape => 0.0,
        What::Integer(_) => PRIMITIVE + elements(g, s.makes) / (INTEGERS * target.cores as f64),
        What::Primitive(kind, _) | What::Exact(kind, _) => PRIMITIVE + arithmetic(g, kind, s, target).max(memory),
    }
}

/// Seconds of a primitive's multiplications.
fn arithmetic(g: &Graph, kind: &Kind, s: &Step, target: &Target) -> f64 {
    let (made, data) = (g.shape(s.makes), g.dtype(s.reads.first().copied().unwrap_or(s.makes)));
    let products = |of_each: f64| 2.0 * elements(g, s.makes) * of_each;
    let weight = |i: usize| g.shape(s.reads[i]);
    let (operations, share) = match kind {
        Kind::Convolution(_) | Kind::Deconvolution(_) => {
            let channels = made[1] as f64;
            let of_each = elements(g, s.reads[1]) / channels;
            let grouped = weight(1).len() > made.len();
            let narrow = grouped && weight(1)[1] * weight(1)[2] == 1;
            let share = match data {
                _ if narrow => DEPTHWISE,
                DType::U8 | DType::I8 => BYTES,
                _ => CONVOLUTION,
            };
            match kind {
                // Every element of the data meets every tap.
                Kind::Deconvolution(_) => {
                    (2.0 * elements(g, s.reads[0]) * elements(g, s.reads[1]) / weight(1)[1] as f64, share)
                }
                _ => (products(of_each), share),
            }
        }
        Kind::InnerProduct | Kind::Matmul => {
            let inner = *g.shape(s.reads[0]).last().unwrap_or(&1) as f64;
            (products(inner), if data.bytes() == 1 { BYTES } else { MATRIX })
        }
        Kind::Pool { kernel, .. } => (elements(g, s.makes) * kernel.iter().product::<i64>() as f64, 0.25),
        Kind::Softmax { .. } => (elements(g, s.makes) * 20.0, 0.25),
        Kind::Eltwise(_) | Kind::Binary(_) | Kind::Concat { .. } | Kind::Convert => (elements(g, s.makes), 0.25),
    };
    operations / (target.peak(data) * share)
}
