"""What messages and docstrings tell people to use exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.core.operators import _NAMES, numpy_hint

ROOT = Path(wf.__file__).parent
NAME = re.compile(r"\bwf((?:\.[A-Za-z_]\w*)+)")


def _strings(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if NAME.search(text) else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _exists(dotted: str) -> bool:
    owner: Any = wf
    for name in dotted.split("."):
        public = getattr(owner, "__all__", None)
        if not hasattr(owner, name) or (public is not None and name not in public):
            return False
        owner = getattr(owner, name)
    return True


def test_every_name_in_a_string_of_weft_exists() -> None:
    named = {
        (str(path.relative_to(ROOT)), match[1:])
        for path in ROOT.rglob("*.py")
        for text in _strings(path)
        for match in NAME.findall(text)
    }
    assert len(named) > 100
    assert [n for n in sorted(named) if not _exists(n[1])] == []


@pytest.mark.parametrize("name", ["no_such", "nn.no_such", "random.no_such", "math"])
def test_the_check_finds_what_is_not_there(name: str) -> None:
    assert not _exists(name)


def test_hints_for_numpy_functions_name_functions_that_exist() -> None:
    assert [name for name in _NAMES.values() if not _exists(name)] == []
    functions = [f for f in vars(np).values() if isinstance(f, np.ufunc) or callable(f)]
    hints = {f.__name__: numpy_hint(f.__name__) for f in functions if hasattr(f, "__name__")}
    for hint in hints.values():
        assert all(map(_exists, (m[1:] for m in NAME.findall(hint))))
    assert hints["sin"] == "use wf.sin"
    assert hints["power"] == "use wf.pow"
    assert numpy_hint("norm") == "use wf.linalg.vector_norm"
    assert numpy_hint("svd") == "use wf.linalg.svd"
    assert hints["median"].startswith("weft has no function of that name")
