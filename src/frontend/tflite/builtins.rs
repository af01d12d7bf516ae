//! The table of builtin operators.

use super::{
    graph::{Import, Val},
    node::Node,
    ops::*,
    schema::{Graph, Operator},
};
use crate::{frontend::Convert, ir::ExprId};

/// The code of custom operators.
pub(super) const CUSTOM: i32 = 32;

/// How an operator is converted.
#[derive(Copy, Clone)]
pub(super) enum Rule {
    /// From tensors to tensors.
    Plain(fn(&mut Node) -> Convert<Vec<ExprId>>),
    /// From tensors to tensors of the same elements, so that of complex numbers it does the same with either part.
    Moves(fn(&mut Node) -> Convert<Vec<ExprId>>),
    /// With subgraphs, handles or complex numbers.
    Values(for<'a> fn(&mut Import<'a>, &'a Graph<'a>, &'a Operator<'a>, &[Option<Val>]) -> Convert<Vec<Val>>),
    /// Not at all, and why.
    Refused(&'static str),
}

/// A builtin operator.
pub(super) struct Builtin {
    /// The schema's number.
    code: i32,
    /// The schema's name.
    pub(super) name: &'static str,
    /// How it is converted.
    pub(super) rule: Rule,
}

const STRINGS: &str = "it works on strings or tables of them, which Relay does not have";
const RANDOM: &str = "its results are random";
const NONE: &str = "no kernel of TFLite's defines what it computes for tensors alone";
const DELEGATED: &str = "the model was compiled for a delegate: import the one that it was made from";

macro_rules! table {
    ($($code:literal $name:ident $rule:expr;)*) => {
        /// All that are known, by code.
        #[rustfmt::skip]
        static BUILTINS: &[Builtin] = &[$(Builtin { code: $code, name: stringify!($name), rule: $rule },)*];
    };
}

table! {
    0 ADD Rule::Plain(binary::add);
    1 AVERAGE_POOL_2D Rule::Plain(pool::average);
    2 CONCATENATION Rule::Moves(shape::concatenation);
    3 CONV_2D Rule::Plain(conv::conv_2d);
    4 DEPTHWISE_CONV_2D Rule::Plain(conv::depthwise_conv_2d);
    5 DEPTH_TO_SPACE Rule::Plain(grid::depth_to_space);
    6 DEQUANTIZE Rule::Plain(unary::dequantize);
    7 EMBEDDING_LOOKUP Rule::Plain(index::embedding_lookup);
    8 FLOOR Rule::Plain(unary::floor);
    9 FULLY_CONNECTED Rule::Plain(dense::fully_connected);
    10 HASHTABLE_LOOKUP Rule::Refused(STRINGS);
    11 L2_NORMALIZATION Rule::Plain(norm::l2);
    12 L2_POOL_2D Rule::Plain(pool::l2);
    13 LOCAL_RESPONSE_NORMALIZATION Rule::Plain(norm::local_response);
    14 LOGISTIC Rule::Plain(unary::logistic);
    15 LSH_PROJECTION Rule::Refused(STRINGS);
    16 LSTM Rule::Plain(lstm::lstm);
    17 MAX_POOL_2D Rule::Plain(pool::max);
    18 MUL Rule::Plain(binary::mul);
    19 RELU Rule::Plain(unary::relu);
    20 RELU_N1_TO_1 Rule::Plain(unary::relu_n1_to_1);
    21 RELU6 Rule::Plain(unary::relu6);
    22 RESHAPE Rule::Moves(shape::reshape);
    23 RESIZE_BILINEAR Rule::Plain(grid::resize_bilinear);
    24 RNN Rule::Plain(recurrent::rnn);
    25 SOFTMAX Rule::Plain(softmax::softmax);
    26 SPACE_TO_DEPTH Rule::Plain(grid::space_to_depth);
    27 SVDF Rule::Plain(recurrent::svdf);
    28 TANH Rule::Plain(unary::tanh);
    29 CONCAT_EMBEDDINGS Rule::Refused(NONE);
    30 SKIP_GRAM Rule::Refused(STRINGS);
    31 CALL Rule::Values(control::call);
    33 EMBEDDING_LOOKUP_SPARSE Rule::Refused(NONE);
    34 PAD Rule::Plain(shape::pad);
    35 UNIDIRECTIONAL_SEQUENCE_RNN Rule::Plain(recurrent::sequence_rnn);
    36 GATHER Rule::Moves(index::gather);
    37 BATCH_TO_SPACE_ND Rule::Plain(grid::batch_to_space);
    38 SPACE_TO_BATCH_ND Rule::Plain(grid::space_to_batch);
    39 TRANSPOSE Rule::Moves(shape::transpose);
    40 MEAN Rule::Plain(reduce::mean);
    41 SUB Rule::Plain(binary::sub);
    42 DIV Rule::Plain(binary::div);
    43 SQUEEZE Rule::Moves(shape::squeeze);
    44 UNIDIRECTIONAL_SEQUENCE_LSTM Rule::Plain(lstm::sequence_lstm);
    45 STRIDED_SLICE Rule::Moves(slice::strided_slice);
    46 BIDIRECTIONAL_SEQUENCE_RNN Rule::Plain(recurrent::bidirectional_rnn);
    47 EXP Rule::Plain(unary::exp);
    48 TOPK_V2 Rule::Plain(index::topk);
    49 SPLIT Rule::Moves(shape::split);
    50 LOG_SOFTMAX Rule::Plain(norm::log_softmax);
    51 DELEGATE Rule::Refused(DELEGATED);
    52 BIDIRECTIONAL_SEQUENCE_LSTM Rule::Plain(lstm::bidirectional_lstm);
    53 CAST Rule::Plain(unary::cast);
    54 PRELU Rule::Plain(binary::prelu);
    55 MAXIMUM Rule::Plain(binary::maximum);
    56 ARG_MAX Rule::Plain(index::arg_max);
    57 MINIMUM Rule::Plain(binary::minimum);
    58 LESS Rule::Plain(binary::less);
    59 NEG Rule::Plain(unary::neg);
    60 PADV2 Rule::Plain(shape::pad);
    61 GREATER Rule::Plain(binary::greater);
    62 GREATER_EQUAL Rule::Plain(binary::greater_equal);
    63 LESS_EQUAL Rule::Plain(binary::less_equal);
    64 SELECT Rule::Plain(index::select);
    65 SLICE Rule::Moves(slice::slice);
    66 SIN Rule::Plain(unary::sin);
    67 TRANSPOSE_CONV Rule::Plain(conv::transpose_conv);
    68 SPARSE_TO_DENSE Rule::Plain(index::sparse_to_dense);
    69 TILE Rule::Moves(shape::tile);
    70 EXPAND_DIMS Rule::Moves(shape::expand_dims);
    71 EQUAL Rule::Plain(binary::equal);
    72 NOT_EQUAL Rule::Plain(binary::not_equal);
    73 LOG Rule::Plain(unary::log);
    74 SUM Rule::Plain(reduce::sum);
    75 SQRT Rule::Plain(unary::sqrt);
    76 RSQRT Rule::Plain(unary::rsqrt);
    77 SHAPE Rule::Plain(shape::shape);
    78 POW Rule::Plain(binary::pow);
    79 ARG_MIN Rule::Plain(index::arg_min);
    80 FAKE_QUANT Rule::Plain(unary::fake_quant);
    81 REDUCE_PROD Rule::Plain(reduce::prod);
    82 REDUCE_MAX Rule::Plain(reduce::max);
    83 PACK Rule::Moves(shape::pack);
    84 LOGICAL_OR Rule::Plain(binary::logical_or);
    85 ONE_HOT Rule::Plain(index::one_hot);
    86 LOGICAL_AND Rule::Plain(binary::logical_and);
    87 LOGICAL_NOT Rule::Plain(unary::logical_not);
    88 UNPACK Rule::Moves(shape::unpack);
    89 REDUCE_MIN Rule::Plain(reduce::min);
    90 FLOOR_DIV Rule::Plain(binary::floor_div);
    91 REDUCE_ANY Rule::Plain(reduce::any);
    92 SQUARE Rule::Plain(unary::square);
    93 ZEROS_LIKE Rule::Plain(unary::zeros_like);
    94 FILL Rule::Plain(shape::fill);
    95 FLOOR_MOD Rule::Plain(binary::floor_mod);
    96 RANGE Rule::Plain(shape::range);
    97 RESIZE_NEAREST_NEIGHBOR Rule::Plain(grid::resize_nearest);
    98 LEAKY_RELU Rule::Plain(unary::leaky_relu);
    99 SQUARED_DIFFERENCE Rule::Plain(binary::squared_difference);
    100 MIRROR_PAD Rule::Plain(shape::mirror_pad);
    101 ABS Rule::Plain(unary::abs);
    102 SPLIT_V Rule::Moves(shape::split_v);
    103 UNIQUE Rule::Plain(index::unique);
    104 CEIL Rule::Plain(unary::ceil);
    105 REVERSE_V2 Rule::Moves(shape::reverse);
    106 ADD_N Rule::Plain(binary::add_n);
    107 GATHER_ND Rule::Moves(index::gather_nd);
    108 COS Rule::Plain(unary::cos);
    109 WHERE Rule::Plain(index::where_true);
    110 RANK Rule::Plain(shape::rank);
    111 ELU Rule::Plain(unary::elu);
    112 REVERSE_SEQUENCE Rule::Plain(shape::reverse_sequence);
    113 MATRIX_DIAG Rule::Plain(index::matrix_diag);
    114 QUANTIZE Rule::Plain(unary::quantize);
    115 MATRIX_SET_DIAG Rule::Plain(index::matrix_set_diag);
    116 ROUND Rule::Plain(unary::round);
    117 HARD_SWISH Rule::Plain(unary::hard_swish);
    118 IF Rule::Values(control::branch);
    119 WHILE Rule::Values(control::repeat);
    120 NON_MAX_SUPPRESSION_V4 Rule::Plain(detection::non_max_suppression);
    121 NON_MAX_SUPPRESSION_V5 Rule::Plain(detection::non_max_suppression);
    122 SCATTER_ND Rule::Plain(index::scatter_nd);
    123 SELECT_V2 Rule::Plain(index::select_v2);
    124 DENSIFY Rule::Plain(same);
    125 SEGMENT_SUM Rule::Plain(segment::sum);
    126 BATCH_MATMUL Rule::Plain(dense::batch_matmul);
    128 CUMSUM Rule::Plain(index::cumsum);
    129 CALL_ONCE Rule::Values(control::once);
    130 BROADCAST_TO Rule::Moves(shape::broadcast_to);
    131 RFFT2D Rule::Values(complex::rfft2d);
    132 CONV_3D Rule::Plain(conv::conv_3d);
    133 IMAG Rule::Values(complex::imag);
    134 REAL Rule::Values(complex::real);
    135 COMPLEX_ABS Rule::Values(complex::abs);
    136 HASHTABLE Rule::Refused(STRINGS);
    137 HASHTABLE_FIND Rule::Refused(STRINGS);
    138 HASHTABLE_IMPORT Rule::Refused(STRINGS);
    139 HASHTABLE_SIZE Rule::Refused(STRINGS);
    140 REDUCE_ALL Rule::Plain(reduce::all);
    141 CONV_3D_TRANSPOSE Rule::Plain(conv::conv_3d_transpose);
    142 VAR_HANDLE Rule::Values(control::var_handle);
    143 READ_VARIABLE Rule::Values(control::read);
    144 ASSIGN_VARIABLE Rule::Values(control::assign);
    145 BROADCAST_ARGS Rule::Plain(shape::broadcast_args);
    146 RANDOM_STANDARD_NORMAL Rule::Refused(RANDOM);
    147 BUCKETIZE Rule::Plain(index::bucketize);
    148 RANDOM_UNIFORM Rule::Refused(RANDOM);
    149 MULTINOMIAL Rule::Refused(RANDOM);
    150 GELU Rule::Plain(unary::gelu);
    151 DYNAMIC_UPDATE_SLICE Rule::Plain(slice::dynamic_update_slice);
    152 RELU_0_TO_1 Rule::Plain(unary::relu_0_to_1);
    153 UNSORTED_SEGMENT_PROD Rule::Plain(segment::unsorted_prod);
    154 UNSORTED_SEGMENT_MAX Rule::Plain(segment::unsorted_max);
    155 UNSORTED_SEGMENT_SUM Rule::Plain(segment::unsorted_sum);
    156 ATAN2 Rule::Plain(binary::atan2);
    157 UNSORTED_SEGMENT_MIN Rule::Plain(segment::unsorted_min);
    158 SIGN Rule::Plain(unary::sign);
    159 BITCAST Rule::Plain(unary::bitcast);
    160 BITWISE_XOR Rule::Plain(binary::bitwise_xor);
    161 RIGHT_SHIFT Rule::Plain(binary::right_shift);
    203 DILATE Rule::Plain(shape::dilate);
    204 STABLEHLO_RNG_BIT_GENERATOR Rule::Refused(RANDOM);
    206 STABLEHLO_COMPOSITE Rule::Values(control::composite);
    207 COMPLEX Rule::Values(complex::complex);
}

/// The operator of a code.
pub(super) fn by_code(code: i32) -> Option<&'static Builtin> {
    BUILTINS.binary_search_by_key(&code, |b| b.code).ok().map(|i| &BUILTINS[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order() {
        assert!(BUILTINS.is_sorted_by(|a, b| a.code < b.code));
        assert_eq!(by_code(3).map(|b| b.name), Some("CONV_2D"));
        assert!(by_code(CUSTOM).is_none());
    }
}
