//! Operators of detection and of sampling images, on values that are known: from their definitions, or from other operators.

use crate::common::difference;
use resat::{
    ir::{AttrValue, Name},
    loops::{Builder, Operand, eval_stages},
    ops,
    tensor::{DType, Tensor, Value},
};

type Given<'a> = &'a [(&'a str, AttrValue)];

/// The results of a call, by evaluation; those of its tensor expressions must be the same.
fn call(name: &str, attrs: Given<'_>, args: &[Tensor]) -> Vec<Tensor> {
    let id = ops::lookup(name).expect("in the table");
    let given: Vec<(Name, AttrValue)> = attrs.iter().map(|(n, v)| (Name::from(*n), v.clone())).collect();
    let attrs = ops::make_attrs(id, &given).unwrap_or_else(|e| panic!("{name}: {e}"));
    let values: Vec<Value> = args.iter().cloned().map(Value::from).collect();
    let out = id.op().eval(&attrs, &values).unwrap_or_else(|e| panic!("{name}: {e}")).flatten();
    let mut b = Builder::new();
    let extents = |t: &Tensor| t.shape().iter().map(|&n| n as i64).collect::<Vec<_>>();
    let operands: Vec<Operand> = args.iter().map(|t| b.arg(&extents(t), t.dtype()).into()).collect();
    let lowered = id.op().lower(&attrs, &operands, &mut b).unwrap_or_else(|e| panic!("{name}: {e}"));
    let found = eval_stages(&b.finish_with(&lowered), args).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (a, b) in out.iter().zip(&found) {
        assert_eq!(difference(a, b), None, "{name}: evaluation against expressions");
    }
    out
}

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(shape, values)
}

fn ints(shape: &[usize], values: &[i32]) -> Tensor {
    Tensor::from_slice(shape, values)
}

fn near(found: &Tensor, wanted: &[f32]) {
    let wanted = floats(found.shape(), wanted);
    assert_eq!(difference(found, &wanted), None, "{:?}", found.to_f64_vec());
}

fn list(values: &[f64]) -> AttrValue {
    AttrValue::List(values.iter().map(|&v| v.into()).collect())
}

/// Five boxes of three classes: (class, score, corners).
const BOXES: [f32; 30] = [
    0.0, 0.8, 1.0, 20.0, 25.0, 45.0, //
    1.0, 0.7, 30.0, 60.0, 50.0, 80.0, //
    0.0, 0.4, 4.0, 21.0, 19.0, 40.0, //
    2.0, 0.9, 35.0, 61.0, 52.0, 79.0, //
    1.0, 0.5, 100.0, 60.0, 70.0, 110.0,
];

fn suppress(valid: i32, most: i32, bound: f32, attrs: Given<'_>) -> Vec<Tensor> {
    let args = [
        floats(&[1, 5, 6], &BOXES),
        ints(&[1], &[valid]),
        ints(&[1, 5], &[0, 1, 3, 4, -1]),
        ints(&[], &[most]),
        floats(&[], &[bound]),
    ];
    call("vision.non_max_suppression", attrs, &args)
}

#[test]
fn better_boxes_suppress_others() {
    let force = ("force_suppress", AttrValue::from(true));
    let places = |found: Vec<Tensor>| (found[0].to_i64_vec(), found[1].to_i64_vec());
    // The best box takes the second of another class with it; the best of class 0 the other of class 0.
    assert_eq!(places(suppress(4, -1, 0.45, std::slice::from_ref(&force))), (vec![4, 0, -1, -1, -1], vec![2]));
    // Classes by themselves: the box of class 1 stays.
    assert_eq!(places(suppress(4, -1, 0.45, &[])), (vec![4, 0, 1, -1, -1], vec![3]));
    assert_eq!(places(suppress(4, 1, 0.45, &[])), (vec![4, -1, -1, -1, -1], vec![1]));
    assert_eq!(places(suppress(4, 0, 0.45, &[])), (vec![-1; 5], vec![0]));
    assert_eq!(places(suppress(0, -1, 0.45, &[])), (vec![-1; 5], vec![0]));
    assert_eq!(places(suppress(4, -1, 0.45, &[("top_k", 1.into())])), (vec![4, -1, -1, -1, -1], vec![1]));
    // Without a threshold all stays, in the order given.
    assert_eq!(places(suppress(4, -1, 0.0, &[])), (vec![0, 1, 3, 4, -1], vec![4]));

    let boxes = ("return_indices", AttrValue::from(false));
    let scores = |found: &Tensor| (0..5).map(|k| found.get_f64(k * 6 + 1) as f32).collect::<Vec<_>>();
    assert_eq!(scores(&suppress(4, -1, 0.45, &[force.clone(), boxes.clone()])[0]), [0.9, 0.8, -1.0, -1.0, -1.0]);
    // What is gone keeps its place, unless it is to go to the bottom.
    assert_eq!(scores(&suppress(5, -1, 0.3, &[force.clone(), boxes.clone()])[0]), [0.9, 0.8, -1.0, 0.5, -1.0]);
    let compact = ("invalid_to_bottom", AttrValue::from(true));
    assert_eq!(scores(&suppress(5, -1, 0.3, &[force, boxes, compact])[0]), [0.9, 0.8, 0.5, -1.0, -1.0]);
}

#[test]
fn boxes_that_count_come_first() {
    let found = call("vision.get_valid_counts", &[], &[floats(&[1, 5, 6], &BOXES), floats(&[], &[0.6])]);
    assert_eq!(found[0].to_i64_vec(), [3]);
    assert_eq!(found[2].to_i64_vec(), [0, 1, 3, -1, -1]);
    assert_eq!((0..5).map(|k| found[1].get_f64(k * 6)).collect::<Vec<_>>(), [0.0, 1.0, 2.0, -1.0, -1.0]);
}

#[test]
fn classes_are_suppressed_by_themselves() {
    let boxes = [0.0, 0.0, 0.3, 0.3, 0.5, 0.5, 0.4, 0.4, 0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 0.9, 0.9, 0.5, 0.5, 1.0, 1.0];
    let scores = [0.1, 0.2, 0.6, 0.3, 0.9, 0.8, 0.2, 0.6, 0.3, 0.9];
    let args = |most: i32, bound: f32| {
        [
            floats(&[1, 5, 4], &boxes),
            floats(&[1, 2, 5], &scores),
            ints(&[], &[most]),
            floats(&[], &[bound]),
            floats(&[], &[0.4]),
        ]
    };
    let name = "vision.all_class_non_max_suppression";
    let all = call(name, &[], &args(2, 0.8));
    assert_eq!(all[1].to_i64_vec(), [4]);
    assert_eq!(all[0].to_i64_vec()[..12], [0, 0, 4, 0, 0, 2, 0, 1, 4, 0, 1, 0]);
    let each = call(name, &[("output_format", "tensorflow".into())], &args(0, 0.3));
    assert_eq!(each[2].to_i64_vec(), [4]);
    assert_eq!(each[0].to_i64_vec()[..8], [0, 4, 0, 2, 1, 4, 1, 0]);
    near(&each[1], &[0.9, 0.6, 0.9, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn the_best_of_all_classes_are_kept() {
    // Two boxes that are the same, and one apart; the first class is the background.
    let boxes = floats(&[1, 3, 4], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    let scores = floats(&[1, 3, 3], &[0.9, 0.2, 0.7, 0.9, 0.8, 0.6, 0.9, 0.3, 0.1]);
    let attrs = [
        ("max_detections_per_class", 2.into()),
        ("max_detections", 4.into()),
        ("num_classes", 2.into()),
        ("iou_threshold", 0.5.into()),
        ("score_threshold", 0.15.into()),
    ];
    let found = call("vision.regular_non_max_suppression", &attrs, &[boxes, scores]);
    near(&found[1], &[0.0, 1.0, 0.0, 0.0]);
    near(&found[2], &[0.8, 0.7, 0.3, 0.0]);
    assert_eq!(found[3].to_i64_vec(), [3]);
    assert_eq!(found[0].to_f64_vec()[8..], [2.0, 2.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn predictions_move_anchors() {
    let scores = floats(&[1, 3, 3], &[0.2, 0.5, 0.3, 0.25, 0.3, 0.45, 0.7, 0.1, 0.2]);
    let moves = floats(&[1, 12], &[0.1, -0.2, 0.3, 0.2, 0.2, 0.4, 0.5, -0.3, 0.7, -0.2, -0.4, -0.8]);
    let anchors = [-0.1, -0.1, 0.1, 0.1, -0.2, -0.2, 0.2, 0.2, 1.2, 1.2, 1.5, 1.5];
    let args = [scores, moves, floats(&[1, 3, 4], &anchors)];
    let found = call("vision.multibox_transform_loc", &[], &args);
    assert_eq!(found[1].to_i64_vec(), [3]);
    let attrs = [("return_indices", false.into())];
    let rest = [found[1].clone(), found[0].clone(), ints(&[], &[-1]), floats(&[], &[0.5])];
    let kept = call("vision.non_max_suppression", &attrs, &[&found[..1], &rest[..]].concat());
    let wanted = [
        [1.0, 0.7, 0.0, 0.0, 0.10818365, 0.10008108],
        [0.0, 0.45, 1.0, 1.0, 1.0, 1.0],
        [0.0, 0.3, 0.0, 0.0, 0.22903419, 0.20435292],
    ];
    near(&kept[0], &wanted.concat());
}

#[test]
fn proposals_repeat_until_there_are_enough() {
    // One anchor of 16 by 16 at each of two positions, nothing moved, the second better.
    let scores = floats(&[1, 2, 1, 2], &[0.0, 0.0, 0.3, 0.6]);
    let (moves, image) = (Tensor::zeros(DType::F32, &[1, 4, 1, 2]), floats(&[1, 3], &[16.0, 32.0, 1.0]));
    let attrs = [
        ("scales", list(&[1.0])),
        ("ratios", list(&[1.0])),
        ("rpn_post_nms_top_n", 3.into()),
        ("rpn_min_size", 4.into()),
    ];
    let found = call("vision.proposal", &attrs, &[scores, moves, image]);
    let (right, left) = ([0.0, 16.0, 0.0, 31.0, 15.0], [0.0, 0.0, 0.0, 15.0, 15.0]);
    near(&found[0], &[right, left, right].concat());
}

/// An image of `h` by `w` elements that are `10 * row + column`.
fn ramp(h: usize, w: usize) -> Tensor {
    Tensor::from_f64_fn(DType::F32, &[1, 1, h, w], |i| (10 * (i / w) + i % w) as f64)
}

#[test]
fn samples_of_a_ramp_tell_where_they_are() {
    // A mixture of neighbours is exact on a ramp, and the mean of samples is the bin's middle.
    let rois = floats(&[1, 5], &[0.0, 1.0, 2.0, 5.0, 4.0]);
    for ratio in [-1, 1, 3] {
        let attrs = [("pooled_size", [1, 2].into()), ("spatial_scale", 1.0.into()), ("sample_ratio", ratio.into())];
        near(&call("vision.roi_align", &attrs, &[ramp(6, 7), rois.clone()])[0], &[32.0, 34.0]);
    }
    let attrs = [("pooled_size", [2, 2].into()), ("spatial_scale", 1.0.into())];
    near(&call("vision.roi_pool", &attrs, &[ramp(6, 7), rois])[0], &[33.0, 35.0, 43.0, 45.0]);

    let boxes = floats(&[2, 4], &[0.0, 0.0, 1.0, 1.0, 0.2, 0.5, 0.6, 1.5]);
    let attrs = [("crop_size", [3, 2].into()), ("extrapolation_value", (-1.0).into())];
    let found = call("image.crop_and_resize", &attrs, &[ramp(6, 7), boxes, ints(&[2], &[0, 9])]);
    near(&found[0], &[0.0, 6.0, 25.0, 31.0, 50.0, 56.0, 13.0, -1.0, 23.0, -1.0, 33.0, -1.0]);
}

#[test]
fn the_plain_grid_gives_the_image() {
    let plain = floats(&[1, 2, 3], &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let grid = call("image.affine_grid", &[("target_shape", [4, 5].into())], &[plain]).remove(0);
    for method in ["nearest", "bilinear", "bicubic"] {
        let found = call("image.grid_sample", &[("method", method.into())], &[ramp(4, 5), grid.clone()]);
        assert_eq!(difference(&found[0], &ramp(4, 5)), None, "{method}");
    }
}

#[test]
fn places_beyond_the_image_are_padded() {
    // Columns -1, 0, 1, 2 and 3 of an image of three.
    let row = [-2.0, -1.0, 0.0, 1.0, 2.0];
    let grid = floats(&[1, 2, 1, 5], &[row, [0.0; 5]].concat());
    let image = floats(&[1, 1, 1, 3], &[1.0, 2.0, 3.0]);
    for (padding, wanted) in [
        ("zeros", [0.0, 1.0, 2.0, 3.0, 0.0]),
        ("border", [1.0, 1.0, 2.0, 3.0, 3.0]),
        ("reflection", [2.0, 1.0, 2.0, 3.0, 2.0]),
    ] {
        let found = call("image.grid_sample", &[("padding_mode", padding.into())], &[image.clone(), grid.clone()]);
        near(&found[0], &wanted);
    }
}

#[test]
fn a_convolution_without_displacement_is_plain() {
    let x = Tensor::from_f64_fn(DType::F32, &[1, 2, 5, 5], |i| (i % 7) as f64 - 3.0);
    let w = Tensor::from_f64_fn(DType::F32, &[3, 2, 3, 3], |i| (i % 5) as f64 - 2.0);
    let attrs = [("padding", [1, 1].into()), ("strides", [2, 2].into())];
    let plain = call("nn.conv2d", &attrs, &[x.clone(), w.clone()]);
    let offset = Tensor::zeros(DType::F32, &[1, 18, 3, 3]);
    let found = call("nn.deformable_conv2d", &attrs, &[x, offset, w]);
    assert_eq!(difference(&found[0], &plain[0]), None);
}

#[test]
fn dilation_with_nothing_added_is_a_pool() {
    let found =
        call("image.dilation2d", &[("strides", [2, 2].into())], &[ramp(4, 4), Tensor::zeros(DType::F32, &[1, 2, 2])]);
    near(&found[0], &[11.0, 13.0, 31.0, 33.0]);
}

#[test]
fn reorganizing_spreads_channels() {
    // Read as one channel of 4 by 4 elements, of which every second row and column is a channel.
    let x = Tensor::from_f64_fn(DType::F32, &[1, 4, 2, 2], |i| i as f64);
    let found = call("vision.yolo_reorg", &[("stride", 2.into())], &[x]);
    assert_eq!(found[0].shape(), [1, 16, 1, 1]);
    near(&found[0], &[0.0, 2.0, 8.0, 10.0, 1.0, 3.0, 9.0, 11.0, 4.0, 6.0, 12.0, 14.0, 5.0, 7.0, 13.0, 15.0]);
}

#[test]
fn simulated_quantization_is_quantization_in_floats() {
    let x = Tensor::from_f64_fn(DType::F32, &[3, 40], |i| i as f64 * 0.7 - 40.0);
    let (scale, zero) = (floats(&[3], &[0.3, 0.1, 0.5]), ints(&[3], &[1, -3, 7]));
    for (code, dtype) in [(1, DType::I8), (2, DType::U8), (3, DType::I32)] {
        let attrs = [("axis", 0.into()), ("out_dtype", dtype.into())];
        let real = call("qnn.quantize", &attrs, &[x.clone(), scale.clone(), zero.clone()]).remove(0);
        let args = [x.clone(), ints(&[], &[code]), scale.clone(), zero.clone()];
        let found = call("qnn.simulated_quantize", &[("axis", 0.into())], &args).remove(0);
        assert_eq!(found.to_f64_vec(), real.to_f64_vec(), "{dtype}");
        let back = call("qnn.dequantize", &[("axis", 0.into())], &[real, scale.clone(), zero.clone()]).remove(0);
        let args = [found, ints(&[], &[code]), scale.clone(), zero.clone()];
        let found = call("qnn.simulated_dequantize", &[("axis", 0.into())], &args).remove(0);
        assert_eq!(difference(&found, &back), None, "{dtype}");
    }
    let args = [x.clone(), ints(&[], &[0]), scale, zero];
    assert_eq!(difference(&call("qnn.simulated_quantize", &[("axis", 0.into())], &args)[0], &x), None);
}
