"""What docs/internals/partitioning.md shows is what happens."""

from __future__ import annotations

from typing import Any

import pytest
from paths import ROOT

PAGE = ROOT / "docs" / "internals" / "partitioning.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    _, code, _, shown, *_ = PAGE.read_text(encoding="utf-8").split("```")
    namespace: dict[str, Any] = {"__name__": "partitioning"}
    exec(compile(code.removeprefix("python\n"), str(PAGE), "exec"), namespace)
    assert capsys.readouterr().out == shown.removeprefix("\n")
