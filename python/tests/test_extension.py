"""Dialects, operators and external compilers from Python."""

import warnings

import numpy as np
import pytest

import resat as rs


def test_a_dialect():
    d = rs.Dialect("toy")

    @d.op(attrs={"by": float, "shift": 0.0}, samples=[((rs.TensorType((2, 3)),), {"by": 2.0})], flops=lambda attrs, args, out: 12.0)
    def scaled(data, *, by, shift):
        """data * by + shift."""
        return (data * by + shift).astype(data.dtype)

    @d.op("both", samples=[((rs.TensorType((2,)), rs.TensorType((2,))), {})])
    def both(a, b):
        """(a + b, a - b)."""
        return a + b, a - b

    @scaled.infer
    def relation(attrs, args):
        if args[0].dtype != "float32":
            raise TypeError("data should be float32")
        return args[0]

    d.rules(
        """(ruleset toy :numerics real)
        ;; scaled(x) == x * by + shift.
        (rule scaled (toy.scaled {by ?k shift ?s} ?x) => (add (multiply ?x (const ?k like ?x)) (const ?s like ?x)))
        ;; both(a, b) == (a + b, a - b).
        (rule both (toy.both ?a ?b) => (tuple (add ?a ?b) (subtract ?a ?b)))"""
    )
    d.register()
    assert rs.dialects()["toy"] == ["toy.scaled", "toy.both"]
    assert rs.describe_operator("toy.scaled")["inputs"] == ["data"]
    mod = rs.parse(
        '#[version = "0.0.5"] def @main(%x: Tensor[(2), float32]) { let %p = toy.both(toy.scaled(%x, by=3f, shift=1f), %x); (%p.0, %p.1) }'
    )
    x = np.array([1, -2], "float32")
    want = [(3 * x + 1) + x, (3 * x + 1) - x]
    for got in (mod.interpret([x]), rs.build(mod).run([x])):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert set(rs.Legalize()(mod).ops()) <= {"add", "multiply", "subtract"}
    with pytest.raises(rs.Refused, match="should be float32"):
        rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(2), int32]) { toy.scaled(%x, by=3f) }').infer_type()
    with pytest.raises(rs.Refused, match="already registered"):
        d.register()


def test_operators_without_rules_can_be_interpreted_and_not_built():
    d = rs.Dialect("plain")

    @d.op(samples=[((rs.TensorType((2,)),), {})])
    def cube(data):
        """data ** 3."""
        return data**3

    d.register()
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(2), float32]) { plain.cube(%x) }')
    assert mod.interpret([[2.0, 3.0]])[0].tolist() == [8, 27]
    with pytest.raises(rs.Refused, match="no rule of dialect `plain`"):
        rs.build(mod)


def test_what_is_wrong_with_a_dialect_is_refused():
    d = rs.Dialect("wrong")
    d.rules("(ruleset wrong) (rule a (wrong.none ?x) => ?x)")
    with pytest.raises(rs.Refused, match="wrong.none"):
        d.register()
    assert "wrong" not in rs.dialects()


class Numpy(rs.ExternalCompiler):
    """Regions as Python functions that interpret them."""

    name = "numpy_regions"
    patterns = [("numpy_regions.dense_relu", "(nn.relu (nn.bias_add (nn.dense ?x ?w) ?b))")]

    def __init__(self):
        self.regions, self.calls = [], 0

    def supports(self, op, attrs, args, result):
        return op in ("nn.dense", "nn.relu") and result.dtype == "float32"

    def compile(self, region):
        self.regions.append(region)
        module = region.plain

        def run(*arrays):
            self.calls += 1
            return tuple(module.interpret(list(arrays)))

        return run


def test_a_compiler_whose_code_is_python(mlp, x, tmp_path):
    compiler = Numpy()
    rs.register_compiler(compiler)
    assert "numpy_regions" in rs.compilers()
    exe = rs.build(rs.partition_for(mlp, "numpy_regions"), threads=1)
    (y,) = exe.run([x])
    np.testing.assert_allclose(y, mlp.interpret([x])[0], rtol=1e-4, atol=1e-6)
    assert compiler.calls == len(compiler.regions) > 0
    assert compiler.regions[0].inputs[0].shape == (4, 32) and compiler.regions[0].symbol in repr(compiler.regions[0])
    with pytest.raises(rs.Refused, match="exported"):
        exe.save(tmp_path / "none.so")
    with pytest.raises(rs.Refused, match="already"):
        rs.register_compiler(compiler)


class InC(rs.ExternalCompiler):
    """Negation of float32 in C."""

    name = "c_negative"

    def supports(self, op, attrs, args, result):
        return op == "negative" and result.dtype == "float32"

    def compile(self, region):
        if region.plain.ops() != {"negative": 1}:
            raise ValueError("one negation at a time")
        n = int(np.prod(region.inputs[0].shape))
        return f"""void {region.symbol}(const void *ctx, void *const *args, unsigned char *workspace) {{
            const float *x = args[0]; float *y = args[1];
            for (int i = 0; i < {n}; ++i) y[i] = -x[i];
        }}"""


def test_a_compiler_that_writes_c(tmp_path):
    rs.register_compiler(InC())
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(8), float32]) { exp(negative(exp(%x))) }')
    made = rs.partition_for(mod, "c_negative")
    exe = rs.build(made)
    x = np.linspace(-1, 1, 8, dtype="float32")
    np.testing.assert_allclose(exe.run([x])[0], np.exp(-np.exp(x)), rtol=1e-5)
    exe.save(tmp_path / "m.so")
    np.testing.assert_allclose(rs.load_library(tmp_path / "m.so").run([x])[0], np.exp(-np.exp(x)), rtol=1e-5)
    twice = rs.partition_for(rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(8), float32]) { negative(negative(%x)) }'), "c_negative")
    with pytest.raises(rs.Refused, match="one negation at a time"):
        rs.build(twice)


def test_regions_that_fall_back_when_called_are_told_once():
    class OutOfInk(rs.ExternalCompiler):
        name = "out_of_ink"

        def supports(self, op, attrs, args, result):
            return op == "negative"

        def compile(self, region):
            raise ValueError("out of ink")

    rs.register_compiler(OutOfInk())
    mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(?, 4), float32]) { exp(negative(%x)) }')
    exe = rs.build(rs.partition_for(mod, "out_of_ink"), fallback=True)
    with pytest.warns(rs.ResatWarning, match="is resat's own code now: .*out of ink"):
        exe.run([np.ones((2, 4), "float32")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (y,) = exe.run([np.ones((3, 4), "float32")])
    np.testing.assert_allclose(y, np.exp(-np.ones((3, 4))), rtol=1e-5)


def test_what_cost_raises_is_told(mlp):
    class Unsure(Numpy):
        name = "unsure_compiler"
        patterns = []

        def cost(self, region):
            raise RuntimeError("no idea")

    rs.register_compiler(Unsure())
    with pytest.raises(rs.Refused, match="`cost` raised RuntimeError: no idea"):
        rs.build(mlp, config=rs.BuildConfig(compilers=["unsure_compiler"]))


def test_what_supports_raises_is_told(mlp):
    class Broken(rs.ExternalCompiler):
        name = "broken_compiler"

        def supports(self, op, attrs, args, result):
            raise RuntimeError("cannot say")

    rs.register_compiler(Broken())
    with pytest.raises(rs.Refused, match="cannot say"):
        rs.partition_for(mlp, "broken_compiler")
