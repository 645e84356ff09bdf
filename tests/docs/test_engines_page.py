"""What docs/guide/engines.md shows is what happens."""

from __future__ import annotations

import re
from typing import Any

from paths import ROOT

import weft as wf

PAGE = ROOT / "docs" / "guide" / "engines.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    shown = [block for block in blocks if "RayCluster" not in block]  # test_ray_cluster.py
    assert len(shown) == 3
    namespace: dict[str, Any] = {"__name__": "engines"}
    for block in shown:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert namespace["here"].job == "worker"


def test_names_on_the_page_are_there() -> None:
    names = set(re.findall(r"wf\.train\.(\w+)", TEXT))
    assert len(names) > 5
    names |= set(re.findall(r"`(\w+(?:Hook|Resolver))\b", TEXT))
    for name in names - {"Saver"}:
        assert hasattr(wf.train, name), name
    for name in re.findall(r"`(\w+Error)`", TEXT):
        assert hasattr(wf.errors, name), name
    assert "SingularMonitoredSession" not in dir(wf.train)  # the page says so
