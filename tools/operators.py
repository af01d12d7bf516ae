#!/usr/bin/env python3
"""Writes single operators of many shapes as ONNX files with random weights, and inputs as FILE.npz beside each, for
`make bench-rivals RIVALS="--only latency --onnx FOLDER/*.onnx"`: what is slow at one shape hides in a network.

    operators.py FOLDER [SUBSTRING]

Those whose name holds SUBSTRING, else all. Needs numpy and onnx."""
import pathlib, sys

import numpy as np
import onnx
from onnx import TensorProto as T, helper, numpy_helper

R = np.random.default_rng(1)
CASES = {}
weight = lambda *shape: (R.uniform(-1, 1, shape) * 0.1).astype("f4")
ints = lambda *values: np.array(values, "i8")


def case(name, nodes, inputs, weights=None, opset=18):
    """A model of (operator, inputs, output, attributes) nodes: `inputs` are shapes by name, of `int64` where the name ends in `_i`; the last output is the model's."""
    CASES[name] = nodes, inputs, weights or {}, opset


def one(name, op, inputs, weights=None, opset=18, **attrs):
    case(name, [(op, [*inputs, *(weights or {})], "y", attrs)], inputs, weights, opset)


def conv(ci, hw, co, k, stride=1, groups=1, dilation=1, batch=1):
    attrs = dict(kernel_shape=[k, k], strides=[stride] * 2, pads=[dilation * (k // 2)] * 4, group=groups, dilations=[dilation] * 2)
    nodes = [("Conv", ["x", "w", "b"], "c", attrs), ("Relu", ["c"], "y", {})]
    name = f"conv_b{batch}_{ci}x{hw}_{co}_k{k}_s{stride}_g{groups}_d{dilation}"
    case(name, nodes, {"x": (batch, ci, hw, hw)}, {"w": weight(co, ci // groups, k, k), "b": weight(co)})


def chain(c, hw, times):
    """Convolutions of one pixel one after another, so that no weight stays in the second cache."""
    nodes, weights, x = [], {}, "x"
    for i in range(times):
        weights[f"w{i}"] = weight(c, c, 1, 1)
        nodes += [("Conv", [x, f"w{i}"], f"c{i}", {}), ("Relu", [f"c{i}"], f"y{i}", {})]
        x = f"y{i}"
    case(f"chain_{times}_{c}x{hw}", nodes, {"x": (1, c, hw, hw)}, weights)


def transposed(ci, hw, co, k, stride, pad, groups=1):
    attrs = dict(kernel_shape=[k, k], strides=[stride] * 2, pads=[pad] * 4, group=groups)
    one(f"transposed_{ci}x{hw}_{co}_k{k}_s{stride}_g{groups}", "ConvTranspose", {"x": (1, ci, hw, hw)}, {"w": weight(ci, co // groups, k, k)}, **attrs)


def resize(c, hw, to, mode, **attrs):
    case(f"resize_{c}x{hw}_{to}_{mode}", [("Resize", ["x", "", "", "s"], "y", dict(mode=mode, **attrs))], {"x": (1, c, hw, hw)}, {"s": ints(1, c, to, to)})


def recurrent(op, gates, batch, steps, width, hidden, directions=1):
    shapes = dict(w=(directions, gates * hidden, width), r=(directions, gates * hidden, hidden), b=(directions, 2 * gates * hidden))
    direction = "bidirectional" if directions == 2 else "forward"
    one(f"{op.lower()}_b{batch}_{steps}_{width}_{hidden}_{direction}", op, {"x": (steps, batch, width)}, {k: weight(*s) for k, s in shapes.items()}, hidden_size=hidden, direction=direction)


def attention(batch, heads, queries, keys, depth):
    nodes = [("Transpose", ["k"], "t", dict(perm=[0, 1, 3, 2])), ("MatMul", ["x", "t"], "q", {}), ("Mul", ["q", "c"], "s", {})]
    nodes += [("Softmax", ["s"], "p", {}), ("MatMul", ["p", "v"], "y", {})]
    shapes = {"x": (batch, heads, queries, depth), "k": (batch, heads, keys, depth), "v": (batch, heads, keys, depth)}
    case(f"attention_b{batch}_h{heads}_{queries}_{keys}_{depth}", nodes, shapes, {"c": np.float32(depth**-0.5)})


def contractions():
    for a in [(3, 224, 32, 3, 2), (3, 224, 64, 7, 2), (1, 224, 32, 5), (24, 56, 24, 3), (40, 28, 40, 3), (36, 56, 36, 3), (20, 56, 20, 5), (256, 28, 256, 3, 1, 1, 4),
              (512, 14, 512, 3), (512, 7, 512, 3), (64, 56, 64, 3, 2), (128, 28, 128, 5), (64, 28, 96, 7), (32, 56, 64, 1, 2), (440, 7, 440, 1), (1000, 7, 1000, 1), (104, 28, 104, 1),
              (17, 33, 19, 3), (96, 56, 96, 7, 1, 96), (384, 14, 384, 7, 1, 384), (72, 56, 72, 5, 2, 72), (960, 7, 960, 5, 1, 960), (128, 28, 128, 3, 1, 32), (104, 28, 104, 3, 1, 13),
              (64, 56, 64, 3, 1, 2), (512, 14, 512, 3, 1, 1, 6), (64, 128, 3, 3), (64, 28, 64, 3, 1, 1, 1, 4), (256, 7, 256, 3, 1, 1, 1, 8)]:
        conv(*a)
    for c, hw in [(400, 7), (440, 7), (448, 7), (456, 7), (1000, 7), (1024, 7), (104, 28), (112, 28), (40, 56)]:
        chain(c, hw, 12)
    for a in [(256, 16, 128, 4, 2, 1), (64, 56, 32, 2, 2, 0), (128, 28, 64, 3, 2, 1), (32, 64, 3, 4, 2, 1), (21, 14, 21, 16, 8, 4, 21)]:
        transposed(*a)
    for m, k, n in [(1, 768, 3072), (1, 4096, 1000), (4, 512, 512), (7, 300, 500), (49, 384, 1536), (197, 768, 768), (128, 768, 3072), (64, 64, 64), (1000, 10, 1000), (33, 2048, 2048)]:
        one(f"matmul_{m}x{k}x{n}_weight", "MatMul", {"x": (m, k)}, {"w": weight(k, n)})
        one(f"matmul_{m}x{k}x{n}", "MatMul", {"x": (m, k), "w": (k, n)})
    for a in [("LSTM", 4, 1, 64, 128, 256), ("LSTM", 4, 4, 64, 128, 256, 2), ("LSTM", 4, 16, 32, 256, 512), ("LSTM", 4, 1, 200, 40, 100, 2), ("GRU", 3, 8, 64, 128, 256)]:
        recurrent(*a)
    for a in [(1, 12, 128, 128, 64), (1, 12, 197, 197, 64), (1, 6, 1500, 1500, 64), (1, 8, 1, 512, 64), (64, 3, 49, 49, 32), (1, 8, 4096, 77, 40)]:
        attention(*a)


def others():
    for a in [(64, 28, 56, "linear"), (64, 56, 28, "linear"), (64, 128, 256, "linear"), (3, 480, 224, "linear"), (256, 16, 32, "linear"), (3, 224, 448, "cubic")]:
        resize(*a)
    for hw in (28, 56):
        resize(64, hw, 2 * hw, "nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    image, rows = {"x": (1, 64, 56, 56)}, {"x": (64, 1000)}
    for op in "Sigmoid Tanh Erf Exp Log Sqrt Relu Softplus HardSwish Elu Mish Sin Cos Floor".split():
        one(op.lower(), op, image)
    for op in "Add Mul Div Pow".split():
        one(op.lower(), op, {**image, "z": (1, 64, 56, 56)})
    for op, c, hw, k, s in [("MaxPool", 64, 112, 3, 2), ("MaxPool", 512, 13, 5, 1), ("AveragePool", 192, 35, 3, 1), ("LpPool", 64, 56, 2, 2)]:
        one(f"{op.lower()}_{c}x{hw}_k{k}", op, {"x": (1, c, hw, hw)}, kernel_shape=[k, k], strides=[s, s], pads=[(k - 1) // 2] * 4)
    for shape in [(12, 128, 128), (1, 1000), (192, 49, 49), (64, 30000)]:
        one("softmax_" + "x".join(map(str, shape)), "Softmax", {"x": shape})
    for op, shape, axes in [("ReduceMean", (1, 128, 768), [-1]), ("ReduceMean", (1, 256, 28, 28), [2, 3]), ("ReduceSum", (512, 512), [0]), ("ReduceMax", (1, 64, 56, 56), [1])]:
        one(f"{op.lower()}_{'x'.join(map(str, shape))}", op, {"x": shape}, {"a": ints(*axes)})
    for shape, perm in [((1, 64, 56, 56), [0, 2, 3, 1]), ((1, 56, 56, 64), [0, 3, 1, 2]), ((1, 128, 12, 64), [0, 2, 1, 3]), ((512, 512), [1, 0])]:
        one(f"transpose_{'x'.join(map(str, shape))}", "Transpose", {"x": shape}, perm=perm)
    one("layernorm_128x768", "LayerNormalization", {"x": (1, 128, 768)}, {"g": weight(768), "b": weight(768)})
    one("instancenorm_64x128", "InstanceNormalization", {"x": (1, 64, 128, 128)}, {"g": weight(64), "b": weight(64)})
    one("topk_5_of_1000", "TopK", rows, {"k": ints(5)})
    one("topk_100_of_30000", "TopK", {"x": (4, 30000)}, {"k": ints(100)})
    one("cumsum", "CumSum", rows, {"k": np.array(1, "i8")})
    one("pad_reflect", "Pad", image, {"k": ints(0, 0, 1, 1, 0, 0, 1, 1)}, mode="reflect")
    one("gather_elements", "GatherElements", {"x": (64, 1000), "z_i": (64, 100)}, axis=1)
    one("gridsample", "GridSample", {**image, "z": (1, 56, 56, 2)})
    one("prelu", "PRelu", image, {"w": weight(64, 1, 1)})


def write(file, nodes, inputs, weights, opset):
    two = {"TopK": ["y", "places"]}
    made = [helper.make_node(op, ins, two.get(op, [out]), **attrs) for op, ins, out, attrs in nodes]
    given = {k: R.integers(0, 100, s) if k.endswith("_i") else R.uniform(0.05, 1, s).astype("f4") for k, s in inputs.items()}
    infos = [helper.make_tensor_value_info(k, T.INT64 if k.endswith("_i") else T.FLOAT, v.shape) for k, v in given.items()]
    out = helper.make_tensor_value_info(made[-1].output[0], T.FLOAT, None)
    graph = helper.make_graph(made, "case", infos, [out], [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), str(file))
    np.savez(file.with_suffix(".npz"), **given)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    contractions()
    others()
    chosen = {name: c for name, c in CASES.items() if len(sys.argv) < 3 or sys.argv[2] in name}
    for name, c in chosen.items():
        write(folder / f"{name}.onnx", *c)
    print(f"{len(chosen)} operators")
