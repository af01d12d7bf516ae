"""Prints the package's type stub, `python/resat/__init__.pyi`: what is there, and a class for each pass of the registry."""

import ast
import pathlib

import resat

text = pathlib.Path(resat.__file__).read_text()
lines = ['"""resat: a compiler for TVM\'s Relay IR by equality saturation. Made by make_stubs.py."""', ""]
lines += ["from collections.abc import Mapping", "from typing import Any", ""]
for node in ast.parse(text).body:
    if isinstance(node, ast.ImportFrom) and node.module is not None and node.names[0].asname is None:
        names = ", ".join(f"{a.name} as {a.name}" for a in node.names)
        lines.append(f"from .{node.module} import {names}")
for name, class_ in sorted(resat._passes_module._classes.items()):
    lines += ["", f"class {name}(Pass):", f'    """{class_.__doc__}"""', ""]
    if name == "ConvertLayout":
        lines.append(
            "    def __init__(self, layouts: str | Mapping[str, Any] | None = None, *, to: str | None = None, skip: Any = None) -> None: ..."
        )
    else:
        lines.append("    def __init__(self, *args: Any, **named: Any) -> None: ...")
print("\n".join(lines))
