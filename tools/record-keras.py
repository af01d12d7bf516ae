#!/usr/bin/env python3
"""Adds cases to tests/recorded/frontends/keras.tar.xz, with what Keras makes of them.

    record-keras.py keras.tar.xz [NAME...]

With names, only these cases. Needs numpy and keras with TensorFlow; oneDNN should be off (TF_ENABLE_ONEDNN_OPTS=0).
"""
import json, os, subprocess, sys, tempfile

import keras
import numpy as np
from keras import Input, Model, layers, ops
from keras.src.applications.convnext import LayerScale
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer


def function(*shape):
    """A case of a function of one tensor."""
    return lambda f: (lambda: (lambda x: Model(x, f(x)))(Input(shape, name="x")), shape)


def quantized(*shape, refuse=None):
    """A case of a function of one tensor, whose layers become layers of bytes."""
    def case(f):
        def make():
            x = Input(shape, name="x")
            model = Model(x, f(x))
            model.quantize("int8")
            return model
        return make, shape, refuse
    return case


def tokens(x):
    """Rows of a table, and products by equations, one of which sums two axes."""
    y = layers.Embedding(30, 16)(ops.cast(ops.abs(x) * 8, "int32"))
    y = layers.EinsumDense("abc,cde->abde", output_shape=(None, 4, 8), bias_axes="de")(y)
    return layers.EinsumDense("abde,dec->abc", output_shape=(None, 6))(y)


matrix = function(4, 5)
CASES = {
    "mel_spectrogram": function(256)(layers.MelSpectrogram(fft_length=64, sequence_stride=16, num_mel_bins=10, sampling_rate=1000, max_freq=400)),
    "mel_spectrogram_short": function(200)(layers.MelSpectrogram(fft_length=64, sequence_stride=20, sequence_length=50, window="hamming", num_mel_bins=8, sampling_rate=800, power_to_db=False, mag_exp=1.0)),
    "ops_pad_reflect": matrix(lambda x: ops.pad(x, ((0, 0), (1, 2), (0, 1)), mode="reflect")),
    "ops_roll": matrix(lambda x: ops.roll(x, 2, 1)),
    "ops_tril": matrix(lambda x: ops.tril(x, 1)),
    "ops_triu": matrix(lambda x: ops.triu(x)),
    "ops_unstack": matrix(lambda x: ops.unstack(x, axis=1)),
    "ops_count_nonzero": matrix(lambda x: ops.count_nonzero(x > 0, 1)),
    "ops_constant_array": matrix(lambda x: ops.dot(x, np.linspace(-1, 1, 10, dtype="float32").reshape(5, 2))),
    "layer_scale": function(4, 4, 6)(lambda x: LayerScale(0.1, 6)(x)),
    "scaled_branch": function(4, 4, 6)(lambda x: CustomScaleLayer(0.17)([x, layers.Conv2D(6, 1)(x)])),
    "quantized_dense": quantized(5, 12)(lambda x: layers.Dense(7, use_bias=False)(layers.Dense(20, activation="relu")(x))),
    "quantized_tokens": quantized(6)(tokens),
    # The file does not say that the layer's parts are quantized: Keras does not read it, either.
    "quantized_attention": quantized(6, 16, refuse="array `kernel` is of int8")(lambda x: layers.MultiHeadAttention(4, 8)(x, x)),
    "ops_resize": matrix(lambda x: ops.image.resize(ops.expand_dims(x, -1), (6, 7))),
}

if __name__ == "__main__":
    archive = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-xJf", archive, "-C", folder], check=True)
        for name, (make, shape, *refuse) in CASES.items():
            if sys.argv[2:] and name not in sys.argv[2:]:
                continue
            keras.utils.clear_session()
            keras.utils.set_random_seed(1)
            model = make()
            x = np.random.default_rng(3).standard_normal((2, *shape)).astype("float32")
            results = keras.tree.flatten(model.predict(x, verbose=0))
            case = os.path.join(folder, "keras", name)
            os.makedirs(case, exist_ok=True)
            model.save(os.path.join(case, "model.keras"))
            np.savez(os.path.join(case, "inputs.npz"), x=x)
            about = {}
            if any(refuse):
                about["refuse"] = refuse[0]
            else:
                np.savez(os.path.join(case, "outputs.npz"), **{str(i): np.asarray(r) for i, r in enumerate(results)})
            about |= dict(layers=sorted({type(l).__name__ for l in model.layers if type(l).__name__ != "InputLayer"}))
            with open(os.path.join(case, "meta.json"), "w") as f:
                json.dump(about, f)
        same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=2020-01-01"]
        subprocess.run(["tar", *same, "-cJf", archive, "-C", folder, "keras"], check=True)
