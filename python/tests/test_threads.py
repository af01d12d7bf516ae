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


def test_threads_run_one_executable_of_several_threads(cnn, image):
    """Runs share the executable's own threads, and outputs are each one's own."""
    exe = rs.build(cnn, threads=2)
    inputs = [image * k for k in range(1, 5)]
    want = [exe.run([i])[0] for i in inputs]
    kept = [w.copy() for w in want]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(8):
            for got, wanted in zip(pool.map(lambda i: exe.run([i])[0], inputs), want):
                np.testing.assert_array_equal(got, wanted)
    for w, k in zip(want, kept):
        np.testing.assert_array_equal(w, k)


def test_threads_run_a_program_of_changing_sizes():
    """Code for new sizes is made while other threads run."""
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(?, 8), float32]) { nn.softmax(add(%x, %x)) }')
    exe, rng = rs.build(mod, threads=1), np.random.default_rng(0)
    inputs = [rng.standard_normal((n, 8)).astype("float32") for n in (1, 2, 5, 9, 17, 33)]

    def softmax(x):
        e = np.exp(2 * x - (2 * x).max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for got, x in zip(pool.map(lambda i: exe.run([i])[0], inputs * 6), inputs * 6):
            np.testing.assert_allclose(got, softmax(x), rtol=1e-4, atol=1e-6)


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
    """A thread of Python's own makes progress while a build and runs work in Rust."""
    big = rs.build(rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(4096, 4096), float32]) { exp(tanh(%x)) }'), threads=1)
    x = rs.empty((4096, 4096))
    for work in (lambda: rs.build(cnn), lambda: big.run([x]), lambda: big.profile([x])):
        ticks, done = [], threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(None)
                done.wait(0.0005)

        thread = threading.Thread(target=tick)
        thread.start()
        while not ticks:
            pass
        before = len(ticks)
        for _ in range(50):
            work()
            if len(ticks) > before:
                break
        done.set()
        thread.join()
        assert len(ticks) > before
