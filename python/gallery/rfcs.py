# %% [markdown]
# # The RFCs' five snippets
# Quantization as a switch and as a layer, dialects that are found by themselves, passes of one's own among named stages, inspection, and
# regions for other compilers.

# %%
import numpy as np

import resat as rs

rng = np.random.default_rng(0)
mod = rs.parse(
    """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 16, 16, 8), float32], %w1: Tensor[(3, 3, 8, 16), float32], %w2: Tensor[(1, 1, 16, 16), float32]) {
  %0 = nn.conv2d(%x, %w1, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3], data_layout="NHWC", kernel_layout="HWIO");
  nn.relu(nn.conv2d(nn.relu(%0), %w2, padding=[0, 0, 0, 0], channels=16, kernel_size=[1, 1], data_layout="NHWC", kernel_layout="HWIO"))
}
""",
    "cnn.relay",
).bind({"w1": rng.standard_normal((3, 3, 8, 16), "float32") / 8, "w2": rng.standard_normal((1, 1, 16, 16), "float32") / 4})
x = rng.standard_normal((1, 16, 16, 8), "float32")
want = mod.interpret([x])[0]


def error(y):
    return float(np.abs(y - want).max() / np.abs(want).max())


# %% [markdown]
# ## RFC 000/001, option 1: a switch of the build

# %%
with rs.BuildConfig(opt_level=3, run_before={"optimize": rs.Quantize(from_layer=1)}):
    exe = rs.build(mod)
print("quantized by a switch, error", error(exe.run({"x": x})[0]))

# %% [markdown]
# ## Option 2: composition, with samples as they are

# %%
samples = np.stack([x, x / 2, -x])
quantized = rs.Quantize(from_layer=1, calibration={"x": samples})(mod)
both = rs.Sequential([rs.Quantize(from_layer=1, calibration={"x": samples}), rs.ConvertLayout("NHWC", to="NHWC4c")])(mod)
print("quantized as a layer, error", error(rs.build(quantized).run({"x": x})[0]))
print("and then in other layouts, error", error(rs.build(both).run({"x": x})[0]))
quantized

# %% [markdown]
# ## RFC 001, 002: dialects are found by themselves

# %%
print({op: n for op, n in quantized.ops().items() if op.startswith("qnn.")})
legal = rs.Legalize()(quantized)
assert not any(op.startswith("qnn.") for op in legal.ops())


# %% [markdown]
# ## Passes of one's own among named stages, and what they all did

# %%
@rs.module_pass("count")
def count(m: rs.Module) -> rs.Module:
    print("before folding:", m.ops())
    return m


p = rs.default_pipeline()
p.run_before("fold-constant", count)
p.remove("dead-code")
with rs.Trace() as t:
    rs.build(legal, pipeline=p)
t

# %% [markdown]
# ## RFC 003: regions for other compilers

# %%
by_hand = rs.PartitionGraph()(rs.MergeCompilerRegions()(rs.AnnotateTarget("c")(mod)))
at_once = rs.partition_for(mod, "c")
for made in (by_hand, at_once):
    print(made.functions(), "error", error(rs.build(made).run({"x": x})[0]))
