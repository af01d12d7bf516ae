"""What objects show of themselves in notebooks."""

from __future__ import annotations

from html import escape
from typing import Any, Iterable, Sequence


def cell(value: Any) -> str:
    """A value as text: numbers with few digits."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(str(value))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """A table."""
    cap = f"<caption>{escape(caption)}</caption>" if caption else ""
    th = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{cell(v)}</td>" for v in row) + "</tr>" for row in rows)
    return f"<table>{cap}<thead><tr>{th}</tr></thead><tbody>{body}</tbody></table>"


def code(text: str, most: int = 120) -> str:
    """Program text, of long ones the first lines."""
    lines = text.splitlines()
    more = f"\n… {len(lines) - most} more lines" if len(lines) > most else ""
    return f"<pre>{escape(chr(10).join(lines[:most]) + more)}</pre>"


def frame(page: str, height: int = 720) -> str:
    """A whole page within a notebook's."""
    return f'<iframe srcdoc="{escape(page, quote=True)}" style="width:100%;height:{height}px;border:0"></iframe>'
