"""How far long work is: a bar in notebooks, a line on terminals."""

from __future__ import annotations

import contextlib
import html
import sys
import time
from typing import Any, Callable, Iterator

Progress = Callable[[str, int, int], None]


def _shell() -> Any:
    """The notebook that this runs in, if it runs in one. Nothing is imported that is not there."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if shell is not None and shell.has_trait("kernel") else None


class _Bar:
    """A bar that is redrawn at most ten times a second."""

    def __init__(self, notebook: bool):
        self.notebook, self.handle, self.shown, self.phase = notebook, None, 0.0, ""

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase == self.phase and done < total and now - self.shown < 0.1:
            return
        self.shown, self.phase = now, phase
        if not self.notebook:
            print(f"\r\x1b[K{phase}: {done} of {total}", end="", file=sys.stderr, flush=True)
            return
        from IPython.display import HTML, display

        bar = HTML(f"{html.escape(phase)} <progress value='{done}' max='{max(total, 1)}'></progress> {done} of {total}")
        if self.handle is None:
            self.handle = display(bar, display_id=True)
        else:
            self.handle.update(bar)

    def end(self) -> None:
        if not self.notebook:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        elif self.handle is not None:
            from IPython.display import HTML

            self.handle.update(HTML(""))


@contextlib.contextmanager
def reporter(progress: "Progress | bool | None") -> "Iterator[Progress | None]":
    """Who hears of progress: the user's function, a bar, or nobody."""
    notebook = _shell() is not None
    if progress is False or progress is None and not notebook:
        yield None
    elif progress is True or progress is None:
        bar = _Bar(notebook)
        try:
            yield bar
        finally:
            bar.end()
    else:
        yield progress
