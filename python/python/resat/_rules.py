"""Rulesets: text that says what equals what."""

from __future__ import annotations

import os
from typing import Any, Iterator, NamedTuple

from . import _resat

__all__ = ["RuleCheck", "Ruleset", "describe_rule_language", "load_rules", "rulesets"]


class RuleCheck(NamedTuple):
    """What testing a rule on random instances has shown."""

    rule: str
    sound: bool
    instances: int
    """Instances whose two sides were computed and compared."""
    drawn: int
    """Instances that were drawn; most are refused by types or guards."""
    failure: str | None
    """What is wrong, where anything is."""

    def __str__(self) -> str:
        if self.failure is not None:
            return f"{self.rule}: WRONG after {self.instances} instances: {self.failure}"
        few = "" if self.sound else " (too few to say that it is sound)"
        return f"{self.rule}: {self.instances} instances of {self.drawn} drawn{few}"


class Ruleset:
    """Rules that serve one purpose, read from text and checked against the operator table.

    >>> import resat as rs
    >>> mine = rs.Ruleset('''(ruleset mine :numerics real)
    ... ;; -(-x) == x.
    ... (rule double-negation (negative (negative ?x)) => ?x)''')
    >>> [rule.name for rule in mine]
    ['mine/double-negation']
    >>> mine.check()[0].sound
    True
    """

    def __init__(self, text: str, name: str = "<rules>"):
        self.text = text
        self.file = name
        self._sets = _resat.rules.define(name, text)

    @property
    def names(self) -> list[str]:
        """The names of the rulesets that the text defines."""
        return [s[0] for s in self._sets]

    @property
    def rules(self) -> list["_resat.Rule"]:
        """All rules, in order."""
        return [rule for s in self._sets for rule in s[3]]

    def __iter__(self) -> Iterator["_resat.Rule"]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def check(self) -> list[RuleCheck]:
        """Tests each rule: both sides are computed on random instances by the interpreter, and compared as the rule's grade demands."""
        return [RuleCheck(rule.name, *_resat.rules.check(rule)) for rule in self.rules]

    def __reduce__(self):
        return (Ruleset, (self.text, self.file))

    def __repr__(self) -> str:
        return f"<resat.Ruleset {', '.join(self.names)}, {len(self)} rules>"

    def _repr_html_(self) -> str:
        from ._html import table

        return table(["rule", "grade", "what it says"], [[r.name, r.grade, r.text] for r in self.rules])


def load_rules(path: "str | os.PathLike[str]") -> Ruleset:
    """A rule file."""
    with open(path, encoding="utf-8") as f:
        return Ruleset(f.read(), os.fspath(path))


def rulesets() -> dict[str, list["_resat.Rule"]]:
    """The shipped rulesets: their rules by their names."""
    return {name: rules for name, _, _, rules in _resat.rules.shipped()}


def describe_rule_language(name: str | None = None) -> str | None:
    """What the guards and attribute functions of the rule language are (Markdown), or the one of that name."""
    return _resat.rules.language(name)


def texts(rules: Any) -> list[tuple[str, str]]:
    """Rulesets as (name, text): from a `Ruleset`, a text, a path that ends in `.rules`, or a list of these."""
    if isinstance(rules, Ruleset):
        return [(rules.file, rules.text)]
    if isinstance(rules, (str, os.PathLike)):
        path = os.fspath(rules)
        if path.endswith(".rules") and "\n" not in path:
            rules = load_rules(path)
            return [(rules.file, rules.text)]
        return [("<rules>", path)]
    if isinstance(rules, tuple) and len(rules) == 2 and all(isinstance(r, str) for r in rules) and "(ruleset" in rules[1]:
        return [rules]
    return [pair for one in rules for pair in texts(one)]
