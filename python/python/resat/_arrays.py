"""Arrays in and out: what has no buffer of a dense row-major array goes through NumPy here."""

from __future__ import annotations

from . import _resat

__all__ = ["empty", "plain"]


def plain(value, wanted: str | None):
    """A dense row-major array of at least one axis over `value`, the element type that its bits are, and its shape.

    Tensors of other frameworks come by DLPack, without a copy where they lie in this processor's memory. Python's own numbers and lists
    take the wanted type; arrays keep theirs. Element types that NumPy has from ml_dtypes are given as their bits.
    """
    import numpy as np

    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        value = _of_dlpack(value, np)
    own = not hasattr(value, "dtype")
    if own and wanted is not None:
        dtype = _dtype(wanted, np)
        array = np.asarray(value)
        if array.dtype.kind == "f" and dtype.kind in "iu":
            raise TypeError(f"numbers with fractions are given where {wanted} is wanted")
        array = array.astype(dtype)
    else:
        array = np.asarray(value)
    name = array.dtype.name
    shape = array.shape
    array = np.ascontiguousarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if name == "bfloat16":
        return array.view(np.uint16), name, shape
    if name in ("int4", "uint4", "int2", "uint2"):
        # Relay's programs hold small integers in bytes.
        wide = "int8" if name.startswith("int") else "uint8"
        return array.astype(wide), wide, shape
    if array.dtype.kind not in "biuf" or name in ("float128", "longdouble"):
        raise TypeError(f"resat has no element type `{array.dtype}`")
    return array, name, shape


def _of_dlpack(value, np):
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):
        # NumPy's DLPack has no bfloat16, and a tensor that asks for gradients gives none.
        pass
    if type(value).__module__.partition(".")[0] == "torch":
        import torch

        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            import ml_dtypes

            return value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return value.numpy()
    return np.asarray(value)


def _dtype(name: str, np):
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def empty(shape, dtype: str = "float32"):
    """A NumPy array of zeros in memory on a boundary of 64 bytes, which `Executable.run` takes without a copy.

    `shape` is a tuple of extents or one extent; `dtype` is TVM's name ("float32", "int8", "bfloat16") or a NumPy dtype.
    """
    import numpy as np

    if isinstance(shape, int):
        shape = (shape,)
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    return _resat.Tensor(list(shape), name).__array__()
