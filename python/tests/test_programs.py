"""Programs: pickles, files of other kinds with their names and sizes, C, and what is known of the machine."""

import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

import resat as rs


@pytest.fixture(scope="module")
def big():
    w = np.arange(512 * 512, dtype="float32").reshape(512, 512)
    text = '#[version = "0.0.5"] def @main(%x: Tensor[(1, 512), float32], %w: Tensor[(512, 512), float32]) { add(nn.dense(%x, %w, units=512), 2f) }'
    return rs.parse(text).bind({"w": w})


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_modules_are_pickled_as_a_skeleton_and_constants(big, protocol):
    data = pickle.dumps(big, protocol)
    assert pickle.loads(data) == big and len(data) < 2**20 * (3 if protocol < 3 else 1.1)


def test_constants_go_out_of_band(big):
    buffers = []
    data = pickle.dumps(big, 5, buffer_callback=buffers.append)
    assert len(data) < 2000 and [b.raw().nbytes for b in buffers] == [2**20]
    assert pickle.loads(data, buffers=buffers) == big
    # A constant that is there twice goes once.
    twice = rs.parse('#[version = "0.0.5"] def @main(%a: Tensor[(64), float32], %b: Tensor[(64), float32]) { add(%a, %b) }')
    twice = twice.bind({"a": np.arange(64, dtype="float32"), "b": np.arange(64, dtype="float32")})
    buffers.clear()
    pickle.dumps(twice, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1


def test_passes_and_configurations_are_pickled(mlp):
    mine = rs.Ruleset("(ruleset pickled :numerics real) (rule twice (negative (negative ?x)) => ?x)")
    things = [
        rs.FoldConstant(),
        rs.ConvertLayout("NCHW", to="NHWC"),
        rs.Sequential([rs.FoldConstant(), "FuseOps"]),
        rs.default_pipeline(),
        rs.TensorType((None, 3), "int8"),
        rs.Quantize(calibration={"x": np.ones((1, 4, 32), "float32")}),
    ]
    for thing in things:
        assert repr(pickle.loads(pickle.dumps(thing))) == repr(thing)
    again = pickle.loads(pickle.dumps(rs.BuildConfig(opt_level=1, rules=mine, target="llvm -mcpu=native -num-cores=1")))
    assert again.opt_level == 1 and again.settings().cores == 1
    assert rs.default_pipeline(again)(mlp) == rs.default_pipeline(rs.BuildConfig(opt_level=1))(mlp)
    assert pickle.loads(pickle.dumps(mine)).names == ["pickled"]


def test_models_of_onnx_have_their_names_and_sizes(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("in.put:0", TensorProto.FLOAT, ["batch", 3])
    y = helper.make_tensor_value_info("out/put", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph([helper.make_node("Neg", ["in.put:0"], ["out/put"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    data = model.SerializeToString()
    for mod, batch in (
        (rs.load(tmp_path / "m.onnx"), None),
        (rs.load(tmp_path / "m.onnx", dims={"batch": 2}), 2),
        (rs.load(tmp_path / "m.onnx", shapes={"in.put:0": (2, 3)}, ranks={"in.put:0": 2}), 2),
        (rs.parse(data, "m.onnx", dims={"batch": 2}), 2),
    ):
        exe = rs.build(mod)
        assert [(n, t.shape) for n, t in exe.inputs] == [("in.put:0", (batch, 3))]
        assert [n for n, _ in exe.outputs] == ["out/put"]
        given = np.ones((2, 3), "float32")
        own = mod["main"].params[0][0]
        for inputs in ({"in.put:0": given}, {own: given}, {0: given}, [given]):
            assert exe.run(inputs)[0].tolist() == [[-1] * 3] * 2
        with pytest.raises(rs.Refused) as e:
            exe.run({"in.put": given})
        assert [d.message for d in e.value.diagnostics] == ["the program has no input `in.put`; it has in.put:0", "input `in.put:0` is not given"]
        assert e.value.diagnostics[0].help == "did you mean `in.put:0`?"
    with pytest.raises(rs.Refused, match="given twice"):
        exe.run({"in.put:0": given, 0: given})
    with pytest.raises(rs.Refused, match="bach"):
        rs.load(tmp_path / "m.onnx", dims={"bach": 2})
    with pytest.raises(TypeError, match="says its sizes itself"):
        rs.parse('#[version = "0.0.5"] def @main(%x: float32) { %x }', dims={"n": 1})


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_program_as_c(tmp_path):
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(4), float32]) { exp(nn.relu(%x)) }')
    files = rs.emit_c(mod, tmp_path / "m.c", name="mine")
    assert [f.rsplit("/", 1)[1] for f in files] == ["m.c", "m.h"]
    subprocess.run(["cc", "-c", "-O1", "-o", tmp_path / "m.o", tmp_path / "m.c"], check=True)
    assert "mine" in (tmp_path / "m.h").read_text()
    with pytest.raises(rs.Refused, match="known extents"):
        rs.emit_c(rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(?), float32]) { exp(%x) }'), tmp_path / "n.c")
    assert not (tmp_path / "n.c").exists()
    with pytest.raises(rs.CompileError, match="none"):
        rs.emit_c(mod, tmp_path / "none" / "m.c")


def test_the_machine_is_known():
    known = rs.machine()
    assert known["threads"] >= 1 and known["family"] and {"name", "unit", "value", "from", "measured"} <= set(known["facts"][0])


def test_tuning_is_remembered(tmp_path):
    """In the user's folder: of another process in a folder of its own."""
    code = """
import numpy as np, pathlib, resat as rs
mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(64, 256), float32], %w: Tensor[(256, 256), float32]) { nn.dense(%x, %w, units=256) }')
mod = mod.bind({"w": np.eye(256, dtype="float32")})
x = np.arange(64 * 256, dtype="float32").reshape(64, 256)
assert (rs.build(mod, threads=1, tune=5.0).run([x])[0] == x).all()
print(len(list(pathlib.Path("cache").rglob("*"))))
"""
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) > 0, done


def test_programs_are_kept_with_what_decides_them(tmp_path):
    """Of known and of unknown extents: found again, with the same results; built where the configuration is another one, or passes are traced."""
    text = '#[version = "0.0.5"] def @main(%x: Tensor[(N, 8), float32], %w: Tensor[(8, 8), float32]) { nn.relu(nn.dense(%x, %w, units=8)) }'
    x = np.arange(24, dtype="float32").reshape(3, 8)
    w = np.arange(64, dtype="float32").reshape(8, 8) - 30

    def built(n, by=1, **how):
        return rs.build(rs.parse(text.replace("N", n)).bind({"w": w * by}), cache=tmp_path / n.replace("?", "any"), **how)

    def is_found(exe):
        try:
            return exe.module is None
        except ValueError:
            return True

    for n in ("3", "?"):
        exes = [built(n), built(n), built(n, by=2), built(n, config=rs.BuildConfig(opt_level=1)), built(n, pipeline="FuseOps")]
        assert [is_found(exe) for exe in exes] == [False, True, False, False, False]
        for exe, by in zip(exes, (1, 1, 2, 1, 1)):
            np.testing.assert_array_equal(exe.run([x])[0], np.maximum(x @ (w * by).T, 0))
        assert exes[0].outputs == exes[1].outputs
        with rs.Trace():
            assert not is_found(built(n))
