"""External compilers in Python."""

from __future__ import annotations

from typing import Any

from . import _resat

__all__ = ["ExternalCompiler", "compilers", "register_compiler"]


class ExternalCompiler:
    """A compiler that takes regions of programs. Derive from it, or give any object with these members, to `register_compiler`."""

    name: str = ""
    """The `Compiler` attribute of its functions: a C identifier, which no other compiler has."""
    patterns: "list[tuple[str, str]]" = []
    """Several operators that it takes as one: names (`mine.dense_relu`) and left sides in the language of rules, the preferred ones first."""
    rules: "str | None" = None
    """Rules of its own, as text: forms of programs that it has more for."""
    keeps_constants: bool = False
    """Whether regions hold the constants that they use. Otherwise constants of more than one element are given to each call."""

    def supports(self, op: str, attrs: dict[str, Any], args: tuple, result: Any) -> bool:
        """Whether it takes the call of an operator by itself; types are `TensorType`s and tuples of them."""
        raise NotImplementedError

    def compile(self, region: "_resat.Region") -> Any:
        """Compiles a region. Gives one of

        - `str`: C99 with `void SYMBOL(const void *ctx, void *const *args, unsigned char *workspace)`, `args` being pointers to the inputs in order,
          then to the outputs, tuples flattened depth first;
        - `bytes`: an object file with that function;
        - a Python function of the inputs as arrays, to an array or a tuple of such. It lives in this process, and can't be exported.

        What it raises is why the region can't be compiled.
        """
        raise NotImplementedError

    def cost(self, region: "_resat.Region") -> "float | None":
        """Seconds that a region takes; None where nothing is known, which leaves it to the cost model."""
        return None


def register_compiler(compiler: Any) -> None:
    """Adds a compiler for as long as the process lives: an object with the members of `ExternalCompiler`."""
    get = lambda name, default: getattr(compiler, name, default)
    _resat.register_compiler(
        {
            "name": compiler.name,
            "supports": compiler.supports,
            "compile": compiler.compile,
            "cost": get("cost", None),
            "patterns": list(get("patterns", [])),
            "rules": get("rules", None),
            "keeps_constants": bool(get("keeps_constants", False)),
        }
    )


def compilers() -> list[str]:
    """The names of all compilers."""
    return _resat.compilers()
