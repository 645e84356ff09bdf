"""docs/index.md runs; the site's pages of reference are those of the public modules."""

from __future__ import annotations

import re
from typing import Any

import pytest
from paths import ROOT

import weft as wf

DOCS = ROOT / "docs"


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "index.md", "exec"), names)
    said = capsys.readouterr().out.splitlines()
    losses = [float(line) for line in said[:3]]
    assert losses[2] < losses[0]
    assert "kernel calls" in said[3]
    assert said[4].startswith("graph @step")


def test_reference() -> None:
    """A page for each public module, but `wf.tf1`, whose names have first ones."""
    modules = ["nn", "linalg", "random", "train", "data", "lookup", "testing", "errors"]
    shown = {"wf", *modules}
    others = {"ir", "numerics", "tools"}
    assert {p.stem for p in (DOCS / "reference").glob("*.md")} == shown | others
    assert shown | {"tf1"} == {"wf", "tf1", *(n for n in wf.__all__ if n in modules)}
    for name in modules:
        module = getattr(wf, name).__name__
        text = (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")
        assert f"\n::: {module}\n" in text
