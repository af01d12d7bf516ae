#!/usr/bin/env python3
"""Adds cases to tests/recorded/frontends/tflite.zip that are written operator by operator, with what the reference kernels make of them.

    record-tflite.py tflite.zip

Needs numpy and ai-edge-litert.
"""
import io, json, sys, zipfile

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as s
from ai_edge_litert.interpreter import Interpreter, OpResolverType


class Graph:
    """A model of one subgraph."""

    def __init__(self):
        self.model, self.graph = s.ModelT(), s.SubGraphT()
        self.model.version, self.model.subgraphs = 3, [self.graph]
        self.model.buffers, self.model.operatorCodes = [s.BufferT()], []
        self.graph.tensors, self.graph.operators, self.graph.inputs, self.graph.outputs = [], [], [], []

    def tensor(self, name, shape, value=None, integer=False, type=None, scale=None, zero=0, axis=0, variable=False):
        """A tensor; -1 for extents that are known when the model runs, several scales along an axis."""
        t = s.TensorT()
        t.name, t.hasRank, t.buffer = name, True, 0
        t.type = getattr(s.TensorType, type or ("INT32" if integer else "FLOAT32"))
        if scale is not None:
            t.quantization = s.QuantizationParametersT()
            scales = [float(x) for x in np.atleast_1d(scale)]
            t.quantization.scale, t.quantization.zeroPoint, t.quantization.quantizedDimension = scales, [zero] * len(scales), axis
        t.isVariable = variable
        t.shape = [max(n, 1) for n in shape]
        if -1 in shape:
            t.shapeSignature = list(shape)
        if value is not None:
            buffer = s.BufferT()
            buffer.data = np.ascontiguousarray(value).view(np.uint8).ravel()
            t.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(t)
        return len(self.graph.tensors) - 1

    def op(self, name, inputs, output, kind=None, options=None):
        code, o = s.OperatorCodeT(), s.OperatorT()
        code.builtinCode = getattr(s.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
        o.opcodeIndex, o.inputs, o.outputs = len(self.model.operatorCodes), inputs, [output]
        if kind is not None:
            o.builtinOptionsType, o.builtinOptions = getattr(s.BuiltinOptions, kind), options
        self.model.operatorCodes.append(code)
        self.graph.operators.append(o)
        return output

    def bytes(self):
        b = flatbuffers.Builder(0)
        b.Finish(self.model.Pack(b), b"TFL3")
        return bytes(b.Output())


def computed_shape():
    """Extents that follow from the values of a computed shape alone, and that the file says: a convolution needs them."""
    g, r = Graph(), np.random.default_rng(7)
    ints = lambda name, *v: g.tensor(name, [len(v)] if len(v) > 1 else [1], np.array(v, "i4"), integer=True)
    x = g.tensor("x", [-1, 24])
    g.graph.inputs = [x]
    as_ints = s.ShapeOptionsT()
    as_ints.outType = s.TensorType.INT32
    shape = g.op("SHAPE", [x], g.tensor("shape", [2], integer=True), "ShapeOptions", as_ints)
    slice_ = s.StridedSliceOptionsT()
    slice_.shrinkAxisMask = 1
    begin, end, step = ints("begin", 0), ints("end", 1), ints("step", 1)
    rows = g.op("STRIDED_SLICE", [shape, begin, end, step], g.tensor("rows", [], integer=True), "StridedSliceOptions", slice_)
    scalar = lambda name, v: g.tensor(name, [], np.array(v, "i4"), integer=True)
    pack = s.PackOptionsT()
    pack.valuesCount = 4
    wanted = g.op("PACK", [rows, scalar("a", 4), scalar("b", 3), scalar("c", 2)], g.tensor("wanted", [4], integer=True), "PackOptions", pack)
    y = g.op("RESHAPE", [x, wanted], g.tensor("y", [-1, 4, 3, 2]), "ReshapeOptions", s.ReshapeOptionsT())
    w = g.tensor("w", [5, 3, 3, 2], r.standard_normal((5, 3, 3, 2)).astype("f4"))
    bias = g.tensor("bias", [5], r.standard_normal(5).astype("f4"))
    conv = s.Conv2DOptionsT()
    conv.strideH = conv.strideW = 2
    g.graph.outputs = [g.op("CONV_2D", [y, w, bias], g.tensor("z", [-1, 2, 2, 5]), "Conv2DOptions", conv)]
    return g.bytes(), {"x": r.standard_normal((3, 24)).astype("f4")}


def one_hot_first_axis():
    """The new axis is the first one, which is the default that files leave out."""
    g = Graph()
    i = g.tensor("i", [3], integer=True)
    depth, on, off = g.tensor("depth", [], np.array(5, "i4"), integer=True), g.tensor("on", [], np.array(2, "f4")), g.tensor("off", [], np.array(-1, "f4"))
    g.graph.inputs = [i]
    g.graph.outputs = [g.op("ONE_HOT", [i, depth, on, off], g.tensor("y", [5, 3]), "OneHotOptions", s.OneHotOptionsT())]
    return g.bytes(), {"i": np.array([4, 0, 3], "i4")}


def quantized_root():
    """Roots of all int8."""
    g = Graph()
    x = g.tensor("x", [256], type="INT8", scale=0.0157, zero=-128)
    g.graph.inputs = [x]
    g.graph.outputs = [g.op("SQRT", [x], g.tensor("y", [256], type="INT8", scale=0.0078, zero=-128))]
    return g.bytes(), {"x": np.arange(-128, 128).astype("i1")}


def power_of_integers():
    g, r = Graph(), np.random.default_rng(3)
    x, y = g.tensor("x", [4, 6], integer=True), g.tensor("y", [6], integer=True)
    g.graph.inputs = [x, y]
    g.graph.outputs = [g.op("POW", [x, y], g.tensor("z", [4, 6], integer=True), "PowOptions", s.PowOptionsT())]
    return g.bytes(), {"x": r.integers(-7, 8, (4, 6)).astype("i4"), "y": np.array([0, 1, 2, 3, 5, 9], "i4")}


def complex_numbers_moved():
    """The axis of rows that a transform of one axis has in TFLite goes again."""
    g, r = Graph(), np.random.default_rng(5)
    x = g.tensor("x", [3, 1, 16])
    size = g.tensor("size", [2], np.array([1, 16], "i4"), integer=True)
    g.graph.inputs = [x]
    y = g.op("RFFT2D", [x, size], g.tensor("y", [3, 1, 9], type="COMPLEX64"), "Rfft2dOptions", s.Rfft2dOptionsT())
    to = g.tensor("to", [2], np.array([3, 9], "i4"), integer=True)
    y = g.op("RESHAPE", [y, to], g.tensor("z", [3, 9], type="COMPLEX64"), "ReshapeOptions", s.ReshapeOptionsT())
    g.graph.outputs = [g.op("COMPLEX_ABS", [y], g.tensor("a", [3, 9]))]
    return g.bytes(), {"x": r.standard_normal((3, 1, 16)).astype("f4")}


def bytes_of(g, r, name, shape, channels=None, axis=0, scale=0.01):
    """A weight of bytes, with a scale for each channel where there are some."""
    scale = scale if channels is None else r.uniform(0.005, 0.02, channels)
    return g.tensor(name, shape, r.integers(-127, 128, shape).astype("i1"), type="INT8", scale=scale, axis=axis)


def rows(r, *shape):
    """Floats of several ranges, among them zeros alone."""
    x = r.standard_normal(shape).astype("f4") * np.exp2(r.integers(-6, 7, (shape[0],) + (1,) * (len(shape) - 1))).astype("f4")
    x[shape[0] // 2] = 0
    return x


def dynamic_integers(asymmetric):
    """A weight that is 1 on its diagonal: the integers that data is quantized to, and their scale."""
    g, r = Graph(), np.random.default_rng(11)
    x, w = g.tensor("x", [-1, 64]), g.tensor("w", [64, 64], np.eye(64, dtype="i1"), type="INT8", scale=1.0)
    options = s.FullyConnectedOptionsT()
    options.asymmetricQuantizeInputs = asymmetric
    g.graph.inputs = [x]
    g.graph.outputs = [g.op("FULLY_CONNECTED", [x, w, -1], g.tensor("y", [-1, 64]), "FullyConnectedOptions", options)]
    data = rows(r, 9, 64)
    # Halves, and numbers of one sign alone.
    data[0], data[1], data[2] = np.arange(64) / 2, np.arange(64) / 4 + 0.125, -np.arange(64) - 1
    data[3] = np.where(np.arange(64) % 2, 63.5, -np.arange(64) / 2)
    return g.bytes(), {"x": data}


def dynamic_dense(asymmetric, channels):
    g, r = Graph(), np.random.default_rng(12)
    x, w = g.tensor("x", [-1, 3, 40]), bytes_of(g, r, "w", [17, 40], channels)
    bias = g.tensor("bias", [17], r.standard_normal(17).astype("f4"))
    options = s.FullyConnectedOptionsT()
    options.asymmetricQuantizeInputs, options.keepNumDims = asymmetric, True
    options.fusedActivationFunction = s.ActivationFunctionType.RELU
    g.graph.inputs = [x]
    g.graph.outputs = [g.op("FULLY_CONNECTED", [x, w, bias], g.tensor("y", [-1, 3, 17]), "FullyConnectedOptions", options)]
    return g.bytes(), {"x": rows(r, 4, 3, 40)}


def dynamic_conv(channels, groups=1):
    """Images that are quantized one by one, padded with what stands for zero."""
    g, r = Graph(), np.random.default_rng(13)
    x, w = g.tensor("x", [-1, 9, 10, 8]), bytes_of(g, r, "w", [16, 3, 3, 8 // groups], channels)
    bias = g.tensor("bias", [16], r.standard_normal(16).astype("f4"))
    options = s.Conv2DOptionsT()
    options.strideH, options.strideW, options.fusedActivationFunction = 2, 1, s.ActivationFunctionType.RELU6
    g.graph.inputs = [x]
    g.graph.outputs = [g.op("CONV_2D", [x, w, bias], g.tensor("y", [-1, 5, 10, 16]), "Conv2DOptions", options)]
    return g.bytes(), {"x": rows(r, 3, 9, 10, 8) + np.float32(0.25)}


def dynamic_depthwise():
    g, r = Graph(), np.random.default_rng(14)
    x, w = g.tensor("x", [2, 9, 10, 8]), bytes_of(g, r, "w", [1, 3, 3, 16], 16, axis=3)
    bias = g.tensor("bias", [16], r.standard_normal(16).astype("f4"))
    options = s.DepthwiseConv2DOptionsT()
    options.strideH = options.strideW = 1
    options.depthMultiplier = 2
    g.graph.inputs = [x]
    g.graph.outputs = [g.op("DEPTHWISE_CONV_2D", [x, w, bias], g.tensor("y", [2, 9, 10, 16]), "DepthwiseConv2DOptions", options)]
    return g.bytes(), {"x": rows(r, 2, 9, 10, 8) + np.float32(0.25)}


def dynamic_transposed():
    g, r = Graph(), np.random.default_rng(15)
    x, w = g.tensor("x", [2, 5, 6, 8]), bytes_of(g, r, "w", [7, 3, 3, 8], 7)
    to = g.tensor("to", [4], np.array([2, 10, 12, 7], "i4"), integer=True)
    options = s.TransposeConvOptionsT()
    options.strideH = options.strideW = 2
    g.graph.inputs = [x]
    g.graph.outputs = [g.op("TRANSPOSE_CONV", [to, w, x], g.tensor("y", [2, 10, 12, 7]), "TransposeConvOptions", options)]
    return g.bytes(), {"x": rows(r, 2, 5, 6, 8) + np.float32(0.25)}


def dynamic_matmul(turn_x, turn_y, asymmetric):
    g, r = Graph(), np.random.default_rng(16)
    to_x, to_y = ([3, 12, 5] if turn_x else [3, 5, 12]), ([3, 7, 12] if turn_y else [3, 12, 7])
    x, w = g.tensor("x", to_x), bytes_of(g, r, "w", to_y)
    options = s.BatchMatMulOptionsT()
    options.adjX, options.adjY, options.asymmetricQuantizeInputs = turn_x, turn_y, asymmetric
    g.graph.inputs = [x]
    g.graph.outputs = [g.op("BATCH_MATMUL", [x, w], g.tensor("y", [3, 5, 7]), "BatchMatMulOptions", options)]
    return g.bytes(), {"x": rows(r, *to_x)}


def dynamic_rnn(asymmetric):
    """Far from where the activation is flat: a state of all 1 and -1 would be quantized by its last bits."""
    g, r = Graph(), np.random.default_rng(17)
    x, w, back = g.tensor("x", [3, 5, 12]), bytes_of(g, r, "w", [6, 12], scale=0.002), bytes_of(g, r, "back", [6, 6], scale=0.004)
    bias = g.tensor("bias", [6], r.uniform(-0.2, 0.2, 6).astype("f4"))
    options = s.SequenceRNNOptionsT()
    options.fusedActivationFunction, options.asymmetricQuantizeInputs = s.ActivationFunctionType.TANH, asymmetric
    g.graph.inputs = [x]
    state = g.tensor("state", [3, 6], variable=True)
    y = g.tensor("y", [3, 5, 6])
    g.graph.outputs = [g.op("UNIDIRECTIONAL_SEQUENCE_RNN", [x, w, back, bias, state], y, "SequenceRNNOptions", options)]
    return g.bytes(), {"x": r.standard_normal((3, 5, 12)).astype("f4")}


def dynamic_lstm(asymmetric):
    """With peepholes, a projection and layer normalization."""
    g, r = Graph(), np.random.default_rng(18)
    x = g.tensor("x", [3, 5, 12])
    floats = lambda name, n: g.tensor(name, [n], r.standard_normal(n).astype("f4"))
    inputs = [x] + [bytes_of(g, r, f"w{k}", [10, 12]) for k in range(4)] + [bytes_of(g, r, f"back{k}", [10, 6]) for k in range(4)]
    inputs += [bytes_of(g, r, f"peephole{k}", [10]) for k in range(3)] + [floats(f"bias{k}", 10) for k in range(4)]
    inputs += [bytes_of(g, r, "projection", [6, 10]), floats("projection_bias", 6)]
    inputs += [g.tensor("h", [3, 6], variable=True), g.tensor("c", [3, 10], variable=True)]
    inputs += [floats(f"norm{k}", 10) for k in range(4)]
    options = s.UnidirectionalSequenceLSTMOptionsT()
    options.fusedActivationFunction, options.asymmetricQuantizeInputs = s.ActivationFunctionType.TANH, asymmetric
    options.cellClip, options.projClip = 2.0, 0.9
    g.graph.inputs = [x]
    y = g.tensor("y", [3, 5, 6])
    g.graph.outputs = [g.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, y, "UnidirectionalSequenceLSTMOptions", options)]
    return g.bytes(), {"x": r.standard_normal((3, 5, 12)).astype("f4")}


def dynamic_svdf():
    g, r = Graph(), np.random.default_rng(19)
    x, feature, time = g.tensor("x", [3, 12]), bytes_of(g, r, "feature", [8, 12]), bytes_of(g, r, "time", [8, 4])
    bias = g.tensor("bias", [4], r.standard_normal(4).astype("f4"))
    options = s.SVDFOptionsT()
    options.rank, options.asymmetricQuantizeInputs = 2, True
    g.graph.inputs = [x]
    state = g.tensor("state", [3, 32], variable=True)
    g.graph.outputs = [g.op("SVDF", [x, feature, time, bias, state], g.tensor("y", [3, 4]), "SVDFOptions", options)]
    return g.bytes(), {"x": rows(r, 3, 12)}


def integer_svdf():
    """One step, whose memory is empty before."""
    g, r = Graph(), np.random.default_rng(22)
    x, feature = g.tensor("x", [3, 12], type="INT8", scale=0.05, zero=-3), bytes_of(g, r, "feature", [8, 12])
    time = g.tensor("time", [8, 4], r.integers(-32767, 32768, (8, 4)).astype("i2"), type="INT16", scale=1e-4)
    bias = g.tensor("bias", [4], r.integers(-2**20, 2**20, 4).astype("i4"), integer=True, scale=1e-7)
    state = g.tensor("state", [3, 32], type="INT16", scale=0.001, variable=True)
    options = s.SVDFOptionsT()
    options.rank, options.fusedActivationFunction = 2, s.ActivationFunctionType.RELU
    g.graph.inputs = [x]
    y = g.tensor("y", [3, 4], type="INT8", scale=0.2, zero=-128)
    g.graph.outputs = [g.op("SVDF", [x, feature, time, bias, state], y, "SVDFOptions", options)]
    return g.bytes(), {"x": r.integers(-128, 128, (3, 12)).astype("i1")}


def soft_suppression():
    """Scores fall off with overlap, some below the least; corners in any order, and a box without an area, which is chosen again and again."""
    g, r = Graph(), np.random.default_rng(20)
    boxes, scores = g.tensor("boxes", [24, 4]), g.tensor("scores", [24])
    number = lambda name, v, d: g.tensor(name, [], np.array(v, d), integer=d == "i4")
    limits = [number("most", 12, "i4"), number("overlap", 0.7, "f4"), number("least", 0.2, "f4"), number("sigma", 0.4, "f4")]
    g.graph.inputs = [boxes, scores]
    outputs = [g.tensor("indices", [12], integer=True), g.tensor("values", [12]), g.tensor("count", [], integer=True)]
    g.op("NON_MAX_SUPPRESSION_V5", [boxes, scores] + limits, outputs[0], "NonMaxSuppressionV5Options", s.NonMaxSuppressionV5OptionsT())
    g.graph.operators[-1].outputs = g.graph.outputs = outputs
    at, size = r.uniform(0, 2, (24, 2)), r.uniform(0.5, 2, (24, 2))
    corners = np.concatenate([at, at + size], 1).astype("f4")
    corners[::3] = corners[::3][:, [2, 1, 0, 3]]
    best = r.uniform(0.1, 1, 24).astype("f4")
    corners[5, 2:], best[5] = corners[5, :2], 0.45
    return g.bytes(), {"boxes": corners, "scores": best}


def reduced_open(name, type):
    """Over an axis whose extent the file leaves open."""
    g, r = Graph(), np.random.default_rng(21)
    dtype = {"INT8": "i1", "UINT8": "u1", "INT16": "i2"}[type]
    zero = {"INT8": -7, "UINT8": 120, "INT16": 0}[type]
    x = g.tensor("x", [-1, 6, 5], type=type, scale=0.03, zero=zero)
    axes = g.tensor("axes", [2], np.array([0, 1], "i4"), integer=True)
    options = s.ReducerOptionsT()
    g.graph.inputs = [x]
    y = g.tensor("y", [5], type=type, scale=0.011 if name == "MEAN" else 0.9, zero=zero)
    g.graph.outputs = [g.op(name, [x, axes], y, "ReducerOptions", options)]
    info = np.iinfo(dtype)
    return g.bytes(), {"x": r.integers(info.min, info.max + 1, (11, 6, 5)).astype(dtype)}


# Each with its operator, kind, and whether results are exact.
CASES = {
    "computed_shape": (computed_shape, "CONV_2D", "float", False),
    "one_hot_first_axis": (one_hot_first_axis, "ONE_HOT", "float", True),
    "quantized_root": (quantized_root, "SQRT", "int8", True),
    "power_of_integers": (power_of_integers, "POW", "float", True),
    "complex_numbers_moved": (complex_numbers_moved, "RFFT2D", "float", False),
    "dynamic_integers": (lambda: dynamic_integers(False), "FULLY_CONNECTED", "dynamic", True),
    "dynamic_integers_asymmetric": (lambda: dynamic_integers(True), "FULLY_CONNECTED", "dynamic", True),
    "dynamic_dense": (lambda: dynamic_dense(False, None), "FULLY_CONNECTED", "dynamic", False),
    "dynamic_dense_channels": (lambda: dynamic_dense(True, 17), "FULLY_CONNECTED", "dynamic", False),
    "dynamic_conv": (lambda: dynamic_conv(None), "CONV_2D", "dynamic", False),
    "dynamic_conv_channels": (lambda: dynamic_conv(16), "CONV_2D", "dynamic", False),
    "dynamic_conv_groups": (lambda: dynamic_conv(16, 2), "CONV_2D", "dynamic", False),
    "dynamic_depthwise": (dynamic_depthwise, "DEPTHWISE_CONV_2D", "dynamic", False),
    "dynamic_transposed": (dynamic_transposed, "TRANSPOSE_CONV", "dynamic", False),
    "dynamic_matmul": (lambda: dynamic_matmul(False, False, True), "BATCH_MATMUL", "dynamic", False),
    "dynamic_matmul_turned": (lambda: dynamic_matmul(True, True, False), "BATCH_MATMUL", "dynamic", False),
    "dynamic_rnn": (lambda: dynamic_rnn(False), "UNIDIRECTIONAL_SEQUENCE_RNN", "dynamic", False),
    "dynamic_rnn_asymmetric": (lambda: dynamic_rnn(True), "UNIDIRECTIONAL_SEQUENCE_RNN", "dynamic", False),
    "dynamic_lstm": (lambda: dynamic_lstm(False), "UNIDIRECTIONAL_SEQUENCE_LSTM", "dynamic", False),
    "dynamic_lstm_asymmetric": (lambda: dynamic_lstm(True), "UNIDIRECTIONAL_SEQUENCE_LSTM", "dynamic", False),
    "dynamic_svdf": (dynamic_svdf, "SVDF", "dynamic", False),
    "integer_svdf": (integer_svdf, "SVDF", "int8", True),
    "soft_suppression": (soft_suppression, "NON_MAX_SUPPRESSION_V5", "float", False),
    "mean_open": (lambda: reduced_open("MEAN", "INT8"), "MEAN", "int8", True),
    "mean_open_unsigned": (lambda: reduced_open("MEAN", "UINT8"), "MEAN", "int8", True),
    "mean_open_short": (lambda: reduced_open("MEAN", "INT16"), "MEAN", "int16", True),
    "sum_open": (lambda: reduced_open("SUM", "INT8"), "SUM", "int8", True),
}

if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as archive:
        kept = {i.filename: archive.read(i) for i in archive.infolist()}
    for name, (case, op, kind, exact) in CASES.items():
        model, inputs = case()
        # The reference kernel of integer SUM loses the zero point.
        kernels = "builtin" if op == "SUM" else "reference"
        resolver = {"builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, "reference": OpResolverType.BUILTIN_REF}[kernels]
        reference = Interpreter(model_content=model, experimental_op_resolver_type=resolver)
        for d in reference.get_input_details():
            reference.resize_tensor_input(d["index"], inputs[d["name"]].shape)
        reference.allocate_tensors()
        for d in reference.get_input_details():
            reference.set_tensor(d["index"], inputs[d["name"]])
        reference.invoke()
        outputs = {str(i): reference.get_tensor(d["index"]) for i, d in enumerate(reference.get_output_details())}
        kept[f"{name}/model.tflite"] = model
        for file, arrays in [("inputs.npz", inputs), ("outputs.npz", outputs)]:
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)
            kept[f"{name}/{file}"] = buffer.getvalue()
        about = dict(op=[op], kind=kind, exact=exact, kernels=kernels, source="operator by operator")
        kept[f"{name}/meta.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in kept.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
