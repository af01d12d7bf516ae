"""What can go wrong, as exceptions."""

from __future__ import annotations

from typing import NamedTuple


class Diagnostic(NamedTuple):
    """One complaint about the input."""

    message: str
    """What was found and what was wanted."""
    file: str | None
    """The text's name, where the complaint has a place."""
    line: int | None
    """From 1."""
    column: int | None
    """From 1."""
    label: str | None
    """A few words at the place."""
    help: str | None
    """What to do about it."""


class Refused(ValueError):
    """The input was refused, for one reason or several; `str()` shows each with its source line."""

    diagnostics: list[Diagnostic]

    def __init__(self, text: str, diagnostics: list[Diagnostic] | None = None):
        super().__init__(text)
        self.diagnostics = diagnostics if diagnostics is not None else [Diagnostic(text, None, None, None, None, None)]

    @classmethod
    def _make(cls, text, diagnostics):
        return cls(text, [Diagnostic(m, *(place or (None, None, None)), label, help) for m, place, label, help in diagnostics])

    def __reduce__(self):
        return (type(self), (self.args[0], self.diagnostics))


class CompileError(RuntimeError):
    """Code could not be made, linked or written, though the input is right."""


class InternalError(RuntimeError):
    """A bug in resat: what should never be was found. The interpreter goes on."""
