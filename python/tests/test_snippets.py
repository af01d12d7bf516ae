"""The RFCs' snippets in this package's form."""

import concurrent.futures

import numpy as np
import pandas as pd
import pytest

import resat as rs


@pytest.fixture(scope="module")
def model(tmp_path_factory, cnn):
    """A model file of Relay text, with its constants."""
    path = tmp_path_factory.mktemp("models") / "model.relay"
    cnn.save(path)
    return path


@pytest.fixture(scope="module")
def samples(image):
    return np.stack([image, image * 0.5, -image])


def off(a, b):
    return np.abs(a - b).max() / np.abs(b).max()


def test_switches(model, image, cnn):
    mod = rs.load(model)
    with rs.BuildConfig(opt_level=3, run_before={"optimize": rs.Quantize(from_layer=1)}), rs.Trace() as t:
        exe = rs.build(mod)
    (y,) = exe.run({"x": image})
    assert off(y, cnn.interpret([image])[0]) < 0.2
    names = [p.name for p in t.passes]
    assert any(n.startswith("Quantize") for n in names) and len(t.rules) > 0
    assert "int8" in exe.module.brief()


def test_composition_with_arrays(model, image, cnn, samples):
    mod = rs.load(model)
    mod = rs.Quantize(from_layer=1, calibration={"x": samples})(mod)
    assert "int8" in mod.brief()
    (y,) = rs.build(mod).run({"x": image})
    assert off(y, cnn.interpret([image])[0]) < 0.05


def test_sequential(model, image, cnn):
    mod = rs.load(model)
    mod = rs.Sequential([rs.Quantize(from_layer=1), rs.ConvertLayout("NHWC", to="NHWC4c")])(mod)
    assert "NHWC4c" in mod.text()
    (y,) = rs.build(mod).run({"x": image})
    assert off(y, cnn.interpret([image])[0]) < 0.2


def test_a_pass_in_python_and_named_edits(model, image, cnn):
    seen = []

    @rs.module_pass("mine")
    def mine(mod: rs.Module) -> rs.Module:
        seen.append(mod.ops())
        return mod

    mod = rs.load(model)
    p = rs.default_pipeline()
    p.run_before("fold-constant", mine)
    p.run_after("fuse", mine, name="last")
    p.remove("dead-code")
    assert p.names == ["inline", "eta-expand", "dynamic-to-static", "optimize", "mine", "fold-constant", "fuse", "last"]
    exe = rs.build(mod, pipeline=p)
    assert len(seen) == 2
    assert off(exe.run([image])[0], cnn.interpret([image])[0]) < 1e-5


def test_legalize_finds_the_dialects():
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(4), int8]) { qnn.dequantize(%x, 0.5f, 3, axis=-1) }"""
    mod = rs.Legalize()(rs.parse(text))
    assert not any(op.startswith("qnn.") for op in mod.ops())
    (y,) = rs.build(mod).run({"x": np.array([3, 4, 1, -1], "int8")})
    assert y.tolist() == [0.0, 0.5, -1.0, -2.0]


def test_inspection(mlp):
    mod = mlp
    p = rs.default_pipeline()
    with rs.Trace() as t:
        mod = p(mod)
    assert len(t.passes) == len(p)
    optimize = t.passes[p.names.index("optimize")]
    assert optimize.name.startswith("Saturate") and optimize.before == t.passes[2].module
    assert t.passes[-1].diff().startswith("--- before FuseOps")
    assert t.passes[-1].module == mod
    frame = pd.DataFrame(t.rules)
    assert {"pass", "ruleset", "rule", "unions", "seconds"} <= set(frame.columns) and len(frame) > 0
    assert len(pd.DataFrame(t.to_records())) == len(p)


def test_exploration(model, image):
    mod = rs.load(model)
    with concurrent.futures.ThreadPoolExecutor(2) as executor, concurrent.futures.ThreadPoolExecutor(1) as one:
        r = rs.explore(mod, [rs.AlterOpLayout(), rs.FoldConstant()], {"x": image}, workers=executor, measurer=one, measure_seconds=0.02)
    assert len(r.orders) == 2 and r.best["median_s"] > 0
    assert all(o["difference"] < 1e-4 for o in r.orders)


def test_regions_for_an_external_compiler(model, image, cnn):
    mod = rs.load(model)
    by_hand = rs.PartitionGraph()(rs.MergeCompilerRegions()(rs.AnnotateTarget("c")(mod)))
    at_once = rs.partition_for(mod, "c")
    for made in (by_hand, at_once):
        outside = [name for name in made.functions() if made[name].attrs.get("Compiler") == "c"]
        assert outside
        assert off(rs.build(made).run([image])[0], cnn.interpret([image])[0]) < 1e-5


def test_attributes_of_functions(mlp):
    mod = rs.parse('#[version = "0.0.5"] def @f(%a: float32) { exp(%a) } def @main(%x: float32) { @f(%x) }')
    mod = mod.replace({"f": mod["f"].with_attr("Compiler", "mine")})
    assert mod["f"].attrs == {"Compiler": "mine"} and 'Compiler="mine"' in mod.text()
    assert mod["f"].without_attr("Compiler").attrs == {}
    other = rs.parse('#[version = "0.0.5"] def @g(%b: float32) { let %t = tanh(%b); add(%t, %t) }')
    mod = mod.replace({"f": other["g"]})
    (y,) = mod.interpret([np.float32(0.5)])
    assert abs(y - 2 * np.tanh(0.5)) < 1e-6


def test_running_and_saving(model, image, cnn, tmp_path):
    exe = rs.build(rs.load(model))
    (y,) = exe.run({"x": image})
    assert [(n, t.shape, t.dtype) for n, t in exe.inputs] == [("x", (1, 16, 16, 8), "float32")]
    assert exe.outputs[0][1].shape == (1, 16, 16, 16)
    exe.save(tmp_path / "m.so")
    library = rs.load_library(tmp_path / "m.so", threads=1)
    assert [n for n, _ in library.inputs] == ["x"]
    np.testing.assert_array_equal(library.run({"x": image})[0], y)
    profile = exe.profile({"x": image})
    assert len(profile) == exe.calls and all(s >= 0 for _, s in profile)
