# %% [markdown]
# # Extraction by gradients
# SmoothE's idea in NumPy: which candidate a class takes is a probability; the expected price of the program is differentiable, and is made less by
# descent. It works over the arrays of `Problem` in compressed rows, and takes prices that are functions of the whole choice, too.

# %%
import numpy as np

import resat as rs


class Smooth:
    """An extractor by gradient descent over probabilities; what it rounds to is used where it beats the greedy choice."""

    name = "smooth"

    def __init__(self, steps=60, rounds=24, rate=0.5):
        self.steps, self.rounds, self.rate = steps, rounds, rate
        self.log = []

    def extract(self, problem):
        ptr, need_ptr, needs, class_of = problem.class_ptr, problem.need_ptr, problem.needs, problem.class_of
        cost = np.minimum(problem.cost, 1e3 * np.median(problem.cost[np.isfinite(problem.cost)]) + 1)
        cost = cost / max(cost.sum(), 1e-30)
        owner = np.repeat(np.arange(problem.candidates), np.diff(need_ptr))
        starts = ptr[:-1]
        best = problem.greedy()
        greedy = least = problem.total(best)
        theta = np.zeros(problem.candidates)
        theta[best[best >= 0]] = 2.0
        for _ in range(self.steps):
            top = np.maximum.reduceat(theta, starts)
            e = np.exp(theta - top[class_of])
            s = e / np.add.reduceat(e, starts)[class_of]
            # How likely each class is needed: the root is, and what likely candidates of needed classes need.
            p, trail = np.zeros(problem.classes), []
            p[problem.root] = 1.0
            for _ in range(self.rounds):
                q = np.zeros(problem.classes)
                np.add.at(q, needs, (s * p[class_of])[owner])
                q[problem.root] += 1.0
                trail.append((p, q < 1.0))
                p = np.minimum(q, 1.0)
            # Backwards, by hand.
            g = np.add.reduceat(cost * s, starts)
            ds = cost * p[class_of]
            for before, open_ in reversed(trail):
                g = g * open_
                of_needs = np.bincount(owner, g[needs], problem.candidates)
                ds = ds + of_needs * before[class_of]
                g = np.add.reduceat(s * of_needs, starts)
            mean = np.add.reduceat(s * ds, starts)[class_of]
            gradient = s * (ds - mean)
            theta -= self.rate * gradient / max(np.abs(gradient).max(), 1e-30)
            choice = np.array([a + theta[a:b].argmax() for a, b in zip(ptr[:-1], ptr[1:])])
            try:
                total = problem.total(choice)
            except rs.Refused:
                # A circle: probabilities know nothing of them.
                continue
            if total < least:
                least, best = total, choice
        self.log.append((problem.classes, problem.candidates, greedy, least))
        return best


# %%
text = """#[version = "0.0.5"]
def @main(%x: Tensor[(8, 32), float32], %y: Tensor[(8, 32), float32]) {
  %0 = multiply(add(%x, %y), 2f);
  %1 = add(multiply(%x, 2f), multiply(%y, 2f));
  nn.relu(subtract(transpose(transpose(%0, axes=[1, 0]), axes=[1, 0]), negative(%1)))
}
"""
mod = rs.parse(text)
smooth = Smooth()
made = rs.Saturate()(mod, config=rs.BuildConfig(extractor=smooth))
for classes, candidates, greedy, least in smooth.log:
    print(f"{classes} classes, {candidates} candidates: greedy {greedy:.3e}, descent {least:.3e}")
    assert least <= greedy
made

# %%
x = [np.random.default_rng(i).standard_normal((8, 32), "float32") for i in range(2)]
assert np.allclose(rs.build(mod, config=rs.BuildConfig(extractor=smooth)).run(x)[0], mod.interpret(x)[0], rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## A price of the whole choice
# Here every pair of different operators costs something: a quadratic price, which no sum over nodes can say. Local search over the arrays.


# %%
class FewKinds:
    """Prices a choice by the sum of its nodes and the number of pairs of different prices in it; from the greedy choice on, single changes."""

    def extract(self, problem):
        rng = np.random.default_rng(0)
        ptr, choice = problem.class_ptr, problem.greedy()
        cost = problem.cost

        def price(c):
            kinds = len(np.unique(cost[c[c >= 0]]))
            return problem.total(c) * (1 + 0.01 * kinds * (kinds - 1) / 2)

        best = price(choice)
        for _ in range(200):
            c = int(rng.integers(problem.classes))
            other = choice.copy()
            other[c] = rng.integers(ptr[c], ptr[c + 1])
            try:
                now = price(other)
            except rs.Refused:
                continue
            if now < best:
                best, choice = now, other
        return choice


rs.Saturate()(mod, config=rs.BuildConfig(extractor=FewKinds()))
