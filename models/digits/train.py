#!/usr/bin/env python3
"""Trains the small convolutional network of this folder on scikit-learn's handwritten digits, and writes it as Relay.

    pip install numpy scikit-learn && python3 train.py

Writes beside itself: model.relay (Relay text 0.0.5), model.params (Relay's parameter file), inputs.npz (held-out images, `x`),
labels.npz (`labels`), outputs.npz (the network's outputs on them, computed here by numpy), all.npz (all `images`, of brightness 0
to 16, and `labels`, the held-out ones first). The same bytes every time: the seed is fixed, and numpy does the arithmetic in
float64. `python3 train.py data` writes all.npz only.
"""
import pathlib, struct, sys
import numpy as np
from sklearn.datasets import load_digits

HELD_OUT, EPOCHS, BATCH, RATE, MOMENTUM, DECAY, EPS = 200, 30, 50, 0.05, 0.9, 1e-4, 1e-5
# (output channels, stride) of each 3x3 convolution, all followed by batch_norm and relu.
CONVS = [(16, 1), (32, 2), (64, 2)]
here = pathlib.Path(__file__).resolve().parent
rng = np.random.default_rng(7)


def patches(x, stride):
    """(n, c, h, w) padded by 1 -> (n, oh, ow, c*9), and the indices that put gradients back."""
    n, c, h, w = x.shape
    p = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    win = np.lib.stride_tricks.sliding_window_view(p, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    return win.transpose(0, 2, 3, 1, 4, 5).reshape(n, win.shape[2], win.shape[3], c * 9)


def unpatches(g, shape, stride):
    n, c, h, w = shape
    p = np.zeros((n, c, h + 2, w + 2))
    g = g.reshape(n, g.shape[1], g.shape[2], c, 3, 3).transpose(0, 3, 1, 2, 4, 5)
    oh, ow = g.shape[2:4]
    for i in range(3):
        for j in range(3):
            p[:, :, i : i + stride * oh : stride, j : j + stride * ow : stride] += g[..., i, j]
    return p[:, :, 1:-1, 1:-1]


class Net:
    def __init__(self):
        self.p, c = {}, 1
        for k, (out, _) in enumerate(CONVS):
            self.p[f"conv{k}.weight"] = rng.standard_normal((out, c, 3, 3)) * np.sqrt(2 / (9 * c))
            self.p[f"bn{k}.gamma"], self.p[f"bn{k}.beta"] = np.ones(out), np.zeros(out)
            c = out
        self.p["fc.weight"], self.p["fc.bias"] = rng.standard_normal((10, c)) * np.sqrt(1 / c), np.zeros(10)
        self.stats = {f"bn{k}.{s}": np.full(o, v) for k, (o, _) in enumerate(CONVS) for s, v in (("mean", 0.0), ("var", 1.0))}

    def forward(self, x, train=False):
        tape = []
        for k, (out, stride) in enumerate(CONVS):
            cols = patches(x, stride)
            y = cols @ self.p[f"conv{k}.weight"].reshape(out, -1).T
            if train:
                mean, var = y.mean((0, 1, 2)), y.var((0, 1, 2))
                for s, v in (("mean", mean), ("var", var)):
                    self.stats[f"bn{k}.{s}"] = 0.9 * self.stats[f"bn{k}.{s}"] + 0.1 * v
            else:
                mean, var = self.stats[f"bn{k}.mean"], self.stats[f"bn{k}.var"]
            norm = (y - mean) / np.sqrt(var + EPS)
            z = norm * self.p[f"bn{k}.gamma"] + self.p[f"bn{k}.beta"]
            tape.append((x.shape, cols, norm, var, z))
            x = np.maximum(z, 0).transpose(0, 3, 1, 2)
        pooled = x.mean((2, 3))
        return pooled @ self.p["fc.weight"].T + self.p["fc.bias"], (tape, x.shape, pooled)

    def gradients(self, x, labels):
        logits, (tape, shape, pooled) = self.forward(x, train=True)
        e = np.exp(logits - logits.max(1, keepdims=True))
        d = e / e.sum(1, keepdims=True)
        d[np.arange(len(labels)), labels] -= 1
        d /= len(labels)
        g = {"fc.weight": d.T @ pooled, "fc.bias": d.sum(0)}
        d = np.broadcast_to((d @ self.p["fc.weight"])[:, :, None, None] / (shape[2] * shape[3]), shape)
        for k in reversed(range(len(CONVS))):
            in_shape, cols, norm, var, z = tape[k]
            d = d.transpose(0, 2, 3, 1) * (z > 0)
            g[f"bn{k}.gamma"], g[f"bn{k}.beta"] = (d * norm).sum((0, 1, 2)), d.sum((0, 1, 2))
            d = d * self.p[f"bn{k}.gamma"]
            d = (d - d.mean((0, 1, 2)) - norm * (d * norm).mean((0, 1, 2))) / np.sqrt(var + EPS)
            w = self.p[f"conv{k}.weight"]
            g[f"conv{k}.weight"] = (d.reshape(-1, len(w)).T @ cols.reshape(-1, cols.shape[-1])).reshape(w.shape)
            d = unpatches(d @ w.reshape(len(w), -1), in_shape, CONVS[k][1])
        return g


def relay(net, n):
    """The network as Relay text for a batch of n images, with batch_norm, softmax and all as a framework would export it."""
    ty = lambda s: f"Tensor[({', '.join(map(str, s))}), float32]"
    names = {k: k.replace(".", "_") for k in [*net.p, *net.stats]}
    params = [f"%x: {ty((n, 1, 8, 8))}"] + [f"%{names[k]}: {ty(v.shape)}" for k, v in {**net.p, **net.stats}.items()]
    lines, at = [], "x"
    count = iter(range(10**6))
    new = lambda e: lines.append(f"  %{(i := next(count))} = {e};") or str(i)
    for k, (out, stride) in enumerate(CONVS):
        at = new(f"nn.conv2d(%{at}, %conv{k}_weight, strides=[{stride}, {stride}], padding=[1, 1, 1, 1], channels={out}, kernel_size=[3, 3])")
        at = new(f"nn.batch_norm(%{at}, %bn{k}_gamma, %bn{k}_beta, %bn{k}_mean, %bn{k}_var)")
        at = new(f"nn.relu(%{at}.0)")
    at = new(f"nn.global_avg_pool2d(%{at})")
    at = new(f"nn.batch_flatten(%{at})")
    at = new(f"nn.dense(%{at}, %fc_weight, units=10)")
    at = new(f"nn.bias_add(%{at}, %fc_bias)")
    body = "\n".join(lines)
    return f'#[version = "0.0.5"]\ndef @main({", ".join(params)}) -> {ty((n, 10))} {{\n{body}\n  nn.softmax(%{at})\n}}\n'


def save_params(params, path):
    """Relay's parameter file: magic, reserved, names, then one DLTensor record per array (little endian)."""
    with open(path, "wb") as f:
        f.write(struct.pack("<QQQ", 0xF7E58D4F05049CB7, 0, len(params)))
        for name in params:
            f.write(struct.pack("<Q", len(name)) + name.encode())
        f.write(struct.pack("<Q", len(params)))
        for a in params.values():
            f.write(struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, a.ndim, 2, 32, 1))
            f.write(struct.pack(f"<{a.ndim}qq", *a.shape, a.nbytes) + np.ascontiguousarray(a).tobytes())


def main():
    digits = load_digits()
    order = rng.permutation(len(digits.images))
    brightness = digits.images[order].astype(np.uint8)
    np.savez_compressed(here / "all.npz", images=brightness, labels=digits.target[order].astype(np.uint8))
    if sys.argv[1:] == ["data"]:
        return
    x, y = digits.images[order][:, None] / 16.0, digits.target[order]
    (xt, yt), (xv, yv) = (x[HELD_OUT:], y[HELD_OUT:]), (x[:HELD_OUT], y[:HELD_OUT])
    net = Net()
    speed = {k: np.zeros_like(v) for k, v in net.p.items()}
    for epoch in range(EPOCHS):
        rate = RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        batches = rng.permutation(len(xt))[: len(xt) // BATCH * BATCH].reshape(-1, BATCH)
        for b in batches:
            for k, g in net.gradients(xt[b], yt[b]).items():
                speed[k] = MOMENTUM * speed[k] - rate * (g + DECAY * net.p[k])
                net.p[k] = net.p[k] + speed[k]
        print(f"epoch {epoch + 1}: held out {100 * (net.forward(xv)[0].argmax(1) == yv).mean():.1f} %")
    params = {k.replace(".", "_"): v.astype(np.float32) for k, v in {**net.p, **net.stats}.items()}
    # What is recorded is what the float32 weights give.
    for d in (net.p, net.stats):
        d.update({k: params[k.replace(".", "_")].astype(np.float64) for k in d})
    logits, _ = net.forward(xv.astype(np.float32).astype(np.float64))
    e = np.exp(logits - logits.max(1, keepdims=True))
    (here / "model.relay").write_text(relay(net, HELD_OUT))
    save_params(params, here / "model.params")
    np.savez_compressed(here / "inputs.npz", x=xv.astype(np.float32))
    np.savez_compressed(here / "labels.npz", labels=yv.astype(np.int64))
    np.savez_compressed(here / "outputs.npz", **{"0": (e / e.sum(1, keepdims=True)).astype(np.float32)})


if __name__ == "__main__":
    main()
