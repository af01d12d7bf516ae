# %% [markdown]
# # Does the order of passes matter?
# All orders of some passes, compiled and measured, beside one saturation that holds all orders at once. Programs that are equal are measured once.

# %%
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd

import resat as rs

rng = np.random.default_rng(0)
mod = rs.parse(
    """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 16, 14, 14), float32], %w: Tensor[(32, 16, 3, 3), float32], %scale: Tensor[(32, 1, 1), float32], %b: Tensor[(32), float32]) {
  %0 = nn.bias_add(nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=32, kernel_size=[3, 3]), %b);
  nn.relu(multiply(%0, %scale))
}
"""
)
shapes = {"w": (32, 16, 3, 3), "scale": (32, 1, 1), "b": (32,)}
mod = mod.bind({k: rng.standard_normal(v, "float32") for k, v in shapes.items()})

# %%
passes = [rs.FoldScaleAxis(), rs.AlterOpLayout(), rs.FoldConstant(), rs.SimplifyExpr()]
with ThreadPoolExecutor(2) as workers:
    few = rs.BuildConfig(limits={"nodes": 4000, "iterations": 8})
    found = rs.explore(mod, passes, workers=workers, measure_seconds=0.02, threads=1, config=few)
print(found.summary)

# %%
frame = pd.DataFrame(found.to_records())
orders = frame[frame.kind == "order"]
print(orders.groupby("program").agg(orders=("name", "count"), median_s=("median_s", "first"), cost=("cost", "first")))

# %%
try:
    import matplotlib

    matplotlib.use("Agg", force=False)
    ax = orders.sort_values("median_s").median_s.mul(1e6).reset_index(drop=True).plot(drawstyle="steps-post")
    ax.axhline(1e6 * found.saturation["median_s"], color="C1", label="one saturation")
    ax.set_xlabel("orders, from the fastest to the slowest")
    ax.set_ylabel("median latency, us")
    ax.set_ylim(bottom=0)
    ax.legend()
except ImportError:
    print("matplotlib draws the plot where it is installed")

# %%
found
