"""What docs/internals/comm.md shows is what happens, and its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from paths import ROOT

from weft.comm import wire
from weft.comm.endpoint import Endpoint
from weft.comm.limits import FRAME_BYTES, KIB, MIB, Limits
from weft.comm.link import INLINE_BYTES
from weft.comm.protocol import Message

PAGE = ROOT / "docs" / "internals" / "comm.md"


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    namespace: dict[str, Any] = {"__name__": "comm"}
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), namespace)
    finally:
        for end in namespace.values():
            if isinstance(end, Endpoint):
                end.close()
    received = namespace["received"]
    (message,) = (x for x in received if isinstance(x, Message))
    (tensor,) = (x for x in received if isinstance(x, np.ndarray))
    assert (message.kind, message.meta) == (3, {"loss": 0.5})
    assert tensor.tolist() == [1.0, 2.0]


def test_numbers_of_the_page() -> None:
    limits = Limits()
    assert wire.HEADER.size == 48
    assert wire.META_BYTES == 60 * KIB
    assert (limits.eager_bytes, INLINE_BYTES) == (256 * KIB, 64 * KIB)
    assert FRAME_BYTES == MIB + 128 * KIB
    assert (limits.heartbeat_timeout_s, limits.silence_s) == (3.0, 30.0)


def test_table_names_all_files() -> None:
    text = PAGE.read_text(encoding="utf-8")
    folder = Path(wire.__file__).parent
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py", "errors.py"}
    assert {name for name in files if f"`{name}`" not in text} == set()
