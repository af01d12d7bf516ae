"""Passes: functions from modules to modules. Classes of all passes that have names are made from the registry."""

from __future__ import annotations

import difflib
import functools
import sys
import warnings
from typing import Any, Callable, Iterable, Iterator, Mapping

from . import _resat
from ._config import BuildConfig, current
from ._errors import Refused
from ._resat import Module
from ._trace import active

__all__ = ["Pass", "Pipeline", "ResatWarning", "Sequential", "default_pipeline", "module_pass", "optional", "partition_for", "passes"]


class ResatWarning(UserWarning):
    """What a user should know though the work goes on."""


def _value(value: Any) -> str:
    """An argument as the text of passes has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return _quoted(",".join(str(v) for v in value))
    return _quoted(str(value))


def _quoted(text: str) -> str:
    if '"' not in text:
        return f'"{text}"'
    if "'" not in text:
        return f"'{text}'"
    raise Refused(f"an argument can't hold both kinds of quotes: {text}")


class Pass:
    """A transformation of modules. Called with a module, it gives another one; `config` is a `BuildConfig`."""

    def __init__(self, text: str, samples: "Mapping[str, Any] | None" = None):
        self.text = text
        self.samples = None if samples is None else dict(samples)
        # Arguments that can't be are refused here, but for rulesets: those of one's own are known where the pass is used.
        if self.samples is None and self.name != "Saturate":
            # Alternatives, `to="NHWC|NCHW8c"`, are for explorations, each of whose orders has one of them.
            check = _resat.check_members if "|" in text else _resat.check_passes
            check(text, current().settings())

    @property
    def name(self) -> str:
        """Its name, without arguments."""
        return self.text.partition("(")[0].strip()

    def item(self) -> Any:
        """What the Rust part takes for it."""
        return self.text if self.samples is None else (self.text, self.samples)

    def __call__(self, module: Module, config: "BuildConfig | None" = None) -> Module:
        config = current(config)
        trace = active()
        made, outcome = _resat.run_pass(module, self.item(), config.settings(), trace is not None)
        _warn_and_trace(outcome, trace)
        return made

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.item() == other.item()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self):
        return (_of_text, (type(self).__name__, self.text, self.samples))

    def __repr__(self) -> str:
        return f"<resat pass {self.text}>"


def _warn_and_trace(outcome: dict, trace) -> None:
    for warning in outcome["warnings"]:
        warnings.warn(warning, ResatWarning, stacklevel=4)
    if trace is not None:
        trace._take(outcome)


def _of_text(name: str, text: str, samples) -> Pass:
    class_ = _classes.get(name, Pass)
    new = class_.__new__(class_)
    Pass.__init__(new, text, samples)
    return new


class _Named(Pass):
    """A pass of the registry."""

    _name = ""

    def __init__(self, *args: Any, **named: Any):
        samples = None
        parts = [_value(a) for a in args]
        for key, value in named.items():
            if value is None:
                continue
            if isinstance(value, Mapping):
                if key != "calibration":
                    raise TypeError(f"`{key}` can't be a dict")
                samples = value
                continue
            parts.append(f"{key}={_value(value)}")
        super().__init__(self._name + (f"({', '.join(parts)})" if parts else ""), samples)


class _ConvertLayout(_Named):
    def __init__(self, layouts: "str | Mapping[str, Any] | None" = None, *, to: "str | None" = None, skip: Any = None):
        parts = []
        if isinstance(layouts, Mapping):
            parts += [f"{op}={_quoted(w if isinstance(w, str) else ':'.join(w))}" for op, w in layouts.items()]
        elif layouts is not None:
            parts.append(f"from={_quoted(layouts)}")
        if to is not None:
            parts.append(f"to={_quoted(to)}")
        if skip is not None:
            parts.append(f"skip={_value(skip)}")
        Pass.__init__(self, f"ConvertLayout({', '.join(parts)})" if parts else "ConvertLayout")


def _make_classes() -> dict[str, type]:
    made = {}
    for name, doc in _resat.registry():
        if name == "partition_for":
            continue
        base = _ConvertLayout if name == "ConvertLayout" else _Named
        made[name] = type(name, (base,), {"_name": name, "__doc__": doc[0].upper() + doc[1:] + ".", "__module__": "resat"})
    return made


_classes: dict[str, type] = _make_classes()


def passes() -> dict[str, str]:
    """The names of all passes, with a sentence each."""
    return dict(_resat.registry())


class _FunctionPass(Pass):
    """A pass that is a Python function."""

    def __init__(self, function: Callable[[Module], Module], name: str, version: "str | None" = None):
        self.function = function
        self.text = name
        self.samples = None
        self.version = version
        functools.update_wrapper(self, function, updated=())

    def fingerprint(self) -> "str | None":
        """A text of all that decides what it gives, where its maker gave one."""
        return self.version

    @property
    def name(self) -> str:
        return self.text

    def item(self) -> Any:
        return (self.text, self.function)

    def __reduce__(self):
        # A decorated function of a module is found by its name there, as functions are.
        name = getattr(self, "__qualname__", "")
        if getattr(sys.modules.get(self.__module__), name, None) is self:
            return name
        return (_FunctionPass, (self.function, self.text, self.version))


class _Optional(Pass):
    """A pass that some orders of an exploration have, and others not."""

    def __init__(self, of: Pass):
        self.of, self.text, self.samples = of, f"{of.text}?", None

    def __call__(self, module: Module, config: "BuildConfig | None" = None) -> Module:
        raise Refused(f"`{self.text}` is for explorations: elsewhere a pass runs or does not")

    def item(self) -> Any:
        raise Refused(f"`{self.text}` is for explorations: elsewhere a pass runs or does not")

    def __reduce__(self):
        return (_Optional, (self.of,))


def optional(given: Any) -> Pass:
    """For `explore`: a pass that some orders have, and others not. As text, it is a pass with a question mark behind it.

    >>> import resat as rs
    >>> rs.optional(rs.FoldConstant())
    <resat pass FoldConstant?>
    """
    return _Optional(as_pass(given))


def module_pass(name: "str | Callable[[Module], Module] | None" = None, *, version: "str | None" = None) -> Any:
    """Makes a pass of a function from modules to modules: `@module_pass`, or `@module_pass("name")`.

    `version` is a text of all that decides what it gives: explorations that keep a state need one, and another one makes another exploration.

    >>> import resat as rs
    >>> @rs.module_pass("nothing")
    ... def nothing(mod: rs.Module) -> rs.Module:
    ...     return mod
    >>> nothing
    <resat pass nothing>
    """
    if callable(name):
        return _FunctionPass(name, name.__name__)
    return lambda function: _FunctionPass(function, name or function.__name__, version)


def as_pass(given: Any) -> Pass:
    """A pass from whatever stands for one: a pass, its text, a function of a module."""
    if isinstance(given, Pass):
        return given
    if isinstance(given, str):
        return Pass(given)
    if isinstance(given, (list, tuple)):
        return Sequential(given)
    if callable(given):
        return module_pass(given)
    raise TypeError(f"a pass, its text or a function of a module is wanted, not {type(given).__name__}")


class Sequential(Pass):
    """Passes one after another. Members are passes, their texts, or functions from modules to modules."""

    def __init__(self, passes: Iterable[Any], name: "str | None" = None):
        self.passes = [as_pass(p) for p in passes]
        self.text = name or ",".join(p.name for p in self.passes)
        self.samples = None

    @property
    def name(self) -> str:
        return self.text

    def item(self) -> Any:
        return [(f"{i} {p.name}", p.item()) for i, p in enumerate(self.passes)]

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)

    def __len__(self) -> int:
        return len(self.passes)

    def __reduce__(self):
        return (Sequential, (self.passes, self.text))


class Pipeline(Pass):
    """Passes under names of their own, which is what they are found and changed by.

    >>> import resat as rs
    >>> p = rs.default_pipeline()
    >>> p.run_after("fuse", "DeadCodeElimination", name="last")
    >>> p.names[-1]
    'last'
    """

    def __init__(self, stages: "Iterable[tuple[str, Any]]" = ()):
        self.stages: list[tuple[str, Pass]] = []
        self.samples = None
        for name, made in stages:
            self.push(name, made)

    @property
    def text(self) -> str:  # type: ignore[override]
        """The stages' names, with commas."""
        return ",".join(self.names)

    @property
    def name(self) -> str:
        return self.text

    @property
    def names(self) -> list[str]:
        """The stages' names, in order."""
        return [name for name, _ in self.stages]

    def _at(self, name: str) -> int:
        if name in self.names:
            return self.names.index(name)
        near = difflib.get_close_matches(name, self.names, 1)
        hint = f" (did you mean `{near[0]}`?)" if near else ""
        raise Refused(f"the pipeline has no stage `{name}`{hint}; its stages are {', '.join(self.names)}")

    def _insert(self, at: int, given: Any, name: "str | None") -> None:
        made = as_pass(given)
        name = name or made.name
        if name in self.names:
            raise Refused(f"the pipeline already has a stage `{name}`: give another name by `name=`")
        self.stages.insert(at, (name, made))

    def push(self, name: str, given: Any) -> None:
        """Adds a stage at the end."""
        self._insert(len(self.stages), given, name)

    def run_before(self, other: str, given: Any, name: "str | None" = None) -> None:
        """Adds a stage right before another; its name is the pass' own where none is given."""
        self._insert(self._at(other), given, name)

    def run_after(self, other: str, given: Any, name: "str | None" = None) -> None:
        """Adds a stage right after another."""
        self._insert(self._at(other) + 1, given, name)

    def replace(self, name: str, given: Any) -> None:
        """Puts another pass under a stage's name."""
        self.stages[self._at(name)] = (name, as_pass(given))

    def rename(self, name: str, new: str) -> None:
        """Gives a stage another name."""
        at = self._at(name)
        if new != name and new in self.names:
            raise Refused(f"the pipeline already has a stage `{new}`")
        self.stages[at] = (new, self.stages[at][1])

    def remove(self, name: str) -> None:
        """Takes a stage out."""
        del self.stages[self._at(name)]

    def copy(self) -> "Pipeline":
        """The same stages in another pipeline."""
        new = Pipeline()
        new.stages = list(self.stages)
        return new

    def __getitem__(self, name: str) -> Pass:
        return self.stages[self._at(name)][1]

    def __iter__(self) -> Iterator[tuple[str, Pass]]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def item(self) -> Any:
        return [(name, p.item()) for name, p in self.stages]

    def __reduce__(self):
        return (Pipeline, (self.stages,))

    def __repr__(self) -> str:
        return f"<resat.Pipeline {', '.join(self.names)}>"

    def _repr_html_(self) -> str:
        from ._html import table

        return table(["stage", "pass"], [(name, p.text) for name, p in self.stages])


class _Stage(Pass):
    """A stage of the default pipeline, whose arguments the registry itself has made."""

    def __init__(self, text: str):
        self.text, self.samples = text, None


def default_pipeline(config: "BuildConfig | None" = None) -> Pipeline:
    """What `build` does where nothing else is asked for, as a configuration makes it: levels, switches and edits applied."""
    config = current(config)
    pipeline = Pipeline()
    pipeline.stages = [(name, _Stage(text)) for name, text in config.settings().stages()]
    for kind, stage, given in config.edits:
        if kind == "remove":
            pipeline.remove(stage)
        elif kind == "replace":
            pipeline.replace(stage, given)
        else:
            name, given = given if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) else (None, given)
            getattr(pipeline, kind)(stage, given, name)
    return pipeline


def partition_for(module: Module, *compilers: str, config: "BuildConfig | None" = None) -> Module:
    """All that these external compilers take becomes functions for them, the preferred ones first; TVM's `partition_for_…`."""
    return Pass(f"partition_for({', '.join(_quoted(c) for c in compilers)})")(module, config)
