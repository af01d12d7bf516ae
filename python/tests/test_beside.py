"""Beside other compilers in one process: two LLVMs, ONNX Runtime, torch, each before and after resat works."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest

BUILD = """
def built():
    import numpy as np, resat as rs
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(4), float32]) { exp(nn.relu(%x)) }')
    return rs.build(mod).run([np.zeros(4, "float32")])[0].tolist() == [1] * 4
"""

LLVM = """
import ctypes
import llvmlite.binding as llvm

def other():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("define i32 @f(i32 %x) { %y = add i32 %x, 1 ret i32 %y }")
    machine = llvm.Target.from_default_triple().create_target_machine()
    with llvm.create_mcjit_compiler(module, machine) as engine:
        engine.finalize_object()
        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(engine.get_function_address("f"))(41) == 42
"""

TORCH = """
import torch

def other():
    return torch.compile is not None and (torch.ones(3) + 1).tolist() == [2, 2, 2]
"""

ONNXRUNTIME = """
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

def other():
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.array([1, 2], "float32")})[0].tolist() == [-1, -2]
"""

JAX = """
import jax

def other():
    return jax.jit(lambda x: x + 1)(jax.numpy.ones(3)).tolist() == [2, 2, 2]
"""

OTHERS = [("llvmlite", LLVM), ("torch", TORCH), ("onnxruntime", ONNXRUNTIME), ("jax", JAX)]


def ran(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", ["all_others() and built() and all_others()", "built() and all_others() and built()"])
def test_beside_all(order):
    """Whatever of them is installed, in one process."""
    others = [(name, code) for name, code in OTHERS if importlib.util.find_spec(name)]
    if not others:
        pytest.skip("none of " + ", ".join(name for name, _ in OTHERS) + " is installed")
    parts = [textwrap.dedent(BUILD)]
    for name, code in others:
        parts.append(textwrap.dedent(code).replace("def other", f"def {name}_works"))
    calls = " and ".join(f"{name}_works()" for name, _ in others)
    ran("\n".join(parts) + f"\ndef all_others():\n    return {calls}\n\nassert {order}\n")


@pytest.mark.parametrize("name, code", OTHERS)
@pytest.mark.parametrize("order", ["built() and other() and built()", "other() and built() and other()"])
def test_beside(name, code, order):
    pytest.importorskip(name)
    ran(textwrap.dedent(BUILD) + textwrap.dedent(code) + f"\nassert {order}\n")
