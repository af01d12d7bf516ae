//! The default cost model: seconds, by the machine's peak arithmetic and bandwidth, nominal or measured.

use super::{CostModel, Head, KernelView, NodeView, fused, guess};
use crate::{
    ir::{AttrValue, Attrs, TensorType, Type},
    ops::{Class, Part, Work, inverted_bottleneck_bands, inverted_bottleneck_parts},
    target::{Peaks, Target},
    tensor::{DType, Layout},
};

/// max(operations / attainable peak, bytes / bandwidth) + the call itself.
///
/// By operators, what fuses is priced as fused: an elementwise operator mostly runs inside its producer's loop and moves little memory
/// of its own. What moves data of the running program without computing (transpose, layout_transform, concatenate) pays
/// for every byte. By kernels, nothing is guessed: a kernel pays for the arithmetic of all its operators, as far as its result
/// asks for it, and for the bytes of its arguments and its result. The shares of peak are those that the code generator's kernels reach, by layout.
#[derive(Clone, Copy, Debug, Default)]
pub struct Roofline;

/// [`Roofline`] with peaks that were measured instead of nominal ones. Its prices differ from machine to machine, and a little
/// from one measurement to another; the nominal ones don't.
#[derive(Clone, Debug)]
pub struct MeasuredRoofline {
    peaks: Peaks,
}

impl MeasuredRoofline {
    /// Prices by these peaks.
    pub fn new(peaks: Peaks) -> MeasuredRoofline {
        MeasuredRoofline { peaks }
    }
}

impl CostModel for MeasuredRoofline {
    fn name(&self) -> &str {
        "roofline:measured"
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("roofline {:?}", self.peaks))
    }

    fn cost(&self, node: &NodeView) -> f64 {
        let target = Target { peaks: Some(self.peaks.clone()), ..node.target.clone() };
        Roofline.cost(&NodeView { target: &target, ..node.clone() })
    }

    fn kernel(&self, kernel: &KernelView) -> f64 {
        let target = Target { peaks: Some(self.peaks.clone()), ..kernel.target.clone() };
        Roofline.kernel(&KernelView { target: &target, ..kernel.clone() })
    }
}

/// Seconds that a kernel takes to start: call, wake-up and barrier of the threads.
pub(super) const CALL: f64 = 1.0e-6;

/// Seconds that an operator adds to the kernel that it is fused into.
pub(super) const FUSED_CALL: f64 = 2.0e-8;

/// Seconds for an operator that only renames the axes of an array: nothing moves, but fewer are nicer.
pub(super) const RENAMED: f64 = 1.0e-9;

/// The part of a fused operator's memory traffic that it still causes: operands that are not in registers, and the cases
/// where it does not fuse after all.
const FUSED_TRAFFIC: f64 = 0.1;

/// The part of the smaller of a contraction's arithmetic and traffic that the greater does not hide.
const HIDDEN: f64 = 0.1;

/// The part of the traffic of a contraction's arguments that arithmetic does not hide: narrow arguments are better.
const READ_AGAIN: f64 = 0.5;

/// A constant of more than this share of the last cache is gone from it before the next run: the rest of the program evicts it.
const EVICTED: f64 = 0.25;

/// The share of main memory's bandwidth at which contractions read weights: each tile goes through its own part of them.
const WEIGHTS: f64 = 0.5;

/// Seconds that a contraction waits for constants which no cache keeps from one run to the next, beyond what they would take from a cache.
/// Algorithms that trade arithmetic for larger weights, such as Winograd's, pay for that here.
pub(super) fn waiting_for_weights(node: &NodeView) -> f64 {
    let target = node.target;
    let kept = EVICTED * target.timing.l3.bytes as f64 * target.cores as f64;
    let constants = node.args.iter().zip(node.constant).filter(|(_, constant)| **constant);
    let bytes: f64 = constants.filter_map(|(t, _)| Some(t.as_tensor()?.bytes()? as f64)).filter(|&b| b > kept).sum();
    let from_memory = WEIGHTS * target.timing.dram * target.cores as f64;
    (bytes / from_memory - bytes / target.bandwidth()).max(0.0)
}

/// Bytes of the arguments that are made while the program runs.
fn activations(node: &NodeView) -> f64 {
    let made = node.args.iter().zip(node.constant).filter(|(_, constant)| !**constant);
    made.filter_map(|(t, _)| t.as_tensor()?.bytes()).sum::<i64>() as f64
}

/// From so many channels in a block on, rows of a convolution's weights lie too far apart for hardware prefetchers.
const FAR_ROWS: usize = 256;

/// Shares of peak arithmetic that kernels reach.
mod share {
    /// Convolution over blocked channels (`NCHW16c`) where a block is one vector register.
    pub(super) const CONV_BLOCKED: f64 = 0.85;
    /// The same where a block takes several registers, the last of them perhaps in part.
    pub(super) const CONV_BLOCKED_WIDE: f64 = 0.75;
    /// The same of so many channels that each row of weights is read by itself.
    pub(super) const CONV_BLOCKED_FAR: f64 = 0.6;
    /// Convolution over blocked channels in matrix registers that are full: operands come from the second cache mostly.
    pub(super) const MATRIX: f64 = 0.5;
    /// Convolution with channels last: vectors along output channels, weights strided.
    pub(super) const CONV_NHWC: f64 = 0.3;
    /// Convolution with plain channels first: vectors along a row of the image, which is short in deep layers.
    pub(super) const CONV_NCHW: f64 = 0.2;
    /// Depthwise convolution does one multiply-add per element loaded.
    pub(super) const DEPTHWISE: f64 = 0.3;
    /// Matrix products whose constant operand lies in blocks of a vector register.
    pub(super) const MATMUL_PACKED: f64 = 0.7;
    /// The same with blocks of another width.
    pub(super) const MATMUL_PACKED_ODD: f64 = 0.45;
    /// Matrix products of plain operands: one of them is put in order while the program runs.
    pub(super) const MATMUL: f64 = 0.35;
    /// The same where the summed axis of a constant operand is not its last, or rows of an operand lie apart: each row of it is read by itself.
    pub(super) const MATMUL_BY_ROWS: f64 = 0.34;
    /// Both products of attention, rows of scores in the cache between them, and softmax.
    pub(super) const ATTENTION: f64 = 0.5;
    /// Normalizations by the data's own mean and variance: a few passes over rows in the first cache.
    pub(super) const NORMALIZE: f64 = 0.15;
    /// Other sums of products and windows.
    pub(super) const CONTRACT: f64 = 0.15;
    /// Reductions.
    pub(super) const REDUCE: f64 = 0.15;
    /// Elementwise arithmetic inside a kernel.
    pub(super) const ELEMENTWISE: f64 = 0.3;
    /// Operators that run by themselves in plain loops.
    pub(super) const OPAQUE: f64 = 0.03;
}

/// How much longer an operator of a dialect takes than what it is legalized to, where it is made code as it is: in generic
/// code, operand by operand.
pub(super) const UNLEGALIZED: f64 = 4.0;

/// A move that keeps whole rows together reaches the full bandwidth; one that gathers elements this share of it.
pub(super) const SCATTERED: f64 = 0.4;

impl CostModel for Roofline {
    fn name(&self) -> &str {
        "roofline"
    }

    fn fingerprint(&self) -> Option<String> {
        Some("roofline".into())
    }

    fn cost(&self, node: &NodeView) -> f64 {
        if let Some(price) = guess::node(node, |n| self.cost(n)) {
            return price;
        }
        match node.head {
            Head::Tuple | Head::Proj(_) => 0.0,
            Head::Carried { bodies } => CALL + bodies,
            Head::Op(op, attrs) => {
                let def = op.op();
                let work = def.work(attrs, node.args, node.out);
                let seconds = seconds(def.name(), def.class(), attrs, &work, node);
                match op.dialect().is_some() {
                    true => UNLEGALIZED * seconds,
                    false => seconds,
                }
            }
        }
    }

    fn kernel(&self, kernel: &KernelView) -> f64 {
        guess::kernel(kernel, |k| self.kernel(k)).unwrap_or_else(|| fused::seconds(kernel))
    }
}

fn seconds(name: &str, class: Class, attrs: &Attrs, work: &Work, node: &NodeView) -> f64 {
    let target = node.target;
    if let Some(seconds) = inverted_bottleneck(name, attrs, node) {
        return seconds;
    }
    let bytes = (work.bytes_read + work.bytes_written) / target.bandwidth();
    let arithmetic = arithmetic(name, class, attrs, work, node);
    match class {
        _ if renames_axes(name) => RENAMED,
        Class::Elementwise | Class::Broadcast => arithmetic + FUSED_TRAFFIC * bytes + FUSED_CALL,
        Class::Injective => {
            // What reads no more than it writes counts the written bytes twice: a slice of a large array is cheap.
            let moved = 2.0 * work.bytes_written / target.bandwidth();
            CALL + if scatters(name) { moved / SCATTERED } else { moved }
        }
        Class::Contract => {
            let bytes = bytes + waiting_for_weights(node);
            let hidden = HIDDEN * arithmetic.min(bytes) + READ_AGAIN * activations(node) / target.bandwidth();
            CALL + arithmetic.max(bytes) + hidden
        }
        Class::Reduce | Class::Opaque => CALL + arithmetic.max(bytes),
    }
}

/// The part of the time to write and read again what no second cache holds that a kernel of several convolutions is without.
const KEPT: f64 = 0.5;

/// The part of the second cache that has room for images from one convolution to the next. The rest of it has weights, or lies at places that too much else
/// goes to. On Granite Rapids (2 MB) MobileNet-V2 of unknown extents is as fast or faster where blocks of 192 channels at 32 x 32 are one kernel.
const HELD: f64 = 0.7;

/// How much longer the same takes by parts of an image, rows of which are computed twice.
const BY_PARTS: f64 = 1.03;

/// What the calls that an `nn.inverted_bottleneck` is made of take, by `seconds`; none of another operator.
fn by_parts(name: &str, attrs: &Attrs, node: &NodeView, seconds: &dyn Fn(&Part, &NodeView) -> f64) -> Option<f64> {
    if name != "nn.inverted_bottleneck" {
        return None;
    }
    // First arguments are images, the others weights and biases.
    let constant = [false, true];
    let of = |part: &Part| {
        let head = Head::Op(part.op, &part.attrs);
        let node =
            NodeView { head, args: &part.args, constant: &constant[..part.args.len()], out: &part.out, ..node.clone() };
        seconds(part, &node)
    };
    Some(BY_PARTS * inverted_bottleneck_parts(attrs, node.args).ok()?.iter().map(of).sum::<f64>())
}

/// The same without the traffic of images between them that the second cache does not hold: rows of these stay in it. Weights are read again for each
/// band of rows.
fn inverted_bottleneck(name: &str, attrs: &Attrs, node: &NodeView) -> Option<f64> {
    let target = node.target;
    let by_parts = by_parts(name, attrs, node, &|part, node| {
        let (op, bytes) = (part.op.op(), part.out.as_tensor().and_then(TensorType::bytes).unwrap_or(0));
        let alone = seconds(op.name(), op.class(), &part.attrs, &op.work(&part.attrs, &part.args, &part.out), node);
        // What stands between is clipped last; while one of the three convolutions reads it, the cache has to hold what it writes, too.
        match op.class() == Class::Elementwise && 2.0 * bytes as f64 > HELD * target.timing.l2.bytes as f64 {
            true => alone - 2.0 * KEPT * bytes as f64 / target.bandwidth(),
            false => alone,
        }
    })?;
    let weights: i64 = node.args.iter().skip(1).map(|w| w.as_tensor().and_then(TensorType::bytes).unwrap_or(0)).sum();
    let bands = inverted_bottleneck_bands(attrs, node.args).unwrap_or(1);
    Some(by_parts + (bands - 1) as f64 * weights as f64 / target.bandwidth())
}

/// Seconds of an operator's arithmetic at the share of peak that its kernels reach.
pub(super) fn arithmetic(name: &str, class: Class, attrs: &Attrs, work: &Work, node: &NodeView) -> f64 {
    let parts = by_parts(name, attrs, node, &|part, node| {
        let op = part.op.op();
        arithmetic(op.name(), op.class(), &part.attrs, &op.work(&part.attrs, &part.args, &part.out), node)
    });
    if let Some(seconds) = parts {
        return seconds;
    }
    let share = match class {
        Class::Elementwise | Class::Broadcast => share::ELEMENTWISE,
        Class::Injective => return 0.0,
        Class::Reduce => share::REDUCE,
        Class::Contract => contract_share(name, attrs, node),
        Class::Opaque if matches!(name, "nn.layer_norm" | "nn.instance_norm" | "nn.group_norm") => share::NORMALIZE,
        Class::Opaque => share::OPAQUE,
    };
    let factors = factor_type(attrs, node);
    let slower =
        if class == Class::Contract && are_bytes_alike(factors, node) { node.target.bytes_alike() } else { 1.0 };
    slower * work.flops / (share * node.target.peak(factors))
}

/// Whether both factors are multiplied as bytes, of one sign.
fn are_bytes_alike(factors: DType, node: &NodeView) -> bool {
    let second = node.args.get(1).and_then(Type::as_tensor);
    matches!(factors, DType::I8 | DType::U8) && second.is_some_and(|t| t.dtype == factors)
}

/// Operators that give the same elements in the same order under other extents.
pub(super) fn renames_axes(name: &str) -> bool {
    matches!(
        name,
        "reshape"
            | "expand_dims"
            | "squeeze"
            | "nn.batch_flatten"
            | "contrib_reverse_reshape"
            | "reshape_like"
            | "copy"
    )
}

/// Moves that change which elements are neighbours.
pub(super) fn scatters(name: &str) -> bool {
    matches!(
        name,
        "transpose" | "layout_transform" | "nn.space_to_depth" | "nn.depth_to_space" | "take" | "gather" | "gather_nd"
    )
}

/// The element type that decides the speed of arithmetic: of the first argument, as multiply-adds read it. Bytes are widened,
/// unless they lie in fours, as instructions for four products at once want them; to 16 bits where they lie in pairs, as Winograd's algorithm has them;
/// short floats unless they lie in pairs, and those beside weights of float32.
fn factor_type(attrs: &Attrs, node: &NodeView) -> DType {
    let first = |ty: &Type| ty.flatten().and_then(|t| t.first().map(|t| t.dtype));
    let is_wide = |t: &TensorType| t.dtype == DType::F32;
    let short = matches!(node.args.first().and_then(first), Some(DType::BF16 | DType::F16));
    if short && node.args.get(1).and_then(Type::as_tensor).is_some_and(is_wide) {
        return DType::F32;
    }
    match node.args.first().and_then(first).or_else(|| first(node.out)).unwrap_or(DType::F32) {
        DType::I8 | DType::U8 if lies_in(2, attrs) => DType::I16,
        DType::I8 | DType::U8 if !lies_in(4, attrs) => DType::I32,
        DType::I16 if !lies_in(2, attrs) => DType::I32,
        // As many multiply-adds of widened numbers as of integers, since widening takes its part.
        DType::BF16 if !lies_in(2, attrs) => DType::I32,
        dtype => dtype,
    }
}

/// Whether so many summed channels of a contraction's constant operand lie side by side, innermost.
fn lies_in(count: usize, attrs: &Attrs) -> bool {
    let ends = |field, letter: char| match attrs.get(field) {
        Some(AttrValue::Str(s)) => s.strip_suffix(letter).is_some_and(|s| {
            let digits = s.len() - s.trim_end_matches(|c: char| c.is_ascii_digit()).len();
            s[s.len() - digits..].parse() == Ok(count)
        }),
        _ => false,
    };
    ends("kernel_layout", 'i') || ends("weight_layout", 'c')
}

fn contract_share(name: &str, attrs: &Attrs, node: &NodeView) -> f64 {
    if name.contains("conv") {
        return conv_share(attrs, node);
    }
    match name {
        "nn.contrib_dense_pack" => {
            let block = match attrs.get("weight_layout") {
                Some(AttrValue::Str(s)) => s.as_str().parse::<Layout>().ok().and_then(|l| l.block('N')),
                _ => None,
            };
            match block {
                Some((_, block)) if fits_register(block as usize, attrs, node) => share::MATMUL_PACKED,
                Some(_) => share::MATMUL_PACKED_ODD,
                None => share::MATMUL,
            }
        }
        "nn.matmul"
            if node.constant.get(1) == Some(&true) && attrs.get("transpose_b") != Some(&AttrValue::Bool(true)) =>
        {
            share::MATMUL_BY_ROWS
        }
        "nn.attention" => share::ATTENTION,
        // Of two operands it is a product of matrices whose rows need not lie one behind the other.
        "einsum" if matches!(node.args.first(), Some(Type::Tuple(t)) if t.len() == 2) => share::MATMUL_BY_ROWS,
        _ if name.contains("dense") || name.contains("matmul") => share::MATMUL,
        _ => share::CONTRACT,
    }
}

fn conv_share(attrs: &Attrs, node: &NodeView) -> f64 {
    let layout = |field| match attrs.get(field) {
        Some(AttrValue::Str(s)) if !s.is_empty() => Some(s.as_str()),
        _ => None,
    };
    let layout = layout("out_layout").or_else(|| layout("data_layout")).unwrap_or_default();
    let groups = attrs.get("groups").and_then(AttrValue::as_int).unwrap_or(1);
    let dtype = factor_type(attrs, node);
    let by_layout = match channel_block(layout) {
        // A row of a tile is 64 bytes of the operand's channels, or of the pixels of a window's row with theirs.
        Some(columns) if node.target.multiplies_tiles_of(dtype) && groups == 1 => {
            let text = |field| match attrs.get(field) {
                Some(AttrValue::Str(s)) => s.as_str(),
                _ => "",
            };
            let width = match attrs.get("kernel_size") {
                Some(AttrValue::List(sizes)) if text("kernel_layout").starts_with("OHWI") => {
                    sizes.last().and_then(AttrValue::as_int).unwrap_or(1)
                }
                _ => 1,
            };
            let block = channel_block(text("data_layout")).unwrap_or(1) * width as usize;
            let filled = columns as f64 / columns.next_multiple_of(16) as f64;
            share::MATRIX * filled * ((block * dtype.bytes()) as f64 / 64.0).min(1.0)
        }
        Some(block) => {
            let (block, lanes) = (block.max(1), lanes_of_sums(attrs, node));
            let filled = block as f64 / block.next_multiple_of(lanes) as f64;
            filled
                * match block {
                    _ if block <= lanes => share::CONV_BLOCKED,
                    FAR_ROWS.. => share::CONV_BLOCKED_FAR,
                    _ => share::CONV_BLOCKED_WIDE,
                }
        }
        None if layout.ends_with('C') => share::CONV_NHWC,
        None => share::CONV_NCHW,
    };
    match groups {
        1 => by_layout,
        // Each group has few channels of its own: the register file is not filled by sums of one output.
        _ => by_layout * share::DEPTHWISE,
    }
}

/// The block of the channels in a layout such as `NCHW16c`: 16.
fn channel_block(layout: &str) -> Option<usize> {
    let digits: String = layout.chars().filter(char::is_ascii_digit).collect();
    layout.ends_with('c').then(|| digits.parse().ok()).flatten()
}

fn fits_register(block: usize, attrs: &Attrs, node: &NodeView) -> bool {
    block == lanes_of_sums(attrs, node)
}

/// Sums that a register holds: those of narrow factors are 32 bits wide.
fn lanes_of_sums(attrs: &Attrs, node: &NodeView) -> usize {
    let sums = match factor_type(attrs, node) {
        DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::I32,
        DType::BF16 => DType::F32,
        other => other,
    };
    node.target.lanes(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{make_attrs, op};

    fn target() -> Target {
        Target::parse("llvm -mcpu=x86-64-v4 -num-cores=1").expect("legal")
    }

    fn price(name: &str, attrs: &[(&str, AttrValue)], args: &[Type]) -> f64 {
        let op = op(name);
        let given: Vec<_> = attrs.iter().map(|(n, v)| ((*n).into(), v.clone())).collect();
        let attrs = make_attrs(op, &given).expect("fits the schema");
        let out = op.op().infer(&attrs, args).expect("well typed");
        let constant = vec![false; args.len()];
        let target = target();
        Roofline.cost(&NodeView { head: Head::Op(op, &attrs), args, constant: &constant, out: &out, target: &target })
    }

    #[test]
    fn more_work_costs_more() {
        let f = |n: i64| {
            price("nn.dense", &[], &[Type::tensor(&[n, 512], DType::F32), Type::tensor(&[512, 512], DType::F32)])
        };
        assert!(f(64) > f(1));
        assert!(f(1024) > 10.0 * f(64));
    }

    #[test]
    fn fused_arithmetic_is_cheap() {
        let big = Type::tensor(&[64, 56, 56], DType::F32);
        let relu = price("nn.relu", &[], std::slice::from_ref(&big));
        assert!(relu < 1.0e-4 && relu > FUSED_CALL);
    }

    #[test]
    fn blocks_that_fill_a_register_are_best() {
        assert_eq!(channel_block("NCHW16c"), Some(16));
        assert_eq!(channel_block("NCHW"), None);
        assert_eq!(channel_block("NHWC"), None);
    }
}
