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

    def tensor(self, name, shape, value=None, integer=False):
        """A tensor; -1 for extents that are known when the model runs."""
        t = s.TensorT()
        t.name, t.hasRank, t.buffer = name, True, 0
        t.type = s.TensorType.INT32 if integer else s.TensorType.FLOAT32
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


CASES = {"computed_shape": computed_shape}

if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as archive:
        kept = {i.filename: archive.read(i) for i in archive.infolist()}
    for name, case in CASES.items():
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
        about = dict(op=["CONV_2D"], kind="float", exact=False, kernels="reference", source="operator by operator")
        kept[f"{name}/meta.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in kept.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
