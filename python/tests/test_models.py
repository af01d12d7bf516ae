"""Cost models, extractors and rulesets from Python."""

import numpy as np
import pytest

import resat as rs


class PerNode:
    def __init__(self):
        self.asked = []

    def cost(self, node):
        self.asked.append(node)
        return price(node.flops, node.bytes_read + node.bytes_written)


class Columns:
    def __init__(self):
        self.calls, self.nodes = 0, 0

    def costs(self, nodes):
        self.calls += 1
        self.nodes += len(nodes)
        assert nodes.op[0] == nodes[0].op and nodes[-1].flops == nodes.flops[-1]
        return price(nodes.flops, nodes.bytes_read + nodes.bytes_written)


def price(flops, bytes_):
    return 1e-6 + flops * 1e-11 + bytes_ * 1e-10


def optimized(mod, **config):
    return rs.Saturate()(mod, config=rs.BuildConfig(**config))


def test_a_node_is_asked_for_once(mlp):
    model = PerNode()
    made = optimized(mlp, cost=model)
    keys = [(n.op, str(n.attrs), str(n.args), n.constant, str(n.out)) for n in model.asked]
    assert len(keys) == len(set(keys)) > 0
    count = len(keys)
    assert optimized(mlp, cost=model) == made and len(model.asked) == count
    node = next(n for n in model.asked if n.op == "nn.dense")
    assert node.args[0].dtype == "float32" and node.attrs["units"] in (10, 64) and node.out.rank == 2
    assert node.flops > 0 and node.constant == (False, True)


def test_columns_give_the_same_program_by_fewer_calls(mlp):
    one, many = PerNode(), Columns()
    assert optimized(mlp, cost=one) == optimized(mlp, cost=many) == optimized(mlp, cost=lambda n: one.cost(n))
    assert many.nodes == len(one._resat_memo) == len(many._resat_memo)
    assert many.calls <= 4


def test_prices_of_shipped_models(mlp):
    """`measured` times each node's kernel; the roofline is a formula."""
    model = PerNode()
    optimized(mlp, cost=model)
    nodes = [n for n in model.asked if not all(n.constant)]
    for cost in ("roofline", "measured", "0.5*roofline+1e-7*nodes", lambda n: 2.0):
        prices = rs.prices(nodes, rs.BuildConfig(cost=cost))
        assert prices.shape == (len(nodes),) and prices.dtype == np.float64 and (prices >= 0).all()
    assert (prices == 2.0).all()
    one, half = rs.prices(nodes), rs.prices(nodes, rs.BuildConfig(cost="0.5*roofline"))
    np.testing.assert_allclose(half, 0.5 * one)
    with pytest.raises(ZeroDivisionError):
        rs.prices(nodes, rs.BuildConfig(cost=lambda n: 1 / 0))


def test_columns_must_be_as_long_as_what_was_asked(mlp):
    class Short:
        def costs(self, nodes):
            return [1.0]

    with pytest.raises(TypeError, match="but gave 1 prices"):
        optimized(mlp, cost=Short())


def test_prices_decide(x):
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(4), float32]) { multiply(exp(%x), exp(%x)) }')
    rules = "(ruleset mine :numerics real) (rule join (multiply (exp ?x) (exp ?y)) => (exp (add ?x ?y)))"
    dear = {"exp": 10.0, "add": 1.0, "multiply": 1.0}
    assert optimized(mod, cost=lambda n: dear.get(n.op, 5.0), rules=rules, limits={"iterations": 3}).ops() == {"exp": 1, "multiply": 1}
    dear["multiply"] = 40.0
    made = rs.Saturate("mine")(mod, config=rs.BuildConfig(cost=lambda n: dear.get(n.op, 5.0), rules=rules))
    assert made.ops() == {"add": 1, "exp": 1}


def test_fingerprints_allow_to_keep_programs(mlp, tmp_path, x):
    class Known(Columns):
        def fingerprint(self):
            return "1"

    for model, kept in ((Columns(), False), (Known(), True)):
        folder = tmp_path / type(model).__name__
        for _ in range(2):
            exe = rs.build(mlp, config=rs.BuildConfig(cost=model), cache=folder)
        np.testing.assert_allclose(exe.run([x])[0], mlp.interpret([x])[0], rtol=1e-4, atol=1e-6)
        assert bool(list((folder / "models").rglob("*"))) == kept
        if kept:
            with pytest.raises(ValueError, match="found in a cache"):
                exe.module


def cheapest_trees(problem):
    """Costs of trees to a fixed point, in NumPy: what the shipped extractor `tree` does."""
    ptr, need_ptr, needs, cost = problem.class_ptr, problem.need_ptr, problem.needs, problem.cost
    best = np.full(problem.classes, np.inf)
    choice = np.full(problem.classes, -1)
    for _ in range(problem.classes):
        total = cost.copy()
        np.add.at(total, np.repeat(np.arange(problem.candidates), np.diff(need_ptr)), best[needs])
        changed = False
        for c in range(problem.classes):
            span = total[ptr[c] : ptr[c + 1]]
            at = int(span.argmin())
            if span[at] < best[c]:
                best[c], choice[c], changed = span[at], ptr[c] + at, True
        if not changed:
            break
    return choice


def test_an_extractor_over_arrays(mlp):
    problems = []

    def extract(problem):
        problems.append(problem)
        choice = cheapest_trees(problem)
        assert problem.total(choice) < np.inf
        return choice

    x = np.ones((4, 32), "float32")
    made = optimized(mlp, extractor=extract)
    np.testing.assert_allclose(made.interpret([x])[0], mlp.interpret([x])[0], rtol=1e-5)
    p = problems[0]
    assert len(p.class_of) == p.candidates == len(p.cost) == len(p.error) and len(p.class_ptr) == p.classes + 1
    assert (np.diff(p.class_ptr) > 0).all() and p.need_ptr[-1] == len(p.needs)
    assert p.total(p.greedy()) <= p.total(cheapest_trees(p)) * (1 + 1e-9)


@pytest.mark.parametrize("wrong", [lambda p: np.full(p.classes, -1), lambda p: p.class_ptr[:-1][::-1].copy()])
def test_a_choice_that_is_no_program_is_refused(mlp, wrong):
    with pytest.raises(rs.Refused, match="gives no program"):
        optimized(mlp, extractor=wrong)


def test_rulesets_are_checked():
    right = rs.Ruleset("(ruleset t :numerics real)\n;; -(-x) == x.\n(rule twice (negative (negative ?x)) => ?x)")
    assert right.names == ["t"] and right.rules[0].grade == "real" and "negative" in right.rules[0].matches and right.rules[0].doc
    assert all(c.sound for c in right.check())
    wrong = rs.Ruleset("(ruleset t) (rule odd (abs ?x) => (negative ?x))").check()[0]
    assert not wrong.sound and "WRONG" in str(wrong)
    assert "algebra" in rs.rulesets() and len(rs.rulesets()["algebra"]) > 5
    assert rs.describe_rule_language("splat") and "splat" in rs.describe_rule_language()


def test_explanations(mlp):
    mod = rs.parse('#[version = "0.0.5"]\ndef @main(%x: Tensor[(2, 3), float32]) {\n  nn.relu(transpose(transpose(%x)))\n}', "t.relay")
    e = rs.explain(mod, pipeline="Saturate")
    assert "drop-transpose" in str(e) and e.to_records()
    wanted = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(2, 3), float32]) { nn.relu(%x) }')
    assert rs.why_not(mod, wanted).answer == "costs more"
    strange = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(2, 3), float32]) { tanh(%x) }')
    answer = rs.why_not(mod, strange)
    assert answer.answer == "missing" and "tanh" in str(answer)
    assert any(a["chosen"] and a["cost"] > 0 for a in rs.alternatives(mlp, 2))


def test_sensitivity(cnn, image):
    study = rs.sensitivity(cnn, {"x": np.stack([image, -image])}, from_layer=1)
    assert len(study.layers) == 2 and study.points and "<table>" in study._repr_html_()
