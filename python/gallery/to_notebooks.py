"""Turns the gallery's scripts into notebooks: `python to_notebooks.py FOLDER`. Needs nbformat."""

import pathlib
import re
import sys

import nbformat


def notebook(text):
    """The notebook of a script in cells: `# %%` begins one of code, `# %% [markdown]` one of comments that are text."""
    cells = []
    for part in re.split(r"^# %%", text, flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        body = body.strip("\n")
        if head.strip() == "[markdown]":
            cells.append(nbformat.v4.new_markdown_cell("\n".join(re.sub("^# ?", "", line) for line in body.splitlines())))
        else:
            cells.append(nbformat.v4.new_code_cell(body))
    return nbformat.v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}})


def scripts():
    """The gallery's scripts."""
    here = pathlib.Path(__file__).resolve().parent
    return sorted(p for p in here.glob("*.py") if p.name != "to_notebooks.py")


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for script in scripts():
        nbformat.write(notebook(script.read_text()), folder / f"{script.stem}.ipynb")
