"""Ctrl-C at bad moments: in the middle of a saturation, of code generation, of a measurement; twice; right before the process ends.

What is asked for is that it ends the call, and loses nothing that was finished. How soon it does is measured by `bench/interrupts.py`.
"""

import concurrent.futures as futures
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import resat as rs


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def kernels(n):
    """A program of that many different kernels, none of which is made at once."""
    params = ", ".join(f"%w{i}: Tensor[({8 * i + 8}, 24), float32]" for i in range(n))
    lines = "\n".join(f"  %{i} = sum(nn.relu(nn.dense(%x, %w{i}, units={8 * i + 8})), axis=[1]);" for i in range(n))
    sums = "%0"
    for i in range(1, n):
        sums = f"add({sums}, %{i})"
    return rs.parse(f'#[version = "0.0.5"]\ndef @main(%x: Tensor[(24, 24), float32], {params}) {{\n{lines}\n  {sums}\n}}')


def test_during_code_generation_kernels_that_are_done_are_kept(tmp_path):
    """Somebody waits for the first kernel in the cache, and then interrupts."""
    mod, folder = kernels(32), tmp_path / "cache"
    whole = rs.build(mod, pipeline="FuseOps", cache=tmp_path / "whole")
    total = len(list((tmp_path / "whole" / "objects").iterdir()))
    assert total >= 30

    def watch():
        while not list(folder.glob("objects/[!.]*")):
            time.sleep(0.001)
        interrupt()

    thread = threading.Thread(target=watch)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        rs.build(mod, pipeline="FuseOps", cache=folder)
        thread.join()
    thread.join()
    rs._resat.wait_for_calls(30.0)
    kept = {p.name: p.stat().st_ino for p in folder.glob("objects/[!.]*")}
    assert 0 < len(kept) < total
    # The next build makes the rest, and no more.
    exe = rs.build(mod, pipeline="FuseOps", cache=folder)
    now = {p.name: p.stat().st_ino for p in folder.glob("objects/[!.]*")}
    assert len(now) == total and kept.items() <= now.items()
    inputs = mod.random_inputs()
    np.testing.assert_array_equal(exe.run(inputs)[0], whole.run(inputs)[0])


def test_during_a_saturation(cnn):
    """Rules that grow without end, and a limit that would be met in minutes."""
    grows = "(ruleset grows :numerics real) (rule ab :grows (add ?x ?y) => (add ?y ?x)) (rule abc :grows (add (add ?x ?y) ?z) => (add ?x (add ?y ?z)))"
    body = "%x0"
    for i in range(1, 16):
        body = f"add({body}, %x{i})"
    params = ", ".join(f"%x{i}: Tensor[(4), float32]" for i in range(16))
    mod = rs.parse(f'#[version = "0.0.5"] def @main({params}) {{ {body} }}')
    limits = {"nodes": 10**8, "iterations": 10**6, "time": 300.0, "bytes": 1 << 31, "growth": 10**9, "matches": 10**9, "growing_matches": 10**9}
    threading.Timer(0.3, interrupt).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        rs.Saturate("grows")(mod, config=rs.BuildConfig(rules=grows, limits=limits))
    assert time.monotonic() - begin < 100, "the saturation went on"
    assert rs.build(cnn)


def test_during_a_pass_of_ones_own(mlp):
    """A function of one's own gets the interrupt as all Python does: when it comes to an end. The call ends with it."""

    @rs.module_pass("slow")
    def slow(mod):
        interrupt()
        time.sleep(0.05)
        return mod

    with pytest.raises(KeyboardInterrupt):
        rs.build(mlp, pipeline=rs.Sequential([slow, "FuseOps"]))
    assert rs.build(mlp)


def test_twice(mlp):
    for _ in range(2):
        def phase(name):
            if name.startswith("compiling"):
                interrupt()
                time.sleep(0.06)

        with pytest.raises(KeyboardInterrupt):
            rs.build(mlp, progress=phase)
    assert rs.build(mlp)


@pytest.mark.parametrize("phase", ["compiling", "measuring"])
@pytest.mark.parametrize("crew", [False, True])
def test_an_exploration_goes_on_where_it_was(cnn, tmp_path, phase, crew):
    state, passes = tmp_path / "state.jsonl", [rs.SimplifyInference(), rs.FoldConstant(), rs.AlterOpLayout()]
    options = {"measure_seconds": 0.01, "threads": 1, "state": state}

    def progress(now, done, total):
        if now == phase:
            interrupt()
            time.sleep(0.06)

    with futures.ThreadPoolExecutor(2) as workers, futures.ThreadPoolExecutor(1) as one:
        who = {"workers": workers, "measurer": one} if crew else {"workers": 2}
        with pytest.raises(KeyboardInterrupt):
            rs.explore(cnn, passes, progress=progress, **who, **options)
        rs._resat.wait_for_calls(30.0)
        lines = state.read_text().splitlines()
        found = rs.explore(cnn, passes, **who, **options)
    # All passes were done by then, and what was cut short is in no record.
    assert found.data["resumed"] == len(lines) - 1 > 0
    assert all(o["median_s"] > 0 and o["refused"] is None for o in found.orders)
    assert state.read_text().splitlines()[: len(lines)] == lines
    assert sum('"kind":"pass"' in line for line in state.read_text().splitlines()) == sum('"kind":"pass"' in line for line in lines)


def test_right_before_the_process_ends(tmp_path):
    """A call that was left alone still works then; the process ends as if nothing was."""
    code = f"""
        import os, signal, sys, threading
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
        from test_interrupts import kernels
        import resat as rs
        mod = kernels(24)
        def phase(name):
            if name.startswith("compiling"):
                threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            rs.build(mod, pipeline="FuseOps", progress=phase)
            threading.Event().wait(5)
        except KeyboardInterrupt:
            print("interrupted")
    """
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stdout == "interrupted\n" and not done.stderr, done
