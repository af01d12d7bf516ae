# %% [markdown]
# # A cost model learned from measurements
# Calls of operators are built and timed alone; seconds are fitted as a sum of a call, operations and bytes for each kind of operator, in NumPy.
# The fitted model is compared with the shipped roofline, on calls that it was not fitted to.

# %%
import numpy as np

import resat as rs


def network(channels, size, seed=0):
    """Three convolutions, with what stands around them."""
    c, s = channels, size
    rng = np.random.default_rng(seed)
    text = f"""#[version = "0.0.5"]
    def @main(%x: Tensor[(1, {c}, {s}, {s}), float32], %w0: Tensor[({c}, {c}, 3, 3), float32], %b0: Tensor[({c}), float32],
              %w1: Tensor[({2 * c}, {c}, 1, 1), float32], %w2: Tensor[(10, {2 * c}), float32]) {{
      %0 = nn.relu(nn.bias_add(nn.conv2d(%x, %w0, padding=[1, 1, 1, 1], channels={c}, kernel_size=[3, 3]), %b0));
      %1 = nn.max_pool2d(add(%0, %x), pool_size=[2, 2], strides=[2, 2]);
      %2 = tanh(nn.conv2d(%1, %w1, padding=[0, 0, 0, 0], channels={2 * c}, kernel_size=[1, 1]));
      nn.softmax(nn.dense(nn.batch_flatten(nn.global_avg_pool2d(%2)), %w2, units=10))
    }}"""
    shapes = {"w0": (c, c, 3, 3), "b0": (c,), "w1": (2 * c, c, 1, 1), "w2": (10, 2 * c)}
    return rs.parse(text).bind({k: rng.standard_normal(v, "float32") for k, v in shapes.items()})


# %% [markdown]
# ## Nodes and their times
# Whatever a saturation asks the price of is a node to be learned from.


# %%
def nodes_of(mod):
    seen = []

    def note(node):
        seen.append(node)
        return 1e-6 + node.flops * 1e-11

    rs.Saturate("algebra", "simplify-inference")(mod, config=rs.BuildConfig(cost=note))
    return seen


def seconds(node):
    """The least of some runs of the call by itself, on one thread."""
    program = node.program()
    exe = rs.build(program, threads=1, pipeline="FuseOps")
    return min(exe.latencies(program.random_inputs(), 20))


train = [n for c, s in ((8, 16), (16, 16), (16, 32), (32, 32)) for n in nodes_of(network(c, s))]
test = nodes_of(network(24, 24))
times = np.array([seconds(n) for n in train])
print(f"{len(train)} nodes measured, {times.sum() * 1e3:.2f} ms in all")

# %% [markdown]
# ## Fitting
# Coefficients that are not negative, by weighted least squares and projection: relative errors count alike.

# %%
KINDS = {"nn.conv2d": 1, "nn.dense": 1, "nn.softmax": 2, "tanh": 2, "nn.max_pool2d": 3, "nn.global_avg_pool2d": 3}


def features(nodes):
    """For each kind of operator three columns: a call, operations, bytes."""
    kinds = max(KINDS.values()) + 1
    rows = np.zeros((len(nodes), kinds, 3))
    for row, n in zip(rows, nodes):
        row[KINDS.get(n.op, 0)] = 1.0, n.flops * 1e-9, (n.bytes_read + n.bytes_written) * 1e-9
    return rows.reshape(len(nodes), -1)


def fitted(a, b, steps=2000):
    """The x >= 0 that makes |a x - b| / b least, by projected gradients."""
    a = a / b[:, None]
    scale = np.maximum(np.abs(a).max(axis=0), 1e-30)
    a = a / scale
    x = np.zeros(a.shape[1])
    rate = 1.0 / np.linalg.norm(a, 2) ** 2
    for _ in range(steps):
        x = np.maximum(x - rate * (a.T @ (a @ x - 1)), 0)
    return x / scale


weights = fitted(features(train), times)


class Learned:
    """Seconds by the fitted coefficients."""

    name = "learned"

    def costs(self, nodes):
        return features(list(nodes)) @ weights + 1e-8

    def fingerprint(self):
        return repr(weights.tolist())


# %% [markdown]
# ## On nodes that it has not seen
# Errors as factors: how far predictions are off, in the middle. The roofline knows peaks of the processor and nothing else.

# %%
measured = np.array([seconds(n) for n in test])


def factor(predicted):
    return float(np.exp(np.median(np.abs(np.log(np.maximum(predicted, 1e-9) / measured)))))


roofline = np.array([max(n.flops / 5e10, (n.bytes_read + n.bytes_written) / 1e10) for n in test])
print(f"learned: off by a factor of {factor(features(test) @ weights):.2f}; a roofline: {factor(roofline):.2f}")

# %% [markdown]
# ## As a model of the compiler

# %%
mod = network(24, 24)
x = mod.random_inputs()
for cost in ("roofline", Learned()):
    exe = rs.build(mod, threads=1, config=rs.BuildConfig(cost=cost))
    print(getattr(cost, "name", cost), f"{1e6 * min(exe.latencies(x, 50)):.1f} us", len(exe.kernels), "kernels")
