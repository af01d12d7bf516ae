"""Docstrings and README, run."""

import ast
import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

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


def test_every_public_member_is_documented():
    lacking = []
    for name in resat.__all__:
        thing = getattr(resat, name)
        if isinstance(thing, type):
            for member, value in vars(thing).items():
                value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
                if not member.startswith("_") and (callable(value) or isinstance(value, property) or inspect.isdatadescriptor(value)):
                    # What a base documents need not be said again.
                    if not (inspect.getdoc(getattr(thing, member, value)) or "").strip():
                        lacking.append(f"{name}.{member}")
    assert lacking == []


def declared(body):
    """What a stub declares, by name: members of classes as sets, None for all else."""
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = set(declared(node.body))
        elif isinstance(node, (ast.FunctionDef, ast.AnnAssign)):
            found[node.name if isinstance(node, ast.FunctionDef) else node.target.id] = None
    return found


def test_stubs_say_what_there_is():
    """The types of the Rust part are written by hand; their names, and those of members and parameters, are compared with it."""
    stub = pathlib.Path(resat.__file__).with_name("_resat.pyi")
    said = declared(ast.parse(stub.read_text()).body)
    module = resat._resat
    assert {n for n in vars(module) if not n.startswith("__")} == {n for n in said if not n.startswith("__")}
    for name, members in said.items():
        if members is None:
            continue
        there = {n for n in vars(getattr(module, name)) if not n.startswith("_")}
        assert there == {n for n in members if not n.startswith("_")}, name


def test_stubs_say_which_arguments_there_are():
    """Names, order, kinds and defaults of parameters, as signatures have them; what takes any arguments is left out."""
    stub = ast.parse(pathlib.Path(resat.__file__).with_name("_resat.pyi").read_text())
    compared = 0

    def compare(node, thing, where):
        nonlocal compared
        try:
            signature = inspect.signature(thing)
        except (TypeError, ValueError):
            return
        there = [p for p in signature.parameters.values() if p.name not in ("self", "cls") and p.kind is not p.VAR_KEYWORD]
        said = [a for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs if a.arg not in ("self", "cls")]
        if node.args.kwarg is not None or any(p.kind is p.VAR_POSITIONAL for p in there):
            return
        assert [a.arg for a in said] == [p.name for p in there] or all(p.kind is p.POSITIONAL_ONLY for p in there), where
        optional = len(node.args.defaults) + sum(d is not None for d in node.args.kw_defaults)
        assert optional == sum(p.default is not p.empty for p in there), where
        compared += 1

    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            compare(node, getattr(resat._resat, node.name), node.name)
        elif isinstance(node, ast.ClassDef):
            of = getattr(resat._resat, node.name)
            for member in node.body:
                if not isinstance(member, ast.FunctionDef) or any("property" in ast.unparse(d) for d in member.decorator_list):
                    continue
                if not member.name.startswith("__"):
                    compare(member, getattr(of, member.name), f"{node.name}.{member.name}")
    assert compared > 40


def test_passes_have_stubs():
    """Classes of passes are made when the package is imported; their stubs are made by `make_stubs.py`."""
    made = subprocess.run([sys.executable, HERE / "make_stubs.py"], capture_output=True, text=True, check=True).stdout
    assert pathlib.Path(resat.__file__).with_name("__init__.pyi").read_text() == made, "run make_stubs.py"


def test_objects_show_themselves(mlp, x):
    """What notebooks show is HTML, whatever texts hold."""
    exe = resat.build(mlp)
    with resat.Trace() as t:
        resat.default_pipeline()(mlp)
    shown = [mlp, mlp["main"], exe, t, t.passes[-1], resat.default_pipeline(), resat.explain(mlp, pipeline="Saturate")]
    shown.append(resat.Ruleset("(ruleset t) (rule a (negative (negative ?x)) => ?x)"))
    for thing in shown:
        html = thing._repr_html_()
        assert html.startswith("<") and "Tensor[(4, 32)" in html or "<t" in html or "<pre>" in html, thing
