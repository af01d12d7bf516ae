//! What whole kernels take by the roofline: arithmetic as far as the result asks for it, and memory traffic of arguments and
//! result alone.

use super::{
    KernelCall, KernelView, Source,
    roofline::{
        CALL, FUSED_CALL, RENAMED, SCATTERED, UNLEGALIZED, arithmetic, renames_axes, scatters, waiting_for_weights,
    },
};
use crate::{
    ir::{TensorType, Type},
    ops::Class,
};

/// What a kernel moves and how much of each call it computes.
pub(super) struct Traffic {
    /// Bytes read whose neighbours are read next.
    pub(super) read: f64,
    /// Bytes read by way of an operator that changes which elements are neighbours.
    pub(super) gathered: f64,
    /// Bytes written.
    pub(super) written: f64,
    /// By call: the share of its result's elements that is computed.
    pub(super) shares: Vec<f64>,
}

/// Number of elements; unknown extents count as 1.
fn elements(t: &TensorType) -> f64 {
    t.shape.iter().map(|d| d.known().unwrap_or(1) as f64).product()
}

fn all_elements(ty: &Type) -> f64 {
    ty.flatten().map_or(0.0, |ts| ts.iter().map(elements).sum())
}

/// Bytes; of each tensor at most so many elements.
fn bytes(ty: &Type, most: f64) -> f64 {
    let of = |t: &TensorType| elements(t).min(most) * t.dtype.bytes() as f64;
    ty.flatten().map_or(0.0, |ts| ts.iter().map(of).sum())
}

/// Whether each element of the result reads at most one of each argument.
fn reads_pointwise(call: &KernelCall) -> bool {
    call.op.op().class() <= Class::Injective
}

impl Traffic {
    pub(super) fn of(kernel: &KernelView) -> Traffic {
        let calls = kernel.calls;
        let result = calls.len() - 1;
        // By call: elements of its result that are computed; and whether they are asked for out of order.
        let mut wanted = vec![0.0f64; calls.len()];
        let mut strided: Vec<bool> = calls.iter().map(|c| scatters(c.op.op().name())).collect();
        wanted[result] = all_elements(calls[result].out);
        let mut read = vec![0.0f64; kernel.args.len()];
        let mut gathered = vec![false; kernel.args.len()];
        for (i, call) in calls.iter().enumerate().rev() {
            // A slice of what is computed within asks for no more than its own elements. What a larger result reads again and
            // again is computed once all the same: kernels store it where that is dear.
            let most = if reads_pointwise(call) { wanted[i] } else { f64::INFINITY };
            let work = call.op.op().work(call.attrs, &call.args, call.out);
            let all: f64 = call.args.iter().map(|t| bytes(t, f64::INFINITY)).sum();
            // Contractions state what they read; it need not be each argument once.
            let again = if reads_pointwise(call) || all == 0.0 { 1.0 } else { work.bytes_read / all };
            let mut sources: Vec<&Source> = call.sources.iter().collect();
            while let Some(source) = sources.pop() {
                match source {
                    Source::Arg(a) => {
                        read[*a] = read[*a].max(again * bytes(&kernel.args[*a], most));
                        gathered[*a] |= strided[i];
                    }
                    Source::Call(c) => {
                        wanted[*c] = wanted[*c].max(all_elements(calls[*c].out).min(most));
                        strided[*c] |= strided[i];
                    }
                    Source::Const(_) => {}
                    Source::Tuple(fields) => sources.extend(fields),
                }
            }
        }
        let share = |(call, wanted): (&KernelCall, f64)| match all_elements(call.out) {
            0.0 => 0.0,
            all => wanted / all,
        };
        let sum = |is: bool| read.iter().zip(&gathered).filter(|(_, g)| **g == is).map(|(b, _)| *b).sum::<f64>();
        Traffic {
            read: sum(false),
            gathered: sum(true),
            written: bytes(kernel.out(), f64::INFINITY),
            shares: calls.iter().zip(wanted).map(share).collect(),
        }
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> f64 {
        self.read + self.gathered + self.written
    }
}

/// The part of the smaller of arithmetic and traffic that counts: of kernels that take the same, the one that does less is better. Where
/// extents are unknown, it is the one that is faster at small ones.
const SMALLER: f64 = 0.01;

/// max(arithmetic of all calls / attainable peaks, bytes of arguments and result / bandwidth) + the call itself.
pub(super) fn seconds(kernel: &KernelView) -> f64 {
    let is_code = |c: &&KernelCall| !renames_axes(c.op.op().name());
    let coded = kernel.calls.iter().filter(is_code).count();
    // What only renames axes becomes no code; a kernel of nothing else is its argument.
    if coded == 0 {
        return RENAMED;
    }
    let traffic = Traffic::of(kernel);
    let nodes = kernel.nodes().zip(kernel.calls).zip(&traffic.shares);
    let compute: f64 = nodes
        .filter(|((_, call), _)| is_code(call))
        .map(|((node, call), share)| {
            let work = call.op.op().work(call.attrs, &call.args, call.out);
            share * arithmetic(call.op.op().name(), call.op.op().class(), call.attrs, &work, &node)
        })
        .sum();
    let moves = kernel.calls.iter().any(|c| scatters(c.op.op().name()));
    let written = if moves { traffic.written / SCATTERED } else { traffic.written };
    let contractions = kernel.nodes().zip(kernel.calls).filter(|(_, call)| call.op.op().class() == Class::Contract);
    let waiting: f64 = contractions.map(|(node, _)| waiting_for_weights(&node)).sum();
    let moved = (traffic.read + traffic.gathered / SCATTERED + written) / kernel.target.bandwidth() + waiting;
    let seconds = CALL + compute.max(moved) + SMALLER * compute.min(moved) + FUSED_CALL * (coded - 1) as f64;
    let of_dialect = kernel.calls.iter().any(|c| c.op.dialect().is_some());
    if of_dialect { UNLEGALIZED * seconds } else { seconds }
}
