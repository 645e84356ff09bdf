"""What docs/guide/checkpoints.md shows is what happens."""

from __future__ import annotations

import re
from typing import Any

from paths import ROOT

import weft as wf

PAGE = ROOT / "docs" / "guide" / "checkpoints.md"


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    namespace: dict[str, Any] = {"__name__": "checkpoints"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert "missing: more" in str(namespace["report"])


def test_names_on_the_page_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in set(re.findall(r"`wf\.train\.(\w+)", text)):
        assert hasattr(wf.train, name), name
    for name in re.findall(r"^\| `(\w+Error)`", text, re.MULTILINE):
        assert hasattr(wf.errors, name), name
