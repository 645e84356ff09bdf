"""What docs/guide/replicas.md shows is what happens."""

from __future__ import annotations

import re
from typing import Any

from paths import ROOT

import weft as wf

PAGE = ROOT / "docs" / "guide" / "replicas.md"


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    namespace: dict[str, Any] = {"__name__": "replicas"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    for thread in namespace["threads"]:
        thread.join(20)
        assert not thread.is_alive()


def test_names_on_the_page_are_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for kind in ("train", "nn"):
        names = set(re.findall(rf"`wf\.{kind}\.(\w+)", text))
        assert names
        for name in names:
            assert hasattr(getattr(wf, kind), name), name
