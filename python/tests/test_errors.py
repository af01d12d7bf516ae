"""What is refused, and how it is told."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import resat as rs


def test_diagnostics_have_places_and_advice():
    text = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2), float32]) {\n  nn.rellu(%x)\n}'
    with pytest.raises(rs.Refused) as e:
        rs.parse(text, "f.relay")
    (d,) = e.value.diagnostics
    assert (d.file, d.line, d.column, d.message, d.help) == ("f.relay", 3, 3, "operator `nn.rellu` is not known", "did you mean `nn.relu`?")
    assert "nn.rellu(%x)" in str(e.value) and isinstance(e.value, ValueError)
    again = pickle.loads(pickle.dumps(e.value))
    assert again.diagnostics == e.value.diagnostics and str(again) == str(e.value)


def test_all_complaints_at_once(mlp):
    exe = rs.build(mlp)
    with pytest.raises(rs.Refused) as e:
        exe.run({"y": np.zeros(2)})
    assert len(e.value.diagnostics) == 2


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: rs.Pass("FoldConstnt"), "did you mean `FoldConstant`"),
        (lambda: rs.FuseOps(largest=0), "positive number"),
        (lambda: rs.BuildConfig(cost="rooflin"), "roofline"),
        (lambda: rs.BuildConfig(extractor="dagg"), "did you mean `dag`"),
        (lambda: rs.BuildConfig(limits={"node": 3}), "did you mean `nodes`"),
        (lambda: rs.BuildConfig(without=["algebra/none"]), "no rule"),
        (lambda: rs.BuildConfig(target="llvm -mcpu=none-such"), "none-such"),
        (lambda: rs.default_pipeline(rs.BuildConfig(disabled_pass=["FusOps"])), "did you mean `FuseOps`"),
        (lambda: rs.default_pipeline().remove("fusee"), "did you mean `fuse`"),
        (lambda: rs.default_pipeline().run_after("fuse", rs.FuseOps(), name="inline"), "already has a stage"),
        (lambda: rs.load("/none/such.onnx"), "such.onnx"),
        (lambda: rs.Ruleset("(ruleset t) (rule a (nn.rellu ?x) => ?x)"), "did you mean `nn.relu`"),
        (lambda: rs.TensorType((2,), "float31"), "float31"),
    ],
)
def test_what_can_not_be_is_refused(call, said):
    with pytest.raises(rs.Refused, match=said):
        call()


def test_exceptions_of_the_user_come_through(mlp):
    def model(node):
        raise LookupError("mine")

    @rs.module_pass
    def failing(mod):
        raise ZeroDivisionError("mine")

    @rs.module_pass
    def nothing(mod):
        return None

    with pytest.raises(LookupError, match="mine"):
        rs.build(mlp, config=rs.BuildConfig(cost=model))
    with pytest.raises(ZeroDivisionError):
        failing(mlp)
    with pytest.raises(TypeError, match="should give a resat.Module, not NoneType"):
        nothing(mlp)


def test_switches_that_change_nothing_are_told(mlp):
    with pytest.warns(rs.ResatWarning):
        rs.Quantize(from_layer=9)(mlp)


def test_ctrl_c_ends_a_long_call(cnn):
    """A model whose answers take long holds a saturation up; the interpreter's own signal ends it."""
    asked = []

    def slow(node):
        asked.append(node.op)
        if len(asked) == 1:
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        time.sleep(0.05)
        return 1.0

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        rs.build(cnn, config=rs.BuildConfig(cost=slow))
    assert time.monotonic() - begin < 30
    # Nothing is left behind that would harm what follows.
    rs.build(cnn)


def test_a_panic_is_an_error_of_ours():
    """In a process of its own, as the message goes to its standard error."""
    code = """
        import resat as rs
        d = rs.Dialect("panicking")
        @d.op(samples=[((rs.TensorType((2,)),), {})])
        def op(data):
            return data
        # A tuple for a tensor: what the type relation promised is not kept.
        op.infer(lambda attrs, args: args[0])
        op.function = lambda data: (data, data)
        d.register()
        mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(2), float32]) { exp(panicking.op(%x)) }')
        try:
            mod.interpret([[1.0, 2.0]])
        except (rs.InternalError, rs.Refused) as e:
            print("caught", type(e).__name__)
        print(rs.parse('#[version = "0.0.5"] def @main(%x: float32) { exp(%x) }').ops())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("caught ") and "{'exp': 1}" in done.stdout, done
