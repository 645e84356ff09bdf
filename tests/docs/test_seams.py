"""How far tests reach into weft: their number may only fall.

Tests know the inside by four seams: text cases, `interpret`, plans as text, `Step.run`. A module
that imports a private name, or internals of a part that its folder is not about, has to follow
when those change. `python tests/docs/test_seams.py` prints the modules that reach furthest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
#: What any test may import: what the text of a graph says, the interpreter, the interface of steps.
SEAMS = ("weft.ir", "weft.runtime.step", "weft.passes.pipelines", "weft.passes.manager")
#: Which parts of weft a folder of tests is about, besides the one with its name.
ABOUT = {
    "cluster": ("weft.runtime.cluster", "weft.comm"),
    "session": ("weft.frontend",),
    "gpu": ("weft.runtime.device", "weft.codegen.cuda"),
    "onnx": ("weft.frontend.onnx", "weft.frontend.bundle"),
}
#: As many modules as there were when this was last counted: lower them, never raise them.
MOST = {"private imports": 5, "private attributes": 123, "far imports": 171}


#: An import from weft, as ruff formats them; of a program in a string, too.
IMPORT = re.compile(
    r"^ *(?:from (weft[\w.]*) import (\([^)]*\)|[^\n#]*)|import (weft\.[\w.]+))", re.M
)
NAME = re.compile(r"(\w+)(?: as \w+)?")


@cache
def modules() -> dict[str, str]:
    """All Python files of the tests, by their path."""
    files = sorted(TESTS.rglob("*.py"))
    return {f.relative_to(TESTS).as_posix(): f.read_text("utf-8") for f in files}


def imported(text: str) -> Iterator[tuple[str, str]]:
    """The modules of weft that are imported from, and the names."""
    for source, names, module in IMPORT.findall(text):
        if module:
            yield module, ""
        lines = re.sub(r"#.*", "", names)
        yield from ((source, name) for name in NAME.findall(lines))


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_imports(path: str) -> list[str]:
    """Private names that a module imports."""
    return [f"{module}.{name}" for module, name in imported(modules()[path]) if private(name)]


def private_attributes(path: str) -> list[str]:
    """Private attributes that it reads or replaces of what it has not made itself."""
    text = modules()[path]
    if not re.search(r"\._[^\W_]", text):
        return []
    nodes = list(ast.walk(ast.parse(text)))
    own = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    held = [n for n in nodes if isinstance(n, ast.Attribute) and private(n.attr)]
    held = [n for n in held if n.attr != "_repr_html_"]  # a protocol's: notebooks call it
    of_self = {n.attr for n in held if isinstance(n.value, ast.Name) and n.value.id == "self"}
    return [n.attr for n in held if n.attr not in own | of_self]


def far_imports(path: str) -> list[str]:
    """Internals that it imports of parts that its folder is not about."""
    folder = path.split("/")[0]
    near = (*SEAMS, *ABOUT.get(folder, ()), f"weft.{folder}")
    found = (module for module, _ in imported(modules()[path]) if module != "weft")
    return [m for m in found if not any(m == n or m.startswith(f"{n}.") for n in near)]


def count(kind: str) -> dict[str, int]:
    """By path how many of a kind a module has, those with most first."""
    look = {
        "private imports": private_imports,
        "private attributes": private_attributes,
        "far imports": far_imports,
    }[kind]
    made = {path: len(look(path)) for path in modules()}
    return dict(sorted(((p, n) for p, n in made.items() if n), key=lambda row: -row[1]))


@pytest.mark.parametrize("kind", MOST)
def test_no_more_modules_reach_inside(kind: str) -> None:
    found = count(kind)
    assert len(found) <= MOST[kind], "go by a seam; `python tests/docs/test_seams.py` lists them"


if __name__ == "__main__":
    for kind in MOST:
        found = count(kind)
        print(f"{kind}: {len(found)} modules, {sum(found.values())} places")
        for path, number in list(found.items())[:15]:
            print(f"  {number:4} {path}")
