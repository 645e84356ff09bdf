"""Pages of README.md and docs/: their blocks of code, run as a reader would run them."""

from __future__ import annotations

import linecache
import re
import warnings
from pathlib import Path
from typing import Any

from paths import ROOT

import weft as wf

DOCS = ROOT / "docs"
#: What blocks hold that need Ray: `test_ray_cluster.py` has their like.
NEEDS_RAY = "RayCluster("
_FENCED = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str = "python") -> list[str]:
    """The fenced blocks of a page that are in a language; "": of none, what a program prints."""
    text = page.read_text(encoding="utf-8")
    return [block for kind, block in _FENCED.findall(text) if kind.strip() == language]


def pages() -> list[Path]:
    """All pages that have Python to run."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in found if blocks(page)]


def run(page: Path) -> dict[str, Any]:
    """The names that a page's blocks leave, run in order; a performance warning is an error."""
    names: dict[str, Any] = {"__name__": page.stem}
    with warnings.catch_warnings():
        warnings.simplefilter("error", wf.PerformanceWarning)
        for number, block in enumerate(blocks(page), 1):
            if NEEDS_RAY in block:
                continue
            place = f"{page.relative_to(ROOT)}, block {number}"
            linecache.cache[place] = (len(block), None, block.splitlines(True), place)
            exec(compile(block, place, "exec"), names)
    return names


def shown_lines(page: Path) -> list[str]:
    """What a page says that its blocks print: the lines of each block of no language that comes
    right after one of Python, but for "..."."""
    found = _FENCED.findall(page.read_text(encoding="utf-8"))
    kinds = [kind.strip() for kind, _ in found]
    lines = [
        line.strip()
        for i in range(1, len(found))
        if kinds[i] == "" and kinds[i - 1] == "python"
        for line in found[i][1].splitlines()
    ]
    return [line for line in lines if line not in ("", "...")]
