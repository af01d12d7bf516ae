# %% [markdown]
# # A cost model learned from measurements
# The cost model `measured` compiles and times the kernel of each node. Here a model is fitted to its seconds in NumPy: by which factor nodes of a kind
# differ from the shipped roofline. It prices a node in microseconds instead of tens of milliseconds. What was learned is compared with the roofline
# on networks that it was not fitted to.

# %%
import os
import pathlib

import numpy as np

import resat as rs

# %% [markdown]
# ## Networks
# Those of a corpus, folders with a `model.relay` each, where the environment variable `RESAT_SHARED` names one; else some of our own. Weights are
# random: times don't depend on them.


# %%
def own(c, s):
    """Three convolutions of `c` channels and images of `s` by `s`, with what stands around them."""
    return rs.parse(f"""#[version = "0.0.5"]
    def @main(%x: Tensor[(1, {c}, {s}, {s}), float32], %w0: Tensor[({c}, {c}, 3, 3), float32], %b0: Tensor[({c}), float32],
              %w1: Tensor[({2 * c}, {c}, 1, 1), float32], %w2: Tensor[(10, {2 * c}), float32]) {{
      %0 = nn.relu(nn.bias_add(nn.conv2d(%x, %w0, padding=[1, 1, 1, 1], channels={c}, kernel_size=[3, 3]), %b0));
      %1 = nn.max_pool2d(add(%0, %x), pool_size=[2, 2], strides=[2, 2]);
      %2 = tanh(nn.conv2d(%1, %w1, padding=[0, 0, 0, 0], channels={2 * c}, kernel_size=[1, 1]));
      nn.softmax(nn.dense(nn.batch_flatten(nn.global_avg_pool2d(%2)), %w2, units=10))
    }}""")


def weighted(mod):
    rng = np.random.default_rng(0)
    types = dict(mod["main"].params)
    return mod.bind({n: rng.standard_normal(types[n].shape).astype(types[n].dtype) * 0.1 for n in mod.unbound_weights()})


CORPUS = ["mlp", "testing_dqn", "testing_dcgan", "squeezenet1_1", "resnet18", "mobilenet_v2", "inception_v3"]
folder = pathlib.Path(os.environ.get("RESAT_SHARED", "")) / "corpus"
if all((folder / name).is_dir() for name in CORPUS):
    networks = {name: weighted(rs.load(folder / name / "model.relay")) for name in CORPUS}
else:
    networks = {f"{c} channels of {s}": weighted(own(c, s)) for c, s in ((8, 16), (16, 16), (16, 32), (32, 32), (24, 24))}

# %% [markdown]
# ## Nodes and their times
# Whatever the default saturation asks the price of is a node to be learned from, in all the layouts that rules find; of large networks, some. Times
# are remembered in the user's folder, as those of `--cost measured` are: they are the same.


# %%
def nodes_of(mod, most=100):
    seen = []

    def note(node):
        seen.append(node)
        return 1e-6 + node.flops * 1e-11 + (node.bytes_read + node.bytes_written) * 1e-10

    rs.Saturate()(mod, config=rs.BuildConfig(cost=note))
    nodes = [n for n in seen if not all(n.constant)]
    return [nodes[i] for i in sorted(np.random.default_rng(0).permutation(len(nodes))[:most])]


target = "llvm -mcpu=native -num-cores=1"
measured = rs.BuildConfig(cost="measured", target=target)
nodes = {name: nodes_of(mod) for name, mod in networks.items()}
times = {name: rs.prices(of, measured) for name, of in nodes.items()}
count = sum(map(len, nodes.values()))
print(f"{count} nodes of {len(nodes)} networks, {sum(t.sum() for t in times.values()) * 1e3:.1f} ms in all")

# %% [markdown]
# ## Fitting
# The logarithm of measured over roofline is fitted by ridge regression: a constant for each kind of operator, and how it grows with operations and
# bytes. What is of a kind that no network to learn from has, is near to the roofline.

# %%
roofline = rs.BuildConfig(cost="roofline", target=target)


def kind(n):
    """Operators that are alike in what the roofline does not know of them."""
    layout = str(n.attrs.get("data_layout", ""))
    blocked = "blocked" if any(c.isdigit() for c in layout) else layout
    return f"{n.op} {'depthwise' if n.attrs.get('groups', 1) > 1 else ''} {blocked}"


def sizes(nodes):
    """Logarithms of operations and bytes, about their middle."""
    return np.array([(np.log1p(n.flops) - 14, np.log1p(n.bytes_read + n.bytes_written) - 12) for n in nodes]).reshape(-1, 2) / 5


class Learned:
    """Seconds: the roofline's by a fitted factor."""

    name = "learned"

    def __init__(self, names, ridge=2.0):
        of = [n for name in names for n in nodes[name]]
        self.kinds = {k: i for i, k in enumerate(sorted({kind(n) for n in of}))}
        x = self.features(of)
        y = np.log(np.concatenate([times[name] for name in names]) / rs.prices(of, roofline))
        self.weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)

    def features(self, nodes):
        x = np.zeros((len(nodes), len(self.kinds) + 1))
        for row, n in zip(x, nodes):
            row[self.kinds.get(kind(n), -1)] = 1.0
        return np.hstack([x[:, :-1], sizes(nodes)])

    def costs(self, nodes):
        nodes = list(nodes)
        return rs.prices(nodes, roofline) * np.exp(self.features(nodes) @ self.weights)

    def fingerprint(self):
        return repr((self.kinds, self.weights.tolist()))


# %% [markdown]
# ## On networks that it has not seen
# Each network is predicted by a model that is fitted to the others. Errors are factors: how far predictions of nodes are off, in the middle; and how
# well the order of the more expensive half is predicted (rank correlation), which is what a choice depends on.


# %%
def factor(predicted, true):
    return float(np.exp(np.median(np.abs(np.log(np.maximum(predicted, 1e-9) / true)))))


def ranks(predicted, true):
    dear = true >= np.median(true)
    order = [np.argsort(np.argsort(v[dear])) for v in (predicted, true)]
    return float(np.corrcoef(*order)[0, 1])


rows = []
for name, of in nodes.items():
    learned = Learned([other for other in nodes if other != name]).costs(of)
    shipped = rs.prices(of, roofline)
    rows.append((factor(learned, times[name]), factor(shipped, times[name]), ranks(learned, times[name]), ranks(shipped, times[name])))
    print("{:16} {:4} nodes: off by {:.2f} (roofline {:.2f}), rank correlation {:.2f} (roofline {:.2f})".format(name, len(of), *rows[-1]))
print("in the middle: off by {:.2f} (roofline {:.2f}), rank correlation {:.2f} (roofline {:.2f})".format(*np.median(rows, axis=0)))

# %% [markdown]
# ## As a model of the compiler
# A better price of nodes need not make a faster program: what there is to choose between mostly differs in more than that.

# %%
for name in list(networks)[:4]:
    mod = networks[name]
    programs = {}
    for model in ("roofline", Learned([other for other in nodes if other != name])):
        programs[getattr(model, "name", model)] = rs.build(mod, threads=1, config=rs.BuildConfig(cost=model, target=target))
    x = mod.random_inputs()
    # In turns: what disturbs the machine disturbs both.
    best = {how: min(min(exe.latencies(x, 5)) for _ in range(3)) for how, exe in programs.items()}
    print(f"{name:16}", ", ".join(f"{how} {1e3 * t:.3f} ms" for how, t in best.items()))
