"""Docstrings and README, run."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import pytest

import resat

HERE = pathlib.Path(__file__).resolve().parent.parent
MODULES = [m.name for m in pkgutil.iter_modules(resat.__path__) if m.name != "_resat"]


@pytest.mark.parametrize("name", ["__init__", *MODULES])
def test_docstrings(name):
    module = resat if name == "__init__" else importlib.import_module(f"resat.{name}")
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("file", ["README.md", "../docs/python.md"])
def test_examples_of_documents(file, tmp_path, monkeypatch):
    """The Python blocks of a document are one program."""
    text = (HERE / file).read_text()
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert blocks
    exec(compile("\n".join(blocks), file, "exec"), {"__name__": "__main__"})


def test_everything_public_is_documented():
    for name in resat.__all__:
        thing = getattr(resat, name)
        assert isinstance(thing, str) or (thing.__doc__ or "").strip(), name
