"""What is refused, and with what message."""

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


PROGRAM = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(3), float32]) { exp(%x) }')


def built(**options):
    return rs.build(PROGRAM, **options)


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
        (lambda: rs.BuildConfig(opt_level=9), "no level 9"),
        (lambda: built(threads=0), "one thread at least"),
        (lambda: built(tune=-1.0), "tune is -1"),
        (lambda: built(config=rs.BuildConfig(cost=lambda node: -1.0)), "gives -1 for `exp`, but prices are not negative"),
        (lambda: built().run([np.zeros(3, "float64")]), "should be float32"),
        (lambda: built().run(np.zeros(3, "float32")), "a dict by name, or a list"),
        (lambda: rs.explore(PROGRAM, ["FoldConstant"], measure_seconds=-1), "measure_seconds is -1"),
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


def test_a_cache_that_can_not_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(rs.ResatWarning, match="nothing more is kept"):
        assert built(cache=tmp_path / "file" / "cache").run([np.zeros(3, "float32")])[0].tolist() == [1, 1, 1]


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


@pytest.mark.parametrize("within_long", [False, True])
def test_a_panic_is_an_error_of_ours(within_long):
    """In a process of its own, as the message goes to its standard error."""
    code = f"""
        import resat as rs
        try:
            rs._resat.panic({within_long})
        except rs.InternalError as e:
            print(e)
        print(rs.build(rs.parse('#[version = "0.0.5"] def @main(%x: float32) {{ exp(%x) }}')).run([0.0]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done
    assert done.stdout == "internal error: this is a bug in resat: asked for\n[array(1., dtype=float32)]\n", done


def test_an_operator_that_breaks_its_promise_is_refused():
    d = rs.Dialect("breaking")

    @d.op(samples=[((rs.TensorType((2,)),), {})])
    def op(data):
        """A tuple, where the type relation says a tensor."""
        return data, data

    op.infer(lambda attrs, args: args[0])
    d.register()
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(2), float32]) { exp(breaking.op(%x)) }')
    with pytest.raises(rs.Refused, match="should be a tensor"):
        mod.interpret([[1.0, 2.0]])
