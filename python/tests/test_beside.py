"""Beside other compilers in one process: two LLVMs, ONNX Runtime, torch, each before and after resat works."""

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
import onnxruntime

def other():
    return "CPUExecutionProvider" in onnxruntime.get_available_providers()
"""


@pytest.mark.parametrize("name, code", [("llvmlite", LLVM), ("torch", TORCH), ("onnxruntime", ONNXRUNTIME)])
@pytest.mark.parametrize("order", ["built() and other() and built()", "other() and built() and other()"])
def test_beside(name, code, order):
    pytest.importorskip(name)
    text = textwrap.dedent(BUILD) + textwrap.dedent(code) + f"\nassert {order}\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
