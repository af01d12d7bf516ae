"""Programs, and files of them."""

from __future__ import annotations

import os
import pickle
from typing import Any, Iterable, Mapping

from . import _resat
from ._resat import Module

__all__ = ["Function", "load", "load_params", "parse", "save_params"]


class Function:
    """A function of a module: its name, and attributes that may differ from those that it has there."""

    def __init__(self, module: Module, name: str, attrs: "Mapping[str, Any] | None" = None):
        self.module = module
        self.name = name
        self._attrs = None if attrs is None else dict(attrs)
        if attrs is None:
            module.attrs_of(name)

    @property
    def attrs(self) -> dict[str, Any]:
        """Its attributes, such as `Compiler` and `Primitive`."""
        return dict(self.module.attrs_of(self.name) if self._attrs is None else self._attrs)

    def with_attr(self, name: str, value: Any) -> "Function":
        """The same function with an attribute changed or added."""
        return Function(self.module, self.name, {**self.attrs, name: value})

    def without_attr(self, name: str) -> "Function":
        """The same function without an attribute."""
        return Function(self.module, self.name, {k: v for k, v in self.attrs.items() if k != name})

    @property
    def params(self) -> list[tuple[str, Any]]:
        """Its parameters: names and types."""
        return self.module.signature_of(self.name)[0]

    @property
    def result(self) -> Any:
        """The type of its result."""
        return self.module.signature_of(self.name)[1]

    def ops(self) -> dict[str, int]:
        """How often it calls each operator."""
        return self.module.ops(self.name)

    def __str__(self) -> str:
        return self.module.text_of(self.name)

    def __repr__(self) -> str:
        return f"<resat.Function @{self.name}>"

    def _repr_html_(self) -> str:
        from ._html import code

        return code(str(self))


def load(
    path: "str | os.PathLike[str]",
    params: "str | os.PathLike[str] | Mapping[str, Any] | None" = None,
    *,
    dims: "Mapping[str, int] | None" = None,
    shapes: "Mapping[str, Iterable[int | None]] | None" = None,
    ranks: "Mapping[str, int] | None" = None,
) -> Module:
    """Reads a model: Relay text or JSON, ONNX, TFLite or Keras, recognized by its content. Weights that come with it are constants.

    `params` gives parameters of `@main` that become constants: a parameter file (Relay's own format, or npz), or a dict of arrays. `dims` are
    extents of symbolic dimensions by name; `shapes` are shapes of inputs by name, None for extents that stay unknown. `ranks` are numbers of
    axes of all inputs that there will be, by name: of use where the model leaves open how many axes an input has, how long a sequence is, or
    whether an optional value is there.
    """
    if params is not None and not isinstance(params, Mapping):
        params = os.fspath(params)
    elif params is not None:
        params = dict(params)
    return _resat.load(os.fspath(path), *_sizes(dims, shapes, ranks), params)


def parse(
    text: "str | bytes",
    name: str = "<string>",
    *,
    dims: "Mapping[str, int] | None" = None,
    shapes: "Mapping[str, Iterable[int | None]] | None" = None,
    ranks: "Mapping[str, int] | None" = None,
) -> Module:
    """Reads a program from memory: Relay text or JSON as `str`, a model of any kind as `bytes`. `name` stands for it in messages; for the
    other arguments, which are for models as `bytes`, see `load`."""
    if isinstance(text, str):
        if dims or shapes or ranks:
            raise TypeError("Relay says its sizes itself: dims, shapes and ranks are for models of other kinds, as bytes")
        return Module.parse(text, name)
    return _resat.load_bytes(bytes(text), name, *_sizes(dims, shapes, ranks))


def _sizes(dims, shapes, ranks):
    """What is said of sizes, as the Rust part takes it."""
    return (
        [(k, int(v)) for k, v in (dims or {}).items()],
        [(k, list(v)) for k, v in (shapes or {}).items()],
        None if ranks is None else [(k, int(v)) for k, v in ranks.items()],
    )


def load_params(path: "str | os.PathLike[str]") -> dict[str, Any]:
    """The arrays of a parameter file (Relay's own format, or npz), by name."""
    return _resat.load_params(os.fspath(path))


def save_params(arrays: Mapping[str, Any], path: "str | os.PathLike[str]") -> None:
    """Writes arrays by name: an npz archive where the path ends so, else Relay's own format."""
    _write(os.fspath(path), _resat.params_bytes(dict(arrays), os.fspath(path).endswith(".npz")))


def _write(path: str, data: bytes) -> None:
    """Writes a file whole: what was there before stays until all is written."""
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(new, "wb") as f:
            f.write(data)
        os.replace(new, path)
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)
        raise


def _save(self: Module, path: "str | os.PathLike[str]") -> None:
    """Writes the program with its constants: Relay JSON where the path ends in `.json`, else Relay text."""
    text = self.json() if os.fspath(path).endswith(".json") else self.text()
    _write(os.fspath(path), text.encode())


def _getitem(self: Module, name: str) -> Function:
    """The function of that name."""
    return Function(self, name)


def _replace(self: Module, functions: Mapping[str, Function]) -> Module:
    """The same module with other functions, by name: of this module with other attributes, or of other modules."""
    return self.replaced([(name, f.module, f.name, f._attrs) for name, f in functions.items()])


def _with_attr(self: Module, function: str, name: str, value: Any) -> Module:
    """The same module with an attribute of one of its functions changed."""
    return self.replace({function: self[function].with_attr(name, value)})


def _html(self: Module) -> str:
    from ._html import code, table

    counts = table(["operator", "calls"], self.ops().items())
    return f"<details open><summary>{len(self)} expressions</summary>{code(self.brief())}</details><details><summary>operators</summary>{counts}</details>"


def _of_parts(text: str, constants: list[tuple[str, list[int], Any]]) -> Module:
    return _resat.from_parts(text, [_resat.constant(*c) for c in constants])


def _reduce(self: Module, protocol: int):
    """Pickles a module as its skeleton and its constants, which go out of band where the pickler can."""
    text, constants = self.parts()
    parts = [c.parts() for c in constants]
    if protocol >= 5:
        parts = [(dtype, shape, pickle.PickleBuffer(data)) for dtype, shape, data in parts]
    return (_of_parts, (text, parts))


for _name, _method in {
    "save": _save,
    "__getitem__": _getitem,
    "replace": _replace,
    "with_attr": _with_attr,
    "_repr_html_": _html,
    "__reduce_ex__": _reduce,
}.items():
    setattr(Module, _name, _method)
