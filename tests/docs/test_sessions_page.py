"""What docs/guide/sessions.md shows is what happens."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import weft as wf
from weft.ir.errors import InvalidArgumentError

PAGE = ROOT / "docs" / "guide" / "sessions.md"


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict[str, Any] = {"__name__": "sessions"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert namespace["value"] < 1e-3
    np.testing.assert_allclose(namespace["w"].numpy(), [1, 2, 3], atol=0.05)


def test_a_target_that_is_no_address() -> None:
    with pytest.raises(InvalidArgumentError, match="is no address"):
        wf.Session(target="grpc://host:2222")
