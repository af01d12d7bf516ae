import signal

import numpy as np
import pytest

import resat as rs

MLP = """#[version = "0.0.5"]
def @main(%x: Tensor[(4, 32), float32], %w1: Tensor[(64, 32), float32], %b1: Tensor[(64), float32], %w2: Tensor[(10, 64), float32]) {
  %0 = nn.dense(%x, %w1, units=64);
  %1 = nn.relu(nn.bias_add(%0, %b1));
  nn.softmax(nn.dense(%1, %w2, units=10))
}
"""

CNN = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 16, 16, 8), float32], %w1: Tensor[(3, 3, 8, 16), float32], %w2: Tensor[(1, 1, 16, 16), float32]) {
  %0 = nn.conv2d(%x, %w1, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3], data_layout="NHWC", kernel_layout="HWIO");
  %1 = nn.relu(%0);
  %2 = nn.conv2d(%1, %w2, padding=[0, 0, 0, 0], channels=16, kernel_size=[1, 1], data_layout="NHWC", kernel_layout="HWIO");
  nn.relu(%2)
}
"""


def weights(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype("float32") / 4 for name, shape in shapes.items()}


@pytest.fixture(autouse=True)
def interrupts():
    """Where tests run in a shell's background, Ctrl-C is ignored from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def mlp():
    return rs.parse(MLP, "mlp.relay").bind(weights({"w1": (64, 32), "b1": (64,), "w2": (10, 64)}))


@pytest.fixture(scope="session")
def cnn():
    return rs.parse(CNN, "cnn.relay").bind(weights({"w1": (3, 3, 8, 16), "w2": (1, 1, 16, 16)}))


@pytest.fixture(scope="session")
def x():
    return np.random.default_rng(1).standard_normal((4, 32)).astype("float32")


@pytest.fixture(scope="session")
def image():
    return np.random.default_rng(2).standard_normal((1, 16, 16, 8)).astype("float32")
