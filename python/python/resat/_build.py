"""Builds, explanations, studies."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Sequence, Union

from . import _resat
from ._config import BuildConfig, cache_folder, current
from ._passes import Pass, Pipeline, as_pass, default_pipeline
from ._passes import _warn_and_trace
from ._resat import Executable, Library, Module, Node
from ._trace import active

__all__ = ["Explanation", "WhyNot", "alternatives", "build", "emit_c", "explain", "load_library", "machine", "prices", "run", "sensitivity", "why_not"]


def _bound(module: "Module | str | os.PathLike[str]", params: "Mapping[str, Any] | None") -> Module:
    if not isinstance(module, Module):
        from ._module import load

        module = load(module)
    return module.bind(dict(params)) if params else module


def _item(pipeline: Any, config: BuildConfig) -> Any:
    """What the Rust part takes: passes as they are given, or the default pipeline."""
    if pipeline is not None:
        return as_pass(pipeline).item()
    if not config.edits:
        return "default"
    if config.settings().is_placed_by_cost:
        from ._errors import Refused

        raise Refused("edits of the default pipeline and placement by cost don't go together: give a pipeline")
    return default_pipeline(config).item()


Extents = Mapping[str, Union[int, Sequence[Union[int, None]]]]
"""Extents by a dimension's name, or by an input's with one for each axis."""


Bounds = Mapping[str, Union[int, str, Sequence[Union[int, str, None]]]]
"""The same with the greatest extents, or with texts of what they may be: "512", multiples as "512/32", from a least as "128..512/32"."""


def _extents(said: "Extents | None") -> "list[tuple[str, list[int | None]]]":
    return [(name, [of] if isinstance(of, int) else list(of)) for name, of in (said or {}).items()]


def _bounds(said: "Bounds | None") -> "list[tuple[str, list[str | None]]]":
    def axes(of: Any) -> "list[str | None]":
        each = [of] if isinstance(of, (int, str)) else of
        return [None if n is None else str(n) for n in each]

    return [(name, axes(of)) for name, of in (said or {}).items()]


def build(
    module: "Module | str | os.PathLike[str]",
    *,
    params: "Mapping[str, Any] | None" = None,
    pipeline: Any = None,
    config: "BuildConfig | None" = None,
    threads: "int | None" = None,
    name: str = "main",
    cache: "bool | str | os.PathLike[str]" = False,
    tune: "float | None" = None,
    state: "Mapping[str, str] | None" = None,
    reorder_state: bool = False,
    hints: "Extents | None" = None,
    bounds: "Bounds | None" = None,
    specialize: str = "off",
    fallback: bool = False,
    check_regions: bool = False,
    progress: "Callable[[str], None] | None" = None,
) -> Executable:
    """Makes native code of a module: passes, then kernels.

    - `params`: parameters of `@main` that become constants, by name.
    - `pipeline`: a `Pipeline`, a pass, its text, or a list of these; the default pipeline, as the configuration makes it, where none is given.
    - `threads`: that run the program; all cores where not given. `name` is part of the symbols of an exported library.
    - `cache`: keeps kernels and programs on disk, in the user's folder or the one given. What passes of one's own decided is not kept.
    - `tune`: seconds to measure how the program's convolutions, products and other reductions run fastest on this machine. It is remembered
      in the user's folder: later builds, with or without it, use what is known.
    - `state`: inputs that the next run takes from an output of this one, as `{"cache": "cache_out"}`; outputs without names are called by their
      numbers, as "0". `Executable.stateful` makes runs that keep them, and update them where they lie.
    - `reorder_state`: state may lie with its axes in another order than the model has them: a decoder's cache with the places before the heads, so that
      it grows without being copied. What runs give of it, and take, has the model's order, which is copied then. Such a program is for
      `Executable.stateful` alone.
    - `hints`: what unknown extents are likely to be, by a dimension's name or an input's with an extent for each axis, None where nothing is
      said: `{"batch": 1, "x": (None, 3, 224, 224)}`. Prices and schedules reckon with them; other sizes are served as well.
    - `bounds`: how great unknown extents may be, said alike and of all of them, with a least and a step where these are given:
      `{"height": "224..512/32"}`; `{"?": 64}` bounds all that are not named. Memory is planned for that; other inputs are refused.
      `Executable.save` of a program of unknown extents needs them, and "?" where tensors grow while it runs.
    - `specialize`: which sizes of a program whose extents are unknown get code of their own, made in the background: "off", "hot" (those at
      which it has run for as long as it took to make the code for all sizes) or "all". Results may then differ in rounding from run to run.
    - `fallback`: regions that their external compiler fails on are compiled as everything else is, with a warning. `check_regions`: each
      region's code is run once and compared with the interpreter before it is used.
    - `progress`: is called with what is being done.

    Ctrl-C ends it.
    """
    config = current(config)
    module = _bound(module, params)
    folder = cache_folder() if cache is True else (os.fspath(cache) if cache else None)
    trace = active()
    made, outcome = _resat.build(
        module,
        _item(pipeline, config),
        config.settings(),
        trace=trace is not None,
        threads=threads,
        name=name,
        fallback=fallback,
        check_regions=check_regions,
        cache_folder=folder,
        tune=tune,
        specialize=specialize,
        state=list((state or {}).items()),
        reorder_state=reorder_state,
        hints=_extents(hints),
        bounds=_bounds(bounds),
        on_phase=progress,
    )
    _warn_and_trace(outcome, trace)
    return made


def emit_c(
    module: "Module | str | os.PathLike[str]",
    path: "str | os.PathLike[str]",
    *,
    params: "Mapping[str, Any] | None" = None,
    pipeline: Any = None,
    config: "BuildConfig | None" = None,
    name: str = "main",
    state: "Mapping[str, str] | None" = None,
    hints: "Extents | None" = None,
    bounds: "Bounds | None" = None,
) -> list[str]:
    """Writes a module as C99 that needs a C compiler and libm: a source at `path`, a header beside it, and weights, where they are large, as a
    file of their own. Gives the paths of these files. For the arguments see `build`."""
    config = current(config)
    module = _bound(module, params)
    written = _resat.emit_c(
        module,
        _item(pipeline, config),
        config.settings(),
        name=name,
        path=os.fspath(path),
        state=list((state or {}).items()),
        hints=_extents(hints),
        bounds=_bounds(bounds),
    )
    return [os.fspath(p) for p in written]


def prices(nodes: Iterable[Node], config: "BuildConfig | None" = None) -> Any:
    """What nodes cost by the configuration's cost model, a float64 array: seconds by the shipped ones. With `BuildConfig(cost="measured")` each
    node's kernel is compiled and timed; times are remembered in the user's folder.

    An elementwise operator costs what it adds to the kernel that it mostly runs inside of."""
    return _resat.prices(list(nodes), current(config).settings())


def machine(measure: bool = False) -> dict[str, Any]:
    """What is known of this machine: family, vendor, features, threads, threads_per_core, facts (records of name, unit, value, from,
    measured). `measure` measures it, which takes seconds; what was found is kept, and builds for `-mcpu=native` use it."""
    return json.loads(_resat.machine(measure))


def _html(self: Executable) -> str:
    from ._html import table

    memory = self.memory
    ports = [("input", n, t) for n, t in self.inputs] + [("output", n, t) for n, t in self.outputs]
    facts = [("kernels", len(self.kernels)), ("calls", self.calls), ("built in, s", self.build_seconds)]
    if memory is not None:
        facts += [("intermediate results, bytes", memory[0]), ("constants, bytes", memory[1])]
    return table(["", "name", "type"], ports) + table(["", ""], facts)


setattr(Executable, "_repr_html_", _html)


def run(module: "Module | str | os.PathLike[str]", inputs: Any, **options: Any) -> list[Any]:
    """Builds a module and runs it once; see `build` for the options."""
    return build(module, **options).run(inputs)


def load_library(path: "str | os.PathLike[str]", threads: "int | None" = None) -> Library:
    """A library that `Executable.save` or `resat build` wrote; all cores run it where `threads` is not given. One that keeps state is run from C, Rust
    or by `resat run`: its `run` refuses here."""
    return Library(os.path.abspath(os.fspath(path)), threads)


@dataclass
class Explanation:
    """What became of the calls of a program, rule by rule."""

    pieces: list[dict[str, Any]]
    """A dict for each call: was, place, became, now, kernel, steps (dicts of rule, forward, path, before, after).

    It became "itself"; "inside" of a kernel; "moved", which is the same in another layout; "absorbed" by what became of another call (`now`);
    "unneeded"; or "other"."""

    def __str__(self) -> str:
        lines = []
        for p in self.pieces:
            if p["became"] in ("itself", "unneeded"):
                continue
            lines.append(f"{p['place'] or 'computed by a pass'}: {p['was']}")
            if p["became"] == "inside":
                lines.append(f"  is computed inside of {p['kernel']}")
                continue
            if p["became"] == "absorbed":
                lines.append(f"  is part of what became of {p['now']}")
                continue
            lines.append(f"  {'is computed in another layout:' if p['became'] == 'moved' else 'became'} {p['now']}")
            for i, step in enumerate(p["steps"], 1):
                way = "" if step["forward"] else ", backwards"
                lines.append(f"  {i:3}. {step['rule']}{way}: {step['before']} => {step['after']}")
        counts = {b: sum(p["became"] == b for p in self.pieces) for b in ("other", "moved", "absorbed", "inside", "unneeded", "itself")}
        lines.append(
            f"{len(self.pieces)} calls: {counts['other'] + counts['moved'] + counts['absorbed']} changed, {counts['inside']} run inside of kernels, "
            f"{counts['unneeded']} are not needed any more, {counts['itself']} stayed"
        )
        return "\n".join(lines)

    def to_records(self) -> list[dict[str, Any]]:
        """A record for each step of each call that changed: place, was, now, step, rule, before, after."""
        return [
            {"place": p["place"], "was": p["was"], "now": p["now"], "step": i, **{k: s[k] for k in ("rule", "before", "after")}}
            for p in self.pieces
            for i, s in enumerate(p["steps"])
        ]

    def _repr_html_(self) -> str:
        from ._html import code

        return code(str(self), 400)


def _saturating(pipeline: Any) -> Any:
    # What comes after the saturation, such as fusion, has nothing to do with the question.
    return as_pass(pipeline if pipeline is not None else "Inline,DynamicToStatic,Saturate").item()


def explain(module: Module, *, pipeline: Any = None, line: "int | None" = None, config: "BuildConfig | None" = None) -> Explanation:
    """Why a program became what it is: which rules lead from each call to what was chosen. `line` asks about one line of its text only.

    Saturation keeps proofs for this, which makes it several times slower.
    """
    item = as_pass(pipeline).item() if pipeline is not None else _item(None, current(config))
    return Explanation(_resat.pieces(module, item, current(config).settings(explanations=True), line))


def alternatives(module: Module, most: int = 5, *, pipeline: Any = None, config: "BuildConfig | None" = None) -> list[dict[str, Any]]:
    """For so many of the program's dearest parts, what the next best program without each would cost: records of chosen, place, cost, total,
    instead, extra."""
    item = as_pass(pipeline).item() if pipeline is not None else _item(None, current(config))
    return _resat.alternatives(module, item, current(config).settings(), most)


@dataclass
class WhyNot:
    """Why a program did not become another one."""

    answer: str
    """"costs more" (found, but costs more than what is chosen, or no less), "not equal" (all parts are found, but no rule says that they are
    equal), "missing" (no chain of rules leads there), "nothing" (no pass saturates)."""
    wanted: "float | None"
    """What the wanted form costs."""
    chosen: "float | None"
    """What is chosen costs."""
    missing: list[tuple["str | None", str]]
    """The innermost parts that are not found, with their places."""

    def __str__(self) -> str:
        if self.answer == "costs more":
            assert self.wanted is not None and self.chosen is not None
            if self.wanted <= self.chosen:
                return f"the wanted form is found, and costs no more than what is chosen: {self.wanted:.6e} and {self.chosen:.6e}"
            return f"the wanted form is found, but costs {self.wanted:.6e}, while what is chosen costs {self.chosen:.6e}"
        if self.answer == "not equal":
            return "all parts of the wanted form are found, but no rule says that it equals the program"
        if self.answer == "nothing":
            return "the passes saturate nothing"
        parts = "\n".join(f"  {place + ': ' if place else ''}{what}" for place, what in self.missing)
        return f"no chain of rules leads to the wanted form; its innermost parts that are not found:\n{parts}"


def why_not(module: Module, wanted: Module, *, pipeline: Any = None, config: "BuildConfig | None" = None) -> WhyNot:
    """Why a program did not become `wanted`, a program of the same parameters."""
    return WhyNot(*_resat.why(module, wanted, _saturating(pipeline), current(config).settings()))


class Study:
    """What quantizing each layer does to the result and to the cost."""

    def __init__(self, data: dict[str, Any], text: str):
        self.data, self.text = data, text

    @property
    def layers(self) -> list[dict[str, Any]]:
        """A record for each layer."""
        return self.data["layers"]

    @property
    def points(self) -> list[dict[str, Any]]:
        """The programs between all floats and all integers that are worth a thought."""
        return self.data["curve"]

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from ._html import table

        parts = []
        for caption, rows in (("layers", self.layers), ("programs", self.points)):
            if rows:
                parts.append(table(list(rows[0]), [list(r.values()) for r in rows], caption))
        return "".join(parts)


def sensitivity(module: Module, samples: Mapping[str, Any], *, config: "BuildConfig | None" = None, **quantize: Any) -> Study:
    """What quantizing each layer costs in errors and gains in time, measured on samples: an array for each input, with an axis of samples in
    front. Further arguments are those of the pass `Quantize`."""
    from ._passes import _value

    text = "Quantize" + (f"({', '.join(f'{k}={_value(v)}' for k, v in quantize.items())})" if quantize else "")
    data, shown = _resat.study(module, text, dict(samples), current(config).settings())
    return Study(json.loads(data), shown)
