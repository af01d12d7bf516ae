"""NumPy, DLPack, and what has neither."""

import gc

import numpy as np
import pytest

import resat as rs


def program(body, params):
    return rs.parse(f'#[version = "0.0.5"] def @main({params}) {{ {body} }}')


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"])
def test_each_element_type_comes_back(dtype):
    exe = rs.build(program("transpose(%x, axes=[1, 0])", f"%x: Tensor[(2, 3), {dtype}]"))
    x = np.arange(6).reshape(2, 3).astype(dtype)
    (y,) = exe.run({"x": x})
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x.T)


def test_bfloat16_and_int4_by_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    exe = rs.build(program("add(%x, %x)", "%x: Tensor[(4), bfloat16]"))
    x = np.array([1, 2.5, -3, 0], ml_dtypes.bfloat16)
    (y,) = exe.run({"x": x})
    assert y.dtype == ml_dtypes.bfloat16 and y.tolist() == [2, 5, -6, 0]
    z = rs.empty((4,), "bfloat16")
    z[:] = x
    assert exe.run([z])[0].tolist() == [2, 5, -6, 0]
    exe = rs.build(program("add(%x, %x)", "%x: Tensor[(2), int8]"))
    assert exe.run([np.array([-8, 7], ml_dtypes.int4)])[0].tolist() == [-16, 14]


def test_arrays_that_are_not_dense_are_copied():
    exe = rs.build(program("negative(%x)", "%x: Tensor[(3, 2), float32]"))
    x = np.arange(12, dtype="float32").reshape(4, 3)[::2].T
    assert not x.flags.c_contiguous
    np.testing.assert_array_equal(exe.run([x])[0], -x)
    big = np.arange(6, dtype=">f4").reshape(3, 2)
    np.testing.assert_array_equal(exe.run([big])[0], -big)
    np.testing.assert_array_equal(exe.run([np.asfortranarray(big.astype("f4"))])[0], -big)


def test_numbers_and_lists_take_the_wanted_type():
    exe = rs.build(program("add(%x, %y)", "%x: Tensor[(2), float32], %y: float32"))
    assert exe.run({"x": [1, 2], "y": 0.5})[0].tolist() == [1.5, 2.5]
    with pytest.raises(TypeError, match="fractions"):
        rs.build(program("add(%x, %x)", "%x: int32")).run([0.5])


def test_memory_of_resats_is_aligned_and_written_by_all():
    a = rs.empty((3, 5), "int16")
    assert a.ctypes.data % 64 == 0 and a.shape == (3, 5) and a.dtype == np.int16 and a.flags.writeable
    a[:] = 7
    exe = rs.build(program("add(%x, %x)", "%x: Tensor[(3, 5), int16]"))
    (y,) = exe.run([a])
    a[:] = 1
    assert (y == 14).all()
    (z,) = exe.run([a])
    assert (z == 2).all() and (y == 14).all()


def test_outputs_are_ones_own():
    exe = rs.build(program("(%x, %x, 1f)", "%x: Tensor[(64), float32]"))
    x = rs.empty((64,))
    a, b, one = exe.run([x])
    a[:] = 3
    assert (x == 0).all() and (b == 0).all() and one.shape == ()
    for _ in range(3):
        assert exe.run([x])[2] == 1
        one[...] = 5


def test_outputs_outlive_what_made_them():
    y = rs.build(program("exp(%x)", "%x: Tensor[(1000), float32]")).run([np.zeros(1000, "float32")])[0]
    gc.collect()
    assert (y == 1).all()


def test_dlpack_out_and_in():
    t = rs.Tensor((2, 2), "float32")
    a = np.from_dlpack(t)
    np.asarray(t)[0, 0] = 3
    assert a[0, 0] == 3 and t.shape == (2, 2) and t.dtype == "float32"

    class Foreign:
        """What has DLPack and nothing else."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    exe = rs.build(program("negative(%x)", "%x: Tensor[(2), float32]"))
    assert exe.run([Foreign(np.array([1, 2], "float32"))])[0].tolist() == [-1, -2]


def address(array):
    return array.__array_interface__["data"][0]


def test_constants_are_ones_own():
    """A constant is known by its content: who writes the array afterwards changes nothing, aligned or not."""
    for w in (rs.empty((64,)), np.zeros(64, "float32")):
        w[:] = 3
        mod = program("multiply(%x, %w)", "%x: Tensor[(64), float32], %w: Tensor[(64), float32]").bind({"w": w})
        w[:] = 7
        assert rs.build(mod).run([np.ones(64, "float32")])[0].tolist() == [3] * 64
        assert mod.constants()[0].tolist() == [3] * 64
        mod.constants()[0][:] = 9
        assert mod.constants()[0].tolist() == [3] * 64


def test_read_only_arrays_are_inputs():
    exe = rs.build(program("negative(%x)", "%x: Tensor[(64), float32]"))
    for x in (rs.empty((64,)), np.zeros(64, "float32")):
        x[:] = 2
        x.flags.writeable = False
        assert exe.run([x])[0].tolist() == [-2] * 64
    assert exe.run([memoryview(np.full(64, 3, "float32").tobytes()).cast("f")])[0].tolist() == [-3] * 64


def test_torch():
    """Both ways: dense, strided, requiring gradients, bfloat16, without elements; results are torch's without a copy."""
    torch = pytest.importorskip("torch")
    exe = rs.build(program("negative(%x)", "%x: Tensor[(2, 3), float32]"))
    dense = torch.arange(6.0).reshape(2, 3)
    wide = torch.arange(12.0).reshape(2, 6)
    for x in (dense, dense.t().contiguous().t(), wide[:, ::2], wide[:, 3:], dense.clone().requires_grad_(), dense[:1].expand(2, 3)):
        (y,) = exe.run({"x": x})
        t = torch.from_dlpack(y)
        assert t.data_ptr() == address(y) and torch.equal(t, -x.detach())
    with pytest.raises((TypeError, rs.Refused)):
        exe.run([dense.to_sparse()])
    assert rs.build(program("nn.relu(%x)", "%x: Tensor[(0, 3), float32]")).run([torch.zeros(0, 3)])[0].shape == (0, 3)
    # Memory of resat's is torch's as well, and the other way round: what one writes the other sees.
    t = torch.from_dlpack(rs.Tensor((2, 3)))
    t[:] = 4
    assert exe.run([t])[0].tolist() == [[-4] * 3] * 2
    half = rs.build(program("add(%x, %x)", "%x: Tensor[(4), float16]"))
    assert half.run([torch.tensor([1, 2, 3, 4], dtype=torch.float16)])[0].tolist() == [2, 4, 6, 8]
    flags = rs.build(program("logical_not(%x)", "%x: Tensor[(2), bool]"))
    assert flags.run([torch.tensor([True, False])])[0].tolist() == [False, True]


def test_torch_bfloat16():
    torch = pytest.importorskip("torch")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    exe = rs.build(program("add(%x, %x)", "%x: Tensor[(2, 2), bfloat16]"))
    x = torch.tensor([[1, 2.5], [-3, 0]], dtype=torch.bfloat16)
    for given in (x, x.t().contiguous().t(), x.clone().requires_grad_()):
        (y,) = exe.run([given])
        assert y.dtype == ml_dtypes.bfloat16 and y.tolist() == [[2, 5], [-6, 0]]
        # NumPy's DLPack knows no bfloat16: bits go over as integers.
        assert torch.equal(torch.from_dlpack(y.view("int16")).view(torch.bfloat16), x + x)


def test_jax():
    """Both ways, as with torch. JAX's arrays never change, and are read only."""
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    exe = rs.build(program("negative(%x)", "%x: Tensor[(2, 3), float32]"))
    x = jnp.arange(6.0, dtype=jnp.float32).reshape(2, 3)
    for given in (x, x.T.copy().T, jnp.arange(12.0, dtype=jnp.float32).reshape(2, 6)[:, ::2] * 0 + x):
        (y,) = exe.run({"x": given})
        np.testing.assert_array_equal(y, -np.asarray(given))
    back = jnp.from_dlpack(y)
    assert back.shape == (2, 3) and jnp.array_equal(back, -x)
    assert jnp.array_equal(jnp.from_dlpack(rs.Tensor((3,), "int32")), jnp.zeros(3, "int32"))
    assert jnp.array_equal(jnp.asarray(rs.empty((2, 2))), jnp.zeros((2, 2)))
    assert exe.run([jax.jit(lambda v: v + 1)(x)])[0].tolist() == [[-1, -2, -3], [-4, -5, -6]]


def test_jax_bfloat16_and_int4():
    pytest.importorskip("jax")
    import jax.numpy as jnp
    import ml_dtypes

    exe = rs.build(program("add(%x, %x)", "%x: Tensor[(4), bfloat16]"))
    (y,) = exe.run([jnp.array([1, 2.5, -3, 0], jnp.bfloat16)])
    assert y.dtype == ml_dtypes.bfloat16 and y.tolist() == [2, 5, -6, 0]
    assert jnp.asarray(y).dtype == jnp.bfloat16 and jnp.asarray(y).tolist() == [2, 5, -6, 0]
    exe = rs.build(program("add(%x, %x)", "%x: Tensor[(2), int8]"))
    assert exe.run([jnp.array([-8, 7], jnp.int4)])[0].tolist() == [-16, 14]


def test_empty_arrays():
    exe = rs.build(program("nn.relu(%x)", "%x: Tensor[(0, 3), float32]"))
    assert exe.run([np.zeros((0, 3), "float32")])[0].shape == (0, 3)


def test_tuples_are_flattened():
    exe = rs.build(program("(%x.0, add(%x.1, %x.1))", "%x: (float32, Tensor[(2), int32])"))
    assert [n for n, _ in exe.inputs] == ["x.0", "x.1"]
    a, b = exe.run({"x.0": np.float32(2), "x.1": np.array([1, 2], "int32")})
    assert a == 2 and b.tolist() == [2, 4]


def test_extents_that_are_not_known():
    exe = rs.build(program("nn.relu(%x)", "%x: Tensor[(?, 2), float32]"))
    assert exe.inputs[0][1].shape == (None, 2)
    for n in (1, 3):
        assert exe.run([-np.ones((n, 2), "float32")])[0].shape == (n, 2)


def test_values_that_decide_extents_are_not_borrowed():
    exe = rs.build(program("dyn.reshape(%x, %s)", "%x: Tensor[(6), float32], %s: Tensor[(2), int64]"))
    x, s = np.arange(6, dtype="float32"), rs.empty((2,), "int64")
    for shape in ((2, 3), (3, 2), (2, 3), (6, 1), (3, 2)):
        s[:] = shape
        assert exe.run([x, s])[0].shape == shape


def test_parameter_files(tmp_path):
    arrays = {"a": np.arange(3, dtype="int64"), "b": np.ones((2, 2), "float16")}
    for name in ("p.params", "p.npz"):
        rs.save_params(arrays, tmp_path / name)
        back = rs.load_params(tmp_path / name)
        assert back.keys() == arrays.keys()
        for key in arrays:
            np.testing.assert_array_equal(back[key], arrays[key])
            assert back[key].dtype == arrays[key].dtype
