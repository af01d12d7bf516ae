//! How TVM 0.14 lays its objects out in JSON: the fields of each, and how each field is written.
//!
//! Names and kinds are TVM's (the `VisitAttrs` of its node classes and the `TVM_ATTR_FIELD`s of its attribute classes). What
//! a field means, and which values it takes, is for the operator table to say; this says only whether the text of a field is
//! a value or a reference to another node.

use std::sync::OnceLock;

use hashbrown::HashMap;

/// How a field is written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// An integer.
    Int,
    /// `0` or `1`.
    Bool,
    /// A number.
    Float,
    /// A string.
    Str,
    /// An element type; empty for none.
    DType,
    /// The number of a node; 0 for null.
    Ref,
    /// The number of a node whose numbers are all floats.
    FloatRef,
    /// The number of an array.
    Array,
}

/// The type of object: its fields in TVM's order.
pub(super) struct Class {
    pub(super) fields: Vec<(&'static str, Kind)>,
    /// Whether objects have some of the fields only: two classes of one name. The table writes `|` before the fields.
    pub(super) either: bool,
}

impl Class {
    fn parse(fields: &'static str) -> Class {
        let kind = |letter| match letter {
            "i" => Kind::Int,
            "b" => Kind::Bool,
            "f" => Kind::Float,
            "s" => Kind::Str,
            "d" => Kind::DType,
            "o" => Kind::Ref,
            "F" => Kind::FloatRef,
            "n" => Kind::Array,
            _ => unreachable!("the table writes one of these letters after each field"),
        };
        let field = |f: &'static str| f.split_once(':').map(|(name, letter)| (name, kind(letter)));
        Class { fields: fields.split_whitespace().filter_map(field).collect(), either: fields.starts_with('|') }
    }

    /// How a field is written.
    pub(super) fn kind(&self, field: &str) -> Option<Kind> {
        self.fields.iter().find(|(n, _)| *n == field).map(|(_, k)| *k)
    }
}

struct Table {
    classes: HashMap<String, Class>,
    of_op: HashMap<&'static str, String>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let nodes = NODES.iter().map(|(key, fields)| (key.to_string(), Class::parse(fields)));
        let attrs = ATTRS.iter().map(|(key, fields, _)| (format!("{ATTRS_PREFIX}{key}"), Class::parse(fields)));
        let of_op = ATTRS
            .iter()
            .flat_map(|(key, _, ops)| ops.split_whitespace().map(move |op| (op, format!("{ATTRS_PREFIX}{key}"))));
        Table { classes: nodes.chain(attrs).collect(), of_op: of_op.collect() }
    })
}

/// The class of that type key, where TVM has one that Relay programs use.
pub(super) fn class(type_key: &str) -> Option<&'static Class> {
    table().classes.get(type_key)
}

/// The type key of an operator's attribute record; `None` for an operator without attributes.
pub(super) fn attrs_of(op: &str) -> Option<&'static str> {
    table().of_op.get(op).map(String::as_str)
}

/// Operators that TVM registers without the type of their attributes: text must name it, or refer to the metadata section.
const UNTYPED: &[&str] = &[
    "annotation.cast_hint",
    "annotation.compiler_begin",
    "annotation.compiler_end",
    "collapse_sum_to",
    "cumprod",
    "cumsum",
    "dyn.expand_dims",
    "nn.dilate",
    "scatter_elements",
    "scatter_nd",
    "stft",
    "trilu",
    "unique",
    "vision.all_class_non_max_suppression",
    "vision.get_valid_counts",
    "vision.non_max_suppression",
    "vision.proposal",
    "vision.regular_non_max_suppression",
    "vision.roi_align",
    "vision.roi_pool",
];

/// The type key of an operator's attribute record, where TVM's parser does not know it by the operator.
pub fn untyped_attrs(op: &str) -> Option<&'static str> {
    UNTYPED.contains(&op).then(|| attrs_of(op)).flatten()
}

/// What the type keys of operators' attribute records start with.
pub(super) const ATTRS_PREFIX: &str = "relay.attrs.";

/// Type key, then the fields: a letter says how each is written (see [`Class::parse`]).
#[rustfmt::skip]
const NODES: &[(&str, &str)] = &[
    ("Array", ""),
    ("Map", ""),
    ("runtime.String", ""),
    ("Op", ""),
    ("SourceName", ""),
    ("EnvFunc", ""),
    ("DictAttrs", "__dict__:o"),
    ("Span", "source_name:o line:i column:i end_line:i end_column:i"),
    ("SequentialSpan", "source_name:o line:i column:i end_line:i end_column:i spans:o"),
    ("Source", "source_name:o source:o"),
    ("SourceMap", "source_map:o"),
    ("VirtualDevice", "device_type_int:i virtual_device_id:i target:o memory_scope:o"),
    ("IRModule", "functions:o type_definitions:o global_var_map_:o global_type_var_map_:o source_map:o attrs:o"),
    ("GlobalVar", "name_hint:o virtual_device_:o span:o _checked_type_:o"),
    ("IntImm", "dtype:d value:i span:o"),
    ("FloatImm", "dtype:d value:f span:o"),
    ("PrimType", "dtype:d"),
    ("TypeVar", "name_hint:o kind:i span:o"),
    ("GlobalTypeVar", "name_hint:o kind:i"),
    ("TupleType", "fields:o span:o"),
    ("FuncType", "arg_types:o ret_type:o type_params:o type_constraints:o span:o"),
    ("IncompleteType", "kind:i span:o"),
    ("TypeCall", "func:o args:o span:o"),
    ("relay.TensorType", "shape:o dtype:d span:o"),
    ("relay.RefType", "value:o span:o"),
    ("relay.Constructor", "name_hint:o inputs:o belong_to:o tag:i span:o _checked_type_:o"),
    ("relay.TypeData", "header:o type_vars:o constructors:o span:o"),
    ("relay.Id", "name_hint:o"),
    ("relay.Constant", "data:n virtual_device_:o span:o _checked_type_:o"),
    ("relay.Tuple", "fields:o virtual_device_:o span:o _checked_type_:o"),
    ("relay.Var", "vid:o type_annotation:o virtual_device_:o span:o _checked_type_:o"),
    ("relay.Call", "op:o args:o attrs:o type_args:o virtual_device_:o span:o _checked_type_:o"),
    ("relay.Let", "var:o value:o body:o virtual_device_:o span:o _checked_type_:o"),
    ("relay.If", "cond:o true_branch:o false_branch:o virtual_device_:o span:o _checked_type_:o"),
    ("relay.TupleGetItem", "tuple_value:o index:i virtual_device_:o span:o _checked_type_:o"),
    ("relay.RefCreate", "value:o virtual_device_:o span:o _checked_type_:o"),
    ("relay.RefRead", "ref:o virtual_device_:o span:o _checked_type_:o"),
    ("relay.RefWrite", "ref:o value:o virtual_device_:o span:o _checked_type_:o"),
    ("relay.Function", "params:o body:o ret_type:o type_params:o attrs:o virtual_device_:o span:o _checked_type_:o"),
    ("relay.PatternWildcard", "span:o"),
    ("relay.PatternVar", "var:o span:o"),
    ("relay.PatternConstructor", "constructor:o patterns:o span:o"),
    ("relay.PatternTuple", "patterns:o span:o"),
    ("relay.Clause", "lhs:o rhs:o"),
    ("relay.Match", "data:o clauses:o complete:b virtual_device_:o span:o _checked_type_:o"),
    ("tir.Any", "dtype:d span:o"),
    ("tir.Var", "name:o dtype:d type_annotation:o span:o"),
    ("tir.SizeVar", "name:o dtype:d type_annotation:o span:o"),
    ("tir.Cast", "value:o dtype:d span:o"),
    ("tir.Add", "a:o b:o dtype:d span:o"),
    ("tir.Sub", "a:o b:o dtype:d span:o"),
    ("tir.Mul", "a:o b:o dtype:d span:o"),
    ("tir.Div", "a:o b:o dtype:d span:o"),
    ("tir.Mod", "a:o b:o dtype:d span:o"),
    ("tir.FloorDiv", "a:o b:o dtype:d span:o"),
    ("tir.FloorMod", "a:o b:o dtype:d span:o"),
    ("tir.Min", "a:o b:o dtype:d span:o"),
    ("tir.Max", "a:o b:o dtype:d span:o"),
    ("tir.EQ", "a:o b:o dtype:d span:o"),
    ("tir.NE", "a:o b:o dtype:d span:o"),
    ("tir.LT", "a:o b:o dtype:d span:o"),
    ("tir.LE", "a:o b:o dtype:d span:o"),
    ("tir.GT", "a:o b:o dtype:d span:o"),
    ("tir.GE", "a:o b:o dtype:d span:o"),
    ("tir.And", "a:o b:o dtype:d span:o"),
    ("tir.Or", "a:o b:o dtype:d span:o"),
];

/// Type key without [`ATTRS_PREFIX`], fields as in [`NODES`], and the operators whose calls carry it.
#[rustfmt::skip]
const ATTRS: &[(&str, &str, &str)] = &[
    ("AdaptivePool1DAttrs", "output_size:o layout:s out_layout:o", "nn.adaptive_avg_pool1d nn.adaptive_max_pool1d"),
    ("AdaptivePool2DAttrs", "output_size:o layout:s out_layout:o", "nn.adaptive_avg_pool2d nn.adaptive_max_pool2d"),
    ("AdaptivePool3DAttrs", "output_size:o layout:s out_layout:o", "nn.adaptive_avg_pool3d nn.adaptive_max_pool3d"),
    ("AffineGridAttrs", "target_shape:o", "image.affine_grid"),
    ("AllClassNonMaximumSuppressionAttrs", "output_format:s", "vision.all_class_non_max_suppression"),
    ("AllocStorageAttrs", "dtype:d virtual_device:o", "memory.alloc_storage"),
    ("AllocTensorAttrs", "dtype:d const_shape:o assert_shape:o", "memory.alloc_tensor"),
    ("ArangeAttrs", "start:o stop:o step:o dtype:d", "arange"),
    ("ArangeLikeAttrs", "axis:i dtype:d", "arange_like"),
    ("ArgReduceAttrs", "axis:o keepdims:b select_last_index:b exclude:b", "argmax argmin"),
    ("ArgsortAttrs", "axis:i is_ascend:b dtype:d", "argsort sort"),
    ("AttentionAttrs", "scale:f masked:o query_layout:s key_layout:s value_layout:s out_layout:s", "nn.attention"),
    ("AutoSchedulerLayoutTransformAttrs", "src_layout:s dst_layout:s", "auto_scheduler_layout_transform"),
    ("AvgPool1DAttrs", "pool_size:o strides:o dilation:o padding:o layout:s out_layout:o ceil_mode:b count_include_pad:b", "nn.avg_pool1d"),
    ("AvgPool2DAttrs", "pool_size:o strides:o dilation:o padding:o layout:o out_layout:o ceil_mode:b count_include_pad:b", "nn.avg_pool2d nn.avg_pool2d_grad qnn.avg_pool2d"),
    ("AvgPool3DAttrs", "pool_size:o strides:o dilation:o padding:o layout:s out_layout:o ceil_mode:b count_include_pad:b", "nn.avg_pool3d"),
    ("BatchMatmulAttrs", "out_dtype:d transpose_a:b transpose_b:b", "nn.batch_matmul qnn.batch_matmul"),
    ("BatchNormAttrs", "axis:i epsilon:f center:b scale:b", "nn.batch_norm"),
    ("BatchToSpaceNDAttrs", "block_shape:o crops:o", "nn.batch_to_space_nd"),
    ("BiasAddAttrs", "axis:i", "nn.bias_add"),
    ("BinaryConv2DAttrs", "strides:o padding:o kernel_size:o channels:o activation_bits:i weight_bits:i data_layout:s kernel_layout:s pack_dtype:d out_dtype:d unipolar:b", "nn.bitserial_conv2d"),
    ("BinaryDenseAttrs", "units:o data_bits:i weight_bits:i pack_dtype:d out_dtype:d unipolar:b", "nn.bitserial_dense"),
    ("BitPackAttrs", "bits:i pack_axis:i bit_axis:i pack_type:d name:s", "nn.bitpack"),
    ("BroadcastAttrs", "lhs_axis:i rhs_axis:i", "qnn.add qnn.mul qnn.subtract"),
    ("CallLoweredAttrs", "metadata:o", "call_lowered"),
    ("CastAttrs", "dtype:d", "cast reinterpret"),
    ("CastHintAttrs", "dtype:d", "annotation.cast_hint"),
    ("ClipAttrs", "a_min:f a_max:f", "clip"),
    ("CompilerAttrs", "compiler:s", "annotation.compiler_begin annotation.compiler_end"),
    ("ConcatenateAttrs", "axis:i", "concatenate qnn.concatenate"),
    ("Conv1DAttrs", "strides:o padding:o dilation:o groups:i channels:o kernel_size:o data_layout:o kernel_layout:o out_layout:o out_dtype:d", "nn.conv1d"),
    ("Conv1DTransposeAttrs", "channels:o kernel_size:o strides:o output_padding:o padding:o dilation:o groups:i data_layout:s kernel_layout:s out_layout:s out_dtype:d", "nn.conv1d_transpose"),
    ("Conv2DAttrs", "strides:o padding:o dilation:o groups:i channels:o kernel_size:o data_layout:o kernel_layout:o out_layout:o out_dtype:d", "nn.contrib_conv2d_NCHWc nn.contrib_conv2d_gemm_without_weight_transform nn.contrib_depthwise_conv2d_NCHWc nn.conv2d nn.conv2d_backward_weight qnn.conv2d"),
    ("Conv2DTransposeAttrs", "channels:o kernel_size:o strides:o output_padding:o padding:o dilation:o groups:i data_layout:s kernel_layout:s out_layout:s out_dtype:d", "nn.conv2d_transpose qnn.conv2d_transpose"),
    ("Conv2DWinogradAttrs", "tile_size:i strides:o padding:o dilation:o groups:i channels:o kernel_size:o data_layout:o kernel_layout:o out_layout:o out_dtype:d", "nn.contrib_conv2d_winograd_without_weight_transform nn.winograd_conv2d"),
    ("Conv2DWinogradInt8Attrs", "tile_size:i padding:o data_layout:s kernel_layout:s out_layout:s", "nn.winograd_conv2d_int8"),
    ("Conv2DWinogradNNPACKWeightTransformAttrs", "convolution_algorithm:i out_dtype:d", "nn.contrib_conv2d_winograd_nnpack_weight_transform"),
    ("Conv3DAttrs", "strides:o padding:o dilation:o groups:i channels:o kernel_size:o data_layout:o kernel_layout:o out_layout:o out_dtype:d", "nn.conv3d"),
    ("Conv3DTransposeAttrs", "channels:o kernel_size:o strides:o output_padding:o padding:o dilation:o groups:i data_layout:o kernel_layout:o out_layout:o out_dtype:d", "nn.conv3d_transpose"),
    ("Conv3DWinogradAttrs", "tile_size:i strides:o padding:o dilation:o groups:i channels:o kernel_size:o data_layout:s kernel_layout:s out_layout:s out_dtype:d", "nn.contrib_conv3d_winograd_without_weight_transform"),
    ("Conv3DWinogradBlockedAttrs", "tile_size:i padding:o data_layout:s kernel_layout:s out_layout:s", "nn.winograd_conv3d"),
    ("ConvGemmWeightTransformAttrs", "tile_rows:i tile_cols:i", "nn.contrib_conv2d_gemm_weight_transform"),
    ("ConvWinogradWeightTransformAttrs", "tile_size:i", "nn.contrib_conv2d_winograd_weight_transform nn.contrib_conv3d_winograd_weight_transform nn.winograd_int8_weight_transform"),
    ("CorrelationAttrs", "kernel_size:i max_displacement:i stride1:i stride2:i padding:o is_multiply:b layout:o", "nn.correlation"),
    ("CropAndResizeAttrs", "crop_size:o layout:s method:s extrapolation_value:f out_dtype:d", "image.crop_and_resize"),
    ("DFTAttrs", "inverse:o", "dft"),
    ("DebugAttrs", "debug_func:o", "debug"),
    ("DeformableConv2DAttrs", "strides:o padding:o dilation:o deformable_groups:i groups:i channels:o kernel_size:o data_layout:s kernel_layout:s out_layout:s out_dtype:d", "nn.deformable_conv2d"),
    ("DenseAttrs", "units:o out_dtype:d", "nn.dense qnn.dense"),
    ("DenseNBitsAttrs", "bits:i", "nn.dense_nbits"),
    ("GRUAttrs", "reverse:b reset_after:b", "nn.gru"),
    ("LSTMAttrs", "reverse:b", "nn.lstm nn.lstm_int8"),
    ("ImageDecodeAttrs", "pixel_format:s", "image.decode"),
    ("DensePackAttrs", "units:o out_dtype:d weight_layout:o", "nn.contrib_dense_pack qnn.contrib_dense_pack"),
    ("DequantizeAttrs", "out_dtype:d axis:i", "qnn.dequantize qnn.simulated_dequantize"),
    ("DeviceCopyAttrs", "src_virtual_device:o dst_virtual_device:o", "device_copy"),
    ("DilateAttrs", "strides:o dilation_value:f", "nn.dilate"),
    ("Dilation2DAttrs", "strides:o padding:o dilations:o data_layout:s kernel_layout:s out_dtype:d", "image.dilation2d"),
    ("DropoutAttrs", "rate:f", "nn.dropout"),
    ("DynExpandDimsAttrs", "num_newaxis:i", "dyn.expand_dims"),
    ("EinsumAttrs", "equation:o", "einsum"),
    ("EthosuBinaryElementwiseAttrs", "operator_type:o ifm_scale:f ifm_zero_point:i ifm2_scale:f ifm2_zero_point:i ofm_scale:f ofm_zero_point:i ifm_channels:o ifm2_channels:o reversed_operands:b activation:o clip_min:i clip_max:i rounding_mode:o ifm_layout:o ifm2_layout:o ofm_layout:o ofm_dtype:o use_rescale:b rescale_scale:i rescale_shift:i", "contrib.ethosu.binary_elementwise"),
    ("EthosuConv2DAttrs", "ifm_scale:f ifm_zero_point:i weight_zero_point:i ofm_scale:f ofm_zero_point:i kernel_shape:o ofm_channels:o strides:o padding:o dilation:o activation:o clip_min:i clip_max:i rounding_mode:o upscale:o ifm_layout:o ofm_layout:o", "contrib.ethosu.conv2d"),
    ("EthosuDepthwiseConv2DAttrs", "ifm_scale:f ifm_zero_point:i weight_zero_point:i ofm_scale:f ofm_zero_point:i kernel_shape:o ofm_channels:o strides:o padding:o dilation:o activation:o clip_min:i clip_max:i rounding_mode:o upscale:o ifm_layout:o ofm_layout:o ofm_dtype:o", "contrib.ethosu.depthwise_conv2d"),
    ("EthosuIdentityAttrs", "ifm_scale:f ifm_zero_point:i ofm_scale:f ofm_zero_point:i activation:o rounding_mode:o", "contrib.ethosu.identity"),
    ("EthosuPoolingAttrs", "pooling_type:o ifm_scale:f ifm_zero_point:i ofm_scale:f ofm_zero_point:i pool_shape:o ofm_channels:o ofm_dtype:o strides:o padding:o activation:o clip_min:i clip_max:i rounding_mode:o upscale:o ifm_layout:o ofm_layout:o", "contrib.ethosu.pooling"),
    ("EthosuUnaryElementwiseAttrs", "operator_type:o ifm_scale:f ifm_zero_point:i ofm_scale:f ofm_zero_point:i ofm_channels:o activation:o clip_min:i clip_max:i rounding_mode:o ifm_layout:o ofm_layout:o", "contrib.ethosu.unary_elementwise"),
    ("ExpandDimsAttrs", "axis:i num_newaxis:i", "expand_dims"),
    ("FIFOBufferAttrs", "axis:i", "nn.fifo_buffer"),
    ("FixedPointMultiplyAttrs", "multiplier:i shift:i", "fixed_point_multiply"),
    ("FixedPointMultiplyHighPerAxisAttrs", "axes:o", "fixed_point_multiply_high_per_axis"),
    ("FixedPointMultiplyPerAxisAttrs", "is_lshift_required:b is_rshift_required:b axes:o", "fixed_point_multiply_per_axis"),
    // Not TVM's: changes of scale as TFLite rounds them.
    ("FixedPointRescaleAttrs", "multiplier:i right_shift:i zero_point:i out_dtype:d", "fixed_point_rescale"),
    ("FixedPointRescalePerAxisAttrs", "axes:o zero_point:i out_dtype:d", "fixed_point_rescale_per_axis"),
    ("GatherAttrs", "axis:o", "gather"),
    ("GatherNDAttrs", "batch_dims:o index_rank:o", "gather_nd"),
    ("GetValidCountsAttrs", "score_threshold:F id_index:i score_index:i", "vision.get_valid_counts"),
    ("GlobalPool2DAttrs", "layout:o out_layout:o", "nn.global_avg_pool2d nn.global_max_pool2d"),
    ("GridSampleAttrs", "method:o layout:o padding_mode:o align_corners:b", "image.grid_sample"),
    ("GroupNormAttrs", "num_groups:i axis:i epsilon:f center:b scale:b", "nn.group_norm"),
    ("InitOpAttrs", "shape:o dtype:d", "broadcast_to collapse_sum_to dyn.broadcast_to dyn.full dyn.ones dyn.zeros full ones zeros"),
    ("InstanceNormAttrs", "axis:i epsilon:f center:b scale:b", "nn.instance_norm"),
    ("InvertedBottleneckAttrs", "strides:o padding:o a_min:f a_max:f", "nn.inverted_bottleneck"),
    ("L2NormalizeAttrs", "eps:f axis:o", "nn.l2_normalize"),
    ("LRNAttrs", "size:i axis:i bias:f alpha:f beta:f", "nn.lrn"),
    ("LayerNormAttrs", "axis:i epsilon:f center:b scale:b", "nn.layer_norm"),
    ("LayoutTransformAttrs", "src_layout:s dst_layout:s", "layout_transform"),
    ("LeakyReluAttrs", "alpha:f", "nn.leaky_relu qnn.leaky_relu"),
    ("MatmulAttrs", "units:o out_dtype:d transpose_a:b transpose_b:b", "nn.matmul"),
    ("MatrixSetDiagAttrs", "k1:i k2:i super_diag_right_align:b sub_diag_right_align:b", "matrix_set_diag"),
    ("MaxPool1DAttrs", "pool_size:o strides:o dilation:o padding:o layout:s out_layout:o ceil_mode:b", "nn.max_pool1d"),
    ("MaxPool2DAttrs", "pool_size:o strides:o dilation:o padding:o layout:o out_layout:o ceil_mode:b", "nn.max_pool2d nn.max_pool2d_grad"),
    ("MaxPool3DAttrs", "pool_size:o strides:o dilation:o padding:o layout:s out_layout:o ceil_mode:b", "nn.max_pool3d"),
    ("MeshgridAttrs", "indexing:s", "meshgrid"),
    ("MetaRefAttrs", "node_type_key:o node_index:i", "parser.MetaRef"),
    ("MetaScheduleLayoutTransformAttrs", "index_map:o", "meta_schedule_layout_transform"),
    ("MirrorPadAttrs", "mode:s pad_width:o", "nn.mirror_pad"),
    ("MultiBoxPriorAttrs", "sizes:o ratios:o steps:o offsets:o clip:b", "vision.multibox_prior"),
    ("MultiBoxTransformLocAttrs", "clip:b threshold:f variances:o keep_background:b", "vision.multibox_transform_loc"),
    ("MultinomialAttrs", "num_samples:o", "random.multinomial"),
    ("NLLLossAttrs", "reduction:s ignore_index:i", "nn.nll_loss"),
    ("NdarraySizeAttrs", "dtype:d", "ndarray_size"),
    ("NonMaximumSuppressionAttrs", "force_suppress:b top_k:i coord_start:i score_index:i id_index:i return_indices:b invalid_to_bottom:b", "vision.non_max_suppression"),
    ("NormalAttrs", "out_shape:o out_dtype:d", "random.normal"),
    ("OnDeviceAttrs", "virtual_device:o constrain_result:b constrain_body:b", "on_device"),
    ("OneHotAttrs", "depth:i axis:i dtype:d", "dyn.one_hot one_hot"),
    ("PReluAttrs", "axis:i", "nn.prelu"),
    ("PadAttrs", "pad_width:o pad_mode:o", "dyn.nn.pad nn.pad"),
    ("ProposalAttrs", "scales:o ratios:o feature_stride:i threshold:f rpn_pre_nms_top_n:i rpn_post_nms_top_n:i rpn_min_size:i iou_loss:b", "vision.proposal"),
    ("QuantizeAttrs", "out_dtype:d axis:i", "qnn.quantize"),
    // Not TVM's: an operator that calibration puts into programs.
    ("QuantizeSiteAttrs", "out_dtype:d axis:i layer:i name:s error:f", "quantize.site"),
    ("ROIAlignAttrs", "pooled_size:o spatial_scale:f sample_ratio:i layout:s mode:s", "vision.roi_align"),
    ("ROIPoolAttrs", "pooled_size:o spatial_scale:f layout:s", "vision.roi_pool"),
    ("ReduceAttrs", "axis:o keepdims:b exclude:b", "all any max mean min prod sum"),
    ("RegularNonMaximumSuppressionAttrs", "max_detections_per_class:i max_detections:i num_classes:i iou_threshold:f score_threshold:f", "vision.regular_non_max_suppression"),
    ("RepeatAttrs", "repeats:o axis:o", "repeat"),
    ("RequantizeAttrs", "axis:i rounding:s compute_dtype:s out_dtype:d", "qnn.requantize"),
    ("ReshapeAttrs", "newshape:o allowzero:b", "contrib_reverse_reshape dyn.reshape reshape"),
    ("ReshapeLikeAttrs", "lhs_begin:i lhs_end:o rhs_begin:i rhs_end:o", "reshape_like"),
    ("ReshapeTensorAttrs", "newshape:o", "vm.reshape_tensor"),
    ("Resize1DAttrs", "size:o roi:F layout:s method:s coordinate_transformation_mode:s rounding_method:s cubic_alpha:f cubic_exclude:i extrapolation_value:f out_dtype:d", "image.resize1d"),
    ("Resize2DAttrs", "size:o roi:F layout:s method:s coordinate_transformation_mode:s rounding_method:s cubic_alpha:f cubic_exclude:i extrapolation_value:f out_dtype:d", "dyn.image.resize2d image.resize2d"),
    ("Resize3DAttrs", "size:o roi:F layout:s method:s coordinate_transformation_mode:s rounding_method:s cubic_alpha:f cubic_exclude:i extrapolation_value:f out_dtype:d", "image.resize3d"),
    ("ReverseAttrs", "axis:o", "reverse"),
    ("ReverseSequenceAttrs", "seq_axis:o batch_axis:o", "reverse_sequence"),
    ("ScanopAttrs", "axis:o dtype:d exclusive:o", "cumprod cumsum"),
    ("ScatterElementsAttrs", "axis:o reduction:o", "scatter_elements"),
    ("ScatterNDAttrs", "mode:o", "scatter_nd"),
    ("SearchSortedAttrs", "right:b dtype:d", "searchsorted"),
    ("SequenceMaskAttrs", "mask_value:f axis:i", "sequence_mask"),
    ("ShapeFuncAttrs", "is_input:o", ""),
    ("ShapeOfAttrs", "dtype:d", "shape_of vm.shape_of"),
    ("SimulatedQuantizeAttrs", "| axis:i kind:i sign:b rounding:s", "qnn.simulated_quantize relay.op.annotation.simulated_quantize"),
    ("SliceLikeAttrs", "axes:o", "slice_like"),
    ("SlidingWindowAttrs", "axis:i window_shape:o strides:o", "sliding_window"),
    ("SoftmaxAttrs", "axis:i", "nn.fast_softmax nn.log_softmax nn.softmax qnn.softmax"),
    ("SpaceToBatchNDAttrs", "block_shape:o paddings:o pad_value:f", "nn.space_to_batch_nd"),
    ("SparseConv2DAttrs", "layout:s kernel_size:o", "nn.sparse_conv2d"),
    ("SparseDenseAttrs", "sparse_lhs:b", "nn.internal.sparse_dense_padded nn.sparse_dense"),
    ("SparseToDenseAttrs", "output_shape:o", "sparse_to_dense"),
    ("SparseTransposeAttrs", "", "nn.sparse_transpose"),
    ("SplitAttrs", "indices_or_sections:o axis:i", "split"),
    ("SqueezeAttrs", "axis:o", "dyn.squeeze squeeze"),
    ("StackAttrs", "axis:o", "stack"),
    ("StftAttrs", "n_fft:i hop_length:i win_length:i normalized:b onesided:b", "stft"),
    ("StridedSliceAttrs", "begin:o end:o strides:o slice_mode:o axes:o", "dyn.strided_slice strided_slice"),
    ("SubPixelAttrs", "block_size:i layout:s mode:s", "nn.depth_to_space nn.space_to_depth"),
    ("TakeAttrs", "batch_dims:o axis:o mode:o", "take"),
    ("ThreefryGenerateAttrs", "out_shape:o", "random.threefry_generate"),
    ("TileAttrs", "reps:o", "dyn.tile tile"),
    ("TopkAttrs", "k:o axis:i ret_type:s is_ascend:b dtype:d", "dyn.topk topk"),
    ("TorchFunctionAttrs", "serialized_function:s len:i", "torch_op"),
    ("TransposeAttrs", "axes:o", "transpose"),
    ("TriluAttrs", "upper:b", "trilu"),
    ("TupleGetItemAttrs", "index:i", ""),
    ("UniformAttrs", "out_shape:o out_dtype:d", "random.uniform"),
    ("UniqueAttrs", "sorted:b return_counts:b", "unique"),
    ("UpSampling3DAttrs", "scale_d:f scale_h:f scale_w:f layout:s method:s coordinate_transformation_mode:s", "dyn.nn.upsampling3d nn.upsampling3d"),
    ("UpSamplingAttrs", "scale_h:f scale_w:f layout:o method:o align_corners:b", "dyn.nn.upsampling nn.upsampling"),
    ("VarianceAttrs", "axis:o keepdims:b exclude:b unbiased:b", "variance"),
    ("WithFuncIdAttrs", "fid:o", "annotation.with_funcid"),
    ("YoloReorgAttrs", "stride:o", "vision.yolo_reorg"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_well_formed() {
        for fields in NODES.iter().map(|r| r.1).chain(ATTRS.iter().map(|r| r.1)) {
            let class = Class::parse(fields);
            assert_eq!(class.fields.len(), fields.split_whitespace().filter(|f| *f != "|").count(), "{fields}");
        }
        assert_eq!(table().classes.len(), NODES.len() + ATTRS.len(), "no type key stands twice");
        let ops: usize = ATTRS.iter().map(|(_, _, ops)| ops.split_whitespace().count()).sum();
        assert_eq!(table().of_op.len(), ops, "no operator stands twice");
    }
}
