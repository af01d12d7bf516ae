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

    def tensor(self, name, shape, value=None, integer=False, type=None, scale=None, zero=0):
        """A tensor; -1 for extents that are known when the model runs."""
        t = s.TensorT()
        t.name, t.hasRank, t.buffer = name, True, 0
        t.type = getattr(s.TensorType, type or ("INT32" if integer else "FLOAT32"))
        if scale is not None:
            t.quantization = s.QuantizationParametersT()
            t.quantization.scale, t.quantization.zeroPoint = [scale], [zero]
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


# Each with its operator, kind, and whether results are exact.
CASES = {
    "computed_shape": (computed_shape, "CONV_2D", "float", False),
    "one_hot_first_axis": (one_hot_first_axis, "ONE_HOT", "float", True),
    "quantized_root": (quantized_root, "SQRT", "int8", True),
    "power_of_integers": (power_of_integers, "POW", "float", True),
    "complex_numbers_moved": (complex_numbers_moved, "RFFT2D", "float", False),
}

if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as archive:
        kept = {i.filename: archive.read(i) for i in archive.infolist()}
    for name, (case, op, kind, exact) in CASES.items():
        model, inputs = case()
        reference = Interpreter(model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
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
        about = dict(op=[op], kind=kind, exact=exact, kernels="reference", source="operator by operator")
        kept[f"{name}/meta.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in kept.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
