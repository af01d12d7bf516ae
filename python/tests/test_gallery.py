"""The gallery, run: as notebooks run it, cell after cell, each cell's last value shown."""

import ast
import pathlib
import sys

import pytest

GALLERY = pathlib.Path(__file__).resolve().parent.parent / "gallery"
SCRIPTS = sorted(p.stem for p in GALLERY.glob("*.py") if p.name != "to_notebooks.py")


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("ignore::resat.ResatWarning")
def test_gallery(name, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.syspath_prepend(str(GALLERY))
    monkeypatch.chdir(tmp_path)
    from to_notebooks import notebook

    made = notebook((GALLERY / f"{name}.py").read_text())
    nbformat.validate(made)
    space = {"__name__": "__main__"}
    for number, cell in enumerate(made.cells):
        if cell.cell_type != "code":
            continue
        body = ast.parse(cell.source)
        last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
        exec(compile(body, f"{name}[{number}]", "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"{name}[{number}]", "eval"), space)
            shown = getattr(value, "_repr_html_", None)
            assert value is None or shown is None or isinstance(shown(), str)
