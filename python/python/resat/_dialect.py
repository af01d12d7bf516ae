"""Operators and dialects of one's own."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Iterable, Mapping, Sequence

from . import _resat
from ._errors import Refused
from ._rules import texts

__all__ = ["Dialect", "describe_operator", "dialects", "operators"]


class Dialect:
    """Operators under a prefix of their own, and rules that say what they are in terms of others.

    >>> import resat as rs
    >>> d = rs.Dialect("doc_scalar")
    >>> @d.op(attrs={"by": float}, samples=[((rs.TensorType((2, 3)),), {"by": 2.0})])
    ... def scaled(data, *, by):
    ...     "data * by."
    ...     return data * data.dtype.type(by)
    >>> _ = scaled.infer(lambda attrs, args: args[0])
    >>> d.rules('''(ruleset doc_scalar :numerics real)
    ... ;; scaled(x) == x * by.
    ... (rule scaled (doc_scalar.scaled {by ?k} ?x) => (multiply ?x (const ?k like ?x)))''')
    >>> d.register()
    >>> mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(4), float32]) { doc_scalar.scaled(%x, by=3f) }')
    >>> rs.Legalize()(mod).ops()
    {'multiply': 1}
    """

    def __init__(self, name: str):
        self.name = name
        self._ops: list["_Op"] = []
        self._rules: list[tuple[str, str]] = []

    def op(
        self,
        name: "str | None" = None,
        *,
        attrs: "Mapping[str, Any] | None" = None,
        samples: Iterable[tuple[Sequence[Any], Mapping[str, Any]]] = (),
        flops: "Callable[..., float] | None" = None,
    ) -> Callable[[Callable[..., Any]], "_Op"]:
        """Makes an operator of a function, its reference evaluation: of arrays (tuples of arrays for tuples), with the attributes by name, to an
        array or a tuple of such. Its docstring is the operator's.

        `attrs`: for each attribute its class (it must be given) or its default. `samples`: small legal calls (argument types and attributes).
        `flops(attrs, argument types, result type)`: arithmetic operations, for cost models. The type relation is given by `infer` of what this
        returns; where it is not, the result's type is that of the evaluation on zeros.
        """

        def made(function: Callable[..., Any]) -> "_Op":
            op = _Op(f"{self.name}.{name or function.__name__}", function, dict(attrs or {}), list(samples), flops)
            self._ops.append(op)
            return op

        return made

    def rules(self, text: Any, file: "str | None" = None) -> None:
        """Adds rules that legalize the operators: text, a `Ruleset`, or a path."""
        self._rules += [(file or (f"{self.name}.rules" if f == "<rules>" else f), t) for f, t in texts(text)]

    def register(self) -> None:
        """Adds the dialect for as long as the process lives: all of it, or nothing where something is refused."""
        _resat.dialects.register(self.name, [op._described() for op in self._ops], self._rules)


class _Op:
    """An operator before it is registered."""

    def __init__(self, name, function, attrs, samples, flops):
        self.name, self.function, self.attrs, self.samples, self.flops = name, function, attrs, samples, flops
        self._infer: "Callable[..., Any] | None" = None

    def infer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The type relation: of a dict of attributes and a tuple of types to the result's type. What it raises is the type error."""
        self._infer = function
        return function

    def _evaluate(self, attrs: Mapping[str, Any], args: Sequence[Any]) -> Any:
        return self.function(*args, **attrs)

    def _by_zeros(self, attrs: Mapping[str, Any], args: Sequence[Any]) -> Any:
        import numpy as np

        from ._arrays import _dtype

        def zeros(ty):
            if isinstance(ty, tuple):
                return tuple(zeros(t) for t in ty)
            if None in ty.shape:
                raise TypeError(f"{self.name} has no type relation for unknown extents: give one by `infer`")
            return np.zeros(ty.shape, _dtype(ty.dtype, np))

        def of(value):
            if isinstance(value, tuple):
                return tuple(of(v) for v in value)
            value = np.asarray(value)
            return _resat.TensorType(list(value.shape), value.dtype.name)

        return of(self._evaluate(attrs, tuple(zeros(t) for t in args)))

    def _described(self) -> dict[str, Any]:
        parameters = inspect.signature(self.function).parameters.values()
        inputs = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        if sorted(named) != sorted(self.attrs):
            raise Refused(f"operator `{self.name}`: the function takes the attributes {named}, but {sorted(self.attrs)} are declared")
        return {
            "name": self.name,
            "doc": inspect.getdoc(self.function) or self.name,
            "inputs": inputs,
            "attrs": self.attrs,
            "infer": self._infer or self._by_zeros,
            "eval": self._evaluate,
            "flops": self.flops,
            "samples": [(tuple(args), dict(attrs)) for args, attrs in self.samples],
        }


def dialects() -> dict[str, list[str]]:
    """The dialects that there are: their operators by their names."""
    return dict(_resat.dialects.dialects())


def operators() -> list[str]:
    """The names of all operators."""
    return _resat.dialects.operators()


def describe_operator(name: str) -> "dict[str, Any] | None":
    """What an operator computes (`doc`), the names of its inputs, and its attributes with the values that they take."""
    found = _resat.dialects.describe(name)
    return None if found is None else dict(zip(("doc", "inputs", "attrs"), (found[0], found[1], dict(found[2]))))
