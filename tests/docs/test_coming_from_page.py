"""What docs/coming-from.md shows runs, and the names that it gives are there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from paths import ROOT

import weft as wf

PAGE = ROOT / "docs" / "coming-from.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_python_blocks_run() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    losses = names["losses"]
    assert len(losses) == 251
    assert losses[0] > 0.1
    assert max(losses[199], losses[-1]) < 1e-3  # each way of the three has learnt it


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\bwf((?:\.[A-Za-z_]\w*)+)", TEXT))))
def test_names(name: str) -> None:
    """Each is there, but those that the first lines give as names of others."""
    owner: Any = wf
    if name in (".vmap", ".concatenate", ".nn.Linear"):
        with pytest.raises(AttributeError, match="hint: "):
            [owner := getattr(owner, part) for part in name.split(".")[1:]]
        return
    for part in name.split(".")[1:]:
        owner = getattr(owner, part)


def test_length() -> None:
    assert len(TEXT.split()) <= 1500
