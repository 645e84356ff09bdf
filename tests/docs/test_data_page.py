"""What docs/guide/data.md shows is what happens."""

from __future__ import annotations

import re
from typing import Any

from paths import ROOT

PAGE = ROOT / "docs" / "guide" / "data.md"


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    namespace: dict[str, Any] = {"__name__": "data"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert len(namespace["losses"]) == 60
    assert namespace["losses"][-1] < 1e-6
