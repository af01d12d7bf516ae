# %% [markdown]
# # A ruleset of one's own
# Rules are text. They are checked when they are read, tested on random instances, and then used beside the shipped ones; a cost model decides
# what of the things that they find is taken.

# %%
import numpy as np

import resat as rs

mine = rs.Ruleset(
    """(ruleset mine :numerics finite)

;; e^a e^b == e^(a + b), but for infinities: one factor may be infinite and the other 0.
(rule join-exponentials (multiply (exp ?x) (exp ?y)) => (exp (add ?x ?y)))
""",
    "mine.rules",
)
mine

# %%
for check in mine.check():
    print(check)

# %% [markdown]
# A rule that is wrong is found out, with an instance.

# %%
wrong = rs.Ruleset("(ruleset wrong :numerics real) (rule sums (exp (add ?x ?y)) => (add (exp ?x) (exp ?y)))")
print(wrong.check()[0])
assert not wrong.check()[0].sound

# %% [markdown]
# What is misspelt is reported with its place.

# %%
try:
    rs.Ruleset("(ruleset t)\n(rule a (nn.rellu ?x) => ?x)", "t.rules")
except rs.Refused as e:
    print(e)

# %%
mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(64), float32], %y: Tensor[(64), float32]) { multiply(exp(%x), exp(%y)) }')
with rs.BuildConfig(rules=mine, grade="finite"):
    print(rs.explain(mod, pipeline="Saturate(mine)"))
    exe = rs.build(mod)
print(exe.kernels)
x, y = np.linspace(-1, 1, 64, dtype="float32"), np.linspace(0, 1, 64, dtype="float32")
assert np.allclose(exe.run([x, y])[0], np.exp(x) * np.exp(y), rtol=1e-5)
