"""What docs/guide/queues.md shows is what happens."""

from __future__ import annotations

import re
from typing import Any

from paths import ROOT

PAGE = ROOT / "docs" / "guide" / "queues.md"


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    namespace: dict[str, Any] = {"__name__": "queues"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert namespace["queue"].is_closed()
    assert namespace["coordinator"].joined
