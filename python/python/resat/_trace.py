"""What passes did: kept while they run."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass, field
from typing import Any

from . import _resat
from ._resat import Module

__all__ = ["PassRecord", "Trace"]

_traces: contextvars.ContextVar[tuple["Trace", ...]] = contextvars.ContextVar("resat_traces", default=())


@dataclass
class PassRecord:
    """What one pass did."""

    number: int
    """Its place among the passes, from 0."""
    name: str
    """Its name with its arguments."""
    seconds: float
    """How long it ran."""
    before: Module
    """The module that it was given."""
    module: Module
    """The module that it gave."""
    reports: list[dict[str, Any]] = field(repr=False, default_factory=list)
    """A dict for each of its saturations: stop, iterations, nodes, classes, cost_before, cost_after, saturate_s, extract_s, grade, error, rules, …"""

    depth: int = 0
    """How many passes it ran within: those that a pass runs itself come before it, and deeper."""

    @property
    def changed(self) -> bool:
        """Whether the text differs."""
        return self.before.brief() != self.module.brief()

    def diff(self, context: int = 2) -> str:
        """What it changed, as `diff -u` writes it; empty where nothing."""
        return _resat.diff(self.before, self.module, (f"before {self.name}", f"after {self.name}"), context)

    @property
    def rules(self) -> list[dict[str, Any]]:
        """The rules that fired, as records: pass, ruleset, rule, grade, matches, unions, seconds, cut."""
        fired = [rule for report in self.reports for rule in report["rules"] if rule["unions"] > 0]
        return [{"number": self.number, "pass": self.name, **rule} for rule in fired]

    def _repr_html_(self) -> str:
        from ._html import code

        return code(self.diff() or "nothing changed")


class Trace:
    """Keeps what passes did that ran within it, builds included.

    >>> import resat as rs
    >>> mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(2), float32]) { exp(exp(%x)) }')
    >>> with rs.Trace() as t:
    ...     mod = rs.Sequential([rs.InferType(), rs.FuseOps()])(mod)
    >>> [p.name for p in t.passes]
    ['InferType', 'FuseOps']
    """

    def __init__(self) -> None:
        self.passes: list[PassRecord] = []
        """A record for each pass, in the order in which they ended. Sequences are the passes that they are made of."""
        self.warnings: list[str] = []
        self._token: Any = None

    def __enter__(self) -> "Trace":
        self._token = _traces.set((*_traces.get(), self))
        return self

    def __exit__(self, *_: Any) -> None:
        _traces.reset(self._token)

    def _take(self, outcome: dict[str, Any]) -> None:
        all_ = outcome["passes"]
        for i, one in enumerate(all_):
            # Passes come in the order in which they end: right after a deeper one comes the one around it.
            if i > 0 and all_[i - 1]["depth"] > one["depth"] and _is_sequence(one["name"]):
                continue
            number = len(self.passes)
            self.passes.append(
                PassRecord(number, one["name"], one["seconds"], one["before"], one["after"], one["reports"], one["depth"])
            )
        self.warnings += outcome["warnings"]

    @property
    def rules(self) -> list[dict[str, Any]]:
        """The rules that fired, as records that pandas takes: `pandas.DataFrame(t.rules)`."""
        return [rule for p in self.passes for rule in p.rules]

    def to_records(self) -> list[dict[str, Any]]:
        """A record for each pass: number, name, seconds, expressions before and after, whether it changed anything, costs where it saturates."""
        records = []
        for p in self.passes:
            record = {
                "number": p.number,
                "pass": p.name,
                "seconds": p.seconds,
                "expressions_before": len(p.before),
                "expressions_after": len(p.module),
                "changed": p.changed,
                "unions": sum(r["unions"] for r in p.rules),
                "cost_before": p.reports[0]["cost_before"] if p.reports else None,
                "cost_after": p.reports[-1]["cost_after"] if p.reports else None,
            }
            records.append(record)
        return records

    def __len__(self) -> int:
        return len(self.passes)

    def _repr_html_(self) -> str:
        from ._html import table

        records = self.to_records()
        head = list(records[0]) if records else ["pass"]
        return table(head, [list(r.values()) for r in records])


def _is_sequence(name: str) -> bool:
    """Whether a name is that of passes one after another, which are recorded each."""
    depth = 0
    for c in name:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            return True
    return name[:1].isdigit()


class _Many:
    def __init__(self, traces: tuple[Trace, ...]):
        self.traces = traces

    def _take(self, outcome: dict[str, Any]) -> None:
        for trace in self.traces:
            trace._take(outcome)


def active() -> "_Many | None":
    """The traces that are kept now; none where there are none."""
    traces = _traces.get()
    return _Many(traces) if traces else None
