"""One executable, many threads."""

import concurrent.futures
import threading

import numpy as np

import resat as rs


def test_threads_run_one_executable(mlp, x):
    exe = rs.build(mlp, threads=1)
    inputs = [x * k for k in range(8)]
    want = [exe.run([i])[0] for i in inputs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for got, wanted in zip(pool.map(lambda i: exe.run([inputs[i % 8]])[0], range(64)), want * 8):
            np.testing.assert_array_equal(got, wanted)


def test_builds_in_threads_with_models_in_python(mlp, x):
    def build(k):
        model = lambda node: node.flops + k
        with rs.BuildConfig(cost=model):
            return rs.build(mlp, threads=1).run([x])[0]

    want = mlp.interpret([x])[0]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for y in pool.map(build, range(6)):
            np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-6)


def test_the_interpreter_goes_on_while_resat_works(cnn):
    """A thread of Python's own makes progress while passes run in Rust."""
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.001):
            ticks.append(None)

    thread = threading.Thread(target=tick)
    thread.start()
    rs.build(cnn)
    done.set()
    thread.join()
    assert ticks
