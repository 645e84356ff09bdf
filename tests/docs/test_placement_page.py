"""What docs/guide/placement.md shows is what happens."""

from __future__ import annotations

from typing import Any

import pytest
from paths import ROOT

PAGE = ROOT / "docs" / "guide" / "placement.md"


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    fenced = text.split("```")[1::2]
    blocks = [b.removeprefix("python\n") for b in fenced if b.startswith("python\n")]
    assert len(blocks) == 4
    namespace: dict[str, Any] = {"__name__": "placement"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    printed = capsys.readouterr().out
    outputs = [b.splitlines() for b in fenced if b.startswith("\n")]
    shown = [line for lines in outputs for line in lines if line.strip() not in ("", "...")]
    assert len(shown) > 10
    assert [line for line in shown if line not in printed] == []
    assert namespace["placed"].predict().seconds > 0
    assert namespace["costs"].measured
