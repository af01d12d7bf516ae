"""What passes and builds share."""

from __future__ import annotations

import contextvars
import os
from typing import Any, Callable, Iterable, Mapping

from . import _resat

__all__ = ["BuildConfig"]

_active: contextvars.ContextVar["BuildConfig | None"] = contextvars.ContextVar("resat_config", default=None)


class BuildConfig:
    """How much to optimize, for which machine, by which prices; TVM's `PassContext`.

    It is given to calls (`config=`), or is a context: within `with BuildConfig(...):` it is what all calls use.

    Shape of the default pipeline:

    - `opt_level`: 0 (what it takes to run) to 4 (also fast approximations, and more time); 3 where not given.
    - `required_pass`, `disabled_pass`: passes, stages and rulesets that run, or do not run, whatever the level is.
    - `config`: options of passes by TVM's names, as `{"relay.FuseOps.max_depth": 4}`.
    - `run_before`, `run_after`, `replace`: dicts from a stage's name to a pass; `remove`: names of stages.

    What passes use:

    - `target`: as "llvm -mcpu=native -num-cores=2".
    - `cost`: a name ("roofline", "measured", "flops", "nodes", "table:FILE", sums as "0.9*roofline+1e-7*nodes"), a function of a `Node`, or
      an object with `cost(node)` or `costs(nodes)`. Prices are seconds, or any other numbers that are not negative.
    - `extractor`: "dag", "tree", "search" or "ilp", a function of a `Problem`, or an object with `extract(problem)`.
    - `extract_time`: seconds that an extractor may take, per region.
    - `grade`: the loosest rules that may be used: "exact", "real", "approx". `max_error`: approximate rules are used as far as the error
      that they are predicted to bring in adds up to at most this share of the result's largest magnitude.
    - `rules`: rulesets of one's own: `Ruleset`s, or texts. `without`: rules that are not used, as "algebra/some-rule".
    - `compilers`: external compilers that parts may be given to; `placement`: "cost", "greedy" or "all:NAME".
    - `limits`: of saturations: nodes, iterations, time (seconds), bytes, matches, growing_matches, growth, unions, weights_known, blocks.
    """

    def __init__(
        self,
        opt_level: int = 3,
        *,
        target: str = "llvm -mcpu=native",
        cost: Any = "roofline",
        extractor: Any = None,
        extract_time: float = 10.0,
        grade: str = "real",
        max_error: float | None = None,
        rules: Any = (),
        without: Iterable[str] = (),
        compilers: Iterable[str] = (),
        placement: str = "cost",
        limits: Mapping[str, Any] | None = None,
        required_pass: Iterable[str] = (),
        disabled_pass: Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
        run_before: Mapping[str, Any] | None = None,
        run_after: Mapping[str, Any] | None = None,
        replace: Mapping[str, Any] | None = None,
        remove: Iterable[str] = (),
    ):
        from ._rules import texts

        self._given = dict(
            target=target.replace(",", " "),
            cost=cost,
            extractor=extractor,
            extract_time=float(extract_time),
            grade=grade,
            max_error=max_error,
            rules=texts(rules),
            without=list(without),
            compilers=[compilers] if isinstance(compilers, str) else list(compilers),
            placement=placement,
            limits=dict(limits or {}),
            opt_level=opt_level,
            required_pass=list(required_pass),
            disabled_pass=list(disabled_pass),
            pass_config=[(k, str(v)) for k, v in (config or {}).items()],
        )
        self.edits = (
            [("run_before", k, v) for k, v in (run_before or {}).items()]
            + [("run_after", k, v) for k, v in (run_after or {}).items()]
            + [("replace", k, v) for k, v in (replace or {}).items()]
            + [("remove", k, None) for k in ([remove] if isinstance(remove, str) else remove)]
        )
        self._tokens: list[contextvars.Token] = []
        # What can't be is refused here, and not where it is first used.
        self.settings()

    def replaced(self, **changes) -> "BuildConfig":
        """The same with other values of what the constructor takes, except for edits of the pipeline."""
        given = dict(self._given)
        if "rules" in changes:
            from ._rules import texts

            changes["rules"] = texts(changes["rules"])
        unknown = set(changes) - set(given)
        if unknown:
            raise TypeError(f"BuildConfig has no {', '.join(sorted(unknown))}")
        new = BuildConfig.__new__(BuildConfig)
        new._given, new.edits, new._tokens = {**given, **changes}, list(self.edits), []
        new.settings()
        return new

    def settings(self, **changes) -> "_resat.Settings":
        """What the Rust part takes; for one call."""
        return _resat.Settings(**{**self._given, **changes})

    def __getattr__(self, name):
        given = self.__dict__.get("_given", {})
        if name in given:
            return given[name]
        raise AttributeError(name)

    def __enter__(self) -> "BuildConfig":
        self._tokens.append(_active.set(self))
        return self

    def __exit__(self, *_) -> None:
        _active.reset(self._tokens.pop())

    def __getstate__(self):
        return {"_given": self._given, "edits": self.edits}

    def __setstate__(self, state):
        self.__dict__.update(state, _tokens=[])

    def __repr__(self) -> str:
        return f"BuildConfig(opt_level={self.opt_level}, target={self.target!r}, cost={self.cost!r})"


_default: list[BuildConfig] = []


def current(config: "BuildConfig | None" = None) -> BuildConfig:
    """The configuration that counts: the one given, that of the context, or the default one."""
    config = config or _active.get()
    if config is None:
        if not _default:
            _default.append(BuildConfig())
        config = _default[0]
    return config


def cache_folder() -> str | None:
    """The user's folder of what was built, where there is one."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.path.join(os.path.expanduser("~"), ".cache"))
    return os.path.join(base, "resat")
