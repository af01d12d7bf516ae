"""The package's own costs: calls back, runs, imports.

    python measure.py [--model MODEL [--params PARAMS]] [--onnxruntime] [--repeat N]

Prints a line for each measure, least of the repetitions. `--model` is the network whose saturation is timed with cost models in Rust and in
Python (MobileNet-V2, say); without it a network of 40 blocks of convolutions is made. `--onnxruntime` compares runs of a small MLP with it, and
needs the packages onnx and onnxruntime.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

import resat as rs

MLP = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 64), float32], %w1: Tensor[(128, 64), float32], %w2: Tensor[(10, 128), float32]) {
  nn.dense(nn.relu(nn.dense(%x, %w1, units=128)), %w2, units=10)
}
"""


def blocks(n):
    """A network of residual blocks, as text and with weights."""
    params, body, last = ["%x: Tensor[(1, 32, 28, 28), float32]"], [], "%x"
    for i in range(n):
        params += [f"%w{i}: Tensor[(32, 32, 3, 3), float32]", f"%b{i}: Tensor[(32), float32]"]
        body.append(f"  %{3 * i} = nn.conv2d({last}, %w{i}, padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3]);")
        body.append(f"  %{3 * i + 1} = nn.relu(nn.bias_add(%{3 * i}, %b{i}));")
        body.append(f"  %{3 * i + 2} = add(%{3 * i + 1}, {last});")
        last = f"%{3 * i + 2}"
    text = '#[version = "0.0.5"]\ndef @main(' + ", ".join(params) + ") {\n" + "\n".join(body) + f"\n  {last}\n}}\n"
    rng = np.random.default_rng(0)
    weights = {}
    for i in range(n):
        weights |= {f"w{i}": rng.standard_normal((32, 32, 3, 3), "float32"), f"b{i}": rng.standard_normal(32, "float32")}
    return rs.parse(text).bind(weights)


def least(f, repeat):
    best = float("inf")
    for _ in range(repeat):
        begin = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - begin)
    return best


# Seconds of a call, an operation and a byte: the same prices three times.
CALL, FLOP, BYTE = 1e-6, 1e-11, 1e-10
TABLE = json.dumps({"default": {"cost": CALL, "per_flop": FLOP, "per_byte": BYTE}})


class Node:
    def cost(self, node):
        return CALL + FLOP * node.flops + BYTE * (node.bytes_read + node.bytes_written)


class Columns:
    def costs(self, nodes):
        return CALL + FLOP * nodes.flops + BYTE * (nodes.bytes_read + nodes.bytes_written)


def calls_back(mod, repeat):
    """Models are new for each repetition: what they know is forgotten. Of the three, turn by turn, the least time counts."""
    saturate = rs.Saturate()
    times = {"rust": [], "node": [], "columns": []}
    asked = 0
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        file.write(TABLE)
    for _ in range(repeat):
        for name, model in (("rust", f"table:{file.name}"), ("node", Node()), ("columns", Columns())):
            config = rs.BuildConfig(cost=model)
            begin = time.perf_counter()
            saturate(mod, config=config)
            times[name].append(time.perf_counter() - begin)
            asked = asked if name == "rust" else len(model._resat_memo)
    os.unlink(file.name)
    rust = min(times["rust"])
    print(f"saturate and extract, prices in Rust: {rust:.3f} s")
    print(f"  in Python, a node at a time: {min(times['node']):.3f} s, {min(times['node']) / rust:.2f} x ({asked} different nodes)")
    print(f"  in Python, columns: {min(times['columns']):.3f} s, {min(times['columns']) / rust:.2f} x")


def runs(repeat, compare):
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((128, 64), "float32"), "w2": rng.standard_normal((10, 128), "float32")}
    mod = rs.parse(MLP).bind(weights)
    exe = rs.build(mod, threads=1)
    x = rs.empty((1, 64))
    x[:] = rng.standard_normal((1, 64))
    inputs = {"x": x}
    many = 20000
    inside = min(exe.latencies(inputs, many))
    def ours():
        for _ in range(many):
            exe.run(inputs)
    outside = least(ours, repeat) / many
    print(f"run of a small MLP: {1e6 * inside:.2f} us in Rust, {1e6 * outside:.2f} us from Python ({1e6 * (outside - inside):+.2f} us)")
    if not compare:
        return
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "w2"], ["y"]),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(np.ascontiguousarray(w.T), name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, inputs)[0], exe.run(inputs)[0], rtol=1e-4, atol=1e-4)
    def theirs():
        for _ in range(many):
            session.run(None, inputs)
    print(f"  onnxruntime {onnxruntime.__version__}: {1e6 * least(theirs, repeat) / many:.2f} us")


def imports(repeat):
    def once(what):
        code = f"import time; t = time.perf_counter(); import {what}; print(time.perf_counter() - t)"
        return min(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(repeat))

    print(f"import resat: {once('resat'):.3f} s; numpy alone: {once('numpy'):.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--params")
    parser.add_argument("--onnxruntime", action="store_true")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    imports(args.repeat)
    runs(args.repeat, args.onnxruntime)
    calls_back(rs.load(args.model, args.params) if args.model else blocks(40), args.repeat)
