"""State from run to run, and sizes that change."""

import os
import threading

import numpy as np
import pytest

import resat as rs

# What was seen so far, with what is new behind it, and its sum.
APPEND = """#[version = "0.0.5"]
def @main(%cache: Tensor[(?, 4), float32], %x: Tensor[(1, 4), float32]) {
  let %all = concatenate((%cache, %x));
  (sum(%all, axis=[0]), %all)
}
"""

HIDDEN = """#[version = "0.0.5"]
def @main(%h: Tensor[(1, 8), float32], %x: Tensor[(1, 8), float32]) {
  let %new = tanh(add(%h, %x));
  (%new, multiply(%new, 2f))
}
"""


def test_a_cache_that_grows():
    exe = rs.build(rs.parse(APPEND), state={"cache": "1"})
    runs = exe.stateful()
    assert runs.keys() == ["cache"] and [n for n, _ in runs.inputs] == ["x"] and [n for n, _ in runs.outputs] == ["0"]
    rows = np.random.default_rng(0).standard_normal((20, 4)).astype("float32")
    for i, row in enumerate(rows):
        (total,) = runs.run({"x": row[None]})
        np.testing.assert_allclose(total, rows[: i + 1].sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(runs["cache"], rows)
    # Other runs start over, and what was read is one's own.
    assert exe.stateful()["cache"].shape == (0, 4)
    runs["cache"][:] = 0
    np.testing.assert_array_equal(runs["cache"], rows)
    runs["cache"] = rows[:2]
    (total,) = runs.run([rows[2:3]])
    np.testing.assert_allclose(total, rows[:3].sum(0), rtol=1e-4, atol=1e-5)
    # Without state, the program is what it was written as.
    total, everything = exe.run({"cache": rows[:2], "x": rows[2:3]})
    np.testing.assert_array_equal(everything, rows[:3])


HEADS = """#[version = "0.0.5"]
def @main(%cache: Tensor[(1, 2, ?, 4), float32], %x: Tensor[(1, 2, 1, 4), float32]) {
  %0 = concatenate((%cache, %x), axis=2);
  (sum(%0, axis=[2]), %0)
}
"""


@pytest.mark.parametrize("reorder", [False, True])
def test_a_cache_with_its_heads_first(reorder):
    exe = rs.build(rs.parse(HEADS), state={"cache": "1"}, reorder_state=reorder)
    runs = exe.stateful()
    rows = np.random.default_rng(0).standard_normal((12, 1, 2, 1, 4)).astype("float32")
    for i, row in enumerate(rows):
        (total,) = runs.run({"x": row})
        np.testing.assert_allclose(total, rows[: i + 1].sum((0, 3)), rtol=1e-4, atol=1e-5)
    kept = np.concatenate(list(rows), axis=2)
    np.testing.assert_array_equal(runs["cache"], kept)
    runs["cache"] = kept[:, :, :3]
    (total,) = runs.run([rows[3]])
    np.testing.assert_allclose(total, rows[:4].sum((0, 3)), rtol=1e-4, atol=1e-5)
    if reorder:
        for call in (exe.run, exe.latencies):
            with pytest.raises(rs.Refused, match="`cache` lies in another order.*stateful"):
                call({"cache": kept, "x": rows[0]})
    else:
        np.testing.assert_array_equal(exe.run({"cache": kept[:, :, :2], "x": rows[2]})[1], kept[:, :, :3])


def test_state_is_not_memory_of_the_callers():
    exe = rs.build(rs.parse('#[version = "0.0.5"] def @main(%s: Tensor[(16), float32], %x: Tensor[(16), float32]) { (%x, add(%s, %x)) }'), state={"s": "0"})
    runs, x = exe.stateful(), rs.empty((16,))
    x[:] = 1
    runs.run([x])
    x[:] = 5
    assert runs["s"].tolist() == [1] * 16
    assert runs.run([x])[0].tolist() == [6] * 16


def test_a_hidden_layer():
    runs = rs.build(rs.parse(HIDDEN), state={"h": "0"}, threads=1).stateful()
    h = np.zeros((1, 8), "float32")
    for i in range(5):
        x = np.full((1, 8), i / 4, "float32")
        h = np.tanh(h + x)
        np.testing.assert_allclose(runs.run([x])[0], 2 * h, rtol=1e-5)
    with pytest.raises(rs.Refused, match="should be Tensor"):
        runs["h"] = np.zeros((2, 8), "float32")
    np.testing.assert_allclose(runs["h"], h, rtol=1e-5)
    with pytest.raises(KeyError):
        runs["x"]
    with pytest.raises(rs.Refused, match="1 inputs, but 2"):
        runs.run([x, x])


def test_state_is_refused_where_it_can_not_be():
    mod = rs.parse(HIDDEN)
    for state, said in (({"g": "0"}, "no input `g`"), ({"h": "7"}, "no output `7`"), ({"h": "0", "x": "0"}, "named twice")):
        with pytest.raises(rs.Refused, match=said):
            rs.build(mod, state=state)
    with pytest.raises(rs.Refused, match="keeps nothing"):
        rs.build(mod).stateful()


def test_runs_with_state_follow_each_other():
    """Two at once would each begin with what neither left."""
    runs = rs.build(rs.parse(HIDDEN), state={"h": "0"}, threads=1).stateful()
    done, refused, x = [], [], np.ones((1, 8), "float32")

    def work():
        for _ in range(200):
            try:
                runs.run([x])
                done.append(1)
            except rs.Refused as e:
                refused.append(str(e))

    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(done) + len(refused) == 600 and done and all("under way" in r for r in refused)
    h = np.zeros((1, 8), "float32")
    for _ in done:
        h = np.tanh(h + x)
    np.testing.assert_allclose(runs["h"], h, rtol=1e-4)


@pytest.mark.parametrize("specialize", ["off", "hot", "all"])
def test_sizes_that_change(specialize):
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(?, 32), float32], %w: Tensor[(16, 32), float32]) { nn.relu(nn.dense(%x, %w, units=16)) }')
    w = np.random.default_rng(0).standard_normal((16, 32)).astype("float32")
    exe = rs.build(mod, params={"w": w}, specialize=specialize)
    for n in (1, 7, 64, 7, 1, 200):
        x = np.random.default_rng(n).standard_normal((n, 32)).astype("float32")
        for _ in range(3):
            np.testing.assert_allclose(exe.run([x])[0], np.maximum(x @ w.T, 0), rtol=1e-3, atol=1e-4)


def test_what_specialize_is():
    with pytest.raises(rs.Refused, match='"hot" or "all"'):
        rs.build(rs.parse(HIDDEN), specialize="some")


DENSE = """#[version = "0.0.5"]
def @main(%x: Tensor[(?, 32), float32], %w: Tensor[(16, 32), float32]) { nn.relu(nn.dense(%x, %w, units=16)) }
"""


def dense(**args):
    w = np.random.default_rng(0).standard_normal((16, 32)).astype("float32")
    return w, rs.build(rs.parse(DENSE), params={"w": w}, **args)


def test_bounds_and_hints(tmp_path):
    w, exe = dense(bounds={"x": (40, 32)}, hints={"x": (8, None)}, name="bounded")
    exe.save(tmp_path / "m.so")
    assert "bounded_run" in (tmp_path / "m.h").read_text()
    library = rs.load_library(tmp_path / "m.so", threads=1)
    assert [(n, t.dtype, t.shape[1]) for n, t in library.inputs] == [("x", "float32", 32)] and len(library.outputs) == 1
    for run in (exe.run, library.run):
        for n in (1, 8, 33, 40, 2):
            x = np.random.default_rng(n).standard_normal((n, 32)).astype("float32")
            np.testing.assert_allclose(run([x])[0], np.maximum(x @ w.T, 0), rtol=1e-3, atol=1e-4)
        with pytest.raises(rs.Refused):
            run([np.zeros((41, 32), "float32")])
    written = rs.emit_c(rs.parse(DENSE), tmp_path / "m.c", params={"w": w}, bounds={"x": (4, 32)})
    assert written[0].endswith("m.c") and all(map(os.path.exists, written))


def test_bounds_with_steps(tmp_path):
    w, exe = dense(bounds={"x": ("8..32/8", 32)})
    exe.save(tmp_path / "m.so")
    library = rs.load_library(tmp_path / "m.so", threads=1)
    for run in (exe.run, library.run):
        for n in (8, 32, 24):
            x = np.random.default_rng(n).standard_normal((n, 32)).astype("float32")
            np.testing.assert_allclose(run([x])[0], np.maximum(x @ w.T, 0), rtol=1e-3, atol=1e-4)
        for n in (4, 12, 40):
            with pytest.raises(rs.Refused):
                run([np.zeros((n, 32), "float32")])
    with pytest.raises(rs.Refused, match="the bound of `x`"):
        dense(bounds={"x": ("8-32", 32)})


def test_state_is_exported(tmp_path):
    bounds = {"cache": (8, 4)}
    rs.build(rs.parse(APPEND), state={"cache": "1"}, bounds=bounds).save(tmp_path / "m.so")
    assert "resat_state" in (tmp_path / "m.h").read_text()
    library = rs.load_library(tmp_path / "m.so")
    assert [n for n, _ in library.inputs] == ["x"]
    with pytest.raises(rs.Refused, match="keeps state"):
        library.run([np.zeros((1, 4), "float32")])
    runs = library.stateful()
    for i in range(3):
        runs.run({"x": np.full((1, 4), i, "float32")})
    assert runs.keys() == ["cache"] and runs["cache"][:, 0].tolist() == [0, 1, 2]
    runs["cache"] = np.ones((8, 4), "float32")
    runs.run([np.zeros((1, 4), "float32")])
    with pytest.raises(rs.Refused):
        runs.run([np.zeros((1, 4), "float32")])
    assert runs["cache"].shape == (9, 4)
    with pytest.raises(rs.Refused, match="at most"):
        runs["cache"] = np.ones((10, 4), "float32")
    with pytest.raises(KeyError):
        runs["x"]
    written = rs.emit_c(rs.parse(APPEND), tmp_path / "m.c", state={"cache": "1"}, bounds=bounds)
    assert "resat_state" in open(written[1]).read()


def test_bounds_that_say_nothing_of_the_program(tmp_path):
    for bounds, said in (({"y": 4}, "`y`"), ({"x": (4, 31)}, "32"), ({"x": (0, 32)}, "0")):
        with pytest.raises(rs.Refused, match=said):
            dense(bounds=bounds)
    with pytest.raises(rs.Refused, match="bound"):
        dense()[1].save(tmp_path / "none.so")
    assert not list(tmp_path.iterdir())


def test_a_program_with_control_flow_is_saved(tmp_path):
    text = """#[version = "0.0.5"]
def @main(%n: int32, %x: Tensor[(4), float32]) -> Tensor[(4), float32] {
  if (greater(%n, 0)) { @main(subtract(%n, 1), add(%x, 1f)) } else { %x }
}
"""
    rs.build(rs.parse(text)).save(tmp_path / "m.so")
    library = rs.load_library(tmp_path / "m.so")
    assert library.run([np.int32(3), np.zeros(4, "float32")])[0].tolist() == [3] * 4
    with pytest.raises(rs.Refused, match="keeps nothing"):
        library.stateful()
